//! How far our hands reach into Slurm: `[enforce]`, `[brake]`, `[return]`, `[notify]`, `[rack]`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

use crate::hostlist;

/// Longest window and hold, in seconds: 30 days.
const LONGEST: u64 = 30 * 86_400;

/// Where `enforcement = "enforce"` holds.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Enforce {
    /// Only nodes of these partitions are drained; empty: all.
    pub partitions: Vec<String>,
}

/// Limit on our own drains.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Brake {
    /// Length of the window in seconds.
    pub window: u64,
    /// Share of all nodes, in (0, 1]; the limit is at least one node.
    pub max_share: f64,
    /// Most nodes, whatever their share; none: the share alone counts.
    pub max_nodes: Option<u32>,
}

impl Default for Brake {
    fn default() -> Self {
        Brake { window: 3600, max_share: 0.1, max_nodes: None }
    }
}

/// Giving a node back by ourselves, once what drained it is well again.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GiveBack {
    /// Periodic passes in a row in which the failed check must pass; 0: never by ourselves.
    pub passes: u32,
    /// Least seconds from the first of them to the return.
    pub hold: u64,
}

impl Default for GiveBack {
    fn default() -> Self {
        GiveBack { passes: 0, hold: 1800 }
    }
}

/// A command that tells the operators.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Notify {
    /// Program, absolute, owned by root, not writable by others; none: nobody is told.
    pub path: Option<PathBuf>,
    /// Its arguments.
    pub args: Vec<String>,
    /// Limit in milliseconds, 1..=60000.
    pub timeout: u64,
    /// Most calls an hour on this node; what is more is counted in the next call.
    pub per_hour: u32,
}

impl Default for Notify {
    fn default() -> Self {
        Notify { path: None, args: Vec::new(), timeout: 10_000, per_hour: 20 }
    }
}

impl Notify {
    /// Limit of one call.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout)
    }
}

/// What follows when a rack-scale domain is degraded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RackPolicy {
    /// The event and the metric only.
    #[default]
    Event,
    /// All trays carry a comment that says so; those in service stay there. (Most releases of Slurm keep no reason on a node in
    /// service.)
    Mark,
    /// The other trays are drained as well, as far as the brake allows all of them.
    Drain,
}

/// Rack-scale domains, such as the 18 trays of an NVL72.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Rack {
    /// Domains are the blocks of Slurm's topology/block.
    pub topology: bool,
    /// Sick trays at which a domain is degraded.
    pub sick: u32,
    /// What follows.
    pub policy: RackPolicy,
    /// Domains named here; these come before the topology's.
    pub domain: Vec<RackDomain>,
}

impl Default for Rack {
    fn default() -> Self {
        Rack { topology: false, sick: 3, policy: RackPolicy::Event, domain: Vec::new() }
    }
}

impl Rack {
    /// There are domains to look at.
    #[must_use]
    pub fn used(&self) -> bool {
        self.topology || !self.domain.is_empty()
    }
}

/// One domain.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RackDomain {
    /// `rack7`; at most 16 letters, digits, `.`, `_` and `-`, since it stands in reasons.
    pub name: String,
    /// Its trays, as Slurm writes lists: `tray[01-18]`.
    pub nodes: String,
}

/// Checks what serde cannot; an error is one sentence with key and mend.
pub(super) fn check(config: &super::Config) -> Result<(), String> {
    let b = &config.brake;
    if !(b.max_share > 0.0 && b.max_share <= 1.0) {
        return Err(format!(
            "brake.max_share = {}: give a share of all nodes above 0 and up to 1, for example 0.1",
            b.max_share
        ));
    }
    if b.max_nodes == Some(0) {
        return Err("brake.max_nodes = 0: give at least 1, or take the key out; \
                    to drain nothing at all set enforcement = \"observe\""
            .into());
    }
    if !(1..=LONGEST).contains(&b.window) {
        return Err(format!("brake.window = {}: give 1 to {LONGEST} seconds", b.window));
    }
    if let Some(bad) = config.enforce.partitions.iter().find(|p| p.is_empty() || p.contains([',', ' '])) {
        return Err(format!("enforce.partitions: \"{bad}\" is no partition: give one name a string"));
    }
    let r = &config.give_back;
    if !(1..=LONGEST).contains(&r.hold) {
        return Err(format!("return.hold = {}: give 1 to {LONGEST} seconds", r.hold));
    }
    let n = &config.notify;
    if let Some(path) = n.path.as_ref().filter(|p| !p.is_absolute()) {
        return Err(format!("notify.path = \"{}\": give an absolute path", path.display()));
    }
    if !(1..=60_000).contains(&n.timeout) {
        return Err(format!("notify.timeout = {}: give milliseconds between 1 and 60000", n.timeout));
    }
    if n.per_hour == 0 {
        return Err("notify.per_hour = 0: give at least 1, or take `path` out to tell nobody".into());
    }
    rack(&config.rack)
}

fn rack(rack: &Rack) -> Result<(), String> {
    if rack.sick == 0 {
        return Err("rack.sick = 0: give at least 1".into());
    }
    let mut seen: BTreeMap<String, &str> = BTreeMap::new();
    for domain in &rack.domain {
        let name = &domain.name;
        let plain = name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b));
        if name.is_empty() || name.len() > 16 || !plain {
            return Err(format!("rack.domain name \"{name}\": use 1 to 16 letters, digits, ., _ and -"));
        }
        let nodes = hostlist::expand(&domain.nodes)
            .map_err(|e| format!("rack.domain \"{name}\": nodes = {e}; write them like tray[01-18]"))?;
        if nodes.is_empty() {
            return Err(format!("rack.domain \"{name}\" has no nodes: write them like tray[01-18]"));
        }
        for node in nodes {
            if let Some(other) = seen.get(&node) {
                return Err(format!(
                    "node {node} is in rack.domain \"{other}\" and \"{name}\": keep it in one"
                ));
            }
            seen.insert(node, name);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::{Config, Enforcement};
    use super::*;
    use std::path::Path;

    fn parse(text: &str) -> Result<Config, String> {
        Config::parse(text, Path::new("/etc/x.toml")).map_err(|e| e.to_string())
    }

    #[test]
    fn all_of_it_is_off_by_default() {
        let c = parse("").unwrap();
        assert_eq!(c.enforcement, Enforcement::Observe);
        assert_eq!((c.give_back.passes, c.brake.max_nodes), (0, None));
        assert!(c.notify.path.is_none() && !c.rack.used() && c.enforce.partitions.is_empty());
    }

    #[test]
    fn all_of_it_is_read() {
        let c = parse(
            "[enforce]\npartitions = [\"batch\"]\n[brake]\nmax_nodes = 4\n[return]\npasses = 3\nhold = 600\n\
             [notify]\npath = \"/usr/local/sbin/tell\"\nper_hour = 5\n[rack]\nsick = 4\npolicy = \"mark\"\n\
             [[rack.domain]]\nname = \"r1\"\nnodes = \"t[1-18]\"\n[[rack.domain]]\nname = \"r2\"\nnodes = \"t[19-36]\"\n",
        )
        .unwrap();
        assert_eq!(c.enforce.partitions, ["batch"]);
        assert_eq!((c.brake.max_nodes, c.give_back.passes, c.notify.per_hour), (Some(4), 3, 5));
        assert_eq!((c.rack.policy, c.rack.domain.len(), c.rack.used()), (RackPolicy::Mark, 2, true));
    }

    #[test]
    fn what_cannot_be_meant_is_refused_with_the_mend() {
        for (text, what) in [
            ("[brake]\nmax_nodes = 0\n", "brake.max_nodes = 0: give at least 1"),
            ("[brake]\nwindow = 0\n", "brake.window = 0"),
            ("[enforce]\npartitions = [\"a,b\"]\n", "\"a,b\" is no partition"),
            ("[return]\npasses = 2\nhold = 0\n", "return.hold = 0: give 1 to"),
            ("[notify]\npath = \"tell\"\n", "give an absolute path"),
            ("[notify]\ntimeout = 0\n", "notify.timeout = 0"),
            ("[notify]\nper_hour = 0\n", "notify.per_hour = 0"),
            ("[rack]\nsick = 0\n", "rack.sick = 0"),
            ("[rack]\npolicy = \"marks\"\n", "did you mean \"mark\"?"),
            ("[[rack.domain]]\nname = \"a b\"\nnodes = \"n1\"\n", "1 to 16 letters"),
            ("[[rack.domain]]\nname = \"r\"\nnodes = \"n[1-\"\n", "write them like tray[01-18]"),
            ("[[rack.domain]]\nname = \"r\"\nnodes = \"\"\n", "has no nodes"),
            (
                "[[rack.domain]]\nname = \"r\"\nnodes = \"n[1-3]\"\n[[rack.domain]]\nname = \"s\"\nnodes = \"n3\"\n",
                "node n3 is in rack.domain \"r\" and \"s\"",
            ),
        ] {
            let why = parse(text).unwrap_err();
            assert!(why.contains(what), "{text}: {why}");
        }
    }
}
