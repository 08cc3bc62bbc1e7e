//! Records of a results folder into memory, each value believed or not, and its evidence verified.

mod guards;
mod verify;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sha2::{Digest, Sha256};

use crate::collect::{Marker, STAGE_SCHEMA, STAGES};
use crate::entries::Gatherer;
pub use crate::entries::{Entries, Entry, Key, Name};
use crate::evidence::{self, Statements};
use crate::methodology::{Ceiling, Methodology, hex};
use crate::record::line::Line;
use crate::record::{self, Provenance, Reader, Scalar, State, Subject, Taken};
use crate::run::{self, Folder, Hardware, Run};
pub(crate) use verify::sha256_file;

/// What is recorded without a stage of the suite: statements, accounts of a time, diagnoses of others.
const OTHER_STAGES: [&str; 3] = ["evidence", "sla", "health"];

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
    /// The folder.
    pub dir: PathBuf,
    /// `run.json`
    pub run: Run,
    /// Records by key.
    pub entries: Entries,
    /// Raw files, by name and digest.
    pub files: Vec<RawFile>,
    /// Sum of the SHA-256 of all lines modulo 2^256: the order of records does not change it.
    pub digest: String,
    /// SHA-256 of `run.json`.
    pub run_digest: String,
    /// `evidence.toml`, when there is one.
    pub statements: Option<Statements>,
    /// Metrics of which records were lost, or of which nothing says how many there were, and which: a criterion that needs
    /// them all is not passed by those that are left.
    pub lost: BTreeMap<String, String>,
}

impl Loaded {
    /// Nodes of the run: those of `run.json`, and those whose records say that they took part. Who leaves a node out of
    /// `run.json` must not gain by it.
    pub fn nodes(&self) -> Vec<&str> {
        let mut nodes: Vec<&str> = self.run.nodes.iter().map(String::as_str).collect();
        let mut seen: HashSet<&str> = nodes.iter().copied().collect();
        for (key, _) in &self.entries {
            if let Some(node) = &key.subject.node
                && !seen.contains(&**node)
                && guards::WORK.contains(&&*key.stage)
            {
                seen.insert(node);
                nodes.push(node);
            }
        }
        nodes
    }
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
    /// A record of another cluster.
    #[error(
        "{path}: line {line} is of cluster {found:?} but run.json says {expected:?}; figures of two clusters cannot be \
         scored together: restore the file, or give each cluster a folder of its own"
    )]
    OtherCluster {
        /// The file.
        path: String,
        /// Line number from 1.
        line: u64,
        /// The record's cluster.
        found: String,
        /// The folder's.
        expected: String,
    },
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
    let run_digest = sha256_file(&path.join("run.json")).map_err(|source| run::Error::Io {
        action: "read",
        path: path.join("run.json"),
        source,
    })?;
    let mut intake = Intake::new(methodology, &folder.run.cluster);
    Reader::open(&records, Some(&folder.run.run))?
        .each(|line, bytes, record| intake.take(line, bytes, &record, &shown))?;
    let lost = intake.lost();
    let Intake { sum, files, mut places, gatherer, .. } = intake;
    let mut loaded = Loaded {
        dir: path.to_owned(),
        run: folder.run,
        entries: gatherer.finish(),
        files: Vec::new(),
        digest: hex(&sum),
        run_digest,
        statements: None,
        lost,
    };
    if loaded.entries.is_empty() {
        return Err(Error::NoRecords(shown));
    }
    manifests(path, &loaded)?;
    // The order of first appearance must not show in the output.
    places.sort_unstable_by(|a, b| files[*a].cmp(&files[*b]));
    let mut place = vec![0; places.len()];
    for (new, old) in places.iter().enumerate() {
        place[*old] = new;
    }
    loaded.files = places
        .iter()
        .map(|old| {
            let (file, sha256) = &files[*old];
            RawFile { file: file.to_string(), sha256: sha256.clone(), problem: None, outside: false }
        })
        .collect();
    for (_, entry) in loaded.entries.iter_mut() {
        if let Some((file, _)) = &mut entry.evidence {
            *file = place[*file];
        }
    }
    verify::verify(path, &mut loaded);
    apply_ceilings(&mut loaded, methodology);
    guards::apply(&mut loaded);
    Ok(loaded)
}

/// What gathers while records.jsonl is read.
struct Intake<'a> {
    methodology: &'a Methodology,
    cluster: &'a str,
    sum: [u8; 32],
    gatherer: Gatherer,
    /// Raw files by name and digest, in the order of first appearance.
    files: Vec<(Name, String)>,
    /// 0, 1, 2 ...: one for each of `files`.
    places: Vec<usize>,
    numbers: HashMap<(Name, String), usize>,
    /// Number of the raw file of the record before: mostly the next one's too.
    last: usize,
    /// By the number of the metric's name.
    families: Vec<Family>,
}

/// All records of one metric.
#[derive(Debug, Clone, Default)]
struct Family {
    /// Of the first one.
    metric: String,
    /// Of the first one.
    stage: String,
    found: u32,
    /// The largest [`record::Record::of`].
    of: u32,
    /// The smallest.
    least: Option<u32>,
    /// A record does not say how many there are.
    unsaid: bool,
}

impl Family {
    /// Why its records are not all there, or cannot be known to be.
    fn lost(&self) -> Option<String> {
        let Self { metric, stage, found, of, least, unsaid } = self;
        let again = format!("`clustermax collect {stage}` reads them again from the raw output");
        if of > found {
            Some(format!("records.jsonl has {found} of {of} records of {metric}: {again}"))
        } else if let Some(least) = least.filter(|least| least < found) {
            // Lines of another folder, or ones that somebody wrote: what else was changed, nobody can say.
            Some(format!(
                "records.jsonl has {found} records of {metric}, of which one says that there are {least}: {again}"
            ))
        } else if *unsaid {
            Some(format!("a record of {metric} does not say how many there are (key of): {again}"))
        } else {
            None
        }
    }
}

impl<'a> Intake<'a> {
    fn new(methodology: &'a Methodology, cluster: &'a str) -> Self {
        Self {
            methodology,
            cluster,
            sum: [0; 32],
            gatherer: Gatherer::new(),
            files: Vec::new(),
            places: Vec::new(),
            numbers: HashMap::new(),
            last: 0,
            families: Vec::new(),
        }
    }

    fn lost(&self) -> BTreeMap<String, String> {
        self.families.iter().filter_map(|family| Some((family.metric.clone(), family.lost()?))).collect()
    }

    /// Counts a record of the metric with this number.
    fn count(&mut self, number: u32, record: &Line<'_>) {
        let number = number as usize;
        if self.families.len() <= number {
            self.families.resize(number + 1, Family::default());
        }
        let family = &mut self.families[number];
        if family.found == 0 {
            family.metric = record.metric.to_string();
            family.stage = record.stage.to_string();
        }
        family.found = family.found.saturating_add(1);
        family.of = family.of.max(record.of.unwrap_or(0));
        family.least = family.least.into_iter().chain(record.of).min();
        family.unsaid |= record.of.is_none();
    }

    fn take(&mut self, line: u64, bytes: &[u8], record: &Line<'_>, path: &str) -> Result<(), Taken<Error>> {
        if *record.cluster != *self.cluster {
            return Err(Taken::Other(Error::OtherCluster {
                path: path.to_owned(),
                line,
                found: record.cluster.to_string(),
                expected: self.cluster.to_owned(),
            }));
        }
        let gatherer = &mut self.gatherer;
        let params = gatherer.params(record.params.0).map_err(|_| Taken::NotARecord)?;
        let subject = gatherer.subject(record.subject.0).map_err(|_| Taken::NotARecord)?;
        add(&mut self.sum, &Sha256::digest(bytes).into());
        let evidence = record.evidence.as_ref().map(|one| {
            let pointer = one.pointer.as_ref().map(|pointer| self.gatherer.name(pointer));
            (self.file(&one.file, &one.sha256), pointer)
        });
        let gatherer = &mut self.gatherer;
        let key = [gatherer.number(&record.stage), gatherer.number(&record.metric), params, subject];
        let entry = Entry {
            value: record.value,
            unit: gatherer.name(&record.unit),
            state: record.state,
            provenance: record.provenance,
            evidence,
            detail: record.detail.as_ref().map(|detail| gatherer.name(detail)),
            flaw: disbelief(record, self.methodology).map(String::into_boxed_str),
            line,
        };
        let number = key[1];
        let put = gatherer.put(key, entry);
        self.count(number, record);
        put.map_err(|(key, first)| {
            Taken::Other(Error::Duplicate {
                path: path.to_owned(),
                first,
                second: line,
                what: format!("{} ({}{})", key.metric, key.subject, params_text(&key.params)),
                stage: key.stage.to_string(),
            })
        })
    }

    fn file(&mut self, file: &str, sha256: &str) -> usize {
        if self.files.get(self.last).is_some_and(|(name, known)| *name == *file && known == sha256) {
            return self.last;
        }
        let key = (self.gatherer.name(file), sha256.to_ascii_lowercase());
        self.last = *self.numbers.entry(key.clone()).or_insert_with(|| {
            self.places.push(self.files.len());
            self.files.push(key);
            self.files.len() - 1
        });
        self.last
    }
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
    for run in loaded.entries.runs() {
        found.insert((&run[0].0.stage, &run[0].0.metric), run.len());
    }
    for stage in names {
        let file = folder.join(format!("{stage}.json"));
        let bad =
            |what: String| Error::Manifest { path: file.display().to_string(), what, stage: stage.clone() };
        let text = run::read_regular(&file).map_err(|error| bad(format!("it cannot be read: {error}")))?;
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
            stage: Name::from("evidence"),
            metric: Name::from("claim"),
            params: Arc::new(params),
            subject: Arc::new(Subject::default()),
        };
        let entry = Entry {
            value: one.flaw.is_none().then_some(if one.met { 1.0 } else { 0.0 }),
            unit: Name::from(""),
            state: if one.flaw.is_none() { State::Measured } else { State::Unknown },
            provenance: Provenance::Declared,
            evidence: Some((index, Some(Name::from(one.pointer().as_str())))),
            detail: one.flaw.as_ref().map(|flaw| Name::from(format!("{}: {flaw}", one.name()).as_str())),
            flaw: None,
            line: 0,
        };
        // A record of a stage with the same key counts for nothing and gives way.
        loaded.entries.replace(key, entry);
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
    let mut of: BTreeMap<&str, Vec<&Ceiling>> = BTreeMap::new();
    for ceiling in &methodology.ceilings {
        of.entry(&ceiling.metric).or_default().push(ceiling);
    }
    for (key, entry) in loaded.entries.iter_mut() {
        let (Some(value), Some(ceilings)) = (entry.believed(), of.get(&*key.metric)) else { continue };
        let row = |model: &String| {
            ceilings.iter().copied().find(|ceiling| {
                ceiling.gpus.contains(model)
                    && ceiling.params.iter().all(|(param, value)| key.params.get(param) == Some(value))
            })
        };
        let rows: Option<Vec<&Ceiling>> = models.iter().map(row).collect();
        let highest = rows.unwrap_or_default().into_iter().max_by(|a, b| a.ceiling.total_cmp(&b.ceiling));
        if let Some(ceiling) = highest
            && value > ceiling.ceiling
        {
            entry.flaw = Some(
                format!(
                    "{} {} is impossible, the ceiling is {} ({})",
                    number(value),
                    ceiling.unit,
                    number(ceiling.ceiling),
                    ceiling.basis
                )
                .into_boxed_str(),
            );
        }
    }
}

fn add(sum: &mut [u8; 32], term: &[u8; 32]) {
    let mut carry = 0_u16;
    for (a, b) in sum.iter_mut().zip(term).rev() {
        let total = u16::from(*a) + u16::from(*b) + carry;
        *a = (total & 0xff) as u8;
        carry = total >> 8;
    }
}

/// Why a value cannot be believed: an unknown metric, another unit, out of the possible range, or merely declared.
fn disbelief(record: &Line<'_>, methodology: &Methodology) -> Option<String> {
    let value = record.value?;
    if let Some(unknown) = unknown_stage(&record.stage) {
        return Some(unknown);
    }
    let Some(metric) = methodology.metrics.get(&*record.metric) else {
        let nearest = methodology
            .metrics
            .keys()
            .map(|name| (strsim::jaro_winkler(name, &record.metric), name))
            .max_by(|a, b| a.0.total_cmp(&b.0))
            .filter(|(likeness, _)| *likeness > 0.85);
        return Some(match nearest {
            Some((_, name)) => {
                format!("metric {} is not in metrics.tsv (did you mean {name}?)", &*record.metric)
            }
            None => format!("metric {} is not in metrics.tsv", &*record.metric),
        });
    };
    // What another stage is said to have given, no reader of that stage's raw output would ever be asked for.
    if !record.stage.starts_with("import-") && !metric.is_of(&record.stage) {
        return Some(format!("stage {} gives no {}: it is of {}", &*record.stage, metric.name, metric.stage));
    }
    if *record.unit != *metric.unit {
        return Some(format!("unit is {:?} instead of {:?}", &*record.unit, metric.unit));
    }
    if value < metric.min || value > metric.max {
        let unit = if metric.unit.is_empty() { String::new() } else { format!(" {}", metric.unit) };
        return Some(format!(
            "{}{unit} is impossible, {} lies between {} and {}",
            number(value),
            metric.name,
            number(metric.min),
            number(metric.max)
        ));
    }
    if *record.metric == *"claim" {
        return Some("a statement counts only from evidence.toml (clustermax evidence new)".to_owned());
    }
    if record.provenance == Provenance::Declared {
        return Some("it is only declared, although a program can measure it".to_owned());
    }
    None
}

/// A stage that no part of this release writes.
fn unknown_stage(stage: &str) -> Option<String> {
    if STAGES.contains(&stage) || OTHER_STAGES.contains(&stage) || stage.starts_with("import-") {
        return None;
    }
    let stage: &str = &stage.chars().take(64).collect::<String>();
    let near = STAGES.iter().min_by_key(|name| strsim::levenshtein(name, stage)).copied().unwrap_or_default();
    Some(format!("no stage is called {stage:?} (did you mean {near:?}?)"))
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
