//! Records against the raw output that they were read from: a figure that was changed afterwards is named, although the
//! raw file is as it was.

use std::collections::BTreeMap;
use std::path::Path;

use crate::collect::{self, STAGES};
use crate::load::{number, params_text};
use crate::record::{Reader, Record, Scalar, Subject};
use crate::run::Folder;
use crate::{Failure, report};

/// Differences that are named one by one.
const NAMED: usize = 10;

type Key = (String, BTreeMap<String, Scalar>, Subject);

/// Reads the raw output of every stage that has records or a manifest and compares. Returns a sentence that says what was
/// read, and what could not be: output of other tools is only hashed.
///
/// # Errors
/// A folder or a `records.jsonl` that cannot be read.
pub(super) fn compare(path: &Path, problems: &mut Vec<String>) -> Result<String, Failure> {
    let folder = Folder::open(path)?;
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for record in Reader::open(&folder.records(), None)? {
        *counts.entry(record?.1.stage).or_default() += 1;
    }
    let mut differences = Vec::new();
    let (mut records, mut stages) = (0, 0);
    for stage in STAGES {
        let count = counts.remove(stage).unwrap_or_default();
        if count == 0 && !folder.stage(stage).is_file() {
            continue;
        }
        (records, stages) = (records + count, stages + 1);
        match collect::again(&folder, stage) {
            Ok(fresh) => of_stage(&folder, stage, fresh, &mut differences)?,
            Err(failure) => differences.push(failure.message),
        }
    }
    let more = differences.len().saturating_sub(NAMED);
    problems.extend(differences.into_iter().take(NAMED));
    if more > 0 {
        problems.push(format!("{more} more records differ from their raw output"));
    }
    let rest: Vec<&str> = counts.keys().map(String::as_str).collect();
    let rest = if rest.is_empty() {
        String::new()
    } else {
        format!("; of {} the files are only hashed", report::plain(&rest.join(", ")))
    };
    Ok(format!("{records} records of {stages} stages were read again from their raw output{rest}\n"))
}

fn of_stage(
    folder: &Folder,
    stage: &str,
    fresh: Vec<Record>,
    differences: &mut Vec<String>,
) -> Result<(), Failure> {
    let mut fresh: BTreeMap<Key, Record> =
        fresh.iter().filter_map(written).map(|record| (key(&record), record)).collect();
    for kept in Reader::open(&folder.records(), None)? {
        let (line, kept) = kept?;
        if kept.stage != stage {
            continue;
        }
        let kept = Record { of: None, ..kept };
        let place = format!("records.jsonl line {line}: {}", named(&kept));
        match fresh.remove(&key(&kept)) {
            None => differences.push(format!("{place} is not in the raw output of stage {stage}")),
            Some(found) if found == kept => {}
            Some(found) if shown(&found) == shown(&kept) => {
                differences
                    .push(format!("{place} says something else than its raw output, by stage {stage}"));
            }
            Some(found) => differences.push(format!(
                "{place} is {}, its raw output gives {}",
                shown(&kept),
                shown(&found)
            )),
        }
    }
    for record in fresh.values() {
        differences
            .push(format!("the raw output of stage {stage} gives {}, records.jsonl does not", named(record)));
    }
    Ok(())
}

/// A record as it is read from a line.
fn written(record: &Record) -> Option<Record> {
    let line = serde_json::to_string(&Record { of: None, ..record.clone() }).ok()?;
    serde_json::from_str(&line).ok()
}

fn key(record: &Record) -> Key {
    let params =
        record.params.iter().map(|(name, value)| (name.clone(), value.clone().canonical())).collect();
    (record.metric.clone(), params, record.subject.clone())
}

fn named(record: &Record) -> String {
    report::plain(&format!("{} ({}{})", record.metric, record.subject, params_text(&record.params)))
}

/// The value with its unit, or why there is none.
fn shown(record: &Record) -> String {
    let text = match record.value {
        Some(value) => format!("{} {}", number(value), record.unit).trim_end().to_owned(),
        None => {
            let state = format!("{:?}", record.state).to_lowercase();
            record.detail.as_ref().map_or_else(|| state.clone(), |detail| format!("{state}, {detail}"))
        }
    };
    report::plain(&text)
}
