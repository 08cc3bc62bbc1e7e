//! Output of other suites and of the cluster's own monitoring, as records of a run.
//!
//! Each format has a reader with the versions that it knows. A file of another version is read by the same fields, and
//! that is said; what a reader does not turn into records is named, never dropped in silence.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::Failure;
use crate::collect::{Marker, STAGE_SCHEMA, StageState};
use crate::read::{self, Found, Hints};
use crate::record::{self, Evidence, Record, State, Subject};
use crate::run::{self, Folder};

mod cmax;
mod metrics;
mod nhc;
mod sacct;
#[cfg(test)]
mod tests;

/// The largest file that is read: what a tool writes about a cluster of thousands of nodes.
const LARGEST: u64 = 256 << 20;

/// `clustermax import`
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Files of one format: audit.values.json of cmax, `dcgmi diag -j`, logs of LBNL NHC, a node_exporter or
    /// dcgm-exporter page, a Prometheus query's JSON, `sacct --parsable2` with its head
    #[arg(required = true)]
    pub files: Vec<PathBuf>,
    /// Results folder that gets the records and a copy of the files; without it the records are printed
    #[arg(long, value_name = "DIR")]
    pub results: Option<PathBuf>,
    /// Format, when it is not to be told from the content
    #[arg(long, value_enum)]
    pub kind: Option<Kind>,
    /// Slurm's name of the node that a file is about, when the file does not say it
    #[arg(long)]
    pub node: Option<String>,
    /// Print records, one JSON object a line
    #[arg(long)]
    pub json: bool,
}

/// A format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// audit.values.json of cmax
    Cmax,
    /// dcgmi diag -j of DCGM 3 and 4
    Dcgmi,
    /// Log of LBNL's Node Health Check
    Nhc,
    /// A page of metrics, or a Prometheus query's JSON
    Metrics,
    /// sacct --parsable or --parsable2
    Sacct,
}

impl Kind {
    fn word(self) -> &'static str {
        match self {
            Self::Cmax => "cmax",
            Self::Dcgmi => "dcgmi",
            Self::Nhc => "nhc",
            Self::Metrics => "metrics",
            Self::Sacct => "sacct",
        }
    }
}

/// What a file holds.
#[derive(Debug, Clone, PartialEq, Default)]
struct Imported {
    /// The program that wrote it, with its version when the file says it.
    tool: String,
    /// Values.
    found: Vec<Found>,
    /// On versions, and on what was not turned.
    notes: Vec<String>,
}

/// Reads the files and puts them into a results folder, or prints them.
///
/// # Errors
/// A file that cannot be read or that breaks its schema: one sentence with the file and the mend.
pub fn run(args: &Args) -> Result<u8, Failure> {
    let folder = args.results.as_deref().map(Folder::open).transpose()?;
    let nodes: &[String] = folder.as_ref().map_or(&[], |folder| &folder.run.nodes);
    let node = args.node.as_deref();
    if let Some(node) = node.filter(|node| !nodes.is_empty() && !nodes.iter().any(|own| own == node)) {
        return Err(Failure::input(format!(
            "--node {node} is no node of the run, which has {}; give one of them",
            nodes.join(", ")
        )));
    }
    let mut kind = args.kind;
    let mut all = Vec::new();
    let mut names = BTreeSet::new();
    for path in &args.files {
        let fail = |why: String| Failure::input(format!("{}: {why}", path.display()));
        let bytes = load(path).map_err(fail)?;
        let text = std::str::from_utf8(&bytes).map_err(|error| {
            fail(format!("byte {} is not UTF-8; export it again as text", error.valid_up_to()))
        })?;
        let found = match args.kind {
            Some(kind) => kind,
            None => recognise(text).map_err(fail)?,
        };
        if let Some(first) = kind.filter(|first| *first != found) {
            return Err(fail(format!(
                "is {} output, the files before it are {}'s; import each format with a command of its own",
                found.word(),
                first.word()
            )));
        }
        kind = Some(found);
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        if !names.insert(name.clone()) {
            return Err(fail(format!("two files are called {name}; rename one, the folder keeps both")));
        }
        let mut imported = read_one(found, text, node).map_err(fail)?;
        if found == Kind::Dcgmi {
            own_node(&mut imported, node, nodes).map_err(fail)?;
        }
        all.push((name, bytes, imported));
    }
    let Some(kind) = kind else { return Err(Failure::input("give at least one file")) };
    let stage = format!("import-{}", kind.word());
    let records = records(&stage, folder.as_ref(), &all);
    let mut out = String::new();
    if let Some(folder) = &folder {
        let files: Vec<(&str, &[u8])> =
            all.iter().map(|(name, bytes, _)| (name.as_str(), bytes.as_slice())).collect();
        keep(folder, &stage, &files, &records)?;
    }
    for (name, _, imported) in &all {
        if args.json {
            continue;
        }
        let _ = writeln!(out, "{name}: {} ({}), {} values", kind.word(), imported.tool, imported.found.len());
        for note in &imported.notes {
            let _ = writeln!(out, "  note: {note}");
        }
    }
    if args.json || folder.is_none() {
        for record in &records {
            if args.json {
                let line = serde_json::to_string(record).map_err(Failure::input)?;
                let _ = writeln!(out, "{line}");
            } else {
                let _ = writeln!(out, "  {}", shown(record));
            }
        }
    }
    if let (Some(folder), false) = (&folder, args.json) {
        let _ = writeln!(out, "{} records of stage {stage} are in {}", records.len(), folder.path.display());
    }
    crate::report::print(&out)?;
    Ok(0)
}

fn shown(record: &Record) -> String {
    let mut text = record.metric.clone();
    if !record.subject.is_empty() {
        let _ = write!(text, " {}", record.subject);
    }
    for (key, value) in &record.params {
        let _ = write!(text, " {key}={value}");
    }
    match (record.value, &record.detail) {
        (Some(value), None) => format!("{text}: {} {}", crate::load::number(value), record.unit),
        (Some(value), Some(detail)) => {
            format!("{text}: {} {} ({detail})", crate::load::number(value), record.unit)
        }
        (None, detail) => format!("{text}: none, {}", detail.as_deref().unwrap_or("no reason")),
    }
}

fn load(path: &Path) -> Result<Vec<u8>, String> {
    let meta = std::fs::metadata(path)
        .map_err(|error| format!("cannot be read: {error}; check the path and its permissions"))?;
    if !meta.is_file() {
        return Err("is no regular file; give the file itself".to_owned());
    }
    if meta.len() > LARGEST {
        return Err(format!("has {} bytes, more than {LARGEST}; export a shorter time", meta.len()));
    }
    std::fs::read(path).map_err(|error| format!("cannot be read: {error}; check its permissions"))
}

fn recognise(text: &str) -> Result<Kind, String> {
    let text = text.trim_start_matches('\u{feff}').trim_start();
    if text.is_empty() {
        return Err("is empty; run the tool again".to_owned());
    }
    let has = |word: &str| text.contains(word);
    if has("\"audit_data\"") {
        return Ok(Kind::Cmax);
    }
    if has("\"DCGM Diagnostic\"") || has("\"DCGM GPU Diagnostic\"") {
        return Ok(Kind::Dcgmi);
    }
    if text.starts_with('{') && has("\"resultType\"") {
        return Ok(Kind::Metrics);
    }
    if text
        .lines()
        .next()
        .is_some_and(|head| head.split('|').any(|name| name == "JobID" || name == "JobIDRaw"))
    {
        return Ok(Kind::Sacct);
    }
    if has("Health check failed") || has("Node Health Check") {
        return Ok(Kind::Nhc);
    }
    if text.lines().any(|line| line.starts_with("# HELP ") || line.starts_with("# TYPE ")) {
        return Ok(Kind::Metrics);
    }
    Err("is in no format that is imported (audit.values.json of cmax, dcgmi diag -j, an NHC log, metrics, sacct --parsable2); \
         say which with --kind, or use `clustermax read` for benchmarks"
        .to_owned())
}

fn read_one(kind: Kind, text: &str, node: Option<&str>) -> Result<Imported, String> {
    let imported = match kind {
        Kind::Cmax => cmax::read(text, node),
        Kind::Nhc => nhc::read(text, node),
        Kind::Metrics => metrics::read(text, node),
        Kind::Sacct => sacct::read(text),
        Kind::Dcgmi => dcgmi(text),
    }?;
    // All that write lines end each; what a full disk or a broken copy left lacks what comes after it, too.
    let of_lines = match kind {
        Kind::Nhc | Kind::Sacct => true,
        Kind::Metrics => !text.trim_start().starts_with(['{', '[']),
        Kind::Cmax | Kind::Dcgmi => false,
    };
    if of_lines && !text.ends_with('\n') {
        return Err("ends inside a line, so it was cut short; export it again, whole".to_owned());
    }
    Ok(imported)
}

/// JSON, or where it breaks.
fn json(text: &str) -> Result<Value, String> {
    serde_json::from_str(text.trim_start_matches('\u{feff}'))
        .map_err(|error| format!("is no complete JSON: {error}; export it again"))
}

fn dcgmi(text: &str) -> Result<Imported, String> {
    // The program prints lines before and after its document; the reader of `clustermax read` knows them.
    let reading = read::read(text, &Hints::default())?;
    if reading.format != "dcgmi diag JSON" {
        return Err(format!("is {}, not dcgmi diag -j; leave --kind out", reading.format));
    }
    // `clustermax read` shows what there is of a document that was cut short; an import is of whole files.
    if read::json::read(text).is_none_or(|document| document.unclosed) {
        let document = text.find('{').map_or("", |at| &text[at..]);
        let broken = json(document).err();
        return Err(broken.unwrap_or_else(|| "is no complete JSON; export it again".to_owned()));
    }
    let mut notes = Vec::new();
    let version = reading.tool.trim_start_matches("dcgmi diag ");
    if !(version.starts_with("3.") || version.starts_with("4.")) {
        notes.push(format!(
            "DCGM {version} is not known to this release (3.x and 4.x are): read by the fields of 4.x"
        ));
    }
    if reading.found.iter().all(|one| one.value.is_none()) {
        notes.push("no test has a result".to_owned());
    }
    Ok(Imported { tool: reading.tool, found: reading.found, notes })
}

/// DCGM names GPUs, not its host.
fn own_node(imported: &mut Imported, node: Option<&str>, nodes: &[String]) -> Result<(), String> {
    let node = match (node, nodes) {
        (Some(node), _) => node.to_owned(),
        (None, [only]) => only.clone(),
        (None, []) => return Ok(()),
        (None, _) => return Err("does not say which node it is of; give --node".to_owned()),
    };
    for one in &mut imported.found {
        one.subject.node = Some(node.clone());
    }
    Ok(())
}

fn records(stage: &str, folder: Option<&Folder>, all: &[(String, Vec<u8>, Imported)]) -> Vec<Record> {
    let mut seen = BTreeSet::new();
    let mut records = Vec::new();
    for (name, bytes, imported) in all {
        let sha256: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        let file = if folder.is_some() { format!("raw/{stage}/{name}") } else { name.clone() };
        for found in &imported.found {
            let params: Vec<String> =
                found.params.iter().map(|(key, value)| format!("{key}={value}")).collect();
            if !seen.insert((found.metric, params, found.subject.clone())) {
                continue;
            }
            let evidence =
                Evidence { file: file.clone(), sha256: sha256.clone(), pointer: found.pointer.clone() };
            let run = folder.map_or(("import", "import"), |folder| (&folder.run.run, &folder.run.cluster));
            records.push(found.record(run, stage, &imported.tool, evidence));
        }
    }
    records
}

/// Reads the files of an import anew and writes nothing: every record that one of them gives, also those that another
/// file had given before. `node` is what `--node` was.
///
/// # Errors
/// A stage that is no import of this release, a file that is not read any more.
pub(crate) fn again(folder: &Folder, stage: &str, node: Option<&str>) -> Result<Vec<Record>, String> {
    let word = stage.strip_prefix("import-").unwrap_or_default();
    let kind = <Kind as clap::ValueEnum>::value_variants()
        .iter()
        .find(|kind| kind.word() == word)
        .ok_or_else(|| format!("stage {stage:?} is no import of this release"))?;
    let raw = folder.raw(stage);
    let cannot = |error: std::io::Error| format!("cannot read {}: {error}", raw.display());
    let mut found = Vec::new();
    for entry in std::fs::read_dir(&raw).map_err(cannot)? {
        let entry = entry.map_err(cannot)?;
        // Symbolic links are not followed: evidence lies in the folder.
        if !entry.file_type().map_err(cannot)?.is_file() {
            continue;
        }
        let name = entry.file_name().to_string_lossy().into_owned();
        let fail = |why: String| format!("raw/{stage}/{name} {why}");
        let bytes = load(&entry.path()).map_err(fail)?;
        let text = std::str::from_utf8(&bytes).map_err(|_| fail("is not UTF-8".to_owned()))?;
        let mut imported = read_one(*kind, text, node).map_err(fail)?;
        if *kind == Kind::Dcgmi {
            own_node(&mut imported, node, &folder.run.nodes).map_err(fail)?;
        }
        found.extend(records(stage, Some(folder), &[(name, bytes, imported)]));
    }
    Ok(found)
}

/// Copies the files below `raw/`, puts the records in the place of those that the stage had, writes the manifest.
pub(crate) fn keep(
    folder: &Folder,
    stage: &str,
    files: &[(&str, &[u8])],
    records: &[Record],
) -> Result<(), Failure> {
    let cannot = |path: &Path, error: std::io::Error| {
        Failure::input(format!("cannot write {}: {error}; make the results folder writable", path.display()))
    };
    // Before the first file is written: records that cannot be added to must not leave the old ones beside new raw files.
    let lines = record::replaced(&folder.records(), stage, records)?;
    let raw = folder.raw(stage);
    std::fs::create_dir_all(&raw).map_err(|error| cannot(&raw, error))?;
    for (name, bytes) in files {
        let path = raw.join(name);
        run::write_atomic(&path, bytes).map_err(|error| cannot(&path, error))?;
    }
    record::write(&folder.records(), &lines)?;
    let mut metrics: BTreeMap<String, usize> = BTreeMap::new();
    for record in records {
        *metrics.entry(record.metric.clone()).or_default() += 1;
    }
    let marker = Marker {
        schema: STAGE_SCHEMA.to_owned(),
        run: folder.run.run.clone(),
        stage: stage.to_owned(),
        state: StageState::Done,
        exit_code: None,
        started: None,
        seconds: None,
        job: None,
        reason: None,
        records: records.len(),
        metrics,
    };
    let file = folder.stage(stage);
    if let Some(parent) = file.parent() {
        std::fs::create_dir_all(parent).map_err(|error| cannot(parent, error))?;
    }
    let text = serde_json::to_string_pretty(&marker).map_err(Failure::input)? + "\n";
    run::write_atomic(&file, text.as_bytes()).map_err(|error| cannot(&file, error))
}

/// A value of a node.
fn on(mut found: Found, node: &str) -> Found {
    found.subject = Subject::node(node);
    found
}

/// A flag.
fn flag(metric: &'static str, yes: bool) -> Found {
    Found::value("import", metric, "", f64::from(u8::from(yes)))
}

/// No value, and why.
fn unknown(metric: &'static str, unit: &'static str, why: impl Into<String>) -> Found {
    Found::none("import", metric, unit, State::Unknown, why)
}
