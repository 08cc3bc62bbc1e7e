//! Calls `clustermax-drain`, the only writer to Slurm, as a child under a deadline. No Slurm here.

use std::process::Command;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::config::{Config, check_trusted};
use crate::source::child::{self, Ended, Meanwhile};

/// What became of a drain; see `docs/interfaces.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DrainOutcome {
    /// Drained with our reason.
    Written,
    /// Already drained by us for the same fault.
    Already,
    /// Already drained by somebody else: left alone.
    Foreign,
    /// In a state that is not ours to change.
    Protected,
    /// The brake is engaged.
    Brake,
    /// Kept on disk until the controller answers.
    Spooled,
    /// The node could not be read.
    Unreadable,
    /// Enforcement is `observe`.
    Observe,
    /// libslurm is of another release and scontrol is no way out.
    WrongRelease,
    /// Our drain was taken back, since what drained the node is well again.
    Returned,
    /// `clustermax-drain` itself failed.
    Failed,
}

impl DrainOutcome {
    /// All of them.
    pub const ALL: [DrainOutcome; 11] = [
        DrainOutcome::Written,
        DrainOutcome::Already,
        DrainOutcome::Foreign,
        DrainOutcome::Protected,
        DrainOutcome::Brake,
        DrainOutcome::Spooled,
        DrainOutcome::Unreadable,
        DrainOutcome::Observe,
        DrainOutcome::WrongRelease,
        DrainOutcome::Returned,
        DrainOutcome::Failed,
    ];

    /// The word used in files.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            DrainOutcome::Written => "written",
            DrainOutcome::Already => "already",
            DrainOutcome::Foreign => "foreign",
            DrainOutcome::Protected => "protected",
            DrainOutcome::Brake => "brake",
            DrainOutcome::Spooled => "spooled",
            DrainOutcome::Unreadable => "unreadable",
            DrainOutcome::Observe => "observe",
            DrainOutcome::WrongRelease => "wrong_release",
            DrainOutcome::Returned => "returned",
            DrainOutcome::Failed => "failed",
        }
    }

    /// The node is out of service, or will be: Slurm may be told to requeue the job.
    #[must_use]
    pub fn is_drained(self) -> bool {
        matches!(
            self,
            DrainOutcome::Written | DrainOutcome::Already | DrainOutcome::Foreign | DrainOutcome::Spooled
        )
    }

    /// Nothing more is to be done for the events behind it. A brake, an unreadable node or a failure leave them open.
    #[must_use]
    pub fn settles(self) -> bool {
        self.is_drained() || matches!(self, DrainOutcome::Protected | DrainOutcome::Observe)
    }
}

/// Answer of one call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// Outcome.
    pub outcome: DrainOutcome,
    /// One sentence.
    #[serde(default)]
    pub detail: String,
}

/// Drains this node with `reason` and tells `jobs`. `confirm` waits for the brake's second look.
#[must_use]
pub fn drain(
    config: &Config,
    reason: &str,
    jobs: &[String],
    confirm: bool,
    limit: Duration,
    meanwhile: &mut Meanwhile<'_>,
) -> Answer {
    let mut args = vec!["drain", "--reason", reason];
    if confirm {
        args.push("--confirm");
    }
    for job in jobs {
        args.extend(["--job", job]);
    }
    call(config, &args, limit, meanwhile)
}

/// Tells a job something.
#[must_use]
pub fn notify(
    config: &Config,
    job: &str,
    text: &str,
    limit: Duration,
    meanwhile: &mut Meanwhile<'_>,
) -> Answer {
    call(config, &["notify", "--job", job, "--text", text], limit, meanwhile)
}

/// Gives this node back after the fault with this id, if the drain is still ours.
#[must_use]
pub fn give_back(config: &Config, id: &str, limit: Duration, meanwhile: &mut Meanwhile<'_>) -> Answer {
    call(config, &["return", "--id", id], limit, meanwhile)
}

/// Has the rack-scale domain of this sick tray looked at anew. What comes of it stands in `STATE_DIR/domain.json`, which is
/// gone when the tray is not sick any more.
pub fn look_at_domain(config: &Config, limit: Duration, meanwhile: &mut Meanwhile<'_>) {
    let _ = call(config, &["look-at-domain"], limit, meanwhile);
}

/// Delivers spooled drains; starts nothing when there are none.
#[must_use]
pub fn deliver(config: &Config, limit: Duration, meanwhile: &mut Meanwhile<'_>) -> Option<Answer> {
    spool_has_work(config).then(|| call(config, &["deliver"], limit, meanwhile))
}

/// Drains wait for the controller.
#[must_use]
pub fn spool_has_work(config: &Config) -> bool {
    std::fs::read_dir(config.paths.state_dir.join("spool"))
        .is_ok_and(|entries| entries.flatten().any(|e| e.path().extension().is_some_and(|x| x == "json")))
}

fn call(config: &Config, args: &[&str], limit: Duration, meanwhile: &mut Meanwhile<'_>) -> Answer {
    let failed = |detail: String| Answer { outcome: DrainOutcome::Failed, detail };
    if let Err(e) = check_trusted(&config.paths.drain, true) {
        return failed(e.to_string());
    }
    let mut command = Command::new(&config.paths.drain);
    // Named, since children get no environment: by the host's name alone `%n` would lead to another node's folders.
    command.arg("--config").arg(&config.file).args(["--node", &config.node]).args(args);
    let mut ended = child::finish_with(vec![child::start("drain", &mut command, limit, None)], meanwhile);
    let Some((_, outcome)) = ended.pop() else { return failed("no child".into()) };
    let answer = outcome.stdout.lines().rev().find_map(|l| serde_json::from_str::<Answer>(l).ok());
    match (answer, outcome.ended) {
        (Some(answer), Ended::Exit(_)) => answer,
        (_, Ended::Deadline(why) | Ended::NotStarted(why)) => {
            failed(format!("{}: {why}", config.paths.drain.display()))
        }
        (None, Ended::Exit(code)) => failed(format!(
            "{} gave no answer (exit code {})",
            config.paths.drain.display(),
            code.map_or("none".into(), |c| c.to_string())
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_spool_starts_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let mut meanwhile = Meanwhile { fds: Vec::new(), work: &mut || {} };
        let mut config = Config::default();
        config.paths.state_dir = dir.path().into();
        config.paths.drain = "/nonexistent".into();
        assert_eq!(deliver(&config, Duration::from_secs(1), &mut meanwhile), None);
        std::fs::create_dir(dir.path().join("spool")).unwrap();
        assert_eq!(deliver(&config, Duration::from_secs(1), &mut meanwhile), None);
        std::fs::write(dir.path().join("spool/n1.json"), "{}").unwrap();
        let answer = deliver(&config, Duration::from_secs(1), &mut meanwhile).unwrap();
        assert_eq!(answer.outcome, DrainOutcome::Failed);
    }

    #[test]
    fn every_call_names_its_node() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let mut config = Config { node: "n7".into(), file: "/c.toml".into(), ..Config::default() };
        config.paths.state_dir = dir.path().into();
        config.paths.drain = dir.path().join("drain");
        let script = "#!/bin/sh\necho \"{\\\"outcome\\\":\\\"written\\\",\\\"detail\\\":\\\"$*\\\"}\"\n";
        std::fs::write(&config.paths.drain, script).unwrap();
        std::fs::set_permissions(&config.paths.drain, std::fs::Permissions::from_mode(0o755)).unwrap();
        std::fs::create_dir(dir.path().join("spool")).unwrap();
        std::fs::write(dir.path().join("spool/n7-00000000.json"), "{}").unwrap();
        let limit = Duration::from_secs(20);
        let mut meanwhile = Meanwhile { fds: Vec::new(), work: &mut || {} };
        let said = deliver(&config, limit, &mut meanwhile).unwrap().detail;
        assert_eq!(said, "--config /c.toml --node n7 deliver");
        let said = drain(&config, "cmx:x", &[], false, limit, &mut meanwhile).detail;
        assert!(said.contains("--node n7 drain"), "{said}");
        let said = notify(&config, "1", "text", limit, &mut meanwhile).detail;
        assert!(said.contains("--node n7 notify"), "{said}");
    }

    #[test]
    fn which_outcomes_count_as_drained() {
        use DrainOutcome::*;
        let drained = [Written, Already, Foreign, Spooled];
        for o in
            [Written, Already, Foreign, Protected, Brake, Spooled, Unreadable, Observe, WrongRelease, Failed]
        {
            assert_eq!(o.is_drained(), drained.contains(&o), "{o:?}");
            assert_eq!(serde_json::to_string(&o).unwrap(), format!("\"{}\"", o.word()));
        }
        assert!(!Brake.settles() && !Unreadable.settles() && !Failed.settles());
    }
}
