//! Explains a log from any machine: what each line means, whose fault it is and what this suite would do. Touches no device.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::{self, BufRead};

use serde::Serialize;

use crate::check::check_of;
use crate::kmsg::parse_log_line;
use crate::nvlink5::Decoded;
use crate::table::printable;
use crate::verdict::{Action, Fault};
use crate::xid::{Drain, Fold, Folded, Kind, Scanner, Severity, nvlink5_registers, policy, recovery_action};

/// Version tag of the JSON form.
pub const EXPLAIN_SCHEMA: &str = "clustermax-explain/1";
/// Longest line looked at, in bytes; what follows in it is passed over.
const LINE_BYTES_MAX: u64 = 64 * 1024;
/// Most time stamps kept of lines with events.
const TIMES_MAX: usize = 4096;

/// Everything found in a log.
#[derive(Debug, Serialize)]
pub struct Explained {
    /// [`EXPLAIN_SCHEMA`].
    pub schema: &'static str,
    /// Lines read.
    pub lines: u64,
    /// Different events, in the order in which each was first seen.
    pub events: Vec<Meaning>,
    /// Events that found no place in the bounded memory.
    pub left_out: u64,
}

/// One event, with how often it came.
#[derive(Debug, Serialize)]
pub struct Meaning {
    /// First line, from 1.
    pub line: u64,
    /// Last line.
    pub last_line: u64,
    /// How many lines.
    pub count: u64,
    /// Wall-clock time as the first line gives it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time: Option<String>,
    /// Seconds since boot of the first line, where it has them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uptime: Option<f64>,
    /// Check that reads such lines.
    pub check: &'static str,
    /// Token of reasons.
    pub token: String,
    /// Xid or SXid.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<u32>,
    /// NVIDIA's name of the code.
    pub name: &'static str,
    /// PCI address without function.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pci: Option<String>,
    /// MIG GPU instance.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_instance: Option<u32>,
    /// MIG compute instance.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compute_instance: Option<u32>,
    /// Process, where the driver knew one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// The name that process gave itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process: Option<String>,
    /// Earlier Xid that this one follows from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<u32>,
    /// How bad.
    pub severity: Severity,
    /// Whose fault.
    pub fault: Fault,
    /// What mends it.
    pub action: Action,
    /// Whether the line takes the node out of service.
    pub drain: Drain,
    /// One phrase.
    pub meaning: String,
    /// What this suite would do, one sentence.
    pub suite: String,
    /// Registers of Xids 144 to 150.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nvlink5: Option<Decoded>,
    /// A process wrote the record, not the kernel.
    pub synthetic: bool,
    /// The line without prefixes.
    pub text: String,
}

impl Explained {
    /// Some line alone takes the node out of service.
    #[must_use]
    pub fn drains(&self) -> bool {
        self.events.iter().any(|e| e.drain == Drain::Yes)
    }

    /// The answer for people.
    #[must_use]
    pub fn render(&self) -> String {
        let mut out = String::new();
        for e in &self.events {
            let _ = write!(out, "line {}", e.line);
            if e.count > 1 {
                let _ = write!(out, " ({} times, last in line {})", e.count, e.last_line);
            }
            if let Some(time) = &e.time {
                let _ = write!(out, ", {}", printable(time));
            } else if let Some(uptime) = e.uptime {
                let _ = write!(out, ", {uptime:.6} s after boot");
            }
            let _ = write!(out, "\n  {}\n  means:  {}", printable(&e.text), e.meaning);
            if !e.name.is_empty() {
                let _ = write!(out, " ({})", e.name);
            }
            if let Some(d) = &e.nvlink5 {
                let layer = if d.layer.is_empty() { String::new() } else { format!(", {}", d.layer) };
                let _ = write!(out, "\n  decode: {}, {}{layer}: {}", d.unit, word(&d.grade), d.look);
            }
            let device = match &e.pci {
                None => "not named".into(),
                Some(pci) => match (e.gpu_instance, e.compute_instance) {
                    (None, _) => pci.clone(),
                    (Some(gi), None) => format!("{pci}, MIG GPU instance {gi}"),
                    (Some(gi), Some(ci)) => format!("{pci}, MIG GPU instance {gi}, compute instance {ci}"),
                },
            };
            let _ = write!(out, "\n  device: {device}");
            if let Some(pid) = e.pid {
                let name = e.process.as_deref().map_or(String::new(), |n| format!(" ({})", printable(n)));
                let _ = write!(out, "\n  process: {pid}{name}");
            }
            if let Some(parent) = e.parent {
                let _ = write!(out, "\n  follows: Xid {parent}");
            }
            let fault = match e.fault {
                Fault::Hardware => "the hardware or driver",
                Fault::Program => "the program",
                Fault::Setup => "the node's set-up",
            };
            let _ = write!(out, "\n  fault:  {fault}\n  suite:  {}\n\n", e.suite);
        }
        let total: u64 = self.events.iter().map(|e| e.count).sum();
        let drains = self.events.iter().filter(|e| e.drain == Drain::Yes).count();
        let _ = writeln!(
            out,
            "{} lines, {} events of {} kinds, {drains} that take the node out of service",
            self.lines,
            total + self.left_out,
            self.events.len()
        );
        if self.left_out > 0 {
            let _ = writeln!(out, "{} further events were too many kinds to list", self.left_out);
        }
        out
    }
}

/// Reads a log to its end: `dmesg`, `journalctl`, syslog or raw `/dev/kmsg` text, mixed as it comes.
///
/// # Errors
/// What the system reports on reading.
pub fn log(mut input: impl BufRead) -> io::Result<Explained> {
    let (mut scanner, mut fold) = (Scanner::default(), Fold::default());
    let mut times: HashMap<u64, String> = HashMap::new();
    let mut lines = 0;
    let mut line = Vec::new();
    while read_line(&mut input, &mut line)? {
        lines += 1;
        let mut parsed = parse_log_line(&String::from_utf8_lossy(&line));
        // Renderings drop the sequence number; here it is the line's.
        parsed.record.seq = lines;
        let time = parsed.time.take();
        scanner.push(&parsed.record, |event| {
            if let (Some(time), true) = (&time, times.len() < TIMES_MAX) {
                times.insert(lines, time.clone());
            }
            fold.add(event);
        });
    }
    let left_out = fold.overflow();
    let events = fold.finish().into_iter().map(|f| meaning(f, &mut times)).collect();
    Ok(Explained { schema: EXPLAIN_SCHEMA, lines, events, left_out })
}

/// The next line without what is beyond [`LINE_BYTES_MAX`]; false at the end.
fn read_line(input: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<bool> {
    use io::Read;
    line.clear();
    if input.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', line)? == 0 {
        return Ok(false);
    }
    if line.last() != Some(&b'\n') {
        input.skip_until(b'\n')?;
    }
    Ok(true)
}

fn meaning(folded: Folded, times: &mut HashMap<u64, String>) -> Meaning {
    let event = folded.event;
    let rule = policy(&event);
    let suite = suite(&event.kind, rule.drain, rule.action, recovery_action(&event), event.synthetic);
    #[allow(clippy::cast_precision_loss, reason = "microseconds since boot fit into 53 bits")]
    let uptime = (event.usec > 0).then_some(event.usec as f64 / 1e6);
    let mut m = Meaning {
        line: event.seq,
        last_line: folded.last_seq,
        count: folded.count,
        time: times.remove(&event.seq),
        uptime,
        check: check_of(&event.kind),
        token: event.token(),
        code: event.code(),
        name: rule.name,
        gpu_instance: None,
        compute_instance: None,
        pid: None,
        process: None,
        parent: None,
        severity: rule.severity,
        fault: rule.fault,
        action: rule.action,
        drain: rule.drain,
        meaning: event.summary(),
        suite,
        nvlink5: nvlink5_registers(&event),
        synthetic: event.synthetic,
        pci: event.pci,
        text: event.text,
    };
    if let Kind::Xid { pid, name, gi, ci, parent, .. } = event.kind {
        (m.pid, m.process, m.gpu_instance, m.compute_instance, m.parent) = (pid, name, gi, ci, parent);
    }
    m
}

fn suite(kind: &Kind, drain: Drain, action: Action, recovery: Option<u32>, synthetic: bool) -> String {
    let mend = match action {
        Action::None => "nothing to mend",
        Action::TellUser => "the job's user is told",
        Action::RestartService if matches!(kind, Kind::Line { .. }) => "then: restart the service",
        Action::RestartService => "then: restart fabric manager",
        Action::ResetGpu => "then: reset the GPU",
        Action::Reboot => "then: reboot the node",
        Action::Repair => "then: hands on the hardware",
    };
    let mut text = match (drain, recovery) {
        (_, Some(0)) => "takes back what earlier Xids 154 of this GPU asked for".to_string(),
        (Drain::Yes, _) => format!("drains the node; {mend}"),
        (Drain::No, _) if action == Action::TellUser => "no drain; the job's user is told".into(),
        (Drain::No, _) => "no drain; counted and shown".into(),
        (Drain::AfterJob, _) => {
            format!("drains once the running job has ended, if the GPU's state agrees; {mend}")
        }
        (Drain::IfState | Drain::Decode, _) if matches!(kind, Kind::Line { .. }) => {
            format!("drains only if the device's state in sysfs agrees, or it comes again at once; {mend}")
        }
        (Drain::IfState | Drain::Decode, _) => format!(
            "drains only if the {} state agrees (recovery action, Xid 154, link or bus state); {mend}",
            if matches!(kind, Kind::Sxid { .. }) { "switch's" } else { "GPU's" }
        ),
    };
    if synthetic {
        text.push_str("; a process wrote this record: it counts only while xid.accept_synthetic is true");
    }
    text
}

fn word(grade: &crate::nvlink5::Grade) -> &'static str {
    match grade {
        crate::nvlink5::Grade::Nonfatal => "non-fatal",
        crate::nvlink5::Grade::Fatal => "fatal",
        crate::nvlink5::Grade::LinkFatal => "link down",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn explain(text: &str) -> Explained {
        log(text.as_bytes()).unwrap()
    }

    #[test]
    fn one_event_in_any_rendering_is_explained_the_same() {
        for line in [
            "[  113.580237] NVRM: Xid (PCI:0000:3a:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
            "Mar  3 02:11:07 n1 kernel: NVRM: Xid (PCI:0000:3a:00): 79, GPU has fallen off the bus.",
            "4,1042,113580237,-;NVRM: Xid (PCI:0000:3a:00): 79, GPU has fallen off the bus.",
            "{\"_TRANSPORT\":\"kernel\",\"PRIORITY\":\"4\",\"MESSAGE\":\"NVRM: Xid (PCI:0000:3a:00): 79, GPU has fallen off the bus.\"}",
        ] {
            let found = explain(line);
            let e = &found.events[0];
            assert_eq!(
                (e.code, e.pci.as_deref(), e.drain),
                (Some(79), Some("0000:3a:00"), Drain::Yes),
                "{line}"
            );
            assert!(found.drains() && e.suite.starts_with("drains the node"), "{}", e.suite);
        }
    }

    #[test]
    fn bursts_are_folded_and_lines_are_named() {
        let mut text = String::from("nothing\n");
        for n in 0..300 {
            text.push_str(&format!("NVRM: Xid (PCI:0000:3a:00): 45, pid=7, name=a, Ch {n:08x}\n"));
        }
        let found = explain(&text);
        assert_eq!(found.lines, 301);
        let [e] = &found.events[..] else { panic!("{:?}", found.events) };
        assert_eq!((e.line, e.last_line, e.count, e.drain), (2, 301, 300, Drain::No));
        assert!(!found.drains());
        assert!(found.render().contains("line 2 (300 times, last in line 301)"));
    }

    #[test]
    fn nvlink5_and_mig_are_shown() {
        let found = explain(
            "NVRM: Xid (PCI:0018:01:00): 149, NETIR_LINK_DOWN Fatal XC0 i0 Link 08 (0x004505c6 0x0 0x0)\n\
             NVRM: Xid (PCI:0018:01:00): 145, RLW_REMAP Nonfatal XC0 i0 Link 00 (0x00000004 0x00000001 0x0)\n\
             NVRM: Xid (PCI:0000:3a:00 GPU-I:03 GPU-CI:00): 31, pid=9, name=python3, MMU Fault\n",
        );
        let text = found.render();
        assert!(text.contains("decode: NETIR_LINK_DOWN, link down, hardware: the link's signal"), "{text}");
        assert!(text.contains("MIG GPU instance 3, compute instance 0"), "{text}");
        assert_eq!(found.events[1].drain, Drain::No, "Nonfatal without an Xid 154 never drains");
        assert_eq!(found.events[2].fault, Fault::Program);
        assert_eq!(found.events[2].process.as_deref(), Some("python3"));
    }

    #[test]
    fn terminal_escapes_and_endless_lines_do_no_harm() {
        let mut text = String::from("NVRM: Xid (PCI:0000:3a:00): 31, pid=9, name=\u{1b}[2J, MMU Fault\n");
        text.push_str(&"x".repeat(300_000));
        text.push_str("\nNVRM: Xid (PCI:0000:3a:00): 79, GPU has fallen off the bus.");
        let found = explain(&text);
        assert_eq!((found.lines, found.events.len(), found.events[1].line), (3, 2, 3));
        assert!(!found.render().contains('\u{1b}'));
    }
}
