//! Renderings that other tools give a record.

use super::record::{Record, parse_record};

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
