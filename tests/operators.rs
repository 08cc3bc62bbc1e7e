//! What operators say to `clustermax-drain`, and what it says to them: partitions, exemptions, notifications, returns,
//! rack-scale domains, nodes with odd names.

#![allow(clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use harness::{Cluster, Said, run, slurm_root};
use serde_json::Value;

/// HealthCheckProgram does not run by itself: every pass is this test's.
const BY_HAND: [&str; 4] = ["--enforcement", "enforce", "--health-interval", "600"];

/// Adds sections to the cluster's configuration.
fn configure(c: &Cluster, text: &str) {
    let mut all = std::fs::read_to_string(c.config()).expect("configuration");
    let _ = write!(all, "\n{text}");
    std::fs::write(c.config(), all).expect("configuration");
}

/// A notify command that keeps what it is told; it hangs while the file `hang` lies beside it.
fn teller(c: &Cluster) -> PathBuf {
    let path = c.dir().join("tell");
    let dir = c.dir();
    let d = dir.display();
    std::fs::write(
        &path,
        format!("#!/bin/sh\ncat >>'{d}/told'\nwhile [ -e '{d}/hang' ]; do sleep 0.1; done\n"),
    )
    .expect("tell");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("mode");
    path
}

/// What the command was told so far.
fn told(c: &Cluster) -> Vec<Value> {
    let text = std::fs::read_to_string(c.dir().join("told")).unwrap_or_default();
    text.lines().map(|l| serde_json::from_str(l).expect("one JSON object a line")).collect()
}

fn told_of(c: &Cluster, event: &str, node: &str) -> Option<Value> {
    told(c).into_iter().find(|e| e["event"] == event && e["node"] == node)
}

fn drain(c: &Cluster, node: &str, args: &[&str]) -> Said {
    run(&mut c.on_node(node, "clustermax-drain", args))
}

fn json(said: &Said) -> Value {
    serde_json::from_str(&said.out).unwrap_or_else(|e| panic!("{e}: {said:?}"))
}

fn pass(c: &Cluster, node: &str) -> Said {
    run(&mut c.on_node(node, "clustermax-healthcheck", &["run", "--mode", "periodic"]))
}

fn metrics(c: &Cluster, node: &str) -> String {
    std::fs::read_to_string(c.node_dir(node).join("run/clustermax.prom")).expect("metrics")
}

/// Command lines of the processes of this cluster's programs, as every user sees them.
fn processes(c: &Cluster) -> Vec<String> {
    let config = c.config().display().to_string();
    let all = std::fs::read_dir("/proc").expect("processes").flatten();
    let lines = all.filter_map(|p| std::fs::read(p.path().join("cmdline")).ok());
    lines
        .map(|line| String::from_utf8_lossy(&line).replace('\0', " "))
        .filter(|line| line.contains(&config))
        .collect()
}

#[test]
fn operators_say_where_when_and_what() {
    let c = Cluster::up(&[&["--nodes", "4"], &BY_HAND[..]].concat());
    let tell = teller(&c);
    configure(
        &c,
        &format!(
            "[enforce]\npartitions = [\"batch\"]\n[return]\npasses = 2\nhold = 1\n\
             [brake]\nmax_share = 1.0\nmax_nodes = 2\n[notify]\npath = \"{}\"\ntimeout = 1500\n",
            tell.display()
        ),
    );
    c.slurm(&["scontrol", "create", "PartitionName=batch", "Nodes=n[1-3]"]);
    let broken = |node: &str| {
        c.sim_ok(&["inject", "remap-failure", "--node", node, "--gpu", "2"]);
        let begun = Instant::now();
        pass(&c, node);
        begun.elapsed()
    };

    // Enforced by partition: n4 is in `gpu` only.
    broken("n4");
    assert!(!c.node("n4").drained());
    let verdict = std::fs::read_to_string(c.node_dir("n4").join("run/verdict.json")).expect("verdict");
    assert!(verdict.contains("\"drain_outcome\":\"observe\""), "{verdict}");
    let why = drain(&c, "n4", &["explain"]);
    assert!(why.out.contains("enforcement is observe here"), "{}", why.out);

    // Exempt: reported, not drained; root's; ended by hand, and then the fault drains.
    let exempt = ["exempt", "n1", "gpu.remap_failure", "--until", "2h", "--why", "cable on order"];
    std::fs::write(c.dir().join("hang"), "").expect("hang");
    let said = drain(&c, "n1", &exempt);
    assert_eq!(said.code, 0, "{said:?}");
    // Why is for operators: while they are told, no user reads it from the list of processes.
    c.wait(10, "told of the exemption", || told_of(&c, "exempt", "n1").is_some());
    let own = processes(&c);
    assert!(own.iter().any(|p| p.contains("tell-operators")), "{own:?}");
    assert!(!own.iter().any(|p| p.contains("cable on order")), "{own:?}");
    std::fs::remove_file(c.dir().join("hang")).expect("hang");
    broken("n1");
    assert!(!c.node("n1").drained());
    assert!(metrics(&c, "n1").contains("clustermax_exempt_until_seconds{check=\"gpu.remap_failure\"} "));
    assert!(drain(&c, "n1", &["explain"]).out.contains("gpu.remap_failure is exempt until 20"));
    let log = std::fs::read_to_string(c.node_dir("n1").join("state/operators.log")).expect("log");
    assert!(
        log.contains("gpu.remap_failure drains nothing on this node until") && log.contains("cable on order")
    );
    assert_eq!(drain(&c, "n1", &["exempt", "n1", "gpu.remap_failure", "--end"]).code, 0);

    // A notify command that hangs delays nothing.
    std::fs::write(c.dir().join("hang"), "").expect("hang");
    let took = broken("n1");
    assert!(c.node("n1").drained());
    println!("a pass that drains, with a hanging notify command: {:.2} s", took.as_secs_f64());
    c.wait(20, "the hanging command was killed", || {
        json(&drain(&c, "n1", &["status"]))["notify"]["failed"]
            .as_str()
            .is_some_and(|f| f.contains("did not end"))
    });
    std::fs::remove_file(c.dir().join("hang")).expect("hang");
    // Events of one node are told one after the other: this one may have waited behind the hanging one.
    c.wait(20, "told of the drain", || told_of(&c, "drain", "n1").is_some());
    let event = told_of(&c, "drain", "n1").expect("told of the drain");
    assert_eq!(event["fault"]["token"], "rowremap", "{event}");
    let list = json(&drain(&c, "n2", &["list", "--json"]));
    assert_eq!(list["drained"][0]["node"], "n1", "{list}");
    assert!(list["via"] == "libslurm" && list["nodes"] == 4, "{list}");
    let why = drain(&c, "n2", &["explain", "n1"]);
    assert!(why.out.contains("next: have the hardware repaired"), "{}", why.out);

    // Mended, but within a reservation: not given back behind its owner's back.
    c.sim_ok(&["clear", "--node", "n1"]);
    let reserve = "scontrol create reservation ReservationName=r starttime=now duration=60 user=root nodes=n1 \
                   flags=ignore_jobs";
    c.slurm(&reserve.split(' ').collect::<Vec<_>>());
    c.wait(30, "n1 reserved", || c.node("n1").state.contains("RESERVED"));
    pass(&c, "n1");
    c.pass_intervals(1);
    let said = pass(&c, "n1");
    assert!(said.err.contains("return after") && said.err.contains("reserved"), "{}", said.err);
    assert!(c.node("n1").drained());
    c.slurm(&["scontrol", "delete", "ReservationName=r"]);
    c.wait(30, "n1 given back after its reservation", || {
        pass(&c, "n1");
        !c.node("n1").drained()
    });
    c.wait(10, "told of the return", || told_of(&c, "return", "n1").is_some());
    pass(&c, "n1");
    assert!(metrics(&c, "n1").contains("clustermax_drains_total{outcome=\"returned\"} 1"));

    // An operator's reason on a node that we drained: his, whatever our check says.
    broken("n2");
    assert!(c.node("n2").drained());
    c.slurm(&["scontrol", "update", "nodename=n2", "state=drain", "reason=ticket 9"]);
    c.sim_ok(&["clear", "--node", "n2"]);
    for _ in 0..3 {
        pass(&c, "n2");
        c.pass_intervals(1);
    }
    assert_eq!(c.node("n2").reason, "ticket 9");

    // The same fault comes back: given back once a day at most.
    broken("n1");
    c.sim_ok(&["clear", "--node", "n1"]);
    for _ in 0..3 {
        pass(&c, "n1");
        c.pass_intervals(1);
    }
    assert!(c.node("n1").drained());

    // At most two by number, although the share allows all: n1 and, drained anew by us, n3.
    broken("n3");
    assert!(c.node("n3").drained());
    c.slurm(&["scontrol", "update", "nodename=n2", "state=resume"]);
    broken("n2");
    assert!(!c.node("n2").drained());
    c.wait(10, "told of the brake", || told_of(&c, "brake", "n2").is_some());
    c.slurm(&["scontrol", "update", "nodename=n3", "state=resume"]);
    pass(&c, "n2");
    assert!(!c.node("n2").drained(), "an engaged brake stays, whatever room there is");
    let said = drain(&c, "n2", &["release"]);
    assert!(said.code == 0 && said.err.contains("held back since"), "{said:?}");
    pass(&c, "n2");
    assert!(c.node("n2").drained(), "after the operator's release the fault drains");
}

/// Two domains of nine trays. By configuration on this machine's Slurm, by topology/block where there is one.
#[test]
fn three_sick_trays_degrade_their_rack_and_no_other() {
    let c = Cluster::up(&[&["--nodes", "18", "--gpus", "1", "--ib-ports", "0"], &BY_HAND[..]].concat());
    let tell = teller(&c);
    let by = match slurm_root() {
        None => {
            "[[rack.domain]]\nname = \"r1\"\nnodes = \"n[1-9]\"\n[[rack.domain]]\nname = \"r2\"\nnodes = \"n[10-18]\"\n"
        }
        Some(root) => {
            topology(&c, &root);
            ""
        }
    };
    configure(
        &c,
        &format!(
            "[brake]\nmax_share = 1.0\n[notify]\npath = \"{}\"\n[rack]\ntopology = {}\npolicy = \"mark\"\n{by}",
            tell.display(),
            by.is_empty()
        ),
    );
    let broken = |node: &str| {
        c.sim_ok(&["inject", "remap-failure", "--node", node, "--gpu", "0"]);
        pass(&c, node);
        assert!(c.node(node).drained(), "{node}");
    };
    let domain = |name: &str| -> Value {
        let all = json(&drain(&c, "n1", &["domains", "--json"]));
        let found = all["domains"].as_array().and_then(|d| d.iter().find(|d| d["name"] == name)).cloned();
        found.unwrap_or_else(|| panic!("no domain {name} in {all}"))
    };
    for node in ["n1", "n2", "n10"] {
        broken(node);
    }
    // An operator's tray is not sick, and keeps its text.
    c.slurm(&["scontrol", "update", "nodename=n8", "state=drain", "reason=new firmware"]);
    c.wait(20, "n2's second look", || c.node_dir("n2").join("state/domain.json").exists());
    let r1 = domain("r1");
    assert!(r1["sick"] == serde_json::json!(["n1", "n2"]) && r1["degraded"] == false, "{r1}");
    assert!(told(&c).iter().all(|e| e["event"] == "drain"), "{:?}", told(&c));
    assert!(c.node("n3").reason.is_empty());

    broken("n3");
    c.wait(30, "told that r1 is degraded", || told_of(&c, "domain", "n3").is_some());
    let event = told_of(&c, "domain", "n3").expect("told");
    assert_eq!(event["detail"], "domain r1 is degraded: 3 of 9 trays are sick (n1,n2,n3); marked 9 trays");
    let comment = |node: &str| {
        let text = c.slurm(&["scontrol", "-o", "show", "node", node]);
        text.split(" Comment=").nth(1).unwrap_or_default().to_string()
    };
    for node in ["n1", "n4", "n8", "n9"] {
        let says = comment(node);
        assert!(says.starts_with("cmx:rack r1 3 of 9 trays sick; act=tell_user id="), "{node}: {says}");
    }
    assert_eq!(c.node("n4").state, "IDLE", "it stays in service");
    assert_eq!(c.node("n8").reason, "new firmware");
    assert!(["n10", "n11", "n18"].iter().all(|n| comment(n).is_empty()));
    pass(&c, "n3");
    let text = metrics(&c, "n3");
    for line in
        ["clustermax_domain_degraded{domain=\"r1\"} 1", "clustermax_domain_sick_trays{domain=\"r1\"} 3"]
    {
        assert!(text.lines().any(|l| l == line), "{line}\n{text}");
    }
    let said = run(&mut c.user_command(&["srun", "-w", "n4", "true"]));
    assert_eq!(said.code, 0, "a marked tray runs jobs: {}", said.err);

    // One tray mended and given back by the operator: not degraded any more.
    c.sim_ok(&["clear", "--node", "n1"]);
    c.slurm(&["scontrol", "update", "nodename=n1", "state=resume"]);
    // Its next pass after a minute has the domain looked at, which takes the domain's word off its trays.
    let file = c.node_dir("n1").join("state/domain.json");
    let old = std::fs::read_to_string(&file).expect("domain.json");
    let at = old.rfind("\"time\":").expect("a time");
    std::fs::write(&file, format!("{}\"time\":0.0}}", &old[..at])).expect("domain.json");
    pass(&c, "n1");
    assert!(!file.exists(), "n1 is not sick any more");
    let said = drain(&c, "n2", &["domains", "--follow"]);
    assert!(said.code == 0 && said.out.contains("r1      9      2     ok"), "{said:?}");
    assert!(["n1", "n4", "n8"].iter().all(|n| comment(n).is_empty()));
    assert!(c.node("n2").drained() && c.node("n8").reason == "new firmware");

    // Both racks degrade in the same moment, and the brake has room for one: all or none of a rack's trays, never more.
    let text = std::fs::read_to_string(c.config()).expect("configuration");
    let text = text
        .replace("policy = \"mark\"", "policy = \"drain\"")
        .replace("[brake]\n", "[brake]\nmax_nodes = 12\n");
    std::fs::write(c.config(), text).expect("configuration");
    broken("n11");
    for node in ["n1", "n12"] {
        c.sim_ok(&["inject", "remap-failure", "--node", node, "--gpu", "0"]);
    }
    let both = ["n1", "n12"].map(|node| {
        let mut pass = c.on_node(node, "clustermax-healthcheck", &["run", "--mode", "periodic"]);
        pass.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("a pass")
    });
    for mut pass in both {
        let _ = pass.wait();
    }
    let event = |node: &str| told(&c).into_iter().rfind(|e| e["event"] == "domain" && e["node"] == node);
    c.wait(40, "both are told", || event("n1").is_some() && event("n12").is_some());
    let held = |nodes: &[u32]| -> usize {
        nodes.iter().filter(|i| c.node(&format!("n{i}")).reason.starts_with("cmx:rack ")).count()
    };
    let (r1, r2) = (held(&[4, 5, 6, 7, 9]), held(&[13, 14, 15, 16, 17, 18]));
    println!("of two racks at once: r1 {r1} of 5 trays, r2 {r2} of 6; {:?} {:?}", event("n1"), event("n12"));
    assert!([0, 5].contains(&r1) && [0, 6].contains(&r2) && r1 + r2 <= 6, "{r1} {r2}");
}

/// topology/block in the form of the release: topology.conf, from 25.05 topology.yaml.
fn topology(c: &Cluster, root: &std::path::Path) {
    let etc = c.dir().join("etc");
    let conf = std::fs::read_to_string(etc.join("slurm.conf")).expect("slurm.conf");
    if root.to_string_lossy().contains("26.05") {
        let text = "- topology: racks\n  cluster_default: true\n  block:\n    block_sizes:\n      - 9\n    blocks:\n      \
                    - block: r1\n        nodes: n[1-9]\n      - block: r2\n        nodes: n[10-18]\n";
        std::fs::write(etc.join("topology.yaml"), text).expect("topology.yaml");
        std::fs::write(etc.join("slurm.conf"), conf).expect("slurm.conf");
    } else {
        let text = "BlockName=r1 Nodes=n[1-9]\nBlockName=r2 Nodes=n[10-18]\nBlockSizes=9\n";
        std::fs::write(etc.join("topology.conf"), text).expect("topology.conf");
        std::fs::write(etc.join("slurm.conf"), format!("{conf}TopologyPlugin=topology/block\n"))
            .expect("slurm.conf");
    }
    c.sim_ok(&["stop", "slurmctld"]);
    c.sim_ok(&["start", "slurmctld"]);
    c.wait(30, "slurmctld shows blocks", || {
        run(&mut c.command(&["scontrol", "show", "topology"])).out.contains("BlockName=r2")
    });
}

/// A slurmd that this test started.
struct Slurmd(Child);

impl Drop for Slurmd {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// `slurmd -Z` registers a node that no line of slurm.conf names; its name here has a domain, and slurmd's host knows itself
/// by the short one.
#[test]
fn a_dynamic_node_with_a_domain_in_its_name_is_drained_by_its_short_one() {
    let c = Cluster::up(
        &[&["--nodes", "1", "--gpus", "0", "--ib-ports", "0", "--no-cgroups"], &BY_HAND[..]].concat(),
    );
    let path = c.dir().join("etc/slurm.conf");
    let conf = std::fs::read_to_string(&path).expect("slurm.conf");
    // A dynamic node's port is SlurmdPort: the static one has its own.
    let port =
        std::net::TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a port").port();
    std::fs::write(&path, format!("{conf}MaxNodeCount=8\nSlurmdPort={port}\n")).expect("slurm.conf");
    c.sim_ok(&["stop", "slurmctld"]);
    c.sim_ok(&["start", "slurmctld"]);
    let mut slurmd: Command = c.command(&["slurmd", "-D", "-Z", "-N", "dyn1.example.org", "--conf"]);
    slurmd.arg("CPUs=2 RealMemory=100");
    let log = std::fs::File::create(c.dir().join("log/dyn1.out")).expect("log");
    slurmd.stdin(Stdio::null()).stderr(log.try_clone().expect("log")).stdout(log);
    let _slurmd = Slurmd(slurmd.spawn().expect("slurmd"));
    c.wait(60, "the dynamic node is idle", || {
        c.slurm(&["sinfo", "-hN", "-o", "%N %t"]).contains("dyn1.example.org idle")
    });
    let state = c.node("dyn1.example.org").state;
    assert!(state.contains("DYNAMIC_NORM"), "{state}");

    let reason = "cmx:xid79 g0 GPU fell off the bus; act=reboot id=3f2a91bc";
    let said = drain(&c, "dyn1", &["drain", "--reason", reason]);
    assert_eq!(json(&said)["outcome"], "written", "{said:?}");
    assert_eq!(json(&said)["node"], "dyn1.example.org");
    c.wait(10, "drained", || c.node("dyn1.example.org").reason == reason);
    assert_eq!(json(&drain(&c, "dyn1", &["drain", "--reason", reason]))["outcome"], "already");
    // Its second look finds it, too: with a limit of one node it keeps its drain.
    std::thread::sleep(Duration::from_secs(3));
    assert!(c.node("dyn1.example.org").drained());
    assert_eq!(json(&drain(&c, "dyn1", &["return", "--id", "3f2a91bc"]))["outcome"], "returned");
    assert!(!c.node("dyn1.example.org").drained());
}
