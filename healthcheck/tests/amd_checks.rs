//! The checks of AMD GPUs as tables: facts in, findings out.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail by panicking")]

use std::collections::BTreeMap;
use std::path::Path;

use healthcheck::check::{self, Findings};
use healthcheck::config::Config;
use healthcheck::facts::{AmdGpu, AmdMetrics, BadPages, Facts, JobHere, RasCount, Reading, Temperature};
use healthcheck::mode::Mode;
use healthcheck::state::State;
use healthcheck::verdict::{Action, Finding, Scope, Status};

const PROFILE: &str = "[profile.amd]\ngpu_count = 3\npcie_width = 16\nxgmi = true\n";

fn gpu(i: u32) -> AmdGpu {
    AmdGpu {
        pci: format!("0000:{:02x}:00.0", 5 + i),
        bound: true,
        config_all_ones: Reading::Value(false),
        width: Reading::Value(16),
        max_width: Reading::Value(16),
        ras: Reading::Value(
            ["umc", "gfx", "sdma"].map(|b| (b.to_string(), RasCount { ue: 0, ce: 5000 })).into(),
        ),
        bad_pages: Reading::Value(BadPages { reserved: 3, ..BadPages::default() }),
        temperatures: BTreeMap::from([
            ("junction".to_string(), Temperature { now: 45_000, critical: Some(110_000) }),
            ("mem".to_string(), Temperature { now: 40_000, critical: Some(105_000) }),
        ]),
        hive: Reading::Value("77".into()),
        metrics: Reading::Value(metrics(0, 0)),
        ..AmdGpu::default()
    }
}

/// Counted by the firmware: so many cycles, slowed by heat of the memory in so many.
fn metrics(cycles: u64, hbm: u64) -> AmdMetrics {
    let residencies = ["prochot", "ppt", "socket_thm", "vr_thm", "hbm_thm"].map(|n| (n.to_string(), 0));
    let mut residencies = BTreeMap::from(residencies);
    residencies.insert("hbm_thm".into(), hbm);
    AmdMetrics {
        version: "1.8".into(),
        cycles: Some(cycles),
        residencies,
        xgmi_links: (0..8).map(|n| (n, n != 3)).collect(),
        ..AmdMetrics::default()
    }
}

fn healthy() -> Facts {
    Facts { amd: Reading::Value((0..3).map(gpu).collect()), ..Facts::default() }
}

/// What the other families make of facts that nobody read is theirs.
fn run(facts: &Facts, config: &Config, history: &State, mode: Mode, now: f64) -> Findings {
    let mut found = check::run(facts, config, history, mode, now);
    found.findings.retain(|f| f.check.starts_with("amd."));
    found
}

fn look_at(facts: &Facts, history: &State, mode: Mode) -> Findings {
    let config = Config::parse(PROFILE, Path::new("test.toml")).unwrap();
    run(facts, &config, history, mode, 1000.0)
}

fn change(change: impl FnOnce(&mut Vec<AmdGpu>)) -> Facts {
    let mut facts = healthy();
    let Reading::Value(gpus) = &mut facts.amd else { panic!("no GPUs") };
    change(gpus);
    facts
}

fn only(what: impl FnOnce(&mut Vec<AmdGpu>)) -> Finding {
    let found = look_at(&change(what), &State::default(), Mode::Periodic).findings;
    assert_eq!(found.len(), 1, "{found:#?}");
    found.into_iter().next().unwrap()
}

fn is(f: &Finding, check: &str, token: &str, status: Status, action: Action) {
    assert_eq!((f.check.as_str(), f.token.as_str(), f.status, f.action), (check, token, status, action));
    assert_eq!(f.drains(), status == Status::Fail);
    assert!(!f.text.is_empty() && !f.evidence.is_empty() && !f.mend.is_empty(), "{f:#?}");
}

fn status(found: &Findings, check: &str) -> Status {
    found.checks.iter().find(|c| c.check == check).unwrap_or_else(|| panic!("{check} said nothing")).status
}

#[test]
fn healthy_gpus_pass_in_every_mode() {
    for mode in [Mode::Prolog, Mode::Epilog, Mode::Periodic, Mode::Deep] {
        assert_eq!(look_at(&healthy(), &State::default(), mode).findings, [], "{mode:?}");
    }
    let found = look_at(&healthy(), &State::default(), Mode::Deep);
    for check in
        ["amd.count", "amd.bus", "amd.ras_ue", "amd.ras_ce", "amd.bad_pages", "amd.links", "amd.temp"]
    {
        assert_eq!(status(&found, check), Status::Pass, "{check}");
    }
}

#[test]
fn a_node_without_amd_gpus_is_unsupported_unless_the_profile_names_them() {
    let none = Facts { amd: Reading::Unsupported, ..healthy() };
    let config = Config::parse("", Path::new("x")).unwrap();
    let found = run(&none, &config, &State::default(), Mode::Deep, 1.0);
    assert_eq!(found.findings, []);
    assert_eq!(status(&found, "amd.count"), Status::Unsupported);
    let found = look_at(&change(Vec::clear), &State::default(), Mode::Periodic).findings;
    is(&found[0], "amd.count", "amdcount", Status::Fail, Action::Reboot);
    let unread = Facts { amd: Reading::Hung("no answer in time".into()), ..healthy() };
    let found = look_at(&unread, &State::default(), Mode::Periodic);
    assert_eq!((found.findings.len(), found.findings[0].status), (1, Status::Unknown));
    assert_eq!(status(&found, "amd.ras_ue"), Status::Unknown);
}

#[test]
fn count_and_bus() {
    let f = only(|g| g[1].bound = false);
    is(&f, "amd.count", "amdcount", Status::Fail, Action::Reboot);
    assert_eq!((f.scope, f.text.as_str()), (Scope::Node, "2 of 3 AMD GPUs"));
    let f = only(|g| {
        // All that a dead device shows is nonsense.
        g[1].config_all_ones = Reading::Value(true);
        g[1].width = Reading::Value(0);
        g[1].ras = Reading::Unknown("x".into());
    });
    is(&f, "amd.bus", "amdbus", Status::Fail, Action::Reboot);
    assert_eq!((f.scope, f.device.unwrap().index), (Scope::Device, Some(1)));
}

fn errors(block: &'static str, ue: u64) -> impl FnOnce(&mut Vec<AmdGpu>) {
    move |g| {
        if let Reading::Value(ras) = &mut g[1].ras {
            ras.insert(block.into(), RasCount { ue, ce: 0 });
        }
    }
}

#[test]
fn uncorrectable_errors_by_block() {
    is(&only(errors("gfx", 1)), "amd.ras_ue", "amdue", Status::Fail, Action::Reboot);
    let f = only(errors("umc", 2));
    is(&f, "amd.ras_ue", "amdue", Status::Warn, Action::Reboot);
    assert!(f.evidence.contains("2 in umc"));
    let f =
        only(|g| g[1].ras = Reading::Unknown("umc_err_count says \"Query currently inaccessible\"".into()));
    assert_eq!((f.check.as_str(), f.status, f.drains()), ("amd.ras_ue", Status::Unknown, false));
    let found = look_at(&change(|g| g[1].ras = Reading::Unsupported), &State::default(), Mode::Periodic);
    assert_eq!(found.findings, []);
}

#[test]
fn corrected_errors_count_by_their_rise() {
    let mut history = State::default();
    let key = "amd/0000:06:00.0/ras_ce".to_string();
    for (time, value, wanted) in [(0.0, 15_000, 0), (3600.0, 15_100, 0), (7200.0, 15_101, 1)] {
        history.counters.record(&BTreeMap::from([(key.clone(), value)]), time);
        let found = look_at(&healthy(), &history, Mode::Periodic).findings;
        assert_eq!(found.len(), wanted, "{found:#?}");
        if let Some(f) = found.first() {
            is(f, "amd.ras_ce", "amdce", Status::Warn, Action::ResetGpu);
        }
    }
}

#[test]
fn bad_pages() {
    let pages = |pending, failed| {
        move |g: &mut Vec<AmdGpu>| g[1].bad_pages = Reading::Value(BadPages { reserved: 3, pending, failed })
    };
    is(&only(pages(1, 0)), "amd.bad_pages", "amdpages", Status::Fail, Action::ResetGpu);
    is(&only(pages(1, 1)), "amd.bad_pages", "amdpages", Status::Fail, Action::Repair);
    let mut facts = change(pages(1, 0));
    facts.jobs = vec![JobHere { job: "7".into(), gpus: vec![1], ..JobHere::default() }];
    for (mode, wanted) in [(Mode::Periodic, Status::Warn), (Mode::Prolog, Status::Fail)] {
        assert_eq!(look_at(&facts, &State::default(), mode).findings[0].status, wanted);
    }
    let f = only(|g| g[1].bad_pages = Reading::Unknown("x".into()));
    assert_eq!((f.check.as_str(), f.status), ("amd.bad_pages", Status::Unknown));
}

#[test]
fn links() {
    is(&only(|g| g[1].width = Reading::Value(8)), "amd.links", "amdlink", Status::Fail, Action::Repair);
    for hive in [Reading::Unsupported, Reading::Value("78".into())] {
        let f = only(|g| g[1].hive = hive);
        is(&f, "amd.links", "amdxgmi", Status::Fail, Action::Reboot);
        assert_eq!(f.device.unwrap().index, Some(1));
    }
}

#[test]
fn temperature() {
    let at = |now| {
        move |g: &mut Vec<AmdGpu>| {
            g[1].temperatures.insert("mem".into(), Temperature { now, critical: Some(105_000) });
        }
    };
    let f = only(at(103_000));
    is(&f, "amd.temp", "amdtemp", Status::Warn, Action::Repair);
    assert_eq!(f.text, "mem at 103 C, limit 105 C");
    let facts = change(at(105_000));
    let mut history = State::default();
    for (n, wanted) in [(1, Status::Warn), (2, Status::Warn), (3, Status::Fail)] {
        let config = Config::parse(PROFILE, Path::new("test.toml")).unwrap();
        let found = run(&facts, &config, &history, Mode::Periodic, f64::from(n) * 20.0);
        assert_eq!(found.findings[0].status, wanted);
        history.strikes = found.strikes;
    }
    // A sensor without a limit is no rule.
    let found = look_at(
        &change(|g| {
            g[1].temperatures.insert("edge".into(), Temperature { now: 200_000, critical: None });
        }),
        &State::default(),
        Mode::Periodic,
    );
    assert_eq!(found.findings, []);
}

/// Findings of `amd.throttle` over passes a minute apart, each with cycles, what was slowed by `cause`, and `ppt`.
fn slowed(cause: &str, passes: &[(u64, u64)]) -> Vec<(Status, String)> {
    let config = Config::parse(PROFILE, Path::new("test.toml")).unwrap();
    let mut history = State::default();
    let (mut now, mut last) = (1000.0, Vec::new());
    for (cycles, of_them) in passes {
        let mut m = metrics(*cycles, 0);
        m.residencies.insert(cause.into(), *of_them);
        let mut facts = change(|g| g[1].metrics = Reading::Value(m.clone()));
        let key = |name: &str| format!("amd/0000:06:00.0/{name}");
        facts.counters.insert(key("cycles"), *cycles);
        facts.counters.extend(m.residencies.iter().map(|(name, n)| (key(name), *n)));
        history.counters.record(&facts.counters, now);
        let found = run(&facts, &config, &history, Mode::Periodic, now);
        history.strikes = found.strikes.clone();
        last = found.findings.iter().map(|f| (f.status, f.text.clone())).collect();
        now += 60.0;
    }
    last
}

#[test]
fn heat_that_slows_a_gpu_down_warns_and_fails_when_it_stays() {
    let steady = |share: u64, n: u64| (0..n).map(|i| (i * 1000, i * share)).collect::<Vec<_>>();
    let heat = "slowed by heat of the memory";
    assert_eq!(slowed("hbm_thm", &steady(700, 3)), [], "told in the third read after the first");
    assert_eq!(slowed("hbm_thm", &steady(700, 5)), [(Status::Warn, heat.into())]);
    assert_eq!(slowed("hbm_thm", &steady(700, 13)), [(Status::Fail, heat.into())]);
    assert_eq!(slowed("hbm_thm", &steady(500, 13)), [(Status::Warn, heat.into())]);
    assert_eq!(slowed("hbm_thm", &steady(5, 13)), [], "half a percent");
    let brake = "slowed by an outside brake (PROCHOT)";
    assert_eq!(slowed("prochot", &steady(900, 13)), [(Status::Warn, brake.into())], "a brake never drains");
    assert_eq!(slowed("ppt", &steady(1000, 13)), [], "the power cap is everyday");
    // The count since driver load says nothing, and a reset starts over.
    assert_eq!(slowed("hbm_thm", &[(1_000_000, 900_000), (1_001_000, 900_000), (0, 0), (1000, 0)]), []);
}

#[test]
fn momentary_bits_of_older_gpus_warn_and_unknown_layouts_are_unsupported() {
    let bits = |causes: &[&str]| AmdMetrics {
        version: "1.3".into(),
        slowed_by: Some(causes.iter().map(|c| (*c).into()).collect()),
        ..AmdMetrics::default()
    };
    let config = Config::parse(PROFILE, Path::new("test.toml")).unwrap();
    let look = |m: Reading<AmdMetrics>, reads: u32| {
        let facts = change(|g| g.iter_mut().for_each(|g| g.metrics = m.clone()));
        let mut history = State::default();
        let mut found = run(&facts, &config, &history, Mode::Periodic, 0.0);
        for read in 1..reads {
            history.strikes = found.strikes;
            found = run(&facts, &config, &history, Mode::Periodic, f64::from(read) * 60.0);
        }
        found
    };
    let hot = || Reading::Value(bits(&["hotspot temperature"]));
    assert_eq!(look(hot(), 2).findings, []);
    let found = look(hot(), 3).findings;
    assert_eq!(found.len(), 3);
    is(&found[0], "amd.throttle", "amdslow", Status::Warn, Action::Repair);
    assert_eq!(look(Reading::Value(bits(&[])), 3).findings, []);
    assert_eq!(look(Reading::Unsupported, 3).findings, []);
    let found = look(Reading::Unknown("gpu_metrics 1.8 says 9 bytes".into()), 1);
    assert!(found.findings.iter().all(|f| f.status == Status::Unknown && f.check == "amd.throttle"));
    assert_eq!(status(&found, "amd.throttle"), Status::Unknown);
}

#[test]
fn xgmi_links_must_be_up_in_three_reads_and_ten_minutes_after_boot() {
    let text = format!("{PROFILE}xgmi_links = 7\n");
    let config = Config::parse(&text, Path::new("test.toml")).unwrap();
    let look = |links: Reading<AmdMetrics>, uptime: f64, reads: u32| {
        let mut facts = change(|g| g[2].metrics = links.clone());
        facts.uptime = uptime;
        let mut history = State::default();
        let mut found = run(&facts, &config, &history, Mode::Prolog, 0.0);
        for read in 1..reads {
            history.strikes = found.strikes;
            found = run(&facts, &config, &history, Mode::Prolog, f64::from(read) * 60.0);
        }
        found.findings.iter().map(|f| (f.token.clone(), f.status, f.drains())).collect::<Vec<_>>()
    };
    let six = || {
        let mut m = metrics(0, 0);
        m.xgmi_links.insert(5, false);
        Reading::Value(m)
    };
    assert_eq!(look(Reading::Value(metrics(0, 0)), 1e5, 3), []);
    assert_eq!(look(six(), 1e5, 2), [("amdxgmi".into(), Status::Warn, false)]);
    assert_eq!(look(six(), 1e5, 3), [("amdxgmi".into(), Status::Fail, true)]);
    assert_eq!(look(six(), 60.0, 3), [("amdxgmi".into(), Status::Warn, false)], "links train after boot");
    assert_eq!(look(Reading::Value(AmdMetrics::default()), 1e5, 3), [], "the driver does not tell");
    assert_eq!(look(Reading::Unsupported, 1e5, 3), []);
    assert_eq!(look(Reading::Unknown("cut".into()), 1e5, 1)[0].1, Status::Unknown);
}
