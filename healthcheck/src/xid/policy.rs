//! What an event means: the table, and what the rest of a line decides.

use std::collections::HashMap;
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

use super::read::leading_digits;
use super::{KernelEvent, Kind, Word};
use crate::kernel_lines;
use crate::nvlink5::{self, Decoded, Resolution};
use crate::verdict::{Action, Fault};

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
pub(super) enum Table {
    Xid,
    Sxid,
    Text,
    /// Values of the driver's recovery action (NVML field 230 and Xid 154).
    Recovery,
    /// Lines of `data/kernel.tsv`; the code is the row's place.
    Line,
}

pub(super) const TABLE: &str = include_str!("../../data/xid.tsv");

pub(super) fn table() -> &'static HashMap<(Table, u32), Policy> {
    static ROWS: OnceLock<HashMap<(Table, u32), Policy>> = OnceLock::new();
    ROWS.get_or_init(|| TABLE.lines().filter_map(parse_row).collect())
}

pub(super) fn row(kind: Table, code: u32) -> Option<Policy> {
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

pub(super) fn parse_row(line: &'static str) -> Option<((Table, u32), Policy)> {
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
