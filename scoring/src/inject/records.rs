//! `raw/faults/*.json` to the records of stage `faults`. All of them are synthetic.

use std::collections::BTreeMap;

use sha2::{Digest as _, Sha256};

use super::{Document, SCHEMA};
use crate::Failure;
use crate::record::{self, Evidence, Provenance, Record, State, Subject};
use crate::run::Folder;

/// Reads every document of the run and puts its records in the place of the stage's old ones; returns their number.
///
/// # Errors
/// Files that cannot be read or written.
pub fn write(folder: &Folder) -> Result<usize, Failure> {
    let raw = folder.raw("faults");
    let mut names: Vec<String> = std::fs::read_dir(&raw)
        .map_err(|error| {
            Failure::input(format!("cannot read {}: {error}; check its permissions", raw.display()))
        })?
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| name.ends_with(".json"))
        .collect();
    names.sort();
    let mut records = Vec::new();
    for name in &names {
        let path = raw.join(name);
        let bytes = std::fs::read(&path)
            .map_err(|error| Failure::input(format!("cannot read {}: {error}", path.display())))?;
        let Ok(document) = serde_json::from_slice::<Document>(&bytes) else { continue };
        if document.schema == SCHEMA {
            let evidence = Evidence {
                file: format!("raw/faults/{name}"),
                sha256: Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect(),
                pointer: None,
            };
            records.extend(of(folder, &document, &evidence));
        }
    }
    record::replace_stage(&folder.records(), "faults", &records)?;
    Ok(records.len())
}

/// Records of one injection.
#[must_use]
pub fn of(folder: &Folder, document: &Document, evidence: &Evidence) -> Vec<Record> {
    let make = |metric: &str, unit: &str, value: Result<f64, String>, detail: String, pointer: &str| {
        let (value, state, detail) = match value {
            Ok(value) => (Some(value), State::Measured, detail),
            Err(why) => (None, State::Unknown, why),
        };
        Record {
            schema: record::SCHEMA.to_owned(),
            run: folder.run.run.clone(),
            cluster: folder.run.cluster.clone(),
            stage: "faults".to_owned(),
            metric: metric.to_owned(),
            value,
            unit: unit.to_owned(),
            state,
            params: BTreeMap::from([
                ("fault".to_owned(), document.fault.as_str().into()),
                ("id".to_owned(), document.id.as_str().into()),
            ]),
            subject: Subject::node(document.node.as_str()),
            provenance: Provenance::Synthetic,
            evidence: Some(Evidence { pointer: Some(pointer.to_owned()), ..evidence.clone() }),
            detail: (!detail.is_empty()).then_some(detail),
            tool: Some(format!("clustermax {}", env!("CARGO_PKG_VERSION"))),
            command: None,
            job: None,
            started: Some(document.started.clone()),
            seconds: None,
        }
    };
    let mut records = Vec::new();
    if let Some(control) = &document.control {
        let (quiet, detail) = match &control.drained {
            None => (1.0, format!("Xid 13 drained nothing in {:.0} s", control.seconds)),
            Some(reason) => (0.0, format!("Xid 13 drained the node: {reason}")),
        };
        records.push(make("fault_control_quiet", "", Ok(quiet), detail, "/control"));
    }
    // Without an injection there is nothing else to say.
    if document.event("injected").is_none() {
        return records;
    }
    let bounds = |name: &str| {
        document.event(name).map(|event| {
            (
                event.at,
                format!(
                    "between {:.3} and {:.3} s after the injection: {}",
                    event.not_before, event.at, event.detail
                ),
            )
        })
    };
    let drained = bounds("drained");
    let mut flag = make(
        "fault_drained",
        "",
        Ok(f64::from(u8::from(drained.is_some()))),
        drained.as_ref().map_or_else(
            || format!("not drained within {} s", document.within),
            |(_, detail)| detail.clone(),
        ),
        "/events",
    );
    flag.params.insert("within".to_owned(), document.within.into());
    records.push(flag);
    let why = format!("not drained within {} s of the fault: the time is longer than that", document.within);
    let (value, detail) = drained.map_or((Err(why), String::new()), |(at, detail)| (Ok(at), detail));
    records.push(make("fault_to_drain_seconds", "s", value, detail, "/events"));
    for (event, by) in [("verdict", "verdict"), ("reason", "slurm")] {
        if let Some((at, detail)) = bounds(event) {
            let mut one = make("fault_detect_seconds", "s", Ok(at), detail, "/events");
            one.params.insert("by".to_owned(), by.into());
            records.push(one);
        }
    }
    if let (Some(returned), Some(command)) = (document.event("returned"), document.event("command")) {
        let asked = returned.not_before;
        let detail = "from the request to return the node to the end of a command on it".to_owned();
        records.push(make("return_seconds", "s", Ok(command.at - asked), detail, "/events"));
    }
    // The report's timeline counts from the start of the run.
    let start = folder.run.started.parse::<jiff::Timestamp>();
    let injected = document.started.parse::<jiff::Timestamp>();
    if let (Ok(start), Ok(injected)) = (start, injected) {
        let offset = injected.duration_since(start).as_secs_f64();
        for (index, event) in document.events.iter().enumerate() {
            let at = offset + event.at;
            let mut one = make("event", "s", Ok(at), event.detail.clone(), &format!("/events/{index}"));
            one.params.insert("event".to_owned(), event.event.as_str().into());
            if at >= 0.0 {
                records.push(one);
            }
        }
    }
    records
}
