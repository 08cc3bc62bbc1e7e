//! Measurements and evidence to a rating.
//!
//! ```text
//! raw stage output -> collect -> records.jsonl -> criteria (data) -> score -> report
//! ```
//!
//! A results folder ([`run`]) holds what was measured, one [`record::Record`] a line. Everything that decides a
//! rating (criteria, weights, reference values, tier cut-offs, caps) is data under `scoring/data/`.

pub mod accept;
pub mod audit;
pub mod bundle;
pub mod collect;
pub mod diff;
pub mod entries;
pub mod evidence;
pub mod explain;
pub mod import;
pub mod inject;
pub mod judge;
pub mod load;
pub mod metadata;
pub mod methodology;
pub mod rank;
pub mod rating;
pub mod read;
pub mod record;
pub mod report;
pub mod run;
pub mod s3;
pub mod score;
pub mod sensitivity;
pub mod sla;
pub mod straggler;
pub mod suite;

use std::fmt::{self, Display};

/// Ends a command: one full sentence for stderr and the exit code of `docs/interfaces.md`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// 1: the answer is "no"; 2: bad command line, configuration or input; 3: a part of the system is missing.
    pub code: u8,
    /// Names the file, key, line, node or device, and the mend.
    pub message: String,
}

impl Failure {
    /// Bad command line, configuration or input (exit 2).
    pub fn input(message: impl Display) -> Self {
        Self { code: 2, message: message.to_string() }
    }

    /// A needed part of the system is missing or does not answer (exit 3).
    pub fn missing(message: impl Display) -> Self {
        Self { code: 3, message: message.to_string() }
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

impl From<record::Error> for Failure {
    fn from(error: record::Error) -> Self {
        Self::input(error)
    }
}

impl From<run::Error> for Failure {
    fn from(error: run::Error) -> Self {
        Self::input(error)
    }
}
