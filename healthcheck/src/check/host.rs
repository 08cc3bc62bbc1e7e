//! Host memory, and this suite's own state.

use super::{Context, Sink};
use crate::audit;
use crate::catalogue::{CATALOGUE, CheckInfo};
use crate::config::Switch;
use crate::facts::Reading;
use crate::verdict::{Action, Device, DeviceKind, Fault, Finding, Scope, Status};

/// Age of a verdict that nobody renewed, where the interval is not known, seconds: twice the longest in use.
const VERDICT_AGE: f64 = 1200.0;
/// Least age that is worth a word, seconds: a pass may be late.
const VERDICT_AGE_LEAST: f64 = 120.0;

pub fn run(c: &Context<'_>, sink: &mut Sink<'_>) {
    if sink.on("host.mem") {
        memory(c, sink);
    }
    if sink.on("node.self") {
        own(c, sink);
    }
}

fn memory(c: &Context<'_>, sink: &mut Sink<'_>) {
    let Some(expected) = c.profile.memory_total_kib else {
        sink.done("host.mem", Status::Unsupported, "no profile.memory_total_kib");
        return;
    };
    let device = Some(Device::named(DeviceKind::Host, "mem"));
    match &c.facts.memory_total_kib {
        // The kernel reserves a little more or less from release to release; a DIMM is at least 1/32.
        Reading::Value(total) if total.saturating_mul(100) < expected.saturating_mul(99) => {
            let mut f = sink.finding("host.mem", "mem", Status::Fail, device);
            f.action = Action::Repair;
            f.text = format!("{} of {} GiB", total >> 20, expected >> 20);
            f.evidence = format!("MemTotal {total} kB, expected {expected} kB");
            f.mend = "a memory module is missing or disabled: see the BMC's event log".into();
            sink.push(f);
        }
        Reading::Value(total) => sink.done("host.mem", Status::Pass, format!("MemTotal {total} kB")),
        Reading::Unsupported => sink.unknown("host.mem", "mem", device, "no meminfo"),
        Reading::Unknown(why) | Reading::Hung(why) => sink.unknown("host.mem", "mem", device, why),
    }
}

/// The finding that this suite's own state or the kernel log cannot be used.
pub(crate) fn hindered(complaint: &str) -> Finding {
    Finding {
        check: "node.self".into(),
        token: "self".into(),
        status: Status::Warn,
        device: None,
        scope: Scope::Node,
        action: Action::None,
        drain: false,
        fault: Fault::Setup,
        evidence: complaint.into(),
        text: "the health check itself is hindered".into(),
        mend: "free space or repair permissions of paths.state_dir; see docs/interfaces.md".into(),
        synthetic: false,
        observe: false,
        event: None,
    }
}

fn own(c: &Context<'_>, sink: &mut Sink<'_>) {
    let mut complaints = c.facts.complaints.clone();
    match &c.facts.kernel {
        Reading::Value(k) => {
            complaints.extend(k.unread.iter().cloned());
            if k.lost > 0 {
                complaints.push(format!("{} kernel-log records were lost", k.lost));
            }
        }
        Reading::Unknown(why) | Reading::Hung(why) => complaints.push(format!("kernel log: {why}")),
        Reading::Unsupported => {}
    }
    let node = &c.facts.node;
    let limit = node.verdict_interval.map_or(VERDICT_AGE, |seconds| (2.0 * seconds).max(VERDICT_AGE_LEAST));
    if let Some(age) = node.verdict_age.filter(|a| *a > limit && c.facts.uptime > limit) {
        complaints.push(format!(
            "the last verdict is {:.0} minutes old: neither HealthCheckProgram nor watch has run",
            age / 60.0
        ));
    }
    for complaint in &complaints {
        // What a user may not read says nothing about the health check of this node.
        if c.facts.as_user && audit::refused(complaint) {
            sink.unknown("node.self", "self", None, complaint);
        } else {
            sink.push(hindered(complaint));
        }
    }
    // Only operators can skip checks; that they do is shown.
    let off = |c: &&CheckInfo| sink.context.config.switch(c.id) == Switch::Off;
    let skipped: Vec<&str> = CATALOGUE.iter().filter(off).map(|c| c.id).collect();
    let detail =
        if skipped.is_empty() { String::new() } else { format!("; switched off: {}", skipped.join(" ")) };
    sink.done("node.self", Status::Pass, format!("state and kernel log can be used{detail}"));
}
