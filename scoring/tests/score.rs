//! The program from outside: the golden run, bad command lines, and what must never change a rating; bad input is in
//! malformed.rs.
//!
//! `CLUSTERMAX_BLESS=1 cargo test -p clustermax-scoring --test score` rewrites the expected files.

#![allow(clippy::unwrap_used, reason = "in a test a failed step is the failure")]

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use scoring::judge::Evidence;
use scoring::load::load_with;
use scoring::methodology::Methodology;
use scoring::rating::{Rating, rate};
use serde_json::Value;
use tempfile::TempDir;

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// A copy of the golden run: two nodes of eight H100, with one of each oddity, and statements on all but two gates.
struct Run {
    folder: TempDir,
}

impl Run {
    fn golden() -> Self {
        let folder = tempfile::tempdir().unwrap();
        copy(&data("golden"), folder.path());
        let methodology = Methodology::built_in().unwrap();
        let evidence = common::evidence(&methodology, &["sec-01", "ava-03"]);
        fs::write(folder.path().join("evidence.toml"), evidence).unwrap();
        Self { folder }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path().join(name)).unwrap()
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path().join(name), text).unwrap();
    }

    fn edit(&self, name: &str, from: &str, to: &str) {
        let text = self.read(name);
        assert!(text.contains(from), "{name} lacks {from:?}");
        self.write(name, &text.replacen(from, to, 1));
    }

    fn json(&self) -> Value {
        serde_json::from_str(&self.read("score.json")).unwrap()
    }
}

fn clustermax(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_clustermax")).args(args).output().unwrap()
}

fn score(run: &Run) -> Output {
    clustermax(&["score", run.path().to_str().unwrap()])
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn the_golden_run_gives_the_expected_bytes() {
    let run = Run::golden();
    let output = score(&run);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(stdout(&output), run.read("report.txt"));
    for name in ["score.json", "report.txt"] {
        let expected = data("golden-expected").join(name);
        if std::env::var_os("CLUSTERMAX_BLESS").is_some() {
            fs::create_dir_all(data("golden-expected")).unwrap();
            fs::write(&expected, run.read(name)).unwrap();
        }
        let expected = fs::read_to_string(&expected).unwrap();
        for (index, (found, wanted)) in run.read(name).lines().zip(expected.lines()).enumerate() {
            assert_eq!(found, wanted, "{name} line {}", index + 1);
        }
        assert_eq!(run.read(name), expected, "{name}");
    }
}

#[test]
fn the_golden_rating_is_bronze_for_its_unknown_gates() {
    let run = Run::golden();
    score(&run);
    let json = run.json();
    assert_eq!(json["rating"]["state"], "rated");
    assert_eq!(json["rating"]["tier"], "bronze");
    assert_eq!(json["rating"]["estimate"]["decided_by"], "gate-unknown");
    assert_eq!(json["rating"]["estimate"]["provisional"], true);
    let gates: Vec<&str> = json["gates"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|gate| gate["state"] == "unknown")
        .map(|gate| gate["criterion"].as_str().unwrap())
        .collect();
    assert_eq!(gates, ["sec-01", "ava-03"]);
    assert!(json["notice"].as_str().unwrap().contains("estimate"));
}

#[test]
fn keys_are_sorted_and_shares_have_six_decimals_at_most() {
    fn walk(value: &Value) {
        match value {
            Value::Object(map) => {
                let keys: Vec<&String> = map.keys().collect();
                assert!(keys.is_sorted(), "{keys:?}");
                map.values().for_each(walk);
            }
            Value::Array(items) => items.iter().for_each(walk),
            Value::Number(number) => {
                let text = number.to_string();
                let decimals = text.split('.').nth(1).map_or(0, str::len);
                assert!(decimals <= 6 && !text.contains('e'), "{text}");
            }
            _ => {}
        }
    }
    let run = Run::golden();
    score(&run);
    walk(&run.json());
}

#[test]
fn the_order_of_records_changes_no_byte() {
    let first = Run::golden();
    score(&first);
    let names = ["score.json", "report.txt", "report.html"];
    let expected = names.map(|name| first.read(name));
    for step in [1, 7, 100] {
        let run = Run::golden();
        let text = run.read("records.jsonl");
        let mut lines: Vec<&str> = text.lines().rev().collect();
        lines.rotate_left(step);
        lines.sort_by_key(|line| line.len() % (step + 2));
        run.write("records.jsonl", &format!("{}\n", lines.join("\n")));
        score(&run);
        assert_eq!(names.map(|name| run.read(name)), expected, "step {step}");
    }
}

#[test]
fn every_value_that_counted_leads_to_its_raw_file() {
    let run = Run::golden();
    score(&run);
    let mut seen = 0;
    for criterion in run.json()["criteria"].as_array().unwrap() {
        for observed in criterion["observed"].as_array().unwrap() {
            let evidence = &observed["evidence"];
            let file = evidence["file"].as_str().unwrap();
            let raw: Value = if file == "evidence.toml" {
                toml::from_str(&run.read(file)).unwrap()
            } else {
                serde_json::from_str(&run.read(file)).unwrap()
            };
            let row = raw.pointer(evidence["pointer"].as_str().unwrap()).unwrap();
            if file == "evidence.toml" {
                assert_eq!((&row["item"], &row["met"]), (&criterion["id"], &true.into()));
                continue;
            }
            let (found, recorded) = (row["value"].as_f64().unwrap(), observed["value"].as_f64().unwrap());
            assert!((found - recorded).abs() < 1e-6, "{observed}");
            seen += 1;
        }
    }
    assert!(seen > 60, "{seen}");
}

#[test]
fn changed_missing_and_linked_evidence_is_named_and_not_believed() {
    let run = Run::golden();
    let output = score(&run);
    assert!(stderr(&output).contains("raw/storage/n2.json has changed"), "{}", stderr(&output));
    let state = |run: &Run, id: &str| {
        let json = run.json();
        let criteria = json["criteria"].as_array().unwrap();
        let one = criteria.iter().find(|one| one["id"] == id).unwrap();
        (one["state"].as_str().unwrap().to_owned(), one["reason"].as_str().unwrap().to_owned())
    };
    assert_eq!(state(&run, "sto-08").0, "unknown");
    assert!(state(&run, "sto-08").1.contains("raw/storage/n2.json has changed"));

    fs::remove_file(run.path().join("raw/lifecycle/n1.json")).unwrap();
    score(&run);
    assert_eq!(state(&run, "orc-21").0, "unknown");
    assert!(state(&run, "orc-21").1.contains("raw/lifecycle/n1.json is missing: n1"));

    std::os::unix::fs::symlink("/dev/zero", run.path().join("raw/lifecycle/n1.json")).unwrap();
    score(&run);
    assert!(state(&run, "orc-21").1.contains("is not a regular file"));

    let run = Run::golden();
    run.edit("records.jsonl", "\"pointer\": \"/rows/1\"", "\"pointer\": \"/rows/99999\"");
    score(&run);
    assert!(run.read("score.json").contains("has no /rows/99999"));
}

#[test]
fn impossible_values_and_unknown_metrics_are_named_and_not_believed() {
    let run = Run::golden();
    score(&run);
    let json = run.json();
    let reasons: Vec<&str> =
        json["not_believed"].as_array().unwrap().iter().map(|one| one["reason"].as_str().unwrap()).collect();
    for expected in [
        "141.5 percent is impossible, fs_used_max lies between 0 and 100",
        "900 GB/s is impossible, the ceiling is 495",
        "metric tool_presentt is not in metrics.tsv (did you mean tool_present?)",
    ] {
        assert!(reasons.iter().any(|reason| reason.contains(expected)), "{expected}: {reasons:?}");
    }
    run.edit("records.jsonl", "\"unit\": \"TFLOP/s\"", "\"unit\": \"GFLOP/s\"");
    score(&run);
    assert!(run.read("score.json").contains("unit is \\\"GFLOP/s\\\" instead of \\\"TFLOP/s\\\""));
}

#[test]
fn a_cpu_simulated_or_synthetic_run_is_measured_and_not_rated() {
    for (file, from, to, expected) in [
        ("run.json", "\"hardware\": \"gpu\"", "\"hardware\": \"cpu\"", "CPU-only"),
        ("run.json", "\"simulated\": false", "\"simulated\": true", "simulated"),
        ("records.jsonl", "\"provenance\": \"measured\"", "\"provenance\": \"synthetic\"", "synthetic"),
    ] {
        let run = Run::golden();
        run.edit(file, from, to);
        let output = score(&run);
        assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
        let json = run.json();
        assert_eq!(json["rating"]["state"], "not_rated");
        assert_eq!(json["rating"]["tier"], Value::Null);
        assert_eq!(json["rating"]["estimate"]["tier"], "bronze", "the estimate stays, in the JSON");
        assert!(json["rating"]["not_rated"][0].as_str().unwrap().contains(expected));
        for name in ["report.txt", "report.html"] {
            let text = run.read(name);
            assert!(text.to_lowercase().contains("not rated"), "{name}");
            assert!(text.contains(expected), "{name}");
            assert!(!text.contains("Bronze at most") && !text.contains("BRONZE"), "{name}");
        }
        // What was measured is in it all the same.
        assert!(run.read("report.txt").contains("peak 416.404 GB/s at 8 GiB"));
    }
}

#[test]
fn a_failed_gate_is_underperforming_even_with_little_else() {
    let run = Run::golden();
    let text = run.read("records.jsonl");
    let lines: Vec<String> = text
        .lines()
        .filter(|line| line.contains("wrong_values"))
        .map(|line| line.replacen("\"value\": 0", "\"value\": 7", 1))
        .collect();
    run.write("records.jsonl", &format!("{}\n", lines.join("\n")));
    let output = score(&run);
    assert_eq!(output.status.code(), Some(0), "seen to fail is a rating");
    assert_eq!(run.json()["rating"]["tier"], "underperforming");
    assert!(run.read("report.txt").contains("gate rel-25 failed"));
}

#[test]
fn a_run_that_nobody_could_look_at_is_unavailable_and_exit_1() {
    let run = Run::golden();
    let text = run.read("records.jsonl");
    let line = text.lines().find(|line| line.contains("bmc_reachable")).unwrap();
    run.write("records.jsonl", &format!("{line}\n"));
    let output = score(&run);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(run.json()["rating"]["tier"], "unavailable");
}

/// Rates a set of records without the program: one folder serves them all.
fn rating_of(run: &Run, methodology: &Methodology, lines: &[&str]) -> Rating {
    run.write("records.jsonl", &format!("{}\n", lines.join("\n")));
    let loaded = load_with(run.path(), methodology, None).unwrap();
    let evidence = Evidence::new(&loaded, methodology);
    let verdicts: Vec<_> = methodology.criteria.iter().map(|criterion| evidence.judge(criterion)).collect();
    rate(methodology, &loaded, &verdicts)
}

/// Place from the best; Unavailable and Underperforming both give no medal.
fn place(methodology: &Methodology, rating: &Rating) -> usize {
    let tiers = &methodology.rules.tier;
    tiers.iter().position(|tier| tier.id == rating.estimate.tier).unwrap_or(tiers.len())
}

#[test]
fn losing_any_record_never_raises_the_lower_bound_the_coverage_or_the_tier() {
    let run = Run::golden();
    // All gates passed and every cap on the extent away, so that the tier can move.
    let mut methodology = Methodology::built_in().unwrap();
    methodology.rules.cap.retain(|cap| cap.id != "criteria-90");
    run.write("evidence.toml", &common::evidence(&methodology, &[]));
    let text = run.read("records.jsonl");
    let lines: Vec<&str> = text.lines().collect();
    let whole = rating_of(&run, &methodology, &lines);
    assert_eq!(whole.estimate.tier, "silver", "{:?}", whole.estimate);
    let unknown_gate = methodology.rules.tier.iter().position(|tier| tier.id == "bronze").unwrap();
    let gates: Vec<&str> = vec![
        "gpudirect_rdma",
        "pcie_acs_enabled",
        "slurm_health_check_program",
        "slurm_health_check_interval",
        "wrong_values",
    ];
    for left_out in 0..lines.len() {
        let mut fewer = lines.clone();
        let line = fewer.remove(left_out);
        let rating = rating_of(&run, &methodology, &fewer);
        assert!(rating.bounds.lower <= whole.bounds.lower, "{line}");
        assert!(rating.bounds.coverage <= whole.bounds.coverage, "{line}");
        assert!(rating.bounds.upper >= whole.bounds.upper || line.contains("no_dpu"), "{line}");
        assert!(place(&methodology, &rating) >= place(&methodology, &whole), "{line}");
        if gates.iter().any(|gate| line.contains(gate)) {
            assert!(place(&methodology, &rating) >= unknown_gate, "{line}");
        }
    }
}

#[test]
fn bad_command_lines_are_exit_2() {
    let run = Run::golden();
    let dir = run.path().to_str().unwrap();
    let gone = format!("{dir}/gone");
    for (args, expected) in [
        (vec!["score", gone.as_str()], "does not exist"),
        (vec!["score", dir, "--out", gone.as_str()], "output folder"),
        (vec!["score", dir, "--out", "/proc"], "cannot write /proc/score.json"),
        (vec!["score", dir, "--data", dir], "a methodology folder needs"),
        (vec!["explain", "orc-5"], "there is no criterion \"orc-5\"; did you mean"),
        (vec!["criteria", "show", "xyz"], "there is no criterion"),
        (vec!["score"], "required arguments"),
        (vec!["rate"], "unrecognized subcommand"),
    ] {
        let output = clustermax(&args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(stderr(&output).contains(expected), "{args:?}: {}", stderr(&output));
    }
}

/// A limit on file size stands for a full disk: the write fails in the middle.
#[test]
fn a_full_disk_leaves_the_old_report_and_no_half_file() {
    let run = Run::golden();
    score(&run);
    let before = run.read("score.json");
    let files = || {
        let mut names: Vec<String> = fs::read_dir(run.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    };
    let there = files();
    let script = "trap '' XFSZ; ulimit -f 8; exec \"$0\" score \"$1\"";
    let output = Command::new("sh")
        .args(["-c", script, env!("CARGO_BIN_EXE_clustermax"), run.path().to_str().unwrap()])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(
        stderr(&output).contains("cannot write") && stderr(&output).contains("free space"),
        "{}",
        stderr(&output)
    );
    assert_eq!(run.read("score.json"), before);
    assert_eq!(files(), there);
}

#[test]
fn the_html_report_stands_alone_and_its_evidence_links_lead_somewhere() {
    let run = Run::golden();
    let out = run.path().join("reports/a");
    fs::create_dir_all(&out).unwrap();
    clustermax(&["report", run.path().to_str().unwrap(), "--out", out.to_str().unwrap()]);
    let html = fs::read_to_string(out.join("report.html")).unwrap();
    for forbidden in ["<script", "http://", "src=", "@import", "url(", "<iframe", "javascript:"] {
        assert!(!html.contains(forbidden), "{forbidden}");
    }
    let mut links = 0;
    for part in html.split("href=\"").skip(1) {
        let target = part.split('"').next().unwrap();
        if let Some(id) = target.strip_prefix('#') {
            assert!(html.contains(&format!("id=\"{id}\"")), "{target}");
        } else if target != "data:," {
            assert!(out.join(target).is_file(), "{target}");
            links += 1;
        }
    }
    assert!(links > 200, "{links}");
    let ids: Vec<&str> = html.split(" id=\"").skip(1).map(|part| part.split('"').next().unwrap()).collect();
    let distinct: std::collections::BTreeSet<&&str> = ids.iter().collect();
    assert_eq!(ids.len(), distinct.len(), "ids are unique: {ids:?}");
    // Every measured value is in it.
    let text = run.read("records.jsonl");
    let measured = text.lines().filter(|line| line.contains("\"state\": \"measured\"")).count();
    let stated = run.read("evidence.toml").matches("[[").count();
    assert!(html.contains(&format!("<p>{} measured values.", measured + stated)));
    // Tags are closed in order.
    let mut open: Vec<String> = Vec::new();
    for part in html.split('<').skip(1) {
        let tag = part.split('>').next().unwrap();
        let name = tag.trim_start_matches('/').split_whitespace().next().unwrap_or_default();
        let void = ["meta", "link", "!doctype", "br", "input"].contains(&name) || tag.ends_with('/');
        if tag.starts_with('/') {
            assert_eq!(open.pop().as_deref(), Some(name), "closed in order");
        } else if !void {
            open.push(name.to_owned());
        }
    }
    assert_eq!(open, Vec::<String>::new());
}

#[test]
fn hostile_text_reaches_neither_the_page_nor_the_terminal() {
    let run = Run::golden();
    let attack = r#"</td><script>alert(1)</script>\u001b[2J\u202e"#;
    for file in ["run.json", "records.jsonl"] {
        let text = run.read(file).replace("\"cluster\": \"alpha\"", &format!("\"cluster\": \"{attack}\""));
        run.write(file, &text);
    }
    run.edit("records.jsonl", "sudo timed out", attack);
    run.edit("records.jsonl", "\"link\": \"InfiniBand\"", &format!("\"{attack}\": \"{attack}\""));
    let output = score(&run);
    let page = run.read("report.html");
    assert!(!page.contains("<script") && page.contains("&lt;script&gt;"));
    for text in [page, stdout(&output), run.read("report.txt"), run.read("report.md")] {
        assert!(!text.contains(['\u{1b}', '\u{202e}']), "{text}");
    }
}

#[test]
fn explain_shows_rule_value_evidence_and_source() {
    let run = Run::golden();
    let output = clustermax(&["explain", "rel-24", run.path().to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0));
    let text = stdout(&output);
    for expected in [
        "gemm-h100",
        "0.7 at 715.05",
        "impossible above 989",
        "pass, value",
        "evidence raw/gemm/n",
        "methodology 2026",
    ] {
        assert!(text.contains(expected), "{text}\nlacks {expected:?}");
    }
}

#[test]
fn criteria_list_show_and_check() {
    let list = stdout(&clustermax(&["criteria", "list"]));
    let methodology = Methodology::built_in().unwrap();
    assert_eq!(list.lines().count(), methodology.listed.len());
    assert_eq!(list.matches("not decided yet").count(), methodology.undecided.len());
    let check = clustermax(&["criteria", "check"]);
    assert_eq!(check.status.code(), Some(0));
    let check = stdout(&check);
    assert!(
        check.contains("195 criteria listed, 187 decided (120 by a program, 67 by a statement), 0 not yet, 8 about Kubernetes"),
        "{check}"
    );
    assert!(check.contains("every row is valid"));
    for criterion in methodology.all() {
        let text = stdout(&clustermax(&["criteria", "show", &criterion.id]));
        assert!(text.contains("source: ") && text.contains(&criterion.date), "{text}");
    }
}

#[test]
fn diff_names_what_changed_and_says_when_nothing_did() {
    let (before, after) = (Run::golden(), Run::golden());
    let args = |more: &[&str]| {
        let mut args = vec!["diff", before.path().to_str().unwrap(), after.path().to_str().unwrap()];
        args.extend(more);
        clustermax(&args)
    };
    let same = args(&[]);
    assert_eq!(same.status.code(), Some(0), "{}", stderr(&same));
    assert!(stdout(&same).contains("0 of 187 criteria changed"), "{}", stdout(&same));
    let line = before.read("records.jsonl");
    let line = line.lines().find(|line| line.contains("slurm_accounting")).unwrap().to_owned();
    let text = after.read("records.jsonl");
    after.write("records.jsonl", &text.replace(&line, &line.replacen("\"value\": 1", "\"value\": 0", 1)));
    let changed = args(&[]);
    assert_eq!(changed.status.code(), Some(1));
    let text = stdout(&changed);
    assert!(text.contains("1 of 187 criteria changed") && text.contains("mon-04"), "{text}");
    let json: Value = serde_json::from_str(&stdout(&args(&["--json"]))).unwrap();
    assert_eq!(json["criteria"][0]["before"]["state"], "pass");
    assert_eq!(json["criteria"][0]["after"]["state"], "fail");
    assert!(json["after"]["lower"].as_f64() < json["before"]["lower"].as_f64());
}

#[test]
fn json_goes_to_stdout_and_to_the_out_folder() {
    let run = Run::golden();
    let out = tempfile::tempdir().unwrap();
    let output =
        clustermax(&["score", run.path().to_str().unwrap(), "--json", "--out", out.path().to_str().unwrap()]);
    let written = fs::read_to_string(out.path().join("score.json")).unwrap();
    assert_eq!(stdout(&output), written);
    assert!(!run.path().join("score.json").exists());
    let json: BTreeMap<String, Value> = serde_json::from_str(&written).unwrap();
    assert_eq!(json["schema"], "clustermax-score/1");
    assert_eq!(json["tool"], concat!("clustermax ", env!("CARGO_PKG_VERSION")));
}
