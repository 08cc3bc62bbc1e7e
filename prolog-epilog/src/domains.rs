//! Rack-scale domains: trays that share one NVLink fabric. A sick tray drains itself only; as many sick ones as the
//! configuration says make the domain degraded, which is told, and followed by what the policy says.

use healthcheck::config::{Rack, RackPolicy};
use healthcheck::hostlist;
use healthcheck::rack;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::brake::{self, Settings};
use crate::node_state::{FAIL, Node, protecting, same_name};
use crate::reason::{self, RACK as TOKEN, Reason};
use crate::slurm::{Slurm, SlurmError};

/// What the configuration says of domains.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Rules {
    /// Ask Slurm for the blocks of its topology.
    pub topology: bool,
    /// Sick trays at which a domain is degraded.
    pub sick: usize,
    /// What follows.
    pub policy: Policy,
    /// Domains of the configuration.
    pub domains: Vec<Domain>,
    /// `enforce.partitions`; none: everywhere.
    #[serde(default)]
    pub partitions: Vec<String>,
}

/// [`RackPolicy`], for a worker's request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Policy {
    /// Tell.
    #[default]
    Event,
    /// Set a comment on all trays.
    Mark,
    /// Drain the other trays.
    Drain,
}

/// A tray that a degraded domain has drained.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drained {
    /// Slurm's name.
    pub node: String,
    /// The reason as it was written.
    pub reason: String,
}

/// A domain and its trays.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Domain {
    /// Name.
    pub name: String,
    /// Slurm's names of its trays.
    pub nodes: Vec<String>,
}

impl Domain {
    /// Whether a node is one of its trays; the configuration may name it with or without its domain name.
    #[must_use]
    pub fn holds(&self, node: &str) -> bool {
        self.nodes.iter().any(|tray| same_name(tray, node))
    }
}

impl From<&Rack> for Rules {
    fn from(rack: &Rack) -> Self {
        let domains = rack.domain.iter().map(|d| (d.name.clone(), d.nodes.clone()));
        Rules {
            topology: rack.topology,
            sick: usize::try_from(rack.sick).unwrap_or(usize::MAX),
            policy: match rack.policy {
                RackPolicy::Event => Policy::Event,
                RackPolicy::Mark => Policy::Mark,
                RackPolicy::Drain => Policy::Drain,
            },
            domains: domains_of(domains),
            partitions: Vec::new(),
        }
    }
}

/// Domains from names and lists of nodes; a list that cannot be understood names nobody.
pub fn domains_of(lists: impl IntoIterator<Item = (String, String)>) -> Vec<Domain> {
    lists
        .into_iter()
        .map(|(name, nodes)| Domain { name, nodes: hostlist::expand(&nodes).unwrap_or_default() })
        .collect()
}

/// The domain's trays that are sick, first the one that was so first. A tray that an operator drained is not: what he does
/// with it is his plan. One that is DOWN is, unless it is powered down, rebooting or in maintenance.
fn sick<'a>(domain: &Domain, nodes: &'a [Node]) -> Vec<&'a Node> {
    let ill = |n: &&Node| {
        let own = n.drained_by_us() && !is_rack(&n.reason);
        domain.holds(&n.name) && (own || n.down()) && protecting(n.state).is_none()
    };
    let mut all: Vec<&Node> = nodes.iter().filter(ill).collect();
    all.sort_by_key(|n| (n.reason_time, n.name.as_str()));
    all
}

fn is_rack(reason: &str) -> bool {
    Reason::parse(reason).is_some_and(|r| r.token == TOKEN)
}

/// Reason, or comment, for the trays of a degraded domain.
fn text(domain: &rack::Domain, policy: Policy) -> String {
    let act = if policy == Policy::Drain { "repair" } else { "tell_user" };
    format!(
        "cmx:{TOKEN} {} {} of {} trays sick; act={act} id={}",
        domain.name,
        domain.sick.len(),
        domain.trays,
        id(&domain.name)
    )
}

fn id(domain: &str) -> String {
    let sum = Sha256::digest(format!("rack.domain {TOKEN} {domain}"));
    sum.iter().take(4).map(|b| format!("{b:02x}")).collect()
}

/// Looks at one domain. `now` in seconds since the epoch.
#[must_use]
pub fn look(domain: &Domain, nodes: &[Node], rules: &Rules, now: f64) -> rack::Domain {
    let sick: Vec<String> = sick(domain, nodes).iter().map(|n| n.name.clone()).collect();
    rack::Domain {
        name: domain.name.clone(),
        trays: domain.nodes.len(),
        degraded: sick.len() >= rules.sick,
        sick,
        followed: String::new(),
        time: now,
    }
}

/// Does what the policy says, or undoes it when the domain is not degraded any more; says so in `followed`. Trays outside of
/// `enforce.partitions`, when that names some, are never drained. What it drained, for [`take_back`], is in `drained`, also when
/// it did not come to its end.
///
/// # Errors
/// [`SlurmError`].
#[allow(clippy::too_many_arguments, reason = "state passed in, so that a test needs no machine")]
pub fn follow(
    slurm: &mut dyn Slurm,
    domain: &Domain,
    seen: &mut rack::Domain,
    nodes: &[Node],
    rules: &Rules,
    brake: &Settings,
    now: i64,
    drained: &mut Vec<Drained>,
) -> Result<(), SlurmError> {
    let id = id(&domain.name);
    let ours = |text: &str| Reason::parse(text).is_some_and(|r| r.id == Some(id.as_str()));
    let trays: Vec<&Node> =
        nodes.iter().filter(|n| domain.holds(&n.name) && protecting(n.state).is_none()).collect();
    if !seen.degraded {
        let mut healed = 0_usize;
        for tray in trays {
            if ours(&tray.comment) {
                slurm.set_comment(&tray.name, "")?;
                healed += 1;
            }
            let plain = !tray.resume_after && !tray.down() && tray.state & FAIL == 0;
            if ours(&tray.reason) && tray.drained() && plain {
                slurm.undrain(&tray.name)?;
                healed += 1;
            }
        }
        if healed > 0 {
            seen.followed = format!("took the domain's word off {healed} trays");
        }
        return Ok(());
    }
    let text = text(seen, rules.policy);
    match rules.policy {
        Policy::Event => {}
        Policy::Mark => {
            // An operator's comment stays.
            let free: Vec<&Node> =
                trays.into_iter().filter(|n| n.comment.is_empty() || ours(&n.comment)).collect();
            for tray in free.iter().filter(|n| n.comment != text) {
                slurm.set_comment(&tray.name, &text)?;
            }
            seen.followed = format!("marked {} trays", free.len());
        }
        Policy::Drain => {
            let already = trays.iter().filter(|n| n.drained() && ours(&n.reason)).count();
            // Those in service, where we may drain.
            let mut well: Vec<&Node> =
                trays.into_iter().filter(|n| !n.drained() && !n.down() && n.state & FAIL == 0).collect();
            if !rules.partitions.is_empty() {
                let mut allowed = Vec::new();
                for tray in well {
                    if slurm.partitions(&tray.name)?.iter().any(|p| rules.partitions.contains(p)) {
                        allowed.push(tray);
                    }
                }
                well = allowed;
            }
            let held = brake::others_drained(nodes, "", now, brake.window);
            let limit = brake::limit(nodes, brake);
            if !well.is_empty() && held + well.len() > limit {
                seen.followed = format!(
                    "left {} trays in service: our drains hold {held} of {limit} nodes that the brake allows",
                    well.len()
                );
                return Ok(());
            }
            for tray in &well {
                let reason = reason::replacing(&text, &tray.reason);
                slurm.drain(&tray.name, &reason)?;
                drained.push(Drained { node: tray.name.clone(), reason });
            }
            seen.followed = format!("drained {} trays", already + well.len());
        }
    }
    Ok(())
}

/// The brake's second look at what a degraded domain has drained, when every drain of that moment can be seen: by the order that
/// holds for all, (`ReasonTime`, node name), the domain's last tray must be within the limit, else all go back. Why they went back;
/// none when they stay. Trays whose reason is not byte for byte the one written are left alone.
///
/// # Errors
/// [`SlurmError`].
pub fn take_back(
    slurm: &mut dyn Slurm,
    drained: &[Drained],
    brake: &Settings,
) -> Result<Option<String>, SlurmError> {
    let nodes = slurm.nodes()?;
    let limit = brake::limit(&nodes, brake);
    let ours: Vec<&Node> = drained
        .iter()
        .filter_map(|d| nodes.iter().find(|n| n.name == d.node && n.drained() && n.reason == d.reason))
        .collect();
    let rank = ours.iter().filter_map(|n| brake::rank(&nodes, &n.name, brake.window)).max().unwrap_or(0);
    if rank <= limit {
        return Ok(None);
    }
    for tray in &ours {
        slurm.undrain(&tray.name)?;
        // As for a single drain: a tray that went down meanwhile keeps its reason, and gets Slurm's own again.
        if let (Some(was), true) = (Reason::parse(&tray.reason).and_then(|r| r.was), tray.down()) {
            slurm.set_reason(&tray.name, was)?;
        }
    }
    Ok(Some(format!(
        "left {} trays in service: with others drained at the same time it would be {rank} of {limit} nodes that the brake allows",
        ours.len()
    )))
}

/// True when this tray is one whose fall made, or keeps, the domain degraded: it is the one to tell. Those that were sick
/// before cannot know.
#[must_use]
pub fn tells(seen: &rack::Domain, node: &str, threshold: usize) -> bool {
    seen.degraded && seen.sick.iter().position(|n| same_name(n, node)).is_some_and(|at| at + 1 >= threshold)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::{Fake, SET_AT};
    use crate::node_state::DRAIN;

    const XID: &str = "cmx:xid79 g3 GPU fell off the bus; act=reboot id=3f2a91bc";
    const BRAKE: Settings = Settings { window: 3600, max_share: 1.0, max_nodes: None };

    fn rules(policy: Policy) -> Rules {
        Rules {
            topology: false,
            sick: 3,
            policy,
            domains: domains_of([("r0".into(), "n[0-17]".into())]),
            partitions: Vec::new(),
        }
    }

    /// 20 nodes, the first 18 of them a domain, with so many of those drained by us.
    fn cluster(sick: usize) -> Fake {
        let mut slurm = Fake::with(20);
        for i in 0..sick {
            slurm.set(&format!("n{i}"), 2 | DRAIN, XID, SET_AT - i64::try_from(i).unwrap());
        }
        slurm
    }

    fn settle(slurm: &mut Fake, rules: &Rules, brake: &Settings) -> rack::Domain {
        let nodes = slurm.nodes().unwrap();
        let domain = &rules.domains[0];
        let mut seen = look(domain, &nodes, rules, 1.0);
        let mut drained = Vec::new();
        follow(slurm, domain, &mut seen, &nodes, rules, brake, SET_AT, &mut drained).unwrap();
        if let Some(why) = take_back(slurm, &drained, brake).unwrap() {
            seen.followed = why;
        }
        seen
    }

    /// A node that counted before the rack had drained, and wrote after the rack had looked: by the order of all it comes
    /// first, and both would stay.
    #[test]
    fn a_racks_second_look_sees_a_drain_that_came_after_its_first() {
        let names = |slurm: &Fake| -> Vec<String> {
            slurm.nodes.iter().filter(|n| n.drained()).map(|n| n.name.clone()).collect()
        };
        let brake = Settings { max_nodes: Some(18), ..BRAKE };
        let rules = rules(Policy::Drain);
        // n18 and n19 are no trays: the one comes before the domain's last tray, n9, the other too, but a second later.
        for (late, time, stays) in [("n18", SET_AT, false), ("n19", SET_AT + 1, true)] {
            let mut slurm = cluster(3);
            let (nodes, mut drained) = (slurm.nodes.clone(), Vec::new());
            let domain = &rules.domains[0];
            let mut seen = look(domain, &nodes, &rules, 1.0);
            follow(&mut slurm, domain, &mut seen, &nodes, &rules, &brake, SET_AT, &mut drained).unwrap();
            assert_eq!((drained.len(), slurm.drained()), (15, 18));
            slurm.set(late, 2 | DRAIN, XID, time);
            let why = take_back(&mut slurm, &drained, &brake).unwrap();
            assert_eq!(why.is_none(), stays, "{why:?}");
            assert_eq!(names(&slurm).len(), if stays { 19 } else { 4 }, "{:?}", names(&slurm));
            // Then the late one looks a second time, by the same order.
            let back = crate::drainer::take_back(&mut slurm, late, XID, brake).unwrap().outcome;
            assert_eq!(back == crate::outcome::Outcome::Brake, stays);
            assert!(slurm.drained() <= 18, "{:?}", names(&slurm));
        }
    }

    #[test]
    fn of_two_racks_that_degrade_at_once_one_is_drained() {
        let mut slurm = Fake::with(36);
        for i in [0, 1, 2, 18, 19, 20] {
            slurm.set(&format!("n{i}"), 2 | DRAIN, XID, SET_AT - 10);
        }
        let brake = Settings { max_nodes: Some(22), ..BRAKE };
        let rules = Rules {
            domains: domains_of([("r0".into(), "n[0-17]".into()), ("r1".into(), "n[18-35]".into())]),
            ..rules(Policy::Drain)
        };
        // Neither sees the other's drains when it counts. They end a second apart.
        let nodes = slurm.nodes.clone();
        let mut both = Vec::new();
        for (at, domain) in rules.domains.iter().enumerate() {
            let (mut seen, mut drained) = (look(domain, &nodes, &rules, 1.0), Vec::new());
            follow(&mut slurm, domain, &mut seen, &nodes, &rules, &brake, SET_AT, &mut drained).unwrap();
            for d in &drained {
                slurm.set(&d.node, 2 | DRAIN, &d.reason, SET_AT + i64::try_from(at).unwrap());
            }
            both.push(drained);
        }
        assert_eq!(slurm.drained(), 36);
        // Whichever looks first.
        let why: Vec<_> = both.iter().rev().map(|d| take_back(&mut slurm, d, &brake).unwrap()).collect();
        assert!(why[0].is_some() && why[1].is_none(), "{why:?}");
        assert_eq!(slurm.drained(), 21);
        // What an operator wrote meanwhile on one of them stays.
        slurm.set("n5", 2 | DRAIN, "ticket 9", SET_AT + 5);
        let tight = Settings { max_nodes: Some(1), ..BRAKE };
        assert!(take_back(&mut slurm, &both[0], &tight).unwrap().is_some());
        assert_eq!((slurm.drained(), slurm.nodes[5].reason.as_str()), (7, "ticket 9"));
    }

    #[test]
    fn sick_trays_are_ours_or_down_and_never_an_operators() {
        let rules = rules(Policy::Event);
        let mut slurm = cluster(2);
        slurm.set("n3", 1, "Not responding", 5);
        for (node, state, reason) in [
            ("n4", 2 | DRAIN, "ticket 7"),
            ("n5", 1 | (1 << 12), ""),
            ("n6", 2 | DRAIN | (1 << 15), XID),
            ("n7", 2 | DRAIN, "cmx:rack r0 3 of 18 trays sick; act=repair id=00000000"),
            ("n18", 2 | DRAIN, XID),
        ] {
            slurm.set(node, state, reason, 6);
        }
        let seen = look(&rules.domains[0], &slurm.nodes, &rules, 1.0);
        assert_eq!(seen.sick, ["n3", "n1", "n0"], "by the time they fell");
        assert!(seen.degraded && seen.trays == 18);
        // The third to fall tells; the first two could not know.
        assert_eq!(["n3", "n1", "n0", "n9"].map(|n| tells(&seen, n, 3)), [false, false, true, false]);
    }

    #[test]
    fn a_sick_tray_drains_itself_only() {
        for policy in [Policy::Event, Policy::Mark, Policy::Drain] {
            let mut slurm = cluster(2);
            let seen = settle(&mut slurm, &rules(policy), &BRAKE);
            assert!(!seen.degraded && seen.followed.is_empty());
            assert_eq!(slurm.drained(), 2);
            assert!(slurm.nodes.iter().skip(2).all(|n| n.reason.is_empty()));
        }
    }

    #[test]
    fn the_third_degrades_the_domain_and_the_policy_decides() {
        let says = "cmx:rack r0 3 of 18 trays sick; act=";
        for (policy, drained, marked, followed) in [
            (Policy::Event, 3, 0, ""),
            (Policy::Mark, 3, 18, "marked 18 trays"),
            (Policy::Drain, 18, 0, "drained 15 trays"),
        ] {
            let mut slurm = cluster(3);
            let seen = settle(&mut slurm, &rules(policy), &BRAKE);
            assert!(seen.degraded);
            assert_eq!(seen.followed, followed);
            assert_eq!(slurm.drained(), drained);
            assert_eq!(slurm.nodes.iter().filter(|n| n.comment.starts_with(says)).count(), marked);
            let reasons = slurm.nodes.iter().filter(|n| n.reason.starts_with(says)).count();
            assert_eq!(reasons, drained - 3);
            // The two nodes outside of the domain are nobody's business, and the sick ones keep their reason.
            assert!(slurm.nodes[18].reason.is_empty() && slurm.nodes[18].comment.is_empty());
            assert_eq!(slurm.nodes[0].reason, XID);
            // Another tray looks: the same is true, and nothing is left to do.
            assert_eq!(settle(&mut slurm, &rules(policy), &BRAKE).followed, followed);
            assert_eq!(slurm.drained(), drained);
            // Mended: what the domain left behind goes, the sick trays' drains stay.
            slurm.set("n0", 2, "", 0);
            let seen = settle(&mut slurm, &rules(policy), &BRAKE);
            assert!(!seen.degraded);
            assert_eq!(slurm.drained(), 2);
            let word = |n: &&Node| !n.reason.is_empty() || !n.comment.is_empty();
            assert_eq!(slurm.nodes.iter().filter(word).count(), 2, "{policy:?}");
        }
    }

    #[test]
    fn the_brake_holds_for_a_domain_too_all_or_nothing() {
        let mut slurm = cluster(3);
        let seen = settle(&mut slurm, &rules(Policy::Drain), &Settings { max_share: 0.5, ..BRAKE });
        assert_eq!(slurm.drained(), 3);
        assert!(
            seen.followed.contains("left 15 trays in service: our drains hold 3 of 10"),
            "{}",
            seen.followed
        );
    }

    #[test]
    fn a_domain_drains_only_trays_of_the_enforced_partitions() {
        // The fake's n1 is in `batch`, all others in `debug`.
        let mut slurm = cluster(0);
        for (node, time) in [("n2", 1), ("n3", 2), ("n4", 3)] {
            slurm.set(node, 2 | DRAIN, XID, SET_AT - time);
        }
        let rules = Rules { partitions: vec!["batch".into()], ..rules(Policy::Drain) };
        let seen = settle(&mut slurm, &rules, &BRAKE);
        assert_eq!((slurm.drained(), seen.followed.as_str()), (4, "drained 1 trays"));
        assert!(slurm.nodes[1].drained());
    }

    #[test]
    fn trays_are_known_with_and_without_their_domain_name() {
        let mut slurm = cluster(3);
        let rules = Rules {
            domains: domains_of([("r0".into(), "n[0-17].example.org".into())]),
            ..rules(Policy::Drain)
        };
        let seen = settle(&mut slurm, &rules, &BRAKE);
        assert!(seen.degraded && slurm.drained() == 18, "{seen:?}");
    }

    #[test]
    fn a_tray_with_a_fault_of_its_own_does_not_go_back_with_its_domain() {
        let mut slurm = cluster(3);
        let rules = rules(Policy::Drain);
        let _ = settle(&mut slurm, &rules, &BRAKE);
        // A milder fault than the domain's `repair`: it holds the tray all the same.
        let own = "cmx:temp g1 too hot; act=reset_gpu id=11223344";
        let report = crate::drainer::drain(&mut slurm, "n9", own, &[], BRAKE, SET_AT, None).unwrap();
        assert_eq!(report.outcome, crate::outcome::Outcome::Written, "{report:?}");
        for node in ["n0", "n1", "n2"] {
            slurm.set(node, 2, "", 0);
        }
        let seen = settle(&mut slurm, &rules, &BRAKE);
        assert!(!seen.degraded);
        assert_eq!((slurm.drained(), slurm.nodes[9].reason.as_str()), (1, own));
    }

    #[test]
    fn an_operators_word_on_a_tray_stays() {
        for policy in [Policy::Mark, Policy::Drain] {
            let mut slurm = cluster(3);
            slurm.set_comment("n10", "watch this one").unwrap();
            slurm.set("n11", 2 | DRAIN, "ticket 7", 1);
            slurm.set("n12", 2 | (1 << 15), "", 0);
            let _ = settle(&mut slurm, &rules(policy), &BRAKE);
            assert_eq!(slurm.nodes[10].comment, "watch this one");
            assert_eq!(slurm.nodes[11].reason, "ticket 7");
            assert!(slurm.nodes[12].reason.is_empty());
        }
    }
}
