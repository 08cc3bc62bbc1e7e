//! `clustermax report`: text, Markdown and HTML from the same evaluation.

mod devices;
pub mod first;
pub mod guards;
pub mod html;
mod links;
pub(crate) mod maps;
pub mod markdown;
mod plots;
mod sections;
pub(crate) mod svg;
pub(crate) mod table;
pub mod text;

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Component, Path, PathBuf};

use crate::Failure;
use crate::judge::{Evidence, Verdict};
use crate::load::{Entry, Key, Loaded, number, params_text};
use crate::methodology::{Criterion, Reference, Rule};
use crate::record::Scalar;
use crate::score::{Evaluation, write_file};

/// `clustermax report`
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Results folder
    pub dir: PathBuf,
    /// Evidence file; default: evidence.toml in the results folder, when there is one
    #[arg(long, value_name = "FILE")]
    pub evidence: Option<PathBuf>,
    /// Write report.txt, report.md and report.html into this folder instead of the results folder
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Read the methodology from this folder instead of the built-in one
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
}

/// Writes report.txt, report.md and report.html, and prints their paths.
///
/// # Errors
/// Bad input or a folder that cannot be written (2).
pub fn run(args: &Args) -> Result<u8, Failure> {
    let evaluation = Evaluation::of(&args.dir, args.data.as_deref(), args.evidence.as_deref())?;
    let out = args.out.as_deref().unwrap_or(&args.dir);
    let files = [
        ("report.txt", text::render(&evaluation)),
        ("report.md", markdown::render(&evaluation)),
        ("report.html", html::render(&evaluation, &link_base(&args.dir, out))),
    ];
    let mut paths = String::new();
    for (name, content) in files {
        write_file(out, name, &content)?;
        paths.push_str(&format!("{}\n", out.join(name).display()));
    }
    print(&paths)?;
    Ok(0)
}

/// Prints to stdout; a reader that went away (`| head`) is no error.
///
/// # Errors
/// Anything else that stops the output.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::input(format!("cannot write to stdout: {error}; send it where there is space")))
        }
        _ => Ok(()),
    }
}

/// The relative path from `out` to the results folder, ending in `/`, empty when they are the same.
pub fn link_base(dir: &Path, out: &Path) -> String {
    let (Ok(dir), Ok(out)) = (dir.canonicalize(), out.canonicalize()) else {
        return String::new();
    };
    let (dir, out): (Vec<Component>, Vec<Component>) =
        (dir.components().collect(), out.components().collect());
    let common = dir.iter().zip(&out).take_while(|(a, b)| a == b).count();
    let mut base = "../".repeat(out.len() - common);
    for part in &dir[common..] {
        base.push_str(&part.as_os_str().to_string_lossy());
        base.push('/');
    }
    base
}

/// Letters that are not shown but change what is: control characters (escape sequences), and those that turn the
/// direction of writing or begin a new line, with which a name can look like another.
pub fn deceives(letter: char) -> bool {
    letter.is_control()
        || matches!(letter, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

/// Text from records for a terminal: what [`deceives`] becomes `?`.
pub fn plain(text: &str) -> String {
    text.chars().map(|letter| if deceives(letter) { '?' } else { letter }).collect()
}

/// Bytes as nccl-tests users read them: `8 B`, `64 KiB`, `16 GiB`.
pub fn bytes(size: f64) -> String {
    let mut value = size;
    for unit in ["B", "KiB", "MiB"] {
        if value < 1024.0 {
            return format!("{} {unit}", number((value * 100.0).round() / 100.0));
        }
        value /= 1024.0;
    }
    format!("{} GiB", number((value * 100.0).round() / 100.0))
}

/// Believed values that differ only in message size, rank, peer or subject.
pub struct Group<'a> {
    /// Stage.
    pub stage: &'a str,
    /// Metric.
    pub metric: &'a str,
    /// Unit.
    pub unit: &'a str,
    /// Params without size, rank and peer.
    pub params: BTreeMap<&'a str, &'a Scalar>,
    /// Records with their values, lowest first.
    pub values: Vec<(f64, &'a Key, &'a Entry)>,
}

impl Group<'_> {
    /// `all_reduce, backend=nccl, ranks=8`: what names the group comes first, without its key.
    pub fn label(&self) -> String {
        self.label_without(&[])
    }

    /// The label without params that are said elsewhere.
    pub fn label_without(&self, said: &[&str]) -> String {
        const NAMES: [&str; 13] = [
            "collective",
            "job",
            "component",
            "command",
            "name",
            "family",
            "kind",
            "part",
            "tool",
            "dtype",
            "event",
            "fault",
            "model",
        ];
        let left = || self.params.iter().filter(|(key, _)| !said.contains(key));
        let first = NAMES.iter().find(|name| left().any(|(key, _)| key == *name));
        let mut parts: Vec<String> =
            first.iter().filter_map(|name| self.params.get(**name)).map(ToString::to_string).collect();
        for (key, value) in left().filter(|(key, _)| first.is_none_or(|first| first != *key)) {
            // torch's own name of a collective is mostly the collective's.
            if *key != "api" || parts.first().is_none_or(|name| *name != value.to_string()) {
                parts.push(format!("{key}={value}"));
            }
        }
        parts.join(", ")
    }

    /// The middle value.
    pub fn median(&self) -> f64 {
        let middle = self.values.len() / 2;
        if self.values.len() % 2 == 1 {
            self.values[middle].0
        } else {
            f64::midpoint(self.values[middle - 1].0, self.values[middle].0)
        }
    }
}

/// Groups believed values for a summary, in the order of keys.
pub fn groups(loaded: &Loaded) -> Vec<Group<'_>> {
    let mut groups: BTreeMap<(&str, &str, BTreeMap<&str, &Scalar>), Group<'_>> = BTreeMap::new();
    for (key, entry) in &loaded.entries {
        let Some(value) = entry.believed() else { continue };
        let params: BTreeMap<&str, &Scalar> = key
            .params
            .iter()
            .filter(|(param, _)| !matches!(param.as_str(), "size" | "rank" | "peer"))
            .map(|(param, value)| (param.as_str(), value))
            .collect();
        groups
            .entry((&key.stage, &key.metric, params.clone()))
            .or_insert_with(|| Group {
                stage: &key.stage,
                metric: &key.metric,
                unit: &entry.unit,
                params,
                values: Vec::new(),
            })
            .values
            .push((value, key, entry));
    }
    let mut groups: Vec<Group<'_>> = groups.into_values().collect();
    // What ran comes before what was looked up.
    groups.sort_by_key(|group| matches!(group.stage, "inventory" | "audit" | "evidence"));
    for group in &mut groups {
        group.values.sort_by(|a, b| a.0.total_cmp(&b.0).then_with(|| a.1.cmp(b.1)));
    }
    groups
}

/// The reference values that a criterion's values were held against.
pub fn references<'a>(
    evaluation: &'a Evaluation,
    judge: &Evidence<'a>,
    criterion: &Criterion,
    verdict: &Verdict,
) -> Vec<&'a Reference> {
    let mut found: Vec<&Reference> = Vec::new();
    if !criterion.measures.iter().any(|measure| measure.rule == Rule::Reference) {
        return found;
    }
    for one in &verdict.observed {
        let same = |key: &Key| {
            key.metric == one.metric && *key.subject == one.subject && params_text(&key.params) == one.params
        };
        let key = evaluation.loaded.entries.iter().map(|(key, _)| key).find(|key| same(key));
        if let Some(reference) = key.and_then(|key| judge.reference(key).ok())
            && !found.iter().any(|known| known.id == reference.id)
        {
            found.push(reference);
        }
    }
    found
}

/// A reference value with where it comes from.
pub fn reference_text(one: &Reference) -> String {
    format!(
        "Reference {}{}: minimum {}, typical {}, impossible above {} {} ({}). From: {} ({})",
        one.id,
        if one.link == "none" { String::new() } else { format!(" over {}", one.link) },
        number(one.minimum),
        number(one.typical),
        number(one.ceiling),
        one.unit,
        one.basis,
        one.source,
        one.date
    )
}
