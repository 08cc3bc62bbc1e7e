//! What a node counts and remembers for those who look from outside: last result of every check, passes, drains, kernel events.
//!
//! Kept in the state; published as `RUN_DIR/checks.json` for [`crate::status`] and by [`crate::metrics`].

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::exempt::Exemptions;
use crate::facts::{Facts, SeenEvent};
use crate::jobs::make_public_dir;
use crate::state::{KnownGpu, write_atomic};
use crate::verdict::{Action, Status, Verdict};
use crate::xid::{Kind, policy};

/// Version tag of `checks.json`.
pub const CHECKS_SCHEMA: &str = "clustermax-checks/1";
/// Longest detail or text kept, in characters.
const TEXT_MAX: usize = 160;
/// Most findings kept of one check.
const FINDINGS_MAX: usize = 32;

/// Everything counted and remembered.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Totals {
    /// Boot that `checks` belongs to.
    pub boot_id: String,
    /// Last result of every check.
    pub checks: BTreeMap<String, LastResult>,
    /// Passes by mode.
    pub passes: BTreeMap<String, Passes>,
    /// Answers of `clustermax-drain` by outcome.
    pub drains: BTreeMap<String, u64>,
    /// Kernel events by `KIND CODE DEVICE`; all three from bounded sets.
    pub kernel_events: BTreeMap<String, u64>,
    /// Kernel log records that were overwritten before they were read.
    pub kmsg_lost: u64,
    /// Passes that found such a gap.
    pub kmsg_gaps: u64,
}

/// A check's last result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LastResult {
    /// Status.
    pub status: Status,
    /// When it last ran, seconds since the epoch.
    pub time: f64,
    /// Since when it has this status.
    pub since: f64,
    /// One line.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
    /// Devices that are not well.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub findings: Vec<Brief>,
}

/// A finding in short.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Brief {
    /// Short name of the device; empty for the whole node.
    pub device: String,
    /// GPU minor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index: Option<u32>,
    /// Status.
    pub status: Status,
    /// Token.
    pub token: String,
    /// What mends it.
    pub action: Action,
    /// Takes the node out of service.
    pub drain: bool,
    /// Only jobs that hold the device are concerned.
    pub device_only: bool,
    /// One phrase.
    pub text: String,
}

/// Passes of one mode.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Passes {
    /// How many.
    pub count: u64,
    /// When the last one began, seconds since the epoch.
    pub time: f64,
    /// How long it took up to its verdict, in seconds.
    pub seconds: f64,
    /// Its status.
    pub status: Status,
}

/// `RUN_DIR/checks.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ChecksFile {
    /// [`CHECKS_SCHEMA`].
    pub schema: String,
    /// Slurm's name of the node.
    pub node: String,
    /// When it was written, seconds since the epoch.
    pub time: f64,
    /// `observe` or `enforce`.
    pub enforcement: String,
    /// The brake is engaged.
    pub brake: bool,
    /// Drains that wait for the controller.
    pub spooled: usize,
    /// Checks whose faults drain nothing for now.
    #[serde(default, skip_serializing_if = "Exemptions::is_empty")]
    pub exempt: Exemptions,
    /// The counts.
    #[serde(flatten)]
    pub totals: Totals,
}

impl Totals {
    /// Adds a pass that came to a verdict.
    pub fn pass(&mut self, verdict: &Verdict, facts: &Facts, now: f64, seconds: f64) {
        if self.boot_id != verdict.boot_id {
            self.boot_id.clone_from(&verdict.boot_id);
            self.checks.clear();
        }
        let count = self.passes.get(&verdict.mode).map_or(0, |p| p.count) + 1;
        self.passes
            .insert(verdict.mode.clone(), Passes { count, time: now, seconds, status: verdict.status });
        for c in &verdict.checks {
            let before = self.checks.get(&c.check).filter(|b| b.status == c.status).map(|b| b.since);
            let findings = verdict.findings.iter().filter(|f| f.check == c.check && f.status != Status::Pass);
            let findings = findings.take(FINDINGS_MAX).map(|f| Brief {
                device: f.device.as_ref().map_or(String::new(), |d| d.name.clone()),
                index: f.device.as_ref().and_then(|d| d.index),
                status: f.status,
                token: f.token.clone(),
                action: f.action,
                drain: f.drains(),
                device_only: f.scope == crate::verdict::Scope::Device,
                text: clip(&f.text),
            });
            let result = LastResult {
                status: c.status,
                time: now,
                since: before.unwrap_or(now),
                detail: clip(&c.detail),
                findings: findings.collect(),
            };
            self.checks.insert(c.check.clone(), result);
        }
        let lost = facts.kernel.value().map_or(0, |k| k.lost);
        self.kmsg_lost = self.kmsg_lost.saturating_add(lost);
        self.kmsg_gaps += u64::from(lost > 0);
    }

    /// Counts a kernel event. Codes that the table lacks are `other`, devices that this node never had `unknown`: whatever a log
    /// says, the number of different counts is bounded.
    pub fn event(&mut self, seen: &SeenEvent, inventory: &BTreeMap<String, KnownGpu>) {
        let known = !policy(&seen.event).name.is_empty();
        let (kind, code) = match &seen.event.kind {
            Kind::Xid { code, .. } => ("xid", known.then(|| code.to_string())),
            Kind::Sxid { code, .. } => ("sxid", known.then(|| code.to_string())),
            Kind::Text(_) => ("text", Some(seen.event.token())),
            Kind::Line { .. } => ("line", Some(seen.event.token())),
        };
        let gpu = seen.event.pci.as_deref().and_then(|pci| {
            inventory.iter().find(|(at, _)| at.split('.').next() == Some(pci)).map(|(_, gpu)| gpu.minor)
        });
        let device = match gpu {
            Some(minor) => format!("g{minor}"),
            None if kind == "sxid" => "switch".into(),
            None => "unknown".into(),
        };
        let key = format!("{kind} {} {device}", code.as_deref().unwrap_or("other"));
        let count = self.kernel_events.entry(key).or_default();
        *count = count.saturating_add(seen.count);
    }

    /// Counts an answer of `clustermax-drain`.
    pub fn drain(&mut self, outcome: &str) {
        *self.drains.entry(outcome.to_string()).or_default() += 1;
    }

    /// Writes `RUN_DIR/checks.json`, readable by everybody.
    ///
    /// # Errors
    /// One sentence naming the file.
    pub fn publish(&self, config: &Config, now: f64) -> Result<(), String> {
        let file = ChecksFile {
            schema: CHECKS_SCHEMA.into(),
            node: config.node.clone(),
            time: now,
            enforcement: config.enforcement.word().into(),
            brake: brake_engaged(&config.paths.state_dir),
            spooled: spooled(&config.paths.state_dir),
            exempt: Exemptions::read(&config.paths.state_dir, now).unwrap_or_default(),
            totals: self.clone(),
        };
        let path = config.paths.run_dir.join("checks.json");
        make_public_dir(&config.paths.run_dir)?;
        let text = serde_json::to_string(&file).map_err(|e| e.to_string())?;
        write_atomic(&path, text.as_bytes(), 0o644, None)
            .map_err(|e| format!("{} cannot be written: {e}", path.display()))
    }
}

/// The brake on our own drains is engaged, until an operator releases it.
#[must_use]
pub fn brake_engaged(state_dir: &Path) -> bool {
    state_dir.join("brake.json").exists()
}

/// Drains that wait in the spool.
#[must_use]
pub fn spooled(state_dir: &Path) -> usize {
    std::fs::read_dir(state_dir.join("spool"))
        .map_or(0, |d| d.flatten().filter(|e| e.path().extension().is_some_and(|x| x == "json")).count())
}

fn clip(text: &str) -> String {
    text.chars().take(TEXT_MAX).collect()
}
