//! Why a pass runs.

use serde::{Deserialize, Serialize};

/// Why a pass runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Before a job, from Slurm's Prolog.
    Prolog,
    /// After a job, from Slurm's Epilog.
    Epilog,
    /// HealthCheckProgram or a timer.
    Periodic,
    /// By hand: everything, nothing written, nothing drained.
    Deep,
    /// As deep, but it puts no load on anything, and needs no configuration, no state and no root.
    Audit,
}

impl Mode {
    /// The word used in files and on the command line.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Mode::Prolog => "prolog",
            Mode::Epilog => "epilog",
            Mode::Periodic => "periodic",
            Mode::Deep => "deep",
            Mode::Audit => "audit",
        }
    }

    /// Has the time to ask sources that hooks of jobs leave out.
    #[must_use]
    pub fn is_slow(self) -> bool {
        matches!(self, Mode::Periodic | Mode::Deep | Mode::Audit)
    }

    /// Somebody looks by hand: no state is kept, nothing is published, nothing drains.
    #[must_use]
    pub fn only_looks(self) -> bool {
        matches!(self, Mode::Deep | Mode::Audit)
    }
}
