//! PCIe secondary-bus reset of a GPU's bridge: what must hold before, and the exact writes. Reads only.

use std::path::{Path, PathBuf};

use super::Check;

/// Preconditions and writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// All must hold.
    pub checks: Vec<Check>,
    /// In order; empty when there is no bridge.
    pub writes: Vec<String>,
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

/// Addresses of GPUs (class 0x0302, 0x0300 or 0x1200 of NVIDIA and AMD), in bus order.
#[must_use]
pub fn gpus(sysfs: &Path) -> Vec<String> {
    entries(&sysfs.join("bus/pci/devices"))
        .iter()
        .filter(|device| {
            let class = text(&device.join("class"));
            let vendor = text(&device.join("vendor"));
            ["0x0302", "0x0300", "0x1200"].iter().any(|wanted| class.starts_with(wanted))
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
pub fn plan(sysfs: &Path, procfs: &Path, gpu: &str) -> Plan {
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
    let bridge = real.parent().filter(|parent| is_address(&name(parent)));
    let mut writes = Vec::new();
    match bridge {
        Some(bridge) if text(&bridge.join("class")).starts_with("0x0604") => {
            let mut others = Vec::new();
            below(bridge, &mut others);
            others.retain(|other| other != gpu);
            let bridge = name(bridge);
            checks.push(Check::new(
                others.is_empty(),
                format!("{gpu} is alone below bridge {bridge}"),
                format!("bridge {bridge} also carries {}: they would be reset too", others.join(", ")),
            ));
            writes.push(format!("setpci -s {bridge} BRIDGE_CONTROL=0040:0040"));
            writes.push("sleep 1".to_owned());
            writes.push(format!("setpci -s {bridge} BRIDGE_CONTROL=0000:0040"));
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
    Plan { checks, writes }
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
