//! Careful reading of small files that other programs of the suite wrote.

use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Longest verdict or job file that is read, in bytes.
pub(crate) const SIZE_LIMIT: u64 = 64 * 1024;

/// Content of a file that can be believed: regular, not a symbolic link, owned by one of `owners`, not writable
/// by group or others, at most `limit` bytes. None for everything else, at once: a FIFO does not block.
pub(crate) fn read_trusted(path: &Path, owners: &[u32], limit: u64) -> Option<Vec<u8>> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW | libc::O_NOCTTY)
        .open(path)
        .ok()?;
    let meta = file.metadata().ok()?;
    let trusted = meta.is_file()
        && owners.contains(&meta.uid())
        && meta.mode() & 0o022 == 0
        && (1..=limit).contains(&meta.len());
    if !trusted {
        return None;
    }
    let mut content = Vec::with_capacity(usize::try_from(meta.len()).ok()?);
    file.take(limit).read_to_end(&mut content).ok()?;
    Some(content)
}

/// One line of a file of procfs, without the line's end.
pub(crate) fn read_proc_line(path: &Path) -> Option<String> {
    let mut text = String::new();
    OpenOptions::new().read(true).open(path).ok()?.take(256).read_to_string(&mut text).ok()?;
    Some(text.trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use super::{read_trusted as read, *};
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::process::Command;

    fn read_trusted(path: &Path, owners: &[u32]) -> Option<Vec<u8>> {
        read(path, owners, SIZE_LIMIT)
    }

    fn own_uid() -> u32 {
        fs::metadata("/proc/self").unwrap().uid()
    }

    #[test]
    fn reads_an_own_regular_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("verdict.json");
        fs::write(&path, "{}").unwrap();
        assert_eq!(read_trusted(&path, &[own_uid()]).as_deref(), Some(&b"{}"[..]));
    }

    #[test]
    fn refuses_what_cannot_be_believed() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let owners = [own_uid()];

        fs::write(at("good"), "{}").unwrap();
        assert_eq!(read_trusted(&at("good"), &[own_uid() + 1]), None, "foreign owner");

        symlink(at("good"), at("link")).unwrap();
        assert_eq!(read_trusted(&at("link"), &owners), None, "symbolic link");

        fs::write(at("empty"), "").unwrap();
        assert_eq!(read_trusted(&at("empty"), &owners), None, "empty");

        fs::write(at("huge"), vec![b' '; 64 * 1024 + 1]).unwrap();
        assert_eq!(read_trusted(&at("huge"), &owners), None, "too long");

        fs::write(at("open"), "{}").unwrap();
        fs::set_permissions(at("open"), fs::Permissions::from_mode(0o666)).unwrap();
        assert_eq!(read_trusted(&at("open"), &owners), None, "writable by others");

        assert!(Command::new("mkfifo").arg(at("fifo")).status().unwrap().success());
        assert_eq!(read_trusted(&at("fifo"), &owners), None, "FIFO, without waiting for a writer");

        assert_eq!(read_trusted(dir.path(), &owners), None, "folder");
        assert_eq!(read_trusted(&at("absent"), &owners), None, "absent");
    }
}
