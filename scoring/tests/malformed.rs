//! Every kind of malformed input, in one table: records, evidence, methodology, other tools' output.
//!
//! Each row damages good input, runs one command and asks for its documented exit code and for one sentence that names
//! the file, the line or key, and the mend. What the command was not to write is as it was, to the byte.

#![allow(clippy::unwrap_used, reason = "in a test a failed step is the failure")]

#[allow(dead_code, reason = "other tests use the rest")]
mod common;
#[path = "malformed/criteria.rs"]
mod criteria;
#[path = "malformed/evidence.rs"]
mod evidence;
#[path = "malformed/imports.rs"]
mod imports;
#[path = "malformed/records.rs"]
mod records;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;

use scoring::methodology::{FILES, Methodology};
use tempfile::TempDir;

const RECORDS: &str = "run/records.jsonl";
const RUN: &str = "run/run.json";
const EVIDENCE: &str = "run/evidence.toml";
const SCORED: &str = "run/score.json";

const SCORE: &[&str] = &["score", "run"];
const REPORT: &[&str] = &["report", "run"];

/// A row of the table.
struct Row {
    /// records, evidence, criteria or imports.
    family: &'static str,
    name: &'static str,
    damage: Box<dyn Fn(&Site)>,
    command: Vec<&'static str>,
    code: i32,
    /// What one line of the output holds: the file, what is wrong at which line or key, the mend.
    says: Vec<&'static str>,
}

/// All files below a folder.
type Files = BTreeMap<PathBuf, Vec<u8>>;

fn files(root: &Path) -> Files {
    let mut found = Files::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                found.insert(path.strip_prefix(root).unwrap().to_owned(), fs::read(path).unwrap());
            }
        }
    }
    found
}

fn data(name: &str) -> Files {
    files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name))
}

/// Good input of every kind: a run with its evidence, a methodology, other tools' files, a bundle that is none.
static GOOD: LazyLock<Files> = LazyLock::new(|| {
    let below = |folder: &str, all: Files| {
        all.into_iter().map(|(path, bytes)| (Path::new(folder).join(path), bytes)).collect::<Files>()
    };
    let mut good = below("run", data("golden"));
    good.extend(below("in", data("import")));
    for (name, text) in FILES {
        good.insert(Path::new("data").join(name), text.as_bytes().to_vec());
    }
    let soc2 = common::statement(&Methodology::built_in().unwrap(), "sec-01");
    good.insert(EVIDENCE.into(), format!("{}{soc2}", common::HEAD).into_bytes());
    good
});

/// A folder with the good input of one row, to be damaged.
struct Site {
    folder: TempDir,
}

impl Site {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        for (path, bytes) in &*GOOD {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, bytes).unwrap();
        }
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }

    fn write(&self, name: &str, bytes: impl AsRef<[u8]>) {
        fs::create_dir_all(self.path(name).parent().unwrap()).unwrap();
        fs::write(self.path(name), bytes).unwrap();
    }

    fn edit(&self, name: &str, from: &str, to: &str) {
        let text = self.read(name);
        assert!(text.contains(from), "{name} lacks {from:?}");
        self.write(name, text.replacen(from, to, 1));
    }

    fn run(&self, command: &[&str]) -> Output {
        let exe = env!("CARGO_BIN_EXE_clustermax");
        Command::new(exe).args(command).current_dir(self.folder.path()).output().unwrap()
    }
}

/// The table under construction.
#[derive(Default)]
struct Table(Vec<Row>);

impl Table {
    fn row(
        &mut self,
        (family, name): (&'static str, &'static str),
        damage: impl Fn(&Site) + 'static,
        (command, code): (&[&'static str], i32),
        says: &[&'static str],
    ) {
        let (command, says) = (command.to_vec(), says.to_vec());
        self.0.push(Row { family, name, damage: Box::new(damage), command, code, says });
    }

    /// One text of a file replaced.
    fn swap(
        &mut self,
        row: (&'static str, &'static str),
        (file, from, to): (&'static str, &'static str, &'static str),
        run: (&[&'static str], i32),
        says: &[&'static str],
    ) {
        self.row(row, move |site| site.edit(file, from, to), run, says);
    }

    /// A file with these bytes instead of its own.
    fn text(
        &mut self,
        row: (&'static str, &'static str),
        (file, bytes): (&'static str, &'static [u8]),
        run: (&[&'static str], i32),
        says: &[&'static str],
    ) {
        self.row(row, move |site| site.write(file, bytes), run, says);
    }
}

/// Judges one command on one damaged site; nothing when all is as documented.
fn judge(row: &Row, command: &[&str], site: &Site, before: &Files) -> Option<String> {
    let output = site.run(command);
    let out = String::from_utf8(output.stdout).unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    let wrong = |what: String| Some(format!("{}: {}: {command:?}: {what}\n{err}", row.family, row.name));
    if output.status.code() != Some(row.code) {
        return wrong(format!("exit code {:?} instead of {}", output.status.code(), row.code));
    }
    if err.contains("panicked") || out.contains("panicked") {
        return wrong("it panicked".to_owned());
    }
    let fits = |line: &&str| row.says.iter().all(|part| line.contains(part));
    let Some(sentence) = err.lines().chain(out.lines()).find(fits) else {
        return wrong(format!("no line holds all of {:?}", row.says));
    };
    if !err.lines().all(|line| line.starts_with("clustermax: ")) {
        return wrong("a line on stderr is not ours".to_owned());
    }
    if row.code == 2 && !err.is_empty() && err.lines().count() != 1 {
        return wrong("more than one sentence".to_owned());
    }
    if sentence.chars().any(char::is_control) {
        return wrong("control characters in the sentence".to_owned());
    }
    let after = files(site.folder.path());
    let reports =
        ["score.json", "report.txt", "report.md", "report.html"].map(|name| Path::new("run").join(name));
    let written = |path: &PathBuf| row.code < 2 && command[0] == "score" && reports.contains(path);
    if let Some(path) = after.keys().find(|path| before.get(*path) != after.get(*path) && !written(path)) {
        return wrong(format!("{} was written", path.display()));
    }
    if let Some(path) = before.keys().find(|path| !after.contains_key(*path)) {
        return wrong(format!("{} is gone", path.display()));
    }
    if row.code < 2 && command[0] == "score" && reports.iter().any(|path| !after.contains_key(path)) {
        return wrong("a report is missing".to_owned());
    }
    None
}

#[test]
fn every_malformed_input_is_a_sentence_with_its_place_its_mend_and_its_exit_code() {
    let mut table = Table::default();
    records::records(&mut table);
    evidence::evidence(&mut table);
    criteria::criteria(&mut table);
    imports::imports(&mut table);
    let stated = common::evidence(&Methodology::built_in().unwrap(), &[]);
    let mut names = BTreeSet::new();
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    let mut wrong = Vec::new();
    for row in &table.0 {
        assert!(names.insert((row.family, row.name)), "{} {} is there twice", row.family, row.name);
        assert!(row.says.len() >= 3, "{}: file, place and mend", row.name);
        *counts.entry(row.family).or_default() += 1;
        let site = Site::new();
        if row.family == "records" {
            // Enough is stated for a rating, also where values are lost.
            site.write(EVIDENCE, &stated);
        }
        (row.damage)(&site);
        let before = files(site.folder.path());
        wrong.extend(judge(row, &row.command, &site, &before));
        // The report reads the same folder and refuses it with the same sentence.
        if row.command == SCORE && row.code == 2 {
            wrong.extend(judge(row, REPORT, &site, &before));
        }
    }
    println!("{} rows: {counts:?}", table.0.len());
    assert!(wrong.is_empty(), "{} of {} rows:\n{}", wrong.len(), table.0.len(), wrong.join("\n"));
    assert!(table.0.len() >= 40 && counts.len() == 4, "{counts:?}");
    assert!(counts.values().all(|count| *count >= 8), "{counts:?}");
}
