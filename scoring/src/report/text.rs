//! The text report, for a terminal of 100 columns.

use std::fmt::Write as _;

use crate::judge::Outcome;
use crate::load::number;
use crate::rating::percent;
use crate::report::{Group, bytes, groups, plain};
use crate::score::{Evaluation, with_outcome};

const WIDTH: usize = 100;

/// The text report.
pub fn render(evaluation: &Evaluation) -> String {
    let mut out = String::new();
    head(evaluation, &mut out);
    categories(evaluation, &mut out);
    gates(evaluation, &mut out);
    measured(evaluation, &mut out);
    criteria(evaluation, &mut out);
    doubts(evaluation, &mut out);
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
    line(out, &plain(&format!("run {}, cluster {}, profile {}{job}", run.run, run.cluster, run.profile)));
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

fn measured(evaluation: &Evaluation, out: &mut String) {
    title(out, "Measured (lowest / median / highest over nodes)");
    let groups = groups(&evaluation.loaded);
    if groups.is_empty() {
        line(out, "nothing");
    }
    let mut stage = "";
    for group in &groups {
        if group.metric.ends_with("_info") || group.metric == "algbw" {
            continue;
        }
        if group.stage != stage {
            stage = group.stage;
            line(out, &format!("[{}]", plain(stage)));
        }
        let label = group.label();
        let name =
            if label.is_empty() { group.metric.to_owned() } else { format!("{} {label}", group.metric) };
        let name = plain(&name);
        let values = plain(&summary(group));
        if name.chars().count() + values.chars().count() + 4 <= WIDTH {
            let space = (WIDTH - 2 - values.chars().count()).min(60).max(name.chars().count() + 1);
            line(out, &format!("  {name:<space$} {values}"));
        } else {
            wrapped(out, "  ", "    ", &name);
            line(out, &format!("{:<62} {values}", ""));
        }
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
