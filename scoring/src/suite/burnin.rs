//! Stage `burnin`: products and a collective at the same time on all nodes, for as long as the profile says in all. What
//! interrupts it (a node that is lost, preemption, a requeue, the end of the job's time) ends a part; the next part goes on with
//! what is left of the time, on the nodes that are left.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use super::bench::{Bench, Stop};
use super::{slurm, stuck};
use crate::collect::burnin::{PARTS, Part, seconds_of};
use crate::run::write_atomic;

/// A burn-in that is interrupted more often has shown enough.
const MOST: usize = 64;
/// How long Slurm may take to notice that a node is gone, after its ranks failed.
const NOTICE: Duration = Duration::from_secs(40);
/// Less is not worth a start.
const LEAST: f64 = 3.0;

/// Parts of earlier attempts, with their length as far as it is known from what they wrote: one that was running when the
/// suite was killed did not fail, it was interrupted.
#[must_use]
pub fn recover(raw: &Path) -> Vec<Part> {
    let text = fs::read_to_string(raw.join(PARTS)).unwrap_or_default();
    let mut parts: Vec<Part> = serde_json::from_str(&text).unwrap_or_default();
    for part in &mut parts {
        if part.ended.is_none() {
            part.seconds = seconds_of(&folder(raw, part.part));
            part.ended = Some("the suite was ended: killed, preempted, requeued or out of time".to_owned());
        }
    }
    parts
}

fn folder(raw: &Path, part: u32) -> std::path::PathBuf {
    raw.join(format!("part-{part}"))
}

/// Seconds that are still to be burnt in; none: it is complete.
#[must_use]
pub fn left(planned: u32, parts: &[Part]) -> Option<f64> {
    let done: f64 = parts.iter().map(|part| part.seconds).sum();
    Some(f64::from(planned) - done).filter(|left| *left >= LEAST || parts.is_empty())
}

fn save(raw: &Path, parts: &[Part]) -> Result<(), Stop> {
    let failed = |why: String| Stop::Failed(2, Some(why));
    let text = serde_json::to_string_pretty(parts).map_err(|error| failed(error.to_string()))?;
    write_atomic(&raw.join(PARTS), text.as_bytes()).map_err(|error| {
        failed(format!("cannot write {}: {error}; make it writable", raw.join(PARTS).display()))
    })
}

/// What an earlier part left must not be taken for this one's: ranks that once beat, an address that once was.
fn clear(raw: &Path) {
    let _ = fs::remove_dir_all(raw.join(stuck::FOLDER));
    for entry in fs::read_dir(raw).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with("rendezvous.") {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Nodes that left the job or that Slurm has lost, after a part failed; waits a while for Slurm to notice.
fn lost(bench: &Bench) -> Vec<String> {
    let begin = Instant::now();
    loop {
        let still = bench.job.nodes_left();
        let silent = slurm::silent(&bench.nodes);
        let lost: Vec<String> = bench
            .nodes
            .iter()
            .filter(|node| {
                silent.contains(*node) || still.as_ref().is_some_and(|still| !still.contains(node))
            })
            .cloned()
            .collect();
        let up = bench.terminated.load(std::sync::atomic::Ordering::Relaxed);
        if !lost.is_empty() || up || begin.elapsed() >= NOTICE || Instant::now() >= bench.deadline {
            return lost;
        }
        thread::sleep(Duration::from_secs(2));
    }
}

/// Burns in.
///
/// # Errors
/// Without torch, when a part fails although no node was lost, when it has to be stopped.
pub fn burnin(bench: &mut Bench) -> Result<(), Stop> {
    bench.need_torch()?;
    let (raw, planned) = (bench.raw(), bench.sizes().burnin);
    let mut parts = recover(&raw);
    while let Some(left) = left(planned, &parts) {
        if parts.len() >= MOST {
            let why = format!("it was interrupted {MOST} times; see {PARTS}");
            return Err(Stop::Failed(1, Some(why)));
        }
        clear(&raw);
        let number = parts.len() as u32 + 1;
        parts.push(Part {
            part: number,
            nodes: bench.nodes.clone(),
            seconds: 0.0,
            ended: None,
            failure: false,
        });
        save(&raw, &parts)?;
        let args = ["--seconds".to_owned(), format!("{left:.0}"), "--part".to_owned(), number.to_string()];
        let ended = bench.payload("burnin.py", &args);
        let seconds = seconds_of(&folder(&raw, number));
        let mut end = |how: String, failure: bool| {
            if let Some(part) = parts.last_mut() {
                (part.seconds, part.ended, part.failure) = (seconds, Some(how), failure);
            }
            save(&raw, &parts)
        };
        match ended {
            Ok(()) => {
                end("complete".to_owned(), false)?;
                return Ok(());
            }
            Err(Stop::Failed(code, why)) => {
                let lost = lost(bench);
                if lost.is_empty() || lost.len() == bench.nodes.len() {
                    end(why.clone().unwrap_or_else(|| format!("exit code {code}")), true)?;
                    return Err(Stop::Failed(code, why));
                }
                end(format!("node {} was lost", lost.join(",")), true)?;
                println!(
                    "clustermax           burn-in: node {} was lost; it goes on with the rest",
                    lost.join(",")
                );
                bench.nodes.retain(|node| !lost.contains(node));
            }
            Err(stop) => {
                end("it was stopped: the job's or the stage's time was up".to_owned(), false)?;
                return Err(stop);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(number: u32, seconds: f64, ended: Option<&str>) -> Part {
        Part {
            part: number,
            nodes: vec!["n1".to_owned()],
            seconds,
            ended: ended.map(str::to_owned),
            failure: false,
        }
    }

    #[test]
    fn a_burn_in_goes_on_where_it_stopped() {
        assert_eq!(left(120, &[]), Some(120.0));
        assert_eq!(left(120, &[part(1, 50.0, Some("x"))]), Some(70.0));
        assert_eq!(left(120, &[part(1, 50.0, Some("x")), part(2, 69.0, Some("x"))]), None, "too little");
        assert_eq!(left(120, &[part(1, 0.0, Some("x"))]), Some(120.0));
    }

    #[test]
    fn a_part_that_was_killed_keeps_the_time_that_its_files_show() {
        let raw = tempfile::tempdir().unwrap();
        let text = serde_json::to_string(&[part(1, 30.0, Some("complete")), part(2, 0.0, None)]).unwrap();
        fs::write(raw.path().join(PARTS), text).unwrap();
        let two = raw.path().join("part-2");
        fs::create_dir(&two).unwrap();
        // n2's last line is torn, n1 was a second ahead: what all nodes have counts.
        fs::write(two.join("n1.samples"), "{}\n0 1\n1 1\n2 1\n3 1\n").unwrap();
        fs::write(two.join("n2.samples"), "{}\n0 1\n1 1\n+1 mlx5_0/1/symbol_error 4\n2 1\n3 ").unwrap();
        let parts = recover(raw.path());
        assert_eq!((parts[0].seconds, parts[1].seconds), (30.0, 2.0));
        assert!(parts[1].ended.as_deref().unwrap().contains("requeued") && !parts[1].failure);
        assert_eq!(left(40, &parts), Some(8.0));
        assert_eq!(recover(&raw.path().join("gone")), []);
    }

    #[test]
    fn beats_and_addresses_of_an_earlier_part_are_cleared_and_samples_kept() {
        let raw = tempfile::tempdir().unwrap();
        for folder in ["beat", "part-1"] {
            fs::create_dir(raw.path().join(folder)).unwrap();
        }
        for file in ["beat/0.json", "rendezvous.3.json", "part-1/n1.samples", "parts.json"] {
            fs::write(raw.path().join(file), "{}").unwrap();
        }
        clear(raw.path());
        let mut left: Vec<String> = fs::read_dir(raw.path())
            .unwrap()
            .flatten()
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect();
        left.sort();
        assert_eq!(left, ["part-1", "parts.json"]);
        assert!(raw.path().join("part-1/n1.samples").exists());
    }
}
