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
