//! `clustermax-healthcheck watch`: the resident mode, and what a prolog asks it.
//!
//! While it lives it holds `RUN_DIR/watch.lock`. A prolog connects to `RUN_DIR/watch.sock` (mode 0600) and gets one JSON
//! line. Before it answers, `watch` reads the kernel logs to their end and acts on what it finds there, so an
//! answer means that the published verdict knows every line written before the question.

mod notify;
mod resident;

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::jobs::JobGpu;
use crate::source;
use crate::sys;
use crate::verdict::VERDICT_SCHEMA;

pub use resident::run;

/// Word for the `mode` of the verdicts it publishes.
pub const MODE: &str = "watch";
/// Version tag of an answer.
pub const ANSWER_SCHEMA: &str = "clustermax-watch/1";
/// A verdict whose facts are older than this is not fresh.
pub const FRESH: Duration = Duration::from_secs(30);
/// Longest wait for an answer: one that is busy with a fault does not answer at once, and then a prolog looks itself.
const ASK_LIMIT: Duration = Duration::from_millis(250);
/// Longest answer, in bytes.
const ANSWER_MAX: usize = 64 << 10;

/// Answer to the question whether the published verdict is fresh.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Fresh {
    /// [`ANSWER_SCHEMA`].
    pub schema: String,
    /// Boot it runs in.
    pub boot_id: String,
    /// Hash of the configuration it runs with.
    pub config_hash: String,
    /// The kernel logs were read to their end after the question came, and everything in them was acted on.
    pub caught_up: bool,
    /// Seconds since the last timed pass began to look, by a clock that nobody sets; none before the first.
    pub pass_age: Option<f64>,
    /// Kernel log records lost to ring overruns since it was started.
    pub lost: u64,
    /// GPUs of the node as last seen.
    pub gpus: Vec<JobGpu>,
}

/// What a prolog needs of the published verdict: its findings are not even looked at.
#[derive(Deserialize)]
struct Head {
    schema: String,
    boot_id: String,
    config_hash: String,
    mode: String,
    drain: bool,
}

/// Asks `watch` for the state of this node: its answer when everything that drains is known to be well.
/// No device is touched and no program started.
///
/// # Errors
/// One phrase that says why a pass of one's own is needed.
pub fn fresh(config: &Config) -> Result<Fresh, String> {
    let answer = ask(&socket(&config.paths.run_dir)).map_err(|e| format!("watch does not answer: {e}"))?;
    let boot_id = source::boot_id(&config.paths.procfs);
    let path = config.paths.run_dir.join("verdict.json");
    let verdict = read_verdict(&path).ok_or_else(|| format!("{} holds no verdict", path.display()))?;
    let age = answer.pass_age.filter(|age| *age <= FRESH.as_secs_f64());
    let no = |why: &str| Err(why.to_string());
    match () {
        () if answer.schema != ANSWER_SCHEMA || verdict.schema != VERDICT_SCHEMA => {
            no("watch is of another release")
        }
        () if boot_id.is_empty() || answer.boot_id != boot_id || verdict.boot_id != boot_id => {
            no("another boot")
        }
        () if answer.config_hash != config.hash || verdict.config_hash != config.hash => {
            no("watch runs with another configuration")
        }
        () if !answer.caught_up => no("watch is behind the kernel log"),
        () if age.is_none() => no("the last timed pass of watch is too old"),
        () if verdict.mode != MODE => no("another pass has found a fault since"),
        // Who is to be told, and what Slurm is to hear, takes a pass of one's own.
        () if verdict.drain => no("a fault is open"),
        () => Ok(answer),
    }
}

/// A `watch` lives, and the published verdict is its own.
#[must_use]
pub fn stands(config: &Config) -> bool {
    let run_dir = &config.paths.run_dir;
    let held = File::open(lock(run_dir)).is_ok_and(|f| matches!(sys::try_lock(&f), Ok(false)));
    held && read_verdict(&run_dir.join("verdict.json")).is_some_and(|v| v.mode == MODE)
}

fn read_verdict(path: &Path) -> Option<Head> {
    serde_json::from_slice(&std::fs::read(path).ok()?).ok()
}

/// That somebody connects is the question: one that had to be sent would cost a second wake-up of `watch`.
fn ask(socket: &Path) -> std::io::Result<Fresh> {
    let mut stream = sys::connect(socket, ASK_LIMIT)?;
    let mut line = Vec::new();
    let mut part = [0; 4096];
    while line.last() != Some(&b'\n') && line.len() < ANSWER_MAX {
        match stream.read(&mut part)? {
            0 => break,
            n => line.extend_from_slice(part.get(..n).unwrap_or_default()),
        }
    }
    Ok(serde_json::from_slice(&line)?)
}

fn socket(run_dir: &Path) -> PathBuf {
    run_dir.join("watch.sock")
}

fn lock(run_dir: &Path) -> PathBuf {
    run_dir.join("watch.lock")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::net::UnixListener;

    /// What a prolog makes of an answer and a verdict.
    fn asked(answer: &Fresh, verdict: &str) -> Result<Fresh, String> {
        let dir = tempfile::tempdir().unwrap();
        let mut config = Config { hash: "00000001".into(), ..Config::default() };
        config.paths.run_dir = dir.path().into();
        config.paths.procfs = dir.path().into();
        std::fs::create_dir_all(dir.path().join("sys/kernel/random")).unwrap();
        std::fs::write(dir.path().join("sys/kernel/random/boot_id"), "boot\n").unwrap();
        std::fs::write(dir.path().join("verdict.json"), verdict).unwrap();
        let listener = UnixListener::bind(socket(dir.path())).unwrap();
        std::thread::scope(|s| {
            s.spawn(|| {
                let (mut stream, _) = listener.accept().unwrap();
                stream.write_all((serde_json::to_string(answer).unwrap() + "\n").as_bytes()).unwrap();
            });
            fresh(&config)
        })
    }

    fn good() -> Fresh {
        Fresh {
            schema: ANSWER_SCHEMA.into(),
            boot_id: "boot".into(),
            config_hash: "00000001".into(),
            caught_up: true,
            pass_age: Some(29.9),
            lost: 0,
            gpus: vec![JobGpu { index: 3, pci: None, uuid: None }],
        }
    }

    fn verdict(change: &[(&str, serde_json::Value)]) -> String {
        let mut v = serde_json::json!({"schema":"clustermax-verdict/1","node":"n1","boot_id":"boot",
            "config_hash":"00000001","mode":"watch","enforcement":"enforce","time":"","seconds":0.1,"status":"pass",
            "action":"none","drain":false,"reason":null,"findings":[]});
        for (key, value) in change {
            v[key] = value.clone();
        }
        v.to_string()
    }

    /// The freshness rule, condition by condition.
    #[test]
    fn an_old_green_is_not_green() {
        assert_eq!(asked(&good(), &verdict(&[])).unwrap().gpus.len(), 1);
        let stale: [(Fresh, String, &str); 10] = [
            (Fresh { boot_id: "other".into(), ..good() }, verdict(&[]), "another boot"),
            (good(), verdict(&[("boot_id", "other".into())]), "another boot"),
            (Fresh { config_hash: "2".into(), ..good() }, verdict(&[]), "another configuration"),
            (good(), verdict(&[("config_hash", "2".into())]), "another configuration"),
            (Fresh { caught_up: false, ..good() }, verdict(&[]), "behind the kernel log"),
            (Fresh { pass_age: Some(30.1), ..good() }, verdict(&[]), "too old"),
            (Fresh { pass_age: None, ..good() }, verdict(&[]), "too old"),
            (good(), verdict(&[("mode", "epilog".into())]), "another pass"),
            (good(), verdict(&[("drain", true.into())]), "a fault is open"),
            (good(), "{half".into(), "no verdict"),
        ];
        for (answer, verdict, why) in stale {
            let said = asked(&answer, &verdict).unwrap_err();
            assert!(said.contains(why), "{said} / {why}");
        }
    }

    #[test]
    fn nobody_there_is_said() {
        let dir = tempfile::tempdir().unwrap();
        let mut config = Config::default();
        config.paths.run_dir = dir.path().into();
        assert!(fresh(&config).unwrap_err().contains("does not answer"));
        assert!(!stands(&config));
        // A folder with what a dead watch left.
        drop(UnixListener::bind(socket(dir.path())).unwrap());
        std::fs::write(lock(dir.path()), "").unwrap();
        std::fs::write(dir.path().join("verdict.json"), verdict(&[])).unwrap();
        assert!(fresh(&config).is_err() && !stands(&config));
        let held = File::open(lock(dir.path())).unwrap();
        assert!(sys::try_lock(&held).unwrap());
        assert!(stands(&config));
    }
}
