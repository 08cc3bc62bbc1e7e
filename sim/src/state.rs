//! What a cluster's folder holds and where, and the record of what runs.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use nvidia_ml_sim::model::GpuModel;
use serde::{Deserialize, Serialize};

use crate::error::{Error, IoContext, Result};
use crate::machine::Lease;
use crate::process::{self, ProcessId};
use crate::root::{Entrance, SlurmRoot};
use crate::{files, product, slurm, sys};

/// How long a command waits for another one on the same folder.
const LOCK_WAIT: Duration = Duration::from_secs(3);
/// Written into every state file; a folder without it is not ours to remove.
pub const SCHEMA: &str = "clustermax-sim/1";

/// Paths inside a cluster's folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// The cluster's folder, absolute.
    pub dir: PathBuf,
}

impl Layout {
    /// The record of what runs, which also marks the folder as ours.
    #[must_use]
    pub fn state(&self) -> PathBuf {
        self.dir.join("cluster.json")
    }
    /// Configuration files of Slurm and of the product.
    #[must_use]
    pub fn etc(&self) -> PathBuf {
        self.dir.join("etc")
    }
    /// Slurm's configuration, the value of `SLURM_CONF`.
    #[must_use]
    pub fn slurm_conf(&self) -> PathBuf {
        self.etc().join("slurm.conf")
    }
    /// The product's configuration.
    #[must_use]
    pub fn clustermax_toml(&self) -> PathBuf {
        self.etc().join("clustermax.toml")
    }
    /// Logs of the daemons.
    #[must_use]
    pub fn log(&self) -> PathBuf {
        self.dir.join("log")
    }
    /// Sockets and pid files.
    #[must_use]
    pub fn run(&self) -> PathBuf {
        self.dir.join("run")
    }
    /// Munge's socket.
    #[must_use]
    pub fn munge_socket(&self) -> PathBuf {
        self.run().join("munge.sock")
    }
    /// State of slurmctld and munged, and slurmd's spool folders.
    #[must_use]
    pub fn var(&self) -> PathBuf {
        self.dir.join("var")
    }
    /// Libraries that the nodes share: the simulated NVML and the SPANK plug-in.
    #[must_use]
    pub fn lib(&self) -> PathBuf {
        self.dir.join("lib")
    }
    /// The links that Slurm takes for the mount points of the cgroup hierarchies.
    #[must_use]
    pub fn cgroup(&self) -> PathBuf {
        self.dir.join("cgroup")
    }
    /// One node's folder.
    #[must_use]
    pub fn node(&self, name: &str) -> NodeLayout {
        NodeLayout { dir: self.dir.join("nodes").join(name) }
    }
}

/// Paths inside one node's folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeLayout {
    /// The node's folder.
    pub dir: PathBuf,
}

impl NodeLayout {
    /// Stands for `/sys`.
    #[must_use]
    pub fn sys(&self) -> PathBuf {
        self.dir.join("sys")
    }
    /// Stands for `/dev`.
    #[must_use]
    pub fn dev(&self) -> PathBuf {
        self.dir.join("dev")
    }
    /// Health page of the second NVMe controller, there while it has something to say.
    #[must_use]
    pub fn health_page(&self) -> PathBuf {
        self.dev().join("nvme1")
    }
    /// Raw records of kernel lines that name no device.
    #[must_use]
    pub fn kmsg(&self) -> PathBuf {
        self.dir.join("kmsg")
    }
    /// The simulated NVML; it reads `gpus.toml` beside it.
    #[must_use]
    pub fn nvml(&self) -> PathBuf {
        self.dir.join("libnvidia-ml.so.1")
    }
    /// The node's GPUs, changed by faults.
    #[must_use]
    pub fn gpus(&self) -> PathBuf {
        self.dir.join("gpus.toml")
    }
    /// The node's GPUs as they were made.
    #[must_use]
    pub fn gpus_healthy(&self) -> PathBuf {
        self.dir.join("gpus.healthy.toml")
    }
    /// The faults injected since the last `clear`.
    #[must_use]
    pub fn faults(&self) -> PathBuf {
        self.dir.join("faults.json")
    }
    /// The product's run folder.
    #[must_use]
    pub fn run(&self) -> PathBuf {
        self.dir.join("run")
    }
    /// The product's state folder.
    #[must_use]
    pub fn state(&self) -> PathBuf {
        self.dir.join("state")
    }
}

/// What was asked of `up`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Options {
    /// Number of nodes, 1 to 128.
    pub nodes: u32,
    /// GPUs a node, 0 to 16.
    pub gpus: u32,
    /// GPU model's name on the command line.
    pub model: String,
    /// InfiniBand ports a node, 0 to 16.
    pub ib_ports: u32,
    /// Folder of the product's programs.
    pub prefix: PathBuf,
    /// `observe` or `enforce`.
    pub enforcement: String,
    /// HealthCheckInterval, seconds.
    pub health_interval: u32,
    /// `clustermax-healthcheck watch` runs on every node.
    #[serde(default)]
    pub watch: bool,
    /// The slurmds have no slurm.conf: they fetch it from slurmctld.
    #[serde(default)]
    pub configless: bool,
    /// Slurm alone: Prolog and Epilog are `/bin/true`, no HealthCheckProgram, no plug-in.
    pub plain: bool,
    /// Do without cgroups even where the machine has them.
    pub no_cgroups: bool,
    /// MessageTimeout, seconds.
    pub message_timeout: u32,
    /// Longest time until every node is idle, seconds.
    pub wait: u32,
    /// Folder with a whole system whose Slurm is used in place of this machine's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slurm_root: Option<PathBuf>,
}

/// Where a cluster stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// `up` has not ended.
    Starting,
    /// Every node was idle.
    Up,
}

/// A daemon that was started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Daemon {
    /// `munged`, `slurmctld`, `slurmd-NODE`, or `watch-NODE`.
    pub name: String,
    /// Its process.
    #[serde(flatten)]
    pub process: ProcessId,
}

/// The record of a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// [`SCHEMA`].
    pub schema: String,
    /// Unique among the clusters of this machine.
    pub id: String,
    /// Boot in which the pids mean something.
    pub boot_id: String,
    /// Where it stands.
    pub phase: Phase,
    /// What was asked.
    pub options: Options,
    /// PCI domain of the first node.
    pub first_domain: u32,
    /// TCP ports, slurmctld's first, then one a node.
    pub ports: Vec<u16>,
    /// Whether jobs are held by real cgroups.
    pub cgroups: bool,
    /// Whether fault lines can be written to the real kernel log.
    pub kernel_log: bool,
    /// Every daemon started.
    pub daemons: Vec<Daemon>,
    /// Release of the Slurm in [`Options::slurm_root`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slurm_release: Option<String>,
}

impl State {
    /// A new record for a lease.
    #[must_use]
    pub fn new(options: Options, lease: &Lease, cgroups: bool) -> Self {
        Self {
            schema: SCHEMA.to_owned(),
            id: lease.id(),
            boot_id: lease.boot_id.clone(),
            phase: Phase::Starting,
            options,
            first_domain: lease.first_domain,
            ports: lease.ports.clone(),
            cgroups,
            kernel_log: false,
            daemons: Vec::new(),
            slurm_release: None,
        }
    }

    /// The folder whose Slurm is used, when it is not this machine's.
    ///
    /// # Errors
    /// When it is gone.
    pub fn slurm_root(&self) -> Result<Option<SlurmRoot>> {
        self.options.slurm_root.as_deref().map(SlurmRoot::at).transpose()
    }

    /// The way into that folder, with everything of the cluster visible.
    ///
    /// # Errors
    /// When a mount point cannot be made.
    pub fn entrance(&self, layout: &Layout) -> Result<Option<Entrance>> {
        let Some(root) = self.slurm_root()? else { return Ok(None) };
        let prefix = &self.options.prefix;
        // What is bound to a release may lie beside the other programs.
        let bound = self.slurm_release.as_deref().map(|r| product::release_folder(prefix, r));
        let bound = bound.filter(|f| f.is_dir());
        let mut visible: Vec<&Path> = vec![&layout.dir, prefix];
        visible.extend(bound.as_deref());
        root.entrance(&visible).map(Some)
    }

    /// A command of Slurm's or munge's release in use, with `folder` as its working directory.
    ///
    /// # Errors
    /// When it is not installed.
    pub fn slurm_command(&self, layout: &Layout, name: &str, folder: &Path) -> Result<Command> {
        if let Some(root) = self.slurm_root()? {
            let mut command = Command::new(root.program(name)?);
            if let Some(entrance) = self.entrance(layout)? {
                entrance.before_exec(&mut command, folder)?;
            }
            return Ok(command);
        }
        let mut command = Command::new(slurm::program(name)?);
        command.current_dir(folder);
        Ok(command)
    }

    /// Reads a folder's record; `Ok(None)` when it has none.
    ///
    /// # Errors
    /// When the record cannot be read or is not one.
    pub fn load(layout: &Layout) -> Result<Option<Self>> {
        let path = layout.state();
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(e)
                if matches!(e.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory) =>
            {
                return Ok(None);
            }
            Err(e) => return Err(e).context("read", &path),
        };
        let malformed = |detail: String| Error::Malformed {
            path: path.clone(),
            what: "the record of a simulated cluster",
            detail,
        };
        let state: Self = serde_json::from_str(&text).map_err(|e| malformed(e.to_string()))?;
        if state.schema != SCHEMA {
            return Err(malformed(format!(
                "its schema is \"{}\", this program knows \"{SCHEMA}\"",
                state.schema
            )));
        }
        Ok(Some(state))
    }

    /// Writes the record.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn save(&self, layout: &Layout) -> Result<()> {
        let text = serde_json::to_string_pretty(self).map_err(|e| Error::System(e.to_string()))?;
        files::write_atomic(&layout.state(), text.as_bytes(), 0o644)
    }

    /// `ClusterName` of slurm.conf: unique on this machine, lower-case as Slurm wants it.
    #[must_use]
    pub fn cluster_name(&self) -> String {
        format!("sim{}", self.id)
    }

    /// Names of the nodes.
    #[must_use]
    pub fn node_names(&self) -> Vec<String> {
        (1..=self.options.nodes).map(|n| format!("n{n}")).collect()
    }

    /// Zero-based number of a node given as its name (`n2`) or its number (`2`).
    ///
    /// # Errors
    /// Names the nodes there are.
    pub fn node_index(&self, node: &str) -> Result<u32> {
        node.strip_prefix('n')
            .unwrap_or(node)
            .parse::<u32>()
            .ok()
            .filter(|n| (1..=self.options.nodes).contains(n))
            .map(|n| n - 1)
            .ok_or_else(|| {
                let last = self.options.nodes;
                Error::Usage(format!("there is no node \"{node}\"; this cluster has n1 to n{last}"))
            })
    }

    /// PCI domain of a node.
    #[must_use]
    pub fn domain(&self, node_index: u32) -> u32 {
        self.first_domain + node_index
    }

    /// The GPU model; the default when the record names one that this release does not know.
    #[must_use]
    pub fn model(&self) -> GpuModel {
        self.options.model.parse().unwrap_or_default()
    }

    /// The recorded daemons, as far as their pids mean anything in this boot.
    ///
    /// # Errors
    /// When `/proc` cannot be read.
    pub fn daemons_of_this_boot(&self) -> Result<Vec<ProcessId>> {
        let now = process::boot_id()?;
        Ok(if self.boot_id == now { self.daemons.iter().map(|d| d.process).collect() } else { Vec::new() })
    }
}

/// Whether `dir` holds the record of cluster `id`.
pub(crate) fn names_cluster(dir: &Path, id: &str) -> bool {
    State::load(&Layout { dir: dir.to_owned() }).ok().flatten().is_some_and(|s| s.id == id)
}

/// Exclusive use of a cluster's folder, by a lock on the folder itself.
#[derive(Debug)]
pub(crate) struct FolderLock {
    _file: File,
}

impl FolderLock {
    /// Locks `dir`; `Ok(None)` when there is no such folder. Waits a few seconds: `inject` and `clear` hold the lock
    /// for moments, and after a killed `up` a child that it was just starting still does.
    ///
    /// # Errors
    /// [`Error::Busy`] when another command keeps it.
    pub fn take(dir: &Path) -> Result<Option<Self>> {
        let file = match File::open(dir) {
            Ok(file) => file,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(e).context("open", dir),
        };
        let deadline = Instant::now() + LOCK_WAIT;
        while !sys::try_lock(&file).context("lock", dir)? {
            if Instant::now() > deadline {
                return Err(Error::Busy(dir.to_owned()));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        // A `down` may have removed the folder, and an `up` made a new one, between the two calls.
        let same = fs::metadata(dir).is_ok_and(|now| file.metadata().is_ok_and(|m| m.ino() == now.ino()));
        if same { Ok(Some(Self { _file: file })) } else { Err(Error::Busy(dir.to_owned())) }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn options() -> Options {
        Options {
            nodes: 4,
            gpus: 8,
            model: "h100-sxm".to_owned(),
            ib_ports: 8,
            prefix: PathBuf::from("/opt/clustermax"),
            enforcement: "enforce".to_owned(),
            health_interval: 5,
            watch: false,
            configless: false,
            plain: false,
            no_cgroups: false,
            message_timeout: 10,
            wait: 90,
            slurm_root: None,
        }
    }

    pub(crate) fn state() -> State {
        let lease = Lease {
            dir: PathBuf::from("/var/lib/clustermax-sim/default"),
            boot_id: "boot".to_owned(),
            owner: ProcessId { pid: 2, start: 3 },
            first_domain: 0x3a1c,
            nodes: 4,
            ports: vec![20_000, 20_001, 20_002, 20_003, 20_004],
        };
        State::new(options(), &lease, true)
    }

    #[test]
    fn record_survives_a_round_trip_and_marks_the_folder() {
        let folder = tempfile::tempdir().unwrap();
        let layout = Layout { dir: folder.path().to_owned() };
        assert_eq!(State::load(&layout).unwrap(), None);
        let state = state();
        state.save(&layout).unwrap();
        assert_eq!(State::load(&layout).unwrap(), Some(state));
        assert!(names_cluster(folder.path(), "3a1c"));
        assert!(!names_cluster(folder.path(), "3a1d"));
        fs::write(layout.state(), "{\"schema\":1}").unwrap();
        let error = State::load(&layout).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        assert!(error.to_string().contains("cluster.json"), "{error}");
    }

    #[test]
    fn nodes_by_name_or_number() {
        let state = state();
        assert_eq!(state.node_index("n2").unwrap(), 1);
        assert_eq!(state.node_index("4").unwrap(), 3);
        for wrong in ["0", "5", "n", "x1", "nn1", ""] {
            assert!(state.node_index(wrong).unwrap_err().to_string().contains("n1 to n4"), "{wrong}");
        }
    }

    #[test]
    fn pids_of_another_boot_are_nobody() {
        let mut state = state();
        state.daemons.push(Daemon { name: "munged".to_owned(), process: ProcessId { pid: 1, start: 0 } });
        assert!(state.daemons_of_this_boot().unwrap().is_empty());
    }

    #[test]
    fn a_locked_folder_is_busy() {
        let folder = tempfile::tempdir().unwrap();
        let lock = FolderLock::take(folder.path()).unwrap();
        assert!(lock.is_some());
        assert!(matches!(FolderLock::take(folder.path()), Err(Error::Busy(_))));
        drop(lock);
        assert!(FolderLock::take(folder.path()).unwrap().is_some());
        assert!(FolderLock::take(&folder.path().join("absent")).unwrap().is_none());
    }
}
