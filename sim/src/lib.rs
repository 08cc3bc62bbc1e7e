//! A real Slurm cluster on one machine, with simulated GPUs and fabric.
//!
//! [`Cluster`] is a cluster in a folder: one munged, one slurmctld and a slurmd for every node, all from distribution
//! packages, on free ports and with a key of their own. Each node has a folder of simulated hardware that the
//! product's programs are pointed at by configuration: a `libnvidia-ml.so.1` with its GPU file, a sysfs tree, device
//! nodes and a file of kernel records. [`fault::Fault`] changes that hardware, and writes to the real kernel log.

mod cgroup;
mod cluster;
mod error;
pub mod fault;
mod files;
pub mod kmsg;
mod machine;
mod process;
mod product;
mod root;
pub mod slurm;
mod state;
pub mod sys;
pub mod sysfs;

pub use cluster::{Cluster, DEFAULT_DIR, NodeStatus, Service, Status};
pub use error::{Error, Result};
pub use root::SlurmRoot;
pub use state::{Layout, NodeLayout, Options, Phase, State};
