//! Checks of the host and its disks: sources against trees, rules against facts, and the kernel's lines about them.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail by panicking"
)]

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use common::{Node, data, done, event, event_of, of, once, put, quiet, told, tree, with_events};
use healthcheck::catalogue::CATALOGUE;
use healthcheck::facts::{
    Clock, DcgmDiag, DcgmTest, Facts, IbPort, JobHere, Leftover, MemoryController, Mount, Nvme, NvmeSmart,
    NvmlFacts, NvmlGpu, Processes, Raid, Reading, SeenEvent, Unit,
};
use healthcheck::mode::Mode;
use healthcheck::source::{disks, host};
use healthcheck::state::State;
use healthcheck::verdict::{Action, Fault, Status};

const DAY: f64 = 24.0 * 3600.0;

fn job(id: &str, uid: u32) -> JobHere {
    JobHere { job: id.into(), gpus: vec![], uid }
}

fn map<T>(name: &str, value: T) -> Reading<BTreeMap<String, T>> {
    Reading::Value(BTreeMap::from([(name.to_string(), value)]))
}

#[test]
fn the_host_is_read_from_its_trees() {
    let root = tree("sysfs/system.tsv");
    let (sys, proc) = (root.path().join("sys"), root.path().join("proc"));
    put(&sys.join("devices/system/cpu/online"), "0-63,128-191");
    put(&proc.join("cpuinfo"), "processor\t: 0\nflags\t\t: fpu hypervisor lm");
    put(&proc.join("7/stat"), "7 (a) b) Z 1 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 1");
    put(&proc.join("8/stat"), "8 (b) S 1 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 12 0 1");
    put(&proc.join("sys/kernel/threads-max"), "1000");
    put(&proc.join("sys/kernel/pid_max"), "500");
    let h = host::read(&sys, &proc);
    let mc = MemoryController { corrected: Reading::Value(3), uncorrectable: Reading::Value(0) };
    assert_eq!(h.edac, map("mc0", mc));
    assert_eq!((h.cpus, h.clocksource), (Reading::Value(128), Reading::Value("tsc".into())));
    assert_eq!(h.governors, BTreeMap::from([("performance".to_string(), 1)]));
    assert_eq!(h.virtual_machine, Reading::Value(true));
    let p = h.processes.value().unwrap();
    assert_eq!((p.zombies, p.threads, p.threads_max), (1, 13, Some(500)));
    let nothing = host::read(&root.path().join("a"), &root.path().join("b"));
    assert_eq!((nothing.edac, nothing.cpus), (Reading::Unsupported, Reading::Unsupported));
    assert!(matches!(nothing.processes, Reading::Unknown(_)));
    assert!(matches!(nothing.virtual_machine, Reading::Unknown(_)));
}

#[test]
fn disks_are_read_from_their_trees() {
    let root = tree("sysfs/system.tsv");
    let (sys, proc) = (root.path().join("sys"), root.path().join("proc"));
    fs::copy(data("proc/mdstat.txt"), proc.join("mdstat")).unwrap();
    put(&sys.join("block/md1/md/degraded"), "1");
    put(&sys.join("block/md9/md/level"), "raid5");
    put(&sys.join("block/nvme0n1/size"), "1");
    let d = disks::read(&sys, &proc);
    let nvme = d.nvme.value().unwrap();
    assert_eq!(nvme["nvme4"].state, Reading::Value("dead".into()));
    let raid = d.raid.value().unwrap();
    assert_eq!((raid["md1"].degraded, raid["md1"].failed.len()), (Some(1), 1));
    assert_eq!((raid["md9"].level.as_str(), raid.len()), ("raid5", 3));
    let none = disks::read(&root.path().join("a"), &root.path().join("b"));
    assert_eq!((none.nvme, none.raid), (Reading::Unsupported, Reading::Unsupported));
}

#[test]
fn memory_errors_by_their_rise() {
    let facts = |ue: u64, ce: u64| {
        let mut f = quiet();
        let mc = MemoryController { corrected: Reading::Value(ce), uncorrectable: Reading::Value(ue) };
        f.node.edac = map("mc0", mc);
        f.counters.insert("edac/mc0/uncorrectable".into(), ue);
        f.counters.insert("edac/mc0/corrected".into(), ce);
        f
    };
    let mut node = Node::new("");
    assert_eq!(node.said("host.edac", 0.0, &facts(0, 5000)), [], "since boot");
    assert_eq!(node.said("host.edac", 60.0, &facts(0, 5100)), []);
    assert_eq!(node.said("host.edac", 60.0, &facts(0, 5101)), [(Status::Warn, "edacce".into())]);
    let fail = node.of("host.edac", 60.0, &facts(1, 5101));
    assert_eq!((fail[0].status, fail[0].action, fail[0].drains()), (Status::Fail, Action::Repair, true));
    assert_eq!(node.said("host.edac", DAY + 60.0, &facts(1, 5101)), []);
    // Found at the first look: from before it, nobody knows when.
    let mut other = Node::new("");
    assert_eq!(other.said("host.edac", 0.0, &facts(1, 0)), [(Status::Warn, "edacue".into())]);
    assert_eq!(once("", "host.edac", |_| {}).0, Status::Unsupported);
    assert_eq!(once("", "host.edac", |f| f.node.edac = Reading::Unknown("no".into())).0, Status::Unknown);
}

#[test]
fn services_of_the_profile() {
    let toml = "[profile]\nservices = [\"munge\"]\n";
    let unit = |active: &str, load: &str| {
        let unit = Unit { load: load.into(), active: active.into(), sub: "x".into() };
        let mut f = quiet();
        f.node.services = map("munge.service", unit);
        f
    };
    for active in ["active", "reloading", "activating"] {
        assert_eq!(Node::new(toml).said("host.services", 0.0, &unit(active, "loaded")), [], "{active}");
    }
    let mut node = Node::new(toml);
    assert_eq!(node.said("host.services", 0.0, &unit("failed", "loaded"))[0].0, Status::Warn);
    let second = node.of("host.services", 60.0, &unit("failed", "loaded"));
    assert_eq!((second[0].status, second[0].action), (Status::Fail, Action::RestartService));
    assert_eq!(second[0].device.as_ref().unwrap().name, "munge.service");
    let missing = Node::new(toml).of("host.services", 0.0, &unit("inactive", "not-found"));
    assert_eq!(missing[0].text, "service is not-found");
    assert_eq!(once(toml, "host.services", |_| {}).0, Status::Unsupported, "no systemd");
    assert_eq!(once("", "host.services", |f| *f = unit("failed", "loaded")).0, Status::Unsupported);
    assert_eq!(
        once(toml, "host.services", |f| f.node.services = Reading::Hung("dbus".into())).0,
        Status::Unknown
    );
}

#[test]
fn the_clock() {
    let look = |toml: &str, synchronised: bool, offset: f64, source: &str| {
        let (_, found) = once(toml, "host.clock", |f| {
            f.node.clock = Reading::Value(Clock { synchronised, offset, max_error: 0.1 });
            f.node.clocksource = Reading::Value(source.into());
        });
        found.into_iter().map(|f| (f.status, f.token)).collect::<Vec<_>>()
    };
    let warn = |token: &str| vec![(Status::Warn, token.to_string())];
    assert_eq!(look("", true, 0.9, "tsc"), []);
    assert_eq!(look("", false, 0.0, "kvm-clock"), warn("clock"));
    assert_eq!(look("", true, -1.5, "arch_sys_counter"), warn("clock"));
    assert_eq!(look("", true, 0.0, "hpet"), warn("clocksrc"));
    assert_eq!(look("[profile]\nclocksource = \"tsc\"\n", true, 0.0, "kvm-clock"), warn("clocksrc"));
    assert_eq!(once("", "host.clock", |f| f.node.clock = Reading::Unsupported).0, Status::Unsupported);
    assert_eq!(once("", "host.clock", |f| f.node.clock = Reading::Unknown("no".into())).0, Status::Unknown);
}

#[test]
fn cpus_against_the_profile() {
    let toml = "[profile]\ncpu_count = 128\ncpu_governor = \"performance\"\n";
    let look = |cpus: u32, governor: &str| {
        let (_, found) = once(toml, "host.cpu", |f| {
            f.node.cpus = Reading::Value(cpus);
            f.node.governors = BTreeMap::from([(governor.to_string(), 128)]);
        });
        found.into_iter().map(|f| (f.status, f.token)).collect::<Vec<_>>()
    };
    assert_eq!(look(128, "performance"), []);
    assert_eq!(look(127, "performance"), [(Status::Warn, "cpus".into())]);
    assert_eq!(look(128, "powersave"), [(Status::Warn, "governor".into())]);
    // A virtual machine scales nothing.
    assert_eq!(once(toml, "host.cpu", |_| {}).0, Status::Pass);
    assert_eq!(once("", "host.cpu", |_| {}).0, Status::Unsupported);
    assert_eq!(once(toml, "host.cpu", |f| f.node.cpus = Reading::Unknown("no".into())).0, Status::Unknown);
}

#[test]
fn processes_without_a_job() {
    let look = |toml: &str, p: Processes| {
        let (_, found) = once(toml, "host.stray", |f| {
            f.jobs = vec![job("7", 1001)];
            f.node.processes = Reading::Value(p);
        });
        found.into_iter().map(|f| (f.status, f.token.clone(), f.drains())).collect::<Vec<_>>()
    };
    let of_users = || Processes { by_user: BTreeMap::from([(1001, 5), (1002, 2)]), ..Processes::default() };
    let strict = "[profile]\nusers_need_jobs = true\n";
    assert_eq!(look("", of_users()), [], "people log in where the profile does not say otherwise");
    assert_eq!(look(strict, of_users()), [(Status::Warn, "stray".into(), false)]);
    let zombies = |zombies| Processes { zombies, ..Processes::default() };
    assert_eq!(look("", zombies(99)), []);
    assert_eq!(look("", zombies(100)), [(Status::Warn, "zombies".into(), false)]);
    let threads = |threads| Processes { threads, threads_max: Some(1000), ..Processes::default() };
    assert_eq!(look("", threads(899)), []);
    assert_eq!(look("", threads(900)), [(Status::Warn, "pids".into(), false)]);
    assert_eq!(
        once("", "host.stray", |f| f.node.processes = Reading::Unknown("no".into())).0,
        Status::Unknown
    );
    assert_eq!(once("", "host.stray", |f| f.node.processes = Reading::Unsupported).0, Status::Unsupported);
}

#[test]
fn pitfall_47_an_unkillable_step_is_no_sick_node() {
    // Leftover processes are shown and never take the node away.
    let mut facts = quiet();
    facts.node.processes = Reading::Value(Processes {
        by_user: BTreeMap::from([(1002, 200)]),
        zombies: 500,
        ..Processes::default()
    });
    let mut node = Node::new("[profile]\nusers_need_jobs = true\n");
    for _ in 0..5 {
        let found = node.of("host.stray", 60.0, &facts);
        assert!(!found.is_empty() && found.iter().all(|f| f.status == Status::Warn && !f.drains()));
    }
}

#[test]
fn shared_memory_of_users_whose_last_job_ended() {
    let mut facts = quiet();
    facts.node.shm = Reading::Value(BTreeMap::from([
        (1001, Leftover { files: 3, bytes: 5 << 20 }),
        (1002, Leftover { files: 1, bytes: 1 << 20 }),
    ]));
    // Job 7 of user 1001 ends; user 1002 has a job that goes on.
    facts.jobs = vec![job("7", 1001), job("8", 1002)];
    facts.own_job = Some("7".into());
    let found = of(&Node::new("").pass_in(Mode::Epilog, 0.0, &facts), "host.shm");
    assert_eq!(found.len(), 1);
    assert!(found[0].text.starts_with("user 1001 left 3 files, 5 MiB") && !found[0].drains());
    facts.jobs.push(job("9", 1001));
    assert_eq!(
        of(&Node::new("").pass_in(Mode::Epilog, 0.0, &facts), "host.shm"),
        [],
        "another job of that user"
    );
    for (shm, status) in
        [(Reading::Unsupported, Status::Unsupported), (Reading::Unknown("no".into()), Status::Unknown)]
    {
        facts.node.shm = shm;
        assert_eq!(done(&Node::new("").pass_in(Mode::Epilog, 0.0, &facts), "host.shm"), status);
    }
}

#[test]
fn shared_memory_is_read_without_following_links() {
    let dir = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink("/etc", dir.path().join("link")).unwrap();
    fs::write(dir.path().join("own"), "x").unwrap();
    let Reading::Value(by_owner) = host::shm(dir.path()) else { panic!("not read") };
    assert!(by_owner.keys().all(|uid| *uid >= host::FIRST_USER), "system users are nobody's leftovers");
    assert_eq!(host::shm(&dir.path().join("none")), Reading::Unsupported);
}

#[test]
fn nvme_disks() {
    let nvme = |states: &[&str]| {
        let all = states.iter().enumerate().map(|(i, s)| {
            (
                format!("nvme{i}"),
                Nvme {
                    state: Reading::Value((*s).to_string()),
                    smart: Reading::Unsupported,
                    ..Nvme::default()
                },
            )
        });
        Reading::Value(all.collect())
    };
    let look = |toml: &str, states: &[&str]| {
        let (_, found) = once(toml, "disk.nvme", |f| f.node.nvme = nvme(states));
        found.into_iter().map(|f| (f.status, f.token)).collect::<Vec<_>>()
    };
    let four = "[profile]\nnvme_count = 2\n";
    assert_eq!(look(four, &["live", "live"]), []);
    assert_eq!(look(four, &["live", "dead"]), [(Status::Fail, "nvmedown".into())]);
    assert_eq!(look(four, &["live", "resetting"]), [(Status::Warn, "nvmedown".into())]);
    assert_eq!(look(four, &["live"]), [(Status::Fail, "nvmecount".into())]);
    assert_eq!(once(four, "disk.nvme", |_| {}).1[0].token, "nvmecount", "none at all is no reason to pass");
    assert_eq!(once("", "disk.nvme", |_| {}).0, Status::Unsupported);
    assert_eq!(once("", "disk.nvme", |f| f.node.nvme = Reading::Hung("no".into())).0, Status::Unknown);
}

#[test]
fn raid_arrays() {
    let look = |array: Raid| {
        let (_, found) = once("", "disk.raid", |f| f.node.raid = map("md0", array));
        found.into_iter().map(|f| f.status).collect::<Vec<_>>()
    };
    let of = |level: &str| Raid { level: level.into(), active: true, ..Raid::default() };
    assert_eq!(look(of("raid0")), []);
    assert_eq!(look(Raid { failed: vec!["nvme1n1".into()], ..of("raid0") }), [Status::Fail]);
    assert_eq!(look(Raid { active: false, ..of("raid0") }), [Status::Fail]);
    assert_eq!(look(Raid { members: Some((2, 1)), ..of("raid1") }), [Status::Warn]);
    assert_eq!(look(Raid { degraded: Some(1), ..of("raid5") }), [Status::Warn]);
    assert_eq!(look(Raid { members: Some((2, 2)), degraded: Some(0), ..of("raid1") }), []);
    assert_eq!(once("", "disk.raid", |_| {}).0, Status::Unsupported);
    assert_eq!(once("", "disk.raid", |f| f.node.raid = Reading::Unknown("no".into())).0, Status::Unknown);
}

fn mounts(facts: &mut Facts, mounts: &[(&str, &str, &str, bool)]) {
    let one = |(point, source, fstype, writable): &(&str, &str, &str, bool)| {
        let mount = Mount { source: (*source).into(), fstype: (*fstype).into(), writable: *writable };
        ((*point).to_string(), mount)
    };
    facts.mounts = Reading::Value(mounts.iter().map(one).collect());
}

#[test]
fn a_watched_file_system_that_is_read_only() {
    let toml = "[[profile.space]]\npath = \"/scratch/tmp\"\n";
    let look = |toml: &str, writable: bool| {
        once(toml, "fs.ro", |f| {
            mounts(f, &[("/", "/dev/sda1", "ext4", true), ("/scratch", "/dev/nvme9n1p1", "ext4", writable)]);
        })
    };
    let (_, found) = look(toml, false);
    assert_eq!(
        (found[0].status, found[0].device.as_ref().unwrap().name.as_str()),
        (Status::Fail, "/scratch")
    );
    assert_eq!(look(toml, true), (Status::Pass, vec![]));
    assert_eq!(look("", false), (Status::Pass, vec![]), "nobody said that it must be writable");
    assert_eq!(once("", "fs.ro", |f| f.mounts = Reading::Unknown("no".into())).0, Status::Unknown);
    assert_eq!(once("", "fs.ro", |f| f.mounts = Reading::Unsupported).0, Status::Unsupported);
}

#[test]
fn a_read_only_line_counts_with_its_mount() {
    let look = |line: &str, table: &[(&str, &str, &str, bool)]| {
        let (_, found) = once("", "fs.ro", |f| {
            mounts(f, table);
            f.node.mapped = BTreeMap::from([("dm-0".to_string(), "vg-data".to_string())]);
            with_events(vec![event(line, 5)])(f);
        });
        found.into_iter().map(|f| (f.status, f.drains())).collect::<Vec<_>>()
    };
    let ext4 = "EXT4-fs (nvme0n1p2): Remounting filesystem read-only";
    assert_eq!(look(ext4, &[("/raid", "/dev/nvme0n1p2", "ext4", false)]), [(Status::Fail, true)]);
    assert_eq!(
        look(ext4, &[("/raid", "/dev/nvme0n1p2", "ext4", true)]),
        [(Status::Warn, false)],
        "mounted anew"
    );
    assert_eq!(look(ext4, &[]), [(Status::Warn, false)], "not mounted any more");
    let xfs = "XFS (dm-0): Filesystem has been shut down due to log error (0x2).";
    assert_eq!(look(xfs, &[("/data", "/dev/mapper/vg-data", "xfs", true)]), [(Status::Fail, true)]);
}

#[test]
fn other_lines_of_the_sample_mean_what_they_should() {
    let seen = told("kmsg/kmsg-other.log");
    let seen: Vec<_> = seen.iter().map(|(n, t, d)| (*n, t.as_str(), d.as_str())).collect();
    assert_eq!(
        seen,
        [
            (1, "mcelog", "-"),
            (2, "mce", "-"),
            (3, "edacce", "MC0"),
            (4, "edacue", "MC1"),
            (5, "badpage", "-"),
            (6, "hungtask", "-"),
            (8, "lockup", "-"),
            (9, "nfsslow", "10.0.0.9"),
            (10, "nfsslow", "10.0.0.9"),
            (11, "nfsslow", "10.0.0.9"),
            (12, "nvmeio", "nvme3"),
            (13, "nvmedown", "nvme3"),
            (14, "nvmedown", "nvme3"),
            (15, "diskio", "nvme3n1"),
            (16, "fsro", "nvme0n1p2"),
        ]
    );
    assert_eq!(told("kmsg/kmsg-benign.log"), []);
}

/// Status, token and drain of a check's findings for some events.
fn judged(toml: &str, check: &str, events: Vec<SeenEvent>) -> Vec<(Status, String, bool)> {
    let (_, found) = once(toml, check, with_events(events));
    found.into_iter().map(|f| (f.status, f.token.clone(), f.drains())).collect()
}

const LOCKUP: &str = "watchdog: BUG: soft lockup - CPU#3 stuck for 26s! [nfsd:4321]";

#[test]
fn one_lockup_warns_two_within_two_minutes_fail() {
    let second = 1_000_000;
    assert_eq!(
        judged("", "host.kernel", vec![event(LOCKUP, second)]),
        [(Status::Warn, "lockup".into(), false)]
    );
    // Days apart, and both in the log at the first look.
    let mut state = State::default();
    state.add_events(vec![event(LOCKUP, second), event(LOCKUP, 200 * second)]);
    assert_eq!(state.events.len(), 2);
    let apart = judged("", "host.kernel", state.events.clone());
    assert!(apart.iter().all(|(s, ..)| *s == Status::Warn), "{apart:?}");
    state.add_events(vec![event(LOCKUP, 300 * second)]);
    let near = judged("", "host.kernel", state.events.clone());
    assert!(near.contains(&(Status::Fail, "lockup".into(), true)), "{near:?}");
    // The first was reported by a pass of its own.
    let mut state = State::default();
    state.add_events(vec![event(LOCKUP, second)]);
    state.events[0].handled = true;
    state.add_events(vec![event(LOCKUP, 100 * second)]);
    assert_eq!(judged("", "host.kernel", state.events), [(Status::Fail, "lockup".into(), true)]);
}

#[test]
fn machine_checks_and_panics_fail_and_hung_tasks_warn() {
    let of = |line: &str| judged("", "host.kernel", vec![event(line, 5)]);
    let mce = "mce: [Hardware Error]: CPU 12: Machine Check Exception: 5 Bank 7: be00000000800400";
    assert_eq!(of(mce), [(Status::Fail, "mce".into(), true)]);
    assert_eq!(of("mce: [Hardware Error]: Machine check events logged"), []);
    assert_eq!(of("Kernel panic - not syncing: Fatal exception"), [(Status::Fail, "panic".into(), true)]);
    let hung = "INFO: task nvidia-smi:620917 blocked for more than 120 seconds.";
    assert_eq!(of(hung), [(Status::Warn, "hungtask".into(), false)]);
    let stall = "rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:";
    assert_eq!(of(stall), [(Status::Warn, "rcustall".into(), false)]);
    let (status, _) = once("", "host.kernel", |f| f.kernel = Reading::Unknown("no log".into()));
    assert_eq!(status, Status::Unknown);
    assert_eq!(once("", "host.kernel", |_| {}).0, Status::Pass);
}

#[test]
fn a_process_name_that_quotes_the_kernel_raises_nothing() {
    let hung = event("INFO: task Machine Check E:7 blocked for more than 120 seconds.", 5);
    assert_eq!(judged("", "host.kernel", vec![hung]), [(Status::Warn, "hungtask".into(), false)]);
}

#[test]
fn a_log_that_nodes_share_drains_none_of_them_in_doubt() {
    let shared = "[paths]\nkmsg_shared = true\n";
    let mce = event("mce: [Hardware Error]: CPU 12: Machine Check Exception: 5 Bank 7: be", 5);
    assert_eq!(judged(shared, "host.kernel", vec![mce.clone()]), [(Status::Warn, "mce".into(), false)]);
    let twice = vec![SeenEvent { count: 2, ..event(LOCKUP, 5) }];
    assert_eq!(judged(shared, "host.kernel", twice), [(Status::Warn, "lockup".into(), false)]);
    // What warns is most likely another node's.
    let hung = event("INFO: task a:1 blocked for more than 120 seconds.", 5);
    assert_eq!(judged(shared, "host.kernel", vec![hung.clone()]), []);
    // The node's own records file is nobody else's.
    let own = |e: SeenEvent| SeenEvent { key: "/srv/n1/kmsg boot/5".into(), ..e };
    assert_eq!(judged(shared, "host.kernel", vec![own(mce)]), [(Status::Fail, "mce".into(), true)]);
    assert_eq!(judged(shared, "host.kernel", vec![own(hung)]), [(Status::Warn, "hungtask".into(), false)]);
    // mc1 is on every node.
    let ue = event("EDAC MC1: 1 UE memory read error on CPU_SrcID#1_MC#0_Chan#1_DIMM#1", 5);
    let look = |toml: &str, has: bool| {
        let (_, found) = once(toml, "host.edac", |f| {
            let all = if has { vec![("mc1".to_string(), MemoryController::default())] } else { vec![] };
            f.node.edac = Reading::Value(all.into_iter().collect());
            with_events(vec![ue.clone()])(f);
        });
        found.into_iter().map(|f| (f.status, f.drains())).collect::<Vec<_>>()
    };
    assert_eq!(look("", true), [(Status::Fail, true)]);
    assert_eq!(look("", false), [(Status::Warn, false)]);
    assert_eq!(look(shared, true), [(Status::Warn, false)]);
    assert_eq!(look(shared, false), []);
}

#[test]
fn records_of_user_space_count_only_where_the_site_wants_them() {
    let record = "11,5,5,-;Kernel panic - not syncing: injected";
    assert_eq!(judged("", "host.kernel", vec![event_of(record)])[0].0, Status::Fail);
    let refuse = "[xid]\naccept_synthetic = false\n";
    assert_eq!(judged(refuse, "host.kernel", vec![event_of(record)])[0].0, Status::Warn);
}

#[test]
fn an_event_is_acted_on_once() {
    let mce = event("mce: [Hardware Error]: CPU 12: Machine Check Exception: 5 Bank 7: be", 5);
    let seen = judged("", "host.kernel", vec![SeenEvent { handled: true, ..mce }]);
    assert_eq!(seen, [(Status::Warn, "mce".into(), false)]);
    let nvme = SeenEvent { handled: true, ..event("nvme nvme3: controller is down; will reset: x", 5) };
    assert_eq!(judged("", "disk.nvme", vec![nvme]), [], "the state says what is wrong by now");
}

#[test]
fn out_of_memory_is_told_to_its_job_and_fails_no_node() {
    let line = "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=step_0,mems_allowed=0,oom_memcg=/slurm/uid_1000/job_77/step_0,task_memcg=/slurm/uid_1000/job_77/step_0/task_0,task=python3,pid=1,uid=1000";
    let look = |jobs: Vec<JobHere>, line: &str| {
        let (_, found) = once("", "host.oom", |f| {
            f.jobs = jobs;
            with_events(vec![event(line, 5)])(f);
        });
        found
    };
    let found = look(vec![job("77", 1000)], line);
    assert_eq!(
        (found[0].action, found[0].fault, found[0].drains()),
        (Action::TellUser, Fault::Program, false)
    );
    assert_eq!(found[0].device.as_ref().unwrap().name, "job77");
    assert_eq!(look(vec![job("78", 1000)], line), [], "a job of another node, or gone");
    let node =
        look(vec![], "Out of memory: Killed process 4711 (python3) total-vm:1kB, anon-rss:1kB, file-rss:0kB");
    assert_eq!((node[0].status, node[0].token.as_str()), (Status::Warn, "oom"));
    let slurmd =
        look(vec![], "Out of memory: Killed process 4711 (slurmd) total-vm:1kB, anon-rss:1kB, file-rss:0kB");
    assert_eq!((slurmd[0].token.as_str(), slurmd[0].drains()), ("oomservice", false));
    assert_eq!(look(vec![], "Memory cgroup out of memory: Killed process 4711 (python3) total-vm:1kB"), []);
    assert_eq!(once("", "host.oom", |f| f.kernel = Reading::Unknown("no".into())).0, Status::Unknown);
}

#[test]
fn a_disk_line_counts_with_the_disks_state() {
    let look = |line: &str, state: &str| {
        let (_, found) = once("", "disk.nvme", |f| {
            f.node.nvme = map(
                "nvme3",
                Nvme { state: Reading::Value(state.into()), smart: Reading::Unsupported, ..Nvme::default() },
            );
            with_events(vec![event(line, 5)])(f);
        });
        found.into_iter().filter(|f| f.event.is_some()).map(|f| (f.status, f.token)).collect::<Vec<_>>()
    };
    let down = "nvme nvme3: controller is down; will reset: CSTS=0xffffffff, PCI_STATUS=0xffff";
    assert_eq!(look(down, "dead"), [(Status::Fail, "nvmedown".into())]);
    assert_eq!(look(down, "live"), [(Status::Warn, "nvmedown".into())], "the reset helped");
    assert_eq!(
        look("nvme nvme3: I/O 123 QID 5 timeout, aborting", "live"),
        [(Status::Warn, "nvmeio".into())]
    );
    let io = "I/O error, dev nvme3n1, sector 2048 op 0x1:(WRITE) flags 0x800 phys_seg 1 prio class 0";
    assert_eq!(look(io, "live"), [(Status::Warn, "diskio".into())]);
    let raid = |failed: &[&str]| {
        let (_, found) = once("", "disk.raid", |f| {
            let failed = failed.iter().map(|m| (*m).to_string()).collect();
            f.node.raid = map("md0", Raid { level: "raid0".into(), active: true, failed, ..Raid::default() });
            with_events(vec![event("md/raid0:md0: Disk failure on nvme1n1, disabling device.", 5)])(f);
        });
        found.into_iter().filter(|f| f.event.is_some()).map(|f| f.status).collect::<Vec<_>>()
    };
    assert_eq!((raid(&["nvme1n1"]), raid(&[])), (vec![Status::Fail], vec![Status::Warn]));
}

#[test]
fn pitfall_42_a_file_server_that_hangs_and_comes_back() {
    let slow = || event("nfs: server 10.0.0.9 not responding, still trying", 5);
    let look = |events: Vec<SeenEvent>, probe: Option<Reading<()>>| {
        let (_, found) = once("", "fs.stale", |f| {
            mounts(f, &[("/home", "10.0.0.9:/home", "nfs4", true)]);
            f.mount_probes = probe.map(|p| ("/home".to_string(), p)).into_iter().collect();
            with_events(events)(f);
        });
        found.into_iter().filter(|f| f.token == "nfsslow").map(|f| (f.status, f.drains())).collect::<Vec<_>>()
    };
    assert_eq!(look(vec![slow()], None), [(Status::Warn, false)]);
    assert_eq!(look(vec![slow()], Some(Reading::Hung("3 s".into()))), [(Status::Warn, false)]);
    assert_eq!(look(vec![slow()], Some(Reading::Value(()))), [], "it answers now, whatever the log lost");
    let mut state = State::default();
    state.add_events(vec![slow()]);
    assert_eq!(look(state.events.clone(), None).len(), 1);
    state.add_events(vec![event("nfs: server 10.0.0.8 OK", 6)]);
    assert_eq!(look(state.events.clone(), None).len(), 1, "another server");
    state.add_events(vec![event("nfs: server 10.0.0.9 OK", 7)]);
    assert_eq!(look(state.events, None), []);
}

#[test]
fn pitfall_16_unknown_hardware_is_no_fault() {
    // Devices that no profile names, of kinds that nobody expected.
    let mut facts = quiet();
    facts.ib = map("mlx5_0/1", IbPort { board: Reading::Value("new".into()), ..IbPort::default() });
    facts.node.nvme = map(
        "nvme0",
        Nvme { state: Reading::Value("live".into()), smart: Reading::Unsupported, ..Nvme::default() },
    );
    facts.node.raid = map("md0", Raid { level: "raid7".into(), active: true, ..Raid::default() });
    facts.node.clocksource = Reading::Value("gb300-clock".into());
    let found = Node::new("").pass(0.0, &facts);
    assert!(found.findings.iter().all(|f| !f.drains()), "{:#?}", found.findings);
    assert!(
        found.findings.iter().all(|f| f.check.starts_with("gpu.") || f.check == "node.self"),
        "{:#?}",
        found.findings
    );
}

#[test]
fn pitfall_44_unsupported_is_not_unhealthy() {
    // A node without any of it: every check of this part says so, and nothing else.
    let mut facts = quiet();
    facts.node = healthcheck::facts::NodeFacts::absent();
    let found = Node::new("").pass(0.0, &facts);
    for check in [
        "net.link",
        "gpu.aer",
        "gpu.pcie_speed",
        "pcie.acs",
        "host.edac",
        "disk.nvme",
        "disk.raid",
        "host.services",
        "host.clock",
        "host.cpu",
        "host.stray",
    ] {
        assert_eq!((done(&found, check), of(&found, check).len()), (Status::Unsupported, 0), "{check}");
    }
}

#[test]
fn pitfall_41_checks_that_are_switched_off_are_named() {
    let found = Node::new("[checks.\"host.clock\"]\nstate = \"off\"\n").pass(0.0, &quiet());
    let own = found.checks.iter().find(|c| c.check == "node.self").unwrap();
    assert!(own.detail.contains("switched off: host.clock"), "{}", own.detail);
    assert!(found.checks.iter().all(|c| c.check != "host.clock"));
}

#[test]
fn an_old_verdict_is_told() {
    let look = |age: Option<f64>, uptime: f64| {
        let (_, found) = once("", "node.self", |f| (f.node.verdict_age, f.uptime) = (age, uptime));
        found.into_iter().map(|f| (f.status, f.evidence)).collect::<Vec<_>>()
    };
    assert_eq!(look(None, 1e5), []);
    assert_eq!(look(Some(1100.0), 1e5), []);
    assert_eq!(look(Some(90_000.0), 60.0), [], "the node has only just come up");
    let old = look(Some(3600.0), 1e5);
    assert_eq!(old[0].0, Status::Warn);
    assert!(old[0].1.contains("60 minutes old"), "{}", old[0].1);
}

#[test]
fn pitfall_32_a_verdict_is_old_after_twice_the_interval() {
    let look = |age: f64, interval: f64| {
        let change =
            |f: &mut Facts| (f.node.verdict_age, f.node.verdict_interval) = (Some(age), Some(interval));
        !once("", "node.self", change).1.is_empty()
    };
    assert_eq!([look(590.0, 300.0), look(610.0, 300.0)], [false, true]);
    assert_eq!([look(1190.0, 600.0), look(1210.0, 600.0)], [false, true]);
    assert_eq!([look(110.0, 30.0), look(130.0, 30.0)], [false, true], "a pass may be late");
}

#[test]
fn what_an_nvme_disk_says_of_itself() {
    let look = |smart: NvmeSmart| {
        let disk =
            Nvme { state: Reading::Value("live".into()), smart: Reading::Value(smart), ..Nvme::default() };
        let (_, found) = once("", "disk.nvme", |f| f.node.nvme = map("nvme0", disk));
        found.into_iter().map(|f| (f.status, f.token)).collect::<Vec<_>>()
    };
    let of = |critical_warning: u8| NvmeSmart {
        critical_warning,
        spare_percent: 97,
        spare_threshold: 10,
        used_percent: 30,
        media_errors: 5,
    };
    assert_eq!(look(of(0)), [], "errors since the disk was made say nothing");
    for bit in [0, 2, 3, 4, 5] {
        assert_eq!(look(of(1 << bit)), [(Status::Fail, "nvmesmart".into())], "{bit}");
    }
    assert_eq!(look(of(1 << 1)), [(Status::Warn, "nvmehot".into())]);
    assert_eq!(look(NvmeSmart { used_percent: 81, ..of(0) }), [(Status::Warn, "nvmewear".into())]);
    assert_eq!(look(NvmeSmart { used_percent: 80, ..of(0) }), []);
    let disk = Nvme { smart: Reading::Hung("no answer in time".into()), ..Nvme::default() };
    let (status, found) = once("", "disk.nvme", |f| f.node.nvme = map("nvme0", disk));
    assert_eq!((status, found[0].drains()), (Status::Unknown, false));
    // Errors that are new are told.
    let mut node = Node::new("");
    let facts = |n| {
        let disk =
            Nvme { state: Reading::Value("live".into()), smart: Reading::Value(of(0)), ..Nvme::default() };
        let mut facts = quiet();
        facts.node.nvme = map("nvme0", disk);
        facts.counters.insert("nvme/nvme0/media_errors".into(), n);
        facts
    };
    assert_eq!(node.said("disk.nvme", 0.0, &facts(5)), []);
    assert_eq!(node.said("disk.nvme", 600.0, &facts(6)), [(Status::Warn, "nvmemedia".into())]);
}

#[test]
fn tests_of_dcgm_fail_by_its_own_severity_and_never_excuse() {
    let test = |status: &str, severity| DcgmTest {
        test: "memory".into(),
        entity: "GPU 1".into(),
        status: status.into(),
        severity,
        text: "words".into(),
    };
    let look = |tests: Vec<DcgmTest>| {
        let mut facts = quiet();
        facts.dcgm_diag = Some(Reading::Value(DcgmDiag { version: "4.2.3".into(), tests }));
        let found = Node::new("").pass_in(Mode::Deep, 0.0, &facts);
        (done(&found, "act.dcgm"), of(&found, "act.dcgm").iter().map(|f| f.drains()).collect::<Vec<_>>())
    };
    assert_eq!(look(vec![test("pass", None), test("skip", None)]), (Status::Pass, vec![]));
    for severity in [2, 4, 6] {
        assert_eq!(look(vec![test("fail", Some(severity))]), (Status::Fail, vec![true]));
    }
    // A setting; work goes on; DCGM 3, which tells no severity.
    for (status, severity) in [("fail", Some(5)), ("fail", Some(1)), ("fail", None), ("warn", None)] {
        assert_eq!(look(vec![test(status, severity)]), (Status::Warn, vec![false]), "{status} {severity:?}");
    }
    assert_eq!(look(vec![test("not run", None)]), (Status::Unknown, vec![false]));
    assert_eq!(look(vec![test("skip", None)]).0, Status::Unsupported);
    // Whatever DCGM says, a GPU that asks for a reset is broken.
    let mut facts = quiet();
    facts.dcgm_diag = Some(Reading::Value(DcgmDiag { version: "4".into(), tests: vec![test("pass", None)] }));
    let gpu = NvmlGpu { recovery_action: Reading::Value(1), ..NvmlGpu::default() };
    facts.nvml = Reading::Value(NvmlFacts { count: 1, gpus: vec![gpu], ..NvmlFacts::default() });
    let found = Node::new("").pass_in(Mode::Deep, 0.0, &facts);
    assert_eq!(done(&found, "gpu.recovery_action"), Status::Fail);
}

#[test]
fn pitfall_34_active_checks_are_explained_and_never_run() {
    let active: Vec<&str> = CATALOGUE.iter().filter(|c| c.active()).map(|c| c.id).collect();
    assert_eq!(active, ["act.nvbandwidth", "act.nccl_local", "act.ib_pair", "act.burn"]);
    for mode in [Mode::Prolog, Mode::Epilog, Mode::Periodic, Mode::Deep, Mode::Audit] {
        let found = Node::new("").pass_in(mode, 0.0, &quiet());
        let ran =
            |c: &&healthcheck::verdict::CheckResult| c.check.starts_with("act.") || c.check == "slurm.guard";
        let ran: Vec<&str> = found.checks.iter().filter(ran).map(|c| c.check.as_str()).collect();
        // DCGM's tests, where it is installed, by hand only.
        assert_eq!(ran, if mode == Mode::Deep { vec!["act.dcgm"] } else { vec![] }, "{mode:?}");
    }
    assert_eq!(CATALOGUE.iter().find(|c| c.id == "act.burn").unwrap().when(), "suite");
}

#[test]
fn samples_are_where_tests_expect_them() {
    for name in ["sysfs/system.tsv", "proc/mdstat.txt", "kmsg/kmsg-other.log"] {
        assert!(Path::new(&data(name)).is_file(), "{name}");
    }
}
