//! `clustermax inject`: a fault on one node, and how long the cluster takes to see it, drain the node and bring it back.
//!
//! The cluster need not have anything of ours: Slurm is watched (`scontrol show node`), and our verdict file where
//! there is one. Times are on this machine's monotonic clock; every sign lies between the last look that did not show
//! it and the first that did, and both are kept. Not seen within the limit is a result of its own.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::Failure;
use crate::audit::{Host, now, run_for};
use crate::run::{self, Folder};
use slurm::Node;

pub mod bus;
pub mod records;
pub mod slurm;

/// Schema of `raw/faults/*.json`.
pub const SCHEMA: &str = "clustermax-inject/1";
/// Longest time of one Slurm command.
const ANSWER: Duration = Duration::from_secs(10);

/// Runs on the node, by itself or as a Slurm step: lists NVIDIA GPUs in bus order, then does what each line of its
/// standard input says. One write(2) a record; what was written is looked for in the log.
const AGENT: &str = r#"
for d in "$1"/bus/pci/devices/*; do
    [ -r "$d/class" ] && [ -r "$d/vendor" ] || continue
    read -r class <"$d/class"; read -r vendor <"$d/vendor"
    case $class in 0x0302* | 0x0300*) [ "$vendor" = 0x10de ] && echo "gpu ${d##*/}" ;; esac
done
case $2 in
dcgm) command -v dcgmi >/dev/null || echo "refuse there is no dcgmi in PATH" ;;
*)
    read -r mode </proc/sys/kernel/printk_devkmsg || mode=
    [ "$mode" != off ] || echo "refuse /proc/sys/kernel/printk_devkmsg is off: what root writes to the log is dropped"
    [ -w /dev/kmsg ] || echo "refuse /dev/kmsg cannot be written"
    ;;
esac
echo ready
while read -r id rest; do
    case $2 in
    dcgm) dcgmi $rest >&2 && echo "written" || echo "failed dcgmi ended with code $?" ;;
    *)
        read -r up _ </proc/uptime
        printf '<3>[%s0000] %s\n' "$up" "$rest" >/dev/kmsg && echo written || echo "failed /dev/kmsg refused the line"
        if command -v dmesg >/dev/null; then
            dmesg | grep -qF "$id" && echo seen || echo unseen
        else
            echo unseen
        fi
        ;;
    esac
done
"#;

/// What can be made to fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Fault {
    /// Kernel line `NVRM: Xid ...: 79, GPU has fallen off the bus`: the device itself is not touched
    Xid79,
    /// Xid 79 through DCGM (`dcgmi test --inject`): seen by what asks DCGM, not by what reads the log
    DcgmXid79,
    /// PCIe secondary-bus reset of the GPU's bridge: prints its preconditions and writes only
    BusReset,
}

impl Fault {
    /// The word in records.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Xid79 => "xid79",
            Self::DcgmXid79 => "dcgm-xid79",
            Self::BusReset => "bus-reset",
        }
    }
}

/// `clustermax inject`
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// The fault
    #[arg(value_enum)]
    pub fault: Fault,
    /// NodeName
    #[arg(long)]
    pub node: String,
    /// GPU index on the node, in PCI bus order
    #[arg(long, default_value_t = 0)]
    pub gpu: usize,
    /// Do it, on this node: without it only the plan and the preconditions are printed
    #[arg(long, value_name = "NODE")]
    pub confirm: Option<String>,
    /// Longest time to wait for the drain, seconds
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub within: u64,
    /// Time between looks, milliseconds: the uncertainty of every time
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u64).range(20..=60_000))]
    pub poll: u64,
    /// Time to watch the control line (Xid 13, a program's own error, which must drain nothing), seconds; 0 leaves
    /// it out [default: HealthCheckInterval + 5, else 10]
    #[arg(long)]
    pub control: Option<u64>,
    /// Return the node to service afterwards, even when this program dies, and time a basic command on it
    #[arg(long)]
    pub resume: bool,
    /// Jobs may run on the node
    #[arg(long)]
    pub with_jobs: bool,
    /// Results folder of a run: writes raw/faults/ and the records of stage faults
    #[arg(long)]
    pub results: Option<PathBuf>,
    /// The node programs' configuration, for sysfs and the verdict file
    #[arg(long)]
    pub config: Option<PathBuf>,
    /// Returns the node when standard input ends without the word `done`; started by this program itself
    #[arg(long, hide = true)]
    pub dead_man: bool,
}

/// A sign of the fault, seconds after its injection.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// injected, verdict, reason, drained, returned, command, drained_again
    pub event: String,
    /// First look that showed it.
    pub at: f64,
    /// Last look that did not.
    pub not_before: f64,
    /// What was seen.
    pub detail: String,
}

/// `raw/faults/NODE-ID.json`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Document {
    /// Always [`SCHEMA`].
    pub schema: String,
    /// In the line itself, so that detectors do not take it for an older one.
    pub id: String,
    /// Word of [`Fault`].
    pub fault: String,
    /// Where.
    pub node: String,
    /// Index in bus order.
    pub gpu: usize,
    /// Its address.
    pub pci: String,
    /// What was written.
    pub line: String,
    /// Whether it was read back from the log; none where that cannot be done.
    pub read_back: Option<bool>,
    /// Wall clock at the injection, UTC.
    pub started: String,
    /// Longest time that was waited, seconds.
    pub within: f64,
    /// Time between looks, seconds.
    pub poll: f64,
    /// The control line: seconds watched and what it drained (null: nothing).
    pub control: Option<Control>,
    /// Node before the injection.
    pub before: String,
    /// In order.
    pub events: Vec<Event>,
}

/// What the control line did.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Control {
    /// Seconds watched.
    pub seconds: f64,
    /// Reason of the drain, when it drained the node: a false alarm.
    pub drained: Option<String>,
}

impl Document {
    /// The event of this name.
    #[must_use]
    pub fn event(&self, name: &str) -> Option<&Event> {
        self.events.iter().find(|event| event.event == name)
    }
}

/// One precondition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    /// Holds.
    pub ok: bool,
    /// What was looked at, and when it does not hold how to mend it.
    pub text: String,
}

impl Check {
    /// A precondition with the sentence for either case.
    pub fn new(ok: bool, holds: impl Into<String>, otherwise: impl Into<String>) -> Self {
        Self { ok, text: if ok { holds.into() } else { otherwise.into() } }
    }
}

/// Injects, watches, reports.
///
/// # Errors
/// Bad arguments or a precondition that does not hold (2), Slurm or the node missing (3).
pub fn run(args: &Args) -> Result<u8, Failure> {
    if args.dead_man {
        return dead_man(&args.node);
    }
    if let Some(confirm) = args.confirm.as_ref().filter(|confirm| **confirm != args.node) {
        return Err(Failure::input(format!(
            "--confirm {confirm} is not --node {}: name the same node twice to inject a fault",
            args.node
        )));
    }
    let folder = args.results.as_deref().map(Folder::open).transpose()?;
    let node = Node::read(&args.node)?;
    let host = Host::open(args.config.as_deref(), Some(&args.node))?;
    let local = node.is_this_machine();
    let mut checks = preconditions(args, &node)?;
    if args.fault == Fault::BusReset {
        return bus_reset(args, &host, local, checks);
    }

    // The agent is only started on another machine when it is to act: it is a job there.
    let start = local || (args.confirm.is_some() && checks.iter().all(|check| check.ok));
    let mut agent = if start { Some(Agent::start(args, &node, local, &host)?) } else { None };
    let id = id(&args.node);
    let mut pci = format!("of GPU {}, found out on the node", args.gpu);
    if let Some(agent) = &agent {
        checks
            .extend(agent.refused.iter().map(|why| Check::new(false, "", format!("{why} on {}", args.node))));
        match agent.gpus.get(args.gpu) {
            Some(found) => {
                checks.push(Check::new(true, format!("GPU {} of {} is at {found}", args.gpu, args.node), ""));
                pci.clone_from(found);
            }
            None => checks.push(Check::new(
                false,
                "",
                format!(
                    "{} shows {} NVIDIA GPUs, there is no GPU {}; give another --gpu",
                    args.node,
                    agent.gpus.len(),
                    args.gpu
                ),
            )),
        }
    }
    let line = match args.fault {
        Fault::DcgmXid79 => format!("test --inject --gpuid {} -f 230 -v 79", args.gpu),
        _ => xid(&pci, 79, "GPU has fallen off the bus.", &id),
    };
    let control = control_seconds(args);
    println!(
        "{} on {} ({})",
        args.fault.word(),
        args.node,
        if local { "this machine" } else { "through srun" }
    );
    for check in &checks {
        println!("  {} {}", if check.ok { "ok  " } else { "FAIL" }, check.text);
    }
    if args.fault == Fault::Xid79 && control > 0 {
        println!("  control: an Xid 13 line first, watched for {control} s; it must drain nothing");
    }
    println!(
        "  writes: {}{line}",
        if args.fault == Fault::DcgmXid79 { "dcgmi " } else { "/dev/kmsg <3>[UPTIME] " }
    );
    println!(
        "  watches: scontrol show node {} each {} ms, {} s at most{}",
        args.node,
        args.poll,
        args.within,
        if args.resume { "; then returns the node to service" } else { "; the node stays as it is then" }
    );
    let bad = checks.iter().filter(|check| !check.ok).count();
    if args.confirm.is_none() {
        println!("nothing was done; to do it: --confirm {}", args.node);
        return Ok(u8::from(bad > 0));
    }
    if bad > 0 {
        let why: Vec<&str> =
            checks.iter().filter(|check| !check.ok).map(|check| check.text.as_str()).collect();
        return Err(Failure::input(format!("nothing was done: {}", why.join("; "))));
    }
    let Some(agent) = agent.as_mut() else {
        return Err(Failure::missing(format!("no program could be started on {}", args.node)));
    };
    let _lock = Lock::take()?;
    let document = Document {
        schema: SCHEMA.to_owned(),
        id,
        fault: args.fault.word().to_owned(),
        node: args.node.clone(),
        gpu: args.gpu,
        pci,
        line,
        read_back: None,
        started: String::new(),
        within: args.within as f64,
        poll: args.poll as f64 / 1e3,
        control: None,
        before: node.state.clone(),
        events: Vec::new(),
    };
    let code = perform(args, agent, &host, local, control, document, folder.as_ref())?;
    Ok(code)
}

/// Preconditions that do not need the node itself.
fn preconditions(args: &Args, node: &Node) -> Result<Vec<Check>, Failure> {
    let mut checks = vec![
        Check::new(
            is_root(),
            "this is root",
            "this is an ordinary user: run it as root (or with sudo), only root may write to the kernel log",
        ),
        Check::new(
            std::env::var_os("SLURM_JOB_ID").is_none(),
            "this is no Slurm job",
            "this runs inside a Slurm job, which the fault may end: run it from a login or admin host",
        ),
    ];
    if args.fault != Fault::BusReset {
        checks.push(Check::new(
            node.in_service(),
            format!("{} is in service ({})", node.name, node.state),
            format!("{} is {}: give a node that is in service, or return it first", node.name, node.state),
        ));
    }
    let jobs = slurm::jobs(&node.name)?;
    checks.push(Check::new(
        jobs.is_empty() || (args.with_jobs && args.fault != Fault::BusReset),
        if jobs.is_empty() {
            format!("no job runs on {}", node.name)
        } else {
            format!("jobs {} run there, allowed by --with-jobs", jobs.join(", "))
        },
        format!(
            "jobs {} run on {}: wait for them or reserve the node (--with-jobs lets them meet the drain)",
            jobs.join(", "),
            node.name
        ),
    ));
    Ok(checks)
}

fn bus_reset(args: &Args, host: &Host, local: bool, mut checks: Vec<Check>) -> Result<u8, Failure> {
    println!("bus-reset on {}: plan only", args.node);
    if !local {
        return Err(Failure::missing(format!(
            "bus-reset looks at the PCI tree of {}: run `clustermax inject bus-reset` on that node",
            args.node
        )));
    }
    let gpus = bus::gpus(&host.sysfs);
    let Some(gpu) = gpus.get(args.gpu) else {
        return Err(Failure::input(format!(
            "{} shows {} GPUs, there is no GPU {}; give another --gpu",
            args.node,
            gpus.len(),
            args.gpu
        )));
    };
    let plan = bus::plan(&host.sysfs, &host.procfs, gpu);
    checks.extend(plan.checks);
    for check in &checks {
        println!("  {} {}", if check.ok { "ok  " } else { "FAIL" }, check.text);
    }
    for write in &plan.writes {
        println!("  writes: {write}");
    }
    if args.confirm.is_some() {
        return Err(Failure::missing(
            "this release prints the writes of bus-reset and does not make them: it was never run on hardware; \
             make them by hand on a drained node, with somebody at its console",
        ));
    }
    Ok(u8::from(checks.iter().any(|check| !check.ok)))
}

/// The kernel's own text with the suite's mark at the end, in the form that all public detectors read: no function
/// number, a comma after the code.
fn xid(pci: &str, code: u32, text: &str, id: &str) -> String {
    let slot = pci.rsplit_once('.').map_or(pci, |(slot, _)| slot);
    format!(
        "NVRM: Xid (PCI:{slot}): {code}, pid={}, name=cmax-inject, {text} [clustermax-synthetic {id}]",
        std::process::id()
    )
}

/// Eight hexadecimal digits that no earlier injection had.
fn id(node: &str) -> String {
    let seed = format!("{node} {} {}", jiff::Timestamp::now(), std::process::id());
    Sha256::digest(seed).iter().take(4).map(|byte| format!("{byte:02x}")).collect()
}

fn is_root() -> bool {
    std::fs::read_to_string("/proc/self/status").is_ok_and(|text| {
        text.lines().any(|line| line.starts_with("Uid:") && line.split_whitespace().nth(2) == Some("0"))
    })
}

fn control_seconds(args: &Args) -> u64 {
    if args.fault != Fault::Xid79 {
        return 0;
    }
    args.control.unwrap_or_else(|| slurm::health_check_interval().map_or(10, |interval| interval + 5))
}

/// A watched node: what changed since the watch began.
struct Watch<'a> {
    node: &'a str,
    verdict: Option<PathBuf>,
    id: &'a str,
    reason_before: String,
    zero: Instant,
    last: f64,
}

impl Watch<'_> {
    /// One look; new events are appended. True when the node is drained.
    fn look(&mut self, events: &mut Vec<Event>) -> bool {
        let not_before = self.last;
        let seen = |name: &str, events: &[Event]| events.iter().any(|event| event.event == name);
        let mut found = Vec::new();
        if !seen("verdict", events)
            && let Some(path) = &self.verdict
            && let Ok(text) = std::fs::read_to_string(path)
            && text.contains(self.id)
        {
            let reason = serde_json::from_str::<serde_json::Value>(&text)
                .ok()
                .and_then(|value| value["reason"].as_str().map(str::to_owned))
                .unwrap_or_default();
            found.push(("verdict", reason));
        }
        // A controller that does not answer now is asked again; the time between stays in the bounds.
        let mut drained = false;
        if let Ok(node) = Node::read(self.node) {
            if !node.reason.is_empty() && node.reason != self.reason_before && !seen("reason", events) {
                found.push(("reason", node.reason.clone()));
            }
            drained = node.out_of_service();
            if drained && !seen("drained", events) {
                found.push(("drained", format!("{} {}", node.state, node.reason).trim().to_owned()));
            }
            self.last = self.zero.elapsed().as_secs_f64();
        }
        let at = self.zero.elapsed().as_secs_f64();
        for (event, detail) in found {
            println!("  {at:9.3} s  {event:<9} {detail} (not at {not_before:.3} s)");
            events.push(Event { event: event.to_owned(), at, not_before, detail });
        }
        drained
    }
}

/// Control, injection, watching, return; writes the document whatever came of it.
fn perform(
    args: &Args,
    agent: &mut Agent,
    host: &Host,
    local: bool,
    control: u64,
    mut document: Document,
    folder: Option<&Folder>,
) -> Result<u8, Failure> {
    let poll = Duration::from_millis(args.poll);
    let verdict = host.run_dir.join("verdict.json");
    let verdict = (local && verdict.is_file()).then_some(verdict);
    if control > 0 {
        let quiet = xid(
            &document.pci,
            13,
            "Graphics SM Warp Exception on (GPC 0, TPC 0, SM 0): Out Of Range Address",
            &format!("control {}", document.id),
        );
        println!("control: Xid 13, a program's own error");
        agent.send("control", &quiet)?;
        let begin = Instant::now();
        let mut drained = None;
        while begin.elapsed() < Duration::from_secs(control) && drained.is_none() {
            std::thread::sleep(poll);
            drained = Node::read(&args.node)
                .ok()
                .filter(Node::out_of_service)
                .map(|node| format!("{} {}", node.state, node.reason).trim().to_owned());
        }
        let seconds = begin.elapsed().as_secs_f64();
        println!(
            "  {seconds:9.3} s  {}",
            drained
                .as_deref()
                .map_or("quiet: nothing was drained".to_owned(), |reason| format!("FALSE ALARM: {reason}"))
        );
        document.control = Some(Control { seconds, drained: drained.clone() });
        if let Some(reason) = drained {
            document.started = now();
            keep(folder, &document)?;
            eprintln!(
                "clustermax: {} was drained for a program's own error ({reason}); the fault was not injected. Return \
                 the node: scontrol update nodename={} state=resume",
                args.node, args.node
            );
            return Ok(1);
        }
    }
    // From here on the node may stay drained: somebody must return it, whatever becomes of this process.
    let guard = if args.resume { Some(Guard::start(&args.node)?) } else { None };
    println!("{} of GPU {} ({}) on {}", document.fault, document.gpu, document.pci, document.node);
    let before = Node::read(&args.node)?;
    let sent = Instant::now();
    document.started = jiff::Timestamp::now().to_string();
    document.read_back = agent.send(&document.id, &document.line)?;
    // The write lies between the command and its answer: times count from the command, the rest is in the bound.
    let zero = sent;
    let took = sent.elapsed().as_secs_f64();
    let detail = match document.read_back {
        Some(true) => "read back from the log".to_owned(),
        Some(false) => "not found in the log again: only /dev/kmsg readers may see it".to_owned(),
        None => "accepted".to_owned(),
    };
    println!("  {took:9.3} s  injected  {detail}");
    document.events.push(Event { event: "injected".to_owned(), at: took, not_before: 0.0, detail });
    agent.end();
    let id = document.id.clone();
    let mut watch =
        Watch { node: &args.node, verdict, id: &id, reason_before: before.reason, zero, last: 0.0 };
    let limit = Duration::from_secs(args.within);
    let mut drained = watch.look(&mut document.events);
    while !drained && zero.elapsed() < limit {
        std::thread::sleep(poll);
        drained = watch.look(&mut document.events);
    }
    if !drained {
        println!(
            "  {:9.3} s  not drained within {} s; should it happen later: scontrol update nodename={} state=resume",
            zero.elapsed().as_secs_f64(),
            args.within,
            args.node
        );
    }
    let again = format!("scontrol update nodename={} state=resume", args.node);
    match guard {
        Some(guard) if drained => {
            give_back(args, zero, poll, &mut document);
            guard.done();
        }
        Some(guard) => guard.done(),
        None if drained => println!("{} stays drained; return it: {again}", args.node),
        None => {}
    }
    keep(folder, &document)?;
    Ok(u8::from(!drained))
}

/// Returns the node and times a basic command on it.
fn give_back(args: &Args, zero: Instant, poll: Duration, document: &mut Document) {
    let mut add = |event: &str, not_before: f64, detail: String| {
        let at = zero.elapsed().as_secs_f64();
        println!("  {at:9.3} s  {event:<9} {detail}");
        document.events.push(Event { event: event.to_owned(), at, not_before, detail });
    };
    let asked = zero.elapsed().as_secs_f64();
    if let Err(failure) = slurm::resume(&args.node) {
        add("return_failed", asked, failure.message);
        return;
    }
    let limit = Instant::now() + Duration::from_secs(120);
    let mut last = asked;
    while Instant::now() < limit {
        match Node::read(&args.node) {
            Ok(node) if node.in_service() => break,
            _ => last = zero.elapsed().as_secs_f64(),
        }
        std::thread::sleep(poll);
    }
    add("returned", last, "in service again".to_owned());
    let begin = zero.elapsed().as_secs_f64();
    let options = [
        "-w",
        &args.node,
        "-N1",
        "-n1",
        "--immediate=60",
        "--time=2",
        "--quiet",
        "--job-name=clustermax-inject",
        "true",
    ];
    match run_for("srun", &options, Duration::from_secs(120)) {
        Ok(ran) if ran.ok() => add("command", begin, "srun true ran".to_owned()),
        Ok(ran) => add("command_failed", begin, ran.complaint()),
        Err(why) => add("command_failed", begin, why),
    }
    // A detector that sees the old line again drains it again: that is worth knowing.
    let until = Instant::now() + Duration::from_secs(slurm::health_check_interval().unwrap_or(5).min(60) + 2);
    let mut last = zero.elapsed().as_secs_f64();
    while Instant::now() < until {
        if let Ok(node) = Node::read(&args.node) {
            if node.out_of_service() {
                add("drained_again", last, format!("{} {}", node.state, node.reason));
                return;
            }
            last = zero.elapsed().as_secs_f64();
        }
        std::thread::sleep(poll);
    }
}

/// Writes the document and the records of all documents of the run.
fn keep(folder: Option<&Folder>, document: &Document) -> Result<(), Failure> {
    let Some(folder) = folder else { return Ok(()) };
    let raw = folder.raw("faults");
    let path = raw.join(format!("{}-{}.json", document.node, document.id));
    let io = |path: &Path, error: std::io::Error| {
        Failure::input(format!("cannot write {}: {error}; make the results folder writable", path.display()))
    };
    std::fs::create_dir_all(&raw).map_err(|error| io(&raw, error))?;
    let mut text = serde_json::to_string_pretty(document).map_err(Failure::input)?;
    text.push('\n');
    run::write_atomic(&path, text.as_bytes()).map_err(|error| io(&path, error))?;
    let count = records::write(folder)?;
    println!("{count} records of stage faults in {}", folder.records().display());
    Ok(())
}

/// The program on the node.
struct Agent {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    gpus: Vec<String>,
    refused: Vec<String>,
    logs: bool,
}

impl Agent {
    fn start(args: &Args, node: &Node, local: bool, host: &Host) -> Result<Self, Failure> {
        let sysfs = if local { host.sysfs.clone() } else { PathBuf::from("/sys") };
        let kind = if args.fault == Fault::DcgmXid79 { "dcgm" } else { "kernel" };
        let mut command = Command::new(if local { "sh" } else { "srun" });
        if !local {
            command.args([
                "-w",
                &node.name,
                "-N1",
                "-n1",
                "--immediate=30",
                "--time=60",
                "--quiet",
                "--job-name=clustermax-inject",
                "sh",
            ]);
        }
        command.args(["-c", AGENT, "clustermax-inject"]).arg(sysfs).arg(kind);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().map_err(
                |error| Failure::missing(format!("the program on {} cannot be started: {error}", node.name)),
            )?;
        let (sender, lines) = std::sync::mpsc::channel();
        if let Some(out) = child.stdout.take() {
            std::thread::spawn(move || {
                for line in BufReader::new(out).lines().map_while(Result::ok) {
                    if sender.send(line).is_err() {
                        break;
                    }
                }
            });
        }
        let stdin = child.stdin.take();
        let mut agent =
            Self { child, stdin, lines, gpus: Vec::new(), refused: Vec::new(), logs: kind == "kernel" };
        loop {
            let line = agent.line(Duration::from_secs(45), &node.name)?;
            if let Some(gpu) = line.strip_prefix("gpu ") {
                agent.gpus.push(gpu.to_owned());
            } else if let Some(why) = line.strip_prefix("refuse ") {
                agent.refused.push(why.to_owned());
            } else if line == "ready" {
                return Ok(agent);
            }
        }
    }

    fn line(&mut self, limit: Duration, node: &str) -> Result<String, Failure> {
        match self.lines.recv_timeout(limit) {
            Ok(line) => Ok(line),
            Err(RecvTimeoutError::Timeout) => Err(Failure::missing(format!(
                "the program on {node} does not answer within {} s; look at the node",
                limit.as_secs()
            ))),
            Err(RecvTimeoutError::Disconnected) => {
                let mut said = String::new();
                if let Some(err) = self.child.stderr.take() {
                    let _ = err.take(4096).read_to_string(&mut said);
                }
                let said = said.lines().last().unwrap_or("it said nothing").to_owned();
                Err(Failure::missing(format!("the program on {node} ended: {said}; look at the node")))
            }
        }
    }

    /// Has one line written. Whether it was found in the log again, for the kernel log.
    fn send(&mut self, id: &str, line: &str) -> Result<Option<bool>, Failure> {
        let gone =
            |error: std::io::Error| Failure::missing(format!("the program on the node is gone: {error}"));
        let stdin =
            self.stdin.as_mut().ok_or_else(|| Failure::missing("the program on the node has ended"))?;
        // The id is in the line; `control` marks that line in the same way.
        let id =
            if id == "control" { line.rsplit(' ').next().unwrap_or(id).trim_end_matches(']') } else { id };
        stdin.write_all(format!("{id} {line}\n").as_bytes()).and_then(|()| stdin.flush()).map_err(gone)?;
        let answer = self.line(Duration::from_secs(30), "the node")?;
        if answer != "written" {
            let why = answer.strip_prefix("failed ").unwrap_or(&answer).to_owned();
            return Err(Failure::missing(format!("the fault was not injected: {why}")));
        }
        if !self.logs {
            return Ok(None);
        }
        Ok(Some(self.line(Duration::from_secs(30), "the node")? == "seen"))
    }

    /// Lets it end; a job on the node ends with it.
    fn end(&mut self) {
        self.stdin = None;
        let until = Instant::now() + Duration::from_secs(5);
        while Instant::now() < until && matches!(self.child.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.end();
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// A process of its own that returns the node to service when this one ends without saying so.
struct Guard {
    child: Child,
    stdin: Option<ChildStdin>,
}

impl Guard {
    fn start(node: &str) -> Result<Self, Failure> {
        use std::os::unix::process::CommandExt as _;
        let failed = |error: std::io::Error| {
            Failure::missing(format!(
                "the process that returns the node in any case cannot be started: {error}"
            ))
        };
        let program = std::env::current_exe().map_err(failed)?;
        // A process group of its own: Ctrl-C at the terminal ends this program only.
        let mut child = Command::new(program)
            .args(["inject", Fault::Xid79.word(), "--node", node, "--dead-man"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .process_group(0)
            .spawn()
            .map_err(failed)?;
        let stdin = child.stdin.take();
        Ok(Self { child, stdin })
    }

    /// All is in order: it has nothing to do.
    fn done(mut self) {
        if let Some(mut stdin) = self.stdin.take() {
            let _ = stdin.write_all(b"done\n");
        }
        let _ = self.child.wait();
    }
}

/// Waits for `done` or the end of standard input; then returns a node that was drained meanwhile.
fn dead_man(node: &str) -> Result<u8, Failure> {
    let mut said = String::new();
    let _ = std::io::stdin().read_to_string(&mut said);
    if said.trim() == "done" {
        return Ok(0);
    }
    // The drain may come after the injector's death: a health check needs its time.
    let until = Instant::now() + Duration::from_secs(slurm::health_check_interval().unwrap_or(30) + 30);
    while Instant::now() < until {
        if Node::read(node).is_ok_and(|node| node.out_of_service()) {
            slurm::resume(node)?;
            eprintln!("clustermax: {node} was returned to service: the injector ended in the middle");
            return Ok(0);
        }
        std::thread::sleep(Duration::from_millis(500));
    }
    Ok(0)
}

/// One injection at a time on this machine and cluster.
struct Lock(PathBuf);

impl Lock {
    fn take() -> Result<Self, Failure> {
        let conf = std::env::var("SLURM_CONF").unwrap_or_default();
        let name: String = Sha256::digest(conf).iter().take(4).map(|byte| format!("{byte:02x}")).collect();
        let path = PathBuf::from(format!("/run/clustermax-inject-{name}.lock"));
        for _ in 0..2 {
            match std::fs::OpenOptions::new().write(true).create_new(true).open(&path) {
                Ok(mut file) => {
                    let _ = write!(file, "{}", std::process::id());
                    return Ok(Self(path));
                }
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                    let holder = std::fs::read_to_string(&path).unwrap_or_default();
                    if !holder.trim().is_empty() && Path::new("/proc").join(holder.trim()).exists() {
                        return Err(Failure::input(format!(
                            "process {} injects a fault already: one node at a time",
                            holder.trim()
                        )));
                    }
                    // Its holder is gone.
                    let _ = std::fs::remove_file(&path);
                }
                Err(error) => {
                    return Err(Failure::missing(format!(
                        "cannot make {}: {error}; run it as root",
                        path.display()
                    )));
                }
            }
        }
        Err(Failure::input(format!("{} cannot be taken; remove it when nobody injects", path.display())))
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests;
