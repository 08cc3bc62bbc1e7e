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

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::config::Config;

    #[test]
    fn a_level_that_dcgmi_does_not_have_and_a_switch_for_the_guard_are_refused() {
        let parse = |text: &str| Config::parse(text, Path::new("c.toml")).map_err(|e| e.to_string());
        assert_eq!(parse("[dcgm]\ndiag_level = 3\n").unwrap().dcgm.diag_limit().as_secs(), 3600);
        assert!(parse("[dcgm]\ndiag_level = 4\n").unwrap_err().contains("give 0 (never) to 3"));
        let guard = parse("[checks.\"slurm.guard\"]\nstate = \"off\"\n").unwrap_err();
        assert!(guard.contains("has no switch"), "{guard}");
    }
}
