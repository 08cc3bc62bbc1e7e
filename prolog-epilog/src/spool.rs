//! Drains that the controller did not answer: kept in `STATE_DIR/spool/`, one file a node and fault, until
//! `clustermax-drain deliver` (run by every periodic pass) has brought them to an answer.
//!
//! A drain spooled before the last boot is still delivered when hands on hardware are needed (`act=repair`), for a
//! boot mends no hardware. Otherwise the boot has done what the reason asks for; if the fault is still there,
//! the first pass after it says so anew.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use healthcheck::config::is_node_name;
use healthcheck::verdict::Action;
use serde::{Deserialize, Serialize};

use crate::files::{self, FileError};
use crate::reason::Reason;

/// Version tag of a spooled drain.
const SCHEMA: &str = "clustermax-spool/1";
/// A temporary file this old belongs to a writer that was killed.
const STALE: Duration = Duration::from_secs(60);

/// A drain that waits for the controller.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spooled {
    /// `clustermax-spool/1`.
    pub schema: String,
    /// Slurm's name of the node.
    pub node: String,
    /// The reason, ours.
    pub reason: String,
    /// Jobs to tell.
    #[serde(default)]
    pub jobs: Vec<u32>,
    /// When it was spooled, UTC, RFC 3339.
    pub created: String,
    /// Kernel boot id at that time.
    pub boot_id: String,
    /// Why it could not be written at once.
    #[serde(default)]
    pub why: String,
}

impl Spooled {
    /// A drain to be kept.
    #[must_use]
    pub fn new(node: &str, reason: &str, jobs: &[u32], created: &str, boot_id: &str, why: &str) -> Self {
        Spooled {
            schema: SCHEMA.to_string(),
            node: node.to_string(),
            reason: reason.to_string(),
            jobs: jobs.to_vec(),
            created: created.to_string(),
            boot_id: boot_id.to_string(),
            why: why.to_string(),
        }
    }

    /// True when a boot since then has done what the reason asks for.
    #[must_use]
    pub fn mended_by_boot(&self, boot_id: &str) -> bool {
        let action = Reason::parse(&self.reason).and_then(|r| r.action);
        self.boot_id != boot_id && action.is_some_and(|a| a < Action::Repair)
    }
}

fn file_name(node: &str, reason: &str) -> String {
    let id = Reason::parse(reason).and_then(|r| r.id).unwrap_or("00000000");
    format!("{node}-{id}.json")
}

/// The folder of waiting drains.
#[derive(Debug)]
pub struct Spool {
    dir: PathBuf,
}

/// What lies in the spool.
#[derive(Debug, Default)]
pub struct Listing {
    /// In the order in which they were spooled.
    pub waiting: Vec<(PathBuf, Spooled)>,
    /// Files that are no spooled drain, and why; they were set aside as `NAME.broken`.
    pub broken: Vec<(PathBuf, String)>,
}

impl Spool {
    /// The spool of this state folder.
    #[must_use]
    pub fn new(state_dir: &Path) -> Self {
        Spool { dir: state_dir.join("spool") }
    }

    /// Keeps a drain. One for the same node and fault stays as it was, with the new jobs added.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn keep(&self, drain: &Spooled) -> Result<(), FileError> {
        let path = self.dir.join(file_name(&drain.node, &drain.reason));
        let old = files::read(&path)?.and_then(|text| parse(&text).ok());
        let mut kept = old.unwrap_or_else(|| drain.clone());
        for job in &drain.jobs {
            if !kept.jobs.contains(job) {
                kept.jobs.push(*job);
            }
        }
        files::write_json(&path, &kept)
    }

    /// Drops the drain of this node for the fault that `reason` names: it reached the controller by another call, and
    /// an operator who gives the node back must not see it come again.
    ///
    /// # Errors
    /// The file cannot be removed.
    pub fn forget(&self, node: &str, reason: &str) -> Result<(), FileError> {
        files::remove(&self.dir.join(file_name(node, reason)))
    }

    /// Takes the right to deliver; `None` when another process holds it. It ends when the file is dropped.
    ///
    /// # Errors
    /// The lock file cannot be created or locked.
    pub fn lock(&self) -> Result<Option<File>, FileError> {
        let path = self.dir.join(".lock");
        let failed = |source| FileError { path: path.clone(), verb: "locked", source };
        files::make_private_dir(&self.dir)?;
        let file = File::options().create(true).append(true).open(&path).map_err(failed)?;
        Ok(healthcheck::sys::try_lock(&file).map_err(failed)?.then_some(file))
    }

    /// What waits, oldest first. Nothing is changed.
    ///
    /// # Errors
    /// The folder cannot be read; a missing one is empty.
    pub fn list(&self) -> Result<Listing, FileError> {
        let mut listing = Listing::default();
        for path in self.paths()? {
            match files::read(&path) {
                // Delivered in between.
                Ok(None) => {}
                Ok(Some(text)) => match parse(&text) {
                    Ok(spooled) => listing.waiting.push((path, spooled)),
                    Err(why) => listing.broken.push((path, why)),
                },
                Err(e) => listing.broken.push((path, e.to_string())),
            }
        }
        listing.waiting.sort_by(|(a, x), (b, y)| (&x.created, a).cmp(&(&y.created, b)));
        Ok(listing)
    }

    /// Sets a broken file aside and removes what killed writers left. Call with the lock held.
    pub fn tidy(&self, listing: &Listing) {
        for (path, _) in &listing.broken {
            let mut aside = path.clone().into_os_string();
            aside.push(".broken");
            // It stays where it is then, and is named again next time.
            let _ = std::fs::rename(path, aside);
        }
        let now = SystemTime::now();
        for entry in std::fs::read_dir(&self.dir).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let temporary = name.to_str().is_some_and(|n| n.starts_with('.') && n.contains(".json."));
            let age =
                entry.metadata().and_then(|m| m.modified()).ok().and_then(|t| now.duration_since(t).ok());
            if temporary && age.is_some_and(|age| age > STALE) {
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }

    fn paths(&self) -> Result<Vec<PathBuf>, FileError> {
        let failed = |source| FileError { path: self.dir.clone(), verb: "read", source };
        let entries = match std::fs::read_dir(&self.dir) {
            Ok(entries) => entries,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(failed(e)),
        };
        let mut paths = Vec::new();
        for entry in entries {
            let path = entry.map_err(failed)?.path();
            let hidden = path.file_name().is_some_and(|n| n.as_encoded_bytes().starts_with(b"."));
            if !hidden && path.extension().is_some_and(|e| e == "json") {
                paths.push(path);
            }
        }
        Ok(paths)
    }
}

fn parse(text: &str) -> Result<Spooled, String> {
    let spooled: Spooled = serde_json::from_str(text).map_err(|e| e.to_string())?;
    if spooled.schema != SCHEMA {
        return Err(format!("its schema is {:?}, not {SCHEMA}", spooled.schema));
    }
    if !is_node_name(&spooled.node) {
        return Err(format!("{:?} is no node name", spooled.node));
    }
    crate::reason::normalise(&spooled.reason).map_err(|e| e.to_string())?;
    Ok(spooled)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drain(id: &str, action: &str, created: &str) -> Spooled {
        Spooled::new("n1", &format!("cmx:x t; act={action} id={id}"), &[], created, "boot-a", "no answer")
    }

    fn names(listing: &Listing) -> Vec<String> {
        listing.waiting.iter().map(|(p, _)| p.file_name().unwrap().to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn drains_are_kept_once_and_listed_in_order() {
        let dir = tempfile::tempdir().unwrap();
        let spool = Spool::new(dir.path());
        assert!(spool.list().unwrap().waiting.is_empty());
        assert!(!dir.path().join("spool").exists(), "looking creates nothing");
        let mut first = drain("0000000b", "reboot", "2026-01-01T00:00:01Z");
        first.jobs = vec![5];
        spool.keep(&first).unwrap();
        spool.keep(&drain("0000000a", "repair", "2026-01-01T00:00:02Z")).unwrap();
        let mut again = drain("0000000b", "reboot", "2026-01-01T00:00:09Z");
        again.jobs = vec![5, 6];
        spool.keep(&again).unwrap();
        let listing = spool.list().unwrap();
        assert_eq!(names(&listing), ["n1-0000000b.json", "n1-0000000a.json"]);
        assert_eq!(listing.waiting[0].1.jobs, [5, 6]);
        assert_eq!(listing.waiting[0].1.created, "2026-01-01T00:00:01Z");
    }

    #[test]
    fn broken_files_are_set_aside_and_hide_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let spool = Spool::new(dir.path());
        spool.keep(&drain("0000000a", "repair", "t")).unwrap();
        let at = |name: &str| dir.path().join("spool").join(name);
        std::fs::write(at("n1-half.json"), "{\"schema\":\"clustermax-sp").unwrap();
        std::fs::write(at("empty.json"), "").unwrap();
        std::fs::write(
            at("other.json"),
            "{\"schema\":\"x/1\",\"node\":\"n\",\"reason\":\"cmx:x\",\"created\":\"\",\"boot_id\":\"\"}",
        )
        .unwrap();
        std::fs::write(at("evil.json"), "{\"schema\":\"clustermax-spool/1\",\"node\":\"n[1-9]\",\"reason\":\"cmx:x\",\"created\":\"\",\"boot_id\":\"\"}").unwrap();
        std::fs::write(at(".n1-x.json.77"), "{").unwrap();
        let listing = spool.list().unwrap();
        assert_eq!(names(&listing), ["n1-0000000a.json"]);
        assert_eq!(listing.broken.len(), 4);
        spool.tidy(&listing);
        assert!(at("n1-half.json.broken").exists());
        assert!(at(".n1-x.json.77").exists(), "its writer may still be at work");
        assert!(spool.list().unwrap().broken.is_empty());
    }

    #[test]
    fn one_delivers_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let spool = Spool::new(dir.path());
        let held = spool.lock().unwrap();
        assert!(held.is_some());
        assert!(spool.lock().unwrap().is_none());
        drop(held);
        assert!(spool.lock().unwrap().is_some());
    }

    #[test]
    fn a_boot_mends_everything_but_hardware() {
        for (action, boot, mended) in [
            ("reboot", "boot-a", false),
            ("reboot", "boot-b", true),
            ("reset_gpu", "boot-b", true),
            ("repair", "boot-b", false),
            ("explode", "boot-b", false),
        ] {
            assert_eq!(drain("0000000a", action, "t").mended_by_boot(boot), mended, "{action} {boot}");
        }
    }
}
