//! The HTML report: one file, no script, nothing loaded from elsewhere, readable on paper and in dark mode.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::explain::measure_text;
use crate::judge::{Micro, ONE, Observed, Outcome, Verdict};
use crate::load::{Entry, Key, Name, number, params_text};
use crate::methodology::Criterion;
use crate::rating::{Bounds, percent, tier_name};
use crate::record::State;
use crate::report::first::{self, Effect};
use crate::report::{groups, svg};
use crate::score::Evaluation;

pub(crate) const STYLE: &str = include_str!("style.css");

/// Nodes that the head names.
const NODES: usize = 24;

/// Rows of the table of all values; more are in records.jsonl only.
const ROWS: usize = 20_000;

/// Text for HTML content and quoted attributes.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            letter if letter.is_control() => out.push('?'),
            letter => out.push(letter),
        }
    }
    out
}

/// A relative path for `href`: everything but plain characters is percent-encoded, so no scheme can appear.
fn url(path: &str) -> String {
    let mut out = String::with_capacity(path.len() + 2);
    for byte in path.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' | b'/' => {
                out.push(byte as char)
            }
            // Writing to a String cannot fail; so it is for every write! of this file.
            _ => {
                let _ = write!(out, "%{byte:02X}");
            }
        }
    }
    out
}

/// The page. `base` is the relative path from the report to the results folder: empty or ending in `/`.
pub fn render(evaluation: &Evaluation, base: &str) -> String {
    let page = Page { evaluation, base };
    let mut out = String::with_capacity(1 << 16);
    let run = &evaluation.loaded.run;
    let _ = write!(
        out,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <link rel=\"icon\" href=\"data:,\">\n<title>ClusterMAX: {}, {}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n\
         <a class=\"skip\" href=\"#main\">Skip to the rating</a>\n<div class=\"wrap\">\n",
        escape(&run.cluster),
        escape(evaluation.headline()),
    );
    page.header(&mut out);
    out.push_str("<main id=\"main\">\n");
    page.rating(&mut out);
    page.categories(&mut out);
    page.gates(&mut out);
    page.sensitivity(&mut out);
    page.faults(&mut out);
    page.timeline(&mut out);
    page.bandwidth(&mut out);
    page.heat(&mut out);
    page.burnin(&mut out);
    page.stragglers(&mut out);
    page.measured(&mut out);
    page.criteria(&mut out);
    page.undecided(&mut out);
    page.values(&mut out);
    page.without_value(&mut out);
    out.push_str("</main>\n");
    page.footer(&mut out);
    out.push_str("</div>\n</body>\n</html>\n");
    out
}

pub(super) struct Page<'a> {
    pub(super) evaluation: &'a Evaluation,
    base: &'a str,
}

fn share(value: Micro) -> f64 {
    f64::from(value) / f64::from(ONE)
}

fn badge(word: &str) -> String {
    let class = match word {
        "pass" | "passed" => "pass",
        "fail" | "failed" => "fail",
        "unknown" => "unknown",
        _ => "none",
    };
    format!("<span class=\"badge {class}\">{}</span>", word.replace('_', " "))
}

pub(super) fn section(out: &mut String, id: &str, title: &str) {
    let _ = write!(out, "<section class=\"card\" aria-labelledby=\"{id}\">\n<h2 id=\"{id}\">{title}</h2>\n");
}

/// A region that scrolls sideways (or, with `tall`, down) and can be reached by keyboard.
pub(super) fn scroll(out: &mut String, label: &str, tall: bool) {
    let class = if tall { "scroll tall" } else { "scroll" };
    let _ = writeln!(
        out,
        "<div class=\"{class}\" role=\"region\" tabindex=\"0\" aria-label=\"{}, table\">",
        escape(label)
    );
}

fn unit(unit: &str) -> String {
    if unit.is_empty() { String::new() } else { format!(" {}", escape(unit)) }
}

impl Page<'_> {
    fn link(&self, evidence: &Option<(usize, Option<Name>)>) -> String {
        let Some((file, pointer)) = evidence else {
            return "<span class=\"soft\">none</span>".to_owned();
        };
        let raw = &self.evaluation.loaded.files[*file];
        let name = raw.file.strip_prefix("raw/").unwrap_or(&raw.file);
        let pointer =
            pointer.as_deref().map(|pointer| format!(" <span class=\"soft\">{}</span>", escape(pointer)));
        if raw.outside {
            return format!("{}{}", escape(name), pointer.unwrap_or_default());
        }
        format!(
            "<a href=\"{}\" title=\"sha256 {}\">{}</a>{}",
            url(&format!("{}{}", self.base, raw.file)),
            escape(&raw.sha256),
            escape(name),
            pointer.unwrap_or_default()
        )
    }

    fn header(&self, out: &mut String) {
        let loaded = &self.evaluation.loaded;
        let run = &loaded.run;
        let rules = &self.evaluation.methodology.rules;
        out.push_str("<header>\n<h1>ClusterMAX for Slurm</h1>\n<dl class=\"facts\">\n");
        let hardware = match (run.hardware, run.simulated) {
            (crate::run::Hardware::Cpu, false) => "CPU only",
            (crate::run::Hardware::Cpu, true) => "CPU only, simulated GPUs and fabric",
            (crate::run::Hardware::Gpu, false) => "GPU",
            (crate::run::Hardware::Gpu, true) => "GPU, simulated",
        };
        let more = run.nodes.len().saturating_sub(NODES);
        let mut nodes = format!("{} ({}", run.nodes.len(), run.nodes[..run.nodes.len() - more].join(" "));
        nodes.push_str(&if more > 0 { format!(" and {more} more)") } else { ")".to_owned() });
        for (name, value) in [
            ("Cluster", run.cluster.as_str()),
            ("Run", &run.run),
            ("Profile", &run.profile),
            ("Job", run.job.as_deref().unwrap_or("none")),
            ("Nodes", &nodes),
            ("Hardware", hardware),
            ("Started", &run.started),
            ("Methodology", &rules.methodology),
        ] {
            let _ = writeln!(out, "<div><dt>{name}</dt><dd>{}</dd></div>", escape(value));
        }
        out.push_str("</dl>\n<nav aria-label=\"Sections\"><ul>\n");
        let mut links = vec![("categories", "Categories"), ("gates", "Gates")];
        if self.evaluation.rating.not_rated.is_empty() {
            links.push(("sensitivity", "How firm"));
        }
        links.extend(self.plotted());
        links.extend([("measured", "Measured"), ("criteria", "Criteria"), ("values", "All values")]);
        for (id, name) in links {
            let _ = writeln!(out, "<li><a href=\"#{id}\">{name}</a></li>");
        }
        out.push_str("</ul></nav>\n</header>\n");
    }

    fn rating(&self, out: &mut String) {
        let rating = &self.evaluation.rating;
        let rules = &self.evaluation.methodology.rules;
        let _ = write!(
            out,
            "<section class=\"card\" aria-labelledby=\"rating\">\n<h2 id=\"rating\" class=\"headline\">{}</h2>\n",
            escape(self.evaluation.headline())
        );
        if rating.not_rated.is_empty() {
            let estimate = &rating.estimate;
            let _ = writeln!(
                out,
                "<p class=\"why\">Decided by {}: {}.</p>",
                escape(&estimate.decided_by.replace('_', " ")),
                escape(&estimate.because)
            );
            if estimate.by_score != estimate.tier {
                let _ = writeln!(
                    out,
                    "<p>The lower bound alone would give {}.</p>",
                    escape(tier_name(&rules.tier, &estimate.by_score))
                );
            }
            let more: Vec<String> = estimate
                .caps
                .iter()
                .filter(|cap| cap.id != estimate.decided_by)
                .map(|cap| format!("{}, {}", tier_name(&rules.tier, &cap.tier), cap.reason))
                .collect();
            if !more.is_empty() {
                let _ = writeln!(
                    out,
                    "<p class=\"soft\">Other caps that apply: {}.</p>",
                    escape(&more.join("; "))
                );
            }
        } else {
            let _ = write!(
                out,
                "<p class=\"why\">No tier, because {}.</p>\n<p>Everything that was measured is below; it says nothing about GPUs.</p>\n",
                escape(&rating.not_rated.join("; "))
            );
        }
        let _ = write!(out, "<p class=\"notice\">{}</p>\n<div class=\"tiles\">\n", escape(&rules.notice));
        let bounds = rating.bounds;
        for (value, name) in [
            (bounds.score.map_or_else(|| "none".to_owned(), percent), "score over what was seen"),
            (percent(bounds.coverage), "coverage: weight that was seen"),
            (percent(bounds.lower), "lower bound: the unseen counts 0"),
            (percent(bounds.upper), "upper bound: the unseen counts 1"),
        ] {
            let _ = writeln!(out, "<div class=\"tile\"><b>{value}</b><span>{name}</span></div>");
        }
        out.push_str("</div>\n");
        self.first(out);
        out.push_str("</section>\n");
    }

    /// What to fix first: on the first screen, since it is why most people open the page.
    fn first(&self, out: &mut String) {
        let steps = first::steps(self.evaluation);
        if steps.is_empty() {
            return;
        }
        out.push_str("<h3>What to fix first</h3>\n<ol class=\"first\">\n");
        for step in steps {
            let effect = match step.effect {
                Effect::GateFailed => badge("failed"),
                Effect::GateUnknown => "<span class=\"badge unknown\">not assessed</span>".to_owned(),
                Effect::Lower(lower) => {
                    format!("<span class=\"soft id\">lower bound {}</span>", percent(lower))
                }
            };
            let mend = step
                .mend
                .map(|mend| format!("<div class=\"small break\"><b>Mend:</b> {}</div>", escape(&mend)))
                .unwrap_or_default();
            let _ = writeln!(
                out,
                "<li><b class=\"id\">{}</b> {} {effect}<div class=\"small soft break\">{}</div>{mend}</li>",
                escape(&step.criterion),
                escape(&step.text),
                escape(&step.why)
            );
        }
        out.push_str("</ol>\n");
    }

    fn categories(&self, out: &mut String) {
        section(out, "categories", "Categories");
        let (decided, listed) =
            (self.evaluation.methodology.criteria.len(), self.evaluation.methodology.listed.len());
        let _ = writeln!(
            out,
            "<p>{decided} of the {listed} listed criteria are decided by this methodology. The bar spans lower to upper bound, its mark is the score over what was seen. The last row is the geometric mean over the categories.</p>"
        );
        scroll(out, "Categories", false);
        out.push_str(
            "<table>\n<thead><tr><th scope=\"col\">Category</th><th scope=\"col\" class=\"num\">Weight</th><th scope=\"col\">0 to 100 %</th>\
             <th scope=\"col\" class=\"num\">Score</th><th scope=\"col\" class=\"num\">Coverage</th><th scope=\"col\" class=\"num\">Lower</th>\
             <th scope=\"col\" class=\"num\">Upper</th><th scope=\"col\" class=\"num\">Pass</th><th scope=\"col\" class=\"num\">Fail</th>\
             <th scope=\"col\" class=\"num\">Unknown</th><th scope=\"col\" class=\"num\">Unavail.</th><th scope=\"col\" class=\"num\">N/A</th></tr></thead>\n<tbody>\n",
        );
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
        out.push_str("</tbody>\n<tfoot>\n");
        out.push_str(&row("All", 100, Some(self.evaluation.rating.bounds), total));
        out.push_str("</tfoot>\n</table>\n</div>\n</section>\n");
    }

    fn gates(&self, out: &mut String) {
        section(out, "gates", "Gates");
        out.push_str("<p>A gate that is seen to fail makes the tier Underperforming; one that nobody assessed leaves Bronze at best.</p>\n");
        scroll(out, "Gates", false);
        out.push_str("<table>\n<thead><tr><th scope=\"col\">Criterion</th><th scope=\"col\">State</th><th scope=\"col\">What it asks</th><th scope=\"col\">Why</th></tr></thead>\n<tbody>\n");
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
        out.push_str("</tbody>\n</table>\n</div>\n</section>\n");
    }

    fn sensitivity(&self, out: &mut String) {
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
        scroll(out, "Other weights", false);
        out.push_str("<table>\n<thead><tr><th scope=\"col\">Tier</th><th scope=\"col\">Draws</th><th scope=\"col\" class=\"num\">Share</th></tr></thead>\n<tbody>\n");
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
        out.push_str("</tbody>\n</table>\n</div>\n<h3>Without one category</h3>\n");
        scroll(out, "Without one category", false);
        out.push_str("<table>\n<thead><tr><th scope=\"col\">Left out</th><th scope=\"col\">Tier</th><th scope=\"col\" class=\"num\">Lower</th><th scope=\"col\" class=\"num\">Score</th><th scope=\"col\">Decided by</th></tr></thead>\n<tbody>\n");
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
        out.push_str("</tbody>\n</table>\n</div>\n");
        if !found.lifts.is_empty() {
            out.push_str("<h3>What would lift it most</h3>\n<p>Each criterion alone, passed in full.</p>\n");
            scroll(out, "What would lift it most", false);
            out.push_str("<table>\n<thead><tr><th scope=\"col\">Criterion</th><th scope=\"col\">What it asks</th><th scope=\"col\" class=\"num\">Lower bound</th><th scope=\"col\">Tier</th></tr></thead>\n<tbody>\n");
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
            out.push_str("</tbody>\n</table>\n</div>\n");
        }
        out.push_str("</section>\n");
    }

    fn measured(&self, out: &mut String) {
        section(out, "measured", "Measured");
        out.push_str("<p>Figures of the stages that take time; the strip shows every node's value from 0 to the largest.</p>\n");
        scroll(out, "Measured", false);
        out.push_str(
            "<table>\n<thead><tr><th scope=\"col\">Stage</th><th scope=\"col\">Metric</th><th scope=\"col\">Of</th><th scope=\"col\">Values</th>\
             <th scope=\"col\" class=\"num\">Lowest</th><th scope=\"col\" class=\"num\">Median</th><th scope=\"col\" class=\"num\">Highest</th>\
             <th scope=\"col\">Unit</th><th scope=\"col\" class=\"num\">Count</th></tr></thead>\n<tbody>\n",
        );
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
        out.push_str("</tbody>\n</table>\n</div>\n</section>\n");
    }

    fn criteria(&self, out: &mut String) {
        section(out, "criteria", "Criteria");
        out.push_str("<p>Worst values first. <code>clustermax explain CRITERION DIR</code> prints one of them in full.</p>\n");
        let mut cache = BTreeMap::new();
        for category in &self.evaluation.rating.categories {
            let rows: Vec<(&Criterion, &Verdict)> =
                self.evaluation.judged().filter(|(criterion, _)| criterion.category == category.id).collect();
            if rows.is_empty() {
                continue;
            }
            let _ = writeln!(out, "<h3>{}</h3>", escape(&category.name));
            scroll(out, &format!("Criteria: {}", category.name), false);
            out.push_str(
                "<table>\n<thead><tr><th scope=\"col\">Criterion</th><th scope=\"col\">State</th><th scope=\"col\" class=\"num\">Value</th>\
                 <th scope=\"col\" class=\"num\">Weight</th><th scope=\"col\">What it asks</th><th scope=\"col\">Observed</th></tr></thead>\n<tbody>\n",
            );
            for (criterion, verdict) in rows {
                self.criterion(criterion, verdict, &mut cache, out);
            }
            out.push_str("</tbody>\n</table>\n</div>\n");
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
            Some(source) => format!("{}, {}", source.text, criterion.date),
            None => format!("{}, {}", criterion.source, criterion.date),
        };
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
            "<tr><th scope=\"row\" class=\"id\">{}{gate}</th><td>{}</td><td class=\"num\">{}</td><td class=\"num\">{}</td>\
             <td class=\"wide\">{}<div class=\"small soft\">{}</div><div class=\"small soft\">Source: {}</div></td><td class=\"small break\">{seen}{reason}{count}{mend}</td></tr>",
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

    fn undecided(&self, out: &mut String) {
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
        scroll(out, "Not decided yet", true);
        out.push_str("<table>\n<thead><tr><th scope=\"col\">Criterion</th><th scope=\"col\">What it asks</th><th scope=\"col\">Why not yet</th></tr></thead>\n<tbody>\n");
        for criterion in rows {
            let _ = writeln!(
                out,
                "<tr><th scope=\"row\" class=\"id\">{}</th><td class=\"wide\">{}</td><td class=\"small soft break\">{}</td></tr>",
                escape(&criterion.id),
                escape(&criterion.text),
                escape(criterion.undecided.as_deref().unwrap_or_default())
            );
        }
        out.push_str("</tbody>\n</table>\n</div>\n</section>\n");
    }

    fn values(&self, out: &mut String) {
        let rows: Vec<(&Key, &Entry)> = self
            .evaluation
            .loaded
            .entries
            .iter()
            .filter(|(_, entry)| entry.state == State::Measured)
            .collect();
        section(out, "values", "All values");
        let _ = writeln!(
            out,
            "<p>{} measured values. The evidence links to the raw output that the value was read from; its digest was verified.</p>",
            rows.len()
        );
        scroll(out, "All values", true);
        out.push_str(
            "<table>\n<thead><tr><th scope=\"col\">Stage</th><th scope=\"col\">Metric</th><th scope=\"col\">Params</th><th scope=\"col\">Subject</th>\
             <th scope=\"col\" class=\"num\">Value</th><th scope=\"col\">Evidence</th></tr></thead>\n<tbody>\n",
        );
        for (key, entry) in rows.iter().take(ROWS) {
            let value = entry.value.unwrap_or_default();
            let doubt = entry
                .flaw
                .as_ref()
                .map(|flaw| format!("<div class=\"small\">{} {}</div>", badge("unknown"), escape(flaw)))
                .unwrap_or_default();
            let _ = writeln!(
                out,
                "<tr><td>{}</td><td>{}</td><td class=\"small break\">{}</td><td class=\"id\">{}</td><td class=\"num\">{}{}</td><td class=\"small break\">{}{doubt}</td></tr>",
                escape(&key.stage),
                escape(&key.metric),
                escape(params_text(&key.params).trim_start_matches(", ")),
                escape(&key.subject.to_string()),
                number(value),
                unit(&entry.unit),
                self.link(&entry.evidence)
            );
        }
        out.push_str("</tbody>\n</table>\n</div>\n");
        if rows.len() > ROWS {
            let _ = writeln!(out, "<p>{} more are in records.jsonl.</p>", rows.len() - ROWS);
        }
        out.push_str("</section>\n");
    }

    fn without_value(&self, out: &mut String) {
        let rows: Vec<(&Key, &Entry)> = self
            .evaluation
            .loaded
            .entries
            .iter()
            .filter(|(_, entry)| entry.state != State::Measured)
            .collect();
        if rows.is_empty() {
            return;
        }
        section(out, "without", "What could not be measured");
        scroll(out, "What could not be measured", rows.len() > 20);
        out.push_str(
            "<table>\n<thead><tr><th scope=\"col\">Stage</th><th scope=\"col\">Metric</th><th scope=\"col\">Params</th><th scope=\"col\">Subject</th>\
             <th scope=\"col\">State</th><th scope=\"col\">Why</th></tr></thead>\n<tbody>\n",
        );
        for (key, entry) in rows.iter().take(ROWS) {
            let outcome = match entry.state {
                State::NotApplicable => Outcome::NotApplicable,
                State::Unavailable => Outcome::Unavailable,
                State::Unknown | State::Measured => Outcome::Unknown,
            };
            let _ = writeln!(
                out,
                "<tr><td>{}</td><td>{}</td><td class=\"small break\">{}</td><td class=\"id\">{}</td><td>{}</td><td class=\"small break\">{}</td></tr>",
                escape(&key.stage),
                escape(&key.metric),
                escape(params_text(&key.params).trim_start_matches(", ")),
                escape(&key.subject.to_string()),
                badge(outcome.word()),
                escape(entry.detail.as_deref().unwrap_or("no reason given"))
            );
        }
        out.push_str("</tbody>\n</table>\n</div>\n</section>\n");
    }

    fn footer(&self, out: &mut String) {
        let rules = &self.evaluation.methodology.rules;
        let loaded = &self.evaluation.loaded;
        let bad = loaded.files.iter().filter(|raw| raw.problem.is_some()).count();
        let _ = write!(
            out,
            "<footer>\n<p>Methodology {} of {}, clustermax {}. {}</p>\n\
             <p>{} records (sum of sha256 <code>{}</code>) from {} raw files, {bad} of them missing or changed.</p>\n</footer>\n",
            escape(&rules.methodology),
            escape(&rules.date),
            env!("CARGO_PKG_VERSION"),
            escape(&rules.notice),
            loaded.entries.len(),
            loaded.digest,
            loaded.files.len()
        );
    }
}
