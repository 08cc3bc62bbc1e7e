//! GPU checks that decide by state: NVML and PCI sysfs.

use super::{Context, Sink, why_missing};
use crate::facts::{GpuDetails, GpuSurvey, NvmlFacts, NvmlGpu, PciFacts, PciGpu, Reading};
use crate::mode::Mode;
use crate::verdict::{Action, Device, Fault, Finding, Scope, Status};

mod links;
mod memory;
mod setup;
mod usage;

/// NVLinks may still train this long after boot, in seconds.
const NVLINK_GRACE: f64 = 600.0;
/// Link width that PCI sysfs shows for a device that is gone.
const WIDTH_GONE: u32 = 63;
/// Degrees below the slowdown threshold at which a GPU is warned about.
const TEMPERATURE_MARGIN: u32 = 3;

/// Checks of state that every pass makes of every GPU that answers.
const STATES: [&str; 7] = [
    "gpu.recovery_action",
    "gpu.remap_failure",
    "gpu.remap_pending",
    "gpu.ecc_sram_ue",
    "gpu.ecc_dram_ue",
    "gpu.nvlink_state",
    "gpu.temp",
];

pub fn run(c: &Context<'_>, sink: &mut Sink<'_>) {
    count(c, sink);
    bus(c, sink);
    driver_hang(c, sink);
    if let Some(why) = why_missing(&c.facts.nvml) {
        // gpu.count and gpu.driver_hang say it as findings; here it only must not look like a pass.
        for check in STATES.into_iter().filter(|check| sink.on(check)).collect::<Vec<_>>() {
            sink.done(check, Status::Unknown, why);
        }
    }
    if let Some(nvml) = c.facts.nvml.value() {
        for gpu in nvml.gpus.iter().filter(|g| !g.lost) {
            let device = device(c, gpu);
            recovery_action(sink, gpu, &device);
            remap(c, sink, gpu, &device);
            ecc(sink, gpu, &device);
            nvlinks(c, sink, gpu, &device);
            temperature(sink, gpu, &device);
        }
        let seen = nvml.gpus.len();
        for check in STATES {
            if sink.on(check) {
                let status = if seen == 0 { Status::Unsupported } else { Status::Pass };
                sink.done(check, status, format!("{seen} GPUs"));
            }
        }
    }
    width(c, sink);
    memory::run(c, sink);
    links::run(c, sink);
    setup::run(c, sink);
    usage::run(c, sink);
}

/// One GPU that answered.
struct Seen<'a> {
    gpu: &'a NvmlGpu,
    details: &'a GpuDetails,
    survey: &'a GpuSurvey,
    device: &'a Device,
    pci: Option<&'a str>,
}

impl Seen<'_> {
    /// A finding about this GPU.
    fn finding(&self, sink: &Sink<'_>, check: &str, token: &str, status: Status) -> Finding {
        let mut f = sink.finding(check, token, status, Some(self.device.clone()));
        f.scope = Scope::Device;
        f
    }
}

/// GPUs that answer.
fn gpus<'a>(c: &'a Context<'_>) -> impl Iterator<Item = &'a NvmlGpu> {
    c.facts.nvml.value().map_or(&[][..], |n| &n.gpus).iter().filter(|g| !g.lost)
}

/// Lets `look` judge every GPU that answers, and says what the check did: `look` gives the reading it rests on.
fn each(
    c: &Context<'_>,
    sink: &mut Sink<'_>,
    check: &str,
    token: &str,
    look: impl Fn(&Context<'_>, &mut Sink<'_>, &Seen<'_>) -> Reading<()>,
) {
    if !sink.on(check) {
        return;
    }
    if let Some(why) = why_missing(&c.facts.nvml) {
        return sink.done(check, Status::Unknown, why);
    }
    let none = GpuSurvey::default();
    let mut judged = 0;
    for gpu in gpus(c) {
        let Some(details) = &gpu.details else { continue };
        let device = device(c, gpu);
        let seen = Seen {
            gpu,
            details,
            survey: gpu.survey.as_deref().unwrap_or(&none),
            device: &device,
            pci: gpu.pci.value().map(String::as_str),
        };
        match look(c, sink, &seen) {
            Reading::Value(()) => judged += 1,
            Reading::Unsupported => {}
            Reading::Unknown(why) | Reading::Hung(why) => sink.unknown(check, token, Some(device), &why),
        }
    }
    match judged {
        0 => sink.done(check, Status::Unsupported, "no GPU has such a value, or the profile expects none"),
        n => sink.done(check, Status::Pass, format!("{n} GPUs")),
    }
}

/// Judges a reading, if there is one.
fn judged<T>(reading: &Reading<T>, judge: impl FnOnce(&T)) -> Reading<()> {
    match reading {
        Reading::Value(v) => {
            judge(v);
            Reading::Value(())
        }
        Reading::Unsupported => Reading::Unsupported,
        Reading::Unknown(why) => Reading::Unknown(why.clone()),
        Reading::Hung(why) => Reading::Hung(why.clone()),
    }
}

/// Rise of a counter a second, over the window or longer: a burst between two quick passes is no rate.
fn rate(c: &Context<'_>, seen: &Seen<'_>, name: &str, window: f64) -> Option<f64> {
    let key = format!("gpu/{}/{name}", seen.pci?);
    let watched = c.counters.watched(&key, window).max(window);
    #[allow(clippy::cast_precision_loss, reason = "a rate needs no more than 53 bits")]
    c.counters.rise(&key, window).map(|n| n as f64 / watched)
}

/// A job holds the GPU, and this is neither its beginning nor its end: it may finish.
fn busy(c: &Context<'_>, device: &Device) -> bool {
    c.mode == Mode::Periodic && device.index.is_some_and(|i| c.facts.jobs.iter().any(|j| j.gpus.contains(&i)))
}

/// Names a GPU by its minor number; by NVML's index where the minor is unknown.
fn device(c: &Context<'_>, gpu: &NvmlGpu) -> Device {
    let pci = gpu.pci.value();
    let minor = gpu.minor.value().copied().or_else(|| pci.and_then(|p| c.inventory.get(p)).map(|k| k.minor));
    Device::gpu(minor.unwrap_or(gpu.index), pci.map_or("", String::as_str))
}

/// The GPU at a PCI address, by what NVML says now or said last.
pub fn device_at(c: &Context<'_>, pci: &str) -> Option<Device> {
    let now = c.facts.nvml.value().and_then(|n| {
        n.gpus.iter().find(|g| g.pci.value().is_some_and(|p| same_slot(p, pci))).map(|g| device(c, g))
    });
    now.or_else(|| {
        c.inventory
            .iter()
            .find(|(known, _)| same_slot(known, pci))
            .map(|(known, k)| Device::gpu(k.minor, known))
    })
}

/// Compares PCI addresses without the function: Xid lines write `0000:5d:00`, sysfs `0000:5d:00.0`.
pub fn same_slot(a: &str, b: &str) -> bool {
    let slot = |t: &str| t.split('.').next().unwrap_or_default().to_lowercase();
    !a.is_empty() && slot(a) == slot(b)
}

fn count(c: &Context<'_>, sink: &mut Sink<'_>) {
    if !sink.on("gpu.count") {
        return;
    }
    let expected = c.profile.gpu_count.unwrap_or(0);
    let mut seen = Vec::new();
    let fail = |sink: &mut Sink<'_>, token: &str, device: Option<Device>, text: &str, evidence: String| {
        let mut f = sink.finding("gpu.count", token, Status::Fail, device);
        f.text = text.into();
        f.evidence = evidence;
        f.mend = "reboot the node; if the GPU stays away, reseat or replace it".into();
        sink.push(f);
    };
    match &c.facts.nvml {
        Reading::Value(NvmlFacts { library_missing: Some(why), .. }) if expected > 0 => {
            let mut f = sink.finding("gpu.count", "nvmllib", Status::Fail, None);
            f.fault = Fault::Setup;
            f.action = Action::Repair;
            f.text = "NVML library missing".into();
            f.evidence = why.clone();
            f.mend = "install the GPU driver's libnvidia-ml.so.1, or set paths.nvml".into();
            sink.push(f);
        }
        Reading::Value(NvmlFacts { library_missing: Some(_), .. }) => {
            seen.push("no NVML library".to_string())
        }
        Reading::Value(NvmlFacts { refused: Some(why), .. }) => {
            // Counted nothing: gpu.driver_hang says it.
            seen.push("NVML did not start".to_string());
            if expected > 0 {
                sink.unknown("gpu.count", "gpucount", None, why);
            }
        }
        Reading::Value(n) => {
            seen.push(format!("NVML {}", n.count));
            for gpu in n.gpus.iter().filter(|g| g.lost) {
                let device = lost_device(c, gpu);
                let mut f = sink.finding("gpu.count", "gpulost", Status::Fail, Some(device));
                f.scope = Scope::Device;
                f.text = "GPU is lost".into();
                f.evidence = format!("NVML index {}: GPU is lost", gpu.index);
                f.mend = "reboot the node; if it comes back, reseat or replace the GPU".into();
                sink.push(f);
            }
            if n.count < expected {
                let text = format!("{} of {expected} GPUs", n.count);
                fail(sink, "gpucount", None, &text, format!("NVML counts {}, expected {expected}", n.count));
            }
        }
        other => {
            if let (Some(why), true) = (why_missing(other), expected > 0) {
                sink.unknown("gpu.count", "gpucount", None, &format!("NVML: {why}"));
            }
        }
    }
    let nvml_short = c
        .facts
        .nvml
        .value()
        .is_some_and(|n| n.library_missing.is_none() && n.refused.is_none() && n.count < expected);
    let mut other = |what: &str, reading: Option<usize>, why: Option<&str>| match (reading, why) {
        (Some(n), _) => {
            seen.push(format!("{what} {n}"));
            if n < expected as usize && !nvml_short {
                let text = format!("{n} of {expected} GPUs in {what}");
                fail(sink, "gpucount", None, &text, format!("{what} shows {n}, expected {expected}"));
            }
        }
        (None, Some(why)) if expected > 0 => {
            sink.unknown("gpu.count", "gpucount", None, &format!("{what}: {why}"))
        }
        _ => {}
    };
    other("PCI", c.facts.pci.value().map(|p| p.gpus.len()), why_missing(&c.facts.pci));
    other("/dev", c.facts.gpu_nodes.value().map(Vec::len), why_missing(&c.facts.gpu_nodes));
    let status = if expected == 0 { Status::Unsupported } else { Status::Pass };
    let expectation = c.profile.gpu_count.map_or("no profile.gpu_count".into(), |n| format!("expected {n}"));
    sink.done("gpu.count", status, format!("{}; {expectation}", seen.join(", ")));
}

/// A lost GPU answers nothing, often not even its address: what the node had at that place before counts.
fn lost_device(c: &Context<'_>, gpu: &NvmlGpu) -> Device {
    if gpu.pci.value().is_some() || gpu.minor.value().is_some() {
        return device(c, gpu);
    }
    // NVML's index follows the PCI order, as the inventory's keys do.
    match c.inventory.iter().nth(gpu.index as usize) {
        Some((pci, known)) => Device::gpu(known.minor, pci),
        None => Device::gpu(gpu.index, ""),
    }
}

fn gone(gpu: &PciGpu) -> bool {
    gpu.config_all_ones.value() == Some(&true) || gpu.width.value() == Some(&WIDTH_GONE)
}

fn bus(c: &Context<'_>, sink: &mut Sink<'_>) {
    if !sink.on("gpu.bus") {
        return;
    }
    match &c.facts.pci {
        Reading::Value(PciFacts { gpus, .. }) => {
            for gpu in gpus.iter().filter(|g| gone(g)) {
                let device = device_at(c, &gpu.pci).unwrap_or_else(|| pci_device(&gpu.pci));
                let mut f = sink.finding("gpu.bus", "gpubus", Status::Fail, Some(device));
                f.scope = Scope::Device;
                f.text = "does not answer on the PCI bus".into();
                f.evidence = format!("{}: config space reads all ones or link width 63", gpu.pci);
                f.mend = "reboot the node; if it comes back, reseat or replace the GPU".into();
                sink.push(f);
            }
            let status = if gpus.is_empty() { Status::Unsupported } else { Status::Pass };
            sink.done("gpu.bus", status, format!("{} GPU functions", gpus.len()));
        }
        other => {
            if let Some(why) = why_missing(other) {
                sink.unknown("gpu.bus", "gpubus", None, why);
            }
        }
    }
}

/// A GPU known by its address only: no job can be told to hold it.
fn pci_device(pci: &str) -> Device {
    Device {
        kind: crate::verdict::DeviceKind::Gpu,
        name: pci.to_string(),
        index: None,
        pci: Some(pci.to_string()),
    }
}

fn driver_hang(c: &Context<'_>, sink: &mut Sink<'_>) {
    if !sink.on("gpu.driver_hang") {
        return;
    }
    let (text, why) = match &c.facts.nvml {
        Reading::Hung(why) | Reading::Value(NvmlFacts { hung: Some(why), .. }) => {
            let read = c.facts.nvml.value().map_or(0, |n| n.gpus.len());
            ("GPU driver does not answer", format!("NVML: {why} after {read} GPUs"))
        }
        // Without GPUs in the profile the library may well lie there for nothing.
        Reading::Value(NvmlFacts { refused: Some(why), .. }) if c.profile.gpu_count.unwrap_or(0) > 0 => {
            ("GPU driver does not start", why.clone())
        }
        Reading::Value(NvmlFacts { incomplete: Some(why), .. }) => {
            sink.unknown("gpu.driver_hang", "drvhang", None, &format!("NVML: {why}"));
            return;
        }
        Reading::Value(n) if n.library_missing.is_some() || n.refused.is_some() => {
            sink.done("gpu.driver_hang", Status::Unsupported, "no GPU driver");
            return;
        }
        Reading::Value(_) => {
            sink.done("gpu.driver_hang", Status::Pass, "NVML answers");
            return;
        }
        Reading::Unknown(why) => {
            sink.done("gpu.driver_hang", Status::Unknown, why.as_str());
            return;
        }
        Reading::Unsupported => return,
    };
    let mut f = sink.finding("gpu.driver_hang", "drvhang", Status::Fail, None);
    f.text = text.into();
    f.evidence = why;
    f.mend = "reboot the node; look for processes in state D, Xid 119 before, and a driver that was upgraded"
        .into();
    sink.push(f);
}

fn recovery_action(sink: &mut Sink<'_>, gpu: &NvmlGpu, device: &Device) {
    if !sink.on("gpu.recovery_action") {
        return;
    }
    let action = match &gpu.recovery_action {
        Reading::Value(0) | Reading::Unsupported => return,
        Reading::Value(action) => *action,
        Reading::Unknown(why) | Reading::Hung(why) => {
            sink.unknown("gpu.recovery_action", "recovery", Some(device.clone()), why);
            return;
        }
    };
    // nvml.h, nvmlDeviceGpuRecoveryAction_t. 5 was "bus reset" in driver 580 and is "recover IMEX domain"
    // since: too unsure to take a node away.
    let (status, does, text) = match action {
        1 => (Status::Fail, Action::ResetGpu, "driver asks for a GPU reset"),
        2 => (Status::Fail, Action::Reboot, "driver asks for a reboot"),
        3 => (Status::Fail, Action::ResetGpu, "driver asks to drain peer-to-peer"),
        4 => (Status::Fail, Action::ResetGpu, "driver asks to drain and reset"),
        6 => (Status::Fail, Action::ResetGpu, "driver asks for a bus reset"),
        7 => (Status::Fail, Action::Reboot, "driver asks for a system reboot"),
        5 => (Status::Warn, Action::RestartService, "driver asks to recover the IMEX domain"),
        _ => (Status::Warn, Action::None, "driver asks for an unknown recovery action"),
    };
    let mut f = sink.finding("gpu.recovery_action", "recovery", status, Some(device.clone()));
    f.scope = Scope::Device;
    f.action = does;
    f.text = text.into();
    f.evidence = format!("NVML recovery action {action}");
    f.mend = "drain, then do what the driver asks; check the kernel log for the Xid before".into();
    sink.push(f);
}

fn remap(c: &Context<'_>, sink: &mut Sink<'_>, gpu: &NvmlGpu, device: &Device) {
    if sink.on("gpu.remap_failure") {
        match &gpu.remap_failure {
            Reading::Value(true) => {
                let mut f = sink.finding("gpu.remap_failure", "rowremap", Status::Fail, Some(device.clone()));
                f.scope = Scope::Device;
                f.action = Action::Repair;
                f.text = "row remapping failed".into();
                f.evidence = "NVML: row remapping failure flag is set".into();
                f.mend = "replace the GPU: NVIDIA's RMA rule".into();
                sink.push(f);
            }
            Reading::Unknown(why) | Reading::Hung(why) => {
                sink.unknown("gpu.remap_failure", "rowremap", Some(device.clone()), why);
            }
            _ => {}
        }
    }
    if let (Some(why), true) = (why_missing(&gpu.remap_pending), sink.on("gpu.remap_pending")) {
        sink.unknown("gpu.remap_pending", "remappend", Some(device.clone()), why);
    }
    if sink.on("gpu.remap_pending") && gpu.remap_pending.value() == Some(&true) {
        let busy = busy(c, device);
        let status = if busy { Status::Warn } else { Status::Fail };
        let mut f = sink.finding("gpu.remap_pending", "remappend", status, Some(device.clone()));
        f.scope = Scope::Device;
        f.action = Action::ResetGpu;
        f.text = "row remapping waits for a GPU reset".into();
        f.evidence = if busy {
            "NVML: row remapping pending; a job holds the GPU and may finish".into()
        } else {
            "NVML: row remapping pending".into()
        };
        f.mend = "reset the GPU before the next job".into();
        sink.push(f);
    }
}

fn ecc(sink: &mut Sink<'_>, gpu: &NvmlGpu, device: &Device) {
    let mut look = |check: &str, token: &str, what: &str, reading: &Reading<u64>, status: Status| {
        if !sink.on(check) {
            return;
        }
        match reading {
            Reading::Value(n) if *n > 0 => {
                let mut f = sink.finding(check, token, status, Some(device.clone()));
                f.scope = Scope::Device;
                f.action = Action::ResetGpu;
                f.text = format!("{n} uncorrectable {what} errors");
                f.evidence = format!("NVML: {n} uncorrectable {what} errors since driver load");
                f.mend = "reset the GPU; replace it if they come back".into();
                sink.push(f);
            }
            Reading::Unknown(why) | Reading::Hung(why) => {
                sink.unknown(check, token, Some(device.clone()), why)
            }
            _ => {}
        }
    };
    look("gpu.ecc_sram_ue", "eccsram", "SRAM", &gpu.ecc_sram_ue, Status::Fail);
    look("gpu.ecc_dram_ue", "eccdram", "memory", &gpu.ecc_dram_ue, Status::Warn);
}

fn nvlinks(c: &Context<'_>, sink: &mut Sink<'_>, gpu: &NvmlGpu, device: &Device) {
    if !sink.on("gpu.nvlink_state") {
        return;
    }
    let down = |links: &std::collections::BTreeMap<u32, bool>| -> Vec<String> {
        links.iter().filter(|(_, active)| !**active).map(|(link, _)| link.to_string()).collect()
    };
    let (active, down) = match &gpu.nvlinks {
        Reading::Value(links) => (links.values().filter(|a| **a).count(), down(links)),
        Reading::Unsupported => (0, Vec::new()),
        Reading::Unknown(why) | Reading::Hung(why) => {
            sink.unknown("gpu.nvlink_state", "nvlink", Some(device.clone()), why);
            return;
        }
    };
    let Some(expected) = c.profile.nvlinks_per_gpu else { return };
    if active >= expected as usize {
        return;
    }
    let young = c.facts.uptime < NVLINK_GRACE;
    // Links train once the fabric knows the GPU: that it does not is gpu.fabric_state's to say.
    let joining = gpu.details.as_ref().is_some_and(|d| links::fabric_incomplete(&d.fabric));
    let status = if young || joining { Status::Warn } else { Status::Fail };
    let mut f = sink.finding("gpu.nvlink_state", "nvlink", status, Some(device.clone()));
    f.scope = Scope::Device;
    f.action = Action::ResetGpu;
    f.text = format!("{active} of {expected} NVLinks up");
    f.evidence = format!(
        "active {active}, expected {expected}; down: {}{}",
        if down.is_empty() { "not listed".to_string() } else { down.join(",") },
        match (young, joining) {
            (true, _) => "; less than 10 minutes after boot",
            (false, true) => "; the fabric is not complete",
            (false, false) => "",
        }
    );
    f.mend =
        "reset the GPUs of the fabric; if it stays, reboot, then check fabric manager and baseboard".into();
    sink.push(f);
}

fn temperature(sink: &mut Sink<'_>, gpu: &NvmlGpu, device: &Device) {
    if !sink.on("gpu.temp") {
        return;
    }
    let (Some(now), Some(limit)) = (gpu.temperature.value(), gpu.slowdown_temperature.value()) else {
        if let Some(why) = why_missing(&gpu.temperature) {
            sink.unknown("gpu.temp", "gputemp", Some(device.clone()), why);
        }
        return;
    };
    let status = match limit.checked_sub(*now) {
        None | Some(0) => Status::Fail,
        Some(margin) if margin <= TEMPERATURE_MARGIN => Status::Warn,
        Some(_) => return,
    };
    let mut f = sink.finding("gpu.temp", "gputemp", status, Some(device.clone()));
    f.scope = Scope::Device;
    f.action = Action::Repair;
    f.text = format!("{now} C, slows down at {limit} C");
    f.evidence = format!("NVML temperature {now} C, slowdown threshold {limit} C");
    f.mend = "check cooling: fans, coolant flow, dust, inlet temperature".into();
    sink.push(f);
}

fn width(c: &Context<'_>, sink: &mut Sink<'_>) {
    if !sink.on("gpu.pcie_width") {
        return;
    }
    let Some(PciFacts { gpus, .. }) = c.facts.pci.value() else {
        // gpu.bus says why as a finding.
        let status = if why_missing(&c.facts.pci).is_some() { Status::Unknown } else { Status::Unsupported };
        return sink.done("gpu.pcie_width", status, why_missing(&c.facts.pci).unwrap_or("no PCI bus"));
    };
    // A device that is gone is gpu.bus's finding.
    for gpu in gpus.iter().filter(|g| !gone(g)) {
        let (Some(width), Some(expected)) =
            (gpu.width.value(), c.profile.pcie_width.as_ref().or(gpu.max_width.value()))
        else {
            continue;
        };
        if width < expected {
            let device = device_at(c, &gpu.pci).unwrap_or_else(|| pci_device(&gpu.pci));
            let mut f = sink.finding("gpu.pcie_width", "pciewidth", Status::Fail, Some(device));
            f.scope = Scope::Device;
            f.action = Action::Repair;
            f.text = format!("PCIe x{width} instead of x{expected}");
            f.evidence = format!("{}: current_link_width {width}, expected {expected}", gpu.pci);
            f.mend = "reseat the GPU or its riser; reboot to retrain the link".into();
            sink.push(f);
        }
    }
    let status = if gpus.is_empty() { Status::Unsupported } else { Status::Pass };
    sink.done("gpu.pcie_width", status, format!("{} GPUs", gpus.len()));
}
