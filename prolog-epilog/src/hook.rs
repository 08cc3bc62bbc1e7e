//! Slurm's Prolog and Epilog: one pass around a job, and the exit code that Slurm acts on.
//!
//! Slurm drains a node whose Prolog or Epilog exits non-zero, whatever we wrote, and requeues the job. So the
//! exit code is non-zero only when the node is to be out of service *for this job's sake* and our reason stands
//! (or is on its way). Everything else, our own troubles included, is 0.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{CommandFactory, Parser};
use healthcheck::config::{Config, DEFAULT_CONFIG, Enforcement, node_name};
use healthcheck::drain::DrainOutcome;
use healthcheck::jobs::{self, JOB_SCHEMA, Job, JobGpu, Left};
use healthcheck::mode::Mode;
use healthcheck::pass::{self, Report};
use healthcheck::state::KnownGpu;
use healthcheck::sys;
use healthcheck::tags;
use healthcheck::verdict::{Finding, Verdict};
use healthcheck::watch;

/// Slurm's variable for the plugin's option `--clustermax-tags`.
const TAGS: &str = "SPANK__SLURM_SPANK_OPTION_clustermax_clustermax_tags";
/// Exit code that tells Slurm to take the job back.
const REFUSE: u8 = 1;
/// How long after its deadline a hook ends whatever it is doing: with the default deadline before 8 s.
const OVERTIME: Duration = Duration::from_millis(400);

#[derive(Parser)]
struct Args {
    /// Configuration file.
    #[arg(long, default_value = DEFAULT_CONFIG)]
    config: PathBuf,
}

/// The command line of the hook, for its manual page.
#[must_use]
pub fn command(mode: Mode) -> clap::Command {
    let (name, about) = match mode {
        Mode::Epilog => ("clustermax-epilog", "Slurm's Epilog: finds the fault that a job left behind"),
        _ => ("clustermax-prolog", "Slurm's Prolog: lets no job start on a node with a fault"),
    };
    let codes = "Slurm runs it as root at every job, without arguments. Exit codes: 0: the job may run here, or this program met \
                 trouble of its own; 1: in `enforce`, the node is out of service for a fault that concerns this job.";
    Args::command().name(name).about(about).after_help(codes)
}

/// What Slurm says about the job, checked: its environment is partly the user's.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JobEnv {
    /// Job id.
    pub job: String,
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// GPU minors the job holds.
    pub gpus: Vec<u32>,
    /// Tags of the user's, none when they are not what the plugin lets pass.
    pub tags: BTreeMap<String, String>,
}

impl JobEnv {
    /// Reads slurmd's variables through `get`; `None` outside a job.
    #[must_use]
    pub fn read(get: impl Fn(&str) -> Option<String>) -> Option<JobEnv> {
        let job = get("SLURM_JOB_ID").filter(|id| jobs::is_job_id(id))?;
        let number = |name: &str| get(name).and_then(|v| v.parse().ok());
        // SLURM_JOB_GPUS holds device numbers; CUDA_VISIBLE_DEVICES may hold UUIDs, which are no list of numbers.
        let gpus = ["SLURM_JOB_GPUS", "CUDA_VISIBLE_DEVICES"]
            .iter()
            .find_map(|name| get(name).and_then(|v| jobs::parse_gpu_list(&v)))
            .unwrap_or_default();
        Some(JobEnv {
            job,
            uid: number("SLURM_JOB_UID").unwrap_or(0),
            gid: number("SLURM_JOB_GID").unwrap_or(0),
            gpus,
            tags: get(TAGS).and_then(|text| tags::parse(&text).ok()).unwrap_or_default(),
        })
    }
}

/// The exit code for Slurm.
///
/// Non-zero only in `enforce`, for a draining finding on the whole node or on the job's GPUs, when the node is
/// drained, was drained already, or its drain waits on disk.
#[must_use]
pub fn exit_code(
    enforcement: Enforcement,
    findings: &[Finding],
    gpus: &[u32],
    outcome: Option<DrainOutcome>,
) -> u8 {
    let refused = enforcement == Enforcement::Enforce
        && outcome.is_some_and(DrainOutcome::is_drained)
        && findings.iter().any(|f| Verdict::concerns(f, gpus));
    if refused { REFUSE } else { 0 }
}

/// `main` of both programs.
#[must_use]
pub fn main(mode: Mode) -> ExitCode {
    if let Some(code) = healthcheck::source::child_main() {
        return code;
    }
    never_drain_by_accident(mode);
    let (config, env) = match prepare() {
        Ok(prepared) => prepared,
        Err(why) => {
            // A bad command line or configuration must not drain a cluster: Slurm would, on any other exit code.
            healthcheck::log::init();
            tracing::error!("{} not run: {why}", mode.word());
            return ExitCode::SUCCESS;
        }
    };
    if mode == Mode::Prolog {
        match watch::fresh(&config) {
            // All is well, and known to be: no device is touched, no program started, no log opened.
            Ok(known) => {
                admit(&config, &env, known.boot_id, &known.gpus);
                return ExitCode::SUCCESS;
            }
            Err(why) => {
                healthcheck::log::init();
                tracing::debug!("own pass: {why}");
            }
        }
    }
    healthcheck::log::init();
    end_in_time(&config, mode);
    ExitCode::from(match mode {
        Mode::Epilog => epilog(&config, &env),
        _ => prolog(&config, &env),
    })
}

/// Command line, configuration and the job; or why there is nothing to do.
fn prepare() -> Result<(Config, JobEnv), String> {
    let args = arguments()?;
    let config = Config::load(&args.config, &node_name(None)).map_err(|e| e.to_string())?;
    let mut env = JobEnv::read(|name| std::env::var(name).ok())
        .ok_or("there is no SLURM_JOB_ID; it is Slurm that runs this program")?;
    if config.profile.gpu.mig == Some(true) {
        // Slurm counts the instances then, not the GPUs (docs/slurm.md): nothing is known, so nothing is claimed.
        env.gpus.clear();
    }
    Ok((config, env))
}

/// The command line. Slurm gives none, or a wrapper of the site the configuration: that needs no parser of command lines,
/// which would cost more than everything else a prolog with a fresh verdict does in this process.
fn arguments() -> Result<Args, String> {
    let mut given = std::env::args_os().skip(1);
    match (given.next(), given.next(), given.next()) {
        (None, ..) => return Ok(Args { config: DEFAULT_CONFIG.into() }),
        (Some(key), Some(path), None) if key == "--config" => return Ok(Args { config: path.into() }),
        _ => {}
    }
    Args::try_parse().map_err(|e| {
        if !e.use_stderr() {
            // Help; a closed pipe is no error.
            let _ = e.print();
            std::process::exit(0);
        }
        e.to_string()
    })
}

/// A defect of ours is no fault of the node: Rust would exit with 101, and Slurm would drain.
fn never_drain_by_accident(mode: Mode) {
    let told = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        // The default hook ignores a standard error that cannot be written.
        told(info);
        healthcheck::log::init();
        tracing::error!("{} given up: a defect of clustermax, see above; please report it", mode.word());
        std::process::exit(0);
    }));
}

/// What is read in this process can hang too (a local disk, a mount in `profile.space`): then the pass ends here,
/// before Slurm says "Prolog hung".
fn end_in_time(config: &Config, mode: Mode) {
    let limit = config.deadlines.pass(mode) + OVERTIME;
    std::thread::spawn(move || {
        std::thread::sleep(limit);
        tracing::error!(
            "{} given up after {:.1} s: something read outside the sources hangs (paths.state_dir, paths.run_dir, profile.space)",
            mode.word(),
            limit.as_secs_f64()
        );
        std::process::exit(0);
    });
}

fn prolog(config: &Config, env: &JobEnv) -> u8 {
    let report = pass::run(config, Mode::Prolog, Some(&env.job));
    let code = finish(config, env, &report);
    // After the pass: what it read in the kernel log happened before this job.
    if code == 0 {
        let known = pass::inventory(config).into_iter();
        let gpu =
            |(pci, k): (String, KnownGpu)| JobGpu { index: k.minor, pci: Some(pci), uuid: Some(k.uuid) };
        let boot_id = report.facts.boot_id;
        admit(config, env, boot_id, &known.map(gpu).collect::<Vec<_>>());
    }
    code
}

/// Writes the job's file.
fn admit(config: &Config, env: &JobEnv, boot_id: String, inventory: &[JobGpu]) {
    if let Err(why) = jobs::save(&config.paths.run_dir, &record(config, env, boot_id, inventory)) {
        healthcheck::log::init();
        tracing::warn!("{why}");
    }
}

fn epilog(config: &Config, env: &JobEnv) -> u8 {
    let report = pass::run(config, Mode::Epilog, Some(&env.job));
    let code = finish(config, env, &report);
    let alone = !report.facts.jobs.iter().any(|j| j.uid == env.uid && j.job != env.job);
    let left = Left::look(&config.paths.procfs, &env.job, env.uid, alone, &report.facts);
    if let Err(why) = jobs::finish(config, &env.job, Some(left), &pass::timestamp()) {
        tracing::warn!("{why}");
    }
    code
}

fn finish(config: &Config, env: &JobEnv, report: &Report) -> u8 {
    let gpus: Vec<u32> = match jobs::load(&config.paths.run_dir, &env.job) {
        // What the prolog recorded counts: an epilog may be given less.
        Some(job) if env.gpus.is_empty() => job.gpus.iter().map(|g| g.index).collect(),
        _ => env.gpus.clone(),
    };
    let outcome = report.drain.as_ref().map(|a| a.outcome);
    exit_code(config.enforcement, &report.verdict.findings, &gpus, outcome)
}

fn record(config: &Config, env: &JobEnv, boot_id: String, inventory: &[JobGpu]) -> Job {
    let now = pass::timestamp();
    Job {
        schema: JOB_SCHEMA.into(),
        job: env.job.clone(),
        uid: env.uid,
        gid: env.gid,
        tags: env.tags.clone(),
        node: config.node.clone(),
        started: now.clone(),
        as_of: now,
        gpus: env
            .gpus
            .iter()
            .map(|&index| {
                let known = inventory.iter().find(|k| k.index == index);
                known.cloned().unwrap_or(JobGpu { index, ..JobGpu::default() })
            })
            .collect(),
        boot_id,
        begun: sys::since_boot(),
        ..Job::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use healthcheck::verdict::{Action, Device, Fault, Scope, Status};

    #[test]
    fn a_hook_loads_no_library_but_the_systems_c_library() {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        assert!(!maps.contains("libgcc_s"), "build.rs links it in: every job pays for it twice");
    }

    fn env(pairs: &[(&str, &str)]) -> Option<JobEnv> {
        let pairs: Vec<(String, String)> = pairs.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
        JobEnv::read(move |name| pairs.iter().find(|(k, _)| k == name).map(|(_, v)| v.clone()))
    }

    #[test]
    fn the_jobs_environment_is_checked() {
        let e = env(&[("SLURM_JOB_ID", "12"), ("SLURM_JOB_GID", "100"), ("SLURM_JOB_GPUS", "0,3")]).unwrap();
        assert_eq!((e.job.as_str(), e.gid, e.gpus.as_slice()), ("12", 100, &[0, 3][..]));
        assert_eq!(env(&[("SLURM_JOB_ID", "../../etc/x")]), None);
        assert_eq!(env(&[]), None);
        let tags = |text: &str| env(&[("SLURM_JOB_ID", "1"), (TAGS, text)]).unwrap().tags;
        assert_eq!(tags("project=llm,run=7").len(), 2);
        // The plugin refuses these before the job is submitted; an environment says what it likes.
        assert!(tags("project=$(reboot)").is_empty() && tags("a=1\nb=2").is_empty());
        // UUIDs are no device numbers: nothing is known, so nothing is claimed.
        let e = env(&[("SLURM_JOB_ID", "1"), ("CUDA_VISIBLE_DEVICES", "GPU-123")]).unwrap();
        assert!(e.gpus.is_empty());
    }

    fn fail(device: Option<u32>) -> Finding {
        Finding {
            check: "gpu.count".into(),
            token: "gpulost".into(),
            status: Status::Fail,
            device: device.map(|i| Device::gpu(i, "")),
            scope: if device.is_some() { Scope::Device } else { Scope::Node },
            action: Action::Reboot,
            drain: true,
            fault: Fault::Hardware,
            evidence: String::new(),
            text: String::new(),
            mend: String::new(),
            synthetic: false,
            observe: false,
            event: None,
        }
    }

    /// The exit-code table of the design, row by row.
    #[test]
    fn exit_codes() {
        use DrainOutcome::*;
        use Enforcement::{Enforce, Observe as Watch};
        let node = [fail(None)];
        let own = [fail(Some(3))];
        let warn = [Finding { status: Status::Warn, drain: false, ..fail(Some(3)) }];
        let unknown = [Finding { status: Status::Unknown, drain: false, ..fail(None) }];
        let program =
            [Finding { status: Status::Warn, drain: false, fault: Fault::Program, ..fail(Some(3)) }];
        let exempt = [Finding { observe: true, ..fail(None) }];
        let rows: &[(Enforcement, &[Finding], Option<DrainOutcome>, u8)] = &[
            (Enforce, &node, Some(Written), 1),
            (Enforce, &node, Some(Already), 1),
            (Enforce, &node, Some(Foreign), 1),
            (Enforce, &node, Some(Spooled), 1),
            (Enforce, &node, Some(Protected), 0),
            (Enforce, &node, Some(Brake), 0),
            (Enforce, &node, Some(Unreadable), 0),
            (Enforce, &node, Some(WrongRelease), 0),
            (Enforce, &node, Some(Failed), 0),
            (Enforce, &node, Some(Observe), 0),
            (Enforce, &node, None, 0),
            (Enforce, &own, Some(Written), 1),
            (Enforce, &warn, None, 0),
            (Enforce, &unknown, None, 0),
            (Enforce, &program, None, 0),
            (Enforce, &exempt, None, 0),
            (Enforce, &[], None, 0),
            (Watch, &node, Some(Observe), 0),
            (Watch, &node, Some(Written), 0),
        ];
        for (enforcement, findings, outcome, want) in rows {
            assert_eq!(
                exit_code(*enforcement, findings, &[3, 4], *outcome),
                *want,
                "{enforcement:?} {findings:?} {outcome:?}"
            );
        }
        // A bad GPU that the job does not hold: drained, but the job is none of its business.
        assert_eq!(exit_code(Enforce, &own, &[0, 1], Some(Written)), 0);
        assert_eq!(exit_code(Enforce, &own, &[], Some(Written)), 0);
    }
}
