//! What a job and its user see.

#![allow(clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::process::Stdio;

use harness::{Cluster, run};

#[test]
fn a_program_fault_drains_nobody_and_the_user_is_told() {
    let c = Cluster::up(&["--nodes", "2", "--enforcement", "enforce", "--health-interval", "2"]);
    for code in ["13", "31"] {
        let job = c
            .user_command(&["srun", "-w", "n1", "--gres=gpu:2", "sleep", "7"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("a job on n1");
        // The step, not the job: what happens while the prolog still runs is none of the program's doing.
        c.wait(20, "step runs", || c.slurm(&["squeue", "-h", "-s", "-w", "n1"]).contains("sleep"));
        c.sim_ok(&["inject", &format!("xid:{code}"), "--node", "n1", "--gpu", "1"]);
        let output = job.wait_with_output().expect("srun ends");
        let err = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "the job itself goes on: {err}");
        let told = err
            .lines()
            .any(|l| l.to_lowercase().contains(&format!("xid{code}")) || l.contains(&format!("Xid {code}")));
        assert!(told && err.contains("program"), "user's stderr: {err}");
        c.wait(30, "the job is gone", || c.slurm(&["squeue", "-h"]).is_empty());
    }
    for node in ["n1", "n2"] {
        assert!(!c.node(node).drained(), "{:?}", c.node(node));
    }
}

#[test]
fn a_bad_gpu_at_job_start_sends_the_job_elsewhere() {
    let c = Cluster::up(&["--nodes", "2", "--enforcement", "enforce", "--health-interval", "600"]);
    c.sim_ok(&["inject", "remap-failure", "--node", "n1", "--gpu", "0"]);
    let scratch = c.scratch();
    let out = scratch.join("out-%j");
    let script = "#!/bin/sh\nhostname\necho node=$SLURMD_NODENAME\n";
    let path = scratch.join("job.sh");
    std::fs::write(&path, script).expect("script");
    // n1 is the lighter one to choose: ask for it first, then let the job go anywhere.
    let said = run(&mut c.user_command(&[
        "sbatch",
        "--parsable",
        "--gres=gpu:8",
        "-w",
        "n1",
        "-o",
        &out.display().to_string(),
        &path.display().to_string(),
    ]));
    assert_eq!(said.code, 0, "{}", said.err);
    let job = said.out.trim().to_string();
    let reason = c.wait_drained("n1", 30);
    assert!(reason.starts_with("cmx:rowremap g0 "), "our reason, not Slurm's: {reason}");
    let show = || c.slurm(&["scontrol", "-o", "show", "job", &job]);
    c.wait(40, "the job is requeued and held", || {
        let text = show();
        text.contains("JobState=PENDING") && text.contains("launch_failed_requeued_held")
    });
    assert!(show().contains("cmx:rowremap") || show().contains("clustermax"), "AdminComment: {}", show());
    c.slurm(&["scontrol", "update", &format!("jobid={job}"), "ReqNodeList="]);
    c.slurm(&["scontrol", "release", &job]);
    c.wait(90, "the job ran elsewhere", || {
        let file = scratch.join(format!("out-{job}"));
        std::fs::read_to_string(file).is_ok_and(|t| t.contains("node=n2"))
    });
    assert!(c.node("n1").reason.starts_with("cmx:rowremap g0 "), "kept: {:?}", c.node("n1"));
}

#[test]
fn a_healthy_cluster_hears_nothing_from_us() {
    let c = Cluster::up(&["--nodes", "2", "--enforcement", "enforce", "--health-interval", "2"]);
    c.slurm(&["sdiag", "--reset"]);
    let said = run(&mut c.user_command(&[
        "sbatch",
        "--parsable",
        "--wait",
        "--array=1-200",
        "--gres=gpu:1",
        "-o",
        "/dev/null",
        "--wrap",
        "true",
    ]));
    assert_eq!(said.code, 0, "{}", said.err);
    let diag = c.slurm(&["sdiag"]);
    println!("{diag}");
    let started: u64 = diag
        .lines()
        .find_map(|l| l.trim().strip_prefix("Jobs completed:"))
        .and_then(|n| n.trim().parse().ok())
        .expect("sdiag counts jobs");
    assert!(started >= 200, "{started} jobs");
    // What clustermax-drain sends. The test itself asks for nothing but the statistics.
    for ours in ["REQUEST_UPDATE_NODE", "REQUEST_NODE_INFO", "REQUEST_UPDATE_JOB", "REQUEST_JOB_NOTIFY"] {
        assert!(!diag.contains(ours), "{ours} on the healthy path:\n{diag}");
    }
    // And by number: root's requests are those of slurmd and slurmstepd, and the statistics'.
    let count = |name: &str| -> u64 {
        let line = diag.lines().find(|l| l.trim_start().starts_with(&format!("{name} ")));
        let number = line.and_then(|l| l.split("count:").nth(1)?.split_whitespace().next()?.parse().ok());
        number.unwrap_or(0)
    };
    let daemons = [
        "REQUEST_COMPLETE_PROLOG",
        "REQUEST_COMPLETE_BATCH_SCRIPT",
        "REQUEST_STEP_COMPLETE",
        "MESSAGE_EPILOG_COMPLETE",
        "MESSAGE_NODE_REGISTRATION_STATUS",
        "REQUEST_STATS_INFO",
    ];
    assert_eq!(count("root"), daemons.iter().map(|d| count(d)).sum::<u64>(), "{diag}");
    for node in ["n1", "n2"] {
        assert!(!c.node(node).drained());
    }
}

#[test]
fn the_plugin_shows_its_option_and_refuses_a_step_on_a_node_that_failed_meanwhile() {
    let c = Cluster::up(&["--nodes", "1", "--enforcement", "enforce", "--health-interval", "2"]);
    for tool in ["srun", "sbatch", "salloc"] {
        let help = run(&mut c.user_command(&[tool, "--help"]));
        assert!(help.out.contains("--clustermax-report"), "{tool} --help: {}", help.out);
        assert!(!help.err.contains("clustermax"), "{tool} --help is quiet: {}", help.err);
    }
    let scratch = c.scratch();
    let (granted, go) = (scratch.join("granted"), scratch.join("go"));
    let script = format!(
        "touch {}; while [ ! -e {} ]; do sleep 0.2; done; srun -n1 echo second step ran",
        granted.display(),
        go.display()
    );
    let mut salloc = c.user_command(&["salloc", "-w", "n1", "--gres=gpu:8", "sh", "-c", &script]);
    let alloc = salloc.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("salloc");
    // 26.05 calls a job running while its prolog runs.
    c.wait(20, "allocation", || granted.exists());
    // A state, not an event: every later pass finds it again.
    c.sim_ok(&["inject", "remap-failure", "--node", "n1", "--gpu", "2"]);
    c.wait_drained("n1", 30);
    std::fs::write(&go, "").expect("go");
    let output = alloc.wait_with_output().expect("salloc ends");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(!out.contains("second step ran"), "{out}");
    assert!(err.contains("clustermax: node n1") && err.contains("GPU 2"), "{err}");
}

#[test]
fn the_doctor_compares_this_host_with_the_controller_and_the_nodes() {
    let c = Cluster::up(&["--nodes", "2", "--health-interval", "2"]);
    let looks = || run(&mut c.on_node("n1", "clustermax-doctor", &["--cluster"])).out;
    c.wait(20, "HealthCheckProgram ran", || looks().contains("PASS HealthCheckProgram ran: "));
    let said = looks();
    for look in [
        "PASS clustermax-drain: ",
        "PASS plugin: ",
        "PASS controller: it runs Slurm ",
        "PASS nodes' release: 2 nodes",
    ] {
        assert!(said.contains(look), "no {look:?} in {said}");
    }
    assert!(said.contains("PASS running configuration: "), "{said}");
    let conf = c.dir().join("etc/slurm.conf");
    let text = std::fs::read_to_string(&conf).expect("slurm.conf");
    std::fs::write(&conf, text.replace("HealthCheckInterval=2\n", "HealthCheckInterval=3\n"))
        .expect("slurm.conf");
    let said = looks();
    assert!(said.contains("HealthCheckInterval is 2 sec there and 3 here"), "{said}");
}

/// The file of a job that runs, or of one that ended.
fn job_file(c: &Cluster, folder: &str, job: &str) -> Option<serde_json::Value> {
    let text = std::fs::read_to_string(c.node_dir("n1").join(folder).join(format!("{job}.json"))).ok()?;
    serde_json::from_str(&text).ok()
}

/// Starts a job that ends when a file appears; its id. `more` are options of sbatch and variables of its environment:
/// by `--export=ALL,NAME=VALUE` 26.05 would ask for a login of the user, who has none.
fn held_job(c: &Cluster, gpus: &str, go: &std::path::Path, more: &[&str]) -> String {
    let wrap = format!("while [ ! -e {} ]; do sleep 0.2; done", go.display());
    let (options, variables): (Vec<&str>, Vec<&str>) = more.iter().partition(|m| m.starts_with("--"));
    let args = ["sbatch", "--parsable", "-n1", "-o", "/dev/null", gpus, "--wrap", &wrap];
    let args = [&["/usr/bin/env"], &variables[..], &args[..], &options[..]].concat();
    let said = run(c.user_command(&args).env("CLUSTERMAX_CHECKS", "off"));
    assert_eq!(said.code, 0, "{}", said.err);
    said.out.trim().to_string()
}

/// What the delta of a job counts on a GPU.
fn on_gpu(file: &serde_json::Value, index: u64) -> serde_json::Value {
    let gpus = file["delta"]["gpus"].as_array().cloned().unwrap_or_default();
    gpus.into_iter().find(|g| g["index"] == index).unwrap_or_default()
}

/// Waits until a job's file says something.
fn await_file(
    c: &Cluster,
    job: &str,
    what: &str,
    is: impl Fn(&serde_json::Value) -> bool,
) -> serde_json::Value {
    let until = std::time::Instant::now() + std::time::Duration::from_secs(40);
    loop {
        let file = job_file(c, "run/jobs", job);
        match file {
            Some(file) if is(&file) => return file,
            file if std::time::Instant::now() > until => {
                panic!("job {job}: not {what}: {file:#?}\n{}", c.logs())
            }
            _ => std::thread::sleep(std::time::Duration::from_millis(200)),
        }
    }
}

#[test]
fn a_job_s_file_shows_what_its_own_hardware_counted_and_nobody_else_s() {
    use std::os::unix::fs::chown;
    let c = Cluster::up(&["--nodes", "1", "--enforcement", "observe", "--health-interval", "2"]);
    let scratch = c.scratch();
    let go = |name: &str| scratch.join(name);
    // What a user might hope to switch checks off with.
    let hostile =
        ["--comment=skip_checks=all", "--clustermax-report=off", "SPANK_CLUSTERMAX=off", "SLURM_JOB_GPUS=7"];
    let a = held_job(&c, "--gres=gpu:4", &go("a"), &hostile);
    let of_a = await_file(&c, &a, "a pass has looked", |f| f["delta"].is_object());
    let b = held_job(&c, "--gres=gpu:4", &go("b"), &[]);
    let of_b = await_file(&c, &b, "a pass has looked", |f| f["delta"].is_object());
    let minors = |f: &serde_json::Value| -> Vec<u64> {
        f["gpus"].as_array().into_iter().flatten().filter_map(|g| g["index"].as_u64()).collect()
    };
    let (own, other) = (minors(&of_a), minors(&of_b));
    assert!(
        own.len() == 4 && other.len() == 4 && own.iter().all(|g| !other.contains(g)),
        "{own:?} {other:?}"
    );

    let inject =
        |fault: &str, gpu: u64| c.sim_ok(&["inject", fault, "--node", "n1", "--gpu", &gpu.to_string()]);
    inject("ecc-corrected:1200", own[0]);
    inject("nvlink-errors:7", own[1]);
    inject("thermal:5", own[2]);
    inject("xid:13", own[3]);
    let shown = await_file(&c, &a, "all of it", |f| {
        on_gpu(f, own[0])["rises"]["ecc_corrected"] == 1200
            && on_gpu(f, own[2])["throttled"]["hw_thermal"] == 5.0
            && on_gpu(f, own[3])["xids"]["13"] == 1
    });
    let nvlink: u64 = ["nvlink_crc", "nvlink_recovery", "nvlink_replay"]
        .iter()
        .filter_map(|counter| on_gpu(&shown, own[1])["rises"][*counter].as_u64())
        .sum();
    assert!(nvlink >= 7, "{shown:#}");
    assert_eq!(shown["blame"], "program", "{shown:#}");
    assert!(
        shown["sentence"].as_str().is_some_and(|s| s.contains("Usually an error in the program")),
        "{shown:#}"
    );
    assert_eq!(shown["delta"]["shared_with"], serde_json::json!([b]));
    // The job on the other half of the node: its GPUs are clean, the links are marked as everybody's.
    inject("ib-flap", 0);
    let downs = |f: &serde_json::Value| {
        let links = f["delta"]["links"].as_array().cloned().unwrap_or_default();
        links.iter().find(|l| l["link"] == "mlx5_0/1").and_then(|l| l["rises"]["link_downed"].as_u64())
    };
    let shown = await_file(&c, &b, "the link", |f| downs(f) == Some(3) && f["blame"] == "hardware");
    for gpu in &other {
        let quiet = on_gpu(&shown, *gpu);
        assert!(
            quiet["rises"].is_null() && quiet["xids"].is_null() && quiet["throttled"].is_null(),
            "{shown:#}"
        );
    }
    assert_eq!(shown["delta"]["shared_with"], serde_json::json!([a]));
    let shown = await_file(&c, &a, "the link", |f| downs(f) == Some(3));
    assert_eq!(
        shown["delta"]["links"].as_array().map(Vec::len),
        Some(2),
        "the port and its interface: {shown:#}"
    );

    // The first ends. Its user still has a job here, so nobody can say whose shared memory it is.
    let shm = c.node_dir("n1").join("dev/shm");
    std::fs::create_dir_all(&shm).expect("shm");
    for name in ["plain", "a\nb; rm -rf $HOME", "\u{1b}[2J\"}]"] {
        std::fs::write(shm.join(name), "x").expect("a file in shared memory");
        chown(shm.join(name), Some(65534), Some(65534)).expect("chown");
    }
    std::fs::write(go("a"), "").expect("go");
    c.wait(30, "the first job's file is kept", || job_file(&c, "state/jobs", &a).is_some());
    let kept = job_file(&c, "state/jobs", &a).expect("kept");
    assert_eq!(
        (&kept["ended"]["by"], on_gpu(&kept, own[0])["rises"]["ecc_corrected"].as_u64()),
        (&"epilog".into(), Some(1200))
    );
    assert!(kept["delta"]["left"]["shm"].is_null(), "{kept:#}");
    c.wait(10, "nothing else of it", || {
        job_file(&c, "state/running", &a).is_none() && job_file(&c, "run/jobs", &a).is_none()
    });

    // The driver is loaded anew while the second runs: what was counted stays counted, and nothing is negative.
    inject("ecc-corrected:40", other[0]);
    await_file(&c, &b, "errors", |f| on_gpu(f, other[0])["rises"]["ecc_corrected"] == 40);
    c.sim_ok(&["clear", "--node", "n1"]);
    let shown = await_file(&c, &b, "the counters began anew", |f| on_gpu(f, other[0])["reset"] == true);
    assert_eq!(on_gpu(&shown, other[0])["rises"]["ecc_corrected"], 40);
    std::fs::write(go("b"), "").expect("go");
    c.wait(30, "the second job's file is kept", || job_file(&c, "state/jobs", &b).is_some());
    let kept = job_file(&c, "state/jobs", &b).expect("kept");
    assert_eq!(kept["delta"]["left"]["shm"]["files"], 3, "{kept:#}");
    assert!(!kept.to_string().contains("rm -rf"), "names are the user's: {kept:#}");

    // The node is booted under a third: RUN_DIR is emptied by that, and the epilog never runs.
    let third = held_job(&c, "--gres=gpu:1", &go("c"), &[]);
    c.wait(40, "a copy that outlives a boot", || job_file(&c, "state/running", &third).is_some());
    let copy = c.node_dir("n1").join(format!("state/running/{third}.json"));
    let mut earlier = job_file(&c, "state/running", &third).expect("copy");
    earlier["boot_id"] = "an earlier boot".into();
    std::fs::remove_file(c.node_dir("n1").join(format!("run/jobs/{third}.json")))
        .expect("RUN_DIR is emptied");
    std::fs::write(&copy, earlier.to_string()).expect("copy");
    c.wait(30, "it is closed", || job_file(&c, "state/jobs", &third).is_some());
    let kept = job_file(&c, "state/jobs", &third).expect("kept");
    assert_eq!(kept["ended"]["by"], "pass", "{kept:#}");
    assert!(kept["ended"]["why"].as_str().is_some_and(|w| w.contains("booted")), "{kept:#}");
    assert!(!copy.exists());
    std::fs::write(go("c"), "").expect("go");
}
