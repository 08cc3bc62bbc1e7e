//! `clustermax-healthcheck`: looks at this node and says what is wrong, why, and what to do.
//!
//! Exit codes: 0 nothing failed; 1 a check failed; 2 bad command line or configuration; 3 what is needed
//! for the answer is missing.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand, ValueEnum};
use healthcheck::catalogue::CATALOGUE;
use healthcheck::config::{Config, DEFAULT_CONFIG, nearest, node_name};
use healthcheck::mode::Mode;
use healthcheck::source::child::Meanwhile;
use healthcheck::verdict::{Status, Verdict};
use healthcheck::{audit, compare, drain, explain, learn, nhc, pass, source, status, table, watch};

/// How long before its deadline a pass that hangs in this process is ended.
const EARLY: std::time::Duration = std::time::Duration::from_millis(200);

#[derive(Parser)]
#[command(
    name = "clustermax-healthcheck",
    version,
    about = "Health of this GPU node: facts, findings, a verdict"
)]
struct Args {
    /// Configuration file.
    #[arg(long, global = true, default_value = DEFAULT_CONFIG)]
    config: PathBuf,
    /// Slurm's name of this node (default: SLURMD_NODENAME, else the short host name).
    #[arg(long, global = true)]
    node: Option<String>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Look at the node now.
    Run {
        /// periodic and the hooks keep state, publish the verdict and drain in enforce; deep only looks, and tries the
        /// GPUs of an idle node; audit only looks, as any user, and needs neither configuration, state nor profile.
        #[arg(long, value_enum, default_value = "deep")]
        mode: ModeArg,
        /// Print JSON instead of a table.
        #[arg(long)]
        json: bool,
        /// With --mode deep: also drain the node for what is found, by the rules of `clustermax-drain`. For active checks,
        /// in a job that has the node to itself.
        #[arg(long)]
        drain: bool,
    },
    /// Stay, follow the kernel log, look at the node every few seconds, drain; ends on SIGTERM.
    Watch,
    /// Print what the sources see, as JSON, without any judgement. Needs no configuration and no root, loads nothing.
    Facts {
        /// JSON is the only form there is.
        #[arg(long)]
        json: bool,
    },
    /// List all checks and their switches.
    List {
        /// Print JSON instead of a table.
        #[arg(long)]
        json: bool,
    },
    /// Say what a check reads, its rule, where the rule comes from and what it does; or what a log's lines mean.
    Explain {
        /// Check id.
        #[arg(required_unless_present = "log")]
        check: Option<String>,
        /// Explain this log instead (`-`: standard input): dmesg, journal, syslog or raw kmsg text of any machine.
        /// Exit code 1: a line in it takes the node out of service.
        #[arg(long, value_name = "FILE", conflicts_with = "check")]
        log: Option<PathBuf>,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Learn this node's profile and print it as configuration.
    Learn {
        /// Say instead what differs from this profile: one of /usr/share/clustermax/profiles, or what another node
        /// taught. Exit code 1: something that it asks for is not so here.
        #[arg(long, value_name = "PROFILE")]
        compare: Option<PathBuf>,
    },
    /// Check the configuration file.
    Validate,
    /// Turn an nhc.conf of LBNL's Node Health Check into configuration, and list what has no counterpart. Exit code 1:
    /// something has none. `--node` says for which node.
    ImportNhc {
        /// The nhc.conf.
        file: PathBuf,
    },
    /// Show what the last passes found, from their files; touches no device. Exit code 1: something failed, 3: nothing
    /// was published yet.
    Status {
        /// List the checks that have nothing to say as well.
        #[arg(long)]
        all: bool,
        /// Print JSON instead of a screen.
        #[arg(long)]
        json: bool,
    },
}

#[derive(Clone, Copy, ValueEnum)]
enum ModeArg {
    Prolog,
    Epilog,
    Periodic,
    Deep,
    Audit,
}

impl From<ModeArg> for Mode {
    fn from(m: ModeArg) -> Mode {
        match m {
            ModeArg::Prolog => Mode::Prolog,
            ModeArg::Epilog => Mode::Epilog,
            ModeArg::Periodic => Mode::Periodic,
            ModeArg::Deep => Mode::Deep,
            ModeArg::Audit => Mode::Audit,
        }
    }
}

fn main() -> ExitCode {
    if let Some(code) = source::child_main() {
        return code;
    }
    if let Some(code) = pages::asked(8, || vec![Args::command()]) {
        return code;
    }
    healthcheck::log::init();
    let args = Args::parse();
    match run(args) {
        Ok(code) => code,
        Err((code, message)) => {
            eprintln!("clustermax-healthcheck: {message}");
            ExitCode::from(code)
        }
    }
}

fn run(args: Args) -> Result<ExitCode, (u8, String)> {
    let node = node_name(args.node.as_deref());
    let config = || Config::load(&args.config, &node).map_err(|e| (2, e.to_string()));
    let audit_config = || audit::config(&args.config, &node).map_err(|e| (2, e.to_string()));
    match args.command {
        Command::Run { mode, json, drain } => {
            let mode = Mode::from(mode);
            let config = if mode == Mode::Audit { audit_config()? } else { config()? };
            if !mode.only_looks() {
                end_in_time(config.deadlines.pass(mode).saturating_sub(EARLY));
            }
            let report = if mode == Mode::Audit {
                let (report, shipped) = pass::audit(&config);
                eprintln!("{}", audit::preface(&config, shipped));
                report
            } else {
                pass::run(&config, mode, None)
            };
            let text = match mode {
                _ if json => {
                    serde_json::to_string_pretty(&report.verdict).map_err(|e| (3, e.to_string()))? + "\n"
                }
                _ if mode.only_looks() => table::verdict(&report.verdict),
                // What a hook prints ends in slurmd's log at every interval: only what drains.
                _ => table::draining(&report.verdict),
            };
            print(&text);
            if drain && mode == Mode::Deep {
                drain_now(&config, &report.verdict);
            }
            Ok(if report.verdict.status == Status::Fail { ExitCode::FAILURE } else { ExitCode::SUCCESS })
        }
        Command::Watch => {
            watch::run(&config()?).map_err(|e| (3, e))?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Facts { json: _ } => {
            let config = audit_config()?;
            let facts = audit::document(&config, source::read(&config, Mode::Audit));
            print(&(serde_json::to_string_pretty(&facts).map_err(|e| (3, e.to_string()))? + "\n"));
            Ok(ExitCode::SUCCESS)
        }
        Command::List { json } => {
            let config = config()?;
            if json {
                let rows: Vec<_> = CATALOGUE.iter().map(describe).collect();
                print(&(serde_json::to_string_pretty(&rows).map_err(|e| (3, e.to_string()))? + "\n"));
            } else {
                print(&table::list(&config));
            }
            Ok(ExitCode::SUCCESS)
        }
        Command::Explain { log: Some(log), json, .. } => explain_log(&log, json),
        Command::Explain { check, json, .. } => explain_check(&check.unwrap_or_default(), json),
        Command::Status { all, json } => show_status(&config()?, all, json),
        Command::ImportNhc { file } => import_nhc(&file, &node),
        Command::Learn { compare: profile } => {
            let config = config()?;
            let facts = source::read(&config, Mode::Deep);
            if let Some(file) = profile {
                return compare_with(&file, &facts);
            }
            print(&learn::render(&config.node, &facts, &pass::timestamp()).map_err(|e| (3, e))?);
            Ok(ExitCode::SUCCESS)
        }
        Command::Validate => {
            let c = config()?;
            print(&format!(
                "{} is valid: node {}, {}, {} checks and {} site commands, profile {}\n",
                c.file.display(),
                c.node,
                c.enforcement.word(),
                CATALOGUE.len(),
                c.command.len(),
                match c.profile.gpu_count {
                    Some(n) => format!("with {n} GPUs and {} InfiniBand ports", c.profile.ib_port.len()),
                    None => "empty: run `clustermax-healthcheck learn` on a good node".into(),
                }
            ));
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Drains for a deep look, which by itself writes nothing. It waits for the brake's second look: nobody else is in a hurry.
fn drain_now(config: &Config, verdict: &Verdict) {
    let Some(reason) = verdict.reason.as_ref().filter(|_| verdict.drain) else { return };
    let mut meanwhile = Meanwhile { fds: Vec::new(), work: &mut || {} };
    let limit = config.deadlines.drain() + std::time::Duration::from_secs(3);
    let answer = drain::drain(config, reason, &[], true, limit, &mut meanwhile);
    eprintln!("{}: {reason}: {} {}", config.node, answer.outcome.word(), answer.detail);
}

/// What is read in this process can hang too (a local disk, a mount in `profile.space`): slurmd waits for nobody
/// longer than the pass may take.
fn end_in_time(limit: std::time::Duration) {
    std::thread::spawn(move || {
        std::thread::sleep(limit);
        tracing::error!(
            "given up after {:.1} s: something read outside the sources hangs (paths.state_dir, paths.run_dir, profile.space)",
            limit.as_secs_f64()
        );
        std::process::exit(3);
    });
}

fn show_status(config: &Config, all: bool, json: bool) -> Result<ExitCode, (u8, String)> {
    let report = status::read(config, pass::unix_time());
    if json {
        print(&(serde_json::to_string_pretty(&report).map_err(|e| (3, e.to_string()))? + "\n"));
    } else {
        print(&report.render(all));
    }
    Ok(match report.status {
        _ if report.is_empty() => ExitCode::from(3),
        Status::Fail => ExitCode::FAILURE,
        _ => ExitCode::SUCCESS,
    })
}

fn import_nhc(file: &Path, node: &str) -> Result<ExitCode, (u8, String)> {
    let text = std::fs::read(file).map_err(|e| (2, format!("{} cannot be read: {e}", file.display())))?;
    let imported = nhc::import(&String::from_utf8_lossy(&text), node);
    print(&imported.render(&file.display().to_string(), node));
    eprintln!(
        "clustermax-healthcheck: {}: {} lines turned ({} notes), {} covered, {} not turned",
        file.display(),
        imported.turned,
        imported.notes.len(),
        imported.covered.len(),
        imported.left.len()
    );
    Ok(if imported.left.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn compare_with(file: &Path, facts: &healthcheck::facts::Facts) -> Result<ExitCode, (u8, String)> {
    let text =
        std::fs::read_to_string(file).map_err(|e| (2, format!("{} cannot be read: {e}", file.display())))?;
    let asked = Config::parse(&text, file).map_err(|e| (2, e.to_string()))?.profile;
    let differences = compare::compare(&learn::profile(facts), &asked);
    print(&compare::render(&differences, &file.display().to_string()));
    let differs = differences.iter().any(|d| d.asked.is_some());
    Ok(if differs { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn describe(c: &healthcheck::catalogue::CheckInfo) -> serde_json::Value {
    serde_json::json!({
        "id": c.id, "tokens": c.tokens, "reads": c.reads, "rule": c.rule, "source": c.source,
        "reads_needed": c.reads_needed, "action": c.action,
        "modes": c.modes.iter().map(|m| m.word()).collect::<Vec<_>>(), "active": c.active(),
    })
}

fn explain_log(log: &Path, json: bool) -> Result<ExitCode, (u8, String)> {
    let cannot = |e: std::io::Error| (2, format!("{} cannot be read: {e}", log.display()));
    let found = if log.as_os_str() == "-" {
        explain::log(std::io::stdin().lock())
    } else {
        let file = std::fs::File::open(log).map_err(cannot)?;
        explain::log(std::io::BufReader::new(file))
    }
    .map_err(cannot)?;
    if json {
        print(&(serde_json::to_string_pretty(&found).map_err(|e| (3, e.to_string()))? + "\n"));
    } else {
        print(&found.render());
    }
    Ok(if found.drains() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn explain_check(check: &str, json: bool) -> Result<ExitCode, (u8, String)> {
    let Some(c) = CATALOGUE.iter().find(|c| c.id == check) else {
        let near = nearest(check, CATALOGUE.iter().map(|c| c.id));
        return Err((
            2,
            format!("no check is called \"{check}\"{near}; `clustermax-healthcheck list` shows them all"),
        ));
    };
    if json {
        print(&(serde_json::to_string_pretty(&describe(c)).map_err(|e| (3, e.to_string()))? + "\n"));
        return Ok(ExitCode::SUCCESS);
    }
    print(&format!(
        "{}\n  reads:   {}\n  rule:    {}\n  source:  {}\n  reads in a row before a fault: {}\n  modes:   {}\n  action:  {}\n  reasons: {}\n",
        c.id,
        c.reads,
        c.rule,
        c.source,
        c.reads_needed,
        match c {
            _ if c.active() => "none here: an active test, a stage of the suite runs it on idle nodes".into(),
            _ if c.guards() => "none here: clustermax-drain runs it before every drain and return".into(),
            _ => c.when().replace(',', ", "),
        },
        c.action,
        c.tokens.iter().map(|t| format!("cmx:{t}")).collect::<Vec<_>>().join(", "),
    ));
    Ok(ExitCode::SUCCESS)
}

/// Prints; a closed pipe (`| head`) is no error.
fn print(text: &str) {
    use std::io::Write;
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
}
