//! Instances of a criterion to its verdict, and the reasons in words.

use super::{Instance, Micro, ONE, Observed, Outcome, Verdict};
use crate::load::number;
use crate::methodology::{Combine, Criterion};
use crate::record::Subject;

/// Reasons, and subjects of each, that are named before "and N more".
const NAMED: usize = 4;
/// Observed values kept in a verdict.
const OBSERVED: usize = 5;

pub(super) fn combine(criterion: &Criterion, instances: Vec<(Subject, Instance)>) -> Verdict {
    let asked = instances.len();
    let mut whole = true;
    let (mut scores, mut seen) = (Vec::new(), Vec::new());
    let (mut unknown, mut unavailable, mut not_applicable) = (Vec::new(), Vec::new(), Vec::new());
    for (subject, instance) in instances {
        match instance {
            Instance::Known { score, observed, whole: all } => {
                scores.push(score);
                seen.push(*observed);
                whole &= all;
            }
            Instance::Unknown(reason) => unknown.push((reason, subject)),
            Instance::Unavailable(reason) => unavailable.push((reason, subject)),
            Instance::NotApplicable(reason) => not_applicable.push((reason, subject)),
        }
    }
    whole &= unknown.is_empty() && unavailable.is_empty();
    // Lowest score first; ties in the order of subject and params, so that the list is always the same.
    seen.sort_by(|a, b| {
        a.score
            .cmp(&b.score)
            .then_with(|| a.metric.cmp(&b.metric))
            .then_with(|| a.subject.cmp(&b.subject))
            .then_with(|| a.params.cmp(&b.params))
    });
    let short = &seen[..seen.iter().take_while(|one| one.score < ONE).count()];
    let lowest = scores.iter().min().copied();
    let (outcome, value, reason) = match (criterion.combine, lowest) {
        (Combine::All, Some(0)) => {
            let zero = short.iter().take_while(|one| one.score == 0).count();
            (Outcome::Fail, Some(0), of_asked(asked, &short[..zero]))
        }
        _ if !unknown.is_empty() => {
            unknown.extend(unavailable);
            (Outcome::Unknown, None, grouped(unknown))
        }
        _ if !unavailable.is_empty() => (Outcome::Unavailable, None, grouped(unavailable)),
        (_, None) => (Outcome::NotApplicable, None, grouped(not_applicable)),
        (Combine::All, Some(lowest)) => (Outcome::Pass, Some(lowest), of_asked(asked, short)),
        (Combine::Share, Some(_)) => {
            let sum: u64 = scores.iter().map(|score| u64::from(*score)).sum();
            let mean = (sum / scores.len() as u64) as Micro;
            let outcome = if mean == 0 { Outcome::Fail } else { Outcome::Pass };
            (outcome, Some(mean), of_asked(asked, short))
        }
    };
    // A failure that a record proves is seen, whatever is stated of other instances.
    let claim = |observed: &&Observed| observed.metric == super::CLAIM;
    let declared = match outcome {
        Outcome::Fail => seen.iter().filter(|observed| observed.score == 0).all(|observed| claim(&observed)),
        _ => seen.iter().any(|observed| claim(&observed)),
    };
    seen.truncate(OBSERVED);
    Verdict {
        id: criterion.id.clone(),
        outcome,
        value,
        reason,
        observed: seen,
        instances: (asked, scores.len()),
        declared,
        whole,
    }
}

/// `2 of 4 fall short: perf_event_paranoid 3: n1, n2`; empty when none does.
fn of_asked(asked: usize, short: &[Observed]) -> String {
    if short.is_empty() {
        return String::new();
    }
    let reasons = short
        .iter()
        .map(|one| {
            let unit = if one.unit.is_empty() { String::new() } else { format!(" {}", one.unit) };
            (format!("{}{} {}{unit}", one.metric, one.params, number(one.value)), one.subject.clone())
        })
        .collect();
    let text = grouped(reasons);
    if asked > 1 { format!("{} of {asked} fall short: {text}", short.len()) } else { text }
}

/// `REASON: SUBJECT, SUBJECT; REASON`: each reason once, in the order of first appearance.
fn grouped(reasons: Vec<(String, Subject)>) -> String {
    let mut groups: Vec<(String, Vec<String>)> = Vec::new();
    for (reason, subject) in reasons {
        let name = if subject.is_empty() { None } else { Some(subject.to_string()) };
        match groups.iter_mut().find(|(known, _)| *known == reason) {
            Some((_, subjects)) => {
                subjects.extend(name.filter(|name| !subjects.contains(name)));
            }
            None => groups.push((reason, name.into_iter().collect())),
        }
    }
    let texts: Vec<String> = groups
        .into_iter()
        .map(
            |(reason, subjects)| {
                if subjects.is_empty() { reason } else { format!("{reason}: {}", named(&subjects, ", ")) }
            },
        )
        .collect();
    named(&texts, "; ")
}

fn named(texts: &[String], between: &str) -> String {
    let more = texts.len().saturating_sub(NAMED);
    let mut text = texts[..texts.len() - more].join(between);
    if more > 0 {
        text.push_str(&format!("{between}and {more} more"));
    }
    text
}
