//! `clustermax suite reboot`: one node rebooted by Slurm, timed until a command has run on it. Only for root, only with the
//! node's name given twice, and only a node on which nothing runs.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use super::slurm;
use crate::collect::lifecycle::Reboot;
use crate::run::{Folder, write_atomic};
use crate::{Failure, report};

/// Longest wait for one Slurm command.
const LIMIT: Duration = Duration::from_secs(30);

/// `clustermax suite reboot`
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// The node
    node: String,
    /// The node's name again; without it, only what would be done is said
    #[arg(long, value_name = "NODE")]
    confirm: Option<String>,
    /// Results folder of a run, to keep the times in (raw/lifecycle/reboot.NODE.json)
    #[arg(long, value_name = "DIR")]
    results: Option<PathBuf>,
    /// Longest wait for the node in seconds
    #[arg(long, default_value_t = 3600, value_parser = clap::value_parser!(u32).range(1..=86400))]
    seconds: u32,
    /// Time between two looks in seconds: what every time is uncertain by
    #[arg(long, default_value_t = 2.0)]
    poll: f64,
}

/// What Slurm shows of the node.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    state: String,
    boot: String,
    cpus: String,
}

fn seen(shown: &str, node: &str) -> Option<Seen> {
    let line =
        shown.lines().find(|line| line.split_whitespace().any(|word| word == format!("NodeName={node}")))?;
    let field =
        |key: &str| line.split_whitespace().find_map(|word| word.strip_prefix(key)).map(str::to_owned);
    Some(Seen { state: field("State=")?, boot: field("BootTime=")?, cpus: field("CPUAlloc=")? })
}

fn look(node: &str) -> Option<Seen> {
    seen(&slurm::output("scontrol", &["show", "node", "-o", node], LIMIT)?, node)
}

/// Nothing but idle: no drain, no reboot pending, responding.
fn usable(state: &str) -> bool {
    state == "IDLE" || state == "IDLE+CLOUD" || state == "IDLE+DYNAMIC_NORM"
}

/// Reboots and times.
///
/// # Errors
/// A node that does not exist, is busy or is not confirmed (2); Slurm that does not answer or refuses (3).
pub fn run(args: &Args) -> Result<u8, Failure> {
    let node = args.node.as_str();
    let folder = args.results.as_deref().map(Folder::open).transpose()?;
    let before = look(node).ok_or_else(|| {
        Failure::missing(format!(
            "`scontrol show node {node}` gives no state and BootTime; is that a node, and does Slurm answer?"
        ))
    })?;
    if before.cpus != "0" || !usable(&before.state) {
        return Err(Failure::input(format!(
            "node {node} is {} with {} CPUs in use; only an idle node is rebooted: drain it, or wait",
            before.state, before.cpus
        )));
    }
    let command = ["reboot", "ASAP", "nextstate=RESUME", "reason=clustermax: timed reboot", node];
    let Some(confirmed) = &args.confirm else {
        report::print(&format!(
            "would run: scontrol {}\nnode {node} is idle; add --confirm {node} to reboot it, as root\n",
            command.join(" ")
        ))?;
        return Ok(0);
    };
    if confirmed != node {
        return Err(Failure::input(format!(
            "--confirm {confirmed} is not the node {node}; nothing was done"
        )));
    }
    if !rustix::process::geteuid().is_root() {
        return Err(Failure::missing("a reboot by Slurm is for root; nothing was done"));
    }
    let begin = Instant::now();
    if slurm::output("scontrol", &command, LIMIT).is_none() {
        return Err(Failure::missing(format!(
            "`scontrol reboot {node}` was refused; is RebootProgram set in slurm.conf?"
        )));
    }
    let mut times = Reboot { node: node.to_owned(), ..Reboot::default() };
    let limit = Duration::from_secs(u64::from(args.seconds));
    let since = || (begin.elapsed().as_secs_f64() * 1e3).round() / 1e3;
    while begin.elapsed() < limit && times.usable.is_none() {
        thread::sleep(Duration::from_secs_f64(args.poll.clamp(0.05, 60.0)));
        let Some(now) = look(node) else { continue };
        if times.booted.is_none() && now.boot != before.boot && now.boot != "None" {
            times.booted = Some(since());
        }
        if times.booted.is_some() && times.idle.is_none() && usable(&now.state) {
            times.idle = Some(since());
        }
        if times.idle.is_some() {
            let ran = slurm::output(
                "srun",
                &["-N1", "-n1", "-t1", "--immediate=30", "-w", node, "true"],
                LIMIT * 2,
            );
            times.usable = ran.map(|_| since());
        }
    }
    if times.usable.is_none() {
        let last = look(node).map_or_else(|| "not shown by Slurm".to_owned(), |now| now.state);
        times.detail = Some(format!("not usable again within {} s; its state is {last}", args.seconds));
    }
    if let Some(folder) = &folder {
        let path = folder.raw("lifecycle").join(format!("reboot.{node}.json"));
        let text = serde_json::to_string_pretty(&times).map_err(Failure::input)?;
        let kept = path.parent().map_or(Ok(()), std::fs::create_dir_all);
        kept.and_then(|()| write_atomic(&path, text.as_bytes())).map_err(|error| {
            Failure::input(format!("cannot write {}: {error}; give a writable folder", path.display()))
        })?;
    }
    let show = |what: &str, at: Option<f64>| match at {
        Some(at) => format!("{at:>10.3} s  {what} (within the last {} s)\n", args.poll),
        None => format!("         -    {what}: not seen\n"),
    };
    report::print(&format!(
        "{}{}{}{}",
        show("booted", times.booted),
        show("idle", times.idle),
        show("usable: srun true ran", times.usable),
        times.detail.as_ref().map(|detail| format!("{detail}\n")).unwrap_or_default()
    ))?;
    Ok(u8::from(times.usable.is_none()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_idle_node_is_usable() {
        let shown = "NodeName=n1 CPUAlloc=0 State=IDLE BootTime=17 SlurmdStartTime=18 Reason=State=DOWN\n\
                     NodeName=n11 CPUAlloc=4 State=ALLOCATED BootTime=17\n";
        let one = seen(shown, "n1").unwrap();
        assert_eq!((one.state.as_str(), one.boot.as_str(), one.cpus.as_str()), ("IDLE", "17", "0"));
        assert_eq!(seen(shown, "n11").unwrap().state, "ALLOCATED");
        assert_eq!(seen(shown, "n2"), None);
        for (state, expected) in [
            ("IDLE", true),
            ("IDLE*", false),
            ("IDLE+DRAIN", false),
            ("REBOOT", false),
            ("IDLE+REBOOT_REQUESTED", false),
            ("DOWN", false),
        ] {
            assert_eq!(usable(state), expected, "{state}");
        }
    }
}
