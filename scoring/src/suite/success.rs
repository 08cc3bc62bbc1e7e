//! Whether a stage's success criteria (`plan`) were kept, said right after it.

use super::plan::Stage;
use crate::load::number;
use crate::record::{Record, State};

/// The value that a rule asks of every record: `= 0 on every node`. None: it asks that there is one.
fn wanted(rule: &str) -> Option<f64> {
    rule.strip_prefix("= ")?.split(' ').next()?.parse().ok()
}

/// A line for each criterion: what was asked and whether the stage's records keep it.
pub fn lines(stage: &Stage, records: &[Record]) -> Vec<String> {
    let one = |(metric, rule): &(&str, &str)| {
        let of = records.iter().filter(|record| record.stage == stage.name && record.metric == *metric);
        let said = said(rule, &of.collect::<Vec<_>>());
        format!("    success  {metric} {rule}: {said}")
    };
    stage.success.iter().map(one).collect()
}

fn said(rule: &str, records: &[&Record]) -> String {
    let values: Vec<(&Record, f64)> =
        records.iter().filter_map(|record| Some((*record, record.value?))).collect();
    let missing: Vec<&&Record> =
        records.iter().filter(|record| matches!(record.state, State::Unknown | State::Unavailable)).collect();
    let broken: Vec<_> =
        values.iter().filter(|(_, value)| wanted(rule).is_some_and(|wanted| *value != wanted)).collect();
    let total = values.len();
    let word = if missing.is_empty() { "yes" } else { "in part" };
    let kept = match (total, broken.first()) {
        (0, _) => "not measured".to_owned(),
        (_, Some((record, value))) => {
            format!("NO, {} of {total} differ, first {} of {}", broken.len(), number(*value), record.subject)
        }
        (1, None) => format!("{word}, 1 value"),
        (_, None) => format!("{word}, {total} values"),
    };
    let Some(first) = missing.first() else { return kept };
    let why = first.detail.as_deref().unwrap_or("no reason is given");
    let count = if total == 0 { String::new() } else { format!("; {} not measured", missing.len()) };
    format!("{kept}{count} ({}: {})", first.subject, crate::report::plain(why))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::plan::STAGES;

    fn record(metric: &str, value: Option<f64>, node: Option<&str>) -> Record {
        let mut record = serde_json::from_value::<Record>(serde_json::json!({
            "schema": crate::record::SCHEMA, "run": "r", "cluster": "c", "stage": "gemm", "metric": metric, "unit": "",
            "value": value, "state": if value.is_some() { "measured" } else { "unavailable" }, "provenance": "measured",
        }))
        .unwrap();
        record.subject.node = node.map(str::to_owned);
        if value.is_none() {
            record.detail = Some("no torch".to_owned());
        }
        record
    }

    #[test]
    fn every_rule_of_the_plan_asks_for_a_value_or_for_a_measurement() {
        for (metric, rule) in STAGES.iter().flat_map(|stage| stage.success) {
            assert!(wanted(rule).is_some() || rule.starts_with("measured"), "{metric} {rule}");
        }
        assert_eq!((wanted("= 1 on every node"), wanted("measured on every node")), (Some(1.0), None));
    }

    #[test]
    fn a_stage_says_which_of_its_criteria_were_kept() {
        let good = record("gemm_wrong", Some(0.0), Some("n1"));
        let bad = record("gemm_wrong", Some(3.0), Some("n2"));
        let none = record("gemm_wrong", None, Some("n3"));
        for (rule, records, expected) in [
            ("= 0", vec![&good], "yes, 1 value"),
            ("= 0", vec![&good, &good], "yes, 2 values"),
            ("= 0", vec![&good, &bad], "NO, 1 of 2 differ, first 3 of n2"),
            (
                "= 0",
                vec![&good, &bad, &none],
                "NO, 1 of 2 differ, first 3 of n2; 1 not measured (n3: no torch)",
            ),
            ("measured on every node", vec![&good, &bad], "yes, 2 values"),
            ("measured on every node", vec![&good, &none], "in part, 1 value; 1 not measured (n3: no torch)"),
            ("measured on every node", vec![&none], "not measured (n3: no torch)"),
            ("= 0", vec![], "not measured"),
        ] {
            assert_eq!(said(rule, &records), expected);
        }
        let stage = STAGES.iter().find(|stage| stage.name == "gemm").unwrap();
        let lines = lines(stage, &[good, bad]);
        assert_eq!(lines.len(), stage.success.len());
        assert!(lines.iter().any(|line| line.contains("gemm_wrong = 0: NO, 1 of 2")), "{lines:?}");
    }
}
