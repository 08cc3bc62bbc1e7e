//! What operators set up around the product: configless Slurm, active checks of idle nodes.

#![allow(clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use harness::{Cluster, Said, program, project, run};

/// The nodes have no slurm.conf: plugin, prolog, doctor and drain work with the copy that slurmd fetched.
#[test]
fn configless_nodes_are_checked_drained_and_diagnosed() {
    let c = Cluster::up(&[
        "--nodes",
        "2",
        "--configless",
        "--enforcement",
        "enforce",
        "--health-interval",
        "600",
    ]);
    let help = run(&mut c.user_command(&["srun", "--help"]));
    assert!(help.out.contains("--clustermax-report"), "{}", help.out);
    let said =
        run(&mut c.user_command(&["srun", "-w", "n1", "--gres=gpu:1", "--clustermax-report=full", "true"]));
    assert_eq!(said.code, 0, "{}", said.err);
    assert!(
        said.err.contains("clustermax: "),
        "the plugin that slurmd's copy of plugstack.conf names: {}",
        said.err
    );

    // As on the node itself: with slurmd's own /run, and no slurm.conf in /etc.
    let status: serde_json::Value = serde_json::from_str(&c.sim_ok(&["status", "--json"])).expect("status");
    let on_n1 = |args: &[&str]| -> Said {
        let pid = status["nodes"][0]["pid"].as_i64().expect("slurmd's pid").to_string();
        run(Command::new("nsenter").args(["-m", "-r", "-t", &pid]).args(args).env_remove("SLURM_CONF"))
    };
    let copy = on_n1(&["/bin/ls", "/run/slurm/conf/slurm.conf", "/etc/slurm"]);
    assert_eq!(copy.code, 0, "{}", copy.err);
    assert!(!copy.out.contains("/etc/slurm/slurm.conf"), "{}", copy.out);
    let doctor = program("clustermax-doctor").display().to_string();
    let config = c.config().display().to_string();
    let said = on_n1(&[&doctor, "--config", &config, "--node", "n1", "--cluster"]);
    for line in
        ["PASS slurm.conf: /run/slurm/conf/slurm.conf is readable", "PASS plugin:", "PASS slurm.conf Prolog:"]
    {
        assert!(said.out.contains(line), "{line}: {}", said.out);
    }

    c.sim_ok(&["inject", "remap-failure", "--node", "n1", "--gpu", "3"]);
    let said = run(&mut c.user_command(&["srun", "-w", "n1", "--gres=gpu:8", "--immediate=20", "true"]));
    assert_ne!(said.code, 0, "the prolog found the fault");
    let reason = c.wait_drained("n1", 20);
    assert!(reason.starts_with("cmx:rowremap g3 "), "by libslurm or scontrol with slurmd's copy: {reason}");
    assert_eq!(c.node("n2").state, "IDLE");
}

/// A partition for active checks, and the settings of `clustermax-idle-check`.
fn idle_checks(c: &Cluster) -> PathBuf {
    let conf = c.dir().join("etc/slurm.conf");
    let text = fs::read_to_string(&conf).expect("slurm.conf");
    let text = text.replace(
        "PartitionName=gpu Nodes=ALL",
        "PartitionName=gpu PriorityTier=10 PreemptMode=OFF Nodes=ALL",
    );
    let more = "PreemptType=preempt/partition_prio\nPreemptMode=CANCEL\n\
                PartitionName=idle-check Nodes=ALL PriorityTier=0 PreemptMode=CANCEL MaxTime=15 State=UP\n\
                PartitionName=not-preemptible Nodes=ALL PriorityTier=10 PreemptMode=OFF State=UP\n";
    fs::write(&conf, text + more).expect("slurm.conf");
    c.sim_ok(&["stop", "slurmctld"]);
    c.sim_ok(&["start", "slurmctld"]);
    c.wait(60, "slurmctld knows the partition", || {
        run(&mut c.command(&["sinfo", "-h", "-p", "idle-check", "-o", "%D %T"])).out.trim() == "2 idle"
    });
    // Another release's system does not see the project.
    let copied = run(Command::new("cp").arg("-r").arg(project().join("batch-scripts")).arg(c.scratch()));
    assert_eq!(copied.code, 0, "{}", copied.err);
    let settings = c.scratch().join("idle-check.conf");
    let text = format!(
        "PARTITION=idle-check\nLIGHT_EVERY=30\nBUDGET=1000\nBURN_SECONDS=3\nCONFIG={}\nRUN_DIR={}\nLOG={}\nPROGRAMS={}\nPAYLOAD={}\n",
        c.config().display(),
        c.node_dir("n1").join("run").display(),
        c.scratch().join("idle-check.log").display(),
        harness::programs().display(),
        c.scratch().join("batch-scripts/payload").display(),
    );
    fs::write(&settings, text).expect("settings");
    settings
}

fn submit(c: &Cluster, settings: &Path, kind: &[&str]) -> Said {
    let script = c.scratch().join("batch-scripts/clustermax-idle-check");
    let mut command = c.command(&["/usr/bin/env", "SLURMD_NODENAME=n1"]);
    run(command.arg(script).arg("--conf").arg(settings).arg("submit").args(kind))
}

/// What `clustermax-idle-check submit` decides, without a Slurm: its answers come from functions in the settings, which are shell.
#[test]
fn an_idle_nodes_check_is_submitted_when_it_is_due_and_within_the_budget() {
    let dir = tempfile::tempdir().expect("a folder");
    let at = |name: &str| dir.path().join(name);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("now").as_secs();
    let (hour, day) = (3600, 86_400);
    // (what, seconds since the last heavy and the last light one, spent: (seconds, how long ago, node), state, kind, answer)
    type Row<'a> = (&'a str, Option<i64>, Option<i64>, &'a [(u64, i64, &'a str)], &'a str, &'a str, &'a str);
    let rows: &[Row<'_>] = &[
        ("after a boot", None, None, &[], "idle", "", "heavy check submitted: job 7"),
        ("a week is over", Some(7 * day), Some(10), &[], "idle", "", "heavy check submitted"),
        ("an hour is over", Some(day), Some(hour), &[], "idle", "", "light check submitted"),
        ("nothing is due", Some(day), Some(hour - 60), &[], "idle", "", "nothing submitted: nothing is due"),
        ("asked for", Some(10), Some(10), &[], "idle", "heavy", "heavy check submitted"),
        (
            "the budget holds a heavy one to the second",
            None,
            None,
            &[(3000, 10, "n1")],
            "idle",
            "",
            "heavy check submitted",
        ),
        (
            "only a light one is within the budget",
            None,
            None,
            &[(3001, 10, "n1")],
            "idle",
            "",
            "light check submitted",
        ),
        (
            "a light one to the second",
            None,
            None,
            &[(1000, 9, "n1"), (2300, 10, "n1")],
            "idle",
            "",
            "light check submitted",
        ),
        (
            "the budget is spent",
            None,
            None,
            &[(1001, 9, "n1"), (2300, 10, "n1")],
            "idle",
            "",
            "nothing submitted: 3301 s of checks in the last day; 5 minutes more are beyond BUDGET=3600",
        ),
        (
            "no light one is due either",
            None,
            Some(10),
            &[(3001, 10, "n1")],
            "idle",
            "",
            "nothing submitted: 3001 s",
        ),
        (
            "by hand it holds as well",
            None,
            None,
            &[(3301, 10, "n1")],
            "idle",
            "light",
            "nothing submitted: 3301 s",
        ),
        ("spent the day before", None, None, &[(3600, day + 1, "n1")], "idle", "", "heavy check submitted"),
        ("spent by another node", None, None, &[(3600, 10, "n10")], "idle", "", "heavy check submitted"),
        // A clock that was a year ahead: neither is nothing due for a year, nor is the budget spent for one.
        (
            "a stamp of the future",
            Some(-365 * day),
            Some(-365 * day),
            &[],
            "idle",
            "",
            "heavy check submitted",
        ),
        ("spent in the future", None, None, &[(3600, -365 * day, "n1")], "idle", "", "heavy check submitted"),
        ("allocated", None, None, &[], "allocated", "", "nothing submitted: n1 is allocated"),
        ("partly allocated", None, None, &[], "mixed", "heavy", "nothing submitted: n1 is mixed"),
        ("completing", None, None, &[], "completing", "", "nothing submitted: n1 is completing"),
        ("drained", None, None, &[], "drained", "", "nothing submitted: n1 is drained"),
        ("reserved", None, None, &[], "reserved", "", "nothing submitted: n1 is reserved"),
    ];
    for (what, heavy, light, spent, state, kind, answer) in rows {
        let _ = fs::remove_dir_all(at("run"));
        fs::create_dir_all(at("run/active")).expect("stamps");
        let ago = |seconds: i64| now.saturating_add_signed(-seconds);
        for (kind, last) in [("heavy", heavy), ("light", light)] {
            if let Some(last) = last {
                let stamp = format!("{{\"kind\":\"{kind}\",\"time\":{},\"status\":\"pass\"}}\n", ago(*last));
                fs::write(at(&format!("run/active/{kind}.json")), stamp).expect("stamp");
            }
        }
        let line = |(seconds, last, node): &(u64, i64, &str)| {
            format!(
                "2026-12-01T00:00:00Z {} node={node} kind=light job=1 seconds={seconds} result=pass\n",
                ago(*last)
            )
        };
        fs::write(at("log"), spent.iter().map(line).collect::<String>()).expect("log");
        let d = dir.path().display();
        let settings = format!(
            "PARTITION=idle-check\nRUN_DIR={d}/run\nLOG={d}/log\ntimeout() {{ shift; \"$@\"; }}\nsinfo() {{ echo {state}; }}\n\
             scontrol() {{ echo 'PartitionName=idle-check PreemptMode=CANCEL State=UP'; }}\n\
             sbatch() {{ echo \"$@\" >{d}/asked; echo 7; }}\n"
        );
        fs::write(at("conf"), settings).expect("settings");
        let _ = fs::remove_file(at("asked"));
        let mut command = Command::new(project().join("batch-scripts/clustermax-idle-check"));
        command.arg("--conf").arg(at("conf")).arg("submit").env("SLURMD_NODENAME", "n1");
        let said = run(command.args(Some(*kind).filter(|k| !k.is_empty())));
        assert_eq!(said.code, 0, "{what}: {said:?}");
        assert!(said.out.starts_with(answer), "{what}: {said:?}");
        let asked = fs::read_to_string(at("asked")).unwrap_or_default();
        assert_eq!(answer.contains("check submitted"), !asked.is_empty(), "{what}: {asked}");
        if let Some(kind) = answer.split_whitespace().next().filter(|_| !asked.is_empty()) {
            let minutes = if kind == "heavy" { 10 } else { 5 };
            for option in [
                "--exclusive",
                "--nodelist=n1",
                "--no-requeue",
                &format!("--time={minutes} "),
                &format!(" run {kind}"),
            ] {
                assert!(asked.contains(option), "{what}: {option} not in {asked}");
            }
        }
    }
}

/// It ended the whole check without a word, a stamp or a second of the budget, and was tried again a quarter of an hour later.
#[test]
fn a_burn_in_that_broke_off_is_no_result_and_the_look_at_the_devices_follows() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().expect("a folder");
    let d = dir.path().display();
    let script = |name: &str, text: &str| {
        let path = dir.path().join(name);
        fs::write(&path, text).expect("script");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("mode");
    };
    script("python", "#!/bin/sh\n[ \"$1\" = -c ] || exit 1\necho 2\n");
    script("clustermax-healthcheck", &format!("#!/bin/sh\necho \"$@\" >{d}/looked\n"));
    let settings = format!("RUN_DIR={d}/run\nLOG={d}/log\nPYTHON={d}/python\nPROGRAMS={d}\nPAYLOAD={d}\n");
    fs::write(dir.path().join("conf"), settings).expect("settings");
    let mut command = Command::new(project().join("batch-scripts/clustermax-idle-check"));
    command.arg("--conf").arg(dir.path().join("conf")).args(["run", "heavy"]);
    let said = run(command.env("SLURMD_NODENAME", "n1").env("SLURM_JOB_ID", "7"));
    let read = |name: &str| fs::read_to_string(dir.path().join(name)).unwrap_or_default();
    assert_eq!(said.code, 0, "{said:?}");
    assert!(read("looked").contains("run --mode deep --drain"), "{said:?}");
    assert!(
        read("log").contains(" kind=heavy job=7 seconds=") && read("log").contains("result=unknown"),
        "{}",
        read("log")
    );
    for kind in ["heavy", "light"] {
        let stamp = read(&format!("run/active/{kind}.json"));
        assert!(stamp.contains("\"status\":\"unknown\""), "{kind}: {stamp}");
    }
}

#[test]
fn an_idle_node_is_checked_by_preemptible_jobs() {
    let c = Cluster::up(&["--nodes", "2", "--enforcement", "enforce", "--health-interval", "2"]);
    let settings = idle_checks(&c);
    let stamp = |kind: &str| {
        fs::read_to_string(c.node_dir("n1").join(format!("run/active/{kind}.json"))).unwrap_or_default()
    };
    let no_jobs = || c.slurm(&["squeue", "-h"]).is_empty();
    let log = || fs::read_to_string(c.scratch().join("idle-check.log")).unwrap_or_default();

    // Heavy is due first; its look at the devices is a light one as well.
    let said = submit(&c, &settings, &[]);
    assert!(said.out.starts_with("heavy check submitted: job "), "{said:?}");
    c.wait(120, "heavy check ended", || no_jobs() && log().contains("result="));
    for kind in ["heavy", "light"] {
        assert!(stamp(kind).contains("\"status\":\"pass\""), "{kind}: {} {}", stamp(kind), log());
    }
    assert!(submit(&c, &settings, &[]).out.contains("nothing is due"));
    c.wait(30, "the stamps in the metrics", || {
        let text = fs::read_to_string(c.node_dir("n1").join("run/clustermax.prom")).unwrap_or_default();
        text.contains("clustermax_active_check_status{kind=\"heavy\",status=\"pass\"} 1")
    });

    let said = run(&mut c.on_node("n1", "clustermax", &["audit", "--scope", "node", "--node", "n1"]));
    let line = said.out.lines().find(|l| l.contains("active checks: ")).unwrap_or_default();
    assert!(line.contains("light pass") && line.contains("heavy pass"), "the audit: {line}");

    // Never on a node with a job, nor in a partition whose jobs users would wait for.
    let mut job =
        c.user_command(&["srun", "-w", "n1", "--gres=gpu:1", "sleep", "60"]).spawn().expect("a job");
    c.wait(20, "job runs", || c.slurm(&["squeue", "-h", "-t", "R"]).contains("sleep"));
    let said = submit(&c, &settings, &["light"]);
    assert!(said.code == 0 && said.out.starts_with("nothing submitted: n1 is "), "{said:?}");
    c.slurm(&["scancel", "-w", "n1"]);
    let _ = job.wait();
    c.wait(30, "no job", || no_jobs() && c.node("n1").state == "IDLE");
    let text = fs::read_to_string(&settings).expect("settings");
    fs::write(&settings, text.replace("=idle-check\n", "=not-preemptible\n")).expect("settings");
    let said = submit(&c, &settings, &["light"]);
    assert!(said.code == 2 && said.err.contains("cannot be pre-empted (PreemptMode=OFF)"), "{said:?}");

    // A user's job takes the node from a running check, whose outcome is then not known.
    fs::write(&settings, text.replace("BURN_SECONDS=3\n", "BURN_SECONDS=300\n")).expect("settings");
    let before = stamp("heavy");
    assert!(submit(&c, &settings, &["heavy"]).out.starts_with("heavy check submitted"));
    c.wait(30, "the check runs", || c.slurm(&["squeue", "-h", "-t", "R"]).contains("idle-chec"));
    let said = run(&mut c.user_command(&["srun", "-w", "n1", "--gres=gpu:8", "true"]));
    assert_eq!(said.code, 0, "{}", said.err);
    c.wait(60, "the check is gone", no_jobs);
    assert_eq!(stamp("heavy"), before, "a pre-emption is no result: {}", log());
    assert_eq!(c.node("n1").state, "IDLE");

    // Wrong results drain, and so does what a deep look finds.
    let python = c.scratch().join("python");
    let wrong = "#!/bin/sh\ncase $1 in -c) echo 2; exit ;; esac\nwhile [ $# -gt 1 ]; do case $1 in --out) out=$2 ;; --rank) rank=$2 ;; esac; shift; done\n\
                 printf '{\\n \"wrong\": %s,\\n \"differing\": 0\\n}\\n' $((rank * 3)) >$out/rank-$rank.json\n";
    fs::write(&python, wrong).expect("python");
    fs::set_permissions(&python, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("mode");
    fs::write(&settings, format!("{text}PYTHON={}\n", python.display())).expect("settings");
    assert!(submit(&c, &settings, &["heavy"]).out.starts_with("heavy check submitted"));
    let reason = c.wait_drained("n1", 60);
    assert!(reason.starts_with("cmx:burn g1 3 wrong results in a burn-in; act=repair id="), "{reason}");
    c.wait(60, "its stamp", || stamp("heavy").contains("\"status\":\"fail\""));
    assert!(submit(&c, &settings, &["heavy"]).out.contains("n1 is drain"), "a drained node is left alone");
}
