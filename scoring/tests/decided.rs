//! Criteria that are decided by stages other than the audit's own looks: each with records that pass it, that fail it, and that
//! leave it open.

#![allow(clippy::unwrap_used, reason = "in a test a failed step is the failure")]

#[path = "common/perfect.rs"]
#[allow(dead_code, reason = "the tests of tiers use the rest")]
mod perfect;

use perfect::{H100, Row};
use scoring::judge::{Evidence, ONE, Outcome};
use scoring::load::load;
use scoring::methodology::Methodology;
use serde_json::{Value, json};

/// A record of n1, or of the cluster.
fn row(metric: &str, subject: &str, params: Value, value: Result<f64, (&'static str, &str)>) -> Row {
    let methodology = methodology();
    let known = &methodology.metrics[metric];
    let subject = match subject.split_once('/') {
        Some((node, gpu)) => json!({"node": node, "gpu": gpu.parse::<u32>().unwrap()}),
        None if subject.is_empty() => json!({}),
        None => json!({"node": subject}),
    };
    Row {
        stage: known.stage.split([',', '*']).find(|stage| !stage.is_empty()).unwrap_or("audit").to_owned(),
        metric: metric.to_owned(),
        params: params.as_object().unwrap().clone(),
        subject: subject.as_object().unwrap().clone(),
        unit: known.unit.clone(),
        value: value.map_err(|(state, why)| (state, why.to_owned())),
        provenance: "measured",
        criteria: Vec::new(),
    }
}

fn methodology() -> &'static Methodology {
    static ONCE: std::sync::OnceLock<Methodology> = std::sync::OnceLock::new();
    ONCE.get_or_init(|| Methodology::built_in().unwrap())
}

/// The GPUs of two nodes of eight, so that references are found.
fn gpus() -> Vec<Row> {
    let mut rows = Vec::new();
    for node in ["n1", "n2"] {
        rows.push(row("gpu_count", node, json!({}), Ok(8.0)));
        for gpu in 0..8 {
            let subject = format!("{node}/{gpu}");
            rows.push(row("gpu_info", &subject, json!({"model": "NVIDIA H100 80GB HBM3"}), Ok(1.0)));
        }
    }
    rows
}

/// The state of a criterion with these records, its score, and why.
fn judged(id: &str, rows: &[Row]) -> (Outcome, Option<f64>, String) {
    let folder = tempfile::tempdir().unwrap();
    perfect::write(folder.path(), &H100, &[gpus(), rows.to_vec()].concat());
    let loaded = load(folder.path(), methodology()).unwrap();
    let verdict = Evidence::new(&loaded, methodology()).judge(methodology().criterion(id).unwrap());
    (verdict.outcome, verdict.value.map(|value| f64::from(value) / f64::from(ONE)), verdict.reason)
}

/// The same record on both nodes.
fn both(metric: &str, params: &Value, value: f64) -> Vec<Row> {
    ["n1", "n2"].map(|node| row(metric, node, params.clone(), Ok(value))).into()
}

fn lacking(rows: &[Row], metric: &str) -> Vec<Row> {
    rows.iter().filter(|row| row.metric != metric).cloned().collect()
}

/// Good records of a criterion, and one of them spoiled: metric and value that fail it. Leaving the metric out leaves it open.
fn table() -> Vec<(&'static str, Vec<Row>, &'static str, f64)> {
    let s3 = |op: &str| json!({"op": op, "size": 4096, "clients": 8, "stat": "p99"});
    let size = |op: &str| json!({"op": op, "size": 4096, "clients": 8});
    let rail =
        |memory: &str| json!({"device": "mlx5_0", "memory": memory, "stat": "average", "size": 8_388_608});
    let latency = json!({"device": "mlx5_0", "memory": "host", "stat": "typical", "size": 2});
    let sweep = |collective: &str, size: u64| json!({"collective": collective, "size": size, "nodes": 2, "ranks": 16});
    let fault = |fault: &str, expected: &str| json!({"fault": fault, "kind": "kernel", "expected": expected});
    let rank = json!({"rank": 0, "dtype": "bf16"});
    let one = |metric: &str, params: Value, value: f64| vec![row(metric, "", params, Ok(value))];
    let on = |metric: &str, params: Value, value: f64| vec![row(metric, "n2", params, Ok(value))];
    let store = [
        both("s3_latency", &s3("get"), 12.0),
        both("s3_latency", &s3("put"), 40.0),
        both("s3_errors", &size("get"), 0.0),
        both("s3_wrong_objects", &size("get"), 0.0),
    ]
    .concat();
    let rails = [on("rdma_bandwidth", rail("host"), 392.0), on("rdma_latency", latency, 1.9)].concat();
    let pairs = [
        on("rdma_bandwidth", rail("host"), 392.0),
        on("rdma_bandwidth", rail("gpu"), 391.0),
        both(
            "copy_bandwidth",
            &json!({"test": "device_to_device_memcpy_read_ce", "row": 0, "column": 1}),
            400.0,
        ),
    ]
    .concat();
    let small = [
        one("collective_time", sweep("alltoall", 32768), 41.0),
        one("algbw", sweep("all_reduce", 134_217_728), 165.0),
    ]
    .concat();
    let burn = [both("burnin_wrong", &rank, 0.0), both("burnin_seconds", &rank, 28_800.0)].concat();
    let load = [
        both("burnin_wrong", &rank, 0.0),
        on("ping_loss", json!({"peer": "n1"}), 0.0),
        on("tcp_bandwidth", json!({"peer": "n1"}), 23.4),
    ]
    .concat();
    let right = [
        on("fault_action_right", fault("xid79", "drain"), 1.0),
        on("fault_action_right", fault("xid13", "none"), 1.0),
    ]
    .concat();
    let returned = json!({"fault": "recorded", "kind": "recorded", "how": "returned"});
    let off =
        json!({"collective": "all_reduce", "variant": "nvlink_off", "nodes": 1, "ranks": 8, "size": 1 << 30});
    let half = json!({"collective": "all_reduce", "tool": "nccl-tests", "nodes": 4, "of": 2});
    let scaling = [one("collective_scaling", half, 0.97), one("busbw", off, 47.0)].concat();
    // As the collectives' stage writes it: of the cluster, though one node ran it.
    let inside = json!({"collective": "all_reduce", "tool": "nccl-tests", "nodes": 1, "ranks": 8, "size": 8_589_934_592_u64});
    let loss = |op: &str| both("storage_endurance_loss", &json!({"op": op, "length": "minutes"}), 4.0);
    let lasting = [loss("write"), loss("read")].concat();
    vec![
        ("sec-11", both("ib_key_set", &json!({"key": "m_key"}), 1.0), "ib_key_set", 0.0),
        ("sto-12", store.clone(), "s3_latency", 2000.0),
        ("sto-12", store.clone(), "s3_errors", 1.0),
        ("sto-12", store, "s3_wrong_objects", 1.0),
        ("net-10", rails.clone(), "rdma_bandwidth", 90.0),
        ("net-10", rails, "rdma_latency", 60.0),
        ("net-15", small.clone(), "collective_time", 5000.0),
        ("net-15", small, "algbw", 40.0),
        ("net-16", scaling.clone(), "collective_scaling", 0.3),
        ("net-16", scaling, "busbw", 2.0),
        (
            "rel-16",
            one("fault_to_return_seconds", returned.clone(), 2580.0),
            "fault_to_return_seconds",
            100_000.0,
        ),
        ("rel-33", one("fault_to_return_seconds", returned, 67.0), "fault_to_return_seconds", 4000.0),
        ("rel-22", one("busbw", inside, 484.0), "busbw", 100.0),
        ("rel-23", pairs.clone(), "rdma_bandwidth", 90.0),
        ("rel-23", pairs, "copy_bandwidth", 20.0),
        ("rel-28", burn, "burnin_wrong", 1.0),
        ("rel-29", load.clone(), "burnin_wrong", 1.0),
        ("rel-29", load.clone(), "ping_loss", 10.0),
        ("rel-29", load, "tcp_bandwidth", 0.05),
        ("rel-30", both("reboot_to_usable_seconds", &json!({}), 420.0), "reboot_to_usable_seconds", 9000.0),
        ("rel-31", on("fault_detected", fault("xid79", "drain"), 1.0), "fault_detected", 0.0),
        (
            "rel-34",
            one("gpu_hours_per_failure", json!({"bound": "none"}), 60_000.0),
            "gpu_hours_per_failure",
            500.0,
        ),
        ("rel-35", right, "fault_action_right", 0.0),
        ("rel-37", one("whole_rack_outages", json!({}), 0.0), "whole_rack_outages", 1.0),
        ("mon-22", one("availability_difference", json!({}), 0.02), "availability_difference", 3.0),
        ("sto-09", one("import_torch_slowdown", json!({}), 1.1), "import_torch_slowdown", 12.0),
        ("sto-11", lasting, "storage_endurance_loss", 90.0),
        ("lif-17", on("internet_download", json!({}), 18.0), "internet_download", 0.05),
        ("lif-19", both("reboot_differences", &json!({}), 0.0), "reboot_differences", 2.0),
        ("rel-06", on("internet_failed", json!({}), 0.0), "internet_failed", 35.0),
        ("pri-06", one("cost_overhead", json!({}), 2.5), "cost_overhead", 150.0),
    ]
}

#[test]
fn each_criterion_passes_fails_and_is_left_open_by_its_records() {
    for (id, good, metric, bad) in table() {
        let (outcome, value, reason) = judged(id, &good);
        assert_eq!((outcome, value), (Outcome::Pass, Some(1.0)), "{id}: {reason}");
        let mut spoiled = good.clone();
        // The last one: every other record stays good.
        spoiled.iter_mut().rfind(|row| row.metric == metric).unwrap().value = Ok(bad);
        let (outcome, value, reason) = judged(id, &spoiled);
        assert_eq!((outcome, value), (Outcome::Fail, Some(0.0)), "{id} with {metric} {bad}: {reason}");
        assert!(reason.contains(metric), "{id}: {reason}");
        let (outcome, _, reason) = judged(id, &lacking(&good, metric));
        assert_eq!(outcome, Outcome::Unknown, "{id} without {metric}: {reason}");
        assert!(reason.contains("no record of") && reason.contains(metric), "{id}: {reason}");
        // Said to be unavailable: so is the criterion, with that reason.
        let mut refused = good.clone();
        for row in refused.iter_mut().filter(|row| row.metric == metric) {
            row.value = Err(("unavailable", "nobody could look".to_owned()));
        }
        let (outcome, _, reason) = judged(id, &refused);
        assert_eq!(outcome, Outcome::Unavailable, "{id} without {metric}: {reason}");
        assert!(reason.contains("nobody could look"), "{id}: {reason}");
    }
}

#[test]
fn values_between_pass_and_fail_score_in_part() {
    let one = |metric: &str, params: Value, value: f64| vec![row(metric, "", params, Ok(value))];
    let returned = json!({"fault": "recorded", "kind": "recorded", "how": "returned"});
    for (id, rows, low, high) in [
        // TensorWave's 43 minutes pass in full, GB300s back after 8 h 40 in part.
        ("rel-16", one("fault_to_return_seconds", returned.clone(), 2580.0), 1.0, 1.0),
        ("rel-16", one("fault_to_return_seconds", returned, 31_200.0), 0.3, 0.5),
        // 10,000 GPU-hours a failure is half, Llama 3's 50,677 whole.
        ("rel-34", one("gpu_hours_per_failure", json!({"bound": "none"}), 10_000.0), 0.5, 0.5),
        ("rel-34", one("gpu_hours_per_failure", json!({"bound": "lower"}), 50_677.0), 1.0, 1.0),
        ("pri-06", one("cost_overhead", json!({}), 4.98), 0.8, 0.81),
        ("mon-22", one("availability_difference", json!({}), -4.0), 1.0, 1.0),
    ] {
        let (outcome, value, reason) = judged(id, &rows);
        assert_eq!(outcome, Outcome::Pass, "{id}: {reason}");
        assert!((low..=high).contains(&value.unwrap()), "{id}: {value:?}");
    }
}

/// A way that was not tried is passed over where another one says it; a fault from which nothing came back is not.
#[test]
fn a_return_that_was_waited_for_in_vain_leaves_the_replacement_open() {
    let recorded = json!({"fault": "recorded", "kind": "recorded", "how": "returned"});
    let injected = json!({"fault": "xid79", "kind": "kernel", "how": "returned"});
    let sla = row("fault_to_return_seconds", "", recorded, Ok(1800.0));
    let of = |state, why| row("fault_to_return_seconds", "n1", injected.clone(), Err((state, why)));
    assert_eq!(
        judged("rel-16", &[sla.clone(), of("unavailable", "not_tried: not waited for")]).0,
        Outcome::Pass
    );
    assert_eq!(judged("rel-16", &[sla, of("unknown", "not back within 3600 s")]).0, Outcome::Unknown);
}

/// GB200 trays are watched as racks; nodes of eight GPUs are none, which is no fault of theirs.
#[test]
fn a_rack_is_asked_for_where_there_is_one() {
    let domain = |value| both_of("rack_domain", value);
    let age = |value| both_of("rack_check_age", value);
    let none = Err(("not_applicable", "no_rack_scale: NVIDIA H100 80GB HBM3"));
    for (rows, outcome) in [
        ([domain(Ok(1.0)), age(Ok(40.0))].concat(), Outcome::Pass),
        ([domain(Ok(0.0)), age(Ok(40.0))].concat(), Outcome::Fail),
        ([domain(Ok(1.0)), age(Ok(400.0))].concat(), Outcome::Fail),
        ([domain(Err(("unknown", "not seen"))), age(Ok(40.0))].concat(), Outcome::Unknown),
        ([domain(none), age(none)].concat(), Outcome::NotApplicable),
    ] {
        let (found, _, reason) = judged("rel-17", &rows);
        assert_eq!(found, outcome, "{reason}");
    }
}

/// Queue pairs are advice: what is not swept is never a failure.
#[test]
fn queue_pairs_warn_and_never_fail() {
    let (outcome, value, _) = judged("net-14", &both_of("nccl_qps_fit", Ok(0.0)));
    assert_eq!((outcome, value), (Outcome::Pass, Some(0.5)));
    assert_eq!(judged("net-14", &both_of("nccl_qps_fit", Ok(1.0))).1, Some(1.0));
    assert_eq!(judged("net-14", &[]).0, Outcome::Unknown);
}

/// Either our stamp or another suite's job shows a long check; a machine without both is not known to have none.
#[test]
fn a_long_check_is_shown_by_its_stamp_or_by_sacct() {
    let of = |by: &str, value| {
        ["n1", "n2"].map(|node| row("idle_check_age", node, json!({"by": by}), value)).to_vec()
    };
    let gives = |value| vec![row("idle_check_gives_way", "", json!({}), Ok(value))];
    let (none, not) = (Err(("unavailable", "not there")), Err(("unavailable", "no_history: none")));
    for (rows, outcome) in [
        ([of("stamp", Ok(20.0)), of("sacct", not), gives(1.0)].concat(), Outcome::Pass),
        ([of("stamp", none), of("sacct", Ok(100.0)), gives(1.0)].concat(), Outcome::Pass),
        ([of("stamp", Ok(900.0)), of("sacct", not), gives(1.0)].concat(), Outcome::Fail),
        ([of("stamp", Ok(20.0)), of("sacct", not), gives(0.0)].concat(), Outcome::Fail),
        ([of("stamp", none), of("sacct", not), gives(1.0)].concat(), Outcome::Unavailable),
        (gives(1.0), Outcome::Unknown),
    ] {
        let (found, _, reason) = judged("rel-19", &rows);
        assert_eq!(found, outcome, "{reason}");
    }
}

fn both_of(metric: &str, value: Result<f64, (&'static str, &str)>) -> Vec<Row> {
    ["n1", "n2"].map(|node| row(metric, node, json!({}), value)).to_vec()
}

/// In Slurm only what is about Kubernetes may be left out.
#[test]
fn only_kubernetes_is_undecided() {
    for criterion in &methodology().undecided {
        let about = criterion.undecided.as_deref().unwrap();
        assert!(
            about.contains("Kubernetes") && criterion.class.word() == "not_slurm",
            "{}: {about}",
            criterion.id
        );
    }
}
