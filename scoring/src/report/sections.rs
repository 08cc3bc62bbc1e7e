//! The sections of the HTML report that are read: categories, gates, sensitivity, figures, criteria, values.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::html::{Page, badge, escape, section, share};
use crate::explain::measure_text;
use crate::judge::{Micro, Observed, Outcome, Verdict};
use crate::load::{Entry, Key, number, params_text};
use crate::methodology::Criterion;
use crate::rating::{Bounds, percent, tier_name};
use crate::record::State;
use crate::report::first;
use crate::report::{groups, reference_text, references, svg, table};

/// Rows of a table of single values; of more than that many, what is alike is one row.
const ROWS: usize = 2_000;

fn unit(unit: &str) -> String {
    if unit.is_empty() { String::new() } else { format!(" {}", escape(unit)) }
}

impl Page<'_> {
    pub(super) fn categories(&self, out: &mut String) {
        section(out, "categories", "Categories");
        let (decided, listed) =
            (self.evaluation.methodology.criteria.len(), self.evaluation.methodology.listed.len());
        let _ = writeln!(
            out,
            "<p>{decided} of the {listed} listed criteria are decided by this methodology. The bar spans lower to upper bound, its mark is the score over what was seen. The last row is the geometric mean over the categories.</p>"
        );
        table::CATEGORIES.open(out, "Categories", false);
        let row = |name: &str, weight: u32, bounds: Option<Bounds>, counts: [usize; 5]| {
            let bar = bounds
                .map(|bounds| svg::bounds(share(bounds.lower), share(bounds.upper), bounds.score.map(share)));
            let cell = |value: Option<Micro>| {
                format!("<td class=\"num\">{}</td>", value.map_or_else(|| "none".to_owned(), percent))
            };
            let counts: String =
                counts.iter().map(|count| format!("<td class=\"num\">{count}</td>")).collect();
            format!(
                "<tr><th scope=\"row\">{}</th><td class=\"num\">{weight} %</td><td>{}</td>{}{}{}{}{counts}</tr>\n",
                escape(name),
                bar.unwrap_or_default(),
                cell(bounds.and_then(|bounds| bounds.score)),
                cell(bounds.map(|bounds| bounds.coverage)),
                cell(bounds.map(|bounds| bounds.lower)),
                cell(bounds.map(|bounds| bounds.upper)),
            )
        };
        let mut total = [0; 5];
        for category in &self.evaluation.rating.categories {
            for (sum, count) in total.iter_mut().zip(category.counts) {
                *sum += count;
            }
            out.push_str(&row(&category.name, category.weight, category.bounds, category.counts));
        }
        out.push_str("</tbody>\n<tbody class=\"sum\">\n");
        out.push_str(&row("All", 100, Some(self.evaluation.rating.bounds), total));
        table::close(out);
        out.push_str("</section>\n");
    }

    pub(super) fn gates(&self, out: &mut String) {
        section(out, "gates", "Gates");
        out.push_str("<p>A gate that is seen to fail makes the tier Underperforming; one that nobody assessed leaves Bronze at best.</p>\n");
        table::GATES.open(out, "Gates", false);
        for gate in &self.evaluation.rating.gates {
            let text = self
                .evaluation
                .methodology
                .criterion(&gate.id)
                .map_or("", |criterion| criterion.text.as_str());
            let _ = writeln!(
                out,
                "<tr><th scope=\"row\" class=\"id\">{}</th><td>{}</td><td class=\"wide\">{}</td><td class=\"small soft break\">{}</td></tr>",
                escape(&gate.id),
                badge(gate.word()),
                escape(text),
                escape(&gate.reason)
            );
        }
        table::close(out);
        out.push_str("</section>\n");
    }

    pub(super) fn sensitivity(&self, out: &mut String) {
        let rating = &self.evaluation.rating;
        if !rating.not_rated.is_empty() {
            return;
        }
        let found = &self.evaluation.sensitivity;
        let rules = &self.evaluation.methodology.rules;
        section(out, "sensitivity", "How firm it is");
        for sentence in super::text::sensitivity_sentences(self.evaluation) {
            let _ = writeln!(out, "<p>{}</p>", escape(&sentence));
        }
        self.weight_plot(out);
        out.push_str("<h3>Other weights</h3>\n");
        table::DRAWS.open(out, "Other weights", false);
        let mut tiers: Vec<(&String, &u32)> = found.draws.tiers.iter().collect();
        tiers.sort_by_key(|(tier, _)| crate::rating::place(&rules.tier, tier));
        for (tier, count) in tiers {
            let part = f64::from(*count) / f64::from(rules.sensitivity.draws.max(1));
            let _ = writeln!(
                out,
                "<tr><th scope=\"row\">{}</th><td>{}</td><td class=\"num\">{}</td></tr>",
                escape(tier_name(&rules.tier, tier)),
                svg::bounds(0.0, part, None),
                percent(crate::judge::micro(part))
            );
        }
        table::close(out);
        out.push_str("<h3>Without one category</h3>\n");
        table::WITHOUT.open(out, "Without one category", false);
        for one in &found.without {
            let name = rules.category.iter().find(|category| category.id == one.category);
            let _ = writeln!(
                out,
                "<tr><th scope=\"row\">{}</th><td>{}</td><td class=\"num\">{}</td><td class=\"num\">{}</td><td>{}</td></tr>",
                escape(name.map_or(&one.category, |category| &category.name)),
                escape(tier_name(&rules.tier, &one.estimate.tier)),
                percent(one.bounds.lower),
                one.bounds.score.map_or_else(|| "none".to_owned(), percent),
                escape(&one.estimate.decided_by.replace('_', " "))
            );
        }
        table::close(out);
        if !found.lifts.is_empty() {
            out.push_str("<h3>What would lift it most</h3>\n<p>Each criterion alone, passed in full.</p>\n");
            table::LIFTS.open(out, "What would lift it most", false);
            for lift in &found.lifts {
                let text = self
                    .evaluation
                    .methodology
                    .criterion(&lift.criterion)
                    .map_or("", |one| one.text.as_str());
                let _ = writeln!(
                    out,
                    "<tr><th scope=\"row\" class=\"id\">{}</th><td class=\"wide\">{}</td><td class=\"num\">{}</td><td>{}</td></tr>",
                    escape(&lift.criterion),
                    escape(text),
                    percent(lift.lower),
                    escape(tier_name(&rules.tier, &lift.tier))
                );
            }
            table::close(out);
        }
        out.push_str("</section>\n");
    }

    pub(super) fn measured(&self, out: &mut String) {
        section(out, "measured", "Measured");
        out.push_str("<p>Figures of the stages that take time; the strip shows every node's value from 0 to the largest.</p>\n");
        table::MEASURED.open(out, "Measured", false);
        for group in groups(&self.evaluation.loaded) {
            let skipped = matches!(group.metric, "algbw" | "event")
                || matches!(group.stage, "audit" | "inventory" | "evidence");
            let swept = group.values.iter().any(|(_, key, _)| key.params.contains_key("size"));
            if skipped || swept {
                continue;
            }
            let values: Vec<f64> = group.values.iter().map(|(value, ..)| *value).collect();
            let (Some(lowest), Some(highest)) = (values.first(), values.last()) else { continue };
            let _ = writeln!(
                out,
                "<tr><td>{}</td><th scope=\"row\">{}</th><td class=\"small wide\">{}</td><td>{}</td><td class=\"num\">{}</td><td class=\"num\">{}</td>\
                 <td class=\"num\">{}</td><td>{}</td><td class=\"num\">{}</td></tr>",
                escape(group.stage),
                escape(group.metric),
                escape(&group.label()),
                if values.len() > 1 { svg::strip(&values) } else { String::new() },
                number(*lowest),
                number(group.median()),
                number(*highest),
                escape(group.unit),
                values.len()
            );
        }
        table::close(out);
        out.push_str("</section>\n");
    }

    pub(super) fn criteria(&self, out: &mut String) {
        section(out, "criteria", "Criteria");
        out.push_str(
            "<p>What failed first, then what is unknown, then what passed. <code>clustermax explain CRITERION DIR</code> prints one of them in full.</p>\n\
             <fieldset class=\"choice\"><legend>Show</legend>\
             <label><input type=\"radio\" name=\"show\" id=\"show-all\" checked> all</label>\
             <label><input type=\"radio\" name=\"show\" id=\"show-open\"> only what did not pass in full</label></fieldset>\n",
        );
        let mut cache = BTreeMap::new();
        for category in &self.evaluation.rating.categories {
            let mut rows: Vec<(&Criterion, &Verdict)> =
                self.evaluation.judged().filter(|(criterion, _)| criterion.category == category.id).collect();
            if rows.is_empty() {
                continue;
            }
            let order = |outcome| match outcome {
                Outcome::Fail => 0,
                Outcome::Unknown => 1,
                Outcome::Unavailable => 2,
                Outcome::Pass => 3,
                Outcome::NotApplicable => 4,
            };
            rows.sort_by_key(|(_, verdict)| (order(verdict.outcome), verdict.value));
            let _ = writeln!(out, "<h3>{}</h3>", escape(&category.name));
            table::CRITERIA.open(out, &format!("Criteria: {}", category.name), false);
            for (criterion, verdict) in rows {
                self.criterion(criterion, verdict, &mut cache, out);
            }
            table::close(out);
        }
        out.push_str("</section>\n");
    }

    fn criterion(
        &self,
        criterion: &Criterion,
        verdict: &Verdict,
        cache: &mut BTreeMap<usize, Option<serde_json::Value>>,
        out: &mut String,
    ) {
        let mend = first::mend(self.evaluation, &criterion.id, cache)
            .map(|mend| format!("<div><b>Mend:</b> {}</div>", escape(&mend)))
            .unwrap_or_default();
        let gate = if criterion.gate.is_some() { " <span class=\"badge none\">gate</span>" } else { "" };
        let rules: Vec<String> = criterion.measures.iter().map(measure_text).collect();
        let source = self.evaluation.methodology.rules.sources.get(&criterion.source);
        let source = match source {
            Some(source) => format!("{}, {} ({})", source.text, source.url, criterion.date),
            None => format!("{}, {}", criterion.source, criterion.date),
        };
        let references: String = references(self.evaluation, &self.judge, criterion, verdict)
            .into_iter()
            .map(|one| format!("<div class=\"small soft\">{}</div>", escape(&reference_text(one))))
            .collect();
        let done =
            matches!(verdict.outcome, Outcome::NotApplicable) || verdict.value == Some(crate::judge::ONE);
        let class = if done { " class=\"done\"" } else { "" };
        let seen: String = verdict.observed.iter().map(|one| self.observed(one)).collect();
        let settled = matches!(verdict.outcome, Outcome::Pass | Outcome::Fail);
        let reason = if settled { String::new() } else { escape(&verdict.reason) };
        let (asked, known) = verdict.instances;
        let count = if asked > 1 && known > 0 {
            format!("<div class=\"small soft\">{known} of {asked} have a value</div>")
        } else {
            String::new()
        };
        let _ = writeln!(
            out,
            "<tr{class}><th scope=\"row\" class=\"id\">{}{gate}</th><td>{}</td><td class=\"num\">{}</td><td class=\"num\">{}</td>\
             <td class=\"wide\">{}<div class=\"small soft\">{}</div><div class=\"small soft\">Source: {}</div>{references}</td><td class=\"small break\">{seen}{reason}{count}{mend}</td></tr>",
            escape(&criterion.id),
            badge(verdict.outcome.word()),
            verdict.value.map_or_else(String::new, percent),
            criterion.weight,
            escape(&criterion.text),
            escape(&rules.join("; ")),
            escape(&source),
        );
    }

    fn observed(&self, one: &Observed) -> String {
        format!(
            "<div>{}{}: <b>{}{}</b> ({}) <span class=\"small\">{}</span></div>",
            escape(&one.metric),
            escape(&one.params),
            number(one.value),
            unit(&one.unit),
            escape(&one.subject.to_string()),
            self.link(&one.evidence)
        )
    }

    pub(super) fn undecided(&self, out: &mut String) {
        let rows = &self.evaluation.methodology.undecided;
        if rows.is_empty() {
            return;
        }
        section(out, "undecided", "Not decided yet");
        let _ = writeln!(
            out,
            "<p>{} listed criteria are outside every figure: this methodology does not decide them yet.</p>",
            rows.len()
        );
        table::UNDECIDED.open(out, "Not decided yet", true);
        for criterion in rows {
            let _ = writeln!(
                out,
                "<tr><th scope=\"row\" class=\"id\">{}</th><td class=\"wide\">{}</td><td class=\"small soft break\">{}</td></tr>",
                escape(&criterion.id),
                escape(&criterion.text),
                escape(criterion.undecided.as_deref().unwrap_or_default())
            );
        }
        table::close(out);
        out.push_str("</section>\n");
    }

    /// Every value, or of a large cluster what is alike in one row.
    pub(super) fn values(&self, out: &mut String) {
        let loaded = &self.evaluation.loaded;
        let rows: Vec<(&Key, &Entry)> =
            loaded.entries.iter().filter(|(_, entry)| entry.state == State::Measured).collect();
        section(out, "values", "All values");
        let _ = writeln!(
            out,
            "<p>{} measured values. The evidence links to the raw output that the value was read from; its digest was verified.</p>",
            rows.len()
        );
        out.push_str("<p class=\"paper\">They are not printed; records.jsonl has them.</p>\n");
        let doubted = |entry: &Entry| {
            let flaw = entry.flaw.as_ref();
            flaw.map(|flaw| format!("<div class=\"small\">{} {}</div>", badge("unknown"), escape(flaw)))
        };
        let plain = |key: &Key| escape(params_text(&key.params).trim_start_matches(", "));
        let all = rows.len() <= ROWS;
        if !all {
            let _ = writeln!(
                out,
                "<p>More than {ROWS}, so values that differ only in node, GPU, rank, peer or message size share a row; records.jsonl has each.</p>"
            );
            table::SPREAD.open(out, "All values", true);
            for group in groups(loaded).iter().take(ROWS) {
                let (Some((lowest, _, entry)), Some((highest, ..))) =
                    (group.values.first(), group.values.last())
                else {
                    continue;
                };
                let _ = writeln!(
                    out,
                    "<tr><td>{}</td><th scope=\"row\">{}</th><td class=\"small break\">{}</td><td class=\"num\">{}</td><td class=\"num\">{}{unit}</td>\
                     <td class=\"num\">{}{unit}</td><td class=\"num\">{}{unit}</td><td class=\"small break\">{}</td></tr>",
                    escape(group.stage),
                    escape(group.metric),
                    escape(&group.label()),
                    group.values.len(),
                    number(*lowest),
                    number(group.median()),
                    number(*highest),
                    self.link(&entry.evidence),
                    unit = unit(group.unit)
                );
            }
            table::close(out);
        }
        let single: Vec<&(&Key, &Entry)> =
            rows.iter().filter(|(_, entry)| all || entry.flaw.is_some()).collect();
        if !all && !single.is_empty() {
            let _ = writeln!(out, "<h3>Not believed: {}</h3>", single.len());
        }
        if !single.is_empty() {
            table::VALUES.open(out, "Single values", true);
            for (key, entry) in single.iter().take(ROWS) {
                let _ = writeln!(
                    out,
                    "<tr><td>{}</td><th scope=\"row\">{}</th><td class=\"small break\">{}</td><td class=\"id\">{}</td><td class=\"num\">{}{}</td><td class=\"small break\">{}{}</td></tr>",
                    escape(&key.stage),
                    escape(&key.metric),
                    plain(key),
                    escape(&key.subject.to_string()),
                    number(entry.value.unwrap_or_default()),
                    unit(&entry.unit),
                    self.link(&entry.evidence),
                    doubted(entry).unwrap_or_default()
                );
            }
            table::close(out);
        }
        out.push_str("</section>\n");
    }

    /// What has no value: one row a reason.
    pub(super) fn without_value(&self, out: &mut String) {
        let mut reasons: BTreeMap<(&str, &str, &str, &str), BTreeMap<String, usize>> = BTreeMap::new();
        for (key, entry) in &self.evaluation.loaded.entries {
            let state = match entry.state {
                State::Measured => continue,
                State::NotApplicable => Outcome::NotApplicable,
                State::Unavailable => Outcome::Unavailable,
                State::Unknown => Outcome::Unknown,
            };
            let why = entry.detail.as_deref().unwrap_or("no reason given");
            let of = reasons.entry((&key.stage, &key.metric, state.word(), why)).or_default();
            *of.entry(key.subject.to_string()).or_default() += 1;
        }
        if reasons.is_empty() {
            return;
        }
        section(out, "without", "What could not be measured");
        table::ABSENT.open(out, "What could not be measured", reasons.len() > 20);
        for ((stage, metric, state, why), subjects) in reasons.iter().take(ROWS) {
            let mut names: Vec<&str> = subjects.keys().map(String::as_str).collect();
            let more = names.len().saturating_sub(6);
            names.truncate(6);
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            let _ = writeln!(
                out,
                "<tr><td>{}</td><th scope=\"row\">{}</th><td>{}</td><td class=\"small break\">{}</td><td class=\"num\">{}</td><td class=\"small break\">{}{more}</td></tr>",
                escape(stage),
                escape(metric),
                badge(state),
                escape(why),
                subjects.values().sum::<usize>(),
                escape(&names.join(", "))
            );
        }
        table::close(out);
        out.push_str("</section>\n");
    }
}
