//! What the kernel log says about GPUs: Xid and SXid lines, and the driver's texts without a number.
//!
//! Line forms: `src/nvidia/src/kernel/gpu/rc/kernel_rc.c` and the NVSwitch driver of NVIDIA/open-gpu-kernel-modules. What a
//! code means is data, `data/xid.tsv`. State beats logs: most lines only tell where to look (see [`Drain`]).
//!
//! A process chooses its own name, which the driver prints inside Xid lines, and may quote driver lines in its own log lines.
//! So a line counts only when it starts as the driver's do, its code is the number after the first `): `, and texts that
//! decide anything are longer than the 15 bytes of a process name or stand where no name can.

use serde::{Deserialize, Serialize};

mod fold;
mod policy;
mod read;

pub use fold::{Fold, Folded, fold};
pub use policy::{Drain, Policy, Severity, nvlink5_registers, policy, recovery_action, recovery_policy};
use policy::{Table, row};
pub(crate) use policy::{action_word, drain_word, fault_word, severity_word};
pub(crate) use read::clip;
pub use read::{Scanner, events, normalise_pci};

/// One thing that the kernel log says about a GPU or an NVSwitch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelEvent {
    /// What.
    pub kind: Kind,
    /// PCI address as `dddd:bb:dd`, lower case, without function; none where the line names no device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pci: Option<String>,
    /// The line as printed, without prefixes.
    pub text: String,
    /// The driver's message: the line without address, code, process and severity word.
    pub message: String,
    /// A process wrote the record to `/dev/kmsg`; see [`Record::from_user_space`].
    #[serde(default)]
    pub synthetic: bool,
    /// Sequence number of the record.
    pub seq: u64,
    /// Microseconds since boot.
    pub usec: u64,
}

/// Kind of a [`KernelEvent`].
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// An Xid of a GPU.
    Xid {
        /// Code.
        code: u32,
        /// Process, where the driver knew one.
        pid: Option<u32>,
        /// Name of that process, chosen by it: never trust it.
        name: Option<String>,
        /// MIG GPU instance.
        gi: Option<u32>,
        /// MIG compute instance.
        ci: Option<u32>,
        /// Earlier Xid that this one follows from.
        parent: Option<u32>,
    },
    /// An SXid of an NVSwitch.
    Sxid {
        /// Code.
        code: u32,
        /// Number of the switch.
        switch: Option<u32>,
        /// Link of the switch.
        link: Option<u32>,
        /// Severity word of the line.
        word: Option<Word>,
    },
    /// A text without a number.
    Text(Text),
    /// A line about the host, a network card or a disk: a row of `data/kernel.tsv`.
    Line {
        /// Name of the row.
        row: String,
        /// Device that the line names, where it is no PCI address.
        device: Option<String>,
    },
}

/// Severity word of an SXid or NVLink line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Word {
    /// `Fatal`
    Fatal,
    /// `Non-fatal` or `Nonfatal`
    NonFatal,
    /// `Correctable`
    Correctable,
}

/// A text of the driver that carries no Xid number. The numbers are the codes of kind `text` in `data/xid.tsv`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Text {
    /// `GPU has fallen off the bus.`
    OffBus = 1,
    /// The same found out while the driver was loaded, told in three lines.
    OffBusAtProbe = 2,
    /// `The NVIDIA probe routine failed for 1 device(s).`
    ProbeFailed = 3,
    /// `RmInitAdapter failed!`
    InitFailed = 4,
    /// `The GPU likely needs to be reset.` after GSP errors
    GspReset = 5,
    /// An assertion with `NV_ERR_RESET_REQUIRED`
    ResetRequired = 6,
    /// `uvm encountered global fatal error ..., requiring os reboot to recover.`
    UvmFatal = 7,
}

impl KernelEvent {
    /// Xid or SXid code.
    #[must_use]
    pub fn code(&self) -> Option<u32> {
        match self.kind {
            Kind::Xid { code, .. } | Kind::Sxid { code, .. } => Some(code),
            Kind::Text(_) | Kind::Line { .. } => None,
        }
    }

    /// Device that the line names, where it is no PCI address: `nvme3`, `md0`, a file server.
    #[must_use]
    pub fn device(&self) -> Option<&str> {
        match &self.kind {
            Kind::Line { device, .. } => device.as_deref(),
            _ => None,
        }
    }

    /// Token for reasons, at most 10 characters: `xid79`, `sxid20034`, `gpulost`.
    #[must_use]
    pub fn token(&self) -> String {
        let mut token = match &self.kind {
            Kind::Xid { code, .. } => format!("xid{code}"),
            Kind::Sxid { code, .. } => format!("sxid{code}"),
            Kind::Text(text) => row(Table::Text, *text as u32).map_or("gputext", |p| p.token).to_string(),
            Kind::Line { .. } => policy(self).token.to_string(),
        };
        token.truncate(10);
        token
    }

    /// One phrase for users: `Xid 79: GPU fell off the bus`.
    #[must_use]
    pub fn summary(&self) -> String {
        let text = policy(self).text;
        match self.kind {
            Kind::Xid { code, .. } => format!("Xid {code}: {text}"),
            Kind::Sxid { code, .. } => format!("SXid {code}: {text}"),
            Kind::Text(_) | Kind::Line { .. } => text.to_string(),
        }
    }
}

#[cfg(test)]
mod tests;
