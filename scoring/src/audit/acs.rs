//! Access control services (ACS) of the PCI bridges above GPUs and RDMA cards.
//!
//! With a redirect bit set, traffic between a GPU and a card takes the way through the processor. The register lies in
//! the extended configuration space, which only root reads; an ordinary user is told what root's own check published.

use std::collections::BTreeSet;

use super::health;
use super::system::{Host, names};
use super::{Item, Verdict};

const S: &str = "audit";
const METRIC: &str = "pcie_acs_enabled";
/// Id of the extended capability.
const CAPABILITY: u32 = 0x000d;
/// Where the list of extended capabilities begins.
const EXTENDED: usize = 0x100;
/// P2P request redirect, P2P completion redirect, upstream forwarding, egress control (PCI Express base specification,
/// ACS control register): the bits that take peer traffic off its direct way.
const REDIRECT: u16 = 0x04 | 0x08 | 0x10 | 0x20;
/// As much of a configuration space as an ordinary user may read.
const USER_BYTES: usize = 64;

/// What a bridge's configuration space says.
#[derive(Debug, PartialEq, Eq)]
enum Seen {
    /// The control register.
    Control(u16),
    /// The bridge has no such capability: it redirects nothing.
    None,
    /// Not readable for this user.
    Hidden,
}

/// Bridges above a GPU or RDMA card that redirect peer traffic.
pub fn audit(host: &Host) -> Item {
    let folder = host.sysfs.join("bus/pci/devices");
    let mut above = BTreeSet::new();
    let mut wanted = 0;
    for address in names(&folder) {
        let read = |name: &str| host.sys(&format!("bus/pci/devices/{address}/{name}")).unwrap_or_default();
        let class = read("class");
        let gpu = ["0x0300", "0x0302", "0x1200"].iter().any(|kind| class.starts_with(kind))
            && matches!(read("vendor").as_str(), "0x10de" | "0x1002");
        let card = class.starts_with("0x0207") || (class.starts_with("0x0200") && read("vendor") == "0x15b3");
        if !gpu && !card {
            continue;
        }
        wanted += 1;
        let Ok(path) = std::fs::canonicalize(folder.join(&address)) else { continue };
        let own = path.file_name().map(std::ffi::OsStr::to_os_string);
        above.extend(
            path.iter()
                .filter(|part| Some(*part) != own.as_deref())
                .filter_map(|part| part.to_str())
                .filter(|part| is_address(part))
                .map(str::to_owned),
        );
    }
    let item = if wanted == 0 {
        Item::not_applicable(S, METRIC, "no_rdma: no RDMA card and no GPU is in PCI sysfs")
    } else if above.is_empty() {
        published(host, wanted).unwrap_or_else(|| {
            Item::unavailable(
                S,
                METRIC,
                format!(
                    "no PCI bridge is shown above the {wanted} GPUs and cards (a virtual machine hides them)"
                ),
            )
        })
    } else {
        let read: Vec<(String, Seen)> = above
            .into_iter()
            .map(|bridge| {
                let seen = control(&folder.join(&bridge).join("config"));
                (bridge, seen)
            })
            .collect();
        if read.iter().any(|(_, seen)| *seen == Seen::Hidden) {
            published(host, wanted).unwrap_or_else(|| {
                Item::unavailable(
                    S,
                    METRIC,
                    format!("the ACS registers of {} bridges are readable for root only", read.len()),
                )
            })
        } else {
            judged(&read)
        }
    };
    item.by("sudo lspci -vvv | grep ACSCtl").mend(
        "turn ACS off on the bridges above GPUs and cards: in the firmware's set-up, or by setpci at boot",
    )
}

fn judged(read: &[(String, Seen)]) -> Item {
    let on: Vec<String> = read
        .iter()
        .filter_map(|(bridge, seen)| match seen {
            Seen::Control(bits) if bits & REDIRECT != 0 => Some(format!("{bridge} {bits:#06x}")),
            _ => None,
        })
        .collect();
    let text = if on.is_empty() {
        format!("{} bridges above GPUs and cards, none redirects", read.len())
    } else {
        format!("{} of {} bridges redirect: {}", on.len(), read.len(), on.join(" "))
    };
    Item::value(S, METRIC, on.len() as f64, text).judged(if on.is_empty() {
        Verdict::Pass
    } else {
        Verdict::Fail
    })
}

/// What the root-owned health check found, as it published it.
fn published(host: &Host, wanted: usize) -> Option<Item> {
    let check = health::check(host, "pcie.acs")?;
    let when = format!("root's own check pcie.acs, {:.0} s ago", check.age);
    match check.status.as_str() {
        "pass" => {
            Some(Item::value(S, METRIC, 0.0, format!("{when}: {}", check.detail)).judged(Verdict::Pass))
        }
        "warn" | "fail" => {
            let text = format!("{when}: {}", check.texts.join("; "));
            Some(Item::value(S, METRIC, check.texts.len().max(1) as f64, text).judged(Verdict::Fail))
        }
        "unsupported" => Some(Item::unavailable(
            S,
            METRIC,
            format!(
                "root's own check pcie.acs found no bridge with ACS above the {wanted} GPUs and cards ({})",
                check.detail
            ),
        )),
        _ => None,
    }
}

/// `0000:17:01.0`
fn is_address(text: &str) -> bool {
    let bytes = text.as_bytes();
    bytes.len() >= 12
        && bytes.iter().filter(|byte| **byte == b':').count() == 2
        && text.rsplit_once('.').is_some_and(|(_, function)| function.len() == 1)
        && bytes.iter().all(|byte| byte.is_ascii_hexdigit() || matches!(byte, b':' | b'.'))
}

fn control(path: &std::path::Path) -> Seen {
    match std::fs::read(path) {
        Ok(bytes) if bytes.len() <= USER_BYTES => Seen::Hidden,
        Ok(bytes) => find(&bytes).map_or(Seen::None, Seen::Control),
        Err(_) => Seen::Hidden,
    }
}

/// The control register in a dump of the configuration space.
fn find(config: &[u8]) -> Option<u16> {
    let half = |at: usize| Some(u16::from_le_bytes(config.get(at..at + 2)?.try_into().ok()?));
    let mut at = EXTENDED;
    // A list has at most one entry in 8 bytes: one that loops must not hold us.
    for _ in 0..512 {
        let header = u32::from(half(at)?) | u32::from(half(at + 2)?) << 16;
        if header & 0xffff == CAPABILITY {
            return half(at + 6);
        }
        at = (header >> 20) as usize;
        if at < EXTENDED || header == u32::MAX {
            return None;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::super::testing::host;
    use super::*;

    fn config(control: u16) -> Vec<u8> {
        let mut bytes = vec![0; 4096];
        bytes[0x100..0x104].copy_from_slice(&0x1401_0001u32.to_le_bytes());
        bytes[0x140..0x144].copy_from_slice(&0x0001_000du32.to_le_bytes());
        bytes[0x146..0x148].copy_from_slice(&control.to_le_bytes());
        bytes
    }

    /// A GPU below a bridge, as sysfs links it.
    fn node(dir: &std::path::Path, bridge: &[u8], checks: Option<&str>) -> Host {
        let mut files = Vec::new();
        if let Some(checks) = checks {
            files.push(("run_dir/checks.json", checks));
        }
        let host = host(dir, &files);
        let device = dir.join("sysfs/devices/pci0000:10/0000:10:01.0/0000:11:00.0");
        std::fs::create_dir_all(&device).unwrap();
        std::fs::write(device.join("class"), "0x030200\n").unwrap();
        std::fs::write(device.join("vendor"), "0x10de\n").unwrap();
        std::fs::write(device.parent().unwrap().join("config"), bridge).unwrap();
        std::fs::write(device.parent().unwrap().join("class"), "0x060400\n").unwrap();
        let bus = dir.join("sysfs/bus/pci/devices");
        std::fs::create_dir_all(&bus).unwrap();
        std::os::unix::fs::symlink(&device, bus.join("0000:11:00.0")).unwrap();
        std::os::unix::fs::symlink(device.parent().unwrap(), bus.join("0000:10:01.0")).unwrap();
        host
    }

    #[test]
    fn root_reads_the_bits_of_the_bridges_above() {
        for (bits, want) in [(0x001d, 1.0), (0x0000, 0.0), (0x0001, 0.0)] {
            let dir = tempfile::tempdir().unwrap();
            let item = audit(&node(dir.path(), &config(bits), None));
            assert_eq!(item.value, Some(want), "{bits:#x}: {item:?}");
        }
    }

    #[test]
    fn a_user_is_told_what_roots_check_published_and_else_that_it_cannot_see() {
        let now = health::epoch();
        let checks = |status: &str, findings: &str| {
            format!(
                "{{\"schema\":\"clustermax-checks/1\",\"checks\":{{\"pcie.acs\":{{\"status\":\"{status}\",\"time\":{now},\"detail\":\"4 functions\",\
                 \"findings\":[{findings}]}}}},\"passes\":{{}}}}"
            )
        };
        for (text, want) in [
            (Some(checks("pass", "")), Some(0.0)),
            (Some(checks("warn", "{\"text\":\"ACS is on\"}")), Some(1.0)),
            (Some(checks("unsupported", "")), None),
            (None, None),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let item = audit(&node(dir.path(), &[0; 64], text.as_deref()));
            assert_eq!(item.value, want, "{item:?}");
        }
    }

    #[test]
    fn a_list_of_capabilities_that_loops_ends() {
        let mut bytes = vec![0; 4096];
        bytes[0x100..0x104].copy_from_slice(&0x1001_0001u32.to_le_bytes());
        assert_eq!(find(&bytes), None);
        assert_eq!(find(&[0; 100]), None);
    }
}
