//! What is known of a GPU beyond the state that every pass decides by.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Reading;

/// Cheap values of one GPU, read in every mode.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuDetails {
    /// NVML architecture number: 7 Ampere, 9 Hopper, 10 Blackwell.
    pub architecture: Reading<u32>,
    /// The SRAM error threshold of NVIDIA's replacement rule is exceeded.
    pub sram_threshold_exceeded: Reading<bool>,
    /// Corrected ECC errors since driver load, all memories.
    pub ecc_corrected: Reading<u64>,
    /// Repairs that wait for a reset.
    pub repair: Reading<RepairFlags>,
    /// Memory that cannot be repaired was found.
    pub unrepairable_memory: Reading<bool>,
    /// Registration with the NVLink fabric.
    pub fabric: Reading<Fabric>,
    /// NVLink errors since driver load.
    pub nvlink_errors: Reading<NvlinkErrors>,
    /// NVLink-C2C to a Grace CPU.
    pub c2c: Reading<C2c>,
    /// PCIe replays since driver load.
    pub pcie_replays: Reading<u64>,
    /// PCIe lanes in use.
    pub pcie_lanes: Reading<u32>,
    /// Highest PCIe generation of GPU and slot together. The current one falls when the GPU is idle.
    pub pcie_generation: Reading<u32>,
    /// Why clocks are reduced, `nvmlClocksEventReason*` bits.
    pub clock_events: Reading<u64>,
    /// Nanoseconds of hardware thermal slowdown since driver load.
    pub thermal_ns: Reading<u64>,
    /// Nanoseconds of external power brake since driver load.
    pub brake_ns: Reading<u64>,
    /// Nanoseconds of the driver's own thermal slowdown since driver load.
    pub sw_thermal_ns: Reading<u64>,
    /// Nanoseconds at the power limit since driver load: usual for a GPU that works hard.
    pub power_cap_ns: Reading<u64>,
    /// Power drawn now, milliwatts.
    pub power_mw: Reading<u32>,
    /// Power limit in force, milliwatts.
    pub power_limit_mw: Reading<u32>,
    /// Power limit after a reboot, milliwatts.
    pub default_power_limit_mw: Reading<u32>,
    /// Graphics clock that applications get, MHz.
    pub application_clock: Reading<u32>,
    /// The same after a reboot.
    pub default_application_clock: Reading<u32>,
    /// ECC on, now and after the next reset.
    pub ecc_mode: Reading<Mode>,
    /// MIG on, now and after the next reset.
    pub mig_mode: Reading<Mode>,
    /// `default`, `prohibited` or `exclusive_process`.
    pub compute_mode: Reading<String>,
    /// Persistence mode is on, or the persistence daemon holds the GPU.
    pub persistence: Reading<bool>,
    /// Processes with a compute context.
    pub processes: Reading<Vec<GpuProcess>>,
}

impl GpuDetails {
    /// Counters since driver load by name, those that were read.
    #[must_use]
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        let mut all = Vec::new();
        let mut add = |name, value: Option<&u64>| all.extend(value.map(|v| (name, *v)));
        add("ecc_corrected", self.ecc_corrected.value());
        add("pcie_replays", self.pcie_replays.value());
        add("thermal_ns", self.thermal_ns.value());
        add("brake_ns", self.brake_ns.value());
        add("sw_thermal_ns", self.sw_thermal_ns.value());
        add("power_cap_ns", self.power_cap_ns.value());
        add("nvlink_recovery", self.nvlink_errors.value().map(|e| &e.recovery));
        add("nvlink_crc", self.nvlink_errors.value().map(|e| &e.crc));
        add("nvlink_replay", self.nvlink_errors.value().map(|e| &e.replay));
        add("c2c_errors", self.c2c.value().map(|c| &c.errors));
        all
    }
}

/// Values of one GPU that only slow passes need.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuSurvey {
    /// Memory banks by spare rows.
    pub row_spares: Reading<RowSpares>,
    /// Rows remapped because of uncorrectable errors, field 143.
    pub remapped_uncorrectable: Reading<u64>,
    /// Retired pages (before Ampere).
    pub retired_pages: Reading<RetiredPages>,
    /// The infoROM's checksum is right.
    pub inforom_valid: Reading<bool>,
    /// Speed of each active NVLink, one direction, MB/s.
    pub nvlink_speeds: Reading<BTreeMap<u32, u64>>,
    /// VBIOS version.
    pub vbios: Reading<String>,
    /// GSP firmware version.
    pub gsp: Reading<String>,
    /// Time in which it computed of the last second, percent.
    pub busy_percent: Reading<u32>,
}

/// A mode that changes at the next reset.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Mode {
    /// On now.
    pub current: bool,
    /// On after the next reset.
    pub pending: bool,
}

/// Repairs that wait for a reset.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct RepairFlags {
    /// A memory channel's.
    pub channel_pending: bool,
    /// A TPC's.
    pub tpc_pending: bool,
}

/// Registration with the NVLink fabric.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Fabric {
    /// 0 not supported, 1 not started, 2 in progress, 3 completed.
    pub state: u32,
    /// `nvmlReturn_t` with which registration ended: 0 success, 3 not supported.
    pub status: u32,
    /// Clique within the cluster.
    pub clique: u32,
    /// Cluster UUID, 32 hex digits.
    pub cluster: String,
    /// `NVML_GPU_FABRIC_HEALTH_MASK_*`, where the driver tells it.
    pub health_mask: Option<u32>,
}

/// NVLink errors of one GPU since driver load, summed over its links.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct NvlinkErrors {
    /// Link recoveries.
    pub recovery: u64,
    /// CRC errors (up to NVLink 4) or effective errors after correction (NVLink 5).
    pub crc: u64,
    /// Replays (up to NVLink 4).
    pub replay: u64,
    /// Highest bit error rate after error correction, and its link (NVLink 5).
    pub worst_ber: Option<(u32, f64)>,
    /// Links with any error.
    pub links: Vec<u32>,
}

/// NVLink-C2C.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct C2c {
    /// Links by number: active or not.
    pub links: BTreeMap<u32, bool>,
    /// Interrupts and replays since driver load, all links.
    pub errors: u64,
}

/// Memory banks by the spare rows they have left.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct RowSpares {
    /// All spare rows left.
    pub max: u32,
    /// Most.
    pub high: u32,
    /// Some.
    pub partial: u32,
    /// Few.
    pub low: u32,
    /// None.
    pub none: u32,
}

/// Retired pages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct RetiredPages {
    /// Retired for repeated single-bit errors.
    pub single_bit: u64,
    /// Retired for a double-bit error.
    pub double_bit: u64,
    /// Of those, in the last week.
    pub double_bit_last_week: u64,
    /// A retirement waits for a reboot.
    pub pending: bool,
}

/// A process with a compute context on a GPU.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuProcess {
    /// Process id.
    pub pid: u32,
    /// Whose it is.
    pub owner: Owner,
    /// Command name; chosen by the process, never trusted.
    pub name: String,
}

/// Whose a process is, by its control group.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Owner {
    /// Not looked up.
    #[default]
    Unknown,
    /// In the control group of this job.
    Job(String),
    /// In no job's control group.
    NoJob,
    /// There is no such process any more.
    Gone,
}

/// What is known of the GPU software of this node.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuNode {
    /// `/sys/module/nvidia/version`.
    pub module_version: Reading<String>,
    /// State of nvidia-fabricmanager; not read where nothing needs it.
    pub fabric_manager: Option<Reading<Service>>,
    /// First line of the local IMEX daemon's answer; not read unless the profile asks for it.
    pub imex: Option<Reading<String>>,
    /// The node has IMEX channels.
    pub imex_channels: bool,
    /// MPS daemons; read after jobs and in deep passes.
    pub mps: Option<Reading<Vec<GpuProcess>>>,
    /// What CUDA could do with each GPU, by PCI address, or with none, under ""; read in deep passes on an idle node.
    pub usable: Option<Reading<BTreeMap<String, Usable>>>,
    /// Jobs of those processes that this node knows to have ended.
    pub ended_jobs: Vec<String>,
}

/// What came of a context and a copy on a GPU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Usable {
    /// They worked.
    Works,
    /// CUDA said this.
    Fails(String),
    /// No answer in time.
    Hangs(String),
}

/// State of a system service, as systemd words it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Service {
    /// `loaded`, `not-found`, `masked` ...
    pub load: String,
    /// `active`, `inactive`, `failed` ...
    pub active: String,
}
