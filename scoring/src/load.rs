//! Records of a results folder into memory, each value believed or not, and its evidence verified.

use std::collections::{BTreeMap, BTreeSet, btree_map};
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use sha2::{Digest, Sha256};

use crate::collect::{Marker, STAGE_SCHEMA};
use crate::evidence::{self, Statements};
use crate::methodology::{Ceiling, Methodology, hex};
use crate::record::{self, Evidence, Provenance, Reader, Record, Scalar, State, Subject};
use crate::run::{self, Folder, Hardware, Run};

/// What tells one record from another. The order is that of reports.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// Stage.
    pub stage: String,
    /// Metric.
    pub metric: String,
    /// Params, whole numbers canonical.
    pub params: BTreeMap<String, Scalar>,
    /// Subject.
    pub subject: Subject,
}

/// A record without its key.
#[derive(Debug, Clone)]
pub struct Entry {
    /// The value as recorded.
    pub value: Option<f64>,
    /// Its unit.
    pub unit: String,
    /// The state as recorded.
    pub state: State,
    /// How it is known.
    pub provenance: Provenance,
    /// Index into [`Loaded::files`] and the pointer in that file.
    pub evidence: Option<(usize, Option<String>)>,
    /// As recorded.
    pub detail: Option<String>,
    /// Why the value is not believed.
    pub flaw: Option<String>,
    line: u64,
}

impl Entry {
    /// An entry without evidence, for tests of the rules.
    #[cfg(test)]
    pub(crate) fn new(
        value: Option<f64>,
        state: State,
        provenance: Provenance,
        detail: Option<String>,
    ) -> Self {
        Self { value, unit: String::new(), state, provenance, evidence: None, detail, flaw: None, line: 0 }
    }

    /// The value, when it is measured and nothing is wrong with it.
    pub fn believed(&self) -> Option<f64> {
        match (self.state, &self.flaw) {
            (State::Measured, None) => self.value,
            _ => None,
        }
    }
}

/// A raw file that records point to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawFile {
    /// Relative to the results folder.
    pub file: String,
    /// As recorded.
    pub sha256: String,
    /// What is wrong with it.
    pub problem: Option<String>,
    /// Lies outside the results folder (`--evidence`), so no report links to it.
    pub outside: bool,
}

/// A results folder in memory.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// `run.json`
    pub run: Run,
    /// Records by key.
    pub entries: BTreeMap<Key, Entry>,
    /// Raw files, by name and digest.
    pub files: Vec<RawFile>,
    /// Sum of the SHA-256 of all records modulo 2^256: the order of records does not change it.
    pub digest: String,
    /// SHA-256 of `run.json`.
    pub run_digest: String,
    /// `evidence.toml`, when there is one.
    pub statements: Option<Statements>,
}

/// What is wrong with a results folder; every sentence names the file and the mend.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The folder or its `run.json`.
    #[error(transparent)]
    Run(#[from] run::Error),
    /// A line of `records.jsonl`.
    #[error(transparent)]
    Record(#[from] record::Error),
    /// Nothing was recorded.
    #[error("{0} holds no record; run the suite's stages (and `clustermax collect`) first")]
    NoRecords(String),
    /// A manifest of a stage that cannot be used.
    #[error("{path}: {what}; run `clustermax collect {stage}` again, which rewrites it")]
    Manifest {
        /// The file.
        path: String,
        /// What is wrong.
        what: String,
        /// Stage.
        stage: String,
    },
    /// Records that a stage's manifest names are not there.
    #[error(
        "{path} names {named} records of {metric}, records.jsonl has {found}: somebody or something removed them; \
         run `clustermax collect {stage}` again, which reads them from the raw output"
    )]
    Absent {
        /// The manifest.
        path: String,
        /// Stage.
        stage: String,
        /// Metric.
        metric: String,
        /// Records that the stage gave.
        named: usize,
        /// Records that are there.
        found: usize,
    },
    /// `evidence.toml`
    #[error(transparent)]
    Evidence(#[from] evidence::Error),
    /// Two records say something about the same thing.
    #[error(
        "{path}: lines {first} and {second} are records of the same {what}; \
         run `clustermax collect` for stage {stage} again, which replaces that stage's records"
    )]
    Duplicate {
        /// The file.
        path: String,
        /// Line number from 1.
        first: u64,
        /// Line number from 1.
        second: u64,
        /// Metric, subject and params.
        what: String,
        /// Stage.
        stage: String,
    },
}

/// `, key=value, key=value`; empty for no params.
pub fn params_text(params: &BTreeMap<String, Scalar>) -> String {
    params.iter().map(|(key, value)| format!(", {key}={value}")).collect()
}

/// Reads a results folder.
///
/// # Errors
/// [`Error`]; a value that is impossible or whose evidence does not match is no error but a flaw of its entry.
pub fn load(path: &Path, methodology: &Methodology) -> Result<Loaded, Error> {
    let folder = Folder::open(path)?;
    let records = folder.records();
    let shown = records.display().to_string();
    let mut loaded = Loaded {
        run_digest: sha256_file(&path.join("run.json")).map_err(|source| run::Error::Io {
            action: "read",
            path: path.join("run.json"),
            source,
        })?,
        run: folder.run,
        entries: BTreeMap::new(),
        files: Vec::new(),
        digest: String::new(),
        statements: None,
    };
    let mut sum = [0_u8; 32];
    let mut files: BTreeMap<(String, String), usize> = BTreeMap::new();
    for item in Reader::open(&records, Some(&loaded.run.run))? {
        let (line, record) = item?;
        add(&mut sum, &line_digest(&record));
        let (key, entry) = split(line, record, methodology, &mut files, &mut loaded.files);
        match loaded.entries.entry(key) {
            btree_map::Entry::Vacant(place) => {
                place.insert(entry);
            }
            btree_map::Entry::Occupied(place) => {
                let key = place.key();
                return Err(Error::Duplicate {
                    path: shown,
                    first: place.get().line,
                    second: line,
                    what: format!("{} ({}{})", key.metric, key.subject, params_text(&key.params)),
                    stage: key.stage.clone(),
                });
            }
        }
    }
    if loaded.entries.is_empty() {
        return Err(Error::NoRecords(shown));
    }
    manifests(path, &loaded)?;
    loaded.digest = hex(&sum);
    // The order of first appearance must not show in the output.
    let order: Vec<usize> = files.into_values().collect();
    let mut place = vec![0; order.len()];
    for (new, old) in order.iter().enumerate() {
        place[*old] = new;
    }
    loaded.files = order.iter().map(|old| loaded.files[*old].clone()).collect();
    for entry in loaded.entries.values_mut() {
        if let Some((file, _)) = &mut entry.evidence {
            *file = place[*file];
        }
    }
    verify(path, &mut loaded);
    apply_ceilings(&mut loaded, methodology);
    Ok(loaded)
}

/// Every record that a stage's manifest (`stages/STAGE.json`) names must be there: a rating cannot be lifted by
/// removing what speaks against it.
fn manifests(path: &Path, loaded: &Loaded) -> Result<(), Error> {
    let folder = path.join("stages");
    let names = match fs::read_dir(&folder) {
        Ok(entries) => entries
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .filter_map(|name| name.strip_suffix(".json").map(str::to_owned))
            .filter(|name| !name.starts_with('.'))
            .collect::<BTreeSet<String>>(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(source) => return Err(run::Error::Io { action: "read", path: folder, source }.into()),
    };
    let mut found: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for key in loaded.entries.keys() {
        *found.entry((&key.stage, &key.metric)).or_default() += 1;
    }
    for stage in names {
        let file = folder.join(format!("{stage}.json"));
        let bad =
            |what: String| Error::Manifest { path: file.display().to_string(), what, stage: stage.clone() };
        let text = fs::read_to_string(&file).map_err(|error| bad(format!("it cannot be read: {error}")))?;
        let marker: Marker =
            serde_json::from_str(&text).map_err(|error| bad(format!("not a manifest: {error}")))?;
        if marker.schema != STAGE_SCHEMA {
            return Err(bad(format!("schema is {:?}, this release reads {STAGE_SCHEMA:?}", marker.schema)));
        }
        if marker.run != loaded.run.run {
            return Err(bad(format!(
                "it belongs to run {:?}, run.json says {:?}",
                marker.run, loaded.run.run
            )));
        }
        for (metric, named) in marker.metrics {
            let found = found.get(&(stage.as_str(), metric.as_str())).copied().unwrap_or(0);
            if found < named {
                return Err(Error::Absent { path: file.display().to_string(), stage, metric, named, found });
            }
        }
    }
    Ok(())
}

/// Reads a results folder with its evidence: `file`, else `evidence.toml` in the folder when it is there.
///
/// # Errors
/// [`Error`]; a statement that is expired or contradictory is no error but leaves its criterion unknown.
pub fn load_with(path: &Path, methodology: &Methodology, file: Option<&Path>) -> Result<Loaded, Error> {
    let mut loaded = load(path, methodology)?;
    let beside = path.join(evidence::FILE);
    let (file, outside) = match file {
        Some(file) => {
            let same = file.canonicalize().ok().is_some_and(|file| beside.canonicalize().ok() == Some(file));
            (file.to_owned(), !same)
        }
        None if fs::symlink_metadata(&beside).is_ok() => (beside, false),
        None => return Ok(loaded),
    };
    let today = evidence::day(path, &loaded.run)?;
    let statements = Statements::read(&file, methodology, Some(today))?.usable(&loaded.run.cluster)?;
    let index = loaded.files.len();
    loaded.files.push(RawFile {
        file: evidence::FILE.to_owned(),
        sha256: statements.sha256.clone(),
        problem: None,
        outside,
    });
    for (item, one) in statements.by_item() {
        let mut params = BTreeMap::from([
            ("item".to_owned(), Scalar::from(item)),
            ("issuer".to_owned(), Scalar::from(one.issuer.as_str())),
        ]);
        if let Some(valid_to) = one.valid_to {
            params.insert("valid_to".to_owned(), Scalar::from(valid_to.to_string()));
        }
        let key = Key {
            stage: "evidence".to_owned(),
            metric: "claim".to_owned(),
            params,
            subject: Subject::default(),
        };
        let entry = Entry {
            value: one.flaw.is_none().then_some(if one.met { 1.0 } else { 0.0 }),
            unit: String::new(),
            state: if one.flaw.is_none() { State::Measured } else { State::Unknown },
            provenance: Provenance::Declared,
            evidence: Some((index, Some(one.pointer()))),
            detail: one.flaw.as_ref().map(|flaw| format!("{}: {flaw}", one.name())),
            flaw: None,
            line: 0,
        };
        // A record of a stage and the file may state the same; the record stands, they cannot both be shown.
        loaded.entries.entry(key).or_insert(entry);
    }
    loaded.statements = Some(statements);
    Ok(loaded)
}

/// What no GPU of the run can give is not believed. A CPU has no row; several models leave the highest ceiling.
fn apply_ceilings(loaded: &mut Loaded, methodology: &Methodology) {
    if loaded.run.hardware == Hardware::Cpu {
        return;
    }
    let models: BTreeSet<String> = loaded
        .entries
        .iter()
        .filter(|(key, entry)| key.metric == "gpu_info" && entry.believed().is_some())
        .filter_map(|(key, _)| Some(key.params.get("model")?.to_string()))
        .collect();
    for (key, entry) in &mut loaded.entries {
        let Some(value) = entry.believed() else { continue };
        let row = |model: &String| {
            methodology.ceilings.iter().find(|ceiling| {
                ceiling.metric == key.metric
                    && ceiling.gpus.contains(model)
                    && ceiling.params.iter().all(|(param, value)| key.params.get(param) == Some(value))
            })
        };
        let rows: Option<Vec<&Ceiling>> = models.iter().map(row).collect();
        let highest = rows.unwrap_or_default().into_iter().max_by(|a, b| a.ceiling.total_cmp(&b.ceiling));
        if let Some(ceiling) = highest
            && value > ceiling.ceiling
        {
            entry.flaw = Some(format!(
                "{} {} is impossible, the ceiling is {} ({})",
                number(value),
                ceiling.unit,
                number(ceiling.ceiling),
                ceiling.basis
            ));
        }
    }
}

fn line_digest(record: &Record) -> [u8; 32] {
    // A record that was read can be written; an empty line would only weaken the digest.
    let bytes = serde_json::to_vec(record).unwrap_or_default();
    Sha256::digest(&bytes).into()
}

fn add(sum: &mut [u8; 32], term: &[u8; 32]) {
    let mut carry = 0_u16;
    for (a, b) in sum.iter_mut().zip(term).rev() {
        let total = u16::from(*a) + u16::from(*b) + carry;
        *a = (total & 0xff) as u8;
        carry = total >> 8;
    }
}

fn split(
    line: u64,
    record: Record,
    methodology: &Methodology,
    index: &mut BTreeMap<(String, String), usize>,
    files: &mut Vec<RawFile>,
) -> (Key, Entry) {
    let flaw = disbelief(&record, methodology);
    let evidence = record.evidence.map(|Evidence { file, sha256, pointer }| {
        let sha256 = sha256.to_ascii_lowercase();
        let place = *index.entry((file.clone(), sha256.clone())).or_insert_with(|| {
            files.push(RawFile { file, sha256, problem: None, outside: false });
            files.len() - 1
        });
        (place, pointer)
    });
    let params = record.params.into_iter().map(|(key, value)| (key, value.canonical())).collect();
    let key = Key { stage: record.stage, metric: record.metric, params, subject: record.subject };
    let entry = Entry {
        value: record.value,
        unit: record.unit,
        state: record.state,
        provenance: record.provenance,
        evidence,
        detail: record.detail,
        flaw,
        line,
    };
    (key, entry)
}

/// Why a value cannot be believed: an unknown metric, another unit, out of the possible range, or merely declared.
fn disbelief(record: &Record, methodology: &Methodology) -> Option<String> {
    let value = record.value?;
    let Some(metric) = methodology.metrics.get(&record.metric) else {
        let nearest = methodology
            .metrics
            .keys()
            .map(|name| (strsim::jaro_winkler(name, &record.metric), name))
            .max_by(|a, b| a.0.total_cmp(&b.0))
            .filter(|(likeness, _)| *likeness > 0.85);
        return Some(match nearest {
            Some((_, name)) => {
                format!("metric {} is not in metrics.tsv (did you mean {name}?)", record.metric)
            }
            None => format!("metric {} is not in metrics.tsv", record.metric),
        });
    };
    if record.unit != metric.unit {
        return Some(format!("unit is {:?} instead of {:?}", record.unit, metric.unit));
    }
    if value < metric.min || value > metric.max {
        return Some(format!(
            "{} {} is impossible, {} lies between {} and {}",
            number(value),
            metric.unit,
            metric.name,
            number(metric.min),
            number(metric.max)
        ));
    }
    if record.provenance == Provenance::Declared && record.metric != "claim" {
        return Some("it is only declared, although a program can measure it".to_owned());
    }
    None
}

/// A number for people: up to six significant decimals, no exponent below 1e15.
pub fn number(value: f64) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    let magnitude = value.abs();
    if magnitude >= 1e15 {
        return format!("{value:e}");
    }
    let decimals = if magnitude >= 1000.0 {
        1
    } else if magnitude >= 1.0 {
        3
    } else {
        6
    };
    let text = format!("{value:.decimals$}");
    if !text.contains('.') {
        return text;
    }
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "0" || text == "-0" { format!("{value:.2e}") } else { text.to_owned() }
}

/// SHA-256 of a file, in hex.
pub(crate) fn sha256_file(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 16];
    loop {
        let length = file.read(&mut buffer)?;
        if length == 0 {
            return Ok(hex(&hash.finalize()));
        }
        hash.update(&buffer[..length]);
    }
}

/// Larger raw files are checked by digest only.
const POINTER_LIMIT: u64 = 32 << 20;

/// Compares each raw file with its digest and looks up every pointer into it.
fn verify(folder: &Path, loaded: &mut Loaded) {
    let mut pointers: BTreeMap<usize, Vec<&mut Entry>> = BTreeMap::new();
    for entry in loaded.entries.values_mut() {
        if let Some((file, _)) = entry.evidence {
            pointers.entry(file).or_default().push(entry);
        }
    }
    for (index, entries) in pointers {
        let raw = &mut loaded.files[index];
        raw.problem = file_problem(folder, raw);
        if let Some(problem) = &raw.problem {
            for entry in entries {
                entry.flaw.get_or_insert_with(|| format!("its evidence {} {problem}", raw.file));
            }
            continue;
        }
        let text = Text::read(&folder.join(&raw.file), &raw.file);
        for entry in entries {
            let missing = match &entry.evidence {
                Some((_, Some(pointer))) => !text.has(pointer),
                _ => false,
            };
            if missing {
                let pointer =
                    entry.evidence.as_ref().and_then(|(_, pointer)| pointer.clone()).unwrap_or_default();
                entry.flaw.get_or_insert_with(|| format!("its evidence {} has no {pointer}", raw.file));
            }
        }
    }
}

fn file_problem(folder: &Path, raw: &RawFile) -> Option<String> {
    let path = folder.join(&raw.file);
    match fs::symlink_metadata(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Some("is missing".to_owned()),
        Err(error) => return Some(format!("cannot be read: {error}")),
        Ok(data) if !data.is_file() => return Some("is not a regular file".to_owned()),
        Ok(_) => {}
    }
    match sha256_file(&path) {
        Err(error) => Some(format!("cannot be read: {error}")),
        Ok(found) if found != raw.sha256 => Some(format!(
            "has changed: its sha256 is {}..., recorded is {}...",
            &found[..12],
            &raw.sha256[..12]
        )),
        Ok(_) => None,
    }
}

enum Text {
    Json(serde_json::Value),
    Lines(usize),
    Unchecked,
}

impl Text {
    fn read(path: &Path, name: &str) -> Self {
        let small = fs::metadata(path).is_ok_and(|data| data.len() <= POINTER_LIMIT);
        let Some(bytes) = small.then(|| fs::read(path).ok()).flatten() else {
            return Self::Unchecked;
        };
        if name.ends_with(".json") {
            return serde_json::from_slice(&bytes).map_or(Self::Unchecked, Self::Json);
        }
        Self::Lines(bytes.split_inclusive(|byte| *byte == b'\n').count())
    }

    fn has(&self, pointer: &str) -> bool {
        match self {
            Self::Json(value) if pointer.starts_with('/') => value.pointer(pointer).is_some(),
            Self::Lines(lines) => match pointer.strip_prefix("line:").map(str::parse::<usize>) {
                Some(Ok(line)) => line >= 1 && line <= *lines,
                Some(Err(_)) => false,
                None => true,
            },
            _ => true,
        }
    }
}
