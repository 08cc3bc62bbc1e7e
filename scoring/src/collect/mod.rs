//! Raw stage output to records.
//!
//! `clustermax collect init DIR` makes a results folder, `clustermax collect STAGE DIR` reads `raw/STAGE/` and puts
//! its records into `records.jsonl` in the place of those the stage had: collecting twice gives the same file.
//! What a stage should have measured and did not is a record too, unknown or unavailable with the reason.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::record::{self, Evidence, Provenance, Record, Scalar, State, Subject};
use crate::run::{self, Folder, Hardware, Run};
use crate::{Failure, audit};

pub mod burnin;
mod checkpoint;
mod facts;
mod fio;
pub mod guards;
mod inference;
mod launches;
pub mod lifecycle;
pub mod loss;
mod memory;
pub mod nccl;
pub mod network;
mod pairs;
mod ranks;
mod s3;
mod samples;
mod scaling;
mod serve;
pub mod storage;
mod titan;
mod torch;
mod train;

/// Schema of `stages/STAGE.json`.
pub const STAGE_SCHEMA: &str = "clustermax-stage/1";
/// Stages of the suite, in the order it runs them.
pub const STAGES: [&str; 14] = [
    "lifecycle",
    "preflight",
    "inventory",
    "audit",
    "network",
    "collectives",
    "gemm",
    "train",
    "inference",
    "storage",
    "checkpoint",
    "s3",
    "burnin",
    "faults",
];

/// `clustermax collect`
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Stage whose raw output is read (lifecycle, preflight, inventory, audit, network, collectives, gemm, train, inference, storage,
    /// checkpoint, s3, burnin, faults), or `init` to make a results folder
    pub stage: String,
    /// Results folder
    pub dir: PathBuf,
    /// How the stage ended; written to stages/STAGE.json
    #[arg(long, value_enum)]
    pub state: Option<StageState>,
    /// Exit code of the stage
    #[arg(long)]
    pub exit_code: Option<i32>,
    /// Start of the stage, UTC, RFC 3339
    #[arg(long)]
    pub started: Option<String>,
    /// Length of the stage in seconds
    #[arg(long)]
    pub seconds: Option<f64>,
    /// Why the stage did not end well
    #[arg(long)]
    pub reason: Option<String>,
    /// Slurm job id
    #[arg(long)]
    pub job: Option<String>,
    /// init: the run's id
    #[arg(long)]
    pub run: Option<String>,
    /// init: the suite's profile
    #[arg(long, default_value = "demo")]
    pub profile: String,
    /// init: Slurm's ClusterName
    #[arg(long)]
    pub cluster: Option<String>,
    /// init: NodeNames of the allocation, comma-separated
    #[arg(long, value_delimiter = ',')]
    pub nodes: Vec<String>,
    /// init: what the payloads compute on
    #[arg(long, value_enum, default_value = "cpu")]
    pub hardware: HardwareArg,
    /// init: every size and time of the profile is divided by this
    #[arg(long, value_name = "N")]
    pub shrink: Option<u32>,
    /// init: the folder must hold a run of this cluster and these nodes; prints its finished stages
    #[arg(long)]
    pub resume: bool,
    /// init: the node programs' configuration, to tell simulated GPUs
    #[arg(long)]
    pub config: Option<PathBuf>,
}

impl Args {
    /// Of a stage that is read as it lies there.
    pub fn of(stage: &str, dir: &Path) -> Self {
        Self {
            stage: stage.to_owned(),
            dir: dir.to_owned(),
            state: None,
            exit_code: None,
            started: None,
            seconds: None,
            reason: None,
            job: None,
            run: None,
            profile: "demo".to_owned(),
            cluster: None,
            nodes: Vec::new(),
            hardware: HardwareArg::Cpu,
            resume: false,
            config: None,
            shrink: None,
        }
    }
}

/// [`Hardware`] as a command-line value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum HardwareArg {
    /// Processors only
    Cpu,
    /// GPUs
    Gpu,
}

/// How a stage ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum StageState {
    /// Ran to its end
    Done,
    /// Its program failed
    Failed,
    /// Stopped at its deadline
    Deadline,
    /// Something it needs is not here
    Unavailable,
}

/// `stages/STAGE.json`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Marker {
    /// Always [`STAGE_SCHEMA`].
    pub schema: String,
    /// The run it belongs to.
    pub run: String,
    /// The stage.
    pub stage: String,
    /// How it ended.
    pub state: StageState,
    /// Exit code of its script.
    pub exit_code: Option<i32>,
    /// UTC, RFC 3339.
    pub started: Option<String>,
    /// Length in seconds.
    pub seconds: Option<f64>,
    /// Slurm job that ran it.
    pub job: Option<String>,
    /// Why it did not end well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Records it gave.
    pub records: usize,
    /// How many of each metric: one that is absent from records.jsonl later is an error of the scorer.
    #[serde(default)]
    pub metrics: BTreeMap<String, usize>,
}

impl Marker {
    /// What a record that is missing says.
    fn why(&self) -> String {
        match (self.state, &self.reason) {
            (_, Some(reason)) => reason.clone(),
            (StageState::Done, None) => "the stage ended but did not write it".to_owned(),
            (StageState::Failed, None) => match self.exit_code {
                Some(code) => format!("the stage failed with exit code {code}"),
                None => "the stage failed".to_owned(),
            },
            (StageState::Deadline, None) => "the stage was stopped at its deadline".to_owned(),
            (StageState::Unavailable, None) => "something that the stage needs is not here".to_owned(),
        }
    }
}

/// Makes a results folder, or reads one stage's raw output.
///
/// # Errors
/// A folder of another run, bad names, files that cannot be read or written.
pub fn run(args: &Args) -> Result<u8, Failure> {
    if args.stage == "init" {
        let begun = init(args)?;
        println!("run {}", begun.run);
        for stage in begun.done {
            println!("done {stage}");
        }
    } else {
        println!("{}", stage(args)?);
    }
    Ok(0)
}

/// A results folder that is ready to take measurements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Begun {
    /// The run's id.
    pub run: String,
    /// Stages that an earlier job ended well, in the order of [`STAGES`].
    pub done: Vec<String>,
}

/// Makes a results folder; with `resume` takes one that holds a run of this cluster, these nodes and this profile.
///
/// # Errors
/// A folder of another run, names that are missing, files that cannot be read or written.
pub fn init(args: &Args) -> Result<Begun, Failure> {
    let need = |value: &Option<String>, flag: &str| {
        value
            .clone()
            .filter(|text| !text.is_empty())
            .ok_or_else(|| Failure::input(format!("collect init needs {flag}")))
    };
    let cluster = need(&args.cluster, "--cluster")?;
    if args.nodes.is_empty() {
        return Err(Failure::input("collect init needs --nodes, the allocation's NodeNames"));
    }
    let dir = &args.dir;
    if args.resume {
        let folder = Folder::open(dir)?;
        let found = &folder.run;
        if found.cluster != cluster {
            return Err(Failure::input(format!(
                "{} holds run {} of cluster {:?}, this job runs on {cluster:?}; \
                 resume it there, or start a new run without --resume",
                dir.display(),
                found.run,
                found.cluster
            )));
        }
        if let Some(run) = args.run.as_ref().filter(|run| **run != found.run) {
            return Err(Failure::input(format!(
                "{} holds run {}, not {run}; give the folder of that run",
                dir.display(),
                found.run
            )));
        }
        if found.profile != args.profile {
            return Err(Failure::input(format!(
                "{} holds a run of profile {:?}; resume it with --profile {}",
                dir.display(),
                found.profile,
                found.profile
            )));
        }
        // Half of a run at another size is no measurement of either.
        if found.shrink != args.shrink.filter(|by| *by > 1) {
            let (was, with) = match found.shrink {
                Some(by) => (format!("with --shrink {by}"), format!("with --shrink {by}")),
                None => ("without --shrink".to_owned(), "without it".to_owned()),
            };
            return Err(Failure::input(format!("{} was measured {was}; resume it {with}", dir.display())));
        }
        let (mut had, mut have) = (found.nodes.clone(), args.nodes.clone());
        had.sort();
        have.sort();
        if had != have {
            return Err(Failure::input(format!(
                "{} was measured on {}, this job has {}; submit it with -w {}",
                dir.display(),
                had.join(","),
                have.join(","),
                had.join(",")
            )));
        }
        let mut done = Vec::new();
        for stage in STAGES {
            if marker(&folder, stage)?.is_some_and(|marker| marker.state == StageState::Done) {
                done.push(stage.to_owned());
            }
        }
        return Ok(Begun { run: found.run.clone(), done });
    }
    let run_id = need(&args.run, "--run")?;
    let file = dir.join("run.json");
    let taken = || {
        let held =
            Folder::open(dir).map_or_else(|_| "a run".to_owned(), |folder| format!("run {}", folder.run.run));
        Failure::input(format!(
            "{} already holds {held}; continue it with --resume {}, or give --results another folder",
            dir.display(),
            dir.display()
        ))
    };
    if file.exists() {
        return Err(taken());
    }
    let io = |path: &Path, error: io::Error| {
        Failure::input(format!(
            "cannot write {}: {error}; give --results a folder you may write to",
            path.display()
        ))
    };
    for folder in [dir.clone(), dir.join("raw"), dir.join("stages")] {
        std::fs::create_dir_all(&folder).map_err(|error| io(&folder, error))?;
    }
    let simulated = audit::simulated(args.config.as_deref());
    let made = Run {
        schema: run::SCHEMA.to_owned(),
        run: run_id.clone(),
        cluster,
        profile: args.profile.clone(),
        job: args.job.clone(),
        nodes: args.nodes.clone(),
        started: args.started.clone().unwrap_or_else(audit::now),
        simulated,
        hardware: match args.hardware {
            HardwareArg::Cpu => Hardware::Cpu,
            HardwareArg::Gpu => Hardware::Gpu,
        },
        shrink: args.shrink.filter(|by| *by > 1),
    };
    // Of two jobs that begin in one folder at once, one is first.
    std::fs::File::create_new(&file).map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => taken(),
        _ => io(&file, error),
    })?;
    write(&file, &made)?;
    Ok(Begun { run: run_id, done: Vec::new() })
}

/// Reads one stage's raw output into records and its marker; how many of each state, as a sentence.
///
/// # Errors
/// A stage that does not exist, a folder of another run, files that cannot be read or written.
pub fn stage(args: &Args) -> Result<String, Failure> {
    let stage = args.stage.as_str();
    if !STAGES.contains(&stage) {
        let near =
            STAGES.iter().min_by_key(|name| strsim::levenshtein(name, stage)).copied().unwrap_or_default();
        return Err(Failure::input(format!(
            "{stage:?} is no stage (did you mean {near:?}?); stages are {}",
            STAGES.join(", ")
        )));
    }
    let folder = Folder::open(&args.dir)?;
    let old = marker(&folder, stage)?;
    let marker = Marker {
        schema: STAGE_SCHEMA.to_owned(),
        run: folder.run.run.clone(),
        stage: stage.to_owned(),
        state: args.state.or(old.as_ref().map(|old| old.state)).unwrap_or(StageState::Done),
        exit_code: args.exit_code.or(old.as_ref().and_then(|old| old.exit_code)),
        started: args.started.clone().or(old.as_ref().and_then(|old| old.started.clone())),
        seconds: args.seconds.or(old.as_ref().and_then(|old| old.seconds)),
        job: args.job.clone().or(old.as_ref().and_then(|old| old.job.clone())),
        // A new state comes with its own reason or none.
        reason: if args.state.is_some() { args.reason.clone() } else { old.and_then(|old| old.reason) },
        records: 0,
        metrics: BTreeMap::new(),
    };
    let raw = Raw::open(folder, marker, Scrubbed::Kept)?;
    let records = records_of(&raw)?;
    record::replace_stage(&raw.folder.records(), stage, &records)?;
    let mut metrics: BTreeMap<String, usize> = BTreeMap::new();
    for record in &records {
        *metrics.entry(record.metric.clone()).or_default() += 1;
    }
    let marker = Marker { records: records.len(), metrics, ..raw.marker };
    let file = raw.folder.stage(stage);
    if let Some(parent) = file.parent() {
        std::fs::create_dir_all(parent).map_err(|error| {
            Failure::input(format!("cannot make {}: {error}; make the folder writable", parent.display()))
        })?;
    }
    write(&file, &marker)?;
    let count = |state: State| records.iter().filter(|record| record.state == state).count();
    Ok(format!(
        "{stage}: {} measured, {} unknown, {} unavailable, {} not applicable",
        count(State::Measured),
        count(State::Unknown),
        count(State::Unavailable),
        count(State::NotApplicable)
    ))
}

/// The records that a stage's raw output gives.
fn records_of(raw: &Raw) -> Result<Vec<Record>, Failure> {
    let records = match raw.marker.stage.as_str() {
        "lifecycle" => lifecycle::read(raw),
        "preflight" => guards::preflight(raw),
        "inventory" => facts::inventory(raw),
        "audit" => facts::audit(raw),
        "collectives" => [torch::collectives(raw), guards::collectives(raw)].concat(),
        "gemm" => [torch::gemm(raw), memory::read(raw)].concat(),
        "train" => [train::read(raw), guards::nccl(raw)].concat(),
        "burnin" => [burnin::read(raw), guards::nccl(raw)].concat(),
        "checkpoint" => checkpoint::read(raw),
        "inference" => [inference::read(raw), serve::read(raw)].concat(),
        "network" => network::read(raw),
        "s3" => s3::read(raw),
        "faults" => faults(raw)?,
        _ => [fio::read(raw), storage::read(raw), guards::storage(raw)].concat(),
    };
    let mut records = distinct(records);
    if raw.marker.stage == "collectives" {
        records.extend(scaling::of(raw, &records));
    }
    Ok(records)
}

/// Reads a stage's raw output anew and writes nothing: what [`stage`] wrote, unless something was changed since. A stage
/// without a manifest counts as one that ran to its end.
///
/// # Errors
/// A manifest of another run, files that cannot be read.
pub(crate) fn again(folder: &Folder, stage: &str) -> Result<Vec<Record>, Failure> {
    let none = Marker {
        schema: STAGE_SCHEMA.to_owned(),
        run: folder.run.run.clone(),
        stage: stage.to_owned(),
        state: StageState::Done,
        exit_code: None,
        started: None,
        seconds: None,
        job: None,
        reason: None,
        records: 0,
        metrics: BTreeMap::new(),
    };
    let marker = Marker { stage: stage.to_owned(), ..marker(folder, stage)?.unwrap_or(none) };
    records_of(&Raw::open(folder.clone(), marker, Scrubbed::Left)?)
}

/// What `clustermax inject` left; without it, for every node that nothing was injected.
fn faults(raw: &Raw) -> Result<Vec<Record>, Failure> {
    let records = crate::inject::records::read(&raw.folder)?;
    if !records.is_empty() {
        return Ok(records);
    }
    let nodes = raw.folder.run.nodes.iter();
    Ok(nodes.map(|node| raw.absent("fault_drained", "").on(node).done()).collect())
}

/// The scorer refuses two records of the same thing; the first one stands.
fn distinct(records: Vec<Record>) -> Vec<Record> {
    let mut seen = std::collections::BTreeSet::new();
    records
        .into_iter()
        .filter(|record| {
            let params: Vec<String> =
                record.params.iter().map(|(key, value)| format!("{key}={value}")).collect();
            seen.insert((record.metric.clone(), params, record.subject.clone()))
        })
        .collect()
}

/// `stages/STAGE.json`, when the stage has run.
///
/// # Errors
/// A marker of another run, or one that cannot be read.
pub fn marker(folder: &Folder, stage: &str) -> Result<Option<Marker>, Failure> {
    let file = folder.stage(stage);
    let text = match std::fs::read_to_string(&file) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => {
            return Err(Failure::input(format!(
                "cannot read {}: {error}; check its permissions",
                file.display()
            )));
        }
    };
    // A marker of no use counts as none: the stage runs again.
    let Ok(marker) = serde_json::from_str::<Marker>(&text) else { return Ok(None) };
    if marker.run != folder.run.run {
        return Err(Failure::input(format!(
            "{} belongs to run {}, run.json says {}; give each run its own folder",
            file.display(),
            marker.run,
            folder.run.run
        )));
    }
    Ok(Some(marker))
}

fn write(path: &Path, value: &impl Serialize) -> Result<(), Failure> {
    let mut text = serde_json::to_string_pretty(value).map_err(Failure::input)?;
    text.push('\n');
    run::write_atomic(path, text.as_bytes()).map_err(|error| {
        Failure::input(format!("cannot write {}: {error}; make the folder writable", path.display()))
    })
}

/// Files that grow with the length of a stage and the number of nodes, gigabytes in all: one is in memory at a time. What a
/// burn-in leaves in `part-K/`: a file a node and one a rank; NCCL's logs and what NCCL Inspector dumps: one a rank.
fn is_long(stage: &str, name: &str) -> bool {
    name.ends_with(".samples")
        || stage == "burnin" && name.starts_with("part-")
        || name.starts_with("nccl-tests/inspector/")
        || is_nccl_log(name)
}

/// NCCL's own log of one process.
fn is_nccl_log(name: &str) -> bool {
    let name = name.rsplit('/').next().unwrap_or_default();
    name.starts_with("nccl") && name.ends_with(".log")
}

/// One raw file with what a record says about it.
struct RawFile {
    /// Path below `raw/STAGE/`.
    name: String,
    /// Empty of a long file, which [`Raw::text()`] reads.
    text: String,
    evidence: Evidence,
}

impl RawFile {
    fn at(&self, pointer: impl Into<String>) -> Evidence {
        Evidence { pointer: Some(pointer.into()), ..self.evidence.clone() }
    }

    /// The JSON document, or a sentence.
    fn json<T: serde::de::DeserializeOwned>(&self) -> Result<T, String> {
        serde_json::from_str(&self.text)
            .map_err(|error| format!("{} is not complete: {error}", self.evidence.file))
    }
}

/// What becomes of a raw file that held an environment dump.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Scrubbed {
    /// It is written without.
    Kept,
    /// It stays as it was.
    Left,
}

/// `raw/STAGE/` of one run.
struct Raw {
    folder: Folder,
    marker: Marker,
    files: Vec<RawFile>,
}

impl Raw {
    /// Reads all files of the stage (they are small, but the [long](is_long) ones), scrubbing environment dumps first.
    fn open(folder: Folder, marker: Marker, scrubbed: Scrubbed) -> Result<Self, Failure> {
        let top = folder.raw(&marker.stage);
        let mut files = Vec::new();
        let mut pending = vec![top.clone()];
        while let Some(dir) = pending.pop() {
            let entries = match std::fs::read_dir(&dir) {
                Ok(entries) => entries,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => {
                    return Err(Failure::input(format!(
                        "cannot read {}: {error}; check its permissions",
                        dir.display()
                    )));
                }
            };
            for entry in entries.flatten() {
                let path = entry.path();
                // Symbolic links are not followed: evidence lies in the folder.
                let Ok(kind) = entry.file_type() else { continue };
                if kind.is_dir() {
                    pending.push(path);
                } else if kind.is_file() && path.extension().is_none_or(|extension| extension != "tmp") {
                    let bytes = std::fs::read(&path).map_err(|error| {
                        Failure::input(format!(
                            "cannot read {}: {error}; check its permissions",
                            path.display()
                        ))
                    })?;
                    let bytes = scrub(&path, bytes, scrubbed)?;
                    let name = path.strip_prefix(&top).unwrap_or(&path).to_string_lossy().into_owned();
                    let sha256 = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
                    let long = is_long(&marker.stage, &name);
                    files.push(RawFile {
                        evidence: Evidence {
                            file: format!("raw/{}/{name}", marker.stage),
                            sha256,
                            pointer: None,
                        },
                        text: if long { String::new() } else { String::from_utf8_lossy(&bytes).into_owned() },
                        name,
                    });
                }
            }
        }
        files.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(Self { folder, marker, files })
    }

    /// What a file holds, long ones too; nothing when such a one has vanished since.
    fn text<'a>(&self, file: &'a RawFile) -> Cow<'a, str> {
        if !is_long(&self.marker.stage, &file.name) {
            return Cow::Borrowed(&file.text);
        }
        let bytes = std::fs::read(self.folder.raw(&self.marker.stage).join(&file.name)).unwrap_or_default();
        Cow::Owned(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn file(&self, name: &str) -> Option<&RawFile> {
        let at = self.files.binary_search_by(|file| file.name.as_str().cmp(name)).ok()?;
        self.files.get(at)
    }

    /// `Unavailable` when the stage says that something it needs is missing, else `Unknown`.
    fn missing_state(&self) -> State {
        if self.marker.state == StageState::Unavailable { State::Unavailable } else { State::Unknown }
    }

    fn draft(&self, metric: &str, unit: &str) -> Draft {
        Draft(Record {
            schema: record::SCHEMA.to_owned(),
            run: self.folder.run.run.clone(),
            cluster: self.folder.run.cluster.clone(),
            stage: self.marker.stage.clone(),
            metric: metric.to_owned(),
            value: None,
            unit: unit.to_owned(),
            state: State::Unknown,
            params: BTreeMap::new(),
            subject: Subject::default(),
            provenance: Provenance::Measured,
            evidence: None,
            detail: None,
            tool: None,
            command: None,
            job: self.marker.job.clone(),
            started: self.marker.started.clone(),
            seconds: self.marker.seconds,
            of: None,
        })
    }

    /// A value with its evidence; one that is not finite is unknown.
    fn measured(&self, metric: &str, unit: &str, value: f64, evidence: Evidence) -> Draft {
        let mut draft = self.draft(metric, unit);
        if value.is_finite() {
            draft.0.value = Some(value);
            draft.0.state = State::Measured;
        } else {
            draft.0.detail = Some(format!("the value is {value}, which is not finite"));
        }
        draft.0.evidence = Some(evidence);
        draft
    }

    /// No value, and why.
    fn missing(&self, metric: &str, unit: &str, state: State, why: impl Into<String>) -> Draft {
        let mut draft = self.draft(metric, unit);
        draft.0.state = state;
        draft.0.detail = Some(why.into());
        draft
    }

    /// No value because the stage did not give it.
    fn absent(&self, metric: &str, unit: &str) -> Draft {
        self.missing(metric, unit, self.missing_state(), self.marker.why())
    }
}

/// A record being made.
struct Draft(Record);

impl Draft {
    fn param(mut self, key: &str, value: impl Into<Scalar>) -> Self {
        self.0.params.insert(key.to_owned(), value.into());
        self
    }

    fn params(mut self, params: &BTreeMap<String, Scalar>) -> Self {
        self.0.params.extend(params.iter().map(|(key, value)| (key.clone(), value.clone())));
        self
    }

    fn on(mut self, node: &str) -> Self {
        self.0.subject.node = Some(node.to_owned());
        self
    }

    fn gpu(mut self, index: u32) -> Self {
        self.0.subject.gpu = Some(index);
        self
    }

    fn tool(mut self, tool: &str) -> Self {
        self.0.tool = Some(tool.to_owned());
        self
    }

    fn command(mut self, command: &str) -> Self {
        self.0.command = Some(command.to_owned());
        self
    }

    fn started(mut self, started: &str) -> Self {
        self.0.started = Some(started.to_owned());
        self
    }

    fn seconds(mut self, seconds: f64) -> Self {
        if seconds.is_finite() && seconds >= 0.0 {
            self.0.seconds = Some(seconds);
        }
        self
    }

    fn detail(mut self, detail: impl Into<String>) -> Self {
        self.0.detail = Some(detail.into());
        self
    }

    fn done(self) -> Record {
        self.0
    }
}

/// nccl-tests' JSON carries the whole environment, tokens included: only the names are kept, in the file itself.
fn scrub(path: &Path, bytes: Vec<u8>, scrubbed: Scrubbed) -> Result<Vec<u8>, Failure> {
    if path.extension().is_none_or(|extension| extension != "json") {
        return Ok(bytes);
    }
    let Some(clean) = without_environment(&bytes) else { return Ok(bytes) };
    if scrubbed == Scrubbed::Left {
        return Ok(clean);
    }
    run::write_atomic(path, &clean).map_err(|error| {
        Failure::input(format!(
            "cannot take the environment out of {}: {error}; make it writable",
            path.display()
        ))
    })?;
    Ok(clean)
}

/// `"env":["NAME=VALUE", ...]` becomes `"env":["NAME", ...]`, by text: a killed run's document is not valid JSON, and
/// this must work all the more then. None when there is nothing to take out.
fn without_environment(bytes: &[u8]) -> Option<Vec<u8>> {
    const KEY: &[u8] = b"\"env\":[";
    let at = bytes.windows(KEY.len()).position(|window| window == KEY)? + KEY.len();
    let mut clean = bytes[..at].to_vec();
    let mut rest = &bytes[at..];
    let mut changed = false;
    loop {
        match rest.first() {
            Some(b'"') => {
                // One string: its end is the next quote that no backslash precedes.
                let mut end = 1;
                while end < rest.len() && rest[end] != b'"' {
                    end += if rest[end] == b'\\' { 2 } else { 1 };
                }
                let text = &rest[..end.min(rest.len())];
                let name = text.iter().position(|byte| *byte == b'=').unwrap_or(text.len());
                changed |= name < text.len();
                clean.extend_from_slice(&text[..name]);
                clean.push(b'"');
                rest = rest.get(end + 1..).unwrap_or_default();
            }
            Some(b']') | None => break,
            Some(byte) => {
                clean.push(*byte);
                rest = &rest[1..];
            }
        }
    }
    clean.extend_from_slice(rest);
    changed.then_some(clean)
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_compute;
