//! The reports of a run that has everything to show.
//!
//! `CLUSTERMAX_SHOWCASE=DIR cargo test -p clustermax-scoring --test report` leaves its results folder in DIR, for
//! `scoring/tests/accessibility.sh` and for looking at.

#![allow(clippy::unwrap_used, reason = "in a test a failed step is the failure")]

mod common;
#[path = "common/perfect.rs"]
mod perfect;
#[path = "common/showcase.rs"]
mod showcase;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use scoring::methodology::Methodology;
use serde_json::Value;
use tempfile::TempDir;

fn clustermax(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_clustermax")).args(args).output().unwrap()
}

/// The scored showcase; made once.
fn shown() -> &'static Path {
    static ONCE: OnceLock<(Option<TempDir>, PathBuf)> = OnceLock::new();
    let (_, path) = ONCE.get_or_init(|| {
        let (kept, path) = match std::env::var_os("CLUSTERMAX_SHOWCASE") {
            Some(path) => (None, PathBuf::from(path)),
            None => {
                let folder = tempfile::tempdir().unwrap();
                let path = folder.path().to_owned();
                (Some(folder), path)
            }
        };
        fs::create_dir_all(&path).unwrap();
        let methodology = Methodology::built_in().unwrap();
        showcase::write(&path, &methodology, showcase::NODES);
        fs::write(path.join("evidence.toml"), common::evidence(&methodology, &["sec-07"])).unwrap();
        let output = clustermax(&["score", path.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        (kept, path)
    });
    path
}

fn read(name: &str) -> String {
    fs::read_to_string(shown().join(name)).unwrap()
}

#[test]
fn every_plot_is_there_with_its_numbers_in_words() {
    let html = read("report.html");
    for id in ["faults", "bandwidth", "links", "heat", "burnin", "stragglers", "sensitivity"] {
        assert!(html.contains(&format!("<h2 id=\"{id}\">")), "{id}");
        assert!(html.contains(&format!("href=\"#{id}\"")), "{id} is in the navigation");
    }
    for words in [
        "n2 xid79: injected 0 s, verdict 0.4 s, drained 0.9 s, returned 61.2 s",
        "n5 dcgm-xid79: injected 0 s",
        "all_reduce expected 440 to 487 GB/s from 8 GiB, ceiling 495 GB/s",
        "all_gather, alltoall, reduce_scatter ceiling 450 GB/s (450 GB/s GPU link)",
        "Reference ar1-h100 over NVLink4: minimum 460, typical 480, impossible above 495 GB/s",
        "The rails of n4 gave 367 GB/s together (gpu memory), the least of 12 nodes",
        "state it in evidence.toml: [[attestation]] with item = &quot;sec-07&quot;",
        "96 GPUs of 12 nodes: lowest",
        "(n3 g5, -1",
        "16 ranks over 599 s",
        "slowest n2 g3 rank 11",
        "n2 g3 persistent 13.6 % slower",
        "Under 1000 draws of other weights the lower bound is",
        "What to fix first",
        "<b>Mend:</b> set AccountingStorageType=accounting_storage/slurmdbd in slurm.conf",
    ] {
        assert!(html.contains(words), "lacks {words}");
    }
    // What is drawn is described, and every description belongs to one drawing.
    assert_eq!(html.matches("role=\"img\"").count(), html.matches("<desc id=").count());
}

/// How a report grows: `cargo test -p clustermax-scoring --test report -- --ignored --nocapture thousand`.
#[test]
#[ignore = "takes a minute and prints figures, which docs/scoring.md states"]
fn a_thousand_nodes_stay_readable() {
    let methodology = Methodology::built_in().unwrap();
    for nodes in [64, 1000] {
        let folder = match std::env::var_os("CLUSTERMAX_SHOWCASE") {
            Some(path) => PathBuf::from(path).join(nodes.to_string()),
            None => tempfile::tempdir().unwrap().keep(),
        };
        fs::create_dir_all(&folder).unwrap();
        showcase::write(&folder, &methodology, nodes);
        let started = std::time::Instant::now();
        let output = clustermax(&["score", folder.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        let html = fs::read_to_string(folder.join("report.html")).unwrap();
        let records = fs::read_to_string(folder.join("records.jsonl")).unwrap().lines().count();
        println!(
            "{nodes} nodes, {records} records: report.html {} KB, {} table rows, scored in {:.1} s",
            html.len() / 1000,
            html.matches("<tr").count(),
            started.elapsed().as_secs_f64()
        );
        assert!(html.contains(&format!("all {nodes} nodes, a column a node")));
        assert!(html.contains("The 4 nodes with the slowest GPUs"));
        assert!(html.len() < 2_000_000 && html.matches("<tr").count() < 2_000);
        if std::env::var_os("CLUSTERMAX_SHOWCASE").is_none() {
            fs::remove_dir_all(folder).unwrap();
        }
    }
}

#[test]
fn the_page_asks_for_nothing_and_runs_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let ranking = folder.path().join("rank.html");
    let ranked = clustermax(&["rank", shown().to_str().unwrap(), "--html", ranking.to_str().unwrap()]);
    assert_eq!(ranked.status.code(), Some(0), "{}", String::from_utf8_lossy(&ranked.stderr));
    for html in [read("report.html"), fs::read_to_string(ranking).unwrap()] {
        let policy = "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\">";
        assert!(html.contains(policy));
        for asks in [
            "<script",
            "<img",
            "<iframe",
            "<object",
            "<embed",
            "<base",
            "@import",
            "url(",
            "src=",
            "srcset",
            "onload",
            "http-equiv=\"refresh",
        ] {
            assert!(!html.contains(asks), "{asks}");
        }
        // A link leads to a place in the page or to a raw file beside it; the icon is empty data.
        for link in html.split("href=\"").skip(1).filter_map(|rest| rest.split('"').next()) {
            let inside = link.strip_prefix('#').is_some_and(|id| html.contains(&format!("id=\"{id}\"")));
            let beside = shown().join(link).is_file();
            assert!(inside || beside || link == "data:,", "{link}");
        }
    }
}

/// In Chromium, with axe-core where `AXE` names it (as `./run-tests` does).
#[test]
fn a_browser_shows_it_at_three_widths_in_light_and_dark() {
    let Some(axe) = std::env::var_os("AXE") else {
        eprintln!("not run: AXE does not name axe-core's axe.min.js");
        return;
    };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/accessibility.sh");
    let output = Command::new(script)
        .arg(env!("CARGO_BIN_EXE_clustermax"))
        .arg(shown())
        .env("AXE", axe)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(text.matches("rules passed").count(), 12, "{text}");
}

#[test]
fn the_markdown_has_the_first_screen_and_every_criterion() {
    let text = read("report.md");
    let json: Value = serde_json::from_str(&read("score.json")).unwrap();
    for criterion in json["criteria"].as_array().unwrap() {
        assert!(text.contains(criterion["id"].as_str().unwrap()));
    }
    let place = |words: &str| text.find(words).unwrap_or_else(|| panic!("lacks {words}"));
    let order = [
        "Decided by",
        "| score over what was seen |",
        "## What to fix first",
        "## Categories",
        "## Gates",
        "## Criteria",
    ];
    assert!(order.windows(2).all(|pair| place(pair[0]) < place(pair[1])));
    assert!(text.contains("*Mend:* sysctl kernel.perf\\_event\\_paranoid=2"), "{}", &text[..3000]);
    // Tables are whole: a row has as many cells as its header.
    let cells = |line: &str| line.replace("\\|", "").matches('|').count();
    let mut header = 0;
    for line in text.lines() {
        if !line.starts_with('|') {
            header = 0;
        } else if header == 0 {
            header = cells(line);
        } else {
            assert_eq!(cells(line), header, "{line}");
        }
    }
}

/// By Python's jsonschema, a validator of others; nothing where it is not installed.
fn validate(schema: &str, documents: &[&Path]) -> Option<Output> {
    let schemas = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/schemas");
    let python = "import sys\ntry:\n    import jsonschema\nexcept ImportError:\n    sys.exit(77)\nimport json\n\
                  schema, *documents = [json.load(open(p)) for p in sys.argv[1:]]\n\
                  jsonschema.Draft202012Validator.check_schema(schema)\n\
                  bad = [f'{p}: {list(e.absolute_path)}: {e.message[:300]}' for p, d in zip(sys.argv[2:], documents)\n\
                  for e in jsonschema.Draft202012Validator(schema).iter_errors(d)]\nprint(*bad, sep='\\n')\nsys.exit(1 if bad else 0)";
    let output = Command::new("/usr/bin/python3")
        .args(["-c", python])
        .arg(schemas.join(schema))
        .args(documents)
        .output()
        .unwrap();
    let there = output.status.code() != Some(77);
    if !there {
        eprintln!("not run: it needs Debian's python3-jsonschema");
    }
    there.then_some(output)
}

/// A fault that was noticed, with everything that its document may hold.
fn injected() -> scoring::inject::timeline::Document {
    serde_json::from_value(serde_json::json!({
        "schema": scoring::inject::timeline::SCHEMA, "id": "1", "fault": "xid79", "kind": "kernel", "ladder": "l1", "expected": "drain",
        "node": "n1", "gpu": 0, "pci": "0000:01:00.0", "line": "NVRM: Xid", "read_back": true, "started": "2026-11-30T20:50:00Z",
        "within": 300.0, "poll": 0.5, "quiet": {"seconds": 5.0, "drained": null, "alarms": []}, "control": null, "alerts": true,
        "wait_return": 60.0, "named": null, "before": "IDLE",
        "events": [{"event": "alert", "by": "file", "at": 1.0, "not_before": 0.5, "detail": "seen"},
            {"event": "drained", "at": 2.0, "not_before": 1.5, "detail": "cmx:xid79"}],
    }))
    .unwrap()
}

/// What a folder and the commands about it write, each by its schema; a key too many is noticed.
#[test]
fn every_other_document_is_what_its_schema_says() {
    let folder = tempfile::tempdir().unwrap();
    let keep = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        fs::write(&path, bytes).unwrap();
        path
    };
    let dir = shown().to_str().unwrap();
    // A run of its own: other tests read the showcase's folder meanwhile.
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/golden");
    let copy = folder.path().join("golden");
    let copied = Command::new("cp").arg("-r").arg(&golden).arg(&copy).status().unwrap();
    assert!(copied.success());
    let golden = copy.to_str().unwrap();
    assert!(matches!(clustermax(&["score", golden]).status.code(), Some(0 | 1)));
    let contract = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/contract-example.toml");
    let accepted = clustermax(&["accept", golden, "--contract", contract.to_str().unwrap()]);
    assert_eq!(accepted.status.code(), Some(1), "{}", String::from_utf8_lossy(&accepted.stderr));
    let bundle = folder.path().join("made.clustermax.tar.gz");
    let packed = clustermax(&["bundle", golden, "--out", bundle.to_str().unwrap()]);
    assert_eq!(packed.status.code(), Some(0), "{}", String::from_utf8_lossy(&packed.stderr));
    let manifest = Command::new("tar")
        .args(["-xzO", "--wildcards", "*/MANIFEST.json", "-f"])
        .arg(&bundle)
        .output()
        .unwrap();
    let mut stages: Vec<PathBuf> =
        fs::read_dir(shown().join("stages")).unwrap().map(|one| one.unwrap().path()).collect();
    stages.sort();
    assert!(stages.len() > 5);
    let mut documents = vec![
        ("run", shown().join("run.json"), "\"profile\""),
        ("rank", keep("rank.json", &clustermax(&["rank", dir, golden, "--json"]).stdout), "\"peers\""),
        ("diff", keep("diff.json", &clustermax(&["diff", dir, golden, "--json"]).stdout), "\"before\""),
        ("acceptance", copy.join("acceptance.json"), "\"accepted\""),
        ("bundle", keep("manifest.json", &manifest.stdout), "\"files\""),
        ("plan", keep("plan.json", &clustermax(&["suite", "plan", "--json"]).stdout), "\"needs\""),
        (
            "suite-status",
            keep("status.json", &clustermax(&["suite", "status", dir, "--json"]).stdout),
            "\"guards\"",
        ),
        (
            "audit",
            keep("audit.json", &clustermax(&["audit", "--scope", "inventory", "--json"]).stdout),
            "\"observed\"",
        ),
        ("inject", keep("inject.json", &serde_json::to_vec(&injected()).unwrap()), "\"not_before\""),
    ];
    documents.extend(stages.into_iter().map(|path| ("stage", path, "\"records\"")));
    for (name, path, key) in documents {
        let schema = format!("{name}.schema.json");
        let Some(found) = validate(&schema, &[&path]) else { return };
        assert!(
            found.status.success(),
            "{name}: {}{}",
            String::from_utf8_lossy(&found.stdout),
            String::from_utf8_lossy(&found.stderr)
        );
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains(key), "{name}");
        let changed = keep("changed.json", text.replacen(key, "\"other\"", 1).as_bytes());
        assert_eq!(validate(&schema, &[&changed]).unwrap().status.code(), Some(1), "{name}");
    }
}

#[test]
fn the_documents_are_what_the_published_schemas_say() {
    let folder = tempfile::tempdir().unwrap();
    // Not rated, without evidence, with values that are not believed.
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/golden");
    clustermax(&["score", golden.to_str().unwrap(), "--out", folder.path().to_str().unwrap()]);
    let bare = folder.path().join("score.json");
    let documents = [shown().join("score.json"), bare.clone()];
    let Some(found) = validate("score.schema.json", &[&documents[0], &documents[1]]) else { return };
    assert!(
        found.status.success(),
        "{}{}",
        String::from_utf8_lossy(&found.stdout),
        String::from_utf8_lossy(&found.stderr)
    );
    // The schema notices: a key too many, one too few, a state that is none.
    let text = fs::read_to_string(&bare).unwrap();
    for (from, to) in [
        ("\"notice\"", "\"remark\""),
        ("\"state\": \"pass\"", "\"state\": \"passed\""),
        ("\"coverage\":", "\"cover\":"),
        ("clustermax-score/1", "clustermax-score/9"),
    ] {
        assert!(text.contains(from), "{from}");
        let changed = folder.path().join("changed.json");
        fs::write(&changed, text.replacen(from, to, 1)).unwrap();
        assert_eq!(
            validate("score.schema.json", &[&changed]).unwrap().status.code(),
            Some(1),
            "{from} -> {to}"
        );
    }
    let record = folder.path().join("record.json");
    for line in read("records.jsonl").lines().step_by(40) {
        fs::write(&record, line).unwrap();
        let found = validate("record.schema.json", &[&record]).unwrap();
        assert!(found.status.success(), "{line}: {}", String::from_utf8_lossy(&found.stdout));
    }
    let events = folder.path().join("events");
    fs::write(&events, "Cluster|NodeName|TimeStart|TimeEnd|StateRaw|State|User|Reason\nc|n1|2026-01-02T00:00:00|2026-01-03T00:00:00|1|DOWN|root(0)|x\n").unwrap();
    let contract = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/contract.toml");
    let output = clustermax(&[
        "sla",
        "--events",
        events.to_str().unwrap(),
        "--nodes",
        "n[1-4]",
        "--from",
        "2026-01-01",
        "--to",
        "2026-02-01",
        "--contract",
        contract.to_str().unwrap(),
        "--json",
    ]);
    let sla = folder.path().join("sla.json");
    fs::write(&sla, &output.stdout).unwrap();
    let found = validate("sla.schema.json", &[&sla]).unwrap();
    assert!(found.status.success(), "{}", String::from_utf8_lossy(&found.stdout));
}
