//! The shared file system under many clients, under lasting load, with small files and imports: what `suite::storage`
//! starts after fio's first pass.
//!
//! `sweep.tsv` lists client counts with their nodes, `sweep-CLIENTS.NODE.json` is fio's document of a node; `endurance-OP.NODE.log`
//! fio's bandwidth log in windows; `metadata-PHASE.NODE.json` of `clustermax metadata-bench`; `import-COUNT/import.NODE.json`.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Raw, RawFile, fio};
use crate::metadata::Document;
use crate::record::{Provenance, Record, State};

/// A part for which no time was left; `left.json` is a list of these.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Left {
    /// sweep, endurance, metadata or import.
    pub part: String,
    /// Clients or nodes.
    pub count: Option<u32>,
}

impl Left {
    /// A part that was not begun.
    #[must_use]
    pub fn new(part: &str, count: Option<u32>) -> Self {
        Self { part: part.to_owned(), count }
    }
}

/// Jobs of the sweep: name, rw, block size, direct.
const SWEEP: [(&str, &str, &str, i64); 6] = [
    ("seqwrite_buffered", "write", "1m", 0),
    ("seqread_buffered", "read", "1m", 0),
    ("randread_buffered", "randread", "4k", 0),
    ("seqwrite_direct", "write", "1m", 1),
    ("seqread_direct", "read", "1m", 1),
    ("randread_direct", "randread", "64k", 1),
];

pub(super) fn read(raw: &Raw) -> Vec<Record> {
    let left: Vec<Left> = raw.file("left.json").and_then(|file| file.json().ok()).unwrap_or_default();
    let mut records = sweep(raw, &left);
    records.extend(endurance(raw, &left));
    records.extend(metadata(raw, &left));
    records.extend(imports(raw, &left));
    records
}

const NO_TIME: &str = "no time of the stage was left for it";

/// Why the results folder of these nodes is no shared storage.
fn local(raw: &Raw, nodes: &[&str]) -> Option<String> {
    nodes.iter().find_map(|node| fio::not_shared(raw, node))
}

fn sweep(raw: &Raw, left: &[Left]) -> Vec<Record> {
    let mut records = Vec::new();
    for one in left.iter().filter(|one| one.part == "sweep") {
        let draft = raw.missing("fio_total_bandwidth", "MB/s", State::Unknown, NO_TIME);
        records.push(draft.param("clients", i64::from(one.count.unwrap_or(0))).done());
    }
    let Some(list) = raw.file("sweep.tsv") else { return records };
    for line in list.text.lines() {
        let Some((clients, nodes)) = line.split_once('\t') else { continue };
        let (Ok(clients), nodes) = (clients.parse::<i64>(), nodes.split(',').collect::<Vec<_>>()) else {
            continue;
        };
        let documents: Vec<Result<(&RawFile, Value), String>> = nodes
            .iter()
            .map(|node| {
                let name = format!("sweep-{clients}.{node}");
                if let Some(said) = raw.file(&format!("{name}.txt")) {
                    return Err(said.text.trim().to_owned());
                }
                let file = raw
                    .file(&format!("{name}.json"))
                    .ok_or_else(|| format!("{node} wrote no result of {clients} clients"))?;
                let document = fio::document(&file.text);
                Ok((file, document.ok_or_else(|| format!("{} is not complete JSON", file.evidence.file))?))
            })
            .collect();
        for (job, rw, bs, direct) in SWEEP {
            let all = local(raw, &nodes).map_or_else(|| total(&documents, job, rw), Err);
            for (metric, unit, of) in [("fio_total_bandwidth", "MB/s", 0), ("fio_total_latency", "ms", 1)] {
                let draft = match &all {
                    Ok((evidence, values)) => {
                        let mut draft = raw.measured(metric, unit, values[of], evidence.clone());
                        // A sum, or a largest value, of several nodes' documents: the evidence is the first one's.
                        draft.0.provenance = Provenance::Inferred;
                        draft.detail(format!("{clients} clients on {}", nodes.join(",")))
                    }
                    Err(why) => raw.missing(metric, unit, State::Unknown, why.as_str()),
                };
                let draft = if of == 1 { draft.param("percentile", 99i64) } else { draft };
                records.push(
                    draft
                        .param("rw", rw)
                        .param("bs", bs)
                        .param("direct", direct)
                        .param("clients", clients)
                        .param("nodes", nodes.len() as i64)
                        .done(),
                );
            }
        }
    }
    records
}

/// Bandwidth of all nodes together in MB/s, and the worst node's 99th percentile in ms.
fn total(
    documents: &[Result<(&RawFile, Value), String>],
    job: &str,
    rw: &str,
) -> Result<(crate::record::Evidence, [f64; 2]), String> {
    let side = if rw.ends_with("read") { "read" } else { "write" };
    let (mut bandwidth, mut latency, mut evidence) = (0.0, 0.0f64, None);
    for document in documents {
        let (file, document) = document.as_ref().map_err(Clone::clone)?;
        let jobs = document["jobs"].as_array().map(Vec::as_slice).unwrap_or_default();
        let Some((at, entry)) = jobs.iter().enumerate().find(|(_, entry)| entry["jobname"] == job) else {
            return Err(if job.ends_with("_direct") {
                "the file system refuses O_DIRECT".to_owned()
            } else {
                format!("{} has no job {job}", file.evidence.file)
            });
        };
        if let Some(error) = entry["error"].as_i64().filter(|error| *error != 0) {
            return Err(format!("fio job {job} ended with an error: {}", fio::words(error)));
        }
        let moved = entry[side]["bw_bytes"].as_f64().filter(|moved| *moved > 0.0);
        let Some(moved) = moved else { return Err(format!("fio job {job} moved no data")) };
        bandwidth += moved * 1e-6;
        let worst = entry[side].pointer("/clat_ns/percentile/99.000000").and_then(Value::as_f64);
        latency = latency.max(worst.unwrap_or(0.0) * 1e-6);
        evidence.get_or_insert_with(|| file.at(format!("/jobs/{at}/{side}/bw_bytes")));
    }
    evidence.map(|evidence| (evidence, [bandwidth, latency])).ok_or_else(|| "no node measured it".to_owned())
}

/// Lasting load below this says nothing of minutes.
const MINUTES_MS: f64 = 110_000.0;

/// Windows of fio's bandwidth log (milliseconds of their end, KiB/s, ...) as MB/s; a torn last line is left out.
fn windows(text: &str) -> Vec<(f64, f64)> {
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole
        .lines()
        .filter_map(|line| {
            let mut words = line.split(',').map(str::trim);
            let end: f64 = words.next()?.parse().ok()?;
            Some((end, words.next()?.parse::<f64>().ok()? * 1024.0 / 1e6))
        })
        .collect()
}

fn endurance(raw: &Raw, left: &[Left]) -> Vec<Record> {
    let (metric, unit) = ("storage_endurance_loss", "percent");
    let named = |part: &RawFile| part.name.starts_with("endurance");
    let skipped = left.iter().any(|one| one.part == "endurance");
    // A profile without this part has nothing to say.
    if !skipped && !raw.files.iter().any(named) {
        return Vec::new();
    }
    let mut records = Vec::new();
    for node in &raw.folder.run.nodes {
        for op in ["write", "read"] {
            let why = if skipped {
                Some(NO_TIME.to_owned())
            } else {
                raw.file(&format!("endurance.{node}.txt")).map(|said| said.text.trim().to_owned()).or_else(
                    || {
                        let all: Vec<&str> = raw.folder.run.nodes.iter().map(String::as_str).collect();
                        local(raw, &all)
                    },
                )
            };
            let file = raw.file(&format!("endurance-{op}.{node}.log"));
            let mut length = "seconds";
            let draft = match (why, file.map(|file| (file, windows(&file.text)))) {
                (Some(why), _) => raw.missing(metric, unit, State::Unknown, why),
                (None, None) => raw.absent(metric, unit),
                (None, Some((file, windows))) => match (&windows[..], windows.len() >= 3) {
                    ([(_, first), .., (end, last)], true) if *first > 0.0 => {
                        if *end >= MINUTES_MS {
                            length = "minutes";
                        }
                        let lowest = windows.iter().map(|(_, speed)| *speed).fold(f64::INFINITY, f64::min);
                        raw.measured(metric, unit, (1.0 - last / first) * 100.0, file.evidence.clone()).detail(format!(
                            "{:.0} MB/s in the first of {} windows, {last:.0} in the last, {lowest:.0} in the slowest; all nodes at once",
                            first,
                            windows.len()
                        ))
                    }
                    _ => raw.missing(metric, unit, State::Unknown, "fio's log has fewer than three windows"),
                },
            };
            records.push(draft.param("op", op).param("length", length).on(node).done());
        }
    }
    records
}

fn metadata(raw: &Raw, left: &[Left]) -> Vec<Record> {
    let skipped = left.iter().any(|one| one.part == "metadata");
    if !skipped && !raw.files.iter().any(|file| file.name.starts_with("metadata-")) {
        return Vec::new();
    }
    let mut records = Vec::new();
    for node in &raw.folder.run.nodes {
        for (phase, ops) in
            [("create", &["create"][..]), ("read", &["stat", "read"]), ("remove", &["unlink"])]
        {
            let file = raw.file(&format!("metadata-{phase}.{node}.json"));
            let document = file.map(|file| (file, file.json::<Document>()));
            for op in ops {
                let nothing = |state: State, why: &str| {
                    raw.missing("metadata_rate", "1/s", state, why).param("op", *op).on(node).done()
                };
                if skipped {
                    records.push(nothing(State::Unknown, NO_TIME));
                    continue;
                }
                let (file, document) = match &document {
                    None => {
                        records.push(raw.absent("metadata_rate", "1/s").param("op", *op).on(node).done());
                        continue;
                    }
                    Some((_, Err(why))) => {
                        records.push(nothing(State::Unknown, why));
                        continue;
                    }
                    Some((file, Ok(document))) => (file, document),
                };
                let nodes: Vec<&str> = raw.folder.run.nodes.iter().map(String::as_str).collect();
                let row = document.rows.iter().enumerate().find(|(_, row)| row.op == *op);
                let (at, row) = match (row, &document.detail, local(raw, &nodes)) {
                    (_, Some(why), None) => {
                        records.push(nothing(State::Unknown, why));
                        continue;
                    }
                    (_, _, Some(why)) => {
                        records.push(nothing(State::Unknown, &why));
                        continue;
                    }
                    (Some((at, row)), None, None) if row.files > 0 && row.seconds > 0.0 => (at, row),
                    _ => {
                        records.push(nothing(State::Unknown, "no file was done"));
                        continue;
                    }
                };
                let whose = if document.of == *node { "its own" } else { "the next node's" };
                let finish = |draft: super::Draft| {
                    draft
                        .param("op", *op)
                        .on(node)
                        .tool("clustermax metadata-bench")
                        .detail(format!("{} files of 4 KiB, {whose}, all nodes at once", row.files))
                        .done()
                };
                let rate = f64::from(row.files) / row.seconds;
                let pointer = |part: &str| file.at(format!("/rows/{at}/{part}"));
                records.push(finish(raw.measured("metadata_rate", "1/s", rate, pointer("seconds"))));
                for (index, percentile) in [(0, 50i64), (1, 99)] {
                    let draft = raw.measured(
                        "metadata_latency",
                        "ms",
                        row.ms[index],
                        pointer(&format!("ms/{index}")),
                    );
                    records.push(finish(draft.param("percentile", percentile)));
                }
            }
        }
    }
    records
}

#[derive(Debug, Deserialize)]
struct Import {
    cold_seconds: Option<f64>,
    #[serde(default)]
    detail: String,
    #[serde(default)]
    fstype: Option<String>,
    #[serde(flatten)]
    dropped: Dropped,
}

/// What `import_time.py` took out of the page cache before a cold import.
#[derive(Debug, Deserialize)]
pub(super) struct Dropped {
    #[serde(default)]
    dropped: Option<String>,
    #[serde(default)]
    dropped_files: Option<u64>,
    #[serde(default)]
    dropped_bytes: Option<f64>,
}

impl Dropped {
    /// How cold it was.
    pub(super) fn words(&self, raw: &Raw) -> String {
        let how = self.dropped.as_deref().unwrap_or("nothing");
        let what = match (self.dropped_files, self.dropped_bytes) {
            (Some(files), Some(bytes)) => format!("{files} files, {:.0} MB, dropped", bytes / 1e6),
            _ => "dropped".to_owned(),
        };
        let shared = if raw.folder.run.simulated { ", which simulated nodes share" } else { "" };
        format!("{what} from the page cache{shared} by {how}; a file server's own cache stays")
    }
}

fn imports(raw: &Raw, left: &[Left]) -> Vec<Record> {
    let (metric, unit) = ("import_torch_parallel", "s");
    let mut records: Vec<Record> = left
        .iter()
        .filter(|one| one.part == "import")
        .map(|one| {
            let draft = raw.missing(metric, unit, State::Unknown, NO_TIME);
            draft.param("nodes", i64::from(one.count.unwrap_or(0))).done()
        })
        .collect();
    let mut counts: Vec<usize> = raw
        .files
        .iter()
        .filter_map(|file| file.name.strip_prefix("import-")?.split_once('/')?.0.parse().ok())
        .collect();
    counts.sort_unstable();
    counts.dedup();
    let mut slowest: Vec<(usize, f64)> = Vec::new();
    let mut of_one_node = None;
    for count in &counts {
        let prefix = format!("import-{count}/import.");
        let files: Vec<_> = raw.files.iter().filter(|file| file.name.starts_with(&prefix)).collect();
        let read: Result<Vec<(&RawFile, Import)>, String> =
            files.iter().map(|file| Ok((*file, file.json::<Import>()?))).collect();
        let seconds = read.and_then(|read| {
            if read.len() < *count {
                return Err(format!("{} of {count} nodes wrote their time", read.len()));
            }
            let mut worst: Option<(&RawFile, f64, String)> = None;
            for (file, import) in read {
                let seconds = import.cold_seconds.ok_or(import.detail)?;
                if worst.as_ref().is_none_or(|(_, most, _)| seconds > *most) {
                    let fstype = import.fstype.unwrap_or_else(|| "an unknown file system".to_owned());
                    if fio::node_local(&fstype) {
                        of_one_node = Some(fstype.clone());
                    }
                    let how = import.dropped.words(raw);
                    worst = Some((file, seconds, format!("torch lies on {fstype}; {how}")));
                }
            }
            worst.ok_or_else(|| "no node wrote its time".to_owned())
        });
        let draft = match seconds {
            Ok((file, seconds, detail)) => {
                slowest.push((*count, seconds));
                raw.measured(metric, unit, seconds, file.at("/cold_seconds"))
                    .detail(format!("the slowest of {count} nodes at once; {detail}"))
            }
            Err(why) => raw.missing(metric, unit, State::Unknown, why),
        };
        records.push(draft.param("nodes", *count as i64).done());
    }
    let all = raw.folder.run.nodes.len();
    if let (Some((1, one)), Some((most, together))) = (slowest.first(), slowest.last())
        && *most > 1
    {
        let metric = "import_torch_slowdown";
        let draft = match &of_one_node {
            Some(fstype) if !raw.folder.run.simulated => raw.missing(
                metric,
                "",
                State::Unknown,
                format!(
                    "torch lies on {fstype}, a file system of one node: its import says nothing of shared storage; give --python an \
                     interpreter on the shared file system"
                ),
            ),
            _ if *most < all => raw.missing(metric, "", State::Unknown, format!("measured on {most} of {all} nodes")),
            _ => {
                let name = format!("import-{most}/import.");
                match raw.files.iter().find(|file| file.name.starts_with(&name)) {
                    Some(file) => {
                        let mut draft = raw.measured(metric, "", together / one, file.at("/cold_seconds"));
                        draft.0.provenance = Provenance::Inferred;
                        draft.detail(format!("{together:.2} s on {most} nodes at once, {one:.2} s on one"))
                    }
                    None => raw.absent(metric, ""),
                }
            }
        };
        records.push(draft.done());
    }
    records
}

#[cfg(test)]
mod tests {
    use super::super::StageState;
    use super::super::tests::{collected, find};
    use super::windows;
    use crate::record::State;

    const FIO: &str = r#"{"fio version":"fio-3.33","jobs":[
        {"jobname":"seqread_direct","error":0,"read":{"bw_bytes":100000000,"clat_ns":{"percentile":{"99.000000":5000000}}}},
        {"jobname":"seqwrite_buffered","error":28,"write":{"bw_bytes":1}}]}"#;

    #[test]
    fn clients_of_all_nodes_are_added_and_the_worst_latency_stands() {
        let slow = FIO.replace("100000000", "50000000").replace("5000000}", "9000000}");
        let files = [
            ("sweep.tsv", "1\tn1\n8\tn1,n2\n32\tn1,n2\n"),
            ("sweep-1.n1.json", FIO),
            ("sweep-8.n1.json", FIO),
            ("sweep-8.n2.json", &slow),
            ("sweep-32.n1.json", FIO),
            ("sweep-32.n2.txt", "fio is not installed on n2 (not in PATH)\n"),
            ("left.json", r#"[{"part":"endurance","count":null},{"part":"import","count":2}]"#),
        ];
        let (_dir, records) = collected("storage", StageState::Done, &files);
        let of = |metric: &str, clients: &str, rw: &str, direct: &str| {
            let params = [("clients", clients), ("rw", rw), ("direct", direct)];
            find(&records, metric, &params).clone()
        };
        assert_eq!(of("fio_total_bandwidth", "1", "read", "1").value, Some(100.0));
        assert_eq!(of("fio_total_bandwidth", "8", "read", "1").value, Some(150.0));
        assert_eq!(of("fio_total_latency", "8", "read", "1").value, Some(9.0));
        let failed = of("fio_total_bandwidth", "8", "write", "0");
        assert!(failed.state == State::Unknown && failed.detail.unwrap().contains("error 28"));
        let absent = of("fio_total_bandwidth", "32", "read", "1").detail;
        assert_eq!(absent.as_deref(), Some("fio is not installed on n2 (not in PATH)"));
        let refused = of("fio_total_bandwidth", "1", "write", "1").detail;
        assert_eq!(refused.as_deref(), Some("the file system refuses O_DIRECT"));
        let late = find(&records, "storage_endurance_loss", &[("node", "n1"), ("op", "write")]);
        assert_eq!(late.detail.as_deref(), Some("no time of the stage was left for it"));
        assert_eq!(find(&records, "import_torch_parallel", &[("nodes", "2")]).state, State::Unknown);
    }

    #[test]
    fn many_clients_on_a_file_system_of_one_node_are_not_shared_storage() {
        let files = [
            ("sweep.tsv", "1\tn1\n2\tn1,n2\n"),
            ("sweep-1.n1.json", FIO),
            ("sweep-2.n1.json", FIO),
            ("sweep-2.n2.json", FIO),
            ("n2.shared.where", "xfs /dev/sda1\n"),
        ];
        let (_dir, records) = collected("storage", StageState::Done, &files);
        let of = |clients: &str| {
            find(&records, "fio_total_bandwidth", &[("clients", clients), ("rw", "read"), ("direct", "1")])
                .clone()
        };
        assert!(of("1").value.is_some(), "one client needs nothing shared");
        assert!(of("2").detail.unwrap().contains("this is not the shared storage"));
    }

    #[test]
    fn endurance_is_the_last_window_against_the_first() {
        // KiB/s; the last line is torn.
        let log = "60000, 1000000, 1, 1048576, 0, 0\n120000, 900000, 1, 1048576, 0, 0\n180000, 600000, 1, 1048576, 0, 0\n2400";
        assert_eq!(windows(log).len(), 3);
        let files = [("endurance-write.n1.log", log), ("endurance-read.n1.log", "60000, 5, 0, 1, 0, 0\n")];
        let (_dir, records) = collected("storage", StageState::Done, &files);
        let write = find(&records, "storage_endurance_loss", &[("node", "n1"), ("op", "write")]);
        assert_eq!(write.params["length"].to_string(), "minutes");
        assert!((write.value.unwrap() - 40.0).abs() < 1e-9, "{write:?}");
        assert!(write.detail.as_ref().unwrap().contains("614 in the slowest"), "{write:?}");
        let read = find(&records, "storage_endurance_loss", &[("node", "n1"), ("op", "read")]);
        assert!(read.detail.as_ref().unwrap().contains("fewer than three"), "{read:?}");
        assert_eq!(
            find(&records, "storage_endurance_loss", &[("node", "n2"), ("op", "read")]).state,
            State::Unknown
        );
    }

    #[test]
    fn small_files_give_rates_and_a_failure_gives_none() {
        let made = r#"{"schema":"clustermax-metadata/1","node":"n1","of":"n1","rows":[
            {"op":"create","files":500,"seconds":2.0,"ms":[3.5,9.0]}]}"#;
        let failed = r#"{"schema":"clustermax-metadata/1","node":"n2","of":"n2","rows":[
            {"op":"create","files":1,"seconds":2.0,"ms":[3.5,9.0]}],"detail":"create of 1: No space left on device (os error 28)"}"#;
        let files = [("metadata-create.n1.json", made), ("metadata-create.n2.json", failed)];
        let (_dir, records) = collected("storage", StageState::Done, &files);
        let of = |metric: &str, node: &str, more: &[(&str, &str)]| {
            find(&records, metric, &[&[("node", node), ("op", "create")][..], more].concat()).clone()
        };
        assert_eq!(of("metadata_rate", "n1", &[]).value, Some(250.0));
        assert_eq!(of("metadata_latency", "n1", &[("percentile", "99")]).value, Some(9.0));
        assert!(of("metadata_rate", "n2", &[]).detail.unwrap().contains("No space left"));
        assert_eq!(find(&records, "metadata_rate", &[("node", "n1"), ("op", "stat")]).state, State::Unknown);
    }

    #[test]
    fn an_import_is_compared_between_one_node_and_all_where_torch_is_shared() {
        let import = |seconds: f64, fstype: &str| {
            format!(
                r#"{{"cold_seconds":{seconds},"fstype":"{fstype}","dropped":"posix_fadvise","dropped_files":1850,
                    "dropped_bytes":550144666}}"#
            )
        };
        for (fstype, known) in [("nfs4", true), ("ext4", false)] {
            let (one, two, slow) = (import(2.0, fstype), import(3.0, fstype), import(5.0, fstype));
            let files = [
                ("import-1/import.n1.json", one.as_str()),
                ("import-2/import.n1.json", &two),
                ("import-2/import.n2.json", &slow),
            ];
            let (_dir, records) = collected("storage", StageState::Done, &files);
            let together = find(&records, "import_torch_parallel", &[("nodes", "2")]);
            assert_eq!(together.value, Some(5.0));
            assert!(
                together.detail.as_ref().unwrap().contains("1850 files, 550 MB, dropped from the page cache"),
                "{together:?}"
            );
            let slowdown = find(&records, "import_torch_slowdown", &[]);
            assert_eq!(slowdown.value, known.then_some(2.5), "{slowdown:?}");
            assert!(known || slowdown.detail.as_ref().unwrap().contains("a file system of one node"));
        }
    }
}
