//! `clustermax diff`: what changed between two runs, under the same methodology.

use std::fmt::Write as _;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::Failure;
use crate::judge::{Micro, ONE, Verdict};
use crate::methodology::Criterion;
use crate::rating::percent;
use crate::report::{plain, print};
use crate::score::Evaluation;

/// The schema of `clustermax diff --json`.
pub const SCHEMA: &str = "clustermax-diff/1";

/// `clustermax diff`
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Results folder of the earlier run
    pub before: PathBuf,
    /// Results folder of the later run
    pub after: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Read the methodology from this folder instead of the built-in one
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
}

/// A criterion whose state or value is another.
struct Change<'a> {
    criterion: &'a Criterion,
    before: &'a Verdict,
    after: &'a Verdict,
}

/// Runs the command. Exit code 0: same rating, states and values; 1: something changed.
///
/// # Errors
/// Bad input (2).
pub fn run(args: &Args) -> Result<u8, Failure> {
    let of = |dir| Evaluation::of(dir, args.data.as_deref(), None);
    let (before, after) = (of(&args.before)?, of(&args.after)?);
    let changes: Vec<Change<'_>> = before
        .judged()
        .zip(&after.verdicts)
        .filter(|((_, before), after)| (before.outcome, before.value) != (after.outcome, after.value))
        .map(|((criterion, before), after)| Change { criterion, before, after })
        .collect();
    let same = changes.is_empty() && before.headline() == after.headline();
    let text = if args.json { to_json(&before, &after, &changes) } else { text(&before, &after, &changes) };
    print(&text)?;
    Ok(if same { 0 } else { 1 })
}

fn worded(verdict: &Verdict) -> String {
    match verdict.value {
        Some(value) => format!("{} {}", verdict.outcome.word(), percent(value)),
        None => verdict.outcome.word().to_owned(),
    }
}

fn signed(before: Micro, after: Micro) -> String {
    let difference = i64::from(after) - i64::from(before);
    let sign = if difference < 0 { '-' } else { '+' };
    let size = difference.unsigned_abs();
    format!("{sign}{}.{}", size / 10_000, size / 1_000 % 10)
}

// Writing to a String cannot fail, so the results of writeln! are dropped.
fn text(before: &Evaluation, after: &Evaluation, changes: &[Change<'_>]) -> String {
    let mut out = String::new();
    for (word, one) in [("before", before), ("after ", after)] {
        let run = &one.loaded.run;
        let line = format!("{word}  run {}, cluster {}, started {}", run.run, run.cluster, run.started);
        let _ = writeln!(out, "{}", plain(&line));
    }
    let _ = writeln!(out, "methodology {}\n", before.methodology.rules.methodology);
    let _ = writeln!(out, "{:<16} {:>14} -> {}", "rating", before.headline(), after.headline());
    let decided = (&before.rating.estimate.decided_by, &after.rating.estimate.decided_by);
    if before.rating.not_rated.is_empty() && after.rating.not_rated.is_empty() {
        let _ = writeln!(out, "{:<16} {:>14} -> {}", "decided by", decided.0, decided.1);
    }
    let (old, new) = (before.rating.bounds, after.rating.bounds);
    let mut row = |name: &str, old: Option<Micro>, new: Option<Micro>| {
        let share = |value: Option<Micro>| value.map_or_else(|| "-".to_owned(), percent);
        let change = old.zip(new).map(|(old, new)| format!(" ({})", signed(old, new))).unwrap_or_default();
        let _ = writeln!(out, "{name:<16} {:>14} -> {}{change}", share(old), share(new));
    };
    row("score", old.score, new.score);
    row("coverage", Some(old.coverage), Some(new.coverage));
    row("lower bound", Some(old.lower), Some(new.lower));
    row("upper bound", Some(old.upper), Some(new.upper));
    for (old, new) in before.rating.categories.iter().zip(&after.rating.categories) {
        let lower = |bounds: Option<crate::rating::Bounds>| bounds.map(|bounds| bounds.lower);
        if lower(old.bounds) != lower(new.bounds) {
            row(&format!("  {}", old.name), lower(old.bounds), lower(new.bounds));
        }
    }
    let _ = writeln!(out, "\n{} of {} criteria changed", changes.len(), before.verdicts.len());
    for Change { criterion, before, after } in changes {
        let _ = writeln!(
            out,
            "{:<8} {:>22} -> {:<22} {}",
            criterion.id,
            worded(before),
            worded(after),
            criterion.text
        );
        if !after.reason.is_empty() {
            let _ = writeln!(out, "{:<8} now: {}", "", plain(&after.reason));
        }
    }
    out
}

fn to_json(before: &Evaluation, after: &Evaluation, changes: &[Change<'_>]) -> String {
    let share = |value: Micro| f64::from(value) / f64::from(ONE);
    let side = |one: &Evaluation| {
        json!({
            "cluster": one.loaded.run.cluster,
            "coverage": share(one.rating.bounds.coverage),
            "decided_by": one.rating.estimate.decided_by,
            "estimate": one.rating.estimate.tier,
            "lower": share(one.rating.bounds.lower),
            "not_rated": one.rating.not_rated,
            "run": one.loaded.run.run,
            "score": one.rating.bounds.score.map(share),
            "upper": share(one.rating.bounds.upper),
        })
    };
    let state = |verdict: &Verdict| json!({"reason": verdict.reason, "state": verdict.outcome.word(), "value": verdict.value.map(share)});
    let criteria: Vec<Value> = changes
        .iter()
        .map(|change| {
            json!({
                "after": state(change.after), "before": state(change.before), "id": change.criterion.id,
            })
        })
        .collect();
    let document = json!({
        "after": side(after),
        "before": side(before),
        "criteria": criteria,
        "methodology": before.methodology.rules.methodology,
        "schema": SCHEMA,
    });
    // A Value always serializes.
    let mut text = serde_json::to_string_pretty(&document).unwrap_or_default();
    text.push('\n');
    text
}
