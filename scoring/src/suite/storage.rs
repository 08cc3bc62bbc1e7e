//! Stage `storage`: fio on every node, then the shared file system by a growing number of clients, under lasting load, with
//! small files, and by an import on a growing number of nodes.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::bench::{Bench, Stop};
use super::plan::Sizes;
use crate::collect::storage::Left;
use crate::run::write_atomic;

/// What one client count is measured with: all clients together, on these nodes, so many on each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Point {
    /// Clients in all.
    pub clients: u32,
    /// Nodes, from the first.
    pub nodes: usize,
    /// Clients a node.
    pub here: u32,
}

/// Client counts as they divide evenly over nodes: fewer clients than nodes use as many nodes, more use all of them.
#[must_use]
pub fn points(wanted: &[u32], nodes: usize) -> Vec<Point> {
    let mut found: Vec<Point> = Vec::new();
    for clients in wanted {
        let on = nodes.min(*clients as usize);
        let Some(here) =
            u32::try_from(on).ok().and_then(|on| clients.checked_div(on)).filter(|here| *here > 0)
        else {
            continue;
        };
        let point = Point { clients: here * on as u32, nodes: on, here };
        if !found.contains(&point) {
            found.push(point);
        }
    }
    found
}

/// 1, 2, 4 ... and all; with `ends` the first and the last alone.
#[must_use]
pub fn growing(nodes: usize, ends: bool) -> Vec<usize> {
    let mut found: Vec<usize> = (0..usize::BITS)
        .map(|bit| 1usize << bit)
        .take_while(|count| *count < nodes)
        .filter(|count| !ends || *count == 1)
        .collect();
    found.push(nodes);
    found
}

/// Seconds that a client count takes: six jobs, and laying out the files.
fn sweep_seconds(sizes: &Sizes) -> u32 {
    (sizes.fio / 3).max(1) * 7 + 10
}

fn fits(bench: &Bench, seconds: u32) -> bool {
    // Kept free for srun itself.
    Instant::now() + Duration::from_secs(u64::from(seconds) + 5) < bench.deadline
}

/// Length of a window of the endurance test: a minute, or a fifth of a short test.
#[must_use]
pub fn window(seconds: u32) -> u32 {
    (seconds / 5).clamp(1, 60)
}

/// fio on every node at once, then what only the shared file system is asked.
///
/// # Errors
/// When no node could run fio, when a step fails or has to be stopped.
pub fn storage(bench: &mut Bench) -> Result<(), Stop> {
    let (script, raw) = (bench.parts.join("payload/storage.sh"), bench.raw());
    let (script, folder) = (script.display().to_string(), raw.display().to_string());
    let sizes = bench.sizes();
    let bash = Path::new("bash");
    let ended = bench.on_every_node(bash, &[&script, &folder, &sizes.fio.to_string()]);
    if let Some(why) = nobody_could(&raw) {
        return Err(Stop::Unavailable(why));
    }
    ended?;

    let mut left: Vec<Left> = Vec::new();
    let points = points(sizes.clients, bench.nodes.len());
    let mut done: Vec<Point> = Vec::new();
    for point in points {
        if !fits(bench, sweep_seconds(&sizes)) {
            left.push(Left::new("sweep", Some(point.clients)));
            continue;
        }
        let nodes = bench.nodes[..point.nodes].to_vec();
        let mut step = bench.srun_on(&nodes, 1);
        step.args(["--mpi=none", "bash", &script, &folder, "sweep"]);
        step.args([(sizes.fio / 3).max(1), point.clients, point.here, sizes.file_mib].map(|n| n.to_string()));
        end(bench.run(step, None)?)?;
        done.push(point);
        let text: String = done
            .iter()
            .map(|point| format!("{}\t{}\n", point.clients, bench.nodes[..point.nodes].join(",")))
            .collect();
        keep(&raw.join("sweep.tsv"), &text)?;
    }
    if sizes.endurance > 0 {
        if fits(bench, sizes.endurance * 2 + 15) {
            let (seconds, window) = (sizes.endurance.to_string(), window(sizes.endurance).to_string());
            let mib = (sizes.file_mib * 4).to_string();
            bench.on_every_node(bash, &[&script, &folder, "endurance", &seconds, &window, &mib])?;
        } else {
            left.push(Left::new("endurance", None));
        }
    }
    if fits(bench, 30) {
        metadata(bench, &raw, &sizes)?;
    } else {
        left.push(Left::new("metadata", None));
    }
    if bench.torch.missing.is_none() {
        imports(bench, &raw, &mut left)?;
    }
    if !left.is_empty() {
        let text = serde_json::to_string_pretty(&left).unwrap_or_default();
        keep(&raw.join("left.json"), &text)?;
    }
    Ok(())
}

fn end(code: i32) -> Result<(), Stop> {
    if code == 0 { Ok(()) } else { Err(Stop::Failed(code, None)) }
}

fn keep(path: &Path, text: &str) -> Result<(), Stop> {
    write_atomic(path, text.as_bytes()).map_err(|error| {
        let why =
            format!("cannot write {}: {error}; give --results a folder you may write to", path.display());
        Stop::Failed(2, Some(why))
    })
}

/// The first node's sentence, when no node could run fio: the stage is then not done, and a resumed run tries again.
fn nobody_could(raw: &Path) -> Option<String> {
    let names: Vec<PathBuf> =
        fs::read_dir(raw).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    let with = |wanted: &str| {
        let mut found: Vec<&PathBuf> = names
            .iter()
            .filter(|path| path.extension().is_some_and(|extension| extension == wanted))
            .collect();
        found.sort();
        found
    };
    let ([], [first, ..]) = (&with("json")[..], &with("txt")[..]) else { return None };
    let said = fs::read_to_string(first).unwrap_or_default();
    Some(said.lines().next().unwrap_or_default().to_owned())
}

/// All nodes make their files, then each looks at the next one's: a step each, so that nobody is ahead.
fn metadata(bench: &mut Bench, raw: &Path, sizes: &Sizes) -> Result<(), Stop> {
    let (files, nodes) = (raw.join("metadata.files"), bench.nodes.join(","));
    let seconds = (sizes.fio * 2).clamp(5, 60).to_string();
    let clustermax = bench.clustermax.clone();
    let mut ended = Ok(());
    for phase in ["create", "read", "remove"] {
        let out = raw.join(format!("metadata-{phase}.%n.json")).display().to_string();
        let step = bench.on_every_node(
            &clustermax,
            &["metadata-bench", "--phase", phase, "--dir", &files.display().to_string(), "--nodes", &nodes]
                .into_iter()
                .chain(["--files", &sizes.files.to_string(), "--seconds", &seconds, "--out", &out])
                .collect::<Vec<_>>(),
        );
        // Files that were made are taken away also when looking at them failed.
        ended = ended.and(step);
    }
    let _ = fs::remove_dir_all(&files);
    ended
}

/// `import torch`, cold, on one node, on two ... on all.
fn imports(bench: &mut Bench, raw: &Path, left: &mut Vec<Left>) -> Result<(), Stop> {
    let ends = bench.sizes().fio < 10;
    for count in growing(bench.nodes.len(), ends) {
        // An import from a busy file server takes tens of seconds.
        if !fits(bench, if ends { 15 } else { 60 }) {
            left.push(Left::new("import", u32::try_from(count).ok()));
            continue;
        }
        let folder = raw.join(format!("import-{count}"));
        fs::create_dir_all(&folder).map_err(|error| {
            Stop::Failed(2, Some(format!("cannot make {}: {error}; make it writable", folder.display())))
        })?;
        let nodes = bench.nodes[..count].to_vec();
        let mut step = bench.srun_on(&nodes, 1);
        step.arg("--mpi=none");
        bench.python_command(&mut step, "import_time.py");
        step.args(["--cold", "--out"]).arg(&folder);
        end(bench.run(step, None)?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_divide_evenly_over_nodes() {
        let brief = |wanted: &[u32], nodes| -> Vec<(u32, usize, u32)> {
            points(wanted, nodes).iter().map(|point| (point.clients, point.nodes, point.here)).collect()
        };
        assert_eq!(brief(&[1, 2, 8, 32], 4), [(1, 1, 1), (2, 2, 1), (8, 4, 2), (32, 4, 8)]);
        assert_eq!(brief(&[1, 2, 4], 3), [(1, 1, 1), (2, 2, 1), (3, 3, 1)]);
        assert_eq!(brief(&[1, 8], 1), [(1, 1, 1), (8, 1, 8)]);
        assert_eq!(brief(&[32], 100), [(32, 32, 1)]);
        assert_eq!(brief(&[], 4), []);
        assert_eq!(brief(&[1], 0), []);
    }

    #[test]
    fn nodes_grow_by_doubling() {
        assert_eq!(growing(1, false), [1]);
        assert_eq!(growing(6, false), [1, 2, 4, 6]);
        assert_eq!(growing(8, true), [1, 8]);
    }

    #[test]
    fn a_window_is_a_minute_or_a_fifth() {
        assert_eq!([450, 60, 5, 1].map(window), [60, 12, 1, 1]);
    }
}
