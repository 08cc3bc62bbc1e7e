//! InfiniBand and RoCE ports from `/sys/class/infiniband`. Reading a port's state can wait for a firmware
//! command, so this runs in a child.

use std::collections::BTreeMap;
use std::path::Path;

use super::{answer, read_number, read_trimmed};
use crate::facts::{IbPort, Reading};

/// Body of the child: `root` is sysfs. Every counter costs the card's firmware a command, so only slow passes read `all`.
pub fn child(root: &Path, all: bool) {
    answer(&read(root, all));
}

/// All ports by `DEVICE/PORT`. No class folder means no device, which the profile may or may not expect.
pub fn read(sysfs: &Path, all: bool) -> Reading<BTreeMap<String, IbPort>> {
    let class = sysfs.join("class/infiniband");
    let devices = match std::fs::read_dir(&class) {
        Ok(d) => d,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Reading::Value(BTreeMap::new()),
        Err(e) => return Reading::Unknown(format!("{} cannot be read: {e}", class.display())),
    };
    let mut ports = BTreeMap::new();
    for device in devices.flatten() {
        let Ok(entries) = std::fs::read_dir(device.path().join("ports")) else { continue };
        for port in entries.flatten() {
            let path = port.path();
            let name =
                format!("{}/{}", device.file_name().to_string_lossy(), port.file_name().to_string_lossy());
            let link_layer =
                read_trimmed(&path.join("link_layer")).map_or(Reading::Unsupported, Reading::Value);
            ports.insert(
                name,
                IbPort {
                    state: read_number(&path.join("state")),
                    phys_state: read_number(&path.join("phys_state")),
                    link_layer,
                    rate_gbps: read_number(&path.join("rate")),
                    counters: counters(&path.join("counters")),
                    pci: super::pci_function(&device.path().join("device")),
                    ..if all { details(&device.path(), &path) } else { IbPort::default() }
                },
            );
        }
    }
    Reading::Value(ports)
}

/// What only slow passes read of a port.
fn details(device: &Path, port: &Path) -> IbPort {
    let text = |path: &Path| read_trimmed(path).map_or(Reading::Unsupported, Reading::Value);
    IbPort {
        hw_counters: counters(&port.join("hw_counters")),
        sm_lid: read_trimmed(&port.join("sm_lid"))
            .and_then(|t| parse_hex(&t))
            .map_or(Reading::Unsupported, Reading::Value),
        pkeys: pkeys(&port.join("pkeys")),
        firmware: text(&device.join("fw_ver")),
        board: text(&device.join("board_id")),
        ..IbPort::default()
    }
}

/// Keys that are set; the table is long and mostly 0.
fn pkeys(dir: &Path) -> Reading<Vec<u16>> {
    let entries = match std::fs::read_dir(dir) {
        Ok(d) => d,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Reading::Unsupported,
        Err(e) => return Reading::Unknown(format!("{} cannot be read: {e}", dir.display())),
    };
    let mut keys: Vec<u16> = entries
        .flatten()
        .filter_map(|e| u16::try_from(parse_hex(&read_trimmed(&e.path())?)?).ok())
        .filter(|k| *k != 0)
        .collect();
    keys.sort_unstable();
    keys.dedup();
    Reading::Value(keys)
}

/// `0xffff`, or a decimal number.
fn parse_hex(text: &str) -> Option<u32> {
    match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// Numbers of a counters folder by file name.
fn counters(dir: &Path) -> BTreeMap<String, u64> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .filter_map(|e| Some((e.file_name().into_string().ok()?, read_trimmed(&e.path())?.parse().ok()?)))
        .collect()
}
