//! What the controller and the other nodes run, compared with what is installed and configured here. Asks slurmctld.

use std::collections::BTreeMap;
use std::path::Path;

use super::{Looks, Status, ask};
use crate::release::Release;
use crate::slurm_conf::SlurmConf;

/// Keys that must be the same here and in the controller, else a fault is handled by rules nobody reads.
const KEYS: [&str; 6] =
    ["Prolog", "Epilog", "PrologFlags", "HealthCheckProgram", "HealthCheckInterval", "HealthCheckNodeState"];
/// Nodes named in a sentence before it says how many more there are.
const NAMED: usize = 8;

pub(super) fn look(
    looks: &mut Looks,
    scontrol: &Path,
    conf: &SlurmConf,
    conf_path: &Path,
    installed: Option<Release>,
) {
    const CHECK: &str = "controller";
    let shown = match ask(scontrol, &["show", "config"], Some(conf_path)) {
        Ok(text) if text.contains("SLURM_VERSION") => text,
        Ok(_) => {
            return looks.add(
                CHECK,
                Status::Fail,
                "the controller does not answer: `scontrol show config` printed nothing",
                "drains wait in the spool until it does",
                "scontrol ping",
            );
        }
        Err(e) => {
            return looks.add(
                CHECK,
                Status::Fail,
                e,
                "drains wait in the spool until it does",
                "scontrol ping",
            );
        }
    };
    let running = settings(&shown);
    let controller = running.get("slurm_version").and_then(|v| v.first()).and_then(|v| Release::find(v));
    match (controller, installed) {
        (Some(controller), Some(here)) if controller != here => looks.add(
            CHECK,
            Status::Warn,
            format!("the controller runs Slurm {controller}, this host has Slurm {here}"),
            "clustermax-drain and the plugin must be of the release that each host has",
            format!("install clustermax-slurm-{here} here and clustermax-slurm-{controller} there"),
        ),
        (Some(controller), _) => looks.pass(CHECK, format!("it runs Slurm {controller}")),
        (None, _) => looks.add(CHECK, Status::Warn, "the controller does not say its release", "", ""),
    }
    let differing: Vec<String> = KEYS
        .iter()
        .filter_map(|key| {
            let here: Vec<&str> = conf.all(key).filter(|v| !v.is_empty() && *v != "(null)").collect();
            let there = running.get(&key.to_ascii_lowercase()).cloned().unwrap_or_default();
            // What is not set here has a default there.
            let same = here.is_empty() && !matches!(*key, "Prolog" | "Epilog" | "HealthCheckProgram")
                || equal(key, &here, &there);
            let show = |list: &str| if list.is_empty() { "nothing".to_owned() } else { list.to_owned() };
            (!same).then(|| {
                format!("{key} is {} there and {} here", show(&there.join(",")), show(&here.join(",")))
            })
        })
        .collect();
    if differing.is_empty() {
        looks.pass("running configuration", "the controller runs with what slurm.conf says here".to_owned());
    } else {
        looks.add(
            "running configuration",
            Status::Fail,
            format!("the controller runs with another configuration: {}", differing.join("; ")),
            "slurmctld and slurmd go by what they read last, not by the file",
            "scontrol reconfigure",
        );
    }
    if let Some(controller) = controller {
        nodes(looks, scontrol, conf_path, controller);
    }
}

/// Releases of the slurmds, as they registered.
fn nodes(looks: &mut Looks, scontrol: &Path, conf_path: &Path, controller: Release) {
    const CHECK: &str = "nodes' release";
    let text = match ask(scontrol, &["-a", "-o", "show", "node"], Some(conf_path)) {
        Ok(text) => text,
        Err(e) => return looks.add(CHECK, Status::Warn, e, "", ""),
    };
    let found = by_release(&text);
    let other: Vec<String> = found
        .iter()
        .filter(|(release, _)| **release != controller)
        .map(|(release, nodes)| {
            let more = nodes.len().saturating_sub(NAMED);
            let named = nodes.iter().take(NAMED).cloned().collect::<Vec<_>>().join(",");
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            format!("Slurm {release} on {named}{more}")
        })
        .collect();
    let total: usize = found.values().map(Vec::len).sum();
    if other.is_empty() {
        looks.pass(CHECK, format!("{total} nodes run Slurm {controller}"));
    } else {
        looks.add(
            CHECK,
            Status::Warn,
            format!("{} of {total} nodes do not run the controller's Slurm {controller}: {}", total - found.get(&controller).map_or(0, Vec::len), other.join("; ")),
            "the plugin of one release is refused by another, and clustermax-drain goes through scontrol there",
            "on each node, install the clustermax-slurm package of the release that it runs",
        );
    }
}

/// `scontrol show config`, keys in lower case. From 23.11 on, `Prolog[0] = /a` is one line for each script.
fn settings(text: &str) -> BTreeMap<String, Vec<String>> {
    let mut all: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (key, value) in text.lines().filter_map(|l| l.split_once('=')) {
        let key = key.trim().split('[').next().unwrap_or_default().to_ascii_lowercase();
        let value = value.trim();
        if value != "(null)" && !key.contains(' ') {
            all.entry(key).or_default().push(value.to_owned());
        }
    }
    all
}

/// Whether the file's values and the controller's mean the same.
fn equal(key: &str, here: &[&str], there: &[String]) -> bool {
    let last = here.last().copied().unwrap_or_default();
    let shown = there.join(",");
    match key {
        // `60` in the file, `60 sec` there.
        "HealthCheckInterval" => last.split_whitespace().next() == shown.split_whitespace().next(),
        // The controller adds what others imply: Alloc with Contain.
        "PrologFlags" => {
            last.split(',').all(|flag| shown.split(',').any(|s| s.eq_ignore_ascii_case(flag.trim())))
        }
        // Up to 23.02 the last of several lines counts; patterns are shown as written or expanded.
        "Prolog" | "Epilog" if here.iter().any(|h| h.contains('*')) => !there.is_empty(),
        "Prolog" | "Epilog" => shown == here.join(",") || shown == last,
        _ => shown.eq_ignore_ascii_case(last),
    }
}

/// Names of nodes by the release of their slurmd; nodes that never registered have none.
fn by_release(text: &str) -> BTreeMap<Release, Vec<String>> {
    let mut all: BTreeMap<Release, Vec<String>> = BTreeMap::new();
    for line in text.lines() {
        let field = |key: &str| line.split(' ').find_map(|word| word.strip_prefix(key)?.strip_prefix('='));
        if let (Some(name), Some(release)) = (field("NodeName"), field("Version").and_then(Release::find)) {
            all.entry(release).or_default().push(name.to_owned());
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHOWN: &str = "Configuration data as of 2026-11-30T22:14:01\nEpilog[0]               = /e\n\
         HealthCheckInterval     = 60 sec\nHealthCheckProgram      = (null)\nProlog[0]               = /a\n\
         Prolog[1]               = /b\nPrologFlags             = Alloc,Contain\nSLURM_VERSION           = 24.11.5\n\
         Slurmctld(primary) at vm is UP\n";

    #[test]
    fn settings_of_all_releases_are_read() {
        let all = settings(SHOWN);
        assert_eq!(all["prolog"], ["/a", "/b"]);
        assert_eq!(all["epilog"], ["/e"]);
        assert!(!all.contains_key("healthcheckprogram"));
        assert_eq!(settings("Prolog                  = /a\n")["prolog"], ["/a"]);
    }

    #[test]
    fn what_means_the_same_is_equal() {
        let there = |text: &str| vec![text.to_owned()];
        for (key, here, shown, same) in [
            ("HealthCheckInterval", "60", "60 sec", true),
            ("HealthCheckInterval", "60", "30 sec", false),
            ("PrologFlags", "contain", "Alloc,Contain", true),
            ("PrologFlags", "Alloc,X11", "Alloc,Contain", false),
            ("HealthCheckProgram", "/a", "/a", true),
            ("HealthCheckProgram", "/a", "/b", false),
            ("Prolog", "/etc/slurm/prolog.d/*", "/etc/slurm/prolog.d/10", true),
            ("Prolog", "/a", "/b", false),
        ] {
            assert_eq!(equal(key, &[here], &there(shown)), same, "{key} {here} {shown}");
        }
        assert!(equal("Prolog", &["/a", "/b"], &["/a".to_owned(), "/b".to_owned()]));
        assert!(!equal("Prolog", &[], &["/a".to_owned()]));
    }

    #[test]
    fn nodes_are_sorted_by_their_release() {
        let text = "NodeName=n1 Arch=x86_64 State=IDLE Version=24.11.5 Reason=Version=1.2\n\
                    NodeName=n2 State=IDLE Version=22.05.8\nNodeName=n3 State=DOWN*\n";
        let all = by_release(text);
        assert_eq!(all.len(), 2);
        assert_eq!(all[&Release { major: 22, minor: 5 }], ["n2"]);
    }
}
