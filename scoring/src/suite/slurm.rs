//! What Slurm says of the job that the suite runs in. Every command has a deadline: a controller that is away must not
//! hold a run.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::Failure;
use crate::sla::hostlist;

/// How long one Slurm command may take.
const LIMIT: Duration = Duration::from_secs(30);

/// The job around this process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Job {
    /// `SLURM_JOB_ID`
    pub id: String,
    /// ClusterName
    pub cluster: String,
    /// NodeNames of the allocation.
    pub nodes: Vec<String>,
    /// What a later job needs to get the same allocation: partition, TresPerNode, time limit; where Slurm tells.
    pub partition: Option<String>,
    /// TresPerNode as `--gres` takes it: `gpu:8`.
    pub gres: Option<String>,
    /// Epoch seconds at which the job started and will be ended.
    pub start: Option<i64>,
    /// Epoch seconds.
    pub end: Option<i64>,
    /// The batch script that was submitted.
    pub script: Option<PathBuf>,
    /// How often it was requeued.
    pub restarts: u32,
    /// `SLURM_GPUS_ON_NODE`: the job was given GPUs.
    pub gpus_on_node: Option<String>,
    /// Folder of submission.
    pub submitted_from: PathBuf,
}

impl Job {
    /// The job of this process' environment.
    ///
    /// # Errors
    /// Outside of a job, or when Slurm does not name its nodes.
    pub fn current() -> Result<Self, Failure> {
        let env = |name: &str| std::env::var(name).ok().filter(|text| !text.is_empty());
        let Some(id) = env("SLURM_JOB_ID") else {
            return Err(Failure::input(
                "this runs inside a Slurm job: submit it with `sbatch -N NODES clustermax-suite.sh`, see --help",
            ));
        };
        // Not `scontrol show job`: a job's name stands there unquoted and may imitate any field.
        let shown = output("squeue", &["-h", "-j", &id, "-o", "%P|%b|%S|%e|%o"], LIMIT).unwrap_or_default();
        let fields: Vec<&str> = shown.trim_end().splitn(5, '|').collect();
        let field = |at: usize| {
            fields
                .get(at)
                .map(|text| (*text).to_owned())
                .filter(|text| !matches!(text.as_str(), "(null)" | "N/A"))
        };
        let nodes = nodes(&env("SLURM_JOB_NODELIST").unwrap_or_default());
        if nodes.is_empty() {
            return Err(Failure::missing(format!(
                "the nodes of job {id} cannot be told: `scontrol show hostnames` gave none; does scontrol work here?"
            )));
        }
        let cluster = env("SLURM_CLUSTER_NAME").or_else(|| {
            let config = output("scontrol", &["show", "config"], LIMIT)?;
            let line = config.lines().find(|line| line.starts_with("ClusterName"))?;
            Some(line.split_once('=')?.1.trim().to_owned())
        });
        Ok(Self {
            cluster: cluster.ok_or_else(|| {
                Failure::missing(
                    "the cluster's name is neither in SLURM_CLUSTER_NAME nor in `scontrol show config`",
                )
            })?,
            nodes,
            partition: field(0),
            gres: field(1).map(|text| text.replace("gres/", "").replace("gres:", "")),
            start: field(2).and_then(|text| text.parse().ok()),
            end: field(3).and_then(|text| text.parse().ok()),
            script: field(4).as_deref().and_then(script),
            restarts: env("SLURM_RESTART_COUNT").and_then(|text| text.parse().ok()).unwrap_or(0),
            gpus_on_node: env("SLURM_GPUS_ON_NODE"),
            submitted_from: env("SLURM_SUBMIT_DIR").map_or_else(|| PathBuf::from("."), PathBuf::from),
            id,
        })
    }

    /// Nodes that the job still holds: with `--no-kill` a node that fails leaves the job, which goes on.
    /// None when Slurm does not answer.
    pub fn nodes_left(&self) -> Option<Vec<String>> {
        let list = output("squeue", &["-h", "-j", &self.id, "-o", "%N"], LIMIT)?;
        Some(nodes(list.trim())).filter(|nodes| !nodes.is_empty())
    }

    /// Ends the steps that a stage left behind; the batch step itself has no number.
    pub fn end_steps(&self) {
        let steps = output("squeue", &["-h", "-s", "-j", &self.id, "-o", "%i"], LIMIT).unwrap_or_default();
        for step in steps.split_whitespace() {
            let number = step.rsplit_once('.').is_some_and(|(_, number)| number.parse::<u32>().is_ok());
            if number {
                let _ = output("scancel", &["--signal=KILL", step], LIMIT);
            }
        }
    }
}

/// The batch script in Slurm's Command: some releases put its arguments after it.
fn script(command: &str) -> Option<PathBuf> {
    let end =
        ["/clustermax-suite.sh", ".sbatch"].iter().find_map(|end| Some(command.find(end)? + end.len()))?;
    Some(PathBuf::from(&command[..end]))
}

/// Nodes of a list in Slurm's notation.
pub fn nodes(list: &str) -> Vec<String> {
    if list.is_empty() {
        return Vec::new();
    }
    let names = output("scontrol", &["show", "hostnames", list], LIMIT).unwrap_or_default();
    names.split_whitespace().map(str::to_owned).collect()
}

/// States of the nodes that are not as they should be: `n2 IDLE+DRAIN cmx:xid79 ...`. Empty when Slurm does not answer.
pub fn unwell(nodes: &[String]) -> BTreeMap<String, String> {
    let shown =
        output("sinfo", &["-h", "-N", "-o", "%N|%T|%E", "-n", &nodes.join(",")], LIMIT).unwrap_or_default();
    shown
        .lines()
        .filter_map(|line| {
            let mut parts = line.splitn(3, '|');
            let (node, state, reason) = (parts.next()?, parts.next()?, parts.next()?.trim());
            let bad = ["down", "drain", "fail", "unknown"].iter().any(|word| state.contains(word));
            bad.then(|| (node.to_owned(), format!("{state}: {reason}")))
        })
        .collect()
}

/// What else Slurm has on these nodes, for the guards: a line `node NODE GRES CPUS_IN_USE OWN_CPUS` for each, and a line
/// `job NODE ID` for each other job that this user may see. None when Slurm does not answer.
pub fn neighbours(job: &Job, of: &[String]) -> Option<String> {
    let list = of.join(",");
    let shown = output("scontrol", &["show", "node", "-o", &list], LIMIT)?;
    let jobs = output("squeue", &["-h", "-t", "R,CG", "-w", &list, "-o", "%A|%N"], LIMIT)?;
    let own = own_cpus(&std::env::var("SLURM_JOB_CPUS_PER_NODE").unwrap_or_default());
    let mut text = String::new();
    for line in shown.lines() {
        // The first of a name: a comment or reason, which may imitate any field, stands behind them.
        let field = |key: &str| line.split_whitespace().find_map(|word| word.strip_prefix(key));
        if let (Some(node), Some(used)) = (field("NodeName="), field("CPUAlloc=")) {
            let own = job.nodes.iter().position(|one| one == node).and_then(|at| own.get(at));
            let own = own.map_or_else(|| "unknown".to_owned(), u32::to_string);
            text.push_str(&format!("node {node} {} {used} {own}\n", field("Gres=").unwrap_or("(null)")));
        }
    }
    let ours: BTreeSet<&String> = of.iter().collect();
    for (id, list) in jobs.lines().filter_map(|line| line.split_once('|')) {
        if id != job.id {
            for node in hostlist::expand(list).unwrap_or_default().iter().filter(|node| ours.contains(node)) {
                text.push_str(&format!("job {node} {id}\n"));
            }
        }
    }
    Some(text)
}

/// `SLURM_JOB_CPUS_PER_NODE`, node by node: `4(x2),2` is 4 4 2.
fn own_cpus(text: &str) -> Vec<u32> {
    text.split(',')
        .filter_map(|part| {
            let (cpus, times) = part.split_once("(x").unwrap_or((part, "1"));
            let times: usize = times.trim_end_matches(')').parse().ok().filter(|times| *times <= 1 << 16)?;
            Some(vec![cpus.parse().ok()?; times])
        })
        .flatten()
        .collect()
}

/// Nodes that Slurm has lost: down, failed or not responding. Empty when Slurm does not answer.
pub fn silent(of: &[String]) -> Vec<String> {
    let shown = output("sinfo", &["-h", "-N", "-o", "%N|%T", "-n", &of.join(",")], LIMIT).unwrap_or_default();
    let mut lost: Vec<String> = shown
        .lines()
        .filter_map(|line| line.split_once('|'))
        .filter(|(_, state)| is_lost(state))
        .map(|(node, _)| node.to_owned())
        .collect();
    lost.dedup();
    lost
}

/// A node state of sinfo's %T: `down`, `fail`, and the star of one that does not respond. A node that drains still works.
fn is_lost(state: &str) -> bool {
    state.starts_with("down") || state.starts_with("fail") || state.trim_end().ends_with('*')
}

/// State of a job, such as RUNNING; none when it is gone or Slurm does not answer.
pub fn job_state(id: &str) -> Option<String> {
    let state = output("squeue", &["-h", "-j", id, "-o", "%T"], LIMIT)?;
    Some(state.trim().to_owned()).filter(|state| !state.is_empty())
}

/// Whether Slurm answers here: its programs are in PATH and reach its controller.
pub fn answers() -> bool {
    output("sinfo", &["-h", "-o", "%P"], LIMIT).is_some()
}

/// Whether an interpreter has a module; one in the current folder, where `-c` looks first, is none of its own.
pub fn has_module(python: impl AsRef<std::ffi::OsStr>, module: &str) -> bool {
    let has = format!(
        "import sys; sys.path[:] = [folder for folder in sys.path if folder]; import importlib.util; sys.exit(importlib.util.find_spec({module:?}) is None)"
    );
    output(python, &["-c", &has], Duration::from_secs(60)).is_some()
}

/// What a command printed to stdout; none when it failed, or did not end within the limit (it is then killed).
pub fn output(program: impl AsRef<std::ffi::OsStr>, args: &[&str], limit: Duration) -> Option<String> {
    output_and(program, args, limit, Stdio::null())
}

/// The same; what it prints to stderr goes to `stderr`.
pub fn output_and(
    program: impl AsRef<std::ffi::OsStr>,
    args: &[&str],
    limit: Duration,
    stderr: Stdio,
) -> Option<String> {
    let mut child = Command::new(program)
        .args(args)
        .env("SLURM_TIME_FORMAT", "%s")
        // squeue would take `-j 5 -o %o` for bad usage.
        .env_remove("POSIXLY_CORRECT")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(stderr)
        .spawn()
        .ok()?;
    let mut stdout = child.stdout.take()?;
    let reader = thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = stdout.read_to_end(&mut bytes);
        bytes
    });
    let begin = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) => {
                // A grandchild may hold the pipe; what the command itself wrote is there once it has ended.
                while !reader.is_finished() && begin.elapsed() < limit {
                    thread::sleep(Duration::from_millis(2));
                }
                if !status.success() || !reader.is_finished() {
                    return None;
                }
                return Some(String::from_utf8_lossy(&reader.join().ok()?).into_owned());
            }
            Ok(None) if begin.elapsed() < limit => thread::sleep(Duration::from_millis(5)),
            _ => {
                let _ = child.kill();
                return None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_hangs_is_given_up() {
        assert_eq!(output("sleep", &["60"], Duration::from_millis(50)), None);
        assert_eq!(output("false", &[], LIMIT), None);
        assert_eq!(output("no-such-program-here", &[], LIMIT), None);
        assert_eq!(output("echo", &["a"], LIMIT).as_deref(), Some("a\n"));
    }

    #[test]
    fn a_node_is_lost_when_it_is_down_or_silent_and_not_when_it_drains() {
        for (state, lost) in [
            ("down", true),
            ("down*", true),
            ("fail", true),
            ("failing", true),
            ("allocated*", true),
            ("draining*", true),
            ("draining", false),
            ("allocated", false),
            ("mixed", false),
        ] {
            assert_eq!(is_lost(state), lost, "{state}");
        }
    }

    #[test]
    fn cpus_of_the_job_are_counted_node_by_node() {
        assert_eq!(own_cpus("4(x2),2"), [4, 4, 2]);
        assert_eq!(own_cpus("192"), [192]);
        assert_eq!(own_cpus("4(x99999999999999)"), [] as [u32; 0]);
        assert_eq!(own_cpus(""), [] as [u32; 0]);
    }

    #[test]
    fn a_script_is_found_in_front_of_its_arguments() {
        for (command, expected) in [
            ("/p/clustermax-suite.sh", Some("/p/clustermax-suite.sh")),
            ("/p q/clustermax-suite.sh --profile demo", Some("/p q/clustermax-suite.sh")),
            ("/p/gemm.sbatch --deadline 5", Some("/p/gemm.sbatch")),
            ("(null)", None),
        ] {
            assert_eq!(script(command), expected.map(PathBuf::from), "{command}");
        }
    }
}
