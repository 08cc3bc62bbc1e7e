//! `clustermax rank` over copies of the golden run.

#![allow(clippy::unwrap_used, reason = "in a test a failed step is the failure")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};
use tempfile::TempDir;

fn clustermax(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_clustermax")).args(args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// One real score.json, changed for each provider.
fn base() -> Value {
    let folder = tempfile::tempdir().unwrap();
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/golden");
    let output =
        clustermax(&["score", golden.to_str().unwrap(), "--json", "--out", folder.path().to_str().unwrap()]);
    serde_json::from_slice(&output.stdout).unwrap()
}

struct Peers {
    folder: TempDir,
    base: Value,
}

impl Peers {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), base: base() }
    }

    fn add(&self, name: &str, tier: &str, lower: f64, upper: f64) -> PathBuf {
        let mut score = self.base.clone();
        score["inputs"]["evidence"] = json!({"provider": name});
        score["rating"]["estimate"]["tier"] = tier.into();
        score["result"] = json!({"lower": lower, "upper": upper, "score": upper, "coverage": 0.9});
        score["sensitivity"]["weights"]["lower"] =
            json!({"p05": lower - 0.01, "p50": lower, "p95": lower + 0.01});
        score["run"]["run"] = name.into();
        let folder = self.folder.path().join(name.replace(['<', '>', '/'], "_"));
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("score.json"), score.to_string()).unwrap();
        folder
    }
}

fn rank(paths: &[PathBuf], more: &[&str]) -> Output {
    let mut args = vec!["rank"];
    args.extend(paths.iter().map(|path| path.to_str().unwrap()));
    args.extend(more);
    clustermax(&args)
}

fn ranked(paths: &[PathBuf]) -> Value {
    let output = rank(paths, &["--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Run, rank, tie, relative tier, firmness.
type Row<'a> = (&'a str, u64, bool, Option<&'a str>, Option<&'a str>);

#[test]
fn order_ties_firmness_and_relative_tiers() {
    let peers = Peers::new();
    let mut paths = vec![
        peers.add("delta", "silver", 0.70, 0.75),
        peers.add("alpha", "gold", 0.85, 0.95),
        peers.add("beta", "gold", 0.847, 0.90),
        peers.add("gamma", "gold", 0.82, 0.83),
        peers.add("epsilon", "bronze", 0.55, 0.60),
        peers.add("zeta", "underperforming", 0.99, 0.99),
        peers.add("eta", "unavailable", 0.10, 0.99),
    ];
    let found = ranked(&paths);
    let rows: Vec<Row<'_>> = found["places"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| {
            (
                one["run"].as_str().unwrap(),
                one["rank"].as_u64().unwrap(),
                one["tie"].as_bool().unwrap(),
                one["relative_tier"].as_str(),
                one["above_next"].as_str(),
            )
        })
        .collect();
    assert_eq!(
        rows,
        [
            ("alpha", 1, true, Some("silver"), Some("open")),
            ("beta", 1, true, Some("silver"), Some("certain")),
            ("gamma", 3, false, Some("ribbon"), Some("certain")),
            ("delta", 4, false, Some("ribbon"), Some("certain")),
            ("epsilon", 5, false, Some("ribbon"), Some("likely")),
            ("eta", 6, false, None, Some("open")),
            ("zeta", 7, false, None, None),
        ]
    );
    assert_eq!(found["peers"], json!({"count": 5, "date": "2026-11-30", "needed": 5}));
    // The order of the arguments changes no byte; one peer less and there are no relative tiers.
    let whole = rank(&paths, &["--json"]).stdout;
    paths.reverse();
    assert_eq!(rank(&paths, &["--json"]).stdout, whole);
    paths.retain(|path| !path.ends_with("epsilon"));
    let fewer = ranked(&paths);
    assert!(fewer["places"].as_array().unwrap().iter().all(|one| one["relative_tier"].is_null()));
    assert!(
        text(&rank(&paths, &[]).stdout)
            .contains("No relative tiers: 4 peers as of 2026-11-30, 5 are needed.")
    );
}

#[test]
fn a_run_that_is_not_rated_has_no_rank() {
    let peers = Peers::new();
    let paths = [peers.add("alpha", "gold", 0.85, 0.95), peers.add("beta", "gold", 0.95, 0.96)];
    let file = paths[1].join("score.json");
    let mut score: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    score["rating"]["not_rated"] = json!(["the hardware was simulated"]);
    fs::write(&file, score.to_string()).unwrap();
    let found = ranked(&paths);
    assert_eq!(found["places"][1]["rank"], Value::Null);
    assert_eq!(found["places"][1]["tier"], Value::Null);
    assert!(text(&rank(&paths, &[]).stdout).contains("Not rated"));
}

#[test]
fn the_page_stands_alone_and_hostile_names_stay_text() {
    let peers = Peers::new();
    let paths =
        [peers.add("<script>alert(1)</script>", "gold", 0.85, 0.95), peers.add("beta", "silver", 0.7, 0.8)];
    let page = peers.folder.path().join("rank.html");
    let output = rank(&paths, &["--html", page.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let html = fs::read_to_string(page).unwrap();
    for forbidden in ["<script", "http://", "src=", "@import", "url(", "javascript:"] {
        assert!(!html.contains(forbidden), "{forbidden}");
    }
    assert!(
        html.contains("&lt;script&gt;") && html.contains("<svg") && html.contains("Participation Ribbon")
    );
}

#[test]
fn what_cannot_be_compared_is_refused_by_name() {
    let peers = Peers::new();
    let good = peers.add("alpha", "gold", 0.85, 0.95);
    let file = |name: &str, change: &dyn Fn(&mut Value)| {
        let mut score = peers.base.clone();
        change(&mut score);
        let path = peers.folder.path().join(name);
        fs::write(&path, score.to_string()).unwrap();
        path
    };
    let empty = peers.folder.path().join("empty");
    fs::create_dir(&empty).unwrap();
    let cut = peers.folder.path().join("cut.json");
    fs::write(&cut, "{\"schema\"").unwrap();
    for (path, expected) in [
        (
            file("old.json", &|score| score["methodology"] = "2026.11.1".into()),
            "methodology 2026.11.1, this ranking uses",
        ),
        (
            file("tables.json", &|score| score["inputs"]["methodology"]["criteria.toml"] = "00".into()),
            "but other tables",
        ),
        (file("schema.json", &|score| score["schema"] = "clustermax-score/9".into()), "clustermax-score/9"),
        (file("bounds.json", &|score| score["result"]["lower"] = 1.5.into()), "not within 0 and 1"),
        (file("less.json", &|score| score["run"] = Value::Null), "not a score"),
        (empty, "score.json: cannot be read"),
        (cut, "not JSON"),
        (good.clone(), "once more; name each run once"),
    ] {
        let output = rank(&[good.clone(), path], &[]);
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{message}");
        assert_eq!(message.lines().count(), 1, "{message}");
        assert!(message.contains(expected), "{message} lacks {expected:?}");
    }
    let output = rank(&[good], &["--html", "/nowhere/rank.html"]);
    assert!(text(&output.stderr).contains("cannot write /nowhere/rank.html"));
}
