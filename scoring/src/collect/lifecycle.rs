//! How soon a node is of use: the first step's delay, and the import of a framework.
//!
//! `begin.tsv` holds the epoch times at which Slurm started the job and its script began; `steps.tsv` one line a step
//! and node: step number, node, epoch time before srun, epoch time in the task; `import.NODE.json` the import times.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::{Raw, torch::median};
use crate::record::{Record, State};

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
}

/// Stage `lifecycle`.
pub fn read(raw: &Raw) -> Vec<Record> {
    let mut records = prolog(raw);
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
                        Some(value) => raw.measured(metric, "s", value, file.at(pointer)),
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
    let nothing = |why: &str| -> Vec<Record> {
        raw.folder
            .run
            .nodes
            .iter()
            .map(|node| raw.missing("prolog_seconds", "s", raw.missing_state(), why).on(node).done())
            .collect()
    };
    let Some(steps) = raw.file("steps.tsv") else { return nothing(&raw.marker.why()) };
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
