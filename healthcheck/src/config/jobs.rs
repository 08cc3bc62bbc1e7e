//! Files of finished jobs.

use serde::Deserialize;

/// Files of finished jobs in `STATE_DIR/jobs/`.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct JobFiles {
    /// Most files kept, in 1..=100000.
    pub keep: usize,
    /// Most MiB they take, in 1..=10240.
    pub keep_mib: u64,
}

impl Default for JobFiles {
    fn default() -> Self {
        JobFiles { keep: 200, keep_mib: 16 }
    }
}

impl JobFiles {
    pub(super) fn check(&self) -> Result<(), String> {
        if !(1..=100_000).contains(&self.keep) {
            return Err(format!("jobs.keep = {}: give 1 to 100000 files of finished jobs", self.keep));
        }
        if !(1..=10_240).contains(&self.keep_mib) {
            return Err(format!(
                "jobs.keep_mib = {}: give 1 to 10240 MiB for files of finished jobs",
                self.keep_mib
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::config::Config;
    use std::path::Path;

    #[test]
    fn limits_of_kept_files_are_checked() {
        let read = |text: &str| Config::parse(text, Path::new("x")).map_err(|e| e.to_string());
        let given = read("[jobs]\nkeep = 5\nkeep_mib = 2\n").unwrap().jobs;
        assert_eq!((given.keep, given.keep_mib), (5, 2));
        assert!(read("[jobs]\nkeep = 0\n").unwrap_err().contains("jobs.keep = 0"));
        assert!(read("[jobs]\nkeep_mib = 0\n").unwrap_err().contains("jobs.keep_mib = 0"));
    }
}
