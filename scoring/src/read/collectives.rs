//! nccl-tests and rccl-tests beyond the text table: their JSON and reporter files, and what no honest result can be:
//! another rank count than listed, or more than the wires carry.

use std::collections::BTreeSet;

use serde_json::Value;

use super::hints::Shape;
use super::json;
use super::{Found, Hints, Reading};
use crate::collect::nccl::{Output, Row, State as Worth, Timing};
use crate::record::State;

/// NVLink or Infinity Fabric bandwidth of one GPU in one direction, GB/s (vendors' data sheets). A name is matched by
/// part; forms with fewer links are below it, so the ceiling holds for them too.
const LINKS: [(&str, f64); 12] = [
    ("GB300", 900.0),
    ("GB200", 900.0),
    ("B300", 900.0),
    ("B200", 900.0),
    ("GH200", 450.0),
    ("H100", 450.0),
    ("H200", 450.0),
    ("A100", 300.0),
    ("MI355X", 537.6),
    ("MI350X", 537.6),
    ("MI325X", 448.0),
    ("MI300X", 448.0),
];
/// NVLS and other in-switch reductions show more than a wire carries: the factor assumes 2(n-1)/n.
const IN_SWITCH: f64 = 1.1;

/// One-way link bandwidth of a GPU model, GB/s.
#[must_use]
pub fn link(model: &str) -> Option<f64> {
    LINKS.iter().find(|(name, _)| model.contains(name)).map(|(_, bandwidth)| *bandwidth)
}

/// The highest busbw that `ranks` over `nodes` can show, GB/s, and the rule in words. `network` is GB/s per GPU,
/// `link` GB/s one way per GPU; what is not known bounds nothing. None for a collective without a rule.
#[must_use]
pub fn ceiling(
    collective: &str,
    ranks: u64,
    nodes: u64,
    network: Option<f64>,
    link: Option<f64>,
) -> Option<(f64, String)> {
    if ranks < 2 || nodes == 0 || nodes > ranks {
        return None;
    }
    let (n, k) = (ranks as f64, nodes as f64);
    let wire = network.filter(|_| nodes > 1);
    let candidates = match collective {
        "all_reduce" | "all_gather" | "reduce_scatter" => {
            let inside = if collective == "all_reduce" { IN_SWITCH } else { 1.0 };
            [
                wire.map(|b| (b * (n - 1.0) / (k - 1.0), format!("{b} GB/s per GPU x (n-1)/(k-1)"))),
                link.map(|l| {
                    (
                        l * inside,
                        format!(
                            "{l} GB/s GPU link{}",
                            if inside > 1.0 { " +10 % for in-switch reduction" } else { "" }
                        ),
                    )
                }),
            ]
        }
        "alltoall" => [
            wire.map(|b| (b * (n - 1.0) / (n - n / k), format!("{b} GB/s per GPU x (n-1)/(n-g)"))),
            link.filter(|_| nodes == 1).map(|l| (l, format!("{l} GB/s GPU link"))),
        ],
        _ => return None,
    };
    candidates.into_iter().flatten().min_by(|a, b| a.0.total_cmp(&b.0))
}

/// busbw / algbw by nccl-tests' definition.
#[must_use]
pub fn factor(collective: &str, ranks: f64) -> Option<f64> {
    match collective {
        "all_reduce" => Some(2.0 * (ranks - 1.0) / ranks),
        "all_gather" | "reduce_scatter" | "alltoall" | "gather" | "scatter" | "alltoallv" => {
            Some((ranks - 1.0) / ranks)
        }
        "broadcast" | "reduce" | "sendrecv" => Some(1.0),
        _ => None,
    }
}

/// Why a complete, finite table is no result of `ranks` ranks on `nodes` nodes; none when it may be one.
#[must_use]
pub fn implausible(
    out: &Output,
    collective: &str,
    ranks: u64,
    nodes: u64,
    network: Option<f64>,
) -> Option<String> {
    let expected = factor(collective, ranks as f64)?;
    for row in out.rows.iter().filter(|row| row.size > 0) {
        for timing in [row.out_of_place, row.in_place].into_iter().flatten() {
            // Both figures are printed to 0.01 GB/s, to fewer decimals from 10,000 on.
            let slack = |value: f64| (value.abs() * 1e-5).max(0.0051);
            let wanted = timing.algbw * expected;
            if (timing.busbw - wanted).abs() > slack(timing.busbw) + slack(timing.algbw) * expected {
                let seen = match out.ranks_from_ratio(collective) {
                    Some(seen) => format!("means {seen:.0} ranks"),
                    None => "fits no rank count".to_owned(),
                };
                return Some(format!(
                    "busbw / algbw of size {} {seen}, the table lists {ranks}: it was mislabelled, split into groups \
                     (NCCL_TESTS_SPLIT) or ran apart",
                    row.size
                ));
            }
        }
    }
    let link = out.models.iter().filter_map(|model| link(model)).reduce(f64::max);
    let link = link.filter(|_| out.models.iter().all(|model| self::link(model).is_some()));
    let (limit, rule) = ceiling(collective, ranks, nodes, network, link)?;
    let best = out.best()?;
    (best.busbw() > limit * 1.005).then(|| {
        format!(
            "busbw {:.2} GB/s of size {} is above what {ranks} ranks on {nodes} nodes can reach ({limit:.1} GB/s: {rule})",
            best.busbw(),
            best.size
        )
    })
}

/// One spelling for element types.
fn dtype(name: &str) -> &str {
    match name {
        "float32" | "float" => "fp32",
        "float64" | "double" => "fp64",
        "float16" | "half" => "fp16",
        "bfloat16" => "bf16",
        other => other,
    }
}

/// The collective: told, printed, in the file's name, or all_reduce when only that factor fits.
fn collective(out: &Output, hints: &Hints) -> Option<String> {
    let known = |name: &str| factor(name, 2.0).is_some().then(|| name.to_owned());
    if let Some(name) = hints.collective.as_deref().or(out.collective.as_deref()) {
        return Some(name.trim_end_matches("_mpi").trim_end_matches("_perf").to_owned());
    }
    if let Some((name, _)) = hints.name.split_once("_perf")
        && let Some(name) = known(name.rsplit(['-', '.', '/']).next().unwrap_or(name))
    {
        return Some(name);
    }
    let ranks = out.devices as f64;
    let close = |seen: f64| (seen - ranks).abs() <= (ranks * 0.05).max(0.5);
    out.ranks_from_ratio("all_reduce")
        .filter(|seen| ranks > 2.0 && close(*seen))
        .map(|_| "all_reduce".to_owned())
}

/// Records of one table, whatever it was read from.
#[must_use]
pub fn table(out: &Output, hints: &Hints) -> Reading {
    let rccl = out.version.as_deref().is_some_and(|version| version.starts_with("rccl"));
    let tool = out.version.clone().unwrap_or_else(|| "nccl-tests".to_owned());
    let format = if rccl { "rccl-tests" } else { "nccl-tests" };
    rows(out, hints, format, tool, if rccl { "rccl" } else { "nccl" }, |row| format!("line:{}", row.line))
}

fn rows(
    out: &Output,
    hints: &Hints,
    format: &'static str,
    tool: String,
    backend: &str,
    pointer: impl Fn(&Row) -> String,
) -> Reading {
    const STAGE: &str = "collectives";
    let name = collective(out, hints);
    let nodes = out.hosts.len();
    let base = |found: Found| {
        let found = found.param("backend", backend).param("tool", "nccl-tests");
        let found = found.maybe("collective", name.as_deref());
        let found = if out.devices > 0 { found.param("ranks", out.devices as i64) } else { found };
        if nodes > 0 { found.param("nodes", nodes as i64) } else { found }
    };
    let mut found = Vec::new();
    let ranks = out.devices as u64;
    let refused = if out.state != Worth::Ok {
        let failure = out.failure.as_ref().map_or(String::new(), |line| format!(": {line}"));
        Some(format!("{}{failure}", meaning(out.state)))
    } else if let Some(started) = hints.ranks.filter(|started| *started != ranks) {
        Some(format!("the table lists {ranks} ranks, {started} were started: they ran apart"))
    } else {
        name.as_deref().and_then(|name| implausible(out, name, ranks, nodes as u64, hints.network))
    };
    if let Some(why) = refused {
        found.push(base(Found::none(STAGE, "busbw", "GB/s", State::Unknown, why)));
    } else {
        for (position, row) in out.rows.iter().enumerate().filter(|(_, row)| row.size > 0) {
            let Some(timing) = row.out_of_place.or(row.in_place) else { continue };
            for (metric, unit, value) in [
                ("busbw", "GB/s", timing.busbw),
                ("algbw", "GB/s", timing.algbw),
                ("collective_time", "us", timing.time),
            ] {
                let mut one = base(Found::value(STAGE, metric, unit, value))
                    .param("size", i64::try_from(row.size).unwrap_or(i64::MAX))
                    .param("dtype", dtype(&row.dtype))
                    .at(pointer(row));
                if out.rows[..position].iter().any(|before| before.size == row.size) {
                    one = one.param("repeat", position as i64);
                }
                if row.out_of_place.is_none() {
                    one = one.param("placement", "in_place");
                }
                if name.is_none() {
                    one = one.remark("the file does not name the collective: give --collective");
                }
                found.push(one);
            }
        }
    }
    let hints = super::hints::of(&Shape {
        collective: name.clone().unwrap_or_default(),
        nodes: nodes as u64,
        ranks,
        variant: String::new(),
        rows: out
            .rows
            .iter()
            .filter_map(|row| {
                row.out_of_place.or(row.in_place).map(|timing| (row.size, timing.time, timing.busbw))
            })
            .collect(),
        expected: name.as_deref().and_then(|name| {
            let model = out.models.iter().next().map(String::as_str);
            super::hints::expected(model, name, nodes as u64, ranks, hints.network)
        }),
    });
    // At the largest message, and only where there is a result.
    if let Some(last) = found.iter_mut().rev().find(|one| one.metric == "busbw" && one.value.is_some())
        && !hints.is_empty()
    {
        let hints = format!("hint: {}", hints.join("; "));
        last.detail = Some(last.detail.take().map_or(hints.clone(), |detail| format!("{detail}; {hints}")));
    }
    let judged = matches!(out.state, Worth::Ok | Worth::WrongValues | Worth::NothingMeasured);
    found.push(base(if out.validated && judged {
        Found::value(STAGE, "wrong_values", "", out.wrong as f64)
    } else {
        Found::none(STAGE, "wrong_values", "", State::Unknown, "the values were not validated")
    }));
    Reading { format, tool, found }
}

/// The sentence for a table that is no result.
fn meaning(worth: Worth) -> &'static str {
    match worth {
        Worth::Ok => "a result",
        Worth::NoTable => "there is no result table: the program did not get that far",
        Worth::SeveralWorlds => {
            "more than one table or rank 0: the tasks did not find each other and ran apart"
        }
        Worth::Failed => "the program failed",
        Worth::Truncated => "the output is cut short: the run was stopped, or is not over",
        Worth::WrongValues => "wrong values: data corruption, the bandwidth is void",
        Worth::NonFinite => "a time or bandwidth is not a finite number",
        Worth::Inconsistent => "size, time and bandwidth of a row do not agree",
        Worth::NothingMeasured => "one rank, or nothing above zero: nothing was measured",
    }
}

/// `-J FILE`, versions 1 to 3.
#[must_use]
pub fn nccl_json(text: &str, hints: &Hints) -> Reading {
    const FORMAT: &str = "nccl-tests JSON";
    let Some(document) = json::read(text) else {
        let why = "the JSON document is cut short or damaged";
        return Reading {
            format: FORMAT,
            tool: "nccl-tests".to_owned(),
            found: vec![Found::none("collectives", "busbw", "GB/s", State::Unknown, why)],
        };
    };
    let (value, unclosed) = (document.value, document.unclosed);
    let version = value["version"].as_u64().unwrap_or(0);
    let code = value["nccl_version"].as_u64().unwrap_or(0);
    let mut tool = format!("nccl-tests (JSON {version})");
    if code >= 20000 {
        tool = format!("{tool}, NCCL {}.{}.{}", code / 10000, code / 100 % 100, code % 100);
    }
    let out = output(&value, unclosed);
    let mut reading = rows(&out, hints, FORMAT, tool, "nccl", |row| format!("/results/{}", row.line));
    reading.found.extend(super::iterations::of_document(&value).into_iter().map(|one| {
        one.maybe("collective", out.collective.as_deref())
            .param("ranks", out.devices as i64)
            .param("nodes", out.hosts.len() as i64)
            .param("tool", "nccl-tests")
    }));
    reading
}

/// The document as the table it stands for; `line` is the index of the result.
fn output(document: &Value, unclosed: bool) -> Output {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let devices = list(&document["config"]["devices"]);
    let name = document["args"][0].as_str().unwrap_or_default();
    let name = name.rsplit('/').next().unwrap_or(name).trim_end_matches("_mpi").trim_end_matches("_perf");
    let text = |device: &Value, key: &str| device[key].as_str().unwrap_or_default().to_owned();
    let mut out = Output {
        state: Worth::Ok,
        tables: usize::from(document["results"].is_array()),
        rows: Vec::new(),
        devices: devices.len(),
        hosts: devices.iter().map(|device| text(device, "hostname")).collect(),
        models: devices.iter().map(|device| text(device, "device_info")).collect(),
        wrong: 0,
        validated: false,
        average: json::number(&document["average_bus_bandwidth"]["bandwidth"])
            .map(|average| average.to_string()),
        min_bw_failed: json::is(&document["average_bus_bandwidth"]["okay"], "false"),
        version: None,
        collective: (!name.is_empty()).then(|| name.to_owned()),
        failure: list(&document["errors"]).first().map(|error| match error {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        }),
    };
    let mut damaged = false;
    for (index, result) in list(&document["results"]).iter().enumerate() {
        let timing = |place: &Value| -> Option<Timing> {
            let time = json::number(&place["time"]).or_else(|| json::number(&place["cpu_time"]));
            let timing = Timing {
                time: time?,
                algbw: json::number(&place["alg_bw"])?,
                busbw: json::number(&place["bus_bw"])?,
                wrong: json::number(&place["nwrong"]).filter(|wrong| *wrong >= 0.0).map(|wrong| wrong as u64),
            };
            Some(timing)
        };
        let row = Row {
            size: json::number(&result["size"]).unwrap_or(0.0) as u64,
            dtype: text(result, "type"),
            out_of_place: timing(&result["out_of_place"]),
            in_place: timing(&result["in_place"]),
            line: index,
        };
        damaged |= row.out_of_place.is_none() && row.in_place.is_none();
        out.rows.push(row);
    }
    judge(
        &mut out,
        unclosed || document["end_time"].is_null(),
        damaged,
        devices.iter().filter(|d| d["rank"] == 0).count(),
    );
    // "unchecked" counts as neither.
    if let Some(count) = json::number(&document["out_of_bounds"]["count"]) {
        out.wrong = out.wrong.max(count.max(0.0) as u64);
    }
    if out.state == Worth::Ok && (out.wrong > 0 || json::is(&document["out_of_bounds"]["okay"], "false")) {
        out.state = Worth::WrongValues;
    }
    out
}

/// Sets validated, wrong and state from the rows.
fn judge(out: &mut Output, cut: bool, damaged: bool, rank_zeros: usize) {
    let leading = |row: &Row| row.out_of_place.or(row.in_place).and_then(|timing| timing.wrong);
    out.validated = out.rows.iter().any(|row| leading(row).is_some());
    out.wrong = out.rows.iter().filter_map(leading).sum();
    let timings = || out.rows.iter().flat_map(|row| [row.out_of_place, row.in_place].into_iter().flatten());
    let finite = timings().all(|t| t.time.is_finite() && t.algbw.is_finite() && t.busbw.is_finite());
    let agree = out.rows.iter().all(|row| {
        [row.out_of_place, row.in_place].into_iter().flatten().all(|t| {
            let algbw = row.size as f64 / t.time / 1e3;
            row.size == 0 || t.time <= 0.0 || (t.algbw - algbw).abs() <= algbw.abs() * 5e-3 + 0.0051
        })
    });
    let average = out.average.as_deref().and_then(|average| average.parse::<f64>().ok());
    let finite = finite && average.is_none_or(f64::is_finite);
    let hypercube = out.collective.as_deref() == Some("hypercube");
    out.state = if rank_zeros > 1 {
        Worth::SeveralWorlds
    } else if out.failure.is_some() {
        Worth::Failed
    } else if out.tables == 0 {
        Worth::NoTable
    } else if cut {
        Worth::Truncated
    } else if out.wrong > 0 {
        Worth::WrongValues
    } else if damaged || !finite {
        Worth::NonFinite
    } else if !agree && !hypercube {
        Worth::Inconsistent
    } else if out.devices == 1 || out.best().is_none_or(|row| row.busbw() <= 0.0) {
        Worth::NothingMeasured
    } else {
        Worth::Ok
    };
}

/// One record of rccl-tests' reporter.
struct Reported {
    cycle: i64,
    name: String,
    nodes: usize,
    ranks: usize,
    size: u64,
    dtype: String,
    in_place: bool,
    timing: Timing,
}

/// `-X FILE -Z json`
#[must_use]
pub fn reporter_json(text: &str, hints: &Hints) -> Reading {
    let document = json::read(text);
    let unclosed = document.as_ref().is_none_or(|document| document.unclosed);
    let entries = match document.map(|document| document.value) {
        Some(Value::Array(entries)) => entries,
        Some(entry @ Value::Object(_)) => vec![entry],
        _ => Vec::new(),
    };
    let all = entries.iter().map(|entry| reported(|key| entry.get(key).cloned())).collect();
    reporter(all, unclosed, hints)
}

/// `-X FILE -Z csv`; none when the first line is not its header.
#[must_use]
pub fn reporter_csv(text: &str, hints: &Hints) -> Option<Reading> {
    let mut lines = super::tools::ended(text).map(str::trim).filter(|line| !line.is_empty());
    let cells = |line: &str| -> Vec<String> {
        line.split(',').map(|cell| cell.trim().trim_matches('"').to_owned()).collect()
    };
    let header = cells(lines.next()?);
    if !["name", "ranks", "size", "busBw"]
        .iter()
        .all(|key| header.iter().any(|name| name.eq_ignore_ascii_case(key)))
    {
        return None;
    }
    let all = lines
        .map(|line| {
            let cells = cells(line);
            reported(|key| {
                let at = header.iter().position(|name| name.eq_ignore_ascii_case(key))?;
                cells.get(at).map(|cell| Value::String(cell.clone()))
            })
        })
        .collect();
    Some(reporter(all, !text.ends_with('\n'), hints))
}

fn reported(get: impl Fn(&str) -> Option<Value>) -> Option<Reported> {
    let number = |key: &str| get(key).as_ref().and_then(json::number);
    let text = |key: &str| get(key).and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default();
    let count = |key: &str| number(key).filter(|n| (0.0..1e9).contains(n)).map_or(0, |n| n as usize);
    Some(Reported {
        cycle: number("numCycle").unwrap_or(0.0) as i64,
        name: text("name"),
        nodes: count("nodes"),
        ranks: count("ranks"),
        size: number("size")? as u64,
        dtype: text("type"),
        in_place: number("inPlace").is_some_and(|flag| flag != 0.0),
        timing: Timing {
            time: number("time")?,
            algbw: number("algBw")?,
            busbw: number("busBw")?,
            wrong: number("wrong").filter(|wrong| *wrong >= 0.0).map(|wrong| wrong as u64),
        },
    })
}

fn reporter(all: Vec<Option<Reported>>, cut: bool, hints: &Hints) -> Reading {
    const FORMAT: &str = "rccl-tests reporter";
    let damaged = all.iter().any(Option::is_none);
    let mut found = Vec::new();
    let all: Vec<Reported> = all.into_iter().flatten().collect();
    // One table for each collective, cycle and world, in the file's order.
    let mut keys: Vec<(String, i64, usize, usize)> = Vec::new();
    for one in &all {
        let key = (one.name.clone(), one.cycle, one.ranks, one.nodes);
        if !keys.contains(&key) {
            keys.push(key);
        }
    }
    for (name, cycle, ranks, nodes) in &keys {
        let mut out = Output {
            state: Worth::Ok,
            tables: 1,
            rows: Vec::new(),
            devices: *ranks,
            // Only their number is in the file.
            hosts: (0..*nodes).map(|node| node.to_string()).collect(),
            models: BTreeSet::new(),
            wrong: 0,
            validated: false,
            average: None,
            min_bw_failed: false,
            version: None,
            collective: Some(snake(name)),
            failure: None,
        };
        for (index, one) in all.iter().enumerate() {
            if (&one.name, one.cycle, one.ranks, one.nodes) != (name, *cycle, *ranks, *nodes) {
                continue;
            }
            // The placements of one size follow each other.
            let pair = out.rows.last_mut().filter(|row| {
                row.size == one.size
                    && if one.in_place { row.in_place.is_none() } else { row.out_of_place.is_none() }
            });
            match pair {
                Some(row) if one.in_place => row.in_place = Some(one.timing),
                Some(row) => row.out_of_place = Some(one.timing),
                None => out.rows.push(Row {
                    size: one.size,
                    dtype: one.dtype.clone(),
                    out_of_place: (!one.in_place).then_some(one.timing),
                    in_place: one.in_place.then_some(one.timing),
                    line: index,
                }),
            }
        }
        judge(&mut out, cut, damaged, 1);
        let reading =
            rows(&out, hints, FORMAT, "rccl-tests".to_owned(), "rccl", |row| format!("/{}", row.line));
        found.extend(
            reading.found.into_iter().map(|one| if *cycle > 0 { one.param("cycle", *cycle) } else { one }),
        );
    }
    if found.is_empty() {
        found.push(Found::none(
            "collectives",
            "busbw",
            "GB/s",
            State::Unknown,
            "the file holds no whole record",
        ));
    }
    Reading { format: FORMAT, tool: "rccl-tests".to_owned(), found }
}

/// `AllReduce` to `all_reduce`, by nccl-tests' program names.
pub(super) fn snake(name: &str) -> String {
    match name {
        "AlltoAll" | "AllToAll" => return "alltoall".to_owned(),
        "AlltoAllv" | "AllToAllv" => return "alltoallv".to_owned(),
        "SendRecv" => return "sendrecv".to_owned(),
        "HyperCube" => return "hypercube".to_owned(),
        _ => {}
    }
    let mut out = String::new();
    for c in name.chars() {
        if c.is_ascii_uppercase() && !out.is_empty() {
            out.push('_');
        }
        out.push(c.to_ascii_lowercase());
    }
    out
}
