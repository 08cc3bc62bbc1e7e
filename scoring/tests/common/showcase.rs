//! A made-up run of 12 nodes with everything that a report can show: sweeps, a slow GPU, a burn-in, stragglers, faults, an
//! audit that says how to mend.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use scoring::methodology::{Methodology, hex};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::perfect::{self, H100, Machine, Row};

pub const NODES: usize = 12;

/// Writes the results folder of as many nodes.
pub fn write(folder: &Path, methodology: &Methodology, nodes: usize) {
    let shown = Machine { nodes, ..H100 };
    let swept = |row: &Row| matches!(row.metric.as_str(), "gemm" | "straggler" | "stragglers" | "event");
    let mut rows: Vec<Row> =
        perfect::rows(methodology, &shown).into_iter().filter(|row| !swept(row)).collect();
    rows.retain(|row| row.stage != "burnin");
    // Some things fail, some could not be looked at.
    for row in &mut rows {
        match row.metric.as_str() {
            "perf_event_paranoid" if row.subject["node"] == "n3" => row.value = Ok(4.0),
            "slurm_accounting" => row.value = Ok(0.0),
            "dpu_rshim_reachable" => row.value = Err(("not_applicable", "no_dpu: none in lspci".to_owned())),
            "gdrcopy_present" => row.value = Err(("unknown", "the module list could not be read".to_owned())),
            _ => {}
        }
    }
    perfect::write(folder, &shown, &rows);
    let mut more = More { folder, nodes, lines: String::new() };
    more.sweep();
    more.rails();
    more.gemm();
    more.burnin();
    more.faults();
    more.audit();
    let records = folder.join("records.jsonl");
    let text = fs::read_to_string(&records).unwrap() + &more.lines;
    // What the audit says again stands in its own document.
    let mut seen = std::collections::BTreeSet::new();
    let kept: Vec<&str> = text
        .lines()
        .rev()
        .filter(|line| {
            let record: Value = serde_json::from_str(line).unwrap();
            seen.insert(format!(
                "{} {} {} {}",
                record["stage"], record["metric"], record["params"], record["subject"]
            ))
        })
        .collect();
    // Each record says how many of its metric there are.
    let mut kept: Vec<Value> = kept.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    let mut of: std::collections::BTreeMap<String, usize> = std::collections::BTreeMap::new();
    for record in &kept {
        *of.entry(record["metric"].to_string()).or_default() += 1;
    }
    for record in &mut kept {
        record["of"] = of[&record["metric"].to_string()].into();
    }
    let lines: Vec<String> = kept.iter().map(Value::to_string).collect();
    fs::write(records, format!("{}\n", lines.join("\n"))).unwrap();
}

struct More<'a> {
    folder: &'a Path,
    nodes: usize,
    lines: String,
}

impl More<'_> {
    fn raw(&self, file: &str, document: &Value) -> String {
        let path = self.folder.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let text = document.to_string();
        fs::write(path, &text).unwrap();
        hex(&Sha256::digest(text.as_bytes()))
    }

    #[allow(clippy::too_many_arguments, reason = "a record has so many parts")]
    fn add(
        &mut self,
        stage: &str,
        metric: &str,
        unit: &str,
        value: f64,
        params: Value,
        subject: Value,
        evidence: (&str, &str, &str),
        provenance: &str,
    ) {
        let (file, sha256, pointer) = evidence;
        let record = json!({
            "schema": "clustermax-record/1", "run": "r1", "cluster": "c", "stage": stage, "metric": metric, "value": value, "unit": unit,
            "state": "measured", "params": params, "subject": subject, "provenance": provenance,
            "evidence": {"file": file, "sha256": sha256, "pointer": pointer},
        });
        writeln!(self.lines, "{record}").unwrap();
    }

    /// Five collectives inside a node and over 2, 4 and 12 nodes: links inside a node are faster than rails.
    fn sweep(&mut self) {
        let sizes: Vec<i64> = (3..=34).map(|power| 1_i64 << power).collect();
        for (nodes, factor) in [(1, 1.0), (2, 1.0), (4, 0.78), (12, 0.74)] {
            for (collective, inside, between, latency) in [
                ("all_gather", 362.0, 358.0, 14e-6),
                ("all_reduce", 478.0, 483.0, 12e-6),
                ("alltoall", 340.0, 46.0, 16e-6),
                ("broadcast", 355.0, 350.0, 11e-6),
                ("reduce_scatter", 366.0, 361.0, 13e-6),
            ] {
                let top = if nodes == 1 { inside } else { between * factor };
                let of = |size: i64| {
                    let bytes = size as f64;
                    let dip = if size == 1 << 26 { 0.55 } else { 1.0 };
                    dip * bytes / (latency * nodes as f64 + bytes / (top * 1e9)) / 1e9
                };
                let document = json!({"rows": sizes.iter().map(|size| of(*size)).collect::<Vec<_>>()});
                let file = format!("raw/collectives/{collective}-{nodes}.json");
                let sha256 = self.raw(&file, &document);
                for (index, size) in sizes.iter().enumerate() {
                    let params = json!({"collective": collective, "size": size, "ranks": 8 * nodes, "nodes": nodes, "backend": "nccl"});
                    let pointer = format!("/rows/{index}");
                    let evidence = (file.as_str(), sha256.as_str(), pointer.as_str());
                    self.add(
                        "collectives",
                        "busbw",
                        "GB/s",
                        of(*size),
                        params,
                        json!({}),
                        evidence,
                        "measured",
                    );
                }
            }
        }
    }

    /// Eight rails of every node with its neighbour; one cable is bad.
    fn rails(&mut self) {
        for node in 1..=self.nodes {
            let file = format!("raw/network/rdma-n{node}.json");
            let of = |rail: usize| {
                if (node, rail) == (4, 6) { 198.0 } else { 388.0 + ((node * 5 + rail) % 7) as f64 }
            };
            let sha256 = self.raw(&file, &json!({"rows": (0..8).map(of).collect::<Vec<_>>()}));
            for rail in 0..8 {
                let params = json!({"test": "ib_write_bw", "device": format!("mlx5_{rail}"), "size": 1_048_576, "stat": "average",
                    "peer": format!("n{}", node % self.nodes + 1), "memory": "gpu"});
                let pointer = format!("/rows/{rail}");
                let evidence = (file.as_str(), sha256.as_str(), pointer.as_str());
                self.add(
                    "network",
                    "rdma_bandwidth",
                    "Gb/s",
                    of(rail),
                    params,
                    json!({"node": format!("n{node}")}),
                    evidence,
                    "measured",
                );
            }
        }
    }

    fn gemm(&mut self) {
        for node in 1..=self.nodes {
            let value = |gpu: usize| {
                let off = match (node, gpu) {
                    (3, 5) => 0.86,
                    (7, _) => 0.965,
                    (9, 2) => 0.94,
                    _ => 1.0,
                };
                (780.0 + ((node * 7 + gpu * 3) % 11) as f64) * off
            };
            let file = format!("raw/gemm/n{node}.json");
            let document = json!({"rows": (0..8).map(value).collect::<Vec<_>>()});
            let sha256 = self.raw(&file, &document);
            for gpu in 0..8 {
                let params = json!({"dtype": "bf16", "m": 8192, "n": 8192, "k": 8192, "stat": "best", "device": "gpu"});
                let subject = json!({"node": format!("n{node}"), "gpu": gpu});
                self.add(
                    "gemm",
                    "gemm",
                    "TFLOP/s",
                    value(gpu),
                    params,
                    subject,
                    (&file, &sha256, &format!("/rows/{gpu}")),
                    "measured",
                );
            }
        }
    }

    fn burnin(&mut self) {
        for rank in 0..16_usize {
            let (node, gpu) = (format!("n{}", rank / 8 + 1), rank % 8);
            let n = 8192.0_f64;
            let samples: Vec<Value> = (0..600)
                .map(|second| {
                    let wave = ((second * 13 + rank * 29) % 17) as f64 / 17.0;
                    // One rank slows down in the middle, all warm up.
                    let slow = if rank == 11 && second > 240 { 1.14 } else { 1.0 };
                    let tflops = 735.0 - 12.0 * (second as f64 / 600.0) + 6.0 * wave;
                    let seconds = 2.0 * n.powi(3) / (tflops * 1e12) * slow;
                    json!([second, 40, seconds, seconds, seconds * 1.2])
                })
                .collect();
            let file = format!("raw/burnin/rank-{rank}.json");
            let sha256 = self.raw(&file, &json!({"n": n, "samples": samples, "wrong": 0, "seconds": 600}));
            let subject = json!({"node": node, "gpu": gpu});
            for (stat, value) in [("median", 728.0), ("slowest_second", 640.0)] {
                let params = json!({"rank": rank, "dtype": "bf16", "stat": stat});
                self.add(
                    "burnin",
                    "burnin_gemm",
                    "TFLOP/s",
                    value,
                    params,
                    subject.clone(),
                    (&file, &sha256, "/samples"),
                    "measured",
                );
            }
            if rank == 11 || rank == 4 {
                let (kind, excess) = if rank == 11 { ("persistent", 13.6) } else { ("transient", 6.2) };
                let params = json!({"signal": "burn-in gemm", "clock": "wall", "kind": kind, "rank": rank});
                self.add(
                    "burnin",
                    "straggler",
                    "percent",
                    excess,
                    params,
                    subject,
                    (&file, &sha256, "/samples"),
                    "measured",
                );
            }
        }
        let file = "raw/burnin/rank-0.json";
        let sha256 = hex(&Sha256::digest(fs::read(self.folder.join(file)).unwrap()));
        let params = json!({"signal": "burn-in gemm", "clock": "wall"});
        self.add("burnin", "stragglers", "", 1.0, params, json!({}), (file, &sha256, "/samples"), "measured");
    }

    fn faults(&mut self) {
        for (node, fault, events) in [
            ("n2", "xid79", [("injected", 0.0), ("verdict", 0.4), ("drained", 0.9), ("returned", 61.2)]),
            (
                "n5",
                "dcgm-xid79",
                [("injected", 0.0), ("verdict", 21.0), ("drained", 22.4), ("returned", 95.0)],
            ),
        ] {
            let file = format!("raw/faults/{node}-1.json");
            let sha256 = self.raw(&file, &json!({"events": events.map(|(_, at)| at)}));
            for (index, (event, at)) in events.iter().enumerate() {
                let evidence = (file.as_str(), sha256.as_str(), format!("/events/{index}"));
                let evidence = (evidence.0, evidence.1, evidence.2.as_str());
                self.add(
                    "faults",
                    "event",
                    "s",
                    400.0 + at,
                    json!({"event": event}),
                    json!({"node": node}),
                    evidence,
                    "measured",
                );
            }
            let params = json!({"fault": fault});
            self.add(
                "faults",
                "fault_to_drain_seconds",
                "s",
                events[2].1,
                params,
                json!({"node": node}),
                (&file, &sha256, "/events/2"),
                "measured",
            );
        }
    }

    fn audit(&mut self) {
        let mend = "sysctl kernel.perf_event_paranoid=2, and keep it in /etc/sysctl.d";
        let sha256 = self.raw("raw/audit/node-n3.json", &json!({"items": [{"value": 4, "mend": mend}]}));
        self.add(
            "audit",
            "perf_event_paranoid",
            "",
            4.0,
            json!({}),
            json!({"node": "n3"}),
            ("raw/audit/node-n3.json", &sha256, "/items/0"),
            "measured",
        );
        let mend = "set AccountingStorageType=accounting_storage/slurmdbd in slurm.conf";
        let sha256 = self.raw("raw/audit/cluster.json", &json!({"items": [{"value": 0, "mend": mend}]}));
        self.add(
            "audit",
            "slurm_accounting",
            "",
            0.0,
            json!({}),
            json!({}),
            ("raw/audit/cluster.json", &sha256, "/items/0"),
            "measured",
        );
    }
}
