//! What the hardware counted for one job: counters when it began against counters now.
//!
//! A rise is added up reading by reading, so that a counter which began anew (driver reload, GPU reset) in between makes no rise
//! negative and hides none that was seen. Of GPUs only the job's own count; links are the whole node's.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Job;
use super::left::Left;
use crate::check::short_counter_top;
use crate::facts::{AmdGpu, Facts};
use crate::history::Counters;
use crate::pass::timestamp_at;
use crate::state::State;
use crate::totals::Totals;

/// Other jobs of the node that are named.
const MAX_SHARED: usize = 16;
/// Counters of one job that are followed; 16 GPUs and 32 ports have fewer.
const MAX_COUNTERS: usize = 1024;
/// Counters that hold nanoseconds of reduced clocks, and the reason.
const THROTTLE: [(&str, &str); 4] = [
    ("thermal_ns", "hw_thermal"),
    ("brake_ns", "power_brake"),
    ("sw_thermal_ns", "sw_thermal"),
    ("power_cap_ns", "power_cap"),
];

/// What the hardware counted while a job was here.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Delta {
    /// When the values were read that everything is measured against, UTC.
    pub from: String,
    /// When they were last read, UTC.
    pub to: String,
    /// Other jobs that were here meanwhile: the links count for all of them together.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub shared_with: Vec<String>,
    /// The job's own GPUs.
    pub gpus: Vec<GpuDelta>,
    /// Ports of the node that have something to tell.
    pub links: Vec<LinkDelta>,
    /// What it left behind; none before its epilog.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub left: Option<Left>,
}

/// One GPU of the job.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuDelta {
    /// Minor number.
    pub index: u32,
    /// PCI address, where it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pci: Option<String>,
    /// Kernel records by Xid code.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub xids: BTreeMap<String, u64>,
    /// Counters that rose.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub rises: BTreeMap<String, u64>,
    /// Seconds with reduced clocks by reason.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub throttled: BTreeMap<String, f64>,
    /// Its counters began anew meanwhile.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub reset: bool,
    /// Its counters could not be read.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub unread: bool,
}

/// One port of the node.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LinkDelta {
    /// `mlx5_0/1` or `eth0`.
    pub link: String,
    /// Counters that rose.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub rises: BTreeMap<String, u64>,
    /// Counters that stick at their largest value.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub blind: Vec<String>,
    /// Its counters began anew meanwhile.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub reset: bool,
}

/// One counter of a job, in JSON the value while it stood still, else `[value, rise, resets]`, or null when it is stuck.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(into = "Value", from = "Value")]
pub enum Tally {
    /// Followed.
    Counts {
        /// Last value.
        value: u64,
        /// How much it rose since the job began.
        rise: u64,
        /// How often it fell.
        resets: u64,
    },
    /// At the top of its few bits at some time.
    Blind,
}

impl From<Tally> for Value {
    fn from(tally: Tally) -> Value {
        match tally {
            Tally::Counts { value, rise: 0, resets: 0 } => value.into(),
            Tally::Counts { value, rise, resets } => vec![value, rise, resets].into(),
            Tally::Blind => Value::Null,
        }
    }
}

impl From<Value> for Tally {
    fn from(value: Value) -> Tally {
        let at = |i: usize| value.get(i).and_then(Value::as_u64).unwrap_or(0);
        match &value {
            Value::Number(n) => Tally::Counts { value: n.as_u64().unwrap_or(0), rise: 0, resets: 0 },
            Value::Array(_) => Tally::Counts { value: at(0), rise: at(1), resets: at(2) },
            _ => Tally::Blind,
        }
    }
}

impl Tally {
    fn start(name: &str, value: u64) -> Tally {
        if stuck(name, value) { Tally::Blind } else { Tally::Counts { value, rise: 0, resets: 0 } }
    }

    fn next(self, name: &str, now: u64) -> Tally {
        match self {
            _ if stuck(name, now) => Tally::Blind,
            Tally::Blind => Tally::Blind,
            Tally::Counts { value, rise, resets } if now >= value => {
                Tally::Counts { value: now, rise: rise.saturating_add(now - value), resets }
            }
            // It counts from 0 again, and all that while the job was here.
            Tally::Counts { rise, resets, .. } => {
                Tally::Counts { value: now, rise: rise.saturating_add(now), resets: resets + 1 }
            }
        }
    }
}

/// Some InfiniBand counters have few bits and stick at the top.
fn stuck(name: &str, value: u64) -> bool {
    name.strip_prefix("ib/")
        .and_then(|rest| rest.rsplit('/').next())
        .is_some_and(|counter| short_counter_top(counter) == Some(value))
}

/// Values that a job's counters are measured against.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Baseline {
    /// Value by counter.
    values: BTreeMap<String, u64>,
    /// When the oldest of them was right, seconds since boot.
    time: f64,
}

impl Baseline {
    /// The values when a job began, from what was read before.
    fn of(begun: f64, readings: &BTreeMap<String, u64>, history: &Counters) -> Baseline {
        let mut base = Baseline { values: BTreeMap::new(), time: begun };
        for name in readings.keys() {
            if let Some(sample) = history.at(name, begun) {
                base.values.insert(name.clone(), sample.value);
                base.time = base.time.min(sample.time);
            }
        }
        base
    }
}

/// Where jobs and kernel log stood before a pass added its own readings to the history.
#[derive(Debug, Default)]
pub struct Started {
    /// Of jobs whose counters nobody has followed yet.
    baselines: BTreeMap<String, Baseline>,
    /// Kernel records, by `KIND CODE DEVICE`; after [`Started::read_kernel`] only those that were new.
    kernel: BTreeMap<String, u64>,
}

impl Started {
    /// To be made before the pass reads the kernel log and records its counters.
    #[must_use]
    pub fn new(run_dir: &Path, readings: &BTreeMap<String, u64>, state: &State) -> Started {
        let jobs = if readings.is_empty() { Vec::new() } else { super::list(run_dir) };
        let unfollowed = jobs.into_iter().filter(|j| j.counters.is_empty());
        Started {
            baselines: unfollowed
                .map(|j| (j.job, Baseline::of(j.begun, readings, &state.counters)))
                .collect(),
            kernel: state.totals.kernel_events.clone(),
        }
    }

    /// Keeps what the pass has found new in the kernel log.
    pub fn read_kernel(&mut self, totals: &Totals) {
        let before = std::mem::take(&mut self.kernel);
        let new = |key: &String, n: &u64| n.saturating_sub(before.get(key).copied().unwrap_or(0));
        self.kernel = totals
            .kernel_events
            .iter()
            .map(|(key, n)| (key.clone(), new(key, n)))
            .filter(|(_, n)| *n > 0)
            .collect();
    }
}

/// What a pass knows that concerns jobs.
#[derive(Debug)]
pub struct Look<'a> {
    /// Its time, UTC.
    time: String,
    /// Boot it ran in.
    boot_id: &'a str,
    /// Its time, seconds since boot.
    now: f64,
    /// Counters it read; empty when it read no devices.
    counters: &'a BTreeMap<String, u64>,
    /// AMD GPUs it saw, in the order of their addresses.
    amd: &'a [AmdGpu],
    started: &'a Started,
    /// Jobs on the node.
    jobs: Vec<&'a str>,
}

impl<'a> Look<'a> {
    /// What a pass saw at `time` (UTC), which is `now` in seconds since boot.
    #[must_use]
    pub fn new(facts: &'a Facts, started: &'a Started, time: String, now: f64) -> Look<'a> {
        Look {
            time,
            boot_id: &facts.boot_id,
            now,
            counters: &facts.counters,
            amd: facts.amd.value().map_or(&[][..], |all| all),
            started,
            jobs: facts.jobs.iter().map(|j| j.job.as_str()).collect(),
        }
    }
}

impl Job {
    /// Adds what a pass saw.
    pub fn advance(&mut self, look: &Look<'_>) {
        if !self.boot_id.is_empty() && self.boot_id != look.boot_id {
            return;
        }
        let mut delta = self.delta.take().unwrap_or_else(|| Delta {
            from: self.started.clone(),
            gpus: self.gpus.iter().map(|g| GpuDelta { index: g.index, ..GpuDelta::default() }).collect(),
            ..Delta::default()
        });
        for job in look.jobs.iter().filter(|j| **j != self.job) {
            if delta.shared_with.len() < MAX_SHARED && !delta.shared_with.iter().any(|known| known == job) {
                delta.shared_with.push((*job).to_string());
            }
        }
        for (own, gpu) in self.gpus.iter().zip(&mut delta.gpus) {
            // amdgpu's GPUs are numbered by their addresses.
            let amd = || look.amd.get(usize::try_from(own.index).ok()?).map(|g| g.pci.clone());
            gpu.pci = own.pci.clone().or_else(|| gpu.pci.take()).or_else(amd);
            let device = format!("g{}", own.index);
            for (key, count) in &look.started.kernel {
                let mut words = key.split(' ');
                if let (Some("xid"), Some(code), Some(at)) = (words.next(), words.next(), words.next())
                    && at == device
                {
                    *gpu.xids.entry(code.to_string()).or_default() += count;
                }
            }
        }
        if !look.counters.is_empty() {
            let base = look.started.baselines.get(&self.job);
            if self.counters.is_empty() {
                delta.from = timestamp_at(base.map_or(look.now, |b| b.time));
            }
            self.count(look, base, &mut delta.gpus);
            delta.to.clone_from(&look.time);
            delta.links = links(&self.counters);
            for gpu in &mut delta.gpus {
                gpu.show(&self.counters);
            }
        }
        if delta.to.is_empty() {
            delta.to.clone_from(&delta.from);
        }
        self.delta = Some(delta);
        self.as_of.clone_from(&look.time);
        self.judge();
    }

    /// Follows the counters that concern this job.
    fn count(&mut self, look: &Look<'_>, base: Option<&Baseline>, gpus: &mut [GpuDelta]) {
        let own: Vec<&String> = gpus.iter().filter_map(|g| g.pci.as_ref()).collect();
        let concerns = |name: &str| match of_gpu(name) {
            Some((pci, _)) => own.iter().any(|o| *o == pci),
            None => name.starts_with("ib/") || name.starts_with("net/"),
        };
        for (name, now) in look.counters.iter().filter(|(name, _)| concerns(name)) {
            let before = match self.counters.get(name) {
                Some(tally) => *tally,
                None if self.counters.len() >= MAX_COUNTERS => continue,
                None => Tally::start(name, *base.and_then(|b| b.values.get(name)).unwrap_or(now)),
            };
            self.counters.insert(name.clone(), before.next(name, *now));
        }
        for gpu in gpus {
            let read = |name: &String| of_gpu(name).is_some_and(|(pci, _)| Some(pci) == gpu.pci.as_deref());
            gpu.unread = !look.counters.keys().any(read);
        }
    }
}

/// PCI address and name of a GPU's counter: `gpu/PCI/NAME`, `amd/PCI/NAME`, `aer/PCI/NAME`.
fn of_gpu(name: &str) -> Option<(&str, &str)> {
    let rest = ["gpu/", "amd/", "aer/"].iter().find_map(|prefix| name.strip_prefix(prefix))?;
    rest.split_once('/')
}

impl GpuDelta {
    fn show(&mut self, counters: &BTreeMap<String, Tally>) {
        (self.rises, self.throttled, self.reset) = (BTreeMap::new(), BTreeMap::new(), false);
        for (name, tally) in counters {
            let (Some((pci, short)), Tally::Counts { rise, resets, .. }) = (of_gpu(name), tally) else {
                continue;
            };
            if Some(pci) != self.pci.as_deref() {
                continue;
            }
            self.reset |= *resets > 0;
            let reason = THROTTLE.iter().find(|(counter, _)| *counter == short).map(|(_, reason)| *reason);
            match reason {
                _ if *rise == 0 => {}
                Some(reason) => {
                    #[allow(clippy::cast_precision_loss, reason = "milliseconds need no more than 53 bits")]
                    let seconds = (*rise / 1_000_000) as f64 / 1e3;
                    self.throttled.insert(reason.into(), seconds);
                }
                None if name.starts_with("aer/") => {
                    self.rises.insert(format!("aer_{short}"), *rise);
                }
                None => {
                    self.rises.insert(short.into(), *rise);
                }
            }
        }
    }

    /// How much a counter rose.
    #[must_use]
    pub fn rise(&self, counter: &str) -> u64 {
        self.rises.get(counter).copied().unwrap_or(0)
    }
}

/// Ports that have something to tell.
fn links(counters: &BTreeMap<String, Tally>) -> Vec<LinkDelta> {
    let mut all: BTreeMap<&str, LinkDelta> = BTreeMap::new();
    for (name, tally) in counters {
        let Some(rest) = name.strip_prefix("ib/").or_else(|| name.strip_prefix("net/")) else { continue };
        let Some((link, counter)) = rest.rsplit_once('/') else { continue };
        let of = all.entry(link).or_insert_with(|| LinkDelta { link: link.into(), ..LinkDelta::default() });
        match tally {
            Tally::Blind => of.blind.push(counter.into()),
            Tally::Counts { rise, resets, .. } => {
                of.reset |= *resets > 0;
                if *rise > 0 {
                    of.rises.insert(counter.into(), *rise);
                }
            }
        }
    }
    all.into_values().filter(|l| l.reset || !l.rises.is_empty() || !l.blind.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::JobHere;
    use crate::jobs::JobGpu;

    const PCI: &str = "0000:5d:00.0";
    const OTHER: &str = "0000:9a:00.0";

    fn new_job() -> Job {
        let gpu = JobGpu { index: 3, pci: Some(PCI.into()), uuid: None };
        Job { job: "7".into(), begun: 100.0, gpus: vec![gpu], ..Job::default() }
    }

    fn readings(pairs: &[(&str, u64)]) -> BTreeMap<String, u64> {
        let name = |n: &str| match n.split_once(' ') {
            Some(("own", short)) => format!("gpu/{PCI}/{short}"),
            Some(("other", short)) => format!("gpu/{OTHER}/{short}"),
            _ => n.to_string(),
        };
        pairs.iter().map(|(n, v)| (name(n), *v)).collect()
    }

    fn pass(job: &mut Job, now: f64, base: Option<Baseline>, pairs: &[(&str, u64)]) {
        let baselines = base.into_iter().map(|b| (job.job.clone(), b)).collect();
        look(job, now, &readings(pairs), &Started { baselines, ..Started::default() });
    }

    fn look(job: &mut Job, now: f64, counters: &BTreeMap<String, u64>, started: &Started) {
        let facts = Facts {
            boot_id: "b".into(),
            counters: counters.clone(),
            jobs: ["7", "8"].map(|job| JobHere { job: job.into(), ..JobHere::default() }).into(),
            ..Facts::default()
        };
        job.advance(&Look::new(&facts, started, format!("t{now}"), now));
    }

    fn delta(job: &Job) -> &Delta {
        job.delta.as_ref().unwrap()
    }

    #[test]
    fn a_job_is_charged_with_what_rose_since_it_began_on_its_own_gpus() {
        let mut history = Counters::default();
        history.record(&readings(&[("own ecc_corrected", 5), ("other ecc_corrected", 5)]), 90.0);
        let now = readings(&[("own ecc_corrected", 8), ("other ecc_corrected", 50)]);
        let mut job = new_job();
        let base = Baseline::of(job.begun, &now, &history);
        assert_eq!(base.time, 90.0);
        pass(&mut job, 120.0, Some(base), &[("own ecc_corrected", 8), ("other ecc_corrected", 50)]);
        pass(&mut job, 130.0, None, &[("own ecc_corrected", 9), ("other ecc_corrected", 60)]);
        let d = delta(&job);
        assert_eq!((d.from.ends_with('Z'), d.to.as_str()), (true, "t130"));
        assert_eq!(d.gpus.len(), 1);
        assert_eq!(d.gpus[0].rises, [("ecc_corrected".to_string(), 4)].into());
        assert!(!d.gpus[0].reset && !d.gpus[0].unread);
    }

    #[test]
    fn a_counter_that_was_never_read_before_the_job_charges_it_with_nothing_older() {
        let mut job = new_job();
        pass(&mut job, 120.0, Some(Baseline::default()), &[("own nvlink_crc", 500)]);
        assert!(delta(&job).gpus[0].rises.is_empty());
        pass(&mut job, 130.0, None, &[("own nvlink_crc", 501)]);
        assert_eq!(delta(&job).gpus[0].rise("nvlink_crc"), 1);
    }

    #[test]
    fn a_driver_reload_is_stated_and_no_rise_is_negative() {
        let mut job = new_job();
        pass(&mut job, 110.0, None, &[("own ecc_corrected", 500)]);
        pass(&mut job, 120.0, None, &[("own ecc_corrected", 510)]);
        pass(&mut job, 130.0, None, &[("own ecc_corrected", 2)]);
        assert_eq!((delta(&job).gpus[0].rise("ecc_corrected"), delta(&job).gpus[0].reset), (12, true));
        // It passes the old value: what rose before is not lost in between.
        pass(&mut job, 140.0, None, &[("own ecc_corrected", 600)]);
        assert_eq!(delta(&job).gpus[0].rise("ecc_corrected"), 610);
        // Between the last pass before the job and its first, too.
        let mut short = new_job();
        let base = Baseline { values: readings(&[("own ecc_corrected", 500)]), time: 90.0 };
        pass(&mut short, 110.0, Some(base), &[("own ecc_corrected", 0)]);
        assert!(delta(&short).gpus[0].reset && delta(&short).gpus[0].rises.is_empty());
    }

    #[test]
    fn saturated_counters_are_blind_and_never_a_delta() {
        let mut job = new_job();
        let link = "ib/mlx5_0/1/link_downed";
        pass(
            &mut job,
            110.0,
            None,
            &[(link, 3), ("ib/mlx5_0/1/symbol_error", 65_535), ("ib/mlx5_1/1/link_downed", 0)],
        );
        assert_eq!(delta(&job).links.len(), 1, "a quiet port is not listed");
        pass(&mut job, 120.0, None, &[(link, 5), ("ib/mlx5_0/1/symbol_error", 65_535)]);
        let shown = &delta(&job).links[0];
        assert_eq!((shown.link.as_str(), shown.rises["link_downed"]), ("mlx5_0/1", 2));
        assert_eq!(shown.blind, ["symbol_error"]);
        // It reaches its top: from there on nobody can tell, also after an administrator clears it.
        pass(&mut job, 130.0, None, &[(link, 255)]);
        pass(&mut job, 140.0, None, &[(link, 1)]);
        let shown = &delta(&job).links[0];
        assert!(shown.rises.is_empty() && !shown.reset, "{shown:?}");
        assert_eq!(shown.blind, ["link_downed", "symbol_error"]);
    }

    #[test]
    fn throttling_is_told_by_reason_in_seconds() {
        let mut job = new_job();
        pass(&mut job, 110.0, None, &[("own thermal_ns", 10), ("own brake_ns", 0)]);
        pass(&mut job, 120.0, None, &[("own thermal_ns", 2_500_000_010), ("own brake_ns", 0)]);
        assert_eq!(delta(&job).gpus[0].throttled, [("hw_thermal".to_string(), 2.5)].into());
        assert!(delta(&job).gpus[0].rises.is_empty());
    }

    #[test]
    fn xids_count_for_the_job_that_holds_the_gpu_and_other_jobs_are_named() {
        let mut job = new_job();
        let mut state = State::default();
        state.totals.kernel_events.insert("xid 13 g3".into(), 4);
        let mut started = Started::new(Path::new("/nonexistent"), &BTreeMap::new(), &state);
        for (key, n) in [("xid 13 g3", 6), ("xid 31 g1", 1), ("sxid 1 g3", 1)] {
            state.totals.kernel_events.insert(key.into(), n);
        }
        started.read_kernel(&state.totals);
        let mut later = Started::new(Path::new("/nonexistent"), &BTreeMap::new(), &state);
        later.read_kernel(&state.totals);
        let none = BTreeMap::new();
        look(&mut job, 110.0, &none, &started);
        look(&mut job, 120.0, &none, &later);
        assert_eq!(delta(&job).gpus[0].xids, [("13".to_string(), 2)].into());
        assert_eq!(delta(&job).shared_with, ["8"]);
        // A job of an earlier boot is nobody's any more.
        let mut old = Job { boot_id: "a".into(), ..new_job() };
        look(&mut old, 110.0, &none, &started);
        assert_eq!(old.delta, None);
    }

    #[test]
    fn a_gpu_that_cannot_be_read_is_said() {
        let mut job = new_job();
        pass(&mut job, 110.0, None, &[("own ecc_corrected", 1)]);
        pass(&mut job, 120.0, None, &[("other ecc_corrected", 1)]);
        assert!(delta(&job).gpus[0].unread);
        pass(&mut job, 130.0, None, &[("own ecc_corrected", 2)]);
        assert!(!delta(&job).gpus[0].unread);
        assert_eq!(delta(&job).gpus[0].rise("ecc_corrected"), 1);
    }

    #[test]
    fn tallies_are_short_in_json() {
        let all = [
            Tally::Blind,
            Tally::Counts { value: 5, rise: 0, resets: 0 },
            Tally::Counts { value: 9, rise: 4, resets: 1 },
        ];
        let text = serde_json::to_string(&all).unwrap();
        assert_eq!(text, "[null,5,[9,4,1]]");
        assert_eq!(serde_json::from_str::<Vec<Tally>>(&text).unwrap(), all);
    }

    #[test]
    fn the_file_of_the_largest_node_stays_below_the_plugins_limit() {
        let mut job = new_job();
        job.gpus = (0..16u32)
            .map(|index| JobGpu {
                index,
                pci: Some(format!("0000:{index:02x}:00.0")),
                uuid: Some("G".repeat(40)),
            })
            .collect();
        let of = |kind: &str, n: usize, names: usize| -> Vec<String> {
            (0..n)
                .flat_map(|i| (0..names).map(move |c| format!("{kind}{i:02x}:00.0/counter_number_{c}")))
                .collect()
        };
        let mut names = of("gpu/0000:", 16, 14);
        names.extend((0..16).flat_map(|p| (0..11).map(move |c| format!("ib/mlx5_{p}/1/local_counter_{c}"))));
        let mut counters: BTreeMap<String, u64> = names.into_iter().map(|n| (n, 1_000_000)).collect();
        look(&mut job, 1.0, &counters, &Started::default());
        counters.values_mut().for_each(|v| *v *= 2);
        look(&mut job, 2.0, &counters, &Started::default());
        assert!(delta(&job).gpus.iter().all(|g| g.rises.len() == 14));
        let size = serde_json::to_string(&job).unwrap().len();
        // 64 events of about 300 bytes come on top.
        assert!(size + 64 * 300 <= 64 << 10, "{size}");
    }
}
