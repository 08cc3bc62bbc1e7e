//! What the audit looks through: paths, files and commands under a deadline.

use std::io::{Read, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde::Deserialize;

use crate::Failure;

/// Where packages put the node programs' configuration.
const DEFAULT_CONFIG: &str = "/etc/clustermax/clustermax.toml";
/// Longest wait for one command.
pub const LIMIT: Duration = Duration::from_secs(8);

/// The part of the node programs' configuration that the audit needs; other keys are theirs to check.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Config {
    paths: Paths,
}

#[derive(Debug, Deserialize)]
#[serde(default)]
struct Paths {
    sysfs: String,
    procfs: String,
    dev: String,
    run_dir: String,
}

impl Default for Paths {
    fn default() -> Self {
        Self {
            sysfs: "/sys".to_owned(),
            procfs: "/proc".to_owned(),
            dev: "/dev".to_owned(),
            run_dir: "/run/clustermax".to_owned(),
        }
    }
}

/// This node and where its facts are.
#[derive(Debug, Clone)]
pub struct Host {
    /// Slurm's name of the node.
    pub node: String,
    /// `/sys`
    pub sysfs: PathBuf,
    /// `/proc`
    pub procfs: PathBuf,
    /// `/dev`
    pub dev: PathBuf,
    /// Where the node programs publish their verdict.
    pub run_dir: PathBuf,
    /// The configuration, to be handed on.
    pub config: PathBuf,
    /// What `clustermax-healthcheck facts` said, once it was asked.
    pub facts: std::sync::OnceLock<Result<serde_json::Value, String>>,
}

impl Host {
    /// Reads the configuration; a missing file means the defaults, because an evaluator's cluster has none of ours.
    pub fn open(config: Option<&Path>, node: Option<&str>) -> Result<Self, Failure> {
        let config = match config {
            Some(path) => path.to_owned(),
            None => default_config(),
        };
        let config = config.as_path();
        let node = match node {
            Some(node) => node.to_owned(),
            None => std::env::var("SLURMD_NODENAME")
                .ok()
                .filter(|name| !name.is_empty())
                .unwrap_or_else(host_name),
        };
        let found = match std::fs::read_to_string(config) {
            Ok(text) => toml::from_str::<Config>(&text).map_err(|error| {
                let what = error.message().to_owned();
                Failure::input(format!(
                    "{}: {what}; mend the file or give another with --config",
                    config.display()
                ))
            })?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Config::default(),
            Err(error) => {
                return Err(Failure::input(format!(
                    "cannot read {}: {error}; make it readable for users or give another with --config",
                    config.display()
                )));
            }
        };
        let path = |text: &str| PathBuf::from(text.replace("%n", &node));
        Ok(Self {
            sysfs: path(&found.paths.sysfs),
            procfs: path(&found.paths.procfs),
            dev: path(&found.paths.dev),
            run_dir: path(&found.paths.run_dir),
            config: config.to_owned(),
            facts: std::sync::OnceLock::new(),
            node,
        })
    }

    /// A file below sysfs, trimmed.
    pub fn sys(&self, path: &str) -> Option<String> {
        text(&self.sysfs.join(path))
    }

    /// A file below procfs, trimmed.
    pub fn proc(&self, path: &str) -> Option<String> {
        text(&self.procfs.join(path))
    }

    /// A program of ours: beside this one, where packages put it, or in PATH.
    pub fn program(name: &str) -> Option<PathBuf> {
        let beside = std::env::current_exe().ok().and_then(|exe| exe.parent().map(|dir| dir.join(name)));
        [beside, Some(Path::new("/usr/libexec/clustermax").join(name)), find(name)]
            .into_iter()
            .flatten()
            .find(|path| path.is_file())
    }
}

/// CLUSTERMAX_CONFIG, else `clustermax.toml` beside the slurm.conf that SLURM_CONF names (several clusters on one
/// machine), else where packages put it.
fn default_config() -> PathBuf {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    set("CLUSTERMAX_CONFIG")
        .or_else(|| {
            set("SLURM_CONF").map(|conf| conf.with_file_name("clustermax.toml")).filter(|path| path.is_file())
        })
        .unwrap_or_else(|| PathBuf::from(DEFAULT_CONFIG))
}

fn host_name() -> String {
    let name = text(Path::new("/proc/sys/kernel/hostname")).unwrap_or_else(|| "localhost".to_owned());
    name.split('.').next().unwrap_or_default().to_owned()
}

/// UTC, RFC 3339, whole seconds that have passed.
pub fn now() -> String {
    let now = jiff::Timestamp::now();
    jiff::Timestamp::from_second(now.as_second()).unwrap_or(now).to_string()
}

/// A file's text without the white space around it; none when it cannot be read.
pub fn text(path: &Path) -> Option<String> {
    // Lossy: a firmware string may hold any byte.
    std::fs::read(path).ok().map(|bytes| String::from_utf8_lossy(&bytes).trim().to_owned())
}

/// Names in a folder, sorted; empty when it cannot be read.
pub fn names(path: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(path)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort();
    names
}

/// A command in PATH.
pub fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(name)).find(|file| {
        use std::os::unix::fs::PermissionsExt as _;
        file.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
    })
}

/// A command in PATH, or where administrators' programs are, which users' PATH leaves out.
pub fn find_system(name: &str) -> Option<PathBuf> {
    find(name).or_else(|| {
        ["/usr/sbin", "/sbin", "/usr/local/sbin", "/usr/local/cuda/bin", "/opt/rocm/bin"]
            .iter()
            .map(|dir| Path::new(dir).join(name))
            .find(|path| path.is_file())
    })
}

/// This process runs as root.
pub fn is_root() -> bool {
    let status = text(Path::new("/proc/self/status")).unwrap_or_default();
    // Real, effective, saved, file system.
    status.lines().find_map(|line| line.strip_prefix("Uid:")?.split_whitespace().nth(1)) == Some("0")
}

/// What a command printed and how it ended.
#[derive(Debug, Clone)]
pub struct Ran {
    /// Exit code; none when a signal or the deadline ended it.
    pub code: Option<i32>,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

impl Ran {
    /// Exit 0.
    pub fn ok(&self) -> bool {
        self.code == Some(0)
    }

    /// First line of standard error, else of standard output.
    pub fn complaint(&self) -> String {
        let line =
            |text: &str| text.lines().find(|line| !line.trim().is_empty()).map(|line| line.trim().to_owned());
        line(&self.err).or_else(|| line(&self.out)).unwrap_or_else(|| match self.code {
            Some(code) => format!("exit {code}"),
            None => format!("no answer within {} s", LIMIT.as_secs()),
        })
    }
}

/// Runs a command without standard input, for [`LIMIT`] at most.
///
/// # Errors
/// Why it could not be started.
pub fn run(program: impl AsRef<std::ffi::OsStr>, args: &[&str]) -> Result<Ran, String> {
    run_for(program, args, LIMIT)
}

/// As [`run`], with a deadline. A child that does not end is left behind: waiting for one that is stuck in the
/// kernel would hang the audit.
///
/// # Errors
/// Why it could not be started.
pub fn run_for(program: impl AsRef<std::ffi::OsStr>, args: &[&str], limit: Duration) -> Result<Ran, String> {
    run_with(program, args, limit, None)
}

/// As [`run_for`], with a text on standard input.
///
/// # Errors
/// Why it could not be started.
pub fn run_with(
    program: impl AsRef<std::ffi::OsStr>,
    args: &[&str],
    limit: Duration,
    input: Option<&str>,
) -> Result<Ran, String> {
    let mut command = Command::new(program.as_ref());
    command.args(args);
    run_command(&mut command, limit, input)
}

/// As [`run_with`], for a command with its own environment.
///
/// # Errors
/// Why it could not be started.
pub fn run_command(command: &mut Command, limit: Duration, input: Option<&str>) -> Result<Ran, String> {
    let program = command.get_program().to_os_string();
    let mut child = command
        .stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("{} cannot be started: {error}", program.to_string_lossy()))?;
    if let (Some(text), Some(mut pipe)) = (input.map(str::to_owned), child.stdin.take()) {
        // A child that reads nothing would hold us; it ends with its pipe.
        std::thread::spawn(move || {
            let _ = pipe.write_all(text.as_bytes());
        });
    }
    let reader = |pipe: Option<Box<dyn Read + Send>>| {
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            if let Some(pipe) = pipe {
                let _ = pipe.take(8 << 20).read_to_end(&mut bytes);
            }
            let _ = sender.send(String::from_utf8_lossy(&bytes).into_owned());
        });
        receiver
    };
    let out = reader(child.stdout.take().map(|pipe| Box::new(pipe) as Box<dyn Read + Send>));
    let err = reader(child.stderr.take().map(|pipe| Box::new(pipe) as Box<dyn Read + Send>));
    let deadline = Instant::now() + limit;
    let mut wait = Duration::from_millis(1);
    let code = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status.code(),
            Ok(None) if Instant::now() < deadline => {
                std::thread::sleep(wait);
                wait = (wait * 2).min(Duration::from_millis(50));
            }
            Ok(None) => {
                let _ = child.kill();
                break None;
            }
            Err(_) => break None,
        }
    };
    // A grandchild may hold the pipes open after the child has ended.
    let rest = Duration::from_millis(500);
    Ok(Ran {
        code,
        out: out.recv_timeout(rest).unwrap_or_default(),
        err: err.recv_timeout(rest).unwrap_or_default(),
    })
}

/// Version numbers compared part by part, any separator: `1.19.1-1` > `1.9`.
pub fn at_least(version: &str, minimum: &str) -> bool {
    let parts = |text: &str| -> Vec<u64> {
        text.split(|c: char| !c.is_ascii_digit()).filter_map(|part| part.parse().ok()).collect()
    };
    parts(version) >= parts(minimum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_compare_by_number() {
        assert!(at_least("6.12.57+deb13-amd64", "6.12.9"));
        assert!(at_least("1.19.1", "1.19.1"));
        assert!(!at_least("1.9.0", "1.19.1"));
    }

    #[test]
    fn a_command_that_hangs_is_given_up() {
        let ran = run_for("sleep", &["60"], Duration::from_millis(100)).unwrap();
        assert_eq!(ran.code, None);
        assert!(run("/nonexistent/program", &[]).unwrap_err().contains("/nonexistent/program"));
    }

    #[test]
    fn the_configuration_moves_every_path() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("c.toml");
        std::fs::write(&file, "[paths]\nsysfs = \"/x/%n/sys\"\nrun_dir = \"/x/%n/run\"\n[checks.\"gpu.temp\"]\nstate = \"on\"\n")
            .unwrap();
        let host = Host::open(Some(&file), Some("n7")).unwrap();
        assert_eq!(host.sysfs, Path::new("/x/n7/sys"));
        assert_eq!(host.run_dir, Path::new("/x/n7/run"));
        std::fs::write(&file, "paths = 3").unwrap();
        let failure = Host::open(Some(&file), Some("n7")).unwrap_err();
        assert!(failure.code == 2 && failure.message.contains("c.toml"), "{failure}");
        assert_eq!(
            Host::open(Some(Path::new("/nonexistent.toml")), Some("n7")).unwrap().sysfs,
            Path::new("/sys")
        );
    }
}
