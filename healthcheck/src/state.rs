//! What a node remembers between passes: one small JSON file under a lock.
//!
//! The state says how far the kernel log was read, which events still wait for a drain, how often a
//! suspicion was seen in a row, and which GPUs this node had. It is written atomically; a half-written or
//! foreign file is set aside, never trusted and never a reason to stop.
//!
//! It lives in `STATE_DIR/state.json`. While that folder takes nothing (full disk, read-only file system) it is kept in
//! `RUN_DIR/state.json`, which a reboot empties as it does the kernel log: what was acted on is then still known to
//! every pass. Of two files the one written last counts. The lock is in `RUN_DIR`, so that it can always be had.
//!
//! Times in it are seconds since boot ([`sys::since_boot`]): nobody sets that clock.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::config::Paths;
use crate::facts::SeenEvent;
use crate::history::Counters;
use crate::jobs::make_public_dir;
use crate::kernel_lines::{self, Keep};
use crate::kmsg::Cursor;
use crate::sys;
use crate::totals::Totals;
use crate::xid::recovery_action;

/// Most kernel events kept; the oldest handled ones go first.
const MAX_EVENTS: usize = 256;
/// Handled events are shown for a day.
const SHOW_HANDLED: f64 = 86_400.0;

/// The remembered state.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// Boot the events and strikes belong to.
    pub boot_id: String,
    /// When it was written, seconds since boot.
    #[serde(default)]
    pub written: f64,
    /// How far each kernel-log file was read, by path.
    #[serde(default)]
    pub cursors: BTreeMap<String, Cursor>,
    /// Kernel events.
    #[serde(default)]
    pub events: Vec<SeenEvent>,
    /// Suspicions seen in a row, by `CHECK TOKEN DEVICE`.
    #[serde(default)]
    pub strikes: BTreeMap<String, Strike>,
    /// Counters over time.
    #[serde(default)]
    pub counters: Counters,
    /// Counts and last results, for those who look from outside.
    #[serde(default)]
    pub totals: Box<Totals>,
    /// GPUs as last seen, by PCI address: a vanished GPU still counts as this node's.
    #[serde(default)]
    pub inventory: BTreeMap<String, KnownGpu>,
}

/// A suspicion seen in a row.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Strike {
    /// How often.
    pub count: u32,
    /// Seconds since boot of the last time.
    pub last: f64,
}

/// A GPU this node had when it was last seen.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct KnownGpu {
    /// `/dev/nvidiaN`.
    pub minor: u32,
    /// UUID.
    pub uuid: String,
}

/// The state file, locked for as long as this lives.
pub struct Locked {
    path: PathBuf,
    spare: PathBuf,
    _lock: File,
    /// The state.
    pub state: State,
    /// What was wrong with the file, if anything: then what the node had remembered is lost.
    pub complaint: Option<String>,
}

impl Locked {
    /// Locks `RUN_DIR/state.lock` and reads the state; waits up to `wait` for another pass that holds it. `now` is in
    /// seconds since boot.
    ///
    /// # Errors
    /// One sentence: the lock cannot be made or taken, or another pass holds it for too long.
    pub fn open(paths: &Paths, boot_id: &str, now: f64, wait: Duration) -> Result<Locked, String> {
        make_public_dir(&paths.run_dir)?;
        // Nobody else may hold it: whoever can open a file can lock it.
        let lock_path = paths.run_dir.join("state.lock");
        let lock = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(&lock_path)
            .map_err(|e| format!("{} cannot be opened: {e}", lock_path.display()))?;
        let until = Instant::now() + wait;
        loop {
            match sys::try_lock(&lock) {
                Ok(true) => break,
                Ok(false) if Instant::now() < until => std::thread::sleep(Duration::from_millis(5)),
                Ok(false) => return Err(format!("{} is held by another pass", lock_path.display())),
                Err(e) => return Err(format!("{} cannot be locked: {e}", lock_path.display())),
            }
        }
        let [path, spare] = files(paths);
        let (mut state, mut complaint) = read(&path);
        if let Some(newer) = load(&spare).filter(|s| s.is_newer(&state, boot_id)) {
            state = newer.with_gpus_of(state);
            complaint = None;
        }
        state.new_boot(boot_id);
        state.forget_old(now);
        Ok(Locked { path, spare, _lock: lock, state, complaint })
    }

    /// Writes the state back. When its folder takes nothing it is kept in `RUN_DIR`, and the sentence given says so.
    ///
    /// # Errors
    /// One sentence naming both files: what was acted on is forgotten with this process.
    pub fn save(&mut self) -> Result<Option<String>, String> {
        self.state.written = sys::since_boot();
        let text = serde_json::to_string(&self.state).map_err(|e| e.to_string())?;
        let (path, spare) = (&self.path, &self.spare);
        let dir = path.parent().unwrap_or(Path::new("/"));
        let written = make_private_dir(dir).and_then(|()| write_atomic(path, text.as_bytes(), 0o600, None));
        let Err(why) = written else {
            let _ = std::fs::remove_file(spare);
            return Ok(None);
        };
        let why = format!("{} cannot be written: {why}", path.display());
        match write_atomic(spare, text.as_bytes(), 0o600, None) {
            Ok(()) => Ok(Some(format!("{why}; until it can, the state is kept in {}", spare.display()))),
            Err(e) => Err(format!("{why}; neither can {}: {e}", spare.display())),
        }
    }
}

/// The state as it was last written, for a pass that cannot have the lock; nothing is changed. None when it cannot
/// be read, or was never written.
#[must_use]
pub fn peek(paths: &Paths, boot_id: &str, now: f64) -> Option<State> {
    let [path, spare] = files(paths).map(|path| load(&path));
    let known = path.is_some();
    let state = path.unwrap_or_default();
    let mut state = match spare.filter(|s| s.is_newer(&state, boot_id)) {
        Some(newer) => newer.with_gpus_of(state),
        None => known.then_some(state)?,
    };
    state.new_boot(boot_id);
    state.forget_old(now);
    Some(state)
}

/// Where the state lives, and where it lives when it cannot live there.
fn files(paths: &Paths) -> [PathBuf; 2] {
    [&paths.state_dir, &paths.run_dir].map(|dir| dir.join("state.json"))
}

fn load(path: &Path) -> Option<State> {
    serde_json::from_str(&std::fs::read_to_string(path).ok()?).ok()
}

fn read(path: &Path) -> (State, Option<String>) {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return (State::default(), None),
        Err(e) => return (State::default(), Some(format!("{} cannot be read: {e}", path.display()))),
    };
    match serde_json::from_str(&text) {
        Ok(state) => (state, None),
        Err(e) => {
            let aside = path.with_extension("json.bad");
            let kept = match std::fs::rename(path, &aside) {
                Ok(()) => format!("kept as {}", aside.display()),
                Err(e) => format!("it could not be set aside: {e}"),
            };
            (
                State::default(),
                Some(format!("{} is not understood ({e}); {kept}; starting afresh", path.display())),
            )
        }
    }
}

impl State {
    /// This one, kept in `RUN_DIR`, is of this boot and was written after what the disk holds.
    fn is_newer(&self, disk: &State, boot_id: &str) -> bool {
        self.boot_id == boot_id && (disk.boot_id != boot_id || self.written > disk.written)
    }

    /// A disk that could not be read for a while still knows GPUs that have vanished.
    fn with_gpus_of(mut self, disk: State) -> State {
        for (pci, gpu) in disk.inventory {
            self.inventory.entry(pci).or_insert(gpu);
        }
        self
    }

    /// A reboot closes events and suspicions; GPUs stay known.
    fn new_boot(&mut self, boot_id: &str) {
        if self.boot_id != boot_id {
            self.boot_id = boot_id.to_string();
            self.events.clear();
            self.strikes.clear();
            self.counters = Counters::default();
        }
    }

    fn forget_old(&mut self, now: f64) {
        self.events.retain(|e| !e.handled || (now - e.seen) < SHOW_HANDLED);
    }

    /// Adds new events; one like an open event (same device, code and text) raises its count.
    ///
    /// An Xid 154 "changed to None" takes back what earlier ones of that GPU asked for.
    pub fn add_events(&mut self, new: Vec<SeenEvent>) {
        for event in new {
            self.totals.event(&event, &self.inventory);
            if recovery_action(&event.event) == Some(0) {
                let same = |e: &&mut SeenEvent| {
                    e.event.pci == event.event.pci && recovery_action(&e.event).is_some()
                };
                self.events.iter_mut().filter(same).for_each(|e| e.handled = true);
                continue;
            }
            if kernel_lines::row_of(&event.event).is_some_and(|(_, r)| r.keep == Keep::Clear) {
                let same = |e: &&mut SeenEvent| {
                    e.event.token() == event.event.token() && e.event.device() == event.event.device()
                };
                self.events.iter_mut().filter(same).for_each(|e| e.handled = true);
                continue;
            }
            match self.events.iter_mut().find(|e| !e.handled && e.same_fault(&event)) {
                Some(open) => open.count += event.count,
                None => self.events.push(event),
            }
        }
        while self.events.len() > MAX_EVENTS {
            let oldest = self.events.iter().position(|e| e.handled).unwrap_or(0);
            self.events.remove(oldest);
        }
    }

    /// Closes events older than `age` seconds, by the clock of the kernel log. For a node that lost its memory:
    /// what is old was most likely answered, and a node that an operator gave back must not be drained for it again.
    pub fn close_older(&mut self, age: f64, uptime: f64) {
        #[allow(clippy::cast_precision_loss, reason = "microseconds of centuries fit")]
        let old = |e: &SeenEvent| uptime - e.event.usec as f64 / 1e6 > age;
        self.events.iter_mut().filter(|e| old(e)).for_each(|e| e.handled = true);
    }

    /// Marks events as answered.
    pub fn handled(&mut self, keys: &[String]) {
        for e in self.events.iter_mut().filter(|e| keys.contains(&e.key)) {
            e.handled = true;
        }
    }
}

/// Makes a folder that only its owner can enter.
///
/// # Errors
/// What the system reports.
pub fn make_private_dir(dir: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)
}

/// Replaces a file in one step: readers see the old content or the new, never half of it. A symbolic link
/// at the target is replaced, not followed.
///
/// # Errors
/// What the system reports; the old content is then still there.
pub fn write_atomic(path: &Path, content: &[u8], mode: u32, group: Option<u32>) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let dir = path.parent().unwrap_or(Path::new("."));
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let temporary = dir.join(format!(".{name}.{}", std::process::id()));
    let _ = std::fs::remove_file(&temporary);
    let mut file = File::options()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW)
        .open(&temporary)?;
    let done = (|| {
        file.write_all(content)?;
        if let Some(gid) = group {
            sys::set_group(&file, gid)?;
        }
        file.set_permissions(std::fs::Permissions::from_mode(mode))?;
        std::fs::rename(&temporary, path)
    })();
    if done.is_err() {
        let _ = std::fs::remove_file(&temporary);
    }
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(dir: &Path) -> Paths {
        Paths { state_dir: dir.join("state"), run_dir: dir.join("run"), ..Paths::default() }
    }

    /// Nothing can be written where a file stands in the folder's place, not even by root.
    fn block(dir: &Path) {
        let _ = std::fs::rename(dir, dir.with_extension("aside"));
        std::fs::write(dir, "").unwrap();
    }

    fn unblock(dir: &Path) {
        std::fs::remove_file(dir).unwrap();
        let _ = std::fs::rename(dir.with_extension("aside"), dir);
    }

    fn event(seq: u64) -> SeenEvent {
        let line = format!("3,{seq},1,-;NVRM: Xid (PCI:3a1c:19:00): 79, GPU has fallen off the bus.");
        let record = crate::kmsg::parse_record(line.as_bytes()).unwrap();
        let event = crate::xid::events(&record).remove(0);
        SeenEvent { key: seq.to_string(), event, count: 1, seen: 0.0, handled: false }
    }

    #[test]
    fn a_folder_that_takes_nothing_does_not_make_the_node_forget() {
        let dir = tempfile::tempdir().unwrap();
        let d = paths(dir.path());
        let open = || Locked::open(&d, "b", 0.0, Duration::ZERO).unwrap();
        let mut s = open();
        s.state.inventory.insert("0000:5d:00.0".into(), KnownGpu { minor: 3, uuid: "GPU-1".into() });
        assert_eq!(s.save(), Ok(None));
        drop(s);
        block(&d.state_dir);
        let mut s = open();
        s.state.add_events(vec![event(1)]);
        s.state.handled(&["1".into()]);
        let said = s.save().unwrap().unwrap();
        assert!(said.contains("state/state.json cannot be written") && said.contains("kept in"), "{said}");
        drop(s);
        // Another pass, with the lock and without it.
        assert!(open().state.events[0].handled && peek(&d, "b", 0.0).unwrap().events[0].handled);
        // The disk is mended: what it holds is older.
        unblock(&d.state_dir);
        let mut s = open();
        assert!(s.state.inventory.contains_key("0000:5d:00.0"), "known before the disk went");
        assert!(s.state.events[0].handled && peek(&d, "b", 0.0).unwrap().events[0].handled);
        assert_eq!(s.save(), Ok(None));
        drop(s);
        assert!(!d.run_dir.join("state.json").exists());
        assert!(open().state.events[0].handled);
    }

    #[test]
    fn what_is_kept_in_the_run_folder_counts_for_its_own_boot_and_only_while_it_is_newer() {
        let dir = tempfile::tempdir().unwrap();
        let d = paths(dir.path());
        let mut s = Locked::open(&d, "boot1", 0.0, Duration::ZERO).unwrap();
        s.state.add_events(vec![event(1)]);
        s.save().unwrap();
        let written = s.state.written;
        drop(s);
        // A process that was killed between two steps leaves the older file behind.
        let older = State { boot_id: "boot1".into(), written: written - 0.001, ..State::default() };
        std::fs::write(d.run_dir.join("state.json"), serde_json::to_string(&older).unwrap()).unwrap();
        assert_eq!(peek(&d, "boot1", 0.0).unwrap().events.len(), 1);
        assert_eq!(Locked::open(&d, "boot1", 0.0, Duration::ZERO).unwrap().state.events.len(), 1);
        let other = State { boot_id: "boot0".into(), written: written + 9.0, ..older };
        std::fs::write(d.run_dir.join("state.json"), serde_json::to_string(&other).unwrap()).unwrap();
        assert_eq!(peek(&d, "boot1", 0.0).unwrap().events.len(), 1);
    }

    #[test]
    fn two_folders_that_take_nothing_are_an_error_that_names_both() {
        let dir = tempfile::tempdir().unwrap();
        let d = paths(dir.path());
        let mut s = Locked::open(&d, "b", 0.0, Duration::ZERO).unwrap();
        block(&d.state_dir);
        block(&d.run_dir);
        let said = s.save().unwrap_err();
        assert!(said.contains("state/state.json") && said.contains("run/state.json"), "{said}");
    }

    #[test]
    fn state_survives_and_a_reboot_closes_events() {
        let dir = tempfile::tempdir().unwrap();
        let d = paths(dir.path());
        let mut s = Locked::open(&d, "boot1", 0.0, Duration::ZERO).unwrap();
        s.state.strikes.insert("k".into(), Strike { count: 2, last: 1.0 });
        s.state.inventory.insert("0000:5d:00.0".into(), KnownGpu { minor: 3, uuid: "GPU-1".into() });
        s.save().unwrap();
        drop(s);
        let s = Locked::open(&d, "boot1", 0.0, Duration::ZERO).unwrap();
        assert_eq!(s.state.strikes["k"].count, 2);
        drop(s);
        let s = Locked::open(&d, "boot2", 0.0, Duration::ZERO).unwrap();
        assert!(s.state.strikes.is_empty());
        assert_eq!(s.state.inventory.len(), 1);
    }

    #[test]
    fn a_recovery_action_taken_back_closes_what_was_asked() {
        let event = |seq: u64, text: &str| {
            let line = format!(
                "3,{seq},1,-;NVRM: Xid (PCI:3a1c:19:00): 154, pid=1, name=a, GPU recovery action changed from {text}"
            );
            let record = crate::kmsg::parse_record(line.as_bytes()).unwrap();
            let event = crate::xid::events(&record).remove(0);
            SeenEvent { key: seq.to_string(), event, count: 1, seen: 0.0, handled: false }
        };
        let mut state = State::default();
        state.add_events(vec![
            event(1, "0x0 (None) to 0x1 (GPU Reset Required)"),
            event(2, "0x1 (GPU Reset Required) to 0x2 (Node Reboot Required)"),
        ]);
        assert_eq!(state.events.iter().filter(|e| !e.handled).count(), 2, "they ask for different things");
        state.add_events(vec![event(3, "0x2 (Node Reboot Required) to 0x0 (None)")]);
        assert!(state.events.iter().all(|e| e.handled));
    }

    #[test]
    fn a_pass_without_the_lock_still_knows_what_was_done() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(peek(&paths(dir.path()), "b", 0.0), None);
        let mut held = Locked::open(&paths(dir.path()), "b", 0.0, Duration::ZERO).unwrap();
        held.state.strikes.insert("k".into(), Strike { count: 2, last: 1.0 });
        held.save().unwrap();
        assert!(Locked::open(&paths(dir.path()), "b", 0.0, Duration::ZERO).is_err());
        assert_eq!(peek(&paths(dir.path()), "b", 0.0).unwrap().strikes["k"].count, 2);
        assert!(peek(&paths(dir.path()), "another boot", 0.0).unwrap().strikes.is_empty());
        std::fs::write(paths(dir.path()).state_dir.join("state.json"), "{half").unwrap();
        assert_eq!(peek(&paths(dir.path()), "b", 0.0), None);
        assert!(
            paths(dir.path()).state_dir.join("state.json").exists(),
            "it is not this pass's to set aside"
        );
    }

    #[test]
    fn a_half_written_state_is_set_aside() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("state")).unwrap();
        std::fs::write(dir.path().join("state/state.json"), "{\"boot_id\":\"b").unwrap();
        let s = Locked::open(&paths(dir.path()), "b", 0.0, Duration::ZERO).unwrap();
        assert!(s.complaint.as_deref().unwrap().contains("starting afresh"));
        assert!(dir.path().join("state/state.json.bad").exists());
    }

    #[test]
    fn atomic_writes_replace_links_instead_of_following_them() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("precious");
        std::fs::write(&target, "keep").unwrap();
        let link = dir.path().join("verdict.json");
        std::os::unix::fs::symlink(&target, &link).unwrap();
        write_atomic(&link, b"new", 0o644, None).unwrap();
        assert_eq!(std::fs::read_to_string(&target).unwrap(), "keep");
        assert_eq!(std::fs::read_to_string(&link).unwrap(), "new");
    }
}
