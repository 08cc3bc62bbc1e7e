//! The methodology: everything that decides a rating, as data.
//!
//! Built in from `scoring/data/`, or read from a folder with the same files. Every row has a source and a date.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

mod check;
mod criteria;
mod rules;
mod tables;
#[cfg(test)]
mod tests;

use criteria::CriteriaFile;
pub use criteria::{Class, Combine, Criterion, Each, Gate, Measure, Per, Pick, Requires, Rule, Shows, Span};
pub use rules::{
    Cap, CapWhen, Category, NotRated, NotRatedWhen, RelativeRules, RelativeTier, Rules, SensitivityRules,
    Source, Tier,
};
pub use tables::{Ceiling, Listed, MINIMUM_SCORE, Metric, Reference};

/// The files of a methodology, and the built-in text of each.
pub const FILES: [(&str, &str); 6] = [
    ("ceilings.tsv", include_str!("../data/ceilings.tsv")),
    ("criteria-list.tsv", include_str!("../data/criteria-list.tsv")),
    ("criteria.toml", include_str!("../data/criteria.toml")),
    ("metrics.tsv", include_str!("../data/metrics.tsv")),
    ("rating.toml", include_str!("../data/rating.toml")),
    ("references.tsv", include_str!("../data/references.tsv")),
];

/// What is wrong with a methodology.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file of it cannot be read.
    #[error("cannot read {}: {source}; a methodology folder needs {}", path.display(), file_names())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why it failed.
        source: std::io::Error,
    },
    /// A file of it does not parse.
    #[error("{file}: {what}; correct the file or leave out --data to use the built-in methodology")]
    Parse {
        /// The file.
        file: String,
        /// What is wrong, where.
        what: String,
    },
    /// The rows parse but contradict each other or a rule.
    #[error("{} in {of}: {}; correct the files or leave out --data", count(.problems.len()), .problems.join("; "))]
    Rows {
        /// The folder, or the built-in methodology.
        of: String,
        /// Each with file and row.
        problems: Vec<String>,
    },
}

fn file_names() -> String {
    FILES.map(|(name, _)| name).join(", ")
}

fn count(problems: usize) -> String {
    if problems == 1 { "1 problem".to_owned() } else { format!("{problems} problems") }
}

/// All data of a methodology, checked.
#[derive(Debug, Clone)]
pub struct Methodology {
    /// Every criterion of the field.
    pub listed: Vec<Listed>,
    /// The criteria that this methodology decides.
    pub criteria: Vec<Criterion>,
    /// The criteria that it lists with their reason and does not decide yet; they are outside every figure.
    pub undecided: Vec<Criterion>,
    /// Known metrics by name.
    pub metrics: BTreeMap<String, Metric>,
    /// Reference values.
    pub references: Vec<Reference>,
    /// Physical ceilings.
    pub ceilings: Vec<Ceiling>,
    /// Weights, tiers, caps.
    pub rules: Rules,
    /// SHA-256 of each data file, by name.
    pub digests: BTreeMap<String, String>,
}

impl Methodology {
    /// The methodology of this release.
    ///
    /// # Errors
    /// Never for a release whose tests pass.
    pub fn built_in() -> Result<Self, Error> {
        Self::parse(&FILES.map(|(name, text)| (name, text.to_owned())))
    }

    /// The methodology in a folder.
    ///
    /// # Errors
    /// A file that is missing, malformed, or whose rows break a rule.
    pub fn open(folder: &Path) -> Result<Self, Error> {
        let mut texts = Vec::new();
        for (name, _) in FILES {
            let path = folder.join(name);
            let text = fs::read_to_string(&path).map_err(|source| Error::Io { path, source })?;
            texts.push((name, text));
        }
        Self::parse(&texts).map_err(|error| match error {
            Error::Parse { file, what } => {
                Error::Parse { file: folder.join(file).display().to_string(), what }
            }
            Error::Rows { problems, .. } => Error::Rows { of: folder.display().to_string(), problems },
            other => other,
        })
    }

    fn parse(texts: &[(&str, String)]) -> Result<Self, Error> {
        let text = |wanted: &str| {
            texts.iter().find(|(name, _)| *name == wanted).map_or("", |(_, text)| text.as_str())
        };
        let toml_error = |file: &str, error: &toml::de::Error| Error::Parse {
            file: file.to_owned(),
            what: error.to_string().trim_end().replace('\n', " "),
        };
        let criteria: CriteriaFile =
            toml::from_str(text("criteria.toml")).map_err(|error| toml_error("criteria.toml", &error))?;
        let rules: Rules =
            toml::from_str(text("rating.toml")).map_err(|error| toml_error("rating.toml", &error))?;
        let (undecided, mut criteria): (Vec<Criterion>, Vec<Criterion>) =
            criteria.criterion.into_iter().partition(|criterion| criterion.undecided.is_some());
        for criterion in &mut criteria {
            if criterion.evidence.is_some() && criterion.measures.is_empty() {
                criterion.measures.push(Measure::claim(&criterion.id));
            }
        }
        let methodology = Self {
            listed: tables::parse_list(text("criteria-list.tsv"))?,
            criteria,
            undecided,
            metrics: tables::parse_metrics(text("metrics.tsv"))?,
            references: tables::parse_references(text("references.tsv"))?,
            ceilings: tables::parse_ceilings(text("ceilings.tsv"))?,
            rules,
            digests: texts
                .iter()
                .map(|(name, text)| ((*name).to_owned(), hex(&Sha256::digest(text.as_bytes()))))
                .collect(),
        };
        let problems = methodology.problems();
        if problems.is_empty() {
            Ok(methodology)
        } else {
            Err(Error::Rows { of: "the built-in methodology".to_owned(), problems })
        }
    }

    /// All criteria in the order of the list, decided or not.
    pub fn all(&self) -> impl Iterator<Item = &Criterion> {
        self.listed.iter().filter_map(|listed| {
            self.criteria.iter().chain(&self.undecided).find(|criterion| criterion.id == listed.id)
        })
    }

    /// How many of the listed criteria that are about Slurm are decided, and how many there are.
    pub fn decided(&self) -> (usize, usize) {
        let listed = self.listed.iter().filter(|listed| listed.class != Class::NotSlurm.word()).count();
        (self.criteria.len(), listed)
    }

    /// The criterion with this id.
    pub fn criterion(&self, id: &str) -> Option<&Criterion> {
        self.criteria.iter().find(|criterion| criterion.id == id)
    }
}

/// Lowercase hex digits.
pub fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}
