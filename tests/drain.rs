//! From a fault to a drained node, and everything that must not become one.

#![allow(clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::time::{Duration, Instant};

use harness::{Cluster, run};

/// HealthCheckInterval of these clusters, in seconds.
const INTERVAL: u64 = 5;

#[test]
fn xid79_drains_its_node_alone_and_an_operator_gives_it_back() {
    let c = Cluster::up(&["--nodes", "4", "--enforcement", "enforce"]);
    let mut job =
        c.user_command(&["srun", "-w", "n2", "--gres=gpu:8", "sleep", "60"]).spawn().expect("a job on n2");
    c.wait(20, "job runs on n2", || c.slurm(&["squeue", "-h", "-t", "R", "-w", "n2"]).contains("sleep"));

    c.sim_ok(&["inject", "xid79", "--node", "n2", "--gpu", "3"]);
    // The design's bound is one interval + 2 s; a loaded machine gets more, and the time is printed.
    let took = c.wait(4 * INTERVAL, "n2 drained after Xid 79", || c.node("n2").drained());
    println!("bound: {} s, took {:.2} s", INTERVAL + 2, took.as_secs_f64());
    let reason = c.node("n2").reason;
    assert!(reason.starts_with("cmx:xid79 g3 "), "{reason}");
    assert!(reason.contains("; act=reboot id="), "{reason}");
    // The others share the kernel log.
    c.pass_intervals(INTERVAL + 2);
    for other in ["n1", "n3", "n4"] {
        assert_eq!(c.node(other).state, "IDLE", "{other}");
    }
    assert!(c.slurm(&["sinfo", "-R", "-h"]).starts_with("cmx:xid79 g3 "));
    let _ = job.kill();
    let _ = job.wait();
    c.slurm(&["scancel", "-w", "n2"]);

    // Repaired and given back: the old line drains nobody again.
    c.sim_ok(&["clear", "--node", "n2"]);
    c.wait(30, "n2 has no job", || c.slurm(&["squeue", "-h", "-w", "n2"]).is_empty());
    c.slurm(&["scontrol", "update", "nodename=n2", "state=resume"]);
    c.pass_intervals(2 * INTERVAL + 1);
    assert_eq!(c.node("n2").state, "IDLE");
    let said = run(&mut c.user_command(&["srun", "-w", "n2", "--gres=gpu:1", "true"]));
    assert_eq!(said.code, 0, "{}", said.err);
}

#[test]
fn observe_drains_nobody_whatever_is_wrong() {
    let c = Cluster::up(&["--nodes", "1", "--enforcement", "observe", "--health-interval", "2"]);
    let faults = [
        "xid79",
        "xid:95",
        "xid:13",
        "gpu-lost",
        "gpu-missing",
        "recovery-action",
        "ecc-sram",
        "remap-pending",
        "remap-failure",
        "pcie-width",
        "ib-down",
        "hot",
    ];
    for fault in faults {
        c.sim_ok(&["inject", fault, "--node", "n1", "--gpu", "1"]);
        // Twice, since some need two reads; then by Slurm itself through a job's prolog and epilog.
        for _ in 0..2 {
            let said = run(&mut c.on_node("n1", "clustermax-healthcheck", &["run", "--mode", "periodic"]));
            assert!(said.code < 2, "{fault}: {}", said.err);
        }
        for hook in ["clustermax-prolog", "clustermax-epilog"] {
            let said = run(&mut c.hook("n1", hook, "999", "0,1,2,3,4,5,6,7"));
            assert_eq!(said.code, 0, "{fault}, {hook}: {}", said.err);
        }
        assert_eq!(c.node("n1").state, "IDLE", "{fault}");
        c.sim_ok(&["clear", "--node", "n1"]);
    }
    c.sim_ok(&["inject", "remap-failure", "--node", "n1", "--gpu", "0"]);
    let said = run(&mut c.user_command(&["srun", "--gres=gpu:8", "true"]));
    assert_eq!(said.code, 0, "{}", said.err);
    c.pass_intervals(5);
    assert_eq!(c.node("n1").state, "IDLE");
}

/// The exit codes of the design under real Slurm: what a prolog or epilog returns for each outcome of a drain.
#[test]
fn exit_codes_follow_what_became_of_the_drain() {
    let c = Cluster::up(&["--nodes", "4", "--enforcement", "enforce", "--health-interval", "600"]);
    let code = |node: &str, hook: &str, gpus: &str| run(&mut c.hook(node, hook, "999", gpus)).code;
    let (prolog, epilog) = ("clustermax-prolog", "clustermax-epilog");

    assert_eq!(code("n1", prolog, "0,1"), 0, "healthy");
    // A program's fault and a warning drain nobody.
    c.sim_ok(&["inject", "xid:31", "--node", "n1", "--gpu", "0"]);
    assert_eq!(code("n1", prolog, "0,1"), 0, "program fault");
    c.sim_ok(&["inject", "ib-down", "--node", "n1", "--gpu", "0"]);
    assert_eq!(code("n1", prolog, "0,1"), 0, "first read of a port that is down: a warning");
    assert!(!c.node("n1").drained());
    c.sim_ok(&["clear", "--node", "n1"]);

    // Written, then already there; a job that does not hold the GPU is none of its business.
    c.sim_ok(&["inject", "remap-failure", "--node", "n1", "--gpu", "5"]);
    assert_eq!(code("n1", prolog, "0,1"), 0, "drained, but not for this job's sake");
    assert!(c.node("n1").reason.starts_with("cmx:rowremap g5 "), "{:?}", c.node("n1"));
    assert_eq!(code("n1", prolog, "4,5"), 1, "already drained, and the job holds the GPU");
    assert_eq!(code("n1", epilog, "4,5"), 1, "the epilog likewise");

    // An operator's drain: kept, and the job cannot run here.
    c.slurm(&["scontrol", "update", "nodename=n2", "state=drain", "reason=ticket 1234"]);
    c.sim_ok(&["inject", "remap-failure", "--node", "n2", "--gpu", "5"]);
    assert_eq!(code("n2", prolog, "5"), 1, "foreign");
    assert_eq!(c.node("n2").reason, "ticket 1234");

    // The brake: one node of four at most.
    c.sim_ok(&["inject", "remap-failure", "--node", "n3", "--gpu", "5"]);
    assert_eq!(code("n3", prolog, "5"), 0, "brake");
    assert!(!c.node("n3").drained(), "{:?}", c.node("n3"));
    let status = run(&mut c.on_node("n3", "clustermax-drain", &["status"]));
    assert!(status.out.contains("brake"), "{}", status.out);

    // A reboot in progress is not ours to touch.
    c.sim_ok(&["inject", "remap-failure", "--node", "n4", "--gpu", "5"]);
    c.slurm(&[
        "scontrol",
        "create",
        "reservation",
        "ReservationName=m",
        "starttime=now",
        "duration=60",
        "user=root",
        "flags=maint,ignore_jobs",
        "nodes=n4",
    ]);
    c.wait(20, "n4 in maintenance", || c.node("n4").state.contains("MAINT"));
    assert_eq!(code("n4", prolog, "5"), 0, "protected");
    assert!(!c.node("n4").drained());
}

#[test]
fn an_operators_drain_keeps_its_text() {
    let c = Cluster::up(&["--nodes", "1", "--enforcement", "enforce", "--health-interval", "2"]);
    c.slurm(&["scontrol", "update", "nodename=n1", "state=drain", "reason=replace fan, ticket 77"]);
    for fault in ["xid79", "remap-failure", "ecc-sram"] {
        c.sim_ok(&["inject", fault, "--node", "n1", "--gpu", "2"]);
        for mode in ["prolog", "epilog", "periodic"] {
            run(&mut c.on_node("n1", "clustermax-healthcheck", &["run", "--mode", mode]));
            assert_eq!(c.node("n1").reason, "replace fan, ticket 77", "{fault}, {mode}");
        }
    }
    c.pass_intervals(3);
    assert_eq!(c.node("n1").reason, "replace fan, ticket 77");
    c.sim_ok(&["clear"]);
    c.slurm(&["scontrol", "update", "nodename=n1", "state=resume"]);
    c.pass_intervals(5);
    assert_eq!(c.node("n1").state, "IDLE", "a healthy node stays with the operator's word");
}

#[test]
fn a_hanging_driver_holds_up_nobody_and_is_a_fault_the_second_time() {
    let c = Cluster::up(&["--nodes", "1", "--enforcement", "enforce", "--health-interval", "600"]);
    c.sim_ok(&["inject", "nvml-hang", "--node", "n1"]);
    for (pass, code) in [(1, 0), (2, 1)] {
        let begun = Instant::now();
        let said = run(&mut c.hook("n1", "clustermax-prolog", "999", "0"));
        let took = begun.elapsed();
        println!("prolog {pass} with a hanging driver: {:.2} s", took.as_secs_f64());
        assert_eq!(said.code, code, "pass {pass}: {}", said.err);
        assert!(took < Duration::from_secs(8), "{took:?}");
    }
    let reason = c.node("n1").reason;
    assert!(reason.starts_with("cmx:drvhang "), "{reason}");
    // Nothing of the first two passes is left hanging.
    let children = run(
        std::process::Command::new("pgrep").args(["-f", &format!("__source nvml {}", c.dir().display())])
    );
    assert_eq!(children.out, "", "NVML children left behind");
}

#[test]
fn a_dead_controller_delays_the_drain_and_nothing_else() {
    let c = Cluster::up(&["--nodes", "1", "--enforcement", "enforce", "--health-interval", "5"]);
    c.sim_ok(&["stop", "slurmctld"]);
    c.sim_ok(&["inject", "remap-failure", "--node", "n1", "--gpu", "2"]);
    let begun = Instant::now();
    let said = run(&mut c.hook("n1", "clustermax-prolog", "999", "2"));
    let took = begun.elapsed();
    println!("prolog without a controller: {:.2} s", took.as_secs_f64());
    assert_eq!(said.code, 1, "spooled: the job must not run here: {}", said.err);
    assert!(took < Duration::from_secs(8), "{took:?}");
    c.sim_ok(&["start", "slurmctld"]);
    let reason = c.wait_drained("n1", 60);
    assert!(reason.starts_with("cmx:rowremap g2 "), "{reason}");
}
