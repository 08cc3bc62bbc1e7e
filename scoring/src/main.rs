//! `clustermax`: collect, audit, score, report.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use scoring::{audit, collect};

/// GPU-cluster measurements and evidence to a rating
#[derive(Debug, Parser)]
#[command(name = "clustermax", version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Turn raw stage output into records
    Collect(collect::Args),
    /// Look at the cluster and its nodes, write records
    Audit(audit::Args),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Collect(args) => collect::run(&args),
        Command::Audit(args) => audit::run(&args),
    };
    match result {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            eprintln!("clustermax: {failure}");
            ExitCode::from(failure.code)
        }
    }
}
