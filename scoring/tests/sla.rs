//! `clustermax sla` on the records of a real slurmdbd with MariaDB.

#![allow(clippy::unwrap_used, reason = "in a test a failed step is the failure")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

/// Ended with the test, whatever happens.
struct Cluster {
    folder: TempDir,
}

impl Cluster {
    /// Nothing where a needed program is not installed, or without root.
    fn up(nodes: u32) -> Option<Self> {
        let id = Command::new("id").arg("-u").output().unwrap();
        let there = |name: &str| {
            ["/usr/sbin", "/usr/bin"].iter().any(|folder| Path::new(folder).join(name).is_file())
        };
        let needed = ["mariadbd", "slurmdbd", "slurmctld", "slurmd", "munged"];
        if id.stdout != b"0\n" || !needed.iter().all(|name| there(name)) {
            eprintln!(
                "not run: it needs root, mariadb-server, slurmdbd, slurm-wlm-mysql-plugin, slurm-wlm and munge"
            );
            return None;
        }
        let folder = tempfile::Builder::new().prefix("acct").tempdir_in("/tmp").unwrap();
        let cluster = Self { folder };
        let up = cluster.script("up", &nodes.to_string());
        assert!(up.status.success(), "{}", String::from_utf8_lossy(&up.stderr));
        Some(cluster)
    }

    fn dir(&self) -> PathBuf {
        self.folder.path().join("c")
    }

    fn script(&self, verb: &str, nodes: &str) -> Output {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/accounting/cluster.sh");
        Command::new("bash").arg(script).arg(verb).arg(self.dir()).arg(nodes).output().unwrap()
    }

    fn run(&self, program: &str, args: &[&str]) -> Output {
        let conf = self.dir().join("slurm.conf");
        Command::new(program).args(args).env("SLURM_CONF", conf).output().unwrap()
    }

    fn ok(&self, program: &str, args: &[&str]) -> String {
        let output = self.run(program, args);
        assert!(output.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    fn node(&self, node: &str, state: &str, reason: &str) {
        let (node, state) = (format!("nodename={node}"), format!("state={state}"));
        let reason = format!("reason={reason}");
        let mut args = vec!["update", node.as_str(), state.as_str()];
        if reason != "reason=" {
            args.push(&reason);
        }
        self.ok("scontrol", &args);
    }

    fn sla(&self, args: &[&str]) -> Output {
        let mut all = vec!["sla"];
        all.extend(args);
        self.run(env!("CARGO_BIN_EXE_clustermax"), &all)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.script("down", "");
    }
}

fn pause(seconds: u64) {
    std::thread::sleep(Duration::from_secs(seconds));
}

#[test]
fn availability_credits_and_goodput_from_a_real_slurmdbd() {
    let Some(cluster) = Cluster::up(4) else { return };
    // A job loses a node, is requeued and ends well; another node is drained twice without a gap; one stays down.
    cluster.ok(
        "sbatch",
        &["-N2", "-wn3,n4", "--exclusive", "-Jtrain", "-o/dev/null", "--requeue", "--wrap=sleep 4"],
    );
    let end = Instant::now() + Duration::from_secs(30);
    while !cluster.ok("squeue", &["-h", "-tR"]).contains("train") {
        assert!(Instant::now() < end, "the job never started");
        pause(1);
    }
    cluster.node("n1", "drain", "cmx:xid79 g0 fell|off; act=reboot id=3f2a91bc");
    pause(2);
    cluster.node("n3", "down", "lost power");
    cluster.node("n1", "down", "replaced");
    cluster.node("n2", "down", "customer wanted it");
    pause(2);
    cluster.node("n1", "resume", "");
    cluster.node("n3", "resume", "");
    let end = Instant::now() + Duration::from_secs(60);
    while !cluster.ok("sacct", &["-n", "-X", "-o", "state"]).contains("COMPLETED") {
        assert!(Instant::now() < end, "{}", cluster.ok("sacct", &["-D", "-X"]));
        pause(1);
    }
    pause(1);

    let contract = cluster.dir().join("contract.toml");
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/contract.toml");
    let text = std::fs::read_to_string(example).unwrap();
    let text = text
        .replace("shortest_seconds = 60", "shortest_seconds = 1")
        .replace("period = \"month\"", "period = \"whole\"")
        .replace("restart_seconds = 600", "restart_seconds = 1");
    std::fs::write(&contract, text).unwrap();
    // Of the last minutes, so that seconds of downtime are visible percent.
    let from = (jiff::Timestamp::now() - jiff::SignedDuration::from_secs(300)).to_string();
    let from = format!("{}Z", &from[..19]);
    let args = ["--contract", contract.to_str().unwrap(), "--from", &from];
    let output = cluster.sla(&[&args[..], &["--json"]].concat());
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(found["nodes"], serde_json::json!(["n1", "n2", "n3", "n4"]));
    let unit = |level: &str, name: &str| {
        let units = found["availability"].as_array().unwrap();
        units.iter().find(|one| one["level"] == level && one["name"] == name).unwrap().clone()
    };
    let down = |level: &str, name: &str| unit(level, name)["down_seconds"].as_i64().unwrap();
    assert!((4..30).contains(&down("node", "n1")), "{found}");
    assert!((2..30).contains(&down("node", "n3")), "{found}");
    assert_eq!(down("node", "n4"), 0);
    // The customer's own wish is no downtime; the rack of n1 and n2 is down only while both are.
    assert_eq!(down("node", "n2"), 0);
    assert_eq!(down("rack", "r1"), 0);
    assert_eq!(down("rack", "r2"), down("node", "n3"));
    let outages = found["outages"].as_array().unwrap();
    let first = outages.iter().find(|one| one["node"] == "n1").unwrap();
    assert_eq!(
        first["reasons"],
        serde_json::json!(["cmx:xid79 g0 fell|off; act=reboot id=3f2a91bc", "replaced"])
    );
    let open = outages.iter().find(|one| one["node"] == "n2").unwrap();
    assert_eq!((&open["open"], &open["counted_seconds"]), (&true.into(), &0.into()));
    let run = &found["runs"][0];
    assert_eq!(
        (&run["name"], &run["attempts"], &run["node_failures"]),
        (&"train".into(), &2.into(), &1.into())
    );
    let seconds = |key: &str| run["seconds"][key].as_i64().unwrap();
    let parts = ["waiting", "restart", "checkpoint", "lost", "productive"];
    assert_eq!(seconds("wall"), parts.iter().map(|key| seconds(key)).sum::<i64>());
    assert!(seconds("lost") >= 1 && seconds("restart") == 2 && seconds("productive") >= 2, "{run}");
    let account = |key: &str| found["account"][key].as_i64().unwrap();
    assert_eq!(account("nominal"), 4 * 300 + 4 * (account("nominal") / 4 - 300));
    assert_eq!(account("nominal"), account("out_of_service") + account("idle") + account("allocated"));
    assert!(found["credits"][0]["amount"].as_f64().unwrap() > 0.0);
    let figure = |name: &str| {
        let figures = found["figures"].as_array().unwrap();
        figures.iter().find(|one| one["name"] == name).unwrap().clone()
    };
    assert_eq!(figure("node_mttf")["inputs"]["failures"], 2.0);
    assert!(figure("node_mttf")["value"].as_f64().unwrap() > 0.0);

    // The text; and files that the documented commands print give the same as asking.
    let text = String::from_utf8(cluster.sla(&args).stdout).unwrap();
    for expected in ["Availability", "lost power", "ETTR", "cost per useful gpu hour", "credit for whole"] {
        assert!(text.contains(expected), "{text}\nlacks {expected}");
    }
    let (events, jobs) = (cluster.dir().join("events"), cluster.dir().join("jobs"));
    let window = |tool: &str| {
        let command = format!("TZ=UTC; export TZ; {tool}");
        cluster.ok("sh", &["-c", &command])
    };
    let start = from.trim_end_matches('Z');
    let columns = "format=Cluster,NodeName,TimeStart,TimeEnd,StateRaw,State,User,Reason";
    std::fs::write(&events, window(&format!("sacctmgr -P show event start={start} {columns}"))).unwrap();
    let columns = "JobIDRaw,User,State,Submit,Eligible,Start,End,NodeList,JobName";
    std::fs::write(&jobs, window(&format!("sacct -D -a -X -P -S {start} -o {columns}"))).unwrap();
    let to = found["to"].as_str().unwrap();
    let files = [
        "--events",
        events.to_str().unwrap(),
        "--jobs",
        jobs.to_str().unwrap(),
        "--nodes",
        "n[1-4]",
        "--to",
        to,
    ];
    let again = cluster.sla(&[&args[..], &files[..], &["--json"]].concat());
    let again: Value = serde_json::from_slice(&again.stdout).unwrap();
    assert_eq!(again, found);

    // Into a run on these nodes, whose score then knows them.
    let results = cluster.dir().join("run");
    std::fs::create_dir_all(&results).unwrap();
    let run = r#"{"schema":"clustermax-run/1","run":"r","cluster":"acct","profile":"full","nodes":["n1","n2","n3","n4"],"started":"2026-11-30T00:00:00Z","hardware":"gpu"}"#;
    std::fs::write(results.join("run.json"), run).unwrap();
    let folder = results.to_str().unwrap();
    let kept = cluster.sla(&[&args[..], &["--records", folder, "--published", "99.99"]].concat());
    assert_eq!(kept.status.code(), Some(1), "{}", String::from_utf8_lossy(&kept.stderr));
    assert!(String::from_utf8_lossy(&kept.stderr).contains("records of stage sla are in"));
    let scored = cluster.run(env!("CARGO_BIN_EXE_clustermax"), &["score", folder, "--json"]);
    let scored: Value = serde_json::from_slice(&scored.stdout).unwrap();
    let state = |id: &str| {
        let all = scored["criteria"].as_array().unwrap();
        all.iter().find(|one| one["id"] == id).unwrap()["state"].as_str().unwrap().to_owned()
    };
    // What Slurm recorded differs from the published figure by seconds of five minutes; no node rebooted.
    assert!(["pass", "fail"].contains(&state("mon-22").as_str()), "{scored}");
    assert_eq!(state("rel-30"), "unavailable");
    assert_eq!([state("rel-33"), state("rel-16"), state("rel-37")], ["pass", "pass", "pass"]);
    assert_ne!(state("rel-34"), "unknown");

    // slurmdbd away: named, exit 3.
    let pid = std::fs::read_to_string(cluster.dir().join("slurmdbd.pid")).unwrap();
    cluster.ok("kill", &["-KILL", pid.trim()]);
    let gone = cluster.sla(&args);
    assert_eq!(gone.status.code(), Some(3), "{}", String::from_utf8_lossy(&gone.stderr));
    assert!(String::from_utf8_lossy(&gone.stderr).contains("sacctmgr"));
}

#[test]
fn bad_windows_and_files_are_one_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let events = file("events", "Cluster|NodeName|TimeStart|TimeEnd|StateRaw|State|User|Reason\n");
    let bad = file("bad", "hello\n");
    let contract = file("contract.toml", "schema = \"clustermax-contract/1\"\n[checkpoint]\nseconds = 1\n");
    let base = ["--from", "2026-01-01", "--to", "2026-02-01"];
    for (args, expected) in [
        (vec!["--from", "yesterday"], "--from \"yesterday\" is no time"),
        (vec!["--from", "2026-02-01", "--to", "2026-01-01"], "is not before --to"),
        (vec!["--to", "2126-01-01"], "lies in the future"),
        (vec!["--events", events.as_str()], "name them with --nodes"),
        (vec!["--events", bad.as_str(), "--nodes", "n1"], "line 1 is \"hello\""),
        (vec!["--events", "/nowhere", "--nodes", "n1"], "cannot read /nowhere"),
        (vec!["--events", events.as_str(), "--nodes", "n[1-"], "--nodes \"n[1-\""),
        (vec!["--events", events.as_str(), "--nodes", ","], "names no node"),
        (vec!["--events", events.as_str(), "--nodes", "n1", "--jobs", bad.as_str()], "line 1 is \"hello\""),
        (vec!["--published", "100.5"], "--published is not within 0 and 100"),
        (vec!["--records", "/nowhere"], "results folder /nowhere does not exist"),
        (vec!["--contract", contract.as_str()], "contract.toml: line 2: missing field `interval_seconds`"),
    ] {
        let mut all = vec!["sla"];
        if !args.contains(&"--to") && !args.contains(&"--from") {
            all.extend(base);
        }
        all.extend(&args);
        let output = Command::new(env!("CARGO_BIN_EXE_clustermax")).args(&all).output().unwrap();
        let message = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {message}");
        assert!(message.contains(expected) && message.lines().count() == 1, "{args:?}: {message}");
    }
    let good = Command::new(env!("CARGO_BIN_EXE_clustermax"))
        .args(["sla", "--events", &events, "--nodes", "n[1-2]"])
        .args(base)
        .output()
        .unwrap();
    assert_eq!(good.status.code(), Some(0), "nothing was promised, nothing broken");
}
