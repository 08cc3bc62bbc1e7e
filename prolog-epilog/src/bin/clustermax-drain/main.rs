//! `clustermax-drain`: the only program of the suite that writes to Slurm. Command line, outcomes and exit codes are
//! in `docs/interfaces.md`; the rules are in the library (`drainer`, `node_state`, `brake`, `spool`).

mod ffi;
mod sys;
mod worker;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode};
use std::thread;
use std::time::{Duration, Instant};

use clap::{CommandFactory, Parser, Subcommand};
use healthcheck::config::{Config, DEFAULT_CONFIG, Enforcement, is_node_name, node_name};
use prolog_epilog::brake::{Engaged, Record};
use prolog_epilog::outcome::{Outcome, Report};
use prolog_epilog::reason;
use prolog_epilog::spool::{Spool, Spooled};
use serde::Serialize;
use worker::{Answer, Request, Work, ask};

/// Where slurmd of a configless cluster keeps its copy of slurm.conf.
const CONFIGLESS_CONF: &str = "/run/slurm/conf/slurm.conf";
/// Slurm's usual place; only then is a configless copy ours to use.
const USUAL_CONF: &str = "/etc/slurm/slurm.conf";
/// When our drain of this time is visible to every node that drained before it (measured with 64 nodes).
const SECOND_LOOK: Duration = Duration::from_secs(2);
/// How much longer `--confirm` may take: the second look with its two calls.
const CONFIRM: Duration = Duration::from_millis(2500);
/// Waits before further second looks, while the controller does not answer.
const RETRIES: [Duration; 4] =
    [Duration::from_secs(3), Duration::from_secs(5), Duration::from_secs(10), Duration::from_secs(20)];

#[derive(Parser)]
#[command(
    name = "clustermax-drain",
    about = "Drains this node in Slurm with a reason, or says why not",
    disable_version_flag = true
)]
struct Args {
    /// Configuration file.
    #[arg(long, global = true, default_value = DEFAULT_CONFIG)]
    config: PathBuf,
    /// Slurm's name of the node (default: SLURMD_NODENAME, then the short host name).
    #[arg(long, global = true)]
    node: Option<String>,
    /// Print the Slurm release this program was built for and the libslurm it runs with.
    #[arg(long)]
    version: bool,
    #[command(subcommand)]
    command: Option<Cmd>,
}

#[derive(Subcommand)]
enum Cmd {
    /// Drain the node; with --job also tell that job.
    Drain {
        /// Reason, `cmx:TOKEN[ DEVICE] TEXT; act=ACTION id=8HEX`.
        #[arg(long)]
        reason: String,
        /// A job to tell, repeatable.
        #[arg(long = "job")]
        jobs: Vec<u32>,
        /// Wait for the brake's second look (2 s more) and answer `brake` when it took the drain back.
        #[arg(long)]
        confirm: bool,
    },
    /// Tell a job's user something.
    Notify {
        /// The job.
        #[arg(long)]
        job: u32,
        /// One line.
        #[arg(long)]
        text: String,
    },
    /// Deliver the drains that wait for the controller.
    Deliver,
    /// Show what waits and whether the brake is engaged.
    Status,
    /// Release the brake.
    ReleaseBrake,
    /// The process that talks to Slurm.
    #[command(name = worker::SUBCOMMAND, hide = true)]
    Worker,
    /// The brake's second look.
    #[command(hide = true)]
    SecondLook {
        #[arg(long)]
        reason: String,
    },
}

fn main() -> ExitCode {
    let start = Instant::now();
    if let Some(code) = pages::asked(8, || vec![Args::command()]) {
        return code;
    }
    let args = Args::parse();
    if args.version {
        return print(Outcome::Status, &version());
    }
    match args.command {
        Some(Cmd::Worker) => worker::main(),
        Some(command) => match run(&args.config, args.node.as_deref(), command, start) {
            Ok(code) => code,
            Err(sentence) => {
                eprintln!("clustermax-drain: {sentence}");
                ExitCode::from(2)
            }
        },
        None => {
            eprintln!(
                "clustermax-drain: give a command: drain, notify, deliver, status or release-brake (see --help)"
            );
            ExitCode::from(2)
        }
    }
}

/// `Err` is a sentence about a bad command line or configuration.
fn run(config: &Path, node: Option<&str>, command: Cmd, start: Instant) -> Result<ExitCode, String> {
    if let Some(bad) = node.filter(|n| !is_node_name(n)) {
        return Err(format!("--node {bad:?} is no node name: give one name, not a list"));
    }
    let node = node_name(node);
    // The second look runs in another folder.
    let config = std::path::absolute(config).map_err(|e| format!("{}: {e}", config.display()))?;
    let config = Config::load(&config, &node).map_err(|e| e.to_string())?;
    let limit = config.deadlines.drain();
    let drainer = Drainer {
        spool: Spool::new(&config.paths.state_dir),
        brake: Record::new(&config.paths.state_dir),
        // What is left to write a file and an answer when the worker had to be killed.
        deadline: start + limit - (limit / 5).min(Duration::from_millis(300)),
        config,
        node,
    };
    if let Cmd::SecondLook { reason } = &command {
        sys::die_after(SECOND_LOOK + RETRIES.iter().sum::<Duration>() + 5 * limit);
        drainer.second_look(reason, limit);
        return Ok(ExitCode::SUCCESS);
    }
    let confirms = matches!(command, Cmd::Drain { confirm: true, .. });
    let more = if confirms { CONFIRM } else { Duration::ZERO };
    sys::die_after(limit + more + Duration::from_millis(200));
    Ok(match command {
        Cmd::Drain { reason, jobs, confirm } => {
            let reason = reason::normalise(&reason).map_err(|e| e.to_string())?;
            let report = drainer.drain(&reason, &jobs, confirm);
            log(&report);
            print(report.outcome, &report)
        }
        Cmd::Notify { job, text } => {
            let report = drainer.notify(job, &text);
            log(&report);
            print(report.outcome, &report)
        }
        Cmd::Deliver => {
            let report = drainer.deliver();
            print(report.outcome, &report)
        }
        Cmd::Status => {
            let report = drainer.status()?;
            print(report.outcome, &report)
        }
        Cmd::ReleaseBrake => {
            let report = drainer.release_brake()?;
            print(report.outcome, &report)
        }
        Cmd::Worker | Cmd::SecondLook { .. } => ExitCode::SUCCESS,
    })
}

/// One call of the program.
struct Drainer {
    config: Config,
    node: String,
    spool: Spool,
    brake: Record,
    deadline: Instant,
}

impl Drainer {
    fn drain(&self, reason: &str, jobs: &[u32], confirm: bool) -> Report {
        if self.config.enforcement == Enforcement::Observe {
            return Report::new(Outcome::Observe, &self.node, reason).detail("enforcement is observe");
        }
        if let Some(engaged) = self.engaged() {
            self.engage(&engaged.why, reason);
            return Report::new(Outcome::Brake, &self.node, reason).detail(format!(
                "the brake is engaged since {} ({}); `clustermax-drain release-brake` releases it",
                engaged.since, engaged.why
            ));
        }
        match self.ask_drain(reason, jobs) {
            Answer::Report(report) => {
                let stands = matches!(report.outcome, Outcome::Written | Outcome::Already | Outcome::Foreign);
                if let (true, Err(e)) = (stands, self.spool.forget(&self.node, reason)) {
                    eprintln!("clustermax-drain: {e}");
                }
                match self.follow_up(&report) {
                    Some(second_look) if confirm => self.confirm(second_look, report),
                    _ => report,
                }
            }
            Answer::NoAnswer(why) => {
                let spooled = Spooled::new(&self.node, reason, jobs, &now(), &self.boot_id(), &why);
                match self.spool.keep(&spooled) {
                    Ok(()) => Report::new(Outcome::Spooled, &self.node, reason)
                        .detail(format!("{why}; kept for `clustermax-drain deliver`")),
                    Err(e) => Report::new(Outcome::Unreadable, &self.node, reason)
                        .detail(format!("{why}, and it could not be kept for later: {e}")),
                }
            }
        }
    }

    fn ask_drain(&self, reason: &str, jobs: &[u32]) -> Answer {
        let work = Work::Drain { node: self.node.clone(), reason: reason.to_string(), jobs: jobs.to_vec() };
        self.ask(work, self.deadline)
    }

    fn ask(&self, work: Work, deadline: Instant) -> Answer {
        let conf = &self.config.slurm.conf;
        let conf = if conf.exists() {
            conf.clone()
        } else if conf == Path::new(USUAL_CONF) && Path::new(CONFIGLESS_CONF).exists() {
            PathBuf::from(CONFIGLESS_CONF)
        } else {
            // libslurm would wait a minute for it and then end the process.
            return Answer::NoAnswer(format!(
                "{} (slurm.conf in the configuration) does not exist",
                conf.display()
            ));
        };
        let request = Request {
            conf,
            scontrol: self.config.slurm.scontrol.clone(),
            brake: self.config.brake.into(),
            work,
        };
        ask(&request, deadline)
    }

    /// What a drain leaves to be done: the brake's record, or its second look, which is returned.
    fn follow_up(&self, report: &Report) -> Option<Child> {
        match report.outcome {
            Outcome::Brake => self.engage(&report.detail, &report.reason),
            Outcome::Written if report.second_look => return self.start_second_look(&report.reason),
            _ => {}
        }
        None
    }

    fn start_second_look(&self, reason: &str) -> Option<Child> {
        let started = std::env::current_exe().and_then(|exe| {
            let mut command = Command::new(exe);
            command
                .arg("second-look")
                .arg("--config")
                .arg(&self.config.file)
                .args(["--node", &self.node, "--reason", reason])
                .env_clear();
            sys::detach(&mut command)
        });
        started
            .inspect_err(|e| {
                eprintln!("clustermax-drain: the brake's second look could not be started: {e}");
            })
            .ok()
    }

    /// Waits for the second look; the report stays as it is when that does not come in time.
    fn confirm(&self, mut second_look: Child, report: Report) -> Report {
        let end = Instant::now() + CONFIRM;
        while matches!(second_look.try_wait(), Ok(None)) && Instant::now() < end {
            thread::sleep(Duration::from_millis(20));
        }
        match self.engaged() {
            Some(engaged) => Report { outcome: Outcome::Brake, detail: engaged.why, ..report },
            None => report,
        }
    }

    fn second_look(&self, reason: &str, limit: Duration) {
        thread::sleep(SECOND_LOOK);
        for wait in RETRIES {
            let work = Work::SecondLook { node: self.node.clone(), reason: reason.to_string() };
            match self.ask(work, Instant::now() + limit) {
                Answer::Report(report) => {
                    if report.outcome == Outcome::Brake {
                        self.engage(&report.detail, reason);
                    }
                    return;
                }
                Answer::NoAnswer(_) => thread::sleep(wait),
            }
        }
    }

    fn notify(&self, job: u32, text: &str) -> Report {
        match self.ask(Work::Tell { job, text: text.to_string() }, self.deadline) {
            Answer::Report(mut report) => {
                report.node.clone_from(&self.node);
                report
            }
            Answer::NoAnswer(why) => Report::new(Outcome::Unreadable, &self.node, "").detail(why),
        }
    }

    fn deliver(&self) -> Delivery {
        let mut delivery = Delivery::new(&self.node);
        let listing = match self.spool.list() {
            Ok(listing) if listing.waiting.is_empty() && listing.broken.is_empty() => return delivery,
            Ok(_) => self.spool.lock().and_then(|lock| match lock {
                // What the other one has not delivered by now it still may.
                Some(lock) => Ok(Some((lock, self.spool.list()?))),
                None => Ok(None),
            }),
            Err(e) => Err(e),
        };
        let (_lock, listing) = match listing {
            Ok(Some(held)) => held,
            Ok(None) => {
                delivery.outcome = Outcome::Already;
                delivery.detail = "another process is delivering".into();
                return delivery;
            }
            Err(e) => {
                delivery.outcome = Outcome::Unreadable;
                delivery.detail = e.to_string();
                eprintln!("clustermax-drain: {e}");
                return delivery;
            }
        };
        self.spool.tidy(&listing);
        for (path, why) in &listing.broken {
            let sentence = format!("{} is no spooled drain ({why}) and was set aside", path.display());
            eprintln!("clustermax-drain: {sentence}");
            delivery.dropped.push(sentence);
        }
        let boot_id = self.boot_id();
        delivery.waiting = listing.waiting.len();
        for (path, spooled) in listing.waiting {
            let report = if self.config.enforcement == Enforcement::Observe {
                Report::new(Outcome::Observe, &spooled.node, &spooled.reason)
                    .detail("enforcement is observe by now")
            } else if spooled.mended_by_boot(&boot_id) {
                Report::new(Outcome::Already, &spooled.node, &spooled.reason)
                    .detail("the node was booted since, which is what the reason asks for; dropped")
            } else if let Some(engaged) = self.engaged() {
                self.engage(&engaged.why, &spooled.reason);
                Report::new(Outcome::Brake, &spooled.node, &spooled.reason).detail(engaged.why)
            } else {
                match self.ask_spooled(&spooled) {
                    Answer::Report(report) => report,
                    Answer::NoAnswer(why) => {
                        delivery.outcome = Outcome::Spooled;
                        delivery.detail = why;
                        break;
                    }
                }
            };
            log(&report);
            if matches!(report.outcome, Outcome::Unreadable | Outcome::WrongRelease) {
                delivery.outcome = report.outcome;
                delivery.reports.push(report);
                continue;
            }
            if report.outcome == Outcome::Already && report.reason == spooled.reason && !report.via.is_empty()
            {
                // Written by a call that was killed before it could say so: its second look is still due.
                self.start_second_look(&report.reason);
            }
            self.follow_up(&report);
            delivery.reports.push(report);
            match std::fs::remove_file(&path) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                    eprintln!("clustermax-drain: {} cannot be removed: {e}", path.display());
                }
                _ => delivery.waiting -= 1,
            }
        }
        delivery
    }

    fn ask_spooled(&self, spooled: &Spooled) -> Answer {
        let reason = reason::normalise(&spooled.reason).unwrap_or_else(|_| spooled.reason.clone());
        let work = Work::Drain { node: spooled.node.clone(), reason, jobs: spooled.jobs.clone() };
        self.ask(work, self.deadline)
    }

    fn status(&self) -> Result<Status, String> {
        let listing = self.spool.list().map_err(|e| e.to_string())?;
        Ok(Status {
            outcome: Outcome::Status,
            node: self.node.clone(),
            enforcement: self.config.enforcement.word(),
            spooled: listing.waiting.into_iter().map(|(_, s)| s).collect(),
            broken: listing.broken.into_iter().map(|(p, why)| format!("{}: {why}", p.display())).collect(),
            brake: self.brake.read().map_err(|e| e.to_string())?,
        })
    }

    fn release_brake(&self) -> Result<Status, String> {
        let released = self.brake.release().map_err(|e| e.to_string())?;
        for refused in released.iter().flat_map(|e| &e.refused) {
            eprintln!("clustermax-drain: held back since {}: {}", refused.time, refused.reason);
        }
        self.status()
    }

    /// The engaged brake. One that cannot be read does not stop a drain: a broken disk is a fault by itself.
    fn engaged(&self) -> Option<Engaged> {
        self.brake.read().unwrap_or_else(|e| {
            eprintln!("clustermax-drain: {e}; taken as not engaged");
            None
        })
    }

    fn engage(&self, why: &str, reason: &str) {
        if let Err(e) = self.brake.engage(&self.node, why, reason, &now()) {
            eprintln!("clustermax-drain: the engaged brake could not be recorded: {e}");
        }
    }

    fn boot_id(&self) -> String {
        let file = self.config.paths.procfs.join("sys/kernel/random/boot_id");
        std::fs::read_to_string(file).unwrap_or_default().trim().to_string()
    }
}

/// Answer of `deliver`.
#[derive(Serialize)]
struct Delivery {
    outcome: Outcome,
    node: String,
    /// One report a drain that was tried.
    reports: Vec<Report>,
    /// Files that are no spooled drain.
    dropped: Vec<String>,
    /// How many still wait.
    waiting: usize,
    #[serde(skip_serializing_if = "String::is_empty")]
    detail: String,
}

impl Delivery {
    fn new(node: &str) -> Self {
        Delivery {
            outcome: Outcome::Written,
            node: node.to_string(),
            reports: Vec::new(),
            dropped: Vec::new(),
            waiting: 0,
            detail: String::new(),
        }
    }
}

/// Answer of `status` and `release-brake`.
#[derive(Serialize)]
struct Status {
    outcome: Outcome,
    node: String,
    enforcement: &'static str,
    spooled: Vec<Spooled>,
    broken: Vec<String>,
    brake: Option<Engaged>,
}

/// Answer of `--version`.
#[derive(Serialize)]
struct Version {
    program: &'static str,
    version: &'static str,
    /// Release of Slurm this program was built for.
    slurm: String,
    /// `libslurm` or, when that is of another release, `scontrol`.
    via: &'static str,
    #[serde(skip_serializing_if = "String::is_empty")]
    detail: String,
}

fn version() -> Version {
    let opened = ffi::Libslurm::open();
    Version {
        program: "clustermax-drain",
        version: env!("CARGO_PKG_VERSION"),
        slurm: ffi::built_for().to_string(),
        via: if opened.is_ok() { "libslurm" } else { "scontrol" },
        detail: opened.err().unwrap_or_default(),
    }
}

/// One short line for slurmd's log, for everything an operator may want to know.
fn log(report: &Report) {
    if report.outcome != Outcome::Already || !report.detail.is_empty() {
        let outcome = serde_json::to_value(report.outcome).unwrap_or_default();
        let outcome = outcome.as_str().unwrap_or_default();
        eprintln!("clustermax-drain: {} {outcome}: {} {}", report.node, report.reason, report.detail);
    }
}

fn print(outcome: Outcome, value: &impl Serialize) -> ExitCode {
    match serde_json::to_string(value) {
        Ok(text) => println!("{text}"),
        Err(e) => eprintln!("clustermax-drain: the answer cannot be printed: {e}"),
    }
    ExitCode::from(outcome.exit_code())
}

fn now() -> String {
    jiff::Timestamp::now().to_string()
}
