//! What the tests of checks share: trees from samples, a healthy node, findings over time.

#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail by panicking"
)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use healthcheck::check::{self, Findings};
use healthcheck::config::Config;
use healthcheck::facts::{Clock, Facts, KernelFacts, NodeFacts, Processes, Reading, SeenEvent};
use healthcheck::kmsg::{parse_log_line, parse_record};
use healthcheck::mode::Mode;
use healthcheck::state::State;
use healthcheck::verdict::{Finding, Status};
use healthcheck::xid::{self, KernelEvent, Scanner};

/// A folder of the samples.
pub fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

/// Makes a tree from `path<TAB>content` lines below a temporary root; content in parentheses is a read error and is left out.
pub fn tree(sample: &str) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    for line in fs::read_to_string(data(sample)).unwrap().lines().filter(|l| !l.starts_with('#')) {
        let Some((path, content)) = line.split_once('\t') else { continue };
        let path = root.path().join(path.trim_start_matches('/'));
        if content.starts_with('(') {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
        } else {
            put(&path, &content.replace("\\n", "\n"));
        }
    }
    root
}

/// Writes one file with the newline that the kernel ends files with.
pub fn put(path: &Path, content: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, format!("{content}\n")).unwrap();
}

pub fn config(text: &str) -> Config {
    Config::parse(text, Path::new("test.toml")).unwrap()
}

/// A node that has been looked at and shows nothing.
pub fn quiet() -> Facts {
    Facts {
        boot_id: "boot".into(),
        uptime: 100_000.0,
        kernel: Reading::Value(KernelFacts::default()),
        ib: Reading::Value(BTreeMap::new()),
        mounts: Reading::Value(BTreeMap::new()),
        memory_total_kib: Reading::Value(1),
        node: NodeFacts {
            net: Reading::Value(BTreeMap::new()),
            functions: Reading::Value(BTreeMap::new()),
            virtual_machine: Reading::Value(false),
            edac: Reading::Unsupported,
            nvme: Reading::Unsupported,
            raid: Reading::Unsupported,
            services: Reading::Unsupported,
            clock: Reading::Value(Clock { synchronised: true, offset: 0.0001, max_error: 0.01 }),
            clocksource: Reading::Value("tsc".into()),
            cpus: Reading::Value(128),
            processes: Reading::Value(Processes::default()),
            shm: Reading::Value(BTreeMap::new()),
            ..NodeFacts::default()
        },
        ..Facts::default()
    }
}

/// A node over time.
pub struct Node {
    pub config: Config,
    pub state: State,
    pub now: f64,
}

impl Node {
    pub fn new(toml: &str) -> Self {
        Node { config: config(toml), state: State::default(), now: 1000.0 }
    }

    /// A pass `after` seconds later; counters of the facts go into the history.
    pub fn pass(&mut self, after: f64, facts: &Facts) -> Findings {
        self.pass_in(Mode::Periodic, after, facts)
    }

    pub fn pass_in(&mut self, mode: Mode, after: f64, facts: &Facts) -> Findings {
        self.now += after;
        self.state.counters.record(&facts.counters, self.now);
        let found = check::run(facts, &self.config, &self.state, mode, self.now);
        self.state.strikes = found.strikes.clone();
        found
    }

    /// Findings of one check in a pass.
    pub fn of(&mut self, check: &str, after: f64, facts: &Facts) -> Vec<Finding> {
        of(&self.pass(after, facts), check)
    }

    /// Status and token of a check's findings.
    pub fn said(&mut self, check: &str, after: f64, facts: &Facts) -> Vec<(Status, String)> {
        self.of(check, after, facts).into_iter().map(|f| (f.status, f.token)).collect()
    }
}

pub fn of(found: &Findings, check: &str) -> Vec<Finding> {
    found.findings.iter().filter(|f| f.check == check).cloned().collect()
}

/// What a check did where it found nothing.
pub fn done(found: &Findings, check: &str) -> Status {
    found
        .checks
        .iter()
        .find(|c| c.check == check)
        .unwrap_or_else(|| panic!("{check} did not say anything"))
        .status
}

/// Findings of one check in one pass over a quiet node with a change.
pub fn once(toml: &str, check: &str, change: impl FnOnce(&mut Facts)) -> (Status, Vec<Finding>) {
    let mut facts = quiet();
    change(&mut facts);
    let found = Node::new(toml).pass(0.0, &facts);
    (done(&found, check), of(&found, check))
}

/// An event of the kernel's own log.
pub fn event(line: &str, usec: u64) -> SeenEvent {
    event_of(&format!("3,{usec},{usec},-;{line}"))
}

pub fn event_of(record: &str) -> SeenEvent {
    let record = parse_record(record.as_bytes()).unwrap();
    let event = xid::events(&record).into_iter().next().unwrap_or_else(|| panic!("no event: {record:?}"));
    SeenEvent { key: format!("/dev/kmsg boot/{}", event.seq), event, count: 1, seen: 1000.0, handled: false }
}

pub fn with_events(events: Vec<SeenEvent>) -> impl FnOnce(&mut Facts) {
    move |facts| facts.kernel = Reading::Value(KernelFacts { events, ..KernelFacts::default() })
}

/// Events of a sample log by line number, from 1.
pub fn scan(sample: &str) -> BTreeMap<usize, KernelEvent> {
    let mut found = BTreeMap::new();
    let mut scanner = Scanner::default();
    for (at, line) in fs::read_to_string(data(sample)).unwrap().lines().enumerate() {
        scanner.push(&parse_log_line(line).record, |e| assert!(found.insert(at + 1, e).is_none()));
    }
    found
}

/// Token and device or address of every event, by line.
pub fn told(sample: &str) -> Vec<(usize, String, String)> {
    let name = |e: &KernelEvent| e.device().or(e.pci.as_deref()).unwrap_or("-").to_string();
    scan(sample).iter().map(|(at, e)| (*at, e.token(), name(e))).collect()
}
