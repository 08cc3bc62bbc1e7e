//! `clustermax-epilog`: Slurm's Epilog. Non-zero only when the node is drained for a fault of this job's devices.

use std::process::ExitCode;

fn main() -> ExitCode {
    prolog_epilog::hook::main(healthcheck::mode::Mode::Epilog)
}
