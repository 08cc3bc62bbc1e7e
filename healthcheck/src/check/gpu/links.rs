//! NVLink, its fabric and services, NVLink-C2C, and the PCIe link.

use super::{Seen, each, gpus, judged, rate};
use crate::check::{Context, Sink};
use crate::facts::{Fabric, Reading};
use crate::verdict::{Action, Fault, Status};

/// A fabric may still register this long after boot, in seconds.
const FABRIC_GRACE: f64 = 120.0;
/// Reads in a row before a bad health mask is a fault.
const MASK_READS: u32 = 3;
/// Share of the profile's speed below which a link is slow.
const SLOW_LINK: f64 = 0.95;
/// Recoveries a minute, CRC errors a second, and bit error rate after correction that are too many.
const RECOVERIES_PER_MINUTE: f64 = 1.0;
const CRC_PER_SECOND: f64 = 100.0;
const BIT_ERROR_RATE: f64 = 1e-12;
/// Replays a minute and lane that DCGM allows, by PCIe generation from 1 on.
const REPLAYS_PER_LANE: [f64; 6] = [0.15, 0.3, 0.48, 0.96, 1.92, 3.84];

/// `nvmlGpuFabricState_t`.
const NOT_SUPPORTED: u32 = 0;
const COMPLETED: u32 = 3;
/// `nvmlReturn_t`.
const SUCCESS: u32 = 0;
const STATUS_NOT_SUPPORTED: u32 = 3;

pub fn run(c: &Context<'_>, sink: &mut Sink<'_>) {
    each(c, sink, "gpu.nvlink_speed", "nvspeed", speed);
    each(c, sink, "gpu.nvlink_errors", "nverrors", errors);
    each(c, sink, "gpu.fabric_state", "fabric", fabric);
    fabric_manager(c, sink);
    imex(c, sink);
    each(c, sink, "gpu.c2c", "c2c", c2c);
    each(c, sink, "gpu.pcie_replay", "pciereplay", replay);
}

/// Registration with the fabric is known not to be complete.
pub fn fabric_incomplete(fabric: &Reading<Fabric>) -> bool {
    fabric.value().is_some_and(|f| has_fabric(f) && !complete(f))
}

fn has_fabric(f: &Fabric) -> bool {
    f.state != NOT_SUPPORTED && f.status != STATUS_NOT_SUPPORTED
}

fn complete(f: &Fabric) -> bool {
    f.state == COMPLETED && f.status == SUCCESS
}

fn speed(c: &Context<'_>, sink: &mut Sink<'_>, seen: &Seen<'_>) -> Reading<()> {
    let Some(expected) = c.profile.gpu.nvlink_mbps else { return Reading::Unsupported };
    judged(&seen.survey.nvlink_speeds, |speeds| {
        #[allow(clippy::cast_precision_loss, reason = "a link runs far below 2^53 MB/s")]
        let slow: Vec<_> =
            speeds.iter().filter(|(_, s)| (**s as f64) < expected as f64 * SLOW_LINK).collect();
        if let Some((link, speed)) = slow.iter().min_by_key(|(_, s)| **s) {
            let mut f = seen.finding(sink, "gpu.nvlink_speed", "nvspeed", Status::Warn);
            f.action = Action::ResetGpu;
            f.text = format!("{} slow NVLinks", slow.len());
            f.evidence = format!("NVML: link {link} runs at {speed} MB/s, expected {expected}");
            f.mend = "reset the GPUs of the fabric, then measure collectives within the node".into();
            sink.push(f);
        }
    })
}

fn errors(c: &Context<'_>, sink: &mut Sink<'_>, seen: &Seen<'_>) -> Reading<()> {
    judged(&seen.details.nvlink_errors, |now| {
        let recoveries = rate(c, seen, "nvlink_recovery", 60.0).unwrap_or(0.0) * 60.0;
        let crc = rate(c, seen, "nvlink_crc", 60.0).unwrap_or(0.0);
        let (what, lasting) = match now.worst_ber {
            _ if recoveries >= RECOVERIES_PER_MINUTE => (
                format!("{recoveries:.0} recoveries a minute"),
                lasts(c, seen, "nvlink_recovery", RECOVERIES_PER_MINUTE / 60.0),
            ),
            _ if crc >= CRC_PER_SECOND => {
                (format!("{crc:.0} CRC errors a second"), lasts(c, seen, "nvlink_crc", CRC_PER_SECOND))
            }
            // The rate is of all time: an old burst stays in it. It lasts while errors are added.
            Some((link, rate)) if rate > BIT_ERROR_RATE => {
                (format!("bit error rate {rate:.0e} on link {link}"), lasts(c, seen, "nvlink_crc", 0.0))
            }
            _ => return,
        };
        let status = if lasting { Status::Fail } else { Status::Warn };
        let mut f = seen.finding(sink, "gpu.nvlink_errors", "nverrors", status);
        f.action = Action::Repair;
        f.text = format!("NVLink errors: {what}");
        let links: Vec<String> = now.links.iter().map(u32::to_string).collect();
        f.evidence = format!(
            "NVML: {what}; links with errors since driver load: {}",
            if links.is_empty() { "none".to_string() } else { links.join(",") }
        );
        f.mend = "test NVLink on the idle node; reseat the GPU or its baseboard if it stays".into();
        sink.push(f);
    })
}

/// The counter rose by as much a second in the last minute, in the four minutes before, and in the five before those.
fn lasts(c: &Context<'_>, seen: &Seen<'_>, name: &str, per_second: f64) -> bool {
    let key = format!("gpu/{}/{name}", seen.pci.unwrap_or_default());
    c.counters.lasts(&key, per_second, &[60.0, 240.0, 300.0])
}

fn fabric(c: &Context<'_>, sink: &mut Sink<'_>, seen: &Seen<'_>) -> Reading<()> {
    let f = match &seen.details.fabric {
        Reading::Value(f) if has_fabric(f) => f,
        // Not part of a fabric, or trained without one.
        Reading::Value(_) => return Reading::Unsupported,
        other => return judged(other, |_| {}),
    };
    if !complete(f) {
        let young = c.facts.uptime < FABRIC_GRACE;
        let status = if young { Status::Warn } else { Status::Fail };
        let state = match f.state {
            1 => "not started",
            2 => "in progress",
            COMPLETED => "failed",
            _ => "in an unknown state",
        };
        let mut finding = seen.finding(sink, "gpu.fabric_state", "fabric", status);
        finding.action = Action::RestartService;
        finding.text = format!("fabric registration {state}");
        finding.evidence = format!(
            "NVML fabric state {}, status {}{}",
            f.state,
            f.status,
            if young { "; less than 2 minutes after boot" } else { "" }
        );
        finding.mend = "restart the fabric manager once the node is idle; reboot if it stays".into();
        sink.push(finding);
    } else if let Some((lasting, what)) = f.health_mask.and_then(bad_mask) {
        let status = if lasting { Status::Fail } else { Status::Warn };
        let mut finding = seen.finding(sink, "gpu.fabric_state", "fabhealth", status);
        finding.action = Action::RestartService;
        finding.text = format!("fabric: {what}");
        finding.evidence = format!("NVML fabric health mask {:#x}: {what}", f.health_mask.unwrap_or(0));
        finding.mend = "check the other GPUs and switches of the fabric, then restart its manager".into();
        sink.push_after(finding, MASK_READS);
    }
    Reading::Value(())
}

/// `NVML_GPU_FABRIC_HEALTH_MASK_*`: two bits a flag (1 true, 2 false, 0 cannot tell), four for the configuration
/// (1 right, 0 cannot tell). A route under recovery is no fault yet.
fn bad_mask(mask: u32) -> Option<(bool, &'static str)> {
    const TRUE: u32 = 1;
    let flag = |shift: u32| (mask >> shift) & 3 == TRUE;
    if (mask >> 8) & 0xf > 1 {
        Some((true, "wrong configuration"))
    } else if flag(4) {
        Some((true, "route unhealthy"))
    } else if flag(6) {
        Some((true, "access time-out under recovery"))
    } else if flag(0) {
        Some((true, "bandwidth degraded"))
    } else if flag(2) {
        Some((false, "route under recovery"))
    } else {
        None
    }
}

/// State of the service, but only where the fabric itself does not say that all is well, and only where NVSwitches
/// show on the PCI bus or the profile asks for it: a GB200 tray has NVLink and no local manager.
fn fabric_manager(c: &Context<'_>, sink: &mut Sink<'_>) {
    const CHECK: &str = "gpu.fabricmanager";
    if !sink.on(CHECK) {
        return;
    }
    let switches = c.facts.pci.value().is_some_and(|p| !p.switches.is_empty());
    if !c.profile.gpu.fabric_manager.unwrap_or(switches) {
        return sink.done(CHECK, Status::Unsupported, "no NVSwitch on the PCI bus, none in the profile");
    }
    let fabrics: Vec<_> = gpus(c).filter_map(|g| g.details.as_ref()?.fabric.value()).collect();
    if !fabrics.is_empty() && fabrics.iter().all(|f| complete(f)) {
        return sink.done(CHECK, Status::Pass, "the fabric is complete");
    }
    let service = match &c.facts.gpu_node.fabric_manager {
        Some(Reading::Value(service)) => service,
        Some(Reading::Unknown(why) | Reading::Hung(why)) => {
            return sink.unknown(CHECK, "fabricmgr", None, why);
        }
        Some(Reading::Unsupported) | None => {
            return sink.done(CHECK, Status::Unsupported, "no systemd here");
        }
    };
    let installed = service.load == "loaded";
    if !installed && c.profile.gpu.fabric_manager != Some(true) {
        return sink.done(CHECK, Status::Unsupported, format!("nvidia-fabricmanager is {}", service.load));
    }
    if installed && service.active == "active" {
        return sink.done(CHECK, Status::Pass, "active");
    }
    let mut f = sink.finding(CHECK, "fabricmgr", Status::Fail, None);
    f.action = Action::RestartService;
    f.fault = Fault::Setup;
    let state = if installed { &service.active } else { &service.load };
    f.text = format!("fabric manager is {state}");
    f.evidence = format!("nvidia-fabricmanager is {state}, and the fabric is not complete");
    f.mend = "systemctl restart nvidia-fabricmanager; its log says why it stopped".into();
    sink.push(f);
}

/// Only where the profile says that jobs need it: no daemon runs while no domain is active.
fn imex(c: &Context<'_>, sink: &mut Sink<'_>) {
    const CHECK: &str = "gpu.imex";
    if !sink.on(CHECK) {
        return;
    }
    if !c.profile.gpu.imex {
        return sink.done(CHECK, Status::Unsupported, "no profile.gpu.imex");
    }
    let state = match &c.facts.gpu_node.imex {
        Some(Reading::Value(state)) => state,
        Some(Reading::Unknown(why) | Reading::Hung(why)) => return sink.unknown(CHECK, "imex", None, why),
        Some(Reading::Unsupported) | None => return sink.unknown(CHECK, "imex", None, "not read"),
    };
    let why = match (state.as_str(), c.facts.gpu_node.imex_channels) {
        ("READY", true) => return sink.done(CHECK, Status::Pass, "READY"),
        ("READY", false) => "no channel in /dev/nvidia-caps-imex-channels".to_string(),
        (state, _) => format!("nvidia-imex-ctl -q says \"{state}\""),
    };
    let mut f = sink.finding(CHECK, "imex", Status::Fail, None);
    f.action = Action::RestartService;
    f.fault = Fault::Setup;
    f.text = "IMEX is not ready".into();
    f.evidence = why;
    f.mend = "systemctl restart nvidia-imex; check that its nodes file names the nodes of the domain".into();
    sink.push(f);
}

fn c2c(c: &Context<'_>, sink: &mut Sink<'_>, seen: &Seen<'_>) -> Reading<()> {
    judged(&seen.details.c2c, |link| {
        let down: Vec<String> =
            link.links.iter().filter(|(_, up)| !**up).map(|(l, _)| l.to_string()).collect();
        let risen = seen.pci.and_then(|pci| c.counters.rise(&format!("gpu/{pci}/c2c_errors"), 3600.0));
        let (status, text, evidence) = match (down.is_empty(), risen.unwrap_or(0)) {
            (false, _) => (
                Status::Fail,
                "C2C link is down".to_string(),
                format!("NVML: C2C links down: {}", down.join(",")),
            ),
            (true, 0) => return,
            (true, n) => (
                Status::Warn,
                format!("{n} C2C errors within an hour"),
                format!("NVML: C2C interrupts and replays rose by {n} within an hour"),
            ),
        };
        let mut f = seen.finding(sink, "gpu.c2c", "c2c", status);
        f.text = text;
        f.evidence = evidence;
        f.mend = "reboot the node; if it comes back, replace the board: CPU and GPU are one".into();
        sink.push(f);
    })
}

fn replay(c: &Context<'_>, sink: &mut Sink<'_>, seen: &Seen<'_>) -> Reading<()> {
    judged(&seen.details.pcie_replays, |_| {
        let (Some(lanes), Some(generation)) =
            (seen.details.pcie_lanes.value(), seen.details.pcie_generation.value())
        else {
            return;
        };
        let at = (generation.saturating_sub(1) as usize).min(REPLAYS_PER_LANE.len() - 1);
        let most = f64::from(*lanes) * REPLAYS_PER_LANE[at];
        let now = rate(c, seen, "pcie_replays", 60.0).unwrap_or(0.0) * 60.0;
        if now > most {
            let mut f = seen.finding(sink, "gpu.pcie_replay", "pciereplay", Status::Warn);
            f.action = Action::Repair;
            f.text = format!("{now:.0} PCIe replays a minute");
            f.evidence = format!(
                "NVML: {now:.1} replays a minute, {most:.1} is the most for x{lanes} generation {generation}"
            );
            f.mend = "test the link under load on the idle node; reseat the GPU or its riser".into();
            sink.push(f);
        }
    })
}
