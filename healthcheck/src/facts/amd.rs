//! AMD GPUs as amdgpu's sysfs shows them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Reading;

/// One AMD GPU.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct AmdGpu {
    /// `dddd:bb:dd.f`.
    pub pci: String,
    /// PCI device id, as sysfs writes it.
    pub device_id: Reading<String>,
    /// The driver amdgpu holds it.
    pub bound: bool,
    /// Config space reads all ones: the device does not answer.
    pub config_all_ones: Reading<bool>,
    /// Lanes now.
    pub width: Reading<u32>,
    /// Lanes both ends can do.
    pub max_width: Reading<u32>,
    /// RAS errors since driver load, by block: `umc` is memory, `gfx`, `sdma`, `xgmi_wafl` ...
    pub ras: Reading<BTreeMap<String, RasCount>>,
    /// Memory pages taken out of use.
    pub bad_pages: Reading<BadPages>,
    /// Temperatures by label (`junction`, `mem`, `edge`).
    pub temperatures: BTreeMap<String, Temperature>,
    /// xGMI hive; unsupported without one.
    pub hive: Reading<String>,
    /// What the firmware counts; unsupported where the driver's layout is not known.
    pub metrics: Reading<AmdMetrics>,
}

/// What amdgpu's `gpu_metrics` tells of a GPU.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct AmdMetrics {
    /// Layout, `1.8`.
    pub version: String,
    /// What slows the GPU down now, of heat and outside brakes; none: it does not tell.
    pub slowed_by: Option<Vec<String>>,
    /// Time in cycles of the firmware since driver load; what `residencies` are a share of.
    pub cycles: Option<u64>,
    /// Cycles slowed down, by cause: `prochot` (an outside brake), `ppt` (the power cap), `socket_thm`, `vr_thm` and
    /// `hbm_thm` (heat of the socket, its regulators, its memory).
    pub residencies: BTreeMap<String, u64>,
    /// xGMI links by number: up or not. Links that are not there are left out.
    pub xgmi_links: BTreeMap<u32, bool>,
    /// PCIe packets sent again since driver load.
    pub pcie_replays: Option<u64>,
}

/// RAS errors of one block.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct RasCount {
    /// Uncorrectable.
    pub ue: u64,
    /// Corrected.
    pub ce: u64,
}

/// Bad memory pages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct BadPages {
    /// Out of use.
    pub reserved: u64,
    /// To be taken out of use at the next reset.
    pub pending: u64,
    /// Could not be taken out of use.
    pub failed: u64,
}

/// A temperature and its limit, millidegrees Celsius.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Temperature {
    /// Now.
    pub now: i64,
    /// At which the GPU slows down or stops; none: not told.
    pub critical: Option<i64>,
}
