//! `clustermax accept`: a run against what a contract promises, line by line.
//!
//! A line of the contract names a metric with its params and a bound, or a criterion of the rating. Every record that the
//! line matches must keep the bound, and where the metric is of nodes each node of the run must have one. What was not
//! measured is not met: nobody signs for it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::entries::{Entry, Key};
use crate::judge::Outcome;
use crate::load::{Loaded, number, params_text};
use crate::methodology::{Methodology, Metric};
use crate::record::{Provenance, Scalar, State};
use crate::score::Evaluation;
use crate::{Failure, report, run, score};

/// The schema of `contract.toml`.
pub const CONTRACT: &str = "clustermax-contract/1";
/// The schema of `acceptance.json`.
pub const SCHEMA: &str = "clustermax-acceptance/1";
/// A copy of the contract in the results folder.
pub const FILE: &str = "contract.toml";

/// `clustermax accept`
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Results folder
    pub dir: PathBuf,
    /// The contract [default: contract.toml in the results folder]
    #[arg(long, value_name = "FILE")]
    pub contract: Option<PathBuf>,
    /// Print acceptance.json instead of the summary
    #[arg(long)]
    pub json: bool,
    /// Read the methodology from this folder instead of the built-in one
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
}

/// `contract.toml`
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Contract {
    schema: String,
    /// What is bought.
    pub title: String,
    /// Who buys.
    pub buyer: String,
    /// Who sells.
    pub provider: String,
    /// What is promised.
    #[serde(rename = "line")]
    pub lines: Vec<Line>,
}

/// One promise.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Line {
    /// Unique in the contract.
    pub id: String,
    /// The contract's words.
    pub text: String,
    /// A criterion that must pass.
    #[serde(default)]
    pub criterion: Option<String>,
    /// A metric of docs/metrics.md.
    #[serde(default)]
    pub metric: Option<String>,
    /// Params that a record must have to count.
    #[serde(default)]
    pub params: BTreeMap<String, Scalar>,
    /// The metric's unit, to be stated: a bound without one is no promise.
    #[serde(default)]
    pub unit: Option<String>,
    /// Smallest value that keeps the promise.
    #[serde(default)]
    pub at_least: Option<f64>,
    /// Largest value that keeps it.
    #[serde(default)]
    pub at_most: Option<f64>,
}

/// How a line came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// Every value keeps the bound.
    Met,
    /// One does not.
    NotMet,
    /// Nobody knows.
    NotMeasured,
}

/// One line of the summary.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LineResult {
    id: String,
    text: String,
    answer: Answer,
    /// The bound, in words.
    required: String,
    /// The worst value, with its unit and subject; empty when there is none.
    observed: String,
    /// Values that were looked at.
    values: usize,
    /// Raw file and place of the worst value.
    evidence: Option<String>,
    /// Why it is not met or not measured.
    reason: Option<String>,
}

impl Contract {
    /// Reads and checks a contract.
    ///
    /// # Errors
    /// Names file, line and key, and the mend.
    pub fn read(path: &Path, methodology: &Methodology) -> Result<(Self, String), Failure> {
        let text = run::read_regular(path).map_err(|error| {
            Failure::input(format!("cannot read {}: {error}; give --contract a file", path.display()))
        })?;
        let contract: Self = toml::from_str(&text).map_err(|error| {
            let line = error.span().map_or(1, |span| text[..span.start].lines().count().max(1));
            // What is expected, in words instead of Rust's types.
            let what = error.message().replace("expected f64", "expected a number").replace(
                "data did not match any variant of untagged enum Scalar",
                "a param must be a text, a number, true or false",
            );
            Failure::input(format!("{} line {line}: {what}; mend the contract", path.display()))
        })?;
        contract.check(methodology).map_err(|what| Failure::input(format!("{}: {what}", path.display())))?;
        Ok((contract, format!("{:x}", Sha256::digest(text.as_bytes()))))
    }

    fn check(&self, methodology: &Methodology) -> Result<(), String> {
        if self.schema != CONTRACT {
            return Err(format!(
                "schema is {:?}, this release reads {CONTRACT:?}; write the contract anew",
                self.schema
            ));
        }
        if self.lines.is_empty() {
            return Err("it promises nothing; add a [[line]]".to_owned());
        }
        let mut ids = BTreeSet::new();
        for line in &self.lines {
            let id = &line.id;
            if id.trim().is_empty() || line.text.trim().is_empty() {
                return Err(format!(
                    "line {id:?} has an empty id or text, so nobody knows what is signed; fill it in"
                ));
            }
            if !ids.insert(id) {
                return Err(format!("two lines have the id {id:?}; give each its own"));
            }
            match (&line.criterion, &line.metric) {
                (Some(criterion), None) => {
                    if methodology.criterion(criterion).is_none() {
                        return Err(format!(
                            "line {id}: there is no criterion {criterion:?}; see `clustermax criteria list`"
                        ));
                    }
                    if line.at_least.is_some()
                        || line.at_most.is_some()
                        || line.unit.is_some()
                        || !line.params.is_empty()
                    {
                        return Err(format!(
                            "line {id}: a criterion passes or not; leave out at_least, at_most, unit and params"
                        ));
                    }
                }
                (None, Some(name)) => {
                    let Some(metric) = methodology.metrics.get(name.as_str()) else {
                        return Err(format!("line {id}: there is no metric {name:?}; see docs/metrics.md"));
                    };
                    let unit = line.unit.as_deref().unwrap_or_default();
                    if unit != metric.unit {
                        return Err(format!(
                            "line {id}: {name} is in {:?}, the line says {unit:?}; set unit",
                            metric.unit
                        ));
                    }
                    let known: Vec<&str> = metric.params.split(',').map(str::trim).collect();
                    if let Some(param) = line.params.keys().find(|param| !known.contains(&param.as_str())) {
                        return Err(format!(
                            "line {id}: {name} has no param {param:?}; it has {}",
                            metric.params
                        ));
                    }
                    let finite = |value: &Scalar| value.as_f64().is_none_or(f64::is_finite);
                    if let Some((param, value)) = line.params.iter().find(|(_, value)| !finite(value)) {
                        return Err(format!("line {id}: param {param} is {value}, which no record has"));
                    }
                    let bounds = [line.at_least, line.at_most];
                    if bounds.iter().all(Option::is_none) {
                        return Err(format!("line {id}: no bound; set at_least or at_most"));
                    }
                    if bounds.iter().flatten().any(|bound| !bound.is_finite()) {
                        return Err(format!("line {id}: a bound must be a finite number"));
                    }
                    if let (Some(least), Some(most)) = (line.at_least, line.at_most)
                        && least > most
                    {
                        return Err(format!("line {id}: at_least is above at_most; no value can keep both"));
                    }
                    if let Some(what) = line.beyond(metric) {
                        return Err(format!(
                            "line {id}: {what}: {name} lies between {} and {}",
                            metric.min, metric.max
                        ));
                    }
                }
                _ => return Err(format!("line {id}: set either criterion or metric")),
            }
        }
        Ok(())
    }
}

impl Line {
    fn required(&self) -> String {
        if let Some(criterion) = &self.criterion {
            return format!("{criterion} passes");
        }
        let unit = self
            .unit
            .as_deref()
            .filter(|unit| !unit.is_empty())
            .map(|unit| format!(" {unit}"))
            .unwrap_or_default();
        let bounds = [(self.at_least, "at least"), (self.at_most, "at most")];
        let words: Vec<String> =
            bounds.iter().filter_map(|(bound, word)| Some(format!("{word} {}{unit}", (*bound)?))).collect();
        words.join(" and ")
    }

    /// A bound outside of what the metric can be: kept by no value, or by every one.
    fn beyond(&self, metric: &Metric) -> Option<String> {
        let least = self.at_least.and_then(|least| match least {
            _ if least > metric.max => Some(format!("no value can keep at_least {least}")),
            _ if least <= metric.min => Some(format!("at_least {least} promises nothing")),
            _ => None,
        });
        let most = self.at_most.and_then(|most| match most {
            _ if most < metric.min => Some(format!("no value can keep at_most {most}")),
            _ if most >= metric.max => Some(format!("at_most {most} promises nothing")),
            _ => None,
        });
        least.or(most)
    }

    /// A value for people, with all of its digits where fewer would be on the other side of the bound.
    fn shown(&self, value: f64) -> String {
        let short = number(value);
        let same = |read: f64| (self.excess(read) > 0.0) == (self.excess(value) > 0.0);
        if short.parse().is_ok_and(same) { short } else { value.to_string() }
    }

    /// How far a value is beyond the bound; negative: it is kept, with so much to spare.
    fn excess(&self, value: f64) -> f64 {
        let below = self.at_least.map_or(f64::NEG_INFINITY, |least| least - value);
        let above = self.at_most.map_or(f64::NEG_INFINITY, |most| value - most);
        below.max(above)
    }

    fn matches(&self, key: &Key) -> bool {
        // What was made slow on purpose (NVLink off) is no promise broken; what came out wrong there is wrong.
        let hampered = self.unit.as_deref().is_some_and(|unit| !unit.is_empty())
            && key.params.contains_key("variant")
            && !self.params.contains_key("variant");
        self.metric.as_deref() == Some(&*key.metric)
            && !hampered
            && self.params.iter().all(|(name, value)| {
                key.params
                    .get(name)
                    .is_some_and(|found| found.clone().canonical() == value.clone().canonical())
            })
    }

    fn result(&self, answer: Answer, observed: String, values: usize, reason: Option<String>) -> LineResult {
        LineResult {
            id: self.id.clone(),
            text: self.text.clone(),
            answer,
            required: self.required(),
            observed,
            values,
            evidence: None,
            reason,
        }
    }

    fn judge(&self, evaluation: &Evaluation) -> LineResult {
        match &self.criterion {
            Some(criterion) => self.judge_criterion(evaluation, criterion),
            None => self.judge_metric(evaluation),
        }
    }

    fn judge_criterion(&self, evaluation: &Evaluation, id: &str) -> LineResult {
        let Some(verdict) = evaluation.verdicts.iter().find(|verdict| verdict.id == id) else {
            let why = "this methodology does not decide it yet".to_owned();
            return self.result(Answer::NotMeasured, String::new(), 0, Some(why));
        };
        let reason = (!verdict.reason.is_empty()).then(|| verdict.reason.clone());
        let (answer, reason) = match verdict.outcome {
            // A claim is what the provider says of itself.
            Outcome::Pass if verdict.declared => {
                (Answer::NotMeasured, Some("it is declared, not measured".to_owned()))
            }
            Outcome::Pass => (Answer::Met, reason),
            Outcome::Fail => (Answer::NotMet, reason),
            _ => (Answer::NotMeasured, reason),
        };
        self.result(answer, verdict.outcome.word().to_owned(), verdict.observed.len(), reason)
    }

    fn judge_metric(&self, evaluation: &Evaluation) -> LineResult {
        let loaded = &evaluation.loaded;
        let found: Vec<(&Key, &Entry)> = loaded.entries.iter().filter(|(key, _)| self.matches(key)).collect();
        let usable = |entry: &Entry| {
            entry.state == State::Measured
                && entry.flaw.is_none()
                // A sum or a ratio of measured figures is as good as they are.
                && entry.provenance != Provenance::Declared
        };
        let doubt = found.iter().find(|(_, entry)| entry.state != State::NotApplicable && !usable(entry));
        let values: Vec<(&Key, &Entry, f64)> = found
            .iter()
            .filter(|(_, entry)| usable(entry))
            .filter_map(|(key, entry)| Some((*key, *entry, entry.value?)))
            .collect();
        let worst = values.iter().max_by(|a, b| self.excess(a.2).total_cmp(&self.excess(b.2)));
        let unit = self.unit.as_deref().unwrap_or_default();
        let observed = worst.map(|(key, _, value)| {
            let params = params_text(&key.params);
            format!("{} {unit} ({}{params})", self.shown(*value), key.subject).replace("  ", " ")
        });
        let of_nodes = evaluation.methodology.metrics.get(self.metric.as_deref().unwrap_or_default());
        let of_nodes = of_nodes.is_some_and(|metric| metric.subject.starts_with("node"));
        let seen: BTreeSet<&str> =
            values.iter().filter_map(|(key, ..)| key.subject.node.as_deref()).collect();
        let missing: Vec<&str> =
            loaded.nodes().into_iter().filter(|node| of_nodes && !seen.contains(node)).collect();
        let unseen = unseen_gpus(loaded, &values);
        let lost = self.metric.as_deref().and_then(|metric| loaded.lost.get(metric));
        let (answer, reason) = match (worst, doubt) {
            (Some((.., value)), _) if self.excess(*value) > 0.0 => (Answer::NotMet, None),
            (None, None) => (Answer::NotMeasured, Some("no record matches the line".to_owned())),
            (_, Some((key, entry))) => {
                let why = entry.flaw.as_deref().or(entry.detail.as_deref()).unwrap_or("it is unknown");
                (Answer::NotMeasured, Some(format!("{}{}: {why}", key.subject, params_text(&key.params))))
            }
            (Some(_), None) if lost.is_some() => (Answer::NotMeasured, lost.cloned()),
            (Some(_), None) if !missing.is_empty() => {
                (Answer::NotMeasured, Some(format!("not measured on {}", missing.join(", "))))
            }
            (Some(_), None) if !unseen.is_empty() => {
                (Answer::NotMeasured, Some(format!("not measured on {}", unseen.join(", "))))
            }
            (Some(_), None) => (Answer::Met, None),
        };
        let mut result = self.result(answer, observed.unwrap_or_default(), values.len(), reason);
        result.evidence = worst.and_then(|(_, entry, _)| {
            let (file, pointer) = entry.evidence.as_ref()?;
            let file = &loaded.files[*file].file;
            Some(pointer.as_ref().map_or_else(|| file.clone(), |pointer| format!("{file} {pointer}")))
        });
        result
    }
}

/// GPUs of the run without a value, where the values are of single GPUs.
fn unseen_gpus(loaded: &Loaded, values: &[(&Key, &Entry, f64)]) -> Vec<String> {
    let one = |key: &Key| Some((key.subject.node.clone()?, key.subject.gpu?));
    let seen: BTreeSet<(String, u32)> = values.iter().filter_map(|(key, ..)| one(key)).collect();
    if seen.is_empty() {
        return Vec::new();
    }
    let known = loaded.entries.iter().filter(|(key, _)| key.metric == "gpu_info");
    let known: BTreeSet<(String, u32)> = known.filter_map(|(key, _)| one(key)).collect();
    known.difference(&seen).map(|(node, gpu)| format!("{node} g{gpu}")).collect()
}

/// Runs the command: writes `acceptance.json` and `acceptance.txt` into the results folder. Exit code 0: every line is met;
/// 1: one is not.
///
/// # Errors
/// A contract or results folder of no use, files that cannot be written (2).
pub fn run(args: &Args) -> Result<u8, Failure> {
    let methodology = score::methodology(args.data.as_deref())?;
    let path = args.contract.clone().unwrap_or_else(|| args.dir.join(FILE));
    let (contract, sha256) = Contract::read(&path, &methodology)?;
    let evaluation = Evaluation::of(&args.dir, args.data.as_deref(), None)?;
    let results: Vec<LineResult> = contract.lines.iter().map(|line| line.judge(&evaluation)).collect();
    let loaded = &evaluation.loaded;
    // What was measured for a fraction of the time is no evidence that a line is met.
    let accepted = loaded.run.shrink.is_none() && results.iter().all(|result| result.answer == Answer::Met);
    // What was simulated proves that the test works, and nothing about a cluster.
    let simulated = loaded.run.simulated
        || loaded.entries.iter().any(|(_, entry)| entry.provenance == Provenance::Synthetic);
    let document = serde_json::json!({
        "schema": SCHEMA,
        "accepted": accepted,
        "simulated": simulated,
        "contract": {"title": contract.title, "buyer": contract.buyer, "provider": contract.provider, "sha256": sha256},
        "lines": results,
        "methodology": evaluation.methodology.rules.methodology,
        "records_sum_of_sha256": loaded.digest,
        "run": loaded.run,
        "tool": concat!("clustermax ", env!("CARGO_PKG_VERSION")),
    });
    let mut json = serde_json::to_string_pretty(&document).map_err(Failure::input)?;
    json.push('\n');
    let text = summary(&contract, &sha256, &results, &evaluation, accepted, simulated);
    score::write_file(&args.dir, "acceptance.json", &json)?;
    score::write_file(&args.dir, "acceptance.txt", &text)?;
    report::print(if args.json { &json } else { &text })?;
    Ok(u8::from(!accepted))
}

fn summary(
    contract: &Contract,
    sha256: &str,
    results: &[LineResult],
    evaluation: &Evaluation,
    accepted: bool,
    simulated: bool,
) -> String {
    let run = &evaluation.loaded.run;
    let count = |answer| results.iter().filter(|result| result.answer == answer).count();
    let mut text = format!(
        "ACCEPTANCE TEST: {}\n\n{}\nbuyer {}, provider {}\nrun {} on cluster {}, nodes {}, started {}, profile {}\ncontract sha256 {sha256}\n\
         records sum of sha256 {}\n\n{} of {} lines met, {} not met, {} not measured\n",
        if accepted { "PASSED" } else { "NOT PASSED" },
        report::plain(&contract.title),
        report::plain(&contract.buyer),
        report::plain(&contract.provider),
        report::plain(&run.run),
        report::plain(&run.cluster),
        report::plain(&run.nodes.join(",")),
        report::plain(&run.started),
        report::plain(&run.profile_text()),
        evaluation.loaded.digest,
        count(Answer::Met),
        results.len(),
        count(Answer::NotMet),
        count(Answer::NotMeasured)
    );
    if run.shrink.is_some() {
        text.push_str(
            "SHRUNK: no line is met for the time or size that the profile asks, so nothing is accepted\n",
        );
    }
    if simulated {
        text.push_str(
            "SIMULATED or synthetic: this proves that the test works, and nothing about a cluster\n",
        );
    }
    for result in results {
        let word = match result.answer {
            Answer::Met => "met         ",
            Answer::NotMet => "NOT MET     ",
            Answer::NotMeasured => "NOT MEASURED",
        };
        text.push_str(&format!("\n{word}  {}  {}\n", report::plain(&result.id), report::plain(&result.text)));
        text.push_str(&format!("              required {}\n", report::plain(&result.required)));
        if !result.observed.is_empty() {
            let of = if result.values > 1 { format!(", worst of {}", result.values) } else { String::new() };
            text.push_str(&format!("              observed {}{of}\n", report::plain(&result.observed)));
        }
        if let Some(evidence) = &result.evidence {
            text.push_str(&format!("              evidence {}\n", report::plain(evidence)));
        }
        if let Some(reason) = &result.reason {
            text.push_str(&format!("              because  {}\n", report::plain(reason)));
        }
    }
    text.push_str("\nbuyer     ______________________________  date __________\nprovider  ______________________________  date __________\n");
    text
}

/// Copies a contract into the results folder, so that the run carries what it was judged by.
///
/// # Errors
/// A contract of no use, or a folder that cannot be written.
pub fn keep(contract: &Path, dir: &Path) -> Result<(), Failure> {
    let methodology = score::methodology(None)?;
    Contract::read(contract, &methodology)?;
    let bytes = fs::read(contract)
        .map_err(|error| Failure::input(format!("cannot read {}: {error}", contract.display())))?;
    let to = dir.join(FILE);
    run::write_atomic(&to, &bytes).map_err(|error| {
        Failure::input(format!("cannot write {}: {error}; make the folder writable", to.display()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(lines: &str) -> String {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("c.toml");
        fs::write(
            &path,
            format!("schema = {CONTRACT:?}\ntitle = \"t\"\nbuyer = \"b\"\nprovider = \"p\"\n{lines}"),
        )
        .unwrap();
        let methodology = Methodology::built_in().unwrap();
        let message = Contract::read(&path, &methodology).map(|_| ()).unwrap_err().message;
        assert!(message.contains("c.toml") && message.lines().count() == 1, "{message}");
        message
    }

    #[test]
    fn a_bad_contract_is_refused_by_its_line() {
        let head = "[[line]]\nid = \"a\"\ntext = \"t\"\n";
        let promise = |bound: &str| format!("{head}metric = \"gemm\"\nunit = \"TFLOP/s\"\n{bound}\n");
        for (lines, expected) in [
            ("line = []", "promises nothing"),
            ("[[line]]\nid = \"a\"\n", "missing field `text`"),
            (head, "set either criterion or metric"),
            ("[[line]]\nid = \"a\"\ntext = \"t\"\ncriterion = \"xx-1\"\n", "no criterion \"xx-1\""),
            ("[[line]]\nid = \"a\"\ntext = \"t\"\ncriterion = \"rel-25\"\nat_least = 1\n", "passes or not"),
            ("[[line]]\nid = \"a\"\ntext = \"t\"\nmetric = \"busbww\"\n", "no metric \"busbww\""),
            (
                "[[line]]\nid = \"a\"\ntext = \"t\"\nmetric = \"busbw\"\nat_least = 1.0\n",
                "is in \"GB/s\", the line says \"\"",
            ),
            ("[[line]]\nid = \"a\"\ntext = \"t\"\nmetric = \"busbw\"\nunit = \"GB/s\"\n", "no bound"),
            (
                "[[line]]\nid = \"a\"\ntext = \"t\"\nmetric = \"busbw\"\nunit = \"GB/s\"\nat_least = nan\n",
                "finite",
            ),
            (
                "[[line]]\nid = \"a\"\ntext = \"t\"\nmetric = \"busbw\"\nunit = \"GB/s\"\nat_least = 2\nat_most = 1\n",
                "above at_most",
            ),
            (
                "[[line]]\nid = \"a\"\ntext = \"t\"\nmetric = \"busbw\"\nunit = \"GB/s\"\nat_least = 2\nparams = { seize = 1 }\n",
                "no param \"seize\"",
            ),
            ("[[line]]\nid = \"a\"\ntext = \"t\"\nat_leest = 1\n", "at_leest"),
            (
                &promise("at_least = 1e18"),
                "no value can keep at_least 1000000000000000000: gemm lies between 0 and 20000",
            ),
            (&promise("at_least = -5"), "at_least -5 promises nothing"),
            (&promise("at_least = 0"), "at_least 0 promises nothing"),
            (&promise("at_most = -1"), "no value can keep at_most -1"),
            (&promise("at_least = 5\nat_most = 20000"), "at_most 20000 promises nothing"),
            (&promise("at_least = true"), "expected a number"),
            (&promise("at_least = 1\nparams = { m = nan }"), "param m is NaN"),
            (&promise("at_least = 1\nparams = { m = 1979-05-27 }"), "a param must be a text"),
            ("[[line]]\nid = \"a\"\ntext = \" \"\ncriterion = \"rel-25\"\n", "empty id or text"),
        ] {
            let message = refusal(lines);
            assert!(message.contains(expected), "{expected}: {message}");
        }
        let twice = "[[line]]\nid = \"a\"\ntext = \"t\"\ncriterion = \"rel-25\"\n".repeat(2);
        assert!(refusal(&twice).contains("two lines have the id"));
    }

    #[test]
    fn the_example_of_the_documentation_is_a_contract() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/contract-example.toml");
        let (contract, _) = Contract::read(&path, &Methodology::built_in().unwrap()).unwrap();
        assert!(contract.lines.len() >= 8);
    }
}
