//! `RUN_DIR/checks.json`: the last result of every check, for strict jobs. The verdict knows only the checks of the pass
//! that wrote it, and a prolog makes the quick ones only.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::timestamp::Timestamp;
use crate::verdict::{Brief, Finding, Here, Job};

/// Longest file that is read, in bytes: about 100 checks with a bounded list of findings each.
pub(crate) const SIZE_LIMIT: u64 = 256 * 1024;

/// The file.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Checks {
    schema: String,
    node: String,
    boot_id: String,
    /// Seconds since 1970.
    time: f64,
    checks: BTreeMap<String, Last>,
}

/// One check's last result.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Last {
    time: f64,
    findings: Vec<Brief>,
}

impl Checks {
    /// Reads the file; None when it is none of this schema, of another node or boot, or older than `here.max_age`.
    pub(crate) fn parse(json: &[u8], here: &Here<'_>) -> Option<Self> {
        let checks: Self = serde_json::from_slice(json).ok()?;
        let of_this = checks.schema == "clustermax-checks/1"
            && here.is(&checks.node)
            && !here.boot_id.is_empty()
            && checks.boot_id == here.boot_id
            && is_recent(checks.time, here);
        of_this.then_some(checks)
    }

    /// What a strict job does not put up with, as in [`crate::verdict::Verdict::warnings`], by check.
    pub(crate) fn warnings(&self, here: &Here<'_>, job: Option<&Job>) -> Vec<Finding> {
        let recent = self.checks.values().filter(|last| is_recent(last.time, here));
        let findings = recent.flat_map(|last| &last.findings).map(Finding::from);
        findings.filter(|finding| finding.is_warning(job)).collect()
    }
}

fn is_recent(time: f64, here: &Here<'_>) -> bool {
    #[allow(clippy::cast_possible_truncation, reason = "saturates: a time that is none is in the far past")]
    let time = Timestamp((time * 1000.0) as i64);
    here.now.seconds_since(time).unsigned_abs() <= u64::from(here.max_age)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::tests::{here, job};
    use serde_json::{Value, json};

    /// A warning of GPU 3, a minute old.
    fn file() -> Value {
        let now = here().now.0 / 1000;
        json!({"schema":"clustermax-checks/1","node":"n2","boot_id":"b00t","time":now - 60,"enforcement":"observe",
            "brake":false,"spooled":0,"checks":{
            "gpu.count":{"status":"pass","time":now - 60,"since":now - 600},
            "gpu.rows":{"status":"warn","time":now - 60,"since":now - 60,"detail":"…","findings":[
                {"device":"g3","index":3,"status":"warn","token":"rowslow","action":"repair","drain":false,
                 "device_only":true,"text":"few spare rows left"}]}},
            "passes":{}})
    }

    fn warnings(change: impl FnOnce(&mut Value)) -> Vec<String> {
        let mut value = file();
        change(&mut value);
        let job = job(json!([{"index":3,"pci":"0000:5d:00.0"}]), json!([]));
        let checks = Checks::parse(value.to_string().as_bytes(), &here());
        let found = checks.map(|checks| checks.warnings(&here(), Some(&job))).unwrap_or_default();
        found.into_iter().map(|finding| finding.token).collect()
    }

    #[test]
    fn a_warning_of_the_jobs_gpu_or_of_the_node_counts() {
        let first = |v: &mut Value, key: &str, to: Value| v["checks"]["gpu.rows"]["findings"][0][key] = to;
        assert_eq!(warnings(|_| {}), ["rowslow"]);
        assert_eq!(warnings(|v| first(v, "status", json!("fail"))), ["rowslow"]);
        let none = Vec::<String>::new();
        assert_eq!(warnings(|v| first(v, "index", json!(2))), none, "another GPU");
        assert_eq!(
            warnings(|v| {
                first(v, "index", json!(2));
                first(v, "device_only", json!(false));
            }),
            ["rowslow"],
            "the whole node"
        );
        assert_eq!(warnings(|v| first(v, "action", json!("tell_user"))), none, "an earlier program's error");
        assert_eq!(warnings(|v| first(v, "status", json!("unknown"))), none);
        assert_eq!(warnings(|v| v["checks"]["gpu.rows"]["time"] = json!(0)), none, "a check of long ago");
    }

    #[test]
    fn only_this_nodes_recent_file_is_believed() {
        for (key, value) in [
            ("schema", json!("clustermax-checks/2")),
            ("node", json!("n1")),
            ("boot_id", json!("other")),
            ("time", json!(0)),
            ("time", json!(1e300)),
            ("time", json!(-1e300)),
        ] {
            assert!(warnings(|v| v[key] = value.clone()).is_empty(), "{key} {value}");
        }
        assert!(Checks::parse(b"{half", &here()).is_none());
    }
}
