//! Mounts, their answers, and space.

use super::{Context, Sink, why_missing};
use crate::facts::{Mount, Reading};
use crate::verdict::{Action, Device, DeviceKind, Fault, Status};

pub fn run(c: &Context<'_>, sink: &mut Sink<'_>) {
    if sink.on("fs.mount") {
        mounts(c, sink);
    }
    if sink.on("fs.stale") {
        stale(c, sink);
    }
    if sink.on("fs.space") {
        space(c, sink);
    }
}

fn mounts(c: &Context<'_>, sink: &mut Sink<'_>) {
    let expected = &c.profile.mount;
    let Some(mounts) = c.facts.mounts.value() else {
        return match why_missing(&c.facts.mounts) {
            Some(why) if !expected.is_empty() => sink.unknown("fs.mount", "mount", None, why),
            _ => sink.done("fs.mount", Status::Unsupported, "no mount table, or no mount in the profile"),
        };
    };
    for profile in expected {
        let point = profile.path.display().to_string();
        // The mount above it, for a folder that an automounter makes at first use.
        let above = || profile.path.ancestors().skip(1).find_map(|p| mounts.get(p.to_str()?));
        let automounted = |m: &Mount| m.fstype == "autofs";
        let wrong = match mounts.get(&point) {
            // Mounted when somebody looks: whether the server answers then is fs.stale's to say.
            Some(m) if automounted(m) => None,
            None if above().is_some_and(automounted) => None,
            None => Some(("not mounted".to_string(), format!("{point} is not in /proc/self/mounts"))),
            Some(m) if profile.fstype.as_ref().is_some_and(|t| *t != m.fstype) => {
                let want = profile.fstype.as_deref().unwrap_or_default();
                Some((
                    format!("is {}, not {want}", m.fstype),
                    format!("{point} is {} from {}", m.fstype, m.source),
                ))
            }
            Some(m) if profile.writable && !m.writable => {
                Some(("mounted read-only".into(), format!("{point} from {} is mounted read-only", m.source)))
            }
            Some(_) => None,
        };
        if let Some((text, evidence)) = wrong {
            let mut f = sink.finding(
                "fs.mount",
                "mount",
                Status::Fail,
                Some(Device::named(DeviceKind::Mount, &*point)),
            );
            f.action = Action::RestartService;
            f.text = text;
            f.evidence = evidence;
            f.mend = format!("mount {point} again; look at its server and at the kernel log");
            sink.push(f);
        }
    }
    let status = if expected.is_empty() { Status::Unsupported } else { Status::Pass };
    sink.done("fs.mount", status, format!("{} mounts in the profile", expected.len()));
}

fn stale(c: &Context<'_>, sink: &mut Sink<'_>) {
    for (point, reading) in &c.facts.mount_probes {
        if let Some(why) = why_missing(reading) {
            let device = Device::named(DeviceKind::Mount, point.as_str());
            let mut f = sink.finding("fs.stale", "stalefs", Status::Fail, Some(device));
            f.action = Action::RestartService;
            f.text = "file system does not answer".into();
            f.evidence = format!("{point}: {why}");
            f.mend = "look at the file server and the network; remount".into();
            sink.push(f);
        }
    }
    let n = c.facts.mount_probes.len();
    let status = if n == 0 { Status::Unsupported } else { Status::Pass };
    sink.done("fs.stale", status, format!("{n} network mounts"));
}

fn space(c: &Context<'_>, sink: &mut Sink<'_>) {
    for profile in &c.profile.space {
        let path = profile.path.display().to_string();
        let device = Some(Device::named(DeviceKind::Mount, path.as_str()));
        match c.facts.space.get(&path) {
            Some(Reading::Value(s)) => {
                let (used, what) = match s.inodes_percent {
                    Some(i) if i > s.blocks_percent => (i, "inodes"),
                    _ => (s.blocks_percent, "space"),
                };
                let status = if used > profile.fail_percent {
                    Status::Fail
                } else if used > profile.warn_percent {
                    Status::Warn
                } else {
                    continue;
                };
                let mut f = sink.finding("fs.space", "fsspace", status, device);
                f.action = Action::RestartService;
                f.fault = Fault::Setup;
                f.text = format!("{used:.0}% of {what} used");
                f.evidence = format!(
                    "{path}: {used:.1}% of {what} used, warns above {}%, fails above {}%",
                    profile.warn_percent, profile.fail_percent
                );
                f.mend = format!("clean up {path}");
                sink.push(f);
            }
            other => {
                let why = other.and_then(why_missing).unwrap_or("not read");
                sink.unknown("fs.space", "fsspace", device, why);
            }
        }
    }
    let n = c.profile.space.len();
    let status = if n == 0 { Status::Unsupported } else { Status::Pass };
    sink.done("fs.space", status, format!("{n} file systems in the profile"));
}
