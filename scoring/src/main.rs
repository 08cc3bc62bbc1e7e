//! `clustermax`: collect, audit, score, report.

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use scoring::{
    accept, audit, bundle, collect, diff, evidence, explain, inject, metadata, rank, read, report, s3, score,
    suite,
};

/// GPU-cluster measurements and evidence to a rating
#[derive(Debug, Parser)]
#[command(name = "clustermax", version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Measure the nodes of a Slurm job, stage by stage; plan, status and resume of such a run
    Suite(suite::Args),
    /// Run one stage of the suite, inside a Slurm job
    Stage(suite::StageArgs),
    /// PUT and GET objects of an S3 service from this node: bandwidth, latencies, errors, wrong bytes
    #[command(
        after_help = "Credentials: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN. Exit code: 0 measured, 1 the service failed \
                          (the document says how), 2 the document cannot be written, 3 no service is given."
    )]
    S3Bench(s3::Args),
    /// Make, look at and remove small files of a shared folder, as one task a node: rates and latencies
    #[command(
        after_help = "Exit code: 0 the document is written, 2 it cannot be, or the node is not among --nodes."
    )]
    MetadataBench(metadata::Args),
    /// Turn raw stage output into records
    Collect(collect::Args),
    /// Read the output of a benchmark or diagnostic program from anywhere; print records or a table
    #[command(
        after_help = "Exit code: 0 all files were read, 2 a file cannot be read or is in no known format."
    )]
    Read(read::Args),
    /// Put the output of cmax, dcgmi, NHC, an exporter, Prometheus or sacct into a results folder as records
    #[command(after_help = "Exit code: 0 imported, 2 a file cannot be read or breaks its format.")]
    Import(scoring::import::Args),
    /// Make one node fail on purpose, and time what the cluster does about it; a dry run without --confirm
    #[command(
        after_help = "Exit code: 0 drained (dry run: all preconditions hold), 1 not drained in time or a false alarm (dry run: a \
                          precondition fails), 2 bad input or refused, 3 Slurm or the node does not answer."
    )]
    Inject(inject::Args),
    /// Look at the cluster and its nodes, write records
    Audit(audit::Args),
    /// Score a results folder: score.json, report.txt, report.md, report.html
    #[command(after_help = "Exit code: 0 rated, 1 measured but not rated, 2 bad input.")]
    Score(score::Args),
    /// Write report.txt, report.md and report.html of a results folder
    Report(report::Args),
    /// Judge a run by a contract, line by line: acceptance.txt to sign, acceptance.json
    #[command(after_help = "Exit code: 0 every line is met, 1 one is not met or not measured, 2 bad input.")]
    Accept(accept::Args),
    /// Pack a scored results folder into one archive that a third party can check
    Bundle(bundle::Args),
    /// Check a bundle or a results folder: every file, every record's raw file, and the score computed anew
    #[command(after_help = "Exit code: 0 everything holds, 1 something differs, 2 bad input.")]
    Verify(bundle::VerifyArgs),
    /// What changed between two runs
    #[command(after_help = "Exit code: 0 nothing changed, 1 something did, 2 bad input.")]
    Diff(diff::Args),
    /// Rank scored runs under one methodology: table, JSON, one HTML file
    Rank(rank::Args),
    /// Availability, SLA credits, failures, goodput and cost from Slurm's own accounting; each figure with its formula
    #[command(
        after_help = "Exit code: 0 every promise was kept, 1 one was not, 2 bad input, 3 Slurm's accounting does not answer."
    )]
    Sla(scoring::sla::Args),
    /// Make or check an evidence.toml: attestations, prices, terms, SLA, partnerships, capacity, support
    Evidence(evidence::Args),
    /// Show one criterion: its rule and, for a results folder, its values and evidence
    Explain(explain::ExplainArgs),
    /// List, show or check the criteria
    Criteria(explain::CriteriaArgs),
}

fn main() -> ExitCode {
    if let Some(code) = pages::asked(1, || vec![Cli::command()]) {
        return code;
    }
    let result = match Cli::parse().command {
        Command::Suite(args) => suite::run(&args),
        Command::Stage(args) => suite::stage(&args),
        Command::S3Bench(args) => s3::run(&args),
        Command::MetadataBench(args) => metadata::run(&args),
        Command::Collect(args) => collect::run(&args),
        Command::Read(args) => read::run(&args),
        Command::Import(args) => scoring::import::run(&args),
        Command::Inject(args) => inject::run(&args),
        Command::Audit(args) => audit::run(&args),
        Command::Score(args) => score::run(&args),
        Command::Report(args) => report::run(&args),
        Command::Accept(args) => accept::run(&args),
        Command::Bundle(args) => bundle::run(&args),
        Command::Verify(args) => bundle::verify(&args),
        Command::Diff(args) => diff::run(&args),
        Command::Rank(args) => rank::run(&args),
        Command::Sla(args) => scoring::sla::run(&args),
        Command::Evidence(args) => evidence::run(&args),
        Command::Explain(args) => explain::explain(&args),
        Command::Criteria(args) => explain::criteria(&args),
    };
    match result {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            eprintln!("clustermax: {failure}");
            ExitCode::from(failure.code)
        }
    }
}
