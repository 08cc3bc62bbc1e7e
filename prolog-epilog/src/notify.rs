//! Telling the operators: the command of `[notify]` gets one JSON object on its standard input for every drain, return,
//! engaged or released brake, exemption and degraded domain. It runs in a process of its own that nobody waits for.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::files::{self, FileError};
use crate::reason::Reason;

/// Version tag of the object.
pub const SCHEMA: &str = "clustermax-notify/1";
/// Length of the window of the rate limit, in seconds.
const HOUR: i64 = 3600;

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The node was drained by us.
    Drain,
    /// The node was given back by us.
    Return,
    /// The brake was engaged on this node.
    Brake,
    /// An operator released it.
    Release,
    /// An operator exempted the node or a check, or ended that.
    Exempt,
    /// One more tray of a degraded rack-scale domain fell ill.
    Domain,
}

/// What the command gets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// [`SCHEMA`].
    pub schema: String,
    /// What happened.
    pub event: Kind,
    /// When, UTC, RFC 3339.
    pub time: String,
    /// Slurm's name of the node.
    pub node: String,
    /// The drain reason concerned; empty where there is none.
    pub reason: String,
    /// Its parts, where it is in our grammar.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<Fault>,
    /// One sentence more.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
    /// Events that the rate limit left out since the last one told.
    pub left_out: u64,
}

/// A reason's parts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// `xid79`.
    pub token: String,
    /// Device and text.
    pub text: String,
    /// What mends it; empty when not known.
    pub action: String,
    /// The same fault has the same id.
    pub id: String,
}

impl Event {
    /// An event of now, or of `time`.
    #[must_use]
    pub fn new(event: Kind, node: &str, reason: &str, detail: &str, time: &str) -> Self {
        let fault = Reason::parse(reason).map(|r| Fault {
            token: r.token.to_string(),
            text: r.text.to_string(),
            action: r.action.map_or(String::new(), |a| a.word().to_string()),
            id: r.id.unwrap_or_default().to_string(),
        });
        Event {
            schema: SCHEMA.to_string(),
            event,
            time: time.to_string(),
            node: node.to_string(),
            reason: reason.to_string(),
            fault,
            detail: detail.to_string(),
            left_out: 0,
        }
    }
}

/// What was told, in `STATE_DIR/notify.json`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Ledger {
    /// When the command was called in the last hour, seconds since the epoch.
    pub called: VecDeque<i64>,
    /// Events left out since.
    pub left_out: u64,
    /// What became of the last call: empty, or why it failed.
    pub failed: String,
    /// Calls that failed, ever.
    pub failures: u64,
}

/// The ledger's file.
#[must_use]
pub fn file(state_dir: &Path) -> PathBuf {
    state_dir.join("notify.json")
}

impl Ledger {
    /// Reads it; one that cannot be understood is begun anew.
    ///
    /// # Errors
    /// The file exists and cannot be read.
    pub fn read(state_dir: &Path) -> Result<Ledger, FileError> {
        Ok(files::read(&file(state_dir))?.and_then(|t| serde_json::from_str(&t).ok()).unwrap_or_default())
    }

    /// Writes it.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, state_dir: &Path) -> Result<(), FileError> {
        files::write_json(&file(state_dir), self)
    }

    /// Counts an event; how many were left out before it when it may be told, none when it may not.
    pub fn admit(&mut self, per_hour: u32, now: i64) -> Option<u64> {
        // A clock that was set back must not silence the node.
        self.called.retain(|at| (now - at).abs() < HOUR);
        if self.called.len() >= usize::try_from(per_hour).unwrap_or(usize::MAX) {
            self.left_out = self.left_out.saturating_add(1);
            return None;
        }
        self.called.push_back(now);
        Some(std::mem::take(&mut self.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_json_form_is_the_documented_one() {
        let event =
            Event::new(Kind::Drain, "n2", "cmx:xid79 g3 off the bus; act=reboot id=3f2a91bc", "", "T");
        assert_eq!(
            serde_json::to_string(&event).unwrap(),
            r#"{"schema":"clustermax-notify/1","event":"drain","time":"T","node":"n2","reason":"cmx:xid79 g3 off the bus; act=reboot id=3f2a91bc","fault":{"token":"xid79","text":"g3 off the bus","action":"reboot","id":"3f2a91bc"},"left_out":0}"#
        );
        let event = Event::new(Kind::Exempt, "n2", "", "gpu.xid until T", "T");
        assert!(event.fault.is_none());
    }

    #[test]
    fn the_rate_limit_counts_what_it_leaves_out() {
        let mut ledger = Ledger::default();
        assert_eq!([0, 1, 2, 3, 4].map(|now| ledger.admit(2, now)), [Some(0), Some(0), None, None, None]);
        assert_eq!(ledger.admit(2, HOUR), Some(3), "the first is an hour old");
        assert_eq!(ledger.admit(2, HOUR + 1), Some(0));
        assert_eq!(ledger.admit(2, HOUR + 2), None);
        assert_eq!(ledger.admit(2, -HOUR), Some(1), "a clock that was set back");
        let dir = tempfile::tempdir().unwrap();
        ledger.write(dir.path()).unwrap();
        assert_eq!(Ledger::read(dir.path()).unwrap(), ledger);
        std::fs::write(file(dir.path()), "{").unwrap();
        assert_eq!(Ledger::read(dir.path()).unwrap(), Ledger::default());
    }
}
