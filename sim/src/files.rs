//! Small file helpers shared by the other modules.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::error::{IoContext, Result};

/// Reads a text file.
pub(crate) fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).context("read", path)
}

/// Replaces a file in one step, so that a reader sees the old content or the new, never half of it.
pub(crate) fn write_atomic(path: &Path, content: &[u8], mode: u32) -> Result<()> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".new");
    let temporary = PathBuf::from(temporary);
    // A leftover of a killed writer would keep its own mode.
    match fs::remove_file(&temporary) {
        Ok(()) => {}
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
        Err(e) => return Err(e).context("replace", &temporary),
    }
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(&temporary)
        .context("create", &temporary)?;
    file.write_all(content).context("write", &temporary)?;
    // The umask may have taken bits away that ordinary users need.
    file.set_permissions(fs::Permissions::from_mode(mode)).context("set the mode of", &temporary)?;
    fs::rename(&temporary, path).context("replace", path)
}

/// Creates a folder and its parents, the last with exactly this mode.
pub(crate) fn make_dir(path: &Path, mode: u32) -> Result<()> {
    fs::create_dir_all(path).context("create", path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).context("set the mode of", path)
}

/// The last `count` lines of a log, empty when it cannot be read.
pub(crate) fn tail(path: &Path, count: usize) -> String {
    let text = fs::read(path).map(|b| String::from_utf8_lossy(&b).into_owned()).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}
