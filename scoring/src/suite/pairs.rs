//! Which nodes nccl-tests measure together, two and two: once each, then those of slow pairs again with others.
//!
//! The same choice as that of `payload/worlds.py` for torch. Here is only chosen what to measure again, generously; who is
//! slow is decided by [`crate::straggler::pairs`] when the records are made.

use std::collections::{BTreeMap, BTreeSet};

use crate::straggler::pairs::Met;

/// A pair below this share of the good pairs is measured again.
const SUSPECT: f64 = 0.85;
/// Healthy partners that each suspect meets.
const PARTNERS: usize = 2;

/// Two nodes.
pub type Pair = [String; 2];

/// Rounds of disjoint pairs in which every node takes part once; an odd one meets the first in a round of its own.
#[must_use]
pub fn neighbours(nodes: &[String]) -> Vec<Vec<Pair>> {
    let pair = |two: &[String]| -> Option<Pair> { two.to_vec().try_into().ok() };
    let mut rounds = vec![nodes.chunks_exact(2).filter_map(pair).collect::<Vec<_>>()];
    if let ([first, _, .., last], 1) = (nodes, nodes.len() % 2) {
        rounds.push(vec![[last.clone(), first.clone()]]);
    }
    rounds.retain(|round| !round.is_empty());
    rounds
}

/// Nodes of pairs that are slow against the good ones, slowest first.
#[must_use]
pub fn suspects(met: &[Met]) -> Vec<String> {
    let mut speeds: Vec<f64> = met.iter().map(|one| one.speed).collect();
    speeds.sort_by(f64::total_cmp);
    let Some(good) = speeds.len().checked_sub(1).map(|last| speeds[(last * 3).div_ceil(4)]) else {
        return Vec::new();
    };
    let mut slow: Vec<&Met> = met.iter().filter(|one| one.speed < SUSPECT * good).collect();
    slow.sort_by(|a, b| a.speed.total_cmp(&b.speed));
    let mut found: Vec<String> = Vec::new();
    for node in slow.iter().flat_map(|one| &one.nodes) {
        if !found.contains(node) {
            found.push(node.clone());
        }
    }
    found
}

/// Rounds that tell slow nodes from slow links: new partners for each suspect, who must also be good with others at that
/// time, and the suspect pairs once more.
#[must_use]
pub fn again(nodes: &[String], met: &[Met], suspects: &[String]) -> Vec<Vec<Pair>> {
    let key =
        |a: &str, b: &str| if a < b { [a.to_owned(), b.to_owned()] } else { [b.to_owned(), a.to_owned()] };
    let mut seen: BTreeSet<Pair> = met.iter().map(|one| key(&one.nodes[0], &one.nodes[1])).collect();
    let healthy = |node: &String| !suspects.contains(node);
    let mut rounds = Vec::new();
    for _ in 0..PARTNERS {
        // Healthy partners first; the slowest suspects, which come first, get them.
        let mut free: Vec<String> =
            nodes.iter().filter(|node| healthy(node)).chain(suspects.iter().rev()).cloned().collect();
        let mut round: Vec<Pair> = Vec::new();
        for node in suspects {
            let Some(at) = free.iter().position(|one| one == node) else { continue };
            free.remove(at);
            if let Some(at) = free.iter().position(|partner| !seen.contains(&key(node, partner))) {
                round.push([node.clone(), free.remove(at)]);
            }
        }
        free.retain(healthy);
        round.extend(free.chunks_exact(2).map(|two| [two[0].clone(), two[1].clone()]));
        seen.extend(round.iter().map(|[a, b]| key(a, b)));
        rounds.push(round);
    }
    let mut used: BTreeSet<&String> = BTreeSet::new();
    let mut once = BTreeMap::new();
    for one in met.iter().filter(|one| one.nodes.iter().all(|node| suspects.contains(node))) {
        if one.nodes.iter().all(|node| !used.contains(node)) {
            used.extend(&one.nodes);
            once.insert(key(&one.nodes[0], &one.nodes[1]), one.nodes.clone());
        }
    }
    rounds.push(once.into_values().collect());
    rounds.retain(|round| !round.is_empty());
    rounds
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::straggler::pairs::{Blame, blame};

    fn nodes(count: usize) -> Vec<String> {
        (1..=count).map(|n| format!("n{n}")).collect()
    }

    /// All rounds, as a fabric would answer in which these nodes, and the way between these two, are slow.
    fn measured(count: usize, slow: &[&str], link: Option<[&str; 2]>) -> (Vec<Met>, usize) {
        let nodes = nodes(count);
        let speed = |[a, b]: &Pair| {
            let bad = slow.iter().any(|node| a == node || b == node)
                || link.is_some_and(|[x, y]| (a == x && b == y) || (a == y && b == x));
            // Healthy pairs differ by a few per cent.
            let spread = f64::from(u8::try_from(a.len() + b.len()).unwrap_or(0) % 3);
            if bad { 50.0 } else { 100.0 - spread }
        };
        let run = |rounds: &[Vec<Pair>]| -> Vec<Met> {
            rounds.iter().flatten().map(|pair| Met { nodes: pair.clone(), speed: speed(pair) }).collect()
        };
        let first = neighbours(&nodes);
        let mut met = run(&first);
        let suspects = suspects(&met);
        let more = if suspects.is_empty() { Vec::new() } else { again(&nodes, &met, &suspects) };
        for round in first.iter().chain(&more) {
            let mut members: Vec<&String> = round.iter().flatten().collect();
            let all = members.len();
            members.sort();
            members.dedup();
            assert_eq!(members.len(), all, "a node is in two pairs of one round: {round:?}");
        }
        met.extend(run(&more));
        (met, first.len() + more.len())
    }

    #[test]
    fn every_node_meets_another_once() {
        assert_eq!(neighbours(&nodes(1)), [] as [Vec<Pair>; 0]);
        let two = neighbours(&nodes(2));
        assert_eq!(two, [[["n1", "n2"].map(str::to_owned)]]);
        let five = neighbours(&nodes(5));
        assert_eq!(five.len(), 2);
        assert_eq!(five[1], [["n5", "n1"].map(str::to_owned)]);
    }

    #[test]
    fn a_slow_node_and_a_slow_link_are_told_apart_and_a_calm_fabric_is_measured_once() {
        let (met, rounds) = measured(8, &[], None);
        assert_eq!((rounds, blame(&met).unwrap()), (1, Vec::new()));
        let (met, rounds) = measured(8, &["n3"], None);
        assert_eq!(rounds, 4);
        let found = blame(&met).unwrap();
        let [Blame::Node { node, .. }] = &found[..] else { panic!("{found:?}") };
        assert_eq!(node, "n3");
        let (met, _) = measured(8, &[], Some(["n5", "n6"]));
        let found = blame(&met).unwrap();
        let [Blame::Link { nodes, times: 2, .. }] = &found[..] else { panic!("{found:?}") };
        assert_eq!(nodes.join(","), "n5,n6");
        // Two slow nodes of 16 in different pairs; an odd number of nodes.
        for count in [16, 17] {
            let (met, _) = measured(count, &["n2", "n9"], None);
            let names: Vec<String> = blame(&met)
                .unwrap()
                .into_iter()
                .map(|one| if let Blame::Node { node, .. } = one { node } else { panic!("{one:?}") })
                .collect();
            assert_eq!(names, ["n2", "n9"], "{count}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_speeds_give_rounds(speeds in proptest::collection::vec(proptest::num::f64::ANY, 0..9)) {
            let nodes = nodes(speeds.len() * 2);
            let met: Vec<Met> = neighbours(&nodes).into_iter().flatten().zip(speeds)
                .map(|(nodes, speed)| Met { nodes, speed }).collect();
            let suspects = suspects(&met);
            for round in again(&nodes, &met, &suspects) {
                let mut members: Vec<&String> = round.iter().flatten().collect();
                members.sort();
                let all = members.len();
                members.dedup();
                proptest::prop_assert_eq!(members.len(), all);
            }
        }
    }
}
