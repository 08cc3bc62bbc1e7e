//! `evidence.toml`: what a provider or reviewer states, with its document, to `claim` records.
//!
//! A statement counts while it is valid on the day the run started; the clock is never asked. What is expired,
//! future-dated, contradictory or without its document is named and leaves its criterion unknown. A statement never
//! outranks a measurement: it is refused for criteria that a program decides, and counts apart everywhere else
//! (`result_without_claims`).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Component, Path, PathBuf};

use jiff::civil::Date;
use toml::{Table, Value};

use crate::Failure;
use crate::load::sha256_file;
use crate::methodology::{Class, Criterion, Methodology};
use crate::report::{plain, print};
use crate::run::{self, Folder};
use crate::score::methodology;

/// The schema that this release writes and reads.
pub const SCHEMA: &str = "clustermax-evidence/1";
/// Name of the file in a results folder.
pub const FILE: &str = "evidence.toml";
/// A larger file is no evidence.toml.
const LIMIT: u64 = 4 << 20;

/// What a field holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    Text,
    Date,
    Number,
    Flag,
    List,
    Sha256,
}

impl Shape {
    fn word(self) -> &'static str {
        match self {
            Self::Text => "a text that is not empty",
            Self::Date => "a date (2026-01-31)",
            Self::Number => "a finite number that is not negative",
            Self::Flag => "true or false",
            Self::List => "a list of texts",
            Self::Sha256 => "64 hex digits",
        }
    }

    fn sample(self) -> &'static str {
        match self {
            Self::Text | Self::Sha256 => "\"\"",
            Self::Date => "2026-01-31",
            Self::Number => "0",
            Self::Flag => "true",
            Self::List => "[\"\"]",
        }
    }

    fn fits(self, value: &Value) -> bool {
        match self {
            Self::Text => value.as_str().is_some_and(|text| !text.trim().is_empty()),
            Self::Date => date(value).is_some(),
            Self::Number => number(value).is_some_and(|number| number.is_finite() && number >= 0.0),
            Self::Flag => value.is_bool(),
            Self::List => value.as_array().is_some_and(|items| {
                !items.is_empty()
                    && items.iter().all(|item| item.as_str().is_some_and(|text| !text.trim().is_empty()))
            }),
            Self::Sha256 => value
                .as_str()
                .is_some_and(|text| text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit())),
        }
    }
}

struct Field {
    name: &'static str,
    shape: Shape,
    needed: bool,
    about: &'static str,
}

const fn need(name: &'static str, shape: Shape, about: &'static str) -> Field {
    Field { name, shape, needed: true, about }
}

const fn may(name: &'static str, shape: Shape, about: &'static str) -> Field {
    Field { name, shape, needed: false, about }
}

/// A kind of evidence: one table array of the file.
struct Kind {
    name: &'static str,
    about: &'static str,
    fields: &'static [Field],
}

/// Fields of the whole file.
const HEAD: [Field; 5] = [
    need("schema", Shape::Text, "always \"clustermax-evidence/1\""),
    need("provider", Shape::Text, "who sells the cluster"),
    may("cluster", Shape::Text, "Slurm's ClusterName; when given it must be the run's"),
    need("stated_by", Shape::Text, "who vouches for this file"),
    need("stated_on", Shape::Date, "when"),
];

/// Fields of every statement.
const COMMON: [Field; 9] = [
    need("item", Shape::Text, "the criterion"),
    need("met", Shape::Flag, "whether it is met; leave the statement out when nobody knows"),
    may("document", Shape::Text, "file beside this one, with its sha256"),
    may("sha256", Shape::Sha256, "of the document; alone when the document is confidential"),
    may("url", Shape::Text, "where it is published"),
    may("stated_by", Shape::Text, "when other than the file's"),
    may("stated_on", Shape::Date, "when other than the file's"),
    may("valid_to", Shape::Date, "last day on which it holds"),
    may("note", Shape::Text, "anything else"),
];

const KINDS: [Kind; 9] = [
    Kind {
        name: "attestation",
        about: "an auditor's report or certificate",
        fields: &[
            need("standard", Shape::Text, "SOC 1, SOC 2, ISO 27001, PCI DSS, penetration test ..."),
            may("type", Shape::Text, "Type I or Type II"),
            need("issuer", Shape::Text, "auditor or certification body"),
            may("number", Shape::Text, "of the certificate or report"),
            need("scope", Shape::List, "what was looked at; name the fabric when it was"),
            need("valid_from", Shape::Date, "first day on which it holds"),
        ],
    },
    Kind {
        name: "price",
        about: "a price",
        fields: &[
            need("per", Shape::Text, "GPU-hour, GiB-month, GB moved out ..."),
            need("amount", Shape::Number, "in the currency, for one of those"),
            need("currency", Shape::Text, "USD, EUR ..."),
            may("gpu", Shape::Text, "GPU model"),
            may("term_months", Shape::Number, "0 is on demand"),
            may("includes", Shape::List, "storage, network, head nodes, support ..."),
        ],
    },
    Kind {
        name: "terms",
        about: "a clause of the contract",
        fields: &[
            need("text", Shape::Text, "the clause, word by word"),
            may("clause", Shape::Text, "its number in the contract"),
        ],
    },
    Kind {
        name: "sla",
        about: "a service level agreement, in fields",
        fields: &[
            may("node", Shape::Text, "what a node is"),
            may("rack", Shape::Text, "what a rack is"),
            may("cluster_means", Shape::Text, "what the cluster is"),
            may("site", Shape::Text, "what a site is"),
            may("downtime", Shape::Text, "what counts as down: unreachable only, or degraded too"),
            may("node_percent", Shape::Number, "availability of a node"),
            may("rack_percent", Shape::Number, "availability of a rack"),
            may("credits", Shape::Text, "steps and limit"),
            may("exclusions", Shape::List, "maintenance windows, upgrades ..."),
            may("claim_days", Shape::Number, "days to claim a credit"),
            may("measured_by", Shape::Text, "provider or customer"),
            may("termination", Shape::Text, "when the buyer may leave"),
        ],
    },
    Kind {
        name: "partnership",
        about: "a programme, investment or contract with another company",
        fields: &[
            need("partner", Shape::Text, "NVIDIA, AMD, SchedMD ..."),
            need("programme", Shape::Text, "its name"),
            may("since", Shape::Date, "first day"),
        ],
    },
    Kind {
        name: "capacity",
        about: "what can be had",
        fields: &[
            need("gpu", Shape::List, "GPU models"),
            need("gpus", Shape::Number, "how many"),
            may("available_from", Shape::Date, "first day on which they can be had"),
            may("posix_tb", Shape::Number, "shared file system, 10^12 bytes"),
            may("s3_tb", Shape::Number, "object store, 10^12 bytes"),
        ],
    },
    Kind {
        name: "support",
        about: "support, as promised or as lived",
        fields: &[
            need("hours", Shape::Text, "24x7 ..."),
            may("response_minutes", Shape::Number, "promised"),
            may("channels", Shape::List, "chat, ticket, phone ..."),
            may("tickets", Shape::Number, "how many the figures are from"),
        ],
    },
    Kind {
        name: "interview",
        about: "what a customer or an engineer of the provider said",
        fields: &[
            need("who", Shape::Text, "role; no name is needed"),
            need("on", Shape::Date, "day of the interview"),
            need("summary", Shape::Text, "what was said"),
        ],
    },
    Kind {
        name: "process",
        about: "how the provider does something, or a feature that it has",
        fields: &[need("text", Shape::Text, "what is done or there, by whom, how often")],
    },
];

/// Whether there is such a kind of evidence.
pub fn is_kind(name: &str) -> bool {
    KINDS.iter().any(|kind| kind.name == name)
}

/// The kinds, by comma.
pub fn kind_names() -> String {
    KINDS.iter().map(|kind| kind.name).collect::<Vec<_>>().join(", ")
}

fn date(value: &Value) -> Option<Date> {
    match value {
        Value::Datetime(found) => found.to_string().get(..10)?.parse().ok(),
        Value::String(text) if text.len() == 10 => text.parse().ok(),
        _ => None,
    }
}

fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Integer(whole) => Some(*whole as f64),
        Value::Float(number) => Some(*number),
        _ => None,
    }
}

/// One statement of the file.
#[derive(Debug, Clone, PartialEq)]
pub struct Statement {
    /// `attestation` ...
    pub kind: &'static str,
    /// Place among those of its kind, from 1.
    pub place: usize,
    /// Criterion id.
    pub item: String,
    /// Whether the criterion is met.
    pub met: bool,
    /// Auditor, partner or who states it.
    pub issuer: String,
    /// Last day on which it holds.
    pub valid_to: Option<Date>,
    /// Why it counts for nothing.
    pub flaw: Option<String>,
}

impl Statement {
    /// `attestation 2 (sec-01)`
    pub fn name(&self) -> String {
        format!("{} {} ({})", self.kind, self.place, self.item)
    }

    /// JSON pointer of its table.
    pub fn pointer(&self) -> String {
        format!("/{}/{}", self.kind, self.place - 1)
    }
}

/// `evidence.toml` in memory.
#[derive(Debug, Clone, PartialEq)]
pub struct Statements {
    /// The file as given.
    pub path: PathBuf,
    /// SHA-256 of the file.
    pub sha256: String,
    /// Who sells the cluster.
    pub provider: String,
    /// ClusterName, when the file names one.
    pub cluster: Option<String>,
    /// In the order of kinds, then of the file.
    pub statements: Vec<Statement>,
    /// What must be corrected before the file can be used.
    pub errors: Vec<String>,
}

/// What is wrong with an `evidence.toml`.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It cannot be read.
    #[error("cannot read {}: {what}; give a file that `clustermax evidence new` made", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        what: String,
    },
    /// Not TOML, or not of this schema.
    #[error("{}: {what}", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// What, where, and the mend.
        what: String,
    },
    /// Statements that cannot be used as they are.
    #[error("{}: {first}{}", path.display(), more(*.others))]
    Statements {
        /// The file.
        path: PathBuf,
        /// The first one, with its mend.
        first: String,
        /// How many more.
        others: usize,
    },
}

fn more(others: usize) -> String {
    if others == 0 {
        String::new()
    } else {
        format!(" ({others} more; `clustermax evidence check` names all)")
    }
}

impl Statements {
    /// Reads a file and judges its statements as of `today`, or of the file's own `stated_on`.
    ///
    /// # Errors
    /// A file that cannot be read, is not TOML or of another schema.
    pub fn read(path: &Path, methodology: &Methodology, today: Option<Date>) -> Result<Self, Error> {
        let read = |what: String| Error::Read { path: path.to_owned(), what };
        let syntax = |what: String| Error::Syntax { path: path.to_owned(), what };
        let data = fs::metadata(path).map_err(|error| read(error.to_string()))?;
        if !data.is_file() {
            return Err(read("it is not a regular file".to_owned()));
        }
        if data.len() > LIMIT {
            return Err(read(format!("it is larger than {LIMIT} bytes")));
        }
        let bytes = fs::read(path).map_err(|error| read(error.to_string()))?;
        let text = String::from_utf8(bytes).map_err(|_| read("it is not UTF-8 text".to_owned()))?;
        let table: Table = toml::from_str(&text).map_err(|error: toml::de::Error| {
            syntax(format!(
                "it is not TOML: {}; correct that line",
                error.to_string().trim_end().replace('\n', " ")
            ))
        })?;
        match table.get("schema").and_then(Value::as_str) {
            Some(SCHEMA) => {}
            Some(found) => {
                return Err(syntax(format!(
                    "schema is {found:?}, this release reads {SCHEMA:?}; use the release that it was written for"
                )));
            }
            None => {
                return Err(syntax(format!(
                    "schema is missing; begin the file with schema = {SCHEMA:?}, or make it with `clustermax evidence new`"
                )));
            }
        }
        let sha256 = sha256_file(path).map_err(|error| read(error.to_string()))?;
        let mut found = Self {
            path: path.to_owned(),
            sha256,
            provider: String::new(),
            cluster: None,
            statements: Vec::new(),
            errors: Vec::new(),
        };
        found.take(&table, methodology, today);
        Ok(found)
    }

    fn take(&mut self, table: &Table, methodology: &Methodology, today: Option<Date>) {
        let mut head = Table::new();
        for (key, value) in table {
            if HEAD.iter().any(|field| field.name == key) {
                head.insert(key.clone(), value.clone());
            } else if !is_kind(key) {
                let known = HEAD.iter().map(|field| field.name).chain(KINDS.iter().map(|kind| kind.name));
                let text = unknown("the file", key, known);
                self.errors.push(text);
            }
        }
        self.errors.extend(wrong("the file", &head, &[&HEAD]));
        let text = |table: &Table, key: &str| table.get(key).and_then(Value::as_str).map(str::to_owned);
        self.provider = text(&head, "provider").unwrap_or_default();
        self.cluster = text(&head, "cluster");
        let stated_on = head.get("stated_on").and_then(date);
        let by = text(&head, "stated_by").unwrap_or_default();
        let Some(today) = today.or(stated_on) else { return };
        if let Some(stated_on) = stated_on.filter(|stated_on| *stated_on > today) {
            self.errors.push(format!(
                "stated_on is {stated_on}, after {today}, the day the run started; a statement cannot come from the future: correct the date"
            ));
        }
        for kind in &KINDS {
            let Some(value) = table.get(kind.name) else { continue };
            let Some(entries) = value.as_array() else {
                self.errors.push(format!(
                    "{} is no array of tables; write [[{}]] before each statement",
                    kind.name, kind.name
                ));
                continue;
            };
            for (index, entry) in entries.iter().enumerate() {
                let name = format!("{} {}", kind.name, index + 1);
                let Some(entry) = entry.as_table() else {
                    self.errors.push(format!("{name} is no table; write [[{}]] before it", kind.name));
                    continue;
                };
                let mut errors = wrong(&name, entry, &[&COMMON, kind.fields]);
                let item = text(entry, "item").unwrap_or_default();
                let criterion = methodology.criterion(&item);
                if !item.is_empty() {
                    errors.extend(wrong_item(&name, &item, kind, methodology));
                }
                let failed = !errors.is_empty();
                self.errors.append(&mut errors);
                let (false, Some(criterion)) = (failed, criterion) else { continue };
                let flaw = self.flaw(entry, criterion, today);
                let issuer = ["issuer", "partner", "stated_by"].iter().find_map(|key| text(entry, key));
                self.statements.push(Statement {
                    kind: kind.name,
                    place: index + 1,
                    item,
                    met: entry.get("met").and_then(Value::as_bool).unwrap_or_default(),
                    issuer: issuer.unwrap_or_else(|| by.clone()),
                    valid_to: entry.get("valid_to").and_then(date),
                    flaw,
                });
            }
        }
        self.contradictions();
    }

    /// Why a well-formed statement counts for nothing.
    fn flaw(&self, entry: &Table, criterion: &Criterion, today: Date) -> Option<String> {
        let day = |key: &str| entry.get(key).and_then(date);
        let (from, to) = (day("valid_from"), day("valid_to"));
        if let (Some(from), Some(to)) = (from, to)
            && from > to
        {
            return Some(format!(
                "contradictory: valid_from {from} is after valid_to {to}; correct the dates"
            ));
        }
        if let Some(to) = to.filter(|to| *to < today) {
            return Some(format!("expired on {to}, the run started on {today}; give one that held then"));
        }
        for key in ["valid_from", "stated_on", "on", "since"] {
            if let Some(later) = day(key).filter(|later| *later > today) {
                return Some(format!(
                    "future-dated: {key} {later} is after {today}, the day the run started; correct the date or leave the statement out"
                ));
            }
        }
        if entry.get("met").and_then(Value::as_bool) == Some(true)
            && let Some(what) = contradiction(entry, criterion)
        {
            return Some(format!(
                "contradictory: it says that {} is met, but {what}; correct that key or leave the statement out",
                criterion.id
            ));
        }
        let text = |key: &str| entry.get(key).and_then(Value::as_str);
        match (text("document"), text("sha256")) {
            (Some(document), Some(sha256)) => self.document(document, sha256),
            (Some(document), None) => {
                Some(format!("document {document} has no sha256; add it: `sha256sum {document}`"))
            }
            _ => None,
        }
    }

    fn document(&self, document: &str, sha256: &str) -> Option<String> {
        let relative = Path::new(document);
        if !relative.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir)) {
            return Some(format!(
                "document {document:?} is not a relative path below this file's folder; put it there"
            ));
        }
        let path = self.path.parent().unwrap_or(Path::new("")).join(relative);
        match fs::symlink_metadata(&path) {
            Ok(data) if data.is_file() => {}
            Ok(_) => {
                return Some(format!("document {document} is not a regular file; put the file itself there"));
            }
            Err(error) => {
                return Some(format!("document {document} cannot be read: {error}; put it beside this file"));
            }
        }
        match sha256_file(&path) {
            Ok(found) if found.eq_ignore_ascii_case(sha256) => None,
            Ok(found) => Some(format!(
                "document {document} has changed: its sha256 is {}..., stated is {}...; put back the one that was stated, or correct sha256",
                &found[..12],
                &sha256[..12].to_ascii_lowercase()
            )),
            Err(error) => Some(format!("document {document} cannot be read: {error}; check its permissions")),
        }
    }

    /// Valid statements that say both yes and no about one item count for nothing.
    fn contradictions(&mut self) {
        let mut said: BTreeMap<&str, BTreeSet<bool>> = BTreeMap::new();
        for one in self.statements.iter().filter(|one| one.flaw.is_none()) {
            said.entry(&one.item).or_default().insert(one.met);
        }
        let both: BTreeSet<String> =
            said.into_iter().filter(|(_, met)| met.len() > 1).map(|(item, _)| item.to_owned()).collect();
        for one in self.statements.iter_mut().filter(|one| one.flaw.is_none()) {
            if both.contains(&one.item) {
                one.flaw = Some(
                    "contradictory: another statement says the opposite; keep the one that is true"
                        .to_owned(),
                );
            }
        }
    }

    /// One statement an item: a valid one before one that counts for nothing.
    pub fn by_item(&self) -> BTreeMap<&str, &Statement> {
        let mut best: BTreeMap<&str, &Statement> = BTreeMap::new();
        for one in &self.statements {
            let place = best.entry(&one.item).or_insert(one);
            if place.flaw.is_some() && one.flaw.is_none() {
                *place = one;
            }
        }
        best
    }

    /// The statements, unless something must be corrected first.
    ///
    /// # Errors
    /// [`Error::Statements`], or another cluster than the run's.
    pub fn usable(self, cluster: &str) -> Result<Self, Error> {
        if let Some(other) = self.cluster.as_ref().filter(|other| *other != cluster) {
            return Err(Error::Syntax {
                what: format!(
                    "it is about cluster {other:?}, the run is of {cluster:?}; give that cluster's evidence"
                ),
                path: self.path,
            });
        }
        match self.errors.split_first() {
            None => Ok(self),
            Some((first, others)) => {
                Err(Error::Statements { first: first.clone(), others: others.len(), path: self.path })
            }
        }
    }
}

fn contradiction(entry: &Table, criterion: &Criterion) -> Option<String> {
    let rule = criterion.requires.as_ref()?;
    for (key, words) in &rule.one_of {
        let said: Vec<&str> = match entry.get(key) {
            Some(Value::String(text)) => vec![text.as_str()],
            Some(Value::Array(items)) => items.iter().filter_map(Value::as_str).collect(),
            _ => Vec::new(),
        };
        let fits = said.iter().any(|said| {
            let said = said.to_lowercase();
            words.iter().any(|word| said.contains(&word.to_lowercase()))
        });
        if !fits {
            return Some(format!("{key} names none of {}", words.join(", ")));
        }
    }
    for (key, least) in &rule.least {
        match entry.get(key).and_then(number) {
            Some(value) if value >= *least => {}
            Some(value) => return Some(format!("{key} {value} is below {least}")),
            None => return Some(format!("{key} is missing")),
        }
    }
    for (key, most) in &rule.most {
        match entry.get(key).and_then(number) {
            Some(value) if value <= *most => {}
            Some(value) => return Some(format!("{key} {value} is above {most}")),
            None => return Some(format!("{key} is missing")),
        }
    }
    for key in &rule.present {
        if !entry.contains_key(key) {
            return Some(format!("{key} is missing"));
        }
    }
    None
}

fn unknown<'a>(name: &str, key: &str, known: impl Iterator<Item = &'a str> + Clone) -> String {
    let nearest = known
        .clone()
        .map(|word| (strsim::jaro_winkler(word, key), word))
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .filter(|(likeness, _)| *likeness > 0.8);
    match nearest {
        Some((_, word)) => format!("{name}: there is no key {key:?}; did you mean {word:?}?"),
        None => {
            format!("{name}: there is no key {key:?}; it knows {}", known.collect::<Vec<_>>().join(", "))
        }
    }
}

/// Keys that are unknown, missing or of the wrong shape.
fn wrong(name: &str, table: &Table, fields: &[&[Field]]) -> Vec<String> {
    let known = || fields.iter().flat_map(|fields| fields.iter());
    let mut errors = Vec::new();
    for (key, value) in table {
        match known().find(|field| field.name == key) {
            None => errors.push(unknown(name, key, known().map(|field| field.name))),
            Some(field) if !field.shape.fits(value) => {
                errors.push(format!(
                    "{name}: {key} must be {} ({}); correct it",
                    field.shape.word(),
                    field.about
                ));
            }
            Some(_) => {}
        }
    }
    for field in known().filter(|field| field.needed && !table.contains_key(field.name)) {
        errors.push(format!("{name}: {} is missing; add it: {}", field.name, field.about));
    }
    errors
}

fn wrong_item(name: &str, item: &str, kind: &Kind, methodology: &Methodology) -> Option<String> {
    let Some(criterion) = methodology.criterion(item) else {
        if methodology.undecided.iter().any(|one| one.id == item) {
            return Some(format!(
                "{name}: methodology {} does not decide {item} yet; leave the statement out",
                methodology.rules.methodology
            ));
        }
        let nearest = asked(methodology)
            .map(|criterion| (strsim::jaro_winkler(&criterion.id, item), &criterion.id))
            .max_by(|a, b| a.0.total_cmp(&b.0))
            .map_or("", |(_, id)| id.as_str());
        return Some(format!(
            "{name}: there is no criterion {item:?} (did you mean {nearest}?); `clustermax criteria list` names all"
        ));
    };
    match criterion.evidence.as_deref() {
        None => Some(format!(
            "{name}: {item} is measured by a program, a statement counts for nothing there; leave it out"
        )),
        Some(wanted) if wanted != kind.name => Some(format!(
            "{name}: {item} is evidenced by [[{wanted}]], not by [[{}]]; write it as [[{wanted}]]",
            kind.name
        )),
        Some(_) => None,
    }
}

/// Criteria that a statement can decide.
fn asked(methodology: &Methodology) -> impl Iterator<Item = &Criterion> {
    methodology.criteria.iter().filter(|criterion| criterion.evidence.is_some())
}

/// The day on which a run started.
///
/// # Errors
/// `started` that is no RFC 3339 time.
pub fn day(folder: &Path, run: &run::Run) -> Result<Date, run::Error> {
    run.started.get(..10).and_then(|day| day.parse().ok()).ok_or_else(|| run::Error::Malformed {
        path: folder.join("run.json"),
        what: format!(
            "started {:?} is no RFC 3339 time, so nobody can say which evidence was valid then",
            run.started
        ),
    })
}

/// `clustermax evidence`
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Clone, clap::Subcommand)]
enum Command {
    /// Write an evidence.toml to fill in: every criterion that a statement can decide
    New {
        /// File to make, or a folder that gets evidence.toml
        path: PathBuf,
        /// Read the methodology from this folder instead of the built-in one
        #[arg(long, value_name = "DIR")]
        data: Option<PathBuf>,
    },
    /// Check an evidence.toml: names what is expired, future-dated, contradictory or unknown
    #[command(
        after_help = "Exit code: 0 every statement counts, 1 some do not, 2 the file cannot be used as it is."
    )]
    Check {
        /// The file, or a folder that holds evidence.toml
        path: PathBuf,
        /// Judge as of the day this results folder's run started; default: a run.json beside the file, else stated_on
        #[arg(long, value_name = "DIR")]
        run: Option<PathBuf>,
        /// Judge as of this day
        #[arg(long, value_name = "DATE", conflicts_with = "run")]
        on: Option<Date>,
        /// Read the methodology from this folder instead of the built-in one
        #[arg(long, value_name = "DIR")]
        data: Option<PathBuf>,
    },
}

/// Runs the command.
///
/// # Errors
/// Bad input or a file that cannot be written (2).
pub fn run(args: &Args) -> Result<u8, Failure> {
    match &args.command {
        Command::New { path, data } => new(path, &methodology(data.as_deref())?),
        Command::Check { path, run, on, data } => {
            check(path, run.as_deref(), *on, &methodology(data.as_deref())?)
        }
    }
}

fn new(path: &Path, methodology: &Methodology) -> Result<u8, Failure> {
    let file = if path.is_dir() { path.join(FILE) } else { path.to_owned() };
    if file.exists() {
        return Err(Failure::input(format!(
            "{} is already there and is not overwritten; give another file, or move it away",
            file.display()
        )));
    }
    run::write_atomic(&file, template(methodology).as_bytes()).map_err(|error| {
        Failure::input(format!(
            "cannot write {}: {error}; give a file in a folder that exists and is writable",
            file.display()
        ))
    })?;
    print(&format!("{}\n", file.display()))?;
    Ok(0)
}

/// The template: valid as it is (it states nothing), each statement to be uncommented.
pub fn template(methodology: &Methodology) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = writeln!(
        out,
        "# Evidence for `clustermax score`: what is stated rather than measured. Remove \"#\" from the statements that can be\n\
         # made, fill them in, leave the others out: what nobody states is unknown. `clustermax evidence check FILE` checks it.\n\
         # Methodology {} of {}.\n",
        methodology.rules.methodology, methodology.rules.date
    );
    for field in &HEAD {
        let value = match field.name {
            "schema" => format!("{SCHEMA:?}"),
            "stated_on" => methodology.rules.date.clone(),
            _ => "\"to be filled in\"".to_owned(),
        };
        let mark = if field.needed { "" } else { "# " };
        let _ = writeln!(out, "{mark}{} = {value}  # {}", field.name, field.about);
    }
    for kind in &KINDS {
        let criteria: Vec<&Criterion> =
            asked(methodology).filter(|one| one.evidence.as_deref() == Some(kind.name)).collect();
        if criteria.is_empty() {
            continue;
        }
        let _ = writeln!(out, "\n# ---- {}: {}", kind.name, kind.about);
        let _ = writeln!(out, "# Every statement may have, besides its own keys:");
        for field in COMMON.iter().filter(|field| !field.needed) {
            let _ = writeln!(out, "#   {} = {}  ({})", field.name, field.shape.sample(), field.about);
        }
        for criterion in criteria {
            let gate = if criterion.gate.is_some() { " (gate)" } else { "" };
            let _ = writeln!(out, "\n# {}{gate}: {}", criterion.id, criterion.text);
            if criterion.class == Class::Partly {
                let _ = writeln!(out, "# A measurement of this run outranks the statement.");
            }
            let _ = writeln!(out, "# [[{}]]\n# item = {:?}\n# met = true", kind.name, criterion.id);
            for field in kind.fields {
                let mark = if field.needed { "" } else { ", optional" };
                let _ = writeln!(out, "# {} = {}  # {}{mark}", field.name, field.shape.sample(), field.about);
            }
        }
    }
    out
}

fn check(
    path: &Path,
    run: Option<&Path>,
    on: Option<Date>,
    methodology: &Methodology,
) -> Result<u8, Failure> {
    let file = if path.is_dir() { path.join(FILE) } else { path.to_owned() };
    let beside = file.parent().filter(|folder| folder.join("run.json").is_file());
    let mut cluster = None;
    let today = match (on, run.or(beside)) {
        (Some(on), _) => Some(on),
        (None, Some(folder)) => {
            let open = Folder::open(folder)?;
            let day = day(folder, &open.run)?;
            cluster = Some(open.run.cluster);
            Some(day)
        }
        (None, None) => None,
    };
    let mut found = Statements::read(&file, methodology, today).map_err(Failure::input)?;
    if let (Some(cluster), Some(other)) = (&cluster, &found.cluster)
        && cluster != other
    {
        found
            .errors
            .push(format!("cluster is {other:?}, the run's is {cluster:?}; give that cluster's evidence"));
    }
    let shown = file.display();
    let mut out = String::new();
    for error in &found.errors {
        let _ = writeln!(out, "ERROR {shown}: {error}");
    }
    for one in &found.statements {
        match &one.flaw {
            Some(flaw) => {
                let _ = writeln!(out, "WARN  {shown}: {} counts for nothing: {flaw}", one.name());
            }
            None => {
                let met = if one.met { "met" } else { "not met" };
                let _ = writeln!(out, "OK    {}: {met}, {}", one.name(), one.issuer);
            }
        }
    }
    let bad = found.statements.iter().filter(|one| one.flaw.is_some()).count();
    let items: BTreeSet<&str> =
        found.statements.iter().filter(|one| one.flaw.is_none()).map(|one| one.item.as_str()).collect();
    let _ = writeln!(
        out,
        "{} errors, {bad} statements that count for nothing; {} of {} criteria evidenced",
        found.errors.len(),
        items.len(),
        asked(methodology).count()
    );
    print(&out.lines().map(|line| plain(line) + "\n").collect::<String>())?;
    Ok(if !found.errors.is_empty() {
        2
    } else if bad > 0 {
        1
    } else {
        0
    })
}

/// Whether a kind has a field of this name.
pub fn has_field(kind: &str, field: &str) -> bool {
    KINDS
        .iter()
        .filter(|one| one.name == kind)
        .any(|one| COMMON.iter().chain(one.fields).any(|known| known.name == field))
}
