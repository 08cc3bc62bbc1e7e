//! What can be injected: by which way, with which words, and what the cluster should do about it.

/// What can be made to fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Fault {
    /// dcgm-xid79, else xid79, else bus-reset: goes on to the next one where one cannot be done or is not noticed
    Ladder,
    /// Xid 79 through DCGM (`dcgmi test --inject`): seen by what asks DCGM, not by what reads the log
    DcgmXid79,
    /// PCIe replays through DCGM (field 202)
    DcgmReplay,
    /// Kernel line `NVRM: Xid ...: 79, GPU has fallen off the bus`: the device itself is not touched
    Xid79,
    /// Kernel line of Xid 48, a double-bit error of GPU memory
    Xid48,
    /// Kernel line of Xid 95, an uncontained memory error
    Xid95,
    /// Kernel line of Xid 119, the GPU's firmware processor does not answer
    Xid119,
    /// Kernel line of Xid 13, a program's own error: must drain nothing
    Xid13,
    /// Kernel line of Xid 31, a program's own error: must drain nothing
    Xid31,
    /// Kernel line of amdgpu: the GPU is lost from the bus
    AmdLost,
    /// Kernel line of amdgpu: the GPU could not be recovered by a reset
    AmdRecovery,
    /// Kernel line of amdgpu: uncorrectable errors in the memory controller (UMC), as RAS reports them
    AmdUmc,
    /// Kernel line of amdgpu: page fault, a program's own error: must drain nothing
    AmdPageFault,
    /// PCIe secondary-bus reset of the GPU's bridge, on the node itself: the GPU is lost until a reboot
    BusReset,
    /// SIGSTOP of one rank of a collective that this program starts in a job of its own
    StopRank,
    /// SIGKILL of one rank of a collective that this program starts in a job of its own
    KillRank,
}

/// How a fault gets onto the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// `dcgmi test --inject`
    Dcgm,
    /// A line in the kernel log.
    Kernel,
    /// The bridge above the GPU.
    Pcie,
    /// A signal to a process of our own job.
    Rank,
}

impl Way {
    /// Param `kind` of the records.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Dcgm => "dcgm",
            Self::Kernel => "kernel",
            Self::Pcie => "pcie",
            Self::Rank => "rank",
        }
    }
}

/// Xid 13 and 31: the texts of NVIDIA's driver.
const ENGINE: &str = "Graphics SM Warp Exception on (GPC 0, TPC 0, SM 0): Out Of Range Address";
const MMU: &str = "Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_0 faulted @ 0x7f00_00000000. \
                   Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ";

impl Fault {
    /// The word on the command line and in records.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Ladder => "ladder",
            Self::DcgmXid79 => "dcgm-xid79",
            Self::DcgmReplay => "dcgm-replay",
            Self::Xid79 => "xid79",
            Self::Xid48 => "xid48",
            Self::Xid95 => "xid95",
            Self::Xid119 => "xid119",
            Self::Xid13 => "xid13",
            Self::Xid31 => "xid31",
            Self::AmdLost => "amd-lost",
            Self::AmdRecovery => "amd-recovery",
            Self::AmdUmc => "amd-umc",
            Self::AmdPageFault => "amd-page-fault",
            Self::BusReset => "bus-reset",
            Self::StopRank => "stop-rank",
            Self::KillRank => "kill-rank",
        }
    }

    /// How it gets there. The ladder begins with DCGM.
    #[must_use]
    pub fn way(self) -> Way {
        match self {
            Self::Ladder | Self::DcgmXid79 | Self::DcgmReplay => Way::Dcgm,
            Self::BusReset => Way::Pcie,
            Self::StopRank | Self::KillRank => Way::Rank,
            _ => Way::Kernel,
        }
    }

    /// The faults of the ladder, in the order of reviewers, for this one.
    #[must_use]
    pub fn rungs(self) -> &'static [Self] {
        const LADDER: [Fault; 3] = [Fault::DcgmXid79, Fault::Xid79, Fault::BusReset];
        match self {
            Self::Ladder => &LADDER,
            _ => &[],
        }
    }

    /// The hardware is at fault, and its node is to be drained; else a program, and nothing is.
    #[must_use]
    pub fn drains(self) -> bool {
        !matches!(self, Self::Xid13 | Self::Xid31 | Self::AmdPageFault | Self::StopRank | Self::KillRank)
    }

    /// Vendor of the GPU as PCI has it; none: either.
    #[must_use]
    pub fn vendor(self) -> Option<&'static str> {
        match self {
            Self::AmdLost | Self::AmdRecovery | Self::AmdUmc | Self::AmdPageFault => Some("0x1002"),
            Self::BusReset | Self::StopRank | Self::KillRank => None,
            _ => Some("0x10de"),
        }
    }

    /// A word that series about it have in their names: `DCGM_FI_DEV_XID_ERRORS`, `amd_gpu_..._ras_...`.
    #[must_use]
    pub fn series(self) -> &'static str {
        match self {
            Self::DcgmReplay => "replay",
            Self::AmdUmc => "ecc",
            _ if self.vendor() == Some("0x1002") => "gpu",
            _ => "xid",
        }
    }

    /// What is written: a kernel line, or the arguments of dcgmi.
    #[must_use]
    pub fn line(self, gpu: usize, pci: &str, id: &str) -> String {
        match self {
            Self::DcgmXid79 | Self::Ladder => format!("test --inject --gpuid {gpu} -f 230 -v 79"),
            Self::DcgmReplay => format!("test --inject --gpuid {gpu} -f 202 -v 99999"),
            Self::Xid79 => xid(pci, 79, "GPU has fallen off the bus.", id),
            Self::Xid48 => xid(
                pci,
                48,
                "An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer at partition 6, subpartition 0.",
                id,
            ),
            Self::Xid95 => xid(pci, 95, "Uncontained: LTC TAG (0x6,0x0). RST: Yes, D-RST: No", id),
            Self::Xid119 => xid(
                pci,
                119,
                "Timeout after 6s of waiting for RPC response from GPU0 GSP! Expected function 76 (GSP_RM_CONTROL) (0x20808a94 0x0).",
                id,
            ),
            Self::Xid13 => xid(pci, 13, ENGINE, id),
            Self::Xid31 => xid(pci, 31, MMU, id),
            Self::AmdLost => amdgpu(pci, "device lost from bus!", id),
            Self::AmdRecovery => amdgpu(pci, "GPU Recovery Failed: -110", id),
            Self::AmdUmc => amdgpu(
                pci,
                "socket: 0, die: 0, 1 new uncorrectable hardware errors detected in umc block",
                id,
            ),
            Self::AmdPageFault => {
                amdgpu(pci, "[gfxhub0] no-retry page fault (src_id:0 ring:24 vmid:8 pasid:32769)", id)
            }
            Self::BusReset | Self::StopRank | Self::KillRank => String::new(),
        }
    }

    /// Lines of programs' own errors that the same log shows every day: they must drain nothing.
    #[must_use]
    pub fn noise(self) -> &'static [Self] {
        match (self.way(), self.vendor()) {
            (Way::Kernel, Some("0x1002")) => &[Self::AmdPageFault],
            (Way::Kernel, _) => &[Self::Xid13, Self::Xid31],
            _ => &[],
        }
    }
}

/// The kernel's own text with the suite's mark at the end, in the form that all public detectors read: no function
/// number, a comma after the code.
fn xid(pci: &str, code: u32, text: &str, id: &str) -> String {
    let slot = pci.rsplit_once('.').map_or(pci, |(slot, _)| slot);
    format!(
        "NVRM: Xid (PCI:{slot}): {code}, pid={}, name=cmax-inject, {text} [clustermax-synthetic {id}]",
        std::process::id()
    )
}

/// As amdgpu's `dev_err` writes it.
fn amdgpu(pci: &str, text: &str, id: &str) -> String {
    format!("amdgpu {pci}: amdgpu: {text} [clustermax-synthetic {id}]")
}
