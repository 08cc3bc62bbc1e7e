//! Whether a node that we drained may be given back by ourselves: `[return]`, off by default.
//!
//! What counts is the check that drained it: it must pass, without so much as a warning, in a number of periodic passes in
//! a row and for a time. An event of the kernel log stays a warning until the node is booted, so a node drained by an Xid
//! comes back after a boot only. `clustermax-drain return` then looks at the node's reason and state itself.
//!
//! Time is counted since boot: nobody sets that clock. A boot begins passes and hold anew.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::config::GiveBack;
use crate::state::write_atomic;
use crate::verdict::{Status, Verdict};

/// A fault that comes back this soon after we gave the node back (in seconds) is not given back by us again.
const ONCE_IN: f64 = 86_400.0;

/// What is remembered, across boots, in `STATE_DIR/return.json`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Record {
    /// The fault that holds the node.
    pub drained: Option<Drained>,
    /// Faults that we gave the node back from, by id, and when.
    pub returned: BTreeMap<String, Moment>,
}

/// A point in time that a clock which is set cannot move, within one boot.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Moment {
    /// The boot.
    pub boot_id: String,
    /// Seconds since that boot.
    pub since_boot: f64,
    /// Seconds since the epoch, for what another boot compares.
    pub time: f64,
}

impl Moment {
    /// Seconds that have passed since `earlier`: of another boot by the wall clock, as well as that is known.
    fn since(&self, earlier: &Moment) -> f64 {
        if self.is_of_boot(earlier) {
            self.since_boot - earlier.since_boot
        } else {
            (self.time - earlier.time).abs()
        }
    }

    fn is_of_boot(&self, other: &Moment) -> bool {
        self.boot_id == other.boot_id
    }
}

/// A drain of ours that stands.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Drained {
    /// Id of the reason.
    pub id: String,
    /// Check that has to pass.
    pub check: String,
    /// Passes in a row so far.
    pub passes: u32,
    /// When the first of them was.
    pub first: Moment,
}

impl Record {
    /// What is remembered; nothing when there is no file or it cannot be understood.
    #[must_use]
    pub fn read(state_dir: &Path) -> Record {
        let text = std::fs::read_to_string(file(state_dir)).unwrap_or_default();
        serde_json::from_str(&text).unwrap_or_default()
    }

    /// Writes it, for root only.
    ///
    /// # Errors
    /// One sentence naming the file.
    pub fn write(&self, state_dir: &Path) -> Result<(), String> {
        let path = file(state_dir);
        let text = serde_json::to_string(self).map_err(|e| e.to_string())?;
        write_atomic(&path, text.as_bytes(), 0o600, None)
            .map_err(|e| format!("{} cannot be written: {e}", path.display()))
    }

    /// A verdict asked for a drain, and the node is held by us or will be.
    pub fn drained(&mut self, verdict: &Verdict) {
        let Some(worst) = Verdict::worst(&verdict.findings) else { return };
        let (id, check) = (worst.id(), worst.check.clone());
        self.drained = Some(Drained { id, check, passes: 0, first: Moment::default() });
    }

    /// Counts a periodic pass; the id of the fault when the node may be given back now.
    pub fn pass(&mut self, rule: &GiveBack, verdict: &Verdict, now: &Moment) -> Option<String> {
        let drained = self.drained.as_mut()?;
        let passed = verdict.checks.iter().any(|c| c.check == drained.check && c.status == Status::Pass);
        if !passed || verdict.drain {
            drained.passes = 0;
            return None;
        }
        if drained.passes == 0 || !now.is_of_boot(&drained.first) {
            drained.passes = 0;
            drained.first = now.clone();
        }
        drained.passes = drained.passes.saturating_add(1);
        #[allow(clippy::cast_precision_loss, reason = "at most 30 days of seconds")]
        let held = now.since(&drained.first) >= rule.hold as f64;
        let often = self.returned.get(&drained.id).is_some_and(|at| now.since(at) < ONCE_IN);
        (rule.passes > 0 && drained.passes >= rule.passes && held && !often).then(|| drained.id.clone())
    }

    /// The node was given back, or is not ours to give back any more.
    pub fn settled(&mut self, returned: bool, now: Moment) {
        if let (Some(drained), true) = (self.drained.take(), returned) {
            self.returned.retain(|_, at| now.since(at) < ONCE_IN);
            self.returned.insert(drained.id, now);
        }
    }
}

fn file(state_dir: &Path) -> PathBuf {
    state_dir.join("return.json")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::{Action, CheckResult, Fault, Finding, Scope, VERDICT_SCHEMA};

    const RULE: GiveBack = GiveBack { passes: 3, hold: 100 };

    fn verdict(status: Status, drain: bool) -> Verdict {
        let finding = Finding {
            check: "gpu.remap".into(),
            token: "rowremap".into(),
            status: Status::Fail,
            device: None,
            scope: Scope::Node,
            action: Action::Repair,
            drain,
            fault: Fault::Hardware,
            evidence: String::new(),
            text: String::new(),
            mend: String::new(),
            synthetic: false,
            observe: false,
            event: None,
        };
        Verdict {
            schema: VERDICT_SCHEMA.into(),
            node: "n1".into(),
            boot_id: "b".into(),
            config_hash: String::new(),
            mode: "periodic".into(),
            enforcement: "enforce".into(),
            time: String::new(),
            seconds: 0.0,
            status,
            action: Action::None,
            drain,
            reason: None,
            drain_outcome: None,
            findings: if drain { vec![finding] } else { Vec::new() },
            checks: vec![CheckResult { check: "gpu.remap".into(), status, detail: String::new() }],
            left_out: 0,
        }
    }

    fn at(since_boot: f64) -> Moment {
        Moment { boot_id: "b".into(), since_boot, time: 1e9 + since_boot }
    }

    fn drained() -> Record {
        let mut record = Record::default();
        record.drained(&verdict(Status::Fail, true));
        record
    }

    #[test]
    fn enough_passes_in_a_row_and_the_hold() {
        let good = verdict(Status::Pass, false);
        let mut r = drained();
        // Three passes, but too early; then late enough.
        for (now, back) in [(10.0, false), (20.0, false), (30.0, false), (109.0, false), (110.0, true)] {
            assert_eq!(r.pass(&RULE, &good, &at(now)).is_some(), back, "{now}");
        }
        // Late enough, but too few.
        let mut r = drained();
        for (now, back) in [(10.0, false), (200.0, false), (201.0, true)] {
            assert_eq!(r.pass(&RULE, &good, &at(now)).is_some(), back, "{now}");
        }
    }

    #[test]
    fn a_warning_or_another_fault_starts_it_over() {
        for bad in [
            verdict(Status::Warn, false),
            verdict(Status::Unknown, false),
            Verdict { drain: true, ..verdict(Status::Pass, false) },
            Verdict { checks: Vec::new(), ..verdict(Status::Pass, false) },
        ] {
            let mut r = drained();
            let good = verdict(Status::Pass, false);
            assert_eq!((r.pass(&RULE, &good, &at(0.0)), r.pass(&RULE, &good, &at(200.0))), (None, None));
            assert_eq!(r.pass(&RULE, &bad, &at(201.0)), None);
            assert_eq!((r.pass(&RULE, &good, &at(202.0)), r.pass(&RULE, &good, &at(203.0))), (None, None));
            assert_eq!(r.pass(&RULE, &good, &at(204.0)), None, "the hold begins anew");
            assert!(r.pass(&RULE, &good, &at(303.0)).is_some());
        }
    }

    #[test]
    fn a_fault_that_comes_back_is_left_to_the_operator() {
        let good = verdict(Status::Pass, false);
        let mut r = drained();
        r.settled(true, at(1000.0));
        assert_eq!(r.pass(&RULE, &good, &at(2000.0)), None, "nothing of ours holds the node");
        r.drained(&verdict(Status::Fail, true));
        for now in [3000.0, 4000.0, 5000.0, 6000.0] {
            assert_eq!(r.pass(&RULE, &good, &at(now)), None, "{now}");
        }
        assert!(r.pass(&RULE, &good, &at(1000.0 + ONCE_IN)).is_some());
    }

    #[test]
    fn a_clock_that_is_set_ends_no_hold_and_no_day() {
        let good = verdict(Status::Pass, false);
        let mut r = drained();
        for (since_boot, jump, back) in [
            (10.0, 0.0, false),
            (20.0, 1e8, false),
            (30.0, -1e8, false),
            (109.0, 1e8, false),
            (110.0, -1e8, true),
        ] {
            let now = Moment { time: 1e9 + jump, ..at(since_boot) };
            assert_eq!(r.pass(&RULE, &good, &now).is_some(), back, "{since_boot}");
        }
        // Given back; the same fault again, and the clock a year ahead.
        r.settled(true, at(110.0));
        r.drained(&verdict(Status::Fail, true));
        for since_boot in [200.0, 300.0, 400.0, 500.0] {
            let now = Moment { time: 1e9 + 3e7, ..at(since_boot) };
            assert_eq!(r.pass(&RULE, &good, &now), None, "{since_boot}");
        }
    }

    #[test]
    fn a_boot_begins_the_hold_anew() {
        let good = verdict(Status::Pass, false);
        let mut r = drained();
        for since_boot in [10.0, 60.0, 100.0] {
            assert_eq!(r.pass(&RULE, &good, &at(since_boot)), None);
        }
        // An hour later by the wall clock, but the node was down for most of it.
        let booted =
            |since_boot: f64| Moment { boot_id: "c".into(), since_boot, time: 1e9 + 3600.0 + since_boot };
        for (since_boot, back) in [(5.0, false), (50.0, false), (104.0, false), (105.0, true)] {
            assert_eq!(r.pass(&RULE, &good, &booted(since_boot)).is_some(), back, "{since_boot}");
        }
        // The day within which a fault is not given back again goes on.
        r.settled(true, booted(105.0));
        r.drained(&verdict(Status::Fail, true));
        let next =
            |since_boot: f64| Moment { boot_id: "d".into(), since_boot, time: 1e9 + 7200.0 + since_boot };
        for since_boot in [0.0, 200.0, 400.0, 600.0] {
            assert_eq!(r.pass(&RULE, &good, &next(since_boot)), None, "{since_boot}");
        }
    }

    #[test]
    fn it_is_off_by_default_and_kept_across_boots() {
        let dir = tempfile::tempdir().unwrap();
        let good = verdict(Status::Pass, false);
        let mut r = drained();
        for now in [0.0, 1e6, 2e6] {
            assert_eq!(r.pass(&GiveBack::default(), &good, &at(now)), None);
        }
        r.write(dir.path()).unwrap();
        assert_eq!(Record::read(dir.path()), r);
        std::fs::write(dir.path().join("return.json"), "{").unwrap();
        assert_eq!(Record::read(dir.path()), Record::default());
    }
}
