//! What can go wrong, one full sentence each.

use std::io;
use std::path::{Path, PathBuf};

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a command of `clustermax-sim` could not be done. The message is one sentence that names the file, node or
/// value; [`Error::exit_code`] says which of the documented exit codes it maps to.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A value on the command line that cannot be used.
    #[error("{0}")]
    Usage(String),
    /// There is no cluster where one is needed.
    #[error("there is no simulated cluster in {}; start one with: clustermax-sim up --dir {}", .0.display(), .0.display())]
    NoCluster(PathBuf),
    /// `up` on a cluster that runs.
    #[error("a simulated cluster is already up in {}; end it with: clustermax-sim down --dir {}", .0.display(), .0.display())]
    AlreadyUp(PathBuf),
    /// A folder that is not ours.
    #[error("{} is not empty and holds no simulated cluster; choose a new or empty folder with --dir", .0.display())]
    Foreign(PathBuf),
    /// Another command works on the same folder.
    #[error("another clustermax-sim command is working on {}; wait for it to end", .0.display())]
    Busy(PathBuf),
    /// A file that could not be read or written.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried, as a verb: "read", "write", "create".
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file with content that is not understood.
    #[error("{} is not readable as {what}: {detail}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What it should hold.
        what: &'static str,
        /// What the parser said.
        detail: String,
    },
    /// A part of the system that is missing or does not answer.
    #[error("{0}")]
    System(String),
    /// A daemon ended or was not ready in time.
    #[error("{what}\n--- last lines of {} ---\n{tail}", log.display())]
    Daemon {
        /// What happened, one sentence.
        what: String,
        /// The daemon's log.
        log: PathBuf,
        /// Its last lines.
        tail: String,
    },
    /// The user asked to stop.
    #[error("stopped by {0}; everything that was started has been ended and removed")]
    Interrupted(&'static str),
}

impl Error {
    /// Exit code of the program: 2 for bad command lines and input, 3 for a system that does not answer,
    /// 130 when interrupted, as shells report it.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_)
            | Self::NoCluster(_)
            | Self::AlreadyUp(_)
            | Self::Foreign(_)
            | Self::Busy(_)
            | Self::Malformed { .. } => 2,
            Self::Io { .. } | Self::System(_) | Self::Daemon { .. } => 3,
            Self::Interrupted(_) => 130,
        }
    }
}

/// Adds the path and what was tried to an I/O result.
pub(crate) trait IoContext<T> {
    /// Names the action, as a verb, and the path.
    fn context(self, action: &'static str, path: &Path) -> Result<T>;
}

impl<T> IoContext<T> for io::Result<T> {
    fn context(self, action: &'static str, path: &Path) -> Result<T> {
        self.map_err(|source| Error::Io { action, path: path.to_owned(), source })
    }
}
