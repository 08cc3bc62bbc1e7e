//! `clustermax verify`: whether a bundle is whole, its parts belong together and its score follows from them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Component, Path, PathBuf};

use flate2::bufread::GzDecoder;
use sha2::{Digest, Sha256};

use super::{Entry, MANIFEST, Manifest, SCHEMA, again, digest, single_name, unreadable, walk};
use crate::score::{self, Evaluation};
use crate::{Failure, report, run};

/// A manifest is read into memory; a run of 1,000 nodes has some ten thousand files.
const MANIFEST_LIMIT: u64 = 64 << 20;

/// Longest name of a file, and longest text of its attributes, that is read into memory.
const NAME_LIMIT: u64 = 64 << 10;

/// Unpacked bytes that need no reason, and how many times as large as the archive they may be beyond: logs pack to a
/// tenth, zeros to a thousandth.
const UNPACKED: (u64, u64) = (1 << 30, 200);

/// Zeros that a packer fills its last block with.
const PADDING: u64 = 1 << 20;

/// `clustermax verify`
#[derive(Debug, Clone, clap::Args)]
pub struct VerifyArgs {
    /// Bundle that `clustermax bundle` made, or a results folder
    pub path: PathBuf,
    /// Keep the unpacked results folder in this new or empty folder
    #[arg(long, value_name = "DIR")]
    pub unpack: Option<PathBuf>,
    /// Read the methodology from this folder instead of the built-in one
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
}

/// Runs `clustermax verify`. Exit code 0: everything holds; 1: something does not, each named on a line.
///
/// # Errors
/// What cannot be read at all, or is no bundle and no results folder (exit 2).
pub fn verify(args: &VerifyArgs) -> Result<u8, Failure> {
    let mut problems = Vec::new();
    let mut text;
    // A results folder that was never a bundle has no list of its files.
    let mut whole = true;
    if args.path.is_dir() {
        if args.unpack.is_some() {
            return Err(Failure::input(format!(
                "{} is a folder already; leave out --unpack or give a bundle",
                args.path.display()
            )));
        }
        whole = args.path.join(MANIFEST).exists();
        if whole {
            beside_manifest(&args.path, &mut problems)?;
        }
        text = check(&args.path, args.data.as_deref(), &mut problems)?;
    } else {
        let scratch;
        let mut made = None;
        let target = match &args.unpack {
            Some(folder) => {
                let taken = fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_some());
                if taken {
                    return Err(Failure::input(format!(
                        "{} is not empty; give --unpack a new folder",
                        folder.display()
                    )));
                }
                made = (!folder.exists()).then(|| folder.clone());
                fs::create_dir_all(folder).map_err(|error| unwritable(folder, &error))?;
                folder.clone()
            }
            None => {
                scratch = tempfile::tempdir().map_err(|error| unwritable(&std::env::temp_dir(), &error))?;
                scratch.path().to_owned()
            }
        };
        let (manifest, sha256) = unpack(&args.path, &target, &mut problems).inspect_err(|_| {
            // Half of a run must not lie there like one.
            if let Some(folder) = &made {
                let _ = fs::remove_dir_all(folder);
            }
        })?;
        text = format!(
            "bundle of run {} on cluster {}, made by {}: {} files, sha256 {sha256}\n",
            report::plain(&manifest.run),
            report::plain(&manifest.cluster),
            report::plain(&manifest.tool),
            manifest.files.len() + 1
        );
        // A broken archive has no score worth computing.
        if problems.is_empty() {
            text.push_str(&check(&target, args.data.as_deref(), &mut problems)?);
        }
    }
    for problem in &problems {
        text.push_str(&format!("differs: {problem}\n"));
    }
    if problems.is_empty() {
        let files = if whole { "every file, " } else { "" };
        text.push_str(&format!(
            "verified: {files}every record's raw file, the figures of the stages and the score are what they say\n"
        ));
    }
    report::print(&text)?;
    Ok(u8::from(!problems.is_empty()))
}

/// The files of a bundle that was unpacked by other means, against the list that came with them.
fn beside_manifest(folder: &Path, problems: &mut Vec<String>) -> Result<(), Failure> {
    let path = folder.join(MANIFEST);
    let file = File::open(&path).map_err(|error| unreadable(&path, &error))?;
    let manifest: Manifest = serde_json::from_reader(BufReader::new(file).take(MANIFEST_LIMIT))
        .map_err(|error| Failure::input(format!("{}: {error}; unpack the bundle again", path.display())))?;
    if manifest.schema != SCHEMA {
        problems.push(format!("{MANIFEST} has schema {:?}, this release reads {SCHEMA:?}", manifest.schema));
        return Ok(());
    }
    let mut there = BTreeMap::new();
    walk(folder, folder, &mut there)?;
    there.remove(MANIFEST);
    for (name, expected) in &manifest.files {
        let shown = report::plain(name);
        let Some(path) = there.remove(name) else {
            problems.push(format!("{shown} is named in {MANIFEST} and missing"));
            continue;
        };
        let (bytes, sha256) = digest(&path).map_err(|error| unreadable(&path, &error))?;
        if bytes != expected.bytes {
            problems.push(format!("{shown} has {bytes} bytes, {MANIFEST} says {}", expected.bytes));
        } else if sha256 != expected.sha256 {
            problems.push(format!("{shown} has SHA-256 {sha256}, {MANIFEST} says {}", expected.sha256));
        }
    }
    problems.extend(there.keys().map(|name| format!("{} is not named in {MANIFEST}", report::plain(name))));
    Ok(())
}

/// The score, and where that holds the records; a sentence on what was looked at.
fn check(folder: &Path, data: Option<&Path>, problems: &mut Vec<String>) -> Result<String, Failure> {
    check_score(folder, data, problems)?;
    // Another release may read the same output otherwise, and a raw file that has changed says so itself.
    if problems.is_empty() { again::compare(folder, problems) } else { Ok(String::new()) }
}

fn unwritable(path: &Path, error: &io::Error) -> Failure {
    Failure::input(format!("cannot write {}: {error}; free space or set TMPDIR", path.display()))
}

/// Unpacks a bundle into an empty folder: what its manifest names, nothing else. Returns the manifest and the archive's
/// own SHA-256.
fn unpack(path: &Path, target: &Path, problems: &mut Vec<String>) -> Result<(Manifest, String), Failure> {
    let bad = |what: &str| {
        Failure::input(format!(
            "{}: {what}; fetch it again, or make it anew with `clustermax bundle`",
            path.display()
        ))
    };
    let broken = |error: io::Error| bad(&format!("not a whole gzip-compressed tar archive ({error})"));
    let (_, sha256) = digest(path).map_err(|error| {
        Failure::input(format!("cannot read {}: {error}; check the path and its permissions", path.display()))
    })?;
    survey(path).map_err(|what| bad(&what))?;
    let file = File::open(path).map_err(broken)?;
    let mut archive = tar::Archive::new(GzDecoder::new(BufReader::new(file)));
    let mut entries = archive.entries().map_err(broken)?;

    let mut first = match entries.next() {
        Some(entry) => entry.map_err(broken)?,
        None => return Err(bad("the archive is empty")),
    };
    let name = entry_name(&first).unwrap_or_default();
    let Some((prefix, MANIFEST)) = name.split_once('/') else {
        return Err(bad(&format!("its first file is {:?}, not RUN/{MANIFEST}", report::plain(&name))));
    };
    let prefix = single_name(prefix).ok_or_else(|| bad("its folder's name is not a run's id"))?.to_owned();
    if first.size() > MANIFEST_LIMIT {
        return Err(bad(&format!("{MANIFEST} is larger than {} MiB", MANIFEST_LIMIT >> 20)));
    }
    let mut json = Vec::new();
    first.read_to_end(&mut json).map_err(broken)?;
    let manifest: Manifest =
        serde_json::from_slice(&json).map_err(|error| bad(&format!("{MANIFEST}: {error}")))?;
    drop(first);
    if manifest.schema != SCHEMA {
        return Err(bad(&format!(
            "{MANIFEST} has schema {:?}, this release reads {SCHEMA:?}",
            manifest.schema
        )));
    }
    if manifest.run != prefix {
        problems.push(format!("{MANIFEST} is of run {:?}, the archive's folder is {prefix:?}", manifest.run));
    }

    let mut seen = BTreeSet::new();
    for entry in entries {
        let mut entry = entry.map_err(broken)?;
        let whole = entry_name(&entry).unwrap_or_default();
        let shown = report::plain(&whole);
        let inside = whole.strip_prefix(&prefix).and_then(|rest| rest.strip_prefix('/')).unwrap_or_default();
        let Some((inside, expected)) = manifest.files.get_key_value(inside) else {
            problems.push(format!("{shown} is not named in {MANIFEST}"));
            continue;
        };
        if entry.header().entry_type() != tar::EntryType::Regular {
            problems.push(format!("{shown} is not a plain file"));
        } else if !safe(inside) {
            problems.push(format!("{shown} would lie outside the folder, or is no plain path"));
        } else if !seen.insert(inside.clone()) {
            problems.push(format!("{shown} is there twice"));
        } else if entry.size() != expected.bytes {
            problems.push(format!("{shown} has {} bytes, {MANIFEST} says {}", entry.size(), expected.bytes));
        } else {
            let found = match extract(&mut entry, &target.join(inside)) {
                Ok(found) => found,
                Err(Extract::Read(error)) => return Err(broken(error)),
                Err(Extract::Write(error)) if in_the_way(&error) => {
                    problems.push(format!(
                        "{shown} cannot lie beside another entry: one is a file, the other its folder"
                    ));
                    continue;
                }
                Err(Extract::Write(error)) => return Err(unwritable(&target.join(inside), &error)),
            };
            if found != *expected {
                problems.push(format!(
                    "{shown} has SHA-256 {}, {MANIFEST} says {}",
                    found.sha256, expected.sha256
                ));
            }
        }
    }
    for missing in manifest.files.keys().filter(|path| !seen.contains(*path)) {
        problems.push(format!("{} is named in {MANIFEST} and missing", report::plain(missing)));
    }
    Ok((manifest, sha256))
}

fn entry_name(entry: &tar::Entry<'_, impl Read>) -> Option<String> {
    entry.path().ok()?.to_str().map(str::to_owned)
}

/// Looks through an archive before anything of it is believed: nothing may be read into memory that is large without a
/// reason, nothing may unpack to far more than it is, and nothing may stand before, between or behind the files that the
/// hashes would not see.
///
/// # Errors
/// A clause that says what is wrong.
fn survey(path: &Path) -> Result<(), String> {
    let broken = |error: io::Error| format!("not a whole gzip-compressed tar archive ({error})");
    let mut file = BufReader::new(File::open(path).map_err(broken)?);
    let packed = file.get_ref().metadata().map_err(broken)?.len();
    // Flags and time of RFC 1952's header: a bundle has none, and could carry something there.
    if let Some(head) = file.fill_buf().map_err(broken)?.get(..8)
        && head.starts_with(&[0x1f, 0x8b])
        && head[3..] != [0; 5]
    {
        return Err("its gzip header carries a name, a time or a remark, which a bundle has not".to_owned());
    }
    let mut archive = tar::Archive::new(GzDecoder::new(file));
    let mut unpacked = 0_u64;
    for entry in archive.entries().map_err(broken)?.raw(true) {
        let entry = entry.map_err(broken)?;
        let kind = entry.header().entry_type();
        let name = kind.is_gnu_longname()
            || kind.is_gnu_longlink()
            || kind.is_pax_local_extensions()
            || kind.is_pax_global_extensions();
        if name && entry.size() > NAME_LIMIT {
            return Err(format!("a name in it has {} bytes, more than {NAME_LIMIT}", entry.size()));
        }
        unpacked = unpacked.saturating_add(entry.size());
    }
    let mut rest = archive.into_inner();
    let mut zeros = Vec::new();
    (&mut rest).take(PADDING + 1).read_to_end(&mut zeros).map_err(broken)?;
    if zeros.len() as u64 > PADDING || zeros.iter().any(|byte| *byte != 0) {
        return Err("something stands behind its last file".to_owned());
    }
    if !rest.into_inner().fill_buf().map_err(broken)?.is_empty() {
        return Err("something stands behind the archive".to_owned());
    }
    let (free, times) = UNPACKED;
    if unpacked > free.max(packed.saturating_mul(times)) {
        return Err(format!("{packed} bytes would unpack to {unpacked}, which no run does"));
    }
    Ok(())
}

/// Only names going down, spelt in one way: no root, no `..`, no `.`, no slash too many; and not the manifest's own.
fn safe(path: &str) -> bool {
    let plain = path.split('/').all(|part| !matches!(part, "" | "." | ".."));
    plain && path != MANIFEST && Path::new(path).components().all(|part| matches!(part, Component::Normal(_)))
}

/// Another entry of the archive lies where this one should.
fn in_the_way(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::AlreadyExists | io::ErrorKind::NotADirectory | io::ErrorKind::IsADirectory
    )
}

enum Extract {
    Read(io::Error),
    Write(io::Error),
}

fn extract(source: &mut impl Read, path: &Path) -> Result<Entry, Extract> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(Extract::Write)?;
    }
    let mut file = File::create_new(path).map_err(Extract::Write)?;
    let (mut hasher, mut bytes, mut buffer) = (Sha256::new(), 0, vec![0; 64 << 10]);
    loop {
        let read = source.read(&mut buffer).map_err(Extract::Read)?;
        if read == 0 {
            return Ok(Entry { bytes, sha256: format!("{:x}", hasher.finalize()) });
        }
        bytes += read as u64;
        hasher.update(&buffer[..read]);
        io::Write::write_all(&mut file, &buffer[..read]).map_err(Extract::Write)?;
    }
}

/// Computes the score anew from records and raw files.
fn check_score(folder: &Path, data: Option<&Path>, problems: &mut Vec<String>) -> Result<(), Failure> {
    let path = folder.join("score.json");
    let kept = match run::read_regular(&path) {
        Ok(kept) => kept,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            problems.push(
                "score.json is missing: the run was never scored; run `clustermax score` first".to_owned(),
            );
            return Ok(());
        }
        Err(error) => {
            return Err(Failure::input(format!(
                "cannot read {}: {error}; check the path and its permissions",
                path.display()
            )));
        }
    };
    let evaluation = match Evaluation::of(folder, data, None) {
        Ok(evaluation) => evaluation,
        Err(failure) => {
            problems.push(failure.message);
            return Ok(());
        }
    };
    for raw in &evaluation.loaded.files {
        if let Some(problem) = &raw.problem {
            problems.push(format!("evidence {} {problem}", report::plain(&raw.file)));
        }
    }
    let anew = score::to_json(&evaluation);
    if kept == anew {
        return Ok(());
    }
    let parse = |text: &str| serde_json::from_str::<serde_json::Value>(text).ok();
    let (Some(kept), Some(anew)) = (parse(&kept), parse(&anew)) else {
        problems.push("score.json is not JSON; run `clustermax score` again".to_owned());
        return Ok(());
    };
    if kept["methodology"] != anew["methodology"] || kept["tool"] != anew["tool"] {
        problems.push(format!(
            "score.json is by {}, methodology {}; this program is {}, methodology {}: its score cannot be recomputed here, \
             use that release",
            kept["tool"], kept["methodology"], anew["tool"], anew["methodology"]
        ));
    } else {
        let parts =
            anew.as_object().into_iter().flatten().filter(|(key, value)| kept.get(key) != Some(value));
        let names: Vec<&str> = parts.map(|(key, _)| key.as_str()).collect();
        problems.push(format!(
            "score.json is not what these records give: {} differ{}",
            if names.is_empty() { "its bytes".to_owned() } else { names.join(", ") },
            if names.len() == 1 { "s" } else { "" }
        ));
    }
    Ok(())
}
