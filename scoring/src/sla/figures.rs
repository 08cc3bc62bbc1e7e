//! Figures with their formulas and inputs.

use super::account::{Facts, Hours, Outage, Unit};
use super::contract::Contract;
use super::statistics::{best_interval, daly, first_order, rate, young};

/// A number with what it was made of.
#[derive(Debug, Clone, PartialEq)]
pub struct Figure {
    /// In the JSON.
    pub name: &'static str,
    /// Nothing when an input is missing.
    pub value: Option<f64>,
    /// Unit.
    pub unit: String,
    /// In the names of the inputs.
    pub formula: &'static str,
    /// Names and values.
    pub inputs: Vec<(&'static str, f64)>,
}

/// What figures are made of.
pub struct Inputs<'a> {
    /// Slurm's records.
    pub facts: &'a Facts,
    /// What counts.
    pub contract: &'a Contract,
    /// In the order of their start.
    pub outages: &'a [Outage],
    /// Where the node-seconds went.
    pub hours: Hours,
    /// Node-seconds in service.
    pub in_service: i64,
    /// Availability by unit and period.
    pub units: &'a [Unit],
    /// How often all nodes of a rack were down at once, where the contract names racks.
    pub racks: Option<usize>,
    /// Availability as the provider publishes it, percent.
    pub published: Option<f64>,
}

/// All figures, in the order of the report.
pub fn figures(inputs: &Inputs) -> Vec<Figure> {
    let Inputs { facts, contract, outages, hours, in_service, .. } = *inputs;
    let mut out = Vec::new();
    let mut add = |name, value: Option<f64>, unit: &str, formula, inputs: Vec<(&'static str, f64)>| {
        out.push(Figure {
            name,
            value: value.filter(|value| value.is_finite()),
            unit: unit.to_owned(),
            formula,
            inputs,
        });
    };
    let ratio = |part: i64, whole: i64| (whole > 0).then(|| part as f64 / whole as f64);
    let nodes = facts.nodes.len() as f64;
    let days = in_service as f64 / 86_400.0;
    let failures = outages.iter().filter(|one| one.counted > 0 && !one.earlier && !one.reboot).count();
    let found = rate(failures as u64, days / 1000.0);
    let of_days = vec![("failures", failures as f64), ("node_days", days)];
    add(
        "failures_per_1000_node_days",
        found.map(|one| one.rate),
        "1/1000 node-days",
        "1000 * failures / node_days in service",
        of_days.clone(),
    );
    add(
        "failures_low",
        found.map(|one| one.low),
        "1/1000 node-days",
        "1000 * chi2(0.025, 2 failures) / (2 node_days), 0 without a failure",
        of_days.clone(),
    );
    add(
        "failures_high",
        found.map(|one| one.high),
        "1/1000 node-days",
        "1000 * chi2(0.975, 2 failures + 2) / (2 node_days), 3000 / node_days without a failure",
        of_days.clone(),
    );
    let mttf = found.filter(|one| one.rate > 0.0).map(|one| 1000.0 / one.rate);
    add("node_mttf", mttf, "days", "node_days / failures", of_days);
    let job = mttf.map(|days| days * 24.0 / nodes);
    let of_job = vec![("node_mttf_days", mttf.unwrap_or(f64::NAN)), ("nodes", nodes)];
    add(
        "mttf_of_a_job_on_all_nodes",
        job,
        "h",
        "24 * node_mttf_days / nodes",
        if mttf.is_some() { of_job } else { Vec::new() },
    );
    let gpus = f64::from(contract.gpus_per_node);
    add(
        "gpu_hours_per_failure",
        (failures > 0).then(|| days * 24.0 * gpus / failures as f64),
        "GPU-h",
        "24 * node_days * gpus_per_node / failures",
        vec![("node_days", days), ("gpus_per_node", gpus), ("failures", failures as f64)],
    );
    let ended: Vec<&Outage> =
        outages.iter().filter(|one| one.counted > 0 && !one.open && !one.reboot).collect();
    let closed: Vec<i64> = ended.iter().map(|one| one.counted).collect();
    add(
        "mean_time_to_repair",
        ratio(closed.iter().sum(), closed.len() as i64).map(|seconds| seconds / 3600.0),
        "h",
        "counted seconds of ended outages / ended outages / 3600",
        vec![("counted_seconds", closed.iter().sum::<i64>() as f64), ("ended_outages", closed.len() as f64)],
    );
    // From the first second out of service, the whole outage: what a user waits for.
    let mut away: Vec<i64> = ended.iter().map(|one| one.span.1 - one.span.0).collect();
    away.sort_unstable();
    let median = match away.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(away[odd / 2] as f64),
        even => Some(f64::midpoint(away[even / 2 - 1] as f64, away[even / 2] as f64)),
    };
    let of_outages = vec![("ended_outages", ended.len() as f64)];
    add(
        "replacement_median",
        median,
        "s",
        "median of ended outages, reboots and excluded ones left out: out of service to in service again",
        of_outages.clone(),
    );
    add(
        "replacement_longest",
        away.last().map(|one| *one as f64),
        "s",
        "the longest of these outages",
        of_outages,
    );
    if let Some(racks) = inputs.racks {
        add(
            "whole_rack_outages",
            Some(racks as f64),
            "",
            "times at which every node of a [[group]] of level rack was down at once",
            vec![("outages", outages.iter().filter(|one| one.counted > 0).count() as f64)],
        );
    }
    let whole: i64 = nodes_of(inputs.units).map(|unit| unit.seconds - unit.excluded).sum();
    let down: i64 = nodes_of(inputs.units).map(|unit| unit.down).sum();
    let measured = ratio(whole - down, whole).map(|share| 100.0 * share);
    let seconds = vec![("seconds", whole as f64), ("down", down as f64)];
    add(
        "node_availability",
        measured,
        "percent",
        "100 * (seconds - down) / seconds, of all nodes and periods, by the contract's definitions",
        seconds,
    );
    if let Some(published) = inputs.published {
        add(
            "availability_difference",
            measured.map(|measured| published - measured),
            "percent",
            "published - node_availability: above 0 is better than Slurm recorded",
            vec![("published", published), ("node_availability", measured.unwrap_or(f64::NAN))],
        );
    }
    let available = ratio(in_service, hours.nominal);
    let of = |pairs: &[(&'static str, i64)]| {
        pairs.iter().map(|(name, value)| (*name, *value as f64)).collect::<Vec<_>>()
    };
    add(
        "node_availability_a",
        available,
        "",
        "in_service / nominal (every outage counts, excluded or not)",
        of(&[("in_service", in_service), ("nominal", hours.nominal)]),
    );
    let used = ratio(hours.allocated, hours.nominal - hours.out_of_service);
    add(
        "allocated_share_e",
        used,
        "",
        "allocated / (nominal - out_of_service)",
        of(&[
            ("allocated", hours.allocated),
            ("nominal", hours.nominal),
            ("out_of_service", hours.out_of_service),
        ]),
    );
    let productive = ratio(hours.productive, hours.allocated);
    add(
        "productive_share_p",
        productive,
        "",
        "productive / allocated",
        of(&[("productive", hours.productive), ("allocated", hours.allocated)]),
    );
    let useful = ratio(hours.productive, hours.allocated + hours.out_of_service).filter(|share| *share > 0.0);
    add(
        "cost_overhead",
        useful.map(|share| 100.0 / share - 100.0),
        "percent",
        "100 * (allocated + out_of_service) / productive - 100: what a useful GPU-hour costs above the price of one",
        of(&[
            ("allocated", hours.allocated),
            ("out_of_service", hours.out_of_service),
            ("productive", hours.productive),
        ]),
    );
    if let Some(price) = contract.price_per_gpu_hour {
        add(
            "cost_per_useful_gpu_hour",
            useful.map(|share| price / share),
            &format!("{} per GPU-h", contract.currency),
            "price * (allocated + out_of_service) / productive: idle hours are the customer's own",
            [("price", price)]
                .into_iter()
                .chain(of(&[
                    ("allocated", hours.allocated),
                    ("out_of_service", hours.out_of_service),
                    ("productive", hours.productive),
                ]))
                .collect(),
        );
        let all = ratio(hours.productive, hours.nominal).filter(|share| *share > 0.0);
        add(
            "cost_per_useful_gpu_hour_all_paid",
            all.map(|share| price / share),
            &format!("{} per GPU-h", contract.currency),
            "price * nominal / productive",
            [("price", price)]
                .into_iter()
                .chain(of(&[("nominal", hours.nominal), ("productive", hours.productive)]))
                .collect(),
        );
    }
    if let (Some(one), Some(hours)) = (contract.checkpoint, job) {
        let m = hours * 3600.0;
        let (tau, delta, restart) = (one.interval_seconds, one.seconds, one.restart_seconds);
        let inputs = vec![("tau", tau), ("delta", delta), ("R", restart), ("M", m)];
        add(
            "checkpoint_efficiency",
            Some(daly(tau, delta, restart, m)),
            "",
            "tau / (M e^(R/M) (e^((tau+delta)/M) - 1)), Daly, a job on all nodes, seconds",
            inputs.clone(),
        );
        add(
            "checkpoint_efficiency_first_order",
            Some(first_order(tau, delta, restart, m)),
            "",
            "1 - delta/tau - (tau/2 + R)/M, for comparison",
            inputs,
        );
        if delta > 0.0 {
            let best = best_interval(delta, restart, m);
            let inputs = vec![("delta", delta), ("R", restart), ("M", m)];
            add(
                "best_checkpoint_interval",
                Some(best),
                "s",
                "tau with the highest Daly efficiency",
                inputs.clone(),
            );
            add("young_checkpoint_interval", Some(young(delta, m)), "s", "sqrt(2 delta M)", inputs.clone());
            add(
                "checkpoint_efficiency_best",
                Some(daly(best, delta, restart, m)),
                "",
                "Daly at best_checkpoint_interval",
                inputs,
            );
        }
    }
    out
}

/// Availability of single nodes.
fn nodes_of(units: &[Unit]) -> impl Iterator<Item = &Unit> {
    units.iter().filter(|unit| unit.level == "node")
}
