//! What nccl-tests or rccl-tests wrote: one table for each start of `nccl-tests/launch.tsv`, what all of them together
//! hint at, every iteration of one size, and NCCL's settings with their origin.

use std::collections::{BTreeMap, BTreeSet};

use super::torch::dtype;
use super::{Draft, Raw, RawFile, nccl};
use crate::read::hints::{self, Shape};
use crate::read::iterations;
use crate::record::{Evidence, Record, Scalar, State};
use crate::straggler::pairs::Met;

/// A line of `launch.tsv`: collective, ranks, nodes, how it ended, command, file, params. Runs of earlier releases have five columns.
struct Launch<'a> {
    collective: &'a str,
    ranks: i64,
    nodes: i64,
    /// An exit code, `limit SECONDS`, `not-run`, `no-time` or `absent`.
    end: &'a str,
    command: &'a str,
    file: String,
    /// `variant`, or `pair` and `round`, and their values.
    params: Vec<(&'a str, &'a str)>,
}

impl<'a> Launch<'a> {
    fn of(line: &'a str) -> Option<Self> {
        let words: Vec<&str> = line.split('\t').collect();
        let [collective, ranks, nodes, end, command, more @ ..] = &words[..] else { return None };
        Some(Self {
            collective,
            ranks: ranks.parse().ok()?,
            nodes: nodes.parse().ok()?,
            end,
            command,
            file: more.first().map_or_else(|| format!("{collective}_perf.txt"), |file| (*file).to_owned()),
            params: more.get(1).map_or_else(Vec::new, |text| {
                text.split(';').filter_map(|param| param.split_once('=')).collect()
            }),
        })
    }

    fn param(&self, name: &str) -> Option<&'a str> {
        self.params.iter().find(|(key, _)| *key == name).map(|(_, value)| *value)
    }

    /// Why it wrote nothing that could be read; none where it ended by itself.
    fn not_ended(&self) -> Option<(State, String)> {
        let program = format!("{}_perf", self.collective);
        match self.end {
            "absent" => Some((
                State::Unavailable,
                format!("there is no {program} beside the other programs of nccl-tests"),
            )),
            "not-run" => Some((
                State::Unknown,
                format!("{program} was not started: others before it hung, and were stopped"),
            )),
            "no-time" => Some((
                State::Unknown,
                format!(
                    "{program} was not started: the rest of the stage's time is kept for torch.distributed"
                ),
            )),
            end => {
                let seconds = end.strip_prefix("limit ")?;
                let text = format!(
                    "{program} did not end within {seconds} s and was stopped; its log and what ncclras said lie beside it"
                );
                Some((State::Unknown, text))
            }
        }
    }

    fn base(&self, draft: Draft) -> Draft {
        let draft = draft
            .param("collective", self.collective)
            .param("ranks", self.ranks)
            .param("nodes", self.nodes)
            .param("tool", "nccl-tests")
            .command(self.command);
        self.params.iter().fold(draft, |draft, (key, value)| match value.parse::<i64>() {
            Ok(number) => draft.param(key, number),
            Err(_) => draft.param(key, *value),
        })
    }
}

/// Records of everything in `nccl-tests/`.
pub fn read(raw: &Raw, records: &mut Vec<Record>) {
    settings(raw, records);
    if let Some(file) = raw.file("nccl-tests/unavailable.txt") {
        let mut draft = raw.missing("busbw", "GB/s", State::Unavailable, file.text.trim());
        draft.0.evidence = Some(file.evidence.clone());
        records.push(draft.param("collective", "all_reduce").param("tool", "nccl-tests").done());
        return;
    }
    if let Some(file) = raw.file("nccl-tests/one-node.txt") {
        let mut draft = raw.missing("busbw", "GB/s", State::Unavailable, file.text.trim());
        draft.0.evidence = Some(file.evidence.clone());
        let nodes = i64::try_from(raw.folder.run.nodes.len()).unwrap_or(0);
        records.push(
            draft.param("collective", "all_reduce").param("tool", "nccl-tests").param("nodes", nodes).done(),
        );
    }
    if let Some(file) = raw.file("nccl-tests/no-inspector.txt") {
        let mut draft = raw.missing("iteration_variation", "percent", State::Unavailable, file.text.trim());
        draft.0.evidence = Some(file.evidence.clone());
        records.push(draft.param("collective", "all_reduce").param("tool", "nccl-inspector").done());
    }
    let Some(launches) = raw.file("nccl-tests/launch.tsv") else { return };
    let network = raw.file("nccl-tests/network.txt").and_then(|file| file.text.trim().parse().ok());
    let mut shapes = Vec::new();
    for launch in launches.text.lines().filter_map(Launch::of) {
        if let Some((state, why)) = launch.not_ended() {
            records.push(launch.base(raw.missing("busbw", "GB/s", state, why)).done());
        } else if launch.param("variant") == Some("per_iteration") {
            every_iteration(raw, &launch, records);
        } else if launch.param("variant") == Some("inspector") {
            inspected(raw, &launch, records);
        } else {
            table(raw, &launch, network, records, &mut shapes);
        }
    }
    pairs(raw, &launches.evidence, records);
    let all: BTreeSet<String> = shapes.iter().flat_map(hints::of).chain(hints::together(&shapes)).collect();
    if !shapes.is_empty() {
        let all: Vec<String> = all.into_iter().collect();
        let detail = if all.is_empty() { "no known signature of a fault".to_owned() } else { all.join("; ") };
        let draft = raw.measured("collective_hints", "", all.len() as f64, launches.evidence.clone());
        records.push(draft.param("tool", "nccl-tests").detail(detail).done());
    }
}

fn table(
    raw: &Raw,
    launch: &Launch,
    network: Option<f64>,
    records: &mut Vec<Record>,
    shapes: &mut Vec<Shape>,
) {
    let Some(file) = raw.file(&format!("nccl-tests/{}", launch.file)) else {
        records.push(launch.base(raw.absent("busbw", "GB/s")).done());
        return;
    };
    let out = nccl::read(&file.text);
    let backend = if out.version.as_deref().is_some_and(|version| version.starts_with("rccl")) {
        "rccl"
    } else {
        "nccl"
    };
    let tool = out.version.clone().unwrap_or_else(|| "nccl-tests".to_owned());
    let base = |draft: Draft| launch.base(draft).param("backend", backend).tool(&tool);
    if let Some(why) = refuse(&out, launch, network) {
        let mut draft = raw.missing("busbw", "GB/s", State::Unknown, why);
        draft.0.evidence = Some(file.evidence.clone());
        records.push(base(draft).done());
    } else {
        measured(raw, file, &out, &choices(raw, launch), &base, records);
        shapes.push(shape(&out, launch, network));
    }
    let validated = out.validated
        && matches!(out.state, nccl::State::Ok | nccl::State::WrongValues | nccl::State::NothingMeasured);
    let wrong = if validated {
        raw.measured("wrong_values", "", out.wrong as f64, file.evidence.clone())
    } else {
        let why = format!("{}_perf: {}, values not validated", launch.collective, out.state.word());
        raw.missing("wrong_values", "", State::Unknown, why)
    };
    records.push(base(wrong).done());
}

/// Algorithm and protocol that NCCL's log names for each size: what an in-switch reduction (NVLS) shows is no wire speed.
fn choices(raw: &Raw, launch: &Launch) -> BTreeMap<u64, String> {
    let label = launch.file.strip_suffix("_perf.txt").unwrap_or(&launch.file);
    let mut found = BTreeMap::new();
    for file in &raw.files {
        // `nccl-LABEL.HOST.PID.log`; a label may hold dots, NCCL cuts the host's name at its first.
        let name = file.name.strip_prefix("nccl-tests/nccl-").and_then(|name| name.strip_suffix(".log"));
        if name.and_then(|name| name.rsplitn(3, '.').nth(2)) == Some(label) {
            found.extend(raw.text(file).lines().filter_map(choice));
        }
    }
    found
}

/// `AllReduce: 1024 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..1}`, or numbers in older releases.
fn choice(line: &str) -> Option<(u64, String)> {
    const ALGORITHMS: [&str; 7] =
        ["Tree", "Ring", "CollNet direct", "CollNet chain", "NVLS", "NVLS tree", "PAT"];
    const PROTOCOLS: [&str; 3] = ["LL", "LL128", "Simple"];
    let (before, after) = line.split_once(" Bytes -> Algo ")?;
    let size = before.rsplit(' ').next()?.parse().ok()?;
    let (algorithm, rest) = after.split_once(" proto ")?;
    let protocol = rest.split_whitespace().next()?;
    let name = |names: &[&str], word: &str| match word.parse::<usize>() {
        Ok(number) => names.get(number).map(|name| (*name).to_owned()),
        Err(_) => Some(word.to_owned()),
    };
    let words = format!("{}, {}", name(&ALGORITHMS, algorithm)?, name(&PROTOCOLS, protocol)?);
    Some((size, format!("NCCL took {words}")))
}

fn measured(
    raw: &Raw,
    file: &RawFile,
    out: &nccl::Output,
    choices: &BTreeMap<u64, String>,
    base: &impl Fn(Draft) -> Draft,
    records: &mut Vec<Record>,
) {
    for (position, row) in out.rows.iter().enumerate().filter(|(_, row)| row.size > 0) {
        let Some(timing) = row.out_of_place.or(row.in_place) else { continue };
        let values = [
            ("busbw", "GB/s", timing.busbw),
            ("algbw", "GB/s", timing.algbw),
            ("collective_time", "us", timing.time),
        ];
        for (metric, unit, value) in values {
            let mut draft = raw
                .measured(metric, unit, value, file.at(format!("line:{}", row.line)))
                .param("size", i64::try_from(row.size).unwrap_or(i64::MAX))
                .param("dtype", dtype(&row.dtype));
            // Sizes are rounded down to whole elements, so two rows may have the same.
            if out.rows[..position].iter().any(|before| before.size == row.size) {
                draft = draft.param("repeat", i64::try_from(position).unwrap_or(i64::MAX));
            }
            if row.out_of_place.is_none() {
                draft = draft.param("placement", "in_place");
            }
            if let Some(choice) = choices.get(&row.size).filter(|_| metric == "busbw") {
                draft = draft.detail(choice.clone());
            }
            records.push(base(draft).done());
        }
    }
}

fn shape(out: &nccl::Output, launch: &Launch, network: Option<f64>) -> Shape {
    let whole = |number: i64| u64::try_from(number).unwrap_or(0);
    let model = out.models.iter().next().map(String::as_str);
    Shape {
        collective: launch.collective.to_owned(),
        nodes: whole(launch.nodes),
        ranks: whole(launch.ranks),
        variant: match launch.param("pair") {
            Some(_) => "pair".to_owned(),
            None => launch.param("variant").unwrap_or_default().to_owned(),
        },
        rows: out
            .rows
            .iter()
            .filter_map(|row| {
                row.out_of_place.or(row.in_place).map(|timing| (row.size, timing.time, timing.busbw))
            })
            .collect(),
        expected: hints::expected(
            model,
            launch.collective,
            whole(launch.nodes),
            whole(launch.ranks),
            network,
        ),
    }
}

/// Why the table is no measurement of this launch; none when it is one.
fn refuse(out: &nccl::Output, launch: &Launch, network: Option<f64>) -> Option<String> {
    let (collective, ranks) = (launch.collective, launch.ranks);
    if out.state != nccl::State::Ok {
        let failure = out.failure.as_ref().map_or(String::new(), |line| format!(": {line}"));
        let end = if launch.end == "0" { String::new() } else { format!(" (exit code {})", launch.end) };
        return Some(format!("{collective}_perf: {}{failure}{end}", out.state.word()));
    }
    // A missed NCCL_TESTS_MIN_BW ends with an error too, and is a valid measurement.
    if launch.end != "0" && !out.min_bw_failed {
        return Some(format!("{collective}_perf ended with exit code {}", launch.end));
    }
    if i64::try_from(out.devices) != Ok(ranks) {
        return Some(format!(
            "{collective}_perf lists {} ranks, {ranks} were started: they ran apart",
            out.devices
        ));
    }
    if i64::try_from(out.hosts.len()) != Ok(launch.nodes) && !out.hosts.is_empty() {
        return Some(format!(
            "{collective}_perf lists {} hosts, {} nodes were given: the tasks did not spread over them",
            out.hosts.len(),
            launch.nodes
        ));
    }
    if let Some(seen) = out.ranks_from_ratio(collective) {
        // The printed rounding blurs the ratio; 10 % is beyond it for any bandwidth worth reading.
        let best =
            out.best().and_then(|row| row.out_of_place.or(row.in_place)).map_or(0.0, |timing| timing.algbw);
        if best > 20.0 && (seen - ranks as f64).abs() > (ranks as f64 * 0.1).max(1.0) {
            return Some(format!(
                "busbw / algbw of {collective}_perf means {seen:.0} ranks, {ranks} were started"
            ));
        }
    }
    let nodes = u64::try_from(out.hosts.len()).unwrap_or(0);
    let why = crate::read::collectives::implausible(
        out,
        collective,
        u64::try_from(ranks).unwrap_or(0),
        nodes,
        network,
    )?;
    Some(format!("{collective}_perf: {why}"))
}

/// Of each pair the largest message once more, by its two nodes, and who is slow of all that met.
fn pairs(raw: &Raw, evidence: &Evidence, records: &mut Vec<Record>) {
    let mut best: BTreeMap<(String, i64), &Record> = BTreeMap::new();
    let size = |record: &Record| record.params.get("size").and_then(Scalar::as_f64).unwrap_or(0.0);
    for record in records.iter().filter(|record| record.metric == "busbw" && record.value.is_some()) {
        let (Some(pair), Some(Scalar::Int(round))) = (record.params.get("pair"), record.params.get("round"))
        else {
            continue;
        };
        let old = best.entry((pair.to_string(), *round)).or_insert(record);
        if size(record) > size(old) {
            *old = record;
        }
    }
    let (mut met, mut made) = (Vec::new(), Vec::new());
    for ((pair, round), record) in best {
        let (Some((a, b)), Some(speed), Some(evidence)) =
            (pair.split_once(','), record.value, record.evidence.clone())
        else {
            continue;
        };
        met.push(Met { nodes: [a, b].map(str::to_owned), speed });
        let mut draft = raw.measured("pair_bandwidth", "GB/s", speed, evidence);
        for key in ["size", "ranks", "collective"] {
            if let Some(value) = record.params.get(key) {
                draft.0.params.insert(key.to_owned(), value.clone());
            }
        }
        let draft = draft.on(a).param("peer", b).param("round", round).param("tool", "nccl-tests");
        made.push(draft.done());
    }
    if !met.is_empty() {
        let drafts = super::pairs::blamed(raw, &met, evidence).into_iter();
        made.extend(drafts.map(|draft| {
            draft.param("signal", "pair bandwidth").param("clock", "wall").param("tool", "nccl-tests").done()
        }));
    }
    records.extend(made);
}

/// `nccl-tests/iterations.json` (`-I 1 -J`), numbered by the program when it was there already.
fn every_iteration(raw: &Raw, launch: &Launch, records: &mut Vec<Record>) {
    let file = raw.files.iter().find(|file| file.name.starts_with("nccl-tests/iterations.json"));
    let found = file.map(|file| (file, iterations::nccl_tests(&file.text)));
    let Some((file, found)) = found.filter(|(_, found)| !found.is_empty()) else {
        records.push(launch.base(raw.absent("iteration_time", "us")).done());
        return;
    };
    for one in found {
        let mut draft = raw.draft(one.metric, one.unit);
        draft.0.value = one.value;
        draft.0.state = one.state;
        draft.0.detail = one.detail;
        draft.0.evidence = Some(file.at(one.pointer.unwrap_or_default()));
        draft.0.params = one.params;
        records.push(launch.base(draft).done());
    }
}

/// Dumps in `nccl-tests/inspector/`: how much calls vary and who waits least in them. The bandwidth in them is no figure:
/// it was measured under the plug-in.
fn inspected(raw: &Raw, launch: &Launch, records: &mut Vec<Record>) {
    let mut dumps = iterations::Dumps::default();
    let mut first = None;
    for file in raw.files.iter().filter(|file| file.name.starts_with("nccl-tests/inspector/")) {
        dumps.add(&raw.text(file));
        first.get_or_insert(file);
    }
    let reading = dumps.read();
    let found: Vec<_> =
        reading.found.into_iter().filter(|one| one.metric != "busbw" && one.value.is_some()).collect();
    let Some(evidence) = first.map(|file| file.evidence.clone()).filter(|_| !found.is_empty()) else {
        let log = launch.file.trim_end_matches("_perf.txt");
        let why = match launch.end {
            "0" if first.is_some() => {
                "NCCL Inspector's dumps hold no two calls that could be compared".to_owned()
            }
            "0" => format!(
                "NCCL Inspector wrote no dump (NCCL loads it from 2.23 on; see nccl-tests/nccl-{log}.*.log)"
            ),
            end => format!("{}_perf under NCCL Inspector ended with exit code {end}", launch.collective),
        };
        let draft = launch.base(raw.missing("iteration_variation", "percent", State::Unknown, why));
        records.push(draft.param("tool", "nccl-inspector").done());
        return;
    };
    // Its id is another one in every run.
    let only =
        |one: &crate::read::Found| one.params.get("communicator") == found[0].params.get("communicator");
    let one_communicator = found.iter().all(only);
    for mut one in found {
        if one_communicator {
            one.params.remove("communicator");
        }
        let mut draft = raw.draft(one.metric, one.unit);
        draft.0.value = one.value;
        draft.0.state = one.state;
        draft.0.detail = one.detail;
        draft.0.evidence = Some(evidence.clone());
        records.push(launch.base(draft).params(&one.params).tool(&reading.tool).done());
    }
}

/// `nccl-settings.tsv`, and what NCCL says in its own log: each setting once for each place where it comes from, with
/// the nodes when it is not all of them.
fn settings(raw: &Raw, records: &mut Vec<Record>) {
    let mut add = |name: &str, value: &str, origin: &str, on: &str, evidence: Evidence| {
        let draft = raw
            .measured("nccl_setting", "", 1.0, evidence)
            .param("name", name)
            .param("setting", value)
            .param("origin", origin);
        let draft = if on.is_empty() { draft } else { draft.detail(format!("only on {on}")) };
        records.push(draft.done());
    };
    let mut seen: BTreeSet<(String, String)> = BTreeSet::new();
    if let Some(file) = raw.file("nccl-settings.tsv") {
        for (index, line) in file.text.lines().enumerate() {
            // Runs of earlier releases have no nodes.
            if let [name, value, origin, on @ ..] = &line.split('\t').collect::<Vec<_>>()[..] {
                seen.insert(((*name).to_owned(), (*value).to_owned()));
                let on = on.first().copied().unwrap_or_default();
                add(name, value, origin, on, file.at(format!("line:{}", index + 1)));
            }
        }
    }
    for file in raw.files.iter().filter(|file| file.name.ends_with(".log")) {
        for (index, line) in raw.text(file).lines().enumerate() {
            if let Some((name, origin, value)) = setting(line)
                .filter(|(name, _, value)| seen.insert(((*name).to_owned(), (*value).to_owned())))
            {
                add(name, value, origin, "", file.at(format!("line:{}", index + 1)));
            }
        }
    }
}

/// `NCCL INFO NCCL_ALGO set by environment to Ring.`: name, origin, value. What the stage itself sets for its log is none.
fn setting(line: &str) -> Option<(&str, &str, &str)> {
    let (_, rest) = line.split_once("NCCL INFO ")?;
    let (name, rest) = rest.split_once(" set by ")?;
    let known = ["NCCL_", "RCCL_"].iter().any(|prefix| name.starts_with(prefix)) && !name.contains(' ');
    let (origin, value) = rest.split_once(" to ")?;
    (known && !name.starts_with("NCCL_DEBUG"))
        .then(|| (name, origin.trim(), value.trim().trim_end_matches('.')))
}

#[cfg(test)]
mod tests {
    use super::super::StageState;
    use super::super::tests::{collected, find};
    use super::*;

    #[test]
    fn each_start_is_a_table_of_its_own_and_all_together_give_hints() {
        let whole = std::fs::read_to_string(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/tests/data/nccl/v2.19_allreduce.txt"
        ))
        .unwrap();
        let launch = "all_reduce\t8\t1\t0\tall_reduce_perf -b 8\tall_reduce_perf.txt\t\n\
                      all_reduce\t8\t1\t0\tNCCL_P2P_DISABLE=1 all_reduce_perf\tall_reduce.nvlink-off_perf.txt\tvariant=nvlink_off\n";
        let settings = "NCCL_IB_HCA\tmlx5\t/etc/nccl.conf\n\
                        NCCL_IB_HCA\tmlx5_1\t/etc/nccl.conf\tn2\n";
        let log = "n1:1:1 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to eth0\n\
                   n1:1:1 [0] NCCL INFO NCCL_IB_HCA set to mlx5\n\
                   n1:1:1 [0] NCCL INFO NCCL_DEBUG_SUBSYS set by environment to INIT\n";
        let (_dir, records) = collected(
            "collectives",
            StageState::Done,
            &[
                ("nccl-tests/launch.tsv", launch),
                ("nccl-tests/all_reduce_perf.txt", &whole),
                ("nccl-tests/all_reduce.nvlink-off_perf.txt", &whole),
                ("nccl-tests/nccl-all_reduce.n1.1.log", log),
                ("nccl-settings.tsv", settings),
            ],
        );
        let both: Vec<&Record> = records
            .iter()
            .filter(|one| one.metric == "wrong_values" && one.params.contains_key("backend"))
            .collect();
        assert_eq!(both.len(), 2);
        assert!(
            both.iter().any(|one| one.params.get("variant").is_some_and(|v| v.to_string() == "nvlink_off"))
        );
        let hosts = find(&records, "nccl_setting", &[("name", "NCCL_IB_HCA"), ("setting", "mlx5")]);
        assert_eq!(hosts.params["origin"].to_string(), "/etc/nccl.conf");
        let other = find(&records, "nccl_setting", &[("name", "NCCL_IB_HCA"), ("setting", "mlx5_1")]);
        assert_eq!(other.detail.as_deref(), Some("only on n2"));
        let env = find(&records, "nccl_setting", &[("name", "NCCL_SOCKET_IFNAME")]);
        assert_eq!(
            (env.params["origin"].to_string(), env.params["setting"].to_string()),
            ("environment".to_owned(), "eth0".to_owned())
        );
        assert_eq!(records.iter().filter(|one| one.metric == "nccl_setting").count(), 3);
    }

    #[test]
    fn the_algorithm_that_nccl_took_stands_beside_the_figure() {
        let table = std::fs::read_to_string(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/tests/data/nccl/v2.19_allreduce.txt"
        ))
        .unwrap();
        let launch = "all_reduce\t16\t2\t0\tx\tall_reduce_perf.txt\t\n";
        let old = "n1:7:7 [0] NCCL INFO 1048576 Bytes -> Algo 0 proto 1 time 54.7\n";
        let new = "n1:7:7 [0] NCCL INFO AllReduce: 8589934592 Bytes -> Algo NVLS proto SIMPLE channel{Lo..Hi}={0..15}\n\
                   n1:7:7 [0] NCCL INFO 8388608 Bytes -> Algo 99 proto 2 time 1\nBytes -> Algo\n";
        let (_dir, records) = collected(
            "collectives",
            StageState::Done,
            &[
                ("nccl-tests/launch.tsv", launch),
                ("nccl-tests/all_reduce_perf.txt", &table),
                ("nccl-tests/nccl-all_reduce.n1.7.log", &format!("{old}{new}")),
                // Of another start.
                (
                    "nccl-tests/nccl-all_reduce.1-nodes.n1.9.log",
                    "x 67108864 Bytes -> Algo 1 proto 2 time 1\n",
                ),
            ],
        );
        for (size, wanted) in [
            ("1048576", Some("NCCL took Tree, LL128")),
            ("8589934592", Some("NCCL took NVLS, SIMPLE")),
            ("8388608", None),
            ("67108864", None),
        ] {
            let one = find(&records, "busbw", &[("size", size), ("tool", "nccl-tests")]);
            assert_eq!(one.detail.as_deref(), wanted, "{size}");
        }
    }

    /// A start that hung, one that was left out for it, one without a program: each is told, none is a missing file.
    #[test]
    fn starts_that_did_not_end_by_themselves_say_how() {
        let launch = "all_reduce\t16\t2\tlimit 600\tx\tall_reduce_perf.txt\t\n\
                      gather\t16\t2\tnot-run\tx\tgather_perf.txt\t\n\
                      scatter\t16\t2\tno-time\tx\tscatter_perf.txt\t\n\
                      alltoallv\t16\t2\tabsent\tx\talltoallv_perf.txt\t\n\
                      broadcast\t16\t2\t137\tx\tbroadcast_perf.txt\t\n";
        let files = [
            ("nccl-tests/launch.tsv", launch),
            ("nccl-tests/all_reduce_perf.txt", "# nThread 1\n"),
            ("nccl-tests/broadcast_perf.txt", ""),
        ];
        let (_dir, records) = collected("collectives", StageState::Done, &files);
        for (collective, state, words) in [
            ("all_reduce", State::Unknown, "did not end within 600 s"),
            ("gather", State::Unknown, "was not started: others"),
            ("scatter", State::Unknown, "was not started: the rest of the stage's time"),
            ("alltoallv", State::Unavailable, "there is no alltoallv_perf"),
            ("broadcast", State::Unknown, "broadcast_perf: no-table (exit code 137)"),
        ] {
            let one = find(&records, "busbw", &[("collective", collective), ("tool", "nccl-tests")]);
            assert!(
                one.state == state && one.detail.as_deref().unwrap().contains(words),
                "{collective}: {one:?}"
            );
        }
    }

    /// Eight nodes by two, then the two of the slow pair with others, and together once more.
    #[test]
    fn a_slow_link_between_two_nodes_is_named_from_nccl_tests_pairs() {
        let whole = std::fs::read_to_string(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/tests/data/nccl/v2.19_allreduce.txt"
        ))
        .unwrap();
        let slow: String = whole
            .lines()
            .map(|line| {
                let mut words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
                if !line.starts_with('#') && words.len() == 13 {
                    // Twice the time, half of both bandwidths.
                    for (at, factor) in [(5, 2.0), (6, 0.5), (7, 0.5), (9, 2.0), (10, 0.5), (11, 0.5)] {
                        words[at] = format!("{:.2}", words[at].parse::<f64>().unwrap() * factor);
                    }
                    return format!("{}\n", words.join(" "));
                }
                format!("{line}\n")
            })
            .collect();
        assert_ne!(slow, whole);
        let out = nccl::read(&whole);
        let (ranks, hosts) = (out.devices, out.hosts.len());
        let met = [
            ("n1,n2", 1),
            ("n3,n4", 1),
            ("n5,n6", 1),
            ("n7,n8", 1),
            ("n5,n1", 3),
            ("n6,n2", 4),
            ("n6,n1", 4),
            ("n5,n2", 3),
            ("n5,n6", 5),
        ];
        let mut files = vec![("nccl-tests/launch.tsv".to_owned(), String::new())];
        for (pair, round) in met {
            let file = format!("{pair}.{round}_perf.txt");
            files[0].1 += &format!("all_reduce\t{ranks}\t{hosts}\t0\tx\t{file}\tpair={pair};round={round}\n");
            files.push((
                format!("nccl-tests/{file}"),
                if pair == "n5,n6" { slow.clone() } else { whole.clone() },
            ));
        }
        let files: Vec<(&str, &str)> = files.iter().map(|(name, text)| (&**name, &**text)).collect();
        let (_dir, records) = collected("collectives", StageState::Done, &files);
        let of = [("tool", "nccl-tests"), ("signal", "pair bandwidth")];
        assert_eq!(find(&records, "stragglers", &of).value, Some(1.0));
        let one = find(&records, "straggler", &[("node", "n5"), ("peer", "n6"), ("tool", "nccl-tests")]);
        assert!(one.detail.as_deref().unwrap().contains("2 times of 2"), "{one:?}");
        assert_eq!(records.iter().filter(|one| one.metric == "pair_bandwidth").count(), met.len());
        let again = find(&records, "pair_bandwidth", &[("node", "n5"), ("peer", "n6"), ("round", "5")]);
        let good = find(&records, "pair_bandwidth", &[("node", "n5"), ("peer", "n1"), ("round", "3")]);
        let share = again.value.unwrap() / good.value.unwrap();
        assert!((share - 0.5).abs() < 0.01, "{share}");
    }

    #[test]
    fn the_inspectors_dumps_name_the_rank_that_waits_least_and_give_no_bandwidth() {
        let dump = |rank: i64, time: i64| -> String {
            let marker = format!(
                r#"{{"header":{{"id":"0x7f","rank":{rank},"n_ranks":4,"nnodes":2}},"metadata":{{"inspector_output_format_version":"v4.3","hostname":"n{}"}},"dump_stats":{{}}}}"#,
                1 + rank / 2
            );
            let call = |number: i64| {
                format!(
                    r#"{{"coll_perf":{{"coll":"AllReduce","coll_sn":{number},"coll_msg_size_bytes":268435456,"coll_exec_time_us":{time},"coll_busbw_gbs":96.5}}}}"#
                )
            };
            [marker].into_iter().chain((0..20).map(call)).collect::<Vec<_>>().join("\n")
        };
        let dumps: Vec<(String, String)> = (0..4)
            .map(|rank| {
                let file = format!("nccl-tests/inspector/n{}-pid{rank}.log", 1 + rank / 2);
                (file, dump(rank, if rank == 3 { 900 } else { 1000 }))
            })
            .collect();
        let launch = |end: &str| {
            format!("all_reduce\t4\t2\t{end}\tx\tall_reduce.inspector_perf.txt\tvariant=inspector\n")
        };
        let whole = launch("0");
        let mut files: Vec<(&str, &str)> = dumps.iter().map(|(name, text)| (&**name, &**text)).collect();
        files.push(("nccl-tests/launch.tsv", &whole));
        let (_dir, records) = collected("collectives", StageState::Done, &files);
        let of = [("tool", "nccl-inspector"), ("variant", "inspector"), ("size", "268435456")];
        let one = find(&records, "iteration_variation", &of);
        assert!(
            one.detail.as_deref().unwrap().starts_with("rank 3 on n2 waits least in 20 of 20"),
            "{one:?}"
        );
        assert!(
            one.evidence.as_ref().unwrap().file.contains("inspector/")
                && !one.params.contains_key("communicator")
        );
        assert!(!records.iter().any(|one| one.metric == "busbw" && one.params.contains_key("variant")));
        // No dumps, a start that failed, no library: once, with the reason.
        for (file, text, state, words) in [
            ("nccl-tests/launch.tsv", launch("0"), State::Unknown, "wrote no dump"),
            ("nccl-tests/launch.tsv", launch("1"), State::Unknown, "exit code 1"),
            (
                "nccl-tests/no-inspector.txt",
                "NCCL Inspector: there is no library\n".to_owned(),
                State::Unavailable,
                "there is no library",
            ),
        ] {
            let (_dir, records) = collected("collectives", StageState::Done, &[(file, &text)]);
            let all: Vec<&Record> = records
                .iter()
                .filter(|one| one.params.get("tool").is_some_and(|tool| tool.to_string() == "nccl-inspector"))
                .collect();
            assert!(all.len() == 1 && all[0].state == state, "{all:?}");
            assert!(all[0].detail.as_deref().unwrap().contains(words), "{all:?}");
        }
    }

    #[test]
    fn tasks_that_did_not_spread_over_the_nodes_are_refused() {
        let text = std::fs::read_to_string(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/tests/data/nccl/v2.19_allreduce.txt"
        ))
        .unwrap();
        let out = nccl::read(&text);
        let line = format!("all_reduce\t{}\t{}\t0\tx\tf\t", out.devices, out.hosts.len() + 1);
        let why = refuse(&out, &Launch::of(&line).unwrap(), None).unwrap();
        assert!(why.contains("did not spread"), "{why}");
    }

    #[test]
    fn without_mpi_the_missing_worlds_say_why() {
        let (_dir, records) = collected(
            "collectives",
            StageState::Done,
            &[("nccl-tests/one-node.txt", "the programs were built without MPI (make MPI=1)\n")],
        );
        let one = find(&records, "busbw", &[("tool", "nccl-tests"), ("nodes", "2")]);
        assert!(one.state == State::Unavailable && one.detail.as_deref().unwrap().contains("make MPI=1"));
    }
}
