//! Readers of single programs: fio, dcgmi diag, nvbandwidth, perftest, torchtitan, vLLM's bench client.

use std::collections::BTreeMap;

use serde_json::Value;

use super::json::{self, number};
use super::{Found, Reading};
use crate::record::{Scalar, State};

/// The document of a JSON format, or the one record that says that it cannot be used.
fn document(
    text: &str,
    (stage, metric, unit): (&'static str, &'static str, &'static str),
) -> Result<(Value, bool), Box<Found>> {
    match json::read(text) {
        Some(document) => Ok((document.value, document.unclosed)),
        None => Err(Box::new(Found::none(
            stage,
            metric,
            unit,
            State::Unknown,
            "the JSON document is cut short or damaged",
        ))),
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn word(value: &Value) -> Option<&str> {
    value.as_str().map(str::trim).filter(|text| !text.is_empty())
}

/// fio's JSON: bandwidth, operations and latency of every job and direction that moved data.
#[must_use]
pub fn fio(text: &str) -> Reading {
    const STAGE: &str = "storage";
    let reading = |tool: &str, found| Reading { format: "fio JSON", tool: tool.to_owned(), found };
    let (value, unclosed) = match document(text, (STAGE, "fio_bandwidth", "MB/s")) {
        Ok(read) => read,
        Err(found) => return reading("fio", vec![*found]),
    };
    let tool = word(&value["fio version"]).unwrap_or("fio");
    let global = &value["global options"];
    let mut found = Vec::new();
    for (index, job) in list(&value["jobs"]).iter().enumerate() {
        let name = word(&job["jobname"]).unwrap_or("unnamed");
        let option = |key: &str| word(&job["job options"][key]).or(word(&global[key])).map(str::to_owned);
        let whole = |key: &str| option(key).and_then(|text| text.parse::<i64>().ok());
        let base = |found: Found, rw: &str| {
            found
                .param("job", name)
                .param("rw", rw)
                .maybe("bs", option("bs"))
                .maybe("iodepth", whole("iodepth"))
                .maybe("numjobs", whole("numjobs"))
                .maybe("direct", whole("direct"))
                .at(format!("/jobs/{index}"))
        };
        let error = job["error"].as_i64().unwrap_or(0);
        if error != 0 || unclosed {
            let why = if error != 0 {
                format!("fio job {name} ended with error {error}")
            } else {
                "fio was stopped: its document is cut short".to_owned()
            };
            let rw = option("rw").unwrap_or_else(|| "unknown".to_owned());
            found.push(base(Found::none(STAGE, "fio_bandwidth", "MB/s", State::Unknown, why), &rw));
            continue;
        }
        let before = found.len();
        for side in ["read", "write", "trim"] {
            let part = &job[side];
            let Some(bytes) = part["bw_bytes"].as_f64().filter(|bytes| *bytes > 0.0) else { continue };
            let rw = option("rw").unwrap_or_else(|| side.to_owned());
            let base = |found: Found| base(found, &rw).param("side", side);
            found.push(base(Found::value(STAGE, "fio_bandwidth", "MB/s", bytes / 1e6)));
            if let Some(iops) = part["iops"].as_f64() {
                found.push(base(Found::value(STAGE, "fio_iops", "1/s", iops)));
            }
            for (key, percentile) in [("50.000000", 50i64), ("99.000000", 99)] {
                if let Some(nanoseconds) = part["clat_ns"]["percentile"][key].as_f64() {
                    let one = Found::value(STAGE, "fio_latency", "ms", nanoseconds / 1e6);
                    found.push(base(one).param("percentile", percentile));
                }
            }
        }
        for (key, percentile) in [("50.000000", 50i64), ("99.000000", 99)] {
            if let Some(nanoseconds) =
                job["sync"]["lat_ns"]["percentile"][key].as_f64().filter(|ns| *ns > 0.0)
            {
                let one = Found::value(STAGE, "fio_latency", "ms", nanoseconds / 1e6);
                found.push(base(one, "fsync").param("percentile", percentile));
            }
        }
        if found.len() == before {
            let why = format!("fio job {name} moved no data");
            found.push(base(Found::none(STAGE, "fio_bandwidth", "MB/s", State::Unknown, why), "unknown"));
        }
    }
    if found.is_empty() {
        found.push(Found::none(STAGE, "fio_bandwidth", "MB/s", State::Unknown, "the document holds no job"));
    }
    reading(tool, found)
}

/// `dcgmi diag -j` of DCGM 3 (`DCGM GPU Diagnostic`) and 4 (`DCGM Diagnostic`): one flag for each test and entity.
#[must_use]
pub fn dcgmi_diag(text: &str) -> Reading {
    const STAGE: &str = "health";
    const SKIPPED: &str = "skipped";
    let reading = |tool: String, found| Reading { format: "dcgmi diag JSON", tool, found };
    let (value, unclosed) = match document(text, (STAGE, "dcgm_diag", "")) {
        Ok(read) => read,
        Err(found) => return reading("dcgmi diag".to_owned(), vec![*found]),
    };
    let (key, generation) = if value["DCGM Diagnostic"].is_null() {
        ("DCGM GPU Diagnostic", "3")
    } else {
        ("DCGM Diagnostic", "4")
    };
    let top = &value[key];
    let version = word(&top["metadata"]["version"])
        .or(word(&top["metadata"]["DCGM Version"]))
        .or(word(&top["version"]))
        .or(word(&value["metadata"]["version"]))
        .or(word(&value["metadata"]["DCGM Version"]))
        .map_or_else(|| format!("{generation}.x"), str::to_owned);
    let mut found = Vec::new();
    for category in list(&top["test_categories"]) {
        let group = word(&category["category"]).unwrap_or("unnamed");
        for test in list(&category["tests"]) {
            let name = word(&test["name"]).unwrap_or("unnamed");
            for (index, result) in list(&test["results"]).iter().enumerate() {
                let words = warnings(result);
                let status = word(&result["status"]).unwrap_or("absent");
                let mut one = match status.to_ascii_lowercase().replace(' ', "").as_str() {
                    "pass" => Found::value(STAGE, "dcgm_diag", "", 1.0),
                    "fail" | "warn" => Found::value(STAGE, "dcgm_diag", "", 0.0),
                    "skip" => Found::none(STAGE, "dcgm_diag", "", State::Unavailable, SKIPPED),
                    _ => Found::none(STAGE, "dcgm_diag", "", State::Unknown, format!("status {status}")),
                };
                if !words.is_empty() {
                    // The reason of the closed list stays in front.
                    let skipped = one.state == State::Unavailable;
                    one.detail = Some(if skipped { format!("{SKIPPED}: {words}") } else { words });
                }
                one = one.param("test", name).param("category", group).param("status", status);
                // 4.x names the entity; 3.x lists GPU ids, or nothing for the whole node.
                let entity = word(&result["entity_group"]);
                let ids: Vec<u32> = match (entity, &result["entity_id"]) {
                    (Some("GPU"), id) => {
                        id.as_u64().and_then(|id| u32::try_from(id).ok()).into_iter().collect()
                    }
                    (None, _) => {
                        gpu_ids(&result["gpu_ids"]).or_else(|| gpu_ids(&result["gpu_id"])).unwrap_or_default()
                    }
                    _ => Vec::new(),
                };
                if let Some(entity) = entity.filter(|entity| *entity != "GPU") {
                    one = one.param("entity", entity).maybe("entity_id", result["entity_id"].as_i64());
                }
                if ids.is_empty() {
                    // Results of one test without an id are told apart by their place.
                    found.push(if index > 0 { one.param("result", index as i64) } else { one });
                } else {
                    for id in ids {
                        let mut each = one.clone();
                        each.subject.gpu = Some(id);
                        found.push(each);
                    }
                }
            }
        }
    }
    if found.is_empty() || unclosed {
        let why = if unclosed { "dcgmi was stopped: its document is cut short" } else { "no test ran" };
        let why = word(&top["runtime_error"]).unwrap_or(why);
        found.push(Found::none(STAGE, "dcgm_diag", "", State::Unknown, why));
    }
    reading(format!("dcgmi diag {version}"), found)
}

fn gpu_ids(value: &Value) -> Option<Vec<u32>> {
    match value {
        Value::String(text) => text.split(',').map(|id| id.trim().parse().ok()).collect(),
        Value::Number(id) => id.as_u64().and_then(|id| u32::try_from(id).ok()).map(|id| vec![id]),
        Value::Array(ids) => {
            ids.iter().map(|id| number(id).filter(|id| *id >= 0.0).map(|id| id as u32)).collect()
        }
        _ => None,
    }
}

/// Warnings as one text: a string in 3.x, objects in 4.x.
fn warnings(result: &Value) -> String {
    let mut all: Vec<String> = Vec::new();
    match &result["warnings"] {
        Value::String(text) => all.push(text.clone()),
        Value::Array(entries) => all.extend(entries.iter().filter_map(|entry| {
            let text = entry.as_str().or(entry["warning"].as_str())?;
            Some(match entry["error_id"].as_i64() {
                Some(id) => format!("{text} (error {id})"),
                None => text.to_owned(),
            })
        })),
        _ => {}
    }
    if all.is_empty()
        && let Some(text) = word(&result["warning"])
    {
        all.push(text.to_owned());
    }
    all.iter()
        .map(|text| text.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect::<Vec<_>>()
        .join("; ")
}

/// The lines that have an end: what a full disk or a broken copy left of a last line may be half a number.
pub(crate) fn ended(text: &str) -> impl Iterator<Item = &str> {
    text[..text.rfind('\n').map_or(0, |at| at + 1)].lines()
}

/// Cells of one nvbandwidth matrix. The diagonal and absent cells are `N/A` or 0.00: no measurement.
fn matrix(found: &mut Vec<Found>, test: &str, description: &str, cells: &[(usize, usize, f64)], at: &str) {
    let mut any = false;
    for (row, column, value) in cells.iter().filter(|(_, _, value)| *value > 0.0) {
        any = true;
        let mut one = Found::value("network", "copy_bandwidth", "GB/s", *value)
            .param("test", test)
            .param("row", *row as i64)
            .param("column", *column as i64)
            .at(at);
        if !description.is_empty() {
            one = one.remark(description);
        }
        found.push(one);
    }
    if !any {
        let none =
            Found::none("network", "copy_bandwidth", "GB/s", State::Unknown, "no cell holds a bandwidth");
        found.push(none.param("test", test).at(at));
    }
}

/// `nvbandwidth -j`
#[must_use]
pub fn nvbandwidth_json(text: &str) -> Reading {
    let reading = |tool: String, found| Reading { format: "nvbandwidth JSON", tool, found };
    let (value, _) = match document(text, ("network", "copy_bandwidth", "GB/s")) {
        Ok(read) => read,
        Err(found) => return reading("nvbandwidth".to_owned(), vec![*found]),
    };
    let top = &value["nvbandwidth"];
    let version = word(&top["Version"]).or(word(&top["version"])).or(word(&top["git_version"]));
    let tool = version.map_or("nvbandwidth".to_owned(), |version| format!("nvbandwidth {version}"));
    let mut found = Vec::new();
    for (index, case) in list(&top["testcases"]).iter().enumerate() {
        let test = word(&case["name"]).unwrap_or("unnamed");
        let status = word(&case["status"]).unwrap_or("absent");
        let at = format!("/nvbandwidth/testcases/{index}");
        if status != "Passed" {
            let state =
                if matches!(status, "Waived" | "Not Found") { State::Unavailable } else { State::Unknown };
            let why = format!("nvbandwidth says {status}");
            found.push(
                Found::none("network", "copy_bandwidth", "GB/s", state, why).param("test", test).at(at),
            );
            continue;
        }
        // Latency tests have the same shape in another unit.
        let description = word(&case["bandwidth_description"]).unwrap_or_default();
        let mut cells = Vec::new();
        for (row, line) in list(&case["bandwidth_matrix"]).iter().enumerate() {
            for (column, cell) in list(line).iter().enumerate() {
                cells
                    .extend(number(cell).filter(|value| value.is_finite()).map(|value| (row, column, value)));
            }
        }
        matrix(&mut found, test, description, &cells, &at);
    }
    if found.is_empty() {
        let why = word(&top["error"]).unwrap_or("no test ran");
        found.push(Found::none("network", "copy_bandwidth", "GB/s", State::Unknown, why));
    }
    reading(tool, found)
}

/// The test whose lines are being read.
struct Running {
    test: String,
    line: usize,
    /// The line above the matrix, once seen.
    description: String,
    cells: Vec<(usize, usize, f64)>,
}

/// nvbandwidth's text.
#[must_use]
pub fn nvbandwidth_text(text: &str) -> Reading {
    let mut tool = "nvbandwidth".to_owned();
    let mut found = Vec::new();
    let mut running: Option<Running> = None;
    let close = |running: &mut Option<Running>, found: &mut Vec<Found>| {
        if let Some(Running { test, line, description, cells }) = running.take() {
            matrix(found, &test, &description, &cells, &format!("line:{line}"));
        }
    };
    for (index, line) in ended(text).enumerate() {
        let line = line.trim_end();
        if let Some(version) = line.strip_prefix("nvbandwidth Version:") {
            tool = format!("nvbandwidth {}", version.trim());
        } else if let Some(test) = line.strip_prefix("Running ") {
            close(&mut running, &mut found);
            running = Some(Running {
                test: test.trim_end_matches('.').to_owned(),
                line: index + 1,
                description: String::new(),
                cells: Vec::new(),
            });
        } else if let Some(Running { test, description, cells, .. }) = &mut running {
            if line.contains("bandwidth (GB/s)") {
                line.clone_into(description);
            } else if line.to_ascii_lowercase().starts_with("waived") || line.contains("ERROR") {
                let state = if line.contains("ERROR") { State::Unknown } else { State::Unavailable };
                let none = Found::none("network", "copy_bandwidth", "GB/s", state, line.trim());
                found.push(none.param("test", test.as_str()).at(format!("line:{}", index + 1)));
                running = None;
            } else if !description.is_empty() {
                let mut words = line.split_whitespace();
                if let Some(row) = words.next().and_then(|word| word.parse().ok()) {
                    let values: Vec<&str> = words.collect();
                    // The line of column numbers holds no decimal point.
                    if values.iter().any(|word| word.contains('.') || *word == "N/A") {
                        cells.extend(values.iter().enumerate().filter_map(|(column, word)| {
                            word.parse::<f64>()
                                .ok()
                                .filter(|v| v.is_finite())
                                .map(|value| (row, column, value))
                        }));
                    }
                }
            }
        }
    }
    close(&mut running, &mut found);
    if found.is_empty() {
        found.push(Found::none("network", "copy_bandwidth", "GB/s", State::Unknown, "no test ran"));
    }
    Reading { format: "nvbandwidth text", tool, found }
}

/// perftest's tables (ib_write_bw, ib_read_lat ...); none when the text has none of its marks.
#[must_use]
pub fn perftest(text: &str) -> Option<Reading> {
    const TITLES: [&str; 8] = [
        "RDMA_Write BW Test",
        "RDMA_Read BW Test",
        "Send BW Test",
        "Atomic BW Test",
        "RDMA_Write Latency Test",
        "RDMA_Read Latency Test",
        "Send Latency Test",
        "Write_imm",
    ];
    let header = |line: &str| {
        let line = line.trim_start();
        line.starts_with("#bytes") && (line.contains("BW ") || line.contains("[usec]"))
    };
    if !text.lines().any(header) && !TITLES.iter().any(|title| text.contains(title)) {
        return None;
    }
    const STAGE: &str = "network";
    let mut test = "perftest".to_owned();
    let mut device: Option<String> = None;
    let mut columns: Option<Vec<String>> = None;
    let mut failure: Option<&str> = None;
    let mut found: Vec<Found> = Vec::new();
    let mut tables = 0i64;
    for (index, line) in ended(text).enumerate() {
        let plain = line.trim();
        if let Some(title) = TITLES.iter().find(|title| plain.contains(*title)) {
            title.trim_end_matches(" Test").replace(' ', "_").to_ascii_lowercase().clone_into(&mut test);
            columns = None;
        } else if let Some((_, rest)) = plain.split_once("Device         :") {
            device = Some(rest.trim().to_owned());
        } else if header(line) {
            let wide = plain.replacen("#bytes #iterations", "#bytes  #iterations", 1).replace('\t', "  ");
            columns = Some(
                wide.split("  ").map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect(),
            );
            tables += 1;
        } else if ["Couldn't ", "Unable to ", "Failed to ", "Completion with error", "did not find"]
            .iter()
            .any(|mark| plain.contains(mark))
        {
            failure.get_or_insert(plain);
        } else if let Some(columns) = &columns {
            let words: Vec<&str> = plain.split_whitespace().collect();
            let Some(size) = words.first().and_then(|word| word.parse::<i64>().ok()) else { continue };
            for (name, word) in columns.iter().zip(&words).skip(2) {
                let Ok(value) = word.parse::<f64>() else { continue };
                let (metric, unit, stat, value) = match name.as_str() {
                    "BW peak[Gb/sec]" => ("rdma_bandwidth", "Gb/s", "peak", value),
                    "BW average[Gb/sec]" => ("rdma_bandwidth", "Gb/s", "average", value),
                    // perftest's MB are 2^20 bytes.
                    "BW peak[MB/sec]" | "BW peak[MiB/sec]" => {
                        ("rdma_bandwidth", "Gb/s", "peak", value * 8.388_608e-3)
                    }
                    "BW average[MB/sec]" | "BW average[MiB/sec]" => {
                        ("rdma_bandwidth", "Gb/s", "average", value * 8.388_608e-3)
                    }
                    "t_typical[usec]" => ("rdma_latency", "us", "typical", value),
                    "t_avg[usec]" => ("rdma_latency", "us", "average", value),
                    "t_min[usec]" => ("rdma_latency", "us", "min", value),
                    "t_max[usec]" => ("rdma_latency", "us", "max", value),
                    "99% percentile[usec]" => ("rdma_latency", "us", "p99", value),
                    "99.9% percentile[usec]" => ("rdma_latency", "us", "p99.9", value),
                    _ => continue,
                };
                // A peak of 0 means that --duration or --noPeak was given.
                if value <= 0.0 && stat == "peak" {
                    continue;
                }
                let one = if value > 0.0 {
                    Found::value(STAGE, metric, unit, value)
                } else {
                    Found::none(STAGE, metric, unit, State::Unknown, "nothing was transferred")
                };
                let one = one.param("test", test.as_str()).param("size", size).param("stat", stat);
                let one = if tables > 1 { one.param("table", tables) } else { one };
                found.push(one.maybe("device", device.clone()).at(format!("line:{}", index + 1)));
            }
        }
    }
    if found.is_empty() {
        let why = failure.unwrap_or("there is no result row: the test was stopped or could not connect");
        let metric =
            if test.contains("latency") { ("rdma_latency", "us") } else { ("rdma_bandwidth", "Gb/s") };
        found.push(Found::none(STAGE, metric.0, metric.1, State::Unknown, why).param("test", test.as_str()));
    }
    Some(Reading { format: "perftest", tool: format!("perftest {test}"), found })
}

/// torchtitan's log lines `step: N  loss: ...  tps: ...`; none when there are none.
#[must_use]
pub fn torchtitan(text: &str) -> Option<Reading> {
    const STAGE: &str = "train";
    struct Step {
        step: i64,
        line: usize,
        values: BTreeMap<String, f64>,
    }
    let mut ranks: BTreeMap<u64, Vec<Step>> = BTreeMap::new();
    for (index, raw) in ended(text).enumerate() {
        let Some(begin) = raw.find("step:") else { continue };
        // A step of the validation trains nothing.
        if raw.get(..begin).is_some_and(|before| before.trim_end().ends_with("validate")) {
            continue;
        }
        let clean = crate::collect::nccl::strip_escapes(&raw[begin..]);
        // torchrun's `[rank3]:`; without it the log is one rank's.
        let rank = raw
            .find("[rank")
            .and_then(|at| raw[at + 5..].split_once(']'))
            .and_then(|(digits, _)| digits.parse().ok())
            .unwrap_or(0);
        let mut values = BTreeMap::new();
        let mut words = clean.split_whitespace().peekable();
        while let Some(key) = words.next() {
            let Some(key) = key.strip_suffix(':') else { continue };
            let Some(word) = words.peek() else { break };
            let digits: String = word
                .chars()
                .take_while(|c| c.is_ascii_digit() || matches!(c, '.' | ',' | '-' | '+' | 'e'))
                .collect();
            let value =
                if word.starts_with("nan") { Some(f64::NAN) } else { digits.replace(',', "").parse().ok() };
            if let Some(value) = value {
                values.insert(key.to_owned(), value);
                words.next();
            }
        }
        let speed = values.contains_key("tps") || values.contains_key("wps");
        if let (Some(step), true, true) = (values.get("step").copied(), values.contains_key("loss"), speed) {
            ranks.entry(rank).or_default().push(Step { step: step as i64, line: index + 1, values });
        }
    }
    let (rank, steps) = ranks.into_iter().next()?;
    // The first logged step holds compilation and warm-up.
    let settled = if steps.len() >= 3 { &steps[1..] } else { &steps[..] };
    let mut found = Vec::new();
    let logged =
        format!("median of {} logged steps of rank {rank}, the first logged step left out", settled.len());
    for (keys, metric, unit) in [
        (["tps", "wps"], "tokens_per_second_per_rank", "1/s"),
        (["tflops", "tflops"], "model_flops", "TFLOP/s"),
        (["mfu", "mfu"], "mfu", "percent"),
    ] {
        let mut seen: Vec<f64> =
            settled.iter().filter_map(|s| s.values.get(keys[0]).or(s.values.get(keys[1])).copied()).collect();
        if seen.is_empty() {
            continue;
        }
        seen.sort_by(f64::total_cmp);
        let value = seen[seen.len() / 2];
        let one = if value > 0.0 {
            Found::value(STAGE, metric, unit, value).remark(if metric == "mfu" {
                format!("{logged}; peak and FLOP formula are the program's own")
            } else {
                logged.clone()
            })
        } else {
            Found::none(STAGE, metric, unit, State::Unknown, format!("the median is {value}"))
        };
        found.push(one.param("steps", settled.len() as i64).at(format!("line:{}", settled[0].line)));
    }
    for (metric, step) in [("loss_first", steps.first()), ("loss_last", steps.last())] {
        if let Some(step) = step {
            let loss = step.values.get("loss").copied().unwrap_or(f64::NAN);
            let one = Found::value(STAGE, metric, "", loss);
            found.push(one.param("step", step.step).at(format!("line:{}", step.line)));
        }
    }
    Some(Reading { format: "torchtitan log", tool: "torchtitan".to_owned(), found })
}

/// Results of vLLM's (or SGLang's) `bench serve`: one document a run, or one a line.
#[must_use]
pub fn vllm(text: &str) -> Reading {
    const STAGE: &str = "inference";
    let mut found = Vec::new();
    for (index, run) in json::read_all(text).iter().enumerate() {
        let mut params: BTreeMap<String, Scalar> = BTreeMap::new();
        for (key, param) in [("model_id", "model"), ("backend", "backend"), ("endpoint_type", "backend")] {
            if let Some(text) = word(&run[key]) {
                params.insert(param.to_owned(), text.into());
            }
        }
        for (key, param) in
            [("max_concurrency", "concurrency"), ("num_prompts", "prompts"), ("request_rate", "request_rate")]
        {
            match number(&run[key]) {
                Some(value) if value.is_finite() => {
                    params.insert(param.to_owned(), Scalar::Float(value).canonical());
                }
                Some(_) => {
                    params.insert(param.to_owned(), "inf".into());
                }
                None => {}
            }
        }
        if index > 0 {
            params.insert("result".to_owned(), (index as i64).into());
        }
        let completed = number(&run["completed"]);
        let asked = number(&run["num_prompts"]);
        let push = |mut one: Found, key: &str, found: &mut Vec<Found>| {
            one.params.extend(params.iter().map(|(k, v)| (k.clone(), v.clone())));
            found.push(one.at(format!("/{key}")));
        };
        if let (Some(completed), Some(asked)) = (completed, asked) {
            push(
                Found::value(STAGE, "requests_failed", "", (asked - completed).max(0.0)),
                "completed",
                &mut found,
            );
        }
        let nothing = completed == Some(0.0);
        for (key, metric) in [
            ("request_throughput", "request_throughput"),
            ("output_throughput", "output_tokens_per_second"),
            ("total_token_throughput", "total_tokens_per_second"),
            // SGLang's name for the same.
            ("total_throughput", "total_tokens_per_second"),
        ] {
            match number(&run[key]) {
                Some(value) if value > 0.0 && !nothing => {
                    push(Found::value(STAGE, metric, "1/s", value), key, &mut found)
                }
                Some(_) => {
                    let why = "no request was completed";
                    push(Found::none(STAGE, metric, "1/s", State::Unknown, why), key, &mut found);
                }
                None => {}
            }
        }
        for (name, metric) in [
            ("ttft", "ttft"),
            ("tpot", "tpot"),
            ("itl", "itl"),
            ("e2el", "e2e_latency"),
            ("e2e_latency", "e2e_latency"),
        ] {
            for stat in ["mean", "median", "p50", "p90", "p95", "p99"] {
                let key = format!("{stat}_{name}_ms");
                if let Some(value) = number(&run[key.as_str()]).filter(|_| !nothing) {
                    push(Found::value(STAGE, metric, "ms", value).param("stat", stat), &key, &mut found);
                }
            }
        }
    }
    if found.is_empty() {
        let why = "the document is cut short or damaged";
        found.push(Found::none(STAGE, "request_throughput", "1/s", State::Unknown, why));
    }
    // Both write the same keys; these two are SGLang's alone.
    if text.contains("\"mean_e2e_latency_ms\"") || text.contains("\"sharegpt_output_len\"") {
        return Reading { format: "SGLang bench JSON", tool: "sglang.bench_serving".to_owned(), found };
    }
    Reading { format: "vLLM bench JSON", tool: "vllm bench serve".to_owned(), found }
}
