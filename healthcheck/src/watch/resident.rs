//! The resident loop: one thread, one poll. Whatever it waits for (a source, a drain), the kernel logs are read on.

use std::fs::{File, Permissions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

use super::notify::Notifier;
use super::{ANSWER_SCHEMA, Fresh, MODE, lock, socket};
use crate::config::Config;
use crate::drain;
use crate::facts::{Facts, Reading};
use crate::jobs::{JobGpu, make_public_dir};
use crate::kernel_log::Followers;
use crate::mode::Mode;
use crate::pass::{self, Memory, Task};
use crate::source;
use crate::source::child::{Meanwhile, Resident};
use crate::state;
use crate::sys;
use crate::verdict::Action;

/// How long a start waits for the lock: a pass that looks whether somebody holds it has it for a moment.
const LOCK_WAIT: Duration = Duration::from_secs(2);
/// How often a kernel log without a descriptor to wait on (a regular file) is looked at.
const LOOK_AT_FILES: Duration = Duration::from_millis(250);
/// Longest reading of the kernel logs before others get their turn.
const READ_LIMIT: Duration = Duration::from_millis(200);
/// Least time between passes that kernel lines ask for.
const BETWEEN_LOOKS: Duration = Duration::from_secs(2);
/// A wall clock that moved by more than this against the time since boot, in seconds, was set.
const CLOCK_SET: f64 = 10.0;
/// First and longest time between attempts to deliver the spool.
const DELIVER: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(300));

/// Runs until SIGTERM or SIGINT.
///
/// # Errors
/// One sentence: another one runs, or the run folder cannot be used.
pub fn run(config: &Config) -> Result<(), String> {
    make_public_dir(&config.paths.run_dir)?;
    let _lock = take_lock(&lock(&config.paths.run_dir))?;
    let stop = sys::stop_signals().map_err(|e| format!("signals cannot be caught: {e}"))?;
    let boot_id = source::boot_id(&config.paths.procfs);
    let known = state::peek(&config.paths, &boot_id, sys::since_boot());
    let mut watch = Watch {
        config,
        logs: Followers::new(config, &boot_id, known.as_ref()),
        boot_id,
        memory: Memory::default(),
        server: listen(&socket(&config.paths.run_dir)),
        notifier: Notifier::new(|name| std::env::var(name).ok()),
        facts: None,
        look: false,
        clock: None,
    };
    let mut nvml = Resident::default();
    let interval = Duration::from_secs(config.watch.interval);
    let mut due = Instant::now();
    let mut ended = None;
    let mut spool = Spool { due: Instant::now(), delay: DELIVER.0 };
    tracing::info!("watching {} every {} s", config.node, interval.as_secs());
    while !sys::asked_to_stop() {
        let now = Instant::now();
        let looked = ended.is_some_and(|t: Instant| now < t + BETWEEN_LOOKS);
        if now >= due || (watch.look && !looked) {
            due = now + interval;
            watch.pass(&mut nvml, stop.as_raw_fd());
            if ended.is_none() {
                watch.notifier.send("READY=1");
            }
            ended = Some(Instant::now());
        }
        watch.tend();
        spool.deliver(config, &mut watch.logs);
        let mut wait = due.saturating_duration_since(Instant::now()).min(DELIVER.0);
        if watch.logs.must_be_looked_at() {
            wait = wait.min(LOOK_AT_FILES);
        }
        if watch.look {
            wait = wait.min(BETWEEN_LOOKS);
        }
        wait = watch.notifier.every().map_or(wait, |every| wait.min(every / 2));
        let mut fds = watch.fds();
        fds.push(stop.as_raw_fd());
        if !sys::asked_to_stop() {
            sys::poll_readable(&fds, wait);
        }
    }
    watch.notifier.send("STOPPING=1");
    // Lines read and not acted on stay before the cursor: the next start reads them again.
    nvml.release();
    let _ = std::fs::remove_file(socket(&config.paths.run_dir));
    tracing::info!("stopped");
    Ok(())
}

struct Watch<'a> {
    config: &'a Config,
    boot_id: String,
    logs: Followers,
    memory: Memory,
    server: Option<UnixListener>,
    notifier: Notifier,
    facts: Option<Seen>,
    /// A kernel line or a gap asks for a pass.
    look: bool,
    /// When this machine booted by the wall clock of the last pass, seconds since the epoch.
    clock: Option<f64>,
}

/// What the last timed pass saw.
struct Seen {
    facts: Facts,
    began: Instant,
    /// Seconds since the epoch.
    time: f64,
}

impl Watch<'_> {
    fn fds(&self) -> Vec<i32> {
        let mut fds = self.logs.fds();
        fds.extend(self.server.as_ref().map(AsRawFd::as_raw_fd));
        fds
    }

    /// Looks at everything.
    fn pass(&mut self, nvml: &mut Resident, stop: i32) {
        self.look = false;
        let config = self.config;
        let task = Task { by: MODE, ..Task::new(config, Mode::Periodic, None) };
        let time = pass::unix_time();
        self.look_at_clock(time - sys::since_boot());
        let mut fds = self.fds();
        fds.push(stop);
        let mut meanwhile = Meanwhile { fds, work: &mut || self.tend() };
        let facts = source::read_with(config, Mode::Periodic, Some(nvml), &mut meanwhile);
        let report = pass::conclude(config, &task, facts, &mut self.logs, &mut self.memory);
        // A resident NVML client would keep the operator from resetting a GPU.
        if report.verdict.action >= Action::ResetGpu {
            nvml.release();
        }
        let mut facts = report.facts;
        facts.kernel = Reading::default();
        facts.counters.clear();
        self.facts = Some(Seen { facts, began: task.begun, time });
    }

    /// Says that the clock was set: times in logs and verdicts jump, and nothing else does.
    fn look_at_clock(&mut self, booted: f64) {
        let set = self.clock.replace(booted).map_or(0.0, |before| booted - before);
        if set.abs() > CLOCK_SET {
            tracing::warn!("the clock was set by {set:+.0} s; what is decided goes by the time since boot");
        }
    }

    /// What must never wait for long: the kernel logs, whoever asks, the watchdog.
    fn tend(&mut self) {
        self.notifier.alive();
        self.follow(READ_LIMIT);
        while let Some(Ok((stream, _))) = self.server.as_ref().map(UnixListener::accept) {
            if let Err(e) = self.answer(&stream) {
                tracing::debug!("a question was not answered: {e}");
            }
        }
    }

    /// Reads the kernel logs and acts on what is new; true when nothing is left.
    fn follow(&mut self, limit: Duration) -> bool {
        let complete = self.logs.advance(Instant::now() + limit);
        self.look |= self.logs.take_look();
        if self.logs.has_events() && self.facts.is_some() {
            self.act();
        }
        complete && !self.logs.has_events()
    }

    /// From new kernel events to the drain, with what the last pass saw of the devices: looking at them first could take
    /// seconds, and a line that is conclusive needs no look.
    fn act(&mut self) {
        let Some(seen) = &self.facts else { return };
        let mut facts = seen.facts.clone();
        facts.uptime += seen.began.elapsed().as_secs_f64();
        facts.complaints.clear();
        let task = Task { by: MODE, again: Some(seen.time), ..Task::new(self.config, Mode::Periodic, None) };
        let _ = pass::conclude(self.config, &task, facts, &mut self.logs, &mut self.memory);
    }

    fn answer(&mut self, stream: &UnixStream) -> std::io::Result<()> {
        // It fits into the socket's buffer: nobody is waited for.
        stream.set_nonblocking(true)?;
        let caught_up = self.follow(READ_LIMIT);
        let gpus = self.memory.inventory.iter().map(|(pci, known)| JobGpu {
            index: known.minor,
            pci: Some(pci.clone()),
            uuid: Some(known.uuid.clone()),
        });
        let answer = Fresh {
            schema: ANSWER_SCHEMA.into(),
            boot_id: self.boot_id.clone(),
            config_hash: self.config.hash.clone(),
            caught_up,
            pass_age: self.facts.as_ref().map(|s| s.began.elapsed().as_secs_f64()),
            lost: self.logs.lost(),
            gpus: gpus.collect(),
        };
        let mut line = serde_json::to_string(&answer)?;
        line.push('\n');
        let mut stream = stream;
        stream.write_all(line.as_bytes())
    }
}

/// Delivers spooled drains, ever less often while the controller does not answer.
struct Spool {
    due: Instant,
    delay: Duration,
}

impl Spool {
    fn deliver(&mut self, config: &Config, logs: &mut Followers) {
        if Instant::now() < self.due {
            return;
        }
        if drain::spool_has_work(config) {
            pass::deliver(config, Instant::now() + config.deadlines.pass(Mode::Periodic), logs);
            self.delay = (self.delay * 2).min(DELIVER.1);
        } else {
            self.delay = DELIVER.0;
        }
        self.due = Instant::now() + self.delay;
    }
}

fn take_lock(path: &Path) -> Result<File, String> {
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path)
        .map_err(|e| format!("{} cannot be opened: {e}", path.display()))?;
    let until = Instant::now() + LOCK_WAIT;
    loop {
        match sys::try_lock(&file) {
            Ok(true) => return Ok(file),
            Ok(false) if Instant::now() < until => std::thread::sleep(Duration::from_millis(10)),
            Ok(false) => {
                return Err(format!("{} is held: another `watch` runs on this node", path.display()));
            }
            Err(e) => return Err(format!("{} cannot be locked: {e}", path.display())),
        }
    }
}

/// Without it prologs look themselves: slower, and nothing worse.
fn listen(path: &Path) -> Option<UnixListener> {
    // What a killed one left; the lock is ours.
    let _ = std::fs::remove_file(path);
    let listener = UnixListener::bind(path).and_then(|listener| {
        std::fs::set_permissions(path, Permissions::from_mode(0o600))?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    });
    match listener {
        Ok(listener) => Some(listener),
        Err(e) => {
            tracing::warn!("{} cannot be listened on, so prologs look themselves: {e}", path.display());
            None
        }
    }
}
