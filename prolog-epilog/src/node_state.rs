//! A node as Slurm sees it, and the rules that say whether we may write on it.
//!
//! The decision rests on flag bits, never on state names: `DRAINED`, `DRNG@`, `RESV` and the like are only
//! Slurm's ways to print combinations of them.

use serde::{Deserialize, Serialize};

use crate::reason::{self, Reason};

/// Mask of the base state in `node_state`.
const BASE: u32 = 0xf;
/// Base state: down.
pub const DOWN: u32 = 1;
/// Base state: slot for a node that does not exist yet.
pub const FUTURE: u32 = 6;
/// No new work.
pub const DRAIN: u32 = 1 << 9;
/// An administrator says the node is failing: no new work either.
pub const FAIL: u32 = 1 << 13;

/// Every flag of `node_state` with the name `scontrol` prints, and whether it protects the node from us.
/// The same bits from 22.05 to 26.05 (bit 4 was NET until 24.11 and is EXTERNAL since 25.05).
pub const FLAGS: &[(u32, &str, bool)] = &[
    (1 << 5, "RESERVED", false),
    (1 << 7, "CLOUD", false),
    (DRAIN, "DRAIN", false),
    (1 << 10, "COMPLETING", false),
    (1 << 11, "NOT_RESPONDING", false),
    (1 << 12, "POWERED_DOWN", true),
    (FAIL, "FAIL", false),
    (1 << 14, "POWERING_UP", true),
    (1 << 15, "MAINTENANCE", true),
    (1 << 16, "REBOOT_REQUESTED", true),
    (1 << 17, "REBOOT_CANCEL", true),
    (1 << 18, "POWERING_DOWN", true),
    (1 << 19, "DYNAMIC_FUTURE", true),
    (1 << 20, "REBOOT_ISSUED", true),
    (1 << 21, "PLANNED", false),
    (1 << 22, "INVALID_REG", false),
    (1 << 23, "POWER_DOWN", true),
    (1 << 24, "POWER_UP", true),
    (1 << 25, "POWER_DRAIN", true),
    (1 << 26, "DYNAMIC_NORM", false),
    (1 << 27, "BLOCKED", false),
];

/// Base states as `scontrol` prints them, in the order of `enum node_states`.
const BASES: [&str; 7] = ["UNKNOWN", "DOWN", "IDLE", "ALLOCATED", "ERROR", "MIXED", "FUTURE"];

/// Base state and flag of a node in an active reservation: somebody's plan, so nothing is given back by itself.
pub const RESERVED: u32 = 1 << 5;

/// What we need to know of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// Slurm's name.
    pub name: String,
    /// Base state and flags, as in `node_info_t.node_state`.
    pub state: u32,
    /// Reason; empty when there is none.
    pub reason: String,
    /// When the reason was set, by the controller's clock, seconds since 1970; 0 without a reason.
    pub reason_time: i64,
    /// Name of the host on which its slurmd runs, as slurm.conf or the daemon says.
    #[serde(default)]
    pub hostname: String,
    /// Comment, which a node in service can hold, unlike a reason; empty when there is none.
    #[serde(default)]
    pub comment: String,
    /// Slurm resumes the node by itself at some time, since an operator said so (`ResumeAfter`, 23.02 and newer).
    #[serde(default)]
    pub resume_after: bool,
}

impl Node {
    /// True when Slurm starts no new work here because of a drain.
    #[must_use]
    pub fn drained(&self) -> bool {
        self.state & DRAIN != 0
    }

    /// True when Slurm holds the node for down.
    #[must_use]
    pub fn down(&self) -> bool {
        self.state & BASE == DOWN
    }

    /// True when one of our drains holds the node.
    #[must_use]
    pub fn drained_by_us(&self) -> bool {
        self.drained() && reason::is_ours(&self.reason)
    }
}

/// True for names that are equal, or differ only in that one of them has a domain: `gpu01` and `gpu01.example.org`.
#[must_use]
pub fn same_name(a: &str, b: &str) -> bool {
    let short = |name: &str| name.split('.').next().unwrap_or_default().to_string();
    a == b || a.contains('.') != b.contains('.') && short(a) == short(b)
}

/// Reads a state as `scontrol show node` prints it (`IDLE+DRAIN`); `None` when a word is not known, so that
/// a state that is not understood is never acted upon.
#[must_use]
pub fn parse_state(text: &str) -> Option<u32> {
    let mut state = 0;
    for (at, word) in text.split('+').enumerate() {
        // Releases before 22.05 mark states with a sign at the end (`DOWN*`); the flags say it all again.
        let word = word.trim_end_matches(['*', '~', '#', '!', '%', '$', '@', '^', '-']);
        let base = BASES.iter().position(|b| *b == word).and_then(|b| u32::try_from(b).ok());
        let flag = FLAGS.iter().find(|(_, name, _)| *name == word).map(|(bit, _, _)| *bit);
        state |= match (at, base, flag) {
            (0, Some(base), _) => base,
            // Also first: a reserved node prints RESERVED in place of its base state.
            (_, _, Some(flag)) => flag,
            _ => return None,
        };
    }
    Some(state)
}

/// Prints a state as `scontrol` does.
#[must_use]
pub fn state_text(state: u32) -> String {
    let base = usize::try_from(state & BASE).ok().and_then(|b| BASES.get(b)).copied().unwrap_or("?");
    let mut text = base.to_string();
    for (_, name, _) in FLAGS.iter().filter(|(bit, _, _)| state & bit != 0) {
        text.push('+');
        text.push_str(name);
    }
    text
}

/// What to do with a node for which we have a reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Drain it with this text.
    Write {
        /// The whole reason, `; was: ...` included.
        text: String,
        /// The node is in service now, so that the brake counts.
        takes_node: bool,
    },
    /// Our drain for this fault, or for one at least as grave, is there.
    Already,
    /// Somebody else's reason or drain.
    Foreign,
    /// This state is Slurm's or the operator's business: the flag's name.
    Protected(&'static str),
}

/// True for a node that runs jobs, or could: neither drained nor failing nor down.
fn state_is_well(state: u32) -> bool {
    state & (DRAIN | FAIL) == 0 && state & BASE != DOWN
}

/// The flag that makes the node's state Slurm's or the operator's business.
#[must_use]
pub fn protecting(state: u32) -> Option<&'static str> {
    if state & BASE == FUTURE {
        return Some("FUTURE");
    }
    FLAGS.iter().find(|(bit, _, protects)| *protects && state & bit != 0).map(|(_, name, _)| *name)
}

/// The rules. `new` is a reason of ours.
#[must_use]
pub fn decide(node: &Node, new: &str) -> Decision {
    if let Some(flag) = protecting(node.state) {
        return Decision::Protected(flag);
    }
    let takes_node = !node.drained();
    let old = node.reason.as_str();
    if old.is_empty() {
        // Drained or failing without a word: an operator's doing all the same.
        return if node.state & (DRAIN | FAIL) != 0 {
            Decision::Foreign
        } else {
            Decision::Write { text: new.to_string(), takes_node }
        };
    }
    if node.resume_after {
        // Any update would stop the operator's timer without a word.
        return if node.drained_by_us() { Decision::Already } else { Decision::Foreign };
    }
    if reason::is_of_other_version(old) {
        return if takes_node {
            Decision::Write { text: new.to_string(), takes_node }
        } else {
            // Ours, but which fault and how grave cannot be read: it stays.
            Decision::Already
        };
    }
    if let Some(ours) = Reason::parse(old) {
        if takes_node {
            return Decision::Write { text: new.to_string(), takes_node };
        }
        let wanted = Reason::parse(new);
        let (new_id, new_action) = wanted.map_or((None, None), |r| (r.id, r.action));
        // A tray that was drained for its domain's sake goes back with the domain: its own fault must hold it, and be counted.
        if ours.token == reason::RACK && wanted.is_some_and(|r| r.token != reason::RACK) {
            return Decision::Write { text: new.to_string(), takes_node };
        }
        // A second fault replaces the first only when it needs more, else two faults would take turns for ever.
        return if ours.id.is_some() && ours.id == new_id || new_action <= ours.action {
            Decision::Already
        } else {
            Decision::Write { text: reason::replacing(new, old), takes_node }
        };
    }
    // What stands on a node in service holds nobody back: 24.11 leaves the reason there when an operator resumes a node, and
    // a node that was drained once would never be drained again. The old text is kept behind ours.
    let in_service = state_is_well(node.state);
    if reason::is_slurms_own(old) || in_service {
        return Decision::Write { text: reason::replacing(new, old), takes_node };
    }
    Decision::Foreign
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEW: &str = "cmx:xid79 g3 GPU fell off the bus; act=reboot id=3f2a91bc";

    fn node(state: u32, reason: &str) -> Node {
        Node { name: "n1".into(), state, reason: reason.into(), reason_time: 1, ..Node::default() }
    }

    fn writes(text: &str, takes_node: bool) -> Decision {
        Decision::Write { text: text.into(), takes_node }
    }

    /// Raw `node_state` values and what follows.
    #[test]
    fn states_decide() {
        let idle = 2;
        let rows: &[(u32, &str, Decision)] = &[
            (idle, "", writes(NEW, true)),
            (0, "", writes(NEW, true)),
            (1, "", writes(NEW, true)),
            (3, "", writes(NEW, true)),
            (5 | (1 << 10), "", writes(NEW, true)),
            // Reserved, cloud (up), planned, dynamic, not responding: ordinary nodes.
            (idle | (1 << 5), "", writes(NEW, true)),
            (idle | (1 << 7), "", writes(NEW, true)),
            (idle | (1 << 21), "", writes(NEW, true)),
            (idle | (1 << 26), "", writes(NEW, true)),
            (idle | (1 << 11), "", writes(NEW, true)),
            // Drained or failing by somebody.
            (idle | DRAIN, "maintenance ticket 1234", Decision::Foreign),
            (idle | DRAIN, "", Decision::Foreign),
            (idle | FAIL, "", Decision::Foreign),
            (idle | FAIL, "watch this one", Decision::Foreign),
            // Left behind by a resume on 24.11.
            (idle, "ticket 9", writes(&format!("{NEW}; was: ticket 9"), true)),
            (3, "ticket 9", writes(&format!("{NEW}; was: ticket 9"), true)),
            (1, "broken fan", Decision::Foreign),
            (
                1 | DRAIN | (1 << 22),
                "gres/gpu count reported lower than configured (7 < 8)",
                Decision::Foreign,
            ),
            // Slurm's own.
            (idle | DRAIN, "Prolog error", writes(&format!("{NEW}; was: Prolog error"), false)),
            (3 | DRAIN | (1 << 10), "Epilog error", writes(&format!("{NEW}; was: Epilog error"), false)),
            (1 | (1 << 11), "Not responding", writes(&format!("{NEW}; was: Not responding"), true)),
            // Ours.
            (idle | DRAIN, NEW, Decision::Already),
            (idle | DRAIN, "cmx:other text; act=explode id=3f2a91bc", Decision::Already),
            (5 | DRAIN, "cmx:rowremap g1 t; act=repair id=11111111", Decision::Already),
            (5 | DRAIN, "cmx:rowremap g1 t; act=reboot id=11111111", Decision::Already),
            (
                5 | DRAIN,
                "cmx:fm t; act=restart_service id=11111111",
                writes(&format!("{NEW}; was: cmx:fm t; act=restart_service id=11111111"), false),
            ),
            (1, NEW, writes(NEW, true)),
            // Ours in a grammar that this release cannot read: stays; as a mere note on a node in service it does not.
            (idle | DRAIN, "cmx2:rowremap/g1{act:repair}", Decision::Already),
            (idle, "cmx2:rowremap/g1{act:repair}", writes(NEW, true)),
            (idle | DRAIN, "cmxx:rowremap", Decision::Foreign),
            // Slurm's or the operator's business.
            (6, "", Decision::Protected("FUTURE")),
            (idle | (1 << 12), "", Decision::Protected("POWERED_DOWN")),
            (idle | (1 << 14), "", Decision::Protected("POWERING_UP")),
            (idle | (1 << 15), "", Decision::Protected("MAINTENANCE")),
            (idle | (1 << 16), "", Decision::Protected("REBOOT_REQUESTED")),
            (idle | (1 << 17), "", Decision::Protected("REBOOT_CANCEL")),
            (idle | (1 << 18), "", Decision::Protected("POWERING_DOWN")),
            (idle | (1 << 19), "", Decision::Protected("DYNAMIC_FUTURE")),
            (idle | DRAIN | (1 << 20), "Reboot ASAP", Decision::Protected("REBOOT_ISSUED")),
            (idle | (1 << 23), "", Decision::Protected("POWER_DOWN")),
            (idle | (1 << 24), "", Decision::Protected("POWER_UP")),
            (idle | (1 << 25), "", Decision::Protected("POWER_DRAIN")),
        ];
        for (state, reason, expected) in rows {
            assert_eq!(decide(&node(*state, reason), NEW), *expected, "{state:#x} {reason}");
        }
    }

    /// Every update of a node stops its `ResumeAfter`, which an operator has set.
    #[test]
    fn an_operators_timer_runs_on() {
        for (state, reason, expected) in [
            (2 | DRAIN, "Prolog error", Decision::Foreign),
            (1, "Not responding", Decision::Foreign),
            (2 | DRAIN, "ticket 7", Decision::Foreign),
            (2 | DRAIN, "cmx:fm t; act=restart_service id=11111111", Decision::Already),
        ] {
            let timed = Node { resume_after: true, ..node(state, reason) };
            assert_eq!(decide(&timed, NEW), expected, "{reason}");
        }
    }

    #[test]
    fn states_are_read_as_scontrol_prints_them() {
        let rows = [
            ("IDLE", Some(2)),
            ("IDLE+DRAIN", Some(2 | DRAIN)),
            ("MIXED+DRAIN", Some(5 | DRAIN)),
            ("DOWN+DRAIN+NOT_RESPONDING", Some(1 | DRAIN | (1 << 11))),
            ("DOWN*+DRAIN", Some(1 | DRAIN)),
            ("IDLE+CLOUD+POWERED_DOWN", Some(2 | (1 << 7) | (1 << 12))),
            ("DOWN+DRAIN+INVALID_REG", Some(1 | DRAIN | (1 << 22))),
            ("IDLE+DRAIN+REBOOT_REQUESTED", Some(2 | DRAIN | (1 << 16))),
            ("ALLOCATED+DRAIN+COMPLETING", Some(3 | DRAIN | (1 << 10))),
            ("IDLE+PLANNED", Some(2 | (1 << 21))),
            ("RESERVED+MAINTENANCE", Some((1 << 5) | (1 << 15))),
            ("IDLE+SOMETHING_NEW", None),
            ("", None),
            ("DRAINED", None),
        ];
        for (text, state) in rows {
            assert_eq!(parse_state(text), state, "{text}");
        }
        for text in ["IDLE+DRAIN", "DOWN+DRAIN+NOT_RESPONDING", "IDLE+DRAIN+REBOOT_REQUESTED"] {
            assert_eq!(state_text(parse_state(text).unwrap()), text);
        }
    }
}
