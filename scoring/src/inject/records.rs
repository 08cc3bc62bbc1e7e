//! `raw/faults/*.json` to the records of stage `faults`. Those of a fault that was only told are synthetic.

use std::collections::BTreeMap;

use sha2::{Digest as _, Sha256};

use super::timeline::{Document, Event, SCHEMA};
use crate::Failure;
use crate::record::{self, Evidence, Provenance, Record, Scalar, State, Subject};
use crate::run::Folder;

/// Records of every document of the run; none when nothing was injected.
///
/// # Errors
/// Files that cannot be read.
pub fn read(folder: &Folder) -> Result<Vec<Record>, Failure> {
    let raw = folder.raw("faults");
    let listed = match std::fs::read_dir(&raw) {
        Ok(listed) => listed,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => {
            return Err(Failure::input(format!(
                "cannot read {}: {error}; check its permissions",
                raw.display()
            )));
        }
    };
    let mut names: Vec<String> = listed
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| name.ends_with(".json"))
        .collect();
    names.sort();
    let mut documents = Vec::new();
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
            documents.push((document, evidence));
        }
    }
    // A rung of a ladder that nobody noticed, before one that was: its way is not looked at here, which is no fault of who
    // looks at the other. The document says it, no flag does.
    let noticed = |ladder: &str| {
        documents.iter().any(|(document, _)| document.ladder == ladder && document.event("drained").is_some())
    };
    let unseen = |document: &Document| document.detected().is_none() && !document.ladder.is_empty();
    let mut records = Vec::new();
    for (document, evidence) in &documents {
        let mut of = of(folder, document, evidence);
        if unseen(document) && noticed(&document.ladder) {
            of.retain(|record| matches!(record.metric.as_str(), "fault_control_quiet" | "event"));
        }
        records.append(&mut of);
    }
    Ok(records)
}

/// A device that was reset and a rank that was stopped are faults; a value given to DCGM and a line in the kernel log only
/// tell of one, and what they show is barred from the tiers (`rating.toml`, `not_rated`).
fn provenance(kind: &str) -> Provenance {
    match kind {
        "pcie" | "rank" => Provenance::Measured,
        _ => Provenance::Synthetic,
    }
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
                ("kind".to_owned(), document.kind.as_str().into()),
                ("id".to_owned(), document.id.as_str().into()),
            ]),
            subject: Subject::node(document.node.as_str()),
            provenance: provenance(&document.kind),
            evidence: Some(Evidence { pointer: Some(pointer.to_owned()), ..evidence.clone() }),
            detail: (!detail.is_empty()).then_some(detail),
            tool: Some(format!("clustermax {}", env!("CARGO_PKG_VERSION"))),
            command: None,
            job: None,
            started: Some(document.started.clone()),
            seconds: None,
            of: None,
        }
    };
    let flag = |metric: &str, value: bool, param: (&str, Scalar), detail: String, pointer: &str| {
        let mut one = make(metric, "", Ok(f64::from(u8::from(value))), detail, pointer);
        one.params.insert(param.0.to_owned(), param.1);
        one
    };
    let mut records = Vec::new();
    for (control, word, what) in [
        (&document.quiet, "nothing", "with nothing injected"),
        (&document.control, "xid13_xid31", "with programs' own errors in the log"),
    ] {
        let Some(control) = control else { continue };
        let pointer = if word == "nothing" { "/quiet" } else { "/control" };
        let detail = match &control.drained {
            Some(reason) => format!("drained {what}: {reason}"),
            None if control.is_quiet() => format!("quiet for {:.0} s {what}", control.seconds),
            None => format!("{what}: {}", control.alarms.join("; ")),
        };
        records.push(flag(
            "fault_control_quiet",
            control.is_quiet(),
            ("control", word.into()),
            detail,
            pointer,
        ));
    }
    // Without an injection there is nothing else to say.
    if document.event("injected").is_none() {
        return records;
    }
    let marked = document.control_too_short().map_or(String::new(), |(seconds, _)| {
        format!("; marked: the control run lasted only {seconds:.0} s")
    });
    let said = |event: &Event| {
        format!(
            "between {:.3} and {:.3} s after the injection: {}{marked}",
            event.not_before, event.at, event.detail
        )
    };
    let within: Scalar = document.within.into();
    let not_within = |what: &str| format!("{what} within {} s", document.within);
    let drained = document.event("drained");
    let wants = document.expected != "none";
    // Of a program's own error `fault_action_right` says that nothing was drained, as it should be.
    let untold = document.drain_untold();
    let unknown = |metric: &str, param: (&str, Scalar), why: &str| {
        let mut one = make(metric, "", Err(why.to_owned()), String::new(), "/events");
        one.params.insert(param.0.to_owned(), param.1);
        one
    };
    if wants {
        let detail = drained.map_or_else(|| not_within("not drained"), said);
        let within = ("within", within.clone());
        records.push(match &untold {
            Some(why) => unknown("fault_drained", within, why),
            None => flag("fault_drained", drained.is_some(), within, detail, "/events"),
        });
        let why = untold.clone().unwrap_or_else(|| {
            format!("not drained within {} s of the fault: the time is longer than that", document.within)
        });
        let (value, detail) = drained.map_or((Err(why), String::new()), |event| (Ok(event.at), said(event)));
        records.push(make("fault_to_drain_seconds", "s", value, detail, "/events"));
    }
    let detail = match (drained, wants) {
        (Some(event), _) => said(event),
        (None, true) => not_within("not drained"),
        (None, false) => format!("nothing was drained in {} s", document.within),
    };
    let expected = if wants { "drain" } else { "none" };
    let right = drained.is_some() == wants;
    let expected = ("expected", expected.into());
    let of_slurm = document.kind != "rank";
    records.push(match &untold {
        Some(why) if of_slurm => unknown("fault_action_right", expected, why),
        _ => flag("fault_action_right", right, expected, detail, "/events"),
    });

    let detected = document.detected();
    if wants || document.kind == "rank" {
        let detail = detected.map_or_else(|| not_within("no sign"), said);
        let within = ("within", within.clone());
        // A node that was out of service may still be told of by a reason, a verdict or an alert; one that nobody could ask
        // about may not.
        records.push(match &untold {
            Some(why) if of_slurm && detected.is_none() => unknown("fault_detected", within, why),
            _ => flag("fault_detected", detected.is_some(), within, detail, "/events"),
        });
    }
    for (name, by) in [
        ("verdict", "verdict"),
        ("events", "events"),
        ("metrics", "metrics"),
        ("reason", "slurm"),
        ("alert", "alert"),
        ("found", "suite"),
    ] {
        let event = if name == "alert" { document.alerted() } else { document.event(name) };
        // A node may be drained without a reason.
        let event = event.or(if name == "reason" { drained } else { None });
        if let Some(event) = event {
            let mut one = make("fault_detect_seconds", "s", Ok(event.at), said(event), "/events");
            one.params.insert("by".to_owned(), by.into());
            records.push(one);
        }
    }
    if let Some(named) = document.named {
        let detail = document.event("found").map_or_else(|| not_within("not found"), |e| e.detail.clone());
        records.push(make("fault_named", "", Ok(f64::from(u8::from(named))), detail, "/events"));
    }
    if document.alerts {
        let alerted = document.alerted();
        let detail = alerted.map_or_else(|| not_within("no alert"), said);
        records.push(flag("fault_alerted", alerted.is_some(), ("within", within), detail, "/events"));
        for (index, event) in document.events.iter().enumerate().filter(|(_, event)| event.event == "alert") {
            let pointer = format!("/events/{index}");
            let mut one = make("fault_to_alert_seconds", "s", Ok(event.at), said(event), &pointer);
            one.params.insert("by".to_owned(), event.by.as_str().into());
            records.push(one);
        }
    }
    // What was never drained cannot come back.
    if let (Some(limit), Some(_)) = (document.wait_return, drained) {
        let back = document.back();
        let why = format!("neither the node nor another in its place was back within {limit} s of the drain");
        let detail = back.map_or_else(|| why.clone(), said);
        records.push(flag("fault_returned", back.is_some(), ("within", limit.into()), detail, "/events"));
        let (value, detail) = back.map_or((Err(why), String::new()), |event| (Ok(event.at), said(event)));
        let mut one = make("fault_to_return_seconds", "s", value, detail, "/events");
        let how = back.map(|event| if event.event == "restored" { "returned" } else { "replaced" });
        one.params.extend(how.map(|how| ("how".to_owned(), how.into())));
        records.push(one);
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
            if !event.by.is_empty() {
                one.params.insert("by".to_owned(), event.by.as_str().into());
            }
            if at >= 0.0 {
                records.push(one);
            }
        }
    }
    records
}
