//! Exemptions: for a time, faults of a check (or of all) are reported on this node and drain nothing.
//!
//! `clustermax-drain exempt` writes them to `STATE_DIR/exempt.json`; every pass goes by them, so that no daemon need be
//! restarted. What stays broken drains the node when they end.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::state::write_atomic;
use crate::verdict::Finding;

/// Stands for every check.
pub const ALL: &str = "*";
/// Longest exemption in seconds: what is to last longer belongs into the configuration.
pub const LONGEST: f64 = 90.0 * 86_400.0;

/// One exemption.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Exemption {
    /// When it ends, seconds since the epoch.
    pub until: f64,
    /// Why, an operator's words.
    pub why: String,
    /// When it was given, UTC, RFC 3339.
    pub since: String,
    /// Who gave it: the user behind sudo, else root.
    pub by: String,
}

/// The exemptions of a node by check id, or [`ALL`].
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Exemptions(pub BTreeMap<String, Exemption>);

impl Exemptions {
    /// Those that hold at `now`. A file that cannot be understood exempts nothing.
    ///
    /// # Errors
    /// One sentence naming the file.
    pub fn read(state_dir: &Path, now: f64) -> Result<Exemptions, String> {
        let path = file(state_dir);
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Exemptions::default()),
            Err(e) => return Err(format!("{} cannot be read: {e}", path.display())),
        };
        let mut all: Exemptions = serde_json::from_str(&text).map_err(|e| {
            format!("{} is not understood ({e}): nothing is exempt; give the exemption anew", path.display())
        })?;
        // One that would last longer than any may was given before the clock was set back: it revives nothing.
        all.0.retain(|_, e| e.until > now && e.until - now <= LONGEST);
        Ok(all)
    }

    /// Writes them, for root only.
    ///
    /// # Errors
    /// One sentence naming the file.
    pub fn write(&self, state_dir: &Path) -> Result<(), String> {
        let path = file(state_dir);
        let text = serde_json::to_string(self).map_err(|e| e.to_string())?;
        write_atomic(&path, text.as_bytes(), 0o600, None)
            .map_err(|e| format!("{} cannot be written: {e}", path.display()))
    }

    /// Nothing is exempt.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The exemption that covers a check.
    #[must_use]
    pub fn of(&self, check: &str) -> Option<&Exemption> {
        self.0.get(check).or_else(|| self.0.get(ALL))
    }

    /// Findings of exempt checks are reported and drain nothing.
    pub fn apply(&self, findings: &mut [Finding]) {
        for f in findings.iter_mut().filter(|f| self.of(&f.check).is_some()) {
            f.observe = true;
        }
    }
}

fn file(state_dir: &Path) -> PathBuf {
    state_dir.join("exempt.json")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::{Action, Fault, Scope, Status};

    fn finding(check: &str) -> Finding {
        Finding {
            check: check.into(),
            token: "x".into(),
            status: Status::Fail,
            device: None,
            scope: Scope::Node,
            action: Action::Repair,
            drain: true,
            fault: Fault::Hardware,
            evidence: String::new(),
            text: String::new(),
            mend: String::new(),
            synthetic: false,
            observe: false,
            event: None,
        }
    }

    fn exemption(until: f64) -> Exemption {
        Exemption { until, why: "cable on order".into(), since: String::new(), by: "root".into() }
    }

    #[test]
    fn an_exempt_check_drains_nothing_until_it_ends() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Exemptions::read(dir.path(), 0.0).unwrap(), Exemptions::default());
        let all = Exemptions([("ib.port".to_string(), exemption(100.0))].into());
        all.write(dir.path()).unwrap();
        for (now, drains) in [(99.0, false), (100.0, true), (101.0, true)] {
            let mut findings = [finding("ib.port"), finding("gpu.count")];
            Exemptions::read(dir.path(), now).unwrap().apply(&mut findings);
            assert_eq!(findings[0].drains(), drains, "{now}");
            assert!(findings[1].drains());
        }
        let mut findings = [finding("gpu.count")];
        Exemptions([(ALL.to_string(), exemption(1.0))].into()).apply(&mut findings);
        assert!(!findings[0].drains());
    }

    #[test]
    fn a_clock_set_back_revives_no_exemption() {
        let dir = tempfile::tempdir().unwrap();
        Exemptions([("ib.port".to_string(), exemption(1.8e9))].into()).write(dir.path()).unwrap();
        assert!(Exemptions::read(dir.path(), 0.0).unwrap().is_empty(), "1970");
        assert!(!Exemptions::read(dir.path(), 1.8e9 - LONGEST).unwrap().is_empty(), "just given");
    }

    #[test]
    fn a_damaged_file_exempts_nothing_and_is_named() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("exempt.json"), "{half").unwrap();
        assert!(Exemptions::read(dir.path(), 0.0).unwrap_err().contains("exempt.json is not understood"));
    }
}
