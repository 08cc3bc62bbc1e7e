//! Checkpoints that are cut over all ranks: `raw/checkpoint/checkpoint.json`.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::torch::{Head, median};
use super::{Draft, Raw, fio};
use crate::record::{Record, Scalar, State};

/// Ways that the payload knows; all are planned.
const WAYS: [&str; 2] = ["dcp", "torch.save"];

#[derive(Debug, Deserialize)]
struct Document {
    #[serde(flatten)]
    head: Head,
    bytes_per_rank: f64,
    #[serde(default)]
    nodes: i64,
    /// Type of the file system of the folder, by node.
    #[serde(default)]
    fstype: BTreeMap<String, Option<String>>,
    rows: Vec<Row>,
    missing: Vec<Missing>,
}

/// One way. Each list holds a list a repeat, of every rank's seconds.
#[derive(Debug, Deserialize)]
struct Row {
    api: String,
    nodes: Vec<String>,
    wrong: i64,
    error: Option<String>,
    save: Vec<Vec<f64>>,
    load: Vec<Vec<f64>>,
    async_stall: Vec<Vec<f64>>,
    async_save: Vec<Vec<f64>>,
}

#[derive(Debug, Deserialize)]
struct Missing {
    api: String,
    state: State,
    detail: String,
}

fn middle(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    median(&values)
}

/// Stage `checkpoint`.
pub fn read(raw: &Raw) -> Vec<Record> {
    let nothing = |state: State, why: &str, api: &str, records: &mut Vec<Record>| {
        for op in ["save", "load"] {
            let draft = raw.missing("checkpoint_bandwidth", "GB/s", state, why);
            records.push(draft.param("op", op).param("api", api).done());
        }
        records.push(raw.missing("checkpoint_wrong", "", state, why).param("api", api).done());
    };
    let mut records = Vec::new();
    let document = match raw.file("checkpoint.json").map(|file| (file, file.json::<Document>())) {
        Some((file, Ok(document))) => (file, document),
        found => {
            let (state, why) = match found {
                Some((_, Err(why))) => (State::Unknown, why),
                _ => (raw.missing_state(), raw.marker.why()),
            };
            for api in WAYS {
                nothing(state, &why, api, &mut records);
            }
            return records;
        }
    };
    let (file, document) = document;
    let tool = format!("torch {}", document.head.torch);
    let common: BTreeMap<String, Scalar> = [
        ("ranks", Scalar::Int(document.head.ranks)),
        ("nodes", Scalar::Int(document.nodes)),
        ("bytes", Scalar::Float(document.bytes_per_rank).canonical()),
    ]
    .map(|(key, value)| (key.to_owned(), value))
    .into();
    let finish = |draft: Draft, api: &str| {
        draft.params(&common).param("api", api).tool(&tool).started(&document.head.started).done()
    };
    for missing in &document.missing {
        nothing(missing.state, &missing.detail, &missing.api, &mut records);
    }
    // Also of a run of one node: what lies on its own disk is nobody else's. Simulated nodes are one machine.
    let not_shared = document
        .fstype
        .iter()
        .filter(|_| !raw.folder.run.simulated)
        .filter_map(|(node, kind)| Some((node, kind.as_deref()?)))
        .find_map(|(node, kind)| fio::node_local(kind).then(|| fio::of_one_node(kind, node)));
    for (number, row) in document.rows.iter().enumerate() {
        let evidence = |part: &str| file.at(format!("/rows/{number}/{part}"));
        for (op, times) in [("save", &row.save), ("load", &row.load)] {
            // What came back wrong was not loaded, whatever it took.
            let failed = match (&row.error, row.wrong) {
                (_, wrong @ 1..) => {
                    Some(format!("{wrong} tensors came back with other bits: the bandwidth is void"))
                }
                (Some(error), _) => Some(error.clone()),
                _ if times.is_empty() => Some(raw.marker.why()),
                _ => not_shared.clone(),
            };
            if let Some(why) = failed {
                let draft = raw.missing("checkpoint_bandwidth", "GB/s", State::Unknown, why);
                records.push(finish(draft.param("op", op), &row.api));
                continue;
            }
            let repeats = times.len() as i64;
            let slowest =
                middle(times.iter().map(|seconds| seconds.iter().copied().fold(f64::NAN, f64::max)));
            let ranks = row.nodes.len() as f64;
            let draft = raw.measured(
                "checkpoint_bandwidth",
                "GB/s",
                document.bytes_per_rank * ranks / slowest / 1e9,
                evidence(op),
            );
            records.push(finish(
                draft.param("op", op).detail(format!("all ranks, median of {repeats} by the slowest rank")),
                &row.api,
            ));
            let draft = raw.measured("checkpoint_seconds", "s", slowest, evidence(op));
            records.push(finish(draft.param("op", op), &row.api));
            for (rank, node) in row.nodes.iter().enumerate() {
                let own = middle(times.iter().map(|seconds| seconds.get(rank).copied().unwrap_or(f64::NAN)));
                let draft = raw.measured(
                    "checkpoint_rank_bandwidth",
                    "GB/s",
                    document.bytes_per_rank / own / 1e9,
                    evidence(op),
                );
                records.push(finish(draft.param("op", op).param("rank", rank as i64).on(node), &row.api));
            }
        }
        for (op, times) in [("async_stall", &row.async_stall), ("async_save", &row.async_save)] {
            if !times.is_empty() && row.error.is_none() && not_shared.is_none() {
                let slowest =
                    middle(times.iter().map(|seconds| seconds.iter().copied().fold(f64::NAN, f64::max)));
                let draft = raw.measured("checkpoint_seconds", "s", slowest, evidence(op));
                records.push(finish(draft.param("op", op), &row.api));
            }
        }
        let draft = if row.load.is_empty() {
            let why = row.error.clone().unwrap_or_else(|| raw.marker.why());
            raw.missing("checkpoint_wrong", "", State::Unknown, why)
        } else {
            raw.measured("checkpoint_wrong", "", row.wrong as f64, evidence("wrong"))
        };
        records.push(finish(draft, &row.api));
    }
    // A run that was stopped did not reach all.
    for api in WAYS {
        let reached = document.rows.iter().map(|row| row.api.as_str());
        if !reached.chain(document.missing.iter().map(|missing| missing.api.as_str())).any(|one| one == api) {
            nothing(raw.missing_state(), &raw.marker.why(), api, &mut records);
        }
    }
    records
}
