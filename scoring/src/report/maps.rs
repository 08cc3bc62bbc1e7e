//! Plots over nodes, GPUs and time: heat map, traces, lanes. As in `svg.rs`, coordinates have one decimal.

use std::fmt::Write as _;

use crate::load::number;
use crate::report::html::escape;
use crate::report::svg::{Labels, Series, open, shortened, step};

/// A cell of a [`grid`]: what it says, and how it stands out, 0 (most) to 3 (not at all) or 4 (above the others).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cell {
    /// Text in it.
    pub text: String,
    /// Class `h0` to `h4` of style.css. The text says the same: colour is never the only sign.
    pub class: usize,
}

/// Nodes down, GPUs across. A cell that is absent was not measured.
pub fn grid(labels: &Labels<'_>, columns: &[String], rows: &[(String, Vec<Option<Cell>>)]) -> String {
    const NAME: f64 = 120.0;
    const WIDTH: f64 = 76.0;
    const HEIGHT: f64 = 26.0;
    let width = NAME + WIDTH * columns.len() as f64 + 4.0;
    let height = 30.0 + HEIGHT * rows.len() as f64;
    // Its own size: cells of a small cluster must not fill the page.
    let size = format!("<svg width=\"{width:.0}\" height=\"{height:.0}\" ");
    let mut out = open(labels, width, height, "grid-map").replacen("<svg ", &size, 1);
    let _ = write!(
        out,
        "<text class=\"tick\" x=\"{:.1}\" y=\"18\" text-anchor=\"end\">{}</text>",
        NAME - 8.0,
        escape(labels.y)
    );
    for (index, name) in columns.iter().enumerate() {
        let x = NAME + WIDTH * (index as f64 + 0.5);
        let _ = write!(
            out,
            "<text class=\"tick\" x=\"{x:.1}\" y=\"18\" text-anchor=\"middle\">{}</text>",
            escape(name)
        );
    }
    for (row, (name, cells)) in rows.iter().enumerate() {
        let y = 26.0 + HEIGHT * row as f64;
        let _ = write!(
            out,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            NAME - 8.0,
            y + 17.0,
            escape(&shortened(name, 16))
        );
        for (column, cell) in cells.iter().enumerate() {
            let x = NAME + WIDTH * column as f64;
            let (class, text) = cell
                .as_ref()
                .map_or(("hn".to_owned(), ""), |cell| (format!("h{}", cell.class), cell.text.as_str()));
            let _ = write!(
                out,
                "<rect class=\"cell {class}\" x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" rx=\"3\"/>\
                 <text class=\"t{class}\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                x + 1.0,
                y + 1.0,
                WIDTH - 2.0,
                HEIGHT - 2.0,
                x + WIDTH / 2.0,
                y + 17.0,
                escape(text)
            );
        }
    }
    out.push_str("</svg>");
    out
}

/// Lines over seconds on linear axes, with a band from the lowest to the highest of all.
pub fn traces(labels: &Labels<'_>, band: &[(f64, f64, f64)], lines: &[Series]) -> String {
    const LEFT: f64 = 70.0;
    const RIGHT: f64 = 590.0;
    const TOP: f64 = 28.0;
    const BOTTOM: f64 = 250.0;
    let points = || lines.iter().flat_map(|line| line.points.iter().copied());
    let xs = || points().map(|(x, _)| x).chain(band.iter().map(|(x, ..)| *x));
    let ys = || points().map(|(_, y)| y).chain(band.iter().flat_map(|(_, low, high)| [*low, *high]));
    let fold = |values: &mut dyn Iterator<Item = f64>| {
        values
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)))
    };
    let (x_low, x_high) = fold(&mut xs());
    let (low, high) = fold(&mut ys());
    if !(x_low.is_finite() && low.is_finite()) {
        return String::new();
    }
    let tick = step(if high > low { high - low } else { high.abs().max(1.0) });
    let (y_low, y_high) = (
        ((low / tick).floor() * tick).max(0.0),
        (high / tick).ceil() * tick + if high > low { 0.0 } else { tick },
    );
    let x_span = if x_high > x_low { x_high - x_low } else { 1.0 };
    let px = |x: f64| LEFT + (x - x_low) / x_span * (RIGHT - LEFT);
    let py = |y: f64| BOTTOM - (y - y_low) / (y_high - y_low) * (BOTTOM - TOP);
    let mut out = open(labels, 760.0, 300.0, "plot");
    let mut at = y_low;
    while at <= y_high + tick / 2.0 {
        let y = py(at);
        let _ = write!(
            out,
            "<line class=\"grid\" x1=\"{LEFT:.1}\" x2=\"{RIGHT:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
             <text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            LEFT - 8.0,
            y + 4.0,
            number(at)
        );
        at += tick;
    }
    let tick = step(x_span);
    let mut at = (x_low / tick).ceil() * tick;
    while at <= x_high {
        let x = px(at);
        let _ = write!(
            out,
            "<line class=\"axis\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{BOTTOM:.1}\" y2=\"{:.1}\"/>\
             <text class=\"tick\" x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            BOTTOM + 5.0,
            BOTTOM + 20.0,
            number(at)
        );
        at += tick;
    }
    let _ = write!(
        out,
        "<line class=\"axis\" x1=\"{LEFT:.1}\" x2=\"{RIGHT:.1}\" y1=\"{BOTTOM:.1}\" y2=\"{BOTTOM:.1}\"/>\
         <text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\
         <text class=\"tick\" x=\"4\" y=\"14\">{}</text>",
        (LEFT + RIGHT) / 2.0,
        BOTTOM + 40.0,
        escape(labels.x),
        escape(labels.y)
    );
    if band.len() > 1 {
        let mut edge: Vec<String> =
            band.iter().map(|(x, _, high)| format!("{:.1},{:.1}", px(*x), py(*high))).collect();
        edge.extend(band.iter().rev().map(|(x, low, _)| format!("{:.1},{:.1}", px(*x), py(*low))));
        let _ = write!(out, "<polygon class=\"range\" points=\"{}\"/>", edge.join(" "));
    }
    let mut free = TOP - 15.0;
    let mut order: Vec<usize> = (0..lines.len()).collect();
    let last = |index: usize| lines[index].points.last().map_or(y_low, |(_, y)| *y);
    order.sort_by(|a, b| last(*b).total_cmp(&last(*a)).then(a.cmp(b)));
    for index in order {
        let line = &lines[index];
        let Some((x, y)) = line.points.last().map(|(x, y)| (px(*x), py(*y))) else { continue };
        let path: Vec<String> =
            line.points.iter().map(|(x, y)| format!("{:.1},{:.1}", px(*x), py(*y))).collect();
        let at = y.max(free + 15.0);
        free = at;
        let _ = write!(
            out,
            "<polyline class=\"line l{index}\" points=\"{}\"/><line class=\"grid\" x1=\"{:.1}\" y1=\"{y:.1}\" x2=\"{:.1}\" y2=\"{at:.1}\"/>\
             <text class=\"f{index}\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            path.join(" "),
            x + 2.0,
            RIGHT + 10.0,
            RIGHT + 13.0,
            at + 4.0,
            escape(&shortened(&line.name, 22))
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
    /// Class `f0` to `f7`.
    pub class: usize,
}

/// One line of events a lane, all on one time axis.
pub fn lanes(labels: &Labels<'_>, lanes: &[(String, Vec<Mark>)]) -> String {
    const LEFT: f64 = 150.0;
    const RIGHT: f64 = 720.0;
    let last = lanes.iter().flat_map(|(_, marks)| marks).map(|mark| mark.at).fold(0.0_f64, f64::max);
    let span = if last > 0.0 { last } else { 1.0 };
    let most = lanes.iter().map(|(_, marks)| marks.len()).max().unwrap_or(0);
    let lane = 30.0 + 15.0 * most as f64;
    let height = lane * lanes.len() as f64 + 40.0;
    let mut out = open(labels, 760.0, height, "plot");
    let px = |at: f64| LEFT + at.max(0.0) / span * (RIGHT - LEFT);
    for (row, (name, marks)) in lanes.iter().enumerate() {
        let y = lane * row as f64 + 18.0;
        let _ = write!(
            out,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text><line class=\"axis\" x1=\"{LEFT:.1}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>",
            LEFT - 12.0,
            y + 4.0,
            escape(&shortened(name, 20)),
            px(marks.iter().map(|mark| mark.at).fold(0.0, f64::max))
        );
        for (index, mark) in marks.iter().enumerate() {
            let (x, text) = (px(mark.at), y + 20.0 + 15.0 * index as f64);
            // Names on the right half are written to the left of their mark.
            let right = x > f64::midpoint(LEFT, RIGHT);
            let _ = write!(
                out,
                "<line class=\"grid\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{y:.1}\" y2=\"{text:.1}\"/>\
                 <circle class=\"f{}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"5\"/>\
                 <text x=\"{:.1}\" y=\"{text:.1}\" text-anchor=\"{}\">{} {} s</text>",
                mark.class,
                if right { x - 5.0 } else { x + 5.0 },
                if right { "end" } else { "start" },
                escape(&mark.name),
                number((mark.at * 100.0).round() / 100.0)
            );
        }
    }
    let _ = write!(
        out,
        "<text class=\"tick\" x=\"{LEFT:.1}\" y=\"{:.1}\">{}</text></svg>",
        height - 8.0,
        escape(labels.x)
    );
    out
}
