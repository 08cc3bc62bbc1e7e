//! Slurm hooks.
