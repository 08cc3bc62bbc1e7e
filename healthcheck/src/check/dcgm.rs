//! DCGM's opinion: a warning, never more. NVML's state decides.

use super::{Context, Sink, why_missing};
use crate::facts::Reading;
use crate::verdict::{Action, Device, DeviceKind, Status};

const CHECK: &str = "gpu.dcgm";

pub fn run(c: &Context<'_>, sink: &mut Sink<'_>) {
    if !sink.on(CHECK) {
        return;
    }
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
