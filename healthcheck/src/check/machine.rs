//! Host memory errors, services, clock, CPUs, processes and shared memory.

use super::{Context, Sink};
use crate::facts::{Facts, Leftover, Reading};
use crate::verdict::{Action, Device, DeviceKind, Fault, Finding, Status};

const DAY: f64 = 24.0 * 3600.0;
/// Corrected memory errors of one controller in a day that are worth a look.
const CORRECTED_PER_DAY: u64 = 100;
/// Largest offset of the clock that is no matter, seconds. munge refuses credentials that are 5 minutes off.
const CLOCK_OFFSET: f64 = 1.0;
/// Clock sources that cost a system call or a slow bus access at each look at the time.
const SLOW_CLOCKS: [&str; 4] = ["hpet", "acpi_pm", "jiffies", "refined-jiffies"];
/// Zombies that are worth a look.
const ZOMBIES: u32 = 100;
/// Share of process ids in use that is worth a look, percent.
const PIDS_PERCENT: u64 = 90;

type Check = fn(&Context<'_>, &mut Sink<'_>);

pub fn run(c: &Context<'_>, sink: &mut Sink<'_>) {
    let checks: [(&str, Check); 6] = [
        ("host.edac", edac),
        ("host.services", services),
        ("host.clock", clock),
        ("host.cpu", cpus),
        ("host.stray", processes),
        ("host.shm", shm),
    ];
    for (id, check) in checks {
        if sink.on(id) {
            check(c, sink);
        }
    }
}

/// Says that a reading is not there; true when there is nothing to judge.
fn absent<T>(sink: &mut Sink<'_>, check: &str, token: &str, reading: &Reading<T>) -> bool {
    match reading {
        Reading::Value(_) => false,
        Reading::Unsupported => {
            sink.done(check, Status::Unsupported, "this system has none");
            true
        }
        Reading::Unknown(why) | Reading::Hung(why) => {
            sink.unknown(check, token, None, why);
            true
        }
    }
}

/// A warning about the node's set-up.
fn warning(sink: &Sink<'_>, check: &str, token: &str, text: String, evidence: String, mend: &str) -> Finding {
    let mut f = sink.finding(check, token, Status::Warn, None);
    f.action = Action::None;
    f.fault = Fault::Setup;
    f.text = text;
    f.evidence = evidence;
    f.mend = mend.into();
    f
}

fn edac(c: &Context<'_>, sink: &mut Sink<'_>) {
    let all = &c.facts.node.edac;
    if absent(sink, "host.edac", "edacue", all) {
        return;
    }
    for (name, mc) in all.value().into_iter().flatten() {
        let device = Device::named(DeviceKind::Host, name.as_str());
        let rise = |counter: &str| c.counters.rise(&format!("edac/{name}/{counter}"), DAY);
        let (token, status, text) = match (rise("uncorrectable"), mc.uncorrectable.value(), rise("corrected"))
        {
            (Some(n), _, _) if n > 0 => {
                ("edacue", Status::Fail, format!("{n} uncorrectable memory errors in 24 h"))
            }
            // Nobody knows when those were; whatever they hit has gone on since.
            (None, Some(n), _) if *n > 0 => {
                ("edacue", Status::Warn, format!("{n} uncorrectable memory errors before the first look"))
            }
            (_, _, Some(n)) if n > CORRECTED_PER_DAY => {
                ("edacce", Status::Warn, format!("{n} corrected memory errors in 24 h"))
            }
            _ => continue,
        };
        let mut f = sink.finding("host.edac", token, status, Some(device));
        f.action = Action::Repair;
        f.evidence = format!(
            "{name}: {text}; counters now: {} corrected, {} uncorrectable",
            shown(&mc.corrected),
            shown(&mc.uncorrectable)
        );
        f.text = text;
        f.mend = "see the BMC's event log for the module and replace it".into();
        sink.push(f);
    }
    sink.done("host.edac", Status::Pass, "memory controllers count nothing new");
}

fn shown(count: &Reading<u64>) -> String {
    count.value().map_or("?".into(), u64::to_string)
}

fn services(c: &Context<'_>, sink: &mut Sink<'_>) {
    let all = &c.facts.node.services;
    if c.profile.services.is_empty() || matches!(all, Reading::Unsupported) {
        let why = if c.profile.services.is_empty() { "no unit in the profile" } else { "no systemd here" };
        sink.done("host.services", Status::Unsupported, why);
        return;
    }
    if absent(sink, "host.services", "service", all) {
        return;
    }
    for (name, unit) in all.value().into_iter().flatten() {
        // A unit on its way up is not down.
        if matches!(unit.active.as_str(), "active" | "reloading" | "activating") {
            continue;
        }
        let device = Device::named(DeviceKind::Host, name.as_str());
        let mut f = sink.finding("host.services", "service", Status::Fail, Some(device));
        f.action = Action::RestartService;
        f.fault = Fault::Setup;
        f.text = if unit.load == "loaded" {
            format!("service is {}", unit.active)
        } else {
            format!("service is {}", unit.load)
        };
        f.evidence = format!("{name}: {} {} ({})", unit.load, unit.active, unit.sub);
        f.mend = format!("journalctl -u {name}; systemctl restart {name}");
        sink.push(f);
    }
    sink.done("host.services", Status::Pass, format!("{} units", c.profile.services.len()));
}

fn clock(c: &Context<'_>, sink: &mut Sink<'_>) {
    let node = &c.facts.node;
    if absent(sink, "host.clock", "clock", &node.clock) {
        return;
    }
    if let Reading::Value(clock) = &node.clock {
        let wrong = if !clock.synchronised {
            Some("clock is not synchronised".to_string())
        } else if clock.offset.abs() > CLOCK_OFFSET {
            Some(format!("clock is off by {:.1} s", clock.offset))
        } else {
            None
        };
        if let Some(text) = wrong {
            let evidence = format!(
                "adjtimex: synchronised {}, offset {:.6} s, largest error {:.3} s",
                clock.synchronised, clock.offset, clock.max_error
            );
            sink.push(warning(
                sink,
                "host.clock",
                "clock",
                text,
                evidence,
                "look at chronyd, ntpd or systemd-timesyncd",
            ));
        }
    }
    if let Some(source) = node.clocksource.value() {
        let wrong = match &c.profile.clocksource {
            Some(want) => source != want,
            None => SLOW_CLOCKS.contains(&source.as_str()),
        };
        if wrong {
            let want = c.profile.clocksource.as_deref().unwrap_or("tsc or the hypervisor's own");
            let text = format!("clock source is {source}");
            let evidence = format!("current_clocksource {source}, expected {want}");
            sink.push(warning(
                sink,
                "host.clock",
                "clocksrc",
                text,
                evidence,
                "see why the kernel gave up its clock source: dmesg, firmware",
            ));
        }
    }
    sink.done("host.clock", Status::Pass, "synchronised");
}

fn cpus(c: &Context<'_>, sink: &mut Sink<'_>) {
    let node = &c.facts.node;
    if c.profile.cpu_count.is_none() && c.profile.cpu_governor.is_none() {
        sink.done("host.cpu", Status::Unsupported, "no CPUs in the profile");
        return;
    }
    if absent(sink, "host.cpu", "cpus", &node.cpus) {
        return;
    }
    if let (Some(online), Some(want)) = (node.cpus.value(), c.profile.cpu_count)
        && *online < want
    {
        let text = format!("{online} of {want} CPUs online");
        sink.push(warning(
            sink,
            "host.cpu",
            "cpus",
            text.clone(),
            text,
            "see the firmware's settings and /sys/devices/system/cpu/offline",
        ));
    }
    if let Some(want) = &c.profile.cpu_governor {
        let other: Vec<String> =
            node.governors.iter().filter(|(g, _)| *g != want).map(|(g, n)| format!("{n} CPUs {g}")).collect();
        if !other.is_empty() {
            let evidence = format!("{}, expected {want}", other.join(", "));
            sink.push(warning(
                sink,
                "host.cpu",
                "governor",
                format!("scaling governor is not {want}"),
                evidence,
                "set it with cpupower, tuned or the firmware",
            ));
        }
    }
    sink.done("host.cpu", Status::Pass, "as in the profile");
}

/// True when a job of this user is here.
fn has_job(facts: &Facts, uid: u32) -> bool {
    facts.jobs.iter().any(|j| j.uid == uid)
}

fn processes(c: &Context<'_>, sink: &mut Sink<'_>) {
    if absent(sink, "host.stray", "stray", &c.facts.node.processes) {
        return;
    }
    let Some(all) = c.facts.node.processes.value() else { return };
    // A node where people log in has such processes rightly: only the profile makes them a fault.
    if c.profile.users_need_jobs {
        let strays: Vec<String> = all
            .by_user
            .iter()
            .filter(|(uid, _)| !has_job(c.facts, **uid))
            .map(|(uid, n)| format!("{n} of user {uid}"))
            .collect();
        if !strays.is_empty() {
            let text = format!("processes of {} users without a job here", strays.len());
            sink.push(warning(
                sink,
                "host.stray",
                "stray",
                text,
                strays.join(", "),
                "end them once it is clear whose they are",
            ));
        }
    }
    if all.zombies >= ZOMBIES {
        let text = format!("{} zombies", all.zombies);
        sink.push(warning(
            sink,
            "host.stray",
            "zombies",
            text.clone(),
            text,
            "end the process that does not reap its children",
        ));
    }
    if let Some(most) = all.threads_max
        && all.threads.saturating_mul(100) >= most.saturating_mul(PIDS_PERCENT)
    {
        let text = format!("{} of {most} process ids in use", all.threads);
        sink.push(warning(
            sink,
            "host.stray",
            "pids",
            text.clone(),
            text,
            "see who starts so many threads; raise kernel.pid_max",
        ));
    }
    sink.done("host.stray", Status::Pass, format!("{} threads, {} zombies", all.threads, all.zombies));
}

fn shm(c: &Context<'_>, sink: &mut Sink<'_>) {
    if absent(sink, "host.shm", "shm", &c.facts.node.shm) {
        return;
    }
    // A job that ends is still listed while its epilog runs: its user's files are then nobody else's.
    let own = c.facts.own_job.as_deref();
    let other_job = |uid: u32| c.facts.jobs.iter().any(|j| j.uid == uid && Some(j.job.as_str()) != own);
    let left: Vec<(&u32, &Leftover)> =
        c.facts.node.shm.value().into_iter().flatten().filter(|(uid, _)| !other_job(**uid)).collect();
    for (uid, of) in &left {
        let text = format!("user {uid} left {} files, {} MiB, in shared memory", of.files, of.bytes >> 20);
        let evidence = format!("/dev/shm: {text}; no other job of that user is here");
        sink.push(warning(
            sink,
            "host.shm",
            "shm",
            text,
            evidence,
            "remove them, or give jobs a /dev/shm of their own (job_container/tmpfs)",
        ));
    }
    sink.done("host.shm", Status::Pass, "nothing is left in shared memory");
}
