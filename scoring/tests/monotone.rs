//! What must never raise a rating, and what must never lower one, over runs that are far from perfect.
//!
//! No run here has a manifest: the rules alone have to notice what is missing. Every metric has several records for most
//! subjects, some of another stage, as a run with imported output has.

#![allow(clippy::unwrap_used, reason = "in a test a failed step is the failure")]

mod common;
#[path = "common/perfect.rs"]
mod perfect;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::OnceLock;

use perfect::{H100, Machine, Row};
use proptest::prelude::*;
use proptest::sample::Index;
use scoring::judge::{Evidence, Outcome, Verdict};
use scoring::load::{Loaded, load_with};
use scoring::methodology::{CapWhen, Measure, Methodology, Rule};
use scoring::rating::{Rating, place, rate};
use serde_json::json;
use tempfile::TempDir;

const MACHINE: Machine = Machine { nodes: 3, gpus: 1, ..H100 };

/// The built-in methodology without the cap on its own extent, so that every tier can be reached.
fn whole() -> &'static Methodology {
    static ONCE: OnceLock<Methodology> = OnceLock::new();
    ONCE.get_or_init(|| {
        let mut methodology = Methodology::built_in().unwrap();
        methodology.rules.cap.retain(|cap| cap.when != CapWhen::CriteriaBelow);
        methodology
    })
}

/// A perfect run in which most records have siblings: of another tool, another rank, or another stage.
fn crowded() -> &'static [Row] {
    static ONCE: OnceLock<Vec<Row>> = OnceLock::new();
    ONCE.get_or_init(|| {
        let mut rows = perfect::rows(whole(), &MACHINE);
        let more: Vec<Row> = rows
            .iter()
            .enumerate()
            .filter(|(index, _)| index % 3 != 0)
            .map(|(index, row)| {
                let mut row = row.clone();
                if index % 3 == 1 || row.metric.starts_with("gpu_") {
                    row.stage = "import-cmax".to_owned();
                } else {
                    row.params.insert("sibling".to_owned(), json!(1));
                }
                row
            })
            .collect();
        rows.extend(more);
        rows
    })
}

/// Which statements there are.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Stated {
    All,
    None,
}

fn statements(stated: Stated) -> &'static str {
    static ONCE: OnceLock<[String; 2]> = OnceLock::new();
    let [all, none] = ONCE.get_or_init(|| [common::evidence(whole(), &[]), common::HEAD.to_owned()]);
    if stated == Stated::All { all } else { none }
}

/// A results folder whose lines can be taken away and changed.
struct Run {
    folder: TempDir,
    lines: Vec<String>,
}

/// What became of some lines.
struct Result {
    rating: Rating,
    verdicts: Vec<Verdict>,
}

impl Run {
    fn of(rows: &[Row], stated: Stated) -> Self {
        let folder = tempfile::tempdir().unwrap();
        perfect::write(folder.path(), &MACHINE, rows);
        fs::remove_dir_all(folder.path().join("stages")).unwrap();
        if stated == Stated::All {
            fs::write(folder.path().join("evidence.toml"), statements(stated)).unwrap();
        }
        let text = fs::read_to_string(folder.path().join("records.jsonl")).unwrap();
        Self { folder, lines: text.lines().map(str::to_owned).collect() }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    /// The lines that are left, in this order. A run without any is no run.
    fn with<'a>(&self, lines: impl Iterator<Item = &'a String>) -> Option<Result> {
        let text: String = lines.flat_map(|line| [line.as_str(), "\n"]).collect();
        if text.is_empty() {
            return None;
        }
        fs::write(self.path().join("records.jsonl"), text).unwrap();
        Some(judged(&load_with(self.path(), whole(), None).unwrap()))
    }

    fn result(&self) -> Result {
        self.with(self.lines.iter()).unwrap()
    }
}

fn judged(loaded: &Loaded) -> Result {
    let evidence = Evidence::new(loaded, whole());
    let verdicts: Vec<_> = whole().criteria.iter().map(|one| evidence.judge(one)).collect();
    Result { rating: rate(whole(), loaded, &verdicts), verdicts }
}

fn result(rows: &[Row], stated: Stated) -> Result {
    Run::of(rows, stated).result()
}

/// How a record is not perfect.
#[derive(Debug, Clone, Copy)]
enum Damage {
    Bad,
    Unknown,
    Unavailable,
    NothingThere,
    NotApplicable,
}

fn damage() -> impl Strategy<Value = Damage> {
    prop_oneof![
        4 => Just(Damage::Bad),
        1 => Just(Damage::Unknown),
        1 => Just(Damage::Unavailable),
        1 => Just(Damage::NothingThere),
        1 => Just(Damage::NotApplicable),
    ]
}

/// A run that is not perfect: of some records, of all records of a metric, of all records of a stage.
fn damages() -> impl Strategy<Value = Vec<(Index, u8, Damage)>> {
    proptest::collection::vec((any::<Index>(), 0_u8..12, damage()), 0..10)
}

fn damaged(choices: &[(Index, u8, Damage)]) -> Vec<Row> {
    let mut rows = crowded().to_vec();
    for (at, reach, how) in choices {
        let chosen = rows[at.index(rows.len())].clone();
        for (index, row) in rows.iter_mut().enumerate() {
            let hit = match reach {
                0 => row.stage == chosen.stage && row.metric != "gpu_count" && row.metric != "gpu_info",
                1..=4 => row.metric == chosen.metric,
                _ => index == at.index(crowded().len()),
            };
            if hit {
                row.value = spoilt(row, *how);
            }
        }
    }
    rows
}

fn spoilt(row: &Row, how: Damage) -> std::result::Result<f64, (&'static str, String)> {
    match how {
        Damage::Bad => Ok(extremes(row).map_or(0.0, |(worst, _)| worst)),
        Damage::Unknown => Err(("unknown", "it hung".to_owned())),
        Damage::Unavailable => Err(("unavailable", "no permission".to_owned())),
        Damage::NothingThere => Err(("unavailable", "not_installed: none is here".to_owned())),
        Damage::NotApplicable => {
            let reason = row
                .criteria
                .iter()
                .filter_map(|id| whole().criterion(id)?.na.first())
                .next()
                .map_or("single_node", String::as_str);
            Err(("not_applicable", format!("{reason}: by design")))
        }
    }
}

/// Measures that a record counts for.
fn measures(row: &Row) -> impl Iterator<Item = &'static Measure> {
    let (metric, ids) = (row.metric.clone(), row.criteria.clone());
    whole()
        .criteria
        .iter()
        .filter(move |one| ids.contains(&one.id))
        .flat_map(|one| &one.measures)
        .filter(move |measure| measure.metric == metric)
}

/// Whether more is better; nothing where only the comparison with others counts, or nothing does.
fn rising(row: &Row) -> Option<bool> {
    let mut found = None;
    for measure in measures(row) {
        let one = match &measure.rule {
            Rule::Flag { pass } => *pass == 1,
            Rule::AtMost { .. } => false,
            Rule::AtLeast { .. } | Rule::Reference => true,
            Rule::Curve { points } => points[0][1] < points[points.len() - 1][1],
            Rule::Spread { .. } | Rule::AnyText { .. } => return None,
        };
        assert_eq!(*found.get_or_insert(one), one, "{} is good both ways", row.metric);
    }
    found
}

/// The worst and the best value that can be believed.
fn extremes(row: &Row) -> Option<(f64, f64)> {
    let up = rising(row)?;
    let metric = &whole().metrics[&row.metric];
    let mut top = metric.max;
    for measure in measures(row) {
        if measure.rule == Rule::Reference {
            let rows = whole()
                .references
                .iter()
                .filter(|one| one.metric == row.metric && one.gpus.iter().any(|gpu| gpu == MACHINE.model));
            top = rows.map(|one| one.ceiling).fold(top, f64::min);
        }
    }
    let ceilings = whole()
        .ceilings
        .iter()
        .filter(|one| one.metric == row.metric && one.gpus.iter().any(|gpu| gpu == MACHINE.model));
    top = ceilings.map(|one| one.ceiling).fold(top, f64::min);
    Some(if up { (metric.min, top) } else { (top, metric.min) })
}

/// Two values of a record, the worse one first: ends, limits, points of curves and what lies between.
fn two(row: &Row, a: (u8, f64), b: (u8, f64)) -> Option<(f64, f64)> {
    let up = rising(row)?;
    let (worst, best) = extremes(row)?;
    let mut marks = vec![worst, best];
    if let Ok(value) = &row.value {
        marks.push(*value);
    }
    for measure in measures(row) {
        match &measure.rule {
            Rule::AtMost { limit } | Rule::AtLeast { limit } => {
                marks.extend([*limit, *limit * 1.01, *limit * 0.99])
            }
            Rule::Curve { points } => marks.extend(points.iter().map(|point| point[0])),
            Rule::Flag { .. } => marks.extend([0.0, 1.0]),
            _ => {}
        }
    }
    let (low, high) = (worst.min(best), worst.max(best));
    let pick = |(at, share): (u8, f64)| {
        let mark = marks[usize::from(at) % marks.len()];
        let value = if at % 2 == 0 { mark } else { mark + share * (best - mark) };
        value.clamp(low, high)
    };
    let (a, b) = (pick(a), pick(b));
    Some(if (a < b) == up { (a, b) } else { (b, a) })
}

fn bronze() -> usize {
    whole().rules.tier.iter().position(|tier| tier.id == "bronze").unwrap()
}

/// Unavailable and Underperforming both give no medal.
fn medal(rating: &Rating) -> usize {
    place(&whole().rules.tier, &rating.estimate.tier).min(whole().rules.tier.len())
}

fn is_gate(row: &Row) -> bool {
    // The number and model of the GPUs decide what every other record is compared with.
    row.criteria.iter().any(|id| whole().criterion(id).unwrap().gate.is_some())
        || row.metric == "gpu_info"
        || row.metric == "gpu_count"
}

/// `after` knows less or worse than `before`.
fn never_better(
    before: &Result,
    after: &Result,
    gate: bool,
    what: &str,
) -> std::result::Result<(), TestCaseError> {
    let (old, new) = (&before.rating, &after.rating);
    for (before, after) in before.verdicts.iter().zip(&after.verdicts) {
        let value = |one: &Verdict| one.value.unwrap_or(0);
        // What leaves the denominator is the closed list's matter, and no loss puts anything there.
        prop_assert!(
            before.outcome == Outcome::NotApplicable || after.outcome != Outcome::NotApplicable,
            "{what}: {before:?} {after:?}"
        );
        if before.outcome != Outcome::NotApplicable {
            prop_assert!(value(after) <= value(before), "{what}: {before:?} {after:?}");
            prop_assert!(!after.whole || before.whole, "{what}: {before:?} {after:?}");
        }
    }
    prop_assert!(new.bounds.lower <= old.bounds.lower, "{what}");
    prop_assert!(new.measured_lower <= old.measured_lower, "{what}");
    prop_assert!(new.bounds.coverage <= old.bounds.coverage, "{what}");
    let least = if gate { medal(old).min(bronze()) } else { medal(old) };
    prop_assert!(medal(new) >= least, "{what}: {:?} {:?}", old.estimate, new.estimate);
    Ok(())
}

fn stated() -> impl Strategy<Value = Stated> {
    prop_oneof![3 => Just(Stated::All), 1 => Just(Stated::None)]
}

/// What is taken away.
#[derive(Debug, Clone)]
enum Lost {
    One(Index),
    Some(Vec<Index>),
    Share(u64),
    Metric(Index),
    Stage(Index),
    Node(Index),
    AllBad,
}

fn lost() -> impl Strategy<Value = Lost> {
    prop_oneof![
        4 => any::<Index>().prop_map(Lost::One),
        2 => proptest::collection::vec(any::<Index>(), 2..12).prop_map(Lost::Some),
        1 => any::<u64>().prop_map(Lost::Share),
        1 => any::<Index>().prop_map(Lost::Metric),
        1 => any::<Index>().prop_map(Lost::Stage),
        1 => any::<Index>().prop_map(Lost::Node),
        2 => Just(Lost::AllBad),
    ]
}

/// Which of the records of `rows` are taken away.
fn taken(lost: &Lost, rows: &[Row]) -> Vec<bool> {
    let one = |at: &Index| &rows[at.index(rows.len())];
    let node = |row: &Row| row.subject.get("node").cloned();
    rows.iter()
        .enumerate()
        .map(|(index, row)| match lost {
            Lost::One(at) => at.index(rows.len()) == index,
            Lost::Some(many) => many.iter().any(|at| at.index(rows.len()) == index),
            Lost::Share(seed) => (seed >> (index % 64)) & 1 == 1,
            Lost::Metric(at) => row.metric == one(at).metric,
            Lost::Stage(at) => row.stage == one(at).stage,
            Lost::Node(at) => node(one(at)).is_some() && node(row) == node(one(at)),
            Lost::AllBad => {
                row.value.as_ref().is_ok_and(|value| extremes(row).is_some_and(|(worst, _)| *value == worst))
            }
        })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: CASES, max_shrink_iters: 200, ..ProptestConfig::default() })]

    /// Whatever a run is worth, losing records never makes it worth more: one, several, a metric, a stage, a node, or all that
    /// speak against it. Losing a gate's never lifts it above the cap of an unknown gate.
    #[test]
    fn losing_records_never_raises_the_tier(damage in damages(), lost in lost(), stated in stated()) {
        let rows = damaged(&damage);
        let run = Run::of(&rows, stated);
        let before = run.result();
        let taken = taken(&lost, &rows);
        let Some(after) = run.with(run.lines.iter().zip(&taken).filter(|(_, gone)| !**gone).map(|(line, _)| line)) else {
            return Ok(());
        };
        let gate = rows.iter().zip(&taken).any(|(row, gone)| *gone && is_gate(row));
        never_better(&before, &after, gate, &format!("{lost:?}"))?;
    }

    /// Neither does a value that turns unknown, unavailable, merely declared or impossible.
    #[test]
    fn a_value_that_cannot_be_believed_never_raises_the_tier(
        damage in damages(), at: Index, how in 0_u8..5, stated in stated(),
    ) {
        let rows = damaged(&damage);
        let mut other = rows.clone();
        let row = &mut other[at.index(rows.len())];
        match how {
            0 => row.value = Err(("unknown", "it hung".to_owned())),
            1 => row.value = Err(("unavailable", "no permission".to_owned())),
            2 => row.provenance = "declared",
            3 => row.unit = "furlong".to_owned(),
            _ => row.value = row.value.clone().map(|_| 1e300),
        }
        // A reason of the closed lists may stand for something that is not there; a value stands for what is.
        prop_assume!(rows[at.index(rows.len())].value.is_ok());
        let gate = is_gate(&other[at.index(rows.len())]);
        never_better(&result(&rows, stated), &result(&other, stated), gate, &format!("{:?}", other[at.index(rows.len())]))?;
    }

    /// Of two values of a record the better one never gives less, and the worse one never more.
    #[test]
    fn a_better_value_is_never_worth_less(
        damage in damages(), at: Index, a in (any::<u8>(), 0.0_f64..1.0), b in (any::<u8>(), 0.0_f64..1.0), stated in stated(),
    ) {
        let rows = damaged(&damage);
        let place = at.index(rows.len());
        let Some((worse, better)) = two(&rows[place], a, b) else { return Ok(()) };
        let with = |value: f64| {
            let mut rows = rows.clone();
            rows[place].value = Ok(value);
            result(&rows, stated)
        };
        let (worse_result, better_result) = (with(worse), with(better));
        let what = format!("{} {worse} {better}", rows[place].metric);
        prop_assert!(better_result.rating.bounds.upper >= worse_result.rating.bounds.upper, "{what}");
        never_better(&better_result, &worse_result, false, &what)?;
    }

    /// One more record that speaks against it never helps. It may show what nobody had seen: then more is covered, and a run of
    /// which nobody could tell may get a tier, never a better bound.
    #[test]
    fn one_more_bad_record_never_helps(damage in damages(), at: Index, stated in stated()) {
        let rows = damaged(&damage);
        let mut more = rows.clone();
        let mut row = rows[at.index(rows.len())].clone();
        let Some((worst, _)) = extremes(&row) else { return Ok(()) };
        row.value = Ok(worst);
        row.params.insert("another".to_owned(), json!(1));
        more.push(row.clone());
        let (before, after) = (result(&rows, stated).rating, result(&more, stated).rating);
        prop_assert!(after.bounds.lower <= before.bounds.lower, "{row:?}");
        prop_assert!(after.bounds.upper <= before.bounds.upper, "{row:?}");
        prop_assert!(medal(&after) >= medal(&before) || before.estimate.tier == "unavailable", "{row:?}");
    }

    /// A node that is slower than all others is never worth more for it, the slowest one getting faster never less. (How fast
    /// any other node is has no direction here: this rule compares nodes, other criteria ask how fast they are.)
    #[test]
    fn a_slower_straggler_is_never_worth_more(times in proptest::collection::vec(50.0_f64..200.0, 3), by in 1.0_f64..4.0) {
        let rows = |times: &[f64]| {
            let mut rows = crowded().to_vec();
            for row in rows.iter_mut().filter(|row| row.metric == "step_time") {
                let node: usize = row.subject["node"].as_str().unwrap()[1..].parse().unwrap();
                row.value = Ok(times[node - 1]);
            }
            rows
        };
        let mut slower = times.clone();
        let slowest = (0..3).max_by(|a, b| times[*a].total_cmp(&times[*b])).unwrap();
        slower[slowest] *= by;
        never_better(&result(&rows(&times), Stated::All), &result(&rows(&slower), Stated::All), false, "step_time")?;
    }

    /// A statement that is missing, or that denies, never helps, and statements never move what a program decides.
    #[test]
    fn fewer_statements_never_help(damage in damages(), denied: bool, silenced in proptest::collection::vec(any::<Index>(), 1..30)) {
        let rows = damaged(&damage);
        let items: Vec<&str> =
            whole().criteria.iter().filter(|one| one.evidence.is_some()).map(|one| one.id.as_str()).collect();
        let left_out: Vec<&str> = silenced.iter().map(|at| items[at.index(items.len())]).collect();
        let run = Run::of(&rows, Stated::All);
        let before = run.result();
        let fewer = if denied {
            left_out.iter().fold(statements(Stated::All).to_owned(), |text, item| {
                text.replace(&format!("item = \"{item}\"\nmet = true"), &format!("item = \"{item}\"\nmet = false"))
            })
        } else {
            common::evidence(whole(), &left_out)
        };
        fs::write(run.path().join("evidence.toml"), fewer).unwrap();
        let after = run.result();
        prop_assert_eq!(after.rating.measured_lower, before.rating.measured_lower);
        never_better(&before, &after, !denied, &format!("{left_out:?}"))?;
    }

    /// Declared never outranks measured: what records prove to fail stays failed, whatever is stated.
    #[test]
    fn no_statement_mends_what_was_seen_to_fail(damage in damages()) {
        let rows = damaged(&damage);
        let (silent, stated) = (result(&rows, Stated::None), result(&rows, Stated::All));
        for (silent, stated) in silent.verdicts.iter().zip(&stated.verdicts) {
            if silent.outcome == Outcome::Fail {
                prop_assert_eq!(stated.value, Some(0), "{:?}", stated);
                prop_assert!(!stated.declared);
            }
            if silent.value.is_some() {
                prop_assert_eq!(silent.value, stated.value, "{:?} {:?}", silent, stated);
            }
        }
    }

    /// The order of records and of statements decides nothing.
    #[test]
    fn the_order_decides_nothing(damage in damages(), seed in any::<u64>()) {
        let run = Run::of(&damaged(&damage), Stated::All);
        let before = run.result();
        let mut order: Vec<(u64, &String)> = run
            .lines
            .iter()
            .enumerate()
            .map(|(index, line)| ((index as u64 + 1).wrapping_mul(seed | 1).rotate_left(17), line))
            .collect();
        order.sort_unstable();
        let after = run.with(order.iter().map(|(_, line)| *line)).unwrap();
        prop_assert_eq!(&after.rating, &before.rating);
        prop_assert_eq!(&after.verdicts, &before.verdicts);
        let mut blocks: Vec<&str> = statements(Stated::All).split("\n[[").skip(1).collect();
        let turn = seed as usize % blocks.len();
        blocks.rotate_left(turn);
        let turned: String = blocks.iter().map(|block| format!("\n[[{block}")).collect();
        fs::write(run.path().join("evidence.toml"), format!("{}{turned}", common::HEAD)).unwrap();
        prop_assert_eq!(&run.result().rating, &before.rating);
    }

    /// A record that is there twice is an error that names both lines: it never counts twice.
    #[test]
    fn a_record_that_is_there_twice_is_refused(at: Index) {
        let run = Run::of(crowded(), Stated::None);
        let index = at.index(run.lines.len());
        let text: String = run.lines.iter().chain([&run.lines[index]]).flat_map(|line| [line.as_str(), "\n"]).collect();
        fs::write(run.path().join("records.jsonl"), text).unwrap();
        let error = load_with(run.path(), whole(), None).unwrap_err().to_string();
        let named = format!("lines {} and {} are records of the same", index + 1, run.lines.len() + 1);
        prop_assert!(error.contains(&named), "{}", error);
    }
}

/// Enough that every metric, stage and kind of loss comes up; the file has to stay quick.
const CASES: u32 = 32;

/// The runs above are made so that every rule that takes several records has them, else the properties would say little.
#[test]
fn the_run_has_siblings_of_every_kind() {
    let mut of: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for row in crowded() {
        let entry = of.entry(&row.metric).or_default();
        entry.0 += 1;
        entry.1 += usize::from(row.stage == "import-cmax");
    }
    for metric in
        ["wrong_values", "dcgm_diag", "version_at_minimum", "platform_setting", "step_time", "busbw"]
    {
        assert!(of[metric].0 > 1, "{metric}: {of:?}");
    }
    assert!(of.values().filter(|(_, imported)| *imported > 0).count() > 40, "{of:?}");
    let result = result(crowded(), Stated::All);
    assert_eq!(result.rating.estimate.tier, "platinum", "{:?}", result.rating.estimate);
}

/// Who leaves a slow node out of run.json, or one that gave nothing in a stage, gains nothing.
#[test]
fn a_node_left_out_of_run_json_never_lifts_anything() {
    for how in [Damage::Bad, Damage::Unknown] {
        for stage in ["gemm", "audit", "inventory", "storage"] {
            let mut rows = crowded().to_vec();
            for row in rows
                .iter_mut()
                .filter(|row| row.subject.get("node") == Some(&json!("n3")) && row.stage == stage)
            {
                if row.metric != "gpu_count" && row.metric != "gpu_info" {
                    row.value = spoilt(row, how);
                }
            }
            let run = Run::of(&rows, Stated::All);
            let before = run.result();
            let file = run.path().join("run.json");
            let text = fs::read_to_string(&file).unwrap();
            assert!(text.contains(r#","n3""#), "{text}");
            fs::write(&file, text.replace(r#","n3""#, "")).unwrap();
            never_better(&before, &run.result(), false, &format!("{how:?} {stage}")).unwrap();
        }
    }
}
