//! Stage `train`: speed, loss and step times of the data-parallel runs.

use serde::Deserialize;

use super::ranks::{self, Member};
use super::torch::{Head, dtype, median};
use super::{Draft, Raw, RawFile, loss, titan};
use crate::record::{Provenance, Record, State};
use crate::straggler;

#[derive(Debug, Deserialize)]
struct Train {
    #[serde(flatten)]
    head: Head,
    model: String,
    shape: String,
    dtype: String,
    length: i64,
    batch_per_rank: i64,
    warmup: usize,
    planned_steps: usize,
    /// Null where it was no number.
    loss: Vec<Option<f64>>,
    #[serde(default)]
    flops_per_token: f64,
    #[serde(default)]
    flops_formula: String,
    #[serde(default)]
    nodes: i64,
    #[serde(default)]
    tokens_per_second: f64,
    #[serde(default)]
    per_rank: Vec<TrainRank>,
    /// The gradients of a rank were made wrong on purpose.
    #[serde(default)]
    corrupted: Option<Corrupted>,
}

#[derive(Debug, Deserialize)]
struct Corrupted {
    rank: i64,
    kind: String,
}

#[derive(Debug, Deserialize)]
struct TrainRank {
    rank: i64,
    node: String,
    step_seconds: Vec<f64>,
    #[serde(default)]
    forward_seconds: Vec<f64>,
    #[serde(default)]
    forward_cpu_seconds: Vec<f64>,
    /// The bits of its weights after the last step.
    checksum: Option<i64>,
    /// Loss of each step of the tiny model that the rank trained by itself; null where it was no number.
    #[serde(default)]
    alone: Vec<Option<f64>>,
}

/// Documents of the stage: the measured runs, short ones of the small model that has a reference curve, and those on fewer
/// nodes.
fn runs(raw: &Raw) -> impl Iterator<Item = &RawFile> {
    const NAMES: [&str; 4] = ["train.json", "moe.json", "loss.json", "loss-moe.json"];
    raw.files.iter().filter(|file| {
        let part = file.name.starts_with("nodes-") && file.name.ends_with(".json");
        part || NAMES.contains(&file.name.as_str())
    })
}

/// Stage `train`: the dense model, by which ranks are compared, and the mixture of experts.
pub fn read(raw: &Raw) -> Vec<Record> {
    let (mut records, outside) = losses(raw);
    let outside = outside.as_deref();
    records.extend(training(raw, "train.json", "llama", outside));
    // Step times and stragglers are of the dense model on all nodes: other runs have the same ranks and would be mistaken for it.
    let told = |record: &Record| record.params.contains_key("model");
    records.extend(training(raw, "moe.json", "moe", outside).into_iter().filter(told));
    for file in raw.files.iter().filter(|file| file.name.starts_with("nodes-")) {
        let speed = |record: &Record| record.metric.starts_with("tokens_per_second");
        records.extend(training(raw, &file.name, "llama", outside).into_iter().filter(speed));
    }
    let scaling = scaling(raw, &records);
    records.extend(scaling);
    for (kind, model) in [("llama", "llama-3.1-8b"), ("moe", "deepseek-v3-16b")] {
        records.extend(titan::read(raw, kind, model));
    }
    records
}

/// Tokens a second and node of each run against those of the smallest one, percent.
fn scaling(raw: &Raw, records: &[Record]) -> Vec<Record> {
    let runs: Vec<(i64, f64, &Record)> = records
        .iter()
        .filter(|record| record.metric == "tokens_per_second")
        .filter(|record| {
            record.params.get("model").is_some_and(|model| model.to_string().starts_with("llama"))
        })
        .filter_map(|record| match record.params.get("nodes") {
            Some(crate::record::Scalar::Int(nodes)) if *nodes > 0 => Some((*nodes, record.value?, record)),
            _ => None,
        })
        .collect();
    let Some((few, base, _)) = runs.iter().min_by_key(|run| run.0).copied() else { return Vec::new() };
    let of = format!("against {few} node{}", if few == 1 { "" } else { "s" });
    let said = if raw.folder.run.simulated {
        format!("{of}; simulated nodes share one machine, so this says nothing of a network")
    } else {
        of
    };
    runs.iter()
        .filter(|run| run.0 > few)
        .map(|(nodes, speed, record)| {
            let percent = speed / *nodes as f64 / (base / few as f64) * 100.0;
            let mut made = raw.draft("scaling_efficiency", "percent").detail(said.clone()).done();
            made.value = Some(percent);
            made.state = State::Measured;
            made.params.clone_from(&record.params);
            made.evidence.clone_from(&record.evidence);
            made.tool.clone_from(&record.tool);
            made.started.clone_from(&record.started);
            made
        })
        .collect()
}

/// Every run's loss against its reference and its ranks' weights against each other, and what voids the stage's speeds.
fn losses(raw: &Raw) -> (Vec<Record>, Option<String>) {
    let (mut records, mut outside) = (Vec::new(), None);
    let mut without = None;
    for file in runs(raw) {
        let Ok(document) = file.json::<Train>() else { continue };
        let model = format!("{}-{}", document.model, document.shape);
        let dtype = dtype(&document.dtype);
        let finish = |draft: Draft| {
            let mut record = draft
                .param("model", model.as_str())
                .param("ranks", document.head.ranks)
                .param("nodes", document.nodes)
                .param("dtype", dtype)
                .tool(&document.head.tool())
                .started(&document.head.started)
                .done();
            if let Some(Corrupted { rank, kind }) = &document.corrupted {
                record.provenance = Provenance::Synthetic;
                let note = format!("the gradients of rank {rank} were made wrong on purpose ({kind})");
                record.detail =
                    Some(record.detail.map_or(note.clone(), |detail| format!("{detail}; {note}")));
            }
            record
        };
        match loss::compare(&model, dtype, document.head.ranks, &document.loss) {
            // The small model beside it has one.
            Err(why) if document.shape != "tiny" => without = Some((model.clone(), why)),
            Err(why) => {
                for (metric, unit) in [("loss_deviation", "percent"), ("loss_in_band", "")] {
                    records.push(finish(raw.missing(metric, unit, State::Unavailable, why.clone())));
                }
            }
            Ok(found) => {
                let evidence = file.at(format!("/loss/{}", found.step));
                let percent = raw.measured("loss_deviation", "percent", found.percent, evidence.clone());
                records.push(finish(percent.detail(found.said.clone())));
                let flag = raw.measured("loss_in_band", "", f64::from(u8::from(found.inside)), evidence);
                records.push(finish(flag.detail(found.said.clone())));
                if !found.inside {
                    outside = Some(format!("the loss of {model} left its reference at {}", found.said));
                }
            }
        }
        if document.per_rank.iter().any(|rank| !rank.alone.is_empty()) {
            let (made, wrong) = alone(raw, file, &document);
            records.extend(made.into_iter().map(|(draft, model)| {
                let mut record = finish(draft);
                record.params.insert("model".to_owned(), model.into());
                record
            }));
            outside = wrong.or(outside);
        }
        let sums: Vec<i64> = document.per_rank.iter().filter_map(|rank| rank.checksum).collect();
        if sums.len() == document.per_rank.len() && sums.len() > 1 {
            let bad = loss::differing(&sums);
            let named: Vec<String> = bad
                .iter()
                .map(|at| format!("rank {} on {}", document.per_rank[*at].rank, document.per_rank[*at].node))
                .collect();
            let draft = raw.measured("replicas_differing", "", bad.len() as f64, file.at("/per_rank"));
            let draft = if named.is_empty() { draft } else { draft.detail(named.join(", ")) };
            records.push(finish(draft));
            if !named.is_empty() {
                outside =
                    Some(format!("the weights of {} are not those of the other ranks", named.join(", ")));
            }
        }
    }
    // Said once, and only where no small model was compared.
    if let Some((model, why)) = without
        && records.iter().all(|record| record.metric != "loss_in_band")
    {
        records.push(
            raw.missing("loss_in_band", "", State::Unavailable, why).param("model", model.as_str()).done(),
        );
    }
    (records, outside)
}

/// Every rank's own loss against the curve of one rank, and what voids the stage's speeds.
///
/// In the loss of all ranks a wrong one among N is thinned to a share of 1/N; by itself it stands alone.
fn alone(raw: &Raw, file: &RawFile, document: &Train) -> (Vec<(Draft, String)>, Option<String>) {
    let model = format!("{}-tiny", document.model);
    let (mut wrong, mut worst) = (Vec::new(), None::<(f64, String, String)>);
    let mut unproven = None;
    for (at, rank) in document.per_rank.iter().enumerate() {
        match loss::compare(&model, dtype(&document.dtype), 1, &rank.alone) {
            Err(why) => unproven = Some(why),
            Ok(_) if rank.alone.is_empty() => {
                unproven = Some(format!("rank {} on {} did not train alone", rank.rank, rank.node));
            }
            Ok(found) => {
                let who = format!("rank {} on {}", rank.rank, rank.node);
                if worst.as_ref().is_none_or(|worst| found.percent > worst.0) {
                    let place = format!("/per_rank/{at}/alone/{}", found.step);
                    worst = Some((found.percent, place, format!("{who}, {}", found.said)));
                }
                if !found.inside {
                    wrong.push(who);
                }
            }
        }
    }
    let metrics = [("rank_loss_deviation", "percent"), ("ranks_out_of_band", "")];
    let (percent, place, said) = match (unproven, worst) {
        (None, Some(worst)) => worst,
        (why, _) => {
            let why = why.unwrap_or_else(|| "no rank trained alone".to_owned());
            let missing =
                |(metric, unit): (&str, &str)| raw.missing(metric, unit, State::Unknown, why.as_str());
            return (metrics.map(|metric| (missing(metric), model.clone())).into(), None);
        }
    };
    let [deviation, count] = [percent, wrong.len() as f64];
    let deviation = raw.measured(metrics[0].0, metrics[0].1, deviation, file.at(place)).detail(said);
    let count = raw.measured(metrics[1].0, metrics[1].1, count, file.at("/per_rank"));
    if wrong.is_empty() {
        return (vec![(deviation, model.clone()), (count, model)], None);
    }
    let named = wrong.join(", ");
    let void = format!("{model} trained alone left its reference on {named}");
    (vec![(deviation, model.clone()), (count.detail(named), model)], Some(void))
}

fn training(raw: &Raw, name: &str, kind: &str, outside: Option<&str>) -> Vec<Record> {
    let metrics = [
        ("tokens_per_second", "1/s"),
        ("tokens_per_second_per_rank", "1/s"),
        ("loss_first", ""),
        ("loss_last", ""),
        ("training_flops", "TFLOP/s"),
    ];
    let nothing = |state: State, why: String| -> Vec<Record> {
        let missing = |(metric, unit): &(&str, &str)| {
            raw.missing(metric, unit, state, why.clone()).param("model", kind).done()
        };
        metrics.iter().map(missing).collect()
    };
    let Some(file) = raw.file(name) else { return nothing(raw.missing_state(), raw.marker.why()) };
    let document: Train = match file.json() {
        Ok(document) => document,
        Err(why) => return nothing(State::Unknown, why),
    };
    if !document.head.complete || document.loss.len() != document.planned_steps {
        return nothing(State::Unknown, raw.marker.why());
    }
    let model = format!("{}-{}", document.model, document.shape);
    let tool = document.head.tool();
    let finish = |draft: Draft| draft.tool(&tool).started(&document.head.started).done();
    let full = |draft: Draft| {
        draft
            .param("model", model.as_str())
            .param("ranks", document.head.ranks)
            .param("nodes", document.nodes)
            .param("device", if document.head.device == "cuda" { "gpu" } else { "cpu" })
            .param("dtype", dtype(&document.dtype))
            .param("seq", document.length)
            .param("batch", document.batch_per_rank)
    };
    let loss = |value: Option<&Option<f64>>| value.copied().flatten().unwrap_or(f64::NAN);
    let (first, last) = (loss(document.loss.first()), loss(document.loss.last()));
    // A run that does not learn computes something else than training: its speed says nothing.
    let void = if let Some(step) = document.loss.iter().position(Option::is_none) {
        Some(format!("the loss of step {step} is no number"))
    } else if last >= first {
        Some(format!("the loss did not fall ({first} to {last} in {} steps)", document.loss.len()))
    } else {
        outside.map(str::to_owned)
    };
    let mut records = Vec::new();
    let speeds = [
        ("tokens_per_second", document.tokens_per_second),
        ("tokens_per_second_per_rank", document.tokens_per_second / document.head.ranks as f64),
    ];
    for (metric, value) in speeds {
        let draft = match &void {
            None => raw.measured(metric, "1/s", value, file.at("/tokens_per_second")),
            Some(why) => raw.missing(metric, "1/s", State::Unknown, why.as_str()),
        };
        records.push(finish(full(draft)));
    }
    let flops = document.flops_per_token * document.tokens_per_second / document.head.ranks as f64 / 1e12;
    let draft = match &void {
        None => raw
            .measured("training_flops", "TFLOP/s", flops, file.at("/flops_per_token"))
            .detail(&document.flops_formula),
        Some(why) => raw.missing("training_flops", "TFLOP/s", State::Unknown, why.as_str()),
    };
    records.push(finish(full(draft)));
    let gpu = document.head.gpu.as_deref().unwrap_or_default();
    let draft = match (&void, titan::peak(gpu)) {
        (None, Some(peak)) => raw
            .measured("mfu", "percent", flops / peak * 100.0, file.at("/flops_per_token"))
            .detail(format!("{} by {peak} TFLOP/s, the dense bf16 peak of {gpu}", document.flops_formula)),
        (None, None) if document.head.device == "cuda" => {
            raw.missing("mfu", "percent", State::Unknown, format!("no peak is known for {gpu:?}"))
        }
        (None, None) => raw.missing(
            "mfu",
            "percent",
            State::Unavailable,
            "MFU needs a published peak, and processors have none",
        ),
        (Some(why), _) => raw.missing("mfu", "percent", State::Unknown, why.as_str()),
    };
    records.push(finish(full(draft)));
    for (metric, value, at) in
        [("loss_first", first, 0), ("loss_last", last, document.loss.len().saturating_sub(1))]
    {
        let draft = raw.measured(metric, "", value, file.at(format!("/loss/{at}")));
        records.push(finish(draft.param("model", model.as_str())));
    }
    for (position, rank) in document.per_rank.iter().enumerate() {
        let mut times: Vec<f64> =
            rank.step_seconds.iter().skip(document.warmup).map(|seconds| seconds * 1e3).collect();
        times.sort_by(f64::total_cmp);
        if times.is_empty() {
            continue;
        }
        // Nearest rank: the smallest value that at least 99 % do not exceed.
        let p99 = times[((times.len() as f64 * 0.99).ceil() as usize).clamp(1, times.len()) - 1];
        for (stat, value) in [("median", median(&times)), ("p99", p99)] {
            let draft =
                raw.measured("step_time", "ms", value, file.at(format!("/per_rank/{position}/step_seconds")));
            records.push(finish(draft.param("stat", stat).param("rank", rank.rank).on(&rank.node)));
        }
    }
    let settled = |samples: &[f64]| {
        straggler::windows(samples.get(document.warmup..).unwrap_or_default(), straggler::RULE.windows)
    };
    let members: Vec<Member> = document
        .per_rank
        .iter()
        .enumerate()
        .map(|(position, rank)| Member {
            rank: rank.rank,
            node: &rank.node,
            gpu: None,
            wall: settled(&rank.forward_seconds),
            cpu: settled(&rank.forward_cpu_seconds),
            evidence: file.at(format!("/per_rank/{position}/forward_seconds")),
        })
        .collect();
    records.extend(ranks::compare(raw, "train forward", &members, document.head.slowed));
    records
}
