//! Memory bandwidth and copies between host and GPU, rank by rank: `raw/gemm/memory-RANK.json`.

use std::collections::BTreeSet;

use serde::Deserialize;

use super::torch::Head;
use super::{Draft, Raw};
use crate::record::{Record, State};

#[derive(Debug, Deserialize)]
struct Document {
    #[serde(flatten)]
    head: Head,
    node: String,
    rank: i64,
    local_rank: i64,
    threads: i64,
    array_bytes: i64,
    cache_bytes: i64,
    rows: Vec<Row>,
    copies: Vec<Copy>,
    missing: Vec<Missing>,
}

/// GB/s of one operation.
#[derive(Debug, Deserialize)]
struct Row {
    op: String,
    best: f64,
    median: f64,
    checks: i64,
    wrong: i64,
}

#[derive(Debug, Deserialize)]
struct Copy {
    direction: String,
    /// alone: the only GPU of the node that copies; together: all do.
    mode: String,
    median: f64,
    checks: i64,
    wrong: i64,
}

#[derive(Debug, Deserialize)]
struct Missing {
    direction: String,
    state: State,
    detail: String,
}

/// The memory's part of stage `gemm`.
pub fn read(raw: &Raw) -> Vec<Record> {
    const SPEED: &str = "memory_bandwidth";
    const COPY: &str = "host_copy_bandwidth";
    let mut records = Vec::new();
    let mut read = Vec::new();
    for file in
        raw.files.iter().filter(|file| file.name.starts_with("memory-") && file.name.ends_with(".json"))
    {
        match file.json::<Document>() {
            Ok(document) => read.push((file, document)),
            Err(why) => records.push(raw.missing(SPEED, "GB/s", State::Unknown, why).done()),
        }
    }
    let mut seen = BTreeSet::new();
    for (file, document) in &read {
        seen.insert(document.node.as_str());
        let gpu = document.head.device == "cuda";
        let siblings = read.iter().filter(|(_, other)| other.node == document.node).count();
        let finish = |draft: Draft| {
            let draft = draft
                .on(&document.node)
                .param("device", if gpu { "gpu" } else { "cpu" })
                .tool(&format!("torch {}", document.head.torch))
                .started(&document.head.started);
            match u32::try_from(document.local_rank) {
                Ok(local) if gpu => draft.gpu(local),
                _ if siblings > 1 => draft.param("rank", document.rank),
                _ => draft,
            }
            .done()
        };
        let void = |wrong: i64, checks: i64| {
            format!("{wrong} of {checks} results differ bit for bit: the bandwidth is void")
        };
        let mut wrong = 0;
        for (number, row) in document.rows.iter().enumerate() {
            wrong += row.wrong;
            for (stat, value) in [("best", row.best), ("median", row.median)] {
                let draft = if row.wrong > 0 {
                    raw.missing(SPEED, "GB/s", State::Unknown, void(row.wrong, row.checks))
                } else {
                    let draft = raw.measured(SPEED, "GB/s", value, file.at(format!("/rows/{number}/{stat}")));
                    if gpu {
                        draft
                    } else {
                        let mut said = format!(
                            "{} threads, arrays of {} MiB",
                            document.threads,
                            document.array_bytes >> 20
                        );
                        if document.array_bytes < 2 * document.cache_bytes {
                            said.push_str(&format!(
                                ", which the caches of {} MiB hold in part",
                                document.cache_bytes >> 20
                            ));
                        }
                        draft.detail(said)
                    }
                };
                records.push(finish(draft.param("op", row.op.as_str()).param("stat", stat)));
            }
        }
        for (number, copy) in document.copies.iter().enumerate() {
            wrong += copy.wrong;
            let draft = if copy.wrong > 0 {
                raw.missing(COPY, "GB/s", State::Unknown, void(copy.wrong, copy.checks))
            } else {
                raw.measured(COPY, "GB/s", copy.median, file.at(format!("/copies/{number}/median")))
            };
            records.push(finish(
                draft.param("direction", copy.direction.as_str()).param("mode", copy.mode.as_str()),
            ));
        }
        for missing in &document.missing {
            let draft = raw.missing(COPY, "GB/s", missing.state, missing.detail.as_str());
            records.push(finish(draft.param("direction", missing.direction.as_str())));
        }
        if document.rows.is_empty() {
            records.push(finish(raw.absent(SPEED, "GB/s")));
        } else {
            records.push(finish(raw.measured("memory_wrong", "", wrong as f64, file.at("/rows"))));
        }
    }
    for node in raw.folder.run.nodes.iter().filter(|node| !seen.contains(node.as_str())) {
        records.push(raw.absent(SPEED, "GB/s").on(node).done());
    }
    records
}
