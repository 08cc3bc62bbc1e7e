//! NVMe controllers and RAID arrays. `/proc/mdstat` waits for the lock of an array that hangs, so this runs in a child.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{answer, read_trimmed};
use crate::facts::{Nvme, Raid, Reading};

/// What the child says.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Disks {
    /// See [`crate::facts::NodeFacts`].
    pub nvme: Reading<BTreeMap<String, Nvme>>,
    /// The same.
    pub raid: Reading<BTreeMap<String, Raid>>,
}

/// Body of the child.
pub fn child(sysfs: &Path, procfs: &Path) {
    answer(&Reading::Value(read(sysfs, procfs)));
}

/// Controllers and arrays.
pub fn read(sysfs: &Path, procfs: &Path) -> Disks {
    Disks { nvme: nvme(&sysfs.join("class/nvme")), raid: raid(sysfs, procfs) }
}

fn nvme(class: &Path) -> Reading<BTreeMap<String, Nvme>> {
    let entries = match std::fs::read_dir(class) {
        Ok(d) => d,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Reading::Unsupported,
        Err(e) => return Reading::Unknown(format!("{} cannot be read: {e}", class.display())),
    };
    let one = |e: std::fs::DirEntry| {
        let state = match std::fs::read_to_string(e.path().join("state")) {
            Ok(text) => Reading::Value(text.trim().to_string()),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Reading::Unsupported,
            Err(e) => Reading::Unknown(format!("its state cannot be read: {e}")),
        };
        let address = read_trimmed(&e.path().join("address"));
        (e.file_name().to_string_lossy().into_owned(), Nvme { state, address, ..Nvme::default() })
    };
    Reading::Value(entries.flatten().map(one).collect())
}

fn raid(sysfs: &Path, procfs: &Path) -> Reading<BTreeMap<String, Raid>> {
    let path = procfs.join("mdstat");
    let mut arrays = match std::fs::read_to_string(&path) {
        Ok(text) => parse_mdstat(&text),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => BTreeMap::new(),
        Err(e) => return Reading::Unknown(format!("{} cannot be read: {e}", path.display())),
    };
    for entry in std::fs::read_dir(sysfs.join("block")).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let md = entry.path().join("md");
        if !name.starts_with("md") || !md.is_dir() {
            continue;
        }
        let array = arrays.entry(name).or_insert_with(|| Raid {
            level: read_trimmed(&md.join("level")).unwrap_or_default(),
            active: read_trimmed(&md.join("array_state")).is_none_or(|s| s != "inactive" && s != "broken"),
            ..Raid::default()
        });
        array.degraded = read_trimmed(&md.join("degraded")).and_then(|t| t.parse().ok());
    }
    if arrays.is_empty() { Reading::Unsupported } else { Reading::Value(arrays) }
}

/// Reads `md1 : active raid1 nvme5n1[0] nvme6n1[2](F)` and the `[2/1]` below it.
#[must_use]
pub fn parse_mdstat(text: &str) -> BTreeMap<String, Raid> {
    let mut arrays: BTreeMap<String, Raid> = BTreeMap::new();
    let mut current = None;
    for line in text.lines() {
        if let Some((name, rest)) = line.split_once(" : ").filter(|(n, _)| n.starts_with("md")) {
            let mut array = Raid::default();
            let mut words = rest.split_whitespace();
            let state = words.next().unwrap_or_default();
            array.active = state == "active";
            for word in words {
                match word.split_once('[') {
                    Some((member, flags)) if flags.contains("(F)") => array.failed.push(member.into()),
                    Some(_) => {}
                    // `(read-only)` and `(auto-read-only)` stand between.
                    None if word.starts_with('(') => {}
                    None if array.level.is_empty() => array.level = word.into(),
                    None => {}
                }
            }
            current = Some(name.to_string());
            arrays.insert(name.into(), array);
        } else if line.trim().is_empty() {
            current = None;
        } else if let Some(array) = current.as_ref().and_then(|name| arrays.get_mut(name)) {
            let counts = line.split_whitespace().find_map(|word| {
                let (all, there) = word.strip_prefix('[')?.strip_suffix(']')?.split_once('/')?;
                Some((all.parse().ok()?, there.parse().ok()?))
            });
            array.members = array.members.or(counts);
        }
    }
    arrays
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn arrays_of_mdstat() {
        let text = include_str!("../../tests/data/proc/mdstat.txt");
        let arrays = parse_mdstat(text);
        assert_eq!(arrays["md0"], Raid { level: "raid0".into(), active: true, ..Raid::default() });
        let md1 = &arrays["md1"];
        assert_eq!((md1.failed.as_slice(), md1.members), (&["nvme6n1".to_string()][..], Some((2, 1))));
        let more =
            parse_mdstat("md127 : inactive sdb[0](S)\n\nmd2 : active (auto-read-only) raid5 a[0] b[1]\n");
        assert!(!more["md127"].active);
        assert_eq!(more["md2"].level, "raid5");
    }

    proptest! {
        #[test]
        fn no_content_makes_it_panic(text in "(md[0-9] : |active|raid[01]|[\\[\\]()/F0-9 \n]|.){0,60}") {
            let _ = parse_mdstat(&text);
        }
    }
}
