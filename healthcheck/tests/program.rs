//! The program as a process: with a `dcgmi` of our own at the configured path, and as the user of an empty node.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// A node's folders below `dir`, and its configuration.
fn node(dir: &Path, more: &str) {
    for folder in ["proc/sys/kernel/random", "sys", "dev", "run", "state"] {
        fs::create_dir_all(dir.join(folder)).unwrap();
    }
    fs::write(dir.join("proc/sys/kernel/random/boot_id"), "b\n").unwrap();
    fs::write(dir.join("proc/uptime"), "100000.0 1.0\n").unwrap();
    fs::write(dir.join("kmsg"), "").unwrap();
    let at = |name: &str| format!("\"{}/{name}\"", dir.display());
    let config = format!(
        "[paths]\nsysfs = {}\nprocfs = {}\ndev = {}\nkmsg = {}\nnvml = {}\ncuda = {}\nrun_dir = {}\nstate_dir = {}\ndcgmi = {}\n{more}",
        at("sys"),
        at("proc"),
        at("dev"),
        at("kmsg"),
        at("no-nvml.so"),
        at("no-cuda.so"),
        at("run"),
        at("state"),
        at("dcgmi"),
    );
    fs::write(dir.join("c.toml"), config).unwrap();
}

/// A `dcgmi` whose answers are files of the samples.
fn fake_dcgmi(dir: &Path, health: &str, diag: &str) {
    let samples = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/dcgmi");
    let script = format!(
        "#!/bin/sh\necho \"$*\" >> '{0}/asked'\ncase \"$1\" in\nhealth) cat '{1}/{health}';;\ndiag) cat '{1}/{diag}'; exit 226;;\nesac\n",
        dir.display(),
        samples.display()
    );
    fs::write(dir.join("dcgmi"), script).unwrap();
    fs::set_permissions(dir.join("dcgmi"), fs::Permissions::from_mode(0o755)).unwrap();
}

fn run(dir: &Path, args: &[&str]) -> (Option<i32>, Value) {
    let out = Command::new(env!("CARGO_BIN_EXE_clustermax-healthcheck"))
        .args(args)
        .args(["--node", "n1", "--config"])
        .arg(dir.join("c.toml"))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let value = serde_json::from_str(&text)
        .unwrap_or_else(|e| panic!("{e}: {text} {}", String::from_utf8_lossy(&out.stderr)));
    (out.status.code(), value)
}

fn of<'a>(verdict: &'a Value, check: &str) -> Vec<(&'a str, &'a str)> {
    let all = verdict["findings"].as_array().unwrap().iter().filter(|f| f["check"] == check);
    all.map(|f| (f["status"].as_str().unwrap(), f["text"].as_str().unwrap())).collect()
}

#[test]
fn pitfall_46_dcgmi_is_asked_for_its_watches_in_periodic_passes_and_for_its_tests_in_deep_ones() {
    let dir = tempfile::tempdir().unwrap();
    node(dir.path(), "");
    fake_dcgmi(dir.path(), "health-failure.json", "diag-4.json");
    let asked = || fs::read_to_string(dir.path().join("asked")).unwrap_or_default();

    let (_, prolog) = run(dir.path(), &["run", "--mode", "prolog", "--json"]);
    assert_eq!((asked().as_str(), of(&prolog, "gpu.dcgm")), ("", vec![]), "never in the prolog");

    let (_, periodic) = run(dir.path(), &["run", "--mode", "periodic", "--json"]);
    assert_eq!(asked(), "health -g 0 -c -j\n");
    assert_eq!(of(&periodic, "gpu.dcgm").len(), 2);
    assert!(of(&periodic, "gpu.dcgm").iter().all(|(status, _)| *status == "warn"));

    let (code, deep) = run(dir.path(), &["run", "--mode", "deep", "--json"]);
    assert!(asked().contains("diag -r 1 -j\n"), "{}", asked());
    assert_eq!(
        of(&deep, "act.dcgm"),
        [("warn", "DCGM test software: fail"), ("fail", "DCGM test memory: fail")]
    );
    assert_eq!(code, Some(1));

    // A job on the node is not to meet it, and a site can switch it off.
    fs::write(dir.path().join("asked"), "").unwrap();
    fs::create_dir_all(dir.path().join("run/jobs")).unwrap();
    let job = r#"{"schema":"clustermax-job/1","job":"7","uid":1,"gid":1,"node":"n1","started":"x","as_of":"x","gpus":[],"events":[]}"#;
    fs::write(dir.path().join("run/jobs/7.json"), job).unwrap();
    let (_, deep) = run(dir.path(), &["run", "--mode", "deep", "--json"]);
    assert!(!asked().contains("diag"), "{}", asked());
    assert_eq!(of(&deep, "act.dcgm"), []);
    fs::remove_file(dir.path().join("run/jobs/7.json")).unwrap();
    node(dir.path(), "[dcgm]\ndiag_level = 0\n");
    run(dir.path(), &["run", "--mode", "deep", "--json"]);
    assert!(!asked().contains("diag"), "{}", asked());
}

#[test]
fn pitfall_27_a_dcgmi_that_hangs_is_ended_at_its_deadline_and_is_unknown() {
    let dir = tempfile::tempdir().unwrap();
    node(dir.path(), "[deadlines]\nsource = 300\n");
    let path = dir.path().join("dcgmi");
    fs::write(&path, "#!/bin/sh\nexec sleep 600\n").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    let (code, verdict) = run(dir.path(), &["run", "--mode", "periodic", "--json"]);
    assert_eq!(of(&verdict, "gpu.dcgm"), [("unknown", "could not be read")]);
    assert_eq!(code, Some(0), "DCGM alone fails nothing");
}

#[test]
fn facts_are_a_document_and_an_audit_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    node(dir.path(), "");
    fs::remove_dir(dir.path().join("state")).unwrap();
    let (code, facts) = run(dir.path(), &["facts", "--json"]);
    assert_eq!(
        (code, facts["schema"].as_str(), facts["node_name"].as_str()),
        (Some(0), Some("clustermax-facts/1"), Some("n1"))
    );
    assert!(facts["nvml"]["value"]["library_missing"].is_string(), "{facts}");
    let (code, verdict) = run(dir.path(), &["run", "--mode", "audit", "--json"]);
    assert_eq!((code, verdict["mode"].as_str()), (Some(0), Some("audit")));
    assert!(!dir.path().join("state").exists());
    assert_eq!(fs::read_dir(dir.path().join("run")).unwrap().count(), 0, "nothing was published");
}
