//! `clustermax evidence` and what `score` makes of an evidence.toml.

#![allow(clippy::unwrap_used, reason = "in a test a failed step is the failure")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use scoring::methodology::Methodology;
use serde_json::Value;
use sha2::{Digest, Sha256};
use tempfile::TempDir;

fn clustermax(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_clustermax")).args(args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
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

/// The golden run, which started on 2026-11-30, without evidence of its own.
fn golden() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    copy(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/golden"), folder.path());
    folder
}

const HEAD: &str = "schema = \"clustermax-evidence/1\"\nprovider = \"Example Cloud\"\ncluster = \"alpha\"\n\
                    stated_by = \"the provider\"\nstated_on = 2026-11-01\n";

const SOC2: &str = "[[attestation]]\nitem = \"sec-01\"\nmet = true\nstandard = \"SOC 2\"\ntype = \"Type II\"\n\
                    issuer = \"Auditor LLP\"\nscope = [\"all regions\"]\nvalid_from = 2026-01-01\nvalid_to = 2026-12-31\n";

fn put(folder: &Path, body: &str) -> PathBuf {
    let file = folder.join("evidence.toml");
    fs::write(&file, format!("{HEAD}\n{body}")).unwrap();
    file
}

fn score(folder: &Path, more: &[&str]) -> (Output, Value) {
    let mut args = vec!["score", folder.to_str().unwrap(), "--json"];
    args.extend(more);
    let output = clustermax(&args);
    let json = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
    (output, json)
}

fn criterion<'a>(json: &'a Value, id: &str) -> &'a Value {
    json["criteria"].as_array().unwrap().iter().find(|one| one["id"] == id).unwrap()
}

#[test]
fn the_template_names_every_criterion_that_a_statement_can_decide_and_is_valid() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().to_str().unwrap();
    let output = clustermax(&["evidence", "new", dir]);
    assert_eq!(output.status.code(), Some(0));
    let file = folder.path().join("evidence.toml");
    let template = fs::read_to_string(&file).unwrap();
    for criterion in Methodology::built_in().unwrap().criteria.iter().filter(|one| one.evidence.is_some()) {
        assert!(template.contains(&format!("# item = {:?}", criterion.id)), "{}", criterion.id);
    }
    let check = clustermax(&["evidence", "check", dir]);
    assert_eq!(check.status.code(), Some(0), "{}", text(&check.stdout));
    assert!(text(&check.stdout).contains("0 errors, 0 statements that count for nothing; 0 of"));

    // Uncommented, every statement is known; only its empty texts are wrong.
    let body: String = template
        .lines()
        .map(|line| {
            line.strip_prefix("# ")
                .filter(|rest| rest.contains(" = ") || rest.starts_with("[["))
                .unwrap_or(line)
        })
        .map(|line| format!("{line}\n"))
        .collect();
    fs::write(&file, body).unwrap();
    let check = clustermax(&["evidence", "check", dir]);
    assert_eq!(check.status.code(), Some(2));
    for line in text(&check.stdout).lines().filter(|line| line.starts_with("ERROR")) {
        assert!(line.contains("must be") && !line.contains("there is no"), "{line}");
    }

    let again = clustermax(&["evidence", "new", dir]);
    assert_eq!(again.status.code(), Some(2));
    assert!(text(&again.stderr).contains("is not overwritten"));
}

#[test]
fn a_valid_statement_passes_its_gate_as_declared_and_counts_apart() {
    let run = golden();
    let (_, without) = score(run.path(), &[]);
    assert_eq!(criterion(&without, "sec-01")["state"], "unknown");
    put(run.path(), SOC2);
    let (output, json) = score(run.path(), &[]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let found = criterion(&json, "sec-01");
    assert_eq!((&found["state"], &found["provenance"]), (&"pass".into(), &"declared".into()));
    assert_eq!(found["observed"][0]["evidence"]["file"], "evidence.toml");
    assert_eq!(found["observed"][0]["evidence"]["pointer"], "/attestation/0");
    assert_eq!(json["inputs"]["evidence"]["provider"], "Example Cloud");
    assert_eq!(
        json["result_without_claims"]["lower"], without["result_without_claims"]["lower"],
        "claims do not move what was measured"
    );
    assert!(json["result"]["lower"].as_f64() > without["result"]["lower"].as_f64());
    // Twice the same bytes; and from outside the folder the same rating.
    let (again, _) = score(run.path(), &[]);
    assert_eq!(again.stdout, output.stdout);
    let other = golden();
    let file = run.path().join("evidence.toml");
    let (_, outside) = score(other.path(), &["--evidence", file.to_str().unwrap()]);
    assert_eq!(outside["rating"], json["rating"]);
    let page = fs::read_to_string(other.path().join("report.html")).unwrap();
    assert!(!page.contains("href=\"evidence.toml\""), "no link to what is not in the folder");
}

#[test]
fn what_is_expired_future_dated_contradictory_or_without_document_is_named_and_unknown() {
    let hash: String = Sha256::digest(b"report").iter().map(|byte| format!("{byte:02x}")).collect();
    let both = format!("{SOC2}{}", SOC2.replace("met = true", "met = false"));
    let with = |document: &str| format!("{SOC2}document = \"{document}\"\nsha256 = \"{hash}\"\n");
    for (body, expected) in [
        (SOC2.replace("2026-12-31", "2026-11-29"), "expired on 2026-11-29, the run started on 2026-11-30"),
        (SOC2.replace("2026-01-01", "2026-12-01"), "future-dated: valid_from 2026-12-01"),
        (format!("{SOC2}stated_on = 2027-01-01\n"), "future-dated: stated_on 2027-01-01"),
        (SOC2.replace("2026-01-01", "2027-01-01"), "valid_from 2027-01-01 is after valid_to 2026-12-31"),
        (SOC2.replace("SOC 2", "star rating"), "standard names none of"),
        (both, "another statement says the opposite"),
        (with("soc2.pdf"), "document soc2.pdf cannot be read"),
        (with("changed.pdf"), "document changed.pdf has changed"),
        (with("../report.pdf"), "not a relative path"),
        (with("raw"), "is not a regular file"),
        (format!("{SOC2}document = \"good.pdf\"\n"), "document good.pdf has no sha256"),
    ] {
        let run = golden();
        fs::write(run.path().join("changed.pdf"), b"other").unwrap();
        fs::write(run.path().join("good.pdf"), b"report").unwrap();
        let file = put(run.path(), &body);
        let (output, json) = score(run.path(), &[]);
        let found = criterion(&json, "sec-01");
        assert_eq!(found["state"], "unknown", "{expected}");
        assert!(found["reason"].as_str().unwrap().contains(expected), "{found} lacks {expected:?}");
        assert!(text(&output.stderr).contains(expected), "{}", text(&output.stderr));
        let check = clustermax(&["evidence", "check", file.to_str().unwrap()]);
        assert_eq!(check.status.code(), Some(1));
        assert!(text(&check.stdout).contains(expected), "{}", text(&check.stdout));
    }
    let run = golden();
    fs::write(run.path().join("good.pdf"), b"report").unwrap();
    put(run.path(), &with("good.pdf"));
    assert_eq!(criterion(&score(run.path(), &[]).1, "sec-01")["state"], "pass");
}

#[test]
fn a_statement_of_not_met_fails_its_gate() {
    let run = golden();
    put(run.path(), &SOC2.replace("met = true", "met = false"));
    let (_, json) = score(run.path(), &[]);
    assert_eq!(json["rating"]["tier"], "underperforming");
}

#[test]
fn the_day_of_judgement_is_the_runs_never_the_clocks() {
    let run = golden();
    let file = put(run.path(), SOC2);
    let json = run.path().join("run.json");
    let moved = fs::read_to_string(&json).unwrap().replace("2026-11-30T", "2027-02-01T");
    fs::write(&json, moved).unwrap();
    let (_, scored) = score(run.path(), &[]);
    assert!(criterion(&scored, "sec-01")["reason"].as_str().unwrap().contains("expired on 2026-12-31"));
    let on =
        |day: &str| clustermax(&["evidence", "check", file.to_str().unwrap(), "--on", day]).status.code();
    assert_eq!((on("2026-11-30"), on("2027-01-01")), (Some(0), Some(1)));
    let bad = fs::read_to_string(&json).unwrap().replace("2027-02-01T", "some dayT");
    fs::write(&json, bad).unwrap();
    let (output, _) = score(run.path(), &[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("is no RFC 3339 time"));
}

#[test]
fn every_malformed_file_is_one_sentence_that_names_file_key_and_mend() {
    let swap = |from: &str, to: &str| format!("{HEAD}\n{SOC2}").replacen(from, to, 1);
    let cases: Vec<(String, &[&str])> = vec![
        (String::new(), &["schema is missing", "evidence new"]),
        ("schema = ".to_owned(), &["not TOML", "line 1"]),
        (swap("evidence/1", "evidence/9"), &["clustermax-evidence/9", "clustermax-evidence/1"]),
        (swap("provider = \"Example Cloud\"\n", ""), &["provider is missing"]),
        (swap("Example Cloud", ""), &["provider must be a text that is not empty"]),
        (swap("provider", "provicer"), &["no key \"provicer\"", "did you mean \"provider\""]),
        (swap("2026-11-01", "\"yesterday\""), &["stated_on must be a date"]),
        (swap("2026-11-01", "2027-11-01"), &["stated_on is 2027-11-01", "from the future"]),
        (swap("alpha", "beta"), &["about cluster \"beta\"", "the run is of \"alpha\""]),
        (
            swap("[[attestation]]", "[[atestation]]"),
            &["no key \"atestation\"", "did you mean \"attestation\""],
        ),
        (swap("[[attestation]]", "[attestation]"), &["attestation is no array of tables", "[[attestation]]"]),
        (format!("{HEAD}attestation = [1]\n"), &["attestation 1 is no table"]),
        (swap("sec-01", "sec-1"), &["no criterion \"sec-1\"", "did you mean sec-"]),
        (swap("sec-01", "rel-24"), &["rel-24 is measured by a program"]),
        (swap("sec-01", "lif-10"), &["lif-10 is evidenced by [[terms]], not by [[attestation]]"]),
        (swap("item = \"sec-01\"\n", ""), &["attestation 1: item is missing"]),
        (swap("met = true", "met = \"yes\""), &["attestation 1: met must be true or false"]),
        (swap("met = true\n", ""), &["met is missing"]),
        (swap("issuer = \"Auditor LLP\"\n", ""), &["issuer is missing", "auditor"]),
        (swap("[\"all regions\"]", "\"all\""), &["scope must be a list"]),
        (swap("[\"all regions\"]", "[]"), &["scope must be a list"]),
        (swap("2026-12-31", "2026-02-31"), &["not TOML"]),
        (swap("valid_to", "valid_until"), &["no key \"valid_until\""]),
        (format!("{HEAD}{SOC2}sha256 = \"abc\"\n"), &["sha256 must be 64 hex digits"]),
        (
            format!(
                "{HEAD}[[price]]\nitem = \"pri-03\"\nmet = true\nper = \"GPU-hour\"\namount = -1\ncurrency = \"USD\"\n"
            ),
            &["price 1: amount must be a finite number that is not negative"],
        ),
        (
            format!(
                "{HEAD}[[price]]\nitem = \"pri-03\"\nmet = true\nper = \"GPU-hour\"\namount = nan\ncurrency = \"USD\"\n"
            ),
            &["price 1: amount must be a finite number"],
        ),
    ];
    for (body, expected) in cases {
        let run = golden();
        let file = run.path().join("evidence.toml");
        fs::write(&file, &body).unwrap();
        let (output, _) = score(run.path(), &[]);
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{body}\n{message}");
        assert_eq!(message.lines().count(), 1, "{message}");
        assert!(message.contains(file.to_str().unwrap()), "{message}");
        let check = clustermax(&["evidence", "check", file.to_str().unwrap()]);
        assert_eq!(check.status.code(), Some(2), "{body}");
        for part in expected {
            assert!(message.contains(part), "{message} lacks {part:?}");
        }
    }
    let run = golden();
    for (path, expected) in
        [(run.path().join("gone.toml"), "cannot read"), (run.path().join("raw"), "regular file")]
    {
        let (output, _) = score(run.path(), &["--evidence", path.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(2));
        assert!(text(&output.stderr).contains(expected), "{}", text(&output.stderr));
    }
    fs::write(run.path().join("evidence.toml"), [0xff, 0xfe]).unwrap();
    assert!(text(&score(run.path(), &[]).0.stderr).contains("not UTF-8"));
}

#[test]
fn a_statement_counts_where_a_program_saw_nothing_and_never_against_what_it_saw() {
    let run = golden();
    let wiped = "[[process]]\nitem = \"sec-27\"\nmet = true\ntext = \"every node is wiped\"\n";
    put(run.path(), wiped);
    let records = run.path().join("records.jsonl");
    let text = fs::read_to_string(&records).unwrap();
    let line =
        text.lines().find(|line| line.contains("\"bmc_reachable\"") && line.contains("\"n1\"")).unwrap();
    let of = |node: &str, value: &str, state: &str| {
        let mut record: Value = serde_json::from_str(line).unwrap();
        record["metric"] = "foreign_traces".into();
        record["subject"]["node"] = node.into();
        record["of"] = 2.into();
        (record["value"], record["state"]) = (serde_json::from_str(value).unwrap(), state.into());
        format!("{record}\n")
    };
    let state = |first: (&str, &str), second: (&str, &str)| {
        fs::write(&records, format!("{text}{}{}", of("n1", first.0, first.1), of("n2", second.0, second.1)))
            .unwrap();
        let (_, json) = score(run.path(), &[]);
        criterion(&json, "sec-27").clone()
    };
    // Nothing seen on either node proves nothing: the statement decides, and says that it is one.
    let found = state(("0", "measured"), ("0", "measured"));
    assert_eq!((&found["state"], &found["provenance"]), (&"pass".into(), &"declared".into()));
    // Traces on one node outrank it.
    let found = state(("0", "measured"), ("3", "measured"));
    assert_eq!(found["state"], "fail", "{found}");
    // Where nobody looked it stands in for nothing, else losing a bad record would be worth a statement.
    let found = state(("0", "measured"), ("null", "unknown"));
    assert_eq!(found["state"], "unknown", "{found}");
    assert!(
        found["reason"].as_str().unwrap().contains("a statement counts only where a record leaves"),
        "{found}"
    );
    fs::write(&records, format!("{text}{}", of("n1", "0", "measured"))).unwrap();
    let found = criterion(&score(run.path(), &[]).1, "sec-27").clone();
    assert_eq!(found["state"], "unknown", "{found}");
}
