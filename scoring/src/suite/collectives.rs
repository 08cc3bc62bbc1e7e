//! Stage `collectives`: nccl-tests or rccl-tests where they are, then torch.distributed as a second witness, and the only
//! one on CPUs.
//!
//! nccl-tests run on all nodes with every collective, on the first 1, 2, 4 ... nodes, on neighbouring nodes in pairs (all
//! pairs at the same time), and inside one node without NVLink. One task is one GPU; all tasks are one world only when
//! Slurm has an MPI plug-in that the programs were built for, so without it one process holds all GPUs of one node.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use super::bench::{Bench, Device, Stop};
use super::slurm;
use crate::audit::platform::nccl_settings;
use crate::collect::nccl;

/// Collectives in the order of their worth, should the time run out; nccl-tests' names.
const ALL: [&str; 11] = [
    "all_reduce",
    "alltoall",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "sendrecv",
    "reduce",
    "gather",
    "scatter",
    "hypercube",
    "alltoallv",
];
/// Pairs that are measured at most.
const PAIRS: usize = 32;
/// GPUs' own links and shared memory off: what is left goes through the network cards.
const NO_LINKS: [(&str, &str); 2] = [("NCCL_P2P_DISABLE", "1"), ("NCCL_SHM_DISABLE", "1")];

/// How the programs are reached.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Tools {
    /// A container image for Pyxis; none: the node's own files.
    image: Option<String>,
    /// Folder in the container, or what the caller gave; none: searched.
    folder: Option<PathBuf>,
    /// Word for srun's `--mpi`; none: the tasks would not find each other.
    mpi: Option<String>,
    /// GPUs of a node.
    gpus: u32,
}

/// One start of one program.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Start {
    /// Name of its files.
    label: String,
    collective: &'static str,
    nodes: Vec<String>,
    /// Smallest and largest message in nccl-tests' notation, and the factor between sizes.
    sizes: (String, String, u32),
    env: Vec<(&'static str, &'static str)>,
    /// `variant=nvlink_off`, `pair=n1,n2`; empty for the sweep over all nodes.
    params: String,
    /// One process for all GPUs of the one node.
    one_process: bool,
    /// Options of newer releases, and the JSON file that they write.
    more: Vec<String>,
}

impl Start {
    fn of(label: &str, collective: &'static str, nodes: &[String], sizes: (&str, &str, u32)) -> Self {
        Self {
            label: label.to_owned(),
            collective,
            nodes: nodes.to_vec(),
            sizes: (sizes.0.to_owned(), sizes.1.to_owned(), sizes.2),
            env: Vec::new(),
            params: String::new(),
            one_process: false,
            more: Vec::new(),
        }
    }

    /// The program's arguments.
    fn args(&self, gpus: u32) -> Vec<String> {
        let (from, to, factor) = &self.sizes;
        let each = if self.one_process { gpus } else { 1 };
        // -a 3: the slowest rank's time. -w 5: releases differ in their warm-up.
        let args = format!("-b {from} -e {to} -f {factor} -g {each} -w 5 -a 3 -c 1");
        args.split(' ').map(str::to_owned).chain(self.more.iter().cloned()).collect()
    }

    fn ranks(&self, gpus: u32) -> u64 {
        self.nodes.len() as u64 * u64::from(gpus)
    }
}

/// Options of srun for the container, with the results folder in it.
fn container(tools: &Tools, results: &Path) -> Vec<String> {
    let Some(image) = &tools.image else { return Vec::new() };
    vec![
        format!("--container-image={image}"),
        "--no-container-remap-root".to_owned(),
        "--no-container-mount-home".to_owned(),
        format!("--container-mounts={0}:{0}", results.display()),
    ]
}

/// All starts, the most telling ones first. `last` is the largest message.
fn starts(tools: &Tools, nodes: &[String], last: &str) -> Vec<Start> {
    let fine = if last == "16G" { 2 } else { 8 };
    let large = if last == "16G" { "128M" } else { "1M" };
    let Some(first) = nodes.get(..1) else { return Vec::new() };
    let alone = |start: Start| Start { one_process: tools.mpi.is_none(), ..start };
    let mut all = Vec::new();
    if tools.mpi.is_some() {
        all.extend(ALL.iter().map(|name| Start::of(name, name, nodes, ("8", last, fine))));
        let mut count = 1;
        while count < nodes.len() {
            for name in ["all_reduce", "alltoall"] {
                all.push(Start::of(
                    &format!("{name}.{count}-nodes"),
                    name,
                    &nodes[..count],
                    (large, last, 2),
                ));
            }
            count *= 2;
        }
        if nodes.len() > 2 {
            for pair in nodes.chunks_exact(2).take(PAIRS) {
                all.push(Start {
                    params: format!("pair={}", pair.join(",")),
                    ..Start::of(
                        &format!("all_reduce.pair-{}", pair.join("-")),
                        "all_reduce",
                        pair,
                        (large, last, 8),
                    )
                });
            }
        }
    } else {
        all.extend(ALL.iter().map(|name| alone(Start::of(name, name, first, ("8", last, fine)))));
    }
    if tools.gpus > 1 {
        all.push(alone(Start {
            env: NO_LINKS.to_vec(),
            params: "variant=nvlink_off".to_owned(),
            ..Start::of("all_reduce.nvlink-off", "all_reduce", first, (large, last, 2))
        }));
    }
    all
}

/// The stage.
///
/// # Errors
/// As [`Bench::payload`].
pub fn collectives(bench: &mut Bench) -> Result<(), Stop> {
    let folder = bench.raw().join("nccl-tests");
    fs::create_dir_all(&folder)
        .map_err(|error| Stop::Failed(2, Some(format!("cannot make {}: {error}", folder.display()))))?;
    settings(&bench.raw().join("nccl-settings.tsv"))?;
    let gpus = bench.job.gpus_on_node.as_deref().and_then(|text| text.parse().ok());
    let set = |name: &str| std::env::var(name).ok().filter(|text| !text.is_empty());
    let mut tools = Tools {
        image: set("CLUSTERMAX_NCCL_IMAGE"),
        folder: set("CLUSTERMAX_NCCL_TESTS").map(PathBuf::from),
        mpi: None,
        gpus: if bench.torch.gpus > 0 { bench.torch.gpus } else { gpus.unwrap_or(1) },
    };
    let device_files = ["/dev/nvidiactl", "/dev/kfd"].iter().any(|file| Path::new(file).exists());
    let found = perf(&tools, "all_reduce");
    let unavailable = match &found {
        None => Some(
            "nccl-tests are not installed (all_reduce_perf is neither in PATH nor in /opt/nccl-tests/build): set \
             CLUSTERMAX_NCCL_TESTS to their folder, or CLUSTERMAX_NCCL_IMAGE to a container image that has them",
        ),
        Some(_) if bench.torch.device == Device::Cpu && !device_files => {
            Some("nccl-tests are installed, but the node has no GPU that they could use")
        }
        Some(_) => None,
    };
    if let Some(why) = unavailable {
        write(&folder.join("unavailable.txt"), &format!("{why}\n"))?;
    } else {
        // srun lists them on stderr.
        let listed = slurm::output("bash", &["-c", "srun --mpi=list 2>&1"], Duration::from_secs(20));
        let mpi = mpi_word(&listed.unwrap_or_default());
        let built = tools.image.is_some() || found.as_deref().is_some_and(speaks_mpi);
        tools.mpi = mpi.clone().filter(|_| built);
        if tools.mpi.is_none() && bench.nodes.len() > 1 {
            let why = if built {
                "Slurm has no MPI plug-in that makes the tasks one world (srun --mpi=list names neither pmix nor pmi2): measured inside one node only"
            } else {
                "the programs were built without MPI (make MPI=1), so every task would be a world of its own: measured inside one node only"
            };
            write(&folder.join("one-node.txt"), &format!("{why}\n"))?;
        }
        if let Some(rate) = network(Path::new("/sys"), tools.gpus) {
            write(&folder.join("network.txt"), &format!("{rate}\n"))?;
        }
        nccl_tests(bench, &folder, &tools)?;
    }
    let message = bench.sizes().message.to_string();
    bench.payload("collectives.py", &["--max".to_owned(), message])
}

/// NCCL's settings with their origin: name, value, where it is set.
fn settings(path: &Path) -> Result<(), Stop> {
    let lines: String = nccl_settings()
        .iter()
        .map(|(name, value, origin)| format!("{name}\t{}\t{origin}\n", value.replace(['\t', '\n'], " ")))
        .collect();
    write(path, &lines)
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

/// pmix in its newest form, else pmi2; what `srun --mpi=list` prints.
fn mpi_word(listed: &str) -> Option<String> {
    let words =
        || listed.split(|c: char| c.is_whitespace() || c == ',').map(|word| word.trim_end_matches(':'));
    let newest = words().filter(|word| word.starts_with("pmix_v")).max().map(str::to_owned);
    let plain = |name: &str| words().any(|word| word == name).then(|| name.to_owned());
    plain("pmix").or(newest).or_else(|| plain("pmi2"))
}

/// Whether the program was linked with an MPI library: its name stands in the file.
fn speaks_mpi(program: &Path) -> bool {
    let bytes = fs::read(program).unwrap_or_default();
    bytes.windows(6).any(|window| window == b"libmpi")
}

fn nccl_tests(bench: &mut Bench, folder: &Path, tools: &Tools) -> Result<(), Stop> {
    let last = bench.sizes().nccl_message;
    let all = starts(tools, &bench.nodes, last);
    let mut position = 0;
    while position < all.len() {
        // Pairs run at the same time, everything else alone.
        let together = if all[position].params.starts_with("pair=") {
            all[position..].iter().take_while(|start| start.params.starts_with("pair=")).count()
        } else {
            1
        };
        let mut running: Vec<(&Start, PathBuf, Child)> = Vec::new();
        for start in &all[position..position + together] {
            let Some(program) = perf(tools, start.collective) else { continue };
            let child = begin(bench, folder, tools, start, &program)?;
            running.push((start, program, child));
        }
        for (start, program, child) in running {
            let code = bench.wait(child)?;
            record(folder, start, tools, &program, code)?;
        }
        position += together;
    }
    per_iteration(bench, folder, tools)
}

/// Every iteration and process of one size, from releases that write it: the straggler's signal.
fn per_iteration(bench: &mut Bench, folder: &Path, tools: &Tools) -> Result<(), Stop> {
    let text = fs::read_to_string(folder.join("all_reduce_perf.txt")).unwrap_or_default();
    if !reports_iterations(nccl::read(&text).version.as_deref()) {
        return Ok(());
    }
    let Some(program) = perf(tools, "all_reduce") else { return Ok(()) };
    let nodes = if tools.mpi.is_some() { bench.nodes.clone() } else { bench.nodes[..1].to_vec() };
    let json = folder.join("iterations.json");
    // The program refuses to write over a file and numbers a new one.
    let _ = fs::remove_file(&json);
    let start = Start {
        one_process: tools.mpi.is_none(),
        params: "variant=per_iteration".to_owned(),
        more: ["-n", "100", "-I", "1", "-J"]
            .map(str::to_owned)
            .into_iter()
            .chain([json.display().to_string()])
            .collect(),
        ..Start::of("all_reduce.iterations", "all_reduce", &nodes, ("64M", "64M", 2))
    };
    let child = begin(bench, folder, tools, &start, &program)?;
    let code = bench.wait(child)?;
    record(folder, &start, tools, &program, code)
}

/// nccl-tests 2.19.2 and later.
fn reports_iterations(version: Option<&str>) -> bool {
    let Some(version) = version.and_then(|text| text.strip_prefix("nccl-tests ")) else { return false };
    let numbers: Vec<u64> = version.split('.').map_while(|part| part.parse().ok()).collect();
    numbers >= vec![2, 19, 2]
}

fn begin(bench: &Bench, folder: &Path, tools: &Tools, start: &Start, program: &Path) -> Result<Child, Stop> {
    let mut step = bench.srun_on(&start.nodes, if start.one_process { 1 } else { tools.gpus });
    launch(&mut step, folder, &bench.results, tools, start, program);
    bench.spawn(step, Some(&folder.join(format!("{}_perf.txt", start.label))))
}

fn launch(step: &mut Command, folder: &Path, results: &Path, tools: &Tools, start: &Start, program: &Path) {
    // NCCL's log goes to files of its own, never into the table. What the user set stays.
    for (name, value) in [("NCCL_DEBUG", "INFO"), ("NCCL_DEBUG_SUBSYS", "INIT,ENV,NET,TUNING")] {
        if std::env::var_os(name).is_none() {
            step.env(name, value);
        }
    }
    step.env("NCCL_DEBUG_FILE", folder.join(format!("nccl-{}.%h.%p.log", start.label)));
    // MI300X before ROCm 6.4 needs it; others ignore it.
    if std::env::var_os("HSA_NO_SCRATCH_RECLAIM").is_none() {
        step.env("HSA_NO_SCRATCH_RECLAIM", "1");
    }
    // It would split the ranks into groups of which each measures itself.
    step.env_remove("NCCL_TESTS_SPLIT").env_remove("NCCL_TESTS_SPLIT_MASK");
    step.envs(start.env.iter().copied());
    let mpi = if start.one_process { "none" } else { tools.mpi.as_deref().unwrap_or("none") };
    step.arg(format!("--mpi={mpi}"))
        .args(container(tools, results))
        .arg(program)
        .args(start.args(tools.gpus));
}

/// A line of `launch.tsv`: collective, ranks, nodes, exit code, command, file, params.
fn record(folder: &Path, start: &Start, tools: &Tools, program: &Path, code: i32) -> Result<(), Stop> {
    let env: String = start.env.iter().map(|(name, value)| format!("{name}={value} ")).collect();
    let line = format!(
        "{}\t{}\t{}\t{code}\t{env}{} {}\t{}_perf.txt\t{}\n",
        start.collective,
        start.ranks(tools.gpus),
        start.nodes.len(),
        program.display(),
        start.args(tools.gpus).join(" "),
        start.label,
        start.params,
    );
    let path = folder.join("launch.tsv");
    OpenOptions::new()
        .create(true)
        .append(true)
        .open(&path)
        .and_then(|mut file| file.write_all(line.as_bytes()))
        .map_err(|error| Stop::Failed(2, Some(format!("cannot write {}: {error}", path.display()))))
}

fn write(path: &Path, text: &str) -> Result<(), Stop> {
    fs::write(path, text)
        .map_err(|error| Stop::Failed(2, Some(format!("cannot write {}: {error}", path.display()))))
}

/// A program of nccl-tests or rccl-tests. MPI builds have several names; NVIDIA's and AMD's containers and images put them
/// in these folders. In a container only its name is known.
fn perf(tools: &Tools, collective: &str) -> Option<PathBuf> {
    const FOLDERS: [&str; 6] = [
        "/opt/nccl_tests/build",
        "/opt/nccl-tests/build",
        "/opt/oci-hpc/nccl-test/build",
        "/opt/rccl-tests/build",
        "/usr/local/nccl-tests/build",
        "/opt/nccl-tests/bin",
    ];
    let name = format!("{collective}_perf");
    if tools.image.is_some() {
        return Some(tools.folder.as_ref().map_or_else(|| PathBuf::from(&name), |folder| folder.join(&name)));
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let searched = std::env::split_paths(&path).chain(FOLDERS.iter().map(PathBuf::from));
    // What the caller gave is meant: nothing else is taken in its place.
    let folders: Vec<PathBuf> = match &tools.folder {
        Some(folder) => vec![folder.clone(), folder.join("build")],
        None => searched.collect(),
    };
    folders
        .into_iter()
        .flat_map(|folder| [folder.join(&name), folder.join(format!("{name}_mpi"))])
        .find(|file| rustix::fs::access(file, rustix::fs::Access::EXEC_OK).is_ok() && file.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tools(mpi: Option<&str>, image: Option<&str>) -> Tools {
        Tools { image: image.map(str::to_owned), folder: None, mpi: mpi.map(str::to_owned), gpus: 8 }
    }

    fn nodes(count: usize) -> Vec<String> {
        (1..=count).map(|n| format!("n{n}")).collect()
    }

    #[test]
    fn every_collective_world_pair_and_the_run_without_nvlink() {
        let all = starts(&tools(Some("pmix"), None), &nodes(5), "16G");
        let labels: Vec<&str> = all.iter().map(|start| start.label.as_str()).collect();
        assert_eq!(labels[..11], ALL);
        assert_eq!(
            labels[11..],
            [
                "all_reduce.1-nodes",
                "alltoall.1-nodes",
                "all_reduce.2-nodes",
                "alltoall.2-nodes",
                "all_reduce.4-nodes",
                "alltoall.4-nodes",
                "all_reduce.pair-n1-n2",
                "all_reduce.pair-n3-n4",
                "all_reduce.nvlink-off",
            ]
        );
        assert_eq!(all[0].args(8).join(" "), "-b 8 -e 16G -f 2 -g 1 -w 5 -a 3 -c 1");
        assert_eq!((all[0].ranks(8), all[13].ranks(8), all[17].params.as_str()), (40, 16, "pair=n1,n2"));
        let off = all.last().unwrap();
        assert_eq!(
            (off.nodes.len(), off.params.as_str(), off.env[0].0),
            (1, "variant=nvlink_off", "NCCL_P2P_DISABLE")
        );
        // 64 nodes and more: 32 pairs.
        let many = starts(&tools(Some("pmix"), None), &nodes(128), "16G");
        assert_eq!(many.iter().filter(|start| start.params.starts_with("pair=")).count(), 32);
        // A small profile ends where its message ends.
        assert!(
            starts(&tools(Some("pmix"), None), &nodes(2), "16M").iter().all(|start| start.sizes.1 == "16M")
        );
    }

    #[test]
    fn without_mpi_one_process_holds_one_nodes_gpus() {
        let all = starts(&tools(None, None), &nodes(4), "1G");
        assert!(all.iter().all(|start| start.one_process && start.nodes == ["n1"]));
        assert_eq!(all.len(), ALL.len() + 1);
        assert!(all[0].args(8).join(" ").contains("-g 8 "));
        assert_eq!(all[0].ranks(8), 8);
    }

    #[test]
    fn the_command_line_follows_the_launch_rules() {
        let of = |tools: &Tools, start: &Start| {
            let mut step = Command::new("srun");
            let program = perf(tools, "all_reduce")
                .unwrap_or_else(|| PathBuf::from("/opt/nccl-tests/build/all_reduce_perf"));
            launch(
                &mut step,
                Path::new("/r/raw/collectives/nccl-tests"),
                Path::new("/r"),
                tools,
                start,
                &program,
            );
            let args: Vec<String> = step.get_args().map(|arg| arg.to_string_lossy().into_owned()).collect();
            let log = step
                .get_envs()
                .find(|(name, _)| *name == "NCCL_DEBUG_FILE")
                .and_then(|(_, value)| value)
                .unwrap();
            (args.join(" "), log.to_string_lossy().into_owned())
        };
        let plain = tools(Some("pmix"), None);
        let (args, log) = of(&plain, &starts(&plain, &nodes(2), "1G")[0]);
        assert_eq!(
            args,
            "--mpi=pmix /opt/nccl-tests/build/all_reduce_perf -b 8 -e 1G -f 8 -g 1 -w 5 -a 3 -c 1"
        );
        assert_eq!(log, "/r/raw/collectives/nccl-tests/nccl-all_reduce.%h.%p.log");
        let boxed = tools(Some("pmix"), Some("nvcr.io#nvidia/pytorch:25.01-py3"));
        let (args, _) = of(&boxed, &starts(&boxed, &nodes(2), "1G")[0]);
        assert_eq!(
            args,
            "--mpi=pmix --container-image=nvcr.io#nvidia/pytorch:25.01-py3 --no-container-remap-root --no-container-mount-home \
             --container-mounts=/r:/r all_reduce_perf -b 8 -e 1G -f 8 -g 1 -w 5 -a 3 -c 1"
        );
        let alone = tools(None, None);
        assert!(of(&alone, &starts(&alone, &nodes(2), "1G")[0]).0.starts_with("--mpi=none "));
    }

    #[test]
    fn the_mpi_plug_in_is_chosen_from_what_slurm_lists() {
        for (listed, word) in [
            (
                "MPI plugin types are...\n\tnone\n\tpmi2\n\tpmix\nspecific pmix plugin versions available: pmix_v4\n",
                Some("pmix"),
            ),
            ("srun: MPI types are...\nsrun: pmix_v3\nsrun: pmix_v4\nsrun: none", Some("pmix_v4")),
            ("\tnone\n\tcray_shasta\n\tpmi2\n", Some("pmi2")),
            ("\tnone\n", None),
            ("", None),
        ] {
            assert_eq!(mpi_word(listed).as_deref(), word, "{listed}");
        }
    }

    #[test]
    fn a_given_folder_is_the_only_one_searched_and_mpi_is_seen_in_the_file() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let given = Tools { folder: Some(dir.path().to_owned()), ..tools(None, None) };
        assert_eq!(perf(&given, "all_reduce"), None);
        let file = dir.path().join("build/all_reduce_perf_mpi");
        fs::create_dir(dir.path().join("build")).unwrap();
        fs::write(&file, b"\x7fELF libnccl.so.2\0libmpi.so.40\0").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(perf(&given, "all_reduce"), Some(file.clone()));
        assert!(speaks_mpi(&file));
        fs::write(&file, b"\x7fELF libnccl.so.2\0").unwrap();
        assert!(!speaks_mpi(&file));
    }

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
    fn only_releases_that_write_iterations_are_asked_for_them() {
        for (version, asked) in [
            (Some("nccl-tests 2.19.6"), true),
            (Some("nccl-tests 2.19.2"), true),
            (Some("nccl-tests 3.0.0"), true),
            (Some("nccl-tests 2.17.9"), false),
            (Some("rccl-tests 2.19.6"), false),
            (Some("nccl-tests"), false),
            (None, false),
        ] {
            assert_eq!(reports_iterations(version), asked, "{version:?}");
        }
    }
}
