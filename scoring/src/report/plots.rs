//! The plots of the HTML report: what the records and raw files give for people who look rather than read.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::html::{Page, escape, scroll, section};
use crate::judge::Evidence;
use crate::load::{Entry, Key, number};
use crate::rating::percent;
use crate::record::Scalar;
use crate::report::bytes;
use crate::report::maps::{self, Cell, Mark};
use crate::report::svg::{self, Labels, Level, Range, Series};

/// Rows of a heat map; of a larger cluster the nodes that stand out most are shown.
const ROWS: usize = 32;
/// Points of a trace: more are averaged.
const POINTS: usize = 160;
/// Raw files of traces that are read.
const TRACES: usize = 1024;
/// A raw file beyond this is not read for a trace.
const TRACE_BYTES: u64 = 16 << 20;

/// A believed value with its record.
type Seen<'a> = (f64, &'a Key, &'a Entry);

/// A figure with its caption and, for those who do not see it, its description as text.
fn figure(out: &mut String, caption: &str, plot: &str, description: &str) {
    let _ = writeln!(out, "<figure>\n<figcaption>{}</figcaption>", escape(caption));
    scroll(out, &format!("Plot: {caption}"), false);
    let _ = writeln!(out, "{plot}\n</div>\n<p class=\"small soft\">{}.</p>\n</figure>", escape(description));
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match (sorted.len() % 2, sorted.len() / 2) {
        (_, 0) if sorted.is_empty() => 0.0,
        (1, middle) => sorted[middle],
        (_, middle) => f64::midpoint(sorted[middle - 1], sorted[middle]),
    }
}

impl Page<'_> {
    fn believed<'b>(&'b self, metric: &'b str) -> impl Iterator<Item = (f64, &'b Key, &'b Entry)> {
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
        let share = |value: u32| f64::from(value) / 1e6;
        let [low, middle, high] = found.draws.lower;
        let mut rows = vec![Range {
            name: "other weights".to_owned(),
            lower: share(low),
            upper: share(high),
            score: Some(share(self.evaluation.rating.bounds.lower)),
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
            "under {} draws of other weights the lower bound is {} in the middle, {} to {} in 9 of 10; ours is {}",
            rules.sensitivity.draws,
            percent(middle),
            percent(low),
            percent(high),
            percent(self.evaluation.rating.bounds.lower)
        );
        let labels = Labels {
            id: "weights-plot",
            title: "The lower bound under other weights and without each category",
            description: &description,
            x: "",
            y: "",
        };
        let caption = "The mark is the lower bound. First row: 5 to 95 % of the draws. Then lower to upper bound without one category";
        figure(out, caption, &svg::ranges(&labels, &rows, &cuts), &description);
    }

    /// Every fault that was injected: when it was detected, drained and returned.
    pub(super) fn faults(&self, out: &mut String) {
        let mut lanes: BTreeMap<(String, String), Vec<(f64, String)>> = BTreeMap::new();
        for (at, key, entry) in self.believed("event").filter(|(_, key, _)| key.stage == "faults") {
            let file =
                entry.evidence.as_ref().map(|(file, _)| self.evaluation.loaded.files[*file].file.clone());
            let name = key.params.get("event").map(ToString::to_string).unwrap_or_default();
            lanes.entry((key.subject.to_string(), file.unwrap_or_default())).or_default().push((at, name));
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
            of.find(|(_, _, entry)| same(entry))
                .and_then(|(_, key, _)| key.params.get("fault").map(ToString::to_string))
        };
        let mut words = Vec::new();
        let lanes: Vec<(String, Vec<Mark>)> = lanes
            .into_iter()
            .map(|((subject, file), mut events)| {
                events.sort_by(|a, b| a.0.total_cmp(&b.0).then_with(|| a.1.cmp(&b.1)));
                // From the injection on, where it is known.
                let zero =
                    events.iter().find(|(_, name)| name == "injected").map_or(events[0].0, |(at, _)| *at);
                let name = fault(&file).map_or_else(|| subject.clone(), |fault| format!("{subject} {fault}"));
                let said: Vec<String> = events
                    .iter()
                    .map(|(at, event)| format!("{event} {} s", number(((at - zero) * 100.0).round() / 100.0)))
                    .collect();
                words.push(format!("{name}: {}", said.join(", ")));
                let marks = events
                    .into_iter()
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
        figure(out, "Each fault from its injection on", &maps::lanes(&labels, &lanes), &description);
        out.push_str("</section>\n");
    }

    /// Other events of the run.
    pub(super) fn timeline(&self, out: &mut String) {
        let mut events: Vec<(f64, String)> = self
            .believed("event")
            .filter(|(_, key, _)| key.stage != "faults")
            .map(|(at, key, _)| {
                let name = key.params.get("event").map(ToString::to_string).unwrap_or_default();
                (at, format!("{} {name}", key.subject))
            })
            .collect();
        if events.is_empty() {
            return;
        }
        events.sort_by(|a, b| a.0.total_cmp(&b.0).then_with(|| a.1.cmp(&b.1)));
        section(out, "timeline", "Timeline");
        let words: Vec<String> =
            events.iter().map(|(at, name)| format!("{} s {name}", number(*at))).collect();
        let labels = Labels {
            id: "timeline-plot",
            title: "Events of the run",
            description: &words.join("; "),
            x: "seconds since the run started",
            y: "",
        };
        scroll(out, "Timeline", false);
        out.push_str(&svg::timeline(&labels, &events));
        out.push_str("</div>\n</section>\n");
    }

    /// Bus bandwidth over message size, with what is expected and what is impossible.
    pub(super) fn bandwidth(&self, out: &mut String) {
        // Plot, (collective, torch's name of it), size: the values of all subjects.
        type Sizes<'a> = BTreeMap<i64, Vec<(f64, &'a Key)>>;
        let mut plots: BTreeMap<String, BTreeMap<(String, String), Sizes<'_>>> = BTreeMap::new();
        for (value, key, _) in self.believed("busbw") {
            let Some(Scalar::Int(size)) = key.params.get("size") else { continue };
            let text = |name: &str| key.params.get(name).map(ToString::to_string).unwrap_or_default();
            let label: Vec<String> = key
                .params
                .iter()
                .filter(|(name, _)| !matches!(name.as_str(), "size" | "collective" | "api"))
                .map(|(name, value)| format!("{name} {value}"))
                .collect();
            let sizes = plots
                .entry(label.join(", "))
                .or_default()
                .entry((text("collective"), text("api")))
                .or_default();
            sizes.entry(*size).or_default().push((value, key));
        }
        if plots.is_empty() {
            return;
        }
        section(out, "bandwidth", "Bus bandwidth over message size");
        out.push_str("<p>busbw as nccl-tests defines it: the algorithm bandwidth times a factor that makes it comparable with the link. The size axis is logarithmic; so is the other where nothing is known to be expected. \
                      The band is what is expected: from the published minimum to what is typically measured. Above the ceiling lies what the links cannot give.</p>\n");
        let evidence = Evidence::new(&self.evaluation.loaded, &self.evaluation.methodology);
        for (index, (label, sweeps)) in plots.iter().enumerate() {
            let mut series = Vec::new();
            let mut levels: Vec<Level> = Vec::new();
            let mut bands = Vec::new();
            let mut words = Vec::new();
            let mut subjects = 1;
            for ((collective, api), sizes) in sweeps {
                let ways = sweeps.keys().filter(|(other, _)| other == collective).count();
                let name = if ways > 1 { format!("{collective} ({api})") } else { collective.clone() };
                let mut points = Vec::new();
                let mut reference = None;
                for (size, values) in sizes {
                    subjects = subjects.max(values.len());
                    reference = values.iter().find_map(|(_, key)| evidence.reference(key).ok()).or(reference);
                    let lowest = values.iter().map(|(value, _)| *value).fold(f64::INFINITY, f64::min);
                    points.push((*size as f64, lowest));
                }
                if let Some(reference) = reference {
                    bands.push((reference.minimum, reference.typical));
                    let expected = format!(
                        "{name} expected {} to {}",
                        number(reference.minimum),
                        number(reference.typical)
                    );
                    words.push(format!(
                        "{expected} GB/s, ceiling {} GB/s ({})",
                        number(reference.ceiling),
                        reference.basis
                    ));
                    levels.push(Level { name: expected, y: reference.typical, under: true });
                    levels.push(Level {
                        name: format!("{name} ceiling {}", number(reference.ceiling)),
                        y: reference.ceiling,
                        under: false,
                    });
                }
                if let Some((size, value)) = points.iter().max_by(|a, b| a.1.total_cmp(&b.1)) {
                    words.push(format!("{name} peaks at {} GB/s with {}", number(*value), bytes(*size)));
                }
                series.push(Series { name, points });
            }
            let lowest = if subjects > 1 { format!(", lowest of {subjects} nodes") } else { String::new() };
            let caption = format!("{label}{lowest}");
            let description = words.join("; ");
            let _ = writeln!(out, "<figure>\n<figcaption>{}</figcaption>", escape(&caption));
            // One size is a number, not a line.
            if series.iter().any(|one| one.points.len() > 1) {
                let labels = Labels {
                    id: &format!("busbw-{index}"),
                    title: &format!("Bus bandwidth over message size, {caption}"),
                    description: &description,
                    x: "message size",
                    y: "GB/s",
                };
                scroll(out, &format!("Plot: bus bandwidth, {caption}"), false);
                out.push_str(&svg::sweep(&labels, &series, &levels, &bands, bytes));
                out.push_str("</div>\n");
            }
            let _ = writeln!(out, "<p class=\"small soft\">{}.</p>\n</figure>", escape(&description));
        }
        out.push_str("</section>\n");
    }

    /// Metrics with a value a GPU, by what they are of: at most three, those of most GPUs.
    fn heat_maps(&self) -> Vec<(String, Vec<Seen<'_>>)> {
        let mut found: BTreeMap<String, Vec<Seen<'_>>> = BTreeMap::new();
        for metric in ["gemm", "burnin_gemm", "host_to_device", "device_to_host"] {
            for (value, key, entry) in self.believed(metric).filter(|(_, key, _)| {
                // Of a burn-in the slowest second is in its trace.
                let stat = key.params.get("stat").map(ToString::to_string);
                key.subject.gpu.is_some() && stat.as_deref() != Some("slowest_second")
            }) {
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
        out.push_str("<p>Each cell is one GPU; its colour and the percentage are its distance from the median of all.</p>\n");
        for (index, (name, values)) in found.into_iter().enumerate() {
            let middle = median(&values.iter().map(|(value, ..)| *value).collect::<Vec<_>>());
            let mut nodes: BTreeMap<&str, BTreeMap<u32, f64>> = BTreeMap::new();
            for (value, key, _) in &values {
                if let (Some(node), Some(gpu)) = (key.subject.node.as_deref(), key.subject.gpu) {
                    let old = nodes.entry(node).or_default().entry(gpu).or_insert(*value);
                    *old = old.min(*value);
                }
            }
            let off = |value: f64| if middle > 0.0 { (value / middle - 1.0) * 100.0 } else { 0.0 };
            let lowest = |gpus: &BTreeMap<u32, f64>| gpus.values().copied().fold(f64::INFINITY, f64::min);
            let columns: Vec<u32> = nodes
                .values()
                .flat_map(BTreeMap::keys)
                .copied()
                .collect::<BTreeSet<_>>()
                .into_iter()
                .collect();
            let total = nodes.len();
            let mut rows: Vec<(&str, BTreeMap<u32, f64>)> = nodes.into_iter().collect();
            let order = &self.evaluation.loaded.run.nodes;
            rows.sort_by_key(|(node, _)| order.iter().position(|name| name == node));
            if total > ROWS {
                rows.sort_by(|a, b| lowest(&a.1).total_cmp(&lowest(&b.1)).then_with(|| a.0.cmp(b.0)));
                rows.truncate(ROWS);
            }
            let cells: Vec<(String, Vec<Option<Cell>>)> = rows
                .iter()
                .map(|(node, gpus)| {
                    let cell = |gpu: &u32| {
                        let value = *gpus.get(gpu)?;
                        let off = off(value);
                        let class = match off {
                            off if off <= -10.0 => 0,
                            off if off <= -5.0 => 1,
                            off if off <= -2.0 => 2,
                            off if off < 2.0 => 3,
                            _ => 4,
                        };
                        let text =
                            if class == 3 { short(value) } else { format!("{} {off:+.0}%", short(value)) };
                        Some(Cell { text, class })
                    };
                    ((*node).to_owned(), columns.iter().map(cell).collect())
                })
                .collect();
            let worst = values.iter().min_by(|a, b| a.0.total_cmp(&b.0));
            let best = values.iter().map(|(value, ..)| *value).fold(0.0, f64::max);
            let worst = worst.map_or_else(String::new, |(value, key, _)| {
                format!("lowest {} ({}, {:+.1} %), ", number(*value), key.subject, off(*value))
            });
            let description = format!(
                "{} GPUs of {total} nodes: {worst}median {}, highest {}",
                values.len(),
                number(middle),
                number(best)
            );
            let labels = Labels {
                id: &format!("heat-{index}"),
                title: &name,
                description: &description,
                x: "",
                y: "GPU",
            };
            let names: Vec<String> = columns.iter().map(|gpu| format!("g{gpu}")).collect();
            let caption = if total > ROWS {
                format!("{name}; the {ROWS} nodes with the slowest GPUs of {total}")
            } else {
                name.clone()
            };
            figure(out, &caption, &maps::grid(&labels, &names, &cells), &description);
        }
        out.push_str("</section>\n");
    }

    /// Speed over the time of a burn-in: all ranks as a band, the median and the slowest as lines.
    pub(super) fn burnin(&self, out: &mut String) {
        let mut traces: Vec<(String, Vec<(f64, f64)>)> = Vec::new();
        for (_, key, entry) in self
            .believed("burnin_gemm")
            .filter(|(_, key, _)| key.params.get("stat").is_some_and(|stat| stat.to_string() == "median"))
            .take(TRACES)
        {
            let Some((file, _)) = &entry.evidence else { continue };
            let name = key
                .params
                .get("rank")
                .map_or_else(|| key.subject.to_string(), |rank| format!("{} rank {rank}", key.subject));
            if let Some(points) = self.trace(*file) {
                traces.push((name, points));
            }
        }
        if traces.is_empty() {
            return;
        }
        section(out, "burnin", "Burn-in");
        let length = traces.iter().map(|(_, points)| points.len()).min().unwrap_or(0);
        let bins = length.min(POINTS);
        if bins > 1 {
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
            let column = |bin: usize| binned.iter().map(|points| points[bin].1).collect::<Vec<_>>();
            let band: Vec<(f64, f64, f64)> = (0..bins)
                .map(|bin| {
                    let values = column(bin);
                    (
                        binned[0][bin].0,
                        values.iter().copied().fold(f64::INFINITY, f64::min),
                        values.iter().copied().fold(0.0, f64::max),
                    )
                })
                .collect();
            let middle: Vec<(f64, f64)> =
                (0..bins).map(|bin| (binned[0][bin].0, median(&column(bin)))).collect();
            let of = |index: usize| median(&binned[index].iter().map(|point| point.1).collect::<Vec<_>>());
            let slowest = (0..binned.len()).min_by(|a, b| of(*a).total_cmp(&of(*b))).unwrap_or(0);
            let all = median(&middle.iter().map(|point| point.1).collect::<Vec<_>>());
            let description = format!(
                "{} ranks over {} s: median {} TFLOP/s, slowest {} with {} TFLOP/s; from {} in the first part to {} in the last",
                traces.len(),
                number(traces[0].1[length - 1].0.round()),
                number((all * 1000.0).round() / 1000.0),
                traces[slowest].0,
                number((of(slowest) * 1000.0).round() / 1000.0),
                number((middle[0].1 * 1000.0).round() / 1000.0),
                number((middle[bins - 1].1 * 1000.0).round() / 1000.0)
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
            figure(
                out,
                "Each rank's speed while a collective runs beside it; the band spans all ranks",
                &maps::traces(&labels, &band, &lines),
                &description,
            );
        } else {
            let _ = writeln!(out, "<p>{} ranks, too few samples for a line.</p>", traces.len());
        }
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

    /// Ranks that are slow at equal work, where they are.
    pub(super) fn stragglers(&self, out: &mut String) {
        let compared = self.believed("stragglers").count();
        let slow: Vec<(f64, &Key, &Entry)> = self.believed("straggler").collect();
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
            let text = |name: &str| key.params.get(name).map(ToString::to_string).unwrap_or_default();
            signals
                .entry(format!("{}: {}, by {} time", key.stage, text("signal"), text("clock")))
                .or_default()
                .push((value, key));
        }
        for (index, (name, values)) in signals.into_iter().enumerate() {
            let place = |key: &Key| match (key.subject.gpu, key.params.get("rank")) {
                (Some(gpu), _) => format!("g{gpu}"),
                (None, Some(rank)) => format!("rank {rank}"),
                (None, None) => "node".to_owned(),
            };
            let mut columns: Vec<(usize, String)> =
                values.iter().map(|(_, key)| place(key)).map(|name| (name.len(), name)).collect();
            columns.sort();
            columns.dedup();
            columns.truncate(16);
            let mut nodes: Vec<String> = self.evaluation.loaded.run.nodes.clone();
            let hit = |node: &String| values.iter().any(|(_, key)| key.subject.node.as_ref() == Some(node));
            nodes.sort_by_key(|node| !hit(node));
            nodes.truncate(ROWS);
            let mut words = Vec::new();
            let rows: Vec<(String, Vec<Option<Cell>>)> = nodes
                .iter()
                .map(|node| {
                    let cell = |(_, column): &(usize, String)| {
                        let found = values.iter().find(|(_, key)| {
                            key.subject.node.as_ref() == Some(node) && place(key) == *column
                        });
                        Some(found.map_or(Cell { text: String::new(), class: 3 }, |(value, key)| {
                            let kind = key.params.get("kind").map(ToString::to_string).unwrap_or_default();
                            let class = match kind.as_str() {
                                "persistent" => 0,
                                "transient" => 1,
                                _ => 2,
                            };
                            Cell { text: format!("+{}%", number(value.round())), class }
                        }))
                    };
                    (node.clone(), columns.iter().map(cell).collect())
                })
                .collect();
            for (value, key) in &values {
                let kind = key.params.get("kind").map(ToString::to_string).unwrap_or_default();
                words.push(format!(
                    "{} {} {kind} {} % slower",
                    key.subject.node.as_deref().unwrap_or("cluster"),
                    place(key),
                    number((value * 10.0).round() / 10.0)
                ));
            }
            let more = words.len().saturating_sub(12);
            words.truncate(12);
            let description =
                if more > 0 { format!("{} and {more} more", words.join("; ")) } else { words.join("; ") };
            let names: Vec<String> = columns.into_iter().map(|(_, name)| name).collect();
            let labels = Labels {
                id: &format!("straggler-{index}"),
                title: &format!("Stragglers, {name}"),
                description: &description,
                x: "",
                y: "",
            };
            figure(out, &name, &maps::grid(&labels, &names, &rows), &description);
        }
        out.push_str("</section>\n");
    }
}

/// A number for a small cell: three digits.
fn short(value: f64) -> String {
    if value.abs() >= 100.0 { format!("{value:.0}") } else { number((value * 100.0).round() / 100.0) }
}
