//! The report as Markdown, for a ticket or a wiki: the same order as the HTML page, without its plots.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::judge::Outcome;
use crate::load::number;
use crate::rating::{Bounds, percent, tier_name};
use crate::report::first::{self, Effect, mend};
use crate::report::guards::{Guards, where_text};
use crate::score::Evaluation;

/// Text that cannot end a cell, start markup or carry HTML.
fn text(raw: &str) -> String {
    let mut out = String::with_capacity(raw.len());
    for letter in raw.chars() {
        match letter {
            '\\' | '|' | '*' | '_' | '`' | '[' | ']' | '#' | '~' => {
                out.push('\\');
                out.push(letter);
            }
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            letter if super::deceives(letter) => out.push(' '),
            letter => out.push(letter),
        }
    }
    out
}

/// What makes the figures mislead, before the figures.
fn guards(evaluation: &Evaluation, out: &mut String) {
    let guards = Guards::of(&evaluation.loaded);
    if guards.is_empty() {
        return;
    }
    out.push_str("\n## Guards against figures that mislead\n\n");
    if guards.found.is_empty() {
        out.push_str("Nothing was found that makes a figure mislead.\n\n");
    }
    if !guards.found.is_empty() || !guards.unseen.is_empty() {
        out.push_str("| guard | state | what it says | where | effect |\n|---|---|---|---|---|\n");
    }
    let mut row = |guard: &str, state: &str, says: &str, nodes: &[String], effect: &str| {
        let place = where_text(nodes);
        let _ = writeln!(out, "| {} | {state} | {} | {} | {effect} |", text(guard), text(says), text(&place));
    };
    for one in &guards.found {
        let effect = match one.unknown {
            0 => "stated; the figures stand".to_owned(),
            count => format!("{count} figures are unknown"),
        };
        row(&one.guard, "misleads", &one.sentence, &one.nodes, &effect);
    }
    for (guard, why, nodes) in &guards.unseen {
        row(guard, "not seen", why, nodes, "not looked at");
    }
    if !guards.clear.is_empty() {
        let _ = writeln!(out, "\nLooked for and not there: {}.", text(&guards.clear.join(", ")));
    }
}

/// The document.
pub fn render(evaluation: &Evaluation) -> String {
    // Writing to a String cannot fail.
    let mut out = String::new();
    let run = &evaluation.loaded.run;
    let rating = &evaluation.rating;
    let rules = &evaluation.methodology.rules;
    let _ = writeln!(out, "# ClusterMAX for Slurm: {}\n", evaluation.headline());
    if rating.not_rated.is_empty() {
        let estimate = &rating.estimate;
        let _ =
            writeln!(out, "**Decided by {}: {}.**\n", text(&estimate.decided_by), text(&estimate.because));
        for cap in estimate.caps.iter().filter(|cap| cap.id != estimate.decided_by) {
            let _ = writeln!(
                out,
                "* also capped at {}: {}",
                tier_name(&rules.tier, &cap.tier),
                text(&cap.reason)
            );
        }
        if estimate.caps.iter().any(|cap| cap.id != estimate.decided_by) {
            out.push('\n');
        }
    } else {
        let _ = writeln!(
            out,
            "**No tier, because {}.** What was measured is below; it says nothing about GPUs.\n",
            text(&rating.not_rated.join("; "))
        );
    }
    let _ = writeln!(out, "> {}\n", text(&rules.notice));
    let bounds = rating.bounds;
    out.push_str(
        "| score over what was seen | coverage | lower bound | upper bound |\n|---:|---:|---:|---:|\n",
    );
    let _ = writeln!(
        out,
        "| {} | {} | {} | {} |\n",
        bounds.score.map_or_else(|| "none".to_owned(), percent),
        percent(bounds.coverage),
        percent(bounds.lower),
        percent(bounds.upper)
    );
    out.push_str("## What to fix first\n\n");
    let steps = first::steps(evaluation);
    if steps.is_empty() {
        out.push_str("Nothing that this methodology decides would lift it.\n");
    }
    for (index, step) in steps.iter().enumerate() {
        let effect = match step.effect {
            Effect::GateFailed => "gate failed".to_owned(),
            Effect::GateUnknown => "gate not assessed".to_owned(),
            Effect::Lower(lower) => format!("lower bound {}", percent(lower)),
        };
        let _ = write!(
            out,
            "{}. **{}** {} ({effect}). {}",
            index + 1,
            text(&step.criterion),
            text(&step.text),
            text(&step.why)
        );
        if let Some(mend) = &step.mend {
            let _ = write!(out, " *Mend:* {}", text(mend));
        }
        out.push('\n');
    }
    guards(evaluation, &mut out);
    out.push_str("\n## Run\n\n| | |\n|---|---|\n");
    let nodes = format!("{} ({})", run.nodes.len(), run.nodes.join(" "));
    for (name, value) in [
        ("cluster", run.cluster.as_str()),
        ("run", &run.run),
        ("profile", &run.profile_text()),
        ("nodes", &nodes),
        ("started", &run.started),
        ("methodology", &format!("{} of {}", rules.methodology, rules.date)),
        (
            "records",
            &format!("{}, sum of sha256 {}", evaluation.loaded.entries.len(), evaluation.loaded.digest),
        ),
    ] {
        let _ = writeln!(out, "| {name} | {} |", text(value));
    }
    out.push_str("\n## Categories\n\n| category | weight | score | coverage | lower | upper | pass | fail | unknown | unavailable | n/a |\n|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n");
    let row = |out: &mut String, name: &str, weight: u32, bounds: Option<Bounds>, counts: [usize; 5]| {
        let share = |value: Option<u32>| value.map_or_else(|| "none".to_owned(), percent);
        let counts: Vec<String> = counts.iter().map(ToString::to_string).collect();
        let _ = writeln!(
            out,
            "| {} | {weight} % | {} | {} | {} | {} | {} |",
            text(name),
            share(bounds.and_then(|bounds| bounds.score)),
            share(bounds.map(|bounds| bounds.coverage)),
            share(bounds.map(|bounds| bounds.lower)),
            share(bounds.map(|bounds| bounds.upper)),
            counts.join(" | ")
        );
    };
    let mut total = [0; 5];
    for category in &rating.categories {
        for (sum, count) in total.iter_mut().zip(category.counts) {
            *sum += count;
        }
        row(&mut out, &category.name, category.weight, category.bounds, category.counts);
    }
    row(&mut out, "All", 100, Some(bounds), total);
    out.push_str("\n## Gates\n\n| gate | state | asks | why |\n|---|---|---|---|\n");
    for gate in &rating.gates {
        let asks = evaluation.methodology.criterion(&gate.id).map_or("", |criterion| criterion.text.as_str());
        let _ = writeln!(
            out,
            "| {} | {} | {} | {} |",
            text(&gate.id),
            text(gate.word()),
            text(asks),
            text(&gate.reason)
        );
    }
    out.push_str("\n## Criteria\n");
    let mut cache = BTreeMap::new();
    for category in &rating.categories {
        let _ = writeln!(
            out,
            "\n### {}\n\n| criterion | state | value | weight | asks | observed | mend |\n|---|---|---:|---:|---|---|---|",
            text(&category.name)
        );
        for (criterion, verdict) in
            evaluation.judged().filter(|(criterion, _)| criterion.category == category.id)
        {
            let seen: Vec<String> = verdict
                .observed
                .iter()
                .map(|one| {
                    let file = one
                        .evidence
                        .as_ref()
                        .map_or("", |(file, _)| evaluation.loaded.files[*file].file.as_str());
                    format!(
                        "{}{} {} {} ({}; {file})",
                        one.metric,
                        one.params,
                        number(one.value),
                        one.unit,
                        one.subject
                    )
                })
                .collect();
            let settled = matches!(verdict.outcome, Outcome::Pass | Outcome::Fail);
            let observed = if settled { seen.join("; ") } else { verdict.reason.clone() };
            let _ = writeln!(
                out,
                "| {}{} | {} | {} | {} | {} | {} | {} |",
                text(&criterion.id),
                if criterion.gate.is_some() { " (gate)" } else { "" },
                text(verdict.outcome.word()),
                verdict.value.map_or_else(String::new, percent),
                criterion.weight,
                text(&criterion.text),
                text(&observed),
                text(&mend(evaluation, &criterion.id, &mut cache).unwrap_or_default())
            );
        }
    }
    out
}
