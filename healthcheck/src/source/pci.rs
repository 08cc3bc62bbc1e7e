//! GPUs without the driver: PCI functions in sysfs and device nodes. Config space of a dying device can
//! hang, so the PCI part runs in a child.

use std::io::Read;
use std::path::Path;

use super::{answer, read_number, read_trimmed};
use crate::facts::{PciFacts, PciGpu, Reading};

/// PCI vendor id of NVIDIA.
const NVIDIA: &str = "0x10de";
/// PCI classes of GPUs: 3D controller, VGA controller.
const GPU_CLASSES: [&str; 2] = ["0x0302", "0x0300"];
/// PCI class of NVSwitches: other bridge.
const SWITCH_CLASSES: [&str; 1] = ["0x0680"];

/// Body of the child: `root` is sysfs.
pub fn child(root: &Path) {
    answer(&read(root));
}

/// GPUs and NVSwitches by address. The kernel caches vendor, device and class, so they prove nothing about life.
pub fn read(sysfs: &Path) -> Reading<PciFacts> {
    let bus = sysfs.join("bus/pci/devices");
    let entries = match std::fs::read_dir(&bus) {
        Ok(d) => d,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Reading::Value(PciFacts::default()),
        Err(e) => return Reading::Unknown(format!("{} cannot be read: {e}", bus.display())),
    };
    let mut facts = PciFacts::default();
    for entry in entries.flatten() {
        let dir = entry.path();
        let is = |file: &str, want: &[&str]| {
            read_trimmed(&dir.join(file)).is_some_and(|v| want.iter().any(|w| v.starts_with(w)))
        };
        if !is("vendor", &[NVIDIA]) {
            continue;
        }
        let pci = entry.file_name().to_string_lossy().to_lowercase();
        if is("class", &SWITCH_CLASSES) {
            facts.switches.push(pci);
            continue;
        }
        if !is("class", &GPU_CLASSES) {
            continue;
        }
        facts.gpus.push(PciGpu {
            pci,
            config_all_ones: config_all_ones(&dir.join("config")),
            width: read_number(&dir.join("current_link_width")),
            max_width: read_number(&dir.join("max_link_width")),
        });
    }
    facts.gpus.sort_by(|a, b| a.pci.cmp(&b.pci));
    facts.switches.sort();
    Reading::Value(facts)
}

/// Whether the first 64 bytes of config space read all ones, as they do when nobody answers.
pub fn config_all_ones(path: &Path) -> Reading<bool> {
    let mut head = [0u8; 64];
    match std::fs::File::open(path).and_then(|mut f| f.read_exact(&mut head)) {
        Ok(()) => Reading::Value(head.iter().all(|b| *b == 0xff)),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Reading::Unsupported,
        Err(e) => Reading::Unknown(format!("{} cannot be read: {e}", path.display())),
    }
}

/// Minor numbers of `/dev/nvidiaN`.
pub fn device_nodes(dev: &Path) -> Reading<Vec<u32>> {
    match std::fs::read_dir(dev) {
        Ok(entries) => {
            let mut minors: Vec<u32> = entries
                .flatten()
                .filter_map(|e| e.file_name().to_str()?.strip_prefix("nvidia")?.parse().ok())
                .collect();
            minors.sort_unstable();
            Reading::Value(minors)
        }
        Err(e) => Reading::Unknown(format!("{} cannot be read: {e}", dev.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_of_gpus_and_switches() {
        let root = tempfile::tempdir().unwrap();
        let device = |address: &str, vendor: &str, class: &str, config: u8| {
            let dir = root.path().join("bus/pci/devices").join(address);
            std::fs::create_dir_all(&dir).unwrap();
            for (file, text) in
                [("vendor", vendor), ("class", class), ("current_link_width", "8"), ("max_link_width", "16")]
            {
                std::fs::write(dir.join(file), format!("{text}\n")).unwrap();
            }
            std::fs::write(dir.join("config"), [config; 64]).unwrap();
        };
        device("0000:5D:00.0", "0x10de", "0x030200", 0xff);
        device("0000:3a:00.0", "0x10de", "0x030200", 0x10);
        device("0000:80:00.0", "0x10de", "0x068000", 0x10);
        // Its audio function, and a GPU of another maker.
        device("0000:3a:00.1", "0x10de", "0x040300", 0x10);
        device("0000:05:00.0", "0x1002", "0x030200", 0x10);
        let Reading::Value(facts) = read(root.path()) else { panic!("not read") };
        assert_eq!(facts.switches, ["0000:80:00.0"]);
        let gone = |all_ones, pci: &str| PciGpu {
            pci: pci.into(),
            config_all_ones: Reading::Value(all_ones),
            width: Reading::Value(8),
            max_width: Reading::Value(16),
        };
        assert_eq!(facts.gpus, [gone(false, "0000:3a:00.0"), gone(true, "0000:5d:00.0")]);
        std::fs::write(root.path().join("bus/pci/devices/0000:3a:00.0/config"), [0u8; 9]).unwrap();
        let Reading::Value(facts) = read(root.path()) else { panic!("not read") };
        assert!(matches!(facts.gpus[0].config_all_ones, Reading::Unknown(_)), "cut short");
        assert_eq!(read(&root.path().join("none")), Reading::Value(PciFacts::default()));
    }

    #[test]
    fn device_nodes_are_those_with_a_number() {
        let dev = tempfile::tempdir().unwrap();
        for name in ["nvidia1", "nvidia0", "nvidiactl", "nvidia-uvm", "null"] {
            std::fs::write(dev.path().join(name), "").unwrap();
        }
        assert_eq!(device_nodes(dev.path()), Reading::Value(vec![0, 1]));
        assert!(matches!(device_nodes(&dev.path().join("none")), Reading::Unknown(_)));
    }
}
