//! Whether a slow pair of nodes is slow for one of them or for the way between them.
//!
//! A node that is slow with every partner is slow itself; a pair that is slow each time it is measured while both do
//! well with others has a bad link. Fewer partners leave it open, and that is said.

use std::collections::{BTreeMap, BTreeSet};

/// Share of the good pairs' speed below which a pair is slow. Healthy pairs of one fabric are within 10 %.
pub const SHORT: f64 = 0.8;
/// Partners that a node must have been slow with, and measurements of a pair that must all have been slow.
pub const CONFIRM: usize = 2;

/// Two nodes that were measured together.
#[derive(Debug, Clone, PartialEq)]
pub struct Met {
    /// Their names.
    pub nodes: [String; 2],
    /// What they reached; any unit, above zero.
    pub speed: f64,
}

/// What the pairs show.
#[derive(Debug, Clone, PartialEq)]
pub enum Blame {
    /// The node is slow with each of these partners.
    Node {
        /// The node.
        node: String,
        /// Whom it met, in the order of names.
        partners: Vec<String>,
        /// How much slower than good pairs, share, median over its pairs.
        short: f64,
    },
    /// Only these two together are slow, each of so many times.
    Link {
        /// The nodes.
        nodes: [String; 2],
        /// Measurements.
        times: usize,
        /// How much slower than good pairs, share, median.
        short: f64,
    },
    /// Slow, and not measured with enough others to say more.
    Open {
        /// The nodes.
        nodes: [String; 2],
        /// How much slower than good pairs, share.
        short: f64,
    },
}

/// Names what is slow; nothing when nothing is.
///
/// # Errors
/// The clause that says why nothing can be said: fewer than three pairs of different nodes, a speed not above zero.
pub fn blame(met: &[Met]) -> Result<Vec<Blame>, String> {
    if met.iter().any(|one| !(one.speed.is_finite() && one.speed > 0.0)) {
        return Err("a pair has a speed that is not above zero".to_owned());
    }
    let mut pairs: BTreeMap<[&str; 2], Vec<f64>> = BTreeMap::new();
    for one in met {
        let [a, b] = [one.nodes[0].as_str(), one.nodes[1].as_str()];
        pairs.entry(if a < b { [a, b] } else { [b, a] }).or_default().push(one.speed);
    }
    if pairs.len() < 3 {
        return Err(format!("{} pairs of nodes, a slow one can be told among 3 or more", pairs.len()));
    }
    // The upper quartile stands for what a good pair does, also when many are slow.
    let mut speeds: Vec<f64> = pairs.values().map(|speeds| median(speeds)).collect();
    speeds.sort_by(f64::total_cmp);
    let good = speeds[((speeds.len() - 1) * 3).div_ceil(4)];
    let slow = |speeds: &[f64]| speeds.iter().all(|speed| *speed < SHORT * good);
    let mut partners: BTreeMap<&str, BTreeMap<&str, bool>> = BTreeMap::new();
    for ([a, b], speeds) in &pairs {
        partners.entry(a).or_default().insert(b, slow(speeds));
        partners.entry(b).or_default().insert(a, slow(speeds));
    }
    let always = |node: &str| {
        let met = &partners[node];
        met.len() >= CONFIRM && met.values().all(|slow| *slow)
    };
    let mut found = Vec::new();
    let mut bad: BTreeSet<&str> = BTreeSet::new();
    for (node, met) in &partners {
        // A partner that is slow with everybody says nothing about this node.
        let witnesses: Vec<&str> = met.keys().copied().filter(|partner| !always(partner)).collect();
        if always(node) && witnesses.len() >= CONFIRM {
            bad.insert(node);
            let own: Vec<f64> = pairs
                .iter()
                .filter(|(pair, _)| {
                    pair.contains(node) && pair.iter().all(|other| other == node || !always(other))
                })
                .flat_map(|(_, speeds)| speeds.iter().map(|speed| 1.0 - speed / good))
                .collect();
            found.push(Blame::Node {
                node: (*node).to_owned(),
                partners: witnesses.into_iter().map(str::to_owned).collect(),
                short: median(&own),
            });
        }
    }
    for (pair @ [a, b], speeds) in &pairs {
        if !slow(speeds) || bad.contains(a) || bad.contains(b) {
            continue;
        }
        let good_elsewhere = |node: &str| partners[node].values().any(|slow| !slow);
        let short = 1.0 - median(speeds) / good;
        let nodes = pair.map(str::to_owned);
        found.push(if speeds.len() >= CONFIRM && good_elsewhere(a) && good_elsewhere(b) {
            Blame::Link { nodes, times: speeds.len(), short }
        } else {
            Blame::Open { nodes, short }
        });
    }
    Ok(found)
}

fn median(values: &[f64]) -> f64 {
    super::quantile(values, 0.5)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn met(pairs: &[(&str, &str, f64)]) -> Vec<Met> {
        pairs
            .iter()
            .map(|(a, b, speed)| Met { nodes: [a, b].map(|n| (*n).to_owned()), speed: *speed })
            .collect()
    }

    #[test]
    fn slow_with_every_partner_is_the_node() {
        let found = blame(&met(&[
            ("n1", "n2", 100.0),
            ("n3", "n4", 60.0),
            ("n5", "n6", 98.0),
            ("n3", "n1", 61.0),
            ("n4", "n2", 99.0),
            ("n3", "n5", 59.0),
            ("n4", "n6", 101.0),
            ("n3", "n4", 60.0),
        ]))
        .unwrap();
        let [Blame::Node { node, partners, short }] = &found[..] else { panic!("{found:?}") };
        assert_eq!((node.as_str(), partners.join(",").as_str()), ("n3", "n1,n4,n5"));
        assert!((short - 0.4).abs() < 0.03, "{short}");
    }

    #[test]
    fn slow_only_together_is_the_link() {
        let all = met(&[
            ("n1", "n2", 100.0),
            ("n3", "n4", 50.0),
            ("n3", "n1", 99.0),
            ("n4", "n2", 98.0),
            ("n4", "n3", 52.0),
        ]);
        let found = blame(&all).unwrap();
        let [Blame::Link { nodes, times: 2, short }] = &found[..] else { panic!("{found:?}") };
        assert_eq!(nodes.join(","), "n3,n4");
        assert!((short - 0.48).abs() < 0.02);
        // Measured once: not certain. Well the second time: nothing.
        let once = blame(&all[..4]).unwrap();
        assert!(matches!(&once[..], [Blame::Open { .. }]), "{once:?}");
        let mut well = all.clone();
        well[4].speed = 97.0;
        assert_eq!(blame(&well).unwrap(), []);
    }

    #[test]
    fn two_slow_nodes_do_not_hide_each_other_and_blame_nobody_else() {
        let found = blame(&met(&[
            ("a", "b", 50.0),
            ("c", "d", 100.0),
            ("e", "f", 100.0),
            ("a", "c", 50.0),
            ("b", "d", 55.0),
            ("a", "e", 50.0),
            ("b", "f", 55.0),
            ("a", "b", 40.0),
            ("c", "e", 99.0),
            ("d", "f", 99.0),
        ]))
        .unwrap();
        let names: Vec<&str> = found
            .iter()
            .map(|one| match one {
                Blame::Node { node, .. } => node.as_str(),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(names, ["a", "b"]);
    }

    #[test]
    fn natural_spread_blames_nobody_and_too_little_says_why() {
        let calm: Vec<(&str, &str, f64)> =
            vec![("a", "b", 100.0), ("c", "d", 97.0), ("e", "f", 103.0), ("g", "h", 94.0)];
        assert_eq!(blame(&met(&calm)).unwrap(), []);
        assert!(blame(&met(&calm[..2])).unwrap_err().contains("2 pairs"));
        assert!(blame(&met(&[("a", "b", 0.0)])).unwrap_err().contains("above zero"));
    }

    proptest::proptest! {
        #[test]
        fn any_pairs_give_an_answer(pairs in proptest::collection::vec(("[a-d]", "[a-d]", proptest::num::f64::ANY), 0..12)) {
            let all: Vec<Met> = pairs.into_iter().map(|(a, b, speed)| Met { nodes: [a, b], speed }).collect();
            let _ = blame(&all);
        }
    }
}
