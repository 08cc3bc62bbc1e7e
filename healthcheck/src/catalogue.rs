//! The table of all checks: what each reads, its rule, where the rule comes from.

use crate::mode::Mode;

mod amd;
mod node;

/// What `list` and `explain` say about a check.
#[derive(Clone, Copy)]
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
    /// Modes it runs in; none for an active test, see [`CheckInfo::active`].
    pub modes: &'static [Mode],
    /// What mends it.
    pub action: &'static str,
}

impl CheckInfo {
    /// True for a check that loads the hardware: a stage of the benchmark suite runs it on idle nodes, a pass never does.
    #[must_use]
    pub fn active(&self) -> bool {
        self.modes.is_empty() && !self.guards()
    }

    /// True for what `clustermax-drain` looks at before it writes anything to Slurm; it cannot be switched off.
    #[must_use]
    pub fn guards(&self) -> bool {
        self.id == "slurm.guard"
    }

    /// Whether a pass of this mode makes the check. An audit makes what a deep pass does, short of using the hardware.
    #[must_use]
    pub fn runs_in(&self, mode: Mode) -> bool {
        match mode {
            Mode::Audit => self.modes.contains(&Mode::Deep) && self.modes != USES,
            _ => self.modes.contains(&mode),
        }
    }

    /// Modes by comma, `suite` for an active test, `drain` for what comes before a drain.
    #[must_use]
    pub fn when(&self) -> String {
        let modes: Vec<&str> = self.modes.iter().map(|m| m.word()).collect();
        match self {
            _ if self.active() => "suite".into(),
            _ if self.guards() => "drain".into(),
            _ => modes.join(","),
        }
    }
}

/// Puts load on the hardware: by hand, on an idle node.
const USES: &[Mode] = &[Mode::Deep];
/// Never in a pass.
const ACTIVE: &[Mode] = &[];
const ALL: &[Mode] = &[Mode::Prolog, Mode::Epilog, Mode::Periodic, Mode::Deep];
const SLOW: &[Mode] = &[Mode::Periodic, Mode::Deep];
const AFTER: &[Mode] = &[Mode::Epilog, Mode::Periodic, Mode::Deep];

/// All checks of this release, in the order in which they decide a reason among equal actions: the kernel's own
/// word first, since it names the cause where the state shows what follows.
pub const CATALOGUE: &[CheckInfo] =
    &joined::<{ CORE.len() + amd::ROWS.len() + node::ROWS.len() }>(&[CORE, amd::ROWS, node::ROWS]);

/// All tables, one after the other.
const fn joined<const N: usize>(tables: &[&[CheckInfo]]) -> [CheckInfo; N] {
    let mut all = [CORE[0]; N];
    let (mut table, mut row, mut at) = (0, 0, 0);
    while at < N {
        if row < tables[table].len() {
            all[at] = tables[table][row];
            (row, at) = (row + 1, at + 1);
        } else {
            (table, row) = (table + 1, 0);
        }
    }
    all
}

const CORE: &[CheckInfo] = &[
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
        id: "gpu.driver",
        tokens: &["driver"],
        reads: "/sys/module/nvidia/version, NVML's driver version and its refusal to start",
        rule: "fail: kernel module and library are of different releases, or the profile has GPUs and the driver is not loaded, in 2 reads in a row (it may still load after a boot); running jobs keep working",
        source: "mozilla/translations issue 1167; shine-cluster issue 30; nvidia-smi exit code 18",
        reads_needed: 2,
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
        id: "gpu.ecc_sram_threshold",
        tokens: &["sramlimit"],
        reads: "NVML SRAM ECC error status",
        rule: "fail: the threshold of NVIDIA's replacement rule is exceeded",
        source: "NVIDIA RMA rule; DCGM SRAM threshold",
        reads_needed: 1,
        modes: ALL,
        action: "repair",
    },
    CheckInfo {
        id: "gpu.ecc_ce_rate",
        tokens: &["eccrate"],
        reads: "NVML corrected ECC errors since driver load, over time",
        rule: "warn: above 1000 a second, over a minute or more; never the count itself",
        source: "NVSentinel issue 1748 (4,600 to 17,600 a second on a dying HBM)",
        reads_needed: 1,
        modes: SLOW,
        action: "reset_gpu",
    },
    CheckInfo {
        id: "gpu.remap_headroom",
        tokens: &["rowspare"],
        reads: "NVML row remapper histogram, field 143",
        rule: "warn: a memory bank has few or no spare rows left; fail: 512 rows remapped for uncorrectable errors",
        source: "DCGM (512); EKS node guide",
        reads_needed: 1,
        modes: SLOW,
        action: "repair",
    },
    CheckInfo {
        id: "gpu.repair_pending",
        tokens: &["repair", "memdead"],
        reads: "NVML repair status and unrepairable memory flag (Blackwell)",
        rule: "a channel or TPC repair waits for a reset: fail, but warn while a job holds the GPU; fail: unrepairable memory",
        source: "nvml.h of drivers 580 and 590",
        reads_needed: 1,
        modes: ALL,
        action: "reset_gpu or repair",
    },
    CheckInfo {
        id: "gpu.retired_pages",
        tokens: &["retired"],
        reads: "NVML retired pages (before Ampere)",
        rule: "fail: 63 or more, or more than 15 for double-bit errors with more than one within a week, or a retirement waits for a reboot",
        source: "DCGM; azurehpc",
        reads_needed: 1,
        modes: SLOW,
        action: "repair or reboot",
    },
    CheckInfo {
        id: "gpu.inforom",
        tokens: &["inforom"],
        reads: "NVML infoROM validation",
        rule: "warn: the checksum is wrong",
        source: "nvidia-smi exit code 14; DCGM",
        reads_needed: 1,
        modes: SLOW,
        action: "repair",
    },
    CheckInfo {
        id: "gpu.nvlink_speed",
        tokens: &["nvspeed"],
        reads: "NVML speed of every active NVLink, profile.gpu.nvlink_mbps",
        rule: "warn: a link below 95 % of the profile",
        source: "oci-hpc link table (A100 and H100 25 to 26.6 GB/s, Blackwell 50 to 53)",
        reads_needed: 1,
        modes: SLOW,
        action: "reset_gpu",
    },
    CheckInfo {
        id: "gpu.nvlink_errors",
        tokens: &["nverrors"],
        reads: "NVML NVLink recovery and CRC counters over time, effective bit error rate (NVLink 5)",
        rule: "warn: a recovery a minute, 100 CRC errors a second or a bit error rate above 1e-12; fail: errors so in every part of the last ten minutes, in 3 reads in a row; one burst never",
        source: "DCGM NVLink health thresholds",
        reads_needed: 3,
        modes: SLOW,
        action: "repair",
    },
    CheckInfo {
        id: "gpu.fabric_state",
        tokens: &["fabric", "fabhealth"],
        reads: "NVML fabric state, status and health mask, uptime",
        rule: "fail: not completed with success 2 minutes after boot, or a bad health mask in 3 reads in a row; no fabric is unsupported",
        source: "gpud; DCGM fabric probe; NVSentinel issue 883",
        reads_needed: 1,
        modes: ALL,
        action: "restart_service",
    },
    CheckInfo {
        id: "gpu.fabricmanager",
        tokens: &["fabricmgr"],
        reads: "state of nvidia-fabricmanager, NVSwitches on the PCI bus or profile.gpu.fabric_manager, NVML fabric state",
        rule: "fail: needed, and not active in 2 reads in a row while the fabric is not complete",
        source: "gpud PR 1106, 1151 and 1206",
        reads_needed: 2,
        modes: SLOW,
        action: "restart_service",
    },
    CheckInfo {
        id: "gpu.imex",
        tokens: &["imex"],
        reads: "nvidia-imex-ctl -q and /dev/nvidia-caps-imex-channels, only with profile.gpu.imex",
        rule: "fail: not READY, or no channel, in 2 reads in a row",
        source: "DCGM issue 308 and aicr issue 2641 (false alarms where nothing needs it)",
        reads_needed: 2,
        modes: SLOW,
        action: "restart_service",
    },
    CheckInfo {
        id: "gpu.c2c",
        tokens: &["c2c"],
        reads: "NVML NVLink-C2C state and errors (Grace)",
        rule: "warn: errors within an hour; fail: a link down in 2 reads in a row",
        source: "nvml.h fields 170 to 172 and 231 to 234",
        reads_needed: 2,
        modes: SLOW,
        action: "reboot",
    },
    CheckInfo {
        id: "gpu.pcie_replay",
        tokens: &["pciereplay"],
        reads: "NVML PCIe replay counter over time, lanes and generation",
        rule: "warn: more a minute than lanes times 0.15, 0.3, 0.48, 0.96, 1.92 or 3.84 (generation 1 to 6)",
        source: "DCGM PCIe health",
        reads_needed: 1,
        modes: SLOW,
        action: "repair",
    },
    CheckInfo {
        id: "gpu.throttle",
        tokens: &["throttle", "thermal"],
        reads: "NVML clock event reasons 0x08, 0x40 and 0x80, time in hardware thermal slowdown",
        rule: "warn: a reason in 3 reads in a row; fail: slowed by heat for more than 60 % of ten minutes; idle and the power cap are no reasons",
        source: "gpud; NVSentinel issue 1666 (power brake on half of a healthy fleet)",
        reads_needed: 1,
        modes: AFTER,
        action: "repair",
    },
    CheckInfo {
        id: "gpu.idle_heat",
        tokens: &["idleheat"],
        reads: "NVML temperature and power of a GPU without process and job, profile.gpu.idle_power_watts",
        rule: "warn: above 60 C or the power of the profile (150 W, Blackwell 250 W, beside Grace 300 W) in 3 reads in a row",
        source: "ClusterMAX audit ceilings",
        reads_needed: 1,
        modes: SLOW,
        action: "none",
    },
    CheckInfo {
        id: "gpu.persistence",
        tokens: &["persist"],
        reads: "NVML persistence mode",
        rule: "warn: off; never a failure",
        source: "Azure healthagent; AgentBaker PR 2829",
        reads_needed: 1,
        modes: SLOW,
        action: "restart_service",
    },
    CheckInfo {
        id: "gpu.modes",
        tokens: &["eccmode", "migmode", "compmode"],
        reads: "NVML ECC, MIG and compute mode, profile.gpu",
        rule: "fail: an ECC or MIG change waits for a reset, or MIG is not the profile's (warn while a job holds the GPU); warn: ECC or compute mode is not the profile's",
        source: "NVML; aws-parallelcluster-cookbook PR 3183",
        reads_needed: 1,
        modes: ALL,
        action: "reset_gpu",
    },
    CheckInfo {
        id: "gpu.clocks_setting",
        tokens: &["clocks", "powerlimit"],
        reads: "NVML application clocks, clock event reason 0x02, power limit, profile.gpu.power_limit_watts",
        rule: "warn: not the profile's, or not the default's",
        source: "azurehpc, sichek, DeepOps",
        reads_needed: 1,
        modes: AFTER,
        action: "none",
    },
    CheckInfo {
        id: "gpu.leftover",
        tokens: &["leftover", "strayproc"],
        reads: "NVML compute processes and their control groups",
        rule: "fail: a process of a job that ended here, in 2 reads in a row; warn: a process outside of all jobs on a GPU that no job holds, in 2 reads in a row",
        source: "gcm, soperator, deepops issues 992 and 1407",
        reads_needed: 2,
        modes: ALL,
        action: "reboot",
    },
    CheckInfo {
        id: "gpu.mps",
        tokens: &["mps"],
        reads: "processes called nvidia-cuda-mps, their control groups, profile.gpu.mps",
        rule: "warn: one outlives its job, or runs outside of jobs",
        source: "DeepOps",
        reads_needed: 1,
        modes: &[Mode::Epilog, Mode::Deep],
        action: "restart_service",
    },
    CheckInfo {
        id: "gpu.firmware",
        tokens: &["firmware"],
        reads: "NVML VBIOS, GSP firmware and driver versions, profile.gpu.firmware",
        rule: "warn: a GPU differs from the others or from the profile; fail: from a strict profile",
        source: "azurehpc, gcm, sichek",
        reads_needed: 1,
        modes: SLOW,
        action: "repair",
    },
    CheckInfo {
        id: "gpu.usable",
        tokens: &["cuda"],
        reads: "libcuda in a child: context and 1 MiB there and back on every GPU, when no job runs",
        rule: "fail: an error, wrong data, no answer in 10 s, or a GPU that CUDA does not show",
        source: "sichek PR 121; dra-driver issue 982; healthagent GpuMemoryCheck",
        reads_needed: 1,
        modes: USES,
        action: "reset_gpu",
    },
    CheckInfo {
        id: "gpu.xid_repeat",
        tokens: &["xidrepeat"],
        reads: "kernel events of the last 24 hours",
        rule: "warn: Xid 13 at one GPC and TPC, or 31 on one GPU, in two programs 10 minutes apart; 94 three times; 74 with bits 4 or 5 more than twice on one link",
        source: "NVIDIA Xid catalogue workflows; NVSentinel analyzer",
        reads_needed: 1,
        modes: SLOW,
        action: "none",
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
        reads: "counters/link_downed of the profile's ports and carrier_down_count of their interfaces over time",
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
        rule: "fail: not mounted, another type, or read-only where the profile wants to write; what an automounter mounts at first use is no fault",
        source: "LBNL NHC check_fs_mount",
        reads_needed: 1,
        modes: ALL,
        action: "restart_service",
    },
    CheckInfo {
        id: "fs.stale",
        tokens: &["stalefs", "nfsslow"],
        reads: "a stat of each network mount of the profile, and an attempt to write that changes nothing where jobs write, in a child with a deadline; kernel log: NFS servers",
        rule: "warn: first miss or error, or a server that the kernel calls unresponsive and not OK since; fail: two misses in a row",
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
        id: "gpu.dcgm",
        tokens: &["dcgm"],
        reads: "dcgmi health -g 0 -c, where paths.dcgmi is installed",
        rule: "warn: not Healthy; never a failure, and Healthy takes nothing from the other checks",
        source: "NVIDIA/DCGM issue 263: it called a GPU healthy that needed a reset",
        reads_needed: 1,
        modes: SLOW,
        action: "none",
    },
    CheckInfo {
        id: "node.self",
        tokens: &["self"],
        reads: "this suite's own state folder, the age of its last verdict, the kernel log's sequence numbers, the configuration's switches",
        rule: "warn: state or kernel log cannot be used, records were lost, no verdict for twice the HealthCheckInterval of slurm.conf (20 minutes where it is not known); checks that are switched off are named",
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
