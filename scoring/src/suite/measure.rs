//! The suite inside its job: `clustermax suite run`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::ValueEnum as _;

use super::bench::{Bench, Device, Stop, Torch};
use super::lock::Lock;
use super::plan::{self, Profile, Stage, length};
use super::progress::Progress;
use super::slurm::Job;
use super::{RunArgs, collectives, launch, lifecycle, selected, slurm, stuck, success};
use crate::collect::{self, StageState};
use crate::report::guards::where_text;
use crate::run::Folder;
use crate::{Failure, accept, record, report, score};

fn say(text: impl std::fmt::Display) {
    let now = jiff::Zoned::now();
    println!("clustermax {}  {text}", now.strftime("%H:%M:%S"));
}

fn epoch() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64())
}

/// The suite inside its job.
///
/// # Errors
/// Bad options or folders (2), parts that are missing (3).
pub fn measure(args: &RunArgs) -> Result<u8, Failure> {
    // What the batch script noted before it looked for this program.
    let begin = std::env::var("CMX_BEGIN").ok().and_then(|text| text.parse().ok()).unwrap_or_else(epoch);
    let stages = selected(args.profile, &args.stages)?;
    let job = Job::current()?;
    // Before hours of measuring, not after them.
    let contract = args.contract.as_deref().map(|path| job.submitted_from.join(path));
    if let Some(contract) = &contract {
        accept::Contract::read(contract, &score::methodology(None)?)?;
    } else if args.profile == Profile::Acceptance && args.resume.is_none() {
        return Err(Failure::input("the profile acceptance judges by a contract; give --contract FILE"));
    }
    let parts = parts(args.prefix.as_deref(), &job)?;
    let clustermax = std::env::current_exe()
        .map_err(|error| Failure::missing(format!("this program's own path cannot be told: {error}")))?;
    let terminated = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
        signal_hook::flag::register(signal, Arc::clone(&terminated))
            .map_err(|error| Failure::missing(format!("signal {signal} cannot be caught: {error}")))?;
    }
    if let Some(config) = &args.config {
        check_readable(config)?;
    }
    let shrink = args.shrink.unwrap_or(1);
    if shrink > 1 && !crate::audit::simulated(args.config.as_deref()) {
        return Err(Failure::input(
            "--shrink works on a cluster of clustermax-sim only; choose a shorter --profile",
        ));
    }
    let scratch = tempfile::tempdir()
        .map_err(|error| Failure::missing(format!("no temporary folder can be made: {error}; set TMPDIR")))?;
    let mut launch = args.launch.clone();
    launch.check(&[scratch.path(), &parts], &job.id)?;
    let python = launch.python(args.python.as_deref());
    let python = python.unwrap_or_else(|| self::python(None));
    let mut bench = Bench {
        nodes: job.nodes.clone(),
        profile: args.profile,
        shrink,
        launch,
        first_step: String::new(),
        first_container: String::new(),
        parts,
        clustermax,
        python,
        torch: Torch { missing: None, device: Device::Cpu, gpus: 0 },
        config: args
            .config
            .as_deref()
            .map(|config| std::path::absolute(config).unwrap_or_else(|_| config.to_owned())),
        // Until the results folder is known.
        results: scratch.path().to_owned(),
        begin,
        terminated,
        stage: stages[0],
        deadline: Instant::now() + PROBE,
        job,
    };
    let asked = args.python.is_some() || !args.launch.modules.is_empty() || args.launch.venv.is_some();
    bench.torch = look_for_torch(&mut bench, scratch.path(), asked)?;

    let (begun, results) = begin_run(args, &bench.job, &bench.torch)?;
    if bench.launch.container.is_some() {
        launch::mountable(&[&results])?;
    }
    let _lock = Lock::take(&results, &bench.job.id)?;
    bench.results = results.clone();
    if let Some(contract) = &contract {
        accept::keep(contract, &results)?;
    }
    say(format!(
        "run {} on cluster {}: nodes {} ({}), {}, results in {}",
        begun.run,
        bench.job.cluster,
        where_text(&bench.nodes),
        bench.nodes.len(),
        if bench.torch.device == Device::Cuda { "cuda" } else { "cpu" },
        results.display()
    ));
    if bench.job.gpus_on_node.is_none() && node_has_gpus(&bench.nodes[0]) {
        say("these nodes have GPUs and this job was given none: submit it with --gres=gpu:N to measure them");
    }
    if let Some(missing) = &bench.torch.missing {
        say(format!("no torch: {missing}"));
        if let Some(offers) = bench.launch.is_plain().then(launch::offers).flatten() {
            say(format!("torch may be had by {offers}"));
        }
    }
    let probe_file = scratch.path().join("probe.json");
    if probe_file.is_file() {
        let folder = results.join("raw/inventory");
        fs::create_dir_all(&folder)
            .and_then(|()| fs::copy(&probe_file, folder.join("probe.json")))
            .map_err(|error| Failure::input(format!("cannot write below {}: {error}", folder.display())))?;
    }

    let alone = stages.len() == 1 && args.resume.is_none() && args.profile != Profile::Acceptance;
    let mut failed = false;
    let mut todo = Vec::new();
    for stage in stages {
        if begun.done.iter().any(|done| done == stage.name) {
            say(format!("{} is done, not run again", stage.name));
            // Its raw output is read again: that mends a records.jsonl that was cut short.
            if let Err(failure) = collect::stage(&collect::Args::of(stage.name, &results)) {
                say(failure);
                failed = true;
            }
        } else {
            todo.push(stage);
        }
    }
    let limit = |stage: &Stage| args.deadline.unwrap_or_else(|| stage.limit(args.profile));
    let longest: u32 = todo.iter().map(|stage| limit(stage)).sum();
    if let Some(left) =
        bench.job.end.map(|end| end as f64 - epoch()).filter(|left| *left < f64::from(longest))
    {
        say(format!(
            "the job has {} left and its stages may take {}: what does not fit is left for `clustermax suite resume {}`, \
             or submit with --time={}",
            length(left.max(0.0) as u32),
            length(longest),
            results.display(),
            longest.div_ceil(60) + 5
        ));
    }

    let again = args.again(&bench.job.submitted_from);
    let mut progress =
        Progress::new(&bench, &begun.run, again, todo.iter().map(|stage| (stage.name, limit(stage))));
    let count = todo.len();
    for (number, stage) in todo.into_iter().enumerate() {
        bench.stage = stage;
        let limit = limit(stage);
        if bench.terminated.load(Ordering::Relaxed) {
            let reason = "the job was told to end (its time was up, or it was cancelled or preempted) before the stage could start".to_owned();
            let args = collect::Args {
                state: Some(StageState::Deadline),
                reason: Some(reason),
                ..bench_args(&bench)
            };
            let _ = collect::stage(&args);
            failed = true;
            continue;
        }
        lost_nodes(&mut bench);
        say(format!(
            "[{}/{count}] {}: at most {}, all that is left at most {}",
            number + 1,
            stage.name,
            length(limit),
            length(progress.left())
        ));
        for line in plan::criteria_lines(stage) {
            say(line);
        }
        progress.start(stage.name);
        let line = one_stage(&mut bench, limit, &mut failed)?;
        progress.end(stage.name);
        say(format!("[{}/{count}] {}: {line}", number + 1, stage.name));
        let records = records_of(&results, stage.name);
        for line in success::lines(stage, &records) {
            say(line);
        }
        // At once: the run goes on, and whoever reads along may end it.
        for sentence in collect::guards::sentences(&records) {
            say(format!("may mislead: {sentence}"));
        }
    }
    collectives::leave_containers(&bench);
    for (node, state) in slurm::unwell(&bench.job.nodes) {
        say(format!("node {node} is {state}"));
    }

    say("scoring");
    let args = score::Args { dir: results, evidence: None, json: false, out: None, data: None };
    let written = score::write(&args)?;
    // Of one stage its figures are of interest, not that everything else is unknown.
    if alone {
        report::print(&report::text::figures(&written.evaluation))?;
        let dir = super::shell_word(&args.dir.to_string_lossy());
        say(format!("`clustermax score {dir}` rates what was seen"));
    } else {
        report::print(&written.text)?;
    }
    if args.dir.join(accept::FILE).is_file() {
        say("acceptance");
        let args = accept::Args { dir: args.dir, contract: None, json: false, data: None };
        failed |= accept::run(&args)? != 0;
    }
    say(format!("{:.0} s in all", epoch() - begin));
    Ok(u8::from(failed))
}

fn records_of(results: &Path, stage: &str) -> Vec<record::Record> {
    let Ok(reader) = record::Reader::open(&results.join("records.jsonl"), None) else { return Vec::new() };
    reader.flatten().map(|(_, record)| record).filter(|record| record.stage == stage).collect()
}

fn check_readable(path: &Path) -> Result<(), Failure> {
    fs::File::open(path).map(drop).map_err(|error| {
        Failure::input(format!(
            "cannot read {}: {error}; give --config a file that users may read",
            path.display()
        ))
    })
}

fn bench_args(bench: &Bench) -> collect::Args {
    collect::Args { job: Some(bench.job.id.clone()), ..collect::Args::of(bench.stage.name, &bench.results) }
}

/// Runs one stage and makes its records; how it went, as half a sentence.
fn one_stage(bench: &mut Bench, limit: u32, failed: &mut bool) -> Result<String, Failure> {
    let raw = bench.raw();
    // What an earlier attempt left must not be taken for this one's; the interpreter's probe is of this job, faults are
    // injected by another program, and a burn-in goes on where an earlier attempt stopped.
    let keeps = matches!(bench.stage.name, "faults" | "burnin");
    let cleared = if keeps { fs::create_dir_all(&raw) } else { empty(&raw) };
    cleared.map_err(|error| {
        Failure::input(format!(
            "cannot make {}: {error}; give --results a folder you may write to",
            raw.display()
        ))
    })?;
    let (started, before) = (crate::audit::now(), Instant::now());
    bench.deadline = before + Duration::from_secs(u64::from(limit));
    let ended = (bench.stage.body)(bench);
    let seconds = before.elapsed().as_secs_f64();
    let killed = matches!(ended, Err(Stop::Failed(_, None))).then(|| stuck::killed(bench)).flatten();
    if !raw.join("stuck.txt").exists() {
        let _ = fs::remove_dir_all(raw.join(stuck::FOLDER));
    }
    let (state, code, reason) = match ended {
        Ok(()) => (StageState::Done, Some(0), None),
        Err(Stop::Unavailable(why)) => (StageState::Unavailable, Some(3), Some(why)),
        Err(Stop::Failed(code, why)) => {
            let why = why.or(killed);
            let why = why.unwrap_or_else(|| format!("exit code {code}: {}", last_words(&bench.log())));
            (StageState::Failed, Some(code), Some(why))
        }
        Err(Stop::Deadline(seen)) => {
            let why = format!("the stage was stopped at its deadline of {limit} s");
            (StageState::Deadline, None, Some(seen.map_or(why.clone(), |seen| format!("{why}; {seen}"))))
        }
        Err(Stop::Terminated) => (
            StageState::Deadline,
            None,
            Some("the job was told to end: its time was up, or it was cancelled or preempted".to_owned()),
        ),
    };
    *failed |= matches!(state, StageState::Failed | StageState::Deadline);
    let args = collect::Args {
        state: Some(state),
        exit_code: code,
        started: Some(started),
        seconds: Some((seconds * 1e3).round() / 1e3),
        reason: reason.clone(),
        ..bench_args(bench)
    };
    let collected = collect::stage(&args);
    let recorded = collected.is_ok();
    let summary = collected.unwrap_or_else(|failure| {
        *failed = true;
        format!(": {failure}")
    });
    let word = state.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
    // Whatever it did, a resumed run has to do it again.
    let word = if recorded { word } else { format!("{word}, but not recorded,") };
    Ok(format!(
        "{word} in {seconds:.1} s; {}{}",
        summary.split_once(": ").map_or(summary.as_str(), |(_, counts)| counts),
        reason.map(|reason| format!(" ({reason})")).unwrap_or_default()
    ))
}

fn empty(raw: &Path) -> std::io::Result<()> {
    fs::create_dir_all(raw)?;
    for entry in fs::read_dir(raw)? {
        let entry = entry?;
        if entry.file_name() == "probe.json" {
            continue;
        }
        if entry.file_type()?.is_dir() {
            fs::remove_dir_all(entry.path())?;
        } else {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Last line that a program of the stage wrote; Slurm's own lines (and our plug-in's) only when there is no other.
pub(super) fn last_words(log: &Path) -> String {
    let text = fs::read(log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    let lines = || text.lines().rev().filter(|line| !line.trim().is_empty());
    let of_others =
        |line: &&str| ["srun: ", "slurmstepd", "clustermax: "].iter().any(|tag| line.starts_with(tag));
    let line = lines().find(|line| !of_others(line)).or_else(|| lines().next()).unwrap_or("it wrote nothing");
    line.chars().take(300).collect()
}

/// With `--no-kill` a node that fails leaves the job: the stages that follow run on the rest.
fn lost_nodes(bench: &mut Bench) {
    let Some(left) = bench.job.nodes_left() else { return };
    let lost: Vec<String> = bench.nodes.iter().filter(|node| !left.contains(node)).cloned().collect();
    if !lost.is_empty() && !left.is_empty() {
        say(format!(
            "node {} has left the job; what is still to be measured of it stays unknown",
            lost.join(",")
        ));
        bench.nodes.retain(|node| left.contains(node));
    }
}

/// The results folder: `--resume`, `--results`, what a requeued job left, or a new one.
fn begin_run(args: &RunArgs, job: &Job, torch: &Torch) -> Result<(collect::Begun, PathBuf), Failure> {
    // Steps start in the folder of submission, but a payload's path must not hang on that.
    let whole = |path: &Path| job.submitted_from.join(path);
    let home = whole(Path::new("clustermax-results"));
    let new = format!("{}-{}", jiff::Timestamp::now().strftime("%Y%m%dT%H%M%SZ"), job.id);
    let init = |dir: &Path, resume: bool| collect::Args {
        run: (!resume).then(|| new.clone()),
        profile: args.profile.word().to_owned(),
        cluster: Some(job.cluster.clone()),
        nodes: job.nodes.clone(),
        hardware: if torch.device == Device::Cuda {
            collect::HardwareArg::Gpu
        } else {
            collect::HardwareArg::Cpu
        },
        resume,
        shrink: args.shrink,
        config: args.config.clone(),
        job: Some(job.id.clone()),
        ..collect::Args::of("init", dir)
    };
    if let Some(dir) = &args.resume {
        let dir = whole(dir);
        return Ok((collect::init(&init(&dir, true))?, dir));
    }
    if job.restarts > 0 {
        let left = match &args.results {
            Some(dir) => Some(whole(dir)).filter(|dir| dir.join("run.json").is_file()),
            None => of_job(&home, &job.id),
        };
        if let Some(dir) = left {
            let found = Folder::open(&dir)?.run;
            let (mut had, mut have) = (found.nodes.clone(), job.nodes.clone());
            had.sort();
            have.sort();
            if found.job.as_deref() == Some(&job.id) && had == have {
                say(format!("requeued: goes on where it stopped, in {}", dir.display()));
                return Ok((collect::init(&init(&dir, true))?, dir));
            }
            // Half a run on other nodes is no measurement of either.
            say(format!(
                "requeued onto other nodes ({}, before {}): this is a new run",
                have.join(","),
                had.join(",")
            ));
            let dir = home.join(&new);
            return Ok((collect::init(&init(&dir, false))?, dir));
        }
    }
    let dir = args.results.as_deref().map_or_else(|| home.join(&new), whole);
    Ok((collect::init(&init(&dir, false))?, dir))
}

/// The newest run that an earlier start of this job began.
fn of_job(home: &Path, id: &str) -> Option<PathBuf> {
    let ends = format!("-{id}");
    let runs = fs::read_dir(home).ok()?.flatten().map(|entry| entry.path());
    runs.filter(|path| path.to_string_lossy().ends_with(&ends) && path.join("run.json").is_file()).max()
}

/// Folder that holds `payload/`.
fn parts(prefix: Option<&Path>, job: &Job) -> Result<PathBuf, Failure> {
    const BELOW: [&str; 4] =
        ["batch-scripts", "share/clustermax/batch-scripts", "libexec/clustermax/batch-scripts", ""];
    let find = |dir: &Path| {
        BELOW.iter().map(|below| dir.join(below)).find(|dir| dir.join("payload/common.py").is_file())
    };
    if let Some(prefix) = prefix {
        // A prefix that was asked for is right or an error; another one would be a surprise.
        return find(prefix).ok_or_else(|| {
            Failure::missing(format!(
                "{} has no batch-scripts/payload; give --prefix the folder that ClusterMAX was installed into",
                prefix.display()
            ))
        });
    }
    let set = std::env::var_os("CLUSTERMAX_PREFIX").filter(|dir| !dir.is_empty()).map(PathBuf::from);
    let script = job.script.as_deref().and_then(Path::parent).map(Path::to_owned);
    // target/debug/clustermax, PREFIX/bin/clustermax, PREFIX/clustermax.
    let exe = std::env::current_exe().ok();
    let above = exe.iter().flat_map(|exe| exe.ancestors().skip(1).take(3)).map(Path::to_owned);
    set.into_iter()
        .chain(script)
        .chain(above)
        .chain(["/usr", "/usr/local"].map(PathBuf::from))
        .find_map(|dir| find(&dir))
        .ok_or_else(|| {
            Failure::missing("the payloads cannot be found; give --prefix DIR or set CLUSTERMAX_PREFIX")
        })
}

/// The first interpreter that has torch; without any, its stages say what is missing.
fn python(given: Option<&Path>) -> PathBuf {
    if let Some(given) = given {
        return given.to_owned();
    }
    if let Some(set) = std::env::var_os("CLUSTERMAX_PYTHON").filter(|text| !text.is_empty()) {
        return PathBuf::from(set);
    }
    ["/usr/bin/python3", "python3"]
        .iter()
        .find(|python| slurm::has_module(python, "torch"))
        .map_or_else(|| PathBuf::from("/usr/bin/python3"), PathBuf::from)
}

/// How long it may take to fetch and start a container and to import torch in it.
const PROBE: Duration = Duration::from_secs(900);

/// What the interpreter can measure. Not as a step: the first step of the job is what the stage lifecycle measures. In a
/// container it must be one, so that first step is taken before.
fn look_for_torch(bench: &mut Bench, scratch: &Path, asked: bool) -> Result<Torch, Failure> {
    if bench.launch.container.is_some() {
        bench.stage = plan::stage("lifecycle").unwrap_or(bench.stage);
        fs::create_dir_all(bench.raw()).map_err(|error| {
            Failure::missing(format!("cannot make {}: {error}; set TMPDIR", bench.raw().display()))
        })?;
        // Then the container's first start, with its fetch, on all nodes at once.
        let words = bench.launch.enter(&[&bench.parts], &bench.parts);
        for (what, label, words) in
            [("first step", "0", Vec::new()), ("container's first start", "first", words)]
        {
            let lines = match lifecycle::step(bench, label, &words) {
                Ok((lines, _)) => lines,
                Err(Stop::Failed(_, Some(why)) | Stop::Unavailable(why)) => {
                    return Err(Failure::missing(why));
                }
                Err(_) => {
                    let mend = match &bench.launch.container {
                        Some(image) if label == "first" => {
                            format!("; see that {image} can be started on every node")
                        }
                        _ => String::new(),
                    };
                    let said = last_words(&bench.log());
                    return Err(Failure::missing(format!("the {what} failed: {said}{mend}")));
                }
            };
            if label == "first" { bench.first_container = lines } else { bench.first_step = lines }
        }
    }
    let mut words = Vec::new();
    if bench.launch.container.is_some() {
        words.extend(
            ["srun", "--quiet", "--overlap", "--mpi=none", "-N1", "-n1", "-w", &bench.nodes[0]]
                .map(str::to_owned),
        );
        words.extend(bench.job.gpus_on_node.iter().map(|gpus| format!("--gres=gpu:{gpus}")));
        words.extend(bench.launch.enter(&[scratch, &bench.parts], &bench.parts));
    }
    words.extend(bench.launch.words(&bench.python));
    let (found, answered) = probe(&words, &bench.python, &bench.parts, scratch);
    match &found.missing {
        // What was asked for is right or an error: hours without torch would be a surprise.
        Some(why) if !answered && asked => Err(Failure::missing(why.clone())),
        _ => Ok(found),
    }
}

/// What the interpreter can measure, and whether it started at all.
fn probe(words: &[String], python: &Path, parts: &Path, scratch: &Path) -> (Torch, bool) {
    let none = |why: String| Torch { missing: Some(why), device: Device::Cpu, gpus: 0 };
    let (script, out) = (parts.join("payload/probe.py").display().to_string(), scratch.display().to_string());
    let mut args: Vec<&str> = words.iter().skip(1).map(String::as_str).collect();
    args.extend([script.as_str(), "--out", &out]);
    let program = words.first().map_or("", String::as_str);
    let limit = if program == "srun" { PROBE } else { Duration::from_secs(180) };
    let errors = scratch.join("probe.err");
    let stderr = fs::File::create(&errors).map_or_else(|_| Stdio::null(), Stdio::from);
    let said = slurm::output_and(program, &args, limit, stderr);
    if let Some(said) = said {
        let words: Vec<&str> = said.lines().last().unwrap_or_default().split_whitespace().collect();
        if let [device, gpus] = words[..] {
            let device = if device == "cuda" { Device::Cuda } else { Device::Cpu };
            return (Torch { missing: None, device, gpus: gpus.parse().unwrap_or(0) }, true);
        }
    }
    let written = fs::read_to_string(scratch.join("probe.json")).ok();
    let detail = written.and_then(|text| {
        let document: serde_json::Value = serde_json::from_str(&text).ok()?;
        Some(document.get("detail")?.as_str()?.to_owned())
    });
    match detail {
        Some(detail) => (none(detail), true),
        None if errors.metadata().is_ok_and(|file| file.len() > 0) => {
            let said = last_words(&errors);
            (none(format!("{} did not start as an interpreter: {said}", python.display())), false)
        }
        None => {
            let why =
                format!("{} cannot be run as an interpreter; choose another with --python", python.display());
            (none(why), false)
        }
    }
}

fn node_has_gpus(node: &str) -> bool {
    let shown = slurm::output("sinfo", &["-h", "-n", node, "-o", "%G"], Duration::from_secs(30));
    shown.is_some_and(|text| text.contains("gpu"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_words_are_the_programs_own() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        for (text, expected) in [
            ("Traceback\nRuntimeError: no\nsrun: error: n1: task 0\n\n", "RuntimeError: no"),
            ("srun: error: n1: task 0: Killed\n", "srun: error: n1: task 0: Killed"),
            ("", "it wrote nothing"),
        ] {
            fs::write(&log, text).unwrap();
            assert_eq!(last_words(&log), expected);
        }
    }

    #[test]
    fn a_requeued_job_finds_its_newest_run() {
        let home = tempfile::tempdir().unwrap();
        for name in ["20260101T000000Z-7", "20260102T000000Z-7", "20260103T000000Z-17", "20260104T000000Z-7"]
        {
            fs::create_dir(home.path().join(name)).unwrap();
        }
        for name in ["20260101T000000Z-7", "20260102T000000Z-7", "20260103T000000Z-17"] {
            fs::write(home.path().join(name).join("run.json"), "{}").unwrap();
        }
        assert_eq!(of_job(home.path(), "7"), Some(home.path().join("20260102T000000Z-7")));
        assert_eq!(of_job(home.path(), "8"), None);
    }

    #[test]
    fn an_earlier_attempt_leaves_nothing_but_the_probe() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("beat")).unwrap();
        for name in ["probe.json", "n1.json", "beat/0.json"] {
            fs::write(folder.path().join(name), "{}").unwrap();
        }
        empty(folder.path()).unwrap();
        let left: Vec<_> =
            fs::read_dir(folder.path()).unwrap().flatten().map(|entry| entry.file_name()).collect();
        assert_eq!(left, ["probe.json"]);
    }
}
