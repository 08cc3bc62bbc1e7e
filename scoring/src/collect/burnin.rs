//! Stage `burnin`: `parts.json` lists the attempts; of each, `part-K/rank-N.json` is what a rank found wrong, with a trace of
//! at most 600 points, and `part-K/NODE.samples` a line a second of what the node's devices did (`samples`).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::io::{self, Read, Seek as _, SeekFrom};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::ranks::{self, Member, Slowed};
use super::samples::{self, Device, Samples};
use super::{Draft, Raw, RawFile};
use crate::record::{Provenance, Record, State};
use crate::straggler::{self, cause::Facts};

/// The list of attempts, below `raw/burnin/`.
pub const PARTS: &str = "parts.json";

/// One attempt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// Its number, from 1; its folder is `part-NUMBER`.
    pub part: u32,
    /// Nodes that it ran on.
    pub nodes: Vec<String>,
    /// How long all of them worked.
    pub seconds: f64,
    /// How it ended; none while it runs.
    pub ended: Option<String>,
    /// A node or rank failed, which counts against the cluster; an interruption does not.
    pub failure: bool,
}

/// Seconds between two writes of a rank's document.
const REWRITTEN: f64 = 10.0;

/// How long all nodes of a part worked, by their own files; 0 of none. Samples go on while a job is halted (suspended, frozen),
/// and are a second behind at most; ranks count what they worked, and are up to ten seconds behind: what the samples
/// show beyond that is no burn-in time.
#[must_use]
pub fn seconds_of(folder: &Path) -> f64 {
    let files = |end: &'static str| {
        let paths = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
        paths.filter(move |path| path.to_string_lossy().ends_with(end))
    };
    let least = files(".samples").filter_map(|path| last_second(&path).ok()).min();
    // A node that could not write its samples still has what its ranks wrote.
    let ranks = files(".json").filter_map(|path| {
        let document: serde_json::Value = serde_json::from_slice(&fs::read(path).ok()?).ok()?;
        let behind = if document["complete"] == true { 0.0 } else { REWRITTEN };
        let seconds = document["seconds"].as_f64()?;
        Some((seconds, seconds + behind))
    });
    let worked = ranks.reduce(|a, b| (a.0.min(b.0), a.1.min(b.1)));
    match (least.map(f64::from), worked) {
        (Some(sampled), Some((_, most))) => sampled.min(most),
        (Some(seconds), None) | (None, Some((seconds, _))) => seconds,
        (None, None) => 0.0,
    }
}

/// Second of the last whole line of samples; hours of them end in a few kilobytes.
fn last_second(path: &Path) -> io::Result<u32> {
    const TAIL: u64 = 1 << 16;
    let mut file = fs::File::open(path)?;
    let length = file.metadata()?.len();
    for tail in [TAIL, length] {
        file.seek(SeekFrom::Start(length.saturating_sub(tail)))?;
        let mut bytes = Vec::new();
        Read::by_ref(&mut file).take(tail).read_to_end(&mut bytes)?;
        let text = String::from_utf8_lossy(&bytes);
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        // The first line of a tail is the end of one, unless it is the file's.
        let skip = usize::from(tail < length);
        let second = whole.lines().skip(skip).filter_map(|line| line.split_once(' ')?.0.parse().ok()).last();
        if let Some(second) = second {
            return Ok(second);
        }
    }
    Ok(0)
}

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
    /// Seconds that it worked, in this part.
    seconds: f64,
    /// Seconds that it did not, because something held it.
    #[serde(default)]
    halted: f64,
    wrong: i64,
    differing: i64,
    slowed: Option<Slowed>,
    /// Seconds since the start, iterations, and medians of a second or more: wall and CPU seconds of a product, wall
    /// seconds of an iteration.
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

    /// The device, in whatever part it took.
    fn place(&self) -> (String, i64) {
        (self.node.clone(), self.local_rank)
    }
}

type Ranked<'a> = (u32, &'a RawFile, Burnin);

/// `part-K/NAME`: K and NAME; what lies outside of a part's folder is of part 1.
fn in_part(name: &str) -> (u32, &str) {
    let part = name.strip_prefix("part-").and_then(|rest| rest.split_once('/'));
    part.and_then(|(number, name)| Some((number.parse().ok()?, name))).unwrap_or((1, name))
}

/// Reads `raw/burnin/`.
pub(super) fn read(raw: &Raw) -> Vec<Record> {
    let mut records = Vec::new();
    let mut read: Vec<Ranked> = Vec::new();
    for file in &raw.files {
        let (part, name) = in_part(&file.name);
        if !(name.starts_with("rank-") && name.ends_with(".json")) {
            continue;
        }
        let text = raw.text(file);
        match serde_json::from_str::<Burnin>(&text) {
            Ok(document) => read.push((part, file, document)),
            Err(error) => {
                let why = format!("{} is not complete: {error}", file.evidence.file);
                records.push(raw.missing("burnin_wrong", "", State::Unknown, why).param("file", name).done());
            }
        }
    }
    read.sort_by_key(|(part, _, document)| (*part, document.rank));
    // What ended a part left the ranks' documents up to ten seconds behind; and ranks that nobody ended in time may have worked
    // on beside the next part: the list says how long it was.
    for part in parts(raw).map(|(_, parts)| parts).unwrap_or_default() {
        let ended = part.ended.is_some_and(|ended| ended != "complete");
        for (.., document) in read.iter_mut().filter(|(number, ..)| ended && *number == part.part) {
            document.seconds = part.seconds.min(document.seconds + REWRITTEN);
        }
    }
    let mut of_device: BTreeMap<(String, i64), Vec<&Ranked>> = BTreeMap::new();
    for one in &read {
        of_device.entry(one.2.place()).or_default().push(one);
    }
    let files = sample_files(raw);
    let nodes: BTreeSet<&str> =
        of_device.keys().map(|(node, _)| node.as_str()).chain(files.keys().copied()).collect();
    let mut of_nodes = Vec::new();
    let mut facts: BTreeMap<(String, i64), Facts> = BTreeMap::new();
    // Node by node: what one did for hours is megabytes, and there are thousands.
    for node in nodes {
        let found = files.get(node).and_then(|files| node_samples(raw, files));
        let devices = (node.to_owned(), i64::MIN)..=(node.to_owned(), i64::MAX);
        for (_, parts) in of_device.range(devices) {
            rank_records(raw, parts, found.as_ref(), &mut records);
        }
        if let Some((file, found)) = &found {
            facts.extend((0..).zip(&found.devices).map(|(gpu, one)| ((node.to_owned(), gpu), one.facts())));
            node_records(raw, node, file, found, &mut of_nodes);
        }
    }
    // Ranks change places between parts: they are compared within the longest one.
    let longest = longest(&read);
    let of_longest = || read.iter().filter(|(part, ..)| Some(*part) == longest);
    let facts: Vec<Facts> = of_longest()
        .map(|(.., document)| facts.get(&document.place()).copied().unwrap_or_default())
        .collect();
    let members: Vec<Member> = of_longest()
        .map(|(_, file, document)| Member {
            rank: document.rank,
            node: &document.node,
            gpu: document.gpu(),
            wall: straggler::windows(&document.column(2), straggler::RULE.windows),
            cpu: straggler::windows(&document.column(3), straggler::RULE.windows),
            evidence: file.at("/samples"),
        })
        .collect();
    let slowed = read.iter().find_map(|(.., document)| document.slowed);
    records.extend(ranks::compare_by(raw, "burn-in gemm", &members, slowed, &straggler::RULE, &facts));
    records.append(&mut of_nodes);
    records.extend(interruptions(raw));
    records.push(bound(raw, &read));
    for node in raw.folder.run.nodes.iter().filter(|node| !read.iter().any(|(.., d)| d.node == **node)) {
        records.push(raw.absent("burnin_wrong", "").on(node).done());
        records.push(raw.absent("burnin_seconds", "s").on(node).done());
    }
    records
}

fn longest(read: &[Ranked]) -> Option<u32> {
    read.iter().max_by(|a, b| a.2.seconds.total_cmp(&b.2.seconds).then(b.0.cmp(&a.0))).map(|(part, ..)| *part)
}

/// Each node's files, in the order of the parts.
fn sample_files(raw: &Raw) -> BTreeMap<&str, Vec<&RawFile>> {
    let mut files: Vec<(u32, &str, &RawFile)> = raw
        .files
        .iter()
        .filter_map(|file| {
            let (part, name) = in_part(&file.name);
            Some((part, name.strip_suffix(".samples")?, file))
        })
        .collect();
    files.sort_by_key(|(part, node, _)| (*part, *node));
    let mut nodes: BTreeMap<&str, Vec<&RawFile>> = BTreeMap::new();
    for (_, node, file) in files {
        nodes.entry(node).or_default().push(file);
    }
    nodes
}

/// A node's samples over all parts, with the first file as evidence.
fn node_samples<'a>(raw: &Raw, files: &[&'a RawFile]) -> Option<(&'a RawFile, Samples)> {
    let (first, later) = files.split_first()?;
    let mut all = samples::read(&raw.text(first));
    for file in later {
        all.join(samples::read(&raw.text(file)));
    }
    Some((first, all))
}

/// Records of one device over all parts that it took.
fn rank_records(
    raw: &Raw,
    parts: &[&Ranked],
    samples_of: Option<&(&RawFile, Samples)>,
    records: &mut Vec<Record>,
) {
    let Some((_, file, document)) = parts.iter().max_by(|a, b| a.2.seconds.total_cmp(&b.2.seconds)) else {
        return;
    };
    let total: f64 = parts.iter().map(|(.., document)| document.seconds).sum();
    let finish = |draft: Draft| {
        let draft = draft
            .on(&document.node)
            .param("rank", document.rank)
            .param("dtype", document.dtype.as_str())
            .tool(&format!("torch {}", document.torch))
            .started(&document.started)
            .seconds(total);
        let mut record = match document.gpu() {
            Some(gpu) => draft.gpu(gpu).done(),
            None => draft.done(),
        };
        if document.slowed.is_some() {
            record.provenance = Provenance::Synthetic;
        }
        record
    };
    let mut length = raw.measured("burnin_seconds", "s", total, file.at("/seconds"));
    let halted: f64 = parts.iter().map(|(.., document)| document.halted).sum();
    let mut words = Vec::new();
    if parts.len() > 1 {
        length.0.provenance = Provenance::Inferred;
        words.push(format!("in {} parts", parts.len()));
    }
    if halted > 0.0 {
        words.push(format!("halted for another {halted:.0} s, which do not count"));
    }
    if !words.is_empty() {
        length = length.detail(words.join("; "));
    }
    records.push(finish(length));
    // The evidence is a part in which something was wrong, where there is one.
    let bad = parts.iter().find(|(.., document)| document.wrong > 0 || document.differing > 0);
    let (wrong, differing) = parts.iter().fold((0i64, 0i64), |(wrong, differing), (.., document)| {
        (wrong.saturating_add(document.wrong), differing.saturating_add(document.differing))
    });
    let detail = format!("{wrong} wrong values of {}, {differing} differing products", document.collective);
    let evidence = bad.map_or(*file, |(_, file, _)| *file).at("/wrong");
    let sum = wrong.saturating_add(differing);
    records.push(finish(raw.measured("burnin_wrong", "", sum as f64, evidence).detail(detail)));
    let times = straggler::windows(&document.column(2), usize::MAX);
    if times.len() < 10 {
        let why = format!("{} seconds of samples, 10 are needed", times.len());
        records.push(finish(raw.missing("burnin_gemm", "TFLOP/s", State::Unknown, why)));
        return;
    }
    let flop = 2.0 * (document.n as f64).powi(3);
    let tenths = straggler::windows(&times, 10);
    let median = straggler::windows(&times, 1);
    // A second's own value is in the node's samples; the trace joins seconds of a long run.
    let device = samples_of.and_then(|(file, found)| {
        Some((*file, found.devices.get(usize::try_from(document.local_rank).ok()?)?))
    });
    let slowest = device.and_then(|(file, device)| {
        let known = samples::sorted(device.product.get(2..)?);
        Some((file.evidence.clone(), f64::from(*known.last()?) * 1e-6))
    });
    let slowest = slowest.or_else(|| {
        let most = times.iter().copied().reduce(f64::max)?;
        Some((file.at("/samples"), most))
    });
    let speed = |stat: &str, seconds: f64, evidence| {
        finish(raw.measured("burnin_gemm", "TFLOP/s", flop / seconds / 1e12, evidence).param("stat", stat))
    };
    records.push(speed("median", median[0], file.at("/samples")));
    if let Some((evidence, seconds)) = slowest {
        records.push(speed("slowest_second", seconds, evidence));
    }
    let drop = (1.0 - tenths[0] / tenths[9]) * 100.0;
    let detail = "speed of the last tenth of the time below that of the first; negative: faster";
    records.push(finish(raw.measured("burnin_drop", "percent", drop, file.at("/samples")).detail(detail)));
    if let Some((file, device)) = device {
        device_records(raw, file, device, &finish, records);
    }
}

/// NVML's reasons in words, those of the clocks that somebody set left out.
const REASONS: [(u64, &str); 6] = [
    (0x4, "power cap"),
    (0x8, "hardware slowdown"),
    (0x10, "sync boost"),
    (0x20, "thermal slowdown by the driver"),
    (0x40, "thermal slowdown by hardware"),
    (0x80, "power brake"),
];

/// Heat, power, clocks, throttling and latency of one device.
fn device_records(
    raw: &Raw,
    file: &RawFile,
    device: &Device,
    finish: &impl Fn(Draft) -> Record,
    records: &mut Vec<Record>,
) {
    for (field, metric, unit, stats) in [
        (0, "burnin_temperature", "C", [("median", 50), ("max", 100)]),
        (1, "burnin_power", "W", [("median", 50), ("max", 100)]),
        (2, "burnin_clock", "MHz", [("median", 50), ("min", 0)]),
    ] {
        let known = samples::sorted(&device.hardware[field]);
        // What no sensor tells is told once.
        let Some(_) = known.first() else {
            let why = "the device does not tell it to this user";
            records.push(finish(raw.missing(metric, unit, State::Unavailable, why)));
            continue;
        };
        for (stat, percent) in stats {
            let Some(value) = samples::quantile(&known, percent) else { continue };
            let draft = raw.measured(metric, unit, value, file.evidence.clone());
            records.push(finish(draft.param("stat", stat)));
        }
    }
    let (metric, unit) = ("burnin_throttled", "percent");
    records.push(finish(if device.told == 0 {
        raw.missing(metric, unit, State::Unavailable, "the device does not tell whether it throttles")
    } else {
        let share = device.throttled as f64 / device.told as f64 * 100.0;
        let words: Vec<&str> =
            REASONS.iter().filter(|(bit, _)| device.reasons & bit != 0).map(|(_, word)| *word).collect();
        let words = if words.is_empty() { "no reason".to_owned() } else { words.join(", ") };
        raw.measured(metric, unit, share, file.evidence.clone())
            .detail(format!("{} of {} seconds: {words}", device.throttled, device.told))
    }));
    let known = samples::sorted(&device.exchange);
    for percent in [50, 99] {
        if let Some(micros) = samples::quantile(&known, percent) {
            let draft = raw.measured("burnin_latency", "ms", micros / 1e3, file.evidence.clone());
            records.push(finish(draft.param("percentile", percent as i64)));
        }
    }
}

/// Links and kernel of one node.
fn node_records(raw: &Raw, node: &str, file: &RawFile, found: &Samples, records: &mut Vec<Record>) {
    let grown: u64 = found.counters.values().map(|(first, last)| last - first).sum();
    let names: Vec<String> = found
        .counters
        .iter()
        .map(|(name, (first, last))| format!("{name} +{}", last - first))
        .take(10)
        .collect();
    let mut detail = if names.is_empty() { "no counter grew".to_owned() } else { names.join(", ") };
    if found.missing > 0 {
        let _ = write!(detail, "; {} of {} seconds have no samples", found.missing, found.seconds + 1);
    }
    let draft = raw.measured("burnin_link_errors", "", grown as f64, file.evidence.clone());
    records.push(draft.detail(detail).on(node).done());
    let (metric, unit) = ("burnin_kernel_lines", "");
    let draft = match &found.head {
        Some(head) if head.kernel == "read" => {
            let first = found.kernel.first().map(|(at, text)| format!("first after {at} s: {text}"));
            raw.measured(metric, unit, found.kernel.len() as f64, file.evidence.clone())
                .detail(first.unwrap_or_else(|| "none of hardware".to_owned()))
        }
        Some(head) => raw.missing(metric, unit, State::Unavailable, head.kernel.as_str()),
        None => raw.missing(metric, unit, State::Unknown, "the file has no first line"),
    };
    records.push(draft.on(node).done());
}

fn parts(raw: &Raw) -> Option<(&RawFile, Vec<Part>)> {
    let file = raw.file(PARTS)?;
    Some((file, file.json().ok()?))
}

fn interruptions(raw: &Raw) -> Vec<Record> {
    let Some((file, parts)) = parts(raw) else { return Vec::new() };
    let ended: Vec<String> = parts
        .iter()
        .filter(|part| part.ended.as_deref() != Some("complete"))
        .map(|part| {
            let how = part.ended.as_deref().unwrap_or("it was running when this was read");
            format!("part {} after {:.0} s: {how}", part.part, part.seconds)
        })
        .collect();
    let detail = if ended.is_empty() { "one part, to its end".to_owned() } else { ended.join("; ") };
    vec![
        raw.measured("burnin_interruptions", "", ended.len() as f64, file.evidence.clone())
            .detail(detail)
            .done(),
    ]
}

/// Largest mean number of failures for which so few, or fewer, still come with 5 % probability (Poisson): 3.0 for none.
fn upper(failures: u32) -> f64 {
    let (mut low, mut high) = (0.0, f64::from(failures) * 3.0 + 10.0);
    for _ in 0..60 {
        let mean = f64::midpoint(low, high);
        // In logarithms: the first term of many failures is below the smallest number.
        let (mut term, mut sum) = (-mean, 0.0);
        for count in 0..=failures {
            sum += term.exp();
            term += (mean / f64::from(count + 1)).ln();
        }
        if sum > 0.05 { low = mean } else { high = mean }
    }
    low
}

/// Failures per 1,000 node-days below which the true rate lies with 95 % confidence.
fn rate_bound(failures: u32, node_days: f64) -> f64 {
    // 3 / node-days is what everybody quotes; exactly 2.996.
    let mean = if failures == 0 { 3.0 } else { upper(failures) };
    mean / node_days * 1000.0
}

/// Failures per 1,000 node-days of healthy fleets at most (Meta: 2.3 and 6.5; Llama 3: 3.8). A bound below it says something of
/// reliability.
const FLEETS: f64 = 7.0;

/// What a burn-in proves: an upper bound of the failure rate at 95 % confidence, from the node-days that it saw and the failures
/// in them.
fn bound(raw: &Raw, read: &[Ranked]) -> Record {
    let (metric, unit) = ("failure_rate_bound", "1/1000 node-days");
    let clean = read.iter().all(|(.., document)| document.wrong == 0 && document.differing == 0);
    let Some(last) = read.iter().map(|(part, ..)| *part).max() else {
        return raw.absent(metric, unit).done();
    };
    let of_last: Vec<&Ranked> = read.iter().filter(|(part, ..)| *part == last).collect();
    let whole = of_last.first().is_some_and(|(.., first)| of_last.len() == first.ranks)
        && of_last.iter().all(|(.., document)| document.complete);
    if !whole || !clean {
        let why =
            if clean { "not every rank came to its end" } else { "values were wrong: there was a failure" };
        return raw.missing(metric, unit, State::Unknown, why).done();
    }
    let mut node_seconds = 0.0;
    let (mut most, mut seconds) = (0, 0.0);
    let mut numbers: Vec<u32> = read.iter().map(|(part, ..)| *part).collect();
    numbers.dedup();
    for number in numbers {
        let of_part = || read.iter().filter(|(part, ..)| *part == number);
        let nodes: BTreeSet<&str> = of_part().map(|(.., document)| document.node.as_str()).collect();
        let shortest = of_part().map(|(.., document)| document.seconds).fold(f64::INFINITY, f64::min);
        node_seconds += nodes.len() as f64 * shortest;
        most = most.max(nodes.len());
        seconds += shortest;
    }
    let listed = parts(raw).map(|(_, parts)| parts).unwrap_or_default();
    let failures =
        u32::try_from(listed.iter().filter(|part| part.failure).count()).unwrap_or(u32::MAX).min(1000);
    let evidence = of_last[0].1.at("/seconds");
    let what = match failures {
        0 => "no failure".to_owned(),
        1 => "one failure".to_owned(),
        many => format!("{many} failures"),
    };
    let bound = rate_bound(failures, node_seconds / 86_400.0);
    let mut record = raw
        .measured(metric, unit, bound, evidence)
        .detail(format!(
            "{what} on {most} nodes in {seconds:.0} s of matrix products and {} at the same time: the true rate is below this with \
             95 % confidence (healthy fleets: 2 to 7). A burn-in finds defects; this one {}",
            of_last[0].2.collective,
            if bound > FLEETS {
                "is far too short to show reliability"
            } else {
                "shows a rate of failures that is no worse than theirs"
            }
        ))
        .done();
    record.provenance = Provenance::Inferred;
    record
}

#[cfg(test)]
mod tests {
    use super::super::StageState;
    use super::super::tests::{collected, find};
    use super::*;

    #[test]
    fn the_bound_of_some_failures_is_poissons() {
        // Half of chi-square's 95 % point for 2 k + 2 degrees of freedom, from tables.
        for (failures, expected) in
            [(0, 2.996), (1, 4.744), (2, 6.296), (3, 7.754), (5, 10.513), (10, 16.962), (100, 118.079)]
        {
            assert!((upper(failures) - expected).abs() < 0.001, "{failures}: {}", upper(failures));
        }
        assert!((1_053.0..1_054.5).contains(&upper(1000)), "{}", upper(1000));
    }

    /// Section 5.2 by hand: mean / (nodes x hours / 24) x 1000.
    #[test]
    fn the_bound_by_hand() {
        for (nodes, hours, failures, expected) in [
            (1.0, 24.0, 0, 3000.0),
            (64.0, 8.0, 0, 140.625),
            (512.0, 8.0, 0, 17.578),
            (1000.0, 8.0, 0, 9.0),
            // A thousand nodes need 10.3 hours for 7, the worst of healthy fleets.
            (1000.0, 10.2857, 0, 7.0),
            (64.0, 8.0, 1, 222.371),
            (64.0, 8.0, 2, 295.112),
            (512.0, 8.0, 10, 99.387),
        ] {
            let found = rate_bound(failures, nodes * hours / 24.0);
            assert!((found / expected - 1.0).abs() < 1e-4, "{nodes} {hours} {failures}: {found}");
        }
    }

    #[test]
    fn what_was_halted_or_counted_twice_is_no_burn_in_time() {
        // Part 1 was ended after 40 s by its samples, its ranks worked on beside part 2; that one was suspended for an hour.
        let list = r#"[{"part":1,"nodes":["n1"],"seconds":40.0,"ended":"the suite was ended","failure":false},
            {"part":2,"nodes":["n1"],"seconds":50.0,"ended":"complete","failure":false}]"#;
        let one = rank("n1", 0, 70, 0, false, 1);
        let two = rank("n1", 0, 60, 0, true, 1).replace(r#""wrong""#, r#""halted":3600.0,"wrong""#);
        let files = [(PARTS, list), ("part-1/rank-0.json", &*one), ("part-2/rank-0.json", &*two)];
        let (_dir, records) = collected("burnin", StageState::Done, &files);
        let time = find(&records, "burnin_seconds", &[("node", "n1")]);
        assert_eq!(time.value, Some(100.0));
        assert_eq!(time.detail.as_deref(), Some("in 2 parts; halted for another 3600 s, which do not count"));
        let bound = find(&records, "failure_rate_bound", &[]);
        assert!((bound.value.unwrap() / (3.0 / (100.0 / 86_400.0) * 1000.0) - 1.0).abs() < 1e-9, "{bound:?}");
        let said = bound.detail.as_deref().unwrap();
        assert!(
            said.starts_with(
                "no failure on 1 nodes in 100 s of matrix products and alltoall at the same time"
            ),
            "{said}"
        );
    }

    #[test]
    fn samples_of_a_halted_part_are_no_burn_in_time() {
        let folder = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        put("n1.samples", "{}\n0 1\n1 1\n3700 1\n");
        put("rank-0.json", r#"{"seconds":95.0}"#);
        put("rank-1.json", r#"{"seconds":93.0}"#);
        assert_eq!(seconds_of(folder.path()), 103.0);
        put("n1.samples", "{}\n0 1\n1 1\n99 1\n");
        assert_eq!(seconds_of(folder.path()), 99.0);
        fs::remove_file(folder.path().join("n1.samples")).unwrap();
        assert_eq!(seconds_of(folder.path()), 93.0);
        // A document that came to its end is not behind.
        put("n1.samples", "{}\n0 1\n1 1\n3700 1\n");
        put("rank-1.json", r#"{"seconds":93.0,"complete":true}"#);
        assert_eq!(seconds_of(folder.path()), 93.0);
    }

    fn rank(node: &str, rank: u32, seconds: u32, wrong: u32, complete: bool, ranks: u32) -> String {
        let samples: Vec<String> = (1..=seconds).map(|s| format!("[{s}.0,100,0.004,0.004,0.006]")).collect();
        format!(
            r#"{{"torch":"2.6","device":"cuda","ranks":{ranks},"started":"2026-11-30T20:00:01Z","complete":{complete},"node":"{node}",
            "rank":{rank},"local_rank":0,"collective":"alltoall","dtype":"bfloat16","n":1000,"seconds":{seconds}.0,"wrong":{wrong},
            "differing":0,"slowed":null,"samples":[{}]}}"#,
            samples.join(",")
        )
    }

    fn file(seconds: u32, hot: u32) -> String {
        let mut text = "{\"schema\":\"clustermax-samples/1\",\"kernel\":\"read\"}\n".to_owned();
        text.push_str("0 50,600,1700,2600,0,5,4000,4000,6000\n+0 mlx5_0/1/symbol_error 7\n");
        for second in 1..=seconds {
            let product = if second == 30 { 8000 } else { 4000 };
            let throttle = if second > seconds - 10 { "8" } else { "0" };
            text.push_str(&format!("{second} {hot},,,,{throttle},,{product}\n"));
        }
        text
    }

    /// n2 is lost in the first part, and the second goes on with n1 alone.
    #[test]
    fn parts_of_an_interrupted_burn_in_are_one_burn_in() {
        let list = r#"[{"part":1,"nodes":["n1","n2"],"seconds":60.0,"ended":"node n2 was lost","failure":true},
            {"part":2,"nodes":["n1"],"seconds":40.0,"ended":"complete","failure":false}]"#;
        let (one, two, three) =
            (rank("n1", 0, 60, 0, false, 2), rank("n2", 1, 60, 0, false, 2), rank("n1", 0, 40, 0, true, 1));
        let (first, other, second) = (file(60, 70), file(60, 65), file(40, 80));
        let first =
            format!("{first}+50 mlx5_0/1/symbol_error 9\n!51 NVRM: Xid (PCI:0000:18:00): 94\n52 torn");
        let files = [
            (PARTS, list),
            ("part-1/rank-0.json", one.as_str()),
            ("part-1/rank-1.json", &two),
            ("part-2/rank-0.json", &three),
            ("part-1/n1.samples", &first),
            ("part-1/n2.samples", &other),
            ("part-2/n1.samples", &second),
        ];
        let (_dir, records) = collected("burnin", StageState::Done, &files);
        let of = |metric: &str, node: &str, more: &[(&str, &str)]| {
            find(&records, metric, &[&[("node", node)][..], more].concat()).clone()
        };
        assert_eq!(of("burnin_seconds", "n1", &[]).value, Some(100.0));
        assert_eq!(of("burnin_seconds", "n2", &[]).value, Some(60.0));
        assert_eq!(of("burnin_temperature", "n1", &[("stat", "max")]).value, Some(80.0));
        assert_eq!(of("burnin_temperature", "n1", &[("stat", "median")]).value, Some(70.0));
        assert_eq!(of("burnin_power", "n2", &[("stat", "max")]).value, Some(600.0));
        let throttled = of("burnin_throttled", "n1", &[]);
        assert!((throttled.value.unwrap() - 20.0 / 102.0 * 100.0).abs() < 1e-6, "{throttled:?}");
        assert!(throttled.detail.unwrap().contains("hardware slowdown"));
        assert_eq!(of("burnin_latency", "n1", &[("percentile", "99")]).value, Some(6.0));
        // 2 * 1000^3 in 4 ms and, in the slowest second, in 8 ms.
        assert_eq!(of("burnin_gemm", "n1", &[("stat", "median")]).value, Some(0.5));
        assert_eq!(of("burnin_gemm", "n1", &[("stat", "slowest_second")]).value, Some(0.25));
        let links = of("burnin_link_errors", "n1", &[]);
        assert_eq!((links.value, links.detail.as_deref()), (Some(2.0), Some("mlx5_0/1/symbol_error +2")));
        let kernel = of("burnin_kernel_lines", "n1", &[]);
        assert!(kernel.value == Some(1.0) && kernel.detail.unwrap().contains("Xid"));
        let cut = find(&records, "burnin_interruptions", &[]);
        assert!(cut.value == Some(1.0) && cut.detail.as_deref().unwrap().contains("node n2 was lost"));
        // 160 node-seconds with one failure.
        let bound = find(&records, "failure_rate_bound", &[]);
        let expected = 4.744 / (160.0 / 86_400.0) * 1000.0;
        assert!((bound.value.unwrap() / expected - 1.0).abs() < 1e-3, "{bound:?}");
        assert!(bound.detail.as_deref().unwrap().starts_with("one failure on 2 nodes in 100 s"), "{bound:?}");
    }

    /// Four nodes with a GPU each: a rank whose product takes `micros`, at that heat, clock and throttle.
    fn fleet(of: [(u32, u32, u32, u32); 4]) -> Vec<Record> {
        let mut files = Vec::new();
        for (at, (micros, heat, clock, throttle)) in of.into_iter().enumerate() {
            let node = format!("n{}", at + 1);
            let slow = format!(",0.00{micros},0.00{micros},");
            let text = rank(&node, at as u32, 60, 0, true, 4).replace(",0.004,0.004,", &slow);
            files.push((format!("part-1/rank-{at}.json"), text));
            let mut text = "{\"schema\":\"clustermax-samples/1\",\"kernel\":\"read\"}\n".to_owned();
            text.push_str(&format!("0 {heat},650,{clock},2600,{throttle:x},5,4000,4000,6000\n"));
            text.extend((1..=60).map(|second| format!("{second} \n")));
            files.push((format!("part-1/{node}.samples"), text));
        }
        let files: Vec<(&str, &str)> = files.iter().map(|(name, text)| (&**name, &**text)).collect();
        collected("burnin", StageState::Done, &files).1
    }

    #[test]
    fn a_slow_gpu_of_a_burn_in_is_named_with_its_likely_cause() {
        let usual = (4, 60, 1900, 4);
        let records = fleet([usual, (5, 88, 1500, 0x44), usual, usual]);
        let signal = ("signal", "burn-in gemm");
        assert_eq!(find(&records, "stragglers", &[signal]).value, Some(1.0));
        let slow = find(&records, "straggler", &[signal, ("node", "n2"), ("kind", "persistent")]);
        assert_eq!(slow.subject.gpu, Some(0));
        assert!((slow.value.unwrap() - 25.0).abs() < 1e-6, "{slow:?}");
        assert!(
            slow.detail.as_deref().unwrap().ends_with(
                "likely cause: hardware thermal slowdown; clock 1500 MHz, the others' 1900; temperature 88 C, the others' 60"
            ),
            "{slow:?}"
        );
        // Hot, capped and at a low clock, but as fast as the others: nobody is named.
        let calm = fleet([usual, (4, 88, 1500, 0x44), usual, usual]);
        assert_eq!(find(&calm, "stragglers", &[signal]).value, Some(0.0));
        assert!(!calm.iter().any(|record| record.metric == "straggler"));
    }

    #[test]
    fn a_rank_that_cannot_be_compared_is_named() {
        let texts: Vec<String> = (0..4)
            .map(|at| rank(&format!("n{}", at + 1), at, if at == 2 { 5 } else { 60 }, 0, true, 4))
            .collect();
        let names: Vec<String> = (0..4).map(|at| format!("part-1/rank-{at}.json")).collect();
        let files: Vec<(&str, &str)> =
            names.iter().zip(&texts).map(|(name, text)| (&**name, &**text)).collect();
        let (_dir, records) = collected("burnin", StageState::Done, &files);
        let none = find(&records, "stragglers", &[]);
        assert_eq!(none.state, State::Unavailable);
        assert!(none.detail.as_deref().unwrap().ends_with("10 are needed: rank 2 on n3 g0"), "{none:?}");
    }

    #[test]
    fn what_a_device_does_not_tell_is_unavailable() {
        let text = "{\"schema\":\"clustermax-samples/1\",\"kernel\":\"unavailable: Permission denied\"}\n0 -,-,-,-,-,1,4000,4000,6000\n1 \n";
        let one = rank("n1", 0, 60, 0, true, 1);
        let files = [("part-1/rank-0.json", one.as_str()), ("part-1/n1.samples", text)];
        let (_dir, records) = collected("burnin", StageState::Done, &files);
        for metric in
            ["burnin_temperature", "burnin_power", "burnin_clock", "burnin_throttled", "burnin_kernel_lines"]
        {
            assert_eq!(find(&records, metric, &[("node", "n1")]).state, State::Unavailable, "{metric}");
        }
    }
}
