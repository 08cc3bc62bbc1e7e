//! GPU software of the node: kernel module, services, processes on the GPUs and the jobs they belong to.

use std::path::Path;
use std::process::Command;

use super::child::{Ended, Outcome};
use super::read_trimmed;
use crate::facts::{Facts, GpuProcess, Owner, Reading, Service};

/// Name of the fabric manager's unit.
pub const FABRIC_MANAGER: &str = "nvidia-fabricmanager.service";
/// What the kernel keeps of an MPS daemon's name: 15 characters of `nvidia-cuda-mps-control` or `-server`.
const MPS_COMM: &str = "nvidia-cuda-mps";

/// `/sys/module/nvidia/version`.
pub fn module_version(sysfs: &Path) -> Reading<String> {
    read_trimmed(&sysfs.join("module/nvidia/version")).map_or(Reading::Unsupported, Reading::Value)
}

/// The question about a unit; `systemctl` is asked because the bus's answer is the same and needs no library.
pub fn unit_question(unit: &str) -> Command {
    let mut command = Command::new("systemctl");
    command.args(["show", unit, "--property=LoadState,ActiveState"]);
    command
}

/// Its answer. Without systemd there is no such service.
pub fn unit_state(outcome: &Outcome) -> Reading<Service> {
    match &outcome.ended {
        Ended::Exit(Some(0)) => {
            let after = |key: &str| {
                let line = outcome.stdout.lines().find_map(|l| l.strip_prefix(key));
                line.unwrap_or_default().trim().to_string()
            };
            let service = Service { load: after("LoadState="), active: after("ActiveState=") };
            if service.load.is_empty() { Reading::Unsupported } else { Reading::Value(service) }
        }
        Ended::NotStarted(_) | Ended::Exit(_) => Reading::Unsupported,
        other => super::failed(other),
    }
}

/// First line of `nvidia-imex-ctl -q`: `READY` when the local daemon serves its domain.
pub fn imex_state(outcome: &Outcome) -> Reading<String> {
    match &outcome.ended {
        Ended::Exit(Some(_)) => {
            let line = outcome.stdout.lines().find(|l| !l.trim().is_empty()).unwrap_or("no answer");
            Reading::Value(line.trim().chars().take(80).collect())
        }
        other => super::failed(other),
    }
}

/// Whether the node has a channel for memory of other nodes.
pub fn imex_channels(dev: &Path) -> bool {
    std::fs::read_dir(dev.join("nvidia-caps-imex-channels")).is_ok_and(|mut entries| entries.next().is_some())
}

/// Finds out whose the processes on the GPUs are, and which of their jobs have ended: those whose file the epilog
/// moved to `STATE_DIR/jobs/`.
pub fn attribute_processes(facts: &mut Facts, procfs: &Path, state_dir: &Path) {
    let mut jobs = Vec::new();
    if let Reading::Value(nvml) = &mut facts.nvml {
        let lists = nvml.gpus.iter_mut().filter_map(|g| g.details.as_mut()).map(|d| &mut d.processes);
        for list in lists {
            let Reading::Value(processes) = list else { continue };
            for p in processes {
                (p.owner, p.name) = look_up(procfs, p.pid);
                jobs.extend(job_of(p));
            }
        }
    }
    if let Some(Reading::Value(daemons)) = &facts.gpu_node.mps {
        jobs.extend(daemons.iter().filter_map(job_of));
    }
    jobs.sort();
    jobs.dedup();
    jobs.retain(|job| state_dir.join("jobs").join(format!("{job}.json")).exists());
    facts.gpu_node.ended_jobs = jobs;
}

fn job_of(p: &GpuProcess) -> Option<String> {
    match &p.owner {
        Owner::Job(job) => Some(job.clone()),
        _ => None,
    }
}

/// MPS daemons of this node.
pub fn mps_daemons(procfs: &Path) -> Reading<Vec<GpuProcess>> {
    let entries = match std::fs::read_dir(procfs) {
        Ok(entries) => entries,
        Err(e) => return Reading::Unknown(format!("{} cannot be read: {e}", procfs.display())),
    };
    let pids = entries.flatten().filter_map(|e| e.file_name().to_str()?.parse().ok());
    Reading::Value(
        pids.filter(|pid: &u32| {
            read_trimmed(&procfs.join(pid.to_string()).join("comm")).is_some_and(|name| name == MPS_COMM)
        })
        .map(|pid| {
            let (owner, name) = look_up(procfs, pid);
            GpuProcess { pid, owner, name }
        })
        .collect(),
    )
}

/// Owner and command name. `comm` and `cgroup` never wait for the process, as `cmdline` can.
fn look_up(procfs: &Path, pid: u32) -> (Owner, String) {
    let dir = procfs.join(pid.to_string());
    let Some(name) = read_trimmed(&dir.join("comm")) else {
        return (if dir.exists() { Owner::Unknown } else { Owner::Gone }, String::new());
    };
    let owner = match read_trimmed(&dir.join("cgroup")) {
        Some(text) => job_of_cgroup(&text).map_or(Owner::NoJob, Owner::Job),
        None => Owner::Unknown,
    };
    (owner, name.chars().filter(|c| !c.is_control()).take(32).collect())
}

/// Job in whose control group a process is.
pub fn job_of_process(procfs: &Path, pid: u32) -> Option<String> {
    job_of_cgroup(&read_trimmed(&procfs.join(pid.to_string()).join("cgroup"))?)
}

/// Job of a `/proc/PID/cgroup`: Slurm's folders are called `job_ID`, below `slurm`, `slurm_NODE` or
/// `slurmstepd.scope`. A user can make folders below the step's only, so the first such name is Slurm's.
fn job_of_cgroup(text: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let path = line.splitn(3, ':').nth(2)?;
        let mut parts = path.split('/').skip_while(|p| !p.starts_with("slurm"));
        let job = parts.find_map(|p| p.strip_prefix("job_"))?;
        crate::jobs::is_job_id(job).then(|| job.to_string())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_are_found_in_control_groups_of_every_slurm() {
        for (text, job) in [
            ("0::/system.slice/slurmstepd.scope/job_12/step_0/user/task_0", Some("12")),
            ("11:devices:/slurm/uid_1000/job_7/step_batch\n1:name=systemd:/", Some("7")),
            ("4:memory:/slurm_n1/uid_0/job_3/step_extern", Some("3")),
            ("0::/user.slice/user-1000.slice/job_9", None),
            ("0::/system.slice/slurmd.service", None),
            ("0::/slurm/uid_0/job_x/step_0", None),
            ("", None),
        ] {
            assert_eq!(job_of_cgroup(text).as_deref(), job, "{text}");
        }
    }

    #[test]
    fn mps_daemons_and_gone_processes() {
        let dir = tempfile::tempdir().unwrap();
        for (pid, comm) in [("40", "nvidia-cuda-mps"), ("41", "bash")] {
            std::fs::create_dir(dir.path().join(pid)).unwrap();
            std::fs::write(dir.path().join(pid).join("comm"), format!("{comm}\n")).unwrap();
            std::fs::write(dir.path().join(pid).join("cgroup"), "0::/slurm/uid_1/job_5/step_0\n").unwrap();
        }
        let Reading::Value(found) = mps_daemons(dir.path()) else { panic!("not read") };
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].pid, &found[0].owner), (40, &Owner::Job("5".into())));
        assert_eq!(look_up(dir.path(), 99).0, Owner::Gone);
        assert!(matches!(mps_daemons(&dir.path().join("none")), Reading::Unknown(_)));
    }

    #[test]
    fn answers_of_systemctl_and_imex() {
        let said = |text: &str, ended| Outcome { stdout: text.into(), ended };
        let state = unit_state(&said("LoadState=loaded\nActiveState=failed\n", Ended::Exit(Some(0))));
        assert_eq!(state, Reading::Value(Service { load: "loaded".into(), active: "failed".into() }));
        assert_eq!(unit_state(&said("", Ended::Exit(Some(1)))), Reading::Unsupported);
        assert!(matches!(unit_state(&said("", Ended::Deadline("late".into()))), Reading::Hung(_)));
        assert_eq!(imex_state(&said("READY\n", Ended::Exit(Some(0)))), Reading::Value("READY".into()));
        assert_eq!(imex_state(&said("", Ended::Exit(Some(1)))), Reading::Value("no answer".into()));
        assert!(matches!(imex_state(&said("", Ended::NotStarted("x".into()))), Reading::Unknown(_)));
    }
}
