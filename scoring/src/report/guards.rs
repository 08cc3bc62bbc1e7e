//! Guards against figures that mislead, as a section of every report and of `suite status` and `suite collect`.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::html::{Page, badge, escape, section};
use crate::load::Loaded;
use crate::record::{Record, State};
use crate::report::table;

/// A guard that found something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Its name.
    pub guard: String,
    /// What it found and how to mend it.
    pub sentence: String,
    /// Where; empty for the whole cluster.
    pub nodes: Vec<String>,
    /// Figures that count for nothing because of it.
    pub unknown: usize,
}

/// What all guards of a run said.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Guards {
    /// Those that found something.
    pub found: Vec<Finding>,
    /// Those that could not look everywhere: name, reason, where.
    pub unseen: Vec<(String, String, Vec<String>)>,
    /// Those that looked everywhere and found nothing.
    pub clear: Vec<String>,
}

/// Names of nodes as a report shows them: the first six, and how many more.
#[must_use]
pub fn where_text(nodes: &[String]) -> String {
    match nodes.len() {
        0 => "cluster".to_owned(),
        1..=6 => nodes.join(" "),
        count => format!("{} and {} more", nodes[..6].join(" "), count - 6),
    }
}

type Said = BTreeMap<(String, String), Vec<String>>;

impl Guards {
    /// Of a run in memory.
    #[must_use]
    pub fn of(loaded: &Loaded) -> Self {
        let records = loaded.entries.iter().filter(|(key, _)| key.metric == "guard").map(|(key, entry)| {
            let guard = key.params.get("guard").map(ToString::to_string).unwrap_or_default();
            let text = entry.flaw.as_deref().or(entry.detail.as_deref()).unwrap_or("no reason given");
            (guard, entry.believed(), entry.state, text.to_owned(), key.subject.node.clone())
        });
        let mut guards = Self::build(records);
        for (key, entry) in loaded.entries.iter() {
            // Written by `crate::load::guards`.
            let of = entry.flaw.as_deref().and_then(|flaw| flaw.strip_prefix("guard "));
            let Some(of) = of.filter(|_| key.metric != "guard") else { continue };
            // `NAME on NODE: sentence`; neither names nor nodes hold a colon with a space.
            let Some((head, sentence)) = of.split_once(": ") else { continue };
            let name = head.split(' ').next().unwrap_or_default();
            // In the order of guard and sentence: a cluster of thousands of nodes may have a sentence for each.
            let place = guards
                .found
                .binary_search_by(|one| (one.guard.as_str(), one.sentence.as_str()).cmp(&(name, sentence)));
            if let Ok(place) = place {
                guards.found[place].unknown += 1;
            }
        }
        guards
    }

    /// Of records as a stage gave them.
    #[must_use]
    pub fn of_records<'a>(records: impl IntoIterator<Item = &'a Record>) -> Self {
        Self::build(records.into_iter().filter(|record| record.metric == "guard").map(|record| {
            let guard = record.params.get("guard").map(ToString::to_string).unwrap_or_default();
            let text = record.detail.as_deref().unwrap_or("no reason given").to_owned();
            (guard, record.value, record.state, text, record.subject.node.clone())
        }))
    }

    fn build(records: impl Iterator<Item = (String, Option<f64>, State, String, Option<String>)>) -> Self {
        let (mut found, mut unseen, mut clear) = (Said::new(), Said::new(), BTreeMap::new());
        for (guard, value, state, text, node) in records {
            let all_clear = clear.entry(guard.clone()).or_insert(true);
            *all_clear &= value == Some(1.0);
            match (value, state) {
                (Some(1.0), _) => {}
                (Some(_), _) => found.entry((guard, text)).or_default().extend(node),
                (None, State::NotApplicable) => {}
                (None, _) => unseen.entry((guard, text)).or_default().extend(node),
            }
        }
        let found = found.into_iter().map(|((guard, sentence), nodes)| Finding {
            guard,
            sentence,
            nodes,
            unknown: 0,
        });
        Self {
            found: found.collect(),
            unseen: unseen.into_iter().map(|((guard, why), nodes)| (guard, why, nodes)).collect(),
            clear: clear.into_iter().filter_map(|(guard, clear)| clear.then_some(guard)).collect(),
        }
    }

    /// Whether no guard said anything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// For a terminal: what was found first.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let mut lines: Vec<String> = self
            .found
            .iter()
            .map(|one| {
                let unknown = match one.unknown {
                    0 => String::new(),
                    count => format!(" ({count} figures are unknown for it)"),
                };
                format!("MISLEADS {} ({}): {}{unknown}", one.guard, where_text(&one.nodes), one.sentence)
            })
            .collect();
        lines.extend(
            self.unseen
                .iter()
                .map(|(guard, why, nodes)| format!("not seen {guard} ({}): {why}", where_text(nodes))),
        );
        if !self.clear.is_empty() {
            lines.push(format!("clear: {}", self.clear.join(", ")));
        }
        lines
    }
}

impl Page<'_> {
    /// What makes this run's figures mislead: before the figures.
    pub(super) fn guards(&self, out: &mut String) {
        let guards = Guards::of(&self.evaluation.loaded);
        if guards.is_empty() {
            return;
        }
        section(out, "guards", "Guards against figures that mislead");
        if guards.found.is_empty() {
            out.push_str("<p>Nothing was found that makes a figure mislead.</p>\n");
        }
        if !guards.found.is_empty() || !guards.unseen.is_empty() {
            table::GUARDS.open(out, "Guards", guards.found.len() + guards.unseen.len() > 20);
            for one in &guards.found {
                let unknown = match one.unknown {
                    0 => "stated; the figures stand".to_owned(),
                    count => format!("{count} figures are unknown"),
                };
                row(out, &one.guard, "failed", &one.sentence, &one.nodes, &unknown);
            }
            for (guard, why, nodes) in &guards.unseen {
                row(out, guard, "unknown", why, nodes, "not looked at");
            }
            table::close(out);
        }
        if !guards.clear.is_empty() {
            let _ = writeln!(
                out,
                "<p class=\"small soft\">Looked for and not there: {}.</p>",
                escape(&guards.clear.join(", "))
            );
        }
        out.push_str("</section>\n");
    }
}

fn row(out: &mut String, guard: &str, word: &str, text: &str, nodes: &[String], effect: &str) {
    let _ = writeln!(
        out,
        "<tr><th scope=\"row\">{}</th><td>{}</td><td class=\"wide\">{}</td><td class=\"small break\">{}</td><td class=\"small\">{}</td></tr>",
        escape(guard),
        badge(word),
        escape(text),
        escape(&where_text(nodes)),
        escape(effect)
    );
}
