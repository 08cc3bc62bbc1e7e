//! What the kernel log says about GPUs: Xid and SXid lines, and the driver's texts without a number.
//!
//! Line forms: `src/nvidia/src/kernel/gpu/rc/kernel_rc.c` and the NVSwitch driver of NVIDIA/open-gpu-kernel-modules. What a
//! code means is data, `data/xid.tsv`. State beats logs: most lines only tell where to look (see [`Drain`]).
//!
//! A process chooses its own name, which the driver prints inside Xid lines, and may quote driver lines in its own log lines.
//! So a line counts only when it starts as the driver's do, its code is the number after the first `): `, and texts that
//! decide anything are longer than the 15 bytes of a process name or stand where no name can.

use std::collections::HashMap;
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

use crate::kernel_lines;
use crate::kmsg::Record;
use crate::nvlink5::{self, Decoded, Resolution};
use crate::verdict::{Action, Fault};

/// Longest text kept of a line, in bytes.
const TEXT_BYTES_MAX: usize = 1024;

/// One thing that the kernel log says about a GPU or an NVSwitch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelEvent {
    /// What.
    pub kind: Kind,
    /// PCI address as `dddd:bb:dd`, lower case, without function; none where the line names no device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pci: Option<String>,
    /// The line as printed, without prefixes.
    pub text: String,
    /// The driver's message: the line without address, code, process and severity word.
    pub message: String,
    /// A process wrote the record to `/dev/kmsg`; see [`Record::from_user_space`].
    #[serde(default)]
    pub synthetic: bool,
    /// Sequence number of the record.
    pub seq: u64,
    /// Microseconds since boot.
    pub usec: u64,
}

/// Kind of a [`KernelEvent`].
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// An Xid of a GPU.
    Xid {
        /// Code.
        code: u32,
        /// Process, where the driver knew one.
        pid: Option<u32>,
        /// Name of that process, chosen by it: never trust it.
        name: Option<String>,
        /// MIG GPU instance.
        gi: Option<u32>,
        /// MIG compute instance.
        ci: Option<u32>,
        /// Earlier Xid that this one follows from.
        parent: Option<u32>,
    },
    /// An SXid of an NVSwitch.
    Sxid {
        /// Code.
        code: u32,
        /// Number of the switch.
        switch: Option<u32>,
        /// Link of the switch.
        link: Option<u32>,
        /// Severity word of the line.
        word: Option<Word>,
    },
    /// A text without a number.
    Text(Text),
    /// A line about the host, a network card or a disk: a row of `data/kernel.tsv`.
    Line {
        /// Name of the row.
        row: String,
        /// Device that the line names, where it is no PCI address.
        device: Option<String>,
    },
}

/// Severity word of an SXid or NVLink line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Word {
    /// `Fatal`
    Fatal,
    /// `Non-fatal` or `Nonfatal`
    NonFatal,
    /// `Correctable`
    Correctable,
}

/// A text of the driver that carries no Xid number. The numbers are the codes of kind `text` in `data/xid.tsv`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Text {
    /// `GPU has fallen off the bus.`
    OffBus = 1,
    /// The same found out while the driver was loaded, told in three lines.
    OffBusAtProbe = 2,
    /// `The NVIDIA probe routine failed for 1 device(s).`
    ProbeFailed = 3,
    /// `RmInitAdapter failed!`
    InitFailed = 4,
    /// `The GPU likely needs to be reset.` after GSP errors
    GspReset = 5,
    /// An assertion with `NV_ERR_RESET_REQUIRED`
    ResetRequired = 6,
    /// `uvm encountered global fatal error ..., requiring os reboot to recover.`
    UvmFatal = 7,
}

impl KernelEvent {
    /// Xid or SXid code.
    #[must_use]
    pub fn code(&self) -> Option<u32> {
        match self.kind {
            Kind::Xid { code, .. } | Kind::Sxid { code, .. } => Some(code),
            Kind::Text(_) | Kind::Line { .. } => None,
        }
    }

    /// Device that the line names, where it is no PCI address: `nvme3`, `md0`, a file server.
    #[must_use]
    pub fn device(&self) -> Option<&str> {
        match &self.kind {
            Kind::Line { device, .. } => device.as_deref(),
            _ => None,
        }
    }

    /// Token for reasons, at most 10 characters: `xid79`, `sxid20034`, `gpulost`.
    #[must_use]
    pub fn token(&self) -> String {
        let mut token = match &self.kind {
            Kind::Xid { code, .. } => format!("xid{code}"),
            Kind::Sxid { code, .. } => format!("sxid{code}"),
            Kind::Text(text) => row(Table::Text, *text as u32).map_or("gputext", |p| p.token).to_string(),
            Kind::Line { .. } => policy(self).token.to_string(),
        };
        token.truncate(10);
        token
    }

    /// One phrase for users: `Xid 79: GPU fell off the bus`.
    #[must_use]
    pub fn summary(&self) -> String {
        let text = policy(self).text;
        match self.kind {
            Kind::Xid { code, .. } => format!("Xid {code}: {text}"),
            Kind::Sxid { code, .. } => format!("SXid {code}: {text}"),
            Kind::Text(_) | Kind::Line { .. } => text.to_string(),
        }
    }
}

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
const PROBE_USEC: u64 = 5_000_000;

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

fn leading_digits(text: &str) -> &str {
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

/// How bad a code is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Worth counting.
    Info,
    /// Worth a look.
    Warn,
    /// Something is broken, or may be.
    Error,
    /// The device cannot be used.
    Fatal,
}

/// Whether a line takes the node out of service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Drain {
    /// The line alone is conclusive.
    Yes,
    /// Never.
    No,
    /// Only when the device's state agrees: recovery action, an Xid 154, link state, config space.
    IfState,
    /// As [`Drain::IfState`] (remap or repair pending), and not before the running job has ended.
    AfterJob,
    /// What the line says beside the code decides. In the table only: [`policy`] never returns it.
    Decode,
}

/// What an event means for the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// Code; see [`Text`] for texts.
    pub code: u32,
    /// NVIDIA's name of the code; empty for a code that the table lacks.
    pub name: &'static str,
    /// Short words for reasons and users, at most 60 ASCII characters.
    pub text: &'static str,
    /// How bad.
    pub severity: Severity,
    /// What mends it.
    pub action: Action,
    /// Whether it takes the node out of service.
    pub drain: Drain,
    /// Whose fault.
    pub fault: Fault,
    /// Token of the table; [`KernelEvent::token`] also knows those of codes that the table lacks.
    pub token: &'static str,
}

/// Kinds of rows of `data/xid.tsv`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Table {
    Xid,
    Sxid,
    Text,
    /// Values of the driver's recovery action (NVML field 230 and Xid 154).
    Recovery,
    /// Lines of `data/kernel.tsv`; the code is the row's place.
    Line,
}

const TABLE: &str = include_str!("../data/xid.tsv");

fn table() -> &'static HashMap<(Table, u32), Policy> {
    static ROWS: OnceLock<HashMap<(Table, u32), Policy>> = OnceLock::new();
    ROWS.get_or_init(|| TABLE.lines().filter_map(parse_row).collect())
}

fn row(kind: Table, code: u32) -> Option<Policy> {
    table().get(&(kind, code)).copied()
}

/// Reads the column `severity` of a table.
pub(crate) fn severity_word(word: &str) -> Option<Severity> {
    Some(match word {
        "info" => Severity::Info,
        "warn" => Severity::Warn,
        "error" => Severity::Error,
        "fatal" => Severity::Fatal,
        _ => return None,
    })
}

/// Reads the column `action` of a table.
pub(crate) fn action_word(word: &str) -> Option<Action> {
    Some(match word {
        "none" => Action::None,
        "tell_user" => Action::TellUser,
        "restart_service" => Action::RestartService,
        "reset_gpu" => Action::ResetGpu,
        "reboot" => Action::Reboot,
        "repair" => Action::Repair,
        _ => return None,
    })
}

/// Reads the column `drain` of a table.
pub(crate) fn drain_word(word: &str) -> Option<Drain> {
    Some(match word {
        "yes" => Drain::Yes,
        "no" => Drain::No,
        "if_state" => Drain::IfState,
        "after_job" => Drain::AfterJob,
        "decode" => Drain::Decode,
        _ => return None,
    })
}

/// Reads the column `fault` of a table.
pub(crate) fn fault_word(word: &str) -> Option<Fault> {
    Some(match word {
        "hardware" => Fault::Hardware,
        "program" => Fault::Program,
        "setup" => Fault::Setup,
        _ => return None,
    })
}

fn parse_row(line: &'static str) -> Option<((Table, u32), Policy)> {
    let mut columns = line.split('\t');
    let mut next = || columns.next();
    let kind = match next()? {
        "xid" => Table::Xid,
        "sxid" => Table::Sxid,
        "text" => Table::Text,
        "recovery" => Table::Recovery,
        _ => return None,
    };
    let code = next()?.parse().ok()?;
    let (name, text) = (next()?, next()?);
    let severity = severity_word(next()?)?;
    let action = action_word(next()?)?;
    let drain = drain_word(next()?)?;
    let fault = fault_word(next()?)?;
    Some(((kind, code), Policy { code, name, text, severity, action, drain, fault, token: next()? }))
}

/// What an event means: the table's row, with what the line itself says.
///
/// A code that the table lacks is a warning. Xid 154 follows its text, 74 its registers, 144 to 150 and SXids their severity
/// word.
#[must_use]
pub fn policy(event: &KernelEvent) -> Policy {
    let found = match &event.kind {
        Kind::Xid { code, .. } => {
            let policy = row(Table::Xid, *code).unwrap_or_else(|| unknown(*code, "xid"));
            match code {
                74 => nvlink(policy, &event.message),
                144..=150 => nvlink5(policy, &event.message),
                154 => recovery(policy, &event.message),
                _ => policy,
            }
        }
        Kind::Sxid { code, word, .. } => {
            by_word(row(Table::Sxid, *code).unwrap_or_else(|| unknown(*code, "sxid")), *word)
        }
        Kind::Text(text) => {
            row(Table::Text, *text as u32).unwrap_or_else(|| unknown(*text as u32, "gputext"))
        }
        Kind::Line { row, .. } => {
            kernel_lines::row(row).map_or_else(|| unknown(0, "kernel"), |(_, r)| r.policy)
        }
    };
    if found.drain == Drain::Decode { Policy { drain: Drain::IfState, ..found } } else { found }
}

/// Meaning of a value of the driver's recovery action (NVML field 230): none for a value that the table lacks.
#[must_use]
pub fn recovery_policy(value: u32) -> Option<Policy> {
    row(Table::Recovery, value)
}

/// Recovery action that an Xid 154 changes to. 0 takes back what an earlier one asked for.
#[must_use]
pub fn recovery_action(event: &KernelEvent) -> Option<u32> {
    if !matches!(event.kind, Kind::Xid { code: 154, .. }) {
        return None;
    }
    recovery_value(&event.message)
}

fn recovery_value(message: &str) -> Option<u32> {
    // "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"; the words differ between drivers.
    let (_, target) = message.split_once("GPU recovery action changed from ")?.1.split_once(" to ")?;
    if let Some(digits) = target.strip_prefix("0x") {
        let digits = digits.split(|c: char| !c.is_ascii_hexdigit()).next()?;
        return u32::from_str_radix(digits, 16).ok();
    }
    let target = target.trim_start_matches('(').to_ascii_lowercase();
    let words = [
        ("none", 0),
        ("gpu reset", 1),
        ("node reboot", 2),
        ("os reboot", 2),
        ("drain p2p", 3),
        ("drain and reset", 4),
    ];
    words.iter().find(|(word, _)| target.starts_with(word)).map(|(_, value)| *value)
}

fn unknown(code: u32, token: &'static str) -> Policy {
    Policy {
        code,
        name: "",
        text: "a code that this version does not know",
        severity: Severity::Warn,
        action: Action::None,
        drain: Drain::No,
        fault: Fault::Hardware,
        token,
    }
}

fn harmless(policy: Policy, severity: Severity) -> Policy {
    Policy { severity, action: Action::None, drain: Drain::No, ..policy }
}

fn recovery(policy: Policy, message: &str) -> Policy {
    match recovery_value(message).and_then(recovery_policy) {
        Some(found) => Policy { code: policy.code, name: policy.name, token: policy.token, ..found },
        None => policy,
    }
}

/// Xid 74: `NVLink: fatal error detected on link 14(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)`. Fatal words count until a reset.
/// Of the seven registers the catalogue explains the first, third, fourth and fifth (Hopper); bits 0, 23 and 30 of the first
/// are to be ignored, bits 1 and 20 follow from an error elsewhere. Any other bit is a reason to look at the link.
fn nvlink(policy: Policy, message: &str) -> Policy {
    const IGNORED: u32 = 1 | 1 << 23 | 1 << 30;
    const SYMPATHETIC: u32 = 1 << 1 | 1 << 20;
    if message.contains("NVLink: fatal error detected on link") {
        return Policy { severity: Severity::Fatal, drain: Drain::Yes, ..policy };
    }
    let Some(registers) = registers(message) else { return policy };
    if [1, 2, 3].iter().any(|n| registers.get(n + 1).is_some_and(|r| *r != 0))
        || registers[0] & !(IGNORED | SYMPATHETIC) != 0
    {
        return policy;
    }
    match registers[0] {
        0 => policy,
        bits if bits & !IGNORED == 0 => harmless(policy, Severity::Info),
        _ => harmless(policy, Severity::Warn),
    }
}

/// The numbers in the last parentheses; none unless all are hexadecimal.
fn registers(message: &str) -> Option<Vec<u32>> {
    let (_, inside) = message.trim_end().strip_suffix(')')?.rsplit_once('(')?;
    let numbers: Option<Vec<u32>> = inside
        .split([',', ' '])
        .filter(|n| !n.is_empty())
        .map(|n| u32::from_str_radix(n.strip_prefix("0x")?, 16).ok())
        .collect();
    numbers.filter(|n| !n.is_empty())
}

/// Xids 144 to 150: `RLW_REMAP Nonfatal XC0 i0 Link 00 (0x00000004 0x00000001 ...)`. `Nonfatal` needs an Xid 154 to mean more.
/// `Fatal` drains when the registers say reset too; registers that no rule knows leave it to the GPU's state.
fn nvlink5(policy: Policy, message: &str) -> Policy {
    let decoded = nvlink5_decoded(policy.code, message);
    let resolution = decoded.map(|d| d.resolution);
    match (nvlink5_word(message), resolution) {
        (Some(Word::Fatal), Some(Resolution::ResetGpu)) => {
            Policy { severity: Severity::Fatal, drain: Drain::Yes, ..policy }
        }
        (Some(_), Some(Resolution::None)) => harmless(policy, Severity::Warn),
        (Some(Word::Fatal), _) => Policy { severity: Severity::Fatal, ..policy },
        (Some(_), _) => harmless(policy, Severity::Warn),
        (None, _) => Policy { severity: Severity::Warn, ..policy },
    }
}

/// What the registers of an Xid 144 to 150 mean; none for another code, without registers, or where no rule fits.
#[must_use]
pub fn nvlink5_registers(event: &KernelEvent) -> Option<Decoded> {
    match event.kind {
        Kind::Xid { code: code @ 144..=150, .. } => nvlink5_decoded(code, &event.message),
        _ => None,
    }
}

fn nvlink5_decoded(code: u32, message: &str) -> Option<Decoded> {
    let unit = message.split_ascii_whitespace().next().unwrap_or_default();
    nvlink5::decode(code, unit, &registers(message)?)
}

/// The severity word right before `XC<n>`, `i<n>` or `Link`, with registers that end the line: a process name never does.
fn nvlink5_word(message: &str) -> Option<Word> {
    registers(message)?;
    let (head, _) = message.rsplit_once('(')?;
    let words: Vec<&str> = head.split_ascii_whitespace().collect();
    let at = words.iter().rposition(|w| matches!(*w, "Fatal" | "Nonfatal" | "Non-fatal"))?;
    let numbered = |w: &str, prefix: &str| {
        w.strip_prefix(prefix).is_some_and(|n| !n.is_empty() && leading_digits(n) == n)
    };
    let tail = &words[at + 1..];
    let known = |w: &&str| *w == "Link" || numbered(w, "XC") || numbered(w, "i") || leading_digits(w) == *w;
    (!tail.is_empty() && tail.iter().all(known))
        .then(|| if words[at] == "Fatal" { Word::Fatal } else { Word::NonFatal })
}

/// An SXid's word wins over the table; without a word the table decides, and what it leaves open needs a look at the state.
fn by_word(policy: Policy, word: Option<Word>) -> Policy {
    match word {
        Some(Word::Fatal) => Policy {
            severity: Severity::Fatal,
            action: policy.action.max(Action::RestartService),
            drain: Drain::Yes,
            ..policy
        },
        Some(Word::NonFatal) => harmless(policy, policy.severity.min(Severity::Warn)),
        Some(Word::Correctable) => harmless(policy, Severity::Info),
        None => policy,
    }
}

/// Most different events that a [`Fold`] keeps apart by their text.
const FOLD_MAX: usize = 1024;

/// Equal events, counted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Folded {
    /// The first of them.
    pub event: KernelEvent,
    /// How many.
    pub count: u64,
    /// Sequence number of the last.
    pub last_seq: u64,
    /// Microseconds since boot of the last.
    pub last_usec: u64,
}

/// Counts equal events together: same device, MIG instance, code, meaning, origin and text without its numbers. Floods of
/// hundreds of thousands of lines, 29 of them different, were seen; memory is bounded whatever comes.
#[derive(Debug, Default)]
pub struct Fold {
    order: Vec<Folded>,
    index: HashMap<FoldKey, usize>,
    overflow: u64,
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct FoldKey {
    table: Table,
    code: u32,
    pci: Option<String>,
    gi: Option<u32>,
    ci: Option<u32>,
    meaning: (Severity, &'static str, Drain),
    synthetic: bool,
    text: String,
}

impl Fold {
    /// Adds one event.
    pub fn add(&mut self, event: KernelEvent) {
        let mut key = FoldKey::of(&event);
        if !self.index.contains_key(&key) && self.order.len() >= FOLD_MAX {
            key.text.clear();
            if !self.index.contains_key(&key) && self.order.len() >= 2 * FOLD_MAX {
                self.overflow += 1;
                return;
            }
        }
        let at = *self.index.entry(key).or_insert(self.order.len());
        match self.order.get_mut(at) {
            Some(folded) => {
                folded.count += 1;
                folded.last_seq = event.seq;
                folded.last_usec = event.usec;
            }
            None => {
                let (last_seq, last_usec) = (event.seq, event.usec);
                self.order.push(Folded { event, count: 1, last_seq, last_usec });
            }
        }
    }

    /// Events that found no place in the bounded memory.
    #[must_use]
    pub fn overflow(&self) -> u64 {
        self.overflow
    }

    /// The different events, in the order in which each was first seen.
    #[must_use]
    pub fn finish(self) -> Vec<Folded> {
        self.order
    }
}

impl FoldKey {
    fn of(event: &KernelEvent) -> Self {
        let (table, code, gi, ci) = match &event.kind {
            Kind::Xid { code, gi, ci, .. } => (Table::Xid, *code, *gi, *ci),
            Kind::Sxid { code, .. } => (Table::Sxid, *code, None, None),
            Kind::Text(text) => (Table::Text, *text as u32, None, None),
            Kind::Line { row, .. } => {
                (Table::Line, kernel_lines::row(row).map_or(u32::MAX, |(at, _)| at), None, None)
            }
        };
        let policy = policy(event);
        FoldKey {
            table,
            code,
            pci: event.pci.clone(),
            gi,
            ci,
            meaning: (policy.severity, policy.action.word(), policy.drain),
            synthetic: event.synthetic,
            text: fold_text(event),
        }
    }
}

/// What tells events of one code apart. Of lines that count only within minutes, no two are folded that are not.
fn fold_text(event: &KernelEvent) -> String {
    let text = without_numbers(&event.message);
    match event.device() {
        Some(device) => format!("{device} {text}"),
        None if kernel_lines::needs_repetition(event) => format!("{} {text}", event.usec / 1_000_000),
        None => text,
    }
}

/// Every number, decimal or hexadecimal, becomes `#`.
fn without_numbers(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for word in text.split_inclusive(|c: char| !c.is_ascii_alphanumeric()) {
        let body = word.trim_end_matches(|c: char| !c.is_ascii_alphanumeric());
        if body.bytes().any(|b| b.is_ascii_digit()) {
            out.push('#');
            out.push_str(&word[body.len()..]);
        } else {
            out.push_str(word);
        }
    }
    out
}

/// Folds events; see [`Fold`].
#[must_use]
pub fn fold(events: impl IntoIterator<Item = KernelEvent>) -> Vec<Folded> {
    let mut fold = Fold::default();
    events.into_iter().for_each(|e| fold.add(e));
    fold.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Vec<KernelEvent> {
        events(&Record { text: text.into(), ..Record::default() })
    }

    fn one(text: &str) -> KernelEvent {
        let mut found = parse(text);
        assert_eq!(found.len(), 1, "{text}: {found:?}");
        found.remove(0)
    }

    fn meaning(text: &str) -> (Drain, Action, Severity) {
        let p = policy(&one(text));
        (p.drain, p.action, p.severity)
    }

    #[test]
    fn every_row_of_the_table_is_read_and_sound() {
        let rows: Vec<&str> = TABLE
            .lines()
            .filter(|l| !l.starts_with('#') && !l.starts_with("kind\t") && !l.is_empty())
            .collect();
        for line in &rows {
            assert!(parse_row(line).is_some(), "not understood: {line}");
            assert_eq!(line.split('\t').count(), 9, "{line}");
        }
        assert_eq!(table().len(), rows.len(), "a code appears twice");
        let mut tokens = std::collections::HashSet::new();
        for ((kind, code), p) in table() {
            assert!(!p.token.is_empty() && p.token.len() <= 10, "{p:?}");
            assert!(p.token.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit()), "{p:?}");
            assert!(tokens.insert(p.token), "token twice: {p:?}");
            assert!(!p.name.is_empty() && !p.name.contains(' '), "{p:?}");
            assert!((5..=60).contains(&p.text.len()) && p.text.is_ascii(), "{p:?}");
            assert!(!p.text.contains(['"', '\'', ';', '`']), "{p:?}");
            match kind {
                Table::Xid => assert_eq!(p.token, format!("xid{code}")),
                Table::Sxid => assert_eq!(p.token, format!("sxid{code}")),
                Table::Text | Table::Recovery | Table::Line => {}
            }
            // Who is told, and who drains, agree.
            assert_eq!(
                p.action == Action::TellUser,
                p.fault == Fault::Program && p.action != Action::None,
                "{p:?}"
            );
            if p.fault == Fault::Program {
                assert_eq!(p.drain, Drain::No, "{p:?}");
            }
            if p.drain == Drain::Yes {
                assert!(p.action >= Action::RestartService && p.severity >= Severity::Error, "{p:?}");
            }
            if p.severity == Severity::Info {
                assert_eq!(p.drain, Drain::No, "{p:?}");
            }
        }
        let count = |kind| table().keys().filter(|k| k.0 == kind).count();
        assert_eq!([Table::Xid, Table::Sxid, Table::Recovery, Table::Text].map(count), [176, 399, 6, 7]);
    }

    #[test]
    fn no_code_is_left_to_decode_and_none_of_the_programs_faults_drains() {
        for (kind, code) in table().keys() {
            let line = match kind {
                Table::Xid => format!("NVRM: Xid (PCI:0000:18:00): {code}, pid=1, name=a, something"),
                Table::Sxid => format!("nvidia-nvswitch0: SXid (PCI:0000:18:00.0): {code}, something"),
                Table::Text | Table::Recovery | Table::Line => continue,
            };
            let e = one(&line);
            let p = policy(&e);
            assert_ne!(p.drain, Drain::Decode, "{line}");
            assert_eq!(p.token, e.token());
        }
        for code in [13, 31, 43, 45, 68, 69] {
            let p = policy(&one(&format!("NVRM: Xid (PCI:0000:18:00): {code}, pid=1, name=a, b")));
            assert_eq!((p.action, p.drain, p.fault), (Action::TellUser, Drain::No, Fault::Program), "{code}");
        }
        for code in [48, 62, 64, 95, 119, 120, 140, 143] {
            let p = policy(&one(&format!("NVRM: Xid (PCI:0000:18:00): {code}, b")));
            assert_eq!(
                (p.action, p.drain, p.fault),
                (Action::ResetGpu, Drain::Yes, Fault::Hardware),
                "{code}"
            );
        }
        for code in [109, 155, 159] {
            assert_eq!(
                meaning(&format!("NVRM: Xid (PCI:0000:18:00): {code}, b")).0,
                Drain::IfState,
                "{code}"
            );
        }
        for code in [63, 94, 156] {
            assert_eq!(
                meaning(&format!("NVRM: Xid (PCI:0000:18:00): {code}, b")).0,
                Drain::AfterJob,
                "{code}"
            );
        }
        assert_eq!(
            meaning("NVRM: Xid (PCI:0000:18:00): 54, b"),
            (Drain::Yes, Action::Repair, Severity::Fatal)
        );
        assert_eq!(meaning("NVRM: Xid (PCI:0000:18:00): 121, b").0, Drain::No);
    }

    #[test]
    fn a_code_that_the_table_lacks_is_a_warning() {
        let e = one("NVRM: Xid (PCI:0000:18:00): 4242, pid=1, name=a, new thing");
        let p = policy(&e);
        assert_eq!((p.severity, p.drain, p.action), (Severity::Warn, Drain::No, Action::None));
        assert_eq!(e.token(), "xid4242");
        assert_eq!(e.summary(), "Xid 4242: a code that this version does not know");
        assert_eq!(one("NVRM: Xid (PCI:0000:18:00): 4294967295, x").token(), "xid4294967");
        assert!(parse("NVRM: Xid (PCI:0000:18:00): 4294967296, x").is_empty());
        let p = policy(&one("nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 99999, Fatal, Link 62 new"));
        assert_eq!((p.severity, p.drain, p.action), (Severity::Fatal, Drain::Yes, Action::RestartService));
        assert_eq!(p.token, "sxid");
    }

    #[test]
    fn recovery_action_is_authoritative() {
        let line = |text: &str| format!("NVRM: Xid (PCI:0008:01:00): 154, {text}");
        let from = "GPU recovery action changed from 0x0 (None) to";
        for (text, value, drain, action) in [
            ("0x0 (None)", 0, Drain::No, Action::None),
            ("0x1 (GPU Reset Required)", 1, Drain::Yes, Action::ResetGpu),
            ("0x1 (PF FLR)", 1, Drain::Yes, Action::ResetGpu),
            ("0x2 (Node Reboot Required)", 2, Drain::Yes, Action::Reboot),
            ("0x2 (OS Reboot)", 2, Drain::Yes, Action::Reboot),
            ("0x3 (Drain P2P)", 3, Drain::Yes, Action::ResetGpu),
            ("0x4 (Drain and Reset)", 4, Drain::Yes, Action::ResetGpu),
            ("0x5 (Recover IMEX)", 5, Drain::No, Action::RestartService),
            ("GPU Reset Required", 1, Drain::Yes, Action::ResetGpu),
            ("(OS Reboot)", 2, Drain::Yes, Action::Reboot),
        ] {
            let e = one(&line(&format!("{from} {text}")));
            assert_eq!(recovery_action(&e), Some(value), "{text}");
            let p = policy(&e);
            assert_eq!((p.drain, p.action, p.token), (drain, action, "xid154"), "{text}");
        }
        // Back to none after a reset, with a process in the line.
        let e = one(
            "NVRM: Xid (PCI:0008:01:00): 154, pid=7, name=x, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)",
        );
        assert_eq!(recovery_action(&e), Some(0));
        // Not understood: look at the state.
        for text in ["GPU recovery action changed from 0x0 (None) to 0x9 (Throw Away)", "something else", ""]
        {
            assert_eq!(meaning(&line(text)).0, Drain::IfState, "{text}");
        }
        assert_eq!(recovery_action(&one("NVRM: Xid (PCI:0008:01:00): 79, x")), None);
    }

    #[test]
    fn nvlink_registers_decide() {
        let line = |text: &str| {
            format!("NVRM: Xid (PCI:0003:00:00): 74, pid='<unknown>', name=<unknown>, NVLink: {text}")
        };
        let non_fatal = |first: &str| {
            line(&format!("non-fatal error detected on link 3({first}, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)"))
        };
        let fatal = line("fatal error detected on link 14(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)");
        assert_eq!(meaning(&fatal), (Drain::Yes, Action::ResetGpu, Severity::Fatal));
        for bits in ["0x800000", "0x1", "0x40000000", "0x40800001"] {
            assert_eq!(meaning(&non_fatal(bits)), (Drain::No, Action::None, Severity::Info), "{bits}");
        }
        for bits in ["0x2", "0x100000", "0x900002"] {
            assert_eq!(meaning(&non_fatal(bits)), (Drain::No, Action::None, Severity::Warn), "{bits}");
        }
        for bits in ["0x10", "0x100", "0x200000", "0x8800000", "0x0", "0xffffffff"] {
            assert_eq!(
                meaning(&non_fatal(bits)),
                (Drain::IfState, Action::ResetGpu, Severity::Error),
                "{bits}"
            );
        }
        for registers in
            ["0x800000, 0x0, 0x4, 0x0", "0x800000, 0x0, 0x0, 0x1", "0x800000, 0x0, 0x0, 0x0, 0x8"]
        {
            let text = line(&format!("non-fatal error detected on link 3({registers})"));
            assert_eq!(meaning(&text).0, Drain::IfState, "{registers}");
        }
        // The second register is not explained by the catalogue.
        assert_eq!(meaning(&line("non-fatal error detected on link 3(0x800000, 0x7, 0x0)")).0, Drain::No);
        for text in ["", "non-fatal error detected on link 3", "x (a, b)", "x ()", "x (0x1, zz)"] {
            assert_eq!(meaning(&line(text)).0, Drain::IfState, "{text}");
        }
    }

    #[test]
    fn pitfall_9_nvlink5_words_decide() {
        let line = |text: &str| format!("NVRM: Xid (PCI:0018:01:00): {text}");
        for text in [
            "145, RLW_CTRL Nonfatal XC0 i0 Link 00 (0x00000003 0x80000000 0x00000000 0x00000000)",
            "149, NETIR_LINK_DOWN Nonfatal XC1 i2 Link 17 (0xdeadbeef)",
            "145, pid=9, name=a, RLW_SRC_TRACK Non-fatal XC1 i0 Link 3 (0x1 0x2)",
            // A process that calls itself "SAW Fatal XC0": the driver's own word stands next to the link.
            "145, pid=9, name=SAW Fatal XC0, RLW_REMAP Nonfatal XC0 i0 Link 00 (0x4 0x1)",
            "145, pid=9, name=, , (0x1, RLW_REMAP Nonfatal XC0 i0 Link 00 (0x4 0x1)",
            "145, pid=9, name=a, Fatal i0, RLW_REMAP Nonfatal XC0 i0 Link 00 (0x4 0x1)",
        ] {
            assert_eq!(meaning(&line(text)), (Drain::No, Action::None, Severity::Warn), "{text}");
        }
        for text in [
            "144, SAW_MVB Fatal XC0 i0 Link 03 (0x00000001 0x00000002 0x0 0x0 0x0 0x0)",
            "149, NETIR_LINK_DOWN Fatal XC0 i1 Link 17 (0x004505c6 0x0)",
            "150, MSE_WATCHDOG Fatal i0 Link 1 (0x0 0x0)",
        ] {
            assert_eq!(meaning(&line(text)), (Drain::Yes, Action::ResetGpu, Severity::Fatal), "{text}");
        }
        // Registers that no rule knows, or that leave it to Xid 154: the GPU's state decides.
        for text in [
            "144, SAW_MVB Fatal XC0 i0 Link 03 (0x00000001 0x00001000)",
            "149, NETIR_LINK_DOWN Fatal XC0 i1 Link 17 (0x1)",
            "145, RLW_REMAP Fatal XC0 i0 Link 00 (0x4 0x1)",
        ] {
            assert_eq!(meaning(&line(text)), (Drain::IfState, Action::ResetGpu, Severity::Fatal), "{text}");
        }
        // A link taken down on purpose: the registers say that nothing is to be done.
        assert_eq!(
            meaning(&line("149, NETIR_LINK_DOWN Fatal XC0 i1 Link 17 (0x02600011 0x0)")),
            (Drain::No, Action::None, Severity::Warn)
        );
        for text in [
            "147, something",
            "147, Fatal",
            "147, pid=1, name=Fatal, x",
            "147, TREX Fatal mistake here (0x1)",
        ] {
            assert_eq!(meaning(&line(text)), (Drain::IfState, Action::ResetGpu, Severity::Warn), "{text}");
        }
    }

    #[test]
    fn a_switch_lines_word_wins_over_the_table() {
        let line = |text: &str| format!("nvidia-nvswitch0: SXid (PCI:0000:05:00.0): {text}");
        assert_eq!(meaning(&line("12020, Non-fatal, Link 1 x")), (Drain::No, Action::None, Severity::Warn));
        assert_eq!(meaning(&line("12020, Fatal, Link 1 x")), (Drain::Yes, Action::Reboot, Severity::Fatal));
        assert_eq!(
            meaning(&line("22013, Fatal, Link 1 x")),
            (Drain::Yes, Action::RestartService, Severity::Fatal)
        );
        assert_eq!(meaning(&line("11013, Correctable, Link 1 x")), (Drain::No, Action::None, Severity::Info));
        // No word: the table, and the state where the table leaves it open.
        assert_eq!(meaning(&line("22003, Minion halt")), (Drain::Yes, Action::Reboot, Severity::Fatal));
        assert_eq!(
            meaning(&line("26006, SOE HALTED")),
            (Drain::IfState, Action::RestartService, Severity::Error)
        );
        for detail in
            ["20034, Severity 1 Engine instance 62 Sub-engine instance 00", "20034, Data {0x10000000, 0x0}"]
        {
            assert!(parse(&line(detail)).is_empty(), "{detail}");
        }
    }

    #[test]
    fn process_names_and_quotes_raise_nothing_of_their_own() {
        for (name, rest) in [
            ("): 79,", "Ch 1"),
            ("x): 79, pid=1", "Ch 1"),
            ("a, GPU has fall", "en off the bus"),
            ("\nNVRM: Xid (PCI", ":0000:18:00): 79, x"),
            ("a\nNVRM: GPU: ", "GPU has fallen off the bus"),
        ] {
            let e = one(&format!("NVRM: Xid (PCI:0000:18:00): 31, pid=7, name={name}, {rest}"));
            assert_eq!(e.code(), Some(31), "{name}");
            assert_eq!(policy(&e).drain, Drain::No);
        }
        for line in [
            "systemd-journald: user text: NVRM: Xid (PCI:0000:18:00): 79, quoted",
            "python3[12]: NVRM: Xid (PCI:0000:18:00): 79, quoted",
            " NVRM: Xid (PCI:0000:18:00): 79, a line starts in its first column",
            "traps: NVRM: Xid[1] trap int3",
            "RPC: xid 79 retransmitted to server 10.0.0.9",
            "nfs4: state manager: callback xid 0x4f lost",
            "dhcpcd: eth0: Xid 95 offered 10.0.0.4",
            "NVRM: Xid (whatever): 79, x",
            "NVRM: Xid (PCI:0000:18:00 evil): 79, x",
            "NVRM: Xid (PCI:0000:18:00): x79, x",
            "NVRM: Xid (PCI:0000:18:00): 79x, x",
            "NVRM: Xid (PCI:0000:18:00): , x",
            "NVRM: Xid (PCI:0000:18:00):79, x",
            "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  590.48.01",
            "NVRM: GPU at PCI:0000:18:00: GPU-00000000-1111-2222-3333-444444444401",
            "NVRM: GPU Board Serial Number: 1650000000001",
            "NVRM: The NVIDIA GPU 0000:b3:00.0 (PCI ID: 10de:1234)",
            "nvidia-nvlink: Nvlink Core is being initialized, major device number 243",
            "nvidia-nvswitch0: open (major=510)",
            "[drm] NVRM: Xid (PCI:0000:18:00): 79, x",
            "",
        ] {
            assert!(parse(line).is_empty(), "{line}");
        }
    }

    #[test]
    fn every_spelling_of_an_xid_line_is_read() {
        for line in [
            "NVRM: Xid (PCI:0000:B3:00): 79, GPU has fallen off the bus.",
            "NVRM: Xid (PCI:0000:b3:00.0): 79, GPU has fallen off the bus.",
            "NVRM: Xid (0000:b3:00): 79, old drivers",
            "NVRM: Xid (PCI:00000000:b3:00): 79, x",
            "NVRM: Xid (PCI:0000:b3:00): 79 GPU has fallen off the bus.",
            "NVRM: Xid (PCI:0000:b3:00): 79",
            "NVRM: Xid (PCI:0000:b3:00): 79, pid=1, name=x",
            "NVRM: Xid (PCI:0000:b3:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n",
            "[6085126.134786] NVRM: Xid (PCI:0000:b3:00): 79, pid=1582259, name=nvc:[driver], GPU has fallen off the bus.",
            "NVRM: Xid (PCI:0000:b3:00): 79, pid=9, name=cmax-inject, GPU has fallen off the bus. [synthetic 7]",
        ] {
            let e = one(line);
            assert_eq!((e.code(), e.pci.as_deref()), (Some(79), Some("0000:b3:00")), "{line}");
            assert_eq!((policy(&e).drain, policy(&e).action), (Drain::Yes, Action::Reboot));
            assert_eq!(e.token(), "xid79");
        }
        let e = one(
            "NVRM: Xid (PCI:10000:b3:1f GPU-I:14 GPU-CI:2): 43, pid=5, name=nvc:[driver], channel 0x0b00000a",
        );
        assert_eq!(e.pci.as_deref(), Some("10000:b3:1f"));
        assert_eq!(e.message, "channel 0x0b00000a");
        let Kind::Xid { code: 43, pid: Some(5), name: Some(name), gi: Some(14), ci: Some(2), parent: None } =
            e.kind
        else {
            panic!("{e:?}")
        };
        assert_eq!(name, "nvc:[driver]");
    }

    #[test]
    fn pitfall_5_texts_without_a_number_are_read() {
        for (line, text, pci) in [
            ("NVRM: GPU 0000:86:00.0: GPU has fallen off the bus.", Text::OffBus, Some("0000:86:00")),
            ("NVRM: GPU at 0000:86:00.0 has fallen off the bus.", Text::OffBus, Some("0000:86:00")),
            ("NVRM: GPU at PCI:0000:86:00: GPU has fallen off the bus.", Text::OffBus, Some("0000:86:00")),
            (
                "NVRM: GPU 0000:86:00.0: RmInitAdapter failed! (0x62:0x65:1860)",
                Text::InitFailed,
                Some("0000:86:00"),
            ),
            (
                "NVRM: GPU 0000:86:00.0: rm_init_adapter failed, device minor number 3",
                Text::InitFailed,
                Some("0000:86:00"),
            ),
            ("NVRM: RmInitAdapter failed! (0x26:0xffff:1096)", Text::InitFailed, None),
            ("NVRM: rm_init_adapter(0) failed", Text::InitFailed, None),
            (
                "NVRM: Rate limiting GSP RPC error prints for GPU at PCI:0000:86:00 (printing 1 of every 30).  The GPU likely needs to be reset.",
                Text::GspReset,
                Some("0000:86:00"),
            ),
            (
                "NVRM: nvAssertOkFailedNoLog: Assertion failed: Reset required [NV_ERR_RESET_REQUIRED] (0x00000062) returned from status @ kernel_channel.c:2874",
                Text::ResetRequired,
                None,
            ),
            (
                "NVRM: GPU0 nvCheckOkFailedNoLog: Check failed: Reset required [NV_ERR_RESET_REQUIRED] (0x00000062)",
                Text::ResetRequired,
                None,
            ),
            (
                "NVRM: nvGpuOpsReportFatalError: uvm encountered global fatal error 0x60, requiring os reboot to recover.",
                Text::UvmFatal,
                None,
            ),
            ("NVRM: The NVIDIA probe routine failed for 1 device(s).", Text::ProbeFailed, None),
        ] {
            let e = one(line);
            assert_eq!((&e.kind, e.pci.as_deref()), (&Kind::Text(text), pci), "{line}");
            assert_eq!(policy(&e).code, text as u32);
            assert_eq!(e.summary(), policy(&e).text);
        }
        assert_eq!(meaning("NVRM: x: [NV_ERR_RESET_REQUIRED]").0, Drain::IfState);
        assert!(parse("nv_err_reset: [NV_ERR_RESET_REQUIRED]").is_empty());
    }

    const PROBE: [&str; 3] = [
        "NVRM: The NVIDIA GPU 0000:b3:00.0",
        "NVRM: (PCI ID: 10de:2330) installed in this system has",
        "NVRM: fallen off the bus and is not responding to commands.",
    ];

    fn scan(records: &[Record]) -> Vec<KernelEvent> {
        let (mut scanner, mut found) = (Scanner::default(), Vec::new());
        records.iter().for_each(|r| scanner.push(r, |e| found.push(e)));
        found
    }

    fn record(text: &str, usec: u64) -> Record {
        Record { text: text.into(), usec, ..Record::default() }
    }

    #[test]
    fn the_three_line_message_is_one_event_with_its_device() {
        let one_record = scan(&[record(&PROBE.join("\n"), 5)]);
        let mut several: Vec<Record> = PROBE.iter().map(|l| record(l, 5)).collect();
        several.insert(1, record("mlx5_core 0000:12:00.0: something in between", 6));
        several[0].facility = 1;
        let several = scan(&several);
        for (found, synthetic) in [(&one_record, false), (&several, true)] {
            assert_eq!(found.len(), 1, "{found:?}");
            assert_eq!(found[0].kind, Kind::Text(Text::OffBusAtProbe));
            assert_eq!((found[0].pci.as_deref(), found[0].synthetic), (Some("0000:b3:00"), synthetic));
            assert!(
                found[0].text.ends_with("0000:b3:00.0 fallen off the bus and is not responding to commands.")
            );
            assert_eq!((policy(&found[0]).drain, policy(&found[0]).action), (Drain::Yes, Action::Reboot));
        }
        // Two devices, one after the other.
        let other = PROBE.map(|l| l.replace("b3", "b4"));
        let both: Vec<Record> =
            PROBE.iter().map(|l| record(l, 5)).chain(other.iter().map(|l| record(l, 6))).collect();
        let both: Vec<_> = scan(&both).into_iter().filter_map(|e| e.pci).collect();
        assert_eq!(both, ["0000:b3:00", "0000:b4:00"]);
    }

    #[test]
    fn a_stale_first_line_gives_no_device() {
        for gap in [vec![record(PROBE[0], 0); 1], vec![]] {
            let mut records = gap;
            records.push(record(PROBE[2], PROBE_USEC + 1));
            let found = scan(&records);
            assert_eq!((found.len(), found[0].pci.as_deref()), (1, None));
        }
        let mut records = vec![record(PROBE[0], 0)];
        records.extend((0..20).map(|_| record("other", 1)));
        records.push(record(PROBE[2], 2));
        assert_eq!(scan(&records)[0].pci, None);
        // The first line alone is also how the driver says that it does not support a GPU.
        assert!(
            scan(&[record(PROBE[0], 0), record("NVRM: installed in this system is not supported", 0)])
                .is_empty()
        );
    }

    #[test]
    fn pitfall_8_a_flood_folds_to_its_distinct_events() {
        let mut fold = Fold::default();
        for n in 0..100_000_u64 {
            let device = n % 8;
            let mut r = record(
                &format!(
                    "NVRM: Xid (PCI:0000:{device:02x}:00): 95, pid='<unknown>', name=<unknown>, Uncontained: LTC TAG (0x{n:x},0x1). RST: Yes, D-RST: No"
                ),
                n,
            );
            r.seq = n;
            events(&r).into_iter().for_each(|e| fold.add(e));
        }
        let folded = fold.finish();
        assert_eq!(folded.len(), 8);
        assert!(folded.iter().all(|f| f.count == 12_500));
        assert_eq!((folded[3].event.seq, folded[3].last_seq, folded[3].last_usec), (3, 99_995, 99_995));
    }

    #[test]
    fn fold_keeps_apart_what_means_something_else() {
        let lines = [
            "NVRM: Xid (PCI:0000:18:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)",
            "NVRM: Xid (PCI:0000:18:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)",
            "NVRM: Xid (PCI:0000:18:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)",
            "NVRM: Xid (PCI:0000:86:00): 74, NVLink: non-fatal error detected on link 3(0x800000, 0x0, 0x0)",
            "NVRM: Xid (PCI:0000:86:00): 74, NVLink: non-fatal error detected on link 4(0x10, 0x0, 0x0)",
            "NVRM: Xid (PCI:0000:86:00): 74, NVLink: non-fatal error detected on link 5(0x10, 0x0, 0x0)",
        ];
        let counts: Vec<u64> = fold(lines.iter().flat_map(|l| parse(l))).iter().map(|f| f.count).collect();
        assert_eq!(counts, [2, 1, 1, 2]);
        // A synthetic event never hides a real one.
        let mut synthetic = record(lines[0], 0);
        synthetic.facility = 1;
        assert_eq!(fold(events(&synthetic).into_iter().chain(parse(lines[0]))).len(), 2);
    }

    #[test]
    fn fold_is_bounded_and_says_what_it_dropped() {
        let mut folded = Fold::default();
        let word =
            |n: u32| -> String { n.to_string().bytes().map(|b| char::from(b - b'0' + b'a')).collect() };
        // Texts of letters only, so that each is different.
        for n in 0..5_000 {
            parse(&format!("NVRM: Xid (PCI:0000:18:00): 13, {}", word(n)))
                .into_iter()
                .for_each(|e| folded.add(e));
        }
        assert_eq!((folded.order.len(), folded.overflow()), (FOLD_MAX + 1, 0));
        assert_eq!(folded.order.iter().map(|f| f.count).sum::<u64>(), 5_000);
        for n in 0..5_000 {
            parse(&format!("NVRM: Xid (PCI:0000:18:00): {}, x", 1_000 + n))
                .into_iter()
                .for_each(|e| folded.add(e));
        }
        assert_eq!(folded.order.len(), 2 * FOLD_MAX);
        assert_eq!(folded.order.iter().map(|f| f.count).sum::<u64>() + folded.overflow(), 10_000);
    }

    #[test]
    fn long_texts_are_cut_at_a_character() {
        let e = one(&format!("NVRM: Xid (PCI:0000:18:00): 79, {}", "é".repeat(4_000)));
        assert!(e.text.len() <= TEXT_BYTES_MAX && e.message.len() <= TEXT_BYTES_MAX);
        assert!(e.text.ends_with('é'));
    }

    #[test]
    fn pci_addresses_are_normalised() {
        for text in ["PCI:0000:86:00", "0000:86:00.0", "00000000:86:00.0", "0000:86:00"] {
            assert_eq!(normalise_pci(text).as_deref(), Some("0000:86:00"), "{text}");
        }
        assert_eq!(normalise_pci("0009:01:00.1").as_deref(), Some("0009:01:00"));
        for text in [
            "",
            "86:00.0",
            "0000:86",
            "0000:86:00.00",
            "0000:86:00.g",
            "0000:866:00",
            "000000000:86:00",
            "é:86:00",
            "0000:86:00:00",
        ] {
            assert_eq!(normalise_pci(text), None, "{text}");
        }
    }
}
