//! One call of `clustermax-drain` on this node: drains, what is kept for later, the brake, returns.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use healthcheck::config::{Config, Enforcement};
use healthcheck::exempt::Exemptions;
use healthcheck::pass::unix_time;
use healthcheck::rack;
use prolog_epilog::brake::{Engaged, Record};
use prolog_epilog::domains::{Drained, Policy, Rules};
use prolog_epilog::node_state::same_name;
use prolog_epilog::notify::{Event, Kind, Ledger};
use prolog_epilog::outcome::{Outcome, Report};
use prolog_epilog::spool::{Spool, Spooled};
use prolog_epilog::{domains, drainer, files, reason, slurm_conf};
use serde::{Deserialize, Serialize};

use crate::worker::{Answer, Request, Work, ask};
use crate::{log, now, operators, sys, tell};

/// When our drain of this time is visible to every node that drained before it (measured with 64 nodes).
pub const SECOND_LOOK: Duration = Duration::from_secs(2);
/// How much longer `--confirm` may take: the second look with its two calls.
pub const CONFIRM: Duration = Duration::from_millis(2500);
/// Waits before further second looks, while the controller does not answer.
pub const RETRIES: [Duration; 4] =
    [Duration::from_secs(3), Duration::from_secs(5), Duration::from_secs(10), Duration::from_secs(20)];

/// One call of the program.
pub struct Drainer {
    pub config: Config,
    pub node: String,
    pub spool: Spool,
    pub brake: Record,
    pub deadline: Instant,
}

impl Drainer {
    pub fn drain(&self, reason: &str, jobs: &[u32], confirm: bool) -> Report {
        if self.config.enforcement == Enforcement::Observe {
            return Report::new(Outcome::Observe, &self.node, reason).detail("enforcement is observe");
        }
        if let Some(engaged) = self.engaged() {
            self.engage(&engaged.why, reason);
            return Report::new(Outcome::Brake, &self.node, reason).detail(format!(
                "the brake is engaged since {} ({}); `clustermax-drain release` releases it",
                engaged.since, engaged.why
            ));
        }
        match self.ask_drain(reason, jobs) {
            answer @ (Answer::Report(_)
            | Answer::Nodes { .. }
            | Answer::Domains { .. }
            | Answer::Stays(_)) => {
                let report = self.report(answer);
                let stands = matches!(report.outcome, Outcome::Written | Outcome::Already | Outcome::Foreign);
                if let (true, Err(e)) = (stands, self.spool.forget(&self.node, reason)) {
                    eprintln!("clustermax-drain: {e}");
                }
                match self.follow_up(&report) {
                    Some(second_look) if confirm => self.confirm(second_look, report),
                    _ => report,
                }
            }
            Answer::Unreached(why) => {
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
        let (node, reason, young) = (self.node.clone(), reason.to_string(), self.young());
        self.ask(Work::Drain { node, reason, jobs: jobs.to_vec(), young }, self.deadline)
    }

    pub fn ask(&self, work: Work, deadline: Instant) -> Answer {
        let conf = &self.config.slurm.conf;
        let Some(conf) = slurm_conf::in_use(conf) else {
            // libslurm would wait a minute for it and then end the process.
            return Answer::Unreached(format!(
                "{} (slurm.conf in the configuration) does not exist",
                conf.display()
            ));
        };
        let mut rack: Rules = (&self.config.rack).into();
        // Nothing is drained from a node that the brake holds back, its domain's other trays neither.
        if matches!(work, Work::Domains { follow: true, .. })
            && rack.policy == Policy::Drain
            && self.engaged().is_some()
        {
            rack.policy = Policy::Event;
        }
        let request = Request {
            conf,
            scontrol: self.config.slurm.scontrol.clone(),
            brake: self.config.brake.into(),
            partitions: self.config.enforce.partitions.clone(),
            rack,
            work,
        };
        ask(&request, deadline)
    }

    /// What a drain leaves to be done: the brake's record, or its second look, which is returned.
    fn follow_up(&self, report: &Report) -> Option<Child> {
        match report.outcome {
            Outcome::Brake => self.engage(&report.detail, &report.reason),
            Outcome::Written => {
                self.wrote(report);
                self.tell(Kind::Drain, &report.reason, &report.detail);
                if report.second_look {
                    return self.start_second_look(&report.reason);
                }
                self.start_domains();
            }
            Outcome::Already if self.config.rack.used() && self.domain_is_old() => self.start_domains(),
            _ => {}
        }
        None
    }

    fn start_second_look(&self, reason: &str) -> Option<Child> {
        self.start(&["second-look", "--reason", reason])
    }

    /// Starts one of our hidden commands, to outlive us.
    fn start(&self, args: &[&str]) -> Option<Child> {
        let started = std::env::current_exe().and_then(|exe| {
            let mut command = Command::new(exe);
            command
                .args(args)
                .arg("--config")
                .arg(&self.config.file)
                .args(["--node", &self.node])
                .env_clear();
            sys::detach(&mut command, Stdio::null())
        });
        started
            .inspect_err(|e| {
                let what = args.first().copied().unwrap_or_default();
                eprintln!("clustermax-drain: {what} could not be started: {e}");
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

    pub fn second_look(&self, reason: &str, limit: Duration) {
        thread::sleep(SECOND_LOOK);
        for wait in RETRIES {
            let work = Work::SecondLook { node: self.node.clone(), reason: reason.to_string() };
            match self.ask(work, Instant::now() + limit) {
                Answer::Unreached(_) => thread::sleep(wait),
                answer => {
                    let report = self.report(answer);
                    if report.outcome == Outcome::Brake {
                        self.engage(&report.detail, reason);
                    }
                    if self.config.rack.used() {
                        self.look_at_domain(limit);
                    }
                    return;
                }
            }
        }
    }

    pub fn notify(&self, job: u32, text: &str) -> Report {
        let mut report = self.report(self.ask(Work::Tell { job, text: text.to_string() }, self.deadline));
        report.node.clone_from(&self.node);
        report
    }

    pub fn deliver(&self) -> Delivery {
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
                    Answer::Unreached(why) => {
                        delivery.outcome = Outcome::Spooled;
                        delivery.detail = why;
                        break;
                    }
                    answer => self.report(answer),
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
                self.wrote(&report);
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
        let (node, jobs, young) = (spooled.node.clone(), spooled.jobs.clone(), self.young());
        self.ask(Work::Drain { node, reason, jobs, young }, self.deadline)
    }

    pub fn status(&self) -> Result<Status, String> {
        let listing = self.spool.list().map_err(|e| e.to_string())?;
        Ok(Status {
            outcome: Outcome::Status,
            node: self.node.clone(),
            enforcement: self.config.enforcement.word(),
            spooled: listing.waiting.into_iter().map(|(_, s)| s).collect(),
            broken: listing.broken.into_iter().map(|(p, why)| format!("{}: {why}", p.display())).collect(),
            brake: self.brake.read().map_err(|e| e.to_string())?,
            exempt: Exemptions::read(&self.config.paths.state_dir, unix_time())?,
            notify: Ledger::read(&self.config.paths.state_dir).map_err(|e| e.to_string())?,
        })
    }

    /// Releases the brake on this node.
    pub fn release(&self) -> Result<Status, String> {
        let released = self.brake.release().map_err(|e| e.to_string())?;
        for refused in released.iter().flat_map(|e| &e.refused) {
            eprintln!("clustermax-drain: held back since {}: {}", refused.time, refused.reason);
        }
        if let Some(engaged) = &released {
            let held = engaged.refused.len();
            let sentence =
                format!("the brake is released; it was engaged since {}: {}", engaged.since, engaged.why);
            operators::note(&self.config, &sentence);
            self.tell(Kind::Release, "", &format!("it had held back {held} drains"));
        }
        self.status()
    }

    /// Gives the node back when it still holds the reason that we wrote last.
    pub fn give_back(&self, id: &str) -> Report {
        if self.config.enforcement == Enforcement::Observe {
            return Report::new(Outcome::Observe, &self.node, "").detail("enforcement is observe");
        }
        let written = match self.written() {
            Ok(Some(written)) => written,
            Ok(None) => {
                return Report::new(Outcome::Foreign, &self.node, "")
                    .detail("no drain of ours was written here");
            }
            Err(why) => return Report::new(Outcome::Unreadable, &self.node, "").detail(why),
        };
        let work = Work::GiveBack { node: self.node.clone(), written, id: id.to_string() };
        let report = self.report(self.ask(work, self.deadline));
        if report.outcome == Outcome::Returned {
            self.tell(Kind::Return, &report.reason, "what drained it passed its check again");
            self.start_domains();
        }
        report
    }

    /// What a worker reported; one that was not answered leaves everything as it is.
    fn report(&self, answer: Answer) -> Report {
        match answer {
            Answer::Report(report) => report,
            Answer::Unreached(why) => Report::new(Outcome::Unreadable, &self.node, "").detail(why),
            Answer::Nodes { .. } | Answer::Domains { .. } | Answer::Stays(_) => {
                Report::new(Outcome::Unreadable, &self.node, "").detail("the worker answered something else")
            }
        }
    }

    /// The reason that we wrote last on this node.
    fn written(&self) -> Result<Option<String>, String> {
        Ok(self.last_written().map_err(|e| e.to_string())?.map(|w| w.reason))
    }

    fn last_written(&self) -> Result<Option<Written>, files::FileError> {
        Ok(files::read(&self.written_file())?.and_then(|t| serde_json::from_str(&t).ok()))
    }

    /// The same when that was a moment ago, in this boot.
    fn young(&self) -> Option<String> {
        let written = self.last_written().ok()??;
        let age = healthcheck::sys::since_boot() - written.since_boot;
        #[allow(clippy::cast_precision_loss, reason = "a minute")]
        let young = written.boot_id == self.boot_id() && (0.0..drainer::FRESH as f64).contains(&age);
        young.then_some(written.reason)
    }

    fn written_file(&self) -> PathBuf {
        self.config.paths.state_dir.join("written.json")
    }

    /// Remembers a reason that stands on the node now: byte for byte this one may be given back.
    fn wrote(&self, report: &Report) {
        let written = Written {
            reason: report.reason.clone(),
            time: now(),
            boot_id: self.boot_id(),
            since_boot: healthcheck::sys::since_boot(),
        };
        if let Err(e) = files::write_json(&self.written_file(), &written) {
            eprintln!("clustermax-drain: {e}; the node will not be given back by itself");
        }
    }

    /// Tells the operators, in a process of its own.
    pub fn tell(&self, kind: Kind, reason: &str, detail: &str) {
        tell::start(&self.config, &Event::new(kind, &self.node, reason, detail, &now()));
    }

    /// Has the node's rack-scale domain looked at, in a process of its own.
    fn start_domains(&self) {
        if self.config.rack.used() {
            let _ = self.start(&["look-at-domain"]);
        }
    }

    /// Looks at the node's rack-scale domain, does what the policy says and keeps what was seen.
    pub fn look_at_domain(&self, limit: Duration) {
        let work = Work::Domains { node: Some(self.node.clone()), follow: true };
        let Answer::Domains { mut domains, drained, .. } = self.ask(work, Instant::now() + limit) else {
            return;
        };
        self.second_looks(&mut domains, drained, limit);
        let Some(seen) = domains.into_iter().next() else { return };
        let state = &self.config.paths.state_dir;
        let sick = seen.sick.iter().any(|tray| same_name(tray, &self.node));
        if let Err(e) = if sick { seen.write(state) } else { rack::Domain::remove(state) } {
            eprintln!("clustermax-drain: {e}");
        }
        let threshold = usize::try_from(self.config.rack.sick).unwrap_or(usize::MAX);
        if domains::tells(&seen, &self.node, threshold) {
            let follows =
                if seen.followed.is_empty() { String::new() } else { format!("; {}", seen.followed) };
            let detail = format!(
                "domain {} is degraded: {} of {} trays are sick ({}){follows}",
                seen.name,
                seen.sick.len(),
                seen.trays,
                seen.sick.join(",")
            );
            self.tell(Kind::Domain, "", &detail);
        }
    }

    /// The brake's second look at what domains have drained; says in `followed` when it took that back.
    pub fn second_looks(&self, seen: &mut [rack::Domain], drained: Vec<Vec<Drained>>, limit: Duration) {
        if drained.iter().all(Vec::is_empty) {
            return;
        }
        thread::sleep(SECOND_LOOK);
        for (domain, drained) in seen.iter_mut().zip(drained).filter(|(_, drained)| !drained.is_empty()) {
            for wait in RETRIES {
                let work = Work::DomainSecondLook { drained: drained.clone() };
                match self.ask(work, Instant::now() + limit) {
                    Answer::Unreached(_) => thread::sleep(wait),
                    Answer::Stays(why) if why.is_empty() => break,
                    Answer::Stays(why) => {
                        domain.followed = why;
                        break;
                    }
                    other => {
                        domain.followed = self.report(other).detail;
                        break;
                    }
                }
            }
        }
    }

    /// Whether what is known of the domain is too old to be shown.
    fn domain_is_old(&self) -> bool {
        rack::Domain::read(&self.config.paths.state_dir).is_none_or(|d| d.is_old(unix_time()))
    }

    /// The engaged brake. One that cannot be read does not stop a drain: a broken disk is a fault by itself.
    fn engaged(&self) -> Option<Engaged> {
        self.brake.read().unwrap_or_else(|e| {
            eprintln!("clustermax-drain: {e}; taken as not engaged");
            None
        })
    }

    fn engage(&self, why: &str, reason: &str) {
        match self.brake.engage(&self.node, why, reason, &now()) {
            Ok(true) => self.tell(Kind::Brake, reason, why),
            Ok(false) => {}
            Err(e) => eprintln!("clustermax-drain: the engaged brake could not be recorded: {e}"),
        }
    }

    fn boot_id(&self) -> String {
        let file = self.config.paths.procfs.join("sys/kernel/random/boot_id");
        std::fs::read_to_string(file).unwrap_or_default().trim().to_string()
    }
}

/// Answer of `deliver`.
#[derive(Serialize)]
pub struct Delivery {
    pub outcome: Outcome,
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

/// `STATE_DIR/written.json`.
#[derive(Serialize, Deserialize)]
struct Written {
    reason: String,
    time: String,
    #[serde(default)]
    boot_id: String,
    /// Seconds.
    #[serde(default)]
    since_boot: f64,
}

/// Answer of `status`, `release` and `exempt`.
#[derive(Serialize)]
pub struct Status {
    pub outcome: Outcome,
    node: String,
    enforcement: &'static str,
    spooled: Vec<Spooled>,
    broken: Vec<String>,
    brake: Option<Engaged>,
    /// Checks whose faults drain nothing for now.
    exempt: Exemptions,
    /// What was told the operators.
    notify: Ledger,
}
