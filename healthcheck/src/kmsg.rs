//! The kernel log: records of `/dev/kmsg`, a reader that keeps its place, and the renderings other tools give a record.
//!
//! Record format: Linux `Documentation/ABI/testing/dev-kmsg`. A record is `PRIO,SEQ,USEC,FLAGS[,KEY=VALUE]...;TEXT`, then
//! dictionary lines ` KEY=VALUE`. Bytes below 32, above 126 and the backslash come as `\xNN`.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Instant, UNIX_EPOCH};

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
    /// A following piece (`+`); only older kernels print it.
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    /// A log device in memory: `Ok` is a record, `Err` the error number of one failing read. Like the kernel's it passes over
    /// a record that does not fit.
    struct Fake {
        reads: Vec<Result<String, i32>>,
        at: usize,
        seeks: usize,
    }

    impl Fake {
        fn ring(reads: Vec<Result<String, i32>>) -> Ring<Fake> {
            Ring::new(Fake { reads, at: 0, seeks: 0 })
        }
    }

    impl Read for Fake {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let Some(next) = self.reads.get(self.at) else {
                return Err(io::Error::from_raw_os_error(libc::EAGAIN));
            };
            self.at += 1;
            match next {
                Err(number) => Err(io::Error::from_raw_os_error(*number)),
                Ok(text) if text.len() > buffer.len() => Err(io::Error::from_raw_os_error(libc::EINVAL)),
                Ok(text) => {
                    buffer[..text.len()].copy_from_slice(text.as_bytes());
                    Ok(text.len())
                }
            }
        }
    }

    impl Seek for Fake {
        fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
            assert_eq!(to, SeekFrom::Start(0));
            self.seeks += 1;
            self.at = 0;
            // An overrun happens once.
            self.reads.retain(Result::is_ok);
            Ok(0)
        }
    }

    fn record(seq: u64) -> Result<String, i32> {
        Ok(format!("6,{seq},{},-;text {seq}\n", seq * 10))
    }

    fn at(boot_id: &str, seq: u64) -> Cursor {
        Cursor { boot_id: boot_id.into(), seq: Some(seq), file: None }
    }

    fn drain(ring: &mut Ring<Fake>, cursor: Option<&Cursor>) -> (Vec<u64>, Batch) {
        let mut seen = Vec::new();
        let batch = ring.read_from("b1".into(), cursor, soon(), |r| seen.push(r.seq)).unwrap();
        assert_eq!(batch.records, seen.len() as u64);
        (seen, batch)
    }

    #[test]
    fn a_ring_is_read_to_its_end_and_then_only_further() {
        let mut ring = Fake::ring((5..8).map(record).collect());
        let (seen, first) = drain(&mut ring, None);
        assert_eq!((seen, first.lost, first.complete, first.restarted), (vec![5, 6, 7], 0, true, false));
        assert_eq!(first.cursor, at("b1", 7));
        let (seen, second) = drain(&mut ring, Some(&first.cursor));
        assert_eq!((seen, second.cursor.clone()), (vec![], first.cursor.clone()));
        ring.source.reads.push(record(8));
        let (seen, third) = drain(&mut ring, Some(&second.cursor));
        assert_eq!((seen, third.lost), (vec![8], 0));
        assert_eq!(ring.source.seeks, 0, "an open descriptor goes on where it stands");
        // Without a cursor the same descriptor replays.
        assert_eq!(drain(&mut ring, None).0, [5, 6, 7, 8]);
    }

    #[test]
    fn pitfall_12_a_cursor_of_this_boot_passes_over_known_records_and_counts_the_gap() {
        let reads = || (100..105).map(record).collect();
        let (seen, batch) = drain(&mut Fake::ring(reads()), Some(&at("b1", 102)));
        assert_eq!((seen, batch.lost, batch.restarted), (vec![103, 104], 0, false));
        let (seen, batch) = drain(&mut Fake::ring(reads()), Some(&at("b1", 89)));
        assert_eq!((seen.len(), batch.lost), (5, 10));
        let (seen, batch) = drain(&mut Fake::ring(reads()), Some(&at("b1", 104)));
        assert_eq!((seen.len(), batch.cursor.seq), (0, Some(104)));
    }

    #[test]
    fn pitfall_6_a_cursor_of_another_boot_replays_everything() {
        let (seen, batch) = drain(&mut Fake::ring((0..3).map(record).collect()), Some(&at("b0", 4_000)));
        assert_eq!((seen, batch.lost, batch.restarted), (vec![0, 1, 2], 0, true));
        assert_eq!(batch.cursor, at("b1", 2));
    }

    #[test]
    fn an_empty_ring_keeps_the_cursor() {
        let (_, batch) = drain(&mut Fake::ring(vec![]), None);
        assert_eq!(batch.cursor, Cursor { boot_id: "b1".into(), seq: None, file: None });
        assert_eq!(drain(&mut Fake::ring(vec![]), Some(&at("b1", 9))).1.cursor, at("b1", 9));
    }

    #[test]
    fn pitfall_43_an_overrun_goes_on_and_the_lost_records_are_counted_exactly() {
        let mut reads =
            vec![record(1), record(2), Err(libc::EPIPE), record(95), Err(libc::EINTR), record(96)];
        reads.extend([Err(libc::EPIPE), Err(libc::EPIPE), record(200)]);
        let (seen, batch) = drain(&mut Fake::ring(reads), None);
        assert_eq!(seen, [1, 2, 95, 96, 200]);
        assert_eq!((batch.lost, batch.complete), (92 + 103, true));
    }

    #[test]
    fn a_record_that_does_not_fit_is_read_again_with_a_larger_buffer() {
        let long = Ok(format!("6,2,20,-;{}\n", "x".repeat(5 * RECORD_BYTES)));
        let (seen, batch) = drain(&mut Fake::ring(vec![record(1), long, record(3)]), None);
        assert_eq!((seen, batch.lost, batch.malformed), (vec![1, 2, 3], 0, 0));
        let mut ring = Fake::ring(vec![Ok("x".repeat(2 * RECORD_BYTES_MAX))]);
        let error = ring.read_from("b1".into(), None, soon(), |_| {}).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
    }

    #[test]
    fn malformed_records_are_counted_once_and_passed_over() {
        let reads = vec![record(1), Ok("garbage".into()), Ok("x,2,3,-;t\n".into()), record(3)];
        let (seen, batch) = drain(&mut Fake::ring(reads), None);
        assert_eq!((seen, batch.malformed, batch.lost), (vec![1, 3], 2, 0));
    }

    #[test]
    fn the_deadline_ends_a_reading_that_can_be_continued() {
        let mut ring = Fake::ring((0..10).map(record).collect());
        let batch = ring.read_from("b1".into(), None, Instant::now(), |_| panic!("too late")).unwrap();
        assert_eq!((batch.complete, batch.cursor.seq), (false, None));
        assert_eq!(drain(&mut ring, Some(&batch.cursor)).0.len(), 10);
    }

    #[test]
    fn a_failing_device_is_an_error() {
        let mut ring = Fake::ring(vec![Err(libc::EIO)]);
        assert_eq!(
            ring.read_from("b1".into(), None, soon(), |_| {}).unwrap_err().raw_os_error(),
            Some(libc::EIO)
        );
    }

    fn lines(path: &Path, cursor: Option<&Cursor>) -> (Vec<Record>, Batch) {
        let mut seen = Vec::new();
        let mut reader = Reader::open(path, "b1").unwrap();
        assert!(reader.fd().is_none());
        let batch = reader.read_from(cursor, soon(), |r| seen.push(r)).unwrap();
        (seen, batch)
    }

    fn seqs(records: &[Record]) -> Vec<u64> {
        records.iter().map(|r| r.seq).collect()
    }

    fn append(path: &Path, text: &str) {
        use std::io::Write as _;
        let mut file = OpenOptions::new().append(true).create(true).open(path).unwrap();
        file.write_all(text.as_bytes()).unwrap();
    }

    #[test]
    fn a_file_is_followed_and_a_half_written_line_waits() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kmsg");
        append(
            &path,
            "# comment\n\n3,1,10,-;one\n SUBSYSTEM=pci\n DEVICE=+pci:0000:12:00.0\n3,2,20,-;two\n3,3,3",
        );
        let (seen, first) = lines(&path, None);
        assert_eq!((seqs(&seen), first.lost, first.malformed, first.complete), (vec![1, 2], 0, 0, true));
        assert_eq!(seen[0].dict[1], ("DEVICE".into(), "+pci:0000:12:00.0".into()));
        assert_eq!(lines(&path, Some(&first.cursor)).0, []);
        append(&path, "0,-;three\n3,9,90,-;nine\n");
        let (seen, second) = lines(&path, Some(&first.cursor));
        assert_eq!((seqs(&seen), second.lost, second.restarted), (vec![3, 9], 5, false));
        // The cursor survives its JSON form.
        let json = serde_json::to_string(&second.cursor).unwrap();
        let read: Cursor = serde_json::from_str(&json).unwrap();
        assert_eq!(read, second.cursor);
        assert_eq!(lines(&path, Some(&read)).0, []);
    }

    #[test]
    fn a_file_keeps_its_place_over_a_reboot() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kmsg");
        append(&path, "3,1,10,-;one\n");
        let (_, mut batch) = lines(&path, None);
        batch.cursor.boot_id = "b0".into();
        append(&path, "3,0,10,-;after the reboot\n");
        let (seen, batch) = lines(&path, Some(&batch.cursor));
        assert_eq!((seqs(&seen), batch.lost, batch.restarted), (vec![0], 0, false));
        assert_eq!(batch.cursor.boot_id, "b1");
    }

    #[test]
    fn a_file_that_was_cut_short_or_replaced_is_read_from_the_start() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kmsg");
        append(&path, "3,1,10,-;one\n3,2,20,-;two\n");
        let (_, first) = lines(&path, None);
        std::fs::write(&path, "3,1,10,-;new\n").unwrap();
        let (seen, second) = lines(&path, Some(&first.cursor));
        assert_eq!((seen[0].text.as_str(), second.restarted, second.lost), ("new", true, 0));
        // Cut short and grown beyond the old length, same inode.
        std::fs::write(&path, "3,1,10,-;other\n3,2,20,-;and more\n3,3,30,-;and more\n").unwrap();
        let (seen, third) = lines(&path, Some(&second.cursor));
        assert_eq!((seqs(&seen), third.restarted), (vec![1, 2, 3], true));
        // Replaced by another file with the same content.
        let new = folder.path().join("new");
        std::fs::copy(&path, &new).unwrap();
        std::fs::rename(&new, &path).unwrap();
        assert_eq!(seqs(&lines(&path, Some(&third.cursor)).0), [1, 2, 3]);
        // A cursor of /dev/kmsg says nothing about a file.
        assert_eq!(seqs(&lines(&path, Some(&at("b1", 2))).0), [1, 2, 3]);
    }

    #[test]
    fn a_reader_kept_open_follows_the_path() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kmsg");
        append(&path, "3,1,10,-;one\n");
        let mut reader = Reader::open(&path, "b1").unwrap();
        let first = reader.read_from(None, soon(), |_| {}).unwrap();
        std::fs::remove_file(&path).unwrap();
        let error = reader.read_from(Some(&first.cursor), soon(), |_| {}).unwrap_err().to_string();
        assert!(error.contains(path.to_str().unwrap()), "{error}");
        append(&path, "3,1,10,-;eno\n3,2,20,-;two\n");
        assert_eq!(reader.read_from(Some(&first.cursor), soon(), |_| {}).unwrap().records, 2);
    }

    #[test]
    fn a_line_too_long_is_passed_over() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kmsg");
        let long = "x".repeat(3 * LINE_BYTES_MAX as usize);
        append(&path, &format!("3,1,10,-;one\n3,2,20,-;{long}\n3,3,30,-;three\n3,4,40,-;{long}"));
        let (seen, first) = lines(&path, None);
        assert_eq!((seqs(&seen), first.malformed, first.lost), (vec![1, 3], 1, 1));
        append(&path, "\nnot a record\n3,5,50,-;five\r\n");
        let (seen, second) = lines(&path, Some(&first.cursor));
        assert_eq!((seqs(&seen), second.malformed), (vec![5], 2));
    }

    #[test]
    fn what_cannot_be_opened_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let missing = folder.path().join("missing");
        let error = Reader::open(&missing, "b1").unwrap_err().to_string();
        assert!(
            error.starts_with(&format!("cannot open the kernel log {}: No such file", missing.display())),
            "{error}"
        );
        let error = Reader::open(folder.path(), "b1").unwrap_err().to_string();
        assert!(error.contains("neither a kernel log device nor a regular file"), "{error}");
    }

    #[test]
    fn this_machines_kernel_log_is_read_and_continued() {
        // Needs the right to read it; the tests of the ring above do not.
        let Ok(mut reader) = Reader::open(Path::new("/dev/kmsg"), "b1") else { return };
        if reader.fd().is_none() {
            return;
        }
        let mut last = None;
        let first = reader
            .read_from(None, soon(), |r| {
                assert!(last < Some(r.seq), "{} after {last:?}", r.seq);
                last = Some(r.seq);
            })
            .unwrap();
        assert_eq!((first.cursor.seq, first.malformed, first.complete), (last, 0, true));
        // The same descriptor and a fresh one go on after the cursor.
        let mut fresh = Reader::open(Path::new("/dev/kmsg"), "b1").unwrap();
        for reader in [&mut reader, &mut fresh] {
            reader.read_from(Some(&first.cursor), soon(), |r| assert!(Some(r.seq) > last)).unwrap();
        }
    }

    #[test]
    fn records_are_parsed_with_all_their_parts() {
        let r = parse_record(b"6,339,5140900,-,caller=T12,new=x;NET: Registered\\x0afamily \\x5c \\\\ \\xzz \\x1b\n SUBSYSTEM=acpi\n DEVICE=+acpi:PNP0A03:00\njunk\n")
            .unwrap();
        assert_eq!((r.facility, r.level, r.seq, r.usec), (0, 6, 339, 5_140_900));
        assert_eq!(r.caller.as_deref(), Some("T12"));
        assert_eq!(r.text, "NET: Registered\nfamily \\ \\ \\xzz \x1b");
        assert_eq!(
            r.dict,
            [("SUBSYSTEM".into(), "acpi".into()), ("DEVICE".into(), "+acpi:PNP0A03:00".into())]
        );
        let r = parse_record(b"11,1,2,c;\\xff;x").unwrap();
        assert_eq!((r.facility, r.level, r.continuation), (1, 3, Continuation::First));
        assert_eq!((r.text.as_str(), r.from_user_space()), ("\u{fffd};x", true));
        assert_eq!(parse_record(b"6,1,2,+;").unwrap().continuation, Continuation::Next);
        // A flag of a later kernel.
        assert_eq!(parse_record(b"6,1,2,z;t").unwrap().continuation, Continuation::Whole);
        for (bytes, error) in [
            (&b""[..], RecordError::NoHeader),
            (b"6,1,2,-", RecordError::NoHeader),
            (b"6,1,2,-\n;", RecordError::NoHeader),
            (b";", RecordError::Field("priority")),
            (b"-1,1,2,-;", RecordError::Field("priority")),
            (b"2048,1,2,-;", RecordError::Field("priority")),
            (b"6,;", RecordError::Field("sequence")),
            (b"6,99999999999999999999,2,-;", RecordError::Field("sequence")),
            (b"6,1, 2,-;", RecordError::Field("time")),
            (b"6,1,2;", RecordError::Field("flags")),
        ] {
            assert_eq!(parse_record(bytes), Err(error), "{}", String::from_utf8_lossy(bytes));
        }
    }

    #[test]
    fn prefixes_of_other_tools_are_taken_off() {
        let text = "NVRM: Xid (PCI:0000:86:00): 79, GPU has fallen off the bus.";
        for (prefix, facility, usec, time) in [
            ("", 0, 0, None),
            ("[  100.123456] ", 0, 100_123_456, None),
            ("[    0.000001] ", 0, 1, None),
            ("[6085126.134786] ", 0, 6_085_126_134_786, None),
            ("<3>[  100.123456] ", 0, 100_123_456, None),
            ("<11>[  100.123456] ", 1, 100_123_456, None),
            ("[  100.123456][ T1234] ", 0, 100_123_456, None),
            ("[  100.123456] [    C3] ", 0, 100_123_456, None),
            ("kern  :err   : [  100.123456] ", 0, 100_123_456, None),
            ("user  :err   : [  100.123456] ", 1, 100_123_456, None),
            ("local7:err   : [  100.123456] ", 23, 100_123_456, None),
            ("[Tue Mar  3 02:11:07 2026] ", 0, 0, Some("Tue Mar  3 02:11:07 2026")),
            ("2026-03-03T02:11:07,123456+00:00 ", 0, 0, Some("2026-03-03T02:11:07,123456+00:00")),
            ("Mar  3 02:11:07 n-1.x kernel: ", 0, 0, Some("Mar  3 02:11:07")),
            (
                "Mar 13 02:11:07.123456 n1 kernel: [  100.123456] ",
                0,
                100_123_456,
                Some("Mar 13 02:11:07.123456"),
            ),
            ("2026-03-03T02:11:07Z n1 kernel: ", 0, 0, Some("2026-03-03T02:11:07Z")),
            ("Tue 2026-03-03 02:11:07 UTC n1 kernel: ", 0, 0, Some("Tue 2026-03-03 02:11:07 UTC")),
            ("1772503867.123456 n1 kernel: ", 0, 0, Some("1772503867.123456")),
            ("[  100.123456] n1 kernel: ", 0, 100_123_456, None),
            ("<3>1 2026-03-03T02:11:07.1Z n1 kernel - - - ", 0, 0, Some("2026-03-03T02:11:07.1Z")),
            (
                "<3>1 2026-03-03T02:11:07.1Z n1 kernel - - [a@1 b=\"c\"] ",
                0,
                0,
                Some("2026-03-03T02:11:07.1Z"),
            ),
            (
                "<3>1 2026-03-03T02:11:07.1Z n1 kernel - - - [  100.123456] ",
                0,
                100_123_456,
                Some("2026-03-03T02:11:07.1Z"),
            ),
        ] {
            let parsed = parse_log_line(&format!("{prefix}{text}\n"));
            assert_eq!(parsed.record.text, text, "{prefix}");
            assert_eq!((parsed.record.facility, parsed.record.usec), (facility, usec), "{prefix}");
            assert_eq!(parsed.time.as_deref(), time, "{prefix}");
        }
    }

    #[test]
    fn what_another_program_logged_keeps_its_name() {
        let quoted = "NVRM: Xid (PCI:0000:86:00): 79, quoted";
        for prefix in [
            "Mar  3 02:11:07 n1 python3[77]: ",
            "2026-03-03T02:11:07+0000 n1 python3: ",
            "<14>1 2026-03-03T02:11:07.1Z n1 python3 77 - - ",
        ] {
            let parsed = parse_log_line(&format!("{prefix}{quoted}"));
            assert_eq!(parsed.record.text, format!("python3: {quoted}"), "{prefix}");
            assert!(parsed.record.from_user_space(), "{prefix}");
        }
        let json = format!(r#"{{"_TRANSPORT":"stdout","SYSLOG_IDENTIFIER":"python3","MESSAGE":"{quoted}"}}"#);
        let parsed = parse_log_line(&json);
        assert_eq!((parsed.record.text, parsed.record.facility), (format!("python3: {quoted}"), 1));
        // A record written to /dev/kmsg, after journald took "NVRM:" off.
        let json = r#"{"_TRANSPORT":"kernel","SYSLOG_FACILITY":"1","SYSLOG_IDENTIFIER":"NVRM","MESSAGE":"Xid (PCI:0000:86:00): 79, x"}"#;
        let parsed = parse_log_line(json);
        assert_eq!(
            (parsed.record.text.as_str(), parsed.record.facility),
            ("NVRM: Xid (PCI:0000:86:00): 79, x", 1)
        );
        let parsed = parse_log_line("Mar  3 02:11:07 n1 NVRM[9]: Xid (PCI:0000:86:00): 79, x");
        assert_eq!(
            (parsed.record.text.as_str(), parsed.record.facility),
            ("NVRM: Xid (PCI:0000:86:00): 79, x", 1)
        );
    }

    #[test]
    fn messages_that_look_like_prefixes_stay() {
        for text in [
            "[drm] Initialized nvidia-drm 0.0.0 for 0000:01:00.0 on minor 0",
            "nvidia 0000:86:00.0: PCIe Bus Error: severity=Corrected",
            "{not json",
            "<not priority> x",
            "kern: something: else",
            "[",
            "[]",
            "[  ] x",
            "Mar",
            "é",
        ] {
            assert_eq!(parse_log_line(text).record.text, text);
            let stamped = format!("[  100.123456] {text}");
            assert_eq!(parse_log_line(&stamped).record.text, text);
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_a_parser_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = parse_record(&bytes);
            let _ = parse_record(&[b"6,1,2,-;", &bytes[..]].concat());
            let _ = parse_log_line(&String::from_utf8_lossy(&bytes));
        }

        #[test]
        fn no_line_makes_a_parser_panic(
            head in "(<[0-9]{1,4}>|\\[ ?[0-9.]{0,12}\\]|[A-Z][a-z]{2} |20[0-9]{2}-[0-9]{2}-[0-9]{2}T| |1 |[0-9:.,]{0,12}|kern :|\\{\"MESSAGE\":){0,6}",
            tail in ".{0,40}",
        ) {
            let _ = parse_log_line(&format!("{head}{tail}"));
            let _ = parse_log_line(&format!("{head}\"{tail}\"}}"));
        }

        #[test]
        fn a_record_survives_its_raw_form(
            facility in 0_u8..=127, level in 0_u8..8, seq: u64, usec: u64, flag in 0..3,
            caller in proptest::option::of("[TC][0-9]{1,7}"),
            text in any::<String>(),
            dict in proptest::collection::vec(("[A-Z]{1,10}", any::<String>()), 0..3),
        ) {
            let continuation = [Continuation::Whole, Continuation::First, Continuation::Next][flag as usize];
            let record = Record { facility, level, seq, usec, continuation, caller, text, dict };
            let raw = record.encode();
            prop_assert!(raw.bytes().all(|b| b == b'\n' || (32..127).contains(&b)));
            prop_assert_eq!(parse_record(raw.as_bytes()), Ok(record));
        }

        #[test]
        fn a_file_read_in_pieces_gives_every_record_once(cuts in proptest::collection::vec(0_usize..40, 1..30)) {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("kmsg");
            let whole: String = (0..40).map(|n| format!("3,{n},{n},-;text {n}\n D={n}\n")).collect();
            append(&path, "");
            let (mut cursor, mut seen, mut written) = (None, Vec::new(), 0);
            for cut in cuts.into_iter().chain([whole.len()]) {
                let end = (written + cut).min(whole.len());
                append(&path, &whole[written..end]);
                written = end;
                let (records, batch) = lines(&path, cursor.as_ref());
                seen.extend(seqs(&records));
                prop_assert_eq!((batch.lost, batch.malformed), (0, 0));
                cursor = Some(batch.cursor);
            }
            prop_assert_eq!(seen, (0..40).collect::<Vec<u64>>());
        }
    }
}
