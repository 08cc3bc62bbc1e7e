//! The whole cluster: one short step a node, Slurm once, and a verdict for every criterion that a program can decide.
//!
//! Records and rules are those of the rating: an audit that passes here cannot fail in `clustermax score`.

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::system::{self, Host, Ran};
use super::verdicts::{Row, row, shown};
use super::versions::Table;
use super::{Args, Document, Item, SCHEMA, Verdict, containers, internet, now, reboot, slurm};
use crate::Failure;
use crate::judge;
use crate::methodology::Class;

/// Schema of the document that `--json` prints.
pub const REPORT_SCHEMA: &str = "clustermax-audit-report/1";
/// How long a node may take to start the step before it is named busy, seconds.
const IMMEDIATE: u64 = 15;

/// A node as sinfo shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Target {
    name: String,
    state: String,
    partition: String,
    gpus: u32,
    reason: String,
}

/// What became of a node.
#[derive(Debug, Clone, Serialize)]
pub struct Seen {
    pub node: String,
    pub state: String,
    /// GPUs that the step held.
    pub gpus: u32,
    /// Time on the node, seconds.
    pub seconds: f64,
    /// Time from here, seconds: scheduling, prolog, launch and the way back are in it.
    pub wall: f64,
}

/// A node that was not looked at.
#[derive(Debug, Clone, Serialize)]
pub struct Unseen {
    pub node: String,
    pub state: String,
    pub why: String,
}

/// What `--json` prints.
#[derive(Debug, Serialize)]
pub struct Report {
    pub schema: &'static str,
    pub tool: String,
    pub methodology: String,
    pub minimum_versions: String,
    pub cluster: String,
    pub root: bool,
    pub started: String,
    pub seconds: f64,
    pub nodes: Vec<Seen>,
    pub not_seen: Vec<Unseen>,
    pub counts: BTreeMap<&'static str, usize>,
    pub criteria: Vec<Row>,
}

/// Audits the cluster: all nodes that can be looked at now, and Slurm.
///
/// # Errors
/// Slurm does not answer (3), a bad option or a folder that cannot be written (2).
pub fn run(args: &Args, table: &Table) -> Result<u8, Failure> {
    let begin = Instant::now();
    let methodology = crate::score::methodology(args.data.as_deref())?;
    let host = Host::open(args.config.as_deref(), args.node.as_deref())?;
    let url = internet::url(args.internet_url.as_deref())?;
    if let Some(folder) = &args.before {
        reboot::before(folder, "")?;
    }
    let targets = targets(args)?;
    let cluster = cluster_name();
    let names: Vec<String> = targets.iter().map(|target| target.name.clone()).collect();
    let started = now();
    let (mut documents, seen, mut unseen, of_cluster, way) = std::thread::scope(|scope| {
        let way = scope.spawn(|| internet::audit(&host.node, url.as_deref()));
        let of_cluster = scope.spawn(|| {
            let from = Instant::now();
            let items = slurm::audit(&host, &names);
            document(&host.node, items, from.elapsed().as_secs_f64())
        });
        let (documents, seen, unseen) = fan_out(args, &targets);
        (documents, seen, unseen, of_cluster.join(), way.join())
    });
    let panicked = |_| Failure::missing("a part of the audit ended in a panic; report it");
    let mut of_cluster = of_cluster.map_err(panicked)?;
    of_cluster.items.extend(way.map_err(panicked)?);
    if let (Some(image), Some(node)) = (&args.container_image, seen.first()) {
        let target = targets.iter().find(|target| target.name == node.node);
        let options = target.map(|target| placed(args, target, inside())).unwrap_or_default();
        of_cluster.items.extend(containers::start(image, &node.node, &options));
    }
    if let Some(folder) = &args.before {
        for document in &mut documents {
            let item = reboot::compare(reboot::before(folder, &document.node)?.as_ref(), document);
            document.items.retain(|old| old.metric != item.metric);
            document.items.push(item);
        }
    }
    unseen.sort_by_key(|one| natural(&one.node));
    let looked: Vec<String> =
        if seen.is_empty() { names.clone() } else { seen.iter().map(|node| node.node.clone()).collect() };
    let (folder, _temporary) = match &args.results {
        Some(folder) => (folder.clone(), None),
        None => {
            let made = Temporary::new()?;
            (made.0.join("run"), Some(made))
        }
    };
    write(&folder, args, &cluster, &looked, &documents, &of_cluster, &started)?;
    let loaded = crate::load::load(&folder, &methodology).map_err(Failure::input)?;
    let evidence = judge::Evidence::new(&loaded, &methodology);
    let mut items: Vec<Item> = documents.iter().flat_map(|document| document.items.clone()).collect();
    items.extend(of_cluster.items.clone());
    let rows: Vec<Row> = methodology
        .all()
        .filter(|criterion| matches!(criterion.class, Class::Machine | Class::Partly))
        .map(|criterion| row(&methodology, criterion, &evidence, &items))
        .collect();
    let mut counts = BTreeMap::from([("PASS", 0), ("WARN", 0), ("FAIL", 0), ("SKIP", 0)]);
    for row in &rows {
        *counts.entry(row.verdict).or_insert(0) += 1;
    }
    let report = Report {
        schema: REPORT_SCHEMA,
        tool: format!("clustermax {}", env!("CARGO_PKG_VERSION")),
        methodology: methodology.rules.methodology.clone(),
        minimum_versions: table.date.clone(),
        cluster,
        root: system::is_root(),
        started,
        seconds: begin.elapsed().as_secs_f64(),
        nodes: seen,
        not_seen: unseen,
        counts,
        criteria: rows,
    };
    let text = if args.json {
        serde_json::to_string_pretty(&report).map_err(Failure::input)? + "\n"
    } else {
        shown(&report, args.results.as_deref())
    };
    match &args.out {
        Some(out) => crate::run::write_atomic(out, text.as_bytes()).map_err(|error| {
            Failure::input(format!(
                "cannot write {}: {error}; give --out a file in a folder you may write to",
                out.display()
            ))
        })?,
        None => crate::report::print(&text)?,
    }
    Ok(u8::from(report.counts.get("FAIL").is_some_and(|fails| *fails > 0)))
}

fn document(node: &str, items: Vec<Item>, seconds: f64) -> Document {
    Document {
        schema: SCHEMA.to_owned(),
        tool: format!("clustermax {}", env!("CARGO_PKG_VERSION")),
        node: node.to_owned(),
        started: now(),
        seconds,
        items,
        mounts: BTreeMap::new(),
        home: None,
    }
}

/// Natural order: n2 before n10.
fn natural(name: &str) -> (String, u64, String) {
    let digits = name.find(|c: char| c.is_ascii_digit()).unwrap_or(name.len());
    let (head, rest) = name.split_at(digits);
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    (head.to_owned(), rest[..end].parse().unwrap_or(0), rest[end..].to_owned())
}

fn slurm_says(program: &str, arguments: &[&str]) -> Result<String, Failure> {
    let mend = "start it where Slurm's commands work, or look at this node alone with --scope node";
    let fail = |why: String| Failure::missing(format!("{program} does not answer: {why}; {mend}"));
    match system::run(program, arguments) {
        Ok(ran) if ran.ok() => Ok(ran.out),
        Ok(ran) => Err(fail(ran.complaint())),
        Err(why) => Err(fail(why)),
    }
}

fn cluster_name() -> String {
    let shown = system::run("scontrol", &["show", "config"]).ok().filter(Ran::ok);
    let name = shown.and_then(|ran| {
        ran.out.lines().find_map(|line| {
            line.strip_prefix("ClusterName")?.split_once('=').map(|(_, name)| name.trim().to_owned())
        })
    });
    name.unwrap_or_else(|| "unknown".to_owned())
}

/// The nodes to look at: those of this job, else all that sinfo shows.
fn targets(args: &Args) -> Result<Vec<Target>, Failure> {
    // Fields parted by a character that no name holds; the reason comes last.
    let mut arguments = vec!["-h", "-N", "-o", "%N|%T|%P|%G|%E"];
    if let Some(partition) = &args.partition {
        arguments.extend(["-p", partition]);
    }
    let mut found = parse_targets(&slurm_says("sinfo", &arguments)?);
    let mut wanted = args.nodes.clone();
    if wanted.is_empty()
        && let Ok(list) = std::env::var("SLURM_JOB_NODELIST")
        && std::env::var_os("SLURM_JOB_ID").is_some()
    {
        wanted = slurm_says("scontrol", &["show", "hostnames", &list])?.lines().map(str::to_owned).collect();
    }
    if let Some(unknown) = wanted.iter().find(|name| !found.iter().any(|target| target.name == **name)) {
        return Err(Failure::input(format!(
            "sinfo shows no node {unknown:?}; --nodes takes names of `sinfo -N`, parted by commas"
        )));
    }
    if !wanted.is_empty() {
        found.retain(|target| wanted.contains(&target.name));
    }
    if found.is_empty() {
        return Err(Failure::missing(
            "sinfo shows no node; give another --partition, or ask who runs the cluster",
        ));
    }
    found.sort_by_key(|one| natural(&one.name));
    Ok(found)
}

fn parse_targets(shown: &str) -> Vec<Target> {
    let mut found: Vec<Target> = Vec::new();
    for line in shown.lines() {
        let mut fields = line.splitn(5, '|');
        let (Some(name), Some(state), Some(partition), Some(gres)) =
            (fields.next(), fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let target = Target {
            name: name.trim().to_owned(),
            state: state.trim().to_owned(),
            partition: partition.trim().trim_end_matches('*').to_owned(),
            gpus: super::gpu::gres_gpus(gres),
            reason: fields.next().unwrap_or_default().trim().to_owned(),
        };
        match found.iter_mut().find(|known| known.name == target.name) {
            // A node stands once for each of its partitions; the default one is marked.
            Some(known) if partition.trim().ends_with('*') => *known = target,
            Some(_) => {}
            None => found.push(target),
        }
    }
    found
}

/// Why a node is not looked at, else how many GPUs its step asks for.
fn plan(target: &Target, inside: bool) -> Result<u32, String> {
    if inside {
        let held = std::env::var("SLURM_GPUS_ON_NODE").ok().and_then(|count| count.parse().ok());
        return Ok(held.unwrap_or(0));
    }
    // `*` does not respond, `~` is powered down, `#` comes up, `$` is in maintenance, `@` boots.
    if let Some(mark) = target.state.chars().last().filter(|mark| !mark.is_ascii_alphabetic()) {
        return Err(match mark {
            '*' => "does not respond".to_owned(),
            _ => format!("is {}", target.state),
        });
    }
    match target.state.as_str() {
        "idle" => Ok(target.gpus),
        // Its GPUs are others'; a step without any still sees the rest.
        "mixed" => Ok(0),
        "allocated" | "completing" => Err(format!("busy ({}), not waited for", target.state)),
        _ if target.reason.is_empty() || target.reason == "none" => {
            Err(format!("out of service ({})", target.state))
        }
        _ => Err(format!("out of service ({}: {})", target.state, target.reason)),
    }
}

fn fan_out(args: &Args, targets: &[Target]) -> (Vec<Document>, Vec<Seen>, Vec<Unseen>) {
    let inside = inside();
    let queue: Mutex<VecDeque<&Target>> = Mutex::new(targets.iter().collect());
    let done = Mutex::new((Vec::new(), Vec::new(), Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..args.at_a_time.clamp(1, 64).min(targets.len()) {
            scope.spawn(|| {
                loop {
                    let next = queue.lock().ok().and_then(|mut queue| queue.pop_front());
                    let Some(target) = next else { break };
                    let outcome = plan(target, inside).and_then(|gpus| one(args, target, gpus, inside));
                    let Ok(mut done) = done.lock() else { break };
                    match outcome {
                        Ok((document, seen)) => {
                            done.0.push(document);
                            done.1.push(seen);
                        }
                        Err(why) => done.2.push(Unseen {
                            node: target.name.clone(),
                            state: target.state.clone(),
                            why,
                        }),
                    }
                }
            });
        }
    });
    let (mut documents, mut seen, unseen): (Vec<Document>, Vec<Seen>, Vec<Unseen>) =
        done.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    documents.sort_by_key(|one| natural(&one.node));
    seen.sort_by_key(|one| natural(&one.node));
    (documents, seen, unseen)
}

/// Inside a job, whose nodes are ours already.
fn inside() -> bool {
    std::env::var_os("SLURM_JOB_ID").is_some()
}

/// srun's options for one step on a node: within the job, or by a short job of its own.
fn placed(args: &Args, target: &Target, inside: bool) -> Vec<String> {
    let mut options: Vec<String> = Vec::new();
    if inside {
        options.extend(["--overlap", "--overcommit"].map(str::to_owned));
    } else {
        options.extend(["--job-name=cmx-audit", "-t", "3"].map(str::to_owned));
        options.push(format!("--immediate={IMMEDIATE}"));
        if !target.partition.is_empty() {
            options.extend(["-p".to_owned(), target.partition.clone()]);
        }
    }
    options.extend(args.srun.iter().cloned());
    options
}

/// One step on one node.
fn one(args: &Args, target: &Target, gpus: u32, inside: bool) -> Result<(Document, Seen), String> {
    let own = match &args.program {
        Some(program) => program.clone(),
        None => std::env::current_exe().map_err(|error| error.to_string())?,
    };
    let mut command = std::process::Command::new("srun");
    command.args(["--quiet", "--mpi=none", "-N1", "-n1", "-w", &target.name]);
    command.arg(if gpus > 0 { format!("--gres=gpu:{gpus}") } else { "--gres=none".to_owned() });
    command.args(placed(args, target, inside));
    command.arg("--").arg(own).args([
        "audit",
        "--scope",
        "inventory",
        "--scope",
        "node",
        "--json",
        "--node",
        &target.name,
    ]);
    if let Some(config) = &args.config {
        command.arg("--config").arg(config);
    }
    let table = match &args.minimum_versions {
        Some(_) => {
            command.args(["--minimum-versions", "-"]);
            Some(args.table_text.as_str())
        }
        None => None,
    };
    let begin = Instant::now();
    let ran = system::run_command(&mut command, Duration::from_secs(args.step_seconds.clamp(5, 600)), table)?;
    let wall = begin.elapsed().as_secs_f64();
    let document = ran.out.find('{').and_then(|at| serde_json::from_str::<Document>(&ran.out[at..]).ok());
    match document {
        Some(document) if document.schema == SCHEMA && document.node == target.name => {
            let seen = Seen {
                node: target.name.clone(),
                state: target.state.clone(),
                gpus,
                seconds: document.seconds,
                wall,
            };
            let mut document = document;
            if !inside && gpus > 0 {
                document.items.push(prolog(target, wall - document.seconds));
            }
            Ok((document, seen))
        }
        Some(document) => Err(format!("the step answered as {} with {}", document.node, document.schema)),
        None if ran.code.is_none() => Err(format!("no answer within {} s", args.step_seconds)),
        None => Err(refused(&ran)),
    }
}

/// A node that is idle starts a step at once: what it takes beyond the look itself is at least the prolog.
fn prolog(target: &Target, rest: f64) -> Item {
    let rest = rest.max(0.0);
    Item::value(
        "audit",
        "prolog_seconds",
        rest,
        format!("{rest:.2} s from srun to the task and back, the look itself left out: scheduling, prolog and launch"),
    )
    .param("kind", "upper bound")
    .unit("s")
    .judged(if rest <= 30.0 { Verdict::Pass } else { Verdict::Warn })
    .on(&target.name)
    .by(&format!("time srun -N1 -w {} --gres=gpu:{} true", target.name, target.gpus))
    .mend("keep the prolog light: deep checks belong on idle nodes, not before a job")
}

fn refused(ran: &Ran) -> String {
    let lines: Vec<&str> = ran.err.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let known = lines.iter().find(|line| {
        line.contains("Unable to allocate")
            || line.contains("immediate")
            || line.contains("busy")
            || line.contains("unavailable")
    });
    match known {
        Some(line) => format!("busy: not free within {IMMEDIATE} s ({line})"),
        None => ran.complaint(),
    }
}

/// A folder of this process that goes when it is dropped.
struct Temporary(PathBuf);

impl Temporary {
    fn new() -> Result<Self, Failure> {
        use std::os::unix::fs::DirBuilderExt as _;
        let stamp = jiff::Timestamp::now().as_nanosecond();
        let path = std::env::temp_dir().join(format!("clustermax-audit.{}.{stamp}", std::process::id()));
        // Fails when somebody made it before us.
        std::fs::DirBuilder::new().mode(0o700).create(&path).map_err(|error| {
            Failure::input(format!(
                "cannot make {}: {error}; set TMPDIR to a folder you may write to, or give --results",
                path.display()
            ))
        })?;
        Ok(Self(path))
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Raw documents and their records, as the suite's stages write them.
fn write(
    folder: &Path,
    args: &Args,
    cluster: &str,
    nodes: &[String],
    documents: &[Document],
    of_cluster: &Document,
    started: &str,
) -> Result<(), Failure> {
    let own = std::env::current_exe().map_err(Failure::missing)?;
    let shown = folder.display().to_string();
    let with_gpus = documents
        .iter()
        .flat_map(|document| &document.items)
        .any(|item| item.metric == "gpu_count" && item.value >= Some(1.0));
    let id = format!("audit-{}-{}", started.replace(['-', ':'], ""), std::process::id());
    let list = nodes.join(",");
    let hardware = if with_gpus { "gpu" } else { "cpu" };
    let mut init = vec![
        "collect",
        "init",
        &shown,
        "--run",
        &id,
        "--cluster",
        cluster,
        "--nodes",
        &list,
        "--profile",
        "audit",
        "--hardware",
        hardware,
        "--started",
        started,
    ];
    let config = args.config.as_ref().map(|path| path.display().to_string());
    if let Some(config) = &config {
        init.extend(["--config", config]);
    }
    collect(&own, &init)?;
    let put = |name: &str, document: &Document| -> Result<(), Failure> {
        let path = folder.join("raw").join(name);
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent).map_err(Failure::input)?;
        }
        let text = serde_json::to_string_pretty(document).map_err(Failure::input)? + "\n";
        crate::run::write_atomic(&path, text.as_bytes()).map_err(|error| {
            Failure::input(format!(
                "cannot write {}: {error}; give --results a folder you may write to",
                path.display()
            ))
        })
    };
    for document in documents {
        put(&format!("inventory/{}.json", document.node), document)?;
        put(&format!("audit/node-{}.json", document.node), document)?;
    }
    put("audit/cluster.json", of_cluster)?;
    for stage in ["inventory", "audit"] {
        collect(&own, &["collect", stage, &shown, "--state", "done", "--started", started])?;
    }
    Ok(())
}

fn collect(own: &Path, arguments: &[&str]) -> Result<(), Failure> {
    match system::run_for(own, arguments, Duration::from_secs(120)) {
        Ok(ran) if ran.ok() => Ok(()),
        Ok(ran) => {
            let why = ran.complaint();
            Err(Failure::input(why.strip_prefix("clustermax: ").unwrap_or(&why)))
        }
        Err(why) => Err(Failure::input(why)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_planned_by_their_state() {
        let shown = "n1|idle|gpu*|gpu:h100:8(S:0-1)|none\nn2|mixed|gpu*|gpu:8|none\nn3|allocated|gpu*|gpu:8|none\n\
                     n4|drained|gpu*|gpu:8|cmx:xid79 g3 fell off | bus\nn5|idle*|gpu*|gpu:8|Not responding\nn6|idle~|gpu*|(null)|none\n\
                     n1|idle|all|gpu:h100:8|none\nn7|maint|x|(null)|upgrade\n";
        let targets = parse_targets(shown);
        assert_eq!(targets.len(), 7);
        assert_eq!(targets[0].partition, "gpu");
        let plans: Vec<Result<u32, String>> = targets.iter().map(|target| plan(target, false)).collect();
        assert_eq!(plans[0], Ok(8));
        assert_eq!(plans[1], Ok(0));
        assert_eq!(plans[2], Err("busy (allocated), not waited for".to_owned()));
        assert_eq!(plans[3], Err("out of service (drained: cmx:xid79 g3 fell off | bus)".to_owned()));
        assert_eq!(plans[4], Err("does not respond".to_owned()));
        assert!(plans[5].is_err() && plans[6].as_ref().is_err_and(|why| why.contains("upgrade")));
    }

    #[test]
    fn nodes_come_in_their_natural_order() {
        let mut names = vec!["n10", "n2", "gpu-3", "n1"];
        names.sort_by_key(|name| natural(name));
        assert_eq!(names, ["gpu-3", "n1", "n2", "n10"]);
    }

    #[test]
    fn an_allocation_that_is_refused_is_called_busy() {
        let ran = |err: &str| Ran { code: Some(1), out: String::new(), err: err.to_owned() };
        assert!(
            refused(&ran("srun: error: Unable to allocate resources: Requested nodes are busy"))
                .starts_with("busy: ")
        );
        assert_eq!(refused(&ran("srun: error: Invalid account")), "srun: error: Invalid account");
    }
}
