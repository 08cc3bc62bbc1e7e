//! The Prometheus file: judged by promtool, read back from a real node_exporter.

#![allow(clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use harness::{Cluster, run};

/// A node_exporter that knows only the files in a folder; ended with the test.
struct Exporter {
    child: Child,
    port: u16,
}

impl Exporter {
    fn start(folder: &Path) -> Exporter {
        let port = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a free port").port();
        let child = Command::new("/usr/bin/prometheus-node-exporter")
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .args(["--collector.disable-defaults", "--collector.textfile"])
            .arg(format!("--collector.textfile.directory={}", folder.display()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("prometheus-node-exporter is installed by run-tests");
        Exporter { child, port }
    }

    fn get(&self) -> Option<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(20))).ok()?;
        stream.write_all(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n").ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        Some(text)
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Series with their values, as the file has them.
fn series(text: &str) -> Vec<(String, f64)> {
    text.lines()
        .filter(|l| l.starts_with("clustermax_"))
        .filter_map(|l| l.rsplit_once(' '))
        .map(|(name, value)| (name.to_string(), value.parse().expect("a number")))
        .collect()
}

fn value(all: &[(String, f64)], name: &str) -> Option<f64> {
    all.iter().find(|(n, _)| n == name).map(|(_, v)| *v)
}

#[test]
fn metrics_pass_promtool_and_come_back_from_node_exporter() {
    let c = Cluster::up(&["--nodes", "1", "--enforcement", "enforce", "--health-interval", "3600"]);
    let file = c.node_dir("n1").join("run/clustermax.prom");
    let pass = || run(&mut c.on_node("n1", "clustermax-healthcheck", &["run", "--mode", "periodic"]));
    assert_eq!(pass().code, 0);
    let healthy = series(&std::fs::read_to_string(&file).expect("the file is written"));
    assert_eq!(value(&healthy, "clustermax_verdict_status{status=\"pass\"}"), Some(1.0));
    assert_eq!(value(&healthy, "clustermax_drains_total{outcome=\"written\"}"), Some(0.0));

    // Two jobs, each with labels that the other lacks.
    for (job, gpus, tags) in
        [("7", "0,1", r#"{"project":"llm"}"#), ("8", "2", r#"{"run":"a \"b\" \\ c","team":"x"}"#)]
    {
        assert_eq!(run(&mut c.hook("n1", "clustermax-prolog", job, gpus)).code, 0);
        let file = c.node_dir("n1").join(format!("run/jobs/{job}.json"));
        let text = std::fs::read_to_string(&file).expect("the job's file");
        let mut json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        json["tags"] = serde_json::from_str(tags).expect("JSON");
        std::fs::write(&file, json.to_string()).expect("the job's file");
    }
    c.sim_ok(&["inject", "xid79", "--node", "n1", "--gpu", "3"]);
    assert_eq!(pass().code, 1);
    c.wait_drained("n1", 10);
    let text = std::fs::read_to_string(&file).expect("the file is written");
    let ours = series(&text);
    for (name, want) in [
        ("clustermax_enforcing", 1.0),
        ("clustermax_verdict_status{status=\"fail\"}", 1.0),
        ("clustermax_verdict_drain", 1.0),
        ("clustermax_check_status{check=\"gpu.xid\",status=\"fail\"}", 1.0),
        ("clustermax_check_devices{check=\"gpu.xid\",status=\"fail\"}", 1.0),
        ("clustermax_kernel_events_total{kind=\"xid\",code=\"79\",device=\"g3\"}", 1.0),
        ("clustermax_drains_total{outcome=\"written\"}", 1.0),
        ("clustermax_brake_engaged", 0.0),
        ("clustermax_kmsg_lost_records_total", 0.0),
    ] {
        assert_eq!(value(&ours, name), Some(want), "{name}\n{text}");
    }
    assert_eq!(ours.iter().filter(|(name, _)| name.starts_with("clustermax_job_info{")).count(), 2, "{text}");
    assert!(value(&ours, "clustermax_passes_total{mode=\"periodic\"}").expect("passes") >= 2.0);

    let mut promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool is installed by run-tests");
    promtool.stdin.take().expect("a pipe").write_all(text.as_bytes()).expect("written");
    let said = promtool.wait_with_output().expect("promtool ends");
    let words = String::from_utf8_lossy(&said.stderr).into_owned() + &String::from_utf8_lossy(&said.stdout);
    assert!(said.status.success() && words.is_empty(), "{words}\n{text}");

    let folder = file.parent().expect("a folder");
    let exporter = Exporter::start(folder);
    c.wait(30, "node_exporter answers", || exporter.get().is_some());
    let answer = exporter.get().expect("an answer");
    assert!(answer.contains("node_textfile_scrape_error 0"), "{answer}");
    let theirs = series(&answer);
    assert_eq!(theirs.len(), ours.len(), "{answer}");
    for (name, want) in &ours {
        // node_exporter sorts labels by name.
        let labels = |n: &str| {
            let (name, rest) = n.trim_end_matches('}').split_once('{').unwrap_or((n, ""));
            // It also gives every series of a name the same labels, empty where there were none.
            let mut labels: Vec<String> =
                rest.split(',').filter(|l| !l.ends_with("=\"\"")).map(str::to_string).collect();
            labels.sort();
            (name.to_string(), labels)
        };
        let found = theirs.iter().find(|(n, _)| labels(n) == labels(name));
        assert_eq!(found.map(|(_, v)| *v), Some(*want), "{name}");
    }

    // What an ordinary user sees.
    let said = run(&mut c.user_command(&["cat", &folder.join("checks.json").display().to_string()]));
    assert!(said.code == 0 && said.out.starts_with("{\"schema\":\"clustermax-checks/1\""), "{}", said.err);
}
