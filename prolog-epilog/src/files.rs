//! Files in the state folder: read whole, replaced atomically, root's only.

use std::fs::{DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::Serialize;

/// A file of the state folder that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{path} cannot be {verb}: {source}")]
pub struct FileError {
    /// The file.
    pub path: PathBuf,
    /// `read`, `written`, ...
    pub verb: &'static str,
    /// The system's error.
    pub source: io::Error,
}

fn failed(path: &Path, verb: &'static str) -> impl FnOnce(io::Error) -> FileError {
    move |source| FileError { path: path.to_path_buf(), verb, source }
}

/// The file's text, or none when it does not exist.
///
/// # Errors
/// It exists and cannot be read.
pub fn read(path: &Path) -> Result<Option<String>, FileError> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(failed(path, "read")(e)),
    }
}

/// Removes the file; no error when it is gone already.
///
/// # Errors
/// What the system says otherwise.
pub fn remove(path: &Path) -> Result<(), FileError> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(failed(path, "removed")(e)),
        _ => Ok(()),
    }
}

/// Creates the folder and those above it, for the owner only.
///
/// # Errors
/// What the system says.
pub fn make_private_dir(dir: &Path) -> Result<(), FileError> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed(dir, "created"))
}

/// Writes the value as JSON: a temporary file beside it, flushed to disk, then renamed over it, so that a reader
/// sees the old or the new file and never half of one.
///
/// # Errors
/// What the system says.
pub fn write_json(path: &Path, value: &impl Serialize) -> Result<(), FileError> {
    let text = serde_json::to_vec(value).map_err(|e| failed(path, "written")(e.into()))?;
    write(path, &text)
}

/// Writes text, likewise.
///
/// # Errors
/// What the system says.
pub fn write_text(path: &Path, text: &str) -> Result<(), FileError> {
    write(path, text.as_bytes())
}

fn write(path: &Path, text: &[u8]) -> Result<(), FileError> {
    let written = failed(path, "written");
    let dir = path.parent().unwrap_or(Path::new("/"));
    make_private_dir(dir)?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let temporary = dir.join(format!(".{name}.{}", std::process::id()));
    let write = || -> io::Result<()> {
        // A leftover of a killed process with the same pid; O_EXCL below never follows a link.
        let _ = std::fs::remove_file(&temporary);
        let mut file = File::options().write(true).create_new(true).mode(0o600).open(&temporary)?;
        file.write_all(text)?;
        file.sync_all()?;
        std::fs::rename(&temporary, path)?;
        File::open(dir)?.sync_all()
    };
    write().map_err(|e| {
        let _ = std::fs::remove_file(&temporary);
        written(e)
    })
}
