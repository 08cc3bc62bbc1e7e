//! Reads a SPANK plugin's file without loading it: what Slurm's loader would find there.

use std::path::{Path, PathBuf};

use object::read::elf::ElfFile64;
use object::{Endianness, Object, ObjectKind, ObjectSection, ObjectSymbol};

use crate::release::Release;

/// Larger files are no plugin of anybody.
const MAX_SIZE: u64 = 512 * 1024 * 1024;

/// A file that Slurm would not take for a SPANK plugin. Each is one sentence that names it.
#[derive(Debug, thiserror::Error)]
pub enum PluginError {
    /// It cannot be read.
    #[error("{path} cannot be read: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// It is something else.
    #[error("{path} is not a SPANK plugin: {what}")]
    NotPlugin {
        /// The file.
        path: PathBuf,
        /// What it lacks.
        what: String,
    },
}

/// What a plugin's file says about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PluginFile {
    /// `plugin_name`.
    pub name: String,
    /// Release in `plugin_version`; Slurm loads it into this release only.
    pub release: Release,
    /// Exported functions that Slurm calls, sorted.
    pub hooks: Vec<String>,
}

impl PluginFile {
    /// Reads the file.
    ///
    /// # Errors
    /// [`PluginError`].
    pub fn read(path: &Path) -> Result<Self, PluginError> {
        let failed = |source| PluginError::Read { path: path.to_path_buf(), source };
        let meta = std::fs::metadata(path).map_err(failed)?;
        let not = |what: &str| PluginError::NotPlugin { path: path.to_path_buf(), what: what.to_string() };
        if !meta.is_file() || meta.len() > MAX_SIZE {
            return Err(not("it is no regular file of a fitting size"));
        }
        Self::parse(&std::fs::read(path).map_err(failed)?).map_err(|what| not(&what))
    }

    fn parse(data: &[u8]) -> Result<Self, String> {
        let file =
            ElfFile64::<Endianness>::parse(data).map_err(|_| "it is no 64-bit ELF file".to_string())?;
        if file.kind() != ObjectKind::Dynamic {
            return Err("it is no shared object".into());
        }
        let plugin_type = string(&file, "plugin_type").ok_or("it has no symbol plugin_type")?;
        if plugin_type != "spank" {
            return Err(format!("its plugin_type is \"{}\"", plugin_type.escape_default()));
        }
        let name = string(&file, "plugin_name").ok_or("it has no symbol plugin_name")?;
        let version = bytes(&file, "plugin_version").and_then(|b| b.first_chunk::<4>().copied());
        let version = version.ok_or("it has no symbol plugin_version")?;
        let version =
            if file.is_little_endian() { u32::from_le_bytes(version) } else { u32::from_be_bytes(version) };
        let mut hooks: Vec<String> = file
            .dynamic_symbols()
            .filter(|s| s.is_definition() && s.kind() == object::SymbolKind::Text)
            .filter_map(|s| s.name().ok())
            .filter(|n| n.starts_with("slurm_spank_") || *n == "init" || *n == "fini")
            .map(str::to_string)
            .collect();
        hooks.sort();
        if !hooks.iter().any(|h| h.starts_with("slurm_spank_")) {
            return Err("it exports no slurm_spank_ function".into());
        }
        Ok(PluginFile { name, release: Release::from_number(version), hooks })
    }
}

/// The bytes from a data symbol to the end of its section.
fn bytes<'a>(file: &ElfFile64<'a, Endianness>, symbol: &str) -> Option<&'a [u8]> {
    let symbol = file.dynamic_symbols().find(|s| s.is_definition() && s.name() == Ok(symbol))?;
    let section = file.section_by_index(symbol.section_index()?).ok()?;
    let offset = usize::try_from(symbol.address().checked_sub(section.address())?).ok()?;
    section.data().ok()?.get(offset..)
}

fn string(file: &ElfFile64<'_, Endianness>, symbol: &str) -> Option<String> {
    let bytes = bytes(file, symbol)?;
    let end = bytes.iter().take(256).position(|b| *b == 0)?;
    Some(String::from_utf8_lossy(bytes.get(..end)?).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// Builds a shared object from C; `None` where there is no C compiler.
    fn build(dir: &Path, source: &str) -> Option<PathBuf> {
        let c = dir.join("p.c");
        let so = dir.join("p.so");
        std::fs::write(&c, source).unwrap();
        let status = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&so).arg(&c).status().ok()?;
        assert!(status.success(), "{source}");
        Some(so)
    }

    const PLUGIN: &str = "const char plugin_name[]=\"x\"; const char plugin_type[]=\"spank\"; \
         const unsigned int plugin_version=0x180b05; int slurm_spank_init(void *a,int b,char **c){return 0;}";

    #[test]
    fn a_plugins_release_and_hooks_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let Some(so) = build(dir.path(), PLUGIN) else { return };
        let plugin = PluginFile::read(&so).unwrap();
        assert_eq!(plugin.name, "x");
        assert_eq!(plugin.release.to_string(), "24.11");
        assert_eq!(plugin.hooks, ["slurm_spank_init"]);
        // Cut anywhere, it is refused or read, never more.
        let whole = std::fs::read(&so).unwrap();
        for length in (0..whole.len()).step_by(97) {
            let _ = PluginFile::parse(&whole[..length]);
        }
        for at in (0..whole.len()).step_by(13) {
            let mut bent = whole.clone();
            bent[at] ^= 0xff;
            let _ = PluginFile::parse(&bent);
        }
    }

    #[test]
    fn other_files_are_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("p.so");
        std::fs::write(&file, "#!/bin/sh\n").unwrap();
        let said = PluginFile::read(&file).unwrap_err().to_string();
        assert_eq!(said, format!("{} is not a SPANK plugin: it is no 64-bit ELF file", file.display()));
        assert!(PluginFile::read(dir.path()).unwrap_err().to_string().contains("no regular file"));
        assert!(matches!(PluginFile::read(&dir.path().join("none")), Err(PluginError::Read { .. })));
        for (from, to, what) in [
            ("\"spank\"", "\"prep/script\"", "its plugin_type is \"prep/script\""),
            ("plugin_type", "other_type", "no symbol plugin_type"),
            ("plugin_version", "other_version", "no symbol plugin_version"),
            ("slurm_spank_init", "other_init", "no slurm_spank_ function"),
        ] {
            let Some(so) = build(dir.path(), &PLUGIN.replace(from, to)) else { return };
            let said = PluginFile::read(&so).unwrap_err().to_string();
            assert!(said.contains(what), "{said}");
        }
    }
}
