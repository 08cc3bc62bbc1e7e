//! The HTML report: one file, no script, nothing loaded from elsewhere, readable on paper and in dark mode.

use std::fmt::Write as _;

use crate::judge::{Evidence, Micro, ONE};
use crate::load::Name;
use crate::rating::{percent, tier_name};
use crate::report::first::{self, Effect};
use crate::report::{svg, table};
use crate::score::Evaluation;

const STYLE: &str = include_str!("style.css");

/// Nodes that the head names.
const NODES: usize = 24;
/// Letters of a reason on the first screen; the criterion's row has it in full.
const WHY: usize = 220;

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
            letter if super::deceives(letter) => out.push('?'),
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

/// Up to the start of the body's content. A page loads nothing and runs nothing, and its policy says so to the browser.
pub(crate) fn open_page(title: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <link rel=\"icon\" href=\"data:,\">\n<title>ClusterMAX: {}</title>\n<style>\n{STYLE}{}</style>\n</head>\n<body>\n\
         <a class=\"skip\" href=\"#main\">Skip to the content</a>\n<div class=\"wrap\">\n",
        escape(title),
        table::cards()
    )
}

/// From the end of the content on.
pub(crate) const CLOSE_PAGE: &str = "</div>\n</body>\n</html>\n";

/// The page. `base` is the relative path from the report to the results folder: empty or ending in `/`.
pub fn render(evaluation: &Evaluation, base: &str) -> String {
    let page = Page { evaluation, base, judge: Evidence::new(&evaluation.loaded, &evaluation.methodology) };
    let mut out = open_page(&format!("{}, {}", evaluation.loaded.run.cluster, evaluation.headline()));
    page.header(&mut out);
    out.push_str("<main id=\"main\">\n");
    page.rating(&mut out);
    page.navigation(&mut out);
    page.guards(&mut out);
    page.categories(&mut out);
    page.gates(&mut out);
    page.sensitivity(&mut out);
    page.faults(&mut out);
    page.timeline(&mut out);
    page.bandwidth(&mut out);
    page.links(&mut out);
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
    out.push_str(CLOSE_PAGE);
    out
}

pub(super) struct Page<'a> {
    pub(super) evaluation: &'a Evaluation,
    pub(super) judge: Evidence<'a>,
    base: &'a str,
}

pub(super) fn share(value: Micro) -> f64 {
    f64::from(value) / f64::from(ONE)
}

pub(super) fn badge(word: &str) -> String {
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

impl Page<'_> {
    pub(super) fn link(&self, evidence: &Option<(usize, Option<Name>)>) -> String {
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
        let hardware = match (run.hardware, run.simulated) {
            (crate::run::Hardware::Cpu, false) => "CPU only",
            (crate::run::Hardware::Cpu, true) => "CPU only, simulated GPUs and fabric",
            (crate::run::Hardware::Gpu, false) => "GPU",
            (crate::run::Hardware::Gpu, true) => "GPU, simulated",
        };
        let _ = writeln!(
            out,
            "<header>\n<h1>ClusterMAX for Slurm</h1>\n<p class=\"which\"><b>{}</b>, {} node{}, {hardware}, {}</p>\n\
             <details class=\"facts\"><summary>About this run</summary>\n<dl>",
            escape(&run.cluster),
            run.nodes.len(),
            if run.nodes.len() == 1 { "" } else { "s" },
            escape(&run.started.chars().take(10).collect::<String>())
        );
        let more = run.nodes.len().saturating_sub(NODES);
        let mut nodes = format!("{} ({}", run.nodes.len(), run.nodes[..run.nodes.len() - more].join(" "));
        nodes.push_str(&if more > 0 { format!(" and {more} more)") } else { ")".to_owned() });
        for (name, value) in [
            ("Cluster", run.cluster.as_str()),
            ("Run", &run.run),
            ("Profile", &run.profile_text()),
            ("Job", run.job.as_deref().unwrap_or("none")),
            ("Nodes", &nodes),
            ("Hardware", hardware),
            ("Started", &run.started),
            ("Methodology", &rules.methodology),
        ] {
            let _ = writeln!(out, "<div><dt>{name}</dt><dd>{}</dd></div>", escape(value));
        }
        out.push_str("</dl>\n</details>\n</header>\n");
    }

    fn navigation(&self, out: &mut String) {
        out.push_str("<nav aria-label=\"Sections\"><ul>\n");
        let mut links = Vec::new();
        if self.evaluation.loaded.entries.iter().any(|(key, _)| key.metric == "guard") {
            links.push(("guards", "Guards"));
        }
        links.extend([("categories", "Categories"), ("gates", "Gates")]);
        if self.evaluation.rating.not_rated.is_empty() {
            links.push(("sensitivity", "How firm"));
        }
        links.extend(self.plotted());
        links.extend([("measured", "Measured"), ("criteria", "Criteria"), ("values", "All values")]);
        for (id, name) in links {
            let _ = writeln!(out, "<li><a href=\"#{id}\">{name}</a></li>");
        }
        out.push_str("</ul></nav>\n");
    }

    fn rating(&self, out: &mut String) {
        let rating = &self.evaluation.rating;
        let rules = &self.evaluation.methodology.rules;
        let _ = write!(
            out,
            "<section class=\"card rating\" aria-labelledby=\"rating\">\n<div>\n<h2 id=\"rating\" class=\"headline\">{}</h2>\n",
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
        out.push_str("<div class=\"tiles\">\n");
        let bounds = rating.bounds;
        for (value, name) in [
            (bounds.score.map_or_else(|| "none".to_owned(), percent), "score over what was seen"),
            (percent(bounds.coverage), "coverage: weight that was seen"),
            (percent(bounds.lower), "lower bound: the unseen counts 0"),
            (percent(bounds.upper), "upper bound: the unseen counts 1"),
        ] {
            let _ = writeln!(out, "<div class=\"tile\"><b>{value}</b><span>{name}</span></div>");
        }
        let _ = write!(out, "</div>\n<p class=\"notice\">{}</p>\n</div>\n", escape(&rules.notice));
        self.first(out);
        out.push_str("</section>\n");
    }

    /// What to fix first: on the first screen, since it is why most people open the page.
    fn first(&self, out: &mut String) {
        let steps = first::steps(self.evaluation);
        if steps.is_empty() {
            return;
        }
        out.push_str("<div>\n<h3>What to fix first</h3>\n<ol class=\"first\">\n");
        for step in steps {
            let effect = match step.effect {
                Effect::GateFailed => "<span class=\"badge fail\">gate failed</span>".to_owned(),
                Effect::GateUnknown => "<span class=\"badge unknown\">gate not assessed</span>".to_owned(),
                Effect::Lower(lower) => {
                    format!("<span class=\"badge none\">then lower bound {}</span>", percent(lower))
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
                escape(&svg::shortened(&step.why, WHY))
            );
        }
        out.push_str("</ol>\n</div>\n");
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
