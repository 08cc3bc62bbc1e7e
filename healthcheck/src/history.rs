//! Counters over time: rates over windows, with a baseline per boot.
//!
//! A counter since boot is never a threshold: a healthy port may have counted every reboot of its peer. What
//! counts is how much it moved within a window. A counter that fell was reset (driver reload, GPU reset, wrap)
//! and starts a new baseline.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

/// Longest window any rule asks for, in seconds; older samples are dropped.
pub const LONGEST_WINDOW: f64 = 24.0 * 3600.0;
/// Most samples kept of one counter.
const MAX_SAMPLES: usize = 64;

/// One reading of a counter.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Seconds since boot.
    #[serde(rename = "t")]
    pub time: f64,
    /// Value.
    #[serde(rename = "v")]
    pub value: u64,
}

/// Counters by name, for example `ib/mlx5_0/1/link_downed` or `gpu/0000:5d:00.0/ecc_corrected`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Counters {
    samples: BTreeMap<String, VecDeque<Sample>>,
}

impl Counters {
    /// Adds this pass's readings. Counters that were not read keep what they have.
    pub fn record(&mut self, readings: &BTreeMap<String, u64>, now: f64) {
        for (name, &value) in readings {
            let samples = self.samples.entry(name.clone()).or_default();
            // A reset or a clock set back makes earlier samples incomparable.
            if samples.back().is_some_and(|last| value < last.value || now < last.time) {
                samples.clear();
            }
            // Of a counter that stands still the ends are enough: a healthy node's history stays small.
            let flat = samples.len() >= 2 && samples.iter().rev().take(2).all(|s| s.value == value);
            match samples.back_mut().filter(|_| flat) {
                Some(last) => last.time = now,
                None => samples.push_back(Sample { time: now, value }),
            }
            thin(samples, now);
        }
        for samples in self.samples.values_mut() {
            // One from before the longest window stays: it is its baseline.
            while samples.get(1).is_some_and(|s| now - s.time > LONGEST_WINDOW) {
                samples.pop_front();
            }
        }
        self.samples.retain(|_, s| s.back().is_some_and(|last| now - last.time <= LONGEST_WINDOW));
    }

    /// A counter's value at a time: its last sample up to then, or none when it was not read before. One that stood still
    /// until a later sample was right at that time itself.
    #[must_use]
    pub fn at(&self, name: &str, time: f64) -> Option<Sample> {
        let samples = self.samples.get(name)?;
        let at = samples.iter().rposition(|s| s.time <= time)?;
        let mut sample = *samples.get(at)?;
        if samples.get(at + 1).is_some_and(|next| next.value == sample.value) {
            sample.time = time;
        }
        Some(sample)
    }

    /// How much a counter rose within the last `window` seconds, against its last sample before the window, or
    /// its first one. `None` when there is nothing to compare with.
    #[must_use]
    pub fn rise(&self, name: &str, window: f64) -> Option<u64> {
        let (from, to) = self.span(name, window)?;
        Some(to.value - from.value)
    }

    /// The rise per second, over the time that was really watched.
    #[must_use]
    pub fn rate(&self, name: &str, window: f64) -> Option<f64> {
        let (from, to) = self.span(name, window)?;
        #[allow(clippy::cast_precision_loss, reason = "a rate needs no more than 53 bits")]
        let rise = (to.value - from.value) as f64;
        Some(rise / (to.time - from.time))
    }

    /// How much a counter rose between two ages, in seconds before its last sample; between samples it is taken to have risen
    /// evenly, as a check that runs every five minutes sees no more. Zero for the time before its first sample.
    #[must_use]
    pub fn rose(&self, name: &str, older: f64, newer: f64) -> f64 {
        let Some(samples) = self.samples.get(name) else { return 0.0 };
        let Some(last) = samples.back() else { return 0.0 };
        let (from, to) = (last.time - older, last.time - newer);
        #[allow(clippy::cast_precision_loss, reason = "a rate needs no more than 53 bits")]
        let share = |(a, b): (&Sample, &Sample)| {
            let seconds = b.time.min(to) - a.time.max(from);
            if seconds > 0.0 { (b.value - a.value) as f64 * seconds / (b.time - a.time) } else { 0.0 }
        };
        samples.iter().zip(samples.iter().skip(1)).map(share).sum()
    }

    /// True when a counter rose, and by `per_second` at least, in each of these stretches, which end now and join: one burst, which
    /// many quick passes see, does not last.
    #[must_use]
    pub fn lasts(&self, name: &str, per_second: f64, stretches: &[f64]) -> bool {
        let mut newer = 0.0;
        let each = stretches.iter().all(|seconds| {
            let older = newer + seconds;
            let rose = self.rose(name, older, newer);
            newer = older;
            rose > 0.0 && rose >= per_second * seconds
        });
        each && self.watched(name, newer) >= newer
    }

    /// For how long a counter was watched within the window, in seconds.
    #[must_use]
    pub fn watched(&self, name: &str, window: f64) -> f64 {
        self.span(name, window).map_or(0.0, |(from, to)| to.time - from.time)
    }

    fn span(&self, name: &str, window: f64) -> Option<(Sample, Sample)> {
        let samples = self.samples.get(name)?;
        let to = *samples.back()?;
        let start = to.time - window;
        let at = samples.iter().rposition(|s| s.time <= start);
        let mut from = *at.map_or_else(|| samples.front(), |at| samples.get(at))?;
        // It stood still from there to the next sample: that is as good as a sample at the window's start.
        if at.and_then(|at| samples.get(at + 1)).is_some_and(|next| next.value == from.value) {
            from.time = from.time.max(start);
        }
        (from.time < to.time).then_some((from, to))
    }
}

/// Keeps the newest samples dense and the old ones sparse: goes the sample whose neighbours lie closest for their age, so that
/// gaps stay a fixed share of the age. The first and the last stay.
fn thin(samples: &mut VecDeque<Sample>, now: f64) {
    while samples.len() > MAX_SAMPLES {
        let gap = |at: usize| {
            let (before, own, after) = (samples.get(at - 1)?, samples.get(at)?, samples.get(at + 1)?);
            Some((after.time - before.time) / (now - own.time + 1.0))
        };
        let closest =
            (1..samples.len() - 1).filter_map(|at| Some((at, gap(at)?))).min_by(|a, b| a.1.total_cmp(&b.1));
        match closest {
            Some((at, _)) => samples.remove(at),
            None => samples.pop_front(),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(value: u64) -> BTreeMap<String, u64> {
        BTreeMap::from([("c".to_string(), value)])
    }

    #[test]
    fn a_value_since_boot_is_no_rise() {
        let mut c = Counters::default();
        c.record(&one(500), 0.0);
        assert_eq!(c.rise("c", 3600.0), None);
        c.record(&one(500), 60.0);
        assert_eq!(c.rise("c", 3600.0), Some(0));
        c.record(&one(503), 120.0);
        assert_eq!(c.rise("c", 3600.0), Some(3));
        assert_eq!(c.rise("c", 60.0), Some(3));
        assert_eq!(c.rate("c", 60.0), Some(0.05));
        assert_eq!(c.rise("other", 60.0), None);
    }

    #[test]
    fn a_value_at_a_time_is_that_of_the_last_reading_before() {
        let mut c = Counters::default();
        assert_eq!(c.at("c", 60.0), None);
        for (value, now) in [(5, 60.0), (5, 120.0), (5, 180.0), (9, 240.0)] {
            c.record(&one(value), now);
        }
        let at = |time| c.at("c", time).map(|s| (s.time, s.value));
        assert_eq!(at(59.0), None);
        assert_eq!(at(60.0), Some((60.0, 5)));
        // It stood still up to 180.
        assert_eq!(at(150.0), Some((150.0, 5)));
        assert_eq!(at(200.0), Some((180.0, 5)));
        assert_eq!(at(300.0), Some((240.0, 9)));
    }

    #[test]
    fn what_rose_between_two_ages_and_what_lasts() {
        let mut c = Counters::default();
        assert_eq!(c.rose("c", 60.0, 0.0), 0.0);
        // 30 in the first five minutes, none in the next, 60 in the last.
        for (value, now) in [(10, 0.0), (40, 300.0), (40, 600.0), (100, 900.0)] {
            c.record(&one(value), now);
        }
        assert_eq!(c.rose("c", 300.0, 0.0), 60.0);
        assert_eq!(c.rose("c", 60.0, 0.0), 12.0);
        assert_eq!(c.rose("c", 360.0, 240.0), 12.0, "half of it");
        assert_eq!(c.rose("c", 900.0, 600.0), 30.0);
        assert_eq!(c.rose("c", 9000.0, 0.0), 90.0);
        assert!(c.lasts("c", 0.1, &[60.0, 60.0, 60.0]));
        assert!(!c.lasts("c", 0.3, &[60.0, 60.0, 60.0]), "too few");
        assert!(!c.lasts("c", 0.0, &[300.0, 300.0]), "not in the second");
        assert!(!c.lasts("c", 0.0, &[900.0, 60.0]), "not watched so long");
    }

    #[test]
    fn the_window_leaves_old_rises_behind() {
        let mut c = Counters::default();
        for minute in 0..120u32 {
            c.record(&one(u64::from(minute.min(10))), f64::from(minute) * 60.0);
        }
        assert_eq!(c.rise("c", 1800.0), Some(0));
        assert_eq!(c.rise("c", 24.0 * 3600.0), Some(10));
    }

    #[test]
    fn a_reset_and_a_clock_set_back_start_a_new_baseline() {
        let mut c = Counters::default();
        c.record(&one(100), 0.0);
        c.record(&one(5), 60.0);
        assert_eq!(c.rise("c", 3600.0), None);
        c.record(&one(7), 120.0);
        assert_eq!(c.rise("c", 3600.0), Some(2));
        c.record(&one(9), 30.0);
        assert_eq!(c.rise("c", 3600.0), None);
    }

    #[test]
    fn a_counter_that_stands_still_takes_two_samples_and_hides_no_time() {
        let mut c = Counters::default();
        for minute in 0..100u32 {
            c.record(&one(7), f64::from(minute) * 60.0);
        }
        assert_eq!(c.samples["c"].len(), 2);
        c.record(&one(67), 6000.0);
        assert_eq!((c.rise("c", 60.0), c.rate("c", 60.0)), (Some(60), Some(1.0)));
        assert_eq!(c.rate("c", 600.0), Some(0.1));
        assert!((c.watched("c", 3600.0) - 3600.0).abs() < 1.0);
    }

    #[test]
    fn windows_of_any_length_are_met_nearly() {
        let mut c = Counters::default();
        for minute in 0..1440u32 {
            c.record(&one(u64::from(minute)), f64::from(minute) * 60.0);
        }
        for minutes in [1u32, 5, 60, 120, 180, 720] {
            let rise = c.rise("c", f64::from(minutes) * 60.0).unwrap();
            let most = u64::from(minutes) * 5 / 4 + 1;
            assert!((u64::from(minutes)..=most).contains(&rise), "{rise} within {minutes} minutes");
        }
    }

    #[test]
    fn what_rose_before_the_longest_window_is_no_rise_in_it() {
        let mut c = Counters::default();
        c.record(&one(0), 0.0);
        c.record(&one(1), 60.0);
        c.record(&one(1), 120.0 + LONGEST_WINDOW);
        assert_eq!(c.rise("c", LONGEST_WINDOW), Some(0));
    }

    #[test]
    fn memory_is_bounded_and_the_baseline_stays() {
        let mut c = Counters::default();
        for i in 0..10_000u32 {
            c.record(&one(u64::from(i)), f64::from(i));
        }
        let samples = &c.samples["c"];
        assert!(samples.len() <= MAX_SAMPLES);
        assert_eq!(samples[0].value, 0);
        assert_eq!(c.rise("c", 86_400.0), Some(9_999));
        c.record(&BTreeMap::new(), 10_000.0 + LONGEST_WINDOW + 1.0);
        assert_eq!(c.rise("c", 86_400.0), None, "nobody reads it any more");
    }
}
