//! One file a job: which GPUs its prolog recorded, and what happened to them.
//!
//! `RUN_DIR/jobs/JOBID.json` belongs to root and can be read by the job's group; the epilog moves it to
//! `STATE_DIR/jobs/`.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::facts::JobHere;
use crate::state::write_atomic;
use crate::verdict::{Action, Fault};

/// Version tag of a job file.
pub const JOB_SCHEMA: &str = "clustermax-job/1";
/// Most events kept for one job.
const MAX_EVENTS: usize = 64;
/// Finished jobs kept on a node.
const KEEP_FINISHED: usize = 200;

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

/// True for a plain job id: digits, and `_` or `+` for arrays and heterogeneous jobs.
#[must_use]
pub fn is_job_id(id: &str) -> bool {
    !id.is_empty() && id.len() <= 32 && id.bytes().all(|b| b.is_ascii_digit() || b"_+".contains(&b))
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
    let Ok(entries) = std::fs::read_dir(folder(run_dir)) else { return Vec::new() };
    let mut jobs: Vec<Job> = entries
        .flatten()
        .filter(|e| e.path().extension().is_some_and(|x| x == "json"))
        .filter_map(|e| serde_json::from_str(&std::fs::read_to_string(e.path()).ok()?).ok())
        .collect();
    jobs.sort_by(|a: &Job, b| a.job.cmp(&b.job));
    jobs
}

/// One job's file, if there is one.
#[must_use]
pub fn load(run_dir: &Path, job: &str) -> Option<Job> {
    let path = folder(run_dir).join(format!("{job}.json"));
    serde_json::from_str(&std::fs::read_to_string(path).ok()?).ok()
}

/// Writes a job's file.
///
/// # Errors
/// One sentence naming the file.
pub fn save(run_dir: &Path, job: &Job) -> Result<(), String> {
    let dir = folder(run_dir);
    make_public_dir(&dir)?;
    write(&dir.join(format!("{}.json", job.job)), job, 0o640)
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

/// Moves a finished job's file to `STATE_DIR/jobs/` and keeps the newest 200 there.
///
/// # Errors
/// One sentence naming the file.
pub fn finish(run_dir: &Path, state_dir: &Path, job: &Job) -> Result<(), String> {
    let kept = state_dir.join("jobs");
    crate::state::make_private_dir(&kept).map_err(|e| format!("{} cannot be made: {e}", kept.display()))?;
    write(&kept.join(format!("{}.json", job.job)), job, 0o600)?;
    // Gone already is as good.
    let _ = std::fs::remove_file(folder(run_dir).join(format!("{}.json", job.job)));
    let mut old: Vec<(std::time::SystemTime, PathBuf)> = std::fs::read_dir(&kept)
        .map(|entries| {
            entries.flatten().filter_map(|e| Some((e.metadata().ok()?.modified().ok()?, e.path()))).collect()
        })
        .unwrap_or_default();
    old.sort();
    let surplus = old.len().saturating_sub(KEEP_FINISHED);
    for (_, path) in old.into_iter().take(surplus) {
        let _ = std::fs::remove_file(path);
    }
    Ok(())
}

impl Job {
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
        JobHere { job: self.job.clone(), gpus: self.gpus.iter().map(|g| g.index).collect() }
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
        assert!(is_job_id("123") && is_job_id("12_3"));
        for bad in ["", "../1", "1/2", "a", "1\n"] {
            assert!(!is_job_id(bad), "{bad}");
        }
    }

    #[test]
    fn a_job_lives_in_run_and_ends_in_state() {
        let dir = tempfile::tempdir().unwrap();
        let (run, state) = (dir.path().join("run"), dir.path().join("state"));
        let job = Job { schema: JOB_SCHEMA.into(), job: "7".into(), ..Job::default() };
        save(&run, &job).unwrap();
        std::fs::write(run.join("jobs/8.json"), "{half").unwrap();
        assert_eq!(list(&run), std::slice::from_ref(&job));
        finish(&run, &state, &job).unwrap();
        assert!(list(&run).is_empty());
        assert!(state.join("jobs/7.json").exists());
    }
}
