//! AMD GPUs, by amdgpu's sysfs.

use super::{Context, Sink, why_missing};
use crate::facts::{AmdGpu, Reading};
use crate::mode::Mode;
use crate::verdict::{Action, Device, Finding, Scope, Status};

/// RAS block of the memory: what is bad there is taken out of use page by page.
const MEMORY: &str = "umc";
/// Corrected errors of one GPU in a day that are worth a look.
const CORRECTED_A_DAY: u64 = 100;
/// Millidegrees below the limit at which a GPU is warned about.
const MARGIN: i64 = 3000;

/// Share of its time that slows a GPU down enough to be told.
const SLOWED: f64 = 0.01;
/// Share of its time that a GPU slowed by heat is broken from.
const SLOWED_BY_HEAT: f64 = 0.6;
/// Time over which shares are judged, in seconds.
const SLOWED_WINDOW: f64 = 600.0;
/// xGMI links may still train this long after boot, in seconds.
const XGMI_GRACE: f64 = 600.0;
/// Causes of slowing down that are judged, with whether they are heat. The power cap is everyday.
const SLOWED_BY: [(&str, bool, &str); 4] = [
    ("prochot", false, "an outside brake (PROCHOT)"),
    ("socket_thm", true, "heat of the socket"),
    ("vr_thm", true, "heat of the regulators"),
    ("hbm_thm", true, "heat of the memory"),
];

const CHECKS: [(&str, &str); 8] = [
    ("amd.count", "amdcount"),
    ("amd.bus", "amdbus"),
    ("amd.ras_ue", "amdue"),
    ("amd.ras_ce", "amdce"),
    ("amd.bad_pages", "amdpages"),
    ("amd.links", "amdlink"),
    ("amd.temp", "amdtemp"),
    ("amd.throttle", "amdslow"),
];

pub fn run(c: &Context<'_>, sink: &mut Sink<'_>) {
    let gpus = match &c.facts.amd {
        Reading::Value(gpus) => gpus,
        other => {
            // Nothing is read where the driver is not loaded and the profile names no such GPU.
            let expected = c.profile.amd.gpu_count.is_some();
            let why = why_missing(other).filter(|_| expected);
            for (check, token) in CHECKS {
                if !sink.on(check) {
                    continue;
                }
                match why {
                    Some(why) if check == "amd.count" => sink.unknown(check, token, None, why),
                    Some(why) => sink.done(check, Status::Unknown, why),
                    None => sink.done(check, Status::Unsupported, "no AMD GPU"),
                }
            }
            return;
        }
    };
    count(c, sink, gpus);
    for (index, gpu) in gpus.iter().enumerate() {
        let seen = Seen { gpu, device: Device::gpu(u32::try_from(index).unwrap_or(0), &gpu.pci) };
        if bus(sink, &seen) {
            continue;
        }
        ras(c, sink, &seen);
        bad_pages(c, sink, &seen);
        links(c, sink, &seen, gpus);
        temperature(sink, &seen);
        throttle(c, sink, &seen);
    }
    for (check, _) in CHECKS.iter().skip(1) {
        if sink.on(check) {
            let status = if gpus.is_empty() { Status::Unsupported } else { Status::Pass };
            sink.done(check, status, format!("{} AMD GPUs", gpus.len()));
        }
    }
}

struct Seen<'a> {
    gpu: &'a AmdGpu,
    device: Device,
}

impl Seen<'_> {
    fn finding(&self, sink: &Sink<'_>, check: &str, status: Status, action: Action) -> Finding {
        let token = CHECKS.iter().find(|(id, _)| *id == check).map_or("amd", |(_, token)| token);
        let mut f = sink.finding(check, token, status, Some(self.device.clone()));
        f.scope = Scope::Device;
        f.action = action;
        f
    }
}

fn count(c: &Context<'_>, sink: &mut Sink<'_>, gpus: &[AmdGpu]) {
    if !sink.on("amd.count") {
        return;
    }
    let bound = gpus.iter().filter(|g| g.bound).count();
    let Some(expected) = c.profile.amd.gpu_count else {
        return sink.done("amd.count", Status::Unsupported, format!("{bound}; no profile.amd.gpu_count"));
    };
    if bound < expected as usize {
        let mut f = sink.finding("amd.count", "amdcount", Status::Fail, None);
        f.text = format!("{bound} of {expected} AMD GPUs");
        f.evidence =
            format!("PCI shows {}, the driver amdgpu holds {bound}, expected {expected}", gpus.len());
        f.mend = "reboot the node; if the GPU stays away, reseat or replace it".into();
        sink.push(f);
    }
    sink.done("amd.count", Status::Pass, format!("{bound}; expected {expected}"));
}

/// True when the GPU is gone: then nothing else of it means anything.
fn bus(sink: &mut Sink<'_>, seen: &Seen<'_>) -> bool {
    let gone = seen.gpu.config_all_ones.value() == Some(&true);
    if gone && sink.on("amd.bus") {
        let mut f = seen.finding(sink, "amd.bus", Status::Fail, Action::Reboot);
        f.text = "does not answer on the PCI bus".into();
        f.evidence = format!("{}: config space reads all ones", seen.gpu.pci);
        f.mend = "reboot the node; if it comes back, reseat or replace the GPU".into();
        sink.push(f);
    }
    gone
}

fn ras(c: &Context<'_>, sink: &mut Sink<'_>, seen: &Seen<'_>) {
    let blocks = match &seen.gpu.ras {
        Reading::Value(blocks) => blocks,
        other => {
            if let (Some(why), true) = (why_missing(other), sink.on("amd.ras_ue")) {
                sink.unknown("amd.ras_ue", "amdue", Some(seen.device.clone()), why);
            }
            return;
        }
    };
    let bad: Vec<String> =
        blocks.iter().filter(|(_, n)| n.ue > 0).map(|(block, n)| format!("{} in {block}", n.ue)).collect();
    if sink.on("amd.ras_ue") && !bad.is_empty() {
        // Memory takes its bad pages out of use: amd.bad_pages decides.
        let elsewhere = blocks.iter().any(|(block, n)| n.ue > 0 && block != MEMORY);
        let status = if elsewhere { Status::Fail } else { Status::Warn };
        let mut f = seen.finding(sink, "amd.ras_ue", status, Action::Reboot);
        f.text = format!("uncorrectable errors: {}", bad.join(", "));
        f.evidence = format!("amdgpu RAS since driver load: {}", bad.join(", "));
        f.mend = "reboot the node; replace the GPU if they come back".into();
        sink.push(f);
    }
    let key = format!("amd/{}/ras_ce", seen.gpu.pci);
    let rise = c.counters.rise(&key, 86_400.0).unwrap_or(0);
    if sink.on("amd.ras_ce") && rise > CORRECTED_A_DAY {
        let mut f = seen.finding(sink, "amd.ras_ce", Status::Warn, Action::ResetGpu);
        f.text = format!("{rise} corrected errors within a day");
        f.evidence = format!("amdgpu RAS: corrected errors of all blocks rose by {rise} within 24 hours");
        f.mend = "test the GPU's memory on the idle node".into();
        sink.push(f);
    }
}

fn bad_pages(c: &Context<'_>, sink: &mut Sink<'_>, seen: &Seen<'_>) {
    if !sink.on("amd.bad_pages") {
        return;
    }
    let pages = match &seen.gpu.bad_pages {
        Reading::Value(pages) => pages,
        other => {
            if let Some(why) = why_missing(other) {
                sink.unknown("amd.bad_pages", "amdpages", Some(seen.device.clone()), why);
            }
            return;
        }
    };
    let busy = c.mode == Mode::Periodic
        && seen.device.index.is_some_and(|i| c.facts.jobs.iter().any(|j| j.gpus.contains(&i)));
    let (status, action, text) = match (pages.failed, pages.pending) {
        (0, 0) => return,
        (0, n) if busy => (Status::Warn, Action::ResetGpu, format!("{n} bad memory pages wait for a reset")),
        (0, n) => (Status::Fail, Action::ResetGpu, format!("{n} bad memory pages wait for a reset")),
        (n, _) => {
            (Status::Fail, Action::Repair, format!("{n} bad memory pages could not be taken out of use"))
        }
    };
    let mut f = seen.finding(sink, "amd.bad_pages", status, action);
    f.evidence = format!(
        "amdgpu: {} bad pages out of use, {} pending, {} could not be",
        pages.reserved, pages.pending, pages.failed
    );
    f.text = text;
    f.mend = "reset the GPU before the next job; replace it if pages cannot be taken out of use".into();
    sink.push(f);
}

fn links(c: &Context<'_>, sink: &mut Sink<'_>, seen: &Seen<'_>, all: &[AmdGpu]) {
    if !sink.on("amd.links") {
        return;
    }
    let wanted = c.profile.amd.pcie_width.as_ref().or(seen.gpu.max_width.value());
    if let (Some(width), Some(wanted)) = (seen.gpu.width.value(), wanted)
        && width < wanted
    {
        let mut f = seen.finding(sink, "amd.links", Status::Fail, Action::Repair);
        f.text = format!("PCIe x{width} instead of x{wanted}");
        f.evidence = format!("{}: current_link_width {width}, expected {wanted}", seen.gpu.pci);
        f.mend = "reseat the GPU or its riser; reboot to retrain the link".into();
        sink.push(f);
    }
    let hive = seen.gpu.hive.value();
    let others: Vec<&String> = all.iter().filter_map(|g| g.hive.value()).collect();
    let alone = hive.is_none_or(|own| others.iter().filter(|o| **o == own).count() * 2 <= all.len());
    xgmi_links(c, sink, seen);
    if c.profile.amd.xgmi && alone {
        let mut f = seen.finding(sink, "amd.links", Status::Fail, Action::Reboot);
        f.token = "amdxgmi".into();
        f.text = "not in the xGMI hive of the other GPUs".into();
        f.evidence = format!("xgmi_hive_id {}", hive.map_or("is not there", String::as_str));
        f.mend = "reboot the node; reseat or replace the GPU if its xGMI links stay away".into();
        sink.push(f);
    }
}

/// Links that the firmware calls down: they train after boot, and one read may come too early.
fn xgmi_links(c: &Context<'_>, sink: &mut Sink<'_>, seen: &Seen<'_>) {
    let Some(wanted) = c.profile.amd.xgmi_links else { return };
    let links = match &seen.gpu.metrics {
        Reading::Value(m) if !m.xgmi_links.is_empty() => &m.xgmi_links,
        Reading::Value(_) | Reading::Unsupported => return,
        Reading::Unknown(why) | Reading::Hung(why) => {
            return sink.unknown("amd.links", "amdlink", Some(seen.device.clone()), why);
        }
    };
    let up = links.values().filter(|up| **up).count();
    if up >= wanted as usize {
        return;
    }
    let young = c.facts.uptime < XGMI_GRACE;
    let status = if young { Status::Warn } else { Status::Fail };
    let mut f = seen.finding(sink, "amd.links", status, Action::Reboot);
    let down: Vec<String> = links.iter().filter(|(_, up)| !**up).map(|(n, _)| n.to_string()).collect();
    f.token = "amdxgmi".into();
    f.text = format!("{up} of {wanted} xGMI links up");
    f.evidence = format!(
        "gpu_metrics: {up} links up, expected {wanted}; down: {}{}",
        if down.is_empty() { "not listed".to_string() } else { down.join(",") },
        if young { "; less than 10 minutes after boot" } else { "" }
    );
    f.mend = "reboot the node; reseat or replace the GPU if its xGMI links stay away".into();
    sink.push_after(f, 3);
}

/// Slowed down by heat or from outside, by the firmware's own count of cycles; by its momentary bits on older GPUs.
fn throttle(c: &Context<'_>, sink: &mut Sink<'_>, seen: &Seen<'_>) {
    if !sink.on("amd.throttle") {
        return;
    }
    let metrics = match &seen.gpu.metrics {
        Reading::Value(m) => m,
        Reading::Unsupported => return,
        Reading::Unknown(why) | Reading::Hung(why) => {
            return sink.unknown("amd.throttle", "amdslow", Some(seen.device.clone()), why);
        }
    };
    let key = |name: &str| format!("amd/{}/{name}", seen.gpu.pci);
    let rise = |name: &str| c.counters.rise(&key(name), SLOWED_WINDOW);
    #[allow(clippy::cast_precision_loss, reason = "a share needs no more than 53 bits")]
    let share = |name: &str| {
        let cycles = rise("cycles").filter(|n| *n > 0)?;
        Some((rise(name)? as f64 / cycles as f64).min(1.0))
    };
    let shares = SLOWED_BY.iter().filter_map(|(name, heat, words)| Some((share(name)?, *heat, *words)));
    let worst = shares.max_by(|a, b| a.0.total_cmp(&b.0)).filter(|(share, ..)| *share > SLOWED);
    let now = metrics.slowed_by.as_ref().filter(|causes| !causes.is_empty());
    let (status, text, evidence) = match (worst, now) {
        (Some((share, heat, words)), _) => {
            let long = c.counters.watched(&key("cycles"), SLOWED_WINDOW) >= SLOWED_WINDOW;
            let fails = heat && long && share > SLOWED_BY_HEAT;
            (
                if fails { Status::Fail } else { Status::Warn },
                format!("slowed by {words}"),
                format!("gpu_metrics: {:.0} % of the last minutes slowed by {words}", share * 100.0),
            )
        }
        (None, Some(causes)) => (
            Status::Warn,
            format!("slowed by {}", causes.join(", ")),
            format!("gpu_metrics {}: slowed by {}", metrics.version, causes.join(", ")),
        ),
        (None, None) => return,
    };
    let mut f = seen.finding(sink, "amd.throttle", status, Action::Repair);
    f.text = text;
    f.evidence = evidence;
    f.mend = "check cooling, power supplies and the power brake; see the BMC's event log".into();
    if status == Status::Fail { sink.push_after(f, 1) } else { sink.push_quiet(f, 3) }
}

fn temperature(sink: &mut Sink<'_>, seen: &Seen<'_>) {
    if !sink.on("amd.temp") {
        return;
    }
    // The hottest by its own limit.
    let margins =
        seen.gpu.temperatures.iter().filter_map(|(label, t)| Some((t.critical? - t.now, label, t.now)));
    let Some((margin, label, now)) = margins.min().filter(|(margin, ..)| *margin <= MARGIN) else { return };
    let status = if margin <= 0 { Status::Fail } else { Status::Warn };
    let mut f = seen.finding(sink, "amd.temp", status, Action::Repair);
    f.text = format!("{label} at {} C, limit {} C", now / 1000, (now + margin) / 1000);
    f.evidence = format!("amdgpu hwmon: {label} {} C, critical {} C", now / 1000, (now + margin) / 1000);
    f.mend = "check cooling: fans, coolant flow, dust, inlet temperature".into();
    sink.push(f);
}
