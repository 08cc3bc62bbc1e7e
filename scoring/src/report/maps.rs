//! Plots without two axes: ranges, lanes of events, and whole clusters at a glance. As in `svg.rs`, each is drawn for two widths.

use std::fmt::Write as _;

use crate::load::number;
use crate::report::html::escape;
use crate::report::svg::{Labels, Width, open, shortened};

/// One row of [`ranges`], shares in [0, 1].
pub struct Range {
    /// Beside or above it.
    pub name: String,
    /// Bar from here.
    pub lower: f64,
    /// To here.
    pub upper: f64,
    /// Mark.
    pub score: Option<f64>,
}

/// A bar a row from lower to upper, with named lines at some shares.
pub fn ranges(labels: &Labels<'_>, width: Width, rows: &[Range], lines: &[(f64, String)]) -> String {
    let wide = width == Width::Wide;
    // On a phone the name stands above its bar.
    let (name, bar, apart, letters) =
        if wide { (190.0, 410.0, 24.0, 27) } else { (12.0, width.units() - 28.0, 36.0, 44) };
    let height = 64.0 + apart * rows.len() as f64;
    let mut out = open(labels, width, height);
    let px = |share: f64| name + share.clamp(0.0, 1.0) * bar;
    for (at, (share, text)) in lines.iter().enumerate() {
        // Two rows of names, since cut-offs lie close together.
        let y = if at % 2 == 0 { 12.0 } else { 27.0 };
        let _ = write!(
            out,
            "<line class=\"ref\" x1=\"{0:.1}\" x2=\"{0:.1}\" y1=\"31.0\" y2=\"{1:.1}\"/>\
             <text class=\"tick\" x=\"{0:.1}\" y=\"{y:.1}\" text-anchor=\"middle\">{2}</text>",
            px(*share),
            height - 22.0,
            escape(text)
        );
    }
    for (row, one) in rows.iter().enumerate() {
        let y = if wide { 42.0 } else { 54.0 } + apart * row as f64;
        let (text_x, text_y, anchor) =
            if wide { (name - 10.0, y + 10.0, "end") } else { (name, y - 5.0, "start") };
        let _ = write!(
            out,
            "<text class=\"over\" x=\"{text_x:.1}\" y=\"{text_y:.1}\" text-anchor=\"{anchor}\">{}</text>\
             <rect class=\"back\" x=\"{name:.1}\" y=\"{y:.1}\" width=\"{bar:.1}\" height=\"10\" rx=\"5\"/>\
             <rect class=\"range\" x=\"{:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"10\" rx=\"5\"/>",
            escape(&shortened(&one.name, letters)),
            px(one.lower),
            (px(one.upper) - px(one.lower)).max(1.0)
        );
        if let Some(score) = one.score {
            let _ = write!(
                out,
                "<rect class=\"mark\" x=\"{:.1}\" y=\"{:.1}\" width=\"4\" height=\"16\" rx=\"2\"/>",
                px(score) - 2.0,
                y - 3.0
            );
        }
    }
    for share in [0.0, 0.25, 0.5, 0.75, 1.0] {
        // The outermost must not stick out of a narrow drawing.
        let anchor = match share {
            0.0 if !wide => "start",
            1.0 if !wide => "end",
            _ => "middle",
        };
        let _ = write!(
            out,
            "<text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\">{} %</text>",
            px(share),
            height - 6.0,
            number(share * 100.0)
        );
    }
    out.push_str("</svg>");
    out
}

/// What happened in a lane, seconds from its start.
pub struct Mark {
    /// Seconds.
    pub at: f64,
    /// In words.
    pub name: String,
    /// Class `f0` to `f7`; the name says what it is.
    pub class: usize,
}

/// One line of events a lane, all on one time axis.
pub fn lanes(labels: &Labels<'_>, width: Width, lanes: &[(String, Vec<Mark>)]) -> String {
    let (left, right) = (12.0, width.units() - 14.0);
    let last = lanes.iter().flat_map(|(_, marks)| marks).map(|mark| mark.at).fold(0.0_f64, f64::max);
    let span = if last > 0.0 { last } else { 1.0 };
    let px = |at: f64| left + at.max(0.0) / span * (right - left);
    let mut body = String::new();
    let mut top = 0.0;
    for (name, marks) in lanes {
        let y = top + 30.0;
        let _ = write!(
            body,
            "<text class=\"name\" x=\"2\" y=\"{:.1}\">{}</text><line class=\"axis\" x1=\"{left:.1}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>",
            top + 14.0,
            escape(&shortened(name, 44)),
            px(marks.iter().map(|mark| mark.at).fold(0.0, f64::max))
        );
        // Each name takes the first line that is free where it stands: from, to of what is written there.
        let mut lines: Vec<Vec<(f64, f64)>> = Vec::new();
        for mark in marks {
            let x = px(mark.at);
            let text = format!("{} {} s", mark.name, number((mark.at * 100.0).round() / 100.0));
            let long = 7.2 * text.chars().count() as f64;
            let ends = x + 6.0 + long > right;
            let (from, to) = if ends { (x - 6.0 - long, x) } else { (x, x + 6.0 + long) };
            let free = |line: &Vec<(f64, f64)>| line.iter().all(|(a, b)| to + 6.0 < *a || from > *b + 6.0);
            let line = lines.iter().position(free).unwrap_or(lines.len());
            if line == lines.len() {
                lines.push(Vec::new());
            }
            lines[line].push((from, to));
            let text_y = y + 20.0 + 15.0 * line as f64;
            let _ = write!(
                body,
                "<line class=\"grid\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{y:.1}\" y2=\"{text_y:.1}\"/>\
                 <circle class=\"f{}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"5\"/>\
                 <text x=\"{:.1}\" y=\"{text_y:.1}\" text-anchor=\"{}\">{}</text>",
                mark.class,
                if ends { x - 6.0 } else { x + 6.0 },
                if ends { "end" } else { "start" },
                escape(&text)
            );
        }
        top = y + 24.0 + 15.0 * lines.len() as f64;
    }
    let mut out = open(labels, width, top + 22.0);
    out.push_str(&body);
    let _ =
        write!(out, "<text class=\"tick\" x=\"2\" y=\"{:.1}\">{}</text></svg>", top + 12.0, escape(labels.x));
    out
}

/// How much a device stands out, 0 (most) to 2, 3 (not at all), 4 (above the others): class and share of its cell.
const SIZES: [f64; 5] = [1.0, 0.84, 0.68, 0.3, 0.3];

/// A whole cluster at a glance: a column a node, a cell a device. What stands out is larger as well as of another colour; what was
/// not measured is blank.
pub fn mosaic(labels: &Labels<'_>, width: Width, nodes: &[(&str, Vec<Option<usize>>)]) -> String {
    let deep = nodes.iter().map(|(_, cells)| cells.len()).max().unwrap_or(0);
    let (band, most) = if width == Width::Wide { (100, 12.0) } else { (50, 10.0) };
    let side = ((width.units() - 4.0) / nodes.len().clamp(1, band) as f64).min(most);
    let tall = deep as f64 * side + 24.0;
    let mut paths: [String; 5] = Default::default();
    let mut names = String::new();
    for (at, part) in nodes.chunks(band).enumerate() {
        let top = tall * at as f64;
        let (Some((first, _)), Some((last, _))) = (part.first(), part.last()) else { continue };
        let _ = write!(
            names,
            "<text class=\"tick\" x=\"2\" y=\"{:.1}\">{}</text>",
            top + 12.0,
            escape(&shortened(&format!("{first} to {last}"), 44))
        );
        for (column, (_, cells)) in part.iter().enumerate() {
            for (row, class) in cells.iter().enumerate() {
                let Some(class) = *class else { continue };
                let (Some(size), Some(path)) = (SIZES.get(class), paths.get_mut(class)) else { continue };
                let long = side * 0.92 * size;
                let middle = |at: usize| side * (at as f64 + 0.5) - long / 2.0;
                let _ = write!(
                    path,
                    "M{:.1} {:.1}h{long:.1}v{long:.1}h-{long:.1}z",
                    2.0 + middle(column),
                    top + 17.0 + middle(row)
                );
            }
        }
    }
    let mut out = open(labels, width, tall * nodes.len().div_ceil(band) as f64);
    out.push_str(&names);
    for (class, path) in paths.iter().enumerate().filter(|(_, path)| !path.is_empty()) {
        let _ = write!(out, "<path class=\"m{class}\" d=\"{path}\"/>");
    }
    out.push_str("</svg>");
    out
}
