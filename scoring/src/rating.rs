//! Criterion states to category scores, bounds, gates, caps and a tier.
//!
//! Inside a category: weighted arithmetic mean. Across categories: weighted geometric mean with a floor, so that a
//! category at zero cannot be bought back. Only *not applicable* leaves the denominator.

use crate::judge::{Micro, ONE, Outcome, Verdict, micro};
use crate::load::Loaded;
use crate::methodology::{Cap, CapWhen, Methodology, NotRatedWhen, Tier};
use crate::record::Provenance;
use crate::run::Hardware;

/// Score, coverage and bounds: always shown together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Over what was seen; absent when nothing was.
    pub score: Option<Micro>,
    /// Weight of what was seen as a whole, of the weight that applies.
    pub coverage: Micro,
    /// Everything not seen counts 0.
    pub lower: Micro,
    /// Everything not seen counts 1.
    pub upper: Micro,
}

/// A category's result; `bounds` is absent when no criterion applies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CategoryResult {
    /// Category id.
    pub id: String,
    /// For people.
    pub name: String,
    /// Percent under the methodology's own weights.
    pub weight: u32,
    /// Absent when no criterion applies.
    pub bounds: Option<Bounds>,
    /// Criteria by state: pass, fail, unknown, unavailable, not applicable.
    pub counts: [usize; 5],
}

/// A gate's state: passed, failed, unknown or not applicable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GateResult {
    /// Criterion id.
    pub id: String,
    /// The criterion's state.
    pub outcome: Outcome,
    /// Why.
    pub reason: String,
}

impl GateResult {
    /// The word of score.json: gates are passed, failed or unknown.
    pub fn word(&self) -> &'static str {
        match self.outcome {
            Outcome::Pass => "passed",
            Outcome::Fail => "failed",
            Outcome::Unknown | Outcome::Unavailable => "unknown",
            Outcome::NotApplicable => "not_applicable",
        }
    }
}

/// A cap that applies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CapResult {
    /// Id in rating.toml.
    pub id: String,
    /// The best tier left.
    pub tier: String,
    /// What it saw, and the rule's reason.
    pub reason: String,
}

/// A tier with the rule that decided it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Estimate {
    /// Tier id.
    pub tier: String,
    /// What the lower bound alone would give.
    pub by_score: String,
    /// Cap id, or `lower_bound`.
    pub decided_by: String,
    /// One sentence.
    pub because: String,
    /// A gate was not assessed.
    pub provisional: bool,
    /// Caps that apply, the deciding one first.
    pub caps: Vec<CapResult>,
}

/// The whole result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rating {
    /// Absent when no criterion applies.
    pub bounds: Bounds,
    /// The lower bound over what a program can decide, when claims count nothing.
    pub measured_lower: Micro,
    /// In the order of rating.toml.
    pub categories: Vec<CategoryResult>,
    /// In the order of criteria.toml.
    pub gates: Vec<GateResult>,
    /// What the tier would be.
    pub estimate: Estimate,
    /// Why the estimate is no rating; empty when it is one.
    pub not_rated: Vec<String>,
}

impl Rating {
    /// The run is rated: it is not CPU-only, simulated or synthetic, and somebody could look at enough of it.
    pub fn is_rated(&self) -> bool {
        self.not_rated.is_empty() && self.estimate.tier != UNAVAILABLE
    }
}

/// Nobody could tell.
pub const UNAVAILABLE: &str = "unavailable";
/// Seen to fail.
pub const UNDERPERFORMING: &str = "underperforming";

/// Name of a tier for people.
pub fn tier_name<'a>(tiers: &'a [Tier], id: &'a str) -> &'a str {
    match id {
        UNAVAILABLE => "Unavailable",
        UNDERPERFORMING => "Underperforming",
        _ => tiers.iter().find(|tier| tier.id == id).map_or(id, |tier| &tier.name),
    }
}

/// Place of a tier from the best: tiers, then Unavailable, then Underperforming.
pub fn place(tiers: &[Tier], id: &str) -> usize {
    match id {
        UNAVAILABLE => tiers.len(),
        UNDERPERFORMING => tiers.len() + 1,
        _ => tiers.iter().position(|tier| tier.id == id).unwrap_or(tiers.len()),
    }
}

/// Weights of categories, in the order of rating.toml, and of criteria, in the order of criteria.toml.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Weights {
    /// Only their ratios count.
    pub category: Vec<u32>,
    /// Only their ratios inside a category count.
    pub criterion: Vec<u32>,
}

impl Weights {
    /// The methodology's own.
    pub fn of(methodology: &Methodology) -> Self {
        Self {
            category: methodology.rules.category.iter().map(|category| category.weight).collect(),
            criterion: methodology.criteria.iter().map(|criterion| criterion.weight).collect(),
        }
    }
}

/// Verdicts under some weights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Weighed {
    /// Over all categories.
    pub bounds: Bounds,
    /// The lower bound over what a program can decide, when claims count nothing.
    pub measured_lower: Micro,
    /// In the order of rating.toml.
    pub categories: Vec<CategoryResult>,
    /// In the order of criteria.toml.
    pub gates: Vec<GateResult>,
    /// The tier.
    pub estimate: Estimate,
}

/// Weighs verdicts, which are in the order of `methodology.criteria`.
pub fn weighed(methodology: &Methodology, verdicts: &[Verdict], weights: &Weights) -> Weighed {
    let categories = categories_of(methodology, verdicts, weights, false);
    let measured = categories_of(methodology, verdicts, weights, true);
    let floor = methodology.rules.floor;
    let bounds = across(&categories, floor);
    let measured_lower = across(&measured, floor).lower;
    let gates: Vec<GateResult> = methodology
        .criteria
        .iter()
        .zip(verdicts)
        .filter(|(criterion, _)| criterion.gate.is_some())
        .map(|(criterion, verdict)| GateResult {
            id: criterion.id.clone(),
            outcome: verdict.outcome,
            reason: verdict.reason.clone(),
        })
        .collect();
    let estimate = estimate(methodology, bounds, measured_lower, &gates);
    Weighed { bounds, measured_lower, categories, gates, estimate }
}

/// Rates a run from its verdicts, which are in the order of `methodology.criteria`.
pub fn rate(methodology: &Methodology, loaded: &Loaded, verdicts: &[Verdict]) -> Rating {
    let Weighed { bounds, measured_lower, categories, gates, estimate } =
        weighed(methodology, verdicts, &Weights::of(methodology));
    let synthetic = loaded.entries.iter().any(|(_, entry)| entry.provenance == Provenance::Synthetic);
    let not_rated = methodology
        .rules
        .not_rated
        .iter()
        .filter(|rule| match rule.when {
            NotRatedWhen::Cpu => loaded.run.hardware == Hardware::Cpu,
            NotRatedWhen::Simulated => loaded.run.simulated,
            NotRatedWhen::Synthetic => synthetic,
            NotRatedWhen::Shrunk => loaded.run.shrink.is_some(),
        })
        .map(|rule| rule.text.clone())
        .collect();
    Rating { bounds, measured_lower, categories, gates, estimate, not_rated }
}

/// With `measured_only`, criteria that only a statement can decide are left out, and of the others a verdict that a
/// claim decided counts as unknown.
fn categories_of(
    methodology: &Methodology,
    verdicts: &[Verdict],
    weights: &Weights,
    measured_only: bool,
) -> Vec<CategoryResult> {
    let weigh = |id: &str| {
        let mut counts = [0; 5];
        let mut rows = Vec::new();
        for ((criterion, verdict), weight) in
            methodology.criteria.iter().zip(verdicts).zip(&weights.criterion)
        {
            if criterion.category != id {
                continue;
            }
            counts[verdict.outcome as usize] += 1;
            let left_out = measured_only && criterion.only_stated();
            if verdict.outcome != Outcome::NotApplicable && !left_out {
                let value = verdict.value.filter(|_| !(measured_only && verdict.declared));
                rows.push((*weight, value, value.is_some() && verdict.whole));
            }
        }
        (inside(&rows), counts)
    };
    methodology
        .rules
        .category
        .iter()
        .zip(&weights.category)
        .map(|(category, weight)| {
            let (bounds, counts) = weigh(&category.id);
            CategoryResult {
                id: category.id.clone(),
                name: category.name.clone(),
                weight: *weight,
                bounds,
                counts,
            }
        })
        .collect()
}

/// Weight, value, whether all of it was seen.
pub type Row = (u32, Option<Micro>, bool);

/// Weighted arithmetic mean over (weight, value, whether all of it was seen); a value that is absent was not seen. A
/// failure that one node proves while others were not seen has a value, and does not count as covered: else a worse value
/// could raise the coverage.
pub fn inside(rows: &[Row]) -> Option<Bounds> {
    let weights = |keep: fn(&Row) -> bool| -> u64 {
        rows.iter().filter(|row| keep(row)).map(|(weight, ..)| u64::from(*weight)).sum()
    };
    let all = weights(|_| true);
    if all == 0 {
        return None;
    }
    let seen = weights(|(_, value, _)| value.is_some());
    let covered = weights(|(_, _, whole)| *whole);
    let sum: u64 = rows
        .iter()
        .filter_map(|(weight, value, _)| value.map(|value| u64::from(*weight) * u64::from(value)))
        .sum();
    let unseen = (all - seen) * u64::from(ONE);
    // Every quotient is at most 1e6. The lower bound rounds down, the upper one up.
    Some(Bounds {
        score: (seen > 0).then(|| ((sum + seen / 2) / seen) as Micro),
        coverage: (covered * u64::from(ONE) / all) as Micro,
        lower: (sum / all) as Micro,
        upper: (sum + unseen).div_ceil(all) as Micro,
    })
}

/// Weighted geometric mean over categories that apply, each counted as `floor` at least. When none applies nothing is
/// known: the bounds are the widest there are.
pub fn across(categories: &[CategoryResult], floor: f64) -> Bounds {
    let rows: Vec<(f64, Bounds)> = categories
        .iter()
        .filter_map(|category| category.bounds.map(|bounds| (f64::from(category.weight), bounds)))
        .collect();
    let mean = |values: Vec<(f64, Micro)>| {
        let weight: f64 = values.iter().map(|(weight, _)| weight).sum();
        if weight <= 0.0 {
            return None;
        }
        let logarithm: f64 = values
            .iter()
            .map(|(weight, value)| weight * (f64::from(*value) / f64::from(ONE)).max(floor).ln())
            .sum();
        Some(micro((logarithm / weight).exp()))
    };
    let lower =
        mean(rows.iter().map(|(weight, bounds)| (*weight, bounds.lower)).collect()).unwrap_or(micro(floor));
    let upper = mean(rows.iter().map(|(weight, bounds)| (*weight, bounds.upper)).collect()).unwrap_or(ONE);
    let score = mean(rows.iter().filter_map(|(weight, bounds)| Some((*weight, bounds.score?))).collect());
    let weight: u64 = rows.iter().map(|(weight, _)| *weight as u64).sum();
    let covered: u64 = rows.iter().map(|(weight, bounds)| *weight as u64 * u64::from(bounds.coverage)).sum();
    let coverage = covered.checked_div(weight).unwrap_or(0) as Micro;
    // Rounding of logarithms must not turn the order around.
    Bounds {
        score: score.map(|score| score.clamp(lower, upper.max(lower))),
        coverage,
        lower,
        upper: upper.max(lower),
    }
}

/// The tier: the lowest of what the lower bound gives and what the caps leave.
pub fn estimate(
    methodology: &Methodology,
    bounds: Bounds,
    measured_lower: Micro,
    gates: &[GateResult],
) -> Estimate {
    let tiers = &methodology.rules.tier;
    let by_score = match tiers.iter().find(|tier| bounds.lower >= micro(tier.cut)) {
        Some(tier) => tier.id.as_str(),
        None if tiers.last().is_some_and(|last| bounds.upper < micro(last.cut)) => UNDERPERFORMING,
        None => UNAVAILABLE,
    };
    let mut caps: Vec<CapResult> = methodology
        .rules
        .cap
        .iter()
        .filter_map(|cap| {
            let seen = applies(methodology, cap, bounds, measured_lower, gates)?;
            Some(CapResult {
                id: cap.id.clone(),
                tier: cap.tier.clone(),
                reason: format!("{seen} ({})", cap.reason),
            })
        })
        .collect();
    // Stable: of two caps with the same tier, the one that stands later in rating.toml (gates) is named first.
    caps.reverse();
    caps.sort_by_key(|cap| std::cmp::Reverse(place(tiers, &cap.tier)));
    let deciding = caps.first().filter(|cap| place(tiers, &cap.tier) > place(tiers, by_score));
    let provisional = gates.iter().any(|gate| gate.word() == "unknown");
    let lower = percent(bounds.lower);
    let (tier, decided_by, because) = match deciding {
        Some(cap) => (cap.tier.clone(), cap.id.clone(), cap.reason.clone()),
        None => {
            let because = match by_score {
                UNAVAILABLE => format!(
                    "the lower bound {lower} is below the last cut-off, but the upper bound {} is not: nobody could tell",
                    percent(bounds.upper)
                ),
                UNDERPERFORMING => {
                    format!("even the upper bound {} is below the last cut-off", percent(bounds.upper))
                }
                _ => format!("the lower bound is {lower}"),
            };
            (by_score.to_owned(), "lower_bound".to_owned(), because)
        }
    };
    Estimate { tier, by_score: by_score.to_owned(), decided_by, because, provisional, caps }
}

/// What a cap saw, when it applies.
fn applies(
    methodology: &Methodology,
    cap: &Cap,
    bounds: Bounds,
    measured_lower: Micro,
    gates: &[GateResult],
) -> Option<String> {
    let of = |word: &str| {
        let ids: Vec<&str> =
            gates.iter().filter(|gate| gate.word() == word).map(|gate| gate.id.as_str()).collect();
        (!ids.is_empty()).then(|| ids.join(", "))
    };
    match cap.when {
        CapWhen::CoverageBelow => (bounds.coverage < micro(cap.limit))
            .then(|| format!("coverage {} is below {}", percent(bounds.coverage), percent(micro(cap.limit)))),
        CapWhen::MeasuredBelow => (measured_lower < micro(cap.limit)).then(|| {
            format!(
                "the lower bound without claims, {}, is below {}",
                percent(measured_lower),
                percent(micro(cap.limit))
            )
        }),
        CapWhen::CriteriaBelow => {
            let (decided, listed) = methodology.decided();
            ((decided as f64) < cap.limit * listed as f64)
                .then(|| format!("this methodology decides {decided} of {listed} criteria"))
        }
        CapWhen::GateUnknown => of("unknown").map(|ids| format!("provisional: gate {ids} not assessed")),
        CapWhen::GateFailed => of("failed").map(|ids| format!("gate {ids} failed")),
    }
}

/// One decimal, never rounded up to the next cut-off: `79.9 %`.
pub fn percent(value: Micro) -> String {
    format!("{}.{} %", value / 10_000, value / 1_000 % 10)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bounds(coverage: f64, lower: f64, upper: f64) -> Bounds {
        Bounds {
            score: Some(micro(upper)),
            coverage: micro(coverage),
            lower: micro(lower),
            upper: micro(upper),
        }
    }

    fn gate(outcome: Outcome) -> GateResult {
        GateResult { id: "sec-01".to_owned(), outcome, reason: String::new() }
    }

    /// A methodology that asks for everything, so that the cap on its own extent stays out of the way.
    fn methodology() -> Methodology {
        let mut methodology = Methodology::built_in().unwrap();
        methodology.rules.cap.retain(|cap| cap.when != CapWhen::CriteriaBelow);
        methodology
    }

    #[test]
    fn inside_a_category_the_unseen_counts_nothing_below_and_all_above() {
        let rows = [(3, Some(ONE), true), (1, Some(0), true), (2, None, false)];
        let found = inside(&rows).unwrap();
        assert_eq!(found.score, Some(750_000));
        assert_eq!(found.coverage, 666_666);
        assert_eq!(found.lower, 500_000);
        assert_eq!(found.upper, 833_334);
        assert_eq!(inside(&[]), None);
        assert_eq!(inside(&[(2, None, false)]).unwrap().score, None);
        let partly = inside(&[(3, Some(ONE), true), (1, Some(0), false)]).unwrap();
        assert_eq!((partly.coverage, partly.lower, partly.upper), (750_000, 750_000, 750_000));
    }

    fn category(weight: u32, rows: &[(u32, Option<Micro>, bool)]) -> CategoryResult {
        CategoryResult {
            id: String::new(),
            name: String::new(),
            weight,
            bounds: inside(rows),
            counts: [0; 5],
        }
    }

    #[test]
    fn across_categories_the_mean_is_geometric_with_a_floor() {
        let one = category(50, &[(1, Some(ONE), true)]);
        let quarter = category(50, &[(1, Some(250_000), true)]);
        assert_eq!(across(&[one.clone(), quarter], 0.05).score, Some(500_000));
        let zero = category(50, &[(1, Some(0), true)]);
        // The square root of 0.05.
        assert_eq!(across(&[one.clone(), zero], 0.05).score, Some(223_607));
        let nothing = category(50, &[]);
        assert_eq!(
            across(&[one, nothing], 0.05).score,
            Some(ONE),
            "no criterion applies: it leaves the mean"
        );
    }

    #[test]
    fn the_tier_table() {
        let methodology = methodology();
        let passed = [gate(Outcome::Pass)];
        let unknown = [gate(Outcome::Unknown)];
        let unavailable = [gate(Outcome::Unavailable)];
        let failed = [gate(Outcome::Fail), gate(Outcome::Unknown)];
        let na = [gate(Outcome::NotApplicable)];
        for (coverage, lower, upper, measured, gates, tier, decided) in [
            (1.0, 0.95, 0.95, 0.95, &passed[..], "platinum", "lower_bound"),
            (1.0, 0.90, 0.90, 0.90, &passed, "platinum", "lower_bound"),
            (1.0, 0.899_999, 0.9, 0.90, &passed, "gold", "lower_bound"),
            (1.0, 0.80, 0.80, 0.80, &passed, "gold", "lower_bound"),
            (1.0, 0.65, 0.65, 0.65, &passed, "silver", "lower_bound"),
            (1.0, 0.50, 0.50, 0.50, &passed, "bronze", "lower_bound"),
            (1.0, 0.35, 0.35, 0.35, &passed, "ribbon", "lower_bound"),
            // Seen to fail against nobody could tell.
            (1.0, 0.30, 0.30, 0.30, &passed, "underperforming", "lower_bound"),
            (0.8, 0.30, 0.50, 0.30, &passed, "unavailable", "lower_bound"),
            // Coverage.
            (0.89, 0.95, 1.0, 0.95, &passed, "gold", "coverage-90"),
            (0.69, 0.95, 1.0, 0.95, &passed, "silver", "coverage-70"),
            (0.49, 0.95, 1.0, 0.95, &passed, "unavailable", "coverage-50"),
            (0.69, 0.55, 1.0, 0.55, &passed, "bronze", "lower_bound"),
            // Claims.
            (1.0, 0.95, 0.95, 0.59, &passed, "silver", "measured-60"),
            // Gates.
            (1.0, 0.95, 0.95, 0.95, &unknown, "bronze", "gate-unknown"),
            (1.0, 0.95, 0.95, 0.95, &unavailable, "bronze", "gate-unknown"),
            (1.0, 0.36, 0.40, 0.36, &unknown, "ribbon", "lower_bound"),
            (0.49, 0.95, 1.0, 0.95, &unknown, "unavailable", "coverage-50"),
            (1.0, 0.95, 0.95, 0.95, &failed, "underperforming", "gate-failed"),
            (0.10, 0.05, 1.0, 0.05, &failed, "underperforming", "gate-failed"),
            (1.0, 0.95, 0.95, 0.95, &na, "platinum", "lower_bound"),
        ] {
            let found = estimate(&methodology, bounds(coverage, lower, upper), micro(measured), gates);
            assert_eq!(
                (found.tier.as_str(), found.decided_by.as_str()),
                (tier, decided),
                "{coverage} {lower} {gates:?}"
            );
            assert_eq!(found.provisional, gates.iter().any(|gate| gate.word() == "unknown"));
        }
    }

    #[test]
    fn the_deciding_cap_names_its_gate() {
        let found = estimate(&methodology(), bounds(1.0, 1.0, 1.0), ONE, &[gate(Outcome::Unknown)]);
        assert!(found.because.starts_with("provisional: gate sec-01 not assessed"), "{}", found.because);
        assert_eq!(found.by_score, "platinum");
    }

    #[test]
    fn a_methodology_that_leaves_criteria_out_gives_no_platinum() {
        let mut methodology = Methodology::built_in().unwrap();
        let (_, listed) = methodology.decided();
        let rest = methodology.criteria.split_off(listed * 9 / 10);
        methodology.undecided.extend(rest);
        let found = estimate(&methodology, bounds(1.0, 1.0, 1.0), ONE, &[gate(Outcome::Pass)]);
        assert_eq!((found.tier.as_str(), found.decided_by.as_str()), ("gold", "criteria-90"));
    }

    #[test]
    fn a_percentage_is_never_rounded_up_to_a_cut() {
        assert_eq!(percent(899_999), "89.9 %");
        assert_eq!(percent(ONE), "100.0 %");
        assert_eq!(percent(0), "0.0 %");
    }

    fn rows() -> impl Strategy<Value = Vec<(u32, Option<Micro>, bool)>> {
        let row = (1_u32..=3, proptest::option::of(0..=ONE), any::<bool>());
        proptest::collection::vec(row, 0..8).prop_map(|rows| {
            rows.into_iter().map(|(weight, value, whole)| (weight, value, whole && value.is_some())).collect()
        })
    }

    fn all() -> impl Strategy<Value = Vec<CategoryResult>> {
        proptest::collection::vec((1_u32..=20, rows()), 1..10)
            .prop_map(|rows| rows.iter().map(|(weight, rows)| category(*weight, rows)).collect())
    }

    proptest! {
        #[test]
        fn bounds_are_in_order(rows in rows(), categories in all()) {
            for found in inside(&rows).into_iter().chain([across(&categories, 0.05)]) {
                prop_assert!(found.lower <= found.upper && found.upper <= ONE && found.coverage <= ONE);
                if let Some(score) = found.score {
                    prop_assert!(found.lower <= score && score <= found.upper, "{found:?}");
                }
            }
        }

        #[test]
        fn a_criterion_that_nobody_saw_never_raises_the_lower_bound(rows in rows(), weight in 1_u32..=3, others in all()) {
            let mut more = rows.clone();
            more.push((weight, None, false));
            let with = |rows: &[(u32, Option<Micro>, bool)]| {
                let mut categories = others.clone();
                categories.push(category(10, rows));
                across(&categories, 0.05)
            };
            let (before, after) = (with(&rows), with(&more));
            prop_assert!(after.lower <= before.lower, "{before:?} {after:?}");
            if let (Some(before), Some(after)) = (inside(&rows), inside(&more)) {
                prop_assert!(after.lower <= before.lower && after.coverage <= before.coverage && after.upper >= before.upper);
            }
        }

        #[test]
        fn losing_a_value_never_raises_the_lower_bound(rows in rows(), at: prop::sample::Index) {
            prop_assume!(!rows.is_empty());
            let mut less = rows.clone();
            let row = &mut less[at.index(rows.len())];
            (row.1, row.2) = (None, false);
            let (before, after) = (inside(&rows).unwrap(), inside(&less).unwrap());
            prop_assert!(after.lower <= before.lower && after.upper >= before.upper && after.coverage <= before.coverage);
        }

        #[test]
        fn a_better_lower_bound_never_gives_a_worse_tier(a in 0..=ONE, b in 0..=ONE, coverage in 0..=ONE) {
            let methodology = methodology();
            let of = |lower: Micro| {
                let bounds = Bounds { score: None, coverage, lower, upper: ONE };
                place(&methodology.rules.tier, &estimate(&methodology, bounds, lower, &[]).tier)
            };
            prop_assert!(of(a.max(b)) <= of(a.min(b)));
        }
    }
}
