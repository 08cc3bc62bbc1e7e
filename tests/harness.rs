//! Starts a real Slurm cluster for one test, and runs the product's programs from outside.
//!
//! Every test has a cluster of its own in a folder of its own; it is stopped and removed when the test ends,
//! passed or failed. What failed is printed with the daemons' logs.

#![allow(clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// An ordinary user that every system has.
pub const USER: &str = "nobody";

/// Folder of the built programs: that of the running test's profile.
///
/// # Panics
/// When a test is not run by cargo.
#[must_use]
pub fn programs() -> PathBuf {
    let exe = std::env::current_exe().expect("the test knows its own path");
    exe.parent().and_then(Path::parent).expect("target/PROFILE/deps/TEST").to_path_buf()
}

/// One of the built programs.
///
/// # Panics
/// When it was not built: `./run-tests` and `cargo build --workspace` build them all.
#[must_use]
pub fn program(name: &str) -> PathBuf {
    let path = programs().join(name);
    assert!(path.exists(), "{} is not built: run `cargo build --workspace` first", path.display());
    path
}

/// The folder with another release of Slurm on which clusters run, `CLUSTERMAX_SLURM_ROOT`; none: this machine's.
#[must_use]
pub fn slurm_root() -> Option<PathBuf> {
    std::env::var_os("CLUSTERMAX_SLURM_ROOT").filter(|r| !r.is_empty()).map(PathBuf::from)
}

/// Top folder of the project.
#[must_use]
pub fn project() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(Path::to_path_buf).unwrap_or_default()
}

/// Says that the calling test, or a part of it, does not run, and why: on its output, and for the summary of `./run-tests` in the
/// file that CLUSTERMAX_SKIPPED names.
///
/// # Panics
/// When that file cannot be written.
pub fn skipped(why: &str) {
    println!("skipped: {why}");
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test");
    if let Some(file) = std::env::var_os("CLUSTERMAX_SKIPPED").filter(|f| !f.is_empty()) {
        let mut file =
            std::fs::File::options().create(true).append(true).open(file).expect("CLUSTERMAX_SKIPPED");
        file.write_all(format!("{test}: {why}\n").as_bytes()).expect("CLUSTERMAX_SKIPPED");
    }
}

/// What a finished command said.
#[derive(Debug)]
pub struct Said {
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
    /// Exit code; -1 when a signal ended it.
    pub code: i32,
}

impl From<Output> for Said {
    fn from(o: Output) -> Self {
        Said {
            out: String::from_utf8_lossy(&o.stdout).into_owned(),
            err: String::from_utf8_lossy(&o.stderr).into_owned(),
            code: o.status.code().unwrap_or(-1),
        }
    }
}

/// Runs a command to its end.
///
/// # Panics
/// When it cannot be started.
pub fn run(command: &mut Command) -> Said {
    command.stdin(Stdio::null()).output().unwrap_or_else(|e| panic!("{command:?}: {e}")).into()
}

/// A cluster of one test.
pub struct Cluster {
    dir: TempDir,
}

impl Cluster {
    /// Brings a cluster up; `args` are those of `clustermax-sim up`.
    ///
    /// # Panics
    /// When it does not come up.
    #[must_use]
    pub fn up(args: &[&str]) -> Cluster {
        let dir = tempfile::Builder::new().prefix("clustermax-test.").tempdir().expect("a temporary folder");
        // Jobs of ordinary users pass through it.
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(dir.path(), open).expect("open folder");
        let cluster = Cluster { dir };
        let mut up = cluster.sim();
        up.arg("up").args(args);
        if let Some(root) = slurm_root() {
            up.arg("--slurm-root").arg(root);
        }
        let said = run(&mut up);
        assert_eq!(said.code, 0, "clustermax-sim up {args:?}: {}", said.err);
        cluster
    }

    /// The cluster's folder.
    #[must_use]
    pub fn dir(&self) -> PathBuf {
        self.dir.path().join("c")
    }

    /// A folder that every user may write to, outside the cluster's own.
    ///
    /// # Panics
    /// When it cannot be made.
    #[must_use]
    pub fn scratch(&self) -> PathBuf {
        let path = self.dir.path().join("scratch");
        std::fs::create_dir_all(&path).expect("scratch");
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o1777);
        std::fs::set_permissions(&path, open).expect("open scratch");
        path
    }

    /// The product's configuration.
    #[must_use]
    pub fn config(&self) -> PathBuf {
        self.dir().join("etc/clustermax.toml")
    }

    /// A node's own folder.
    #[must_use]
    pub fn node_dir(&self, node: &str) -> PathBuf {
        self.dir().join("nodes").join(node)
    }

    /// `clustermax-sim` on this cluster.
    #[must_use]
    pub fn sim(&self) -> Command {
        let mut c = Command::new(program("clustermax-sim"));
        c.arg("--dir").arg(self.dir());
        c
    }

    /// Runs `clustermax-sim ARGS`, which must succeed.
    ///
    /// # Panics
    /// When it fails.
    pub fn sim_ok(&self, args: &[&str]) -> String {
        let said = run(self.sim().args(args));
        assert_eq!(said.code, 0, "clustermax-sim {args:?}: {}\n{}", said.err, self.logs());
        said.out
    }

    /// A command with the cluster's environment, as root.
    #[must_use]
    pub fn command(&self, args: &[&str]) -> Command {
        let mut c = self.sim();
        c.args(["exec", "--"]).args(args);
        c
    }

    /// A command with the cluster's environment, as an ordinary user.
    #[must_use]
    pub fn user_command(&self, args: &[&str]) -> Command {
        let mut c = self.sim();
        c.args(["exec", "--user", USER, "--"]).args(args).current_dir("/");
        c
    }

    /// Runs a command of Slurm's and gives its output.
    ///
    /// # Panics
    /// When it fails.
    pub fn slurm(&self, args: &[&str]) -> String {
        let said = run(&mut self.command(args));
        assert_eq!(said.code, 0, "{args:?}: {}\n{}", said.err, self.logs());
        said.out
    }

    /// A product program on a node, as slurmd would start it there: nothing but the node's name.
    #[must_use]
    pub fn on_node(&self, node: &str, name: &str, args: &[&str]) -> Command {
        self.on_node_with(node, name, args, &[])
    }

    /// The same with more in its environment. Variables are given here, not added to the command: with another
    /// release of Slurm the program runs inside that release's system.
    #[must_use]
    pub fn on_node_with(&self, node: &str, name: &str, args: &[&str], more: &[(&str, &str)]) -> Command {
        let program = self.bound_program(name);
        let mut c = if slurm_root().is_some() {
            let mut c = self.command(&["/usr/bin/env", "-i"]);
            c.arg(format!("SLURMD_NODENAME={node}"));
            c.args(more.iter().map(|(key, value)| format!("{key}={value}"))).arg(program);
            c
        } else {
            let mut c = Command::new(program);
            c.env_clear().env("SLURMD_NODENAME", node).envs(more.iter().copied());
            c
        };
        c.args(args).arg("--config").arg(self.config());
        c
    }

    /// A program, that of the release of Slurm in use where it is bound to one.
    fn bound_program(&self, name: &str) -> PathBuf {
        if name == "clustermax-drain" && slurm_root().is_some() {
            let text = std::fs::read_to_string(self.config()).expect("clustermax.toml");
            let line = text.lines().find_map(|l| l.strip_prefix("drain = ")).expect("paths.drain");
            return PathBuf::from(line.trim_matches('"'));
        }
        program(name)
    }

    /// The prolog or epilog on a node, with slurmd's environment for a job.
    #[must_use]
    pub fn hook(&self, node: &str, name: &str, job: &str, gpus: &str) -> Command {
        let job = [
            ("SLURM_JOB_ID", job),
            ("SLURM_JOB_UID", "65534"),
            ("SLURM_JOB_GID", "65534"),
            ("SLURM_JOB_GPUS", gpus),
        ];
        self.on_node_with(node, name, &[], &job)
    }

    /// State word and reason of a node, as `sinfo` and `scontrol` show them.
    #[must_use]
    pub fn node(&self, node: &str) -> Node {
        let text = self.slurm(&["scontrol", "-o", "show", "node", node]);
        let after = |key: &str| text.split(&format!(" {key}=")).nth(1).unwrap_or_default().to_string();
        let state = after("State").split_whitespace().next().unwrap_or_default().to_string();
        let reason = after("Reason");
        Node { state, reason: reason.rsplit_once(" [").map_or(reason.trim(), |(r, _)| r).to_string() }
    }

    /// Waits until `what` is true, at most `seconds`; says how long it took.
    ///
    /// # Panics
    /// When it does not come true.
    pub fn wait(&self, seconds: u64, what: &str, is: impl Fn() -> bool) -> Duration {
        let begun = Instant::now();
        loop {
            if is() {
                println!("{what}: after {:.2} s", begun.elapsed().as_secs_f64());
                return begun.elapsed();
            }
            assert!(
                begun.elapsed() < Duration::from_secs(seconds),
                "not within {seconds} s: {what}\n{}\n{}",
                run(&mut self.command(&["scontrol", "-o", "show", "node"])).out,
                self.logs()
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits until a node is drained; gives its reason.
    ///
    /// # Panics
    /// When it is not drained in time.
    pub fn wait_drained(&self, node: &str, seconds: u64) -> String {
        self.wait(seconds, &format!("{node} drained"), || self.node(node).drained());
        self.node(node).reason
    }

    /// Sleeps for some intervals of the HealthCheckProgram, for what must *not* happen in that time.
    pub fn pass_intervals(&self, seconds: u64) {
        std::thread::sleep(Duration::from_secs(seconds));
    }

    /// The daemons' last words.
    #[must_use]
    pub fn logs(&self) -> String {
        let mut out = String::new();
        for entry in std::fs::read_dir(self.dir().join("log")).into_iter().flatten().flatten() {
            let text = std::fs::read_to_string(entry.path()).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            let tail = lines.len().saturating_sub(15);
            out.push_str(&format!("--- {}\n{}\n", entry.path().display(), lines[tail..].join("\n")));
        }
        out
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let said = run(self.sim().arg("down"));
        if said.code != 0 && !std::thread::panicking() {
            panic!("clustermax-sim down: {}", said.err);
        }
    }
}

/// A node as Slurm shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// `IDLE+DRAIN` and the like.
    pub state: String,
    /// Reason without `[user@time]`.
    pub reason: String,
}

impl Node {
    /// The node takes no more jobs.
    #[must_use]
    pub fn drained(&self) -> bool {
        self.state.split('+').any(|s| s == "DRAIN")
    }
}
