//! Configuration of every node program: one TOML file, see `docs/interfaces.md`.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::catalogue::CATALOGUE;
use crate::mode::Mode;
use crate::verdict::Action;

mod dcgm;
mod gpu;
mod jobs;
mod operate;
mod trust;

pub use dcgm::DcgmConfig;
pub use gpu::{AmdProfile, FirmwareProfile, GpuProfile};
pub use jobs::JobFiles;
pub use operate::{Brake, Enforce, GiveBack, Notify, Rack, RackDomain, RackPolicy};

/// Where the configuration lies unless `--config` says otherwise.
pub const DEFAULT_CONFIG: &str = "/etc/clustermax/clustermax.toml";

/// Why a configuration cannot be used. Each is one sentence that names the file and the mend.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file is not there.
    #[error(
        "{0} does not exist: write it (an empty file means all defaults, in observe), or name another with --config"
    )]
    Missing(PathBuf),
    /// The file cannot be read.
    #[error("{path} cannot be read: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// Somebody else could have written it.
    #[error(
        "{path} {what}: run `chown {owner} {path}; chmod go-w {path}`, since its content decides what root runs"
    )]
    Unsafe {
        /// File or folder.
        path: PathBuf,
        /// What is wrong.
        what: String,
        /// Who should own it.
        owner: u32,
    },
    /// Not TOML, or a key, type or value that does not fit.
    #[error("{path}{line}: {message}")]
    Invalid {
        /// The file.
        path: PathBuf,
        /// `, line N`, or empty.
        line: String,
        /// What is wrong and the mend.
        message: String,
    },
}

/// Whether faults may drain nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Enforcement {
    /// Report only; nothing of ours ever drains a node.
    #[default]
    Observe,
    /// Faults with a drain rule drain the node.
    Enforce,
}

impl Enforcement {
    /// The word used in files.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Enforcement::Observe => "observe",
            Enforcement::Enforce => "enforce",
        }
    }
}

/// The whole file.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// `observe` (default) or `enforce`.
    pub enforcement: Enforcement,
    /// Where `enforce` holds.
    pub enforce: Enforce,
    /// Where things lie.
    pub paths: Paths,
    /// How Slurm is reached.
    pub slurm: Slurm,
    /// Time limits.
    pub deadlines: Deadlines,
    /// Limit on our own drains.
    pub brake: Brake,
    /// Giving nodes back by ourselves.
    #[serde(rename = "return")]
    pub give_back: GiveBack,
    /// A command that tells the operators.
    pub notify: Notify,
    /// Rack-scale domains.
    pub rack: Rack,
    /// Kernel-log policy.
    pub xid: XidPolicy,
    /// The resident mode.
    pub watch: Watch,
    /// DCGM.
    pub dcgm: DcgmConfig,
    /// Prometheus metrics.
    pub metrics: Metrics,
    /// Files of finished jobs.
    pub jobs: JobFiles,
    /// Switches per check id.
    pub checks: BTreeMap<String, CheckSwitch>,
    /// Site checks.
    pub command: Vec<SiteCommand>,
    /// What this node should have.
    pub profile: Profile,
    /// Slurm's name of this node; not a key of the file.
    #[serde(skip)]
    pub node: String,
    /// First 8 hex digits of the file's SHA-256; not a key of the file.
    #[serde(skip)]
    pub hash: String,
    /// The file itself; not a key of the file.
    #[serde(skip)]
    pub file: PathBuf,
}

/// Where things lie. `%n` becomes the node's name.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Paths {
    /// sysfs.
    pub sysfs: PathBuf,
    /// procfs.
    pub procfs: PathBuf,
    /// Device nodes.
    pub dev: PathBuf,
    /// The kernel log device.
    pub kmsg: PathBuf,
    /// Further files of raw kernel-log records.
    pub kmsg_files: Vec<PathBuf>,
    /// Other nodes write to `kmsg` too (several slurmd on one host, containers, simulation): a line about the host that
    /// names no device of this node never drains it.
    pub kmsg_shared: bool,
    /// NVML library: a path, or a name for the dynamic linker.
    pub nvml: PathBuf,
    /// CUDA's driver library, likewise.
    pub cuda: PathBuf,
    /// `nvidia-imex-ctl`.
    pub imex_ctl: PathBuf,
    /// `dcgmi`; asked where it is there.
    pub dcgmi: PathBuf,
    /// World-readable run-time folder.
    pub run_dir: PathBuf,
    /// Root's state folder.
    pub state_dir: PathBuf,
    /// `clustermax-drain`.
    pub drain: PathBuf,
}

impl Default for Paths {
    fn default() -> Self {
        Paths {
            sysfs: "/sys".into(),
            procfs: "/proc".into(),
            dev: "/dev".into(),
            kmsg: "/dev/kmsg".into(),
            kmsg_files: Vec::new(),
            kmsg_shared: false,
            nvml: "libnvidia-ml.so.1".into(),
            cuda: "libcuda.so.1".into(),
            imex_ctl: "/usr/bin/nvidia-imex-ctl".into(),
            dcgmi: "/usr/bin/dcgmi".into(),
            run_dir: "/run/clustermax".into(),
            state_dir: "/var/lib/clustermax".into(),
            drain: "/usr/libexec/clustermax/clustermax-drain".into(),
        }
    }
}

/// How Slurm is reached.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Slurm {
    /// Exported to `clustermax-drain` as `SLURM_CONF`.
    pub conf: PathBuf,
    /// Used when libslurm is of another release.
    pub scontrol: PathBuf,
}

impl Default for Slurm {
    fn default() -> Self {
        Slurm { conf: "/etc/slurm/slurm.conf".into(), scontrol: "/usr/bin/scontrol".into() }
    }
}

/// Time limits in milliseconds, each in 1..=60000.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Deadlines {
    /// One source.
    pub source: u64,
    /// A whole prolog or epilog, drain included. Slurm says "Prolog hung" after MessageTimeout (10 s).
    pub prolog: u64,
    /// A whole HealthCheckProgram run; slurmd kills it at 60 s.
    pub periodic: u64,
    /// One call of `clustermax-drain`.
    pub drain: u64,
}

impl Default for Deadlines {
    fn default() -> Self {
        Deadlines { source: 5000, prolog: 7500, periodic: 20_000, drain: 2500 }
    }
}

impl Deadlines {
    /// Limit of a whole pass.
    #[must_use]
    pub fn pass(&self, mode: Mode) -> Duration {
        Duration::from_millis(match mode {
            Mode::Prolog | Mode::Epilog => self.prolog,
            Mode::Periodic | Mode::Deep | Mode::Audit => self.periodic,
        })
    }

    /// Limit of all sources of a pass: a hanging one must leave time to stop its child, to decide and to drain.
    #[must_use]
    pub fn sources(&self, mode: Mode) -> Duration {
        let rest = self.pass(mode).saturating_sub(self.drain() + Duration::from_millis(500));
        rest.max(Duration::from_millis(100))
    }

    /// Limit of one source in a pass of this mode.
    #[must_use]
    pub fn source(&self, mode: Mode) -> Duration {
        Duration::from_millis(self.source).min(self.sources(mode))
    }

    /// Limit of one drain call.
    #[must_use]
    pub fn drain(&self) -> Duration {
        Duration::from_millis(self.drain)
    }
}

/// Kernel-log policy.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct XidPolicy {
    /// Records that root wrote to /dev/kmsg from user space count.
    pub accept_synthetic: bool,
}

impl Default for XidPolicy {
    fn default() -> Self {
        XidPolicy { accept_synthetic: true }
    }
}

/// The resident mode.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Watch {
    /// Seconds between timed passes, in 1..=25: a prolog goes by a verdict of at most 30 s.
    pub interval: u64,
}

impl Default for Watch {
    fn default() -> Self {
        Watch { interval: 25 }
    }
}

/// Prometheus metrics.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Metrics {
    /// File for node_exporter's textfile collector, absolute, ending in `.prom`; none is written without it.
    pub textfile: Option<PathBuf>,
}

/// Switch of one check.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CheckSwitch {
    /// on, observe or off.
    pub state: Switch,
}

/// State of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Switch {
    /// Reported, drains by its rule.
    #[default]
    On,
    /// Reported, never drains.
    Observe,
    /// Not run.
    Off,
}

/// A site check with Nagios exit codes.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SiteCommand {
    /// The check's id becomes `site.NAME`.
    pub name: String,
    /// Token of at most 10 characters for reasons.
    pub token: String,
    /// Program, absolute, owned by root, not writable by others.
    pub path: PathBuf,
    /// Its arguments.
    #[serde(default)]
    pub args: Vec<String>,
    /// Limit in milliseconds.
    #[serde(default = "default_command_timeout")]
    pub timeout: u64,
    /// What mends a critical result.
    #[serde(default = "default_command_action")]
    pub action: Action,
    /// Modes in which it runs.
    #[serde(default = "default_command_modes")]
    pub modes: Vec<Mode>,
}

fn default_command_timeout() -> u64 {
    3000
}
fn default_command_action() -> Action {
    Action::Repair
}
fn default_command_modes() -> Vec<Mode> {
    vec![Mode::Periodic]
}

/// What a node should have: learned on a good node, reviewed, kept in the configuration.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Profile {
    /// Product name as NVML gives it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_model: Option<String>,
    /// Number of GPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_count: Option<u32>,
    /// Active NVLinks of each GPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nvlinks_per_gpu: Option<u32>,
    /// PCIe lanes of each GPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pcie_width: Option<u32>,
    /// MemTotal in KiB; less than 99 % of it is a fault.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_total_kib: Option<u64>,
    /// Fastest PCIe link of GPUs and the ports above them, GT/s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pcie_speed_gts: Option<f64>,
    /// Number of NVMe controllers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nvme_count: Option<u32>,
    /// CPUs online.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_count: Option<u32>,
    /// Scaling governor of all CPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_governor: Option<String>,
    /// Clock source of the kernel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clocksource: Option<String>,
    /// Partition keys that every InfiniBand port must have.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ib_pkeys: Vec<u16>,
    /// Firmware of all InfiniBand cards.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ib_firmware: Option<String>,
    /// Kernel modules; `a|b` asks for one of both.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub modules: Vec<String>,
    /// systemd units that must be active.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub services: Vec<String>,
    /// Users without a job here have no business on the node.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub users_need_jobs: bool,
    /// How the GPUs should be set up.
    #[serde(skip_serializing_if = "GpuProfile::is_empty")]
    pub gpu: GpuProfile,
    /// AMD GPUs.
    #[serde(skip_serializing_if = "AmdProfile::is_empty")]
    pub amd: AmdProfile,
    /// Network interfaces.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub net_port: Vec<NetPortProfile>,
    /// InfiniBand or RoCE ports.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ib_port: Vec<IbPortProfile>,
    /// Mounts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mount: Vec<MountProfile>,
    /// Local file systems whose space is watched.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub space: Vec<SpaceProfile>,
}

/// One InfiniBand or RoCE port.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IbPortProfile {
    /// `mlx5_0`.
    pub device: String,
    /// Port number.
    pub port: u32,
    /// Least rate in Gb/s.
    pub rate_gbps: f64,
}

/// One network interface.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NetPortProfile {
    /// Name, `eth0` or `bond0`.
    pub name: String,
    /// Mb/s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speed_mbps: Option<u32>,
    /// Largest packet, bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
}

/// One mount.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MountProfile {
    /// Mount point.
    pub path: PathBuf,
    /// File system type, if it matters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fstype: Option<String>,
    /// Must be mounted read-write.
    #[serde(default = "yes")]
    pub writable: bool,
    /// On the network: probed in a child with a deadline.
    #[serde(default)]
    pub network: bool,
}

fn yes() -> bool {
    true
}

/// One local file system whose space is watched.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SpaceProfile {
    /// Any path on it.
    pub path: PathBuf,
    /// Warn above, in percent of blocks or inodes used.
    #[serde(default = "warn_percent")]
    pub warn_percent: f64,
    /// Fail above.
    #[serde(default = "fail_percent")]
    pub fail_percent: f64,
}

fn warn_percent() -> f64 {
    85.0
}
fn fail_percent() -> f64 {
    95.0
}

impl Config {
    /// Reads and checks the file, and fills `%n` with the node's name.
    ///
    /// # Errors
    /// [`ConfigError`]: missing, unreadable, writable by others, not TOML, unknown key, value out of range.
    pub fn load(path: &Path, node: &str) -> Result<Config, ConfigError> {
        let text = read_trusted(path)?;
        let mut config = Config::parse(&text, path)?;
        config.node = node.to_string();
        config.hash = Sha256::digest(text.as_bytes()).iter().take(4).map(|b| format!("{b:02x}")).collect();
        config.file = path.to_path_buf();
        config.expand();
        for command in &config.command {
            check_trusted(&command.path, false)?;
        }
        check_trusted(&config.paths.dcgmi, false)?;
        if let Some(path) = &config.notify.path {
            check_trusted(path, false)?;
        }
        if config.profile.gpu.imex {
            check_trusted(&config.paths.imex_ctl, false)?;
        }
        Ok(config)
    }

    /// What holds where there is no file.
    ///
    /// # Errors
    /// [`ConfigError::Unsafe`]: a program that it names could have been written by somebody else.
    pub fn defaults(node: &str) -> Result<Config, ConfigError> {
        let mut config = Config { node: node.to_string(), ..Config::default() };
        config.expand();
        check_trusted(&config.paths.dcgmi, false)?;
        Ok(config)
    }

    /// Parses the text of `path` (which is only named in errors).
    ///
    /// # Errors
    /// [`ConfigError::Invalid`].
    pub fn parse(text: &str, path: &Path) -> Result<Config, ConfigError> {
        let config: Config = toml::from_str(text).map_err(|e| invalid_toml(path, text, &e))?;
        config.check().map_err(|message| ConfigError::Invalid {
            path: path.to_path_buf(),
            line: String::new(),
            message,
        })?;
        Ok(config)
    }

    /// State of a check.
    #[must_use]
    pub fn switch(&self, check: &str) -> Switch {
        self.checks.get(check).map_or(Switch::On, |s| s.state)
    }

    fn check(&self) -> Result<(), String> {
        let d = &self.deadlines;
        for (key, value) in
            [("source", d.source), ("prolog", d.prolog), ("periodic", d.periodic), ("drain", d.drain)]
        {
            if !(1..=60_000).contains(&value) {
                return Err(format!("deadlines.{key} = {value}: give milliseconds between 1 and 60000"));
            }
        }
        self.profile.gpu.check()?;
        operate::check(self)?;
        if !(1..=25).contains(&self.watch.interval) {
            return Err(format!(
                "watch.interval = {}: give 1 to 25 seconds: a prolog goes by a verdict of at most 30 s",
                self.watch.interval
            ));
        }
        if self.dcgm.diag_level > 3 {
            return Err(format!(
                "dcgm.diag_level = {}: give 0 (never) to 3, as dcgmi diag -r",
                self.dcgm.diag_level
            ));
        }
        if let Some(path) = &self.metrics.textfile
            && !(path.is_absolute() && path.extension().is_some_and(|e| e == "prom"))
        {
            return Err(format!(
                "metrics.textfile = \"{}\": give an absolute path that ends in .prom: node_exporter reads no other",
                path.display()
            ));
        }
        self.jobs.check()?;
        for id in self.checks.keys() {
            if CATALOGUE.iter().any(|c| c.id == id && c.guards()) {
                return Err(format!(
                    "checks.\"{id}\" has no switch: clustermax-drain always looks before it writes; remove it"
                ));
            }
            if !id.starts_with("site.") && !CATALOGUE.iter().any(|c| c.id == id) {
                let near = nearest(id, CATALOGUE.iter().map(|c| c.id));
                return Err(format!(
                    "checks.\"{id}\" is no check{near}; `clustermax-healthcheck list` shows them all"
                ));
            }
        }
        for c in &self.command {
            let plain = |s: &str| s.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b));
            if c.name.is_empty() || !plain(&c.name) {
                return Err(format!("command name \"{}\": use letters, digits, _ and -", c.name));
            }
            if c.token.is_empty() || c.token.len() > 10 || !plain(&c.token) {
                return Err(format!(
                    "command \"{}\": token \"{}\" must be 1 to 10 letters, digits, _ or -",
                    c.name, c.token
                ));
            }
            if !c.path.is_absolute() {
                return Err(format!("command \"{}\": path {} must be absolute", c.name, c.path.display()));
            }
            if !(1..=60_000).contains(&c.timeout) {
                return Err(format!(
                    "command \"{}\": timeout = {}: give milliseconds between 1 and 60000",
                    c.name, c.timeout
                ));
            }
        }
        for s in &self.profile.space {
            if !(0.0 < s.warn_percent && s.warn_percent <= s.fail_percent && s.fail_percent <= 100.0) {
                return Err(format!(
                    "profile.space {}: need 0 < warn_percent <= fail_percent <= 100, not {} and {}",
                    s.path.display(),
                    s.warn_percent,
                    s.fail_percent
                ));
            }
        }
        Ok(())
    }

    fn expand(&mut self) {
        let node = self.node.clone();
        let p = &mut self.paths;
        let fixed = [
            &mut p.sysfs,
            &mut p.procfs,
            &mut p.dev,
            &mut p.kmsg,
            &mut p.nvml,
            &mut p.cuda,
            &mut p.imex_ctl,
            &mut p.dcgmi,
            &mut p.run_dir,
            &mut p.state_dir,
            &mut p.drain,
            &mut self.slurm.conf,
            &mut self.slurm.scontrol,
        ];
        let commands = self.command.iter_mut().map(|c| &mut c.path);
        let mounts = self.profile.mount.iter_mut().map(|m| &mut m.path);
        let spaces = self.profile.space.iter_mut().map(|s| &mut s.path);
        for path in fixed
            .into_iter()
            .chain(p.kmsg_files.iter_mut())
            .chain(self.metrics.textfile.iter_mut())
            .chain(self.notify.path.iter_mut())
            .chain(commands)
            .chain(mounts)
            .chain(spaces)
        {
            if let Some(text) = path.to_str().filter(|t| t.contains("%n")) {
                *path = text.replace("%n", &node).into();
            }
        }
    }
}

/// Slurm's name of this node: `SLURMD_NODENAME` if it is a plain host name, else the short host name.
#[must_use]
pub fn node_name(given: Option<&str>) -> String {
    let from_slurm = std::env::var("SLURMD_NODENAME").ok();
    given.map(str::to_string).or(from_slurm).filter(|n| is_node_name(n)).unwrap_or_else(|| {
        let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        name.trim().split('.').next().unwrap_or("localhost").to_string()
    })
}

/// Letters, digits, `.`, `_` and `-`, not starting with a dot: fit for a path and a Slurm node name.
#[must_use]
pub fn is_node_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= 255
        && !name.starts_with('.')
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
}

/// Opens the file once and checks that very file, so that nobody can swap it in between.
fn read_trusted(path: &Path) -> Result<String, ConfigError> {
    let read_error = |source: std::io::Error| {
        if source.kind() == std::io::ErrorKind::NotFound {
            ConfigError::Missing(path.to_path_buf())
        } else {
            ConfigError::Read { path: path.to_path_buf(), source }
        }
    };
    let mut file =
        File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path).map_err(read_error)?;
    check_metadata(path, &file.metadata().map_err(read_error)?)?;
    trust::check_parents(path)?;
    let mut text = String::new();
    file.read_to_string(&mut text).map_err(read_error)?;
    Ok(text)
}

/// A file that root acts on must belong to root or to whoever runs us, and be writable by nobody else.
///
/// # Errors
/// [`ConfigError`] naming the file. A missing file is accepted unless `required`.
pub fn check_trusted(path: &Path, required: bool) -> Result<(), ConfigError> {
    match std::fs::metadata(path) {
        Ok(meta) => check_metadata(path, &meta).and_then(|()| trust::check_parents(path)),
        Err(source) if !required && source.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(source) => Err(ConfigError::Read { path: path.to_path_buf(), source }),
    }
}

fn check_metadata(path: &Path, meta: &std::fs::Metadata) -> Result<(), ConfigError> {
    let me = crate::sys::effective_uid();
    let unsafe_because =
        |what: String| Err(ConfigError::Unsafe { path: path.to_path_buf(), what, owner: me });
    if !meta.is_file() {
        return unsafe_because("is not a regular file".into());
    }
    if meta.uid() != 0 && meta.uid() != me {
        return unsafe_because(format!("belongs to user {}", meta.uid()));
    }
    if meta.mode() & 0o022 != 0 {
        return unsafe_because(format!("is writable by others (mode {:04o})", meta.mode() & 0o7777));
    }
    Ok(())
}

/// Turns serde's message into one sentence with the nearest known key.
fn invalid_toml(path: &Path, text: &str, error: &toml::de::Error) -> ConfigError {
    let line = error.span().map_or(String::new(), |span| {
        let before = text.get(..span.start).unwrap_or(text);
        format!(", line {}", before.matches('\n').count() + 1)
    });
    let raw = error.message().lines().next().unwrap_or_default().to_string();
    let quoted: Vec<&str> = raw.split('`').skip(1).step_by(2).collect();
    let message = match quoted.split_first() {
        Some((unknown, known)) if raw.starts_with("unknown field") => {
            format!("unknown key \"{unknown}\"{}", nearest(unknown, known.iter().copied()))
        }
        Some((unknown, known)) if raw.starts_with("unknown variant") => {
            format!(
                "\"{unknown}\" is not one of {}{}",
                known.join(", "),
                nearest(unknown, known.iter().copied())
            )
        }
        _ => raw,
    };
    ConfigError::Invalid { path: path.to_path_buf(), line, message }
}

/// `; did you mean "x"?`, or nothing when no known name is near.
pub fn nearest<'a>(unknown: &str, known: impl Iterator<Item = &'a str>) -> String {
    known
        .map(|k| (strsim::damerau_levenshtein(unknown, k), k))
        .min()
        .filter(|(distance, k)| *distance <= 1 + k.len().max(unknown.len()) / 3)
        .map_or(String::new(), |(_, k)| format!("; did you mean \"{k}\"?"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn error(text: &str) -> String {
        Config::parse(text, Path::new("/etc/x.toml")).unwrap_err().to_string()
    }

    #[test]
    fn an_empty_file_observes() {
        let c = Config::parse("", Path::new("x")).unwrap();
        assert_eq!(c.enforcement, Enforcement::Observe);
        assert_eq!(c.deadlines.source, 5000);
        assert!(c.xid.accept_synthetic);
    }

    #[test]
    fn bad_keys_and_values_are_named_with_the_mend() {
        assert_eq!(
            error("enforcemnt = \"observe\"\n"),
            "/etc/x.toml, line 1: unknown key \"enforcemnt\"; did you mean \"enforcement\"?"
        );
        assert_eq!(
            error("[paths]\nrundir = \"/x\"\n"),
            "/etc/x.toml, line 2: unknown key \"rundir\"; did you mean \"run_dir\"?"
        );
        assert_eq!(
            error("enforcement = \"enforced\"\n"),
            "/etc/x.toml, line 1: \"enforced\" is not one of observe, enforce; did you mean \"enforce\"?"
        );
        assert!(error("[deadlines]\nsource = \"5s\"\n").contains("line 2: invalid type: string \"5s\""));
        assert!(error("[deadlines]\nsource = 0\n").contains("deadlines.source = 0"));
        assert!(error("[metrics]\ntextfile = \"/x/clustermax.txt\"\n").contains("ends in .prom"));
        assert!(error("[watch]\ninterval = 60\n").contains("watch.interval = 60"));
        assert!(error("[brake]\nmax_share = 0.0\n").contains("brake.max_share = 0"));
        assert!(error("[checks.\"gpu.tmp\"]\nstate = \"off\"\n").contains("did you mean \"gpu.temp\"?"));
        assert!(error("paths = [\n").starts_with("/etc/x.toml, line "));
    }

    #[test]
    fn a_hanging_source_leaves_time_to_drain() {
        let d = Deadlines::default();
        assert_eq!(d.source(Mode::Periodic), Duration::from_secs(5));
        assert!(d.source(Mode::Prolog) + d.drain() + Duration::from_millis(500) <= d.pass(Mode::Prolog));
        let tight = Deadlines { prolog: 100, ..d };
        assert_eq!(tight.source(Mode::Prolog), Duration::from_millis(100));
    }

    #[test]
    fn the_node_name_fills_paths() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("c.toml");
        std::fs::write(&file, "[paths]\nrun_dir = \"/run/%n/x\"\nkmsg_files = [\"/k/%n\"]\n").unwrap();
        let c = Config::load(&file, "n2").unwrap();
        assert_eq!(c.paths.run_dir, Path::new("/run/n2/x"));
        assert_eq!(c.paths.kmsg_files, [Path::new("/k/n2")]);
        assert_eq!(c.hash.len(), 8);
    }

    #[test]
    fn a_config_others_can_write_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("c.toml");
        std::fs::write(&file, "").unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o666)).unwrap();
        let message = Config::load(&file, "n").unwrap_err().to_string();
        assert!(message.contains("is writable by others (mode 0666)"), "{message}");
        let missing = Config::load(&dir.path().join("none"), "n").unwrap_err().to_string();
        assert!(missing.contains("does not exist"), "{missing}");
    }

    #[test]
    fn node_names_are_checked() {
        for good in ["n1", "gpu-node-01", "a.b_c"] {
            assert!(is_node_name(good), "{good}");
        }
        for bad in ["", "../x", ".x", "a/b", "a b", "n\n"] {
            assert!(!is_node_name(bad), "{bad}");
        }
    }
}
