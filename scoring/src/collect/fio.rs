//! fio's JSON: `raw/storage/NODE.TARGET.json`, and `NODE.TARGET.txt` with a sentence where fio could not run.

use serde_json::Value;

use super::{Draft, Raw, RawFile};
use crate::record::{Record, State};

/// Where the payload writes: the results folder's file system and the node's own.
const TARGETS: [&str; 2] = ["shared", "local"];
/// fio job names and their rw.
const JOBS: [(&str, &str); 5] = [
    ("seqwrite", "write"),
    ("seqread", "read"),
    ("randread", "randread"),
    ("randwrite", "randwrite"),
    ("fsync", "write"),
];
/// File systems of one node, as findmnt names them: over several nodes they are no shared storage.
const NODE_LOCAL: [&str; 14] = [
    "ext2", "ext3", "ext4", "xfs", "btrfs", "tmpfs", "ramfs", "overlay", "zfs", "f2fs", "jfs", "bcachefs",
    "squashfs", "vfat",
];

/// Whether a type of file system is one of a single node.
pub fn node_local(fstype: &str) -> bool {
    NODE_LOCAL.contains(&fstype)
}

/// Why the results folder of a node is no shared storage; none when it may be. Also of a run of one node: what lies on its
/// own disk is nobody else's. Simulated nodes are one machine and share every file system of it.
pub fn not_shared(raw: &Raw, node: &str) -> Option<String> {
    let run = &raw.folder.run;
    if run.simulated {
        return None;
    }
    let kind = file_system(raw, node, "shared").filter(|kind| node_local(kind))?;
    Some(of_one_node(&kind, node))
}

/// That the results folder lies on a file system of one node.
pub fn of_one_node(kind: &str, node: &str) -> String {
    format!(
        "the results folder lies on {kind} on {node}, a file system of one node: this is not the shared storage; \
         give --results a folder that is shared"
    )
}

/// Stage `storage`.
pub fn read(raw: &Raw) -> Vec<Record> {
    let mut records = Vec::new();
    for node in &raw.folder.run.nodes {
        for target in TARGETS {
            let nothing = |state: State, why: &str, records: &mut Vec<Record>| {
                for (job, rw) in JOBS {
                    let (metric, unit) =
                        if job == "fsync" { ("fio_latency", "ms") } else { ("fio_bandwidth", "MB/s") };
                    let draft = raw.missing(metric, unit, state, why);
                    let draft = if job == "fsync" { draft.param("percentile", 99i64) } else { draft };
                    records.push(
                        draft.param("job", job).param("rw", rw).param("target", target).on(node).done(),
                    );
                }
            };
            if let Some(file) = raw.file(&format!("{node}.{target}.txt")) {
                nothing(State::Unavailable, file.text.trim(), &mut records);
                continue;
            }
            let Some(file) = raw.file(&format!("{node}.{target}.json")) else {
                nothing(raw.missing_state(), &raw.marker.why(), &mut records);
                continue;
            };
            if target == "shared"
                && let Some(why) = not_shared(raw, node)
            {
                nothing(State::Unknown, &why, &mut records);
                continue;
            }
            match document(&file.text) {
                Some(value) => one(raw, file, &value, node, target, &mut records),
                None => nothing(
                    State::Unknown,
                    &format!("{} is not complete JSON", file.evidence.file),
                    &mut records,
                ),
            }
        }
    }
    records
}

/// Type of the file system that was measured, where the payload could tell.
fn file_system(raw: &Raw, node: &str, target: &str) -> Option<String> {
    let file = raw.file(&format!("{node}.{target}.where"))?;
    file.text.split_whitespace().next().map(str::to_owned)
}

/// Warnings of fio stand before the document.
pub fn document(text: &str) -> Option<Value> {
    serde_json::from_str(&text[text.find('{')?..]).ok()
}

/// An errno of fio in words.
pub fn words(error: i64) -> String {
    i32::try_from(error)
        .map_or_else(|_| error.to_string(), |error| std::io::Error::from_raw_os_error(error).to_string())
}

fn one(raw: &Raw, file: &RawFile, document: &Value, node: &str, target: &str, records: &mut Vec<Record>) {
    let version = document["fio version"].as_str().unwrap_or("fio").to_owned();
    let global = &document["global options"];
    let jobs = document["jobs"].as_array().map(Vec::as_slice).unwrap_or_default();
    for (job, rw) in JOBS {
        let found = jobs.iter().enumerate().find(|(_, entry)| entry["jobname"] == job);
        let Some((index, entry)) = found else {
            let why = format!("{} has no job {job}", file.evidence.file);
            let (metric, unit) =
                if job == "fsync" { ("fio_latency", "ms") } else { ("fio_bandwidth", "MB/s") };
            let draft = raw.missing(metric, unit, State::Unknown, why);
            let draft = if job == "fsync" { draft.param("percentile", 99i64) } else { draft };
            records.push(draft.param("job", job).param("rw", rw).param("target", target).on(node).done());
            continue;
        };
        let option = |key: &str, default: &str| {
            entry["job options"][key].as_str().or(global[key].as_str()).unwrap_or(default).to_owned()
        };
        let number = |key: &str, default: i64| option(key, "").parse::<i64>().unwrap_or(default);
        let finish = |draft: Draft| {
            draft
                .param("job", job)
                .param("rw", rw)
                .param("bs", option("bs", "4k"))
                .param("iodepth", number("iodepth", 1))
                .param("numjobs", number("numjobs", 1))
                .param("direct", number("direct", 0))
                .param("target", target)
                .on(node)
                .tool(&version)
                .done()
        };
        let side = if rw.ends_with("read") { "read" } else { "write" };
        let pointer = |path: &str| file.at(format!("/jobs/{index}/{path}"));
        let error = entry["error"].as_i64().unwrap_or(-1);
        let mut value = |metric: &str, unit: &str, path: &str, scale: f64, percentile: Option<i64>| {
            let seen = entry.pointer(&format!("/{path}")).and_then(Value::as_f64);
            let draft = match seen {
                _ if error != 0 => raw.missing(
                    metric,
                    unit,
                    State::Unknown,
                    format!("fio job {job} ended with an error: {}", words(error)),
                ),
                // Nothing is zero: a job that moved no byte measured nothing.
                Some(seen) if seen > 0.0 => raw.measured(metric, unit, seen * scale, pointer(path)),
                Some(_) => raw.missing(metric, unit, State::Unknown, format!("fio job {job} moved no data")),
                None => raw.missing(metric, unit, State::Unknown, format!("fio job {job} has no {path}")),
            };
            let draft = match percentile {
                Some(percentile) => draft.param("percentile", percentile),
                None => draft,
            };
            records.push(finish(draft));
        };
        if job != "fsync" {
            value("fio_bandwidth", "MB/s", &format!("{side}/bw_bytes"), 1e-6, None);
            value("fio_iops", "1/s", &format!("{side}/iops"), 1.0, None);
        }
        let latency = if job == "fsync" { "sync/lat_ns".to_owned() } else { format!("{side}/clat_ns") };
        for percentile in [50, 99] {
            value(
                "fio_latency",
                "ms",
                &format!("{latency}/percentile/{percentile}.000000"),
                1e-6,
                Some(percentile),
            );
        }
    }
}
