//! Stage `collectives`: nccl-tests or rccl-tests where they are, then torch.distributed as a second witness, and the only
//! one on CPUs.
//!
//! nccl-tests run on all nodes with every collective, on the first 1, 2, 4 ... nodes, on nodes in pairs (all pairs of a round
//! at the same time; nodes of slow pairs meet others), and inside one node without NVLink.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::thread;
use std::time::{Duration, Instant};

use super::bench::{Bench, Device, Limit, Stop};
use super::launch::{self, Container, Runtime};
use super::nccl::{self, ALL, Inspector, PAIRED, Start, Tools};
use super::programs::Facts;
use super::{measure, pairs, slurm};
use crate::collect::nccl as table;
use crate::straggler::pairs::Met;

/// The least that a start may take before it counts as hung, and its share of the time that the stage has left.
const LEAST: Duration = Duration::from_secs(60);
const SHARE: u32 = 3;
/// Starts that hang until the rest is left out.
const HUNG: usize = 2;

/// How a start ended, as `launch.tsv` has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// Its exit code.
    Code(i32),
    /// It was stopped at its own limit, in seconds.
    Limit(u64),
    /// Not started: others hung before it.
    NotRun,
    /// Not started: what is left of the stage's time is torch.distributed's.
    NoTime,
    /// There is no such program.
    Absent,
}

impl std::fmt::Display for End {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Code(code) => write!(f, "{code}"),
            Self::Limit(seconds) => write!(f, "limit {seconds}"),
            Self::NotRun => f.write_str("not-run"),
            Self::NoTime => f.write_str("no-time"),
            Self::Absent => f.write_str("absent"),
        }
    }
}

/// The stage.
///
/// # Errors
/// As [`Bench::payload`].
pub fn collectives(bench: &mut Bench) -> Result<(), Stop> {
    let folder = bench.raw().join("nccl-tests");
    fs::create_dir_all(&folder)
        .map_err(|error| Stop::Failed(2, Some(format!("cannot make {}: {error}", folder.display()))))?;
    match find(bench, &folder)? {
        Err(why) => write(&folder.join("unavailable.txt"), &format!("{why}\n"))?,
        Ok(tools) => {
            if let Some(rate) = network(Path::new("/sys"), tools.gpus) {
                write(&folder.join("network.txt"), &format!("{rate}\n"))?;
            }
            let now = Instant::now();
            let end = now + bench.deadline.saturating_duration_since(now) * 2 / 3;
            let mut run = Run { folder: &folder, tools: &tools, end, hung: Vec::new() };
            run.all(bench)?;
        }
    }
    let message = bench.sizes().message.to_string();
    bench.payload("collectives.py", &["--max".to_owned(), message])
}

/// Looks for the programs: in the image given for them, else in the suite's container, else on the nodes. The sentence
/// says why there are none that could be used.
fn find(bench: &mut Bench, folder: &Path) -> Result<Result<Tools, String>, Stop> {
    let set = |name: &str| std::env::var(name).ok().filter(|text| !text.is_empty());
    let given = set("CLUSTERMAX_NCCL_TESTS").unwrap_or_default();
    let places: Vec<Option<Container>> = match set("CLUSTERMAX_NCCL_IMAGE") {
        Some(image) => match image_for_nccl(bench, &image) {
            Ok(container) => vec![Some(container)],
            Err(why) => return Ok(Err(format!("CLUSTERMAX_NCCL_IMAGE={image}: {why}"))),
        },
        None => bench.launch.container().map_or_else(|| vec![None], |container| vec![Some(container), None]),
    };
    let gpus = bench.job.gpus_on_node.as_deref().and_then(|text| text.parse().ok());
    let gpus = if bench.torch.gpus > 0 { bench.torch.gpus } else { gpus.unwrap_or(1) };
    let mut reasons = Vec::new();
    for container in places {
        let (place, name) = match &container {
            Some(one) => (format!("in {}", one.image), "facts.txt"),
            None => ("on the nodes".to_owned(), "facts-host.txt"),
        };
        let said = match look(bench, &folder.join(name), container.as_ref(), &given)? {
            Ok(said) => said,
            Err(why) => {
                reasons.push(format!("{place}: {why}"));
                continue;
            }
        };
        let facts = Facts::of(&said);
        // Of the place where the payloads run, unless nccl-tests are found elsewhere.
        let own = |name: &str| std::env::var(name).ok();
        let settings = facts.settings(&bench.nodes, own, container.as_ref());
        let settings_file = bench.raw().join("nccl-settings.tsv");
        if !settings_file.exists() {
            write(&settings_file, &settings)?;
        }
        let (_, built) = match facts.program("all_reduce", &bench.nodes) {
            Ok(found) => found,
            Err(why) => {
                reasons.push(format!("{place}: {why}"));
                continue;
            }
        };
        // Programs that were given outright are meant: they say themselves what they lack.
        if bench.torch.device == Device::Cpu && !facts.gpus && given.is_empty() {
            reasons.push(format!("{place}: nccl-tests are there, but no GPU that they could use"));
            continue;
        }
        write(&settings_file, &settings)?;
        let (mpi, refused) = if built { mpi_plugin(bench)? } else { (None, Vec::new()) };
        if mpi.is_none() && bench.nodes.len() > 1 {
            let why = match (built, &refused[..]) {
                (false, _) => {
                    "the programs were built without MPI (make MPI=1), so every task would be a world of its own".to_owned()
                }
                (true, []) => {
                    "Slurm has no MPI plug-in that makes the tasks one world (srun --mpi=list names neither pmix nor pmi2)"
                        .to_owned()
                }
                (true, refused) => refused.join("; "),
            };
            let why = format!("{why}: measured inside one node only");
            write(&folder.join("one-node.txt"), &format!("{why}\n"))?;
        }
        let programs = ALL
            .iter()
            .filter_map(|name| Some(((*name).to_owned(), facts.program(name, &bench.nodes).ok()?.0)))
            .collect();
        let (launch, parts) = (bench.launch.clone(), bench.parts.clone());
        let inspector = facts.inspector(&bench.nodes);
        return Ok(Ok(Tools { container, launch, parts, programs, mpi, gpus, inspector }));
    }
    Ok(Err(format!(
        "nccl-tests cannot be used ({}): put them into PATH or /opt/nccl-tests/build, set CLUSTERMAX_NCCL_TESTS to their folder, or \
         CLUSTERMAX_NCCL_IMAGE to a container image that has them",
        reasons.join("; ")
    )))
}

/// The word for srun's `--mpi`: the first that starts a task on every node. What Slurm lists need not work: its plug-in is
/// often there without the PMIx library that it loads. Also why others were refused.
fn mpi_plugin(bench: &mut Bench) -> Result<(Option<String>, Vec<String>), Stop> {
    // srun lists them on stderr.
    let listed = slurm::output("bash", &["-c", "srun --mpi=list 2>&1"], Duration::from_secs(20));
    let mut refused = Vec::new();
    for word in nccl::mpi_words(&listed.unwrap_or_default()) {
        let mut step = bench.srun(1);
        step.arg(format!("--mpi={word}")).arg("true");
        let child = bench.spawn(step, None)?;
        let limit = Limit { at: Instant::now() + LEAST, evidence: &|_| {} };
        let said = match bench.wait_until(child, Some(limit))? {
            Some(0) => return Ok((Some(word), refused)),
            Some(_) => measure::last_words(&bench.log()),
            None => format!("it did not end within {} s", LEAST.as_secs()),
        };
        refused.push(format!("srun --mpi={word} starts nothing ({said}), although srun --mpi=list names it"));
    }
    Ok((None, refused))
}

fn image_for_nccl(bench: &Bench, image: &str) -> Result<Container, String> {
    let enroot = slurm::output("enroot", &["version"], Duration::from_secs(30)).is_some();
    let runtime = launch::runtime(image, launch::pyxis(), enroot).map_err(|failure| failure.message)?;
    launch::mountable(&[&bench.results, &bench.parts]).map_err(|failure| failure.message)?;
    Ok(Container {
        image: image.to_owned(),
        runtime,
        name: format!("clustermax-{}-nccl", bench.job.id),
        mounts: bench.launch.container_mounts.clone(),
    })
}

/// What `payload/nccl-facts.sh` says on every node, kept in `out`; or why it could not run there.
fn look(
    bench: &mut Bench,
    out: &Path,
    container: Option<&Container>,
    given: &str,
) -> Result<Result<String, String>, Stop> {
    let script = bench.parts.join("payload/nccl-facts.sh");
    let mut step = bench.srun(1);
    step.arg("--mpi=none");
    match container {
        Some(container) => {
            step.args(container.words(&[&bench.results, &bench.parts], &bench.parts)).arg("bash");
        }
        None if bench.launch.modules.is_empty() => {
            step.arg("bash");
        }
        None => {
            step.args(bench.launch.words(Path::new("bash")));
        }
    }
    step.arg(script).arg(if container.is_some() { "yes" } else { "no" }).arg(given).args(ALL);
    let code = bench.run(step, Some(out))?;
    if code != 0 {
        return Ok(Err(format!("cannot be looked at: {}", measure::last_words(&bench.log()))));
    }
    Ok(Ok(String::from_utf8_lossy(&fs::read(out).unwrap_or_default()).into_owned()))
}

/// GB/s per GPU of all active RDMA ports of this node together, which no collective between nodes can exceed; none
/// without a port.
fn network(sysfs: &Path, gpus: u32) -> Option<f64> {
    let below = |dir: PathBuf| fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    let rate: f64 = below(sysfs.join("class/infiniband"))
        .flat_map(|device| below(device.join("ports")))
        .filter_map(|port| {
            let read = |name: &str| fs::read_to_string(port.join(name)).ok();
            // "4: ACTIVE", "400 Gb/sec (4X NDR)"
            read("state")?
                .starts_with("4:")
                .then(|| read("rate"))??
                .split_whitespace()
                .next()?
                .parse::<f64>()
                .ok()
        })
        .sum();
    (rate > 0.0).then(|| rate / 8.0 / f64::from(gpus.max(1)))
}

/// All starts of nccl-tests.
struct Run<'a> {
    folder: &'a Path,
    tools: &'a Tools,
    /// Until then; the second witness must have its time, too.
    end: Instant,
    /// The collectives of which a start hung.
    hung: Vec<&'static str>,
}

impl Run<'_> {
    fn all(&mut self, bench: &mut Bench) -> Result<(), Stop> {
        let last = bench.sizes().nccl_message;
        for start in nccl::starts(self.tools, &bench.nodes, last) {
            self.together(bench, &[start])?;
        }
        if self.tools.mpi.is_some() && bench.nodes.len() > 2 {
            self.pairs(bench, last)?;
        }
        self.per_iteration(bench)?;
        self.inspected(bench)
    }

    /// Every node with another one; then nodes of slow pairs with others.
    fn pairs(&mut self, bench: &mut Bench, last: &str) -> Result<(), Stop> {
        let nodes: Vec<String> = bench.nodes.iter().take(PAIRED).cloned().collect();
        let mut met = Vec::new();
        let mut round = 0;
        let mut rounds = pairs::neighbours(&nodes);
        while !rounds.is_empty() {
            for pairs in rounds {
                round += 1;
                let starts: Vec<Start> = pairs.iter().map(|pair| nccl::pair(pair, round, last)).collect();
                self.together(bench, &starts)?;
                let speed = |start: &Start| self.speed(start);
                met.extend(
                    pairs
                        .into_iter()
                        .zip(&starts)
                        .filter_map(|(nodes, start)| Some(Met { nodes, speed: speed(start)? })),
                );
            }
            let suspects = if round <= 2 { pairs::suspects(&met) } else { Vec::new() };
            rounds = if suspects.is_empty() { Vec::new() } else { pairs::again(&nodes, &met, &suspects) };
            // Once: what the further rounds show is for the records to judge.
            round = round.max(2);
        }
        Ok(())
    }

    /// Bus bandwidth of the largest message of a table that is a result.
    fn speed(&self, start: &Start) -> Option<f64> {
        let text = fs::read(self.folder.join(format!("{}_perf.txt", start.label))).ok()?;
        let out = table::read(&String::from_utf8_lossy(&text));
        let speed = out.rows.last().filter(|_| out.state == table::State::Ok)?.busbw();
        (speed.is_finite() && speed > 0.0).then_some(speed)
    }

    /// Runs these at the same time, each on its own nodes.
    fn together(&mut self, bench: &mut Bench, starts: &[Start]) -> Result<(), Stop> {
        let mut running: Vec<(&Start, PathBuf, Child)> = Vec::new();
        let begin = Instant::now();
        let left = self.end.saturating_duration_since(begin);
        let limit = LEAST.max(left / SHARE).min(left);
        for start in starts {
            let Some(program) = self.tools.programs.get(start.collective) else {
                self.record(start, Path::new(&format!("{}_perf", start.collective)), End::Absent)?;
                continue;
            };
            if self.hung.len() >= HUNG || self.hung.contains(&start.collective) || left.is_zero() {
                let end = if left.is_zero() { End::NoTime } else { End::NotRun };
                self.record(start, program, end)?;
                continue;
            }
            let mut step = bench.srun_on(&start.nodes, if start.one_process { 1 } else { self.tools.gpus });
            let set = |name: &str| std::env::var(name).ok().filter(|text| !text.is_empty());
            nccl::launch(&mut step, (self.folder, &bench.results), self.tools, start, program, set);
            let child = bench.spawn(step, Some(&self.folder.join(format!("{}_perf.txt", start.label))))?;
            running.push((start, program.clone(), child));
        }
        for (start, program, child) in running {
            let evidence = |bench: &Bench| self.ask_ranks(bench, start);
            let end = match bench.wait_until(child, Some(Limit { at: begin + limit, evidence: &evidence }))? {
                Some(code) => End::Code(code),
                None => {
                    self.hung.push(start.collective);
                    End::Limit(limit.as_secs())
                }
            };
            self.record(start, &program, end)?;
        }
        Ok(())
    }

    /// What NCCL itself says of ranks that hang (2.24 and later), before they are ended; its log lies beside it anyway.
    fn ask_ranks(&self, bench: &Bench, start: &Start) {
        const ASK: &str = "command -v ncclras >/dev/null || { echo 'ncclras is not here'; exit 0; }; exec timeout 20 ncclras -v";
        let Some(first) = start.nodes.get(..1) else { return };
        let mut step = bench.srun_on(first, 1);
        step.arg("--mpi=none");
        if let Some(container) = &self.tools.container {
            step.args(container.words(&[&bench.results], &self.tools.parts));
        }
        step.args(["bash", "-c", ASK]);
        let out = self.folder.join(format!("{}.ncclras.txt", start.label));
        let Ok(mut child) = bench.spawn(step, Some(&out)) else { return };
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_secs(30) && matches!(child.try_wait(), Ok(None)) {
            thread::sleep(Duration::from_millis(50));
        }
        let _ = child.kill();
        let _ = child.wait();
    }

    /// Every iteration and process of one size, from releases that write it: the straggler's signal.
    fn per_iteration(&mut self, bench: &mut Bench) -> Result<(), Stop> {
        let text = fs::read(self.folder.join("all_reduce_perf.txt")).unwrap_or_default();
        if !nccl::reports_iterations(table::read(&String::from_utf8_lossy(&text)).version.as_deref()) {
            return Ok(());
        }
        let nodes = if self.tools.mpi.is_some() { bench.nodes.clone() } else { bench.nodes[..1].to_vec() };
        let json = self.folder.join("iterations.json");
        // The program refuses to write over a file and numbers a new one.
        let _ = fs::remove_file(&json);
        let start = Start {
            one_process: self.tools.mpi.is_none(),
            params: "variant=per_iteration".to_owned(),
            more: ["-n", "100", "-I", "1", "-J"]
                .map(str::to_owned)
                .into_iter()
                .chain([json.display().to_string()])
                .collect(),
            ..Start::of("all_reduce.iterations", "all_reduce", &nodes, ("64M", "64M", 2))
        };
        self.together(bench, &[start])
    }

    /// One size once more under NCCL Inspector, when everything else is measured.
    fn inspected(&mut self, bench: &mut Bench) -> Result<(), Stop> {
        let library = match &self.tools.inspector {
            Inspector::At(library) => library.clone(),
            Inspector::None(why) => {
                return write(&self.folder.join("no-inspector.txt"), &format!("NCCL Inspector: {why}\n"));
            }
        };
        let nodes = if self.tools.mpi.is_some() { bench.nodes.clone() } else { bench.nodes[..1].to_vec() };
        // What a start before a requeue left is another communicator's.
        let dumps = self.folder.join("inspector");
        let _ = fs::remove_dir_all(&dumps);
        fs::create_dir_all(&dumps)
            .map_err(|error| Stop::Failed(2, Some(format!("cannot make {}: {error}", dumps.display()))))?;
        let start = nccl::inspected(self.tools, &nodes, &library, &dumps);
        self.together(bench, &[start])
    }

    /// A line of `launch.tsv`: collective, ranks, nodes, how it ended, command, file, params.
    fn record(&self, start: &Start, program: &Path, end: End) -> Result<(), Stop> {
        let line = format!(
            "{}\t{}\t{}\t{end}\t{}\t{}_perf.txt\t{}\n",
            start.collective,
            start.ranks(self.tools.gpus),
            start.nodes.len(),
            start.command(self.tools, program),
            start.label,
            start.params
        );
        let path = self.folder.join("launch.tsv");
        OpenOptions::new()
            .create(true)
            .append(true)
            .open(&path)
            .and_then(|mut file| file.write_all(line.as_bytes()))
            .map_err(|error| Stop::Failed(2, Some(format!("cannot write {}: {error}", path.display()))))
    }
}

fn write(path: &Path, text: &str) -> Result<(), Stop> {
    fs::write(path, text)
        .map_err(|error| Stop::Failed(2, Some(format!("cannot write {}: {error}", path.display()))))
}

/// What the suite left on the nodes: containers that Pyxis keeps by their name.
pub fn leave_containers(bench: &Bench) {
    let image = std::env::var("CLUSTERMAX_NCCL_IMAGE").unwrap_or_default();
    let kept = |given: bool, name: &str| given.then(|| format!("pyxis_clustermax-{}{name}", bench.job.id));
    let names: Vec<String> = [kept(bench.launch.container.is_some(), ""), kept(!image.is_empty(), "-nccl")]
        .into_iter()
        .flatten()
        .collect();
    if names.is_empty() || bench.launch.runtime != Runtime::Pyxis {
        return;
    }
    let script = "command -v enroot >/dev/null || exit 0; for name; do enroot remove -f \"$name\"; done >/dev/null 2>&1";
    let (count, list) = (format!("-N{}", bench.nodes.len()), bench.nodes.join(","));
    let mut args = vec!["--quiet", "--overlap", "--mpi=none", "--ntasks-per-node=1", &count, "-w", &list];
    args.extend(["bash", "-c", script, "bash"]);
    args.extend(names.iter().map(String::as_str));
    let _ = slurm::output("srun", &args, Duration::from_secs(60));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ceiling_between_nodes_comes_from_the_active_ports() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(network(dir.path(), 8), None);
        for (device, state, rate) in [
            ("mlx5_0", "4: ACTIVE\n", "400 Gb/sec (4X NDR)\n"),
            ("mlx5_1", "4: ACTIVE\n", "400 Gb/sec (4X NDR)\n"),
            ("mlx5_2", "1: DOWN\n", "10 Gb/sec (4X SDR)\n"),
        ] {
            let port = dir.path().join("class/infiniband").join(device).join("ports/1");
            fs::create_dir_all(&port).unwrap();
            fs::write(port.join("state"), state).unwrap();
            fs::write(port.join("rate"), rate).unwrap();
        }
        assert_eq!(network(dir.path(), 2), Some(50.0));
    }

    #[test]
    fn a_start_that_did_not_end_by_itself_says_how() {
        for (end, word) in [
            (End::Code(-1), "-1"),
            (End::Limit(600), "limit 600"),
            (End::NotRun, "not-run"),
            (End::NoTime, "no-time"),
            (End::Absent, "absent"),
        ] {
            assert_eq!(end.to_string(), word);
        }
    }
}
