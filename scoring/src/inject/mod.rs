//! `clustermax inject`: a fault on one node, and how long the cluster takes to see it, drain the node, tell somebody and
//! bring the node or another back.
//!
//! The cluster need not have anything of ours: Slurm is watched (`scontrol show node`), beside it whatever it has: a log,
//! a metrics endpoint, alerts, and our verdict file where there is one. Times are on this machine's monotonic clock; every
//! sign lies between the last look that did not show it and the first that did, and both are kept. Not seen within the
//! limit is a result of its own.

use std::path::{Path, PathBuf};
use std::time::Duration;

use sha2::{Digest as _, Sha256};

use crate::Failure;
use crate::audit::Host;
use crate::run::Folder;
use agent::Agent;
use fault::Way;
use guard::Lock;
use perform::{Hand, Injection, Outcome};
use signs::Inbox;
use slurm::Node;
use timeline::{Document, SCHEMA};

pub mod agent;
pub mod bus;
pub mod fault;
pub mod guard;
pub mod perform;
pub mod rank;
pub mod records;
pub mod signs;
pub mod slurm;
pub mod timeline;

pub use fault::Fault;

/// Longest time of one Slurm command.
const ANSWER: Duration = Duration::from_secs(10);

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
    /// bus-reset: and to this GPU, by its PCI address
    #[arg(long, value_name = "ADDRESS")]
    pub confirm_device: Option<String>,
    /// bus-reset: how long the reset is held, milliseconds
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(10..=10_000))]
    pub hold: u64,
    /// Longest time to wait for the drain and the alert, seconds
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub within: u64,
    /// Time between looks, milliseconds: the uncertainty of every time
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u64).range(20..=60_000))]
    pub poll: u64,
    /// Time to watch each control run, seconds: one with nothing injected, one with lines of programs' own errors
    /// (Xid 13 and 31, which must drain nothing); 0 leaves them out [default: HealthCheckInterval + 5, else 10]
    #[arg(long, value_parser = clap::value_parser!(u64).range(0..=86_400))]
    pub control: Option<u64>,
    /// After the drain, wait so many seconds for the cluster's own repair: the node in service again, or another in
    /// its place
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=604_800))]
    pub wait_return: Option<u64>,
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
    /// Where a sign may show besides Slurm.
    #[command(flatten)]
    pub signs: signs::Options,
    /// stop-rank, kill-rank: Python with torch, as for the suite
    #[arg(long, value_name = "FILE")]
    pub python: Option<PathBuf>,
    /// stop-rank, kill-rank: where ClusterMAX is installed, as for the suite
    #[arg(long, value_name = "DIR")]
    pub prefix: Option<PathBuf>,
    /// Puts things right when standard input ends without the word `done`; started by this program itself
    #[arg(long, hide = true)]
    pub dead_man: bool,
    /// Of the process above: `config` of the bridge
    #[arg(long, hide = true)]
    pub restore_bridge: Option<PathBuf>,
    /// Of the process above: Bridge Control as it was
    #[arg(long, hide = true, default_value_t = 0)]
    pub restore_control: u16,
    /// Of the process above: milliseconds after which it is restored in any case
    #[arg(long, hide = true, default_value_t = 0)]
    pub restore_after: u64,
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
        return guard::dead_man(args);
    }
    if let Some(confirm) = args.confirm.as_ref().filter(|confirm| **confirm != args.node) {
        return Err(Failure::input(format!(
            "--confirm {confirm} is not --node {}: name the same node twice to inject a fault",
            args.node
        )));
    }
    if args.resume && args.fault == Fault::BusReset {
        return Err(Failure::input(
            "--resume would give jobs a GPU that was just lost: leave it out and reboot the node",
        ));
    }
    let folder = args.results.as_deref().map(Folder::open).transpose()?;
    let node = Node::read(&args.node)?;
    if args.fault.way() == Way::Rank {
        return rank::run(args, &node, folder.as_ref());
    }
    let host = Host::open(args.config.as_deref(), Some(&args.node))?;
    let site = Site { args, local: node.is_this_machine(), node, host, folder };
    if args.confirm.is_none() {
        return site.plan();
    }
    let _lock = Lock::take()?;
    let inbox = args.signs.alert_listen.map(Inbox::open).transpose()?;
    let rungs = args.fault.rungs();
    if rungs.is_empty() {
        let prepared = site.prepare(args.fault)?;
        site.show(&prepared);
        if let Some(why) = prepared.refused() {
            return Err(Failure::input(format!("nothing was done: {why}")));
        }
        let outcome = site.inject(prepared, inbox.as_ref(), String::new())?;
        return Ok(u8::from(outcome != Outcome::Right));
    }
    let mut refused = Vec::new();
    let ladder = id(&args.node);
    for &fault in rungs {
        let prepared = site.prepare(fault)?;
        site.show(&prepared);
        if let Some(why) = prepared.refused() {
            println!("{} is unavailable: {why}", fault.word());
            refused.push(format!("{}: {why}", fault.word()));
            continue;
        }
        match site.inject(prepared, inbox.as_ref(), ladder.clone())? {
            Outcome::Right => return Ok(0),
            Outcome::FalseAlarm => return Ok(1),
            Outcome::Wrong => println!("{} was not noticed in time", fault.word()),
        }
    }
    if refused.len() == rungs.len() {
        return Err(Failure::input(format!("nothing was done: {}", refused.join("; "))));
    }
    Ok(1)
}

/// The node, and from where it is looked at.
struct Site<'a> {
    args: &'a Args,
    local: bool,
    node: Node,
    host: Host,
    folder: Option<Folder>,
}

/// A fault with what would do it.
struct Prepared {
    fault: Fault,
    hand: Option<Hand>,
    checks: Vec<Check>,
    pci: String,
    id: String,
    writes: Vec<String>,
}

impl Prepared {
    /// The preconditions that do not hold.
    fn refused(&self) -> Option<String> {
        let why: Vec<&str> =
            self.checks.iter().filter(|check| !check.ok).map(|check| check.text.as_str()).collect();
        (!why.is_empty()).then(|| why.join("; "))
    }
}

impl Site<'_> {
    /// The dry run.
    fn plan(&self) -> Result<u8, Failure> {
        let one = [self.args.fault];
        let rungs = self.args.fault.rungs();
        let mut possible = false;
        for &fault in if rungs.is_empty() { &one[..] } else { rungs } {
            let prepared = self.prepare(fault)?;
            self.show(&prepared);
            possible |= prepared.refused().is_none();
        }
        let device = if self.args.fault == Fault::BusReset { " --confirm-device ADDRESS" } else { "" };
        println!("nothing was done; to do it: --confirm {}{device}", self.args.node);
        Ok(u8::from(!possible))
    }

    fn prepare(&self, fault: Fault) -> Result<Prepared, Failure> {
        let args = self.args;
        let mut checks = preconditions(args, fault, &self.node, &Around::look(&args.node)?);
        let id = id(&args.node);
        let mut pci = format!("of GPU {}, found out on the node", args.gpu);
        if fault == Fault::BusReset {
            let (hand, writes) = self.bus(&mut checks, &mut pci);
            return Ok(Prepared { fault, hand, checks, pci, id, writes });
        }
        // The agent is only started on another machine when it is to act: it is a job there.
        let start = self.local || (args.confirm.is_some() && checks.iter().all(|check| check.ok));
        let agent =
            if start { Some(Agent::start(fault, &self.node, self.local, &self.host.sysfs)?) } else { None };
        if let Some(agent) = &agent {
            checks.extend(
                agent.refused.iter().map(|why| Check::new(false, "", format!("{why} on {}", args.node))),
            );
            match agent.gpus.get(args.gpu) {
                Some(found) => {
                    checks.push(Check::new(
                        true,
                        format!("GPU {} of {} is at {found}", args.gpu, args.node),
                        "",
                    ));
                    pci.clone_from(found);
                }
                None => checks.push(Check::new(
                    false,
                    "",
                    format!(
                        "{} shows {} {} GPUs, there is no GPU {}; give another --gpu",
                        args.node,
                        agent.gpus.len(),
                        if fault.vendor() == Some("0x1002") { "AMD" } else { "NVIDIA" },
                        args.gpu
                    ),
                )),
            }
        }
        let to = if fault.way() == Way::Dcgm { "dcgmi " } else { "/dev/kmsg <3>[UPTIME] " };
        let writes = vec![format!("{to}{}", fault.line(args.gpu, &pci, &id))];
        Ok(Prepared { fault, hand: agent.map(Hand::Agent), checks, pci, id, writes })
    }

    /// Preconditions of section "PCIe" that the node itself shows; the plan, when there is a GPU.
    fn bus(&self, checks: &mut Vec<Check>, pci: &mut String) -> (Option<Hand>, Vec<String>) {
        let args = self.args;
        checks.push(Check::new(
            self.local,
            format!("{} is this machine", args.node),
            format!(
                "{} is another machine: the PCI tree is looked at and written on the node itself, run it there",
                args.node
            ),
        ));
        checks.push(Check::new(
            self.node.reserved(),
            format!("{} is kept from jobs ({})", args.node, self.node.state),
            format!(
                "{} is {}: keep jobs away first, with a reservation (its drain can be timed then) or by draining it",
                args.node, self.node.state
            ),
        ));
        if args.resume {
            let why = "--resume would give jobs the GPU that was just lost: leave it out and reboot the node";
            checks.push(Check::new(false, "", why));
        }
        if !self.local {
            return (None, Vec::new());
        }
        let gpus = bus::gpus(&self.host.sysfs);
        let Some(gpu) = gpus.get(args.gpu) else {
            checks.push(Check::new(
                false,
                "",
                format!(
                    "{} shows {} GPUs, there is no GPU {}; give another --gpu",
                    args.node,
                    gpus.len(),
                    args.gpu
                ),
            ));
            return (None, Vec::new());
        };
        pci.clone_from(gpu);
        if let Some(device) = &args.confirm_device {
            checks.push(Check::new(
                device == gpu,
                format!("--confirm-device names GPU {} ({gpu})", args.gpu),
                format!("--confirm-device {device} is not GPU {} ({gpu}): name the same GPU twice", args.gpu),
            ));
        } else if args.confirm.is_some() {
            checks.push(Check::new(
                false,
                "",
                format!("the GPU is not confirmed: add --confirm-device {gpu}"),
            ));
        }
        let mut plan = bus::plan(&self.host.sysfs, &self.host.procfs, gpu, Duration::from_millis(args.hold));
        checks.append(&mut plan.checks);
        let writes = plan.writes.clone();
        (Some(Hand::Bus(Box::new(plan))), writes)
    }

    fn show(&self, prepared: &Prepared) {
        let args = self.args;
        println!(
            "{} on {} ({})",
            prepared.fault.word(),
            args.node,
            if self.local { "this machine" } else { "through srun" }
        );
        for check in &prepared.checks {
            println!("  {} {}", if check.ok { "ok  " } else { "FAIL" }, check.text);
        }
        let control = self.control();
        if control > 0 {
            println!("  control: nothing injected, for {control} s: must stay quiet");
            let noise: Vec<&str> = prepared.fault.noise().iter().map(|fault| fault.word()).collect();
            if !noise.is_empty() {
                println!("  control: lines of {}, for {control} s: must drain nothing", noise.join(" and "));
            }
        }
        for write in &prepared.writes {
            println!("  writes: {write}");
        }
        println!(
            "  watches: scontrol show node {} each {} ms, {} s at most{}",
            args.node,
            args.poll,
            args.within,
            if args.resume { "; then returns the node to service" } else { "; the node stays as it is then" }
        );
        for source in args.signs.describe() {
            println!("  watches: {source}");
        }
        if !prepared.fault.drains() {
            println!("  expects: nothing is drained");
        }
        if let Some(seconds) = args.wait_return {
            println!("  waits: {seconds} s for the node or another in its place");
        }
    }

    fn control(&self) -> u64 {
        self.args
            .control
            .unwrap_or_else(|| slurm::health_check_interval().map_or(10, |interval| interval.min(300) + 5))
    }

    fn inject(&self, prepared: Prepared, inbox: Option<&Inbox>, ladder: String) -> Result<Outcome, Failure> {
        let args = self.args;
        let Prepared { fault, hand, pci, id, .. } = prepared;
        let Some(hand) = hand else {
            return Err(Failure::missing(format!("no program could be started on {}", args.node)));
        };
        let document = Document {
            schema: SCHEMA.to_owned(),
            line: match &hand {
                Hand::Agent(_) => fault.line(args.gpu, &pci, &id),
                Hand::Bus(_) => prepared.writes.join("; "),
            },
            id,
            fault: fault.word().to_owned(),
            kind: fault.way().word().to_owned(),
            ladder,
            expected: if fault.drains() { "drain" } else { "none" }.to_owned(),
            node: args.node.clone(),
            gpu: args.gpu,
            pci,
            read_back: None,
            started: String::new(),
            within: args.within as f64,
            poll: args.poll as f64 / 1e3,
            quiet: None,
            control: None,
            alerts: args.signs.alerts(),
            wait_return: args.wait_return.map(|seconds| seconds as f64),
            named: None,
            before: self.node.state.clone(),
            looked: None,
            events: Vec::new(),
        };
        let host = (!self.local).then(|| self.node.host.clone());
        let verdict = perform::verdict(self.local, &self.host.run_dir);
        let (control, folder) = (self.control(), self.folder.as_ref());
        Injection { args, fault, hand, document, verdict, inbox, host, control, folder }.perform()
    }
}

/// Who injects, and what goes on around it.
#[derive(Debug, Clone, Default)]
struct Around {
    root: bool,
    in_job: bool,
    /// On the node.
    jobs: Vec<String>,
    /// Jobs of other injections, anywhere.
    injections: Vec<String>,
}

impl Around {
    fn look(node: &str) -> Result<Self, Failure> {
        // First: an injection that has just ended still has its job on the node for a moment.
        let injections = slurm::injections()?;
        let in_job = std::env::var_os("SLURM_JOB_ID").is_some();
        Ok(Self { root: is_root(), in_job, jobs: slurm::jobs(node)?, injections })
    }
}

/// Preconditions that do not need the node itself.
fn preconditions(args: &Args, fault: Fault, node: &Node, around: &Around) -> Vec<Check> {
    let mut checks = Vec::new();
    if fault.way() != Way::Rank {
        checks.push(Check::new(
            around.root,
            "this is root",
            "this is an ordinary user: run it as root (or with sudo), only root may write to the kernel log",
        ));
    }
    checks.push(Check::new(
        around.injections.is_empty(),
        "no other injection has a job in this cluster",
        format!(
            "job {} is another injection's: one node at a time, wait for its end",
            around.injections.join(", ")
        ),
    ));
    checks.push(Check::new(
        !around.in_job,
        "this is no Slurm job",
        "this runs inside a Slurm job, which the fault may end: run it from a login or admin host",
    ));
    if fault.way() != Way::Pcie {
        checks.push(Check::new(
            node.in_service(),
            format!("{} is in service ({})", node.name, node.state),
            format!("{} is {}: give a node that is in service, or return it first", node.name, node.state),
        ));
    }
    let jobs = &around.jobs;
    checks.push(Check::new(
        jobs.is_empty() || (args.with_jobs && fault.way() != Way::Pcie),
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
    checks
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

/// A path of another program's, absolute: it is started in another folder.
fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

#[cfg(test)]
mod tests;
