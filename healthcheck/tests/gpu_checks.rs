//! The GPU checks that rest on NVML and the driver, as tables: facts in, findings out. No machine is needed.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail by panicking"
)]

use std::collections::BTreeMap;
use std::path::Path;

use healthcheck::check::{self, Findings};
use healthcheck::config::Config;
use healthcheck::facts::{
    C2c, Fabric, Facts, GpuDetails, GpuProcess, GpuSurvey, JobHere, KernelFacts, Mode as Setting,
    NvlinkErrors, NvmlFacts, NvmlGpu, Owner, PciFacts, Reading, RepairFlags, RetiredPages, RowSpares,
    SeenEvent, Service, Usable,
};
use healthcheck::kmsg::parse_record;
use healthcheck::mode::Mode;
use healthcheck::state::State;
use healthcheck::verdict::{Action, Fault, Finding, Scope, Status};
use healthcheck::xid;

const DRIVER: &str = "570.172.08";

const PROFILE: &str = r#"
[profile]
gpu_count = 2
nvlinks_per_gpu = 18
[profile.gpu]
nvlink_mbps = 26562
ecc = true
mig = false
compute_mode = "default"
power_limit_watts = 700
"#;

fn config(more: &str) -> Config {
    Config::parse(&format!("{PROFILE}{more}"), Path::new("test.toml")).unwrap()
}

fn pci(i: u32) -> String {
    format!("3a1c:{:02x}:00.0", 0x18 + i)
}

fn details() -> GpuDetails {
    GpuDetails {
        architecture: Reading::Value(9),
        sram_threshold_exceeded: Reading::Value(false),
        ecc_corrected: Reading::Value(5_000_000),
        repair: Reading::Value(RepairFlags::default()),
        unrepairable_memory: Reading::Value(false),
        fabric: Reading::Value(Fabric { state: 3, health_mask: Some(0x1aa), ..Fabric::default() }),
        nvlink_errors: Reading::Value(NvlinkErrors { recovery: 40, crc: 900, ..NvlinkErrors::default() }),
        c2c: Reading::Unsupported,
        pcie_replays: Reading::Value(7000),
        pcie_lanes: Reading::Value(16),
        pcie_generation: Reading::Value(5),
        clock_events: Reading::Value(0x1),
        thermal_ns: Reading::Value(0),
        brake_ns: Reading::Value(0),
        sw_thermal_ns: Reading::Value(0),
        power_cap_ns: Reading::Value(0),
        power_mw: Reading::Value(70_000),
        power_limit_mw: Reading::Value(700_000),
        default_power_limit_mw: Reading::Value(700_000),
        application_clock: Reading::Value(1980),
        default_application_clock: Reading::Value(1980),
        ecc_mode: Reading::Value(Setting { current: true, pending: true }),
        mig_mode: Reading::Value(Setting::default()),
        compute_mode: Reading::Value("default".into()),
        persistence: Reading::Value(true),
        processes: Reading::Value(Vec::new()),
    }
}

fn survey() -> GpuSurvey {
    GpuSurvey {
        row_spares: Reading::Value(RowSpares { max: 2560, ..RowSpares::default() }),
        remapped_uncorrectable: Reading::Value(0),
        retired_pages: Reading::Unsupported,
        inforom_valid: Reading::Value(true),
        nvlink_speeds: Reading::Value((0..18).map(|l| (l, 26_562)).collect()),
        vbios: Reading::Value("96.00.89.00.01".into()),
        gsp: Reading::Value(DRIVER.into()),
        busy_percent: Reading::Value(0),
    }
}

fn gpu(i: u32) -> NvmlGpu {
    NvmlGpu {
        index: i,
        minor: Reading::Value(i),
        name: Reading::Value("NVIDIA H100 80GB HBM3".into()),
        uuid: Reading::Value(format!("GPU-{i}")),
        pci: Reading::Value(pci(i)),
        recovery_action: Reading::Value(0),
        ecc_sram_ue: Reading::Value(0),
        ecc_dram_ue: Reading::Value(0),
        remap_pending: Reading::Value(false),
        remap_failure: Reading::Value(false),
        nvlinks: Reading::Value((0..18).map(|l| (l, true)).collect()),
        temperature: Reading::Value(40),
        slowdown_temperature: Reading::Value(89),
        details: Some(Box::new(details())),
        survey: Some(Box::new(survey())),
        ..NvmlGpu::default()
    }
}

fn healthy() -> Facts {
    let mut facts = Facts {
        uptime: 100_000.0,
        gpu_nodes: Reading::Value(vec![0, 1]),
        pci: Reading::Value(PciFacts {
            gpus: (0..2).map(|i| healthcheck::facts::PciGpu { pci: pci(i), ..Default::default() }).collect(),
            switches: vec!["3a1c:05:00.0".into()],
        }),
        nvml: Reading::Value(NvmlFacts {
            driver_version: DRIVER.into(),
            count: 2,
            gpus: vec![gpu(0), gpu(1)],
            ..NvmlFacts::default()
        }),
        kernel: Reading::Value(KernelFacts::default()),
        node: healthcheck::facts::NodeFacts::absent(),
        ib: Reading::Value(BTreeMap::new()),
        mounts: Reading::Value(BTreeMap::new()),
        memory_total_kib: Reading::Value(1000),
        ..Facts::default()
    };
    facts.gpu_node.module_version = Reading::Value(DRIVER.into());
    facts.gpu_node.mps = Some(Reading::Value(Vec::new()));
    facts.gpu_node.usable =
        Some(Reading::Value((0..2).map(|i| (pci(i), Usable::Works)).collect::<BTreeMap<_, _>>()));
    facts
}

fn nvml(facts: &mut Facts) -> &mut NvmlFacts {
    let Reading::Value(n) = &mut facts.nvml else { panic!("no nvml") };
    n
}

/// Details of GPU 1.
fn d(facts: &mut Facts) -> &mut GpuDetails {
    nvml(facts).gpus[1].details.as_mut().unwrap()
}

/// Survey of GPU 1.
fn s(facts: &mut Facts) -> &mut GpuSurvey {
    nvml(facts).gpus[1].survey.as_mut().unwrap()
}

/// A node that is looked at again and again, 20 seconds apart unless told otherwise.
struct Node {
    config: Config,
    history: State,
    now: f64,
    mode: Mode,
}

impl Node {
    fn new(more: &str) -> Node {
        Node { config: config(more), history: State::default(), now: 10_000.0, mode: Mode::Deep }
    }

    fn look(&mut self, facts: &Facts) -> Findings {
        self.after(facts, 20.0)
    }

    fn after(&mut self, facts: &Facts, seconds: f64) -> Findings {
        self.now += seconds;
        let mut counters = BTreeMap::new();
        for g in facts.nvml.value().map_or(&[][..], |n| &n.gpus) {
            for (name, value) in g.details.iter().flat_map(|d| d.counters()) {
                counters.insert(format!("gpu/{}/{name}", g.pci.value().unwrap()), value);
            }
        }
        self.history.counters.record(&counters, self.now);
        let found = check::run(facts, &self.config, &self.history, self.mode, self.now);
        self.history.strikes.clone_from(&found.strikes);
        found
    }
}

fn deep(more: &str, change: impl FnOnce(&mut Facts)) -> Findings {
    let mut facts = healthy();
    change(&mut facts);
    Node::new(more).look(&facts)
}

/// The one finding of a change to healthy facts.
fn only(change: impl FnOnce(&mut Facts)) -> Finding {
    only_with("", change)
}

fn only_with(more: &str, change: impl FnOnce(&mut Facts)) -> Finding {
    let found = deep(more, change).findings;
    assert_eq!(found.len(), 1, "{found:#?}");
    found.into_iter().next().unwrap()
}

fn status(found: &Findings, check: &str) -> Status {
    found.checks.iter().find(|c| c.check == check).unwrap_or_else(|| panic!("{check} said nothing")).status
}

/// Nothing is found, and the check says this.
fn quiet(check: &str, wanted: Status, change: impl FnOnce(&mut Facts)) {
    let found = deep("", change);
    assert_eq!(found.findings, [], "{check}");
    assert_eq!(status(&found, check), wanted, "{check}");
}

fn is(f: &Finding, check: &str, token: &str, status: Status, action: Action) {
    assert_eq!(
        (f.check.as_str(), f.token.as_str(), f.status, f.action),
        (check, token, status, action),
        "{f:#?}"
    );
    assert_eq!(f.drains(), status == Status::Fail);
    assert!(!f.text.is_empty() && !f.evidence.is_empty() && !f.mend.is_empty(), "{f:#?}");
}

/// A reading that failed is told as unknown and never drains; a value that does not exist is unsupported.
fn unread<T>(check: &str, field: impl Fn(&mut Facts) -> &mut Reading<T>) {
    let f = only(|facts| *field(facts) = Reading::Unknown("an internal driver error occurred".into()));
    assert_eq!((f.check.as_str(), f.status, f.drains()), (check, Status::Unknown, false));
    assert_eq!(f.device.unwrap().index, Some(1));
    let found = deep("", |facts| {
        *field(facts) = Reading::Unsupported;
        nvml(facts).gpus.remove(0);
        nvml(facts).count = 1;
    });
    let own: Vec<_> = found.findings.iter().filter(|f| f.check == check).collect();
    assert!(own.is_empty(), "{own:#?}");
    assert_eq!(status(&found, check), Status::Unsupported, "{check}");
}

#[test]
fn healthy_gpus_have_no_findings_in_any_mode() {
    for mode in [Mode::Prolog, Mode::Epilog, Mode::Periodic, Mode::Deep] {
        let mut node = Node { mode, ..Node::new("") };
        for _ in 0..5 {
            let found = node.look(&healthy());
            assert_eq!(found.findings, [], "{mode:?}");
        }
    }
}

#[test]
fn nothing_passes_when_nvml_does_not_answer() {
    let found = deep("", |f| f.nvml = Reading::Unknown("its child died".into()));
    for check in ["gpu.repair_pending", "gpu.fabric_state", "gpu.throttle", "gpu.firmware", "gpu.driver"] {
        assert_eq!(status(&found, check), Status::Unknown, "{check}");
    }
}

#[test]
fn driver() {
    let mismatch = |f: &mut Facts| {
        *nvml(f) = NvmlFacts {
            refused: Some("NVML does not start: version mismatch".into()),
            refusal_code: 18,
            ..NvmlFacts::default()
        };
    };
    // The driver may still load after a boot: the first read only warns.
    let second = |change: &dyn Fn(&mut Facts)| {
        let mut facts = healthy();
        change(&mut facts);
        let mut node = Node::new("");
        let first = node.look(&facts).findings;
        assert!(!first.iter().any(|f| f.check == "gpu.driver" && f.drains()), "{first:#?}");
        node.look(&facts)
    };
    let found = second(&mismatch);
    let f = found.findings.iter().find(|f| f.check == "gpu.driver").unwrap();
    is(f, "gpu.driver", "driver", Status::Fail, Action::Reboot);
    assert_eq!(f.fault, Fault::Setup);
    // It names the cause, so it speaks before the driver's silence.
    let reason = healthcheck::verdict::Verdict::worst(&found.findings).unwrap().reason();
    assert!(reason.starts_with("cmx:driver driver upgraded, reboot needed; act=reboot"), "{reason}");

    let found = second(&|f| f.gpu_node.module_version = Reading::Value("580.82.07".into()));
    is(&found.findings[0], "gpu.driver", "driver", Status::Fail, Action::Reboot);
    let found = deep("", |f| {
        mismatch(f);
        nvml(f).refusal_code = 9;
    });
    assert!(found.findings.iter().any(|f| f.check == "gpu.driver" && f.text == "driver not loaded"));
    let found = deep("", |f| {
        mismatch(f);
        nvml(f).refusal_code = 999;
    });
    assert_eq!(status(&found, "gpu.driver"), Status::Unknown);
    quiet("gpu.driver", Status::Unsupported, |f| f.gpu_node.module_version = Reading::Unsupported);
}

#[test]
fn pitfall_26_a_driver_not_loaded_is_no_fault_where_no_gpu_is_expected() {
    let mut facts = healthy();
    *nvml(&mut facts) = NvmlFacts { refused: Some("x".into()), refusal_code: 9, ..NvmlFacts::default() };
    let config = Config::parse("", Path::new("test.toml")).unwrap();
    let found = check::run(&facts, &config, &State::default(), Mode::Deep, 1.0);
    assert_eq!(found.findings, []);
    assert_eq!(status(&found, "gpu.driver"), Status::Unsupported);
}

#[test]
fn sram_threshold() {
    let f = only(|f| d(f).sram_threshold_exceeded = Reading::Value(true));
    is(&f, "gpu.ecc_sram_threshold", "sramlimit", Status::Fail, Action::Repair);
    assert_eq!((f.scope, f.device.unwrap().name.as_str()), (Scope::Device, "g1"));
    unread("gpu.ecc_sram_threshold", |f| &mut d(f).sram_threshold_exceeded);
}

#[test]
fn pitfall_18_corrected_errors_count_by_their_rate_not_since_boot() {
    let mut node = Node::new("");
    let mut facts = healthy();
    // Five million since the driver was loaded, and standing still.
    for _ in 0..10 {
        assert_eq!(node.look(&facts).findings, []);
    }
    // 5,000 a second for a minute.
    let mut last = Vec::new();
    for _ in 0..3 {
        d(&mut facts).ecc_corrected = Reading::Value(*d(&mut facts).ecc_corrected.value().unwrap() + 100_000);
        last = node.look(&facts).findings;
    }
    is(&last[0], "gpu.ecc_ce_rate", "eccrate", Status::Warn, Action::ResetGpu);
    // It ends with the errors, and a driver that counts anew is no rise.
    d(&mut facts).ecc_corrected = Reading::Value(3);
    assert_eq!(node.look(&facts).findings, []);
    unread("gpu.ecc_ce_rate", |f| &mut d(f).ecc_corrected);
}

#[test]
fn a_burst_between_two_quick_passes_is_no_rate() {
    let mut node = Node::new("");
    let mut facts = healthy();
    node.after(&facts, 1.0);
    d(&mut facts).ecc_corrected = Reading::Value(5_030_000);
    assert_eq!(node.after(&facts, 1.0).findings, []);
}

#[test]
fn spare_rows() {
    let spares = |low, none| Reading::Value(RowSpares { max: 2550, low, none, ..RowSpares::default() });
    for (low, none) in [(1, 0), (0, 2)] {
        let f = only(|f| s(f).row_spares = spares(low, none));
        is(&f, "gpu.remap_headroom", "rowspare", Status::Warn, Action::Repair);
    }
    let f = only(|f| s(f).remapped_uncorrectable = Reading::Value(512));
    is(&f, "gpu.remap_headroom", "rowspare", Status::Fail, Action::Repair);
    quiet("gpu.remap_headroom", Status::Pass, |f| s(f).remapped_uncorrectable = Reading::Value(511));
    unread("gpu.remap_headroom", |f| &mut s(f).row_spares);
}

#[test]
fn repairs() {
    let pending = |f: &mut Facts| {
        d(f).repair = Reading::Value(RepairFlags { channel_pending: true, tpc_pending: false });
    };
    let f = only(pending);
    is(&f, "gpu.repair_pending", "repair", Status::Fail, Action::ResetGpu);
    let f = only(|f| d(f).unrepairable_memory = Reading::Value(true));
    is(&f, "gpu.repair_pending", "memdead", Status::Fail, Action::Repair);
    // A job that holds the GPU may finish; the next one may not start.
    let mut facts = healthy();
    pending(&mut facts);
    facts.jobs = vec![JobHere { job: "7".into(), gpus: vec![1], ..JobHere::default() }];
    for (mode, wanted) in
        [(Mode::Periodic, Status::Warn), (Mode::Prolog, Status::Fail), (Mode::Epilog, Status::Fail)]
    {
        let found = Node { mode, ..Node::new("") }.look(&facts).findings;
        assert_eq!((found.len(), found[0].status), (1, wanted), "{mode:?}");
    }
    unread("gpu.repair_pending", |f| &mut d(f).repair);
}

#[test]
fn retired_pages() {
    let pages = |single_bit, double_bit, double_bit_last_week, pending| {
        Reading::Value(RetiredPages { single_bit, double_bit, double_bit_last_week, pending })
    };
    for (reading, action) in [
        (pages(60, 3, 0, false), Action::Repair),
        (pages(0, 16, 2, false), Action::Repair),
        (pages(1, 0, 0, true), Action::Reboot),
    ] {
        let f = only(|f| s(f).retired_pages = reading);
        is(&f, "gpu.retired_pages", "retired", Status::Fail, action);
    }
    quiet("gpu.retired_pages", Status::Pass, |f| s(f).retired_pages = pages(0, 16, 1, false));
    unread("gpu.retired_pages", |f| &mut s(f).retired_pages);
}

#[test]
fn inforom() {
    let f = only(|f| s(f).inforom_valid = Reading::Value(false));
    is(&f, "gpu.inforom", "inforom", Status::Warn, Action::Repair);
    unread("gpu.inforom", |f| &mut s(f).inforom_valid);
}

#[test]
fn nvlink_speed() {
    let slow = |speed| {
        move |f: &mut Facts| {
            if let Reading::Value(speeds) = &mut s(f).nvlink_speeds {
                speeds.insert(3, speed);
            }
        }
    };
    let f = only(slow(13_281));
    is(&f, "gpu.nvlink_speed", "nvspeed", Status::Warn, Action::ResetGpu);
    assert!(f.evidence.contains("link 3 runs at 13281"), "{}", f.evidence);
    quiet("gpu.nvlink_speed", Status::Pass, slow(25_300));
    unread("gpu.nvlink_speed", |f| &mut s(f).nvlink_speeds);
    // Without an expectation there is nothing to compare with.
    let config = Config::parse("[profile]\ngpu_count = 2\n", Path::new("x")).unwrap();
    let found = check::run(&healthy(), &config, &State::default(), Mode::Deep, 1.0);
    assert_eq!(status(&found, "gpu.nvlink_speed"), Status::Unsupported);
}

#[test]
fn nvlink_errors_warn_by_rate_and_fail_when_they_last() {
    let mut node = Node::new("");
    let mut facts = healthy();
    node.look(&facts);
    // One burst, seen by several quick passes, is a warning for a minute and never a drain.
    let bump = |facts: &mut Facts, n| {
        if let Reading::Value(e) = &mut d(facts).nvlink_errors {
            e.recovery += n;
            e.links = vec![4];
        }
    };
    bump(&mut facts, 1000);
    for _ in 0..6 {
        let found = node.after(&facts, 5.0).findings;
        is(&found[0], "gpu.nvlink_errors", "nverrors", Status::Warn, Action::Repair);
    }
    assert_eq!(node.after(&facts, 120.0).findings, [], "over");
    // Two a minute for twelve minutes.
    let mut last = Vec::new();
    for _ in 0..24 {
        bump(&mut facts, 1);
        last = node.after(&facts, 30.0).findings;
    }
    is(&last[0], "gpu.nvlink_errors", "nverrors", Status::Fail, Action::Repair);
    assert!(last[0].evidence.contains("links with errors since driver load: 4"), "{}", last[0].evidence);
    unread("gpu.nvlink_errors", |f| &mut d(f).nvlink_errors);
}

/// A HealthCheckProgram that Slurm starts every five minutes sees nothing in between.
#[test]
fn lasting_nvlink_errors_fail_where_reads_are_five_minutes_apart() {
    for (pauses, fails) in [(12, true), (1, false)] {
        let mut node = Node::new("");
        let mut facts = healthy();
        for _ in 0..5 {
            node.after(&facts, 300.0);
        }
        let mut found = Vec::new();
        for pause in 0..12 {
            if pause < pauses
                && let Reading::Value(e) = &mut d(&mut facts).nvlink_errors
            {
                e.recovery += 20;
                e.links = vec![4];
            }
            found.extend(node.after(&facts, 300.0).findings);
        }
        assert!(!found.is_empty());
        assert_eq!(found.iter().any(|f| f.status == Status::Fail), fails, "{pauses}: {found:#?}");
    }
}

#[test]
fn an_nvlink_bit_error_rate_fails_while_errors_are_added() {
    let mut facts = healthy();
    let mut node = Node::new("");
    let set = |facts: &mut Facts, rate, crc| {
        let errors = NvlinkErrors { worst_ber: Some((2, rate)), crc, ..NvlinkErrors::default() };
        d(facts).nvlink_errors = Reading::Value(errors);
    };
    set(&mut facts, 1.5e-254, 0);
    assert_eq!(node.look(&facts).findings, []);
    let mut last = Vec::new();
    for n in 1..40 {
        set(&mut facts, 3e-7, n * 50);
        last = node.look(&facts).findings;
        assert!(n > 30 || last[0].status == Status::Warn, "not before ten minutes");
    }
    is(&last[0], "gpu.nvlink_errors", "nverrors", Status::Fail, Action::Repair);
    assert_eq!(last[0].text, "NVLink errors: bit error rate 3e-7 on link 2");
    // The burst is over; what is left of it in the rate only warns.
    for _ in 0..40 {
        last = node.look(&facts).findings;
    }
    assert_eq!(last[0].status, Status::Warn);
}

fn fabric(state: u32, status: u32, mask: u32) -> Reading<Fabric> {
    Reading::Value(Fabric { state, status, health_mask: Some(mask), ..Fabric::default() })
}

#[test]
fn fabric_state() {
    for (state, status) in [(1, 0), (2, 0), (3, 999)] {
        let f = only(|f| d(f).fabric = fabric(state, status, 0));
        is(&f, "gpu.fabric_state", "fabric", Status::Fail, Action::RestartService);
    }
    unread("gpu.fabric_state", |f| &mut d(f).fabric);
    // A driver without the mask says less, and that is all.
    quiet("gpu.fabric_state", Status::Pass, |f| {
        d(f).fabric = Reading::Value(Fabric { state: 3, ..Fabric::default() });
    });
}

#[test]
fn fabric_health_needs_three_reads() {
    for (mask, what) in [
        (0x1a9, "bandwidth degraded"),
        (0x19a, "route unhealthy"),
        (0x16a, "access time-out under recovery"),
        (0x2aa, "wrong configuration"),
    ] {
        let mut facts = healthy();
        d(&mut facts).fabric = fabric(3, 0, mask);
        let mut node = Node::new("");
        for wanted in [Status::Warn, Status::Warn, Status::Fail] {
            let found = node.look(&facts).findings;
            assert_eq!(found.len(), 1, "{found:#?}");
            assert_eq!((found[0].token.as_str(), found[0].status), ("fabhealth", wanted), "{what}");
            assert!(found[0].text.contains(what));
        }
    }
    let mut facts = healthy();
    d(&mut facts).fabric = fabric(3, 0, 0x1a6);
    let mut node = Node::new("");
    for _ in 0..5 {
        assert_eq!(node.look(&facts).findings[0].status, Status::Warn, "a route under recovery is no fault");
    }
}

#[test]
fn pitfall_13_links_and_fabric_may_train_after_boot() {
    let mut facts = healthy();
    facts.uptime = 60.0;
    d(&mut facts).fabric = fabric(2, 0, 0);
    nvml(&mut facts).gpus[1].nvlinks = Reading::Value((0..18).map(|l| (l, false)).collect());
    s(&mut facts).nvlink_speeds = Reading::Unsupported;
    let mut node = Node { mode: Mode::Periodic, ..Node::new("") };
    for _ in 0..5 {
        let found = node.look(&facts).findings;
        assert!(!found.is_empty() && found.iter().all(|f| f.status == Status::Warn), "{found:#?}");
    }
    // Long after boot the fabric's own fault drains, and the links that wait for it do not.
    facts.uptime = 100_000.0;
    let found = node.look(&facts).findings;
    let drains: Vec<&str> = found.iter().filter(|f| f.drains()).map(|f| f.check.as_str()).collect();
    assert_eq!(drains, ["gpu.fabric_state"]);
}

#[test]
fn pitfall_14_imex_is_looked_at_only_where_the_profile_needs_it() {
    quiet("gpu.imex", Status::Unsupported, |f| {
        f.gpu_node.imex = Some(Reading::Value("UNAVAILABLE".into()));
    });
    let ready = |f: &mut Facts| {
        f.gpu_node.imex = Some(Reading::Value("READY".into()));
        f.gpu_node.imex_channels = true;
    };
    let found = deep("imex = true\n", ready);
    assert_eq!((found.findings.len(), status(&found, "gpu.imex")), (0, Status::Pass));
    for (state, channels) in [("UNAVAILABLE", true), ("READY", false)] {
        let mut facts = healthy();
        facts.gpu_node.imex = Some(Reading::Value(state.into()));
        facts.gpu_node.imex_channels = channels;
        let mut node = Node::new("imex = true\n");
        assert_eq!(node.look(&facts).findings[0].status, Status::Warn);
        let found = node.look(&facts).findings;
        is(&found[0], "gpu.imex", "imex", Status::Fail, Action::RestartService);
    }
    let f = only_with("imex = true\n", |f| f.gpu_node.imex = Some(Reading::Hung("no answer in time".into())));
    assert_eq!((f.check.as_str(), f.status), ("gpu.imex", Status::Unknown));
}

#[test]
fn pitfall_15_the_fabric_speaks_first_and_the_service_second() {
    let service =
        |load: &str, active: &str| Some(Reading::Value(Service { load: load.into(), active: active.into() }));
    // The fabric is complete: whatever the service does, and whatever the GPU is called.
    quiet("gpu.fabricmanager", Status::Pass, |f| f.gpu_node.fabric_manager = service("loaded", "failed"));
    // A tray without NVSwitches on its bus has no local manager.
    let no_switch = |f: &mut Facts| {
        if let Reading::Value(p) = &mut f.pci {
            p.switches.clear();
        }
    };
    quiet("gpu.fabricmanager", Status::Unsupported, |f| {
        no_switch(f);
        f.gpu_node.fabric_manager = service("loaded", "inactive");
    });
    // GPUs that do not tell of their fabric (A100).
    let untold = |f: &mut Facts| {
        for g in &mut nvml(f).gpus {
            g.details.as_mut().unwrap().fabric = Reading::Unsupported;
        }
    };
    for active in ["failed", "inactive"] {
        let mut facts = healthy();
        untold(&mut facts);
        facts.gpu_node.fabric_manager = service("loaded", active);
        let mut node = Node::new("");
        assert_eq!(node.look(&facts).findings[0].status, Status::Warn, "it may be restarting");
        let found = node.look(&facts).findings;
        is(&found[0], "gpu.fabricmanager", "fabricmgr", Status::Fail, Action::RestartService);
        assert_eq!(found[0].device, None);
    }
    for (load, active, wanted) in
        [("loaded", "active", Status::Pass), ("not-found", "inactive", Status::Unsupported)]
    {
        quiet("gpu.fabricmanager", wanted, |f| {
            untold(f);
            f.gpu_node.fabric_manager = service(load, active);
        });
    }
    quiet("gpu.fabricmanager", Status::Unsupported, untold);
    let f = only(|f| {
        untold(f);
        f.gpu_node.fabric_manager = Some(Reading::Hung("no answer in time".into()));
    });
    assert_eq!((f.check.as_str(), f.status), ("gpu.fabricmanager", Status::Unknown));
    let f = only_with("fabric_manager = true\n", |f| {
        no_switch(f);
        untold(f);
        f.gpu_node.fabric_manager = service("not-found", "inactive");
    });
    assert_eq!((f.check.as_str(), f.text.as_str()), ("gpu.fabricmanager", "fabric manager is not-found"));
}

#[test]
fn pitfall_16_what_this_release_does_not_know_of_is_unsupported_not_a_fault() {
    // A GPU of a later architecture, whose functions answer "not supported" and whose fabric is in a new state.
    let found = deep("", |f| {
        *d(f) = GpuDetails {
            architecture: Reading::Value(99),
            fabric: fabric(0, 3, 0),
            sram_threshold_exceeded: Reading::Unsupported,
            repair: Reading::Unsupported,
            mig_mode: Reading::Unsupported,
            application_clock: Reading::Unsupported,
            nvlink_errors: Reading::Unsupported,
            ..details()
        };
    });
    assert_eq!(found.findings, []);
}

#[test]
fn c2c() {
    let link = |up, errors| Reading::Value(C2c { links: [(0, true), (1, up)].into(), errors });
    let mut node = Node::new("");
    let mut facts = healthy();
    d(&mut facts).c2c = link(true, 9);
    assert_eq!(node.look(&facts).findings, [], "errors since driver load are none now");
    d(&mut facts).c2c = link(true, 12);
    let found = node.look(&facts).findings;
    is(&found[0], "gpu.c2c", "c2c", Status::Warn, Action::Reboot);
    assert!(found[0].text.starts_with("3 C2C errors"));
    d(&mut facts).c2c = link(false, 12);
    assert_eq!(node.look(&facts).findings[0].status, Status::Warn, "first read");
    is(&node.look(&facts).findings[0], "gpu.c2c", "c2c", Status::Fail, Action::Reboot);
    unread("gpu.c2c", |f| &mut d(f).c2c);
}

#[test]
fn pcie_replays() {
    let mut node = Node::new("");
    let mut facts = healthy();
    node.look(&facts);
    // 16 lanes of generation 5: 30.72 a minute.
    for (rise, found) in [(30, 0), (31, 1)] {
        d(&mut facts).pcie_replays = Reading::Value(*d(&mut facts).pcie_replays.value().unwrap() + rise);
        let f = node.after(&facts, 60.0).findings;
        assert_eq!(f.len(), found, "{f:#?}");
        if let Some(f) = f.first() {
            is(f, "gpu.pcie_replay", "pciereplay", Status::Warn, Action::Repair);
        }
    }
    unread("gpu.pcie_replay", |f| &mut d(f).pcie_replays);
}

#[test]
fn pitfall_20_a_power_brake_warns_after_three_reads_and_never_drains() {
    let mut node = Node::new("");
    let mut facts = healthy();
    d(&mut facts).clock_events = Reading::Value(0x88);
    assert_eq!(node.look(&facts).findings, []);
    assert_eq!(node.look(&facts).findings, []);
    for _ in 0..20 {
        let found = node.look(&facts).findings;
        is(&found[0], "gpu.throttle", "throttle", Status::Warn, Action::Repair);
        assert!(found[0].evidence.contains("external power brake, hardware slowdown"));
    }
    // Idle, the power cap and a setting are everyday. (A setting is gpu.clocks_setting's.)
    d(&mut facts).clock_events = Reading::Value(0x5);
    for _ in 0..5 {
        assert_eq!(node.look(&facts).findings, []);
    }
    unread("gpu.throttle", |f| &mut d(f).clock_events);
}

#[test]
fn heat_for_most_of_ten_minutes_fails() {
    let run = |share: f64| {
        let mut node = Node::new("");
        let mut facts = healthy();
        let mut last = Vec::new();
        for pass in 0..40_u32 {
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "far below 2^63")]
            let ns = (f64::from(pass) * 20.0 * share * 1e9) as u64;
            d(&mut facts).thermal_ns = Reading::Value(ns);
            last = node.look(&facts).findings;
            assert!(pass > 25 || last.is_empty(), "not before ten minutes were watched");
        }
        last
    };
    assert_eq!(run(0.5), []);
    let found = run(0.7);
    is(&found[0], "gpu.throttle", "thermal", Status::Fail, Action::Repair);
    assert_eq!(found[0].scope, Scope::Device);
}

#[test]
fn heat_of_an_idle_gpu() {
    let warns = |change: &dyn Fn(&mut Facts)| {
        let mut facts = healthy();
        change(&mut facts);
        let mut node = Node::new("");
        assert_eq!(node.look(&facts).findings, [], "a job has just ended");
        assert_eq!(node.look(&facts).findings, []);
        node.look(&facts).findings.into_iter().next()
    };
    for change in
        [&(|f: &mut Facts| nvml(f).gpus[1].temperature = Reading::Value(61)) as &dyn Fn(&mut Facts), &|f| {
            d(f).power_mw = Reading::Value(151_000)
        }]
    {
        is(&warns(change).unwrap(), "gpu.idle_heat", "idleheat", Status::Warn, Action::None);
    }
    // Blackwell draws more, and more still beside a Grace CPU.
    for (c2c, watts, found) in
        [(false, 240, false), (false, 260, true), (true, 290, false), (true, 310, true)]
    {
        let change = |f: &mut Facts| {
            d(f).architecture = Reading::Value(10);
            d(f).power_mw = Reading::Value(watts * 1000);
            if c2c {
                d(f).c2c = Reading::Value(C2c { links: [(0, true)].into(), errors: 0 });
            }
        };
        assert_eq!(warns(&change).is_some(), found, "{watts} W, Grace {c2c}");
    }
    // With a process, or in a job's hands, it is not idle.
    let process = GpuProcess { pid: 1, owner: Owner::Job("7".into()), name: "a".into() };
    let busy = |f: &mut Facts| {
        nvml(f).gpus[1].temperature = Reading::Value(80);
        d(f).processes = Reading::Value(vec![process.clone()]);
    };
    assert_eq!(warns(&busy), None);
    let held = |f: &mut Facts| {
        nvml(f).gpus[1].temperature = Reading::Value(80);
        f.jobs = vec![JobHere { job: "7".into(), gpus: vec![1], ..JobHere::default() }];
    };
    assert_eq!(warns(&held), None);
    let f = only(|f| d(f).power_mw = Reading::Unknown("x".into()));
    assert_eq!((f.check.as_str(), f.status), ("gpu.idle_heat", Status::Unknown));
}

#[test]
fn pitfall_21_a_link_at_generation_1_and_idle_clocks_are_no_fault() {
    quiet("gpu.pcie_replay", Status::Pass, |f| d(f).pcie_lanes = Reading::Value(16));
    let found = deep("", |f| d(f).clock_events = Reading::Value(0x1));
    assert_eq!(found.findings, []);
}

#[test]
fn pitfall_25_persistence_off_warns_and_never_fails_a_job() {
    let off = |f: &mut Facts| d(f).persistence = Reading::Value(false);
    let f = only(off);
    is(&f, "gpu.persistence", "persist", Status::Warn, Action::RestartService);
    let mut facts = healthy();
    off(&mut facts);
    assert_eq!(Node { mode: Mode::Prolog, ..Node::new("") }.look(&facts).findings, []);
    unread("gpu.persistence", |f| &mut d(f).persistence);
}

#[test]
fn modes() {
    let set = |current, pending| Reading::Value(Setting { current, pending });
    for (change, token, wanted) in [
        (&(|f: &mut Facts| d(f).ecc_mode = set(true, false)) as &dyn Fn(&mut Facts), "eccmode", Status::Fail),
        (&|f| d(f).ecc_mode = set(false, false), "eccmode", Status::Warn),
        (&|f| d(f).mig_mode = set(false, true), "migmode", Status::Fail),
        (&|f| d(f).mig_mode = set(true, true), "migmode", Status::Fail),
        (&|f| d(f).compute_mode = Reading::Value("prohibited".into()), "compmode", Status::Warn),
    ] {
        let f = only(change);
        is(&f, "gpu.modes", token, wanted, Action::ResetGpu);
        assert_eq!(f.fault, Fault::Setup);
        // Not under a job that runs.
        let mut facts = healthy();
        change(&mut facts);
        facts.jobs = vec![JobHere { job: "7".into(), gpus: vec![0, 1], ..JobHere::default() }];
        let found = Node { mode: Mode::Periodic, ..Node::new("") }.look(&facts).findings;
        assert_eq!((found.len(), found[0].status), (1, Status::Warn));
    }
    let f = only(|f| d(f).mig_mode = Reading::Unknown("x".into()));
    assert_eq!((f.check.as_str(), f.status), ("gpu.modes", Status::Unknown));
    // Without a profile nothing is wanted, and only a change that waits is a fault.
    let config = Config::parse("[profile]\ngpu_count = 2\n", Path::new("x")).unwrap();
    let mut facts = healthy();
    d(&mut facts).mig_mode = set(true, true);
    d(&mut facts).ecc_mode = set(false, false);
    let found = check::run(&facts, &config, &State::default(), Mode::Prolog, 1.0);
    assert_eq!(found.findings, []);
}

#[test]
fn pitfall_22_a_gpu_in_mig_mode_is_judged_as_a_whole_and_not_by_what_it_cannot_tell() {
    let mut facts = healthy();
    for g in &mut nvml(&mut facts).gpus {
        let d = g.details.as_mut().unwrap();
        d.mig_mode = Reading::Value(Setting { current: true, pending: true });
        d.processes = Reading::Unsupported;
        d.application_clock = Reading::Unsupported;
    }
    // CUDA shows instances, not GPUs.
    facts.gpu_node.usable = Some(Reading::Value(BTreeMap::new()));
    let mut node = Node {
        config: Config::parse("[profile]\ngpu_count = 2\n[profile.gpu]\nmig = true\n", Path::new("x"))
            .unwrap(),
        ..Node::new("")
    };
    let found = node.look(&facts);
    assert_eq!(found.findings, []);
    // A fault of reset class is the whole GPU's.
    d(&mut facts).repair = Reading::Value(RepairFlags { channel_pending: true, tpc_pending: false });
    let f = &node.look(&facts).findings[0];
    assert_eq!((f.device.as_ref().unwrap().name.as_str(), f.action), ("g1", Action::ResetGpu));
}

#[test]
fn pitfall_44_a_gpu_that_supports_nothing_is_not_unhealthy() {
    // What a consumer board answers: "N/A" to nearly everything.
    let found = deep("", |f| {
        for g in &mut nvml(f).gpus {
            let none = GpuDetails {
                architecture: Reading::Value(8),
                sram_threshold_exceeded: Reading::Unsupported,
                ecc_corrected: Reading::Unsupported,
                repair: Reading::Unsupported,
                unrepairable_memory: Reading::Unsupported,
                fabric: Reading::Unsupported,
                nvlink_errors: Reading::Unsupported,
                c2c: Reading::Unsupported,
                pcie_replays: Reading::Unsupported,
                ecc_mode: Reading::Unsupported,
                mig_mode: Reading::Unsupported,
                application_clock: Reading::Unsupported,
                default_application_clock: Reading::Unsupported,
                ..details()
            };
            g.details = Some(Box::new(none));
            g.survey = Some(Box::new(GpuSurvey {
                row_spares: Reading::Unsupported,
                remapped_uncorrectable: Reading::Unsupported,
                retired_pages: Reading::Unsupported,
                inforom_valid: Reading::Unsupported,
                nvlink_speeds: Reading::Unsupported,
                vbios: Reading::Unsupported,
                gsp: Reading::Unsupported,
                busy_percent: Reading::Unsupported,
            }));
        }
    });
    assert_eq!(found.findings, []);
    for check in ["gpu.ecc_sram_threshold", "gpu.remap_headroom", "gpu.fabric_state", "gpu.firmware"] {
        assert_eq!(status(&found, check), Status::Unsupported, "{check}");
    }
}

#[test]
fn clocks_and_power_limits() {
    let f = only(|f| d(f).power_limit_mw = Reading::Value(500_000));
    is(&f, "gpu.clocks_setting", "powerlimit", Status::Warn, Action::None);
    assert!(f.mend.contains("-pl 700"));
    let f = only(|f| d(f).application_clock = Reading::Value(1200));
    is(&f, "gpu.clocks_setting", "clocks", Status::Warn, Action::None);
    let f = only(|f| d(f).clock_events = Reading::Value(0x2));
    is(&f, "gpu.clocks_setting", "clocks", Status::Warn, Action::None);
    // Without a profile the board's own default counts.
    let config = Config::parse("[profile]\ngpu_count = 2\n", Path::new("x")).unwrap();
    let mut facts = healthy();
    d(&mut facts).power_limit_mw = Reading::Value(500_000);
    let found = check::run(&facts, &config, &State::default(), Mode::Epilog, 1.0);
    assert_eq!(found.findings.len(), 1);
    unread("gpu.clocks_setting", |f| &mut d(f).power_limit_mw);
}

fn process(pid: u32, owner: Owner) -> GpuProcess {
    GpuProcess { pid, owner, name: "python3".into() }
}

#[test]
fn leftovers() {
    let on_gpu =
        |owner: Owner| move |f: &mut Facts| d(f).processes = Reading::Value(vec![process(4242, owner)]);
    // A job that this node knows to have ended.
    let mut facts = healthy();
    on_gpu(Owner::Job("7".into()))(&mut facts);
    facts.gpu_node.ended_jobs = vec!["7".into()];
    let mut node = Node { mode: Mode::Epilog, ..Node::new("") };
    let found = node.look(&facts).findings;
    assert_eq!(
        (found[0].check.as_str(), found[0].status),
        ("gpu.leftover", Status::Warn),
        "it may be ending"
    );
    node.mode = Mode::Prolog;
    let found = node.look(&facts).findings;
    is(&found[0], "gpu.leftover", "leftover", Status::Fail, Action::Reboot);
    assert_eq!((found[0].scope, found[0].fault), (Scope::Device, Fault::Program));
    assert!(found[0].evidence.contains("pid 4242 (python3) of ended job 7"), "{}", found[0].evidence);
    // The epilog's own job has ended, although its file is still there.
    let mut facts = healthy();
    on_gpu(Owner::Job("8".into()))(&mut facts);
    facts.jobs = vec![JobHere { job: "8".into(), gpus: vec![1], ..JobHere::default() }];
    facts.own_job = Some("8".into());
    let mut node = Node { mode: Mode::Epilog, ..Node::new("") };
    node.look(&facts);
    assert_eq!(node.look(&facts).findings[0].status, Status::Fail);
    // Whether it is idle is not known either.
    let found = deep("", |f| d(f).processes = Reading::Unknown("x".into())).findings;
    let checks: Vec<&str> = found.iter().map(|f| f.check.as_str()).collect();
    assert_eq!(checks, ["gpu.idle_heat", "gpu.leftover"]);
    assert!(found.iter().all(|f| f.status == Status::Unknown && !f.drains()));
}

#[test]
fn pitfall_23_processes_of_running_and_unknown_jobs_are_left_alone() {
    for (owner, jobs) in [
        // A second job of the same user runs on.
        (Owner::Job("9".into()), vec![JobHere { job: "9".into(), gpus: vec![1], ..JobHere::default() }]),
        // It began before this suite was installed.
        (Owner::Job("5".into()), Vec::new()),
        // Without control groups nothing tells a job's process from another; the GPU is a job's.
        (Owner::NoJob, vec![JobHere { job: "9".into(), gpus: vec![1], ..JobHere::default() }]),
        (Owner::Unknown, Vec::new()),
    ] {
        let mut facts = healthy();
        d(&mut facts).processes = Reading::Value(vec![process(1, owner)]);
        facts.jobs = jobs;
        facts.own_job = Some("8".into());
        let mut node = Node { mode: Mode::Epilog, ..Node::new("") };
        for _ in 0..4 {
            assert_eq!(node.look(&facts).findings, []);
        }
    }
}

#[test]
fn a_process_outside_of_all_jobs_warns_after_two_reads() {
    for owner in [Owner::NoJob, Owner::Gone] {
        let mut facts = healthy();
        d(&mut facts).processes = Reading::Value(vec![process(1, owner)]);
        let mut node = Node { mode: Mode::Prolog, ..Node::new("") };
        assert_eq!(node.look(&facts).findings, []);
        is(&node.look(&facts).findings[0], "gpu.leftover", "strayproc", Status::Warn, Action::None);
    }
}

#[test]
fn mps_daemons() {
    let with = |owner: Owner| {
        move |f: &mut Facts| {
            f.gpu_node.mps = Some(Reading::Value(vec![process(40, owner)]));
            f.gpu_node.ended_jobs = vec!["7".into()];
        }
    };
    for owner in [Owner::NoJob, Owner::Job("7".into())] {
        let f = only(with(owner));
        is(&f, "gpu.mps", "mps", Status::Warn, Action::RestartService);
    }
    quiet("gpu.mps", Status::Pass, with(Owner::Job("9".into())));
    let found = deep("mps = true\n", with(Owner::NoJob));
    assert_eq!(found.findings, []);
    quiet("gpu.mps", Status::Unsupported, |f| f.gpu_node.mps = None);
    let f = only(|f| f.gpu_node.mps = Some(Reading::Unknown("x".into())));
    assert_eq!((f.check.as_str(), f.status), ("gpu.mps", Status::Unknown));
}

#[test]
fn firmware() {
    let other = |f: &mut Facts| s(f).vbios = Reading::Value("96.00.99.00.01".into());
    let f = only_with("[profile.gpu.firmware]\nvbios = \"96.00.89.00.01\"\n", other);
    is(&f, "gpu.firmware", "firmware", Status::Warn, Action::Repair);
    assert_eq!(f.device.as_ref().unwrap().index, Some(1));
    let f = only_with("[profile.gpu.firmware]\nvbios = \"96.00.89.00.01\"\nstrict = true\n", other);
    is(&f, "gpu.firmware", "firmware", Status::Fail, Action::Repair);
    // Without a release in the profile all must be the same.
    let mut facts = healthy();
    let third = gpu(2);
    nvml(&mut facts).gpus.push(third);
    nvml(&mut facts).count = 3;
    other(&mut facts);
    let found = Node::new("").look(&facts).findings;
    let own: Vec<_> = found.iter().filter(|f| f.check == "gpu.firmware").collect();
    assert_eq!((own.len(), own[0].device.as_ref().unwrap().index), (1, Some(1)), "{own:#?}");
    let f = only_with("[profile.gpu.firmware]\ndriver = \"580.82.07\"\n", |_| {});
    is(&f, "gpu.firmware", "firmware", Status::Warn, Action::Repair);
    assert_eq!(f.device, None);
    quiet("gpu.firmware", Status::Unsupported, |f| {
        for g in &mut nvml(f).gpus {
            let s = g.survey.as_mut().unwrap();
            (s.vbios, s.gsp) = (Reading::Unsupported, Reading::Unsupported);
        }
    });
}

#[test]
fn usable() {
    let set = |answer: Usable| {
        move |f: &mut Facts| {
            if let Some(Reading::Value(all)) = &mut f.gpu_node.usable {
                all.insert(pci(1), answer);
            }
        }
    };
    let f = only(set(Usable::Fails("cuCtxCreate_v2 failed: CUDA error 214".into())));
    is(&f, "gpu.usable", "cuda", Status::Fail, Action::ResetGpu);
    let f = only(set(Usable::Hangs("no answer in time".into())));
    is(&f, "gpu.usable", "cuda", Status::Fail, Action::Reboot);
    // In a compute mode that lets nobody in.
    let f =
        only(set(Usable::Fails("cuCtxCreate_v2 failed: CUDA error 46 (device busy or unavailable)".into())));
    assert_eq!(f.status, Status::Unknown);
    // CUDA does not start at all.
    let f = only(|f| {
        let all = BTreeMap::from([(String::new(), Usable::Fails("cuInit failed: CUDA error 802".into()))]);
        f.gpu_node.usable = Some(Reading::Value(all));
    });
    is(&f, "gpu.usable", "cuda", Status::Fail, Action::Reboot);
    assert_eq!((f.device, f.scope), (None, Scope::Node));
    // NVML has two, CUDA shows one.
    let f = only(|f| {
        if let Some(Reading::Value(all)) = &mut f.gpu_node.usable {
            all.remove(&pci(1));
        }
    });
    assert_eq!((f.text.as_str(), f.device.unwrap().index), ("CUDA does not show it", Some(1)));
    quiet("gpu.usable", Status::Unsupported, |f| f.gpu_node.usable = Some(Reading::Unsupported));
    quiet("gpu.usable", Status::Unsupported, |f| f.gpu_node.usable = None);
    let f = only(|f| f.gpu_node.usable = Some(Reading::Hung("no answer in time".into())));
    assert_eq!((f.check.as_str(), f.status), ("gpu.usable", Status::Unknown));
}

/// An event that was told before.
fn told(seq: u32, seen: f64, text: &str, count: u64) -> SeenEvent {
    let line = format!("3,{seq},{seq},-;NVRM: Xid (PCI:3a1c:19:00): {text}");
    let event = xid::events(&parse_record(line.as_bytes()).unwrap()).into_iter().next().expect("an event");
    SeenEvent { key: seq.to_string(), event, count, seen, handled: true }
}

fn repeats(events: Vec<SeenEvent>) -> Vec<Finding> {
    let found = deep("", |f| f.kernel = Reading::Value(KernelFacts { events, ..KernelFacts::default() }));
    found.findings.into_iter().filter(|f| f.check == "gpu.xid_repeat").collect()
}

#[test]
fn xids_that_come_back() {
    let mmu = |pid: u32| format!("31, pid={pid}, name=python3, Ch 0000000e, intr 00000000. MMU Fault");
    let warp = |pid: u32, tpc: u32| {
        format!("13, pid={pid}, name=python3, Graphics SM Warp Exception on (GPC 1, TPC {tpc}, SM 0): x")
    };
    let found = repeats(vec![told(1, 0.0, &mmu(10), 1), told(2, 1000.0, &mmu(20), 1)]);
    is(&found[0], "gpu.xid_repeat", "xidrepeat", Status::Warn, Action::None);
    assert_eq!(found[0].device.as_ref().unwrap().index, Some(1));
    // The ranks of one job fail together; one program may fail again and again.
    assert_eq!(repeats(vec![told(1, 0.0, &mmu(10), 1), told(2, 5.0, &mmu(20), 1)]), []);
    assert_eq!(repeats(vec![told(1, 0.0, &mmu(10), 9), told(2, 5000.0, &mmu(10), 9)]), []);
    // Xid 13 counts where it happened.
    assert_eq!(repeats(vec![told(1, 0.0, &warp(10, 2), 1), told(2, 1000.0, &warp(20, 3), 1)]), []);
    let found = repeats(vec![told(1, 0.0, &warp(10, 2), 1), told(2, 1000.0, &warp(20, 2), 1)]);
    assert!(found[0].text.contains("Xid 13 in several programs at GPC 1 TPC 2"), "{}", found[0].text);
    let contained = "94, pid=7, name=a, Contained: CE User Channel (0x9). RST: No, D-RST: No";
    assert_eq!(repeats(vec![told(1, 0.0, contained, 2)]), []);
    assert!(
        repeats(vec![told(1, 0.0, contained, 2), told(2, 9.0, contained, 1)])[0].text.contains("3 times")
    );
    let link = "74, pid='<unknown>', name=<unknown>, NVLink: fatal error detected on link 14(0x30, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)";
    assert_eq!(repeats(vec![told(1, 0.0, link, 2)]), []);
    assert!(repeats(vec![told(1, 0.0, link, 3)])[0].text.contains("3 times on link 14"));
    let found = deep("", |f| f.kernel = Reading::Unknown("no kernel log".into()));
    assert_eq!(status(&found, "gpu.xid_repeat"), Status::Unknown);
}

#[test]
fn pitfall_11_a_fault_of_state_is_over_when_the_state_is() {
    let mut node = Node::new("");
    let mut facts = healthy();
    d(&mut facts).repair = Reading::Value(RepairFlags { channel_pending: true, tpc_pending: false });
    assert_eq!(node.look(&facts).findings.len(), 1);
    assert_eq!(node.look(&healthy()).findings, [], "the GPU was reset");
}

#[test]
fn a_lost_gpu_is_left_to_the_checks_that_name_the_loss() {
    let found = deep("", |f| {
        nvml(f).gpus[1] = NvmlGpu { index: 1, lost: true, ..NvmlGpu::default() };
        f.gpu_node.usable = None;
    });
    let checks: Vec<&str> = found.findings.iter().map(|f| f.check.as_str()).collect();
    assert_eq!(checks, ["gpu.count"]);
}

#[test]
fn a_wrong_compute_mode_in_the_profile_is_refused() {
    let e = Config::parse("[profile.gpu]\ncompute_mode = \"shared\"\n", Path::new("x.toml")).unwrap_err();
    assert!(e.to_string().contains("profile.gpu.compute_mode = \"shared\": give one of default"), "{e}");
}
