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
    let start = |rank: usize| -> Child {
        Command::new("/usr/bin/python3")
            .args(["-B".as_ref(), payload(name).as_os_str(), "--out".as_ref(), out.as_os_str()])
            .args(["--rank", &rank.to_string(), "--ranks", &count.to_string(), "--threads", "1"])
            .args(args)
            .env("SLURMD_NODENAME", format!("n{}", rank + 1))
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
