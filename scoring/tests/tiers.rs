//! Whole runs and the tier that the rules give each, with the cap named; and what must never raise a rating.
//!
//! The runs are made from the methodology's own rows (`common/perfect.rs`), so they follow the tables. What must never raise a
//! rating is in `monotone.rs`.

#![allow(clippy::unwrap_used, reason = "in a test a failed step is the failure")]

mod common;
#[path = "common/perfect.rs"]
mod perfect;

use std::fs;
use std::process::Command;
use std::sync::OnceLock;

use perfect::{H100, Machine, Row};
use scoring::judge::{Evidence, Outcome};
use scoring::load::load_with;
use scoring::methodology::{CapWhen, Methodology};
use scoring::rating::{Rating, place, rate};
use scoring::score::Evaluation;
use tempfile::TempDir;

const NVL72: Machine = Machine { model: "NVIDIA GB200", nodes: 18, gpus: 4, ..H100 };
const AMD: Machine = Machine { model: "AMD Instinct MI300X", na: Some("not_nvidia"), ..H100 };

/// The built-in methodology without the cap on its own extent, so that every tier can be reached.
fn whole() -> &'static Methodology {
    static ONCE: OnceLock<Methodology> = OnceLock::new();
    ONCE.get_or_init(|| {
        let mut methodology = Methodology::built_in().unwrap();
        methodology.rules.cap.retain(|cap| cap.when != CapWhen::CriteriaBelow);
        methodology
    })
}

struct Run {
    folder: TempDir,
}

impl Run {
    fn new(machine: &Machine, rows: &[Row], evidence: Option<&str>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        perfect::write(folder.path(), machine, rows);
        if let Some(evidence) = evidence {
            fs::write(folder.path().join("evidence.toml"), evidence).unwrap();
        }
        Self { folder }
    }

    fn rating(&self, methodology: &Methodology) -> Rating {
        let loaded = load_with(self.folder.path(), methodology, None).unwrap();
        let evidence = Evidence::new(&loaded, methodology);
        let verdicts: Vec<_> = methodology.criteria.iter().map(|one| evidence.judge(one)).collect();
        rate(methodology, &loaded, &verdicts)
    }
}

fn rated(machine: &Machine, rows: &[Row], evidence: Option<&str>) -> Rating {
    Run::new(machine, rows, evidence).rating(whole())
}

fn tier(rating: &Rating) -> (&str, &str) {
    (&rating.estimate.tier, &rating.estimate.decided_by)
}

fn statements() -> String {
    common::evidence(whole(), &[])
}

#[test]
fn everything_met_is_platinum() {
    let rows = perfect::rows(whole(), &H100);
    let rating = rated(&H100, &rows, Some(&statements()));
    assert_eq!(tier(&rating), ("platinum", "lower_bound"), "{:?}", rating.estimate);
    assert!(rating.is_rated() && !rating.estimate.provisional);
    assert!(rating.gates.iter().all(|gate| gate.outcome == Outcome::Pass), "{:?}", rating.gates);
}

#[test]
fn a_methodology_that_leaves_much_out_caps_even_that_at_gold() {
    let built_in = Methodology::built_in().unwrap();
    let run = Run::new(&H100, &perfect::rows(&built_in, &H100), Some(&statements()));
    let rating = run.rating(&built_in);
    let (decided, listed) = built_in.decided();
    let wanted =
        if decided * 10 < listed * 9 { ("gold", "criteria-90") } else { ("platinum", "lower_bound") };
    assert_eq!(tier(&rating), wanted, "{decided} of {listed}: {:?}", rating.estimate);
}

#[test]
fn each_critical_failure_alone_is_underperforming_and_named() {
    let methodology = whole();
    let rows = perfect::rows(methodology, &H100);
    for gate in methodology.criteria.iter().filter(|one| one.gate.is_some()) {
        let mut broken = rows.clone();
        for row in broken.iter_mut().filter(|row| row.criteria.contains(&gate.id)) {
            // The other value of a flag, far from any limit.
            row.value = row.value.clone().map(|value| if value == 0.0 { 1.0 } else { 0.0 });
        }
        let stated = statements().replace(
            &format!("item = \"{}\"\nmet = true", gate.id),
            &format!("item = \"{}\"\nmet = false", gate.id),
        );
        // A model that proves nothing leaves the generation of the GPUs to the statement.
        let rating = rated(&H100, &broken, Some(&stated));
        assert_eq!(tier(&rating), ("underperforming", "gate-failed"), "{}: {:?}", gate.id, rating.gates);
        assert!(rating.estimate.because.contains(&gate.id), "{}", rating.estimate.because);
    }
}

#[test]
fn each_gate_that_nobody_assessed_leaves_bronze_provisionally_and_is_named() {
    let methodology = whole();
    let rows = perfect::rows(methodology, &H100);
    for gate in methodology.criteria.iter().filter(|one| one.gate.is_some()) {
        let fewer: Vec<Row> = rows.iter().filter(|row| !row.criteria.contains(&gate.id)).cloned().collect();
        let stated = common::evidence(methodology, &[&gate.id]);
        let rating = rated(&H100, &fewer, Some(&stated));
        assert_eq!(tier(&rating), ("bronze", "gate-unknown"), "{}: {:?}", gate.id, rating.estimate);
        assert!(rating.estimate.provisional && rating.estimate.because.contains(&gate.id));
    }
}

#[test]
fn half_the_evidence_missing_is_capped_by_coverage() {
    let methodology = whole();
    let gates: Vec<&str> =
        methodology.criteria.iter().filter(|one| one.gate.is_some()).map(|one| one.id.as_str()).collect();
    // Of each category every second criterion that is no gate loses all that speaks for it.
    let mut left_out: Vec<&str> = Vec::new();
    for category in &methodology.rules.category {
        let free = methodology
            .criteria
            .iter()
            .filter(|one| one.category == category.id && !gates.contains(&one.id.as_str()));
        left_out.extend(free.step_by(2).map(|one| one.id.as_str()));
    }
    let rows: Vec<Row> = perfect::rows(methodology, &H100)
        .into_iter()
        .filter(|row| {
            row.criteria.is_empty() || row.criteria.iter().any(|id| !left_out.contains(&id.as_str()))
        })
        .collect();
    let rating = rated(&H100, &rows, Some(&common::evidence(methodology, &left_out)));
    let coverage = rating.bounds.coverage;
    assert!((400_000..700_000).contains(&coverage), "{coverage}");
    // What was seen is flawless: score and upper bound are whole, the tier is not.
    assert_eq!((rating.bounds.score, rating.bounds.upper), (Some(1_000_000), 1_000_000));
    let reached = methodology.rules.tier.iter().find(|one| f64::from(rating.bounds.lower) / 1e6 >= one.cut);
    match (coverage < 500_000, reached) {
        (true, _) => assert_eq!(tier(&rating), ("unavailable", "coverage-50")),
        (false, Some(tier_reached)) if tier_reached.id == "bronze" || tier_reached.id == "ribbon" => {
            assert_eq!(tier(&rating), (tier_reached.id.as_str(), "lower_bound"));
        }
        (false, _) => assert_eq!(tier(&rating), ("silver", "coverage-70")),
    }
    assert!(rating.estimate.caps.iter().any(|cap| cap.id == "coverage-70"), "{:?}", rating.estimate.caps);
}

#[test]
fn a_cluster_that_nobody_could_enter_is_unavailable_not_underperforming() {
    let rows: Vec<Row> = perfect::rows(whole(), &H100)
        .into_iter()
        .map(|row| Row { value: Err(("unavailable", "no access was given".to_owned())), ..row })
        .collect();
    let rating = rated(&H100, &rows, None);
    assert_eq!(tier(&rating).0, "unavailable", "{:?}", rating.estimate);
    assert!(!rating.is_rated());
    assert_eq!(rating.bounds.coverage, 0);
    // Statements alone do not lift it above Silver, however good: nothing of it was seen.
    let stated = rated(&H100, &rows, Some(&statements()));
    assert!(place(&whole().rules.tier, &stated.estimate.tier) >= 2, "{:?}", stated.estimate);
    assert!(stated.estimate.caps.iter().any(|cap| cap.id == "measured-60"), "{:?}", stated.estimate.caps);
}

/// Hardware for which some references are missing: what cannot be compared is unknown and named, and everything else counts.
#[test]
fn nvl72_and_amd_end_where_their_references_leave_them() {
    for machine in [&NVL72, &AMD] {
        let run = Run::new(machine, &perfect::rows(whole(), machine), Some(&statements()));
        let rating = run.rating(whole());
        let estimate = &rating.estimate;
        assert!(rating.is_rated(), "{}: {estimate:?}", machine.model);
        let wanted = if rating.bounds.coverage < 900_000 {
            ("gold", "coverage-90")
        } else {
            ("platinum", "lower_bound")
        };
        assert_eq!(tier(&rating), wanted, "{}: {estimate:?} {:?}", machine.model, rating.bounds);
        let evaluation = Evaluation::of(run.folder.path(), None, None).unwrap();
        let mut not_applicable = 0;
        for (criterion, verdict) in evaluation.judged() {
            match verdict.outcome {
                Outcome::Pass => {}
                Outcome::NotApplicable => {
                    not_applicable += 1;
                    assert!(verdict.reason.contains("not_nvidia"), "{}: {verdict:?}", criterion.id);
                }
                Outcome::Unknown => {
                    assert!(
                        verdict.reason.contains(&format!("no reference value for {}", machine.model)),
                        "{}: {verdict:?}",
                        criterion.id
                    );
                }
                Outcome::Fail | Outcome::Unavailable => panic!("{}: {verdict:?}", criterion.id),
            }
        }
        assert_eq!(not_applicable > 0, machine.na.is_some());
    }
}

#[test]
fn a_cpu_only_run_is_measured_and_not_rated() {
    let machine = Machine { model: "", gpus: 0, hardware: "cpu", ..H100 };
    let run = Run::new(&machine, &perfect::rows(whole(), &machine), Some(&statements()));
    let rating = run.rating(whole());
    assert!(!rating.is_rated());
    assert!(rating.not_rated[0].contains("CPU-only"), "{:?}", rating.not_rated);
    let failed: usize = rating.categories.iter().map(|category| category.counts[1]).sum();
    assert_eq!(failed, 0, "nothing of it was seen to fail");
    let output = Command::new(env!("CARGO_BIN_EXE_clustermax"))
        .args(["score", run.folder.path().to_str().unwrap()])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8(output.stdout).unwrap().starts_with("ClusterMAX for Slurm: NOT RATED"));
}

#[test]
fn a_record_that_a_manifest_names_and_that_is_gone_is_an_error() {
    let rows = perfect::rows(whole(), &H100);
    let run = Run::new(&H100, &rows, None);
    let path = run.folder.path().join("records.jsonl");
    let text = fs::read_to_string(&path).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    for left_out in (0..lines.len()).step_by(7) {
        let mut fewer = lines.clone();
        fewer.remove(left_out);
        fs::write(&path, format!("{}\n", fewer.join("\n"))).unwrap();
        let error = load_with(run.folder.path(), whole(), None).unwrap_err().to_string();
        let row = &rows[left_out];
        let named = format!("stages/{}.json names ", row.stage);
        assert!(error.contains(&named) && error.contains(&row.metric), "{error}");
        assert!(error.contains("clustermax collect"), "{error}");
    }
}
