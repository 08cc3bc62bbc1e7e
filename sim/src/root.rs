//! Slurm of another release, from a folder that holds a whole system (as debootstrap makes one).
//!
//! Every daemon and command of such a cluster runs in a mount namespace of its own whose root is that folder. No
//! mount is ever seen outside, so none can be left behind.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::error::{Error, IoContext, Result};
use crate::{process, slurm, sys};

/// Folders of this machine that are seen inside: the kernel's, and the one for passing files.
const SHARED: [&str; 4] = ["/proc", "/sys", "/dev", "/tmp"];
/// Files of this machine that are seen inside: users have the same names and numbers.
const ACCOUNTS: [&str; 2] = ["/etc/passwd", "/etc/group"];

/// A folder with a system that has Slurm.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlurmRoot {
    dir: PathBuf,
}

impl SlurmRoot {
    /// The system in `dir`.
    ///
    /// # Errors
    /// When `dir` is none, or has no Slurm.
    pub fn at(dir: &Path) -> Result<Self> {
        let root = Self {
            dir: dir.canonicalize().map_err(|e| {
                Error::Usage(format!("the folder of another Slurm {} cannot be used: {e}", dir.display()))
            })?,
        };
        for program in slurm::PROGRAMS {
            root.program(program)?;
        }
        Ok(root)
    }

    /// The folder, absolute.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// A program's path as it is seen inside.
    ///
    /// # Errors
    /// Says how to install it when it is missing.
    pub fn program(&self, name: &str) -> Result<PathBuf> {
        slurm::FOLDERS
            .iter()
            .map(|folder| Path::new(folder).join(name))
            // A symbolic link there (update-alternatives) is meant inside; that it exists is enough.
            .find(|path| self.inside(path).symlink_metadata().is_ok())
            .ok_or_else(|| {
                Error::Usage(format!(
                    "{} has no {name}; make such a folder with: sim/slurm-root RELEASE {0}",
                    self.dir.display()
                ))
            })
    }

    /// Release of its Slurm, as `24.11`.
    ///
    /// # Errors
    /// When its slurmctld does not say.
    pub fn release(&self) -> Result<String> {
        let program = self.program("slurmctld")?;
        let mut command = Command::new(&program);
        command.arg("-V");
        self.entrance(&[])?.before_exec(&mut command, Path::new("/"))?;
        let said = process::output_within(&mut command, Duration::from_secs(20))?;
        release_in(&said).ok_or_else(|| {
            Error::System(format!("{} -V said \"{}\" and no release", program.display(), said.trim()))
        })
    }

    /// A path of this machine under which something is seen inside.
    fn inside(&self, path: &Path) -> PathBuf {
        self.dir.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// The way in, with the folders `visible` at the same paths inside; makes the mount points that are missing.
    ///
    /// # Errors
    /// When a mount point cannot be made.
    pub fn entrance(&self, visible: &[&Path]) -> Result<Entrance> {
        let hosts = self.dir.join("etc/hosts");
        if !hosts.exists() {
            // debootstrap leaves none, and slurmctld looks localhost up.
            fs::write(&hosts, "127.0.0.1 localhost\n::1 localhost\n").context("write", &hosts)?;
        }
        let mut folders: Vec<&Path> = SHARED.iter().map(Path::new).chain(visible.iter().copied()).collect();
        folders.sort_unstable();
        // What lies below another one comes with it, and a mount point there would be hidden.
        let mut outer: Vec<&Path> = Vec::new();
        for folder in folders {
            if !outer.iter().any(|o| folder.starts_with(o)) {
                outer.push(folder);
            }
        }
        let mut mounts = Vec::new();
        for folder in outer {
            let at = self.inside(folder);
            fs::create_dir_all(&at).context("create", &at)?;
            mounts.push((c_string(folder)?, c_string(&at)?));
        }
        for file in ACCOUNTS.map(Path::new) {
            let at = self.inside(file);
            fs::OpenOptions::new().create(true).append(true).open(&at).context("create", &at)?;
            mounts.push((c_string(file)?, c_string(&at)?));
        }
        Ok(Entrance { root: c_string(&self.dir)?, mounts })
    }
}

/// The way into a [`SlurmRoot`], prepared.
#[derive(Debug)]
pub struct Entrance {
    root: CString,
    mounts: Vec<(CString, CString)>,
}

impl Entrance {
    /// Takes this process inside, for good. Its working directory stays where it can be seen there, else it is `/`.
    ///
    /// # Errors
    /// When the system refuses, as without root.
    pub fn enter(&self) -> Result<()> {
        let folder = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/"));
        let folder = c_string(&folder)?;
        sys::enter_root(&self.root, &self.mounts, &folder).map_err(|e| {
            Error::System(format!("cannot enter {}: {e}; run it as root", self.root.to_string_lossy()))
        })
    }

    /// Has the command's process go inside before it runs, with `folder` as its working directory.
    ///
    /// # Errors
    /// When `folder` is no path.
    pub fn before_exec(self, command: &mut Command, folder: &Path) -> Result<()> {
        sys::enter_root_before_exec(command, self.root, self.mounts, c_string(folder)?);
        Ok(())
    }
}

fn c_string(path: &Path) -> Result<CString> {
    CString::new(path.as_os_str().as_bytes())
        .map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))
        .context("use", path)
}

/// `24.11` of `slurm-wlm 24.11.5`.
fn release_in(text: &str) -> Option<String> {
    text.split_whitespace().find_map(|word| {
        let mut numbers = word.trim_start_matches("slurm-").split('.');
        let (major, minor) = (numbers.next()?, numbers.next()?);
        let is_number = |t: &str| t.len() == 2 && t.bytes().all(|b| b.is_ascii_digit());
        (is_number(major) && is_number(minor)).then(|| format!("{major}.{minor}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases() {
        assert_eq!(release_in("slurm-wlm 24.11.5\n").as_deref(), Some("24.11"));
        assert_eq!(release_in("slurm 26.05.0-0rc1").as_deref(), Some("26.05"));
        assert_eq!(release_in("no such thing"), None);
    }

    #[test]
    fn a_folder_without_slurm_is_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let error = SlurmRoot::at(folder.path()).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        assert!(error.to_string().contains("has no munged"), "{error}");
        let error = SlurmRoot::at(&folder.path().join("none")).unwrap_err();
        assert!(error.to_string().contains("none cannot be used"), "{error}");
    }

    #[test]
    fn what_is_below_a_shared_folder_is_mounted_once() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("etc")).unwrap();
        let root = SlurmRoot { dir: folder.path().to_owned() };
        let entrance =
            root.entrance(&[Path::new("/tmp/a/b"), Path::new("/srv/c/d"), Path::new("/srv/c")]).unwrap();
        let sources: Vec<&str> = entrance.mounts.iter().filter_map(|m| m.0.to_str().ok()).collect();
        assert_eq!(sources, ["/dev", "/proc", "/srv/c", "/sys", "/tmp", "/etc/passwd", "/etc/group"]);
        assert!(folder.path().join("srv/c").is_dir() && !folder.path().join("tmp/a").exists());
        assert!(fs::read_to_string(folder.path().join("etc/hosts")).unwrap().contains("localhost"));
    }
}
