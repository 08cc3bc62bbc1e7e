//! Availability, credits and accounts over a window of made-up records.

use proptest::prelude::*;

use super::account::{Split, interrupted};
use super::contract::Checkpoint;
use super::slurm::{Attempt, Event};
use super::statistics::daly;
use super::*;

const DAY: i64 = 86_400;
/// 2026-11-01T00:00:00Z
const START: i64 = 1_793_491_200;

fn contract() -> Contract {
    Contract::read(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/contract.toml"))).unwrap()
}

/// Seconds are counted from the start of November 2026.
fn event(node: &str, from: i64, to: Option<i64>, state: &str, reason: &str) -> Event {
    Event {
        node: node.to_owned(),
        from: START + from,
        to: to.map(|to| START + to),
        states: state.split('+').map(str::to_owned).collect(),
        reason: reason.to_owned(),
    }
}

fn facts(days: i64, events: Vec<Event>) -> Facts {
    Facts {
        nodes: ["n1", "n2", "n3", "n4"].map(str::to_owned).to_vec(),
        window: (START, START + days * DAY),
        events,
        attempts: Vec::new(),
    }
}

fn unit<'a>(found: &'a Reckoning, level: &str, name: &str, period: &str) -> &'a Unit {
    found
        .units
        .iter()
        .find(|unit| (&*unit.level, &*unit.name, &*unit.period) == (level, name, period))
        .unwrap()
}

fn figure(found: &Reckoning, name: &str) -> f64 {
    found.figures.iter().find(|one| one.name == name).unwrap().value.unwrap()
}

#[test]
fn the_start_is_the_first_of_november() {
    assert_eq!(shown(START), "2026-11-01T00:00:00Z");
}

#[test]
fn overlapping_outages_count_once_and_a_rack_by_its_own_rule() {
    let found = Reckoning::of(
        facts(
            30,
            vec![
                event("n1", 0, Some(4 * 3600), "down", "a"),
                // Overlaps: one outage of 8 h.
                event("n1", 3 * 3600, Some(8 * 3600), "drain", "b"),
                event("n2", 5 * 3600, Some(9 * 3600), "drain+down", "c"),
                event("n3", 9 * 3600, Some(9 * 3600 + 59), "down", "shorter than the contract counts"),
                event("n9", 0, Some(DAY), "down", "another cluster's"),
                event("n4", 0, Some(DAY), "idle", "no state that counts"),
            ],
        ),
        contract(),
    )
    .unwrap();
    let node = unit(&found, "node", "n1", "2026-11");
    assert_eq!((node.down, node.outages, node.longest), (8 * 3600, 1, 8 * 3600));
    // The announced window of two hours leaves the period.
    assert_eq!((node.seconds, node.excluded), (30 * DAY, 7200));
    let wanted = 100.0 * (1.0 - 8.0 * 3600.0 / (30.0 * 86_400.0 - 7200.0));
    assert!((node.percent.unwrap() - wanted).abs() < 1e-9);
    assert_eq!(node.credit_percent, Some(25.0), "below 99.5 and below 99.0: the deeper step");
    assert_eq!(unit(&found, "node", "n3", "2026-11").down, 0);
    assert_eq!(unit(&found, "node", "n4", "2026-11").percent, Some(100.0));
    // Both nodes of r1 are down for three hours only; r2 falls with one node; the site needs three.
    assert_eq!(unit(&found, "rack", "r1", "2026-11").down, 3 * 3600);
    assert_eq!(unit(&found, "rack", "r2", "2026-11").down, 0);
    assert_eq!(unit(&found, "site", "hall", "2026-11").down, 0);
    assert_eq!(unit(&found, "site", "hall", "2026-11").promised, None);
    let outage = &found.outages[0];
    assert_eq!((outage.node.as_str(), outage.reasons.join(" ")), ("n1", "a b".to_owned()));
    assert_eq!(found.broken().count(), 2, "n1 and n2");
    let month = 30.0 * 24.0 * 8.0 * 2.5;
    let second = unit(&found, "node", "n2", "2026-11");
    assert_eq!((second.down, second.credit_percent), (4 * 3600, Some(10.0)));
    assert_eq!(found.credits(), [("2026-11".to_owned(), Some(month * 0.25 + month * 0.10))]);
}

#[test]
fn maintenance_exclusions_and_open_outages() {
    let window = (9 * DAY + 2 * 3600, 9 * DAY + 4 * 3600);
    let mut terms = contract();
    let events = vec![
        // Half of it in the announced window.
        event("n1", window.0 + 3600, Some(window.1 + 3600), "drain", "firmware"),
        event("n2", DAY, Some(2 * DAY), "down", "customer asked for it"),
        // Lasts, and began before the window of the question.
        event("n3", -DAY, None, "down", "lost"),
    ];
    let found = Reckoning::of(facts(30, events.clone()), terms.clone()).unwrap();
    assert_eq!(unit(&found, "node", "n1", "2026-11").down, 3600);
    let n2 = unit(&found, "node", "n2", "2026-11");
    assert_eq!((n2.down, n2.excluded), (0, 7200 + DAY));
    assert_eq!(n2.percent, Some(100.0));
    let n3 = unit(&found, "node", "n3", "2026-11");
    assert_eq!((n3.down, n3.percent), (30 * DAY - 7200, Some(0.0)));
    assert_eq!(n3.credit_percent, Some(100.0));
    let lost = found.outages.iter().find(|one| one.node == "n3").unwrap();
    assert!(lost.open && lost.earlier);
    // Only the outage of n1 began in the window and counts.
    assert_eq!(found.figures[0].inputs[0], ("failures", 1.0));
    let month = 30.0 * 24.0 * 8.0 * 2.5;
    assert_eq!(found.credits()[0].1, Some(month), "below half of the price of four nodes: no cap");
    terms.downtime.excluded = contract::Excluded::Up;
    terms.cap_percent = Some(10.0);
    let up = Reckoning::of(facts(30, events), terms).unwrap();
    let n3 = unit(&up, "node", "n3", "2026-11");
    assert!((n3.percent.unwrap() - 100.0 * 7200.0 / (30.0 * 86_400.0)).abs() < 1e-9);
    assert_eq!(up.credits()[0].1, Some(4.0 * month * 0.1), "capped");
}

#[test]
fn months_are_judged_each_on_its_own() {
    let found = Reckoning::of(
        facts(45, vec![event("n1", 29 * DAY, Some(31 * DAY), "down", "over the month's end")]),
        contract(),
    )
    .unwrap();
    assert_eq!(unit(&found, "node", "n1", "2026-11").down, DAY);
    let december = unit(&found, "node", "n1", "2026-12");
    assert_eq!((december.down, december.seconds, december.excluded), (DAY, 15 * DAY, 0));
}

fn attempt(job: &str, state: &str, at: [i64; 3], nodes: &[&str]) -> Attempt {
    Attempt {
        job: job.to_owned(),
        name: "train".to_owned(),
        user: "u".to_owned(),
        state: state.to_owned(),
        submit: START + at[0],
        start: START + at[1],
        end: Some(START + at[2]),
        nodes: nodes.iter().map(|node| (*node).to_owned()).collect(),
    }
}

#[test]
fn ettr_and_the_account_add_up() {
    let mut given = facts(1, vec![event("n2", 40_000, Some(50_000), "down", "lost power")]);
    given.attempts = vec![
        attempt("1", "NODE_FAIL", [0, 1000, 40_000], &["n1", "n2"]),
        attempt("1", "COMPLETED", [40_000, 51_000, 80_000], &["n1", "n2"]),
        // Shares n1 with nobody; two jobs on n3 share it.
        attempt("2", "COMPLETED", [0, 0, 10_000], &["n3"]),
        attempt("3", "COMPLETED", [0, 5000, 20_000], &["n3"]),
    ];
    let found = Reckoning::of(given, contract()).unwrap();
    let run = &found.runs[0];
    assert_eq!((run.job.as_str(), run.attempts, run.node_failures, run.wall), ("1", 2, 1, 80_000));
    assert_eq!(run.waiting, 1000 + 11_000);
    assert_eq!(run.split.restart, 1200);
    assert_eq!(run.split.lost, 900, "half an interval");
    assert_eq!(run.wall, run.waiting + run.split.total());
    assert!((run.ettr().unwrap() - run.split.productive as f64 / 80_000.0).abs() < 1e-12);
    let hours = found.hours;
    assert_eq!(hours.nominal, 4 * DAY);
    assert_eq!(hours.allocated, 2 * (39_000 + 29_000) + 20_000);
    assert_eq!(hours.out_of_service, 10_000);
    assert_eq!(hours.nominal, hours.out_of_service + hours.idle + hours.allocated);
    assert_eq!(hours.allocated, hours.restart + hours.checkpoint + hours.lost + hours.productive);
    // Cost: what was paid for over what was useful.
    let wanted = 2.5 * (hours.allocated + hours.out_of_service) as f64 / hours.productive as f64;
    assert!((figure(&found, "cost_per_useful_gpu_hour") - wanted).abs() < 1e-9);
    // One failure in 4 node-days less the outage.
    let days = (4 * DAY - 10_000) as f64 / 86_400.0;
    assert!((figure(&found, "node_mttf") - days).abs() < 1e-9);
    assert!((figure(&found, "mttf_of_a_job_on_all_nodes") - days * 6.0).abs() < 1e-9);
    let m = days * 6.0 * 3600.0;
    assert!((figure(&found, "checkpoint_efficiency") - daly(1800.0, 60.0, 600.0, m)).abs() < 1e-12);
    assert!((figure(&found, "gpu_hours_per_failure") - days * 24.0 * 8.0).abs() < 1e-9);
}

#[test]
fn a_clean_window_bounds_the_rate_and_claims_no_mttf() {
    let found = Reckoning::of(facts(30, Vec::new()), Contract::none()).unwrap();
    let value = |name: &str| found.figures.iter().find(|one| one.name == name).unwrap().value;
    assert_eq!(value("node_mttf"), None);
    assert_eq!(value("failures_low"), Some(0.0));
    assert!((value("failures_high").unwrap() - 2995.73 / 120.0).abs() < 0.01);
    assert!(found.to_text().contains("up all the time, 100 %"));
    assert!(found.to_json().contains("\"node_mttf\""));
}

/// A reboot that somebody asked Slurm for is time out of service, and neither a failure nor a repair.
#[test]
fn a_reboot_by_slurm_is_no_failure() {
    let mut terms = contract();
    terms.maintenance.clear();
    let events = vec![
        event("n1", 0, Some(400), "boot+down", "kernel update : reboot issued"),
        event("n2", 5000, Some(5000 + 7200), "drain", "cmx:xid79 g3 fell off the bus"),
        event("n3", 9000, Some(9000 + 3600), "down", "lost power"),
    ];
    let found = Reckoning::of(facts(30, events), terms).unwrap();
    assert_eq!(unit(&found, "node", "n1", "2026-11").down, 400);
    assert_eq!(found.figures[0].inputs[0], ("failures", 2.0));
    assert_eq!(figure(&found, "replacement_median"), 5400.0);
    assert_eq!(figure(&found, "replacement_longest"), 7200.0);
    assert_eq!(figure(&found, "mean_time_to_repair"), 1.5);
    assert_eq!(figure(&found, "whole_rack_outages"), 0.0);
    assert_eq!(found.outages.iter().filter(|one| one.reboot).count(), 1);
}

#[test]
fn a_rack_that_goes_down_as_a_whole_is_counted_once_each_time() {
    let of = |events| figure(&Reckoning::of(facts(30, events), contract()).unwrap(), "whole_rack_outages");
    let both = |from: i64| {
        vec![
            event("n1", from, Some(from + 600), "down", "x"),
            event("n2", from + 100, Some(from + 900), "down", "x"),
        ]
    };
    assert_eq!(of(Vec::new()), 0.0);
    assert_eq!(of(vec![event("n1", 0, Some(900), "down", "x")]), 0.0);
    assert_eq!(of(both(1000)), 1.0);
    assert_eq!(of([both(1000), both(50_000)].concat()), 2.0);
    // Racks that the contract does not name cannot be judged.
    let found = Reckoning::of(facts(30, both(0)), Contract::none()).unwrap();
    assert!(found.figures.iter().all(|one| one.name != "whole_rack_outages"));
}

/// What the provider publishes against what Slurm recorded: half a day of four nodes' month.
#[test]
fn published_availability_is_compared_with_slurms_records() {
    let mut terms = contract();
    terms.maintenance.clear();
    let events = vec![event("n1", 0, Some(DAY / 2), "down", "x")];
    let found = Reckoning::with(facts(30, events), terms, Some(99.99)).unwrap();
    let measured = 100.0 * (1.0 - 0.5 / 120.0);
    assert!((figure(&found, "node_availability") - measured).abs() < 1e-9);
    assert!((figure(&found, "availability_difference") - (99.99 - measured)).abs() < 1e-9);
}

/// A results folder on n1 to n4.
fn run_folder(folder: &Path) -> crate::run::Folder {
    let run = json!({
        "schema": "clustermax-run/1", "run": "r1", "cluster": "c", "profile": "full", "job": "1", "nodes": ["n1", "n2", "n3", "n4"],
        "started": "2026-11-30T20:50:00Z", "simulated": false, "hardware": "gpu",
    });
    std::fs::write(folder.join("run.json"), run.to_string()).unwrap();
    crate::run::Folder::open(folder).unwrap()
}

/// Records of a reckoning as the scorer reads them: metric with params and subject, and value or state.
fn kept(reckoning: &Reckoning) -> std::collections::BTreeMap<String, String> {
    let folder = tempfile::tempdir().unwrap();
    let count = records::write(&run_folder(folder.path()), reckoning).unwrap();
    let methodology = crate::methodology::Methodology::built_in().unwrap();
    let loaded = crate::load::load(folder.path(), &methodology).unwrap();
    let all: std::collections::BTreeMap<String, String> = loaded
        .entries
        .iter()
        .map(|(key, entry)| {
            assert_eq!(entry.flaw, None, "{key:?}: the pointer shows the value");
            let value = entry.value.map_or_else(|| format!("{:?}", entry.state), number);
            (format!("{}{} {}", key.metric, crate::load::params_text(&key.params), key.subject), value)
        })
        .collect();
    assert_eq!(all.len(), count);
    all
}

#[test]
fn records_of_a_window_are_believed_by_the_scorer() {
    let mut terms = contract();
    terms.maintenance.clear();
    let mut given = facts(
        30,
        vec![
            event("n1", 0, Some(400), "boot+down", "reboot issued"),
            event("n2", 5000, Some(5000 + 7200), "drain", "cmx:xid79 g3 fell off the bus"),
        ],
    );
    given.attempts = vec![attempt("1", "COMPLETED", [0, 0, 100_000], &["n3", "n4"])];
    let found = kept(&Reckoning::with(given, terms, Some(99.9)).unwrap());
    let value = |key: &str| found.get(key).unwrap_or_else(|| panic!("{key} is not in {found:#?}")).as_str();
    assert_eq!(value("fault_to_return_seconds, fault=recorded, how=returned, kind=recorded cluster"), "7200");
    assert_eq!(value("whole_rack_outages cluster"), "0");
    assert_eq!(value("reboot_to_usable_seconds, by=events n1"), "400");
    assert_eq!(value("reboot_to_usable_seconds, by=events n2"), "Unavailable");
    let hours = (4 * 30 * DAY - 400 - 7200) as f64 / 3600.0 * 8.0;
    assert_eq!(value("gpu_hours_per_failure, bound=none cluster"), number(hours));
    assert!(value("availability, level=node cluster").starts_with("99.9"), "{found:?}");
    assert!(
        value("availability, level=rack, name=r1, period=2026-11 cluster").starts_with("100"),
        "{found:?}"
    );
    assert!(value("availability_difference cluster").starts_with("-0.0"), "{found:?}");
    assert!(value("cost_overhead cluster").parse::<f64>().unwrap() > 0.0, "{found:?}");
}

/// Nothing happened, nothing was promised: no value is made up, but a long clean window bounds the rate of failures.
#[test]
fn a_clean_window_without_a_contract_leaves_reasons() {
    let found = kept(&Reckoning::of(facts(30, Vec::new()), Contract::none()).unwrap());
    let value = |key: &str| found.get(key).unwrap_or_else(|| panic!("{key} is not in {found:#?}")).as_str();
    let bound = 120.0 * 24.0 * 8.0 / 2.995_732;
    assert!(
        (value("gpu_hours_per_failure, bound=lower cluster").parse::<f64>().unwrap() - bound).abs() < 0.1
    );
    for key in [
        "fault_to_return_seconds, fault=recorded, how=returned, kind=recorded cluster",
        "whole_rack_outages cluster",
        "availability_difference cluster",
        "cost_overhead cluster",
    ] {
        assert_eq!(value(key), "Unavailable", "{key}");
    }
}

#[test]
fn records_go_only_into_a_run_on_these_nodes() {
    let folder = tempfile::tempdir().unwrap();
    let run = run_folder(folder.path());
    let mut given = facts(1, Vec::new());
    given.nodes.pop();
    let error = records::write(&run, &Reckoning::of(given, Contract::none()).unwrap()).unwrap_err().message;
    assert!(error.contains("is a run on node n4") && error.lines().count() == 1, "{error}");
    assert!(!folder.path().join("raw").exists(), "nothing was written");
}

#[test]
fn a_group_of_unknown_nodes_is_named() {
    let mut given = facts(1, Vec::new());
    given.nodes.pop();
    let error = Reckoning::of(given, contract()).err().unwrap().message;
    assert!(error.contains("group rack r2 names node n4"), "{error}");
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let one = (1_u8..=4, 0_i64..86_400, 1_i64..40_000, 0_u8..3, any::<bool>()).prop_map(
        |(node, from, length, state, customer)| {
            let state = ["down", "drain", "fail+down"][state as usize];
            event(
                &format!("n{node}"),
                from,
                Some(from + length),
                state,
                if customer { "customer" } else { "x" },
            )
        },
    );
    proptest::collection::vec(one, 0..12)
}

proptest! {
    /// Seconds are neither lost nor counted twice, whatever overlaps, and one more outage never makes anything better.
    #[test]
    fn accounts_add_up_and_an_outage_never_helps(events in events(), jobs in proptest::collection::vec((0_i64..90_000, 1_i64..50_000, 1_u8..=4, any::<bool>()), 0..8)) {
        let mut given = facts(1, events.clone());
        given.attempts = jobs.iter().enumerate().map(|(index, (from, length, node, done))| {
            let state = if *done { "COMPLETED" } else { "NODE_FAIL" };
            attempt(&index.to_string(), state, [*from, *from, from + length], &[&format!("n{node}"), "n1"][..1 + usize::from(*node > 1)])
        }).collect();
        let mut terms = contract();
        terms.exclusion.clear();
        let whole = Reckoning::of(given.clone(), terms.clone()).unwrap();
        let h = whole.hours;
        prop_assert_eq!(h.nominal, h.out_of_service + h.idle + h.allocated);
        prop_assert_eq!(h.allocated, h.restart + h.checkpoint + h.lost + h.productive);
        prop_assert!([h.out_of_service, h.idle, h.allocated, h.restart, h.checkpoint, h.lost, h.productive].iter().all(|one| *one >= 0), "{:?}", h);
        for run in &whole.runs {
            prop_assert_eq!(run.wall, run.waiting + run.split.total());
        }
        given.events.pop();
        let fewer = Reckoning::of(given, terms).unwrap();
        for (before, after) in fewer.units.iter().zip(&whole.units) {
            prop_assert!(after.down >= before.down, "{:?} {:?}", before, after);
            prop_assert!(after.percent <= before.percent);
        }
    }

    #[test]
    fn an_attempt_is_split_without_a_rest(length in 0_i64..1_000_000, done: bool, seconds in 0.0_f64..1000.0, interval in 1.0_f64..10_000.0, restart in 0.0_f64..10_000.0) {
        let checkpoint = Checkpoint { seconds, interval_seconds: interval, restart_seconds: restart };
        let state = if done { "COMPLETED" } else { "FAILED" };
        for checkpoint in [None, Some(checkpoint)] {
            let split = Split::of(length, interrupted(state), checkpoint);
            prop_assert_eq!(split.total(), length);
            prop_assert!([split.restart, split.checkpoint, split.lost, split.productive].iter().all(|one| *one >= 0));
        }
    }
}
