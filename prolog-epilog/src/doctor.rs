//! What `clustermax-doctor` looks at: the installation as Slurm will meet it, without loading or changing anything.

use std::collections::BTreeMap;
use std::fmt;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use healthcheck::config::Enforcement;
use serde::{Deserialize, Serialize};

use crate::slurm_conf::{self, SlurmConf};

mod cluster;
pub mod compare;
pub mod facts;
mod hooks;
mod installed;
mod keys;
mod plugstack;
mod ran;
#[cfg(test)]
mod tests;

/// Version tag of the JSON form.
pub const SCHEMA: &str = "clustermax-doctor/1";
/// Limit on one program that is asked for its release.
const ASK_LIMIT: Duration = Duration::from_secs(5);
/// A script longer than this is not searched for our programs' names.
const SCRIPT_MAX: u64 = 1024 * 1024;

/// Result of one look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// As it should be.
    Pass,
    /// Works, but not as well as it could.
    Warn,
    /// Does not work, or harms.
    Fail,
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Status::Pass => "PASS",
            Status::Warn => "WARN",
            Status::Fail => "FAIL",
        })
    }
}

/// One look.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Item {
    /// What was looked at: `plugin`, `slurm.conf Prolog`, ...
    pub check: String,
    /// Result.
    pub status: Status,
    /// What was seen, one sentence; for a failure with the mend.
    pub text: String,
    /// Why it matters; empty for a pass.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub why: String,
    /// The exact line to write or command to run, where there is one.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub mend: String,
}

/// All looks.
#[derive(Debug, Clone, Serialize)]
pub struct Diagnosis {
    /// [`SCHEMA`].
    pub schema: &'static str,
    /// Worst status.
    pub status: Status,
    /// Name of this host; empty for a comparison.
    pub host: String,
    /// What slurm.conf says that it is.
    pub role: facts::Role,
    /// Release of the installed Slurm.
    pub slurm: Option<String>,
    /// What is laid beside other hosts' reports.
    pub facts: BTreeMap<String, String>,
    /// The looks, in order.
    pub checks: Vec<Item>,
}

/// Where to look.
#[derive(Debug, Clone)]
pub struct Options {
    /// Our configuration.
    pub config: PathBuf,
    /// Slurm's name of this node.
    pub node: String,
    /// The plugin's file; without it the one that plugstack.conf names.
    pub plugin: Option<PathBuf>,
    /// slurm.conf; without it the one that our configuration names.
    pub slurm_conf: Option<PathBuf>,
    /// Also ask the controller what it and the nodes run.
    pub cluster: bool,
}

/// Collects items.
#[derive(Default)]
struct Looks(Vec<Item>);

impl Looks {
    fn add(
        &mut self,
        check: &str,
        status: Status,
        text: impl Into<String>,
        why: &str,
        mend: impl Into<String>,
    ) {
        self.0.push(Item {
            check: check.to_string(),
            status,
            text: text.into(),
            why: why.to_string(),
            mend: mend.into(),
        });
    }

    fn pass(&mut self, check: &str, text: impl Into<String>) {
        self.add(check, Status::Pass, text, "", "");
    }
}

/// Looks at everything. Nothing is loaded or changed; scontrol and clustermax-drain are asked for their release.
#[must_use]
pub fn diagnose(options: &Options) -> Diagnosis {
    let mut looks = Looks::default();
    let config = installed::config(&mut looks, options);
    let conf_path = options.slurm_conf.clone().unwrap_or_else(|| {
        slurm_conf::in_use(&config.slurm.conf).unwrap_or_else(|| config.slurm.conf.clone())
    });
    let slurm = installed::slurm(&mut looks, &config, &conf_path);
    let conf = SlurmConf::read(&conf_path);
    let host = host_name();
    let role = match &conf {
        Ok(conf) => facts::Role::of(conf, &config.node, &host),
        Err(_) => facts::Role::Login,
    };
    // Dynamic nodes stand in no NodeName line; what ran there once is installed there.
    let node_side = role == facts::Role::Compute || config.paths.drain.exists();
    let role = if node_side && role == facts::Role::Login { facts::Role::Compute } else { role };
    if node_side {
        installed::drain(&mut looks, &config, slurm);
    } else {
        let what = role.word();
        looks.pass("node programs", format!("not installed, and not needed on this host ({what})"));
    }
    let mut plugin = options.plugin.clone();
    match &conf {
        Ok(conf) => {
            looks.pass("slurm.conf", format!("{} is readable", conf_path.display()));
            if node_side {
                hooks::scripts(&mut looks, &config, conf, slurm);
                hooks::health_check(&mut looks, &config, conf);
            }
            hooks::timeouts(&mut looks, &config, conf);
            keys::look(&mut looks, conf, config.enforcement == Enforcement::Enforce);
            if node_side {
                #[allow(clippy::cast_precision_loss, reason = "seconds since 1970 are exact in an f64")]
                ran::look(&mut looks, &config, conf, jiff::Timestamp::now().as_second() as f64);
            }
            if options.cluster {
                cluster::look(&mut looks, &config.slurm.scontrol, conf, &conf_path, slurm);
            }
            let named = plugstack::lines(&mut looks, conf);
            plugin = plugin.or(named);
        }
        Err(e) => looks.add(
            "slurm.conf",
            Status::Fail,
            format!("{e}: set `conf` under [slurm] in {} or give --slurm-conf", options.config.display()),
            "clustermax-drain reaches the controller through it",
            "[slurm]\nconf = \"/etc/slurm/slurm.conf\"",
        ),
    }
    if let Some(plugin) = plugin {
        plugstack::plugin(&mut looks, &plugin, slurm);
    }
    if node_side {
        installed::state(&mut looks, &config);
    }
    let status = looks.0.iter().map(|i| i.status).max().unwrap_or(Status::Pass);
    Diagnosis {
        schema: SCHEMA,
        status,
        host,
        role,
        slurm: slurm.map(|r| r.to_string()),
        facts: facts::read(&config, conf.as_ref().ok(), slurm, role),
        checks: looks.0,
    }
}

fn host_name() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_string()
}

fn is_executable(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
}

/// True when the file is the program, or a script that names it.
fn runs(path: &Path, program: &str) -> bool {
    let resolved = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
    if resolved.file_name().is_some_and(|n| n == program) {
        return true;
    }
    let small = std::fs::metadata(&resolved).is_ok_and(|m| m.len() <= SCRIPT_MAX);
    small
        && std::fs::read(&resolved).is_ok_and(|bytes| {
            // A name in a comment runs nothing.
            String::from_utf8_lossy(&bytes)
                .lines()
                .any(|l| !l.trim_start().starts_with('#') && l.contains(program))
        })
}

/// What a program prints on stdout, within [`ASK_LIMIT`] and with a fixed environment.
fn ask(program: &Path, arguments: &[&str], slurm_conf: Option<&Path>) -> Result<String, String> {
    let failed = |e: std::io::Error| format!("{} cannot be run: {e}", program.display());
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .envs(slurm_conf.map(|conf| ("SLURM_CONF", conf)))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let mut child = match command.spawn() {
        // Somebody is just writing it.
        Err(e) if e.kind() == std::io::ErrorKind::ExecutableFileBusy => {
            thread::sleep(Duration::from_millis(200));
            command.spawn()
        }
        other => other,
    }
    .map_err(failed)?;
    // Read beside the wait: the list of all nodes is longer than a pipe holds.
    let mut stdout = child.stdout.take();
    let reader = thread::spawn(move || {
        let mut bytes = Vec::new();
        // What was read before an error is the answer.
        let _ = stdout.as_mut().map(|s| s.read_to_end(&mut bytes));
        bytes
    });
    let end = Instant::now() + ASK_LIMIT;
    while child.try_wait().map_err(failed)?.is_none() {
        if Instant::now() >= end {
            let _ = child.kill();
            return Err(format!("{} did not end within {} s", program.display(), ASK_LIMIT.as_secs()));
        }
        thread::sleep(Duration::from_millis(5));
    }
    Ok(String::from_utf8_lossy(&reader.join().unwrap_or_default()).into_owned())
}
