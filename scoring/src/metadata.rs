//! `clustermax metadata-bench`: small files of a shared file system, as one task a node.
//!
//! Every node makes its own files, then looks at those of the next node, then takes its own away: what a node has just
//! made lies in its own cache and would be no measure of the file system.

use std::fs::{self, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::{Failure, run};

/// Of a phase's document.
pub const SCHEMA: &str = "clustermax-metadata/1";
/// Bytes of a file.
const SIZE: usize = 4096;

/// `clustermax metadata-bench`
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// What to do: make own files, stat and read the next node's, or remove own files
    #[arg(long, value_enum)]
    pub phase: Phase,
    /// Folder that all nodes share
    #[arg(long, value_name = "DIR")]
    pub dir: PathBuf,
    /// All nodes, comma-separated, in the same order on each
    #[arg(long, value_delimiter = ',', value_name = "A,B")]
    pub nodes: Vec<String>,
    /// Files a node
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub files: u32,
    /// Longest time in seconds; what is not done by then is left out of the rate
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub seconds: u32,
    /// Document; %n is the node's name
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    /// This node [default: SLURMD_NODENAME]
    #[arg(long, value_name = "NODE")]
    pub node: Option<String>,
}

/// Part of the measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Make own files of 4 KiB.
    Create,
    /// stat, then open and read the next node's.
    Read,
    /// Remove own files.
    Remove,
}

/// What a phase writes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Document {
    /// Always [`SCHEMA`].
    pub schema: String,
    /// The node that did it.
    pub node: String,
    /// Whose files.
    pub of: String,
    /// One for each operation.
    pub rows: Vec<Row>,
    /// Why it ended early.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

/// One operation over the files.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// create, stat, read or unlink.
    pub op: String,
    /// Files that were done.
    pub files: u32,
    /// Wall time.
    pub seconds: f64,
    /// Milliseconds of one operation at the 50th and 99th percentile (nearest rank).
    pub ms: [f64; 2],
}

fn name(number: u32) -> String {
    format!("{number:07}")
}

fn create(path: &Path) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
    file.write_all(&[0x5a; SIZE])
}

fn read(path: &Path) -> io::Result<()> {
    let mut bytes = [0; SIZE];
    fs::File::open(path)?.read_exact(&mut bytes)
}

/// Times one operation on each file, until all are done or time is up.
fn over(
    op: &str,
    folder: &Path,
    args: &Args,
    act: impl Fn(&Path) -> io::Result<()>,
) -> Result<Row, (String, Row)> {
    let (begin, limit) = (Instant::now(), Duration::from_secs(u64::from(args.seconds)));
    let mut each: Vec<f64> = Vec::with_capacity(args.files as usize);
    let mut failed = None;
    for number in 0..args.files {
        if begin.elapsed() > limit {
            break;
        }
        let path = folder.join(name(number));
        let one = Instant::now();
        if let Err(error) = act(&path) {
            failed = Some(format!("{op} of {}: {error}", path.display()));
            break;
        }
        each.push(one.elapsed().as_secs_f64() * 1e3);
    }
    let seconds = begin.elapsed().as_secs_f64();
    each.sort_by(f64::total_cmp);
    let rank = |percent: usize| each.get((each.len() * percent).div_ceil(100).saturating_sub(1)).copied();
    let ms = [50, 99].map(|percent| rank(percent).unwrap_or(0.0));
    let files = u32::try_from(each.len()).unwrap_or(u32::MAX);
    let row = Row { op: op.to_owned(), files, seconds, ms };
    match failed {
        Some(why) => Err((why, row)),
        None => Ok(row),
    }
}

/// Runs one phase.
///
/// # Errors
/// A node that is not among `--nodes`, a document that cannot be written (2).
pub fn run(args: &Args) -> Result<u8, Failure> {
    let node = args.node.clone().or_else(|| std::env::var("SLURMD_NODENAME").ok()).unwrap_or_default();
    let Some(at) = args.nodes.iter().position(|one| *one == node) else {
        return Err(Failure::input(format!("node {node:?} is not among --nodes {}", args.nodes.join(","))));
    };
    let of = match args.phase {
        Phase::Read => args.nodes[(at + 1) % args.nodes.len()].clone(),
        Phase::Create | Phase::Remove => node.clone(),
    };
    let folder = args.dir.join(&of);
    let mut document =
        Document { schema: SCHEMA.to_owned(), node: node.clone(), of, rows: Vec::new(), detail: None };
    let mut keep = |row: Result<Row, (String, Row)>| match row {
        Ok(row) => document.rows.push(row),
        Err((why, row)) => {
            document.rows.push(row);
            document.detail.get_or_insert(why);
        }
    };
    match args.phase {
        Phase::Create => match fs::create_dir_all(&folder) {
            Ok(()) => keep(over("create", &folder, args, create)),
            Err(error) => {
                document.detail = Some(format!("{} cannot be made: {error}", folder.display()));
            }
        },
        Phase::Read => {
            keep(over("stat", &folder, args, |path| fs::metadata(path).map(drop)));
            keep(over("read", &folder, args, read));
        }
        Phase::Remove => {
            keep(over("unlink", &folder, args, |path| fs::remove_file(path)));
            // Files that the time limit left, too: it is this program's own folder.
            let _ = fs::remove_dir_all(&folder);
        }
    }
    let out = PathBuf::from(args.out.to_string_lossy().replace("%n", &node));
    let mut text = serde_json::to_string_pretty(&document).map_err(Failure::input)?;
    text.push('\n');
    run::write_atomic(&out, text.as_bytes()).map_err(|error| {
        Failure::input(format!("cannot write {}: {error}; give a writable folder", out.display()))
    })?;
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn phase(dir: &Path, phase: Phase, node: &str, files: u32) -> Document {
        let out = dir.join("%n.json");
        let args = Args {
            phase,
            dir: dir.join("files"),
            nodes: vec!["a".to_owned(), "b".to_owned()],
            files,
            seconds: 60,
            out,
            node: Some(node.to_owned()),
        };
        assert_eq!(run(&args).unwrap(), 0);
        serde_json::from_str(&fs::read_to_string(dir.join(format!("{node}.json"))).unwrap()).unwrap()
    }

    #[test]
    fn a_node_looks_at_the_next_nodes_files_and_removes_its_own() {
        let dir = tempfile::tempdir().unwrap();
        for node in ["a", "b"] {
            let made = phase(dir.path(), Phase::Create, node, 20);
            assert_eq!((made.of.as_str(), made.rows[0].files, made.detail), (node, 20, None));
        }
        let seen = phase(dir.path(), Phase::Read, "b", 20);
        assert_eq!((seen.of.as_str(), seen.rows.len()), ("a", 2));
        assert!(seen.rows.iter().all(|row| row.files == 20 && row.ms[0] <= row.ms[1]), "{seen:?}");
        let gone = phase(dir.path(), Phase::Remove, "a", 20);
        assert_eq!(gone.rows[0].files, 20);
        assert!(!dir.path().join("files/a").exists() && dir.path().join("files/b").exists());
    }

    #[test]
    fn files_that_are_not_there_are_told_and_no_rate() {
        let dir = tempfile::tempdir().unwrap();
        phase(dir.path(), Phase::Create, "b", 5);
        let seen = phase(dir.path(), Phase::Read, "a", 9);
        assert_eq!(seen.rows[0].files, 5);
        assert!(seen.detail.unwrap().contains("stat of "));
        let bad = Args {
            phase: Phase::Create,
            dir: dir.path().join("files"),
            nodes: vec!["a".to_owned()],
            files: 1,
            seconds: 1,
            out: dir.path().join("x"),
            node: Some("z".to_owned()),
        };
        assert!(run(&bad).unwrap_err().message.contains("\"z\" is not among"));
    }
}
