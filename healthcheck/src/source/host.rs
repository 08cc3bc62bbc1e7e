//! Memory controllers, CPUs, clock, processes and what users left in shared memory.

use std::collections::BTreeMap;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{answer, read_number, read_trimmed};
use crate::facts::{Clock, Leftover, MemoryController, Processes, Reading};
use crate::sys;

/// First user id of people.
pub const FIRST_USER: u32 = 1000;
/// Most entries of shared memory looked at.
const SHM_ENTRIES: usize = 20_000;

/// What the child says.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Host {
    /// See [`crate::facts::NodeFacts`].
    pub virtual_machine: Reading<bool>,
    /// The same.
    pub edac: Reading<BTreeMap<String, MemoryController>>,
    /// The same.
    pub clock: Reading<Clock>,
    /// The same.
    pub clocksource: Reading<String>,
    /// The same.
    pub cpus: Reading<u32>,
    /// The same.
    pub governors: BTreeMap<String, u32>,
    /// The same.
    pub processes: Reading<Processes>,
}

/// Body of the child.
pub fn child(sysfs: &Path, procfs: &Path) {
    answer(&Reading::Value(read(sysfs, procfs)));
}

/// Body of the child that looks into shared memory.
pub fn shm_child(dev: &Path) {
    answer(&shm(&dev.join("shm")));
}

/// Everything but shared memory.
pub fn read(sysfs: &Path, procfs: &Path) -> Host {
    let cpu = sysfs.join("devices/system/cpu");
    Host {
        virtual_machine: virtual_machine(&procfs.join("cpuinfo")),
        edac: edac(&sysfs.join("devices/system/edac/mc")),
        clock: match sys::clock() {
            Ok(clock) => Reading::Value(clock),
            Err(e) => Reading::Unknown(format!("the kernel does not tell its clock's state: {e}")),
        },
        clocksource: read_trimmed(&sysfs.join("devices/system/clocksource/clocksource0/current_clocksource"))
            .map_or(Reading::Unsupported, Reading::Value),
        cpus: match read_trimmed(&cpu.join("online")) {
            Some(text) => count_cpus(&text)
                .map_or_else(|| Reading::Unknown(format!("\"{text}\" is no list of CPUs")), Reading::Value),
            None => Reading::Unsupported,
        },
        governors: governors(&cpu),
        processes: processes(procfs),
    }
}

/// The CPU's flag of a guest; only x86 has it.
fn virtual_machine(cpuinfo: &Path) -> Reading<bool> {
    let mut head = Vec::new();
    // The flags stand with the first CPU; a large node has megabytes of them.
    let read = std::fs::File::open(cpuinfo).and_then(|f| f.take(16_384).read_to_end(&mut head));
    if let Err(e) = read {
        return Reading::Unknown(format!("{} cannot be read: {e}", cpuinfo.display()));
    }
    let head = String::from_utf8_lossy(&head);
    match head.lines().find(|l| l.starts_with("flags")) {
        Some(flags) => Reading::Value(flags.split_whitespace().any(|f| f == "hypervisor")),
        None => Reading::Unsupported,
    }
}

fn edac(dir: &Path) -> Reading<BTreeMap<String, MemoryController>> {
    let entries = match std::fs::read_dir(dir) {
        Ok(d) => d,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Reading::Unsupported,
        Err(e) => return Reading::Unknown(format!("{} cannot be read: {e}", dir.display())),
    };
    let names = entries.flatten().map(|e| (e.file_name().to_string_lossy().into_owned(), e.path()));
    let mc: BTreeMap<String, MemoryController> = names
        .filter(|(name, _)| name.strip_prefix("mc").is_some_and(|n| n.parse::<u32>().is_ok()))
        .map(|(name, path)| {
            let corrected = read_number(&path.join("ce_count"));
            let uncorrectable = read_number(&path.join("ue_count"));
            (name, MemoryController { corrected, uncorrectable })
        })
        .collect();
    if mc.is_empty() { Reading::Unsupported } else { Reading::Value(mc) }
}

/// Counts `0-63,128-191`.
#[must_use]
pub fn count_cpus(text: &str) -> Option<u32> {
    let mut count = 0u32;
    for part in text.trim().split(',').filter(|p| !p.is_empty()) {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        let (from, to): (u32, u32) = (from.parse().ok()?, to.parse().ok()?);
        count = count.checked_add(to.checked_sub(from)?.checked_add(1)?)?;
    }
    (count > 0).then_some(count)
}

fn governors(cpu: &Path) -> BTreeMap<String, u32> {
    let mut by_name = BTreeMap::new();
    for entry in std::fs::read_dir(cpu).into_iter().flatten().flatten() {
        if let Some(governor) = read_trimmed(&entry.path().join("cpufreq/scaling_governor")) {
            *by_name.entry(governor).or_default() += 1;
        }
    }
    by_name
}

/// Owners, zombies and threads of all processes.
pub fn processes(procfs: &Path) -> Reading<Processes> {
    let entries = match std::fs::read_dir(procfs) {
        Ok(d) => d,
        Err(e) => return Reading::Unknown(format!("{} cannot be read: {e}", procfs.display())),
    };
    let mut all = Processes::default();
    for entry in entries.flatten() {
        let Some(name) = entry.file_name().to_str().map(str::to_string) else { continue };
        if !name.bytes().all(|b| b.is_ascii_digit()) {
            continue;
        }
        // A process may end at any moment.
        let Some((state, threads)) =
            std::fs::read(entry.path().join("stat")).ok().and_then(|s| parse_stat(&s))
        else {
            continue;
        };
        all.threads += threads;
        if state == 'Z' {
            all.zombies += 1;
        } else if let Some(uid) = entry.metadata().ok().map(|m| m.uid()).filter(|u| *u >= FIRST_USER) {
            *all.by_user.entry(uid).or_default() += 1;
        }
    }
    let limit = |file: &str| read_trimmed(&procfs.join("sys/kernel").join(file)).and_then(|t| t.parse().ok());
    all.threads_max = limit("threads-max").into_iter().chain(limit("pid_max")).min();
    Reading::Value(all)
}

/// State and number of threads in `PID (NAME) STATE ...`; the name may hold anything.
#[must_use]
pub fn parse_stat(stat: &[u8]) -> Option<(char, u64)> {
    let text = String::from_utf8_lossy(stat);
    let (_, rest) = text.rsplit_once(')')?;
    let mut words = rest.split_whitespace();
    let state = words.next()?.chars().next()?;
    // Field 20, where the state is field 3.
    Some((state, words.nth(16)?.parse().ok()?))
}

/// Files and folders by owner, two levels deep; system users left out.
pub fn shm(dir: &Path) -> Reading<BTreeMap<u32, Leftover>> {
    let entries = match std::fs::read_dir(dir) {
        Ok(d) => d,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Reading::Unsupported,
        Err(e) => return Reading::Unknown(format!("{} cannot be read: {e}", dir.display())),
    };
    let mut by_owner: BTreeMap<u32, Leftover> = BTreeMap::new();
    let below = |path: &Path| std::fs::read_dir(path).into_iter().flatten().flatten();
    let mut seen = 0;
    for entry in entries.flatten() {
        let is_folder = entry.file_type().is_ok_and(|t| t.is_dir());
        let inside = is_folder.then(|| below(&entry.path())).into_iter().flatten();
        for e in std::iter::once(entry).chain(inside) {
            seen += 1;
            if seen > SHM_ENTRIES {
                return Reading::Value(by_owner);
            }
            // Does not follow links: a user could point one anywhere.
            if let Some(meta) = e.metadata().ok().filter(|m| m.uid() >= FIRST_USER) {
                let of = by_owner.entry(meta.uid()).or_default();
                of.files += 1;
                of.bytes = of.bytes.saturating_add(meta.blocks().saturating_mul(512));
            }
        }
    }
    Reading::Value(by_owner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lists_of_cpus() {
        assert_eq!(count_cpus("0-63,128-191\n"), Some(128));
        assert_eq!(count_cpus("0"), Some(1));
        for bad in ["", "a", "3-1", "0-4294967295,7"] {
            assert_eq!(count_cpus(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_process_name_cannot_forge_its_state() {
        let stat = b"42 (a) Z 1) R 1 42 42 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 7 0 1\n";
        assert_eq!(parse_stat(stat), Some(('R', 7)));
        assert_eq!(parse_stat(b"42 (a"), None);
    }

    #[test]
    fn this_systems_own_processes_are_seen() {
        let Reading::Value(p) = processes(Path::new("/proc")) else { panic!("no processes") };
        assert!(p.threads > 0 && p.threads_max.is_some());
    }

    proptest! {
        #[test]
        fn no_content_makes_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse_stat(&bytes);
            let _ = count_cpus(&String::from_utf8_lossy(&bytes));
        }
    }
}
