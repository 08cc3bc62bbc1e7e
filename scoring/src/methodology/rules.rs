//! `rating.toml`: weights, tiers, caps and the rules around them.

use std::collections::BTreeMap;

use serde::Deserialize;

/// Where a rule comes from.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// Title.
    pub text: String,
    /// Day of publication or capture.
    pub date: String,
    /// Address.
    pub url: String,
}

/// A category and its weight.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Category {
    /// In criteria.
    pub id: String,
    /// For people.
    pub name: String,
    /// Percent.
    pub weight: u32,
    /// Why this weight.
    pub reason: String,
}

/// A tier and its cut-off on the lower bound.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tier {
    /// In score.json.
    pub id: String,
    /// For people.
    pub name: String,
    /// Reached from this lower bound on.
    pub cut: f64,
    /// Why this cut-off.
    pub reason: String,
}

/// When a cap applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CapWhen {
    /// Coverage is below `limit`.
    CoverageBelow,
    /// The lower bound that counts no claim is below `limit`.
    MeasuredBelow,
    /// The methodology decides less than `limit` of the listed criteria that are about Slurm.
    CriteriaBelow,
    /// A gate is unknown.
    GateUnknown,
    /// A gate failed.
    GateFailed,
}

/// The best tier that is left when a rule applies.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cap {
    /// In score.json.
    pub id: String,
    /// The rule.
    pub when: CapWhen,
    /// Of the rule.
    #[serde(default)]
    pub limit: f64,
    /// Tier id, or `unavailable`, `underperforming`.
    pub tier: String,
    /// Why.
    pub reason: String,
}

/// When a run is measured and not rated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NotRatedWhen {
    /// `run.json` says `hardware: cpu`.
    Cpu,
    /// `run.json` says `simulated`.
    Simulated,
    /// A record's provenance is synthetic.
    Synthetic,
    /// `run.json` has `shrink`: only a part of the profile's sizes and times.
    Shrunk,
}

/// Why a run is measured and not rated.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NotRated {
    /// The rule.
    pub when: NotRatedWhen,
    /// For people.
    pub text: String,
}

/// How weights are varied to see how firm a rating is.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SensitivityRules {
    /// How often.
    pub draws: u32,
    /// A weight is multiplied by 1 - spread to 1 + spread.
    pub spread: f64,
    /// Of the generator.
    pub seed: u64,
    /// Why these.
    pub reason: String,
}

/// When and how runs are compared with each other.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RelativeRules {
    /// Fewer peers give no relative tier.
    pub peers: usize,
    /// Lower bounds of the same tier that differ by no more share a rank.
    pub tie: f64,
    /// Why these.
    pub reason: String,
    /// Best first.
    pub tiers: Vec<RelativeTier>,
}

/// A relative tier: the best share of the peers.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RelativeTier {
    /// Tier id.
    pub id: String,
    /// Up to this share of the peers, counted from the best.
    pub top: f64,
}

/// `rating.toml`
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rules {
    /// Version of the methodology, printed with every result.
    pub methodology: String,
    /// Of that version.
    pub date: String,
    /// Said with every rating.
    pub notice: String,
    /// Least that a category counts in the geometric mean.
    pub floor: f64,
    /// When a run is not rated.
    pub not_rated: Vec<NotRated>,
    /// How other weights are tried.
    pub sensitivity: SensitivityRules,
    /// How runs are ranked.
    pub relative: RelativeRules,
    /// Where rules come from.
    pub sources: BTreeMap<String, Source>,
    /// Categories, in the order of reports.
    pub category: Vec<Category>,
    /// Tiers, best first.
    pub tier: Vec<Tier>,
    /// Caps.
    pub cap: Vec<Cap>,
    /// Reasons for not applicable, and what each says.
    pub not_applicable: BTreeMap<String, String>,
    /// Reasons of an unavailable record for which there was nothing to look at, and what each says.
    pub nothing_there: BTreeMap<String, String>,
}
