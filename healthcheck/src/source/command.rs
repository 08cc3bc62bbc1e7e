//! Site commands with Nagios exit codes.

use super::child::{Ended, Outcome};
use crate::facts::{CommandResult, Reading};

/// First line and exit code of a finished command.
pub fn result(outcome: &Outcome) -> Reading<CommandResult> {
    match &outcome.ended {
        Ended::Exit(exit) => {
            let line = outcome.stdout.lines().next().unwrap_or_default().chars().take(200).collect();
            Reading::Value(CommandResult { exit: *exit, line })
        }
        other => super::failed(other),
    }
}
