//! Every GPU against the others: heat map and stragglers. A map is a table whose cells say in numbers what their colour says; a
//! cluster of more nodes than a table should have is also shown whole, at a glance.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::html::{Page, escape, section};
use super::plots::{Seen, figure, median, short, text};
use crate::load::{Key, number};
use crate::report::maps;
use crate::report::svg::Labels;
use crate::report::table;

/// Rows of a map; of a larger cluster the nodes that stand out most are shown, and all in a mosaic.
const ROWS: usize = 32;
/// Columns of a straggler map.
const COLUMNS: usize = 16;

/// A cell: how it stands out (class `h0` to `h4` of style.css), what it says, and what more.
type Cell = (usize, String, String);

/// A slow rank: node and place, how much and by which record.
type Placed<'a> = (&'a (&'a str, String), &'a (f64, &'a Key));

/// Classes of the heat map, in words.
const HEAT: [&str; 5] = [
    "10 % slower or more",
    "5 to 10 % slower",
    "2 to 5 % slower",
    "within 2 % of the median",
    "2 % faster or more",
];
/// Classes of the straggler map, in words.
const SLOW: [&str; 4] = ["persistent", "transient", "bimodal", "not named"];

/// What the classes mean, each with its colour.
fn legend(out: &mut String, words: &[&str], mosaic: bool) {
    out.push_str("<ul class=\"legend\">");
    for (class, word) in words.iter().enumerate() {
        let _ = write!(out, "<li><span class=\"swatch h{class}\"></span>{word}</li>");
    }
    out.push_str(if mosaic {
        "<li>the worse, the larger; blank: not measured</li></ul>\n"
    } else {
        "</ul>\n"
    });
}

/// Nodes down, GPUs across. A cell that is absent was not measured.
fn grid(out: &mut String, label: &str, columns: &[String], rows: &[(String, Vec<Option<Cell>>)]) {
    let mut head = vec![("Node", false)];
    head.extend(columns.iter().map(|name| (name.as_str(), false)));
    table::open(out, label, "heat", false, &head);
    for (name, cells) in rows {
        let _ = write!(out, "<tr><th scope=\"row\">{}</th>", escape(name));
        for cell in cells {
            let _ = match cell {
                Some((class, value, more)) if more.is_empty() => {
                    write!(out, "<td class=\"h{class}\">{}</td>", escape(value))
                }
                Some((class, value, more)) => {
                    write!(
                        out,
                        "<td class=\"h{class}\">{} <small>{}</small></td>",
                        escape(value),
                        escape(more)
                    )
                }
                None => write!(out, "<td>&#8211;</td>"),
            };
        }
        out.push_str("</tr>\n");
    }
    table::close(out);
}

/// How far a share off the median is from ordinary.
fn class(off: f64) -> usize {
    match off {
        off if off <= -10.0 => 0,
        off if off <= -5.0 => 1,
        off if off <= -2.0 => 2,
        off if off < 2.0 => 3,
        _ => 4,
    }
}

impl Page<'_> {
    /// Metrics with a value a GPU, by what they are of: at most three, those of most GPUs.
    pub(super) fn heat_maps(&self) -> Vec<(String, Vec<Seen<'_>>)> {
        let mut found: BTreeMap<String, Vec<Seen<'_>>> = BTreeMap::new();
        for metric in ["gemm", "burnin_gemm", "host_to_device", "device_to_host"] {
            // Of a burn-in the slowest second is in its trace.
            let of = self
                .believed(metric)
                .filter(|(_, key, _)| key.subject.gpu.is_some() && text(key, "stat") != "slowest_second");
            for (value, key, entry) in of {
                // A rank is a GPU's place, not another measurement.
                let params: Vec<String> = key
                    .params
                    .iter()
                    .filter(|(name, _)| *name != "rank")
                    .map(|(name, value)| format!("{name} {value}"))
                    .collect();
                let name = format!("{metric} {}, {}", params.join(" "), entry.unit);
                found.entry(name).or_default().push((value, key, entry));
            }
        }
        let mut found: Vec<_> = found.into_iter().filter(|(_, values)| values.len() > 1).collect();
        found.sort_by(|a, b| b.1.len().cmp(&a.1.len()).then_with(|| a.0.cmp(&b.0)));
        found.truncate(3);
        found
    }

    /// Every GPU of every node against the median of all.
    pub(super) fn heat(&self, out: &mut String) {
        let found = self.heat_maps();
        if found.is_empty() {
            return;
        }
        section(out, "heat", "GPU by GPU");
        out.push_str("<p>Each cell is one GPU: its value, and how far it is from the median of all where that is 2 % or more.</p>\n");
        for (index, (name, values)) in found.into_iter().enumerate() {
            self.heat_map(out, index, &name, &values);
        }
        out.push_str("</section>\n");
    }

    fn heat_map(&self, out: &mut String, index: usize, name: &str, values: &[Seen<'_>]) {
        let middle = median(&values.iter().map(|(value, ..)| *value).collect::<Vec<_>>());
        let off = |value: f64| if middle > 0.0 { (value / middle - 1.0) * 100.0 } else { 0.0 };
        let mut nodes: BTreeMap<&str, BTreeMap<u32, f64>> = BTreeMap::new();
        for (value, key, _) in values {
            if let (Some(node), Some(gpu)) = (key.subject.node.as_deref(), key.subject.gpu) {
                let old = nodes.entry(node).or_default().entry(gpu).or_insert(*value);
                *old = old.min(*value);
            }
        }
        let columns: BTreeSet<u32> = nodes.values().flat_map(BTreeMap::keys).copied().collect();
        let mut rows: Vec<(&str, BTreeMap<u32, f64>)> = nodes.into_iter().collect();
        let places = self.places();
        rows.sort_by_key(|(node, _)| places.get(node).copied());
        let total = rows.len();
        let worst =
            values.iter().min_by(|a, b| a.0.total_cmp(&b.0)).map_or_else(String::new, |(value, key, _)| {
                format!("lowest {} ({}, {:+.1} %), ", number(*value), key.subject, off(*value))
            });
        let highest = values.iter().map(|(value, ..)| *value).fold(0.0, f64::max);
        let counts = |wanted: usize| values.iter().filter(|(value, ..)| class(off(*value)) == wanted).count();
        let description = format!(
            "{} GPUs of {total} node{}: {worst}median {}, highest {}; {} are 10 % slower or more, {} 5 to 10 %, {} 2 to 5 %",
            values.len(),
            if total == 1 { "" } else { "s" },
            number(middle),
            number(highest),
            counts(0),
            counts(1),
            counts(2)
        );
        let labels =
            Labels { id: &format!("heat-{index}"), title: name, description: &description, x: "", y: "" };
        let lowest = |gpus: &BTreeMap<u32, f64>| gpus.values().copied().fold(f64::INFINITY, f64::min);
        let whole: Vec<(&str, Vec<Option<usize>>)> = rows
            .iter()
            .map(|(node, gpus)| {
                (*node, columns.iter().map(|gpu| gpus.get(gpu).map(|value| class(off(*value)))).collect())
            })
            .collect();
        if total > ROWS {
            rows.sort_by(|a, b| lowest(&a.1).total_cmp(&lowest(&b.1)).then_with(|| a.0.cmp(b.0)));
            let ordinary = rows.iter().filter(|(_, gpus)| class(off(lowest(gpus))) >= 3).count();
            rows.truncate((total - ordinary).clamp(4, ROWS / 2));
        }
        let cells: Vec<(String, Vec<Option<Cell>>)> = rows
            .iter()
            .map(|(node, gpus)| {
                let cell = |gpu: &u32| {
                    let value = *gpus.get(gpu)?;
                    let class = class(off(value));
                    let more = if class == 3 { String::new() } else { format!("{:+.0}\u{a0}%", off(value)) };
                    Some((class, short(value), more))
                };
                ((*node).to_owned(), columns.iter().map(cell).collect())
            })
            .collect();
        let names: Vec<String> = columns.iter().map(|gpu| format!("g{gpu}")).collect();
        if total > ROWS {
            let caption = format!("{name}: all {total} nodes, a column a node, its GPUs from the top");
            figure(
                out,
                &caption,
                &description,
                |width| maps::mosaic(&labels, width, &whole),
                |out| legend(out, &HEAT, true),
            );
            let _ = writeln!(out, "<h3>The {} nodes with the slowest GPUs</h3>", rows.len());
            grid(out, &format!("{name}, slowest nodes"), &names, &cells);
        } else {
            let _ = writeln!(out, "<h3>{}</h3>", escape(name));
            grid(out, name, &names, &cells);
            legend(out, &HEAT, false);
            let _ = writeln!(out, "<p class=\"small soft\">{}.</p>", escape(&description));
        }
    }

    /// Where each node stands in the run.
    fn places(&self) -> BTreeMap<&str, usize> {
        self.evaluation.loaded.run.nodes.iter().enumerate().map(|(at, node)| (node.as_str(), at)).collect()
    }

    /// Ranks that are slow at equal work, where they are.
    pub(super) fn stragglers(&self, out: &mut String) {
        let compared = self.believed("stragglers").count();
        let slow: Vec<Seen<'_>> = self.believed("straggler").collect();
        if compared == 0 && slow.is_empty() {
            return;
        }
        section(out, "stragglers", "Stragglers");
        if slow.is_empty() {
            let _ =
                writeln!(out, "<p>{compared} comparisons at equal work: no rank stands out.</p>\n</section>");
            return;
        }
        out.push_str("<p>How much slower a rank is than the median of all ranks at equal work. Persistent: in most windows of time; transient: in some; bimodal: a part of the fleet.</p>\n");
        let mut signals: BTreeMap<String, Vec<(f64, &Key)>> = BTreeMap::new();
        for (value, key, _) in slow {
            let name = format!("{}: {}, by {} time", key.stage, text(key, "signal"), text(key, "clock"));
            signals.entry(name).or_default().push((value, key));
        }
        for (index, (name, values)) in signals.into_iter().enumerate() {
            self.straggler_map(out, index, &name, &values);
        }
        out.push_str("</section>\n");
    }

    fn straggler_map(&self, out: &mut String, index: usize, name: &str, values: &[(f64, &Key)]) {
        let place = |key: &Key| match (key.subject.gpu, key.params.get("rank")) {
            (Some(gpu), _) => format!("g{gpu}"),
            (None, Some(rank)) => format!("rank {rank}"),
            (None, None) => "node".to_owned(),
        };
        let kind = |key: &Key| match text(key, "kind").as_str() {
            "persistent" => 0,
            "transient" => 1,
            _ => 2,
        };
        let mut worst: BTreeMap<(&str, String), (f64, &Key)> = BTreeMap::new();
        for (value, key) in values {
            let at = (key.subject.node.as_deref().unwrap_or("cluster"), place(key));
            let old = worst.entry(at).or_insert((*value, key));
            if (kind(key), -value) < (kind(old.1), -old.0) {
                *old = (*value, key);
            }
        }
        let mut sorted: Vec<Placed<'_>> = worst.iter().collect();
        sorted.sort_by(|a, b| kind(a.1.1).cmp(&kind(b.1.1)).then_with(|| b.1.0.total_cmp(&a.1.0)));
        let mut words: Vec<String> = sorted
            .iter()
            .map(|((node, place), (value, key))| {
                format!(
                    "{node} {place} {} {} % slower",
                    text(key, "kind"),
                    number((value * 10.0).round() / 10.0)
                )
            })
            .collect();
        let more = words.len().saturating_sub(12);
        words.truncate(12);
        let description =
            if more > 0 { format!("{} and {more} more", words.join("; ")) } else { words.join("; ") };
        let nodes = &self.evaluation.loaded.run.nodes;
        let gpus = values.iter().filter_map(|(_, key)| key.subject.gpu).max();
        let labels = Labels {
            id: &format!("straggler-{index}"),
            title: &format!("Stragglers, {name}"),
            description: &description,
            x: "",
            y: "",
        };
        let mut shown: Vec<&str> = nodes.iter().map(String::as_str).collect();
        if let Some(most) = gpus.filter(|_| nodes.len() > ROWS) {
            let whole: Vec<(&str, Vec<Option<usize>>)> = shown
                .iter()
                .map(|node| {
                    let cell = |gpu: u32| {
                        Some(worst.get(&(*node, format!("g{gpu}"))).map_or(3, |(_, key)| kind(key)))
                    };
                    (*node, (0..=most.max(7)).map(cell).collect())
                })
                .collect();
            let caption =
                format!("{name}: all {} nodes, a column a node, its GPUs from the top", nodes.len());
            figure(
                out,
                &caption,
                &description,
                |width| maps::mosaic(&labels, width, &whole),
                |out| legend(out, &SLOW, true),
            );
        } else {
            let _ = writeln!(out, "<h3>{}</h3>", escape(name));
        }
        if nodes.len() > ROWS {
            // The worst, in the order of nodes.
            let hit: BTreeSet<&str> = sorted.iter().map(|((node, _), _)| *node).take(ROWS).collect();
            shown.retain(|node| hit.contains(node));
        }
        let mut columns: Vec<(usize, String)> = worst
            .keys()
            .filter(|(node, _)| shown.contains(node))
            .map(|(_, place)| (place.len(), place.clone()))
            .collect();
        columns.sort();
        columns.dedup();
        columns.truncate(COLUMNS);
        let rows: Vec<(String, Vec<Option<Cell>>)> = shown
            .iter()
            .map(|node| {
                let cell = |(_, column): &(usize, String)| {
                    Some(worst.get(&(*node, column.clone())).map_or(
                        (3, "not named".to_owned(), String::new()),
                        |(value, key)| {
                            (kind(key), format!("+{}\u{a0}%", number(value.round())), text(key, "kind"))
                        },
                    ))
                };
                ((*node).to_owned(), columns.iter().map(cell).collect())
            })
            .collect();
        let names: Vec<String> = columns.iter().map(|(_, name)| name.clone()).collect();
        grid(out, &format!("Stragglers, {name}"), &names, &rows);
        if nodes.len() <= ROWS {
            legend(out, &SLOW, false);
            let _ = writeln!(out, "<p class=\"small soft\">{}.</p>", escape(&description));
        }
    }
}
