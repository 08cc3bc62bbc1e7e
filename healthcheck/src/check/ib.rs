//! InfiniBand and RoCE ports against the profile.

use std::collections::BTreeMap;

use super::{Context, Sink};
use crate::config::IbPortProfile;
use crate::facts::{IbPort, Reading};
use crate::verdict::{Action, Device, Status};

/// Logical state ACTIVE.
const ACTIVE: u32 = 4;
/// Counters that the kernel exposes with few bits, and the value at which they stick.
const SHORT_COUNTERS: [(&str, u64); 7] = [
    ("local_link_integrity_errors", 15),
    ("excessive_buffer_overrun_errors", 15),
    ("link_downed", 255),
    ("link_error_recovery", 255),
    ("symbol_error", 65_535),
    ("port_rcv_errors", 65_535),
    ("port_xmit_discards", 65_535),
];
/// Physical state LinkUp.
const LINK_UP: u32 = 5;

const CHECKS: [&str; 5] = ["ib.count", "ib.state", "ib.rate", "ib.flap", "ib.saturated"];

pub fn run(c: &Context<'_>, sink: &mut Sink<'_>) {
    let none = BTreeMap::new();
    let ports = match &c.facts.ib {
        Reading::Value(ports) => ports,
        Reading::Unsupported => &none,
        Reading::Unknown(why) | Reading::Hung(why) => {
            let expected = !c.profile.ib_port.is_empty();
            if sink.on("ib.state") && expected {
                sink.unknown("ib.state", "ibstate", None, why);
            }
            let status = if expected { Status::Unknown } else { Status::Unsupported };
            for check in CHECKS.into_iter().filter(|check| sink.on(check)).collect::<Vec<_>>() {
                sink.done(check, status, why.as_str());
            }
            return;
        }
    };
    let expected = &c.profile.ib_port;
    for profile in expected {
        let name = format!("{}/{}", profile.device, profile.port);
        let device = super::fabric::port_device(&name);
        match ports.get(&name) {
            Some(port) => {
                if state(sink, port, &name, &device) {
                    rate(sink, port, profile, &name, &device);
                }
                flap(c, sink, port, &name, &device);
                saturated(sink, port, &name, &device);
            }
            None => missing(sink, ports, &name, device),
        }
    }
    let status = if expected.is_empty() { Status::Unsupported } else { Status::Pass };
    let detail = format!("{} ports, {} in the profile", ports.len(), expected.len());
    for check in CHECKS {
        if sink.on(check) {
            sink.done(check, status, detail.clone());
        }
    }
}

fn missing(sink: &mut Sink<'_>, ports: &BTreeMap<String, IbPort>, name: &str, device: Device) {
    if !sink.on("ib.count") {
        return;
    }
    let mut f = sink.finding("ib.count", "ibcount", Status::Fail, Some(device));
    f.text = "port missing".into();
    f.evidence = format!("no port {name} in /sys/class/infiniband ({} ports there)", ports.len());
    f.mend = "reboot the node; if it stays away, reseat the adapter".into();
    sink.push(f);
}

/// True when the port is up.
fn state(sink: &mut Sink<'_>, port: &IbPort, name: &str, device: &Device) -> bool {
    let (Some(logical), Some(physical)) = (port.state.value(), port.phys_state.value()) else {
        if sink.on("ib.state") {
            let why = super::why_missing(&port.state).or(super::why_missing(&port.phys_state));
            sink.unknown("ib.state", "ibstate", Some(device.clone()), why.unwrap_or("no state file"));
        }
        return false;
    };
    if (*logical, *physical) == (ACTIVE, LINK_UP) {
        return true;
    }
    if !sink.on("ib.state") {
        return false;
    }
    let mut f = sink.finding("ib.state", "ibstate", Status::Fail, Some(device.clone()));
    f.evidence =
        format!("{name}: state {logical}, phys_state {physical}, expected 4 (ACTIVE) and 5 (LinkUp)");
    if *physical == LINK_UP {
        f.action = Action::RestartService;
        f.text = "port not activated by the subnet manager".into();
        f.mend = "look at the subnet manager; the physical link is up".into();
    } else {
        f.action = Action::Repair;
        f.text = "port is down".into();
        f.mend = "check cable, transceiver and switch port".into();
    }
    sink.push(f);
    false
}

fn rate(sink: &mut Sink<'_>, port: &IbPort, profile: &IbPortProfile, name: &str, device: &Device) {
    if !sink.on("ib.rate") {
        return;
    }
    match &port.rate_gbps {
        Reading::Value(rate) if *rate < profile.rate_gbps => {
            let mut f = sink.finding("ib.rate", "ibrate", Status::Fail, Some(device.clone()));
            f.action = Action::Repair;
            f.text = format!("{rate} instead of {} Gb/s", profile.rate_gbps);
            f.evidence = format!("{name}: rate {rate} Gb/s, expected {}", profile.rate_gbps);
            f.mend = "check cable and transceiver: lanes or speed were lost".into();
            sink.push(f);
        }
        Reading::Unknown(why) | Reading::Hung(why) => {
            sink.unknown("ib.rate", "ibrate", Some(device.clone()), why)
        }
        _ => {}
    }
}

/// The value at which a counter of a port sticks; none for one with many bits.
pub fn short_counter_top(name: &str) -> Option<u64> {
    SHORT_COUNTERS.iter().find(|(n, _)| *n == name).map(|(_, top)| *top)
}

/// True when a counter stands at the top of its few bits and cannot show anything any more.
pub fn blind(port: &IbPort, name: &str) -> bool {
    SHORT_COUNTERS.iter().any(|(n, top)| *n == name && port.counters.get(name) == Some(top))
}

fn flap(c: &Context<'_>, sink: &mut Sink<'_>, port: &IbPort, name: &str, device: &Device) {
    if !sink.on("ib.flap") {
        return;
    }
    // A stuck counter of the card says nothing; that of its interface has 64 bits.
    let mut counters = carrier_counters(c, port, name);
    if !blind(port, "link_downed") {
        counters.push(format!("ib/{name}/link_downed"));
    }
    // Both count the same event.
    let rise =
        |hours: f64| counters.iter().filter_map(|n| c.counters.rise(n, hours * 3600.0)).max().unwrap_or(0);
    let (status, n, hours) = match (rise(3.0), rise(1.0)) {
        (n, _) if n >= 3 => (Status::Fail, n, 3),
        (_, n) if n >= 1 => (Status::Warn, n, 1),
        _ => return,
    };
    let mut f = sink.finding("ib.flap", "ibflap", status, Some(device.clone()));
    f.action = Action::Repair;
    f.text = format!("link went down {n} times in {hours} h");
    f.evidence = format!("{name}: {} rose by {n} within {hours} h", counters.join(" or "));
    f.mend = "check cable, transceiver and switch port".into();
    sink.push(f);
}

/// Counters of the network interfaces on this port.
fn carrier_counters(c: &Context<'_>, port: &IbPort, name: &str) -> Vec<String> {
    let number = name.rsplit_once('/').and_then(|(_, n)| n.parse::<u32>().ok()).unwrap_or(1);
    let interfaces = c.facts.node.net.value().into_iter().flatten();
    interfaces
        .filter(|(_, net)| {
            // One function per port is usual; where two share one, the kernel numbers them from 0.
            port.pci.is_some() && net.pci == port.pci && (net.dev_port == 0 || net.dev_port + 1 == number)
        })
        .map(|(interface, _)| format!("net/{interface}/carrier_down_count"))
        .collect()
}

fn saturated(sink: &mut Sink<'_>, port: &IbPort, name: &str, device: &Device) {
    if !sink.on("ib.saturated") {
        return;
    }
    let stuck: Vec<&str> = SHORT_COUNTERS.iter().map(|(n, _)| *n).filter(|n| blind(port, n)).collect();
    if stuck.is_empty() {
        return;
    }
    let mut f = sink.finding("ib.saturated", "ibblind", Status::Warn, Some(device.clone()));
    f.action = Action::None;
    f.fault = crate::verdict::Fault::Setup;
    f.text = "error counters are stuck at their top".into();
    f.evidence = format!("{name}: {} cannot count further", stuck.join(", "));
    f.mend = "clear them with `perfquery -R` as administrator".into();
    sink.push(f);
}
