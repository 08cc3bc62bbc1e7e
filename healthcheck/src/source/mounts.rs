//! Mounts, their answers to a stat, and space.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;

use super::child::{Ended, Outcome};
use crate::facts::{Mount, Reading, Space};
use crate::sys;

/// Mount table of this process, by mount point.
pub fn table(procfs: &Path) -> Reading<BTreeMap<String, Mount>> {
    let path = procfs.join("self/mounts");
    match std::fs::read_to_string(&path) {
        Ok(text) => Reading::Value(parse(&text)),
        Err(e) => Reading::Unknown(format!("{} cannot be read: {e}", path.display())),
    }
}

/// Parses `SOURCE POINT TYPE OPTIONS 0 0` lines; blanks in names are `\040`.
fn parse(text: &str) -> BTreeMap<String, Mount> {
    let mut mounts = BTreeMap::new();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        if let (Some(source), Some(point), Some(fstype), Some(options)) =
            (words.next(), words.next(), words.next(), words.next())
        {
            mounts.insert(
                unescape(point),
                Mount {
                    source: unescape(source),
                    fstype: fstype.into(),
                    writable: options.split(',').any(|o| o == "rw"),
                },
            );
        }
    }
    mounts
}

fn unescape(text: &str) -> String {
    let mut out = Vec::new();
    let bytes = text.as_bytes();
    let mut i = 0;
    while let Some(&b) = bytes.get(i) {
        let octal =
            bytes.get(i + 1..i + 4).filter(|o| b == b'\\' && o.iter().all(|c| (b'0'..b'8').contains(c)));
        if let Some(&[a, b, c]) = octal {
            out.push((a - b'0').wrapping_mul(64).wrapping_add((b - b'0') * 8 + (c - b'0')));
            i += 4;
        } else {
            out.push(b);
            i += 1;
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// Name of the probe of one mount, fit for a file name.
pub fn label(path: &Path) -> String {
    format!("mount{}", path.display().to_string().replace('/', "-"))
}

/// A folder that nobody has.
const NO_FOLDER: &str = ".clustermax-probe-no-such-folder";

/// Body of a probe's child: a stat that asks the server, and where jobs write, the way that writes go. Exit code 1 when
/// it answers with an error.
pub fn child(path: &Path, writes: bool) -> ExitCode {
    let answers = std::fs::metadata(path).and_then(|_| std::fs::read_dir(path).map(|mut d| d.next()));
    match answers.and_then(|_| if writes { try_write(path) } else { Ok(()) }) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            println!("{e}");
            ExitCode::FAILURE
        }
    }
}

/// Changes nothing: a folder that is not there is removed. A file system that reads and takes no writes (frozen, or one
/// whose server does not answer) holds it as it holds any write.
fn try_write(path: &Path) -> std::io::Result<()> {
    match std::fs::remove_dir(path.join(NO_FOLDER)) {
        // Who may write, and whether it is mounted so, is not this probe's question.
        Err(e)
            if [libc::ENOENT, libc::EACCES, libc::EPERM, libc::EROFS]
                .contains(&e.raw_os_error().unwrap_or(0)) =>
        {
            Ok(())
        }
        other => other,
    }
}

/// What a probe's end means.
pub fn answer(outcome: &Outcome) -> Reading<()> {
    match &outcome.ended {
        Ended::Exit(Some(0)) => Reading::Value(()),
        Ended::Exit(Some(1)) => Reading::Unknown(outcome.stdout.trim().to_string()),
        other => super::failed(other),
    }
}

/// Space of a local file system.
pub fn space(path: &Path) -> Reading<Space> {
    match sys::fs_usage(path) {
        Ok(u) => Reading::Value(Space { blocks_percent: u.blocks_percent, inodes_percent: u.inodes_percent }),
        Err(e) => Reading::Unknown(format!("{} cannot be read: {e}", path.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_lines() {
        let m = parse(
            "nas:/a /data nfs4 rw,relatime,vers=4.2 0 0\n/dev/sda1 /my\\040disk ext4 ro,noatime 0 0\nbroken\n",
        );
        assert_eq!(m["/data"], Mount { source: "nas:/a".into(), fstype: "nfs4".into(), writable: true });
        assert!(!m["/my disk"].writable);
        assert_eq!(m.len(), 2);
    }

    #[test]
    fn a_probe_of_writing_leaves_nothing_and_reports_what_is_wrong() {
        let dir = tempfile::tempdir().unwrap();
        assert!(try_write(dir.path()).is_ok());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        std::fs::write(dir.path().join("file"), "").unwrap();
        assert!(try_write(&dir.path().join("file")).is_err());
    }

    #[test]
    fn space_of_the_root() {
        let Reading::Value(s) = space(Path::new("/")) else { panic!("no space of /") };
        assert!((0.0..=100.0).contains(&s.blocks_percent));
        assert!(matches!(space(Path::new("/nonexistent")), Reading::Unknown(_)));
    }
}
