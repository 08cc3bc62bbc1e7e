//! The process that talks to Slurm, and how its parent asks it.
//!
//! libslurm may call exit(1), may hang for a minute on a missing configuration and blocks for `MessageTimeout`
//! on every call to a dead controller. So it runs in a child (ourselves, started anew) that is killed when the time
//! is over; the parent never loads it.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use healthcheck::config::check_trusted;
use healthcheck::rack;
use prolog_epilog::brake::Settings;
use prolog_epilog::domains::{self, Domain, Drained, Rules, domains_of};
use prolog_epilog::drainer;
use prolog_epilog::node_state::{Node, same_name};
use prolog_epilog::outcome::{Outcome, Report};
use prolog_epilog::scontrol::Scontrol;
use prolog_epilog::slurm::{Slurm, SlurmError};
use serde::{Deserialize, Serialize};

use crate::ffi::Libslurm;
use crate::sys;

/// Name of the hidden subcommand.
pub const SUBCOMMAND: &str = "worker";

/// What the parent wants.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Request {
    /// slurm.conf.
    pub conf: PathBuf,
    /// scontrol, for when libslurm is of another release.
    pub scontrol: PathBuf,
    /// The brake's settings.
    pub brake: Settings,
    /// Partitions in which nodes are drained; empty: all.
    pub partitions: Vec<String>,
    /// Rack-scale domains.
    pub rack: Rules,
    /// The work.
    pub work: Work,
}

/// The work itself.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Work {
    /// Drain a node, then tell jobs.
    Drain {
        /// Slurm's name.
        node: String,
        /// Reason, normalised.
        reason: String,
        /// Jobs to tell when the node is drained by us.
        jobs: Vec<u32>,
        /// The reason that this node wrote a moment ago.
        young: Option<String>,
    },
    /// The brake's second look.
    SecondLook {
        /// Slurm's name.
        node: String,
        /// Reason as it was written.
        reason: String,
    },
    /// Give a node back.
    GiveBack {
        /// Slurm's name.
        node: String,
        /// The reason that we wrote last.
        written: String,
        /// Id of the fault that is gone.
        id: String,
    },
    /// Look at the rack-scale domains, that of a node or all, and do what the policy says.
    Domains {
        /// The node whose domain is meant; none: all domains.
        node: Option<String>,
        /// False: look only.
        follow: bool,
    },
    /// The brake's second look at the drains of one domain.
    DomainSecondLook {
        /// The trays, with their reasons.
        drained: Vec<Drained>,
    },
    /// Read a node and its partitions, or all nodes.
    Nodes {
        /// The node.
        node: Option<String>,
    },
    /// Tell one job.
    Tell {
        /// Its id.
        job: u32,
        /// What to say.
        text: String,
    },
}

/// What comes back, one line of JSON.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// Slurm was reached, or need not be.
    Report(Report),
    /// Nodes, with their partitions where one was asked for.
    Nodes {
        /// `libslurm` or `scontrol`.
        via: String,
        /// The nodes.
        nodes: Vec<Node>,
        /// Partitions of the one that was asked for.
        partitions: Vec<String>,
    },
    /// Rack-scale domains.
    Domains {
        /// `libslurm` or `scontrol`.
        via: String,
        /// Name, trays, sick ones.
        domains: Vec<rack::Domain>,
        /// Trays that were drained now, for each domain: their second look is due.
        drained: Vec<Vec<Drained>>,
    },
    /// What the second look at a domain's drains did: why it took them back, empty when they stay.
    Stays(String),
    /// It was not: the work may be done later.
    Unreached(String),
}

/// Starts a worker and waits for its answer until `deadline`. The worker is gone, or at least killed, afterwards.
pub fn ask(request: &Request, deadline: Instant) -> Answer {
    match start(request, deadline) {
        Ok(answer) => answer,
        Err(e) => Answer::Unreached(format!("the worker process could not be started: {e}")),
    }
}

fn start(request: &Request, deadline: Instant) -> std::io::Result<Answer> {
    let mut command = Command::new(std::env::current_exe()?);
    command
        .arg(SUBCOMMAND)
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .env("SLURM_CONF", &request.conf)
        .current_dir("/")
        .stdin(sys::handed(&serde_json::to_vec(request)?)?)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = sys::contain(&mut command).spawn()?;
    let lines = child.stdout.take().map(lines_of);
    let said = child.stderr.take().map(lines_of);

    let mut answer = None;
    let mut in_time = true;
    if let Some(lines) = &lines {
        loop {
            match lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => answer = answer.or_else(|| serde_json::from_str::<Answer>(&line).ok()),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    in_time = false;
                    break;
                }
            }
        }
    }
    sys::kill_group(&child);
    // The group is dead, so the rest of what it said comes at once, or never.
    let said: Vec<String> = said
        .map(|s| std::iter::from_fn(|| s.recv_timeout(Duration::from_millis(20)).ok()).collect())
        .unwrap_or_default();
    let said: Vec<String> = said.iter().map(|line| line.chars().take(200).collect()).collect();
    reap(&mut child);
    if let Some(answer) = answer {
        for line in said {
            eprintln!("clustermax-drain: {line}");
        }
        return Ok(answer);
    }
    let last = said.last().map_or(String::new(), |line| format!(": {line}"));
    Ok(Answer::Unreached(if in_time {
        format!("Slurm's library ended the worker process{last}")
    } else {
        format!("the controller did not answer in time{last}")
    }))
}

/// Collects the exit status of a killed worker, unless it is stuck in the kernel.
fn reap(child: &mut std::process::Child) {
    for _ in 0..10 {
        if !matches!(child.try_wait(), Ok(None)) {
            return;
        }
        thread::sleep(Duration::from_millis(2));
    }
}

fn lines_of(pipe: impl Read + Send + 'static) -> Receiver<String> {
    let (send, receive) = channel();
    thread::spawn(move || {
        for line in BufReader::new(pipe).lines() {
            let Ok(line) = line else { break };
            if send.send(line).is_err() {
                break;
            }
        }
    });
    receive
}

/// The worker's own main: one request on stdin, one answer on stdout, then jobs are told.
pub fn main() -> ExitCode {
    let mut text = String::new();
    let request: Request =
        match std::io::stdin().read_to_string(&mut text).map(|_| serde_json::from_str(&text)) {
            Ok(Ok(request)) => request,
            _ => {
                eprintln!("clustermax-drain: `{SUBCOMMAND}` is for clustermax-drain's own use");
                return ExitCode::from(2);
            }
        };
    let mut slurm = match connect(&request.conf, &request.scontrol) {
        Ok(slurm) => slurm,
        Err(why) => {
            let node = match &request.work {
                Work::Drain { node, .. } | Work::SecondLook { node, .. } | Work::GiveBack { node, .. } => {
                    node
                }
                Work::Domains { node: Some(node), .. } | Work::Nodes { node: Some(node) } => node,
                _ => "",
            };
            print(&Answer::Report(Report::new(Outcome::WrongRelease, node, "").detail(why)));
            return ExitCode::SUCCESS;
        }
    };
    let slurm = slurm.as_mut();
    match request.work.clone() {
        Work::Drain { node, reason, jobs, young } => {
            let now = jiff::Timestamp::now().as_second();
            let (of, brake) = (&request.partitions, request.brake);
            let result = drainer::drain(slurm, &node, &reason, of, brake, now, young.as_ref());
            let text = result
                .as_ref()
                .ok()
                .filter(|r| matches!(r.outcome, Outcome::Written | Outcome::Already))
                .map(|r| {
                    let Report { node, reason, .. } = r;
                    format!("clustermax: node {node} is out of service: {reason}. Slurm starts nothing more there.")
                });
            print(&answer(result));
            // The outcome stands by now; whether jobs can be told does not change it.
            for (job, text) in jobs.iter().zip(text.iter().cycle()) {
                if let Err(e) = drainer::tell(slurm, *job, text) {
                    eprintln!("job {job} could not be told: {e}");
                }
            }
        }
        Work::SecondLook { node, reason } => {
            print(&answer(drainer::take_back(slurm, &node, &reason, request.brake)));
        }
        Work::GiveBack { node, written, id } => {
            print(&answer(drainer::give_back(slurm, &node, &written, &id)));
        }
        Work::Domains { node, follow } => {
            let scontrol = Scontrol::new(&request.scontrol, &request.conf);
            let rules = Rules {
                domains: domains(&request, &scontrol),
                partitions: request.partitions.clone(),
                ..request.rack.clone()
            };
            print(&look_at_domains(slurm, &rules, &request.brake, node.as_deref(), follow));
        }
        Work::DomainSecondLook { drained } => {
            print(&match domains::take_back(slurm, &drained, &request.brake) {
                Ok(why) => Answer::Stays(why.unwrap_or_default()),
                Err(e) => answer(Err(e)),
            });
        }
        Work::Nodes { node } => print(&nodes(slurm, node.as_deref())),
        Work::Tell { job, text } => {
            let via = slurm.via();
            print(&answer(drainer::tell(slurm, job, &text).map(|outcome| {
                let mut report = Report::new(outcome, "", "");
                report.via = via.to_string();
                report
            })));
        }
    }
    ExitCode::SUCCESS
}

/// Domains of the configuration, then those of Slurm's topology. Only scontrol shows a topology in all releases.
fn domains(request: &Request, scontrol: &Scontrol) -> Vec<Domain> {
    let mut all = request.rack.domains.clone();
    if request.rack.topology {
        let blocks = check_trusted(&request.scontrol, true)
            .map_err(|e| e.to_string())
            .and_then(|()| scontrol.blocks().map_err(|e| e.to_string()));
        match blocks {
            Ok(blocks) => all.extend(domains_of(blocks)),
            Err(why) => eprintln!("the blocks of Slurm's topology could not be read: {why}"),
        }
    }
    all
}

fn look_at_domains(
    slurm: &mut dyn Slurm,
    rules: &Rules,
    brake: &Settings,
    node: Option<&str>,
    follow: bool,
) -> Answer {
    let now = jiff::Timestamp::now().as_second();
    let mut nodes = match slurm.nodes() {
        Ok(nodes) => nodes,
        Err(e) => return answer(Err(e)),
    };
    let (mut seen, mut drained) = (Vec::new(), Vec::new());
    for domain in
        rules.domains.iter().filter(|d| node.is_none_or(|n| d.nodes.iter().any(|tray| same_name(tray, n))))
    {
        #[allow(clippy::cast_precision_loss, reason = "seconds since 1970 are exact in an f64")]
        let mut state = domains::look(domain, &nodes, rules, now as f64);
        let mut written = Vec::new();
        if follow {
            let followed =
                domains::follow(slurm, domain, &mut state, &nodes, rules, brake, now, &mut written);
            if let Err(e) = followed {
                state.followed = e.to_string();
            }
        }
        // The brake counts for the next domain what this one took.
        if !written.is_empty() {
            match slurm.nodes() {
                Ok(newer) => nodes = newer,
                Err(e) => state.followed = e.to_string(),
            }
        }
        seen.push(state);
        drained.push(written);
    }
    Answer::Domains { via: slurm.via().to_string(), domains: seen, drained }
}

fn nodes(slurm: &mut dyn Slurm, name: Option<&str>) -> Answer {
    let mut read = || -> Result<(Vec<Node>, Vec<String>), SlurmError> {
        let Some(name) = name else { return Ok((slurm.nodes()?, Vec::new())) };
        let Some(node) = drainer::find(slurm, name)? else { return Ok((Vec::new(), Vec::new())) };
        let partitions = slurm.partitions(&node.name)?;
        Ok((vec![node], partitions))
    };
    match read() {
        Ok((nodes, partitions)) => Answer::Nodes { via: slurm.via().to_string(), nodes, partitions },
        Err(e) => answer(Err(e)),
    }
}

fn answer(result: Result<Report, SlurmError>) -> Answer {
    match result {
        Ok(report) => Answer::Report(report),
        Err(SlurmError::NoAnswer(why)) => Answer::Unreached(why),
        Err(SlurmError::Refused(why)) => Answer::Report(Report::new(Outcome::Unreadable, "", "").detail(why)),
    }
}

fn print(answer: &Answer) {
    // A parent that no longer listens has killed us or is about to.
    if let Ok(text) = serde_json::to_string(answer) {
        let mut out = std::io::stdout();
        let _ = writeln!(out, "{text}").and_then(|()| out.flush());
    }
}

/// libslurm where it is of our release, else scontrol.
fn connect(conf: &Path, scontrol: &Path) -> Result<Box<dyn Slurm>, String> {
    let why = match Libslurm::open() {
        Ok(library) => return Ok(Box::new(library.init())),
        Err(why) => why,
    };
    if !scontrol.is_absolute() {
        return Err(format!("{why}; slurm.scontrol = {} is not absolute", scontrol.display()));
    }
    check_trusted(scontrol, true).map_err(|e| format!("{why}; {e}"))?;
    Ok(Box::new(Scontrol::new(scontrol, conf)))
}
