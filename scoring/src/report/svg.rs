//! Inline SVG for the HTML report. Coordinates have one decimal, so the same input gives the same bytes.

use std::fmt::Write as _;

use crate::load::number;
use crate::report::html::escape;

/// One line of a plot.
pub struct Series {
    /// Written at its end.
    pub name: String,
    /// Rising x.
    pub points: Vec<(f64, f64)>,
}

/// A horizontal reference line.
pub struct Level {
    /// Written at its left.
    pub name: String,
    /// Where it lies.
    pub y: f64,
    /// The name is under the line.
    pub under: bool,
}

/// What a plot shows, for people who do not see it too.
pub struct Labels<'a> {
    /// Unique in the page.
    pub id: &'a str,
    /// One phrase.
    pub title: &'a str,
    /// What there is to see, in words.
    pub description: &'a str,
    /// Under the x axis.
    pub x: &'a str,
    /// Above the y axis.
    pub y: &'a str,
}

/// Line styles in style.css: `l0` to `l7`, `f0` to `f7`.
const STYLES: usize = 8;
const LEFT: f64 = 62.0;
const RIGHT: f64 = 640.0;
const TOP: f64 = 26.0;
const BOTTOM: f64 = 330.0;

/// Lines over a message size (powers of two); `bands` span what is expected. The y axis is logarithmic, linear where there is a
/// band. Points that are not above 0 are left out.
pub fn sweep(
    labels: &Labels<'_>,
    series: &[Series],
    levels: &[Level],
    bands: &[(f64, f64)],
    name_x: impl Fn(f64) -> String,
) -> String {
    let points = || series.iter().flat_map(|one| &one.points).copied().filter(|(x, y)| *x > 0.0 && *y > 0.0);
    let x_low = points().map(|(x, _)| x.log2()).fold(f64::INFINITY, f64::min);
    let x_high = points().map(|(x, _)| x.log2()).fold(f64::NEG_INFINITY, f64::max);
    let values = || points().map(|(_, y)| y).chain(levels.iter().map(|level| level.y));
    // Where a band says what is expected the axis is linear: on a logarithmic one of seven decades it would be a hair.
    let linear = !bands.is_empty();
    let (y_low, y_high) = if linear {
        let most = values().chain(bands.iter().map(|(_, high)| *high)).fold(0.0, f64::max);
        (0.0, (most / step(most)).ceil() * step(most))
    } else {
        (
            values().map(f64::log10).fold(f64::INFINITY, f64::min).floor(),
            values().map(f64::log10).fold(f64::NEG_INFINITY, f64::max).ceil(),
        )
    };
    if !x_low.is_finite() || !y_low.is_finite() {
        return String::new();
    }
    let x_span = if x_high > x_low { x_high - x_low } else { 1.0 };
    let y_span = if y_high > y_low { y_high - y_low } else { 1.0 };
    let px = |x: f64| LEFT + (x.log2() - x_low) / x_span * (RIGHT - LEFT);
    let py = |y: f64| BOTTOM - (if linear { y } else { y.log10() } - y_low) / y_span * (BOTTOM - TOP);

    let mut out = open(labels, 760.0, 384.0, "plot");
    for (low, high) in bands.iter().filter(|(low, _)| *low > 0.0) {
        let (top, bottom) = (py(*high).max(TOP), py(*low).min(BOTTOM));
        let _ = write!(
            out,
            "<rect class=\"range\" x=\"{LEFT:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{:.1}\"/>",
            RIGHT - LEFT,
            (bottom - top).max(1.0)
        );
    }
    let mut tick = y_low;
    while tick <= y_low + y_span {
        let value = if linear { tick } else { 10_f64.powf(tick) };
        let y = py(value);
        let _ = write!(
            out,
            "<line class=\"grid\" x1=\"{LEFT:.1}\" x2=\"{RIGHT:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
             <text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            LEFT - 8.0,
            y + 4.0,
            if !linear && value < 0.001 { format!("1e{tick:.0}") } else { number(value) }
        );
        tick += if linear { step(y_span) } else { 1.0 };
    }
    let step = (x_span / 8.0).ceil().max(1.0);
    let mut tick = x_low.ceil();
    while tick <= x_high {
        let x = px(2_f64.powf(tick));
        let _ = write!(
            out,
            "<line class=\"axis\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{BOTTOM:.1}\" y2=\"{:.1}\"/>\
             <text class=\"tick\" x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            BOTTOM + 5.0,
            BOTTOM + 20.0,
            escape(&name_x(2_f64.powf(tick)))
        );
        tick += step;
    }
    let _ = write!(
        out,
        "<line class=\"axis\" x1=\"{LEFT:.1}\" x2=\"{RIGHT:.1}\" y1=\"{BOTTOM:.1}\" y2=\"{BOTTOM:.1}\"/>\
         <text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\
         <text class=\"tick\" x=\"4\" y=\"14\">{}</text>",
        (LEFT + RIGHT) / 2.0,
        BOTTOM + 42.0,
        escape(labels.x),
        escape(labels.y)
    );
    for level in levels {
        let y = py(level.y);
        let _ = write!(
            out,
            "<line class=\"ref\" x1=\"{LEFT:.1}\" x2=\"{RIGHT:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
             <text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            LEFT + 6.0,
            if level.under { y + 14.0 } else { y - 5.0 },
            escape(&level.name)
        );
    }
    let mut ends: Vec<(f64, f64, usize)> = Vec::new();
    for (index, one) in series.iter().enumerate() {
        let drawn: Vec<(f64, f64)> =
            one.points.iter().filter(|(x, y)| *x > 0.0 && *y > 0.0).map(|(x, y)| (px(*x), py(*y))).collect();
        let Some((last_x, last_y)) = drawn.last().copied() else { continue };
        let style = index % STYLES;
        let path: Vec<String> = drawn.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let _ = write!(out, "<polyline class=\"line l{style}\" points=\"{}\"/>", path.join(" "));
        for (x, y) in &drawn {
            let _ = write!(out, "<circle class=\"f{style}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.6\"/>");
        }
        ends.push((last_x, last_y, index));
    }
    // Names at the ends, pushed apart so that none covers another.
    ends.sort_by(|a, b| a.1.total_cmp(&b.1).then(a.2.cmp(&b.2)));
    let mut free = TOP - 6.0;
    let mut places: Vec<(f64, f64, f64, usize)> = Vec::new();
    for (x, y, index) in ends {
        let at = y.max(free + 15.0);
        free = at;
        places.push((x, y, at, index));
    }
    let over = (free - BOTTOM).max(0.0);
    for (x, y, at, index) in places {
        let at = at - over;
        let style = index % STYLES;
        let _ = write!(
            out,
            "<line class=\"grid\" x1=\"{:.1}\" y1=\"{y:.1}\" x2=\"{:.1}\" y2=\"{at:.1}\"/>\
             <text class=\"f{style}\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            x + 3.0,
            RIGHT + 12.0,
            RIGHT + 15.0,
            at + 4.0,
            escape(&series[index].name)
        );
    }
    out.push_str("</svg>");
    out
}

/// A step of 1, 2 or 5 times a power of ten that divides a span into five parts or so.
pub(super) fn step(span: f64) -> f64 {
    let raw = (span / 5.0).max(f64::MIN_POSITIVE);
    let power = 10_f64.powf(raw.log10().floor());
    let of = raw / power;
    power
        * if of <= 1.0 {
            1.0
        } else if of <= 2.0 {
            2.0
        } else if of <= 5.0 {
            5.0
        } else {
            10.0
        }
}

pub(super) fn open(labels: &Labels<'_>, width: f64, height: f64, class: &str) -> String {
    let id = labels.id;
    format!(
        "<svg class=\"{class}\" viewBox=\"0 0 {width:.0} {height:.0}\" role=\"img\" aria-labelledby=\"{id}-t {id}-d\">\
         <title id=\"{id}-t\">{}</title><desc id=\"{id}-d\">{}</desc>",
        escape(labels.title),
        escape(labels.description)
    )
}

/// A bar of [0, 1]: what may be (lower to upper) and the score over what was seen. The table beside it has the numbers.
pub fn bounds(lower: f64, upper: f64, score: Option<f64>) -> String {
    let width = 160.0;
    let mut out = format!(
        "<svg width=\"160\" height=\"18\" viewBox=\"0 0 160 18\" aria-hidden=\"true\">\
         <rect class=\"back\" x=\"0\" y=\"5\" width=\"160\" height=\"8\" rx=\"4\"/>\
         <rect class=\"range\" x=\"{:.1}\" y=\"5\" width=\"{:.1}\" height=\"8\" rx=\"4\"/>",
        lower * width,
        ((upper - lower) * width).max(1.0)
    );
    if let Some(score) = score {
        let _ = write!(
            out,
            "<rect class=\"mark\" x=\"{:.1}\" y=\"2\" width=\"4\" height=\"14\" rx=\"2\"/>",
            (score * width - 2.0).clamp(0.0, width - 4.0)
        );
    }
    out.push_str("</svg>");
    out
}

/// One row of [`ranges`], shares in [0, 1].
pub struct Range {
    /// At its left.
    pub name: String,
    /// Bar from here.
    pub lower: f64,
    /// To here.
    pub upper: f64,
    /// Mark.
    pub score: Option<f64>,
}

/// A bar a row from lower to upper, with named lines at some shares.
pub fn ranges(labels: &Labels<'_>, rows: &[Range], lines: &[(f64, String)]) -> String {
    const NAME: f64 = 240.0;
    const WIDTH: f64 = 480.0;
    let height = 64.0 + 26.0 * rows.len() as f64;
    let mut out = open(labels, 760.0, height, "plot");
    let px = |share: f64| NAME + share.clamp(0.0, 1.0) * WIDTH;
    for (at, (share, name)) in lines.iter().enumerate() {
        // Two rows of names, since cut-offs lie close together.
        let y = if at % 2 == 0 { 14.0 } else { 30.0 };
        let _ = write!(
            out,
            "<line class=\"ref\" x1=\"{0:.1}\" x2=\"{0:.1}\" y1=\"34.0\" y2=\"{1:.1}\"/>\
             <text class=\"tick\" x=\"{0:.1}\" y=\"{y:.1}\" text-anchor=\"middle\">{2}</text>",
            px(*share),
            height - 22.0,
            escape(name)
        );
    }
    for (row, one) in rows.iter().enumerate() {
        let y = 44.0 + 26.0 * row as f64;
        let _ = write!(
            out,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\
             <rect class=\"back\" x=\"{NAME:.1}\" y=\"{y:.1}\" width=\"{WIDTH:.1}\" height=\"10\" rx=\"5\"/>\
             <rect class=\"range\" x=\"{:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"10\" rx=\"5\"/>",
            NAME - 10.0,
            y + 10.0,
            escape(&shortened(&one.name, 34)),
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
        let _ = write!(
            out,
            "<text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{} %</text>",
            px(share),
            height - 6.0,
            number(share * 100.0)
        );
    }
    out.push_str("</svg>");
    out
}

/// At most `most` letters, the last one an ellipsis when some are left out.
pub(super) fn shortened(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    let mut out: String = text.chars().take(most.saturating_sub(1)).collect();
    out.push('\u{2026}');
    out
}

/// Values as ticks on a line from 0 to the largest. The table beside it has the numbers.
pub fn strip(values: &[f64]) -> String {
    let most = values.iter().copied().fold(0.0_f64, f64::max);
    let mut out = String::from(
        "<svg width=\"160\" height=\"18\" viewBox=\"0 0 160 18\" aria-hidden=\"true\">\
         <rect class=\"back\" x=\"0\" y=\"7\" width=\"160\" height=\"4\" rx=\"2\"/>",
    );
    for value in values.iter().take(200) {
        let share = if most > 0.0 { (value / most).clamp(0.0, 1.0) } else { 0.0 };
        let _ = write!(
            out,
            "<rect class=\"mark\" x=\"{:.1}\" y=\"2\" width=\"3\" height=\"14\" rx=\"1.5\" opacity=\"0.75\"/>",
            share * 157.0
        );
    }
    out.push_str("</svg>");
    out
}

/// Events on a time axis: seconds, name.
pub fn timeline(labels: &Labels<'_>, events: &[(f64, String)]) -> String {
    let first = events.iter().map(|(at, _)| *at).fold(f64::INFINITY, f64::min);
    let last = events.iter().map(|(at, _)| *at).fold(f64::NEG_INFINITY, f64::max);
    if !first.is_finite() {
        return String::new();
    }
    let span = if last > first { last - first } else { 1.0 };
    let height = 40.0 + 20.0 * events.len() as f64;
    let mut out = open(labels, 760.0, height, "plot");
    for (index, (at, name)) in events.iter().enumerate() {
        let x = 12.0 + (at - first) / span * 440.0;
        let y = 20.0 + 20.0 * index as f64;
        let _ = write!(
            out,
            "<line class=\"grid\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{y:.1}\" y2=\"{:.1}\"/>\
             <circle class=\"mark\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4.5\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\">{} s  {}</text>",
            height - 18.0,
            x + 10.0,
            y + 4.0,
            number(*at),
            escape(name)
        );
    }
    let _ = write!(
        out,
        "<line class=\"axis\" x1=\"12\" x2=\"452\" y1=\"{0:.1}\" y2=\"{0:.1}\"/>\
         <text class=\"tick\" x=\"12\" y=\"{1:.1}\">{2}</text>",
        height - 18.0,
        height - 4.0,
        escape(labels.x)
    );
    out.push_str("</svg>");
    out
}
