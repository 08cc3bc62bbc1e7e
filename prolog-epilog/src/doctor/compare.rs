//! Lays the reports of several hosts beside each other: login nodes, the controller, compute nodes. Whatever brings the reports
//! here (srun, pdsh, clush, scp) is the operator's; one report is one line of `clustermax-doctor --json`.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use super::facts::{KEYS, Role};
use super::{Diagnosis, Item, Looks, SCHEMA, Status};

/// Hosts named in a sentence before it says how many more there are.
const NAMED: usize = 8;

/// What is needed of another host's report.
#[derive(Debug, Clone, Deserialize)]
pub struct HostReport {
    schema: String,
    host: String,
    role: Role,
    slurm: Option<String>,
    facts: BTreeMap<String, String>,
    checks: Vec<HostItem>,
}

/// One look of another host's report.
#[derive(Debug, Clone, Deserialize)]
struct HostItem {
    check: String,
    status: Status,
    text: String,
    #[serde(default)]
    why: String,
    #[serde(default)]
    mend: String,
}

/// Reads reports, one or many, one after the other.
///
/// # Errors
/// One sentence: which of them cannot be understood.
pub fn reports(name: &str, text: &str) -> Result<Vec<HostReport>, String> {
    let mut all = Vec::new();
    for (at, report) in serde_json::Deserializer::from_str(text).into_iter::<HostReport>().enumerate() {
        let at = at + 1;
        let report = report.map_err(|e| {
            format!("{name}, report {at} is not understood ({e}): write it with `clustermax-doctor --json`")
        })?;
        if report.schema != SCHEMA {
            return Err(format!("{name}, report {at}: its schema is {:?}, not {SCHEMA}", report.schema));
        }
        all.push(report);
    }
    if all.is_empty() {
        Err(format!("{name} holds no report: write it with `clustermax-doctor --json`"))
    } else {
        Ok(all)
    }
}

/// Compares the reports. Each host's own failures are listed too, once for all hosts that have them.
#[must_use]
pub fn compare(reports: &[HostReport]) -> Diagnosis {
    let mut looks = Looks::default();
    roles(&mut looks, reports);
    releases(&mut looks, reports);
    facts(&mut looks, reports);
    own_checks(&mut looks, reports);
    let status = looks.0.iter().map(|i| i.status).max().unwrap_or(Status::Pass);
    let slurm =
        reports.iter().find(|r| r.role == Role::Controller).or(reports.first()).and_then(|r| r.slurm.clone());
    Diagnosis {
        schema: SCHEMA,
        status,
        host: String::new(),
        role: Role::Login,
        slurm,
        facts: BTreeMap::new(),
        checks: looks.0,
    }
}

fn roles(looks: &mut Looks, reports: &[HostReport]) {
    const CHECK: &str = "hosts";
    let of = |role: Role| -> Vec<&str> {
        reports.iter().filter(|r| r.role == role).map(|r| r.host.as_str()).collect()
    };
    let all = [Role::Controller, Role::Login, Role::Compute];
    let seen: Vec<String> = all
        .iter()
        .filter(|role| !of(**role).is_empty())
        .map(|role| format!("{}: {}", role.word(), hosts(&of(*role))))
        .collect();
    let missing: Vec<&str> = all.iter().filter(|role| of(**role).is_empty()).map(|r| r.word()).collect();
    if missing.is_empty() {
        looks.pass(CHECK, seen.join("; "));
    } else {
        looks.add(
            CHECK,
            Status::Warn,
            format!("{}; no report of a host that is {}", seen.join("; "), missing.join(" or ")),
            "what differs there is not seen",
            "clustermax-doctor --json >> FILE    # on that host",
        );
    }
}

fn releases(looks: &mut Looks, reports: &[HostReport]) {
    const CHECK: &str = "Slurm";
    let groups = by_value(reports.iter().map(|r| (r.host.as_str(), r.slurm.as_deref().unwrap_or("missing"))));
    if let [(release, hosts)] = &groups[..] {
        looks.pass(CHECK, format!("all {} hosts have Slurm {release}", hosts.len()));
        return;
    }
    looks.add(
        CHECK,
        Status::Warn,
        format!("hosts have different releases of Slurm: {}", sentence(&groups)),
        "a plugin of one release is refused by another, and clustermax-drain goes through scontrol there",
        "on each host, install the clustermax-slurm package of the release that it has",
    );
}

/// Facts that should be the same wherever they are there.
fn facts(looks: &mut Looks, reports: &[HostReport]) {
    let keys: BTreeSet<&String> = reports.iter().flat_map(|r| r.facts.keys()).collect();
    let mut same = 0_usize;
    for key in keys.into_iter().filter(|k| *k != "Slurm") {
        // The plugin is bound to a release: only hosts of one release can have the same.
        let bound = matches!(key.as_str(), "plugin" | "plugin's release" | "clustermax-drain");
        let mut of_release: BTreeMap<&str, Vec<(&str, &str)>> = BTreeMap::new();
        for r in reports {
            if let Some(value) = r.facts.get(key) {
                let release = if bound { r.slurm.as_deref().unwrap_or_default() } else { "" };
                of_release.entry(release).or_default().push((&r.host, value));
            }
        }
        for hosts in of_release.into_values() {
            let groups = by_value(hosts.into_iter());
            if groups.len() > 1 {
                differs(looks, key, &groups);
            } else {
                same += 1;
            }
        }
    }
    looks.pass("what must be the same", format!("{same} things are the same on every host that has them"));
}

fn differs(looks: &mut Looks, key: &str, groups: &[(&str, Vec<&str>)]) {
    let is_conf = key.strip_prefix("slurm.conf ").filter(|k| KEYS.contains(k));
    let most = groups.first().map_or("", |(value, _)| value);
    let (status, why, mend) = if let Some(key) = is_conf {
        let line = if most == "unset" { format!("# {key} is not set") } else { format!("{key}={most}") };
        (
            Status::Fail,
            "each daemon goes by the file on its own host: the same fault ends in different ways",
            format!("{line}    # in slurm.conf of all hosts, then: scontrol reconfigure"),
        )
    } else if key == "configuration" {
        (
            Status::Warn,
            "right where nodes have different hardware, else some nodes drain for what others do not",
            String::new(),
        )
    } else if key == "plugstack.conf" {
        (
            Status::Fail,
            "an option of the plugin that srun knows and slurmstepd does not, or the other way round, is refused",
            format!("{most}    # in plugstack.conf of all hosts, then restart slurmd"),
        )
    } else {
        (
            Status::Fail,
            "hosts with another file, owner or mode behave in another way, or refuse it",
            "install the same clustermax packages on all of them".to_string(),
        )
    };
    looks.add(key, status, format!("differs: {}", sentence(groups)), why, mend);
}

/// Every host's own findings, once each.
fn own_checks(looks: &mut Looks, reports: &[HostReport]) {
    let mut seen: BTreeMap<(&str, Status, &str), (Vec<&str>, &HostItem)> = BTreeMap::new();
    let items = reports.iter().flat_map(|r| r.checks.iter().map(move |i| (r, i)));
    for (report, item) in items.filter(|(_, i)| i.status != Status::Pass) {
        // Ages and counts differ from host to host; the mend and the reason why do not.
        let text = if item.mend.is_empty() { &item.text } else { &item.mend };
        let entry = seen.entry((&item.check, item.status, text)).or_insert((Vec::new(), item));
        entry.0.push(&report.host);
    }
    for ((check, status, _), (on, item)) in seen {
        looks.0.push(Item {
            check: check.to_string(),
            status,
            text: format!("on {}: {}", hosts(&on), item.text),
            why: item.why.clone(),
            mend: item.mend.clone(),
        });
    }
}

/// Hosts by value, the value of most hosts first.
fn by_value<'a>(pairs: impl Iterator<Item = (&'a str, &'a str)>) -> Vec<(&'a str, Vec<&'a str>)> {
    let mut map: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (host, value) in pairs {
        map.entry(value).or_default().push(host);
    }
    let mut groups: Vec<_> = map.into_iter().collect();
    groups.sort_by_key(|(_, hosts)| std::cmp::Reverse(hosts.len()));
    groups
}

fn sentence(groups: &[(&str, Vec<&str>)]) -> String {
    let parts: Vec<String> = groups.iter().map(|(value, on)| format!("{value} on {}", hosts(on))).collect();
    parts.join("; ")
}

fn hosts(names: &[&str]) -> String {
    let more = names.len().saturating_sub(NAMED);
    let named = names.iter().take(NAMED).copied().collect::<Vec<_>>().join(",");
    if more > 0 { format!("{named} and {more} more") } else { named }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(host: &str, role: &str, slurm: &str, facts: &[(&str, &str)], checks: &str) -> String {
        let facts: BTreeMap<&str, &str> = facts.iter().copied().collect();
        let facts = serde_json::to_string(&facts).unwrap();
        format!(
            r#"{{"schema":"clustermax-doctor/1","status":"pass","host":"{host}","role":"{role}","slurm":"{slurm}","facts":{facts},"checks":[{checks}]}}"#
        )
    }

    fn texts(text: &str) -> Vec<String> {
        let diagnosis = compare(&reports("x", text).unwrap());
        diagnosis
            .checks
            .iter()
            .map(|i| format!("{} {}: {} [{}]", i.status, i.check, i.text, i.mend))
            .collect()
    }

    #[test]
    fn hosts_that_agree_pass() {
        let facts = [("slurm.conf Prolog", "/p"), ("plugin", "sha256:1 uid 0 mode 0644")];
        let text = [
            report("ctl", "controller", "22.05", &facts, ""),
            report("login1", "login", "22.05", &facts, ""),
            report(
                "n1",
                "compute",
                "22.05",
                &facts,
                r#"{"check":"state folder","status":"pass","text":"t"}"#,
            ),
        ]
        .join("\n");
        let diagnosis = compare(&reports("x", &text).unwrap());
        assert_eq!(diagnosis.status, Status::Pass, "{diagnosis:?}");
        assert_eq!(diagnosis.slurm.as_deref(), Some("22.05"));
    }

    #[test]
    fn what_differs_is_named_with_its_hosts_and_the_line() {
        let conf = |v| [("slurm.conf Prolog", v), ("clustermax-healthcheck", "sha256:1 uid 0 mode 0755")];
        let old = [("slurm.conf Prolog", "/p"), ("clustermax-healthcheck", "sha256:2 uid 0 mode 0755")];
        let text = [
            report("ctl", "controller", "24.11", &[("slurm.conf Prolog", "/p")], ""),
            report("n1", "compute", "24.11", &conf("/p"), ""),
            report("n2", "compute", "24.11", &conf("unset"), ""),
            report(
                "n3",
                "compute",
                "22.05",
                &old,
                r#"{"check":"plugin","status":"fail","text":"gone","mend":"m"}"#,
            ),
            report(
                "n4",
                "compute",
                "24.11",
                &conf("/p"),
                r#"{"check":"plugin","status":"fail","text":"gone","mend":"m"}"#,
            ),
        ]
        .join("\n");
        let all = texts(&text);
        for expected in [
            "WARN hosts: controller: ctl; compute: n1,n2,n3,n4; no report of a host that is login",
            "WARN Slurm: hosts have different releases of Slurm: 24.11 on ctl,n1,n2,n4; 22.05 on n3",
            "FAIL slurm.conf Prolog: differs: /p on ctl,n1,n3,n4; unset on n2 [Prolog=/p    # in slurm.conf of all",
            "FAIL clustermax-healthcheck: differs: sha256:1 uid 0 mode 0755 on n1,n2,n4; sha256:2 uid 0 mode 0755 on n3",
            "FAIL plugin: on n3,n4: gone [m]",
        ] {
            assert!(all.iter().any(|t| t.starts_with(expected)), "{expected}\n{all:#?}");
        }
    }

    #[test]
    fn plugins_of_different_releases_need_not_be_the_same() {
        let text = [
            report("n1", "compute", "24.11", &[("plugin", "a")], ""),
            report("n2", "compute", "22.05", &[("plugin", "b")], ""),
        ]
        .join("");
        assert!(!texts(&text).iter().any(|t| t.contains("plugin")), "{:?}", texts(&text));
    }

    #[test]
    fn what_is_no_report_is_named() {
        for (text, what) in [
            ("", "f holds no report"),
            ("{\"schema\"", "f, report 1 is not understood"),
            (
                &report("a", "login", "1", &[], "").replace("doctor/1", "doctor/9"),
                "its schema is \"clustermax-doctor/9\"",
            ),
        ] {
            let why = reports("f", text).unwrap_err();
            assert!(why.contains(what), "{why}");
        }
    }
}
