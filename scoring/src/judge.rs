//! Records to criterion states.
//!
//! Every measure of a criterion asks for instances (the cluster, each node, each GPU, each listed value). An instance
//! without a believed value is never a pass and never a zero: the criterion is then unknown or unavailable, unless
//! another instance proves the failure.
//!
//! Losing a record never helps. Where the worst of several records counts, they count only when all of them are there,
//! which each of them says ([`crate::record::Record::of`]); a statement stands in only where a record leaves the question
//! open. Both hold without the stages' manifests.

use std::collections::{BTreeMap, BTreeSet};

use crate::load::{Entry, Key, Loaded, Name, number, params_text};
use crate::methodology::{Criterion, Measure, Methodology, Per, Pick, Rule, Shows, Span};
use crate::record::{State, Subject};
use crate::run::Hardware;

mod combine;
#[cfg(test)]
mod tests;
mod values;

pub use values::curve;

/// A share in millionths: all results are fixed point, so they print the same everywhere.
pub type Micro = u32;

/// 1.0
pub const ONE: Micro = 1_000_000;

/// A finite number in [0, 1] as fixed point, rounded to the nearest.
pub fn micro(value: f64) -> Micro {
    // In range by the clamp.
    (value.clamp(0.0, 1.0) * f64::from(ONE)).round() as Micro
}

/// What became of a criterion.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// Seen to hold, wholly or in part.
    Pass,
    /// Seen not to hold.
    Fail,
    /// Somebody looked, or there is no record: no valid value.
    Unknown,
    /// Nobody could look.
    Unavailable,
    /// Out of the question, for a reason of the closed list.
    NotApplicable,
}

impl Outcome {
    /// The word of score.json.
    pub fn word(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Fail => "fail",
            Self::Unknown => "unknown",
            Self::Unavailable => "unavailable",
            Self::NotApplicable => "not_applicable",
        }
    }
}

/// One value that counted for a criterion.
#[derive(Debug, Clone, PartialEq)]
pub struct Observed {
    /// Metric.
    pub metric: String,
    /// Subject.
    pub subject: Subject,
    /// `, key=value` ...
    pub params: String,
    /// The value.
    pub value: f64,
    /// Its unit.
    pub unit: String,
    /// Its score.
    pub score: Micro,
    /// Index into [`Loaded::files`] and pointer.
    pub evidence: Option<(usize, Option<Name>)>,
}

/// A criterion's state with its grounds.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdict {
    /// Criterion id.
    pub id: String,
    /// The state.
    pub outcome: Outcome,
    /// Present for pass (above 0) and fail (0).
    pub value: Option<Micro>,
    /// Why; empty for a plain pass.
    pub reason: String,
    /// Values that counted, lowest score first.
    pub observed: Vec<Observed>,
    /// Instances asked for, and those with a value.
    pub instances: (usize, usize),
    /// A claim counted.
    pub declared: bool,
    /// Every instance was seen: a failure that one node proves says nothing about the others.
    pub whole: bool,
}

/// What became of one instance.
#[derive(Debug)]
enum Instance {
    Known {
        score: Micro,
        observed: Box<Observed>,
        /// Of all its records.
        whole: bool,
    },
    Unknown(String),
    Unavailable(String),
    NotApplicable(String),
}

impl Instance {
    fn seen(score: Micro, observed: Observed) -> Self {
        Self::Known { score, observed: Box::new(observed), whole: true }
    }
}

/// An instance's records without the statement that may stand in for them.
struct Decided {
    instance: Instance,
    /// A record leaves the question to a statement.
    left_open: bool,
}

impl From<Instance> for Decided {
    fn from(instance: Instance) -> Self {
        Self { instance, left_open: false }
    }
}

/// The metric of a statement.
const CLAIM: &str = "claim";

type ByName<'a> = BTreeMap<&'a str, Vec<(&'a Key, &'a Entry)>>;

/// Records by metric, and what the GPUs are.
pub struct Evidence<'a> {
    loaded: &'a Loaded,
    methodology: &'a Methodology,
    by_metric: ByName<'a>,
    by_node: BTreeMap<&'a str, ByName<'a>>,
    /// [`Loaded::nodes`]
    nodes: Vec<&'a str>,
    /// Nodes of other records: imported ones, faults.
    others: Vec<&'a str>,
    model: Result<String, String>,
}

impl<'a> Evidence<'a> {
    /// Indexes the records by metric.
    pub fn new(loaded: &'a Loaded, methodology: &'a Methodology) -> Self {
        let mut by_metric: BTreeMap<&str, Vec<_>> = BTreeMap::new();
        let mut by_node: BTreeMap<&str, BTreeMap<&str, Vec<_>>> = BTreeMap::new();
        for (key, entry) in &loaded.entries {
            // A statement counts from evidence.toml only: a record of one could be removed without a trace.
            if entry.line > 0 && key.metric == *CLAIM {
                continue;
            }
            by_metric.entry(&key.metric).or_default().push((key, entry));
            if let Some(node) = &key.subject.node {
                by_node.entry(node).or_default().entry(&key.metric).or_default().push((key, entry));
            }
        }
        let nodes = loaded.nodes();
        let others = by_node.keys().copied().filter(|node| !nodes.contains(node)).collect();
        let mut evidence =
            Self { loaded, methodology, by_metric, by_node, nodes, others, model: Err(String::new()) };
        evidence.model = evidence.find_model();
        evidence
    }

    /// The one GPU model of all nodes.
    ///
    /// # Errors
    /// Why there is none.
    pub fn model(&self) -> Result<&str, &str> {
        self.model.as_deref().map_err(String::as_str)
    }

    fn of(&self, metric: &str) -> &[(&'a Key, &'a Entry)] {
        self.by_metric.get(metric).map_or(&[], Vec::as_slice)
    }

    fn on(&self, metric: &str, node: &str) -> &[(&'a Key, &'a Entry)] {
        self.by_node.get(node).and_then(|metrics| metrics.get(metric)).map_or(&[], Vec::as_slice)
    }

    /// Every GPU of every node must say its model, else a reference would be a guess.
    fn find_model(&self) -> Result<String, String> {
        if self.loaded.run.hardware == Hardware::Cpu {
            return Err("the run was CPU-only, there is no reference value for it".to_owned());
        }
        if let Some(reason) = self.loaded.lost.get("gpu_info") {
            return Err(reason.clone());
        }
        let mut models = BTreeSet::new();
        let mut seen: BTreeMap<&str, BTreeSet<u32>> = BTreeMap::new();
        for (key, entry) in self.of("gpu_info") {
            if entry.believed().is_none() {
                continue;
            }
            if let (Some(node), Some(gpu)) = (&key.subject.node, key.subject.gpu) {
                seen.entry(node).or_default().insert(gpu);
            }
            if let Some(model) = key.params.get("model") {
                models.insert(model.to_string());
            }
        }
        if models.len() > 1 {
            let models: Vec<String> = models.into_iter().collect();
            return Err(format!(
                "the nodes have different GPU models ({}), so no reference fits",
                models.join(", ")
            ));
        }
        let Some(model) = models.pop_first() else {
            return Err("no GPU model is recorded, so there is no reference value".to_owned());
        };
        for node in &self.nodes {
            let gpus = self.gpus(node).map_err(|(_, reason)| format!("{reason} (node {node})"))?;
            let known = seen.get(node).map_or(0, BTreeSet::len);
            if known < gpus as usize {
                return Err(format!("node {node} names the model of {known} of its {gpus} GPUs"));
            }
        }
        Ok(model)
    }

    /// How many GPUs a node has.
    fn gpus(&self, node: &str) -> Result<u32, (bool, String)> {
        if let Some(reason) = self.loaded.lost.get("gpu_count") {
            return Err((false, reason.clone()));
        }
        if let Some((key, entry)) = self.on("gpu_count", node).first() {
            return match entry.believed() {
                Some(value) if value < 1.0 => Err((true, "no GPU".to_owned())),
                // Range-checked by metrics.tsv.
                Some(value) => Ok(value as u32),
                None if entry.state == State::Unavailable => Err((true, why(key, entry))),
                None => Err((false, why(key, entry))),
            };
        }
        Err((false, "no record of gpu_count".to_owned()))
    }

    /// Decides one criterion.
    pub fn judge(&self, criterion: &Criterion) -> Verdict {
        let mut instances = Vec::new();
        for measure in &criterion.measures {
            self.measure(criterion, measure, &mut instances);
        }
        combine::combine(criterion, instances)
    }

    fn measure(&self, criterion: &Criterion, measure: &Measure, instances: &mut Vec<(Subject, Instance)>) {
        let values: Vec<Option<&str>> = match &measure.each {
            Some(each) => each.values.iter().map(|value| Some(value.as_str())).collect(),
            None => vec![None],
        };
        let mut subjects = Vec::new();
        match measure.per {
            Per::Cluster => subjects.push(Subject::default()),
            Per::Node => {
                subjects.extend(self.nodes.iter().map(|node| Subject::node(*node)));
                let others = self.others.iter().filter(|node| !self.on(&measure.metric, node).is_empty());
                subjects.extend(others.map(|node| Subject::node(*node)));
            }
            Per::Gpu => {
                for node in &self.nodes {
                    match self.gpus(node) {
                        Ok(gpus) => {
                            // A GPU that has a record counts, however few the node is said to have.
                            let of = self.on(&measure.metric, node);
                            let all: BTreeSet<u32> =
                                (0..gpus).chain(of.iter().filter_map(|(key, _)| key.subject.gpu)).collect();
                            subjects.extend(
                                all.into_iter().map(|gpu| Subject { gpu: Some(gpu), ..Subject::node(*node) }),
                            );
                        }
                        Err((true, reason)) => {
                            instances.push((Subject::node(*node), Instance::Unavailable(reason)));
                        }
                        Err((false, reason)) => {
                            instances.push((Subject::node(*node), Instance::Unknown(reason)));
                        }
                    }
                }
                for node in &self.others {
                    let of = self.on(&measure.metric, node);
                    let gpus: BTreeSet<u32> = of.iter().filter_map(|(key, _)| key.subject.gpu).collect();
                    subjects.extend(
                        gpus.into_iter().map(|gpu| Subject { gpu: Some(gpu), ..Subject::node(*node) }),
                    );
                }
            }
        }
        if measure.per != Per::Cluster && self.nodes.is_empty() {
            instances.push((Subject::default(), Instance::Unknown("run.json names no node".to_owned())));
        }
        for subject in subjects {
            for value in &values {
                let instance = self.instance(criterion, measure, &subject, *value);
                instances.push((subject.clone(), instance));
            }
        }
    }

    fn matching(
        &self,
        measure: &Measure,
        subject: &Subject,
        value: Option<&str>,
    ) -> Vec<(&'a Key, &'a Entry)> {
        let each = measure.each.as_ref().map(|each| each.param.as_str()).zip(value);
        let candidates = match &subject.node {
            Some(node) => self.on(&measure.metric, node),
            None => self.of(&measure.metric),
        };
        candidates
            .iter()
            .filter(|(key, _)| {
                let here = measure.per != Per::Gpu || key.subject.gpu == subject.gpu;
                let listed = each.is_none_or(|(param, value)| {
                    key.params.get(param).is_some_and(|found| found.to_string() == value)
                });
                let filtered =
                    measure.filter.iter().all(|(param, value)| key.params.get(param) == Some(value));
                let nodes = key.params.get("nodes").and_then(crate::record::Scalar::as_f64);
                let spans = match measure.span {
                    None => true,
                    Some(Span::Inside) => nodes == Some(1.0),
                    Some(Span::Between) => nodes.is_some_and(|nodes| nodes >= 2.0),
                };
                here && listed && filtered && spans
            })
            .copied()
            .collect()
    }

    fn instance(
        &self,
        criterion: &Criterion,
        measure: &Measure,
        subject: &Subject,
        value: Option<&str>,
    ) -> Instance {
        let found = self.matching(measure, subject, value);
        let Decided { instance, left_open } = self.decide(criterion, measure, value, &found);
        let instance = match (instance, self.loaded.lost.get(&measure.metric)) {
            (instance, None) => instance,
            (Instance::Known { score: 0, observed, .. }, Some(_)) => {
                Instance::Known { score: 0, observed, whole: false }
            }
            // Of the best, those that are left only fall short of it.
            (instance @ Instance::Known { .. }, Some(_)) if measure.pick == Pick::Best => instance,
            (Instance::Known { .. } | Instance::NotApplicable(_), Some(reason)) => {
                Instance::Unknown(reason.clone())
            }
            (instance, Some(_)) => instance,
        };
        let stands = left_open
            && (measure.shows == Some(Shows::Pass) || !self.loaded.lost.contains_key(&measure.metric));
        match (instance, measure.or_claim.as_ref().filter(|_| stands).and_then(|item| self.claim(item))) {
            (Instance::Unknown(_) | Instance::Unavailable(_), Some((key, entry))) => {
                let score = if entry.value == Some(1.0) { ONE } else { 0 };
                Instance::seen(score, observed(key, entry, entry.value.unwrap_or_default(), score))
            }
            (Instance::Unknown(reason), None) if !stands => {
                let stated = measure.or_claim.as_ref().and_then(|item| self.claim(item));
                Instance::Unknown(match stated {
                    Some(_) => {
                        format!("{reason}; a statement counts only where a record leaves the question to it")
                    }
                    None => reason,
                })
            }
            (instance, _) => instance,
        }
    }

    /// The statement about an item; one that it is not met before one that it is.
    fn claim(&self, item: &str) -> Option<(&'a Key, &'a Entry)> {
        self.of(CLAIM)
            .iter()
            .copied()
            .filter(|(key, entry)| {
                entry.believed().is_some()
                    && key.params.get("item").is_some_and(|found| found.to_string() == *item)
            })
            .min_by(|a, b| a.1.value.unwrap_or_default().total_cmp(&b.1.value.unwrap_or_default()))
    }

    fn decide(
        &self,
        criterion: &Criterion,
        measure: &Measure,
        value: Option<&str>,
        found: &[(&'a Key, &'a Entry)],
    ) -> Decided {
        // What can only be proven is left open by everything else, also by no record.
        let open = measure.shows == Some(Shows::Pass);
        let left = |instance: Instance, left_open: bool| Decided { instance, left_open };
        if found.is_empty() {
            let what = value.map(|value| format!(" {value}")).unwrap_or_default();
            let reason = if measure.metric == CLAIM {
                "the provider stated nothing about it".to_owned()
            } else {
                format!("no record of {}{what}", measure.metric)
            };
            return left(Instance::Unknown(reason), open);
        }
        if let Rule::Spread { points } = &measure.rule {
            return self.spread(measure, points, found).into();
        }
        let mut known: Option<(Micro, Observed)> = None;
        let (mut unknown, mut unavailable, mut nothing_there, mut not_applicable) = (None, None, None, None);
        for (key, entry) in found {
            match self.score(measure, key, entry) {
                Ok(score) => {
                    let better = known.as_ref().is_none_or(|(old, _)| match measure.pick {
                        Pick::Worst => score < *old,
                        Pick::Best => score > *old,
                    });
                    if better {
                        let seen = observed(key, entry, entry.value.unwrap_or_default(), score);
                        known = Some((score, seen));
                    }
                }
                Err(reason) => match entry.state {
                    State::NotApplicable => match allowed(criterion, entry) {
                        Some(reason) => not_applicable = Some(reason),
                        None => {
                            unknown = Some(format!("{reason}, which is not a reason this criterion accepts"));
                        }
                    },
                    State::Unavailable if self.is_nothing_there(entry) => nothing_there = Some(reason),
                    State::Unavailable => unavailable = Some(reason),
                    State::Unknown | State::Measured => unknown = Some(reason),
                },
            }
        }
        // One record that could not be judged leaves the instance open unless another proves a failure.
        let undecided = measure.pick == Pick::Worst && (unknown.is_some() || unavailable.is_some());
        match (known, unknown, unavailable, nothing_there, not_applicable) {
            (Some((score, seen)), ..) if score == 0 || !undecided => match measure.shows {
                Some(Shows::Pass) if score < ONE => left(shows_nothing(&seen, "that it holds"), true),
                Some(Shows::Fail) if score > 0 => left(shows_nothing(&seen, "that it fails"), true),
                // What can only be disproven is never seen as a whole by its records alone.
                shows => {
                    let whole = !undecided && shows != Some(Shows::Fail);
                    Instance::Known { score, observed: Box::new(seen), whole }.into()
                }
            },
            (_, Some(reason), ..) => left(Instance::Unknown(reason), open),
            (_, None, Some(reason), ..) => left(Instance::Unavailable(reason), open),
            (_, None, None, Some(reason), _) => {
                left(Instance::Unavailable(reason), measure.shows != Some(Shows::Fail))
            }
            (_, None, None, None, Some(reason)) => Instance::NotApplicable(reason).into(),
            (..) => left(Instance::Unknown(format!("no valid value of {}", measure.metric)), open),
        }
    }

    /// The record says that there was nothing to look at, for a reason of the closed list.
    fn is_nothing_there(&self, entry: &Entry) -> bool {
        entry.flaw.is_none()
            && entry
                .detail
                .as_deref()
                .is_some_and(|detail| self.methodology.rules.nothing_there.contains_key(first_word(detail)))
    }
}

/// Why an entry has no believed value.
fn why(key: &Key, entry: &Entry) -> String {
    let reason = match (&entry.flaw, &entry.detail) {
        (Some(flaw), _) => &**flaw,
        (None, Some(detail)) => &**detail,
        (None, None) => "no reason given",
    };
    format!("{}: {reason}", key.metric)
}

/// A value whose opposite alone would show something.
fn shows_nothing(seen: &Observed, what: &str) -> Instance {
    Instance::Unknown(format!(
        "{}{} {} does not show {what}: a statement decides",
        seen.metric,
        seen.params,
        number(seen.value)
    ))
}

/// What stands before the colon.
fn first_word(detail: &str) -> &str {
    detail.split(':').next().unwrap_or(detail).trim()
}

/// The reason of the closed list that `detail` starts with, when the criterion accepts it.
fn allowed(criterion: &Criterion, entry: &Entry) -> Option<String> {
    let reason = first_word(entry.detail.as_deref()?);
    criterion.na.iter().any(|accepted| accepted == reason).then(|| reason.to_owned())
}

fn observed(key: &Key, entry: &Entry, value: f64, score: Micro) -> Observed {
    Observed {
        metric: key.metric.to_string(),
        subject: (*key.subject).clone(),
        params: params_text(&key.params),
        value,
        unit: entry.unit.to_string(),
        score,
        evidence: entry.evidence.clone(),
    }
}
