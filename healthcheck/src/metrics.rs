//! Prometheus text format 0.0.4 for node_exporter's textfile collector.
//!
//! One bad line makes node_exporter refuse the whole file, so: no UNIT, info or EOF lines, no time stamps, every series of a
//! metric together, every label value escaped. Labels come from bounded sets; no free text is one.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::active::{self, Stamp};
use crate::catalogue::CATALOGUE;
use crate::config::{Config, Enforcement};
use crate::drain::DrainOutcome;
use crate::exempt::Exemptions;
use crate::jobs::{self, Job};
use crate::pass::unix_time;
use crate::rack::Domain;
use crate::state::write_atomic;
use crate::totals::{Totals, brake_engaged, spooled};
use crate::verdict::{Status, Verdict};

const STATUSES: [Status; 5] =
    [Status::Pass, Status::Warn, Status::Fail, Status::Unknown, Status::Unsupported];

/// Writes the file that `metrics.textfile` names, if it names one.
///
/// # Errors
/// One sentence naming the file.
pub fn publish(config: &Config, verdict: &Verdict, totals: &Totals) -> Result<(), String> {
    let Some(path) = &config.metrics.textfile else { return Ok(()) };
    let state = &config.paths.state_dir;
    let mut text = render(config, verdict, totals, brake_engaged(state), spooled(state));
    let exempt = Exemptions::read(state, unix_time()).unwrap_or_default();
    text.push_str(&hands(&exempt, Domain::read(state).as_ref()));
    text.push_str(&jobs_here(&jobs::list(&config.paths.run_dir)));
    text.push_str(&active_checks(&active::read(&config.paths.run_dir)));
    write_atomic(path, text.as_bytes(), 0o644, None)
        .map_err(|e| format!("{} (metrics.textfile) cannot be written: {e}", path.display()))
}

/// The file's text.
#[must_use]
pub fn render(config: &Config, verdict: &Verdict, totals: &Totals, brake: bool, spooled: usize) -> String {
    let mut out = Text::default();
    out.head("clustermax_build_info", "gauge", "Version of clustermax-healthcheck; always 1.");
    out.line("clustermax_build_info", &[("version", env!("CARGO_PKG_VERSION"))], 1.0);
    out.head("clustermax_enforcing", "gauge", "1: faults drain this node; 0: they are only reported.");
    out.line("clustermax_enforcing", &[], flag(config.enforcement == Enforcement::Enforce));

    out.head("clustermax_verdict_status", "gauge", "1 for the status of the node's last verdict.");
    for s in STATUSES {
        out.line("clustermax_verdict_status", &[("status", s.word())], flag(verdict.status == s));
    }
    out.head(
        "clustermax_verdict_drain",
        "gauge",
        "1: the last verdict asks to take the node out of service.",
    );
    out.line("clustermax_verdict_drain", &[], flag(verdict.drain));

    // Check ids are those of the catalogue and of the configured site commands.
    let checks: Vec<_> = totals
        .checks
        .iter()
        .filter(|(id, _)| {
            CATALOGUE.iter().any(|c| c.id == *id)
                || id.strip_prefix("site.").is_some_and(|n| config.command.iter().any(|c| c.name == n))
        })
        .collect();
    out.head("clustermax_check_status", "gauge", "1 for the status that the check gave last.");
    for (id, result) in &checks {
        for s in STATUSES {
            out.line(
                "clustermax_check_status",
                &[("check", id), ("status", s.word())],
                flag(result.status == s),
            );
        }
    }
    out.head(
        "clustermax_check_last_run_timestamp_seconds",
        "gauge",
        "When the check last ran, seconds since the epoch.",
    );
    for (id, result) in &checks {
        out.line("clustermax_check_last_run_timestamp_seconds", &[("check", id)], result.time);
    }
    out.head("clustermax_check_devices", "gauge", "Devices that the check found not well, by status.");
    for (id, result) in &checks {
        for s in [Status::Warn, Status::Fail, Status::Unknown] {
            let n = result.findings.iter().filter(|f| f.status == s).count();
            out.line("clustermax_check_devices", &[("check", id), ("status", s.word())], count(n as u64));
        }
    }

    out.head("clustermax_passes_total", "counter", "Passes by mode.");
    for (mode, p) in &totals.passes {
        out.line("clustermax_passes_total", &[("mode", mode)], count(p.count));
    }
    out.head("clustermax_pass_timestamp_seconds", "gauge", "When the last pass of the mode began.");
    for (mode, p) in &totals.passes {
        out.line("clustermax_pass_timestamp_seconds", &[("mode", mode)], p.time);
    }
    out.head("clustermax_pass_duration_seconds", "gauge", "How long the last pass of the mode took.");
    for (mode, p) in &totals.passes {
        out.line("clustermax_pass_duration_seconds", &[("mode", mode)], p.seconds);
    }

    out.head("clustermax_drains_total", "counter", "Answers to asked drains; written: the node was drained.");
    for outcome in DrainOutcome::ALL.map(DrainOutcome::word) {
        let n = totals.drains.get(outcome).copied().unwrap_or_default();
        out.line("clustermax_drains_total", &[("outcome", outcome)], count(n));
    }
    out.head("clustermax_brake_engaged", "gauge", "1: the brake holds drains back until it is released.");
    out.line("clustermax_brake_engaged", &[], flag(brake));
    out.head("clustermax_spooled_drains", "gauge", "Drains that wait for the controller.");
    out.line("clustermax_spooled_drains", &[], count(spooled as u64));

    out.head("clustermax_kmsg_lost_records_total", "counter", "Kernel log records lost before being read.");
    out.line("clustermax_kmsg_lost_records_total", &[], count(totals.kmsg_lost));
    out.head("clustermax_kmsg_gaps_total", "counter", "Passes that found kernel log records lost.");
    out.line("clustermax_kmsg_gaps_total", &[], count(totals.kmsg_gaps));
    if !totals.kernel_events.is_empty() {
        out.head("clustermax_kernel_events_total", "counter", "Xid, SXid and other driver lines by device.");
    }
    for (key, n) in &totals.kernel_events {
        if let [kind, code, device] = key.split(' ').collect::<Vec<_>>()[..] {
            let labels = [("kind", kind), ("code", code), ("device", device)];
            out.line("clustermax_kernel_events_total", &labels, count(*n));
        }
    }
    out.0
}

/// What operators and the rack are to this node. Checks are those of the catalogue or of the configuration, or all.
fn hands(exempt: &Exemptions, domain: Option<&Domain>) -> String {
    let mut out = Text::default();
    if !exempt.is_empty() {
        out.head("clustermax_exempt_until_seconds", "gauge", "When the exemption of the check ends.");
    }
    for (check, exemption) in &exempt.0 {
        out.line("clustermax_exempt_until_seconds", &[("check", check)], exemption.until);
    }
    if let Some(domain) = domain {
        let labels = [("domain", domain.name.as_str())];
        for (name, help, value) in [
            (
                "clustermax_domain_trays",
                "Trays of this node's rack-scale domain.",
                count(domain.trays as u64),
            ),
            (
                "clustermax_domain_sick_trays",
                "Sick trays, when last looked at.",
                count(domain.sick.len() as u64),
            ),
            ("clustermax_domain_degraded", "1: as many trays are sick as degrade it.", flag(domain.degraded)),
            ("clustermax_domain_timestamp_seconds", "When it was last looked at.", domain.time),
        ] {
            out.head(name, "gauge", help);
            out.line(name, &labels, value);
        }
    }
    out.0
}

/// The last active checks of this node while it was idle.
fn active_checks(stamps: &BTreeMap<&str, Stamp>) -> String {
    let mut out = Text::default();
    if stamps.is_empty() {
        return out.0;
    }
    out.head(
        "clustermax_active_check_timestamp_seconds",
        "gauge",
        "When the last active check with a result ended.",
    );
    for (kind, stamp) in stamps {
        out.line("clustermax_active_check_timestamp_seconds", &[("kind", kind)], stamp.time);
    }
    out.head("clustermax_active_check_duration_seconds", "gauge", "How long it took.");
    for (kind, stamp) in stamps {
        out.line("clustermax_active_check_duration_seconds", &[("kind", kind)], stamp.seconds);
    }
    out.head("clustermax_active_check_status", "gauge", "1 for its result; unknown: it broke off by itself.");
    for (kind, stamp) in stamps {
        for status in ["pass", "fail", "unknown"] {
            let labels = [("kind", *kind), ("status", status)];
            out.line("clustermax_active_check_status", &labels, flag(stamp.status == status));
        }
    }
    out.0
}

/// The jobs on the node with their tags: bounded by the node's slots, and by what [`crate::tags`] lets pass.
fn jobs_here(jobs: &[Job]) -> String {
    let mut out = Text::default();
    if !jobs.is_empty() {
        out.head("clustermax_job_info", "gauge", "A job on this node with its user's tags; always 1.");
    }
    for job in jobs {
        let gpus = job.gpus.iter().map(|g| g.index.to_string()).collect::<Vec<_>>().join(",");
        let uid = job.uid.to_string();
        let tags: Vec<(String, &str)> =
            job.tags.iter().map(|(key, value)| (format!("tag_{key}"), value.as_str())).collect();
        let mut labels = vec![("job", job.job.as_str()), ("uid", &uid), ("gpus", &gpus)];
        labels.extend(tags.iter().map(|(key, value)| (key.as_str(), *value)));
        out.line("clustermax_job_info", &labels, 1.0);
    }
    out.0
}

fn flag(is: bool) -> f64 {
    if is { 1.0 } else { 0.0 }
}

#[allow(clippy::cast_precision_loss, reason = "Prometheus knows only 64-bit floats")]
fn count(n: u64) -> f64 {
    n as f64
}

/// Text in the making.
#[derive(Default)]
struct Text(String);

impl Text {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn line(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        self.0.push_str(name);
        for (i, (key, label)) in labels.iter().enumerate() {
            let open = if i == 0 { '{' } else { ',' };
            let label = label.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let _ = write!(self.0, "{open}{key}=\"{label}\"");
        }
        if !labels.is_empty() {
            self.0.push('}');
        }
        let _ = writeln!(self.0, " {value}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::{Facts, KernelFacts, Reading, SeenEvent};
    use crate::state::KnownGpu;
    use crate::verdict::{Action, CheckResult, VERDICT_SCHEMA};

    fn verdict(status: Status) -> Verdict {
        let check = |check: &str, status| CheckResult { check: check.into(), status, detail: String::new() };
        Verdict {
            schema: VERDICT_SCHEMA.into(),
            node: "n1".into(),
            boot_id: "b".into(),
            config_hash: String::new(),
            mode: "periodic".into(),
            enforcement: "observe".into(),
            time: String::new(),
            seconds: 0.0,
            status,
            action: Action::None,
            drain: false,
            reason: None,
            drain_outcome: None,
            findings: Vec::new(),
            checks: vec![check("gpu.count", status), check("no.such", Status::Pass)],
            left_out: 0,
        }
    }

    fn event(text: &str) -> SeenEvent {
        let record = crate::kmsg::parse_log_line(text).record;
        let event = crate::xid::events(&record).remove(0);
        SeenEvent { key: String::new(), event, count: 2, seen: 0.0, handled: false }
    }

    #[test]
    fn every_series_stands_once_under_its_type() {
        let mut totals = Totals::default();
        let facts = Facts {
            kernel: Reading::Value(KernelFacts { lost: 7, ..KernelFacts::default() }),
            ..Facts::default()
        };
        totals.pass(&verdict(Status::Fail), &facts, 1000.5, 0.25);
        totals.drain("written");
        let inventory = [("0000:3a:00.0".to_string(), KnownGpu { minor: 3, uuid: "u".into() })].into();
        for line in [
            "NVRM: Xid (PCI:0000:3a:00): 79, GPU has fallen off the bus.",
            "NVRM: Xid (PCI:0000:99:00): 79, GPU has fallen off the bus.",
            "NVRM: Xid (PCI:0000:99:00): 4711, x",
            "NVRM: Xid (PCI:0000:99:00): 4712, x",
        ] {
            totals.event(&event(line), &inventory);
        }
        let text = render(&Config::default(), &verdict(Status::Fail), &totals, true, 2);
        for line in [
            "clustermax_check_status{check=\"gpu.count\",status=\"fail\"} 1",
            "clustermax_check_status{check=\"gpu.count\",status=\"pass\"} 0",
            "clustermax_check_last_run_timestamp_seconds{check=\"gpu.count\"} 1000.5",
            "clustermax_pass_duration_seconds{mode=\"periodic\"} 0.25",
            "clustermax_drains_total{outcome=\"written\"} 1",
            "clustermax_drains_total{outcome=\"brake\"} 0",
            "clustermax_brake_engaged 1",
            "clustermax_spooled_drains 2",
            "clustermax_kmsg_lost_records_total 7",
            "clustermax_kernel_events_total{kind=\"xid\",code=\"79\",device=\"g3\"} 2",
            "clustermax_kernel_events_total{kind=\"xid\",code=\"79\",device=\"unknown\"} 2",
            "clustermax_kernel_events_total{kind=\"xid\",code=\"other\",device=\"unknown\"} 4",
        ] {
            assert!(text.lines().any(|l| l == line), "{line}\n{text}");
        }
        assert!(!text.contains("no.such"), "only known checks");
        let mut names = std::collections::BTreeSet::new();
        for l in text.lines().filter_map(|l| l.strip_prefix("# TYPE ")) {
            let (name, kind) = l.split_once(' ').unwrap();
            assert!(names.insert(name) && (kind == "counter") == name.ends_with("_total"), "{l}");
        }
        let mut series = std::collections::BTreeSet::new();
        for l in text.lines().filter(|l| !l.starts_with('#')) {
            assert!(series.insert(l.split(' ').next().unwrap()), "{l} twice");
        }
        for bad in ["UNIT", "EOF", "# TYPE clustermax_build_info info"] {
            assert!(!text.contains(bad), "node_exporter refuses {bad}");
        }
    }

    #[test]
    fn exemptions_and_the_domain_are_shown_while_there_are_any() {
        assert_eq!(hands(&Exemptions::default(), None), "");
        let exemption = crate::exempt::Exemption {
            until: 2000.0,
            why: "a \"secret\"".into(),
            since: String::new(),
            by: "root".into(),
        };
        let domain = Domain {
            name: "r1".into(),
            trays: 18,
            sick: vec!["t1".into(), "t2".into(), "t3".into()],
            degraded: true,
            followed: String::new(),
            time: 1000.0,
        };
        let text = hands(&Exemptions([("ib.port".to_string(), exemption)].into()), Some(&domain));
        for line in [
            "clustermax_exempt_until_seconds{check=\"ib.port\"} 2000",
            "clustermax_domain_trays{domain=\"r1\"} 18",
            "clustermax_domain_sick_trays{domain=\"r1\"} 3",
            "clustermax_domain_degraded{domain=\"r1\"} 1",
        ] {
            assert!(text.lines().any(|l| l == line), "{line}\n{text}");
        }
        assert!(!text.contains("secret"), "no free text");
    }

    #[test]
    fn active_checks_are_shown_once_there_was_one() {
        assert_eq!(active_checks(&BTreeMap::new()), "");
        let stamp = Stamp { time: 1000.0, seconds: 12.0, status: "fail".into() };
        let text = active_checks(&[("heavy", stamp)].into());
        for line in [
            "clustermax_active_check_timestamp_seconds{kind=\"heavy\"} 1000",
            "clustermax_active_check_duration_seconds{kind=\"heavy\"} 12",
            "clustermax_active_check_status{kind=\"heavy\",status=\"fail\"} 1",
            "clustermax_active_check_status{kind=\"heavy\",status=\"pass\"} 0",
        ] {
            assert!(text.lines().any(|l| l == line), "{line}\n{text}");
        }
    }

    #[test]
    fn labels_are_escaped() {
        let mut t = Text::default();
        t.line("x", &[("a", "q\"b\\c\nd")], 1.0);
        assert_eq!(t.0, "x{a=\"q\\\"b\\\\c\\nd\"} 1\n");
    }

    #[test]
    fn jobs_carry_their_tags() {
        assert_eq!(jobs_here(&[]), "");
        let tags = crate::tags::parse("project=llm,run=a/b").unwrap();
        let gpu = jobs::JobGpu { index: 3, ..Default::default() };
        let job = Job { job: "7".into(), uid: 1000, tags, gpus: vec![gpu], ..Job::default() };
        let plain = Job { job: "8".into(), uid: 1001, ..Job::default() };
        assert_eq!(
            jobs_here(&[job.clone(), plain]),
            "# HELP clustermax_job_info A job on this node with its user's tags; always 1.\n\
             # TYPE clustermax_job_info gauge\n\
             clustermax_job_info{job=\"7\",uid=\"1000\",gpus=\"3\",tag_project=\"llm\",tag_run=\"a/b\"} 1\n\
             clustermax_job_info{job=\"8\",uid=\"1001\",gpus=\"\"} 1\n"
        );
        assert_eq!(job.label(), "7 (project=llm run=a/b)");
    }

    #[test]
    fn off_by_default_and_what_cannot_be_written_is_named() {
        let mut config = Config::default();
        publish(&config, &verdict(Status::Pass), &Totals::default()).unwrap();
        config.metrics.textfile = Some("/nonexistent/clustermax.prom".into());
        let why = publish(&config, &verdict(Status::Pass), &Totals::default()).unwrap_err();
        assert!(why.contains("/nonexistent/clustermax.prom (metrics.textfile)"), "{why}");
    }
}
