//! What was seen and when: the document of one injection, and its timeline for a person.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::Failure;
use crate::collect;
use crate::run::{self, Folder};

/// Schema of `raw/faults/*.json`.
pub const SCHEMA: &str = "clustermax-inject/1";

/// A sign of the fault, seconds after its injection.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// failed (nothing more was done), injected, verdict, events, metrics, reason, drained, alert, found (by a stage of ours), device (after a reset),
    /// restored, replaced, returned (by us), return_failed, command, command_failed, drained_again
    pub event: String,
    /// Which alert source; empty otherwise.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub by: String,
    /// First look that showed it.
    pub at: f64,
    /// Last look that did not.
    pub not_before: f64,
    /// What was seen.
    pub detail: String,
}

/// `raw/faults/NODE-ID.json`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Document {
    /// Always [`SCHEMA`].
    pub schema: String,
    /// In the line itself, so that detectors do not take it for an older one.
    pub id: String,
    /// Word of [`super::Fault`].
    pub fault: String,
    /// dcgm, kernel, pcie or rank.
    #[serde(default)]
    pub kind: String,
    /// The ladder that it is a rung of; empty: none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub ladder: String,
    /// What the fault's class asks for: drain, or none.
    #[serde(default)]
    pub expected: String,
    /// Where.
    pub node: String,
    /// Index in bus order.
    pub gpu: usize,
    /// Its address.
    pub pci: String,
    /// What was written.
    pub line: String,
    /// Whether it was read back from the log; none where that cannot be done.
    pub read_back: Option<bool>,
    /// Wall clock at the injection, UTC.
    pub started: String,
    /// Longest time that was waited, seconds.
    pub within: f64,
    /// Time between looks, seconds.
    pub poll: f64,
    /// Nothing injected: seconds watched, and what was seen all the same.
    #[serde(default)]
    pub quiet: Option<Control>,
    /// The lines of programs' own errors: seconds watched and what they drained.
    pub control: Option<Control>,
    /// Alert sources were watched.
    #[serde(default)]
    pub alerts: bool,
    /// How long the node or another in its place was waited for, seconds; none: not at all.
    #[serde(default)]
    pub wait_return: Option<f64>,
    /// The finding names the process or device; none where no finding could be read.
    #[serde(default)]
    pub named: Option<bool>,
    /// Node before the injection.
    pub before: String,
    /// Last look that Slurm answered; none: not recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub looked: Option<f64>,
    /// In order.
    pub events: Vec<Event>,
}

/// What a control run did.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Control {
    /// Seconds watched.
    pub seconds: f64,
    /// Reason of the drain, when it drained the node: a false alarm.
    pub drained: Option<String>,
    /// Alerts and events about the node, when nothing had been injected: false alarms too.
    #[serde(default)]
    pub alarms: Vec<String>,
}

impl Control {
    /// Nothing was drained, nothing alerted.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.drained.is_none() && self.alarms.is_empty()
    }
}

/// Events that tell that somebody noticed, in no order.
const DETECTION: [&str; 6] = ["verdict", "events", "metrics", "reason", "drained", "found"];

impl Document {
    /// The event of this name.
    #[must_use]
    pub fn event(&self, name: &str) -> Option<&Event> {
        self.events.iter().find(|event| event.event == name)
    }

    /// The first sign that somebody noticed: whatever was seen first.
    #[must_use]
    pub fn detected(&self) -> Option<&Event> {
        let any = |event: &&Event| DETECTION.contains(&event.event.as_str()) || event.event == "alert";
        self.events.iter().filter(any).min_by(|a, b| a.at.total_cmp(&b.at))
    }

    /// The first alert.
    #[must_use]
    pub fn alerted(&self) -> Option<&Event> {
        self.events.iter().filter(|event| event.event == "alert").min_by(|a, b| a.at.total_cmp(&b.at))
    }

    /// The node or another in its place, without our help.
    #[must_use]
    pub fn back(&self) -> Option<&Event> {
        self.event("restored").or_else(|| self.event("replaced"))
    }

    /// A sign that came later than a control run lasted: the run says nothing about that long a time.
    #[must_use]
    pub fn control_too_short(&self) -> Option<(f64, f64)> {
        let quiet = self.quiet.as_ref()?;
        let latest = [self.event("drained"), self.detected()].into_iter().flatten().map(|event| event.at);
        let latest = latest.fold(0.0, f64::max);
        (latest > quiet.seconds).then_some((quiet.seconds, latest))
    }

    /// Why it cannot be said that the node was not drained: it was out of service before, or Slurm did not answer to the end.
    #[must_use]
    pub fn drain_untold(&self) -> Option<String> {
        if self.event("drained").is_some() {
            return None;
        }
        if super::slurm::out_of_service(&self.before) {
            return Some(format!(
                "not told: the node was {} before the fault, reserve it instead",
                self.before
            ));
        }
        // The last look of a watch that went well lies at its end.
        let looked = self.looked?;
        let late = super::ANSWER.as_secs_f64() + 2.0 * self.poll;
        (looked + late < self.within).then(|| {
            format!("not told: not seen within {looked:.1} s, and from then on Slurm did not answer")
        })
    }

    /// The node is as it was: no drain may still come of the fault, and none was left in place.
    #[must_use]
    pub fn settled(&self, may_drain: bool) -> bool {
        (!may_drain || self.event("drained").is_some()) && self.event("return_failed").is_none()
    }

    /// The timeline, each line within its bounds.
    #[must_use]
    pub fn timeline(&self) -> String {
        let of = |event: Option<&Event>, absent: String| match event {
            Some(event) => {
                let by = if event.by.is_empty() { &event.event } else { &event.by };
                format!("{:9.3} s  (not at {:.3} s) by {by}: {}", event.at, event.not_before, event.detail)
            }
            None => absent,
        };
        let unseen = || format!("not seen within {} s", self.within);
        let mut rows = vec![(
            "injected",
            of(self.event("injected"), "not injected".to_owned()).replace(" by injected", ""),
        )];
        if self.event("injected").is_some() {
            rows.push(("detected", of(self.detected(), unseen())));
            let drained = match self.drain_untold() {
                _ if self.kind == "rank" => "not asked for by this fault".to_owned(),
                Some(why) => why,
                None => unseen(),
            };
            rows.push(("DRAIN", of(self.event("drained"), drained).replace(" by drained", "")));
            let alert = if self.alerts { unseen() } else { "not watched: give an alert source".to_owned() };
            rows.push(("alert", of(self.alerted(), alert)));
            if let Some(device) = self.event("device") {
                rows.push(("device", of(Some(device), String::new()).replace(" by device", "")));
            }
            let back = match self.wait_return {
                Some(_) if self.event("drained").is_none() => "not waited for: no drain was seen".to_owned(),
                Some(limit) => format!("not seen within {limit} s"),
                None => "not waited for: --wait-return".to_owned(),
            };
            rows.push(("return", of(self.back(), back)));
        }
        let mut text = format!(
            "timeline of {} on {}, seconds after the injection; looks each {:.0} ms: a time is known to lie after its `not at`\n",
            self.fault,
            self.node,
            self.poll * 1e3
        );
        for (name, row) in rows {
            text.push_str(&format!("  {name:<9} {row}\n"));
        }
        if let Some((seconds, latest)) = self.control_too_short() {
            text.push_str(&format!(
                "  marked: the control run lasted {seconds:.0} s, and the last sign came after {latest:.0} s: chance is not excluded, \
                 repeat it with --control {:.0}\n",
                latest.ceil()
            ));
        }
        if self.quiet.as_ref().is_some_and(|quiet| !quiet.is_quiet()) {
            text.push_str("  marked: the control run was not quiet, see above\n");
        }
        text
    }
}

/// Writes the document and the records of all documents of the run.
///
/// # Errors
/// Files that cannot be written.
pub fn keep(folder: Option<&Folder>, document: &Document) -> Result<(), Failure> {
    let Some(folder) = folder else { return Ok(()) };
    let raw = folder.raw("faults");
    let path = raw.join(format!("{}-{}.json", document.node, document.id));
    let io = |path: &Path, error: std::io::Error| {
        Failure::input(format!("cannot write {}: {error}; make the results folder writable", path.display()))
    };
    std::fs::create_dir_all(&raw).map_err(|error| io(&raw, error))?;
    let mut text = serde_json::to_string_pretty(document).map_err(Failure::input)?;
    text.push('\n');
    run::write_atomic(&path, text.as_bytes()).map_err(|error| io(&path, error))?;
    let state = Some(collect::StageState::Done);
    let said = collect::stage(&collect::Args { state, ..collect::Args::of("faults", &folder.path) })?;
    println!("{said}; in {}", folder.records().display());
    Ok(())
}
