//! What the hardware counted for a job (`delta` of its record), and how it is told.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::message::clean;

/// `delta` of `RUN_DIR/jobs/JOBID.json`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Delta {
    shared_with: Vec<String>,
    gpus: Vec<GpuDelta>,
    links: Vec<LinkDelta>,
}

/// What one GPU counted.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct GpuDelta {
    index: u32,
    xids: BTreeMap<String, u64>,
    rises: BTreeMap<String, u64>,
    /// Seconds, by reason.
    throttled: BTreeMap<String, f64>,
    reset: bool,
    unread: bool,
}

/// What one port counted.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct LinkDelta {
    link: String,
    rises: BTreeMap<String, u64>,
    reset: bool,
}

/// Counters in the user's words, the grave ones first. `true`: their rise alone is worth a word after a step; what
/// is corrected, retried or capped happens on healthy hardware too.
const COUNTERS: [(&str, &str, bool); 13] = [
    ("ecc_dram_ue", "uncorrected memory errors", true),
    ("ecc_sram_ue", "uncorrected SRAM errors", true),
    ("ras_ue", "uncorrected RAS errors", true),
    ("aer_fatal", "fatal PCIe errors", true),
    ("aer_nonfatal", "nonfatal PCIe errors", true),
    ("nvlink_recovery", "NVLink recoveries", true),
    ("c2c_errors", "C2C errors", true),
    ("ecc_corrected", "corrected memory errors", false),
    ("ras_ce", "corrected RAS errors", false),
    ("nvlink_crc", "NVLink CRC errors", false),
    ("nvlink_replay", "NVLink replays", false),
    ("pcie_replays", "PCIe replays", false),
    ("aer_correctable", "correctable PCIe errors", false),
];
/// Throttle reasons, likewise.
const REASONS: [(&str, &str, bool); 4] = [
    ("hw_thermal", "by the hardware's thermal limit", true),
    ("power_brake", "by the power brake", true),
    ("sw_thermal", "by the driver's thermal limit", false),
    ("power_cap", "by its power limit", false),
];
/// Counters of ports worth a word by themselves.
const LINK_EVENTS: [&str; 3] = ["link_downed", "link_error_recovery", "carrier_down_count"];
/// Throttling below this many seconds is not told.
const MIN_SECONDS: f64 = 0.05;

impl Delta {
    /// What was added since `earlier`, an older reading of the same record.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        let gpus = self
            .gpus
            .iter()
            .map(|gpu| {
                let old = earlier.gpus.iter().find(|old| old.index == gpu.index);
                let Some(old) = old else { return gpu.clone() };
                GpuDelta {
                    index: gpu.index,
                    xids: rises(&gpu.xids, &old.xids),
                    rises: rises(&gpu.rises, &old.rises),
                    throttled: gpu
                        .throttled
                        .iter()
                        .map(|(k, v)| (k.clone(), v - old.throttled.get(k).copied().unwrap_or_default()))
                        .collect(),
                    reset: gpu.reset && !old.reset,
                    unread: gpu.unread && !old.unread,
                }
            })
            .collect();
        let links = self
            .links
            .iter()
            .map(|link| {
                let old = earlier.links.iter().find(|old| old.link == link.link);
                let Some(old) = old else { return link.clone() };
                LinkDelta {
                    link: link.link.clone(),
                    rises: rises(&link.rises, &old.rises),
                    reset: link.reset && !old.reset,
                }
            })
            .collect();
        Self { shared_with: self.shared_with.clone(), gpus, links }
    }

    /// Something is in it that does not happen on healthy hardware with a correct program.
    pub(crate) fn is_notable(&self) -> bool {
        self.gpus.iter().any(GpuDelta::is_notable) || self.links.iter().any(LinkDelta::is_notable)
    }

    /// `GPU 3: Xid 13 (2 times), 12.5 s slowed by its power limit`: one text a device that counted anything.
    pub(crate) fn texts(&self) -> Vec<String> {
        let gpus = self.gpus.iter().filter_map(GpuDelta::text);
        let links = self.links.iter().filter_map(|link| link.text(&self.shared_with));
        gpus.chain(links).collect()
    }
}

fn rises(now: &BTreeMap<String, u64>, then: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    now.iter()
        .map(|(name, n)| (name.clone(), n.saturating_sub(then.get(name).copied().unwrap_or_default())))
        .filter(|(_, n)| *n > 0)
        .collect()
}

impl GpuDelta {
    fn is_notable(&self) -> bool {
        self.reset
            || self.unread
            || self.xids.values().any(|n| *n > 0)
            || COUNTERS
                .iter()
                .any(|(key, _, notable)| *notable && self.rises.get(*key).is_some_and(|n| *n > 0))
            || REASONS.iter().any(|(key, _, notable)| *notable && self.slowed(key).is_some())
    }

    fn slowed(&self, reason: &str) -> Option<f64> {
        self.throttled.get(reason).copied().filter(|seconds| *seconds >= MIN_SECONDS)
    }

    fn text(&self) -> Option<String> {
        let xids = self.xids.iter().filter(|(_, n)| **n > 0).map(|(code, n)| match n {
            1 => format!("Xid {}", clean(code, 8)),
            n => format!("Xid {} ({n} times)", clean(code, 8)),
        });
        let counters = COUNTERS.iter().filter_map(|(key, words, _)| {
            self.rises.get(*key).filter(|n| **n > 0).map(|n| format!("{n} {words}"))
        });
        let slowed = REASONS
            .iter()
            .filter_map(|(key, words, _)| self.slowed(key).map(|s| format!("{s:.1} s slowed {words}")));
        let reset = self.reset.then(|| "its counters began anew (GPU reset or driver reload)".to_owned());
        let unread = self.unread.then(|| "its counters could not be read".to_owned());
        let parts: Vec<_> = xids.chain(counters).chain(slowed).chain(reset).chain(unread).collect();
        (!parts.is_empty()).then(|| format!("GPU {}: {}", self.index, parts.join(", ")))
    }
}

impl LinkDelta {
    fn is_notable(&self) -> bool {
        LINK_EVENTS.iter().any(|name| self.rises.get(*name).is_some_and(|n| *n > 0))
    }

    fn text(&self, shared_with: &[String]) -> Option<String> {
        let rises =
            self.rises.iter().filter(|(_, n)| **n > 0).map(|(name, n)| format!("{} +{n}", clean(name, 40)));
        let reset = self.reset.then(|| "its counters began anew".to_owned());
        let parts: Vec<_> = rises.take(16).chain(reset).collect();
        if parts.is_empty() {
            return None;
        }
        let shared = match shared_with {
            [] => "",
            _ => " (all jobs on the node together)",
        };
        Some(format!("port {}: {}{shared}", clean(&self.link, 64), parts.join(", ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn delta(value: Value) -> Delta {
        serde_json::from_value(value).unwrap()
    }

    /// That of docs/interfaces.md.
    fn sample() -> Value {
        json!({"from":"…","to":"…","shared_with":["122"],
            "gpus":[{"index":3,"pci":"0000:5d:00.0","xids":{"13":2},"rises":{"ecc_corrected":3,"nvlink_crc":120},
                "throttled":{"hw_thermal":12.5},"reset":true,"unread":true}],
            "links":[{"link":"mlx5_0/1","rises":{"link_downed":1},"blind":["symbol_error"],"reset":true}],
            "left":{"processes":[]}})
    }

    #[test]
    fn every_device_is_one_text() {
        assert_eq!(
            delta(sample()).texts(),
            [
                "GPU 3: Xid 13 (2 times), 3 corrected memory errors, 120 NVLink CRC errors, 12.5 s slowed by the \
                 hardware's thermal limit, its counters began anew (GPU reset or driver reload), its counters \
                 could not be read",
                "port mlx5_0/1: link_downed +1, its counters began anew (all jobs on the node together)",
            ]
        );
        assert!(delta(json!({})).texts().is_empty());
    }

    #[test]
    fn a_step_hears_of_what_came_since_it_began() {
        let before = delta(sample());
        let mut later = sample();
        later["gpus"][0]["xids"]["31"] = json!(1);
        later["gpus"][0]["rises"]["ecc_corrected"] = json!(4);
        later["gpus"][0]["throttled"]["hw_thermal"] = json!(13.75);
        let since = delta(later).since(&before);
        assert_eq!(
            since.texts(),
            ["GPU 3: Xid 31, 1 corrected memory errors, 1.2 s slowed by the hardware's thermal limit"]
        );
        assert!(since.is_notable());
        let nothing = before.since(&before);
        assert!(nothing.texts().is_empty() && !nothing.is_notable());
        assert_eq!(before.since(&Delta::default()).texts(), before.texts());
    }

    #[test]
    fn what_healthy_hardware_does_is_not_notable() {
        for quiet in [
            json!({"gpus":[{"index":0,"rises":{"ecc_corrected":9,"pcie_replays":9,"nvlink_crc":1},
                "throttled":{"power_cap":3600.0,"sw_thermal":1.0,"hw_thermal":0.01}}]}),
            json!({"links":[{"link":"eth0","rises":{"rx_dropped":7}}]}),
        ] {
            assert!(!delta(quiet.clone()).is_notable(), "{quiet}");
            assert_eq!(delta(quiet).texts().len(), 1);
        }
        for loud in [
            json!({"gpus":[{"xids":{"79":1}}]}),
            json!({"gpus":[{"rises":{"ecc_dram_ue":1}}]}),
            json!({"gpus":[{"throttled":{"power_brake":1.0}}]}),
            json!({"gpus":[{"reset":true}]}),
            json!({"gpus":[{"unread":true}]}),
            json!({"links":[{"link":"mlx5_0/1","rises":{"link_downed":1}}]}),
        ] {
            assert!(delta(loud.clone()).is_notable(), "{loud}");
        }
    }

    #[test]
    fn names_of_the_file_stay_on_one_line() {
        let text = delta(json!({"links":[{"link":"a\nb\u{1b}","rises":{"x\ny":1}}]})).texts().remove(0);
        assert_eq!(text, "port a b : x y +1");
    }
}
