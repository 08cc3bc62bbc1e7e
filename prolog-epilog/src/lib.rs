//! Slurm hooks.

pub mod brake;
pub mod doctor;
pub mod domains;
pub mod drainer;
#[cfg(test)]
mod fake;
pub mod files;
pub mod hook;
pub mod node_state;
pub mod notify;
pub mod outcome;
pub mod plugin_file;
pub mod reason;
pub mod release;
pub mod scontrol;
pub mod slurm;
pub mod slurm_conf;
pub mod spool;
pub mod until;
#[cfg(all(target_env = "gnu", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod unwind;
