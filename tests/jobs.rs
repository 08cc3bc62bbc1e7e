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
    c.sim_ok(&["inject", "xid79", "--node", "n1", "--gpu", "2"]);
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
