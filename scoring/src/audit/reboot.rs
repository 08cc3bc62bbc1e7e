//! What a reboot lost: a node's audit from before it against the one from after it.

use std::path::Path;

use super::{Document, Item, SCHEMA, Verdict};
use crate::Failure;

const S: &str = "audit";
const METRIC: &str = "reboot_differences";

/// Values that change without anybody having lost anything, or that a reboot is made for.
const RESTLESS: [&str; 13] = [
    "health_verdict",
    "health_last_run_age",
    "health_check_program_age",
    "health_dcgm_asked",
    "idle_check_age",
    "rack_check_age",
    "kernel_log_days",
    "kernel_outdated",
    "xid_hardware",
    "foreign_traces",
    "gpu_temperature_idle",
    "gpu_power_idle",
    "prolog_seconds",
];

/// Nobody gave an earlier audit.
pub fn not_tried() -> Item {
    Item::unavailable(
        S,
        METRIC,
        "not_tried: nothing is rebooted by the audit; after a reboot give the folder of an audit from before it with --before DIR",
    )
    .by("clustermax audit --results before; scontrol reboot ASAP NODES; clustermax audit --before before")
}

/// A node's documents in the results folder of an earlier audit or suite.
///
/// # Errors
/// The folder is none.
pub fn before(folder: &Path, node: &str) -> Result<Option<Document>, Failure> {
    if !folder.join("raw").is_dir() {
        return Err(Failure::input(format!(
            "--before {} is no results folder of an earlier audit (it has no raw/); give one that --results made",
            folder.display()
        )));
    }
    let read = |name: String| -> Option<Document> {
        let text = std::fs::read_to_string(folder.join("raw").join(name)).ok()?;
        serde_json::from_str::<Document>(&text).ok().filter(|document| document.schema == SCHEMA)
    };
    let (inventory, set_up) =
        (read(format!("inventory/{node}.json")), read(format!("audit/node-{node}.json")));
    Ok(set_up.map(|mut set_up| {
        // `clustermax audit` writes one document under both names.
        if !set_up.items.iter().any(|item| item.metric == "node_info") {
            set_up.items.extend(inventory.into_iter().flat_map(|document| document.items));
        }
        set_up
    }))
}

fn boot(document: &Document) -> Option<String> {
    let info = document.items.iter().find(|item| item.metric == "node_info")?;
    info.params.get("boot_id").map(ToString::to_string).filter(|id| !id.is_empty())
}

/// Mounts that are gone or of another source, and whatever was as it should be and is no more.
pub fn compare(earlier: Option<&Document>, now: &Document) -> Item {
    let item = match earlier {
        None => Item::unknown(S, METRIC, "the earlier audit did not look at this node"),
        Some(earlier) => match (boot(earlier), boot(now)) {
            (Some(then), Some(now)) if then == now => Item::unavailable(
                S,
                METRIC,
                "not_tried: the node has not been rebooted since the earlier audit",
            ),
            (Some(_), Some(_)) => {
                let lost = lost(earlier, now);
                let seen = if lost.is_empty() {
                    format!("{} mounts and all that was right before the reboot are there", now.mounts.len())
                } else {
                    format!(
                        "{} differ: {}",
                        lost.len(),
                        lost.iter().take(5).cloned().collect::<Vec<_>>().join(", ")
                    )
                };
                Item::value(S, METRIC, lost.len() as f64, seen).judged(if lost.is_empty() {
                    Verdict::Pass
                } else {
                    Verdict::Fail
                })
            }
            _ => Item::unknown(S, METRIC, "one of the audits does not say the node's boot id"),
        },
    };
    item.on(&now.node)
        .by("diff of two audits of the node, before and after scontrol reboot")
        .mend("put the mounts into fstab or autofs, enable the units and load the modules at boot")
}

fn lost(earlier: &Document, now: &Document) -> Vec<String> {
    let mut lost: Vec<String> = earlier
        .mounts
        .iter()
        .filter(|(target, mount)| now.mounts.get(*target) != Some(mount))
        .map(|(target, _)| format!("mount {target}"))
        .collect();
    let name = |item: &Item| {
        let params: Vec<String> = ["tool", "command", "component", "family", "name", "setting", "module"]
            .iter()
            .filter_map(|key| item.params.get(*key).map(ToString::to_string))
            .collect();
        let gpu = item.subject.gpu.map(|gpu| format!(" g{gpu}")).unwrap_or_default();
        format!("{} {}{gpu}", item.metric, params.join(" ")).trim().to_owned()
    };
    for old in earlier.items.iter().filter(|item| item.verdict == Verdict::Pass) {
        if RESTLESS.contains(&old.metric.as_str()) || old.metric.starts_with("exporter") {
            continue;
        }
        let wanted = name(old);
        let new = now.items.iter().find(|item| item.subject == old.subject && name(item) == wanted);
        if new.is_some_and(|item| matches!(item.verdict, Verdict::Warn | Verdict::Fail)) {
            lost.push(wanted);
        }
    }
    lost
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::Mount;
    use super::*;
    use crate::record::State;

    fn document(boot: &str, mounts: &[(&str, &str)], good: bool) -> Document {
        let mount = |source: &str| Mount { source: source.to_owned(), fstype: "nfs4".to_owned() };
        Document {
            schema: SCHEMA.to_owned(),
            tool: "clustermax 0".to_owned(),
            node: "n1".to_owned(),
            started: super::super::now(),
            seconds: 0.1,
            items: vec![
                Item::value("inventory", "node_info", 1.0, "").param("boot_id", boot).on("n1"),
                Item::flag(S, "gdrcopy", good, true, Verdict::Warn, "").on("n1"),
                // Restless: says nothing about what was lost.
                Item::flag(S, "health_verdict", good, true, Verdict::Fail, "").on("n1"),
            ],
            mounts: mounts
                .iter()
                .map(|(target, source)| ((*target).to_owned(), mount(source)))
                .collect::<BTreeMap<_, _>>(),
            home: None,
        }
    }

    #[test]
    fn what_a_reboot_lost_is_counted_and_named() {
        let before = document("a", &[("/data", "srv:/data"), ("/home", "srv:/home")], true);
        let whole =
            document("b", &[("/data", "srv:/data"), ("/home", "srv:/home"), ("/new", "srv:/new")], true);
        assert_eq!(compare(Some(&before), &whole).value, Some(0.0));
        let less = document("b", &[("/data", "srv:/data")], false);
        let item = compare(Some(&before), &less);
        assert_eq!(item.value, Some(2.0), "{item:?}");
        assert!(item.observed.contains("mount /home") && item.observed.contains("gdrcopy"), "{item:?}");
        let moved = document("b", &[("/data", "other:/data"), ("/home", "srv:/home")], true);
        assert_eq!(compare(Some(&before), &moved).value, Some(1.0));
    }

    #[test]
    fn without_a_reboot_nothing_is_said() {
        let before = document("a", &[], true);
        assert_eq!(compare(Some(&before), &document("a", &[], false)).state, State::Unavailable);
        assert_eq!(compare(None, &before).state, State::Unknown);
        assert_eq!(compare(Some(&document("", &[], true)), &before).state, State::Unknown);
    }

    #[test]
    fn an_earlier_folder_is_read_or_named() {
        let folder = tempfile::tempdir().unwrap();
        let error = before(folder.path(), "n1").unwrap_err().message;
        assert!(error.contains("--before") && error.contains("raw/"), "{error}");
        let raw = folder.path().join("raw/audit");
        std::fs::create_dir_all(&raw).unwrap();
        assert_eq!(before(folder.path(), "n1").unwrap(), None);
        let text = serde_json::to_string(&document("a", &[], true)).unwrap();
        std::fs::write(raw.join("node-n1.json"), text).unwrap();
        assert_eq!(before(folder.path(), "n1").unwrap().unwrap().node, "n1");
    }
}
