//! A rank that is stopped or killed: the collectives of the suite in a job of our own, a signal to one of its processes,
//! and whether the stage names it. Needs no root, touches no device and no other job.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde::Deserialize;

use super::perform::Outcome;
use super::slurm::{self, Node};
use super::timeline::{Document, Event, SCHEMA, keep};
use super::{Args, Around, Check, Fault, absolute, id, preconditions};
use crate::Failure;
use crate::audit::run_for;
use crate::run::Folder;

/// Until the ranks are in a collective: the job's start, torch's import, the rendezvous.
const START: Duration = Duration::from_secs(180);
/// Until the job has ended after the stage did.
const END: Duration = Duration::from_secs(60);

/// What is read of a rank's `beat/RANK.json`.
#[derive(Debug, Clone, Deserialize)]
struct Beat {
    rank: u32,
    node: String,
    pid: u32,
    step: u64,
}

/// What is read of `stages/collectives.json`.
#[derive(Debug, Deserialize)]
struct Marker {
    state: String,
    #[serde(default)]
    reason: String,
}

/// Starts the job, signals the rank, waits for the finding.
///
/// # Errors
/// Preconditions (2), a job or step that does not start (3).
pub fn run(args: &Args, node: &Node, folder: Option<&Folder>) -> Result<u8, Failure> {
    let id = id(&args.node);
    let stop = args.fault == Fault::StopRank;
    let partition = node.partitions.split(',').next().unwrap_or_default().to_owned();
    // A rank that stops alone on its node would have nobody to wait for it.
    let partner = slurm::in_service(&partition)?.into_iter().find(|name| *name != args.node);
    let nodes: Vec<String> = std::iter::once(args.node.clone()).chain(partner).collect();
    let work = match folder {
        Some(folder) => folder.raw("faults").join(format!("{}-{id}", args.node)),
        None => PathBuf::from(format!("clustermax-inject-{id}")),
    };
    let work = absolute(&work);
    let mut checks = preconditions(args, args.fault, node, &Around::look(&args.node)?);
    checks.push(Check::new(
        !partition.is_empty(),
        format!("the job runs in partition {partition} on {}", nodes.join(",")),
        format!("{} is in no partition: no job can be started there", args.node),
    ));
    println!("{} on {}", args.fault.word(), args.node);
    for check in &checks {
        println!("  {} {}", if check.ok { "ok  " } else { "FAIL" }, check.text);
    }
    println!("  starts: a job of two ranks or more, collectives of the suite; results in {}", work.display());
    println!("  signals: SIG{} to one rank on {}, once it is in a collective", signal(stop), args.node);
    println!("  watches: the stage's own end, each {} ms, {} s at most", args.poll, args.within);
    let bad: Vec<&str> = checks.iter().filter(|check| !check.ok).map(|check| check.text.as_str()).collect();
    if args.confirm.is_none() {
        println!("nothing was done; to do it: --confirm {}", args.node);
        return Ok(u8::from(!bad.is_empty()));
    }
    if !bad.is_empty() {
        return Err(Failure::input(format!("nothing was done: {}", bad.join("; "))));
    }
    let document = Document {
        schema: SCHEMA.to_owned(),
        id,
        fault: args.fault.word().to_owned(),
        kind: args.fault.way().word().to_owned(),
        ladder: String::new(),
        expected: "none".to_owned(),
        node: args.node.clone(),
        gpu: args.gpu,
        pci: String::new(),
        line: String::new(),
        read_back: None,
        started: String::new(),
        within: args.within as f64,
        poll: args.poll as f64 / 1e3,
        quiet: None,
        control: None,
        alerts: false,
        wait_return: None,
        named: Some(false),
        before: node.state.clone(),
        looked: None,
        events: Vec::new(),
    };
    let mut job = Job::start(args, &partition, &nodes, work)?;
    let outcome = signalled(args, &mut job, document, folder);
    job.end();
    outcome.map(|outcome| u8::from(outcome != Outcome::Right))
}

fn signal(stop: bool) -> &'static str {
    if stop { "STOP" } else { "KILL" }
}

fn signalled(
    args: &Args,
    job: &mut Job,
    mut document: Document,
    folder: Option<&Folder>,
) -> Result<Outcome, Failure> {
    let poll = Duration::from_millis(args.poll);
    let beat = job.rank_on(&args.node, poll)?;
    let signal = signal(args.fault == Fault::StopRank);
    document.line = format!("SIG{signal} to rank {} (process {})", beat.rank, beat.pid);
    let zero = Instant::now();
    document.started = jiff::Timestamp::now().to_string();
    job.send(signal, &beat)?;
    let since = || zero.elapsed().as_secs_f64();
    let add = |events: &mut Vec<Event>, event: &str, not_before: f64, detail: String| {
        let at = since();
        println!("  {at:9.3} s  {event:<9} {detail} (not at {not_before:.3} s)");
        events.push(Event { event: event.to_owned(), by: String::new(), at, not_before, detail });
    };
    add(&mut document.events, "injected", 0.0, document.line.clone());
    let limit = Duration::from_secs(args.within);
    let file = job.work.join("stages/collectives.json");
    let mut last = since();
    while zero.elapsed() < limit {
        let looked = since();
        let marker =
            fs::read_to_string(&file).ok().and_then(|text| serde_json::from_str::<Marker>(&text).ok());
        if let Some(marker) = marker {
            let whole = marker.reason.contains(&format!("rank {} on {}", beat.rank, beat.node))
                && marker.reason.contains(&format!("process {}", beat.pid));
            document.named = Some(whole);
            add(&mut document.events, "found", last, format!("{}: {}", marker.state, marker.reason));
            break;
        }
        last = looked;
        std::thread::sleep(poll);
    }
    job.end();
    // A process that was stopped is nothing that a node is to be drained for.
    if let Ok(node) = Node::read(&args.node)
        && node.out_of_service()
    {
        add(&mut document.events, "drained", last, format!("{} {}", node.state, node.reason));
    }
    let found = document.event("found").is_some();
    print!("{}", document.timeline());
    if found {
        let named = if document.named == Some(true) { "named" } else { "not named" };
        println!("  the rank, its node and its process are {named}; evidence in {}", job.work.display());
    }
    keep(folder, &document)?;
    let right = document.named == Some(true) && document.event("drained").is_none();
    Ok(if right { Outcome::Right } else { Outcome::Wrong })
}

/// A job of our own that runs the suite's collectives.
struct Job {
    child: Child,
    work: PathBuf,
    id: PathBuf,
    log: PathBuf,
}

impl Job {
    fn start(args: &Args, partition: &str, nodes: &[String], work: PathBuf) -> Result<Self, Failure> {
        let beside = |end: &str| work.with_extension(end);
        let (id, log) = (beside("job"), beside("log"));
        if let Some(parent) = work.parent() {
            fs::create_dir_all(parent).map_err(|error| {
                Failure::input(format!(
                    "cannot make {}: {error}; give --results a folder that all nodes see",
                    parent.display()
                ))
            })?;
        }
        let output =
            fs::File::create(&log).and_then(|file| Ok((file.try_clone()?, file))).map_err(|error| {
                Failure::input(format!(
                    "cannot write {}: {error}; start it in a folder that you may write to",
                    log.display()
                ))
            })?;
        let program = std::env::current_exe()
            .map_err(|error| Failure::missing(format!("this program's own path cannot be told: {error}")))?;
        let count = nodes.len();
        let mut command = Command::new("salloc");
        command
            .args(["--quiet", "--immediate=60", "--time=10", "--job-name=clustermax-inject"])
            .arg(format!("--partition={partition}"))
            .arg(format!("--nodes={count}"))
            .arg(format!("--ntasks={count}"))
            .arg(format!("--nodelist={}", nodes.join(",")))
            .args(["sh", "-c", r#"echo "$SLURM_JOB_ID" >"$1"; shift; exec "$@""#, "sh"])
            .arg(&id)
            .arg(program)
            .args(["stage", "collectives", "--profile", "smoke", "--results"])
            .arg(&work);
        for (option, path) in
            [("--config", &args.config), ("--python", &args.python), ("--prefix", &args.prefix)]
        {
            if let Some(path) = path {
                command.arg(option).arg(absolute(path));
            }
        }
        let child = command
            .stdin(Stdio::null())
            .stdout(output.0)
            .stderr(output.1)
            .spawn()
            .map_err(|error| Failure::missing(format!("salloc cannot be started: {error}")))?;
        Ok(Self { child, work, id, log })
    }

    /// A rank on this node that is in a collective.
    fn rank_on(&mut self, node: &str, poll: Duration) -> Result<Beat, Failure> {
        let folder = self.work.join("raw/collectives/beat");
        let begin = Instant::now();
        while begin.elapsed() < START {
            let ended = !matches!(self.child.try_wait(), Ok(None));
            for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
                let text = fs::read_to_string(entry.path()).unwrap_or_default();
                if let Ok(beat) = serde_json::from_str::<Beat>(&text)
                    && beat.node == node
                    && beat.step > 0
                {
                    return Ok(beat);
                }
            }
            if ended {
                return Err(Failure::missing(format!(
                    "the job on {node} ended before its ranks were in a collective: {}",
                    last_line(&self.log)
                )));
            }
            std::thread::sleep(poll);
        }
        Err(Failure::missing(format!(
            "no rank on {node} was in a collective within {} s; see {}",
            START.as_secs(),
            self.log.display()
        )))
    }

    /// Signals the rank, through a step on its node; never another process that has its number meanwhile.
    fn send(&self, signal: &str, beat: &Beat) -> Result<(), Failure> {
        let id = fs::read_to_string(&self.id).unwrap_or_default();
        let (job, pid) = (format!("--jobid={}", id.trim()), beat.pid.to_string());
        let script = r#"grep -q collectives "/proc/$2/cmdline" && kill -s "$1" "$2""#;
        let args = [
            &job,
            "--overlap",
            "--overcommit",
            "--quiet",
            "--mpi=none",
            "--nodes=1",
            "--ntasks=1",
            "--nodelist",
            &beat.node,
            "sh",
            "-c",
            script,
            "sh",
            signal,
            &pid,
        ];
        let ran = run_for("srun", &args, Duration::from_secs(30)).map_err(Failure::missing)?;
        if ran.ok() {
            return Ok(());
        }
        Err(Failure::missing(format!("the signal was not sent: {}", ran.complaint())))
    }

    /// Lets the job end, or ends it.
    fn end(&mut self) {
        let begin = Instant::now();
        while begin.elapsed() < END && matches!(self.child.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(50));
        }
        if matches!(self.child.try_wait(), Ok(None)) {
            let id = fs::read_to_string(&self.id).unwrap_or_default();
            if !id.trim().is_empty() {
                let _ = run_for("scancel", &[id.trim()], Duration::from_secs(10));
            }
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let id = fs::read_to_string(&self.id).unwrap_or_default();
            if !id.trim().is_empty() {
                let _ = run_for("scancel", &[id.trim()], Duration::from_secs(10));
            }
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

fn last_line(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it said nothing").to_owned()
}
