//! The cluster's own part of the cgroup v1 hierarchies.
//!
//! Slurm's cgroup/v1 plug-in puts a node's jobs into `MOUNTPOINT/CONTROLLER/slurm_NODENAME`, so that two clusters
//! with equal node names would share folders. Here `MOUNTPOINT` is a folder of the cluster with one symbolic link a
//! controller, to `/sys/fs/cgroup/CONTROLLER/clustermax-sim-ID`: node names may repeat, and every process of the
//! cluster, daemons included, is found below one folder.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::error::{Error, IoContext, Result};
use crate::files;

/// Where distributions mount the hierarchies.
const ROOT: &str = "/sys/fs/cgroup";
/// The controllers that Slurm's proctrack/cgroup and task/cgroup need for what we configure.
const NEEDED: [&str; 2] = ["freezer", "devices"];
/// Linked too, when the machine has them: Slurm looks at them at start.
const OPTIONAL: [&str; 4] = ["cpuset", "memory", "cpuacct", "cpu"];

/// The cgroups of one cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterCgroups {
    root: PathBuf,
    name: String,
}

impl ClusterCgroups {
    /// The cgroups of cluster `id`, without looking whether they exist.
    #[must_use]
    pub fn of(id: &str) -> Self {
        Self { root: PathBuf::from(ROOT), name: format!("clustermax-sim-{id}") }
    }

    /// Whether this machine mounts the cgroup v1 controllers that are needed, writable.
    #[must_use]
    pub fn supported() -> bool {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        NEEDED.iter().all(|c| mounts_v1(&mounts, &format!("{ROOT}/{c}")))
    }

    fn folder(&self, controller: &str) -> PathBuf {
        self.root.join(controller).join(&self.name)
    }

    fn controllers(&self) -> impl Iterator<Item = &'static str> + '_ {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        NEEDED.into_iter().chain(OPTIONAL).filter(move |c| mounts_v1(&mounts, &format!("{ROOT}/{c}")))
    }

    /// Creates the folders and, in `mountpoint`, the links to them that Slurm is pointed at.
    ///
    /// # Errors
    /// When a folder cannot be created.
    pub fn create(&self, mountpoint: &Path) -> Result<()> {
        files::make_dir(mountpoint, 0o755)?;
        for controller in self.controllers() {
            let folder = self.folder(controller);
            fs::create_dir_all(&folder).context("create", &folder)?;
            if controller == "cpuset" {
                // A new cpuset is empty, and nothing can join it before it has processors and memory.
                for file in ["cpuset.cpus", "cpuset.mems"] {
                    let (from, to) = (self.root.join(controller).join(file), folder.join(file));
                    fs::write(&to, files::read(&from)?).context("write", &to)?;
                }
            }
            let link = mountpoint.join(controller);
            std::os::unix::fs::symlink(&folder, &link).context("create", &link)?;
        }
        let daemons = self.folder("freezer").join("daemons");
        fs::create_dir_all(&daemons).context("create", &daemons)
    }

    /// Opens the membership file of the daemons' cgroup.
    ///
    /// # Errors
    /// When it does not exist.
    pub(crate) fn open_daemons(&self) -> Result<File> {
        let path = self.folder("freezer").join("daemons/cgroup.procs");
        File::options().write(true).open(&path).context("open", &path)
    }

    /// Pids of every process in any of the cluster's cgroups.
    pub(crate) fn members(&self) -> Vec<i32> {
        let mut pids = Vec::new();
        for controller in NEEDED.into_iter().chain(OPTIONAL) {
            walk(&self.folder(controller), &mut |folder| {
                let procs = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
                pids.extend(procs.lines().filter_map(|l| l.trim().parse::<i32>().ok()));
                // A frozen (suspended) job cannot act on a signal.
                if controller == "freezer" {
                    let _ = fs::write(folder.join("freezer.state"), "THAWED");
                }
            });
        }
        pids.sort_unstable();
        pids.dedup();
        pids
    }

    /// Removes the folders; processes must have ended before.
    ///
    /// # Errors
    /// Names the folder that stayed busy for two seconds.
    pub fn remove(&self) -> Result<()> {
        let deadline = Instant::now() + Duration::from_secs(2);
        loop {
            let mut busy = None;
            for controller in NEEDED.into_iter().chain(OPTIONAL) {
                walk(&self.folder(controller), &mut |folder| {
                    if let Err(e) = fs::remove_dir(folder)
                        && e.kind() != std::io::ErrorKind::NotFound
                    {
                        busy = Some((folder.to_owned(), e));
                    }
                });
            }
            match busy {
                None => return Ok(()),
                // The kernel lets go of a cgroup a moment after its last process is gone.
                Some(_) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(20)),
                Some((path, source)) => return Err(Error::Io { action: "remove", path, source }),
            }
        }
    }

    /// Whether any folder of the cluster exists.
    #[must_use]
    pub fn exists(&self) -> bool {
        NEEDED.into_iter().chain(OPTIONAL).any(|c| self.folder(c).exists())
    }
}

/// Calls `visit` for every folder below `folder` and then for itself.
fn walk(folder: &Path, visit: &mut impl FnMut(&Path)) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        if entry.file_type().is_ok_and(|t| t.is_dir()) {
            walk(&entry.path(), visit);
        }
    }
    visit(folder);
}

/// Whether `mounts` (as `/proc/self/mounts`) has a writable cgroup v1 hierarchy at `path`.
fn mounts_v1(mounts: &str, path: &str) -> bool {
    mounts.lines().any(|line| {
        let fields: Vec<&str> = line.split(' ').collect();
        matches!(fields[..], [_, at, "cgroup", options, ..] if at == path && options.split(',').any(|o| o == "rw"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_writable_v1_mounts_count() {
        let mounts = "cgroup /sys/fs/cgroup/devices cgroup rw,relatime,devices 0 0\n\
                      cgroup /sys/fs/cgroup/freezer cgroup ro,relatime,freezer 0 0\n\
                      cgroup2 /sys/fs/cgroup/unified cgroup2 rw,relatime 0 0\n";
        assert!(mounts_v1(mounts, "/sys/fs/cgroup/devices"));
        assert!(!mounts_v1(mounts, "/sys/fs/cgroup/freezer"));
        assert!(!mounts_v1(mounts, "/sys/fs/cgroup/unified"));
    }
}
