//! What a job left behind on its node: processes of its control group, shared memory of its user, MPS daemons.
//!
//! Only what is the job's for certain: its control group, or its user's when no other job of that user is here. Names are
//! the user's; nothing of them is trusted.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::facts::{Facts, Owner};
use crate::source::host::FIRST_USER;
use crate::source::job_of_process;

/// Processes that are named.
const MAX_PROCESSES: usize = 16;
/// Longest name of a process, in characters; the kernel keeps 15.
const MAX_NAME: usize = 16;

/// What a job left behind.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Left {
    /// Processes in its control group.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub processes: Vec<LeftProcess>,
    /// Further ones.
    #[serde(skip_serializing_if = "is_zero")]
    pub more_processes: u64,
    /// Files of its user in `/dev/shm`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shm: Option<LeftFiles>,
    /// System V segments of its user that nobody is attached to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sysv: Option<LeftSegments>,
    /// Process ids of its MPS daemons.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mps: Vec<u32>,
}

fn is_zero(n: &u64) -> bool {
    *n == 0
}

/// A process.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LeftProcess {
    /// Process id.
    pub pid: u32,
    /// Its name, printable ASCII.
    pub name: String,
    /// A GPU of the job on which it has a context.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu: Option<u32>,
}

/// Files.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LeftFiles {
    /// How many, folders included.
    pub files: u64,
    /// Bytes they hold.
    pub bytes: u64,
}

/// System V segments.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LeftSegments {
    /// How many.
    pub segments: u64,
    /// Their size in bytes.
    pub bytes: u64,
}

impl Left {
    /// Looks for what the ended `job` of `uid` left. `alone`: no other job of this user is here. `facts` are those of the
    /// epilog's pass.
    #[must_use]
    pub fn look(procfs: &Path, job: &str, uid: u32, alone: bool, facts: &Facts) -> Left {
        let on_gpu = contexts(facts);
        let mut all = processes(procfs, job, uid, &on_gpu);
        let more_processes = all.len().saturating_sub(MAX_PROCESSES) as u64;
        all.truncate(MAX_PROCESSES);
        let shm = facts.node.shm.value().and_then(|by_owner| by_owner.get(&uid)).filter(|_| alone);
        let text = std::fs::read_to_string(procfs.join("sysvipc/shm")).unwrap_or_default();
        let daemons = facts.gpu_node.mps.as_ref().and_then(|m| m.value()).into_iter().flatten();
        Left {
            processes: all,
            more_processes,
            shm: shm.map(|of| LeftFiles { files: of.files, bytes: of.bytes }),
            // Services have segments too.
            sysv: if alone && uid >= FIRST_USER { segments(&text, uid) } else { None },
            mps: daemons
                .filter(|d| match &d.owner {
                    Owner::Job(of) => of == job,
                    Owner::NoJob => alone && owner(procfs, d.pid) == Some(uid),
                    Owner::Unknown | Owner::Gone => false,
                })
                .map(|d| d.pid)
                .collect(),
        }
    }

    /// Nothing was left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Left::default()
    }
}

fn owner(procfs: &Path, pid: u32) -> Option<u32> {
    std::fs::metadata(procfs.join(pid.to_string())).ok().map(|m| m.uid())
}

/// GPU by process id.
fn contexts(facts: &Facts) -> BTreeMap<u32, u32> {
    let gpus = facts.nvml.value().map_or(&[][..], |n| &n.gpus);
    gpus.iter()
        .filter_map(|g| Some((*g.minor.value()?, g.details.as_ref()?.processes.value()?)))
        .flat_map(|(minor, list)| list.iter().map(move |p| (p.pid, minor)))
        .collect()
}

/// Processes in the control group of a job of `uid`, Slurm's own and dead ones left out.
fn processes(procfs: &Path, job: &str, uid: u32, on_gpu: &BTreeMap<u32, u32>) -> Vec<LeftProcess> {
    let entries = std::fs::read_dir(procfs).into_iter().flatten().flatten();
    let pids = entries.filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok());
    let mut all: Vec<LeftProcess> = pids
        .filter(|pid| job_of_process(procfs, *pid).as_deref() == Some(job))
        .filter_map(|pid| {
            let stat = std::fs::read(procfs.join(pid.to_string()).join("stat")).ok()?;
            let (state, _) = crate::source::host::parse_stat(&stat)?;
            let name = std::fs::read(procfs.join(pid.to_string()).join("comm")).ok()?;
            let name = printable(&name);
            // A user can call a process that, too, but it is the user's then.
            let of_slurm = name == "slurmstepd" && (uid == 0 || owner(procfs, pid) != Some(uid));
            (!matches!(state, 'Z' | 'X') && !of_slurm).then(|| LeftProcess {
                pid,
                name,
                gpu: on_gpu.get(&pid).copied(),
            })
        })
        .collect();
    all.sort_by_key(|p| p.pid);
    all
}

/// A name that anybody may print.
fn printable(name: &[u8]) -> String {
    let name = name.strip_suffix(b"\n").unwrap_or(name);
    let plain = |b: &u8| if b.is_ascii_graphic() { char::from(*b) } else { '_' };
    name.iter().map(plain).take(MAX_NAME).collect()
}

/// Segments of a user that nobody is attached to, in the table of `/proc/sysvipc/shm`.
fn segments(table: &str, uid: u32) -> Option<LeftSegments> {
    let mut lines = table.lines();
    let head: Vec<&str> = lines.next()?.split_whitespace().collect();
    let column = |name: &str| head.iter().position(|h| *h == name);
    let (size, attached, user) = (column("size")?, column("nattch")?, column("uid")?);
    let mut left = LeftSegments::default();
    for line in lines {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |at: usize| words.get(at).and_then(|w| w.parse::<u64>().ok());
        if number(user) == Some(uid.into()) && number(attached) == Some(0) {
            left.segments += 1;
            left.bytes = left.bytes.saturating_add(number(size).unwrap_or(0));
        }
    }
    (left.segments > 0).then_some(left)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::{GpuProcess, Leftover, NodeFacts, Reading};

    fn process(procfs: &Path, pid: u32, comm: &[u8], state: char, cgroup: &str) {
        let dir = procfs.join(pid.to_string());
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("comm"), comm).unwrap();
        std::fs::write(dir.join("cgroup"), cgroup).unwrap();
        let stat = format!("{pid} (x) {state} 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 1\n");
        std::fs::write(dir.join("stat"), stat).unwrap();
    }

    fn facts(uid: u32) -> Facts {
        let shm = BTreeMap::from([(uid, Leftover { files: 2, bytes: 4096 }), (1, Leftover::default())]);
        Facts { node: NodeFacts { shm: Reading::Value(shm), ..NodeFacts::default() }, ..Facts::default() }
    }

    #[test]
    fn only_the_jobs_own_processes_count() {
        let dir = tempfile::tempdir().unwrap();
        let group = |job: u32| format!("0::/system.slice/slurmstepd.scope/job_{job}/step_0/user/task_0\n");
        process(dir.path(), 40, b"python3\n", 'S', &group(7));
        process(dir.path(), 41, b"python3\n", 'S', &group(77));
        process(dir.path(), 42, b"slurmstepd\n", 'S', &group(7));
        process(dir.path(), 43, b"zombie\n", 'Z', &group(7));
        process(dir.path(), 44, b"login\n", 'S', "0::/user.slice/user-1000.slice/job_7\n");
        process(dir.path(), 45, b"a\x1b[2J\n}\xff\n", 'D', &group(7));
        let left = Left::look(dir.path(), "7", 1000, true, &facts(1));
        let names: Vec<(u32, &str)> = left.processes.iter().map(|p| (p.pid, p.name.as_str())).collect();
        assert_eq!(names, [(40, "python3"), (45, "a_[2J_}_")]);
        assert!(Left::look(dir.path(), "9", 1000, true, &facts(1)).is_empty());
    }

    #[test]
    fn a_process_that_calls_itself_slurmstepd_is_its_users() {
        let dir = tempfile::tempdir().unwrap();
        process(dir.path(), 40, b"slurmstepd\n", 'S', "0::/slurm/uid_1/job_7/step_0\n");
        let me = std::fs::metadata(dir.path()).unwrap().uid();
        let found = |uid| Left::look(dir.path(), "7", uid, true, &facts(1)).processes.len();
        assert_eq!((found(me), found(me + 1)), (usize::from(me != 0), 0));
    }

    #[test]
    fn shared_memory_counts_for_a_job_that_is_the_only_one_of_its_user() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("sysvipc")).unwrap();
        let table = "       key      shmid perms                  size  cpid  lpid nattch   uid   gid  cuid  cgid      atime      dtime      ctime                   rss                  swap\n\
            0          1  1600                  4096  1  1      0  1000  1000  1000  1000          0          0          0  0  0\n\
            0          2  1600                  4096  1  1      1  1000  1000  1000  1000          0          0          0  0  0\n\
            0          3  1600                  9999  1  1      0  1001  1000  1000  1000          0          0          0  0  0\n\
            rubbish\n";
        std::fs::write(dir.path().join("sysvipc/shm"), table).unwrap();
        let left = Left::look(dir.path(), "7", 1000, true, &facts(1000));
        assert_eq!(left.shm, Some(LeftFiles { files: 2, bytes: 4096 }));
        assert_eq!(left.sysv, Some(LeftSegments { segments: 1, bytes: 4096 }));
        assert!(Left::look(dir.path(), "7", 1000, false, &facts(1000)).is_empty());
    }

    #[test]
    fn an_mps_daemon_counts_for_the_job_that_started_it() {
        let dir = tempfile::tempdir().unwrap();
        let me = std::fs::metadata(dir.path()).unwrap().uid();
        for pid in [50, 51, 52] {
            process(dir.path(), pid, b"nvidia-cuda-mps\n", 'S', "0::/\n");
        }
        let daemon = |pid, owner| GpuProcess { pid, owner, name: String::new() };
        let mut f = facts(1);
        f.gpu_node.mps = Some(Reading::Value(vec![
            daemon(50, Owner::Job("7".into())),
            daemon(51, Owner::Job("8".into())),
            daemon(52, Owner::NoJob),
        ]));
        assert_eq!(Left::look(dir.path(), "7", me, true, &f).mps, [50, 52]);
        assert_eq!(Left::look(dir.path(), "7", me, false, &f).mps, [50]);
        assert_eq!(Left::look(dir.path(), "7", me.wrapping_add(1), true, &f).mps, [50]);
    }
}
