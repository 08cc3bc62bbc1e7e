//! Every check of the catalogue has a case of every answer that it can give, and gives it: pass, each severity of its rule,
//! unsupported, unknown. A check without its cases fails here. Finer cases are in the other files.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use healthcheck::catalogue::CATALOGUE;
use healthcheck::check;
use healthcheck::config::Config;
use healthcheck::facts::{Facts, GpuDetails, GpuSurvey, NvmlGpu, Reading};
use healthcheck::mode::Mode;
use healthcheck::state::State;
use healthcheck::verdict::Status;

mod cases;
mod full;

use cases::{CASES, Case, NEVER};
use full::{PROFILE, bare, blind, full};

/// Passes of a case, one minute apart unless it says otherwise: longer than any rule that counts reads or minutes.
const PASSES: u32 = 14;

fn config(more: &str) -> Config {
    Config::parse(more, Path::new("test.toml")).unwrap()
}

/// What a check says after all passes over facts that `change` makes of a node.
fn after(id: &str, toml: &str, mode: Mode, gap: f64, facts: impl Fn(u32) -> Facts) -> Option<Status> {
    let config = config(toml);
    let mut state = State::default();
    let mut last = None;
    for pass in 0..PASSES {
        let now = 1000.0 + f64::from(pass) * gap;
        let facts = facts(pass);
        state.counters.record(&facts.counters, now);
        let found = check::run(&facts, &config, &state, mode, now);
        state.strikes = found.strikes;
        last = found.checks.into_iter().find(|c| c.check == id).map(|c| c.status);
    }
    last
}

fn run(case: &Case) -> Option<Status> {
    after(case.id, PROFILE, case.mode, case.gap, |pass| {
        let mut facts = full();
        (case.change)(&mut facts, pass);
        facts
    })
}

/// Checks that a pass makes.
fn made() -> impl Iterator<Item = &'static str> {
    CATALOGUE.iter().filter(|c| !c.active() && !c.guards()).map(|c| c.id)
}

fn never(id: &str, status: Status) -> bool {
    NEVER.iter().any(|(check, never, _)| *check == id && *never == status)
}

#[test]
fn the_catalogue_holds_the_76_checks_of_the_design_and_those_of_amd() {
    let list = include_str!("../data/check-ids.txt");
    let wanted: BTreeSet<&str> = list.lines().collect();
    assert_eq!(wanted.len(), 76);
    let has: BTreeSet<&str> = CATALOGUE.iter().map(|c| c.id).collect();
    let missing: Vec<&&str> = wanted.difference(&has).collect();
    assert!(missing.is_empty(), "{missing:?}");
    let more: Vec<&&str> = has.difference(&wanted).collect();
    assert!(more.iter().all(|id| id.starts_with("amd.") || **id == "gpu.dcgm"), "{more:?}");
}

#[test]
fn every_check_has_a_case_of_every_severity_of_its_rule() {
    let ids: BTreeSet<&str> = CATALOGUE.iter().map(|c| c.id).collect();
    for (id, ..) in NEVER {
        assert!(ids.contains(id), "{id} is no check");
    }
    let mut missing = Vec::new();
    for c in CATALOGUE.iter().filter(|c| !c.active() && !c.guards()) {
        let has = |status| CASES.iter().any(|case| case.id == c.id && case.status == status);
        let rule = c.rule.replace("never fails", "").replace("never a failure", "").to_lowercase();
        for (word, status) in [("fail", Status::Fail), ("warn", Status::Warn)] {
            if rule.contains(word) && !has(status) {
                missing.push(format!("{}: no case of {word}", c.id));
            }
        }
        if !has(Status::Fail) && !has(Status::Warn) {
            missing.push(format!("{}: no case", c.id));
        }
    }
    assert_eq!(missing, [""; 0]);
    for case in CASES {
        assert!(ids.contains(case.id), "{} is no check", case.id);
    }
}

#[test]
fn every_case_gives_what_it_says() {
    let wrong: Vec<String> = CASES
        .iter()
        .filter(|case| run(case) != Some(case.status))
        .map(|case| format!("{}: {:?} instead of {:?}", case.id, run(case), case.status))
        .collect();
    assert_eq!(wrong, [""; 0]);
}

#[test]
fn every_check_passes_on_a_healthy_node_that_has_everything() {
    let mut wrong = Vec::new();
    for id in made() {
        let status = after(id, PROFILE, Mode::Deep, 60.0, |_| full());
        if status != Some(Status::Pass) {
            wrong.push(format!("{id}: {status:?}"));
        }
    }
    assert_eq!(wrong, [""; 0]);
    for mode in [Mode::Prolog, Mode::Epilog, Mode::Periodic, Mode::Deep, Mode::Audit] {
        let found = check::run(&full(), &config(PROFILE), &State::default(), mode, 0.0);
        assert_eq!(found.findings, [], "{mode:?}");
    }
}

#[test]
fn every_check_is_unsupported_on_a_node_that_has_none_of_it() {
    let mut wrong = Vec::new();
    for id in made().filter(|id| !never(id, Status::Unsupported)) {
        let status = after(id, "", Mode::Deep, 60.0, |_| bare());
        if status != Some(Status::Unsupported) {
            wrong.push(format!("{id}: {status:?}"));
        }
    }
    assert_eq!(wrong, [""; 0]);
    let found = check::run(&bare(), &config(""), &State::default(), Mode::Deep, 0.0);
    assert_eq!(found.findings, [], "absent hardware that nobody expects is no finding");
}

#[test]
fn every_check_is_unknown_where_its_source_does_not_answer() {
    let mut wrong = Vec::new();
    for id in made().filter(|id| !never(id, Status::Unknown)) {
        let status = after(id, PROFILE, Mode::Deep, 60.0, |_| blind());
        if status != Some(Status::Unknown) {
            wrong.push(format!("{id}: {status:?}"));
        }
    }
    assert_eq!(wrong, [""; 0]);
    // Unknown never drains by itself.
    let found = check::run(&blind(), &config(PROFILE), &State::default(), Mode::Deep, 0.0);
    let drains: Vec<&str> = found.findings.iter().filter(|f| f.drains()).map(|f| f.check.as_str()).collect();
    assert_eq!(drains, [""; 0]);
}

#[test]
fn no_check_of_the_kernel_log_passes_when_the_log_cannot_be_opened() {
    let facts = || {
        let mut facts = full();
        full::of(&mut facts.kernel).unread.push("cannot open the kernel log /dev/kmsg".into());
        facts
    };
    for id in [
        "gpu.xid",
        "gpu.lost_text",
        "gpu.sxid",
        "gpu.xid_repeat",
        "net.driver",
        "host.kernel",
        "host.oom",
        "amd.kernel",
    ] {
        let status = after(id, PROFILE, Mode::Deep, 60.0, |_| facts());
        assert_eq!(status, Some(Status::Unknown), "{id}");
    }
}

/// Nothing that NVML was asked for may pass when its answer is an error for every GPU.
#[test]
fn a_gpu_that_answers_nothing_passes_nothing() {
    let facts = || {
        let mut facts = full();
        let Reading::Value(n) = &mut facts.nvml else { panic!("no NVML") };
        for (gpu, pci) in n.gpus.iter_mut().zip(["3a1c:18:00.0", "3a1c:19:00.0"]) {
            *gpu = NvmlGpu {
                index: gpu.index,
                minor: Reading::Value(gpu.index),
                pci: Reading::Value(pci.into()),
                details: Some(Box::new(GpuDetails::default())),
                survey: Some(Box::new(GpuSurvey::default())),
                ..NvmlGpu::default()
            };
        }
        facts
    };
    /// What does not rest on the GPU's own answers.
    const OTHERS: [&str; 17] = [
        "gpu.xid",
        "gpu.lost_text",
        "gpu.sxid",
        "gpu.count",
        "gpu.bus",
        "gpu.driver",
        "gpu.driver_hang",
        "gpu.pcie_width",
        "gpu.fabricmanager",
        "gpu.imex",
        "gpu.mps",
        "gpu.usable",
        "gpu.xid_repeat",
        "gpu.pcie_speed",
        "gpu.aer",
        "gpu.dcgm",
        "gpu.firmware",
    ];
    let found = check::run(&facts(), &config(PROFILE), &State::default(), Mode::Deep, 0.0);
    let by_id: BTreeMap<&str, Status> = found.checks.iter().map(|c| (c.check.as_str(), c.status)).collect();
    let passed: Vec<&&str> = by_id
        .iter()
        .filter(|(id, status)| id.starts_with("gpu.") && !OTHERS.contains(id) && **status != Status::Unknown)
        .map(|(id, _)| id)
        .collect();
    assert_eq!(passed, [&""; 0]);
}
