//! Processes: who a pid is, starting daemons, and ending exactly those that belong to a cluster.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::cgroup::ClusterCgroups;
use crate::error::{Error, IoContext, Result};
use crate::{product, sys};

/// How long a process gets between SIGTERM and SIGKILL. Slurm 24.11's slurmd may spin after SIGTERM for ever.
const TERM_GRACE: Duration = Duration::from_secs(3);
/// How long after SIGKILL a process may take to vanish before it is reported as left behind.
const KILL_GRACE: Duration = Duration::from_secs(5);

/// A process, told apart from a later one that got the same pid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ProcessId {
    /// Process id.
    pub pid: i32,
    /// Start time in clock ticks since boot: field 22 of `/proc/PID/stat`.
    pub start: u64,
}

impl ProcessId {
    /// The process that has this pid now, zombies excepted.
    #[must_use]
    pub fn of(pid: i32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        parse_stat(&stat).filter(|s| s.state != 'Z' && s.state != 'X').map(|s| Self { pid, start: s.start })
    }

    /// Whether this very process still runs.
    #[must_use]
    pub fn alive(self) -> bool {
        Self::of(self.pid) == Some(self)
    }

    /// Sends a signal if this very process still runs.
    fn signal(self, signal: i32) {
        if self.alive() {
            // The process may end between the look and the signal; that is what was wanted.
            let _ = sys::kill(self.pid, signal);
        }
    }
}

/// What is needed of `/proc/PID/stat`.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    state: char,
    parent: i32,
    start: u64,
}

/// Reads a stat line. The command name is in parentheses and may itself hold spaces and parentheses.
fn parse_stat(stat: &str) -> Option<Stat> {
    let rest = &stat[stat.rfind(')')? + 1..];
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    let parent = fields.next()?.parse().ok()?;
    // state is field 3, parent field 4, start time field 22.
    let start = fields.nth(17)?.parse().ok()?;
    Some(Stat { state, parent, start })
}

/// This boot's id; a pid recorded under another id says nothing about today's processes.
///
/// # Errors
/// When `/proc` is not mounted.
pub fn boot_id() -> Result<String> {
    let path = Path::new("/proc/sys/kernel/random/boot_id");
    Ok(fs::read_to_string(path).context("read", path)?.trim().to_owned())
}

/// Starts a daemon in a session of its own, its output appended to `log`, as a member of the cluster's cgroup.
///
/// # Errors
/// When the log cannot be opened or the program not be started.
pub(crate) fn spawn_daemon(
    command: &mut Command,
    log: &Path,
    cgroups: Option<&ClusterCgroups>,
) -> Result<ProcessId> {
    let output = fs::OpenOptions::new().create(true).append(true).open(log).context("open", log)?;
    let errors = output.try_clone().context("open", log)?;
    let membership = cgroups.map(ClusterCgroups::open_daemons).transpose()?;
    command.stdin(Stdio::null()).stdout(output).stderr(errors);
    sys::detach(command, membership.as_ref().map(std::os::fd::AsRawFd::as_raw_fd));
    let program = command.get_program().to_string_lossy().into_owned();
    let child = command.spawn().map_err(|e| Error::System(format!("cannot start {program}: {e}")))?;
    let pid =
        i32::try_from(child.id()).map_err(|_| Error::System(format!("{program} has an impossible pid")))?;
    // The child is not waited for: it outlives this process, and init reaps it.
    ProcessId::of(pid).ok_or_else(|| Error::Daemon {
        what: format!("{program} ended as soon as it was started"),
        log: log.to_owned(),
        tail: crate::files::tail(log, 20),
    })
}

/// What tells a cluster's processes from all others.
#[derive(Debug)]
pub(crate) struct Membership<'a> {
    /// The recorded daemons, valid for this boot.
    pub daemons: Vec<ProcessId>,
    /// The cluster's cgroups, when it has any.
    pub cgroups: Option<&'a ClusterCgroups>,
    /// Value of `SLURM_CLUSTER_NAME` in its jobs; unique on this machine.
    pub cluster_name: &'a str,
    /// Value of the marker variable in the environment of its daemons, and of what they start unchanged.
    pub marker: &'a str,
    /// The cluster's folder.
    pub dir: &'a Path,
    /// Value of `SLURM_CONF` in the environment of Slurm commands that talk to it.
    pub slurm_conf: &'a Path,
}

/// Slurm's own commands: without the cluster they only wait for it, srun for ever and deaf to SIGTERM. Not salloc,
/// below which a user's shell runs.
const CLIENTS: [&str; 8] = ["srun", "sbatch", "sattach", "squeue", "sinfo", "scontrol", "scancel", "sdiag"];

/// Environment variable that every daemon of a cluster carries; its value is the cluster's folder and name.
pub(crate) const MARKER: &str = "CLUSTERMAX_SIM_MEMBER";

impl Membership<'_> {
    /// Every process of the cluster alive now: the recorded daemons, all members of its cgroups, their descendants,
    /// those that carry its mark in their environment, and Slurm commands that talk to it. A shell in which a user merely exported `SLURM_CONF`
    /// is not one of them.
    pub fn processes(&self) -> Vec<ProcessId> {
        let me = std::process::id().cast_signed();
        let table = process_table();
        let mut found: Vec<i32> = self.daemons.iter().filter(|d| d.alive()).map(|d| d.pid).collect();
        if let Some(cgroups) = self.cgroups {
            found.extend(cgroups.members());
        }
        found.extend(table.iter().map(|p| p.0).filter(|pid| self.is_marked(*pid)));
        // Children of members: jobs of a cluster without cgroups.
        let mut next = 0;
        while next < found.len() {
            let parent = found[next];
            for (pid, stat) in &table {
                if stat.parent == parent && !found.contains(pid) {
                    found.push(*pid);
                }
            }
            next += 1;
        }
        found.sort_unstable();
        found.dedup();
        // A `down` that runs inside a job, or a test that was started by one, must not end itself.
        found.into_iter().filter(|pid| *pid > 1 && *pid != me).filter_map(ProcessId::of).collect()
    }

    fn is_marked(&self, pid: i32) -> bool {
        let exe = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
        // Debian keeps the programs under names of its own: slurmstepd-wlm.
        let name = exe.file_name().and_then(|n| n.to_str()).unwrap_or_default();
        let runs = |names: &[&str]| names.contains(&name.strip_suffix("-wlm").unwrap_or(name));
        // slurmstepd writes its title over its environment, but keeps slurmd's log open.
        if runs(&["slurmstepd"]) && has_open(pid, self.dir) {
            return true;
        }
        // Slurm starts the product's programs with an environment of its own making.
        if runs(&product::PROGRAMS) && is_told_of(pid, self.dir) {
            return true;
        }
        let Ok(environment) = fs::read(format!("/proc/{pid}/environ")) else { return false };
        let mut in_job = false;
        let mut of_cluster = false;
        let mut talks_to_it = false;
        for entry in environment.split(|b| *b == 0) {
            let Some(equals) = entry.iter().position(|b| *b == b'=') else { continue };
            let (key, value) = (&entry[..equals], &entry[equals + 1..]);
            if key == MARKER.as_bytes() && value == self.marker.as_bytes() {
                return true;
            }
            // salloc sets the cluster's name in the user's own shell, but only what runs on a node has its name.
            in_job |= key == b"SLURMD_NODENAME";
            talks_to_it |= key == b"SLURM_CONF" && value == self.slurm_conf.as_os_str().as_encoded_bytes();
            of_cluster |= key == b"SLURM_CLUSTER_NAME" && value == self.cluster_name.as_bytes();
        }
        in_job && of_cluster || talks_to_it && runs(&CLIENTS)
    }

    /// Ends every process of the cluster: SIGTERM, three seconds, SIGKILL, and a last look.
    ///
    /// # Errors
    /// Names the processes that are left after SIGKILL (stuck in the kernel).
    pub fn end(&self) -> Result<usize> {
        let first = self.processes();
        for process in &first {
            process.signal(libc::SIGTERM);
            // A stopped process (a suspended job) acts on SIGTERM only when continued.
            process.signal(libc::SIGCONT);
        }
        let deadline = Instant::now() + TERM_GRACE;
        while Instant::now() < deadline && !self.processes().is_empty() {
            std::thread::sleep(Duration::from_millis(30));
        }
        let deadline = Instant::now() + KILL_GRACE;
        loop {
            // Looked up anew each time: a daemon may have started a child meanwhile.
            let left = self.processes();
            if left.is_empty() {
                return Ok(first.len());
            }
            if Instant::now() > deadline {
                let names: Vec<String> =
                    left.iter().map(|p| format!("{} ({})", p.pid, command_name(p.pid))).collect();
                return Err(Error::System(format!(
                    "these processes of the cluster did not end after SIGKILL: {}",
                    names.join(", ")
                )));
            }
            for process in left {
                process.signal(libc::SIGKILL);
            }
            std::thread::sleep(Duration::from_millis(30));
        }
    }
}

/// Whether an argument of a process names a file below a folder.
fn is_told_of(pid: i32, folder: &Path) -> bool {
    let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    arguments.split(|b| *b == 0).any(|a| Path::new(OsStr::from_bytes(a)).starts_with(folder))
}

/// Whether a process has a file open below a folder.
fn has_open(pid: i32, folder: &Path) -> bool {
    let Ok(descriptors) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    descriptors.flatten().any(|d| fs::read_link(d.path()).is_ok_and(|file| file.starts_with(folder)))
}

fn command_name(pid: i32) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm")).map(|s| s.trim().to_owned()).unwrap_or_default()
}

fn process_table() -> Vec<(i32, Stat)> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries
        .flatten()
        .filter_map(|e| e.file_name().to_str()?.parse::<i32>().ok())
        .filter_map(|pid| Some((pid, parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)?)))
        .collect()
}

/// Runs a program and returns its standard output, or says what went wrong; ends it after `limit`.
///
/// # Errors
/// When it cannot be started, fails, or takes longer than `limit`.
pub(crate) fn output_within(command: &mut Command, limit: Duration) -> Result<String> {
    use std::io::Read;

    let program = command.get_program().to_string_lossy().into_owned();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| Error::System(format!("cannot start {program}: {e}")))?;
    // Read beside the wait: a program that fills the pipe would never end otherwise.
    let collect = |stream: Option<Box<dyn Read + Send>>| {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            if let Some(mut stream) = stream {
                // A broken pipe leaves what was read so far.
                let _ = stream.read_to_end(&mut bytes);
            }
            String::from_utf8_lossy(&bytes).into_owned()
        })
    };
    let out = collect(child.stdout.take().map(|s| Box::new(s) as Box<dyn Read + Send>));
    let err = collect(child.stderr.take().map(|s| Box::new(s) as Box<dyn Read + Send>));
    let deadline = Instant::now() + limit;
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(10)),
            Ok(None) => {
                // It may just have ended by itself.
                let _ = child.kill();
                let _ = child.wait();
                return Err(Error::System(format!("{program} did not answer within {} s", limit.as_secs())));
            }
            Err(e) => return Err(Error::System(format!("cannot wait for {program}: {e}"))),
        }
    };
    let (out, err) = (out.join().unwrap_or_default(), err.join().unwrap_or_default());
    if status.success() {
        Ok(out)
    } else {
        Err(Error::System(format!("{program} failed ({status}): {}", err.trim())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_with_parentheses_in_the_name() {
        let line = "42 (a) b (c)) S 7 42 42 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 98765 1000 200";
        assert_eq!(parse_stat(line), Some(Stat { state: 'S', parent: 7, start: 98765 }));
        assert_eq!(parse_stat("42 (short) S 7"), None);
        assert_eq!(parse_stat("garbage"), None);
    }

    #[test]
    fn a_reused_pid_is_not_the_recorded_process() {
        let me = ProcessId::of(std::process::id().cast_signed()).unwrap();
        assert!(me.alive());
        assert!(!ProcessId { start: me.start + 1, ..me }.alive());
    }

    #[test]
    fn only_marked_processes_and_their_children_are_members() {
        let marker = format!("/tmp/members-{}", std::process::id());
        let membership = Membership {
            daemons: Vec::new(),
            cgroups: None,
            cluster_name: "simtest",
            marker: &marker,
            dir: Path::new("/tmp/x"),
            slurm_conf: Path::new("/tmp/x/etc/slurm.conf"),
        };
        let spawn = |vars: &[(&str, &str)]| {
            let mut c = Command::new("sh");
            c.args(["-c", "sleep 100 & wait"]).env_clear().env("PATH", "/usr/bin:/bin");
            c.envs(vars.iter().copied()).spawn().unwrap()
        };
        let mut daemon = spawn(&[(MARKER, &marker)]);
        let mut job = spawn(&[("SLURM_CLUSTER_NAME", "simtest"), ("SLURMD_NODENAME", "n1")]);
        // A user's shell after `salloc`, and one with SLURM_CONF exported: not ours to end.
        let mut shell = spawn(&[("SLURM_CLUSTER_NAME", "simtest"), ("SLURM_CONF", "/tmp/x/etc/slurm.conf")]);
        std::thread::sleep(Duration::from_millis(300));
        let pids: Vec<i32> = membership.processes().iter().map(|p| p.pid).collect();
        assert!(pids.contains(&daemon.id().cast_signed()));
        assert!(pids.contains(&job.id().cast_signed()));
        assert!(!pids.contains(&shell.id().cast_signed()));
        assert_eq!(pids.len(), 4, "two shells and the sleep of each: {pids:?}");
        let reaper = std::thread::spawn(move || (daemon.wait().unwrap(), job.wait().unwrap()));
        membership.end().unwrap();
        reaper.join().unwrap();
        assert!(membership.processes().is_empty());
        assert!(shell.try_wait().unwrap().is_none());
        let children = membership_children(shell.id().cast_signed());
        shell.kill().unwrap();
        shell.wait().unwrap();
        for child in children {
            let _ = sys::kill(child, libc::SIGKILL);
        }
    }

    fn membership_children(parent: i32) -> Vec<i32> {
        process_table().into_iter().filter(|(_, s)| s.parent == parent).map(|(pid, _)| pid).collect()
    }

    #[test]
    fn a_program_that_hangs_is_ended() {
        let error = output_within(Command::new("sleep").arg("60"), Duration::from_millis(200)).unwrap_err();
        assert!(error.to_string().contains("did not answer"), "{error}");
        let error =
            output_within(Command::new("sh").args(["-c", "echo no >&2; exit 4"]), Duration::from_secs(5));
        assert!(error.unwrap_err().to_string().ends_with("no"));
    }
}
