//! How nccl-tests and rccl-tests are found and started.
//!
//! One task is one GPU; all tasks are one world only when Slurm has an MPI plug-in and the programs were built with MPI, so
//! without either one process holds all GPUs of one node. The rules of the command line each have a row in the test
//! `the_command_line_follows_the_launch_rules`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::launch::{Container, Launch};

/// Collectives in the order of their worth, should the time run out; nccl-tests' names.
pub const ALL: [&str; 11] = [
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
/// Nodes that are measured in pairs at most.
pub const PAIRED: usize = 64;
/// GPUs' own links and shared memory off: what is left goes through the network cards.
pub const NO_LINKS: [(&str, &str); 2] = [("NCCL_P2P_DISABLE", "1"), ("NCCL_SHM_DISABLE", "1")];
/// What NCCL's log must hold to tell which way it took, and who set what.
const SUBSYSTEMS: &str = "INIT,BOOTSTRAP,ENV,NET,TUNING";

/// How the programs are reached.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tools {
    /// What they run in; none: the node's own files.
    pub container: Option<Container>,
    /// Modules, where nothing else was given.
    pub launch: Launch,
    /// Folder of `payload/`.
    pub parts: PathBuf,
    /// By collective.
    pub programs: BTreeMap<String, PathBuf>,
    /// Word for srun's `--mpi`; none: the tasks would not find each other.
    pub mpi: Option<String>,
    /// GPUs of a node.
    pub gpus: u32,
    /// NCCL Inspector's library, or why it cannot be used.
    pub inspector: Inspector,
}

/// NCCL Inspector, where the programs run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Inspector {
    /// Its library.
    At(PathBuf),
    /// Half a sentence.
    None(String),
}

impl Default for Inspector {
    fn default() -> Self {
        Self::None("it was not looked for".to_owned())
    }
}

/// One start of one program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Start {
    /// Name of its files.
    pub label: String,
    /// nccl-tests' name.
    pub collective: &'static str,
    /// Where it runs.
    pub nodes: Vec<String>,
    /// Smallest and largest message in nccl-tests' notation, and the factor between sizes.
    pub sizes: (String, String, u32),
    /// Set for it.
    pub env: Vec<(&'static str, String)>,
    /// `variant=nvlink_off`, `pair=n1,n2;round=2`; empty for the sweep over all nodes.
    pub params: String,
    /// One process for all GPUs of the one node.
    pub one_process: bool,
    /// Options of newer releases, and the JSON file that they write.
    pub more: Vec<String>,
}

impl Start {
    /// With nothing special.
    #[must_use]
    pub fn of(label: &str, collective: &'static str, nodes: &[String], sizes: (&str, &str, u32)) -> Self {
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
    #[must_use]
    pub fn args(&self, gpus: u32) -> Vec<String> {
        let (from, to, factor) = &self.sizes;
        let each = if self.one_process { gpus } else { 1 };
        // -a 3: the slowest rank's time. -w 5: releases differ in their warm-up.
        let args = format!("-b {from} -e {to} -f {factor} -g {each} -w 5 -a 3 -c 1");
        args.split(' ').map(str::to_owned).chain(self.more.iter().cloned()).collect()
    }

    /// Ranks that the table must list.
    #[must_use]
    pub fn ranks(&self, gpus: u32) -> u64 {
        self.nodes.len() as u64 * u64::from(gpus)
    }

    /// As it is kept: what was set, the container, the program, its arguments.
    #[must_use]
    pub fn command(&self, tools: &Tools, program: &Path) -> String {
        let env: String = self.env.iter().map(|(name, value)| format!("{name}={value} ")).collect();
        let container =
            tools.container.as_ref().map_or(String::new(), |one| format!("--container-image={} ", one.image));
        format!("{env}{container}{} {}", program.display(), self.args(tools.gpus).join(" "))
    }
}

/// Factor between sizes of the sweep, and the smallest large message, for the largest one.
fn steps(last: &str) -> (u32, &'static str) {
    if last == "16G" { (2, "128M") } else { (8, "1M") }
}

/// All starts but the pairs, the most telling ones first. `last` is the largest message.
#[must_use]
pub fn starts(tools: &Tools, nodes: &[String], last: &str) -> Vec<Start> {
    let (fine, large) = steps(last);
    let Some(first) = nodes.get(..1) else { return Vec::new() };
    let alone = |start: Start| Start { one_process: tools.mpi.is_none(), ..start };
    let mut all = Vec::new();
    if tools.mpi.is_some() {
        all.extend(ALL.iter().map(|name| Start::of(name, name, nodes, ("8", last, fine))));
        let mut count = 1;
        while count < nodes.len() {
            for name in ["all_reduce", "alltoall"] {
                let part = &nodes[..count];
                all.push(Start::of(&format!("{name}.{count}-nodes"), name, part, (large, last, 2)));
            }
            count *= 2;
        }
    } else {
        all.extend(ALL.iter().map(|name| alone(Start::of(name, name, first, ("8", last, fine)))));
    }
    if tools.gpus > 1 {
        all.push(alone(Start {
            env: NO_LINKS.map(|(name, value)| (name, value.to_owned())).to_vec(),
            params: "variant=nvlink_off".to_owned(),
            ..Start::of("all_reduce.nvlink-off", "all_reduce", first, (large, last, 2))
        }));
    }
    all
}

/// Two nodes alone, in a round of pairs that run at the same time.
#[must_use]
pub fn pair(nodes: &[String; 2], round: usize, last: &str) -> Start {
    let (_, large) = steps(last);
    let label = match round {
        1 => format!("all_reduce.pair-{}", nodes.join("-")),
        _ => format!("all_reduce.pair-{}.round-{round}", nodes.join("-")),
    };
    Start {
        params: format!("pair={};round={round}", nodes.join(",")),
        ..Start::of(&label, "all_reduce", nodes, (large, last, 8))
    }
}

/// One size under NCCL Inspector, which writes every call of every rank into `dumps`. A start of its own, because the
/// plug-in makes NCCL time its kernels and writes files: nothing that was measured under it is a figure.
///
/// Fifty calls of one size are some 30 kB a rank, 250 MB of eight thousand.
#[must_use]
pub fn inspected(tools: &Tools, nodes: &[String], library: &Path, dumps: &Path) -> Start {
    Start {
        env: vec![
            ("NCCL_PROFILER_PLUGIN", library.display().to_string()),
            ("NCCL_INSPECTOR_ENABLE", "1".to_owned()),
            ("NCCL_INSPECTOR_DUMP_DIR", dumps.display().to_string()),
            // Without it format v4.0 writes nothing.
            ("NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS", "500".to_owned()),
            // Another output of the site would take the place of the dumps.
            ("NCCL_INSPECTOR_PROM_DUMP", "0".to_owned()),
            ("NCCL_INSPECTOR_OTEL_EXPORT", "0".to_owned()),
        ],
        one_process: tools.mpi.is_none(),
        params: "variant=inspector".to_owned(),
        more: ["-n", "20"].map(str::to_owned).to_vec(),
        ..Start::of("all_reduce.inspector", "all_reduce", nodes, ("256M", "256M", 2))
    }
}

/// NCCL's log level: what tells its ways. A level that the user or the site set below that would leave the guards blind.
/// The collectives whose ways are looked at tell all, the others only what goes wrong: a large job has a log a process.
fn level(collective: &str, user: Option<&str>) -> &'static str {
    let user = user.map(str::to_ascii_uppercase);
    match (user.as_deref(), collective) {
        (Some("TRACE"), _) => "TRACE",
        (Some("INFO"), _) | (_, "all_reduce" | "alltoall") => "INFO",
        _ => "WARN",
    }
}

/// NCCL's subsystems in its log: ours, and what the user wants besides.
fn subsystems(user: Option<&str>) -> String {
    match user {
        Some("ALL") => "ALL".to_owned(),
        // `^NET` leaves out what is needed.
        Some(more) if !more.is_empty() && !more.starts_with('^') => format!("{SUBSYSTEMS},{more}"),
        _ => SUBSYSTEMS.to_owned(),
    }
}

/// Completes a step that has its nodes and tasks. `set` is the job's environment.
pub fn launch(
    step: &mut Command,
    (folder, results): (&Path, &Path),
    tools: &Tools,
    start: &Start,
    program: &Path,
    set: impl Fn(&str) -> Option<String>,
) {
    // NCCL's log goes to files of its own, never into the table.
    step.env("NCCL_DEBUG", level(start.collective, set("NCCL_DEBUG").as_deref()))
        .env("NCCL_DEBUG_SUBSYS", subsystems(set("NCCL_DEBUG_SUBSYS").as_deref()))
        .env("NCCL_DEBUG_FILE", folder.join(format!("nccl-{}.%h.%p.log", start.label)));
    for (name, value) in [
        // MI300X before ROCm 6.4 needs it; others ignore it.
        ("HSA_NO_SCRATCH_RECLAIM", "1"),
        // Open MPI only starts the ranks and shares NCCL's id; its own collective library is known to hang there.
        ("OMPI_MCA_coll_hcoll_enable", "0"),
    ] {
        if set(name).is_none() {
            step.env(name, value);
        }
    }
    // It would split the ranks into groups of which each measures itself.
    step.env_remove("NCCL_TESTS_SPLIT").env_remove("NCCL_TESTS_SPLIT_MASK");
    step.envs(start.env.iter().map(|(name, value)| (name, value)));
    let mpi = if start.one_process { "none" } else { tools.mpi.as_deref().unwrap_or("none") };
    // Ranks of one node are neighbours, as rings and the pairs' arithmetic take it.
    step.arg("--distribution=block").arg(format!("--mpi={mpi}"));
    match &tools.container {
        Some(container) => {
            step.args(container.words(&[results, &tools.parts], &tools.parts)).arg(program);
        }
        None => {
            step.args(tools.launch.words(program));
        }
    }
    step.args(start.args(tools.gpus));
}

/// What `srun --mpi=list` prints of pmix, its newest form, and pmi2, in the order in which they are to be tried.
#[must_use]
pub fn mpi_words(listed: &str) -> Vec<String> {
    let words =
        || listed.split(|c: char| c.is_whitespace() || c == ',').map(|word| word.trim_end_matches(':'));
    let number = |word: &str| word.trim_start_matches("pmix_v").parse().unwrap_or(0u32);
    let newest = words().filter(|word| word.starts_with("pmix_v")).max_by_key(|word| number(word));
    let plain = |name: &'static str| words().any(|word| word == name).then_some(name);
    [plain("pmix").or(newest), plain("pmi2")].into_iter().flatten().map(str::to_owned).collect()
}

/// nccl-tests 2.19.2 and later.
#[must_use]
pub fn reports_iterations(version: Option<&str>) -> bool {
    let Some(version) = version.and_then(|text| text.strip_prefix("nccl-tests ")) else { return false };
    let numbers: Vec<u64> = version.split('.').map_while(|part| part.parse().ok()).collect();
    numbers >= vec![2, 19, 2]
}

#[cfg(test)]
mod tests {
    use super::super::launch::Runtime;
    use super::*;

    fn tools(mpi: Option<&str>) -> Tools {
        Tools { mpi: mpi.map(str::to_owned), gpus: 8, parts: PathBuf::from("/p"), ..Tools::default() }
    }

    fn boxed(runtime: Runtime, image: &str) -> Tools {
        let container = Container {
            image: image.to_owned(),
            runtime,
            name: "clustermax-7-nccl".to_owned(),
            mounts: Some("/data:/data".to_owned()),
        };
        Tools { container: Some(container), ..tools(Some("pmix")) }
    }

    fn nodes(count: usize) -> Vec<String> {
        (1..=count).map(|n| format!("n{n}")).collect()
    }

    #[test]
    fn every_collective_every_world_and_the_run_without_nvlink() {
        let all = starts(&tools(Some("pmix")), &nodes(5), "16G");
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
                "all_reduce.nvlink-off",
            ]
        );
        assert_eq!(all[0].args(8).join(" "), "-b 8 -e 16G -f 2 -g 1 -w 5 -a 3 -c 1");
        assert_eq!((all[0].ranks(8), all[13].ranks(8)), (40, 16));
        let off = all.last().unwrap();
        assert_eq!(
            (off.nodes.len(), off.params.as_str(), off.env[0].0),
            (1, "variant=nvlink_off", "NCCL_P2P_DISABLE")
        );
        // A small profile ends where its message ends.
        assert!(starts(&tools(Some("pmix")), &nodes(2), "16M").iter().all(|start| start.sizes.1 == "16M"));
        let two = [nodes(2)[0].clone(), nodes(2)[1].clone()];
        let second = pair(&two, 2, "16G");
        assert_eq!(
            (second.label.as_str(), second.params.as_str(), second.ranks(8)),
            ("all_reduce.pair-n1-n2.round-2", "pair=n1,n2;round=2", 16)
        );
        assert_eq!(pair(&two, 1, "16G").label, "all_reduce.pair-n1-n2");
    }

    #[test]
    fn without_mpi_one_process_holds_one_nodes_gpus() {
        let all = starts(&tools(None), &nodes(4), "1G");
        assert!(all.iter().all(|start| start.one_process && start.nodes == ["n1"]));
        assert_eq!(all.len(), ALL.len() + 1);
        assert!(all[0].args(8).join(" ").contains("-g 8 "));
        assert_eq!(all[0].ranks(8), 8);
    }

    /// The words after srun's own, and the environment.
    fn line(
        tools: &Tools,
        start: &Start,
        set: &[(&str, &str)],
    ) -> (String, BTreeMap<String, Option<String>>) {
        let mut step = Command::new("srun");
        let own = |name: &str| set.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        let program = Path::new("/opt/nccl-tests/build/all_reduce_perf");
        launch(
            &mut step,
            (Path::new("/r/raw/collectives/nccl-tests"), Path::new("/r")),
            tools,
            start,
            program,
            own,
        );
        let text = |word: &std::ffi::OsStr| word.to_string_lossy().into_owned();
        let env = step.get_envs().map(|(name, value)| (text(name), value.map(text))).collect();
        (step.get_args().map(text).collect::<Vec<_>>().join(" "), env)
    }

    #[test]
    fn the_command_line_follows_the_launch_rules() {
        /// What it is about, what is started, words that must stand there in this order, and words that must not.
        type Row<'a> = (&'a str, &'a Tools, &'a Start, &'a [&'a str], &'a [&'a str]);
        let mpi = tools(Some("pmix"));
        let world = &starts(&mpi, &nodes(2), "1G")[0];
        let alone = tools(None);
        let single = &starts(&alone, &nodes(2), "1G")[0];
        let pyxis = boxed(Runtime::Pyxis, "nvcr.io#nvidia/pytorch:25.01-py3");
        let enroot = boxed(Runtime::Enroot, "/shared/nccl.sqsh");
        let modules = Tools {
            launch: Launch { modules: vec!["nccl-tests/2.17".to_owned()], ..Launch::default() },
            ..tools(Some("pmix"))
        };
        let rows: [Row<'_>; 11] = [
            (
                "the MPI plug-in is named, never left to MpiDefault",
                &mpi,
                world,
                &["--mpi=pmix", "all_reduce_perf"],
                &[],
            ),
            ("one GPU a task", &mpi, world, &["all_reduce_perf", "-g 1"], &["--gpus-per-task"]),
            ("one process for a node without MPI", &alone, single, &["--mpi=none", "-g 8"], &[]),
            ("ranks of a node are neighbours", &mpi, world, &["--distribution=block"], &["cyclic"]),
            (
                "no unbuffered output, which mangles lines, and no labels",
                &mpi,
                world,
                &[],
                &["-u ", "--unbuffered", "--label"],
            ),
            (
                "the slowest rank's time, five warm-ups, every value checked",
                &mpi,
                world,
                &["-w 5", "-a 3", "-c 1"],
                &[],
            ),
            ("8 bytes on, by a factor", &mpi, world, &["-b 8", "-e 1G", "-f 8"], &[]),
            (
                "Pyxis: the image, no root, no home folder, the results",
                &pyxis,
                world,
                &[
                    "--mpi=pmix",
                    "--container-image=nvcr.io#nvidia/pytorch:25.01-py3",
                    "--container-name=clustermax-7-nccl",
                    "--no-container-remap-root",
                    "--no-container-mount-home",
                    "--container-mounts=/r:/r,/p:/p,/data:/data",
                    "/opt/nccl-tests/build/all_reduce_perf -b 8",
                ],
                &["--container-remap-root ", "enroot"],
            ),
            (
                "enroot alone: in front of the program, after srun's options",
                &enroot,
                world,
                &[
                    "--mpi=pmix",
                    "enroot start --conf /p/payload/enroot.conf.sh",
                    "--mount /r:/r --mount /p:/p --mount /data:/data /shared/nccl.sqsh",
                    "/opt/nccl-tests/build/all_reduce_perf -b 8",
                ],
                &["--container-image"],
            ),
            (
                "after loading modules, where the site has the programs in one",
                &modules,
                world,
                &["--mpi=pmix", "bash -lc", "nccl-tests/2.17", "/opt/nccl-tests/build/all_reduce_perf -b 8"],
                &[],
            ),
            ("outside of a container there is none", &mpi, world, &[], &["container", "enroot"]),
        ];
        for (rule, tools, start, has, lacks) in rows {
            let (words, _) = line(tools, start, &[]);
            let mut rest = words.as_str();
            for word in has {
                let at =
                    rest.find(word).unwrap_or_else(|| panic!("{rule}: no {word:?} (in order) in {words}"));
                rest = &rest[at..];
            }
            for word in lacks {
                assert!(!words.contains(word), "{rule}: {word:?} in {words}");
            }
        }
    }

    #[test]
    fn the_environment_follows_the_launch_rules() {
        /// What the job had set, what is started, the variable, what the task gets; none: taken away; "": as it was.
        type Row<'a> = (&'a [(&'a str, &'a str)], &'a str, &'a str, Option<&'a str>);
        let mpi = tools(Some("pmix"));
        let all = starts(&mpi, &nodes(2), "1G");
        let of = |label: &str| all.iter().find(|start| start.label == label).unwrap();
        let unset: &[(&str, &str)] = &[];
        let rows: [Row<'_>; 18] = [
            (unset, "all_reduce", "NCCL_DEBUG", Some("INFO")),
            (unset, "alltoall.1-nodes", "NCCL_DEBUG", Some("INFO")),
            (unset, "gather", "NCCL_DEBUG", Some("WARN")),
            // A site's VERSION or WARN would leave the guard nccl_network blind.
            (&[("NCCL_DEBUG", "VERSION")], "all_reduce", "NCCL_DEBUG", Some("INFO")),
            (&[("NCCL_DEBUG", "warn")], "all_reduce", "NCCL_DEBUG", Some("INFO")),
            (&[("NCCL_DEBUG", "TRACE")], "gather", "NCCL_DEBUG", Some("TRACE")),
            (&[("NCCL_DEBUG", "info")], "gather", "NCCL_DEBUG", Some("INFO")),
            (unset, "all_reduce", "NCCL_DEBUG_SUBSYS", Some("INIT,BOOTSTRAP,ENV,NET,TUNING")),
            (
                &[("NCCL_DEBUG_SUBSYS", "COLL")],
                "all_reduce",
                "NCCL_DEBUG_SUBSYS",
                Some("INIT,BOOTSTRAP,ENV,NET,TUNING,COLL"),
            ),
            (
                &[("NCCL_DEBUG_SUBSYS", "^NET")],
                "all_reduce",
                "NCCL_DEBUG_SUBSYS",
                Some("INIT,BOOTSTRAP,ENV,NET,TUNING"),
            ),
            (&[("NCCL_DEBUG_SUBSYS", "ALL")], "all_reduce", "NCCL_DEBUG_SUBSYS", Some("ALL")),
            // Apart from the table, also where the job had a file of its own.
            (
                &[("NCCL_DEBUG_FILE", "/tmp/x")],
                "all_reduce",
                "NCCL_DEBUG_FILE",
                Some("/r/raw/collectives/nccl-tests/nccl-all_reduce.%h.%p.log"),
            ),
            (unset, "all_reduce", "NCCL_TESTS_SPLIT", None),
            (&[("NCCL_TESTS_SPLIT", "AND 0x7")], "all_reduce", "NCCL_TESTS_SPLIT_MASK", None),
            (unset, "all_reduce.nvlink-off", "NCCL_P2P_DISABLE", Some("1")),
            (unset, "all_reduce", "OMPI_MCA_coll_hcoll_enable", Some("0")),
            (&[("OMPI_MCA_coll_hcoll_enable", "1")], "all_reduce", "OMPI_MCA_coll_hcoll_enable", Some("")),
            // NCCL's choices, and the site's fabric settings, are left as the job has them.
            (
                &[("NCCL_IB_HCA", "ibp"), ("UCX_TLS", "tcp"), ("NCCL_ALGO", "Ring")],
                "all_reduce",
                "NCCL_ALGO",
                Some(""),
            ),
        ];
        for (set, label, name, wanted) in rows {
            let (_, env) = line(&mpi, of(label), set);
            match (env.get(name), wanted) {
                (None, Some("")) => {}
                (Some(value), wanted) => assert_eq!(value.as_deref(), wanted, "{label} {name} {set:?}"),
                (None, wanted) => panic!("{label}: {name} is left alone, not {wanted:?}"),
            }
        }
        // Nothing of NCCL's is set but its log, and what a variant says.
        let (_, env) = line(&mpi, of("all_reduce"), &[]);
        let set: Vec<&str> =
            env.iter().filter(|(_, value)| value.is_some()).map(|(name, _)| name.as_str()).collect();
        assert_eq!(
            set,
            [
                "HSA_NO_SCRATCH_RECLAIM",
                "NCCL_DEBUG",
                "NCCL_DEBUG_FILE",
                "NCCL_DEBUG_SUBSYS",
                "OMPI_MCA_coll_hcoll_enable"
            ]
        );
    }

    #[test]
    fn the_inspector_has_a_start_of_its_own() {
        let library = Path::new("/opt/nccl/lib/libnccl-profiler-inspector.so");
        let dumps = Path::new("/r/raw/collectives/nccl-tests/inspector");
        let mpi = tools(Some("pmix"));
        let start = inspected(&mpi, &nodes(2), library, dumps);
        // What the job had set for a plug-in of its own does not reach this start.
        let (words, env) = line(&mpi, &start, &[("NCCL_INSPECTOR_PROM_DUMP", "1")]);
        assert!(words.contains("-b 256M -e 256M -f 2 -g 1") && words.ends_with("-n 20"), "{words}");
        let set: Vec<(&str, &str)> = env
            .iter()
            .filter(|(name, _)| name.starts_with("NCCL_PROFILER") || name.starts_with("NCCL_INSPECTOR"))
            .map(|(name, value)| (name.as_str(), value.as_deref().unwrap_or_default()))
            .collect();
        assert_eq!(
            set,
            [
                ("NCCL_INSPECTOR_DUMP_DIR", "/r/raw/collectives/nccl-tests/inspector"),
                ("NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS", "500"),
                ("NCCL_INSPECTOR_ENABLE", "1"),
                ("NCCL_INSPECTOR_OTEL_EXPORT", "0"),
                ("NCCL_INSPECTOR_PROM_DUMP", "0"),
                ("NCCL_PROFILER_PLUGIN", "/opt/nccl/lib/libnccl-profiler-inspector.so"),
            ]
        );
        assert!(inspected(&tools(None), &nodes(1), library, dumps).one_process);
        // No figure is taken under it.
        let all = starts(&Tools { inspector: Inspector::At(library.to_owned()), ..mpi }, &nodes(2), "1G");
        assert!(all.iter().all(|start| start.env.iter().all(|(name, _)| !name.contains("PROFILER"))));
    }

    #[test]
    fn the_mpi_plug_in_is_chosen_from_what_slurm_lists() {
        for (listed, words) in [
            (
                "MPI plugin types are...\n\tnone\n\tpmi2\n\tpmix\nspecific pmix plugin versions available: pmix_v4\n",
                &["pmix", "pmi2"][..],
            ),
            ("srun: MPI types are...\nsrun: pmix_v3\nsrun: pmix_v4\nsrun: none", &["pmix_v4"]),
            ("srun: pmix_v9\nsrun: pmix_v10\n", &["pmix_v10"]),
            ("\tnone\n\tcray_shasta\n\tpmi2\n", &["pmi2"]),
            ("\tnone\n", &[]),
            ("", &[]),
        ] {
            assert_eq!(mpi_words(listed), words, "{listed}");
        }
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
