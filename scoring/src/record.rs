//! Records: one measurement a line of `records.jsonl`, the contract of `docs/interfaces.md`.
//!
//! The metric names, units and parameters in use are listed in `docs/metrics.md`.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display};
use std::fs::{self, File, OpenOptions};
use std::hash::{Hash, Hasher};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

pub(crate) mod line;
#[cfg(test)]
mod tests;

use line::Line;

/// The schema that this release writes and reads.
pub const SCHEMA: &str = "clustermax-record/1";

/// One measurement, or the statement that there is none and why.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// Always [`SCHEMA`].
    pub schema: String,
    /// The run that this record belongs to (`run.json`).
    pub run: String,
    /// Slurm's ClusterName.
    pub cluster: String,
    /// The stage that produced it: `inventory`, `collectives`, `gemm` ...
    pub stage: String,
    /// Name from `docs/metrics.md`.
    pub metric: String,
    /// Finite; present exactly when `state` is `measured`. Flags are 0 and 1; texts go into `params` of an `*_info`
    /// metric whose value is 1.
    pub value: Option<f64>,
    /// Unit from `docs/metrics.md`; empty for a pure number.
    pub unit: String,
    /// Whether there is a value.
    pub state: State,
    /// What tells this value from others of the same metric (size, ranks, dtype ...).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub params: BTreeMap<String, Scalar>,
    /// What was measured; empty for the cluster as a whole.
    #[serde(default, skip_serializing_if = "Subject::is_empty")]
    pub subject: Subject,
    /// How the value is known.
    pub provenance: Provenance,
    /// Where the value can be checked; needed when `state` is `measured`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evidence: Option<Evidence>,
    /// Why there is no value, or a remark on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// The program that measured, with its version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// Its command line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// Slurm job id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
    /// UTC, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<String>,
    /// How long the measurement took, seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
    /// How many records of this metric the run has, this one among them, whichever stage they are from: set when the file
    /// is written. Fewer later means that some were lost, and a criterion that needs them all is then not passed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of: Option<u32>,
}

/// Whether a record has a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// `value` holds it.
    Measured,
    /// Somebody looked and could not tell.
    Unknown,
    /// Nobody could look: a tool, a function or an access is missing.
    Unavailable,
    /// The question makes no sense on this cluster.
    NotApplicable,
}

/// How a value is known. Declared never outranks measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Provenance {
    /// Seen by us on this cluster.
    Measured,
    /// Somebody said so.
    Declared,
    /// Follows from other values.
    Inferred,
    /// Produced by a simulation or by injected faults.
    Synthetic,
}

/// What was measured: every part is optional.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Subject {
    /// NodeName.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// GPU index on the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<u32>,
    /// Network port, `mlx5_0/1`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<String>,
}

impl Subject {
    /// A node as a whole.
    pub fn node(name: impl Into<String>) -> Self {
        Self { node: Some(name.into()), ..Self::default() }
    }

    /// True for the cluster as a whole.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.node.as_deref().unwrap_or("cluster"))?;
        if let Some(gpu) = self.gpu {
            write!(f, " g{gpu}")?;
        }
        if let Some(port) = &self.port {
            write!(f, " {port}")?;
        }
        Ok(())
    }
}

/// Where a value can be checked.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Evidence {
    /// Path relative to the results folder, under `raw/`.
    pub file: String,
    /// SHA-256 of that file, 64 hex digits.
    pub sha256: String,
    /// JSON pointer (`/rows/3`) or line (`line:12`) in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pointer: Option<String>,
}

/// One value of `params`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Scalar {
    /// `true`, `false`.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// Any other finite number.
    Float(f64),
    /// Text.
    Text(String),
}

impl Scalar {
    /// The number, when it is one.
    pub fn as_f64(&self) -> Option<f64> {
        match self {
            Self::Int(value) => Some(*value as f64),
            Self::Float(value) => Some(*value),
            Self::Bool(_) | Self::Text(_) => None,
        }
    }
}

impl Scalar {
    /// Whole numbers as [`Scalar::Int`], so that `8` and `8.0` name the same record.
    #[must_use]
    pub fn canonical(self) -> Self {
        match self {
            Self::Float(value) if value.fract() == 0.0 && value.abs() < 9e15 => Self::Int(value as i64),
            other => other,
        }
    }

    fn rank(&self) -> u8 {
        match self {
            Self::Bool(_) => 0,
            Self::Int(_) => 1,
            Self::Float(_) => 2,
            Self::Text(_) => 3,
        }
    }
}

impl PartialEq for Scalar {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Scalar {}

impl Hash for Scalar {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.rank().hash(state);
        match self {
            Self::Bool(value) => value.hash(state),
            Self::Int(value) => value.hash(state),
            Self::Float(value) => value.to_bits().hash(state),
            Self::Text(value) => value.hash(state),
        }
    }
}

impl PartialOrd for Scalar {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Scalar {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Bool(a), Self::Bool(b)) => a.cmp(b),
            (Self::Int(a), Self::Int(b)) => a.cmp(b),
            (Self::Float(a), Self::Float(b)) => a.total_cmp(b),
            (Self::Text(a), Self::Text(b)) => a.cmp(b),
            _ => self.rank().cmp(&other.rank()),
        }
    }
}

impl Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bool(value) => write!(f, "{value}"),
            Self::Int(value) => write!(f, "{value}"),
            Self::Float(value) => write!(f, "{value}"),
            Self::Text(value) => f.write_str(value),
        }
    }
}

impl From<bool> for Scalar {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

impl From<i64> for Scalar {
    fn from(value: i64) -> Self {
        Self::Int(value)
    }
}

impl From<f64> for Scalar {
    fn from(value: f64) -> Self {
        Self::Float(value)
    }
}

impl From<&str> for Scalar {
    fn from(value: &str) -> Self {
        Self::Text(value.to_owned())
    }
}

impl From<String> for Scalar {
    fn from(value: String) -> Self {
        Self::Text(value)
    }
}

/// What is wrong with a `records.jsonl`; every sentence names the file and the mend.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file could not be read or written.
    #[error("cannot {action} {}: {source}; {mend}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
        /// What to do.
        mend: &'static str,
    },
    /// The last line has no end: a writer was stopped in the middle.
    #[error(
        "{}: line {line} is half-written (the file ends inside it); run the last stage again \
         (`clustermax collect` rewrites its records from the raw output, which is kept)", path.display()
    )]
    HalfWritten {
        /// The file.
        path: PathBuf,
        /// Line number from 1.
        line: u64,
    },
    /// A line that is no record.
    #[error("{}: line {line}: {what}; take it out and run `clustermax suite collect`, which reads every raw output again", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Line number from 1.
        line: u64,
        /// What is wrong with it.
        what: String,
    },
    /// A record that this release does not understand.
    #[error(
        "{}: line {line} has schema {found:?}, this release reads {SCHEMA:?}; \
         use the release that wrote the folder", path.display()
    )]
    Schema {
        /// The file.
        path: PathBuf,
        /// Line number from 1.
        line: u64,
        /// The line's own schema.
        found: String,
    },
    /// A record of another run.
    #[error(
        "{}: line {line} belongs to run {found:?} but run.json says {expected:?}; \
         records of two runs cannot be scored together, give each run its own folder", path.display()
    )]
    OtherRun {
        /// The file.
        path: PathBuf,
        /// Line number from 1.
        line: u64,
        /// The record's run.
        found: String,
        /// The folder's run.
        expected: String,
    },
}

/// A line longer than this is no record of ours.
const MAX_LINE: u64 = 1 << 20;

/// Reads records one at a time, with their line numbers; memory does not grow with the file.
pub struct Reader<R> {
    input: R,
    path: PathBuf,
    run: Option<String>,
    line: u64,
    buffer: Vec<u8>,
}

impl Reader<BufReader<File>> {
    /// Opens `path`; with `run`, a record of another run is an error.
    ///
    /// # Errors
    /// [`Error::Io`] when the file cannot be opened.
    pub fn open(path: &Path, run: Option<&str>) -> Result<Self, Error> {
        let file = crate::run::regular(path).and_then(|()| File::open(path)).map_err(|source| Error::Io {
            action: "read",
            path: path.to_owned(),
            source,
            mend: "a results folder has it after the first stage; check the path and its permissions",
        })?;
        Ok(Self::new(BufReader::with_capacity(1 << 16, file), path, run))
    }
}

impl<R: BufRead> Reader<R> {
    /// Reads from `input`; `path` is for messages.
    pub fn new(input: R, path: &Path, run: Option<&str>) -> Self {
        Self { input, path: path.to_owned(), run: run.map(str::to_owned), line: 0, buffer: Vec::new() }
    }

    /// Reads the next line that is not empty into the buffer; says whether it has an end, nothing at the file's end.
    fn next_line(&mut self) -> Result<Option<bool>, Error> {
        loop {
            self.buffer.clear();
            let length = (&mut self.input).take(MAX_LINE + 1).read_until(b'\n', &mut self.buffer).map_err(
                |source| Error::Io {
                    action: "read",
                    path: self.path.clone(),
                    source,
                    mend: "put the file itself there, or check the disk, and run again",
                },
            )?;
            if length == 0 {
                return Ok(None);
            }
            self.line += 1;
            let ended = self.buffer.last() == Some(&b'\n');
            if !ended && length as u64 > MAX_LINE {
                return Err(self.bad(format!("it is longer than {MAX_LINE} bytes")));
            }
            if ended && self.buffer.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            return Ok(Some(ended));
        }
    }

    fn next_record(&mut self) -> Result<Option<(u64, Record)>, Error> {
        let Some(ended) = self.next_line()? else { return Ok(None) };
        let record = match parse(&self.buffer) {
            Ok(record) => record,
            Err(_) if !ended => {
                return Err(Error::HalfWritten { path: self.path.clone(), line: self.line });
            }
            Err(Wrong::Schema(found)) => {
                return Err(Error::Schema { path: self.path.clone(), line: self.line, found });
            }
            Err(Wrong::Text(what)) => return Err(self.bad(what)),
        };
        self.own(&record.run)?;
        Ok(Some((self.line, record)))
    }

    fn own(&self, run: &str) -> Result<(), Error> {
        match &self.run {
            Some(own) if own != run => Err(Error::OtherRun {
                path: self.path.clone(),
                line: self.line,
                found: run.to_owned(),
                expected: own.clone(),
            }),
            _ => Ok(()),
        }
    }

    /// Hands every record to `take`, with its line number and its bytes (without the line's end). `take` says what is
    /// wrong with a record's params or subject.
    ///
    /// # Errors
    /// [`Error`] for the first bad line, or what `take` gives.
    pub(crate) fn each<E: From<Error>>(
        &mut self,
        mut take: impl FnMut(u64, &[u8], Line<'_>) -> Result<(), Taken<E>>,
    ) -> Result<(), E> {
        while let Some(ended) = self.next_line()? {
            let bytes = self.buffer.trim_ascii_end();
            let taken = match Line::parse(bytes) {
                Some(record) => {
                    self.own(&record.run)?;
                    take(self.line, bytes, record)
                }
                None => Err(Taken::NotARecord),
            };
            match taken {
                Ok(()) => {}
                Err(Taken::Other(error)) => return Err(error),
                Err(Taken::NotARecord) => return Err(self.fault(ended).into()),
            }
        }
        Ok(())
    }

    /// Why the line in the buffer is no record.
    fn fault(&self, ended: bool) -> Error {
        match parse(&self.buffer) {
            Err(Wrong::Schema(found)) if ended => {
                Error::Schema { path: self.path.clone(), line: self.line, found }
            }
            Err(Wrong::Text(what)) if ended => self.bad(what),
            Err(_) => Error::HalfWritten { path: self.path.clone(), line: self.line },
            // The two readers ask for the same.
            Ok(_) => self.bad("not a record".to_owned()),
        }
    }

    fn bad(&self, what: String) -> Error {
        Error::Line { path: self.path.clone(), line: self.line, what }
    }
}

impl<R: BufRead> Iterator for Reader<R> {
    /// Line number from 1, and the record.
    type Item = Result<(u64, Record), Error>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_record().transpose()
    }
}

/// Why a record was not taken.
pub(crate) enum Taken<E> {
    /// Its params or subject are of no use.
    NotARecord,
    /// Something else.
    Other(E),
}

enum Wrong {
    Schema(String),
    Text(String),
}

/// One line to a valid record. The typed parse comes first; only a line that fails is looked at again.
fn parse(line: &[u8]) -> Result<Record, Wrong> {
    match serde_json::from_slice::<Record>(line) {
        Ok(record) if record.schema != SCHEMA => Err(Wrong::Schema(record.schema)),
        Ok(record) => record.check().map(|()| record).map_err(Wrong::Text),
        Err(error) => {
            let schema = serde_json::from_slice::<serde_json::Value>(line)
                .ok()
                .and_then(|value| value.get("schema")?.as_str().map(str::to_owned));
            match schema {
                Some(schema) if schema != SCHEMA => Err(Wrong::Schema(schema)),
                _ => Err(Wrong::Text(explain(line, &error))),
            }
        }
    }
}

/// serde_json's own words count lines within the one line; NaN and Infinity get a plain one.
fn explain(line: &[u8], error: &serde_json::Error) -> String {
    let text = String::from_utf8_lossy(line);
    if text.starts_with('\u{feff}') {
        return "a byte order mark stands before it; save the file without one".to_owned();
    }
    for word in ["NaN", "Infinity", "nan", "inf"] {
        if text.contains(&format!(":{word}"))
            || text.contains(&format!(": {word}"))
            || text.contains(&format!(":-{word}"))
            || text.contains(&format!(": -{word}"))
        {
            return format!("a number is {word}, which is not finite");
        }
    }
    let message = error.to_string();
    let message = message.split(" at line ").next().unwrap_or(&message);
    if message == "number out of range" {
        return "a number is not finite (out of range)".to_owned();
    }
    // What is expected, in words instead of Rust's types.
    let message = message
        .replace("expected f64", "expected a number")
        .replace("expected u32", "expected a whole number")
        .replace(
            "data did not match any variant of untagged enum Scalar",
            "a param must be a text, a number, true or false",
        );
    format!("not a record: {message} (column {})", error.column())
}

impl Record {
    /// Checks what the types cannot say.
    ///
    /// # Errors
    /// A clause that says what is wrong.
    pub fn check(&self) -> Result<(), String> {
        check_value(
            self.state,
            self.value,
            [("run", &self.run), ("stage", &self.stage), ("metric", &self.metric)],
            self.seconds,
            self.evidence.is_some(),
        )?;
        for (key, value) in &self.params {
            if value.as_f64().is_some_and(|number| !number.is_finite()) {
                return Err(format!("params.{key} is not finite"));
            }
        }
        match &self.evidence {
            None => Ok(()),
            Some(evidence) => check_evidence(&evidence.file, &evidence.sha256),
        }
    }
}

fn check_value(
    state: State,
    value: Option<f64>,
    names: [(&str, &str); 3],
    seconds: Option<f64>,
    evidence: bool,
) -> Result<(), String> {
    match (state, value) {
        (State::Measured, None) => return Err("state is measured but value is null".to_owned()),
        (State::Measured, Some(value)) if !value.is_finite() => {
            return Err("value is not finite".to_owned());
        }
        (State::Measured, Some(_)) => {}
        (_, Some(_)) => return Err("value is given although state is not measured".to_owned()),
        (_, None) => {}
    }
    for (key, text) in names {
        if text.is_empty() {
            return Err(format!("{key} is empty"));
        }
    }
    if let Some(seconds) = seconds
        && !(seconds.is_finite() && seconds >= 0.0)
    {
        return Err(format!("seconds is {seconds}, it must be finite and not negative"));
    }
    if state == State::Measured && !evidence {
        return Err("a measured value needs evidence (file and sha256)".to_owned());
    }
    Ok(())
}

fn check_evidence(file: &str, sha256: &str) -> Result<(), String> {
    let plain = Path::new(file).components().all(|part| matches!(part, std::path::Component::Normal(_)));
    if file.is_empty() || !plain {
        return Err(format!("evidence.file {file:?} must be a relative path inside the results folder"));
    }
    if sha256.len() != 64 || !sha256.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err("evidence.sha256 must be 64 hex digits".to_owned());
    }
    Ok(())
}

fn encode(path: &Path, records: &[Record]) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    for (index, record) in records.iter().enumerate() {
        let refuse = |what: String| Error::Line {
            path: path.to_owned(),
            line: index as u64 + 1,
            what: format!("new record {:?} refused: {what}", record.metric),
        };
        record.check().map_err(refuse)?;
        serde_json::to_writer(&mut bytes, record).map_err(|error| refuse(error.to_string()))?;
        bytes.push(b'\n');
    }
    Ok(bytes)
}

/// Appends whole lines and syncs them to disk. If the disk fills up the file is cut back to what it was.
///
/// # Errors
/// [`Error::HalfWritten`] when the file already ends inside a line, [`Error::Line`] for an invalid record,
/// [`Error::Io`].
pub fn append(path: &Path, records: &[Record]) -> Result<(), Error> {
    let bytes = encode(path, records)?;
    let io = |action: &'static str, source: io::Error| Error::Io {
        action,
        path: path.to_owned(),
        source,
        mend: "free space or make the folder writable, then run the stage again",
    };
    let mut file = OpenOptions::new()
        .read(true)
        .append(true)
        .create(true)
        .open(path)
        .map_err(|source| io("open", source))?;
    let before = file.seek(SeekFrom::End(0)).map_err(|source| io("read", source))?;
    if before > 0 {
        let mut last = [0];
        file.seek(SeekFrom::End(-1))
            .and_then(|_| file.read_exact(&mut last))
            .map_err(|source| io("read", source))?;
        if last != *b"\n" {
            let lines =
                BufReader::new(File::open(path).map_err(|source| io("read", source))?).split(b'\n').count();
            return Err(Error::HalfWritten { path: path.to_owned(), line: lines as u64 });
        }
    }
    let written = file.write_all(&bytes).and_then(|()| file.sync_data());
    written.map_err(|source| {
        // Nothing half-written stays behind; if even this fails the reader names the line.
        let _ = file.set_len(before);
        io("append to", source)
    })
}

/// Puts `records` in the place of all records of `stage`: running a stage or its parser twice gives the same file.
/// A half-written last line is dropped, the other lines are kept byte for byte but for [`Record::of`] of a metric that
/// the stage has too. Atomic: temp file, fsync, rename.
///
/// # Errors
/// [`Error::Line`] for an invalid record (old or new), [`Error::Io`].
pub fn replace_stage(path: &Path, stage: &str, records: &[Record]) -> Result<(), Error> {
    write(path, &replaced(path, stage, records)?)
}

/// What [`replace_stage`] would write; nothing is written yet.
///
/// # Errors
/// Those of [`replace_stage`] but for writing.
pub(crate) fn replaced(path: &Path, stage: &str, records: &[Record]) -> Result<Vec<u8>, Error> {
    // A large run has a million lines: they stay bytes.
    let mut kept: Vec<(String, Option<u32>, &[u8])> = Vec::new();
    let mut counts: BTreeMap<String, u32> = BTreeMap::new();
    // Metrics whose number of records changes.
    let mut touched: BTreeSet<String> = records.iter().map(|record| record.metric.clone()).collect();
    let old = match fs::read(path) {
        Ok(old) => old,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(source) => {
            return Err(Error::Io {
                action: "read",
                path: path.to_owned(),
                source,
                mend: "check its permissions",
            });
        }
    };
    for (index, line) in old.split_inclusive(|byte| *byte == b'\n').enumerate() {
        if line.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        let ended = line.last() == Some(&b'\n');
        match parse(line) {
            Ok(record) if record.stage == stage => {
                touched.insert(record.metric);
            }
            Ok(record) => {
                *counts.entry(record.metric.clone()).or_default() += 1;
                kept.push((record.metric, record.of, line));
            }
            Err(_) if !ended => {}
            Err(Wrong::Schema(found)) => {
                return Err(Error::Schema { path: path.to_owned(), line: index as u64 + 1, found });
            }
            Err(Wrong::Text(what)) => {
                return Err(Error::Line { path: path.to_owned(), line: index as u64 + 1, what });
            }
        }
    }
    for record in records {
        *counts.entry(record.metric.clone()).or_default() += 1;
    }
    let of = |metric: &str| counts.get(metric).copied();
    let mut bytes = Vec::with_capacity(old.len());
    for (metric, told, line) in kept {
        let now = of(&metric);
        if touched.contains(&metric)
            && told != now
            && let Ok(record) = parse(line)
        {
            bytes.extend(encode(path, &[Record { of: now, ..record }])?);
        } else {
            bytes.extend(line);
            if line.last() != Some(&b'\n') {
                bytes.push(b'\n');
            }
        }
    }
    let records: Vec<Record> =
        records.iter().map(|record| Record { of: of(&record.metric), ..record.clone() }).collect();
    bytes.extend(encode(path, &records)?);
    Ok(bytes)
}

/// Writes a whole `records.jsonl`, all of it or nothing.
///
/// # Errors
/// [`Error::Io`]
pub(crate) fn write(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    crate::run::write_atomic(path, bytes).map_err(|source| Error::Io {
        action: "write",
        path: path.to_owned(),
        source,
        mend: "free space or make the folder writable, then run the stage again",
    })
}
