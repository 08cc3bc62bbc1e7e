//! How soon a node is of use: the first step's delay, and the import of a framework.
//!
//! `launch.tsv` holds how long srun took for each later step; `prologs.txt` what our own prolog took, where it is installed;
//! `boots.tsv` a node's boot and its slurmd's start; `container.tsv` steps inside of a container, like `steps.tsv`;
//! `install.NODE.json` the install of a package; `reboot.NODE.json` a timed reboot (`clustermax suite reboot`).
//!
//! `begin.tsv` holds the epoch times at which Slurm started the job and its script began; `steps.tsv` one line a step
//! and node: step number, node, epoch time before srun, epoch time in the task; `import.NODE.json` the import times.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Raw, torch::median};
use crate::record::{Provenance, Record, State};

#[derive(Debug, Deserialize)]
struct Import {
    node: String,
    torch: Option<String>,
    #[serde(default)]
    cold_seconds: Option<f64>,
    #[serde(default)]
    warm_seconds: Option<f64>,
    #[serde(default)]
    detail: String,
    #[serde(flatten)]
    dropped: super::storage::Dropped,
}

/// Stage `lifecycle`.
pub(super) fn read(raw: &Raw) -> Vec<Record> {
    let mut records = prolog(raw);
    records.extend(first_task(raw, &records));
    records.extend(quantiles(raw, &records));
    records.extend(containers(raw));
    records.extend(installs(raw));
    records.extend(boots(raw));
    records.extend(reboots(raw));
    for node in &raw.folder.run.nodes {
        let found = raw.file(&format!("import.{node}.json"));
        for (cache, pointer) in [("cold", "/cold_seconds"), ("warm", "/warm_seconds")] {
            let metric = "import_torch_seconds";
            let draft = match found.map(|file| (file, file.json::<Import>())) {
                None => raw.absent(metric, "s"),
                Some((_, Err(why))) => raw.missing(metric, "s", State::Unknown, why),
                Some((file, Ok(import))) => {
                    let value = if cache == "cold" { import.cold_seconds } else { import.warm_seconds };
                    let draft = match value {
                        _ if import.node != *node => raw.missing(
                            metric,
                            "s",
                            State::Unknown,
                            format!("the file is of node {}", import.node),
                        ),
                        Some(value) => {
                            let draft = raw.measured(metric, "s", value, file.at(pointer));
                            if cache == "cold" { draft.detail(import.dropped.words(raw)) } else { draft }
                        }
                        None => raw.missing(metric, "s", State::Unavailable, import.detail),
                    };
                    match import.torch {
                        Some(torch) => draft.tool(&format!("torch {torch}")),
                        None => draft,
                    }
                }
            };
            records.push(draft.param("cache", cache).on(node).done());
        }
    }
    records
}

/// Seconds from the job's start until its first task runs on a node, beyond what a later step needs. The clocks of
/// two nodes are never compared: a constant offset of a node's clock is in its first and its later steps alike.
fn prolog(raw: &Raw) -> Vec<Record> {
    let nothing = |state: State, why: &str| -> Vec<Record> {
        raw.folder
            .run
            .nodes
            .iter()
            .map(|node| raw.missing("prolog_seconds", "s", state, why).on(node).done())
            .collect()
    };
    let Some(steps) = raw.file("steps.tsv") else { return nothing(raw.missing_state(), &raw.marker.why()) };
    if let Some(why) = steps.text.lines().find_map(|line| line.strip_prefix("stale\t")) {
        let why = format!("a prolog's time is that of the first step of a fresh allocation, and {why}");
        return nothing(State::Unknown, &why);
    }
    let mut delays: BTreeMap<&str, BTreeMap<u32, f64>> = BTreeMap::new();
    for line in steps.text.lines() {
        let words: Vec<&str> = line.split('\t').collect();
        let [step, node, before, inside] = words[..] else { continue };
        let (Ok(step), Ok(before), Ok(inside)) = (step.parse(), before.parse::<f64>(), inside.parse::<f64>())
        else {
            continue;
        };
        delays.entry(node).or_default().insert(step, inside - before);
    }
    // An upper bound: Slurm keeps the start in whole seconds, cut off.
    let queue = raw.file("begin.tsv").and_then(|file| {
        let mut words = file.text.split_whitespace();
        let (start, begin) = (words.next()?.parse::<f64>().ok()?, words.next()?.parse::<f64>().ok()?);
        (begin >= start).then_some(begin - start)
    });
    raw.folder
        .run
        .nodes
        .iter()
        .map(|node| {
            let of_node = delays.get(node.as_str());
            let first = of_node.and_then(|steps| steps.get(&0)).copied();
            let mut later: Vec<f64> = of_node.into_iter().flatten().filter(|(step, _)| **step > 0).map(|(_, delay)| *delay).collect();
            later.sort_by(f64::total_cmp);
            match (first, later.is_empty()) {
                (Some(first), false) => {
                    let extra = (first - median(&later)).max(0.0);
                    let detail = match queue {
                        Some(queue) => format!(
                            "{extra:.3} s more for the first step than for the median of {} later ones, and at most {queue:.1} s \
                             from the job's start to its script, where PrologFlags=Alloc runs the prolog",
                            later.len()
                        ),
                        None => format!(
                            "{extra:.3} s more for the first step than for the median of {} later ones; the job's start is not known",
                            later.len()
                        ),
                    };
                    raw.measured("prolog_seconds", "s", extra + queue.unwrap_or(0.0), steps.evidence.clone()).detail(detail)
                }
                _ => raw.missing("prolog_seconds", "s", State::Unknown, "the node has no first step and later ones in steps.tsv"),
            }
            .on(node)
            .done()
        })
        .collect()
}

/// Resolution of everything that is counted from the job's start.
const RESOLUTION: &str = "Slurm keeps the job's start in whole seconds, so it may be up to 1 s too long";

/// From the allocation to the first task: the prolog, and what a step takes that waits for none.
fn first_task(raw: &Raw, prologs: &[Record]) -> Vec<Record> {
    let (metric, unit) = ("first_task_seconds", "s");
    let file = raw.file("launch.tsv");
    let mut steps: Vec<f64> = file
        .iter()
        .flat_map(|file| file.text.lines())
        .filter_map(|line| line.split_once('\t')?.1.parse().ok())
        .collect();
    steps.sort_by(f64::total_cmp);
    prologs
        .iter()
        .filter(|record| record.metric == "prolog_seconds")
        .filter_map(|record| Some((record, record.subject.node.as_deref()?)))
        .map(|(record, node)| {
            let draft = match (record.value, file, steps.is_empty()) {
                (Some(prolog), Some(file), false) => {
                    let launch = median(&steps);
                    let mut draft = raw.measured(metric, unit, prolog + launch, file.evidence.clone());
                    draft.0.provenance = Provenance::Inferred;
                    draft.detail(format!(
                        "{prolog:.3} s of prolog and {launch:.3} s for a step there and back (median of {}); {RESOLUTION}; time in the queue is not in it",
                        steps.len()
                    ))
                }
                _ => raw.missing(metric, unit, raw.missing_state(), "there is no prolog time and later steps to add"),
            };
            draft.on(node).done()
        })
        .collect()
}

/// Median and 99th percentile over the nodes of the prolog's time: by the first step, and by our own prolog's log.
fn quantiles(raw: &Raw, prologs: &[Record]) -> Vec<Record> {
    let (metric, unit) = ("prolog_quantile", "s");
    let mut records = Vec::new();
    let steps = raw.file("steps.tsv");
    let seconds: Vec<f64> = prologs
        .iter()
        .filter(|record| record.metric == "prolog_seconds")
        .filter_map(|record| record.value)
        .collect();
    let log = raw.file("prologs.txt");
    // Of this job: an earlier job's prolog is not its own.
    let begin =
        raw.file("begin.tsv").and_then(|file| file.text.split_whitespace().next()?.parse::<f64>().ok());
    let logged: Vec<f64> = log
        .iter()
        .flat_map(|file| file.text.lines())
        .filter_map(|line| match line.split_whitespace().collect::<Vec<_>>()[..] {
            ["cmx-life", _, "prolog", when, seconds] => {
                let when: f64 = when.parse().ok()?;
                // Nodes' clocks differ by seconds at most.
                begin.is_none_or(|begin| when >= begin - 5.0).then(|| seconds.parse().ok())?
            }
            _ => None,
        })
        .collect();
    let sources = [
        ("first_step", steps, seconds, RESOLUTION, "no node has a first step and later ones"),
        (
            "log",
            log,
            logged,
            "our own prolog's clock; the rest of Slurm's prolog is not in it",
            "our prolog is not installed on the nodes, or left no verdict for this job",
        ),
    ];
    for (source, file, mut seconds, what, without) in sources {
        seconds.sort_by(f64::total_cmp);
        for (stat, percent) in [("p50", 50usize), ("p99", 99)] {
            let at = (seconds.len() * percent).div_ceil(100).saturating_sub(1);
            let draft = match (file, seconds.get(at)) {
                (Some(file), Some(value)) => {
                    let mut draft = raw.measured(metric, unit, *value, file.evidence.clone());
                    draft.0.provenance = Provenance::Inferred;
                    draft.detail(format!("of {} nodes; {what}", seconds.len()))
                }
                _ => raw.missing(metric, unit, State::Unavailable, without),
            };
            records.push(draft.param("stat", stat).param("source", source).done());
        }
    }
    records
}

/// Lines of steps: label, node, before, inside; by node and label the difference.
fn delays(text: &str) -> BTreeMap<(&str, &str), f64> {
    text.lines()
        .filter_map(|line| {
            let words: Vec<&str> = line.split('\t').collect();
            let [label, node, before, inside] = words[..] else { return None };
            Some(((node, label), inside.parse::<f64>().ok()? - before.parse::<f64>().ok()?))
        })
        .collect()
}

/// Start of a container, the first time with its fetch: what its step took longer than a plain one on the same node.
fn containers(raw: &Raw) -> Vec<Record> {
    let (metric, unit) = ("container_start_seconds", "s");
    let Some(file) = raw.file("container.tsv") else {
        let why = "no container was given (--container IMAGE, where Pyxis or enroot is)";
        return vec![raw.missing(metric, unit, State::Unavailable, why).done()];
    };
    let (inside, plain) =
        (delays(&file.text), raw.file("steps.tsv").map(|steps| delays(&steps.text)).unwrap_or_default());
    let mut records = Vec::new();
    for node in &raw.folder.run.nodes {
        let mut later: Vec<f64> = plain
            .iter()
            .filter(|((of, label), _)| of == node && *label != "0")
            .map(|(_, delay)| *delay)
            .collect();
        later.sort_by(f64::total_cmp);
        for cache in ["first", "again"] {
            let draft = match (inside.get(&(node.as_str(), cache)), later.is_empty()) {
                (Some(delay), false) => {
                    let what = if cache == "first" {
                        "with what had to be fetched and unpacked, which is nothing where the node had it already"
                    } else {
                        "with its image in place"
                    };
                    raw.measured(metric, unit, (delay - median(&later)).max(0.0), file.evidence.clone())
                        .detail(what)
                }
                _ => raw.missing(metric, unit, State::Unknown, "its step did not tell the time on this node"),
            };
            records.push(draft.param("cache", cache).on(node).done());
        }
    }
    records
}

#[derive(Debug, Deserialize)]
struct Install {
    files: u32,
    rows: Vec<InstallRow>,
}

#[derive(Debug, Deserialize)]
struct InstallRow {
    tool: String,
    #[serde(default)]
    seconds: Option<f64>,
    #[serde(default)]
    detail: String,
}

fn installs(raw: &Raw) -> Vec<Record> {
    let (metric, unit) = ("package_install_seconds", "s");
    let mut records = Vec::new();
    for node in &raw.folder.run.nodes {
        let file = raw.file(&format!("install.{node}.json"));
        let (file, install) = match file.map(|file| (file, file.json::<Install>())) {
            None => {
                records.push(raw.absent(metric, unit).param("tool", "pip").on(node).done());
                continue;
            }
            Some((_, Err(why))) => {
                records.push(
                    raw.missing(metric, unit, State::Unknown, why).param("tool", "pip").on(node).done(),
                );
                continue;
            }
            Some((file, Ok(install))) => (file, install),
        };
        for (at, row) in install.rows.iter().enumerate() {
            let draft = match row.seconds {
                Some(seconds) => raw
                    .measured(metric, unit, seconds, file.at(format!("/rows/{at}/seconds")))
                    .detail(format!(
                        "a local wheel of {} files of 4 KiB into a fresh environment, no network",
                        install.files
                    )),
                None => raw.missing(metric, unit, State::Unavailable, row.detail.as_str()),
            };
            records.push(draft.param("tool", row.tool.as_str()).on(node).done());
        }
    }
    records
}

/// From a node's boot to its slurmd's start: valid only while nobody has restarted slurmd since.
fn boots(raw: &Raw) -> Vec<Record> {
    let (metric, unit) = ("boot_to_slurmd_seconds", "s");
    let file = raw.file("boots.tsv");
    let of: BTreeMap<&str, (f64, f64)> = file
        .iter()
        .flat_map(|file| file.text.lines())
        .filter_map(|line| {
            let words: Vec<&str> = line.split('\t').collect();
            let [node, boot, slurmd] = words[..] else { return None };
            Some((node, (boot.parse().ok()?, slurmd.parse().ok()?)))
        })
        .collect();
    raw.folder
        .run
        .nodes
        .iter()
        .map(|node| {
            let draft = match (file, of.get(node.as_str())) {
                // A boot takes minutes; what is longer is a restart of slurmd alone.
                (Some(file), Some((boot, slurmd))) if (0.0..3600.0).contains(&(slurmd - boot)) => raw
                    .measured(metric, unit, slurmd - boot, file.evidence.clone())
                    .detail("by Slurm's BootTime and SlurmdStartTime; too long if slurmd was restarted since"),
                (Some(_), Some(_)) => raw.missing(
                    metric,
                    unit,
                    State::Unavailable,
                    "slurmd was restarted more than an hour after the boot: its start says nothing of the boot",
                ),
                _ => raw.missing(metric, unit, State::Unavailable, "Slurm does not tell the node's BootTime and SlurmdStartTime"),
            };
            draft.on(node).done()
        })
        .collect()
}

fn reboots(raw: &Raw) -> Vec<Record> {
    let (metric, unit) = ("reboot_to_usable_seconds", "s");
    let mut records: Vec<Record> = raw
        .files
        .iter()
        .filter_map(|file| Some((file, file.name.strip_prefix("reboot.")?.strip_suffix(".json")?)))
        .map(|(file, node)| {
            let draft = match file.json::<Reboot>() {
                Ok(Reboot { usable: Some(usable), .. }) => raw
                    .measured(metric, unit, usable, file.at("/usable"))
                    .detail("from `scontrol reboot` to the end of a command that ran on the node"),
                Ok(Reboot { detail, .. }) => raw.missing(
                    metric,
                    unit,
                    State::Unknown,
                    detail.unwrap_or_else(|| "it was not usable again".to_owned()),
                ),
                Err(why) => raw.missing(metric, unit, State::Unknown, why),
            };
            draft.on(node).done()
        })
        .collect();
    if records.is_empty() {
        let why =
            "no node was rebooted: that needs root and consent (clustermax suite reboot NODE --confirm NODE)";
        records.push(raw.missing(metric, unit, State::Unavailable, why).done());
    }
    records
}

/// `reboot.NODE.json`: seconds after the request.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Reboot {
    /// The node.
    pub node: String,
    /// Until Slurm showed a new BootTime.
    pub booted: Option<f64>,
    /// Until it was idle again.
    pub idle: Option<f64>,
    /// Until a command had run on it.
    pub usable: Option<f64>,
    /// Why not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::super::StageState;
    use super::super::tests::{collected, find};
    use super::*;

    #[test]
    fn a_foreign_cluster_and_ours_give_the_prologs_quantiles_each() {
        let steps = "0\tn1\t10.0\t13.1\n0\tn2\t10.0\t11.1\n1\tn1\t20.0\t20.1\n1\tn2\t20.0\t20.1\n";
        let files = [
            ("steps.tsv", steps),
            ("launch.tsv", "1\t0.300000\n2\t0.200000\n3\t0.400000\n"),
            ("begin.tsv", "1000 1000.7\n"),
            // n2's verdict is of an earlier job.
            (
                "prologs.txt",
                "a plug-in's line\ncmx-life n1 prolog 1000.4 0.13\ncmx-life n2 prolog 900.0 0.5\n",
            ),
            ("boots.tsv", "n1\t500\t560\nn2\t500\t90000\n"),
        ];
        let (_dir, records) = collected("lifecycle", StageState::Done, &files);
        let of = |source: &str, stat: &str| {
            find(&records, "prolog_quantile", &[("source", source), ("stat", stat)]).clone()
        };
        let close = |record: &Record, value: f64| (record.value.unwrap() - value).abs() < 1e-6;
        assert!(close(&of("first_step", "p50"), 1.7), "{:?}", of("first_step", "p50"));
        assert!(close(&of("first_step", "p99"), 3.7));
        assert!(of("first_step", "p99").detail.unwrap().contains("whole seconds"));
        assert_eq!(of("log", "p99").value, Some(0.13));
        let first = find(&records, "first_task_seconds", &[("node", "n1")]);
        assert!(close(first, 4.0), "{first:?}");
        assert_eq!(find(&records, "boot_to_slurmd_seconds", &[("node", "n1")]).value, Some(60.0));
        assert!(
            find(&records, "boot_to_slurmd_seconds", &[("node", "n2")])
                .detail
                .as_ref()
                .unwrap()
                .contains("restarted")
        );
        for metric in ["container_start_seconds", "reboot_to_usable_seconds"] {
            assert_eq!(find(&records, metric, &[]).state, State::Unavailable, "{metric}");
        }
    }

    #[test]
    fn an_allocation_that_waited_for_the_suite_gives_no_prologs_time() {
        let steps = "stale\tthe suite was not started by sbatch, so the allocation may have waited for it\n\
                     0\tn1\t10.0\t10.1\n1\tn1\t20.0\t20.1\n";
        let files = [("steps.tsv", steps), ("launch.tsv", "1\t0.3\n"), ("begin.tsv", "1000 4600.0\n")];
        let (_dir, records) = collected("lifecycle", StageState::Done, &files);
        let prolog = find(&records, "prolog_seconds", &[("node", "n1")]);
        assert!(prolog.state == State::Unknown && prolog.detail.as_ref().unwrap().contains("by sbatch"));
        let first = find(&records, "prolog_quantile", &[("source", "first_step"), ("stat", "p50")]);
        assert_eq!(
            (first.value, find(&records, "first_task_seconds", &[("node", "n1")]).value),
            (None, None)
        );
    }

    #[test]
    fn containers_installs_and_reboots_are_told_by_node() {
        // n2's clock is 100 s ahead.
        let files = [
            ("steps.tsv", "1\tn1\t20.0\t20.1\n1\tn2\t20.0\t120.1\n"),
            ("container.tsv", "first\tn1\t30.0\t75.1\nfirst\tn2\t30.0\t160.1\nagain\tn1\t80.0\t82.1\n"),
            (
                "install.n1.json",
                r#"{"files":200,"rows":[{"tool":"pip","seconds":2.5},{"tool":"uv","seconds":0.2}]}"#,
            ),
            (
                "install.n2.json",
                r#"{"files":200,"rows":[{"tool":"pip","detail":"pip cannot install on n2: No module named pip"}]}"#,
            ),
            ("reboot.n1.json", r#"{"node":"n1","booted":90.0,"idle":120.0,"usable":121.5}"#),
        ];
        let (_dir, records) = collected("lifecycle", StageState::Done, &files);
        let start = |node: &str, cache: &str| {
            find(&records, "container_start_seconds", &[("node", node), ("cache", cache)]).clone()
        };
        assert!((start("n1", "first").value.unwrap() - 45.0).abs() < 1e-6);
        assert!((start("n2", "first").value.unwrap() - 30.0).abs() < 1e-6);
        assert!((start("n1", "again").value.unwrap() - 2.0).abs() < 1e-6);
        assert_eq!(start("n2", "again").state, State::Unknown);
        let install = |node: &str, tool: &str| {
            find(&records, "package_install_seconds", &[("node", node), ("tool", tool)]).clone()
        };
        assert_eq!((install("n1", "pip").value, install("n1", "uv").value), (Some(2.5), Some(0.2)));
        assert!(
            install("n2", "pip").state == State::Unavailable
                && install("n2", "pip").detail.unwrap().contains("No module")
        );
        assert_eq!(find(&records, "reboot_to_usable_seconds", &[("node", "n1")]).value, Some(121.5));
    }
}
