//! Inline SVG for the HTML report: axes with lines, and small bars. Coordinates have one decimal, so the same input gives the
//! same bytes. Every plot is drawn for two widths, of which style.css shows one: a plot that is only scaled down cannot be read
//! on a phone.

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

/// A horizontal line across: what cannot be exceeded.
pub struct Level {
    /// In words.
    pub name: String,
    /// Where it lies.
    pub y: f64,
}

/// A horizontal band across: what is expected.
pub struct Band {
    /// In words.
    pub name: String,
    /// From here.
    pub low: f64,
    /// To here.
    pub high: f64,
    /// Class `b0` to `b7` of style.css.
    pub style: usize,
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

/// Which of the two drawings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Width {
    /// Names at the ends of lines.
    Wide,
    /// For a phone: names under the plot.
    Narrow,
}

impl Width {
    /// Units of the drawing, which are pixels where there is room.
    pub fn units(self) -> f64 {
        match self {
            Self::Wide => 620.0,
            Self::Narrow => 320.0,
        }
    }
}

/// How a value becomes a place on an axis.
#[derive(Debug, Clone, Copy)]
pub struct Scale {
    low: f64,
    span: f64,
    log: bool,
}

impl Scale {
    /// From `low` to `high`; `log` takes values above 0 only.
    pub fn new(low: f64, high: f64, log: bool) -> Self {
        let of = |value: f64| if log { value.log2() } else { value };
        let span = of(high) - of(low);
        Self { low: of(low), span: if span > 0.0 { span } else { 1.0 }, log }
    }

    fn share(&self, value: f64) -> f64 {
        ((if self.log { value.log2() } else { value }) - self.low) / self.span
    }
}

/// Line styles in style.css: `l0` to `l7`, `f0` to `f7`, `b0` to `b7`.
const STYLES: usize = 8;
const TOP: f64 = 24.0;

/// What is named beside or under a plot: where its name belongs, its text, the class of that, and a sample of how it is drawn.
struct Named {
    at: Option<(f64, f64)>,
    text: String,
    class: String,
    sample: String,
}

/// A plot with two axes, being drawn.
pub struct Plot<'a> {
    labels: &'a Labels<'a>,
    width: Width,
    x: Scale,
    y: Scale,
    body: String,
    named: Vec<Named>,
    drawn: usize,
}

// Writing to a String cannot fail; so it is for every write! of this file.
impl<'a> Plot<'a> {
    /// Axes with their ticks: value, text.
    pub fn new(
        labels: &'a Labels<'a>,
        width: Width,
        (x, x_ticks): (Scale, &[(f64, String)]),
        (y, y_ticks): (Scale, &[(f64, String)]),
    ) -> Self {
        let mut plot = Self { labels, width, x, y, body: String::new(), named: Vec::new(), drawn: 0 };
        let (left, right, bottom) = (plot.left(), plot.right(), plot.bottom());
        for (value, text) in y_ticks {
            let y = plot.py(*value);
            let _ = write!(
                plot.body,
                "<line class=\"grid\" x1=\"{left:.1}\" x2=\"{right:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
                 <text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                left - 6.0,
                y + 4.0,
                escape(text)
            );
        }
        for (value, text) in x_ticks {
            let x = plot.px(*value);
            // The last one must not stick out.
            let anchor = if x > plot.width.units() - 24.0 { "end" } else { "middle" };
            let _ = write!(
                plot.body,
                "<line class=\"axis\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{bottom:.1}\" y2=\"{:.1}\"/>\
                 <text class=\"tick\" x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\">{}</text>",
                bottom + 5.0,
                bottom + 19.0,
                escape(text)
            );
        }
        let _ = write!(
            plot.body,
            "<line class=\"axis\" x1=\"{left:.1}\" x2=\"{right:.1}\" y1=\"{bottom:.1}\" y2=\"{bottom:.1}\"/>\
             <text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\
             <text class=\"tick\" x=\"2\" y=\"12\">{}</text>",
            f64::midpoint(left, right),
            bottom + 37.0,
            escape(labels.x),
            escape(labels.y)
        );
        plot
    }

    fn left(&self) -> f64 {
        48.0
    }

    fn right(&self) -> f64 {
        match self.width {
            Width::Wide => 436.0,
            Width::Narrow => self.width.units() - 8.0,
        }
    }

    fn bottom(&self) -> f64 {
        match self.width {
            Width::Wide => 280.0,
            Width::Narrow => 210.0,
        }
    }

    fn px(&self, value: f64) -> f64 {
        self.left() + self.x.share(value) * (self.right() - self.left())
    }

    fn py(&self, value: f64) -> f64 {
        let (top, bottom) = (TOP, self.bottom());
        (bottom - self.y.share(value) * (bottom - top)).clamp(top, bottom)
    }

    /// What is expected.
    pub fn band(&mut self, band: &Band) {
        let (top, bottom, style) = (self.py(band.high), self.py(band.low), band.style % STYLES);
        let (left, right) = (self.left(), self.right());
        let _ = write!(
            self.body,
            "<rect class=\"b{style}\" x=\"{left:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{:.1}\"/>",
            right - left,
            (bottom - top).max(1.5)
        );
        self.named.push(Named {
            at: Some((right, f64::midpoint(top, bottom))),
            text: band.name.clone(),
            class: "tick".to_owned(),
            sample: format!("<rect class=\"b{style}\" x=\"0\" y=\"-9\" width=\"24\" height=\"10\"/>"),
        });
    }

    /// The area from the lowest to the highest of all: x, lowest, highest.
    pub fn area(&mut self, name: &str, edges: &[(f64, f64, f64)]) {
        let mut points: Vec<String> =
            edges.iter().map(|(x, _, high)| format!("{:.1},{:.1}", self.px(*x), self.py(*high))).collect();
        points
            .extend(edges.iter().rev().map(|(x, low, _)| format!("{:.1},{:.1}", self.px(*x), self.py(*low))));
        let _ = write!(self.body, "<polygon class=\"range\" points=\"{}\"/>", points.join(" "));
        self.named.push(Named {
            at: None,
            text: name.to_owned(),
            class: "tick".to_owned(),
            sample: "<rect class=\"range\" x=\"0\" y=\"-9\" width=\"24\" height=\"10\"/>".to_owned(),
        });
    }

    /// What cannot be exceeded.
    pub fn level(&mut self, level: &Level) {
        let (y, left, right) = (self.py(level.y), self.left(), self.right());
        let _ = write!(
            self.body,
            "<line class=\"ref\" x1=\"{left:.1}\" x2=\"{right:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>"
        );
        self.named.push(Named {
            at: Some((right, y)),
            text: level.name.clone(),
            class: "tick".to_owned(),
            sample: "<line class=\"ref\" x1=\"0\" x2=\"24\" y1=\"-4\" y2=\"-4\"/>".to_owned(),
        });
    }

    /// One line, with a dot a point where there are few.
    pub fn line(&mut self, series: &Series) {
        let style = self.drawn % STYLES;
        self.drawn += 1;
        let points: Vec<(f64, f64)> = series.points.iter().map(|(x, y)| (self.px(*x), self.py(*y))).collect();
        let Some(last) = points.last().copied() else { return };
        let path: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let _ = write!(self.body, "<polyline class=\"line l{style}\" points=\"{}\"/>", path.join(" "));
        if points.len() <= 40 {
            for (x, y) in &points {
                let _ =
                    write!(self.body, "<circle class=\"f{style}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.4\"/>");
            }
        }
        self.named.push(Named {
            at: Some(last),
            text: series.name.clone(),
            class: format!("f{style}"),
            sample: format!("<line class=\"line l{style}\" x1=\"0\" x2=\"24\" y1=\"-4\" y2=\"-4\"/>"),
        });
    }

    /// The drawing with its names.
    pub fn finish(mut self) -> String {
        let under = self.bottom() + 44.0;
        let named = std::mem::take(&mut self.named);
        let (mut beside, below): (Vec<Named>, Vec<Named>) =
            named.into_iter().partition(|one| self.width == Width::Wide && one.at.is_some());
        self.beside(&mut beside);
        for (row, one) in below.iter().enumerate() {
            let _ = write!(
                self.body,
                "<g transform=\"translate({:.1} {:.1})\">{}<text class=\"{}\" x=\"32\">{}</text></g>",
                self.left(),
                under + 18.0 * (row as f64 + 0.8),
                one.sample,
                one.class,
                escape(&shortened(&one.text, 38))
            );
        }
        let height = under + 18.0 * below.len() as f64 + 4.0;
        let mut out = open(self.labels, self.width, height);
        out.push_str(&self.body);
        out.push_str("</svg>");
        out
    }

    /// Names at the right end of what they name, pushed apart so that none covers another.
    fn beside(&mut self, names: &mut [Named]) {
        const APART: f64 = 15.0;
        let place = |one: &Named| one.at.map_or(0.0, |(_, y)| y);
        names.sort_by(|a, b| place(a).total_cmp(&place(b)));
        let mut free = TOP - 2.0;
        let mut rows: Vec<f64> = names
            .iter()
            .map(|one| {
                free = place(one).max(free + APART);
                free
            })
            .collect();
        // What ran out at the bottom moves up again, only as far as it must.
        let mut most = self.bottom() + 30.0;
        for row in rows.iter_mut().rev() {
            *row = row.min(most);
            most = *row - APART;
        }
        let right = self.right();
        for (one, row) in names.iter().zip(rows) {
            let (x, y) = one.at.unwrap_or((right, row));
            let _ = write!(
                self.body,
                "<line class=\"grid\" x1=\"{:.1}\" y1=\"{y:.1}\" x2=\"{:.1}\" y2=\"{row:.1}\"/>\
                 <text class=\"{}\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                x + 3.0,
                right + 10.0,
                one.class,
                right + 13.0,
                row + 4.0,
                escape(&shortened(&one.text, 24))
            );
        }
    }
}

/// Lines over powers of two (message sizes, nodes), with what is expected and what is impossible. The y axis is logarithmic,
/// linear where there is a band. Points that are not above 0 are left out.
pub fn sweep(
    labels: &Labels<'_>,
    width: Width,
    series: &[Series],
    bands: &[Band],
    levels: &[Level],
    name_x: impl Fn(f64) -> String,
) -> String {
    let points = || series.iter().flat_map(|one| &one.points).copied().filter(|(x, y)| *x > 0.0 && *y > 0.0);
    let xs = extent(points().map(|(x, _)| x.log2()));
    let values = || {
        let more = levels.iter().map(|level| level.y).chain(bands.iter().map(|band| band.high));
        points().map(|(_, y)| y).chain(more)
    };
    let (Some((x_low, x_high)), Some((least, most))) = (xs, extent(values())) else { return String::new() };
    // Where a band says what is expected the axis is linear: on a logarithmic one of seven decades it would be a hair.
    let linear = !bands.is_empty() || most / least < 20.0;
    let (y, y_ticks) = if linear {
        let tick = step(most);
        let top = (most / tick).ceil();
        let ticks =
            (0..=top as usize).map(|at| (at as f64 * tick, number(round(at as f64 * tick)))).collect();
        (Scale::new(0.0, top * tick, false), ticks)
    } else {
        let (low, high) = (
            least.log10().floor() as i32,
            (most.log10().ceil() as i32).max(least.log10().floor() as i32 + 1),
        );
        let ticks: Vec<(f64, String)> = (low..=high)
            .map(|power| {
                let value = 10_f64.powi(power);
                (value, if power < -2 { format!("1e{power}") } else { number(value) })
            })
            .collect();
        (Scale::new(10_f64.powi(low), 10_f64.powi(high), true), ticks)
    };
    let most_ticks = if width == Width::Wide { 7.0 } else { 4.0 };
    let apart = ((x_high - x_low) / most_ticks).ceil().max(1.0);
    let mut x_ticks = Vec::new();
    let mut at = x_low.ceil();
    while at <= x_high {
        x_ticks.push((2_f64.powf(at), name_x(2_f64.powf(at))));
        at += apart;
    }
    let x = Scale::new(2_f64.powf(x_low), 2_f64.powf(x_high), true);
    let mut plot = Plot::new(labels, width, (x, &x_ticks), (y, &y_ticks));
    bands.iter().for_each(|band| plot.band(band));
    levels.iter().for_each(|level| plot.level(level));
    for one in series {
        let above = one.points.iter().copied().filter(|(x, y)| *x > 0.0 && *y > 0.0).collect();
        plot.line(&Series { name: one.name.clone(), points: above });
    }
    plot.finish()
}

/// Lines over seconds on linear axes, with the area from the lowest to the highest of all.
pub fn traces(
    labels: &Labels<'_>,
    width: Width,
    area: (&str, &[(f64, f64, f64)]),
    lines: &[Series],
) -> String {
    let points = || lines.iter().flat_map(|line| line.points.iter().copied());
    let xs = extent(points().map(|(x, _)| x).chain(area.1.iter().map(|(x, ..)| *x)));
    let ys = extent(points().map(|(_, y)| y).chain(area.1.iter().flat_map(|(_, low, high)| [*low, *high])));
    let (Some((x_low, x_high)), Some((low, high))) = (xs, ys) else { return String::new() };
    let ticks = |from: f64, to: f64, tick: f64| -> Vec<(f64, String)> {
        let (first, last) = ((from / tick).ceil() as i64, (to / tick + 1e-9).floor() as i64);
        (first..=last).map(|at| (at as f64 * tick, number(round(at as f64 * tick)))).collect()
    };
    let tick = step(if high > low { high - low } else { high.abs().max(1.0) });
    let bottom = ((low / tick).floor() * tick).max(0.0);
    let top = ((high / tick).ceil() * tick).max(bottom + tick);
    let y = (Scale::new(bottom, top, false), ticks(bottom, top, tick));
    let x = (Scale::new(x_low, x_high, false), ticks(x_low, x_high, step((x_high - x_low).max(1.0))));
    let mut plot = Plot::new(labels, width, (x.0, &x.1), (y.0, &y.1));
    if area.1.len() > 1 {
        plot.area(area.0, area.1);
    }
    lines.iter().for_each(|line| plot.line(line));
    plot.finish()
}

/// Lowest and highest; nothing of no finite value.
fn extent(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    let of = values
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)));
    (of.0.is_finite() && of.1.is_finite()).then_some(of)
}

/// Without what a sum of steps leaves behind the sixth digit.
fn round(value: f64) -> f64 {
    (value * 1e6).round() / 1e6
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

/// The start of a drawing, with its name and description.
pub(super) fn open(labels: &Labels<'_>, width: Width, height: f64) -> String {
    let (letter, class) = match width {
        Width::Wide => ('w', "plot wide"),
        Width::Narrow => ('n', "plot narrow"),
    };
    let id = format!("{}-{letter}", labels.id);
    format!(
        "<svg class=\"{class}\" viewBox=\"0 0 {:.0} {height:.0}\" role=\"img\" aria-labelledby=\"{id}t {id}d\">\
         <title id=\"{id}t\">{}</title><desc id=\"{id}d\">{}</desc>",
        width.units(),
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
    let mut places: Vec<i64> = values
        .iter()
        .map(|value| if most > 0.0 { ((value / most).clamp(0.0, 1.0) * 157.0).round() as i64 } else { 0 })
        .collect();
    // One mark a place, however many nodes there are.
    places.sort_unstable();
    places.dedup();
    for place in places {
        let _ = write!(
            out,
            "<rect class=\"mark\" x=\"{place}\" y=\"2\" width=\"3\" height=\"14\" rx=\"1.5\" opacity=\"0.75\"/>"
        );
    }
    out.push_str("</svg>");
    out
}
