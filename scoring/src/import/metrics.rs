//! A page of metrics, or the answer of Prometheus to a query.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::Value;

use super::{Imported, flag, json, on};
use crate::audit::monitoring;
use crate::read::Found;

/// Names that criteria ask for, by exporter.
const WANTED: [(&str, &str, &[&str]); 3] = [
    (
        "node",
        "node_",
        &[
            "node_hwmon_temp_celsius",
            "node_infiniband_port_data_received_bytes_total",
            "node_infiniband_link_downed_total",
        ],
    ),
    (
        "dcgm",
        "DCGM_",
        &[
            "DCGM_FI_PROF_SM_ACTIVE",
            "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
            "DCGM_FI_DEV_PCIE_REPLAY_COUNTER",
            "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL",
            "DCGM_FI_PROF_PCIE_RX_BYTES",
            "DCGM_FI_PROF_NVLINK_RX_BYTES",
        ],
    ),
    ("slurm", "slurm_", &[]),
];

/// What the exporters publish, by node.
pub fn read(text: &str, node: Option<&str>) -> Result<Imported, String> {
    let query = text.trim_start().starts_with('{') && !text.trim_start().starts_with("{__");
    let (pages, tool) =
        if query { (answer(text, node)?, "Prometheus") } else { (page(text, node)?, "exporter page") };
    let mut found = Vec::new();
    for (node, page) in &pages {
        let names: Vec<&str> = monitoring::samples(page).map(|(name, ..)| name).collect();
        for (exporter, prefix, wanted) in WANTED {
            if !names.iter().any(|name| name.starts_with(prefix)) {
                continue;
            }
            found.push(on(flag("exporter", true).param("name", exporter), node));
            for metric in wanted {
                // A query asks for some names only: what it leaves out may still be published.
                let there = names.contains(metric);
                if there || !query {
                    found.push(on(flag("exporter_metric", there).param("name", *metric), node));
                }
            }
            if exporter == "dcgm" && (page.contains("hpc_job=\"") || !query) {
                found.push(on(
                    flag("exporter_metric", page.contains("hpc_job=\"")).param("name", "hpc_job"),
                    node,
                ));
            }
            let own: String =
                page.lines().filter(|line| line.starts_with(prefix)).fold(String::new(), |mut text, line| {
                    let _ = writeln!(text, "{line}");
                    text
                });
            let bad = monitoring::impossible(&own);
            let one = on(
                Found::value("import", "exporter_impossible", "", bad.len() as f64).param("name", exporter),
                node,
            );
            found.push(match bad.first() {
                Some(first) => one.remark(first.clone()),
                None => one,
            });
        }
    }
    if found.is_empty() {
        return Err(
            "holds no metric of node_exporter (node_), dcgm-exporter (DCGM_) or a Slurm exporter (slurm_); save the page of one with curl -s"
                .to_owned(),
        );
    }
    let mut notes = vec!["exporters say no version of their format; the text format 0.0.4, OpenMetrics 1 and Prometheus' API v1 are known".to_owned()];
    if query {
        notes.push("a query shows what it asked for: names that it lacks give no record".to_owned());
    }
    Ok(Imported { tool: tool.to_owned(), found, notes })
}

fn page(text: &str, node: Option<&str>) -> Result<BTreeMap<String, String>, String> {
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if monitoring::samples(line).next().is_none() {
            let cut: String = line.chars().take(60).collect();
            return Err(format!(
                "line {}: {cut:?} is no sample (NAME{{LABELS}} VALUE); save the page again with curl -s",
                index + 1
            ));
        }
    }
    let named = text.lines().find_map(|line| {
        line.strip_prefix("node_uname_info{")?.split("nodename=\"").nth(1)?.split('"').next()
    });
    let node = node.or(named).ok_or("does not say which node it is of (node_uname_info); give --node")?;
    Ok(BTreeMap::from([(short(node).to_owned(), text.to_owned())]))
}

/// `n1.example:9100` is n1; an address stays whole.
fn short(name: &str) -> &str {
    let host = name.rsplit_once(':').map_or(name, |(host, _)| host);
    let address = host.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b'.' | b':' | b'[' | b']'));
    if address { host } else { host.split('.').next().unwrap_or(host) }
}

fn answer(text: &str, node: Option<&str>) -> Result<BTreeMap<String, String>, String> {
    let document = json(text)?;
    if document["status"] != "success" {
        let why = document["error"].as_str().unwrap_or("no error is given");
        return Err(format!("status is {}, {why}; ask Prometheus again", document["status"]));
    }
    let kind = document["data"]["resultType"].as_str().unwrap_or("absent");
    if !matches!(kind, "vector" | "matrix") {
        return Err(format!(
            "data.resultType is {kind}, a vector or a matrix is needed; ask /api/v1/query for series"
        ));
    }
    let list = document["data"]["result"].as_array().ok_or("data.result is no list; export it again")?;
    let mut pages: BTreeMap<String, String> = BTreeMap::new();
    for (index, one) in list.iter().enumerate() {
        let labels = one["metric"]
            .as_object()
            .ok_or(format!("data.result[{index}].metric is no object; export it again"))?;
        let word = |name: &str| labels.get(name).and_then(Value::as_str);
        let name = word("__name__")
            .ok_or(format!("data.result[{index}] has no __name__; ask for series, not for an expression"))?;
        let of = word("Hostname").or(word("nodename")).or(word("node")).or(word("instance")).or(node);
        let of = of.ok_or(format!("data.result[{index}] has neither instance nor node; give --node"))?;
        let samples: Vec<&Value> = match kind {
            "vector" => vec![&one["value"]],
            _ => one["values"].as_array().into_iter().flatten().collect(),
        };
        let shown: Vec<String> = labels
            .iter()
            .filter(|(key, _)| *key != "__name__")
            .map(|(key, value)| {
                format!("{key}=\"{}\"", value.as_str().unwrap_or_default().replace(['"', '\n'], "_"))
            })
            .collect();
        let page = pages.entry(short(of).to_owned()).or_default();
        for sample in samples {
            let value = sample[1].as_str().and_then(|text| text.parse::<f64>().ok());
            let value = value.ok_or(format!(
                "data.result[{index}]: {sample} is no sample [TIME, \"VALUE\"]; export it again"
            ))?;
            let _ = writeln!(page, "{name}{{{}}} {value}", shown.join(","));
        }
    }
    if pages.is_empty() {
        return Err("the query found no series; ask for another time or another name".to_owned());
    }
    Ok(pages)
}
