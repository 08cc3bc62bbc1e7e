//! `clustermax suite`: what `clustermax-suite.sh` runs inside its job, and what one may ask before and after.
//!
//! All stages are steps of the suite's one allocation. A stage that fails, runs into its deadline or lacks something ends
//! in a state of its own, and the next one goes on; a run that was killed goes on where it stopped.

pub mod bench;
pub mod burnin;
pub mod collectives;
pub mod inference;
pub mod launch;
pub mod lifecycle;
pub mod lock;
pub mod measure;
pub mod nccl;
pub mod network;
pub mod pairs;
pub mod plan;
pub mod programs;
pub mod progress;
pub mod reboot;
pub mod slurm;
pub mod stages;
pub mod storage;
pub mod stuck;
pub mod success;
pub mod train;

use std::path::{Path, PathBuf};
use std::process::Command;

use clap::ValueEnum as _;

use crate::report::guards::Guards;
use crate::run::{Folder, write_atomic};
use crate::{Failure, collect, record, report, score};
use measure::measure;
use plan::{Profile, Stage};
use progress::Progress;

/// `clustermax suite`
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: SuiteCommand,
}

#[derive(Debug, Clone, clap::Subcommand)]
enum SuiteCommand {
    /// Measure the nodes of this job and score them (inside a Slurm job; clustermax-suite.sh does this)
    #[command(
        after_help = "Environment: CLUSTERMAX_NCCL_TESTS (folder of nccl-tests), CLUSTERMAX_NCCL_IMAGE (a container image for \
                          them), CLUSTERMAX_PYTHON, and all NCCL_* of the job. \
                          Exit code: 0 every stage ran or named what it lacks; 1 a stage failed or ran into its deadline; 2 bad \
                          options or results folder; 3 a part of ClusterMAX or Slurm is missing."
    )]
    Run(Box<RunArgs>),
    /// What would run, for how long, and what counts as success
    Plan(PlanArgs),
    /// How far a run has come, what is missing and why
    #[command(after_help = "Exit code: 0 complete, 1 not, 2 no results folder.")]
    Status(StatusArgs),
    /// Submit the rest of a run, to the same nodes, with the same container, modules or Python, and this shell's environment
    Resume(ResumeArgs),
    /// Read the raw output of every stage again
    Collect(CollectArgs),
    /// Reboot one idle node by Slurm and time it until a command has run on it; a dry run without --confirm
    #[command(
        after_help = "Exit code: 0 usable again (or dry run), 1 not in time, 2 busy or not confirmed, 3 refused or no answer."
    )]
    Reboot(reboot::Args),
}

/// `clustermax suite run`
#[derive(Debug, Clone, clap::Args)]
pub struct RunArgs {
    /// How long and how thoroughly to measure
    #[arg(long, value_enum, default_value = "demo")]
    pub profile: Profile,
    /// Results folder, new or empty, seen by all nodes [default: clustermax-results/RUN in the folder of submission]
    #[arg(long, value_name = "DIR", conflicts_with = "resume")]
    pub results: Option<PathBuf>,
    /// Continue the run in DIR: only stages that are not done run again
    #[arg(long, value_name = "DIR")]
    pub resume: Option<PathBuf>,
    /// Only these stages, comma-separated
    #[arg(long, value_delimiter = ',', value_name = "A,B")]
    pub stages: Vec<String>,
    /// Longest time of any one stage in seconds [default: by stage and profile]
    #[arg(long, value_name = "SEC", value_parser = clap::value_parser!(u32).range(1..=99999))]
    pub deadline: Option<u32>,
    /// Judge the run by this contract at its end: acceptance.txt, acceptance.json
    #[arg(long, value_name = "FILE")]
    pub contract: Option<PathBuf>,
    /// Python with torch [default: CLUSTERMAX_PYTHON, /usr/bin/python3, python3 in PATH, the first that has torch]
    #[arg(long, value_name = "FILE")]
    pub python: Option<PathBuf>,
    /// How the payloads are started.
    #[command(flatten)]
    pub launch: launch::Launch,
    /// Divide every size and time by this, to try a profile; on clusters of clustermax-sim only
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub shrink: Option<u32>,
    /// Where ClusterMAX is installed [default: CLUSTERMAX_PREFIX, where this program lies, /usr, /usr/local]
    #[arg(long, value_name = "DIR")]
    pub prefix: Option<PathBuf>,
    /// The node programs' configuration [default: CLUSTERMAX_CONFIG, clustermax.toml beside SLURM_CONF,
    /// /etc/clustermax/clustermax.toml]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

impl RunArgs {
    /// The options that the rest of this run needs again, from wherever it is resumed. `from` is the folder that it was submitted
    /// from. Not among them: which stages were asked for, since all that the profile lacks is resumed.
    fn again(&self, from: &Path) -> Vec<String> {
        let whole = |path: &PathBuf| from.join(path).display().to_string();
        let launch = &self.launch;
        // An image in the folder of submission is a path; any other is a name or an address.
        let image = launch.container.as_ref().map(|image| {
            if from.join(image).exists() { from.join(image).display().to_string() } else { image.clone() }
        });
        let modules = Some(launch.modules.join(",")).filter(|modules| !modules.is_empty());
        let options = [
            ("--deadline", self.deadline.map(|seconds| seconds.to_string())),
            ("--python", self.python.as_ref().map(whole)),
            ("--container", image),
            ("--container-mounts", launch.container_mounts.clone()),
            ("--module", modules),
            ("--venv", launch.venv.as_ref().map(whole)),
            ("--prefix", self.prefix.as_ref().map(whole)),
            ("--config", self.config.as_ref().map(whole)),
        ];
        options.into_iter().filter_map(|(name, value)| Some([name.to_owned(), value?])).flatten().collect()
    }
}

/// `clustermax suite plan`
#[derive(Debug, Clone, clap::Args)]
pub struct PlanArgs {
    /// How long and how thoroughly to measure
    #[arg(long, value_enum, default_value = "demo")]
    profile: Profile,
    /// Only these stages, comma-separated
    #[arg(long, value_delimiter = ',', value_name = "A,B")]
    stages: Vec<String>,
    /// For a program
    #[arg(long)]
    json: bool,
}

/// `clustermax suite status`
#[derive(Debug, Clone, clap::Args)]
pub struct StatusArgs {
    /// Results folder
    dir: PathBuf,
    /// For a program
    #[arg(long)]
    json: bool,
}

/// `clustermax suite resume`
#[derive(Debug, Clone, clap::Args)]
pub struct ResumeArgs {
    /// Results folder
    dir: PathBuf,
    /// Only print the sbatch command
    #[arg(long)]
    dry_run: bool,
    /// Further options of sbatch, after `--`
    #[arg(last = true)]
    sbatch: Vec<String>,
}

/// `clustermax suite collect`
#[derive(Debug, Clone, clap::Args)]
pub struct CollectArgs {
    /// Results folder
    dir: PathBuf,
}

/// `clustermax stage`
#[derive(Debug, Clone, clap::Args)]
pub struct StageArgs {
    /// The stage
    stage: String,
    #[command(flatten)]
    run: RunArgs,
}

/// Runs `clustermax suite`.
///
/// # Errors
/// Bad options or folders (2), parts that are missing (3).
pub fn run(args: &Args) -> Result<u8, Failure> {
    match &args.command {
        SuiteCommand::Run(args) => measure(args),
        SuiteCommand::Plan(args) => {
            let methodology = score::methodology(None)?;
            let stages = selected(args.profile, &args.stages)?;
            let text = if args.json {
                format!("{:#}\n", plan::to_json(args.profile, &stages, &methodology))
            } else {
                plan::to_text(args.profile, &stages, &methodology)
            };
            report::print(&text)?;
            Ok(0)
        }
        SuiteCommand::Status(args) => progress::status(&args.dir, args.json),
        SuiteCommand::Resume(args) => resume(args),
        SuiteCommand::Collect(args) => collect_all(&args.dir),
        SuiteCommand::Reboot(args) => reboot::run(args),
    }
}

/// Runs `clustermax stage`: one stage of the suite, in this job.
///
/// # Errors
/// As [`run`].
pub fn stage(args: &StageArgs) -> Result<u8, Failure> {
    let mut run = args.run.clone();
    if !run.stages.is_empty() {
        return Err(Failure::input("`clustermax stage` runs one stage; leave out --stages"));
    }
    let stage = plan::stage(&args.stage).ok_or_else(|| unknown(&args.stage, plan::STAGES.iter()))?;
    // A stage that is not part of the profile is asked for all the same: with the shortest profile that has it.
    if stage.limit(run.profile) == 0 {
        let shortest = Profile::value_variants().iter().copied().find(|profile| stage.limit(*profile) > 0);
        run.profile = shortest.unwrap_or(run.profile);
    }
    run.stages = vec![args.stage.clone()];
    measure(&run)
}

fn unknown<'a>(name: &str, known: impl Iterator<Item = &'a Stage> + Clone) -> Failure {
    let near = known.clone().map(|stage| stage.name).min_by_key(|one| strsim::levenshtein(one, name));
    let names: Vec<&str> = known.map(|stage| stage.name).collect();
    Failure::input(format!(
        "there is no stage {name} (did you mean {}?); stages are {}",
        near.unwrap_or_default(),
        names.join(" ")
    ))
}

/// The profile's stages, or those of `--stages`, in the suite's order.
fn selected(profile: Profile, names: &[String]) -> Result<Vec<&'static Stage>, Failure> {
    let all: Vec<&'static Stage> = profile.stages().collect();
    if let Some(name) = names.iter().find(|name| !all.iter().any(|stage| stage.name == **name)) {
        return Err(unknown(name, all.iter().copied()));
    }
    Ok(all
        .into_iter()
        .filter(|stage| names.is_empty() || names.iter().any(|name| name == stage.name))
        .collect())
}

fn resume(args: &ResumeArgs) -> Result<u8, Failure> {
    let folder = Folder::open(&args.dir)?;
    let dir = args.dir.canonicalize().unwrap_or_else(|_| args.dir.clone());
    let progress = Progress::read(&dir);
    // Also where a stage's own script began it.
    let beside = |script: PathBuf| script.with_file_name("clustermax-suite.sh");
    let script = progress.as_ref().and_then(|progress| progress.script.clone()).map(beside);
    let script = script.filter(|path| path.is_file()).or_else(crate::run::suite_script).ok_or_else(|| {
        Failure::missing(format!(
            "clustermax-suite.sh cannot be found; submit it yourself: sbatch -w {} clustermax-suite.sh --profile {} --resume {}",
            folder.run.nodes.join(","),
            folder.run.profile,
            dir.display()
        ))
    })?;
    let mut sbatch = Command::new("sbatch");
    sbatch
        .arg(format!("--nodes={}", folder.run.nodes.len()))
        .arg(format!("--nodelist={}", folder.run.nodes.join(",")));
    if let Some(progress) = &progress {
        let options = [("partition", &progress.partition), ("gres", &progress.gres)];
        for (option, value) in options {
            if let Some(value) = value {
                sbatch.arg(format!("--{option}={value}"));
            }
        }
    }
    let profile = Profile::from_str(&folder.run.profile, false).map_err(|_| {
        Failure::input(format!(
            "{} holds a run of profile {:?}, which this release lacks",
            dir.display(),
            folder.run.profile
        ))
    })?;
    sbatch.arg(format!("--time={}", plan::longest(profile, profile.stages()).div_ceil(60) + 5));
    sbatch.args(&args.sbatch).arg(&script).args(["--profile", profile.word()]).arg("--resume").arg(&dir);
    if let Some(by) = folder.run.shrink {
        sbatch.arg(format!("--shrink={by}"));
    }
    sbatch.args(progress.iter().flat_map(|progress| &progress.options));
    let shown: Vec<String> = std::iter::once(sbatch.get_program())
        .chain(sbatch.get_args())
        .map(|word| shell_word(&word.to_string_lossy()))
        .collect();
    report::print(&format!("{}\n", shown.join(" ")))?;
    if args.dry_run {
        return Ok(0);
    }
    let job = progress.as_ref().map(|progress| progress.job.as_str());
    can_resume(&dir, job.and_then(|job| Some((job, slurm::job_state(job)?))))?;
    let status = sbatch.status().map_err(|error| {
        Failure::missing(format!("sbatch cannot be started: {error}; resume on a login node"))
    })?;
    if status.success() {
        Ok(0)
    } else {
        Err(Failure::missing("sbatch refused the job; its own words are above"))
    }
}

/// A word as a shell reads it, in quotes where it needs them: what is printed is there to be pasted.
fn shell_word(word: &str) -> String {
    let plain = |letter: char| letter.is_alphanumeric() || "-_./=,:+@%".contains(letter);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// A job that could write nothing, or one beside the job that is at work, is refused before it is submitted.
fn can_resume(dir: &Path, job: Option<(&str, String)>) -> Result<(), Failure> {
    if let Some((job, state)) = job.filter(|(_, state)| state != "COMPLETING") {
        let job = report::plain(job);
        return Err(Failure::input(format!(
            "job {job} of this run is {state}; wait until it has ended, or end it with `scancel {job}` first"
        )));
    }
    rustix::fs::access(dir, rustix::fs::Access::WRITE_OK).map_err(|error| {
        Failure::input(format!(
            "cannot write {}: {error}; resume as the user who began the run, or make it writable",
            dir.display()
        ))
    })
}

fn collect_all(dir: &Path) -> Result<u8, Failure> {
    let folder = Folder::open(dir)?;
    let (mut text, mut left_out) = (String::new(), false);
    for stage in collect::STAGES {
        if collect::marker(&folder, stage)?.is_some() {
            text.push_str(&format!("{}\n", collect::stage(&collect::Args::of(stage, dir))?));
        } else if folder.stage(stage).exists() {
            // How the stage ended is lost: a failed one must not be taken for one that ran to its end.
            left_out = true;
            text.push_str(&format!(
                "{stage}: {} is no manifest, so the stage was not read; `clustermax suite resume {1}` measures it again, \
                 `clustermax collect {stage} {1}` reads its raw output as if it had ended\n",
                folder.stage(stage).display(),
                shell_word(&dir.to_string_lossy())
            ));
        }
    }
    if text.is_empty() {
        return Err(Failure::input(format!(
            "{}: no stage has ended yet; `clustermax suite status` says more",
            dir.display()
        )));
    }
    for line in guards(dir).lines() {
        text.push_str(&format!("{}\n", report::plain(&line)));
    }
    report::print(&text)?;
    Ok(u8::from(left_out))
}

/// What the guards of a run said, as its records have it; nothing where there are none yet.
fn guards(dir: &Path) -> Guards {
    let records = record::Reader::open(&dir.join("records.jsonl"), None).map(|reader| {
        reader.flatten().map(|(_, record)| record).filter(|record| record.metric == "guard").collect()
    });
    let records: Vec<_> = records.unwrap_or_default();
    Guards::of_records(&records)
}

/// Writes a document beside others so that a reader sees the old one or the new one.
fn write_document(path: &Path, value: &impl serde::Serialize) {
    // Progress is a service: a full disk ends the run by its measurements, not by this.
    if let Ok(mut text) = serde_json::to_string_pretty(value) {
        text.push('\n');
        let _ = write_atomic(path, text.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_with_a_folder_of_any_name_can_be_pasted() {
        for (word, said) in [
            ("--nodelist=n1,n2", "--nodelist=n1,n2"),
            ("/a b'c\"d", r#"'/a b'\''c"d'"#),
            ("n[1-4]", "'n[1-4]'"),
            ("", "''"),
        ] {
            assert_eq!(shell_word(word), said);
        }
    }

    #[test]
    fn a_run_that_is_at_work_or_cannot_be_written_is_not_submitted_again() {
        let folder = tempfile::tempdir().unwrap();
        let refused = |dir: &Path, state: &str| {
            can_resume(dir, Some(("7", state.to_owned())))
                .err()
                .map(|error| error.message)
                .unwrap_or_default()
        };
        for state in ["RUNNING", "PENDING", "SUSPENDED"] {
            let said = refused(folder.path(), state);
            assert!(said.contains(&format!("job 7 of this run is {state}; wait")), "{said}");
        }
        assert_eq!(refused(folder.path(), "COMPLETING"), "");
        assert!(can_resume(folder.path(), None).is_ok());
        // Nobody may write there, root neither.
        let said = refused(Path::new("/proc/self/fdinfo/none"), "COMPLETING");
        assert!(said.starts_with("cannot write /proc/self/fdinfo/none: "), "{said}");
    }

    #[test]
    fn a_resumed_run_measures_with_the_same_container_modules_or_python() {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            run: RunArgs,
        }
        let from = tempfile::tempdir().unwrap();
        std::fs::write(from.path().join("torch.sqsh"), "").unwrap();
        let again = |words: &str| {
            let words = std::iter::once("x").chain(words.split_whitespace());
            let line = <Line as clap::Parser>::try_parse_from(words).unwrap();
            line.run.again(from.path()).join(" ")
        };
        let here = from.path().display();
        for (given, expected) in [
            ("--profile smoke --stages gemm --results r", String::new()),
            (
                "--container nvcr.io#nvidia/pytorch:25.09-py3 --container-mounts /a:/b",
                "--container nvcr.io#nvidia/pytorch:25.09-py3 --container-mounts /a:/b".to_owned(),
            ),
            ("--container torch.sqsh", format!("--container {here}/torch.sqsh")),
            ("--module cuda/12,nccl --deadline 30", "--deadline 30 --module cuda/12,nccl".to_owned()),
            (
                "--venv env --prefix /p --config c.toml",
                format!("--venv {here}/env --prefix /p --config {here}/c.toml"),
            ),
        ] {
            assert_eq!(again(given), expected);
        }
    }

    #[test]
    fn stages_are_chosen_by_name_in_the_suites_order() {
        let names = |profile, wanted: &[&str]| {
            let wanted: Vec<String> = wanted.iter().map(|&name| name.to_owned()).collect();
            selected(profile, &wanted).map(|stages| stages.iter().map(|stage| stage.name).collect::<Vec<_>>())
        };
        assert_eq!(names(Profile::Demo, &["storage", "gemm"]).unwrap(), ["gemm", "storage"]);
        assert!(!names(Profile::Demo, &[]).unwrap().contains(&"burnin"));
        let refused = names(Profile::Demo, &["gem"]).unwrap_err().message;
        assert!(refused.contains("did you mean gemm?"), "{refused}");
        assert!(names(Profile::Demo, &["burnin"]).is_err(), "not part of demo");
    }
}
