//! Whole runs of every kind, made from the methodology itself: each ends in the tier that the rules give, with the cap
//! named. What must never lift a rating is in `monotone.rs`.

#![allow(clippy::unwrap_used, reason = "in a test a failed step is the failure")]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use scoring::judge::Evidence as Judge;
use scoring::load::load_with;
use scoring::methodology::{CapWhen, Criterion, Each, Measure, Methodology, Per, Rule, Span};
use scoring::rating::{Rating, rate};
use scoring::record::{self, Evidence, Provenance, Record, Scalar, State, Subject};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tempfile::TempDir;

/// A run that is made up: every record that the criteria ask for, each as good as it needs to be.
struct Made {
    methodology: Methodology,
    nodes: Vec<String>,
    gpus: u32,
    model: &'static str,
    hardware: &'static str,
    /// Reasons for not applicable that hold here.
    na: Vec<&'static str>,
    records: Vec<Record>,
    evidence: String,
}

impl Made {
    fn new(nodes: usize, gpus: u32, model: &'static str, na: &[&'static str]) -> Self {
        let methodology = Methodology::built_in().unwrap();
        let evidence = common::evidence(&methodology, &[]);
        let mut made = Self {
            methodology,
            nodes: (1..=nodes).map(|node| format!("n{node}")).collect(),
            gpus,
            model,
            hardware: "gpu",
            na: na.to_vec(),
            records: Vec::new(),
            evidence,
        };
        made.fill();
        // Two criteria ask for it with different limits: the stricter one's.
        made.change("fault_to_return_seconds", |record| record.value = Some(90.0));
        made
    }

    fn fill(&mut self) {
        let mut seen = BTreeSet::new();
        let mut all = self.inventory();
        for criterion in &self.methodology.criteria {
            for measure in criterion.measures.iter().filter(|measure| measure.metric != "claim") {
                all.extend(self.measured(criterion, measure));
            }
        }
        for record in all {
            let params: Vec<String> =
                record.params.iter().map(|(key, value)| format!("{key}={value}")).collect();
            if seen.insert((record.metric.clone(), params, record.subject.clone())) {
                self.records.push(record);
            }
        }
    }

    fn record(&self, metric: &str, params: &[(&str, Scalar)], subject: Subject, value: f64) -> Record {
        let known = &self.methodology.metrics[metric];
        Record {
            schema: record::SCHEMA.to_owned(),
            run: "made".to_owned(),
            cluster: "alpha".to_owned(),
            stage: known.stage.replace('*', "audit").split(", ").next().unwrap().to_owned(),
            metric: metric.to_owned(),
            value: Some(value),
            unit: known.unit.clone(),
            state: State::Measured,
            params: params.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect(),
            subject,
            provenance: Provenance::Measured,
            evidence: None,
            detail: None,
            tool: Some("test".to_owned()),
            command: None,
            job: None,
            started: None,
            seconds: None,
            of: None,
        }
    }

    fn inventory(&self) -> Vec<Record> {
        let mut all = Vec::new();
        for node in &self.nodes {
            all.push(self.record("gpu_count", &[], Subject::node(node), f64::from(self.gpus)));
            for gpu in 0..self.gpus {
                let subject = Subject { gpu: Some(gpu), ..Subject::node(node) };
                all.push(self.record("gpu_info", &[("model", self.model.into())], subject, 1.0));
            }
        }
        all
    }

    /// Records of one measure; none where there is no reference value for this hardware.
    fn measured(&self, criterion: &Criterion, measure: &Measure) -> Vec<Record> {
        let subjects: Vec<Subject> = match (measure.per, &measure.rule) {
            (Per::Cluster, Rule::Spread { .. }) | (Per::Node, _) => {
                self.nodes.iter().map(Subject::node).collect()
            }
            (Per::Cluster, _) => vec![Subject::default()],
            (Per::Gpu, _) => self
                .nodes
                .iter()
                .flat_map(|node| {
                    (0..self.gpus).map(move |gpu| Subject { gpu: Some(gpu), ..Subject::node(node) })
                })
                .collect(),
        };
        let each: Vec<Option<(&str, &str)>> = match &measure.each {
            Some(Each { param, values }) => {
                values.iter().map(|value| Some((param.as_str(), value.as_str()))).collect()
            }
            None => vec![None],
        };
        let mut all = Vec::new();
        for subject in &subjects {
            for value in &each {
                let mut params: BTreeMap<String, Scalar> = measure.filter.clone();
                params.extend(value.map(|(param, value)| (param.to_owned(), Scalar::from(value))));
                if let Some(reason) = criterion.na.iter().find(|reason| self.na.contains(&reason.as_str())) {
                    let mut record = self.record(&measure.metric, &[], subject.clone(), 0.0);
                    (record.params, record.value, record.state) = (params, None, State::NotApplicable);
                    record.detail = Some(format!("{reason}: so it was made"));
                    all.push(record);
                    continue;
                }
                let Some(found) = self.good(measure, &mut params) else { continue };
                let mut record = self.record(&measure.metric, &[], subject.clone(), found);
                record.params = params;
                all.push(record);
            }
        }
        all
    }

    /// A value that passes in full, with the params that a reference asks for.
    fn good(&self, measure: &Measure, params: &mut BTreeMap<String, Scalar>) -> Option<f64> {
        Some(match &measure.rule {
            Rule::Flag { pass } => f64::from(*pass),
            Rule::AtMost { limit } | Rule::AtLeast { limit } => *limit,
            Rule::Curve { points } => {
                let (first, last) = (points[0], points[points.len() - 1]);
                if first[1] > last[1] { first[0] } else { last[0] }
            }
            Rule::AnyText { .. } => return None,
            Rule::Spread { .. } => 100.0,
            Rule::Reference => {
                let reference = self.methodology.references.iter().find(|one| {
                    one.metric == measure.metric
                        && one.gpus.iter().any(|gpu| gpu == self.model)
                        && one
                            .params
                            .iter()
                            .all(|(key, value)| measure.filter.get(key).is_none_or(|wanted| wanted == value))
                        && match measure.span {
                            Some(Span::Inside) => one.nodes == Some(1),
                            Some(Span::Between) => one.nodes.is_some_and(|nodes| nodes >= 2),
                            None => true,
                        }
                })?;
                params.extend(reference.params.clone());
                for (key, value) in
                    [("nodes", reference.nodes), ("ranks", reference.ranks), ("size", reference.size_min)]
                {
                    params.extend(value.map(|value| (key.to_owned(), Scalar::from(value))));
                }
                reference.typical
            }
        })
    }

    /// Changes every record of a metric.
    fn change(&mut self, metric: &str, change: impl Fn(&mut Record)) {
        let mut changed = 0;
        for record in self.records.iter_mut().filter(|record| record.metric == metric) {
            change(record);
            changed += 1;
        }
        assert!(changed > 0, "no record of {metric}");
    }

    /// Writes the results folder; with `manifest`, the stages' manifests too.
    fn write(&self, folder: &Path, manifest: bool) {
        let run = json!({
            "schema": "clustermax-run/1", "run": "made", "cluster": "alpha", "profile": "full", "job": "1",
            "nodes": self.nodes, "started": "2026-11-30T20:50:00Z", "simulated": false, "hardware": self.hardware,
        });
        fs::write(folder.join("run.json"), run.to_string()).unwrap();
        fs::write(folder.join("evidence.toml"), &self.evidence).unwrap();
        let mut stages: BTreeMap<&str, Vec<&Record>> = BTreeMap::new();
        for record in &self.records {
            stages.entry(&record.stage).or_default().push(record);
        }
        let mut lines = String::new();
        for (stage, records) in stages {
            let rows: Vec<Value> = records.iter().map(|one| json!({"value": one.value})).collect();
            let raw = json!({ "rows": rows }).to_string();
            let file = format!("raw/{stage}/all.json");
            fs::create_dir_all(folder.join("raw").join(stage)).unwrap();
            fs::write(folder.join(&file), &raw).unwrap();
            let sha256: String =
                Sha256::digest(raw.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
            let mut metrics: BTreeMap<&str, usize> = BTreeMap::new();
            for (row, record) in records.iter().enumerate() {
                *metrics.entry(&record.metric).or_default() += 1;
                let evidence = Evidence {
                    file: file.clone(),
                    sha256: sha256.clone(),
                    pointer: Some(format!("/rows/{row}")),
                };
                let evidence = (record.state == State::Measured).then_some(evidence);
                let of = self.records.iter().filter(|other| other.metric == record.metric).count();
                let record = Record { evidence, of: u32::try_from(of).ok(), ..(*record).clone() };
                lines.push_str(&serde_json::to_string(&record).unwrap());
                lines.push('\n');
            }
            if manifest {
                fs::create_dir_all(folder.join("stages")).unwrap();
                let marker = json!({
                    "schema": "clustermax-stage/1", "run": "made", "stage": stage, "state": "done",
                    "records": records.len(), "metrics": metrics,
                });
                fs::write(folder.join(format!("stages/{stage}.json")), marker.to_string()).unwrap();
            }
        }
        fs::write(folder.join("records.jsonl"), lines).unwrap();
    }

    fn folder(&self) -> TempDir {
        let folder = tempfile::tempdir().unwrap();
        self.write(folder.path(), true);
        folder
    }
}

fn score(folder: &Path) -> (Output, Value) {
    let output = Command::new(env!("CARGO_BIN_EXE_clustermax"))
        .args(["score", folder.to_str().unwrap(), "--json"])
        .output()
        .unwrap();
    let json = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
    (output, json)
}

/// Tier (or the estimate of a run that is not rated), what decided it, exit code.
fn ends(made: &Made) -> (String, String, Option<i32>, Value) {
    let folder = made.folder();
    let (output, json) = score(folder.path());
    let estimate = &json["rating"]["estimate"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!estimate.is_null(), "{error}");
    // The report names the tier and the rule.
    let report = fs::read_to_string(folder.path().join("report.txt")).unwrap();
    if json["rating"]["state"] == "rated" {
        assert!(report.contains(&format!("decided by {}", text(&estimate["decided_by"]))), "{report}");
    }
    (text(&estimate["tier"]), text(&estimate["decided_by"]), output.status.code(), json)
}

fn hgx() -> Made {
    Made::new(4, 8, "NVIDIA B200", &["no_virtualization"])
}

fn states(json: &Value, state: &str) -> Vec<String> {
    let criteria = json["criteria"].as_array().unwrap();
    let of = |one: &&Value| one["state"] == state;
    criteria.iter().filter(of).map(|one| one["id"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn platinum_like_is_platinum_and_gold_where_too_few_criteria_are_asked_for() {
    let made = hgx();
    let (tier, decided, code, json) = ends(&made);
    assert_eq!((tier.as_str(), decided.as_str(), code), ("platinum", "lower_bound", Some(0)));
    assert_eq!(states(&json, "fail"), Vec::<String>::new());
    assert_eq!(
        states(&json, "unknown"),
        ["net-10", "net-15", "rel-21", "rel-23", "rel-26"],
        "no published RDMA, copy or training speed for this GPU"
    );
    assert!(json["result"]["lower"].as_f64().unwrap() > 0.96, "{}", json["result"]);
    // Under a methodology that has to decide more than this one does, the same run is Gold.
    let mut methodology = made.methodology.clone();
    for cap in methodology.rules.cap.iter_mut().filter(|cap| cap.when == CapWhen::CriteriaBelow) {
        cap.limit = 1.5;
    }
    let folder = made.folder();
    let rating = rating_of(folder.path(), &methodology).unwrap();
    assert_eq!((rating.estimate.tier.as_str(), rating.estimate.decided_by.as_str()), ("gold", "criteria-90"));
}

#[test]
fn one_critical_failure_is_underperforming_and_named() {
    let mut made = hgx();
    made.change("pcie_acs_enabled", |record| {
        if record.subject.node.as_deref() == Some("n3") {
            record.value = Some(1.0);
        }
    });
    let (tier, decided, code, json) = ends(&made);
    assert_eq!((tier.as_str(), decided.as_str(), code), ("underperforming", "gate-failed", Some(0)));
    let because = json["rating"]["estimate"]["because"].as_str().unwrap();
    assert!(because.contains("gate lif-09 failed"), "{because}");
    assert_eq!(json["sensitivity"]["next_tier"]["steps"], json!(["lif-09"]));
    assert_eq!(json["sensitivity"]["weights"]["tiers"], json!({"underperforming": 1.0}));
}

/// The run without one in `step` of the metrics that are no gate's, and without one in `step` of the statements.
fn thinned(step: usize) -> Made {
    let mut made = hgx();
    let gates: BTreeSet<String> = made
        .methodology
        .criteria
        .iter()
        .filter(|one| one.gate.is_some())
        .flat_map(|one| one.measures.iter().map(|measure| measure.metric.clone()))
        .chain(["gpu_count".to_owned(), "gpu_info".to_owned()])
        .collect();
    let metrics: BTreeSet<String> = made
        .records
        .iter()
        .map(|record| record.metric.clone())
        .filter(|metric| !gates.contains(metric))
        .collect();
    let gone: BTreeSet<String> = metrics.into_iter().step_by(step).collect();
    made.records.retain(|record| !gone.contains(&record.metric));
    let items: Vec<&str> = made
        .methodology
        .criteria
        .iter()
        .filter(|one| one.only_stated() && one.gate.is_none())
        .map(|one| one.id.as_str())
        .step_by(step)
        .collect();
    made.evidence = common::evidence(&made.methodology, &items);
    made
}

#[test]
fn half_the_evidence_missing_never_looks_like_a_whole() {
    for (step, coverage, tier, decided, code) in [
        (1, 0.0..0.50, "unavailable", "lower_bound", 1),
        (2, 0.40..0.60, "bronze", "lower_bound", 0),
        (4, 0.65..0.80, "silver", "lower_bound", 0),
        (16, 0.82..0.98, "gold", "lower_bound", 0),
    ] {
        let found = ends(&thinned(step));
        let json = found.3;
        // Every second metric of the table is about half of what counts: which half decides whether it can be told at all.
        let too_little = step == 2 && json["result"]["coverage"].as_f64().unwrap() < 0.5;
        let (tier, decided, code) =
            if too_little { ("unavailable", "coverage-50", 1) } else { (tier, decided, code) };
        assert_eq!(
            (found.0.as_str(), found.1.as_str(), found.2),
            (tier, decided, Some(code)),
            "{}",
            json["result"]
        );
        assert!(coverage.contains(&json["result"]["coverage"].as_f64().unwrap()), "{}", json["result"]);
        assert!(json["result"]["score"].as_f64().unwrap() > 0.98, "what was seen is good");
    }
}

#[test]
fn a_cluster_that_nobody_could_enter_is_unavailable_not_underperforming() {
    let mut made = hgx();
    for record in &mut made.records {
        (record.value, record.state) = (None, State::Unavailable);
        record.detail = Some("the provider gave no access".to_owned());
    }
    made.evidence = common::HEAD.to_owned();
    let (tier, decided, code, json) = ends(&made);
    assert_eq!((tier.as_str(), decided.as_str(), code), ("unavailable", "lower_bound", Some(1)));
    let because = json["rating"]["estimate"]["because"].as_str().unwrap();
    assert!(because.contains("nobody could tell"), "{because}");
    assert_eq!(json["result"]["coverage"], 0.0);
    assert_eq!(states(&json, "fail"), Vec::<String>::new());
}

#[test]
fn nvl72_is_rated_by_what_has_a_reference() {
    let made = Made::new(18, 4, "NVIDIA GB200", &["no_virtualization"]);
    let (tier, decided, code, json) = ends(&made);
    assert_eq!(
        (tier.as_str(), decided.as_str(), code),
        ("platinum", "lower_bound", Some(0)),
        "{}",
        json["result"]
    );
    // Of what 72 GPUs in one NVLink domain give, only the all-reduce is published: the rest is unknown, not passed.
    assert_eq!(
        states(&json, "unknown"),
        ["net-08", "net-10", "net-15", "rel-21", "rel-22", "rel-23", "rel-26"]
    );
    let criteria = json["criteria"].as_array().unwrap();
    let gemm = criteria.iter().find(|one| one["id"] == "rel-24").unwrap();
    assert_eq!((&gemm["state"], &gemm["instances"]["asked"]), (&json!("pass"), &json!(72)));
}

#[test]
fn amd_is_not_asked_for_what_only_nvidia_has() {
    let made = Made::new(2, 8, "AMD Instinct MI300X", &["not_nvidia", "no_virtualization"]);
    let (tier, decided, code, json) = ends(&made);
    assert_eq!(
        (tier.as_str(), decided.as_str(), code),
        ("platinum", "lower_bound", Some(0)),
        "{}",
        json["result"]
    );
    let na = states(&json, "not_applicable");
    for id in ["sec-16", "orc-22", "rel-12", "mon-06", "mon-13", "mon-16"] {
        assert!(na.iter().any(|one| one == id), "{id}: {na:?}");
    }
    assert_eq!(states(&json, "unknown"), ["net-15", "rel-21", "rel-23", "rel-26"]);
}

#[test]
fn cpu_only_is_measured_and_not_rated() {
    let mut made = hgx();
    made.hardware = "cpu";
    let (_, _, code, json) = ends(&made);
    assert_eq!((&json["rating"]["state"], code), (&json!("not_rated"), Some(1)));
    assert!(json["rating"]["not_rated"][0].as_str().unwrap().contains("CPU-only"));
    assert_eq!(json["rating"]["tier"], Value::Null);
}

#[test]
fn a_record_that_a_manifest_names_and_that_is_absent_is_an_error() {
    let made = hgx();
    let folder = made.folder();
    let file = folder.path().join("records.jsonl");
    let text = fs::read_to_string(&file).unwrap();
    let all: Vec<&str> = text.lines().collect();
    for at in (0..all.len()).step_by(37) {
        let mut fewer = all.clone();
        let line = fewer.remove(at);
        fs::write(&file, fewer.join("\n") + "\n").unwrap();
        let error = load_with(folder.path(), &made.methodology, None).unwrap_err().to_string();
        let record: Value = serde_json::from_str(line).unwrap();
        let metric = record["metric"].as_str().unwrap();
        assert!(
            error.contains(&format!("records of {metric}")) && error.contains("clustermax collect"),
            "{error}"
        );
    }
    let (output, _) = score(folder.path());
    assert_eq!(output.status.code(), Some(2));
    fs::write(&file, &text).unwrap();
    for (damage, expected) in [
        ("{", "not a manifest"),
        (
            "{\"schema\":\"clustermax-stage/9\",\"run\":\"made\",\"stage\":\"audit\",\"state\":\"done\",\"records\":0}",
            "clustermax-stage/9",
        ),
        (
            "{\"schema\":\"clustermax-stage/1\",\"run\":\"other\",\"stage\":\"audit\",\"state\":\"done\",\"records\":0}",
            "belongs to run \"other\"",
        ),
    ] {
        fs::write(folder.path().join("stages/audit.json"), damage).unwrap();
        let (output, _) = score(folder.path());
        let message = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2));
        assert!(message.contains("stages/audit.json") && message.contains(expected), "{message}");
    }
}

fn rating_of(folder: &Path, methodology: &Methodology) -> Result<Rating, String> {
    let loaded = load_with(folder, methodology, None).map_err(|error| error.to_string())?;
    let judge = Judge::new(&loaded, methodology);
    let verdicts: Vec<_> = methodology.criteria.iter().map(|criterion| judge.judge(criterion)).collect();
    Ok(rate(methodology, &loaded, &verdicts))
}
