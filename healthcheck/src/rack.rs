//! What this node last learned of its rack-scale domain: written by `clustermax-drain`, shown as metrics.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::state::write_atomic;

/// While a tray is sick, its domain is looked at anew after this time, in seconds.
const AGE: f64 = 60.0;

/// A rack-scale domain as it was seen when one of its trays fell ill. The file is there only
/// while this node was sick when last looked at: nobody asks Slurm while all is well.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Domain {
    /// Name.
    pub name: String,
    /// Trays in it.
    pub trays: usize,
    /// Trays that are sick, first the one that was so first.
    pub sick: Vec<String>,
    /// As many as the configuration says, or more.
    pub degraded: bool,
    /// What followed: empty, `marked N trays`, `drained N trays` or why not.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub followed: String,
    /// When, seconds since the epoch.
    pub time: f64,
}

impl Domain {
    /// What was last learned; none when nothing was.
    #[must_use]
    pub fn read(state_dir: &Path) -> Option<Domain> {
        serde_json::from_str(&std::fs::read_to_string(file(state_dir)).ok()?).ok()
    }

    /// Old enough to be looked at anew.
    #[must_use]
    pub fn is_old(&self, now: f64) -> bool {
        !(0.0..AGE).contains(&(now - self.time))
    }

    /// Forgets it: this tray is well.
    ///
    /// # Errors
    /// One sentence naming the file.
    pub fn remove(state_dir: &Path) -> Result<(), String> {
        let path = file(state_dir);
        match std::fs::remove_file(&path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                Err(format!("{} cannot be removed: {e}", path.display()))
            }
            _ => Ok(()),
        }
    }

    /// Writes it, for root only.
    ///
    /// # Errors
    /// One sentence naming the file.
    pub fn write(&self, state_dir: &Path) -> Result<(), String> {
        let path = file(state_dir);
        let text = serde_json::to_string(self).map_err(|e| e.to_string())?;
        write_atomic(&path, text.as_bytes(), 0o600, None)
            .map_err(|e| format!("{} cannot be written: {e}", path.display()))
    }
}

fn file(state_dir: &Path) -> PathBuf {
    state_dir.join("domain.json")
}
