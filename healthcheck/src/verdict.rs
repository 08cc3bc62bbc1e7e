//! Findings and the verdict made of them: plain data, and the rules that combine them.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Version tag of the verdict's JSON form.
pub const VERDICT_SCHEMA: &str = "clustermax-verdict/1";
/// Prefix of every drain reason this suite writes.
pub const REASON_PREFIX: &str = "cmx:";
/// Longest reason in bytes: accounting keeps it in a MySQL `tinytext` (255 bytes).
pub const REASON_MAX: usize = 240;

/// Result of one check on one device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Looked at and good.
    Pass,
    /// The device or driver has no such thing; not a fault.
    Unsupported,
    /// Could not be read in time or not be understood; never drains by itself.
    Unknown,
    /// Worth a look; never drains.
    Warn,
    /// Broken.
    Fail,
}

impl Status {
    /// Order for "the worst of": pass = unsupported < unknown < warn < fail.
    #[must_use]
    pub fn rank(self) -> u8 {
        match self {
            Status::Pass | Status::Unsupported => 0,
            Status::Unknown => 1,
            Status::Warn => 2,
            Status::Fail => 3,
        }
    }

    /// The word used in JSON and tables.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Status::Pass => "pass",
            Status::Unsupported => "unsupported",
            Status::Unknown => "unknown",
            Status::Warn => "warn",
            Status::Fail => "fail",
        }
    }
}

/// What mends a fault, in rising order of effort.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Nothing to do.
    #[default]
    None,
    /// Tell the job's user: the program is at fault.
    TellUser,
    /// Restart a service (fabric manager, subnet manager, ...).
    RestartService,
    /// Reset the GPU.
    ResetGpu,
    /// Reboot the node.
    Reboot,
    /// Hands on hardware: reseat, replace, cable, cooling.
    Repair,
}

impl Action {
    /// The word used in reasons, JSON and tables.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Action::None => "none",
            Action::TellUser => "tell_user",
            Action::RestartService => "restart_service",
            Action::ResetGpu => "reset_gpu",
            Action::Reboot => "reboot",
            Action::Repair => "repair",
        }
    }
}

/// Whose fault a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// The node's hardware or driver.
    #[default]
    Hardware,
    /// The job's program.
    Program,
    /// Configuration or installation.
    Setup,
}

/// Whether a finding concerns the whole node or only jobs that hold the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// Nothing should run on this node.
    #[default]
    Node,
    /// Only jobs that hold the device are concerned.
    Device,
}

/// Kind of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceKind {
    /// A GPU.
    Gpu,
    /// An InfiniBand or RoCE port.
    Ib,
    /// A network interface.
    Net,
    /// Any other PCI function.
    Pci,
    /// A mount point or file system.
    Mount,
    /// The host itself (memory, kernel, clock).
    Host,
    /// A site command.
    Command,
}

/// The one device a finding names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// Kind.
    pub kind: DeviceKind,
    /// Short name as used in reasons: `g3`, `mlx5_0/1`, `/data`.
    pub name: String,
    /// GPU minor number (`/dev/nvidiaN`), for GPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index: Option<u32>,
    /// PCI address `dddd:bb:dd.f`, where the device has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pci: Option<String>,
}

impl Device {
    /// A GPU by minor number and PCI address.
    #[must_use]
    pub fn gpu(minor: u32, pci: &str) -> Self {
        Device {
            kind: DeviceKind::Gpu,
            name: format!("g{minor}"),
            index: Some(minor),
            pci: Some(pci.to_string()),
        }
    }

    /// A device with nothing but a name.
    #[must_use]
    pub fn named(kind: DeviceKind, name: impl Into<String>) -> Self {
        Device { kind, name: name.into(), index: None, pci: None }
    }
}

/// How the evidence of a kernel event ends that an earlier pass acted on. The node may have been given back since.
pub const ACTED_ON: &str = "; acted on before, or older than what this node remembers";

/// What one check says about one device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// Check id, for example `gpu.xid`.
    pub check: String,
    /// Token of at most 10 characters that opens a reason, for example `xid79`.
    pub token: String,
    /// Result.
    pub status: Status,
    /// The device, or none when the node as a whole is meant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<Device>,
    /// Whole node or device holders only.
    pub scope: Scope,
    /// What mends it.
    pub action: Action,
    /// The rule says: take the node out of service.
    pub drain: bool,
    /// Whose fault.
    pub fault: Fault,
    /// What was seen, verbatim or as `value, expected`.
    pub evidence: String,
    /// One short phrase for reasons and users.
    pub text: String,
    /// How to mend it, free text.
    #[serde(default)]
    pub mend: String,
    /// Rests on a kernel record that user space wrote (facility 1).
    #[serde(default)]
    pub synthetic: bool,
    /// The check is switched to `observe`: reported, never drains.
    #[serde(default)]
    pub observe: bool,
    /// Kernel-log event this rests on (`boot_id/sequence`), to act on each event once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event: Option<String>,
}

impl Finding {
    /// True when this finding alone may take the node out of service.
    #[must_use]
    pub fn drains(&self) -> bool {
        self.status == Status::Fail && self.drain && !self.observe
    }

    /// Drain reason, grammar version 1: `cmx:TOKEN[ DEVICE] TEXT; act=ACTION id=8HEX`.
    #[must_use]
    pub fn reason(&self) -> String {
        let device = self.device.as_ref().map_or(String::new(), |d| format!(" {}", d.name));
        let tail = format!("; act={} id={}", self.action.word(), self.id());
        let mut head = ascii(&format!("{REASON_PREFIX}{}{device} {}", self.token, self.text));
        head.truncate(REASON_MAX - tail.len());
        format!("{}{tail}", head.trim_end())
    }

    /// First 8 hex digits of SHA-256 of `CHECK TOKEN DEVICE`: the same fault has the same id.
    #[must_use]
    pub fn id(&self) -> String {
        let device = self.device.as_ref().map_or("", |d| d.name.as_str());
        let sum = Sha256::digest(format!("{} {} {device}", self.check, self.token));
        sum.iter().take(4).map(|b| format!("{b:02x}")).collect()
    }
}

/// Makes outside text safe for a reason: printable ASCII without quotes, one line.
#[must_use]
pub fn ascii(text: &str) -> String {
    text.chars()
        .map(|c| match c {
            '"' | '\'' | '`' | '\\' => '_',
            ' '..='~' => c,
            _ => ' ',
        })
        .collect()
}

/// Outcome and cost of one check over all its devices.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CheckResult {
    /// Check id.
    pub check: String,
    /// Worst status over all devices.
    pub status: Status,
    /// One line: how many devices, or why unknown or unsupported.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
}

/// Everything one pass found out about a node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// [`VERDICT_SCHEMA`].
    pub schema: String,
    /// Slurm's name of the node.
    pub node: String,
    /// Kernel boot id.
    pub boot_id: String,
    /// First 8 hex digits of SHA-256 of the configuration file.
    pub config_hash: String,
    /// Mode of the pass.
    pub mode: String,
    /// `observe` or `enforce`.
    pub enforcement: String,
    /// End of the pass, UTC, RFC 3339.
    pub time: String,
    /// Length of the pass in seconds.
    pub seconds: f64,
    /// Worst status.
    pub status: Status,
    /// Largest action among failures.
    pub action: Action,
    /// Some finding drains.
    pub drain: bool,
    /// Reason of the worst draining finding.
    pub reason: Option<String>,
    /// What became of the drain: `pending`, then an outcome of `clustermax-drain`; none when none was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain_outcome: Option<String>,
    /// Findings that are neither pass nor unsupported.
    pub findings: Vec<Finding>,
    /// One line a check.
    #[serde(default)]
    pub checks: Vec<CheckResult>,
    /// Findings left out of the small file.
    #[serde(default)]
    pub left_out: u32,
}

impl Verdict {
    /// The finding that decides the reason: the draining one with the largest action, first in check order.
    #[must_use]
    pub fn worst(findings: &[Finding]) -> Option<&Finding> {
        let mut worst: Option<&Finding> = None;
        for f in findings.iter().filter(|f| f.drains()) {
            if worst.is_none_or(|w| f.action > w.action) {
                worst = Some(f);
            }
        }
        worst
    }

    /// True when a job holding these GPU minors must not run here.
    #[must_use]
    pub fn concerns(finding: &Finding, gpu_minors: &[u32]) -> bool {
        finding.drains()
            && match (finding.scope, finding.device.as_ref().and_then(|d| d.index)) {
                (Scope::Device, Some(minor)) => gpu_minors.contains(&minor),
                _ => true,
            }
    }
}
