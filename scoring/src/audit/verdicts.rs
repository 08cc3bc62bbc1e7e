//! What an audit found, criterion by criterion.

use std::fmt::Write as _;
use std::path::Path;

use serde::Serialize;

use super::whole::Report;
use super::{Item, Verdict};
use crate::judge::{self, ONE, Outcome};
use crate::methodology::{Criterion, Measure, Methodology};

/// One criterion's line.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// Criterion id.
    pub id: String,
    /// Category id.
    pub category: String,
    /// machine or partly.
    pub class: &'static str,
    /// Its failure is critical.
    pub gate: bool,
    /// In our own words.
    pub text: String,
    /// PASS, WARN, FAIL or SKIP.
    pub verdict: &'static str,
    /// Score, 0 to 1; none for SKIP.
    pub value: Option<f64>,
    /// What was seen, or why nothing was.
    pub observed: String,
    /// How to look again.
    pub command: String,
    /// What to do.
    pub mend: String,
}

/// A criterion's verdict, with what was seen and what mends it.
pub fn row(
    methodology: &Methodology,
    criterion: &Criterion,
    evidence: &judge::Evidence,
    items: &[Item],
) -> Row {
    let mut row = Row {
        id: criterion.id.clone(),
        category: criterion.category.clone(),
        class: criterion.class.word(),
        gate: criterion.gate.is_some(),
        text: criterion.text.clone(),
        verdict: "SKIP",
        value: None,
        observed: String::new(),
        command: String::new(),
        mend: String::new(),
    };
    if let Some(reason) = &criterion.undecided {
        row.observed = format!("this methodology does not decide it: {reason}");
        return row;
    }
    if criterion.measures.iter().all(|measure| measure.metric == "claim") {
        row.observed = format!(
            "only the provider can state it: [[{}]] in evidence.toml",
            criterion.evidence.as_deref().unwrap_or("process")
        );
        "clustermax evidence new evidence.toml".clone_into(&mut row.command);
        return row;
    }
    let verdict = evidence.judge(criterion);
    let mut mine: Vec<&Item> =
        items.iter().filter(|item| criterion.measures.iter().any(|measure| asks(measure, item))).collect();
    // What speaks against it first; then what was measured.
    let rank = |item: &Item| match item.verdict {
        Verdict::Fail => 0,
        Verdict::Warn => 1,
        Verdict::Pass => 2,
        Verdict::Info => 3,
        Verdict::Skip => 4,
    };
    mine.sort_by_key(|item| rank(item));
    let others: Vec<&str> = criterion
        .measures
        .iter()
        .filter(|measure| measure.metric != "claim" && !items.iter().any(|item| asks(measure, item)))
        .filter_map(|measure| methodology.metrics.get(&measure.metric))
        .map(|metric| metric.stage.as_str())
        .filter(|stage| !matches!(*stage, "inventory" | "audit"))
        .collect();
    let first = mine.first();
    let text = |item: &Item, of: usize| {
        let place = match (&item.subject.node, item.subject.gpu) {
            (Some(node), Some(gpu)) => format!("{node} g{gpu}: "),
            (Some(node), None) => format!("{node}: "),
            _ => String::new(),
        };
        let more = if of > 1 { format!(" (first of {of})") } else { String::new() };
        format!("{place}{}{more}", item.observed)
    };
    // What only a comparison of nodes tells is no item of any of them: `collect` makes its record.
    let compared =
        COMPARED.iter().find(|(metric, ..)| criterion.measures.iter().any(|one| one.metric == *metric));
    match (first, compared) {
        (Some(item), _) => item.command.clone_into(&mut row.command),
        (None, Some((_, command, _))) => (*command).clone_into(&mut row.command),
        (None, None) => {}
    }
    let decided = |row: &mut Row, word: &'static str| {
        row.verdict = word;
        row.value = verdict.value.map(|value| f64::from(value) / f64::from(ONE));
        row.observed = match (first, verdict.reason.is_empty()) {
            (Some(item), true) => text(item, mine.len()),
            (Some(item), false) => format!("{}; {}", text(item, mine.len()), verdict.reason),
            (None, false) => verdict.reason.clone(),
            (None, true) => values(&verdict.observed),
        };
    };
    match verdict.outcome {
        Outcome::Pass if verdict.value == Some(ONE) => decided(&mut row, "PASS"),
        Outcome::Pass => decided(&mut row, "WARN"),
        Outcome::Fail => decided(&mut row, "FAIL"),
        Outcome::Unknown | Outcome::Unavailable | Outcome::NotApplicable => {
            row.observed = match others.first() {
                Some(stage) if stage.starts_with("faults") => {
                    format!("measured by a fault on purpose: clustermax inject{}", or_by_sla(stage))
                }
                Some(stage) if stage.split(',').next().is_some_and(suite_stage) => {
                    let name = stage.split(',').next().unwrap_or_default();
                    format!(
                        "measured by the suite's stage {name}: sbatch clustermax-suite.sh --stages {name}{}",
                        or_by_sla(stage)
                    )
                }
                Some(&"sla") => "reckoned from Slurm's own records: clustermax sla --records DIR".to_owned(),
                Some(stage) => {
                    format!("needs {stage} measurements from elsewhere: clustermax import FILE --results DIR")
                }
                None if verdict.outcome == Outcome::NotApplicable => {
                    let word = verdict.reason.split([':', ';']).next().unwrap_or_default();
                    let why = methodology
                        .rules
                        .not_applicable
                        .get(word)
                        .map_or(verdict.reason.as_str(), String::as_str);
                    format!("not applicable: {why}")
                }
                None => verdict.reason.clone(),
            };
        }
    }
    if matches!(row.verdict, "WARN" | "FAIL") {
        match (mine.iter().find(|item| !item.mend.is_empty()), compared) {
            (Some(item), _) => item.mend.clone_into(&mut row.mend),
            (None, Some((.., mend))) => (*mend).clone_into(&mut row.mend),
            (None, None) => {}
        }
    }
    row
}

/// Metrics that come from comparing nodes: how to look again, and what to do.
const COMPARED: [(&str, &str, &str); 2] = [
    ("home_shared", "srun -N2 findmnt -T ~", "mount users' homes from the same server on every node"),
    (
        "mount_spread",
        "srun -N2 findmnt -l",
        "mount the same file systems from the same servers on every node",
    ),
];

/// Values that counted, of the first that is named: `home_shared, source=srv:/home 1: n1 (one of several)`.
fn values(observed: &[judge::Observed]) -> String {
    let Some(first) = observed.first() else { return "nothing speaks against it".to_owned() };
    let place = if first.subject.is_empty() { String::new() } else { format!(": {}", first.subject) };
    let unit = if first.unit.is_empty() { String::new() } else { format!(" {}", first.unit) };
    let more = if observed.len() > 1 { " (one of several)" } else { "" };
    format!("{}{} {}{unit}{place}{more}", first.metric, first.params, crate::load::number(first.value))
}

/// A metric that two stages can give.
fn or_by_sla(stages: &str) -> &'static str {
    if stages.ends_with(", sla") { ", or from Slurm's own records: clustermax sla --records DIR" } else { "" }
}

fn suite_stage(stage: &str) -> bool {
    crate::collect::STAGES.contains(&stage)
}

/// The item is among the records that a measure reads.
fn asks(measure: &Measure, item: &Item) -> bool {
    item.metric == measure.metric
        && measure.filter.iter().all(|(param, value)| item.params.get(param) == Some(value))
        && measure.each.as_ref().is_none_or(|each| {
            item.params.get(&each.param).is_some_and(|found| each.values.contains(&found.to_string()))
        })
}

/// The report for people.
pub fn shown(report: &Report, kept: Option<&Path>) -> String {
    let mut out = String::new();
    let gpus: u32 = report.nodes.iter().map(|node| node.gpus).sum();
    let user = if report.root {
        "as root"
    } else {
        "as an ordinary user (root sees more: ACS registers, kernel log)"
    };
    let _ = writeln!(
        out,
        "clustermax audit of {}, {user}: {} nodes looked at ({gpus} GPUs held), {} not; methodology {}, minimum versions of {}",
        report.cluster,
        report.nodes.len(),
        report.not_seen.len(),
        report.methodology,
        report.minimum_versions
    );
    for node in &report.not_seen {
        let _ = writeln!(out, "  not looked at: {} {}", node.node, node.why);
    }
    let mut category = "";
    for row in &report.criteria {
        if row.category != category {
            category = &row.category;
            let _ = writeln!(out, "\n{category}");
        }
        let gate = if row.gate { " (gate)" } else { "" };
        let _ = writeln!(out, "{}  {:<7} {}{gate}", row.verdict, row.id, row.text);
        for (label, text) in [("seen", &row.observed), ("mend", &row.mend), ("look", &row.command)] {
            if !text.is_empty() && (label != "look" || matches!(row.verdict, "WARN" | "FAIL")) {
                let _ = writeln!(out, "               {label}: {}", crate::report::plain(text));
            }
        }
    }
    let count = |word: &str| report.counts.get(word).copied().unwrap_or(0);
    let (on, wall): (f64, f64) =
        report.nodes.iter().fold((0.0, 0.0), |sum, node| (sum.0 + node.seconds, sum.1 + node.wall));
    let looked = report.nodes.len().max(1) as f64;
    let _ = writeln!(
        out,
        "\n{} criteria: {} pass, {} warn, {} fail, {} skip. {:.1} s in all; a node cost {:.2} s of its time, {:.2} s with start and end.",
        report.criteria.len(),
        count("PASS"),
        count("WARN"),
        count("FAIL"),
        count("SKIP"),
        report.seconds,
        on / looked,
        wall / looked
    );
    if let Some(folder) = kept {
        let _ = writeln!(out, "records and raw documents: {}", folder.display());
    }
    out
}
