//! The sysfs tree of a simulated node: PCI functions, InfiniBand devices and network interfaces, laid out and
//! worded as Linux does, under a folder that the product's programs are pointed at instead of `/sys`.

use std::fs;
use std::path::{Path, PathBuf};

use nvidia_ml_sim::model::{Gpu, GpuFile, GpuModel, PciAddress};

use crate::error::{IoContext, Result};
use crate::files;

mod host;

pub use host::NVME_COUNT;

/// Buses of the eight network cards of an HGX node, one beside each GPU.
const NIC_BUSES: [u8; 8] = [0x19, 0x2b, 0x3b, 0x5e, 0x9b, 0xac, 0xbb, 0xdc];
/// Buses of the NVSwitches.
const NVSWITCH_BUSES: [u8; 6] = [0x05, 0x06, 0x07, 0x08, 0x09, 0x0a];

/// Content of `current_link_width` when the device does not answer: all ones in a 6 bit field.
pub(crate) const WIDTH_GONE: &str = "63";

/// The InfiniBand card that is usual beside a GPU model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct IbCard {
    /// `hca_type` of sysfs.
    pub hca_type: &'static str,
    /// PCI device id.
    pub device_id: u16,
    /// Firmware version.
    pub firmware: &'static str,
    /// `board_id` (PSID) of sysfs.
    pub board_id: &'static str,
    /// Port rate, Gb/s.
    pub rate_gbps: u32,
    /// Speed name of sysfs.
    pub speed: &'static str,
    /// A speed the port falls back to when a cable is bad, Gb/s, and its name.
    pub slow: (u32, &'static str),
}

impl IbCard {
    /// The card sold with nodes of this model: ConnectX-6 HDR beside the A100, ConnectX-7 NDR beside the others.
    #[must_use]
    pub fn beside(model: GpuModel) -> Self {
        match model {
            GpuModel::A100Sxm => Self {
                hca_type: "MT4123",
                device_id: 0x101b,
                firmware: "20.39.1002",
                board_id: "MT_0000000223",
                rate_gbps: 200,
                speed: "HDR",
                slow: (100, "EDR"),
            },
            GpuModel::H100Sxm | GpuModel::H200Sxm | GpuModel::B200 => Self {
                hca_type: "MT4129",
                device_id: 0x1021,
                firmware: "28.41.1000",
                board_id: "MT_0000000838",
                rate_gbps: 400,
                speed: "NDR",
                slow: (200, "HDR"),
            },
        }
    }

    /// Content of a port's `rate` file.
    fn rate(rate_gbps: u32, speed: &str) -> String {
        format!("{rate_gbps} Gb/sec (4X {speed})")
    }
}

/// Number of NVSwitches that show on the PCI bus of an eight-GPU node; those of Blackwell do not.
fn nvswitches(model: GpuModel) -> (usize, u16) {
    match model {
        GpuModel::A100Sxm => (6, 0x1af1),
        GpuModel::H100Sxm | GpuModel::H200Sxm => (4, 0x22a3),
        GpuModel::B200 => (0, 0),
    }
}

/// One PCI function.
struct Function {
    address: PciAddress,
    vendor: u16,
    device: u16,
    /// Class, subclass and programming interface.
    class: u32,
    /// Link speed as sysfs words it.
    speed: &'static str,
    width: u32,
    numa: i32,
}

impl Function {
    /// The first 256 bytes of configuration space: identity, command, class and one PCI Express capability.
    fn config(&self) -> [u8; 256] {
        let mut bytes = [0_u8; 256];
        bytes[0..2].copy_from_slice(&self.vendor.to_le_bytes());
        bytes[2..4].copy_from_slice(&self.device.to_le_bytes());
        // Memory space and bus master enabled; capabilities list present.
        bytes[4..8].copy_from_slice(&[0x06, 0x04, 0x10, 0x00]);
        bytes[8] = 0xa1;
        bytes[9..12].copy_from_slice(&self.class.to_le_bytes()[0..3]);
        bytes[0x34] = 0x60;
        bytes[0x60..0x62].copy_from_slice(&[0x10, 0x00]);
        bytes
    }
}

/// A node's tree.
#[derive(Debug, Clone)]
pub struct SysfsTree {
    root: PathBuf,
}

impl SysfsTree {
    /// The tree under `root`, which stands for `/sys`.
    #[must_use]
    pub fn at(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    /// Folder of a PCI function.
    #[must_use]
    pub fn pci(&self, address: PciAddress) -> PathBuf {
        self.root.join("bus/pci/devices").join(address.to_string())
    }

    /// Folder of port 1 of InfiniBand device `index`.
    #[must_use]
    pub fn ib_port(&self, index: usize) -> PathBuf {
        self.root.join(format!("class/infiniband/mlx5_{index}/ports/1"))
    }

    /// Writes one attribute, with the newline that the kernel ends them with.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub(crate) fn write(path: &Path, value: &str) -> Result<()> {
        files::write_atomic(path, format!("{value}\n").as_bytes(), 0o644)
    }

    /// Writes the healthy tree of a node with these GPUs and `ib_ports` InfiniBand cards of one port each. Files that
    /// exist are replaced one by one, so that a reader never sees a tree without devices.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn write_healthy(&self, model: GpuModel, gpus: &GpuFile, ib_ports: usize) -> Result<()> {
        let domain = gpus.gpus.first().map_or(0, |g| g.pci_address.domain);
        for gpu in &gpus.gpus {
            self.write_function(&gpu_function(gpu))?;
        }
        let (count, device) = nvswitches(model);
        for bus in &NVSWITCH_BUSES[..if gpus.gpus.is_empty() { 0 } else { count }] {
            self.write_function(&Function {
                address: PciAddress { domain, bus: *bus, device: 0, function: 0 },
                vendor: 0x10de,
                device,
                class: 0x06_8000,
                speed: "16.0 GT/s PCIe",
                width: 2,
                numa: 0,
            })?;
        }
        let version = self.root.join("module/nvidia/version");
        files::make_dir(&self.root.join("module/nvidia"), 0o755)?;
        Self::write(&version, &gpus.driver_version)?;
        files::make_dir(&self.root.join("class/infiniband"), 0o755)?;
        files::make_dir(&self.root.join("class/net"), 0o755)?;
        let card = IbCard::beside(model);
        for index in 0..ib_ports {
            self.write_card(&card, domain, index)?;
        }
        self.write_host()?;
        self.write_interface("eth0", 1, 1500, Some(25_000), None)
    }

    fn write_function(&self, function: &Function) -> Result<()> {
        let folder = self.pci(function.address);
        files::make_dir(&folder, 0o755)?;
        let width = function.width.to_string();
        let numa = function.numa.to_string();
        let attributes = [
            ("vendor", format!("{:#06x}", function.vendor)),
            ("device", format!("{:#06x}", function.device)),
            ("class", format!("{:#08x}", function.class)),
            ("revision", "0xa1".to_owned()),
            ("current_link_speed", function.speed.to_owned()),
            ("max_link_speed", function.speed.to_owned()),
            ("current_link_width", width.clone()),
            ("max_link_width", width),
            ("numa_node", numa),
            (
                "aer_dev_correctable",
                aer(
                    &[
                        "RxErr",
                        "BadTLP",
                        "BadDLLP",
                        "Rollover",
                        "Timeout",
                        "NonFatalErr",
                        "CorrIntErr",
                        "HeaderOF",
                    ],
                    "TOTAL_ERR_COR",
                ),
            ),
            ("aer_dev_fatal", aer(&AER_UNCORRECTABLE, "TOTAL_ERR_FATAL")),
            ("aer_dev_nonfatal", aer(&AER_UNCORRECTABLE, "TOTAL_ERR_NONFATAL")),
        ];
        for (name, value) in &attributes {
            Self::write(&folder.join(name), value)?;
        }
        files::write_atomic(&folder.join("config"), &function.config(), 0o644)
    }

    fn write_card(&self, card: &IbCard, domain: u32, index: usize) -> Result<()> {
        let address = nic_address(domain, index);
        self.write_function(&Function {
            address,
            vendor: 0x15b3,
            device: card.device_id,
            class: 0x02_0700,
            speed: "32.0 GT/s PCIe",
            width: 16,
            numa: i32::from(index % 8 >= 4),
        })?;
        let device = self.root.join(format!("class/infiniband/mlx5_{index}"));
        let port = self.ib_port(index);
        for folder in [port.join("counters"), port.join("hw_counters"), port.join("pkeys")] {
            files::make_dir(&folder, 0o755)?;
        }
        // Locally administered: made-up identifiers must not look like a vendor's.
        let guid = format!("0200:{:04x}:0000:{:04x}", domain & 0xffff, index);
        for (name, value) in [
            ("hca_type", card.hca_type),
            ("fw_ver", card.firmware),
            ("board_id", card.board_id),
            ("node_guid", &guid),
            ("sys_image_guid", &guid),
            ("node_type", "1: CA"),
        ] {
            Self::write(&device.join(name), value)?;
        }
        link(&PathBuf::from(format!("../../../bus/pci/devices/{address}")), &device.join("device"))?;
        self.write_port_healthy(card, index)?;
        self.write_interface(&format!("ib{index}"), 32, 2044, None, Some(address))
    }

    /// Writes the attributes and counters of a healthy port.
    fn write_port_healthy(&self, card: &IbCard, index: usize) -> Result<()> {
        let port = self.ib_port(index);
        let lid = format!("{:#x}", 0x1a + index);
        for (name, value) in [
            ("state", "4: ACTIVE"),
            ("phys_state", "5: LinkUp"),
            ("rate", &IbCard::rate(card.rate_gbps, card.speed)),
            ("link_layer", "InfiniBand"),
            ("lid", &lid),
            ("sm_lid", "0x1"),
            ("sm_sl", "0"),
            ("pkeys/0", "0xffff"),
        ] {
            Self::write(&port.join(name), value)?;
        }
        for name in COUNTERS {
            let value = match name {
                "port_rcv_data" | "port_xmit_data" => "230539874932483",
                "port_rcv_packets" | "port_xmit_packets" => "317548853677",
                _ => "0",
            };
            Self::write(&port.join("counters").join(name), value)?;
        }
        for name in HW_COUNTERS {
            Self::write(&port.join("hw_counters").join(name), if name == "lifespan" { "12" } else { "0" })?;
        }
        Ok(())
    }

    fn write_interface(
        &self,
        name: &str,
        kind: u32,
        mtu: u32,
        speed: Option<u32>,
        device: Option<PciAddress>,
    ) -> Result<()> {
        let folder = self.root.join("class/net").join(name);
        files::make_dir(&folder.join("statistics"), 0o755)?;
        for (file, value) in [
            ("type", kind.to_string()),
            ("operstate", "up".to_owned()),
            ("carrier", "1".to_owned()),
            ("carrier_changes", "2".to_owned()),
            ("carrier_up_count", "1".to_owned()),
            ("carrier_down_count", "1".to_owned()),
            ("mtu", mtu.to_string()),
        ] {
            Self::write(&folder.join(file), &value)?;
        }
        for file in ["rx_errors", "tx_errors", "rx_dropped", "tx_dropped", "rx_crc_errors"] {
            Self::write(&folder.join("statistics").join(file), "0")?;
        }
        if let Some(speed) = speed {
            Self::write(&folder.join("speed"), &speed.to_string())?;
        }
        match device {
            Some(address) => {
                link(&PathBuf::from(format!("../../../bus/pci/devices/{address}")), &folder.join("device"))
            }
            None => Ok(()),
        }
    }

    /// A PCI function that no longer answers: reads give all ones, and the link width field with them.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn pci_dead(&self, address: PciAddress) -> Result<()> {
        let folder = self.pci(address);
        files::write_atomic(&folder.join("config"), &[0xff; 256], 0o644)?;
        Self::write(&folder.join("current_link_width"), WIDTH_GONE)?;
        Self::write(&folder.join("current_link_speed"), "Unknown")
    }

    /// A PCI function that was never found.
    ///
    /// # Errors
    /// When its folder cannot be removed.
    pub fn pci_remove(&self, address: PciAddress) -> Result<()> {
        let folder = self.pci(address);
        match fs::remove_dir_all(&folder) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(e).context("remove", &folder),
            _ => Ok(()),
        }
    }

    /// Version of the loaded kernel module; none: it is not loaded.
    ///
    /// # Errors
    /// When the file cannot be written or removed.
    pub fn module_version(&self, version: Option<&str>) -> Result<()> {
        let path = self.root.join("module/nvidia/version");
        match version {
            Some(version) => Self::write(&path, version),
            None => match fs::remove_file(&path) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(e).context("remove", &path),
                _ => Ok(()),
            },
        }
    }

    /// A link trained at fewer lanes.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn pci_width(&self, address: PciAddress, lanes: u32) -> Result<()> {
        Self::write(&self.pci(address).join("current_link_width"), &lanes.to_string())
    }

    /// A port without a cable.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn ib_down(&self, index: usize) -> Result<()> {
        let port = self.ib_port(index);
        Self::write(&port.join("state"), "1: DOWN")?;
        Self::write(&port.join("phys_state"), "2: Polling")?;
        Self::write(&port.join("rate"), &IbCard::rate(10, "SDR"))?;
        Self::write(&port.join("counters/link_downed"), "1")?;
        self.interface_down(index)
    }

    /// A port with a link but no subnet manager.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn ib_init(&self, index: usize) -> Result<()> {
        let port = self.ib_port(index);
        Self::write(&port.join("state"), "2: INIT")?;
        Self::write(&port.join("sm_lid"), "0x0")?;
        Self::write(&port.join("lid"), "0xffff")?;
        self.interface_down(index)
    }

    /// A port that came up at a lower speed than the card's.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn ib_slow(&self, model: GpuModel, index: usize) -> Result<()> {
        let (rate, speed) = IbCard::beside(model).slow;
        Self::write(&self.ib_port(index).join("rate"), &IbCard::rate(rate, speed))
    }

    fn interface_down(&self, index: usize) -> Result<()> {
        let folder = self.root.join(format!("class/net/ib{index}"));
        Self::write(&folder.join("operstate"), "down")?;
        Self::write(&folder.join("carrier"), "0")
    }
}

fn gpu_function(gpu: &Gpu) -> Function {
    // Truncation is the meaning: device in the upper, vendor in the lower half.
    let (device, vendor) = ((gpu.pci_device_id >> 16) as u16, (gpu.pci_device_id & 0xffff) as u16);
    Function {
        address: gpu.pci_address,
        vendor,
        device,
        class: 0x03_0200,
        speed: match gpu.pcie.max_generation {
            ..=3 => "8.0 GT/s PCIe",
            4 => "16.0 GT/s PCIe",
            5 => "32.0 GT/s PCIe",
            _ => "64.0 GT/s PCIe",
        },
        width: gpu.pcie.max_width,
        numa: gpu.numa_node,
    }
}

/// PCI address of InfiniBand card `index` (up to 64) in a node's domain.
#[must_use]
pub fn nic_address(domain: u32, index: usize) -> PciAddress {
    let device = u8::try_from(index / NIC_BUSES.len()).unwrap_or(0);
    PciAddress { domain, bus: NIC_BUSES[index % NIC_BUSES.len()], device, function: 0 }
}

/// Makes `at` a symbolic link to `target` unless it is there.
fn link(target: &Path, at: &Path) -> Result<()> {
    match std::os::unix::fs::symlink(target, at) {
        Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => Err(e).context("create", at),
        _ => Ok(()),
    }
}

fn aer(names: &[&str], total: &str) -> String {
    let mut text: String = names.iter().map(|n| format!("{n} 0\n")).collect();
    text.push_str(total);
    text.push_str(" 0");
    text
}

const AER_UNCORRECTABLE: [&str; 17] = [
    "Undefined",
    "DLP",
    "SDES",
    "TLP",
    "FCP",
    "CmpltTO",
    "CmpltAbrt",
    "UnxCmplt",
    "RxOF",
    "MalfTLP",
    "ECRC",
    "UnsupReq",
    "ACSViol",
    "UncorrIntErr",
    "BlockedTLP",
    "AtomicOpBlocked",
    "TLPBlockedErr",
];

const COUNTERS: [&str; 21] = [
    "VL15_dropped",
    "excessive_buffer_overrun_errors",
    "link_downed",
    "link_error_recovery",
    "local_link_integrity_errors",
    "multicast_rcv_packets",
    "multicast_xmit_packets",
    "port_rcv_constraint_errors",
    "port_rcv_data",
    "port_rcv_errors",
    "port_rcv_packets",
    "port_rcv_remote_physical_errors",
    "port_rcv_switch_relay_errors",
    "port_xmit_constraint_errors",
    "port_xmit_data",
    "port_xmit_discards",
    "port_xmit_packets",
    "port_xmit_wait",
    "symbol_error",
    "unicast_rcv_packets",
    "unicast_xmit_packets",
];

const HW_COUNTERS: [&str; 18] = [
    "duplicate_request",
    "implied_nak_seq_err",
    "lifespan",
    "local_ack_timeout_err",
    "np_cnp_sent",
    "np_ecn_marked_roce_packets",
    "out_of_buffer",
    "out_of_sequence",
    "packet_seq_err",
    "req_cqe_error",
    "resp_cqe_error",
    "resp_local_length_error",
    "resp_remote_access_errors",
    "rnr_nak_retry_err",
    "roce_adp_retrans",
    "roce_slow_restart",
    "rp_cnp_handled",
    "rx_icrc_encapsulated",
];

#[cfg(test)]
mod tests {
    use super::*;

    fn text(path: &Path) -> String {
        fs::read_to_string(path).unwrap()
    }

    #[test]
    fn healthy_tree_faults_and_restoration() {
        let folder = tempfile::tempdir().unwrap();
        let tree = SysfsTree::at(folder.path());
        let gpus = GpuFile::new(GpuModel::H100Sxm, 8, 0x3a1c, 2);
        tree.write_healthy(GpuModel::H100Sxm, &gpus, 8).unwrap();
        let address = gpus.gpus[3].pci_address;
        assert_eq!(address.to_string(), "3a1c:5d:00.0");
        assert_eq!(text(&tree.pci(address).join("vendor")), "0x10de\n");
        assert_eq!(text(&tree.pci(address).join("device")), "0x2330\n");
        assert_eq!(text(&tree.pci(address).join("class")), "0x030200\n");
        assert_eq!(text(&tree.ib_port(7).join("rate")), "400 Gb/sec (4X NDR)\n");
        assert_eq!(
            text(&folder.path().join("class/infiniband/mlx5_7/device/vendor")),
            "0x15b3\n",
            "the device link leads to the PCI function"
        );
        // GPUs, NVSwitches and cards, no two at one address.
        assert_eq!(fs::read_dir(folder.path().join("bus/pci/devices")).unwrap().count(), 8 + 4 + 8);

        tree.pci_dead(address).unwrap();
        assert!(fs::read(tree.pci(address).join("config")).unwrap().iter().all(|b| *b == 0xff));
        assert_eq!(text(&tree.pci(address).join("current_link_width")), "63\n");
        tree.pci_remove(gpus.gpus[0].pci_address).unwrap();
        tree.ib_down(0).unwrap();
        tree.ib_init(1).unwrap();
        tree.ib_slow(GpuModel::H100Sxm, 2).unwrap();
        assert_eq!(text(&tree.ib_port(0).join("state")), "1: DOWN\n");
        assert_eq!(text(&tree.ib_port(1).join("state")), "2: INIT\n");
        assert_eq!(text(&tree.ib_port(2).join("rate")), "200 Gb/sec (4X HDR)\n");

        tree.write_healthy(GpuModel::H100Sxm, &gpus, 8).unwrap();
        let config = fs::read(tree.pci(address).join("config")).unwrap();
        assert_eq!(config.len(), 256);
        assert_eq!(config[0..4], [0xde, 0x10, 0x30, 0x23]);
        assert_eq!(text(&tree.pci(address).join("current_link_width")), "16\n");
        assert!(tree.pci(gpus.gpus[0].pci_address).join("config").exists());
        assert_eq!(text(&tree.ib_port(0).join("state")), "4: ACTIVE\n");
        assert_eq!(text(&tree.ib_port(0).join("counters/link_downed")), "0\n");
        assert_eq!(text(&folder.path().join("class/net/ib0/operstate")), "up\n");
    }
}
