//! What several clusters on one machine share: TCP ports, PCI domains, and the switch that lets user space write to
//! the kernel log. All of it is kept in `/run/clustermax-sim` under one lock, one file a cluster; the last cluster
//! removes the folder and gives the switch its old value back.

use std::collections::{BTreeSet, HashSet};
use std::fs::{self, File};
use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::{Error, IoContext, Result};
use crate::process::{self, ProcessId};
use crate::{files, kmsg, sys};

/// The shared folder.
const FOLDER: &str = "/run/clustermax-sim";
/// Whether root's writes to the kernel log are kept: "on", "off" or "ratelimit" (10 lines in 5 seconds).
const PRINTK_DEVKMSG: &str = "/proc/sys/kernel/printk_devkmsg";
/// First PCI domain that may be taken. Real machines use low numbers, and Intel VMD 0x10000 and above.
pub const FIRST_DOMAIN: u32 = 0x1000;
/// Last PCI domain that may be taken.
pub const LAST_DOMAIN: u32 = 0xfffe;
/// Ports are taken from below the range from which the kernel serves outgoing connections (32768 and up).
const PORTS: std::ops::Range<u16> = 20_000..32_000;

/// What one cluster holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// The cluster's folder.
    pub dir: PathBuf,
    /// Boot in which it was made.
    pub boot_id: String,
    /// The process that made it; holds the lease until the cluster's state file exists.
    pub owner: ProcessId,
    /// PCI domain of the first node; node i has this plus i.
    pub first_domain: u32,
    /// Number of nodes.
    pub nodes: u32,
    /// TCP ports, slurmctld's first.
    pub ports: Vec<u16>,
}

impl Lease {
    /// The cluster's id, unique on this machine: its first PCI domain in hexadecimal.
    #[must_use]
    pub fn id(&self) -> String {
        format!("{:04x}", self.first_domain)
    }

    fn domains(&self) -> std::ops::Range<u32> {
        self.first_domain..self.first_domain + self.nodes
    }
}

/// The machine's book of clusters, locked for as long as this lives.
#[derive(Debug)]
pub struct Machine {
    folder: PathBuf,
    printk: PathBuf,
    _lock: File,
}

impl Machine {
    /// Opens and locks the book, waiting for others.
    ///
    /// # Errors
    /// When the folder cannot be created.
    pub fn lock() -> Result<Self> {
        Self::lock_at(Path::new(FOLDER), Path::new(PRINTK_DEVKMSG))
    }

    fn lock_at(folder: &Path, printk: &Path) -> Result<Self> {
        let path = folder.join("lock");
        loop {
            files::make_dir(folder, 0o755)?;
            let file =
                match fs::OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&path)
                {
                    Ok(file) => file,
                    // The last cluster removed the folder between the two calls.
                    Err(e) if e.kind() == std::io::ErrorKind::NotFound => continue,
                    Err(e) => return Err(e).context("open", &path),
                };
            while !sys::try_lock(&file).context("lock", &path)? {
                std::thread::sleep(Duration::from_millis(5));
            }
            // The last cluster may have removed the file while we waited for it.
            let current = fs::metadata(&path).map(|m| m.ino()).ok();
            if current == Some(file.metadata().context("read", &path)?.ino()) {
                return Ok(Self { folder: folder.to_owned(), printk: printk.to_owned(), _lock: file });
            }
        }
    }

    fn lease_path(&self, id: &str) -> PathBuf {
        self.folder.join(format!("{id}.json"))
    }

    /// The leases that are in force. Those of another boot, and those whose cluster and maker are both gone, are
    /// dropped from the book.
    ///
    /// # Errors
    /// When the folder cannot be read.
    pub fn leases(&self) -> Result<Vec<Lease>> {
        let boot = process::boot_id()?;
        let mut leases = Vec::new();
        for entry in fs::read_dir(&self.folder).context("read", &self.folder)?.flatten() {
            let path = entry.path();
            if path.extension().is_none_or(|e| e != "json") {
                continue;
            }
            let lease: Option<Lease> =
                fs::read_to_string(&path).ok().and_then(|t| serde_json::from_str(&t).ok());
            match lease {
                Some(l)
                    if l.boot_id == boot
                        && (l.owner.alive() || crate::state::names_cluster(&l.dir, &l.id())) =>
                {
                    leases.push(l);
                }
                _ => fs::remove_file(&path).context("remove", &path)?,
            }
        }
        Ok(leases)
    }

    /// Takes ports and PCI domains for a new cluster.
    ///
    /// # Errors
    /// When there are no free ports or domains left.
    pub fn take(&self, dir: &Path, nodes: u32) -> Result<Lease> {
        let leases = self.leases()?;
        let owner = ProcessId::of(std::process::id().cast_signed()).ok_or_else(|| {
            Error::System("/proc does not show this process; it must be mounted".to_owned())
        })?;
        let used: BTreeSet<u16> = leases.iter().flat_map(|l| l.ports.iter().copied()).collect();
        let ports =
            choose_ports(random()? as usize, nodes as usize + 1, |p| !used.contains(&p) && is_free(p))
                .ok_or_else(|| {
                    Error::System("no free TCP ports between 20000 and 31999 are left".to_owned())
                })?;
        let mut taken: HashSet<u32> = leases.iter().flat_map(Lease::domains).collect();
        // A domain that the ring still mentions belonged to a cluster before: its faults would be found again.
        // Where the ring cannot be read, no fault line can be found again either.
        let ring = kmsg::ring().unwrap_or_default();
        taken.extend(ring.iter().flat_map(|r| kmsg::domains_in(&r.text).collect::<Vec<_>>()));
        taken.extend(real_domains(Path::new("/sys/bus/pci/devices")));
        let first_domain = choose_domains(random()?, nodes, &taken).ok_or_else(|| {
            Error::System(format!("no {nodes} free PCI domains in a row are left between 1000 and fffe"))
        })?;
        let lease =
            Lease { dir: dir.to_owned(), boot_id: process::boot_id()?, owner, first_domain, nodes, ports };
        let text = serde_json::to_string(&lease).map_err(|e| Error::System(e.to_string()))?;
        files::write_atomic(&self.lease_path(&lease.id()), text.as_bytes(), 0o644)?;
        Ok(lease)
    }

    /// Lets user space write to the kernel log without a rate limit, keeping the value to restore. `Ok(false)` when
    /// this kernel does not allow it (fixed on its command line, or a container that hides the log).
    ///
    /// # Errors
    /// When the value to restore cannot be kept.
    pub fn open_kernel_log(&self) -> Result<bool> {
        let Ok(now) = fs::read_to_string(&self.printk) else { return Ok(false) };
        if kmsg::ring().is_err() {
            return Ok(false);
        }
        if now.trim() == "on" {
            return Ok(true);
        }
        files::write_atomic(&self.folder.join("printk_devkmsg"), now.as_bytes(), 0o600)?;
        Ok(fs::write(&self.printk, "on\n").is_ok())
    }

    /// Gives a lease back. The last one restores the kernel log's switch and removes the shared folder.
    ///
    /// # Errors
    /// When a file cannot be removed.
    pub fn give_back(self, id: &str) -> Result<()> {
        remove_if_there(&self.lease_path(id))?;
        if !self.leases()?.is_empty() {
            return Ok(());
        }
        let saved = self.folder.join("printk_devkmsg");
        if let Ok(value) = fs::read_to_string(&saved) {
            // Where it could not be switched on it need not be switched back.
            let _ = fs::write(&self.printk, value);
            remove_if_there(&saved)?;
        }
        remove_if_there(&self.folder.join("lock"))?;
        fs::remove_dir(&self.folder).context("remove", &self.folder)
    }
}

fn remove_if_there(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(e).context("remove", path),
        _ => Ok(()),
    }
}

/// A random number from the kernel.
fn random() -> Result<u32> {
    use std::io::Read;
    let path = Path::new("/dev/urandom");
    let mut bytes = [0; 4];
    File::open(path).and_then(|mut f| f.read_exact(&mut bytes)).context("read", path)?;
    Ok(u32::from_ne_bytes(bytes))
}

/// `count` consecutive free ports, searched from a place given by `seed`.
fn choose_ports(seed: usize, count: usize, free: impl Fn(u16) -> bool) -> Option<Vec<u16>> {
    let all: Vec<u16> = PORTS.collect();
    let last = all.len().checked_sub(count)?;
    (0..=last).map(|i| (seed + i * count.max(1)) % (last + 1)).find_map(|start| {
        let ports = &all[start..start + count];
        ports.iter().all(|p| free(*p)).then(|| ports.to_vec())
    })
}

/// Whether nothing listens on a port, on any address.
fn is_free(port: u16) -> bool {
    TcpListener::bind(("0.0.0.0", port)).is_ok()
}

/// First of `count` consecutive PCI domains that nobody has taken, searched from a place given by `seed`.
fn choose_domains(seed: u32, count: u32, taken: &HashSet<u32>) -> Option<u32> {
    let last = (LAST_DOMAIN + 1).checked_sub(count).filter(|l| *l >= FIRST_DOMAIN)?;
    let span = last - FIRST_DOMAIN + 1;
    (0..span)
        .map(|i| FIRST_DOMAIN + (seed % span + i) % span)
        .find(|first| (*first..first + count).all(|d| !taken.contains(&d)))
}

/// PCI domains of the machine's own devices.
fn real_domains(devices: &Path) -> Vec<u32> {
    let Ok(entries) = fs::read_dir(devices) else { return Vec::new() };
    entries
        .flatten()
        .filter_map(|e| u32::from_str_radix(e.file_name().to_str()?.split(':').next()?, 16).ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn domains_avoid_what_is_taken_and_stay_in_range() {
        let taken: HashSet<u32> =
            (FIRST_DOMAIN..=LAST_DOMAIN).filter(|d| *d != 0x2000 && *d != 0x2001).collect();
        assert_eq!(choose_domains(77, 2, &taken), Some(0x2000));
        assert_eq!(choose_domains(77, 3, &taken), None);
        assert_eq!(choose_domains(0, 70_000, &HashSet::new()), None);
        for seed in [0, 1, 12345, u32::MAX] {
            let first = choose_domains(seed, 64, &HashSet::new()).unwrap();
            assert!(first >= FIRST_DOMAIN && first + 63 <= LAST_DOMAIN);
        }
    }

    #[test]
    fn ports_are_consecutive_and_free() {
        let ports = choose_ports(5, 3, |p| p != 20_006).unwrap();
        assert_eq!(ports, [20_008, 20_009, 20_010]);
        assert_eq!(choose_ports(0, 3, |_| false), None);
        let held = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        assert!(!is_free(held.local_addr().unwrap().port()));
    }

    #[test]
    fn leases_do_not_overlap_and_the_last_restores_the_switch() {
        let root = tempfile::tempdir().unwrap();
        let (folder, printk) = (root.path().join("book"), root.path().join("printk"));
        fs::write(&printk, "ratelimit\n").unwrap();
        let machine = Machine::lock_at(&folder, &printk).unwrap();
        let one = machine.take(Path::new("/tmp/one"), 4).unwrap();
        assert!(machine.open_kernel_log().unwrap());
        drop(machine);
        let machine = Machine::lock_at(&folder, &printk).unwrap();
        assert!(machine.open_kernel_log().unwrap());
        let two = machine.take(Path::new("/tmp/two"), 4).unwrap();
        assert!(one.domains().all(|d| !two.domains().contains(&d)));
        assert!(one.ports.iter().all(|p| !two.ports.contains(p)));
        assert_eq!(one.ports.len(), 5);
        assert_eq!(machine.leases().unwrap().len(), 2);

        // A lease of another boot is dropped.
        let old = Lease { boot_id: "another".to_owned(), first_domain: 0x1000, ..one.clone() };
        fs::write(folder.join("1000.json"), serde_json::to_string(&old).unwrap()).unwrap();
        fs::write(folder.join("bad.json"), "{").unwrap();
        assert_eq!(machine.leases().unwrap().len(), 2);

        machine.give_back(&one.id()).unwrap();
        assert_eq!(fs::read_to_string(&printk).unwrap(), "on\n");
        Machine::lock_at(&folder, &printk).unwrap().give_back(&two.id()).unwrap();
        assert_eq!(fs::read_to_string(&printk).unwrap(), "ratelimit\n");
        assert!(!folder.exists());
    }
}
