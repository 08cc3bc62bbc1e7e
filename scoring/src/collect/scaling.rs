//! Bandwidth on all nodes against that on half of them, by what each sends over the network: busbw itself falls with the number of
//! nodes, because less of it stays inside a node.

use std::collections::BTreeMap;

use super::Raw;
use crate::record::{Evidence, Provenance, Record, Scalar, State};

const METRIC: &str = "collective_scaling";

/// Network bandwidth of a rank by its bus bandwidth, k nodes and n ranks: all-reduce passes a node's border k - 1 times of n - 1,
/// all-to-all sends n - g of n - 1 parts to other nodes.
fn wire(collective: &str, busbw: f64, nodes: f64, ranks: f64) -> Option<f64> {
    let whole = ranks - 1.0;
    match collective {
        _ if nodes < 2.0 || ranks < 2.0 => None,
        "all_reduce" => Some(busbw * (nodes - 1.0) / whole),
        "alltoall" => Some(busbw * (ranks - ranks / nodes) / whole),
        _ => None,
    }
}

/// The largest message on one number of nodes.
#[derive(Clone, Copy)]
struct Best<'a> {
    size: f64,
    busbw: f64,
    ranks: f64,
    evidence: Option<&'a Evidence>,
}

/// One record a tool and collective.
pub(super) fn of(raw: &Raw, records: &[Record]) -> Vec<Record> {
    let mut found: BTreeMap<(String, String), BTreeMap<i64, Best>> = BTreeMap::new();
    for record in records.iter().filter(|record| record.metric == "busbw") {
        let number = |key: &str| record.params.get(key).and_then(Scalar::as_f64);
        let word = |key: &str| record.params.get(key).map(ToString::to_string);
        // Pairs and what was switched off on purpose are other questions.
        if ["variant", "pair", "api"]
            .iter()
            .any(|key| record.params.contains_key(*key) && !plain(record, key))
        {
            continue;
        }
        let (Some(busbw), Some(nodes), Some(ranks), Some(size), Some(collective), Some(tool)) = (
            record.value,
            number("nodes"),
            number("ranks"),
            number("size"),
            word("collective"),
            word("tool"),
        ) else {
            continue;
        };
        if wire(&collective, busbw, nodes, ranks).is_none() {
            continue;
        }
        let best = Best { size, busbw, ranks, evidence: record.evidence.as_ref() };
        let by_nodes = found.entry((tool, collective)).or_default();
        let old = by_nodes.entry(nodes as i64).or_insert(best);
        if (best.size, best.busbw) > (old.size, old.busbw) {
            *old = best;
        }
    }
    let mut made = Vec::new();
    for ((tool, collective), by_nodes) in &found {
        let Some((all, whole)) = by_nodes.last_key_value() else { continue };
        // The same message on half of the nodes, or the nearest number below.
        let part = by_nodes.range(..=all / 2).rev().find(|(_, part)| part.size == whole.size);
        let rate = |nodes: i64, one: &Best| wire(collective, one.busbw, nodes as f64, one.ranks);
        let (Some((some, part)), Some(evidence)) = (part, whole.evidence) else { continue };
        if let (Some(more), Some(less)) = (rate(*all, whole), rate(*some, part).filter(|rate| *rate > 0.0)) {
            let detail =
                format!("{more:.2} GB/s a rank over the network on {all} nodes, {less:.2} on {some}");
            let mut record = raw
                .measured(METRIC, "", more / less, evidence.clone())
                .param("collective", collective.as_str())
                .param("tool", tool.as_str())
                .param("nodes", *all)
                .param("of", *some)
                .detail(detail)
                .done();
            record.provenance = Provenance::Inferred;
            made.push(record);
        }
    }
    if made.is_empty() {
        let nodes = raw.folder.run.nodes.len();
        let (state, why) = if nodes < 4 {
            (State::Unavailable, format!("not_tried: two sizes of several nodes need 4, the run has {nodes}"))
        } else {
            (
                State::Unknown,
                "no all-reduce or all-to-all was measured on all nodes and on half of them".to_owned(),
            )
        };
        made.push(raw.missing(METRIC, "", state, why).done());
    }
    made
}

/// The API that a collective is called by when nothing else is said.
fn plain(record: &Record, key: &str) -> bool {
    key == "api"
        && matches!(
            record.params.get(key).map(ToString::to_string).as_deref(),
            Some("all_reduce" | "all_to_all_single")
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(nodes: &[&str]) -> (tempfile::TempDir, Raw) {
        let dir = tempfile::tempdir().unwrap();
        let nodes = nodes.iter().map(|node| (*node).to_owned()).collect();
        let args = super::super::Args {
            run: Some("r1".to_owned()),
            cluster: Some("c1".to_owned()),
            nodes,
            ..super::super::Args::of("init", dir.path())
        };
        super::super::run(&args).unwrap();
        let marker = super::super::Marker {
            schema: super::super::STAGE_SCHEMA.to_owned(),
            run: "r1".to_owned(),
            stage: "collectives".to_owned(),
            state: super::super::StageState::Done,
            exit_code: None,
            started: None,
            seconds: None,
            job: None,
            reason: None,
            records: 0,
            metrics: BTreeMap::new(),
        };
        let folder = crate::run::Folder::open(dir.path()).unwrap();
        (dir, Raw { folder, marker, files: Vec::new() })
    }

    fn busbw(raw: &Raw, nodes: i64, size: i64, value: f64, more: &[(&str, &str)]) -> Record {
        let evidence = Evidence { file: "raw/x".to_owned(), sha256: "0".repeat(64), pointer: None };
        let mut draft = raw
            .measured("busbw", "GB/s", value, evidence)
            .param("collective", "all_reduce")
            .param("tool", "nccl-tests")
            .param("nodes", nodes)
            .param("ranks", nodes * 8)
            .param("size", size);
        for (key, value) in more {
            draft = draft.param(key, *value);
        }
        draft.done()
    }

    #[test]
    fn all_nodes_are_compared_with_half_of_them_at_the_same_message() {
        let (_dir, raw) = raw(&["n1", "n2", "n3", "n4"]);
        let records = [
            busbw(&raw, 1, 1 << 33, 480.0, &[]),
            busbw(&raw, 2, 1 << 33, 487.0, &[]),
            busbw(&raw, 2, 1 << 27, 289.0, &[]),
            busbw(&raw, 4, 1 << 33, 365.0, &[]),
            // Other questions.
            busbw(&raw, 4, 1 << 34, 1.0, &[("variant", "nvlink_off")]),
            busbw(&raw, 2, 1 << 34, 1.0, &[("pair", "n1,n2")]),
        ];
        let found = of(&raw, &records);
        assert_eq!(found.len(), 1);
        let wanted = (365.0 * 3.0 / 31.0) / (487.0 / 15.0);
        assert!((found[0].value.unwrap() - wanted).abs() < 1e-9, "{:?}", found[0]);
        assert_eq!(found[0].params["of"].to_string(), "2");
    }

    #[test]
    fn too_few_nodes_or_sizes_leave_a_reason() {
        let (_dir, two) = raw(&["n1", "n2"]);
        let found = of(&two, &[busbw(&two, 2, 1 << 33, 487.0, &[])]);
        assert_eq!((found[0].state, found[0].value), (State::Unavailable, None));
        assert!(found[0].detail.as_deref().unwrap().starts_with("not_tried: "));
        let (_dir, four) = raw(&["n1", "n2", "n3", "n4"]);
        let found = of(&four, &[busbw(&four, 4, 1 << 33, 365.0, &[])]);
        assert_eq!(found[0].state, State::Unknown);
    }

    #[test]
    fn the_network_rate_is_what_scales() {
        // Public all-reduce figures: two p5 nodes 487 GB/s (NVLink is the limit), four p6-b200 nodes 381.8 GB/s.
        let two = wire("all_reduce", 487.0, 2.0, 16.0).unwrap();
        let four = wire("all_reduce", 381.8, 4.0, 32.0).unwrap();
        assert!((two - 32.47).abs() < 0.01 && (four - 36.95).abs() < 0.01, "{two} {four}");
        // An all-to-all of 59.44 GB/s on four nodes sends 46.0 GB/s a card.
        assert!((wire("alltoall", 59.44, 4.0, 32.0).unwrap() - 46.0).abs() < 0.05);
        assert_eq!(wire("all_reduce", 480.0, 1.0, 8.0), None);
        assert_eq!(wire("broadcast", 300.0, 4.0, 32.0), None);
    }
}
