//! The GPUs of one simulated node, as written in `gpus.toml`.
//!
//! The simulator builds a [`GpuFile`] with [`GpuFile::new`], changes fields to inject a fault and writes it with
//! [`GpuFile::save_atomic`]; the library reads it with [`GpuFile::load`]. Every key has a default (those of an
//! idle, healthy H100 SXM), and unknown keys are refused, so a misspelt fault never passes for a healthy GPU.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

pub use crate::preset::{GpuModel, UnknownModel};

/// Why a GPU file could not be read or written. Every message names the file.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The file could not be read.
    #[error("cannot read the GPU file {path}: {source}")]
    Read {
        /// The GPU file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file is not TOML, or holds an unknown key or a value of the wrong type.
    #[error("the GPU file {path} is malformed: {detail}")]
    Malformed {
        /// The GPU file.
        path: PathBuf,
        /// Line, key and reason.
        detail: String,
    },
    /// The values contradict each other, or are out of range.
    #[error("the GPU file {path} cannot be used: {detail}")]
    Invalid {
        /// The GPU file.
        path: PathBuf,
        /// Which GPU and key, and the mend.
        detail: String,
    },
    /// The file could not be written.
    #[error("cannot write the GPU file {path}: {source}")]
    Write {
        /// The GPU file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
}

/// All that one simulated `libnvidia-ml.so.1` answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuFile {
    /// Driver release, `MAJOR.MINOR[.PATCH]`. From 580.82 on, field ids 251-273 have their new meaning.
    #[serde(default = "defaults::driver_version")]
    pub driver_version: String,
    /// NVML release, as `nvmlSystemGetNVMLVersion` gives it.
    #[serde(default = "defaults::nvml_version")]
    pub nvml_version: String,
    /// CUDA release of the driver, `MAJOR.MINOR`.
    #[serde(default = "defaults::cuda_version")]
    pub cuda_version: String,
    /// A call that hangs.
    #[serde(default)]
    pub hang: Option<Hang>,
    /// Functions that the library pretends not to know.
    #[serde(default)]
    pub missing: Missing,
    /// Return code forced on a function of every GPU, by the function's name: `nvmlDeviceGetName = "UNKNOWN"`.
    #[serde(default)]
    pub errors: BTreeMap<String, ReturnCode>,
    /// The node's GPUs, in the order of their NVML index. The one key without a default: an empty file is refused,
    /// so that a file caught while it is written anew never passes for a node without GPUs (write `gpus = []`).
    pub gpus: Vec<Gpu>,
}

/// What serde fills in for absent keys of [`GpuFile`].
mod defaults {
    use super::GpuFile;

    pub(super) fn driver_version() -> String {
        GpuFile::default().driver_version
    }

    pub(super) fn nvml_version() -> String {
        GpuFile::default().nvml_version
    }

    pub(super) fn cuda_version() -> String {
        GpuFile::default().cuda_version
    }
}

/// One call (or all) that does not come back for a while.
///
/// The call then goes on as if nothing had been. It also goes on when the fault is taken out of the file, or the
/// file itself is removed, so that clearing a fault leaves no stuck process behind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hang {
    /// Function that hangs, or `*` for every one. `nvmlInit` also means `nvmlInit_v2`: see [`names_function`].
    pub function: String,
    /// Only calls for this GPU (position in [`GpuFile::gpus`]); absent: for every GPU, and calls without a GPU too.
    #[serde(default)]
    pub gpu: Option<usize>,
    /// How long each call hangs, seconds (0 to 86400). Not together with `forever`.
    #[serde(default)]
    pub seconds: Option<f64>,
    /// The call never returns.
    #[serde(default)]
    pub forever: bool,
}

/// Functions that the library pretends not to know.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Missing {
    /// Their names. The symbols stay (`dlsym` cannot be told otherwise once the library is loaded), but the calls
    /// return `NVML_ERROR_FUNCTION_NOT_FOUND`. For a library without the symbols see [`crate::install`].
    pub functions: Vec<String>,
}

/// One GPU. [`Gpu::default`] is an idle, healthy H100 SXM.
///
/// A key absent from the file has that default, but an absent table (`nvlink`, `mig`, `fabric`, `remapped_rows`,
/// `retired_pages`, `repair`) means that the GPU has no such thing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Gpu {
    /// The GPU is not enumerated: it is not counted, and those behind it move up by one index.
    pub missing: bool,
    /// The GPU fell off the bus while in use: counted, but every call for it returns `NVML_ERROR_GPU_IS_LOST`.
    pub lost: bool,
    /// Product name.
    pub name: String,
    /// Brand, `nvmlBrandType_t` (14 is NVIDIA).
    pub brand: u32,
    /// Architecture, `nvmlDeviceArchitecture_t` (7 Ampere, 9 Hopper, 10 Blackwell).
    pub architecture: u32,
    /// CUDA compute capability, major and minor.
    pub compute_capability: [u8; 2],
    /// CUDA cores.
    pub cores: u32,
    /// Width of the memory bus, bits.
    pub memory_bus_width: u32,
    /// UUID, `GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx`.
    pub uuid: String,
    /// Board serial number, digits.
    pub serial: String,
    /// N of `/dev/nvidiaN`.
    pub minor_number: u32,
    /// PCI address, `DOMAIN:BUS:DEVICE.0` in hexadecimal.
    pub pci_address: PciAddress,
    /// PCI device id in the upper, vendor id in the lower 16 bits.
    pub pci_device_id: u32,
    /// PCI subsystem device id in the upper, subsystem vendor id in the lower 16 bits.
    pub pci_subsystem_id: u32,
    /// VBIOS version.
    pub vbios: String,
    /// InfoROM image version.
    pub inforom_image: String,
    /// The infoROM's checksum is right; otherwise `nvmlDeviceValidateInforom` says CORRUPTED_INFOROM.
    pub inforom_valid: bool,
    /// Board part number.
    pub board_part_number: String,
    /// NUMA node, -1 for none.
    pub numa_node: i32,
    /// Performance state, 0 (fastest) to 15.
    pub performance_state: u32,
    /// Persistence mode is on.
    pub persistence_mode: bool,
    /// Compute mode.
    pub compute_mode: ComputeMode,
    /// Energy used since the driver was loaded, millijoules.
    pub energy_mj: u64,
    /// Why the clocks are below their maximum; empty: they are not.
    pub clock_events: BTreeSet<ClockEvent>,
    /// How long each reason has reduced the clocks since the driver was loaded, nanoseconds.
    pub clock_event_ns: BTreeMap<ClockEvent, u64>,
    /// What the driver says must be done before the GPU can be used again.
    pub recovery_action: RecoveryAction,
    /// Frame buffer.
    pub memory: Memory,
    /// Temperatures and their limits.
    pub temperature: Temperature,
    /// Power and its limits.
    pub power: Power,
    /// Current clocks.
    pub clocks: Clocks,
    /// Highest clocks.
    pub max_clocks: Clocks,
    /// Utilization.
    pub utilization: Utilization,
    /// ECC mode and error counters.
    pub ecc: Ecc,
    /// Row remapping; absent: the GPU retires pages instead.
    #[serde(default)]
    pub remapped_rows: Option<RemappedRows>,
    /// Page retirement (before Ampere); absent: not supported.
    #[serde(default)]
    pub retired_pages: Option<RetiredPages>,
    /// Repair state (Blackwell and later); absent: not supported.
    #[serde(default)]
    pub repair: Option<Repair>,
    /// NVLink; absent: none.
    #[serde(default)]
    pub nvlink: Option<NvLink>,
    /// PCIe link.
    pub pcie: Pcie,
    /// MIG; absent: not supported.
    #[serde(default)]
    pub mig: Option<Mig>,
    /// NVLink fabric; absent: the GPU is not part of one.
    #[serde(default)]
    pub fabric: Option<Fabric>,
    /// Processes that hold the GPU.
    pub processes: Vec<Process>,
    /// Return code forced on a function of this GPU, by the function's name.
    pub errors: BTreeMap<String, ReturnCode>,
}

/// Frame buffer and BAR1.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Memory {
    /// Total frame buffer, bytes.
    pub total: u64,
    /// Held by driver and firmware, bytes; part of neither `used` nor free in version 2 of the call.
    pub reserved: u64,
    /// Used by processes, bytes.
    pub used: u64,
    /// BAR1 size, bytes.
    pub bar1_total: u64,
    /// BAR1 in use, bytes.
    pub bar1_used: u64,
}

/// Temperatures, degrees Celsius.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Temperature {
    /// GPU core.
    pub gpu: i32,
    /// Memory.
    pub memory: i32,
    /// At which the GPU shuts down.
    pub shutdown: i32,
    /// At which hardware slows the clocks.
    pub slowdown: i32,
    /// Highest operating temperature of the core. `T.Limit` margin = this minus `gpu`.
    pub gpu_max: i32,
    /// Highest operating temperature of the memory.
    pub memory_max: i32,
}

/// Power, milliwatts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Power {
    /// Drawn now.
    pub usage: u32,
    /// Limit in force.
    pub limit: u32,
    /// Limit after a reboot.
    pub default_limit: u32,
    /// Lowest limit that can be set.
    pub min_limit: u32,
    /// Highest limit that can be set.
    pub max_limit: u32,
}

/// Clocks, MHz.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Clocks {
    /// Graphics engine.
    pub graphics: u32,
    /// Streaming multiprocessors.
    pub sm: u32,
    /// Memory.
    pub memory: u32,
    /// Video engines.
    pub video: u32,
}

/// Utilization over the last sample period, percent.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Utilization {
    /// Time with a kernel running.
    pub gpu: u32,
    /// Time with memory being read or written.
    pub memory: u32,
}

/// ECC mode and error counters.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Ecc {
    /// ECC is on.
    pub enabled: bool,
    /// ECC will be on after the next reset.
    pub pending: bool,
    /// The SRAM error threshold of NVIDIA's replacement policy is exceeded.
    pub sram_threshold_exceeded: bool,
    /// Since the driver was loaded.
    #[serde(rename = "volatile")]
    pub since_load: EccCounts,
    /// Over the GPU's life.
    pub aggregate: EccCounts,
}

/// ECC error counts, by where they happened. Totals are the sums.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EccCounts {
    /// Device memory, corrected.
    pub dram_corrected: u64,
    /// Device memory, uncorrectable.
    pub dram_uncorrected: u64,
    /// SRAM (caches, register files), corrected.
    pub sram_corrected: u64,
    /// SRAM, uncorrectable, found by parity.
    pub sram_parity: u64,
    /// SRAM, uncorrectable, found by SEC-DED.
    pub sram_secded: u64,
    /// Of the uncorrectable SRAM errors, those in the L2 cache.
    pub sram_l2: u64,
    /// Of the uncorrectable SRAM errors, those in the streaming multiprocessors.
    pub sram_sm: u64,
    /// Of the uncorrectable SRAM errors, those in microcontrollers.
    pub sram_mcu: u64,
    /// Of the uncorrectable SRAM errors, those in the PCIe unit.
    pub sram_pcie: u64,
}

impl EccCounts {
    /// Uncorrectable SRAM errors.
    pub fn sram_uncorrected(&self) -> u64 {
        self.sram_parity.saturating_add(self.sram_secded)
    }

    /// Uncorrectable SRAM errors in none of the named units.
    pub fn sram_other(&self) -> u64 {
        let named = self.sram_l2.saturating_add(self.sram_sm).saturating_add(self.sram_mcu);
        self.sram_uncorrected().saturating_sub(named.saturating_add(self.sram_pcie))
    }
}

/// Row remapping.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RemappedRows {
    /// Rows remapped because of corrected errors.
    pub correctable: u32,
    /// Rows remapped because of uncorrectable errors.
    pub uncorrectable: u32,
    /// A remapping waits for the next reset.
    pub pending: bool,
    /// A remapping failed: the GPU must be replaced.
    pub failure: bool,
    /// How many spare rows the memory banks have left.
    pub histogram: RowHistogram,
}

/// Number of memory banks by the spare rows they have left.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RowHistogram {
    /// All spare rows left.
    pub max: u32,
    /// Most left.
    pub high: u32,
    /// Some left.
    pub partial: u32,
    /// Few left.
    pub low: u32,
    /// None left.
    pub none: u32,
}

/// Page retirement.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RetiredPages {
    /// Addresses of pages retired for repeated single-bit errors.
    pub single_bit: Vec<u64>,
    /// Addresses of pages retired for a double-bit error.
    pub double_bit: Vec<u64>,
    /// A retirement waits for the next reboot.
    pub pending: bool,
}

/// Repair state.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Repair {
    /// A memory channel's repair waits for the next reset.
    pub channel_pending: bool,
    /// A TPC's repair waits for the next reset.
    pub tpc_pending: bool,
    /// Memory that cannot be repaired was found (drivers from 590 on tell).
    pub unrepairable_memory: bool,
}

/// NVLink.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NvLink {
    /// Number of links, 1 to 18.
    pub links: u32,
    /// Version of the links, `nvmlNvlinkVersion_t` (4 is NVLink 3.0, 6 is 4.0, 7 is 5.0).
    pub version: u32,
    /// Speed of one link in one direction, MB/s.
    pub speed: u32,
    /// Numbers of the links that are down.
    pub down: BTreeSet<u32>,
    /// Error counters of the links that have any.
    pub errors: Vec<NvLinkErrors>,
}

/// Error counters of one link.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NvLinkErrors {
    /// The link's number.
    pub link: u32,
    /// Replays of the data link layer.
    pub replay: u64,
    /// Recoveries of the link.
    pub recovery: u64,
    /// CRC errors in flow control flits.
    pub crc_flit: u64,
    /// CRC errors in data.
    pub crc_data: u64,
    /// ECC errors in data.
    pub ecc_data: u64,
    /// Recoveries that succeeded (NVLink 5).
    pub recovery_successful: u64,
    /// Recoveries that failed (NVLink 5).
    pub recovery_failed: u64,
    /// Effective errors, after error correction (NVLink 5).
    pub effective: u64,
    /// Symbol errors (NVLink 5).
    pub symbol: u64,
    /// Bit error rate after error correction (NVLink 5); 0 is none seen.
    pub effective_ber: f64,
    /// Symbol error rate (NVLink 5); 0 is none seen.
    pub symbol_ber: f64,
}

/// PCIe link.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Pcie {
    /// Generation the link runs at now (falls when idle).
    pub generation: u32,
    /// Lanes in use now.
    pub width: u32,
    /// Highest generation of GPU and slot together.
    pub max_generation: u32,
    /// Highest number of lanes of GPU and slot together.
    pub max_width: u32,
    /// Replays since the driver was loaded.
    pub replay_counter: u32,
    /// Sent, KB/s.
    pub tx: u32,
    /// Received, KB/s.
    pub rx: u32,
    /// Corrected errors.
    pub correctable_errors: u32,
    /// Uncorrectable, not fatal errors.
    pub nonfatal_errors: u32,
    /// Fatal errors.
    pub fatal_errors: u32,
}

/// MIG mode. GPU instances are not simulated: a GPU in MIG mode has none.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Mig {
    /// MIG mode is on.
    pub enabled: bool,
    /// MIG mode will be on after the next reset.
    pub pending: bool,
    /// Most MIG devices the GPU can have.
    pub max_devices: u32,
}

/// Membership in an NVLink fabric.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Fabric {
    /// Registration of the GPU with the fabric.
    pub state: FabricState,
    /// How the registration ended, meaningful when `state` is completed.
    pub status: ReturnCode,
    /// Fabric clique.
    pub clique_id: u32,
    /// UUID of the fabric's cluster, 32 hexadecimal digits with or without dashes.
    pub cluster_uuid: String,
    /// Links run below their bandwidth.
    pub degraded_bandwidth: HealthFlag,
    /// A route is being recovered.
    pub route_recovery: HealthFlag,
    /// A route is not usable.
    pub route_unhealthy: HealthFlag,
    /// An access time-out is being recovered.
    pub access_timeout_recovery: HealthFlag,
    /// Wrong configuration, `NVML_GPU_FABRIC_HEALTH_MASK_INCORRECT_CONFIGURATION_*` (0 not supported, 1 none).
    pub incorrect_configuration: u32,
}

/// One process that holds a GPU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Process {
    /// Process id.
    pub pid: u32,
    /// Frame buffer it uses, bytes.
    #[serde(default)]
    pub used_memory: u64,
    /// What it does there.
    #[serde(default)]
    pub kind: ProcessKind,
}

/// What a process does with a GPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProcessKind {
    /// A CUDA context.
    #[default]
    Compute,
    /// A graphics context.
    Graphics,
}

/// Who may use a GPU for compute. The values are NVML's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u32)]
pub enum ComputeMode {
    /// Any number of processes.
    #[default]
    Default = 0,
    /// Nobody.
    Prohibited = 2,
    /// One process.
    ExclusiveProcess = 3,
}

/// Why clocks are reduced. The values are NVML's bits (`nvmlClocksEventReason*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u64)]
pub enum ClockEvent {
    /// Nothing runs.
    GpuIdle = 0x1,
    /// Clocks were set by an application.
    ApplicationsClocksSetting = 0x2,
    /// The software power cap.
    SwPowerCap = 0x4,
    /// Hardware slowdown: heat, power brake, or power draw too high.
    HwSlowdown = 0x8,
    /// Sync boost group.
    SyncBoost = 0x10,
    /// Software thermal slowdown.
    SwThermalSlowdown = 0x20,
    /// Hardware thermal slowdown.
    HwThermalSlowdown = 0x40,
    /// The external power brake is asserted.
    HwPowerBrakeSlowdown = 0x80,
    /// Display clock setting.
    DisplayClockSetting = 0x100,
}

/// What must be done before a GPU can be used again. The values are NVML's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u32)]
pub enum RecoveryAction {
    /// Nothing.
    #[default]
    None = 0,
    /// Reset the GPU.
    GpuReset = 1,
    /// Reboot the node.
    NodeReboot = 2,
    /// Stop peer-to-peer traffic.
    DrainP2p = 3,
    /// Let work end, then reset.
    DrainAndReset = 4,
    /// Recover the IMEX domain.
    RecoverImexDomain = 5,
    /// Reset the bus (drivers from 615 on).
    BusReset = 6,
    /// Reboot the system (drivers from 615 on).
    SystemReboot = 7,
}

/// State of a GPU's registration with its fabric. The values are NVML's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u32)]
pub enum FabricState {
    /// The GPU has no fabric.
    NotSupported = 0,
    /// Not begun.
    NotStarted = 1,
    /// Under way.
    InProgress = 2,
    /// Ended: `status` tells how.
    Completed = 3,
}

/// One flag of the fabric's health mask. The values are NVML's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u32)]
pub enum HealthFlag {
    /// The GPU cannot tell.
    NotSupported = 0,
    /// It is so.
    True = 1,
    /// It is not so.
    #[default]
    False = 2,
}

/// An NVML return code, by its name without `NVML_ERROR_`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
#[repr(u32)]
#[allow(missing_docs)] // NVML's own names and values; see nvmlReturn_t in nvml.h.
pub enum ReturnCode {
    Success = 0,
    Uninitialized = 1,
    InvalidArgument = 2,
    NotSupported = 3,
    NoPermission = 4,
    AlreadyInitialized = 5,
    NotFound = 6,
    InsufficientSize = 7,
    InsufficientPower = 8,
    DriverNotLoaded = 9,
    Timeout = 10,
    IrqIssue = 11,
    LibraryNotFound = 12,
    FunctionNotFound = 13,
    CorruptedInforom = 14,
    GpuIsLost = 15,
    ResetRequired = 16,
    OperatingSystem = 17,
    LibRmVersionMismatch = 18,
    InUse = 19,
    Memory = 20,
    NoData = 21,
    VgpuEccNotSupported = 22,
    InsufficientResources = 23,
    FreqNotSupported = 24,
    ArgumentVersionMismatch = 25,
    Deprecated = 26,
    NotReady = 27,
    GpuNotFound = 28,
    InvalidState = 29,
    ResetTypeNotSupported = 30,
    Unknown = 999,
}

/// A PCI address, `DOMAIN:BUS:DEVICE.FUNCTION`, written as the kernel writes it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PciAddress {
    /// Domain. NVML's is 32 bits wide.
    pub domain: u32,
    /// Bus.
    pub bus: u8,
    /// Device, 0 to 31.
    pub device: u8,
    /// Function, 0 to 7.
    pub function: u8,
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:02x}:{:02x}.{}", self.domain, self.bus, self.device, self.function)
    }
}

impl FromStr for PciAddress {
    type Err = String;

    /// Reads `D:B:D`, `D:B:D.F` or `B:D.F`, hexadecimal, any number of leading zeros.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is not a PCI address such as 3a1c:5d:00.0");
        let (rest, function) = text.split_once('.').unwrap_or((text, "0"));
        let parts: Vec<&str> = rest.split(':').collect();
        let (domain, bus, device) = match parts[..] {
            [bus, device] => ("0", bus, device),
            [domain, bus, device] => (domain, bus, device),
            _ => return Err(wrong()),
        };
        let hex = |digits: &str| u32::from_str_radix(digits, 16).map_err(|_| wrong());
        let address = PciAddress {
            domain: hex(domain)?,
            bus: u8::try_from(hex(bus)?).map_err(|_| wrong())?,
            device: u8::try_from(hex(device)?).map_err(|_| wrong())?,
            function: u8::try_from(hex(function)?).map_err(|_| wrong())?,
        };
        if address.device > 31 || address.function > 7 { Err(wrong()) } else { Ok(address) }
    }
}

impl TryFrom<String> for PciAddress {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<PciAddress> for String {
    fn from(address: PciAddress) -> String {
        address.to_string()
    }
}

/// Whether `wanted` (from the file) means the exported function `called`.
///
/// It does when the names are equal, when `wanted` is `*`, or when `called` is a versioned form of it:
/// `nvmlInit` means `nvmlInit_v2`, `nvmlDeviceGetTemperature` means `nvmlDeviceGetTemperatureV`.
pub fn names_function(wanted: &str, called: &str) -> bool {
    let rest = match called.strip_prefix(wanted) {
        Some(rest) => rest,
        None => return wanted == "*",
    };
    let digits = rest.strip_prefix("_v").unwrap_or("");
    rest.is_empty() || rest == "V" || (!digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()))
}

impl GpuFile {
    /// `gpus` healthy, idle GPUs of one model.
    ///
    /// `domain` is the PCI domain of this node's GPUs: nodes that share a kernel log need one each.
    /// `node_index` goes into UUIDs and serial numbers, so that no two GPUs of a cluster share one.
    pub fn new(model: GpuModel, gpus: usize, domain: u32, node_index: u32) -> GpuFile {
        GpuFile {
            gpus: (0..gpus).map(|index| crate::preset::gpu(model, index, domain, node_index)).collect(),
            ..GpuFile::default()
        }
    }

    /// [`GpuFile::new`] for `NVIDIA H100 80GB HBM3`.
    pub fn h100_sxm(gpus: usize, domain: u32, node_index: u32) -> GpuFile {
        GpuFile::new(GpuModel::H100Sxm, gpus, domain, node_index)
    }

    /// Reads and validates a GPU file.
    ///
    /// # Errors
    /// The file cannot be read, is not TOML, has an unknown key or a value of the wrong type or out of range.
    pub fn load(path: &Path) -> Result<GpuFile, ModelError> {
        let text = fs::read_to_string(path)
            .map_err(|source| ModelError::Read { path: path.to_path_buf(), source })?;
        GpuFile::parse(&text, path)
    }

    /// Reads and validates the text of a GPU file; `path` is for the error message.
    ///
    /// # Errors
    /// As [`GpuFile::load`].
    pub fn parse(text: &str, path: &Path) -> Result<GpuFile, ModelError> {
        if !text.ends_with('\n') {
            let detail =
                "its last line has no end, so it may be half-written; end it with a new line".to_owned();
            return Err(ModelError::Malformed { path: path.to_path_buf(), detail });
        }
        let file: GpuFile = toml::from_str(text).map_err(|error| ModelError::Malformed {
            path: path.to_path_buf(),
            detail: one_line(&error, text),
        })?;
        file.validate().map_err(|detail| ModelError::Invalid { path: path.to_path_buf(), detail })?;
        Ok(file)
    }

    /// Validates and writes the file so that a reader sees the old or the new one, never half of one.
    ///
    /// # Errors
    /// A value is out of range, or the file cannot be written.
    pub fn save_atomic(&self, path: &Path) -> Result<(), ModelError> {
        self.validate().map_err(|detail| ModelError::Invalid { path: path.to_path_buf(), detail })?;
        let text = toml::to_string(self)
            .map_err(|error| ModelError::Invalid { path: path.to_path_buf(), detail: error.to_string() })?;
        let write = || {
            let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
            let mut file = tempfile::NamedTempFile::new_in(folder)?;
            file.write_all(text.as_bytes())?;
            // Ordinary users' programs read it too; a temporary file is private by default.
            fs::set_permissions(file.path(), std::os::unix::fs::PermissionsExt::from_mode(0o644))?;
            file.persist(path).map_err(|error| error.error)?;
            Ok(())
        };
        write().map_err(|source| ModelError::Write { path: path.to_path_buf(), source })
    }

    /// The one rule a file can break after it was read: values that contradict each other.
    fn validate(&self) -> Result<(), String> {
        if cuda_version_number(&self.cuda_version).is_none() {
            return Err(format!("cuda_version `{}` is not MAJOR.MINOR, for example 12.8", self.cuda_version));
        }
        if driver_release(&self.driver_version).is_none() {
            return Err(format!(
                "driver_version `{}` is not MAJOR.MINOR[.PATCH], for example 570.172.08",
                self.driver_version
            ));
        }
        if let Some(hang) = &self.hang {
            let in_range = hang.seconds.is_none_or(|s| (0.0..=86400.0).contains(&s));
            if hang.forever == hang.seconds.is_some() || !in_range {
                return Err("[hang] needs either `seconds`, from 0 to 86400, or `forever = true`".to_owned());
            }
            if let Some(gpu) = hang.gpu.filter(|&gpu| gpu >= self.gpus.len()) {
                return Err(format!("[hang] names gpu {gpu}, but the file has {} GPUs", self.gpus.len()));
            }
        }
        let (mut uuids, mut addresses, mut minors) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        for (index, gpu) in self.gpus.iter().enumerate() {
            gpu.validate().map_err(|detail| format!("gpus[{index}]: {detail}"))?;
            if !uuids.insert(&gpu.uuid) {
                return Err(format!("gpus[{index}]: uuid {} is another GPU's already", gpu.uuid));
            }
            if !addresses.insert(gpu.pci_address) {
                return Err(format!(
                    "gpus[{index}]: pci_address {} is another GPU's already",
                    gpu.pci_address
                ));
            }
            if !minors.insert(gpu.minor_number) {
                return Err(format!(
                    "gpus[{index}]: minor_number {} is another GPU's already",
                    gpu.minor_number
                ));
            }
        }
        Ok(())
    }
}

impl Gpu {
    fn validate(&self) -> Result<(), String> {
        let texts = [
            ("name", &self.name, 96),
            ("uuid", &self.uuid, 80),
            ("serial", &self.serial, 30),
            ("vbios", &self.vbios, 32),
            ("inforom_image", &self.inforom_image, 16),
            ("board_part_number", &self.board_part_number, 80),
        ];
        for (key, text, size) in texts {
            // NVML's buffers have these sizes, final NUL included.
            if text.len() >= size || !text.bytes().all(|b| b.is_ascii_graphic() || b == b' ') {
                return Err(format!("{key} must be printable ASCII of less than {size} characters"));
            }
        }
        if self.memory.used.saturating_add(self.memory.reserved) > self.memory.total {
            return Err("memory.used and memory.reserved together are more than memory.total".to_owned());
        }
        if self.performance_state > 15 {
            return Err(format!("performance_state {} is not 0 to 15", self.performance_state));
        }
        if let Some(nvlink) = &self.nvlink {
            if !(1..=18).contains(&nvlink.links) {
                return Err(format!("nvlink.links {} is not 1 to 18", nvlink.links));
            }
            let named = nvlink.down.iter().chain(nvlink.errors.iter().map(|e| &e.link));
            if let Some(link) = named.copied().find(|&link| link >= nvlink.links) {
                return Err(format!(
                    "nvlink names link {link}, but the GPU has links 0 to {}",
                    nvlink.links - 1
                ));
            }
        }
        if let Some(fabric) = &self.fabric {
            if fabric.cluster_uuid_bytes().is_none() {
                return Err(format!(
                    "fabric.cluster_uuid `{}` is not 32 hexadecimal digits",
                    fabric.cluster_uuid
                ));
            }
            if fabric.incorrect_configuration > 15 {
                return Err("fabric.incorrect_configuration is not 0 to 15".to_owned());
            }
        }
        Ok(())
    }
}

impl Fabric {
    /// The cluster UUID as 16 bytes; `None` when it is not 32 hexadecimal digits.
    pub fn cluster_uuid_bytes(&self) -> Option<[u8; 16]> {
        let digits: String = self.cluster_uuid.chars().filter(|&c| c != '-').collect();
        if digits.len() != 32 {
            return None;
        }
        u128::from_str_radix(&digits, 16).ok().map(u128::to_be_bytes)
    }
}

/// CUDA's number for a release: 1000 x major + 10 x minor.
pub fn cuda_version_number(text: &str) -> Option<i32> {
    let (major, minor) = text.split_once('.')?;
    let (major, minor) = (major.parse::<i32>().ok()?, minor.parse::<i32>().ok()?);
    ((0..1000).contains(&major) && (0..100).contains(&minor)).then_some(1000 * major + 10 * minor)
}

/// Major and minor number of a driver release.
pub fn driver_release(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.split('.').map(str::parse::<u32>);
    let release = (parts.next()?.ok()?, parts.next()?.ok()?);
    parts.all(|part| part.is_ok()).then_some(release)
}

/// `line N: message`, on one line.
fn one_line(error: &toml::de::Error, text: &str) -> String {
    let message = error.message().split_whitespace().collect::<Vec<_>>().join(" ");
    match error.span().and_then(|span| text.get(..span.start)) {
        Some(before) => format!("line {}: {message}", before.matches('\n').count() + 1),
        None => message,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<GpuFile, String> {
        GpuFile::parse(text, Path::new("gpus.toml")).map_err(|error| error.to_string())
    }

    #[test]
    fn every_model_survives_a_round_trip() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("gpus.toml");
        for model in GpuModel::ALL {
            let mut written = GpuFile::new(model, 8, 0x3a1c, 2);
            written.hang =
                Some(Hang { function: "*".to_owned(), gpu: Some(3), seconds: Some(0.5), forever: false });
            written.errors.insert("nvmlDeviceGetName".to_owned(), ReturnCode::Unknown);
            written.gpus[1].lost = true;
            written.gpus[2].nvlink.as_mut().unwrap().down.insert(4);
            written.gpus[2].processes.push(Process { pid: 7, used_memory: 1, kind: ProcessKind::Graphics });
            written.save_atomic(&path).unwrap();
            assert_eq!(GpuFile::load(&path).unwrap(), written, "{model}");
        }
    }

    #[test]
    fn no_two_gpus_of_a_cluster_share_an_identity() {
        let gpus: Vec<Gpu> = (0..4).flat_map(|node| GpuFile::h100_sxm(16, 0x100 + node, node).gpus).collect();
        let distinct = |value: fn(&Gpu) -> String| gpus.iter().map(value).collect::<BTreeSet<_>>().len();
        assert_eq!(distinct(|g| g.uuid.clone()), 64);
        assert_eq!(distinct(|g| g.serial.clone()), 64);
        assert_eq!(distinct(|g| g.pci_address.to_string()), 64);
        assert!(gpus.iter().all(|g| g.validate().is_ok()));
    }

    #[test]
    fn refusals_name_file_place_and_mend() {
        assert_eq!(
            parse("[[gpus]]\nlots = true\n").unwrap_err().split(", expected").next().unwrap(),
            "the GPU file gpus.toml is malformed: line 2: unknown field `lots`"
        );
        assert!(parse("[[gpus]]\nlost = 1\n").unwrap_err().contains("line 2: invalid type: integer `1`"));
        assert!(parse("").unwrap_err().contains("half-written"));
        assert!(parse("\n").unwrap_err().contains("missing field `gpus`"));
        assert!(parse("gpus = []\n[missing]\nfunct").unwrap_err().contains("half-written"));
        assert!(parse("gpus = []\n[hang]\nfunction = \"*\"\n").unwrap_err().contains("forever = true"));
        assert!(
            parse("gpus = []\n[hang]\nfunction = \"*\"\nseconds = nan\n").unwrap_err().contains("0 to 86400")
        );
        assert!(parse("[[gpus]]\n[[gpus]]\n").unwrap_err().contains("gpus[1]: uuid"));
        assert!(
            parse("gpus = []\n[errors]\nnvmlInit = \"BROKEN\"\n")
                .unwrap_err()
                .contains("unknown variant `BROKEN`")
        );
        assert!(parse("[[gpus]]\n[gpus.nvlink]\ndown = [18]\n").unwrap_err().contains("links 0 to 17"));
        assert!(parse("[[gpus]]\npci_address = \"5d:20.0\"\n").unwrap_err().contains("not a PCI address"));
    }

    #[test]
    fn pci_addresses_in_every_common_spelling() {
        let wanted = PciAddress { domain: 0x3a1c, bus: 0x5d, device: 0, function: 0 };
        for text in ["3a1c:5d:00.0", "00003A1C:5D:00.0", "3a1c:5d:0"] {
            assert_eq!(text.parse(), Ok(wanted), "{text}");
        }
        assert_eq!("5d:00.0".parse(), Ok(PciAddress { domain: 0, ..wanted }));
        assert_eq!(wanted.to_string(), "3a1c:5d:00.0");
    }

    #[test]
    fn a_name_without_version_means_every_version() {
        assert!(names_function("nvmlInit", "nvmlInit_v2"));
        assert!(names_function("nvmlDeviceGetTemperature", "nvmlDeviceGetTemperatureV"));
        assert!(names_function("*", "nvmlInit_v2"));
        assert!(!names_function("nvmlInit_v2", "nvmlInit"));
        assert!(!names_function("nvmlInit", "nvmlInitWithFlags"));
        assert!(!names_function("nvmlDeviceGetTemperature", "nvmlDeviceGetTemperatureThreshold"));
    }
}
