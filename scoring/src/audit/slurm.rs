//! Slurm's configuration and commands, asked once a cluster as an ordinary user.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use super::system::{self, Host, Ran, find, text};
use super::{Item, Verdict, idle, monitoring, storage};

const S: &str = "audit";

/// `Key = Value` lines of `scontrol show config`, the cgroup section among them.
struct Config(BTreeMap<String, String>);

impl Config {
    fn parse(text: &str) -> Self {
        let mut map = BTreeMap::new();
        for line in text.lines() {
            if let Some((key, value)) = line.split_once('=') {
                map.entry(key.trim().to_owned()).or_insert_with(|| value.trim().to_owned());
            }
        }
        Self(map)
    }

    /// The value; Slurm writes unset ones as `(null)`, `(none)` or leaves them empty.
    fn get(&self, key: &str) -> Option<&str> {
        self.0
            .get(key)
            .map(String::as_str)
            .filter(|value| !matches!(*value, "" | "(null)" | "(none)" | "None"))
    }

    /// As [`Config::get`], for messages.
    fn show(&self, key: &str) -> String {
        format!("{key}={}", self.get(key).unwrap_or("(not set)"))
    }
}

/// Everything about Slurm that one user can see from one node.
pub fn audit(host: &Host, nodes: &[String]) -> Vec<Item> {
    let mut items = commands();
    match system::run("scontrol", &["show", "config"]) {
        Ok(ran) if ran.ok() => items.extend(configuration(&Config::parse(&ran.out), nodes)),
        ran => {
            let why = format!("scontrol show config: {}", ran.map_or_else(|why| why, |ran| ran.complaint()));
            for metric in [
                "slurm_gres_gpu",
                "slurm_def_mem_per_cpu",
                "slurm_accounting",
                "slurm_health_check_program",
                "slurm_health_check_interval",
                "slurm_health_check_dcgm",
                "slurm_controller_on_compute",
                "slurm_topology_coverage",
            ] {
                let unit = match metric {
                    "slurm_def_mem_per_cpu" => "MiB",
                    "slurm_health_check_interval" => "s",
                    _ => "",
                };
                items.push(Item::unknown(S, metric, why.clone()).unit(unit));
            }
        }
    }
    items.push(options("slurm_mpi_pmix", &["--mpi=list"], "pmix", "build Slurm with PMIx (--with-pmix)"));
    items.push(options(
        "slurm_container_option",
        &["--help"],
        "--container-image",
        "install Pyxis in plugstack.conf",
    ));
    items.push(sudo(&host.node));
    items.push(storage::exports(host).on(&host.node));
    items.push(monitoring::foreign_nodes(nodes).on(&host.node));
    items.push(monitoring::dashboard().on(&host.node));
    items.extend(ssh(host, nodes));
    items.extend(idle::audit(nodes));
    items
}

/// The usual commands, each in a form that changes nothing.
fn commands() -> Vec<Item> {
    let job = std::env::var("SLURM_JOB_ID").unwrap_or_default();
    let forms: [(&str, Vec<&str>); 7] = [
        ("sinfo", vec!["-h", "-o", "%P %D %t"]),
        ("squeue", vec!["-h", "-t", "all", "-o", "%i %T"]),
        ("scontrol", vec!["ping"]),
        ("salloc", vec!["--version"]),
        ("sbatch", vec!["--test-only", "-n1", "--time=1", "--wrap=true"]),
        // A step would need an allocation of its own; this one shows that the launcher starts and reads slurm.conf.
        ("srun", vec!["--mpi=list"]),
        ("sacct", if job.is_empty() { vec!["-n", "-X"] } else { vec!["-n", "-X", "-j", &job] }),
    ];
    forms
        .into_iter()
        .map(|(command, args)| {
            let item = match system::run(command, &args) {
                Ok(ran) => {
                    // `scontrol ping` exits 0 whatever it finds.
                    let good = ran.ok() && (command != "scontrol" || ran.out.contains(" UP"));
                    let seen = if good { "answers".to_owned() } else { ran.complaint() };
                    Item::flag(S, "slurm_command", good, true, Verdict::Fail, seen)
                }
                Err(why) => Item::flag(S, "slurm_command", false, true, Verdict::Fail, why),
            };
            item.param("command", command)
                .by(&format!("{command} {}", args.join(" ")))
                .mend("make it work for every user, without an account set up by hand")
        })
        .collect()
}

fn configuration(config: &Config, nodes: &[String]) -> Vec<Item> {
    let mut items = vec![
        Item::flag(
            S,
            "slurm_gres_gpu",
            config.get("GresTypes").is_some_and(|types| types.split(',').any(|name| name == "gpu")),
            true,
            Verdict::Fail,
            config.show("GresTypes"),
        )
        .mend("GresTypes=gpu in slurm.conf, the GPUs in gres.conf"),
    ];
    for (part, key, word) in [("task", "TaskPlugin", "cgroup"), ("proctrack", "ProctrackType", "cgroup")] {
        let good = config.get(key).is_some_and(|value| value.contains(word));
        items.push(
            Item::flag(S, "slurm_cgroup", good, true, Verdict::Fail, config.show(key))
                .param("part", part)
                .mend(&format!("{key} with cgroup: without it a job's processes escape its limits")),
        );
    }
    items.push(
        match config.get("ConstrainDevices") {
            Some(value) => Item::flag(
                S,
                "slurm_cgroup",
                value == "yes",
                true,
                Verdict::Fail,
                config.show("ConstrainDevices"),
            ),
            None => {
                let file = config.get("SLURM_CONF").map(|conf| Path::new(conf).with_file_name("cgroup.conf"));
                let seen = file.as_deref().and_then(text).and_then(|text| constrain_devices(&text));
                match seen {
                    Some(on) => Item::flag(
                        S,
                        "slurm_cgroup",
                        on,
                        true,
                        Verdict::Fail,
                        "ConstrainDevices as cgroup.conf on this node says",
                    ),
                    None => Item::unavailable(
                        S,
                        "slurm_cgroup",
                        "neither scontrol show config nor cgroup.conf tells ConstrainDevices",
                    ),
                }
            }
        }
        .param("part", "devices")
        .mend("ConstrainDevices=yes in cgroup.conf: without it a job can use GPUs of others"),
    );
    let memory = config.get("DefMemPerCPU").or_else(|| config.get("DefMemPerNode").map(|_| "0"));
    items.push(
        match memory {
            Some("UNLIMITED") | None => {
                Item::value(S, "slurm_def_mem_per_cpu", 0.0, "no default memory is set").judged(Verdict::Warn)
            }
            Some(value) => match value.parse::<f64>() {
                Ok(mib) => Item::value(S, "slurm_def_mem_per_cpu", mib, config.show("DefMemPerCPU"))
                    .judged(if mib >= 4096.0 { Verdict::Pass } else { Verdict::Warn }),
                Err(_) => Item::unknown(S, "slurm_def_mem_per_cpu", config.show("DefMemPerCPU")),
            },
        }
        .unit("MiB")
        .mend("DefMemPerCPU=4096 or more, so that a job without --mem gets a fair share"),
    );
    items.push(accounting(config));
    items.extend(health_check(config));
    for (kind, keys) in [("prolog", ["Prolog", "Prolog[0]"]), ("epilog", ["Epilog", "Epilog[0]"])] {
        let found = keys.iter().find_map(|key| config.get(key));
        let seen = found.map_or_else(|| format!("no {kind} is set"), str::to_owned);
        items.push(
            Item::flag(S, "slurm_prolog", found.is_some(), true, Verdict::Warn, seen)
                .param("kind", kind)
                .param("flags", config.get("PrologFlags").unwrap_or("none"))
                .mend(&format!(
                    "set {kind} to clustermax-{kind}: a sick node is then seen before (after) each job"
                )),
        );
    }
    items.push(controller(config));
    items.push(topology(config, nodes));
    for item in &mut items {
        if item.command.is_empty() {
            item.command = "scontrol show config".to_owned();
        }
    }
    items
}

/// Keys of cgroup.conf are case-insensitive; `#` begins a comment.
fn constrain_devices(text: &str) -> Option<bool> {
    text.lines()
        .map(|line| line.split('#').next().unwrap_or_default())
        .filter_map(|line| line.split_once('='))
        .find(|(key, _)| key.trim().eq_ignore_ascii_case("ConstrainDevices"))
        .map(|(_, value)| value.trim().eq_ignore_ascii_case("yes"))
}

fn accounting(config: &Config) -> Item {
    let kind = config.get("AccountingStorageType").unwrap_or("accounting_storage/none").to_owned();
    let item = if kind.ends_with("/none") {
        Item::flag(S, "slurm_accounting", false, true, Verdict::Fail, kind)
    } else {
        match system::run("sacct", &["-n", "-X", "-S", "now-7days", "-o", "JobID"]) {
            Ok(ran) if ran.ok() => {
                let rows = ran.out.lines().filter(|line| !line.trim().is_empty()).count();
                Item::flag(
                    S,
                    "slurm_accounting",
                    rows > 0,
                    true,
                    Verdict::Warn,
                    format!("{kind}, sacct returns {rows} jobs"),
                )
            }
            Ok(ran) => Item::flag(
                S,
                "slurm_accounting",
                false,
                true,
                Verdict::Fail,
                format!("{kind}, sacct: {}", ran.complaint()),
            ),
            Err(why) => Item::unknown(S, "slurm_accounting", why),
        }
    };
    item.by("sacct -X").mend("AccountingStorageType=accounting_storage/slurmdbd and a running slurmdbd")
}

fn health_check(config: &Config) -> Vec<Item> {
    let program = config.get("HealthCheckProgram");
    let there = program.filter(|path| Path::new(path).is_file());
    let seen = match (program, there) {
        (None, _) => "HealthCheckProgram is not set".to_owned(),
        (Some(path), None) => format!("{path} is not on this node"),
        (Some(path), Some(_)) => path.to_owned(),
    };
    let interval = config
        .get("HealthCheckInterval")
        .and_then(|value| value.split_whitespace().next()?.parse::<f64>().ok())
        .unwrap_or(0.0);
    let dcgm = match there {
        None => Item::flag(S, "slurm_health_check_dcgm", false, true, Verdict::Warn, seen.clone()),
        Some(path) => match calls(Path::new(path), "dcgm") {
            Some(seen) => Item::flag(S, "slurm_health_check_dcgm", true, true, Verdict::Warn, seen),
            None if text(Path::new(path)).is_none() => {
                Item::unavailable(S, "slurm_health_check_dcgm", format!("{path} cannot be read by this user"))
            }
            None => Item::flag(
                S,
                "slurm_health_check_dcgm",
                false,
                true,
                Verdict::Warn,
                format!("{path} does not name DCGM"),
            ),
        },
    };
    vec![
        Item::flag(S, "slurm_health_check_program", there.is_some(), true, Verdict::Fail, seen)
            .mend("HealthCheckProgram=/usr/libexec/clustermax/healthcheckprogram in slurm.conf"),
        Item::value(S, "slurm_health_check_interval", interval, format!("{interval} s"))
            .judged(if interval > 0.0 { Verdict::Pass } else { Verdict::Fail })
            .unit("s")
            .mend("HealthCheckInterval=60, HealthCheckNodeState=ANY,CYCLE"),
        dcgm.by("cat the HealthCheckProgram").mend("let it call `dcgmi health -c`"),
    ]
}

/// Where `word` stands in a script or in a file that it names by absolute path.
fn calls(path: &Path, word: &str) -> Option<String> {
    const LARGEST: u64 = 1 << 20;
    let read = |path: &Path| {
        let small = path.metadata().is_ok_and(|meta| meta.is_file() && meta.len() <= LARGEST);
        small.then(|| text(path)).flatten()
    };
    let script = read(path)?;
    if script.to_ascii_lowercase().contains(word) {
        return Some(format!("{} names {word}", path.display()));
    }
    script
        .split(|c: char| c.is_whitespace() || matches!(c, '"' | '\'' | ';' | '(' | ')' | '='))
        .filter(|name| name.starts_with('/') && name.len() > 1)
        .take(50)
        .find(|name| read(Path::new(name)).is_some_and(|text| text.to_ascii_lowercase().contains(word)))
        .map(|name| format!("{name}, which {} names, names {word}", path.display()))
}

/// Slurm's controller should not share a machine with jobs.
fn controller(config: &Config) -> Item {
    let (metric, command) = ("slurm_controller_on_compute", "scontrol ping; scontrol show node");
    let hosts: BTreeSet<String> = ["SlurmctldHost[0]", "SlurmctldHost[1]"]
        .iter()
        .filter_map(|key| config.get(key))
        .map(|value| value.split('(').next().unwrap_or_default().to_owned())
        .collect();
    let nodes = match system::run("scontrol", &["-o", "show", "node"]) {
        Ok(ran) if ran.ok() => ran.out,
        ran => {
            let why = ran.map_or_else(|why| why, |ran| ran.complaint());
            return Item::unknown(S, metric, format!("scontrol show node: {why}")).by(command);
        }
    };
    if hosts.is_empty() {
        return Item::unknown(S, metric, "scontrol show config names no SlurmctldHost").by(command);
    }
    let shared = nodes.lines().find_map(|line| {
        let field = |key: &str| line.split_whitespace().find_map(|word| word.strip_prefix(key));
        [field("NodeHostName="), field("NodeAddr=")]
            .into_iter()
            .flatten()
            .find(|name| hosts.contains(*name))
            .map(str::to_owned)
    });
    let names: Vec<&str> = hosts.iter().map(String::as_str).collect();
    let seen = match &shared {
        Some(name) => format!("slurmctld runs on {name}, which is a compute node's machine"),
        None => format!("slurmctld runs on {}", names.join(" ")),
    };
    Item::flag(S, metric, shared.is_some(), false, Verdict::Warn, seen)
        .by(command)
        .mend("give slurmctld a machine of its own")
}

/// Share of the run's nodes that a switch or block of the topology holds.
fn topology(config: &Config, nodes: &[String]) -> Item {
    let (metric, command) = ("slurm_topology_coverage", "scontrol show topology");
    if nodes.len() == 1 {
        return Item::not_applicable(S, metric, "single_node: the allocation has one node").by(command);
    }
    let plugin = config.get("TopologyPlugin").unwrap_or("topology/none").to_owned();
    let mend = "describe the fabric in topology.conf: TopologyPlugin=topology/tree or topology/block";
    if !["tree", "block", "3d_torus"].iter().any(|kind| plugin.contains(kind)) {
        return Item::value(S, metric, 0.0, format!("TopologyPlugin={plugin}"))
            .judged(Verdict::Warn)
            .by(command)
            .mend(mend);
    }
    let shown = match system::run("scontrol", &["-o", "show", "topology"]) {
        Ok(ran) if ran.ok() => ran.out,
        ran => {
            let why = ran.map_or_else(|why| why, |ran| ran.complaint());
            return Item::unknown(S, metric, format!("scontrol show topology: {why}")).by(command);
        }
    };
    if nodes.is_empty() {
        return Item::unknown(S, metric, format!("{plugin}; the run's nodes are not known (--nodes)"))
            .by(command);
    }
    let lists: Vec<&str> = shown.split_whitespace().filter_map(|word| word.strip_prefix("Nodes=")).collect();
    let covered: BTreeSet<String> = system::run("scontrol", &["show", "hostnames", &lists.join(",")])
        .ok()
        .filter(Ran::ok)
        .map(|ran| ran.out.lines().map(str::to_owned).collect())
        .unwrap_or_default();
    let inside = nodes.iter().filter(|node| covered.contains(*node)).count();
    let share = inside as f64 / nodes.len() as f64;
    Item::value(S, metric, share, format!("{plugin}: {inside} of {} nodes are in it", nodes.len()))
        .judged(if inside == nodes.len() { Verdict::Pass } else { Verdict::Warn })
        .by(command)
        .mend(mend)
}

fn options(metric: &str, args: &[&str], word: &str, mend: &str) -> Item {
    let command = format!("srun {}", args.join(" "));
    match system::run("srun", args) {
        // The list goes to standard error, the help to standard output.
        Ok(ran) => {
            let there = ran.out.contains(word) || ran.err.contains(word);
            let seen = if there {
                format!("{command} shows {word}")
            } else {
                format!("{command} does not show {word}")
            };
            Item::flag(S, metric, there, true, Verdict::Warn, seen)
        }
        Err(why) => Item::unknown(S, metric, why),
    }
    .by(&command)
    .mend(mend)
}

fn sudo(node: &str) -> Item {
    match find("sudo") {
        None => Item::flag(S, "sudo_works", false, true, Verdict::Warn, "sudo is not installed"),
        Some(path) => match system::run(path, &["-n", "true"]) {
            Ok(ran) => {
                let seen = if ran.ok() { "sudo -n true succeeds".to_owned() } else { ran.complaint() };
                Item::flag(S, "sudo_works", ran.ok(), true, Verdict::Warn, seen)
            }
            Err(why) => Item::unknown(S, "sudo_works", why),
        },
    }
    .on(node)
    .by("sudo -n true")
    .mend("give the cluster's owner sudo on the login node")
}

/// From here to every other node, without a password and without asking anything.
fn ssh(host: &Host, nodes: &[String]) -> Vec<Item> {
    /// Each try may wait for its connect limit.
    const MOST: usize = 64;
    let metric = "ssh_between_nodes";
    if nodes.len() < 2 {
        return vec![
            Item::not_applicable(S, metric, "single_node: the allocation has one node").on(&host.node),
        ];
    }
    let Some(ssh) = find("ssh") else {
        return nodes
            .iter()
            .map(|node| Item::unavailable(S, metric, "no ssh client is installed").on(node))
            .collect();
    };
    let begin = std::time::Instant::now();
    nodes
        .iter()
        .enumerate()
        .map(|(position, node)| {
            if position >= MOST || begin.elapsed() > Duration::from_secs(20) {
                return Item::unavailable(
                    S,
                    metric,
                    "not tried: the time for it was spent on the nodes before",
                )
                .on(node);
            }
            let args = [
                "-o",
                "BatchMode=yes",
                "-o",
                "ConnectTimeout=3",
                "-o",
                "StrictHostKeyChecking=accept-new",
                "-o",
                "UserKnownHostsFile=/dev/null",
                "-o",
                "LogLevel=ERROR",
                "--",
                node,
                "true",
            ];
            match system::run_for(&ssh, &args, Duration::from_secs(5)) {
                Ok(ran) => {
                    let seen = if ran.ok() { "logs in".to_owned() } else { ran.complaint() };
                    Item::flag(S, metric, ran.ok(), true, Verdict::Warn, seen)
                }
                Err(why) => Item::unknown(S, metric, why),
            }
            .on(node)
            .by(&format!("ssh -o BatchMode=yes {node} true"))
            .mend("host-based authentication or a key in the shared home; pam_slurm_adopt keeps others out")
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHOWN: &str = "Configuration data as of 2026-11-30T20:00:00\nAccountingStorageType   = accounting_storage/none\n\
        DefMemPerNode           = UNLIMITED\nEpilog                  = (null)\nGresTypes               = gpu\n\
        HealthCheckInterval     = 30 sec\nHealthCheckProgram      = /nonexistent/healthcheckprogram\n\
        ProctrackType           = proctrack/cgroup\nProlog                  = /usr/libexec/clustermax/clustermax-prolog\n\
        SlurmctldHost[0]        = vm(127.0.0.1)\nTaskPlugin              = task/affinity,task/cgroup\n\
        TopologyPlugin          = topology/none\n\nCgroup Support Configuration:\nConstrainDevices        = yes\n\
        \nSlurmctld(primary) at vm is UP\n";

    fn item<'a>(items: &'a [Item], metric: &str, param: &str) -> &'a Item {
        items
            .iter()
            .find(|item| {
                item.metric == metric
                    && (param.is_empty() || item.params.values().any(|v| v.to_string() == param))
            })
            .unwrap()
    }

    #[test]
    fn configuration_is_judged() {
        let nodes = vec!["n1".to_owned(), "n2".to_owned()];
        let items = configuration(&Config::parse(SHOWN), &nodes);
        let value = |metric: &str, param: &str| item(&items, metric, param).value;
        assert_eq!(value("slurm_gres_gpu", ""), Some(1.0));
        assert_eq!(value("slurm_cgroup", "task"), Some(1.0));
        assert_eq!(value("slurm_cgroup", "proctrack"), Some(1.0));
        assert_eq!(value("slurm_cgroup", "devices"), Some(1.0));
        assert_eq!(value("slurm_prolog", "prolog"), Some(1.0));
        assert_eq!(value("slurm_prolog", "epilog"), Some(0.0));
        assert_eq!(value("slurm_health_check_interval", ""), Some(30.0));
        let program = item(&items, "slurm_health_check_program", "");
        assert_eq!((program.value, program.verdict), (Some(0.0), Verdict::Fail));
        assert!(program.observed.contains("/nonexistent/healthcheckprogram"), "{}", program.observed);
        assert_eq!(value("slurm_accounting", ""), Some(0.0));
        assert_eq!(value("slurm_topology_coverage", ""), Some(0.0));
        assert_eq!(value("slurm_def_mem_per_cpu", ""), Some(0.0));
    }

    #[test]
    fn dcgm_is_found_one_file_away() {
        let dir = tempfile::tempdir().unwrap();
        let inner = dir.path().join("checks.sh");
        std::fs::write(&inner, "dcgmi health -c\n").unwrap();
        let outer = dir.path().join("healthcheckprogram");
        std::fs::write(&outer, format!("#!/bin/sh\nexec {}\n", inner.display())).unwrap();
        assert!(calls(&outer, "dcgm").unwrap().contains("checks.sh"));
        assert_eq!(calls(&outer, "nothing"), None);
    }

    #[test]
    fn cgroup_conf_keys_may_be_written_in_any_case() {
        assert_eq!(constrain_devices("# ConstrainDevices=no\nconstraindevices = Yes # all\n"), Some(true));
        assert_eq!(constrain_devices("ConstrainCores=yes\n"), None);
    }
}
