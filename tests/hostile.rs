//! Attacks on the node side that once succeeded: each test is named after what went wrong.

#![allow(clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::FileTypeExt as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use harness::{Cluster, Said, run};

fn periodic(c: &Cluster, node: &str) -> Said {
    run(&mut c.on_node(node, "clustermax-healthcheck", &["run", "--mode", "periodic"]))
}

fn resume(c: &Cluster, node: &str) {
    c.wait(60, &format!("{node} is given back"), || {
        // A node that has not yet registered with a new controller cannot be resumed.
        run(&mut c.command(&["scontrol", "update", &format!("nodename={node}"), "state=resume"]));
        c.node(node).state == "IDLE"
    });
}

/// PCI address of one of the node's GPUs, `dddd:bb:dd`.
fn pci(c: &Cluster, node: &str) -> String {
    let text = std::fs::read_to_string(c.node_dir(node).join("state/state.json")).expect("state.json");
    let state: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let known = state["inventory"].as_object().expect("inventory").keys().next().expect("a GPU");
    known.split('.').next().unwrap_or_default().to_string()
}

/// The brake is of no interest here.
fn loosen_brake(c: &Cluster) {
    let mut config = File::options().append(true).open(c.config()).expect("configuration");
    config.write_all(b"\n[brake]\nmax_share = 1.0\n").expect("written");
}

#[test]
fn a_node_given_back_was_drained_again_while_the_state_was_held_or_damaged() {
    let c = Cluster::up(&["--nodes", "1", "--enforcement", "enforce", "--health-interval", "600"]);
    loosen_brake(&c);
    periodic(&c, "n1");
    // Long ago, by the clock of the kernel log.
    let line = format!(
        "3,1,1,-;NVRM: Xid (PCI:{}): 95, pid='<unknown>', name=<unknown>, Uncontained\n",
        pci(&c, "n1")
    );
    std::fs::write(c.node_dir("n1").join("kmsg"), line).expect("kmsg");
    assert_eq!(periodic(&c, "n1").code, 1);
    assert!(c.node("n1").reason.starts_with("cmx:xid95 "), "{:?}", c.node("n1"));
    resume(&c, "n1");

    let state = c.node_dir("n1").join("state");
    let lock = c.node_dir("n1").join("run/state.lock");
    // Holds it until its standard input ends.
    let mut holder =
        Command::new("flock").arg(&lock).arg("cat").stdin(Stdio::piped()).spawn().expect("flock");
    let free = || run(Command::new("flock").arg("-n").arg(&lock).arg("true")).code == 0;
    c.wait(20, "the state is held", || !free());
    for hook in ["clustermax-prolog", "clustermax-epilog"] {
        let said = run(&mut c.hook("n1", hook, "999", "0,1,2,3,4,5,6,7"));
        assert_eq!(said.code, 0, "{hook}: {}", said.err);
    }
    drop(holder.stdin.take());
    holder.wait().expect("released");
    assert_eq!(c.node("n1").state, "IDLE", "drained again while another pass held the state");

    // The machine is up for longer than what a node without memory acts on, or the line would count.
    let uptime = std::fs::read_to_string("/proc/uptime").expect("uptime");
    let up: f64 = uptime.split(' ').next().and_then(|t| t.parse().ok()).expect("seconds");
    if up > 700.0 {
        std::fs::write(state.join("state.json"), "{\"boot_id\":\"").expect("damaged");
        assert_eq!(periodic(&c, "n1").code, 0);
        assert_eq!(c.node("n1").state, "IDLE", "drained again after the state was damaged");
        assert!(state.join("state.json.bad").exists());
    }
}

#[test]
fn a_drain_spooled_for_an_event_was_never_delivered_where_paths_hold_the_nodes_name() {
    let c = Cluster::up(&["--nodes", "1", "--enforcement", "enforce", "--health-interval", "600"]);
    periodic(&c, "n1");
    c.sim_ok(&["stop", "slurmctld"]);
    // An event, not a state: no later pass would find it again.
    c.sim_ok(&["inject", "xid:95", "--node", "n1", "--gpu", "5"]);
    let said = run(&mut c.hook("n1", "clustermax-prolog", "999", "5"));
    assert_eq!(said.code, 1, "{}", said.err);
    let spool = || {
        let entries = std::fs::read_dir(c.node_dir("n1").join("state/spool")).expect("spool");
        entries.flatten().filter(|e| !e.file_name().to_string_lossy().starts_with('.')).count()
    };
    assert_eq!(spool(), 1);
    c.sim_ok(&["start", "slurmctld"]);
    c.wait(60, "the spooled drain arrives", || {
        periodic(&c, "n1");
        c.node("n1").reason.starts_with("cmx:xid95 g5 ")
    });
    assert_eq!(spool(), 0);
    resume(&c, "n1");
    periodic(&c, "n1");
    assert_eq!(c.node("n1").state, "IDLE", "delivered once");
}

#[test]
fn hooks_ended_with_101_or_never_over_troubles_of_their_own() {
    let c = Cluster::up(&["--nodes", "1", "--enforcement", "enforce", "--health-interval", "600"]);
    periodic(&c, "n1");
    for hook in ["clustermax-prolog", "clustermax-epilog"] {
        // Standard error that cannot be written, with something to say.
        for args in [["--config", "/nonexistent"], ["--config", "/dev/null"], ["--bogus", "x"]] {
            let full = || File::options().write(true).open("/dev/full").map(Stdio::from).expect("/dev/full");
            let mut command = Command::new(harness::program(hook));
            command.env_clear().env("SLURM_JOB_ID", "x").args(args).stdout(full()).stderr(full());
            let status = command.status().expect("started");
            assert_eq!(status.code(), Some(0), "{hook} {args:?}");
        }
        // Job ids that clustermax-drain would refuse with the whole drain.
        for id in ["99999999999", "1_2", "+5", "../../x", "5\n6", ""] {
            let said = run(&mut c.hook("n1", hook, id, "0"));
            assert_eq!(said.code, 0, "{hook} {id:?}: {}", said.err);
            assert_eq!(said.err.trim().lines().count(), 1, "one sentence: {}", said.err);
        }
    }
    let is_job = |e: &std::fs::DirEntry| e.file_name().to_string_lossy().ends_with(".json");
    let jobs = || {
        std::fs::read_dir(c.node_dir("n1").join("run/jobs")).map_or(0, |d| d.flatten().filter(is_job).count())
    };
    assert_eq!(jobs(), 0, "no job's file");
    // What a user can put into a job: as long as a large job's list of nodes, and no text at all.
    let long = "gpu-[0001-1999],".repeat(625);
    let options = "SPANK__SLURM_SPANK_OPTION_clustermax_clustermax_tags";
    for (name, value) in [
        ("SLURM_JOB_NODELIST", long.as_str()),
        ("SLURM_JOB_GPUS", &long),
        ("CUDA_VISIBLE_DEVICES", &long),
        ("SLURM_JOB_UID", "-1"),
        ("SLURM_JOB_COMMENT", "$(reboot)\n%n%s"),
        ("SPANK_LD_PRELOAD", "/tmp/evil.so"),
        (options, &long),
        (options, "a=$(reboot)"),
    ] {
        for hook in ["clustermax-prolog", "clustermax-epilog"] {
            let environment = [("SLURM_JOB_ID", "998"), (name, value)];
            let said = run(&mut c.on_node_with("n1", hook, &[], &environment));
            assert_eq!(
                (said.code, jobs()),
                (0, usize::from(hook.ends_with("prolog"))),
                "{hook} {name}: {}",
                said.err
            );
        }
    }
    let file = File::open(c.node_dir("n1").join("state/jobs/998.json")).expect("the record is kept");
    let record: serde_json::Value = serde_json::from_reader(file).expect("JSON");
    assert!(record["tags"].as_object().is_none_or(serde_json::Map::is_empty), "{record}");

    // What is read in the hook itself hangs: a FIFO without a writer, as a dying disk would.
    let state = c.node_dir("n1").join("state/state.json");
    std::fs::remove_file(&state).expect("removed");
    assert_eq!(run(Command::new("mkfifo").arg(&state)).code, 0);
    assert!(std::fs::metadata(&state).expect("fifo").file_type().is_fifo());
    let begun = Instant::now();
    let said = run(&mut c.hook("n1", "clustermax-prolog", "999", "0"));
    let took = begun.elapsed();
    println!("prolog with a hanging state folder: {:.2} s", took.as_secs_f64());
    assert_eq!(said.code, 0, "{}", said.err);
    assert!(said.err.contains("paths.state_dir"), "{}", said.err);
    assert!(took < Duration::from_secs(12), "{took:?}");
    assert_eq!(c.node("n1").state, "IDLE");
}
