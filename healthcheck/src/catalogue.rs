//! The table of all checks: what each reads, its rule, where the rule comes from.

use crate::mode::Mode;

/// What `list` and `explain` say about a check.
pub struct CheckInfo {
    /// Id, `family.name`.
    pub id: &'static str,
    /// Tokens its reasons start with, each at most 10 characters (`xidN` stands for a number).
    pub tokens: &'static [&'static str],
    /// What it reads.
    pub reads: &'static str,
    /// The rule.
    pub rule: &'static str,
    /// Where the rule comes from.
    pub source: &'static str,
    /// Reads in a row before a suspicion is a fault.
    pub reads_needed: u32,
    /// Modes it runs in.
    pub modes: &'static [Mode],
    /// What mends it.
    pub action: &'static str,
}

const ALL: &[Mode] = &[Mode::Prolog, Mode::Epilog, Mode::Periodic, Mode::Deep];
const SLOW: &[Mode] = &[Mode::Periodic, Mode::Deep];

/// All checks of this release, in the order in which they decide a reason among equal actions: the kernel's own
/// word first, since it names the cause where the state shows what follows.
pub const CATALOGUE: &[CheckInfo] = &[
    CheckInfo {
        id: "gpu.xid",
        tokens: &["xidN"],
        reads: "kernel log records since the last pass",
        rule: "by healthcheck/data/xid.tsv: only a code whose line alone is conclusive fails; program faults are told to the user; a foreign PCI address or an unknown code warns",
        source: "NVIDIA Xid catalogue",
        reads_needed: 1,
        modes: ALL,
        action: "by code",
    },
    CheckInfo {
        id: "gpu.lost_text",
        tokens: &["buslost", "gpuinit", "gsp", "uvm", "resetreq"],
        reads: "kernel log: fallen off the bus, RmInitAdapter failed, GSP needs a reset, UVM fatal, without an Xid number",
        rule: "fail; a line that asks for a reset only warns, the recovery action decides",
        source: "open-gpu-kernel-modules; NVSentinel issue 155",
        reads_needed: 1,
        modes: ALL,
        action: "reboot or reset_gpu",
    },
    CheckInfo {
        id: "gpu.sxid",
        tokens: &["sxidN"],
        reads: "kernel log: NVSwitch SXid lines",
        rule: "Fatal fails, Non-fatal warns, Correctable is noted; without a word the table decides",
        source: "NVSwitch driver; Fabric Manager guide",
        reads_needed: 1,
        modes: ALL,
        action: "restart_service or reboot",
    },
    CheckInfo {
        id: "gpu.count",
        tokens: &["gpucount", "gpulost", "nvmllib"],
        reads: "PCI sysfs, /dev/nvidiaN, NVML count, profile.gpu_count",
        rule: "fail: any source counts fewer GPUs than the profile, NVML says a GPU is lost, or its library is missing; never skipped because no GPU was found",
        source: "Azure healthagent GpuCountCheck; nvml.h NVML_ERROR_GPU_IS_LOST",
        reads_needed: 1,
        modes: ALL,
        action: "reboot",
    },
    CheckInfo {
        id: "gpu.bus",
        tokens: &["gpubus"],
        reads: "first 64 bytes of PCI config space, current_link_width",
        rule: "fail: all ones, or 63 lanes: the device does not answer on the bus",
        source: "Linux PCI sysfs ABI; oci-hpc (lspci rev ff); NVIDIA Xid 79",
        reads_needed: 1,
        modes: ALL,
        action: "reboot",
    },
    CheckInfo {
        id: "gpu.driver_hang",
        tokens: &["drvhang"],
        reads: "whether NVML starts and answers within deadlines.source",
        rule: "warn: first miss, or first refusal to start (driver not loaded, or of another version than the library) where the profile has GPUs; fail: two in a row; a library that crashes is unknown",
        source: "Azure healthagent, gpud (processes in state D); this project's design",
        reads_needed: 2,
        modes: ALL,
        action: "reboot",
    },
    CheckInfo {
        id: "gpu.recovery_action",
        tokens: &["recovery"],
        reads: "NVML field 230",
        rule: "fail: 1 reset, 2 reboot, 3 drain P2P, 4 drain and reset, 6 bus reset, 7 system reboot; warn: 5 and unknown values",
        source: "nvml.h nvmlDeviceGpuRecoveryAction_t; DCGM issue 263",
        reads_needed: 1,
        modes: ALL,
        action: "as the value says",
    },
    CheckInfo {
        id: "gpu.remap_failure",
        tokens: &["rowremap"],
        reads: "NVML field 145",
        rule: "fail: row remapping failed",
        source: "NVIDIA GPU memory error management, RMA policy",
        reads_needed: 1,
        modes: ALL,
        action: "repair",
    },
    CheckInfo {
        id: "gpu.remap_pending",
        tokens: &["remappend"],
        reads: "NVML field 144",
        rule: "fail before and after a job and on an idle GPU; warn while a job holds the GPU",
        source: "NVIDIA GPU memory error management",
        reads_needed: 1,
        modes: ALL,
        action: "reset_gpu",
    },
    CheckInfo {
        id: "gpu.ecc_sram_ue",
        tokens: &["eccsram"],
        reads: "NVML uncorrectable SRAM errors since driver load",
        rule: "fail: above 0",
        source: "azurehpc NHC2019; sichek",
        reads_needed: 1,
        modes: ALL,
        action: "reset_gpu",
    },
    CheckInfo {
        id: "gpu.ecc_dram_ue",
        tokens: &["eccdram"],
        reads: "NVML uncorrectable device-memory errors since driver load",
        rule: "warn: above 0 (the remap flags decide)",
        source: "gpud PR 108",
        reads_needed: 1,
        modes: ALL,
        action: "reset_gpu",
    },
    CheckInfo {
        id: "gpu.nvlink_state",
        tokens: &["nvlink"],
        reads: "NVML state of every NVLink, profile.nvlinks_per_gpu, uptime",
        rule: "fail: fewer active links than the profile in 3 reads in a row and 10 minutes after boot",
        source: "NVSentinel issue 1701 (links train after boot)",
        reads_needed: 3,
        modes: ALL,
        action: "reset_gpu",
    },
    CheckInfo {
        id: "gpu.pcie_width",
        tokens: &["pciewidth"],
        reads: "current_link_width, max_link_width, profile.pcie_width",
        rule: "fail: fewer lanes than the profile (without one: than both ends can do)",
        source: "sichek path rule; gcm manifest",
        reads_needed: 1,
        modes: ALL,
        action: "repair",
    },
    CheckInfo {
        id: "gpu.temp",
        tokens: &["gputemp"],
        reads: "NVML temperature and slowdown threshold",
        rule: "warn: 3 degrees or less below the threshold; fail: at or above it in 3 reads in a row",
        source: "gpud temperature margin",
        reads_needed: 3,
        modes: SLOW,
        action: "repair",
    },
    CheckInfo {
        id: "ib.count",
        tokens: &["ibcount"],
        reads: "/sys/class/infiniband, profile.ib_port",
        rule: "fail: a port of the profile is not there",
        source: "gpud and nvidia-resiliency-ext return healthy on none; this project's design",
        reads_needed: 1,
        modes: ALL,
        action: "reboot",
    },
    CheckInfo {
        id: "ib.state",
        tokens: &["ibstate"],
        reads: "ports/N/state and phys_state",
        rule: "fail: not ACTIVE and LinkUp in 2 reads in a row; INIT means the subnet manager has not configured it",
        source: "Linux InfiniBand sysfs ABI; all peers",
        reads_needed: 2,
        modes: ALL,
        action: "repair",
    },
    CheckInfo {
        id: "ib.rate",
        tokens: &["ibrate"],
        reads: "ports/N/rate of active ports, profile.ib_port.rate_gbps",
        rule: "fail: below the profile in 2 reads in a row",
        source: "LBNL NHC, gpud, gcm",
        reads_needed: 2,
        modes: ALL,
        action: "repair",
    },
    CheckInfo {
        id: "ib.flap",
        tokens: &["ibflap"],
        reads: "counters/link_downed of the profile's ports over time",
        rule: "warn: 1 within an hour; fail: 3 within 3 hours; never the count since boot",
        source: "Azure healthagent (3 in 3 h), gpud (3 in 12 h)",
        reads_needed: 1,
        modes: SLOW,
        action: "repair",
    },
    CheckInfo {
        id: "ib.saturated",
        tokens: &["ibblind"],
        reads: "counters/* of the profile's ports",
        rule: "warn: a 4-, 8- or 16-bit counter stands at 15, 255 or 65535: it cannot move, so it is blind",
        source: "Linux drivers/infiniband/core/sysfs.c; 15 seen on a healthy H100 node",
        reads_needed: 1,
        modes: SLOW,
        action: "none",
    },
    CheckInfo {
        id: "fs.mount",
        tokens: &["mount"],
        reads: "/proc/self/mounts, profile.mount",
        rule: "fail: not mounted, another type, or read-only where the profile wants to write",
        source: "LBNL NHC check_fs_mount",
        reads_needed: 1,
        modes: ALL,
        action: "restart_service",
    },
    CheckInfo {
        id: "fs.stale",
        tokens: &["stalefs"],
        reads: "a stat of each network mount of the profile, in a child with a deadline",
        rule: "warn: first miss or error; fail: two in a row",
        source: "LBNL NHC issue 77; gpud PR 1245",
        reads_needed: 2,
        modes: SLOW,
        action: "restart_service",
    },
    CheckInfo {
        id: "fs.space",
        tokens: &["fsspace"],
        reads: "statvfs of profile.space",
        rule: "warn and fail above the profile's percentages (85 and 95) of blocks or inodes",
        source: "LBNL NHC, soperator",
        reads_needed: 1,
        modes: ALL,
        action: "restart_service",
    },
    CheckInfo {
        id: "host.mem",
        tokens: &["mem"],
        reads: "MemTotal, profile.memory_total_kib",
        rule: "fail: below 99 % of the profile: a DIMM is missing",
        source: "LBNL NHC check_hw_physmem",
        reads_needed: 1,
        modes: ALL,
        action: "repair",
    },
    CheckInfo {
        id: "node.self",
        tokens: &["self"],
        reads: "this suite's own state folder and the kernel log's sequence numbers",
        rule: "warn: state or kernel log cannot be used, or records were lost",
        source: "this project's design",
        reads_needed: 1,
        modes: ALL,
        action: "none",
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_and_tokens_are_unique_and_short() {
        let mut ids = std::collections::BTreeSet::new();
        let mut tokens = std::collections::BTreeSet::new();
        for c in CATALOGUE {
            assert!(ids.insert(c.id), "{} twice", c.id);
            for t in c.tokens {
                assert!(tokens.insert(*t), "{t} twice");
                assert!(t.len() <= 10 && t.chars().all(|c| c.is_ascii_alphanumeric()), "{t}");
            }
            assert!(!c.rule.is_empty() && !c.source.is_empty() && c.reads_needed > 0);
        }
    }
}
