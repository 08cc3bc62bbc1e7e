//! Facts: what the sources saw, as plain data. No rule lives here.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::kernel_lines;
use crate::xid::{KernelEvent, recovery_action};

mod amd;
mod gpu;
mod node;

pub use amd::{AmdGpu, AmdMetrics, BadPages, RasCount, Temperature};
pub use gpu::{
    C2c, Fabric, GpuDetails, GpuNode, GpuProcess, GpuSurvey, Mode, NvlinkErrors, Owner, RepairFlags,
    RetiredPages, RowSpares, Service, Usable,
};
pub use node::{
    Clock, FunctionKind, Leftover, MemoryController, NetPort, NodeFacts, Nvme, NvmeSmart, PciFunction,
    Processes, Raid, Unit,
};

/// One value as seen, with "there is no such thing" and "could not be read" told apart.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reading<T> {
    /// The value.
    Value(T),
    /// The device, driver or kernel has no such value.
    Unsupported,
    /// Not read; why.
    Unknown(String),
    /// The source missed its deadline.
    Hung(String),
}

impl<T> Reading<T> {
    /// The value, if it was read.
    pub fn value(&self) -> Option<&T> {
        match self {
            Reading::Value(v) => Some(v),
            _ => None,
        }
    }
}

impl<T> Default for Reading<T> {
    fn default() -> Self {
        Reading::Unknown("not read".into())
    }
}

/// Everything a pass saw.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Facts {
    /// Kernel boot id.
    pub boot_id: String,
    /// Seconds since boot.
    pub uptime: f64,
    /// NVIDIA functions in PCI sysfs.
    pub pci: Reading<PciFacts>,
    /// Minor numbers of `/dev/nvidiaN`.
    pub gpu_nodes: Reading<Vec<u32>>,
    /// NVML, GPU by GPU in index order.
    pub nvml: Reading<NvmlFacts>,
    /// What the kernel log said since the last pass, folded, and events still open.
    pub kernel: Reading<KernelFacts>,
    /// Counters by name; their rises within windows are in [`crate::history`].
    pub counters: BTreeMap<String, u64>,
    /// Jobs on this node, as their prologs recorded them.
    pub jobs: Vec<JobHere>,
    /// What is wrong with this suite's own state.
    pub complaints: Vec<String>,
    /// InfiniBand and RoCE ports by `DEVICE/PORT`.
    pub ib: Reading<BTreeMap<String, IbPort>>,
    /// Mounts by mount point; the last one mounted there wins.
    pub mounts: Reading<BTreeMap<String, Mount>>,
    /// Answers of network mounts to a stat, by mount point.
    pub mount_probes: BTreeMap<String, Reading<()>>,
    /// Space by path.
    pub space: BTreeMap<String, Reading<Space>>,
    /// MemTotal in KiB.
    pub memory_total_kib: Reading<u64>,
    /// Fabric, host and disks.
    #[serde(default)]
    pub node: NodeFacts,
    /// Site commands by name.
    pub commands: BTreeMap<String, Reading<CommandResult>>,
    /// DCGM's health watches; none where dcgmi is not installed.
    #[serde(default)]
    pub dcgm: Option<Reading<Dcgm>>,
    /// DCGM's tests of the idle node, in deep passes.
    #[serde(default)]
    pub dcgm_diag: Option<Reading<DcgmDiag>>,
    /// GPU software of the node.
    #[serde(default)]
    pub gpu_node: GpuNode,
    /// Looked at by an ordinary user, who may not read everything.
    #[serde(default)]
    pub as_user: bool,
    /// The job whose prolog or epilog this is.
    #[serde(default)]
    pub own_job: Option<String>,
    /// AMD GPUs by address; unsupported where nothing of amdgpu is there and the profile names none.
    #[serde(default)]
    pub amd: Reading<Vec<AmdGpu>>,
}

/// What PCI sysfs shows of NVIDIA's devices.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct PciFacts {
    /// GPUs: class 0300 or 0302, by address.
    pub gpus: Vec<PciGpu>,
    /// Addresses of NVSwitches: class 0680.
    pub switches: Vec<String>,
}

/// A GPU as PCI sysfs shows it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct PciGpu {
    /// `dddd:bb:dd.f`.
    pub pci: String,
    /// Config space reads all ones: the device does not answer.
    pub config_all_ones: Reading<bool>,
    /// Lanes now; 63 when the device is gone.
    pub width: Reading<u32>,
    /// Lanes both ends can do.
    pub max_width: Reading<u32>,
}

/// NVML's answers.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct NvmlFacts {
    /// Driver version.
    pub driver_version: String,
    /// Number of GPUs NVML counts.
    pub count: u32,
    /// Those that answered in time.
    pub gpus: Vec<NvmlGpu>,
    /// The library is not installed here; why.
    #[serde(default)]
    pub library_missing: Option<String>,
    /// Set when NVML stopped answering before all GPUs were read.
    #[serde(default)]
    pub hung: Option<String>,
    /// Set when the answer ended before all GPUs were read, for another reason: the library crashed, or what it
    /// printed spoilt a line.
    #[serde(default)]
    pub incomplete: Option<String>,
    /// Set when NVML says that it cannot start: driver not loaded, or of another version than the library.
    #[serde(default)]
    pub refused: Option<String>,
    /// With which `nvmlReturn_t`: 9 driver not loaded, 18 library and driver do not match.
    #[serde(default)]
    pub refusal_code: u32,
}

/// One GPU as NVML shows it. Values of a lost GPU are [`Reading::Unknown`].
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct NvmlGpu {
    /// NVML index.
    pub index: u32,
    /// `/dev/nvidiaN`.
    pub minor: Reading<u32>,
    /// Product name.
    pub name: Reading<String>,
    /// UUID.
    pub uuid: Reading<String>,
    /// `dddd:bb:dd.f`, lower case.
    pub pci: Reading<String>,
    /// NVML says "GPU is lost".
    pub lost: bool,
    /// Recovery action, NVML field 230.
    pub recovery_action: Reading<u32>,
    /// Uncorrectable ECC errors since driver load: SRAM (caches, register file).
    pub ecc_sram_ue: Reading<u64>,
    /// The same in device memory.
    pub ecc_dram_ue: Reading<u64>,
    /// Row remapping waits for a GPU reset, field 144.
    pub remap_pending: Reading<bool>,
    /// Row remapping failed, field 145.
    pub remap_failure: Reading<bool>,
    /// NVLinks by link number: active or not; inexistent links are left out.
    pub nvlinks: Reading<BTreeMap<u32, bool>>,
    /// Temperature in degrees Celsius.
    pub temperature: Reading<u32>,
    /// Temperature at which the GPU slows down, degrees Celsius.
    pub slowdown_temperature: Reading<u32>,
    /// Further values; none of a lost GPU.
    #[serde(default)]
    pub details: Option<Box<GpuDetails>>,
    /// Values that only slow passes read.
    #[serde(default)]
    pub survey: Option<Box<GpuSurvey>>,
}

/// Kernel-log facts.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct KernelFacts {
    /// Events that no drain has answered yet, and recent ones that one has.
    pub events: Vec<SeenEvent>,
    /// Records lost to ring overruns since the last pass.
    pub lost: u64,
    /// Logs that could not be read, a sentence each. Events of the others still count.
    #[serde(default)]
    pub unread: Vec<String>,
}

/// One kernel event with what became of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SeenEvent {
    /// `LOG BOOT_ID/SEQUENCE` of the first record.
    pub key: String,
    /// The event.
    pub event: KernelEvent,
    /// How many records it stands for.
    pub count: u64,
    /// Seconds since boot when it was first read.
    pub seen: f64,
    /// A drain answered it (or was not needed any more): reported, never acted on again.
    pub handled: bool,
}

impl SeenEvent {
    /// The same code of the same device, from the same kind of writer.
    #[must_use]
    pub fn same_fault(&self, other: &SeenEvent) -> bool {
        self.event.pci == other.event.pci
            && self.event.token() == other.event.token()
            && self.event.synthetic == other.event.synthetic
            // Xid 154 says each time which recovery action is asked for now.
            && recovery_action(&self.event) == recovery_action(&other.event)
            && self.event.device() == other.event.device()
            && (!kernel_lines::needs_repetition(&self.event)
                || self.event.usec.abs_diff(other.event.usec) <= kernel_lines::REPEAT_USEC)
    }
}

/// One InfiniBand or RoCE port.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct IbPort {
    /// Logical state number: 1 DOWN, 2 INIT, 3 ARMED, 4 ACTIVE, 5 ACTIVE_DEFER.
    pub state: Reading<u32>,
    /// Physical state number: 5 LinkUp.
    pub phys_state: Reading<u32>,
    /// `InfiniBand` or `Ethernet`.
    pub link_layer: Reading<String>,
    /// Gb/s.
    pub rate_gbps: Reading<f64>,
    /// Files of `counters/` by name. One that is no number ("N/A (no PMA)") is left out.
    #[serde(default)]
    pub counters: BTreeMap<String, u64>,
    /// Files of `hw_counters/` by name.
    #[serde(default)]
    pub hw_counters: BTreeMap<String, u64>,
    /// Local identifier of the subnet manager; 0 when there is none.
    #[serde(default)]
    pub sm_lid: Reading<u32>,
    /// Partition keys that are set.
    #[serde(default)]
    pub pkeys: Reading<Vec<u16>>,
    /// Firmware version of its card.
    #[serde(default)]
    pub firmware: Reading<String>,
    /// Board id (PSID) of its card.
    #[serde(default)]
    pub board: Reading<String>,
    /// PCI function of its card.
    #[serde(default)]
    pub pci: Option<String>,
}

/// One mount.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Mount {
    /// Device or server.
    pub source: String,
    /// Type.
    pub fstype: String,
    /// Mounted read-write.
    pub writable: bool,
}

/// Space of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Space {
    /// Percent of blocks used.
    pub blocks_percent: f64,
    /// Percent of inodes used, where their number is fixed.
    pub inodes_percent: Option<f64>,
}

/// What DCGM's health watches say.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Dcgm {
    /// `Healthy`, `Warning` or `Failure`.
    pub overall: String,
    /// What is not healthy.
    pub incidents: Vec<DcgmIncident>,
}

/// One incident.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct DcgmIncident {
    /// `GPU 1`, by DCGM's own numbers.
    pub entity: String,
    /// `NVLINK system`; empty when not told.
    pub system: String,
    /// `Warning` or `Failure`.
    pub health: String,
    /// DCGM's words.
    pub text: String,
}

/// What `dcgmi diag` found.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct DcgmDiag {
    /// Version of DCGM.
    pub version: String,
    /// One result for each test and entity.
    pub tests: Vec<DcgmTest>,
}

/// One result of `dcgmi diag`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct DcgmTest {
    /// Name of the test.
    pub test: String,
    /// `GPU 1`, by DCGM's own numbers; empty when not told.
    pub entity: String,
    /// `pass`, `fail`, `warn`, `skip` or another word, lower case.
    pub status: String,
    /// `dcgmErrorSeverity_t`, DCGM 4: 1 monitor, 2 isolate, 3 unknown, 4 triage, 5 configuration, 6 reset.
    pub severity: Option<u32>,
    /// DCGM's words.
    pub text: String,
}

/// Outcome of a site command.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CommandResult {
    /// Exit code; `None` when a signal ended it.
    pub exit: Option<i32>,
    /// First line it printed.
    pub line: String,
}

/// A job on this node and the GPUs its prolog recorded.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct JobHere {
    /// Job id.
    pub job: String,
    /// GPU minors.
    pub gpus: Vec<u32>,
    /// Its user.
    #[serde(default)]
    pub uid: u32,
}
