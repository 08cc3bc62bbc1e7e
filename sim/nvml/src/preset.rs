//! Healthy, idle GPUs of the models the simulator knows, and the defaults of the GPU file.
//!
//! Figures are those that `nvidia-smi -q` shows for these boards (data sheets for limits and sizes).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use crate::model::{
    ClockEvent, Clocks, ComputeMode, Ecc, EccCounts, Fabric, FabricState, Gpu, GpuFile, HealthFlag, Memory,
    Mig, Missing, NvLink, PciAddress, Pcie, Power, RecoveryAction, RemappedRows, Repair, ReturnCode,
    RowHistogram, Temperature, Utilization,
};

/// A GPU model the simulator can build.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum GpuModel {
    /// `a100-sxm`: NVIDIA A100-SXM4-80GB.
    A100Sxm,
    /// `h100-sxm`: NVIDIA H100 80GB HBM3.
    #[default]
    H100Sxm,
    /// `h200-sxm`: NVIDIA H200.
    H200Sxm,
    /// `b200`: NVIDIA B200.
    B200,
}

impl GpuModel {
    /// All of them.
    pub const ALL: [GpuModel; 4] = [GpuModel::A100Sxm, GpuModel::H100Sxm, GpuModel::H200Sxm, GpuModel::B200];

    /// Its name on command lines.
    pub fn as_str(self) -> &'static str {
        match self {
            GpuModel::A100Sxm => "a100-sxm",
            GpuModel::H100Sxm => "h100-sxm",
            GpuModel::H200Sxm => "h200-sxm",
            GpuModel::B200 => "b200",
        }
    }
}

impl fmt::Display for GpuModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A model the simulator cannot build.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown GPU model `{0}`; known are a100-sxm, h100-sxm, h200-sxm and b200")]
pub struct UnknownModel(
    /// The name asked for.
    pub String,
);

impl FromStr for GpuModel {
    type Err = UnknownModel;

    fn from_str(text: &str) -> Result<Self, UnknownModel> {
        GpuModel::ALL.into_iter().find(|m| m.as_str() == text).ok_or_else(|| UnknownModel(text.to_owned()))
    }
}

/// Bus numbers of the GPUs of an eight-GPU HGX board.
const HGX_BUSES: [u8; 8] = [0x18, 0x2a, 0x3a, 0x5d, 0x9a, 0xab, 0xba, 0xdb];

/// The healthy GPU at `index` of a node. Past the eighth GPU the device number tells them apart.
pub(crate) fn gpu(model: GpuModel, index: usize, domain: u32, node_index: u32) -> Gpu {
    let number = index as u32;
    let unique = (u64::from(node_index) << 16) | u64::from(number);
    Gpu {
        uuid: format!(
            "GPU-{:08x}-{:04x}-4{:03x}-8{:03x}-{unique:012x}",
            fnv1a(model.as_str(), domain, unique),
            domain & 0xffff,
            node_index & 0xfff,
            number & 0xfff,
        ),
        serial: format!("165{:010}", unique),
        minor_number: number,
        pci_address: PciAddress {
            domain,
            bus: HGX_BUSES[index % HGX_BUSES.len()],
            device: (index / HGX_BUSES.len()) as u8,
            function: 0,
        },
        numa_node: i32::from(index % HGX_BUSES.len() >= HGX_BUSES.len() / 2),
        ..board(model)
    }
}

/// Spreads UUIDs; not a secret.
fn fnv1a(name: &str, domain: u32, unique: u64) -> u32 {
    let bytes = name.bytes().chain(domain.to_le_bytes()).chain(unique.to_le_bytes());
    bytes.fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// What all GPUs of a model share.
fn board(model: GpuModel) -> Gpu {
    let h100 = h100();
    match model {
        GpuModel::H100Sxm => h100,
        GpuModel::A100Sxm => Gpu {
            name: "NVIDIA A100-SXM4-80GB".to_owned(),
            architecture: 7,
            compute_capability: [8, 0],
            cores: 6912,
            pci_device_id: 0x20b2_10de,
            pci_subsystem_id: 0x147f_10de,
            vbios: "92.00.45.00.03".to_owned(),
            inforom_image: "G506.0210.00.03".to_owned(),
            board_part_number: "692-2G506-0212-002".to_owned(),
            memory: memory(81920, 629, 131_072),
            temperature: Temperature {
                gpu: 31,
                memory: 33,
                shutdown: 92,
                slowdown: 89,
                gpu_max: 85,
                memory_max: 95,
            },
            power: power(62_000, 400_000, 100_000),
            clocks: Clocks { graphics: 210, sm: 210, memory: 1593, video: 585 },
            max_clocks: Clocks { graphics: 1410, sm: 1410, memory: 1593, video: 1290 },
            nvlink: Some(NvLink {
                links: 12,
                version: 4,
                speed: 25_781,
                down: BTreeSet::new(),
                errors: vec![],
            }),
            pcie: pcie(4),
            // The A100 trains its links without registering with a fabric.
            fabric: None,
            ..h100
        },
        GpuModel::H200Sxm => Gpu {
            name: "NVIDIA H200".to_owned(),
            memory_bus_width: 6144,
            pci_device_id: 0x2335_10de,
            pci_subsystem_id: 0x18be_10de,
            vbios: "96.00.A5.00.01".to_owned(),
            inforom_image: "G520.0280.00.05".to_owned(),
            board_part_number: "692-2G520-0280-000".to_owned(),
            memory: memory(143_771, 602, 262_144),
            clocks: Clocks { memory: 3201, ..h100.clocks.clone() },
            max_clocks: Clocks { memory: 3201, ..h100.max_clocks.clone() },
            ..h100
        },
        GpuModel::B200 => Gpu {
            name: "NVIDIA B200".to_owned(),
            architecture: 10,
            compute_capability: [10, 0],
            cores: 18944,
            memory_bus_width: 8192,
            pci_device_id: 0x2901_10de,
            pci_subsystem_id: 0x1999_10de,
            vbios: "97.00.88.00.0F".to_owned(),
            inforom_image: "G525.0225.00.05".to_owned(),
            board_part_number: "692-2G525-0225-001".to_owned(),
            memory: memory(183_359, 741, 262_144),
            power: power(140_000, 1_000_000, 200_000),
            clocks: Clocks { graphics: 120, sm: 120, memory: 3996, video: 600 },
            max_clocks: Clocks { graphics: 1965, sm: 1965, memory: 3996, video: 1590 },
            nvlink: Some(NvLink {
                links: 18,
                version: 7,
                speed: 53_125,
                down: BTreeSet::new(),
                errors: vec![],
            }),
            repair: Some(Repair::default()),
            ..h100
        },
    }
}

fn h100() -> Gpu {
    Gpu {
        missing: false,
        lost: false,
        name: "NVIDIA H100 80GB HBM3".to_owned(),
        brand: 14,
        architecture: 9,
        compute_capability: [9, 0],
        cores: 16896,
        memory_bus_width: 5120,
        uuid: "GPU-00000000-0000-4000-8000-000000000000".to_owned(),
        serial: "1650000000000".to_owned(),
        minor_number: 0,
        pci_address: PciAddress { domain: 0, bus: HGX_BUSES[0], device: 0, function: 0 },
        pci_device_id: 0x2330_10de,
        pci_subsystem_id: 0x16c1_10de,
        vbios: "96.00.89.00.01".to_owned(),
        inforom_image: "G520.0200.00.05".to_owned(),
        inforom_valid: true,
        board_part_number: "692-2G520-0200-000".to_owned(),
        numa_node: 0,
        performance_state: 0,
        persistence_mode: true,
        compute_mode: ComputeMode::Default,
        energy_mj: 0,
        clock_events: BTreeSet::from([ClockEvent::GpuIdle]),
        clock_event_ns: BTreeMap::new(),
        recovery_action: RecoveryAction::None,
        memory: memory(81559, 551, 131_072),
        temperature: Temperature {
            gpu: 30,
            memory: 40,
            shutdown: 95,
            slowdown: 89,
            gpu_max: 87,
            memory_max: 95,
        },
        power: power(70_000, 700_000, 200_000),
        clocks: Clocks { graphics: 345, sm: 345, memory: 2619, video: 765 },
        max_clocks: Clocks { graphics: 1980, sm: 1980, memory: 2619, video: 1545 },
        utilization: Utilization::default(),
        ecc: Ecc::default(),
        remapped_rows: Some(RemappedRows::default()),
        retired_pages: None,
        repair: None,
        nvlink: Some(NvLink::default()),
        pcie: pcie(5),
        mig: Some(Mig::default()),
        fabric: Some(Fabric::default()),
        processes: vec![],
        errors: BTreeMap::new(),
    }
}

/// Sizes in MiB.
fn memory(total: u64, reserved: u64, bar1: u64) -> Memory {
    const MIB: u64 = 1 << 20;
    Memory { total: total * MIB, reserved: reserved * MIB, used: 0, bar1_total: bar1 * MIB, bar1_used: MIB }
}

fn power(usage: u32, max_limit: u32, min_limit: u32) -> Power {
    Power { usage, limit: max_limit, default_limit: max_limit, min_limit, max_limit }
}

fn pcie(generation: u32) -> Pcie {
    Pcie {
        generation,
        width: 16,
        max_generation: generation,
        max_width: 16,
        replay_counter: 0,
        tx: 0,
        rx: 0,
        correctable_errors: 0,
        nonfatal_errors: 0,
        fatal_errors: 0,
    }
}

impl Default for GpuFile {
    fn default() -> GpuFile {
        GpuFile {
            driver_version: "570.172.08".to_owned(),
            nvml_version: "12.570.172.08".to_owned(),
            cuda_version: "12.8".to_owned(),
            hang: None,
            missing: Missing::default(),
            errors: BTreeMap::new(),
            gpus: vec![],
        }
    }
}

impl Default for Gpu {
    fn default() -> Gpu {
        h100()
    }
}

impl Default for Memory {
    fn default() -> Memory {
        h100().memory
    }
}

impl Default for Temperature {
    fn default() -> Temperature {
        h100().temperature
    }
}

impl Default for Power {
    fn default() -> Power {
        h100().power
    }
}

impl Default for Clocks {
    fn default() -> Clocks {
        h100().clocks
    }
}

impl Default for Pcie {
    fn default() -> Pcie {
        pcie(5)
    }
}

impl Default for Ecc {
    fn default() -> Ecc {
        Ecc {
            enabled: true,
            pending: true,
            sram_threshold_exceeded: false,
            since_load: EccCounts::default(),
            aggregate: EccCounts::default(),
        }
    }
}

impl Default for RowHistogram {
    fn default() -> RowHistogram {
        RowHistogram { max: 2560, high: 0, partial: 0, low: 0, none: 0 }
    }
}

impl Default for NvLink {
    fn default() -> NvLink {
        NvLink { links: 18, version: 6, speed: 26_562, down: BTreeSet::new(), errors: vec![] }
    }
}

impl Default for Mig {
    fn default() -> Mig {
        Mig { enabled: false, pending: false, max_devices: 7 }
    }
}

impl Default for Fabric {
    fn default() -> Fabric {
        Fabric {
            state: FabricState::Completed,
            status: ReturnCode::Success,
            clique_id: 0,
            cluster_uuid: "00000000-0000-0000-0000-000000000000".to_owned(),
            degraded_bandwidth: HealthFlag::False,
            route_recovery: HealthFlag::False,
            route_unhealthy: HealthFlag::False,
            access_timeout_recovery: HealthFlag::False,
            incorrect_configuration: 1,
        }
    }
}
