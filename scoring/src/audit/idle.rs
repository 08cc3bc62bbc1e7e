//! Long checks of idle nodes: when the last one ran, by our stamps or by what sacct shows of another suite's, and whether they give
//! way to jobs.

use std::collections::BTreeMap;

use serde_json::Value;

use super::health::epoch;
use super::system::{self, Host, Ran, text};
use super::{Item, Verdict};
use crate::sla::hostlist;

const S: &str = "audit";
/// Words that jobs of checks have in their names.
const WORDS: [&str; 9] = ["health", "check", "diag", "burn", "fryer", "nccl", "validat", "dcgm", "stress"];
/// How far back sacct is asked.
const BACK: &str = "now-30days";

/// The heavy check's stamp, as `clustermax-idle-check` left it on this node.
pub fn stamp(host: &Host) -> Item {
    let metric = "idle_check_age";
    let file = host.run_dir.join("active/heavy.json");
    let command = format!("cat {}", file.display());
    let item = match text(&file) {
        None if host.run_dir.join("checks.json").exists() => Item::unknown(
            S,
            metric,
            "no long check has given a result since the node booted, or clustermax-idle-check.timer is off",
        ),
        None => Item::unavailable(
            S,
            metric,
            format!("{} is not there: our checks do not run here", file.display()),
        ),
        Some(document) => {
            let stamp: Value = serde_json::from_str(&document).unwrap_or_default();
            match (stamp["time"].as_f64(), stamp["status"].as_str()) {
                (Some(at), Some(status)) => {
                    let hours = (epoch() - at).max(0.0) / 3600.0;
                    Item::value(S, metric, hours, format!("{status} {hours:.1} h ago"))
                        .judged(if hours <= 168.0 { Verdict::Pass } else { Verdict::Warn })
                }
                _ => Item::unknown(S, metric, format!("{} has no time or status", file.display())),
            }
        }
    };
    item.param("by", "stamp")
        .unit("h")
        .by(&command)
        .mend("systemctl enable --now clustermax-idle-check.timer: a heavy check a week on every idle node")
}

/// What only Slurm can tell: checks of another suite in sacct, and whether checks give way.
pub fn audit(nodes: &[String]) -> Vec<Item> {
    let mut items = recorded(nodes);
    items.push(gives_way());
    items
}

/// The newest job of a check on each node, by its name and its user.
fn recorded(nodes: &[String]) -> Vec<Item> {
    let metric = "idle_check_age";
    let command = format!("sacct -a -X -P -S {BACK} -o JobName,User,End,NodeList");
    let shown = system::run(
        "sacct",
        &["-a", "-n", "-X", "-P", "-S", BACK, "-s", "CD,F", "-o", "User,End,NodeList,JobName"],
    );
    let found = match shown {
        Ok(ran) if ran.ok() => Ok(newest(&ran.out)),
        ran => Err(format!("sacct: {}", ran.map_or_else(|why| why, |ran| ran.complaint()))),
    };
    nodes
        .iter()
        .map(|node| {
            let item = match &found {
                Err(why) => Item::unavailable(S, metric, why.clone()),
                Ok(found) => match found.get(node) {
                    Some((at, name)) => {
                        let hours = (epoch() - *at as f64).max(0.0) / 3600.0;
                        Item::value(S, metric, hours, format!("job {name} of root or slurm ended {hours:.1} h ago"))
                            .judged(if hours <= 168.0 { Verdict::Pass } else { Verdict::Warn })
                    }
                    None => Item::unavailable(
                        S,
                        metric,
                        "no_history: sacct shows this user no job of root or slurm on it in 30 days whose name tells of a check; \
                         checks that run otherwise are not seen",
                    ),
                },
            };
            item.param("by", "sacct").unit("h").by(&command).on(node)
        })
        .collect()
}

/// End (seconds since 1970) and name of the newest check by node; `User|End|NodeList|JobName`, times in this machine's zone.
fn newest(shown: &str) -> BTreeMap<String, (i64, String)> {
    let mut found: BTreeMap<String, (i64, String)> = BTreeMap::new();
    for line in shown.lines() {
        let mut words = line.splitn(4, '|');
        let (Some(user), Some(end), Some(list), Some(name)) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            continue;
        };
        let lower = name.to_lowercase();
        if !matches!(user, "root" | "slurm") || !WORDS.iter().any(|word| lower.contains(word)) {
            continue;
        }
        let at = end
            .parse::<jiff::civil::DateTime>()
            .ok()
            .and_then(|end| end.to_zoned(jiff::tz::TimeZone::system()).ok())
            .map(|end| end.timestamp().as_second());
        let Some(at) = at else { continue };
        for node in hostlist::expand(list).unwrap_or_default() {
            let newest = found.entry(node).or_insert((at, name.to_owned()));
            if at > newest.0 {
                *newest = (at, name.to_owned());
            }
        }
    }
    found
}

/// A partition whose jobs every other may pre-empt, or pre-emption by QOS.
fn gives_way() -> Item {
    let metric = "idle_check_gives_way";
    let ask = |args: &[&str]| system::run("scontrol", args).ok().filter(Ran::ok).map(|ran| ran.out);
    let item = match (ask(&["show", "config"]), ask(&["-o", "show", "partition"])) {
        (Some(config), Some(partitions)) => {
            let (yes, seen) = preemptible(&config, &partitions);
            Item::flag(S, metric, yes, true, Verdict::Warn, seen)
        }
        _ => Item::unknown(S, metric, "scontrol show config and show partition do not both answer"),
    };
    item.by("scontrol show config | grep Preempt; scontrol show partition").mend(
        "PreemptType=preempt/partition_prio, and a partition of low PriorityTier with PreemptMode=CANCEL for checks",
    )
}

fn preemptible(config: &str, partitions: &str) -> (bool, String) {
    let kind = config
        .lines()
        .find_map(|line| line.strip_prefix("PreemptType")?.split_once('=').map(|(_, value)| value.trim()))
        .unwrap_or("preempt/none");
    if kind.ends_with("/qos") {
        return (true, "jobs give way by their QOS (PreemptType=preempt/qos)".to_owned());
    }
    if !kind.ends_with("/partition_prio") {
        return (false, format!("PreemptType={kind}: no job gives way to another"));
    }
    let field = |line: &str, key: &str| {
        line.split_whitespace().find_map(|word| word.strip_prefix(key)).map(str::to_owned)
    };
    let all: Vec<(String, i64, String)> = partitions
        .lines()
        .filter_map(|line| {
            Some((
                field(line, "PartitionName=")?,
                field(line, "PriorityTier=")?.parse().ok()?,
                field(line, "PreemptMode=")?,
            ))
        })
        .collect();
    let highest = all.iter().map(|(_, tier, _)| *tier).max().unwrap_or(0);
    let found = all.iter().find(|(_, tier, mode)| {
        *tier < highest && matches!(mode.as_str(), "CANCEL" | "REQUEUE" | "SUSPEND" | "GANG,SUSPEND")
    });
    match found {
        Some((name, tier, mode)) => {
            (true, format!("partition {name} of tier {tier} below {highest} gives way (PreemptMode={mode})"))
        }
        None => (
            false,
            "no partition has a lower PriorityTier than another and PreemptMode other than OFF".to_owned(),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::host;
    use super::*;
    use crate::record::State;

    #[test]
    fn a_stamp_has_its_age() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(stamp(&host(dir.path(), &[])).state, State::Unavailable);
        let ours = host(dir.path(), &[("run_dir/checks.json", "{}")]);
        assert_eq!(stamp(&ours).state, State::Unknown);
        let at = |time: f64| format!("{{\"kind\":\"heavy\",\"time\":{time},\"status\":\"pass\"}}");
        let fresh = stamp(&host(dir.path(), &[("run_dir/active/heavy.json", &at(epoch() - 7200.0))]));
        assert!(fresh.verdict == Verdict::Pass && (1.9..2.1).contains(&fresh.value.unwrap()), "{fresh:?}");
        let old = stamp(&host(dir.path(), &[("run_dir/active/heavy.json", &at(epoch() - 2e6))]));
        assert!(old.verdict == Verdict::Warn && old.value.unwrap() > 500.0, "{old:?}");
        assert_eq!(stamp(&host(dir.path(), &[("run_dir/active/heavy.json", "{")])).state, State::Unknown);
    }

    #[test]
    fn checks_of_other_suites_are_told_by_user_and_name() {
        let shown = "root|2026-11-20T10:00:00|n[1-2]|weekly-gpu-burn\nroot|2026-11-27T10:00:00|n2|dcgm-diag-3\n\
                     alice|2026-11-28T10:00:00|n3|check-my-model\nroot|2026-11-28T10:00:00|n3|backup\nslurm|Unknown|n4|healthcheck\nbad\n";
        let found = newest(shown);
        let names: Vec<(&str, &str)> =
            found.iter().map(|(node, (_, name))| (node.as_str(), name.as_str())).collect();
        assert_eq!(names, [("n1", "weekly-gpu-burn"), ("n2", "dcgm-diag-3")]);
        assert!(found["n2"].0 > found["n1"].0);
    }

    #[test]
    fn a_partition_that_gives_way_is_found() {
        let by = |kind: &str| format!("PreemptMode             = CANCEL\nPreemptType             = {kind}\n");
        let partition = |name: &str, tier: u32, mode: &str| {
            format!(
                "PartitionName={name} AllowGroups=ALL PriorityJobFactor=1 PriorityTier={tier} OverSubscribe=NO PreemptMode={mode}\n"
            )
        };
        let two = partition("gpu", 10, "OFF") + &partition("checks", 1, "CANCEL");
        assert!(preemptible(&by("preempt/partition_prio"), &two).0);
        assert!(preemptible(&by("preempt/qos"), "").0);
        assert!(!preemptible(&by("preempt/none"), &two).0);
        assert!(!preemptible("", &two).0);
        let same = partition("gpu", 1, "CANCEL") + &partition("checks", 1, "CANCEL");
        assert!(!preemptible(&by("preempt/partition_prio"), &same).0, "nobody is above it");
        let off = partition("gpu", 10, "OFF") + &partition("checks", 1, "OFF");
        assert!(!preemptible(&by("preempt/partition_prio"), &off).0);
    }
}
