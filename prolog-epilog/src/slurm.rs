//! Slurm as `clustermax-drain` needs it, whichever way it is reached.

use crate::node_state::Node;

/// Why a call to Slurm did not do what was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SlurmError {
    /// The controller did not answer, or could not be asked: try again later.
    #[error("{0}")]
    NoAnswer(String),
    /// The controller answered no: trying again is of no use.
    #[error("{0}")]
    Refused(String),
}

/// A job, as far as telling its user goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// `123`, or `100_7` for a task of an array, so that an update meets that task only.
    pub id: String,
    /// Numeric id.
    pub number: u32,
    /// Submitted with sbatch.
    pub batch: bool,
    /// Runs now.
    pub running: bool,
    /// AdminComment as it stands.
    pub admin_comment: String,
}

/// The few calls the suite makes. Each is one remote procedure call.
pub trait Slurm {
    /// `libslurm` or `scontrol`.
    fn via(&self) -> &'static str;
    /// One node; `None` when Slurm does not know the name.
    ///
    /// # Errors
    /// [`SlurmError`].
    fn node(&mut self, name: &str) -> Result<Option<Node>, SlurmError>;
    /// All nodes.
    ///
    /// # Errors
    /// [`SlurmError`].
    fn nodes(&mut self) -> Result<Vec<Node>, SlurmError>;
    /// Names of the partitions that hold the node.
    ///
    /// # Errors
    /// [`SlurmError`].
    fn partitions(&mut self, node: &str) -> Result<Vec<String>, SlurmError>;
    /// Sets DRAIN and the reason.
    ///
    /// # Errors
    /// [`SlurmError`].
    fn drain(&mut self, name: &str, reason: &str) -> Result<(), SlurmError>;
    /// Clears DRAIN. Slurm clears the reason with it, unless the node is down.
    ///
    /// # Errors
    /// [`SlurmError`].
    fn undrain(&mut self, name: &str) -> Result<(), SlurmError>;
    /// Sets the node's comment, or takes it away when the text is empty.
    ///
    /// # Errors
    /// [`SlurmError`].
    fn set_comment(&mut self, name: &str, comment: &str) -> Result<(), SlurmError>;
    /// Sets the reason of a node that is down or drained; on others most releases keep none.
    ///
    /// # Errors
    /// [`SlurmError`].
    fn set_reason(&mut self, name: &str, reason: &str) -> Result<(), SlurmError>;
    /// One job; `None` when Slurm does not know the id.
    ///
    /// # Errors
    /// [`SlurmError`].
    fn job(&mut self, id: u32) -> Result<Option<Job>, SlurmError>;
    /// Shows the text to the job's user: on the terminal of srun or salloc, in the output of a running batch job.
    ///
    /// # Errors
    /// [`SlurmError`].
    fn notify(&mut self, job: &Job, text: &str) -> Result<(), SlurmError>;
    /// Replaces the job's AdminComment.
    ///
    /// # Errors
    /// [`SlurmError`].
    fn set_admin_comment(&mut self, job: &Job, text: &str) -> Result<(), SlurmError>;
}
