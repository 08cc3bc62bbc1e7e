//! `audit.values.json` of cmax, the public audit tool.

use serde_json::Value;

use super::{Imported, flag, json, on, unknown};
use crate::read::Found;

/// Versions of the document (`audit_data.audit.version`) whose keys this reader was written for.
const KNOWN: [&str; 1] = ["2.1"];
/// Keys that are looser than the criterion they are asked for, and so give no record.
const LOOSER: [(&str, &str); 4] = [
    ("networking.topologyConfigured", "is true for topology/none too"),
    ("networking.ibPkeysConfigured", "counts the default partition as one of the tenant's own"),
    ("slurm.accounting.sacctAvailable", "is true when sacct is installed, whatever it answers"),
    ("healthChecks.autoRemediation", "means ResumeProgram or ReturnToService, which drain nothing"),
];

/// Key of the document, metric, and the param that tells it from others of the metric.
type NodeFlag = (&'static str, &'static str, Option<(&'static str, &'static str)>);

/// Flags of one node.
const NODE_FLAGS: [NodeFlag; 5] = [
    ("containers.enroot", "tool_present", Some(("tool", "enroot"))),
    ("containers.singularity", "tool_present", Some(("tool", "apptainer"))),
    ("gpus.gdrcopy.installed", "gdrcopy", None),
    ("healthChecks.monitoringStack.dcgmExporter", "exporter", Some(("name", "dcgm"))),
    ("healthChecks.monitoringStack.nodeExporter", "exporter", Some(("name", "node"))),
];
/// A flag of the cluster.
const CLUSTER_FLAGS: [(&str, &str); 4] = [
    ("software.mpi.srunPmixAvailable", "slurm_mpi_pmix"),
    ("containers.pyxisRuntimeWorks", "slurm_container_option"),
    ("healthChecks.programConfigured", "slurm_health_check_program"),
    ("healthChecks.dcgmSlurm", "slurm_health_check_dcgm"),
];
/// A component and its key in `securityVersions`.
const COMPONENTS: [(&str, &str); 8] = [
    ("nvidiaDriver", "nvidia-driver"),
    ("nvidiaContainerToolkit", "nvidia-container-toolkit"),
    ("cudaToolkit", "cuda-toolkit"),
    ("dcgm", "dcgm"),
    ("dcgmExporter", "dcgm-exporter"),
    ("docker", "docker"),
    ("runc", "runc"),
    ("connectxFirmware", "connectx-firmware"),
];

/// The document as values.
pub fn read(text: &str, node: Option<&str>) -> Result<Imported, String> {
    let document = json(text)?;
    let data = &document["audit_data"];
    if !data.is_object() {
        return Err("audit_data is no object; give audit.values.json, not audit.out".to_owned());
    }
    let mut notes = Vec::new();
    match &document["schema_version"] {
        Value::Number(number) if number.as_u64() == Some(1) => {}
        other => {
            notes.push(format!("schema_version is {other}, this release knows 1: read by the same keys"))
        }
    }
    let version = data["audit"]["version"].as_str().unwrap_or("unknown");
    if !KNOWN.contains(&version) {
        notes.push(format!(
            "audit version {version} is not known to this release ({}): read by the same keys",
            KNOWN.join(", ")
        ));
    }
    if let Some(kind) = data["audit"]["type"].as_str().filter(|kind| *kind != "slurm") {
        return Err(format!(
            "is an audit of {kind}, this suite is for Slurm; import one of `cmax audit --slurm`"
        ));
    }
    let worker =
        data["software"]["workerNode"].as_str().filter(|name| !matches!(*name, "" | "none" | "unknown"));
    let node =
        node.or(worker).ok_or("does not say which node was looked at (software.workerNode); give --node")?;
    let mut found = Vec::new();
    let mut absent = Vec::new();
    let mut push = |key: &str, make: &dyn Fn(&Value) -> Option<Found>| match at(data, key) {
        None => absent.push(key.to_owned()),
        Some(value) => found.extend(make(value).map(|one| one.at(pointer(key)))),
    };
    for (key, metric, param) in NODE_FLAGS {
        push(key, &|value| {
            let one = boolean(metric, value)?;
            let one = match param {
                Some((name, word)) => one.param(name, word),
                None => one,
            };
            Some(on(one, node))
        });
    }
    for (key, metric) in CLUSTER_FLAGS {
        push(key, &|value| {
            let one = boolean(metric, value)?;
            Some(if metric == "slurm_health_check_dcgm" {
                one.remark("cmax looks for the word dcgm in the program")
            } else {
                one
            })
        });
    }
    push("access.sudoAvailable", &|value| {
        Some(on(boolean("sudo_works", value)?, data["audit"]["hostname"].as_str().unwrap_or(node)))
    });
    // A gate: that cmax saw no path from where it looked is no proof that there is none.
    push("gpus.gpuDirectRdma", &|value| {
        Some(on(
            match value.as_bool() {
                Some(true) => flag("gpudirect_rdma", true),
                _ => unknown("gpudirect_rdma", "", "cmax saw no dma_buf path from where it looked"),
            },
            node,
        ))
    });
    push("gpus.pcieAcs.enabledCount", &|value| {
        let known = data["gpus"]["pcieAcs"]["enabled"].as_str() != Some("unknown");
        Some(on(
            match value.as_f64().filter(|_| known) {
                Some(count) => Found::value("import", "pcie_acs_enabled", "", count),
                None => unknown("pcie_acs_enabled", "", "cmax could not tell"),
            },
            node,
        ))
    });
    for (key, metric, unit, of_node) in [
        ("software.perf.perfEventParanoid", "perf_event_paranoid", "", true),
        ("software.perf.kptrRestrict", "kptr_restrict", "", true),
        ("healthChecks.interval", "slurm_health_check_interval", "s", false),
        ("resourceLimits.defMemPerCpu", "slurm_def_mem_per_cpu", "MiB", false),
        ("healthChecks.prologRuntimeSec", "prolog_seconds", "s", true),
    ] {
        push(key, &|value| {
            let number = value.as_f64().or_else(|| value.as_str().and_then(|text| text.trim().parse().ok()));
            let one = match number {
                Some(number) => Found::value("import", metric, unit, number),
                None => unknown(metric, unit, format!("cmax says {value}")),
            };
            let one = if metric == "prolog_seconds" {
                one.param("kind", "upper bound")
                    .remark("cmax times srun in whole seconds, waiting in the queue included")
            } else {
                one
            };
            Some(if of_node { on(one, node) } else { one })
        });
    }
    push("security.guestKernel.newerInstalled", &|value| {
        let known = data["security"]["guestKernel"]["newestInstalled"].as_str() != Some("unknown");
        let one = if known {
            boolean("kernel_outdated", value)?
        } else {
            unknown("kernel_outdated", "", "cmax saw no installed kernel")
        };
        Some(on(one, node))
    });
    for (key, component) in COMPONENTS {
        push(&format!("securityVersions.{key}.status"), &|value| {
            let row = &data["securityVersions"][key];
            let word = |name: &str| row[name].as_str().unwrap_or("unknown").to_owned();
            let one = match value.as_str() {
                Some("pass") => flag("version_at_minimum", true),
                Some("fail") => flag("version_at_minimum", false),
                // What is not installed is no version below the minimum, and no proof of one above it.
                _ => unknown("version_at_minimum", "", word("detail")),
            };
            Some(on(
                one.param("component", component)
                    .param("version", word("version"))
                    .param("minimum", word("minimum")),
                node,
            ))
        });
    }
    if !absent.is_empty() {
        notes.push(format!("keys that this document lacks: {}", absent.join(", ")));
    }
    for (key, why) in LOOSER {
        if at(data, key).is_some() {
            notes.push(format!("{key} gives no record: it {why}"));
        }
    }
    if found.is_empty() {
        return Err("audit_data holds none of the keys that are imported; give audit.values.json of `cmax audit --slurm`".to_owned());
    }
    Ok(Imported { tool: format!("cmax audit {version}"), found, notes })
}

fn at<'a>(data: &'a Value, key: &str) -> Option<&'a Value> {
    data.pointer(&format!("/{}", key.replace('.', "/"))).filter(|value| !value.is_null())
}

fn pointer(key: &str) -> String {
    format!("/audit_data/{}", key.replace('.', "/"))
}

/// cmax writes truth as a boolean or as a word; a word of doubt is no value.
fn boolean(metric: &'static str, value: &Value) -> Option<Found> {
    Some(match value {
        Value::Bool(yes) => flag(metric, *yes),
        Value::String(word) if word == "true" => flag(metric, true),
        Value::String(word) if word == "false" => flag(metric, false),
        other => unknown(metric, "", format!("cmax says {other}")),
    })
}
