//! The cases: what is changed on the full node, and what the check then says.

use healthcheck::facts::{
    DcgmIncident, DcgmTest, Facts, Leftover, NetPort, Owner, Reading, SeenEvent, Space, Usable,
};
use healthcheck::kmsg::parse_record;
use healthcheck::mode::Mode;
use healthcheck::verdict::Status::{self, Fail, Unknown, Unsupported, Warn};
use healthcheck::xid;

use super::full::{AMD, GPU, NIC, PORT, SWITCH, details, first_amd, nvml, of, port, process, survey};

/// One case.
pub struct Case {
    pub id: &'static str,
    pub status: Status,
    pub mode: Mode,
    /// Seconds between passes.
    pub gap: f64,
    /// Changes the facts of a pass, counted from 0.
    pub change: fn(&mut Facts, u32),
}

const fn case(id: &'static str, status: Status, change: fn(&mut Facts, u32)) -> Case {
    Case { id, status, mode: Mode::Deep, gap: 60.0, change }
}

impl Case {
    const fn every(mut self, gap: f64) -> Self {
        self.gap = gap;
        self
    }
    const fn periodic(mut self) -> Self {
        self.mode = Mode::Periodic;
        self
    }
}

/// Answers that a check cannot give, and why.
pub const NEVER: &[(&str, Status, &str)] = &[
    ("gpu.xid", Unsupported, "every node has a kernel log"),
    ("gpu.lost_text", Unsupported, "every node has a kernel log"),
    ("gpu.sxid", Unsupported, "every node has a kernel log"),
    ("gpu.xid_repeat", Unsupported, "every node has a kernel log"),
    ("net.driver", Unsupported, "every node has a kernel log"),
    ("host.kernel", Unsupported, "every node has a kernel log"),
    ("host.oom", Unsupported, "every node has a kernel log"),
    ("node.self", Unsupported, "it is about this suite"),
    (
        "node.self",
        Unknown,
        "what hinders it is a warning; for a user who may not read it unknown, see audit.rs",
    ),
    ("fs.stale", Unknown, "a file system that does not answer is what it looks for"),
];

/// The kernel said so.
fn line(f: &mut Facts, text: &str) {
    let seq = of(&mut f.kernel).events.len() + 1;
    let record = parse_record(format!("3,{seq},{seq}000000,-;{text}").as_bytes()).unwrap();
    let event = xid::events(&record).into_iter().next().unwrap_or_else(|| panic!("no event: {text}"));
    let key = format!("/dev/kmsg boot/{seq}");
    of(&mut f.kernel).events.push(SeenEvent { key, event, count: 1, seen: 1000.0, handled: false });
}

fn xid(f: &mut Facts, rest: &str) {
    line(f, &format!("NVRM: Xid (PCI:{}): {rest}", GPU.trim_end_matches(".0")));
}

fn amd_line(f: &mut Facts, text: &str) {
    line(f, &format!("amdgpu {AMD}: amdgpu: {text}"));
}

/// A counter stands at this.
fn count(f: &mut Facts, name: &str, value: u64) {
    f.counters.insert(name.into(), value);
}

fn gpu_count(f: &mut Facts, name: &str, value: u64) {
    count(f, &format!("gpu/{GPU}/{name}"), value);
}

fn ib_count(f: &mut Facts, name: &str, value: u64) {
    count(f, &format!("ib/{PORT}/{name}"), value);
}

/// True in the last pass only.
fn last(pass: u32) -> bool {
    pass + 1 == super::PASSES
}

fn dcgm_test(f: &mut Facts, severity: Option<u32>) {
    let test = DcgmTest { test: "memory".into(), status: "fail".into(), severity, ..DcgmTest::default() };
    of(f.dcgm_diag.as_mut().unwrap()).tests.push(test);
}

pub const CASES: &[Case] = &[
    case("gpu.xid", Fail, |f, _| xid(f, "79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.")),
    case("gpu.xid", Warn, |f, _| xid(f, "31, pid=7, name=python, Ch 00000010, MMU Fault")),
    case("gpu.lost_text", Fail, |f, _| {
        line(f, "NVRM: nvidia-uvm: uvm encountered global fatal error 0x60, requiring os reboot to recover.");
    }),
    case("gpu.lost_text", Warn, |f, _| {
        line(
            f,
            "NVRM: nvAssertOkFailedNoLog: Assertion failed: Reset required [NV_ERR_RESET_REQUIRED] (0x00000062)",
        );
    }),
    case("gpu.sxid", Fail, |f, _| {
        line(f, &format!("nvidia-nvswitch0: SXid (PCI:{SWITCH}): 20034, Fatal, Link 62 LTSSM Fault Up"));
    }),
    case("gpu.sxid", Warn, |f, _| {
        line(
            f,
            &format!("nvidia-nvswitch0: SXid (PCI:{SWITCH}): 20009, Non-fatal, Link 28 RX Short Error Rate"),
        );
    }),
    case("gpu.count", Fail, |f, _| of(&mut f.nvml).count = 1),
    case("gpu.count", Fail, |f, _| nvml(f).lost = true),
    case("gpu.bus", Fail, |f, _| of(&mut f.pci).gpus[0].config_all_ones = Reading::Value(true)),
    case("gpu.driver", Fail, |f, _| f.gpu_node.module_version = Reading::Value("580.1".into())),
    case("gpu.driver", Warn, |f, p| {
        if last(p) {
            f.gpu_node.module_version = Reading::Value("580.1".into());
        }
    }),
    case("gpu.driver_hang", Fail, |f, _| f.nvml = Reading::Hung("no answer in time".into())),
    case("gpu.driver_hang", Warn, |f, p| {
        if last(p) {
            f.nvml = Reading::Hung("no answer in time".into());
        }
    }),
    case("gpu.recovery_action", Fail, |f, _| nvml(f).recovery_action = Reading::Value(1)),
    case("gpu.recovery_action", Warn, |f, _| nvml(f).recovery_action = Reading::Value(5)),
    case("gpu.remap_failure", Fail, |f, _| nvml(f).remap_failure = Reading::Value(true)),
    case("gpu.remap_pending", Fail, |f, _| nvml(f).remap_pending = Reading::Value(true)),
    case("gpu.remap_pending", Warn, |f, _| {
        nvml(f).remap_pending = Reading::Value(true);
        holds(f);
    })
    .periodic(),
    case("gpu.ecc_sram_ue", Fail, |f, _| nvml(f).ecc_sram_ue = Reading::Value(1)),
    case("gpu.ecc_dram_ue", Warn, |f, _| nvml(f).ecc_dram_ue = Reading::Value(1)),
    case("gpu.nvlink_state", Fail, |f, _| {
        of(&mut nvml(f).nvlinks).insert(4, false);
    }),
    case("gpu.nvlink_state", Warn, |f, _| {
        f.uptime = 60.0;
        of(&mut nvml(f).nvlinks).insert(4, false);
    }),
    case("gpu.pcie_width", Fail, |f, _| of(&mut f.pci).gpus[0].width = Reading::Value(8)),
    case("gpu.temp", Fail, |f, _| nvml(f).temperature = Reading::Value(89)),
    case("gpu.temp", Warn, |f, _| nvml(f).temperature = Reading::Value(87)),
    case("gpu.ecc_sram_threshold", Fail, |f, _| details(f).sram_threshold_exceeded = Reading::Value(true)),
    case("gpu.ecc_ce_rate", Warn, |f, p| gpu_count(f, "ecc_corrected", u64::from(p) * 120_000)),
    case("gpu.remap_headroom", Fail, |f, _| survey(f).remapped_uncorrectable = Reading::Value(512)),
    case("gpu.remap_headroom", Warn, |f, _| of(&mut survey(f).row_spares).low = 1),
    case("gpu.repair_pending", Fail, |f, _| of(&mut details(f).repair).tpc_pending = true),
    case("gpu.repair_pending", Fail, |f, _| details(f).unrepairable_memory = Reading::Value(true)),
    case("gpu.repair_pending", Warn, |f, _| {
        of(&mut details(f).repair).tpc_pending = true;
        holds(f);
    })
    .periodic(),
    case("gpu.retired_pages", Fail, |f, _| of(&mut survey(f).retired_pages).single_bit = 63),
    case("gpu.inforom", Warn, |f, _| survey(f).inforom_valid = Reading::Value(false)),
    case("gpu.nvlink_speed", Warn, |f, _| {
        of(&mut survey(f).nvlink_speeds).insert(0, 20_000);
    }),
    case("gpu.nvlink_errors", Fail, |f, p| gpu_count(f, "nvlink_crc", u64::from(p) * 6001)),
    case("gpu.nvlink_errors", Warn, |f, p| gpu_count(f, "nvlink_crc", if last(p) { 7000 } else { 0 })),
    case("gpu.fabric_state", Fail, |f, _| of(&mut details(f).fabric).state = 2),
    case("gpu.fabric_state", Warn, |f, _| {
        f.uptime = 60.0;
        of(&mut details(f).fabric).state = 2;
    }),
    case("gpu.fabricmanager", Fail, |f, _| {
        of(&mut details(f).fabric).state = 2;
        of(f.gpu_node.fabric_manager.as_mut().unwrap()).active = "failed".into();
    }),
    case("gpu.imex", Fail, |f, _| f.gpu_node.imex_channels = false),
    case("gpu.c2c", Fail, |f, _| {
        of(&mut details(f).c2c).links.insert(0, false);
    }),
    case("gpu.c2c", Warn, |f, p| gpu_count(f, "c2c_errors", u64::from(p))),
    case("gpu.pcie_replay", Warn, |f, p| gpu_count(f, "pcie_replays", u64::from(p) * 40)),
    case("gpu.throttle", Fail, |f, p| gpu_count(f, "thermal_ns", u64::from(p) * 45_000_000_000)),
    case("gpu.throttle", Warn, |f, _| details(f).clock_events = Reading::Value(0x80)),
    case("gpu.idle_heat", Warn, |f, _| nvml(f).temperature = Reading::Value(61)),
    case("gpu.persistence", Warn, |f, _| details(f).persistence = Reading::Value(false)),
    case("gpu.modes", Fail, |f, _| of(&mut details(f).mig_mode).current = true),
    case("gpu.modes", Warn, |f, _| details(f).compute_mode = Reading::Value("prohibited".into())),
    case("gpu.clocks_setting", Warn, |f, _| details(f).application_clock = Reading::Value(1200)),
    case("gpu.leftover", Fail, |f, _| {
        of(&mut details(f).processes).push(process(Owner::Job("7".into())));
        f.gpu_node.ended_jobs.push("7".into());
    }),
    case("gpu.leftover", Warn, |f, _| of(&mut details(f).processes).push(process(Owner::NoJob))),
    case("gpu.mps", Warn, |f, _| of(f.gpu_node.mps.as_mut().unwrap()).push(process(Owner::NoJob))),
    case("gpu.firmware", Fail, |f, _| survey(f).vbios = Reading::Value("95.00".into())),
    case("gpu.firmware", Warn, |f, _| survey(f).gsp = Reading::Value("1".into())),
    case("gpu.usable", Fail, |f, _| {
        let answers = of(f.gpu_node.usable.as_mut().unwrap());
        answers.insert(GPU.into(), Usable::Fails("CUDA error 999".into()));
    }),
    case("gpu.xid_repeat", Warn, |f, _| {
        for _ in 0..3 {
            xid(f, "94, pid=7, name=python, Contained: SM (0x1). RST: No, D-RST: No");
        }
    }),
    case("amd.kernel", Fail, |f, _| amd_line(f, "device lost from bus!")),
    case("amd.kernel", Warn, |f, _| amd_line(f, "GPU reset begin!")),
    case("amd.count", Fail, |f, _| first_amd(f).bound = false),
    case("amd.bus", Fail, |f, _| first_amd(f).config_all_ones = Reading::Value(true)),
    case("amd.ras_ue", Fail, |f, _| of(&mut first_amd(f).ras).get_mut("gfx").unwrap().ue = 1),
    case("amd.ras_ue", Warn, |f, _| of(&mut first_amd(f).ras).get_mut("umc").unwrap().ue = 1),
    case("amd.ras_ce", Warn, |f, p| count(f, &format!("amd/{AMD}/ras_ce"), u64::from(p) * 10)),
    case("amd.bad_pages", Fail, |f, _| of(&mut first_amd(f).bad_pages).pending = 1),
    case("amd.bad_pages", Warn, |f, _| {
        of(&mut first_amd(f).bad_pages).pending = 1;
        holds(f);
    })
    .periodic(),
    case("amd.links", Fail, |f, _| first_amd(f).width = Reading::Value(8)),
    case("amd.links", Warn, |f, _| {
        f.uptime = 60.0;
        of(&mut first_amd(f).metrics).xgmi_links.insert(3, false);
    }),
    case("amd.temp", Fail, |f, _| first_amd(f).temperatures.get_mut("junction").unwrap().now = 110_000),
    case("amd.temp", Warn, |f, _| first_amd(f).temperatures.get_mut("junction").unwrap().now = 108_000),
    case("amd.throttle", Fail, |f, p| amd_slowed(f, p, 700)),
    case("amd.throttle", Warn, |f, p| amd_slowed(f, p, 200)),
    case("ib.count", Fail, |f, _| of(&mut f.ib).clear()),
    case("ib.state", Fail, |f, _| port(f).state = Reading::Value(2)),
    case("ib.state", Warn, |f, p| {
        if last(p) {
            port(f).state = Reading::Value(1);
        }
    }),
    case("ib.rate", Fail, |f, _| port(f).rate_gbps = Reading::Value(200.0)),
    case("ib.flap", Fail, |f, p| ib_count(f, "link_downed", u64::from(p))),
    case("ib.flap", Warn, |f, p| ib_count(f, "link_downed", u64::from(last(p)))),
    case("ib.saturated", Warn, |f, _| {
        port(f).counters.insert("link_downed".into(), 255);
    }),
    case("fs.mount", Fail, |f, _| {
        of(&mut f.mounts).remove("/data");
    }),
    case("fs.stale", Fail, |f, _| {
        f.mount_probes.insert("/data".into(), Reading::Hung("no answer in time".into()));
    }),
    case("fs.stale", Warn, |f, p| {
        if last(p) {
            f.mount_probes.insert("/data".into(), Reading::Hung("no answer in time".into()));
        }
    }),
    case("fs.space", Fail, |f, _| full_to(f, 96.0)),
    case("fs.space", Warn, |f, _| full_to(f, 90.0)),
    case("host.mem", Fail, |f, _| f.memory_total_kib = Reading::Value(980)),
    case("gpu.dcgm", Warn, |f, _| {
        let dcgm = of(f.dcgm.as_mut().unwrap());
        dcgm.overall = "Failure".into();
        dcgm.incidents.push(DcgmIncident { entity: "GPU 1".into(), ..DcgmIncident::default() });
    }),
    case("node.self", Warn, |f, _| of(&mut f.kernel).lost = 3),
    case("node.self", Warn, |f, _| f.node.verdict_age = Some(3000.0)),
    case("ib.symbol", Fail, |f, p| ib_count(f, "symbol_error", u64::from(p) * 50)).every(900.0),
    case("ib.symbol", Warn, |f, p| ib_count(f, "symbol_error", u64::from(p) * 660)),
    case("ib.errors", Fail, |f, p| ib_count(f, "port_rcv_errors", u64::from(p) * 660)),
    case("ib.errors", Warn, |f, p| ib_count(f, "port_xmit_discards", u64::from(p) * 6600)),
    case("roce.counters", Warn, |f, p| ib_count(f, "rnr_nak_retry_err", u64::from(p))),
    case("ib.sm_pkey", Warn, |f, _| port(f).sm_lid = Reading::Value(0)),
    case("ib.modules", Fail, |f, _| {
        f.node.modules.insert("ib_uverbs".into(), false);
    }),
    case("nic.firmware", Warn, |f, _| port(f).firmware = Reading::Value("28.39.1002".into())),
    case("net.link", Fail, |f, _| eth0(f).operstate = "down".into()),
    case("net.link", Warn, |f, _| eth0(f).mtu = Reading::Value(1500)),
    case("net.driver", Fail, |f, _| line(f, &format!("mlx5_core {NIC}: device's health compromised"))),
    case("net.driver", Warn, |f, _| {
        line(f, "bnxt_en 0000:99:00.0 eth7: Firmware non-fatal reset event, data1: 0x1, data2: 0x0");
    }),
    case("pcie.acs", Warn, |f, _| {
        of(&mut f.node.functions).get_mut("3a1c:10:01.0").unwrap().acs = Reading::Value(0x1d);
    }),
    case("gpu.pcie_speed", Fail, |f, _| {
        of(&mut f.node.functions).get_mut(GPU).unwrap().max_speed = Reading::Value(16.0);
    }),
    case("gpu.pcie_speed", Warn, |f, _| {
        of(&mut f.node.functions).get_mut(GPU).unwrap().speed = Reading::Value(2.5)
    }),
    case("gpu.aer", Fail, |f, p| count(f, &format!("aer/{GPU}/fatal"), u64::from(p))),
    case("gpu.aer", Warn, |f, p| count(f, &format!("aer/{GPU}/nonfatal"), u64::from(last(p)))),
    case("host.edac", Fail, |f, p| count(f, "edac/mc0/uncorrectable", u64::from(last(p)))),
    case("host.edac", Warn, |f, p| count(f, "edac/mc0/corrected", u64::from(p) * 20)),
    case("host.kernel", Fail, |f, _| line(f, "Kernel panic - not syncing: Fatal exception")),
    case("host.kernel", Warn, |f, _| line(f, "BUG: unable to handle page fault for address: ffff")),
    case("host.oom", Warn, |f, _| line(f, "Out of memory: Killed process 4711 (python3) total-vm:1kB")),
    case("host.services", Fail, |f, _| {
        of(&mut f.node.services).get_mut("munge.service").unwrap().active = "failed".into()
    }),
    case("host.clock", Warn, |f, _| of(&mut f.node.clock).synchronised = false),
    case("host.cpu", Warn, |f, _| f.node.cpus = Reading::Value(3)),
    case("host.stray", Warn, |f, _| of(&mut f.node.processes).zombies = 100),
    case("host.shm", Warn, |f, _| {
        of(&mut f.node.shm).insert(1000, Leftover { files: 1, bytes: 1 << 30 });
    }),
    case("fs.ro", Fail, |f, _| of(&mut f.mounts).get_mut("/").unwrap().writable = false),
    case("fs.ro", Warn, |f, _| line(f, "EXT4-fs (nvme0n1p2): Remounting filesystem read-only")),
    case("disk.nvme", Fail, |f, _| {
        of(&mut f.node.nvme).get_mut("nvme0").unwrap().state = Reading::Value("dead".into())
    }),
    case("disk.nvme", Fail, |f, _| {
        of(&mut of(&mut f.node.nvme).get_mut("nvme0").unwrap().smart).critical_warning = 4;
    }),
    case("disk.nvme", Warn, |f, _| {
        of(&mut of(&mut f.node.nvme).get_mut("nvme0").unwrap().smart).used_percent = 90
    }),
    case("disk.raid", Fail, |f, _| of(&mut f.node.raid).get_mut("md0").unwrap().degraded = Some(1)),
    case("disk.raid", Warn, |f, _| {
        let array = of(&mut f.node.raid).get_mut("md0").unwrap();
        (array.level, array.degraded) = ("raid1".into(), Some(1));
    }),
    case("act.dcgm", Fail, |f, _| dcgm_test(f, Some(2))),
    case("act.dcgm", Warn, |f, _| dcgm_test(f, None)),
];

/// A job holds the first GPU.
fn holds(f: &mut Facts) {
    let job = healthcheck::facts::JobHere { job: "7".into(), gpus: vec![0], uid: 1000 };
    f.jobs.push(job);
}

fn amd_slowed(f: &mut Facts, pass: u32, share: u64) {
    count(f, &format!("amd/{AMD}/cycles"), u64::from(pass) * 1000);
    count(f, &format!("amd/{AMD}/hbm_thm"), u64::from(pass) * share);
}

fn full_to(f: &mut Facts, blocks_percent: f64) {
    f.space.insert("/".into(), Reading::Value(Space { blocks_percent, inodes_percent: None }));
}

fn eth0(f: &mut Facts) -> &mut NetPort {
    of(&mut f.node.net).get_mut("eth0").unwrap()
}
