//! Looks at the nodes of a cluster and at Slurm as an ordinary user, and at more as root.
//!
//! Nothing is changed and no root is needed. What cannot be seen that way is said to be unavailable, with the
//! reason; it is never guessed. `clustermax collect` turns the JSON document into records.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::Failure;
use crate::audit::versions::Table;
use crate::record::{Scalar, State, Subject};

mod acs;
mod containers;
mod fabric;
mod gpu;
mod health;
mod idle;
mod internet;
mod keys;
pub(crate) mod monitoring;
mod node;
pub mod platform;
mod reboot;
mod slurm;
mod storage;
mod system;
mod topology;
mod traces;
mod verdicts;
mod versions;
mod whole;

pub use gpu::simulated;
pub(crate) use system::{Host, Ran, now, run_for};

/// Schema of the document that this release writes and reads.
pub const SCHEMA: &str = "clustermax-audit/1";

/// `clustermax audit`
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Look from this node alone, at these parts; without it all nodes are looked at, one short step each, and every
    /// criterion that a program can decide gets its verdict
    #[arg(long, value_enum)]
    pub scope: Vec<Scope>,
    /// Print the JSON document instead of the table
    #[arg(long)]
    pub json: bool,
    /// Write to FILE (with --scope the JSON document); %n is the node's name
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// The node programs' configuration: paths of sysfs, NVML and the verdict
    /// (default: CLUSTERMAX_CONFIG, clustermax.toml beside SLURM_CONF, /etc/clustermax/clustermax.toml)
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// This node's name (default: SLURMD_NODENAME, else the short host name)
    #[arg(long)]
    pub node: Option<String>,
    /// Nodes to look at, comma-separated (default: those of this job, else all that sinfo shows)
    #[arg(long, value_delimiter = ',')]
    pub nodes: Vec<String>,
    /// Partition whose nodes are looked at
    #[arg(long)]
    pub partition: Option<String>,
    /// Steps at the same time, 1 to 64
    #[arg(long, value_name = "N", default_value_t = 16)]
    pub at_a_time: usize,
    /// Longest time of one node's step, 5 to 600
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    pub step_seconds: u64,
    /// Further option for every srun, such as --account=A; may be given again
    #[arg(long, value_name = "OPTION", allow_hyphen_values = true)]
    pub srun: Vec<String>,
    /// This program's path on the nodes, when it is another than here
    #[arg(long, value_name = "PATH")]
    pub program: Option<PathBuf>,
    /// Keep raw documents and records in this new results folder; `clustermax score` reads it
    #[arg(long, value_name = "DIR")]
    pub results: Option<PathBuf>,
    /// A file of 1 GB or more that you may download: how fast and how steady the way to the internet is
    /// (default: CLUSTERMAX_INTERNET_URL; without it nothing is sent)
    #[arg(long, value_name = "URL")]
    pub internet_url: Option<String>,
    /// Start a container of this image (a .sqsh file, or one of a registry) on one node, and time it
    #[arg(long, value_name = "IMAGE")]
    pub container_image: Option<String>,
    /// Results folder of an audit from before a reboot: what the reboot lost is named
    #[arg(long, value_name = "DIR")]
    pub before: Option<PathBuf>,
    /// Table of minimum versions (default: that of this release); - reads standard input
    #[arg(long, value_name = "FILE")]
    pub minimum_versions: Option<PathBuf>,
    /// Print the table of minimum versions of this release, to be changed and given back
    #[arg(long)]
    pub print_minimum_versions: bool,
    /// Read the methodology from this folder instead of the built-in one
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// The table's text, for the steps' standard input.
    #[arg(skip)]
    pub table_text: String,
}

/// Part of an audit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// Hardware and versions of this node
    Inventory,
    /// Set-up of this node
    Node,
    /// Slurm's configuration: once a cluster
    Cluster,
    /// How many GPUs open: for the step without any that the audit starts inside its own job
    #[value(hide = true)]
    Held,
}

/// What an operator is told about one item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Verdict {
    /// As it should be.
    Pass,
    /// A fact without a right value.
    Info,
    /// Works, but costs safety, speed or support.
    Warn,
    /// Should be mended.
    Fail,
    /// Not looked at or not to be seen; the detail says why.
    Skip,
}

impl Verdict {
    fn word(self) -> &'static str {
        match self {
            Self::Pass => "PASS",
            Self::Info => "INFO",
            Self::Warn => "WARN",
            Self::Fail => "FAIL",
            Self::Skip => "SKIP",
        }
    }
}

/// One thing looked at: nearly a record, with what an operator needs to act on it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Item {
    /// `inventory` or `audit`.
    pub stage: String,
    /// Name from `docs/metrics.md`.
    pub metric: String,
    /// Unit from `docs/metrics.md`.
    #[serde(default)]
    pub unit: String,
    /// Present exactly when `state` is measured.
    pub value: Option<f64>,
    /// Whether there is a value.
    pub state: State,
    /// What tells it from others of the same metric.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub params: BTreeMap<String, Scalar>,
    /// Node, GPU; empty for the cluster.
    #[serde(default, skip_serializing_if = "Subject::is_empty")]
    pub subject: Subject,
    /// For people.
    pub verdict: Verdict,
    /// What was seen, or why nothing could be.
    pub observed: String,
    /// How to look again by hand.
    #[serde(default)]
    pub command: String,
    /// What to do when it is not as it should be.
    #[serde(default)]
    pub mend: String,
    /// Seen through simulated hardware.
    #[serde(default)]
    pub synthetic: bool,
}

impl Item {
    fn new(stage: &str, metric: &str, state: State, value: Option<f64>, observed: impl Into<String>) -> Self {
        Self {
            stage: stage.to_owned(),
            metric: metric.to_owned(),
            unit: String::new(),
            value,
            state,
            params: BTreeMap::new(),
            subject: Subject::default(),
            verdict: if state == State::Measured { Verdict::Info } else { Verdict::Skip },
            observed: observed.into(),
            command: String::new(),
            mend: String::new(),
            synthetic: false,
        }
    }

    /// A value; a number that is not finite becomes unknown.
    fn value(stage: &str, metric: &str, value: f64, observed: impl Into<String>) -> Self {
        if value.is_finite() {
            Self::new(stage, metric, State::Measured, Some(value), observed)
        } else {
            Self::new(stage, metric, State::Unknown, None, observed)
        }
    }

    /// A flag with the value that is right; any other gets `otherwise` and keeps the mend.
    fn flag(
        stage: &str,
        metric: &str,
        seen: bool,
        right: bool,
        otherwise: Verdict,
        observed: impl Into<String>,
    ) -> Self {
        let mut item = Self::value(stage, metric, f64::from(u8::from(seen)), observed);
        item.verdict = if seen == right { Verdict::Pass } else { otherwise };
        item
    }

    fn unavailable(stage: &str, metric: &str, why: impl Into<String>) -> Self {
        Self::new(stage, metric, State::Unavailable, None, why)
    }

    fn unknown(stage: &str, metric: &str, why: impl Into<String>) -> Self {
        Self::new(stage, metric, State::Unknown, None, why)
    }

    /// `why` must begin with a reason of the closed list in `docs/metrics.md`.
    fn not_applicable(stage: &str, metric: &str, why: impl Into<String>) -> Self {
        Self::new(stage, metric, State::NotApplicable, None, why)
    }

    fn unit(mut self, unit: &str) -> Self {
        unit.clone_into(&mut self.unit);
        self
    }

    fn param(mut self, key: &str, value: impl Into<Scalar>) -> Self {
        self.params.insert(key.to_owned(), value.into());
        self
    }

    fn on(mut self, node: &str) -> Self {
        self.subject.node = Some(node.to_owned());
        self
    }

    fn gpu(mut self, index: u32) -> Self {
        self.subject.gpu = Some(index);
        self
    }

    fn by(mut self, command: &str) -> Self {
        command.clone_into(&mut self.command);
        self
    }

    fn mend(mut self, mend: &str) -> Self {
        mend.clone_into(&mut self.mend);
        self
    }

    fn judged(mut self, verdict: Verdict) -> Self {
        if self.state == State::Measured {
            self.verdict = verdict;
        }
        self
    }
}

/// A mount, as `collect` compares it between nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    /// Device or server.
    pub source: String,
    /// File system type.
    pub fstype: String,
}

/// One audit, of one node or of the cluster.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Document {
    /// Always [`SCHEMA`].
    pub schema: String,
    /// Program and version.
    pub tool: String,
    /// The node it ran on.
    pub node: String,
    /// UTC, RFC 3339.
    pub started: String,
    /// Length of the audit, seconds.
    pub seconds: f64,
    /// What was looked at.
    pub items: Vec<Item>,
    /// Mounts other than the kernel's own file systems, by mount point (scope node).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub mounts: BTreeMap<String, Mount>,
    /// `SOURCE:PATH` of the user's home (scope node).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub home: Option<String>,
}

/// Runs the audit and prints it, or writes it to a file.
///
/// # Errors
/// A configuration or table of no use, an output file that cannot be written, Slurm that does not answer.
pub fn run(args: &Args) -> Result<u8, Failure> {
    if args.print_minimum_versions {
        crate::report::print(Table::built_in_text())?;
        return Ok(0);
    }
    let table = match &args.minimum_versions {
        Some(path) => Table::open(path)?,
        None => Table::built_in()?,
    };
    if args.scope.is_empty() {
        let args = Args { table_text: table.text(), ..args.clone() };
        return whole::run(&args, &table);
    }
    let host = Host::open(args.config.as_deref(), args.node.as_deref())?;
    let url = internet::url(args.internet_url.as_deref())?;
    let mut document = look(&host, &args.scope, &args.nodes, &table);
    if args.scope.contains(&Scope::Cluster) {
        document.items.extend(internet::audit(&host.node, url.as_deref()));
    }
    if args.scope.contains(&Scope::Node) {
        document.items.push(match &args.before {
            Some(folder) => reboot::compare(reboot::before(folder, &host.node)?.as_ref(), &document),
            None => reboot::not_tried().on(&host.node),
        });
    }
    let mut json = serde_json::to_string_pretty(&document).map_err(Failure::input)?;
    json.push('\n');
    if let Some(out) = &args.out {
        let path = PathBuf::from(out.to_string_lossy().replace("%n", &host.node));
        crate::run::write_atomic(&path, json.as_bytes()).map_err(|error| {
            Failure::input(format!(
                "cannot write {}: {error}; give --out a folder you may write to",
                path.display()
            ))
        })?;
    } else if args.json {
        crate::report::print(&json)?;
    } else {
        crate::report::print(&table_of(&document))?;
    }
    Ok(0)
}

fn look(host: &Host, scopes: &[Scope], nodes: &[String], table: &Table) -> Document {
    let begin = std::time::Instant::now();
    let mut document = Document {
        schema: SCHEMA.to_owned(),
        tool: format!("clustermax {}", env!("CARGO_PKG_VERSION")),
        node: host.node.clone(),
        started: now(),
        seconds: 0.0,
        items: Vec::new(),
        mounts: BTreeMap::new(),
        home: None,
    };
    for scope in scopes {
        match scope {
            Scope::Inventory => {
                document.items.extend(node::inventory(host));
                document.items.extend(gpu::inventory(host));
            }
            Scope::Node => {
                document.items.extend(node::audit(host, table));
                document.items.extend(gpu::audit(host));
                document.mounts = storage::mounts(host);
                document.home = storage::home(&document.mounts);
            }
            Scope::Cluster => document.items.extend(slurm::audit(host, nodes)),
            Scope::Held => document.items.extend(gpu::held(host)),
        }
    }
    document.seconds = begin.elapsed().as_secs_f64();
    document
}

/// The table for people, in the order of looking; what needs mending says how.
fn table_of(document: &Document) -> String {
    // The param that tells the item from its siblings; the others are facts about it.
    const NAMES: [&str; 9] =
        ["component", "tool", "command", "part", "kind", "family", "name", "setting", "module"];
    let mut out = String::new();
    let mut counts = [0usize; 5];
    for item in &document.items {
        counts[item.verdict as usize] += 1;
        let mut name = item.metric.clone();
        if let Some(param) = NAMES.iter().find_map(|key| item.params.get(*key)) {
            let _ = write!(name, " {param}");
        }
        if let Some(node) = item.subject.node.as_ref().filter(|node| **node != document.node) {
            let _ = write!(name, " {node}");
        }
        if let Some(gpu) = item.subject.gpu {
            let _ = write!(name, " g{gpu}");
        }
        let _ = writeln!(out, "{:<5} {name:<34} {}", item.verdict.word(), item.observed);
        if matches!(item.verdict, Verdict::Warn | Verdict::Fail) {
            for (label, text) in [("mend", &item.mend), ("look", &item.command)] {
                if !text.is_empty() {
                    let _ = writeln!(out, "      {label}: {text}");
                }
            }
        }
    }
    let [pass, info, warn, fail, skip] = counts;
    let _ = writeln!(
        out,
        "{}: {pass} pass, {warn} warn, {fail} fail, {skip} skip, {info} facts ({:.1} s)",
        document.node, document.seconds
    );
    out
}

/// A node in a folder, for the tests of what looks at it.
#[cfg(test)]
pub(crate) mod testing {
    use std::path::Path;

    use super::Host;

    /// A node whose sysfs, procfs, dev and run folder are below one temporary folder.
    pub fn host(dir: &Path, files: &[(&str, &str)]) -> Host {
        for (name, content) in files {
            let path = dir.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, format!("{content}\n")).unwrap();
        }
        let config = dir.join("c.toml");
        let paths: Vec<String> = ["sysfs", "procfs", "dev", "run_dir"]
            .iter()
            .map(|key| format!("{key} = \"{}/{key}\"\n", dir.display()))
            .collect();
        std::fs::write(&config, format!("[paths]\n{}", paths.concat())).unwrap();
        Host::open(Some(&config), Some("n1")).unwrap()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_tells_what_to_mend_and_counts() {
        let document = Document {
            schema: SCHEMA.to_owned(),
            tool: "clustermax 0".to_owned(),
            node: "n1".to_owned(),
            started: now(),
            seconds: 0.2,
            items: vec![
                Item::flag("audit", "slurm_prolog", false, true, Verdict::Warn, "no epilog is set")
                    .param("kind", "epilog")
                    .param("flags", "Alloc")
                    .mend("set epilog"),
                Item::unavailable("audit", "gpu_power_idle", "not read").gpu(3).on("n1"),
            ],
            mounts: BTreeMap::new(),
            home: None,
        };
        let text = table_of(&document);
        assert!(text.contains("WARN  slurm_prolog epilog"), "{text}");
        assert!(text.contains("      mend: set epilog\n"), "{text}");
        assert!(text.contains("SKIP  gpu_power_idle g3"), "{text}");
        assert!(text.ends_with("n1: 0 pass, 1 warn, 0 fail, 1 skip, 0 facts (0.2 s)\n"), "{text}");
    }

    #[test]
    fn a_number_that_is_not_finite_is_unknown() {
        let item = Item::value("audit", "fs_used_max", f64::NAN, "x");
        assert_eq!((item.state, item.value, item.verdict), (State::Unknown, None, Verdict::Skip));
    }
}
