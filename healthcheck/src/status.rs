//! One screen about this node, from the files that passes leave behind: touches no device and asks nobody.
//!
//! Everybody may ask. What only root can read (state folder, other users' job files) is left out and said so.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use serde::Serialize;

use crate::config::Config;
use crate::jobs::{self, Job};
use crate::source;
use crate::table::printable;
use crate::totals::{Brief, ChecksFile, Passes, spooled};
use crate::verdict::{Action, Scope, Status, Verdict};

/// Version tag of the JSON form.
pub const STATUS_SCHEMA: &str = "clustermax-status/1";

/// What the files say.
#[derive(Debug, Serialize)]
pub struct Report {
    /// [`STATUS_SCHEMA`].
    pub schema: &'static str,
    /// Slurm's name of the node.
    pub node: String,
    /// `observe` or `enforce`.
    pub enforcement: String,
    /// Worst status of all checks' last results and of the last verdict.
    pub status: Status,
    /// The last verdict; none when no pass has published one.
    pub verdict: Option<Last>,
    /// The brake; none when that cannot be told.
    pub brake: Option<Brake>,
    /// Drains that wait for the controller; none when that cannot be told.
    pub spooled: Option<usize>,
    /// Passes by mode.
    pub passes: BTreeMap<String, Passes>,
    /// Kernel log records lost, ever.
    pub kmsg_lost: u64,
    /// Jobs on this node whose files may be read.
    pub jobs: Vec<JobRow>,
    /// One row for each device that is not well, and one for each check without such.
    pub rows: Vec<Row>,
    /// What could not be read, a sentence each.
    pub notes: Vec<String>,
}

/// The last verdict in short.
#[derive(Debug, Serialize)]
pub struct Last {
    /// End of its pass, UTC.
    pub time: String,
    /// Seconds since then; none when the clock says that it lies ahead.
    pub age: Option<f64>,
    /// Mode of its pass.
    pub mode: String,
    /// Length of its pass in seconds.
    pub seconds: f64,
    /// Status.
    pub status: Status,
    /// Drain reason.
    pub reason: Option<String>,
    /// What became of the drain.
    pub drain_outcome: Option<String>,
    /// The node was booted since.
    pub earlier_boot: bool,
}

/// The brake.
#[derive(Debug, Serialize)]
pub struct Brake {
    /// It holds drains back.
    pub engaged: bool,
    /// Why, where that may be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// A job on this node.
#[derive(Debug, Serialize)]
pub struct JobRow {
    /// Job id.
    pub job: String,
    /// Its user.
    pub uid: u32,
    /// GPU minors it holds.
    pub gpus: Vec<u32>,
}

/// A check, or a device that a check found not well.
#[derive(Debug, Serialize)]
pub struct Row {
    /// Check id.
    pub check: String,
    /// Device; empty for the whole node.
    pub device: String,
    /// Status.
    pub status: Status,
    /// Seconds since the check ran.
    pub age: Option<f64>,
    /// Seconds since the check has this status.
    pub since: Option<f64>,
    /// What mends it.
    pub action: Action,
    /// Takes the node out of service.
    pub drain: bool,
    /// Jobs concerned.
    pub jobs: Vec<String>,
    /// One phrase.
    pub text: String,
}

impl Report {
    /// Nothing was ever published.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.verdict.is_none() && self.rows.is_empty()
    }

    /// The screen. `all` also lists the checks that have nothing to say.
    #[must_use]
    pub fn render(&self, all: bool) -> String {
        let mut out =
            format!("node {}  {}  {}", self.node, self.status.word().to_uppercase(), self.enforcement);
        match &self.verdict {
            Some(v) => {
                let boot = if v.earlier_boot { ", of an earlier boot" } else { "" };
                let _ = write!(out, "  verdict {} old ({}, {:.3} s{boot})", ago(v.age), v.mode, v.seconds);
                if let Some(reason) = &v.reason {
                    let outcome = v.drain_outcome.as_deref().unwrap_or("not asked for");
                    let _ = write!(out, "\nreason: {}\ndrain:  {outcome}", printable(reason));
                }
            }
            None => out.push_str("  no verdict yet"),
        }
        let brake = match &self.brake {
            None => "not known".into(),
            Some(Brake { engaged: false, .. }) => "released".into(),
            Some(Brake { why: None, .. }) => "ENGAGED".to_string(),
            Some(Brake { why: Some(why), .. }) => format!("ENGAGED ({})", printable(why)),
        };
        let spool = self.spooled.map_or("not known".into(), |n| format!("{n} waiting"));
        let _ =
            write!(out, "\nbrake:  {brake}   spool: {spool}   kernel log: {} records lost", self.kmsg_lost);
        let now = crate::pass::unix_time();
        let passes: Vec<String> = self
            .passes
            .iter()
            .map(|(mode, p)| {
                format!("{mode} {} ({} ago, {})", p.count, ago(age(now, p.time)), p.status.word())
            })
            .collect();
        let _ =
            write!(out, "\npasses: {}", if passes.is_empty() { "none".into() } else { passes.join(", ") });
        let jobs: Vec<String> = self
            .jobs
            .iter()
            .map(|j| {
                let gpus: Vec<String> = j.gpus.iter().map(|g| format!("g{g}")).collect();
                let gpus = if gpus.is_empty() { "no GPU".into() } else { gpus.join(",") };
                format!("{} (uid {}: {gpus})", j.job, j.uid)
            })
            .collect();
        let _ = writeln!(out, "\njobs:   {}", if jobs.is_empty() { "none".into() } else { jobs.join("; ") });

        let quiet = |r: &&Row| matches!(r.status, Status::Pass | Status::Unsupported);
        let shown: Vec<&Row> = self.rows.iter().filter(|r| all || !quiet(r)).collect();
        if !shown.is_empty() {
            let _ = writeln!(
                out,
                "\n{:<10} {:<22} {:<11} {:>6} {:>6}  {:<16} {:<12} SEEN",
                "DEVICE", "CHECK", "STATE", "AGE", "SINCE", "ACTION", "JOBS"
            );
        }
        for r in shown {
            let device = if r.device.is_empty() { "-" } else { &r.device };
            let jobs = if r.jobs.is_empty() { "-".into() } else { r.jobs.join(",") };
            let action = match r.action.word() {
                "none" => "-".to_string(),
                word if r.drain => format!("{word}, drain"),
                word => word.to_string(),
            };
            let _ = writeln!(
                out,
                "{:<10} {:<22} {:<11} {:>6} {:>6}  {action:<16} {jobs:<12} {}",
                printable(device),
                printable(&r.check),
                r.status.word(),
                ago(r.age),
                ago(r.since),
                printable(&r.text)
            );
        }
        if !all {
            let (pass, unsupported) = (self.count(Status::Pass), self.count(Status::Unsupported));
            let _ = writeln!(
                out,
                "\n{pass} checks pass, {unsupported} have nothing to look at here (--all lists them)"
            );
        }
        for note in &self.notes {
            let _ = writeln!(out, "note: {}", printable(note));
        }
        out
    }

    fn count(&self, status: Status) -> usize {
        self.rows.iter().filter(|r| r.status == status).count()
    }
}

/// Reads the files.
#[must_use]
pub fn read(config: &Config, now: f64) -> Report {
    let mut notes = Vec::new();
    let run_dir = &config.paths.run_dir;
    let verdict: Option<Verdict> = json(&run_dir.join("verdict.json"), &mut notes);
    let checks: Option<ChecksFile> = json(&run_dir.join("checks.json"), &mut notes);
    let boot_id = source::boot_id(&config.paths.procfs);
    let jobs = jobs::list(run_dir);
    let hidden = std::fs::read_dir(run_dir.join("jobs"))
        .map_or(0, |d| d.flatten().filter(|e| e.path().extension().is_some_and(|x| x == "json")).count())
        .saturating_sub(jobs.len());
    if hidden > 0 {
        notes.push(format!("{hidden} files of other users' jobs may not be read"));
    }

    let state = &config.paths.state_dir;
    let (brake, waiting) = match std::fs::read_dir(state) {
        Ok(_) => (Some(brake(state)), Some(spooled(state))),
        // A node that never ran a pass has no state folder: nothing is engaged, nothing waits.
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            (Some(Brake { engaged: false, why: None }), Some(0))
        }
        Err(_) => {
            notes.push(format!(
                "{} is root's: brake and spool are as the last pass left them",
                state.display()
            ));
            (
                checks.as_ref().map(|c| Brake { engaged: c.brake, why: None }),
                checks.as_ref().map(|c| c.spooled),
            )
        }
    };

    for (check, e) in checks.iter().flat_map(|c| &c.exempt.0).filter(|(_, e)| e.until > now) {
        let what = if check == crate::exempt::ALL { "every check" } else { check.as_str() };
        notes.push(format!(
            "{what} drains nothing for another {}: {} ({})",
            ago(Some(e.until - now)),
            e.why,
            e.by
        ));
    }
    let mut rows = Vec::new();
    let earlier_boot = |id: &str| !boot_id.is_empty() && id != boot_id;
    if let Some(file) = checks.as_ref().filter(|c| !earlier_boot(&c.totals.boot_id)) {
        for (id, result) in &file.totals.checks {
            let row = |brief: Option<&Brief>| Row {
                check: id.clone(),
                device: brief.map_or(String::new(), |b| b.device.clone()),
                status: brief.map_or(result.status, |b| b.status),
                age: age(now, result.time),
                since: age(now, result.since),
                action: brief.map_or(Action::None, |b| b.action),
                drain: brief.is_some_and(|b| b.drain),
                jobs: brief.map_or_else(Vec::new, |b| concerned(&jobs, b.index, b.device_only, b.drain)),
                text: brief.map_or(&result.detail, |b| &b.text).clone(),
            };
            if result.findings.is_empty() {
                rows.push(row(None));
            }
            rows.extend(result.findings.iter().map(|b| row(Some(b))));
        }
    }
    // A prolog that drained nothing publishes its verdict only: what it found is newer.
    if let Some(v) = verdict.as_ref().filter(|v| !earlier_boot(&v.boot_id)) {
        let aged = |v: &Verdict| seconds(&v.time).and_then(|t| age(now, t));
        for f in v.findings.iter().filter(|f| f.status != Status::Pass) {
            let device = f.device.as_ref().map_or(String::new(), |d| d.name.clone());
            if rows.iter().any(|r| r.check == f.check && r.device == device && r.status == f.status) {
                continue;
            }
            let index = f.device.as_ref().and_then(|d| d.index);
            rows.retain(|r| r.check != f.check || !(r.device.is_empty() || r.device == device));
            rows.push(Row {
                check: f.check.clone(),
                device,
                status: f.status,
                age: aged(v),
                since: None,
                action: f.action,
                drain: f.drains(),
                jobs: concerned(&jobs, index, f.scope == Scope::Device, f.drains()),
                text: f.text.clone(),
            });
        }
        if v.left_out > 0 {
            notes.push(format!("{} lesser findings did not fit into verdict.json", v.left_out));
        }
    }
    rows.sort_by(|a, b| {
        (b.status.rank(), b.drain).cmp(&(a.status.rank(), a.drain)).then_with(|| a.check.cmp(&b.check))
    });

    let totals = checks.as_ref().map(|c| &c.totals);
    let last = verdict.as_ref().map(|v| Last {
        time: v.time.clone(),
        age: seconds(&v.time).and_then(|t| age(now, t)),
        mode: v.mode.clone(),
        seconds: v.seconds,
        status: v.status,
        reason: v.reason.clone(),
        drain_outcome: v.drain_outcome.clone(),
        earlier_boot: earlier_boot(&v.boot_id),
    });
    let verdict_status = last.as_ref().filter(|l| !l.earlier_boot).map(|l| l.status);
    Report {
        schema: STATUS_SCHEMA,
        node: config.node.clone(),
        enforcement: config.enforcement.word().into(),
        status: rows
            .iter()
            .map(|r| r.status)
            .chain(verdict_status)
            .max_by_key(|s| s.rank())
            .unwrap_or(Status::Unknown),
        verdict: last,
        brake,
        spooled: waiting,
        passes: totals.map_or_else(BTreeMap::new, |t| t.passes.clone()),
        kmsg_lost: totals.map_or(0, |t| t.kmsg_lost),
        jobs: jobs
            .iter()
            .map(|j| JobRow {
                job: j.job.clone(),
                uid: j.uid,
                gpus: j.gpus.iter().map(|g| g.index).collect(),
            })
            .collect(),
        rows,
        notes,
    }
}

/// Jobs that hold the device; all jobs when the whole node is to go.
fn concerned(jobs: &[Job], index: Option<u32>, device_only: bool, drain: bool) -> Vec<String> {
    let concerns = |job: &Job| match index {
        Some(index) if device_only || !drain => job.gpus.iter().any(|g| g.index == index),
        _ => drain,
    };
    jobs.iter().filter(|j| concerns(j)).map(|j| j.job.clone()).collect()
}

fn brake(state_dir: &Path) -> Brake {
    match std::fs::read_to_string(state_dir.join("brake.json")) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Brake { engaged: false, why: None },
        Err(e) => Brake { engaged: true, why: Some(format!("its file cannot be read: {e}")) },
        Ok(text) => {
            let value: Option<serde_json::Value> = serde_json::from_str(&text).ok();
            let why = value.and_then(|v| Some(v.get("why")?.as_str()?.to_string()));
            Brake { engaged: true, why: why.or_else(|| Some("its file is not understood".into())) }
        }
    }
}

fn json<T: serde::de::DeserializeOwned>(path: &Path, notes: &mut Vec<String>) -> Option<T> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(e) => {
            notes.push(if e.kind() == std::io::ErrorKind::NotFound {
                format!(
                    "{} was not written yet: `clustermax-healthcheck run --mode periodic` does",
                    path.display()
                )
            } else {
                format!("{} cannot be read: {e}", path.display())
            });
            return None;
        }
    };
    serde_json::from_str(&text)
        .map_err(|e| notes.push(format!("{} is not understood: {e}", path.display())))
        .ok()
}

fn seconds(time: &str) -> Option<f64> {
    #[allow(clippy::cast_precision_loss, reason = "milliseconds fit")]
    time.parse::<jiff::Timestamp>().ok().map(|t| t.as_millisecond() as f64 / 1e3)
}

/// Seconds since a time; none for one that lies more than a little ahead.
fn age(now: f64, time: f64) -> Option<f64> {
    (time - now < 5.0).then(|| (now - time).max(0.0))
}

fn ago(age: Option<f64>) -> String {
    match age {
        None => "?".into(),
        Some(s) if s < 120.0 => format!("{s:.0}s"),
        Some(s) if s < 7200.0 => format!("{:.0}m", s / 60.0),
        Some(s) if s < 172_800.0 => format!("{:.0}h", s / 3600.0),
        Some(s) => format!("{:.0}d", s / 86_400.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exempt::Exemptions;
    use crate::totals::{CHECKS_SCHEMA, LastResult, Totals};
    use crate::verdict::{Device, Fault, Finding, VERDICT_SCHEMA};

    fn config(dir: &Path) -> Config {
        let mut config = Config { node: "n1".into(), ..Config::default() };
        config.paths.run_dir = dir.join("run");
        config.paths.state_dir = dir.join("state");
        config.paths.procfs = dir.join("proc");
        std::fs::create_dir_all(dir.join("run/jobs")).unwrap();
        std::fs::create_dir_all(dir.join("proc/sys/kernel/random")).unwrap();
        std::fs::write(dir.join("proc/sys/kernel/random/boot_id"), "b\n").unwrap();
        config
    }

    fn put(path: &Path, value: &impl Serialize) {
        std::fs::write(path, serde_json::to_string(value).unwrap()).unwrap();
    }

    fn result(status: Status, findings: Vec<Brief>) -> LastResult {
        LastResult { status, time: 900.0, since: 400.0, detail: "8 GPUs".into(), findings }
    }

    fn checks(findings: Vec<Brief>) -> ChecksFile {
        let totals = Totals {
            boot_id: "b".into(),
            checks: [
                ("gpu.count".to_string(), result(Status::Pass, Vec::new())),
                ("gpu.xid".to_string(), result(Status::Fail, findings)),
            ]
            .into(),
            passes: [(
                "periodic".to_string(),
                Passes { count: 7, time: 900.0, seconds: 0.1, status: Status::Fail },
            )]
            .into(),
            ..Totals::default()
        };
        ChecksFile {
            schema: CHECKS_SCHEMA.into(),
            node: "n1".into(),
            time: 900.0,
            enforcement: "enforce".into(),
            brake: true,
            spooled: 1,
            exempt: Exemptions::default(),
            totals,
        }
    }

    fn brief() -> Brief {
        Brief {
            device: "g3".into(),
            index: Some(3),
            status: Status::Fail,
            token: "xid79".into(),
            action: Action::Reboot,
            drain: true,
            device_only: true,
            text: "GPU fell off the \u{1b}[2Jbus".into(),
        }
    }

    fn verdict(boot_id: &str, findings: Vec<Finding>) -> Verdict {
        Verdict {
            schema: VERDICT_SCHEMA.into(),
            node: "n1".into(),
            boot_id: boot_id.into(),
            config_hash: String::new(),
            mode: "prolog".into(),
            enforcement: "enforce".into(),
            time: "1970-01-01T00:16:30.000Z".into(),
            seconds: 0.01,
            status: if findings.is_empty() { Status::Pass } else { Status::Warn },
            action: Action::None,
            drain: false,
            reason: Some("cmx:xid79 g3 x; act=reboot id=00000000".into()),
            drain_outcome: Some("written".into()),
            findings,
            checks: Vec::new(),
            left_out: 0,
        }
    }

    #[test]
    fn a_node_that_never_ran_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let report = read(&config(dir.path()), 1000.0);
        assert!(report.is_empty() && report.status == Status::Unknown);
        assert_eq!(report.spooled, Some(0));
        assert!(report.render(false).contains("was not written yet"));
    }

    #[test]
    fn the_screen_names_device_state_age_action_and_jobs() {
        let dir = tempfile::tempdir().unwrap();
        let config = config(dir.path());
        put(&dir.path().join("run/checks.json"), &checks(vec![brief()]));
        put(&dir.path().join("run/verdict.json"), &verdict("b", Vec::new()));
        for (job, gpus) in [("7", vec![3]), ("8", vec![0, 1])] {
            let gpus = gpus.into_iter().map(|index| jobs::JobGpu { index, ..jobs::JobGpu::default() });
            let job = Job {
                schema: jobs::JOB_SCHEMA.into(),
                job: job.into(),
                node: "n1".into(),
                gpus: gpus.collect(),
                ..Job::default()
            };
            jobs::save(&config.paths.run_dir, &job).unwrap();
        }
        std::fs::create_dir_all(dir.path().join("state/spool")).unwrap();
        std::fs::write(dir.path().join("state/brake.json"), "{\"why\":\"6 of 64 nodes\"}").unwrap();
        let report = read(&config, 1000.0);
        assert_eq!((report.status, report.rows.len(), report.jobs.len()), (Status::Fail, 2, 2));
        let row = &report.rows[0];
        assert_eq!((row.device.as_str(), row.age, row.since), ("g3", Some(100.0), Some(600.0)));
        assert_eq!(row.jobs, ["7"]);
        let text = report.render(false);
        let line = text.lines().find(|l| l.starts_with("g3")).unwrap();
        for word in ["gpu.xid", "fail", "100s", "10m", "reboot, drain", " 7 "] {
            assert!(line.contains(word), "{word}: {line}");
        }
        assert!(text.contains("ENGAGED (6 of 64 nodes)") && text.contains("0 waiting"), "{text}");
        assert!(text.contains("1 checks pass") && !text.contains('\u{1b}'), "{text}");
        assert!(report.render(true).contains("gpu.count"));
    }

    #[test]
    fn what_a_newer_verdict_found_is_added_and_an_earlier_boot_counts_for_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let config = config(dir.path());
        let found = Finding {
            check: "gpu.count".into(),
            token: "gpulost".into(),
            status: Status::Warn,
            device: Some(Device::gpu(5, "0000:5d:00.0")),
            scope: Scope::Device,
            action: Action::None,
            drain: false,
            fault: Fault::Hardware,
            evidence: String::new(),
            text: "GPU is lost".into(),
            mend: String::new(),
            synthetic: false,
            observe: false,
            event: None,
        };
        put(&dir.path().join("run/checks.json"), &checks(vec![brief()]));
        put(&dir.path().join("run/verdict.json"), &verdict("b", vec![found.clone()]));
        let report = read(&config, 1000.0);
        let devices: Vec<&str> = report.rows.iter().map(|r| r.device.as_str()).collect();
        assert_eq!(devices, ["g3", "g5"], "the check that passed before has a row no more");

        std::fs::write(dir.path().join("proc/sys/kernel/random/boot_id"), "c\n").unwrap();
        let report = read(&config, 1000.0);
        assert!(report.rows.is_empty() && report.status == Status::Unknown);
        assert!(report.render(false).contains("of an earlier boot"));
    }
}
