//! What the kernel log says about GPUs and NVSwitches. The table decides, state decides where the table
//! says so, and each line is acted on once.

use std::collections::BTreeMap;

use super::gpu::{device_at, same_slot};
use super::{Context, Sink, why_missing};
use crate::facts::SeenEvent;
use crate::kernel_lines;
use crate::verdict::{ACTED_ON, Action, Device, DeviceKind, Fault, Scope, Status};
use crate::xid::{Drain, Kind, Policy, Severity, policy};

const CHECKS: [&str; 3] = ["gpu.xid", "gpu.lost_text", "gpu.sxid"];

/// Id of the check that an event belongs to.
pub fn check_of(kind: &Kind) -> &'static str {
    match kind {
        Kind::Xid { .. } => "gpu.xid",
        Kind::Sxid { .. } => "gpu.sxid",
        Kind::Text(_) => "gpu.lost_text",
        Kind::Line { row, .. } => kernel_lines::row(row).map_or("gpu.lost_text", |(_, r)| r.check),
    }
}

pub fn run(c: &Context<'_>, sink: &mut Sink<'_>) {
    let Some(kernel) = c.facts.kernel.value() else {
        // Why is node.self's to say; here it only must not look like a pass.
        for check in CHECKS {
            if sink.on(check) {
                sink.done(check, Status::Unknown, why_missing(&c.facts.kernel).unwrap_or("not read"));
            }
        }
        return;
    };
    let mut foreign: BTreeMap<&str, u64> = BTreeMap::new();
    for seen in kernel.events.iter().filter(|e| !matches!(e.event.kind, Kind::Line { .. })) {
        let check = check_of(&seen.event.kind);
        if !sink.on(check) {
            continue;
        }
        match owner(c, seen) {
            Owner::Foreign(_) if seen.handled => {}
            Owner::Foreign(pci) => *foreign.entry(pci).or_default() += seen.count,
            Owner::Node => judge(c, sink, seen, None),
            Owner::Device(device) => judge(c, sink, seen, Some(device)),
        }
    }
    // Where several nodes write to one log, the others' devices are to be expected.
    let told = sink.on("gpu.xid") && !c.config.paths.kmsg_shared;
    if let (Some((first, _)), true) = (foreign.iter().next(), told) {
        let mut f = sink.finding("gpu.xid", "foreign", Status::Warn, None);
        f.action = Action::None;
        f.fault = Fault::Setup;
        f.text = "kernel log names devices this node does not have".into();
        let lines: u64 = foreign.values().sum();
        f.evidence = format!("{lines} lines name {} foreign PCI addresses, first {first}", foreign.len());
        f.mend = "a device that vanished before it was first seen, or a log shared between nodes".into();
        sink.push(f);
    }
    // An unread log must not look like a pass; node.self says it as a finding.
    let (status, detail) = match kernel.unread.first() {
        Some(why) => (Status::Unknown, why.as_str()),
        None => (Status::Pass, "no open event"),
    };
    for check in CHECKS {
        if sink.on(check) {
            sink.done(check, status, detail);
        }
    }
}

enum Owner<'a> {
    Device(Device),
    /// The line names no address: it can only be this node.
    Node,
    Foreign(&'a str),
}

fn owner<'a>(c: &Context<'_>, seen: &'a SeenEvent) -> Owner<'a> {
    let Some(pci) = seen.event.pci.as_deref() else { return Owner::Node };
    if let Some(device) = device_at(c, pci) {
        return Owner::Device(device);
    }
    let facts = c.facts.pci.value();
    if let Some(at) = facts.and_then(|f| f.switches.iter().position(|s| same_slot(s, pci))) {
        return Owner::Device(Device {
            kind: DeviceKind::Pci,
            name: format!("nvsw{at}"),
            index: None,
            pci: Some(pci.to_string()),
        });
    }
    // The driver may be dead before it was ever asked: PCI still knows the address.
    if let Some(gpu) = facts.and_then(|f| f.gpus.iter().find(|g| same_slot(&g.pci, pci))) {
        return Owner::Device(Device {
            kind: DeviceKind::Gpu,
            name: pci.to_string(),
            index: None,
            pci: Some(gpu.pci.clone()),
        });
    }
    Owner::Foreign(pci)
}

fn judge(c: &Context<'_>, sink: &mut Sink<'_>, seen: &SeenEvent, device: Option<Device>) {
    let event = &seen.event;
    let rule = policy(event);
    let refused = event.synthetic && !c.config.xid.accept_synthetic;
    let (status, note) = match status(&rule, seen.handled, refused) {
        Some(decided) => decided,
        None => return,
    };
    let mut f = sink.finding(check_of(&event.kind), &event.token(), status, device);
    f.scope = if f.device.is_some() { Scope::Device } else { Scope::Node };
    f.action = rule.action;
    f.fault = rule.fault;
    f.text = rule.text.into();
    let count = if seen.count > 1 { format!(" ({} times)", seen.count) } else { String::new() };
    let origin = if event.synthetic { " [synthetic: written from user space]" } else { "" };
    f.evidence = format!("{}{count}{origin}{note}", event.text);
    f.mend = mend(rule.action).into();
    f.synthetic = event.synthetic;
    f.event = Some(seen.key.clone());
    sink.push(f);
}

/// What an event is worth, and what to add to its evidence; `None` when it is not worth a finding.
fn status(rule: &Policy, handled: bool, refused: bool) -> Option<(Status, &'static str)> {
    let conclusive = rule.drain == Drain::Yes;
    match (conclusive, handled) {
        _ if refused && conclusive => Some((Status::Warn, "; not acted on: xid.accept_synthetic is false")),
        (true, false) => Some((Status::Fail, "")),
        (true, true) => Some((Status::Warn, ACTED_ON)),
        // What was told once need not be told again.
        (false, true) => None,
        (false, false) if rule.severity == Severity::Info && rule.action == Action::None => None,
        (false, false) if matches!(rule.drain, Drain::IfState | Drain::AfterJob) => {
            Some((Status::Warn, "; the line alone is not conclusive, the GPU's state decides"))
        }
        (false, false) => Some((Status::Warn, "")),
    }
}

fn mend(action: Action) -> &'static str {
    match action {
        Action::None => "nothing to do",
        Action::TellUser => "usually an error in the program: run it under compute-sanitizer",
        Action::RestartService => "restart fabric manager once the node is idle",
        Action::ResetGpu => "reset the GPU once the node is idle; replace it if the code comes back",
        Action::Reboot => "reboot the node; if it comes back, reseat or replace the GPU",
        Action::Repair => "replace or reseat the part",
    }
}
