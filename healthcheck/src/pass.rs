//! One pass: sources -> facts -> findings -> verdict -> sinks.

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::audit;
use crate::check;
use crate::config::{Config, Enforcement};
use crate::drain::{self, Answer, DrainOutcome};
use crate::exempt::Exemptions;
use crate::facts::{Facts, Reading};
use crate::give_back::{Moment, Record};
use crate::jobs::{self, Job, JobEvent};
use crate::kernel_log::{Followers, READ_LIMIT};
use crate::metrics;
use crate::mode::Mode;
use crate::rack;
use crate::source;
use crate::source::child::Meanwhile;
use crate::state::{self, KnownGpu, Locked, State, write_atomic};
use crate::sys;
use crate::totals::Totals;
use crate::verdict::{ACTED_ON, Action, Finding, Status, VERDICT_SCHEMA, Verdict};
use crate::watch;

/// Largest verdict file in bytes: a prolog reads it in one go.
const VERDICT_FILE_MAX: usize = 4096;
/// Longest wait for another pass that holds the state.
const LOCK_WAIT: Duration = Duration::from_secs(2);
/// A node without memory acts on what the kernel log says of this time before, in seconds; older lines were most
/// likely acted on.
const MEMORYLESS: f64 = 600.0;
/// Time a child of `clustermax-drain` may take beyond its own deadline before it is stopped.
const DRAIN_SLACK: Duration = Duration::from_millis(400);
/// Longest time `clustermax-drain --confirm` waits for the brake's second look.
const CONFIRM: Duration = Duration::from_millis(2500);
/// Longest evidence in the verdict file, in characters.
const EVIDENCE_MAX: usize = 160;

/// What a pass found and did.
#[derive(Debug)]
pub struct Report {
    /// The verdict.
    pub verdict: Verdict,
    /// What became of the drain, when one was asked for.
    pub drain: Option<Answer>,
    /// The facts behind it.
    pub facts: Facts,
    /// Jobs on this node, with what happened to them.
    pub jobs: Vec<Job>,
}

/// Runs one pass. `deep` looks at everything and writes nothing; the other modes keep the state, publish the
/// verdict, tell jobs and, in `enforce`, drain.
///
/// `own_job` is the job of a prolog or epilog, whose user is to be told first.
#[must_use]
pub fn run(config: &Config, mode: Mode, own_job: Option<&str>) -> Report {
    let task = Task::new(config, mode, own_job);
    let facts = source::read(config, mode);
    conclude_alone(config, &task, facts)
}

/// One pass by an ordinary user who only looks, with the shipped profile of the GPUs where the configuration has none.
/// The second value names it.
#[must_use]
pub fn audit(config: &Config) -> (Report, Option<&'static str>) {
    let task = Task::new(config, Mode::Audit, None);
    let facts = source::read(config, Mode::Audit);
    let mut config = config.clone();
    let shipped = audit::choose_profile(&mut config, &facts, audit::granted_gpus());
    (conclude_alone(&config, &task, facts), shipped)
}

fn conclude_alone(config: &Config, task: &Task<'_>, facts: Facts) -> Report {
    let mut logs = Followers::new(config, &facts.boot_id, None);
    conclude(config, task, facts, &mut logs, &mut Memory::default())
}

/// What a pass is for.
#[derive(Debug, Clone)]
pub struct Task<'a> {
    /// Which checks run, and the time there is.
    pub mode: Mode,
    /// Word for the verdict's `mode`.
    pub by: &'static str,
    /// The job of a prolog or epilog.
    pub own_job: Option<&'a str>,
    /// When it began.
    pub begun: Instant,
    /// When it has to end.
    pub until: Instant,
    /// The facts are those of an earlier pass, read at this time (seconds since the epoch); only the kernel log is new.
    pub again: Option<f64>,
}

impl<'a> Task<'a> {
    /// A pass that begins now and looks at everything.
    #[must_use]
    pub fn new(config: &Config, mode: Mode, own_job: Option<&'a str>) -> Self {
        let begun = Instant::now();
        let until = begun + config.deadlines.pass(mode);
        Task { mode, by: mode.word(), own_job, begun, until, again: None }
    }
}

/// What a resident process remembers between passes beside the state on disk.
#[derive(Debug, Default)]
pub struct Memory {
    /// The newest state, when the disk would not take it: what is there instead has forgotten what was acted on.
    unsaved: Option<State>,
    /// What became of the last drain.
    answered: Option<(String, DrainOutcome)>,
    /// GPUs as last seen.
    pub inventory: BTreeMap<String, KnownGpu>,
}

/// The second half of a pass: from facts to findings, a verdict and what follows from it.
#[must_use]
pub fn conclude(
    config: &Config,
    task: &Task<'_>,
    facts: Facts,
    logs: &mut Followers,
    memory: &mut Memory,
) -> Report {
    let Task { mode, begun, until, .. } = *task;
    let mut facts = facts;
    // What is decided goes by a clock that nobody sets; the wall clock is for those who read.
    let (now, time) = (sys::since_boot(), unix_time());
    if !mode.only_looks() && task.again.is_none() {
        jobs::close_abandoned(config, &facts.boot_id, now, &timestamp(), mode == Mode::Periodic);
    }
    let (mut state, remembers) = open_state(config, mode, &mut facts, now, until, memory.unsaved.take());
    let mut started = jobs::Started::new(&config.paths.run_dir, &facts.counters, state.history());
    // Read under the lock: of two passes at once only one may see a new line.
    let mut kernel = logs.commit(state.history(), now, Instant::now() + left(until, READ_LIMIT));
    if !remembers {
        state.history().close_older(MEMORYLESS, facts.uptime);
    }
    kernel.events.clone_from(&state.history().events);
    facts.kernel = Reading::Value(kernel);
    // Old facts are no second reading: not of a counter, and not of a suspicion either.
    if task.again.is_none() {
        state.history().counters.record(&facts.counters, now);
    }
    let strikes = state.history().strikes.clone();
    if task.again.is_some() {
        state.history().strikes.values_mut().for_each(|s| s.last = now);
    }
    let mut jobs = jobs::list(&config.paths.run_dir);
    facts.jobs = jobs.iter().map(Job::here).collect();
    facts.own_job = task.own_job.map(str::to_string);

    let mut outcome = check::run(&facts, config, state.history(), mode, now);
    exempt(config, mode, time, &mut outcome.findings);
    let history = state.history();
    history.strikes = if task.again.is_some() { strikes } else { outcome.strikes };
    remember_gpus(history, &facts);
    settle_harmless(history, &outcome.findings, config, mode);
    // Facts of an earlier pass may be mended by now: what rests on them is shown and not acted on again.
    let news: Vec<Finding> = match task.again {
        Some(_) => outcome.findings.iter().filter(|f| f.event.is_some()).cloned().collect(),
        None => Vec::new(),
    };
    let acts = task.again.is_none() || news.iter().any(Finding::drains);
    let worst = Verdict::worst(&news).or_else(|| Verdict::worst(&outcome.findings));
    let mut verdict = Verdict {
        schema: VERDICT_SCHEMA.into(),
        node: config.node.clone(),
        boot_id: facts.boot_id.clone(),
        config_hash: config.hash.clone(),
        mode: task.by.into(),
        enforcement: config.enforcement.word().into(),
        time: timestamp(),
        seconds: 0.0,
        status: outcome.findings.iter().map(|f| f.status).max_by_key(|s| s.rank()).unwrap_or(Status::Pass),
        action: outcome
            .findings
            .iter()
            .filter(|f| f.status == Status::Fail)
            .map(|f| f.action)
            .max()
            .unwrap_or_default(),
        drain: outcome.findings.iter().any(Finding::drains),
        reason: worst.map(Finding::reason),
        drain_outcome: None,
        findings: outcome.findings,
        checks: outcome.checks,
        left_out: 0,
    };
    if mode.only_looks() {
        verdict.seconds = begun.elapsed().as_secs_f64();
        return Report { verdict, drain: None, facts, jobs };
    }

    state.history().totals.pass(&verdict, &facts, task.again.unwrap_or(time), begun.elapsed().as_secs_f64());
    memory.unsaved = state.save(&mut verdict);
    memory.inventory.clone_from(&state.history().inventory);
    let mut totals = state.history().totals.clone();
    started.read_kernel(&totals);
    drop(state);
    let look = jobs::Look::new(&facts, &started, verdict.time.clone(), now);
    let news = tell_job_files(config, &mut jobs, &verdict, &look);
    verdict.seconds = begun.elapsed().as_secs_f64();
    // Published before Slurm is asked, since a dead controller must not keep the news from anybody, and again
    // with the answer: the plugin refuses no step on a node that stays in service.
    let known = memory.answered.take().filter(|(reason, _)| !acts && Some(reason) == verdict.reason.as_ref());
    verdict.drain_outcome =
        verdict.reason.as_ref().map(|_| known.as_ref().map_or("pending", |(_, o)| o.word()).into());
    memory.answered = known;
    publish(config, &mut verdict);
    let drain = if acts { answer(config, &verdict, task, &jobs, logs, memory) } else { None };
    if let Some(answer) = &drain {
        memory.answered = verdict.reason.clone().map(|reason| (reason, answer.outcome));
        verdict.drain_outcome = Some(answer.outcome.word().into());
        publish(config, &mut verdict);
        count_drain(config, &verdict, &mut totals, answer.outcome, until);
    }
    // A healthy job costs nothing more; what its hooks saw is published by the next periodic pass.
    if mode == Mode::Periodic || drain.is_some() {
        for done in [totals.publish(config, time), metrics::publish(config, &verdict, &totals)] {
            if let Err(why) = done {
                tracing::warn!("{why}");
            }
        }
    }
    notify(config, &news, until, logs);
    if mode == Mode::Periodic && task.by != watch::MODE {
        deliver(config, until, logs);
        if rack::Domain::read(&config.paths.state_dir).is_some_and(|d| d.is_old(time)) {
            let limit = left(until, config.deadlines.drain() + DRAIN_SLACK);
            reading(logs, |m| drain::look_at_domain(config, limit, m));
        }
    }
    give_back(config, task, &verdict, drain.as_ref(), logs);
    Report { verdict, drain, facts, jobs }
}

/// What operators exempted for a time drains nothing. Users cannot read the exemptions: they see what would drain.
fn exempt(config: &Config, mode: Mode, time: f64, findings: &mut [Finding]) {
    match Exemptions::read(&config.paths.state_dir, time) {
        Ok(exempt) => exempt.apply(findings),
        Err(why) if matches!(mode, Mode::Prolog | Mode::Epilog | Mode::Periodic) => tracing::warn!("{why}"),
        Err(_) => {}
    }
}

/// Gives the node back when `[return]` is set and what drained it is well again.
fn give_back(
    config: &Config,
    task: &Task<'_>,
    verdict: &Verdict,
    drain: Option<&Answer>,
    logs: &mut Followers,
) {
    let rule = &config.give_back;
    if rule.passes == 0 || config.enforcement == Enforcement::Observe {
        return;
    }
    let dir = &config.paths.state_dir;
    let now = Moment { boot_id: verdict.boot_id.clone(), since_boot: sys::since_boot(), time: unix_time() };
    let mut record = Record::read(dir);
    let before = record.clone();
    let known = record.drained.is_some();
    // Drained before `[return]` was set: from now on its passes count.
    let ours = |o| {
        matches!(o, DrainOutcome::Written | DrainOutcome::Spooled) || o == DrainOutcome::Already && !known
    };
    if drain.is_some_and(|a| ours(a.outcome)) {
        record.drained(verdict);
    } else if task.mode == Mode::Periodic
        && task.again.is_none()
        && let Some(id) = record.pass(rule, verdict, &now)
    {
        let limit = left(task.until, config.deadlines.drain() + DRAIN_SLACK);
        let answer = reading(logs, |m| drain::give_back(config, &id, limit, m));
        tracing::warn!("{}: return after {id}: {:?} {}", verdict.node, answer.outcome, answer.detail);
        match answer.outcome {
            DrainOutcome::Returned => {
                record.settled(true, now);
                let word = answer.outcome.word();
                change_state(config, verdict, task.until, |state| state.totals.drain(word));
            }
            // Somebody else decided, or nothing of ours is there.
            DrainOutcome::Foreign | DrainOutcome::Observe => record.settled(false, now),
            _ => {}
        }
    }
    if record != before
        && let Err(why) = record.write(dir)
    {
        tracing::warn!("{why}");
    }
}

/// Seconds since the epoch.
#[must_use]
pub fn unix_time() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64())
}

/// Now, UTC, RFC 3339 with milliseconds.
#[must_use]
pub fn timestamp() -> String {
    format!("{:.3}", jiff::Timestamp::now())
}

/// A time given in seconds since boot, as [`timestamp`] writes it.
#[must_use]
pub fn timestamp_at(since_boot: f64) -> String {
    let ago = Duration::try_from_secs_f64(sys::since_boot() - since_boot).unwrap_or_default();
    format!("{:.3}", jiff::Timestamp::now() - ago)
}

/// GPUs of this node as last seen; empty when nothing is known.
#[must_use]
pub fn inventory(config: &Config) -> BTreeMap<String, KnownGpu> {
    let boot_id = source::boot_id(&config.paths.procfs);
    state::peek(&config.paths, &boot_id, sys::since_boot()).map(|s| s.inventory).unwrap_or_default()
}

fn left(until: Instant, most: Duration) -> Duration {
    until.saturating_duration_since(Instant::now()).min(most)
}

/// The state, locked; or, when it cannot be had, a copy that is not kept.
enum History {
    Kept(Box<Locked>),
    Lent(Box<State>),
}

impl History {
    fn history(&mut self) -> &mut State {
        match self {
            History::Kept(locked) => &mut locked.state,
            History::Lent(state) => state,
        }
    }

    /// Writes the state; a copy of it when that is not possible.
    fn save(&mut self, verdict: &mut Verdict) -> Option<State> {
        match self {
            History::Kept(locked) => match locked.save() {
                Ok(said) => {
                    said.iter().for_each(|why| complain(verdict, why));
                    None
                }
                Err(why) => {
                    complain(verdict, &why);
                    Some(locked.state.clone())
                }
            },
            History::Lent(state) => Some(State::clone(state)),
        }
    }
}

/// Adds a complaint about our own state that came up after the checks.
fn complain(verdict: &mut Verdict, why: &str) {
    tracing::warn!("{why}");
    if let Some(own) = verdict.checks.iter_mut().find(|c| c.check == "node.self") {
        own.status = Status::Warn;
        own.detail = why.to_string();
    }
    if verdict.status.rank() < Status::Warn.rank() {
        verdict.status = Status::Warn;
    }
    // A verdict that warns says why.
    verdict.findings.push(check::hindered(why));
}

/// The state, and whether the node remembers by it what it has acted on.
///
/// `unsaved` is what this process knows better than the disk.
fn open_state(
    config: &Config,
    mode: Mode,
    facts: &mut Facts,
    now: f64,
    until: Instant,
    unsaved: Option<State>,
) -> (History, bool) {
    let paths = &config.paths;
    if mode == Mode::Audit {
        // Not even its folder is made.
        let copy = state::peek(paths, &facts.boot_id, now);
        let remembers = copy.is_some();
        return (History::Lent(Box::new(copy.unwrap_or_default())), remembers);
    }
    match Locked::open(paths, &facts.boot_id, now, left(until, LOCK_WAIT)) {
        Ok(mut locked) => {
            let remembers = locked.complaint.is_none() || unsaved.is_some();
            facts.complaints.extend(locked.complaint.clone());
            locked.state = unsaved.unwrap_or(locked.state);
            (History::Kept(Box::new(locked)), remembers)
        }
        Err(why) => {
            // A user looking by hand cannot read root's state: not worth a complaint.
            if !mode.only_looks() {
                facts.complaints.push(why);
            }
            // Without what was written last, every line of this boot would be new again.
            let copy = unsaved.or_else(|| state::peek(paths, &facts.boot_id, now));
            let remembers = copy.is_some();
            (History::Lent(Box::new(copy.unwrap_or_default())), remembers)
        }
    }
}

/// GPUs seen now are this node's, also after they vanish.
fn remember_gpus(history: &mut State, facts: &Facts) {
    for gpu in facts.nvml.value().map_or(&[][..], |n| &n.gpus) {
        if let (Some(pci), Some(minor), Some(uuid)) = (gpu.pci.value(), gpu.minor.value(), gpu.uuid.value()) {
            history.inventory.insert(pci.clone(), KnownGpu { minor: *minor, uuid: uuid.clone() });
        }
    }
}

/// Events that ask for no drain are done once they were reported.
fn settle_harmless(history: &mut State, findings: &[Finding], config: &Config, mode: Mode) {
    let open: Vec<&String> =
        findings.iter().filter(|f| f.status == Status::Fail).filter_map(|f| f.event.as_ref()).collect();
    let settled =
        |e: &&mut crate::facts::SeenEvent| !open.contains(&&e.key) && !check::stays_open(e, config, mode);
    for event in history.events.iter_mut().filter(settled) {
        event.handled = true;
    }
}

/// Adds findings to the files of the jobs they concern; returns what is new, by job.
fn tell_job_files(
    config: &Config,
    jobs: &mut [Job],
    verdict: &Verdict,
    look: &jobs::Look<'_>,
) -> Vec<(String, String)> {
    let mut news = Vec::new();
    for job in jobs.iter_mut() {
        let mut fresh = Vec::new();
        let told = jobs::follow(config, &job.job, |job| {
            fresh = tell_job(job, verdict);
            job.advance(look);
        });
        match told {
            Ok(Some(now)) => *job = now,
            // It ended while this pass looked.
            Ok(None) => {}
            Err(why) => tracing::warn!("{why}"),
        }
        news.extend(fresh.into_iter().map(|text| (job.job.clone(), text)));
    }
    news
}

/// Adds findings to one job; what is new for its user and no drain tells.
fn tell_job(job: &mut Job, verdict: &Verdict) -> Vec<String> {
    let mut news = Vec::new();
    let gpus: Vec<u32> = job.gpus.iter().map(|g| g.index).collect();
    let id = job.job.clone();
    for f in verdict.findings.iter().filter(|f| worth_telling(f, &id, &gpus)) {
        let device = f.device.as_ref().map_or(String::new(), |d| d.name.clone());
        let event = JobEvent {
            time: verdict.time.clone(),
            check: f.check.clone(),
            token: f.token.clone(),
            device: device.clone(),
            fault: f.fault,
            action: f.action,
            drain: f.drains(),
            text: f.text.clone(),
            event: f.event.clone(),
        };
        // A drain tells the jobs it concerns by itself.
        let is_new = job.add(event);
        if is_new {
            tracing::warn!("job {}: {device}: {}: {}", job.label(), f.token, f.text);
        }
        if is_new && !f.drains() {
            let of = if device.is_empty() { String::new() } else { format!(", {device}") };
            let whose = match f.fault {
                crate::verdict::Fault::Program => "usually an error in the program, not the hardware",
                crate::verdict::Fault::Hardware => "the hardware, not the program",
                crate::verdict::Fault::Setup => "the node's set-up, not the program",
            };
            news.push(format!("clustermax: node {}{of}: {}: {} ({whose})", verdict.node, f.token, f.text));
        }
    }
    news
}

/// A job hears of faults of its GPUs, and of anything that takes the node away.
fn worth_telling(finding: &Finding, job: &str, gpus: &[u32]) -> bool {
    let is_own = |d: &crate::verdict::Device| {
        // A line about a job itself names it where others name a device.
        d.index.is_some_and(|i| gpus.contains(&i)) || d.name.strip_prefix("job") == Some(job)
    };
    let own = finding.device.as_ref().is_some_and(is_own);
    // Whoever it happened to was told; it did not happen to a job that came after.
    if finding.evidence.ends_with(ACTED_ON) {
        return false;
    }
    (own && finding.action >= Action::TellUser) || Verdict::concerns(finding, gpus)
}

/// Writes the verdict file.
fn publish(config: &Config, verdict: &mut Verdict) {
    let path = config.paths.run_dir.join("verdict.json");
    // A prolog may go by what `watch` published; a pass that found nothing more must not take that away.
    if verdict.mode != watch::MODE && !verdict.drain && watch::stands(config) {
        return;
    }
    let text = compact(verdict);
    let written = jobs::make_public_dir(&config.paths.run_dir).and_then(|()| {
        write_atomic(&path, text.as_bytes(), 0o644, None)
            .map_err(|e| format!("{} cannot be written: {e}", path.display()))
    });
    if let Err(why) = written {
        complain(verdict, &why);
    }
}

/// The verdict without its list of checks, evidence cut, and as many findings as fit into 4 KiB.
fn compact(verdict: &Verdict) -> String {
    let mut small = verdict.clone();
    small.checks.clear();
    for f in &mut small.findings {
        f.evidence = f.evidence.chars().take(EVIDENCE_MAX).collect();
        f.mend.clear();
    }
    loop {
        let text = serde_json::to_string(&small).unwrap_or_default();
        if text.len() <= VERDICT_FILE_MAX || small.findings.is_empty() {
            return text;
        }
        // The least urgent goes: a warning before a failure, the last before the first.
        let last = small.findings.iter().rposition(|f| !f.drains()).unwrap_or(small.findings.len() - 1);
        small.findings.remove(last);
        small.left_out += 1;
    }
}

/// Asks for the drain and settles the events behind it.
fn answer(
    config: &Config,
    verdict: &Verdict,
    task: &Task<'_>,
    jobs: &[Job],
    logs: &mut Followers,
    memory: &mut Memory,
) -> Option<Answer> {
    let Task { mode, own_job, until, .. } = *task;
    let reason = verdict.reason.as_ref()?;
    let answer = match config.enforcement {
        Enforcement::Observe => {
            Answer { outcome: DrainOutcome::Observe, detail: "observe: not drained".into() }
        }
        Enforcement::Enforce => {
            let mut told: Vec<String> = own_job.map(str::to_string).into_iter().collect();
            for job in jobs {
                let gpus: Vec<u32> = job.gpus.iter().map(|g| g.index).collect();
                if verdict.findings.iter().any(|f| Verdict::concerns(f, &gpus)) && !told.contains(&job.job) {
                    told.push(job.job.clone());
                }
            }
            // A prolog that says no and whose drain the brake then takes back would be retried by Slurm and end in
            // "Prolog error": it waits for the brake's second look, when there is time.
            let brief = config.deadlines.drain() + DRAIN_SLACK;
            let patient = brief + CONFIRM;
            let confirm = matches!(mode, Mode::Prolog | Mode::Epilog) && left(until, patient) == patient;
            let limit = left(until, if confirm { patient } else { brief });
            reading(logs, |m| drain::drain(config, reason, &told, confirm, limit, m))
        }
    };
    tracing::warn!("{}: {reason}: {:?} {}", verdict.node, answer.outcome, answer.detail);
    if answer.outcome.settles() {
        let keys: Vec<String> =
            verdict.findings.iter().filter(|f| f.drains()).filter_map(|f| f.event.clone()).collect();
        if let Some(unsaved) = &mut memory.unsaved {
            unsaved.handled(&keys);
        } else if !keys.is_empty() {
            change_state(config, verdict, until, |state| state.handled(&keys));
        }
    }
    Some(answer)
}

/// Counts what became of a drain, in the state and in the copy that is about to be published.
fn count_drain(
    config: &Config,
    verdict: &Verdict,
    totals: &mut Totals,
    outcome: DrainOutcome,
    until: Instant,
) {
    totals.drain(outcome.word());
    change_state(config, verdict, until, |state| state.totals.drain(outcome.word()));
}

/// Changes the state on disk after the pass has let go of it.
fn change_state(config: &Config, verdict: &Verdict, until: Instant, change: impl FnOnce(&mut State)) {
    match Locked::open(&config.paths, &verdict.boot_id, sys::since_boot(), left(until, LOCK_WAIT)) {
        Ok(mut locked) => {
            change(&mut locked.state);
            // That it is kept elsewhere was said by the pass.
            if let Err(why) = locked.save() {
                tracing::warn!("{why}");
            }
        }
        Err(why) => tracing::warn!("{why}"),
    }
}

/// Waits for a child while the kernel logs are read on: the ring may not hold what comes in that time.
fn reading<T>(logs: &mut Followers, call: impl FnOnce(&mut Meanwhile<'_>) -> T) -> T {
    let fds = logs.fds();
    let mut work = || {
        logs.advance(Instant::now() + Duration::from_millis(100));
    };
    call(&mut Meanwhile { fds, work: &mut work })
}

/// Tells jobs what is new for them and no drain has told them yet.
fn notify(config: &Config, news: &[(String, String)], until: Instant, logs: &mut Followers) {
    if config.enforcement == Enforcement::Observe {
        return;
    }
    for (job, text) in news {
        let limit = left(until, config.deadlines.drain() + DRAIN_SLACK);
        if limit.is_zero() {
            tracing::warn!("no time left to tell job {job}: {text}");
            return;
        }
        let answer = reading(logs, |m| drain::notify(config, job, text, limit, m));
        if answer.outcome == DrainOutcome::Failed {
            tracing::warn!("job {job} could not be told: {}", answer.detail);
        }
    }
}

/// Delivers what is in the spool.
pub(crate) fn deliver(config: &Config, until: Instant, logs: &mut Followers) {
    let limit = left(until, config.deadlines.drain() + DRAIN_SLACK);
    if config.enforcement == Enforcement::Enforce
        && let Some(answer) = reading(logs, |m| drain::deliver(config, limit, m))
    {
        tracing::info!("spool: {:?} {}", answer.outcome, answer.detail);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::{Device, Fault, Scope};
    use std::path::Path;

    fn finding(n: u32, drain: bool) -> Finding {
        Finding {
            check: "gpu.xid".into(),
            token: "xid79".into(),
            status: if drain { Status::Fail } else { Status::Warn },
            device: Some(Device::gpu(n, "0000:5d:00.0")),
            scope: Scope::Device,
            action: Action::Reboot,
            drain,
            fault: Fault::Hardware,
            evidence: "x".repeat(500),
            text: "fell off the bus".into(),
            mend: "reboot".into(),
            synthetic: false,
            observe: false,
            event: None,
        }
    }

    fn verdict(findings: Vec<Finding>) -> Verdict {
        Verdict {
            schema: VERDICT_SCHEMA.into(),
            node: "n1".into(),
            boot_id: "b".into(),
            config_hash: "00000000".into(),
            mode: "periodic".into(),
            enforcement: "enforce".into(),
            time: timestamp(),
            seconds: 0.1,
            status: Status::Fail,
            action: Action::Reboot,
            drain: true,
            reason: None,
            drain_outcome: None,
            findings,
            checks: Vec::new(),
            left_out: 0,
        }
    }

    #[test]
    fn the_verdict_file_stays_small_and_keeps_what_drains() {
        let mut all: Vec<Finding> = (0..30).map(|n| finding(n, false)).collect();
        all.push(finding(99, true));
        let text = compact(&verdict(all));
        assert!(text.len() <= VERDICT_FILE_MAX, "{}", text.len());
        let back: Verdict = serde_json::from_str(&text).unwrap();
        assert!(back.findings.iter().any(|f| f.device.as_ref().unwrap().index == Some(99)));
        assert_eq!(usize::try_from(back.left_out).unwrap() + back.findings.len(), 31);
    }

    #[test]
    fn reasons_are_short_ascii_and_name_the_device_first() {
        let mut f = finding(3, true);
        let reason = f.reason();
        assert!(reason.starts_with("cmx:xid79 g3 fell off the bus; act=reboot id="), "{reason}");
        f.text = "\u{1F600}\n\"quoted\" ".repeat(100);
        let reason = f.reason();
        assert!(reason.len() <= crate::verdict::REASON_MAX && reason.is_ascii() && !reason.contains('\n'));
        assert!(reason.ends_with(&format!("; act=reboot id={}", f.id())), "{reason}");
    }

    #[test]
    fn only_jobs_on_the_device_are_concerned() {
        let f = finding(3, true);
        assert!(Verdict::concerns(&f, &[3]) && !Verdict::concerns(&f, &[1, 2]));
        let node = Finding { device: None, scope: Scope::Node, ..f.clone() };
        assert!(Verdict::concerns(&node, &[]));
        assert!(!Verdict::concerns(&Finding { observe: true, ..f }, &[3]));
    }

    /// After an operator had given a node back, its next jobs were told that their GPU had just fallen off the bus.
    #[test]
    fn an_event_acted_on_before_is_no_news_of_a_later_job() {
        let mut f = Finding { status: Status::Warn, ..finding(3, false) };
        assert!(worth_telling(&f, "7", &[3]));
        f.evidence.push_str(ACTED_ON);
        assert!(!worth_telling(&f, "7", &[3]));
    }

    /// A node in a folder: its kernel log holds one uncontained memory error of a GPU that it knows.
    fn node(dir: &Path, uptime: &str) -> Config {
        let put = |path: &str, text: &str| {
            let path = dir.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        put("proc/sys/kernel/random/boot_id", "b\n");
        put("proc/uptime", uptime);
        put(
            "kmsg",
            "3,7,1000000,-;NVRM: Xid (PCI:74da:5d:00): 95, pid='<unknown>', name=<unknown>, Uncontained: LTC TAG (0x2,0x1). RST: Yes, D-RST: No\n",
        );
        let mut config = Config { node: "n1".into(), ..Config::default() };
        config.paths.procfs = dir.join("proc");
        config.paths.sysfs = dir.join("sys");
        config.paths.dev = dir.join("dev");
        config.paths.kmsg = dir.join("kmsg");
        config.paths.nvml = dir.join("none.so");
        config.paths.run_dir = dir.join("run");
        config.paths.state_dir = dir.join("state");
        let mut locked = Locked::open(&config.paths, "b", 0.0, LOCK_WAIT).unwrap();
        locked.state.inventory.insert("74da:5d:00.0".into(), KnownGpu { minor: 3, uuid: "GPU-3".into() });
        locked.save().unwrap();
        config
    }

    fn xid95(config: &Config) -> Option<(Status, bool)> {
        let verdict = run(config, Mode::Prolog, None).verdict;
        verdict.findings.iter().find(|f| f.token == "xid95").map(|f| (f.status, f.drains()))
    }

    #[test]
    fn an_event_is_acted_on_once_even_when_another_pass_holds_the_state() {
        let dir = tempfile::tempdir().unwrap();
        let config = node(dir.path(), "100.0 1.0");
        assert_eq!(xid95(&config), Some((Status::Fail, true)));
        assert_eq!(xid95(&config), Some((Status::Warn, false)));
        let held = Locked::open(&config.paths, "b", 0.0, LOCK_WAIT).unwrap();
        assert_eq!(xid95(&config), Some((Status::Warn, false)), "an operator gave the node back");
        drop(held);
    }

    #[test]
    fn a_damaged_state_does_not_make_old_events_new() {
        for (uptime, status) in [("100000.0 1.0", Status::Warn), ("100.0 1.0", Status::Fail)] {
            let dir = tempfile::tempdir().unwrap();
            let config = node(dir.path(), uptime);
            // A line without an address, since the node forgets its GPUs as well.
            let line = "3,7,1000000,-;NVRM: nvidia-uvm: uvm encountered global fatal error 0x60, requiring os reboot to recover.\n";
            std::fs::write(dir.path().join("kmsg"), line).unwrap();
            let uvm = || {
                let findings = run(&config, Mode::Prolog, None).verdict.findings;
                findings.iter().find(|f| f.check == "gpu.lost_text").map(|f| f.status)
            };
            assert_eq!(uvm(), Some(Status::Fail));
            std::fs::write(config.paths.state_dir.join("state.json"), "{\"boot_id\":\"b").unwrap();
            assert_eq!(uvm(), Some(status), "{uptime}");
        }
    }

    #[test]
    fn a_node_that_cannot_keep_state_still_acts_on_what_is_new() {
        let dir = tempfile::tempdir().unwrap();
        let config = node(dir.path(), "100.0 1.0");
        let held = Locked::open(&config.paths, "b", 0.0, LOCK_WAIT).unwrap();
        assert_eq!(xid95(&config), Some((Status::Fail, true)));
        drop(held);
        assert_eq!(xid95(&config), Some((Status::Fail, true)), "not lost for the next pass");
    }
}
