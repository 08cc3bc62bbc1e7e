//! The text report, for a terminal of 100 columns.

use std::fmt::Write as _;

use crate::judge::Outcome;
use crate::load::number;
use crate::rating::{percent, place, tier_name};
use crate::report::{Group, bytes, groups, plain};
use crate::score::{Evaluation, with_outcome};

const WIDTH: usize = 100;

/// The text report.
pub fn render(evaluation: &Evaluation) -> String {
    let mut out = String::new();
    head(evaluation, &mut out);
    guards(evaluation, &mut out);
    categories(evaluation, &mut out);
    gates(evaluation, &mut out);
    sensitivity(evaluation, &mut out);
    measured(evaluation, &mut out);
    criteria(evaluation, &mut out);
    doubts(evaluation, &mut out);
    out
}

/// Only the figures, with what may mislead about them.
pub fn figures(evaluation: &Evaluation) -> String {
    let mut out = String::new();
    guards(evaluation, &mut out);
    measured(evaluation, &mut out);
    line(&mut out, "");
    out
}

// Writing to a String cannot fail, so the results of write! are dropped.
fn line(out: &mut String, text: &str) {
    let _ = writeln!(out, "{}", text.trim_end());
}

fn title(out: &mut String, text: &str) {
    line(out, "");
    line(out, text);
    line(out, &"-".repeat(text.chars().count()));
}

/// Breaks at spaces; continuation lines are indented.
fn wrapped(out: &mut String, first: &str, indent: &str, text: &str) {
    let mut current = first.to_owned();
    let mut empty = true;
    for word in text.split_whitespace() {
        let length = current.chars().count() + 1 + word.chars().count();
        if !empty && length > WIDTH {
            line(out, &current);
            indent.clone_into(&mut current);
            empty = true;
        }
        if !empty {
            current.push(' ');
        }
        current.push_str(word);
        empty = false;
    }
    line(out, &current);
}

fn head(evaluation: &Evaluation, out: &mut String) {
    let run = &evaluation.loaded.run;
    let rules = &evaluation.methodology.rules;
    let rating = &evaluation.rating;
    line(out, &format!("ClusterMAX for Slurm: {}", evaluation.headline().to_uppercase()));
    line(out, &"=".repeat(WIDTH));
    let job = run.job.as_ref().map(|job| format!(", job {job}")).unwrap_or_default();
    let profile = run.profile_text();
    line(out, &plain(&format!("run {}, cluster {}, profile {profile}{job}", run.run, run.cluster)));
    let nodes = format!("{} nodes: {}; started {}", run.nodes.len(), run.nodes.join(" "), run.started);
    wrapped(out, "", "  ", &plain(&nodes));
    line(out, &format!("methodology {} of {}", rules.methodology, rules.date));
    line(out, "");
    if rating.not_rated.is_empty() {
        let estimate = &rating.estimate;
        wrapped(
            out,
            &format!("{}: ", evaluation.headline()),
            "  ",
            &format!("decided by {}: {}", estimate.decided_by, plain(&estimate.because)),
        );
    } else {
        wrapped(out, "Not rated: ", "  ", &plain(&rating.not_rated.join("; ")));
        wrapped(out, "", "", "Everything that was measured is below; it says nothing about GPUs.");
    }
    wrapped(out, "", "", &rules.notice);
}

/// What makes the figures mislead; what could not be looked at stands in the other reports.
fn guards(evaluation: &Evaluation, out: &mut String) {
    let guards = super::guards::Guards::of(&evaluation.loaded);
    if guards.is_empty() {
        return;
    }
    title(out, "Guards against figures that mislead");
    for text in guards.lines() {
        wrapped(out, "  ", "    ", &plain(&text));
    }
}

fn categories(evaluation: &Evaluation, out: &mut String) {
    title(out, "Categories");
    line(
        out,
        &format!(
            "{:<15}{:>7}{:>10}{:>10}{:>10}{:>10}   {:>4} {:>4} {:>7} {:>7} {:>4}",
            "", "weight", "score", "coverage", "lower", "upper", "pass", "fail", "unknown", "unavail", "n/a"
        ),
    );
    let row = |name: &str, weight: u32, bounds: Option<crate::rating::Bounds>, counts: [usize; 5]| {
        let share = |value: Option<u32>| value.map_or_else(|| "-".to_owned(), percent);
        let [pass, fail, unknown, unavailable, na] = counts;
        format!(
            "{name:<15}{weight:>5} %{:>10}{:>10}{:>10}{:>10}   {pass:>4} {fail:>4} {unknown:>7} {unavailable:>7} {na:>4}",
            share(bounds.and_then(|bounds| bounds.score)),
            share(bounds.map(|bounds| bounds.coverage)),
            share(bounds.map(|bounds| bounds.lower)),
            share(bounds.map(|bounds| bounds.upper)),
        )
    };
    let mut total = [0; 5];
    for category in &evaluation.rating.categories {
        for (sum, count) in total.iter_mut().zip(category.counts) {
            *sum += count;
        }
        line(out, &row(&category.name, category.weight, category.bounds, category.counts));
    }
    line(out, &row("All", 100, Some(evaluation.rating.bounds), total));
    let (decided, listed) = (evaluation.methodology.criteria.len(), evaluation.methodology.listed.len());
    wrapped(
        out,
        "",
        "",
        &format!(
            "score: over what was seen; coverage: weight that was seen; lower and upper: everything not seen counts 0 or 1. \
             {decided} of the {listed} listed criteria are decided by this methodology."
        ),
    );
}

fn gates(evaluation: &Evaluation, out: &mut String) {
    title(out, "Gates");
    for gate in &evaluation.rating.gates {
        let text = evaluation.methodology.criterion(&gate.id).map_or("", |criterion| criterion.text.as_str());
        wrapped(out, &format!("{:<8} {:<15}", gate.id, gate.word()), &" ".repeat(24), text);
        if !gate.reason.is_empty() {
            wrapped(out, &" ".repeat(24), &" ".repeat(24), &plain(&gate.reason));
        }
    }
}

/// Tiers under other weights; nothing for a run that is not rated.
fn sensitivity(evaluation: &Evaluation, out: &mut String) {
    if !evaluation.rating.not_rated.is_empty() {
        return;
    }
    let found = &evaluation.sensitivity;
    let rules = &evaluation.methodology.rules;
    let name = |tier: &str| tier_name(&rules.tier, tier).to_owned();
    title(out, "How firm it is");
    for part in sensitivity_sentences(evaluation) {
        wrapped(out, "", "  ", &part);
    }
    let other: Vec<String> = found
        .without
        .iter()
        .filter(|one| one.estimate.tier != evaluation.rating.estimate.tier)
        .map(|one| format!("{} without {}", name(&one.estimate.tier), one.category))
        .collect();
    let text = if other.is_empty() {
        "Leaving any one category out does not change the tier.".to_owned()
    } else {
        format!("Leaving one category out changes the tier: {}.", other.join(", "))
    };
    wrapped(out, "", "  ", &text);
    if found.lifts.is_empty() {
        return;
    }
    line(out, "");
    line(out, "What would lift it most, each passed in full:");
    for lift in &found.lifts {
        let text = evaluation.methodology.criterion(&lift.criterion).map_or("", |one| one.text.as_str());
        wrapped(
            out,
            &format!(
                "  {:<8} lower bound {:>7}, {:<16} ",
                lift.criterion,
                percent(lift.lower),
                name(&lift.tier)
            ),
            &" ".repeat(50),
            text,
        );
    }
}

/// What other weights give and what the next tier needs, one sentence each.
pub fn sensitivity_sentences(evaluation: &Evaluation) -> Vec<String> {
    let found = &evaluation.sensitivity;
    let rules = &evaluation.methodology.rules;
    let name = |tier: &str| tier_name(&rules.tier, tier).to_owned();
    let mut tiers: Vec<(&String, &u32)> = found.draws.tiers.iter().collect();
    tiers.sort_by_key(|(tier, count)| (std::cmp::Reverse(**count), place(&rules.tier, tier)));
    let tiers: Vec<String> = tiers
        .iter()
        .map(|(tier, count)| format!("{} in {}", name(tier), tenths(**count, rules.sensitivity.draws)))
        .collect();
    let [low, middle, high] = found.draws.lower.map(percent);
    let mut out = vec![format!(
        "With every weight drawn {} times within {} of ours: {}. The lower bound is then {low} to {high} in 90 % of draws, {middle} in the middle.",
        rules.sensitivity.draws,
        percent(crate::judge::micro(rules.sensitivity.spread)),
        tiers.join(", ")
    )];
    let path = &found.path;
    out.push(match (&path.tier, path.steps.len()) {
        (Some(tier), _) => format!("For {}: {}.", name(tier), path.steps.join(", ")),
        (None, 0) => "Nothing that this methodology decides would lift it.".to_owned(),
        (None, _) => format!("No criterion lifts it to the next tier: {} holds it.", path.held_by),
    });
    out
}

/// A share of draws, one decimal.
fn tenths(count: u32, of: u32) -> String {
    percent((u64::from(count) * 1_000_000 / u64::from(of.max(1))) as u32)
}

/// One line a group: the peak with its size where sizes were swept, else lowest, median and highest.
pub fn summary(group: &Group<'_>) -> String {
    let unit = if group.unit.is_empty() { String::new() } else { format!(" {}", group.unit) };
    let (Some((lowest, ..)), Some((highest, peak, _))) = (group.values.first(), group.values.last()) else {
        return String::new();
    };
    let size = |key: &crate::load::Key| key.params.get("size").and_then(crate::record::Scalar::as_f64);
    if let Some(at) = size(peak).filter(|_| group.metric == "collective_time") {
        let least = size(group.values[0].1).unwrap_or(at);
        return format!(
            "{}{unit} at {} to {}{unit} at {}",
            number(*lowest),
            bytes(least),
            number(*highest),
            bytes(at)
        );
    }
    if let Some(at) = size(peak) {
        let mut sizes: Vec<f64> = group.values.iter().filter_map(|(_, key, _)| size(key)).collect();
        sizes.sort_by(f64::total_cmp);
        sizes.dedup();
        let (from, to) = (sizes.first().copied().unwrap_or(at), sizes.last().copied().unwrap_or(at));
        if sizes.len() == 1 {
            return format!("{}{unit} at {}", spread(group), bytes(at));
        }
        return format!(
            "peak {}{unit} at {} ({} sizes, {} to {})",
            number(*highest),
            bytes(at),
            sizes.len(),
            bytes(from),
            bytes(to)
        );
    }
    let count = group.values.len();
    match (lowest == highest, count) {
        (_, 1) => format!("{}{unit}", number(*lowest)),
        (true, _) => format!("{}{unit} ({count} times)", number(*lowest)),
        (false, _) => format!("{}{unit} ({count} values)", spread(group)),
    }
}

/// `lowest / median / highest`, or the one number that all are.
fn spread(group: &Group<'_>) -> String {
    match (group.values.first(), group.values.last()) {
        (Some((lowest, ..)), Some((highest, ..))) if lowest != highest => {
            format!("{} / {} / {}", number(*lowest), number(group.median()), number(*highest))
        }
        (Some((lowest, ..)), _) => number(*lowest),
        _ => String::new(),
    }
}

/// Under each metric what its groups have in common is said once, and groups with the same values share a line.
fn measured(evaluation: &Evaluation, out: &mut String) {
    title(out, "Measured (lowest / median / highest over nodes)");
    let groups = groups(&evaluation.loaded);
    if groups.is_empty() {
        line(out, "nothing");
    }
    let shown = groups.iter().filter(|group| !group.metric.ends_with("_info") && group.metric != "algbw");
    let mut metrics: Vec<Vec<&Group<'_>>> = Vec::new();
    for group in shown {
        match metrics.last_mut().filter(|last| (last[0].stage, last[0].metric) == (group.stage, group.metric))
        {
            Some(last) => last.push(group),
            None => metrics.push(vec![group]),
        }
    }
    let mut stage = "";
    for groups in metrics {
        let first = groups[0];
        if first.stage != stage {
            stage = first.stage;
            line(out, &format!("[{}]", plain(stage)));
        }
        let common: Vec<&str> = first
            .params
            .iter()
            .filter(|(param, value)| groups.iter().all(|group| group.params.get(*param) == Some(*value)))
            .map(|(param, _)| *param)
            .collect();
        let mut said = common.clone();
        said.extend(["api", "direct", "rw"].into_iter().filter(|param| follows(&groups, param)));
        let mut rows: Vec<(Vec<String>, String)> = Vec::new();
        for group in &groups {
            let (name, values) = (group.label_without(&said), summary(group));
            match rows.iter_mut().find(|(_, known)| *known == values) {
                Some((names, _)) => names.push(name),
                None => rows.push((vec![name], values)),
            }
        }
        let of: Vec<String> =
            common.iter().filter_map(|param| Some(format!("{param}={}", first.params.get(param)?))).collect();
        let head = if of.is_empty() {
            first.metric.to_owned()
        } else {
            format!("{} ({})", first.metric, of.join(", "))
        };
        match rows.as_slice() {
            [(names, values)] if names.iter().all(String::is_empty) => row(out, "  ", &head, values),
            _ => {
                wrapped(out, "  ", "    ", &plain(&head));
                for (names, values) in &rows {
                    row(
                        out,
                        "    ",
                        &names.join(if names.iter().any(|name| name.contains(',')) { "; " } else { ", " }),
                        values,
                    );
                }
            }
        }
    }
}

/// True when a param follows from the collective or the fio job, which is shown.
fn follows(groups: &[&Group<'_>], param: &str) -> bool {
    let name =
        |group: &Group<'_>| group.params.get("collective").or(group.params.get("job")).copied().cloned();
    groups.iter().all(|one| {
        name(one).is_some()
            && groups
                .iter()
                .filter(|other| name(other) == name(one))
                .all(|other| other.params.get(param) == one.params.get(param))
    })
}

/// `NAME   VALUES`, the values in a column where there is room.
fn row(out: &mut String, indent: &str, name: &str, values: &str) {
    const COLUMN: usize = 52;
    let (name, values) = (plain(name), plain(values));
    if indent.len() + name.chars().count() < COLUMN {
        let space = COLUMN - indent.len();
        line(out, &format!("{indent}{name:<space$}{values}"));
    } else if indent.len() + name.chars().count() + 2 + values.chars().count() <= WIDTH {
        line(out, &format!("{indent}{name}  {values}"));
    } else {
        wrapped(out, indent, &format!("{indent}  "), &name);
        line(out, &format!("{:<COLUMN$}{values}", ""));
    }
}

fn criteria(evaluation: &Evaluation, out: &mut String) {
    for (outcome, heading) in [
        (Outcome::Fail, "Seen to fail"),
        (Outcome::Unknown, "Unknown"),
        (Outcome::Unavailable, "Unavailable (nobody could look)"),
        (Outcome::NotApplicable, "Not applicable"),
    ] {
        let rows = with_outcome(evaluation, outcome);
        if rows.is_empty() {
            continue;
        }
        title(out, &format!("{heading}: {}", rows.len()));
        for (criterion, verdict) in rows {
            wrapped(out, &format!("{:<8} ", criterion.id), &" ".repeat(9), &criterion.text);
            wrapped(out, &" ".repeat(9), &" ".repeat(9), &plain(&verdict.reason));
        }
    }
    line(out, "");
    line(out, "`clustermax explain CRITERION DIR` shows one criterion with its values, evidence and source.");
}

fn doubts(evaluation: &Evaluation, out: &mut String) {
    let doubted: Vec<_> = evaluation
        .loaded
        .entries
        .iter()
        .filter_map(|(key, entry)| Some((key, entry.flaw.as_ref()?)))
        .collect();
    if doubted.is_empty() {
        return;
    }
    title(out, &format!("Values that are not believed: {}", doubted.len()));
    for (key, flaw) in doubted.iter().take(20) {
        let what = format!("{} {}{}: {flaw}", key.metric, key.subject, crate::load::params_text(&key.params));
        wrapped(out, "  ", "    ", &plain(&what));
    }
    if doubted.len() > 20 {
        line(out, &format!("  and {} more, all in score.json", doubted.len() - 20));
    }
}
