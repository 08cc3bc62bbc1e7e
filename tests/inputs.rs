//! Bad input: one clear sentence, a documented exit code, nothing lost.

#![allow(clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use harness::{Said, program, run};

fn healthcheck(config: &Path, args: &[&str]) -> Said {
    run(Command::new(program("clustermax-healthcheck")).args(args).arg("--config").arg(config))
}

/// Exit code 2, one line on standard error, and that line says `what`.
fn refused(said: &Said, what: &str) {
    assert_eq!(said.code, 2, "{said:?}");
    assert_eq!(said.err.trim_end().lines().count(), 1, "one sentence: {}", said.err);
    assert!(said.err.contains(what), "{} should say {what}", said.err);
}

#[test]
fn configuration() {
    let dir = tempfile::tempdir().expect("folder");
    let file = dir.path().join("clustermax.toml");
    let with = |text: &str| {
        std::fs::write(&file, text).expect("config");
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).expect("mode");
        healthcheck(&file, &["validate"])
    };
    refused(&healthcheck(&dir.path().join("none.toml"), &["validate"]), "none.toml does not exist");
    refused(&with("enforcement = \n"), "clustermax.toml, line 1");
    refused(&with("enforcment = \"observe\"\n"), "unknown key \"enforcment\"; did you mean \"enforcement\"?");
    refused(&with("[deadlines]\nsource = \"soon\"\n"), "line 2: invalid type");
    with("");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o666)).expect("mode");
    refused(&healthcheck(&file, &["run"]), "is writable by others (mode 0666)");
    let ok = with("enforcement = \"observe\"\n");
    assert_eq!(ok.code, 0, "{}", ok.err);
    refused(&healthcheck(&file, &["explain", "gpu.xidd"]), "did you mean \"gpu.xid\"?");
}

#[test]
fn prolog_and_epilog_never_drain_for_our_own_troubles() {
    let dir = tempfile::tempdir().expect("folder");
    for hook in ["clustermax-prolog", "clustermax-epilog"] {
        for args in [vec!["--config", "/nonexistent/clustermax.toml"], vec!["--no-such-option"]] {
            let said = run(Command::new(program(hook)).args(&args).env("SLURM_JOB_ID", "1"));
            assert_eq!(said.code, 0, "{hook} {args:?}: Slurm would drain the node");
            assert!(!said.err.is_empty() || !said.out.is_empty(), "{hook} {args:?} says why");
        }
        let file = dir.path().join("c.toml");
        std::fs::write(&file, "enforcement = \"enforce\"\n").expect("config");
        let said = run(Command::new(program(hook)).arg("--config").arg(&file).env_remove("SLURM_JOB_ID"));
        assert_eq!(said.code, 0);
        assert!(said.err.contains("there is no SLURM_JOB_ID"), "{}", said.err);
    }
}

#[test]
fn no_nvml_library_where_the_profile_has_gpus() {
    let dir = tempfile::tempdir().expect("folder");
    let file = dir.path().join("c.toml");
    let d = dir.path().display();
    let text = format!(
        "[paths]\nnvml = \"/nonexistent/libnvidia-ml.so.1\"\nrun_dir = \"{d}/run\"\nstate_dir = \"{d}/state\"\n[profile]\ngpu_count = 8\n"
    );
    std::fs::write(&file, text).expect("config");
    let said = healthcheck(&file, &["run", "--node", "n1"]);
    assert_eq!(said.code, 1, "{}", said.out);
    assert!(said.out.contains("NVML library missing"), "{}", said.out);
    assert!(said.out.contains("/nonexistent/libnvidia-ml.so.1 cannot be loaded"), "{}", said.out);
    assert!(said.out.contains("install the GPU driver's libnvidia-ml.so.1"), "{}", said.out);
}

#[test]
fn results_folders() {
    let dir = tempfile::tempdir().expect("folder");
    let score = |path: &Path| run(Command::new(program("clustermax")).arg("score").arg(path));
    refused(&score(&dir.path().join("none")), "none");
    refused(&score(dir.path()), "is empty; run `sbatch clustermax-suite.sh` first");
    let run_json = r#"{"schema":"clustermax-run/1","run":"r1","cluster":"c","profile":"demo","job":"1","nodes":["n1"],"started":"2026-11-30T20:50:00Z","simulated":true,"hardware":"cpu"}"#;
    std::fs::write(dir.path().join("run.json"), run_json).expect("run.json");
    std::fs::write(
        dir.path().join("records.jsonl"),
        "{\"schema\":\"clustermax-record/1\",\"run\":\"r1\",\"clu",
    )
    .expect("records");
    refused(&score(dir.path()), "line 1");
    let record = r#"{"schema":"clustermax-record/1","run":"r2","cluster":"c","stage":"gemm","metric":"x","value":null,"unit":"","state":"unknown","params":{},"subject":{},"provenance":"measured","tool":"t","command":"c","job":"1","started":"2026-11-30T20:50:00Z","seconds":1.0}"#;
    std::fs::write(dir.path().join("records.jsonl"), format!("{record}\n")).expect("records");
    let said = score(dir.path());
    refused(&said, "r2");
    assert!(said.err.contains("r1"), "{}", said.err);
}

#[test]
fn a_plugin_of_another_release_is_refused_before_slurm_loads_it() {
    let other = harness::project().join("target/other-release/spank_clustermax-24.11.so");
    assert!(other.exists(), "{} is not built: ./run-tests builds it", other.display());
    let said = run(Command::new(program("clustermax-doctor")).arg("--plugin").arg(&other));
    assert_eq!(said.code, 1, "{said:?}");
    let sentences: Vec<&str> =
        said.out.lines().chain(said.err.lines()).filter(|l| l.contains("24.11")).collect();
    assert!(!sentences.is_empty(), "{said:?}");
    let sentence = sentences[0];
    assert!(sentence.contains("spank_clustermax-24.11.so") && sentence.contains("22.05"), "{sentence}");
    // The one that was built here is the right one.
    let ours = harness::programs().join("libspank_clustermax.so");
    let said = run(Command::new(program("clustermax-doctor")).arg("--plugin").arg(&ours));
    assert!(
        !said
            .out
            .lines()
            .chain(said.err.lines())
            .any(|l| l.contains("FAIL") && l.contains("libspank_clustermax.so")),
        "{said:?}"
    );
}

#[test]
fn the_health_check_program_needs_nothing_but_the_nodes_name() {
    let text =
        std::fs::read_to_string(harness::project().join("prolog-epilog/healthcheckprogram")).expect("script");
    // Reviewers look for what is wired in.
    assert!(text.contains("dcgmi health") && text.contains("clustermax-drain"));
    let dir = tempfile::tempdir().expect("folder");
    let config = dir.path().join("clustermax.toml");
    let d = dir.path().display();
    std::fs::write(&config, format!("[paths]\nrun_dir = \"{d}/run\"\nstate_dir = \"{d}/state\"\n"))
        .expect("config");
    let script = dir.path().join("healthcheckprogram");
    let text = text
        .replace(
            "/usr/libexec/clustermax/clustermax-healthcheck",
            &program("clustermax-healthcheck").display().to_string(),
        )
        .replace("CONFIG=/etc/clustermax/clustermax.toml", &format!("CONFIG={}", config.display()));
    std::fs::write(&script, text).expect("script");
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).expect("mode");
    let said = run(Command::new(&script).env_clear().env("SLURMD_NODENAME", "gpu-01"));
    assert_eq!(said.code, 0, "{said:?}");
    let verdict = std::fs::read_to_string(dir.path().join("run/verdict.json")).expect("a verdict");
    assert!(
        verdict.contains("\"node\":\"gpu-01\"") && verdict.contains("\"mode\":\"periodic\""),
        "{verdict}"
    );
}

#[test]
fn dcgmi_warns_and_never_drains() {
    let dir = tempfile::tempdir().expect("folder");
    let d = dir.path().display();
    let config = dir.path().join("clustermax.toml");
    let text = format!(
        "enforcement = \"enforce\"\n[paths]\nrun_dir = \"{d}/run\"\nstate_dir = \"{d}/state\"\ndcgmi = \"{d}/dcgmi\"\n[deadlines]\nsource = 3000\n"
    );
    std::fs::write(&config, text).expect("config");
    let check = |mode: &str, with: Option<&str>| {
        let fake = dir.path().join("dcgmi");
        let _ = std::fs::remove_file(&fake);
        if let Some(script) = with {
            std::fs::write(&fake, format!("#!/bin/sh\n{script}\n")).expect("dcgmi");
            std::fs::set_permissions(&fake, std::fs::Permissions::from_mode(0o755)).expect("mode");
        }
        let mut health = Command::new(program("clustermax-healthcheck"));
        let said = run(health.args(["run", "--json", "--mode", mode, "--config"]).arg(&config));
        let verdict: serde_json::Value = serde_json::from_str(&said.out).expect("a verdict");
        assert_eq!(verdict["drain"], false, "{}", said.out);
        let checks = verdict["checks"].as_array().expect("checks").clone();
        let own = checks.iter().find(|c| c["check"] == "gpu.dcgm").cloned().unwrap_or_default();
        (own["status"].as_str().unwrap_or("none").to_string(), own["detail"].to_string())
    };
    let sample = |name: &str| {
        let path = harness::project().join("healthcheck/tests/data/dcgmi").join(name);
        format!("cat '{}'", path.display())
    };
    let failure = sample("health-failure.json");
    assert_eq!(check("deep", None).0, "unsupported");
    assert_eq!(check("deep", Some(&sample("health-healthy.json"))).0, "pass");
    let (status, detail) = check("periodic", Some(&failure));
    assert!(status == "warn" && detail.contains("GPU 1"), "{status} {detail}");
    assert_eq!(check("deep", Some("echo no host engine; exit 255")).0, "unknown");
    assert_eq!(check("periodic", Some("sleep 60")).0, "unknown", "it missed its deadline");
    // Never in a hook: it would be asked before every job.
    assert_eq!(check("prolog", Some(&failure)).0, "none");
}

/// Reports of a controller, a login node and a compute node, as the doctor writes them, laid beside each other.
#[test]
fn the_doctor_compares_hosts() {
    let dir = tempfile::tempdir().expect("folder");
    let at = |name: &str| dir.path().join(name);
    let d = dir.path().display();
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").expect("host name");
    let host = host.trim();
    let text = format!(
        "[paths]\nstate_dir = \"{d}/state\"\nrun_dir = \"{d}/run\"\ndrain = \"/nonexistent/clustermax-drain\"\n"
    );
    std::fs::write(at("clustermax.toml"), text).expect("config");
    let report = |role: &str, line: &str, interval: u32| -> serde_json::Value {
        let conf = format!("ClusterName=x\n{line}\nPrologFlags=Contain\nHealthCheckInterval={interval}\n");
        std::fs::write(at("slurm.conf"), conf).expect("slurm.conf");
        let mut doctor = Command::new(program("clustermax-doctor"));
        doctor
            .args(["--json", "--config"])
            .arg(at("clustermax.toml"))
            .arg("--slurm-conf")
            .arg(at("slurm.conf"));
        let said = run(&mut doctor);
        assert_eq!(said.out.trim_end().lines().count(), 1, "one report is one line");
        let mut report: serde_json::Value = serde_json::from_str(&said.out).expect("a report");
        assert_eq!(report["role"], role, "{line}");
        // They were all written here.
        report["host"] = format!("{role}1").into();
        report
    };
    let all = [
        report("controller", &format!("SlurmctldHost={host}(10.0.0.1)"), 60),
        report("login", "SlurmctldHost=elsewhere", 60),
        report("compute", &format!("NodeName=gpu[01-16],{host} CPUs=8"), 30),
    ];
    let said_of_login: Vec<&str> =
        all[1]["checks"].as_array().expect("checks").iter().filter_map(|c| c["check"].as_str()).collect();
    assert!(said_of_login.contains(&"node programs") && !said_of_login.contains(&"clustermax-drain"));
    let lines = all.map(|r| r.to_string() + "\n").concat();
    std::fs::write(at("all.jsonl"), lines).expect("reports");
    let compare = |file: &Path| run(Command::new(program("clustermax-doctor")).arg("--compare").arg(file));
    let said = compare(&at("all.jsonl"));
    assert_eq!(said.code, 1, "{said:?}");
    for expected in [
        "PASS hosts: controller: controller1; login: login1; compute: compute1",
        "FAIL slurm.conf HealthCheckInterval: differs: 60 on controller1,login1; 30 on compute1",
        "mend: HealthCheckInterval=60    # in slurm.conf of all hosts, then: scontrol reconfigure",
        "FAIL clustermax-drain: on compute1: /nonexistent/clustermax-drain",
    ] {
        assert!(said.out.contains(expected), "{expected}\n{}", said.out);
    }
    std::fs::write(at("half.jsonl"), "{\"schema\"").expect("half a report");
    refused(&compare(&at("half.jsonl")), "half.jsonl, report 1 is not understood");
    refused(&compare(&at("none.jsonl")), "none.jsonl cannot be read");
}
