//! How the GPUs and their driver are set up, and what slows or heats them.

use super::{Seen, busy, each, gpus, judged};
use crate::check::{Context, Sink};
use crate::facts::{Mode as Setting, NvmlFacts, Reading};
use crate::verdict::{Action, Fault, Status};

/// `nvmlClocksEventReason*` bits that mean trouble. Idle (0x1) and the power cap (0x4) are everyday.
const TROUBLE: [(u64, &str); 3] =
    [(0x40, "thermal slowdown"), (0x80, "external power brake"), (0x08, "hardware slowdown")];
/// `nvmlClocksEventReasonApplicationsClocksSetting`.
const CLOCKS_SET: u64 = 0x2;
/// Reads in a row before a slowed clock or an idle GPU's heat is worth a warning.
const PATIENCE: u32 = 3;
/// Share of the last ten minutes in thermal slowdown that is a fault.
const THERMAL_SHARE: f64 = 0.6;
/// Highest temperature of a GPU without work, degrees Celsius.
const IDLE_TEMPERATURE: u32 = 60;
/// `nvmlReturn_t`.
const DRIVER_NOT_LOADED: u32 = 9;
const LIB_RM_VERSION_MISMATCH: u32 = 18;
/// `NVML_DEVICE_ARCH_BLACKWELL`.
const BLACKWELL: u32 = 10;

pub fn run(c: &Context<'_>, sink: &mut Sink<'_>) {
    driver(c, sink);
    each(c, sink, "gpu.throttle", "throttle", throttle);
    each(c, sink, "gpu.idle_heat", "idleheat", idle_heat);
    each(c, sink, "gpu.persistence", "persist", persistence);
    each(c, sink, "gpu.modes", "eccmode", modes);
    each(c, sink, "gpu.clocks_setting", "clocks", clocks);
    firmware(c, sink);
}

fn driver(c: &Context<'_>, sink: &mut Sink<'_>) {
    const CHECK: &str = "gpu.driver";
    if !sink.on(CHECK) {
        return;
    }
    let module = &c.facts.gpu_node.module_version;
    let expected = c.profile.gpu_count.unwrap_or(0) > 0;
    let n = match &c.facts.nvml {
        Reading::Value(n) => n,
        Reading::Unknown(why) | Reading::Hung(why) => return sink.done(CHECK, Status::Unknown, why.as_str()),
        Reading::Unsupported => return sink.done(CHECK, Status::Unsupported, "no GPU driver"),
    };
    let loaded = module.value().map_or("not known", String::as_str);
    let (text, evidence) = match n {
        NvmlFacts { library_missing: Some(why), .. } => {
            return sink.done(CHECK, Status::Unsupported, why.as_str());
        }
        NvmlFacts { refused: Some(why), refusal_code: LIB_RM_VERSION_MISMATCH, .. } => {
            ("driver upgraded, reboot needed", format!("{why}; loaded kernel module: {loaded}"))
        }
        NvmlFacts { refused: Some(why), refusal_code: DRIVER_NOT_LOADED, .. } if expected => {
            ("driver not loaded", why.clone())
        }
        NvmlFacts { refused: Some(why), .. } => {
            let status = if expected { Status::Unknown } else { Status::Unsupported };
            return sink.done(CHECK, status, why.as_str());
        }
        n => match module.value() {
            Some(module) if *module != n.driver_version && !n.driver_version.starts_with("unknown") => (
                "driver upgraded, reboot needed",
                format!("kernel module {module}, NVML's driver {}", n.driver_version),
            ),
            Some(_) => return sink.done(CHECK, Status::Pass, n.driver_version.as_str()),
            None => return sink.done(CHECK, Status::Unsupported, "no /sys/module/nvidia/version"),
        },
    };
    let mut f = sink.finding(CHECK, "driver", Status::Fail, None);
    f.action = Action::Reboot;
    f.fault = Fault::Setup;
    f.text = text.into();
    f.evidence = evidence;
    f.mend = "let running jobs end, they keep working; then reboot, or unload and load the driver".into();
    sink.push(f);
}

fn throttle(c: &Context<'_>, sink: &mut Sink<'_>, seen: &Seen<'_>) -> Reading<()> {
    judged(&seen.details.clock_events, |bits| {
        let key = seen.pci.map(|pci| format!("gpu/{pci}/thermal_ns")).unwrap_or_default();
        // Nearly all of the ten minutes must have been watched.
        let share = c
            .counters
            .rate(&key, 600.0)
            .filter(|_| c.counters.watched(&key, 600.0) >= 540.0)
            .map_or(0.0, |ns| ns / 1e9);
        if share > THERMAL_SHARE {
            let mut f = seen.finding(sink, "gpu.throttle", "thermal", Status::Fail);
            f.action = Action::Repair;
            f.text = format!("slowed by heat {:.0} % of the time", share * 100.0);
            f.evidence =
                format!("NVML: {:.0} % of the last 10 minutes in hardware thermal slowdown", share * 100.0);
            f.mend = "check cooling: fans, coolant flow, dust, inlet temperature".into();
            sink.push(f);
            return;
        }
        let why: Vec<&str> =
            TROUBLE.iter().filter(|(bit, _)| bits & bit != 0).map(|(_, what)| *what).collect();
        if let Some(first) = why.first() {
            let mut f = seen.finding(sink, "gpu.throttle", "throttle", Status::Warn);
            f.action = Action::Repair;
            f.text = format!("clocks reduced: {first}");
            f.evidence = format!("NVML clock event reasons {bits:#x}: {}", why.join(", "));
            f.mend = "check cooling and power supplies".into();
            sink.push_quiet(f, PATIENCE);
        }
    })
}

fn idle_heat(c: &Context<'_>, sink: &mut Sink<'_>, seen: &Seen<'_>) -> Reading<()> {
    let d = seen.details;
    let processes = match &d.processes {
        Reading::Value(processes) => processes,
        other => return judged(other, |_| {}),
    };
    let held = seen.device.index.is_some_and(|i| c.facts.jobs.iter().any(|j| j.gpus.contains(&i)));
    if held || !processes.is_empty() {
        return Reading::Value(());
    }
    let architecture = d.architecture.value().copied().unwrap_or(0);
    let usual = match architecture {
        BLACKWELL.. if d.c2c.value().is_some() => 300,
        BLACKWELL.. => 250,
        _ => 150,
    };
    let most = c.profile.gpu.idle_power_watts.unwrap_or(usual);
    let watts = d.power_mw.value().map(|mw| mw / 1000);
    let hot = seen.gpu.temperature.value().filter(|t| **t > IDLE_TEMPERATURE);
    let evidence = match (hot, watts.filter(|w| *w > most)) {
        (Some(t), _) => format!("{t} C without a process, {IDLE_TEMPERATURE} is the most"),
        (None, Some(w)) => format!("{w} W without a process, {most} is the most"),
        (None, None) if watts.is_none() => return judged(&d.power_mw, |_| {}),
        (None, None) => return Reading::Value(()),
    };
    let mut f = seen.finding(sink, "gpu.idle_heat", "idleheat", Status::Warn);
    f.action = Action::None;
    f.text = "hot or busy without a process".into();
    f.evidence = format!("NVML: {evidence}");
    f.mend = "look for stuck work on the GPU and for its cooling".into();
    sink.push_quiet(f, PATIENCE);
    Reading::Value(())
}

fn persistence(_: &Context<'_>, sink: &mut Sink<'_>, seen: &Seen<'_>) -> Reading<()> {
    judged(&seen.details.persistence, |on| {
        if !on {
            let mut f = seen.finding(sink, "gpu.persistence", "persist", Status::Warn);
            f.action = Action::RestartService;
            f.fault = Fault::Setup;
            f.text = "persistence mode is off".into();
            f.evidence =
                "NVML: persistence mode is off: every first use waits for the driver to start".into();
            f.mend = "systemctl enable --now nvidia-persistenced".into();
            sink.push(f);
        }
    })
}

fn modes(c: &Context<'_>, sink: &mut Sink<'_>, seen: &Seen<'_>) -> Reading<()> {
    let p = &c.profile.gpu;
    let d = seen.details;
    // A job that runs may finish; the next one must not start.
    let fail = if busy(c, seen.device) { Status::Warn } else { Status::Fail };
    let mut say = |token: &str, status: Status, text: String, mend: &str| {
        let mut f = seen.finding(sink, "gpu.modes", token, status);
        f.action = Action::ResetGpu;
        f.fault = Fault::Setup;
        f.evidence = format!("NVML: {text}");
        f.text = text;
        f.mend = mend.into();
        sink.push(f);
    };
    let word = |on: bool| if on { "on" } else { "off" };
    let changing =
        |name: &str, s: &Setting| format!("{name} is {}, {} after a reset", word(s.current), word(s.pending));
    let ecc = judged(&d.ecc_mode, |s| match (s, p.ecc) {
        (s, _) if s.current != s.pending => {
            say(
                "eccmode",
                fail,
                changing("ECC", s),
                "reset the GPU, so that the change takes effect, or undo it",
            );
        }
        (s, Some(wanted)) if s.current != wanted => {
            say(
                "eccmode",
                Status::Warn,
                format!("ECC is {}", word(s.current)),
                "nvidia-smi -e, then reset the GPU",
            );
        }
        _ => {}
    });
    let mig = judged(&d.mig_mode, |s| match (s, p.mig) {
        (s, _) if s.current != s.pending => {
            say(
                "migmode",
                fail,
                changing("MIG", s),
                "reset the GPU, so that the change takes effect, or undo it",
            );
        }
        (s, Some(wanted)) if s.current != wanted => {
            say(
                "migmode",
                fail,
                format!("MIG is {}", word(s.current)),
                "nvidia-smi -mig, then reset the GPU",
            );
        }
        _ => {}
    });
    let compute = judged(&d.compute_mode, |mode| {
        if p.compute_mode.as_ref().is_some_and(|wanted| wanted != mode) {
            say("compmode", Status::Warn, format!("compute mode is {mode}"), "nvidia-smi -c sets it");
        }
    });
    // One that was read makes the check; one that could not be read is told.
    let all = [ecc, mig, compute];
    let unknown = all.iter().find(|r| matches!(r, Reading::Unknown(_) | Reading::Hung(_))).cloned();
    let value = all.iter().any(|r| r.value().is_some()).then_some(Reading::Value(()));
    unknown.or(value).unwrap_or(Reading::Unsupported)
}

fn clocks(c: &Context<'_>, sink: &mut Sink<'_>, seen: &Seen<'_>) -> Reading<()> {
    let d = seen.details;
    let mut say = |token: &str, text: String, mend: &str| {
        let mut f = seen.finding(sink, "gpu.clocks_setting", token, Status::Warn);
        f.action = Action::None;
        f.fault = Fault::Setup;
        f.evidence = format!("NVML: {text}");
        f.text = text;
        f.mend = mend.into();
        sink.push(f);
    };
    let wanted = c.profile.gpu.power_limit_watts.or(d.default_power_limit_mw.value().map(|mw| mw / 1000));
    let power = judged(&d.power_limit_mw, |mw| {
        let watts = mw / 1000;
        if let Some(wanted) = wanted.filter(|w| *w != watts) {
            say(
                "powerlimit",
                format!("power limit {watts} W instead of {wanted}"),
                &format!("nvidia-smi -pl {wanted}"),
            );
        }
    });
    match (d.application_clock.value(), d.default_application_clock.value()) {
        (Some(now), Some(default)) if now != default => {
            say(
                "clocks",
                format!("application clock {now} MHz instead of {default}"),
                "nvidia-smi -rac -rgc",
            );
        }
        _ if d.clock_events.value().is_some_and(|bits| bits & CLOCKS_SET != 0) => {
            say("clocks", "clocks are held down by a setting".into(), "nvidia-smi -rac -rgc");
        }
        _ => {}
    }
    power
}

fn firmware(c: &Context<'_>, sink: &mut Sink<'_>) {
    const CHECK: &str = "gpu.firmware";
    if !sink.on(CHECK) {
        return;
    }
    let profile = c.profile.gpu.firmware.clone().unwrap_or_default();
    let surveyed = || gpus(c).filter_map(|g| Some((g, g.survey.as_ref()?)));
    let vbios = common(surveyed().filter_map(|(_, s)| s.vbios.value()));
    let gsp = common(surveyed().filter_map(|(_, s)| s.gsp.value()));
    let mut seen = 0;
    for (gpu, survey) in surveyed() {
        let mut other = Vec::new();
        let mut expected = false;
        for (what, now, wanted, usual) in [
            ("VBIOS", survey.vbios.value(), &profile.vbios, &vbios),
            ("GSP firmware", survey.gsp.value(), &profile.gsp, &gsp),
        ] {
            let Some(now) = now else { continue };
            seen += 1;
            if let Some(want) = wanted.as_ref().or(usual.as_ref()).filter(|w| *w != now) {
                expected |= wanted.is_some();
                other.push(format!("{what} {now} instead of {want}"));
            }
        }
        if !other.is_empty() {
            let status = if profile.strict && expected { Status::Fail } else { Status::Warn };
            let device = super::device(c, gpu);
            let mut f = sink.finding(CHECK, "firmware", status, Some(device));
            f.scope = crate::verdict::Scope::Device;
            say_firmware(&mut f, other.join(", "));
            sink.push(f);
        }
    }
    let driver = c.facts.nvml.value().map(|n| &n.driver_version).filter(|v| !v.is_empty());
    if let (Some(now), Some(want)) = (driver, &profile.driver) {
        seen += 1;
        if now != want {
            let status = if profile.strict { Status::Fail } else { Status::Warn };
            let mut f = sink.finding(CHECK, "firmware", status, None);
            say_firmware(&mut f, format!("driver {now} instead of {want}"));
            sink.push(f);
        }
    }
    match c.facts.nvml {
        Reading::Unknown(ref why) | Reading::Hung(ref why) => sink.done(CHECK, Status::Unknown, why.as_str()),
        _ if seen == 0 => sink.done(CHECK, Status::Unsupported, "no version was told"),
        _ => sink.done(CHECK, Status::Pass, "the same on all GPUs"),
    }
}

fn say_firmware(f: &mut crate::verdict::Finding, text: String) {
    f.action = Action::Repair;
    f.fault = Fault::Setup;
    f.evidence = format!("NVML: {text}");
    f.text = text;
    f.mend = "bring the GPUs to one release, or put the new one into profile.gpu.firmware".into();
}

/// The most frequent value; of two as frequent the first by name.
fn common<'a>(values: impl Iterator<Item = &'a String>) -> Option<String> {
    let mut counts = std::collections::BTreeMap::new();
    for v in values {
        *counts.entry(v).or_insert(0) += 1;
    }
    let most = *counts.values().max()?;
    counts.into_iter().find(|(_, n)| *n == most).map(|(v, _)| v.clone())
}
