//! Keys of slurm.conf that decide what a fault does to jobs and nodes, beside the ones that start our programs.

use super::{Looks, Status};
use crate::slurm_conf::SlurmConf;

/// Slurm's defaults, in seconds.
const SLURMD_TIMEOUT: u64 = 300;
const UNKILLABLE_STEP_TIMEOUT: u64 = 60;
/// Large Python jobs need this long to die; sites that drained healthy nodes with less went to it.
const UNKILLABLE_MIN: u64 = 120;
/// A dead node runs no HealthCheckProgram: only this timeout tells. Longer, and its jobs hang that long.
const SLURMD_TIMEOUT_MAX: u64 = 300;

pub(super) fn look(looks: &mut Looks, conf: &SlurmConf, enforce: bool) {
    slurmd_timeout(looks, conf);
    unkillable_step_timeout(looks, conf);
    requeued_jobs(looks, conf, enforce);
    health_check_states(looks, conf);
}

fn slurmd_timeout(looks: &mut Looks, conf: &SlurmConf) {
    const CHECK: &str = "slurm.conf SlurmdTimeout";
    let why =
        "a node that is dead runs no HealthCheckProgram: only this timeout sets it DOWN and ends its jobs";
    let interval = conf.number("HealthCheckInterval").unwrap_or_default();
    match conf.number("SlurmdTimeout").unwrap_or(SLURMD_TIMEOUT) {
        0 => looks.add(
            CHECK,
            Status::Warn,
            "SlurmdTimeout is 0: a dead node is never set DOWN",
            why,
            format!("SlurmdTimeout={SLURMD_TIMEOUT}"),
        ),
        seconds if seconds > SLURMD_TIMEOUT_MAX => looks.add(
            CHECK,
            Status::Warn,
            format!("SlurmdTimeout is {seconds} s"),
            why,
            format!("SlurmdTimeout={SLURMD_TIMEOUT}"),
        ),
        seconds if seconds < interval => looks.add(
            CHECK,
            Status::Warn,
            format!("SlurmdTimeout is {seconds} s, HealthCheckInterval {interval} s"),
            "a busy node may be set DOWN, and its jobs ended, before it was looked at once",
            format!("SlurmdTimeout={SLURMD_TIMEOUT}"),
        ),
        seconds => looks.pass(CHECK, format!("a dead node is set DOWN after {seconds} s")),
    }
}

fn unkillable_step_timeout(looks: &mut Looks, conf: &SlurmConf) {
    const CHECK: &str = "slurm.conf UnkillableStepTimeout";
    let seconds = conf.number("UnkillableStepTimeout").unwrap_or(UNKILLABLE_STEP_TIMEOUT);
    if seconds < UNKILLABLE_MIN {
        looks.add(
            CHECK,
            Status::Warn,
            format!("UnkillableStepTimeout is {seconds} s"),
            "Slurm drains healthy nodes with \"Kill task failed\" when a large job takes longer to die",
            format!("UnkillableStepTimeout={UNKILLABLE_MIN}"),
        );
    } else {
        looks.pass(CHECK, format!("jobs get {seconds} s to die"));
    }
}

fn requeued_jobs(looks: &mut Looks, conf: &SlurmConf, enforce: bool) {
    const CHECK: &str = "slurm.conf SchedulerParameters";
    let parameters = conf.get("SchedulerParameters").unwrap_or_default();
    if parameters.split(',').any(|p| p.trim().eq_ignore_ascii_case("nohold_on_prolog_fail")) {
        looks.pass(CHECK, "a batch job whose prolog failed is requeued and starts elsewhere by itself");
        return;
    }
    let line = if parameters.is_empty() { String::new() } else { format!("{parameters},") };
    let line = format!("SchedulerParameters={line}nohold_on_prolog_fail");
    let text = "SchedulerParameters lacks nohold_on_prolog_fail";
    if enforce {
        looks.add(
            CHECK,
            Status::Warn,
            text,
            "a batch job that met a sick node is requeued and held until somebody releases it; the node is \
             drained before, so it would not go there again",
            line,
        );
    } else {
        // In observe no prolog of ours fails.
        looks.pass(CHECK, format!("{text}: add it before `enforce`, as {line}"));
    }
}

fn health_check_states(looks: &mut Looks, conf: &SlurmConf) {
    const CHECK: &str = "slurm.conf HealthCheckNodeState";
    let value = conf.get("HealthCheckNodeState").unwrap_or("ANY");
    let states: Vec<String> = value.split(',').map(|s| s.trim().to_ascii_uppercase()).collect();
    let has = |state: &str| states.iter().any(|s| s == state);
    // CYCLE alone is "any node, spread over the interval"; START_ONLY and REBOOT_ONLY came with 25.11 and 26.05.
    let busy = has("ANY") || has("MIXED") && has("ALLOC") || states.iter().all(|s| s == "CYCLE");
    if busy && !has("START_ONLY") && !has("REBOOT_ONLY") {
        looks.pass(CHECK, format!("{value}: busy nodes are looked at too"));
    } else {
        looks.add(
            CHECK,
            Status::Warn,
            format!("HealthCheckNodeState={value} leaves out nodes that run jobs"),
            "a fault under a running job is found only by its epilog",
            "HealthCheckNodeState=ANY",
        );
    }
}
