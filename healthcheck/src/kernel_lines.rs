//! What the kernel log says about the host, network cards and disks. GPUs are [`crate::xid`]'s.
//!
//! Patterns are data, `data/kernel.tsv`, and anchored at the start of the record: a program's log line that quotes the kernel
//! raises nothing. Most lines only tell where to look; what a counter or a state in sysfs decides is decided there.

use std::sync::OnceLock;

use crate::kmsg::Record;
use crate::xid::{
    Drain, KernelEvent, Kind, Policy, action_word, clip, drain_word, fault_word, normalise_pci, severity_word,
};

/// Two lines of a kind that needs repetition count as one fault within this time, in microseconds.
pub const REPEAT_USEC: u64 = 120_000_000;

/// What becomes of an event after it was reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// It is done.
    Once,
    /// It stays open until another line takes it back.
    Open,
    /// It takes back what earlier lines with its token said of its device.
    Clear,
}

/// One row of `data/kernel.tsv`.
#[derive(Debug)]
pub struct Row {
    /// Name of the row.
    pub id: &'static str,
    /// Id of the check that reports it.
    pub check: &'static str,
    /// What the line means.
    pub policy: Policy,
    /// What becomes of the event.
    pub keep: Keep,
    pattern: Vec<Piece>,
}

/// Part of a pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Piece {
    /// This text.
    Literal(&'static str),
    /// `{*}`: anything up to where the rest fits.
    Any,
    /// `{w}`: letters, digits and `_.+@/-`.
    Word,
    /// `{dev}`: the same, and it names the device.
    Device,
    /// `{host}`: the same with `:`, and it names the device.
    Host,
    /// `{job}`: a number; the device is `job` and that number.
    Job,
    /// `{n}`: a decimal number.
    Number,
    /// `{x}`: a hexadecimal number without prefix.
    Hex,
    /// `{pci}`: a PCI address; the last one counts.
    Pci,
    /// `{amdgpu}`: what amdgpu begins its lines about a device with.
    Amdgpu,
}

/// What a line names.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct Named {
    device: Option<String>,
    pci: Option<String>,
}

const TABLE: &str = include_str!("../data/kernel.tsv");

/// All rows in order.
#[must_use]
pub fn rows() -> &'static [Row] {
    static ROWS: OnceLock<Vec<Row>> = OnceLock::new();
    ROWS.get_or_init(|| TABLE.lines().filter_map(parse_row).collect())
}

/// The row of this name, with its place.
#[must_use]
pub fn row(id: &str) -> Option<(u32, &'static Row)> {
    let at = rows().iter().position(|r| r.id == id)?;
    Some((u32::try_from(at).ok()?, &rows()[at]))
}

fn parse_row(line: &'static str) -> Option<Row> {
    let mut columns = line.split('\t');
    let mut next = || columns.next();
    let (id, check, token) = (next()?, next()?, next()?);
    let (severity, action) = (severity_word(next()?)?, action_word(next()?)?);
    let (drain, fault) = (drain_word(next()?)?, fault_word(next()?)?);
    let keep = match next()? {
        "-" => Keep::Once,
        "open" => Keep::Open,
        "clear" => Keep::Clear,
        _ => return None,
    };
    let text = next()?;
    let pattern = parse_pattern(next()?)?;
    let policy = Policy { code: 0, name: "", text, severity, action, drain, fault, token };
    Some(Row { id, check, policy, keep, pattern })
}

fn parse_pattern(mut text: &'static str) -> Option<Vec<Piece>> {
    let mut pieces = Vec::new();
    while let Some((literal, rest)) = text.split_once('{') {
        let (name, after) = rest.split_once('}')?;
        if !literal.is_empty() {
            pieces.push(Piece::Literal(literal));
        }
        pieces.push(match name {
            "*" => Piece::Any,
            "w" => Piece::Word,
            "dev" => Piece::Device,
            "host" => Piece::Host,
            "job" => Piece::Job,
            "n" => Piece::Number,
            "x" => Piece::Hex,
            "pci" => Piece::Pci,
            "amdgpu" => Piece::Amdgpu,
            _ => return None,
        });
        text = after;
    }
    if !text.is_empty() {
        pieces.push(Piece::Literal(text));
    }
    Some(pieces)
}

/// The event of one line of a record, if it is one of the table's.
#[must_use]
pub fn event(record: &Record, line: &str) -> Option<KernelEvent> {
    let (row, named) = rows().iter().find_map(|row| {
        let mut named = Named::default();
        fits(&row.pattern, line, &mut named).then_some((row, named))
    })?;
    Some(KernelEvent {
        kind: Kind::Line { row: row.id.into(), device: named.device },
        pci: named.pci,
        text: clip(line),
        message: clip(line),
        synthetic: record.from_user_space(),
        seq: record.seq,
        usec: record.usec,
    })
}

/// Whether the text begins as the pattern says.
fn fits(pattern: &[Piece], text: &str, named: &mut Named) -> bool {
    let Some((first, rest)) = pattern.split_first() else { return true };
    let while_in = |set: fn(u8) -> bool| text.bytes().take_while(|b| set(*b)).count();
    let word = |b: u8| b.is_ascii_alphanumeric() || b"_.+@/-".contains(&b);
    let digit = |b: u8| b.is_ascii_digit();
    let length = match first {
        Piece::Literal(literal) => {
            return text.strip_prefix(literal).is_some_and(|after| fits(rest, after, named));
        }
        Piece::Any => {
            let Some(Piece::Literal(next)) = rest.first() else { return rest.is_empty() };
            return text.match_indices(next).any(|(at, _)| fits(rest, &text[at..], named));
        }
        Piece::Amdgpu => {
            let Some((pci, after)) = text.strip_prefix("amdgpu ").and_then(|t| t.split_once(": ")) else {
                return false;
            };
            let Some(pci) = normalise_pci(pci) else { return false };
            named.pci = Some(pci);
            let after = after.strip_prefix("amdgpu: ").unwrap_or(after);
            return fits(rest, without_event_number(after), named);
        }
        Piece::Pci => {
            let length = while_in(|b| b.is_ascii_hexdigit() || b":.".contains(&b));
            let address = text[..length].trim_end_matches([':', '.']);
            let Some(pci) = normalise_pci(address) else { return false };
            named.pci = Some(pci);
            return fits(rest, &text[address.len()..], named);
        }
        Piece::Word | Piece::Device => while_in(word),
        Piece::Host => while_in(|b| b.is_ascii_alphanumeric() || b"_.+@/-:".contains(&b)),
        Piece::Number | Piece::Job => while_in(digit),
        Piece::Hex => while_in(|b| b.is_ascii_hexdigit()),
    };
    let (found, after) = text.split_at(length);
    match first {
        Piece::Device | Piece::Host => named.device = Some(found.into()),
        Piece::Job => named.device = Some(format!("job{found}")),
        _ => {}
    }
    length > 0 && fits(rest, after, named)
}

/// Without the `{14}` or `{14} ` that numbers an event of AMD's RAS.
fn without_event_number(text: &str) -> &str {
    let rest = text.strip_prefix('{').and_then(|t| t.split_once('}'));
    match rest {
        Some((number, after)) if !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()) => {
            after.strip_prefix(' ').unwrap_or(after)
        }
        _ => text,
    }
}

/// Row of an event that is a line of the table.
#[must_use]
pub fn row_of(event: &KernelEvent) -> Option<(u32, &'static Row)> {
    match &event.kind {
        Kind::Line { row: id, .. } => row(id),
        _ => None,
    }
}

/// True for lines of which one alone says little: they count together only within [`REPEAT_USEC`].
#[must_use]
pub fn needs_repetition(event: &KernelEvent) -> bool {
    row_of(event).is_some_and(|(_, r)| r.check == "host.kernel" && r.policy.drain == Drain::IfState)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::CATALOGUE;
    use proptest::prelude::*;

    fn read(line: &str) -> Option<KernelEvent> {
        event(&Record { text: line.into(), ..Record::default() }, line)
    }

    fn of(line: &str) -> (String, Option<String>, Option<String>) {
        let e = read(line).unwrap();
        let Kind::Line { row, device } = e.kind else { panic!("{line}") };
        (row, device, e.pci)
    }

    #[test]
    fn every_row_is_read_and_sound() {
        let lines: Vec<&str> =
            TABLE.lines().filter(|l| !l.starts_with('#') && !l.starts_with("id\t")).collect();
        assert_eq!(rows().len(), lines.len());
        let mut ids = std::collections::HashSet::new();
        for (row, line) in rows().iter().zip(&lines) {
            assert_eq!(line.split('\t').count(), 10, "{line}");
            assert!(ids.insert(row.id), "{} twice", row.id);
            let check = CATALOGUE.iter().find(|c| c.id == row.check);
            let tokens = check.unwrap_or_else(|| panic!("{line}: no such check")).tokens;
            assert!(tokens.contains(&row.policy.token), "{line}: the catalogue lacks the token");
            assert!((5..=60).contains(&row.policy.text.len()) && row.policy.text.is_ascii(), "{line}");
            assert!(!row.policy.text.contains(['"', '\'', ';']), "{line}");
            // A pattern that began with anything would find quotations.
            assert!(row.pattern[0] != Piece::Any, "{line}");
            for pair in row.pattern.windows(2) {
                assert!(pair[0] != Piece::Any || matches!(pair[1], Piece::Literal(_)), "{line}");
            }
        }
    }

    #[test]
    fn devices_and_addresses() {
        let text = |s: &str| Some(s.to_string());
        assert_eq!(
            of("nvme nvme3: controller is down; will reset: CSTS=0xffffffff"),
            ("nvme-down".into(), text("nvme3"), None)
        );
        assert_eq!(
            of("pcieport 0000:80:01.1: AER: Multiple Uncorrected (Fatal) error received: 0000:86:00.0"),
            ("aer-fatal".into(), None, text("0000:86:00"))
        );
        assert_eq!(of("nfs: server fe80::9 OK"), ("nfs-ok".into(), text("fe80::9"), None));
        assert_eq!(
            of(
                "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),oom_memcg=/slurm/uid_0/job_77,task_memcg=/slurm/uid_0/job_77/step_0/task_0,task=a,pid=1,uid=1"
            ),
            ("oom-job".into(), text("job77"), None)
        );
        assert_eq!(
            of("mlx5_core 0000:65:00.0 ens15np0: TX timeout detected"),
            ("net-tx".into(), text("ens15np0"), text("0000:65:00"))
        );
        for (line, row) in [
            ("amdgpu 0000:c5:00.0: amdgpu: device lost from bus!", "amd-lost"),
            ("amdgpu 0000:c5:00.0: amdgpu: GPU reset begin!. Source:  4", "amd-reset"),
            (
                "amdgpu 0000:c5:00.0: ring comp_1.2.0 timeout, signaled seq=140118, emitted seq=140120",
                "amd-ring",
            ),
            (
                "amdgpu 0000:c5:00.0: {14}poison is consumed by client 12, kick off gpu reset flow",
                "amd-poison",
            ),
            (
                "amdgpu 0000:c5:00.0: amdgpu: {1}uncorrectable hardware error(ERREVENT_ATHUB_INTERRUPT) detected!",
                "amd-fatal",
            ),
            (
                "amdgpu 0000:c5:00.0: {3} socket: 0, die: 0, 1 new uncorrectable hardware errors detected in umc block",
                "amd-ue-2",
            ),
            ("amdgpu 0000:c5:00.0: amdgpu: RAS records:80 exceed threshold:64", "amd-retire"),
            ("amdgpu 0000:c5:00.0: probe with driver amdgpu failed with error -110", "amd-init-2"),
            ("amdgpu: probe of 0000:c5:00.0 failed with error -2", "amd-init-3"),
            (
                "amdgpu 0000:c5:00.0: amdgpu: [gfxhub0] no-retry page fault (src_id:0 ring:24 vmid:3 pasid:32777, for process python pid 1)",
                "amd-fault",
            ),
        ] {
            assert_eq!(of(line), (row.into(), None, text("0000:c5:00")), "{line}");
        }
    }

    #[test]
    fn a_quotation_or_a_lookalike_is_no_event() {
        for line in [
            "myapp: watchdog: BUG: soft lockup - CPU#3 stuck for 26s!",
            "slurmd: nvme nvme3: controller is down; will reset",
            " Kernel panic - not syncing: x",
            "EDAC MC0: Giving out device to module",
            "nfs: server 10.0.0.9 is fine",
            "mlx5_core x:12:00.0: device's health compromised",
            "pcieport 0000:80:01.1: AER: enabled with IRQ 30",
            "EXT4-fs (nvme0n1p2): mounted filesystem with ordered data mode",
            // amdgpu prints names of processes.
            "amdgpu 0000:c5:00.0: amdgpu: Process information: process device lost from bus! pid 1 thread x pid 1",
            "amdgpu 0000:c5:00.0: amdgpu:  Process GPU reset begin! pid 4711 thread x pid 1",
            "amdgpu 0000:c5:00.0: amdgpu: no uncorrectable hardware errors detected in umc block",
            "amdgpu 0000:c5:00.0: amdgpu: GPU reset(2) succeeded!",
            "amdgpu: device lost from bus!",
            "",
        ] {
            assert_eq!(read(line), None, "{line}");
        }
    }

    proptest! {
        #[test]
        fn no_line_makes_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = read(&String::from_utf8_lossy(&bytes));
        }

        #[test]
        fn no_end_of_a_known_line_makes_it_panic(at in 0..100usize, cut in 0..200usize, tail in ".{0,40}") {
            let row = &rows()[at % rows().len()];
            let text: String = row.pattern.iter().map(|p| match p {
                Piece::Literal(l) => l,
                Piece::Any => "x",
                Piece::Word | Piece::Device | Piece::Host => "dev0",
                Piece::Job | Piece::Number | Piece::Hex => "7",
                Piece::Pci => "0000:86:00.0",
                Piece::Amdgpu => "amdgpu 0000:86:00.0: amdgpu: {7}",
            }).collect();
            let whole = read(&text).unwrap();
            prop_assert_eq!(row_of(&whole).unwrap().1.policy.token, row.policy.token);
            let cut = (0..=cut.min(text.len())).rev().find(|i| text.is_char_boundary(*i)).unwrap_or(0);
            let _ = read(&format!("{}{tail}", &text[..cut]));
        }
    }
}
