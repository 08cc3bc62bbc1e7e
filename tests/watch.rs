//! The resident health check: from a kernel line to a drain in a moment, once, whatever happens to it; and the prolog that
//! goes by what it knows.

#![allow(clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use harness::{Cluster, run};

/// A cluster whose HealthCheckProgram does not run while the test does.
fn watched(nodes: &str) -> Cluster {
    let c =
        Cluster::up(&["--nodes", nodes, "--enforcement", "enforce", "--health-interval", "3600", "--watch"]);
    for node in nodes_of(nodes) {
        await_first_pass(&c, &node);
    }
    c
}

fn nodes_of(count: &str) -> Vec<String> {
    (1..=count.parse().unwrap_or(1)).map(|n: u32| format!("n{n}")).collect()
}

fn await_first_pass(c: &Cluster, node: &str) {
    c.wait(30, &format!("watch on {node} has looked"), || verdict(c, node)["mode"] == "watch");
}

fn verdict(c: &Cluster, node: &str) -> serde_json::Value {
    json(c, node, "run/verdict.json")
}

fn json(c: &Cluster, node: &str, file: &str) -> serde_json::Value {
    let text = std::fs::read_to_string(c.node_dir(node).join(file)).unwrap_or_default();
    serde_json::from_str(&text).unwrap_or_default()
}

/// Passes of a mode that the node has counted.
fn passes(c: &Cluster, node: &str, mode: &str) -> u64 {
    json(c, node, "state/state.json")["totals"]["passes"][mode]["count"].as_u64().unwrap_or(0)
}

fn restart(c: &Cluster, node: &str) {
    c.sim_ok(&["stop", &format!("watch-{node}")]);
    c.sim_ok(&["start", &format!("watch-{node}")]);
}

fn resume(c: &Cluster, node: &str) {
    c.slurm(&["scontrol", "update", &format!("nodename={node}"), "state=resume"]);
    c.wait(10, "given back", || c.node(node).state == "IDLE");
}

/// Gives every node's `watch` other settings.
fn configure(c: &Cluster, lines: &str) {
    let text = std::fs::read_to_string(c.config()).expect("configuration");
    std::fs::write(c.config(), format!("{text}\n{lines}\n")).expect("configuration");
}

#[test]
fn a_kernel_fault_drains_its_node_at_once_and_once() {
    let c = watched("2");
    c.sim_ok(&["inject", "xid79", "--node", "n2", "--gpu", "3"]);
    let took = c.wait(10, "n2 drained after Xid 79", || c.node("n2").drained());
    println!("fault to DRAIN: {:.3} s", took.as_secs_f64());
    let reason = c.node("n2").reason;
    assert!(reason.starts_with("cmx:xid79 g3 "), "{reason}");
    assert_eq!(c.node("n1").state, "IDLE", "the kernel log is shared");
    c.wait(10, "published with what became of it", || verdict(&c, "n2")["drain_outcome"].is_string());

    // Repaired and given back: no restart drains it again, nor does a program's fault on top of old facts.
    c.sim_ok(&["clear", "--node", "n2"]);
    restart(&c, "n2");
    await_first_pass(&c, "n2");
    c.wait(10, "the repair was seen", || verdict(&c, "n2")["drain"] == false);
    resume(&c, "n2");
    c.sim_ok(&["inject", "xid:31", "--node", "n2", "--gpu", "3"]);
    restart(&c, "n2");
    c.wait(10, "the program's fault was seen", || verdict(&c, "n2").to_string().contains("xid79"));
    c.pass_intervals(2);
    assert_eq!(c.node("n2").state, "IDLE");
}

/// What rests on facts of the last pass is not acted on again when a kernel line comes after the repair.
#[test]
fn a_line_after_a_repair_does_not_drain_for_what_was_repaired() {
    let c = watched("1");
    c.sim_ok(&["inject", "remap-failure", "--node", "n1", "--gpu", "2"]);
    restart(&c, "n1");
    let reason = c.wait_drained("n1", 20);
    assert!(reason.starts_with("cmx:rowremap g2 "), "{reason}");
    c.sim_ok(&["clear", "--node", "n1"]);
    resume(&c, "n1");
    // Code 31 is the program's fault and asks for no look at the devices.
    c.sim_ok(&["inject", "xid:31", "--node", "n1", "--gpu", "0"]);
    c.wait(10, "the line was seen", || verdict(&c, "n1").to_string().contains("xid31"));
    c.pass_intervals(1);
    assert_eq!(c.node("n1").state, "IDLE");
}

/// `CLUSTERMAX_KILLS` sets how often; the moments spread over the half second after the fault.
#[test]
fn killed_at_any_moment_it_loses_no_fault_and_drains_nobody_twice() {
    let kills: u64 = std::env::var("CLUSTERMAX_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(15);
    let c = watched("1");
    for kill in 0..kills {
        let gpu = (kill % 8).to_string();
        let begun = Instant::now();
        c.sim_ok(&["inject", "xid:79", "--node", "n1", "--gpu", &gpu]);
        // Spread by the golden ratio, so that any number of kills covers the span evenly; the first waits least.
        std::thread::sleep(Duration::from_millis(kill * 309 % 500 * u64::from(kill > 0) / 4));
        c.sim_ok(&["stop", "watch-n1"]);
        let drained = c.node("n1").drained();
        c.sim_ok(&["start", "watch-n1"]);
        let reason = c.wait_drained("n1", 20);
        assert!(reason.starts_with(&format!("cmx:xid79 g{gpu} ")), "kill {kill}: {reason}");
        println!("kill {kill}: {:.3} s, drained before it: {drained}", begun.elapsed().as_secs_f64());
        c.wait(10, "settled", || {
            verdict(&c, "n1")["drain_outcome"].is_string() || verdict(&c, "n1")["drain"] == false
        });
        c.pass_intervals(1);
        resume(&c, "n1");
        restart(&c, "n1");
        let looks = passes(&c, "n1", "watch");
        c.wait(20, "looked again", || passes(&c, "n1", "watch") > looks);
        assert_eq!(c.node("n1").state, "IDLE", "kill {kill}: drained twice for one line");
    }
}

#[test]
fn a_prolog_goes_by_a_fresh_verdict_and_looks_itself_without_one() {
    let c = watched("1");
    let prolog = |job: &str| run(&mut c.hook("n1", "clustermax-prolog", job, "0,3"));
    let own = || passes(&c, "n1", "prolog");

    assert_eq!(prolog("900").code, 0);
    assert_eq!(own(), 0, "no pass of its own");
    let job = json(&c, "n1", "run/jobs/900.json");
    assert_eq!(job["gpus"][1]["index"], 3, "{job}");
    assert!(job["gpus"][1]["uuid"].is_string() && job["gpus"][1]["pci"].is_string(), "{job}");
    // A clean pass of another kind takes nothing away.
    let said = run(&mut c.on_node("n1", "clustermax-healthcheck", &["run", "--mode", "periodic"]));
    assert_eq!(said.code, 0, "{}", said.err);
    assert_eq!((prolog("901").code, own()), (0, 0));

    // One that does not answer knows nothing of the line of a moment ago.
    let status: serde_json::Value =
        serde_json::from_str(&c.sim_ok(&["status", "--json"])).unwrap_or_default();
    let pid = status["watches"]["watch-n1"]["pid"].to_string();
    run(Command::new("kill").args(["-STOP", &pid]));
    c.sim_ok(&["inject", "xid:79", "--node", "n1", "--gpu", "3"]);
    assert_eq!(prolog("902").code, 1);
    assert!(c.node("n1").reason.starts_with("cmx:xid79 g3 "), "{:?}", c.node("n1"));
    assert!(!c.node_dir("n1").join("run/jobs/902.json").exists());
    run(Command::new("kill").args(["-CONT", &pid]));
    c.sim_ok(&["clear", "--node", "n1"]);
    resume(&c, "n1");
    restart(&c, "n1");
    c.wait(20, "well again", || verdict(&c, "n1")["drain"] == false && verdict(&c, "n1")["mode"] == "watch");
    let before = own();

    // Stopped: its last green is not green.
    c.sim_ok(&["stop", "watch-n1"]);
    c.sim_ok(&["inject", "remap-failure", "--node", "n1", "--gpu", "3"]);
    assert_eq!(prolog("903").code, 1);
    assert_eq!(own(), before + 1);
    c.sim_ok(&["clear", "--node", "n1"]);
    resume(&c, "n1");

    // Running, with another configuration than the prolog.
    c.sim_ok(&["start", "watch-n1"]);
    c.wait(20, "well again", || verdict(&c, "n1")["drain"] == false && verdict(&c, "n1")["mode"] == "watch");
    configure(&c, "# edited after watch was started");
    assert_eq!(prolog("904").code, 0);
    assert_eq!(own(), before + 2, "watch runs with another configuration");
}

#[test]
fn a_hanging_driver_is_found_and_the_kernel_log_is_followed_meanwhile() {
    let c = watched("1");
    configure(&c, "[watch]\ninterval = 2");
    restart(&c, "n1");
    await_first_pass(&c, "n1");
    c.sim_ok(&["inject", "nvml-hang", "--node", "n1"]);
    let hung = c.wait_drained("n1", 60);
    assert!(hung.starts_with("cmx:drvhang "), "{hung}");
    // In the middle of the next hanging pass: seen at once, not after its deadline.
    c.sim_ok(&["inject", "xid:79", "--node", "n1", "--gpu", "1"]);
    let took = c.wait(10, "the line was seen", || verdict(&c, "n1").to_string().contains("xid79"));
    println!("a line while the driver hangs: {:.3} s", took.as_secs_f64());
    c.sim_ok(&["clear", "--node", "n1"]);
    c.wait(30, "the driver answers again", || verdict(&c, "n1")["drain"] == false);
    resume(&c, "n1");
    c.pass_intervals(5);
    assert_eq!(c.node("n1").state, "IDLE");
}

#[test]
fn a_dead_controller_hears_of_the_fault_when_it_is_back() {
    let c = watched("1");
    c.sim_ok(&["stop", "slurmctld"]);
    c.sim_ok(&["inject", "xid:79", "--node", "n1", "--gpu", "2"]);
    c.wait(20, "spooled", || verdict(&c, "n1")["drain_outcome"] == "spooled");
    c.sim_ok(&["start", "slurmctld"]);
    let reason = c.wait_drained("n1", 60);
    assert!(reason.starts_with("cmx:xid79 g2 "), "{reason}");
}

#[test]
fn one_at_a_time_and_a_clean_stop() {
    let c = Cluster::up(&["--nodes", "1", "--health-interval", "3600"]);
    let watch = || c.on_node("n1", "clustermax-healthcheck", &["watch"]);
    let mut first = watch().stdin(Stdio::null()).spawn().expect("watch");
    await_first_pass(&c, "n1");
    let second = run(&mut watch());
    assert_eq!(second.code, 3, "{}", second.err);
    assert!(second.err.contains("watch.lock is held"), "{}", second.err);
    run(Command::new("kill").args(["-TERM", &first.id().to_string()]));
    assert_eq!(first.wait().expect("ended").code(), Some(0));
    assert!(!c.node_dir("n1").join("run/watch.sock").exists());
    let children = run(Command::new("pgrep").args(["-f", &format!("nvml-resident {}", c.dir().display())]));
    assert_eq!(children.out, "", "NVML children left behind");
}

/// A full or read-only disk under the state: the drain is written once, and not again after the node was given back, by
/// whichever program looks.
#[test]
fn a_state_folder_that_takes_nothing_loses_no_fault_and_drains_nobody_twice() {
    let c = watched("1");
    let state = c.node_dir("n1").join("state");
    configure(&c, "[watch]\ninterval = 1");
    for (disk, options) in [("full", "size=4k"), ("read-only", "size=1m,ro")] {
        c.sim_ok(&["stop", "watch-n1"]);
        let log = c.dir().join("log/watch-n1.out");
        let before = std::fs::read_to_string(&log).unwrap_or_default().len();
        let said = run(Command::new("mount").args(["-t", "tmpfs", "-o", options, disk]).arg(&state));
        assert_eq!(said.code, 0, "mount: {}", said.err);
        let unmount = Unmount(&state);
        if disk == "full" {
            std::fs::write(state.join("filler"), vec![0; 4096]).expect("a full disk");
        }
        c.sim_ok(&["start", "watch-n1"]);
        c.wait(20, "looked", || verdict(&c, "n1").to_string().contains("cannot be written"));
        c.sim_ok(&["inject", "xid:79", "--node", "n1", "--gpu", "2"]);
        let reason = c.wait_drained("n1", 20);
        assert!(reason.starts_with("cmx:xid79 g2 "), "{disk}: {reason}");
        c.pass_intervals(2);
        resume(&c, "n1");
        c.pass_intervals(2);
        assert_eq!(c.node("n1").state, "IDLE", "{disk}: by the same watch");
        // Programs that remember nothing by themselves.
        restart(&c, "n1");
        c.pass_intervals(2);
        c.sim_ok(&["stop", "watch-n1"]);
        for hook in ["clustermax-prolog", "clustermax-epilog"] {
            let said = run(&mut c.hook("n1", hook, "999", "2"));
            assert_eq!(said.code, 0, "{disk}: {hook}: {}", said.err);
        }
        run(&mut c.on_node("n1", "clustermax-healthcheck", &["run", "--mode", "periodic"]));
        assert_eq!(c.node("n1").state, "IDLE", "{disk}: by another program: {:?}", c.node("n1"));
        let said = std::fs::read_to_string(&log).unwrap_or_default()[before..].to_string();
        assert!(said.contains("state/state.json cannot be written"), "{disk}: {said}");
        assert!(said.contains("the state is kept in"), "{disk}: {said}");
        drop(unmount);
        // Mended: what was acted on meanwhile is known, and what comes is found.
        c.sim_ok(&["start", "watch-n1"]);
        c.wait(20, "well again", || !verdict(&c, "n1").to_string().contains("cannot be written"));
        c.pass_intervals(2);
        assert_eq!(c.node("n1").state, "IDLE", "{disk}: once it is mended");
        assert!(!c.node_dir("n1").join("run/state.json").exists(), "{disk}");
    }
}

/// Preloaded, it moves the wall clock by the seconds that a file holds, and no other clock.
const CLOCK: &str = r#"
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t id, struct timespec *t) {
    int result = syscall(SYS_clock_gettime, id, t);
    long seconds = 0;
    FILE *file = id == CLOCK_REALTIME ? fopen(getenv("CLOCK_FILE"), "r") : NULL;
    if (file) {
        if (fscanf(file, "%ld", &seconds) == 1) t->tv_sec += seconds;
        fclose(file);
    }
    return result;
}
"#;

#[test]
fn a_clock_that_is_set_loses_no_fault() {
    let c = Cluster::up(&["--nodes", "1", "--enforcement", "enforce", "--health-interval", "3600"]);
    configure(&c, "[watch]\ninterval = 1");
    let (source, library) = (c.scratch().join("clock.c"), c.scratch().join("clock.so"));
    std::fs::write(&source, CLOCK).expect("source");
    let said = run(Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&library, &source]));
    assert_eq!(said.code, 0, "cc: {}", said.err);
    let offset = c.scratch().join("offset");
    let set = |seconds: i64| std::fs::write(&offset, seconds.to_string()).expect("offset");
    set(0);
    let log = c.scratch().join("log");
    let clock =
        [("LD_PRELOAD", library.to_str().expect("path")), ("CLOCK_FILE", offset.to_str().expect("path"))];
    let mut watch = c
        .on_node_with("n1", "clustermax-healthcheck", &["watch"], &clock)
        .stdin(Stdio::null())
        .stderr(std::fs::File::create(&log).expect("log"))
        .spawn()
        .expect("watch");
    let pid = watch.id().to_string();
    let signal = |name: &str| assert_eq!(run(Command::new("kill").args([name, &pid])).code, 0);
    await_first_pass(&c, "n1");

    // Between a baseline and what rose above it.
    signal("-STOP");
    set(-3600);
    c.sim_ok(&["inject", "ib-flap:2", "--node", "n1"]);
    signal("-CONT");
    let reason = c.wait_drained("n1", 20);
    assert!(reason.starts_with("cmx:ibflap ib2/1 "), "{reason}");
    c.wait(10, "the verdict's time is the wall clock's", || {
        let verdict = verdict(&c, "n1");
        let now = run(Command::new("date").args(["-u", "-d", "-1 hour", "+%Y-%m-%dT%H:%M"])).out;
        verdict["time"].as_str().is_some_and(|t| t.starts_with(now.trim()))
    });
    // The other way, with a line in between.
    c.sim_ok(&["inject", "xid:79", "--node", "n1", "--gpu", "4"]);
    c.wait(10, "the line was seen", || verdict(&c, "n1").to_string().contains("xid79"));
    set(0);
    let looks = passes(&c, "n1", "watch");
    c.wait(10, "looked again", || passes(&c, "n1", "watch") > looks + 1);
    let seen = verdict(&c, "n1").to_string();
    assert!(seen.contains("ibflap") && seen.contains("xid79"), "{seen}");
    signal("-TERM");
    watch.wait().expect("ended");
    let said = std::fs::read_to_string(&log).expect("log");
    for set in ["-3600", "+3600"] {
        assert!(said.contains(&format!("the clock was set by {set} s")), "{said}");
    }
}

struct Unmount<'a>(&'a std::path::Path);

impl Drop for Unmount<'_> {
    fn drop(&mut self) {
        let said = run(Command::new("umount").arg("-l").arg(self.0));
        if said.code != 0 && !std::thread::panicking() {
            panic!("umount {}: {}", self.0.display(), said.err);
        }
    }
}
