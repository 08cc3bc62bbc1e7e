//! What to fix first: gates, then what lifts the lower bound most, each with how to mend it.

use std::collections::BTreeMap;
use std::fs;

use serde_json::Value;

use crate::explain::measure_text;
use crate::judge::{Micro, ONE, Outcome, Verdict};
use crate::methodology::Criterion;
use crate::score::Evaluation;

/// Steps that are named.
const STEPS: usize = 6;
/// A raw file beyond this is not read for its mends.
const LIMIT: u64 = 16 << 20;

/// One thing to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// Criterion id.
    pub criterion: String,
    /// What it asks.
    pub text: String,
    /// What was seen, or why nothing was.
    pub why: String,
    /// How to mend it.
    pub mend: Option<String>,
    /// `gate failed`, `gate not assessed`, or what the lower bound would be.
    pub effect: Effect,
}

/// What a step is worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// The gate holds the tier at Underperforming.
    GateFailed,
    /// The gate holds the tier at Bronze.
    GateUnknown,
    /// The lower bound when this criterion is passed in full.
    Lower(Micro),
}

/// The steps, gates first.
pub fn steps(evaluation: &Evaluation) -> Vec<Step> {
    let mut cache = BTreeMap::new();
    let mut wanted: Vec<(&str, Effect)> = Vec::new();
    for (outcomes, effect) in [
        (&[Outcome::Fail][..], Effect::GateFailed),
        (&[Outcome::Unknown, Outcome::Unavailable], Effect::GateUnknown),
    ] {
        let gates = evaluation.rating.gates.iter().filter(|gate| outcomes.contains(&gate.outcome));
        wanted.extend(gates.map(|gate| (gate.id.as_str(), effect)));
    }
    for lift in &evaluation.sensitivity.lifts {
        if !wanted.iter().any(|(id, _)| *id == lift.criterion) {
            wanted.push((&lift.criterion, Effect::Lower(lift.lower)));
        }
    }
    // Every gate is named; of the rest the best.
    let gates = wanted.iter().filter(|(_, effect)| !matches!(effect, Effect::Lower(_))).count();
    wanted.truncate(gates.max(STEPS));
    wanted
        .into_iter()
        .filter_map(|(id, effect)| {
            let (criterion, verdict) = evaluation.judged().find(|(criterion, _)| criterion.id == id)?;
            Some(Step {
                criterion: id.to_owned(),
                text: criterion.text.clone(),
                why: verdict.reason.clone(),
                mend: mend(evaluation, id, &mut cache),
                effect,
            })
        })
        .collect()
}

/// How to mend what fell short of a criterion: as the audit said beside its value in the raw document, else what the criterion
/// itself asks for. Nothing for one that passed in full or is out of the question.
pub fn mend(evaluation: &Evaluation, id: &str, cache: &mut BTreeMap<usize, Option<Value>>) -> Option<String> {
    let (criterion, verdict) = evaluation.judged().find(|(criterion, _)| criterion.id == id)?;
    if verdict.value == Some(ONE) || verdict.outcome == Outcome::NotApplicable {
        return None;
    }
    said(evaluation, verdict, cache).or_else(|| asked(evaluation, criterion, verdict))
}

/// What follows from the criterion alone.
fn asked(evaluation: &Evaluation, criterion: &Criterion, verdict: &Verdict) -> Option<String> {
    if let Some(lowest) = verdict.observed.iter().find(|one| one.score < ONE) {
        if lowest.metric == "claim" {
            return Some(
                "what was stated says that it is not met; change that, then evidence.toml".to_owned(),
            );
        }
        let measure = criterion.measures.iter().find(|measure| measure.metric == lowest.metric)?;
        let whole = lowest.subject.is_empty();
        let place =
            if whole { String::new() } else { format!("look at {} first, the lowest; ", lowest.subject) };
        return Some(format!("{place}{}", measure_text(measure)));
    }
    if verdict.reason.starts_with("there is no reference value") {
        return Some(
            "nothing on the cluster: no value is published that it could be held against".to_owned(),
        );
    }
    let stages: std::collections::BTreeSet<&str> = criterion
        .measures
        .iter()
        .filter_map(|measure| Some(evaluation.methodology.metrics.get(&measure.metric)?.stage.as_str()))
        .filter(|stage| *stage != "*")
        .collect();
    let stages: Vec<&str> = stages.into_iter().collect();
    let which = stages.join(" or ");
    let stated = criterion.evidence.as_ref().map(|kind| {
        format!(
            "state it in evidence.toml: [[{kind}]] with item = \"{}\"; `clustermax evidence new` writes a template",
            criterion.id
        )
    });
    let absent = verdict.reason.starts_with("no record of");
    let measured = (!which.is_empty()).then(|| match verdict.outcome {
        Outcome::Unavailable => format!("let the test reach what it could not, then run stage {which} again"),
        _ if absent => format!("run stage {which}, which measures it"),
        _ => format!("mend what the reason names, then run stage {which} again"),
    });
    match (measured, stated) {
        // A record that is absent comes first; what a record leaves open, a statement can decide.
        (Some(measured), Some(_)) if absent && !criterion.only_stated() => Some(measured),
        (measured, stated) => stated.or(measured),
    }
}

/// The `mend` beside a value in the raw document.
fn said(
    evaluation: &Evaluation,
    verdict: &Verdict,
    cache: &mut BTreeMap<usize, Option<Value>>,
) -> Option<String> {
    verdict.observed.iter().filter(|one| one.score < ONE).find_map(|one| {
        let (file, pointer) = one.evidence.as_ref()?;
        let document = cache.entry(*file).or_insert_with(|| read(evaluation, *file)).as_ref()?;
        let text = document.pointer(pointer.as_deref()?)?.get("mend")?.as_str()?;
        (!text.is_empty()).then(|| text.to_owned())
    })
}

/// A raw file that was verified, when it is JSON.
fn read(evaluation: &Evaluation, file: usize) -> Option<Value> {
    let raw = evaluation.loaded.files.get(file)?;
    let path = evaluation.loaded.dir.join(&raw.file);
    if raw.problem.is_some()
        || raw.outside
        || !raw.file.ends_with(".json")
        || fs::metadata(&path).ok()?.len() > LIMIT
    {
        return None;
    }
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}
