//! The methodology: everything that decides a rating, as data.
//!
//! Built in from `scoring/data/`, or read from a folder with the same files. Every row has a source and a date.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use sha2::{Digest, Sha256};

use crate::record::Scalar;

/// The files of a methodology, and the built-in text of each.
pub const FILES: [(&str, &str); 6] = [
    ("ceilings.tsv", include_str!("../data/ceilings.tsv")),
    ("criteria-list.tsv", include_str!("../data/criteria-list.tsv")),
    ("criteria.toml", include_str!("../data/criteria.toml")),
    ("metrics.tsv", include_str!("../data/metrics.tsv")),
    ("rating.toml", include_str!("../data/rating.toml")),
    ("references.tsv", include_str!("../data/references.tsv")),
];

/// What is wrong with a methodology.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file of it cannot be read.
    #[error("cannot read {}: {source}; a methodology folder needs {}", path.display(), file_names())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why it failed.
        source: std::io::Error,
    },
    /// A file of it does not parse.
    #[error("{file}: {what}; correct the file or leave out --data to use the built-in methodology")]
    Parse {
        /// The file.
        file: String,
        /// What is wrong, where.
        what: String,
    },
    /// The rows parse but contradict each other or a rule.
    #[error("{} in the methodology: {}; correct the files or leave out --data", count(.0.len()), .0.join("; "))]
    Rows(Vec<String>),
}

fn file_names() -> String {
    FILES.map(|(name, _)| name).join(", ")
}

fn count(problems: usize) -> String {
    if problems == 1 { "1 problem".to_owned() } else { format!("{problems} problems") }
}

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

/// One row of `criteria-list.tsv`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// `sec-01` ...
    pub id: String,
    /// Category id.
    pub category: String,
    /// Who can decide it.
    pub class: String,
    /// Where it is asked: versions of the rating, its pages, tool and articles, or `ours`.
    pub versions: String,
}

/// One row of `metrics.tsv`.
#[derive(Debug, Clone, PartialEq)]
pub struct Metric {
    /// Name in records.
    pub name: String,
    /// Stage that writes it; `*` for any.
    pub stage: String,
    /// Unit in records.
    pub unit: String,
    /// Params that tell its records apart.
    pub params: String,
    /// Smallest possible value.
    pub min: f64,
    /// Largest possible value.
    pub max: f64,
    /// What a record's subject names.
    pub subject: String,
    /// One clause.
    pub meaning: String,
}

/// One row of `references.tsv`: what a GPU model gives, and what it cannot give.
#[derive(Debug, Clone, PartialEq)]
pub struct Reference {
    /// Unique.
    pub id: String,
    /// Metric that it is about.
    pub metric: String,
    /// GPU models, as NVML or amdgpu name them.
    pub gpus: Vec<String>,
    /// Params that a record must have.
    pub params: BTreeMap<String, Scalar>,
    /// Nodes that took part.
    pub nodes: Option<i64>,
    /// Ranks that took part.
    pub ranks: Option<i64>,
    /// Smallest message, bytes.
    pub size_min: Option<i64>,
    /// Score 0 up to here.
    pub zero: f64,
    /// Score 0.7: the published minimum.
    pub minimum: f64,
    /// Score 1 from here: what is typically measured.
    pub typical: f64,
    /// A value above is impossible.
    pub ceiling: f64,
    /// Unit.
    pub unit: String,
    /// Where the ceiling comes from.
    pub basis: String,
    /// Where the values come from.
    pub source: String,
    /// Day of publication, or of reading when the source has none.
    pub date: String,
}

/// One row of `ceilings.tsv`: no record of a GPU model can lie above.
#[derive(Debug, Clone, PartialEq)]
pub struct Ceiling {
    /// Metric that it is about.
    pub metric: String,
    /// GPU models, as NVML or amdgpu name them.
    pub gpus: Vec<String>,
    /// Params that a record must have.
    pub params: BTreeMap<String, Scalar>,
    /// A value above is impossible.
    pub ceiling: f64,
    /// Unit.
    pub unit: String,
    /// Where the ceiling comes from.
    pub basis: String,
    /// Source of the basis.
    pub source: String,
    /// Day of publication, or of reading when the source has none.
    pub date: String,
}

/// Score of [`Reference::minimum`].
pub const MINIMUM_SCORE: f64 = 0.7;

impl Reference {
    /// The curve's points, value and score.
    pub fn points(&self) -> [[f64; 2]; 3] {
        [[self.zero, 0.0], [self.minimum, MINIMUM_SCORE], [self.typical, 1.0]]
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
    /// The one with the lowest score.
    #[default]
    Worst,
    /// The lowest score of those that could be had: records are ways to the same thing, some of which may be lacking.
    WorstAvailable,
    /// The one with the highest score.
    Best,
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
    /// A claim with this item counts where the rule leaves it open.
    pub or_claim: Option<String>,
}

impl Measure {
    /// A statement that the item is met.
    fn claim(item: &str) -> Self {
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
        }
    }

    /// Whether a statement can decide it.
    fn takes_claim(&self) -> bool {
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
struct CriteriaFile {
    criterion: Vec<Criterion>,
}

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
}

/// All data of a methodology, checked.
#[derive(Debug, Clone)]
pub struct Methodology {
    /// Every criterion of the field.
    pub listed: Vec<Listed>,
    /// The criteria that this methodology decides.
    pub criteria: Vec<Criterion>,
    /// The criteria that it lists with their reason and does not decide yet; they are outside every figure.
    pub undecided: Vec<Criterion>,
    /// Known metrics by name.
    pub metrics: BTreeMap<String, Metric>,
    /// Reference values.
    pub references: Vec<Reference>,
    /// Physical ceilings.
    pub ceilings: Vec<Ceiling>,
    /// Weights, tiers, caps.
    pub rules: Rules,
    /// SHA-256 of each data file, by name.
    pub digests: BTreeMap<String, String>,
}

impl Methodology {
    /// The methodology of this release.
    ///
    /// # Errors
    /// Never for a release whose tests pass.
    pub fn built_in() -> Result<Self, Error> {
        Self::parse(&FILES.map(|(name, text)| (name, text.to_owned())))
    }

    /// The methodology in a folder.
    ///
    /// # Errors
    /// A file that is missing, malformed, or whose rows break a rule.
    pub fn open(folder: &Path) -> Result<Self, Error> {
        let mut texts = Vec::new();
        for (name, _) in FILES {
            let path = folder.join(name);
            let text = fs::read_to_string(&path).map_err(|source| Error::Io { path, source })?;
            texts.push((name, text));
        }
        Self::parse(&texts)
    }

    fn parse(texts: &[(&str, String)]) -> Result<Self, Error> {
        let text = |wanted: &str| {
            texts.iter().find(|(name, _)| *name == wanted).map_or("", |(_, text)| text.as_str())
        };
        let toml_error = |file: &str, error: &toml::de::Error| Error::Parse {
            file: file.to_owned(),
            what: error.to_string().trim_end().replace('\n', " "),
        };
        let criteria: CriteriaFile =
            toml::from_str(text("criteria.toml")).map_err(|error| toml_error("criteria.toml", &error))?;
        let rules: Rules =
            toml::from_str(text("rating.toml")).map_err(|error| toml_error("rating.toml", &error))?;
        let (undecided, mut criteria): (Vec<Criterion>, Vec<Criterion>) =
            criteria.criterion.into_iter().partition(|criterion| criterion.undecided.is_some());
        for criterion in &mut criteria {
            if criterion.evidence.is_some() && criterion.measures.is_empty() {
                criterion.measures.push(Measure::claim(&criterion.id));
            }
        }
        let methodology = Self {
            listed: parse_list(text("criteria-list.tsv"))?,
            criteria,
            undecided,
            metrics: parse_metrics(text("metrics.tsv"))?,
            references: parse_references(text("references.tsv"))?,
            ceilings: parse_ceilings(text("ceilings.tsv"))?,
            rules,
            digests: texts
                .iter()
                .map(|(name, text)| ((*name).to_owned(), hex(&Sha256::digest(text.as_bytes()))))
                .collect(),
        };
        let problems = methodology.problems();
        if problems.is_empty() { Ok(methodology) } else { Err(Error::Rows(problems)) }
    }

    /// All criteria in the order of the list, decided or not.
    pub fn all(&self) -> impl Iterator<Item = &Criterion> {
        self.listed.iter().filter_map(|listed| {
            self.criteria.iter().chain(&self.undecided).find(|criterion| criterion.id == listed.id)
        })
    }

    /// How many of the listed criteria that are about Slurm are decided, and how many there are.
    pub fn decided(&self) -> (usize, usize) {
        let listed = self.listed.iter().filter(|listed| listed.class != Class::NotSlurm.word()).count();
        (self.criteria.len(), listed)
    }

    /// The criterion with this id.
    pub fn criterion(&self, id: &str) -> Option<&Criterion> {
        self.criteria.iter().find(|criterion| criterion.id == id)
    }

    /// Everything that is wrong with the rows, one clause each.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        self.check_rules(&mut problems);
        self.check_criteria(&mut problems);
        self.check_list(&mut problems);
        self.check_references(&mut problems);
        self.check_ceilings(&mut problems);
        for metric in self.metrics.values() {
            if metric.min >= metric.max && metric.min != 1.0 {
                problems.push(format!("metrics.tsv: {}: min is not below max", metric.name));
            }
            if metric.meaning.is_empty() {
                problems.push(format!("metrics.tsv: {}: meaning is empty", metric.name));
            }
        }
        problems
    }

    fn check_rules(&self, problems: &mut Vec<String>) {
        let rules = &self.rules;
        let total: u32 = rules.category.iter().map(|category| category.weight).sum();
        if total != 100 {
            problems.push(format!("rating.toml: category weights add up to {total}, not 100"));
        }
        if !(rules.floor > 0.0 && rules.floor < 1.0) {
            problems.push(format!("rating.toml: floor {} is not between 0 and 1", rules.floor));
        }
        let sensitivity = &rules.sensitivity;
        let relative = &rules.relative;
        let rising = relative.tiers.windows(2).all(|pair| pair[0].top < pair[1].top);
        let known = relative.tiers.iter().all(|one| rules.tier.iter().any(|tier| tier.id == one.id));
        if relative.peers < 2
            || !(0.0..1.0).contains(&relative.tie)
            || relative.reason.is_empty()
            || !rising
            || !known
            || relative.tiers.last().is_none_or(|last| last.top != 1.0)
        {
            problems.push(
                "rating.toml: relative needs 2 peers at least, a tie in [0, 1), a reason, and known tiers whose shares rise to 1"
                    .to_owned(),
            );
        }
        let sound = (1..=100_000).contains(&sensitivity.draws)
            && sensitivity.spread > 0.0
            && sensitivity.spread < 1.0
            && !sensitivity.reason.is_empty();
        if !sound {
            problems.push(
                "rating.toml: sensitivity needs 1 to 100000 draws, a spread between 0 and 1 and a reason"
                    .to_owned(),
            );
        }
        for pair in rules.tier.windows(2) {
            if pair[0].cut <= pair[1].cut {
                problems.push(format!("rating.toml: tier {} does not lie below {}", pair[1].id, pair[0].id));
            }
        }
        for tier in &rules.tier {
            if !(tier.cut > 0.0 && tier.cut <= 1.0) {
                problems.push(format!("rating.toml: tier {}: cut {} is not in (0, 1]", tier.id, tier.cut));
            }
        }
        for cap in &rules.cap {
            let known = rules.tier.iter().any(|tier| tier.id == cap.tier);
            if !known && cap.tier != "unavailable" && cap.tier != "underperforming" {
                problems.push(format!("rating.toml: cap {}: there is no tier {:?}", cap.id, cap.tier));
            }
        }
        for (what, reason) in rules
            .category
            .iter()
            .map(|category| (&category.id, &category.reason))
            .chain(rules.tier.iter().map(|tier| (&tier.id, &tier.reason)))
            .chain(rules.cap.iter().map(|cap| (&cap.id, &cap.reason)))
        {
            if reason.is_empty() {
                problems.push(format!("rating.toml: {what}: reason is empty"));
            }
        }
        for (key, source) in &rules.sources {
            if !is_date(&source.date) {
                problems.push(format!("rating.toml: source {key}: {:?} is not a date", source.date));
            }
        }
        if !is_date(&rules.date) {
            problems.push(format!("rating.toml: {:?} is not a date", rules.date));
        }
    }

    fn check_criteria(&self, problems: &mut Vec<String>) {
        let mut seen = BTreeSet::new();
        for criterion in self.criteria.iter().chain(&self.undecided) {
            let mut bad = |what: String| problems.push(format!("criteria.toml: {}: {what}", criterion.id));
            if !seen.insert(&criterion.id) {
                bad("the id is there twice".to_owned());
            }
            match self.listed.iter().find(|listed| listed.id == criterion.id) {
                None => bad("the id is not in criteria-list.tsv".to_owned()),
                Some(listed) => {
                    if listed.category != criterion.category {
                        bad(format!("category is {}, the list says {}", criterion.category, listed.category));
                    }
                    if listed.class != criterion.class.word() {
                        bad(format!("class is {}, the list says {}", criterion.class.word(), listed.class));
                    }
                }
            }
            if !self.rules.category.iter().any(|category| category.id == criterion.category) {
                bad(format!("there is no category {:?}", criterion.category));
            }
            if !(1..=3).contains(&criterion.weight) {
                bad(format!("weight {} is not 1, 2 or 3", criterion.weight));
            }
            if criterion.text.is_empty() {
                bad("text is empty".to_owned());
            }
            match &criterion.undecided {
                None if criterion.measures.is_empty() => {
                    bad("it has neither measures, evidence nor a reason why it is undecided".to_owned());
                }
                Some(reason) if reason.is_empty() => bad("undecided has no reason".to_owned()),
                Some(_) if !criterion.measures.is_empty() || criterion.evidence.is_some() => {
                    bad("it is undecided and has measures or evidence".to_owned());
                }
                Some(_) if criterion.gate.is_some() => bad("a gate is undecided".to_owned()),
                _ => {}
            }
            if let Some(what) = check_evidence(criterion) {
                bad(what);
            }
            if !is_date(&criterion.date) {
                bad(format!("{:?} is not a date", criterion.date));
            }
            let ours = criterion.source.strip_prefix("ours: ").is_some_and(|reason| !reason.is_empty());
            match self.rules.sources.get(&criterion.source) {
                Some(source) if source.date != criterion.date => {
                    bad(format!("date is {}, the source's is {}", criterion.date, source.date));
                }
                None if !ours => {
                    bad(format!("source {:?} is neither in [sources] nor \"ours: REASON\"", criterion.source))
                }
                _ => {}
            }
            for reason in &criterion.na {
                if !self.rules.not_applicable.contains_key(reason) {
                    bad(format!("{reason:?} is not in the closed list of reasons"));
                }
            }
            for measure in &criterion.measures {
                if let Some(what) = self.check_measure(criterion, measure) {
                    bad(what);
                }
            }
        }
    }

    fn check_list(&self, problems: &mut Vec<String>) {
        for listed in &self.listed {
            if listed.versions.is_empty() {
                problems.push(format!("criteria-list.tsv: {}: versions is empty", listed.id));
            }
            if !self.criteria.iter().chain(&self.undecided).any(|criterion| criterion.id == listed.id) {
                problems.push(format!("criteria-list.tsv: {}: criteria.toml has no row for it", listed.id));
            }
        }
    }

    fn check_measure(&self, criterion: &Criterion, measure: &Measure) -> Option<String> {
        let Some(metric) = self.metrics.get(&measure.metric) else {
            return Some(format!("there is no metric {:?} in metrics.tsv", measure.metric));
        };
        if criterion.class == Class::Evidence && measure.metric != "claim" {
            return Some("a criterion of class evidence is decided by claims only".to_owned());
        }
        if criterion.class == Class::Machine && measure.takes_claim() {
            return Some(
                "a criterion of class machine is never decided by a claim, only class evidence or partly"
                    .to_owned(),
            );
        }
        if let Some(item) = &measure.or_claim
            && item != &criterion.id
        {
            return Some(format!("or_claim {item:?} is not its own id"));
        }
        if measure.each.as_ref().is_some_and(|each| each.values.is_empty()) {
            return Some("each has no values".to_owned());
        }
        match &measure.rule {
            Rule::Flag { pass } if *pass > 1 => Some(format!("flag {pass} is neither 0 nor 1")),
            Rule::Flag { .. } if (metric.min, metric.max) != (0.0, 1.0) => {
                Some(format!("rule flag for {}, which is no flag", metric.name))
            }
            Rule::AtMost { limit } | Rule::AtLeast { limit }
                if !(*limit >= metric.min && *limit <= metric.max) =>
            {
                Some(format!("limit {limit} is outside the range of {}", metric.name))
            }
            Rule::Curve { points } => check_curve(points, Some((metric.min, metric.max))),
            Rule::Spread { points } => check_curve(points, None),
            Rule::AnyText { values, .. } if values.is_empty() => Some("any_text has no values".to_owned()),
            Rule::Reference
                if !self.references.iter().any(|reference| reference.metric == measure.metric) =>
            {
                Some(format!("references.tsv has no row for {}", measure.metric))
            }
            _ => None,
        }
    }

    fn check_ceilings(&self, problems: &mut Vec<String>) {
        for ceiling in &self.ceilings {
            let name = format!("ceilings.tsv: {} {}", ceiling.metric, ceiling.gpus.join("|"));
            match self.metrics.get(&ceiling.metric) {
                None => problems.push(format!("{name}: there is no such metric")),
                Some(metric) if metric.unit != ceiling.unit => {
                    problems
                        .push(format!("{name}: unit is {}, the metric's is {}", ceiling.unit, metric.unit));
                }
                Some(metric) if !(ceiling.ceiling > metric.min && ceiling.ceiling <= metric.max) => {
                    problems.push(format!("{name}: {} is outside the metric's range", ceiling.ceiling));
                }
                Some(_) => {}
            }
            if ceiling.gpus.is_empty() || ceiling.basis.is_empty() || ceiling.source.is_empty() {
                problems.push(format!("{name}: gpu, basis or source is empty"));
            }
            if !is_date(&ceiling.date) {
                problems.push(format!("{name}: {:?} is not a date", ceiling.date));
            }
        }
    }

    fn check_references(&self, problems: &mut Vec<String>) {
        let mut seen = BTreeSet::new();
        for reference in &self.references {
            let mut bad = |what: String| problems.push(format!("references.tsv: {}: {what}", reference.id));
            if !seen.insert(&reference.id) {
                bad("the id is there twice".to_owned());
            }
            match self.metrics.get(&reference.metric) {
                None => bad(format!("there is no metric {:?}", reference.metric)),
                Some(metric) => {
                    if metric.unit != reference.unit {
                        bad(format!("unit is {}, the metric's is {}", reference.unit, metric.unit));
                    }
                    if reference.ceiling > metric.max {
                        bad("ceiling is above the metric's range".to_owned());
                    }
                }
            }
            if let Some(what) = check_curve(&reference.points(), None) {
                bad(what);
            }
            if reference.typical > reference.ceiling {
                bad(format!(
                    "typical {} is above the physical ceiling {}",
                    reference.typical, reference.ceiling
                ));
            }
            if reference.gpus.is_empty() || reference.source.is_empty() || reference.basis.is_empty() {
                bad("gpu, source or ceiling_basis is empty".to_owned());
            }
            if !is_date(&reference.date) {
                bad(format!("{:?} is not a date", reference.date));
            }
        }
    }
}

impl Criterion {
    /// Only a statement can decide it: no measure looks at the cluster.
    pub fn only_stated(&self) -> bool {
        self.measures.iter().all(|measure| measure.metric == "claim")
    }
}

/// A criterion that takes a claim names its kind; what it requires are fields of that kind.
fn check_evidence(criterion: &Criterion) -> Option<String> {
    let takes = criterion.measures.iter().any(Measure::takes_claim);
    let Some(kind) = &criterion.evidence else {
        if criterion.requires.is_some() {
            return Some("requires without evidence".to_owned());
        }
        return takes.then(|| "a claim decides it, so evidence must name its kind".to_owned());
    };
    if !crate::evidence::is_kind(kind) {
        return Some(format!("evidence {kind:?} is none of {}", crate::evidence::kind_names()));
    }
    if !takes {
        return Some("it has evidence, but no measure takes a claim".to_owned());
    }
    let rule = criterion.requires.as_ref()?;
    let mut fields = rule.one_of.keys().chain(rule.least.keys()).chain(rule.most.keys()).chain(&rule.present);
    fields
        .find(|field| !crate::evidence::has_field(kind, field))
        .map(|field| format!("requires {field}, which [[{kind}]] does not have"))
}

/// Points must have rising finite values, scores in [0, 1] that only rise or only fall.
fn check_curve(points: &[[f64; 2]], range: Option<(f64, f64)>) -> Option<String> {
    if points.len() < 2 {
        return Some("a curve needs two points at least".to_owned());
    }
    let finite = points.iter().flatten().all(|number| number.is_finite());
    if !finite || points.iter().any(|point| !(0.0..=1.0).contains(&point[1])) {
        return Some("a curve's values must be finite and its scores in [0, 1]".to_owned());
    }
    if points.windows(2).any(|pair| pair[0][0] >= pair[1][0]) {
        return Some("a curve's values must rise".to_owned());
    }
    let rising = points.windows(2).all(|pair| pair[0][1] <= pair[1][1]);
    let falling = points.windows(2).all(|pair| pair[0][1] >= pair[1][1]);
    if !rising && !falling {
        return Some("a curve's scores must only rise or only fall".to_owned());
    }
    if let Some((min, max)) = range
        && points.iter().any(|point| point[0] < min || point[0] > max)
    {
        return Some("a curve's values must lie in the metric's range".to_owned());
    }
    None
}

fn is_date(text: &str) -> bool {
    text.len() == 10 && text.parse::<jiff::civil::Date>().is_ok()
}

/// Lowercase hex digits.
pub fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// Rows of a tab-separated file after its header, with line numbers; empty lines and `#` lines are skipped.
fn rows<'a>(file: &str, text: &'a str, header: &[&str]) -> Result<Vec<(usize, Vec<&'a str>)>, Error> {
    let bad = |line: usize, what: String| Error::Parse {
        file: file.to_owned(),
        what: format!("line {line}: {what}"),
    };
    let mut lines = text
        .lines()
        .enumerate()
        .map(|(index, line)| (index + 1, line))
        .filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    match lines.next() {
        Some((_, first)) if first.split('\t').eq(header.iter().copied()) => {}
        Some((line, _)) => return Err(bad(line, format!("the header must be {}", header.join(" ")))),
        None => return Err(bad(1, "the file is empty".to_owned())),
    }
    lines
        .map(|(line, row)| {
            let fields: Vec<&str> = row.split('\t').collect();
            if fields.len() == header.len() {
                Ok((line, fields))
            } else {
                Err(bad(line, format!("{} fields instead of {}", fields.len(), header.len())))
            }
        })
        .collect()
}

fn number(file: &str, line: usize, key: &str, text: &str) -> Result<f64, Error> {
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() => Ok(value),
        _ => Err(Error::Parse {
            file: file.to_owned(),
            what: format!("line {line}: {key} {text:?} is not a finite number"),
        }),
    }
}

fn parse_list(text: &str) -> Result<Vec<Listed>, Error> {
    let file = "criteria-list.tsv";
    let rows = rows(file, text, &["id", "category", "class", "gate", "versions"])?;
    Ok(rows
        .into_iter()
        .map(|(_, row)| Listed {
            id: row[0].to_owned(),
            category: row[1].to_owned(),
            class: row[2].to_owned(),
            versions: row[4].to_owned(),
        })
        .collect())
}

fn parse_metrics(text: &str) -> Result<BTreeMap<String, Metric>, Error> {
    let file = "metrics.tsv";
    let header = ["metric", "stage", "unit", "params", "min", "max", "subject", "meaning"];
    let mut metrics = BTreeMap::new();
    for (line, row) in rows(file, text, &header)? {
        let metric = Metric {
            name: row[0].to_owned(),
            stage: row[1].to_owned(),
            unit: row[2].to_owned(),
            params: row[3].to_owned(),
            min: number(file, line, "min", row[4])?,
            max: number(file, line, "max", row[5])?,
            subject: row[6].to_owned(),
            meaning: row[7].to_owned(),
        };
        if let Some(old) = metrics.insert(metric.name.clone(), metric) {
            return Err(Error::Parse {
                file: file.to_owned(),
                what: format!("line {line}: metric {} is there twice", old.name),
            });
        }
    }
    Ok(metrics)
}

/// `key=value;key=value`
fn parse_params(file: &str, line: usize, text: &str) -> Result<BTreeMap<String, Scalar>, Error> {
    let mut params = BTreeMap::new();
    for pair in text.split(';').filter(|pair| !pair.is_empty()) {
        let Some((key, value)) = pair.split_once('=') else {
            return Err(Error::Parse {
                file: file.to_owned(),
                what: format!("line {line}: params {pair:?} is not key=value"),
            });
        };
        let value = value.parse().map_or_else(|_| Scalar::from(value), Scalar::Int);
        params.insert(key.to_owned(), value);
    }
    Ok(params)
}

fn models(text: &str) -> Vec<String> {
    text.split('|').filter(|gpu| !gpu.is_empty()).map(str::to_owned).collect()
}

fn parse_ceilings(text: &str) -> Result<Vec<Ceiling>, Error> {
    let file = "ceilings.tsv";
    let header = ["metric", "gpu", "params", "ceiling", "unit", "basis", "source", "date"];
    let mut ceilings = Vec::new();
    for (line, row) in rows(file, text, &header)? {
        ceilings.push(Ceiling {
            metric: row[0].to_owned(),
            gpus: models(row[1]),
            params: parse_params(file, line, row[2])?,
            ceiling: number(file, line, "ceiling", row[3])?,
            unit: row[4].to_owned(),
            basis: row[5].to_owned(),
            source: row[6].to_owned(),
            date: row[7].to_owned(),
        });
    }
    Ok(ceilings)
}

fn parse_references(text: &str) -> Result<Vec<Reference>, Error> {
    let file = "references.tsv";
    let header = [
        "id",
        "metric",
        "gpu",
        "params",
        "nodes",
        "ranks",
        "size_min",
        "zero",
        "minimum",
        "typical",
        "ceiling",
        "unit",
        "ceiling_basis",
        "source",
        "date",
    ];
    let whole = |line: usize, key: &str, text: &str| -> Result<Option<i64>, Error> {
        if text.is_empty() {
            return Ok(None);
        }
        text.parse().map(Some).map_err(|_| Error::Parse {
            file: file.to_owned(),
            what: format!("line {line}: {key} {text:?} is not a whole number"),
        })
    };
    let mut references = Vec::new();
    for (line, row) in rows(file, text, &header)? {
        let params = parse_params(file, line, row[3])?;
        references.push(Reference {
            id: row[0].to_owned(),
            metric: row[1].to_owned(),
            gpus: models(row[2]),
            params,
            nodes: whole(line, "nodes", row[4])?,
            ranks: whole(line, "ranks", row[5])?,
            size_min: whole(line, "size_min", row[6])?,
            zero: number(file, line, "zero", row[7])?,
            minimum: number(file, line, "minimum", row[8])?,
            typical: number(file, line, "typical", row[9])?,
            ceiling: number(file, line, "ceiling", row[10])?,
            unit: row[11].to_owned(),
            basis: row[12].to_owned(),
            source: row[13].to_owned(),
            date: row[14].to_owned(),
        });
    }
    Ok(references)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn built_in() -> Methodology {
        Methodology::built_in().unwrap()
    }

    /// The built-in files with one text of one file replaced.
    fn with(file: &str, from: &str, to: &str) -> Result<Methodology, Error> {
        let texts = FILES.map(|(name, text)| {
            if name == file {
                assert!(text.contains(from), "{file} lacks {from:?}");
                (name, text.replacen(from, to, 1))
            } else {
                (name, text.to_owned())
            }
        });
        Methodology::parse(&texts)
    }

    #[test]
    fn every_row_of_the_built_in_data_is_valid() {
        assert_eq!(built_in().problems(), Vec::<String>::new());
    }

    #[test]
    fn all_criteria_have_a_row_and_every_category_has_decided_ones() {
        let methodology = built_in();
        let ours = methodology.listed.iter().filter(|listed| listed.versions == "ours").count();
        assert_eq!((methodology.listed.len() - ours, ours), (189, 6));
        assert_eq!(methodology.all().count(), 195);
        assert_eq!(methodology.decided(), (163, 187), "8 of the 195 are about Kubernetes");
        let ids: BTreeSet<&str> = methodology.listed.iter().map(|listed| listed.id.as_str()).collect();
        assert_eq!(ids.len(), 195);
        for category in &methodology.rules.category {
            let count = methodology.criteria.iter().filter(|one| one.category == category.id).count();
            assert!(count >= 2, "{} has {count} criteria", category.id);
        }
    }

    #[test]
    fn the_critical_failures_and_our_two_gates_are_gates() {
        let methodology = built_in();
        let gates: Vec<&str> =
            methodology.criteria.iter().filter(|one| one.gate.is_some()).map(|one| one.id.as_str()).collect();
        assert_eq!(gates, ["sec-01", "lif-07", "lif-09", "lif-10", "orc-23", "rel-25", "ava-03"]);
        let listed: Vec<&str> =
            FILES[1].1.lines().skip(1).filter(|line| line.split('\t').nth(3) == Some("gate")).collect();
        assert_eq!(listed.len(), 5, "the public critical failures are gates in the list too");
    }

    #[test]
    fn weights_and_cuts_are_those_of_the_design() {
        let rules = built_in().rules;
        let weights: Vec<u32> = rules.category.iter().map(|category| category.weight).collect();
        assert_eq!(weights, [12, 6, 15, 12, 15, 20, 12, 3, 2, 3]);
        let cuts: Vec<f64> = rules.tier.iter().map(|tier| tier.cut).collect();
        assert_eq!(cuts, [0.90, 0.80, 0.65, 0.50, 0.35]);
        assert!(rules.notice.contains("estimate"));
    }

    #[test]
    fn the_page_of_metrics_is_a_copy_of_the_table() {
        let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/metrics.md")).unwrap();
        let expected: Vec<String> = FILES[3]
            .1
            .lines()
            .skip(1)
            .map(|line| {
                let row: Vec<&str> = line.split('\t').collect();
                format!(
                    "| `{}` | {} | {} | {} | {} to {} | {} | {} |",
                    row[0], row[1], row[2], row[3], row[4], row[5], row[6], row[7]
                )
            })
            .collect();
        let found: Vec<&str> = page.lines().filter(|line| line.starts_with("| `")).collect();
        assert_eq!(found, expected);
        for reason in built_in().rules.not_applicable.keys() {
            assert!(page.contains(&format!("`{reason}`")), "docs/metrics.md lacks {reason}");
        }
    }

    #[test]
    fn every_kind_of_bad_row_is_named_with_its_file() {
        for (file, from, to, expected) in [
            ("criteria.toml", "id = \"sec-10\"", "id = \"sec-01\"", "the id is there twice"),
            ("criteria.toml", "id = \"sec-10\"", "id = \"sec-99\"", "not in criteria-list.tsv"),
            ("criteria-list.tsv", "sec-11\t", "sec-98\t", "has no row for it"),
            ("criteria.toml", "category = \"security\"", "category = \"storage\"", "the list says security"),
            ("criteria.toml", "class = \"evidence\"", "class = \"machine\"", "the list says evidence"),
            ("criteria.toml", "weight = 3", "weight = 9", "weight 9 is not 1, 2 or 3"),
            ("criteria.toml", "source = \"cmx2\"", "source = \"\"", "neither in [sources]"),
            ("criteria.toml", "date = \"2025-11-06\"", "date = \"2025-11-07\"", "the source's is 2025-11-06"),
            ("criteria.toml", "date = \"2025-11-06\"", "date = \"6 Nov\"", "is not a date"),
            ("criteria.toml", "na = [\"no_infiniband\"]", "na = [\"too_hard\"]", "closed list"),
            ("criteria.toml", "metric = \"bmc_reachable\"", "metric = \"bmc\"", "no metric \"bmc\""),
            ("criteria.toml", "metric = \"bmc_reachable\"", "metric = \"claim\"", "class machine"),
            ("criteria.toml", "pass = 0", "pass = 2", "neither 0 nor 1"),
            ("criteria.toml", "[10, 1.0], [30, 0.5]", "[30, 1.0], [10, 0.5]", "values must rise"),
            ("criteria.toml", "[10, 1.0], [30, 0.5]", "[10, 0.2], [30, 0.5]", "only rise or only fall"),
            ("criteria.toml", "[10, 1.0], [30, 0.5]", "[10, 1.5], [30, 0.5]", "scores in [0, 1]"),
            ("criteria.toml", "text = \"An", "colour = 1\ntext = \"An", "unknown field `colour`"),
            ("rating.toml", "weight = 12", "weight = 13", "add up to 101"),
            ("rating.toml", "cut = 0.80", "cut = 0.95", "does not lie below"),
            ("rating.toml", "peers = 5", "peers = 1", "relative needs 2 peers"),
            ("rating.toml", "top = 0.12", "top = 0.02", "shares rise to 1"),
            ("rating.toml", "draws = 1000", "draws = 0", "1 to 100000 draws"),
            ("rating.toml", "spread = 0.25", "spread = 1.5", "a spread between 0 and 1"),
            ("rating.toml", "floor = 0.05", "floor = 0.0", "floor 0"),
            ("rating.toml", "tier = \"silver\"", "tier = \"tin\"", "no tier \"tin\""),
            ("rating.toml", "reason = \"ours\"", "reason = \"\"", "reason is empty"),
            ("references.tsv", "\t228\t235\t330", "\t228\t235\t200", "above the physical ceiling"),
            ("references.tsv", "\t228\t235\t330", "\t240\t235\t330", "values must rise"),
            ("references.tsv", "\t228\t235\t330", "\t228\tfast\t330", "line 2: typical \"fast\""),
            ("references.tsv", "\tGB/s\tNVLink3", "\tGb/s\tNVLink3", "the metric's is GB/s"),
            ("references.tsv", "ar1-h100", "ar1-a100", "the id is there twice"),
            ("references.tsv", "2026-11-30", "yesterday", "is not a date"),
            ("ceilings.tsv", "\t495\t", "\t99999\t", "outside the metric's range"),
            ("ceilings.tsv", "metric\tgpu", "metric\tcard", "the header must be"),
            ("metrics.tsv", "cpu_count\t", "node_info\t", "is there twice"),
            ("metrics.tsv", "cpu_count\tinventory\t", "cpu_count\t", "fields instead of 8"),
            ("criteria-list.tsv", "sec-02\tsecurity\tevidence\t", "sec-02\tsecurity", "fields instead of 5"),
            ("criteria-list.tsv", "\t2.0, pages, third party\n", "\t\n", "versions is empty"),
            ("criteria.toml", "undecided = \"", "undecided = \"\" #", "undecided has no reason"),
            ("criteria.toml", "evidence = \"attestation\"", "evidence = \"hearsay\"", "none of attestation"),
            ("criteria.toml", "evidence = \"process\"", "", "has neither measures"),
            ("criteria.toml", "least = { node_percent", "least = { percent", "requires percent, which"),
        ] {
            let Err(error) = with(file, from, to) else { panic!("accepted: {file}: {from} -> {to}") };
            let error = error.to_string();
            assert!(error.contains(expected), "{file}: {from} -> {to}: {error}");
            assert!(error.contains(file), "{error}");
        }
    }

    #[test]
    fn a_missing_file_of_a_folder_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let error = Methodology::open(folder.path()).unwrap_err().to_string();
        assert!(error.contains("ceilings.tsv") && error.contains("rating.toml"), "{error}");
        for (name, text) in FILES {
            fs::write(folder.path().join(name), text).unwrap();
        }
        assert_eq!(Methodology::open(folder.path()).unwrap().digests, built_in().digests);
    }

    proptest! {
        #[test]
        fn a_damaged_file_never_panics(file in 0_usize..FILES.len(), at: prop::sample::Index, byte in 32_u8..127) {
            let texts = FILES.map(|(name, text)| {
                if name == FILES[file].0 {
                    let mut bytes = text.as_bytes().to_vec();
                    let at = at.index(bytes.len());
                    bytes[at] = byte;
                    (name, String::from_utf8_lossy(&bytes).into_owned())
                } else {
                    (name, text.to_owned())
                }
            });
            let _ = Methodology::parse(&texts);
        }
    }
}
