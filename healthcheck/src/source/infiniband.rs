//! InfiniBand and RoCE ports from `/sys/class/infiniband`. Reading a port's state can wait for a firmware
//! command, so this runs in a child.

use std::collections::BTreeMap;
use std::path::Path;

use super::{answer, read_number, read_trimmed};
use crate::facts::{IbPort, Reading};

/// Body of the child: `root` is sysfs.
pub fn child(root: &Path) {
    answer(&read(root));
}

/// All ports by `DEVICE/PORT`. No class folder means no device, which the profile may or may not expect.
pub fn read(sysfs: &Path) -> Reading<BTreeMap<String, IbPort>> {
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
                },
            );
        }
    }
    Reading::Value(ports)
}

/// Numbers of a counters folder by file name.
fn counters(dir: &Path) -> BTreeMap<String, u64> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .filter_map(|e| Some((e.file_name().into_string().ok()?, read_trimmed(&e.path())?.parse().ok()?)))
        .collect()
}
