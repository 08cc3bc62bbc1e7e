//! The main job: `sbatch clustermax-suite.sh` on a simulated cluster, by an ordinary user, to its score and report.

#![allow(clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::path::Path;
use std::process::Command;

use harness::{Cluster, Said, program, project, run};
use serde_json::Value;

/// Puts what users run into a folder that they can read, wherever the checkout lies.
fn install(c: &Cluster) -> std::path::PathBuf {
    let prefix = c.scratch().join("prefix");
    std::fs::create_dir_all(&prefix).expect("prefix");
    for name in ["clustermax", "clustermax-healthcheck"] {
        std::fs::copy(program(name), prefix.join(name)).expect("program");
    }
    let said = run(Command::new("cp").arg("-r").arg(project().join("batch-scripts")).arg(&prefix));
    assert_eq!(said.code, 0, "{}", said.err);
    let said = run(Command::new("chmod").args(["-R", "go=rX"]).arg(&prefix));
    assert_eq!(said.code, 0, "{}", said.err);
    prefix
}

/// The portable archive, unpacked where users can read it: what an evaluator has on a cluster without our packages.
fn portable(c: &Cluster) -> std::path::PathBuf {
    let out = c.scratch().join("archive");
    let said = run(Command::new(project().join("packaging/build-portable"))
        .arg(std::env::consts::ARCH)
        .arg("--programs")
        .arg(harness::programs())
        .arg("--out")
        .arg(&out));
    assert_eq!(said.code, 0, "{}", said.err);
    assert!(said.out.contains(&format!("clustermax-healthcheck: {}, glibc 2.", std::env::consts::ARCH)));
    let archive = std::fs::read_dir(&out)
        .expect("archive")
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|extension| extension == "gz"))
        .expect("one .tar.gz");
    let tree = c.scratch().join("unpacked");
    std::fs::create_dir(&tree).expect("folder");
    let said =
        run(Command::new("tar").arg("-xzf").arg(&archive).args(["--strip-components=1", "-C"]).arg(&tree));
    assert_eq!(said.code, 0, "{}", said.err);
    let as_user = |script: &str| {
        let script = format!("cd '{}' && {script}", tree.display());
        run(&mut c.user_command(&["sh", "-c", &script]))
    };
    let said =
        as_user("sha256sum -c --quiet SHA256SUMS && bin/clustermax --version && bin/clustermax suite plan");
    assert_eq!(said.code, 0, "{}", said.err);
    assert!(said.out.starts_with("clustermax ") && said.out.contains("profile demo"), "{}", said.out);
    let said = as_user("env -u CLUSTERMAX_CONFIG -u SLURM_CONF bin/clustermax-healthcheck run --mode audit");
    assert!(said.code <= 1 && said.out.contains("needs root"), "{}{}", said.out, said.err);
    tree
}

fn submit(c: &Cluster, prefix: &Path, log: &Path, args: &[&str]) -> Said {
    let log = log.display().to_string();
    let prefix = prefix.display().to_string();
    let script = format!("{prefix}/batch-scripts/clustermax-suite.sh");
    let mut all = vec!["sbatch", "--wait", "-N", "2", "--gres=gpu:8", "-o", &log, &script];
    // The archive's script finds the rest by itself.
    if !Path::new(&prefix).join("bin").is_dir() {
        all.extend(["--prefix", &prefix]);
    }
    all.extend(args);
    let mut command = c.user_command(&all);
    let tests = c.scratch().join("nccl-tests");
    if tests.is_dir() {
        // A library that the stand-in looks for and nobody loads.
        command.env("NCCL_PROFILER_PLUGIN", tests.join("libnccl-profiler-inspector.so"));
        command.env("CLUSTERMAX_NCCL_TESTS", tests).env("NCCL_IB_HCA", "mlx5");
    }
    run(command.current_dir(c.scratch()))
}

fn json(path: &Path) -> Value {
    let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn records(results: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(results.join("records.jsonl")).expect("records.jsonl");
    text.lines().map(|l| serde_json::from_str(l).expect("a record a line")).collect()
}

/// Programs that print what nccl-tests print, where users can read them.
fn nccl_tests(c: &Cluster) {
    let folder = c.scratch().join("nccl-tests");
    std::fs::create_dir(&folder).expect("folder");
    for name in ["all_reduce_perf", "alltoall_perf"] {
        std::fs::copy(project().join("tests/nccl-tests/all_reduce_perf"), folder.join(name))
            .expect("program");
    }
    std::fs::write(folder.join("libnccl-profiler-inspector.so"), "").expect("library");
    let said = run(Command::new("chmod").args(["-R", "go=rX"]).arg(&folder));
    assert_eq!(said.code, 0, "{}", said.err);
}

/// nccl-tests as one world of all tasks, on one node, without NVLink; what is not there is told, NCCL's log lies apart.
fn nccl_tests_ran(results: &Path, records: &[Value]) {
    let of = |collective: &str| {
        let this = |r: &&Value| {
            r["metric"] == "busbw"
                && r["params"]["tool"] == "nccl-tests"
                && r["params"]["collective"] == collective
        };
        records.iter().filter(this).collect::<Vec<_>>()
    };
    let all_reduce = of("all_reduce");
    assert!(all_reduce.iter().all(|r| r["state"] == "measured"), "{all_reduce:?}");
    let has = |size: u64, nodes: u64, variant: &str| {
        all_reduce.iter().any(|r| {
            r["params"]["size"] == size
                && r["params"]["nodes"] == nodes
                && r["params"]["ranks"] == 8 * nodes
                && r["params"]["variant"].as_str().unwrap_or_default() == variant
        })
    };
    assert!(has(8, 2, "") && has(16 << 20, 2, "") && has(16 << 20, 1, "") && has(16 << 20, 1, "nvlink_off"));
    assert!(of("alltoall").iter().all(|r| r["state"] == "measured"));
    let gather = of("gather");
    assert!(gather.len() == 1 && gather[0]["state"] == "unavailable", "{gather:?}");
    let set = |r: &Value| r["metric"] == "nccl_setting" && r["params"]["origin"] == "the job's environment";
    assert!(
        records.iter().any(|r| set(r) && r["params"]["name"] == "NCCL_IB_HCA"),
        "NCCL_IB_HCA has an origin"
    );
    let raw = std::fs::read_dir(results.join("raw/collectives/nccl-tests")).expect("raw").flatten();
    let name = |file: std::fs::DirEntry| file.file_name().to_string_lossy().into_owned();
    let of_sweep =
        |name: &String| name.starts_with("nccl-all_reduce.n1.") || name.starts_with("nccl-all_reduce.n2.");
    assert_eq!(raw.map(name).filter(of_sweep).count(), 16, "NCCL's log is a file a process");
    let dumps = std::fs::read_dir(results.join("raw/collectives/nccl-tests/inspector")).expect("dumps");
    assert_eq!(dumps.count(), 16, "NCCL Inspector dumps a file a process");
    let inspected: Vec<&Value> = records.iter().filter(|r| r["params"]["tool"] == "nccl-inspector").collect();
    let hint =
        |r: &&Value| r["detail"].as_str().is_some_and(|why| why.starts_with("rank 3 on n1 waits least"));
    assert!(inspected.iter().any(hint), "{inspected:?}");
}

/// One stage by its own script from the archive, with nothing set and nothing of ours in PATH: Slurm runs a copy of the script, which
/// finds the program all the same.
fn a_stage_by_its_own_script(c: &Cluster, prefix: &Path) {
    let log = c.scratch().join("stage.log");
    let (script, out) = (prefix.join("batch-scripts/inventory.sbatch"), log.display().to_string());
    let words =
        ["sbatch", "--wait", "-N", "2", "-o", &out, &script.display().to_string(), "--profile", "demo"];
    let mut command = c.user_command(&words);
    let said = run(command.env("PATH", "/usr/bin:/bin").current_dir(c.scratch()));
    let text = std::fs::read_to_string(&log).unwrap_or_default();
    assert_eq!(said.code, 0, "{}\n{text}", said.err);
    assert!(text.contains("inventory: done"), "{text}");
    assert!(text.contains("success  gpu_missing = 0 on every node: "), "{text}");
    // Its figures, and not 187 criteria that one stage leaves unknown.
    assert!(text.contains("\n[inventory]\n") && !text.contains("ClusterMAX for Slurm: "), "{text}");
}

#[test]
fn the_demo_profile_ends_in_a_score_and_a_report() {
    let c = Cluster::up(&["--nodes", "2", "--enforcement", "enforce"]);
    let prefix = portable(&c);
    a_stage_by_its_own_script(&c, &prefix);
    nccl_tests(&c);
    let (results, log) = (c.scratch().join("results"), c.scratch().join("log"));
    let said = submit(&c, &prefix, &log, &["--profile", "demo", "--results", &results.display().to_string()]);
    let text = std::fs::read_to_string(&log).unwrap_or_default();
    assert_eq!(said.code, 0, "{}\n{text}", said.err);

    // What counts as success stood there before the stage ran.
    let place = |part: &str| text.find(part).unwrap_or_else(|| panic!("no {part:?} in {text}"));
    assert!(place("gemm: at most") < place("success  gemm_wrong = 0"), "{text}");
    assert!(place("success  gemm_wrong = 0") < place("gemm: done in"), "{text}");
    assert!(place("gemm: done in") < place("success  gemm_wrong = 0: yes, 2 values"), "{text}");
    assert!(place("needs    fio; without: unavailable") < place("storage: done in"), "{text}");
    documents_keep_their_schemas(&c, &results);
    // The raw output of every stage gives the same records once more.
    let verified = run(Command::new(program("clustermax")).arg("verify").arg(&results));
    assert_eq!(verified.code, 0, "{}", verified.out);
    assert!(verified.out.contains(" stages were read again from their raw output"), "{}", verified.out);
    // Each metric is of a stage that metrics.tsv names for it.
    let doubted = json(&results.join("score.json"))["not_believed"].to_string();
    assert!(!doubted.contains(" gives no "), "{doubted}");

    // Everything measured, and every record traced to its raw output.
    let records = records(&results);
    for (stage, metric) in [
        ("lifecycle", "prolog_seconds"),
        ("lifecycle", "first_task_seconds"),
        ("preflight", "guard"),
        ("inventory", "gpu_count"),
        ("audit", "slurm_health_check_program"),
        ("collectives", "busbw"),
        ("collectives", "wrong_values"),
        ("gemm", "gemm"),
        ("gemm", "memory_bandwidth"),
        ("train", "tokens_per_second"),
        ("train", "loss_in_band"),
        ("inference", "inference_tokens_per_second"),
        ("checkpoint", "checkpoint_bandwidth"),
        ("storage", "fio_bandwidth"),
        ("storage", "metadata_rate"),
        ("storage", "import_torch_slowdown"),
    ] {
        assert!(
            records.iter().any(|r| r["stage"] == stage && r["metric"] == metric && r["state"] == "measured"),
            "no {metric} measured in {stage}"
        );
    }
    // A system without pip, as those of the other releases are, installs nothing, and says so.
    let pip = harness::slurm_root().unwrap_or_else(|| "/".into()).join("usr/lib/python3/dist-packages/pip");
    let state = if pip.exists() { "measured" } else { "unavailable" };
    let mut installs =
        records.iter().filter(|r| r["metric"] == "package_install_seconds" && r["params"]["tool"] == "pip");
    let told = |r: &Value| r["state"] == state && r["detail"].as_str().is_some_and(|d| !d.is_empty());
    assert!(installs.clone().count() > 0 && installs.all(told), "package_install_seconds is {state}");
    for (metric, right) in [
        ("loss_in_band", 1.0),
        ("ranks_out_of_band", 0.0),
        ("replicas_differing", 0.0),
        ("checkpoint_wrong", 0.0),
    ] {
        let found = records.iter().filter(|r| r["metric"] == metric && r["state"] == "measured");
        assert!(found.clone().count() > 0 && found.clone().all(|r| r["value"] == right), "{metric}");
    }
    for r in &records {
        assert_eq!(r["value"].is_null(), r["state"] != "measured", "{r}");
        if let Some(file) = r["evidence"]["file"].as_str() {
            assert!(results.join(file).exists(), "{file}");
        }
    }
    nccl_tests_ran(&results, &records);
    // What gloo of torch 1.13 lacks is unavailable by name, not missing; a newer one may have it.
    let newer = harness::slurm_root().is_some();
    let named = |r: &Value| {
        let state = &r["state"];
        r.to_string().contains("reduce_scatter") && (state == "unavailable" || newer && state == "measured")
    };
    assert!(records.iter().any(named), "reduce_scatter is named");
    // DCP of torch 1.13 cannot be imported by Python 3.11; torch 2.6 of the other release has it.
    let dcp = |r: &Value| r["metric"] == "checkpoint_wrong" && r["params"]["api"] == "dcp";
    let state = if newer { "measured" } else { "unavailable" };
    assert!(records.iter().any(|r| dcp(r) && r["state"] == state), "DCP is {state}");

    // Not rated, and why.
    let score = json(&results.join("score.json"));
    let report = std::fs::read_to_string(results.join("report.txt")).expect("report.txt");
    assert!(
        report.contains("NOT RATED") && report.contains("CPU-only") && report.contains("simulated"),
        "{report}"
    );
    assert_eq!(score["rating"]["state"], "not_rated", "{}", score["rating"]);
    // GPUs were given and torch can use none: said before any figure, in the report and by `suite status`.
    let guards = report.find("Guards against figures that mislead").expect("a section of guards");
    assert!(guards < report.find("Measured (").expect("figures"), "{report}");
    assert!(
        report[guards..]
            .contains("MISLEADS gpus (n1 n2): the job holds 8 GPUs a node and torch can use none")
    );
    let status = run(Command::new(program("clustermax")).args(["suite", "status"]).arg(&results));
    assert!(status.code == 0 && status.out.contains("MISLEADS gpus (n1 n2)"), "{}{}", status.out, status.err);

    // The same input gives the same bytes.
    let before = std::fs::read(results.join("score.json")).expect("score.json");
    let again = run(Command::new(program("clustermax")).arg("score").arg(&results));
    assert_eq!(again.code, 1, "not rated: {}", again.err);
    assert_eq!(before, std::fs::read(results.join("score.json")).expect("score.json"));

    // A real browser shows it, from one file.
    browser_shows(&results.join("report.html"));

    // Resumed: what is done is not done again; another run's folder is refused.
    let marker = results.join("stages/gemm.json");
    let kept = std::fs::read(results.join("stages/inventory.json")).expect("marker");
    std::fs::remove_file(&marker).expect("marker of gemm");
    let said = submit(&c, &prefix, &log, &["--resume", &results.display().to_string()]);
    assert_eq!(said.code, 0, "{}", std::fs::read_to_string(&log).unwrap_or_default());
    assert!(marker.exists(), "gemm ran again");
    assert_eq!(
        kept,
        std::fs::read(results.join("stages/inventory.json")).expect("marker"),
        "inventory did not"
    );
    let text = std::fs::read_to_string(results.join("run.json")).expect("run.json");
    let cluster = json(&results.join("run.json"))["cluster"].as_str().expect("cluster").to_string();
    std::fs::write(results.join("run.json"), text.replace(&cluster, "another")).expect("run.json");
    let said = submit(&c, &prefix, &log, &["--resume", &results.display().to_string()]);
    let text = std::fs::read_to_string(&log).unwrap_or_default();
    assert_eq!(said.code, 2, "{text}");
    assert!(text.contains("another"), "{text}");

    // A Python that was asked for and is none ends the job at once: hours without torch would be a surprise.
    let log = c.scratch().join("no-python.log");
    let said = submit(&c, &prefix, &log, &["--python", "/usr/bin/true"]);
    let text = std::fs::read_to_string(&log).unwrap_or_default();
    assert_eq!(said.code, 3, "{text}");
    assert!(text.starts_with("clustermax: /usr/bin/true cannot be run as an interpreter"), "{text}");
}

/// What only a run writes, by the published schemas; nothing where Python has no jsonschema.
fn documents_keep_their_schemas(c: &Cluster, results: &Path) {
    let status = c.scratch().join("status.json");
    let said = run(Command::new(program("clustermax")).args(["suite", "status", "--json"]).arg(results));
    std::fs::write(&status, said.out).expect("status.json");
    let python = "import sys\ntry:\n    import jsonschema\nexcept ImportError:\n    sys.exit()\nimport json\n\
                  for schema, document in zip(sys.argv[1::2], sys.argv[2::2]):\n    \
                  jsonschema.validate(json.load(open(document)), json.load(open(schema)))";
    let mut check = Command::new("/usr/bin/python3");
    check.args(["-c", python]);
    for (schema, document) in [
        ("suite-status", status),
        ("progress", results.join("progress.json")),
        ("run", results.join("run.json")),
        ("stage", results.join("stages/gemm.json")),
        ("audit", results.join("raw/audit/cluster.json")),
        ("audit", results.join("raw/audit/node-n2.json")),
    ] {
        check.arg(project().join(format!("docs/schemas/{schema}.schema.json"))).arg(document);
    }
    let said = run(&mut check);
    assert_eq!(said.code, 0, "{}", said.err);
}

/// Waits until something is there.
fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let end = std::time::Instant::now() + std::time::Duration::from_secs(120);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(std::time::Instant::now() < end, "{what} did not happen within 120 s");
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
}

/// Process ids whose command line holds all these words.
fn processes(words: &[&str]) -> Vec<i32> {
    let entries = std::fs::read_dir("/proc").expect("/proc").flatten();
    let ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    ids.filter(|pid: &i32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        words.iter().all(|word| line.contains(word))
    })
    .collect()
}

fn signal(name: &str, pid: i32) {
    let said = run(Command::new("kill").arg(format!("-{name}")).arg(pid.to_string()));
    assert_eq!(said.code, 0, "{}", said.err);
}

#[test]
fn a_stopped_rank_is_named_and_a_killed_run_goes_on_with_a_node_drained() {
    let c = Cluster::up(&["--nodes", "2"]);
    let prefix = install(&c);
    let (results, log) = (c.scratch().join("results"), c.scratch().join("log"));
    let folder = results.display().to_string();
    let options = ["--profile", "smoke", "--stages", "inventory,collectives,gemm", "--results", &folder];
    std::thread::scope(|scope| {
        let job = scope.spawn(|| submit(&c, &prefix, &log, &options));
        // The beat says which process is which rank.
        let beat = results.join("raw/collectives/beat/1.json");
        let pid = until("collective", || {
            let beat: Value = serde_json::from_str(&std::fs::read_to_string(&beat).ok()?).ok()?;
            (beat["step"].as_u64()? > 0).then(|| beat["pid"].as_i64())?
        });
        signal("STOP", i32::try_from(pid).expect("pid"));
        let marker = results.join("stages/collectives.json");
        until("end of collectives", || marker.exists().then_some(()));
        let marker = json(&marker);
        let reason = marker["reason"].as_str().expect("a reason");
        assert_eq!(marker["state"], "failed", "{marker}");
        assert!(reason.contains("rank 1 on n2") && reason.contains(&format!("process {pid}")), "{reason}");
        assert!(reason.contains("was stopped by a signal (state T)"), "{reason}");
        let kept = std::fs::read_to_string(results.join("raw/collectives/stuck.txt")).expect("evidence");
        assert!(kept.contains("T (stopped)"), "{kept}");

        // The suite goes on, and dies in the next stage.
        until("gemm", || results.join("raw/gemm/beat/0.json").exists().then_some(()));
        let suite = processes(&["suite run", &folder]);
        assert!(!suite.is_empty());
        for pid in suite {
            signal("KILL", pid);
        }
        assert_ne!(job.join().expect("job").code, 0, "a killed batch step is no success");
    });
    let status = |code| {
        let said = run(Command::new(program("clustermax")).args(["suite", "status", &folder]));
        assert_eq!(said.code, code, "{}{}", said.out, said.err);
        said.out
    };
    let text = status(1);
    assert!(text.contains("not complete"), "{text}");

    // Of a burn-in of 120 s it had done 117.
    let burnin = results.join("raw/burnin");
    std::fs::create_dir_all(burnin.join("part-1")).expect("folder");
    let parts = r#"[{"part":1,"nodes":["n1","n2"],"seconds":0.0,"ended":null,"failure":false}]"#;
    for (name, text) in [
        ("parts.json", parts),
        ("part-1/n1.samples", "{}\n0 50\n118 50\n"),
        ("part-1/n2.samples", "{}\n0 50\n117 50\n11"),
    ] {
        std::fs::write(burnin.join(name), text).expect("file");
    }
    let said = run(Command::new("chmod").args(["-R", "a+rwX"]).arg(&burnin));
    assert_eq!(said.code, 0, "{}", said.err);

    // The rest, on the same nodes; one of them is drained in the middle.
    let again = ["--profile", "smoke", "--stages", "inventory,collectives,gemm,burnin", "--resume", &folder];
    std::thread::scope(|scope| {
        let job = scope.spawn(|| submit(&c, &prefix, &log, &again));
        let marker = results.join("stages/collectives.json");
        until("collectives", || (json(&marker)["state"] == "done").then_some(()));
        c.slurm(&["scontrol", "update", "nodename=n2", "state=drain", "reason=operator: disk"]);
        assert_eq!(job.join().expect("job").code, 0, "{}", std::fs::read_to_string(&log).unwrap_or_default());
    });
    let text = std::fs::read_to_string(&log).expect("log");
    assert!(text.contains("inventory is done, not run again"), "{text}");
    assert!(text.contains("node n2 is dra") && text.contains("operator: disk"), "{text}");
    for stage in ["inventory", "collectives", "gemm", "burnin"] {
        assert_eq!(json(&results.join(format!("stages/{stage}.json")))["state"], "done", "{stage}");
    }
    let found = records(&results);
    assert!(found.iter().any(|r| r["metric"] == "gemm" && r["state"] == "measured"));
    // It went on for what was left, on the node that drains, too.
    let parts = json(&burnin.join("parts.json"));
    assert_eq!((&parts[0]["seconds"], &parts[1]["ended"]), (&117.0.into(), &"complete".into()), "{parts}");
    assert!(parts[0]["ended"].as_str().expect("how").contains("killed"), "{parts}");
    let second = parts[1]["seconds"].as_f64().expect("seconds");
    assert!(parts[1]["nodes"] == serde_json::json!(["n1", "n2"]) && second < 60.0, "{parts}");
    let cut = found.iter().find(|r| r["metric"] == "burnin_interruptions").expect("interruptions");
    assert!(cut["value"] == 1.0 && cut["detail"].as_str().expect("detail").contains("part 1 after 117 s"));
    assert!(found.iter().any(|r| r["metric"] == "failure_rate_bound" && r["state"] == "measured"));
    let plan = run(Command::new("sh")
        .arg("-c")
        .arg(format!("{} suite resume {folder} --dry-run", program("clustermax").display())));
    assert_eq!(plan.code, 0, "{}", plan.err);
    for word in ["--nodelist=n1,n2", "--resume", "clustermax-suite.sh", "--prefix"] {
        assert!(plan.out.contains(word), "no {word} in {}", plan.out);
    }
}

fn browser_shows(report: &Path) {
    let profile = tempfile::tempdir().expect("profile");
    let said = run(Command::new("chromium")
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"])
        .args([
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--dump-dom",
        ])
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .arg(format!("file://{}", report.display())));
    assert_eq!(said.code, 0, "{}", said.err);
    let dom = said.out;
    for part in [
        "Not rated",
        "CPU-only",
        "Categories",
        "Gates",
        "Bus bandwidth",
        "<svg",
        "all_reduce",
        "tokens_per_second",
    ] {
        assert!(dom.contains(part), "the page shows no {part}");
    }
    for outside in ["src=\"http", "href=\"http", "<script", "url(http"] {
        assert!(!dom.contains(outside), "the page asks for {outside}");
    }
}
