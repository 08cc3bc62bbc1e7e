//! Reader of the text table that nccl-tests and rccl-tests print.
//!
//! Header-driven: columns are found by the words of the header line and rows are read from the right, because the
//! left part may lack a word (hypercube prints no redop) and either placement may be blank. What is not exactly one
//! complete, finite, right table is said in [`State`], never averaged away.

use std::collections::BTreeSet;

/// What a run's output is worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// One complete table, right values.
    Ok,
    /// No table at all.
    NoTable,
    /// More than one table, footer or rank 0: the tasks did not find each other and ran apart.
    SeveralWorlds,
    /// The program said that it failed or timed out.
    Failed,
    /// No footer, or a row is cut: the run was stopped.
    Truncated,
    /// A collective computed wrong values: data corruption, the bandwidth is void.
    WrongValues,
    /// A time or bandwidth is not a finite number.
    NonFinite,
    /// algbw is not size / time: the table cannot be what the program printed.
    Inconsistent,
    /// One rank, or nothing above zero.
    NothingMeasured,
}

impl State {
    /// The word that records and tests use.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::NoTable => "no-table",
            Self::SeveralWorlds => "several-worlds",
            Self::Failed => "failed",
            Self::Truncated => "truncated",
            Self::WrongValues => "wrong-values",
            Self::NonFinite => "non-finite",
            Self::Inconsistent => "inconsistent",
            Self::NothingMeasured => "nothing-measured",
        }
    }
}

/// Time and bandwidth of one placement.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Timing {
    /// Microseconds.
    pub time: f64,
    /// GB/s, 1e9 bytes.
    pub algbw: f64,
    /// GB/s, 1e9 bytes.
    pub busbw: f64,
    /// Wrong elements; none when the run was not validated (N/A) or the column is the old `error` (a delta).
    pub wrong: Option<u64>,
}

/// One row of the table.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// max(send, receive) bytes; rounded down to whole elements a rank, so it may repeat or be 0.
    pub size: u64,
    /// Element type as printed.
    pub dtype: String,
    /// Separate send and receive buffers.
    pub out_of_place: Option<Timing>,
    /// One buffer.
    pub in_place: Option<Timing>,
    /// Line in the file, from 1.
    pub line: usize,
}

impl Row {
    /// Mean busbw over the placements that were measured.
    #[must_use]
    pub fn busbw(&self) -> f64 {
        let all: Vec<f64> = self.placements().map(|t| t.busbw).collect();
        all.iter().sum::<f64>() / all.len() as f64
    }

    fn placements(&self) -> impl Iterator<Item = &Timing> {
        self.out_of_place.iter().chain(self.in_place.iter())
    }
}

/// One output file, read.
#[derive(Debug, Clone, PartialEq)]
pub struct Output {
    /// What it is worth.
    pub state: State,
    /// Header lines seen.
    pub tables: usize,
    /// Rows of the first table, in order.
    pub rows: Vec<Row>,
    /// `Rank` lines: one a GPU.
    pub devices: usize,
    /// Hosts in those lines.
    pub hosts: BTreeSet<String>,
    /// Device names in those lines.
    pub models: BTreeSet<String>,
    /// Wrong elements: what the out-of-bounds footer or, without one, the rows say.
    pub wrong: u64,
    /// Some row of the leading placement was validated.
    pub validated: bool,
    /// `Avg bus bandwidth` as printed: a mean over all sizes, a cross-check and no result.
    pub average: Option<String>,
    /// NCCL_TESTS_MIN_BW was set and missed.
    pub min_bw_failed: bool,
    /// The program's own version line.
    pub version: Option<String>,
    /// Name after `Collective test starting:`, without `_perf`.
    pub collective: Option<String>,
    /// The failure line, when there is one.
    pub failure: Option<String>,
}

impl Output {
    /// The row with the highest busbw.
    #[must_use]
    pub fn best(&self) -> Option<&Row> {
        self.rows
            .iter()
            .filter(|row| row.busbw().is_finite())
            .reduce(|best, row| if row.busbw() > best.busbw() { row } else { best })
    }

    /// busbw / algbw of the best row: the rank count can be read back from it.
    #[must_use]
    pub fn ratio(&self) -> Option<f64> {
        let best = self.best()?;
        let timing = best.out_of_place.or(best.in_place)?;
        (timing.busbw > 0.0 && timing.algbw > 0.0 && timing.algbw.is_finite())
            .then(|| timing.busbw / timing.algbw)
    }

    /// Ranks as the ratio of bandwidths says: 2/(2-r) for all_reduce, 1/(1-r) for all_gather, reduce_scatter,
    /// alltoall, gather and scatter; none for the collectives whose factor is 1.
    #[must_use]
    pub fn ranks_from_ratio(&self, collective: &str) -> Option<f64> {
        let ratio = self.ratio()?;
        let ranks = match collective {
            "all_reduce" => 2.0 / (2.0 - ratio),
            "all_gather" | "reduce_scatter" | "alltoall" | "gather" | "scatter" => 1.0 / (1.0 - ratio),
            _ => return None,
        };
        (ranks.is_finite() && ranks > 0.0).then_some(ranks)
    }
}

/// Where the columns of a header are.
struct Columns {
    /// Columns before the first time: size, count, type, redop, root.
    head: usize,
    /// Columns of one placement, from its time on.
    group: usize,
    /// 1 or 2 placements.
    groups: usize,
    /// The last column of the plain group is `#wrong`, a count.
    counts_wrong: bool,
    /// Index of `#wrong` or `error` in a group.
    wrong: Option<usize>,
    /// Rows end in date and time.
    timestamp: bool,
    /// Character at which the second placement begins.
    second_at: usize,
    /// The only placement of the header is the in-place one.
    only_in_place: bool,
}

impl Columns {
    /// `above` is the line with the words out-of-place and in-place.
    fn of(header: &str, above: &str) -> Option<Self> {
        // Most lines of a long log are no header.
        if !["size", "count", "type"].iter().all(|name| header.contains(name)) {
            return None;
        }
        let mut words: Vec<(usize, &str)> = words(header);
        words.retain(|(_, word)| *word != "#");
        let names: Vec<&str> = words.iter().map(|(_, word)| word.trim_start_matches('#')).collect();
        if !["size", "count", "type"].iter().all(|name| names.contains(name)) {
            return None;
        }
        let is_time = |name: &&str| matches!(*name, "time" | "cputime" | "hipevt");
        let head = names.iter().position(is_time)?;
        let timestamp = names.last() == Some(&"timestamp");
        let end = names.len() - usize::from(timestamp);
        let second = names[head + 1..end].iter().position(is_time).map(|at| at + head + 1);
        let group = second.unwrap_or(end) - head;
        let groups = 1 + usize::from(second.is_some());
        let first = &names[head..head + group];
        if !first.contains(&"algbw") || !first.contains(&"busbw") {
            return None;
        }
        let wrong = first.iter().position(|name| matches!(*name, "wrong" | "error" | "res"));
        Some(Self {
            head,
            group,
            groups,
            counts_wrong: first.contains(&"wrong"),
            wrong,
            timestamp,
            second_at: second.map_or(usize::MAX, |at| words[at].0),
            only_in_place: groups == 1 && above.contains("in-place") && !above.contains("out-of-place"),
        })
    }

    /// A row, or none when it does not have the columns (yet).
    fn row(&self, text: &str, line: usize) -> Option<Row> {
        let width = text.trim_end().chars().count();
        let mut tokens: Vec<&str> = text.split_whitespace().collect();
        if self.timestamp {
            tokens.truncate(tokens.len().checked_sub(2)?);
        }
        let size = tokens.first()?.parse().ok()?;
        tokens.get(1)?.parse::<u64>().ok()?;
        let dtype = (*tokens.get(2)?).to_owned();
        // redop may be an empty word, so the head may be one column short.
        let fits = |groups: usize| {
            let full = self.head + groups * self.group;
            tokens.len() == full || tokens.len() + 1 == full
        };
        let groups = (1..=self.groups).rev().find(|groups| fits(*groups))?;
        let timing = |from_right: usize| -> Option<Timing> {
            let begin = tokens.len().checked_sub(from_right * self.group)?;
            let part = &tokens[begin..begin + self.group];
            Some(Timing {
                time: number(part[0])?,
                algbw: number(part[1])?,
                busbw: number(part[2])?,
                wrong: match self.wrong {
                    Some(at) if self.counts_wrong => {
                        part[at].trim_end_matches('*').parse::<f64>().ok().map(|n| n as u64)
                    }
                    _ => None,
                },
            })
        };
        let (out_of_place, in_place) = if groups == 2 {
            (Some(timing(2)?), Some(timing(1)?))
        } else if self.only_in_place || (self.groups == 2 && width > self.second_at) {
            (None, Some(timing(1)?))
        } else {
            (Some(timing(1)?), None)
        };
        Some(Row { size, dtype, out_of_place, in_place, line })
    }
}

/// Reads the output of one run of one collective.
#[must_use]
pub fn read(text: &str) -> Output {
    let mut out = Output {
        state: State::Ok,
        tables: 0,
        rows: Vec::new(),
        devices: 0,
        hosts: BTreeSet::new(),
        models: BTreeSet::new(),
        wrong: 0,
        validated: false,
        average: None,
        min_bw_failed: false,
        version: None,
        collective: None,
        failure: None,
    };
    let mut columns: Option<Columns> = None;
    let mut above = String::new();
    let mut fragment: Option<(usize, String)> = None;
    let (mut rank_zeros, mut averages, mut concluded, mut started) = (0, 0, false, false);
    let mut bounds: Option<(u64, bool)> = None;
    let mut inconsistent = false;
    for (index, raw) in text.split('\n').enumerate() {
        let number_of_line = index + 1;
        let line = strip_label(&strip_escapes(raw));
        let plain = line.trim_start_matches([' ', '\t', '#']).trim_end();
        if let Some(found) = Columns::of(&line, &above) {
            out.tables += 1;
            fragment = None;
            columns = Some(found);
        } else if let Some(value) = after(plain, "Out of bounds values") {
            let mut words = value.split_whitespace();
            let count = words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
            bounds = Some((count, words.next() == Some("FAILED")));
        } else if let Some(value) = after(plain, "Avg bus bandwidth") {
            averages += 1;
            let mut words = value.split_whitespace();
            out.average = words.next().map(str::to_owned);
            out.min_bw_failed = words.next() == Some("FAILED");
            columns = None;
        } else if let Some(name) = after(plain, "Collective test starting") {
            started = true;
            out.collective = Some(name.trim_end_matches("_perf").to_owned());
        } else if plain.starts_with("Collective test concluded") {
            concluded = true;
        } else if let Some(device) = device(plain) {
            out.devices += 1;
            rank_zeros += usize::from(device.0 == 0);
            out.hosts.insert(device.1);
            if !out.models.contains(device.2) {
                out.models.insert(device.2.to_owned());
            }
        } else if is_failure(plain) {
            out.failure.get_or_insert_with(|| plain.to_owned());
        } else if let Some(version) = version(plain) {
            out.version.get_or_insert(version);
        } else if let Some(columns) = &columns {
            let clean = strip_tags(&line);
            let joined = match &fragment {
                Some((_, begin)) if !begins_row(&clean) => format!("{begin}{clean}"),
                _ => clean.clone(),
            };
            if let Some(row) = columns.row(&joined, number_of_line) {
                fragment = None;
                inconsistent |= columns.wrong.is_some() && is_inconsistent(&row, &joined);
                if out.tables == 1 {
                    out.rows.push(row);
                }
            } else if begins_row(&clean) {
                fragment = Some((number_of_line, clean));
            }
        }
        above = line;
    }
    let leading = |row: &Row| row.out_of_place.or(row.in_place).and_then(|timing| timing.wrong);
    out.validated = out.rows.iter().any(|row| leading(row).is_some());
    let counted: u64 = out.rows.iter().filter_map(leading).sum();
    out.wrong = bounds.map_or(counted, |(count, _)| count.max(counted));
    let finite = |row: &Row| {
        row.placements().all(|t| t.time.is_finite() && t.algbw.is_finite() && t.busbw.is_finite())
    };
    let average_finite = out.average.as_deref().and_then(number).is_some_and(f64::is_finite);
    out.state = if out.tables > 1 || rank_zeros > 1 || averages > 1 {
        State::SeveralWorlds
    } else if out.failure.is_some() {
        State::Failed
    } else if out.tables == 0 {
        State::NoTable
    } else if averages == 0 || bounds.is_none() || fragment.is_some() || (started && !concluded) {
        State::Truncated
    } else if out.wrong > 0 || bounds.is_some_and(|(_, failed)| failed) {
        State::WrongValues
    } else if !average_finite || !out.rows.iter().all(finite) {
        State::NonFinite
    } else if inconsistent {
        State::Inconsistent
    } else if out.devices == 1 || out.best().is_none_or(|row| row.busbw() <= 0.0) {
        State::NothingMeasured
    } else {
        State::Ok
    };
    out
}

/// True when no time within the printed rounding gives the printed algbw. hypercube counts bytes in its own way.
fn is_inconsistent(row: &Row, text: &str) -> bool {
    if row.size == 0 || text.split_whitespace().nth(3).is_none_or(|redop| redop.parse::<f64>().is_ok()) {
        return false;
    }
    row.placements().any(|t| {
        if !(t.time.is_finite() && t.algbw.is_finite()) || t.time <= 0.0 {
            return false;
        }
        // Times are printed with four or more digits or two decimals, whichever is less exact.
        let slack_time = (t.time * 5e-4).max(0.0051);
        let low = row.size as f64 / 1e3 / (t.time + slack_time);
        let high = row.size as f64 / 1e3 / (t.time - slack_time).max(f64::MIN_POSITIVE);
        let slack = (t.algbw * 5e-4).max(0.0051);
        t.algbw + slack < low || t.algbw - slack > high
    })
}

fn words(line: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut at = 0;
    for word in line.split([' ', '\t']) {
        if !word.is_empty() {
            found.push((line[..at].chars().count(), word));
        }
        at += word.len() + 1;
    }
    found
}

/// `%g` numbers as C prints them, "inf" and "-nan" among them.
fn number(word: &str) -> Option<f64> {
    match word.trim_start_matches('-') {
        "nan" => Some(f64::NAN),
        _ => word.parse().ok(),
    }
}

fn begins_row(text: &str) -> bool {
    let mut tokens = text.split_whitespace();
    let whole = |word: Option<&str>| word.is_some_and(|word| word.parse::<u64>().is_ok());
    whole(tokens.next())
        && whole(tokens.next())
        && tokens.next().is_some_and(|w| w.starts_with(|c: char| c.is_ascii_alphabetic()))
}

fn after<'a>(line: &'a str, words: &str) -> Option<&'a str> {
    line.strip_prefix(words)?.trim_start().strip_prefix(':').map(str::trim)
}

/// `Rank  0 [Group 0] Pid 4000 on node00 device 0 [...] name`: rank, host and name.
fn device(line: &str) -> Option<(u64, String, &str)> {
    let rest = line.strip_prefix("Rank")?;
    let mut words = rest.split_whitespace();
    let rank = words.next()?.parse().ok()?;
    let words: Vec<&str> = words.collect();
    let at = words.iter().position(|word| *word == "on")?;
    let model = line.rsplit(']').next().unwrap_or_default().trim();
    words
        .contains(&"device")
        .then(|| (rank, words.get(at + 1).copied().unwrap_or_default().to_owned(), model))
}

fn is_failure(line: &str) -> bool {
    [
        "Test NCCL failure",
        "Test CUDA failure",
        "Test failure",
        "Test timeout",
        "Test RCCL failure",
        "Test HIP failure",
    ]
    .iter()
    .any(|words| line.contains(words))
}

fn version(line: &str) -> Option<String> {
    let line = line.trim_end();
    ["nccl-tests version ", "rccl-tests version ", "rccl-tests: Version "]
        .iter()
        .find_map(|words| line.strip_prefix(words).map(|rest| (words, rest)))
        .and_then(|(words, rest)| {
            let name = &words[..10];
            rest.split_whitespace().next().map(|version| format!("{name} {version}"))
        })
}

/// Without ANSI escapes and carriage returns.
pub(crate) fn strip_escapes(line: &str) -> String {
    if !line.contains(['\u{1b}', '\r']) {
        return line.to_owned();
    }
    let mut clean = String::with_capacity(line.len());
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        match c {
            '\u{1b}' => {
                // CSI: ESC [ parameters, ended by a letter.
                if chars.next() == Some('[') {
                    for c in chars.by_ref() {
                        if c.is_ascii_alphabetic() {
                            break;
                        }
                    }
                }
            }
            '\r' => {}
            c => clean.push(c),
        }
    }
    clean
}

/// Without a launcher's label: `srun --label` prints `12: `, mpirun `[1,0]<stdout>:`.
fn strip_label(line: &str) -> String {
    let trimmed = line.trim_start();
    if let Some(rest) = trimmed.strip_prefix('[')
        && let Some((tag, rest)) = rest.split_once(']')
        && tag.split(',').all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()))
        && tag.contains(',')
        && let Some(rest) = ["<stdout>:", "<stderr>:"].iter().find_map(|word| rest.strip_prefix(word))
    {
        return rest.to_owned();
    }
    let digits = trimmed.bytes().take_while(u8::is_ascii_digit).count();
    if digits > 0
        && let Some(rest) = trimmed[digits..].strip_prefix(':')
        && (rest.is_empty() || rest.starts_with([' ', '\t']))
    {
        return rest.strip_prefix(' ').unwrap_or(rest).to_owned();
    }
    line.to_owned()
}

/// Without hydra's `[3] `, which comes before every write, so three times in a row.
fn strip_tags(line: &str) -> String {
    let mut clean = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(at) = rest.find('[') {
        let inside = &rest[at + 1..];
        let digits = inside.bytes().take_while(u8::is_ascii_digit).count();
        if digits > 0 && inside[digits..].starts_with(']') {
            clean.push_str(&rest[..at]);
            rest = &inside[digits + 1..];
            rest = rest.strip_prefix(' ').unwrap_or(rest);
        } else {
            clean.push_str(&rest[..=at]);
            rest = inside;
        }
    }
    clean.push_str(rest);
    clean
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/nccl");

    fn sample(name: &str) -> Output {
        let bytes = std::fs::read(format!("{SAMPLES}/{name}")).unwrap();
        read(&String::from_utf8_lossy(&bytes))
    }

    /// The notation of EXPECTED.tsv: both formulas, nan where a formula gives no rank count.
    fn ranks(out: &Output) -> String {
        let Some(ratio) = out.ratio() else { return "-".to_owned() };
        let text = |n: f64| if n.is_finite() && n > 0.0 { format!("{n:.1}") } else { "nan".to_owned() };
        format!("n={}(ar)/{}(ag,rs,a2a)", text(2.0 / (2.0 - ratio)), text(1.0 / (1.0 - ratio)))
    }

    #[test]
    fn every_sample_reads_as_expected() {
        let table = std::fs::read_to_string(format!("{SAMPLES}/EXPECTED.tsv")).unwrap();
        let mut seen = 0;
        for line in table.lines().skip(1) {
            let want: Vec<&str> = line.split('\t').collect();
            let out = sample(want[0]);
            let best = match out.best() {
                Some(row) => format!("{}:{:.2}", row.size, row.busbw()),
                None => "-".to_owned(),
            };
            let note = match (out.min_bw_failed, out.validated || out.rows.is_empty()) {
                (true, _) => "min-bw-FAILED",
                (_, false) => "unvalidated",
                _ => "-",
            };
            let got = [
                want[0].to_owned(),
                out.state.word().to_owned(),
                out.tables.to_string(),
                out.rows.len().to_string(),
                out.devices.to_string(),
                ranks(&out),
                out.wrong.to_string(),
                best,
                out.average.clone().unwrap_or_else(|| "-".to_owned()),
                note.to_owned(),
            ];
            assert_eq!(got.join("\t"), want.join("\t"));
            seen += 1;
        }
        assert_eq!(seen, 21);
    }

    #[test]
    fn an_empty_output_is_no_table() {
        assert_eq!(read("").state, State::NoTable);
        assert_eq!(read("srun: error: task 0: Exited with exit code 1\n").state, State::NoTable);
    }

    #[test]
    fn tasks_that_ran_apart_are_several_worlds() {
        let one = std::fs::read_to_string(format!("{SAMPLES}/v2.13_allreduce.txt")).unwrap();
        let out = read(&format!("{one}\n{one}"));
        assert_eq!((out.state, out.tables), (State::SeveralWorlds, 2));
    }

    #[test]
    fn tags_and_a_log_line_inside_a_row_do_not_lose_it() {
        let text = std::fs::read_to_string(format!("{SAMPLES}/v2.13_allreduce.txt")).unwrap();
        let row = text.lines().find(|line| line.trim_start().starts_with("8388608")).unwrap().to_owned();
        let (left, right) = row.split_at(60);
        let cut = text.replace(&row, &format!("{left}\nnode00:4000:4000 [0] NCCL INFO channel\n{right}"));
        assert_eq!(read(&cut).rows.len(), 6, "{cut}");
        let tagged = text.replace(&row, &format!("[0] {left}[0] {right}"));
        let out = read(&tagged);
        assert_eq!((out.state, out.rows.len()), (State::Ok, 6));
    }

    #[test]
    fn a_bandwidth_that_is_not_size_by_time_is_refused() {
        let text = std::fs::read_to_string(format!("{SAMPLES}/v2.13_allreduce.txt")).unwrap();
        let out = read(&text.replace("  111.36  208.80", "  999.99 1874.98"));
        assert_eq!(out.state, State::Inconsistent);
    }

    proptest::proptest! {
        #[test]
        fn no_text_panics(text in "(?s).{0,400}") {
            let _ = read(&text);
        }

        #[test]
        fn no_cut_of_a_sample_is_taken_for_whole(at in 0usize..2300) {
            let text = std::fs::read_to_string(format!("{SAMPLES}/v2.19_allreduce.txt")).unwrap();
            let end = text.find("# Collective test concluded").unwrap();
            let out = read(&text[..at.min(end)]);
            proptest::prop_assert_ne!(out.state, State::Ok);
        }
    }
}
