//! Who else could have put a file where root looks for it: the owners and modes of the folders above.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::ConfigError;
use crate::sys;

/// Only in such a folder may nobody but the owner of a file put another in its place.
const STICKY: u32 = 0o1000;

/// Every folder above a file, also above what its symbolic links stand for, must belong to root or to whoever runs us, and be
/// writable by nobody else: otherwise another file can be put in its place between two passes.
///
/// # Errors
/// [`ConfigError::Unsafe`] naming the folder; [`ConfigError::Read`] for one that cannot be looked at.
pub fn check_parents(file: &Path) -> Result<(), ConfigError> {
    let me = sys::effective_uid();
    let real = std::fs::canonicalize(file).unwrap_or_else(|_| file.to_path_buf());
    let folders: BTreeSet<PathBuf> = hops(file)
        .iter()
        .chain([&real])
        .flat_map(|f| f.ancestors().skip(1))
        .filter(|f| f.is_absolute())
        .map(Path::to_path_buf)
        .collect();
    for folder in folders {
        let meta = match std::fs::metadata(&folder) {
            Ok(meta) => meta,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => continue,
            Err(source) => return Err(ConfigError::Read { path: folder, source }),
        };
        let wrong = if meta.uid() != 0 && meta.uid() != me {
            format!("belongs to user {}", meta.uid())
        } else if meta.mode() & 0o022 != 0 && meta.mode() & STICKY == 0 {
            format!("is writable by others (mode {:04o})", meta.mode() & 0o7777)
        } else {
            continue;
        };
        let what = format!("{wrong} and holds {}", file.display());
        return Err(ConfigError::Unsafe { path: folder, what, owner: me });
    }
    Ok(())
}

/// A file and what each link of a chain names: any of their folders decides what the last one is.
fn hops(file: &Path) -> Vec<PathBuf> {
    let mut hops = vec![file.to_path_buf()];
    let mut at = file.to_path_buf();
    // As many links as the kernel follows.
    for _ in 0..40 {
        let Ok(target) = std::fs::read_link(&at) else { break };
        at = at.parent().unwrap_or(Path::new("/")).join(target);
        // The folder itself may be behind a link, too.
        let real = at.parent().and_then(|folder| std::fs::canonicalize(folder).ok());
        if let (Some(folder), Some(name)) = (real, at.file_name()) {
            hops.push(folder.join(name));
        }
        hops.push(at.clone());
    }
    hops
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn mode(path: &Path, mode: u32) {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_folder_that_others_can_write_to_is_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let open = dir.path().join("open");
        let inner = open.join("etc");
        std::fs::create_dir_all(&inner).unwrap();
        let file = inner.join("c.toml");
        std::fs::write(&file, "").unwrap();
        assert!(check_parents(&file).is_ok(), "a sticky /tmp above is as good as none");
        for bad in [0o777, 0o775, 0o757] {
            mode(&open, bad);
            let message = check_parents(&file).unwrap_err().to_string();
            assert!(message.starts_with(&format!("{} is writable by others", open.display())), "{message}");
            assert!(message.contains("c.toml") && message.contains("chmod go-w"), "{message}");
        }
        mode(&open, 0o1777);
        assert!(check_parents(&file).is_ok(), "in a sticky folder nobody can replace it");
        mode(&open, 0o755);
        assert!(check_parents(&file).is_ok());
    }

    #[test]
    fn no_link_of_a_chain_lies_in_a_folder_that_others_can_write_to() {
        let dir = tempfile::tempdir().unwrap();
        let [first, middle, last] = ["first", "middle", "last"].map(|name| dir.path().join(name));
        for folder in [&first, &middle, &last] {
            std::fs::create_dir(folder).unwrap();
            mode(folder, 0o755);
        }
        std::fs::write(last.join("check"), "").unwrap();
        std::os::unix::fs::symlink("../last/check", middle.join("link")).unwrap();
        std::os::unix::fs::symlink(middle.join("link"), first.join("check")).unwrap();
        assert!(check_parents(&first.join("check")).is_ok());
        mode(&middle, 0o777);
        let message = check_parents(&first.join("check")).unwrap_err().to_string();
        assert!(message.contains("middle is writable by others"), "{message}");
        // Links that lead in a circle end.
        std::os::unix::fs::symlink("circle", last.join("circle")).unwrap();
        assert!(check_parents(&last.join("circle")).is_ok());
    }

    #[test]
    fn a_link_does_not_hide_the_folder_behind_it() {
        let dir = tempfile::tempdir().unwrap();
        let (good, open) = (dir.path().join("good"), dir.path().join("open"));
        for folder in [&good, &open] {
            std::fs::create_dir(folder).unwrap();
            mode(folder, 0o755);
        }
        std::fs::write(open.join("check"), "").unwrap();
        let link = good.join("check");
        std::os::unix::fs::symlink(open.join("check"), &link).unwrap();
        assert!(check_parents(&link).is_ok());
        mode(&open, 0o777);
        assert!(check_parents(&link).unwrap_err().to_string().contains("open is writable by others"));
    }

    #[test]
    fn the_configuration_and_site_commands_go_by_it() {
        let dir = tempfile::tempdir().unwrap();
        let open = dir.path().join("open");
        std::fs::create_dir(&open).unwrap();
        let (config, command) = (dir.path().join("c.toml"), open.join("check"));
        std::fs::write(&command, "#!/bin/sh\n").unwrap();
        mode(&command, 0o755);
        std::fs::write(&config, format!("[[command]]\nname = \"a\"\ntoken = \"a\"\npath = {command:?}\n"))
            .unwrap();
        mode(&open, 0o755);
        assert!(crate::config::Config::load(&config, "n1").is_ok());
        mode(&open, 0o777);
        let message = crate::config::Config::load(&config, "n1").unwrap_err().to_string();
        assert!(message.contains("open is writable by others"), "{message}");
    }
}
