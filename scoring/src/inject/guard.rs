//! What puts things right when this program dies in the middle, even by SIGKILL: a process of its own, which holds the
//! other end of a pipe.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
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

    /// Something may still have to be put right: it goes on by itself, as if this program had died.
    pub fn leave(mut self) {
        drop(self.stdin.take());
    }
}

/// How long a drain may take to come after the injector has ended: a health check needs its time.
fn late() -> Duration {
    Duration::from_secs(slurm::health_check_interval().unwrap_or(30) + 30)
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
    tell(&format!("the reset of {} was ended: the injector did not do it", config.display()));
    Ok(0)
}

/// How long a controller that does not answer is asked again.
const PATIENCE: Duration = Duration::from_secs(3600);

/// Returns a node that was drained meanwhile.
fn return_node(node: &str) -> Result<u8, Failure> {
    // Counted from the first answer, so that a controller that is away just then leaves no node drained.
    let begin = Instant::now();
    let mut until = None;
    let mut why = String::new();
    loop {
        match Node::read(node) {
            Ok(found) => {
                let until = *until.get_or_insert_with(|| Instant::now() + late());
                if found.out_of_service() {
                    match slurm::resume(node) {
                        Ok(()) => {
                            tell(&format!(
                                "{node} was returned to service: the injector ended in the middle"
                            ));
                            return Ok(0);
                        }
                        Err(failure) => why = failure.message,
                    }
                } else if Instant::now() >= until {
                    return Ok(0);
                }
            }
            Err(failure) => why = failure.message,
        }
        if begin.elapsed() >= PATIENCE {
            return Err(Failure::missing(format!(
                "{node} may still be drained by the injection: {why}; look at it: scontrol show node {node}"
            )));
        }
        std::thread::sleep(Duration::from_millis(500));
    }
}

/// To standard error, which a terminal that was closed no longer takes.
fn tell(text: &str) {
    let _ = writeln!(std::io::stderr(), "clustermax: {text}");
}

/// One injection at a time on this machine and cluster. The kernel lets go of it however the process ends; the file stays.
pub struct Lock(#[allow(dead_code, reason = "it is held, not used")] File);

impl Lock {
    /// Takes it.
    ///
    /// # Errors
    /// Another injection runs, or the file cannot be made.
    pub fn take() -> Result<Self, Failure> {
        let conf = std::env::var("SLURM_CONF").unwrap_or_default();
        let name: String = Sha256::digest(conf).iter().take(4).map(|byte| format!("{byte:02x}")).collect();
        Self::at(&PathBuf::from(format!("/run/clustermax-inject-{name}.lock")))
    }

    fn at(path: &Path) -> Result<Self, Failure> {
        let file = File::options().create(true).truncate(false).read(true).write(true).open(path);
        let mut file = file.map_err(|error| {
            Failure::missing(format!("cannot make {}: {error}; run it as root", path.display()))
        })?;
        if let Err(error) = flock(&file, FlockOperation::NonBlockingLockExclusive) {
            if error != Errno::WOULDBLOCK {
                return Err(Failure::missing(format!("cannot lock {}: {error}", path.display())));
            }
            let mut holder = String::new();
            let _ = file.take(20).read_to_string(&mut holder);
            return Err(Failure::input(format!(
                "process {} injects a fault already: one node at a time",
                holder.trim()
            )));
        }
        // For whoever finds it taken.
        let _ = file.set_len(0).and_then(|()| write!(file, "{}", std::process::id()));
        Ok(Self(file))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_injections_at_once_are_kept_apart_and_a_dead_one_holds_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        // Left by an older release or by a holder whose number another process has now.
        std::fs::write(&path, "1").unwrap();
        let first = Lock::at(&path).unwrap();
        let refused = Lock::at(&path).err().unwrap().message;
        assert!(refused.contains(&format!("process {} injects", std::process::id())), "{refused}");
        drop(first);
        assert!(Lock::at(&path).is_ok());
        assert_eq!(Lock::at(&folder.path().join("none/lock")).err().unwrap().code, 3);
    }
}
