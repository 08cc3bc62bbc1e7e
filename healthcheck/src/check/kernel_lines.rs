//! What the kernel log says about the host, network cards and disks. The table decides, sysfs agrees where the table says so.

use super::fabric::function_device;
use super::gpu::same_slot;
use super::{Context, Sink, why_missing};
use crate::facts::{Reading, SeenEvent};
use crate::kernel_lines::{self, Keep, REPEAT_USEC, Row};
use crate::verdict::{ACTED_ON, Action, Device, DeviceKind, Scope, Status};
use crate::xid::{Drain, Severity};

/// Checks that read nothing but the log.
const LOG_ONLY: [&str; 4] = ["net.driver", "host.kernel", "host.oom", "amd.kernel"];

/// Whose a line is.
enum Owner {
    /// This device of the node.
    Device(Device),
    /// The line names no device: the node's, unless the log is shared.
    Node,
    /// A device that this node does not have.
    Foreign,
}

pub fn run(c: &Context<'_>, sink: &mut Sink<'_>) {
    let kernel = c.facts.kernel.value();
    for seen in kernel.map_or(&[][..], |k| &k.events) {
        if let Some((_, row)) = kernel_lines::row_of(&seen.event)
            && sink.on(row.check)
        {
            judge(c, sink, seen, row);
        }
    }
    let (status, detail) = match kernel {
        // Why is node.self's to say; here it only must not look like a pass.
        None => (Status::Unknown, why_missing(&c.facts.kernel).unwrap_or("not read")),
        Some(k) => match k.unread.first() {
            Some(why) => (Status::Unknown, why.as_str()),
            None => (Status::Pass, "no open event"),
        },
    };
    for check in LOG_ONLY {
        if !sink.on(check) {
            continue;
        }
        if check == "amd.kernel" && c.facts.amd == Reading::Unsupported {
            sink.done(check, Status::Unsupported, "no AMD GPU");
        } else {
            sink.done(check, status, detail);
        }
    }
}

fn judge(c: &Context<'_>, sink: &mut Sink<'_>, seen: &SeenEvent, row: &Row) {
    let (event, p) = (&seen.event, &row.policy);
    let owner = owner(c, seen, row);
    let refused = event.synthetic && !c.config.xid.accept_synthetic;
    // Only an address tells nodes apart that write into one log.
    let doubtful = shared(c, seen) && event.pci.is_none();
    let may_drain = matches!(p.drain, Drain::Yes | Drain::IfState);
    if matches!(owner, Owner::Foreign) && (row.check == "host.oom" || shared(c, seen)) {
        return;
    }
    let (status, note) = match (may_drain, seen.handled) {
        (false, true) => return,
        (true, true) if p.drain == Drain::IfState => return,
        (true, true) => (Status::Warn, ACTED_ON),
        (false, false) if p.severity == Severity::Info && p.action == Action::None => return,
        (false, false) if doubtful && row.check != "host.oom" => return,
        (false, false) => (Status::Warn, ""),
        (true, false) if refused => (Status::Warn, "; not acted on: xid.accept_synthetic is false"),
        (true, false) if matches!(owner, Owner::Foreign) => {
            (Status::Warn, "; this node has no such device, or did not see it yet")
        }
        (true, false) if doubtful && (p.drain == Drain::Yes || matches!(owner, Owner::Node)) => (
            Status::Warn,
            "; not acted on: paths.kmsg_shared is true and the line names no device of this node alone",
        ),
        (true, false) if p.drain == Drain::IfState && !confirmed(c, seen, row) => {
            (Status::Warn, "; the line alone is not conclusive")
        }
        (true, false) if row.check == "net.driver" && !in_profile(c, seen) => {
            (Status::Warn, "; no port of the profile is on this card")
        }
        (true, false) => (Status::Fail, ""),
    };
    if row.check == "fs.stale" && answers(c, event.device()) {
        return;
    }
    let device = if let Owner::Device(device) = owner { Some(device) } else { None };
    let mut f = sink.finding(row.check, p.token, status, device);
    let is_gpu = f.device.as_ref().is_some_and(|d| d.kind == DeviceKind::Gpu);
    f.scope = if is_gpu { Scope::Device } else { Scope::Node };
    f.action = p.action;
    f.fault = p.fault;
    f.text = p.text.into();
    let count = if seen.count > 1 { format!(" ({} times)", seen.count) } else { String::new() };
    let origin = if event.synthetic { " [synthetic: written from user space]" } else { "" };
    f.evidence = format!("{}{count}{origin}{note}", event.text);
    f.mend = mend(row.check, p.action).into();
    f.synthetic = event.synthetic;
    f.event = Some(seen.key.clone());
    sink.push(f);
}

/// The log is one that other nodes write to as well.
fn shared(c: &Context<'_>, seen: &SeenEvent) -> bool {
    let paths = &c.config.paths;
    paths.kmsg_shared
        && seen.key.strip_prefix(&*paths.kmsg.to_string_lossy()).is_some_and(|rest| rest.starts_with(' '))
}

fn owner(c: &Context<'_>, seen: &SeenEvent, row: &Row) -> Owner {
    let node = &c.facts.node;
    if let Some(pci) = seen.event.pci.as_deref() {
        return function_device(c, pci).map_or(Owner::Foreign, Owner::Device);
    }
    let Some(name) = seen.event.device() else { return Owner::Node };
    let named = |kind: DeviceKind, name: &str| Owner::Device(Device::named(kind, name));
    match row.check {
        "disk.nvme" => match controller(name) {
            Some(nvme) if node.nvme.value().is_some_and(|all| all.contains_key(nvme)) => {
                named(DeviceKind::Host, nvme)
            }
            Some(_) => Owner::Foreign,
            None => named(DeviceKind::Host, name),
        },
        "disk.raid" if node.raid.value().is_some_and(|all| all.contains_key(name)) => {
            named(DeviceKind::Host, name)
        }
        "host.edac" => {
            let name = name.to_lowercase();
            let has = node.edac.value().is_some_and(|all| all.contains_key(&name));
            if has { named(DeviceKind::Host, &name) } else { Owner::Foreign }
        }
        "net.driver" if node.net.value().is_some_and(|all| all.contains_key(name)) => {
            named(DeviceKind::Net, name)
        }
        "fs.ro" => match mounted(c, name).first() {
            Some((point, _)) => named(DeviceKind::Mount, point),
            None => Owner::Foreign,
        },
        "fs.stale" if served(c, name).next().is_some() => named(DeviceKind::Host, name),
        "host.oom" => {
            let job = name.strip_prefix("job").unwrap_or(name);
            let here = c.facts.jobs.iter().any(|j| j.job == job);
            if here { named(DeviceKind::Host, name) } else { Owner::Foreign }
        }
        _ => Owner::Foreign,
    }
}

/// `nvme3` of `nvme3`, `nvme3n1`, `nvme3n1p2` or `nvme3c3n1`; none for other disks.
fn controller(name: &str) -> Option<&str> {
    let digits = name.strip_prefix("nvme")?.bytes().take_while(u8::is_ascii_digit).count();
    (digits > 0).then(|| &name[..4 + digits])
}

/// Mounts of a block device: mount point, and whether it can be written to.
fn mounted<'a>(c: &'a Context<'_>, device: &str) -> Vec<(&'a str, bool)> {
    let mapped = c.facts.node.mapped.get(device).map(|name| format!("/dev/mapper/{name}"));
    let plain = format!("/dev/{device}");
    let of = |source: &str| source == plain || mapped.as_deref() == Some(source);
    let mounts = c.facts.mounts.value().into_iter().flatten();
    mounts.filter(|(_, m)| of(&m.source)).map(|(point, m)| (point.as_str(), m.writable)).collect()
}

/// Mount points that this file server serves.
fn served<'a>(c: &'a Context<'_>, server: &'a str) -> impl Iterator<Item = &'a str> {
    let mounts = c.facts.mounts.value().into_iter().flatten();
    mounts
        .filter(move |(_, m)| m.source.strip_prefix(server).is_some_and(|rest| rest.starts_with(":/")))
        .map(|(point, _)| point.as_str())
}

/// Every watched mount of the server has answered after the kernel complained.
fn answers(c: &Context<'_>, server: Option<&str>) -> bool {
    let Some(server) = server else { return false };
    let mut probes = served(c, server).filter_map(|point| c.facts.mount_probes.get(point)).peekable();
    probes.peek().is_some() && probes.all(|p| p.value().is_some())
}

/// Whether the state of the device agrees with the line.
fn confirmed(c: &Context<'_>, seen: &SeenEvent, row: &Row) -> bool {
    let node = &c.facts.node;
    let device = seen.event.device().unwrap_or_default();
    match row.check {
        "disk.nvme" => controller(device)
            .and_then(|n| node.nvme.value()?.get(n)?.state.value())
            .is_some_and(|state| state == "dead"),
        "disk.raid" => node
            .raid
            .value()
            .and_then(|all| all.get(device))
            .is_some_and(|r| !r.active || (r.level == "raid0" && !r.failed.is_empty())),
        // XFS stops without changing the mount's flags.
        "fs.ro" => mounted(c, device).iter().any(|(_, rw)| !rw || seen.event.text.starts_with("XFS ")),
        // A link went down above a device that jobs use.
        "gpu.aer" => seen.event.pci.as_deref().is_some_and(|pci| {
            let functions = node.functions.value();
            functions.is_some_and(|all| all.values().any(|f| f.above.iter().any(|b| same_slot(b, pci))))
        }),
        "amd.kernel" => seen.event.pci.as_deref().is_some_and(|pci| {
            let gpus = c.facts.amd.value().map_or(&[][..], Vec::as_slice);
            gpus.iter().any(|g| same_slot(&g.pci, pci) && g.config_all_ones.value() == Some(&true))
        }),
        "host.kernel" => lockups(c, seen, row) >= 2,
        _ => false,
    }
}

/// Lockups within two minutes around this one, reported or not.
fn lockups(c: &Context<'_>, seen: &SeenEvent, row: &Row) -> u64 {
    let events = c.facts.kernel.value().map_or(&[][..], |k| &k.events);
    let near = |e: &&SeenEvent| {
        e.event.token() == row.policy.token && e.event.usec.abs_diff(seen.event.usec) <= REPEAT_USEC
    };
    events.iter().filter(near).map(|e| e.count).sum()
}

/// A card that carries a port of the profile.
fn in_profile(c: &Context<'_>, seen: &SeenEvent) -> bool {
    let Some(pci) = seen.event.pci.as_deref() else {
        return c.profile.net_port.iter().any(|p| Some(p.name.as_str()) == seen.event.device());
    };
    let at = |other: &Option<String>| other.as_deref().is_some_and(|o| same_slot(o, pci));
    let ib = c.facts.ib.value().into_iter().flatten().any(|(name, port)| {
        at(&port.pci) && c.profile.ib_port.iter().any(|p| *name == format!("{}/{}", p.device, p.port))
    });
    let net = c.facts.node.net.value().into_iter().flatten();
    ib || net
        .into_iter()
        .any(|(name, port)| at(&port.pci) && c.profile.net_port.iter().any(|p| p.name == *name))
}

fn mend(check: &str, action: Action) -> &'static str {
    match (check, action) {
        (_, Action::None) => "nothing to do",
        ("host.oom", Action::TellUser) => "ask for more memory, or use less",
        ("host.oom", _) => "restart the service; limit jobs' memory (ConstrainRAMSpace in cgroup.conf)",
        ("host.edac", _) | ("host.kernel", Action::Repair) => {
            "see the BMC's event log for the module or processor and replace it"
        }
        ("host.kernel", _) => "reboot the node; if it comes back, look at firmware and kernel",
        ("net.driver", Action::Repair) => "reseat cable, transceiver and card",
        ("net.driver", _) => "reboot the node; if it comes back, update the firmware or replace the card",
        ("amd.kernel", Action::TellUser) => {
            "usually an error in the program; if it comes back with others, test the GPU"
        }
        ("amd.kernel", Action::Repair) => "replace the GPU",
        ("amd.kernel", _) => {
            "reset the GPU or reboot the idle node; if it comes back, reseat or replace the GPU"
        }
        ("gpu.aer", _) => "reboot the node; if it comes back, reseat the device",
        ("disk.nvme" | "disk.raid", _) => "replace the disk",
        ("fs.ro", _) => "check the file system and its disk, then reboot",
        ("fs.stale", _) => "look at the file server and the network",
        _ => "see the kernel log",
    }
}

/// True for an event that a pass of this mode must leave open: its check does not run in it, or only another line ends it.
pub fn stays_open(seen: &SeenEvent, config: &crate::config::Config, mode: crate::mode::Mode) -> bool {
    let Some((_, row)) = kernel_lines::row_of(&seen.event) else { return false };
    let runs = crate::catalogue::CATALOGUE.iter().any(|c| c.id == row.check && c.modes.contains(&mode));
    let off = config.switch(row.check) == crate::config::Switch::Off;
    !off && (row.keep == Keep::Open || !runs)
}
