//! One file a job: which GPUs its prolog recorded, and what happened to them.
//!
//! `RUN_DIR/jobs/JOBID.json` belongs to root and can be read by the job's group; the epilog moves it to
//! `STATE_DIR/jobs/`. It is replaced by a rename, so readers see a whole one; it is not synchronised to a disk, since
//! `RUN_DIR` is a tmpfs, and what a crash takes from it belongs to jobs that the crash ended.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::facts::JobHere;
use crate::state::write_atomic;
use crate::verdict::{Action, Fault};

mod blame;
mod delta;
mod keep;
mod left;

pub use blame::Blame;
pub use delta::{Delta, GpuDelta, LinkDelta, Look, Started, Tally};
pub use keep::{Ended, Traces, close_abandoned, finish};
pub use left::{Left, LeftFiles, LeftProcess, LeftSegments};

/// Version tag of a job file.
pub const JOB_SCHEMA: &str = "clustermax-job/1";
/// Most events kept for one job.
const MAX_EVENTS: usize = 64;
/// Longest job file that is read, in bytes.
const FILE_MAX: u64 = 1 << 20;
/// Longest wait for another pass that writes job files; it takes a few milliseconds.
const LOCK_WAIT: Duration = Duration::from_secs(1);

/// A job on this node.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// [`JOB_SCHEMA`].
    pub schema: String,
    /// Job id.
    pub job: String,
    /// Its user.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Tags its user gave it ([`crate::tags`]).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tags: BTreeMap<String, String>,
    /// Slurm's name of this node.
    pub node: String,
    /// When its prolog ran, UTC.
    pub started: String,
    /// When the events below were last brought up to date, UTC.
    pub as_of: String,
    /// GPUs the job holds.
    pub gpus: Vec<JobGpu>,
    /// What happened to them.
    pub events: Vec<JobEvent>,
    /// Boot in which it began.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub boot_id: String,
    /// When its prolog ran, seconds since that boot.
    #[serde(default, skip_serializing_if = "is_never")]
    pub begun: f64,
    /// What the hardware counted; none before a pass has looked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delta: Option<Delta>,
    /// Whose fault it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blame: Option<Blame>,
    /// The same for its user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sentence: Option<String>,
    /// How it came to its end; none while it is here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<Ended>,
    /// Counters that are followed for it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub counters: BTreeMap<String, Tally>,
    /// Its processes, as passes saw them.
    #[serde(default, skip_serializing_if = "is_untraced")]
    pub traces: Traces,
}

fn is_never(time: &f64) -> bool {
    *time == 0.0
}

fn is_untraced(traces: &Traces) -> bool {
    *traces == Traces::default()
}

/// A GPU of a job.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct JobGpu {
    /// Minor number.
    pub index: u32,
    /// PCI address, where the inventory knew it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pci: Option<String>,
    /// UUID, likewise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
}

/// Something that happened to a job's device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobEvent {
    /// When it was seen, UTC.
    pub time: String,
    /// Check id.
    pub check: String,
    /// Token.
    pub token: String,
    /// Short name of the device.
    pub device: String,
    /// Whose fault.
    pub fault: Fault,
    /// What mends it.
    pub action: Action,
    /// It takes the node out of service.
    pub drain: bool,
    /// One phrase.
    pub text: String,
    /// The kernel-log event it rests on, if any: the same code can come again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event: Option<String>,
}

/// True for a job id as slurmd gives it to its hooks: a number, for array and heterogeneous jobs too. Whatever else
/// was told to `clustermax-drain` would make it refuse the whole drain.
#[must_use]
pub fn is_job_id(id: &str) -> bool {
    id.bytes().all(|b| b.is_ascii_digit()) && id.parse::<u32>().is_ok()
}

/// Parses Slurm's list of GPU indices: `0,1,4-7`. `None` when it is not one.
#[must_use]
pub fn parse_gpu_list(text: &str) -> Option<Vec<u32>> {
    let mut out = Vec::new();
    for part in text.split(',').filter(|p| !p.is_empty()) {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        let (from, to): (u32, u32) = (from.trim().parse().ok()?, to.trim().parse().ok()?);
        if from > to || to > 4096 {
            return None;
        }
        out.extend(from..=to);
    }
    Some(out)
}

fn folder(run_dir: &Path) -> PathBuf {
    run_dir.join("jobs")
}

/// Jobs on this node. A file that is not understood is left out: it belongs to a job that we then know nothing about.
#[must_use]
pub fn list(run_dir: &Path) -> Vec<Job> {
    list_in(&folder(run_dir))
}

fn list_in(dir: &Path) -> Vec<Job> {
    let Ok(entries) = std::fs::read_dir(dir) else { return Vec::new() };
    let mut jobs: Vec<Job> = entries
        .flatten()
        .filter_map(|e| load_from(dir, e.file_name().to_str()?.strip_suffix(".json")?))
        .collect();
    jobs.sort_by(|a: &Job, b| a.job.cmp(&b.job));
    jobs
}

/// One job's file, if there is one, and it is this job's.
#[must_use]
pub fn load(run_dir: &Path, job: &str) -> Option<Job> {
    load_from(&folder(run_dir), job)
}

fn load_from(dir: &Path, job: &str) -> Option<Job> {
    let path = dir.join(format!("{job}.json"));
    let plain = std::fs::symlink_metadata(&path).is_ok_and(|m| m.is_file() && m.len() <= FILE_MAX);
    if !plain || !is_job_id(job) {
        return None;
    }
    let read: Job = serde_json::from_str(&std::fs::read_to_string(path).ok()?).ok()?;
    (read.job == job).then_some(read)
}

/// Changes a job's file as it is now; the changed job, or none when the job has ended in between. Of two passes at
/// once neither may overwrite what the other wrote, nor bring back what an epilog took away.
///
/// # Errors
/// One sentence naming the file.
pub fn update(run_dir: &Path, job: &str, change: impl FnOnce(&mut Job)) -> Result<Option<Job>, String> {
    let _lock = lock(run_dir)?;
    let Some(mut job) = load(run_dir, job) else { return Ok(None) };
    change(&mut job);
    save(run_dir, &job)?;
    Ok(Some(job))
}

/// As [`update`], and keeps a copy that outlives a boot: under the same lock, or the copy of a job could outlive its epilog.
///
/// # Errors
/// One sentence naming the file.
pub fn follow(config: &Config, job: &str, change: impl FnOnce(&mut Job)) -> Result<Option<Job>, String> {
    update(&config.paths.run_dir, job, |job| {
        change(job);
        keep::copy(config, job);
    })
}

fn lock(run_dir: &Path) -> Result<File, String> {
    use std::os::unix::fs::OpenOptionsExt;
    let dir = folder(run_dir);
    make_public_dir(&dir)?;
    let path = dir.join(".lock");
    // Nobody else may hold it: whoever can open a file can lock it.
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(&path)
        .map_err(|e| format!("{} cannot be opened: {e}", path.display()))?;
    let until = Instant::now() + LOCK_WAIT;
    loop {
        match crate::sys::try_lock(&file) {
            Ok(true) => return Ok(file),
            Ok(false) if Instant::now() < until => std::thread::sleep(Duration::from_millis(2)),
            Ok(false) => return Err(format!("{} is held by another pass", path.display())),
            Err(e) => return Err(format!("{} cannot be locked: {e}", path.display())),
        }
    }
}

/// Writes a job's file.
///
/// # Errors
/// One sentence naming the file.
pub fn save(run_dir: &Path, job: &Job) -> Result<(), String> {
    let dir = folder(run_dir);
    let path = dir.join(format!("{}.json", job.job));
    // The folder is there but for the first job after a boot.
    write(&path, job, 0o640).or_else(|why| {
        if dir.is_dir() {
            return Err(why);
        }
        make_public_dir(&dir)?;
        write(&path, job, 0o640)
    })
}

fn write(path: &Path, job: &Job, mode: u32) -> Result<(), String> {
    let text = serde_json::to_string(job).map_err(|e| e.to_string())?;
    // Only root can hand a file to another group.
    let group = (crate::sys::effective_uid() == 0).then_some(job.gid);
    write_atomic(path, text.as_bytes(), mode, group)
        .map_err(|e| format!("{} cannot be written: {e}", path.display()))
}

/// Makes a folder that everybody can read.
///
/// # Errors
/// One sentence naming the folder.
pub fn make_public_dir(dir: &Path) -> Result<(), String> {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(dir)
        .map_err(|e| format!("{} cannot be made: {e}", dir.display()))
}

impl Job {
    /// How log lines call it: `123`, with tags `123 (project=llm run=7)`.
    #[must_use]
    pub fn label(&self) -> String {
        let tags: Vec<String> = self.tags.iter().map(|(key, value)| format!("{key}={value}")).collect();
        if tags.is_empty() { self.job.clone() } else { format!("{} ({})", self.job, tags.join(" ")) }
    }

    /// Adds an event unless the same is there already; true when it is new.
    pub fn add(&mut self, event: JobEvent) -> bool {
        let same =
            |e: &JobEvent| e.token == event.token && e.device == event.device && e.event == event.event;
        let known = self.events.iter().any(same);
        let room = self.events.len() < MAX_EVENTS;
        if !known && room {
            self.events.push(event);
        }
        !known && room
    }

    /// What the checks need to know of it.
    #[must_use]
    pub fn here(&self) -> JobHere {
        JobHere { job: self.job.clone(), gpus: self.gpus.iter().map(|g| g.index).collect(), uid: self.uid }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpu_lists() {
        assert_eq!(parse_gpu_list("0,1,4-6"), Some(vec![0, 1, 4, 5, 6]));
        assert_eq!(parse_gpu_list(""), Some(vec![]));
        for bad in ["GPU-1234", "3-1", "0-99999999", "x", "1,,y"] {
            assert_eq!(parse_gpu_list(bad), None, "{bad}");
        }
    }

    #[test]
    fn job_ids_are_no_paths() {
        assert!(is_job_id("123") && is_job_id("4294967295"));
        for bad in ["", "../1", "1/2", "a", "1\n", "12_3", "+5", "-1", "4294967296"] {
            assert!(!is_job_id(bad), "{bad}");
        }
    }

    fn config(dir: &Path) -> Config {
        let mut config = Config::default();
        config.paths.run_dir = dir.join("run");
        config.paths.state_dir = dir.join("state");
        config
    }

    #[test]
    fn a_job_lives_in_run_and_ends_in_state() {
        let dir = tempfile::tempdir().unwrap();
        let config = config(dir.path());
        let (run, state) = (&config.paths.run_dir, &config.paths.state_dir);
        let job = Job { schema: JOB_SCHEMA.into(), job: "7".into(), ..Job::default() };
        save(run, &job).unwrap();
        std::fs::write(run.join("jobs/8.json"), "{half").unwrap();
        assert_eq!(list(run), std::slice::from_ref(&job));
        finish(&config, "7", None, "end").unwrap();
        assert!(list(run).is_empty());
        assert!(state.join("jobs/7.json").exists());
    }

    #[test]
    fn a_late_pass_neither_loses_an_event_nor_brings_a_finished_job_back() {
        let dir = tempfile::tempdir().unwrap();
        let config = config(dir.path());
        let run = config.paths.run_dir.clone();
        save(&run, &Job { schema: JOB_SCHEMA.into(), job: "7".into(), ..Job::default() }).unwrap();
        let event = |token: &str| JobEvent {
            time: String::new(),
            check: "gpu.xid".into(),
            token: token.into(),
            device: "g1".into(),
            fault: Fault::Program,
            action: Action::TellUser,
            drain: false,
            text: String::new(),
            event: None,
        };
        std::thread::scope(|scope| {
            for n in 0..16 {
                let (run, event) = (&run, &event);
                scope.spawn(move || update(run, "7", |j| assert!(j.add(event(&n.to_string())))).unwrap());
            }
        });
        assert_eq!(load(&run, "7").unwrap().events.len(), 16);
        finish(&config, "7", None, "end").unwrap();
        assert_eq!(update(&run, "7", |_| ()).unwrap(), None);
        assert!(list(&run).is_empty());
        finish(&config, "7", None, "end").unwrap();
    }

    #[test]
    fn a_job_file_is_only_its_own_jobs() {
        let dir = tempfile::tempdir().unwrap();
        let job = Job { schema: JOB_SCHEMA.into(), job: "../../etc/x".into(), ..Job::default() };
        save(dir.path(), &Job { job: "7".into(), ..job.clone() }).unwrap();
        let text = serde_json::to_string(&job).unwrap();
        std::fs::write(dir.path().join("jobs/8.json"), text).unwrap();
        let link = dir.path().join("jobs/9.json");
        std::os::unix::fs::symlink(dir.path().join("jobs/7.json"), link).unwrap();
        std::fs::create_dir(dir.path().join("jobs/10.json")).unwrap();
        assert_eq!(list(dir.path()).iter().map(|j| j.job.as_str()).collect::<Vec<_>>(), ["7"]);
    }
}
