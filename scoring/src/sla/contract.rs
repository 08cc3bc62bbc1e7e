//! The contract file: what counts as down, what is promised at which level, what a breach is worth.

use std::path::Path;

use serde::Deserialize;

use super::hostlist;
use super::spans::Span;

/// The schema that this release reads.
pub const SCHEMA: &str = "clustermax-contract/1";

/// A contract file.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Contract {
    /// Always [`SCHEMA`].
    pub schema: String,
    /// Who provides.
    #[serde(default)]
    pub provider: String,
    /// Of each node.
    #[serde(default = "eight")]
    pub gpus_per_node: u32,
    /// Of prices.
    #[serde(default)]
    pub currency: String,
    /// What a GPU-hour costs, absent: credits are given in percent alone.
    pub price_per_gpu_hour: Option<f64>,
    /// Whose time is judged at once.
    #[serde(default)]
    pub period: Period,
    /// Most that is credited of a period's price.
    pub cap_percent: Option<f64>,
    /// Days after a period's end in which a claim must be made.
    pub claim_days: Option<u32>,
    /// What counts as down.
    #[serde(default)]
    pub downtime: Downtime,
    /// What is promised.
    #[serde(default)]
    pub level: Vec<Level>,
    /// Racks, clusters, sites: groups of nodes.
    #[serde(default)]
    pub group: Vec<Group>,
    /// Announced windows, which are no downtime.
    #[serde(default)]
    pub maintenance: Vec<Maintenance>,
    /// Outages that are no downtime for their cause.
    #[serde(default)]
    pub exclusion: Vec<Exclusion>,
    /// How jobs keep their state.
    pub checkpoint: Option<Checkpoint>,
}

fn eight() -> u32 {
    8
}

/// Whose time is judged at once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Period {
    /// Each calendar month, UTC.
    #[default]
    Month,
    /// The whole window.
    Whole,
}

/// Where excluded time goes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Excluded {
    /// It leaves the period: neither up nor down.
    #[default]
    Out,
    /// It counts as up, as most contracts have it.
    Up,
}

/// What counts as down.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Downtime {
    /// Of Slurm's states: `down`, `drain`, `fail`, `maint`.
    pub states: Vec<String>,
    /// A shorter outage counts as up.
    pub shortest_seconds: i64,
    /// Where excluded time goes.
    pub excluded: Excluded,
}

impl Default for Downtime {
    fn default() -> Self {
        Self {
            states: ["down", "drain", "fail"].map(str::to_owned).to_vec(),
            shortest_seconds: 0,
            excluded: Excluded::Out,
        }
    }
}

/// What is promised at a level.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Level {
    /// `node`, or the level of a group.
    pub level: String,
    /// Availability, percent.
    pub percent: f64,
    /// Steps, any order; the deepest that is reached counts.
    #[serde(default)]
    pub credits: Vec<Step>,
}

/// A step of a level's credits.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// Availability below this, percent.
    pub below: f64,
    /// Percent of the unit's price in the period.
    pub percent: f64,
}

/// A group of nodes that is up or down as one.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Group {
    /// `rack`, `cluster`, `site` ...
    pub level: String,
    /// Unique in its level.
    pub name: String,
    /// Slurm's node list.
    pub nodes: String,
    /// Down while so many of its nodes are.
    pub down_at: usize,
}

/// An announced window.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Maintenance {
    /// RFC 3339.
    pub from: toml::value::Datetime,
    /// RFC 3339.
    pub to: toml::value::Datetime,
    /// Slurm's node list; absent: all.
    pub nodes: Option<String>,
}

/// Outages that are no downtime.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Exclusion {
    /// Slurm's Reason contains this.
    pub reason: String,
    /// Clause of the contract.
    pub why: String,
}

/// How jobs keep their state.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Checkpoint {
    /// A checkpoint blocks the job so long.
    pub seconds: f64,
    /// Work between two.
    pub interval_seconds: f64,
    /// From the start of an attempt to its first new step.
    pub restart_seconds: f64,
}

/// Seconds since the epoch of a date with time and offset, or of a date (midnight UTC).
pub fn instant(text: &str) -> Option<i64> {
    if let Ok(at) = text.parse::<jiff::Timestamp>() {
        return Some(at.as_second());
    }
    let civil = match text.parse::<jiff::civil::DateTime>() {
        Ok(at) => at,
        Err(_) => text.parse::<jiff::civil::Date>().ok()?.at(0, 0, 0, 0),
    };
    civil.to_zoned(jiff::tz::TimeZone::UTC).ok().map(|at| at.timestamp().as_second())
}

impl Maintenance {
    /// The window.
    pub fn span(&self) -> Option<Span> {
        Some((instant(&self.from.to_string())?, instant(&self.to.to_string())?))
    }
}

impl Contract {
    /// A contract that promises nothing.
    pub fn none() -> Self {
        Self {
            schema: SCHEMA.to_owned(),
            provider: String::new(),
            gpus_per_node: eight(),
            currency: String::new(),
            price_per_gpu_hour: None,
            period: Period::default(),
            cap_percent: None,
            claim_days: None,
            downtime: Downtime::default(),
            level: Vec::new(),
            group: Vec::new(),
            maintenance: Vec::new(),
            exclusion: Vec::new(),
            checkpoint: None,
        }
    }

    /// Reads a contract.
    ///
    /// # Errors
    /// One sentence with file, key and mend.
    pub fn read(path: &Path) -> Result<Self, String> {
        let shown = path.display();
        let text = std::fs::read_to_string(path).map_err(|error| {
            format!("cannot read {shown}: {error}; give a contract file as docs/sla.md describes it")
        })?;
        let contract: Self = toml::from_str(&text).map_err(|error: toml::de::Error| {
            let line = error.span().map_or(1, |span| text[..span.start].matches('\n').count() + 1);
            format!(
                "{shown}: line {line}: {}; docs/sla.md lists the keys",
                error.message().replace('\n', " ")
            )
        })?;
        match contract.problem() {
            Some(problem) => Err(format!("{shown}: {problem}")),
            None => Ok(contract),
        }
    }

    /// What contradicts itself or cannot be, with the mend.
    fn problem(&self) -> Option<String> {
        let percent = |value: f64| (0.0..=100.0).contains(&value);
        if self.schema != SCHEMA {
            return Some(format!(
                "schema is {:?}, this release reads {SCHEMA:?}; use the release that it was written for",
                self.schema
            ));
        }
        if self.price_per_gpu_hour.is_some_and(|price| !(price.is_finite() && price > 0.0)) {
            return Some("price_per_gpu_hour is not above 0; give the price or leave the key out".to_owned());
        }
        if self.gpus_per_node == 0 {
            return Some("gpus_per_node is 0; give the GPUs of a node".to_owned());
        }
        if self.cap_percent.is_some_and(|cap| !percent(cap)) {
            return Some("cap_percent is not within 0 and 100; correct it".to_owned());
        }
        const STATES: [&str; 4] = ["down", "drain", "fail", "maint"];
        if let Some(word) = self.downtime.states.iter().find(|word| !STATES.contains(&word.as_str())) {
            return Some(format!("downtime.states has {word:?}; use {}", STATES.join(", ")));
        }
        if self.downtime.states.is_empty() || self.downtime.shortest_seconds < 0 {
            return Some(
                "downtime needs a state at least and no negative shortest_seconds; correct it".to_owned(),
            );
        }
        for level in &self.level {
            let name = &level.level;
            if !percent(level.percent)
                || level.credits.iter().any(|step| !percent(step.below) || !percent(step.percent))
            {
                return Some(format!("level {name}: a percentage is not within 0 and 100; correct it"));
            }
            if let Some(step) = level.credits.iter().find(|step| step.below > level.percent) {
                return Some(format!(
                    "level {name}: a credit below {} % although only {} % is promised; correct one of them",
                    step.below, level.percent
                ));
            }
            if self.level.iter().filter(|other| other.level == *name).count() > 1 {
                return Some(format!("level {name} is there twice; keep one"));
            }
            if name != "node" && !self.group.iter().any(|group| group.level == *name) {
                return Some(format!("level {name} has no [[group]] with level = {name:?}; name its groups"));
            }
        }
        for group in &self.group {
            let name = format!("group {} {}", group.level, group.name);
            let nodes = match hostlist::expand(&group.nodes) {
                Ok(nodes) => nodes,
                Err(what) => return Some(format!("{name}: nodes {what}; write it as sinfo does")),
            };
            if group.down_at == 0 || group.down_at > nodes.len() {
                return Some(format!(
                    "{name}: down_at {} is not within 1 and its {} nodes; correct it",
                    group.down_at,
                    nodes.len()
                ));
            }
            if group.level == "node" {
                return Some(format!("{name}: the level node needs no groups; name another level"));
            }
            if self
                .group
                .iter()
                .filter(|other| (&other.level, &other.name) == (&group.level, &group.name))
                .count()
                > 1
            {
                return Some(format!("{name} is there twice; keep one"));
            }
        }
        for (index, window) in self.maintenance.iter().enumerate() {
            let name = format!("maintenance {}", index + 1);
            match window.span() {
                None => {
                    return Some(format!(
                        "{name}: from and to must be dates with time and offset, as 2026-11-03T02:00:00Z"
                    ));
                }
                Some((from, to)) if from >= to => {
                    return Some(format!("{name}: from is not before to; correct them"));
                }
                Some(_) => {}
            }
            if let Some(Err(what)) = window.nodes.as_deref().map(hostlist::expand) {
                return Some(format!("{name}: nodes {what}; write it as sinfo does"));
            }
        }
        if self.exclusion.iter().any(|one| one.reason.trim().is_empty()) {
            return Some(
                "exclusion: reason is empty, which would exclude every outage; give a word of the reason"
                    .to_owned(),
            );
        }
        if let Some(one) = self.checkpoint
            && !(one.seconds >= 0.0
                && one.interval_seconds > 0.0
                && one.restart_seconds >= 0.0
                && one.seconds + one.interval_seconds + one.restart_seconds < 1e9)
        {
            return Some("checkpoint: seconds and restart_seconds must not be negative and interval_seconds must be above 0; correct it".to_owned());
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) const EXAMPLE: &str = include_str!("../../tests/data/contract.toml");

    #[test]
    fn every_malformed_contract_is_one_sentence_with_key_and_mend() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("contract.toml");
        std::fs::write(&path, EXAMPLE).unwrap();
        let contract = Contract::read(&path).unwrap();
        assert_eq!(contract.group[0].down_at, 2);
        for (from, to, expected) in [
            ("clustermax-contract/1", "clustermax-contract/2", "use the release"),
            ("price_per_gpu_hour = 2.5", "price_per_gpu_hour = -1", "price_per_gpu_hour is not above 0"),
            ("gpus_per_node = 8", "gpus_per_node = 0", "gpus_per_node is 0"),
            ("gpus_per_node = 8", "gpus_per_nodes = 8", "line 5: unknown field `gpus_per_nodes`"),
            ("cap_percent = 50", "cap_percent = 500", "cap_percent"),
            ("\"drain\"", "\"sick\"", "downtime.states has \"sick\""),
            ("shortest_seconds = 60", "shortest_seconds = -1", "negative shortest_seconds"),
            ("percent = 99.5\n", "percent = 101\n", "level node: a percentage"),
            ("below = 99.5", "below = 99.9", "although only 99.5 % is promised"),
            ("level = \"rack\"\npercent", "level = \"node\"\npercent", "level node is there twice"),
            ("level = \"rack\"\npercent", "level = \"hall\"\npercent", "level hall has no [[group]]"),
            ("nodes = \"n[1-2]\"", "nodes = \"n[1-\"", "group rack r1: nodes"),
            ("down_at = 2", "down_at = 9", "down_at 9 is not within 1 and its 2 nodes"),
            ("name = \"r2\"", "name = \"r1\"", "group rack r1 is there twice"),
            (
                "to = 2026-11-10T04:00:00Z",
                "to = 2026-11-09T04:00:00Z",
                "maintenance 1: from is not before to",
            ),
            ("from = 2026-11-10T02:00:00Z", "from = 02:00:00", "maintenance 1: from and to must be dates"),
            ("reason = \"customer\"", "reason = \" \"", "exclusion: reason is empty"),
            ("interval_seconds = 1800", "interval_seconds = 0", "interval_seconds must be above 0"),
            ("period = \"month\"", "period = \"week\"", "line 8: unknown variant `week`"),
            ("period = \"month\"", "period = ", "line 8:"),
        ] {
            assert!(EXAMPLE.contains(from), "{from}");
            std::fs::write(&path, EXAMPLE.replacen(from, to, 1)).unwrap();
            let error = Contract::read(&path).unwrap_err();
            assert!(error.contains(expected), "{from} -> {to}: {error}");
            assert!(error.contains("contract.toml: ") && error.lines().count() == 1, "{error}");
        }
        assert!(Contract::read(&folder.path().join("gone")).unwrap_err().contains("cannot read"));
    }
}
