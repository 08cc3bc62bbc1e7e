//! What puts things right when this program dies in the middle, even by SIGKILL: a process of its own, which holds the
//! other end of a pipe.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use sha2::{Digest as _, Sha256};

use super::bus::Bridge;
use super::slurm::{self, Node};
use super::{Args, Fault};
use crate::Failure;

/// What the process says when it is ready.
const ARMED: &str = "armed";
/// What ends it without doing anything.
const DONE: &str = "done";

/// The process that is there in any case.
pub struct Guard {
    child: Child,
    stdin: Option<ChildStdin>,
}

impl Guard {
    /// One that returns a drained node to service.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn of_node(node: &str) -> Result<Self, Failure> {
        Self::start(Fault::Xid79, node, &[])
    }

    /// One that takes the reset from a bridge: at once when this program ends, and after `limit` in any case.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn of_bridge(node: &str, bridge: &Bridge, limit: Duration) -> Result<Self, Failure> {
        let config = bridge.config.display().to_string();
        let (value, limit) = (bridge.control.to_string(), limit.as_millis().to_string());
        let more = ["--restore-bridge", &config, "--restore-control", &value, "--restore-after", &limit];
        Self::start(Fault::BusReset, node, &more)
    }

    fn start(fault: Fault, node: &str, more: &[&str]) -> Result<Self, Failure> {
        use std::os::unix::process::CommandExt as _;
        let failed = |error: std::io::Error| {
            Failure::missing(format!(
                "the process that puts things right in any case cannot be started: {error}"
            ))
        };
        let program = std::env::current_exe().map_err(failed)?;
        // A process group of its own: Ctrl-C at the terminal ends this program only.
        let mut child = Command::new(program)
            .args(["inject", fault.word(), "--node", node, "--dead-man"])
            .args(more)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .map_err(failed)?;
        let stdin = child.stdin.take();
        let mut said = String::new();
        if let Some(out) = child.stdout.take() {
            BufReader::new(out).read_line(&mut said).map_err(failed)?;
        }
        if said.trim() != ARMED {
            let _ = child.kill();
            let _ = child.wait();
            return Err(Failure::missing(
                "the process that puts things right in any case ended at once; nothing was injected",
            ));
        }
        Ok(Self { child, stdin })
    }

    /// All is in order: it has nothing to do.
    pub fn done(mut self) {
        if let Some(mut stdin) = self.stdin.take() {
            let _ = stdin.write_all(format!("{DONE}\n").as_bytes());
        }
        let _ = self.child.wait();
    }
}

/// The process itself: waits for `done` or the end of standard input, then puts things right.
///
/// # Errors
/// When that cannot be done.
pub fn dead_man(args: &Args) -> Result<u8, Failure> {
    println!("{ARMED}");
    let (sender, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut said = String::new();
        let _ = std::io::stdin().read_to_string(&mut said);
        let _ = sender.send(said.trim() == DONE);
    });
    let Some(config) = &args.restore_bridge else {
        return if ended.recv() == Ok(true) { Ok(0) } else { return_node(&args.node) };
    };
    let bridge = Bridge { config: config.clone(), control: args.restore_control };
    match ended.recv_timeout(Duration::from_millis(args.restore_after)) {
        Ok(true) => return Ok(0),
        Ok(false) | Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => bridge.release()?,
    }
    eprintln!("clustermax: the reset of {} was ended: the injector did not do it", config.display());
    Ok(0)
}

/// Returns a node that was drained meanwhile.
fn return_node(node: &str) -> Result<u8, Failure> {
    // The drain may come after the injector's death: a health check needs its time.
    let until = Instant::now() + Duration::from_secs(slurm::health_check_interval().unwrap_or(30) + 30);
    while Instant::now() < until {
        if Node::read(node).is_ok_and(|node| node.out_of_service()) {
            slurm::resume(node)?;
            eprintln!("clustermax: {node} was returned to service: the injector ended in the middle");
            return Ok(0);
        }
        std::thread::sleep(Duration::from_millis(500));
    }
    Ok(0)
}

/// One injection at a time on this machine and cluster.
pub struct Lock(PathBuf);

impl Lock {
    /// Takes it, also from a process that is gone.
    ///
    /// # Errors
    /// Another injection runs, or the file cannot be made.
    pub fn take() -> Result<Self, Failure> {
        let conf = std::env::var("SLURM_CONF").unwrap_or_default();
        let name: String = Sha256::digest(conf).iter().take(4).map(|byte| format!("{byte:02x}")).collect();
        let path = PathBuf::from(format!("/run/clustermax-inject-{name}.lock"));
        for _ in 0..2 {
            match std::fs::OpenOptions::new().write(true).create_new(true).open(&path) {
                Ok(mut file) => {
                    let _ = write!(file, "{}", std::process::id());
                    return Ok(Self(path));
                }
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                    let holder = std::fs::read_to_string(&path).unwrap_or_default();
                    if !holder.trim().is_empty() && Path::new("/proc").join(holder.trim()).exists() {
                        return Err(Failure::input(format!(
                            "process {} injects a fault already: one node at a time",
                            holder.trim()
                        )));
                    }
                    // Its holder is gone.
                    let _ = std::fs::remove_file(&path);
                }
                Err(error) => {
                    return Err(Failure::missing(format!(
                        "cannot make {}: {error}; run it as root",
                        path.display()
                    )));
                }
            }
        }
        Err(Failure::input(format!("{} cannot be taken; remove it when nobody injects", path.display())))
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}
