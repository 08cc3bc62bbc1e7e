//! S3 object storage: bandwidth, latencies, errors and objects that came back wrong, of every node.

use super::Raw;
use crate::record::{Record, State};
use crate::s3::Document;

/// Stage `s3`.
pub fn read(raw: &Raw) -> Vec<Record> {
    let mut records = Vec::new();
    for node in &raw.folder.run.nodes {
        let Some(file) = raw.file(&format!("{node}.json")) else {
            records.push(raw.absent("s3_bandwidth", "MB/s").on(node).done());
            continue;
        };
        let document = match file.json::<Document>() {
            Ok(document) if document.node == *node => document,
            Ok(document) => {
                let why = format!("the file is of node {}", document.node);
                records.push(raw.missing("s3_bandwidth", "MB/s", State::Unknown, why).on(node).done());
                continue;
            }
            Err(why) => {
                records.push(raw.missing("s3_bandwidth", "MB/s", State::Unknown, why).on(node).done());
                continue;
            }
        };
        // What was not reached: a stage that was killed, or a service that failed before.
        let why = document.detail.as_deref().unwrap_or("the test was not reached");
        for (op, size) in document.sizes.iter().flat_map(|size| [("put", *size), ("get", *size)]) {
            if document.rows.iter().any(|row| row.op == op && row.size == size) {
                continue;
            }
            let wrong = (op == "get").then_some(("s3_wrong_objects", ""));
            for (metric, unit) in [("s3_bandwidth", "MB/s")].into_iter().chain(wrong) {
                let draft = raw.missing(metric, unit, State::Unknown, why).param("op", op);
                records.push(draft.param("size", size as f64).on(node).done());
            }
        }
        for (at, row) in document.rows.iter().enumerate() {
            let pointer = |part: &str| file.at(format!("/rows/{at}/{part}"));
            let with = |draft: super::Draft| {
                let draft = draft
                    .param("op", row.op.as_str())
                    .param("size", row.size as f64)
                    .param("clients", f64::from(row.clients))
                    .on(node)
                    .tool("clustermax s3-bench")
                    .started(&document.started)
                    .seconds(row.seconds);
                match &document.detail {
                    Some(detail) => draft.detail(detail.as_str()),
                    None => draft,
                }
            };
            records.push(with(raw.measured("s3_errors", "", row.errors as f64, pointer("errors"))).done());
            match row.ms {
                Some(ms) if row.seconds > 0.0 => {
                    let bandwidth = row.size as f64 * row.requests as f64 / row.seconds / 1e6;
                    records.push(
                        with(raw.measured("s3_bandwidth", "MB/s", bandwidth, pointer("requests"))).done(),
                    );
                    for (number, stat) in ["p50", "p90", "p99", "p99.9", "max"].into_iter().enumerate() {
                        let latency =
                            raw.measured("s3_latency", "ms", ms[number], pointer(&format!("ms/{number}")));
                        records.push(with(latency).param("stat", stat).done());
                    }
                    if row.op == "get" {
                        records.push(
                            with(raw.measured("s3_wrong_objects", "", row.wrong as f64, pointer("wrong")))
                                .done(),
                        );
                    }
                }
                _ => {
                    let why = document.detail.as_deref().unwrap_or("no request succeeded");
                    records.push(with(raw.missing("s3_bandwidth", "MB/s", State::Unknown, why)).done());
                }
            }
        }
    }
    records
}
