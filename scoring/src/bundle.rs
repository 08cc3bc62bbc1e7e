//! `clustermax bundle` and `clustermax verify`: a run as one file that a third party can check.
//!
//! A bundle is a gzip-compressed tar archive: `RUN/MANIFEST.json` first, then every file of the results folder, sorted
//! by path. Times, owners and modes are fixed, so one folder always gives the same bytes.
//!
//! `verify` believes nothing of it: names and sizes are checked before anything is written, every file is hashed, every
//! record's raw file must have the hash that the record names, and the score is computed anew and compared byte by byte.
//! It proves that the parts belong together, not that the measurements are true: a bundle carries no signature, so
//! compare the printed SHA-256 with one that came by another way.

mod again;
mod verify;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::{Failure, evidence, report, run};

pub use verify::{VerifyArgs, verify};

/// The schema of `MANIFEST.json`.
pub const SCHEMA: &str = "clustermax-bundle/1";

/// First file of a bundle.
pub const MANIFEST: &str = "MANIFEST.json";

/// `clustermax bundle`
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Results folder
    pub dir: PathBuf,
    /// The archive to write [default: RUN.clustermax.tar.gz beside the results folder]
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Evidence file that was given to `clustermax score`, when it lies outside the results folder
    #[arg(long, value_name = "FILE")]
    pub evidence: Option<PathBuf>,
}

/// `MANIFEST.json`: what the bundle holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Always [`SCHEMA`].
    pub schema: String,
    /// The run's id.
    pub run: String,
    /// Slurm's ClusterName.
    pub cluster: String,
    /// Release that made the bundle.
    pub tool: String,
    /// Path below the results folder, with `/`, to what it holds.
    pub files: BTreeMap<String, Entry>,
}

/// One file of a bundle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// Its size in bytes.
    pub bytes: u64,
    /// Its SHA-256, lower-case hexadecimal.
    pub sha256: String,
}

/// Runs `clustermax bundle`.
///
/// # Errors
/// A folder that is no results folder or was never scored, a link or device in it, an archive that cannot be written:
/// one sentence each (exit 2). An archive that was there stays as it was.
pub fn run(args: &Args) -> Result<u8, Failure> {
    let folder = run::Folder::open(&args.dir)?;
    if !folder.path.join("score.json").is_file() {
        return Err(Failure::input(format!(
            "{} has no score.json, so nobody could check its score; run `clustermax score {0}` first",
            args.dir.display()
        )));
    }
    let name = single_name(&folder.run.run).ok_or_else(|| {
        Failure::input(format!(
            "{}: run {:?} cannot name a folder; restore the file that the suite wrote",
            folder.path.join("run.json").display(),
            folder.run.run
        ))
    })?;
    let out = args.out.clone().unwrap_or_else(|| beside(&args.dir, &format!("{name}.clustermax.tar.gz")));

    let mut sources = BTreeMap::new();
    walk(&folder.path, &folder.path, &mut sources)?;
    if let Some(file) = &args.evidence {
        sources.insert(evidence::FILE.to_owned(), file.clone());
    }
    sources.remove(MANIFEST);
    if let (Ok(out), true) = (out.canonicalize(), out.exists()) {
        sources.retain(|_, path| path.canonicalize().ok().as_ref() != Some(&out));
    }

    let mut files = BTreeMap::new();
    for (path, source) in &sources {
        let (bytes, sha256) = digest(source).map_err(|error| unreadable(source, &error))?;
        files.insert(path.clone(), Entry { bytes, sha256 });
    }
    let manifest = Manifest {
        schema: SCHEMA.to_owned(),
        run: folder.run.run.clone(),
        cluster: folder.run.cluster.clone(),
        tool: concat!("clustermax ", env!("CARGO_PKG_VERSION")).to_owned(),
        files,
    };
    let bytes = write(&out, name, &manifest, &sources)?;
    let (_, sha256) = digest(&out).map_err(|error| unreadable(&out, &error))?;
    report::print(&format!(
        "{}: profile {}, {} files, {bytes} bytes, sha256 {sha256}\ncheck it anywhere with `clustermax verify {0}`\n",
        out.display(),
        report::plain(&folder.run.profile_text()),
        manifest.files.len() + 1,
    ))?;
    Ok(0)
}

/// A string that names one folder entry and nothing else.
fn single_name(name: &str) -> Option<&str> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    (!name.is_empty() && name.len() <= 128 && name.chars().all(plain) && !name.starts_with('.'))
        .then_some(name)
}

fn beside(dir: &Path, name: &str) -> PathBuf {
    // `results/` and `.` have a parent only when they are spelt out.
    let whole = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
    whole.parent().map_or_else(|| PathBuf::from(name), |parent| parent.join(name))
}

/// Every file below `folder`. Temporary files of a writer that is at work (or was killed) are left out.
fn walk(root: &Path, folder: &Path, found: &mut BTreeMap<String, PathBuf>) -> Result<(), Failure> {
    for entry in fs::read_dir(folder).map_err(|error| unreadable(folder, &error))? {
        let entry = entry.map_err(|error| unreadable(folder, &error))?;
        let path = entry.path();
        let kind = entry.file_type().map_err(|error| unreadable(&path, &error))?;
        let Some(below) = path.strip_prefix(root).ok().and_then(Path::to_str) else {
            return Err(Failure::input(format!(
                "{}: the name is not UTF-8; rename the file",
                path.display()
            )));
        };
        let name = entry.file_name().to_string_lossy().into_owned();
        if kind.is_dir() {
            walk(root, &path, found)?;
        } else if !kind.is_file() {
            return Err(Failure::input(format!(
                "{} is neither a file nor a folder; a bundle holds files only: remove it or put the file itself there",
                path.display()
            )));
        } else if !(name.starts_with('.') && name.ends_with(".tmp")) {
            found.insert(below.to_owned(), path);
        }
    }
    Ok(())
}

/// Size and SHA-256 of a file, read in pieces.
fn digest(path: &Path) -> io::Result<(u64, String)> {
    let mut hasher = Sha256::new();
    let bytes = io::copy(&mut File::open(path)?, &mut hasher)?;
    Ok((bytes, format!("{:x}", hasher.finalize())))
}

fn unreadable(path: &Path, error: &io::Error) -> Failure {
    Failure::input(format!("cannot read {}: {error}; check permissions", path.display()))
}

/// Writes the archive, all of it or nothing; its size in bytes.
fn write(
    out: &Path,
    prefix: &str,
    manifest: &Manifest,
    sources: &BTreeMap<String, PathBuf>,
) -> Result<u64, Failure> {
    let cannot = |error: io::Error| {
        Failure::input(format!(
            "cannot write {}: {error}; free space or give another file with --out",
            out.display()
        ))
    };
    let folder = out.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let temp = tempfile::NamedTempFile::new_in(folder).map_err(cannot)?;
    let mut archive =
        tar::Builder::new(GzEncoder::new(BufWriter::new(temp.as_file()), Compression::default()));
    let mut json = serde_json::to_vec_pretty(manifest).map_err(|error| cannot(error.into()))?;
    json.push(b'\n');
    append(&mut archive, prefix, MANIFEST, json.len() as u64, json.as_slice()).map_err(cannot)?;
    for (path, entry) in &manifest.files {
        let source = &sources[path];
        let file = File::open(source).map_err(|error| unreadable(source, &error))?;
        // A file that grows meanwhile is caught by its hash when it is verified; the archive itself stays whole.
        let exact = Exact { inner: file.take(entry.bytes), left: entry.bytes };
        append(&mut archive, prefix, path, entry.bytes, exact).map_err(|error| {
            if error.kind() == io::ErrorKind::UnexpectedEof {
                Failure::input(format!(
                    "{} became shorter while it was read; wait until the run has ended",
                    source.display()
                ))
            } else {
                cannot(error)
            }
        })?;
    }
    let finish = || -> io::Result<()> {
        let mut buffer = archive.into_inner()?.finish()?;
        buffer.flush()?;
        Ok(())
    };
    finish().map_err(cannot)?;
    temp.as_file().sync_all().map_err(cannot)?;
    let bytes = temp.as_file().metadata().map_err(cannot)?.len();
    let kept = temp.persist(out).map_err(|error| cannot(error.error))?;
    // A temporary file is the owner's alone; a bundle is to be passed on.
    let _ = kept.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o644));
    Ok(bytes)
}

fn append(
    archive: &mut tar::Builder<impl Write>,
    prefix: &str,
    path: &str,
    bytes: u64,
    content: impl Read,
) -> io::Result<()> {
    let mut header = tar::Header::new_gnu();
    header.set_size(bytes);
    header.set_mode(0o644);
    header.set_mtime(0);
    archive.append_data(&mut header, format!("{prefix}/{path}"), content)
}

/// A reader that says so when it ends too early: `tar` would write a short entry without a word.
struct Exact<R> {
    inner: R,
    left: u64,
}

impl<R: Read> Read for Exact<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        if read == 0 && self.left > 0 && !buffer.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.left -= read as u64;
        Ok(read)
    }
}
