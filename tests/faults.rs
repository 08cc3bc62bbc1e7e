//! Every fault that the simulator can inject, end to end, in one table: which check finds it, on which device, what mends it,
//! and whether it takes the node out of service in Slurm. And what healthy nodes do all day: none of it drains.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use harness::{Cluster, run};
use serde_json::Value;

/// Fault, passes needed, what the last pass must say of it (check, token, device, status, action), and whether it drains.
const FAULTS: &[(&str, u32, &str, bool)] = &[
    ("xid79", 1, "gpu.xid xid79 g1 fail reboot", true),
    ("xid:79", 1, "gpu.xid xid79 g1 fail reboot", true),
    ("xid:95", 1, "gpu.xid xid95 g1 fail reset_gpu", true),
    ("xid:48", 1, "gpu.xid xid48 g1 fail reset_gpu", true),
    ("xid:31", 1, "gpu.xid xid31 g1 warn tell_user", false),
    ("xid:94", 1, "gpu.xid xid94 g1 warn reset_gpu", false),
    ("xid:154", 1, "gpu.xid xid154 g1 fail reboot", true),
    ("gpu-lost", 1, "gpu.bus gpubus g1 fail reboot", true),
    ("gpu-missing", 1, "gpu.count gpucount - fail reboot", true),
    ("recovery-action", 1, "gpu.recovery_action recovery g1 fail reboot", true),
    ("recovery-action:reset", 1, "gpu.recovery_action recovery g1 fail reset_gpu", true),
    ("recovery-action:drain_p2p", 1, "gpu.recovery_action recovery g1 fail reset_gpu", true),
    ("recovery-action:drain_reset", 1, "gpu.recovery_action recovery g1 fail reset_gpu", true),
    ("ecc-sram", 1, "gpu.ecc_sram_ue eccsram g1 fail reset_gpu", true),
    ("ecc-dram", 1, "gpu.ecc_dram_ue eccdram g1 warn reset_gpu", false),
    ("remap-pending", 1, "gpu.remap_pending remappend g1 fail reset_gpu", true),
    ("remap-failure", 1, "gpu.remap_failure rowremap g1 fail repair", true),
    ("nvlink-down", 3, "gpu.nvlink_state nvlink g1 fail reset_gpu", true),
    ("pcie-width", 2, "gpu.pcie_width pciewidth g1 fail repair", true),
    ("hot", 3, "gpu.temp gputemp g1 fail repair", true),
    ("nvml-hang", 2, "gpu.driver_hang drvhang - fail reboot", true),
    ("nvml-missing:nvmlDeviceGetRemappedRows", 1, "", false),
    ("ib-down:3", 2, "ib.state ibstate ib3/1 fail repair", true),
    ("ib-init:3", 2, "ib.state ibstate ib3/1 fail restart_service", true),
    ("ib-slow:3", 2, "ib.rate ibrate ib3/1 fail repair", true),
    ("nic-dead:3", 1, "net.driver nicbus ib3/1 fail reboot", true),
    (
        "kmsg-line:NVRM: Xid (PCI:{pci}): 95, pid=1, name=a, Uncontained",
        1,
        "gpu.xid xid95 g1 fail reset_gpu",
        true,
    ),
    ("kmsg-kernel:clustermax-sim: a line that means nothing", 1, "", false),
    ("sram-threshold", 1, "gpu.ecc_sram_threshold sramlimit g1 fail repair", true),
    ("ecc-corrected:100000000", 1, "gpu.ecc_ce_rate eccrate g1 warn reset_gpu", false),
    ("rows-low", 1, "gpu.remap_headroom rowspare g1 warn repair", false),
    ("rows-remapped", 1, "gpu.remap_headroom rowspare g1 fail repair", true),
    ("repair-pending", 1, "gpu.repair_pending repair g1 fail reset_gpu", true),
    ("mem-unrepairable", 1, "gpu.repair_pending memdead g1 fail repair", true),
    ("retired-pages", 1, "gpu.retired_pages retired g1 fail repair", true),
    ("inforom", 1, "gpu.inforom inforom g1 warn repair", false),
    ("nvlink-slow", 1, "gpu.nvlink_speed nvspeed g1 warn reset_gpu", false),
    // One burst, however many passes see it.
    ("nvlink-errors:1000", 4, "gpu.nvlink_errors nverrors g1 warn repair", false),
    ("fabric-state:failed", 1, "gpu.fabric_state fabric g1 fail restart_service", true),
    ("fabric-health:config", 3, "gpu.fabric_state fabhealth g1 fail restart_service", true),
    ("pcie-replay", 1, "gpu.pcie_replay pciereplay g1 warn repair", false),
    ("power-brake", 3, "gpu.throttle throttle g1 warn repair", false),
    // Share of ten minutes: more cannot be seen in a test.
    ("thermal:600", 3, "gpu.throttle throttle g1 warn repair", false),
    ("idle-hot", 3, "gpu.idle_heat idleheat g1 warn none", false),
    ("idle-power", 3, "gpu.idle_heat idleheat g1 warn none", false),
    ("persistence-off", 1, "gpu.persistence persist g1 warn restart_service", false),
    ("ecc-pending", 1, "gpu.modes eccmode g1 fail reset_gpu", true),
    ("mig-pending", 1, "gpu.modes migmode g1 fail reset_gpu", true),
    ("mig-on", 1, "gpu.modes migmode g1 fail reset_gpu", true),
    ("compute-prohibited", 1, "gpu.modes compmode g1 warn reset_gpu", false),
    ("power-limit", 1, "gpu.clocks_setting powerlimit g1 warn none", false),
    ("clocks-set", 1, "gpu.clocks_setting clocks g1 warn none", false),
    ("gpu-process", 2, "gpu.leftover strayproc g1 warn none", false),
    ("vbios", 1, "gpu.firmware firmware g1 warn repair", false),
    ("driver:mismatch", 2, "gpu.driver driver - fail reboot", true),
    ("driver:unloaded", 2, "gpu.driver driver - fail reboot", true),
    ("ib-flap:2", 1, "ib.flap ibflap ib2/1 fail repair", true),
    ("ib-symbol:4", 1, "ib.symbol ibsymbol ib4/1 warn repair", false),
    ("ib-errors:5", 1, "ib.errors iberrors ib5/1 warn repair", false),
    ("ib-saturated:1", 1, "ib.saturated ibblind ib1/1 warn none", false),
    ("ib-no-sm:1", 1, "ib.sm_pkey ibsm ib1/1 warn none", false),
    ("roce-errors:1", 1, "roce.counters roce ib1/1 warn none", false),
    ("nic-firmware:1", 1, "nic.firmware nicfw - warn none", false),
    ("nic-health:3", 1, "net.driver nichealth ib3/1 fail reboot", true),
    ("aer:fatal", 1, "gpu.aer aerfatal g1 fail reboot", true),
    ("aer:nonfatal", 1, "gpu.aer aernonfat g1 fail repair", true),
    ("aer:correctable", 1, "gpu.aer aercorr g1 warn repair", false),
    ("pcie-speed", 1, "gpu.pcie_speed pciespeed g1 fail reboot", true),
    ("net-down", 2, "net.link netlink eth0 fail repair", true),
    ("edac:ue", 1, "host.edac edacue mc0 fail repair", true),
    ("edac:ce", 1, "host.edac edacce mc0 warn repair", false),
    ("nvme-dead", 1, "disk.nvme nvmedown nvme1 fail repair", true),
    ("nvme-smart", 1, "disk.nvme nvmesmart nvme1 fail repair", true),
    ("raid-degraded", 1, "disk.raid raid md0 warn repair", false),
    ("lockup", 1, "host.kernel lockup - fail reboot", true),
    ("mce", 1, "host.kernel mce - fail repair", true),
    ("oom", 1, "host.oom oomservice - warn restart_service", false),
];

/// A node's own `/proc`: the machine's, but for how long it has been up and which boot this is.
struct Proc<'a>(&'a Path);

impl Proc<'_> {
    /// Writes it, and says in the configuration where it is.
    fn new<'a>(cluster: &Cluster, at: &'a Path) -> Proc<'a> {
        let links = |real: &str, own: &Path, but: &[&str]| {
            std::fs::create_dir_all(own).unwrap();
            for entry in std::fs::read_dir(real).unwrap().flatten() {
                let name = entry.file_name().into_string().unwrap();
                if !but.contains(&name.as_str()) && name.parse::<u32>().is_err() {
                    std::os::unix::fs::symlink(entry.path(), own.join(name)).unwrap();
                }
            }
        };
        links("/proc", at, &["sys", "uptime"]);
        links("/proc/sys", &at.join("sys"), &["kernel"]);
        links("/proc/sys/kernel", &at.join("sys/kernel"), &["random"]);
        std::fs::create_dir(at.join("sys/kernel/random")).unwrap();
        let text = std::fs::read_to_string(cluster.config()).unwrap();
        let own = format!("procfs = \"{}\"", at.display());
        std::fs::write(cluster.config(), text.replace("procfs = \"/proc\"", &own)).unwrap();
        let own = Proc(at);
        own.boot("first", 100_000);
        own
    }

    /// Boots, that many seconds ago.
    fn boot(&self, id: &str, seconds: u32) {
        std::fs::write(self.0.join("sys/kernel/random/boot_id"), format!("{id}\n")).unwrap();
        std::fs::write(self.0.join("uptime"), format!("{seconds}.00 1.00\n")).unwrap();
    }
}

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
    verdict["findings"].as_array().unwrap().iter().map(one).collect()
}

fn resume(cluster: &Cluster, node: &str) {
    cluster.slurm(&["scontrol", "update", &format!("nodename={node}"), "state=resume"]);
    cluster.wait(10, "given back", || cluster.node(node).state == "IDLE");
}

/// What is wrong with how a fault was met; nothing when all is as the table says.
fn wrong(
    cluster: &Cluster,
    before: &[String],
    (fault, passes, wanted, drains): (&str, u32, &str, bool),
) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut seen = Vec::new();
    for n in 0..passes {
        if n > 0 {
            // Two passes within a second are one read.
            std::thread::sleep(Duration::from_millis(1050));
        }
        seen = pass(cluster, "n1");
    }
    if !wanted.is_empty() && !seen.iter().any(|f| f == wanted) {
        wrong.push(format!("{fault}: wanted {wanted}, seen {seen:#?}"));
    }
    if wanted.is_empty() && seen != before {
        wrong.push(format!("{fault}: wanted nothing new, seen {seen:#?}"));
    }
    // Nothing else fails, but for the same device.
    let device = wanted.split(' ').nth(2).unwrap_or("-");
    let others = |f: &&String| f.contains(" fail ") && f.split(' ').nth(2) != Some(device);
    let others: Vec<_> = seen.iter().filter(others).collect();
    if !others.is_empty() {
        wrong.push(format!("{fault}: others fail, too: {others:#?}"));
    }
    let node = cluster.node("n1");
    if node.drained() != drains {
        wrong.push(format!("{fault}: drains: {drains}, but {node:?}; {seen:#?}"));
    }
    if drains && (!node.reason.starts_with("cmx:") || node.reason.len() > 240) {
        wrong.push(format!("{fault}: reason {}", node.reason));
    }
    wrong
}

#[test]
fn every_fault_of_the_simulator_is_found_named_and_drains_or_does_not() {
    let cluster = Cluster::up(&[
        "--nodes",
        "2",
        "--model",
        "b200",
        "--enforcement",
        "enforce",
        "--health-interval",
        "3600",
    ]);
    let known = cluster.sim_ok(&["inject", "--list"]);
    let name = |text: &str| text.split([':', '[', ' ']).next().unwrap_or_default().to_string();
    let known: Vec<String> = known.lines().map(name).collect();
    assert!(known.len() >= 30, "{known:?}");
    for fault in &known {
        assert!(FAULTS.iter().any(|(f, ..)| name(f) == *fault), "the table lacks {fault}");
    }

    let folder = cluster.scratch().join("proc");
    Proc::new(&cluster, &folder);
    // What hangs is waited for less.
    let mut config = std::fs::read_to_string(cluster.config()).unwrap();
    config.push_str("\n[deadlines]\nsource = 2500\n");
    std::fs::write(cluster.config(), config).unwrap();
    let mut stray = Command::new("/bin/sleep").arg("600").spawn().unwrap();
    let pid = stray.id().to_string();
    std::os::unix::fs::symlink(format!("/proc/{pid}"), folder.join(&pid)).unwrap();
    // The first pass is the baseline for what counts by its rise; less than ten seconds are no rate.
    let machine = pass(&cluster, "n1");
    // The log is the machine's: it may have run out of memory before, which is true of every node here.
    let others: Vec<_> = machine.iter().filter(|f| *f != "host.oom oom - warn none").collect();
    assert!(others.is_empty(), "{others:?}");
    assert_eq!(pass(&cluster, "n2"), machine);
    std::thread::sleep(Duration::from_secs(10));
    let (mut all, mut before) = (Vec::new(), machine.clone());
    for row in FAULTS {
        let fault = if row.0 == "gpu-process" { format!("gpu-process:{pid}") } else { row.0.to_string() };
        cluster.sim_ok(&["inject", &fault, "--node", "n1", "--gpu", "1"]);
        all.extend(wrong(&cluster, &before, *row));
        cluster.sim_ok(&["clear", "--node", "n1"]);
        if cluster.node("n1").drained() {
            resume(&cluster, "n1");
        }
        let after = pass(&cluster, "n1");
        if after.iter().any(|f| f.contains(" fail ")) || cluster.node("n1").state != "IDLE" {
            all.push(format!("{fault}: not over: {after:#?}, {:?}", cluster.node("n1")));
            run(&mut cluster.command(&["scontrol", "update", "nodename=n1", "state=resume"]));
        }
        before = after;
        if cluster.node("n2").state != "IDLE" {
            all.push(format!("{fault}: n2 {:?}", cluster.node("n2")));
        }
    }
    // What was done to its neighbour, whose lines stand in the log that both read, is nothing to n2.
    let at_last = pass(&cluster, "n2");
    assert!(at_last.iter().all(|f| machine.contains(f)), "{at_last:?}");
    stray.kill().unwrap();
    stray.wait().unwrap();
    assert!(all.is_empty(), "{}", all.join("\n"));
    println!("{} faults of {} kinds", FAULTS.len(), known.len());
}

/// Appends lines to the machine's kernel log, as the driver's would stand there.
fn write_kernel(lines: impl Iterator<Item = String>) {
    let mut log = std::fs::File::options().write(true).open("/dev/kmsg").unwrap();
    for line in lines {
        log.write_all(format!("<3>{line}\n").as_bytes()).unwrap();
    }
}

#[test]
fn what_healthy_nodes_do_all_day_drains_nobody() {
    let cluster = Cluster::up(&["--nodes", "1", "--enforcement", "enforce", "--health-interval", "3600"]);
    let folder = cluster.scratch().join("proc");
    let proc = Proc::new(&cluster, &folder);
    let mut config = std::fs::read_to_string(cluster.config()).unwrap();
    config.push_str("\n[watch]\ninterval = 1\n");
    std::fs::write(cluster.config(), config).unwrap();
    let watched = |what: &str| {
        let passes = || {
            let text =
                std::fs::read_to_string(cluster.node_dir("n1").join("state/state.json")).unwrap_or_default();
            let state: Value = serde_json::from_str(&text).unwrap_or_default();
            state["totals"]["passes"]["watch"]["count"].as_u64().unwrap_or(0)
        };
        let before = passes();
        cluster.wait(60, "four passes of watch", || passes() >= before + 4);
        for hook in ["clustermax-prolog", "clustermax-epilog"] {
            let said = run(&mut cluster.hook("n1", hook, "999", "0,1"));
            assert_eq!(said.code, 0, "{what}: {hook}: {}", said.err);
        }
        run(&mut cluster.on_node("n1", "clustermax-healthcheck", &["run", "--mode", "periodic"]));
        assert_eq!(cluster.node("n1").state, "IDLE", "{what}: {:?}", cluster.node("n1"));
    };
    let verdict =
        || std::fs::read_to_string(cluster.node_dir("n1").join("run/verdict.json")).unwrap_or_default();
    let inject = |fault: &str, gpu: &str| {
        cluster.sim_ok(&["inject", fault, "--node", "n1", "--gpu", gpu]);
    };

    // A young node: a link that trains, and lines that an earlier boot left in a file.
    let record = |seq: u32, pci: &str| {
        format!("3,{seq},{seq},-;NVRM: Xid (PCI:{pci}): 95, pid=1, name=a, Uncontained\n")
    };
    run(&mut cluster.on_node("n1", "clustermax-healthcheck", &["run", "--mode", "periodic"]));
    let text = std::fs::read_to_string(cluster.node_dir("n1").join("state/state.json")).unwrap();
    let state: Value = serde_json::from_str(&text).unwrap();
    let pci = state["inventory"]
        .as_object()
        .unwrap()
        .keys()
        .next()
        .unwrap()
        .rsplit_once('.')
        .unwrap()
        .0
        .to_string();
    std::fs::write(cluster.node_dir("n1").join("kmsg"), record(1, &pci)).unwrap();
    run(&mut cluster.on_node("n1", "clustermax-healthcheck", &["run", "--mode", "periodic"]));
    assert!(cluster.node("n1").drained(), "the line counts in its own boot");
    resume(&cluster, "n1");
    proc.boot("second", 60);
    inject("nvlink-down", "1");
    let mut watch =
        cluster.on_node("n1", "clustermax-healthcheck", &["watch"]).stdin(Stdio::null()).spawn().unwrap();
    watched("a line of the boot before, and an NVLink down 60 s after boot");
    assert!(verdict().contains("nvlink") && !verdict().contains("xid95"), "{}", verdict());
    cluster.sim_ok(&["clear", "--node", "n1"]);
    proc.boot("second", 100_000);

    // Programs that fail, again and again.
    for code in [13, 31, 43, 45] {
        write_kernel(
            (0..200).map(|n| format!("NVRM: Xid (PCI:{pci}): {code}, pid={n}, name=python3, Ch 00000008")),
        );
    }
    watched("storms of Xid 13, 31, 43 and 45");
    // Told once, and counted.
    let metrics = || std::fs::read_to_string(cluster.node_dir("n1").join("run/clustermax.prom")).unwrap();
    for code in [13, 31, 43, 45] {
        let series = format!("clustermax_kernel_events_total{{kind=\"xid\",code=\"{code}\",");
        let count = metrics().lines().find_map(|l| l.strip_prefix(&series)?.rsplit_once(' ')?.1.parse().ok());
        assert_eq!(count, Some(200), "{code}: {}", metrics());
    }

    // Links save power while nothing runs; the power brake of the rack; counters that stand at their top.
    let devices = cluster.node_dir("n1").join("sys/bus/pci/devices");
    for entry in std::fs::read_dir(&devices).unwrap().flatten() {
        let speed = entry.path().join("current_link_speed");
        if speed.exists() {
            std::fs::write(speed, "2.5 GT/s PCIe\n").unwrap();
        }
    }
    for gpu in ["0", "1", "2", "3"] {
        inject("power-brake", gpu);
        inject("ib-saturated", gpu);
    }
    watched("idle links at Gen1, the power brake, saturated counters");
    // A throttle is told after three reads in a row; a read of a busy machine may miss its deadline in between.
    for token in ["throttle", "ibblind"] {
        cluster.wait(60, token, || verdict().contains(token));
    }
    run(Command::new("kill").args(["-TERM", &watch.id().to_string()]));
    watch.wait().unwrap();
    // The one that was meant.
    assert!(metrics().contains("clustermax_drains_total{outcome=\"written\"} 1\n"), "{}", metrics());
}
