//! `clustermax-doctor`: is this node's installation fit for the Slurm that will run it? Exit code 0: nothing fails,
//! 1: something does, 2: bad command line.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use healthcheck::config::{DEFAULT_CONFIG, is_node_name, node_name};
use healthcheck::mode::Mode;
use prolog_epilog::doctor::compare::{self, HostReport};
use prolog_epilog::doctor::{Diagnosis, Options, Status, diagnose};
use prolog_epilog::hook;

/// Prints a line; a reader that went away (`clustermax-doctor | head`) changes nothing of the answer.
macro_rules! out {
    ($($text:tt)*) => {{ let _ = writeln!(std::io::stdout(), $($text)*); }};
}

#[derive(Parser)]
#[command(
    name = "clustermax-doctor",
    version,
    about = "Looks at the installation as Slurm will meet it; loads and changes nothing"
)]
struct Args {
    /// Configuration file.
    #[arg(long, default_value = DEFAULT_CONFIG)]
    config: PathBuf,
    /// Slurm's name of this node (default: SLURMD_NODENAME, then the short host name).
    #[arg(long)]
    node: Option<String>,
    /// The plugin's file (default: the one that plugstack.conf names).
    #[arg(long)]
    plugin: Option<PathBuf>,
    /// slurm.conf (default: slurm.conf of the configuration).
    #[arg(long)]
    slurm_conf: Option<PathBuf>,
    /// Also ask the controller: its release, its running configuration and the nodes' releases.
    #[arg(long)]
    cluster: bool,
    /// Compare the reports in these files (`-`: standard input) with each other: of login nodes, the controller and compute
    /// nodes, each written there with --json. This host is not looked at.
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with_all = ["cluster", "plugin", "slurm_conf"])]
    compare: Vec<PathBuf>,
    /// Print JSON, one line.
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    // The hooks run at every job: what writes pages is not in them.
    let hooks = [Mode::Prolog, Mode::Epilog].map(hook::command);
    if let Some(code) = pages::asked(8, || hooks.into_iter().chain([Args::command()]).collect()) {
        return code;
    }
    let args = Args::parse();
    if let Some(bad) = args.node.as_deref().filter(|n| !is_node_name(n)) {
        eprintln!("clustermax-doctor: --node {bad:?} is no node name");
        return ExitCode::from(2);
    }
    let diagnosis = if args.compare.is_empty() {
        diagnose(&Options {
            config: args.config,
            node: node_name(args.node.as_deref()),
            plugin: args.plugin,
            slurm_conf: args.slurm_conf,
            cluster: args.cluster,
        })
    } else {
        match reports(&args.compare) {
            Ok(reports) => compare::compare(&reports),
            Err(sentence) => {
                eprintln!("clustermax-doctor: {sentence}");
                return ExitCode::from(2);
            }
        }
    };
    if args.json {
        match serde_json::to_string(&diagnosis) {
            Ok(text) => out!("{text}"),
            Err(e) => eprintln!("clustermax-doctor: the answer cannot be printed: {e}"),
        }
    } else {
        print(&diagnosis);
    }
    ExitCode::from(u8::from(diagnosis.status == Status::Fail))
}

/// The reports of all files; `Err` is a sentence that names the file.
fn reports(files: &[PathBuf]) -> Result<Vec<HostReport>, String> {
    let mut all = Vec::new();
    for file in files {
        let cannot = |e: std::io::Error| format!("{} cannot be read: {e}", file.display());
        let text = if file.as_os_str() == "-" {
            std::io::read_to_string(std::io::stdin())
        } else {
            std::fs::read_to_string(file)
        };
        all.extend(compare::reports(&file.display().to_string(), &text.map_err(cannot)?)?);
    }
    Ok(all)
}

fn print(diagnosis: &Diagnosis) {
    for item in &diagnosis.checks {
        out!("{} {}: {}", item.status, item.check, item.text);
        if !item.why.is_empty() {
            out!("     why:  {}", item.why);
        }
        for (at, line) in item.mend.lines().enumerate() {
            out!("     {} {line}", if at == 0 { "mend:" } else { "     " });
        }
    }
    let count = |status| diagnosis.checks.iter().filter(|i| i.status == status).count();
    out!("{} fail, {} warn, {} pass", count(Status::Fail), count(Status::Warn), count(Status::Pass));
}
