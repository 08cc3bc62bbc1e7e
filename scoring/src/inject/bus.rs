//! PCIe secondary-bus reset of a GPU's bridge: what must hold before, the exact writes, and that they are taken back.
//!
//! The reset is bit 6 of the bridge's Bridge Control register, bytes 0x3e and 0x3f of its configuration space (PCI-to-PCI
//! Bridge Architecture Specification, 3.2.5.17), written through sysfs as `setpci BRIDGE_CONTROL` does. Not the kernel's
//! `reset_subordinate`: that one saves and restores the device, which is not the fault that reviewers inject.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::Check;
use super::guard::Guard;
use crate::Failure;

/// Offset of Bridge Control.
const CONTROL: u64 = 0x3e;
/// Its secondary bus reset.
const RESET: u16 = 0x40;
/// Offset of the header type; 1 is a bridge.
const HEADER: u64 = 0x0e;

/// A bridge whose secondary bus can be reset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bridge {
    /// Its `config` in sysfs.
    pub config: PathBuf,
    /// Bridge Control as it was found, without the reset.
    pub control: u16,
}

impl Bridge {
    /// Reads the register; a sentence when it is no bridge or cannot be read.
    ///
    /// # Errors
    /// Why it cannot be used.
    pub fn open(folder: &Path) -> Result<Self, String> {
        let config = folder.join("config");
        let unreadable = |error: std::io::Error| format!("{} cannot be read: {error}", config.display());
        let file = File::open(&config).map_err(unreadable)?;
        let (mut header, mut control) = ([0_u8; 1], [0_u8; 2]);
        file.read_exact_at(&mut header, HEADER).map_err(unreadable)?;
        file.read_exact_at(&mut control, CONTROL).map_err(unreadable)?;
        let control = u16::from_le_bytes(control);
        if header[0] & 0x7f != 1 {
            return Err(format!(
                "{} is not of a bridge: its header type is {}",
                config.display(),
                header[0] & 0x7f
            ));
        }
        if control == 0xffff {
            return Err(format!("{} reads all ones: the bridge itself does not answer", config.display()));
        }
        Ok(Self { config, control: control & !RESET })
    }

    fn write(&self, control: u16) -> Result<(), Failure> {
        let refused = |error: std::io::Error| {
            Failure::missing(format!(
                "0x{control:04x} could not be written to {} at 0x{CONTROL:x}: {error}; as root: setpci -s {} BRIDGE_CONTROL={:04x}:0040",
                self.config.display(),
                name(self.config.parent().unwrap_or(Path::new(""))),
                control & RESET
            ))
        };
        let file = File::options().write(true).open(&self.config).map_err(refused)?;
        file.write_all_at(&control.to_le_bytes(), CONTROL).map_err(refused)
    }

    /// Begins the reset.
    ///
    /// # Errors
    /// When the register cannot be written.
    pub fn hold(&self) -> Result<(), Failure> {
        self.write(self.control | RESET)
    }

    /// Ends it: the register is as it was found.
    ///
    /// # Errors
    /// When the register cannot be written.
    pub fn release(&self) -> Result<(), Failure> {
        self.write(self.control)
    }
}

/// Preconditions and writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// All must hold.
    pub checks: Vec<Check>,
    /// In order; empty when there is no bridge.
    pub writes: Vec<String>,
    /// The bridge, when it can be used.
    pub bridge: Option<Bridge>,
    /// The GPU's own folder in sysfs.
    pub device: PathBuf,
    /// Its link when the plan was made.
    pub before: String,
    procfs: PathBuf,
}

impl Plan {
    /// Resets the bus for `hold`, with a process beside that ends the reset when this one dies. Then waits for the
    /// device; what its link looks like, before and after.
    ///
    /// # Errors
    /// When the register cannot be written, or the plan has no bridge.
    pub fn perform(&self, node: &str, hold: Duration) -> Result<String, Failure> {
        let bridge = self.bridge.as_ref().ok_or_else(|| Failure::missing("there is no bridge to reset"))?;
        let guard = Guard::of_bridge(node, bridge, hold + Duration::from_secs(5))?;
        bridge.hold()?;
        std::thread::sleep(hold);
        bridge.release()?;
        guard.done();
        Ok(format!("reset for {} ms; link before: {}", hold.as_millis(), self.before))
    }

    /// What no longer holds, for a plan that is some minutes old.
    #[must_use]
    pub fn now_refused(&self) -> Option<String> {
        let users = users(&self.procfs);
        if !users.is_empty() {
            return Some(format!("processes {} hold GPU device files now", users.join(", ")));
        }
        let bridge = self.bridge.as_ref()?;
        let found = Bridge::open(bridge.config.parent()?);
        (found.as_ref() != Ok(bridge)).then(|| format!("{} changed", bridge.config.display()))
    }

    /// What came of the device: it answers with its link, which may be less than before, or it does not.
    #[must_use]
    pub fn after(&self, limit: Duration) -> String {
        let until = Instant::now() + limit;
        loop {
            let mut vendor = [0_u8; 2];
            let read =
                File::open(self.device.join("config")).and_then(|file| file.read_exact_at(&mut vendor, 0));
            if read.is_ok() && vendor != [0xff, 0xff] {
                let (before, now) = (&self.before, link(&self.device));
                let changed = if *before == now {
                    format!("link {now} as before")
                } else {
                    format!("its link is {now}, it was {before}: a finding")
                };
                return format!(
                    "the device answers again, {changed}; its driver may need a reboot all the same"
                );
            }
            if Instant::now() >= until {
                return "the device does not answer any more: reboot the node".to_owned();
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Configuration space of the GPU and the bridge as they are, in hexadecimal: evidence, and what a repair needs.
    #[must_use]
    pub fn config_space(&self) -> String {
        let hex = |path: &Path| {
            std::fs::read(path)
                .map(|bytes| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
                .unwrap_or_default()
        };
        let bridge = self.bridge.as_ref().map(|bridge| hex(&bridge.config)).unwrap_or_default();
        format!("gpu {}\nbridge {bridge}\n", hex(&self.device.join("config")))
    }
}

/// Speed and width of a device's link; a width of 0 and an empty speed are those of a device that is gone.
fn link(device: &Path) -> String {
    let read = |file: &str| text(&device.join(file));
    let (speed, width) = (read("current_link_speed"), read("current_link_width"));
    if speed.is_empty() { "unknown".to_owned() } else { format!("{speed} x{width}") }
}

/// `dddd:bb:dd.f`
fn is_address(name: &str) -> bool {
    let bytes = name.as_bytes();
    name.len() == 12
        && bytes[4] == b':'
        && bytes[7] == b':'
        && bytes[10] == b'.'
        && name.split([':', '.']).all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_hexdigit()))
}

fn text(path: &Path) -> String {
    std::fs::read_to_string(path).map(|text| text.trim().to_owned()).unwrap_or_default()
}

fn entries(path: &Path) -> Vec<PathBuf> {
    let Ok(read) = std::fs::read_dir(path) else { return Vec::new() };
    let mut all: Vec<PathBuf> = read.flatten().map(|entry| entry.path()).collect();
    all.sort();
    all
}

fn name(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// Addresses of GPUs (class 0x0302, 0x0300, 0x0380 or 0x1200 of NVIDIA and AMD), in bus order.
#[must_use]
pub fn gpus(sysfs: &Path) -> Vec<String> {
    entries(&sysfs.join("bus/pci/devices"))
        .iter()
        .filter(|device| {
            let class = text(&device.join("class"));
            let vendor = text(&device.join("vendor"));
            ["0x0302", "0x0300", "0x0380", "0x1200"].iter().any(|wanted| class.starts_with(wanted))
                && matches!(vendor.as_str(), "0x10de" | "0x1002")
        })
        .map(|device| name(device))
        .collect()
}

/// PCI devices below a folder of /sys/devices, however deep.
fn below(folder: &Path, found: &mut Vec<String>) {
    for entry in entries(folder)
        .iter()
        .filter(|entry| is_address(&name(entry)) && entry.is_dir() && !entry.is_symlink())
    {
        found.push(name(entry));
        below(entry, found);
    }
}

/// Looks at the tree around `gpu`.
#[must_use]
pub fn plan(sysfs: &Path, procfs: &Path, gpu: &str, hold: Duration) -> Plan {
    let device = sysfs.join("bus/pci/devices").join(gpu);
    let mut checks = Vec::new();
    let lockdown = text(&sysfs.join("kernel/security/lockdown"));
    let locked = lockdown.contains("[integrity]") || lockdown.contains("[confidentiality]");
    checks.push(Check::new(
        !locked,
        "the kernel is not locked down",
        format!("the kernel is locked down ({lockdown}): PCI registers cannot be written"),
    ));
    let driver = device.join("driver").canonicalize().map(|path| name(&path)).unwrap_or_default();
    checks.push(Check::new(
        matches!(driver.as_str(), "nvidia" | "amdgpu"),
        format!("driver of {gpu} is {driver}"),
        format!("driver of {gpu} is {driver:?}, not nvidia or amdgpu: give a GPU that the node uses"),
    ));
    checks.push(Check::new(
        text(&device.join("boot_vga")) != "1",
        format!("{gpu} is not the console's"),
        format!("{gpu} is the boot console's device: choose another GPU"),
    ));
    let real = device.canonicalize().unwrap_or(device);
    let parent = real.parent().filter(|parent| is_address(&name(parent)));
    let mut writes = Vec::new();
    let mut found = None;
    match parent {
        Some(folder) if text(&folder.join("class")).starts_with("0x0604") => {
            let mut others = Vec::new();
            below(folder, &mut others);
            others.retain(|other| other != gpu);
            let bridge = name(folder);
            checks.push(Check::new(
                others.is_empty(),
                format!("{gpu} is alone below bridge {bridge}"),
                format!("bridge {bridge} also carries {}: they would be reset too", others.join(", ")),
            ));
            match Bridge::open(folder) {
                Ok(open) => {
                    let at = open.config.display();
                    writes.push(format!("0x{:04x} to {at} at 0x{CONTROL:x}", open.control | RESET));
                    writes.push(format!("waits {} ms", hold.as_millis()));
                    writes.push(format!("0x{:04x} to {at} at 0x{CONTROL:x}", open.control));
                    checks.push(Check::new(
                        true,
                        format!("bridge {bridge} is read, its Bridge Control is 0x{:04x}", open.control),
                        "",
                    ));
                    found = Some(open);
                }
                Err(why) => checks.push(Check::new(false, "", format!("{why}: run it as root on the node"))),
            }
        }
        _ => checks.push(Check::new(
            false,
            "",
            format!("there is no bridge above {gpu} (a virtual machine often shows none): unavailable here"),
        )),
    }
    let users = users(procfs);
    checks.push(Check::new(
        users.is_empty(),
        "no process holds a GPU device file",
        format!(
            "processes {} hold GPU device files: stop them (jobs, persistence daemon, exporters)",
            users.join(", ")
        ),
    ));
    let fabric = imex(procfs);
    checks.push(Check::new(
        fabric.is_none(),
        "no NVLink domain over several nodes is served here (nvidia-imex does not run)",
        format!(
            "process {} serves an NVLink domain over several nodes: jobs on other nodes may use this GPU; stop them and nvidia-imex",
            fabric.unwrap_or_default()
        ),
    ));
    let before = link(&real);
    Plan { checks, writes, bridge: found, device: real, before, procfs: procfs.to_owned() }
}

/// The process that makes memory of this node's GPUs visible to other nodes of the NVLink domain.
fn imex(procfs: &Path) -> Option<String> {
    let processes = entries(procfs);
    let found = processes
        .iter()
        .filter(|process| name(process).bytes().all(|b| b.is_ascii_digit()))
        .find(|process| text(&process.join("comm")).starts_with("nvidia-imex"))?;
    Some(name(found))
}

/// Processes with an open /dev/nvidia* or /dev/kfd.
fn users(procfs: &Path) -> Vec<String> {
    entries(procfs)
        .iter()
        .filter(|process| name(process).bytes().all(|b| b.is_ascii_digit()))
        .filter(|process| {
            entries(&process.join("fd")).iter().any(|fd| {
                std::fs::read_link(fd).is_ok_and(|target| {
                    let target = target.to_string_lossy();
                    target.starts_with("/dev/nvidia") || target.starts_with("/dev/kfd")
                })
            })
        })
        .map(|process| format!("{} ({})", name(process), text(&process.join("comm"))))
        .collect()
}
