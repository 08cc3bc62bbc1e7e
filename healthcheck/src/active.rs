//! What the active checks of idle nodes left behind: `RUN_DIR/active/KIND.json`, written by `clustermax-idle-check`.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read as _;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// Kinds of active checks; a file of another name is not ours.
pub const KINDS: [&str; 2] = ["light", "heavy"];
/// Longest stamp in bytes.
const STAMP_MAX: u64 = 4096;

/// The last active check of a kind that gave a result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Stamp {
    /// Its end, seconds since the epoch.
    pub time: f64,
    /// How long it took, in seconds.
    pub seconds: f64,
    /// `pass`, `fail`, or `unknown`: it broke off by itself.
    pub status: String,
}

/// The stamps by kind; one that cannot be read is left out.
#[must_use]
pub fn read(run_dir: &Path) -> BTreeMap<&'static str, Stamp> {
    let stamp = |kind: &str| -> Option<Stamp> {
        let mut text = String::new();
        let file = fs::File::open(run_dir.join("active").join(format!("{kind}.json"))).ok()?;
        file.take(STAMP_MAX).read_to_string(&mut text).ok()?;
        serde_json::from_str(&text).ok()
    };
    KINDS.into_iter().filter_map(|kind| Some((kind, stamp(kind)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_are_read_and_broken_ones_left_out() {
        let dir = tempfile::tempdir().unwrap();
        assert!(read(dir.path()).is_empty());
        fs::create_dir(dir.path().join("active")).unwrap();
        let text = "{\"schema\":\"clustermax-active/1\",\"kind\":\"light\",\"time\":1000,\"seconds\":12,\"status\":\"pass\",\"job\":\"7\"}\n";
        fs::write(dir.path().join("active/light.json"), text).unwrap();
        fs::write(dir.path().join("active/heavy.json"), "{\"time\":").unwrap();
        let stamps = read(dir.path());
        assert_eq!(stamps.len(), 1);
        assert_eq!(stamps["light"], Stamp { time: 1000.0, seconds: 12.0, status: "pass".into() });
    }
}
