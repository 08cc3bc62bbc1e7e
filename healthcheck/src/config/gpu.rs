//! `[profile.gpu]` and `[profile.amd]`: how the GPUs of a node should be set up.

use serde::{Deserialize, Serialize};

/// How the GPUs should be set up. What is absent is not expected of anybody.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GpuProfile {
    /// Speed of each NVLink in one direction, MB/s; less than 95 % of it warns.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nvlink_mbps: Option<u64>,
    /// Power limit in force, watts; without it the board's default counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power_limit_watts: Option<u32>,
    /// Most power of a GPU without processes, watts; without it 150 (up to Hopper), 250 (Blackwell) or
    /// 300 (Blackwell beside a Grace CPU).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_power_watts: Option<u32>,
    /// ECC is on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ecc: Option<bool>,
    /// MIG mode is on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mig: Option<bool>,
    /// `default`, `exclusive_process` or `prohibited`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compute_mode: Option<String>,
    /// This node runs the fabric manager; without it, whether NVSwitches show on the PCI bus.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fabric_manager: Option<bool>,
    /// Jobs use NVLink between nodes, so the IMEX daemon must be ready.
    #[serde(skip_serializing_if = "is_false")]
    pub imex: bool,
    /// MPS daemons run here on purpose, outside of jobs.
    #[serde(skip_serializing_if = "is_false")]
    pub mps: bool,
    /// Releases of the GPUs' software.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub firmware: Option<FirmwareProfile>,
}

/// `[profile.amd]`: AMD GPUs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AmdProfile {
    /// Number of GPUs that amdgpu holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_count: Option<u32>,
    /// PCIe lanes of each; without it what both ends can do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pcie_width: Option<u32>,
    /// They are one xGMI hive.
    #[serde(skip_serializing_if = "is_false")]
    pub xgmi: bool,
    /// xGMI links of each that must be up, where the driver tells.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub xgmi_links: Option<u32>,
}

impl AmdProfile {
    /// Nothing is expected.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == AmdProfile::default()
    }
}

/// Releases of the GPUs' software; a release that is absent may be any, but the same on all GPUs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FirmwareProfile {
    /// VBIOS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vbios: Option<String>,
    /// GSP firmware.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gsp: Option<String>,
    /// Driver.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// Another release fails instead of warning.
    pub strict: bool,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_false(b: &bool) -> bool {
    !*b
}

/// Compute modes by the words of nvidia-smi and of this suite.
const COMPUTE_MODES: [&str; 3] = ["default", "exclusive_process", "prohibited"];

impl GpuProfile {
    /// Nothing is expected.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == GpuProfile::default()
    }

    /// What is wrong with it, in one sentence.
    ///
    /// # Errors
    /// The key, its value and the mend.
    pub fn check(&self) -> Result<(), String> {
        match &self.compute_mode {
            Some(mode) if !COMPUTE_MODES.contains(&mode.as_str()) => Err(format!(
                "profile.gpu.compute_mode = \"{mode}\": give one of {}",
                COMPUTE_MODES.join(", ")
            )),
            _ => Ok(()),
        }
    }
}
