//! What `clustermax-drain` answers, and the exit codes that go with it (table in `docs/interfaces.md`).

use serde::{Deserialize, Serialize};

/// How one call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Done: the node is drained with our reason (`notify`: the job was told; `deliver`: nothing waits any more).
    Written,
    /// It was already, by us (`notify`: the job was told before).
    Already,
    /// Drained, or marked with a reason, by somebody else: left alone.
    Foreign,
    /// In a state that is Slurm's or the operator's business: left alone.
    Protected,
    /// The brake holds our drains back: nothing written.
    Brake,
    /// The controller did not answer: kept on disk.
    Spooled,
    /// The node (or job) could not be read or Slurm refused: nothing written.
    Unreadable,
    /// Enforcement is `observe`: nothing written.
    Observe,
    /// libslurm is of another release and scontrol could not be used either.
    WrongRelease,
    /// The command is root's.
    Denied,
    /// `return`: our drain was taken back.
    Returned,
    /// An answer about our own state (`status`, `release`, `exempt`, `--version`).
    Status,
}

impl Outcome {
    /// Exit code of `clustermax-drain`.
    #[must_use]
    pub fn exit_code(self) -> u8 {
        match self {
            Outcome::Written | Outcome::Already | Outcome::Returned | Outcome::Status => 0,
            Outcome::Foreign => 10,
            Outcome::Protected => 11,
            Outcome::Brake => 12,
            Outcome::Spooled => 13,
            Outcome::Unreadable => 14,
            Outcome::Observe => 15,
            Outcome::WrongRelease => 16,
            Outcome::Denied => 17,
        }
    }
}

/// The JSON object that `clustermax-drain` prints.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// How it ended.
    pub outcome: Outcome,
    /// Slurm's name of the node.
    #[serde(default)]
    pub node: String,
    /// The reason as it stands on the node, or would have been written.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// `libslurm` or `scontrol`; empty when Slurm was not asked.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub via: String,
    /// One sentence more.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
    /// The drain took a node that was in service, so that the brake's second look is due.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub second_look: bool,
}

impl Report {
    /// A report without detail.
    #[must_use]
    pub fn new(outcome: Outcome, node: &str, reason: &str) -> Self {
        Report {
            outcome,
            node: node.to_string(),
            reason: reason.to_string(),
            via: String::new(),
            detail: String::new(),
            second_look: false,
        }
    }

    /// The same with one sentence more.
    #[must_use]
    pub fn detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = detail.into();
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_json_form_is_the_documented_one() {
        let r = Report::new(Outcome::WrongRelease, "n2", "cmx:x");
        assert_eq!(
            serde_json::to_string(&r).unwrap(),
            r#"{"outcome":"wrong_release","node":"n2","reason":"cmx:x"}"#
        );
        let read: Report = serde_json::from_str(
            r#"{"outcome":"written","node":"n2","reason":"cmx:x","via":"libslurm","detail":"d","new":1}"#,
        )
        .unwrap();
        assert_eq!((read.outcome, read.via.as_str()), (Outcome::Written, "libslurm"));
    }
}
