//! What this project says of its own tests: every pitfall that applies has a test, every source is held against a tree, a
//! program or a library. The tables name the tests; here it is seen that they exist.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
}

/// Names of all test functions of the workspace.
fn tests() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut folders: Vec<PathBuf> =
        ["healthcheck/src", "healthcheck/tests", "prolog-epilog", "slurm-spank", "tests"]
            .iter()
            .map(|f| root().join(f))
            .collect();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                names_in(&std::fs::read_to_string(&path).unwrap(), &mut found);
            }
        }
    }
    found
}

/// A function below `#[test]`, other attributes between them or not.
fn names_in(text: &str, found: &mut BTreeSet<String>) {
    let mut is_test = false;
    // proptest! writes the attribute as well.
    for line in text.lines().map(str::trim) {
        if line == "#[test]" {
            is_test = true;
        } else if let Some(rest) = line.strip_prefix("fn ") {
            if is_test {
                found.insert(rest.split(['(', '<']).next().unwrap_or_default().to_string());
            }
            is_test = false;
        } else if !line.starts_with("#[") && !line.starts_with("//") && !line.is_empty() {
            is_test &= !line.ends_with('}');
        }
    }
}

/// Rows of a table by columns, without comments and its head.
fn table(text: &str) -> Vec<Vec<&str>> {
    text.lines().filter(|l| !l.starts_with('#')).skip(1).map(|l| l.split('\t').collect()).collect()
}

#[test]
fn every_pitfall_has_tests_or_a_reason_why_it_cannot_happen() {
    let tests = tests();
    let rows = table(include_str!("data/pitfalls.tsv"));
    assert_eq!(rows.len(), 48);
    for (at, row) in rows.iter().enumerate() {
        assert_eq!(row.len(), 6, "{row:?}");
        assert_eq!(row[0], (at + 1).to_string());
        if let Some(reason) = row[5].strip_prefix('-') {
            assert!(reason.len() > 20, "{}: no reason", row[1]);
            continue;
        }
        for name in row[5].split(", ") {
            assert!(tests.contains(name), "pitfall {} ({}): there is no test {name}", row[0], row[1]);
        }
    }
    // One that is named after a pitfall stands in its row.
    for name in tests.iter().filter(|n| n.starts_with("pitfall_")) {
        let number: usize =
            name.split('_').nth(1).and_then(|n| n.parse().ok()).unwrap_or_else(|| panic!("{name}"));
        assert!(rows[number - 1][5].split(", ").any(|n| n == name), "{name} is not in the table");
    }
}

#[test]
fn every_source_is_held_against_a_tree_a_program_or_a_library() {
    let tests = tests();
    let rows = table(include_str!("data/sources.tsv"));
    let named: BTreeSet<&str> = rows.iter().map(|r| r[0]).collect();
    let files: BTreeSet<String> = std::fs::read_dir(root().join("healthcheck/src/source"))
        .unwrap()
        .map(|e| e.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    assert_eq!(named, files.iter().map(String::as_str).collect::<BTreeSet<_>>());
    for row in &rows {
        for name in row[1].split(", ") {
            assert!(tests.contains(name), "{}: there is no test {name}", row[0]);
        }
    }
}
