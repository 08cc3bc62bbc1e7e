//! A reader that keeps its place in a ring or a file.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Instant, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::record::{Record, parse_dict, parse_record, peek_seq};

/// First size of the buffer for one record; the kernel's own limit is 8 KiB or less.
pub(super) const RECORD_BYTES: usize = 16 * 1024;
/// A record that does not fit here is an error.
pub(super) const RECORD_BYTES_MAX: usize = 1024 * 1024;
/// Longest line of a file of records; a longer one is counted as malformed.
pub(super) const LINE_BYTES_MAX: u64 = 64 * 1024;
/// Bytes before a file position that prove that the file still is the one that was read.
const TAIL_BYTES: u64 = 64;

/// Where a reader stands; kept on disk between runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cursor {
    /// Boot in which the records were read.
    pub boot_id: String,
    /// Sequence number of the last record seen; none before the first.
    pub seq: Option<u64>,
    /// Position in a regular file; none for `/dev/kmsg`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<FilePosition>,
}

/// Position in a regular file of records.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilePosition {
    /// Inode number.
    pub inode: u64,
    /// Creation time in nanoseconds since 1970, since inode numbers are used again; 0 where the file system keeps none.
    pub created: u64,
    /// Bytes read, up to the end of a line.
    pub offset: u64,
    /// FNV-1a hash of the last bytes before `offset`.
    pub tail: u64,
}

/// What one reading gave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    /// Where to go on the next time.
    pub cursor: Cursor,
    /// Records handed out.
    pub records: u64,
    /// Records that were overwritten before they could be read: gaps in the sequence numbers after the cursor.
    pub lost: u64,
    /// Records or lines that could not be understood.
    pub malformed: u64,
    /// The end was reached; false when the deadline came first.
    pub complete: bool,
    /// The cursor could not be used (another boot, a file cut short or replaced): everything was read from the start.
    pub restarted: bool,
}

/// Why the kernel log could not be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Opening failed.
    #[error(
        "cannot open the kernel log {path}: {source}; correct [paths] kmsg or kmsg_files, or run as root"
    )]
    Open {
        /// File.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
    /// Neither `/dev/kmsg` nor a regular file.
    #[error("{path} is neither a kernel log device nor a regular file; correct [paths] kmsg or kmsg_files")]
    Kind {
        /// File.
        path: PathBuf,
    },
    /// Reading failed.
    #[error("cannot read the kernel log {path}: {source}")]
    Read {
        /// File.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
}

/// Reads a kernel log device or a regular file of records, one a line.
#[derive(Debug)]
pub struct Reader {
    path: PathBuf,
    boot_id: String,
    ring: Option<Ring<File>>,
}

impl Reader {
    /// Opens `path`; never blocks. `boot_id` is this boot's, from `/proc/sys/kernel/random/boot_id`.
    ///
    /// # Errors
    /// A missing or unreadable file, or one of another kind; the message names it.
    pub fn open(path: &Path, boot_id: &str) -> Result<Self, Error> {
        let file = open(path)?;
        let kind = file.metadata().map_err(|source| Error::Open { path: path.into(), source })?.file_type();
        let ring = if kind.is_char_device() {
            Some(Ring::new(file))
        } else if kind.is_file() {
            None
        } else {
            return Err(Error::Kind { path: path.into() });
        };
        Ok(Reader { path: path.into(), boot_id: boot_id.into(), ring })
    }

    /// Descriptor to wait on with poll(2); none for a regular file, which has to be looked at again after a while.
    #[must_use]
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.ring.as_ref().map(|r| r.source.as_fd())
    }

    /// Hands each record after `cursor` to `each`, until the end or the deadline.
    ///
    /// `/dev/kmsg`: records up to the cursor's are passed over when it is of this boot; else all that the ring still holds
    /// are read. A regular file: reading goes on at the cursor's position, whatever the boot, because a file keeps its
    /// records over a reboot; it starts over when the file was replaced or cut short; a last line without newline is left
    /// for the next time.
    ///
    /// # Errors
    /// Reading failed; records already handed out will be handed out again when the old cursor is used again.
    pub fn read_from(
        &mut self,
        cursor: Option<&Cursor>,
        deadline: Instant,
        each: impl FnMut(Record),
    ) -> Result<Batch, Error> {
        let boot_id = self.boot_id.clone();
        match &mut self.ring {
            Some(ring) => ring.read_from(boot_id, cursor, deadline, each),
            None => read_file(&self.path, boot_id, cursor, deadline, each),
        }
        .map_err(|source| Error::Read { path: self.path.clone(), source })
    }
}

fn open(path: &Path) -> Result<File, Error> {
    // Non-blocking also keeps the open of a FIFO in the device's place from waiting for a writer.
    OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
        .open(path)
        .map_err(|source| Error::Open { path: path.into(), source })
}

/// `/dev/kmsg`: each read gives one record. Generic for tests.
#[derive(Debug)]
pub(super) struct Ring<S> {
    pub(super) source: S,
    buffer: Vec<u8>,
    /// Last record that this descriptor gave; none at the start of the ring.
    last: Option<u64>,
}

impl<S: Read + Seek> Ring<S> {
    pub(super) fn new(source: S) -> Self {
        Ring { source, buffer: vec![0; RECORD_BYTES], last: None }
    }

    pub(super) fn read_from(
        &mut self,
        boot_id: String,
        cursor: Option<&Cursor>,
        deadline: Instant,
        mut each: impl FnMut(Record),
    ) -> io::Result<Batch> {
        let restarted = cursor.is_some_and(|c| c.boot_id != boot_id);
        let mut last = cursor.filter(|c| c.boot_id == boot_id).and_then(|c| c.seq);
        if self.last != last {
            // The device knows three places only: start, last clear, end. "Last clear" would hide what `dmesg -C` cleared.
            self.source.seek(SeekFrom::Start(0))?;
            self.last = None;
        }
        let (mut records, mut lost, mut malformed) = (0, 0_u64, 0);
        let complete = loop {
            if Instant::now() >= deadline {
                break false;
            }
            let length = match self.source.read(&mut self.buffer) {
                Ok(0) => break true,
                Ok(length) => length,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break true,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                // Records were overwritten since the last read; the next read gives the oldest one left, and the gap in the
                // sequence numbers tells how many were lost.
                Err(e) if e.raw_os_error() == Some(libc::EPIPE) => continue,
                Err(e) if e.raw_os_error() == Some(libc::EINVAL) && self.buffer.len() < RECORD_BYTES_MAX => {
                    // The kernel has already passed over the record that did not fit: start again, pass over known ones.
                    self.buffer.resize(self.buffer.len() * 2, 0);
                    self.source.seek(SeekFrom::Start(0))?;
                    continue;
                }
                Err(e) => return Err(e),
            };
            let bytes = &self.buffer[..length];
            let Some(seq) = peek_seq(bytes) else {
                malformed += 1;
                continue;
            };
            self.last = Some(seq);
            if let Some(last) = last {
                if seq <= last {
                    continue;
                }
                lost = lost.saturating_add(seq - last - 1);
            }
            last = Some(seq);
            match parse_record(bytes) {
                Ok(record) => {
                    records += 1;
                    each(record);
                }
                Err(_) => malformed += 1,
            }
        };
        let cursor = Cursor { boot_id, seq: last, file: None };
        Ok(Batch { cursor, records, lost, malformed, complete, restarted })
    }
}

fn read_file(
    path: &Path,
    boot_id: String,
    cursor: Option<&Cursor>,
    deadline: Instant,
    mut each: impl FnMut(Record),
) -> io::Result<Batch> {
    // Opened anew each time, because the file behind the path may have been replaced.
    let mut file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    let metadata = file.metadata()?;
    let inode = metadata.ino();
    let since_1970 = metadata.created().ok().and_then(|t| t.duration_since(UNIX_EPOCH).ok());
    let created = since_1970.map_or(0, |d| u64::try_from(d.as_nanos()).unwrap_or_default());
    let position = match cursor.and_then(|c| c.file.as_ref()) {
        Some(p) if (p.inode, p.created) == (inode, created) && tail(&mut file, p.offset)? == Some(p.tail) => {
            Some(p.offset)
        }
        _ => None,
    };
    let restarted = cursor.is_some() && position.is_none();
    let mut last = cursor.filter(|_| position.is_some()).and_then(|c| c.seq);
    let mut offset = position.unwrap_or(0);
    file.seek(SeekFrom::Start(offset))?;
    let mut reader = BufReader::with_capacity(RECORD_BYTES, file);

    let (mut records, mut lost, mut malformed) = (0, 0_u64, 0);
    // Dictionary lines follow their record, so one record is held back.
    let mut pending: Option<Record> = None;
    let mut line = Vec::new();
    let complete = loop {
        if Instant::now() >= deadline {
            break false;
        }
        line.clear();
        reader.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line)?;
        if line.last() != Some(&b'\n') {
            if (line.len() as u64) < LINE_BYTES_MAX {
                break true;
            }
            let Some(rest) = skip_line(&mut reader)? else {
                break true;
            };
            offset += line.len() as u64 + rest;
            malformed += 1;
            continue;
        }
        offset += line.len() as u64;
        let text = line.trim_ascii_end();
        if text.first() == Some(&b' ') {
            if let (Some(record), Some(entry)) = (pending.as_mut(), parse_dict(text)) {
                record.dict.push(entry);
            }
            continue;
        }
        pending.take().into_iter().for_each(&mut each);
        if text.is_empty() || text[0] == b'#' {
            continue;
        }
        match parse_record(line.strip_suffix(b"\n").unwrap_or(&line)) {
            Ok(record) => {
                if let Some(last) = last {
                    lost = lost.saturating_add(record.seq.saturating_sub(last.saturating_add(1)));
                }
                last = Some(record.seq);
                records += 1;
                pending = Some(record);
            }
            Err(_) => malformed += 1,
        }
    };
    pending.take().into_iter().for_each(&mut each);
    let tail = tail(reader.get_mut(), offset)?.unwrap_or_default();
    let cursor = Cursor { boot_id, seq: last, file: Some(FilePosition { inode, created, offset, tail }) };
    Ok(Batch { cursor, records, lost, malformed, complete, restarted })
}

/// Passes over the rest of a line; gives its length with the newline, or none when the file ends before.
fn skip_line(reader: &mut impl BufRead) -> io::Result<Option<u64>> {
    let mut skipped = 0;
    loop {
        let buffer = reader.fill_buf()?;
        if buffer.is_empty() {
            return Ok(None);
        }
        let newline = buffer.iter().position(|b| *b == b'\n');
        let length = newline.map_or(buffer.len(), |at| at + 1);
        reader.consume(length);
        skipped += length as u64;
        if newline.is_some() {
            return Ok(Some(skipped));
        }
    }
}

/// Hash of the bytes before `offset`; none when the file is shorter.
fn tail(file: &mut File, offset: u64) -> io::Result<Option<u64>> {
    if file.metadata()?.len() < offset {
        return Ok(None);
    }
    let length = offset.min(TAIL_BYTES);
    file.seek(SeekFrom::Start(offset - length))?;
    let mut bytes = Vec::new();
    file.take(length).read_to_end(&mut bytes)?;
    let hash = bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3));
    Ok(Some(hash))
}
