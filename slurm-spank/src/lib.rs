//! SPANK plugin of ClusterMAX for Slurm: `spank_clustermax.so`.
//!
//! It adds three options to `srun`, `sbatch` and `salloc`; refuses to start a step on a node whose health verdict
//! says that the node is leaving service (with `--clustermax-strict`, on one with a warning too); and tells the
//! user after a step what happened to the step's GPUs and links, and whether it was the hardware or the program.
//! `docs/spank.md` is its manual.
//!
//! | module | holds |
//! |---|---|
//! | `hooks` | every exported symbol, nothing else |
//! | `boundary` | the one panic boundary |
//! | `spank` | safe wrapper of the host's functions; the only other place with `unsafe` |
//! | `plugin` | what each hook does |
//! | `options`, `verdict`, `checks`, `delta`, `message`, `timestamp`, `tags` | pure parts, tested without Slurm |
//! | `files` | careful reading of what other programs of the suite wrote |
//!
//! The plugin lives in other people's processes (slurmd, slurmstepd, srun): no thread, no lock, no environment
//! change, no output unless something happened, and 0 from every hook that has nothing to refuse.

mod boundary;
mod checks;
mod delta;
mod files;
mod hooks;
mod message;
mod options;
mod plugin;
mod spank;
// The prolog reads what this plugin lets pass, so both compile the one rule.
#[allow(dead_code, reason = "the bounds are public for the prolog's sake")]
#[path = "../../healthcheck/src/tags.rs"]
mod tags;
mod timestamp;
mod verdict;
