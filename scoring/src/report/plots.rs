//! The plots of the HTML report that have lines: weights, faults, events, bandwidth, burn-in. Each says in words what it shows,
//! and has its numbers in a table.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::html::{Page, escape, section};
use crate::load::{Entry, Key, number};
use crate::rating::percent;
use crate::read::collectives::{ceiling, link};
use crate::record::Scalar;
use crate::report::maps::{self, Mark, Range};
use crate::report::svg::{self, Band, Labels, Level, Series, Width};
use crate::report::{bytes, table};

/// Points of a trace: more are averaged.
const POINTS: usize = 160;
/// Raw files of traces that are read.
const TRACES: usize = 1024;
/// A raw file beyond this is not read for a trace.
const TRACE_BYTES: u64 = 16 << 20;

/// A believed value with its record.
pub(super) type Seen<'a> = (f64, &'a Key, &'a Entry);

/// Both drawings of a plot with its caption and text under it; open for its table.
pub(super) fn figure(
    out: &mut String,
    caption: &str,
    text: &str,
    draw: impl Fn(Width) -> String,
    table: impl FnOnce(&mut String),
) {
    let _ = writeln!(
        out,
        "<figure>\n<figcaption>{}</figcaption>\n{}\n{}\n<p class=\"small soft\">{}.</p>",
        escape(caption),
        draw(Width::Wide),
        draw(Width::Narrow),
        escape(text)
    );
    table(out);
    out.push_str("</figure>\n");
}

pub(super) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match (sorted.len() % 2, sorted.len() / 2) {
        (_, 0) if sorted.is_empty() => 0.0,
        (1, middle) => sorted[middle],
        (_, middle) => f64::midpoint(sorted[middle - 1], sorted[middle]),
    }
}

/// A number for a small place: three digits.
pub(super) fn short(value: f64) -> String {
    if value.abs() >= 100.0 {
        format!("{value:.0}")
    } else if value.abs() >= 1.0 || value == 0.0 {
        number((value * 100.0).round() / 100.0)
    } else {
        number(format!("{value:.2e}").parse().unwrap_or(value))
    }
}

/// A param of a record in words; empty when it has none.
pub(super) fn text(key: &Key, name: &str) -> String {
    key.params.get(name).map(ToString::to_string).unwrap_or_default()
}

/// Sizes of one collective by one tool: the values of all subjects.
type Sizes<'a> = BTreeMap<i64, Vec<(f64, &'a Key)>>;

impl<'p> Page<'p> {
    pub(super) fn believed<'b>(&'b self, metric: &'b str) -> impl Iterator<Item = Seen<'b>> {
        let entries = self.evaluation.loaded.entries.iter().filter(move |(key, _)| key.metric == metric);
        entries.filter_map(|(key, entry)| Some((entry.believed()?, key, entry)))
    }

    /// Which plots there is something for: id, name.
    pub(super) fn plotted(&self) -> Vec<(&'static str, &'static str)> {
        let has = |metric: &str| self.believed(metric).next().is_some();
        let fault = self.believed("event").any(|(_, key, _)| key.stage == "faults");
        [
            ("faults", "Fault timeline", fault),
            ("timeline", "Timeline", self.believed("event").any(|(_, key, _)| key.stage != "faults")),
            ("bandwidth", "Bus bandwidth", has("busbw")),
            ("links", "Links", has("rdma_bandwidth")),
            ("heat", "GPU by GPU", !self.heat_maps().is_empty()),
            ("burnin", "Burn-in", has("burnin_gemm")),
            ("stragglers", "Stragglers", has("stragglers") || has("straggler")),
        ]
        .into_iter()
        .filter(|(.., there)| *there)
        .map(|(id, name, _)| (id, name))
        .collect()
    }

    /// How firm the tier is: the lower bound under other weights, and without each category, against the cut-offs.
    pub(super) fn weight_plot(&self, out: &mut String) {
        let found = &self.evaluation.sensitivity;
        let rules = &self.evaluation.methodology.rules;
        let share = super::html::share;
        let ours = self.evaluation.rating.bounds.lower;
        let [low, middle, high] = found.draws.lower;
        let mut rows = vec![Range {
            name: "other weights".to_owned(),
            lower: share(low),
            upper: share(high),
            score: Some(share(ours)),
        }];
        for one in &found.without {
            let name = rules.category.iter().find(|category| category.id == one.category);
            rows.push(Range {
                name: format!("without {}", name.map_or(&*one.category, |category| &category.name)),
                lower: share(one.bounds.lower),
                upper: share(one.bounds.upper),
                score: Some(share(one.bounds.lower)),
            });
        }
        let cuts: Vec<(f64, String)> = rules.tier.iter().map(|tier| (tier.cut, tier.name.clone())).collect();
        let description = format!(
            "Under {} draws of other weights the lower bound is {} in the middle, {} to {} in 9 of 10; ours is {}",
            rules.sensitivity.draws,
            percent(middle),
            percent(low),
            percent(high),
            percent(ours)
        );
        let labels = Labels {
            id: "weights-plot",
            title: "The lower bound under other weights and without each category",
            description: &description,
            x: "",
            y: "",
        };
        let caption = "The mark is the lower bound. First row: 5 to 95 % of the draws. Then lower to upper bound without one category. Dashed: where a tier begins";
        figure(out, caption, &description, |width| maps::ranges(&labels, width, &rows, &cuts), |_| {});
    }

    /// Every fault that was injected: when it was detected, drained and returned.
    pub(super) fn faults(&self, out: &mut String) {
        let mut lanes: BTreeMap<(String, String), Vec<(f64, String)>> = BTreeMap::new();
        for (at, key, entry) in self.believed("event").filter(|(_, key, _)| key.stage == "faults") {
            let file =
                entry.evidence.as_ref().map(|(file, _)| self.evaluation.loaded.files[*file].file.clone());
            let lane = lanes.entry((key.subject.to_string(), file.unwrap_or_default())).or_default();
            lane.push((at, text(key, "event")));
        }
        if lanes.is_empty() {
            return;
        }
        section(out, "faults", "Fault timeline");
        let fault = |file: &str| {
            let mut of = self.believed("fault_drained").chain(self.believed("fault_to_drain_seconds"));
            let same = |entry: &Entry| {
                entry.evidence.as_ref().is_some_and(|(at, _)| self.evaluation.loaded.files[*at].file == file)
            };
            of.find(|(_, _, entry)| same(entry)).map(|(_, key, _)| text(key, "fault"))
        };
        let mut words = Vec::new();
        let mut rows = Vec::new();
        let lanes: Vec<(String, Vec<Mark>)> = lanes
            .into_iter()
            .map(|((subject, file), mut events)| {
                events.sort_by(|a, b| a.0.total_cmp(&b.0).then_with(|| a.1.cmp(&b.1)));
                // From the injection on, where it is known.
                let zero =
                    events.iter().find(|(_, name)| name == "injected").map_or(events[0].0, |(at, _)| *at);
                let seconds = |at: f64| format!("{} s", number(((at - zero) * 100.0).round() / 100.0));
                let name = match fault(&file).filter(|fault| !fault.is_empty()) {
                    Some(fault) => format!("{subject} {fault}"),
                    None => subject.clone(),
                };
                let said: Vec<String> =
                    events.iter().map(|(at, event)| format!("{event} {}", seconds(*at))).collect();
                words.push(format!("{name}: {}", said.join(", ")));
                let when = |wanted: &[&str]| {
                    let first = events.iter().find(|(_, event)| wanted.contains(&event.as_str()));
                    first.map_or_else(|| "not seen".to_owned(), |(at, _)| seconds(*at))
                };
                rows.push((
                    name.clone(),
                    [
                        when(&["injected"]),
                        when(&["detected", "verdict"]),
                        when(&["drained"]),
                        when(&["returned"]),
                    ],
                ));
                let marks = events
                    .iter()
                    .map(|(at, name)| Mark {
                        at: at - zero,
                        class: match name.as_str() {
                            "injected" => 4,
                            "drained" | "drained_again" => 1,
                            "returned" => 2,
                            _ => 0,
                        },
                        name: name.replace('_', " "),
                    })
                    .collect();
                (name, marks)
            })
            .collect();
        let description = words.join("; ");
        let labels = Labels {
            id: "faults-plot",
            title: "Faults that were injected",
            description: &description,
            x: "seconds since the injection",
            y: "",
        };
        let _ = writeln!(
            out,
            "<figure>\n<figcaption>Each fault from its injection on</figcaption>\n{}\n{}\n</figure>",
            maps::lanes(&labels, Width::Wide, &lanes),
            maps::lanes(&labels, Width::Narrow, &lanes)
        );
        table::FAULTS.open(out, "Fault timeline", false);
        for (name, cells) in rows {
            let cells: String = cells.iter().map(|cell| format!("<td class=\"num\">{cell}</td>")).collect();
            let _ = writeln!(out, "<tr><th scope=\"row\">{}</th>{cells}</tr>", escape(&name));
        }
        table::close(out);
        out.push_str("</section>\n");
    }

    /// Other events of the run.
    pub(super) fn timeline(&self, out: &mut String) {
        let mut events: BTreeMap<String, Vec<Mark>> = BTreeMap::new();
        for (at, key, _) in self.believed("event").filter(|(_, key, _)| key.stage != "faults") {
            let name = text(key, "event").replace('_', " ");
            events.entry(key.subject.to_string()).or_default().push(Mark { at, name, class: 0 });
        }
        if events.is_empty() {
            return;
        }
        section(out, "timeline", "Timeline");
        let mut lanes: Vec<(String, Vec<Mark>)> = events.into_iter().collect();
        let mut rows: Vec<(f64, String, String)> = Vec::new();
        for (name, marks) in &mut lanes {
            marks.sort_by(|a, b| a.at.total_cmp(&b.at).then_with(|| a.name.cmp(&b.name)));
            rows.extend(marks.iter().map(|mark| (mark.at, name.clone(), mark.name.clone())));
        }
        rows.sort_by(|a, b| a.0.total_cmp(&b.0));
        let words: Vec<String> = rows
            .iter()
            .take(40)
            .map(|(at, place, name)| format!("{} s {place} {name}", number(*at)))
            .collect();
        let labels = Labels {
            id: "timeline-plot",
            title: "Events of the run",
            description: &words.join("; "),
            x: "seconds since the run started",
            y: "",
        };
        lanes.truncate(32);
        let rows: Vec<(String, Vec<String>)> =
            rows.into_iter().map(|(at, place, name)| (number(at), vec![place, name])).collect();
        figure(
            out,
            "What happened where",
            &format!("{} events", rows.len()),
            |width| maps::lanes(&labels, width, &lanes),
            |out| {
                table::data(out, "Timeline", &[("Seconds", true), ("Where", false), ("What", false)], &rows)
            },
        );
        out.push_str("</section>\n");
    }

    /// Bus bandwidth over message size, with what is expected and what is impossible.
    pub(super) fn bandwidth(&self, out: &mut String) {
        let mut plots: BTreeMap<String, BTreeMap<(String, String), Sizes<'_>>> = BTreeMap::new();
        for (value, key, _) in self.believed("busbw") {
            let Some(Scalar::Int(size)) = key.params.get("size") else { continue };
            // Nodes and ranks as numbers first, so that 2 nodes come before 16.
            let whole = |name: &str| key.params.get(name).and_then(Scalar::as_f64).unwrap_or_default();
            let label: Vec<String> = key
                .params
                .iter()
                .filter(|(name, _)| !matches!(name.as_str(), "size" | "collective" | "api"))
                .map(|(name, value)| format!("{name} {value}"))
                .collect();
            let sizes = plots
                .entry(format!("{:09}\0{:09}\0{}", whole("nodes"), whole("ranks"), label.join(", ")))
                .or_default()
                .entry((text(key, "collective"), text(key, "api")))
                .or_default();
            sizes.entry(*size).or_default().push((value, key));
        }
        if plots.is_empty() {
            return;
        }
        section(out, "bandwidth", "Bus bandwidth over message size");
        out.push_str("<p>busbw as nccl-tests defines it: the algorithm bandwidth times a factor that makes it comparable with the link. The size axis is logarithmic; so is the other where nothing is known to be expected. \
                      The band is what is expected of the largest messages: from the published minimum to what is typically measured. Above the ceiling lies what the links cannot give.</p>\n<div class=\"plots\">\n");
        let mut single = String::new();
        let mut peaks: BTreeMap<String, BTreeMap<i64, f64>> = BTreeMap::new();
        for (index, (label, sweeps)) in plots.iter().enumerate() {
            let label = label.rsplit('\0').next().unwrap_or(label);
            if sweeps.values().any(|sizes| sizes.len() > 1) {
                self.sweep(out, index, label, sweeps, &mut peaks);
            } else {
                self.single_sizes(&mut single, label, sweeps);
            }
        }
        peaks.retain(|_, nodes| nodes.len() > 2);
        if !peaks.is_empty() {
            scaling(out, &peaks);
        }
        out.push_str("</div>\n");
        if !single.is_empty() {
            out.push_str("<h3>Of one size</h3>\n");
            table::SINGLE.open(out, "Bus bandwidth of one size", false);
            out.push_str(&single);
            table::close(out);
        }
        out.push_str("</section>\n");
    }

    /// One plot: a line a collective, the lowest of all nodes.
    fn sweep(
        &self,
        out: &mut String,
        index: usize,
        label: &str,
        sweeps: &BTreeMap<(String, String), Sizes<'_>>,
        peaks: &mut BTreeMap<String, BTreeMap<i64, f64>>,
    ) {
        let mut series: Vec<Series> = Vec::new();
        // Levels and bands that coincide have one name together.
        let mut levels: Vec<(f64, Vec<String>)> = Vec::new();
        let mut bands: Vec<(f64, f64, usize, Vec<String>)> = Vec::new();
        let mut words = Vec::new();
        let mut rules: Vec<(String, Vec<String>)> = Vec::new();
        let mut subjects = 1;
        for ((collective, api), sizes) in sweeps {
            let ways = sweeps.keys().filter(|(other, _)| other == collective).count();
            let name = if ways > 1 { format!("{collective} ({api})") } else { collective.clone() };
            let mut points = Vec::new();
            for (size, values) in sizes {
                subjects = subjects.max(values.len());
                points.push((
                    *size as f64,
                    values.iter().map(|(value, _)| *value).fold(f64::INFINITY, f64::min),
                ));
            }
            let keys = || sizes.values().flatten().map(|(_, key)| *key);
            let most = match keys().find_map(|key| self.judge.reference(key).ok()) {
                Some(reference) => {
                    let (low, high) = (reference.minimum, reference.typical);
                    match bands.iter_mut().find(|(a, b, ..)| (*a, *b) == (low, high)) {
                        Some((.., names)) => names.push(name.clone()),
                        None => bands.push((low, high, series.len(), vec![name.clone()])),
                    }
                    let from = reference
                        .size_min
                        .map_or_else(String::new, |size| format!(" from {}", bytes(size as f64)));
                    rules.push((
                        format!(
                            "expected {} to {} GB/s{from}, ceiling {} GB/s ({}; {})",
                            number(low),
                            number(high),
                            number(reference.ceiling),
                            reference.basis,
                            reference.source
                        ),
                        vec![name.clone()],
                    ));
                    Some(reference.ceiling)
                }
                // Without a published value the GPU's own links still bound it.
                None => self.link_ceiling(sizes).map(|(most, rule)| {
                    let text = format!("ceiling {} GB/s ({rule})", number(most));
                    match rules.iter_mut().find(|(known, _)| *known == text) {
                        Some((_, names)) => names.push(name.clone()),
                        None => rules.push((text, vec![name.clone()])),
                    }
                    most
                }),
            };
            if let Some(most) = most {
                match levels.iter_mut().find(|(y, _)| (*y - most).abs() < 0.5) {
                    Some((_, names)) => names.push(name.clone()),
                    None => levels.push((most, vec![name.clone()])),
                }
            }
            if let Some((size, value)) = points.iter().max_by(|a, b| a.1.total_cmp(&b.1)) {
                words.push(format!("{name} peaks at {} GB/s with {}", number(*value), bytes(*size)));
                if let Some(Scalar::Int(nodes)) = keys().next().and_then(|key| key.params.get("nodes")) {
                    let tool = keys()
                        .next()
                        .map(|key| text(key, "tool") + &text(key, "backend"))
                        .unwrap_or_default();
                    let peak = peaks.entry(format!("{name} {tool}").trim().to_owned()).or_default();
                    peak.insert(*nodes, *value);
                }
            }
            series.push(Series { name, points });
        }
        let alone = sweeps.len() == 1;
        let named = |what: String, names: &[String]| match names {
            _ if alone => what,
            [one] => format!("{what} {one}"),
            [first, rest @ ..] => format!("{what} {first} +{}", rest.len()),
            [] => what,
        };
        let bands: Vec<Band> = bands
            .iter()
            .map(|(low, high, style, names)| Band {
                name: named(format!("{}\u{2013}{}", number(*low), number(*high)), names),
                low: *low,
                high: *high,
                style: *style,
            })
            .collect();
        let levels: Vec<Level> = levels
            .iter()
            .map(|(y, names)| Level { name: named(format!("max {}", short(*y)), names), y: *y })
            .collect();
        let lowest = if subjects > 1 { format!(", lowest of {subjects} nodes") } else { String::new() };
        let caption = format!("{label}{lowest}");
        let mut rules: Vec<String> =
            rules.iter().map(|(text, names)| format!("{} {text}", names.join(", "))).collect();
        if rules.is_empty() {
            rules.push("Nothing is known to be expected here".to_owned());
        }
        let description = format!("{}; {}", words.join("; "), rules.join("; "));
        let labels = Labels {
            id: &format!("busbw-{index}"),
            title: &format!("Bus bandwidth over message size, {caption}"),
            description: &description,
            x: "message size",
            y: "GB/s",
        };
        figure(
            out,
            &caption,
            &rules.join("; "),
            |width| svg::sweep(&labels, width, &series, &bands, &levels, bytes),
            |out| over(out, &format!("Bus bandwidth, {caption}"), "Message", &series, bytes),
        );
    }

    /// What the links of the GPU model allow, where the model and a rule are known.
    fn link_ceiling(&self, sizes: &Sizes<'_>) -> Option<(f64, String)> {
        let (_, key) = sizes.values().flatten().next()?;
        let whole = |name: &str| key.params.get(name).and_then(Scalar::as_f64).map(|value| value as u64);
        let model = self.judge.model().ok()?;
        ceiling(&text(key, "collective"), whole("ranks")?, whole("nodes")?, None, link(model))
    }

    /// Rows of collectives of which one size was measured.
    fn single_sizes(&self, out: &mut String, label: &str, sweeps: &BTreeMap<(String, String), Sizes<'_>>) {
        for ((collective, _), sizes) in sweeps {
            for (size, values) in sizes {
                let Some((value, key)) = values.iter().min_by(|a, b| a.0.total_cmp(&b.0)) else { continue };
                let reference = self.judge.reference(key).ok();
                let lowest =
                    if values.len() > 1 { format!(", lowest of {}", values.len()) } else { String::new() };
                let _ = writeln!(
                    out,
                    "<tr><th scope=\"row\">{} <span class=\"soft small\">{}{lowest}</span></th><td class=\"num\">{}</td><td class=\"num\">{}</td><td class=\"num\">{}</td><td class=\"num\">{}</td></tr>",
                    escape(collective),
                    escape(label),
                    bytes(*size as f64),
                    number(*value),
                    reference.map_or_else(
                        || "unknown".to_owned(),
                        |one| format!("{} to {}", number(one.minimum), number(one.typical))
                    ),
                    reference.map_or_else(|| "unknown".to_owned(), |one| number(one.ceiling))
                );
            }
        }
    }

    /// Speed over the time of a burn-in: all ranks as a band, the median and the slowest as lines.
    pub(super) fn burnin(&self, out: &mut String) {
        let mut traces: Vec<(String, Vec<(f64, f64)>)> = Vec::new();
        let mut all = 0;
        for (_, key, entry) in self
            .believed("burnin_gemm")
            .filter(|(_, key, _)| key.params.get("stat").is_some_and(|stat| stat.to_string() == "median"))
        {
            all += 1;
            let Some((file, _)) = entry.evidence.as_ref().filter(|_| all <= TRACES) else { continue };
            let name = match key.params.get("rank") {
                Some(rank) => format!("{} rank {rank}", key.subject),
                None => key.subject.to_string(),
            };
            if let Some(points) = self.trace(*file) {
                traces.push((name, points));
            }
        }
        if traces.is_empty() {
            return;
        }
        section(out, "burnin", "Burn-in");
        if all > traces.len() {
            let _ = writeln!(
                out,
                "<p>Traces of {} of {all} ranks; the others have values only.</p>",
                traces.len()
            );
        }
        let length = traces.iter().map(|(_, points)| points.len()).min().unwrap_or(0);
        let bins = length.min(POINTS);
        if bins < 2 {
            let _ = writeln!(out, "<p>{} ranks, too few samples for a line.</p>\n</section>", traces.len());
            return;
        }
        let binned: Vec<Vec<(f64, f64)>> = traces
            .iter()
            .map(|(_, points)| {
                (0..bins)
                    .map(|bin| {
                        let part = &points[bin * length / bins..(bin + 1) * length / bins];
                        let mean = |pick: fn(&(f64, f64)) -> f64| {
                            part.iter().map(pick).sum::<f64>() / part.len() as f64
                        };
                        (mean(|point| point.0), mean(|point| point.1))
                    })
                    .collect()
            })
            .collect();
        let columns: Vec<Vec<f64>> =
            (0..bins).map(|bin| binned.iter().map(|points| points[bin].1).collect()).collect();
        let at = |bin: usize| binned[0][bin].0;
        let lowest = |bin: usize| columns[bin].iter().copied().fold(f64::INFINITY, f64::min);
        let highest = |bin: usize| columns[bin].iter().copied().fold(0.0, f64::max);
        let area: Vec<(f64, f64, f64)> = (0..bins).map(|bin| (at(bin), lowest(bin), highest(bin))).collect();
        let middle: Vec<(f64, f64)> = (0..bins).map(|bin| (at(bin), median(&columns[bin]))).collect();
        let of: Vec<f64> = binned
            .iter()
            .map(|points| median(&points.iter().map(|point| point.1).collect::<Vec<_>>()))
            .collect();
        let slowest = (0..of.len()).min_by(|a, b| of[*a].total_cmp(&of[*b])).unwrap_or(0);
        let thousandth = |value: f64| number((value * 1000.0).round() / 1000.0);
        let description = format!(
            "{} ranks over {} s: median {} TFLOP/s, slowest {} with {} TFLOP/s; from {} in the first part to {} in the last",
            traces.len(),
            number(traces[0].1[length - 1].0.round()),
            thousandth(median(&middle.iter().map(|point| point.1).collect::<Vec<_>>())),
            traces[slowest].0,
            thousandth(of[slowest]),
            thousandth(middle[0].1),
            thousandth(middle[bins - 1].1)
        );
        let labels = Labels {
            id: "burnin-plot",
            title: "Matrix multiplication during the burn-in",
            description: &description,
            x: "seconds",
            y: "TFLOP/s of a rank",
        };
        let mut lines = vec![Series { name: "median of all".to_owned(), points: middle }];
        if traces.len() > 1 {
            lines.push(Series { name: traces[slowest].0.clone(), points: binned[slowest].clone() });
        }
        let columns = [
            ("Seconds", true),
            ("Lowest", true),
            ("Median", true),
            ("Highest", true),
            ("Slowest rank", true),
        ];
        // Twenty moments are enough to read.
        let rows: Vec<(String, Vec<String>)> = (0..bins)
            .step_by(bins.div_ceil(20))
            .map(|bin| {
                let cells = [area[bin].1, lines[0].points[bin].1, area[bin].2, binned[slowest][bin].1];
                (number(at(bin).round()), cells.iter().map(|value| short(*value)).collect())
            })
            .collect();
        figure(
            out,
            "Each rank's speed while a collective runs beside it",
            &description,
            |width| svg::traces(&labels, width, ("lowest to highest of all ranks", &area), &lines),
            |out| table::data(out, "Burn-in, TFLOP/s", &columns, &rows),
        );
        out.push_str("</section>\n");
    }

    /// Seconds and TFLOP/s of a rank's raw file, which was verified.
    fn trace(&self, file: usize) -> Option<Vec<(f64, f64)>> {
        #[derive(serde::Deserialize)]
        struct Raw {
            n: f64,
            samples: Vec<Vec<f64>>,
        }
        let loaded = &self.evaluation.loaded;
        let raw = loaded.files.get(file).filter(|raw| raw.problem.is_none() && !raw.outside)?;
        let path = loaded.dir.join(&raw.file);
        if std::fs::metadata(&path).ok()?.len() > TRACE_BYTES {
            return None;
        }
        let raw: Raw = serde_json::from_slice(&std::fs::read(path).ok()?).ok()?;
        // The first second holds the warm-up.
        let points: Vec<(f64, f64)> = raw
            .samples
            .iter()
            .skip(1)
            .filter_map(|sample| Some((*sample.first()?, *sample.get(2)?)))
            .filter(|(at, seconds)| at.is_finite() && *seconds > 0.0)
            .map(|(at, seconds)| (at, 2.0 * raw.n.powi(3) / seconds / 1e12))
            .collect();
        (!points.is_empty()).then_some(points)
    }
}

/// The highest bandwidth of each collective over the number of nodes.
fn scaling(out: &mut String, peaks: &BTreeMap<String, BTreeMap<i64, f64>>) {
    let series: Vec<Series> = peaks
        .iter()
        .map(|(name, nodes)| Series {
            name: name.clone(),
            points: nodes.iter().map(|(nodes, value)| (*nodes as f64, *value)).collect(),
        })
        .collect();
    let words: Vec<String> = series
        .iter()
        .filter_map(|one| {
            let ((from, first), (to, last)) = (one.points.first()?, one.points.last()?);
            Some(format!("{}: {} GB/s on {from}, {} GB/s on {to}", one.name, short(*first), short(*last)))
        })
        .collect();
    let description = words.join("; ");
    let labels = Labels {
        id: "scaling-plot",
        title: "Highest bus bandwidth over the number of nodes",
        description: &description,
        x: "nodes",
        y: "GB/s",
    };
    figure(
        out,
        "The highest of each sweep over the number of nodes",
        &description,
        |width| svg::sweep(&labels, width, &series, &[], &[], number),
        |out| over(out, "Highest bus bandwidth over nodes", "Nodes", &series, number),
    );
}

/// The points of some series as a table: a row an x.
fn over(out: &mut String, label: &str, x: &str, series: &[Series], name_x: impl Fn(f64) -> String) {
    let mut columns = vec![(x, true)];
    columns.extend(series.iter().map(|one| (one.name.as_str(), true)));
    // Sizes and nodes are whole numbers.
    let xs: BTreeSet<u64> = series.iter().flat_map(|one| &one.points).map(|(x, _)| *x as u64).collect();
    let rows: Vec<(String, Vec<String>)> = xs
        .into_iter()
        .map(|x| {
            let cell = |one: &Series| {
                let point = one.points.iter().find(|(at, _)| *at as u64 == x);
                point.map_or_else(|| "none".to_owned(), |(_, value)| short(*value))
            };
            (name_x(x as f64), series.iter().map(cell).collect())
        })
        .collect();
    table::data(out, label, &columns, &rows);
}
