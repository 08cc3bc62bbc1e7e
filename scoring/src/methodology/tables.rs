//! The tab-separated tables: the list of criteria, metrics, reference values and ceilings.

use std::collections::BTreeMap;

use super::Error;
use crate::record::Scalar;

/// One row of `criteria-list.tsv`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// `sec-01` ...
    pub id: String,
    /// Category id.
    pub category: String,
    /// Who can decide it.
    pub class: String,
    /// Where it is asked: versions of the rating, its pages, tool and articles, or `ours`.
    pub versions: String,
}

/// One row of `metrics.tsv`.
#[derive(Debug, Clone, PartialEq)]
pub struct Metric {
    /// Name in records.
    pub name: String,
    /// Stages that write it, by comma; `*` for any.
    pub stage: String,
    /// Unit in records.
    pub unit: String,
    /// Params that tell its records apart.
    pub params: String,
    /// Smallest possible value.
    pub min: f64,
    /// Largest possible value.
    pub max: f64,
    /// What a record's subject names.
    pub subject: String,
    /// One clause.
    pub meaning: String,
}

impl Metric {
    /// Whether a stage of this name writes it.
    pub fn is_of(&self, stage: &str) -> bool {
        self.stage.split(',').map(str::trim).any(|own| own == "*" || own == stage)
    }
}

/// One row of `references.tsv`: what a GPU model gives, and what it cannot give.
#[derive(Debug, Clone, PartialEq)]
pub struct Reference {
    /// Unique.
    pub id: String,
    /// Metric that it is about.
    pub metric: String,
    /// GPU models, as NVML or amdgpu name them.
    pub gpus: Vec<String>,
    /// Params that a record must have.
    pub params: BTreeMap<String, Scalar>,
    /// Nodes that took part.
    pub nodes: Option<i64>,
    /// Ranks that took part.
    pub ranks: Option<i64>,
    /// Smallest message, bytes.
    pub size_min: Option<i64>,
    /// The links that the value went over; `none` where it went over none.
    pub link: String,
    /// Score 0 up to here.
    pub zero: f64,
    /// Score 0.7: the published minimum.
    pub minimum: f64,
    /// Score 1 from here: what is typically measured.
    pub typical: f64,
    /// A value above is impossible.
    pub ceiling: f64,
    /// Unit.
    pub unit: String,
    /// Where the ceiling comes from.
    pub basis: String,
    /// Where the values come from.
    pub source: String,
    /// Day of publication, or of reading when the source has none.
    pub date: String,
}

/// One row of `ceilings.tsv`: no record of a GPU model can lie above.
#[derive(Debug, Clone, PartialEq)]
pub struct Ceiling {
    /// Metric that it is about.
    pub metric: String,
    /// GPU models, as NVML or amdgpu name them.
    pub gpus: Vec<String>,
    /// Params that a record must have.
    pub params: BTreeMap<String, Scalar>,
    /// A value above is impossible.
    pub ceiling: f64,
    /// Unit.
    pub unit: String,
    /// Where the ceiling comes from.
    pub basis: String,
    /// Source of the basis.
    pub source: String,
    /// Day of publication, or of reading when the source has none.
    pub date: String,
}

/// Score of [`Reference::minimum`].
pub const MINIMUM_SCORE: f64 = 0.7;

impl Reference {
    /// The curve's points, value and score.
    pub fn points(&self) -> [[f64; 2]; 3] {
        [[self.zero, 0.0], [self.minimum, MINIMUM_SCORE], [self.typical, 1.0]]
    }
}

/// Rows of a tab-separated file after its header, with line numbers; empty lines and `#` lines are skipped.
fn rows<'a>(file: &str, text: &'a str, header: &[&str]) -> Result<Vec<(usize, Vec<&'a str>)>, Error> {
    let bad = |line: usize, what: String| Error::Parse {
        file: file.to_owned(),
        what: format!("line {line}: {what}"),
    };
    let mut lines = text
        .lines()
        .enumerate()
        .map(|(index, line)| (index + 1, line))
        .filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    match lines.next() {
        Some((_, first)) if first.split('\t').eq(header.iter().copied()) => {}
        Some((line, _)) => return Err(bad(line, format!("the header must be {}", header.join(" ")))),
        None => return Err(bad(1, "the file is empty".to_owned())),
    }
    lines
        .map(|(line, row)| {
            let fields: Vec<&str> = row.split('\t').collect();
            if fields.len() == header.len() {
                Ok((line, fields))
            } else {
                Err(bad(line, format!("{} fields instead of {}", fields.len(), header.len())))
            }
        })
        .collect()
}

fn number(file: &str, line: usize, key: &str, text: &str) -> Result<f64, Error> {
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() => Ok(value),
        _ => Err(Error::Parse {
            file: file.to_owned(),
            what: format!("line {line}: {key} {text:?} is not a finite number"),
        }),
    }
}

pub(super) fn parse_list(text: &str) -> Result<Vec<Listed>, Error> {
    let file = "criteria-list.tsv";
    let rows = rows(file, text, &["id", "category", "class", "gate", "versions"])?;
    Ok(rows
        .into_iter()
        .map(|(_, row)| Listed {
            id: row[0].to_owned(),
            category: row[1].to_owned(),
            class: row[2].to_owned(),
            versions: row[4].to_owned(),
        })
        .collect())
}

pub(super) fn parse_metrics(text: &str) -> Result<BTreeMap<String, Metric>, Error> {
    let file = "metrics.tsv";
    let header = ["metric", "stage", "unit", "params", "min", "max", "subject", "meaning"];
    let mut metrics = BTreeMap::new();
    for (line, row) in rows(file, text, &header)? {
        let metric = Metric {
            name: row[0].to_owned(),
            stage: row[1].to_owned(),
            unit: row[2].to_owned(),
            params: row[3].to_owned(),
            min: number(file, line, "min", row[4])?,
            max: number(file, line, "max", row[5])?,
            subject: row[6].to_owned(),
            meaning: row[7].to_owned(),
        };
        if let Some(old) = metrics.insert(metric.name.clone(), metric) {
            return Err(Error::Parse {
                file: file.to_owned(),
                what: format!("line {line}: metric {} is there twice", old.name),
            });
        }
    }
    Ok(metrics)
}

/// `key=value;key=value`
fn parse_params(file: &str, line: usize, text: &str) -> Result<BTreeMap<String, Scalar>, Error> {
    let mut params = BTreeMap::new();
    for pair in text.split(';').filter(|pair| !pair.is_empty()) {
        let Some((key, value)) = pair.split_once('=') else {
            return Err(Error::Parse {
                file: file.to_owned(),
                what: format!("line {line}: params {pair:?} is not key=value"),
            });
        };
        let value = value.parse().map_or_else(|_| Scalar::from(value), Scalar::Int);
        params.insert(key.to_owned(), value);
    }
    Ok(params)
}

fn models(text: &str) -> Vec<String> {
    text.split('|').filter(|gpu| !gpu.is_empty()).map(str::to_owned).collect()
}

pub(super) fn parse_ceilings(text: &str) -> Result<Vec<Ceiling>, Error> {
    let file = "ceilings.tsv";
    let header = ["metric", "gpu", "params", "ceiling", "unit", "basis", "source", "date"];
    let mut ceilings = Vec::new();
    for (line, row) in rows(file, text, &header)? {
        ceilings.push(Ceiling {
            metric: row[0].to_owned(),
            gpus: models(row[1]),
            params: parse_params(file, line, row[2])?,
            ceiling: number(file, line, "ceiling", row[3])?,
            unit: row[4].to_owned(),
            basis: row[5].to_owned(),
            source: row[6].to_owned(),
            date: row[7].to_owned(),
        });
    }
    Ok(ceilings)
}

pub(super) fn parse_references(text: &str) -> Result<Vec<Reference>, Error> {
    let file = "references.tsv";
    let header = [
        "id",
        "metric",
        "gpu",
        "params",
        "nodes",
        "ranks",
        "size_min",
        "link",
        "zero",
        "minimum",
        "typical",
        "ceiling",
        "unit",
        "ceiling_basis",
        "source",
        "date",
    ];
    let whole = |line: usize, key: &str, text: &str| -> Result<Option<i64>, Error> {
        if text.is_empty() {
            return Ok(None);
        }
        text.parse().map(Some).map_err(|_| Error::Parse {
            file: file.to_owned(),
            what: format!("line {line}: {key} {text:?} is not a whole number"),
        })
    };
    let mut references = Vec::new();
    for (line, row) in rows(file, text, &header)? {
        let params = parse_params(file, line, row[3])?;
        references.push(Reference {
            id: row[0].to_owned(),
            metric: row[1].to_owned(),
            gpus: models(row[2]),
            params,
            nodes: whole(line, "nodes", row[4])?,
            ranks: whole(line, "ranks", row[5])?,
            size_min: whole(line, "size_min", row[6])?,
            link: row[7].to_owned(),
            zero: number(file, line, "zero", row[8])?,
            minimum: number(file, line, "minimum", row[9])?,
            typical: number(file, line, "typical", row[10])?,
            ceiling: number(file, line, "ceiling", row[11])?,
            unit: row[12].to_owned(),
            basis: row[13].to_owned(),
            source: row[14].to_owned(),
            date: row[15].to_owned(),
        });
    }
    Ok(references)
}
