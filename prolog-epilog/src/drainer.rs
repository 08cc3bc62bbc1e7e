//! The rules of draining, over any [`Slurm`]: read, decide, look at the brake, write; look again; tell jobs.

use healthcheck::verdict::ascii;

use crate::brake::{self, Settings};
use crate::node_state::{Decision, Node, decide, state_text};
use crate::outcome::{Outcome, Report};
use crate::reason::Reason;
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
    let ours = nodes.iter().find(|n| n.name == name && n.drained() && n.reason == written);
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
    use crate::node_state::DRAIN;
    use crate::slurm::Job;

    const REASON: &str = "cmx:xid79 g3 GPU fell off the bus; act=reboot id=3f2a91bc";
    const BRAKE: Settings = Settings { window: 3600, max_share: 0.1 };
    const NOW: i64 = 10_000;

    /// A controller in memory that counts the calls made.
    #[derive(Default)]
    struct Fake {
        nodes: Vec<Node>,
        jobs: Vec<Job>,
        down: bool,
        refuses: bool,
        loads: usize,
        notified: Vec<String>,
    }

    impl Fake {
        fn with(count: usize) -> Self {
            let node = |i| Node { name: format!("n{i}"), state: 2, reason: String::new(), reason_time: 0 };
            Fake { nodes: (0..count).map(node).collect(), ..Fake::default() }
        }

        fn answer(&self) -> Result<(), SlurmError> {
            if self.down { Err(SlurmError::NoAnswer("no answer".into())) } else { Ok(()) }
        }

        fn set(&mut self, name: &str, state: u32, reason: &str, time: i64) {
            let node = self.nodes.iter_mut().find(|n| n.name == name).unwrap();
            *node = Node { name: name.into(), state, reason: reason.into(), reason_time: time };
        }

        fn drained(&self) -> usize {
            self.nodes.iter().filter(|n| n.drained()).count()
        }
    }

    impl Slurm for Fake {
        fn via(&self) -> &'static str {
            "fake"
        }
        fn node(&mut self, name: &str) -> Result<Option<Node>, SlurmError> {
            self.answer()?;
            Ok(self.nodes.iter().find(|n| n.name == name).cloned())
        }
        fn nodes(&mut self) -> Result<Vec<Node>, SlurmError> {
            self.answer()?;
            self.loads += 1;
            Ok(self.nodes.clone())
        }
        fn drain(&mut self, name: &str, reason: &str) -> Result<(), SlurmError> {
            self.answer()?;
            if self.refuses {
                return Err(SlurmError::Refused("Access denied (2002)".into()));
            }
            self.set(name, 2 | DRAIN, reason, NOW);
            Ok(())
        }
        fn undrain(&mut self, name: &str) -> Result<(), SlurmError> {
            self.answer()?;
            let node = self.nodes.iter_mut().find(|n| n.name == name).unwrap();
            node.state &= !DRAIN;
            if !node.down() {
                node.reason.clear();
            }
            Ok(())
        }
        fn set_reason(&mut self, name: &str, reason: &str) -> Result<(), SlurmError> {
            self.answer()?;
            self.nodes.iter_mut().find(|n| n.name == name).unwrap().reason = reason.into();
            Ok(())
        }
        fn job(&mut self, id: u32) -> Result<Option<Job>, SlurmError> {
            self.answer()?;
            Ok(self.jobs.iter().find(|j| j.number == id).cloned())
        }
        fn notify(&mut self, job: &Job, text: &str) -> Result<(), SlurmError> {
            self.notified.push(format!("{} {text}", job.id));
            Ok(())
        }
        fn set_admin_comment(&mut self, job: &Job, text: &str) -> Result<(), SlurmError> {
            self.jobs.iter_mut().find(|j| j.number == job.number).unwrap().admin_comment = text.into();
            Ok(())
        }
    }

    fn outcome(slurm: &mut Fake, name: &str) -> Outcome {
        drain(slurm, name, REASON, BRAKE, NOW).unwrap().outcome
    }

    #[test]
    fn a_drain_loads_all_nodes_once_and_what_is_settled_none() {
        let mut slurm = Fake::with(10);
        let report = drain(&mut slurm, "n1", REASON, BRAKE, NOW).unwrap();
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
        assert_eq!(outcome(&mut slurm, "n99"), Outcome::Unreadable);
        assert_eq!(slurm.loads, 1);
        // The limit of 10 nodes is 1, and n1 has it.
        assert_eq!(outcome(&mut slurm, "n4"), Outcome::Brake);
        assert_eq!(slurm.nodes[4].state, 2);
    }

    #[test]
    fn slurms_own_drain_gets_our_reason_whatever_the_brake_says() {
        let mut slurm = Fake::with(10);
        outcome(&mut slurm, "n1");
        slurm.set("n2", 2 | DRAIN, "Epilog error", NOW);
        let report = drain(&mut slurm, "n2", REASON, BRAKE, NOW).unwrap();
        assert_eq!(report.reason, format!("{REASON}; was: Epilog error"));
        assert_eq!((report.outcome, report.second_look), (Outcome::Written, false));
    }

    #[test]
    fn a_young_drain_of_ours_that_is_replaced_keeps_its_second_look() {
        let graver = "cmx:rowremap g1 t; act=repair id=22222222";
        for (time, second_look) in [(NOW, true), (NOW - 3000, false)] {
            let mut slurm = Fake::with(3);
            slurm.set("n1", 2 | DRAIN, REASON, time);
            let report = drain(&mut slurm, "n1", graver, BRAKE, NOW).unwrap();
            assert_eq!((report.outcome, report.second_look), (Outcome::Written, second_look), "{time}");
        }
    }

    #[test]
    fn no_answer_and_refusal_are_told_apart() {
        let mut slurm = Fake { down: true, ..Fake::with(3) };
        assert!(matches!(drain(&mut slurm, "n1", REASON, BRAKE, NOW), Err(SlurmError::NoAnswer(_))));
        let mut slurm = Fake { refuses: true, ..Fake::with(3) };
        let report = drain(&mut slurm, "n1", REASON, BRAKE, NOW).unwrap();
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
