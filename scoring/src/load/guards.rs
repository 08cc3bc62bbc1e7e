//! Guards that make figures unknown: a figure that is of something else than what is rated (processors instead of GPUs,
//! TCP sockets instead of the fabric, a node that others use) counts for nothing, with the guard's own sentence.
//!
//! What only slows down the thing that is rated (clocks, power limits, heat, limits on processors and memory, channels
//! without GPUDirect) is said and changes nothing: that is what the cluster's users get.

use std::collections::BTreeMap;

use crate::entries::{Entry, Key};
use crate::load::Loaded;
use crate::run::Hardware;

/// Whose figures a guard is about.
struct Scope {
    guard: &'static str,
    stages: &'static [&'static str],
    figures: Figures,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Figures {
    /// All.
    All,
    /// Those between nodes that went through NCCL or RCCL.
    Nccl,
    /// Those between nodes that went through gloo.
    Gloo,
}

/// Stages that compute on GPUs where there are any.
const GPU_WORK: &[&str] = &["collectives", "gemm", "train", "inference", "checkpoint", "burnin"];
/// Stages whose figures another job on the node changes.
pub(super) const WORK: &[&str] =
    &["network", "collectives", "gemm", "train", "inference", "storage", "checkpoint", "s3", "burnin"];

const SCOPES: [Scope; 5] = [
    Scope { guard: "gpus", stages: GPU_WORK, figures: Figures::All },
    Scope { guard: "gpu_use", stages: GPU_WORK, figures: Figures::All },
    Scope { guard: "other_jobs", stages: WORK, figures: Figures::All },
    Scope { guard: "nccl_network", stages: &["collectives", "train"], figures: Figures::Nccl },
    Scope { guard: "gloo_interface", stages: &["collectives"], figures: Figures::Gloo },
];

/// Rates without a unit; all others without one are counts of what was wrong, and those stand.
const RATES: [&str; 2] = ["collective_scaling", "import_torch_slowdown"];

impl Scope {
    fn covers(&self, key: &Key, entry: &Entry) -> bool {
        let figure = !entry.unit.is_empty() || RATES.iter().any(|name| key.metric == **name);
        let text = |name: &str| key.params.get(name).map(ToString::to_string).unwrap_or_default();
        let between = || {
            key.metric == "pair_bandwidth"
                || key
                    .params
                    .get("nodes")
                    .and_then(crate::record::Scalar::as_f64)
                    .is_some_and(|nodes| nodes >= 2.0)
        };
        figure
            && self.stages.contains(&&*key.stage)
            && match self.figures {
                Figures::All => true,
                Figures::Nccl => {
                    between()
                        && (text("backend") == "nccl"
                            || matches!(&*text("tool"), "nccl-tests" | "rccl-tests")
                            || (*key.stage == *"train" && text("device") == "gpu"))
                }
                Figures::Gloo => between() && text("backend") == "gloo",
            }
    }
}

/// What a guard found: its sentence by node, those of the whole cluster under none.
type Found = BTreeMap<Option<String>, String>;

/// Its guards are about the stages that follow; those of another stage about its own figures.
const BEFORE_ALL: &str = "preflight";

/// Takes the belief from figures that a guard says are of something else.
///
/// Simulated nodes share one machine and have no GPU: there, every guard is right and none says anything new.
pub(super) fn apply(loaded: &mut Loaded) {
    if loaded.run.simulated {
        return;
    }
    let mut found: BTreeMap<(String, String), Found> = BTreeMap::new();
    for (key, entry) in loaded.entries.iter() {
        if key.metric == "guard"
            && entry.believed() == Some(0.0)
            && let Some(guard) = key.params.get("guard")
        {
            let sentence = entry.detail.as_deref().unwrap_or("it gave no sentence").to_owned();
            let of = (guard.to_string(), key.stage.to_string());
            found.entry(of).or_default().insert(key.subject.node.clone(), sentence);
        }
    }
    // A guard that somebody took out must not lift what it spoke against.
    let lost = loaded.lost.get("guard").cloned();
    if found.is_empty() && lost.is_none() {
        return;
    }
    for (key, entry) in loaded.entries.iter_mut() {
        if entry.believed().is_none() {
            continue;
        }
        // A run on processors is not rated, and its figures say that they are of processors.
        let of_processors = loaded.run.hardware == Hardware::Cpu;
        let scopes = SCOPES.iter().filter(|scope| !(of_processors && scope.guard == "gpus"));
        for scope in scopes.filter(|scope| scope.covers(key, entry)) {
            let by = |stage: &str| {
                let of = found.get(&(scope.guard.to_owned(), stage.to_owned()))?;
                against(scope.guard, of, key)
            };
            let why = by(BEFORE_ALL).or_else(|| by(&key.stage));
            if let Some(why) = why.or_else(|| lost.clone()) {
                entry.flaw = Some(why.into_boxed_str());
                break;
            }
        }
    }
}

/// The guard's sentence where it is about this record's nodes: a record without a node is of all of them.
fn against(guard: &str, found: &Found, key: &Key) -> Option<String> {
    let on = |node: &str| {
        found.get(&Some(node.to_owned())).map(|sentence| format!("guard {guard} on {node}: {sentence}"))
    };
    if let Some(sentence) = found.get(&None) {
        return Some(format!("guard {guard}: {sentence}"));
    }
    match &key.subject.node {
        Some(node) => on(node).or_else(|| on(&key.params.get("peer")?.to_string())),
        None => {
            let (node, sentence) = found.iter().find_map(|(node, text)| Some((node.as_ref()?, text)))?;
            let more = match found.len() {
                1 => String::new(),
                count => format!(" and {} more", count - 1),
            };
            Some(format!("guard {guard} on {node}{more}: {sentence}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use serde_json::{Value, json};

    use crate::load::{Loaded, load};
    use crate::methodology::Methodology;
    use crate::report::guards::Guards;

    fn record(stage: &str, metric: &str, value: f64, unit: &str, params: Value, node: Option<&str>) -> Value {
        let subject = node.map_or_else(|| json!({}), |node| json!({"node": node}));
        json!({"schema": "clustermax-record/1", "run": "r1", "cluster": "c", "stage": stage, "metric": metric, "value": value,
            "unit": unit, "state": "measured", "params": params, "subject": subject, "provenance": "measured",
            "evidence": {"file": "raw/a", "sha256": "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb"},
            "detail": "job 7 runs on the node"})
    }

    fn loaded(dir: &Path, simulated: bool, mut records: Vec<Value>) -> Loaded {
        let run = json!({"schema": "clustermax-run/1", "run": "r1", "cluster": "c", "profile": "full", "nodes": ["n1", "n2", "n3"],
            "started": "2026-11-30T20:50:00Z", "hardware": "gpu", "simulated": simulated});
        let mut count = std::collections::BTreeMap::<String, u64>::new();
        for one in &records {
            *count.entry(one["metric"].as_str().unwrap().to_owned()).or_default() += 1;
        }
        for one in &mut records {
            if one["of"].is_null() {
                one["of"] = json!(count[one["metric"].as_str().unwrap()]);
            }
        }
        fs::write(dir.join("run.json"), run.to_string()).unwrap();
        fs::create_dir_all(dir.join("raw")).unwrap();
        fs::write(dir.join("raw/a"), "a").unwrap();
        let text: String = records.iter().map(|one| format!("{one}\n")).collect();
        fs::write(dir.join("records.jsonl"), text).unwrap();
        load(dir, &Methodology::built_in().unwrap()).unwrap()
    }

    /// `metric@node` of the figures that count for nothing because of a guard.
    fn doubted(loaded: &Loaded) -> Vec<String> {
        let flawed = loaded.entries.iter().filter(|(_, entry)| entry.flaw.is_some());
        flawed
            .map(|(key, _)| format!("{}@{}", key.metric, key.subject.node.as_deref().unwrap_or("all")))
            .collect()
    }

    fn figures() -> Vec<Value> {
        let gemm = json!({"dtype": "bf16", "m": 8192, "n": 8192, "k": 8192, "device": "gpu", "stat": "best"});
        let wrong = json!({"dtype": "bf16", "device": "gpu"});
        let fio = json!({"job": "seqread", "rw": "read", "target": "shared"});
        let busbw = |tool: &str, nodes: u32| {
            let backend = if tool == "torch" { "gloo" } else { "nccl" };
            json!({"collective": "all_reduce", "size": 1024, "ranks": 16, "nodes": nodes, "backend": backend, "dtype": "float", "tool": tool})
        };
        vec![
            record("gemm", "gemm", 500.0, "TFLOP/s", gemm.clone(), Some("n1")),
            record("gemm", "gemm", 500.0, "TFLOP/s", gemm, Some("n2")),
            record("gemm", "gemm_wrong", 1.0, "", wrong, Some("n1")),
            record("storage", "fio_bandwidth", 900.0, "MB/s", fio, Some("n1")),
            record("collectives", "busbw", 300.0, "GB/s", busbw("nccl-tests", 2), None),
            record("collectives", "busbw", 310.0, "GB/s", busbw("nccl-tests", 1), None),
            record("collectives", "busbw", 1.0, "GB/s", busbw("torch", 2), None),
        ]
    }

    #[test]
    fn a_figure_of_something_else_than_what_is_rated_is_unknown_with_the_guards_sentence() {
        let all = ["busbw@all", "busbw@all", "busbw@all"];
        for (guard, node, expected) in [
            ("other_jobs", Some("n1"), [&all[..], &["gemm@n1", "fio_bandwidth@n1"]].concat()),
            ("gpus", Some("n1"), [&all[..], &["gemm@n1"]].concat()),
            ("gpu_use", Some("n2"), [&all[..], &["gemm@n2"]].concat()),
            // Only what went between nodes, and only by NCCL.
            ("nccl_network", None, vec!["busbw@all"]),
            ("gloo_interface", None, vec!["busbw@all"]),
            // The cluster is as slow for its users.
            ("gpu_clocks", Some("n1"), vec![]),
            ("gpu_heat", Some("n1"), vec![]),
            ("cpus", Some("n1"), vec![]),
            ("nccl_gpudirect", None, vec![]),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let mut records = figures();
            records.push(record("preflight", "guard", 0.0, "", json!({"guard": guard}), node));
            let loaded = loaded(dir.path(), false, records);
            let (mut found, mut wanted) = (doubted(&loaded), expected.clone());
            found.sort();
            wanted.sort_unstable();
            assert_eq!(found, wanted, "{guard}");
            for (_, entry) in loaded.entries.iter() {
                let flaw = entry.flaw.as_deref().unwrap_or("job 7 runs on the node");
                assert!(flaw.ends_with("job 7 runs on the node"), "{flaw}");
            }
            let said = Guards::of(&loaded);
            assert_eq!((said.found.len(), said.found[0].unknown), (1, wanted.len()), "{guard}: {said:?}");
        }
    }

    /// Collectives over the fabric and training over sockets, in one run.
    #[test]
    fn what_a_stage_saw_of_its_own_way_is_about_its_own_figures() {
        for (stage, wanted) in [("collectives", vec!["busbw@all"]), ("train", vec!["tokens_per_second@all"])]
        {
            let dir = tempfile::tempdir().unwrap();
            let mut records = figures();
            for nodes in [1, 2] {
                let params = json!({"model": "llama-8b", "ranks": 8 * nodes, "nodes": nodes, "device": "gpu", "dtype": "bfloat16",
                    "seq": 8192, "batch": 1});
                records.push(record("train", "tokens_per_second", 1e5, "1/s", params, None));
            }
            for (of, value) in [("collectives", 1.0), ("train", 1.0)] {
                let value = if of == stage { 0.0 } else { value };
                records.push(record(of, "guard", value, "", json!({"guard": "nccl_network"}), None));
            }
            assert_eq!(doubted(&loaded(dir.path(), false, records)), wanted, "{stage}");
        }
    }

    #[test]
    fn a_guard_that_is_clear_doubts_nothing_and_nor_does_any_on_simulated_nodes() {
        let dir = tempfile::tempdir().unwrap();
        let guard =
            |value| record("preflight", "guard", value, "", json!({"guard": "other_jobs"}), Some("n1"));
        assert_eq!(doubted(&loaded(dir.path(), false, [figures(), vec![guard(1.0)]].concat())), [""; 0]);
        assert_eq!(doubted(&loaded(dir.path(), true, [figures(), vec![guard(0.0)]].concat())), [""; 0]);
    }

    /// Who takes a guard's record out of records.jsonl must not gain by it.
    #[test]
    fn a_guard_that_was_removed_doubts_what_it_could_have_spoken_against() {
        let dir = tempfile::tempdir().unwrap();
        let mut left = record("preflight", "guard", 1.0, "", json!({"guard": "other_jobs"}), Some("n1"));
        left["of"] = json!(2);
        let loaded = loaded(dir.path(), false, [figures(), vec![left]].concat());
        assert_eq!(doubted(&loaded).len(), 6, "all but the count of wrong products: {:?}", doubted(&loaded));
        let (_, entry) = loaded.entries.iter().find(|(key, _)| key.metric == "gemm").unwrap();
        assert!(entry.flaw.as_deref().unwrap().contains("1 of 2 records of guard"), "{:?}", entry.flaw);
    }

    #[test]
    fn a_stage_that_nobody_writes_is_not_believed() {
        let dir = tempfile::tempdir().unwrap();
        let mut records = figures();
        records[0]["stage"] = json!("gem");
        let loaded = loaded(dir.path(), false, records);
        let flaws: Vec<_> = loaded.entries.iter().filter_map(|(_, entry)| entry.flaw.as_deref()).collect();
        assert_eq!(flaws, ["no stage is called \"gem\" (did you mean \"gemm\"?)"]);
    }
}
