//! One record, as bytes and as values.

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
pub(super) fn peek_seq(bytes: &[u8]) -> Option<u64> {
    let (header, _) = split_header(bytes).ok()?;
    number(header.split(|b| *b == b',').nth(1), "sequence").ok()
}

pub(super) fn parse_dict(line: &[u8]) -> Option<(String, String)> {
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
