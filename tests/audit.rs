//! `clustermax audit` of a whole simulated cluster, as an ordinary user and as root, and beside the public `cmax`.

#![allow(clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use harness::{Cluster, Said, program, project, run};
use serde_json::Value;

/// The programs in a folder that every user can read, wherever the checkout lies.
fn install(c: &Cluster) -> PathBuf {
    let prefix = c.scratch().join("prefix");
    std::fs::create_dir_all(&prefix).expect("prefix");
    for name in ["clustermax", "clustermax-healthcheck"] {
        std::fs::copy(program(name), prefix.join(name)).expect("program");
        std::fs::set_permissions(prefix.join(name), PermissionsExt::from_mode(0o755)).expect("mode");
    }
    prefix.join("clustermax")
}

/// What the audit printed as JSON. Exit 1 means that some criterion fails, as on every simulated cluster.
fn report(said: &Said) -> Value {
    assert_eq!(said.code, 1, "{} {}", said.out, said.err);
    serde_json::from_str(&said.out).unwrap_or_else(|e| panic!("{e}: {} {}", said.out, said.err))
}

fn row<'a>(report: &'a Value, id: &str) -> &'a Value {
    let rows = report["criteria"].as_array().expect("criteria");
    rows.iter().find(|row| row["id"] == id).unwrap_or_else(|| panic!("no row {id}"))
}

fn verdict<'a>(report: &'a Value, id: &str) -> &'a str {
    row(report, id)["verdict"].as_str().expect("verdict")
}

/// Each criterion that a program can decide, wholly or partly, has a verdict with what was seen or why nothing was; one that is not
/// as it should be says how to look again and what to do. (What only a comparison of nodes tells once said nothing when it passed.)
fn every_criterion_ends_in_a_state(report: &Value) {
    let rows = report["criteria"].as_array().expect("criteria");
    let counted: u64 = report["counts"].as_object().expect("counts").values().filter_map(Value::as_u64).sum();
    assert_eq!(counted as usize, rows.len());
    let list = std::fs::read_to_string(project().join("scoring/data/criteria-list.tsv")).expect("list");
    let wanted: Vec<&str> = list
        .lines()
        .filter_map(|line| {
            let mut words = line.split('\t');
            let (id, _, class) = (words.next()?, words.next()?, words.next()?);
            matches!(class, "machine" | "partly").then_some(id)
        })
        .collect();
    let found: Vec<&str> = rows.iter().filter_map(|row| row["id"].as_str()).collect();
    assert_eq!(found, wanted);
    for row in rows {
        let text = |key: &str| row[key].as_str().unwrap_or_default().to_owned();
        assert!(["PASS", "WARN", "FAIL", "SKIP"].contains(&text("verdict").as_str()), "{row}");
        assert!(!text("observed").is_empty(), "no observed value and no reason: {row}");
        assert!(!text("observed").contains("does not decide it"), "only Kubernetes is left out: {row}");
        if ["WARN", "FAIL"].contains(&text("verdict").as_str()) {
            assert!(!text("mend").is_empty() && !text("command").is_empty(), "no mend or command: {row}");
        }
    }
}

/// By the published schema, which notices a key too many; nothing where Python has no jsonschema.
fn keeps_its_schema(c: &Cluster, report: &Value) {
    let python = "import sys\ntry:\n    import jsonschema\nexcept ImportError:\n    sys.exit()\nimport json\n\
                  schema, report = [json.load(open(path)) for path in sys.argv[1:]]\njsonschema.validate(report, schema)\n\
                  report['remark'] = 1\ntry:\n    jsonschema.validate(report, schema)\n\
                  except jsonschema.ValidationError:\n    sys.exit()\nsys.exit('a key too many is not noticed')";
    let file = c.scratch().join("report.json");
    std::fs::write(&file, report.to_string()).expect("report.json");
    let schema = project().join("docs/schemas/audit-report.schema.json");
    let said = run(Command::new("/usr/bin/python3").args(["-c", python]).arg(schema).arg(file));
    assert_eq!(said.code, 0, "{}", said.err);
}

#[test]
fn the_whole_cluster_is_audited_by_a_user_and_by_root_and_busy_nodes_are_named() {
    let c = Cluster::up(&["--nodes", "4", "--enforcement", "enforce"]);
    let clustermax = install(&c).display().to_string();
    let results = c.scratch().join("audit");
    let kept = results.display().to_string();

    // As an ordinary user, all nodes idle.
    let said = run(&mut c.user_command(&[&clustermax, "audit", "--json", "--results", &kept]));
    let user = report(&said);
    let seconds = user["seconds"].as_f64().expect("seconds");
    println!("4 nodes as a user: {seconds:.1} s; {}", user["nodes"]);
    assert!(seconds < 60.0, "{seconds} s");
    assert_eq!(user["root"], false);
    assert_eq!(user["nodes"].as_array().map(Vec::len), Some(4), "{}", user["not_seen"]);
    every_criterion_ends_in_a_state(&user);
    keeps_its_schema(&c, &user);
    // Proven, not read from configuration files.
    for id in ["orc-22", "orc-23", "lif-08", "net-01", "mon-15", "mon-17", "orc-21"] {
        assert_ne!(verdict(&user, id), "SKIP", "{}", row(&user, id));
        assert_ne!(verdict(&user, id), "FAIL", "{}", row(&user, id));
    }
    if c.dir().join("etc/cgroup.conf").exists() {
        assert_eq!(verdict(&user, "orc-09"), "PASS", "{}", row(&user, "orc-09"));
        let records = std::fs::read_to_string(results.join("records.jsonl")).expect("records.jsonl");
        let proof = records.lines().filter(|line| line.contains("gpu_others_refused"));
        let held_none = proof.filter(|line| line.contains("holds no GPU opens 0 of 8")).count();
        assert_eq!(held_none, 4, "every node was tried from a step without a GPU");
    }
    // The simulated ports have full membership in the default partition: cmax passes that, the rating's text does not.
    assert_eq!(verdict(&user, "sec-10"), "FAIL", "{}", row(&user, "sec-10"));
    // What the user may not see is said, not guessed.
    assert_eq!(verdict(&user, "lif-09"), "SKIP");
    let seen = |report: &Value, id: &str| row(report, id)["observed"].as_str().unwrap_or_default().to_owned();
    for (id, why) in [
        ("lif-17", "--internet-url"),
        ("lif-19", "--before DIR"),
        ("rel-17", "no NVLink domain spans nodes"),
        ("rel-34", "clustermax sla --records"),
        ("rel-31", "clustermax inject"),
        ("rel-28", "--stages burnin"),
    ] {
        assert!(verdict(&user, id) == "SKIP" && seen(&user, id).contains(why), "{}", row(&user, id));
    }
    // The kept folder is a results folder like any other.
    let scored = run(Command::new(program("clustermax")).arg("score").arg(&results));
    assert_eq!(scored.code, 1, "simulated, so not rated: {}", scored.err);
    assert!(scored.out.contains("NOT RATED"), "{}", scored.out);

    // A node that a job holds is named and not waited for; a drained one too.
    c.slurm(&["sbatch", "-w", "n4", "--exclusive", "--gres=gpu:8", "-o", "/dev/null", "--wrap", "sleep 120"]);
    c.wait(20, "n4 is busy", || {
        c.node("n4").state.starts_with("ALLOC") || c.node("n4").state.starts_with("MIX")
    });
    c.slurm(&["scontrol", "update", "nodename=n3", "state=drain", "reason=by hand"]);
    let image = "/images/none.sqsh";
    let with = ["--before", &kept, "--container-image", image];
    let said = run(&mut c.command(&[&[clustermax.as_str(), "audit", "--json"][..], &with[..]].concat()));
    let root = report(&said);
    every_criterion_ends_in_a_state(&root);
    // With nodes that were not seen.
    keeps_its_schema(&c, &root);
    // Nobody rebooted, and no container can start here: the first is not known, the second is proven.
    assert!(seen(&root, "lif-19").contains("has not been rebooted"), "{}", row(&root, "lif-19"));
    assert!(
        verdict(&root, "orc-12") == "FAIL" && seen(&root, "orc-12").contains(image),
        "{}",
        row(&root, "orc-12")
    );
    println!(
        "as root: {:.1} s; {}; not seen {}",
        root["seconds"].as_f64().unwrap_or(0.0),
        root["nodes"],
        root["not_seen"]
    );
    assert_eq!(root["root"], true);
    let not_seen = root["not_seen"].to_string();
    assert!(not_seen.contains("n3") && not_seen.contains("by hand"), "{not_seen}");
    let looked = root["nodes"].to_string();
    assert!(looked.contains("n1") && looked.contains("n2") && !looked.contains("n3"), "{looked}");
    // An allocated node is left alone; a mixed one is looked at without a GPU.
    assert!(not_seen.contains("busy") || looked.contains("\"gpus\":0"), "{looked} {not_seen}");
    assert!(root["seconds"].as_f64().expect("seconds") < 60.0);
    // Root sees the kernel log.
    assert_ne!(verdict(&root, "mon-20"), "SKIP", "{}", row(&root, "mon-20"));

    // A table from outside decides, and one of no use is refused by line.
    let table = c.scratch().join("minimum.tsv");
    let printed = run(Command::new(program("clustermax")).args(["audit", "--print-minimum-versions"]));
    let lower: String =
        printed.out.lines().map(|line| line.replace("570.211.01", "570.1.1") + "\n").collect();
    std::fs::write(&table, &lower).expect("table");
    let given = table.display().to_string();
    let said = run(&mut c.user_command(&[
        &clustermax,
        "audit",
        "--json",
        "--nodes",
        "n1",
        "--minimum-versions",
        &given,
    ]));
    let text = report(&said).to_string();
    assert!(!text.contains("570.211.01"), "the given table counts");
    std::fs::write(&table, lower.replace("security", "unsafe")).expect("table");
    let said = run(&mut c.user_command(&[&clustermax, "audit", "--minimum-versions", &given]));
    assert_eq!(said.code, 2, "{}", said.out);
    assert!(said.err.contains("minimum.tsv line 2") && said.err.lines().count() == 1, "{}", said.err);
    for (option, value, why) in
        [("--internet-url", "10.0.0.1", "no address of the web"), ("--before", "/", "no results folder")]
    {
        let said = run(&mut c.user_command(&[&clustermax, "audit", option, value]));
        assert!(said.code == 2 && said.err.contains(why) && said.err.lines().count() == 1, "{}", said.err);
    }
    // Without Slurm: a sentence, and the way to look at one node.
    let said = run(Command::new(program("clustermax")).arg("audit").env("SLURM_CONF", "/nonexistent"));
    assert_eq!(said.code, 3, "{}", said.out);
    assert!(said.err.contains("--scope node"), "{}", said.err);
}

/// A row of cmax and the criterion that asks for the same thing here.
const SAME: [(&str, &str); 36] = [
    ("access.externalIdp.detected", "orc-07"),
    ("access.slurmCommandsOk", "orc-02"),
    ("access.sshToComputeNodes", "orc-08"),
    ("access.sudoAvailable", "orc-04"),
    ("bmc-ipmi", "sec-21"),
    ("containers.dockerOnWorkers", "orc-14"),
    ("containers.enroot", "orc-13"),
    ("containers.nvidiaContainerToolkit", "sec-16"),
    ("containers.pyxisRuntimeWorks", "orc-12"),
    ("containers.singularity", "orc-15"),
    ("gpus.gdrcopy.installed", "lif-21"),
    ("gpus.gpuDirectRdmaPath", "lif-07"),
    ("gpus.pcieAcs.enabled", "lif-09"),
    ("healthChecks.dcgmInstalled", "mon-16"),
    ("healthChecks.dcgmSlurm", "orc-22"),
    ("healthChecks.monitoringStack.dcgmExporter", "mon-06"),
    ("healthChecks.nhcInstalled", "orc-23"),
    ("nccl_ib_qps.status", "net-14"),
    ("nccl_topo_file.status", "net-13"),
    ("networking.hcaNamingValid", "net-12"),
    ("networking.ncclAutoConfig", "net-05"),
    ("networking.topologyConfigured", "orc-10"),
    ("nvlink-boundary", "sec-24"),
    ("security.guestKernel.newerInstalled", "sec-32"),
    ("securityVersions.connectxFirmware.status", "sec-17"),
    ("securityVersions.dpuHostIsolation.status", "sec-22"),
    ("securityVersions.nvidiaDriver.status", "sec-17"),
    ("securityVersions.virtioNetBluefield.status", "sec-23"),
    ("slurm.accounting.sacctAvailable", "mon-04"),
    ("software.cudaVisibleDevicesStatus", "orc-09"),
    ("software.lmod.modulesStatus", "orc-11"),
    ("software.nccl.installed", "orc-18"),
    ("software.ncu.profilingEnabled", "mon-13"),
    ("software.perf.perfEventParanoid", "mon-14"),
    ("pcie-passthrough", "sec-25"),
    ("vm_iommu.status", "lif-22"),
];

/// Rows whose verdicts depend on what the machine under the simulated cluster has installed.
const OF_THE_MACHINE: [&str; 12] = [
    "access.sshToComputeNodes",
    "access.sudoAvailable",
    "containers.dockerOnWorkers",
    "containers.enroot",
    "containers.nvidiaContainerToolkit",
    "containers.singularity",
    "security.guestKernel.newerInstalled",
    "software.lmod.modulesStatus",
    "software.nccl.installed",
    "software.perf.perfEventParanoid",
    "access.externalIdp.detected",
    "vm_iommu.status",
];

/// Stands for DCGM as the simulated NVML library stands for NVIDIA's: it answers as DCGM 4.5.3 does on healthy GPUs.
const DCGMI: &str = r#"#!/bin/sh
case "$*" in
*version*) echo "dcgmi  version: 4.5.3" ;;
"health -g 0 -c -j") echo '{"body":{"Overall Health":{"value":"Healthy"}},"header":["Health Monitor Report"]}' ;;
"health -g 0 -s a") echo "Health monitor systems set successfully." ;;
health*) echo "Overall Health: Healthy" ;;
diag*) echo "Successfully ran diagnostic for group." ;;
*) echo "8 GPUs found." ;;
esac
"#;

#[test]
fn the_public_cmax_passes_our_health_checks_and_every_difference_is_explained() {
    if harness::slurm_root().is_some() {
        harness::skipped(
            "cmax is installed for this machine's Python, which the other release's system has not",
        );
        return;
    }
    let c = Cluster::up(&["--nodes", "2", "--enforcement", "enforce"]);
    let venv = c.scratch().join("venv");
    let made = run(Command::new("/usr/bin/python3").args(["-m", "venv"]).arg(&venv));
    let pip = venv.join("bin/pip");
    let package = ["install", "-q", "--disable-pip-version-check", "clustermax==0.2.1"];
    let got = if made.code == 0 { run(Command::new(&pip).args(package)) } else { made };
    if got.code != 0 {
        println!(
            "cmax cannot be had here, so nothing is compared: {}",
            got.err.lines().last().unwrap_or_default()
        );
        return;
    }
    let clustermax = install(&c).display().to_string();
    // Where administrators' programs lie: of root, not writable for others.
    let bin = c.dir().join("bin");
    std::fs::create_dir_all(&bin).expect("bin");
    std::fs::write(bin.join("dcgmi"), DCGMI).expect("dcgmi");
    std::fs::set_permissions(bin.join("dcgmi"), PermissionsExt::from_mode(0o755)).expect("mode");
    let config = std::fs::read_to_string(c.config()).expect("config");
    let line = format!("[paths]\ndcgmi = \"{}\"\n", bin.join("dcgmi").display());
    std::fs::write(c.config(), config.replacen("[paths]\n", &line, 1)).expect("config");
    let checks = c.node_dir("n1").join("run/checks.json");
    c.wait(40, "the checks ask DCGM", || {
        let text = std::fs::read_to_string(&checks).unwrap_or_default();
        let value: Value = serde_json::from_str(&text).unwrap_or_default();
        value["checks"]["gpu.dcgm"]["status"] == "pass"
    });
    let path = format!("PATH={}:{}", bin.display(), std::env::var("PATH").unwrap_or_default());
    let ours = report(&run(&mut c.user_command(&["/usr/bin/env", &path, &clustermax, "audit", "--json"])));

    let runs = c.scratch().join("cmax");
    let (home, root) =
        (format!("HOME={}", c.scratch().display()), format!("CLUSTERMAX_RUNS_ROOT={}", runs.display()));
    let cmax = venv.join("bin/cmax").display().to_string();
    let said = run(&mut c.user_command(&[
        "/usr/bin/env",
        &path,
        &home,
        &root,
        &cmax,
        "audit",
        "--slurm",
        "-y",
        "-v",
    ]));
    let theirs = rows(&said.out);
    assert!(theirs.len() > 30, "cmax: {} {}", said.out, said.err);
    let values = values(&runs);
    let health = &values["audit_data"]["healthChecks"];
    println!("cmax on our health checks: {health}");
    // What concerns us: set, wired, light.
    for row in ["healthChecks.dcgmSlurm", "healthChecks.dcgmInstalled", "access.slurmCommandsOk"] {
        assert_eq!(theirs.get(row).map(String::as_str), Some("PASS"), "{row} of cmax: {health}");
    }
    assert_eq!(
        (&health["programConfigured"], &health["dcgmSlurm"]),
        (&Value::Bool(true), &Value::Bool(true))
    );
    assert_eq!(health["prologFast"], "true");
    for id in ["orc-22", "mon-16", "orc-23"] {
        assert_eq!(verdict(&ours, id), "PASS", "{}", row(&ours, id));
    }
    // Its values are a source of records.
    let values_file = find(&runs, "audit.values.json").expect("audit.values.json");
    let said =
        run(Command::new(program("clustermax")).arg("import").arg(&values_file).args(["--node", "n1"]));
    assert_eq!(said.code, 0, "{}", said.err);
    assert!(said.out.contains("slurm_health_check_program"), "{}", said.out);
    compare(&theirs, &ours);
}

/// `PASS  Access / Sudo Available  [access.sudoAvailable]`
fn rows(out: &str) -> BTreeMap<String, String> {
    out.lines()
        .filter_map(|line| {
            let word = line.split_whitespace().next()?;
            let key = line.trim_end().strip_suffix(']')?.rsplit_once('[')?.1;
            ["PASS", "WARNING", "FAIL", "SKIPPED"].contains(&word).then(|| (key.to_owned(), word.to_owned()))
        })
        .collect()
}

fn find(folder: &Path, name: &str) -> Option<PathBuf> {
    std::fs::read_dir(folder)
        .ok()?
        .flatten()
        .map(|entry| entry.path())
        .find_map(|path| if path.is_dir() { find(&path, name) } else { path.ends_with(name).then_some(path) })
}

fn values(runs: &Path) -> Value {
    let file = find(runs, "audit.values.json").expect("audit.values.json");
    serde_json::from_str(&std::fs::read_to_string(file).expect("values")).expect("JSON")
}

/// The page holds every row as it came out now, and an explanation where the two differ. `CLUSTERMAX_BLESS=1` writes the
/// verdicts; explanations are for people to write.
fn compare(theirs: &BTreeMap<String, String>, ours: &Value) {
    let page = project().join("docs/cmax-comparison.md");
    let text = std::fs::read_to_string(&page).unwrap_or_default();
    let known: BTreeMap<String, String> = text
        .lines()
        .filter_map(|line| {
            let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
            let key = cells.first()?.strip_prefix('`')?.strip_suffix('`')?;
            Some((key.to_owned(), (*cells.last()?).to_owned()))
        })
        .collect();
    let word = |key: &str| known.get(key).cloned().unwrap_or_default();
    let mut table = String::from(
        "| row of cmax | says | criterion here | says | why they differ |\n|---|---|---|---|---|\n",
    );
    let mut unexplained = Vec::new();
    for (key, id) in SAME {
        let of_machine = OF_THE_MACHINE.contains(&key);
        let (left, right) = match theirs.get(key) {
            _ if of_machine => ("as the machine is".to_owned(), "as the machine is".to_owned()),
            Some(said) => (said.clone(), verdict(ours, id).to_owned()),
            None => ("not printed".to_owned(), verdict(ours, id).to_owned()),
        };
        let why = word(key);
        let agree = matches!(
            (left.as_str(), right.as_str()),
            ("PASS", "PASS") | ("FAIL", "FAIL") | ("WARNING", "WARN") | ("SKIPPED", "SKIP")
        );
        if !agree && why.is_empty() {
            unexplained.push(key.to_owned());
        }
        table.push_str(&format!("| `{key}` | {left} | {id} | {right} | {why} |\n"));
    }
    table.push_str("\nRows without a criterion of their own here:\n\n| row of cmax | why |\n|---|---|\n");
    // What it prints depends on the machine too: rows that are explained stay.
    let mut others: Vec<&String> =
        theirs.keys().chain(known.keys()).filter(|key| !SAME.iter().any(|(same, _)| same == *key)).collect();
    others.sort();
    others.dedup();
    for key in others {
        let why = word(key);
        if why.is_empty() {
            unexplained.push(key.clone());
        }
        table.push_str(&format!("| `{key}` | {why} |\n"));
    }
    let (begin, end) = ("<!-- rows: a test keeps them -->\n", "<!-- end of rows -->");
    let now = match (text.split_once(begin), text.split_once(end)) {
        (Some((head, _)), Some((_, tail))) => format!("{head}{begin}\n{table}\n{end}{tail}"),
        _ => format!("# cmax\n\n{begin}\n{table}\n{end}\n"),
    };
    if std::env::var_os("CLUSTERMAX_BLESS").is_some() {
        std::fs::write(&page, &now).expect("docs/cmax-comparison.md");
    }
    assert!(unexplained.is_empty(), "docs/cmax-comparison.md explains no difference at {unexplained:?}");
    assert!(
        text == now || std::env::var_os("CLUSTERMAX_BLESS").is_some(),
        "docs/cmax-comparison.md is not what came out now; look at the difference, then run this test with CLUSTERMAX_BLESS=1:\n{table}"
    );
}
