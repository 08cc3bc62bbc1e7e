//! The kernel log: records of `/dev/kmsg`, a reader that keeps its place, and the renderings other tools give a record.
//!
//! Record format: Linux `Documentation/ABI/testing/dev-kmsg`. A record is `PRIO,SEQ,USEC,FLAGS[,KEY=VALUE]...;TEXT`, then
//! dictionary lines ` KEY=VALUE`. Bytes below 32, above 126 and the backslash come as `\xNN`.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde::{Deserialize, Serialize};

/// First size of the buffer for one record; the kernel's own limit is 8 KiB or less.
const RECORD_BYTES: usize = 16 * 1024;
/// A record that does not fit here is an error.
const RECORD_BYTES_MAX: usize = 1024 * 1024;
/// Longest line of a file of records; a longer one is counted as malformed.
const LINE_BYTES_MAX: u64 = 64 * 1024;
/// Bytes before a file position that prove that the file still is the one that was read.
const TAIL_BYTES: u64 = 64;

/// Place of a record in a line that the kernel printed in pieces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Continuation {
    /// A whole line (`-`).
    #[default]
    Whole,
    /// First piece of a line (`c`).
    First,
    /// A following piece (`+`); kernels since 4.10 do not print it.
    Next,
}

/// One record of the kernel log.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Record {
    /// Syslog facility: 0 for the kernel itself, 1 or more for what a process wrote to `/dev/kmsg`.
    pub facility: u8,
    /// Syslog level, 0 (emergency) to 7 (debug).
    pub level: u8,
    /// Sequence number, counted from 0 at boot.
    pub seq: u64,
    /// Microseconds since boot.
    pub usec: u64,
    /// Whole line or piece of one.
    pub continuation: Continuation,
    /// `caller=` field (`T123`: thread, `C1`: processor), where the kernel is built with it.
    pub caller: Option<String>,
    /// The message without escapes; may hold several lines. Invalid UTF-8 becomes U+FFFD.
    pub text: String,
    /// Dictionary lines, for example `SUBSYSTEM` = `pci`.
    pub dict: Vec<(String, String)>,
}

/// Why bytes are not a record.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// No `;` ends the header.
    #[error("not a kernel log record: no \";\" after the header")]
    NoHeader,
    /// A header field is missing or not a number in range.
    #[error("not a kernel log record: field {0} is not a number in range")]
    Field(&'static str),
}

/// Reads one record as one read of `/dev/kmsg` returns it.
///
/// # Errors
/// Bytes without the four header fields. Unknown flags and further header fields are no error: kernels may add some.
pub fn parse_record(bytes: &[u8]) -> Result<Record, RecordError> {
    let (header, body) = split_header(bytes)?;
    let mut fields = header.split(|b| *b == b',');
    let priority = number(fields.next(), "priority")?;
    let facility = u8::try_from(priority >> 3).map_err(|_| RecordError::Field("priority"))?;
    let seq = number(fields.next(), "sequence")?;
    let usec = number(fields.next(), "time")?;
    let continuation = match fields.next() {
        None => return Err(RecordError::Field("flags")),
        Some(b"c") => Continuation::First,
        Some(b"+") => Continuation::Next,
        Some(_) => Continuation::Whole,
    };
    let caller = fields.find_map(|f| f.strip_prefix(b"caller=")).map(unescape);
    let mut lines = body.split(|b| *b == b'\n');
    let text = unescape(lines.next().unwrap_or_default());
    let dict = lines.filter_map(parse_dict).collect();
    Ok(Record { facility, level: (priority & 7) as u8, seq, usec, continuation, caller, text, dict })
}

impl Record {
    /// The bytes that the kernel would give for this record, with a final newline.
    #[must_use]
    pub fn encode(&self) -> String {
        let flag = match self.continuation {
            Continuation::Whole => '-',
            Continuation::First => 'c',
            Continuation::Next => '+',
        };
        let priority = u32::from(self.facility) * 8 + u32::from(self.level & 7);
        let mut out = format!("{priority},{},{},{flag}", self.seq, self.usec);
        if let Some(caller) = &self.caller {
            out.push_str(",caller=");
            escape(caller, &mut out);
        }
        out.push(';');
        escape(&self.text, &mut out);
        out.push('\n');
        for (key, value) in &self.dict {
            out.push(' ');
            escape(key, &mut out);
            out.push('=');
            escape(value, &mut out);
            out.push('\n');
        }
        out
    }

    /// A process wrote this record to `/dev/kmsg`; the kernel never lets it use its own facility 0.
    #[must_use]
    pub fn from_user_space(&self) -> bool {
        self.facility != 0
    }
}

fn split_header(bytes: &[u8]) -> Result<(&[u8], &[u8]), RecordError> {
    let line = bytes.iter().position(|b| *b == b'\n').unwrap_or(bytes.len());
    let end = bytes[..line].iter().position(|b| *b == b';').ok_or(RecordError::NoHeader)?;
    Ok((&bytes[..end], &bytes[end + 1..]))
}

fn number(field: Option<&[u8]>, name: &'static str) -> Result<u64, RecordError> {
    let digits = field.filter(|f| !f.is_empty() && f.iter().all(u8::is_ascii_digit));
    digits
        .and_then(|f| std::str::from_utf8(f).ok())
        .and_then(|f| f.parse().ok())
        .ok_or(RecordError::Field(name))
}

/// Sequence number alone, to pass over known records cheaply.
fn peek_seq(bytes: &[u8]) -> Option<u64> {
    let (header, _) = split_header(bytes).ok()?;
    number(header.split(|b| *b == b',').nth(1), "sequence").ok()
}

fn parse_dict(line: &[u8]) -> Option<(String, String)> {
    let line = line.strip_prefix(b" ")?;
    let equals = line.iter().position(|b| *b == b'=')?;
    Some((unescape(&line[..equals]), unescape(&line[equals + 1..])))
}

fn unescape(bytes: &[u8]) -> String {
    let mut out = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        if byte == b'\\' {
            match tail {
                [b'x', high, low, after @ ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {
                    out.push(hex(*high) << 4 | hex(*low));
                    rest = after;
                    continue;
                }
                [b'\\', after @ ..] => rest = after,
                _ => {}
            }
        }
        out.push(byte);
    }
    String::from_utf8_lossy(&out).into_owned()
}

fn hex(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        b'a'..=b'f' => digit - b'a' + 10,
        b'A'..=b'F' => digit - b'A' + 10,
        _ => 0,
    }
}

fn escape(text: &str, out: &mut String) {
    for byte in text.bytes() {
        match byte {
            b'\\' => out.push_str("\\x5c"),
            32..=126 => out.push(byte as char),
            _ => out.push_str(&format!("\\x{byte:02x}")),
        }
    }
}

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
struct Ring<S> {
    source: S,
    buffer: Vec<u8>,
    /// Last record that this descriptor gave; none at the start of the ring.
    last: Option<u64>,
}

impl<S: Read + Seek> Ring<S> {
    fn new(source: S) -> Self {
        Ring { source, buffer: vec![0; RECORD_BYTES], last: None }
    }

    fn read_from(
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
        let (mut records, mut lost, mut malformed) = (0, 0, 0);
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
                lost += seq - last - 1;
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
    let inode = file.metadata()?.ino();
    let position = match cursor.and_then(|c| c.file.as_ref()) {
        Some(p) if p.inode == inode && tail(&mut file, p.offset)? == Some(p.tail) => Some(p.offset),
        _ => None,
    };
    let restarted = cursor.is_some() && position.is_none();
    let mut last = cursor.filter(|_| position.is_some()).and_then(|c| c.seq);
    let mut offset = position.unwrap_or(0);
    file.seek(SeekFrom::Start(offset))?;
    let mut reader = BufReader::with_capacity(RECORD_BYTES, file);

    let (mut records, mut lost, mut malformed) = (0, 0, 0);
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
                    lost += record.seq.saturating_sub(last.saturating_add(1));
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
    let cursor = Cursor { boot_id, seq: last, file: Some(FilePosition { inode, offset, tail }) };
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

/// A kernel log line as some tool rendered it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogLine {
    /// What could be recovered of the record; `seq` and `usec` are 0 where the rendering drops them. A line that a named
    /// process logged keeps that name (`python3: ...`) and gets facility 1.
    pub record: Record,
    /// Wall-clock time as printed, where there is one.
    pub time: Option<String>,
}

/// Takes the prefixes off a line of `dmesg` (plain, `-r`, `-x`, `-T`, `--time-format=iso`), `journalctl` (short forms, JSON),
/// syslog (RFC 3164 and RFC 5424, with or without the kernel's own time stamp) or `/dev/kmsg`. Never fails: what it does not
/// know is message text.
#[must_use]
pub fn parse_log_line(line: &str) -> LogLine {
    let line = line.trim_end_matches(['\n', '\r']);
    if let Some(parsed) = parse_journal_json(line) {
        return parsed;
    }
    if let Ok(record) = parse_record(line.as_bytes()) {
        return LogLine { record, time: None };
    }
    let mut record = Record::default();
    let mut time = None;
    let mut rest = line;

    let mut rfc5424 = false;
    if let Some((priority, tail)) = rest.strip_prefix('<').and_then(|r| r.split_once('>'))
        && let Ok(priority) = priority.parse::<u16>()
        && priority < 192
    {
        set_priority(&mut record, priority);
        rest = tail;
        if let Some(tail) = rest.strip_prefix("1 ")
            && take_stamp(tail).is_some()
        {
            rfc5424 = true;
            rest = tail;
        }
    }
    if let Some((priority, tail)) = take_decoded_priority(rest) {
        set_priority(&mut record, priority);
        rest = tail;
    }
    let (bracketed, mut host) = take_brackets(rest, &mut record, &mut time);
    rest = bracketed;
    if let Some((stamp, tail)) = take_stamp(rest) {
        // dmesg alone prints a comma, and no host after it.
        host = if stamp.contains(',') { Host::None } else { Host::Any };
        time = Some(stamp.to_string());
        rest = tail;
    }
    if rfc5424 && let Some((program, tail)) = take_rfc5424(rest) {
        if program == "kernel" {
            rest = tail;
            record.text = take_brackets(rest, &mut record, &mut time).0.to_string();
        } else {
            record.facility = record.facility.max(1);
            record.text = format!("{program}: {tail}");
        }
        return LogLine { record, time };
    }
    match (host, take_host(rest)) {
        (Host::Any | Host::Kernel, Some(("kernel", tail))) => {
            record.text = take_brackets(tail, &mut record, &mut time).0.to_string();
        }
        (Host::Any, Some((program, tail))) => {
            record.facility = record.facility.max(1);
            record.text = format!("{program}: {tail}");
        }
        _ => record.text = rest.to_string(),
    }
    LogLine { record, time }
}

/// Whether a host and program name may follow a time stamp.
#[derive(Clone, Copy)]
enum Host {
    None,
    Kernel,
    Any,
}

fn set_priority(record: &mut Record, priority: u16) {
    record.facility = (priority >> 3) as u8;
    record.level = (priority & 7) as u8;
}

/// `kern  :err   : ` of `dmesg --decode`.
fn take_decoded_priority(text: &str) -> Option<(u16, &str)> {
    const FACILITIES: [&str; 12] = [
        "kern", "user", "mail", "daemon", "auth", "syslog", "lpr", "news", "uucp", "cron", "authpriv", "ftp",
    ];
    const LEVELS: [&str; 8] = ["emerg", "alert", "crit", "err", "warn", "notice", "info", "debug"];
    let (facility, rest) = text.split_once(':')?;
    let (level, rest) = rest.split_once(':')?;
    let facility = match facility.trim_end().strip_prefix("local") {
        Some(digit) => 16 + digit.parse::<u16>().ok().filter(|d| *d < 8)?,
        None => FACILITIES.iter().position(|f| *f == facility.trim_end())? as u16,
    };
    let level = LEVELS.iter().position(|l| *l == level.trim_end())? as u16;
    Some((facility * 8 + level, rest.strip_prefix(' ')?))
}

/// `[  101.234567] `, `[ T123] ` and the wall time of `dmesg -T`. A bracket that is none of them starts the message.
fn take_brackets<'a>(text: &'a str, record: &mut Record, time: &mut Option<String>) -> (&'a str, Host) {
    let (mut rest, mut host) = (text, Host::None);
    while let Some((inside, tail)) = rest.strip_prefix('[').and_then(|r| r.split_once(']')) {
        let inside = inside.trim();
        if let Some(usec) = seconds_to_usec(inside) {
            record.usec = usec;
            host = Host::Kernel;
        } else if is_caller(inside) && matches!(host, Host::Kernel) {
            record.caller = Some(inside.to_string());
        } else if is_ctime(inside) {
            *time = Some(inside.to_string());
        } else {
            break;
        }
        rest = tail.strip_prefix(' ').unwrap_or(tail);
    }
    (rest, host)
}

fn seconds_to_usec(text: &str) -> Option<u64> {
    let (seconds, fraction) = text.split_once('.')?;
    let digits = |t: &str| !t.is_empty() && t.bytes().all(|b| b.is_ascii_digit());
    if !digits(seconds) || !digits(fraction) || fraction.len() > 9 {
        return None;
    }
    let micros: u64 = format!("{fraction:0<6}").get(..6)?.parse().ok()?;
    seconds.parse::<u64>().ok()?.checked_mul(1_000_000)?.checked_add(micros)
}

fn is_caller(text: &str) -> bool {
    text.strip_prefix(['T', 'C']).is_some_and(|d| !d.is_empty() && d.bytes().all(|b| b.is_ascii_digit()))
}

/// `Tue Mar  3 02:11:07 2026`
fn is_ctime(text: &str) -> bool {
    let words: Vec<&str> = text.split_ascii_whitespace().collect();
    matches!(words[..], [day, month, _, clock, year] if is_word(day) && is_word(month) && is_clock(clock) && year.len() == 4)
}

fn is_word(text: &str) -> bool {
    text.len() == 3 && text.bytes().all(|b| b.is_ascii_alphabetic())
}

fn is_clock(text: &str) -> bool {
    let parts: Vec<&str> = text.split(':').collect();
    parts.len() == 3
        && parts.iter().take(2).all(|p| p.len() == 2 && p.bytes().all(|b| b.is_ascii_digit()))
        && parts[2].len() >= 2
        && parts[2].bytes().all(|b| b.is_ascii_digit() || b == b'.')
}

fn is_date(text: &str) -> bool {
    text.len() == 10
        && text
            .bytes()
            .enumerate()
            .all(|(i, b)| if i == 4 || i == 7 { b == b'-' } else { b.is_ascii_digit() })
}

/// A time stamp at the start of a line, and what follows it.
fn take_stamp(text: &str) -> Option<(&str, &str)> {
    let word = |from: usize| -> Option<(&str, usize)> {
        let rest = text.get(from..)?;
        let start = from + (rest.len() - rest.trim_start_matches(' ').len());
        let end = text.get(start..)?.find(' ').map(|at| start + at)?;
        Some((text.get(start..end)?, end))
    };
    let (first, end1) = word(0)?;
    // 2026-03-03T02:11:07.123456+00:00, 2026-03-03T02:11:07,123456+00:00, 2026-03-03T02:11:07+0000
    if let (Some(date), Some(clock)) = (first.get(..10), first.get(11..19))
        && is_date(date)
        && is_clock(clock)
        && first.as_bytes().get(10) == Some(&b'T')
    {
        return Some((first, text.get(end1 + 1..)?));
    }
    // journalctl -o short-unix
    if first.len() > 10 && seconds_to_usec(first).is_some() {
        return Some((first, text.get(end1 + 1..)?));
    }
    if !is_word(first) {
        return None;
    }
    let (second, end2) = word(end1)?;
    let (third, end3) = word(end2)?;
    // Mar  3 02:11:07[.123456]
    if second.len() <= 2 && second.bytes().all(|b| b.is_ascii_digit()) && is_clock(third) {
        return Some((text.get(..end3)?, text.get(end3 + 1..)?));
    }
    // Tue 2026-03-03 02:11:07[.123456] UTC
    let (_, end4) = word(end3)?;
    if is_date(second) && is_clock(third) {
        return Some((text.get(..end4)?, text.get(end4 + 1..)?));
    }
    None
}

/// `HOST PROGRAM[PID]: `: the program and what follows.
fn take_host(text: &str) -> Option<(&str, &str)> {
    let (host, rest) = text.split_once(' ')?;
    if host.is_empty() || !host.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_'))
    {
        return None;
    }
    let (program, rest) = rest.split_once(": ")?;
    let name = match program.split_once('[') {
        Some((name, pid)) if pid.strip_suffix(']').is_some_and(|p| p.bytes().all(|b| b.is_ascii_digit())) => {
            name
        }
        Some(_) => return None,
        None => program,
    };
    (!name.is_empty() && !name.contains(' ')).then_some((name, rest))
}

/// `HOST PROGRAM PROCID MSGID -|[DATA] ` of RFC 5424: the program and what follows.
fn take_rfc5424(text: &str) -> Option<(&str, &str)> {
    let mut fields = text.splitn(5, ' ');
    let (_host, program, _process, _message) =
        (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
    let rest = fields.next()?;
    let rest = if rest.starts_with('[') { rest.split_once("] ")?.1 } else { rest.strip_prefix("- ")? };
    Some((program, rest.trim_start_matches('\u{feff}')))
}

/// One object of `journalctl -o json`.
fn parse_journal_json(line: &str) -> Option<LogLine> {
    if !line.starts_with('{') {
        return None;
    }
    let object: serde_json::Map<String, serde_json::Value> = serde_json::from_str(line).ok()?;
    let field = |name: &str| object.get(name).and_then(|v| v.as_str());
    let message = match object.get("MESSAGE")? {
        serde_json::Value::String(text) => text.clone(),
        // The journal gives a message that is not UTF-8 as an array of bytes.
        serde_json::Value::Array(bytes) => {
            let bytes: Vec<u8> =
                bytes.iter().map(|b| b.as_u64().and_then(|b| u8::try_from(b).ok()).unwrap_or(b'?')).collect();
            String::from_utf8_lossy(&bytes).into_owned()
        }
        _ => return None,
    };
    let kernel = field("_TRANSPORT") == Some("kernel");
    let facility = field("SYSLOG_FACILITY").and_then(|f| f.parse().ok()).unwrap_or(u8::from(!kernel));
    let identifier = field("SYSLOG_IDENTIFIER").filter(|i| *i != "kernel");
    let record = Record {
        facility: if kernel { facility } else { facility.max(1) },
        level: field("PRIORITY").and_then(|p| p.parse().ok()).unwrap_or_default(),
        usec: field("_SOURCE_MONOTONIC_TIMESTAMP").and_then(|t| t.parse().ok()).unwrap_or_default(),
        // journald takes a leading "word:" off records with a facility other than the kernel's.
        text: identifier.map_or(message.clone(), |i| format!("{i}: {message}")),
        ..Record::default()
    };
    Some(LogLine { record, time: field("__REALTIME_TIMESTAMP").map(str::to_string) })
}
