//! What a stage is given: the nodes, the interpreter, the sizes, and a way to start steps that always end.

use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::launch::Launch;
use super::plan::{Profile, Sizes, Stage};
use super::slurm::Job;
use super::stuck;

/// How long a step may take to end after it was told to.
const GRACE: Duration = Duration::from_secs(10);

/// Set in the suite's own environment by sbatch's options; they would change what the steps ask for.
const JOB_SETTINGS: [&str; 11] = [
    "SLURM_NTASKS_PER_NODE",
    "SLURM_CPU_BIND",
    "SLURM_DISTRIBUTION",
    "SLURM_CPUS_PER_TASK",
    "SLURM_MPI_TYPE",
    "SLURM_GPU_BIND",
    "SLURM_GPUS",
    "SLURM_GPUS_PER_TASK",
    "SLURM_GPUS_PER_SOCKET",
    "SLURM_NTASKS_PER_GPU",
    "SLURM_NTASKS_PER_SOCKET",
];

/// Why a stage did not run to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stop {
    /// Something it needs is not here; a sentence.
    Unavailable(String),
    /// It failed, with its exit code; without a sentence the last words of its log are shown.
    Failed(i32, Option<String>),
    /// It ran into its deadline, with what was seen to be stuck.
    Deadline(Option<String>),
    /// The job's time is up.
    Terminated,
}

/// When a step counts as hung, before the stage's own end.
pub struct Limit<'a> {
    /// From then on.
    pub at: Instant,
    /// Looks at it before it is ended.
    pub evidence: &'a dyn Fn(&Bench),
}

/// What the payloads compute on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Device {
    /// Processors.
    Cpu,
    /// GPUs that torch can use.
    Cuda,
}

/// The interpreter's answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Torch {
    /// A sentence when there is no torch.
    pub missing: Option<String>,
    /// What it computes on.
    pub device: Device,
    /// GPUs of the first node that torch can use.
    pub gpus: u32,
}

/// A stage's surroundings.
pub struct Bench {
    /// The job.
    pub job: Job,
    /// Nodes that are left of it.
    pub nodes: Vec<String>,
    /// The profile.
    pub profile: Profile,
    /// Sizes and times are divided by this.
    pub shrink: u32,
    /// How the payloads are started.
    pub launch: Launch,
    /// The job's first step, where it had to be taken before the stage `lifecycle`.
    pub first_step: String,
    /// The first start of the container on every node, taken before torch was looked for in it.
    pub first_container: String,
    /// Folder of `payload/`.
    pub parts: PathBuf,
    /// This program.
    pub clustermax: PathBuf,
    /// Interpreter of the payloads.
    pub python: PathBuf,
    /// What that has.
    pub torch: Torch,
    /// The node programs' configuration, when one was given.
    pub config: Option<PathBuf>,
    /// Results folder.
    pub results: PathBuf,
    /// Epoch seconds at which the batch script began.
    pub begin: f64,
    /// Set by SIGTERM.
    pub terminated: Arc<AtomicBool>,
    /// The stage that runs.
    pub stage: &'static Stage,
    /// Its end.
    pub deadline: Instant,
}

impl Bench {
    /// The profile's sizes.
    pub fn sizes(&self) -> Sizes {
        self.profile.sizes().shrunk(self.shrink)
    }

    /// `raw/STAGE`, seen by all nodes.
    pub fn raw(&self) -> PathBuf {
        self.results.join("raw").join(self.stage.name)
    }

    /// Where all that the stage prints goes.
    pub fn log(&self) -> PathBuf {
        self.raw().join("stage.log")
    }

    /// One GPU is one rank; without GPUs one rank a node, two when there is only one node, or there would be nobody to
    /// communicate with.
    pub fn ranks_per_node(&self) -> u32 {
        match self.torch.device {
            Device::Cuda => self.torch.gpus,
            Device::Cpu if self.nodes.len() == 1 => 2,
            Device::Cpu => 1,
        }
    }

    /// A step of `per_node` tasks on every node that is left. `--overlap`: a stuck step of an earlier stage blocks
    /// nobody. `--overcommit`: an allocation of one CPU a node is enough. One failed task ends the step: the rest would
    /// wait in a collective. A job of `--exclusive` owns the GPUs, but a step is given them only when it asks.
    pub fn srun(&self, per_node: u32) -> Command {
        self.srun_on(&self.nodes, per_node)
    }

    /// The same on some of the nodes.
    pub fn srun_on(&self, nodes: &[String], per_node: u32) -> Command {
        let (count, list) = (nodes.len(), nodes.join(","));
        let mut srun = Command::new("srun");
        for name in JOB_SETTINGS {
            srun.env_remove(name);
        }
        self.configure(&mut srun);
        srun.args([
            "--quiet",
            "--overlap",
            "--overcommit",
            "--cpu-bind=none",
            "--kill-on-bad-exit=1",
            "--export=ALL",
        ]);
        srun.arg(format!("--nodes={count}"))
            .arg(format!("--nodelist={list}"))
            .arg(format!("--ntasks-per-node={per_node}"))
            .arg(format!("--ntasks={}", count as u64 * u64::from(per_node)));
        if let Some(gpus) = &self.job.gpus_on_node {
            srun.arg(format!("--gres=gpu:{gpus}"));
        }
        srun
    }

    /// Hands `--config` on.
    pub fn configure(&self, command: &mut Command) {
        if let Some(config) = &self.config {
            command.env("CLUSTERMAX_CONFIG", config);
        }
    }

    /// Runs a program as one task a node.
    ///
    /// # Errors
    /// When it fails or has to be stopped.
    pub fn on_every_node(&mut self, program: &Path, args: &[&str]) -> Result<(), Stop> {
        let mut step = self.srun(1);
        step.arg("--mpi=none").arg(program).args(args);
        self.end_well(step)
    }

    /// Runs a payload, one task a rank. All end together: 20 s after the first one the rest is stuck.
    ///
    /// # Errors
    /// Without torch, when it fails, or when it has to be stopped.
    pub fn payload(&mut self, payload: &str, args: &[String]) -> Result<(), Stop> {
        let nodes = self.nodes.clone();
        self.payload_on(&nodes, payload, args)
    }

    /// The same on some of the nodes, as many ranks on each.
    ///
    /// # Errors
    /// As [`Bench::payload`].
    pub fn payload_on(&mut self, nodes: &[String], payload: &str, args: &[String]) -> Result<(), Stop> {
        self.need_torch()?;
        let mut step = self.srun_on(nodes, self.ranks_per_node());
        step.args(["--mpi=none", "--wait=20"]);
        self.python_command(&mut step, payload);
        step.arg("--out")
            .arg(self.raw())
            .args(["--device", if self.torch.device == Device::Cuda { "cuda" } else { "cpu" }])
            // The demo is light on purpose: it runs on nodes that share one machine as well.
            .args(["--threads", "1"])
            .args(args);
        self.end_well(step)
    }

    /// Adds a payload to a step, as the launch options say.
    pub fn python_command(&self, step: &mut Command, payload: &str) {
        step.args(self.launch.enter(&[&self.results, &self.parts], &self.parts))
            .args(self.launch.words(&self.python))
            .arg(self.parts.join("payload").join(payload));
    }

    /// # Errors
    /// Says what is missing.
    pub fn need_torch(&self) -> Result<(), Stop> {
        self.torch.missing.clone().map_or(Ok(()), |missing| Err(Stop::Unavailable(missing)))
    }

    fn end_well(&mut self, command: Command) -> Result<(), Stop> {
        match self.run(command, None)? {
            0 => Ok(()),
            code => Err(Stop::Failed(code, None)),
        }
    }

    /// Runs a command to its end and returns its exit code. Its output goes to the stage's log, or stdout to `out`.
    ///
    /// # Errors
    /// [`Stop::Deadline`] or [`Stop::Terminated`] when it had to be stopped, [`Stop::Failed`] when it cannot start.
    pub fn run(&mut self, command: Command, out: Option<&Path>) -> Result<i32, Stop> {
        let child = self.spawn(command, out)?;
        self.wait(child)
    }

    /// Starts a command; [`Bench::wait`] ends it.
    ///
    /// # Errors
    /// When it cannot start.
    pub fn spawn(&self, mut command: Command, out: Option<&Path>) -> Result<Child, Stop> {
        let failed = |what: String| Stop::Failed(-1, Some(what));
        let log = append(&self.log()).map_err(failed)?;
        let stdout = match out {
            Some(path) => File::create(path)
                .map_err(|error| failed(format!("cannot write {}: {error}", path.display())))?,
            None => append(&self.log()).map_err(failed)?,
        };
        let name = command.get_program().to_string_lossy().into_owned();
        command
            .stdin(Stdio::null())
            .stdout(stdout)
            .stderr(log)
            .spawn()
            .map_err(|error| failed(format!("{name} cannot be started: {error}")))
    }

    /// Waits for a command of this stage, but not longer than the stage may take. Ranks that stop beating are looked at
    /// meanwhile; one that is seen to be stopped or gone ends the step at once.
    ///
    /// # Errors
    /// As [`Bench::run`].
    pub fn wait(&mut self, child: Child) -> Result<i32, Stop> {
        match self.wait_until(child, None)? {
            Some(code) => Ok(code),
            None => Err(Stop::Deadline(None)),
        }
    }

    /// The same, but not beyond a limit of its own: none when the step had to be ended there.
    ///
    /// # Errors
    /// As [`Bench::run`].
    pub fn wait_until(&mut self, mut child: Child, limit: Option<Limit<'_>>) -> Result<Option<i32>, Stop> {
        let mut watch = stuck::Watch::new(self.raw().join(stuck::FOLDER));
        let mut seen: Option<String> = None;
        loop {
            match child.try_wait() {
                Ok(Some(status)) => {
                    let code = std::os::unix::process::ExitStatusExt::signal(&status)
                        .map_or_else(|| status.code().unwrap_or(-1), |signal| 128 + signal);
                    return match seen {
                        // The others' time-out ended the step; who caused it was seen before.
                        Some(seen) if code != 0 => Err(Stop::Failed(code, Some(seen))),
                        _ => Ok(Some(code)),
                    };
                }
                Ok(None) => {}
                Err(error) => {
                    return Err(Stop::Failed(-1, Some(format!("srun cannot be waited for: {error}"))));
                }
            }
            let terminated = self.terminated.load(Ordering::Relaxed);
            if terminated || Instant::now() >= self.deadline {
                self.kill(child);
                return Err(if terminated { Stop::Terminated } else { Stop::Deadline(seen) });
            }
            if let Some(limit) = limit.as_ref().filter(|limit| Instant::now() >= limit.at) {
                (limit.evidence)(self);
                self.kill(child);
                return Ok(None);
            }
            if let Some(found) = watch.look(Instant::now()) {
                let (text, sure) = stuck::evidence(self, &found);
                if sure {
                    self.kill(child);
                    return Err(Stop::Failed(137, Some(text)));
                }
                seen = Some(text);
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Ends a step: its srun first, then whatever is left of it on the nodes.
    fn kill(&self, mut child: Child) {
        if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::TERM);
        }
        let begin = Instant::now();
        while begin.elapsed() < GRACE && matches!(child.try_wait(), Ok(None)) {
            thread::sleep(Duration::from_millis(20));
        }
        let _ = child.kill();
        let _ = child.wait();
        self.job.end_steps();
    }
}

fn append(path: &Path) -> Result<File, String> {
    OpenOptions::new().create(true).append(true).open(path).map_err(|error| {
        format!("cannot write {}: {error}; give --results a folder you may write to", path.display())
    })
}
