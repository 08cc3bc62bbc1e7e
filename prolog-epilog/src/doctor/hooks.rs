//! Keys of slurm.conf that start our programs, and whether they leave them time.

use std::path::{Path, PathBuf};

use healthcheck::config::{Config, check_trusted};

use super::{Looks, Status, is_executable, runs};
use crate::release::Release;
use crate::slurm_conf::{self, SlurmConf};

/// Up to this release the last of several lines counts; seen on 22.05, and on 24.11 that all do.
const LAST_LINE_ONLY: Release = Release { major: 23, minor: 2 };
/// Slurm's default for both, in seconds.
const MESSAGE_TIMEOUT: u64 = 10;

pub(super) fn scripts(looks: &mut Looks, config: &Config, conf: &SlurmConf, slurm: Option<Release>) {
    let own = |name: &str| config.paths.drain.parent().unwrap_or(Path::new("/")).join(name);
    for (key, name, missing, why) in [
        ("Prolog", "clustermax-prolog", Status::Fail, "jobs start on nodes with a known fault"),
        (
            "Epilog",
            "clustermax-epilog",
            Status::Warn,
            "a fault that a job met is found only by the next check, and the job's file is never closed",
        ),
    ] {
        let check = format!("slurm.conf {key}");
        let line = format!("{key}={}", own(name).display());
        let mut lines: Vec<&str> = conf.all(key).filter(|v| !v.is_empty() && *v != "(null)").collect();
        if slurm.is_some_and(|r| r <= LAST_LINE_ONLY) {
            lines.drain(..lines.len().saturating_sub(1));
        }
        let scripts: Vec<PathBuf> =
            lines.iter().flat_map(|v| slurm_conf::expand(Path::new(v.trim()))).collect();
        if let Some(broken) = scripts.iter().find(|s| !is_executable(s)) {
            looks.add(
                &check,
                Status::Fail,
                format!(
                    "{} is missing or cannot be executed: put it in place before the line",
                    broken.display()
                ),
                "with a script that cannot run, every job drains the nodes it meets",
                format!("chmod 755 {}", broken.display()),
            );
        } else if let Some(unsafe_script) = scripts.iter().find_map(|s| check_trusted(s, true).err()) {
            looks.add(&check, Status::Fail, unsafe_script.to_string(), "root runs it for every job", "");
        } else if let Some(script) = scripts.iter().find(|s| runs(s, name)) {
            looks.pass(&check, format!("{} runs {name}", script.display()));
        } else if scripts.is_empty() {
            looks.add(&check, missing, format!("{key} is not set: add {line}"), why, line);
        } else {
            looks.add(
                &check,
                missing,
                format!("no {key} script runs {name}: add {line}, or a link to it in the folder of a pattern such as {key}=/etc/slurm/scripts.d/* (of several lines, releases up to {LAST_LINE_ONLY} take the last one only)"),
                why,
                line,
            );
        }
    }
    let flags = conf.get("PrologFlags").unwrap_or_default().to_ascii_lowercase();
    // These imply Alloc.
    let alloc =
        flags.split(',').any(|f| matches!(f.trim(), "alloc" | "contain" | "x11" | "serial" | "runinjob"));
    if alloc {
        looks.pass("slurm.conf PrologFlags", "the prolog runs when the job is allocated");
    } else {
        let wanted = if flags.is_empty() { "Alloc".to_string() } else { format!("Alloc,{flags}") };
        looks.add(
            "slurm.conf PrologFlags",
            Status::Warn,
            "PrologFlags lacks Alloc",
            "the prolog runs only at the job's first step on a node: salloc gets a sick node, and a batch job starts before its other nodes were looked at",
            format!("PrologFlags={wanted}"),
        );
    }
}

pub(super) fn health_check(looks: &mut Looks, config: &Config, conf: &SlurmConf) {
    const CHECK: &str = "slurm.conf HealthCheckProgram";
    let own = config.paths.drain.parent().unwrap_or(Path::new("/")).join("healthcheckprogram");
    let line = format!("HealthCheckProgram={}", own.display());
    let why = "nothing looks at idle nodes, and drains kept while the controller was away are not delivered";
    match conf.get("HealthCheckProgram") {
        None => looks.add(CHECK, Status::Fail, format!("HealthCheckProgram is not set: add {line}"), why, line),
        Some(value) if value.split_whitespace().count() > 1 => looks.add(
            CHECK,
            Status::Fail,
            format!("HealthCheckProgram={value} has arguments: Slurm takes the whole text for a file name, runs nothing and says so only in slurmd's log (status 127)"),
            why,
            line,
        ),
        Some(value) => {
            let program = Path::new(value);
            if !is_executable(program) {
                looks.add(
                    CHECK,
                    Status::Fail,
                    format!("{value} is missing or cannot be executed"),
                    why,
                    format!("chmod 755 {value}"),
                );
            } else if let Err(e) = check_trusted(program, true) {
                looks.add(CHECK, Status::Fail, e.to_string(), "root runs it on every node", "");
            } else if runs(program, "clustermax-healthcheck") {
                looks.pass(CHECK, format!("{value} runs clustermax-healthcheck"));
            } else {
                looks.add(
                    CHECK,
                    Status::Fail,
                    format!("{value} does not run clustermax-healthcheck: add the call to it"),
                    why,
                    "clustermax-healthcheck run --mode periodic",
                );
            }
        }
    }
    match conf.number("HealthCheckInterval") {
        None | Some(0) => looks.add(
            "slurm.conf HealthCheckInterval",
            Status::Fail,
            "HealthCheckInterval is 0 or not set: HealthCheckProgram never runs (before 25.11 not even when slurmd starts)",
            why,
            "HealthCheckInterval=60",
        ),
        Some(seconds) if seconds > 300 => looks.add(
            "slurm.conf HealthCheckInterval",
            Status::Warn,
            format!("HealthCheckInterval is {seconds} s"),
            "a fault on an idle node is seen that much later",
            "HealthCheckInterval=60",
        ),
        Some(seconds) => looks.pass("slurm.conf HealthCheckInterval", format!("every {seconds} s")),
    }
}

pub(super) fn timeouts(looks: &mut Looks, config: &Config, conf: &SlurmConf) {
    let ours = config.deadlines.prolog;
    let mut fits = true;
    let message = conf.number("MessageTimeout").unwrap_or(MESSAGE_TIMEOUT);
    for (key, limit, why) in [
        ("MessageTimeout", Some(message), "users are told \"Prolog hung\""),
        (
            "PrologEpilogTimeout",
            conf.number("PrologEpilogTimeout"),
            "Slurm kills the prolog in the middle, drains the node with \"Prolog error\" and requeues the job",
        ),
        (
            "PrologTimeout",
            conf.number("PrologTimeout"),
            "Slurm kills the prolog in the middle, drains the node with \"Prolog error\" and requeues the job",
        ),
        (
            "EpilogTimeout",
            conf.number("EpilogTimeout"),
            "Slurm kills the epilog in the middle and drains the node with \"Epilog error\"",
        ),
    ] {
        // 65534 and 65535 stand for "no limit".
        if let Some(limit) = limit.filter(|l| l.saturating_mul(1000) <= ours && *l > 0) {
            fits = false;
            looks.add(
                &format!("slurm.conf {key}"),
                Status::Warn,
                format!("{key} is {limit} s, deadlines.prolog of the configuration {ours} ms"),
                why,
                format!("{key}={}", ours / 1000 + 3),
            );
        }
    }
    if fits {
        looks.pass("slurm.conf timeouts", format!("all longer than deadlines.prolog ({ours} ms)"));
    }
}
