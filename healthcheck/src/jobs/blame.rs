//! Whether it was the hardware or the program: one word, and one sentence for the job's user.

use serde::{Deserialize, Serialize};

use super::delta::{Delta, GpuDelta, LinkDelta};
use super::{Job, JobEvent};
use crate::verdict::{Fault, ascii};

/// Longest sentence, in bytes.
const SENTENCE_MAX: usize = 300;
/// Checks whose findings slow a job down at most, or say that something should be looked at later.
const MINOR: [&str; 9] = [
    "gpu.throttle",
    "gpu.temp",
    "gpu.idle_heat",
    "gpu.ecc_ce_rate",
    "gpu.pcie_replay",
    "gpu.pcie_width",
    "gpu.pcie_speed",
    "gpu.nvlink_errors",
    "gpu.nvlink_speed",
];
/// Counters that only rise when data was lost.
const UNCORRECTABLE: [&str; 4] = ["ecc_sram_ue", "ecc_dram_ue", "ras_ue", "aer_fatal"];
/// Counters that rise when a link goes down.
const LINK_DOWN: [&str; 2] = ["link_downed", "carrier_down_count"];

/// Counters that rise on healthy links, too: congestion control.
const NO_ERRORS: [&str; 2] = ["np_cnp_sent", "rp_cnp_handled"];

/// Whose fault what happened to a job was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Blame {
    /// The hardware or the driver.
    Hardware,
    /// The program.
    Program,
    /// The node's set-up.
    Setup,
    /// Nothing that is a fault was seen.
    None,
}

impl Job {
    /// Brings [`Job::blame`] and [`Job::sentence`] up to date.
    pub fn judge(&mut self) {
        let (blame, sentence) = verdict(self);
        let mut sentence = ascii(&sentence);
        sentence.truncate(SENTENCE_MAX);
        self.blame = Some(blame);
        self.sentence = Some(sentence);
    }
}

fn verdict(job: &Job) -> (Blame, String) {
    let empty = Delta::default();
    let delta = job.delta.as_ref().unwrap_or(&empty);
    let event = |fault: Fault| {
        let grave = |e: &&JobEvent| e.fault == fault && (e.drain || !MINOR.contains(&e.check.as_str()));
        job.events.iter().filter(grave).max_by_key(|e| (e.drain, e.action))
    };
    let (blame, what) = if let Some(e) = event(Fault::Hardware) {
        (Blame::Hardware, format!("The hardware, not the program: {}", told(e)))
    } else if let Some(lost) = uncorrectable(&delta.gpus) {
        (Blame::Hardware, format!("The hardware, not the program: {lost}"))
    } else if let Some(e) = event(Fault::Program) {
        (Blame::Program, format!("Usually an error in the program, not the hardware: {}", told(e)))
    } else if let Some(down) = link_down(&delta.links) {
        (Blame::Hardware, format!("The network, not the program: {down}{}", shared(delta)))
    } else if let Some(e) = event(Fault::Setup) {
        (Blame::Setup, format!("The set-up of the node, not the program: {}", told(e)))
    } else {
        (Blame::None, "No fault of the hardware or of the program was seen".into())
    };
    let mut rest = delta.gpus.iter().filter_map(counted).collect::<Vec<_>>();
    rest.extend(delta.links.iter().filter_map(link_counted).map(|text| text + &shared(delta)));
    rest.extend(delta.left.as_ref().and_then(left_behind));
    rest.extend(job.ended.as_ref().and_then(|e| e.why.clone()));
    let rest = if rest.is_empty() { String::new() } else { format!("; {}", rest.join("; ")) };
    (blame, format!("{what}{rest}."))
}

fn told(e: &JobEvent) -> String {
    let device = match e.device.strip_prefix('g').filter(|n| n.parse::<u32>().is_ok()) {
        Some(n) => format!("GPU {n}: "),
        None if e.device.is_empty() => String::new(),
        None => format!("{}: ", e.device),
    };
    format!("{device}{}", e.text)
}

fn many(n: u64, one: &str, more: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { more })
}

fn uncorrectable(gpus: &[GpuDelta]) -> Option<String> {
    gpus.iter().find_map(|gpu| {
        let n: u64 = UNCORRECTABLE.iter().map(|c| gpu.rise(c)).sum();
        (n > 0).then(|| {
            format!("GPU {} had {}", gpu.index, many(n, "uncorrectable error", "uncorrectable errors"))
        })
    })
}

fn link_down(links: &[LinkDelta]) -> Option<String> {
    links.iter().find_map(|l| {
        let n = LINK_DOWN.iter().filter_map(|c| l.rises.get(*c)).max()?;
        Some(format!("{} went down {}", l.link, many(*n, "time", "times")))
    })
}

fn shared(delta: &Delta) -> String {
    if delta.shared_with.is_empty() { String::new() } else { " (other jobs were on this node too)".into() }
}

/// What is counted and no fault.
fn counted(gpu: &GpuDelta) -> Option<String> {
    let mut parts = Vec::new();
    let corrected = gpu.rise("ecc_corrected") + gpu.rise("ras_ce");
    if corrected > 0 {
        parts.push(many(corrected, "corrected memory error", "corrected memory errors"));
    }
    let nvlink: u64 = ["nvlink_recovery", "nvlink_crc", "nvlink_replay"].iter().map(|c| gpu.rise(c)).sum();
    if nvlink > 0 {
        parts.push(many(nvlink, "NVLink error", "NVLink errors"));
    }
    // A GPU that works hard is at its power limit.
    let slowed = gpu.throttled.iter().filter(|(reason, _)| *reason != "power_cap");
    parts.extend(slowed.map(|(reason, s)| format!("slowed down {s:.1} s by {reason}")));
    if gpu.reset {
        parts.push("its counters began anew meanwhile".into());
    }
    if gpu.unread {
        parts.push("its counters could not be read".into());
    }
    (!parts.is_empty()).then(|| format!("GPU {}: {}", gpu.index, parts.join(", ")))
}

fn link_counted(link: &LinkDelta) -> Option<String> {
    let counts = |name: &str| !LINK_DOWN.contains(&name) && !NO_ERRORS.contains(&name);
    let n: u64 = link.rises.iter().filter(|(name, _)| counts(name)).map(|(_, n)| n).sum();
    (n > 0).then(|| format!("{}: {}", link.link, many(n, "network error", "network errors")))
}

fn left_behind(left: &super::left::Left) -> Option<String> {
    let mut parts = Vec::new();
    let processes = left.processes.len() as u64 + left.more_processes;
    if processes > 0 {
        parts.push(many(processes, "process", "processes"));
    }
    if let Some(shm) = left.shm {
        parts.push(format!("{} ({} KiB) in /dev/shm", many(shm.files, "file", "files"), shm.bytes >> 10));
    }
    if let Some(sysv) = left.sysv {
        parts.push(many(sysv.segments, "shared memory segment", "shared memory segments"));
    }
    if !left.mps.is_empty() {
        parts.push(many(left.mps.len() as u64, "MPS daemon", "MPS daemons"));
    }
    (!parts.is_empty()).then(|| format!("left behind: {}", parts.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jobs::left::{Left, LeftFiles};
    use crate::verdict::Action;

    fn event(check: &str, fault: Fault, drain: bool) -> JobEvent {
        JobEvent {
            time: String::new(),
            check: check.into(),
            token: "t".into(),
            device: "g3".into(),
            fault,
            action: Action::TellUser,
            drain,
            text: format!("{check} said"),
            event: None,
        }
    }

    fn gpu(counter: &str, n: u64) -> Delta {
        let rises = [(counter.to_string(), n)].into();
        Delta { gpus: vec![GpuDelta { index: 3, rises, ..GpuDelta::default() }], ..Delta::default() }
    }

    fn link(counter: &str, n: u64) -> Delta {
        let rises = [(counter.to_string(), n)].into();
        let port = LinkDelta { link: "mlx5_0/1".into(), rises, ..LinkDelta::default() };
        Delta { links: vec![port], ..Delta::default() }
    }

    #[test]
    fn who_is_to_blame() {
        use Fault::{Hardware, Program, Setup};
        let rows: [(Vec<JobEvent>, Delta, Blame, &str); 13] = [
            (vec![], Delta::default(), Blame::None, "No fault of the hardware or of the program was seen."),
            (
                vec![event("gpu.xid", Program, false)],
                Delta::default(),
                Blame::Program,
                "Usually an error in the program, not the hardware: GPU 3: gpu.xid said.",
            ),
            (
                vec![event("gpu.xid", Program, false), event("gpu.remap_pending", Hardware, true)],
                Delta::default(),
                Blame::Hardware,
                "The hardware, not the program: GPU 3: gpu.remap_pending said.",
            ),
            // A power brake is on half of a fleet: it takes no blame for a program that failed.
            (
                vec![event("gpu.throttle", Hardware, false)],
                Delta::default(),
                Blame::None,
                "No fault of the hardware or of the program was seen.",
            ),
            (
                vec![event("gpu.throttle", Hardware, true)],
                Delta::default(),
                Blame::Hardware,
                "gpu.throttle said",
            ),
            (
                vec![event("gpu.xid", Program, false)],
                gpu("ecc_dram_ue", 2),
                Blame::Hardware,
                "The hardware, not the program: GPU 3 had 2 uncorrectable errors.",
            ),
            (
                vec![],
                gpu("ecc_corrected", 1),
                Blame::None,
                "No fault of the hardware or of the program was seen; GPU 3: 1 corrected memory error.",
            ),
            (vec![], gpu("nvlink_crc", 7), Blame::None, "; GPU 3: 7 NVLink errors."),
            (
                vec![],
                link("link_downed", 1),
                Blame::Hardware,
                "The network, not the program: mlx5_0/1 went down 1 time.",
            ),
            (vec![event("gpu.xid", Program, false)], link("link_downed", 1), Blame::Program, "gpu.xid said."),
            (vec![], link("symbol_error", 9), Blame::None, "; mlx5_0/1: 9 network errors."),
            (
                vec![],
                link("np_cnp_sent", 9),
                Blame::None,
                "No fault of the hardware or of the program was seen.",
            ),
            (
                vec![event("gpu.modes", Setup, false)],
                Delta::default(),
                Blame::Setup,
                "The set-up of the node, not the program: GPU 3: gpu.modes said.",
            ),
        ];
        for (events, delta, blame, sentence) in rows {
            let mut job = Job { events, delta: Some(delta), ..Job::default() };
            job.judge();
            assert_eq!(job.blame, Some(blame), "{job:?}");
            assert!(job.sentence.as_ref().unwrap().contains(sentence), "{:?} / {sentence}", job.sentence);
        }
    }

    #[test]
    fn a_gpu_at_its_power_limit_is_no_news_to_its_user() {
        let throttled = [("power_cap".to_string(), 3600.0), ("hw_thermal".to_string(), 2.5)].into();
        let gpu = GpuDelta { index: 3, throttled, ..GpuDelta::default() };
        let mut job = Job { delta: Some(Delta { gpus: vec![gpu], ..Delta::default() }), ..Job::default() };
        job.judge();
        let said = job.sentence.unwrap();
        assert!(said.ends_with("; GPU 3: slowed down 2.5 s by hw_thermal."), "{said}");
    }

    #[test]
    fn links_of_a_shared_node_are_marked_and_leftovers_are_told() {
        let mut delta = link("link_downed", 2);
        delta.shared_with = vec!["8".into()];
        delta.left = Some(Left { shm: Some(LeftFiles { files: 2, bytes: 8192 }), ..Left::default() });
        let mut job = Job { delta: Some(delta), ..Job::default() };
        job.judge();
        assert_eq!(
            job.sentence.as_deref().unwrap(),
            "The network, not the program: mlx5_0/1 went down 2 times (other jobs were on this node too); left behind: 2 files (8 KiB) in /dev/shm."
        );
    }

    #[test]
    fn a_sentence_is_one_short_line() {
        let long =
            JobEvent { text: "\u{1F600}\n\x1b[2J".repeat(200), ..event("gpu.xid", Fault::Program, false) };
        let mut job = Job { events: vec![long], ..Job::default() };
        job.judge();
        let said = job.sentence.unwrap();
        assert!(said.len() <= SENTENCE_MAX && said.chars().all(|c| (' '..='~').contains(&c)), "{said}");
    }
}
