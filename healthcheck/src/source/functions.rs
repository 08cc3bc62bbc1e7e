//! GPUs, network cards, NVMe disks and the bridges above them, as PCI sysfs shows them. Some of the files read config space,
//! which can hang below a dying device, so this runs in a child.

use std::collections::BTreeMap;
use std::path::Path;

use super::pci::config_all_ones;
use super::{answer, read_number, read_trimmed};
use crate::facts::{FunctionKind, PciFunction, Reading};
use crate::xid::normalise_pci;

/// Where the extended capabilities of config space begin.
const EXTENDED: usize = 0x100;
/// Id of the capability Access Control Services.
const ACS: u32 = 0x000d;

/// Body of the child: `root` is sysfs.
pub fn child(root: &Path) {
    answer(&read(root));
}

/// Functions by address.
pub fn read(sysfs: &Path) -> Reading<BTreeMap<String, PciFunction>> {
    let bus = sysfs.join("bus/pci/devices");
    let entries = match std::fs::read_dir(&bus) {
        Ok(d) => d,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Reading::Value(BTreeMap::new()),
        Err(e) => return Reading::Unknown(format!("{} cannot be read: {e}", bus.display())),
    };
    let mut found = BTreeMap::new();
    for entry in entries.flatten() {
        let dir = entry.path();
        // A virtual function has no link of its own.
        let Some(kind) = kind(&dir).filter(|_| !dir.join("physfn").exists()) else { continue };
        let above = bridges_above(&dir);
        for bridge in &above {
            if !found.contains_key(bridge) {
                found.insert(bridge.clone(), function(&bus.join(bridge), FunctionKind::Bridge, Vec::new()));
            }
        }
        found.insert(entry.file_name().to_string_lossy().to_lowercase(), function(&dir, kind, above));
    }
    Reading::Value(found)
}

fn kind(dir: &Path) -> Option<FunctionKind> {
    let class = read_trimmed(&dir.join("class"))?;
    match class.get(2..6)? {
        // A display adapter of a management controller is none of ours: NVIDIA and AMD only.
        "0300" | "0302" | "0380" | "1200" => {
            let vendor = read_trimmed(&dir.join("vendor"))?;
            matches!(vendor.as_str(), "0x10de" | "0x1002").then_some(FunctionKind::Gpu)
        }
        "0200" | "0207" | "0280" => Some(FunctionKind::Nic),
        "0108" => Some(FunctionKind::Nvme),
        _ => None,
    }
}

/// The real folder of a device lies below those of its bridges.
fn bridges_above(dir: &Path) -> Vec<String> {
    let Ok(real) = std::fs::canonicalize(dir) else { return Vec::new() };
    let names = real.components().filter_map(|c| c.as_os_str().to_str());
    let mut above: Vec<String> =
        names.filter(|n| n.contains('.') && normalise_pci(n).is_some()).map(str::to_lowercase).collect();
    above.pop();
    above.reverse();
    above
}

fn function(dir: &Path, kind: FunctionKind, above: Vec<String>) -> PciFunction {
    PciFunction {
        kind,
        above,
        max_speed: read_number(&dir.join("max_link_speed")),
        speed: read_number(&dir.join("current_link_speed")),
        correctable: aer(&dir.join("aer_dev_correctable")),
        nonfatal: aer(&dir.join("aer_dev_nonfatal")),
        fatal: aer(&dir.join("aer_dev_fatal")),
        acs: if kind == FunctionKind::Bridge { acs(&dir.join("config")) } else { Reading::Unsupported },
        config_all_ones: if kind == FunctionKind::Nic {
            config_all_ones(&dir.join("config"))
        } else {
            Reading::Unsupported
        },
    }
}

fn aer(path: &Path) -> Reading<u64> {
    match std::fs::read_to_string(path) {
        Ok(text) => aer_total(&text).map_or_else(
            || Reading::Unknown(format!("{} is not understood", path.display())),
            Reading::Value,
        ),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Reading::Unsupported,
        Err(e) => Reading::Unknown(format!("{} cannot be read: {e}", path.display())),
    }
}

/// `NAME COUNT` lines and their total; without a total the sum.
#[must_use]
pub fn aer_total(text: &str) -> Option<u64> {
    let mut sum: Option<u64> = None;
    for line in text.lines() {
        let (name, count) = line.trim().rsplit_once(' ')?;
        let count: u64 = count.parse().ok()?;
        if name.starts_with("TOTAL_ERR") {
            return Some(count);
        }
        sum = Some(sum.unwrap_or(0).saturating_add(count));
    }
    sum
}

fn acs(path: &Path) -> Reading<u16> {
    match std::fs::read(path) {
        Ok(config) if config.len() == 64 => {
            Reading::Unknown(format!("only root sees the capabilities in {}", path.display()))
        }
        Ok(config) => acs_control(&config).map_or(Reading::Unsupported, Reading::Value),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Reading::Unsupported,
        Err(e) => Reading::Unknown(format!("{} cannot be read: {e}", path.display())),
    }
}

/// ACS control register in a dump of config space; none without that capability.
#[must_use]
pub fn acs_control(config: &[u8]) -> Option<u16> {
    let half = |at: usize| Some(u16::from_le_bytes(config.get(at..at + 2)?.try_into().ok()?));
    let mut at = EXTENDED;
    // The list has at most one entry in 8 bytes; a loop in it must not hold us.
    for _ in 0..512 {
        let header = u32::from(half(at)?) | u32::from(half(at + 2)?) << 16;
        if header & 0xffff == ACS {
            return half(at + 6);
        }
        at = usize::try_from(header >> 20).ok()?;
        if at < EXTENDED || header == u32::MAX {
            return None;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn totals_of_aer_files() {
        assert_eq!(aer_total("RxErr 4711\nBadTLP 0\nTOTAL_ERR_COR 4711\n"), Some(4711));
        assert_eq!(aer_total("RxErr 3\nBadTLP 4\n"), Some(7));
        assert_eq!(aer_total(""), None);
        assert_eq!(aer_total("RxErr\n"), None);
    }

    #[test]
    fn acs_is_found_along_the_list() {
        let mut config = vec![0u8; 4096];
        config[0x100..0x104].copy_from_slice(&0x1401_0001u32.to_le_bytes());
        config[0x140..0x144].copy_from_slice(&0x0001_000du32.to_le_bytes());
        config[0x146..0x148].copy_from_slice(&0x001du16.to_le_bytes());
        assert_eq!(acs_control(&config), Some(0x1d));
        assert_eq!(acs_control(&config[..256]), None);
        // A list that leads to itself ends.
        config[0x100..0x104].copy_from_slice(&0x1001_0001u32.to_le_bytes());
        assert_eq!(acs_control(&config), None);
    }

    proptest! {
        #[test]
        fn no_content_makes_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            let _ = aer_total(&String::from_utf8_lossy(&bytes));
            let _ = acs_control(&bytes);
        }
    }
}
