//! Criteria over records that tests put together.

use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::record::{Provenance, Scalar};
use crate::run::Run;

fn run(hardware: Hardware) -> Run {
    Run {
        schema: crate::run::SCHEMA.to_owned(),
        run: "r1".to_owned(),
        cluster: "c".to_owned(),
        profile: "demo".to_owned(),
        job: None,
        nodes: vec!["n1".to_owned(), "n2".to_owned()],
        started: "2026-11-30T20:50:00Z".to_owned(),
        simulated: false,
        hardware,
        shrink: None,
    }
}

struct Case {
    loaded: Loaded,
    methodology: Methodology,
}

impl Case {
    fn new(hardware: Hardware) -> Self {
        let loaded = Loaded {
            dir: std::path::PathBuf::new(),
            run: run(hardware),
            entries: crate::load::Entries::default(),
            files: Vec::new(),
            digest: String::new(),
            run_digest: String::new(),
            statements: None,
            lost: BTreeMap::new(),
        };
        Self { loaded, methodology: Methodology::built_in().unwrap() }
    }

    /// `subject` is `n1`, `n1/0` for a GPU, or empty.
    fn put(
        &mut self,
        metric: &str,
        subject: &str,
        params: &[(&str, Scalar)],
        value: Result<f64, (State, &str)>,
    ) {
        let (node, gpu) =
            subject.split_once('/').map_or((subject, None), |(node, gpu)| (node, gpu.parse().ok()));
        let subject = Subject { node: (!node.is_empty()).then(|| node.to_owned()), gpu, port: None };
        let params = params.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect();
        let (params, subject) = (Arc::new(params), Arc::new(subject));
        let key = Key { stage: Name::from("s"), metric: Name::from(metric), params, subject };
        let (value, state, detail) = match value {
            Ok(value) => (Some(value), State::Measured, None),
            Err((state, detail)) => (None, state, Some(detail.to_owned())),
        };
        let entry = Entry::new(value, state, Provenance::Measured, detail);
        self.loaded.entries.replace(key, entry);
    }

    fn doubt(&mut self, metric: &str) {
        for (key, entry) in self.loaded.entries.iter_mut() {
            if key.metric == metric {
                entry.flaw = Some("its evidence is missing".into());
            }
        }
    }

    fn judge(&self, id: &str) -> Verdict {
        Evidence::new(&self.loaded, &self.methodology).judge(self.methodology.criterion(id).unwrap())
    }

    fn is(&self, id: &str, outcome: Outcome, value: Option<Micro>, reason: &str) {
        let verdict = self.judge(id);
        assert_eq!((verdict.outcome, verdict.value), (outcome, value), "{verdict:?}");
        assert!(verdict.reason.contains(reason), "{verdict:?}");
    }
}

fn gpus(case: &mut Case, model: &str) {
    for node in ["n1", "n2"] {
        case.put("gpu_count", node, &[], Ok(1.0));
        case.put("gpu_info", &format!("{node}/0"), &[("model", model.into())], Ok(1.0));
    }
}

#[test]
fn five_states_of_a_criterion_over_all_nodes() {
    let mut case = Case::new(Hardware::Gpu);
    case.is("sec-21", Outcome::Unknown, None, "no record of bmc_reachable: n1, n2");
    case.put("bmc_reachable", "n1", &[], Ok(0.0));
    case.is("sec-21", Outcome::Unknown, None, "no record of bmc_reachable: n2");
    case.put("bmc_reachable", "n2", &[], Ok(0.0));
    case.is("sec-21", Outcome::Pass, Some(ONE), "");
    case.put("bmc_reachable", "n2", &[], Ok(1.0));
    case.is("sec-21", Outcome::Fail, Some(0), "1 of 2 fall short: bmc_reachable 1: n2");
    case.put("bmc_reachable", "n2", &[], Err((State::Unavailable, "no permission")));
    case.is("sec-21", Outcome::Unavailable, None, "bmc_reachable: no permission: n2");
    case.put("bmc_reachable", "n1", &[], Ok(1.0));
    case.is("sec-21", Outcome::Fail, Some(0), "n1");
}

#[test]
fn not_applicable_needs_a_reason_that_the_criterion_accepts() {
    let mut case = Case::new(Hardware::Gpu);
    for node in ["n1", "n2"] {
        case.put("dpu_rshim_reachable", node, &[], Err((State::NotApplicable, "no_dpu: none in lspci")));
    }
    case.is("sec-22", Outcome::NotApplicable, None, "no_dpu: n1, n2");
    case.put("dpu_rshim_reachable", "n2", &[], Ok(1.0));
    case.is("sec-22", Outcome::Fail, Some(0), "");
    case.put("dpu_rshim_reachable", "n2", &[], Ok(0.0));
    case.is("sec-22", Outcome::Pass, Some(ONE), "");
    case.put("dpu_rshim_reachable", "n2", &[], Err((State::NotApplicable, "not_nvidia: other")));
    case.is("sec-22", Outcome::Unknown, None, "not a reason this criterion accepts");
    case.put("dpu_rshim_reachable", "n2", &[], Err((State::NotApplicable, "too hard")));
    case.is("sec-22", Outcome::Unknown, None, "not a reason this criterion accepts");
}

#[test]
fn a_value_that_is_not_believed_is_unknown_not_pass_and_not_zero() {
    let mut case = Case::new(Hardware::Gpu);
    for node in ["n1", "n2"] {
        case.put("bmc_reachable", node, &[], Ok(0.0));
    }
    case.doubt("bmc_reachable");
    case.is("sec-21", Outcome::Unknown, None, "its evidence is missing: n1, n2");
}

#[test]
fn a_share_needs_every_listed_value() {
    let mut case = Case::new(Hardware::Gpu);
    for command in ["sinfo", "squeue", "scontrol", "salloc", "sbatch", "srun"] {
        case.put("slurm_command", "", &[("command", command.into())], Ok(1.0));
    }
    case.is("orc-02", Outcome::Unknown, None, "no record of slurm_command sacct");
    case.put("slurm_command", "", &[("command", "sacct".into())], Ok(0.0));
    case.is("orc-02", Outcome::Pass, Some(857_142), "1 of 7 fall short");
}

#[test]
fn a_reference_needs_the_one_gpu_model_of_all_gpus() {
    let mut case = Case::new(Hardware::Gpu);
    let params = [("dtype", Scalar::from("bf16")), ("stat", "best".into()), ("device", "gpu".into())];
    case.put("gemm", "n1/0", &params, Ok(760.0));
    case.put("gemm", "n2/0", &params, Ok(794.5));
    case.is("rel-24", Outcome::Unknown, None, "no record of gpu_count: n1, n2");
    gpus(&mut case, "NVIDIA H100 80GB HBM3");
    let verdict = case.judge("rel-24");
    assert_eq!(verdict.outcome, Outcome::Pass);
    assert_eq!(verdict.value, Some(micro(0.7 + 0.3 * (760.0 - 715.05) / (794.5 - 715.05))));
    case.put("gemm", "n2/0", &params, Ok(2000.0));
    case.is("rel-24", Outcome::Unknown, None, "2000  is impossible, the ceiling is 989");
    gpus(&mut case, "Some other GPU");
    case.is("rel-24", Outcome::Unknown, None, "different GPU models");
}

#[test]
fn a_cpu_has_no_reference_whatever_gpus_are_listed() {
    let mut case = Case::new(Hardware::Cpu);
    gpus(&mut case, "NVIDIA H100 80GB HBM3");
    let params = [
        ("collective", Scalar::from("all_reduce")),
        ("nodes", Scalar::Int(2)),
        ("ranks", Scalar::Int(16)),
        ("size", Scalar::Int(8 << 30)),
    ];
    case.put("busbw", "", &params, Ok(1.0));
    case.is("net-07", Outcome::Unknown, None, "CPU-only");
    case.loaded.run.hardware = Hardware::Gpu;
    case.is("net-07", Outcome::Fail, Some(0), "");
}

#[test]
fn only_records_that_the_reference_is_about_count() {
    let mut case = Case::new(Hardware::Gpu);
    gpus(&mut case, "NVIDIA H100 80GB HBM3");
    let params = |nodes: i64, size: i64| {
        [
            ("collective", Scalar::from("all_reduce")),
            ("nodes", Scalar::Int(nodes)),
            ("ranks", Scalar::Int(16)),
            ("size", Scalar::Int(size)),
        ]
    };
    case.put("busbw", "", &params(2, 1024), Ok(0.1));
    case.is("net-07", Outcome::Unknown, None, "no reference value");
    case.put("busbw", "", &params(2, 16 << 30), Ok(487.0));
    case.is("net-07", Outcome::Pass, Some(ONE), "");
    case.put("busbw", "", &params(1, 16 << 30), Ok(1.0));
    case.is("net-07", Outcome::Pass, Some(ONE), "");
}

#[test]
fn a_straggler_is_seen_against_the_median_of_all_nodes() {
    let mut case = Case::new(Hardware::Gpu);
    case.loaded.run.nodes = ["n1", "n2", "n3"].map(str::to_owned).to_vec();
    let stat = [("stat", Scalar::from("median"))];
    case.put("step_time", "n1", &stat, Ok(100.0));
    case.put("step_time", "n2", &stat, Ok(101.0));
    case.is("net-11", Outcome::Unknown, None, "no record of step_time for n3");
    case.put("step_time", "n3", &stat, Ok(102.0));
    case.is("net-11", Outcome::Pass, Some(ONE), "");
    case.put("step_time", "n3", &stat, Ok(130.0));
    case.is("net-11", Outcome::Fail, Some(0), "step_time");
}

#[test]
fn a_present_gpu_proves_the_generation_an_old_one_leaves_it_to_a_claim() {
    let mut case = Case::new(Hardware::Gpu);
    gpus(&mut case, "NVIDIA H100 80GB HBM3");
    case.is("ava-03", Outcome::Unknown, None, "neither proves nor disproves");
    case.put("claim", "", &[("item", "ava-03".into())], Ok(0.0));
    case.is("ava-03", Outcome::Fail, Some(0), "");
    case.put("claim", "", &[("item", "ava-03".into())], Ok(1.0));
    assert!(case.judge("ava-03").declared);
    let mut case = Case::new(Hardware::Gpu);
    gpus(&mut case, "NVIDIA B200");
    case.is("ava-03", Outcome::Pass, Some(ONE), "");
    assert!(!case.judge("ava-03").declared);
}

#[test]
fn wrong_values_fail_and_a_collective_that_was_not_checked_is_not_passed() {
    let mut case = Case::new(Hardware::Gpu);
    let of = |collective: &str| [("collective", Scalar::from(collective))];
    for collective in ["all_reduce", "all_gather", "alltoall", "broadcast"] {
        case.put("wrong_values", "", &of(collective), Ok(0.0));
    }
    case.put(
        "wrong_values",
        "",
        &of("reduce_scatter"),
        Err((State::Unavailable, "not_in_library: gloo has none")),
    );
    case.is("rel-25", Outcome::Unavailable, None, "gloo has none");
    let other = [("collective", Scalar::from("reduce_scatter")), ("api", "reduce_scatter_tensor".into())];
    case.put("wrong_values", "", &other, Ok(0.0));
    case.is("rel-25", Outcome::Pass, Some(ONE), "");
    case.put("wrong_values", "", &of("reduce_scatter"), Err((State::Unknown, "it hung")));
    case.is("rel-25", Outcome::Unknown, None, "it hung");
    case.put("wrong_values", "", &of("alltoall"), Ok(3.0));
    case.is("rel-25", Outcome::Fail, Some(0), "wrong_values, collective=alltoall 3");
}

#[test]
fn curve_points_are_met_and_ends_are_constant() {
    let points = [[10.0, 1.0], [30.0, 0.5], [60.0, 0.0]];
    for (value, expected) in
        [(-5.0, 1.0), (10.0, 1.0), (20.0, 0.75), (30.0, 0.5), (45.0, 0.25), (60.0, 0.0), (1e9, 0.0)]
    {
        assert!((curve(&points, value) - expected).abs() < 1e-12, "{value}");
    }
    assert_eq!(micro(0.000_000_4), 0);
    assert_eq!(micro(2.0), ONE);
}

proptest! {
    #[test]
    fn every_curve_stays_in_range_and_is_monotone(a in -1e6_f64..1e6, b in -1e6_f64..1e6) {
        let methodology = Methodology::built_in().unwrap();
        let curves = methodology.references.iter().map(|reference| reference.points().to_vec()).chain(
            methodology.criteria.iter().flat_map(|one| &one.measures).filter_map(|measure| match &measure.rule {
                Rule::Curve { points } | Rule::Spread { points } => Some(points.clone()),
                _ => None,
            }),
        );
        for points in curves {
            let rising = points[0][1] < points[points.len() - 1][1];
            let (low, high) = (curve(&points, a.min(b)), curve(&points, a.max(b)));
            prop_assert!((0.0..=1.0).contains(&low) && (0.0..=1.0).contains(&high));
            let ordered = if rising { low <= high } else { low >= high };
            prop_assert!(ordered);
        }
    }
}
