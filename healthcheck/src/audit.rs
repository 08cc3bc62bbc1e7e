//! Looking at a node as whoever one is: without root, configuration, state or a learned profile.
//!
//! A reviewer on a rented cluster has none of them. What the node should have then comes from the profiles that this
//! program is shipped with, chosen by the GPUs' own name.

use std::path::Path;

use crate::check::Findings;
use crate::config::{Config, ConfigError, DEFAULT_CONFIG, Profile};
use crate::facts::Facts;
use crate::verdict::Status;

/// Name and text of each profile that is shipped.
const SHIPPED: [(&str, &str); 8] = [
    ("hgx-h100", include_str!("../../packaging/profiles/hgx-h100.toml")),
    ("hgx-h200", include_str!("../../packaging/profiles/hgx-h200.toml")),
    ("hgx-b200", include_str!("../../packaging/profiles/hgx-b200.toml")),
    ("hgx-b300", include_str!("../../packaging/profiles/hgx-b300.toml")),
    ("gb200-tray", include_str!("../../packaging/profiles/gb200-tray.toml")),
    ("gb300-tray", include_str!("../../packaging/profiles/gb300-tray.toml")),
    ("mi300x", include_str!("../../packaging/profiles/mi300x.toml")),
    ("mi355x", include_str!("../../packaging/profiles/mi355x.toml")),
];

/// PCI device ids of AMD's GPUs by profile (pci.ids).
const AMD_DEVICES: [(&str, &str); 2] = [("0x74a1", "mi300x"), ("0x75a3", "mi355x")];

/// Version tag of the facts' JSON form.
pub const FACTS_SCHEMA: &str = "clustermax-facts/1";

/// What a user gets to read says so in these words of the system's, whatever the source.
const REFUSALS: [&str; 2] = ["(os error 13)", "(os error 1)"];

/// The configuration at `path`; or the defaults, when that is the default place and nothing is there, or nothing that
/// this user may read.
///
/// # Errors
/// As [`Config::load`], for a file that is there or was asked for.
pub fn config(path: &Path, node: &str) -> Result<Config, ConfigError> {
    match Config::load(path, node) {
        Err(ConfigError::Missing(_)) if path == Path::new(DEFAULT_CONFIG) => Config::defaults(node),
        Err(ConfigError::Read { source, .. })
            if path == Path::new(DEFAULT_CONFIG) && source.kind() == std::io::ErrorKind::PermissionDenied =>
        {
            Config::defaults(node)
        }
        other => other,
    }
}

/// Fills an empty profile with the shipped one of the GPUs that were seen, and says which.
///
/// `granted` is the number of GPUs that Slurm gave to this job: in a job's device cgroup no more can be seen.
pub fn choose_profile(config: &mut Config, facts: &Facts, granted: Option<u32>) -> Option<&'static str> {
    if config.profile != Profile::default() {
        return None;
    }
    let (name, mut profile) = shipped(facts)?;
    if let Some(granted) = granted {
        for count in [&mut profile.gpu_count, &mut profile.amd.gpu_count].into_iter().flatten() {
            *count = granted.min(*count);
        }
    }
    config.profile = profile;
    Some(name)
}

/// The facts as `clustermax-healthcheck facts --json` prints them.
#[derive(Debug, serde::Serialize)]
pub struct Document {
    /// Version of this form.
    pub schema: &'static str,
    /// The node's name; `node` is what was seen of its host.
    pub node_name: String,
    /// When, UTC, RFC 3339.
    pub time: String,
    /// Configuration file; none: the defaults.
    pub config: Option<String>,
    /// What was seen.
    #[serde(flatten)]
    pub facts: Facts,
}

/// Puts the facts into their document.
#[must_use]
pub fn document(config: &Config, facts: Facts) -> Document {
    Document {
        schema: FACTS_SCHEMA,
        node_name: config.node.clone(),
        time: crate::pass::timestamp(),
        config: (!config.file.as_os_str().is_empty()).then(|| config.file.display().to_string()),
        facts,
    }
}

/// What an audit went by, one line.
#[must_use]
pub fn preface(config: &Config, shipped: Option<&str>) -> String {
    let file = if config.file.as_os_str().is_empty() {
        "no configuration: defaults".to_string()
    } else {
        config.file.display().to_string()
    };
    let profile = match shipped {
        Some(name) => format!("shipped profile {name}"),
        None if config.profile == Profile::default() => "no profile: nothing is known to be missing".into(),
        None => "its profile".into(),
    };
    format!("clustermax-healthcheck: {file}; {profile}")
}

/// Number of GPUs that Slurm gave to the job that this process is part of.
#[must_use]
pub fn granted_gpus() -> Option<u32> {
    std::env::var("SLURM_GPUS_ON_NODE").ok()?.parse().ok()
}

/// The shipped profile for these GPUs: all of one name, so that a mixed node is nobody's.
fn shipped(facts: &Facts) -> Option<(&'static str, Profile)> {
    let names: Vec<&String> =
        facts.nvml.value().into_iter().flat_map(|n| &n.gpus).filter_map(|g| g.name.value()).collect();
    let devices: Vec<&String> =
        facts.amd.value().into_iter().flatten().filter_map(|g| g.device_id.value()).collect();
    let of_amd = |profile: &str| {
        let id = AMD_DEVICES.iter().find(|(_, p)| *p == profile).map(|(id, _)| *id);
        !devices.is_empty() && devices.iter().all(|d| Some(d.as_str()) == id)
    };
    SHIPPED.iter().find_map(|(name, text)| {
        let profile = Config::parse(text, Path::new(name)).ok()?.profile;
        let of_nvidia =
            profile.gpu_model.as_ref().is_some_and(|m| !names.is_empty() && names.iter().all(|n| *n == m));
        (of_nvidia || of_amd(name)).then_some((*name, profile))
    })
}

/// True when the system refused a user what root may read.
#[must_use]
pub fn refused(why: &str) -> bool {
    REFUSALS.iter().any(|r| why.contains(r))
}

/// Says of every unknown that only root could have known it.
pub(crate) fn mark_refused(found: &mut Findings) {
    for f in found.findings.iter_mut().filter(|f| f.status == Status::Unknown && refused(&f.evidence)) {
        f.text = "needs root".into();
        f.mend = "run it as root to know".into();
    }
    for c in found.checks.iter_mut().filter(|c| c.status == Status::Unknown && refused(&c.detail)) {
        c.detail = format!("needs root: {}", c.detail);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::{AmdGpu, NvmlFacts, NvmlGpu, Reading};
    use crate::mode::Mode;
    use crate::state::State;

    fn node(names: &[&str]) -> Facts {
        let gpu = |name: &&str| NvmlGpu { name: Reading::Value((*name).into()), ..NvmlGpu::default() };
        let nvml = NvmlFacts { gpus: names.iter().map(gpu).collect(), ..NvmlFacts::default() };
        Facts { nvml: Reading::Value(nvml), ..Facts::default() }
    }

    #[test]
    fn a_shipped_profile_is_chosen_by_the_gpus_whole_name() {
        let chosen = |facts: &Facts| choose_profile(&mut Config::default(), facts, None);
        assert_eq!(chosen(&node(&["NVIDIA H100 80GB HBM3"; 8])), Some("hgx-h100"));
        assert_eq!(chosen(&node(&["NVIDIA GB200"; 4])), Some("gb200-tray"));
        // GH200 holds "H200", a PCIe card is no SXM board, two models are no product.
        for other in
            [vec!["NVIDIA GH200 480GB"], vec!["NVIDIA H100 PCIe"], vec!["NVIDIA H200", "NVIDIA B200"], vec![]]
        {
            assert_eq!(chosen(&node(&other)), None, "{other:?}");
        }
        let amd = |id: &str| AmdGpu { device_id: Reading::Value(id.into()), ..AmdGpu::default() };
        let of = |gpus| Facts { amd: Reading::Value(gpus), ..Facts::default() };
        assert_eq!(chosen(&of(vec![amd("0x74a1"); 8])), Some("mi300x"));
        assert_eq!(chosen(&of(vec![amd("0x75a3"); 8])), Some("mi355x"));
        assert_eq!(chosen(&of(vec![amd("0x74a1"), amd("0x75a3")])), None);
    }

    #[test]
    fn a_profile_of_the_site_stands_and_a_job_is_owed_only_its_own_gpus() {
        let facts = node(&["NVIDIA H100 80GB HBM3"; 2]);
        let mut config = Config::default();
        assert_eq!(choose_profile(&mut config, &facts, Some(2)), Some("hgx-h100"));
        assert_eq!(config.profile.gpu_count, Some(2), "the job's device cgroup hides the others");
        config.profile.gpu_count = Some(7);
        assert_eq!(choose_profile(&mut config, &facts, Some(2)), None);
        assert_eq!(config.profile.gpu_count, Some(7));
    }

    #[test]
    fn only_root_could_know_is_unknown_and_says_so() {
        let refusal = "cannot open the kernel log /dev/kmsg: Permission denied (os error 13); run as root";
        let mut facts = Facts { complaints: vec![refusal.into()], as_user: true, ..Facts::default() };
        facts.node.nvme =
            Reading::Unknown("/dev/nvme0 cannot be opened: Operation not permitted (os error 1)".into());
        let found =
            |facts: &Facts| crate::check::run(facts, &Config::default(), &State::default(), Mode::Audit, 0.0);
        let as_user = found(&facts);
        for check in ["node.self", "disk.nvme"] {
            let f = as_user.findings.iter().find(|f| f.check == check).unwrap();
            assert_eq!(
                (f.status, f.text.as_str(), f.drains()),
                (Status::Unknown, "needs root", false),
                "{check}"
            );
        }
        facts.as_user = false;
        let own = found(&facts).findings.iter().find(|f| f.check == "node.self").map(|f| f.status);
        assert_eq!(own, Some(Status::Warn), "root is hindered when it cannot read them");
    }

    #[test]
    fn the_default_configuration_may_be_missing_and_no_other() {
        let asked = config(Path::new("/nonexistent/clustermax.toml"), "n1");
        assert!(matches!(asked, Err(ConfigError::Missing(_))));
        let defaults = Config::defaults("n1").unwrap();
        assert_eq!((defaults.node.as_str(), defaults.profile == Profile::default()), ("n1", true));
    }
}
