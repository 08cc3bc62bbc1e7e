//! Who uses the GPUs, whether CUDA can, and Xids that come back.

use std::collections::{BTreeMap, BTreeSet};

use super::{Seen, device_at, each, gpus, judged};
use crate::check::{Context, Sink, why_missing};
use crate::facts::{Owner, Reading, SeenEvent, Usable};
use crate::mode::Mode;
use crate::verdict::{Action, Device, Fault, Finding, Scope, Status};
use crate::xid::Kind;

/// Reads in a row before a process outside of all jobs is worth a warning.
const STRAY_READS: u32 = 2;
/// Programs are other programs when they fail this far apart, in seconds: the ranks of one job fail together.
const APART: f64 = 600.0;
/// Contained memory errors (Xid 94) of one GPU in a day that are too many.
const CONTAINED_A_DAY: u64 = 3;
/// NVLink errors (Xid 74, bits 4 and 5 of the first register) of one link in a day that are too many.
const LINK_ERRORS_A_DAY: u64 = 2;

pub fn run(c: &Context<'_>, sink: &mut Sink<'_>) {
    each(c, sink, "gpu.leftover", "leftover", leftover);
    mps(c, sink);
    usable(c, sink);
    repeated(c, sink);
}

/// Jobs that run here; after a job's end it is not one of them, although its file is still there.
fn running<'a>(c: &'a Context<'_>) -> impl Iterator<Item = &'a crate::facts::JobHere> {
    let ended = c.facts.own_job.as_ref().filter(|_| c.mode == Mode::Epilog);
    c.facts.jobs.iter().filter(move |j| Some(&j.job) != ended)
}

/// The job is known to have ended. One that this node never heard of may have begun before this suite came.
fn ended(c: &Context<'_>, job: &String) -> bool {
    let own = c.mode == Mode::Epilog && c.facts.own_job.as_ref() == Some(job);
    own || (c.facts.gpu_node.ended_jobs.contains(job) && !running(c).any(|j| j.job == *job))
}

fn leftover(c: &Context<'_>, sink: &mut Sink<'_>, seen: &Seen<'_>) -> Reading<()> {
    judged(&seen.details.processes, |processes| {
        let held = seen.device.index.is_some_and(|i| running(c).any(|j| j.gpus.contains(&i)));
        let mut dead = BTreeSet::new();
        let mut stray = Vec::new();
        let mut pids = Vec::new();
        for p in processes {
            match &p.owner {
                Owner::Job(job) if ended(c, job) => {
                    dead.insert(job.as_str());
                    pids.push(format!("{} ({})", p.pid, p.name));
                }
                Owner::NoJob if !held => stray.push(format!("{} ({})", p.pid, p.name)),
                Owner::Gone if !held => stray.push(format!("{} (gone)", p.pid)),
                _ => {}
            }
        }
        if !dead.is_empty() {
            let jobs = dead.into_iter().collect::<Vec<_>>().join(",");
            let mut f = seen.finding(sink, "gpu.leftover", "leftover", Status::Fail);
            f.action = Action::Reboot;
            f.fault = Fault::Program;
            f.text = format!("processes of ended job {jobs} hold it");
            f.evidence = format!("NVML and control groups: pid {} of ended job {jobs}", pids.join(", "));
            f.mend = "kill them; when they do not die they are stuck in the driver: reboot".into();
            sink.push(f);
        }
        if !stray.is_empty() {
            let mut f = seen.finding(sink, "gpu.leftover", "strayproc", Status::Warn);
            f.action = Action::None;
            f.fault = Fault::Program;
            f.text = "a process outside of all jobs holds it".into();
            f.evidence = format!("NVML: pid {} in no job's control group", stray.join(", "));
            f.mend = "find out who started it; keep users out with pam_slurm_adopt".into();
            sink.push_quiet(f, STRAY_READS);
        }
    })
}

fn mps(c: &Context<'_>, sink: &mut Sink<'_>) {
    const CHECK: &str = "gpu.mps";
    if !sink.on(CHECK) {
        return;
    }
    let daemons = match &c.facts.gpu_node.mps {
        Some(Reading::Value(daemons)) => daemons,
        Some(Reading::Unknown(why) | Reading::Hung(why)) => return sink.unknown(CHECK, "mps", None, why),
        Some(Reading::Unsupported) | None => return sink.done(CHECK, Status::Unsupported, "not read"),
    };
    let unwanted: Vec<String> = daemons
        .iter()
        .filter(|d| match &d.owner {
            Owner::Job(job) => ended(c, job),
            Owner::NoJob => !c.profile.gpu.mps,
            Owner::Unknown | Owner::Gone => false,
        })
        .map(|d| d.pid.to_string())
        .collect();
    if unwanted.is_empty() {
        return sink.done(CHECK, Status::Pass, format!("{} MPS daemons", daemons.len()));
    }
    let mut f = sink.finding(CHECK, "mps", Status::Warn, None);
    f.action = Action::RestartService;
    f.fault = Fault::Program;
    f.text = "MPS daemon without a job".into();
    f.evidence = format!("pid {} runs nvidia-cuda-mps outside of all running jobs", unwanted.join(", "));
    f.mend = "echo quit | nvidia-cuda-mps-control; set profile.gpu.mps where it runs on purpose".into();
    sink.push(f);
}

fn usable(c: &Context<'_>, sink: &mut Sink<'_>) {
    const CHECK: &str = "gpu.usable";
    if !sink.on(CHECK) {
        return;
    }
    let answers = match &c.facts.gpu_node.usable {
        Some(Reading::Value(answers)) => answers,
        Some(Reading::Unknown(why) | Reading::Hung(why)) => return sink.unknown(CHECK, "cuda", None, why),
        Some(Reading::Unsupported) => return sink.done(CHECK, Status::Unsupported, "no libcuda.so.1"),
        None => return sink.done(CHECK, Status::Unsupported, "a job runs here"),
    };
    let fail = |sink: &mut Sink<'_>, device: Option<Device>, action: Action, text: &str, why: &str| {
        let mut f = sink.finding(CHECK, "cuda", Status::Fail, device);
        f.scope = if f.device.is_some() { Scope::Device } else { Scope::Node };
        f.action = action;
        f.text = text.into();
        f.evidence = format!("CUDA: {why}");
        f.mend = "reset the GPU; reboot the node if it stays".into();
        sink.push(f);
    };
    for (pci, answer) in answers {
        let device = device_at(c, pci).or_else(|| (!pci.is_empty()).then(|| super::pci_device(pci)));
        match answer {
            Usable::Works => {}
            // Compute mode "prohibited", or "exclusive" and taken: not this check's to say.
            Usable::Fails(why) if why.contains("CUDA error 46") => sink.unknown(CHECK, "cuda", device, why),
            Usable::Fails(why) => {
                let action = if device.is_some() { Action::ResetGpu } else { Action::Reboot };
                fail(sink, device, action, "CUDA cannot use it", why);
            }
            Usable::Hangs(why) => fail(sink, device, Action::Reboot, "CUDA hangs on it", why),
        }
    }
    // A GPU in MIG mode shows as its instances only.
    let whole = |d: &crate::facts::GpuDetails| d.mig_mode.value().is_none_or(|m| !m.current);
    for gpu in gpus(c).filter(|g| g.details.as_ref().is_some_and(|d| whole(d))) {
        let hidden = |pci: &&String| !answers.contains_key("") && !answers.contains_key(*pci);
        if let Some(pci) = gpu.pci.value().filter(hidden) {
            let device = Some(super::device(c, gpu));
            fail(sink, device, Action::ResetGpu, "CUDA does not show it", &format!("no device at {pci}"));
        }
    }
    sink.done(CHECK, Status::Pass, format!("context and copy on {} GPUs", answers.len()));
}

/// Xids that are a program's fault once and a GPU's when they come back: NVIDIA's workflows for 13, 31, 74 and 94.
fn repeated(c: &Context<'_>, sink: &mut Sink<'_>) {
    const CHECK: &str = "gpu.xid_repeat";
    if !sink.on(CHECK) {
        return;
    }
    let Some(kernel) = c.facts.kernel.value() else {
        return sink.done(CHECK, Status::Unknown, why_missing(&c.facts.kernel).unwrap_or("not read"));
    };
    let mut by_gpu: BTreeMap<&str, Vec<(u32, &SeenEvent)>> = BTreeMap::new();
    for seen in &kernel.events {
        if let (Kind::Xid { code, .. }, Some(pci)) = (&seen.event.kind, &seen.event.pci) {
            by_gpu.entry(pci).or_default().push((*code, seen));
        }
    }
    for (pci, events) in by_gpu {
        let Some(device) = device_at(c, pci) else { continue };
        for (code, what) in judge(&events) {
            let mut f: Finding = sink.finding(CHECK, "xidrepeat", Status::Warn, Some(device.clone()));
            f.scope = Scope::Device;
            f.action = Action::None;
            f.text = format!("Xid {code} {what}");
            f.evidence = format!("kernel log of the last 24 hours: Xid {code} {what}");
            f.mend = "test the GPU on the idle node: dcgmi diag -r 3, or the suite's gemm stage".into();
            sink.push(f);
        }
    }
    // What was not read may come back.
    match kernel.unread.first() {
        Some(why) => sink.done(CHECK, Status::Unknown, why.as_str()),
        None => sink.done(CHECK, Status::Pass, "nothing comes back"),
    }
}

fn judge(events: &[(u32, &SeenEvent)]) -> Vec<(u32, String)> {
    let of = |wanted: u32| events.iter().filter(move |(code, _)| *code == wanted).map(|(_, e)| *e);
    let mut found = Vec::new();
    let mut units: BTreeMap<(u32, u32), Vec<&SeenEvent>> = BTreeMap::new();
    for e in of(13) {
        if let (Some(gpc), Some(tpc)) =
            (number_after(&e.event.text, "GPC "), number_after(&e.event.text, "TPC "))
        {
            units.entry((gpc, tpc)).or_default().push(e);
        }
    }
    if let Some(((gpc, tpc), _)) = units.iter().find(|(_, events)| several_programs(events)) {
        found.push((13, format!("in several programs at GPC {gpc} TPC {tpc}")));
    }
    if several_programs(&of(31).collect::<Vec<_>>()) {
        found.push((31, "in several programs".into()));
    }
    let contained: u64 = of(94).map(|e| e.count).sum();
    if contained >= CONTAINED_A_DAY {
        found.push((94, format!("{contained} times")));
    }
    let mut links: BTreeMap<u32, u64> = BTreeMap::new();
    for e in of(74) {
        if let Some(link) = bad_link(&e.event.text) {
            *links.entry(link).or_default() += e.count;
        }
    }
    if let Some((link, n)) = links.iter().find(|(_, n)| **n > LINK_ERRORS_A_DAY) {
        found.push((74, format!("{n} times on link {link}")));
    }
    found
}

/// Two programs, some time apart: one job's ranks fail together.
fn several_programs(events: &[&SeenEvent]) -> bool {
    let pid = |e: &SeenEvent| match e.event.kind {
        Kind::Xid { pid, .. } => pid,
        _ => None,
    };
    events.iter().any(|a| {
        events.iter().any(|b| {
            let (one, other) = (pid(a), pid(b));
            one.is_some() && other.is_some() && one != other && (a.seen - b.seen).abs() >= APART
        })
    })
}

/// The decimal number behind a word.
fn number_after(text: &str, word: &str) -> Option<u32> {
    let rest = text.split_once(word)?.1;
    rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// Link of an Xid 74 whose first register has bit 4 or 5.
fn bad_link(text: &str) -> Option<u32> {
    let link = number_after(text, "on link ")?;
    let registers = text.split_once("on link ")?.1.split_once('(')?.1;
    let first = registers.split([',', ')']).next()?.trim();
    let register = u32::from_str_radix(first.strip_prefix("0x")?, 16).ok()?;
    (register & 0x30 != 0).then_some(link)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_and_units_are_read_from_the_text() {
        let text = "NVRM: Xid (PCI:3a1c:19:00): 74, NVLink: fatal error detected on link 14(0x10, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)";
        assert_eq!(bad_link(text), Some(14));
        assert_eq!(bad_link(&text.replace("0x10,", "0x1,")), None);
        assert_eq!(bad_link("on link x"), None);
        let text = "Graphics SM Warp Exception on (GPC 3, TPC 12, SM 0): Out Of Range Address";
        assert_eq!((number_after(text, "GPC "), number_after(text, "TPC ")), (Some(3), Some(12)));
    }
}
