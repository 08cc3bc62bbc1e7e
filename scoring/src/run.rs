//! The results folder: where each file lies, and `run.json`.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// The schema that this release writes and reads.
pub const SCHEMA: &str = "clustermax-run/1";

/// What was run, where: `run.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Run {
    /// Always [`SCHEMA`].
    pub schema: String,
    /// The run's id; every record carries it.
    pub run: String,
    /// Slurm's ClusterName.
    pub cluster: String,
    /// The suite's profile: `demo` ...
    pub profile: String,
    /// Slurm job id of the suite.
    #[serde(default)]
    pub job: Option<String>,
    /// NodeNames of its allocation.
    pub nodes: Vec<String>,
    /// UTC, RFC 3339.
    pub started: String,
    /// The hardware was simulated; absent counts as false.
    #[serde(default)]
    pub simulated: bool,
    /// What the kernels ran on.
    pub hardware: Hardware,
    /// `--shrink`: every size and time of the profile was divided by this, from 2; absent in a run of the whole profile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shrink: Option<u32>,
}

impl Run {
    /// What the types cannot say.
    ///
    /// # Errors
    /// A clause that says what is wrong.
    fn check(&self) -> Result<(), String> {
        if self.run.is_empty() {
            return Err("run is empty".to_owned());
        }
        // A node that is named twice would count twice.
        let mut seen = BTreeSet::new();
        for node in &self.nodes {
            if node.trim().is_empty() {
                return Err("nodes has an empty name".to_owned());
            }
            if !seen.insert(node) {
                return Err(format!("nodes names {node:?} twice"));
            }
        }
        if self.started.parse::<jiff::Timestamp>().is_err() {
            return Err(format!(
                "started {:?} is no RFC 3339 time, so nobody can say which evidence was valid then",
                self.started
            ));
        }
        match self.shrink {
            Some(by @ 0..=1) => Err(format!("shrink is {by}, it divides and is 2 at least")),
            _ => Ok(()),
        }
    }

    /// The profile as people read it: `full`, or `full, every size and time divided by 100`.
    #[must_use]
    pub fn profile_text(&self) -> String {
        match self.shrink {
            Some(by) => format!("{}, every size and time divided by {by} (--shrink)", self.profile),
            None => self.profile.clone(),
        }
    }
}

/// What the measured programs computed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Hardware {
    /// Processors only: measured, not rated.
    Cpu,
    /// GPUs.
    Gpu,
}

/// What is wrong with a results folder.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nothing is there.
    #[error("results folder {} does not exist; give the folder that clustermax-suite.sh printed", .0.display())]
    NoFolder(PathBuf),
    /// It holds nothing.
    #[error("results folder {} is empty; run `sbatch clustermax-suite.sh` first and give the folder it printed", .0.display())]
    Empty(PathBuf),
    /// It has no `run.json`.
    #[error(
        "{} has no run.json, so it is not a results folder (or its first stage never started); \
         give the folder that clustermax-suite.sh printed", .0.display()
    )]
    NoRun(PathBuf),
    /// `run.json` cannot be used.
    #[error("{}: {what}; run the suite again or restore the file", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// Of another release.
    #[error(
        "{} has schema {found:?}, this release reads {SCHEMA:?}; use the release that wrote the folder",
        path.display()
    )]
    Schema {
        /// The file.
        path: PathBuf,
        /// Its own schema.
        found: String,
    },
    /// A file of it could not be read or written.
    #[error("cannot {action} {}: {source}; check permissions and free space", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
}

/// A results folder with a valid `run.json`.
#[derive(Debug, Clone)]
pub struct Folder {
    /// The folder.
    pub path: PathBuf,
    /// Its `run.json`.
    pub run: Run,
}

impl Folder {
    /// Opens a results folder.
    ///
    /// # Errors
    /// When it is missing, empty, or its `run.json` is missing or of no use.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let io = |source: io::Error| Error::Io { action: "read", path: path.to_owned(), source };
        let mut entries = match fs::read_dir(path) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(Error::NoFolder(path.to_owned()));
            }
            Err(source) => return Err(io(source)),
        };
        if entries.next().is_none() {
            return Err(Error::Empty(path.to_owned()));
        }
        let file = path.join("run.json");
        let text = match read_regular(&file) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(Error::NoRun(path.to_owned()));
            }
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                return Err(Error::Malformed { path: file, what: "it is not UTF-8 text".to_owned() });
            }
            Err(source) => return Err(Error::Io { action: "read", path: file, source }),
        };
        let value: serde_json::Value = serde_json::from_str(&text)
            .map_err(|error| Error::Malformed { path: file.clone(), what: format!("not JSON: {error}") })?;
        match value.get("schema").and_then(serde_json::Value::as_str) {
            Some(SCHEMA) => {}
            Some(found) => return Err(Error::Schema { path: file, found: found.to_owned() }),
            None => return Err(Error::Malformed { path: file, what: "schema is missing".to_owned() }),
        }
        // From the text, not from the value: the error then says line and column.
        let run: Run = serde_json::from_str(&text)
            .map_err(|error| Error::Malformed { path: file.clone(), what: error.to_string() })?;
        run.check().map_err(|what| Error::Malformed { path: file, what })?;
        Ok(Self { path: path.to_owned(), run })
    }

    /// `records.jsonl`
    pub fn records(&self) -> PathBuf {
        self.path.join("records.jsonl")
    }

    /// `raw/STAGE`
    pub fn raw(&self, stage: &str) -> PathBuf {
        self.path.join("raw").join(stage)
    }

    /// `stages/STAGE.json`
    pub fn stage(&self, stage: &str) -> PathBuf {
        self.path.join("stages").join(format!("{stage}.json"))
    }
}

/// `clustermax-suite.sh` beside this program: in a checkout, in a portable archive, or where the packages put it.
pub fn suite_script() -> Option<PathBuf> {
    let exe = std::env::current_exe().ok()?;
    let below = ["batch-scripts", "share/clustermax/batch-scripts", ""];
    exe.ancestors()
        .skip(1)
        .take(3)
        .flat_map(|dir| below.iter().map(move |below| dir.join(below).join("clustermax-suite.sh")))
        .find(|path| path.is_file())
}

/// The text of a file of a results folder, which may come from anybody: a pipe or a device in its place is refused, since
/// reading it might never end.
///
/// # Errors
/// Those of the file system; [`io::ErrorKind::InvalidInput`] for what is no file, `InvalidData` for what is no text.
pub(crate) fn read_regular(path: &Path) -> io::Result<String> {
    regular(path)?;
    fs::read_to_string(path)
}

/// Whether a path leads to a file.
///
/// # Errors
/// As [`read_regular`].
pub(crate) fn regular(path: &Path) -> io::Result<()> {
    let kind = fs::metadata(path)?;
    // A folder says so itself.
    if !kind.is_file() && !kind.is_dir() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
    }
    Ok(())
}

/// Writes a file so that a reader sees the old one or the whole new one: temp file beside it, fsync, rename.
/// On any error the temp file is removed and the old file stays.
///
/// # Errors
/// Those of the file system (no space, not writable).
pub fn write_atomic(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let temp = path.with_file_name(format!(".{name}.{}.tmp", std::process::id()));
    let result = (|| {
        let mut file = File::create(&temp)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&temp, path)
    })();
    if result.is_err() {
        let _ = fs::remove_file(&temp);
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(text: &str) -> String {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("run.json"), text).unwrap();
        Folder::open(folder.path()).unwrap_err().to_string()
    }

    #[test]
    fn a_folder_without_a_run_is_refused_by_its_fault() {
        let folder = tempfile::tempdir().unwrap();
        let missing = Folder::open(&folder.path().join("gone")).unwrap_err().to_string();
        assert!(missing.contains("does not exist"), "{missing}");
        let empty = Folder::open(folder.path()).unwrap_err().to_string();
        assert!(empty.contains("is empty"), "{empty}");
        fs::create_dir(folder.path().join("raw")).unwrap();
        let no_run = Folder::open(folder.path()).unwrap_err().to_string();
        assert!(no_run.contains("has no run.json"), "{no_run}");
        fs::write(folder.path().join("run.json"), [0xff, 0xfe]).unwrap();
        let text = Folder::open(folder.path()).unwrap_err().to_string();
        assert!(text.contains("not UTF-8"), "{text}");
    }

    #[test]
    fn a_bad_run_json_is_refused_by_its_fault() {
        let run = |rest: &str| {
            let started = if rest.contains("started") { "" } else { r#""started":"2026-11-30T20:50:00Z","# };
            format!(
                r#"{{"schema":"clustermax-run/1","run":"r","cluster":"c","profile":"demo","hardware":"gpu",{started}{rest}}}"#
            )
        };
        for (text, expected) in [
            ("", "not JSON"),
            ("{}", "schema is missing"),
            (r#"{"schema":"clustermax-run/9"}"#, "clustermax-run/9"),
            (r#"{"schema":"clustermax-run/1"}"#, "missing field"),
            (
                r#"{"schema":"clustermax-run/1","run":"","cluster":"c","profile":"demo","nodes":[],"started":"x","hardware":"cpu"}"#,
                "run is empty",
            ),
            (
                r#"{"schema":"clustermax-run/1","run":"r","cluster":"c","profile":"demo","nodes":[],"started":"x","hardware":"tpu"}"#,
                "unknown variant",
            ),
            (&run(r#""nodes":["n1","n2","n1"]"#), "names \"n1\" twice"),
            (&run(r#""nodes":["n1"," "]"#), "an empty name"),
            (&run(r#""nodes":["n1"],"started":"yesterday""#), "no RFC 3339 time"),
            (&run(r#""nodes":["n1"],"shrink":1"#), "shrink is 1"),
        ] {
            let message = refusal(text);
            assert!(message.contains(expected) && message.contains("run.json"), "{message}");
        }
    }

    #[test]
    fn write_atomic_leaves_the_old_file_when_it_fails() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        write_atomic(&path, b"old").unwrap();
        write_atomic(&path, b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        // A folder stands where the file should go: the rename fails.
        let blocked = folder.path().join("b");
        fs::create_dir_all(blocked.join("x")).unwrap();
        assert!(write_atomic(&blocked, b"new").is_err());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "no temp file stays");
    }
}
