//! The parts of a node's tree beside GPUs and InfiniBand: memory controllers, NVMe disks, a mirror; and counters that rise.

use std::path::{Path, PathBuf};

use nvidia_ml_sim::model::PciAddress;

use super::SysfsTree;
use crate::error::{IoContext, Result};
use crate::files;

/// NVMe controllers of a node.
pub const NVME_COUNT: u32 = 2;

impl SysfsTree {
    /// Writes a healthy host: a memory controller, two NVMe disks and a mirror of them.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn write_host(&self) -> Result<()> {
        for (path, value) in [
            (self.edac("ce_count"), "3"),
            (self.edac("ue_count"), "0"),
            (self.nvme(0), "live"),
            (self.nvme(1), "live"),
            (self.raid("level"), "raid1"),
            (self.raid("array_state"), "active"),
            (self.raid("degraded"), "0"),
        ] {
            self.put(&path, value)?;
        }
        Ok(())
    }

    /// Writes a file whose folder may not be there yet.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn put(&self, path: &Path, value: &str) -> Result<()> {
        if let Some(folder) = path.parent() {
            files::make_dir(folder, 0o755)?;
        }
        Self::write(path, value)
    }

    /// A file of the memory controller.
    #[must_use]
    pub fn edac(&self, file: &str) -> PathBuf {
        self.root.join("devices/system/edac/mc/mc0").join(file)
    }

    /// State of an NVMe controller.
    #[must_use]
    pub fn nvme(&self, number: u32) -> PathBuf {
        self.root.join(format!("class/nvme/nvme{number}/state"))
    }

    /// A file of the mirror.
    #[must_use]
    pub fn raid(&self, file: &str) -> PathBuf {
        self.root.join("block/md0/md").join(file)
    }

    /// A file of a network interface.
    #[must_use]
    pub fn net(&self, interface: &str, file: &str) -> PathBuf {
        self.root.join("class/net").join(interface).join(file)
    }

    /// Lets a counter rise, up to a top at which it sticks.
    ///
    /// # Errors
    /// When it cannot be read or written.
    pub fn rise(&self, path: &Path, by: u64, top: u64) -> Result<()> {
        let now: u64 = files::read(path)?.trim().parse().unwrap_or(0);
        Self::write(path, &now.saturating_add(by).min(top).to_string())
    }

    /// Lets the total of a function's AER file rise.
    ///
    /// # Errors
    /// When it cannot be read or written.
    pub fn aer_rise(&self, address: PciAddress, kind: &str, by: u64) -> Result<()> {
        let path = self.pci(address).join(format!("aer_dev_{kind}"));
        let text = std::fs::read_to_string(&path).context("read", &path)?;
        let lines: Vec<String> = text
            .trim_end()
            .lines()
            .map(|line| match line.rsplit_once(' ') {
                Some((name, count)) if name.starts_with("TOTAL_ERR") => {
                    format!("{name} {}", count.parse::<u64>().unwrap_or(0).saturating_add(by))
                }
                _ => line.to_owned(),
            })
            .collect();
        Self::write(&path, &lines.join("\n"))
    }
}
