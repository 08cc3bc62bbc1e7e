//! Link test and collective side by side: what each rail gave alone, what that allows a collective, and what the collective gave.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::html::{Page, escape, section};
use super::plots::{median, short, text};
use crate::load::{Key, number};
use crate::read::collectives::{ceiling, link};
use crate::record::Scalar;
use crate::report::{bytes, svg, table};

/// The slowest a rail was on each node, Gb/s.
type Rail<'a> = BTreeMap<&'a str, f64>;

/// A collective between nodes against what the rails gave.
struct Against {
    name: String,
    of: String,
    busbw: f64,
    /// What the links as measured allow, and by which rule.
    allowed: Option<(f64, String)>,
}

impl Page<'_> {
    /// Every rail of the link test, then collectives between nodes against the sum of the slowest node's rails.
    pub(super) fn links(&self, out: &mut String) {
        let mut rails: BTreeMap<(String, String), Rail<'_>> = BTreeMap::new();
        for (value, key, _) in
            self.believed("rdma_bandwidth").filter(|(_, key, _)| text(key, "stat") == "average")
        {
            let Some(node) = key.subject.node.as_deref() else { continue };
            let test = format!("{}, {} memory", text(key, "test"), text(key, "memory"));
            let slowest = rails.entry((text(key, "device"), test)).or_default().entry(node).or_insert(value);
            *slowest = slowest.min(value);
        }
        if rails.is_empty() {
            return;
        }
        section(out, "links", "Link test and collective side by side");
        out.push_str("<p>Each rail between neighbouring nodes, alone, one pair after the other; the strip shows every node.</p>\n");
        table::RAILS.open(out, "Link test", false);
        for ((device, test), nodes) in &rails {
            let mut values: Vec<f64> = nodes.values().copied().collect();
            values.sort_by(f64::total_cmp);
            let (Some(lowest), Some(highest)) = (values.first(), values.last()) else { continue };
            let at = nodes.iter().find(|(_, value)| *value == lowest).map_or("", |(node, _)| *node);
            let _ = writeln!(
                out,
                "<tr><th scope=\"row\">{}</th><td>{} {}</td><td class=\"num\">{}</td><td class=\"num\">{} Gb/s</td><td class=\"num\">{} Gb/s</td><td class=\"num\">{} Gb/s</td><td>{}</td></tr>",
                escape(device),
                escape(test),
                svg::strip(&values),
                nodes.len(),
                short(*lowest),
                short(median(&values)),
                short(*highest),
                escape(at)
            );
        }
        table::close(out);
        self.against(out, &rails);
        out.push_str("</section>\n");
    }

    fn against(&self, out: &mut String, rails: &BTreeMap<(String, String), Rail<'_>>) {
        // Of the GPUs' memory where that was measured: it is what a collective moves.
        let best = |wanted: &str| {
            rails.keys().any(|(_, test)| test.starts_with("ib_write_bw") && test.contains(wanted))
        };
        let memory = if best("gpu memory") { "gpu memory" } else { "host memory" };
        let mut sums: BTreeMap<&str, f64> = BTreeMap::new();
        for (_, nodes) in
            rails.iter().filter(|((_, test), _)| test.starts_with("ib_write_bw") && test.contains(memory))
        {
            for (node, value) in nodes {
                *sums.entry(node).or_default() += value / 8.0;
            }
        }
        let Some((slowest, sum)) = sums.iter().min_by(|a, b| a.1.total_cmp(b.1)) else { return };
        let mut peaks: BTreeMap<(String, u64, String), (f64, &Key)> = BTreeMap::new();
        for (value, key, _) in self.believed("busbw") {
            let whole = |name: &str| key.params.get(name).and_then(Scalar::as_f64);
            let (Some(nodes), Some(ranks), Some(_)) = (whole("nodes"), whole("ranks"), whole("size")) else {
                continue;
            };
            if nodes < 2.0 {
                continue;
            }
            let tool = [text(key, "tool"), text(key, "backend")].join(" ");
            let of = format!("{nodes} nodes, {ranks} ranks {}", tool.trim());
            let at = (text(key, "collective"), nodes as u64, of.trim().to_owned());
            let old = peaks.entry(at).or_insert((value, key));
            if value > old.0 {
                *old = (value, key);
            }
        }
        let inside = self.judge.model().ok().and_then(link);
        let rows: Vec<Against> = peaks
            .into_iter()
            .map(|((name, _, of), (busbw, key))| {
                let whole = |name: &str| key.params.get(name).and_then(Scalar::as_f64).unwrap_or_default();
                let (ranks, nodes) = (whole("ranks"), whole("nodes"));
                let each = if ranks > 0.0 { sum * nodes / ranks } else { 0.0 };
                let allowed =
                    ceiling(&name, ranks as u64, nodes as u64, Some((each * 10.0).round() / 10.0), inside);
                Against { of: format!("{of}, {}", bytes(whole("size"))), name, busbw, allowed }
            })
            .collect();
        let _ = writeln!(
            out,
            "<p>The rails of {} gave {} GB/s together ({memory}), the least of {} nodes. What that allows a collective, and what it gave at its best:</p>",
            escape(slowest),
            short(*sum),
            sums.len()
        );
        if rows.is_empty() {
            out.push_str("<p>No collective between nodes was measured.</p>\n");
            return;
        }
        table::LINKED.open(out, "Collectives against the link test", false);
        for row in &rows {
            let (allowed, share) = match &row.allowed {
                Some((most, rule)) => (
                    format!("{} <div class=\"small soft\">{}</div>", short(*most), escape(rule)),
                    format!(
                        "{} {} %{}",
                        svg::bounds(0.0, (row.busbw / most).clamp(0.0, 1.0), None),
                        number((row.busbw / most * 100.0).round()),
                        // Then the link test was disturbed, or a rail has recovered since.
                        if row.busbw > most * 1.05 {
                            " <span class=\"badge unknown\">more than the link test</span>"
                        } else {
                            ""
                        }
                    ),
                ),
                None => ("no rule".to_owned(), String::new()),
            };
            let _ = writeln!(
                out,
                "<tr><th scope=\"row\">{}</th><td class=\"small\">{}</td><td class=\"num\">{}</td><td class=\"num\">{allowed}</td><td>{share}</td></tr>",
                escape(&row.name),
                escape(&row.of),
                short(row.busbw)
            );
        }
        table::close(out);
    }
}
