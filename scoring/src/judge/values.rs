//! Values of records to scores in [0, 1], by a rule or by a reference value.

use std::collections::BTreeSet;

use super::{Evidence, Instance, Micro, micro, observed, why};
use crate::load::{Entry, Key, number, params_text};
use crate::methodology::{Measure, Per, Reference, Rule};
use crate::record::State;

impl<'a> Evidence<'a> {
    pub(super) fn spread(
        &self,
        measure: &Measure,
        points: &[[f64; 2]],
        found: &[(&'a Key, &'a Entry)],
    ) -> Instance {
        let mut values = Vec::new();
        let mut nodes = BTreeSet::new();
        for (key, entry) in found {
            match entry.believed() {
                Some(value) => {
                    values.push((value, *key, *entry));
                    nodes.extend(key.subject.node.as_deref());
                }
                None if entry.state == State::Unavailable => return Instance::Unavailable(why(key, entry)),
                None => return Instance::Unknown(why(key, entry)),
            }
        }
        if measure.complete == Some(Per::Node) {
            let missing: Vec<&str> =
                self.nodes.iter().copied().filter(|node| !nodes.contains(node)).collect();
            if !missing.is_empty() {
                return Instance::Unknown(format!(
                    "no record of {} for {}",
                    measure.metric,
                    missing.join(", ")
                ));
            }
        }
        values.sort_by(|a, b| a.0.total_cmp(&b.0));
        if values.len() < 2 {
            return Instance::Unavailable(format!("one record of {} has no spread", measure.metric));
        }
        let middle = values.len() / 2;
        let median = if values.len() % 2 == 1 {
            values[middle].0
        } else {
            f64::midpoint(values[middle - 1].0, values[middle].0)
        };
        let (largest, key, entry) = values[values.len() - 1];
        if median <= 0.0 {
            return Instance::Unknown(format!("the median of {} is {}", measure.metric, number(median)));
        }
        let score = micro(curve(points, largest / median - 1.0));
        Instance::seen(score, observed(key, entry, largest, score))
    }

    /// A record's score, or why it has none.
    pub(super) fn score(&self, measure: &Measure, key: &Key, entry: &Entry) -> Result<Micro, String> {
        let value = entry.believed().ok_or_else(|| why(key, entry))?;
        let score = match &measure.rule {
            Rule::Flag { pass } => f64::from(u8::from(value == f64::from(*pass))),
            Rule::AtMost { limit } => f64::from(u8::from(value <= *limit)),
            Rule::AtLeast { limit } => f64::from(u8::from(value >= *limit)),
            Rule::Curve { points } => curve(points, value),
            Rule::AnyText { param, values } => {
                let text = key.params.get(param).map(ToString::to_string).unwrap_or_default();
                if !values.contains(&text) {
                    return Err(format!("{param} {text:?} neither proves nor disproves it"));
                }
                1.0
            }
            // Judged over all records of an instance.
            Rule::Spread { .. } => return Err("a spread needs several records".to_owned()),
            Rule::Reference => {
                let reference = self.reference(key)?;
                if value > reference.ceiling {
                    return Err(format!(
                        "{} {} is impossible, the ceiling is {} ({}; {})",
                        number(value),
                        entry.unit,
                        number(reference.ceiling),
                        reference.basis,
                        reference.id
                    ));
                }
                curve(&reference.points(), value)
            }
        };
        Ok(micro(score))
    }

    /// The row of references.tsv that fits a record of this run's GPU model.
    ///
    /// # Errors
    /// Why none fits.
    pub fn reference(&self, key: &Key) -> Result<&'a Reference, String> {
        let model = self.model().map_err(str::to_owned)?;
        let whole = |name: &str| key.params.get(name).and_then(crate::record::Scalar::as_f64);
        let fits =
            |wanted: Option<i64>, name: &str| wanted.is_none_or(|wanted| whole(name) == Some(wanted as f64));
        self.methodology
            .references
            .iter()
            .find(|reference| {
                key.metric == reference.metric
                    && reference.gpus.iter().any(|gpu| gpu == model)
                    && reference.params.iter().all(|(param, value)| key.params.get(param) == Some(value))
                    && fits(reference.nodes, "nodes")
                    && fits(reference.ranks, "ranks")
                    && reference
                        .size_min
                        .is_none_or(|least| whole("size").is_some_and(|size| size >= least as f64))
            })
            .ok_or_else(|| format!("there is no reference value for {model}{}", params_text(&key.params)))
    }
}

/// Piecewise linear, constant beyond the ends. `points` has rising values.
pub fn curve(points: &[[f64; 2]], value: f64) -> f64 {
    let mut before: Option<[f64; 2]> = None;
    for point in points {
        if value <= point[0] {
            return match before {
                None => point[1],
                Some(low) => {
                    let share = (value - low[0]) / (point[0] - low[0]);
                    low[1] + share * (point[1] - low[1])
                }
            };
        }
        before = Some(*point);
    }
    before.map_or(0.0, |last| last[1])
}
