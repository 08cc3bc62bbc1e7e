//! How firm a rating is: what other weights would give, what one category alone decides, what would lift it.
//!
//! Weights are ours, so a rating that turns with them says little: `draws` times every category and criterion weight
//! is multiplied by a factor drawn evenly from 1 - `spread` to 1 + `spread` in thousandths. The generator is SplitMix64
//! (state += 0x9e3779b97f4a7c15, then two xor-multiply rounds) from a fixed seed, factors are drawn for the categories
//! in the order of rating.toml, then for the criteria in the order of criteria.toml: the same input gives the same bytes.

use std::collections::BTreeMap;

use crate::judge::{Micro, ONE, Outcome, Verdict};
use crate::methodology::Methodology;
use crate::rating::{Bounds, Estimate, Weights, place, weighed};

/// Criteria that are shown as the ones that lift most.
const SHOWN: usize = 10;

/// What other weights give.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Draws {
    /// Draws that end in each tier, by tier id.
    pub tiers: BTreeMap<String, u32>,
    /// 5th, 50th and 95th percentile of the lower bound.
    pub lower: [Micro; 3],
}

/// The result when one category has no weight; its gates still hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Without {
    /// Category id.
    pub category: String,
    /// Score, coverage and bounds without it.
    pub bounds: Bounds,
    /// The tier without it.
    pub estimate: Estimate,
}

/// The result if one criterion were passed in full.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lift {
    /// Criterion id.
    pub criterion: String,
    /// The lower bound then.
    pub lower: Micro,
    /// The tier then.
    pub tier: String,
}

/// What has to be passed, in this order, for the next tier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Path {
    /// Criterion ids.
    pub steps: Vec<String>,
    /// The tier that they reach; absent when even all of them do not lift it.
    pub tier: Option<String>,
    /// The rule that holds it then.
    pub held_by: String,
}

/// All of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sensitivity {
    /// Other weights.
    pub draws: Draws,
    /// In the order of rating.toml; categories that do not apply are left out.
    pub without: Vec<Without>,
    /// Best first.
    pub lifts: Vec<Lift>,
    /// To the next tier.
    pub path: Path,
}

/// SplitMix64.
struct Generator(u64);

impl Generator {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// A weight times a factor from 1000 - `spread` to 1000 + `spread` thousandths.
    fn vary(&mut self, weight: u32, spread: u32) -> u32 {
        // The bias of the remainder is below 2^-54.
        let factor = 1000 - spread + (self.next() % u64::from(2 * spread + 1)) as u32;
        weight * factor
    }
}

/// Looks at a rating from all sides.
pub fn analyse(methodology: &Methodology, verdicts: &[Verdict], estimate: &Estimate) -> Sensitivity {
    let base = Weights::of(methodology);
    Sensitivity {
        draws: draws(methodology, verdicts, &base),
        without: without(methodology, verdicts, &base),
        lifts: lifts(methodology, verdicts, &base).into_iter().take(SHOWN).map(|(_, lift)| lift).collect(),
        path: path(methodology, verdicts, &base, estimate),
    }
}

fn draws(methodology: &Methodology, verdicts: &[Verdict], base: &Weights) -> Draws {
    let rules = &methodology.rules.sensitivity;
    let spread = (rules.spread * 1000.0).round() as u32;
    let mut generator = Generator(rules.seed);
    let mut tiers: BTreeMap<String, u32> = BTreeMap::new();
    let mut lower = Vec::new();
    for _ in 0..rules.draws {
        let weights = Weights {
            category: base.category.iter().map(|weight| generator.vary(*weight, spread)).collect(),
            criterion: base.criterion.iter().map(|weight| generator.vary(*weight, spread)).collect(),
        };
        let found = weighed(methodology, verdicts, &weights);
        lower.push(found.bounds.lower);
        *tiers.entry(found.estimate.tier).or_default() += 1;
    }
    lower.sort_unstable();
    // Nearest rank; there is one draw at least.
    let at = |percent: usize| {
        lower.get((lower.len() * percent).div_ceil(100).max(1) - 1).copied().unwrap_or_default()
    };
    Draws { lower: [at(5), at(50), at(95)], tiers }
}

fn without(methodology: &Methodology, verdicts: &[Verdict], base: &Weights) -> Vec<Without> {
    let applies = weighed(methodology, verdicts, base).categories;
    methodology
        .rules
        .category
        .iter()
        .enumerate()
        .filter(|(index, _)| applies[*index].bounds.is_some())
        .map(|(index, category)| {
            let mut weights = base.clone();
            weights.category[index] = 0;
            let found = weighed(methodology, verdicts, &weights);
            Without { category: category.id.clone(), bounds: found.bounds, estimate: found.estimate }
        })
        .collect()
}

/// The verdict of a criterion that is passed in full.
fn passed(methodology: &Methodology, index: usize) -> Verdict {
    let criterion = &methodology.criteria[index];
    Verdict {
        id: criterion.id.clone(),
        outcome: Outcome::Pass,
        value: Some(ONE),
        reason: String::new(),
        observed: Vec::new(),
        instances: (1, 1),
        declared: criterion.only_stated(),
        whole: true,
    }
}

/// Verdicts without what only a reader needs: they are copied often.
fn bare(verdicts: &[Verdict]) -> Vec<Verdict> {
    verdicts
        .iter()
        .map(|verdict| Verdict { observed: Vec::new(), reason: String::new(), ..verdict.clone() })
        .collect()
}

fn liftable(verdict: &Verdict) -> bool {
    verdict.outcome != Outcome::NotApplicable && verdict.value != Some(ONE)
}

/// Every criterion that is not passed in full, with the result if it were: best tier, then best lower bound first.
fn lifts(methodology: &Methodology, verdicts: &[Verdict], base: &Weights) -> Vec<(usize, Lift)> {
    let mut trial = bare(verdicts);
    let mut found = Vec::new();
    for index in 0..verdicts.len() {
        if !liftable(&verdicts[index]) {
            continue;
        }
        let old = std::mem::replace(&mut trial[index], passed(methodology, index));
        let result = weighed(methodology, &trial, base);
        trial[index] = old;
        found.push((
            index,
            Lift {
                criterion: verdicts[index].id.clone(),
                lower: result.bounds.lower,
                tier: result.estimate.tier,
            },
        ));
    }
    let tiers = &methodology.rules.tier;
    found.sort_by(|(first, a), (second, b)| {
        place(tiers, &a.tier)
            .cmp(&place(tiers, &b.tier))
            .then_with(|| b.lower.cmp(&a.lower))
            .then_with(|| first.cmp(second))
    });
    found
}

/// Gates first, since nothing else counts before them; then criteria in the order of their gain. What turns out not to
/// be needed is left out again.
fn path(methodology: &Methodology, verdicts: &[Verdict], base: &Weights, estimate: &Estimate) -> Path {
    let tiers = &methodology.rules.tier;
    let start = place(tiers, &estimate.tier);
    let mut order = lifts(methodology, verdicts, base);
    order.sort_by_key(|(index, lift)| {
        let gate = methodology.criteria[*index].gate.is_some();
        (!gate, std::cmp::Reverse(lift.lower), *index)
    });
    let mut trial = bare(verdicts);
    let mut steps = Vec::new();
    let mut now = estimate.clone();
    for (index, _) in order {
        if start == 0 || place(tiers, &now.tier) < start {
            break;
        }
        trial[index] = passed(methodology, index);
        steps.push(index);
        now = weighed(methodology, &trial, base).estimate;
    }
    let reached = place(tiers, &now.tier) < start;
    if reached {
        let plain = bare(verdicts);
        for index in steps.clone() {
            let old = std::mem::replace(&mut trial[index], plain[index].clone());
            let less = weighed(methodology, &trial, base).estimate;
            if place(tiers, &less.tier) < start {
                steps.retain(|step| *step != index);
                now = less;
            } else {
                trial[index] = old;
            }
        }
    }
    Path {
        steps: steps.into_iter().map(|index| verdicts[index].id.clone()).collect(),
        tier: reached.then(|| now.tier.clone()),
        held_by: now.decided_by,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn methodology() -> Methodology {
        Methodology::built_in().unwrap()
    }

    /// Every criterion passed, but those that `change` alters.
    fn verdicts(methodology: &Methodology, change: impl Fn(&mut Verdict)) -> Vec<Verdict> {
        (0..methodology.criteria.len())
            .map(|index| {
                let mut verdict = passed(methodology, index);
                change(&mut verdict);
                verdict
            })
            .collect()
    }

    fn analysed(methodology: &Methodology, verdicts: &[Verdict]) -> (Estimate, Sensitivity) {
        let estimate = weighed(methodology, verdicts, &Weights::of(methodology)).estimate;
        let found = analyse(methodology, verdicts, &estimate);
        (estimate, found)
    }

    #[test]
    fn the_generator_is_splitmix64() {
        // First outputs for seed 1234567, as published with the algorithm.
        let mut generator = Generator(1_234_567);
        let found: Vec<u64> = (0..3).map(|_| generator.next()).collect();
        assert_eq!(found, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
    }

    #[test]
    fn factors_stay_in_the_spread_and_fill_it() {
        let mut generator = Generator(1);
        let factors: Vec<u32> = (0..20_000).map(|_| generator.vary(1, 250)).collect();
        assert_eq!((factors.iter().min(), factors.iter().max()), (Some(&750), Some(&1250)));
        let mean = factors.iter().sum::<u32>() / 20_000;
        assert!((995..=1005).contains(&mean), "{mean}");
    }

    #[test]
    fn a_rating_without_doubt_is_the_same_under_all_weights_and_twice_the_same() {
        let methodology = methodology();
        let verdicts = verdicts(&methodology, |_| ());
        let (estimate, found) = analysed(&methodology, &verdicts);
        assert_eq!(estimate.tier, "platinum");
        assert_eq!(found.draws.tiers, BTreeMap::from([("platinum".to_owned(), 1000)]));
        assert_eq!(found.draws.lower, [ONE, ONE, ONE]);
        assert!(found.lifts.is_empty() && found.path.tier.is_none());
        assert_eq!(found.path.held_by, "lower_bound");
        assert_eq!(analysed(&methodology, &verdicts).1, found);
    }

    #[test]
    fn an_unassessed_gate_is_what_lifts_most() {
        let methodology = methodology();
        let verdicts = verdicts(&methodology, |verdict| {
            if ["sec-01", "orc-03"].contains(&verdict.id.as_str()) {
                (verdict.outcome, verdict.value) = (Outcome::Unknown, None);
            }
        });
        let (estimate, found) = analysed(&methodology, &verdicts);
        assert_eq!((estimate.tier.as_str(), estimate.decided_by.as_str()), ("bronze", "gate-unknown"));
        assert_eq!((found.lifts[0].criterion.as_str(), found.lifts[0].tier.as_str()), ("sec-01", "platinum"));
        assert_eq!(found.lifts[1].tier, "bronze", "the other one lifts nothing");
        assert_eq!(
            (found.path.steps.as_slice(), found.path.tier.as_deref()),
            (&["sec-01".to_owned()][..], Some("platinum"))
        );
    }

    #[test]
    fn a_category_that_failed_is_what_the_tier_hangs_on() {
        let methodology = methodology();
        let storage = |verdict: &mut Verdict| {
            if verdict.id.starts_with("sto") {
                (verdict.outcome, verdict.value) = (Outcome::Fail, Some(0));
            }
        };
        let verdicts = verdicts(&methodology, storage);
        let (estimate, found) = analysed(&methodology, &verdicts);
        let of = |id: &str| found.without.iter().find(|one| one.category == id).unwrap();
        assert_eq!(of("storage").estimate.tier, "platinum");
        assert_ne!(estimate.tier, "gold");
        assert_eq!(of("storage").bounds.lower, ONE);
        assert!(of("pricing").bounds.lower < ONE);
        // 0.05 to a share of 0.12 is close to 0.70: with other weights some draws are Silver and none is Gold.
        assert_eq!(found.draws.tiers.values().sum::<u32>(), 1000);
        assert!(!found.draws.tiers.contains_key("gold"), "{:?}", found.draws);
        assert!(found.draws.lower[0] < found.draws.lower[1] && found.draws.lower[1] < found.draws.lower[2]);
        let reached = found.path.tier.as_deref();
        assert_eq!(reached, Some("gold"), "{:?}", found.path);
        assert!(found.path.steps.iter().all(|id| id.starts_with("sto")), "{:?}", found.path);
    }
}
