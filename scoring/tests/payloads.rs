//! The torch payloads without Slurm: several ranks on this machine, by the interpreter that has torch.

#![allow(clippy::expect_used, clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

fn payload(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../batch-scripts/payload").join(name)
}

/// Runs a payload as so many ranks, each a node of its own; exit codes.
fn ranks(count: usize, out: &Path, name: &str, args: &[&str]) -> Vec<i32> {
    ranks_with(count, out, name, args, &[])
}

fn ranks_with(count: usize, out: &Path, name: &str, args: &[&str], env: &[(&str, &str)]) -> Vec<i32> {
    let start = |rank: usize| -> Child {
        Command::new("/usr/bin/python3")
            .args(["-B".as_ref(), payload(name).as_os_str(), "--out".as_ref(), out.as_os_str()])
            .args(["--rank", &rank.to_string(), "--ranks", &count.to_string(), "--threads", "1"])
            .args(args)
            .env("SLURMD_NODENAME", format!("n{}", rank + 1))
            .envs(env.iter().copied())
            .stdout(Stdio::null())
            .spawn()
            .expect("python3")
    };
    let children: Vec<Child> = (0..count).map(start).collect();
    children.into_iter().map(|mut child| child.wait().unwrap().code().unwrap_or(-1)).collect()
}

fn json(path: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).expect("document")).expect("JSON")
}

#[test]
fn a_checkpoint_goes_to_the_folder_and_comes_back_bit_for_bit() {
    let out = tempfile::tempdir().unwrap();
    let folder = out.path().join("work");
    std::fs::create_dir(&folder).unwrap();
    let folder_text = folder.display().to_string();
    let args = ["--folder", folder_text.as_str(), "--megabytes", "1"];
    assert_eq!(ranks(2, out.path(), "checkpoint.py", &args), [0, 0]);
    let document = json(&out.path().join("checkpoint.json"));
    assert_eq!(document["complete"], true);
    let rows = document["rows"].as_array().unwrap();
    let row = rows.iter().find(|row| row["api"] == "torch.save").expect("one file a rank");
    assert_eq!((&row["wrong"], &row["error"]), (&Value::from(0), &Value::Null), "{row}");
    for op in ["save", "load"] {
        assert_eq!(row[op][0].as_array().unwrap().len(), 2, "{row}");
        assert!(row[op][0].as_array().unwrap().iter().all(|seconds| seconds.as_f64() > Some(0.0)), "{row}");
    }
    // DCP is measured or named with the reason, and nothing is left on the storage.
    let missing = document["missing"].as_array().unwrap();
    assert_eq!(rows.len() + missing.len(), 2, "{document}");
    assert!(missing.iter().all(|missing| missing["state"] == "unavailable"), "{document}");
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
}

#[test]
fn memory_is_copied_and_compared() {
    let out = tempfile::tempdir().unwrap();
    assert_eq!(ranks(1, out.path(), "memory.py", &["--bytes", "4194304", "--seconds", "0.05"]), [0]);
    let document = json(&out.path().join("memory-0.json"));
    for (number, op) in ["copy", "triad"].iter().enumerate() {
        let row = &document["rows"][number];
        assert_eq!((&row["op"], &row["wrong"]), (&Value::from(*op), &Value::from(0)), "{row}");
        assert!(
            row["best"].as_f64() >= row["median"].as_f64() && row["median"].as_f64() > Some(0.0),
            "{row}"
        );
    }
    assert!(document["missing"][0]["detail"].as_str().unwrap().contains("GPU"), "{document}");
}

/// Records of stage train of a run on two nodes whose raw folder is filled by FILL.
fn trained(fill: impl FnOnce(&Path)) -> Vec<Value> {
    let dir = tempfile::tempdir().unwrap();
    let results = dir.path().join("results");
    let clustermax = |args: &[&str]| {
        let said = Command::new(env!("CARGO_BIN_EXE_clustermax"))
            .arg("collect")
            .args([args[0], &results.display().to_string()])
            .args(&args[1..])
            .output()
            .expect("clustermax");
        assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    };
    clustermax(&["init", "--run", "r1", "--cluster", "c1", "--nodes", "n1,n2"]);
    let raw = results.join("raw/train");
    std::fs::create_dir_all(&raw).unwrap();
    fill(&raw);
    clustermax(&["train", "--state", "done"]);
    let text = std::fs::read_to_string(results.join("records.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn one<'a>(records: &'a [Value], metric: &str, model: &str) -> &'a Value {
    let found = |record: &&Value| record["metric"] == metric && record["params"]["model"] == model;
    records.iter().find(found).unwrap_or_else(|| panic!("no {metric} of {model} in {records:#?}"))
}

#[test]
fn a_training_run_keeps_to_its_reference_and_one_with_a_wrong_rank_does_not() {
    let conf = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(conf.path(), "# Written by clustermax-sim\n").unwrap();
    let conf = conf.path().display().to_string();
    let run = |wrong: &str| {
        trained(|raw| {
            let env = [("CLUSTERMAX_WRONG_RANK", wrong), ("SLURM_CONF", conf.as_str())];
            assert_eq!(ranks_with(2, raw, "train.py", &["--steps", "20"], &env), [0, 0]);
        })
    };
    let good = run("");
    assert_eq!(one(&good, "loss_in_band", "llama-tiny")["value"], 1.0, "{good:#?}");
    assert!(one(&good, "loss_deviation", "llama-tiny")["value"].as_f64() < Some(0.5), "{good:#?}");
    assert_eq!(one(&good, "replicas_differing", "llama-tiny")["value"], 0.0);
    assert_eq!(one(&good, "tokens_per_second", "llama-tiny")["state"], "measured");

    for (wrong, word) in [("1:flip", "did not fall"), ("0:nan", "no number")] {
        let bad = run(wrong);
        let flag = one(&bad, "loss_in_band", "llama-tiny");
        assert_eq!((&flag["value"], &flag["provenance"]), (&Value::from(0.0), &"synthetic".into()), "{flag}");
        let speed = one(&bad, "tokens_per_second", "llama-tiny");
        assert_eq!(speed["state"], "unknown", "{speed}");
        assert!(speed["detail"].as_str().unwrap().contains(word), "{speed}");
    }
}

#[test]
fn wrong_gradients_are_made_on_simulated_clusters_only() {
    let out = tempfile::tempdir().unwrap();
    for (wrong, conf) in [("0:flip", "/dev/null"), ("9:flip", "/dev/null"), ("0:twice", "/dev/null")] {
        let env = [("CLUSTERMAX_WRONG_RANK", wrong), ("SLURM_CONF", conf)];
        assert_eq!(ranks_with(1, out.path(), "train.py", &[], &env), [2], "{wrong}");
    }
}
