//! Rows of `criteria.toml`: what a criterion asks, and how its values are scored.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::record::Scalar;

/// Who can decide a criterion.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// A program inside a Slurm cluster.
    Machine,
    /// A program can collect part of the evidence.
    Partly,
    /// Only a statement with a document.
    Evidence,
    /// Not about Slurm.
    NotSlurm,
}

impl Class {
    /// The word of the data files.
    pub fn word(self) -> &'static str {
        match self {
            Self::Machine => "machine",
            Self::Partly => "partly",
            Self::Evidence => "evidence",
            Self::NotSlurm => "not_slurm",
        }
    }
}

/// How a value becomes a score in [0, 1].
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Rule {
    /// 1 for the value `pass`, else 0.
    Flag {
        /// 0 or 1.
        pass: u8,
    },
    /// 1 up to the limit, else 0.
    AtMost {
        /// Inclusive.
        limit: f64,
    },
    /// 1 from the limit, else 0.
    AtLeast {
        /// Inclusive.
        limit: f64,
    },
    /// Piecewise linear, constant beyond its ends.
    Curve {
        /// Value and score, values rising.
        points: Vec<[f64; 2]>,
    },
    /// 1 when a param has one of the values, else unknown.
    AnyText {
        /// The param.
        param: String,
        /// Accepted texts.
        values: Vec<String>,
    },
    /// Curve over largest / median - 1 of the instance's records.
    Spread {
        /// Value and score, values rising.
        points: Vec<[f64; 2]>,
    },
    /// Curve of the matching row of `references.tsv`.
    Reference,
}

/// One instance a listed value of a param.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Each {
    /// The param.
    pub param: String,
    /// Its values, all asked for.
    pub values: Vec<String>,
}

/// What an instance is one of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Per {
    /// The cluster as a whole.
    #[default]
    Cluster,
    /// Every node of the run.
    Node,
    /// Every GPU of every node of the run.
    Gpu,
}

/// Which of several records of an instance counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pick {
    /// The one with the lowest score; a record that says that there was nothing to look at, for a reason of the closed list,
    /// is passed over while others count.
    #[default]
    Worst,
    /// The one with the highest score.
    Best,
}

/// What a measurement can show at all, where a statement decides the rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Shows {
    /// That it holds: any other value leaves the question to the statement, and so does no record.
    Pass,
    /// That it does not hold: a value that shows nothing of the kind leaves the question to the statement.
    Fail,
}

/// How many nodes a record's param `nodes` must name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Span {
    /// One.
    Inside,
    /// Two or more.
    Between,
}

/// How instances of a criterion make its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Combine {
    /// The lowest.
    #[default]
    All,
    /// The mean.
    Share,
}

/// What a proven failure of a gate means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Gate {
    /// The tier is Underperforming.
    Underperforming,
}

/// Where a criterion's value comes from.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measure {
    /// Name from `metrics.tsv`.
    pub metric: String,
    /// Params that a record must have.
    #[serde(default, rename = "where")]
    pub filter: BTreeMap<String, Scalar>,
    /// One instance a value.
    pub each: Option<Each>,
    /// One instance a node or GPU.
    #[serde(default)]
    pub per: Per,
    /// Nodes that took part.
    pub span: Option<Span>,
    /// Which record counts.
    #[serde(default)]
    pub pick: Pick,
    /// `node`: the one instance needs a record of every node.
    pub complete: Option<Per>,
    /// How a value is scored.
    pub rule: Rule,
    /// A claim with this item counts where a value leaves it open (`shows`), or where the record says that there was nothing
    /// to look at. Where no record says so it does not: else losing a bad record would hand the question to the claim.
    pub or_claim: Option<String>,
    /// What its values can show; both when it is absent.
    pub shows: Option<Shows>,
}

impl Measure {
    /// A statement that the item is met.
    pub(super) fn claim(item: &str) -> Self {
        Self {
            metric: "claim".to_owned(),
            filter: BTreeMap::from([("item".to_owned(), Scalar::from(item))]),
            each: None,
            per: Per::Cluster,
            span: None,
            pick: Pick::Worst,
            complete: None,
            rule: Rule::Flag { pass: 1 },
            or_claim: None,
            shows: None,
        }
    }

    /// Whether a statement can decide it.
    pub(super) fn takes_claim(&self) -> bool {
        self.metric == "claim" || self.or_claim.is_some()
    }
}

/// One row of `criteria.toml`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Criterion {
    /// Id of `criteria-list.tsv`.
    pub id: String,
    /// Category id.
    pub category: String,
    /// In our own words.
    pub text: String,
    /// Who can decide it.
    pub class: Class,
    /// What its failure means.
    pub gate: Option<Gate>,
    /// Share inside the category.
    pub weight: u32,
    /// How instances make its value.
    #[serde(default)]
    pub combine: Combine,
    /// Accepted reasons for not applicable.
    #[serde(default)]
    pub na: Vec<String>,
    /// Key of `[sources]`, or `ours: REASON`.
    pub source: String,
    /// Of the source.
    pub date: String,
    /// The kind of statement in evidence.toml that can decide it.
    pub evidence: Option<String>,
    /// What a statement must say for "met" to be believed.
    pub requires: Option<Requires>,
    /// Why this methodology does not decide it yet; it then has no measures.
    pub undecided: Option<String>,
    /// Where its value comes from; a row with `evidence` and none is decided by a claim with its id.
    #[serde(default)]
    pub measures: Vec<Measure>,
}

impl Criterion {
    /// Only a statement can decide it: no measure looks at the cluster.
    pub fn only_stated(&self) -> bool {
        self.measures.iter().all(|measure| measure.metric == "claim")
    }
}

/// What a statement's fields must hold when it says that a criterion is met.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Requires {
    /// A text of the field contains one of these words, in any case.
    #[serde(default)]
    pub one_of: BTreeMap<String, Vec<String>>,
    /// The number is this or more.
    #[serde(default)]
    pub least: BTreeMap<String, f64>,
    /// The number is this or less.
    #[serde(default)]
    pub most: BTreeMap<String, f64>,
    /// The field is there.
    #[serde(default)]
    pub present: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CriteriaFile {
    pub(super) criterion: Vec<Criterion>,
}
