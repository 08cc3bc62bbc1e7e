//! The figures of a window as records of a run: stage `sla`, measured, with the JSON document as their evidence.

use std::collections::BTreeMap;

use sha2::{Digest as _, Sha256};

use super::{Figure, Reckoning, shown};
use crate::Failure;
use crate::record::{self, Evidence, Provenance, Record, Scalar, State, Subject};
use crate::run::Folder;

/// In records, and the folder below `raw/`.
pub const STAGE: &str = "sla";
/// Name of the document below `raw/sla/`.
const FILE: &str = "sla.json";

/// What a record says when there is no value.
enum Missing {
    /// Asked for, and there is no number.
    Unknown(String),
    /// Nothing happened in the window that could have been measured.
    History(&'static str),
    /// Something that it needs was not given.
    Given(&'static str),
}

/// Keeps the document and its records in the folder, in the place of earlier ones; returns how many there are.
///
/// # Errors
/// A run of other nodes, files that cannot be written.
pub fn write(folder: &Folder, reckoning: &Reckoning) -> Result<usize, Failure> {
    let run = &folder.run;
    if let Some(node) = run.nodes.iter().find(|node| !reckoning.facts.nodes.contains(node)) {
        return Err(Failure::input(format!(
            "{} is a run on node {node}, which is not among the nodes that are looked at ({}); give the folder of a run on these nodes, or --nodes",
            folder.path.display(),
            reckoning.facts.nodes.join(" ")
        )));
    }
    let text = reckoning.to_json();
    let records = records(folder, reckoning, &text);
    crate::import::keep(folder, STAGE, &[(FILE, text.as_bytes())], &records)?;
    Ok(records.len())
}

/// The records.
fn records(folder: &Folder, reckoning: &Reckoning, text: &str) -> Vec<Record> {
    let sha256: String = Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect();
    let (from, to) = reckoning.facts.window;
    let window = format!("{} to {}, {} nodes", shown(from), shown(to), reckoning.facts.nodes.len());
    let make = |metric: &str, unit: &str, value: Result<f64, Missing>, pointer: String| {
        let (value, state, detail) = match value {
            Ok(value) => (Some(value), State::Measured, window.clone()),
            Err(Missing::Unknown(why)) => (None, State::Unknown, format!("{why} ({window})")),
            // The reasons of docs/metrics.md for which there was nothing to look at.
            Err(Missing::History(why)) => (None, State::Unavailable, format!("no_history: {why} ({window})")),
            Err(Missing::Given(why)) => (None, State::Unavailable, format!("not_tried: {why}")),
        };
        Record {
            schema: record::SCHEMA.to_owned(),
            run: folder.run.run.clone(),
            cluster: folder.run.cluster.clone(),
            stage: STAGE.to_owned(),
            metric: metric.to_owned(),
            value,
            unit: unit.to_owned(),
            state,
            params: BTreeMap::new(),
            subject: Subject::default(),
            provenance: Provenance::Measured,
            evidence: Some(Evidence {
                file: format!("raw/{STAGE}/{FILE}"),
                sha256: sha256.clone(),
                pointer: Some(pointer),
            }),
            detail: Some(detail),
            tool: Some(format!("clustermax {}", env!("CARGO_PKG_VERSION"))),
            command: Some("clustermax sla --records DIR".to_owned()),
            job: None,
            started: Some(shown(from)),
            seconds: Some((to - from) as f64),
            of: None,
        }
    };
    let with = |mut record: Record, params: &[(&str, &str)]| {
        record.params = params.iter().map(|(key, value)| ((*key).to_owned(), Scalar::from(*value))).collect();
        record
    };
    let figure = |name: &str| reckoning.figures.iter().position(|one| one.name == name);
    let value = |name: &str| figure(name).and_then(|at| reckoning.figures[at].value);
    // A figure's value, and where it stands; one that is not reckoned is shown by the list it is missing in.
    let of = |name: &str, why: Missing| match figure(name) {
        Some(at) => (value(name).ok_or(why), format!("/figures/{at}/value")),
        None => (Err(why), "/figures".to_owned()),
    };

    let mut records = vec![failures(reckoning, &figure, &make, &with)];
    let (value, at) = of("replacement_median", Missing::History("no node went out of service and came back"));
    let returned = [("fault", "recorded"), ("kind", "recorded"), ("how", "returned")];
    records.push(with(make("fault_to_return_seconds", "s", value, at), &returned));
    let none_down = !reckoning.outages.iter().any(|one| one.counted > 0);
    let (value, at) = match (reckoning.contract.group.iter().any(|group| group.level == "rack"), none_down) {
        (true, true) => (
            Err(Missing::History("no node was out of service, so nothing was seen of its rack")),
            "/outages".to_owned(),
        ),
        _ => of(
            "whole_rack_outages",
            Missing::Given("the contract file names no rack: [[group]] level = \"rack\""),
        ),
    };
    records.push(make("whole_rack_outages", "", value, at));
    let (value, at) = of("node_availability", Missing::Unknown("all of the window is excluded".to_owned()));
    records.push(with(make("availability", "percent", value, at), &[("level", "node")]));
    for (at, unit) in reckoning.units.iter().enumerate().filter(|(_, unit)| unit.level != "node") {
        let value = unit.percent.ok_or_else(|| Missing::Unknown("all of the period is excluded".to_owned()));
        let record = make("availability", "percent", value, format!("/availability/{at}/percent"));
        records.push(with(record, &[("level", &unit.level), ("name", &unit.name), ("period", &unit.period)]));
    }
    let (value, at) = of(
        "availability_difference",
        Missing::Given("no published availability was given: --published PERCENT"),
    );
    records.push(make("availability_difference", "percent", value, at));
    let (value, at) = match reckoning.contract.price_per_gpu_hour {
        None => (Err(Missing::Given("the contract file names no price_per_gpu_hour")), "/figures".to_owned()),
        Some(_) => of("cost_overhead", Missing::History("no job did anything useful")),
    };
    records.push(make("cost_overhead", "percent", value, at));
    for node in &folder.run.nodes {
        let longest = reckoning
            .outages
            .iter()
            .enumerate()
            .filter(|(_, one)| one.node == *node && one.reboot && !one.open)
            .max_by_key(|(_, one)| one.span.1 - one.span.0);
        let (value, at) = match longest {
            Some((at, one)) => (Ok((one.span.1 - one.span.0) as f64), format!("/outages/{at}/seconds")),
            None => {
                (Err(Missing::History("Slurm recorded no reboot of it that ended")), "/outages".to_owned())
            }
        };
        let mut record = with(make("reboot_to_usable_seconds", "s", value, at), &[("by", "events")]);
        record.subject = Subject::node(node);
        records.push(record);
    }
    records
}

/// GPU-hours by failure; without one the 95 % lower bound, which a long clean window lifts and a short one does not.
fn failures(
    reckoning: &Reckoning,
    figure: &impl Fn(&str) -> Option<usize>,
    make: &impl Fn(&str, &str, Result<f64, Missing>, String) -> Record,
    with: &impl Fn(Record, &[(&str, &str)]) -> Record,
) -> Record {
    let (metric, unit) = ("gpu_hours_per_failure", "GPU-h");
    let at = |name: &str| figure(name).map_or_else(|| "/figures".to_owned(), |at| format!("/figures/{at}"));
    let found = figure(metric).map(|at| &reckoning.figures[at]);
    if let Some(Figure { value: Some(value), .. }) = found {
        let record = make(metric, unit, Ok(*value), at(metric) + "/value");
        return with(record, &[("bound", "none")]);
    }
    let highest =
        figure("failures_high").and_then(|at| reckoning.figures[at].value).filter(|rate| *rate > 0.0);
    let value = highest
        .map(|rate| 1000.0 / rate * 24.0 * f64::from(reckoning.contract.gpus_per_node))
        .ok_or_else(|| Missing::Unknown("no node was in service".to_owned()));
    let mut record = with(make(metric, unit, value, at("failures_high") + "/value"), &[("bound", "lower")]);
    if record.value.is_some() {
        record.provenance = Provenance::Inferred;
        record.detail = record
            .detail
            .map(|window| format!("no failure: at least this with 95 % confidence, 24 * 1000 / failures_high * gpus_per_node ({window})"));
    }
    record
}
