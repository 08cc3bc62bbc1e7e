//! Puts the library where a node's programs find it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The name drivers install NVML under, and the product's default for `paths.nvml`.
pub const LIBRARY_NAME: &str = "libnvidia-ml.so.1";

/// Why the library could not be installed.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// The built library is not there, or the node's folder cannot be written.
    #[error("cannot install the simulated NVML library {from} as {to}: {source}")]
    Io {
        /// The built library.
        from: PathBuf,
        /// Where it was to go.
        to: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The library does not export a function that it is to lack.
    #[error("{from} has no function {name} to leave out; check its spelling")]
    NoSuchFunction {
        /// The built library.
        from: PathBuf,
        /// The name asked for.
        name: String,
    },
}

/// Installs the built library `from` as `libnvidia-ml.so.1` in `folder` and returns its path.
///
/// Without `lacking` it is a hard link where the file system allows one: a debug build is large and a cluster has
/// many nodes. (glibc takes two links to one file for one library, so a process sees the node of the first it opens.)
///
/// With `lacking` it is a copy whose symbol table no longer has those functions, as with a driver that is older
/// than they are: `dlsym` fails. Already running programs keep the library they have open.
///
/// # Errors
/// The library cannot be read, `folder` cannot be written, or a name in `lacking` is not exported.
pub fn install(from: &Path, folder: &Path, lacking: &[&str]) -> Result<PathBuf, InstallError> {
    let to = folder.join(LIBRARY_NAME);
    let failed = |source| InstallError::Io { from: from.to_path_buf(), to: to.clone(), source };
    let fresh = tempfile::TempDir::with_prefix_in(".nvml", folder).map_err(failed)?;
    let new = fresh.path().join(LIBRARY_NAME);
    if lacking.is_empty() {
        if fs::hard_link(from, &new).is_err() {
            fs::copy(from, &new).map_err(failed)?;
        }
    } else {
        let mut image = fs::read(from).map_err(failed)?;
        for name in lacking {
            if !rename_symbol(&mut image, name) {
                return Err(InstallError::NoSuchFunction {
                    from: from.to_path_buf(),
                    name: (*name).to_owned(),
                });
            }
        }
        fs::write(&new, image).map_err(failed)?;
        fs::set_permissions(&new, fs::metadata(from).map_err(failed)?.permissions()).map_err(failed)?;
    }
    fs::rename(&new, &to).map_err(failed)?;
    Ok(to)
}

/// Takes a function out of the symbol table by changing its name there: the loader looks names up by hash and
/// compares them in full. The dynamic string table is the first place in the file that holds a name between NULs.
fn rename_symbol(image: &mut [u8], name: &str) -> bool {
    let wanted = [b"\0", name.as_bytes(), b"\0"].concat();
    match image.windows(wanted.len()).position(|window| window == wanted) {
        Some(at) if name.starts_with("nvml") => {
            image[at + 1] = b'N';
            true
        }
        _ => false,
    }
}
