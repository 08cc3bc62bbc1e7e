//! How long scoring takes against a bare typed parse of the same records.jsonl, in the same run.
//!
//! `cargo bench -p clustermax-scoring` (1,000 nodes of 1,000 records, about 600 MB in a temporary folder);
//! `CLUSTERMAX_BENCH_NODES=100` makes it smaller. `cargo test` builds it and runs it on 2 nodes.

#![allow(clippy::unwrap_used, reason = "a failed step ends the bench")]

use std::fs::{self, File};
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use scoring::methodology::hex;
use scoring::record::Record;
use scoring::score::{Evaluation, to_json};
use sha2::{Digest, Sha256};

const PER_NODE: usize = 1000;
const ROUNDS: usize = 3;

fn main() {
    let bench = std::env::args().any(|arg| arg == "--bench");
    let nodes = match std::env::var("CLUSTERMAX_BENCH_NODES").map(|text| text.parse()) {
        Ok(Ok(nodes)) => nodes,
        _ if bench => 1000,
        _ => 2,
    };
    println!("nodes records megabytes parse_s load_s score_s load/parse score/parse peak_MiB");
    // A tenth first: the cost of a record should be the same.
    for nodes in [nodes / 10, nodes].into_iter().filter(|nodes| *nodes > 0) {
        measure(nodes);
    }
}

fn measure(nodes: usize) {
    let folder = tempfile::tempdir().unwrap();
    let size = write(folder.path(), nodes);
    let file = folder.path().join("records.jsonl");
    let methodology = scoring::methodology::Methodology::built_in().unwrap();
    let (mut parses, mut loads, mut scores) = (Vec::new(), Vec::new(), Vec::new());
    // Interleaved, so that a slow moment of the machine meets all alike.
    for _ in 0..ROUNDS {
        parses.push(timed(|| assert_eq!(parse(&file), nodes * PER_NODE)));
        loads.push(timed(|| {
            let loaded = scoring::load::load(folder.path(), &methodology).unwrap();
            assert_eq!(loaded.entries.len(), nodes * PER_NODE);
        }));
        scores.push(timed(|| {
            let evaluation = Evaluation::of(folder.path(), None, None).unwrap();
            assert!(to_json(&evaluation).len() > 1000);
        }));
    }
    let [parse, load, score] = [parses, loads, scores].map(|mut times| {
        times.sort_unstable();
        times[times.len() / 2].as_secs_f64()
    });
    println!(
        "{nodes:5} {:7} {:9} {parse:7.2} {load:6.2} {score:7.2} {:10.2} {:11.2} {:8}",
        nodes * PER_NODE,
        size / 1_000_000,
        load / parse,
        score / parse,
        peak()
    );
}

fn timed(work: impl FnOnce()) -> Duration {
    let start = Instant::now();
    work();
    start.elapsed()
}

/// What every scorer has to do at least: each line to a `Record`.
fn parse(file: &Path) -> usize {
    let mut input = BufReader::with_capacity(1 << 16, File::open(file).unwrap());
    let (mut line, mut count) = (Vec::new(), 0);
    while input.read_until(b'\n', &mut line).unwrap() > 0 {
        let record: Record = serde_json::from_slice(&line).unwrap();
        count += usize::from(!record.metric.is_empty());
        line.clear();
    }
    count
}

/// Largest resident size of this process so far, MiB.
fn peak() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or("0");
    line.split_whitespace().next().and_then(|text| text.parse::<u64>().ok()).unwrap_or(0) / 1024
}

/// A run whose records are all distinct, of nodes of eight H100, each with evidence in its node's raw file. Returns the bytes of records.jsonl.
fn write(folder: &Path, nodes: usize) -> u64 {
    let names: Vec<String> = (0..nodes).map(|node| format!("\"node{node:04}\"")).collect();
    fs::write(
        folder.join("run.json"),
        format!(
            "{{\"schema\":\"clustermax-run/1\",\"run\":\"20261130T205000Z-bench\",\"cluster\":\"bench\",\"profile\":\"full\",\"job\":\"1\",\
             \"nodes\":[{}],\"started\":\"2026-11-30T20:50:00Z\",\"simulated\":false,\"hardware\":\"gpu\"}}",
            names.join(",")
        ),
    )
    .unwrap();
    fs::create_dir_all(folder.join("raw/gemm")).unwrap();
    let rows: Vec<String> = (0..PER_NODE).map(|row| format!("{{\"value\":{}}}", 700 + row % 64)).collect();
    let raw = format!("{{\"rows\":[{}]}}\n", rows.join(","));
    let sha256 = hex(&Sha256::digest(raw.as_bytes()));
    let mut out = BufWriter::new(File::create(folder.join("records.jsonl")).unwrap());
    for node in 0..nodes {
        fs::write(folder.join(format!("raw/gemm/node{node:04}.json")), &raw).unwrap();
        for row in 0..PER_NODE {
            // What the judge needs to know of a node's GPUs, then matrix multiplications of many shapes.
            let (stage, metric, value, unit, params, subject) = match row {
                0 => ("inventory", "gpu_count", 8, "", String::new(), String::new()),
                1..=8 => {
                    let params = "\"model\":\"NVIDIA H100 80GB HBM3\"".to_owned();
                    ("inventory", "gpu_info", 1, "", params, format!(",\"gpu\":{}", row - 1))
                }
                _ => {
                    let (gpu, shape) = (row % 8, 1024 + 64 * (row / 8));
                    let params = format!(
                        "\"dtype\":\"bf16\",\"m\":{shape},\"n\":{shape},\"k\":{shape},\"stat\":\"best\",\"device\":\"gpu\""
                    );
                    ("gemm", "gemm", 700 + row % 64, "TFLOP/s", params, format!(",\"gpu\":{gpu}"))
                }
            };
            let of = nodes
                * match row {
                    0 => 1,
                    1..=8 => 8,
                    _ => PER_NODE - 9,
                };
            writeln!(
                out,
                "{{\"schema\":\"clustermax-record/1\",\"run\":\"20261130T205000Z-bench\",\"cluster\":\"bench\",\"stage\":\"{stage}\",\"metric\":\"{metric}\",\
                 \"value\":{value},\"unit\":\"{unit}\",\"state\":\"measured\",\"params\":{{{params}}},\"subject\":{{\"node\":\"node{node:04}\"{subject}}},\
                 \"provenance\":\"measured\",\
                 \"evidence\":{{\"file\":\"raw/gemm/node{node:04}.json\",\"sha256\":\"{sha256}\",\"pointer\":\"/rows/{row}\"}},\
                 \"tool\":\"torch 2.9.0 matmul\",\"command\":\"python3 gemm.py --dtype bf16 --shapes square --seconds 2\",\"job\":\"123456\",\
                 \"started\":\"2026-11-30T20:50:00Z\",\"seconds\":2.0,\"of\":{of}}}"
            )
            .unwrap();
        }
    }
    out.flush().unwrap();
    fs::metadata(folder.join("records.jsonl")).unwrap().len()
}
