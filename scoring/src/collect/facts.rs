//! The documents of `clustermax audit` to records, and what only a comparison of nodes can tell.

use std::collections::{BTreeMap, BTreeSet};

use super::{Draft, Raw, RawFile};
use crate::audit::{Document, Mount};
use crate::record::{Provenance, Record, State};

/// Stage `inventory`: `raw/inventory/NODE.json`.
pub fn inventory(raw: &Raw) -> Vec<Record> {
    let (documents, mut records) = documents(raw, "inventory", "");
    for node in absent(raw, &documents) {
        records.push(raw.absent("node_info", "").on(node).done());
        records.push(raw.absent("gpu_count", "").on(node).done());
    }
    for (metric, info, param) in [
        ("driver_version_spread", "gpu_info", "driver"),
        ("kernel_version_spread", "node_info", "kernel"),
        ("vbios_version_spread", "gpu_info", "vbios"),
        ("nic_firmware_spread", "node_info", "nic_firmware"),
    ] {
        let mut seen: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
        for (_, document) in &documents {
            for item in document.items.iter().filter(|item| item.metric == info) {
                // A node without cards has no firmware to differ.
                if let Some(version) = item
                    .params
                    .get(param)
                    .filter(|version| !matches!(version.to_string().as_str(), "" | "unknown"))
                {
                    seen.entry(version.to_string()).or_default().insert(&document.node);
                }
            }
        }
        let listed: Vec<String> =
            seen.iter().map(|(version, nodes)| format!("{version} on {} nodes", nodes.len())).collect();
        let draft = match documents.first() {
            Some((file, document)) if !seen.is_empty() => {
                let position = document.items.iter().position(|item| item.metric == info);
                let evidence =
                    position.map_or_else(|| file.evidence.clone(), |at| file.at(format!("/items/{at}")));
                let mut draft =
                    raw.measured(metric, "", seen.len() as f64, evidence).detail(listed.join(", "));
                let synthetic = document.items.iter().any(|item| item.metric == info && item.synthetic);
                draft.0.provenance = if synthetic { Provenance::Synthetic } else { Provenance::Inferred };
                draft
            }
            _ => raw.missing(metric, "", State::Unavailable, format!("no node shows its {param} version")),
        };
        records.push(draft.done());
    }
    records
}

/// Stage `audit`: `raw/audit/node-NODE.json` and `raw/audit/cluster.json`.
pub fn audit(raw: &Raw) -> Vec<Record> {
    let (documents, mut records) = documents(raw, "audit", "node-");
    let (cluster, of_cluster) = self::documents(raw, "audit", "cluster");
    if cluster.is_empty() {
        for metric in ["slurm_gres_gpu", "slurm_health_check_program", "slurm_accounting"] {
            records.push(raw.absent(metric, "").done());
        }
    }
    records.extend(of_cluster);
    for node in absent(raw, &documents) {
        records.push(raw.absent("mount_parallel_fs", "").on(node).done());
    }
    records.extend(homes(raw, &documents));
    records.push(mount_spread(raw, &documents));
    records
}

type Documents<'a> = Vec<(&'a RawFile, Document)>;

/// Files whose name begins with `prefix`, as documents and as records of `stage`.
fn documents<'a>(raw: &'a Raw, stage: &str, prefix: &str) -> (Documents<'a>, Vec<Record>) {
    let mut documents = Vec::new();
    let mut records = Vec::new();
    for file in raw.files.iter().filter(|file| file.name.starts_with(prefix) && file.name.ends_with(".json"))
    {
        // A probe of the interpreter lies beside the nodes' documents.
        let Ok(document) = file.json::<Document>() else { continue };
        if document.schema != crate::audit::SCHEMA {
            continue;
        }
        for (index, item) in document.items.iter().enumerate().filter(|(_, item)| item.stage == stage) {
            let evidence = file.at(format!("/items/{index}"));
            let mut draft = match (item.state, item.value) {
                (State::Measured, Some(value)) => {
                    raw.measured(&item.metric, &item.unit, value, evidence).detail(item.observed.clone())
                }
                (State::Measured, None) => {
                    raw.missing(&item.metric, &item.unit, State::Unknown, "measured, but without a value")
                }
                (state, _) => {
                    let mut draft = raw.missing(&item.metric, &item.unit, state, item.observed.clone());
                    draft.0.evidence = Some(evidence);
                    draft
                }
            }
            .params(&item.params)
            .tool(&document.tool)
            .started(&document.started)
            .seconds(document.seconds);
            draft.0.subject = item.subject.clone();
            if !item.command.is_empty() {
                draft = draft.command(&item.command);
            }
            if item.synthetic {
                draft.0.provenance = Provenance::Synthetic;
            }
            records.push(draft.done());
        }
        documents.push((file, document));
    }
    (documents, records)
}

/// Nodes of the run without a document.
fn absent<'a>(raw: &'a Raw, documents: &Documents) -> Vec<&'a String> {
    raw.folder
        .run
        .nodes
        .iter()
        .filter(|node| !documents.iter().any(|(_, document)| document.node == **node))
        .collect()
}

/// The home comes from the same place as on the run's first node, and from a network file system. Simulated nodes
/// share the machine's own disk, which the run's `simulated` mark says.
fn homes(raw: &Raw, documents: &Documents) -> Vec<Record> {
    let metric = "home_shared";
    if raw.folder.run.nodes.len() < 2 {
        return raw
            .folder
            .run
            .nodes
            .iter()
            .map(|node| {
                raw.missing(metric, "", State::NotApplicable, "single_node: the run has one node")
                    .on(node)
                    .done()
            })
            .collect();
    }
    let first = documents.iter().find(|(_, document)| Some(&document.node) == raw.folder.run.nodes.first());
    documents
        .iter()
        .map(|(file, document)| {
            let draft: Draft =
                match (first.and_then(|(_, first)| first.home.as_ref()), document.home.as_ref()) {
                    (Some(first), Some(own)) => {
                        // A local disk may have the same name on every node: only a server's name is the same thing.
                        let local = own.starts_with("/dev/") && !raw.folder.run.simulated;
                        let same = first == own && !local;
                        let detail = if local {
                            format!("{own} is a local disk")
                        } else {
                            format!("{own}; on the first node {first}")
                        };
                        raw.measured(metric, "", f64::from(u8::from(same)), file.at("/home"))
                            .param("source", own.as_str())
                            .detail(detail)
                    }
                    _ => raw.missing(
                        metric,
                        "",
                        State::Unavailable,
                        "the user has no home on this node or on the first one",
                    ),
                };
            draft.on(&document.node).done()
        })
        .collect()
}

/// Mounts that at least half the nodes have and another lacks, or has from elsewhere.
fn mount_spread(raw: &Raw, documents: &Documents) -> Record {
    let metric = "mount_spread";
    let Some((file, _)) = documents.first() else { return raw.absent(metric, "").done() };
    // Local disks have the same role under other names on each node: they are compared by type only.
    let key = |mount: &Mount| {
        let source = if mount.source.starts_with("/dev/") { "local" } else { mount.source.as_str() };
        format!("{source} {}", mount.fstype)
    };
    let mut seen: BTreeMap<&str, BTreeMap<String, usize>> = BTreeMap::new();
    for (_, document) in documents {
        for (target, mount) in &document.mounts {
            *seen.entry(target).or_default().entry(key(mount)).or_default() += 1;
        }
    }
    let total = documents.len();
    let differing: Vec<&str> = seen
        .iter()
        .filter(|(_, kinds)| {
            let having: usize = kinds.values().sum();
            having * 2 >= total && (having < total || kinds.len() > 1)
        })
        .map(|(target, _)| *target)
        .collect();
    let detail =
        if differing.is_empty() { format!("the same on {total} nodes") } else { differing.join(", ") };
    let mut draft = raw.measured(metric, "", differing.len() as f64, file.at("/mounts")).detail(detail);
    draft.0.provenance = Provenance::Inferred;
    draft.done()
}
