//! The verdict of the node and the record of a job, as `docs/interfaces.md` defines them, and which fault of a
//! node stands in the way of a job.
//!
//! Reading is lenient: a key that is missing or a word that is not known makes a finding weaker, never an error.

use std::cmp::Reverse;

use serde::Deserialize;

use crate::delta::Delta;
use crate::timestamp::Timestamp;

/// `RUN_DIR/verdict.json`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Verdict {
    schema: String,
    node: String,
    boot_id: String,
    time: String,
    enforcement: String,
    /// What `clustermax-drain` answered, when the writer says so.
    drain_outcome: Option<String>,
    findings: Vec<Finding>,
}

/// One finding of a verdict.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Finding {
    pub(crate) token: String,
    status: String,
    pub(crate) device: Option<Device>,
    scope: String,
    action: String,
    drain: bool,
    observe: bool,
    fault: Fault,
    pub(crate) evidence: String,
    pub(crate) text: String,
}

/// A finding as `checks.json` has it.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Brief {
    device: String,
    index: Option<u32>,
    status: String,
    token: String,
    action: String,
    device_only: bool,
    text: String,
}

impl From<&Brief> for Finding {
    fn from(brief: &Brief) -> Self {
        let device = Device {
            kind: if brief.index.is_some() { "gpu" } else { "" }.to_owned(),
            name: brief.device.clone(),
            index: brief.index,
            pci: None,
        };
        Self {
            token: brief.token.clone(),
            status: brief.status.clone(),
            device: (!brief.device.is_empty()).then_some(device),
            scope: if brief.device_only { "device" } else { "node" }.to_owned(),
            action: brief.action.clone(),
            text: brief.text.clone(),
            ..Self::default()
        }
    }
}

/// The device a finding is about.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Device {
    pub(crate) kind: String,
    pub(crate) name: String,
    pub(crate) index: Option<u32>,
    pci: Option<String>,
}

/// What mends a finding, in rising order.
const ACTIONS: [&str; 6] = ["none", "tell_user", "restart_service", "reset_gpu", "reboot", "repair"];

/// `RUN_DIR/jobs/JOBID.json`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Job {
    schema: String,
    job: String,
    pub(crate) node: String,
    as_of: String,
    pub(crate) gpus: Vec<Gpu>,
    pub(crate) events: Vec<Event>,
    /// What the hardware counted; absent until somebody looked.
    pub(crate) delta: Option<Delta>,
    /// Whether it was the hardware or the program, for the job's user; empty until somebody looked.
    pub(crate) sentence: String,
}

/// A GPU that a job holds on this node.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Gpu {
    pub(crate) index: Option<u32>,
    pci: Option<String>,
}

/// Something that happened to a job's devices.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Event {
    time: String,
    pub(crate) token: String,
    /// Short name; empty when the whole node is meant.
    pub(crate) device: String,
    pub(crate) fault: Fault,
    pub(crate) text: String,
}

/// Whose fault an event is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Fault {
    Hardware,
    Program,
    Setup,
    #[default]
    #[serde(other)]
    Unknown,
}

/// The node as the plugin sees it.
pub(crate) struct Here<'a> {
    /// Slurm's name of the node.
    pub(crate) node: &'a str,
    /// Short host name.
    pub(crate) host: &'a str,
    /// Boot id of the running kernel.
    pub(crate) boot_id: &'a str,
    /// Present time.
    pub(crate) now: Timestamp,
    /// Oldest verdict that counts, in seconds.
    pub(crate) max_age: u32,
}

impl Here<'_> {
    /// True for this node's name, or its host's.
    pub(crate) fn is(&self, node: &str) -> bool {
        node == self.node || node == self.host
    }
}

impl Verdict {
    /// Reads a verdict; None when the text is not one of this schema.
    pub(crate) fn parse(json: &[u8]) -> Option<Self> {
        let verdict: Self = serde_json::from_slice(json).ok()?;
        (verdict.schema == "clustermax-verdict/1").then_some(verdict)
    }

    /// True when the verdict is about this node, of this boot, and recent: nothing else is believed.
    pub(crate) fn is_current(&self, here: &Here<'_>) -> bool {
        let age = Timestamp::parse(&self.time).map(|time| here.now.seconds_since(time).unsigned_abs());
        here.is(&self.node)
            && !here.boot_id.is_empty()
            && self.boot_id == here.boot_id
            && age.is_some_and(|age| age <= u64::from(here.max_age))
    }

    /// True when the node is really being drained. One that stays in service (observe, brake) refuses nobody.
    fn leaves_service(&self) -> bool {
        self.enforcement == "enforce"
            && self
                .drain_outcome
                .as_deref()
                .is_none_or(|outcome| matches!(outcome, "written" | "already" | "spooled" | "foreign"))
    }

    /// The faults that stand in the way of a job, worst first: those of the whole node, and those of GPUs that
    /// the job holds. Without a job record only those of the whole node.
    pub(crate) fn in_the_way(&self, here: &Here<'_>, job: Option<&Job>) -> Vec<&Finding> {
        if !self.is_current(here) || !self.leaves_service() {
            return Vec::new();
        }
        self.worst_first(job, |finding| finding.status == "fail" && finding.drain && !finding.observe)
    }

    /// What a strict job does not put up with, worst first: warnings and faults of the whole node and of GPUs that
    /// the job holds, whatever the site does about them. An error of an earlier program is none.
    pub(crate) fn warnings(&self, here: &Here<'_>, job: Option<&Job>) -> Vec<&Finding> {
        if !self.is_current(here) {
            return Vec::new();
        }
        self.worst_first(job, |finding| finding.is_warning(job))
    }

    fn worst_first(&self, job: Option<&Job>, wanted: impl Fn(&Finding) -> bool) -> Vec<&Finding> {
        let gpus = job.map_or(&[][..], |job| &job.gpus);
        let concerns = |finding: &&Finding| wanted(finding) && finding.concerns(gpus);
        let mut faults: Vec<_> = self.findings.iter().filter(concerns).collect();
        faults.sort_by_key(|finding| Reverse((finding.status == "fail", finding.severity())));
        faults
    }
}

impl Finding {
    fn severity(&self) -> Option<usize> {
        ACTIONS.iter().position(|action| *action == self.action)
    }

    /// A strict job does not put up with it: a warning or fault of the node or of the job's hardware. `tell_user` is an
    /// error of a program.
    pub(crate) fn is_warning(&self, job: Option<&Job>) -> bool {
        matches!(self.status.as_str(), "warn" | "fail")
            && self.action != "tell_user"
            && self.fault != Fault::Program
            && self.concerns(job.map_or(&[][..], |job| &job.gpus))
    }

    /// It is about the whole node, or about one of these GPUs.
    fn concerns(&self, gpus: &[Gpu]) -> bool {
        match self.scope.as_str() {
            "node" => true,
            "device" => self.device.as_ref().is_some_and(|device| gpus.iter().any(|gpu| device.is(gpu))),
            _ => false,
        }
    }
}

impl Device {
    /// The PCI address decides where both sides know it: an index may change when a GPU is lost.
    fn is(&self, gpu: &Gpu) -> bool {
        if self.kind != "gpu" {
            return false;
        }
        match (&self.pci, &gpu.pci) {
            (Some(a), Some(b)) => a.eq_ignore_ascii_case(b),
            _ => self.index.is_some() && self.index == gpu.index,
        }
    }
}

impl Job {
    /// Reads the record of job `id`; None when the text is not that.
    pub(crate) fn parse(json: &[u8], id: u32) -> Option<Self> {
        let job: Self = serde_json::from_slice(json).ok()?;
        (job.schema == "clustermax-job/1" && job.job == id.to_string()).then_some(job)
    }

    /// When the record was last brought up to date.
    pub(crate) fn as_of(&self) -> Option<Timestamp> {
        Timestamp::parse(&self.as_of)
    }
}

impl Event {
    /// When it happened.
    pub(crate) fn time(&self) -> Option<Timestamp> {
        Timestamp::parse(&self.time)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use serde_json::{Value, json};

    pub(crate) fn here() -> Here<'static> {
        Here {
            node: "n2",
            host: "host",
            boot_id: "b00t",
            now: Timestamp::parse("2026-11-30T20:51:00Z").unwrap(),
            max_age: 600,
        }
    }

    /// The verdict of docs/interfaces.md.
    pub(crate) fn fallen_gpu() -> Value {
        json!({"schema":"clustermax-verdict/1","node":"n2","boot_id":"b00t","config_hash":"9f86d081",
         "mode":"periodic","enforcement":"enforce","time":"2026-11-30T20:50:00.123Z","seconds":0.041,
         "status":"fail","action":"reboot","drain":true,
         "reason":"cmx:xid79 g3 GPU fell off the bus; act=reboot id=3f2a91bc",
         "findings":[{"check":"gpu.xid","token":"xid79","status":"fail",
           "device":{"kind":"gpu","name":"g3","index":3,"pci":"0000:5d:00.0"},
           "scope":"device","action":"reboot","drain":true,"fault":"hardware",
           "evidence":"NVRM: Xid (PCI:0000:5d:00): 79, GPU has fallen off the bus.","text":"GPU fell off the bus",
           "mend":"reboot the node","synthetic":true,"observe":false}],
         "checks":[{"check":"gpu.count","status":"pass","millis":1.2}]})
    }

    pub(crate) fn verdict(value: &Value) -> Verdict {
        Verdict::parse(value.to_string().as_bytes()).unwrap()
    }

    pub(crate) fn job(gpus: Value, events: Value) -> Job {
        let value = json!({"schema":"clustermax-job/1","job":"123","uid":1000,"gid":1000,"node":"n2",
            "started":"2026-11-30T20:40:00Z","as_of":"2026-11-30T20:50:30Z","gpus":gpus,"events":events});
        Job::parse(value.to_string().as_bytes(), 123).unwrap()
    }

    /// Tokens in the way of a job that holds `gpus`, after `change` was made to the verdict.
    fn tokens(change: impl FnOnce(&mut Value), gpus: Value) -> Vec<String> {
        let mut value = fallen_gpu();
        change(&mut value);
        let job = job(gpus, json!([]));
        verdict(&value).in_the_way(&here(), Some(&job)).iter().map(|f| f.token.clone()).collect()
    }

    fn gpu3() -> Value {
        json!([{"index":3,"pci":"0000:5D:00.0","uuid":"GPU-1"}])
    }

    #[test]
    fn the_jobs_own_gpu_is_in_the_way_and_no_other() {
        assert_eq!(tokens(|_| {}, gpu3()), ["xid79"]);
        assert_eq!(tokens(|_| {}, json!([{"index":2,"pci":"0000:5c:00.0"}])), Vec::<String>::new());
        assert_eq!(tokens(|_| {}, json!([])), Vec::<String>::new());
        // The address decides; the index only where an address is missing.
        assert_eq!(tokens(|_| {}, json!([{"index":3,"pci":"0000:5c:00.0"}])), Vec::<String>::new());
        assert_eq!(tokens(|_| {}, json!([{"index":3}])), ["xid79"]);
    }

    #[test]
    fn a_fault_of_the_whole_node_is_in_everybodys_way() {
        let node_wide = |v: &mut Value| {
            v["findings"][0]["scope"] = json!("node");
            v["findings"][0].as_object_mut().unwrap().remove("device");
        };
        assert_eq!(tokens(node_wide, json!([])), ["xid79"]);
        let mut value = fallen_gpu();
        node_wide(&mut value);
        assert_eq!(verdict(&value).in_the_way(&here(), None).len(), 1, "no job record needed");
    }

    #[test]
    fn without_a_job_record_a_device_is_in_nobodys_way() {
        assert!(verdict(&fallen_gpu()).in_the_way(&here(), None).is_empty());
    }

    #[test]
    fn the_worst_fault_comes_first() {
        let two = |v: &mut Value| {
            let mut second = v["findings"][0].clone();
            second["token"] = json!("rowremap");
            second["action"] = json!("repair");
            v["findings"].as_array_mut().unwrap().push(second);
        };
        assert_eq!(tokens(two, gpu3()), ["rowremap", "xid79"]);
    }

    #[test]
    fn nothing_is_refused_unless_the_node_really_leaves_service() {
        let none = Vec::<String>::new();
        for (key, value) in [
            ("enforcement", json!("observe")),
            ("boot_id", json!("other")),
            ("boot_id", json!("")),
            ("node", json!("n1")),
            ("time", json!("2026-11-30T20:40:00Z")),
            ("time", json!("2026-11-30T21:40:00Z")),
            ("time", json!("yesterday")),
            ("drain_outcome", json!("brake")),
            ("drain_outcome", json!("protected")),
            ("drain_outcome", json!("unreadable")),
        ] {
            assert_eq!(tokens(|v| v[key] = value.clone(), gpu3()), none, "{key} {value}");
        }
        for (key, value) in [
            ("status", json!("warn")),
            ("status", json!("unknown")),
            ("drain", json!(false)),
            ("observe", json!(true)),
            ("scope", json!("galaxy")),
        ] {
            assert_eq!(tokens(|v| v["findings"][0][key] = value.clone(), gpu3()), none, "{key} {value}");
        }
        for outcome in ["written", "already", "spooled"] {
            assert_eq!(tokens(|v| v["drain_outcome"] = json!(outcome), gpu3()), ["xid79"]);
        }
        assert_eq!(tokens(|v| v["node"] = json!("host"), gpu3()), ["xid79"], "written under the host's name");
    }

    #[test]
    fn a_strict_job_puts_up_with_no_warning_of_its_hardware() {
        let job = job(gpu3(), json!([]));
        let warnings = |change: &dyn Fn(&mut Value)| {
            let mut value = fallen_gpu();
            value["enforcement"] = json!("observe");
            value["findings"][0]["status"] = json!("warn");
            value["findings"][0]["drain"] = json!(false);
            change(&mut value);
            let verdict = verdict(&value);
            assert!(verdict.in_the_way(&here(), Some(&job)).is_empty());
            verdict.warnings(&here(), Some(&job)).len()
        };
        assert_eq!(warnings(&|_| {}), 1, "a warning of the job's GPU");
        assert_eq!(warnings(&|v| v["findings"][0]["status"] = json!("fail")), 1, "a fault without a drain");
        assert_eq!(warnings(&|v| v["findings"][0]["scope"] = json!("node")), 1);
        assert_eq!(
            warnings(&|v| v["findings"][0]["device"]["pci"] = json!("0000:aa:00.0")),
            0,
            "another GPU"
        );
        assert_eq!(warnings(&|v| v["findings"][0]["status"] = json!("unknown")), 0);
        assert_eq!(
            warnings(&|v| v["findings"][0]["fault"] = json!("program")),
            0,
            "an earlier program's error"
        );
        assert_eq!(
            warnings(&|v| v["findings"][0]["observe"] = json!(true)),
            1,
            "whatever the site does about it"
        );
        assert_eq!(warnings(&|v| v["time"] = json!("2026-11-30T20:40:00Z")), 0, "an old verdict");
    }

    #[test]
    fn words_of_later_versions_do_no_harm() {
        let odd = |v: &mut Value| {
            v["future"] = json!({"x": 1});
            v["findings"][0]["action"] = json!("dance");
        };
        assert_eq!(tokens(odd, gpu3()), ["xid79"]);
    }

    #[test]
    fn other_texts_are_no_verdict() {
        let half = fallen_gpu().to_string();
        for text in ["", "{}", "[]", "null", "\u{0}", &half[..half.len() / 2]] {
            assert!(Verdict::parse(text.as_bytes()).is_none(), "{text}");
        }
        let later = fallen_gpu().to_string().replace("verdict/1", "verdict/2");
        assert!(Verdict::parse(later.as_bytes()).is_none());
    }

    #[test]
    fn a_job_record_must_be_of_this_job() {
        let text = json!({"schema":"clustermax-job/1","job":"123","node":"n2"}).to_string();
        assert!(Job::parse(text.as_bytes(), 123).is_some_and(|job| here().is(&job.node)));
        assert!(Job::parse(text.as_bytes(), 124).is_none());
        assert!(Job::parse(&text.as_bytes()[..20], 123).is_none());
        assert!(!here().is("n1"));
    }
}
