//! The rules of draining, over any [`Slurm`]: read, decide, look at the brake, write; look again; tell jobs.

use healthcheck::verdict::ascii;

use crate::brake::{self, Settings};
use crate::node_state::{Decision, FAIL, Node, RESERVED, decide, protecting, same_name, state_text};
use crate::outcome::{Outcome, Report};
use crate::reason::{self, Reason};
use crate::slurm::{Slurm, SlurmError};

/// Longest AdminComment we leave behind, in bytes.
const COMMENT_MAX: usize = 1000;
/// A drain of ours younger than this (in seconds) may still be taken back.
pub const FRESH: u64 = 60;
/// Longest text to a job, in bytes.
const TEXT_MAX: usize = 400;

/// Drains `name` with `reason` (ours, already normalised), or says why not.
///
/// `now` is in seconds since 1970; `young` is the reason that this node wrote within the last [`FRESH`] seconds, by a clock that
/// nobody sets. One node is read on every call, and its partitions where `partitions` names those in which
/// we may drain; all nodes only when a node in service would be taken out.
///
/// # Errors
/// [`SlurmError::NoAnswer`] only: whoever calls keeps the drain for later.
pub fn drain(
    slurm: &mut dyn Slurm,
    name: &str,
    reason: &str,
    partitions: &[String],
    brake: Settings,
    now: i64,
    young: Option<&String>,
) -> Result<Report, SlurmError> {
    match try_drain(slurm, name, reason, partitions, brake, now, young) {
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
    partitions: &[String],
    brake: Settings,
    now: i64,
    young: Option<&String>,
) -> Result<Report, SlurmError> {
    let Some(node) = find(slurm, name)? else { return Ok(unknown(name, reason)) };
    let name = node.name.as_str();
    if !partitions.is_empty() {
        let of = slurm.partitions(name)?;
        if !of.iter().any(|p| partitions.contains(p)) {
            return Ok(Report::new(Outcome::Observe, name, reason).detail(format!(
                "enforcement is observe outside of partition {} (enforce.partitions); this node is in {}",
                partitions.join(", "),
                if of.is_empty() { "none".to_string() } else { of.join(", ") }
            )));
        }
    }
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
        let limit = brake::limit(&nodes, &brake);
        let count = brake::others_drained(&nodes, name, now, brake.window);
        if count >= limit {
            return Ok(Report::new(Outcome::Brake, name, reason)
                .detail(format!("our drains hold {count} of {limit} nodes allowed in {} s", brake.window)));
        }
    }
    slurm.drain(name, &text)?;
    let mut report = Report::new(Outcome::Written, name, &text);
    // A reason of ours that replaces one whose own second look may still be due takes that over. By this node's clock, and where
    // that is not the controller's by what this node wrote itself.
    let fresh =
        node.drained_by_us() && (now.abs_diff(node.reason_time) < FRESH || young == Some(&node.reason));
    report.second_look = takes_node || fresh;
    Ok(report)
}

/// The node with this name. Where Slurm knows none, the one node that has the same name with or without a domain, or the
/// one whose slurmd runs on the host of this name: `gpu01` and `gpu01.example.org` are one machine.
///
/// # Errors
/// [`SlurmError`].
pub fn find(slurm: &mut dyn Slurm, name: &str) -> Result<Option<Node>, SlurmError> {
    if let Some(node) = slurm.node(name)? {
        return Ok(Some(node));
    }
    let mut nodes = slurm.nodes()?;
    Ok(place(&nodes, name).map(|at| nodes.swap_remove(at)))
}

/// Where the node with this name stands, as [`find`] says.
fn place(nodes: &[Node], name: &str) -> Option<usize> {
    let only = |fits: &dyn Fn(&Node) -> bool| {
        let mut all = (0..nodes.len()).filter(|at| nodes.get(*at).is_some_and(fits));
        let first = all.next();
        first.filter(|_| all.next().is_none())
    };
    only(&|n| n.name == name)
        .or_else(|| only(&|n| same_name(&n.name, name)))
        .or_else(|| only(&|n| same_name(&n.hostname, name)))
}

fn unknown(name: &str, reason: &str) -> Report {
    Report::new(Outcome::Unreadable, name, reason)
        .detail(format!("Slurm does not know a node {name}: look at SLURMD_NODENAME and slurm.conf"))
}

/// Gives a node back that we drained: only when its reason is byte for byte the one we wrote last, for the fault with this
/// id, and nothing of the node's state is somebody else's plan.
///
/// # Errors
/// [`SlurmError::NoAnswer`] only.
pub fn give_back(slurm: &mut dyn Slurm, name: &str, written: &str, id: &str) -> Result<Report, SlurmError> {
    let result = try_give_back(slurm, name, written, id);
    let mut report = match result {
        Err(SlurmError::Refused(why)) => Report::new(Outcome::Unreadable, name, written).detail(why),
        other => other?,
    };
    report.via = slurm.via().to_string();
    Ok(report)
}

fn try_give_back(slurm: &mut dyn Slurm, name: &str, written: &str, id: &str) -> Result<Report, SlurmError> {
    let Some(node) = find(slurm, name)? else { return Ok(unknown(name, written)) };
    let name = node.name.as_str();
    let left = |outcome, why: String| Ok(Report::new(outcome, name, &node.reason).detail(why));
    let state = state_text(node.state);
    if !node.drained() || node.reason != written {
        return left(Outcome::Foreign, "the node does not hold the reason that we wrote, left alone".into());
    }
    let ours = Reason::parse(written);
    if ours.and_then(|r| r.id) != Some(id) {
        return left(Outcome::Foreign, format!("we drained it for another fault than {id}, left alone"));
    }
    if node.resume_after {
        return left(
            Outcome::Foreign,
            "an operator had Slurm resume it later (ResumeAfter), left alone".into(),
        );
    }
    if node.state & FAIL != 0 {
        return left(Outcome::Foreign, format!("{state}: an operator says that it is failing, left alone"));
    }
    // What Slurm drained for reasons of its own before we did is not mended by our check.
    if let Some(was) = ours.and_then(|r| r.was).filter(|was| !ours_to_undo(was)) {
        return left(
            Outcome::Foreign,
            format!("Slurm had drained it before: \"{was}\", left to an operator"),
        );
    }
    if let Some(flag) = protecting(node.state) {
        return left(Outcome::Protected, format!("{state} ({flag}), left alone"));
    }
    if node.state & RESERVED != 0 {
        return left(Outcome::Protected, format!("{state}: reserved, left alone"));
    }
    if node.down() {
        return left(Outcome::Protected, format!("{state}: Slurm does not reach it, left alone"));
    }
    slurm.undrain(name)?;
    Ok(Report::new(Outcome::Returned, name, written))
}

/// Reasons that our own exit codes made Slurm write, or ours.
fn ours_to_undo(was: &str) -> bool {
    was.starts_with("Prolog error") || was.starts_with("Epilog error") || reason::is_ours(was)
}

/// What to write and whether the brake counts, or the report of why not.
fn weigh(node: &Node, reason: &str) -> Result<(String, bool), Box<Report>> {
    let stands = |outcome, detail: String| {
        Err(Box::new(Report::new(outcome, &node.name, &node.reason).detail(detail)))
    };
    match decide(node, reason) {
        Decision::Write { text, takes_node } => Ok((text, takes_node)),
        Decision::Already => stands(Outcome::Already, String::new()),
        Decision::Foreign if node.resume_after => stands(
            Outcome::Foreign,
            "an operator had Slurm resume it later (ResumeAfter), left alone".to_string(),
        ),
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
    let limit = brake::limit(&nodes, &brake);
    let ours =
        place(&nodes, name).and_then(|at| nodes.get(at)).filter(|n| n.drained() && n.reason == written);
    let name = ours.map_or(name, |n| n.name.as_str());
    let rank = ours.and_then(|n| brake::rank(&nodes, &n.name, brake.window));
    let mut report = match rank {
        None => Report::new(Outcome::Foreign, name, written)
            .detail("the node no longer holds the reason that we wrote, left alone"),
        Some(rank) if rank <= limit => {
            Report::new(Outcome::Written, name, written).detail(format!("drain {rank} of {limit}"))
        }
        Some(rank) => {
            slurm.undrain(name)?;
            // A node that was down as well keeps its reason, and by that reason Slurm decides whether it may
            // come back by itself (ReturnToService=1): it gets Slurm's own again.
            let was = Reason::parse(written).and_then(|r| r.was);
            if let (Some(was), true) = (was, ours.is_some_and(Node::down)) {
                slurm.set_reason(name, was)?;
            }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Fake;
    use crate::node_state::DRAIN;
    use crate::slurm::Job;

    const REASON: &str = "cmx:xid79 g3 GPU fell off the bus; act=reboot id=3f2a91bc";
    const BRAKE: Settings = Settings { window: 3600, max_share: 0.1, max_nodes: None };
    const NOW: i64 = 10_000;

    fn outcome(slurm: &mut Fake, name: &str) -> Outcome {
        drain(slurm, name, REASON, &[], BRAKE, NOW, None).unwrap().outcome
    }

    #[test]
    fn a_drain_loads_all_nodes_once_and_what_is_settled_none() {
        let mut slurm = Fake::with(10);
        let report = drain(&mut slurm, "n1", REASON, &[], BRAKE, NOW, None).unwrap();
        assert_eq!(
            (report.outcome, report.second_look, report.via.as_str()),
            (Outcome::Written, true, "fake")
        );
        assert_eq!(slurm.loads, 1);
        assert_eq!(outcome(&mut slurm, "n1"), Outcome::Already);
        slurm.set("n2", 2 | DRAIN, "maintenance", 1);
        assert_eq!(outcome(&mut slurm, "n2"), Outcome::Foreign);
        assert_eq!(slurm.nodes[2].reason, "maintenance");
        slurm.set("n3", 2 | (1 << 15), "", 0);
        assert_eq!(outcome(&mut slurm, "n3"), Outcome::Protected);
        assert_eq!(slurm.loads, 1);
        // All names are looked through for one that differs in its domain only.
        assert_eq!(outcome(&mut slurm, "n99"), Outcome::Unreadable);
        assert_eq!(slurm.loads, 2);
        // The limit of 10 nodes is 1, and n1 has it.
        assert_eq!(outcome(&mut slurm, "n4"), Outcome::Brake);
        assert_eq!(slurm.nodes[4].state, 2);
    }

    #[test]
    fn slurms_own_drain_gets_our_reason_whatever_the_brake_says() {
        let mut slurm = Fake::with(10);
        outcome(&mut slurm, "n1");
        slurm.set("n2", 2 | DRAIN, "Epilog error", NOW);
        let report = drain(&mut slurm, "n2", REASON, &[], BRAKE, NOW, None).unwrap();
        assert_eq!(report.reason, format!("{REASON}; was: Epilog error"));
        assert_eq!((report.outcome, report.second_look), (Outcome::Written, false));
    }

    #[test]
    fn a_young_drain_of_ours_that_is_replaced_keeps_its_second_look() {
        let graver = "cmx:rowremap g1 t; act=repair id=22222222";
        let (own, older) = (REASON.to_string(), "cmx:fm t; act=reboot id=11111111".to_string());
        // An hour between the controller's clock and this node's: what this node wrote a moment ago is young all the same.
        for (time, young, second_look) in [
            (NOW, None, true),
            (NOW - 3000, None, false),
            (NOW - 3600, Some(&own), true),
            (NOW + 3600, Some(&own), true),
            (NOW - 3600, Some(&older), false),
        ] {
            let mut slurm = Fake::with(3);
            slurm.set("n1", 2 | DRAIN, REASON, time);
            let report = drain(&mut slurm, "n1", graver, &[], BRAKE, NOW, young).unwrap();
            assert_eq!(
                (report.outcome, report.second_look),
                (Outcome::Written, second_look),
                "{time} {young:?}"
            );
        }
    }

    #[test]
    fn only_nodes_of_the_named_partitions_are_drained() {
        let mut slurm = Fake::with(20);
        let report = |slurm: &mut Fake, node: &str, of: &[&str]| {
            let of: Vec<String> = of.iter().map(ToString::to_string).collect();
            drain(slurm, node, REASON, &of, BRAKE, NOW, None).unwrap()
        };
        let seen = report(&mut slurm, "n2", &["batch"]);
        assert_eq!((seen.outcome, slurm.drained()), (Outcome::Observe, 0));
        assert!(seen.detail.contains("outside of partition batch"), "{}", seen.detail);
        assert_eq!(report(&mut slurm, "n1", &["batch"]).outcome, Outcome::Written);
        assert_eq!(report(&mut slurm, "n2", &["long", "all"]).outcome, Outcome::Written);
    }

    /// What Slurm calls `gpu01.example.org` may call itself `gpu01`, and the other way round.
    #[test]
    fn names_with_and_without_a_domain_are_one_node() {
        let named = |names: &[(&str, &str)]| Fake {
            nodes: names
                .iter()
                .map(|(n, h)| Node { name: (*n).into(), hostname: (*h).into(), state: 2, ..Node::default() })
                .collect(),
            ..Fake::default()
        };
        let hosts =
            [("gpu01.example.org", "gpu01.example.org"), ("gpu02", "gpu02"), ("rack7", "gpu03.example.org")];
        for (asked, found) in [
            ("gpu01", Some("gpu01.example.org")),
            ("gpu02.example.org", Some("gpu02")),
            ("gpu03", Some("rack7")),
            ("gpu03.example.org", Some("rack7")),
            ("gpu01.example.com", None),
            ("gpu0", None),
        ] {
            let node = find(&mut named(&hosts), asked).unwrap();
            assert_eq!(node.map(|n| n.name).as_deref(), found, "{asked}");
        }
        // Several that it could be: none of them.
        let twins = [("gpu01.a.org", "x"), ("gpu01.b.org", "x")];
        assert_eq!(find(&mut named(&twins), "gpu01").unwrap(), None);
        assert_eq!(find(&mut named(&twins), "x").unwrap(), None, "several slurmd on one host");
        let mut slurm = named(&hosts);
        let report = drain(&mut slurm, "gpu01", REASON, &[], BRAKE, NOW, None).unwrap();
        assert_eq!((report.outcome, report.node.as_str()), (Outcome::Written, "gpu01.example.org"));
        // The brake's second look finds it as well.
        slurm.set("gpu02", 2 | DRAIN, REASON, NOW - 1);
        let report = take_back(&mut slurm, "gpu01", REASON, BRAKE).unwrap();
        assert_eq!((report.outcome, slurm.nodes[0].drained()), (Outcome::Brake, false));
    }

    #[test]
    fn a_node_is_given_back_only_from_our_own_drain() {
        let id = "3f2a91bc";
        let epilog = format!("{REASON}; was: Epilog error");
        let kill = format!("{REASON}; was: Kill task failed");
        let appended = format!("{REASON} : Not responding");
        let rows: &[(u32, &str, &str, Outcome)] = &[
            (2 | DRAIN, REASON, REASON, Outcome::Returned),
            (3 | DRAIN, REASON, REASON, Outcome::Returned),
            (2 | DRAIN, &epilog, &epilog, Outcome::Returned),
            (2 | DRAIN, &kill, &kill, Outcome::Foreign),
            (2 | DRAIN, "ticket 7", REASON, Outcome::Foreign),
            (2 | DRAIN, &appended, REASON, Outcome::Foreign),
            (2 | DRAIN, "cmx2:xid79", "cmx2:xid79", Outcome::Foreign),
            (
                2 | DRAIN,
                "cmx:x t; act=repair id=00000000",
                "cmx:x t; act=repair id=00000000",
                Outcome::Foreign,
            ),
            (2, REASON, REASON, Outcome::Foreign),
            (2 | DRAIN | FAIL, REASON, REASON, Outcome::Foreign),
            (1 | DRAIN, REASON, REASON, Outcome::Protected),
            (6 | DRAIN, REASON, REASON, Outcome::Protected),
            (2 | DRAIN | RESERVED, REASON, REASON, Outcome::Protected),
            (2 | DRAIN | (1 << 15), REASON, REASON, Outcome::Protected),
            (2 | DRAIN | (1 << 16), REASON, REASON, Outcome::Protected),
            (2 | DRAIN | (1 << 20), REASON, REASON, Outcome::Protected),
            (2 | DRAIN | (1 << 12), REASON, REASON, Outcome::Protected),
            (2 | DRAIN | (1 << 18), REASON, REASON, Outcome::Protected),
        ];
        for (state, holds, written, expected) in rows {
            let mut slurm = Fake::with(3);
            slurm.set("n1", *state, holds, NOW);
            let report = give_back(&mut slurm, "n1", written, id).unwrap();
            assert_eq!(report.outcome, *expected, "{state:#x} {holds}: {}", report.detail);
            assert_eq!(slurm.nodes[1].drained(), state & DRAIN != 0 && *expected != Outcome::Returned);
        }
        let mut slurm = Fake::with(3);
        slurm.set("n1", 2 | DRAIN, REASON, NOW);
        slurm.nodes[1].resume_after = true;
        assert_eq!(give_back(&mut slurm, "n1", REASON, id).unwrap().outcome, Outcome::Foreign);
        slurm.nodes[1].resume_after = false;
        assert_eq!(give_back(&mut slurm, "n1", REASON, "00000000").unwrap().outcome, Outcome::Foreign);
        assert_eq!(give_back(&mut slurm, "n9", REASON, id).unwrap().outcome, Outcome::Unreadable);
        slurm.down = true;
        assert!(matches!(give_back(&mut slurm, "n1", REASON, id), Err(SlurmError::NoAnswer(_))));
    }

    #[test]
    fn no_answer_and_refusal_are_told_apart() {
        let mut slurm = Fake { down: true, ..Fake::with(3) };
        assert!(matches!(
            drain(&mut slurm, "n1", REASON, &[], BRAKE, NOW, None),
            Err(SlurmError::NoAnswer(_))
        ));
        let mut slurm = Fake { refuses: true, ..Fake::with(3) };
        let report = drain(&mut slurm, "n1", REASON, &[], BRAKE, NOW, None).unwrap();
        assert_eq!((report.outcome, report.detail.as_str()), (Outcome::Unreadable, "Access denied (2002)"));
    }

    /// 64 nodes that all saw room: the second looks leave the six first ones.
    #[test]
    fn second_looks_leave_exactly_the_limit() {
        let mut slurm = Fake::with(64);
        for i in 0..64 {
            slurm.set(&format!("n{i}"), 2 | DRAIN, REASON, NOW + i % 2);
        }
        let mut outcomes: Vec<Outcome> = Vec::new();
        for i in (0..64).rev() {
            outcomes.push(take_back(&mut slurm, &format!("n{i}"), REASON, BRAKE).unwrap().outcome);
        }
        assert_eq!(slurm.drained(), 6);
        assert_eq!(outcomes.iter().filter(|o| **o == Outcome::Brake).count(), 58);
    }

    #[test]
    fn only_a_byte_equal_reason_is_taken_back() {
        for changed in
            ["maintenance", "cmx:xid79 g3 GPU fell off the bus; act=reboot id=3f2a91bc : Not responding"]
        {
            let mut slurm = Fake::with(3);
            slurm.set("n0", 2 | DRAIN, REASON, NOW);
            slurm.set("n1", 2 | DRAIN, changed, NOW + 1);
            assert_eq!(take_back(&mut slurm, "n1", REASON, BRAKE).unwrap().outcome, Outcome::Foreign);
            assert_eq!(slurm.nodes[1].reason, changed);
        }
    }

    #[test]
    fn a_node_that_was_down_gets_slurms_reason_back() {
        let mut slurm = Fake::with(3);
        let written = format!("{REASON}; was: Not responding");
        slurm.set("n0", 2 | DRAIN, REASON, NOW);
        slurm.set("n1", 1 | DRAIN, &written, NOW + 1);
        assert_eq!(take_back(&mut slurm, "n1", &written, BRAKE).unwrap().outcome, Outcome::Brake);
        assert_eq!((slurm.nodes[1].state, slurm.nodes[1].reason.as_str()), (1, "Not responding"));
    }

    #[test]
    fn a_job_is_told_once_and_old_comments_stay() {
        let job = |number: u32, batch, running| Job {
            id: number.to_string(),
            number,
            batch,
            running,
            admin_comment: "ticket 9".into(),
        };
        let mut slurm = Fake {
            jobs: vec![job(1, false, false), job(2, true, false), job(3, true, true)],
            ..Fake::default()
        };
        for id in [1, 2, 3] {
            assert_eq!(tell(&mut slurm, id, "GPU\n\"g3\" broke").unwrap(), Outcome::Written);
            assert_eq!(tell(&mut slurm, id, "GPU\n\"g3\" broke").unwrap(), Outcome::Already);
        }
        assert_eq!(slurm.jobs[1].admin_comment, "ticket 9 | GPU _g3_ broke");
        // A batch job that does not run has nobody to show a message to.
        assert_eq!(slurm.notified, ["1 GPU _g3_ broke", "3 GPU _g3_ broke"]);
        assert!(matches!(tell(&mut slurm, 4, "x"), Err(SlurmError::Refused(_))));
        for i in 0..100 {
            tell(&mut slurm, 1, &format!("{i} {}", "x".repeat(500))).unwrap();
        }
        assert!(slurm.jobs[0].admin_comment.len() <= COMMENT_MAX);
        assert!(slurm.jobs[0].admin_comment.starts_with("ticket 9 | "));
    }
}
