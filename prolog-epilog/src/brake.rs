//! The brake: a limit on how many nodes our own drains may hold, without a daemon.
//!
//! Before a drain every node counts our drains of the window and writes nothing when the limit is reached.
//! Nodes that fail in the same second all see room, so each looks a second time, after 2 s, orders our drains by
//! (ReasonTime, node name) and takes its own back when its rank is above the limit. The order is the controller's
//! and the same for all, so exactly `limit` drains stay.

use std::path::{Path, PathBuf};

use healthcheck::config;
use serde::{Deserialize, Serialize};

use crate::files::{self, FileError};
use crate::node_state::{FUTURE, Node};

/// How many refused reasons the record keeps.
const REFUSED_KEPT: usize = 16;

/// Largest number of nodes our drains of one window may hold: the share of all nodes or the number given, whichever is
/// less, and at least one.
#[must_use]
pub fn limit(nodes: &[Node], settings: &Settings) -> usize {
    let real = nodes.iter().filter(|n| n.state & 0xf != FUTURE).count();
    #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let share = (real as f64 * settings.max_share).floor() as usize;
    let most = settings.max_nodes.and_then(|n| usize::try_from(n).ok()).unwrap_or(usize::MAX);
    share.min(most).max(1)
}

/// How many other nodes our drains have taken in the window that ends `now` (seconds since 1970). A time
/// ahead of `now` counts: the controller's clock may be ahead of ours.
#[must_use]
pub fn others_drained(nodes: &[Node], own: &str, now: i64, window: u64) -> usize {
    let start = now.saturating_sub_unsigned(window);
    nodes.iter().filter(|n| n.name != own && n.drained_by_us() && n.reason_time > start).count()
}

/// Rank (from 1) of `own` among our drains of the window that ends with its own; `None` when `own` is not
/// drained by us. No clock but the controller's takes part.
#[must_use]
pub fn rank(nodes: &[Node], own: &str, window: u64) -> Option<usize> {
    let own = nodes.iter().find(|n| n.name == own && n.drained_by_us())?;
    let start = own.reason_time.saturating_sub_unsigned(window);
    let key = (own.reason_time, own.name.as_str());
    Some(
        nodes
            .iter()
            .filter(|n| n.drained_by_us() && n.reason_time > start && (n.reason_time, n.name.as_str()) <= key)
            .count(),
    )
}

/// A drain that the brake held back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// UTC, RFC 3339.
    pub time: String,
    /// The reason that was not written, or was taken back.
    pub reason: String,
}

/// An engaged brake, kept in `STATE_DIR/brake.json` until an operator releases it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Engaged {
    /// Since when, UTC, RFC 3339.
    pub since: String,
    /// Slurm's name of the node.
    pub node: String,
    /// Why, one sentence.
    pub why: String,
    /// The last drains it held back.
    pub refused: Vec<Refused>,
}

/// The brake's record on this node.
#[derive(Debug)]
pub struct Record {
    path: PathBuf,
}

impl Record {
    /// The record in this state folder.
    #[must_use]
    pub fn new(state_dir: &Path) -> Self {
        Record { path: state_dir.join("brake.json") }
    }

    /// The engaged brake, or none. A record that cannot be understood still means "engaged": it was written
    /// for a reason.
    ///
    /// # Errors
    /// The file exists and cannot be read.
    pub fn read(&self) -> Result<Option<Engaged>, FileError> {
        let Some(text) = files::read(&self.path)? else { return Ok(None) };
        Ok(Some(serde_json::from_str(&text).unwrap_or_else(|e| Engaged {
            since: String::new(),
            node: String::new(),
            why: format!("{} is damaged ({e}); it is taken for an engaged brake", self.path.display()),
            refused: Vec::new(),
        })))
    }

    /// Engages the brake, or adds one more refused reason to it; true when it was not engaged before.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn engage(&self, node: &str, why: &str, reason: &str, time: &str) -> Result<bool, FileError> {
        let before = self.read()?;
        let first = before.is_none();
        let mut engaged = before.unwrap_or_else(|| Engaged {
            since: time.to_string(),
            node: node.to_string(),
            why: why.to_string(),
            refused: Vec::new(),
        });
        // The same fault is refused at every pass; its first time says it all.
        if engaged.refused.iter().any(|r| r.reason == reason) {
            return Ok(false);
        }
        engaged.refused.push(Refused { time: time.to_string(), reason: reason.to_string() });
        if engaged.refused.len() > REFUSED_KEPT {
            engaged.refused.remove(0);
        }
        files::write_json(&self.path, &engaged)?;
        Ok(first)
    }

    /// Releases the brake; what it had held back, or none when it was not engaged.
    ///
    /// # Errors
    /// The file cannot be read or removed.
    pub fn release(&self) -> Result<Option<Engaged>, FileError> {
        let engaged = self.read()?;
        if engaged.is_some() {
            files::remove(&self.path)?;
        }
        Ok(engaged)
    }
}

/// The settings the brake needs.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Settings {
    /// Length of the window in seconds.
    pub window: u64,
    /// Share of all nodes in (0, 1].
    pub max_share: f64,
    /// Most nodes, whatever their share.
    #[serde(default)]
    pub max_nodes: Option<u32>,
}

impl From<config::Brake> for Settings {
    fn from(b: config::Brake) -> Self {
        Settings { window: b.window, max_share: b.max_share, max_nodes: b.max_nodes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node_state::DRAIN;

    fn node(name: &str, time: i64) -> Node {
        Node {
            name: name.into(),
            state: 2 | DRAIN,
            reason: "cmx:x t; act=repair id=00000000".into(),
            reason_time: time,
            ..Node::default()
        }
    }

    fn idle(name: &str) -> Node {
        Node { name: name.into(), state: 2, ..Node::default() }
    }

    fn settings(max_share: f64, max_nodes: Option<u32>) -> Settings {
        Settings { window: 3600, max_share, max_nodes }
    }

    #[test]
    fn the_limit_is_a_share_or_a_number_and_at_least_one_node() {
        let nodes = |n: usize| vec![idle("x"); n];
        for (count, share, expected) in
            [(0, 0.1, 1), (4, 0.1, 1), (10, 0.1, 1), (19, 0.1, 1), (20, 0.1, 2), (64, 0.1, 6), (12, 1.0, 12)]
        {
            assert_eq!(limit(&nodes(count), &settings(share, None)), expected, "{count} {share}");
        }
        for (most, expected) in [(1, 1), (4, 4), (6, 6), (7, 6), (1000, 6)] {
            assert_eq!(limit(&nodes(64), &settings(0.1, Some(most))), expected, "at most {most}");
        }
        let mut with_future = nodes(20);
        with_future[0].state = FUTURE;
        assert_eq!(limit(&with_future, &settings(0.1, None)), 1);
    }

    #[test]
    fn only_our_drains_of_the_window_count() {
        let mut nodes = vec![node("n1", 1000), node("n2", 900), node("n3", 899), idle("n4")];
        nodes.push(Node { reason: "maintenance".into(), ..node("n5", 1000) });
        nodes.push(Node { state: 2, ..node("n6", 1000) });
        nodes.push(node("n7", 1005));
        // The window is (now - 100, now]; n7's time is ahead of our clock.
        assert_eq!(others_drained(&nodes, "n4", 1000, 100), 2);
        assert_eq!(others_drained(&nodes, "n4", 999, 100), 3);
        assert_eq!(others_drained(&nodes, "n1", 999, 100), 2);
    }

    #[test]
    fn ranks_are_by_time_then_name_and_end_with_ones_own() {
        let nodes =
            [node("n10", 50), node("n2", 50), node("n1", 51), node("n0", 10), node("n9", 52), idle("n5")];
        // (node, window, rank)
        for (name, window, expected) in [
            ("n10", 100, Some(2)),
            ("n2", 100, Some(3)),
            ("n1", 100, Some(4)),
            ("n9", 100, Some(5)),
            ("n0", 100, Some(1)),
            // 50 - 40 = 10 is outside, 50 - 41 = 9 is not.
            ("n10", 40, Some(1)),
            ("n10", 41, Some(2)),
            ("n5", 100, None),
            ("none", 100, None),
        ] {
            assert_eq!(rank(&nodes, name, window), expected, "{name} {window}");
        }
    }

    /// Whatever the order in which nodes take theirs back, exactly the limit stays.
    #[test]
    fn exactly_the_limit_stays() {
        for (count, limit) in [(64, 6), (12, 2), (3, 1), (2, 2)] {
            for backwards in [false, true] {
                let mut nodes: Vec<Node> =
                    (0..count).map(|i| node(&format!("n{i}"), 100 + i64::from(i % 3))).collect();
                let mut names: Vec<String> = nodes.iter().map(|n| n.name.clone()).collect();
                if backwards {
                    names.reverse();
                }
                for name in names {
                    if rank(&nodes, &name, 3600).unwrap() > limit {
                        let own = nodes.iter_mut().find(|n| n.name == name).unwrap();
                        *own = idle(&name);
                    }
                }
                assert_eq!(nodes.iter().filter(|n| n.drained()).count(), limit, "{count} {backwards}");
            }
        }
    }

    #[test]
    fn the_record_stays_until_released() {
        let dir = tempfile::tempdir().unwrap();
        let record = Record::new(&dir.path().join("state"));
        assert_eq!(record.read().unwrap(), None);
        assert_eq!(record.release().unwrap(), None);
        assert!(record.engage("n1", "2 of 2", "cmx:a", "t1").unwrap());
        assert!(!record.engage("n1", "3 of 2", "cmx:a", "t2").unwrap());
        assert!(!record.engage("n1", "3 of 2", "cmx:b", "t3").unwrap());
        let engaged = record.read().unwrap().unwrap();
        assert_eq!((engaged.since.as_str(), engaged.why.as_str()), ("t1", "2 of 2"));
        assert_eq!(engaged.refused.len(), 2);
        for i in 0..40 {
            record.engage("n1", "", &format!("cmx:{i}"), "t").unwrap();
        }
        assert_eq!(record.read().unwrap().unwrap().refused.len(), REFUSED_KEPT);
        assert!(record.release().unwrap().is_some());
        assert_eq!(record.read().unwrap(), None);
        std::fs::write(dir.path().join("state/brake.json"), "{half").unwrap();
        assert!(record.read().unwrap().unwrap().why.contains("damaged"));
    }
}
