//! `clustermax accept`: what a contract promises against what was measured.

#![allow(clippy::unwrap_used, reason = "in a test a failed step is the failure")]

use std::fs;
use std::process::Command;

use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;

const HEAD: &str =
    "schema = \"clustermax-contract/1\"\ntitle = \"order 7\"\nbuyer = \"Lab\"\nprovider = \"Cloud\"\n";

/// A run of two nodes with these measurements: metric, value, unit, params, subject.
fn measured(records: &[(&str, Option<f64>, &str, &str, &str)]) -> TempDir {
    let run = tempfile::tempdir().unwrap();
    fs::write(
        run.path().join("run.json"),
        r#"{"schema":"clustermax-run/1","run":"r1","cluster":"alpha","profile":"demo","nodes":["n1","n2"],"started":"2026-11-30T20:50:00Z","hardware":"gpu"}"#,
    )
    .unwrap();
    fs::create_dir_all(run.path().join("raw")).unwrap();
    fs::write(run.path().join("raw/a.txt"), "seen\n").unwrap();
    let sha256 = format!("{:x}", Sha256::digest(b"seen\n"));
    let of = |metric: &str| records.iter().filter(|(other, ..)| *other == metric).count();
    let lines: Vec<String> = records
        .iter()
        .map(|(metric, value, unit, params, subject)| {
            let stage = match *metric {
                "busbw" => "collectives",
                "gemm" => "gemm",
                "fio_total_bandwidth" => "storage",
                _ => "inventory",
            };
            let provenance = if *metric == "fio_total_bandwidth" { "inferred" } else { "measured" };
            let (value, state) = match value {
                Some(value) => (value.to_string(), "measured"),
                None => ("null".to_owned(), "unknown"),
            };
            let detail = if state == "unknown" { r#","detail":"the node went away""# } else { "" };
            format!(
                r#"{{"schema":"clustermax-record/1","run":"r1","cluster":"alpha","stage":"{stage}","metric":"{metric}","value":{value},"unit":"{unit}","state":"{state}","provenance":"{provenance}","params":{params},"subject":{subject}{detail},"of":{of},"evidence":{{"file":"raw/a.txt","sha256":"{sha256}"}}}}"#,
                of = of(metric)
            )
        })
        .collect();
    fs::write(run.path().join("records.jsonl"), lines.join("\n") + "\n").unwrap();
    run
}

fn accept(run: &TempDir, contract: &str) -> (i32, Value, String) {
    let path = run.path().join("contract.toml");
    fs::write(&path, format!("{HEAD}{contract}")).unwrap();
    let out = Command::new(env!("CARGO_BIN_EXE_clustermax")).arg("accept").arg(run.path()).output().unwrap();
    let code = out.status.code().unwrap();
    assert!(code <= 1, "{}", String::from_utf8_lossy(&out.stderr));
    let json = fs::read_to_string(run.path().join("acceptance.json")).unwrap();
    (code, serde_json::from_str(&json).unwrap(), String::from_utf8_lossy(&out.stdout).into_owned())
}

const MISSING: &str =
    "[[line]]\nid = \"gpus\"\ntext = \"all GPUs\"\nmetric = \"gpu_missing\"\nunit = \"\"\nat_most = 0\n";
const BUSBW: &str = "[[line]]\nid = \"bw\"\ntext = \"fast\"\nmetric = \"busbw\"\nunit = \"GB/s\"\n\
                     params = { collective = \"all_reduce\", size = 1024.0 }\nat_least = 340\n";

#[test]
fn every_value_must_keep_the_bound_and_every_node_must_have_one() {
    let n1 = ("gpu_missing", Some(0.0), "", "{}", r#"{"node":"n1"}"#);
    let n2 = ("gpu_missing", Some(0.0), "", "{}", r#"{"node":"n2"}"#);
    let bad = ("gpu_missing", Some(2.0), "", "{}", r#"{"node":"n2"}"#);
    let gone = ("gpu_missing", None, "", "{}", r#"{"node":"n2"}"#);
    for (records, code, answer, expected) in [
        (vec![n1, n2], 0, "met", "PASSED"),
        (vec![n1, bad], 1, "not_met", "2"),
        (vec![n1], 1, "not_measured", "not measured on n2"),
        (vec![n1, gone], 1, "not_measured", "the node went away"),
        (
            vec![("gpu_count", Some(8.0), "", "{}", r#"{"node":"n1"}"#)],
            1,
            "not_measured",
            "no record matches",
        ),
    ] {
        let run = measured(&records);
        let (found, json, text) = accept(&run, MISSING);
        assert_eq!((found, &json["lines"][0]["answer"]), (code, &Value::from(answer)), "{text}");
        assert!(text.contains(expected), "{expected}: {text}");
        assert_eq!(json["accepted"], code == 0);
        assert!(text.contains("buyer     ____"), "a place to sign: {text}");
    }
}

#[test]
fn params_choose_the_records_and_whole_numbers_are_numbers() {
    let record = |size: u32, value: f64| {
        let params = format!(r#"{{"collective":"all_reduce","size":{size}}}"#);
        ("busbw", Some(value), "GB/s", params)
    };
    let made = [record(1024, 350.0), record(2048, 10.0)];
    let records: Vec<_> = made.iter().map(|(m, v, u, p)| (*m, *v, *u, p.as_str(), "{}")).collect();
    let (code, json, text) = accept(&measured(&records), BUSBW);
    assert_eq!(code, 0, "{text}");
    assert_eq!(json["lines"][0]["values"], 1, "only the size that was asked for");
    assert_eq!(json["lines"][0]["required"], "at least 340 GB/s");
}

/// An all-reduce with NVLink turned off says nothing of the one that was promised.
#[test]
fn a_run_that_was_made_slow_on_purpose_breaks_no_promise() {
    let plain = r#"{"collective":"all_reduce","size":1024,"nodes":1}"#;
    let off = r#"{"collective":"all_reduce","size":1024,"nodes":1,"variant":"nvlink_off"}"#;
    let run =
        measured(&[("busbw", Some(450.0), "GB/s", plain, "{}"), ("busbw", Some(40.0), "GB/s", off, "{}")]);
    let (code, json, text) = accept(&run, BUSBW);
    assert_eq!((code, &json["lines"][0]["values"]), (0, &Value::from(1)), "{text}");
    let only = measured(&[("busbw", Some(450.0), "GB/s", off, "{}")]);
    let (code, json, text) = accept(&only, BUSBW);
    assert_eq!((code, &json["lines"][0]["answer"]), (1, &Value::from("not_measured")), "{text}");
}

#[test]
fn a_criterion_that_is_only_declared_is_not_measured() {
    let line = "[[line]]\nid = \"c\"\ntext = \"certified\"\ncriterion = \"sec-02\"\n";
    let run = measured(&[("gpu_missing", Some(0.0), "", "{}", r#"{"node":"n1"}"#)]);
    let (code, json, text) = accept(&run, line);
    assert_eq!((code, &json["lines"][0]["answer"]), (1, &Value::from("not_measured")), "{text}");
}

/// A few seconds of what the profile measures for hours are no evidence of it.
#[test]
fn a_shrunk_run_meets_no_contract_and_is_not_rated() {
    let run = measured(&[
        ("gpu_missing", Some(0.0), "", "{}", r#"{"node":"n1"}"#),
        ("gpu_missing", Some(0.0), "", "{}", r#"{"node":"n2"}"#),
    ]);
    let file = run.path().join("run.json");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.replace("\"hardware\"", "\"shrink\":100,\"hardware\"")).unwrap();
    let (code, json, text) = accept(&run, MISSING);
    assert_eq!((code, &json["accepted"]), (1, &Value::from(false)), "{text}");
    assert!(
        text.contains("profile demo, every size and time divided by 100") && text.contains("SHRUNK"),
        "{text}"
    );
    let score = Command::new(env!("CARGO_BIN_EXE_clustermax")).arg("score").arg(run.path()).output().unwrap();
    let text = String::from_utf8_lossy(&score.stdout).into_owned();
    assert_eq!(score.status.code(), Some(1), "{text}");
    assert!(text.contains("NOT RATED") && text.contains("--shrink"), "{text}");
    let page = fs::read_to_string(run.path().join("report.html")).unwrap();
    assert!(page.contains("divided by 100"), "the page says so too");
}

/// Who takes a bad record out of records.jsonl, and the stages' manifests with it, meets no line by it.
#[test]
fn a_line_is_not_met_by_what_a_removed_record_leaves() {
    let run = measured(&[
        ("gpu_missing", Some(0.0), "", "{}", r#"{"node":"n1"}"#),
        ("gpu_missing", Some(0.0), "", "{}", r#"{"node":"n2"}"#),
        ("gpu_missing", Some(2.0), "", "{}", r#"{"node":"n3"}"#),
    ]);
    assert_eq!(accept(&run, MISSING).1["lines"][0]["answer"], "not_met");
    let file = run.path().join("records.jsonl");
    let text = fs::read_to_string(&file).unwrap();
    let kept: String = text.lines().take(2).map(|line| format!("{line}\n")).collect();
    fs::write(&file, &kept).unwrap();
    let (code, json, text) = accept(&run, MISSING);
    assert_eq!((code, &json["lines"][0]["answer"]), (1, &Value::from("not_measured")), "{text}");
    assert!(text.contains("2 of 3 records of gpu_missing"), "{text}");
    // Nor do records that say that there are fewer.
    fs::write(&file, kept.replace("\"of\":3", "\"of\":1")).unwrap();
    let (code, _, text) = accept(&run, MISSING);
    assert!(code == 1 && text.contains("of which one says that there are 1"), "{text}");
}

/// A sum over nodes follows from measured figures, and a contract may promise it.
#[test]
fn a_sum_of_measured_figures_keeps_a_promise() {
    let line = "[[line]]\nid = \"s\"\ntext = \"fast\"\nmetric = \"fio_total_bandwidth\"\nunit = \"MB/s\"\nat_least = 9000\n";
    for (value, answer) in [(9500.0, "met"), (8000.0, "not_met")] {
        let run = measured(&[("fio_total_bandwidth", Some(value), "MB/s", r#"{"clients":8}"#, "{}")]);
        let (code, json, text) = accept(&run, line);
        assert_eq!(
            (code, &json["lines"][0]["answer"]),
            (i32::from(answer != "met"), &Value::from(answer)),
            "{text}"
        );
    }
}

#[test]
fn every_gpu_of_a_node_must_have_a_value() {
    let line =
        "[[line]]\nid = \"g\"\ntext = \"fast\"\nmetric = \"gemm\"\nunit = \"TFLOP/s\"\nat_least = 600\n";
    let info = r#"{"model":"NVIDIA H100 80GB HBM3"}"#;
    let subjects = [("n1", 0), ("n1", 1), ("n2", 0), ("n2", 1)]
        .map(|(node, gpu)| format!(r#"{{"node":"{node}","gpu":{gpu}}}"#));
    for (seen, answer, expected) in [(4, "met", "PASSED"), (3, "not_measured", "not measured on n2 g1")] {
        let mut records = Vec::new();
        for subject in &subjects {
            records.push(("gpu_info", Some(1.0), "", info, subject.as_str()));
        }
        for subject in &subjects[..seen] {
            records.push(("gemm", Some(700.0), "TFLOP/s", r#"{"dtype":"bf16"}"#, subject.as_str()));
        }
        let (_, json, text) = accept(&measured(&records), line);
        assert_eq!(json["lines"][0]["answer"], answer, "{text}");
        assert!(text.contains(expected), "{expected}: {text}");
    }
}

/// A bound and a value that misses it by little must not look the same.
#[test]
fn a_bound_is_shown_with_all_of_its_digits() {
    let line =
        "[[line]]\nid = \"b\"\ntext = \"fast\"\nmetric = \"busbw\"\nunit = \"GB/s\"\nat_least = 339.99996\n";
    let run = measured(&[("busbw", Some(339.99995), "GB/s", "{}", "{}")]);
    let (code, _, text) = accept(&run, line);
    assert_eq!(code, 1);
    assert!(text.contains("required at least 339.99996 GB/s"), "{text}");
    assert!(text.contains("observed 339.99995 GB/s"), "{text}");
}
