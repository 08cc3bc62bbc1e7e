//! The checks of fabric, host and disks on a simulated node: every fault is found, named, and drains or does not.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::time::Duration;

use harness::{Cluster, run};
use serde_json::Value;

/// Findings of a periodic pass: check, token, device, status, action.
fn pass(cluster: &Cluster, node: &str) -> Vec<String> {
    let said =
        run(&mut cluster.on_node(node, "clustermax-healthcheck", &["run", "--json", "--mode", "periodic"]));
    let verdict: Value =
        serde_json::from_str(&said.out).unwrap_or_else(|e| panic!("{e}: {} {}", said.out, said.err));
    let one = |f: &Value| {
        let word = |key: &str| f[key].as_str().unwrap_or("-").to_string();
        let device = f["device"]["name"].as_str().unwrap_or("-").to_string();
        format!("{} {} {device} {} {}", word("check"), word("token"), word("status"), word("action"))
    };
    // The machine's kernel log is everybody's: another cluster's faults are foreign to this node.
    let own = |f: &&Value| f["token"] != "foreign";
    verdict["findings"].as_array().unwrap().iter().filter(own).map(one).collect()
}

/// Fault, passes needed, and what the last pass must say of it.
const FAULTS: &[(&str, u32, &str)] = &[
    ("ib-flap:2", 1, "ib.flap ibflap ib2/1 fail repair"),
    ("ib-saturated:1", 1, "ib.saturated ibblind ib1/1 warn none"),
    ("ib-no-sm:1", 1, "ib.sm_pkey ibsm ib1/1 warn none"),
    ("roce-errors:1", 1, "roce.counters roce ib1/1 warn none"),
    ("nic-firmware:1", 1, "nic.firmware nicfw - warn none"),
    ("aer:fatal", 1, "gpu.aer aerfatal g1 fail reboot"),
    ("aer:nonfatal", 1, "gpu.aer aernonfat g1 fail repair"),
    ("pcie-speed", 1, "gpu.pcie_speed pciespeed g1 fail reboot"),
    ("net-down", 2, "net.link netlink eth0 fail repair"),
    ("edac:ue", 1, "host.edac edacue mc0 fail repair"),
    ("edac:ce", 1, "host.edac edacce mc0 warn repair"),
    ("nvme-dead", 1, "disk.nvme nvmedown nvme1 fail repair"),
    ("raid-degraded", 1, "disk.raid raid md0 warn repair"),
    ("oom", 1, "host.oom oomservice - warn restart_service"),
    ("nic-health:3", 1, "net.driver nichealth ib3/1 fail reboot"),
    ("lockup", 1, "host.kernel lockup - fail reboot"),
    ("mce", 1, "host.kernel mce - fail repair"),
];

#[test]
fn every_fault_of_a_node_is_found_and_named_and_its_neighbour_stays_clean() {
    let cluster = Cluster::up(&["--nodes", "2", "--health-interval", "3600"]);
    for node in ["n1", "n2"] {
        // The first pass is the baseline for what counts by its rise.
        assert_eq!(pass(&cluster, node), Vec::<String>::new(), "{node}");
    }
    for (fault, passes, wanted) in FAULTS {
        cluster.sim_ok(&["inject", fault, "--node", "n1", "--gpu", "1"]);
        let mut seen = Vec::new();
        for n in 0..*passes {
            if n > 0 {
                // Two passes within a second are one read.
                std::thread::sleep(Duration::from_millis(1050));
            }
            seen = pass(&cluster, "n1");
        }
        assert!(seen.iter().any(|f| f == wanted), "{fault}: {seen:#?}");
        let others: Vec<_> = seen.iter().filter(|f| f.contains(" fail ") && f != wanted).collect();
        assert!(others.is_empty(), "{fault}: {others:#?}");
        assert_eq!(pass(&cluster, "n2"), Vec::<String>::new(), "{fault} is n1's");
        cluster.sim_ok(&["clear", "--node", "n1"]);
        assert!(pass(&cluster, "n1").iter().all(|f| !f.contains(" fail ")), "{fault} is over");
    }
}

#[test]
fn rates_need_time() {
    let cluster = Cluster::up(&["--nodes", "1", "--health-interval", "3600"]);
    pass(&cluster, "n1");
    // Less than ten seconds are no rate.
    std::thread::sleep(Duration::from_secs(11));
    for fault in ["ib-symbol:4", "ib-errors:5", "aer:correctable"] {
        cluster.sim_ok(&["inject", fault, "--node", "n1", "--gpu", "1"]);
    }
    let seen = pass(&cluster, "n1");
    for wanted in [
        "ib.symbol ibsymbol ib4/1 warn repair",
        "ib.errors iberrors ib5/1 warn repair",
        "gpu.aer aercorr g1 warn repair",
    ] {
        assert!(seen.iter().any(|f| f == wanted), "{wanted}: {seen:#?}");
    }
}
