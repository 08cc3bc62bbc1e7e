//! The kernel logs of a node, followed: what is new in them becomes events of the state, each once, whoever reads first.
//!
//! A pass that runs once and the resident `watch` use the same followers. What a follower has read but not yet
//! [committed](Followers::commit) lives in memory only; the cursor in the state moves together with the events, so a
//! process that is killed in between loses nothing: the next one reads those records again.

use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::config::Config;
use crate::facts::{KernelFacts, SeenEvent};
use crate::kmsg::{Cursor, Reader};
use crate::state::State;
use crate::xid::{Drain, Fold, Folded, Scanner, policy};

/// All logs of a node: the kernel's own and the further files of the configuration.
#[derive(Debug)]
pub struct Followers {
    logs: Vec<Follower>,
    /// Records lost to ring overruns since this was made.
    lost: u64,
}

impl Followers {
    /// Followers that stand where the state's cursors do when they first commit.
    #[must_use]
    pub fn new(config: &Config, boot_id: &str, state: Option<&State>) -> Self {
        let paths = std::iter::once(&config.paths.kmsg).chain(&config.paths.kmsg_files);
        let logs = paths.enumerate().map(|(i, path)| Follower::new(path, boot_id, i > 0, state)).collect();
        Followers { logs, lost: 0 }
    }

    /// Descriptors to wait on. Regular files have none: they have to be looked at now and then.
    #[must_use]
    pub fn fds(&self) -> Vec<RawFd> {
        let fd = |l: &Follower| l.reader.as_ref().and_then(|r| r.fd()).map(|fd| fd.as_raw_fd());
        self.logs.iter().filter_map(fd).collect()
    }

    /// True when some log has no descriptor to wait on.
    #[must_use]
    pub fn must_be_looked_at(&self) -> bool {
        self.fds().len() < self.logs.len()
    }

    /// Reads what is new, at most until `limit`, and keeps it. True when every log was read to its end.
    pub fn advance(&mut self, limit: Instant) -> bool {
        let read = self.logs.iter_mut().map(|l| l.advance(limit)).collect::<Vec<_>>();
        read.into_iter().all(|complete| complete)
    }

    /// Events wait to be committed.
    #[must_use]
    pub fn has_events(&self) -> bool {
        self.logs.iter().any(|l| l.events > 0)
    }

    /// What was read asks for a look at the devices: a code whose meaning their state decides, or a
    /// gap that may have held one.
    ///
    /// Said once.
    pub fn take_look(&mut self) -> bool {
        let asked: Vec<bool> = self.logs.iter_mut().map(|log| std::mem::take(&mut log.look)).collect();
        asked.contains(&true)
    }

    /// Records lost to ring overruns since this was made.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Adds what is new to the state, whose lock the caller holds, and moves its cursors. Records that another pass has
    /// read in the meantime are not counted twice. `now` is in seconds since boot.
    pub fn commit(&mut self, history: &mut State, now: f64, limit: Instant) -> KernelFacts {
        let mut facts = KernelFacts::default();
        for log in &mut self.logs {
            facts.lost += log.commit(history, now, limit);
            facts.unread.extend(log.error.clone());
        }
        self.lost += facts.lost;
        facts
    }
}

#[derive(Debug)]
struct Follower {
    path: PathBuf,
    boot_id: String,
    /// One of the further files: it need not exist yet.
    optional: bool,
    reader: Option<Reader>,
    /// Where the state stood at the last commit.
    base: Option<Cursor>,
    /// How far this follower has read.
    cursor: Option<Cursor>,
    scanner: Scanner,
    fold: Fold,
    events: u64,
    look: bool,
    lost: u64,
    /// Inode, length and time of change of a regular file when it was read last.
    seen: Option<(u64, u64, i64, i64)>,
    error: Option<String>,
}

impl Follower {
    fn new(path: &Path, boot_id: &str, optional: bool, state: Option<&State>) -> Self {
        let cursor = state.and_then(|s| s.cursors.get(&path.display().to_string())).cloned();
        Follower {
            path: path.into(),
            boot_id: boot_id.into(),
            optional,
            reader: None,
            base: cursor.clone(),
            cursor,
            scanner: Scanner::default(),
            fold: Fold::default(),
            events: 0,
            look: false,
            lost: 0,
            seen: None,
            error: None,
        }
    }

    /// Forgets what was read and stands at `cursor`.
    fn stand_at(&mut self, cursor: Option<Cursor>) {
        self.scanner = Scanner::default();
        self.forget();
        self.base.clone_from(&cursor);
        self.cursor = cursor;
        self.seen = None;
    }

    fn forget(&mut self) {
        self.fold = Fold::default();
        (self.events, self.lost) = (0, 0);
    }

    /// True when the end was reached. A log that cannot be read is tried again at the next commit.
    fn advance(&mut self, limit: Instant) -> bool {
        if self.error.is_some() {
            return true;
        }
        match self.try_advance(limit) {
            Ok(complete) => complete,
            // A followed file that nobody has written yet is an empty one; the kernel's own log must be there.
            Err(_) if self.optional && !self.path.exists() => {
                self.reader = None;
                true
            }
            Err(e) => {
                // What was handed out before the error will be handed out again.
                self.stand_at(self.base.clone());
                self.reader = None;
                self.error = Some(e.to_string());
                true
            }
        }
    }

    fn try_advance(&mut self, limit: Instant) -> Result<bool, crate::kmsg::Error> {
        if self.reader.is_none() {
            self.reader = Some(Reader::open(&self.path, &self.boot_id)?);
        }
        let Some(reader) = self.reader.as_mut() else { return Ok(true) };
        let mut seen = None;
        if reader.fd().is_none() {
            seen = std::fs::metadata(&self.path).ok().map(|m| (m.ino(), m.len(), m.mtime(), m.mtime_nsec()));
            if seen.is_some() && seen == self.seen {
                return Ok(true);
            }
        }
        let (scanner, fold) = (&mut self.scanner, &mut self.fold);
        let (events, look) = (&mut self.events, &mut self.look);
        let batch = reader.read_from(self.cursor.as_ref(), limit, |record| {
            scanner.push(&record, |event| {
                *events += 1;
                *look |= policy(&event).drain != Drain::No;
                fold.add(event);
            });
        })?;
        self.cursor = Some(batch.cursor);
        self.lost += batch.lost;
        self.look |= batch.lost > 0;
        // Read only in part: it has to be looked at again, changed or not.
        self.seen = seen.filter(|_| batch.complete);
        Ok(batch.complete)
    }

    fn commit(&mut self, history: &mut State, now: f64, limit: Instant) -> u64 {
        let log = self.path.display().to_string();
        let stands = history.cursors.get(&log);
        self.error = None;
        if stands != self.base.as_ref() {
            self.stand_at(stands.cloned());
        }
        self.advance(limit);
        let boot_id = &self.boot_id;
        let seen = |f: Folded| SeenEvent {
            key: format!("{log} {boot_id}/{}", f.event.seq),
            event: f.event,
            count: f.count,
            seen: now,
            handled: false,
        };
        let lost = self.lost;
        history.add_events(std::mem::take(&mut self.fold).finish().into_iter().map(seen).collect());
        if lost > 0 {
            tracing::warn!("{log}: {lost} kernel log records were overwritten before they could be read");
        }
        self.forget();
        if let Some(cursor) = &self.cursor {
            history.cursors.insert(log, cursor.clone());
        }
        self.base.clone_from(&self.cursor);
        lost
    }
}

/// Longest time that one commit of a pass reads; what is left is read by the next.
pub const READ_LIMIT: Duration = Duration::from_millis(1500);

#[cfg(test)]
mod tests {
    use super::*;

    const XID: &str = "NVRM: Xid (PCI:0000:5d:00): 79, GPU has fallen off the bus.";

    struct Node {
        dir: tempfile::TempDir,
        config: Config,
        state: State,
    }

    impl Node {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let mut config = Config::default();
            config.paths.kmsg = dir.path().join("kmsg");
            std::fs::write(&config.paths.kmsg, "").unwrap();
            Node { dir, config, state: State::default() }
        }

        fn write(&self, from: u64, to: u64, text: &str) {
            use std::io::Write;
            let mut file = std::fs::OpenOptions::new().append(true).open(&self.config.paths.kmsg).unwrap();
            for seq in from..to {
                writeln!(file, "3,{seq},{seq},-;{text}").unwrap();
            }
        }

        fn followers(&self) -> Followers {
            Followers::new(&self.config, "boot", Some(&self.state))
        }

        fn commit(&mut self, followers: &mut Followers) -> KernelFacts {
            followers.commit(&mut self.state, 1.0, far())
        }
    }

    fn far() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    #[test]
    fn what_was_read_but_not_committed_is_read_again_by_the_next_process() {
        let mut node = Node::new();
        let mut first = node.followers();
        node.write(0, 1, XID);
        assert!(first.advance(far()) && first.has_events() && first.take_look());
        drop(first);
        let mut second = node.followers();
        node.commit(&mut second);
        assert_eq!(node.state.events.len(), 1);
        assert!(!second.has_events());
        drop(second);
        let mut third = node.followers();
        assert!(third.advance(far()) && !third.has_events(), "committed once, never again");
    }

    #[test]
    fn a_line_that_another_pass_has_read_counts_once() {
        let mut node = Node::new();
        let mut watch = node.followers();
        node.commit(&mut watch);
        node.write(0, 3, XID);
        watch.advance(far());
        let mut pass = node.followers();
        node.commit(&mut pass);
        assert_eq!(node.state.events[0].count, 3);
        node.write(3, 4, XID);
        node.commit(&mut watch);
        assert_eq!((node.state.events.len(), node.state.events[0].count), (1, 4));
    }

    #[test]
    fn a_gap_is_counted_once_and_asks_for_a_look() {
        let mut node = Node::new();
        let mut watch = node.followers();
        node.write(0, 1, "quiet");
        node.commit(&mut watch);
        node.write(101, 102, "quiet");
        assert!(watch.advance(far()) && watch.take_look() && !watch.has_events());
        assert_eq!(node.commit(&mut watch).lost, 100);
        assert!(!watch.take_look());
        assert_eq!(node.commit(&mut watch).lost, 0);
        assert_eq!(watch.lost(), 100);
    }

    #[test]
    fn a_program_s_fault_asks_for_no_look() {
        let node = Node::new();
        let mut watch = node.followers();
        node.write(0, 1, "NVRM: Xid (PCI:0000:5d:00): 31, pid=7, name=python3, Ch 00000008, intr 10000000.");
        assert!(watch.advance(far()) && watch.has_events() && !watch.take_look());
    }

    #[test]
    fn a_missing_kernel_log_is_said_and_a_missing_further_file_is_empty() {
        let mut node = Node::new();
        node.config.paths.kmsg_files = vec![node.dir.path().join("later")];
        std::fs::remove_file(&node.config.paths.kmsg).unwrap();
        let mut watch = node.followers();
        let facts = node.commit(&mut watch);
        assert_eq!(facts.unread.len(), 1, "{:?}", facts.unread);
        assert!(facts.unread[0].contains("kmsg"));
        // Both come to life.
        std::fs::write(&node.config.paths.kmsg, "").unwrap();
        std::fs::write(node.dir.path().join("later"), format!("3,5,5,-;{XID}\n")).unwrap();
        assert!(node.commit(&mut watch).unread.is_empty());
        assert_eq!(node.state.events.len(), 1);
    }
}
