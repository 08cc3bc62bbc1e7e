//! The shipped unit under a real systemd: `Type=notify`, its watchdog, its hardening, stop and restart.
//!
//! systemd runs as process 1 of namespaces of its own, on a copy-on-write view of this machine, and knows nothing but the unit.

#![allow(clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use harness::{Cluster, Said, project, run};

/// Makes the view in the folder $1, with $2 (which changes meanwhile) as it is outside, and becomes systemd. What a
/// systemd could change for the whole machine is read-only or its own.
const HOLDER: &str = r#"
set -eu
mount --make-rprivate /
mount -t tmpfs tmpfs "$1"
mkdir "$1/upper" "$1/work" "$1/root"
root=$1/root
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$root"
mount -t proc proc "$root/proc"
mount --bind "$root/proc/sys" "$root/proc/sys"
mount -o remount,bind,ro "$root/proc/sys"
mount -t sysfs sysfs "$root/sys"
mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
for node in null zero full random urandom tty kmsg; do
    : > "$root/dev/$node"
    mount --bind "/dev/$node" "$root/dev/$node"
done
mount -t tmpfs -o mode=755 tmpfs "$root/run"
mkdir -p "$root$2"
mount --bind "$2" "$root$2"
mount -t tmpfs -o mode=755 tmpfs "$root/lib/systemd/system"
for target in sysinit basic multi-user shutdown umount final; do
    printf '[Unit]\nDescription=%s\nDefaultDependencies=no\n' "$target" > "$root/lib/systemd/system/$target.target"
done
rm -rf "$root/etc/systemd/system" "$root/usr/libexec/clustermax" "$root/etc/clustermax"
mkdir -p "$root/etc/systemd/system/clustermax-watch.service.d" "$root/usr/libexec/clustermax" "$root/etc/clustermax"
cp "$3"/* "$root/etc/systemd/system/"
cp "$2/unit.conf" "$root/etc/systemd/system/clustermax-watch.service.d/"
cp "$4/clustermax-healthcheck" "$4/clustermax-drain" "$root/usr/libexec/clustermax/"
cp "$2/c/etc/clustermax.toml" "$root/etc/clustermax/"
# The short host name is Slurm's name of the node.
echo n1 > "$root/etc/hostname"
hostname n1
exec chroot "$root" /usr/bin/env -i container=test PATH=/usr/sbin:/usr/bin:/sbin:/bin \
    /lib/systemd/systemd --system --unit=basic.target --log-target=console --show-status=no
"#;

/// Where a cgroup v2 hierarchy is mounted, of its own or beside those of v1.
const CGROUPS: [&str; 2] = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"];

/// systemd, until this is dropped: its processes end with process 1 of their namespace.
struct Systemd {
    outer: Child,
    init: u32,
    group: PathBuf,
}

impl Systemd {
    /// None, with the reason printed, where this machine cannot run one.
    fn new(c: &Cluster) -> Option<Systemd> {
        let skip = |why: &str| {
            harness::skipped(&format!("no systemd can run in a namespace here: {why}"));
            None
        };
        if !Path::new("/lib/systemd/systemd").exists() {
            return skip("it is not installed");
        }
        let folder = CGROUPS.iter().map(Path::new).find(|at| at.join("cgroup.controllers").exists());
        let Some(folder) = folder else { return skip("there is no cgroup v2 hierarchy") };
        let group = folder.join(format!("clustermax-test.{}", std::process::id()));
        if let Err(e) = std::fs::create_dir(&group) {
            return skip(&format!("{}: {e}", group.display()));
        }
        let view = c.scratch().join("view");
        std::fs::create_dir(&view).expect("view");
        let log = c.scratch().join("systemd.log");
        // In its group first, so that this is the root of its namespace.
        let enter = format!(
            "echo $$ > {}/cgroup.procs && exec unshare --mount --pid --uts --ipc --cgroup --fork --kill-child \
             sh -c \"$1\" sh \"$2\" \"$3\" \"$4\" \"$5\"",
            group.display()
        );
        let outer = Command::new("sh")
            .args(["-c", &enter, "sh", HOLDER])
            .args([&view, &c.dir().parent().expect("a parent").to_path_buf()])
            .args([&project().join("packaging/systemd"), &harness::programs()])
            .stdin(Stdio::null())
            .stdout(std::fs::File::create(&log).expect("log"))
            .stderr(std::fs::File::options().append(true).open(&log).expect("log"))
            .spawn()
            .expect("sh");
        let mut systemd = Systemd { outer, init: 0, group };
        let until = Instant::now() + Duration::from_secs(20);
        while Instant::now() < until {
            let children = format!("/proc/{0}/task/{0}/children", systemd.outer.id());
            let children = std::fs::read_to_string(children).unwrap_or_default();
            systemd.init = children.trim().parse().unwrap_or(0);
            if systemd.init != 0 && systemd.ctl(&["is-active", "basic.target"]).out.trim() == "active" {
                return Some(systemd);
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        skip(&std::fs::read_to_string(&log).unwrap_or_default())
    }

    fn inside(&self, args: &[&str]) -> Said {
        let mut command = Command::new("nsenter");
        command.arg("--target").arg(self.init.to_string());
        command.args(["--mount", "--pid", "--uts", "--ipc", "--cgroup", "--root", "--wdns=/", "--"]);
        run(command.args(args))
    }

    fn ctl(&self, args: &[&str]) -> Said {
        self.inside(&[&["timeout", "40", "systemctl"], args].concat())
    }

    fn watch(&self, verb: &str) {
        let said = self.ctl(&[verb, "clustermax-watch"]);
        assert_eq!(said.code, 0, "{verb}: {} {}", said.err, self.ctl(&["status", "clustermax-watch"]).out);
    }

    fn show(&self, property: &str) -> String {
        self.ctl(&["show", "--value", "--property", property, "clustermax-watch"]).out.trim().to_string()
    }
}

impl Drop for Systemd {
    fn drop(&mut self) {
        if self.init != 0 {
            run(Command::new("kill").args(["-KILL", &self.init.to_string()]));
        }
        let _ = self.outer.kill();
        let _ = self.outer.wait();
        // Only empty groups can be removed: the innermost first, as soon as the last process is gone.
        let until = Instant::now() + Duration::from_secs(10);
        while self.group.exists() && Instant::now() < until {
            run(Command::new("find").arg(&self.group).args("-depth -type d -exec rmdir {} ;".split(' ')));
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

fn verdict(c: &Cluster) -> serde_json::Value {
    let text = std::fs::read_to_string(c.node_dir("n1").join("run/verdict.json")).unwrap_or_default();
    serde_json::from_str(&text).unwrap_or_default()
}

fn passes(c: &Cluster) -> u64 {
    let text = std::fs::read_to_string(c.node_dir("n1").join("state/state.json")).unwrap_or_default();
    let state: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
    state["totals"]["passes"]["watch"]["count"].as_u64().unwrap_or(0)
}

fn resume(c: &Cluster) {
    c.slurm(&["scontrol", "update", "nodename=n1", "state=resume"]);
    c.wait(10, "given back", || c.node("n1").state == "IDLE");
}

/// `CLUSTERMAX_WATCHDOG=shipped` waits for the unit's own watchdog (a minute) instead of one of 3 s.
#[test]
fn the_shipped_unit_is_notified_watched_hardened_stopped_and_restarted() {
    if harness::slurm_root().is_some() {
        harness::skipped("the unit is the same on every release of Slurm");
        return;
    }
    let c = Cluster::up(&["--nodes", "1", "--enforcement", "enforce", "--health-interval", "3600"]);
    let shipped = std::env::var("CLUSTERMAX_WATCHDOG").is_ok_and(|w| w == "shipped");
    let watchdog = if shipped { "" } else { "WatchdogSec=3\n" };
    let top = c.dir().parent().expect("a parent").to_path_buf();
    let log = top.join("watch.log");
    let unit = format!("[Service]\n{watchdog}StandardError=append:{}\n", log.display());
    std::fs::write(top.join("unit.conf"), unit).expect("unit.conf");
    let Some(systemd) = Systemd::new(&c) else { return };

    // The start ends when the first pass has ended.
    let begun = Instant::now();
    systemd.watch("start");
    println!("started, ready after {:.2} s", begun.elapsed().as_secs_f64());
    assert_eq!(verdict(&c)["mode"], "watch");
    assert_eq!(verdict(&c)["status"], "pass", "hardening hides nothing of a healthy node: {}", verdict(&c));
    for (property, wanted) in [("Type", "notify"), ("ActiveState", "active"), ("NoNewPrivileges", "yes")] {
        assert_eq!(systemd.show(property), wanted, "{property}");
    }
    let main = systemd.show("MainPID");
    let status = systemd.inside(&["cat", &format!("/proc/{main}/status")]).out;
    let of =
        |key: &str| status.lines().find_map(|l| l.strip_prefix(key)).unwrap_or_default().trim().to_string();
    println!("CapBnd {}, NoNewPrivs {}, Seccomp {}", of("CapBnd:"), of("NoNewPrivs:"), of("Seccomp:"));
    assert_eq!((of("NoNewPrivs:").as_str(), of("Seccomp:").as_str()), ("1", "2"));

    // From the real kernel log, through the devices of sysfs and NVML, to Slurm.
    c.sim_ok(&["inject", "xid79", "--node", "n1", "--gpu", "3"]);
    let took = c.wait(10, "drained from within the unit", || c.node("n1").drained());
    println!("fault to DRAIN: {:.3} s", took.as_secs_f64());
    assert!(c.node("n1").reason.starts_with("cmx:xid79 g3 "), "{:?}", c.node("n1"));
    c.sim_ok(&["clear", "--node", "n1"]);
    systemd.watch("restart");
    c.wait(10, "well again", || verdict(&c)["drain"] == false);
    resume(&c);
    let before = passes(&c);
    systemd.watch("restart");
    assert!(passes(&c) > before);
    assert_eq!(c.node("n1").state, "IDLE", "a restart drains nobody again");

    // One that says nothing any more is ended and started anew; what came meanwhile is found.
    let (main, restarts) = (systemd.show("MainPID"), systemd.show("NRestarts"));
    assert_eq!(restarts, "0");
    let begun = Instant::now();
    let said = systemd.inside(&["kill", "-STOP", &main]);
    assert_eq!(said.code, 0, "{}", said.err);
    c.sim_ok(&["inject", "xid79", "--node", "n1", "--gpu", "5"]);
    c.wait(120, "the watchdog restarts it", || {
        systemd.show("NRestarts") == "1" && systemd.show("ActiveState") == "active"
    });
    println!("stopped to ready again: {:.1} s", begun.elapsed().as_secs_f64());
    assert_ne!(systemd.show("MainPID"), main);
    let reason = c.wait_drained("n1", 10);
    // By its state, should others have filled the log's ring meanwhile.
    assert!(reason.starts_with("cmx:xid79 g5 ") || reason.starts_with("cmx:gpulost g5 "), "{reason}");

    let begun = Instant::now();
    systemd.watch("stop");
    println!("stopped after {:.2} s", begun.elapsed().as_secs_f64());
    assert_eq!(
        (systemd.show("ActiveState").as_str(), systemd.show("Result").as_str()),
        ("inactive", "success")
    );
    let left = systemd.inside(&["ps", "-eo", "args="]).out;
    assert!(!left.contains("clustermax-healthcheck"), "{left}");
    let said = std::fs::read_to_string(&log).expect("log");
    assert!(said.trim_end().ends_with("stopped"), "{said}");
}
