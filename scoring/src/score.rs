//! `clustermax score`: a results folder to `score.json`, `report.txt`, `report.md` and `report.html`.
//!
//! The same input gives the same bytes: keys are sorted, shares are fixed point, there is no clock and no hash order.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::judge::{Evidence, Micro, ONE, Observed, Outcome, Verdict};
use crate::load::{Loaded, load_with};
use crate::methodology::{Criterion, Methodology};
use crate::rating::{Bounds, Rating, rate, tier_name};
use crate::sensitivity::{self, Sensitivity};
use crate::{Failure, report, run};

/// The schema of `score.json`.
pub const SCHEMA: &str = "clustermax-score/1";

/// `clustermax score`
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Results folder
    pub dir: PathBuf,
    /// Evidence file; default: evidence.toml in the results folder, when there is one
    #[arg(long, value_name = "FILE")]
    pub evidence: Option<PathBuf>,
    /// Print score.json instead of the text report
    #[arg(long)]
    pub json: bool,
    /// Write score.json, report.txt, report.md and report.html into this folder instead of the results folder
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Read the methodology from this folder instead of the built-in one
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
}

/// Everything that a report shows.
pub struct Evaluation {
    /// The rules.
    pub methodology: Methodology,
    /// The records.
    pub loaded: Loaded,
    /// In the order of the criteria.
    pub verdicts: Vec<Verdict>,
    /// The result.
    pub rating: Rating,
    /// How firm it is.
    pub sensitivity: Sensitivity,
}

impl Evaluation {
    /// Reads and judges a results folder.
    ///
    /// # Errors
    /// Bad methodology or bad results folder, each in one sentence.
    pub fn of(dir: &Path, data: Option<&Path>, evidence: Option<&Path>) -> Result<Self, Failure> {
        let methodology = methodology(data)?;
        let loaded = load_with(dir, &methodology, evidence).map_err(Failure::input)?;
        let verdicts: Vec<Verdict> = {
            let evidence = Evidence::new(&loaded, &methodology);
            methodology.criteria.iter().map(|criterion| evidence.judge(criterion)).collect()
        };
        let rating = rate(&methodology, &loaded, &verdicts);
        let sensitivity = sensitivity::analyse(&methodology, &verdicts, &rating.estimate);
        Ok(Self { methodology, loaded, verdicts, rating, sensitivity })
    }

    /// Criteria with their verdicts.
    pub fn judged(&self) -> impl Iterator<Item = (&Criterion, &Verdict)> {
        self.methodology.criteria.iter().zip(&self.verdicts)
    }

    /// The tier's name, or "Not rated".
    pub fn headline(&self) -> &str {
        if self.rating.not_rated.is_empty() {
            tier_name(&self.methodology.rules.tier, &self.rating.estimate.tier)
        } else {
            "Not rated"
        }
    }
}

/// The methodology of `--data`, else the built-in one.
///
/// # Errors
/// A file that is missing or malformed, rows that break a rule.
pub fn methodology(data: Option<&Path>) -> Result<Methodology, Failure> {
    match data {
        Some(folder) => Methodology::open(folder),
        None => Methodology::built_in(),
    }
    .map_err(Failure::input)
}

/// Runs the command. Exit code 0: rated; 1: measured, but a rating could not be given.
///
/// # Errors
/// Bad input (2) or a folder that cannot be written (2).
pub fn run(args: &Args) -> Result<u8, Failure> {
    let written = write(args)?;
    report::print(if args.json { &written.score } else { &written.text })?;
    Ok(if written.evaluation.rating.is_rated() { 0 } else { 1 })
}

/// What [`write()`] made.
pub struct Written {
    /// What was found.
    pub evaluation: Evaluation,
    /// `score.json`
    pub score: String,
    /// `report.txt`
    pub text: String,
}

/// Scores a run and writes its files; what is wrong with its records goes to stderr. `json` is not looked at.
///
/// # Errors
/// As [`run`].
pub fn write(args: &Args) -> Result<Written, Failure> {
    let evaluation = Evaluation::of(&args.dir, args.data.as_deref(), args.evidence.as_deref())?;
    let out = args.out.as_deref().unwrap_or(&args.dir);
    let score = to_json(&evaluation);
    let text = report::text::render(&evaluation);
    let html = report::html::render(&evaluation, &report::link_base(&args.dir, out));
    write_file(out, "score.json", &score)?;
    write_file(out, "report.txt", &text)?;
    write_file(out, "report.md", &report::markdown::render(&evaluation))?;
    write_file(out, "report.html", &html)?;
    for raw in &evaluation.loaded.files {
        if let Some(problem) = &raw.problem {
            eprintln!(
                "clustermax: evidence {} {problem}; its records count as unknown: put the file back as it was recorded, \
                 or run its stage again",
                report::plain(&raw.file)
            );
        }
    }
    for one in loaded_flaws(&evaluation).into_iter().chain(not_believed(&evaluation)) {
        eprintln!("clustermax: {}", report::plain(&one));
    }
    Ok(Written { evaluation, score, text })
}

/// Statements that count for nothing, and why.
fn loaded_flaws(evaluation: &Evaluation) -> Vec<String> {
    let Some(statements) = &evaluation.loaded.statements else { return Vec::new() };
    statements
        .statements
        .iter()
        .filter_map(|one| {
            Some(format!(
                "{}: {} counts for nothing: {}",
                statements.path.display(),
                one.name(),
                one.flaw.as_ref()?
            ))
        })
        .collect()
}

/// Values that are named one by one on stderr; all of them are in score.json.
const NAMED: usize = 10;

/// Values that are not believed, by the line of their record; those of a raw file that is wrong are named with that file.
fn not_believed(evaluation: &Evaluation) -> Vec<String> {
    let loaded = &evaluation.loaded;
    let sound = |file: usize| loaded.files[file].problem.is_none();
    let mut found: Vec<_> = loaded
        .entries
        .iter()
        .filter(|(_, entry)| entry.line > 0 && entry.evidence.as_ref().is_none_or(|(file, _)| sound(*file)))
        .filter_map(|(key, entry)| Some((entry.line, key, entry.flaw.as_deref()?)))
        .collect();
    found.sort_unstable_by_key(|(line, ..)| *line);
    let records = loaded.dir.join("records.jsonl");
    let mut named: Vec<String> = found
        .iter()
        .take(NAMED)
        .map(|(line, key, flaw)| {
            format!(
                "{}: line {line}: {} ({}): {flaw}; it counts as unknown: correct what wrote it and run `clustermax collect {}` again",
                records.display(),
                key.metric,
                key.subject,
                key.stage
            )
        })
        .collect();
    if let Some(others) = found.len().checked_sub(NAMED).filter(|others| *others > 0) {
        named.push(format!("{others} more values count as unknown; score.json names all under not_believed"));
    }
    named
}

/// Writes one file of the report, all of it or nothing.
///
/// # Errors
/// Names the file and the mend.
pub fn write_file(folder: &Path, name: &str, text: &str) -> Result<(), Failure> {
    let path = folder.join(name);
    if !folder.is_dir() {
        return Err(Failure::input(format!(
            "output folder {} does not exist; create it or leave out --out",
            folder.display()
        )));
    }
    run::write_atomic(&path, text.as_bytes()).map_err(|error| {
        Failure::input(format!(
            "cannot write {}: {error}; free space or give a writable folder with --out",
            path.display()
        ))
    })
}

fn share(value: Micro) -> Value {
    json!(f64::from(value) / f64::from(ONE))
}

/// A measured value, rounded to millionths like everything else.
fn rounded(value: f64) -> Value {
    json!((value * 1e6).round() / 1e6)
}

fn bounds(bounds: Bounds) -> Value {
    json!({
        "coverage": share(bounds.coverage),
        "lower": share(bounds.lower),
        "score": bounds.score.map(share),
        "upper": share(bounds.upper),
    })
}

fn observed(loaded: &Loaded, one: &Observed) -> Value {
    let evidence = one.evidence.as_ref().map(|(file, pointer)| {
        let raw = &loaded.files[*file];
        json!({"file": raw.file, "pointer": pointer.as_deref(), "sha256": raw.sha256})
    });
    json!({
        "evidence": evidence,
        "metric": one.metric,
        "params": one.params.trim_start_matches(", "),
        "score": share(one.score),
        "subject": one.subject.to_string(),
        "unit": one.unit,
        "value": rounded(one.value),
    })
}

fn sensitivity_json(evaluation: &Evaluation) -> Value {
    let Sensitivity { draws, without, lifts, path } = &evaluation.sensitivity;
    let rules = &evaluation.methodology.rules.sensitivity;
    let of = |count: u32| share((u64::from(count) * u64::from(ONE) / u64::from(rules.draws)) as Micro);
    json!({
        "lift": lifts.iter().map(|lift| json!({
            "criterion": lift.criterion, "lower": share(lift.lower), "tier": lift.tier,
        })).collect::<Vec<_>>(),
        "next_tier": {"held_by": path.held_by, "steps": path.steps, "tier": path.tier},
        "weights": {
            "draws": rules.draws,
            "generator": "splitmix64",
            "lower": {"p05": share(draws.lower[0]), "p50": share(draws.lower[1]), "p95": share(draws.lower[2])},
            "seed": rules.seed,
            "spread": rules.spread,
            "tiers": draws.tiers.iter().map(|(tier, count)| (tier.clone(), of(*count))).collect::<BTreeMap<_, _>>(),
        },
        "without_category": without.iter().map(|one| json!({
            "category": one.category,
            "decided_by": one.estimate.decided_by,
            "lower": share(one.bounds.lower),
            "score": one.bounds.score.map(share),
            "tier": one.estimate.tier,
        })).collect::<Vec<_>>(),
    })
}

/// `score.json`, with a newline at its end.
pub fn to_json(evaluation: &Evaluation) -> String {
    let Evaluation { methodology, loaded, rating, .. } = evaluation;
    let rules = &methodology.rules;
    let categories: Vec<Value> = rating
        .categories
        .iter()
        .map(|category| {
            let [pass, fail, unknown, unavailable, not_applicable] = category.counts;
            json!({
                "bounds": category.bounds.map(bounds),
                "criteria": {"fail": fail, "not_applicable": not_applicable, "pass": pass,
                             "unavailable": unavailable, "unknown": unknown},
                "id": category.id,
                "name": category.name,
                "weight": category.weight,
            })
        })
        .collect();
    let criteria: Vec<Value> = evaluation
        .judged()
        .map(|(criterion, verdict)| {
            json!({
                "category": criterion.category,
                "class": criterion.class.word(),
                "date": criterion.date,
                "gate": criterion.gate.is_some(),
                "id": criterion.id,
                "instances": {"asked": verdict.instances.0, "known": verdict.instances.1},
                "observed": verdict.observed.iter().map(|one| observed(loaded, one)).collect::<Vec<_>>(),
                "provenance": verdict.value.map(|_| if verdict.declared { "declared" } else { "measured" }),
                "reason": verdict.reason,
                "source": criterion.source,
                "state": verdict.outcome.word(),
                "text": criterion.text,
                "value": verdict.value.map(share),
                "weight": criterion.weight,
            })
        })
        .collect();
    let gates: Vec<Value> = rating
        .gates
        .iter()
        .map(|gate| json!({"criterion": gate.id, "reason": gate.reason, "state": gate.word()}))
        .collect();
    let caps: Vec<Value> = rating
        .estimate
        .caps
        .iter()
        .map(|cap| json!({"id": cap.id, "reason": cap.reason, "tier": cap.tier}))
        .collect();
    let estimate = json!({
        "because": rating.estimate.because,
        "by_score": rating.estimate.by_score,
        "caps": caps,
        "decided_by": rating.estimate.decided_by,
        "provisional": rating.estimate.provisional,
        "tier": rating.estimate.tier,
    });
    let rated = rating.not_rated.is_empty();
    let doubted: Vec<Value> = loaded
        .entries
        .iter()
        .filter_map(|(key, entry)| {
            let reason = entry.flaw.as_ref()?;
            Some(json!({
                "metric": &*key.metric,
                "params": crate::load::params_text(&key.params).trim_start_matches(", "),
                "reason": reason,
                "stage": &*key.stage,
                "subject": key.subject.to_string(),
                "value": entry.value.map(rounded),
            }))
        })
        .collect();
    let document = json!({
        "categories": categories,
        "criteria": criteria,
        "gates": gates,
        "inputs": {
            "evidence": loaded.statements.as_ref().map(|found| json!({
                "provider": found.provider,
                "sha256": found.sha256,
                "statements": found.statements.iter().map(|one| json!({
                    "counts": one.flaw.is_none(),
                    "issuer": one.issuer,
                    "item": one.item,
                    "met": one.met,
                    "pointer": one.pointer(),
                    "reason": one.flaw,
                    "valid_to": one.valid_to.map(|day| day.to_string()),
                })).collect::<Vec<_>>(),
            })),
            "methodology": methodology.digests,
            "raw": loaded.files.iter().map(|raw| json!({
                "file": raw.file, "problem": raw.problem, "sha256": raw.sha256,
            })).collect::<Vec<_>>(),
            "records": {"count": loaded.entries.len(), "sum_of_sha256": loaded.digest},
            "run_sha256": loaded.run_digest,
        },
        "methodology": rules.methodology,
        "methodology_date": rules.date,
        "not_believed": doubted,
        "notice": rules.notice,
        "rating": {
            "estimate": estimate,
            "not_rated": rating.not_rated,
            "state": if rated { "rated" } else { "not_rated" },
            "tier": rated.then(|| rating.estimate.tier.clone()),
        },
        "result": bounds(rating.bounds),
        "result_without_claims": {"lower": share(rating.measured_lower)},
        "run": loaded.run,
        "schema": SCHEMA,
        "undecided": methodology.undecided.iter().map(|criterion| json!({
            "category": criterion.category,
            "class": criterion.class.word(),
            "id": criterion.id,
            "reason": criterion.undecided,
            "text": criterion.text,
        })).collect::<Vec<_>>(),
        "sensitivity": sensitivity_json(evaluation),
        "tool": concat!("clustermax ", env!("CARGO_PKG_VERSION")),
    });
    // A Value always serializes.
    let mut text = serde_json::to_string_pretty(&document).unwrap_or_default();
    text.push('\n');
    text
}

/// Criteria of one state, in order.
pub fn with_outcome(evaluation: &Evaluation, outcome: Outcome) -> Vec<(&Criterion, &Verdict)> {
    evaluation.judged().filter(|(_, verdict)| verdict.outcome == outcome).collect()
}
