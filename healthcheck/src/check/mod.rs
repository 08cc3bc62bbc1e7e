//! Checks: pure functions from facts to findings. No I/O: a test is a struct literal.

mod amd;
mod dcgm;
mod disks;
mod fabric;
mod fs;
mod gpu;
mod host;
mod ib;
mod kernel;
mod kernel_lines;
mod machine;
mod site;

pub(crate) use host::hindered;
pub(crate) use ib::short_counter_top;
pub(crate) use kernel::check_of;
pub(crate) use kernel_lines::stays_open;

use std::collections::BTreeMap;

use crate::audit;
use crate::catalogue::CATALOGUE;
use crate::config::{Config, Profile, Switch};
use crate::facts::{Facts, Reading};
use crate::history::Counters;
use crate::mode::Mode;
use crate::state::{KnownGpu, State, Strike};
use crate::verdict::{Action, CheckResult, Device, Fault, Finding, Scope, Status};

/// A finding before debouncing: `reads` are needed in a row before a `fail` counts.
pub(crate) struct Raw {
    finding: Finding,
    reads: u32,
    /// Not even told before it has its reads.
    quiet: bool,
    /// No fault yet, however many reads: they may all have seen the same event.
    early: bool,
}

/// What a check function gets.
pub(crate) struct Context<'a> {
    pub facts: &'a Facts,
    pub profile: &'a Profile,
    pub inventory: &'a BTreeMap<String, KnownGpu>,
    /// Counters over time, this pass's readings included.
    pub counters: &'a Counters,
    pub config: &'a Config,
    pub mode: Mode,
}

/// Findings of one pass, with what every check did.
pub struct Findings {
    /// Everything that is not a plain pass.
    pub findings: Vec<Finding>,
    /// One line a check.
    pub checks: Vec<CheckResult>,
    /// Strikes to remember.
    pub strikes: BTreeMap<String, Strike>,
}

/// Builds findings with the catalogue's defaults.
pub(crate) struct Sink<'a> {
    context: &'a Context<'a>,
    raws: Vec<Raw>,
    checks: Vec<CheckResult>,
}

impl Sink<'_> {
    /// A finding of a check; the caller changes what differs from the defaults (whole node, drains, hardware).
    fn finding(&self, check: &str, token: &str, status: Status, device: Option<Device>) -> Finding {
        Finding {
            check: check.into(),
            token: token.into(),
            status,
            device,
            scope: Scope::Node,
            action: Action::Reboot,
            drain: status == Status::Fail,
            fault: Fault::Hardware,
            evidence: String::new(),
            text: String::new(),
            mend: String::new(),
            synthetic: false,
            observe: false,
            event: None,
        }
    }

    fn push(&mut self, finding: Finding) {
        let reads = CATALOGUE.iter().find(|c| c.id == finding.check).map_or(1, |c| c.reads_needed);
        self.push_after(finding, reads);
    }

    /// As [`Sink::push`], with a number of reads of its own.
    fn push_after(&mut self, finding: Finding, reads: u32) {
        self.raws.push(Raw { finding, reads, quiet: false, early: false });
    }

    /// As [`Sink::push`], of a counter's rate: its reads count, but it is a fault only once it `lasts`.
    fn push_lasting(&mut self, finding: Finding, lasts: bool) {
        let before = self.raws.len();
        self.push(finding);
        self.raws[before..].iter_mut().for_each(|raw| raw.early = !lasts);
    }

    /// A finding that is told only after `reads` in a row: what comes and goes on healthy nodes.
    fn push_quiet(&mut self, finding: Finding, reads: u32) {
        self.raws.push(Raw { finding, reads, quiet: true, early: false });
    }

    /// Says what a check did when it found nothing to complain about.
    fn done(&mut self, check: &str, status: Status, detail: impl Into<String>) {
        self.checks.push(CheckResult { check: check.into(), status, detail: detail.into() });
    }

    /// A value that should be there was not read.
    fn unknown(&mut self, check: &str, token: &str, device: Option<Device>, why: &str) {
        let mut f = self.finding(check, token, Status::Unknown, device);
        f.action = Action::None;
        f.evidence = why.into();
        f.text = "could not be read".into();
        self.push(f);
    }

    fn on(&self, check: &str) -> bool {
        self.context.config.switch(check) != Switch::Off
            && CATALOGUE.iter().any(|c| c.id == check && c.runs_in(self.context.mode))
    }
}

/// Runs all checks of the mode. Pure: the same facts, profile and history give the same findings.
#[must_use]
pub fn run(facts: &Facts, config: &Config, history: &State, mode: Mode, now: f64) -> Findings {
    let context = Context {
        facts,
        profile: &config.profile,
        inventory: &history.inventory,
        counters: &history.counters,
        config,
        mode,
    };
    let mut sink = Sink { context: &context, raws: Vec::new(), checks: Vec::new() };
    gpu::run(&context, &mut sink);
    amd::run(&context, &mut sink);
    kernel::run(&context, &mut sink);
    kernel_lines::run(&context, &mut sink);
    ib::run(&context, &mut sink);
    fabric::run(&context, &mut sink);
    machine::run(&context, &mut sink);
    disks::run(&context, &mut sink);
    fs::run(&context, &mut sink);
    host::run(&context, &mut sink);
    dcgm::run(&context, &mut sink);
    site::run(&context, &mut sink);
    let Sink { raws, checks, .. } = sink;
    let (mut findings, mut strikes) = debounce(raws, &history.strikes, now);
    // A check that this mode leaves out was not read: a job's prolog between two periodic passes starts nothing over.
    for (key, strike) in &history.strikes {
        let check = CATALOGUE.iter().find(|c| key.split(' ').next() == Some(c.id));
        if check.is_some_and(|c| !c.runs_in(mode)) {
            strikes.entry(key.clone()).or_insert(*strike);
        }
    }
    for f in &mut findings {
        f.observe = config.switch(&f.check) == Switch::Observe;
    }
    let order = |f: &Finding| CATALOGUE.iter().position(|c| c.id == f.check).unwrap_or(CATALOGUE.len());
    findings.sort_by_key(order);
    let checks = summary(&findings, checks);
    let mut found = Findings { findings, checks, strikes };
    if facts.as_user {
        audit::mark_refused(&mut found);
    }
    found
}

/// A `fail` that needs several reads in a row is a `warn` until it has them. Two passes within a second
/// count as one read: prologs of several jobs may run at once.
fn debounce(
    raws: Vec<Raw>,
    before: &BTreeMap<String, Strike>,
    now: f64,
) -> (Vec<Finding>, BTreeMap<String, Strike>) {
    let mut strikes = BTreeMap::new();
    let mut findings = Vec::with_capacity(raws.len());
    for Raw { mut finding, reads, quiet, early } in raws {
        if (finding.status == Status::Fail || quiet) && reads > 1 {
            let device = finding.device.as_ref().map_or("", |d| d.name.as_str());
            let key = format!("{} {} {device}", finding.check, finding.token);
            // A clock that jumped back must not stop the count.
            let strike = match before.get(&key) {
                Some(s) if (0.0..1.0).contains(&(now - s.last)) => *s,
                Some(s) => Strike { count: s.count.saturating_add(1), last: now },
                None => Strike { count: 1, last: now },
            };
            strikes.insert(key, strike);
            if strike.count < reads || early {
                if quiet {
                    continue;
                }
                finding.status = Status::Warn;
                finding.drain = false;
                let read = format!("read {} of {reads}", strike.count.min(reads));
                let read = if strike.count < reads { read } else { "it does not last yet".to_owned() };
                finding.evidence = format!("{} ({read})", finding.evidence);
            }
        }
        findings.push(finding);
    }
    (findings, strikes)
}

fn summary(findings: &[Finding], done: Vec<CheckResult>) -> Vec<CheckResult> {
    let mut by_check: BTreeMap<String, CheckResult> = BTreeMap::new();
    for c in done {
        by_check.insert(c.check.clone(), c);
    }
    for f in findings {
        let entry = by_check.entry(f.check.clone()).or_insert_with(|| CheckResult {
            check: f.check.clone(),
            status: f.status,
            detail: String::new(),
        });
        if f.status.rank() >= entry.status.rank() {
            entry.status = f.status;
            entry.detail = match &f.device {
                Some(d) => format!("{}: {}", d.name, f.evidence),
                None => f.evidence.clone(),
            };
        }
    }
    let order = |id: &str| CATALOGUE.iter().position(|c| c.id == id).unwrap_or(CATALOGUE.len());
    let mut all: Vec<CheckResult> = by_check.into_values().collect();
    all.sort_by(|a, b| order(&a.check).cmp(&order(&b.check)).then(a.check.cmp(&b.check)));
    all
}

/// The reason a reading has no value, for evidence; `None` when it has one or the thing does not exist.
pub(crate) fn why_missing<T>(reading: &Reading<T>) -> Option<&str> {
    match reading {
        Reading::Unknown(why) | Reading::Hung(why) => Some(why),
        Reading::Value(_) | Reading::Unsupported => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn suspicion(reads: u32) -> Vec<Raw> {
        let config = Config::default();
        let facts = Facts::default();
        let inventory = BTreeMap::new();
        let counters = Counters::default();
        let context = Context {
            facts: &facts,
            profile: &config.profile,
            inventory: &inventory,
            counters: &counters,
            config: &config,
            mode: Mode::Deep,
        };
        let sink = Sink { context: &context, raws: Vec::new(), checks: Vec::new() };
        vec![Raw {
            finding: sink.finding("ib.state", "ibstate", Status::Fail, None),
            reads,
            quiet: false,
            early: false,
        }]
    }

    #[test]
    fn a_suspicion_becomes_a_fault_after_its_reads_in_a_row() {
        let (f, strikes) = debounce(suspicion(2), &BTreeMap::new(), 100.0);
        assert_eq!((f[0].status, f[0].drain), (Status::Warn, false));
        // The same second again is the same read.
        let (f, strikes) = debounce(suspicion(2), &strikes, 100.5);
        assert_eq!(f[0].status, Status::Warn);
        let (f, strikes) = debounce(suspicion(2), &strikes, 105.0);
        assert_eq!((f[0].status, f[0].drain), (Status::Fail, true));
        // A clock that jumped back keeps counting.
        let (f, _) = debounce(suspicion(2), &strikes, 50.0);
        assert_eq!(f[0].status, Status::Fail);
        // A pass without it starts over.
        let (_, strikes) = debounce(Vec::new(), &strikes, 110.0);
        assert!(strikes.is_empty());
    }

    #[test]
    fn a_prolog_between_two_periodic_passes_starts_no_count_over() {
        let mut config = Config::default();
        config.profile.mount.push(crate::config::MountProfile {
            path: "/data".into(),
            fstype: None,
            writable: false,
            network: true,
        });
        let mut facts = Facts::default();
        facts.mount_probes.insert("/data".into(), Reading::Hung("no answer in time".into()));
        let mut history = State::default();
        let mut pass = |mode, now| {
            let found = run(&facts, &config, &history, mode, now);
            history.strikes = found.strikes;
            found.findings.iter().find(|f| f.check == "fs.stale").map(|f| f.status)
        };
        assert_eq!(pass(Mode::Periodic, 100.0), Some(Status::Warn));
        assert_eq!(pass(Mode::Prolog, 130.0), None);
        assert_eq!(pass(Mode::Epilog, 140.0), None);
        assert_eq!(pass(Mode::Periodic, 160.0), Some(Status::Fail));
    }
}
