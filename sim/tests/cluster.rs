//! `clustermax-sim` from outside, on real Slurm. Needs root, Slurm and munge; a run without root is skipped by name.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;

const PROGRAM: &str = env!("CARGO_BIN_EXE_clustermax-sim");

/// A cluster's folder; whatever happens in the test, the cluster is down afterwards.
struct Dir {
    parent: tempfile::TempDir,
    path: PathBuf,
}

impl Dir {
    /// `None`, with a note, when this machine cannot run the test.
    fn new(test: &str) -> Option<Self> {
        if fs::metadata("/proc/self").map(|m| std::os::unix::fs::MetadataExt::uid(&m)).unwrap() != 0 {
            eprintln!("{test} is skipped: it needs root");
            return None;
        }
        let parent = tempfile::Builder::new().prefix("cmxsim").tempdir().unwrap();
        fs::set_permissions(parent.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let path = parent.path().join("c");
        Some(Self { parent, path })
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(PROGRAM);
        command
            .arg("--dir")
            .arg(&self.path)
            .args(arguments)
            .env_remove("SLURM_CONF")
            .env_remove("CLUSTERMAX_SIM_DIR");
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// Runs and returns what it printed; the test ends when it fails.
    #[track_caller]
    fn ok(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
        text(&output.stdout)
    }

    /// Runs what must fail, and returns its exit code and complaint.
    #[track_caller]
    fn fails(&self, arguments: &[&str]) -> (i32, String) {
        let output = self.run(arguments);
        assert!(!output.status.success(), "{arguments:?} must fail");
        (output.status.code().unwrap(), text(&output.stderr))
    }

    fn up(&self) -> String {
        self.ok(&["up", "--plain", "--nodes", "2", "--gpus", "4"])
    }

    fn state(&self) -> Value {
        serde_json::from_str(&fs::read_to_string(self.path.join("cluster.json")).unwrap()).unwrap()
    }

    fn id(&self) -> String {
        self.state()["id"].as_str().unwrap().to_owned()
    }

    fn daemons(&self) -> Vec<i32> {
        self.state()["daemons"]
            .as_array()
            .unwrap()
            .iter()
            .map(|d| d["pid"].as_i64().unwrap() as i32)
            .collect()
    }

    /// A folder in which any user's job may write.
    fn scratch(&self) -> PathBuf {
        let path = self.parent.path().join("scratch");
        fs::create_dir_all(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
        path
    }

    /// Nothing of the cluster is left: no folder, process, cgroup, mount or lease.
    #[track_caller]
    fn assert_gone(&self, id: &str) {
        assert!(!self.path.exists(), "{} is left", self.path.display());
        let left = processes_naming(&self.path);
        assert!(left.is_empty(), "processes are left: {left:?}");
        assert_eq!(cgroups_of(id), [] as [PathBuf; 0]);
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        assert!(!mounts.contains(self.path.to_str().unwrap()));
        assert!(!Path::new("/run/clustermax-sim").join(format!("{id}.json")).exists());
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        if self.path.join("cluster.json").exists() {
            let _ = self.command(&["down"]).output();
        }
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Processes whose command line or environment names a folder, or that have a file open or work in it.
fn processes_naming(path: &Path) -> Vec<String> {
    let wanted = path.as_os_str().as_encoded_bytes();
    let leads_in = |link: PathBuf| fs::read_link(link).is_ok_and(|to| to.starts_with(path));
    let has_open =
        |p: &Path| fs::read_dir(p.join("fd")).is_ok_and(|all| all.flatten().any(|d| leads_in(d.path())));
    let names = |file: PathBuf| fs::read(file).is_ok_and(|b| b.windows(wanted.len()).any(|w| w == wanted));
    fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .map(|e| e.path())
        .filter(|p| {
            p.file_name().unwrap().to_str().unwrap().parse::<u32>().is_ok_and(|n| n != std::process::id())
        })
        .filter(|p| {
            names(p.join("environ")) || names(p.join("cmdline")) || leads_in(p.join("cwd")) || has_open(p)
        })
        .map(|p| format!("{} {}", p.display(), fs::read_to_string(p.join("comm")).unwrap_or_default().trim()))
        .collect()
}

fn cgroups_of(id: &str) -> Vec<PathBuf> {
    let Ok(controllers) = fs::read_dir("/sys/fs/cgroup") else { return Vec::new() };
    controllers
        .flatten()
        .map(|c| c.path().join(format!("clustermax-sim-{id}")))
        .filter(|p| p.exists())
        .collect()
}

fn kill(signal: &str, pid: i32) {
    assert!(Command::new("kill").args([signal, "--", &pid.to_string()]).status().unwrap().success());
}

fn alive(pid: i32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|s| !s.contains(") Z "))
}

#[track_caller]
fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < deadline, "{what} did not happen within a minute");
        sleep(Duration::from_millis(50));
    }
}

#[test]
fn two_clusters_side_by_side_run_jobs_of_ordinary_users_with_their_gpus_only() {
    let Some(one) = Dir::new("two_clusters") else { return };
    let two = Dir::new("two_clusters").unwrap();
    // Both at the same moment: ports, PCI domains and cgroups must not collide.
    let arguments = ["up", "--plain", "--nodes", "2", "--gpus", "4"];
    let start = |d: &Dir| d.command(&arguments).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let (first, second) = (start(&one), start(&two));
    for child in [first, second] {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
    }
    let ids = [one.id(), two.id()];
    assert_ne!(ids[0], ids[1]);

    for dir in [&one, &two] {
        let script = dir.scratch().join("job.sh");
        // The answer to opening a device tells a device cgroup (EPERM) from a device without driver (ENXIO).
        fs::write(
            &script,
            format!(
                "#!/bin/bash\necho uid=$(id -u) job_gpus=$SLURM_JOB_GPUS cuda=$CUDA_VISIBLE_DEVICES node=$SLURMD_NODENAME\n\
                 for g in 0 1 2 3; do cat {}/nodes/n2/dev/nvidia$g; done 2>&1\nsrun true && echo step-ok\n",
                dir.path.display()
            ),
        )
        .unwrap();
        // Another job holds GPU 0, so that the index is not simply counted from 0.
        let mut holder =
            dir.command(&["exec", "--", "srun", "-w", "n2", "--gres=gpu:1", "sleep", "60"]).spawn().unwrap();
        wait_until("the first job's start", || {
            dir.ok(&["exec", "--", "squeue", "-h", "-t", "R", "-o", "%i"]).trim() == "1"
        });
        let out = dir.scratch().join("out");
        dir.ok(&[
            "exec",
            "--user",
            "nobody",
            "--",
            "sbatch",
            "--wait",
            "-w",
            "n2",
            "--gres=gpu:2",
            "-o",
            out.to_str().unwrap(),
            script.to_str().unwrap(),
        ]);
        let out = fs::read_to_string(&out).unwrap();
        assert!(out.contains("job_gpus=1,2 "), "{out}");
        assert!(out.contains("uid=65534 ") && out.contains("node=n2") && out.contains("step-ok"), "{out}");
        let denied: Vec<&str> = out.lines().filter(|l| l.contains("Operation not permitted")).collect();
        if dir.state()["cgroups"] == true {
            assert!(out.contains("cuda=0,1 "), "under ConstrainDevices a job counts its own GPUs: {out}");
            assert_eq!(denied.len(), 2, "{out}");
            assert!(denied[0].contains("nvidia0") && denied[1].contains("nvidia3"), "{out}");
        } else {
            assert!(denied.is_empty(), "{out}");
        }
        dir.ok(&["exec", "--", "scancel", "1"]);
        let _ = holder.wait();
    }

    // One goes, the other stays whole.
    one.ok(&["down"]);
    one.assert_gone(&ids[0]);
    assert_eq!(two.ok(&["exec", "--", "srun", "-N2", "-n2", "echo", "both"]), "both\nboth\n");
    assert_eq!(two.run(&["status"]).status.code(), Some(0));
    two.ok(&["down"]);
    two.assert_gone(&ids[1]);
}

#[test]
fn down_ends_jobs_that_try_to_stay() {
    for cgroups in [true, false] {
        let Some(dir) = Dir::new("down_ends_jobs") else { return };
        let mut arguments = vec!["up", "--plain", "--nodes", "2", "--gpus", "2"];
        if !cgroups {
            arguments.push("--no-cgroups");
        }
        dir.ok(&arguments);
        let id = dir.id();
        // A user's own shell that points at the cluster is not part of it.
        let mut shell = Command::new("sleep")
            .arg("300")
            .env("SLURM_CONF", dir.path.join("etc/slurm.conf"))
            .env("SLURM_CLUSTER_NAME", format!("sim{id}"))
            .spawn()
            .unwrap();
        let ready = dir.scratch().join("ready");
        let script = format!(
            "trap '' TERM; setsid sh -c 'trap \"\" TERM; sleep 301' & touch {}; sleep 302 & wait; wait; wait",
            ready.display()
        );
        let mut job = dir
            .command(&["exec", "--user", "nobody", "--", "srun", "sh", "-c", &script])
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        wait_until("the job's start", || ready.exists());
        dir.ok(&["down"]);
        // srun would wait for its cluster for ever.
        job.wait().unwrap();
        assert!(shell.try_wait().unwrap().is_none(), "the user's shell was ended");
        shell.kill().unwrap();
        shell.wait().unwrap();
        dir.assert_gone(&id);
    }
}

#[test]
fn a_live_cluster_and_a_foreign_folder_are_refused() {
    let Some(dir) = Dir::new("refused") else { return };
    assert_eq!(dir.fails(&["down"]).0, 2);
    let (code, complaint) = dir.fails(&["up", "--prefix", dir.parent.path().to_str().unwrap()]);
    assert_eq!(code, 2);
    assert!(complaint.contains("lacks clustermax-prolog") && complaint.contains("--plain"), "{complaint}");
    assert!(!dir.path.exists(), "a refused up leaves no folder");
    dir.up();
    let before = dir.state();
    let (code, complaint) = dir.fails(&["up", "--plain"]);
    assert_eq!(code, 2);
    assert!(complaint.contains("already up") && complaint.trim_end().lines().count() == 1, "{complaint}");
    assert_eq!(dir.state(), before);
    assert_eq!(dir.ok(&["exec", "--", "srun", "-n1", "echo", "works"]), "works\n");
    let id = dir.id();
    dir.ok(&["down"]);
    dir.assert_gone(&id);
    let (code, complaint) = dir.fails(&["down"]);
    assert_eq!(code, 2);
    assert!(complaint.contains("there is no simulated cluster"), "{complaint}");

    fs::create_dir(&dir.path).unwrap();
    let treasure = dir.path.join("thesis.txt");
    fs::write(&treasure, "years of work").unwrap();
    for command in [&["up", "--plain"][..], &["down"]] {
        assert_eq!(dir.fails(command).0, 2);
        assert_eq!(fs::read_to_string(&treasure).unwrap(), "years of work");
    }
}

/// Starts `up` and returns once it has said `line`.
#[allow(clippy::zombie_processes, reason = "the caller waits; where it does not, the test has failed")]
fn up_until(dir: &Dir, line: &str) -> (Child, BufReader<std::process::ChildStderr>) {
    let mut command = dir.command(&["up", "--plain", "--nodes", "2", "--gpus", "2"]);
    // As a terminal does: a group of its own, so that the signal below reaches the children too.
    command.process_group(0).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap());
    loop {
        let mut text = String::new();
        assert_ne!(lines.read_line(&mut text).unwrap(), 0, "up ended without saying \"{line}\"");
        if text.contains(line) {
            return (child, lines);
        }
    }
}

#[test]
fn a_signal_during_up_cleans_up() {
    for (line, signal) in [
        ("PCI domains", "-INT"),
        ("starting munged", "-HUP"),
        ("starting slurmctld", "-TERM"),
        ("starting slurmd", "-INT"),
        ("waiting until", "-INT"),
    ] {
        let Some(dir) = Dir::new("signal_during_up") else { return };
        let (mut child, mut lines) = up_until(&dir, line);
        let id = dir.id();
        kill(signal, -(child.id() as i32));
        let mut rest = String::new();
        lines.read_to_string(&mut rest).unwrap();
        let status = child.wait().unwrap();
        assert_eq!(status.code(), Some(130), "after \"{line}\": {rest}");
        assert!(rest.contains("stopped by SIG"), "{rest}");
        dir.assert_gone(&id);
    }
}

#[test]
fn what_a_crash_left_is_cleaned_away_by_the_next_up() {
    let Some(dir) = Dir::new("crash") else { return };
    // `up` itself is killed in the middle.
    let (mut child, _lines) = up_until(&dir, "starting slurmd");
    let first = dir.id();
    child.kill().unwrap();
    child.wait().unwrap();
    let orphans = dir.daemons();
    assert!(!orphans.is_empty());
    dir.up();
    assert!(orphans.iter().all(|p| !alive(*p)), "daemons of the killed up are left");
    assert_eq!(cgroups_of(&first), [] as [PathBuf; 0]);

    // Every daemon dies.
    let second = dir.id();
    for pid in dir.daemons() {
        kill("-KILL", pid);
    }
    wait_until("the daemons' end", || dir.daemons().iter().all(|p| !alive(*p)));
    assert_eq!(dir.run(&["status"]).status.code(), Some(1));
    dir.up();
    assert_ne!(dir.id(), second);
    let third = dir.id();
    dir.ok(&["down"]);
    dir.assert_gone(&third);
}

#[test]
fn after_a_reboot_no_recorded_pid_is_touched() {
    let Some(dir) = Dir::new("reboot") else { return };
    dir.up();
    let id = dir.id();
    let mut stranger = Command::new("sleep").arg("300").spawn().unwrap();
    // The record as a reboot leaves it: every pid may be somebody else's now.
    let daemons = dir.daemons();
    let mut state = dir.state();
    state["boot_id"] = Value::from("00000000-0000-4000-8000-000000000001");
    let stat = fs::read_to_string(format!("/proc/{}/stat", stranger.id())).unwrap();
    let start: u64 = stat.rsplit(')').next().unwrap().split_whitespace().nth(19).unwrap().parse().unwrap();
    state["daemons"] = serde_json::json!([{"name": "munged", "pid": stranger.id(), "start": start}]);
    for pid in daemons {
        kill("-KILL", pid);
    }
    fs::write(dir.path.join("cluster.json"), state.to_string()).unwrap();
    dir.up();
    assert!(stranger.try_wait().unwrap().is_none(), "a process of another boot's pid was ended");
    stranger.kill().unwrap();
    stranger.wait().unwrap();
    assert_eq!(cgroups_of(&id), [] as [PathBuf; 0]);
    let id = dir.id();
    dir.ok(&["down"]);
    dir.assert_gone(&id);
}

#[test]
fn a_failing_daemon_is_named_with_its_log_and_nothing_is_left() {
    let Some(dir) = Dir::new("failing_daemon") else { return };
    // A slurmd that cannot run: PATH is searched before the usual folders.
    let bin = dir.parent.path().join("bin");
    fs::create_dir(&bin).unwrap();
    fs::write(bin.join("slurmd"), "#!/bin/sh\necho 'fatal: no such thing' >&2\nexit 1\n").unwrap();
    fs::set_permissions(bin.join("slurmd"), fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", bin.display());
    let output = dir.command(&["up", "--plain", "--nodes", "2"]).env("PATH", path).output().unwrap();
    let complaint = text(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{complaint}");
    assert!(complaint.contains("slurmd-n") && complaint.contains("fatal: no such thing"), "{complaint}");
    assert!(!dir.path.exists());
    assert!(processes_naming(&dir.path).is_empty());
}

#[test]
fn faults_reach_the_kernel_log_and_the_node_and_clear() {
    let Some(dir) = Dir::new("faults") else { return };
    dir.up();
    if dir.state()["kernel_log"] != true {
        eprintln!("the kernel log cannot be written on this machine: that part is skipped");
    } else {
        let first = u32::from_str_radix(&dir.id(), 16).unwrap();
        let said = dir.ok(&["inject", "xid:13", "--node", "2", "--gpu", "3"]);
        let line = format!("NVRM: Xid (PCI:{:04x}:5d:00): 13, ", first + 1);
        assert!(said.contains("/dev/kmsg record ") && said.contains(&line), "{said}");
        let log = text(&Command::new("dmesg").output().unwrap().stdout);
        assert_eq!(log.matches(&line).count(), 1, "the line is in the kernel's log once");
        // More than the kernel's rate limit (10 in 5 s) would let through.
        for _ in 0..12 {
            dir.ok(&["inject", "xid:31", "--node", "n1"]);
        }
    }
    dir.ok(&["inject", "kmsg-line:nfs: server nas not responding, still trying", "--node", "1"]);
    let records = fs::read_to_string(dir.path.join("nodes/n1/kmsg")).unwrap();
    assert!(
        records.starts_with("3,0,") && records.ends_with(";nfs: server nas not responding, still trying\n")
    );
    assert_eq!(fs::read_to_string(dir.path.join("nodes/n2/kmsg")).unwrap(), "");

    dir.ok(&["inject", "ib-down", "--node", "n2", "--gpu", "5"]);
    let port = dir.path.join("nodes/n2/sys/class/infiniband/mlx5_5/ports/1/state");
    assert_eq!(fs::read_to_string(&port).unwrap(), "1: DOWN\n");
    let status: Value = serde_json::from_str(&dir.ok(&["status", "--json"])).unwrap();
    let faults: Vec<&str> = status["nodes"][1]["faults"]
        .as_array()
        .unwrap()
        .iter()
        .map(|f| f["fault"].as_str().unwrap())
        .collect();
    assert!(faults.ends_with(&["ib-down"]), "{faults:?}");
    assert_eq!(status["nodes"][1]["state"], "idle");
    dir.ok(&["clear", "--node", "2"]);
    assert_eq!(fs::read_to_string(&port).unwrap(), "4: ACTIVE\n");
    let status: Value = serde_json::from_str(&dir.ok(&["status", "--json"])).unwrap();
    assert_eq!(status["nodes"][1]["faults"], serde_json::json!([]));

    for (arguments, part) in [
        (&["inject", "xid78", "--node", "1"][..], "nearest is \"xid79\""),
        (&["inject", "xid79", "--node", "3"], "n1 to n2"),
        (&["inject", "xid79", "--node", "1", "--gpu", "4"], "this node has 4"),
        (&["clear", "--node", "n9"], "n1 to n2"),
        (&["stop", "slurmdbd"], "slurmctld"),
    ] {
        let (code, complaint) = dir.fails(arguments);
        assert_eq!(code, 2, "{arguments:?}: {complaint}");
        assert!(complaint.contains(part) && complaint.trim_end().lines().count() == 1, "{complaint}");
    }
    assert!(dir.ok(&["inject", "--list"]).contains("xid79"));
}

#[test]
fn a_controller_that_died_can_be_started_and_a_drain_outlives_it() {
    let Some(dir) = Dir::new("controller") else { return };
    dir.up();
    dir.ok(&["exec", "--", "scontrol", "update", "nodename=n1", "state=drain", "reason=operator"]);
    // slurmctld saves its state a few seconds after a change.
    let saved = dir.path.join("var/slurmctld/node_state");
    wait_until("the drain on disk", || {
        fs::read(&saved).is_ok_and(|b| b.windows(8).any(|w| w == b"operator"))
    });
    dir.ok(&["stop", "slurmctld"]);
    let output = dir.run(&["status"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stdout).contains("not running: slurmctld"), "{}", text(&output.stdout));
    // A cluster with dead parts is still up: starting another over it would lose what runs.
    assert_eq!(dir.fails(&["up", "--plain"]).0, 2);
    dir.ok(&["start", "slurmctld"]);
    wait_until("the drained node's return", || {
        let status: Value = serde_json::from_str(&text(&dir.run(&["status", "--json"]).stdout)).unwrap();
        status["nodes"][0]["state"] == "drained"
            && status["nodes"][0]["reason"] == "operator"
            && status["nodes"][1]["state"] == "idle"
    });
    let id = dir.id();
    dir.ok(&["down"]);
    dir.assert_gone(&id);
}
