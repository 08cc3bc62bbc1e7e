//! What each hook does.
//!
//! State between the hooks of one process is a few atomics and what is set once before any task is forked: a lock
//! could stay held in the forked child in which `task_init` runs.

use std::ffi::{c_char, c_int};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicI64, AtomicU8, AtomicU32, Ordering::Relaxed};

use crate::boundary::contained;
use crate::checks::{self, Checks};
use crate::delta::Delta;
use crate::files;
use crate::message;
use crate::options::{self, Given, OPTIONS, OnFault, Report, Settings};
use crate::spank::{self, Context, Spank};
use crate::timestamp::Timestamp;
use crate::verdict::{Here, Job, Verdict};

/// `SLURM_EXTERN_CONT` of slurm.h: the step that only adopts processes has no user's output.
const EXTERN_STEP: u32 = 0xffff_fffc;

/// The plugin may be listed twice in plugstack.conf; the same file has one copy of these.
static REGISTERED: AtomicBool = AtomicBool::new(false);
/// The user's choice: 0 none, else `Report` + 1.
static CHOICE: AtomicU8 = AtomicU8::new(0);
/// The user asked for `--clustermax-strict`.
static STRICT: AtomicBool = AtomicBool::new(false);
/// What the job's hardware had counted when this step began, by node.
static BEFORE: OnceLock<Vec<(String, Delta)>> = OnceLock::new();
/// When this slurmstepd began with its step, in milliseconds.
static STEP_START: AtomicI64 = AtomicI64::new(i64::MAX);
/// The same in milliseconds since boot.
static STEP_BEGUN: AtomicI64 = AtomicI64::new(0);
/// Effective user of slurmstepd: its files are as good as root's.
static DAEMON_UID: AtomicU32 = AtomicU32::new(0);
/// Process id of slurmstepd, 0 before its `init`.
static DAEMON_PID: AtomicU32 = AtomicU32::new(0);
/// `task_init` ran in this process already.
static TASK_SEEN: AtomicBool = AtomicBool::new(false);
/// Local id of the task that ended last, and how many have ended.
static LAST_EXITED: AtomicI32 = AtomicI32::new(-1);
static EXITED: AtomicU32 = AtomicU32::new(0);

/// `slurm_spank_init`. Silent in the clients, whose `--help` it would spoil.
pub(crate) fn init(spank: &Spank<'_>) -> c_int {
    let (settings, errors) = Settings::parse(spank.args());
    panic_if_told(&settings, "init");
    let context = spank::context();
    if matches!(context, Context::Slurmd | Context::Remote) {
        for error in errors {
            spank::log_error(&format!("clustermax: {error}"));
        }
    }
    if context == Context::Remote {
        DAEMON_UID.store(spank::effective_uid(), Relaxed);
        DAEMON_PID.store(std::process::id(), Relaxed);
        STEP_START.store(Timestamp::now().0, Relaxed);
        STEP_BEGUN.store(spank::since_boot(), Relaxed);
    }
    let has_users = matches!(context, Context::Local | Context::Remote | Context::Allocator);
    if has_users && !REGISTERED.swap(true, Relaxed) {
        for option in &OPTIONS {
            spank.register(option, option_given);
        }
    }
    0
}

/// `slurm_spank_user_init`: in slurmstepd as the user, once a step, before any task is forked. Keeps what the job's
/// hardware has counted so far, so that the report tells what this step added.
pub(crate) fn user_init(spank: &Spank<'_>) -> c_int {
    let (settings, _) = Settings::parse(spank.args());
    panic_if_told(&settings, "user_init");
    // Set already when the plugin is listed twice.
    if BEFORE.get().is_some() || chosen_report(&settings) == Report::Off {
        return 0;
    }
    let Some(id) = spank.job_id() else { return 0 };
    // The node's name is known from `task_init` on only: where it is part of the path, all nodes are looked at.
    let records = options::every_node(&settings.run_dir).into_iter().filter_map(|folder| {
        let job = Job::parse(&read(&folder.join(format!("jobs/{id}.json")), files::SIZE_LIMIT)?, id)?;
        Some((job.node, job.delta.unwrap_or_default()))
    });
    let _ = BEFORE.set(records.collect());
    0
}

/// Callback of the options: -1 makes srun, sbatch and salloc refuse the command line.
unsafe extern "C" fn option_given(value: c_int, argument: *const c_char, remote: c_int) -> c_int {
    contained!("an option", 0, {
        // SAFETY: Slurm passes null or a C string that lives through the call.
        let text = unsafe { spank::option_argument(argument) };
        match options::read(value, text) {
            Ok(Given::Report(report)) => CHOICE.store(report as u8 + 1, Relaxed),
            Ok(Given::Strict) => STRICT.store(true, Relaxed),
            Ok(Given::Tags) => {}
            // From the environment of a job; Slurm would only log the refusal.
            Err(_) if remote != 0 => {}
            Err(why) => {
                spank::log_error(&format!("clustermax: {why}"));
                return -1;
            }
        }
        0
    })
}

fn chosen_report(settings: &Settings) -> Report {
    match CHOICE.load(Relaxed) {
        1 => Report::Off,
        2 => Report::Brief,
        3 => Report::Full,
        _ => settings.report,
    }
}

/// `slurm_spank_task_init`: in the task's own process, as the user, just before execve. The one hook in which a
/// refusal fails the step and nothing else on every release: from an earlier one, slurmctld drains the node or
/// records the job as completed.
pub(crate) fn task_init(spank: &Spank<'_>) -> c_int {
    let (settings, _) = Settings::parse(spank.args());
    panic_if_told(&settings, "task_init");
    if TASK_SEEN.swap(true, Relaxed) {
        return 0;
    }
    let site = Site::new(spank, &settings);
    let here = site.here(&settings);
    let strict = STRICT.load(Relaxed);
    // Once a node, not once a task.
    let tell = |text: &str| {
        if spank.local_task_id().is_none_or(|id| id == 0) {
            spank::log_user(text);
        }
    };
    let verdict = site.verdict().filter(|verdict| verdict.is_current(&here));
    if verdict.is_none() && !strict {
        return 0;
    }
    let job = spank.job_id().and_then(|id| site.job(id, &here));
    let faults = verdict.as_ref().map(|verdict| verdict.in_the_way(&here, job.as_ref())).unwrap_or_default();
    // A strict job wants no warning, much less a fault.
    let on_fault = if strict { OnFault::Refuse } else { settings.on_fault };
    if let Some(text) = message::refusal(&site.node, &faults, on_fault) {
        tell(&text);
        return if on_fault == OnFault::Refuse { refuse() } else { 0 };
    }
    if !strict {
        return 0;
    }
    let last = site.checks(&here);
    if verdict.is_none() && last.is_none() {
        tell(&message::strict_unknown(&site.node, settings.max_age));
        return 0;
    }
    let last = last.map(|last| last.warnings(&here, job.as_ref())).unwrap_or_default();
    let mut warnings = verdict.as_ref().map(|v| v.warnings(&here, job.as_ref())).unwrap_or_default();
    if warnings.is_empty() {
        warnings.extend(&last);
    }
    if let Some(text) = message::strict_refusal(&site.node, &warnings) {
        tell(&text);
        return refuse();
    }
    0
}

/// Slurm ignores the -1 of an `optional` plugin and starts the task; after that of a `required` one it ends the
/// task's process with status 1. The plugin does so itself, so that `optional`, which is the safer line (no job
/// depends on this file being there), refuses too.
fn refuse() -> c_int {
    let daemon = DAEMON_PID.load(Relaxed);
    if daemon != 0 && daemon != std::process::id() {
        spank::end_process(1);
    }
    -1
}

/// `slurm_spank_task_exit`: in slurmstepd, one call after the other. Text from the later `exit` hook would not
/// reach srun.
pub(crate) fn task_exit(spank: &Spank<'_>) -> c_int {
    let (settings, _) = Settings::parse(spank.args());
    panic_if_told(&settings, "task_exit");
    let id = spank.local_task_id().unwrap_or(0);
    // A second copy of the plugin in the stack is called right after the first, for the same task.
    if LAST_EXITED.swap(id, Relaxed) == id {
        return 0;
    }
    let exited = EXITED.fetch_add(1, Relaxed) + 1;
    let report = chosen_report(&settings);
    let last = spank.local_task_count().is_some_and(|count| exited == count);
    if !last || report == Report::Off || spank.step_id() == Some(EXTERN_STEP) {
        return 0;
    }
    let Some(id) = spank.job_id() else { return 0 };
    let site = Site::new(spank, &settings);
    let here = site.here(&settings);
    let job = site.job(id, &here);
    let verdict = site.verdict();
    let step = message::Step {
        node: &site.node,
        job: id,
        start: Timestamp(STEP_START.load(Relaxed))
            .as_of_clock(here.now, spank::since_boot() - STEP_BEGUN.load(Relaxed)),
        end: here.now,
        before: BEFORE
            .get()
            .and_then(|all| all.iter().find(|(node, _)| here.is(node)))
            .map(|(_, delta)| delta),
        leaves_service: verdict.is_some_and(|verdict| !verdict.in_the_way(&here, job.as_ref()).is_empty()),
        record: &site.job_path(id).display().to_string(),
    };
    for line in message::report(report, &step, job.as_ref()) {
        spank::log_user(&line);
    }
    0
}

/// A file of the suite's, if it can be believed.
fn read(path: &Path, limit: u64) -> Option<Vec<u8>> {
    files::read_trusted(path, &[0, DAEMON_UID.load(Relaxed)], limit)
}

/// Where this node's files are.
struct Site {
    node: String,
    host: String,
    boot_id: String,
    run_dir: PathBuf,
}

impl Site {
    fn new(spank: &Spank<'_>, settings: &Settings) -> Self {
        // The host's own name even where procfs is a simulated one.
        let host = files::read_proc_line(Path::new("/proc/sys/kernel/hostname")).unwrap_or_default();
        let host = host.split('.').next().unwrap_or_default().to_owned();
        let node = spank
            .job_env(c"SLURMD_NODENAME")
            .filter(|name| options::is_node_name(name))
            .unwrap_or_else(|| host.clone());
        let procfs = options::for_node(&settings.procfs, &node);
        let boot_id = files::read_proc_line(&Path::new(&procfs).join("sys/kernel/random/boot_id"));
        Self {
            run_dir: PathBuf::from(options::for_node(&settings.run_dir, &node)),
            boot_id: boot_id.unwrap_or_default(),
            node,
            host,
        }
    }

    fn here(&self, settings: &Settings) -> Here<'_> {
        Here {
            node: &self.node,
            host: &self.host,
            boot_id: &self.boot_id,
            now: Timestamp::now(),
            max_age: settings.max_age,
        }
    }

    fn checks(&self, here: &Here<'_>) -> Option<Checks> {
        Checks::parse(&read(&self.run_dir.join("checks.json"), checks::SIZE_LIMIT)?, here)
    }

    fn verdict(&self) -> Option<Verdict> {
        Verdict::parse(&read(&self.run_dir.join("verdict.json"), files::SIZE_LIMIT)?)
    }

    fn job_path(&self, id: u32) -> PathBuf {
        self.run_dir.join(format!("jobs/{id}.json"))
    }

    fn job(&self, id: u32, here: &Here<'_>) -> Option<Job> {
        Job::parse(&read(&self.job_path(id), files::SIZE_LIMIT)?, id).filter(|job| here.is(&job.node))
    }
}

#[cfg(feature = "test-panic")]
fn panic_if_told(settings: &Settings, hook: &str) {
    assert!(settings.panic != hook, "told to panic in {hook}");
}

#[cfg(not(feature = "test-panic"))]
fn panic_if_told(_settings: &Settings, _hook: &str) {}
