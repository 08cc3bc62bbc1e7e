//! Inference by torch alone: tokens a second and latencies of the three regimes, for every rank.

use serde::Deserialize;

use super::torch::{Head, dtype};
use super::{Draft, Raw};
use crate::record::{Record, State};

#[derive(Debug, Deserialize)]
struct Document {
    #[serde(flatten)]
    head: Head,
    model: String,
    shape: String,
    dtype: String,
    #[serde(default)]
    missing: Vec<Missing>,
    #[serde(default)]
    per_rank: Vec<Rank>,
}

#[derive(Debug, Deserialize)]
struct Missing {
    case: String,
    detail: String,
}

#[derive(Debug, Deserialize)]
struct Rank {
    rank: i64,
    node: String,
    rows: Vec<Row>,
}

#[derive(Debug, Deserialize)]
struct Row {
    case: String,
    tokens_per_second: f64,
    p50_ms: f64,
    p99_ms: f64,
    parts: Option<i64>,
    difference: Option<f64>,
}

/// Stage `inference`.
pub fn read(raw: &Raw) -> Vec<Record> {
    const SPEED: &str = "inference_tokens_per_second";
    let nothing = |state, why: String| -> Vec<Record> {
        ["prefill", "decode", "tensor_parallel"]
            .iter()
            .map(|case| raw.missing(SPEED, "1/s", state, why.clone()).param("case", *case).done())
            .collect()
    };
    let Some(file) = raw.file("inference.json") else {
        return nothing(raw.missing_state(), raw.marker.why());
    };
    let document: Document = match file.json() {
        Ok(document) => document,
        Err(why) => return nothing(State::Unknown, why),
    };
    let model = format!("{}-{}", document.model, document.shape);
    let gpu = document.head.device == "cuda";
    let finish = |draft: Draft| draft.tool(&document.head.tool()).started(&document.head.started).done();
    let mut records = Vec::new();
    for missing in &document.missing {
        let draft = raw.missing(SPEED, "1/s", State::Unavailable, missing.detail.as_str());
        records.push(finish(draft.param("case", missing.case.as_str())));
    }
    let mut difference: Option<(f64, i64, usize, usize)> = None;
    for (at, rank) in document.per_rank.iter().enumerate() {
        for (number, row) in rank.rows.iter().enumerate() {
            let with = |draft: Draft| {
                let draft = draft
                    .param("case", row.case.as_str())
                    .param("model", model.as_str())
                    .param("dtype", dtype(&document.dtype))
                    .param("device", if gpu { "gpu" } else { "cpu" })
                    .param("rank", rank.rank)
                    .on(&rank.node);
                match row.parts {
                    Some(parts) => draft.param("parts", parts),
                    None => draft,
                }
            };
            let evidence = |part: &str| file.at(format!("/per_rank/{at}/rows/{number}/{part}"));
            let speed = raw.measured(SPEED, "1/s", row.tokens_per_second, evidence("tokens_per_second"));
            records.push(finish(with(speed)));
            for (stat, value, part) in [("p50", row.p50_ms, "p50_ms"), ("p99", row.p99_ms, "p99_ms")] {
                let latency = raw.measured("inference_latency", "ms", value, evidence(part));
                records.push(finish(with(latency).param("stat", stat)));
            }
            if let (Some(found), Some(parts)) = (row.difference, row.parts)
                // A difference that is no number is the worst of all.
                && difference.is_none_or(|(worst, ..)| found.is_nan() || found > worst)
            {
                difference = Some((found, parts, at, number));
            }
        }
    }
    if let Some((found, parts, at, number)) = difference {
        let evidence = file.at(format!("/per_rank/{at}/rows/{number}/difference"));
        let draft = raw.measured("tensor_parallel_difference", "", found, evidence);
        records.push(finish(
            draft.param("model", model.as_str()).param("parts", parts).param("dtype", dtype(&document.dtype)),
        ));
    }
    if document.per_rank.is_empty() {
        records.extend(nothing(State::Unknown, raw.marker.why()));
    }
    records
}
