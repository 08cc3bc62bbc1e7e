//! The rules of draining, over any [`Slurm`]: read, decide, look at the brake, write; look again; tell jobs.

use healthcheck::verdict::ascii;

use crate::brake::{self, Settings};
use crate::node_state::{Decision, Node, decide, state_text};
use crate::outcome::{Outcome, Report};
use crate::slurm::{Slurm, SlurmError};

/// Longest AdminComment we leave behind, in bytes.
const COMMENT_MAX: usize = 1000;
/// A drain of ours younger than this (in seconds, by two clocks) may still be taken back.
const FRESH: u64 = 60;
/// Longest text to a job, in bytes.
const TEXT_MAX: usize = 400;

/// Drains `name` with `reason` (ours, already normalised), or says why not.
///
/// `now` is in seconds since 1970. One node is read on every call; all nodes only when a node in service would be
/// taken out.
///
/// # Errors
/// [`SlurmError::NoAnswer`] only: whoever calls keeps the drain for later.
pub fn drain(
    slurm: &mut dyn Slurm,
    name: &str,
    reason: &str,
    brake: Settings,
    now: i64,
) -> Result<Report, SlurmError> {
    match try_drain(slurm, name, reason, brake, now) {
        Err(SlurmError::Refused(why)) => Ok(Report::new(Outcome::Unreadable, name, reason).detail(why)),
        other => other,
    }
    .map(|mut report| {
        report.via = slurm.via().to_string();
        report
    })
}

fn try_drain(
    slurm: &mut dyn Slurm,
    name: &str,
    reason: &str,
    brake: Settings,
    now: i64,
) -> Result<Report, SlurmError> {
    let Some(node) = slurm.node(name)? else {
        return Ok(Report::new(Outcome::Unreadable, name, reason)
            .detail(format!("Slurm does not know a node {name}: look at SLURMD_NODENAME and slurm.conf")));
    };
    let (text, takes_node) = match weigh(&node, reason) {
        Ok(write) => write,
        Err(report) => return Ok(*report),
    };
    if takes_node {
        let nodes = slurm.nodes()?;
        // The newer sight of the node decides, should an operator have come in between.
        if let Some(Err(report)) = nodes.iter().find(|n| n.name == name).map(|n| weigh(n, reason)) {
            return Ok(*report);
        }
        let limit = brake::limit(&nodes, brake.max_share);
        let count = brake::others_drained(&nodes, name, now, brake.window);
        if count >= limit {
            return Ok(Report::new(Outcome::Brake, name, reason)
                .detail(format!("our drains hold {count} of {limit} nodes allowed in {} s", brake.window)));
        }
    }
    slurm.drain(name, &text)?;
    let mut report = Report::new(Outcome::Written, name, &text);
    // A reason of ours that replaces one whose own second look may still be due takes that over.
    let fresh = node.drained_by_us() && now.abs_diff(node.reason_time) < FRESH;
    report.second_look = takes_node || fresh;
    Ok(report)
}

/// What to write and whether the brake counts, or the report of why not.
fn weigh(node: &Node, reason: &str) -> Result<(String, bool), Box<Report>> {
    let stands = |outcome, detail: String| {
        Err(Box::new(Report::new(outcome, &node.name, &node.reason).detail(detail)))
    };
    match decide(node, reason) {
        Decision::Write { text, takes_node } => Ok((text, takes_node)),
        Decision::Already => stands(Outcome::Already, String::new()),
        Decision::Foreign => stands(
            Outcome::Foreign,
            format!("{} with a reason that is not ours, left alone", state_text(node.state)),
        ),
        Decision::Protected(flag) => {
            stands(Outcome::Protected, format!("{} ({flag}), left alone", state_text(node.state)))
        }
    }
}

/// The brake's second look: takes our drain of `name` back when its rank is above the limit and the reason is
/// still byte for byte the one we wrote.
///
/// # Errors
/// [`SlurmError`].
pub fn take_back(
    slurm: &mut dyn Slurm,
    name: &str,
    written: &str,
    brake: Settings,
) -> Result<Report, SlurmError> {
    let nodes = slurm.nodes()?;
    let limit = brake::limit(&nodes, brake.max_share);
    let still_ours = nodes.iter().any(|n| n.name == name && n.drained() && n.reason == written);
    let rank = brake::rank(&nodes, name, brake.window).filter(|_| still_ours);
    let mut report = match rank {
        None => Report::new(Outcome::Foreign, name, written)
            .detail("the node no longer holds the reason that we wrote, left alone"),
        Some(rank) if rank <= limit => {
            Report::new(Outcome::Written, name, written).detail(format!("drain {rank} of {limit}"))
        }
        Some(rank) => {
            slurm.undrain(name)?;
            Report::new(Outcome::Brake, name, written).detail(format!(
                "taken back: it was drain {rank} of the {limit} allowed in {} s",
                brake.window
            ))
        }
    };
    report.via = slurm.via().to_string();
    Ok(report)
}

/// Tells the job's user: a message for running jobs and those that wait at a terminal, AdminComment for all. A
/// job whose AdminComment holds the text already was told before.
///
/// # Errors
/// [`SlurmError`]; what could be done is done.
pub fn tell(slurm: &mut dyn Slurm, job: u32, text: &str) -> Result<Outcome, SlurmError> {
    let text = ascii(text);
    let text = text.get(..TEXT_MAX).unwrap_or(&text).trim();
    let Some(job) = slurm.job(job)? else {
        return Err(SlurmError::Refused(format!("Slurm does not know a job {job}")));
    };
    if job.admin_comment.contains(text) {
        return Ok(Outcome::Already);
    }
    let Some(comment) = comment(&job.admin_comment, text) else {
        // So many faults fill the comment: its user was told often enough.
        return Ok(Outcome::Already);
    };
    let told = if job.running || !job.batch { slurm.notify(&job, text) } else { Ok(()) };
    slurm.set_admin_comment(&job, &comment)?;
    // A batch job that is about to be requeued has nobody at a terminal: the comment is what counts.
    if job.batch { Ok(Outcome::Written) } else { told.map(|()| Outcome::Written) }
}

/// The old comment, which may be an operator's, with ours behind it; `None` when there is no room.
fn comment(old: &str, text: &str) -> Option<String> {
    let old = old.trim();
    let whole = if old.is_empty() { text.to_string() } else { format!("{old} | {text}") };
    (whole.len() <= COMMENT_MAX).then_some(whole)
}
