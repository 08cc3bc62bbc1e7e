//! Stage `burnin`: one file a rank, a sample a second.

use serde::Deserialize;

use super::ranks::{self, Member, Slowed};
use super::{Draft, Raw};
use crate::record::{Provenance, Record, State};
use crate::straggler;

#[derive(Debug, Deserialize)]
struct Burnin {
    torch: String,
    device: String,
    ranks: usize,
    started: String,
    complete: bool,
    node: String,
    rank: i64,
    local_rank: i64,
    collective: String,
    dtype: String,
    n: i64,
    seconds: f64,
    wrong: i64,
    differing: i64,
    slowed: Option<Slowed>,
    /// Seconds since the start, iterations, and medians of one second: wall and CPU seconds of a product, wall seconds
    /// of an iteration.
    samples: Vec<[f64; 5]>,
}

impl Burnin {
    fn column(&self, index: usize) -> Vec<f64> {
        // The first second holds the warm-up.
        self.samples.iter().skip(1).map(|sample| sample[index]).collect()
    }

    fn gpu(&self) -> Option<u32> {
        if self.device == "cuda" { u32::try_from(self.local_rank).ok() } else { None }
    }
}

/// Reads `raw/burnin/rank-N.json`.
pub fn read(raw: &Raw) -> Vec<Record> {
    let mut records = Vec::new();
    let mut read: Vec<(usize, Burnin)> = Vec::new();
    for (index, file) in raw.files.iter().enumerate() {
        if !(file.name.starts_with("rank-") && file.name.ends_with(".json")) {
            continue;
        }
        match file.json::<Burnin>() {
            Ok(document) => read.push((index, document)),
            Err(why) => records.push(raw.missing("burnin_wrong", "", State::Unknown, why).done()),
        }
    }
    for (index, document) in &read {
        let file = &raw.files[*index];
        let finish = |draft: Draft| {
            let draft = draft
                .on(&document.node)
                .param("rank", document.rank)
                .param("dtype", document.dtype.as_str())
                .tool(&format!("torch {}", document.torch))
                .started(&document.started)
                .seconds(document.seconds);
            let mut record = match document.gpu() {
                Some(gpu) => draft.gpu(gpu).done(),
                None => draft.done(),
            };
            if document.slowed.is_some() {
                record.provenance = Provenance::Synthetic;
            }
            record
        };
        let length = raw.measured("burnin_seconds", "s", document.seconds, file.at("/seconds"));
        records.push(finish(length));
        let wrong = document.wrong.saturating_add(document.differing);
        let detail = format!(
            "{} wrong values of {}, {} differing products",
            document.wrong, document.collective, document.differing
        );
        records
            .push(finish(raw.measured("burnin_wrong", "", wrong as f64, file.at("/wrong")).detail(detail)));
        let times = straggler::windows(&document.column(2), usize::MAX);
        let (Some(slowest), true) = (times.iter().copied().reduce(f64::max), times.len() >= 10) else {
            let why = format!("{} seconds of samples, 10 are needed", times.len());
            records.push(finish(raw.missing("burnin_gemm", "TFLOP/s", State::Unknown, why)));
            continue;
        };
        let flop = 2.0 * (document.n as f64).powi(3);
        let tenths = straggler::windows(&times, 10);
        let median = straggler::windows(&times, 1);
        for (stat, seconds) in [("median", median[0]), ("slowest_second", slowest)] {
            let draft = raw.measured("burnin_gemm", "TFLOP/s", flop / seconds / 1e12, file.at("/samples"));
            records.push(finish(draft.param("stat", stat)));
        }
        let drop = (1.0 - tenths[0] / tenths[9]) * 100.0;
        let detail = "speed of the last tenth of the time below that of the first; negative: faster";
        records
            .push(finish(raw.measured("burnin_drop", "percent", drop, file.at("/samples")).detail(detail)));
    }
    let members: Vec<Member> = read
        .iter()
        .map(|(index, document)| Member {
            rank: document.rank,
            node: &document.node,
            gpu: document.gpu(),
            wall: straggler::windows(&document.column(2), straggler::RULE.windows),
            cpu: straggler::windows(&document.column(3), straggler::RULE.windows),
            evidence: raw.files[*index].at("/samples"),
        })
        .collect();
    let slowed = read.iter().find_map(|(_, document)| document.slowed);
    records.extend(ranks::compare(raw, "burn-in gemm", &members, slowed));
    records.push(bound(raw, &read));
    for node in raw.folder.run.nodes.iter().filter(|node| !read.iter().any(|(_, d)| d.node == **node)) {
        records.push(raw.absent("burnin_wrong", "").on(node).done());
        records.push(raw.absent("burnin_seconds", "s").on(node).done());
    }
    records
}

/// What a clean burn-in proves: at most 3 failures in the node-days that it saw, at 95 % confidence.
fn bound(raw: &Raw, read: &[(usize, Burnin)]) -> Record {
    let (metric, unit) = ("failure_rate_bound", "1/1000 node-days");
    let whole = read.first().is_some_and(|(_, first)| read.len() == first.ranks)
        && read.iter().all(|(_, document)| document.complete);
    let clean = read.iter().all(|(_, document)| document.wrong == 0 && document.differing == 0);
    let Some((index, shortest)) = read.iter().min_by(|a, b| a.1.seconds.total_cmp(&b.1.seconds)) else {
        return raw.absent(metric, unit).done();
    };
    if !whole || !clean {
        let why =
            if clean { "not every rank came to its end" } else { "values were wrong: there was a failure" };
        return raw.missing(metric, unit, State::Unknown, why).done();
    }
    let nodes = raw.folder.run.nodes.len();
    let node_days = nodes as f64 * shortest.seconds / 86_400.0;
    let mut record = raw
        .measured(metric, unit, 3.0 / node_days * 1000.0, raw.files[*index].at("/seconds"))
        .detail(format!(
            "no failure on {nodes} nodes in {:.0} s: the true rate is below this with 95 % confidence (healthy fleets: 2 to 7). \
             A burn-in finds defects; this one is far too short to show reliability",
            shortest.seconds
        ))
        .done();
    record.provenance = Provenance::Inferred;
    record
}
