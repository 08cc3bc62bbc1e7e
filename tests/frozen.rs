//! A probe that cannot be killed: a process that writes to a frozen file system is in state D, SIGKILL pending, until somebody
//! thaws it. Nothing waits for it, no second one is started beside it, and its hang is the finding.

#![allow(clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use harness::{Cluster, run};

/// Mounts an image in a mount namespace of its own and freezes it; thaws it as soon as its standard input ends, which is
/// also when the test that holds the other end dies.
const HOLDER: &str = r#"
mount --make-rprivate /
mount -o loop "$1" "$2" || { echo "no loop mount here"; exit 1; }
trap 'fsfreeze --unfreeze "$2"; umount --lazy "$2"' EXIT
fsfreeze --freeze "$2" || { echo "fsfreeze does not work here"; exit 1; }
echo frozen
cat > /dev/null
"#;

/// A frozen ext4 file system, to be seen by what is started through it; thawed when this is dropped.
struct Frozen {
    holder: Child,
    point: PathBuf,
}

impl Frozen {
    /// None, with the reason printed, where the machine has no loop mounts or does not freeze them.
    fn new(dir: &Path) -> Option<Frozen> {
        let (image, point) = (dir.join("image"), dir.join("frozen"));
        std::fs::create_dir(&point).expect("mount point");
        std::fs::File::create(&image).and_then(|f| f.set_len(16 << 20)).expect("image");
        let made = run(Command::new("mkfs.ext4").arg("-q").arg(&image));
        assert_eq!(made.code, 0, "mkfs.ext4: {}", made.err);
        let mut holder = Command::new("unshare")
            .args(["--mount", "sh", "-c", HOLDER, "sh"])
            .args([&image, &point])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("unshare");
        let mut said = String::new();
        BufReader::new(holder.stdout.take().expect("a pipe")).read_line(&mut said).expect("said");
        if said.trim() == "frozen" {
            return Some(Frozen { holder, point });
        }
        harness::skipped(&format!("this machine cannot freeze a loop mount: {}", said.trim()));
        drop(holder.stdin.take());
        holder.wait().expect("ended");
        None
    }

    /// A command that sees the frozen file system.
    fn inside(&self, command: &Command) -> Command {
        let mut inside = Command::new("nsenter");
        inside.arg(format!("--mount=/proc/{}/ns/mnt", self.holder.id())).arg("--").arg(command.get_program());
        inside.args(command.get_args()).env_clear();
        inside.envs(command.get_envs().filter_map(|(key, value)| Some((key, value?))));
        inside
    }

    fn thaw(&mut self) {
        drop(self.holder.stdin.take());
        self.holder.wait().expect("thawed");
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        self.thaw();
    }
}

/// A `watch`, ended with the test.
struct Watch(Child);

impl Drop for Watch {
    fn drop(&mut self) {
        run(Command::new("kill").args(["-TERM", &self.0.id().to_string()]));
        self.0.wait().expect("ended");
    }
}

/// Children of the two sources that touch the frozen file system, by pid and state, wherever they hang.
fn children(point: &Path) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").expect("/proc").flatten() {
        let pid = entry.file_name().to_string_lossy().into_owned();
        let Ok(line) = std::fs::read(entry.path().join("cmdline")) else { continue };
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        let of_source = line.contains("__source mount") || line.contains("write.sh");
        if of_source && line.contains(&point.display().to_string()) {
            found.push((pid, status(&entry.path(), "State:")));
        }
    }
    found
}

fn status(process: &Path, key: &str) -> String {
    let text = std::fs::read_to_string(process.join("status")).unwrap_or_default();
    text.lines().find_map(|l| l.strip_prefix(key)).unwrap_or_default().trim().to_string()
}

#[test]
fn a_probe_that_cannot_be_killed_holds_nothing_up() {
    if harness::slurm_root().is_some() {
        harness::skipped(
            "programs inside another release's system do not see this test's mount; no Slurm takes part in it",
        );
        return;
    }
    let c = Cluster::up(&["--nodes", "1", "--enforcement", "enforce", "--health-interval", "3600"]);
    let Some(mut frozen) = Frozen::new(&c.scratch()) else { return };
    let point = frozen.point.clone();
    let script = c.dir().join("write.sh");
    // The shell itself writes: what hangs is the child, not what it started.
    std::fs::write(&script, "#!/bin/sh\necho x > \"$1/file\"\n").expect("script");
    std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("mode");
    let text = std::fs::read_to_string(c.config()).expect("configuration");
    let more = format!(
        "\n[watch]\ninterval = 1\n[[profile.mount]]\npath = \"{0}\"\nwritable = true\nnetwork = true\n\
         [[command]]\nname = \"write\"\ntoken = \"write\"\npath = \"{1}\"\nargs = [\"{0}\"]\n\
         action = \"repair\"\nmodes = [\"prolog\", \"epilog\", \"periodic\"]\n",
        point.display(),
        script.display()
    );
    std::fs::write(c.config(), text + &more).expect("configuration");
    let pass = || {
        let begun = Instant::now();
        let command = c.on_node("n1", "clustermax-healthcheck", &["run", "--json", "--mode", "periodic"]);
        let said = run(&mut frozen.inside(&command));
        let verdict: serde_json::Value = serde_json::from_str(&said.out).unwrap_or_default();
        let stale = verdict["findings"].as_array().and_then(|all| {
            all.iter()
                .find(|f| f["check"] == "fs.stale")
                .map(|f| f["status"].as_str().unwrap_or("-").to_string())
        });
        (stale.unwrap_or_else(|| panic!("no fs.stale: {} {}", said.out, said.err)), begun.elapsed())
    };

    // A job's hook, with a site command that hangs for the first time.
    let hook = |name: &str| {
        let begun = Instant::now();
        run(&mut frozen.inside(&c.hook("n1", name, "999", "0")));
        println!("{name}: {:.2} s", begun.elapsed().as_secs_f64());
        assert!(begun.elapsed() < Duration::from_secs(8), "{name}: {:?}", begun.elapsed());
    };
    hook("clustermax-prolog");
    assert_eq!(children(&point).len(), 1, "it asks no file server: {:?}", children(&point));

    // The first miss is a suspicion.
    let (stale, took) = pass();
    println!("first periodic pass: fs.stale {stale}, {:.2} s", took.as_secs_f64());
    assert_eq!(stale, "warn");
    assert!(took < Duration::from_secs(20), "{took:?}: deadlines.periodic");
    let hung = children(&point);
    assert_eq!(hung.len(), 2, "one a source: {hung:?}");
    for (pid, state) in &hung {
        let pending = status(&Path::new("/proc").join(pid), "SigPnd:");
        println!("pid {pid}: {state}, pending signals {pending}");
        assert!(state.starts_with('D'), "{state}");
        // Signal 9 is bit 8: sent, and not to be delivered.
        let pending = u64::from_str_radix(&pending, 16).expect("a mask");
        assert_ne!(pending & 1 << 8, 0, "SIGKILL is pending");
    }
    assert_eq!(c.node("n1").state, "IDLE");

    // The second is the finding, at once: nobody waits for what is known to be stuck.
    std::thread::sleep(Duration::from_millis(1050));
    let (stale, took) = pass();
    println!("second periodic pass: fs.stale {stale}, {:.2} s", took.as_secs_f64());
    assert_eq!(stale, "fail");
    let reason = c.wait_drained("n1", 10);
    assert!(reason.starts_with("cmx:stalefs "), "{reason}");

    hook("clustermax-prolog");
    hook("clustermax-epilog");

    // The resident one follows the kernel log meanwhile.
    let mut command = frozen.inside(&c.on_node("n1", "clustermax-healthcheck", &["watch"]));
    let watch = Watch(command.stdin(Stdio::null()).spawn().expect("watch"));
    let verdict = || std::fs::read_to_string(c.node_dir("n1").join("run/verdict.json")).unwrap_or_default();
    c.wait(20, "watch has looked", || verdict().contains("\"mode\":\"watch\""));
    c.sim_ok(&["inject", "xid:95", "--node", "n1", "--gpu", "2"]);
    let took = c.wait(10, "a kernel line while probes hang", || verdict().contains("xid95"));
    println!("kernel line to verdict while probes hang: {:.2} s", took.as_secs_f64());
    c.pass_intervals(4);
    assert_eq!(children(&point), hung, "the very same two after all these passes");

    // Thawed, all is over, and nothing of it stays.
    frozen.thaw();
    c.wait(20, "the file system answers", || !verdict().contains("stalefs"));
    c.wait(20, "they are gone", || children(&point).is_empty());
    let remains = run(Command::new("ps").args(["--ppid", &watch.0.id().to_string(), "-o", "stat="])).out;
    assert!(!remains.contains('Z'), "{remains}");
    drop(watch);
}
