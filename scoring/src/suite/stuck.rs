//! Ranks that stand still. Every payload rank rewrites a small file, `beat/RANK.json`, every two seconds: who it is and
//! how far it has come. A rank whose file stands still while others go on has stopped; when no rank comes further, those
//! that have come least far are waited for by the rest.
//!
//! Ages are of this process' clock, counted from the change it saw: nodes' clocks are never compared.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde::Deserialize;

use super::bench::Bench;
use super::slurm;

/// Below `raw/STAGE/`.
pub const FOLDER: &str = "beat";
/// A node that is busy or a slow file system may delay a few beats.
const SILENT: Duration = Duration::from_secs(15);
/// The payloads' own time-out of a collective is 60 s: look before it strikes.
const STUCK: Duration = Duration::from_secs(45);
const EVERY: Duration = Duration::from_secs(2);

/// A rank's file.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Beat {
    rank: u32,
    node: String,
    pid: u32,
    /// Counts beats.
    beat: u64,
    /// Counts progress.
    step: u64,
    /// What it does now.
    doing: String,
    /// Seconds between its beats: more in large runs.
    every: f64,
}

/// What was noticed.
#[derive(Debug, Clone, PartialEq)]
pub struct Found {
    /// Its beat stands still (else: it has come least far).
    pub silent: bool,
    /// Which rank.
    pub who: Beat,
    /// For how long, seconds.
    pub seconds: u64,
}

struct Seen {
    last: Beat,
    beat: Instant,
    step: Instant,
}

/// Follows the beats of one step.
pub struct Watch {
    folder: PathBuf,
    ranks: BTreeMap<u32, Seen>,
    next: Option<Instant>,
    told: bool,
}

impl Watch {
    /// Of this folder; a step whose payload does not beat is never stuck.
    pub fn new(folder: PathBuf) -> Self {
        Self { folder, ranks: BTreeMap::new(), next: None, told: false }
    }

    /// Reads the beats, every two seconds at most. Something is told once.
    pub fn look(&mut self, now: Instant) -> Option<Found> {
        if self.told || self.next.is_some_and(|next| now < next) {
            return None;
        }
        self.next = Some(now + EVERY);
        let files = fs::read_dir(&self.folder).ok()?;
        let beats = files.flatten().filter_map(|file| {
            let path = file.path();
            (path.extension()? == "json")
                .then(|| serde_json::from_str(&fs::read_to_string(path).ok()?).ok())?
        });
        let beats: Vec<Beat> = beats.collect();
        let found = self.judge(beats, now);
        self.told = found.is_some();
        found
    }

    fn judge(&mut self, beats: Vec<Beat>, now: Instant) -> Option<Found> {
        // A rank that ended takes its file away.
        self.ranks.retain(|rank, _| beats.iter().any(|beat| beat.rank == *rank));
        for beat in beats {
            match self.ranks.get_mut(&beat.rank) {
                Some(seen) => {
                    if seen.last.beat != beat.beat {
                        seen.beat = now;
                    }
                    if seen.last.step != beat.step {
                        seen.step = now;
                    }
                    seen.last = beat;
                }
                None => {
                    self.ranks.insert(beat.rank, Seen { last: beat, beat: now, step: now });
                }
            }
        }
        let silent = |seen: &&Seen| {
            now - seen.beat >= SILENT.max(Duration::from_secs_f64(seen.last.every.clamp(0.0, 60.0) * 5.0))
        };
        let fresh = self.ranks.values().any(|seen| !silent(&seen));
        let found = |silent, seen: &Seen, since: Instant| Found {
            silent,
            who: seen.last.clone(),
            seconds: (now - since).as_secs(),
        };
        // All silent at once is the file system or a paused suite, not one rank.
        let missed = self.ranks.values().filter(silent).min_by_key(|seen| seen.beat);
        if let (true, Some(seen)) = (fresh, missed) {
            return Some(found(true, seen, seen.beat));
        }
        let least = self.ranks.values().min_by_key(|seen| seen.last.step)?;
        let most = self.ranks.values().map(|seen| seen.last.step).max()?;
        let standing = self.ranks.values().all(|seen| now - seen.step >= STUCK);
        (standing && least.last.step < most).then(|| found(false, least, least.step))
    }
}

/// Looks at the process on its node, keeps what it saw in `stuck.txt`, and says it in a sentence. True: it is certain that
/// the rank will not go on (stopped, dead or gone), so that nobody needs to wait.
pub fn evidence(bench: &Bench, found: &Found) -> (String, bool) {
    let Beat { rank, node, pid, doing, .. } = &found.who;
    let script = format!(
        "cd /proc/{pid} 2>/dev/null || {{ echo 'State: gone'; exit 0; }}; grep -E '^(Name|State|Threads|VmRSS):' status; \
         echo \"wchan: $(cat wchan 2>/dev/null)\"; cat stack 2>/dev/null; ls -l fd 2>/dev/null | tail -n 20"
    );
    let args =
        ["--quiet", "--overlap", "--overcommit", "--mpi=none", "--nodes=1", "--ntasks=1", "--nodelist"];
    let mut args: Vec<&str> = args.to_vec();
    args.extend([node.as_str(), "bash", "-c", &script]);
    let seen = slurm::output("srun", &args, Duration::from_secs(20)).unwrap_or_default();
    let state = seen.lines().find_map(|line| line.strip_prefix("State:")).map(str::trim).unwrap_or_default();
    let _ = fs::write(
        bench.raw().join("stuck.txt"),
        format!(
            "rank {rank}, node {node}, process {pid}, in: {doing}\nsilent for {} s\n{seen}",
            found.seconds
        ),
    );
    // Ours alone stops a rank by a signal; a debugger stops it as well (t).
    let sure = found.silent && (state.starts_with('T') || state.starts_with('Z') || state == "gone");
    let how = match (state.chars().next(), found.silent) {
        (None, _) => format!("gives no sign of life, and node {node} answered no step within 20 s"),
        (Some('T' | 't'), _) => "was stopped by a signal (state T)".to_owned(),
        (Some('Z'), _) => "is dead and not yet reaped (state Z)".to_owned(),
        (Some('g'), _) => "is gone".to_owned(),
        (Some('D'), _) => {
            "hangs in the kernel (state D): a device or a file system does not answer".to_owned()
        }
        (Some(letter), true) => format!("gives no sign of life (state {letter})"),
        (Some(_), false) => "has come least far; the others wait for it".to_owned(),
    };
    (
        format!(
            "rank {rank} on {node} (process {pid}) {how}; no progress for {} s in {doing}, see raw/{}/stuck.txt",
            found.seconds, bench.stage.name
        ),
        sure,
    )
}

/// Endings that srun tells of a task and that are no cause: what `--kill-on-bad-exit` does to the others, and programs'
/// own exit codes, whose last words say more.
const NO_CAUSE: [&str; 2] = ["Exited with", "Terminated"];

/// The first rank that a signal ended, from srun's own line (`srun: error: n2: task 1: Killed`) and the beat that the rank
/// left, in a sentence. None when no signal ended one.
pub fn killed(bench: &Bench) -> Option<String> {
    let log = fs::read(bench.log()).ok()?;
    let (node, rank, how) = signalled(&String::from_utf8_lossy(&log))?;
    let beat = fs::read_to_string(bench.raw().join(FOLDER).join(format!("{rank}.json"))).ok();
    let beat = beat.and_then(|text| serde_json::from_str::<Beat>(&text).ok());
    let (process, doing) = beat
        .map(|beat| (format!(" (process {})", beat.pid), format!(" in {}", beat.doing)))
        .unwrap_or_default();
    Some(format!(
        "rank {rank} on {node}{process} was ended by a signal{doing}: {how}, see raw/{}/stage.log",
        bench.stage.name
    ))
}

/// Node, rank and ending of the first task that a signal ended. Of several tasks in one line (`tasks 1,3-4`) the first.
fn signalled(log: &str) -> Option<(String, u32, String)> {
    log.lines().find_map(|line| {
        let mut parts = line.strip_prefix("srun: error: ")?.splitn(3, ": ");
        let (node, task, how) = (parts.next()?, parts.next()?, parts.next()?);
        let rank = task.strip_prefix("task ").or_else(|| task.strip_prefix("tasks "))?;
        let rank = rank.split([',', '-']).next()?.parse().ok()?;
        (!NO_CAUSE.iter().any(|word| how.starts_with(word)))
            .then(|| (node.to_owned(), rank, how.trim().to_owned()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_rank_that_a_signal_ended_is_named() {
        let log = "torch: something\nsrun: error: n1: task 0: Exited with exit code 1\nsrun: error: n2: task 1: Killed\n\
                   srun: error: n3: tasks 2-3: Segmentation fault (core dumped)\n";
        assert_eq!(signalled(log), Some(("n2".to_owned(), 1, "Killed".to_owned())));
        let log = "srun: error: n3: tasks 2,5-6: Segmentation fault\n";
        assert_eq!(signalled(log), Some(("n3".to_owned(), 2, "Segmentation fault".to_owned())));
        for log in [
            "",
            "srun: error: n1: task 0: Terminated",
            "srun: error: Unable to create step",
            "srun: error: n1: task x: Killed",
        ] {
            assert_eq!(signalled(log), None, "{log}");
        }
    }

    fn beat(rank: u32, beat: u64, step: u64) -> Beat {
        Beat {
            rank,
            node: format!("n{rank}"),
            pid: 100 + rank,
            beat,
            step,
            doing: "all_reduce".to_owned(),
            every: 2.0,
        }
    }

    /// Ranks 0 to 2 for 80 s, each with the beat and step that a closure gives by second; who is found, and when.
    fn follow(of: impl Fn(u32, u64) -> (u64, u64)) -> Option<(u64, Found)> {
        let mut watch = Watch::new(PathBuf::new());
        let begin = Instant::now();
        (0..80).step_by(2).find_map(|second| {
            let beats =
                (0..3).map(|rank| of(rank, second)).zip(0..).map(|((b, s), rank)| beat(rank, b, s)).collect();
            watch.judge(beats, begin + Duration::from_secs(second)).map(|found| (second, found))
        })
    }

    #[test]
    fn a_rank_that_stops_beating_is_named() {
        let (second, found) =
            follow(|rank, s| if rank == 1 && s > 10 { (10, 5) } else { (s, s / 2) }).unwrap();
        assert!(found.silent && found.who.rank == 1, "{found:?}");
        assert!((24..=28).contains(&second), "{second}");
    }

    #[test]
    fn a_rank_that_the_others_wait_for_is_named() {
        let (_, found) = follow(|rank, s| (s, if rank == 2 { s.min(7) } else { s.min(8) })).unwrap();
        assert!(!found.silent && found.who.rank == 2, "{found:?}");
    }

    #[test]
    fn nobody_is_named_without_cause() {
        assert_eq!(follow(|_, s| (s, s)), None, "all go on");
        assert_eq!(follow(|_, s| (s, 3)), None, "a long step that all are in alike");
        assert_eq!(follow(|_, s| (s.min(10), s.min(10))), None, "all silent at once: the file system");
        assert_eq!(follow(|_, s| (s, s)), None);
        let mut watch = Watch::new(PathBuf::from("/nonexistent/beat"));
        assert_eq!(watch.look(Instant::now()), None, "a payload without beats");
    }
}
