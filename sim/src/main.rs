//! `clustermax-sim`: the command line.
//!
//! Exit codes: 0 done; 1 `status` found a daemon that does not run; 2 bad command line, no cluster, a cluster that is
//! up already or a folder that is not ours; 3 a part of the system is missing or does not answer; 130 interrupted.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand, ValueEnum};
use sim::{Cluster, Error, Options, Result, SlurmRoot, Status, sys};

/// A real Slurm cluster on one machine, with simulated GPUs and fabric.
#[derive(Parser)]
#[command(name = "clustermax-sim", version, max_term_width = 110)]
struct Cli {
    #[command(subcommand)]
    command: Action,
    /// Folder of the cluster; clusters in different folders run side by side [default: CLUSTERMAX_SIM_DIR, else
    /// /var/lib/clustermax-sim/default].
    #[arg(long, global = true)]
    dir: Option<PathBuf>,
}

/// Prints a line; a reader that went away (`status | head`) is no failure of the command.
macro_rules! out {
    ($($text:tt)*) => {{ let _ = writeln!(std::io::stdout(), $($text)*); }};
}

/// Prints a line to standard error, likewise.
macro_rules! err {
    ($($text:tt)*) => {{ let _ = writeln!(std::io::stderr(), $($text)*); }};
}

#[derive(Clone, Copy, ValueEnum)]
enum Enforcement {
    Observe,
    Enforce,
}

#[derive(Subcommand)]
enum Action {
    /// Bring a cluster up and wait until every node is idle.
    Up {
        /// Number of nodes.
        #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=128))]
        nodes: u32,
        /// GPUs in each node.
        #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(0..=16))]
        gpus: u32,
        /// GPU model: a100-sxm, h100-sxm, h200-sxm or b200.
        #[arg(long, default_value = "h100-sxm")]
        model: nvidia_ml_sim::model::GpuModel,
        /// InfiniBand ports in each node.
        #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(0..=16))]
        ib_ports: u32,
        /// Folder of the product's programs [default: that of clustermax-sim].
        #[arg(long)]
        prefix: Option<PathBuf>,
        /// Whether the product may drain nodes.
        #[arg(long, value_enum, default_value = "observe")]
        enforcement: Enforcement,
        /// HealthCheckInterval, seconds.
        #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=65_533))]
        health_interval: u32,
        /// Run clustermax-healthcheck watch on every node, as the daemons watch-NODE.
        #[arg(long, conflicts_with = "plain")]
        watch: bool,
        /// Give slurmd no slurm.conf: it fetches slurmctld's, as in a configless cluster.
        #[arg(long, conflicts_with_all = ["watch", "plain"])]
        configless: bool,
        /// Slurm alone: Prolog and Epilog are /bin/true, no HealthCheckProgram, no plug-in.
        #[arg(long)]
        plain: bool,
        /// Track jobs without cgroups (proctrack/linuxproc) even where the machine has cgroup v1.
        #[arg(long)]
        no_cgroups: bool,
        /// MessageTimeout, seconds.
        #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=100))]
        message_timeout: u32,
        /// Longest time until every node is idle, seconds.
        #[arg(long, default_value_t = 90, value_parser = clap::value_parser!(u32).range(1..=3600))]
        wait: u32,
        /// Folder with a whole system whose Slurm is used, of another release; sim/slurm-root makes one.
        #[arg(long)]
        slurm_root: Option<PathBuf>,
    },
    /// End every process of the cluster and remove its folder, with everything in it.
    Down,
    /// Show the nodes, their faults and the daemons.
    Status {
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Make something go wrong on a node.
    Inject {
        /// The fault, with its argument after a colon.
        #[arg(required_unless_present = "list")]
        fault: Option<String>,
        /// The node, n2 or 2.
        #[arg(long, required_unless_present = "list")]
        node: Option<String>,
        /// GPU index.
        #[arg(long, default_value_t = 0)]
        gpu: u32,
        /// List the faults.
        #[arg(long)]
        list: bool,
    },
    /// Make a node, or all, healthy again; a drained node stays drained.
    Clear {
        /// The node, n2 or 2 [default: all].
        #[arg(long)]
        node: Option<String>,
    },
    /// Kill a daemon: slurmctld, munged, slurmd-NODE or watch-NODE.
    Stop {
        /// The daemon.
        daemon: String,
    },
    /// Start a daemon that was stopped or died.
    Start {
        /// The daemon.
        daemon: String,
    },
    /// Run a command with SLURM_CONF and PATH set for the cluster.
    Exec {
        /// Run as this user.
        #[arg(long)]
        user: Option<String>,
        /// The command and its arguments.
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
}

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(code) => code,
        Err(error) => {
            err!("clustermax-sim: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}

fn run(cli: Cli) -> Result<ExitCode> {
    let dir = cli
        .dir
        .or_else(|| std::env::var_os("CLUSTERMAX_SIM_DIR").filter(|d| !d.is_empty()).map(PathBuf::from));
    let cluster = Cluster::at(&dir.unwrap_or_else(|| PathBuf::from(sim::DEFAULT_DIR)))?;
    match cli.command {
        Action::Up {
            nodes,
            gpus,
            model,
            ib_ports,
            prefix,
            enforcement,
            health_interval,
            watch,
            configless,
            plain,
            no_cgroups,
            message_timeout,
            wait,
            slurm_root,
        } => {
            let options = Options {
                nodes,
                gpus,
                model: model.to_string(),
                ib_ports,
                prefix: prefix_folder(prefix)?,
                enforcement: match enforcement {
                    Enforcement::Observe => "observe".to_owned(),
                    Enforcement::Enforce => "enforce".to_owned(),
                },
                health_interval,
                watch,
                configless,
                plain,
                no_cgroups,
                message_timeout,
                wait,
                slurm_root: slurm_root.map(|r| SlurmRoot::at(&r).map(|r| r.dir().to_owned())).transpose()?,
            };
            sys::catch_signals();
            let state = cluster.up(options, &mut |text| err!("clustermax-sim: {text}"))?;
            let dir = cluster.dir().display();
            out!("{dir}");
            err!(
                "clustermax-sim: {} nodes are idle; try: clustermax-sim --dir {dir} exec -- sinfo; end it with: \
                 clustermax-sim --dir {dir} down",
                state.options.nodes
            );
        }
        Action::Down => {
            // Ending half a cluster helps nobody; it takes seconds at most.
            sys::catch_signals();
            let ended = cluster.down()?;
            out!("{} is down: {ended} processes ended, nothing is left", cluster.dir().display());
        }
        Action::Status { json } => {
            let status = cluster.status()?;
            if json {
                let text = serde_json::to_string_pretty(&status).map_err(|e| Error::System(e.to_string()))?;
                out!("{text}");
            } else {
                print_status(&status);
            }
            if !status.dead().is_empty() {
                return Ok(ExitCode::from(1));
            }
        }
        Action::Inject { fault, node, gpu, list } => {
            let (Some(fault), Some(node), false) = (fault, node, list) else {
                for (name, argument, text) in sim::fault::all() {
                    out!("{:<28} {text}", format!("{name}{argument}"));
                }
                return Ok(ExitCode::SUCCESS);
            };
            let injected = cluster.inject(&fault, &node, gpu)?;
            out!("{fault} on node {node}, GPU {gpu}");
            if let Some(line) = injected.line {
                out!("read back from {line}");
            }
        }
        Action::Clear { node } => {
            out!("healthy again: {}", cluster.clear(node.as_deref())?.join(", "));
        }
        Action::Stop { daemon } => {
            cluster.stop(&daemon)?;
            out!("{daemon} was killed");
        }
        Action::Start { daemon } => {
            cluster.start_daemon(&daemon)?;
            out!("{daemon} runs");
        }
        Action::Exec { user, command } => return Err(cluster.exec(&command, user.as_deref())),
    }
    Ok(ExitCode::SUCCESS)
}

/// The folder of programs, absolute, without symbolic links.
fn prefix_folder(given: Option<PathBuf>) -> Result<PathBuf> {
    let folder =
        match given {
            Some(folder) => folder,
            None => std::env::current_exe().ok().and_then(|p| p.parent().map(ToOwned::to_owned)).ok_or_else(
                || Error::System("the folder of clustermax-sim cannot be found; use --prefix".to_owned()),
            )?,
        };
    let folder = folder.canonicalize().map_err(|e| {
        Error::Usage(format!("the folder of programs {} cannot be used: {e}", folder.display()))
    })?;
    if folder.to_string_lossy().contains(['\'', '\n', '#', ' ']) {
        return Err(Error::Usage(format!(
            "the folder of programs {} cannot be used: blanks, quotes and # are not allowed in it",
            folder.display()
        )));
    }
    Ok(folder)
}

fn print_status(status: &Status) {
    out!(
        "{} in {}: {}, {}, {}",
        status.cluster,
        status.dir.display(),
        status.model,
        if status.cgroups { "cgroup v1" } else { "no cgroups" },
        if status.kernel_log { "kernel log writable" } else { "kernel log not writable" }
    );
    out!("SLURM_CONF={}", status.slurm_conf.display());
    out!("config    ={}", status.config.display());
    if let Some(error) = &status.slurm_error {
        out!("slurmctld does not answer: {error}");
    }
    out!("{:<6} {:<10} {:<6} {:<6} {:<8} {:<28} REASON", "NODE", "STATE", "PCI", "PORT", "SLURMD", "FAULTS");
    for node in &status.nodes {
        let faults: Vec<String> = node.faults.iter().map(|f| format!("{}@g{}", f.fault, f.gpu)).collect();
        out!(
            "{:<6} {:<10} {:<6} {:<6} {:<8} {:<28} {}",
            node.name,
            format!("{}{}", node.state, if node.responding { "" } else { "*" }),
            node.pci_domain,
            node.port,
            match node.pid {
                Some(pid) if node.alive => pid.to_string(),
                _ => "dead".to_owned(),
            },
            if faults.is_empty() { "-".to_owned() } else { faults.join(",") },
            node.reason
        );
    }
    let dead = status.dead();
    if !dead.is_empty() {
        out!("not running: {}", dead.join(", "));
    }
}
