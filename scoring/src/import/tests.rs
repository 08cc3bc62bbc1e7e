use super::*;

fn sample(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/import").join(name);
    std::fs::read_to_string(path).unwrap()
}

/// The value of a metric whose params and subject all hold a word.
fn value(imported: &Imported, metric: &str, words: &[&str]) -> Option<f64> {
    let fits = |found: &&Found| {
        let text = format!("{} {:?}", found.subject, found.params);
        found.metric == metric && words.iter().all(|word| text.contains(word))
    };
    let all: Vec<&Found> = imported.found.iter().filter(fits).collect();
    assert_eq!(all.len(), 1, "{metric} {words:?}: {all:?}");
    all[0].value
}

#[test]
fn each_format_is_told_by_its_content() {
    for (name, kind) in [
        ("audit.values.json", Kind::Cmax),
        ("dcgmi3.json", Kind::Dcgmi),
        ("dcgmi4.json", Kind::Dcgmi),
        ("nhc.log", Kind::Nhc),
        ("node.prom", Kind::Metrics),
        ("prometheus.json", Kind::Metrics),
        ("sacct.txt", Kind::Sacct),
    ] {
        assert_eq!(recognise(&sample(name)), Ok(kind), "{name}");
    }
}

#[test]
fn what_cmax_saw_becomes_records_and_what_is_looser_does_not() {
    let imported = cmax::read(&sample("audit.values.json"), None).unwrap();
    assert_eq!(imported.tool, "cmax audit 2.1");
    assert_eq!(value(&imported, "slurm_health_check_program", &[]), Some(1.0));
    assert_eq!(value(&imported, "slurm_health_check_interval", &[]), Some(5.0));
    assert_eq!(value(&imported, "version_at_minimum", &["docker", "28.2.2", "n1"]), Some(0.0));
    assert_eq!(value(&imported, "version_at_minimum", &["runc", "1.3.6"]), Some(1.0));
    assert_eq!(value(&imported, "version_at_minimum", &["nvidia-driver"]), None, "unknown is no pass");
    assert_eq!(value(&imported, "perf_event_paranoid", &["n1"]), Some(2.0));
    assert_eq!(value(&imported, "pcie_acs_enabled", &["n1"]), None);
    // True for topology/none: a record of it would pass what fails.
    assert!(
        imported
            .found
            .iter()
            .all(|found| found.metric != "slurm_topology_coverage" && found.metric != "slurm_accounting")
    );
    assert!(imported.notes.iter().any(|note| note.contains("topologyConfigured")), "{:?}", imported.notes);
    for found in &imported.found {
        let pointer = found.pointer.as_deref().unwrap();
        let document: Value = serde_json::from_str(&sample("audit.values.json")).unwrap();
        assert!(document.pointer(pointer).is_some(), "{pointer}");
    }
}

#[test]
fn another_version_is_said_and_still_read() {
    let text = sample("audit.values.json").replace("\"version\": \"2.1\"", "\"version\": \"9.0\"");
    let imported = cmax::read(&text, None).unwrap();
    assert!(imported.notes.iter().any(|note| note.contains("9.0 is not known")), "{:?}", imported.notes);
    let text = sample("dcgmi4.json").replace("4.5.3", "5.0.0");
    assert!(dcgmi(&text).unwrap().notes[0].contains("5.0.0 is not known"));
}

#[test]
fn diagnostics_of_both_generations_name_their_gpus() {
    let four = dcgmi(&sample("dcgmi4.json")).unwrap();
    assert_eq!(four.tool, "dcgmi diag 4.5.3");
    assert_eq!(value(&four, "dcgm_diag", &["pcie", "Fail"]), Some(0.0));
    let mut three = dcgmi(&sample("dcgmi3.json")).unwrap();
    assert!(own_node(&mut three, None, &["n1".to_owned(), "n2".to_owned()]).unwrap_err().contains("--node"));
    own_node(&mut three, Some("n2"), &[]).unwrap();
    assert_eq!(value(&three, "dcgm_diag", &["n2", "GPU Memory", "FAIL"]), Some(0.0));
}

#[test]
fn runs_of_nhc_are_counted_by_node_and_check() {
    let imported = nhc::read(&sample("nhc.log"), None).unwrap();
    assert_eq!(value(&imported, "nhc_runs", &["n1"]), Some(2.0));
    assert_eq!(value(&imported, "nhc_failures", &["n1", "check_hw_ib"]), Some(1.0));
    assert_eq!(value(&imported, "health_verdict", &["n1"]), Some(0.0), "the last run failed");
    assert_eq!(value(&imported, "health_verdict", &["n2"]), Some(1.0), "it came back");
    // A node's own log names no host.
    let own = "Node Health Check starting.\nERROR:  nhc:  Health check failed:  check_ps_service:  munge is not running\n";
    assert!(nhc::read(own, None).unwrap_err().contains("--node"));
    assert_eq!(
        value(&nhc::read(own, Some("n3")).unwrap(), "nhc_failures", &["n3", "check_ps_service"]),
        Some(1.0)
    );
}

#[test]
fn pages_and_queries_show_what_is_published_and_what_cannot_be() {
    let page = metrics::read(&sample("node.prom"), None).unwrap();
    assert_eq!(value(&page, "exporter_metric", &["n1", "node_hwmon_temp_celsius"]), Some(1.0));
    assert_eq!(value(&page, "exporter_metric", &["DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"]), Some(0.0));
    assert_eq!(value(&page, "exporter_metric", &["hpc_job"]), Some(1.0));
    assert_eq!(value(&page, "exporter_impossible", &["dcgm"]), Some(1.0), "130 percent");
    assert_eq!(value(&page, "exporter_impossible", &["node\""]), Some(0.0));
    let query = metrics::read(&sample("prometheus.json"), None).unwrap();
    assert_eq!(value(&query, "exporter_impossible", &["n2", "dcgm"]), Some(1.0), "a share of 1.5");
    assert_eq!(value(&query, "exporter_metric", &["n1", "DCGM_FI_PROF_SM_ACTIVE"]), Some(1.0));
    assert!(query.found.iter().all(|found| found.value != Some(0.0) || found.metric != "exporter_metric"));
}

#[test]
fn jobs_are_counted_without_their_steps() {
    let imported = sacct::read(&sample("sacct.txt")).unwrap();
    assert_eq!(value(&imported, "job_count", &["COMPLETED"]), Some(2.0));
    assert_eq!(value(&imported, "job_gpu_hours", &["COMPLETED"]), Some(32.0));
    assert_eq!(value(&imported, "job_gpu_hours", &["NODE_FAIL"]), Some(4.0));
    assert_eq!(value(&imported, "job_count", &["CANCELLED"]), Some(1.0));
    // --parsable ends every line with the delimiter.
    let parsable: String = sample("sacct.txt").lines().map(|line| format!("{line}|\n")).collect();
    assert_eq!(sacct::read(&parsable).unwrap().found, imported.found);
}

#[test]
fn every_malformed_file_is_a_sentence_with_its_place_and_a_mend() {
    for (kind, text, says) in [
        (Kind::Cmax, "{\"audit_data\":", "no complete JSON"),
        (Kind::Cmax, "{\"audit_data\":[]}", "audit_data is no object"),
        (Kind::Cmax, "{\"audit_data\":{\"audit\":{\"type\":\"k8s\"}}}", "this suite is for Slurm"),
        (Kind::Cmax, "{\"audit_data\":{\"audit\":{}}}", "--node"),
        (Kind::Cmax, "{\"audit_data\":{\"software\":{\"workerNode\":\"n1\"}}}", "none of the keys"),
        (Kind::Dcgmi, "{\"fio version\":\"x\"}", "not dcgmi diag -j"),
        (Kind::Dcgmi, "hello", "no format"),
        (Kind::Nhc, "hello", "no finished run of NHC"),
        (Kind::Nhc, "Health check failed:  check_x:  y", "--node"),
        (
            Kind::Nhc,
            "Nov 30 23:00:03 n1 nhc[771]: Node Health Check completed successfully (2s).",
            "ends inside a line",
        ),
        (Kind::Metrics, "node_uname_info{nodename=\"n1\"} 1", "ends inside a line"),
        (
            Kind::Sacct,
            "JobID|State|AllocTRES|ElapsedRaw|NodeList\n7|COMPLETED|cpu=1|60|n1",
            "ends inside a line",
        ),
        (Kind::Metrics, "node_load1 0.5\nwhat is this", "line 2: \"what is this\" is no sample"),
        (Kind::Metrics, "node_load1 0.5", "--node"),
        (Kind::Metrics, "node_uname_info{nodename=\"n1\"} x", "line 1"),
        (Kind::Metrics, "{\"status\":\"error\",\"error\":\"timeout\"}", "timeout; ask Prometheus again"),
        (Kind::Metrics, "{\"status\":\"success\",\"data\":{\"resultType\":\"scalar\"}}", "is scalar"),
        (
            Kind::Metrics,
            "{\"status\":\"success\",\"data\":{\"resultType\":\"vector\"}}",
            "data.result is no list",
        ),
        (
            Kind::Metrics,
            "{\"status\":\"success\",\"data\":{\"resultType\":\"vector\",\"result\":[]}}",
            "no series",
        ),
        (
            Kind::Metrics,
            "{\"status\":\"success\",\"data\":{\"resultType\":\"vector\",\"result\":[{\"metric\":{},\"value\":[1,\"1\"]}]}}",
            "data.result[0] has no __name__",
        ),
        (
            Kind::Metrics,
            "{\"status\":\"success\",\"data\":{\"resultType\":\"vector\",\"result\":[{\"metric\":{\"__name__\":\"up\",\"instance\":\"n1\"},\"value\":[1]}]}}",
            "is no sample",
        ),
        (Kind::Metrics, "up{nodename=\"n1\"} 1\nnode_uname_info{nodename=\"n1\"} ", "line 2"),
        (Kind::Sacct, "", "is empty"),
        (Kind::Sacct, "State|NodeList\n", "no column JobID"),
        (Kind::Sacct, "JobID|NodeList\n", "no column State"),
        (Kind::Sacct, "JobID|State\n7|COMPLETED|n1|x\n", "line 2: 4 fields instead of 2"),
        (Kind::Sacct, "JobID|State|ElapsedRaw\n7|COMPLETED|1:00:00\n", "line 2: ElapsedRaw \"1:00:00\""),
    ] {
        let why = read_one(kind, text, None).unwrap_err();
        assert!(why.contains(says), "{kind:?} {text:?}: {why}");
    }
    assert!(recognise("hello\n").unwrap_err().contains("--kind"));
    assert!(recognise(" \n").unwrap_err().contains("is empty"));
}

/// A results folder with the nodes n1 and n2.
fn folder() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let run = serde_json::json!({"schema": run::SCHEMA, "run": "r1", "cluster": "alpha", "profile": "demo", "nodes": ["n1", "n2"],
        "started": "2026-11-30T20:50:00Z", "hardware": "gpu"});
    std::fs::write(dir.path().join("run.json"), run.to_string()).unwrap();
    dir
}

fn import(dir: &Path, names: &[&str], node: Option<&str>) -> Result<u8, Failure> {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/import");
    run(&Args {
        files: names.iter().map(|name| data.join(name)).collect(),
        results: Some(dir.to_owned()),
        kind: None,
        node: node.map(str::to_owned),
        json: true,
    })
}

#[test]
fn an_import_is_evidence_that_the_scorer_verifies() {
    let dir = folder();
    assert_eq!(import(dir.path(), &["audit.values.json"], None), Ok(0));
    assert_eq!(import(dir.path(), &["nhc.log"], None), Ok(0));
    assert_eq!(import(dir.path(), &["dcgmi4.json"], Some("n2")), Ok(0));
    // Again: the same records, not twice.
    assert_eq!(import(dir.path(), &["nhc.log"], None), Ok(0));
    let methodology = crate::methodology::Methodology::built_in().unwrap();
    let loaded = crate::load::load(dir.path(), &methodology).unwrap();
    assert!(loaded.files.iter().all(|file| file.problem.is_none()), "{:?}", loaded.files);
    let flawed: Vec<String> = loaded
        .entries
        .iter()
        .filter_map(|(key, entry)| Some(format!("{} {}", key.metric, entry.flaw.as_ref()?)))
        .collect();
    assert!(flawed.is_empty(), "{flawed:?}");
    // A file that is changed afterwards is found.
    std::fs::write(dir.path().join("raw/import-nhc/nhc.log"), "Node Health Check completed successfully")
        .unwrap();
    let loaded = crate::load::load(dir.path(), &methodology).unwrap();
    assert!(loaded.files.iter().any(|file| file.problem.is_some()));
    // A record that is removed is found too.
    let records = std::fs::read_to_string(dir.path().join("records.jsonl")).unwrap();
    let fewer: String = records
        .lines()
        .filter(|line| !line.contains("nhc_failures"))
        .map(|line| format!("{line}\n"))
        .collect();
    std::fs::write(dir.path().join("records.jsonl"), fewer).unwrap();
    assert!(crate::load::load(dir.path(), &methodology).unwrap_err().to_string().contains("nhc_failures"));
}

#[test]
fn files_of_two_formats_and_unknown_nodes_are_refused() {
    let dir = folder();
    let failure = import(dir.path(), &["nhc.log", "sacct.txt"], None).unwrap_err();
    assert!(failure.message.contains("each format with a command of its own"), "{failure}");
    let failure = import(dir.path(), &["dcgmi4.json"], Some("n9")).unwrap_err();
    assert!(failure.message.contains("n9 is no node of the run"), "{failure}");
    let failure = import(dir.path(), &["dcgmi4.json"], None).unwrap_err();
    assert!(failure.message.contains("give --node"), "{failure}");
    let failure = import(dir.path(), &["none.json"], None).unwrap_err();
    assert!(failure.message.contains("none.json") && failure.message.contains("cannot be read"), "{failure}");
    assert!(!dir.path().join("records.jsonl").exists(), "nothing half-done is left");
}
