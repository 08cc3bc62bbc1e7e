//! A node that has everything a check looks at, all of it healthy; one that has nothing; one of which nothing can be read.

use std::collections::BTreeMap;

use healthcheck::facts::{
    AmdGpu, AmdMetrics, BadPages, C2c, Clock, Dcgm, DcgmDiag, DcgmTest, Fabric, Facts, FunctionKind,
    GpuDetails, GpuNode, GpuProcess, GpuSurvey, IbPort, KernelFacts, MemoryController, Mode as Setting,
    Mount, NetPort, NodeFacts, NvlinkErrors, Nvme, NvmeSmart, NvmlFacts, NvmlGpu, Owner, PciFacts,
    PciFunction, PciGpu, Processes, Raid, RasCount, Reading, RepairFlags, RetiredPages, RowSpares, Service,
    Space, Temperature, Unit, Usable,
};

pub const DRIVER: &str = "570.172.08";
pub const GPU: &str = "3a1c:18:00.0";
pub const AMD: &str = "0000:05:00.0";
pub const SWITCH: &str = "3a1c:80:00.0";
pub const NIC: &str = "0000:41:00.0";
pub const PORT: &str = "mlx5_0/1";

/// What the full node should have.
pub const PROFILE: &str = r#"
[profile]
gpu_count = 2
nvlinks_per_gpu = 18
pcie_width = 16
memory_total_kib = 1000
pcie_speed_gts = 32.0
nvme_count = 1
cpu_count = 4
cpu_governor = "performance"
clocksource = "tsc"
ib_pkeys = [0xffff]
ib_firmware = "28.41.1000"
modules = ["ib_uverbs"]
services = ["munge"]
users_need_jobs = true

[profile.gpu]
nvlink_mbps = 26562
power_limit_watts = 700
ecc = true
mig = false
compute_mode = "default"
fabric_manager = true
imex = true

[profile.gpu.firmware]
vbios = "96.00"
driver = "570.172.08"
strict = true

[profile.amd]
gpu_count = 2
pcie_width = 16
xgmi = true
xgmi_links = 7

[[profile.ib_port]]
device = "mlx5_0"
port = 1
rate_gbps = 400.0

[[profile.net_port]]
name = "eth0"
speed_mbps = 25000
mtu = 9000

[[profile.mount]]
path = "/data"
fstype = "nfs4"
writable = true
network = true

[[profile.space]]
path = "/"
"#;

fn gpu(i: u32) -> NvmlGpu {
    let details = GpuDetails {
        architecture: Reading::Value(9),
        sram_threshold_exceeded: Reading::Value(false),
        ecc_corrected: Reading::Value(5),
        repair: Reading::Value(RepairFlags::default()),
        unrepairable_memory: Reading::Value(false),
        fabric: Reading::Value(Fabric { state: 3, health_mask: Some(0x1aa), ..Fabric::default() }),
        nvlink_errors: Reading::Value(NvlinkErrors::default()),
        c2c: Reading::Value(C2c { links: [(0, true)].into(), errors: 7 }),
        pcie_replays: Reading::Value(7000),
        pcie_lanes: Reading::Value(16),
        pcie_generation: Reading::Value(5),
        clock_events: Reading::Value(1),
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
    };
    let survey = GpuSurvey {
        row_spares: Reading::Value(RowSpares { max: 2560, ..RowSpares::default() }),
        remapped_uncorrectable: Reading::Value(0),
        retired_pages: Reading::Value(RetiredPages::default()),
        inforom_valid: Reading::Value(true),
        nvlink_speeds: Reading::Value((0..18).map(|l| (l, 26_562)).collect()),
        vbios: Reading::Value("96.00".into()),
        gsp: Reading::Value(DRIVER.into()),
        busy_percent: Reading::Value(100),
    };
    NvmlGpu {
        index: i,
        minor: Reading::Value(i),
        name: Reading::Value("NVIDIA H100 80GB HBM3".into()),
        uuid: Reading::Value(format!("GPU-{i}")),
        pci: Reading::Value(format!("3a1c:{:02x}:00.0", 0x18 + i)),
        lost: false,
        recovery_action: Reading::Value(0),
        ecc_sram_ue: Reading::Value(0),
        ecc_dram_ue: Reading::Value(0),
        remap_pending: Reading::Value(false),
        remap_failure: Reading::Value(false),
        nvlinks: Reading::Value((0..18).map(|l| (l, true)).collect()),
        temperature: Reading::Value(40),
        slowdown_temperature: Reading::Value(89),
        details: Some(Box::new(details)),
        survey: Some(Box::new(survey)),
    }
}

fn amd(i: u32) -> AmdGpu {
    AmdGpu {
        pci: format!("0000:{:02x}:00.0", 5 + i),
        device_id: Reading::Value("0x74a1".into()),
        bound: true,
        config_all_ones: Reading::Value(false),
        width: Reading::Value(16),
        max_width: Reading::Value(16),
        ras: Reading::Value(["umc", "gfx"].map(|b| (b.to_string(), RasCount { ue: 0, ce: 5 })).into()),
        bad_pages: Reading::Value(BadPages::default()),
        temperatures: [("junction".to_string(), Temperature { now: 45_000, critical: Some(110_000) })].into(),
        hive: Reading::Value("77".into()),
        metrics: Reading::Value(AmdMetrics {
            version: "1.8".into(),
            cycles: Some(0),
            residencies: ["prochot", "ppt", "hbm_thm"].map(|n| (n.to_string(), 0)).into(),
            xgmi_links: (0..8).map(|n| (n, n != 0)).collect(),
            ..AmdMetrics::default()
        }),
    }
}

/// PCI functions: a GPU below a bridge.
fn functions() -> BTreeMap<String, PciFunction> {
    let function = |kind| PciFunction {
        kind,
        above: Vec::new(),
        config_all_ones: Reading::Value(false),
        max_speed: Reading::Value(32.0),
        speed: Reading::Value(32.0),
        correctable: Reading::Value(0),
        nonfatal: Reading::Value(0),
        fatal: Reading::Value(0),
        acs: if kind == FunctionKind::Bridge { Reading::Value(0) } else { Reading::Unsupported },
    };
    let gpu = PciFunction { above: vec!["3a1c:10:01.0".into()], ..function(FunctionKind::Gpu) };
    [("3a1c:10:01.0".to_string(), function(FunctionKind::Bridge)), (GPU.to_string(), gpu)].into()
}

/// Everything is there and well.
pub fn full() -> Facts {
    let port = IbPort {
        state: Reading::Value(4),
        phys_state: Reading::Value(5),
        link_layer: Reading::Value("InfiniBand".into()),
        rate_gbps: Reading::Value(400.0),
        counters: [("link_downed", 3), ("symbol_error", 0)].map(|(n, v)| (n.to_string(), v)).into(),
        hw_counters: [("rnr_nak_retry_err".to_string(), 0)].into(),
        sm_lid: Reading::Value(1),
        pkeys: Reading::Value(vec![0xffff]),
        firmware: Reading::Value("28.41.1000".into()),
        board: Reading::Value("MT_0000000838".into()),
        pci: Some(NIC.into()),
    };
    let net = NetPort {
        operstate: "up".into(),
        carrier: Reading::Value(true),
        speed_mbps: Reading::Value(25_000),
        mtu: Reading::Value(9000),
        carrier_down_count: Reading::Value(0),
        ..NetPort::default()
    };
    let service = Service { load: "loaded".into(), active: "active".into() };
    let test = DcgmTest { test: "memory".into(), status: "pass".into(), ..DcgmTest::default() };
    let pci_gpu = |i: u32| PciGpu {
        pci: format!("3a1c:{:02x}:00.0", 0x18 + i),
        config_all_ones: Reading::Value(false),
        width: Reading::Value(16),
        max_width: Reading::Value(16),
    };
    Facts {
        boot_id: "boot".into(),
        uptime: 100_000.0,
        pci: Reading::Value(PciFacts { gpus: vec![pci_gpu(0), pci_gpu(1)], switches: vec![SWITCH.into()] }),
        gpu_nodes: Reading::Value(vec![0, 1]),
        nvml: Reading::Value(NvmlFacts {
            driver_version: DRIVER.into(),
            count: 2,
            gpus: vec![gpu(0), gpu(1)],
            ..NvmlFacts::default()
        }),
        kernel: Reading::Value(KernelFacts::default()),
        ib: Reading::Value([(PORT.to_string(), port)].into()),
        mounts: Reading::Value(
            [("/data", "nas:/data", "nfs4"), ("/", "/dev/nvme0n1p2", "ext4")]
                .map(|(at, from, kind)| {
                    (at.to_string(), Mount { source: from.into(), fstype: kind.into(), writable: true })
                })
                .into(),
        ),
        mount_probes: [("/data".to_string(), Reading::Value(()))].into(),
        space: [("/".to_string(), Reading::Value(Space { blocks_percent: 10.0, inodes_percent: Some(1.0) }))]
            .into(),
        memory_total_kib: Reading::Value(1000),
        node: NodeFacts {
            net: Reading::Value([("eth0".to_string(), net)].into()),
            functions: Reading::Value(functions()),
            virtual_machine: Reading::Value(false),
            modules: [("ib_uverbs".to_string(), true)].into(),
            edac: Reading::Value(
                [(
                    "mc0".to_string(),
                    MemoryController { corrected: Reading::Value(3), uncorrectable: Reading::Value(0) },
                )]
                .into(),
            ),
            nvme: Reading::Value(
                [(
                    "nvme0".to_string(),
                    Nvme {
                        state: Reading::Value("live".into()),
                        smart: Reading::Value(NvmeSmart { spare_percent: 100, ..NvmeSmart::default() }),
                        ..Nvme::default()
                    },
                )]
                .into(),
            ),
            raid: Reading::Value(
                [("md0".to_string(), Raid { level: "raid0".into(), active: true, ..Raid::default() })].into(),
            ),
            services: Reading::Value(
                [(
                    "munge.service".to_string(),
                    Unit { load: "loaded".into(), active: "active".into(), sub: "running".into() },
                )]
                .into(),
            ),
            clock: Reading::Value(Clock { synchronised: true, offset: 0.0001, max_error: 0.01 }),
            clocksource: Reading::Value("tsc".into()),
            cpus: Reading::Value(4),
            governors: [("performance".to_string(), 4)].into(),
            processes: Reading::Value(Processes {
                threads: 400,
                threads_max: Some(40_000),
                ..Processes::default()
            }),
            shm: Reading::Value(BTreeMap::new()),
            ..NodeFacts::default()
        },
        dcgm: Some(Reading::Value(Dcgm { overall: "Healthy".into(), incidents: Vec::new() })),
        dcgm_diag: Some(Reading::Value(DcgmDiag { version: "4.2.3".into(), tests: vec![test] })),
        gpu_node: GpuNode {
            module_version: Reading::Value(DRIVER.into()),
            fabric_manager: Some(Reading::Value(service)),
            imex: Some(Reading::Value("READY".into())),
            imex_channels: true,
            mps: Some(Reading::Value(Vec::new())),
            usable: Some(Reading::Value(
                ["3a1c:18:00.0", "3a1c:19:00.0"].map(|p| (p.to_string(), Usable::Works)).into(),
            )),
            ended_jobs: Vec::new(),
        },
        amd: Reading::Value(vec![amd(0), amd(1)]),
        ..Facts::default()
    }
}

/// A node without any of it, and of which nothing is expected.
pub fn bare() -> Facts {
    let none = NvmlFacts { library_missing: Some("not installed".into()), ..NvmlFacts::default() };
    Facts {
        boot_id: "boot".into(),
        uptime: 100_000.0,
        pci: Reading::Value(PciFacts::default()),
        gpu_nodes: Reading::Value(Vec::new()),
        nvml: Reading::Value(none),
        kernel: Reading::Value(KernelFacts::default()),
        ib: Reading::Unsupported,
        mounts: Reading::Unsupported,
        memory_total_kib: Reading::Unsupported,
        node: NodeFacts::absent(),
        gpu_node: GpuNode { usable: Some(Reading::Unsupported), ..GpuNode::default() },
        amd: Reading::Unsupported,
        ..Facts::default()
    }
}

/// A node that should have everything, and no source answers.
pub fn blind() -> Facts {
    fn no<T>() -> Reading<T> {
        Reading::Unknown("it cannot be read".into())
    }
    Facts {
        boot_id: "boot".into(),
        uptime: 100_000.0,
        pci: no(),
        gpu_nodes: no(),
        nvml: no(),
        kernel: no(),
        ib: no(),
        mounts: no(),
        mount_probes: [("/data".to_string(), no())].into(),
        space: [("/".to_string(), no())].into(),
        memory_total_kib: no(),
        node: NodeFacts {
            net: no(),
            functions: no(),
            virtual_machine: no(),
            edac: no(),
            nvme: no(),
            raid: no(),
            services: no(),
            clock: no(),
            clocksource: no(),
            cpus: no(),
            processes: no(),
            shm: no(),
            ..NodeFacts::default()
        },
        dcgm: Some(no()),
        dcgm_diag: Some(no()),
        gpu_node: GpuNode {
            module_version: no(),
            fabric_manager: Some(no()),
            imex: Some(no()),
            mps: Some(no()),
            usable: Some(no()),
            ..GpuNode::default()
        },
        amd: no(),
        ..Facts::default()
    }
}

/// A process on a GPU.
pub fn process(owner: Owner) -> GpuProcess {
    GpuProcess { pid: 4711, owner, name: "python".into() }
}

/// The first GPU of NVML.
pub fn nvml(f: &mut Facts) -> &mut NvmlGpu {
    match &mut f.nvml {
        Reading::Value(n) => &mut n.gpus[0],
        _ => panic!("no NVML"),
    }
}

/// Its details.
pub fn details(f: &mut Facts) -> &mut GpuDetails {
    nvml(f).details.as_mut().unwrap()
}

/// Its survey.
pub fn survey(f: &mut Facts) -> &mut GpuSurvey {
    nvml(f).survey.as_mut().unwrap()
}

/// The first AMD GPU.
pub fn first_amd(f: &mut Facts) -> &mut AmdGpu {
    match &mut f.amd {
        Reading::Value(all) => &mut all[0],
        _ => panic!("no AMD GPU"),
    }
}

/// The InfiniBand port.
pub fn port(f: &mut Facts) -> &mut IbPort {
    match &mut f.ib {
        Reading::Value(all) => all.get_mut(PORT).unwrap(),
        _ => panic!("no port"),
    }
}

/// The value of a reading that is there.
pub fn of<T>(reading: &mut Reading<T>) -> &mut T {
    match reading {
        Reading::Value(v) => v,
        _ => panic!("no value"),
    }
}
