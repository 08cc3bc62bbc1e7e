//! Lines become events: which are the driver's, and what they name.

use super::{KernelEvent, Kind, Text, Word};
use crate::kernel_lines;
use crate::kmsg::Record;

/// Longest text kept of a line, in bytes.
pub(super) const TEXT_BYTES_MAX: usize = 1024;

/// Finds events in a stream of records; keeps what it needs for messages that span several records.
#[derive(Debug, Default)]
pub struct Scanner {
    probe: Option<Probe>,
}

/// First line of the three-line message, until its last line comes.
#[derive(Debug)]
struct Probe {
    pci: String,
    text: String,
    usec: u64,
    synthetic: bool,
    records_left: u8,
}

/// Records that other processors may print between the lines of one message.
const PROBE_RECORDS: u8 = 16;
/// Longest time between the lines of one message, in microseconds.
pub(super) const PROBE_USEC: u64 = 5_000_000;

impl Scanner {
    /// Looks at one record and hands its events to `each`.
    pub fn push(&mut self, record: &Record, mut each: impl FnMut(KernelEvent)) {
        if let Some(probe) = &mut self.probe {
            probe.records_left = probe.records_left.saturating_sub(1);
            if probe.records_left == 0 || record.usec.saturating_sub(probe.usec) > PROBE_USEC {
                self.probe = None;
            }
        }
        let lines = record.text.trim_end();
        // An Xid is one line; a line break inside it can only be part of a process name.
        if lines.contains('\n') && strip_time(lines).starts_with("NVRM: Xid (") {
            return self.line(record, &lines.replace('\n', " "), true, &mut each);
        }
        for (index, line) in lines.split('\n').enumerate() {
            self.line(record, line, index == 0, &mut each);
        }
    }

    fn line(&mut self, record: &Record, line: &str, first: bool, each: &mut impl FnMut(KernelEvent)) {
        let line = strip_time(line).trim_end();
        match read_line(line) {
            // Never in the middle of a record: that may be the tail of a process name.
            Some(Line::Event { kind: Kind::Xid { .. } | Kind::Sxid { .. }, .. }) if !first => {}
            Some(Line::Event { kind, pci, message }) => each(event(record, kind, pci, line, message)),
            Some(Line::ProbeStart(pci)) => {
                self.probe = Some(Probe {
                    pci,
                    text: line.to_string(),
                    usec: record.usec,
                    synthetic: record.from_user_space(),
                    records_left: PROBE_RECORDS,
                });
            }
            Some(Line::ProbeEnd(message)) => {
                let mut found = event(record, Kind::Text(Text::OffBusAtProbe), None, line, message);
                if let Some(probe) = self.probe.take() {
                    found.text = clip(&format!("{} {message}", probe.text));
                    found.pci = Some(probe.pci);
                    found.synthetic |= probe.synthetic;
                }
                each(found);
            }
            // As above: only the first line of a record is the kernel's own beginning.
            None if first => {
                if let Some(found) = kernel_lines::event(record, line) {
                    each(found);
                }
            }
            None => {}
        }
    }
}

/// Events of one record by itself.
#[must_use]
pub fn events(record: &Record) -> Vec<KernelEvent> {
    let mut found = Vec::new();
    Scanner::default().push(record, |e| found.push(e));
    found
}

fn event(record: &Record, kind: Kind, pci: Option<String>, line: &str, message: &str) -> KernelEvent {
    KernelEvent {
        kind,
        pci,
        text: clip(line),
        message: clip(message),
        synthetic: record.from_user_space(),
        seq: record.seq,
        usec: record.usec,
    }
}

/// Cuts a text to what is kept of a line.
pub(crate) fn clip(text: &str) -> String {
    let mut end = text.len().min(TEXT_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_string()
}

/// What one line is.
enum Line<'a> {
    Event { kind: Kind, pci: Option<String>, message: &'a str },
    ProbeStart(String),
    ProbeEnd(&'a str),
}

/// Takes off one `[ 6085126.134786] `: fault injectors put it before the line so that journald leaves "NVRM:" alone.
fn strip_time(line: &str) -> &str {
    let Some((time, rest)) = line.strip_prefix('[').and_then(|l| l.split_once("] ")) else { return line };
    let time = time.trim_start_matches(' ');
    let digits = time.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    if digits && time.contains('.') { rest } else { line }
}

fn read_line(line: &str) -> Option<Line<'_>> {
    if let Some(rest) = line.strip_prefix("NVRM: ") {
        if let Some(rest) = rest.strip_prefix("Xid (") {
            return xid(rest);
        }
        return text(rest);
    }
    if let Some(rest) = line.strip_prefix("nvidia-nvswitch") {
        return sxid(rest);
    }
    None
}

/// After `NVRM: Xid (`.
fn xid(rest: &str) -> Option<Line<'_>> {
    let (address, rest) = rest.split_once("): ")?;
    let mut attributes = address.split(' ');
    let pci = normalise_pci(attributes.next()?)?;
    let (mut gi, mut ci) = (None, None);
    for attribute in attributes {
        // The driver prints both numbers in decimal.
        match attribute.split_once(':')? {
            ("GPU-I", id) => gi = Some(id.parse().ok()?),
            ("GPU-CI", id) => ci = Some(id.parse().ok()?),
            (name, _) if name.bytes().all(|b| b.is_ascii_uppercase() || b == b'-') => {}
            _ => return None,
        }
    }
    let (code, mut message) = take_code(rest)?;
    let (mut pid, mut name) = (None, None);
    if let Some(rest) = message.strip_prefix("pid=") {
        let (value, rest) = rest.split_once(", ").unwrap_or((rest, ""));
        pid = value.trim_matches('\'').parse().ok();
        message = rest;
        if let Some(rest) = message.strip_prefix("name=") {
            let (value, rest) = rest.split_once(", ").unwrap_or((rest, ""));
            name = (value.trim_matches('\'') != "<unknown>").then(|| clip(value));
            message = rest;
        }
    }
    let parent = message.rsplit_once(" caused by previous Xid ").and_then(|(_, n)| n.trim().parse().ok());
    Some(Line::Event { kind: Kind::Xid { code, pid, name, gi, ci, parent }, pci: Some(pci), message })
}

/// After `nvidia-nvswitch`.
fn sxid(rest: &str) -> Option<Line<'_>> {
    let (switch, rest) = rest.split_once(": SXid (")?;
    let switch = if switch.is_empty() { None } else { Some(switch.parse().ok()?) };
    let (address, rest) = rest.split_once("): ")?;
    let pci = normalise_pci(address)?;
    let (code, mut message) = take_code(rest)?;
    // Further lines of an event that has its own first line.
    if message.starts_with("Severity ") || message.starts_with("Data {") {
        return None;
    }
    let mut word = None;
    if let Some((first, rest)) = message.split_once(", ") {
        word = match first {
            "Fatal" => Some(Word::Fatal),
            "Non-fatal" | "Nonfatal" => Some(Word::NonFatal),
            "Correctable" => Some(Word::Correctable),
            _ => None,
        };
        if word.is_some() {
            message = rest;
        }
    }
    let link = message.strip_prefix("Link ").and_then(|r| leading_digits(r).parse().ok());
    Some(Line::Event { kind: Kind::Sxid { code, switch, link, word }, pci: Some(pci), message })
}

/// After `NVRM: `, for lines that are no Xid.
fn text(rest: &str) -> Option<Line<'_>> {
    let found = |text, pci| Some(Line::Event { kind: Kind::Text(text), pci, message: rest });
    if let Some(address) = rest.strip_prefix("The NVIDIA GPU ") {
        return normalise_pci(address.trim()).map(Line::ProbeStart);
    }
    if rest.starts_with("fallen off the bus and is not responding to commands") {
        return Some(Line::ProbeEnd(rest));
    }
    if rest.starts_with("The NVIDIA probe routine failed for ") {
        return found(Text::ProbeFailed, None);
    }
    if rest.starts_with("Rate limiting GSP RPC error prints for GPU at ")
        && rest.contains("likely needs to be reset")
    {
        let address = rest["Rate limiting GSP RPC error prints for GPU at ".len()..].split(' ').next()?;
        return found(Text::GspReset, normalise_pci(address));
    }
    let (pci, message) = take_gpu(rest);
    if message.starts_with("GPU has fallen off the bus")
        || (pci.is_some() && message.starts_with("has fallen off the bus"))
    {
        return found(Text::OffBus, pci);
    }
    if message.starts_with("RmInitAdapter failed!")
        || message.starts_with("rm_init_adapter") && message.contains("failed")
    {
        return found(Text::InitFailed, pci);
    }
    if message.contains("uvm encountered global fatal error ") && message.contains("requiring os reboot") {
        return found(Text::UvmFatal, pci);
    }
    if message.contains("[NV_ERR_RESET_REQUIRED]") {
        return found(Text::ResetRequired, pci);
    }
    None
}

/// Takes off `GPU 0000:86:00.0: `, `GPU at PCI:0000:86:00.0 ` or `GPU0 ` (a driver number that names no minor).
fn take_gpu(rest: &str) -> (Option<String>, &str) {
    let Some(after) = rest.strip_prefix("GPU") else { return (None, rest) };
    if let Some(address) = after.strip_prefix(" at ").or_else(|| after.strip_prefix(' '))
        && let Some((address, message)) = address.split_once(' ')
        && let Some(pci) = normalise_pci(address.trim_end_matches(':'))
    {
        return (Some(pci), message);
    }
    match after.split_once(' ') {
        Some((number, message)) if !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()) => {
            (None, message)
        }
        _ => (None, rest),
    }
}

/// `79, ...`: the code and what follows the comma. The comma may be missing.
fn take_code(rest: &str) -> Option<(u32, &str)> {
    let digits = leading_digits(rest);
    let message = &rest[digits.len()..];
    if !(message.is_empty() || message.starts_with([',', ' ', ':'])) {
        return None;
    }
    Some((digits.parse().ok()?, message.trim_start_matches([',', ':']).trim_start()))
}

pub(super) fn leading_digits(text: &str) -> &str {
    &text[..text.bytes().take_while(u8::is_ascii_digit).count()]
}

/// `PCI:0000:86:00.0` in any spelling to `0000:86:00`; none when it is no PCI address. Accepts domains of 4 to 8 digits
/// (`00000000:86:00.0` is how NVML spells them) and drops the function.
#[must_use]
pub fn normalise_pci(text: &str) -> Option<String> {
    let text = text.strip_prefix("PCI:").unwrap_or(text);
    let mut parts = text.split(':');
    let (domain, bus, device) = (parts.next()?, parts.next()?, parts.next()?);
    if parts.next().is_some() {
        return None;
    }
    let (device, function) = device.split_once('.').unwrap_or((device, "0"));
    let hex = |t: &str, least: usize, most: usize| {
        ((least..=most).contains(&t.len()) && t.bytes().all(|b| b.is_ascii_hexdigit()))
            .then(|| u32::from_str_radix(t, 16).ok())
            .flatten()
    };
    let (domain, bus, device) = (hex(domain, 4, 8)?, hex(bus, 2, 2)?, hex(device, 2, 2)?);
    hex(function, 1, 1)?;
    Some(format!("{domain:04x}:{bus:02x}:{device:02x}"))
}
