//! What the torch payloads write (collectives, gemm, train), and nccl-tests' tables beside them.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use super::ranks::{self, Member, Slowed};
use super::{Draft, Raw, RawFile};
use crate::record::{Record, Scalar, State};
use crate::straggler::{self, cause::Facts};

/// Facts at the head of each payload document.
#[derive(Debug, Deserialize)]
pub(super) struct Head {
    pub(super) torch: String,
    pub(super) device: String,
    pub(super) ranks: i64,
    pub(super) started: String,
    pub(super) complete: bool,
    /// Model name of the rank's GPU.
    #[serde(default)]
    pub(super) gpu: Option<String>,
    /// A rank was made slower on purpose, to see that it is found.
    #[serde(default)]
    pub(super) slowed: Option<Slowed>,
}

impl Head {
    pub(super) fn tool(&self) -> String {
        format!("torch.distributed {}", self.torch)
    }
}

#[derive(Debug, Deserialize)]
struct Collectives {
    #[serde(flatten)]
    head: Head,
    backend: String,
    nodes: i64,
    dtype: String,
    planned: Vec<String>,
    rows: Vec<CollectiveRow>,
    missing: Vec<MissingCollective>,
    #[serde(default)]
    pairs: Option<super::pairs::Pairs>,
}

#[derive(Debug, Deserialize)]
struct CollectiveRow {
    collective: String,
    api: String,
    size: i64,
    seconds: f64,
    algbw: f64,
    busbw: f64,
    wrong: i64,
    /// Of a part of the job; absent: all ranks and nodes of the document.
    #[serde(default)]
    ranks: Option<i64>,
    #[serde(default)]
    nodes: Option<i64>,
}

#[derive(Debug, Deserialize)]
struct MissingCollective {
    collective: String,
    api: String,
    state: State,
    detail: String,
}

/// One spelling for the types of torch and of nccl-tests.
pub(super) fn dtype(name: &str) -> &str {
    match name {
        "float32" | "float" => "fp32",
        "float64" | "double" => "fp64",
        "float16" | "half" => "fp16",
        "bfloat16" => "bf16",
        other => other,
    }
}

/// busbw / algbw for `ranks`, by nccl-tests' definition.
fn factor(collective: &str, ranks: f64) -> Option<f64> {
    match collective {
        "all_reduce" => Some(2.0 * (ranks - 1.0) / ranks),
        "all_gather" | "reduce_scatter" | "alltoall" | "gather" | "scatter" => Some((ranks - 1.0) / ranks),
        "broadcast" | "reduce" | "sendrecv" => Some(1.0),
        _ => None,
    }
}

/// nccl-tests' collective for a torch.distributed call.
fn collective_of(api: &str) -> &str {
    match api {
        "all_gather_into_tensor" => "all_gather",
        "reduce_scatter_tensor" => "reduce_scatter",
        "all_to_all" | "all_to_all_single" => "alltoall",
        "send" => "sendrecv",
        other => other,
    }
}

/// Stage `collectives`.
pub fn collectives(raw: &Raw) -> Vec<Record> {
    let mut records = Vec::new();
    match raw.file("torch.json").map(|file| (file, file.json::<Collectives>())) {
        Some((file, Ok(document))) => from_torch(raw, file, &document, &mut records),
        Some((_, Err(why))) => {
            records.push(
                raw.missing("busbw", "GB/s", State::Unknown, why)
                    .param("collective", "all_reduce")
                    .param("tool", "torch")
                    .done(),
            );
        }
        None => records.push(
            raw.absent("busbw", "GB/s").param("collective", "all_reduce").param("tool", "torch").done(),
        ),
    }
    super::launches::read(raw, &mut records);
    records
}

fn from_torch(raw: &Raw, file: &RawFile, document: &Collectives, records: &mut Vec<Record>) {
    let common: BTreeMap<String, Scalar> = [
        ("ranks", Scalar::Int(document.head.ranks)),
        ("nodes", Scalar::Int(document.nodes)),
        ("backend", document.backend.as_str().into()),
        ("dtype", dtype(&document.dtype).into()),
        ("tool", "torch".into()),
    ]
    .map(|(key, value)| (key.to_owned(), value))
    .into();
    let tool = document.head.tool();
    let finish = |draft: Draft, collective: &str| {
        draft
            .params(&common)
            .param("collective", collective)
            .tool(&tool)
            .started(&document.head.started)
            .done()
    };
    // Wrong elements by collective: the sum over all sizes and all calls that do it.
    let mut wrong: BTreeMap<&str, (i64, usize)> = BTreeMap::new();
    for (index, row) in document.rows.iter().enumerate() {
        let evidence = || file.at(format!("/rows/{index}"));
        wrong.entry(&row.collective).or_insert((0, index)).0 += row.wrong;
        // The document's own arithmetic is checked: a value that does not follow from its parts is no measurement.
        let algbw = row.size as f64 / row.seconds / 1e9;
        let ranks = row.ranks.unwrap_or(document.head.ranks);
        let busbw = factor(&row.collective, ranks as f64).map(|factor| algbw * factor);
        let agrees = |value: f64, again: f64| (value - again).abs() <= again.abs() * 1e-6 + 1e-15;
        let sound = row.seconds > 0.0
            && agrees(row.algbw, algbw)
            && busbw.is_some_and(|busbw| agrees(row.busbw, busbw));
        let values = [
            ("busbw", "GB/s", row.busbw),
            ("algbw", "GB/s", row.algbw),
            ("collective_time", "us", row.seconds * 1e6),
        ];
        for (metric, unit, value) in values {
            let draft = if row.wrong > 0 {
                raw.missing(
                    metric,
                    unit,
                    State::Unknown,
                    format!("{} wrong values: the bandwidth is void", row.wrong),
                )
            } else if !sound {
                raw.missing(
                    metric,
                    unit,
                    State::Unknown,
                    "busbw, algbw, size and time of the row do not agree",
                )
            } else {
                raw.measured(metric, unit, value, evidence())
            };
            let mut record =
                finish(draft.param("size", row.size).param("api", row.api.as_str()), &row.collective);
            record.params.insert("ranks".to_owned(), Scalar::Int(ranks));
            if let Some(nodes) = row.nodes {
                record.params.insert("nodes".to_owned(), Scalar::Int(nodes));
            }
            records.push(record);
        }
    }
    for (collective, (count, index)) in &wrong {
        let draft = raw.measured("wrong_values", "", *count as f64, file.at(format!("/rows/{index}/wrong")));
        records.push(finish(draft, collective));
    }
    for missing in &document.missing {
        let mut absent = vec![("busbw", "GB/s", true)];
        if !wrong.contains_key(missing.collective.as_str()) {
            absent.push(("wrong_values", "", false));
        }
        for (metric, unit, by_api) in absent {
            // The reason of the closed list: another library's result counts in its place.
            let lacks = metric == "wrong_values" && missing.state == State::Unavailable;
            let detail =
                if lacks { format!("not_in_library: {}", missing.detail) } else { missing.detail.clone() };
            let mut draft = raw.missing(metric, unit, missing.state, detail);
            draft.0.evidence = Some(file.evidence.clone());
            let draft = if by_api { draft.param("api", missing.api.as_str()) } else { draft };
            records.push(finish(draft, &missing.collective));
        }
    }
    if let Some(pairs) = &document.pairs {
        let finish =
            |draft: Draft| draft.param("tool", "torch").tool(&tool).started(&document.head.started).done();
        records.extend(super::pairs::read(raw, file, pairs, document.head.slowed, finish));
    }
    if !document.head.complete {
        let rows = document.rows.iter().map(|row| row.api.as_str());
        let reached: BTreeSet<&str> =
            rows.chain(document.missing.iter().map(|missing| missing.api.as_str())).collect();
        for api in document.planned.iter().filter(|api| !reached.contains(api.as_str())) {
            records.push(finish(raw.absent("busbw", "GB/s").param("api", api.as_str()), collective_of(api)));
        }
    }
}

#[derive(Debug, Deserialize)]
struct Gemm {
    #[serde(flatten)]
    head: Head,
    node: String,
    rank: i64,
    local_rank: i64,
    rows: Vec<GemmRow>,
    missing: Vec<MissingGemm>,
}

#[derive(Debug, Deserialize)]
struct GemmRow {
    dtype: String,
    n: i64,
    repeats: i64,
    differing_repeats: i64,
    finite: bool,
    best_flops: f64,
    median_flops: f64,
    #[serde(default)]
    window_seconds: Vec<f64>,
    #[serde(default)]
    window_cpu_seconds: Vec<f64>,
    /// Of the device, right after the work.
    #[serde(default)]
    facts: Facts,
}

#[derive(Debug, Deserialize)]
struct MissingGemm {
    dtype: String,
    state: State,
    detail: String,
}

/// Stage `gemm`: one file a rank.
pub fn gemm(raw: &Raw) -> Vec<Record> {
    let mut records = Vec::new();
    let mut read = Vec::new();
    for (index, file) in raw
        .files
        .iter()
        .enumerate()
        .filter(|(_, file)| file.name.starts_with("rank-") && file.name.ends_with(".json"))
    {
        match file.json::<Gemm>() {
            Ok(document) if document.head.complete => read.push((index, document)),
            Ok(document) => {
                let why = raw.marker.why();
                records.push(
                    raw.missing("gemm", "TFLOP/s", State::Unknown, why)
                        .on(&document.node)
                        .param("rank", document.rank)
                        .done(),
                );
            }
            Err(why) => records.push(raw.missing("gemm", "TFLOP/s", State::Unknown, why).done()),
        }
    }
    let mut measured_nodes = BTreeSet::new();
    for (index, document) in &read {
        let file = &raw.files[*index];
        measured_nodes.insert(document.node.clone());
        let gpu = document.head.device == "cuda";
        let siblings = read.iter().filter(|(_, other)| other.node == document.node).count();
        let finish = |draft: Draft| {
            let draft = draft
                .on(&document.node)
                .tool(&format!("torch {}", document.head.torch))
                .started(&document.head.started);
            let draft = draft.param("device", if gpu { "gpu" } else { "cpu" });
            match u32::try_from(document.local_rank) {
                Ok(local) if gpu => draft.gpu(local),
                // Several ranks share a node's processors: each is a part of it.
                _ if siblings > 1 => draft.param("rank", document.rank),
                _ => draft,
            }
            .done()
        };
        for (position, row) in document.rows.iter().enumerate() {
            let shape = |draft: Draft| {
                draft.param("dtype", dtype(&row.dtype)).param("m", row.n).param("n", row.n).param("k", row.n)
            };
            let pointer = |key: &str| file.at(format!("/rows/{position}/{key}"));
            for (stat, key, flops) in
                [("best", "best_flops", row.best_flops), ("median", "median_flops", row.median_flops)]
            {
                let draft = if row.finite && flops > 0.0 && row.repeats > 0 {
                    raw.measured("gemm", "TFLOP/s", flops / 1e12, pointer(key))
                } else {
                    raw.missing(
                        "gemm",
                        "TFLOP/s",
                        State::Unknown,
                        "the product is not finite, or nothing was timed",
                    )
                };
                records.push(finish(shape(draft).param("stat", stat)));
            }
            let draft =
                raw.measured("gemm_wrong", "", row.differing_repeats as f64, pointer("differing_repeats"));
            records.push(finish(draft.param("dtype", dtype(&row.dtype))));
        }
        for missing in &document.missing {
            let draft = raw.missing("gemm", "TFLOP/s", missing.state, missing.detail.clone());
            records.push(finish(draft.param("dtype", dtype(&missing.dtype))));
        }
    }
    // Ranks are compared at the same shape and type only.
    let mut shapes: BTreeMap<(&str, i64), Vec<Member>> = BTreeMap::new();
    let mut facts: BTreeMap<(&str, i64), Vec<Facts>> = BTreeMap::new();
    for (index, document) in &read {
        for (position, row) in document.rows.iter().enumerate() {
            shapes.entry((dtype(&row.dtype), row.n)).or_default().push(Member {
                rank: document.rank,
                node: &document.node,
                gpu: (document.head.device == "cuda")
                    .then(|| u32::try_from(document.local_rank).ok())
                    .flatten(),
                wall: row.window_seconds.clone(),
                cpu: row.window_cpu_seconds.clone(),
                evidence: raw.files[*index].at(format!("/rows/{position}/window_seconds")),
            });
            facts.entry((dtype(&row.dtype), row.n)).or_default().push(row.facts);
        }
    }
    let slowed = read.iter().find_map(|(_, document)| document.head.slowed);
    for (shape @ (dtype, _), members) in &shapes {
        let facts = facts.get(shape).map_or(&[][..], Vec::as_slice);
        let signal = format!("gemm {dtype}");
        records.extend(ranks::compare_by(raw, &signal, members, slowed, &straggler::RULE, facts));
    }
    // Every node of the run should have one.
    for node in raw.folder.run.nodes.iter().filter(|node| !measured_nodes.contains(*node)) {
        records.push(raw.absent("gemm", "TFLOP/s").on(node).done());
    }
    records
}

/// Median of sorted values.
pub fn median(sorted: &[f64]) -> f64 {
    let half = sorted.len() / 2;
    if sorted.is_empty() {
        f64::NAN
    } else if sorted.len().is_multiple_of(2) {
        f64::midpoint(sorted[half - 1], sorted[half])
    } else {
        sorted[half]
    }
}
