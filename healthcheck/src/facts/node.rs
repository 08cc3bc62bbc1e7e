//! What the sources see of the fabric, the host and the disks.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Reading;

/// Facts beside the GPUs. What a mode does not read stays "not read".
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeFacts {
    /// Network interfaces by name.
    pub net: Reading<BTreeMap<String, NetPort>>,
    /// GPUs, network cards, NVMe disks and the bridges above them by PCI address.
    pub functions: Reading<BTreeMap<String, PciFunction>>,
    /// A hypervisor is below this system.
    pub virtual_machine: Reading<bool>,
    /// Loaded modules that the profile asks about, by name.
    pub modules: BTreeMap<String, bool>,
    /// Memory controllers by name (`mc0`).
    pub edac: Reading<BTreeMap<String, MemoryController>>,
    /// NVMe controllers by name (`nvme0`).
    pub nvme: Reading<BTreeMap<String, Nvme>>,
    /// RAID arrays by name (`md0`).
    pub raid: Reading<BTreeMap<String, Raid>>,
    /// systemd units of the profile by name.
    pub services: Reading<BTreeMap<String, Unit>>,
    /// The kernel's clock.
    pub clock: Reading<Clock>,
    /// Clock source in use.
    pub clocksource: Reading<String>,
    /// CPUs online.
    pub cpus: Reading<u32>,
    /// CPUs by scaling governor; empty where the kernel scales nothing.
    pub governors: BTreeMap<String, u32>,
    /// Processes.
    pub processes: Reading<Processes>,
    /// Files in `/dev/shm` by owner.
    pub shm: Reading<BTreeMap<u32, Leftover>>,
    /// Names of device-mapper devices (`dm-0` is `vg-root`).
    pub mapped: BTreeMap<String, String>,
    /// Age of the last verdict in seconds, where there is one.
    pub verdict_age: Option<f64>,
    /// Seconds between passes that renew it: slurm.conf's HealthCheckInterval. None: not known, or not on every node state.
    pub verdict_interval: Option<f64>,
}

impl NodeFacts {
    /// A node that has none of it.
    #[must_use]
    pub fn absent() -> Self {
        NodeFacts {
            net: Reading::Unsupported,
            functions: Reading::Unsupported,
            virtual_machine: Reading::Unsupported,
            edac: Reading::Unsupported,
            nvme: Reading::Unsupported,
            raid: Reading::Unsupported,
            services: Reading::Unsupported,
            clock: Reading::Unsupported,
            clocksource: Reading::Unsupported,
            cpus: Reading::Unsupported,
            processes: Reading::Unsupported,
            shm: Reading::Unsupported,
            ..NodeFacts::default()
        }
    }
}

/// A network interface.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NetPort {
    /// Below `/sys/devices/virtual`: container and bridge interfaces, and bonds.
    pub is_virtual: bool,
    /// `up`, `down`, `unknown`, `dormant`, ...
    pub operstate: String,
    /// There is a link. Unsupported while the interface is switched off.
    pub carrier: Reading<bool>,
    /// Mb/s; unsupported while there is no link.
    pub speed_mbps: Reading<u32>,
    /// Largest packet, bytes.
    pub mtu: Reading<u32>,
    /// How often the link was lost since the interface was made.
    pub carrier_down_count: Reading<u64>,
    /// PCI function `dddd:bb:dd.f`.
    pub pci: Option<String>,
    /// Number of the port on that function, from 0.
    pub dev_port: u32,
    /// Interfaces of a bond.
    pub slaves: Vec<String>,
}

/// Kind of a PCI function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FunctionKind {
    /// GPU.
    Gpu,
    /// Network card.
    Nic,
    /// NVMe disk.
    Nvme,
    /// Bridge above one of them: root port or switch port.
    #[default]
    Bridge,
}

/// A PCI function.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PciFunction {
    /// Kind.
    pub kind: FunctionKind,
    /// Bridges between it and the root complex, the nearest first.
    pub above: Vec<String>,
    /// Fastest link it can do, GT/s.
    pub max_speed: Reading<f64>,
    /// Speed of its link now, GT/s; it falls when the device is idle.
    pub speed: Reading<f64>,
    /// Totals of the AER counters since boot.
    pub correctable: Reading<u64>,
    /// The same of non-fatal errors.
    pub nonfatal: Reading<u64>,
    /// The same of fatal errors.
    pub fatal: Reading<u64>,
    /// Control register of Access Control Services, of bridges only.
    pub acs: Reading<u16>,
    /// Config space reads all ones, of network cards only: nobody answers.
    pub config_all_ones: Reading<bool>,
}

/// A memory controller.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct MemoryController {
    /// Corrected errors since its module was loaded.
    pub corrected: Reading<u64>,
    /// Uncorrectable errors since its module was loaded.
    pub uncorrectable: Reading<u64>,
}

/// An NVMe controller.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Nvme {
    /// `live`, `connecting`, `resetting`, `deleting`, `dead`, ...
    pub state: Reading<String>,
    /// PCI function or fabric address.
    pub address: Option<String>,
    /// Its own health page.
    pub smart: Reading<NvmeSmart>,
}

/// What an NVMe controller says of its health, log page 02h.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct NvmeSmart {
    /// Bits: 0 spare below its threshold, 1 too hot or cold, 2 reliability degraded, 3 read-only, 4 backup of volatile memory
    /// failed, 5 persistent memory region unreliable.
    pub critical_warning: u8,
    /// Spare blocks left, percent.
    pub spare_percent: u8,
    /// Below which the maker asks for a replacement.
    pub spare_threshold: u8,
    /// Rated life used, percent; 255 stands for 255 and more.
    pub used_percent: u8,
    /// Times data could not be recovered.
    pub media_errors: u64,
}

/// A RAID array.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Raid {
    /// `raid0`, `raid1`, ...
    pub level: String,
    /// `active` without `(read-only)` or `FAILED`.
    pub active: bool,
    /// Members that failed.
    pub failed: Vec<String>,
    /// Members that should be there, and that are; none for levels without redundancy.
    pub members: Option<(u32, u32)>,
    /// `md/degraded` of sysfs: members missing.
    pub degraded: Option<u32>,
}

/// A systemd unit.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Unit {
    /// `loaded`, `not-found`, `masked`, ...
    pub load: String,
    /// `active`, `inactive`, `failed`, `activating`, ...
    pub active: String,
    /// `running`, `dead`, ...
    pub sub: String,
}

/// The kernel's clock.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Clock {
    /// Somebody disciplines it.
    pub synchronised: bool,
    /// Offset that is still to be slewed away, seconds.
    pub offset: f64,
    /// Largest error as the kernel estimates it, seconds.
    pub max_error: f64,
}

/// Processes of the node.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Processes {
    /// Processes by user, system users left out.
    pub by_user: BTreeMap<u32, u32>,
    /// Zombies.
    pub zombies: u32,
    /// Threads of all processes.
    pub threads: u64,
    /// Most threads that can be.
    pub threads_max: Option<u64>,
}

/// What somebody left behind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Leftover {
    /// Files and folders.
    pub files: u64,
    /// Bytes they hold.
    pub bytes: u64,
}
