//! Faults of the fabric's counters, the host and its disks.

use nvidia_ml_sim::model::PciAddress;

use super::{Line, Target, line};
use crate::error::{Error, Result};
use crate::files;
use crate::kmsg;
use crate::sysfs::{SysfsTree, nic_address};

/// Name, argument and meaning, as `inject --list` shows them.
pub(super) const FAULTS: [(&str, &str, &str); 18] = [
    ("ib-flap", "[:PORT]", "an InfiniBand link goes down and up three times, each time it is injected"),
    ("ib-symbol", "[:PORT]", "20000 symbol errors more on an InfiniBand port, each time it is injected"),
    ("ib-errors", "[:PORT]", "20000 receive errors more on an InfiniBand port, each time it is injected"),
    ("ib-saturated", "[:PORT]", "the short error counters of an InfiniBand port stand at their top"),
    ("ib-no-sm", "[:PORT]", "an active InfiniBand port without a subnet manager's address"),
    ("roce-errors", "[:PORT]", "5 receiver-not-ready failures more on a port, each time it is injected"),
    ("nic-firmware", "[:PORT]", "an InfiniBand card with another firmware release than the others"),
    ("nic-health", "[:PORT]", "the kernel line of an InfiniBand card that stopped answering its driver"),
    (
        "aer",
        "[:fatal|nonfatal|correctable]",
        "a fatal PCIe error of the GPU, 3 non-fatal or 100000 corrected ones more (fatal)",
    ),
    ("pcie-speed", "", "the GPU's PCIe link can do no more than 8 GT/s"),
    ("net-down", "", "the network interface eth0 has no link"),
    ("edac", "[:ue|ce]", "an uncorrectable memory error more, or 1000 corrected ones (ue)"),
    ("nvme-dead", "", "the NVMe controller nvme1 is dead"),
    ("nvme-smart", "", "the NVMe controller nvme1 says that its reliability is degraded"),
    ("raid-degraded", "", "the mirror md0 lost a member"),
    ("lockup", "", "two kernel lines of a processor that is locked up, in this node's log"),
    ("mce", "", "the kernel line of a machine check exception, in this node's log"),
    ("oom", "", "the kernel line of slurmd killed for want of memory, in this node's log"),
];

/// One of [`FAULTS`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "FAULTS says what each is")]
pub enum NodeFault {
    IbFlap(Option<u32>),
    IbSymbol(Option<u32>),
    IbErrors(Option<u32>),
    IbSaturated(Option<u32>),
    IbNoSm(Option<u32>),
    RoceErrors(Option<u32>),
    NicFirmware(Option<u32>),
    NicHealth(Option<u32>),
    Aer(&'static str, u32),
    PcieSpeed,
    NetDown,
    Edac(&'static str, u32),
    NvmeDead,
    NvmeSmart,
    RaidDegraded,
    Lockup,
    Mce,
    Oom,
}

impl NodeFault {
    /// Reads a fault's name and argument; `None` when the name is none of these.
    pub(super) fn parse(name: &str, argument: Option<&str>) -> Option<Result<Self>> {
        let bad = |what: &str| Error::Usage(format!("the fault \"{name}\" takes {what}"));
        let none = |fault: Self| match argument {
            None => Ok(fault),
            Some(_) => Err(bad("no argument: write it without \":\"")),
        };
        let port = |fault: fn(Option<u32>) -> Self| match argument.map(str::parse::<u32>) {
            None => Ok(fault(None)),
            Some(Ok(n)) if n < 64 => Ok(fault(Some(n))),
            Some(_) => Err(bad("a port number from 0 to 63")),
        };
        Some(match name {
            "ib-flap" => port(Self::IbFlap),
            "ib-symbol" => port(Self::IbSymbol),
            "ib-errors" => port(Self::IbErrors),
            "ib-saturated" => port(Self::IbSaturated),
            "ib-no-sm" => port(Self::IbNoSm),
            "roce-errors" => port(Self::RoceErrors),
            "nic-firmware" => port(Self::NicFirmware),
            "nic-health" => port(Self::NicHealth),
            "aer" => match argument {
                None | Some("fatal") => Ok(Self::Aer("fatal", 1)),
                Some("nonfatal") => Ok(Self::Aer("nonfatal", 3)),
                Some("correctable") => Ok(Self::Aer("correctable", 100_000)),
                Some(_) => Err(bad("fatal, nonfatal or correctable")),
            },
            "pcie-speed" => none(Self::PcieSpeed),
            "net-down" => none(Self::NetDown),
            "edac" => match argument {
                None | Some("ue") => Ok(Self::Edac("ue_count", 1)),
                Some("ce") => Ok(Self::Edac("ce_count", 1000)),
                Some(_) => Err(bad("ue or ce")),
            },
            "nvme-dead" => none(Self::NvmeDead),
            "nvme-smart" => none(Self::NvmeSmart),
            "raid-degraded" => none(Self::RaidDegraded),
            "lockup" => none(Self::Lockup),
            "mce" => none(Self::Mce),
            "oom" => none(Self::Oom),
            _ => return None,
        })
    }

    /// True for faults that are about no GPU.
    pub(super) fn is_nodes(&self) -> bool {
        !matches!(self, Self::Aer(..) | Self::PcieSpeed)
    }

    /// Changes the node's tree; returns the line that has to go into the log that nodes share, or what was written into the
    /// node's own.
    pub(super) fn apply(
        &self,
        target: &Target<'_>,
        tree: &SysfsTree,
        gpu: PciAddress,
    ) -> Result<(Option<String>, Option<Line>)> {
        /// Tops of counters with 8 and 16 bits; short of them, a counter still counts.
        const TOP_8: u64 = 254;
        const TOP_16: u64 = 65_534;
        let port = |number: &Option<u32>| target.port(*number);
        let counter = |n: usize, name: &str| tree.ib_port(n).join("counters").join(name);
        let mut shared = None;
        let mut own: Vec<&str> = Vec::new();
        match self {
            Self::IbFlap(n) => {
                let n = port(n)?;
                tree.rise(&counter(n, "link_downed"), 3, TOP_8)?;
                tree.rise(&tree.net(&format!("ib{n}"), "carrier_down_count"), 3, u64::MAX)?;
            }
            Self::IbSymbol(n) => tree.rise(&counter(port(n)?, "symbol_error"), 20_000, TOP_16)?,
            Self::IbErrors(n) => tree.rise(&counter(port(n)?, "port_rcv_errors"), 20_000, TOP_16)?,
            Self::IbSaturated(n) => {
                let n = port(n)?;
                for (name, top) in
                    [("excessive_buffer_overrun_errors", "15"), ("link_downed", "255"), ("symbol_error", "65535")]
                {
                    tree.put(&counter(n, name), top)?;
                }
            }
            Self::IbNoSm(n) => tree.put(&tree.ib_port(port(n)?).join("sm_lid"), "0x0")?,
            Self::RoceErrors(n) => {
                tree.rise(&tree.ib_port(port(n)?).join("hw_counters/rnr_nak_retry_err"), 5, u64::MAX)?;
            }
            Self::NicFirmware(n) => tree.put(&tree.ib_port(port(n)?).join("../../fw_ver"), "28.39.1002")?,
            Self::NicHealth(n) => {
                let address = nic_address(target.domain, port(n)?);
                shared = Some(format!(
                    "mlx5_core {address}: poll_health:825: device's health compromised - reached miss count."
                ));
            }
            Self::Aer(kind, by) => tree.aer_rise(gpu, kind, u64::from(*by))?,
            Self::PcieSpeed => tree.put(&tree.pci(gpu).join("max_link_speed"), "8.0 GT/s PCIe")?,
            Self::NetDown => {
                tree.put(&tree.net("eth0", "operstate"), "down")?;
                tree.put(&tree.net("eth0", "carrier"), "0")?;
                tree.put(&tree.net("eth0", "speed"), "-1")?;
            }
            Self::Edac(file, by) => tree.rise(&tree.edac(file), u64::from(*by), u64::MAX)?,
            Self::NvmeDead => tree.put(&tree.nvme(1), "dead")?,
            Self::NvmeSmart => {
                // The health page in the place of the device; what the checks remember of the last one is not waited for.
                let mut page = [0u8; 512];
                (page[0], page[3], page[4]) = (1 << 2, 100, 10);
                files::write_atomic(&target.node.health_page(), &page, 0o600)?;
                let _ = std::fs::remove_file(target.node.run().join("smart.json"));
            }
            Self::RaidDegraded => tree.put(&tree.raid("degraded"), "1")?,
            Self::Lockup => own.extend([
                "watchdog: BUG: soft lockup - CPU#3 stuck for 26s! [python3:4242]",
                "watchdog: BUG: soft lockup - CPU#3 stuck for 52s! [python3:4242]",
            ]),
            Self::Mce => {
                own.push("mce: [Hardware Error]: CPU 12: Machine Check Exception: 5 Bank 7: be00000000800400");
            }
            Self::Oom => own.push(
                "Out of memory: Killed process 4711 (slurmd) total-vm:1048576kB, anon-rss:524288kB, file-rss:0kB",
            ),
        }
        let log = target.node.kmsg();
        let mut written = None;
        for text in own {
            written = Some(line(&log.display().to_string(), kmsg::append_record(&log, text)?));
        }
        Ok((shared, written))
    }
}
