//! What the user reads.

use crate::delta::Delta;
use crate::options::{OnFault, Report};
use crate::timestamp::Timestamp;
use crate::verdict::{Device, Event, Fault, Finding, Job};

/// Most lines about events and devices that a brief report prints on one node.
const BRIEF_LINES: usize = 8;
/// A report tells how old its source is when that is more than this many seconds.
const FRESH_SECONDS: i64 = 30;
/// Longest text of a file that is shown, in bytes.
const TEXT_LIMIT: usize = 240;
/// Longest sentence of a job's record, likewise.
const SENTENCE_LIMIT: usize = 300;

/// Text from a file or a configuration for one line of a log: control characters become blanks, at most `limit`
/// bytes.
pub(crate) fn clean(text: &str, limit: usize) -> String {
    let mut line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if line.len() > limit {
        let end = (0..=limit.saturating_sub(3)).rev().find(|&i| line.is_char_boundary(i)).unwrap_or(0);
        line.truncate(end);
        line.push_str("...");
    }
    line
}

fn shown(text: &str) -> String {
    clean(text.trim().trim_end_matches('.'), TEXT_LIMIT)
}

/// The message for a step that should not run on this node. `faults` are the worst first; none: no message.
pub(crate) fn refusal(node: &str, faults: &[&Finding], on_fault: OnFault) -> Option<String> {
    let next = match on_fault {
        OnFault::Refuse => "This step is not started here; submit again and Slurm will use other nodes.",
        OnFault::Warn => {
            "This step is started all the same, but may fail; submit again and Slurm will use other nodes."
        }
    };
    let what = worst_of(node, faults, "fault")?;
    Some(format!("{what}. The node is being taken out of service. {next}"))
}

/// The message for a strict job's step on a node with warnings, the worst first; none: no message.
pub(crate) fn strict_refusal(node: &str, warnings: &[&Finding]) -> Option<String> {
    let what = worst_of(node, warnings, "warning")?;
    Some(format!(
        "{what}. --clustermax-strict was asked for, so this step is not started here; submit again with \
         --exclude={node}, or without that option."
    ))
}

/// The message for a strict job on a node of which nothing is known.
pub(crate) fn strict_unknown(node: &str, max_age: u32) -> String {
    format!(
        "clustermax: node {node}: no health check of the last {max_age} s is known here, so --clustermax-strict \
         cannot be applied; the step starts."
    )
}

/// The worst finding in words, with the number of others.
fn worst_of(node: &str, findings: &[&Finding], kind: &str) -> Option<String> {
    let (worst, others) = findings.split_first()?;
    let more = match others.len() {
        0 => String::new(),
        1 => format!(" (and 1 more {kind})"),
        n => format!(" (and {n} more {kind}s)"),
    };
    let part = worst.device.as_ref().map(|device| format!(", {}", part(device))).unwrap_or_default();
    let evidence = shown(&worst.evidence);
    let evidence = if evidence.is_empty() { evidence } else { format!(": {evidence}") };
    Some(format!(
        "clustermax: node {node}{part}: {} (cmx:{}{evidence}){more}",
        shown(&worst.text),
        clean(&worst.token, 32),
    ))
}

fn part(device: &Device) -> String {
    match (device.kind.as_str(), device.index) {
        ("gpu", Some(index)) => format!("GPU {index}"),
        _ => device_name(&device.name),
    }
}

/// `g3` is GPU 3; other devices keep their name.
fn device_name(name: &str) -> String {
    match name.strip_prefix('g').and_then(|index| index.parse::<u32>().ok()) {
        Some(index) => format!("GPU {index}"),
        None => clean(name, 64),
    }
}

/// What a report is about.
pub(crate) struct Step<'a> {
    /// Slurm's name of the node.
    pub(crate) node: &'a str,
    /// Job id.
    pub(crate) job: u32,
    /// When the step began on this node.
    pub(crate) start: Timestamp,
    /// Now.
    pub(crate) end: Timestamp,
    /// What the hardware had counted for the job when the step began; none: not known.
    pub(crate) before: Option<&'a Delta>,
    /// The node is being drained for a fault that concerns the job.
    pub(crate) leaves_service: bool,
    /// Path of the job's record.
    pub(crate) record: &'a str,
}

/// The lines printed after the last local task of a step. Empty when there is nothing to say.
pub(crate) fn report(level: Report, step: &Step<'_>, job: Option<&Job>) -> Vec<String> {
    let lead = format!("clustermax: node {}", step.node);
    let full = match level {
        Report::Off => return Vec::new(),
        Report::Brief => false,
        Report::Full => true,
    };
    let Some(job) = job else {
        let line =
            format!("{lead}: no health record of job {} here, so nothing can be said about it.", step.job);
        return if full { vec![line] } else { Vec::new() };
    };
    let mut groups: Vec<Group<'_>> = Vec::new();
    for event in &job.events {
        let during = event.time().is_some_and(|time| time >= step.start);
        if during || full {
            Group::add(&mut groups, event, during);
        }
    }
    let of_step = step.before.filter(|_| !full);
    let delta = job.delta.as_ref().map(|now| of_step.map_or_else(|| now.clone(), |before| now.since(before)));
    // What came before the step is no news of it.
    let is_news = of_step.is_some() && delta.as_ref().is_some_and(Delta::is_notable);
    if !full && groups.is_empty() && !is_news {
        return Vec::new();
    }
    let since = if of_step.is_some() { "the step" } else { "the job" };
    let counted = delta.map(|delta| delta.texts()).unwrap_or_default();
    let told = groups.iter().map(|group| group.line(&lead));
    let mut lines: Vec<String> =
        told.chain(counted.iter().map(|text| format!("{lead}, {text} since {since} began."))).collect();
    let nothing = lines.is_empty();
    if !full && lines.len() > BRIEF_LINES {
        let left = lines.len() - BRIEF_LINES;
        lines.truncate(BRIEF_LINES);
        lines.push(format!("{lead}: {left} more lines; --clustermax-report=full shows them all."));
    }
    if !nothing {
        lines.push(format!("{lead}: {}", conclusion(step, job, &groups)));
    }
    let as_of = job.as_of();
    match as_of {
        None => lines.push(format!("{lead}: the record does not say when the node was last checked.")),
        Some(as_of) if as_of < step.start => lines.push(format!(
            "{lead}: last checked {as_of}, before this step began, so nothing can be said about this step yet."
        )),
        Some(as_of) if nothing => {
            lines.push(format!(
                "{lead}: nothing wrong seen with {} as of {as_of}. The record: {}",
                gpus(job),
                step.record
            ));
        }
        Some(as_of) if full || step.end.seconds_since(as_of) > FRESH_SECONDS => {
            lines.push(format!("{lead}: as of {as_of}; anything later is not in this report."));
        }
        Some(_) => {}
    }
    lines
}

/// Whether it was the hardware or the program, what happens next, and where the whole record is.
fn conclusion(step: &Step<'_>, job: &Job, groups: &[Group<'_>]) -> String {
    let sentence = clean(job.sentence.trim(), SENTENCE_LIMIT);
    let whose = if sentence.is_empty() { worst_fault(groups).to_owned() } else { sentence };
    let whose = if whose.ends_with(['.', '!', '?']) { whose } else { format!("{whose}.") };
    let next = if step.leaves_service {
        " The node is being taken out of service: what runs here goes on, and Slurm starts nothing more here."
    } else {
        ""
    };
    format!("{whose}{next} The record, while the job is here: {}", step.record)
}

/// For a record without a sentence of its own.
fn worst_fault(groups: &[Group<'_>]) -> &'static str {
    let any = |fault: Fault| groups.iter().any(|group| group.first.fault == fault);
    if any(Fault::Hardware) {
        "This is a hardware fault, not an error in the program."
    } else if any(Fault::Setup) {
        "This is a fault in the node's setup, not in the program."
    } else if any(Fault::Program) {
        "This is usually an error in the program, not in the hardware."
    } else {
        "Nothing of this says that the hardware failed."
    }
}

/// Equal events, told once.
struct Group<'a> {
    first: &'a Event,
    count: usize,
    during: bool,
}

impl<'a> Group<'a> {
    fn add(groups: &mut Vec<Self>, event: &'a Event, during: bool) {
        let same = groups.iter_mut().find(|group| {
            group.during == during
                && group.first.token == event.token
                && group.first.device == event.device
                && group.first.text == event.text
        });
        match same {
            Some(group) => group.count += 1,
            None => groups.push(Self { first: event, count: 1, during }),
        }
    }

    fn line(&self, lead: &str) -> String {
        let event = self.first;
        let device = match event.device.as_str() {
            "" => String::new(),
            name => format!(", {}", device_name(name)),
        };
        let text = shown(&event.text);
        let when = match (event.time(), self.count) {
            (Some(time), 1) => format!(" ({time})"),
            (Some(time), n) => format!(" ({n} times, first {time})"),
            (None, 1) => String::new(),
            (None, n) => format!(" ({n} times)"),
        };
        let before = if self.during { "" } else { " Before this step." };
        format!("{lead}{device}: {text}{when}.{before}")
    }
}

fn gpus(job: &Job) -> String {
    let mut indexes: Vec<u32> = job.gpus.iter().filter_map(|gpu| gpu.index).collect();
    indexes.sort_unstable();
    match indexes.as_slice() {
        [] => "this node".to_owned(),
        [one] => format!("GPU {one}"),
        all => format!("GPUs {}", all.iter().map(u32::to_string).collect::<Vec<_>>().join(",")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::tests::{fallen_gpu, here, job, verdict};
    use serde_json::{Value, json};

    const RECORD: &str = "/run/clustermax/jobs/123.json";

    fn step() -> Step<'static> {
        Step {
            node: "n2",
            job: 123,
            before: None,
            leaves_service: false,
            record: RECORD,
            start: Timestamp::parse("2026-11-30T20:45:00Z").unwrap(),
            end: Timestamp::parse("2026-11-30T20:50:40Z").unwrap(),
        }
    }

    fn event(time: &str, token: &str, device: &str, fault: &str, text: &str) -> Value {
        json!({"time": time, "check": "gpu.xid", "token": token, "device": device, "fault": fault,
               "action": "none", "drain": false, "text": text})
    }

    fn xid13(time: &str) -> Value {
        event(time, "xid13", "g3", "program", "Xid 13: graphics engine exception")
    }

    fn refuse(change: impl FnOnce(&mut Value), on_fault: OnFault) -> String {
        let mut value = fallen_gpu();
        change(&mut value);
        let verdict = verdict(&value);
        let job = job(json!([{"index":3,"pci":"0000:5d:00.0"}]), json!([]));
        refusal("n2", &verdict.in_the_way(&here(), Some(&job)), on_fault).unwrap()
    }

    #[test]
    fn refusal_says_which_node_which_part_what_and_what_next() {
        assert_eq!(
            refuse(|_| {}, OnFault::Refuse),
            "clustermax: node n2, GPU 3: GPU fell off the bus (cmx:xid79: NVRM: Xid (PCI:0000:5d:00): 79, \
             GPU has fallen off the bus). The node is being taken out of service. \
             This step is not started here; submit again and Slurm will use other nodes."
        );
    }

    #[test]
    fn a_warning_does_not_claim_a_refusal() {
        let text = refuse(|_| {}, OnFault::Warn);
        assert!(text.ends_with(
            "This step is started all the same, but may fail; submit again and Slurm will use other nodes."
        ));
    }

    #[test]
    fn further_faults_are_counted() {
        let twice = |v: &mut Value| {
            let again = v["findings"][0].clone();
            v["findings"].as_array_mut().unwrap().push(again);
        };
        assert!(refuse(twice, OnFault::Refuse).contains("bus) (and 1 more fault). The node"));
    }

    #[test]
    fn a_fault_of_the_node_names_no_part() {
        let text = refuse(
            |v| {
                v["findings"][0] = json!({"check":"mem.total","token":"memtotal","status":"fail","scope":"node",
                    "drain":true,"text":"128 GiB of memory are missing"});
            },
            OnFault::Refuse,
        );
        assert!(
            text.starts_with(
                "clustermax: node n2: 128 GiB of memory are missing (cmx:memtotal). The node is"
            ),
            "{text}"
        );
    }

    #[test]
    fn nothing_in_the_way_is_no_message() {
        assert_eq!(refusal("n2", &[], OnFault::Refuse), None);
    }

    #[test]
    fn text_from_files_stays_on_one_line_and_short() {
        assert_eq!(clean("a\nb\u{1b}[31m\0%s%n", 80), "a b [31m %s%n");
        assert_eq!(clean("äääää", 8), "ää...");
        let long = refuse(|v| v["findings"][0]["evidence"] = json!("x".repeat(10_000)), OnFault::Refuse);
        assert!(long.len() < 500 && long.contains("xxx..."), "{long}");
    }

    #[test]
    fn brief_is_silent_when_nothing_happened() {
        let quiet = job(json!([]), json!([]));
        assert!(report(Report::Brief, &step(), Some(&quiet)).is_empty());
        assert!(report(Report::Brief, &step(), None).is_empty());
        let earlier = job(json!([]), json!([xid13("2026-11-30T20:41:00Z")]));
        assert!(report(Report::Brief, &step(), Some(&earlier)).is_empty(), "told by an earlier step");
    }

    #[test]
    fn off_is_silent_always() {
        let job = job(json!([]), json!([xid13("2026-11-30T20:50:00Z")]));
        assert!(report(Report::Off, &step(), Some(&job)).is_empty());
    }

    #[test]
    fn program_and_hardware_are_told_apart() {
        let job = job(
            json!([{"index":3}]),
            json!([
                xid13("2026-11-30T20:50:00Z"),
                event(
                    "2026-11-30T20:50:01Z",
                    "xid79",
                    "g3",
                    "hardware",
                    "Xid 79: GPU has fallen off the bus."
                ),
                event("2026-11-30T20:50:02Z", "ibdown", "ib0/1", "setup", "port is down"),
                event(
                    "2026-11-30T20:50:03Z",
                    "xid31",
                    "g0",
                    "program",
                    "Xid 31, usually an error in the program"
                ),
            ]),
        );
        assert_eq!(
            report(Report::Brief, &step(), Some(&job)),
            [
                "clustermax: node n2, GPU 3: Xid 13: graphics engine exception (2026-11-30 20:50:00 UTC).",
                "clustermax: node n2, GPU 3: Xid 79: GPU has fallen off the bus (2026-11-30 20:50:01 UTC).",
                "clustermax: node n2, ib0/1: port is down (2026-11-30 20:50:02 UTC).",
                "clustermax: node n2, GPU 0: Xid 31, usually an error in the program (2026-11-30 20:50:03 UTC).",
                "clustermax: node n2: This is a hardware fault, not an error in the program. \
                 The record, while the job is here: /run/clustermax/jobs/123.json",
            ]
        );
        for (fault, sentence) in [
            ("setup", "This is a fault in the node's setup, not in the program."),
            ("program", "This is usually an error in the program, not in the hardware."),
            ("martian", "Nothing of this says that the hardware failed."),
        ] {
            let job = one_event(fault);
            let lines = report(Report::Brief, &step(), Some(&job));
            assert!(
                lines[1].starts_with(&format!("clustermax: node n2: {sentence} The record")),
                "{lines:?}"
            );
        }
    }

    fn one_event(fault: &str) -> Job {
        job(json!([{"index":3}]), json!([event("2026-11-30T20:50:00Z", "xid", "g3", fault, "it happened")]))
    }

    #[test]
    fn the_records_own_sentence_is_told_and_what_happens_next() {
        let mut job = one_event("hardware");
        job.sentence = "The hardware failed, not the program: GPU 3".to_owned();
        let leaving = Step { leaves_service: true, ..step() };
        assert_eq!(
            report(Report::Brief, &leaving, Some(&job))[1],
            "clustermax: node n2: The hardware failed, not the program: GPU 3. The node is being taken out of \
             service: what runs here goes on, and Slurm starts nothing more here. \
             The record, while the job is here: /run/clustermax/jobs/123.json"
        );
        job.sentence = format!("evil\n\u{1b}[31m {}", "x".repeat(1000));
        let line = &report(Report::Brief, &step(), Some(&job))[1];
        assert!(line.len() < 450 && !line.contains(['\n', '\u{1b}']), "{line}");
    }

    #[test]
    fn what_the_hardware_counted_is_told_once() {
        let delta = |text: Value| -> Option<Delta> { Some(serde_json::from_value(text).unwrap()) };
        let mut job = job(json!([{"index":3}]), json!([]));
        job.delta = delta(json!({"gpus":[{"index":3,"xids":{"31":1},"rises":{"ecc_corrected":2}}]}));
        job.sentence = "Usually an error in the program, not the hardware: Xid 31 on GPU 3.".to_owned();
        let nothing = Delta::default();
        let first = Step { before: Some(&nothing), ..step() };
        let lines = report(Report::Brief, &first, Some(&job));
        assert_eq!(
            lines,
            [
                "clustermax: node n2, GPU 3: Xid 31, 2 corrected memory errors since the step began.",
                "clustermax: node n2: Usually an error in the program, not the hardware: Xid 31 on GPU 3. \
                 The record, while the job is here: /run/clustermax/jobs/123.json",
            ]
        );
        // The next step of the job: nothing came since.
        let before = job.delta.clone();
        let next = Step { before: before.as_ref(), ..step() };
        assert!(report(Report::Brief, &next, Some(&job)).is_empty());
        let full = report(Report::Full, &next, Some(&job));
        assert!(full[0].ends_with("2 corrected memory errors since the job began."), "{full:?}");
        // Not known what was there before: no news by itself.
        assert!(report(Report::Brief, &step(), Some(&job)).is_empty());
        // Corrected errors alone are no news.
        job.delta =
            delta(json!({"gpus":[{"index":3,"rises":{"ecc_corrected":2},"throttled":{"power_cap":9.0}}]}));
        assert!(report(Report::Brief, &first, Some(&job)).is_empty());
        assert_eq!(report(Report::Full, &step(), Some(&job)).len(), 3);
    }

    #[test]
    fn a_strict_job_is_told_what_it_met() {
        let mut value = fallen_gpu();
        value["findings"][0]["status"] = json!("warn");
        value["findings"][0]["text"] = json!("12 corrected errors an hour");
        value["findings"][0]["evidence"] = json!("");
        let verdict = verdict(&value);
        let job = job(json!([{"index":3,"pci":"0000:5d:00.0"}]), json!([]));
        assert_eq!(
            strict_refusal("n2", &verdict.warnings(&here(), Some(&job))).unwrap(),
            "clustermax: node n2, GPU 3: 12 corrected errors an hour (cmx:xid79). --clustermax-strict was asked for, \
             so this step is not started here; submit again with --exclude=n2, or without that option."
        );
        assert_eq!(strict_refusal("n2", &[]), None);
        assert_eq!(
            strict_unknown("n2", 600),
            "clustermax: node n2: no health check of the last 600 s is known here, so --clustermax-strict cannot be \
             applied; the step starts."
        );
    }

    #[test]
    fn an_event_of_the_whole_node_names_no_part() {
        let job =
            job(json!([]), json!([event("2026-11-30T20:50:00Z", "memtotal", "", "hardware", "DIMM lost")]));
        let lines = report(Report::Brief, &step(), Some(&job));
        assert!(lines[0].starts_with("clustermax: node n2: DIMM lost ("), "{lines:?}");
    }

    #[test]
    fn equal_events_are_told_once() {
        let job = job(json!([]), json!([xid13("2026-11-30T20:50:00Z"), xid13("2026-11-30T20:50:01Z")]));
        let lines = report(Report::Brief, &step(), Some(&job));
        assert_eq!(lines.len(), 2);
        assert!(lines[0].contains("exception (2 times, first 2026-11-30 20:50:00 UTC)."), "{}", lines[0]);
    }

    #[test]
    fn brief_stops_after_eight_lines_and_says_so() {
        let events: Vec<_> = (0..20)
            .map(|i| event("2026-11-30T20:50:00Z", "xid13", &format!("g{i}"), "program", "Xid 13"))
            .collect();
        let job = job(json!([]), Value::Array(events));
        let brief = report(Report::Brief, &step(), Some(&job));
        assert_eq!(brief.len(), 10);
        assert_eq!(brief[8], "clustermax: node n2: 12 more lines; --clustermax-report=full shows them all.");
        assert_eq!(report(Report::Full, &step(), Some(&job)).len(), 22);
    }

    #[test]
    fn an_old_record_says_how_old_it_is() {
        let job = job(json!([]), json!([xid13("2026-11-30T20:50:00Z")]));
        let late = Step { end: Timestamp::parse("2026-11-30T20:55:00Z").unwrap(), ..step() };
        let lines = report(Report::Brief, &late, Some(&job));
        assert_eq!(lines.len(), 3);
        assert_eq!(
            lines[2],
            "clustermax: node n2: as of 2026-11-30 20:50:30 UTC; anything later is not in this report."
        );
    }

    #[test]
    fn full_says_that_nothing_happened_or_that_nobody_looked() {
        let quiet = job(json!([{"index":3},{"index":0}]), json!([]));
        assert_eq!(
            report(Report::Full, &step(), Some(&quiet)),
            ["clustermax: node n2: nothing wrong seen with GPUs 0,3 as of 2026-11-30 20:50:30 UTC. \
              The record: /run/clustermax/jobs/123.json"]
        );
        let later = Step { start: Timestamp::parse("2026-11-30T20:50:35Z").unwrap(), ..step() };
        assert_eq!(
            report(Report::Full, &later, Some(&quiet)),
            ["clustermax: node n2: last checked 2026-11-30 20:50:30 UTC, before this step began, \
              so nothing can be said about this step yet."]
        );
        assert_eq!(
            report(Report::Full, &step(), None),
            ["clustermax: node n2: no health record of job 123 here, so nothing can be said about it."]
        );
    }

    #[test]
    fn full_shows_what_came_before_the_step_too() {
        let job = job(json!([]), json!([xid13("2026-11-30T20:41:00Z")]));
        let lines = report(Report::Full, &step(), Some(&job));
        assert!(lines[0].ends_with("(2026-11-30 20:41:00 UTC). Before this step."), "{lines:?}");
        assert_eq!(lines.len(), 3);
    }
}
