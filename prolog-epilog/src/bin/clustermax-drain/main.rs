//! `clustermax-drain`: the only program of the suite that writes to Slurm. Command line, outcomes and exit codes are
//! in `docs/interfaces.md`; the rules are in the library (`drainer`, `node_state`, `brake`, `spool`).

mod call;
mod ffi;
mod operators;
mod sys;
mod tell;
mod worker;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use call::{CONFIRM, Drainer, RETRIES, SECOND_LOOK};
use clap::{CommandFactory, Parser, Subcommand};
use healthcheck::config::{Config, DEFAULT_CONFIG, is_node_name, node_name};
use prolog_epilog::brake::Record;
use prolog_epilog::outcome::{Outcome, Report};
use prolog_epilog::reason;
use prolog_epilog::spool::Spool;
use serde::Serialize;

/// Longest time an operator waits for the list of all nodes.
const OPERATOR: Duration = Duration::from_secs(15);

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
    /// Show what waits on this node, whether the brake is engaged, what is exempt and whether the operators were told.
    Status,
    /// Give the node back after the fault with this id, if it still holds the reason that we wrote last.
    Return {
        /// The id in the reason, 8 hex digits.
        #[arg(long)]
        id: String,
    },
    /// List the nodes that this suite drained, in the whole cluster.
    List {
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Say why a node is out of service and what gives it back.
    Explain {
        /// Slurm's name of the node (default: this one).
        name: Option<String>,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Release the brake on this node (root).
    #[command(alias = "release-brake")]
    Release,
    /// For a time, let faults of a check, or of all, drain nothing on this node (root).
    Exempt {
        /// Slurm's name of this node.
        name: String,
        /// Check id, as `clustermax-healthcheck list` shows them (default: all).
        check: Option<String>,
        /// When it ends: `2h`, `3d`, `2026-12-24`, `2026-12-24T08:00`; at most 90 days ahead.
        #[arg(long, required_unless_present = "end")]
        until: Option<String>,
        /// Why, one line for whoever asks later.
        #[arg(long, required_unless_present = "end")]
        why: Option<String>,
        /// End it now.
        #[arg(long, conflicts_with_all = ["until", "why"])]
        end: bool,
    },
    /// Show the rack-scale domains; with --follow do what `rack.policy` says (root).
    Domains {
        /// Print JSON.
        #[arg(long)]
        json: bool,
        /// Mark or drain the trays of a degraded domain, or take that back from one that is well again.
        #[arg(long)]
        follow: bool,
    },
    /// The process that talks to Slurm.
    #[command(name = worker::SUBCOMMAND, hide = true)]
    Worker,
    /// The brake's second look.
    #[command(hide = true)]
    SecondLook {
        #[arg(long)]
        reason: String,
    },
    /// What is to be known of the node's rack-scale domain.
    #[command(hide = true)]
    LookAtDomain,
    /// Runs the command of `[notify]`.
    #[command(name = tell::SUBCOMMAND, hide = true)]
    TellOperators,
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
                "clustermax-drain: give a command: drain, notify, deliver, status, list, explain, release, exempt or domains (see --help)"
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
    let asks = matches!(command, Cmd::List { .. } | Cmd::Explain { .. } | Cmd::Domains { .. });
    let limit = if asks { OPERATOR } else { config.deadlines.drain() };
    let drainer = Drainer {
        spool: Spool::new(&config.paths.state_dir),
        brake: Record::new(&config.paths.state_dir),
        // What is left to write a file and an answer when the worker had to be killed.
        deadline: start + limit - (limit / 5).min(Duration::from_millis(300)),
        config,
        node,
    };
    match &command {
        // With the look at the domain that follows.
        Cmd::SecondLook { reason } => {
            sys::die_after(2 * longest_second_look(limit) + limit);
            drainer.second_look(reason, limit);
            return Ok(ExitCode::SUCCESS);
        }
        Cmd::LookAtDomain => {
            sys::die_after(longest_second_look(limit) + limit);
            drainer.look_at_domain(limit);
            return Ok(ExitCode::SUCCESS);
        }
        Cmd::TellOperators => {
            sys::die_after(drainer.config.notify.timeout() + tell::LOCK_WAIT + Duration::from_secs(2));
            return Ok(tell::run(&drainer.config));
        }
        _ => {}
    }
    let confirms = matches!(command, Cmd::Drain { confirm: true, .. } | Cmd::Domains { follow: true, .. });
    let more = if confirms { CONFIRM } else { Duration::ZERO };
    sys::die_after(limit + more + Duration::from_millis(200));
    answer(&drainer, command)
}

/// What a second look may take while the controller does not answer.
fn longest_second_look(limit: Duration) -> Duration {
    SECOND_LOOK + RETRIES.iter().sum::<Duration>() + 6 * limit
}

fn answer(drainer: &Drainer, command: Cmd) -> Result<ExitCode, String> {
    let own = matches!(command, Cmd::Release | Cmd::Exempt { .. } | Cmd::Domains { follow: true, .. });
    if own && healthcheck::sys::effective_uid() != 0 {
        let report = Report::new(Outcome::Denied, &drainer.node, "").detail("this is root's: run it as root");
        eprintln!("clustermax-drain: {}", report.detail);
        return Ok(print(report.outcome, &report));
    }
    let reported = |report: Report| {
        log(&report);
        print(report.outcome, &report)
    };
    Ok(match command {
        Cmd::Drain { reason, jobs, confirm } => {
            let reason = reason::normalise(&reason).map_err(|e| e.to_string())?;
            reported(drainer.drain(&reason, &jobs, confirm))
        }
        Cmd::Notify { job, text } => reported(drainer.notify(job, &text)),
        Cmd::Return { id } => reported(drainer.give_back(&id)),
        Cmd::Deliver => {
            let report = drainer.deliver();
            print(report.outcome, &report)
        }
        Cmd::Status => {
            let report = drainer.status()?;
            print(report.outcome, &report)
        }
        Cmd::Release => {
            let report = drainer.release()?;
            print(report.outcome, &report)
        }
        Cmd::Exempt { name, check, until, why, end } => {
            operators::exempt(drainer, &name, check.as_deref(), until.as_deref(), why.as_deref(), end)?;
            let report = drainer.status()?;
            print(report.outcome, &report)
        }
        Cmd::List { json } => operators::list(drainer, json),
        Cmd::Explain { name, json } => operators::explain(drainer, name.as_deref(), json)?,
        Cmd::Domains { json, follow } => operators::domains(drainer, json, follow),
        Cmd::Worker | Cmd::SecondLook { .. } | Cmd::LookAtDomain | Cmd::TellOperators => ExitCode::SUCCESS,
    })
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
