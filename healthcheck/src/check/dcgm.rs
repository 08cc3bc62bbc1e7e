//! DCGM's opinion. Of its watches a warning, never more: NVML's state decides. Of its tests on an idle node a failure, where DCGM
//! itself says that the GPU must not be used; that they pass takes nothing from any other check.

use super::{Context, Sink, why_missing};
use crate::facts::{DcgmTest, Reading};
use crate::verdict::{Action, Device, DeviceKind, Fault, Status};

const CHECK: &str = "gpu.dcgm";
const DIAG: &str = "act.dcgm";

pub fn run(c: &Context<'_>, sink: &mut Sink<'_>) {
    if sink.on(CHECK) {
        health(c, sink);
    }
    if sink.on(DIAG) {
        diag(c, sink);
    }
}

fn diag(c: &Context<'_>, sink: &mut Sink<'_>) {
    let diag = match &c.facts.dcgm_diag {
        Some(Reading::Value(diag)) => diag,
        None => {
            return sink.done(
                DIAG,
                Status::Unsupported,
                "dcgmi is not installed, switched off, or a job runs",
            );
        }
        Some(Reading::Unsupported) => {
            return sink.done(DIAG, Status::Unsupported, "MIG is on: DCGM tests no slices");
        }
        Some(other) => return sink.unknown(DIAG, "dcgmdiag", None, why_missing(other).unwrap_or("not read")),
    };
    let mut ran = 0;
    for test in &diag.tests {
        let Some((status, fault)) = judged(test) else { continue };
        ran += 1;
        if status == Status::Pass {
            continue;
        }
        let name = format!("dcgm:{}", test.entity.replace(' ', ""));
        let device = (!test.entity.is_empty()).then(|| Device::named(DeviceKind::Gpu, name));
        let mut f = sink.finding(DIAG, "dcgmdiag", status, device);
        f.action = if status == Status::Fail { Action::Reboot } else { Action::None };
        f.fault = fault;
        f.text = format!("DCGM test {}: {}", test.test, test.status);
        f.evidence =
            format!("dcgmi diag (DCGM {}): {} {}: {}", diag.version, test.test, test.entity, test.text);
        f.mend = match status {
            Status::Fail => {
                "reset the GPU or reboot, test again with dcgmi diag -r 3; replace the GPU if it fails again"
            }
            _ => "compare with the gpu.* checks, which read the GPU itself",
        }
        .into();
        sink.push(f);
    }
    if ran == 0 {
        return sink.done(DIAG, Status::Unsupported, format!("DCGM {} skipped every test", diag.version));
    }
    sink.done(DIAG, Status::Pass, format!("DCGM {}: {ran} results", diag.version));
}

/// What a result is worth; none for a test that was skipped. DCGM 4 says how grave an error is: a setting, or one that lets the
/// GPU work on, never takes the node away. DCGM 3 does not say, so it only warns.
fn judged(test: &DcgmTest) -> Option<(Status, Fault)> {
    /// `dcgmErrorSeverity_t`.
    const ISOLATE: u32 = 2;
    const TRIAGE: u32 = 4;
    const CONFIG: u32 = 5;
    const RESET: u32 = 6;
    Some(match (test.status.as_str(), test.severity) {
        ("pass", _) => (Status::Pass, Fault::Hardware),
        ("skip" | "skipped", _) => return None,
        ("fail", Some(ISOLATE | TRIAGE | RESET)) => (Status::Fail, Fault::Hardware),
        ("fail" | "warn", Some(CONFIG)) => (Status::Warn, Fault::Setup),
        ("fail" | "warn", _) => (Status::Warn, Fault::Hardware),
        _ => (Status::Unknown, Fault::Hardware),
    })
}

fn health(c: &Context<'_>, sink: &mut Sink<'_>) {
    let dcgm = match &c.facts.dcgm {
        Some(Reading::Value(dcgm)) => dcgm,
        None | Some(Reading::Unsupported) => {
            return sink.done(CHECK, Status::Unsupported, "dcgmi is not installed");
        }
        Some(other) => {
            return sink.unknown(CHECK, "dcgm", None, why_missing(other).unwrap_or("not read"));
        }
    };
    for incident in &dcgm.incidents {
        // DCGM counts GPUs by itself: its number need not be NVML's, nor that of /dev/nvidiaN.
        let name = format!("dcgm:{}", incident.entity.replace(' ', ""));
        let mut f = sink.finding(CHECK, "dcgm", Status::Warn, Some(Device::named(DeviceKind::Gpu, name)));
        f.action = Action::None;
        let system = if incident.system.is_empty() { "health" } else { &incident.system };
        f.text = format!("DCGM: {system}: {}", incident.health);
        f.evidence =
            format!("DCGM's {} says {}: {} {}", incident.entity, incident.health, system, incident.text);
        f.mend = "compare with the gpu.* checks, which read the GPU itself".into();
        sink.push(f);
    }
    if dcgm.incidents.is_empty() && dcgm.overall != "Healthy" {
        let mut f = sink.finding(CHECK, "dcgm", Status::Warn, None);
        f.action = Action::None;
        f.text = format!("DCGM: {}", dcgm.overall);
        f.evidence = format!("DCGM's overall health is {}, without an incident", dcgm.overall);
        f.mend = "run dcgmi health -g 0 -c".into();
        sink.push(f);
    }
    sink.done(CHECK, Status::Pass, "DCGM: healthy");
}
