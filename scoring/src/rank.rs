//! `clustermax rank`: several scored runs side by side, under one methodology.
//!
//! The order is by tier, then by lower bound. A relative tier says how a run stands among its peers; it is given only
//! with the peer set and its date, for enough peers, and never to a run that is Unavailable or Underperforming.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Value, json};

use crate::Failure;
use crate::judge::{Micro, micro};
use crate::methodology::{Methodology, RelativeRules};
use crate::rating::{UNAVAILABLE, UNDERPERFORMING, percent, place, tier_name};
use crate::report::html::{CLOSE_PAGE, escape, open_page};
use crate::report::maps::{self, Range};
use crate::report::svg::{Labels, Width};
use crate::report::{plain, print, table};
use crate::run::{self, Run};
use crate::score::{self, methodology};

/// The schema of `clustermax rank --json`.
pub const SCHEMA: &str = "clustermax-rank/1";

/// `clustermax rank`
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Results folders with a score.json, or such files
    #[arg(required = true)]
    pub runs: Vec<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Also write one HTML file with table and plot
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Read the methodology from this folder instead of the built-in one
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
}

/// The part of score.json that ranks.
#[derive(Debug, Clone, Deserialize)]
struct Score {
    methodology: String,
    inputs: Inputs,
    rating: RatingPart,
    result: Bounds,
    run: Run,
    sensitivity: SensitivityPart,
}

#[derive(Debug, Clone, Deserialize)]
struct Inputs {
    evidence: Option<EvidencePart>,
    methodology: std::collections::BTreeMap<String, String>,
}

#[derive(Debug, Clone, Deserialize)]
struct EvidencePart {
    provider: String,
}

#[derive(Debug, Clone, Deserialize)]
struct RatingPart {
    estimate: EstimatePart,
    not_rated: Vec<String>,
}

#[derive(Debug, Clone, Deserialize)]
struct EstimatePart {
    tier: String,
    decided_by: String,
    provisional: bool,
}

#[derive(Debug, Clone, Copy, Deserialize)]
struct Bounds {
    coverage: f64,
    lower: f64,
    score: Option<f64>,
    upper: f64,
}

#[derive(Debug, Clone, Deserialize)]
struct SensitivityPart {
    weights: WeightsPart,
}

#[derive(Debug, Clone, Deserialize)]
struct WeightsPart {
    lower: Percentiles,
}

#[derive(Debug, Clone, Copy, Deserialize)]
struct Percentiles {
    p05: f64,
    p95: f64,
}

/// One line of the ranking.
#[derive(Debug, Clone)]
struct Place {
    name: String,
    score: Score,
    /// From 1; runs that tie share it. Absent for a run that is not rated.
    rank: Option<usize>,
    tie: bool,
    relative: Option<String>,
    /// How firmly it stands above the next one.
    above_next: Option<&'static str>,
}

impl Place {
    fn lower(&self) -> Micro {
        micro(self.score.result.lower)
    }

    fn tier(&self) -> &str {
        &self.score.rating.estimate.tier
    }
}

/// The whole ranking.
struct Ranking {
    places: Vec<Place>,
    /// Day of the latest run.
    date: String,
    /// Runs that may have a relative tier.
    peers: usize,
}

/// Runs the command.
///
/// # Errors
/// A score.json that cannot be used, runs of different methodologies, a file that cannot be written (2).
pub fn run(args: &Args) -> Result<u8, Failure> {
    let methodology = methodology(args.data.as_deref())?;
    let mut scores = Vec::new();
    for path in &args.runs {
        scores.push((path.clone(), read(path)?));
    }
    same(&scores, &methodology)?;
    let ranking = order(scores.into_iter().map(|(_, score)| score).collect(), &methodology);
    if let Some(file) = &args.html {
        run::write_atomic(file, html(&ranking, &methodology).as_bytes()).map_err(|error| {
            Failure::input(format!(
                "cannot write {}: {error}; give a file in a folder that exists and is writable",
                file.display()
            ))
        })?;
    }
    print(&if args.json { to_json(&ranking, &methodology) } else { text(&ranking, &methodology) })?;
    Ok(0)
}

fn read(path: &Path) -> Result<Score, Failure> {
    let file = if path.is_dir() { path.join("score.json") } else { path.to_owned() };
    let bad = |what: String| {
        Failure::input(format!(
            "{}: {what}; run `clustermax score` on that results folder again",
            file.display()
        ))
    };
    let text = run::read_regular(&file).map_err(|error| bad(format!("cannot be read: {error}")))?;
    let value: Value = serde_json::from_str(&text).map_err(|error| bad(format!("not JSON: {error}")))?;
    match value.get("schema").and_then(Value::as_str) {
        Some(score::SCHEMA) => {}
        Some(other) => {
            return Err(bad(format!("schema is {other:?}, this release reads {:?}", score::SCHEMA)));
        }
        None => return Err(bad("schema is missing".to_owned())),
    }
    let score: Score = serde_json::from_value(value).map_err(|error| bad(format!("not a score: {error}")))?;
    let Bounds { coverage, lower, upper, .. } = score.result;
    let shares = [coverage, lower, upper, score.result.score.unwrap_or_default()];
    if shares.iter().any(|share| !(0.0..=1.0).contains(share)) || lower > upper {
        return Err(bad("its result is not within 0 and 1, or its bounds are out of order".to_owned()));
    }
    Ok(score)
}

/// Scores under different rules cannot be compared.
fn same(scores: &[(PathBuf, Score)], methodology: &Methodology) -> Result<(), Failure> {
    for (path, score) in scores {
        let ours = &methodology.rules.methodology;
        if score.methodology != *ours || score.inputs.methodology != methodology.digests {
            let which = if score.methodology == *ours {
                format!("the name {ours} but other tables")
            } else {
                format!("methodology {}, this ranking uses {ours}", score.methodology)
            };
            return Err(Failure::input(format!(
                "{} was scored with {which}; scores of different rules cannot be ranked, run `clustermax score` on its folder again",
                path.display()
            )));
        }
    }
    let mut seen = BTreeSet::new();
    for (path, score) in scores {
        if !seen.insert((&score.run.cluster, &score.run.run)) {
            return Err(Failure::input(format!(
                "{} is run {} of cluster {} once more; name each run once",
                path.display(),
                plain(&score.run.run),
                plain(&score.run.cluster)
            )));
        }
    }
    Ok(())
}

fn order(scores: Vec<Score>, methodology: &Methodology) -> Ranking {
    let tiers = &methodology.rules.tier;
    let relative = &methodology.rules.relative;
    let date = scores.iter().map(|score| score.run.started.chars().take(10).collect::<String>()).max();
    let mut places: Vec<Place> = scores
        .into_iter()
        .map(|score| Place {
            name: score.inputs.evidence.as_ref().map_or_else(
                || score.run.cluster.clone(),
                |evidence| format!("{} ({})", evidence.provider, score.run.cluster),
            ),
            score,
            rank: None,
            tie: false,
            relative: None,
            above_next: None,
        })
        .collect();
    places.sort_by(|a, b| {
        let key = |one: &Place| (!one.score.rating.not_rated.is_empty(), place(tiers, one.tier()));
        key(a)
            .cmp(&key(b))
            .then_with(|| b.lower().cmp(&a.lower()))
            .then_with(|| a.name.cmp(&b.name))
            .then_with(|| a.score.run.run.cmp(&b.score.run.run))
    });
    let rated = places.iter().take_while(|one| one.score.rating.not_rated.is_empty()).count();
    // A tie is measured from its first, so that a chain of small steps does not make one tie of all.
    let mut first = 0;
    for at in 0..rated {
        let close = places[first].tier() == places[at].tier()
            && places[first].lower() - places[at].lower() <= micro(relative.tie);
        if !close {
            first = at;
        }
        places[at].rank = Some(first + 1);
        if at > first {
            places[first].tie = true;
            places[at].tie = true;
        }
        if at + 1 < rated {
            places[at].above_next = Some(firmness(&places[at].score, &places[at + 1].score));
        }
    }
    let peers =
        places[..rated].iter().filter(|one| ![UNAVAILABLE, UNDERPERFORMING].contains(&one.tier())).count();
    if peers >= relative.peers {
        for one in places[..rated]
            .iter_mut()
            .filter(|one| ![UNAVAILABLE, UNDERPERFORMING].contains(&one.score.rating.estimate.tier.as_str()))
        {
            one.relative = one.rank.and_then(|rank| relative_tier(relative, rank, peers));
        }
    }
    Ranking { places, date: date.unwrap_or_default(), peers }
}

/// The tier of a place among its peers: ties share their best place.
fn relative_tier(rules: &RelativeRules, rank: usize, peers: usize) -> Option<String> {
    let share = rank as f64 / peers as f64;
    rules.tiers.iter().find(|tier| share <= tier.top).map(|tier| tier.id.clone())
}

fn firmness(one: &Score, next: &Score) -> &'static str {
    if one.result.lower > next.result.upper {
        "certain"
    } else if one.sensitivity.weights.lower.p05 > next.sensitivity.weights.lower.p95 {
        "likely"
    } else {
        "open"
    }
}

const ABOVE: &str = "above next";
const FIRMNESS: &str = "Above the next: certain when its lower bound is above the next one's upper bound, whatever was not seen; \
likely when 95 % of other weights leave it above 95 % of the next one's; else open.";

fn peers_text(ranking: &Ranking, methodology: &Methodology) -> String {
    let rules = &methodology.rules.relative;
    if ranking.peers >= rules.peers {
        format!(
            "Relative tiers are among these {} peers as of {} and mean nothing beside other peers. {}.",
            ranking.peers, ranking.date, rules.reason
        )
    } else {
        format!(
            "No relative tiers: {} peers as of {}, {} are needed.",
            ranking.peers, ranking.date, rules.peers
        )
    }
}

fn shown(score: Option<f64>) -> String {
    score.map_or_else(|| "-".to_owned(), |score| percent(micro(score)))
}

fn rank_text(place: &Place) -> String {
    match place.rank {
        Some(rank) if place.tie => format!("{rank}="),
        Some(rank) => rank.to_string(),
        None => "-".to_owned(),
    }
}

fn tier_text(place: &Place, methodology: &Methodology) -> String {
    if place.score.rating.not_rated.is_empty() {
        let provisional = if place.score.rating.estimate.provisional { " (provisional)" } else { "" };
        format!("{}{provisional}", tier_name(&methodology.rules.tier, place.tier()))
    } else {
        "Not rated".to_owned()
    }
}

fn relative_text(place: &Place, methodology: &Methodology) -> String {
    place
        .relative
        .as_deref()
        .map_or_else(|| "-".to_owned(), |tier| tier_name(&methodology.rules.tier, tier).to_owned())
}

// Writing to a String cannot fail, so the results of writeln! are dropped.
fn text(ranking: &Ranking, methodology: &Methodology) -> String {
    let mut out = String::new();
    let _ = writeln!(
        out,
        "{:<5} {:<32} {:<28} {:<20} {:>8} {:>8} {:>8} {:>8}  {}",
        "rank", "provider", "tier", "relative", "lower", "score", "upper", "seen", ABOVE
    );
    for one in &ranking.places {
        let result = one.score.result;
        let line = format!(
            "{:<5} {:<32} {:<28} {:<20} {:>8} {:>8} {:>8} {:>8}  {}",
            rank_text(one),
            one.name,
            tier_text(one, methodology),
            relative_text(one, methodology),
            shown(Some(result.lower)),
            shown(result.score),
            shown(Some(result.upper)),
            shown(Some(result.coverage)),
            one.above_next.unwrap_or("-")
        );
        let _ = writeln!(out, "{}", plain(&line));
    }
    let rules = &methodology.rules;
    let _ = writeln!(out, "\n{}", peers_text(ranking, methodology));
    let _ = writeln!(
        out,
        "Same tier and lower bounds within {} of the first share a rank. {FIRMNESS}",
        percent(micro(rules.relative.tie))
    );
    let _ = writeln!(out, "Methodology {} of {}. {}", rules.methodology, rules.date, rules.notice);
    out
}

fn to_json(ranking: &Ranking, methodology: &Methodology) -> String {
    let places: Vec<Value> = ranking
        .places
        .iter()
        .map(|one| {
            json!({
                "above_next": one.above_next,
                "cluster": one.score.run.cluster,
                "coverage": one.score.result.coverage,
                "decided_by": one.score.rating.estimate.decided_by,
                "lower": one.score.result.lower,
                "name": one.name,
                "not_rated": one.score.rating.not_rated,
                "provisional": one.score.rating.estimate.provisional,
                "rank": one.rank,
                "relative_tier": one.relative,
                "run": one.score.run.run,
                "score": one.score.result.score,
                "tie": one.tie,
                "tier": one.score.rating.not_rated.is_empty().then(|| one.tier().to_owned()),
                "upper": one.score.result.upper,
            })
        })
        .collect();
    let document = json!({
        "methodology": methodology.rules.methodology,
        "notice": methodology.rules.notice,
        "peers": {"count": ranking.peers, "date": ranking.date, "needed": methodology.rules.relative.peers},
        "places": places,
        "schema": SCHEMA,
    });
    // A Value always serializes.
    let mut text = serde_json::to_string_pretty(&document).unwrap_or_default();
    text.push('\n');
    text
}

fn html(ranking: &Ranking, methodology: &Methodology) -> String {
    let rules = &methodology.rules;
    let runs = ranking.places.len();
    let mut out = open_page(&format!("ranking of {runs} runs"));
    let _ = write!(
        out,
        "<header>\n<h1>ClusterMAX for Slurm: ranking</h1>\n</header>\n<main id=\"main\">\n\
         <section class=\"card\" aria-labelledby=\"ranking\">\n<h2 id=\"ranking\">{runs} runs, as of {}</h2>\n<p>{}</p>\n<p class=\"notice\">{}</p>\n",
        escape(&ranking.date),
        escape(&peers_text(ranking, methodology)),
        escape(&rules.notice)
    );
    let ranges: Vec<Range> = ranking
        .places
        .iter()
        .map(|one| Range {
            name: format!("{} {}", rank_text(one), one.name),
            lower: one.score.result.lower,
            upper: one.score.result.upper,
            score: one.score.result.score,
        })
        .collect();
    let cuts: Vec<(f64, String)> = rules.tier.iter().map(|tier| (tier.cut, tier.name.clone())).collect();
    let labels = Labels {
        id: "ranks",
        title: "Lower to upper bound of every run",
        description: "The same numbers as in the table below: a bar from lower to upper bound, a mark at the score over what was seen, lines at the tiers' cut-offs",
        x: "",
        y: "",
    };
    let _ = writeln!(
        out,
        "<figure>\n<figcaption>The bar spans lower to upper bound, its mark is the score over what was seen. Dashed: where a tier begins</figcaption>\n{}\n{}\n</figure>",
        maps::ranges(&labels, Width::Wide, &ranges, &cuts),
        maps::ranges(&labels, Width::Narrow, &ranges, &cuts)
    );
    table::RANKING.open(&mut out, "Ranking", false);
    for one in &ranking.places {
        let result = one.score.result;
        let _ = writeln!(
            out,
            "<tr><td class=\"num\">{}</td><th scope=\"row\">{}<div class=\"small soft\">run {}</div></th><td>{}</td><td>{}</td>\
             <td class=\"num\">{}</td><td class=\"num\">{}</td><td class=\"num\">{}</td><td class=\"num\">{}</td><td>{}</td><td>{}</td></tr>",
            rank_text(one),
            escape(&one.name),
            escape(&one.score.run.run),
            escape(&tier_text(one, methodology)),
            escape(&relative_text(one, methodology)),
            shown(Some(result.lower)),
            shown(result.score),
            shown(Some(result.upper)),
            shown(Some(result.coverage)),
            one.above_next.unwrap_or("-"),
            escape(&one.score.rating.estimate.decided_by.replace('_', " "))
        );
    }
    table::close(&mut out);
    let _ = write!(
        out,
        "<p class=\"small soft\">Runs of the same tier with lower bounds within {} of the first share a rank. {}</p>\n</section>\n</main>\n\
         <footer>\n<p>Methodology {} of {}, clustermax {}.</p>\n</footer>\n{CLOSE_PAGE}",
        percent(micro(rules.relative.tie)),
        escape(FIRMNESS),
        escape(&rules.methodology),
        escape(&rules.date),
        env!("CARGO_PKG_VERSION")
    );
    out
}
