//! What Slurm says about one node.

use std::time::{Duration, Instant};

use super::ANSWER;
use crate::Failure;
use crate::audit::run_for;

/// One line of `scontrol -o show node`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// NodeName.
    pub name: String,
    /// State with its flags, `IDLE+DRAIN`.
    pub state: String,
    /// Reason without the `[user@time]` behind it; empty when there is none.
    pub reason: String,
    /// NodeHostName.
    pub host: String,
    /// Its partitions, comma-separated; empty when it is in none.
    pub partitions: String,
}

/// Flags and states of a node that takes no jobs, or is about to.
const OUT: [&str; 12] = [
    "DRAIN",
    "DRAINED",
    "DRAINING",
    "DOWN",
    "FAIL",
    "FAILING",
    "ERROR",
    "MAINT",
    "NOT_RESPONDING",
    "FUTURE",
    "UNKNOWN",
    "PLANNED_DOWN",
];

impl Node {
    /// Asks the controller.
    ///
    /// # Errors
    /// No scontrol, no answer (3), no such node (2).
    pub fn read(name: &str) -> Result<Self, Failure> {
        let plain = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
        if !plain || name.starts_with('-') {
            return Err(Failure::input(format!("--node {name:?} is no NodeName; give one node")));
        }
        let ran = run_for("scontrol", &["-o", "show", "node", name], ANSWER)
            .map_err(|why| Failure::missing(format!("{why}; run it where Slurm's commands work")))?;
        if !ran.ok() || !ran.out.contains("NodeName=") {
            let unknown = |text: &str| text.contains("not found") || text.contains("nvalid node name");
            if unknown(&ran.out) || unknown(&ran.err) {
                return Err(Failure::input(format!("Slurm knows no node {name}; `sinfo -N` lists them")));
            }
            return Err(Failure::missing(format!("scontrol show node {name}: {}", ran.complaint())));
        }
        Self::of(name, &ran.out)
    }

    /// The one node of this name, from what scontrol printed. A word such as ALL, localhost or the name of a set of nodes
    /// stands for another node, or for several.
    ///
    /// # Errors
    /// Another node (2), several (2), no state (3).
    pub fn of(name: &str, printed: &str) -> Result<Self, Failure> {
        let mut nodes = printed.lines().filter(|line| line.starts_with("NodeName=")).map(Self::parse);
        let (first, second) = (nodes.next().flatten(), nodes.next());
        let first = first.ok_or_else(|| {
            Failure::missing(format!("scontrol show node {name} printed no State; is Slurm well?"))
        })?;
        if second.is_some() || first.name != name {
            return Err(Failure::input(format!(
                "--node {name} is no NodeName: Slurm takes it for {}{}; give one node by its NodeName",
                first.name,
                if second.is_some() { " and more" } else { "" }
            )));
        }
        Ok(first)
    }

    /// Reads one line.
    #[must_use]
    pub fn parse(line: &str) -> Option<Self> {
        let field = |key: &str| {
            let at =
                if line.starts_with(&format!("{key}=")) { 0 } else { line.find(&format!(" {key}="))? + 1 };
            line[at + key.len() + 1..].split_whitespace().next().map(str::to_owned)
        };
        // A reason may hold anything; Slurm ends it with [user@time].
        let reason = line.find(" Reason=").map_or("", |at| line[at + 8..].trim_end());
        let reason = reason.rfind(" [").map_or(reason, |at| &reason[..at]);
        Some(Self {
            name: field("NodeName")?,
            state: field("State")?,
            reason: reason.to_owned(),
            host: field("NodeHostName").unwrap_or_default(),
            partitions: field("Partitions").unwrap_or_default(),
        })
    }

    fn words(&self) -> impl Iterator<Item = &str> {
        words(&self.state)
    }

    /// Takes jobs: none of the states and flags that say otherwise, and it answers.
    #[must_use]
    pub fn in_service(&self) -> bool {
        let base = self
            .words()
            .next()
            .is_some_and(|word| matches!(word, "IDLE" | "MIXED" | "ALLOCATED" | "COMPLETING"));
        base && !self.state.contains(['*', '~', '#', '!', '%', '$', '@', '^'])
            && !self
                .words()
                .any(|word| OUT.contains(&word) || word.starts_with("POWER") || word.starts_with("REBOOT"))
    }

    /// Kept from jobs that do not ask for it: a reservation, maintenance, or drained already.
    #[must_use]
    pub fn reserved(&self) -> bool {
        self.out_of_service() || self.words().any(|word| matches!(word, "RESERVED" | "MAINT" | "MAINTENANCE"))
    }

    /// Drained, failed or down: new jobs are kept away.
    #[must_use]
    pub fn out_of_service(&self) -> bool {
        out_of_service(&self.state)
    }

    /// The node is the machine that this runs on.
    #[must_use]
    pub fn is_this_machine(&self) -> bool {
        let own = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let short = |name: &str| name.trim().split('.').next().unwrap_or_default().to_owned();
        !short(&own).is_empty() && short(&own) == short(&self.host)
    }
}

fn words(state: &str) -> impl Iterator<Item = &str> {
    state.split(['+', '*', '~', '#', '!', '%', '$', '@', '^', '-']).filter(|word| !word.is_empty())
}

/// A node of this state is drained, failed or down: new jobs are kept away.
#[must_use]
pub fn out_of_service(state: &str) -> bool {
    words(state)
        .any(|word| matches!(word, "DRAIN" | "DRAINED" | "DRAINING" | "DOWN" | "FAIL" | "FAILING" | "ERROR"))
}

/// Name of the jobs that `clustermax inject` starts.
pub const JOB: &str = "clustermax-inject";

fn queue(options: &[&str]) -> Result<Vec<String>, Failure> {
    let ran = run_for("squeue", &[&["-h"], options].concat(), ANSWER)
        .map_err(|why| Failure::missing(format!("{why}; run it where Slurm's commands work")))?;
    if !ran.ok() {
        return Err(Failure::missing(format!("squeue {}: {}", options.join(" "), ran.complaint())));
    }
    Ok(ran.out.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned).collect())
}

/// Jobs on the node, `ID (USER)`; those of `clustermax inject` itself are left out.
///
/// # Errors
/// When Slurm does not answer.
pub fn jobs(node: &str) -> Result<Vec<String>, Failure> {
    let jobs = queue(&["-w", node, "-o", "%i (%u) %j"])?;
    Ok(jobs.iter().filter_map(|line| of_others(line)).collect())
}

/// `ID (USER)` of a line `ID (USER) NAME`, unless `clustermax inject` started the job.
fn of_others(line: &str) -> Option<String> {
    let (who, name) = line.split_once(") ").unwrap_or((line.trim_end_matches(')'), ""));
    (name != JOB).then(|| format!("{who})"))
}

/// Jobs of an injection, anywhere in the cluster, `ID (USER) NODES`. One that has just ended is gone after a moment.
///
/// # Errors
/// When Slurm does not answer.
pub fn injections() -> Result<Vec<String>, Failure> {
    let until = Instant::now() + ANSWER;
    loop {
        let jobs = queue(&["-n", JOB, "-o", "%i (%u) on %N"])?;
        if jobs.is_empty() || Instant::now() >= until {
            return Ok(jobs);
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Nodes of the partitions that take jobs.
///
/// # Errors
/// When Slurm does not answer.
pub fn in_service(partitions: &str) -> Result<Vec<String>, Failure> {
    if partitions.is_empty() {
        return Ok(Vec::new());
    }
    let ran = run_for("sinfo", &["-h", "-N", "-p", partitions, "-o", "%N|%T"], ANSWER)
        .map_err(|why| Failure::missing(format!("{why}; run it where Slurm's commands work")))?;
    if !ran.ok() {
        return Err(Failure::missing(format!("sinfo -p {partitions}: {}", ran.complaint())));
    }
    Ok(ran.out.lines().filter_map(takes_jobs).map(str::to_owned).collect())
}

/// The node of a line `n1|idle` when it takes jobs; `+` and `-` behind the state only say what it will do next.
fn takes_jobs(line: &str) -> Option<&str> {
    let (node, state) = line.trim().split_once('|')?;
    let state = state.trim_end_matches(['+', '-']);
    matches!(state, "idle" | "mixed" | "allocated" | "completing" | "planned").then_some(node)
}

/// Returns a node to service.
///
/// # Errors
/// When Slurm refuses.
pub fn resume(node: &str) -> Result<(), Failure> {
    let name = format!("nodename={node}");
    let ran = run_for("scontrol", &["update", &name, "state=resume"], ANSWER).map_err(Failure::missing)?;
    if ran.ok() {
        return Ok(());
    }
    Err(Failure::missing(format!(
        "{node} could not be returned to service: {}; do it by hand: scontrol update {name} state=resume",
        ran.complaint()
    )))
}

/// HealthCheckInterval in seconds; none when it is off or cannot be told.
#[must_use]
pub fn health_check_interval() -> Option<u64> {
    let ran = run_for("scontrol", &["show", "config"], ANSWER).ok().filter(crate::audit::Ran::ok)?;
    let value = |key: &str| {
        ran.out
            .lines()
            .find_map(|line| line.split_once('=').filter(|(name, _)| name.trim() == key))
            .map(|(_, value)| value.trim().to_owned())
    };
    let program = value("HealthCheckProgram").filter(|program| program != "(null)")?;
    let seconds = value("HealthCheckInterval")?.split_whitespace().next()?.parse().ok()?;
    (!program.is_empty() && seconds > 0).then_some(seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A detector may say "not found" in its reason: that is a drain, not a node that Slurm does not know.
    #[test]
    fn a_name_is_of_one_node_and_a_reason_is_no_answer() {
        let line = "NodeName=n1 NodeHostName=vm State=IDLE+DRAIN Reason=Xid 79: GPU 3 not found [root@2026-11-30T22:00:27]\n";
        let node = Node::of("n1", line).unwrap();
        assert!(node.out_of_service() && node.reason == "Xid 79: GPU 3 not found", "{node:?}");
        let two = "NodeName=n1 State=IDLE\nNodeName=n2 State=IDLE\n";
        for (name, printed) in [("ALL", two), ("n1", two), ("localhost", "NodeName=n1 State=IDLE\n")] {
            let failure = Node::of(name, printed).unwrap_err();
            assert!(failure.code == 2 && failure.message.contains("takes it for n1"), "{failure}");
        }
        assert_eq!(Node::of("n1", "").unwrap_err().code, 3);
    }

    #[test]
    fn our_own_jobs_are_nobodys() {
        for (line, other) in [
            ("12 (ann) train", Some("12 (ann)")),
            ("12_[1-4] (ann) a (b) c", Some("12_[1-4] (ann)")),
            ("13 (root) clustermax-inject", None),
            ("14 (ann)", Some("14 (ann)")),
        ] {
            assert_eq!(of_others(line).as_deref(), other, "{line}");
        }
    }

    #[test]
    fn nodes_that_take_jobs() {
        for (line, takes) in [
            ("n1|idle", true),
            ("n1|mixed", true),
            ("n1|mixed-", true),
            ("n1|allocated+", true),
            ("n1|planned", true),
            ("n1|idle*", false),
            ("n1|idle~", false),
            ("n1|drained", false),
            ("n1|draining", false),
            ("n1|down*", false),
            ("n1|maint", false),
            ("n1|reserved", false),
            ("", false),
        ] {
            assert_eq!(takes_jobs(line).is_some(), takes, "{line}");
        }
    }
}
