//! One job at a time writes into a results folder: two would lose each other's records.

use std::fs::File;
use std::path::Path;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::progress::Progress;
use super::slurm;
use crate::Failure;

/// In the results folder. A bundle leaves out names that begin with a dot and end in `.tmp`.
const FILE: &str = ".lock.tmp";

/// Held while a job measures into a folder; the kernel lets go of it however the process ends.
#[derive(Debug)]
pub struct Lock(#[allow(dead_code, reason = "it is held, not used")] Option<File>);

impl Lock {
    /// Takes the folder for this job.
    ///
    /// # Errors
    /// Another job that Slurm shows as running, or another process of this one, measures into it.
    pub fn take(results: &Path, job: &str) -> Result<Self, Failure> {
        // Slurm is asked too: some file systems keep locks on one node, or know none.
        let other = Progress::read(results).map(|progress| progress.job).filter(|other| other != job);
        let at_work = other.filter(|other| {
            slurm::job_state(other).is_some_and(|state| matches!(&*state, "RUNNING" | "SUSPENDED"))
        });
        if let Some(other) = at_work {
            return Err(taken(results, &format!("job {other}")));
        }
        // A folder that takes no file is somebody else's sentence.
        let Ok(file) = File::options().create(true).truncate(false).write(true).open(results.join(FILE))
        else {
            return Ok(Self(None));
        };
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => Err(taken(results, "another process")),
            _ => Ok(Self(Some(file))),
        }
    }
}

fn taken(results: &Path, who: &str) -> Failure {
    Failure::input(format!(
        "{who} is measuring into {}; wait until it has ended, or give --results another folder",
        results.display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_suites_in_one_folder_are_kept_apart() {
        let folder = tempfile::tempdir().unwrap();
        let first = Lock::take(folder.path(), "7").unwrap();
        let refused = Lock::take(folder.path(), "7").unwrap_err().message;
        assert!(refused.contains("another process is measuring into"), "{refused}");
        drop(first);
        assert!(Lock::take(folder.path(), "8").is_ok(), "a lock does not outlive its process");
        assert!(Lock::take(&folder.path().join("none"), "8").is_ok());
    }
}
