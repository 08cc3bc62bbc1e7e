//! NVMe disks, RAID arrays and file systems that went read-only.

use super::{Context, Sink};
use crate::facts::{NvmeSmart, Reading};
use crate::verdict::{Action, Device, DeviceKind, Status};

pub fn run(c: &Context<'_>, sink: &mut Sink<'_>) {
    if sink.on("disk.nvme") {
        nvme(c, sink);
    }
    if sink.on("disk.raid") {
        raid(c, sink);
    }
    if sink.on("fs.ro") {
        read_only(c, sink);
    }
}

fn nvme(c: &Context<'_>, sink: &mut Sink<'_>) {
    let wanted = c.profile.nvme_count.unwrap_or(0);
    let none = std::collections::BTreeMap::new();
    let all = match &c.facts.node.nvme {
        Reading::Value(all) => all,
        Reading::Unsupported if wanted == 0 => {
            sink.done("disk.nvme", Status::Unsupported, "no NVMe disk here or in the profile");
            return;
        }
        Reading::Unsupported => &none,
        Reading::Unknown(why) | Reading::Hung(why) => {
            sink.unknown("disk.nvme", "nvmedown", None, why);
            return;
        }
    };
    for (name, disk) in all {
        smart(c, sink, name, &disk.smart);
        let device = Some(Device::named(DeviceKind::Host, name.as_str()));
        let state = match &disk.state {
            Reading::Value(state) if state == "live" => continue,
            Reading::Value(state) => state,
            Reading::Unsupported => continue,
            Reading::Unknown(why) | Reading::Hung(why) => {
                sink.unknown("disk.nvme", "nvmedown", device, why);
                continue;
            }
        };
        let dead = state == "dead";
        let mut f =
            sink.finding("disk.nvme", "nvmedown", if dead { Status::Fail } else { Status::Warn }, device);
        f.action = Action::Repair;
        f.text = format!("NVMe controller is {state}");
        f.evidence = format!(
            "{name} ({}): state {state}, expected live",
            disk.address.as_deref().unwrap_or("no address")
        );
        f.mend = "reboot the node; if it comes back, replace the disk".into();
        sink.push(f);
    }
    let there = u32::try_from(all.len()).unwrap_or(u32::MAX);
    if there < wanted {
        let mut f = sink.finding("disk.nvme", "nvmecount", Status::Fail, None);
        f.action = Action::Repair;
        f.text = format!("{there} of {wanted} NVMe disks");
        f.evidence = format!("{there} controllers in /sys/class/nvme, expected {wanted}");
        f.mend = "reboot the node; if one stays away, reseat or replace it".into();
        sink.push(f);
    }
    sink.done("disk.nvme", Status::Pass, format!("{there} controllers"));
}

/// What the disk says of itself. Heat warns, since cooling may help; its other warnings are the maker's own limits.
fn smart(c: &Context<'_>, sink: &mut Sink<'_>, name: &str, page: &Reading<NvmeSmart>) {
    /// Bits of the critical warning but the temperature's.
    const BITS: [(u8, &str); 5] = [
        (0, "spare blocks below the maker's limit"),
        (2, "reliability degraded"),
        (3, "read-only"),
        (4, "backup of its volatile memory failed"),
        (5, "persistent memory unreliable"),
    ];
    const HOT: u8 = 1 << 1;
    /// Percent of the rated life.
    const WORN: u8 = 80;
    let device = || Some(Device::named(DeviceKind::Host, name));
    let page = match page {
        Reading::Value(page) => page,
        Reading::Unsupported => return,
        Reading::Unknown(why) | Reading::Hung(why) => {
            return sink.unknown("disk.nvme", "nvmesmart", device(), why);
        }
    };
    let mut say = |token: &str, status: Status, text: String, mend: &str| {
        let mut f = sink.finding("disk.nvme", token, status, device());
        f.action = if status == Status::Fail { Action::Repair } else { Action::None };
        f.evidence = format!(
            "{name}: critical_warning {:#04x}, spare {} % (limit {}), {} % of its life used, {} media errors",
            page.critical_warning,
            page.spare_percent,
            page.spare_threshold,
            page.used_percent,
            page.media_errors
        );
        f.text = text;
        f.mend = mend.into();
        sink.push(f);
    };
    let set: Vec<&str> = BITS
        .iter()
        .filter(|(bit, _)| page.critical_warning >> bit & 1 == 1)
        .map(|(_, words)| *words)
        .collect();
    if !set.is_empty() {
        say(
            "nvmesmart",
            Status::Fail,
            format!("NVMe disk warns: {}", set.join(", ")),
            "save what is on it, replace the disk",
        );
    }
    if page.critical_warning & HOT != 0 {
        say(
            "nvmehot",
            Status::Warn,
            "NVMe disk is out of its temperature range".into(),
            "check cooling and airflow",
        );
    }
    if page.used_percent > WORN {
        let text = format!("NVMe disk has used {} % of its rated life", page.used_percent);
        say("nvmewear", Status::Warn, text, "plan to replace the disk");
    }
    let errors = c.counters.rise(&format!("nvme/{name}/media_errors"), 86_400.0).unwrap_or(0);
    if errors > 0 {
        let text = format!("{errors} media errors within a day");
        say("nvmemedia", Status::Warn, text, "check the file system; replace the disk if they go on");
    }
}

fn raid(c: &Context<'_>, sink: &mut Sink<'_>) {
    let all = match &c.facts.node.raid {
        Reading::Value(all) => all,
        Reading::Unsupported => {
            sink.done("disk.raid", Status::Unsupported, "no array");
            return;
        }
        Reading::Unknown(why) | Reading::Hung(why) => {
            sink.unknown("disk.raid", "raid", None, why);
            return;
        }
    };
    for (name, array) in all {
        let counted = array.members.map_or(0, |(all, there)| all.saturating_sub(there));
        let missing = counted.max(array.degraded.unwrap_or(0));
        let lost = missing > 0 || !array.failed.is_empty();
        // Arrays without redundancy are gone with the first member; one that was never started holds nothing of ours.
        let (status, text) = match array.level.as_str() {
            "raid0" | "linear" if lost || !array.active => {
                (Status::Fail, format!("{} lost a member", array.level))
            }
            _ if lost => (Status::Warn, format!("{} is degraded", array.level)),
            _ => continue,
        };
        let device = Device::named(DeviceKind::Host, name.as_str());
        let mut f = sink.finding("disk.raid", "raid", status, Some(device));
        f.action = Action::Repair;
        let failed = if array.failed.is_empty() { "none named".into() } else { array.failed.join(" ") };
        f.evidence = format!("{name}: {text}, {missing} members missing, failed: {failed}");
        f.text = text;
        f.mend = "replace the disk and rebuild the array".into();
        sink.push(f);
    }
    sink.done("disk.raid", Status::Pass, format!("{} arrays", all.len()));
}

/// The kernel's lines are [`super::kernel_lines`]'s; here is what the mount table says of local file systems that are watched.
fn read_only(c: &Context<'_>, sink: &mut Sink<'_>) {
    let watched = &c.profile.space;
    let mounts = match &c.facts.mounts {
        Reading::Value(mounts) => mounts,
        Reading::Unsupported => return sink.done("fs.ro", Status::Unsupported, "no mount table"),
        Reading::Unknown(why) | Reading::Hung(why) => {
            return sink.unknown("fs.ro", "fsro", None, why);
        }
    };
    let mut said = std::collections::BTreeSet::new();
    for profile in watched {
        // The mount that holds the path is the longest one above it.
        let above = profile.path.ancestors().find_map(|p| mounts.get_key_value(p.to_str()?));
        let Some((point, mount)) = above.filter(|(_, m)| !m.writable) else { continue };
        if !said.insert(point) {
            continue;
        }
        let device = Device::named(DeviceKind::Mount, point.as_str());
        let mut f = sink.finding("fs.ro", "fsro", Status::Fail, Some(device));
        f.action = Action::Reboot;
        f.text = "file system is read-only".into();
        f.evidence = format!(
            "{point} ({} from {}) is mounted read-only and holds {}",
            mount.fstype,
            mount.source,
            profile.path.display()
        );
        f.mend = "check the file system and its disk, then reboot".into();
        sink.push(f);
    }
    sink.done("fs.ro", Status::Pass, format!("{} file systems watched, no open event", watched.len()));
}
