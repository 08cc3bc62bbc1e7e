use std::fs;
use std::io::{Read as _, Write as _};
use std::process::{Command, Stdio};
use std::time::Instant;

use super::signs::{Options, Watch, Words};
use super::timeline::{Control, Event, keep};
use super::*;
use crate::record::{Provenance, Record, State};

fn node(state: &str) -> Node {
    Node {
        name: "n1".to_owned(),
        state: state.to_owned(),
        reason: String::new(),
        host: "h".to_owned(),
        partitions: "gpu".to_owned(),
    }
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
fn nodes_kept_from_jobs() {
    for (state, kept) in [
        ("IDLE+RESERVED", true),
        ("IDLE+MAINT", true),
        ("IDLE+DRAIN", true),
        ("IDLE", false),
        ("MIXED", false),
    ] {
        assert_eq!(node(state).reserved(), kept, "{state}");
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
    assert_eq!(Node::parse("NodeName=n1 State=IDLE Partitions=a,b BootTime=x").unwrap().partitions, "a,b");
}

/// The shape that every public detector reads.
#[test]
fn the_lines() {
    let line = Fault::Xid79.line(3, "0000:b3:00.0", "12ab34cd");
    let pid = std::process::id();
    assert_eq!(
        line,
        format!(
            "NVRM: Xid (PCI:0000:b3:00): 79, pid={pid}, name=cmax-inject, GPU has fallen off the bus. [clustermax-synthetic 12ab34cd]"
        )
    );
    assert_eq!(
        Fault::AmdLost.line(0, "0000:03:00.0", "12ab34cd"),
        "amdgpu 0000:03:00.0: amdgpu: device lost from bus! [clustermax-synthetic 12ab34cd]"
    );
    assert_eq!(Fault::DcgmReplay.line(2, "x", "y"), "test --inject --gpuid 2 -f 202 -v 99999");
    assert_ne!(id("n1"), id("n1"));
    for fault in <Fault as clap::ValueEnum>::value_variants() {
        let value = clap::ValueEnum::to_possible_value(fault).unwrap();
        assert_eq!(value.get_name(), fault.word(), "the word in records is that of the command line");
        assert!(
            fault.line(0, "0000:b3:00.0", "12ab34cd").len() < 900,
            "one record of the kernel log: {fault:?}"
        );
        assert!(
            fault.noise().iter().all(|noise| !noise.drains() && noise.vendor() == fault.vendor()),
            "{fault:?}"
        );
        assert!(fault.rungs().iter().all(|rung| rung.drains()));
    }
}

fn args(fault: Fault) -> Args {
    Args {
        fault,
        node: "n1".to_owned(),
        gpu: 0,
        confirm: None,
        confirm_device: None,
        hold: 1000,
        within: 1,
        poll: 20,
        control: None,
        wait_return: None,
        resume: false,
        with_jobs: false,
        results: None,
        config: None,
        signs: Options::default(),
        python: None,
        prefix: None,
        dead_man: false,
        restore_bridge: None,
        restore_control: 0,
        restore_after: 0,
    }
}

#[test]
fn what_is_refused_before_anything() {
    let failure = run(&Args { confirm: Some("n2".to_owned()), ..args(Fault::Xid79) }).unwrap_err();
    assert_eq!(failure.code, 2);
    assert!(failure.message.contains("--confirm n2 is not --node n1"), "{failure}");
    let failure = run(&Args { resume: true, ..args(Fault::BusReset) }).unwrap_err();
    assert!(failure.code == 2 && failure.message.contains("reboot the node"), "{failure}");
    let failure = Inbox::open("0.0.0.0:9".parse().unwrap()).err().unwrap();
    assert!(failure.message.contains("every network"), "{failure}");
    // An address that no machine has.
    let failure = Inbox::open("192.0.2.1:9".parse().unwrap()).err().unwrap();
    assert!(failure.code == 2 && failure.message.contains("address of this machine"), "{failure}");
}

/// Each precondition that needs no look at the node itself, broken alone: the one line says so.
#[test]
fn every_precondition_refuses_alone() {
    let well = Around { root: true, ..Around::default() };
    let bad = |args: &Args, fault: Fault, state: &str, around: &Around| -> Vec<String> {
        let checks = preconditions(args, fault, &node(state), around);
        checks.into_iter().filter(|check| !check.ok).map(|check| check.text).collect()
    };
    let with_jobs = Args { with_jobs: true, ..args(Fault::Xid79) };
    for fault in [Fault::Xid79, Fault::DcgmXid79, Fault::BusReset, Fault::StopRank] {
        assert_eq!(bad(&args(fault), fault, "IDLE+RESERVED", &well), [] as [String; 0], "{fault:?}");
        let ordinary = bad(&args(fault), fault, "IDLE", &Around::default());
        assert_eq!(ordinary.is_empty(), fault == Fault::StopRank, "only ranks need no root: {ordinary:?}");
        for (around, words) in [
            (Around { in_job: true, ..well.clone() }, "inside a Slurm job"),
            (Around { jobs: vec!["7 (ann)".to_owned()], ..well.clone() }, "jobs 7 (ann) run on n1"),
            (
                Around { injections: vec!["9 (root) on n2".to_owned()], ..well.clone() },
                "job 9 (root) on n2 is another injection's",
            ),
        ] {
            let bad = bad(&args(fault), fault, "IDLE", &around);
            assert!(bad.len() == 1 && bad[0].contains(words), "{fault:?}: {words} in {bad:?}");
        }
        // Jobs may meet a drain when they are allowed to; a lost GPU never.
        let jobs = Around { jobs: vec!["7 (ann)".to_owned()], ..well.clone() };
        assert_eq!(bad(&with_jobs, fault, "IDLE", &jobs).is_empty(), fault != Fault::BusReset, "{fault:?}");
        for state in ["IDLE+DRAIN", "DOWN*", "IDLE*", "IDLE+REBOOT_REQUESTED"] {
            let refused = !bad(&args(fault), fault, state, &well).is_empty();
            assert_eq!(refused, fault != Fault::BusReset, "{fault:?} {state}");
        }
    }
}

/// What the bus reset looks at on the node, broken alone.
#[test]
fn every_precondition_of_a_bus_reset_refuses_alone() {
    let refused = |change: &dyn Fn(&Tree, &mut Args, &mut Node, &mut bool)| -> Vec<String> {
        let tree = Tree::new();
        let (gpu, bridge) = ("0000:18:00.0", "0000:17:00.0");
        tree.device(&format!("pci0000:16/{bridge}"), "0x060400", "0x1000");
        tree.device(&format!("pci0000:16/{bridge}/{gpu}"), "0x030200", "0x10de");
        let (mut args, mut node, mut local) = (args(Fault::BusReset), node("IDLE+RESERVED"), true);
        (args.confirm, args.confirm_device) = (Some("n1".to_owned()), Some(gpu.to_owned()));
        change(&tree, &mut args, &mut node, &mut local);
        let config = tree.0.path().join("clustermax.toml");
        let text = format!("[paths]\nsysfs = \"{0}/sys\"\nprocfs = \"{0}/proc\"\n", tree.0.path().display());
        fs::write(&config, text).unwrap();
        let host = Host::open(Some(&config), Some("n1")).unwrap();
        let site = Site { args: &args, local, node, host, folder: None };
        let mut checks = Vec::new();
        site.bus(&mut checks, &mut String::new());
        checks.into_iter().filter(|check| !check.ok).map(|check| check.text).collect()
    };
    assert_eq!(refused(&|_, _, _, _| {}), [] as [String; 0]);
    let bridge = "sys/devices/pci0000:16/0000:17:00.0";
    type Change<'a> = &'a dyn Fn(&Tree, &mut Args, &mut Node, &mut bool);
    let all: [(&str, Change); 15] = [
        ("n1 is another machine", &|_, _, _, local| *local = false),
        ("keep jobs away first", &|_, _, node, _| node.state = "IDLE".to_owned()),
        ("there is no GPU 1", &|_, args, _, _| args.gpu = 1),
        ("is not confirmed", &|_, args, _, _| args.confirm_device = None),
        ("name the same GPU twice", &|_, args, _, _| args.confirm_device = Some("0000:19:00.0".to_owned())),
        ("reboot the node", &|_, args, _, _| args.resume = true),
        ("locked down", &|tree, _, _, _| {
            fs::create_dir_all(tree.0.path().join("sys/kernel/security")).unwrap();
            fs::write(
                tree.0.path().join("sys/kernel/security/lockdown"),
                "none integrity [confidentiality]\n",
            )
            .unwrap();
        }),
        ("not nvidia or amdgpu", &|tree, _, _, _| {
            fs::remove_file(tree.0.path().join(bridge).join("0000:18:00.0/driver")).unwrap();
        }),
        ("boot console", &|tree, _, _, _| {
            fs::write(tree.0.path().join(bridge).join("0000:18:00.0/boot_vga"), "1\n").unwrap();
        }),
        // A network card beside it, and one behind a switch below the same bridge.
        ("also carries 0000:18:00.1", &|tree, _, _, _| {
            tree.device("pci0000:16/0000:17:00.0/0000:18:00.1", "0x020700", "0x15b3");
        }),
        ("also carries 0000:18:01.0, 0000:1a:00.0", &|tree, _, _, _| {
            tree.device("pci0000:16/0000:17:00.0/0000:18:01.0", "0x060400", "0x1000");
            tree.device("pci0000:16/0000:17:00.0/0000:18:01.0/0000:1a:00.0", "0x010802", "0x144d");
        }),
        ("reads all ones", &|tree, _, _, _| {
            let config = tree.0.path().join(bridge).join("config");
            let mut bytes = fs::read(&config).unwrap();
            bytes[0x3e..0x40].fill(0xff);
            fs::write(&config, bytes).unwrap();
        }),
        ("there is no bridge", &|tree, _, _, _| {
            fs::write(tree.0.path().join(bridge).join("class"), "0x060000\n").unwrap();
        }),
        ("processes 12 (dcgm) hold GPU", &|tree, _, _, _| {
            fs::write(tree.0.path().join("proc/12/comm"), "dcgm\n").unwrap();
            std::os::unix::fs::symlink("/dev/nvidia0", tree.0.path().join("proc/12/fd/3")).unwrap();
        }),
        ("serves an NVLink domain", &|tree, _, _, _| {
            fs::write(tree.0.path().join("proc/12/comm"), "nvidia-imex\n").unwrap();
        }),
    ];
    for (words, change) in all {
        let bad = refused(change);
        assert!(bad.len() == 1 && bad[0].contains(words), "{words} in {bad:?}");
    }
}

#[test]
fn words_are_whole() {
    let words = Words::of(&Options::default(), "n1", None, "0000:b3:00.0", "12ab34cd");
    for text in [
        "instance=\"n1\"",
        "n1: fault",
        "n1.cluster is down",
        "PCI:0000:b3:00",
        "PCI 0000:b3:00.0",
        "x 12ab34cd",
    ] {
        assert!(words.are_in(text), "{text}");
    }
    for text in ["n10", "gpu-n1", "n1-ib", "0000:b3:000", "", "n2"] {
        assert!(!words.are_in(text), "{text}");
    }
    let own = Options { alert_match: Some("GpuLost".to_owned()), ..Options::default() };
    let words = Words::of(&own, "n1", None, "", "");
    assert!(words.are_in("alert GpuLost on n7") && !words.are_in("n1"));
}

/// One of each source: what stands there before is no sign, what comes after is, once.
#[test]
fn every_source_shows_what_is_new_and_only_that() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let append = |name: &str, text: &str| {
        fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(path(name))
            .unwrap()
            .write_all(text.as_bytes())
            .unwrap();
    };
    append("events", "n1 an old fault\n");
    append("metrics", "# HELP xid\nDCGM_FI_DEV_XID_ERRORS{gpu=\"0\"} 0\n");
    append("alerts-now", "OldAlert n1\n");
    // An Alertmanager: one alert at first, two later.
    let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = server.local_addr().unwrap();
    let alerts = path("alerts.json");
    let alert = |name: &str| {
        format!(
            r#"{{"labels":{{"alertname":"{name}","instance":"n1:9400"}},"startsAt":"2026-12-01T00:00:00Z"}}"#
        )
    };
    fs::write(&alerts, format!("[{}]", alert("Old"))).unwrap();
    let served = alerts.clone();
    std::thread::spawn(move || {
        for mut stream in server.incoming().flatten() {
            let mut request = [0; 1024];
            let _ = stream.read(&mut request);
            let body = fs::read_to_string(&served).unwrap();
            let head =
                format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
            let _ = stream.write_all(format!("{head}{body}").as_bytes());
        }
    });
    let listen = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let options = Options {
        events: Some(path("events")),
        metrics: Some(path("metrics").display().to_string()),
        metrics_match: None,
        alert_file: Some(path("mail")),
        alert_command: Some(format!("cat {}", path("alerts-now").display())),
        alert_listen: Some(listen),
        alertmanager: Some(format!("http://{address}/")),
        alert_match: None,
    };
    assert!(options.alerts() && options.describe().len() == 6);
    let inbox = Inbox::open(listen).unwrap();
    let post = |body: &str| {
        let mut stream = std::net::TcpStream::connect(listen).unwrap();
        write!(stream, "POST / HTTP/1.1\r\nHost: x\r\ncontent-length: {}\r\n\r\n{body}", body.len()).unwrap();
        let mut said = String::new();
        stream.read_to_string(&mut said).unwrap();
        assert!(said.starts_with("HTTP/1.1 200"), "{said}");
    };
    post(r#"{"alerts":[{"labels":{"instance":"n1"}}]}"#);
    let words = Words::of(&options, "n1", None, "0000:b3:00.0", "12ab34cd");
    let poll = Duration::from_millis(20);
    let watch = Watch::start(&options, "xid", None, Some(&inbox), &words, "12ab34cd", poll).unwrap();
    std::thread::sleep(Duration::from_millis(60));
    append("events", "n2 another's fault\n");
    append("mail", "Subject: n10\n");
    assert!(watch.new_signs().is_empty());

    append("events", "Xid 79 on 0000:b3:00\n");
    append("mail", "Subject: n1 is down\n");
    append("metrics", "DCGM_FI_DEV_XID_ERRORS{gpu=\"0\"} 79\n");
    append("alerts-now", "NewAlert n1\n");
    fs::write(&alerts, format!("[{},{}]", alert("Old"), alert("GpuLost"))).unwrap();
    post(r#"{"alerts":[{"labels":{"instance":"n1"}}]}"#);
    let mut seen: Vec<(String, String)> = Vec::new();
    let begin = Instant::now();
    while seen.len() < 6 && begin.elapsed() < Duration::from_secs(30) {
        std::thread::sleep(poll);
        for sign in watch.new_signs() {
            assert!(sign.not_before <= sign.at, "{sign:?}");
            seen.push((format!("{} {}", sign.event, sign.by), sign.detail));
        }
    }
    seen.sort();
    let expected = [
        ("alert alertmanager", "GpuLost"),
        ("alert command", "NewAlert n1"),
        ("alert file", "Subject: n1 is down"),
        ("alert listen", "instance"),
        ("events events", "Xid 79"),
        ("metrics metrics", "} 79"),
    ];
    assert_eq!(seen.len(), expected.len(), "{seen:?}");
    for ((name, text), (source, word)) in seen.iter().zip(expected) {
        assert!(name == source && text.contains(word), "{name}: {text}");
    }
}

#[test]
fn a_source_that_does_not_answer_is_told_before_the_injection() {
    let words = Words::of(&Options::default(), "n1", None, "", "1");
    for options in [
        Options { alertmanager: Some("http://127.0.0.1:1".to_owned()), ..Options::default() },
        Options { alert_command: Some("exit 3".to_owned()), ..Options::default() },
        Options { metrics: Some("/nonexistent/prom".to_owned()), ..Options::default() },
    ] {
        let failure =
            Watch::start(&options, "xid", None, None, &words, "1", Duration::from_millis(20)).err().unwrap();
        assert!(failure.code == 3 && failure.message.starts_with("nothing was done: "), "{failure}");
    }
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
        // Identity, header type, and a Bridge Control with SERR# forwarding set.
        let mut config = [0_u8; 256];
        config[..2].copy_from_slice(&u16::from_str_radix(&vendor[2..], 16).unwrap().to_le_bytes());
        config[0x0e] = u8::from(class.starts_with("0x0604"));
        config[0x3e] = 0x02;
        fs::write(folder.join("config"), config).unwrap();
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
        let plan = self.whole_plan(gpu);
        let bad = plan.checks.into_iter().filter(|check| !check.ok).map(|check| check.text).collect();
        (bad, plan.writes)
    }

    fn whole_plan(&self, gpu: &str) -> bus::Plan {
        bus::plan(&self.0.path().join("sys"), &self.0.path().join("proc"), gpu, Duration::from_millis(300))
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
    let config = tree.0.path().join(format!("sys/devices/pci0000:16/{bridge}/config"));
    let config = config.canonicalize().unwrap();
    assert_eq!(
        writes,
        [
            format!("0x0042 to {} at 0x3e", config.display()),
            "waits 300 ms".to_owned(),
            format!("0x0002 to {} at 0x3e", config.display())
        ]
    );

    // A process, a lockdown, the console, a neighbour: each is named.
    std::os::unix::fs::symlink("/dev/nvidia0", tree.0.path().join("proc/12/fd/3")).unwrap();
    fs::write(tree.0.path().join("proc/12/comm"), "dcgm-exporter\n").unwrap();
    fs::create_dir_all(tree.0.path().join("proc/13")).unwrap();
    fs::write(tree.0.path().join("proc/13/comm"), "nvidia-imex\n").unwrap();
    let lockdown = tree.0.path().join("sys/kernel/security");
    fs::create_dir_all(&lockdown).unwrap();
    fs::write(lockdown.join("lockdown"), "none [integrity] confidentiality\n").unwrap();
    fs::write(tree.0.path().join(format!("sys/devices/pci0000:16/{bridge}/{gpu}/boot_vga")), "1\n").unwrap();
    tree.device(&format!("pci0000:16/{bridge}/0000:18:00.1"), "0x040300", "0x10de");
    let (bad, _) = tree.plan(gpu);
    for word in
        ["locked down", "console", "0000:18:00.1", "12 (dcgm-exporter)", "process 13 serves an NVLink domain"]
    {
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

/// The register and nothing else is written, and put back as it was.
#[test]
fn the_reset_is_one_bit_of_one_register() {
    let tree = Tree::new();
    let (gpu, bridge) = ("0000:18:00.0", "0000:17:00.0");
    tree.device(&format!("pci0000:16/{bridge}"), "0x060400", "0x1000");
    tree.device(&format!("pci0000:16/{bridge}/{gpu}"), "0x030200", "0x10de");
    let config = tree.0.path().join(format!("sys/devices/pci0000:16/{bridge}/config"));
    let before = fs::read(&config).unwrap();
    let plan = tree.whole_plan(gpu);
    let reset = plan.bridge.clone().unwrap();
    reset.hold().unwrap();
    let held = fs::read(&config).unwrap();
    let changed: Vec<usize> = (0..256).filter(|&at| held[at] != before[at]).collect();
    assert_eq!((changed, held[0x3e], held.len()), (vec![0x3e], 0x42, 256));
    // Whoever reads it now still knows what it was.
    assert_eq!(tree.whole_plan(gpu).bridge.unwrap(), reset);
    reset.release().unwrap();
    assert_eq!(fs::read(&config).unwrap(), before);
    assert!(plan.config_space().starts_with("gpu de10"), "{}", plan.config_space());
    assert!(plan.after(Duration::ZERO).contains("answers again, link unknown as before"));
    // A link that came back with fewer lanes is a finding.
    let device = tree.0.path().join(format!("sys/devices/pci0000:16/{bridge}/{gpu}"));
    let lanes = |width: &str| {
        fs::write(device.join("current_link_speed"), "32.0 GT/s PCIe\n").unwrap();
        fs::write(device.join("current_link_width"), width).unwrap();
    };
    lanes("16");
    let wide = tree.whole_plan(gpu);
    assert_eq!(wide.now_refused(), None);
    lanes("8");
    let after = wide.after(Duration::ZERO);
    assert!(after.contains("its link is 32.0 GT/s PCIe x8, it was 32.0 GT/s PCIe x16: a finding"), "{after}");
    // A process that came while the control run went on.
    std::os::unix::fs::symlink("/dev/nvidia0", tree.0.path().join("proc/12/fd/3")).unwrap();
    assert!(wide.now_refused().unwrap().contains("hold GPU device files now"));
    fs::write(tree.0.path().join(format!("sys/devices/pci0000:16/{bridge}/{gpu}/config")), [0xff; 256])
        .unwrap();
    assert!(plan.after(Duration::ZERO).contains("reboot the node"));

    // Not a bridge, or one that is gone itself.
    let mut other = before.clone();
    other[0x0e] = 0;
    fs::write(&config, &other).unwrap();
    assert!(tree.plan(gpu).0.iter().any(|text| text.contains("header type is 0")));
    fs::write(&config, [0xff; 256]).unwrap();
    assert!(!tree.plan(gpu).0.is_empty());
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
    crate::collect::stage(&crate::collect::Args::of("faults", dir.path())).unwrap();
    assert_eq!(fs::read(folder.records()).unwrap(), bytes);
    let list = include_str!("../../data/metrics.tsv");
    crate::record::Reader::open(&folder.records(), Some("r1"))
        .unwrap()
        .map(|record| record.unwrap().1)
        .inspect(|record| {
            let row =
                list.lines().find(|line| line.split('\t').next() == Some(record.metric.as_str())).unwrap();
            assert_eq!(row.split('\t').nth(2), Some(record.unit.as_str()), "{row}");
            let real = ["pcie", "rank"].contains(&record.params["kind"].to_string().as_str());
            let provenance = if real { Provenance::Measured } else { Provenance::Synthetic };
            assert_eq!(record.provenance, provenance, "{record:?}");
        })
        .collect()
}

fn document(events: &[(&str, f64)]) -> Document {
    Document {
        schema: SCHEMA.to_owned(),
        id: "12ab34cd".to_owned(),
        fault: "xid79".to_owned(),
        kind: "kernel".to_owned(),
        ladder: String::new(),
        expected: "drain".to_owned(),
        node: "n1".to_owned(),
        gpu: 3,
        pci: "0000:b3:00.0".to_owned(),
        line: "x".to_owned(),
        read_back: Some(true),
        started: "2026-11-30T20:01:00.5Z".to_owned(),
        within: 300.0,
        poll: 0.2,
        quiet: Some(Control { seconds: 10.0, drained: None, alarms: Vec::new() }),
        control: Some(Control { seconds: 10.0, drained: None, alarms: Vec::new() }),
        alerts: false,
        wait_return: None,
        named: None,
        before: "IDLE".to_owned(),
        looked: None,
        events: events
            .iter()
            .map(|(event, at)| Event {
                event: (*event).to_owned(),
                by: String::new(),
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
    assert_eq!(value(&records, "fault_control_quiet", &[("control", "nothing")]), Some(1.0));
    assert_eq!(value(&records, "fault_control_quiet", &[("control", "xid13_xid31")]), Some(1.0));
    assert_eq!(
        value(&records, "fault_action_right", &[("expected", "drain"), ("kind", "kernel")]),
        Some(1.0)
    );
    assert_eq!(value(&records, "fault_detected", &[]), Some(1.0));
    assert!((value(&records, "return_seconds", &[]).unwrap() - 1.2).abs() < 1e-9);
    assert!((value(&records, "event", &[("event", "drained")]).unwrap() - 61.7).abs() < 1e-6);

    let not = Document { id: "ffffffff".to_owned(), events: vec![seen.events[0].clone()], ..seen.clone() };
    let records = results(&[not]);
    assert_eq!(value(&records, "fault_drained", &[]), Some(0.0));
    assert_eq!(value(&records, "fault_detected", &[]), Some(0.0));
    assert_eq!(value(&records, "fault_action_right", &[]), Some(0.0));
    let time = records.iter().find(|record| record.metric == "fault_to_drain_seconds").unwrap();
    assert_eq!((time.value, time.state), (None, State::Unknown));
    assert!(time.detail.as_deref().unwrap().contains("within 300 s"), "{time:?}");

    // A controller that went away tells nothing of the time after; neither does a node that was drained before.
    let away = Document {
        looked: Some(40.0),
        id: "eeeeeeee".to_owned(),
        events: vec![seen.events[0].clone()],
        ..seen.clone()
    };
    let before = Document { before: "IDLE+DRAIN".to_owned(), looked: Some(299.9), ..away.clone() };
    for (document, words) in
        [(away, "not seen within 40.0 s, and from then on"), (before, "was IDLE+DRAIN before")]
    {
        let why = document.drain_untold().unwrap();
        assert!(why.contains(words) && document.timeline().contains(&format!("DRAIN     {why}")), "{why}");
        let records = results(&[document]);
        for metric in ["fault_drained", "fault_detected", "fault_action_right", "fault_to_drain_seconds"] {
            let one = records.iter().find(|record| record.metric == metric).unwrap();
            assert_eq!((one.value, one.state), (None, State::Unknown), "{one:?}");
            assert!(one.detail.as_deref().unwrap().contains(words), "{one:?}");
        }
    }
    let answered = Document { looked: Some(299.9), ..seen.clone() };
    assert_eq!(answered.drain_untold(), None);

    // A drain that comes after the end, or a node that could not be returned, is left to the second process.
    for (events, may_drain, settled) in [
        (&[("injected", 0.1)][..], true, false),
        (&[("injected", 0.1)], false, true),
        (&[("injected", 0.1), ("drained", 1.0)], true, true),
        (&[("injected", 0.1), ("drained", 1.0), ("return_failed", 2.0)], true, false),
        (&[("return_failed", 2.0)], false, false),
    ] {
        assert_eq!(document(events).settled(may_drain), settled, "{events:?}");
    }

    // A false alarm ends it before the fault.
    let alarm = Document {
        control: Some(Control {
            seconds: 2.0,
            drained: Some("IDLE+DRAIN xid 13".to_owned()),
            alarms: Vec::new(),
        }),
        events: Vec::new(),
        ..seen
    };
    let records = results(&[alarm]);
    assert_eq!(value(&records, "fault_control_quiet", &[("control", "xid13_xid31")]), Some(0.0));
    assert_eq!(records.len(), 2);
}

#[test]
fn records_of_alerts_of_a_return_and_of_a_programs_own_error_that_is_no_missing_drain() {
    let mut seen = document(&[
        ("injected", 0.01),
        ("drained", 30.0),
        ("alert", 40.0),
        ("alert", 45.0),
        ("replaced", 500.0),
    ]);
    for (at, by) in [(2, "listen"), (3, "alertmanager")] {
        seen.events[at].by = by.to_owned();
    }
    seen.alerts = true;
    seen.wait_return = Some(3600.0);
    let records = results(std::slice::from_ref(&seen));
    assert_eq!(value(&records, "fault_to_alert_seconds", &[("by", "listen")]), Some(40.0));
    assert_eq!(value(&records, "fault_to_alert_seconds", &[("by", "alertmanager")]), Some(45.0));
    assert_eq!(value(&records, "fault_alerted", &[]), Some(1.0));
    assert_eq!(value(&records, "fault_to_return_seconds", &[("how", "replaced")]), Some(500.0));
    assert_eq!(value(&records, "fault_returned", &[("within", "3600")]), Some(1.0));
    // A control run of 10 s says little about a drain after 30 s.
    let drain = records.iter().find(|record| record.metric == "fault_to_drain_seconds").unwrap();
    assert!(
        drain.detail.as_deref().unwrap().contains("marked: the control run lasted only 10 s"),
        "{drain:?}"
    );
    assert!(seen.timeline().contains("repeat it with --control 30"), "{}", seen.timeline());

    seen.events.truncate(2);
    let text = seen.timeline();
    for line in [
        "detected     30.000 s  (not at 29.800 s) by drained",
        "alert     not seen within 300 s",
        "return    not seen within 3600 s",
    ] {
        assert!(text.contains(line), "{line} in\n{text}");
    }
    let records = results(&[seen]);
    assert_eq!(value(&records, "fault_alerted", &[]), Some(0.0));
    assert_eq!(value(&records, "fault_returned", &[]), Some(0.0));
    assert_eq!(value(&records, "fault_to_return_seconds", &[]), None);

    let quiet = Document {
        fault: "xid31".to_owned(),
        expected: "none".to_owned(),
        ..document(&[("injected", 0.01)])
    };
    let records = results(std::slice::from_ref(&quiet));
    assert_eq!(value(&records, "fault_action_right", &[("expected", "none")]), Some(1.0));
    for metric in ["fault_drained", "fault_to_drain_seconds"] {
        assert!(
            !records.iter().any(|record| record.metric == metric),
            "{metric} is for faults of the hardware"
        );
    }
    let wrong = Document { events: document(&[("injected", 0.01), ("drained", 3.0)]).events, ..quiet };
    assert_eq!(value(&results(&[wrong]), "fault_action_right", &[]), Some(0.0));
}

/// A cluster that does not ask DCGM is not at fault for a DCGM fault, when it notices the same one in the kernel log.
#[test]
fn a_rung_that_nobody_looks_at_counts_only_when_no_other_was_noticed() {
    let rung = |id: &str, kind: &str, events: &[(&str, f64)]| Document {
        id: id.to_owned(),
        kind: kind.to_owned(),
        ladder: "l1".to_owned(),
        ..document(events)
    };
    let dcgm = rung("aaaaaaaa", "dcgm", &[("injected", 0.1)]);
    let kernel = rung("bbbbbbbb", "kernel", &[("injected", 0.1), ("drained", 4.0)]);
    let flags = |documents: &[Document]| {
        let records = results(documents);
        let of = |record: &&Record| record.metric == "fault_drained";
        records.iter().filter(of).map(|record| record.value).collect::<Vec<_>>()
    };
    assert_eq!(flags(&[dcgm.clone(), kernel.clone()]), [Some(1.0)]);
    assert_eq!(flags(std::slice::from_ref(&dcgm)), [Some(0.0)], "nobody noticed anything");
    // Injected for itself, it counts.
    let alone = Document { ladder: String::new(), ..dcgm };
    assert_eq!(flags(&[alone, kernel]), [Some(0.0), Some(1.0)]);
}

#[test]
fn records_of_a_rank_that_was_stopped() {
    let seen = Document {
        fault: "stop-rank".to_owned(),
        kind: "rank".to_owned(),
        expected: "none".to_owned(),
        named: Some(true),
        quiet: None,
        control: None,
        ..document(&[("injected", 0.1), ("found", 17.0)])
    };
    let records = results(&[seen]);
    assert_eq!(value(&records, "fault_named", &[("kind", "rank")]), Some(1.0));
    assert_eq!(value(&records, "fault_detect_seconds", &[("by", "suite")]), Some(17.0));
    assert_eq!(value(&records, "fault_action_right", &[]), Some(1.0));
    assert!(!records.iter().any(|record| record.metric == "fault_drained"));
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
        .args(["-c", agent::AGENT, "clustermax-inject"])
        .arg(tree.0.path().join("sys"))
        .args(["dcgm", "0x10de"])
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
