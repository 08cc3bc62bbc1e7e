//! A run in which every criterion that a methodology decides is met in full, made from its own rows: it follows the tables.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use scoring::methodology::{Measure, Methodology, Per, Rule, Span, hex};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

/// What runs.
#[derive(Clone)]
pub struct Machine {
    /// GPU model; empty without GPUs.
    pub model: &'static str,
    pub nodes: usize,
    pub gpus: usize,
    /// `gpu` or `cpu` of run.json.
    pub hardware: &'static str,
    /// Reason of the closed list that the hardware itself gives.
    pub na: Option<&'static str>,
}

pub const H100: Machine =
    Machine { model: "NVIDIA H100 80GB HBM3", nodes: 2, gpus: 8, hardware: "gpu", na: None };

/// A record before it has evidence.
#[derive(Clone, Debug)]
pub struct Row {
    pub stage: String,
    pub metric: String,
    pub params: Map<String, Value>,
    pub subject: Map<String, Value>,
    pub unit: String,
    /// A value, or a state with its reason.
    pub value: Result<f64, (&'static str, String)>,
    pub provenance: &'static str,
    /// Criteria that it is for.
    pub criteria: Vec<String>,
}

pub fn nodes(machine: &Machine) -> Vec<String> {
    (1..=machine.nodes).map(|node| format!("n{node}")).collect()
}

/// Whether a larger value is better; nothing when only the value itself counts.
fn rising(rule: &Rule) -> Option<bool> {
    match rule {
        Rule::AtMost { .. } | Rule::Spread { .. } => Some(false),
        Rule::AtLeast { .. } | Rule::Reference => Some(true),
        Rule::Curve { points } => Some(points[0][1] < points[points.len() - 1][1]),
        Rule::Flag { .. } | Rule::AnyText { .. } => None,
    }
}

/// All rows of a perfect run.
pub fn rows(methodology: &Methodology, machine: &Machine) -> Vec<Row> {
    let mut found: BTreeMap<String, Row> = BTreeMap::new();
    let mut put = |row: Row, up: Option<bool>| {
        let key = format!("{} {} {:?} {:?}", row.stage, row.metric, row.params, row.subject);
        match found.get_mut(&key) {
            Some(old) => {
                old.criteria.extend(row.criteria);
                if let (Ok(old), Ok(new), Some(up)) = (&mut old.value, &row.value, up) {
                    *old = if up { old.max(*new) } else { old.min(*new) };
                }
            }
            None => {
                found.insert(key, row);
            }
        }
    };
    let of = |metric: &str| {
        let metric = &methodology.metrics[metric];
        let stage =
            if metric.stage == "*" { "audit" } else { metric.stage.split([' ', ',']).next().unwrap() };
        (stage.to_owned(), metric.unit.clone())
    };
    let plain = |metric: &str, params: Value, subject: Value, value: f64| {
        let (stage, unit) = of(metric);
        Row {
            stage,
            metric: metric.to_owned(),
            params: params.as_object().unwrap().clone(),
            subject: subject.as_object().unwrap().clone(),
            unit,
            value: Ok(value),
            provenance: "measured",
            criteria: Vec::new(),
        }
    };
    if machine.gpus > 0 {
        for node in nodes(machine) {
            put(plain("gpu_count", json!({}), json!({"node": node}), machine.gpus as f64), None);
            for gpu in 0..machine.gpus {
                let subject = json!({"node": node, "gpu": gpu});
                put(plain("gpu_info", json!({"model": machine.model}), subject, 1.0), None);
            }
        }
    }
    for criterion in &methodology.criteria {
        let excused = machine.na.filter(|reason| criterion.na.iter().any(|one| one == reason));
        for measure in &criterion.measures {
            if measure.metric == "claim" {
                continue;
            }
            let each = measure.each.as_ref().map_or(vec![None], |each| {
                each.values.iter().map(|value| Some((each.param.clone(), value.clone()))).collect()
            });
            for each in each {
                for subject in subjects(measure, machine) {
                    let mut row = best(methodology, measure, machine, each.as_ref(), subject);
                    if measure.metric == "gpu_info" || measure.metric == "gpu_count" {
                        continue;
                    }
                    (row.stage, row.unit) = of(&measure.metric);
                    row.criteria.push(criterion.id.clone());
                    if let Some(reason) = excused {
                        row.value = Err(("not_applicable", format!("{reason}: by design")));
                    }
                    put(row, rising(&measure.rule));
                }
            }
        }
    }
    found.into_values().collect()
}

fn subjects(measure: &Measure, machine: &Machine) -> Vec<Value> {
    let all = measure.per == Per::Node || measure.complete == Some(Per::Node);
    match measure.per {
        Per::Gpu => nodes(machine)
            .iter()
            .flat_map(|node| (0..machine.gpus).map(move |gpu| json!({"node": node, "gpu": gpu})))
            .collect(),
        _ if all || matches!(measure.rule, Rule::Spread { .. }) => {
            nodes(machine).iter().map(|node| json!({"node": node})).collect()
        }
        _ => vec![json!({})],
    }
}

fn best(
    methodology: &Methodology,
    measure: &Measure,
    machine: &Machine,
    each: Option<&(String, String)>,
    subject: Value,
) -> Row {
    let metric = &methodology.metrics[&measure.metric];
    let mut params: Map<String, Value> = Map::new();
    for (param, value) in &measure.filter {
        params.insert(param.clone(), serde_json::to_value(value).unwrap());
    }
    if let Some((param, value)) = each {
        params
            .insert(param.clone(), value.parse::<i64>().map_or_else(|_| json!(value), |value| json!(value)));
    }
    match measure.span {
        Some(Span::Inside) => drop(params.insert("nodes".to_owned(), json!(1))),
        Some(Span::Between) => drop(params.insert("nodes".to_owned(), json!(machine.nodes.max(2)))),
        None => {}
    }
    let value = match &measure.rule {
        Rule::Flag { pass } => f64::from(*pass),
        Rule::AtMost { limit } | Rule::AtLeast { limit } => *limit,
        Rule::Curve { points } | Rule::Spread { points } if matches!(measure.rule, Rule::Curve { .. }) => {
            points.iter().max_by(|a, b| a[1].total_cmp(&b[1])).unwrap()[0]
        }
        Rule::Curve { .. } | Rule::Spread { .. } => 100.0_f64.clamp(metric.min, metric.max),
        Rule::AnyText { param, values } => {
            params.insert(param.clone(), json!(values[0]));
            1.0
        }
        Rule::Reference => {
            let spans = |nodes: Option<i64>| match measure.span {
                Some(Span::Inside) => nodes.is_none_or(|nodes| nodes == 1),
                Some(Span::Between) => nodes.is_none_or(|nodes| nodes >= 2),
                None => true,
            };
            let row = methodology.references.iter().find(|row| {
                row.metric == measure.metric
                    && row.gpus.iter().any(|gpu| gpu == machine.model)
                    && spans(row.nodes)
                    && row
                        .params
                        .iter()
                        .all(|(param, value)| measure.filter.get(param).is_none_or(|own| own == value))
            });
            match row {
                Some(row) => {
                    for (param, value) in &row.params {
                        params.insert(param.clone(), serde_json::to_value(value).unwrap());
                    }
                    for (param, value) in [("nodes", row.nodes), ("ranks", row.ranks), ("size", row.size_min)]
                    {
                        if let Some(value) = value {
                            params.insert(param.to_owned(), json!(value));
                        }
                    }
                    row.typical
                }
                // Nothing to compare with: measured all the same.
                None => 1.0_f64.clamp(metric.min, metric.max),
            }
        }
    };
    Row {
        stage: String::new(),
        metric: measure.metric.clone(),
        params,
        subject: subject.as_object().unwrap().clone(),
        unit: String::new(),
        value: Ok(value),
        provenance: "measured",
        criteria: Vec::new(),
    }
}

/// Writes a results folder: run.json, raw/all.json, records.jsonl, and a manifest for each stage.
pub fn write(folder: &Path, machine: &Machine, rows: &[Row]) {
    let run = json!({
        "schema": "clustermax-run/1", "run": "r1", "cluster": "c", "profile": "full", "job": "1", "nodes": nodes(machine),
        "started": "2026-11-30T20:50:00Z", "simulated": false, "hardware": machine.hardware,
    });
    fs::write(folder.join("run.json"), run.to_string()).unwrap();
    fs::create_dir_all(folder.join("raw")).unwrap();
    let raw = json!({"rows": rows.iter().map(|row| row.value.as_ref().ok()).collect::<Vec<_>>()}).to_string();
    fs::write(folder.join("raw/all.json"), &raw).unwrap();
    let sha256 = hex(&Sha256::digest(raw.as_bytes()));
    let mut text = String::new();
    let mut stages: BTreeMap<&str, BTreeMap<&str, usize>> = BTreeMap::new();
    let mut of: BTreeMap<&str, usize> = BTreeMap::new();
    for row in rows {
        *of.entry(&row.metric).or_default() += 1;
    }
    for (index, row) in rows.iter().enumerate() {
        *stages.entry(&row.stage).or_default().entry(&row.metric).or_default() += 1;
        let (value, state, detail) = match &row.value {
            Ok(value) => (json!(value), "measured", Value::Null),
            Err((state, detail)) => (Value::Null, *state, json!(detail)),
        };
        let record = json!({
            "schema": "clustermax-record/1", "run": "r1", "cluster": "c", "stage": row.stage, "metric": row.metric,
            "value": value, "unit": row.unit, "state": state, "params": row.params, "subject": row.subject,
            "provenance": row.provenance, "detail": detail, "of": of[&*row.metric],
            "evidence": {"file": "raw/all.json", "sha256": sha256, "pointer": format!("/rows/{index}")},
        });
        text.push_str(&record.to_string());
        text.push('\n');
    }
    fs::write(folder.join("records.jsonl"), text).unwrap();
    fs::create_dir_all(folder.join("stages")).unwrap();
    for (stage, metrics) in stages {
        let records: usize = metrics.values().sum();
        let marker = json!({
            "schema": "clustermax-stage/1", "run": "r1", "stage": stage, "state": "done", "exit_code": 0,
            "started": "2026-11-30T20:50:00Z", "seconds": 1.0, "job": "1", "reason": null, "records": records, "metrics": metrics,
        });
        fs::write(folder.join(format!("stages/{stage}.json")), marker.to_string()).unwrap();
    }
}
