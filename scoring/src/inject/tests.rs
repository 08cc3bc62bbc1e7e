use std::fs;

use super::*;
use crate::record::{Record, State};

fn node(state: &str) -> Node {
    Node { name: "n1".to_owned(), state: state.to_owned(), reason: String::new(), host: "h".to_owned() }
}

#[test]
fn states_of_slurm() {
    for state in [
        "IDLE",
        "MIXED",
        "ALLOCATED",
        "IDLE+PLANNED",
        "ALLOCATED+COMPLETING",
        "IDLE+CLOUD",
        "IDLE+DYNAMIC_NORM",
    ] {
        assert!(node(state).in_service() && !node(state).out_of_service(), "{state}");
    }
    for state in ["IDLE+DRAIN", "MIXED+DRAIN", "ALLOCATED+DRAIN", "DOWN", "DOWN*+DRAIN", "IDLE+FAIL", "ERROR"]
    {
        assert!(node(state).out_of_service() && !node(state).in_service(), "{state}");
    }
    for state in ["IDLE*", "IDLE+MAINT", "IDLE+POWERED_DOWN", "IDLE+REBOOT_ISSUED", "UNKNOWN", "FUTURE", ""] {
        assert!(!node(state).in_service() && !node(state).out_of_service(), "{state}");
    }
}

#[test]
fn a_line_of_scontrol() {
    let line = "NodeName=n2 Arch=x86_64 NodeAddr=127.0.0.1 NodeHostName=vm Version=22.05.8 State=IDLE+DRAIN ThreadsPerCore=1 \
                Reason=cmx:xid79 g3 State=x [odd]; act=reboot id=8742d8e0 [root@2026-11-30T22:00:27]";
    let node = Node::parse(line).unwrap();
    assert_eq!((node.name.as_str(), node.state.as_str(), node.host.as_str()), ("n2", "IDLE+DRAIN", "vm"));
    assert_eq!(node.reason, "cmx:xid79 g3 State=x [odd]; act=reboot id=8742d8e0");
    assert_eq!(Node::parse("NodeName=n1 State=IDLE Comment=x").unwrap().reason, "");
    assert_eq!(Node::parse("slurm_load_node error"), None);
    assert_eq!(Node::read("n1;reboot").unwrap_err().code, 2);
    assert_eq!(Node::read("-x").unwrap_err().code, 2);
}

/// The shape that every public detector reads.
#[test]
fn the_line() {
    let line = xid("0000:b3:00.0", 79, "GPU has fallen off the bus.", "12ab34cd");
    let pid = std::process::id();
    assert_eq!(
        line,
        format!(
            "NVRM: Xid (PCI:0000:b3:00): 79, pid={pid}, name=cmax-inject, GPU has fallen off the bus. [clustermax-synthetic 12ab34cd]"
        )
    );
    assert!(line.len() < 900, "one record of the kernel log");
    assert_ne!(id("n1"), id("n1"));
}

#[test]
fn another_node_to_confirm_is_refused_before_anything() {
    let args = Args {
        fault: Fault::Xid79,
        node: "n1".to_owned(),
        gpu: 0,
        confirm: Some("n2".to_owned()),
        within: 1,
        poll: 20,
        control: None,
        resume: false,
        with_jobs: false,
        results: None,
        config: None,
        dead_man: false,
    };
    let failure = run(&args).unwrap_err();
    assert_eq!(failure.code, 2);
    assert!(failure.message.contains("--confirm n2 is not --node n1"), "{failure}");
}

struct Tree(tempfile::TempDir);

impl Tree {
    fn new() -> Self {
        let tree = Self(tempfile::tempdir().unwrap());
        fs::create_dir_all(tree.0.path().join("sys/bus/pci/devices")).unwrap();
        fs::create_dir_all(tree.0.path().join("sys/bus/pci/drivers/nvidia")).unwrap();
        fs::create_dir_all(tree.0.path().join("proc/12/fd")).unwrap();
        tree
    }

    fn device(&self, path: &str, class: &str, vendor: &str) {
        let folder = self.0.path().join("sys/devices").join(path);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("class"), format!("{class}\n")).unwrap();
        fs::write(folder.join("vendor"), format!("{vendor}\n")).unwrap();
        let name = folder.file_name().unwrap().to_owned();
        std::os::unix::fs::symlink(&folder, self.0.path().join("sys/bus/pci/devices").join(name)).unwrap();
        if class.starts_with("0x0302") {
            std::os::unix::fs::symlink(
                self.0.path().join("sys/bus/pci/drivers/nvidia"),
                folder.join("driver"),
            )
            .unwrap();
        }
    }

    fn plan(&self, gpu: &str) -> (Vec<String>, Vec<String>) {
        let plan = bus::plan(&self.0.path().join("sys"), &self.0.path().join("proc"), gpu);
        let bad = plan.checks.into_iter().filter(|check| !check.ok).map(|check| check.text).collect();
        (bad, plan.writes)
    }
}

#[test]
fn a_bus_reset_is_planned_only_where_the_gpu_is_alone() {
    let tree = Tree::new();
    let (gpu, bridge) = ("0000:18:00.0", "0000:17:00.0");
    tree.device(&format!("pci0000:16/{bridge}"), "0x060400", "0x1000");
    tree.device(&format!("pci0000:16/{bridge}/{gpu}"), "0x030200", "0x10de");
    assert_eq!(bus::gpus(&tree.0.path().join("sys")), [gpu]);
    let (bad, writes) = tree.plan(gpu);
    assert_eq!(bad, [] as [String; 0]);
    assert_eq!(writes[0], "setpci -s 0000:17:00.0 BRIDGE_CONTROL=0040:0040");
    assert_eq!(writes[2], "setpci -s 0000:17:00.0 BRIDGE_CONTROL=0000:0040");

    // A process, a lockdown, the console, a neighbour: each is named.
    std::os::unix::fs::symlink("/dev/nvidia0", tree.0.path().join("proc/12/fd/3")).unwrap();
    fs::write(tree.0.path().join("proc/12/comm"), "dcgm-exporter\n").unwrap();
    let lockdown = tree.0.path().join("sys/kernel/security");
    fs::create_dir_all(&lockdown).unwrap();
    fs::write(lockdown.join("lockdown"), "none [integrity] confidentiality\n").unwrap();
    fs::write(tree.0.path().join(format!("sys/devices/pci0000:16/{bridge}/{gpu}/boot_vga")), "1\n").unwrap();
    tree.device(&format!("pci0000:16/{bridge}/0000:18:00.1"), "0x040300", "0x10de");
    let (bad, _) = tree.plan(gpu);
    for word in ["locked down", "console", "0000:18:00.1", "12 (dcgm-exporter)"] {
        assert!(bad.iter().any(|text| text.contains(word)), "{word} in {bad:?}");
    }
}

#[test]
fn a_gpu_without_a_bridge_is_unavailable() {
    let tree = Tree::new();
    tree.device("pci0000:00/0000:00:05.0", "0x030200", "0x10de");
    let (bad, writes) = tree.plan("0000:00:05.0");
    assert!(bad.iter().any(|text| text.contains("no bridge")) && writes.is_empty(), "{bad:?}");
}

fn results(documents: &[Document]) -> Vec<Record> {
    let dir = tempfile::tempdir().unwrap();
    fs::write(
        dir.path().join("run.json"),
        r#"{"schema":"clustermax-run/1","run":"r1","cluster":"c1","profile":"demo","nodes":["n1"],"started":"2026-11-30T20:00:00Z","hardware":"cpu"}"#,
    )
    .unwrap();
    let folder = Folder::open(dir.path()).unwrap();
    for document in documents {
        keep(Some(&folder), document).unwrap();
    }
    // Twice gives the same.
    let bytes = fs::read(folder.records()).unwrap();
    records::write(&folder).unwrap();
    assert_eq!(fs::read(folder.records()).unwrap(), bytes);
    let list = include_str!("../../data/metrics.tsv");
    crate::record::Reader::open(&folder.records(), Some("r1"))
        .unwrap()
        .map(|record| record.unwrap().1)
        .inspect(|record| {
            let row =
                list.lines().find(|line| line.split('\t').next() == Some(record.metric.as_str())).unwrap();
            assert_eq!(row.split('\t').nth(2), Some(record.unit.as_str()), "{row}");
            assert_eq!(record.provenance, crate::record::Provenance::Synthetic);
        })
        .collect()
}

fn document(events: &[(&str, f64)]) -> Document {
    Document {
        schema: SCHEMA.to_owned(),
        id: "12ab34cd".to_owned(),
        fault: "xid79".to_owned(),
        node: "n1".to_owned(),
        gpu: 3,
        pci: "0000:b3:00.0".to_owned(),
        line: "x".to_owned(),
        read_back: Some(true),
        started: "2026-11-30T20:01:00.5Z".to_owned(),
        within: 300.0,
        poll: 0.2,
        control: Some(Control { seconds: 10.0, drained: None }),
        before: "IDLE".to_owned(),
        events: events
            .iter()
            .map(|(event, at)| Event {
                event: (*event).to_owned(),
                at: *at,
                not_before: (at - 0.2).max(0.0),
                detail: String::new(),
            })
            .collect(),
    }
}

fn value(records: &[Record], metric: &str, params: &[(&str, &str)]) -> Option<f64> {
    let fits = |record: &&Record| {
        record.metric == metric
            && params
                .iter()
                .all(|(key, value)| record.params.get(*key).is_some_and(|v| v.to_string() == *value))
    };
    records.iter().find(fits).unwrap_or_else(|| panic!("no {metric} {params:?} in {records:#?}")).value
}

#[test]
fn records_of_a_drain_and_of_none() {
    let seen = document(&[
        ("injected", 0.01),
        ("verdict", 1.0),
        ("reason", 1.2),
        ("drained", 1.2),
        ("returned", 2.0),
        ("command", 3.0),
    ]);
    let records = results(std::slice::from_ref(&seen));
    assert_eq!(value(&records, "fault_to_drain_seconds", &[("fault", "xid79")]), Some(1.2));
    assert_eq!(value(&records, "fault_drained", &[("within", "300")]), Some(1.0));
    assert_eq!(value(&records, "fault_detect_seconds", &[("by", "verdict")]), Some(1.0));
    assert_eq!(value(&records, "fault_control_quiet", &[]), Some(1.0));
    assert!((value(&records, "return_seconds", &[]).unwrap() - 1.2).abs() < 1e-9);
    assert!((value(&records, "event", &[("event", "drained")]).unwrap() - 61.7).abs() < 1e-6);

    let not = Document { id: "ffffffff".to_owned(), events: vec![seen.events[0].clone()], ..seen.clone() };
    let records = results(&[not]);
    assert_eq!(value(&records, "fault_drained", &[]), Some(0.0));
    let time = records.iter().find(|record| record.metric == "fault_to_drain_seconds").unwrap();
    assert_eq!((time.value, time.state), (None, State::Unknown));
    assert!(time.detail.as_deref().unwrap().contains("within 300 s"), "{time:?}");

    // A false alarm ends it before the fault.
    let alarm = Document {
        control: Some(Control { seconds: 2.0, drained: Some("IDLE+DRAIN xid 13".to_owned()) }),
        events: Vec::new(),
        ..seen
    };
    let records = results(&[alarm]);
    assert_eq!(value(&records, "fault_control_quiet", &[]), Some(0.0));
    assert_eq!(records.len(), 1);
}

#[test]
fn the_agent_lists_gpus_and_builds_dcgms_command() {
    let tree = Tree::new();
    tree.device("pci0000:16/0000:17:00.0", "0x060400", "0x1000");
    tree.device("pci0000:16/0000:17:00.0/0000:18:00.0", "0x030200", "0x10de");
    let bin = tree.0.path().join("bin");
    fs::create_dir(&bin).unwrap();
    fs::write(bin.join("dcgmi"), format!("#!/bin/sh\necho \"$@\" >{}\n", bin.join("asked").display()))
        .unwrap();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(bin.join("dcgmi"), open).unwrap();
    let mut child = Command::new("sh")
        .args(["-c", AGENT, "clustermax-inject"])
        .arg(tree.0.path().join("sys"))
        .arg("dcgm")
        .env("PATH", format!("{}:/usr/bin:/bin", bin.display()))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"id test --inject --gpuid 0 -f 230 -v 79\n").unwrap();
    let out = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&out.stdout), "gpu 0000:18:00.0\nready\nwritten\n");
    assert_eq!(fs::read_to_string(bin.join("asked")).unwrap(), "test --inject --gpuid 0 -f 230 -v 79\n");
}

proptest::proptest! {
    #[test]
    fn no_line_of_scontrol_panics(line in "(?s).{0,200}") {
        let _ = Node::parse(&line);
    }
}
