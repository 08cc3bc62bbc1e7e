//! `clustermax-prolog`: Slurm's Prolog. Non-zero only when the job must not run here; see `prolog_epilog::hook`.

use std::process::ExitCode;

fn main() -> ExitCode {
    prolog_epilog::hook::main(healthcheck::mode::Mode::Prolog)
}
