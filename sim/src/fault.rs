//! Faults: what `inject` can do to a node, and undoing it.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use nvidia_ml_sim::model::{
    ClockEvent, Gpu, GpuFile, GpuModel, Hang, ModelError, RecoveryAction, ReturnCode,
};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::files;
use crate::kmsg::{self, Record};
use crate::state::NodeLayout;
use crate::sysfs::SysfsTree;
pub use gpu::{FabricHealth, GpuFault};
pub use node::NodeFault;

mod gpu;
mod node;

/// Name, argument and meaning of every fault, as `inject --list` shows them.
pub fn all() -> impl Iterator<Item = &'static (&'static str, &'static str, &'static str)> {
    FAULTS.iter().chain(&gpu::FAULTS).chain(&node::FAULTS)
}

/// Those of the links, the kernel log and the state that every pass decides by.
const FAULTS: [(&str, &str, &str); 20] = [
    ("xid79", "", "the GPU falls off the bus: NVML, PCI configuration space and the kernel line together"),
    ("xid", ":CODE", "the kernel line of an Xid alone, such as xid:13, xid:31, xid:154 (1 to 999)"),
    ("gpu-lost", "", "NVML says GPU_IS_LOST and configuration space reads all ones; no kernel line"),
    ("gpu-missing", "", "the GPU is not enumerated by NVML, nor on the PCI bus"),
    (
        "recovery-action",
        "[:reset|reboot|drain_p2p|drain_reset]",
        "the driver asks for a recovery action (reboot)",
    ),
    ("ecc-sram", "", "an uncorrectable SRAM error since the driver was loaded"),
    ("ecc-dram", "", "an uncorrectable DRAM error since the driver was loaded"),
    ("remap-pending", "", "a row remapping waits for a reset"),
    ("remap-failure", "", "a row remapping failed"),
    ("nvlink-down", "[:LINK]", "an NVLink is down (link 0)"),
    ("pcie-width", "[:LANES]", "the PCIe link trained at fewer lanes (8)"),
    ("hot", "", "the GPU is above its highest operating temperature and slowed by hardware"),
    ("nvml-hang", "[:SECONDS]", "every NVML call hangs that long (for ever)"),
    ("nvml-missing", ":FUNCTION", "NVML answers FUNCTION_NOT_FOUND for this function"),
    ("ib-down", "[:PORT]", "an InfiniBand port has no cable (port number as --gpu)"),
    ("ib-init", "[:PORT]", "an InfiniBand port has no subnet manager (port number as --gpu)"),
    ("ib-slow", "[:PORT]", "an InfiniBand port came up at half its rate (port number as --gpu)"),
    ("nic-dead", "[:PORT]", "an InfiniBand card does not answer on the PCI bus (port number as --gpu)"),
    (
        "kmsg-line",
        ":TEXT",
        "a kernel line; {pci} in it becomes the GPU's address, without it only this node sees it",
    ),
    ("kmsg-kernel", ":TEXT", "a kernel line as it stands into the log that all nodes share"),
];

/// Something that goes wrong on a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// The GPU falls off the bus, with the driver's line.
    Xid79,
    /// An Xid line without anything behind it.
    Xid(u32),
    /// The GPU falls off the bus silently.
    GpuLost,
    /// The GPU is not enumerated.
    GpuMissing,
    /// The driver asks for a recovery action.
    Recovery(RecoveryAction),
    /// Uncorrectable SRAM error.
    EccSram,
    /// Uncorrectable DRAM error.
    EccDram,
    /// Row remapping pending.
    RemapPending,
    /// Row remapping failed.
    RemapFailure,
    /// NVLink down.
    NvlinkDown(u32),
    /// PCIe link at fewer lanes.
    PcieWidth(u32),
    /// Too hot.
    Hot,
    /// Every NVML call hangs, for a number of seconds or for ever.
    NvmlHang(Option<u32>),
    /// An NVML function is missing.
    NvmlMissing(String),
    /// InfiniBand port down; the GPU's number when no port is given.
    IbDown(Option<u32>),
    /// InfiniBand port without a subnet manager.
    IbInit(Option<u32>),
    /// InfiniBand port at half its rate.
    IbSlow(Option<u32>),
    /// InfiniBand card dead on the PCI bus.
    NicDead(Option<u32>),
    /// A kernel line; to the real log when it names the GPU, to the node's record file otherwise.
    KmsgLine(String),
    /// A kernel line as it stands, to the real log.
    KmsgKernel(String),
    /// What NVML tells of a GPU or its driver.
    Gpu(GpuFault),
    /// A fault of the fabric's counters, the host or its disks.
    Node(NodeFault),
}

impl FromStr for Fault {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let (name, argument) = match text.split_once(':') {
            Some((name, argument)) => (name, Some(argument)),
            None => (text, None),
        };
        let number = |low: u32, high: u32| -> Result<Option<u32>> {
            argument
                .map(|a| {
                    a.parse().ok().filter(|n| (low..=high).contains(n)).ok_or_else(|| {
                        Error::Usage(format!(
                            "\"{a}\" in the fault \"{text}\" is not a number from {low} to {high}"
                        ))
                    })
                })
                .transpose()
        };
        let none = |fault: Self| match argument {
            None => Ok(fault),
            Some(_) => {
                Err(Error::Usage(format!("the fault \"{name}\" takes no argument: write it without \":\"")))
            }
        };
        let needed = |what: &str| {
            argument.filter(|a| !a.is_empty()).map(str::to_owned).ok_or_else(|| {
                Error::Usage(format!("the fault \"{name}\" needs an argument: write {name}:{what}"))
            })
        };
        let line = || -> Result<String> {
            let text = needed("TEXT")?;
            if text.len() > kmsg::LINE_MAX || text.contains(['\n', '\0']) {
                return Err(Error::Usage(format!(
                    "the text of \"{name}\" must be one line of at most {} bytes",
                    kmsg::LINE_MAX
                )));
            }
            Ok(text)
        };
        match name {
            "xid79" => none(Self::Xid79),
            "xid" => {
                needed("CODE")?;
                Ok(Self::Xid(number(1, 999)?.unwrap_or_default()))
            }
            "gpu-lost" => none(Self::GpuLost),
            "gpu-missing" => none(Self::GpuMissing),
            "recovery-action" => match argument {
                None | Some("reboot") => Ok(Self::Recovery(RecoveryAction::NodeReboot)),
                Some("reset") => Ok(Self::Recovery(RecoveryAction::GpuReset)),
                Some("drain_p2p") => Ok(Self::Recovery(RecoveryAction::DrainP2p)),
                Some("drain_reset") => Ok(Self::Recovery(RecoveryAction::DrainAndReset)),
                Some(other) => Err(Error::Usage(format!(
                    "\"{other}\" is not a recovery action; known are reset, reboot, drain_p2p and drain_reset"
                ))),
            },
            "ecc-sram" => none(Self::EccSram),
            "ecc-dram" => none(Self::EccDram),
            "remap-pending" => none(Self::RemapPending),
            "remap-failure" => none(Self::RemapFailure),
            "nvlink-down" => Ok(Self::NvlinkDown(number(0, 17)?.unwrap_or(0))),
            "pcie-width" => Ok(Self::PcieWidth(number(1, 15)?.unwrap_or(8))),
            "hot" => none(Self::Hot),
            "nvml-hang" => Ok(Self::NvmlHang(number(1, 86_400)?)),
            "nvml-missing" => Ok(Self::NvmlMissing(needed("FUNCTION")?)),
            "ib-down" => Ok(Self::IbDown(number(0, 63)?)),
            "ib-init" => Ok(Self::IbInit(number(0, 63)?)),
            "ib-slow" => Ok(Self::IbSlow(number(0, 63)?)),
            "nic-dead" => Ok(Self::NicDead(number(0, 63)?)),
            "kmsg-line" => Ok(Self::KmsgLine(line()?)),
            "kmsg-kernel" => Ok(Self::KmsgKernel(line()?)),
            _ => {
                if let Some(fault) = GpuFault::parse(name, argument) {
                    return fault.map(Self::Gpu);
                }
                if let Some(fault) = NodeFault::parse(name, argument) {
                    return fault.map(Self::Node);
                }
                let nearest = all()
                    .map(|f| f.0)
                    .max_by(|a, b| strsim::jaro_winkler(a, name).total_cmp(&strsim::jaro_winkler(b, name)))
                    .unwrap_or_default();
                Err(Error::Usage(format!(
                    "unknown fault \"{name}\"; the nearest is \"{nearest}\" (all: clustermax-sim inject --list)"
                )))
            }
        }
    }
}

/// A fault that was injected, kept in the node's folder until `clear`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Injected {
    /// The fault as it was written on the command line.
    pub fault: String,
    /// GPU index.
    pub gpu: u32,
    /// Time, UTC, RFC 3339.
    pub time: String,
    /// The kernel line that was written, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<Line>,
}

/// A kernel line that was written and read back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    /// `/dev/kmsg`, or the node's record file.
    pub log: String,
    /// Its sequence number there.
    pub sequence: u64,
    /// Its text.
    pub text: String,
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} record {}: {}", self.log, self.sequence, self.text)
    }
}

/// A node that faults are applied to.
#[derive(Debug)]
pub struct Target<'a> {
    /// Its folder.
    pub node: &'a NodeLayout,
    /// Its GPU model.
    pub model: GpuModel,
    /// Its PCI domain.
    pub domain: u32,
    /// Number of its InfiniBand ports.
    pub ib_ports: u32,
    /// GPU that the fault is about.
    pub gpu: u32,
}

impl Target<'_> {
    /// Applies a fault: the state of the devices first, then the kernel line, in the order a program that reacts to
    /// the line relies on.
    ///
    /// # Errors
    /// When the GPU, link or port does not exist, or a file or the kernel log cannot be written.
    pub fn apply(
        &self,
        fault: &Fault,
        write_kernel: impl Fn(&str) -> Result<Record>,
    ) -> Result<Option<Line>> {
        let mut gpus = load(&self.node.gpus())?;
        let tree = SysfsTree::at(&self.node.sys());
        let count = gpus.gpus.len();
        let index = self.gpu as usize;
        let mut no_gpu = Gpu::default();
        let needs_gpu = !matches!(fault, Fault::Gpu(f) if f.is_nodes())
            && !matches!(fault, Fault::Node(f) if f.is_nodes())
            && !matches!(
                fault,
                Fault::NvmlHang(_)
                    | Fault::NvmlMissing(_)
                    | Fault::IbDown(_)
                    | Fault::IbInit(_)
                    | Fault::IbSlow(_)
                    | Fault::NicDead(_)
                    | Fault::KmsgKernel(_)
            );
        let gpu = match gpus.gpus.get_mut(index) {
            Some(gpu) => gpu,
            None if needs_gpu => {
                return Err(Error::Usage(format!(
                    "there is no GPU {index}; this node has {count}, numbered from 0"
                )));
            }
            None => &mut no_gpu,
        };
        let address = gpu.pci_address;
        // The driver's own form: domain, bus and device, without the function.
        let pci = format!("{:04x}:{:02x}:{:02x}", address.domain, address.bus, address.device);
        let mut kernel_line = None;
        match fault {
            Fault::Xid79 | Fault::GpuLost => {
                gpu.lost = true;
                tree.pci_dead(address)?;
                if *fault == Fault::Xid79 {
                    kernel_line = Some(format!("NVRM: Xid (PCI:{pci}): 79, {}", xid_text(79)));
                }
            }
            Fault::Xid(code) => {
                kernel_line = Some(format!("NVRM: Xid (PCI:{pci}): {code}, {}", xid_text(*code)));
            }
            Fault::GpuMissing => {
                gpu.missing = true;
                tree.pci_remove(address)?;
            }
            Fault::Recovery(action) => gpu.recovery_action = *action,
            Fault::EccSram => {
                for counts in [&mut gpu.ecc.since_load, &mut gpu.ecc.aggregate] {
                    counts.sram_secded += 1;
                    counts.sram_sm += 1;
                }
            }
            Fault::EccDram => {
                gpu.ecc.since_load.dram_uncorrected += 1;
                gpu.ecc.aggregate.dram_uncorrected += 1;
            }
            Fault::RemapPending | Fault::RemapFailure => {
                let rows = gpu.remapped_rows.as_mut().ok_or_else(|| {
                    Error::Usage(format!("GPU {index} remaps no rows; choose a model from the A100 on"))
                })?;
                let failed = *fault == Fault::RemapFailure;
                rows.uncorrectable += 1;
                rows.histogram.max = rows.histogram.max.saturating_sub(1);
                if failed {
                    rows.failure = true;
                    rows.histogram.none += 1;
                } else {
                    rows.pending = true;
                    rows.histogram.high += 1;
                }
            }
            Fault::NvlinkDown(link) => {
                let nvlink = gpu
                    .nvlink
                    .as_mut()
                    .filter(|n| *link < n.links)
                    .ok_or_else(|| Error::Usage(format!("GPU {index} has no NVLink {link}")))?;
                nvlink.down.insert(*link);
            }
            Fault::PcieWidth(lanes) => {
                gpu.pcie.width = *lanes;
                tree.pci_width(address, *lanes)?;
            }
            Fault::Hot => {
                gpu.temperature.gpu = gpu.temperature.gpu_max + 2;
                gpu.clock_events.remove(&ClockEvent::GpuIdle);
                gpu.clock_events.extend([ClockEvent::HwSlowdown, ClockEvent::HwThermalSlowdown]);
            }
            Fault::NvmlHang(seconds) => {
                gpus.hang = Some(Hang {
                    function: "*".to_owned(),
                    gpu: None,
                    seconds: seconds.map(f64::from),
                    forever: seconds.is_none(),
                });
            }
            Fault::NvmlMissing(function) => gpus.missing.functions.push(function.clone()),
            Fault::IbDown(port) => tree.ib_down(self.port(*port)?)?,
            Fault::IbInit(port) => tree.ib_init(self.port(*port)?)?,
            Fault::IbSlow(port) => tree.ib_slow(self.model, self.port(*port)?)?,
            Fault::NicDead(port) => {
                tree.pci_dead(crate::sysfs::nic_address(self.domain, self.port(*port)?))?;
            }
            Fault::KmsgLine(text) if text.contains("{pci}") => {
                kernel_line = Some(text.replace("{pci}", &pci));
            }
            Fault::KmsgLine(text) => {
                let record = kmsg::append_record(&self.node.kmsg(), text)?;
                return Ok(Some(line(&self.node.kmsg().display().to_string(), record)));
            }
            Fault::KmsgKernel(text) => kernel_line = Some(text.clone()),
            Fault::Node(fault) => {
                let (shared, written) = fault.apply(self, &tree, address)?;
                if written.is_some() {
                    return Ok(written);
                }
                kernel_line = shared;
            }
            Fault::Gpu(fault) => {
                fault.apply(&mut gpus, index)?;
                match fault {
                    // The library was upgraded under the module that is loaded.
                    GpuFault::Driver(ReturnCode::LibRmVersionMismatch) => {
                        tree.module_version(Some("565.57.01"))?;
                    }
                    GpuFault::Driver(_) => tree.module_version(None)?,
                    GpuFault::MemUnrepairable => tree.module_version(Some(&gpus.driver_version))?,
                    _ => {}
                }
            }
        }
        save(&gpus, &self.node.gpus())?;
        kernel_line.map(|text| Ok(line(kmsg::KMSG, write_kernel(&text)?))).transpose()
    }

    fn port(&self, port: Option<u32>) -> Result<usize> {
        let port = port.unwrap_or(self.gpu);
        if port < self.ib_ports {
            Ok(port as usize)
        } else {
            let count = self.ib_ports;
            Err(Error::Usage(format!(
                "there is no InfiniBand port {port}; this node has {count}, numbered from 0"
            )))
        }
    }

    /// Makes the node healthy again. The kernel log keeps its lines, as a real one does.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn clear(&self) -> Result<()> {
        let healthy = load(&self.node.gpus_healthy())?;
        SysfsTree::at(&self.node.sys()).write_healthy(self.model, &healthy, self.ib_ports as usize)?;
        save(&healthy, &self.node.gpus())?;
        // The page is the fault, and so is what was read of it.
        let _ = std::fs::remove_file(self.node.health_page());
        let _ = std::fs::remove_file(self.node.run().join("smart.json"));
        save_injected(self.node, &[])
    }
}

fn line(log: &str, record: Record) -> Line {
    Line { log: log.to_owned(), sequence: record.sequence, text: record.text }
}

/// Faults injected into a node since the last `clear`.
///
/// # Errors
/// When the record cannot be read.
pub fn injected(node: &NodeLayout) -> Result<Vec<Injected>> {
    let path = node.faults();
    serde_json::from_str(&files::read(&path)?).map_err(|e| Error::Malformed {
        path,
        what: "a list of injected faults",
        detail: e.to_string(),
    })
}

/// Replaces that list.
pub(crate) fn save_injected(node: &NodeLayout, faults: &[Injected]) -> Result<()> {
    let text = serde_json::to_string_pretty(faults).map_err(|e| Error::System(e.to_string()))?;
    files::write_atomic(&node.faults(), text.as_bytes(), 0o644)
}

fn load(path: &Path) -> Result<GpuFile> {
    GpuFile::load(path).map_err(|e| model_error(path, &e))
}

/// Writes a GPU file.
pub(crate) fn save(gpus: &GpuFile, path: &Path) -> Result<()> {
    gpus.save_atomic(path).map_err(|e| model_error(path, &e))
}

fn model_error(path: &Path, error: &ModelError) -> Error {
    Error::Malformed { path: path.to_owned(), what: "a GPU file", detail: error.to_string() }
}

/// What the driver prints after the code of an Xid. Wordings as seen in the field; unlisted codes get their number
/// alone, which is all that a reader may rely on.
fn xid_text(code: u32) -> String {
    let program = |text: &str| format!("pid=4242, name=python3, {text}");
    let hardware = |text: &str| format!("pid='<unknown>', name=<unknown>, {text}");
    match code {
        13 => program("Graphics Exception: ChID 000a, Class 0000cbc0, Offset 00000000, Data 00000000"),
        31 => program(
            "Ch 0000000e, intr 00000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_0 faulted @ 0x7fc1_23456000. \
             Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ",
        ),
        32 => program("Channel ID 0000000d intr0 00040000"),
        43 => program("channel 0x0b00000a"),
        45 => program("Ch 0000000a"),
        46 => hardware("GPU stopped processing"),
        48 => hardware(
            "An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer at partition 2, \
             subpartition 1.",
        ),
        62 => hardware("20b4(3a78) 00000000 00000000"),
        63 => hardware(
            "Row Remapper: New row (0x0000000000001234) marked for remapping, reset gpu to activate.",
        ),
        64 => hardware("Row Remapper: Failed to persist row remap table"),
        68 => program("Ch 00000004, errorCode 0x00000000"),
        69 => program(
            "Class Error: ChId 0008, Class 0000cbc0, Offset 00000184, Data ffffffff, ErrorCode 00000004",
        ),
        74 => hardware("NVLink: fatal error detected on link 14(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)"),
        79 => hardware("GPU has fallen off the bus."),
        92 => hardware("High single-bit ECC error rate"),
        94 => program("Ch 00000008, Contained: CE User Channel (0x9). RST: No, D-RST: No"),
        95 => hardware("Uncontained: LTC TAG (0x2,0x1). RST: Yes, D-RST: No"),
        109 => program("Ch 00000008, errorString CTX SWITCH TIMEOUT, Info 0x5c003"),
        119 => hardware(
            "Timeout after 6s of waiting for RPC response from GPU0 GSP! Expected function 76 (GSP_RM_CONTROL) (0x2080a0e7 0x7c).",
        ),
        120 => hardware(
            "GSP Error: Task 1 raised error code 0x5 for reason 0x0 at 0x63f01ac (0 more errors skipped)",
        ),
        121 => hardware("C2C correctable error detected on link 0"),
        136 => hardware("ALI training failed on link 7"),
        137 => program("NVLink: remote MMU fault"),
        140 => hardware(
            "An uncorrectable ECC error detected (possible firmware handling failure) DRAM:1, LTC:0, MMU:0, PCIE:0",
        ),
        154 => hardware("GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)"),
        _ => hardware("simulated"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    struct Node {
        _folder: tempfile::TempDir,
        layout: NodeLayout,
    }

    fn node() -> Node {
        let folder = tempfile::tempdir().unwrap();
        let layout = NodeLayout { dir: folder.path().to_owned() };
        let gpus = GpuFile::new(GpuModel::H100Sxm, 8, 0x3a1c, 0);
        save(&gpus, &layout.gpus()).unwrap();
        save(&gpus, &layout.gpus_healthy()).unwrap();
        SysfsTree::at(&layout.sys()).write_healthy(GpuModel::H100Sxm, &gpus, 8).unwrap();
        std::fs::write(layout.kmsg(), "").unwrap();
        save_injected(&layout, &[]).unwrap();
        Node { _folder: folder, layout }
    }

    fn target(node: &Node, gpu: u32) -> Target<'_> {
        Target { node: &node.layout, model: GpuModel::H100Sxm, domain: 0x3a1c, ib_ports: 8, gpu }
    }

    fn no_kernel(line: &str) -> Result<Record> {
        panic!("the kernel log must not be written for this fault: {line}")
    }

    fn gpu(node: &Node, index: usize) -> Gpu {
        load(&node.layout.gpus()).unwrap().gpus.swap_remove(index)
    }

    #[test]
    fn every_listed_fault_parses() {
        for (name, argument, _) in all() {
            let text = match *argument {
                ":PID" => format!("{name}:42"),
                ":CODE" => format!("{name}:13"),
                ":TEXT" | ":FUNCTION" => format!("{name}:something"),
                _ => (*name).to_owned(),
            };
            assert!(text.parse::<Fault>().is_ok(), "{text}");
        }
        assert_eq!("nvml-hang:30".parse::<Fault>().unwrap(), Fault::NvmlHang(Some(30)));
        assert_eq!("kmsg-line:a: b".parse::<Fault>().unwrap(), Fault::KmsgLine("a: b".to_owned()));
    }

    #[test]
    fn wrong_faults_are_refused_in_one_sentence() {
        for (text, part) in [
            ("xid78", "nearest is \"xid79\""),
            ("gpu_lost", "nearest is \"gpu-lost\""),
            ("ib-don", "nearest is \"ib-down\""),
            ("xid", "write xid:CODE"),
            ("xid:0", "1 to 999"),
            ("xid79:1", "takes no argument"),
            ("nvlink-down:18", "0 to 17"),
            ("recovery-action:pray", "known are reset, reboot"),
            ("kmsg-line", "write kmsg-line:TEXT"),
            ("kmsg-line:a\nb", "one line"),
        ] {
            let error = text.parse::<Fault>().unwrap_err();
            assert_eq!(error.exit_code(), 2);
            assert!(error.to_string().contains(part), "{text}: {error}");
            assert!(!error.to_string().contains('\n'));
        }
    }

    #[test]
    fn xid79_changes_the_state_before_it_writes_the_line() {
        let node = node();
        let lines = RefCell::new(Vec::new());
        let line = target(&node, 3)
            .apply(&Fault::Xid79, |line| {
                assert!(gpu(&node, 3).lost, "a reader woken by the line must find the GPU lost");
                lines.borrow_mut().push(line.to_owned());
                Ok(Record { priority: 11, sequence: 7, microseconds: 1, text: line.to_owned() })
            })
            .unwrap()
            .unwrap();
        let text =
            "NVRM: Xid (PCI:3a1c:5d:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.";
        assert_eq!(*lines.borrow(), [text]);
        assert_eq!(line, Line { log: "/dev/kmsg".into(), sequence: 7, text: text.into() });
        let config = node.layout.sys().join("bus/pci/devices/3a1c:5d:00.0/config");
        assert!(std::fs::read(&config).unwrap().iter().all(|b| *b == 0xff));
        target(&node, 0).clear().unwrap();
        assert!(!gpu(&node, 3).lost);
        assert_eq!(std::fs::read(&config).unwrap()[0], 0xde);
    }

    #[test]
    fn faults_of_state_show_in_the_files_and_clear() {
        let node = node();
        let apply = |fault: &str, index: u32| {
            target(&node, index).apply(&fault.parse().unwrap(), no_kernel).unwrap();
        };
        apply("remap-failure", 0);
        apply("remap-pending", 1);
        apply("ecc-sram", 1);
        apply("ecc-dram", 2);
        apply("recovery-action:drain_reset", 2);
        apply("nvlink-down:4", 3);
        apply("pcie-width", 4);
        apply("hot", 5);
        apply("gpu-missing", 6);
        apply("gpu-lost", 7);
        apply("nvml-hang:9", 0);
        apply("ib-down", 2);
        apply("ib-slow:5", 0);
        apply("nic-dead", 1);
        let file = load(&node.layout.gpus()).unwrap();
        assert!(file.gpus[0].remapped_rows.as_ref().unwrap().failure);
        assert!(file.gpus[1].remapped_rows.as_ref().unwrap().pending);
        assert_eq!(file.gpus[1].ecc.since_load.sram_uncorrected(), 1);
        assert_eq!(file.gpus[2].ecc.since_load.dram_uncorrected, 1);
        assert_eq!(file.gpus[2].recovery_action, RecoveryAction::DrainAndReset);
        assert!(file.gpus[3].nvlink.as_ref().unwrap().down.contains(&4));
        assert_eq!(file.gpus[4].pcie.width, 8);
        assert!(file.gpus[5].temperature.gpu > file.gpus[5].temperature.gpu_max);
        assert!(file.gpus[6].missing && file.gpus[7].lost);
        assert_eq!(file.hang.as_ref().unwrap().seconds, Some(9.0));
        let sys = |p: &str| std::fs::read_to_string(node.layout.sys().join(p)).unwrap();
        assert_eq!(sys("class/infiniband/mlx5_2/ports/1/state"), "1: DOWN\n");
        assert_eq!(sys("class/infiniband/mlx5_5/ports/1/rate"), "200 Gb/sec (4X HDR)\n");
        assert_eq!(sys("bus/pci/devices/3a1c:2b:00.0/current_link_width"), "63\n");
        target(&node, 0).clear().unwrap();
        assert_eq!(load(&node.layout.gpus()).unwrap(), load(&node.layout.gpus_healthy()).unwrap());
        assert_eq!(sys("class/infiniband/mlx5_2/ports/1/state"), "4: ACTIVE\n");
    }

    #[test]
    fn faults_of_fabric_host_and_disks_show_and_clear() {
        let node = node();
        let apply = |fault: &str| {
            target(&node, 2).apply(&fault.parse().unwrap(), no_kernel).unwrap();
        };
        for fault in
            ["ib-flap:3", "ib-flap:3", "ib-symbol:9", "aer:nonfatal", "edac", "nvme-dead", "net-down"]
        {
            match fault {
                "ib-symbol:9" => assert!(target(&node, 2).apply(&fault.parse().unwrap(), no_kernel).is_err()),
                _ => apply(fault),
            }
        }
        let sys = |p: &str| std::fs::read_to_string(node.layout.sys().join(p)).unwrap();
        assert_eq!(sys("class/infiniband/mlx5_3/ports/1/counters/link_downed"), "6\n");
        assert_eq!(sys("class/net/ib3/carrier_down_count"), "7\n");
        assert!(sys("bus/pci/devices/3a1c:3a:00.0/aer_dev_nonfatal").ends_with("TOTAL_ERR_NONFATAL 3\n"));
        assert_eq!(sys("devices/system/edac/mc/mc0/ue_count"), "1\n");
        assert_eq!(sys("class/nvme/nvme1/state"), "dead\n");
        assert_eq!(sys("class/net/eth0/operstate"), "down\n");
        // Two lines, in this node's own log.
        let line = target(&node, 2).apply(&"lockup".parse().unwrap(), no_kernel).unwrap().unwrap();
        assert_eq!(line.sequence, 1);
        for wrong in ["ib-flap:x", "aer:mild", "edac:2", "mce:1"] {
            assert_eq!(wrong.parse::<Fault>().unwrap_err().exit_code(), 2, "{wrong}");
        }
        target(&node, 0).clear().unwrap();
        assert_eq!(sys("class/infiniband/mlx5_3/ports/1/counters/link_downed"), "0\n");
        assert_eq!(sys("class/nvme/nvme1/state"), "live\n");
        assert_eq!(sys("class/net/eth0/operstate"), "up\n");
    }

    #[test]
    fn lines_without_an_address_stay_on_the_node() {
        let node = node();
        let line = target(&node, 0)
            .apply(&Fault::KmsgLine("nfs: server nas not responding, still trying".into()), no_kernel)
            .unwrap()
            .unwrap();
        assert_eq!(line.sequence, 0);
        let text = std::fs::read_to_string(node.layout.kmsg()).unwrap();
        assert!(
            text.starts_with("3,0,") && text.ends_with(",-;nfs: server nas not responding, still trying\n")
        );

        let written = target(&node, 1)
            .apply(&Fault::KmsgLine("nvidia-nvswitch0: SXid (PCI:{pci}.0): 20034".into()), |l| {
                Ok(Record { priority: 11, sequence: 1, microseconds: 1, text: l.to_owned() })
            });
        assert_eq!(written.unwrap().unwrap().text, "nvidia-nvswitch0: SXid (PCI:3a1c:2a:00.0): 20034");
    }

    #[test]
    fn absent_devices_are_named() {
        let node = node();
        let error = |fault: &str, index| {
            target(&node, index).apply(&fault.parse().unwrap(), no_kernel).unwrap_err().to_string()
        };
        assert!(error("xid79", 8).contains("no GPU 8; this node has 8"));
        assert!(error("ib-down:9", 0).contains("no InfiniBand port 9"));
        let before = load(&node.layout.gpus()).unwrap();
        assert_eq!(before, load(&node.layout.gpus_healthy()).unwrap(), "a refused fault changes nothing");
    }
}
