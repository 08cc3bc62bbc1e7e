//! Records against the raw output that they were read from: a figure that was changed afterwards is named, although the
//! raw file is as it was.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::collect::{self, STAGES};
use crate::load::{number, params_text};
use crate::record::{Reader, Record, Scalar, Subject};
use crate::run::Folder;
use crate::{Failure, import, report};

/// Differences that are named one by one.
const NAMED: usize = 10;

type Key = (String, BTreeMap<String, Scalar>, Subject);

/// Reads the raw output of every stage that has records or a manifest and compares. Returns a sentence that says what was
/// read, and what could not be: accounts of a time and diagnoses are only hashed.
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
        // The stage's output is there although nothing tells of it: somebody took its records out.
        if count == 0 && !folder.stage(stage).is_file() && !folder.raw(stage).is_dir() {
            continue;
        }
        (records, stages) = (records + count, stages + 1);
        match collect::again(&folder, stage) {
            Ok(fresh) => of_stage(&folder, stage, fresh, &mut differences)?,
            Err(failure) => differences.push(failure.message),
        }
    }
    let imports: Vec<String> = counts.keys().filter(|stage| stage.starts_with("import-")).cloned().collect();
    for stage in imports {
        (records, stages) = (records + counts.remove(&stage).unwrap_or_default(), stages + 1);
        of_import(&folder, &stage, &mut differences)?;
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

/// Nobody wrote down whether `--node` was given: it is the one node of all records, or it was not.
fn of_import(folder: &Folder, stage: &str, differences: &mut Vec<String>) -> Result<(), Failure> {
    let mut nodes = BTreeSet::new();
    for record in Reader::open(&folder.records(), None)? {
        let (_, record) = record?;
        if record.stage == stage {
            nodes.extend(record.subject.node);
        }
    }
    let one = nodes.first().filter(|_| nodes.len() == 1);
    let mut least: Option<Vec<String>> = None;
    for node in [None, one.map(String::as_str)] {
        let mut found = Vec::new();
        match import::again(folder, stage, node) {
            Ok(fresh) => of_stage(folder, stage, fresh, &mut found)?,
            Err(why) => found.push(report::plain(&why)),
        }
        if least.as_ref().is_none_or(|least| found.len() < least.len()) {
            least = Some(found);
        }
    }
    differences.extend(least.unwrap_or_default());
    Ok(())
}

fn of_stage(
    folder: &Folder,
    stage: &str,
    fresh: Vec<Record>,
    differences: &mut Vec<String>,
) -> Result<(), Failure> {
    // Of two files of an import that give the same record, the first one was taken.
    let mut given: BTreeMap<Key, Vec<Record>> = BTreeMap::new();
    for record in fresh.iter().filter_map(written) {
        given.entry(key(&record)).or_default().push(record);
    }
    for kept in Reader::open(&folder.records(), None)? {
        let (line, kept) = kept?;
        if kept.stage != stage {
            continue;
        }
        let kept = Record { of: None, ..kept };
        let place = format!("records.jsonl line {line}: {}", named(&kept));
        match given.remove(&key(&kept)) {
            None => differences.push(format!("{place} is not in the raw output of stage {stage}")),
            Some(found) if found.contains(&kept) => {}
            Some(found) if found.iter().any(|found| shown(found) == shown(&kept)) => {
                differences
                    .push(format!("{place} says something else than its raw output, by stage {stage}"));
            }
            Some(found) => differences.push(format!(
                "{place} is {}, its raw output gives {}",
                shown(&kept),
                found.iter().map(shown).collect::<Vec<_>>().join(" or ")
            )),
        }
    }
    for record in given.values().flatten() {
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
