//! What nccl-tests or rccl-tests wrote: one table for each start of `nccl-tests/launch.tsv`, what all of them together
//! hint at, every iteration of one size, and NCCL's settings with their origin.

use std::collections::{BTreeMap, BTreeSet};

use super::torch::dtype;
use super::{Draft, Raw, RawFile, nccl};
use crate::read::hints::{self, Shape};
use crate::read::iterations;
use crate::record::{Record, State};

/// A line of `launch.tsv`: collective, ranks, nodes, exit code, command, file, params. Runs of earlier releases have five columns.
struct Launch<'a> {
    collective: &'a str,
    ranks: i64,
    nodes: i64,
    code: &'a str,
    command: &'a str,
    file: String,
    /// `variant` or `pair`, and its value.
    param: Option<(&'a str, &'a str)>,
}

impl<'a> Launch<'a> {
    fn of(line: &'a str) -> Option<Self> {
        let words: Vec<&str> = line.split('\t').collect();
        let [collective, ranks, nodes, code, command, more @ ..] = &words[..] else { return None };
        Some(Self {
            collective,
            ranks: ranks.parse().ok()?,
            nodes: nodes.parse().ok()?,
            code,
            command,
            file: more.first().map_or_else(|| format!("{collective}_perf.txt"), |file| (*file).to_owned()),
            param: more.get(1).and_then(|param| param.split_once('=')),
        })
    }

    fn base(&self, draft: Draft) -> Draft {
        let draft = draft
            .param("collective", self.collective)
            .param("ranks", self.ranks)
            .param("nodes", self.nodes)
            .param("tool", "nccl-tests")
            .command(self.command);
        match self.param {
            Some((key, value)) => draft.param(key, value),
            None => draft,
        }
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
    let Some(launches) = raw.file("nccl-tests/launch.tsv") else { return };
    let network = raw.file("nccl-tests/network.txt").and_then(|file| file.text.trim().parse().ok());
    let mut shapes = Vec::new();
    for launch in launches.text.lines().filter_map(Launch::of) {
        if launch.param == Some(("variant", "per_iteration")) {
            every_iteration(raw, &launch, records);
        } else {
            table(raw, &launch, network, records, &mut shapes);
        }
    }
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
        measured(raw, file, &out, &base, records);
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

fn measured(
    raw: &Raw,
    file: &RawFile,
    out: &nccl::Output,
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
        variant: match launch.param {
            Some(("pair", _)) => "pair".to_owned(),
            Some((_, variant)) => variant.to_owned(),
            None => String::new(),
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
        return Some(format!("{collective}_perf: {}{failure}", out.state.word()));
    }
    // A missed NCCL_TESTS_MIN_BW ends with an error too, and is a valid measurement.
    if launch.code != "0" && !out.min_bw_failed {
        return Some(format!("{collective}_perf ended with exit code {}", launch.code));
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

/// `nccl-settings.tsv`, and what NCCL says in its own log: each setting once, with where it comes from.
fn settings(raw: &Raw, records: &mut Vec<Record>) {
    let mut seen: BTreeMap<(String, String), (String, &RawFile, usize)> = BTreeMap::new();
    if let Some(file) = raw.file("nccl-settings.tsv") {
        for (index, line) in file.text.lines().enumerate() {
            if let [name, value, origin] = line.split('\t').collect::<Vec<_>>()[..] {
                seen.insert((name.to_owned(), value.to_owned()), (origin.to_owned(), file, index + 1));
            }
        }
    }
    for file in raw.files.iter().filter(|file| file.name.ends_with(".log")) {
        for (index, line) in file.text.lines().enumerate() {
            if let Some((name, origin, value)) = setting(line) {
                seen.entry((name.to_owned(), value.to_owned()))
                    .or_insert_with(|| (origin.to_owned(), file, index + 1));
            }
        }
    }
    for ((name, value), (origin, file, line)) in seen {
        records.push(
            raw.measured("nccl_setting", "", 1.0, file.at(format!("line:{line}")))
                .param("name", name)
                .param("setting", value)
                .param("origin", origin)
                .done(),
        );
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
        let settings = "NCCL_IB_HCA\tmlx5\t/etc/nccl.conf\n";
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
        let hosts = find(&records, "nccl_setting", &[("name", "NCCL_IB_HCA")]);
        assert_eq!(hosts.params["origin"].to_string(), "/etc/nccl.conf");
        let env = find(&records, "nccl_setting", &[("name", "NCCL_SOCKET_IFNAME")]);
        assert_eq!(
            (env.params["origin"].to_string(), env.params["setting"].to_string()),
            ("environment".to_owned(), "eth0".to_owned())
        );
        assert_eq!(records.iter().filter(|one| one.metric == "nccl_setting").count(), 2);
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
