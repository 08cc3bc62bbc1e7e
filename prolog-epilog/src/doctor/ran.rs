//! Proof that HealthCheckProgram really ran: what its last pass left on this node.

use std::path::Path;

use healthcheck::config::Config;
use serde::Deserialize;

use super::{Looks, Status};
use crate::slurm_conf::SlurmConf;

const CHECK: &str = "HealthCheckProgram ran";

/// What is needed of `RUN_DIR/checks.json`: every periodic pass leaves its time there.
#[derive(Deserialize)]
struct Checks {
    boot_id: String,
    #[serde(default)]
    passes: Passes,
}

#[derive(Default, Deserialize)]
struct Passes {
    periodic: Option<Pass>,
}

#[derive(Deserialize)]
struct Pass {
    count: u64,
    /// Begin, seconds since the epoch.
    time: f64,
}

/// Looks at the age of the last periodic pass; `now` in seconds since the epoch.
pub(super) fn look(looks: &mut Looks, config: &Config, conf: &SlurmConf, now: f64) {
    let Some(interval) = conf.number("HealthCheckInterval").filter(|i| *i > 0) else { return };
    let file = config.paths.run_dir.join("checks.json");
    let mend = "look for health_check in slurmd's log; is slurmd running here, and is slurm.conf newer than slurmd? \
                systemctl restart slurmd";
    let why =
        "a HealthCheckProgram that Slurm cannot start is named in slurmd's log only, and nothing drains";
    let text = match std::fs::read_to_string(&file) {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            looks.add(
                CHECK,
                Status::Warn,
                format!(
                    "{} does not exist: no periodic pass has ended on this node since it was booted (on a login node \
                     or controller that is as it should be)",
                    file.display()
                ),
                why,
                mend,
            );
            return;
        }
        Err(e) => {
            looks.add(CHECK, Status::Warn, format!("{} cannot be read: {e}", file.display()), why, "");
            return;
        }
    };
    let checks: Checks = match serde_json::from_str(&text) {
        Ok(checks) => checks,
        Err(e) => {
            looks.add(CHECK, Status::Warn, format!("{} is not readable: {e}", file.display()), why, "");
            return;
        }
    };
    let this_boot = boot_id(&config.paths.procfs).is_none_or(|id| id == checks.boot_id);
    match checks.passes.periodic.filter(|_| this_boot) {
        Some(pass) => {
            let age = (now - pass.time).max(0.0);
            // Slurm asks all nodes at once; a slow pass and a busy controller may take one more interval.
            #[allow(clippy::cast_precision_loss, reason = "an interval of some seconds")]
            let late = age > 3.0 * interval as f64 + 60.0;
            if late {
                looks.add(
                    CHECK,
                    Status::Fail,
                    format!("the last of {} periodic passes began {age:.0} s ago, HealthCheckInterval is {interval} s", pass.count),
                    why,
                    mend,
                );
            } else {
                looks.pass(CHECK, format!("{} passes, the last one {age:.0} s ago", pass.count));
            }
        }
        None => looks.add(
            CHECK,
            Status::Warn,
            format!("{} knows of no periodic pass since this node was booted", file.display()),
            why,
            mend,
        ),
    }
}

fn boot_id(procfs: &Path) -> Option<String> {
    let text = std::fs::read_to_string(procfs.join("sys/kernel/random/boot_id")).ok()?;
    Some(text.trim().to_string())
}
