//! Jobs that ended: where their files go, how many stay, and what becomes of those whose epilog never ran.
//!
//! `RUN_DIR` does not outlive a boot, so a pass keeps a copy of each job's file in `STATE_DIR/running/`; the epilog takes it
//! away. A copy of an earlier boot belongs to a job that the boot ended.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::left::Left;
use super::{Job, folder, is_job_id, list_in, load, load_from, lock, write};
use crate::config::{Config, JobFiles};
use crate::source::job_of_process;
use crate::state::make_private_dir;

/// A job younger than this is not looked for, and one whose processes are gone for less may have an epilog that runs; seconds.
const GONE: f64 = 600.0;

/// How a job's file came to its end.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Ended {
    /// When, UTC.
    pub time: String,
    /// `epilog`, or `pass` when the epilog never ran.
    pub by: String,
    /// Why it is taken to have ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// What is known of a job's own processes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Traces {
    /// Its `extern` step, which lives as long as the job, was seen here.
    pub extern_step: bool,
    /// When a process of it was last seen, or first missed, seconds since boot.
    pub last: f64,
}

fn running(state_dir: &Path) -> PathBuf {
    state_dir.join("running")
}

fn file(dir: &Path, job: &str) -> PathBuf {
    dir.join(format!("{job}.json"))
}

/// Moves a finished job's file to `STATE_DIR/jobs/` and removes the oldest there beyond the limits; nothing to do when the
/// job has none. `left` is what it left behind.
///
/// # Errors
/// One sentence naming the file.
pub fn finish(config: &Config, job: &str, left: Option<Left>, time: &str) -> Result<(), String> {
    let ended = Ended { time: time.into(), by: "epilog".into(), why: None };
    let _lock = lock(&config.paths.run_dir)?;
    let Some(mut job) = load(&config.paths.run_dir, job) else { return Ok(()) };
    if let Some(left) = left.filter(|left| !left.is_empty()) {
        job.delta.get_or_insert_default().left = Some(left);
    }
    end(config, job, ended)
}

/// The caller holds the lock.
fn end(config: &Config, mut job: Job, ended: Ended) -> Result<(), String> {
    job.ended = Some(ended);
    job.judge();
    let kept = config.paths.state_dir.join("jobs");
    let moved = make_private_dir(&kept)
        .map_err(|e| format!("{} cannot be made: {e}", kept.display()))
        .and_then(|()| write(&file(&kept, &job.job), &job, 0o600));
    // Gone already is as good; a copy that could not be kept does not make the job live on.
    let _ = std::fs::remove_file(file(&folder(&config.paths.run_dir), &job.job));
    let _ = std::fs::remove_file(file(&running(&config.paths.state_dir), &job.job));
    moved?;
    rotate(&kept, config.jobs);
    Ok(())
}

/// Removes the oldest files of a folder until the rest is within the limits.
fn rotate(kept: &Path, limits: JobFiles) {
    let entries = std::fs::read_dir(kept).into_iter().flatten().flatten();
    let mut all: Vec<(std::time::SystemTime, PathBuf, u64)> = entries
        .filter_map(|e| {
            let meta = e.metadata().ok()?;
            Some((meta.modified().ok()?, e.path(), meta.len()))
        })
        .collect();
    all.sort();
    let (mut count, mut bytes) = (0, 0);
    for (_, path, length) in all.into_iter().rev() {
        count += 1;
        bytes += length;
        // The newest stays, however long it is.
        if count > limits.keep.max(1) || (bytes > limits.keep_mib << 20 && count > 1) {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Keeps a copy that outlives a boot, when it would tell something new. The caller holds the lock.
pub fn copy(config: &Config, job: &Job) {
    let dir = running(&config.paths.state_dir);
    let known = load_from(&dir, &job.job);
    let told = |j: &Job| (j.started.clone(), j.events.clone(), j.delta.clone().map(|d| (d.gpus, d.links)));
    if known.is_some_and(|k| told(&k) == told(job)) {
        return;
    }
    let kept = make_private_dir(&dir).map_err(|e| e.to_string());
    if let Err(why) = kept.and_then(|()| write(&file(&dir, &job.job), job, 0o600)) {
        tracing::debug!("no copy of job {} is kept: {why}", job.job);
    }
}

/// Ends the files of jobs whose epilog never ran. `slow`: there is time to look at every process.
pub fn close_abandoned(config: &Config, boot_id: &str, now: f64, time: &str, slow: bool) {
    let paths = &config.paths;
    let ended = |why: String| Ended { time: time.into(), by: "pass".into(), why: Some(why) };
    if boot_id.is_empty() {
        return;
    }
    // Most passes find nothing: no lock then.
    let here = super::list(&paths.run_dir);
    let earlier = |job: &Job| !job.boot_id.is_empty() && job.boot_id != boot_id;
    let booted = "the node was booted while the job ran; the epilog never did";
    let mut gone: Vec<(Job, String)> =
        here.iter().filter(|j| earlier(j)).map(|j| (j.clone(), booted.into())).collect();
    for copy in list_in(&running(&paths.state_dir)) {
        if gone.iter().any(|(job, _)| job.job == copy.job) {
            continue;
        }
        if earlier(&copy) {
            gone.push((copy, booted.into()));
        } else if !file(&folder(&paths.run_dir), &copy.job).exists() {
            gone.push((copy, format!("its file in {} was removed", folder(&paths.run_dir).display())));
        }
    }
    if slow {
        gone.extend(vanished(config, &here, now).into_iter().filter(|(j, _)| j.boot_id == boot_id));
    }
    if gone.is_empty() {
        return;
    }
    let closed = lock(&paths.run_dir).map(|_lock| {
        for (job, why) in gone {
            let id = job.job.clone();
            // A requeued job may be here again, and an epilog may have run in between.
            let current = load(&paths.run_dir, &id);
            let again = current.as_ref().is_some_and(|c| c.started != job.started);
            let job = current.filter(|c| c.started == job.started).unwrap_or(job);
            let copied = file(&running(&paths.state_dir), &id).exists();
            if again || (!copied && !file(&folder(&paths.run_dir), &id).exists()) {
                let _ = std::fs::remove_file(file(&running(&paths.state_dir), &id));
                continue;
            }
            tracing::info!("job {id} is taken to have ended: {why}");
            if let Err(e) = end(config, job, ended(why)) {
                tracing::warn!("{e}");
            }
        }
    });
    if let Err(why) = closed {
        tracing::warn!("{why}");
    }
}

/// Jobs of this boot whose processes, their `extern` step among them, are gone for a while. Without control groups or an
/// `extern` step nobody can tell: an allocation may have no process for days.
fn vanished(config: &Config, here: &[Job], now: f64) -> Vec<(Job, String)> {
    let due: Vec<&Job> = here.iter().filter(|j| now - j.traces.last.max(j.begun) >= GONE).collect();
    if due.is_empty() {
        return Vec::new();
    }
    let seen = jobs_with_processes(&config.paths.procfs);
    let mut gone = Vec::new();
    for job in due {
        let own = |extern_step: bool| seen.contains(&(job.job.clone(), extern_step));
        let traces = Traces { extern_step: job.traces.extern_step || own(true), last: now };
        if own(true) || own(false) || !traces.extern_step {
            let told = super::update(&config.paths.run_dir, &job.job, |j| j.traces = traces);
            if let Err(why) = told {
                tracing::debug!("{why}");
            }
        } else {
            let why = "its last process is gone, and so is its extern step; the epilog never ran";
            gone.push((job.clone(), why.into()));
        }
    }
    gone
}

/// Jobs in whose control groups there are processes, and whether those are of the `extern` step.
fn jobs_with_processes(procfs: &Path) -> BTreeSet<(String, bool)> {
    let entries = std::fs::read_dir(procfs).into_iter().flatten().flatten();
    let pids = entries.filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok());
    pids.filter_map(|pid| {
        let job = job_of_process(procfs, pid)?;
        let group = std::fs::read_to_string(procfs.join(pid.to_string()).join("cgroup")).ok()?;
        Some((job, group.contains("/step_extern")))
    })
    .filter(|(job, _)| is_job_id(job))
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jobs::{JOB_SCHEMA, list, save};

    struct Node {
        dir: tempfile::TempDir,
        config: Config,
    }

    impl Node {
        fn new() -> Node {
            let dir = tempfile::tempdir().unwrap();
            let mut config = Config::default();
            config.paths.run_dir = dir.path().join("run");
            config.paths.state_dir = dir.path().join("state");
            config.paths.procfs = dir.path().join("proc");
            std::fs::create_dir(&config.paths.procfs).unwrap();
            Node { dir, config }
        }

        fn job(&self, id: &str, boot: &str) -> Job {
            let job = Job {
                schema: JOB_SCHEMA.into(),
                job: id.into(),
                boot_id: boot.into(),
                started: format!("start of {id}"),
                begun: 100.0,
                ..Job::default()
            };
            save(&self.config.paths.run_dir, &job).unwrap();
            job
        }

        fn process(&self, pid: u32, group: &str) {
            let dir = self.config.paths.procfs.join(pid.to_string());
            std::fs::create_dir_all(&dir).unwrap();
            std::fs::write(dir.join("cgroup"), format!("0::/slurm_n1/{group}\n")).unwrap();
        }

        fn kept(&self, id: &str) -> Option<Job> {
            load_from(&self.config.paths.state_dir.join("jobs"), id)
        }

        fn close(&self, boot: &str, now: f64) {
            close_abandoned(&self.config, boot, now, "closed", true);
        }
    }

    #[test]
    fn a_job_that_a_boot_ended_is_closed_with_the_reason_though_run_was_emptied() {
        let node = Node::new();
        let job = node.job("7", "b1");
        copy(&node.config, &job);
        node.close("b1", 120.0);
        assert_eq!((list(&node.config.paths.run_dir).len(), node.kept("7")), (1, None), "it runs");
        std::fs::remove_dir_all(&node.config.paths.run_dir).unwrap();
        node.close("b2", 5.0);
        assert!(node.kept("7").unwrap().sentence.unwrap().contains("the node was booted while the job ran"));
        let ended = node.kept("7").unwrap().ended.unwrap();
        assert_eq!(ended.by, "pass");
        assert!(ended.why.unwrap().contains("booted"));
        assert!(list_in(&running(&node.config.paths.state_dir)).is_empty());
        // Where RUN_DIR outlives a boot, as well.
        node.job("8", "b1");
        node.close("b2", 6.0);
        assert!(node.kept("8").is_some() && list(&node.config.paths.run_dir).is_empty());
    }

    #[test]
    fn a_requeued_job_is_not_closed_for_its_former_life() {
        let node = Node::new();
        let job = node.job("7", "b1");
        copy(&node.config, &job);
        let again = Job { started: "later".into(), boot_id: "b2".into(), ..job };
        save(&node.config.paths.run_dir, &again).unwrap();
        node.close("b2", 5.0);
        assert_eq!(list(&node.config.paths.run_dir), [again]);
        assert!(list_in(&running(&node.config.paths.state_dir)).is_empty());
    }

    #[test]
    fn nothing_is_closed_while_the_boot_is_not_known() {
        let node = Node::new();
        copy(&node.config, &node.job("7", "b1"));
        node.close("", 5.0);
        assert_eq!(list(&node.config.paths.run_dir).len(), 1);
    }

    #[test]
    fn a_pass_that_ends_after_the_epilog_leaves_no_copy() {
        let node = Node::new();
        node.job("7", "b1");
        let told = crate::jobs::follow(&node.config, "7", |_| ()).unwrap();
        assert!(told.is_some() && list_in(&running(&node.config.paths.state_dir)).len() == 1);
        finish(&node.config, "7", None, "end").unwrap();
        assert_eq!(crate::jobs::follow(&node.config, "7", |_| ()).unwrap(), None);
        assert!(list_in(&running(&node.config.paths.state_dir)).is_empty());
    }

    #[test]
    fn an_epilog_takes_the_copy_away() {
        let node = Node::new();
        let job = node.job("7", "b1");
        copy(&node.config, &job);
        finish(&node.config, "7", None, "end").unwrap();
        node.close("b2", 5.0);
        let ended = node.kept("7").unwrap().ended.unwrap();
        assert_eq!((ended.by.as_str(), ended.time.as_str()), ("epilog", "end"));
    }

    #[test]
    fn a_job_without_processes_is_closed_only_when_its_extern_step_was_seen() {
        let node = Node::new();
        // An allocation without an extern step: it may have no process for days.
        node.job("7", "b");
        node.process(40, "uid_1/job_7/step_0");
        node.job("8", "b");
        node.process(50, "uid_1/job_8/step_extern");
        node.close("b", 800.0);
        std::fs::remove_dir_all(&node.config.paths.procfs).unwrap();
        node.close("b", 900.0);
        assert_eq!(list(&node.config.paths.run_dir).len(), 2, "an epilog may be running");
        node.close("b", 1500.0);
        node.close("b", 1_000_000.0);
        assert_eq!(node.kept("7"), None);
        assert!(node.kept("8").unwrap().ended.unwrap().why.unwrap().contains("extern step"));
        assert_eq!(list(&node.config.paths.run_dir).len(), 1);
    }

    #[test]
    fn finished_jobs_are_kept_up_to_a_number_and_a_size() {
        let mut node = Node::new();
        node.config.jobs = JobFiles { keep: 3, keep_mib: 1 };
        let dir = node.config.paths.state_dir.join("jobs");
        for id in 1..=5u64 {
            node.job(&id.to_string(), "b");
            finish(&node.config, &id.to_string(), None, "end").unwrap();
            let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(id);
            std::fs::File::options()
                .write(true)
                .open(file(&dir, &id.to_string()))
                .unwrap()
                .set_modified(time)
                .unwrap();
        }
        let ids = || list_in(&dir).iter().map(|j| j.job.clone()).collect::<Vec<_>>();
        assert_eq!(ids(), ["3", "4", "5"]);
        let long = format!("{{\"x\":\"{}\"}}", "y".repeat(700 << 10));
        for id in [4, 5] {
            std::fs::write(file(&dir, &id.to_string()), &long).unwrap();
        }
        node.job("6", "b");
        finish(&node.config, "6", None, "end").unwrap();
        let names = std::fs::read_dir(&dir).unwrap().count();
        assert_eq!(names, 2, "the newest, and one of 700 KiB");
        assert!(node.kept("6").is_some());
        drop(node.dir);
    }
}
