//! Facts about a GPU node, findings and a verdict.
//!
//! ```text
//! source/*  -> Facts            impure, each source under its own deadline
//! check/*   Facts -> Findings   pure
//! pass      -> Verdict          worst finding, action, reason
//! sinks     verdict file, job files, drain
//! ```
//!
//! There is no Slurm in this crate: what has to be said to Slurm is said by `clustermax-drain`, a program of its own.

pub mod active;
pub mod audit;
pub mod catalogue;
pub mod check;
pub mod compare;
pub mod config;
pub mod drain;
pub mod exempt;
pub mod explain;
pub mod facts;
pub mod give_back;
pub mod history;
pub mod hostlist;
pub mod jobs;
pub mod kernel_lines;
pub mod kernel_log;
pub mod kmsg;
pub mod learn;
pub mod log;
pub mod metrics;
pub mod mode;
pub mod nhc;
pub mod nvlink5;
pub mod pass;
pub mod rack;
pub mod source;
pub mod state;
pub mod status;
pub mod sys;
pub mod table;
pub mod tags;
pub mod totals;
pub mod verdict;
pub mod watch;
pub mod xid;
