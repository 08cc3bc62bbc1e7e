//! Checks of InfiniBand counters, network interfaces and PCIe paths: sources against trees, rules against facts.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail by panicking"
)]

mod common;

use std::collections::BTreeMap;
use std::fs;

use common::{Node, done, event, of, once, put, quiet, told, tree, with_events};
use healthcheck::facts::{
    Facts, FunctionKind, GpuSurvey, IbPort, NetPort, NvmlFacts, NvmlGpu, PciFunction, Reading,
};
use healthcheck::mode::Mode;
use healthcheck::source::{functions, infiniband, network};
use healthcheck::verdict::{Action, Status};

const PORT: &str = "[[profile.ib_port]]\ndevice = \"mlx5_3\"\nport = 1\nrate_gbps = 400.0\n";
const HOUR: f64 = 3600.0;

fn port() -> IbPort {
    IbPort {
        state: Reading::Value(4),
        phys_state: Reading::Value(5),
        link_layer: Reading::Value("InfiniBand".into()),
        rate_gbps: Reading::Value(400.0),
        hw_counters: BTreeMap::from([("rnr_nak_retry_err".to_string(), 0)]),
        sm_lid: Reading::Value(1),
        pkeys: Reading::Value(vec![0xffff]),
        firmware: Reading::Value("28.41.1000".into()),
        board: Reading::Value("MT_0000000838".into()),
        pci: Some("0000:5c:00.0".into()),
        ..IbPort::default()
    }
}

fn with_port(port: IbPort) -> Facts {
    Facts { ib: Reading::Value(BTreeMap::from([("mlx5_3/1".to_string(), port)])), ..quiet() }
}

/// Facts whose counters are these; the port's own files say the same.
fn counted(values: &[(&str, u64)]) -> Facts {
    let mut facts = with_port(port());
    for (name, value) in values {
        facts.counters.insert(format!("ib/mlx5_3/1/{name}"), *value);
        if let Reading::Value(ports) = &mut facts.ib {
            ports.get_mut("mlx5_3/1").unwrap().counters.insert((*name).to_string(), *value);
        }
    }
    facts
}

#[test]
fn ports_are_read_with_all_that_is_known_of_them() {
    let root = tree("sysfs/ib-h100-healthy.tsv");
    let Reading::Value(ports) = infiniband::read(&root.path().join("sys"), true) else { panic!("not read") };
    assert!(ports.len() >= 8);
    let p = &ports["mlx5_0/1"];
    assert_eq!((p.state.value(), p.rate_gbps.value(), p.sm_lid.value()), (Some(&4), Some(&400.0), Some(&1)));
    assert_eq!(p.pkeys, Reading::Value(vec![0xffff]));
    assert_eq!(p.firmware, Reading::Value("28.41.1000".into()));
    assert_eq!((p.counters["excessive_buffer_overrun_errors"], p.hw_counters["lifespan"]), (15, 12));
    // The prolog does not ask the card for what only slow checks judge.
    let Reading::Value(brief) = infiniband::read(&root.path().join("sys"), false) else { panic!("not read") };
    assert!(brief["mlx5_0/1"].hw_counters.is_empty());
    let empty = tree("sysfs/ib-empty.tsv");
    assert_eq!(infiniband::read(&empty.path().join("sys"), true), Reading::Value(BTreeMap::new()));
}

#[test]
fn pitfall_17_counters_that_are_not_numbers_or_do_not_move() {
    let root = tree("sysfs/ib-counters-saturated.tsv");
    let sys = root.path().join("sys");
    put(&sys.join("class/infiniband/mlx5_3/ports/1/counters/port_xmit_wait"), "N/A (no PMA)");
    let ib = infiniband::read(&sys, true);
    assert!(!ib.value().unwrap()["mlx5_3/1"].counters.contains_key("port_xmit_wait"));
    // All short counters stand at their top: whatever came before, no rate and no flap is computed from them.
    let mut node = Node::new(PORT);
    let mut facts = counted(&[("symbol_error", 100), ("link_downed", 250), ("port_rcv_errors", 0)]);
    node.pass(0.0, &facts);
    facts.ib = ib;
    for (name, top) in [("symbol_error", 65_535), ("link_downed", 255), ("port_rcv_errors", 65_535)] {
        facts.counters.insert(format!("ib/mlx5_3/1/{name}"), top);
    }
    let found = node.pass(60.0, &facts);
    for check in ["ib.symbol", "ib.errors", "ib.flap"] {
        assert_eq!(of(&found, check), [], "{check}");
    }
    assert_eq!(of(&found, "ib.saturated")[0].status, Status::Warn);
}

#[test]
fn symbol_errors() {
    let (status, found) = once("", "ib.symbol", |_| {});
    assert_eq!((status, found.len()), (Status::Unsupported, 0));
    let (status, _) = once(PORT, "ib.symbol", |f| f.ib = Reading::Unknown("no".into()));
    assert_eq!(status, Status::Unknown);
    let mut node = Node::new(PORT);
    assert_eq!(done(&node.pass(0.0, &counted(&[("symbol_error", 5000)])), "ib.symbol"), Status::Pass);
    assert_eq!(node.said("ib.symbol", 60.0, &counted(&[("symbol_error", 5000 + 600)])), []);
    let warned = node.said("ib.symbol", 60.0, &counted(&[("symbol_error", 5600 + 700)]));
    assert_eq!(warned, [(Status::Warn, "ibsymbol".into())]);
}

#[test]
fn symbol_errors_fail_only_when_sustained_for_three_hours() {
    let (mut node, mut count) = (Node::new(PORT), 0);
    let mut last = Vec::new();
    for minute in 0..=181 {
        count += 3;
        let found = node.of("ib.symbol", 60.0, &counted(&[("symbol_error", count)]));
        assert!(minute > 178 || found.is_empty(), "minute {minute}: {found:?}");
        last = found;
    }
    assert_eq!((last[0].status, last[0].action), (Status::Fail, Action::Repair));
    // The same number in the last hour alone is a burst.
    let mut node = Node::new(PORT);
    for minute in 0..=200u64 {
        let count = minute.saturating_sub(140) * 9;
        assert_eq!(node.said("ib.symbol", 60.0, &counted(&[("symbol_error", count)])), [], "minute {minute}");
    }
}

#[test]
fn pitfall_18_counters_since_boot_are_no_thresholds() {
    let mut node = Node::new(PORT);
    let facts = counted(&[
        ("link_downed", 40),
        ("symbol_error", 60_000),
        ("port_rcv_errors", 60_000),
        ("link_error_recovery", 200),
        ("port_xmit_discards", 60_000),
        ("VL15_dropped", 60_000),
    ]);
    for after in [0.0, 60.0, 60.0, 60.0, HOUR] {
        let found = node.pass(after, &facts);
        for check in ["ib.flap", "ib.symbol", "ib.errors", "roce.counters"] {
            assert_eq!(of(&found, check), [], "{check}");
        }
    }
}

#[test]
fn link_errors_warn_first_and_fail_the_third_time() {
    for (counter, harmless, bad) in [
        ("port_rcv_errors", 600, 700),
        ("link_error_recovery", 5, 6),
        ("local_link_integrity_errors", 0, 1),
        ("excessive_buffer_overrun_errors", 0, 1),
    ] {
        let mut node = Node::new(PORT);
        let mut value = 0;
        node.pass(0.0, &counted(&[(counter, value)]));
        value += harmless;
        assert_eq!(node.said("ib.errors", 60.0, &counted(&[(counter, value)])), [], "{counter}");
        for expected in [Status::Warn, Status::Warn, Status::Fail] {
            value += bad;
            let said = node.said("ib.errors", 60.0, &counted(&[(counter, value)]));
            assert_eq!(said, [(expected, "iberrors".into())], "{counter}");
        }
    }
}

/// `watch` looks every 25 s and more often still, so several reads see the same minute: one event is not three.
#[test]
fn one_burst_on_a_link_that_many_reads_see_never_fails_a_node() {
    for (counter, burst) in [
        ("port_rcv_errors", 50_000),
        ("link_error_recovery", 50),
        ("local_link_integrity_errors", 1),
        ("excessive_buffer_overrun_errors", 2),
    ] {
        for pause in [2.0, 10.0, 25.0, 45.0, 60.0, 300.0] {
            let mut node = Node::new(PORT);
            for _ in 0..100 {
                node.pass(pause, &counted(&[(counter, 7)]));
            }
            let mut warned = 0;
            for _ in 0..100 {
                for (status, _) in node.said("ib.errors", pause, &counted(&[(counter, 7 + burst)])) {
                    assert_eq!(status, Status::Warn, "{counter} every {pause} s");
                    warned += 1;
                }
            }
            assert!(warned > 0, "{counter} every {pause} s");
        }
    }
}

#[test]
fn lasting_link_errors_fail_however_often_they_are_read() {
    for pause in [2.0, 10.0, 25.0, 45.0, 60.0, 300.0] {
        let (mut node, mut value, mut passed) = (Node::new(PORT), 0, 0.0);
        node.pass(0.0, &counted(&[("port_rcv_errors", value)]));
        let failed = loop {
            value += (pause * 40.0) as u64;
            passed += pause;
            let said = node.said("ib.errors", pause, &counted(&[("port_rcv_errors", value)]));
            if said.iter().any(|(status, _)| *status == Status::Fail) {
                break passed;
            }
            assert!(passed <= 1200.0, "never, every {pause} s");
        };
        assert!(
            failed >= 180.0 && failed <= 180.0 + 2.5 * pause.max(60.0),
            "every {pause} s: after {failed} s"
        );
    }
}

#[test]
fn congestion_never_fails_a_node() {
    for (counter, bad) in [("port_xmit_discards", 6_100), ("VL15_dropped", 70)] {
        let mut node = Node::new(PORT);
        node.pass(0.0, &counted(&[(counter, 0)]));
        for n in 1..=5 {
            let said = node.said("ib.errors", 60.0, &counted(&[(counter, n * bad)]));
            assert_eq!(said, [(Status::Warn, "ibdiscards".into())], "{counter}");
        }
    }
}

#[test]
fn transport_counters_warn() {
    let mut node = Node::new(PORT);
    let zero = counted(&[("local_ack_timeout_err", 0), ("rnr_nak_retry_err", 0), ("roce_slow_restart", 0)]);
    assert_eq!(done(&node.pass(0.0, &zero), "roce.counters"), Status::Pass);
    let counts = |ack, retries, restarts| {
        counted(&[
            ("local_ack_timeout_err", ack),
            ("rnr_nak_retry_err", retries),
            ("roce_slow_restart", restarts),
        ])
    };
    let said = node.said("roce.counters", 60.0, &counts(61, 0, 0));
    assert_eq!(said, [(Status::Warn, "roce".into())]);
    let said = node.said("roce.counters", 60.0, &counts(61 + 60, 0, 600));
    assert_eq!(said, []);
    let said = node.said("roce.counters", 60.0, &counts(121, 0, 600 + 601));
    assert_eq!(said, [(Status::Warn, "roce".into())]);
    let said = node.said("roce.counters", 60.0, &counts(121, 1, 1201));
    assert_eq!(said, [(Status::Warn, "roce".into())]);
    for (counter, healthy, high) in [
        ("out_of_sequence", 6000, 6001),
        ("np_cnp_sent", 6_000_000, 6_000_001),
        ("rp_cnp_handled", 6_000_000, 6_000_001),
    ] {
        let mut node = Node::new(PORT);
        node.pass(0.0, &counted(&[(counter, 77)]));
        assert_eq!(node.said("roce.counters", 60.0, &counted(&[(counter, 77 + healthy)])), [], "{counter}");
        let said = node.said("roce.counters", 60.0, &counted(&[(counter, 77 + healthy + high)]));
        assert_eq!(said, [(Status::Warn, "roce".into())], "{counter}");
    }
    let (status, _) = once(PORT, "roce.counters", |f| {
        *f = with_port(IbPort { hw_counters: BTreeMap::new(), ..port() });
    });
    assert_eq!(status, Status::Unsupported);
    let (status, _) = once(PORT, "roce.counters", |f| f.ib = Reading::Hung("no answer".into()));
    assert_eq!(status, Status::Unknown);
}

#[test]
fn a_flap_is_seen_by_the_interface_where_the_cards_counter_is_stuck() {
    let facts = |carrier: u64| {
        let mut facts = counted(&[("link_downed", 255)]);
        facts.node.net = Reading::Value(BTreeMap::from([(
            "ib3".to_string(),
            NetPort { pci: Some("0000:5c:00.0".into()), ..NetPort::default() },
        )]));
        facts.counters.insert("net/ib3/carrier_down_count".into(), carrier);
        facts.counters.insert("net/eth0/carrier_down_count".into(), carrier * 10);
        facts
    };
    let mut node = Node::new(PORT);
    assert_eq!(node.said("ib.flap", 0.0, &facts(7)), []);
    assert_eq!(node.said("ib.flap", 60.0, &facts(8)), [(Status::Warn, "ibflap".into())]);
    assert_eq!(node.said("ib.flap", 60.0, &facts(10)), [(Status::Fail, "ibflap".into())]);
}

#[test]
fn pitfall_19_a_flap_is_over_when_its_window_is() {
    let mut node = Node::new(PORT);
    let at = |n| counted(&[("link_downed", n)]);
    node.pass(0.0, &at(0));
    assert_eq!(node.said("ib.flap", 60.0, &at(3)), [(Status::Fail, "ibflap".into())]);
    // Not gone within a minute, not there for ever.
    assert_eq!(node.said("ib.flap", 60.0, &at(3)), [(Status::Fail, "ibflap".into())]);
    assert_eq!(node.said("ib.flap", 2.0 * HOUR, &at(3)), [(Status::Fail, "ibflap".into())]);
    assert_eq!(node.said("ib.flap", HOUR, &at(3)), []);
}

#[test]
fn subnet_manager_and_partition_keys() {
    let keys = "[profile]\nib_pkeys = [0x8001]\n";
    let toml = format!("{keys}{PORT}");
    let look = |change: fn(&mut IbPort)| {
        let mut p = port();
        change(&mut p);
        let (status, found) = once(&toml, "ib.sm_pkey", |f| *f = with_port(p));
        (status, found.into_iter().map(|f| f.token).collect::<Vec<_>>())
    };
    assert_eq!(look(|p| p.pkeys = Reading::Value(vec![0x8001, 0xffff])), (Status::Pass, vec![]));
    assert_eq!(look(|_| {}), (Status::Warn, vec!["ibpkey".to_string()]));
    // A limited member is not a full one.
    assert_eq!(look(|p| p.pkeys = Reading::Value(vec![0x0001])).1, ["ibpkey"]);
    let no_sm = |p: &mut IbPort| (p.sm_lid, p.pkeys) = (Reading::Value(0), Reading::Unsupported);
    assert_eq!(look(no_sm).1, ["ibsm"]);
    // RoCE has no subnet manager, and a port that is down is ib.state's.
    let roce =
        |p: &mut IbPort| (p.sm_lid, p.link_layer) = (Reading::Value(0), Reading::Value("Ethernet".into()));
    assert_eq!(look(roce), (Status::Pass, vec![]));
    assert_eq!(
        look(|p| (p.sm_lid, p.state) = (Reading::Value(0), Reading::Value(1))),
        (Status::Pass, vec![])
    );
    assert_eq!(once("", "ib.sm_pkey", |_| {}).0, Status::Unsupported);
    assert_eq!(once(PORT, "ib.sm_pkey", |f| f.ib = Reading::Unknown("no".into())).0, Status::Unknown);
}

#[test]
fn firmware_of_cards() {
    let cards = |other: &str, board: &str| {
        let second =
            IbPort { firmware: Reading::Value(other.into()), board: Reading::Value(board.into()), ..port() };
        Reading::Value(BTreeMap::from([("mlx5_3/1".to_string(), port()), ("mlx5_4/1".to_string(), second)]))
    };
    let look = |toml: &str, other: &'static str, board: &'static str| {
        once(toml, "nic.firmware", |f| f.ib = cards(other, board)).1.len()
    };
    assert_eq!(look("", "28.41.1000", "MT_0000000838"), 0);
    assert_eq!(look("", "28.39.1002", "MT_0000000838"), 1);
    assert_eq!(look("", "22.39.1002", "MT_0000000359"), 0, "another board has firmware of its own");
    assert_eq!(look("[profile]\nib_firmware = \"28.42.1000\"\n", "28.41.1000", "MT_0000000838"), 1);
    assert_eq!(once("", "nic.firmware", |_| {}).0, Status::Unsupported);
    assert_eq!(once("", "nic.firmware", |f| f.ib = Reading::Unknown("no".into())).0, Status::Unknown);
}

#[test]
fn modules_of_the_profile() {
    let toml = "[profile]\nmodules = [\"ib_uverbs\", \"nvidia_peermem|dma_buf\"]\n";
    let look = |loaded: &[(&str, bool)]| {
        let modules: BTreeMap<String, bool> = loaded.iter().map(|(n, l)| ((*n).to_string(), *l)).collect();
        once(toml, "ib.modules", |f| f.node.modules = modules).1
    };
    assert_eq!(look(&[("ib_uverbs", true), ("nvidia_peermem", false), ("dma_buf", true)]), []);
    let found = look(&[("ib_uverbs", true), ("nvidia_peermem", false), ("dma_buf", false)]);
    assert_eq!((found[0].status, found[0].action), (Status::Fail, Action::RestartService));
    assert!(found[0].text.contains("nvidia_peermem or dma_buf"));
    assert_eq!(look(&[("ib_uverbs", false), ("nvidia_peermem", false), ("dma_buf", false)]).len(), 2);
    assert_eq!(look(&[])[0].status, Status::Unknown, "no folder of modules says nothing of any");
    assert_eq!(once("", "ib.modules", |_| {}).0, Status::Unsupported);
}

#[test]
fn interfaces_are_read_without_container_noise() {
    let root = tree("sysfs/net.tsv");
    let sys = root.path().join("sys");
    // As on a real system: the class folder holds links.
    let real = sys.join("devices/virtual/net/veth1a2b3c4");
    fs::create_dir_all(real.parent().unwrap()).unwrap();
    fs::rename(sys.join("class/net/veth1a2b3c4"), &real).unwrap();
    std::os::unix::fs::symlink(&real, sys.join("class/net/veth1a2b3c4")).unwrap();
    put(&sys.join("class/net/bonding_masters"), "bond0");
    let Reading::Value(net) = network::read(&sys) else { panic!("not read") };
    assert!(net["veth1a2b3c4"].is_virtual && !net["ib0"].is_virtual);
    assert!(!net.contains_key("bonding_masters"));
    let ib0 = &net["ib0"];
    assert_eq!((ib0.operstate.as_str(), ib0.carrier.value()), ("up", Some(&true)));
    assert_eq!(ib0.carrier_down_count, Reading::Value(1));
    let down = &net["enp65s0f0np0"];
    assert_eq!((down.carrier.value(), down.mtu.value()), (Some(&false), Some(&9000)));
    assert_eq!(down.speed_mbps, Reading::Unsupported, "-1 is no speed");
    assert_eq!(net["enp1s0"].carrier, Reading::Unsupported, "an interface that is switched off");
    assert_eq!(network::read(&root.path().join("none")), Reading::Value(BTreeMap::new()));
}

#[test]
fn interfaces_of_the_profile() {
    let toml = "[[profile.net_port]]\nname = \"bond0\"\nspeed_mbps = 50000\nmtu = 9000\n";
    let up = NetPort {
        operstate: "up".into(),
        carrier: Reading::Value(true),
        speed_mbps: Reading::Value(50_000),
        mtu: Reading::Value(9000),
        ..NetPort::default()
    };
    let bond = NetPort { is_virtual: true, slaves: vec!["eth0".into(), "eth1".into()], ..up.clone() };
    let net = |bond: NetPort, eth1: NetPort| {
        Reading::Value(BTreeMap::from([
            ("bond0".to_string(), bond),
            ("eth0".to_string(), up.clone()),
            ("eth1".to_string(), eth1),
            // Not in the profile: nobody's business.
            ("docker0".to_string(), NetPort { operstate: "down".into(), ..NetPort::default() }),
        ]))
    };
    let look = |bond: NetPort, eth1: NetPort| {
        let (_, found) = once(toml, "net.link", |f| f.node.net = net(bond, eth1));
        found.into_iter().map(|f| (f.status, f.token)).collect::<Vec<_>>()
    };
    let warn = |token: &str| vec![(Status::Warn, token.to_string())];
    let dead = NetPort { operstate: "down".into(), carrier: Reading::Value(false), ..up.clone() };
    assert_eq!(look(bond.clone(), up.clone()), []);
    assert_eq!(look(NetPort { mtu: Reading::Value(1500), ..bond.clone() }, up.clone()), warn("netmtu"));
    assert_eq!(
        look(NetPort { speed_mbps: Reading::Value(25_000), ..bond.clone() }, up.clone()),
        warn("netspeed")
    );
    assert_eq!(look(bond.clone(), dead.clone()), warn("netbond"));
    let mut facts = quiet();
    facts.node.net = net(NetPort { slaves: vec![], ..dead.clone() }, dead);
    let mut node = Node::new(toml);
    assert_eq!(node.said("net.link", 0.0, &facts), warn("netlink"), "the first read");
    let second = node.of("net.link", 60.0, &facts);
    assert_eq!(
        (second[0].status, second[0].action, second[0].drains()),
        (Status::Fail, Action::Repair, true)
    );
    assert_eq!(
        once(toml, "net.link", |f| f.node.net = Reading::Value(BTreeMap::new())).1[0].text,
        "interface missing"
    );
    assert_eq!(once("", "net.link", |_| {}).0, Status::Unsupported);
    assert_eq!(once(toml, "net.link", |f| f.node.net = Reading::Hung("slow".into())).0, Status::Unknown);
}

/// The sample's functions, each below a root port as in a real tree.
fn pci_tree() -> tempfile::TempDir {
    let root = tree("sysfs/pci.tsv");
    let bus = root.path().join("sys/bus/pci/devices");
    let devices = root.path().join("sys/devices");
    let names: Vec<_> = fs::read_dir(&bus).unwrap().map(|e| e.unwrap().file_name()).collect();
    for name in names {
        let name = name.to_str().unwrap();
        let port = format!("0000:{}:01.1", &name[5..7].replace('0', "f"));
        let real = devices.join("pci0000:00").join(&port);
        put(&real.join("class"), "0x060400");
        put(&real.join("max_link_speed"), "32.0 GT/s PCIe");
        fs::rename(bus.join(name), real.join(name)).unwrap();
        std::os::unix::fs::symlink(real.join(name), bus.join(name)).unwrap();
        if !bus.join(&port).exists() {
            std::os::unix::fs::symlink(&real, bus.join(&port)).unwrap();
        }
    }
    root
}

#[test]
fn functions_are_read_with_the_bridges_above_them() {
    let root = pci_tree();
    let Reading::Value(all) = functions::read(&root.path().join("sys")) else { panic!("not read") };
    let gpu = &all["0000:5d:00.0"];
    assert_eq!((gpu.kind, gpu.correctable.value()), (FunctionKind::Gpu, Some(&4711)));
    assert_eq!(gpu.above, ["0000:5d:01.1"]);
    assert_eq!(all["0000:5d:01.1"].kind, FunctionKind::Bridge);
    assert_eq!(gpu.max_speed, Reading::Value(32.0));
    assert_eq!(all["0000:5d:01.1"].fatal, Reading::Unsupported);
    assert_eq!(functions::read(&root.path().join("none")), Reading::Value(BTreeMap::new()));
}

#[test]
fn pitfall_21_speed_at_idle_is_no_fault() {
    let root = pci_tree();
    let functions = functions::read(&root.path().join("sys"));
    // 3a stands at 2.5 GT/s because it idles, 86 says "Unknown".
    let toml = "[profile]\npcie_speed_gts = 32.0\n";
    let (status, found) = once(toml, "gpu.pcie_speed", |f| f.node.functions = functions);
    assert_eq!((status, found.len()), (Status::Pass, 0));
}

fn gpu_function(max: f64, port: f64) -> Reading<BTreeMap<String, PciFunction>> {
    let bridge = PciFunction { max_speed: Reading::Value(port), ..PciFunction::default() };
    let gpu = PciFunction {
        kind: FunctionKind::Gpu,
        above: vec!["0000:80:01.1".into()],
        max_speed: Reading::Value(max),
        correctable: Reading::Value(0),
        ..PciFunction::default()
    };
    Reading::Value(BTreeMap::from([("0000:80:01.1".to_string(), bridge), ("0000:86:00.0".to_string(), gpu)]))
}

#[test]
fn pcie_speed_that_both_ends_can_do() {
    let toml = "[profile]\npcie_speed_gts = 32.0\n";
    let look = |max, port| once(toml, "gpu.pcie_speed", |f| f.node.functions = gpu_function(max, port));
    assert_eq!(look(32.0, 64.0).0, Status::Pass);
    for (max, port) in [(16.0, 32.0), (32.0, 16.0)] {
        let (_, found) = look(max, port);
        assert_eq!((found[0].status, found[0].action), (Status::Fail, Action::Reboot));
        assert_eq!(found[0].text, "PCIe can do 16 of 32 GT/s");
    }
    assert_eq!(
        once("", "gpu.pcie_speed", |f| f.node.functions = gpu_function(8.0, 8.0)).0,
        Status::Unsupported
    );
    let (status, _) =
        once(toml, "gpu.pcie_speed", |f| f.node.functions = Reading::Hung("config space".into()));
    assert_eq!(status, Status::Unknown);
}

#[test]
fn pcie_speed_now_counts_under_load_only() {
    let look = |now: f64, busy: u32, reads: u32| {
        let Reading::Value(mut functions) = gpu_function(32.0, 32.0) else { panic!("no functions") };
        functions.get_mut("0000:86:00.0").unwrap().speed = Reading::Value(now);
        let mut facts = quiet();
        facts.node.functions = Reading::Value(functions);
        let survey = GpuSurvey { busy_percent: Reading::Value(busy), ..GpuSurvey::default() };
        let gpu = NvmlGpu {
            pci: Reading::Value("0000:86:00.0".into()),
            survey: Some(Box::new(survey)),
            ..NvmlGpu::default()
        };
        facts.nvml = Reading::Value(NvmlFacts { count: 1, gpus: vec![gpu], ..NvmlFacts::default() });
        let mut node = Node::new("");
        let mut said = Vec::new();
        for _ in 0..reads {
            said = node.said("gpu.pcie_speed", 60.0, &facts);
        }
        said
    };
    assert_eq!(look(2.5, 0, 5), [], "idle");
    assert_eq!(look(2.5, 49, 5), []);
    assert_eq!(look(32.0, 100, 5), []);
    assert_eq!(look(16.0, 100, 2), []);
    assert_eq!(look(16.0, 100, 3), [(Status::Warn, "pcieslow".into())]);
}

#[test]
fn aer_counters_by_their_rise() {
    let facts = |counts: &[(&str, u64)]| {
        let mut facts = quiet();
        facts.node.functions = gpu_function(32.0, 32.0);
        for (name, value) in counts {
            facts.counters.insert(format!("aer/0000:86:00.0/{name}"), *value);
        }
        facts
    };
    let mut node = Node::new("");
    let first = node.pass(0.0, &facts(&[("fatal", 9), ("nonfatal", 9), ("correctable", 4711)]));
    assert_eq!((done(&first, "gpu.aer"), of(&first, "gpu.aer").len()), (Status::Pass, 0), "since boot");
    let said = |node: &mut Node, counts: &[(&str, u64)]| node.said("gpu.aer", 60.0, &facts(counts));
    assert_eq!(said(&mut node, &[("correctable", 4811), ("nonfatal", 9)]), []);
    assert_eq!(
        said(&mut node, &[("correctable", 4912), ("nonfatal", 9)]),
        [(Status::Warn, "aercorr".into())]
    );
    assert_eq!(said(&mut node, &[("nonfatal", 10)]), [(Status::Warn, "aernonfat".into())]);
    assert_eq!(said(&mut node, &[("nonfatal", 12)]), [(Status::Fail, "aernonfat".into())]);
    let fatal = node.of("gpu.aer", 60.0, &facts(&[("fatal", 10), ("nonfatal", 12)]));
    assert_eq!(
        (fatal[0].token.as_str(), fatal[0].action, fatal[0].drains()),
        ("aerfatal", Action::Reboot, true)
    );
    assert_eq!(once("", "gpu.aer", |_| {}).0, Status::Unsupported);
    assert_eq!(once("", "gpu.aer", |f| f.node.functions = Reading::Unknown("no".into())).0, Status::Unknown);
}

#[test]
fn acs_matters_on_bare_metal_only() {
    let look = |acs: Reading<u16>, guest: Reading<bool>| {
        once("", "pcie.acs", |f| {
            f.node.functions = gpu_function(32.0, 32.0);
            f.node.virtual_machine = guest;
            if let Reading::Value(all) = &mut f.node.functions {
                all.get_mut("0000:80:01.1").unwrap().acs = acs;
            }
        })
    };
    assert_eq!(look(Reading::Value(0x1d), Reading::Value(false)).1[0].status, Status::Warn);
    assert_eq!(look(Reading::Value(0x1d), Reading::Unsupported).1[0].status, Status::Warn);
    assert_eq!(look(Reading::Value(0x1d), Reading::Value(true)).0, Status::Unsupported);
    assert_eq!(look(Reading::Value(0), Reading::Value(false)).0, Status::Pass);
    assert_eq!(look(Reading::Unsupported, Reading::Value(false)).0, Status::Unsupported);
    assert_eq!(once("", "pcie.acs", |f| f.node.functions = Reading::Unknown("no".into())).0, Status::Unknown);
}

#[test]
fn network_lines_of_the_sample_mean_what_they_should() {
    let seen = told("kmsg/kmsg-mlx5-net.log");
    let expected: Vec<(usize, &str, &str)> = vec![
        (1, "ibflap", "enp65s0f0np0"),
        (2, "ibflap", "enp65s0f0np0"),
        (3, "niccable", "0000:12:00"),
        (4, "niccable", "0000:12:00"),
        (5, "nicmodule", "0000:5c:00"),
        (6, "nicmodule", "0000:5c:00"),
        (7, "nicpower", "0000:5c:00"),
        (8, "nicreg", "0000:d2:00"),
        (9, "nichealth", "0000:d2:00"),
        (10, "nichealth", "0000:d2:00"),
        (11, "niccmd", "0000:03:00"),
        (12, "nictx", "ens15np0"),
        (13, "nictx", "ens15np0"),
        (14, "nictx", "ens15np0"),
    ];
    let seen: Vec<_> = seen.iter().map(|(n, t, d)| (*n, t.as_str(), d.as_str())).collect();
    assert_eq!(seen, expected);
}

#[test]
fn a_card_that_answers_nobody_drains_when_it_is_of_the_profile() {
    let look = |pci: &str, all_ones: bool| {
        let (_, found) = once(PORT, "net.driver", |f| {
            *f = with_port(port());
            f.node.functions = Reading::Value(BTreeMap::from([(
                format!("0000:{pci}:00.0"),
                PciFunction {
                    kind: FunctionKind::Nic,
                    config_all_ones: Reading::Value(all_ones),
                    ..PciFunction::default()
                },
            )]));
        });
        found
    };
    assert_eq!(look("5c", false), []);
    let own = look("5c", true);
    assert_eq!(
        (own[0].token.as_str(), own[0].status, own[0].action),
        ("nicbus", Status::Fail, Action::Reboot)
    );
    assert_eq!((own[0].device.as_ref().unwrap().name.as_str(), own[0].drains()), ("ib3/1", true));
    let other = look("d2", true);
    assert_eq!((other[0].status, other[0].drains()), (Status::Warn, false));
}

#[test]
fn card_lines_drain_only_for_cards_of_the_profile() {
    let look = |toml: &str, line: &str| {
        let (_, found) = once(toml, "net.driver", |f| {
            *f = with_port(port());
            f.node.functions = Reading::Value(BTreeMap::from([(
                "0000:d2:00.0".to_string(),
                PciFunction { kind: FunctionKind::Nic, ..PciFunction::default() },
            )]));
            with_events(vec![event(line, 5)])(f);
        });
        found
    };
    let health = "poll_health:825: device's health compromised - reached miss count.";
    let own = look(PORT, &format!("mlx5_core 0000:5c:00.0: {health}"));
    assert_eq!((own[0].status, own[0].drains(), own[0].action), (Status::Fail, true, Action::Reboot));
    assert_eq!(own[0].device.as_ref().unwrap().name, "ib3/1");
    // A card for storage or management: the node still works.
    let other = look(PORT, &format!("mlx5_core 0000:d2:00.0: {health}"));
    assert_eq!((other[0].status, other[0].drains()), (Status::Warn, false));
    let foreign = look(PORT, &format!("mlx5_core 0000:ee:00.0: {health}"));
    assert_eq!((foreign[0].status, foreign[0].device.as_ref()), (Status::Warn, None));
    let module = look(
        PORT,
        "mlx5_core 0000:5c:00.0: Port module event[error]: module 0, Cable error, High Temperature",
    );
    assert_eq!((module[0].status, module[0].token.as_str()), (Status::Warn, "nicmodule"));
    let register = look(
        PORT,
        "mlx5_core 0000:d2:00.0: mlx5_cmd_out_err:838:(pid 268269): ACCESS_REG(0x805) op_mod(0x1) failed, status bad operation(0x2), syndrome (0x305684), err(-22)",
    );
    assert_eq!(register, [], "gpud issue 1164");
    let (status, _) = once(PORT, "net.driver", |f| f.kernel = Reading::Unknown("no log".into()));
    assert_eq!(status, Status::Unknown);
}

#[test]
fn aer_lines_of_the_sample_mean_what_they_should() {
    let seen = told("kmsg/kmsg-pcie-aer.log");
    let expected = [
        (1, "aercorr", "0000:86:00"),
        (5, "aercorr", "0000:86:00"),
        (9, "aercorr", "0000:01:00"),
        (14, "aernonfat", "0000:86:00"),
        (18, "aerfatal", "0000:86:00"),
        (19, "aerfatal", "0000:86:00"),
        (20, "aerfatal", "0000:80:01"),
        (23, "aerfatal", "0000:86:00"),
        (24, "aerfatal", "0000:86:00"),
        (25, "pcielink", "0000:80:01"),
    ];
    for (line, token, pci) in expected {
        let found = seen.iter().find(|(n, ..)| *n == line);
        // The sample numbers events from their first line; each event's lines carry the same meaning.
        if let Some((_, t, p)) = found {
            assert!(t.starts_with("aer") || t == "pcielink", "line {line}: {t} {p}");
        }
        assert!(seen.iter().any(|(_, t, p)| t == token && p == pci), "{token} {pci} not in {seen:?}");
    }
}

#[test]
fn a_fatal_error_or_a_lost_link_below_which_a_gpu_hangs_drains() {
    let look = |line: &str| {
        let (_, found) = once("", "gpu.aer", |f| {
            f.node.functions = gpu_function(32.0, 32.0);
            with_events(vec![event(line, 5)])(f);
        });
        found
    };
    let fatal = look("pcieport 0000:80:01.1: AER: Uncorrected (Fatal) error received: 0000:86:00.0");
    assert_eq!(
        (fatal[0].status, fatal[0].device.as_ref().unwrap().name.as_str()),
        (Status::Fail, "0000:86:00.0")
    );
    let link = look("pcieport 0000:80:01.1: pciehp: Slot(12): Link Down");
    assert_eq!((link[0].status, link[0].drains()), (Status::Fail, true));
    let elsewhere = look("pcieport 0000:00:1c.0: pciehp: Slot(1): Link Down");
    assert_eq!((elsewhere[0].status, elsewhere[0].drains()), (Status::Warn, false));
    let mild = look(
        "nvidia 0000:86:00.0: PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=Transaction Layer, (Requester ID)",
    );
    assert_eq!(mild[0].status, Status::Warn);
    assert_eq!(
        look("nvidia 0000:86:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)"),
        []
    );
}

#[test]
fn the_prolog_judges_links_and_errors_but_not_rates() {
    let mut node = Node::new(PORT);
    let found = node.pass_in(Mode::Prolog, 0.0, &with_port(port()));
    for check in ["gpu.aer", "net.link", "net.driver"] {
        done(&found, check);
    }
    for check in ["ib.symbol", "ib.errors", "roce.counters", "pcie.acs", "nic.firmware"] {
        assert!(found.checks.iter().all(|c| c.check != check), "{check}");
    }
}
