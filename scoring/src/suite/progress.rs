//! How far a run has come: `progress.json`, rewritten at the start and end of every stage, and `clustermax suite status`.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use clap::ValueEnum as _;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::bench::Bench;
use super::plan::{Profile, length};
use super::slurm;
use crate::collect::{self, StageState};
use crate::run::Folder;
use crate::{Failure, report};

/// The schema of `progress.json`.
pub const SCHEMA: &str = "clustermax-progress/1";
/// In the results folder.
pub const FILE: &str = "progress.json";

/// `progress.json`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// Always [`SCHEMA`].
    pub schema: String,
    /// The run's id.
    pub run: String,
    /// Slurm job that writes this.
    pub job: String,
    /// What a later job needs to get the same allocation.
    #[serde(default)]
    pub partition: Option<String>,
    /// As `--gres` takes it.
    #[serde(default)]
    pub gres: Option<String>,
    /// The batch script.
    #[serde(default)]
    pub script: Option<PathBuf>,
    /// Options of `clustermax suite run` that the rest of the run needs again: container, modules, Python ...
    #[serde(default)]
    pub options: Vec<String>,
    /// The stage that runs.
    pub running: Option<Running>,
    /// Stages that are left, the running one first, each with its longest time in seconds.
    pub todo: Vec<(String, u32)>,
    #[serde(skip)]
    path: PathBuf,
}

/// The stage that runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Running {
    /// Its name.
    pub stage: String,
    /// Epoch seconds.
    pub since: u64,
    /// Its longest time, seconds.
    pub limit: u32,
}

fn epoch() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

impl Progress {
    /// Of a run that is about to start.
    pub fn new<'a>(
        bench: &Bench,
        run: &str,
        options: Vec<String>,
        todo: impl Iterator<Item = (&'a str, u32)>,
    ) -> Self {
        let progress = Self {
            schema: SCHEMA.to_owned(),
            run: run.to_owned(),
            job: bench.job.id.clone(),
            partition: bench.job.partition.clone(),
            gres: bench.job.gres.clone(),
            script: bench.job.script.clone(),
            options,
            running: None,
            todo: todo.map(|(stage, limit)| (stage.to_owned(), limit)).collect(),
            path: bench.results.join(FILE),
        };
        progress.write();
        progress
    }

    /// Of a results folder; none when it was never written or is of no use.
    pub fn read(dir: &Path) -> Option<Self> {
        let progress: Self = serde_json::from_str(&fs::read_to_string(dir.join(FILE)).ok()?).ok()?;
        (progress.schema == SCHEMA).then_some(progress)
    }

    /// Longest time of what is left, seconds.
    pub fn left(&self) -> u32 {
        self.todo.iter().map(|(_, limit)| limit).sum()
    }

    /// A stage starts.
    pub fn start(&mut self, stage: &str) {
        let limit = self.todo.iter().find(|(name, _)| name == stage).map_or(0, |(_, limit)| *limit);
        self.running = Some(Running { stage: stage.to_owned(), since: epoch(), limit });
        self.write();
    }

    /// A stage has ended.
    pub fn end(&mut self, stage: &str) {
        self.running = None;
        self.todo.retain(|(name, _)| name != stage);
        self.write();
    }

    fn write(&self) {
        super::write_document(&self.path, self);
    }
}

/// Where Slurm cannot be asked, a job may still be at work.
fn unasked(job: &str, missing: &[&str]) -> String {
    format!(
        "not complete ({}); whether job {} is at work is not known, as Slurm does not answer here: put squeue and sinfo into PATH, or ask on a login node\n",
        missing.join(", "),
        report::plain(job)
    )
}

/// `clustermax suite status`. Exit code 0: every stage of the profile is done or unavailable; 1: not.
///
/// # Errors
/// What is no results folder.
pub fn status(dir: &Path, as_json: bool) -> Result<u8, Failure> {
    let folder = Folder::open(dir)?;
    let profile = Profile::from_str(&folder.run.profile, false).ok();
    let names: Vec<&str> = match profile {
        Some(profile) => profile.stages().map(|stage| stage.name).collect(),
        None => collect::STAGES.to_vec(),
    };
    let progress = Progress::read(dir);
    let running = progress.as_ref().and_then(|progress| progress.running.clone());
    // A run that was killed leaves "running" behind; Slurm knows better, where it can be asked.
    let job = progress.as_ref().map(|progress| progress.job.clone());
    let alive = job.as_deref().and_then(slurm::job_state).filter(|state| state != "COMPLETING");
    let gone = alive.is_none() && (job.is_none() || slurm::answers());

    let (mut rows, mut complete, mut missing) = (Vec::new(), true, Vec::new());
    let mut text = format!(
        "run {} on cluster {}, profile {}, nodes {}\n",
        report::plain(&folder.run.run),
        report::plain(&folder.run.cluster),
        report::plain(&folder.run.profile_text()),
        report::plain(&folder.run.nodes.join(","))
    );
    for name in names {
        let marker = collect::marker(&folder, name)?;
        let now = running.as_ref().filter(|running| running.stage == name);
        let (word, more) = match (&marker, now) {
            (_, Some(running)) => {
                let age = u32::try_from(epoch().saturating_sub(running.since)).unwrap_or(u32::MAX);
                let word = if gone { "interrupted" } else { "running" };
                let left = length(running.limit.saturating_sub(age));
                (word.to_owned(), format!("for {}, at most {left} more", length(age)))
            }
            (None, None) => ("to do".to_owned(), String::new()),
            (Some(marker), None) => {
                let word = marker.state.to_possible_value().map(|value| value.get_name().to_owned());
                let seconds = marker.seconds.map(|seconds| format!("{seconds:.1} s, ")).unwrap_or_default();
                let reason = marker.reason.as_deref().map(|why| format!("; {}", report::plain(why)));
                let records = marker.records;
                (
                    word.unwrap_or_default(),
                    format!("{seconds}{records} records{}", reason.unwrap_or_default()),
                )
            }
        };
        let ended = now.is_none()
            && marker
                .as_ref()
                .is_some_and(|one| matches!(one.state, StageState::Done | StageState::Unavailable));
        complete &= ended;
        if !ended {
            missing.push(name);
        }
        text.push_str(&format!("  {name:<12} {word:<12} {more}\n"));
        rows.push(json!({
            "stage": name,
            "state": word,
            "seconds": marker.as_ref().and_then(|one| one.seconds),
            "records": marker.as_ref().map(|one| one.records),
            "reason": marker.as_ref().and_then(|one| one.reason.clone()),
            "longest_seconds": profile.and_then(|profile| Some(super::plan::stage(name)?.limit(profile))),
        }));
    }
    let guards = super::guards(dir);
    for line in guards.lines() {
        text.push_str(&format!("  {}\n", report::plain(&line)));
    }
    let left = progress.as_ref().map_or(0, Progress::left);
    text.push_str(&match (&alive, &job) {
        _ if complete => "complete\n".to_owned(),
        (Some(state), Some(job)) => format!("job {job} is {state}; at most {} left\n", length(left)),
        (None, Some(job)) if !gone => unasked(job, &missing),
        _ => format!(
            "not complete ({}) and no job is at work: clustermax suite resume {}\n",
            missing.join(", "),
            super::shell_word(&dir.to_string_lossy())
        ),
    });
    if as_json {
        let document = json!({
            "schema": "clustermax-suite-status/1",
            "run": folder.run.run,
            "complete": complete,
            "job": job,
            "job_state": alive,
            "longest_seconds_left": if alive.is_some() { progress.map(|progress| progress.left()) } else { None },
            "missing": missing,
            "stages": rows,
            "profile": folder.run.profile,
            "shrink": folder.run.shrink,
            "guards": guards.found.iter().map(|one| json!({
                "guard": one.guard, "sentence": one.sentence, "nodes": one.nodes,
            })).collect::<Vec<_>>(),
            "guards_not_seen": guards.unseen.iter().map(|(guard, why, nodes)| json!({
                "guard": guard, "reason": why, "nodes": nodes,
            })).collect::<Vec<_>>(),
            "guards_clear": guards.clear,
        });
        text = format!("{document:#}\n");
    }
    report::print(&text)?;
    Ok(u8::from(!complete))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_that_slurm_cannot_be_asked_about_is_not_called_gone() {
        let said = unasked("7", &["gemm", "train"]);
        assert!(
            said.starts_with("not complete (gemm, train); whether job 7 is at work is not known"),
            "{said}"
        );
        assert!(!said.contains("resume"), "two jobs in one folder: {said}");
    }
}
