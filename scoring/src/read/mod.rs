//! `clustermax read`: output of benchmark and diagnostic programs, from any cluster, to records.
//!
//! The format is recognised by what the file says, never by its name. What cannot be used is a record too: unknown,
//! with the reason.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Read as _;
use std::path::{Component, Path, PathBuf};

use sha2::{Digest as _, Sha256};

use crate::collect::{nccl, network};
use crate::record::{self, Evidence, Provenance, Record, Scalar, State, Subject};
use crate::{Failure, report};

pub mod collectives;
pub mod hints;
pub mod iterations;
pub mod json;
pub mod tools;

/// `clustermax read`
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Files to read (`-` is standard input): nccl-tests and rccl-tests (text, -J, -Z), NCCL Inspector dumps, fio JSON,
    /// torchtitan logs, vLLM and SGLang bench JSON, dcgmi diag -j, nvbandwidth (text, -j), perftest (ib_write_bw,
    /// ib_write_lat ...), iperf3 -J
    #[arg(required = true)]
    pub files: Vec<PathBuf>,
    /// Print records, one JSON object a line, instead of a table
    #[arg(long)]
    pub json: bool,
    /// Collective of nccl-tests output that does not name it (before 2.16.7): all_reduce, all_gather, alltoall ...
    #[arg(long)]
    pub collective: Option<String>,
    /// Ranks that were started; a table that lists others is refused
    #[arg(long)]
    pub ranks: Option<u64>,
    /// Network bandwidth per GPU, GB/s (a 400 Gb/s port for each GPU: 50): a result of several nodes above the
    /// wire's ceiling is refused
    #[arg(long)]
    pub network: Option<f64>,
}

/// What the reader of a format is told besides the text.
#[derive(Debug, Clone, Default)]
pub struct Hints {
    /// File name without folders, for nccl-tests before 2.16.7: `all_reduce_perf.txt`.
    pub name: String,
    /// The collective, when the caller knows it.
    pub collective: Option<String>,
    /// Ranks that were started, when the caller knows it.
    pub ranks: Option<u64>,
    /// Network bandwidth per GPU, GB/s, when the caller knows it.
    pub network: Option<f64>,
}

/// One value, or the statement that there is none and why.
#[derive(Debug, Clone, PartialEq)]
pub struct Found {
    /// Stage and metric of `docs/metrics.md`.
    pub stage: &'static str,
    /// See `stage`.
    pub metric: &'static str,
    /// Unit of `docs/metrics.md`.
    pub unit: &'static str,
    /// Present and finite exactly when `state` is measured.
    pub value: Option<f64>,
    /// Whether there is a value.
    pub state: State,
    /// What tells it from others of the metric.
    pub params: BTreeMap<String, Scalar>,
    /// Node, GPU.
    pub subject: Subject,
    /// Why there is no value, or a remark.
    pub detail: Option<String>,
    /// JSON pointer or `line:N`.
    pub pointer: Option<String>,
}

impl Found {
    /// The record of it: `run` is the run's id and its cluster's name, `tool` the program that measured.
    #[must_use]
    pub fn record(&self, run: (&str, &str), stage: &str, tool: &str, evidence: Evidence) -> Record {
        Record {
            schema: record::SCHEMA.to_owned(),
            run: run.0.to_owned(),
            cluster: run.1.to_owned(),
            stage: stage.to_owned(),
            metric: self.metric.to_owned(),
            value: self.value,
            unit: self.unit.to_owned(),
            state: self.state,
            params: self.params.clone(),
            subject: self.subject.clone(),
            provenance: Provenance::Measured,
            evidence: Some(evidence),
            detail: self.detail.clone(),
            tool: Some(tool.to_owned()),
            command: None,
            job: None,
            started: None,
            seconds: None,
            of: None,
        }
    }

    /// A value; unknown when it is not finite.
    #[must_use]
    pub fn value(stage: &'static str, metric: &'static str, unit: &'static str, value: f64) -> Self {
        let mut found = Self::none(stage, metric, unit, State::Measured, "");
        found.detail = None;
        if value.is_finite() {
            found.value = Some(value);
        } else {
            found.state = State::Unknown;
            found.detail = Some(format!("the value is {value}, which is not finite"));
        }
        found
    }

    /// No value, and why.
    #[must_use]
    pub fn none(
        stage: &'static str,
        metric: &'static str,
        unit: &'static str,
        state: State,
        why: impl Into<String>,
    ) -> Self {
        Self {
            stage,
            metric,
            unit,
            value: None,
            state,
            params: BTreeMap::new(),
            subject: Subject::default(),
            detail: Some(why.into()),
            pointer: None,
        }
    }

    /// Adds a param.
    #[must_use]
    pub fn param(mut self, key: &str, value: impl Into<Scalar>) -> Self {
        self.params.insert(key.to_owned(), value.into());
        self
    }

    /// Adds a param when there is a value for it.
    #[must_use]
    pub fn maybe<T: Into<Scalar>>(self, key: &str, value: Option<T>) -> Self {
        match value {
            Some(value) => self.param(key, value),
            None => self,
        }
    }

    /// Says where in the file it is.
    #[must_use]
    pub fn at(mut self, pointer: impl Into<String>) -> Self {
        self.pointer = Some(pointer.into());
        self
    }

    /// Adds a remark.
    #[must_use]
    pub fn remark(mut self, text: impl Into<String>) -> Self {
        self.detail = Some(text.into());
        self
    }
}

/// A file that was recognised and read.
#[derive(Debug, Clone, PartialEq)]
pub struct Reading {
    /// Format, for people.
    pub format: &'static str,
    /// The program that wrote it, with its version when the file says it.
    pub tool: String,
    /// What was found.
    pub found: Vec<Found>,
}

/// Recognises and reads one file's text.
///
/// # Errors
/// The clause that says why no reader fits.
pub fn read(text: &str, hints: &Hints) -> Result<Reading, String> {
    let text = text.trim_start_matches('\u{feff}');
    if text.trim().is_empty() {
        return Err("is empty; run the program again".to_owned());
    }
    let has = |words: &[&str]| words.iter().all(|word| text.contains(word));
    // By keys that only this program writes; a document that was cut short still has them.
    if has(&["\"fio version\""]) {
        return Ok(tools::fio(text));
    }
    if has(&["\"DCGM Diagnostic\""]) || has(&["\"DCGM GPU Diagnostic\""]) {
        return Ok(tools::dcgmi_diag(text));
    }
    if has(&["\"nvbandwidth\"", "\"testcases\""]) {
        return Ok(tools::nvbandwidth_json(text));
    }
    if has(&["\"start\"", "\"intervals\"", "\"end\""])
        && let Some(reading) = network::iperf3(text)
    {
        return Ok(reading);
    }
    if has(&["\"inspector_output_format_version\""]) {
        return Ok(iterations::inspector(text));
    }
    if has(&["\"numCycle\"", "\"busBw\""]) {
        return Ok(collectives::reporter_json(text, hints));
    }
    if has(&["\"request_throughput\"", "\"output_throughput\""]) {
        return Ok(tools::vllm(text));
    }
    if text.trim_start().starts_with('{') && has(&["\"version\"", "\"args\"", "\"config\"", "\"nthreads\""]) {
        return Ok(collectives::nccl_json(text, hints));
    }
    if let Some(reading) = collectives::reporter_csv(text, hints) {
        return Ok(reading);
    }
    if has(&["nvbandwidth Version"])
        || (has(&["Running "]) && has(&["(row)", "(column)", "bandwidth (GB/s)"]))
    {
        return Ok(tools::nvbandwidth_text(text));
    }
    if let Some(reading) = tools::perftest(text) {
        return Ok(reading);
    }
    let out = nccl::read(text);
    if out.tables > 0 || out.devices > 0 || out.version.is_some() || out.failure.is_some() {
        return Ok(collectives::table(&out, hints));
    }
    if let Some(reading) = tools::torchtitan(text) {
        return Ok(reading);
    }
    Err("is in no format that `clustermax read` knows (nccl-tests, rccl-tests, NCCL Inspector, fio JSON, torchtitan, vLLM and \
         SGLang bench JSON, dcgmi diag JSON, nvbandwidth, perftest, iperf3 JSON); give the whole output of one of them"
        .to_owned())
}

/// Reads the files and prints what they hold.
///
/// # Errors
/// A file that cannot be read or that no reader knows; the others are printed all the same.
pub fn run(args: &Args) -> Result<u8, Failure> {
    if let Some(network) = args.network.filter(|network| !(network.is_finite() && *network > 0.0)) {
        return Err(Failure::input(format!("--network {network}: give GB/s per GPU, above 0")));
    }
    let mut trouble: Vec<String> = Vec::new();
    let mut out = String::new();
    for path in &args.files {
        match one(path, args) {
            Ok((reading, sha256)) => {
                if args.json {
                    for record in records(&reading, path, &sha256) {
                        let line = serde_json::to_string(&record).map_err(Failure::input)?;
                        let _ = writeln!(out, "{line}");
                    }
                } else {
                    out.push_str(&lines(&reading, path));
                }
            }
            Err(why) => trouble.push(format!("{} {why}", path.display())),
        }
    }
    // A reader that went away (`| head`) is no failure.
    let _ = std::io::Write::write_all(&mut std::io::stdout(), out.as_bytes());
    if trouble.is_empty() { Ok(0) } else { Err(Failure::input(trouble.join("; "))) }
}

fn one(path: &Path, args: &Args) -> Result<(Reading, String), String> {
    let mut bytes = Vec::new();
    let result = if path == Path::new("-") {
        std::io::stdin().read_to_end(&mut bytes).map(|_| ())
    } else {
        std::fs::read(path).map(|read| bytes = read)
    };
    result.map_err(|error| format!("cannot be read: {error}; check the path and its permissions"))?;
    let sha256 = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    let hints = Hints {
        name: path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default(),
        collective: args.collective.clone(),
        ranks: args.ranks,
        network: args.network,
    };
    Ok((read(&String::from_utf8_lossy(&bytes), &hints)?, sha256))
}

/// Records of a file from elsewhere: run and cluster are `read`, evidence is the file's own path.
#[must_use]
pub fn records(reading: &Reading, path: &Path, sha256: &str) -> Vec<Record> {
    let parts: Vec<String> = path
        .components()
        .filter_map(|part| match part {
            Component::Normal(name) => Some(name.to_string_lossy().into_owned()),
            _ => None,
        })
        .collect();
    let file = if parts.is_empty() || path == Path::new("-") { "stdin".to_owned() } else { parts.join("/") };
    reading
        .found
        .iter()
        .map(|found| {
            let evidence =
                Evidence { file: file.clone(), sha256: sha256.to_owned(), pointer: found.pointer.clone() };
            found.record(("read", "read"), found.stage, &reading.tool, evidence)
        })
        .collect()
}

/// [`table`] for a terminal, which what the file says of itself must not drive.
fn lines(reading: &Reading, path: &Path) -> String {
    table(reading, path).lines().map(|line| report::plain(line) + "\n").collect()
}

fn table(reading: &Reading, path: &Path) -> String {
    let mut out = format!("{}: {} ({})\n", path.display(), reading.format, reading.tool);
    if reading.found.is_empty() {
        out.push_str("  nothing measured\n");
    }
    for found in &reading.found {
        let mut name = found.metric.to_owned();
        if !found.subject.is_empty() {
            let _ = write!(name, " {}", found.subject);
        }
        for (key, value) in &found.params {
            let _ = write!(name, " {key}={value}");
        }
        match found.value {
            Some(value) => {
                let _ = write!(out, "  {:>14} {:<8} {name}", digits(value), found.unit);
                if let Some(remark) = &found.detail {
                    let _ = write!(out, "  ({remark})");
                }
                out.push('\n');
            }
            None => {
                let state = match found.state {
                    State::Unavailable => "unavailable",
                    State::NotApplicable => "n/a",
                    State::Unknown | State::Measured => "unknown",
                };
                let why = found.detail.as_deref().unwrap_or_default();
                let _ = writeln!(out, "  {state:>14} {:<8} {name}: {why}", "");
            }
        }
    }
    out
}

/// Six significant digits, without an exponent.
fn digits(value: f64) -> String {
    if value == 0.0 || value.fract() == 0.0 {
        return format!("{value:.0}");
    }
    let before = value.abs().log10().floor().clamp(-9.0, 15.0) as i32 + 1;
    let after = usize::try_from(6 - before).unwrap_or(0).min(12);
    let text = format!("{value:.after$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

#[cfg(test)]
mod tests;
