//! Raw stage output to records.

use std::path::PathBuf;

use crate::Failure;

/// `clustermax collect`
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Results folder
    pub dir: PathBuf,
}

/// Reads `raw/STAGE/` and writes records.
///
/// # Errors
/// Raw output that cannot be read.
pub fn run(_args: &Args) -> Result<u8, Failure> {
    Err(Failure::missing("collect is not built yet"))
}
