//! Counters of InfiniBand and RoCE ports over time, network interfaces, and the PCIe paths of GPUs, cards and disks.

use std::collections::BTreeMap;

use super::gpu::{device_at, same_slot};
use super::{Context, Sink, why_missing};
use crate::facts::{FunctionKind, IbPort, NetPort, PciFunction, Reading};
use crate::verdict::{Action, Device, DeviceKind, Fault, Scope, Status};

/// Time over which a rate is taken, seconds.
const RATE: f64 = 60.0;
/// A rate over less time than this is noise, seconds.
const LEAST: f64 = 10.0;
const HOUR: f64 = 3600.0;
/// Bits of the ACS control register that send peer-to-peer traffic through the root: source validation, request and completion
/// redirect, upstream forwarding.
const ACS_BITS: u16 = 0b1_1101;

pub fn run(c: &Context<'_>, sink: &mut Sink<'_>) {
    ports(c, sink);
    firmware(c, sink);
    modules(c, sink);
    interfaces(c, sink);
    functions(c, sink);
    cards(c, sink);
}

/// The name of a port in reasons.
pub fn port_device(name: &str) -> Device {
    // `ib0/1` in reasons: the driver's prefix says nothing to the reader of 20 characters.
    Device::named(DeviceKind::Ib, name.replace("mlx5_", "ib"))
}

fn ports(c: &Context<'_>, sink: &mut Sink<'_>) {
    const CHECKS: [&str; 4] = ["ib.symbol", "ib.errors", "roce.counters", "ib.sm_pkey"];
    let checks: Vec<&str> = CHECKS.into_iter().filter(|check| sink.on(check)).collect();
    let expected = &c.profile.ib_port;
    if expected.is_empty() {
        for check in checks {
            sink.done(check, Status::Unsupported, "no port in the profile");
        }
        return;
    }
    let Some(all) = c.facts.ib.value() else {
        // ib.state says it as a finding.
        for check in checks {
            sink.done(check, Status::Unknown, why_missing(&c.facts.ib).unwrap_or("not read"));
        }
        return;
    };
    let mut hardware = false;
    for profile in expected {
        let name = format!("{}/{}", profile.device, profile.port);
        // A missing port is ib.count's.
        let Some(port) = all.get(&name) else { continue };
        hardware |= !port.hw_counters.is_empty();
        for check in &checks {
            match *check {
                "ib.symbol" => symbol(c, sink, port, &name),
                "ib.errors" => errors(c, sink, port, &name),
                "roce.counters" => roce(c, sink, &name),
                _ => subnet(c, sink, port, &name),
            }
        }
    }
    for check in checks {
        let status = if check == "roce.counters" && !hardware { Status::Unsupported } else { Status::Pass };
        sink.done(check, status, format!("{} ports in the profile", expected.len()));
    }
}

/// Rate per second of a port's counter, where it was watched long enough.
fn rate(c: &Context<'_>, port: &str, counter: &str) -> f64 {
    let name = format!("ib/{port}/{counter}");
    if c.counters.watched(&name, RATE) < LEAST { 0.0 } else { c.counters.rate(&name, RATE).unwrap_or(0.0) }
}

fn symbol(c: &Context<'_>, sink: &mut Sink<'_>, port: &IbPort, name: &str) {
    if super::ib::blind(port, "symbol_error") {
        return;
    }
    let counter = format!("ib/{name}/symbol_error");
    let now = rate(c, name, "symbol_error");
    let within = |hours: f64| c.counters.rise(&counter, hours * HOUR).unwrap_or(0);
    let (one, two, three) = (within(1.0), within(2.0), within(3.0));
    let sustained = c.counters.watched(&counter, 3.0 * HOUR) >= 3.0 * HOUR
        && [one, two.saturating_sub(one), three.saturating_sub(two)].iter().all(|n| *n > 120);
    let (status, text) = if sustained {
        (Status::Fail, format!("{three} symbol errors in 3 h"))
    } else if now > 10.0 {
        (Status::Warn, format!("{now:.0} symbol errors per second"))
    } else {
        return;
    };
    let mut f = sink.finding("ib.symbol", "ibsymbol", status, Some(port_device(name)));
    f.action = Action::Repair;
    f.evidence = format!(
        "{name}: {now:.1} per second, {one} in the last hour, {three} in 3 h; warns above 10/s, fails above 120/h for 3 h"
    );
    f.text = text;
    f.mend = "clean or replace cable and transceiver".into();
    sink.push(f);
}

fn errors(c: &Context<'_>, sink: &mut Sink<'_>, port: &IbPort, name: &str) {
    // Counter, bound per second, whether it can be the node's fault alone.
    const RULES: [(&str, f64, bool); 6] = [
        ("port_rcv_errors", 10.0, true),
        ("link_error_recovery", 5.0 / 60.0, true),
        ("local_link_integrity_errors", 0.0, true),
        ("excessive_buffer_overrun_errors", 0.0, true),
        ("port_xmit_discards", 100.0, false),
        ("VL15_dropped", 1.0, false),
    ];
    for (fault, token) in [(true, "iberrors"), (false, "ibdiscards")] {
        let (mut high, mut lasts) = (Vec::new(), false);
        for (counter, bound, own) in RULES {
            let now = rate(c, name, counter);
            if own != fault || super::ib::blind(port, counter) || now <= bound {
                continue;
            }
            high.push(format!("{counter} {now:.2}/s, bound {bound:.2}/s"));
            lasts |= c.counters.lasts(&format!("ib/{name}/{counter}"), bound, &[RATE, RATE, RATE]);
        }
        if high.is_empty() {
            continue;
        }
        let status = if fault { Status::Fail } else { Status::Warn };
        let mut f = sink.finding("ib.errors", token, status, Some(port_device(name)));
        f.action = if fault { Action::Repair } else { Action::None };
        f.text = if fault { "errors on the link" } else { "packets are dropped" }.into();
        f.evidence = format!("{name}: {}", high.join("; "));
        f.mend = if fault {
            "clean or replace cable and transceiver"
        } else {
            "look for congestion in the fabric: the node is rarely its cause"
        }
        .into();
        sink.push_lasting(f, lasts);
    }
}

/// Rates a second of a RoCE port's hardware counters that are worth a look. Congestion notifications are part of healthy
/// congestion control; so many all the time are not.
const ROCE_RATES: [(&str, f64); 5] = [
    ("local_ack_timeout_err", 1.0),
    ("roce_slow_restart", 10.0),
    ("out_of_sequence", 100.0),
    ("np_cnp_sent", 100_000.0),
    ("rp_cnp_handled", 100_000.0),
];

fn roce(c: &Context<'_>, sink: &mut Sink<'_>, name: &str) {
    let mut high = Vec::new();
    for (counter, bound) in ROCE_RATES {
        let now = rate(c, name, counter);
        if now > bound {
            high.push(format!("{counter} {now:.1}/s, bound {bound}/s"));
        }
    }
    let retries = c.counters.rise(&format!("ib/{name}/rnr_nak_retry_err"), HOUR).unwrap_or(0);
    if retries > 0 {
        high.push(format!("rnr_nak_retry_err rose by {retries} within an hour"));
    }
    if high.is_empty() {
        return;
    }
    let mut f = sink.finding("roce.counters", "roce", Status::Warn, Some(port_device(name)));
    f.action = Action::None;
    f.text = "transport errors".into();
    f.evidence = format!("{name}: {}", high.join("; "));
    f.mend = "look at flow control and congestion of the fabric, and at the peers".into();
    sink.push(f);
}

fn subnet(c: &Context<'_>, sink: &mut Sink<'_>, port: &IbPort, name: &str) {
    let up = port.state.value() == Some(&4);
    if !up || port.link_layer.value().is_some_and(|l| l != "InfiniBand") {
        return;
    }
    let mut warn = |token: &str, text: &str, evidence: String| {
        let mut f = sink.finding("ib.sm_pkey", token, Status::Warn, Some(port_device(name)));
        f.action = Action::None;
        f.fault = Fault::Setup;
        f.text = text.into();
        f.evidence = evidence;
        f.mend = "look at the subnet manager and its partition configuration".into();
        sink.push(f);
    };
    if port.sm_lid.value() == Some(&0) {
        warn("ibsm", "no subnet manager", format!("{name}: sm_lid is 0"));
    }
    if let Some(keys) = port.pkeys.value() {
        // The top bit only says full or limited member.
        let has = |key: &u16| {
            keys.iter().any(|k| k & 0x7fff == key & 0x7fff && (key & 0x8000 == 0 || k & 0x8000 != 0))
        };
        let missing: Vec<String> =
            c.profile.ib_pkeys.iter().filter(|k| !has(k)).map(|k| format!("{k:#06x}")).collect();
        if !missing.is_empty() {
            warn(
                "ibpkey",
                "partition key missing",
                format!("{name}: {} not among its keys", missing.join(", ")),
            );
        }
    }
}

fn firmware(c: &Context<'_>, sink: &mut Sink<'_>) {
    if !sink.on("nic.firmware") {
        return;
    }
    // Version and device by board: cards of different kinds may differ.
    let mut boards: BTreeMap<&str, BTreeMap<&str, Vec<&str>>> = BTreeMap::new();
    for (name, port) in c.facts.ib.value().into_iter().flatten() {
        if let (Some(board), Some(version)) = (port.board.value(), port.firmware.value()) {
            boards.entry(board).or_default().entry(version).or_default().push(name);
        }
    }
    if boards.is_empty() {
        let status = if why_missing(&c.facts.ib).is_some() { Status::Unknown } else { Status::Unsupported };
        sink.done("nic.firmware", status, "no card tells its firmware");
        return;
    }
    let mut warn = |text: String, evidence: String| {
        let mut f = sink.finding("nic.firmware", "nicfw", Status::Warn, None);
        f.action = Action::None;
        f.fault = Fault::Setup;
        f.text = text;
        f.evidence = evidence;
        f.mend = "update the cards to one release".into();
        sink.push(f);
    };
    for (board, versions) in &boards {
        if versions.len() > 1 {
            let list: Vec<String> =
                versions.iter().map(|(v, on)| format!("{v} on {}", on.join(" "))).collect();
            warn(
                format!("{} firmware releases on cards of one board", versions.len()),
                format!("{board}: {}", list.join("; ")),
            );
        }
        if let Some(want) = &c.profile.ib_firmware {
            for (version, on) in versions.iter().filter(|(v, _)| *v != want) {
                warn(format!("firmware {version}, not {want}"), format!("{board}: {}", on.join(" ")));
            }
        }
    }
    sink.done("nic.firmware", Status::Pass, format!("{} boards", boards.len()));
}

fn modules(c: &Context<'_>, sink: &mut Sink<'_>) {
    if !sink.on("ib.modules") {
        return;
    }
    let read = |name: &str| c.facts.node.modules.contains_key(name);
    if !c.profile.modules.iter().flat_map(|w| w.split('|')).all(read) {
        return sink.unknown("ib.modules", "modules", None, "the folder of modules in sysfs is not there");
    }
    let loaded = |name: &str| c.facts.node.modules.get(name).copied().unwrap_or(false);
    for want in c.profile.modules.iter().filter(|w| !w.split('|').any(loaded)) {
        let mut f = sink.finding("ib.modules", "modules", Status::Fail, None);
        f.action = Action::RestartService;
        f.fault = Fault::Setup;
        f.text = format!("module {} is not loaded", want.replace('|', " or "));
        f.evidence = format!("none of {want} in /sys/module");
        f.mend = "modprobe it; see why the boot did not".into();
        sink.push(f);
    }
    let n = c.profile.modules.len();
    let status = if n == 0 { Status::Unsupported } else { Status::Pass };
    sink.done("ib.modules", status, format!("{n} modules in the profile"));
}

fn interfaces(c: &Context<'_>, sink: &mut Sink<'_>) {
    if !sink.on("net.link") {
        return;
    }
    let expected = &c.profile.net_port;
    if expected.is_empty() {
        sink.done("net.link", Status::Unsupported, "no interface in the profile");
        return;
    }
    let Some(all) = c.facts.node.net.value() else {
        sink.unknown("net.link", "netlink", None, why_missing(&c.facts.node.net).unwrap_or("no interfaces"));
        return;
    };
    for want in expected {
        let device = Device::named(DeviceKind::Net, want.name.as_str());
        let Some(port) = all.get(&want.name) else {
            down(sink, device, "interface missing", format!("no {} in /sys/class/net", want.name));
            continue;
        };
        // "unknown" is what drivers say that do not track it.
        let up = matches!(port.operstate.as_str(), "up" | "unknown") && port.carrier.value() != Some(&false);
        if !up {
            let carrier = match port.carrier {
                Reading::Value(true) => "1",
                Reading::Value(false) => "0",
                _ => "not readable",
            };
            down(
                sink,
                device,
                "link is down",
                format!("{}: operstate {}, carrier {carrier}", want.name, port.operstate),
            );
            continue;
        }
        set_up(sink, all, port, want, device);
    }
    sink.done("net.link", Status::Pass, format!("{} interfaces in the profile", expected.len()));
}

fn down(sink: &mut Sink<'_>, device: Device, text: &str, evidence: String) {
    let mut f = sink.finding("net.link", "netlink", Status::Fail, Some(device));
    f.action = Action::Repair;
    f.text = text.into();
    f.evidence = evidence;
    f.mend = "check cable, transceiver and switch port".into();
    sink.push(f);
}

fn set_up(
    sink: &mut Sink<'_>,
    all: &BTreeMap<String, NetPort>,
    port: &NetPort,
    want: &crate::config::NetPortProfile,
    device: Device,
) {
    let mut warn = |token: &str, text: String| {
        let mut f = sink.finding("net.link", token, Status::Warn, Some(device.clone()));
        f.action = Action::None;
        f.fault = Fault::Setup;
        f.evidence = format!("{}: {text}", want.name);
        f.text = text;
        f.mend = "see the interface's configuration, cable and switch port".into();
        sink.push(f);
    };
    match (port.mtu.value(), want.mtu) {
        (Some(mtu), Some(wanted)) if *mtu != wanted => warn("netmtu", format!("MTU {mtu}, not {wanted}")),
        _ => {}
    }
    match (port.speed_mbps.value(), want.speed_mbps) {
        (Some(speed), Some(wanted)) if *speed < wanted => {
            warn("netspeed", format!("{speed} instead of {wanted} Mb/s"));
        }
        _ => {}
    }
    let lost: Vec<&str> = port
        .slaves
        .iter()
        .filter(|s| all.get(*s).is_none_or(|p| p.operstate != "up" || p.carrier.value() == Some(&false)))
        .map(String::as_str)
        .collect();
    if !lost.is_empty() {
        warn("netbond", format!("{} of {} slaves down: {}", lost.len(), port.slaves.len(), lost.join(" ")));
    }
}

/// The device at a PCI address (`dddd:bb:dd`, with or without function), as reasons name it; none when this node has no GPU,
/// card, NVMe disk or bridge above one there.
pub fn function_device(c: &Context<'_>, pci: &str) -> Option<Device> {
    if let Some(gpu) = device_at(c, pci) {
        return Some(gpu);
    }
    let amd = c.facts.amd.value().map_or(&[][..], Vec::as_slice);
    if let Some(at) = amd.iter().position(|g| same_slot(&g.pci, pci)) {
        return Some(Device::gpu(u32::try_from(at).unwrap_or(0), &amd[at].pci));
    }
    let with = |kind, name: &str| Device { kind, name: name.into(), index: None, pci: Some(pci.to_string()) };
    let at = |other: &Option<String>| other.as_deref().is_some_and(|o| same_slot(o, pci));
    if let Some((name, _)) = c.facts.ib.value().into_iter().flatten().find(|(_, p)| at(&p.pci)) {
        return Some(Device { pci: Some(pci.to_string()), ..port_device(name) });
    }
    if let Some((name, _)) = c.facts.node.net.value().into_iter().flatten().find(|(_, p)| at(&p.pci)) {
        return Some(with(DeviceKind::Net, name));
    }
    let functions = c.facts.node.functions.value()?;
    let (address, f) = functions.iter().find(|(address, _)| same_slot(address, pci))?;
    Some(with(if f.kind == FunctionKind::Gpu { DeviceKind::Gpu } else { DeviceKind::Pci }, address))
}

fn functions(c: &Context<'_>, sink: &mut Sink<'_>) {
    const CHECKS: [&str; 3] = ["gpu.aer", "gpu.pcie_speed", "pcie.acs"];
    let checks: Vec<&str> = CHECKS.into_iter().filter(|check| sink.on(check)).collect();
    if checks.is_empty() {
        return;
    }
    let Some(all) = c.facts.node.functions.value() else {
        let status = if why_missing(&c.facts.node.functions).is_some() {
            Status::Unknown
        } else {
            Status::Unsupported
        };
        for check in checks {
            sink.done(check, status, why_missing(&c.facts.node.functions).unwrap_or("no PCI bus"));
        }
        return;
    };
    for check in checks {
        let any = match check {
            "gpu.aer" => aer(c, sink, all),
            "gpu.pcie_speed" => speed(c, sink, all),
            _ => acs(c, sink, all),
        };
        let status = if any { Status::Pass } else { Status::Unsupported };
        sink.done(check, status, format!("{} functions", all.len()));
    }
}

/// Network cards that do not answer on the PCI bus: their ports still show what they were.
fn cards(c: &Context<'_>, sink: &mut Sink<'_>) {
    if !sink.on("net.driver") {
        return;
    }
    let dead = |f: &PciFunction| f.config_all_ones.value() == Some(&true);
    for (pci, _) in c.facts.node.functions.value().into_iter().flatten().filter(|(_, f)| dead(f)) {
        let at = |other: &Option<String>| other.as_deref().is_some_and(|o| same_slot(o, pci));
        let ports = c.facts.ib.value().into_iter().flatten().filter(|(_, p)| at(&p.pci));
        let mut interfaces = c.facts.node.net.value().into_iter().flatten().filter(|(_, p)| at(&p.pci));
        let named = |name: &str| c.profile.ib_port.iter().any(|p| format!("{}/{}", p.device, p.port) == name);
        let ours = ports.map(|(name, _)| name).any(|name| named(name))
            || interfaces.any(|(name, _)| c.profile.net_port.iter().any(|p| p.name == *name));
        // A card for storage or management: the node still works.
        let status = if ours { Status::Fail } else { Status::Warn };
        let mut f = sink.finding("net.driver", "nicbus", status, function_device(c, pci));
        f.text = "card does not answer on the PCI bus".into();
        f.evidence = format!("{pci}: config space reads all ones");
        f.mend = "reboot the node; if it comes back, reseat or replace the card".into();
        sink.push(f);
    }
}

/// True when some function counts its errors.
fn aer(c: &Context<'_>, sink: &mut Sink<'_>, all: &BTreeMap<String, PciFunction>) -> bool {
    for pci in all.keys() {
        let rise =
            |name: &str, window: f64| c.counters.rise(&format!("aer/{pci}/{name}"), window).unwrap_or(0);
        let counter = format!("aer/{pci}/correctable");
        let corrected = if c.counters.watched(&counter, RATE) < LEAST {
            0.0
        } else {
            c.counters.rate(&counter, RATE).unwrap_or(0.0) * 60.0
        };
        let (fatal, nonfatal) = (rise("fatal", HOUR), rise("nonfatal", HOUR));
        let (token, status, text) = if fatal > 0 {
            ("aerfatal", Status::Fail, format!("{fatal} fatal PCIe errors in 1 h"))
        } else if nonfatal > 0 {
            let status = if nonfatal >= 3 { Status::Fail } else { Status::Warn };
            ("aernonfat", status, format!("{nonfatal} non-fatal PCIe errors in 1 h"))
        } else if corrected > 100.0 {
            ("aercorr", Status::Warn, format!("{corrected:.0} corrected PCIe errors per minute"))
        } else {
            continue;
        };
        let mut f = sink.finding("gpu.aer", token, status, function_device(c, pci));
        let is_gpu = f.device.as_ref().is_some_and(|d| d.kind == DeviceKind::Gpu);
        f.scope = if is_gpu { Scope::Device } else { Scope::Node };
        f.action = if token == "aerfatal" { Action::Reboot } else { Action::Repair };
        f.evidence = format!(
            "{pci}: AER counters rose by {fatal} fatal and {nonfatal} non-fatal within 1 h, {corrected:.0} corrected per minute"
        );
        f.text = text;
        f.mend = "reboot the node; if it comes back, reseat the device, its cable or riser".into();
        sink.push(f);
    }
    all.values().any(|f| f.correctable.value().is_some())
}

/// Utilisation from which a GPU is under load, percent.
const BUSY_PERCENT: u32 = 50;

/// Percent of the last second in which a GPU at this address computed, as NVML says.
fn busy_percent(c: &Context<'_>, pci: &str) -> Option<u32> {
    let gpus = c.facts.nvml.value().map_or(&[][..], |n| &n.gpus);
    let gpu = gpus.iter().find(|g| g.pci.value().is_some_and(|p| same_slot(p, pci)))?;
    gpu.survey.as_ref()?.busy_percent.value().copied()
}

/// True when the profile asks for a speed and some GPU tells one, or one that works tells its speed.
fn speed(c: &Context<'_>, sink: &mut Sink<'_>, all: &BTreeMap<String, PciFunction>) -> bool {
    let mut any = false;
    for (pci, f) in all.iter().filter(|(_, f)| f.kind == FunctionKind::Gpu) {
        let port = f.above.first().and_then(|b| all.get(b)).and_then(|b| b.max_speed.value());
        // A GPU that left the bus says "Unknown": gpu.bus tells.
        let Some(own) = f.max_speed.value() else { continue };
        let both = port.map_or(*own, |p| p.min(*own));
        // Links slow down at idle, on every healthy node; a performance state tells nothing, since data-centre GPUs idle in P0.
        let load = busy_percent(c, pci).filter(|percent| *percent >= BUSY_PERCENT);
        if let (Some(now), Some(load)) = (f.speed.value(), load) {
            any = true;
            if *now < both {
                let mut finding =
                    sink.finding("gpu.pcie_speed", "pcieslow", Status::Warn, function_device(c, pci));
                finding.scope = Scope::Device;
                finding.action = Action::Reboot;
                finding.text = format!("PCIe runs at {now} of {both} GT/s under load");
                finding.evidence = format!(
                    "{pci}: current_link_speed {now} GT/s at {load} % utilisation, both ends can do {both}"
                );
                finding.mend =
                    "reboot the idle node to retrain the link; reseat the GPU if it comes back".into();
                sink.push_quiet(finding, 3);
            }
        }
        let Some(wanted) = c.profile.pcie_speed_gts else { continue };
        any = true;
        if both >= wanted {
            continue;
        }
        let mut finding = sink.finding("gpu.pcie_speed", "pciespeed", Status::Fail, function_device(c, pci));
        finding.scope = Scope::Device;
        finding.action = Action::Reboot;
        finding.text = format!("PCIe can do {both} of {wanted} GT/s");
        finding.evidence = format!(
            "{pci}: max_link_speed {own} GT/s, of the port above {}, expected {wanted}",
            port.map_or("not known".into(), f64::to_string)
        );
        finding.mend = "reboot the node; see the slot's settings in the firmware, then reseat".into();
        sink.push(finding);
    }
    any
}

/// True on bare metal with a bridge that has ACS.
fn acs(c: &Context<'_>, sink: &mut Sink<'_>, all: &BTreeMap<String, PciFunction>) -> bool {
    if c.facts.node.virtual_machine.value() == Some(&true) {
        return false;
    }
    let uses = |f: &&PciFunction| matches!(f.kind, FunctionKind::Gpu | FunctionKind::Nic);
    let above: std::collections::BTreeSet<&String> =
        all.values().filter(uses).flat_map(|f| &f.above).collect();
    let bridges: Vec<(&String, u16)> =
        above.iter().filter_map(|b| Some((*b, *all.get(*b)?.acs.value()?))).collect();
    let on: Vec<String> =
        bridges.iter().filter(|(_, v)| v & ACS_BITS != 0).map(|(b, v)| format!("{b} {v:#06x}")).collect();
    if !on.is_empty() {
        let mut f = sink.finding("pcie.acs", "acs", Status::Warn, None);
        f.action = Action::None;
        f.fault = Fault::Setup;
        f.text = format!("ACS is on in {} bridges: slow peer-to-peer", on.len());
        f.evidence = on.join(", ");
        f.mend = "switch ACS off in the firmware, or with setpci at boot".into();
        sink.push(f);
    }
    !bridges.is_empty()
}
