//! Every iteration of a collective: nccl-tests' `-I 1 -J` and the dumps of NCCL Inspector.
//!
//! How much a collective's time varies, and which process waits least in it. In a collective the slow rank waits least,
//! because it arrives last: who does so again and again is a hint at a straggler and no finding.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::collectives::snake;
use super::{Found, Reading, json};
use crate::record::State;

const STAGE: &str = "collectives";
/// Share of the iterations in which one process must wait least to be named.
const OFTEN: f64 = 0.6;

/// `p50`, `p99`, `max` and the coefficient of variation of times in microseconds.
fn spread(times: &[f64], at: &str) -> Vec<Found> {
    let mut sorted: Vec<f64> = times.iter().copied().filter(|time| time.is_finite() && *time > 0.0).collect();
    sorted.sort_by(f64::total_cmp);
    let count = sorted.len();
    if count < 2 {
        return Vec::new();
    }
    // Nearest rank.
    let rank = |share: f64| sorted[((count as f64 * share).ceil() as usize).clamp(1, count) - 1];
    let mean = sorted.iter().sum::<f64>() / count as f64;
    let deviation = (sorted.iter().map(|time| (time - mean).powi(2)).sum::<f64>() / count as f64).sqrt();
    let mut found: Vec<Found> = [("p50", rank(0.5)), ("p99", rank(0.99)), ("max", sorted[count - 1])]
        .into_iter()
        .map(|(stat, value)| Found::value(STAGE, "iteration_time", "us", value).param("stat", stat).at(at))
        .collect();
    found.push(Found::value(STAGE, "iteration_variation", "percent", deviation / mean * 100.0).at(at));
    found
}

/// The process that waits least in most iterations: `rows[iteration][process]`.
fn waits_least(rows: &[Vec<f64>]) -> Option<String> {
    let processes = rows.iter().map(Vec::len).min().filter(|count| *count > 1)?;
    let mut least = vec![0usize; processes];
    for row in rows {
        let (index, _) = row[..processes].iter().enumerate().min_by(|a, b| a.1.total_cmp(b.1))?;
        least[index] += 1;
    }
    let (process, times) = least.iter().enumerate().max_by_key(|(_, times)| **times)?;
    // Equal processes share the first place evenly.
    (*times as f64 >= OFTEN * rows.len() as f64 && rows.len() >= 10).then(|| {
        format!(
            "process {process} waits least in {times} of {} iterations: it arrives last, look whether it is slow at equal work",
            rows.len()
        )
    })
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().into_iter().flatten().filter_map(json::number).collect()
}

/// Records of the iterations in a document of `-I 1 -J`; empty without any.
#[must_use]
pub fn nccl_tests(text: &str) -> Vec<Found> {
    json::read(text).map(|document| of_document(&document.value)).unwrap_or_default()
}

/// The same of a document that was read already.
#[must_use]
pub fn of_document(document: &Value) -> Vec<Found> {
    let mut all = Vec::new();
    for (index, result) in document["results"].as_array().into_iter().flatten().enumerate() {
        for place in ["out_of_place", "in_place"] {
            let times = &result[format!("{place}_per_iter")];
            let at = format!("/results/{index}/{place}_per_iter");
            let mut found = spread(&numbers(&times["times_us"]), &at);
            let rows: Vec<Vec<f64>> =
                times["per_process_max_times_us"].as_array().into_iter().flatten().map(numbers).collect();
            let iterations = numbers(&times["times_us"]).len();
            // One row an iteration; a release that writes one a process is turned.
            let rows = if rows.len() == iterations { rows } else { turned(&rows, iterations) };
            if let (Some(last), Some(hint)) = (found.last_mut(), waits_least(&rows)) {
                last.detail = Some(hint);
            }
            let size = json::number(&result["size"]).unwrap_or(0.0) as i64;
            all.extend(found.into_iter().map(|one| {
                let one = one.param("size", size);
                if place == "in_place" { one.param("placement", "in_place") } else { one }
            }));
        }
    }
    all
}

fn turned(rows: &[Vec<f64>], length: usize) -> Vec<Vec<f64>> {
    if length == 0 || rows.iter().any(|row| row.len() != length) {
        return Vec::new();
    }
    (0..length).map(|index| rows.iter().map(|row| row[index]).collect()).collect()
}

/// One collective of one rank in a dump of NCCL Inspector.
struct Dumped {
    rank: i64,
    number: i64,
    time: f64,
    busbw: f64,
}

/// Communicator, collective, size, ranks, nodes.
type Key = (String, String, i64, i64, i64);

/// Dumps of NCCL Inspector, formats v4.0 to v5: JSON objects, one a line, one file a process. Up to v4.2 each holds its
/// communicator; from v4.3 on a line before them does. Files are added one by one, as a large job has many.
#[derive(Default)]
pub struct Dumps {
    groups: BTreeMap<Key, Vec<Dumped>>,
    /// By communicator and rank.
    hosts: BTreeMap<(String, i64), String>,
    version: Option<String>,
    damaged: usize,
}

impl Dumps {
    /// Reads one file, or several one after the other.
    pub fn add(&mut self, text: &str) {
        let mut header = Value::Null;
        for line in text.lines().filter(|line| line.trim_start().starts_with('{')) {
            let Ok(mut entry) = serde_json::from_str::<Value>(line) else {
                self.damaged += 1;
                // It may have been the line that named the next ones' communicator.
                header = Value::Null;
                continue;
            };
            let whole = |value: &Value| json::number(value).unwrap_or(-1.0) as i64;
            if entry["header"].is_object() {
                header = entry["header"].take();
                let metadata = &entry["metadata"];
                if self.version.is_none() {
                    self.version = metadata["inspector_output_format_version"].as_str().map(str::to_owned);
                }
                if let Some(host) = metadata["hostname"].as_str() {
                    let id = header["id"].as_str().unwrap_or_default().to_owned();
                    self.hosts.entry((id, whole(&header["rank"]))).or_insert_with(|| host.to_owned());
                }
            }
            if header.is_null() {
                continue;
            }
            let perf = &entry["coll_perf"];
            let (Some(name), Some(time)) = (perf["coll"].as_str(), json::number(&perf["coll_exec_time_us"]))
            else {
                continue;
            };
            let key = (
                header["id"].as_str().unwrap_or_default().to_owned(),
                snake(name),
                whole(&perf["coll_msg_size_bytes"]),
                whole(&header["n_ranks"]),
                whole(&header["nnodes"]),
            );
            self.groups.entry(key).or_default().push(Dumped {
                rank: whole(&header["rank"]),
                number: whole(&perf["coll_sn"]),
                time,
                busbw: json::number(&perf["coll_busbw_gbs"]).unwrap_or(f64::NAN),
            });
        }
    }

    /// What all of them say, rank by rank.
    #[must_use]
    pub fn read(&self) -> Reading {
        const FORMAT: &str = "NCCL Inspector dump";
        let mut found: Vec<Found> =
            self.groups.iter().flat_map(|(key, dumped)| self.group(key, dumped)).collect();
        if found.is_empty() {
            let why = if self.damaged > 0 {
                "no whole line: the dump is damaged"
            } else {
                "the dump holds no collective"
            };
            found.push(
                Found::none(STAGE, "busbw", "GB/s", State::Unknown, why).param("tool", "nccl-inspector"),
            );
        }
        let tool = self
            .version
            .as_ref()
            .map_or_else(|| "NCCL Inspector".to_owned(), |version| format!("NCCL Inspector {version}"));
        Reading { format: FORMAT, tool, found }
    }

    /// One communicator's rows of one collective and size.
    fn group(&self, (id, collective, size, ranks, nodes): &Key, dumped: &[Dumped]) -> Vec<Found> {
        // Time of the slowest rank by sequence number.
        let mut calls: BTreeMap<i64, BTreeMap<i64, f64>> = BTreeMap::new();
        for one in dumped {
            calls.entry(one.number).or_default().insert(one.rank, one.time);
        }
        let slowest: Vec<f64> =
            calls.values().map(|ranks| ranks.values().copied().fold(0.0, f64::max)).collect();
        let mut busbw: Vec<f64> =
            dumped.iter().map(|one| one.busbw).filter(|value| value.is_finite() && *value > 0.0).collect();
        busbw.sort_by(f64::total_cmp);
        let mut of = spread(&slowest, "");
        if let Some(middle) = busbw.get(busbw.len() / 2) {
            of.push(
                Found::value(STAGE, "busbw", "GB/s", *middle)
                    .remark("median of all calls and ranks in the dump"),
            );
        }
        // Only calls that every rank of the dump has can be compared.
        let all: Vec<i64> = dumped.iter().map(|one| one.rank).collect::<BTreeSet<_>>().into_iter().collect();
        let rows: Vec<Vec<f64>> = calls
            .values()
            .filter(|ranks| ranks.len() == all.len())
            .map(|ranks| ranks.values().copied().collect())
            .collect();
        if let Some(hint) = waits_least(&rows)
            && let Some(variation) = of.iter_mut().find(|one| one.metric == "iteration_variation")
        {
            let named = all
                .iter()
                .enumerate()
                .find(|(index, _)| hint.starts_with(&format!("process {index} ")))
                .map_or(hint.clone(), |(index, rank)| {
                    let host = self.hosts.get(&(id.clone(), *rank));
                    let on = host.map_or(String::new(), |host| format!("on {host} "));
                    hint.replacen(&format!("process {index} "), &format!("rank {rank} {on}"), 1)
                });
            variation.detail = Some(named);
        }
        of.into_iter()
            .map(|one| {
                one.param("collective", collective.as_str())
                    .param("communicator", id.as_str())
                    .param("size", *size)
                    .param("ranks", *ranks)
                    .param("nodes", *nodes)
                    .param("tool", "nccl-inspector")
            })
            .collect()
    }
}

/// Several files one after the other are compared rank by rank.
#[must_use]
pub fn inspector(text: &str) -> Reading {
    let mut dumps = Dumps::default();
    dumps.add(text);
    dumps.read()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(found: &[Found], metric: &str, stat: &str) -> f64 {
        found
            .iter()
            .find(|one| {
                one.metric == metric && one.params.get("stat").is_none_or(|found| found.to_string() == stat)
            })
            .and_then(|one| one.value)
            .unwrap()
    }

    #[test]
    fn iterations_of_nccl_tests_give_their_spread_and_who_waits_least() {
        // Process 2 arrives last in 16 of 20 iterations, so it waits least.
        let rows: Vec<String> = (0..20)
            .map(|i| {
                format!("[{},{},{},{}]", 100 + i % 3, 101, if i % 5 == 0 { 102 } else { 80 }, 101 + i % 2)
            })
            .collect();
        let times: Vec<String> = (0..20).map(|i| format!("{}", if i == 7 { 200 } else { 102 })).collect();
        let text = format!(
            r#"{{"version":2,"results":[{{"size":67108864,"out_of_place_per_iter":{{"skipped_iterations":0,"times_us":[{}],"per_process_max_times_us":[{}]}}}}]}}"#,
            times.join(","),
            rows.join(",")
        );
        let found = nccl_tests(&text);
        assert_eq!(
            (value(&found, "iteration_time", "p50"), value(&found, "iteration_time", "max")),
            (102.0, 200.0)
        );
        let variation = found.iter().find(|one| one.metric == "iteration_variation").unwrap();
        assert!((variation.value.unwrap() - 20.0).abs() < 1.0, "{variation:?}");
        assert!(
            variation.detail.as_deref().unwrap().starts_with("process 2 waits least in 16 of 20"),
            "{variation:?}"
        );
        // Cut short, not asked for, not JSON: nothing, and no panic.
        assert_eq!(nccl_tests(&text[..60]), []);
        assert_eq!(nccl_tests(r#"{"version":1,"results":[{"size":8}]}"#), []);
        assert_eq!(nccl_tests("no"), []);
    }

    #[test]
    fn dumps_of_the_inspector_are_compared_rank_by_rank() {
        let mut text = String::new();
        for number in 0..12 {
            for rank in 0..4 {
                let time = if rank == 3 { 50 } else { 60 + number % 2 };
                text.push_str(&format!(
                    r#"{{"header":{{"id":"0x7f8c496ae9f661","rank":{rank},"n_ranks":4,"nnodes":2}},"metadata":{{"inspector_output_format_version":"v4.0","hostname":"n1","pid":1}},"coll_perf":{{"coll":"AllReduce","coll_sn":{number},"coll_msg_size_bytes":4194304,"coll_exec_time_us":{time},"coll_timing_source":"kernel_gpu","coll_algobw_gbs":64.0,"coll_busbw_gbs":96.5}}}}
"#
                ));
            }
        }
        text.push_str(r#"{"header":{"id":"0x"#);
        let reading = inspector(&text);
        assert_eq!(reading.tool, "NCCL Inspector v4.0");
        assert_eq!(value(&reading.found, "busbw", ""), 96.5);
        assert_eq!(value(&reading.found, "iteration_time", "max"), 61.0);
        let variation = reading.found.iter().find(|one| one.metric == "iteration_variation").unwrap();
        assert!(
            variation.detail.as_deref().unwrap().starts_with("rank 3 on n1 waits least in 12 of 12"),
            "{variation:?}"
        );
        assert_eq!(variation.params["collective"].to_string(), "all_reduce");
        assert_eq!(inspector("{\"header\":{}}").found[0].state, State::Unknown);
    }

    #[test]
    fn dumps_of_the_inspector_whose_communicator_stands_in_a_line_before_are_read() {
        let mut text = String::new();
        for rank in 0..4 {
            text.push_str(&format!(
                r#"{{"header":{{"id":"0x7f","rank":{rank},"n_ranks":4,"nnodes":2}},"metadata":{{"inspector_output_format_version":"v4.3","hostname":"n{}","pid":1}},"dump_stats":{{"coll_records":12}}}}
"#,
                1 + rank / 2
            ));
            for number in 0..12 {
                let time = if rank == 2 { 50 } else { 60 };
                text.push_str(&format!(
                    r#"{{"coll_perf":{{"coll":"AllReduce","coll_sn":{number},"coll_msg_size_bytes":4194304,"coll_exec_time_us":{time},"coll_busbw_gbs":96.5}}}}
"#
                ));
            }
        }
        // Calls whose communicator's line is cut are nobody's.
        text.push_str("{\"header\":{\"id\":\"0x8");
        text.push_str(
            r#"
{"coll_perf":{"coll":"AllReduce","coll_sn":0,"coll_msg_size_bytes":4194304,"coll_exec_time_us":9000}}"#,
        );
        let reading = inspector(&text);
        assert_eq!(reading.tool, "NCCL Inspector v4.3");
        assert_eq!(value(&reading.found, "iteration_time", "max"), 60.0);
        let variation = reading.found.iter().find(|one| one.metric == "iteration_variation").unwrap();
        assert_eq!(
            (variation.params["ranks"].to_string(), variation.params["communicator"].to_string()),
            ("4".to_owned(), "0x7f".to_owned())
        );
        assert!(
            variation.detail.as_deref().unwrap().starts_with("rank 2 on n2 waits least in 12 of 12"),
            "{variation:?}"
        );
    }
}
