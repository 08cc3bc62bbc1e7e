//! `[dcgm]`.

use std::time::Duration;

use serde::Deserialize;

/// DCGM, where it is installed.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DcgmConfig {
    /// Level of `dcgmi diag` in deep passes on an idle node: 1 seconds, 2 minutes, 3 half an hour; 0 never.
    pub diag_level: u8,
}

impl Default for DcgmConfig {
    fn default() -> Self {
        DcgmConfig { diag_level: 1 }
    }
}

impl DcgmConfig {
    /// Longest wait for the tests of the level.
    #[must_use]
    pub fn diag_limit(&self) -> Duration {
        Duration::from_secs(match self.diag_level {
            0 | 1 => 90,
            2 => 600,
            _ => 3600,
        })
    }
}
