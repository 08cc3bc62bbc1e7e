//! Network interfaces from `/sys/class/net`. Asking a driver for its link speed can wait for its firmware, so this runs in a
//! child.

use std::collections::BTreeMap;
use std::path::Path;

use super::{answer, read_number, read_trimmed};
use crate::facts::{NetPort, Reading};

/// Body of the child: `root` is sysfs.
pub fn child(root: &Path) {
    answer(&read(root));
}

/// All interfaces by name.
pub fn read(sysfs: &Path) -> Reading<BTreeMap<String, NetPort>> {
    let class = sysfs.join("class/net");
    let entries = match std::fs::read_dir(&class) {
        Ok(d) => d,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Reading::Value(BTreeMap::new()),
        Err(e) => return Reading::Unknown(format!("{} cannot be read: {e}", class.display())),
    };
    // `bonding_masters` and its like are files.
    let folders = entries.flatten().filter(|e| e.path().is_dir());
    Reading::Value(folders.map(|e| (e.file_name().to_string_lossy().into_owned(), port(&e.path()))).collect())
}

fn port(dir: &Path) -> NetPort {
    let is_virtual =
        std::fs::canonicalize(dir).is_ok_and(|p| p.components().any(|c| c.as_os_str() == "virtual"));
    let slaves = read_trimmed(&dir.join("bonding/slaves")).unwrap_or_default();
    NetPort {
        is_virtual,
        operstate: read_trimmed(&dir.join("operstate")).unwrap_or_default(),
        carrier: carrier(&dir.join("carrier")),
        speed_mbps: speed(&dir.join("speed")),
        mtu: read_number(&dir.join("mtu")),
        carrier_down_count: read_number(&dir.join("carrier_down_count")),
        pci: super::pci_function(&dir.join("device")),
        dev_port: read_trimmed(&dir.join("dev_port")).and_then(|t| t.parse().ok()).unwrap_or(0),
        slaves: slaves.split_whitespace().map(str::to_string).collect(),
    }
}

/// The kernel answers EINVAL while the interface is switched off.
fn carrier(path: &Path) -> Reading<bool> {
    match std::fs::read_to_string(path) {
        Ok(text) => match text.trim() {
            "1" => Reading::Value(true),
            "0" => Reading::Value(false),
            _ => Reading::Unsupported,
        },
        Err(e) if e.kind() == std::io::ErrorKind::InvalidInput => Reading::Unsupported,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Reading::Unsupported,
        Err(e) => Reading::Unknown(format!("{} cannot be read: {e}", path.display())),
    }
}

/// -1 or EINVAL without a link.
fn speed(path: &Path) -> Reading<u32> {
    read_trimmed(path).and_then(|t| t.parse().ok()).map_or(Reading::Unsupported, Reading::Value)
}
