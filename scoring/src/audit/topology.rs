//! Slurm's picture of the fabric, and what hangs on it: racks that are one NVLink domain, and queue pairs on a fabric of several
//! tiers.

use serde::Deserialize;

use super::system::{self, Host, text};
use super::{Item, Verdict, fabric, gpu, platform};
use crate::sla::hostlist;

const S: &str = "audit";

/// `scontrol show topology`
#[derive(Debug, Default, PartialEq, Eq)]
struct Topology {
    /// Level of the highest switch; none without switches.
    level: Option<u32>,
    /// Blocks with their nodes.
    blocks: Vec<(String, Vec<String>)>,
}

impl Topology {
    /// `SwitchName=s0 Level=0 LinkSpeed=1 Nodes=n[1-2]`, `BlockName=b1 BlockIndex=0 Nodes=n[1-18] BlockSize=18`; other lines say nothing.
    fn parse(shown: &str) -> Self {
        let mut found = Self::default();
        for line in shown.lines() {
            let field = |key: &str| line.split_whitespace().find_map(|word| word.strip_prefix(key));
            if field("SwitchName=").is_some() {
                let level = field("Level=").and_then(|level| level.parse().ok());
                found.level = found.level.max(level);
            } else if let (Some(name), Some(nodes)) = (field("BlockName="), field("Nodes=")) {
                found.blocks.push((name.to_owned(), hostlist::expand(nodes).unwrap_or_default()));
            }
        }
        found
    }

    fn ask() -> Result<Self, String> {
        match system::run("scontrol", &["-o", "show", "topology"]) {
            Ok(ran) if ran.ok() => Ok(Self::parse(&ran.out)),
            Ok(ran) => Err(format!("scontrol show topology: {}", ran.complaint())),
            Err(why) => Err(why),
        }
    }

    fn block(&self, node: &str) -> Option<(&str, usize)> {
        self.blocks
            .iter()
            .find(|(_, nodes)| nodes.iter().any(|name| name == node))
            .map(|(name, nodes)| (name.as_str(), nodes.len()))
    }
}

/// `[rack]` of the node programs' configuration, as far as the audit needs it (docs/drains.md).
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Rack {
    topology: bool,
    sick: Option<u32>,
    policy: Option<String>,
    domain: Vec<Domain>,
}

#[derive(Debug, Deserialize)]
struct Domain {
    name: String,
    nodes: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Config {
    rack: Rack,
}

impl Rack {
    fn of(host: &Host) -> Self {
        let config: Option<Config> = text(&host.config).and_then(|text| toml::from_str(&text).ok());
        config.unwrap_or_default().rack
    }

    /// What becomes of a degraded domain, in words.
    fn rule(&self) -> String {
        let policy = self.policy.as_deref().unwrap_or("event");
        format!("degraded at {} sick trays, policy {policy}", self.sick.unwrap_or(3))
    }
}

/// GPUs of these names are joined over trays.
fn of_rack_scale(model: &str) -> bool {
    ["GB200", "GB300", "NVL72", "NVL36"].iter().any(|word| model.contains(word))
}

/// Whether somebody watches the rack that the node is a tray of, and how old the tray's last check is. `age` is that of the
/// node's last periodic pass.
pub fn rack(host: &Host, age: &Item) -> [Item; 2] {
    let (domain, check) = ("rack_domain", "rack_check_age");
    let models = match gpu::models(host) {
        Ok(models) => models,
        Err(why) => {
            let why = format!("whether the node is a tray of a rack cannot be told: {why}");
            return [Item::unavailable(S, domain, why.clone()), Item::unavailable(S, check, why).unit("s")];
        }
    };
    if !models.iter().any(|model| of_rack_scale(model)) {
        let seen = models.into_iter().collect::<Vec<_>>().join(", ");
        let seen = if seen.is_empty() { "no GPU".to_owned() } else { seen };
        let why = format!("no_rack_scale: {seen}: no NVLink domain spans nodes");
        return [Item::not_applicable(S, domain, why.clone()), Item::not_applicable(S, check, why).unit("s")];
    }
    let rack = Rack::of(host);
    let own = rack.domain.iter().find_map(|one| {
        let nodes = hostlist::expand(&one.nodes).ok()?;
        nodes.contains(&host.node).then(|| (one.name.clone(), nodes.len()))
    });
    let first = match own {
        Some((name, trays)) => {
            let seen = format!("domain {name} of {trays} trays, {}", rack.rule());
            Item::flag(S, domain, true, true, Verdict::Fail, seen)
        }
        None => by_topology(&Topology::ask(), &host.node, &rack),
    };
    let second = Item {
        metric: check.to_owned(),
        observed: format!("{} (a tray is judged by its own checks)", age.observed),
        ..age.clone()
    };
    [
        first
            .by("scontrol show topology; clustermax-drain domains")
            .mend("[rack] topology = true in clustermax.toml, or its trays as [[rack.domain]]: three sick trays then degrade the rack"),
        second,
    ]
}

fn by_topology(topology: &Result<Topology, String>, node: &str, rack: &Rack) -> Item {
    let domain = "rack_domain";
    match topology {
        Err(why) => Item::unknown(S, domain, why.clone()),
        Ok(topology) => match (topology.block(node), rack.topology) {
            (Some((name, trays)), true) => {
                let seen = format!("block {name} of {trays} trays, {}", rack.rule());
                Item::flag(S, domain, true, true, Verdict::Fail, seen)
            }
            (Some((name, trays)), false) => Item::unknown(
                S,
                domain,
                format!(
                    "Slurm places jobs by block {name} of {trays} trays; what judges the rack when trays are sick is not seen"
                ),
            ),
            (None, _) => Item::flag(
                S,
                domain,
                false,
                true,
                Verdict::Fail,
                "no block of Slurm's topology and no rack domain of clustermax.toml has the node",
            ),
        },
    }
}

/// With one queue pair a connection takes one path: on a fabric of several tiers that leaves paths unused. Advisory.
pub fn queue_pairs(host: &Host) -> Item {
    let (metric, name) = ("nccl_qps_fit", "NCCL_IB_QPS_PER_CONNECTION");
    let item = if fabric::ports(host).iter().any(|port| port.active) {
        let set = platform::nccl_settings().into_iter().rev().find(|(found, ..)| found == name);
        match set.and_then(|(_, value, origin)| Some((value.parse::<u32>().ok()?, origin))) {
            Some((count, origin)) if count > 1 => {
                Item::flag(S, metric, true, true, Verdict::Warn, format!("{name}={count} ({origin})"))
            }
            _ => by_tiers(Topology::ask()),
        }
    } else {
        Item::not_applicable(S, metric, "no_rdma: no active RDMA port")
    };
    item.by("env | grep NCCL_IB_QPS; cat /etc/nccl.conf; scontrol show topology").mend(
        "sweep NCCL_IB_QPS_PER_CONNECTION (2, 4, 8) with all_reduce_perf over all nodes and keep what is fastest",
    )
}

fn by_tiers(topology: Result<Topology, String>) -> Item {
    let metric = "nccl_qps_fit";
    let seen = |tiers: &str| format!("one queue pair a connection, NCCL's own choice, on {tiers}");
    match topology {
        Err(why) => Item::unknown(S, metric, why),
        Ok(Topology { level: None, blocks }) if blocks.is_empty() => {
            Item::unknown(S, metric, "Slurm knows no topology, so the tiers of the fabric cannot be told")
        }
        Ok(Topology { level: Some(level), .. }) if level > 0 => Item::flag(
            S,
            metric,
            false,
            true,
            Verdict::Warn,
            seen(&format!("a fabric of {} tiers", level + 1)),
        ),
        Ok(Topology { blocks, .. }) if blocks.len() > 1 => Item::flag(
            S,
            metric,
            false,
            true,
            Verdict::Warn,
            seen(&format!("a fabric over {} blocks", blocks.len())),
        ),
        Ok(_) => Item::flag(S, metric, true, true, Verdict::Warn, seen("a fabric of one tier")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::host;
    use super::*;
    use crate::record::State;

    const TREE: &str = "SwitchName=s0 Level=0 LinkSpeed=1 Nodes=n[1-2]\nSwitchName=s1 Level=0 LinkSpeed=1 Nodes=n[3-4]\n\
                        SwitchName=spine Level=1 LinkSpeed=1 Nodes=n[1-4] Switches=s[0-1]\n";
    const BLOCKS: &str = "BlockName=r1 BlockIndex=0 Nodes=tray[01-18] BlockSize=18\nBlockName=r2 BlockIndex=1 Nodes=tray[19-36] BlockSize=18\n";

    #[test]
    fn a_fabric_of_several_tiers_wants_more_than_one_queue_pair() {
        for (shown, want) in [
            (TREE, Some(0.0)),
            (BLOCKS, Some(0.0)),
            ("SwitchName=s0 Level=0 LinkSpeed=1 Nodes=n[1-2]\n", Some(1.0)),
            ("BlockName=r1 BlockIndex=0 Nodes=tray[01-18] BlockSize=18\n", Some(1.0)),
            ("", None),
        ] {
            assert_eq!(by_tiers(Ok(Topology::parse(shown))).value, want, "{shown}");
        }
        assert_eq!(by_tiers(Err("no answer".to_owned())).state, State::Unknown);
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(queue_pairs(&host(dir.path(), &[])).state, State::NotApplicable);
    }

    #[test]
    fn a_tray_is_watched_by_its_domain_or_its_block() {
        let blocks = Ok(Topology::parse(BLOCKS));
        let watched = Rack { topology: true, ..Rack::default() };
        let item = by_topology(&blocks, "tray19", &watched);
        assert!(
            item.value == Some(1.0) && item.observed.contains("block r2 of 18 trays, degraded at 3"),
            "{item:?}"
        );
        let item = by_topology(&blocks, "tray19", &Rack::default());
        assert!(item.state == State::Unknown && item.observed.contains("block r2"), "{item:?}");
        assert_eq!(by_topology(&blocks, "n1", &watched).value, Some(0.0));
        assert_eq!(by_topology(&Err("no answer".to_owned()), "n1", &watched).state, State::Unknown);
    }

    #[test]
    fn the_rack_section_of_the_configuration_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let host = host(dir.path(), &[]);
        assert!(Rack::of(&host).domain.is_empty());
        let text = "[rack]\nsick = 4\npolicy = \"mark\"\n[[rack.domain]]\nname = \"r1\"\nnodes = \"n[1-4]\"\n[checks.\"gpu.temp\"]\nstate = \"on\"\n";
        std::fs::write(&host.config, text).unwrap();
        let rack = Rack::of(&host);
        assert_eq!(
            (rack.domain[0].name.as_str(), rack.rule()),
            ("r1", "degraded at 4 sick trays, policy mark".to_owned())
        );
    }

    #[test]
    fn only_rack_scale_gpus_are_trays() {
        assert!(of_rack_scale("NVIDIA GB200") && of_rack_scale("NVIDIA GB300"));
        assert!(!of_rack_scale("NVIDIA H100 80GB HBM3") && !of_rack_scale("NVIDIA B200"));
    }
}
