//! The node's own health checks: what they publish, which of them are on, and the proof that Slurm runs them.

use std::path::Path;
use std::time::SystemTime;

use serde_json::Value;

use super::system::{self, Host, text};
use super::{Item, Verdict};

/// Log of LBNL's Node Health Check, whose runs are the proof where another suite is the HealthCheckProgram.
const NHC_LOG: &str = "/var/log/nhc.log";

/// Seconds since 1970.
pub fn epoch() -> f64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

/// The last result of one check, as the root-owned passes published it.
pub struct Check {
    /// `pass`, `warn`, `fail`, `unsupported`, `unknown`.
    pub status: String,
    /// Seconds since it ran.
    pub age: f64,
    /// What it looked at.
    pub detail: String,
    /// One text a finding.
    pub texts: Vec<String>,
}

fn published(host: &Host) -> Result<Value, String> {
    let file = host.run_dir.join("checks.json");
    let document = text(&file).ok_or_else(|| format!("{} is not there", file.display()))?;
    let value: Value =
        serde_json::from_str(&document).map_err(|error| format!("{}: {error}", file.display()))?;
    match value["schema"].as_str() {
        Some("clustermax-checks/1") => Ok(value),
        other => {
            Err(format!("{} has the schema {other:?}, which this release does not know", file.display()))
        }
    }
}

/// A check that ran within the last hour; an older result says nothing about now.
pub fn check(host: &Host, id: &str) -> Option<Check> {
    let value = published(host).ok()?;
    let found = &value["checks"][id];
    let age = (epoch() - found["time"].as_f64()?).max(0.0);
    (age <= 3600.0).then(|| Check {
        status: found["status"].as_str().unwrap_or_default().to_owned(),
        age,
        detail: found["detail"].as_str().unwrap_or_default().to_owned(),
        texts: found["findings"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|one| one["text"].as_str().map(str::to_owned))
            .collect(),
    })
}

/// That a program is named in slurm.conf proves nothing; the age of its last pass does. And that a file holds the word
/// "dcgm" proves less than the last answer of DCGM.
fn proofs(host: &Host) -> [Item; 2] {
    let s = "audit";
    let (ran, asked) = ("health_check_program_age", "health_dcgm_asked");
    let command = format!("cat {}", host.run_dir.join("checks.json").display());
    let value = published(host);
    let periodic = value.as_ref().ok().and_then(|value| value["passes"]["periodic"]["time"].as_f64());
    let age = |at: f64| (epoch() - at).max(0.0);
    let first = match (&value, periodic) {
        (Ok(value), Some(at)) => {
            let status = value["passes"]["periodic"]["status"].as_str().unwrap_or("unknown");
            Item::value(
                s,
                ran,
                age(at),
                format!("the last periodic pass was {:.0} s ago and said {status}", age(at)),
            )
        }
        (Ok(_), None) => Item::unknown(s, ran, "no periodic pass has run since the node booted"),
        (Err(why), _) => {
            let log = Path::new(NHC_LOG).metadata().and_then(|meta| meta.modified()).ok();
            let at = log.and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok());
            match at.map(|since| age(since.as_secs_f64())) {
                Some(old) => Item::value(s, ran, old, format!("{NHC_LOG} was written {old:.0} s ago")),
                None => Item::unavailable(
                    s,
                    ran,
                    format!("{why}, and neither is {NHC_LOG}: nothing proves that Slurm runs a check here"),
                ),
            }
        }
    };
    let good = first.value.is_some_and(|age| age <= 900.0);
    let first = first
        .judged(if good { Verdict::Pass } else { Verdict::Fail })
        .unit("s")
        .by(&command)
        .mend("HealthCheckProgram=/usr/libexec/clustermax/healthcheckprogram, HealthCheckInterval=30; clustermax-doctor says what is in its way");
    let second = match check(host, "gpu.dcgm") {
        Some(check) if matches!(check.status.as_str(), "pass" | "warn" | "fail") => Item::flag(
            s,
            asked,
            true,
            true,
            Verdict::Warn,
            format!("DCGM was asked {:.0} s ago: {} ({})", check.age, check.status, check.detail),
        ),
        Some(check) if check.status == "unsupported" => Item::flag(
            s,
            asked,
            false,
            true,
            Verdict::Warn,
            format!("the checks ask DCGM where it is; here {}", check.detail),
        ),
        Some(check) => {
            Item::unknown(s, asked, format!("DCGM's last answer: {} ({})", check.status, check.detail))
        }
        None => match &value {
            Ok(_) => Item::unknown(s, asked, "the check gpu.dcgm has not run within the last hour"),
            Err(why) => {
                Item::unavailable(s, asked, format!("{why}: what another suite asks DCGM is not known"))
            }
        },
    };
    let second = second
        .by(&command)
        .mend("install DCGM (dcgmi, nv-hostengine); the check gpu.dcgm then asks it in every periodic pass");
    [first, second]
}

/// When the active checks of the idle node last gave a result, as `clustermax-idle-check` left it.
fn active_checks(run_dir: &Path, now: f64) -> String {
    let seen = |kind: &str| {
        let stamp: Value =
            text(&run_dir.join(format!("active/{kind}.json"))).and_then(|t| serde_json::from_str(&t).ok())?;
        let hours = (now - stamp["time"].as_f64()?).max(0.0) / 3600.0;
        Some(format!("{kind} {} {hours:.1} h ago", stamp["status"].as_str()?))
    };
    let all: Vec<String> = ["light", "heavy"].into_iter().filter_map(seen).collect();
    if all.is_empty() { "none since the node booted".to_owned() } else { all.join(", ") }
}

/// Families of passive checks and the check ids that belong to them.
const FAMILIES: [(&str, &[&str]); 12] = [
    ("gpu_lost", &["gpu.count", "gpu.lost", "gpu.bus"]),
    ("pcie", &["pcie.", "gpu.pcie"]),
    ("thermal", &["gpu.temp", "gpu.thermal"]),
    ("ecc", &["gpu.ecc", "gpu.remap", "gpu.rowremap"]),
    ("xid", &["gpu.xid"]),
    ("link", &["ib.", "net.", "nvlink.", "gpu.nvlink"]),
    ("mount", &["fs.", "mount."]),
    ("nvlink", &["gpu.nvlink_errors", "gpu.nvlink_state"]),
    ("nic", &["ib.state", "net.link"]),
    ("rdma_queue", &["net.driver", "ib.queue"]),
    ("lockup", &["host.kernel"]),
    ("stall", &["gpu.stall", "job.stall"]),
];

/// What the node's own health checks publish; another suite's checks are not recognised.
pub fn audit(host: &Host) -> Vec<Item> {
    let s = "audit";
    let file = host.run_dir.join("verdict.json");
    let command = format!("cat {}", file.display());
    let Some(document) = text(&file) else {
        let why = format!(
            "{} is not there: none of our health checks runs here, others are not recognised",
            file.display()
        );
        let mut items = vec![
            Item::unavailable(s, "health_verdict", why.clone())
                .by(&command)
                .mend("install clustermax-healthcheck"),
            Item::unavailable(s, "health_last_run_age", why.clone()).unit("s").by(&command),
        ];
        items.extend(FAMILIES.iter().map(|(family, _)| {
            Item::unavailable(s, "health_check_family", why.clone()).param("family", *family)
        }));
        items.extend(proofs(host));
        return items;
    };
    let verdict: Value = match serde_json::from_str(&document) {
        Ok(value) => value,
        Err(error) => {
            let why = format!("{}: {error}", file.display());
            let mut items = vec![
                Item::unknown(s, "health_verdict", why.clone()),
                Item::unknown(s, "health_last_run_age", why).unit("s"),
            ];
            items.extend(proofs(host));
            return items;
        }
    };
    let status = verdict["status"].as_str().unwrap_or("unknown").to_owned();
    let reason = verdict["reason"].as_str().map_or(String::new(), |reason| format!(": {reason}"));
    let mut items = vec![
        Item::flag(s, "health_verdict", status != "fail", true, Verdict::Fail, format!("{status}{reason}"))
            .param("status", status)
            .by(&command)
            .mend("see `clustermax-healthcheck run`; the finding names device and action"),
    ];
    let written: Option<jiff::Timestamp> = verdict["time"].as_str().and_then(|time| time.parse().ok());
    items.push(match written {
        Some(time) => {
            let age = (epoch() - time.as_millisecond() as f64 / 1e3).max(0.0);
            let seen = format!("{age:.0} s ago; active checks: {}", active_checks(&host.run_dir, epoch()));
            Item::value(s, "health_last_run_age", age, seen)
                .judged(if age <= 900.0 { Verdict::Pass } else { Verdict::Warn })
                .by(&command)
                .mend("see why the periodic check no longer runs (HealthCheckInterval, clustermax-watch)")
        }
        None => Item::unknown(s, "health_last_run_age", format!("{} has no time", file.display())),
    });
    let last = items.pop().map(|item| item.unit("s"));
    items.extend(last);
    items.extend(families(host));
    items.extend(proofs(host));
    items
}

/// A fresh verdict proves that the checks run; which ones are switched on, the program says (the published verdict
/// leaves out checks that passed).
fn families(host: &Host) -> Vec<Item> {
    let s = "audit";
    let config = host.config.display().to_string();
    let listed = Host::program("clustermax-healthcheck")
        .ok_or_else(|| "clustermax-healthcheck is not installed".to_owned())
        .and_then(|program| system::run(&program, &["list", "--config", &config, "--node", &host.node]))
        .and_then(|ran| if ran.ok() { Ok(ran.out) } else { Err(ran.complaint()) });
    let ids = match listed {
        Ok(table) => checks_on(&table),
        Err(why) => {
            let why = format!("which checks run cannot be told: {why}");
            return FAMILIES
                .iter()
                .map(|(family, _)| {
                    Item::unavailable(s, "health_check_family", why.clone()).param("family", *family)
                })
                .collect();
        }
    };
    FAMILIES
        .iter()
        .map(|(family, prefixes)| {
            let mine: Vec<&str> = ids
                .iter()
                .map(String::as_str)
                .filter(|id| prefixes.iter().any(|prefix| id.starts_with(prefix)))
                .collect();
            let seen = if mine.is_empty() { "no check of it is on".to_owned() } else { mine.join(" ") };
            Item::flag(s, "health_check_family", !mine.is_empty(), true, Verdict::Warn, seen)
                .param("family", *family)
                .by("clustermax-healthcheck list")
                .mend("turn the family's checks on in clustermax.toml")
        })
        .collect()
}

/// Ids in the table of `clustermax-healthcheck list` that are not switched off and run in the periodic pass.
fn checks_on(table: &str) -> Vec<String> {
    table
        .lines()
        .skip(1)
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            let (id, state, modes) = (words.next()?, words.next()?, words.next()?);
            (state != "off" && modes.split(',').any(|mode| mode == "periodic")).then(|| id.to_owned())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::testing::host;
    use super::*;

    #[test]
    fn only_checks_that_are_on_and_periodic_count() {
        let table = "CHECK STATE MODES ACTION\ngpu.xid on prolog,periodic x\ngpu.temp off periodic x\nib.state on prolog x\n";
        assert_eq!(checks_on(table), ["gpu.xid"]);
    }

    #[test]
    fn a_half_written_verdict_is_unknown_and_none_is_unavailable() {
        use crate::record::State;
        let dir = tempfile::tempdir().unwrap();
        let states = |items: &[Item]| items.iter().map(|item| item.state).collect::<Vec<_>>();
        assert!(states(&audit(&host(dir.path(), &[]))).iter().all(|state| *state == State::Unavailable));
        let cut = host(dir.path(), &[("run_dir/verdict.json", "{\"status\":\"pa")]);
        assert!(states(&audit(&cut)[..2]).iter().all(|state| *state == State::Unknown));
    }

    #[test]
    fn a_pass_of_slurms_program_is_proven_by_its_age() {
        let dir = tempfile::tempdir().unwrap();
        let checks = |time: f64| {
            format!(
                "{{\"schema\":\"clustermax-checks/1\",\"passes\":{{\"periodic\":{{\"time\":{time},\"status\":\"pass\"}}}},\
                 \"checks\":{{\"gpu.dcgm\":{{\"status\":\"pass\",\"time\":{time},\"detail\":\"8 GPUs\"}}}}}}"
            )
        };
        let fresh = host(dir.path(), &[("run_dir/checks.json", &checks(epoch() - 5.0))]);
        let [ran, dcgm] = proofs(&fresh);
        assert!(ran.verdict == Verdict::Pass && ran.value.unwrap() < 60.0, "{ran:?}");
        assert_eq!(dcgm.value, Some(1.0));
        // Configured long ago, never since.
        let stale = host(dir.path(), &[("run_dir/checks.json", &checks(epoch() - 86400.0))]);
        let [ran, dcgm] = proofs(&stale);
        assert!(ran.verdict == Verdict::Fail && ran.value.unwrap() > 86000.0, "{ran:?}");
        assert_eq!(dcgm.value, None);
    }

    #[test]
    fn active_checks_of_the_idle_node_are_told_with_their_age() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(active_checks(dir.path(), 0.0), "none since the node booted");
        std::fs::create_dir(dir.path().join("active")).unwrap();
        let stamp = "{\"schema\":\"clustermax-active/1\",\"kind\":\"heavy\",\"time\":3600,\"seconds\":150,\"status\":\"pass\",\"job\":\"7\"}\n";
        std::fs::write(dir.path().join("active/heavy.json"), stamp).unwrap();
        std::fs::write(dir.path().join("active/light.json"), "{").unwrap();
        assert_eq!(active_checks(dir.path(), 9000.0), "heavy pass 1.5 h ago");
    }
}
