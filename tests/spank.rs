//! The SPANK plugin on real clusters: its options in every context, what a refused step does to its job, and what Slurm
//! itself does with a hook that fails (`docs/spank.md` tells the results by release).

#![allow(clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use harness::{Cluster, Said, project, run};

/// How every line to a user begins.
const MARK: &str = "clustermax: node ";
/// Slurm's variable for an option, without the option's name.
const VARIABLE: &str = "SLURM_SPANK__SLURM_SPANK_OPTION_clustermax_clustermax_";

/// Runs a command as the user. What Slurm says of a job that waits for its turn is left out.
fn user(c: &Cluster, args: &[&str]) -> Said {
    let said = run(&mut c.user_command(args));
    let waits = |line: &&str| {
        line.starts_with("srun: job ")
            && (line.contains("queued and waiting") || line.contains("has been allocated"))
    };
    let err = said.err.lines().filter(|line| !waits(line)).map(|line| format!("{line}\n")).collect();
    Said { err, ..said }
}

/// Runs a batch job to its end; `{out}` in the arguments is its output file. Gives its id and output.
fn batch(c: &Cluster, name: &str, args: &[&str]) -> (String, String, Said) {
    let out = c.scratch().join(name);
    // A job that Slurm holds would never end.
    let mut all = vec!["timeout", "60", "sbatch", "--wait", "--parsable", "-o"];
    let path = out.display().to_string();
    all.push(&path);
    all.extend(args);
    let said = user(c, &all);
    let id = said.out.trim().to_owned();
    c.wait(60, "the batch job has settled", || field(c, &id, "JobState") != "COMPLETING");
    (id, std::fs::read_to_string(&out).unwrap_or_default(), said)
}

/// A value of `scontrol show job`.
fn field(c: &Cluster, job: &str, key: &str) -> String {
    let text = c.slurm(&["scontrol", "-o", "show", "job", job]);
    let value = text.split(&format!(" {key}=")).nth(1).unwrap_or_default();
    value.split_whitespace().next().unwrap_or_default().to_owned()
}

/// `FAILED 1:0`: state and exit code of a job that ended.
fn end_of(c: &Cluster, job: &str) -> String {
    format!("{} {}", field(c, job, "JobState"), field(c, job, "ExitCode"))
}

/// Refusals of a strict job. A pass of the health check may tell it of the warning too.
fn refusals(text: &str) -> Vec<&str> {
    text.lines().filter(|line| line.contains("--clustermax-strict was asked for")).collect()
}

fn next_job_id(c: &Cluster) -> String {
    let text = c.slurm(&["scontrol", "show", "config"]);
    text.lines().find(|line| line.starts_with("NEXT_JOB_ID")).expect("NEXT_JOB_ID").to_owned()
}

#[test]
fn options_reach_every_context_and_nothing_is_said_unasked() {
    let c = Cluster::up(&["--nodes", "1", "--gpus", "2", "--health-interval", "600"]);
    let full = format!("{VARIABLE}report=full");
    let asked: &[(&str, &[&str], usize)] = &[
        ("nobody asked", &["srun", "true"], 0),
        ("local", &["srun", "--clustermax-report=full", "true"], 1),
        ("many tasks", &["srun", "-n4", "--clustermax-report=full", "true"], 1),
        ("environment", &["env", &full, "srun", "true"], 1),
        ("the line wins", &["env", &full, "srun", "--clustermax-report=off", "true"], 0),
        ("nested", &["salloc", "--quiet", "--clustermax-report=full", "srun", "true"], 1),
        (
            "nested, no environment",
            &["salloc", "--quiet", "--clustermax-report=full", "srun", "--export=NONE", "/bin/true"],
            1,
        ),
        (
            "nested, own word",
            &["salloc", "--quiet", "--clustermax-report=full", "srun", "--clustermax-report=off", "true"],
            0,
        ),
        ("allocation from the environment", &["env", &full, "salloc", "--quiet", "srun", "true"], 1),
        ("no environment", &["srun", "--export=NONE", "--clustermax-report=full", "/bin/true"], 1),
    ];
    for (what, args, lines) in asked {
        let said = user(&c, args);
        assert_eq!(said.code, 0, "{what}: {}", said.err);
        assert_eq!(said.err.lines().count(), *lines, "{what}: {}", said.err);
        assert_eq!(said.err.matches(MARK).count(), *lines, "{what}: {}", said.err);
        assert_eq!(said.out, "", "{what}");
    }
    // The step in the script, and the script, which is a step itself.
    let (_, out, _) = batch(&c, "batch", &["--clustermax-report=full", "--wrap", "srun true"]);
    assert_eq!(out.matches(MARK).count(), 2, "{out}");
    let script = c.scratch().join("script.sh");
    std::fs::write(&script, "#!/bin/sh\n#SBATCH --clustermax-report=full\ntrue\n").expect("script");
    let (_, out, _) = batch(&c, "script", &[&script.display().to_string()]);
    assert_eq!(out.matches(MARK).count(), 1, "{out}");
    let (_, out, _) = batch(&c, "quiet", &["--wrap", "srun true"]);
    assert_eq!(out, "", "nobody asked");
    // 26.05 reads the user's own environment then, for which `nobody` has no shell: Slurm holds the job.
    let args = ["--export=NONE", "--clustermax-report=full", "--wrap", "/usr/bin/srun /bin/true"];
    let (job, out, said) = batch(&c, "none", &args);
    println!(
        "sbatch --export=NONE: {}, reported by {} of 2 steps",
        end_of(&c, &job),
        out.matches(MARK).count()
    );
    if said.code == 0 {
        assert!(out.contains(MARK), "the nested srun: {out}");
    } else {
        assert_eq!(end_of(&c, &job), "PENDING 0:0", "{}", said.err);
        let _ = user(&c, &["scancel", &job]);
    }

    let before = next_job_id(&c);
    let loud = format!("{VARIABLE}report=loud");
    let script = script.display().to_string();
    for (tool, program) in [("srun", "true"), ("sbatch", script.as_str()), ("salloc", "true")] {
        for (args, why) in [
            (
                &[tool, "--clustermax-report=loud", program][..],
                "report=loud is not known; use off, brief or full",
            ),
            (&["env", &loud, tool, program], "report=loud is not known; use off, brief or full"),
            (
                &[tool, "--clustermax-tags=a=$(reboot)", program],
                "the value of tag \"a\" is none; it takes letters",
            ),
            (&[tool, "--clustermax-tags=a=1,a=2", program], "tag \"a\" is given twice"),
        ] {
            let said = user(&c, args);
            assert!(said.code != 0 && said.err.contains(why), "{args:?}: {} {}", said.code, said.err);
        }
    }
    assert_eq!(next_job_id(&c), before, "nothing of that was submitted");

    // A site's mistake in plugstack.conf, and the plugin listed twice: no user hears of either.
    let plugstack = c.dir().join("etc/plugstack.conf");
    let line = std::fs::read_to_string(&plugstack).expect("plugstack.conf");
    std::fs::write(&plugstack, format!("{} reprot=full\n{line}", line.trim_end())).expect("plugstack.conf");
    for tool in ["srun", "sbatch", "salloc"] {
        let help = user(&c, &[tool, "--help"]);
        assert_eq!((help.code, help.err.as_str()), (0, ""), "{tool} --help");
        for option in ["--clustermax-report=off|brief|full", "--clustermax-strict", "--clustermax-tags=KEY"] {
            assert_eq!(help.out.matches(option).count(), 1, "{tool} {option}: {}", help.out);
        }
    }
    let said = user(&c, &["srun", "-n2", "--clustermax-report=full", "true"]);
    assert_eq!((said.code, said.err.matches(MARK).count()), (0, 1), "{}", said.err);
    let said = user(&c, &["srun", "true"]);
    assert_eq!((said.code, said.err.as_str()), (0, ""));

    // A defect of ours costs a line in slurmd's log, whichever hook it is in.
    let so = panicking(&c);
    for hook in ["init", "user_init", "task_init", "task_exit"] {
        let line = format!("optional {} panic={hook}\n", so.display());
        std::fs::write(&plugstack, line).expect("plugstack.conf");
        let said = user(&c, &["srun", "-n2", "echo", "ran"]);
        assert_eq!((said.code, said.out.as_str()), (0, "ran\nran\n"), "{hook}: {}", said.err);
        let (job, out, _) = batch(&c, hook, &["--wrap", "echo ran"]);
        assert!(out.contains("ran\n"), "{hook}: {out}");
        assert_eq!(end_of(&c, &job), "COMPLETED 0:0", "{hook}");
        let log = std::fs::read_to_string(c.dir().join("log/slurmd-n1.log")).unwrap_or_default();
        assert!(log.contains(&format!("internal error in {hook}: told to panic in {hook}")), "{hook}: {log}");
        assert!(!c.node("n1").drained(), "{hook}: {:?}", c.node("n1"));
    }
}

/// The plugin for the release in use, built to panic where it is told to.
fn panicking(c: &Cluster) -> PathBuf {
    let (major, minor) = release(c);
    // One for each release: tests on two may run at once.
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("spank-{major}.{minor:02}"));
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args([
        "build",
        "--quiet",
        "--package",
        "spank-clustermax",
        "--features",
        "test-panic",
        "--target-dir",
    ]);
    cargo.arg(&target).arg("--manifest-path").arg(project().join("Cargo.toml"));
    let said = run(cargo.env("CLUSTERMAX_SLURM_VERSION", format!("{major}.{minor:02}")));
    assert_eq!(said.code, 0, "{}", said.err);
    let so = c.scratch().join("panicking.so");
    std::fs::copy(target.join("debug/libspank_clustermax.so"), &so).expect("the plugin");
    so
}

#[test]
fn a_refused_step_fails_its_job_and_nothing_else() {
    let c =
        Cluster::up(&["--nodes", "2", "--gpus", "2", "--enforcement", "enforce", "--health-interval", "2"]);
    c.sim_ok(&["inject", "rows-low", "--node", "n1", "--gpu", "0"]);
    let checks = c.node_dir("n1").join("run/checks.json");
    c.wait(30, "the warning is known", || {
        std::fs::read_to_string(&checks).is_ok_and(|text| text.contains("\"token\":\"rowspare\""))
    });
    let strict = |more: &[&'static str]| [&["--clustermax-strict", "--gres=gpu:2"][..], more].concat();
    let told = |text: &str| {
        let lines = refusals(text);
        assert_eq!(lines.len(), 1, "told once: {text}");
        assert!(
            lines[0].contains("clustermax: node n1, GPU 0: ")
                && lines[0].contains("submit again with --exclude=n1"),
            "{text}"
        );
    };
    let healthy = |what: &str| {
        for node in ["n1", "n2"] {
            assert!(!c.node(node).drained(), "{what}: {:?}", c.node(node));
        }
    };

    let said = user(&c, &[&["srun", "-w", "n1", "-n4"][..], &strict(&["/bin/echo", "ran"])].concat());
    println!("srun: exit {}", said.code);
    assert_eq!((said.code, said.out.as_str()), (1, ""), "{}", said.err);
    told(&said.err);
    let said =
        user(&c, &[&["srun", "-w", "n1", "--export=NONE"][..], &strict(&["/bin/echo", "ran"])].concat());
    assert_eq!((said.code, said.out.as_str()), (1, ""), "{}", said.err);
    told(&said.err);
    // Whatever the job says, slurmd's word for the node counts.
    let args = ["srun", "-w", "n1", "--export=ALL,SLURMD_NODENAME=nowhere"];
    let said = user(&c, &[&args[..], &strict(&["/bin/echo", "ran"])].concat());
    assert_eq!((said.code, said.out.as_str()), (1, ""), "{}", said.err);
    healthy("srun");

    let (job, out, said) =
        batch(&c, "batch", &[&["-w", "n1"][..], &strict(&["--wrap", "echo ran"])].concat());
    println!("sbatch: exit {}, {}", said.code, end_of(&c, &job));
    assert_eq!((said.code, end_of(&c, &job).as_str()), (1, "FAILED 1:0"), "{}", said.err);
    assert!(!out.contains("ran\n"), "{out}");
    told(&out);
    healthy("sbatch");

    // salloc's own command runs where salloc does; the steps are refused. No step at all: nobody is refused anything.
    let args = ["sh", "-c", "echo outside; srun echo inside; exit 0"];
    let said = user(&c, &[&["salloc", "--quiet", "-w", "n1"][..], &strict(&args)].concat());
    println!("salloc: exit {}", said.code);
    assert_eq!((said.code, said.out.as_str()), (0, "outside\n"), "{}", said.err);
    told(&said.err);
    let said = user(&c, &[&["salloc", "--quiet", "-w", "n1"][..], &strict(&["true"])].concat());
    assert_eq!((said.code, refusals(&said.err).len()), (0, 0), "the extern step alone: {}", said.err);
    healthy("salloc");

    let scratch = c.scratch().join("array-%a").display().to_string();
    let args = ["--wait", "--parsable", "-w", "n1", "--array=0-1", "-o", &scratch, "--wrap", "echo ran"];
    let said =
        user(&c, &[&["timeout", "90", "sbatch", "--clustermax-strict", "--gres=gpu:2"], &args[..]].concat());
    c.wait(60, "the array has settled", || {
        (0..2).all(|i| field(&c, &format!("{}_{i}", said.out.trim()), "JobState") != "COMPLETING")
    });
    let ends: Vec<_> = (0..2).map(|i| end_of(&c, &format!("{}_{i}", said.out.trim()))).collect();
    println!("array: exit {}, {ends:?}", said.code);
    assert_eq!((said.code, ends), (1, vec!["FAILED 1:0".to_owned(); 2]), "{}", said.err);
    for i in 0..2 {
        told(&std::fs::read_to_string(c.scratch().join(format!("array-{i}"))).expect("output"));
    }
    healthy("array");

    // Each component asks for itself: the healthy one's tasks start, as for any task that fails elsewhere.
    let (bad, good) = (strict(&["-w", "n1", "/bin/echo", "ran"]), strict(&["-w", "n2", "/bin/echo", "ran"]));
    let said = user(&c, &[&["srun"][..], &good, &[":"], &bad].concat());
    println!("heterogeneous srun: exit {}, stdout {:?}", said.code, said.out);
    assert_eq!((said.code, said.out.as_str()), (1, "ran\n"), "{}", said.err);
    told(&said.err);
    healthy("heterogeneous job");

    let said = user(&c, &[&["srun", "-w", "n2"][..], &strict(&["/bin/echo", "ran"])].concat());
    assert_eq!((said.code, said.out.as_str(), said.err.as_str()), (0, "ran\n", ""), "the healthy node");
    let said = user(&c, &["srun", "-w", "n1", "--gres=gpu:2", "/bin/echo", "ran"]);
    assert_eq!((said.code, said.out.as_str()), (0, "ran\n"), "nobody was strict: {}", said.err);
}

/// Builds a SPANK plugin in C for the release in use.
fn probe(c: &Cluster) -> PathBuf {
    let release = c.slurm(&["scontrol", "--version"]);
    let release = release.split_whitespace().nth(1).expect("slurm-wlm RELEASE");
    let numbers: Vec<u32> = release.split('.').map(|n| n.parse().expect("a number")).collect();
    let so = c.scratch().join("probe.so");
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-Wall", "-o"]).arg(&so).arg(project().join("tests/spank_probe.c"));
    cc.arg(format!("-DSLURM_RELEASE={}", (numbers[0] << 16) | (numbers[1] << 8)));
    let said = run(&mut cc);
    assert_eq!(said.code, 0, "{}", said.err);
    so
}

fn write_open(path: &Path, text: &str) {
    std::fs::write(path, text).expect("a file");
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o666);
    std::fs::set_permissions(path, open).expect("an open file");
}

/// What Slurm does with hooks that fail, and whom they run as: why ours return 0 and refuse in `task_init` only.
#[test]
fn what_slurm_makes_of_hooks() {
    let c = Cluster::up(&["--nodes", "2", "--gpus", "0", "--plain"]);
    let scratch = c.scratch();
    let release = release(&c);
    let (calls, fail) = (scratch.join("calls"), scratch.join("fail"));
    write_open(&fail, "");
    write_open(&calls, "");
    let conf = c.dir().join("etc/slurm.conf");
    let text = std::fs::read_to_string(&conf).expect("slurm.conf");
    let plugstack = c.dir().join("etc/plugstack.conf");
    std::fs::write(&plugstack, format!("required {} {}\n", probe(&c).display(), scratch.display()))
        .expect("plugstack.conf");
    std::fs::write(&conf, format!("{text}PlugStackConfig={}\n", plugstack.display())).expect("slurm.conf");
    for daemon in ["slurmd-n1", "slurmd-n2"] {
        c.sim_ok(&["stop", daemon]);
        c.sim_ok(&["start", daemon]);
    }
    c.wait(30, "nodes answer", || c.slurm(&["sinfo", "-h", "-o", "%T"]).trim() == "idle");
    // Privilege: the same on every release, and what the plugin's file reading rests on.
    write_open(&calls, "");
    assert_eq!(user(&c, &["srun", "-w", "n1", "true"]).code, 0);
    let seen = std::fs::read_to_string(&calls).expect("calls");
    println!("{seen}");
    let has = |hook: &str, context: &str, uid: u32, euid: u32| {
        let start = format!("{hook} {context} uid={uid} euid={euid} ");
        assert!(seen.lines().any(|line| line.starts_with(&start)), "no {start}: {seen}");
    };
    let nobody = 65_534;
    has("init", "local", nobody, nobody);
    has("init", "remote", 0, 0);
    has("user_init", "remote", 0, nobody);
    has("task_init_privileged", "remote", 0, 0);
    has("task_init", "remote", nobody, nobody);
    has("task_post_fork", "remote", 0, 0);
    has("task_exit", "remote", 0, 0);
    has("exit", "remote", 0, 0);
    // The extern step has none of the user's hooks.
    let external: Vec<_> = seen.lines().filter(|line| line.ends_with("step=0xfffffffc")).collect();
    assert!(!external.is_empty(), "{seen}");
    assert!(
        !external.iter().any(|line| line.starts_with("task_init ") || line.starts_with("user_init ")),
        "{seen}"
    );

    let revive = || {
        for node in ["n1", "n2"] {
            c.wait(30, "the node is free again", || {
                if c.node(node).drained() {
                    let _ = run(&mut c.command(&[
                        "scontrol",
                        "update",
                        &format!("nodename={node}"),
                        "state=resume",
                    ]));
                }
                c.slurm(&["sinfo", "-h", "-n", node, "-o", "%T"]).trim() == "idle"
            });
        }
    };
    for hook in [
        "init",
        "init_post_opt",
        "user_init",
        "task_init_privileged",
        "task_init",
        "task_post_fork",
        "task_exit",
    ] {
        write_open(&fail, &format!("{hook} remote -1\n"));
        let srun = user(&c, &["srun", "-w", "n1", "-t1", "true"]);
        let drained = |what: &str| {
            c.wait(20, "the job is gone", || c.slurm(&["squeue", "-h", "-t", "R,CG"]).is_empty());
            let nodes: Vec<_> = ["n1", "n2"].into_iter().filter(|n| c.node(n).drained()).collect();
            let reason = nodes.first().map(|n| c.node(n).reason).unwrap_or_default();
            let _ = run(&mut c.command(&["scancel", "--user=nobody"]));
            let text = if nodes.is_empty() { "in service".to_owned() } else { format!("DRAIN \"{reason}\"") };
            println!("{hook:20} {what:6} {text}");
            revive();
            !nodes.is_empty()
        };
        let srun_drained = drained("srun");
        let out = scratch.join("out").display().to_string();
        let sbatch = user(&c, &["sbatch", "--parsable", "-w", "n1", "-o", &out, "--wrap", "true"]);
        let job = sbatch.out.trim().to_owned();
        // To its end, or until Slurm has put it back.
        let over = |job: &str| {
            let back = field(&c, job, "Restarts") != "0" && end_of(&c, job).starts_with("PENDING");
            back || !["PENDING", "RUNNING", "CONFIGURING", "COMPLETING"]
                .iter()
                .any(|s| end_of(&c, job).starts_with(s))
        };
        c.wait(30, "the batch job is over", || over(&job));
        let end = end_of(&c, &job);
        let why = field(&c, &job, "Reason");
        // The table of docs/slurm.md, row by row.
        let wanted = match hook {
            "task_init_privileged" | "task_init" => (1, "FAILED 1:0", false),
            "task_exit" => (0, "COMPLETED 0:0", false),
            _ if release == (22, 5) => (0, "COMPLETED 0:0", true),
            _ => (1, "PENDING 0:0", true),
        };
        // The job is put back before slurmctld has drained its node.
        if wanted.2 {
            c.wait(20, "the node drains", || ["n1", "n2"].into_iter().any(|n| c.node(n).drained()));
        }
        let sbatch_drained = drained("sbatch");
        println!("{hook:20} srun exit {}, batch job {end} {why}", srun.code);
        assert_eq!((srun.code, end.as_str(), sbatch_drained), wanted, "{hook}");
        assert!(!srun_drained || sbatch_drained, "{hook}: srun alone drained");

        // One hook of each kind in the other kinds of jobs.
        if !matches!(hook, "user_init" | "task_init") {
            continue;
        }
        let salloc = user(&c, &["salloc", "--quiet", "-w", "n1", "srun", "true"]);
        let salloc_drained = drained("salloc");
        let args = ["-w", "n1", "--array=0-1", "-o", &out, "--wrap", "true"];
        let array = user(&c, &[&["sbatch", "--parsable"], &args[..]].concat());
        let task = format!("{}_0", array.out.trim());
        c.wait(30, "the array's first task is over", || over(&task));
        let array_end = end_of(&c, &task);
        let array_drained = drained("array");
        let het = user(&c, &["srun", "-w", "n1", "true", ":", "-w", "n2", "true"]);
        let het_drained = drained("het");
        println!(
            "{hook:20} salloc's srun exit {}, array's task {array_end}, heterogeneous srun exit {}",
            salloc.code, het.code
        );
        assert_eq!((salloc.code, array_end.as_str(), het.code), (wanted.0, wanted.1, wanted.0), "{hook}");
        assert_eq!(
            (salloc_drained, array_drained, het_drained),
            (srun_drained, wanted.2, srun_drained),
            "{hook}"
        );
    }
    write_open(&fail, "");
    assert_eq!(user(&c, &["srun", "-N2", "true"]).code, 0);
}

/// A job's record on a node.
fn record(c: &Cluster, node: &str, job: &str) -> Option<serde_json::Value> {
    let path = c.node_dir(node).join(format!("run/jobs/{job}.json"));
    serde_json::from_str(&std::fs::read_to_string(path).ok()?).ok()
}

/// Ids of the jobs that have a record on a node.
fn records(c: &Cluster, node: &str) -> Vec<String> {
    let entries = std::fs::read_dir(c.node_dir(node).join("run/jobs")).into_iter().flatten().flatten();
    let names = entries.filter_map(|e| e.file_name().into_string().ok());
    let mut ids: Vec<String> = names.filter_map(|n| n.strip_suffix(".json").map(str::to_owned)).collect();
    ids.sort();
    ids
}

/// GPU indices in a record.
fn gpus_of(record: &serde_json::Value) -> Vec<u64> {
    let gpus = record["gpus"].as_array().expect("gpus");
    gpus.iter().filter_map(|gpu| gpu["index"].as_u64()).collect()
}

/// A job that waits for files of the test, running on its own.
fn start(c: &Cluster, args: &[&str]) -> Child {
    let mut command = c.user_command(args);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("a job")
}

fn end(child: Child) -> Said {
    child.wait_with_output().expect("the job ends").into()
}

fn told_event(c: &Cluster, node: &str, job: &str, token: &str) -> bool {
    let events = record(c, node, job).map(|record| record["events"].to_string()).unwrap_or_default();
    events.contains(&format!("\"token\":\"{token}\""))
}

/// Shared nodes, job arrays, heterogeneous jobs, `--exclusive`, `--overlap`: each job hears of its own hardware.
#[test]
fn jobs_hear_of_their_own_hardware_only() {
    let c = Cluster::up(&["--nodes", "2", "--enforcement", "enforce", "--health-interval", "2"]);
    let scratch = c.scratch();
    let file = |name: &str| scratch.join(name).display().to_string();
    let touch = |name: &str| std::fs::write(scratch.join(name), "").expect("a file");
    let until = |name: &str| format!("while [ ! -e {} ]; do sleep 0.2; done", file(name));

    // Two jobs share n1. An error of the one's program is told to the one; so is a fault of its GPU.
    let job = |name: &str| {
        let script = format!(
            "echo $SLURM_JOB_ID > {}; srun sh -c 'touch {}; {}'; {}; srun echo second",
            file(&format!("id-{name}")),
            file(&format!("up-{name}")),
            until("go1"),
            until("go2")
        );
        start(
            &c,
            &[
                "salloc",
                "--quiet",
                "-w",
                "n1",
                "--gres=gpu:2",
                "--clustermax-tags=job=shared",
                "sh",
                "-c",
                &script,
            ],
        )
    };
    let (a, b) = (job("a"), job("b"));
    c.wait(60, "both run", || scratch.join("up-a").exists() && scratch.join("up-b").exists());
    let id = |name: &str| {
        std::fs::read_to_string(scratch.join(format!("id-{name}"))).expect("id").trim().to_owned()
    };
    let of = |name: &str| gpus_of(&record(&c, "n1", &id(name)).expect("a record"));
    let (gpus_a, gpus_b) = (of("a"), of("b"));
    println!("shared: GPUs {gpus_a:?} and {gpus_b:?}");
    assert!(gpus_a.len() == 2 && gpus_b.len() == 2 && !gpus_a.iter().any(|g| gpus_b.contains(g)));
    assert_eq!(record(&c, "n1", &id("a")).expect("a record")["tags"]["job"], "shared");
    let metrics = c.node_dir("n1").join("run/clustermax.prom");
    c.wait(20, "the metrics carry the tags", || {
        let text = std::fs::read_to_string(&metrics).unwrap_or_default();
        text.lines().any(|l| l.starts_with("clustermax_job_info{") && l.contains("tag_job=\"shared\""))
    });
    let gpu = gpus_a[1].to_string();
    c.sim_ok(&["inject", "xid:13", "--node", "n1", "--gpu", &gpu]);
    c.wait(30, "a is told", || told_event(&c, "n1", &id("a"), "xid13"));
    touch("go1");
    c.wait(30, "first steps are over", || !c.slurm(&["squeue", "-h", "-s", "-w", "n1"]).contains(".0"));
    // A state, not an event: that every later pass finds again, however long the step takes to start on a loaded machine.
    c.sim_ok(&["inject", "remap-failure", "--node", "n1", "--gpu", &gpu]);
    c.wait_drained("n1", 60);
    touch("go2");
    let (a, b) = (end(a), end(b));
    println!("--- a\n{}--- b\n{}", a.err, b.err);
    assert!(
        a.err.contains(&format!("clustermax: node n1, GPU {gpu}:")) && a.err.contains("Xid 13"),
        "{}",
        a.err
    );
    assert!(a.err.contains("not in the hardware") || a.err.contains("not the hardware"), "{}", a.err);
    assert_eq!(
        a.err.matches("Xid 13").count(),
        1,
        "the refused step is not told of the step before: {}",
        a.err
    );
    assert!(!a.out.contains("second") && a.err.contains("This step is not started here"), "{}", a.err);
    assert_eq!((b.out.as_str(), b.err.as_str()), ("second\n", ""), "b's GPUs are well");
    // salloc is back before the epilog, which still sees the fault and would drain the node once more.
    c.wait(30, "both jobs' epilogs are over", || {
        c.slurm(&["squeue", "-h", "-w", "n1"]).trim().is_empty() && records(&c, "n1").is_empty()
    });
    c.sim_ok(&["clear"]);
    c.slurm(&["scontrol", "update", "nodename=n1", "state=resume"]);

    // --exclusive: the whole node is the job's, with every GPU.
    let said = user(
        &c,
        &["srun", "-w", "n2", "--exclusive", "--gres=gpu:1", "sh", "-c", "echo $SLURM_JOB_ID; sleep 1"],
    );
    let kept = c.node_dir("n2").join(format!("state/jobs/{}.json", said.out.trim()));
    c.wait(20, "the exclusive job's record is kept", || kept.exists());
    let text = std::fs::read_to_string(&kept).expect("record");
    let all = gpus_of(&serde_json::from_str(&text).expect("JSON"));
    println!("--exclusive --gres=gpu:1: GPUs {all:?}");
    assert!(all.len() == 1 || all.len() == 8, "{all:?}");

    // --overlap: two steps at once on one GPU; each tells what happened in its time.
    let wait = format!("touch {}-$SLURM_STEP_ID; {}", file("over"), until("go3"));
    let step = format!("srun --overlap -n1 sh -c '{wait}'");
    let script = format!("echo $SLURM_JOB_ID > {}; {step} & {step} & wait", file("id-over"));
    let over = start(&c, &["salloc", "--quiet", "-n2", "-w", "n2", "--gres=gpu:1", "sh", "-c", &script]);
    c.wait(60, "both steps run", || scratch.join("over-0").exists() && scratch.join("over-1").exists());
    let gpu = gpus_of(&record(&c, "n2", &id("over")).expect("a record"))[0].to_string();
    c.sim_ok(&["inject", "xid:31", "--node", "n2", "--gpu", &gpu]);
    c.wait(30, "the job is told", || told_event(&c, "n2", &id("over"), "xid31"));
    touch("go3");
    let over = end(over);
    let told = over
        .err
        .lines()
        .filter(|l| l.starts_with(MARK) && l.contains(&format!("GPU {gpu}: ")) && l.contains(" UTC)."))
        .count();
    println!("--overlap: told by {told} of 2 steps");
    assert_eq!(told, 2, "{}", over.err);

    // Tasks of an array are jobs of their own.
    let wrap = format!("touch {}-$SLURM_JOB_ID; {}", file("array"), until("go4"));
    let array = user(
        &c,
        &[
            "sbatch",
            "--parsable",
            "--array=0-1",
            "-w",
            "n2",
            "--gres=gpu:3",
            "-o",
            "/dev/null",
            "--wrap",
            &wrap,
        ],
    );
    assert_eq!(array.code, 0, "{}", array.err);
    c.wait(60, "both tasks run", || records(&c, "n2").len() == 2);
    let ids = records(&c, "n2");
    let (one, two) = (
        gpus_of(&record(&c, "n2", &ids[0]).expect("record")),
        gpus_of(&record(&c, "n2", &ids[1]).expect("record")),
    );
    println!("array: jobs {ids:?}, GPUs {one:?} and {two:?}");
    assert!(one.len() == 3 && two.len() == 3 && !one.iter().any(|g| two.contains(g)));
    touch("go4");
    c.wait(60, "the array is over", || records(&c, "n2").is_empty());

    // Components of a heterogeneous job too: each node's record has its component's number.
    c.wait(30, "n1 is free", || c.slurm(&["sinfo", "-h", "-n", "n1", "-o", "%T"]).trim() == "idle");
    let script = format!("srun --het-group=0,1 sh -c '{}'", until("go5"));
    let het = start(
        &c,
        &[
            "salloc",
            "--quiet",
            "-w",
            "n1",
            "--gres=gpu:2",
            ":",
            "-w",
            "n2",
            "--gres=gpu:1",
            "sh",
            "-c",
            &script,
        ],
    );
    c.wait(60, "both components run", || records(&c, "n1").len() == 1 && records(&c, "n2").len() == 1);
    let (first, second) = (records(&c, "n1").remove(0), records(&c, "n2").remove(0));
    let (one, two) = (record(&c, "n1", &first).expect("record"), record(&c, "n2", &second).expect("record"));
    println!(
        "heterogeneous: n1 job {first} GPUs {:?}, n2 job {second} GPUs {:?}",
        gpus_of(&one),
        gpus_of(&two)
    );
    assert_eq!((gpus_of(&one).len(), gpus_of(&two).len()), (2, 1));
    assert_eq!(first.parse::<u32>().expect("id") + 1, second.parse::<u32>().expect("id"));
    c.wait(30, "its step runs", || c.slurm(&["squeue", "-h", "-s", "-w", "n2"]).contains(".0"));
    let gpu = gpus_of(&two)[0].to_string();
    c.sim_ok(&["inject", "xid:13", "--node", "n2", "--gpu", &gpu]);
    c.wait(30, "the component is told", || told_event(&c, "n2", &second, "xid13"));
    touch("go5");
    let het = end(het);
    assert!(het.err.contains(&format!("clustermax: node n2, GPU {gpu}:")), "{}", het.err);
    assert!(!het.err.contains("node n1"), "{}", het.err);
}

/// `22.05` as (22, 5).
fn release(c: &Cluster) -> (u32, u32) {
    let text = c.slurm(&["scontrol", "--version"]);
    let mut numbers = text.split_whitespace().nth(1).expect("slurm-wlm RELEASE").split('.').map(str::parse);
    (numbers.next().expect("major").expect("a number"), numbers.next().expect("minor").expect("a number"))
}

/// Has the daemons of a cluster with the node n1 read a new slurm.conf.
fn restart(c: &Cluster) {
    // Told to end, a controller saves what it knows; one that is killed would bring a finished job back.
    c.slurm(&["scontrol", "shutdown", "slurmctld"]);
    c.wait(30, "slurmctld starts anew", || run(c.sim().args(["start", "slurmctld"])).code == 0);
    c.sim_ok(&["stop", "slurmd-n1"]);
    c.sim_ok(&["start", "slurmd-n1"]);
}

/// What each of Slurm's PrologFlags changes for a job on a healthy node and on one with a fault.
#[test]
fn prolog_flags() {
    let c =
        Cluster::up(&["--nodes", "1", "--gpus", "2", "--enforcement", "enforce", "--health-interval", "600"]);
    let release = release(&c);
    let conf = c.dir().join("etc/slurm.conf");
    let text = std::fs::read_to_string(&conf).expect("slurm.conf");
    // Notes when each prolog began and ended, and where it ran.
    let prolog = c.dir().join("etc/prolog");
    let noted = c.scratch().join("prologs");
    let original = std::fs::read_to_string(&prolog).expect("prolog");
    let note = noted.display();
    let wrapped = original.replace(
        "exec ",
        &format!("echo begin $SLURM_JOB_ID $(cat /proc/self/cgroup | tr '\\n' ' ') >> {note}; sleep 0.5; echo end >> {note}; exec "),
    );
    assert_ne!(wrapped, original);
    std::fs::write(&prolog, wrapped).expect("prolog");

    let all: &[(&str, (u32, u32))] = &[
        ("", (0, 0)),
        ("Alloc", (0, 0)),
        ("Alloc,Contain", (0, 0)),
        ("Alloc,Serial", (0, 0)),
        ("Alloc,ForceRequeueOnFail", (23, 2)),
        ("RunInJob", (24, 5)),
    ];
    for (flags, _) in all.iter().filter(|(_, since)| *since <= release) {
        let line = if flags.is_empty() { String::new() } else { format!("PrologFlags={flags}") };
        std::fs::write(&conf, text.replace("PrologFlags=Alloc,Contain", &line)).expect("slurm.conf");
        restart(&c);
        let idle = || c.slurm(&["sinfo", "-h", "-o", "%T"]).trim() == "idle";
        c.wait(60, "the node is idle", idle);
        let shown = if flags.is_empty() { "(none)" } else { flags };

        // An allocation without a step.
        let said =
            user(&c, &["salloc", "--quiet", "--gres=gpu:1", "sh", "-c", "sleep 1.5; echo $SLURM_JOB_ID"]);
        let id = said.out.trim().to_owned();
        c.wait(30, "the job is over", || records(&c, "n1").is_empty() && idle());
        let had_prolog = c.node_dir("n1").join(format!("state/jobs/{id}.json")).exists();
        // A job with a step: silent, and the record is there from its first step on.
        let said = user(&c, &["srun", "--gres=gpu:1", "sh", "-c", "echo $SLURM_JOB_ID; sleep 1"]);
        assert_eq!((said.code, said.err.as_str()), (0, ""), "{shown}");
        let kept = c.node_dir("n1").join(format!("state/jobs/{}.json", said.out.trim()));
        c.wait(30, "the job's record is kept", || kept.exists());
        c.wait(30, "the node is idle again", idle);

        // Two at once.
        std::fs::write(&noted, "").expect("notes");
        std::fs::set_permissions(&noted, std::os::unix::fs::PermissionsExt::from_mode(0o666)).expect("open");
        let jobs = [0, 1].map(|_| start(&c, &["srun", "--gres=gpu:1", "true"]));
        for job in jobs {
            let said = end(job);
            assert_eq!(said.code, 0, "{shown}: {}", said.err);
        }
        let notes = std::fs::read_to_string(&noted).expect("notes");
        let overlap = notes
            .lines()
            .collect::<Vec<_>>()
            .windows(2)
            .any(|w| w[0].starts_with("begin") && w[1].starts_with("begin"));
        let in_job = notes.lines().any(|l| l.starts_with("begin") && l.contains("/job_"));
        c.wait(30, "the node is idle after two", idle);

        // A fault that the prolog finds, for a batch job that does not want to be requeued.
        c.sim_ok(&["inject", "remap-failure", "--node", "n1", "--gpu", "0"]);
        let sbatch = user(
            &c,
            &["sbatch", "--parsable", "--no-requeue", "--gres=gpu:2", "-o", "/dev/null", "--wrap", "true"],
        );
        let job = sbatch.out.trim().to_owned();
        let reason = c.wait_drained("n1", 60);
        assert!(reason.starts_with("cmx:rowremap g0 "), "{shown}: {reason}");
        let show = || c.slurm(&["scontrol", "-o", "show", "job", &job]);
        c.wait(60, "the job is put back or ended", || {
            let text = show();
            text.contains("JobState=PENDING") && text.contains("_held")
                || !["PENDING", "RUNNING", "CONFIGURING", "COMPLETING"]
                    .iter()
                    .any(|s| text.contains(&format!("JobState={s}")))
        });
        let batch = show();
        let ended = end_of(&c, &job);
        let _ = run(&mut c.command(&["scancel", &job]));
        c.sim_ok(&["clear"]);
        c.wait(60, "the job is gone", || c.slurm(&["squeue", "-h"]).is_empty());
        c.slurm(&["scontrol", "update", "nodename=n1", "state=resume"]);
        c.wait(60, "the node is back", idle);
        println!(
            "{shown:26} prolog without a step: {had_prolog}; two at once: {overlap}; in the job's cgroup: {in_job}; \
             --no-requeue on a faulty node: {ended}"
        );
        assert_eq!(had_prolog, !flags.is_empty(), "{shown}");
        assert_eq!(overlap, !flags.contains("Serial"), "{shown}: {notes}");
        if flags.contains("ForceRequeueOnFail") {
            assert!(batch.contains("_held"), "{batch}");
        }
    }
    mig_instances(&c, &text);
}

/// With MIG, Slurm's numbers are those of the instances: `SLURM_JOB_GPUS` of the second one of GPU 0 says 1. A job must
/// not be charged with another GPU's faults.
fn mig_instances(c: &Cluster, slurm_conf: &str) {
    let dev = c.node_dir("n1").join("dev").display().to_string();
    let gres = format!(
        "AutoDetect=off\nNodeName=n1 Name=gpu Type=mig MultipleFiles={dev}/nvidia0,{dev}/nvidiactl\n\
         NodeName=n1 Name=gpu Type=mig MultipleFiles={dev}/nvidia0,{dev}/nvidia-uvm\n\
         NodeName=n1 Name=gpu Type=h100 File={dev}/nvidia1\n"
    );
    std::fs::write(c.dir().join("etc/gres.conf"), gres).expect("gres.conf");
    let conf = slurm_conf.replace("Gres=gpu:h100:2", "Gres=gpu:mig:2,gpu:h100:1");
    assert_ne!(conf, slurm_conf);
    std::fs::write(c.dir().join("etc/slurm.conf"), conf).expect("slurm.conf");
    restart(c);
    let idle = || c.slurm(&["sinfo", "-h", "-o", "%T"]).trim() == "idle";
    c.wait(60, "the node is idle", idle);
    let gpus = || {
        let said = user(c, &["srun", "--gres=gpu:mig:2", "sh", "-c", "echo $SLURM_JOB_ID $SLURM_STEP_GPUS"]);
        let (job, numbers) =
            said.out.trim().split_once(' ').map(|(a, b)| (a.to_owned(), b.to_owned())).expect("both");
        let kept = c.node_dir("n1").join(format!("state/jobs/{job}.json"));
        c.wait(30, "the record is kept", || kept.exists());
        c.wait(30, "the node is idle", idle);
        let text = std::fs::read_to_string(&kept).expect("record");
        (numbers, gpus_of(&serde_json::from_str(&text).expect("JSON")))
    };
    let (numbers, unaware) = gpus();
    println!(
        "MIG: both instances of GPU 0 are GPUs {numbers} to Slurm; without profile.gpu.mig the record says {unaware:?}"
    );
    assert_eq!(numbers, "0,1");
    let config = std::fs::read_to_string(c.config()).expect("clustermax.toml");
    let aware = config.replace("mig = false\n", "mig = true\n");
    assert_ne!(aware, config);
    std::fs::write(c.config(), aware).expect("clustermax.toml");
    for gpu in ["0", "1"] {
        c.sim_ok(&["inject", "mig-on", "--node", "n1", "--gpu", gpu]);
    }
    assert_eq!(gpus().1, Vec::<u64>::new(), "nothing is known, so nothing is claimed");
}
