//! Every check's rule as a table: facts in, findings out. No machine is needed.

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
    CommandResult, Dcgm, DcgmIncident, Facts, IbPort, JobHere, KernelFacts, Mount, NodeFacts, NvmlFacts,
    NvmlGpu, PciFacts, PciGpu, Reading, SeenEvent, Space,
};
use healthcheck::kmsg::parse_record;
use healthcheck::mode::Mode;
use healthcheck::state::{KnownGpu, State};
use healthcheck::verdict::{Action, Finding, Status};
use healthcheck::xid;

const PROFILE: &str = r#"
[profile]
gpu_count = 2
nvlinks_per_gpu = 18
pcie_width = 16
memory_total_kib = 1000000
[[profile.ib_port]]
device = "mlx5_0"
port = 1
rate_gbps = 400.0
[[profile.mount]]
path = "/data"
fstype = "nfs4"
network = true
[[profile.space]]
path = "/tmp"
[[command]]
name = "lustre"
token = "lustre"
path = "/usr/local/sbin/check_lustre"
"#;

fn config() -> Config {
    Config::parse(PROFILE, Path::new("test.toml")).unwrap()
}

fn pci(i: u32) -> String {
    format!("3a1c:{:02x}:00.0", 0x18 + i)
}

fn gpu(i: u32) -> NvmlGpu {
    NvmlGpu {
        index: i,
        minor: Reading::Value(i),
        name: Reading::Value("NVIDIA H100 80GB HBM3".into()),
        uuid: Reading::Value(format!("GPU-{i}")),
        pci: Reading::Value(pci(i)),
        lost: false,
        recovery_action: Reading::Value(0),
        ecc_sram_ue: Reading::Value(0),
        ecc_dram_ue: Reading::Value(0),
        remap_pending: Reading::Value(false),
        remap_failure: Reading::Value(false),
        nvlinks: Reading::Value((0..18).map(|l| (l, true)).collect()),
        temperature: Reading::Value(40),
        slowdown_temperature: Reading::Value(87),
        ..NvmlGpu::default()
    }
}

fn pci_gpu(i: u32) -> PciGpu {
    PciGpu {
        pci: pci(i),
        config_all_ones: Reading::Value(false),
        width: Reading::Value(16),
        max_width: Reading::Value(16),
    }
}

fn healthy() -> Facts {
    Facts {
        boot_id: "boot".into(),
        uptime: 100_000.0,
        pci: Reading::Value(PciFacts {
            gpus: vec![pci_gpu(0), pci_gpu(1)],
            switches: vec!["3a1c:90:00.0".into()],
        }),
        gpu_nodes: Reading::Value(vec![0, 1]),
        nvml: Reading::Value(NvmlFacts {
            driver_version: "570.86.15".into(),
            count: 2,
            gpus: vec![gpu(0), gpu(1)],
            ..NvmlFacts::default()
        }),
        kernel: Reading::Value(KernelFacts::default()),
        ib: Reading::Value(BTreeMap::from([(
            "mlx5_0/1".to_string(),
            IbPort {
                state: Reading::Value(4),
                phys_state: Reading::Value(5),
                link_layer: Reading::Value("InfiniBand".into()),
                rate_gbps: Reading::Value(400.0),
                counters: BTreeMap::from([("link_downed".to_string(), 7)]),
                ..IbPort::default()
            },
        )])),
        node: NodeFacts::absent(),
        mounts: Reading::Value(BTreeMap::from([(
            "/data".to_string(),
            Mount { source: "nas:/x".into(), fstype: "nfs4".into(), writable: true },
        )])),
        mount_probes: BTreeMap::from([("/data".to_string(), Reading::Value(()))]),
        space: BTreeMap::from([(
            "/tmp".to_string(),
            Reading::Value(Space { blocks_percent: 10.0, inodes_percent: Some(1.0) }),
        )]),
        memory_total_kib: Reading::Value(1_000_000),
        commands: BTreeMap::from([(
            "lustre".to_string(),
            Reading::Value(CommandResult { exit: Some(0), line: "ok".into() }),
        )]),
        counters: BTreeMap::new(),
        jobs: Vec::new(),
        complaints: Vec::new(),
        ..Facts::default()
    }
}

fn history() -> State {
    State {
        inventory: (0..2).map(|i| (pci(i), KnownGpu { minor: i, uuid: format!("GPU-{i}") })).collect(),
        ..State::default()
    }
}

fn look(facts: &Facts) -> Findings {
    check::run(facts, &config(), &history(), Mode::Periodic, 1000.0)
}

/// The one finding of a change to healthy facts.
fn only(change: impl FnOnce(&mut Facts)) -> Finding {
    let mut facts = healthy();
    change(&mut facts);
    let found = look(&facts).findings;
    assert_eq!(found.len(), 1, "{found:#?}");
    found.into_iter().next().unwrap()
}

fn nvml(facts: &mut Facts) -> &mut NvmlFacts {
    let Reading::Value(n) = &mut facts.nvml else { panic!("no nvml") };
    n
}

fn event(line: &str, handled: bool) -> SeenEvent {
    let record = parse_record(line.as_bytes()).unwrap();
    let event = xid::events(&record).into_iter().next().expect("an event");
    SeenEvent { key: format!("boot/{}", event.seq), event, count: 1, seen: 1000.0, handled }
}

fn with_event(line: &str) -> impl FnOnce(&mut Facts) {
    let event = event(line, false);
    move |f| f.kernel = Reading::Value(KernelFacts { events: vec![event], ..KernelFacts::default() })
}

#[test]
fn a_healthy_node_has_no_findings_and_every_check_says_so() {
    let found = look(&healthy());
    assert_eq!(found.findings, []);
    for c in &found.checks {
        assert!(matches!(c.status, Status::Pass | Status::Unsupported), "{c:?}");
    }
    let ran: Vec<&str> = found.checks.iter().map(|c| c.check.as_str()).collect();
    for c in healthcheck::catalogue::CATALOGUE.iter().filter(|c| c.modes.contains(&Mode::Periodic)) {
        assert!(ran.contains(&c.id), "{} did not say anything", c.id);
    }
}

#[test]
fn a_lost_gpu_drains_and_names_its_place_even_without_an_answer() {
    let f = only(|f| nvml(f).gpus[1] = NvmlGpu { index: 1, lost: true, ..NvmlGpu::default() });
    assert_eq!((f.check.as_str(), f.token.as_str(), f.drains()), ("gpu.count", "gpulost", true));
    assert_eq!(f.device.unwrap().index, Some(1));
}

#[test]
fn fewer_gpus_than_the_profile_fail_in_every_source() {
    let f = only(|f| {
        nvml(f).count = 1;
        nvml(f).gpus.truncate(1);
    });
    assert!(f.drains() && f.reason().starts_with("cmx:gpucount 1 of 2 GPUs; act=reboot"), "{}", f.reason());
    let f = only(|f| f.gpu_nodes = Reading::Value(vec![0]));
    assert!(f.drains() && f.evidence.contains("/dev shows 1, expected 2"));
    let f = only(|f| {
        f.pci = Reading::Value(PciFacts { gpus: vec![pci_gpu(0)], switches: vec![] });
    });
    assert!(f.drains() && f.evidence.contains("PCI shows 1"));
}

#[test]
fn no_nvml_library_is_a_setup_fault_never_a_skip() {
    let f = only(|f| {
        f.nvml =
            Reading::Value(NvmlFacts { library_missing: Some("cannot load".into()), ..NvmlFacts::default() });
    });
    assert_eq!((f.token.as_str(), f.drains()), ("nvmllib", true));
    // Without GPUs in the profile it is no fault.
    let mut facts = healthy();
    facts.nvml = Reading::Value(NvmlFacts { library_missing: Some("x".into()), ..NvmlFacts::default() });
    facts.pci = Reading::Value(PciFacts::default());
    facts.gpu_nodes = Reading::Value(vec![]);
    let found = check::run(&facts, &Config::default(), &State::default(), Mode::Periodic, 0.0);
    assert_eq!(found.findings, []);
}

#[test]
fn a_driver_that_does_not_start_is_a_fault_at_the_second_look_where_gpus_are_expected() {
    let mut facts = healthy();
    let why = "NVML does not start: NVIDIA driver is not loaded".to_string();
    facts.nvml = Reading::Value(NvmlFacts { refused: Some(why), ..NvmlFacts::default() });
    let mut state = State::default();
    for (now, status) in [(100.0, Status::Warn), (160.0, Status::Fail)] {
        let found = check::run(&facts, &config(), &state, Mode::Prolog, now);
        let f = found.findings.iter().find(|f| f.token == "drvhang").unwrap();
        assert_eq!((f.status, f.drains()), (status, status == Status::Fail), "{f:?}");
        // It counted no GPU, so none is missing.
        assert!(found.findings.iter().all(|f| f.token != "gpucount" || f.status == Status::Unknown));
        state.strikes = found.strikes;
    }
    facts.pci = Reading::Value(PciFacts::default());
    facts.gpu_nodes = Reading::Value(vec![]);
    let found = check::run(&facts, &Config::default(), &State::default(), Mode::Periodic, 0.0);
    assert_eq!(found.findings, [], "no GPUs in the profile");
}

#[test]
fn a_crashing_nvml_library_never_drains_and_never_passes() {
    let mut facts = healthy();
    nvml(&mut facts).gpus.truncate(1);
    nvml(&mut facts).incomplete = Some("its child was ended by a signal after 1 of 2 GPUs".into());
    let mut state = State::default();
    for now in [100.0, 160.0, 220.0] {
        let found = check::run(&facts, &config(), &state, Mode::Periodic, now);
        assert_eq!(found.findings.len(), 1);
        assert_eq!(
            (found.findings[0].check.as_str(), found.findings[0].status),
            ("gpu.driver_hang", Status::Unknown)
        );
        state.strikes = found.strikes;
    }
}

#[test]
fn a_gpu_that_reads_all_ones_is_off_the_bus_whatever_its_cached_files_say() {
    for change in [
        |g: &mut PciGpu| g.config_all_ones = Reading::Value(true),
        |g: &mut PciGpu| g.width = Reading::Value(63),
    ] {
        let f = only(|f| {
            let Reading::Value(p) = &mut f.pci else { panic!() };
            change(&mut p.gpus[1]);
        });
        assert_eq!((f.check.as_str(), f.drains()), ("gpu.bus", true));
        assert_eq!(f.device.unwrap().name, "g1");
    }
}

#[test]
fn recovery_actions() {
    for (value, status, action) in [
        (1, Status::Fail, Action::ResetGpu),
        (2, Status::Fail, Action::Reboot),
        (3, Status::Fail, Action::ResetGpu),
        (4, Status::Fail, Action::ResetGpu),
        (5, Status::Warn, Action::RestartService),
        (6, Status::Fail, Action::ResetGpu),
        (7, Status::Fail, Action::Reboot),
        (42, Status::Warn, Action::None),
    ] {
        let f = only(|f| nvml(f).gpus[0].recovery_action = Reading::Value(value));
        assert_eq!((f.token.as_str(), f.status, f.action), ("recovery", status, action), "{value}");
        assert_eq!(f.drains(), status == Status::Fail);
    }
    let mut facts = healthy();
    nvml(&mut facts).gpus[0].recovery_action = Reading::Unsupported;
    assert_eq!(look(&facts).findings, []);
}

#[test]
fn row_remapping() {
    let f = only(|f| nvml(f).gpus[1].remap_failure = Reading::Value(true));
    assert_eq!((f.action, f.drains()), (Action::Repair, true));
    assert!(f.reason().starts_with("cmx:rowremap g1 "), "{}", f.reason());
    let pending = |f: &mut Facts| nvml(f).gpus[1].remap_pending = Reading::Value(true);
    assert!(only(pending).drains());
    // A job that holds the GPU may finish.
    let f = only(|f| {
        pending(f);
        f.jobs = vec![JobHere { job: "7".into(), gpus: vec![1], uid: 1000 }];
    });
    assert_eq!((f.status, f.drains()), (Status::Warn, false));
    // Before a job it is a fault, whatever else runs.
    let mut facts = healthy();
    pending(&mut facts);
    facts.jobs = vec![JobHere { job: "7".into(), gpus: vec![1], uid: 1000 }];
    let found = check::run(&facts, &config(), &history(), Mode::Prolog, 1000.0);
    assert!(found.findings[0].drains());
}

#[test]
fn ecc() {
    let f = only(|f| nvml(f).gpus[0].ecc_sram_ue = Reading::Value(2));
    assert_eq!((f.token.as_str(), f.drains()), ("eccsram", true));
    let f = only(|f| nvml(f).gpus[0].ecc_dram_ue = Reading::Value(2));
    assert_eq!((f.token.as_str(), f.drains()), ("eccdram", false));
}

#[test]
fn nvlinks_need_three_reads_and_ten_minutes() {
    let mut facts = healthy();
    let Reading::Value(links) = &mut nvml(&mut facts).gpus[0].nvlinks else { panic!() };
    links.insert(5, false);
    let mut state = history();
    for (read, drains) in [(1, false), (2, false), (3, true)] {
        let found = check::run(&facts, &config(), &state, Mode::Periodic, 1000.0 + 10.0 * f64::from(read));
        assert_eq!(found.findings[0].drains(), drains, "read {read}");
        assert!(found.findings[0].evidence.contains("down: 5"));
        state.strikes = found.strikes;
    }
    facts.uptime = 60.0;
    let found = check::run(&facts, &config(), &state, Mode::Periodic, 2000.0);
    assert!(!found.findings[0].drains(), "links may still train after boot");
}

#[test]
fn pcie_width_against_the_profile() {
    let f = only(|f| {
        let Reading::Value(p) = &mut f.pci else { panic!() };
        p.gpus[0].width = Reading::Value(8);
    });
    assert!(f.drains() && f.reason().starts_with("cmx:pciewidth g0 PCIe x8 instead of x16"));
}

#[test]
fn temperature() {
    for (now, status) in [(83, None), (84, Some(Status::Warn)), (86, Some(Status::Warn))] {
        let mut facts = healthy();
        nvml(&mut facts).gpus[0].temperature = Reading::Value(now);
        assert_eq!(look(&facts).findings.first().map(|f| f.status), status, "{now}");
    }
    let mut facts = healthy();
    nvml(&mut facts).gpus[0].temperature = Reading::Value(87);
    let mut state = history();
    for read in 1..=3u32 {
        let found = check::run(&facts, &config(), &state, Mode::Periodic, 10.0 * f64::from(read));
        assert_eq!(found.findings[0].drains(), read == 3);
        state.strikes = found.strikes;
    }
    // Not in the prolog.
    assert!(check::run(&facts, &config(), &state, Mode::Prolog, 99.0).findings.is_empty());
}

#[test]
fn pitfall_1_a_hanging_driver_is_a_warning_first_and_a_fault_the_second_time() {
    let mut facts = healthy();
    facts.nvml = Reading::Hung("no answer in time".into());
    let first = look(&facts);
    let hang = |f: &Findings| f.findings.iter().find(|f| f.check == "gpu.driver_hang").unwrap().clone();
    assert_eq!(hang(&first).status, Status::Warn);
    assert!(!first.findings.iter().any(Finding::drains), "{:#?}", first.findings);
    let state = State { strikes: first.strikes, ..history() };
    let second = check::run(&facts, &config(), &state, Mode::Periodic, 1060.0);
    assert!(hang(&second).drains());
    // GPUs read before the hang still count.
    let mut facts = healthy();
    nvml(&mut facts).gpus.truncate(1);
    nvml(&mut facts).gpus[0].remap_failure = Reading::Value(true);
    nvml(&mut facts).hung = Some("no answer in time".into());
    let found = look(&facts);
    assert!(found.findings.iter().any(|f| f.token == "rowremap" && f.drains()));
}

#[test]
fn pitfall_10_only_conclusive_lines_drain() {
    let line = |code: &str| format!("3,10,1,-;NVRM: Xid (PCI:3a1c:19:00): {code}, pid=1, name=a, text");
    for (code, status, drains, token) in [
        ("79", Status::Fail, true, "xid79"),
        ("95", Status::Fail, true, "xid95"),
        ("13", Status::Warn, false, "xid13"),
        ("31", Status::Warn, false, "xid31"),
        ("94", Status::Warn, false, "xid94"),
        ("999", Status::Warn, false, "xid999"),
    ] {
        let f = only(with_event(&line(code)));
        assert_eq!((f.status, f.drains(), f.token.as_str()), (status, drains, token));
        assert_eq!(f.device.as_ref().unwrap().name, "g1", "the minor of that address");
    }
    for code in ["13", "31", "43", "45", "68", "69"] {
        let mut facts = healthy();
        with_event(&line(code))(&mut facts);
        for f in look(&facts).findings {
            assert!(!f.drains(), "{code}");
            assert_eq!(f.fault, healthcheck::verdict::Fault::Program, "{code}");
        }
    }
}

#[test]
fn a_foreign_address_is_a_warning() {
    let f = only(with_event(
        "3,10,1,-;NVRM: Xid (PCI:7777:19:00): 79, pid=1, name=a, GPU has fallen off the bus.",
    ));
    assert_eq!((f.status, f.drains()), (Status::Warn, false));
    assert!(f.evidence.contains("7777:19:00"));
}

#[test]
fn a_shared_log_names_other_nodes_devices() {
    let mut facts = healthy();
    with_event("3,10,1,-;NVRM: Xid (PCI:7777:19:00): 79, pid=1, name=a, GPU has fallen off the bus.")(
        &mut facts,
    );
    let mut config = config();
    config.paths.kmsg_shared = true;
    let found = check::run(&facts, &config, &State::default(), Mode::Periodic, 1.0).findings;
    assert!(found.iter().all(|f| f.check != "gpu.xid"), "{found:?}");
}

#[test]
fn a_vanished_gpu_still_owns_its_lines() {
    let mut facts = healthy();
    facts.nvml = Reading::Value(NvmlFacts { count: 1, gpus: vec![gpu(0)], ..NvmlFacts::default() });
    facts.pci = Reading::Value(PciFacts { gpus: vec![pci_gpu(0)], switches: vec![] });
    with_event("3,10,1,-;NVRM: Xid (PCI:3a1c:19:00): 79, GPU has fallen off the bus.")(&mut facts);
    let found = look(&facts).findings;
    let xid = found.iter().find(|f| f.token == "xid79").unwrap();
    assert!(xid.drains());
    assert_eq!(xid.device.as_ref().unwrap().name, "g1");
}

#[test]
fn synthetic_lines_count_unless_the_site_refuses_them() {
    let line = "11,10,1,-;NVRM: Xid (PCI:3a1c:19:00): 79, pid=1, name=a, GPU has fallen off the bus.";
    let f = only(with_event(line));
    assert!(f.drains() && f.synthetic && f.evidence.contains("synthetic"));
    let mut facts = healthy();
    with_event(line)(&mut facts);
    let mut config = config();
    config.xid.accept_synthetic = false;
    let found = check::run(&facts, &config, &history(), Mode::Periodic, 1000.0).findings;
    assert_eq!((found.len(), found[0].status), (1, Status::Warn));
}

#[test]
fn an_event_is_acted_on_once() {
    let line = |code: &str| format!("3,10,1,-;NVRM: Xid (PCI:3a1c:19:00): {code}, pid=1, name=a, text");
    let mut facts = healthy();
    facts.kernel =
        Reading::Value(KernelFacts { events: vec![event(&line("79"), true)], ..KernelFacts::default() });
    let found = look(&facts).findings;
    assert_eq!((found.len(), found[0].status, found[0].drains()), (1, Status::Warn, false));
    facts.kernel =
        Reading::Value(KernelFacts { events: vec![event(&line("13"), true)], ..KernelFacts::default() });
    assert_eq!(look(&facts).findings, []);
}

#[test]
fn switch_lines_belong_to_this_nodes_switches() {
    let line = "3,10,1,-;nvidia-nvswitch0: SXid (PCI:3a1c:90:00.0): 20034, Fatal, Link 30 LTSSM Fault Up";
    let f = only(with_event(line));
    assert!(f.drains());
    assert_eq!(f.device.unwrap().name, "nvsw0");
    let f =
        only(with_event("3,10,1,-;nvidia-nvswitch0: SXid (PCI:0001:90:00.0): 20034, Fatal, Link 30 LTSSM"));
    assert!(!f.drains());
}

#[test]
fn lost_records_and_an_unreadable_log_are_said() {
    let f = only(|f| f.kernel = Reading::Value(KernelFacts { events: vec![], lost: 92, unread: vec![] }));
    assert_eq!((f.check.as_str(), f.status), ("node.self", Status::Warn));
    assert!(f.evidence.contains("92"));
    let f = only(|f| {
        let unread = vec!["cannot open the kernel log /dev/kmsg".to_string()];
        f.kernel = Reading::Value(KernelFacts { unread, ..KernelFacts::default() });
    });
    assert_eq!((f.check.as_str(), f.status), ("node.self", Status::Warn));
}

fn port(facts: &mut Facts) -> &mut IbPort {
    let Reading::Value(ports) = &mut facts.ib else { panic!() };
    ports.get_mut("mlx5_0/1").unwrap()
}

#[test]
fn infiniband() {
    let f = only(|f| f.ib = Reading::Value(BTreeMap::new()));
    assert_eq!((f.token.as_str(), f.drains()), ("ibcount", true));
    // Suspicions: the second read in a row makes a fault.
    type Change = fn(&mut IbPort);
    let rows: [(Change, &str, Action); 3] = [
        (
            |p| {
                p.state = Reading::Value(1);
                p.phys_state = Reading::Value(3);
            },
            "ibstate",
            Action::Repair,
        ),
        (|p| p.state = Reading::Value(2), "ibstate", Action::RestartService),
        (|p| p.rate_gbps = Reading::Value(200.0), "ibrate", Action::Repair),
    ];
    for (change, token, action) in rows {
        let mut facts = healthy();
        change(port(&mut facts));
        let first = look(&facts);
        assert_eq!((first.findings.len(), first.findings[0].drains()), (1, false), "{token}");
        let state = State { strikes: first.strikes, ..history() };
        let second = check::run(&facts, &config(), &state, Mode::Periodic, 1060.0);
        assert_eq!((second.findings[0].token.as_str(), second.findings[0].action), (token, action));
        assert!(second.findings[0].drains());
        assert_eq!(second.findings[0].device.as_ref().unwrap().name, "ib0/1");
    }
}

#[test]
fn flaps_count_within_a_window_and_never_since_boot() {
    let name = "ib/mlx5_0/1/link_downed".to_string();
    let counted = |values: &[(f64, u64)]| {
        let mut state = history();
        for (time, value) in values {
            state.counters.record(&BTreeMap::from([(name.clone(), *value)]), *time);
        }
        let mut found = check::run(&healthy(), &config(), &state, Mode::Periodic, 20_000.0).findings;
        found.pop().map(|f| (f.token, f.status))
    };
    assert_eq!(counted(&[(0.0, 200)]), None, "counted since boot");
    assert_eq!(counted(&[(0.0, 200), (60.0, 201)]), Some(("ibflap".into(), Status::Warn)));
    assert_eq!(counted(&[(0.0, 200), (5000.0, 201), (9000.0, 203)]), Some(("ibflap".into(), Status::Fail)));
    assert_eq!(counted(&[(0.0, 200), (60.0, 201), (5000.0, 201), (9000.0, 201)]), None, "long ago");
}

#[test]
fn a_counter_at_its_top_is_blind_never_a_flap() {
    let f = only(|f| {
        let _ = port(f).counters.insert("link_downed".into(), 255);
    });
    assert_eq!((f.token.as_str(), f.status), ("ibblind", Status::Warn));
    let f = only(|f| {
        let _ = port(f).counters.insert("excessive_buffer_overrun_errors".into(), 15);
    });
    assert_eq!((f.token.as_str(), f.drains()), ("ibblind", false));
}

#[test]
fn mounts_and_space() {
    let f = only(|f| f.mounts = Reading::Value(BTreeMap::new()));
    assert!(f.drains() && f.text == "not mounted");
    let mount = |fstype: &str, writable| {
        let m = Mount { source: "x".into(), fstype: fstype.into(), writable };
        Reading::Value(BTreeMap::from([("/data".to_string(), m)]))
    };
    assert_eq!(only(|f| f.mounts = mount("nfs4", false)).text, "mounted read-only");
    assert_eq!(only(|f| f.mounts = mount("ext4", true)).text, "is ext4, not nfs4");
    // An automounter's folder that nobody has used for a while (autofs, x-systemd.automount) is no missing mount.
    for (point, source) in [("/data", "systemd-1"), ("/", "auto.master")] {
        let m = Mount { source: source.into(), fstype: "autofs".into(), writable: true };
        let mut facts = healthy();
        facts.mounts = Reading::Value(BTreeMap::from([(point.to_string(), m)]));
        assert_eq!(look(&facts).findings, [], "{point}");
    }
    let space = |used| Reading::Value(Space { blocks_percent: used, inodes_percent: None });
    let f = only(|f| drop(f.space.insert("/tmp".into(), space(90.0))));
    assert_eq!(f.status, Status::Warn);
    assert!(only(|f| drop(f.space.insert("/tmp".into(), space(96.0)))).drains());
    let inodes = Reading::Value(Space { blocks_percent: 5.0, inodes_percent: Some(99.0) });
    assert!(only(|f| drop(f.space.insert("/tmp".into(), inodes))).text.contains("inodes"));
    // A mount that does not answer: twice in a row.
    let stale = |f: &mut Facts| drop(f.mount_probes.insert("/data".into(), Reading::Hung("late".into())));
    assert_eq!(only(stale).status, Status::Warn);
}

#[test]
fn memory() {
    assert!(only(|f| f.memory_total_kib = Reading::Value(900_000)).drains());
    let mut facts = healthy();
    facts.memory_total_kib = Reading::Value(995_000);
    assert_eq!(look(&facts).findings, []);
}

#[test]
fn site_commands() {
    let ended = |exit, line: &str| Reading::Value(CommandResult { exit: Some(exit), line: line.into() });
    let f = only(|f| drop(f.commands.insert("lustre".into(), ended(2, "OST \"7\" down\u{1b}[31m"))));
    assert!(f.drains());
    assert!(f.reason().starts_with("cmx:lustre lustre OST _7_ down"), "{}", f.reason());
    assert!(f.reason().bytes().all(|b| (b' '..=b'~').contains(&b)));
    assert_eq!(only(|f| drop(f.commands.insert("lustre".into(), ended(3, "?")))).status, Status::Unknown);
}

#[test]
fn switched_off_and_observed_checks() {
    let text = format!("{PROFILE}\n[checks.\"gpu.remap_failure\"]\nstate = \"observe\"\n");
    let observe = Config::parse(&text, Path::new("x")).unwrap();
    let off = Config::parse(&text.replace("observe", "off"), Path::new("x")).unwrap();
    let mut facts = healthy();
    nvml(&mut facts).gpus[1].remap_failure = Reading::Value(true);
    let found = check::run(&facts, &observe, &history(), Mode::Periodic, 0.0).findings;
    assert_eq!((found.len(), found[0].status, found[0].drains()), (1, Status::Fail, false));
    assert_eq!(check::run(&facts, &off, &history(), Mode::Periodic, 0.0).findings, []);
}

#[test]
fn pitfall_4_dcgm_only_warns() {
    let incident = DcgmIncident {
        entity: "GPU 1".into(),
        system: "NVLINK system".into(),
        health: "Failure".into(),
        text: "link 3 is down".into(),
    };
    let dcgm = |overall: &str, incidents: Vec<DcgmIncident>| {
        Some(Reading::Value(Dcgm { overall: overall.into(), incidents }))
    };
    for (reading, status, findings) in [
        (None, Status::Unsupported, 0),
        (dcgm("Healthy", vec![]), Status::Pass, 0),
        (dcgm("Failure", vec![incident.clone(), incident]), Status::Warn, 2),
        (dcgm("Warning", vec![]), Status::Warn, 1),
        (Some(Reading::Unknown("no host engine".into())), Status::Unknown, 1),
        (Some(Reading::Hung("no answer in time".into())), Status::Unknown, 1),
    ] {
        let facts = Facts { dcgm: reading.clone(), ..healthy() };
        let out = check::run(&facts, &config(), &State::default(), Mode::Periodic, 0.0);
        let own = out.checks.iter().find(|c| c.check == "gpu.dcgm").unwrap();
        assert_eq!(own.status, status, "{reading:?}");
        let own: Vec<_> = out.findings.iter().filter(|f| f.check == "gpu.dcgm").collect();
        assert_eq!(own.len(), findings, "{reading:?}");
        assert!(own.iter().all(|f| !f.drains() && f.action == Action::None));
        let hook = check::run(&facts, &config(), &State::default(), Mode::Prolog, 0.0);
        assert!(hook.checks.iter().all(|c| c.check != "gpu.dcgm"), "never in a hook");
    }
}
