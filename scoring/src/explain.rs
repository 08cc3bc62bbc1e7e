//! `clustermax explain` and `clustermax criteria`: what the rules are, and how one criterion came out.

use std::fmt::Write as _;
use std::path::PathBuf;

use crate::Failure;
use crate::judge::Verdict;
use crate::load::number;
use crate::methodology::{Class, Combine, Criterion, Measure, Methodology, Per, Pick, Rule, Span};
use crate::rating::percent;
use crate::report::{plain, print};
use crate::score::{Evaluation, methodology};

/// `clustermax explain`
#[derive(Debug, Clone, clap::Args)]
pub struct ExplainArgs {
    /// Criterion id, `orc-21`
    pub criterion: String,
    /// Results folder; without it only the rule is shown
    pub dir: Option<PathBuf>,
    /// Evidence file; default: evidence.toml in the results folder, when there is one
    #[arg(long, value_name = "FILE")]
    pub evidence: Option<PathBuf>,
    /// Read the methodology from this folder instead of the built-in one
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
}

/// `clustermax criteria`
#[derive(Debug, Clone, clap::Args)]
pub struct CriteriaArgs {
    #[command(subcommand)]
    command: CriteriaCommand,
}

#[derive(Debug, Clone, clap::Subcommand)]
enum CriteriaCommand {
    /// One line a criterion
    List(DataArgs),
    /// One criterion with its rule, source and date
    Show {
        /// Criterion id, `orc-21`
        criterion: String,
        #[command(flatten)]
        data: DataArgs,
    },
    /// Check every row of the methodology
    Check(DataArgs),
}

#[derive(Debug, Clone, clap::Args)]
struct DataArgs {
    /// Read the methodology from this folder instead of the built-in one
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
}

/// Runs `clustermax criteria`.
///
/// # Errors
/// A bad methodology or an id that is not in it (2).
pub fn criteria(args: &CriteriaArgs) -> Result<u8, Failure> {
    let mut out = String::new();
    match &args.command {
        CriteriaCommand::List(data) => list(&methodology(data.data.as_deref())?, &mut out),
        CriteriaCommand::Show { criterion, data } => {
            let methodology = methodology(data.data.as_deref())?;
            rule(&methodology, find(&methodology, criterion)?, &mut out);
        }
        CriteriaCommand::Check(data) => {
            let methodology = methodology(data.data.as_deref())?;
            let _ = writeln!(
                out,
                "methodology {} of {}: {} criteria listed, {} decided ({} by a program, {} by a statement), {} not yet, \
                 {} about Kubernetes; {} metrics, {} reference values: every row is valid",
                methodology.rules.methodology,
                methodology.rules.date,
                methodology.listed.len(),
                methodology.criteria.len(),
                methodology.criteria.iter().filter(|one| !one.only_stated()).count(),
                methodology.criteria.iter().filter(|one| one.only_stated()).count(),
                methodology.undecided.iter().filter(|one| one.class != Class::NotSlurm).count(),
                methodology.undecided.iter().filter(|one| one.class == Class::NotSlurm).count(),
                methodology.metrics.len(),
                methodology.references.len()
            );
        }
    }
    print(&out)?;
    Ok(0)
}

/// Runs `clustermax explain`.
///
/// # Errors
/// A bad methodology or results folder, or an id that is not in the methodology (2).
pub fn explain(args: &ExplainArgs) -> Result<u8, Failure> {
    let mut out = String::new();
    match &args.dir {
        None => {
            let methodology = methodology(args.data.as_deref())?;
            rule(&methodology, find(&methodology, &args.criterion)?, &mut out);
        }
        Some(dir) => {
            let evaluation = Evaluation::of(dir, args.data.as_deref(), args.evidence.as_deref())?;
            let wanted = &find(&evaluation.methodology, &args.criterion)?.id;
            rule(&evaluation.methodology, find(&evaluation.methodology, wanted)?, &mut out);
            if let Some((_, verdict)) = evaluation.judged().find(|(criterion, _)| criterion.id == *wanted) {
                result(&evaluation, verdict, &mut out);
            }
        }
    }
    print(&out)?;
    Ok(0)
}

fn find<'a>(methodology: &'a Methodology, id: &str) -> Result<&'a Criterion, Failure> {
    if let Some(criterion) = methodology.all().find(|criterion| criterion.id == id) {
        return Ok(criterion);
    }
    let nearest = methodology
        .all()
        .map(|criterion| (strsim::jaro_winkler(&criterion.id, id), &criterion.id))
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map_or("", |(_, id)| id.as_str());
    Err(Failure::input(format!(
        "there is no criterion {id:?}; did you mean {nearest}? `clustermax criteria list` names all"
    )))
}

// Writing to a String cannot fail, so the results of writeln! are dropped.
fn list(methodology: &Methodology, out: &mut String) {
    for criterion in methodology.all() {
        let mark = match (&criterion.gate, &criterion.undecided) {
            (Some(_), _) => "gate",
            (None, Some(_)) => "not decided yet",
            (None, None) => "",
        };
        let _ = writeln!(
            out,
            "{:<7} {:<14} {:<9} {:<15} {}  {}",
            criterion.id,
            criterion.category,
            criterion.class.word(),
            mark,
            criterion.weight,
            criterion.text
        );
    }
}

fn rule(methodology: &Methodology, criterion: &Criterion, out: &mut String) {
    let _ = writeln!(out, "{}: {}", criterion.id, criterion.text);
    let of: u32 = methodology
        .criteria
        .iter()
        .filter(|other| other.category == criterion.category)
        .map(|other| other.weight)
        .sum();
    let _ = writeln!(
        out,
        "category {}, class {}, weight {} of {of} in its category",
        criterion.category,
        criterion.class.word(),
        criterion.weight
    );
    if criterion.gate.is_some() {
        let _ =
            writeln!(out, "gate: seen to fail, the tier is Underperforming; not assessed, at most Bronze");
    }
    for measure in &criterion.measures {
        let _ = writeln!(out, "measured by {}", measure_text(measure));
        if let Some(metric) = methodology.metrics.get(&measure.metric) {
            let _ = writeln!(out, "  {}: {}", metric.name, metric.meaning);
        }
        if measure.rule == Rule::Reference {
            for reference in methodology.references.iter().filter(|reference| {
                reference.metric == measure.metric
                    && measure
                        .filter
                        .iter()
                        .all(|(param, value)| reference.params.get(param).is_none_or(|own| own == value))
            }) {
                let _ = writeln!(
                    out,
                    "  {}: {}: 0 at {}, 0.7 at {}, 1 at {}, impossible above {} {} ({}; {}; {})",
                    reference.id,
                    reference.gpus.join(" or "),
                    number(reference.zero),
                    number(reference.minimum),
                    number(reference.typical),
                    number(reference.ceiling),
                    reference.unit,
                    reference.basis,
                    reference.source,
                    reference.date
                );
            }
        }
    }
    if let Some(kind) = &criterion.evidence {
        let _ = writeln!(out, "stated by [[{kind}]] in evidence.toml{}", requires_text(criterion));
    }
    if let Some(reason) = &criterion.undecided {
        let _ = writeln!(out, "not decided yet, and outside every figure: {reason}");
    }
    let combine = match criterion.combine {
        Combine::All => "the lowest instance decides",
        Combine::Share => "the mean over the instances",
    };
    if criterion.undecided.is_none() {
        let _ = writeln!(out, "value: {combine}");
    }
    if !criterion.na.is_empty() {
        let _ = writeln!(out, "may be not applicable for: {}", criterion.na.join(", "));
    }
    if let Some(listed) = methodology.listed.iter().find(|listed| listed.id == criterion.id) {
        let _ = writeln!(out, "asked in: {}", listed.versions);
    }
    let source = methodology.rules.sources.get(&criterion.source);
    let source =
        source.map_or_else(|| criterion.source.clone(), |source| format!("{}, {}", source.text, source.url));
    let _ = writeln!(out, "source: {source} ({})", criterion.date);
    let _ = writeln!(out, "methodology {}: {}", methodology.rules.methodology, methodology.rules.notice);
}

/// `, with standard of SOC 2 or ISO 27001`; empty when the statement alone is enough.
fn requires_text(criterion: &Criterion) -> String {
    let Some(rule) = &criterion.requires else { return String::new() };
    let mut parts: Vec<String> =
        rule.one_of.iter().map(|(key, words)| format!("{key} of {}", words.join(" or "))).collect();
    parts.extend(rule.least.iter().map(|(key, least)| format!("{key} of {} at least", number(*least))));
    parts.extend(rule.most.iter().map(|(key, most)| format!("{key} of {} at most", number(*most))));
    if !rule.present.is_empty() {
        parts.push(rule.present.join(", "));
    }
    format!(", with {}", parts.join("; "))
}

/// A measure in words.
pub fn measure_text(measure: &Measure) -> String {
    let mut text = measure.metric.clone();
    for (param, value) in &measure.filter {
        let _ = write!(text, ", {param}={value}");
    }
    match measure.span {
        Some(Span::Inside) => text.push_str(", inside one node"),
        Some(Span::Between) => text.push_str(", over two nodes or more"),
        None => {}
    }
    if let Some(each) = &measure.each {
        let _ = write!(text, ", each {} of {}", each.param, each.values.join(" "));
    }
    match measure.per {
        Per::Cluster => {}
        Per::Node => text.push_str(", on every node"),
        Per::Gpu => text.push_str(", on every GPU"),
    }
    if measure.pick == Pick::Best {
        text.push_str(", the best record");
    }
    text.push_str(": ");
    match &measure.rule {
        Rule::Flag { pass } => {
            let _ = write!(text, "must be {pass}");
        }
        Rule::AtMost { limit } => {
            let _ = write!(text, "at most {}", number(*limit));
        }
        Rule::AtLeast { limit } => {
            let _ = write!(text, "at least {}", number(*limit));
        }
        Rule::Curve { points } => {
            let _ = write!(text, "{}", points_text(points));
        }
        Rule::AnyText { param, values } => {
            let _ = write!(text, "{param} is one of {}", values.join(", "));
        }
        Rule::Spread { points } => {
            let _ = write!(text, "(largest / median - 1): {}", points_text(points));
        }
        Rule::Reference => text.push_str("by the reference value of the GPU model"),
    }
    text
}

fn points_text(points: &[[f64; 2]]) -> String {
    let parts: Vec<String> =
        points.iter().map(|point| format!("{} at {}", number(point[1]), number(point[0]))).collect();
    format!("score {}, linear between", parts.join(", "))
}

fn result(evaluation: &Evaluation, verdict: &Verdict, out: &mut String) {
    let value = verdict.value.map(|value| format!(", value {}", percent(value))).unwrap_or_default();
    let _ = writeln!(out, "\nrun {}: {}{value}", plain(&evaluation.loaded.run.run), verdict.outcome.word());
    if !verdict.reason.is_empty() {
        let _ = writeln!(out, "because: {}", plain(&verdict.reason));
    }
    let (asked, known) = verdict.instances;
    let _ = writeln!(out, "instances: {known} of {asked} have a value; lowest scores first:");
    for one in &verdict.observed {
        let unit = if one.unit.is_empty() { String::new() } else { format!(" {}", one.unit) };
        let row = format!(
            "  {} {}{}: {}{unit}, score {}",
            one.metric,
            one.subject,
            one.params,
            number(one.value),
            percent(one.score)
        );
        let _ = writeln!(out, "{}", plain(&row));
        if let Some((file, pointer)) = &one.evidence {
            let raw = &evaluation.loaded.files[*file];
            let pointer = pointer.as_deref().unwrap_or("whole file");
            let _ = writeln!(out, "    evidence {} {pointer} sha256 {}", plain(&raw.file), raw.sha256);
        }
    }
}
