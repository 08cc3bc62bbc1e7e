//! `clustermax sla`: availability, credits, failures, goodput and cost from Slurm's own records and a contract file.
//!
//! Every figure is printed with its formula and inputs; `docs/sla.md` has the definitions.

pub mod account;
pub mod contract;
pub mod figures;
pub mod hostlist;
pub mod records;
pub mod slurm;
pub mod spans;
pub mod statistics;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::Failure;
use crate::load::number;
use crate::report::plain;
use account::{Facts, Hours, JobRun, Outage, Service, Unit};
use contract::{Contract, instant};
use figures::{Figure, figures};

/// The schema of `--json`.
pub const SCHEMA: &str = "clustermax-sla/1";
/// Jobs and outages that the text lists.
const SHOWN: usize = 20;

/// `clustermax sla`
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Contract file: what counts as down, what is promised, credits, maintenance, exclusions, checkpoints
    #[arg(long, value_name = "FILE")]
    pub contract: Option<PathBuf>,
    /// Start of the window, UTC: a date, or a time as 2026-11-30T20:50:00Z; default: 30 days before the end
    #[arg(long, value_name = "TIME")]
    pub from: Option<String>,
    /// End of the window; default: now
    #[arg(long, value_name = "TIME")]
    pub to: Option<String>,
    /// Slurm's node list; default: all nodes that sinfo names
    #[arg(long, value_name = "LIST")]
    pub nodes: Option<String>,
    /// Read what `sacctmgr show event` printed instead of running it; docs/sla.md has the command
    #[arg(long, value_name = "FILE")]
    pub events: Option<PathBuf>,
    /// Read what `sacct` printed instead of running it; docs/sla.md has the command
    #[arg(long, value_name = "FILE")]
    pub jobs: Option<PathBuf>,
    /// Print the JSON document instead of the text
    #[arg(long)]
    pub json: bool,
    /// Availability of the nodes in the window as the provider publishes it, percent: compared with Slurm's records
    #[arg(long, value_name = "PERCENT")]
    pub published: Option<f64>,
    /// Results folder of a run on these nodes: keeps the JSON document there and its records (stage sla), for
    /// `clustermax score`
    #[arg(long, value_name = "DIR")]
    pub records: Option<PathBuf>,
}

/// All that is reckoned.
pub struct Reckoning {
    facts: Facts,
    contract: Contract,
    units: Vec<Unit>,
    outages: Vec<Outage>,
    hours: Hours,
    runs: Vec<JobRun>,
    figures: Vec<Figure>,
}

/// Runs the command. Exit code 0: every promise was kept; 1: one was not.
///
/// # Errors
/// Bad contract, files or times (2); Slurm's accounting does not answer (3).
pub fn run(args: &Args) -> Result<u8, Failure> {
    let contract = match &args.contract {
        Some(path) => Contract::read(path).map_err(Failure::input)?,
        None => Contract::none(),
    };
    if args.published.is_some_and(|percent| !(0.0..=100.0).contains(&percent)) {
        return Err(Failure::input("--published is not within 0 and 100; give the availability in percent"));
    }
    // Before anything is asked: a folder of no use is a mistake of the command line.
    let folder = args.records.as_deref().map(crate::run::Folder::open).transpose()?;
    let reckoning = Reckoning::with(facts(args)?, contract, args.published)?;
    if let Some(folder) = &folder {
        let kept = records::write(folder, &reckoning)?;
        eprintln!("{kept} records of stage {} are in {}", records::STAGE, folder.path.display());
    }
    let text = if args.json { reckoning.to_json() } else { reckoning.to_text() };
    crate::report::print(&text)?;
    Ok(u8::from(reckoning.broken().next().is_some()))
}

fn moment(option: &str, text: &str) -> Result<i64, Failure> {
    instant(text).ok_or_else(|| {
        Failure::input(format!("{option} {text:?} is no time; write 2026-11-30 or 2026-11-30T20:50:00Z"))
    })
}

/// `2026-11-30T20:50:00Z`
fn shown(at: i64) -> String {
    jiff::Timestamp::from_second(at).map_or_else(|_| at.to_string(), |at| at.to_string())
}

fn facts(args: &Args) -> Result<Facts, Failure> {
    let now = jiff::Timestamp::now().as_second();
    let to = args.to.as_deref().map_or(Ok(now), |text| moment("--to", text))?;
    let from = args.from.as_deref().map_or(Ok(to - 30 * 86_400), |text| moment("--from", text))?;
    if from >= to {
        return Err(Failure::input(format!(
            "--from {} is not before --to {}; exchange them",
            shown(from),
            shown(to)
        )));
    }
    if to > now {
        return Err(Failure::input(format!(
            "--to {} lies in the future; Slurm has recorded nothing of it yet",
            shown(to)
        )));
    }
    let read = |path: &Path, option: &str| {
        std::fs::read_to_string(path).map_err(|error| {
            Failure::input(format!(
                "cannot read {}: {error}; give {option} a file that docs/sla.md tells how to make",
                path.display()
            ))
        })
    };
    // Slurm's own form, without a zone: the programs run in UTC.
    let (start, end) = (shown(from).replace('Z', ""), shown(to).replace('Z', ""));
    let (source, text) = match &args.events {
        Some(path) => (path.display().to_string(), read(path, "--events")?),
        None => {
            let (start, end) = (format!("start={start}"), format!("end={end}"));
            let format = format!("format={}", slurm::EVENT_COLUMNS);
            let asked = slurm::ask("sacctmgr", &["-P", "show", "event", &start, &end, &format]);
            ("sacctmgr show event".to_owned(), asked.map_err(Failure::missing)?)
        }
    };
    let events = slurm::events(&source, &text).map_err(Failure::input)?;
    let (source, text) = match &args.jobs {
        Some(path) => (path.display().to_string(), read(path, "--jobs")?),
        // A file of events is looked at on its own.
        None if args.events.is_some() => (String::new(), slurm::JOB_COLUMNS.replace(',', "|")),
        None => {
            let asked = slurm::ask(
                "sacct",
                &["-D", "-a", "-X", "-P", "-S", &start, "-E", &end, "-o", slurm::JOB_COLUMNS],
            );
            ("sacct".to_owned(), asked.map_err(Failure::missing)?)
        }
    };
    let attempts = slurm::attempts(&source, &text).map_err(Failure::input)?;
    let list = match (&args.nodes, &args.events) {
        (Some(list), _) => list.clone(),
        (None, None) => {
            slurm::ask("sinfo", &["-h", "-a", "-o", "%N"]).map_err(Failure::missing)?.replace('\n', ",")
        }
        (None, Some(path)) => {
            return Err(Failure::input(format!(
                "{} does not say which nodes there are, since a healthy node has no event; name them with --nodes",
                path.display()
            )));
        }
    };
    let nodes: BTreeSet<String> = hostlist::expand(&list)
        .map_err(|what| Failure::input(format!("--nodes {what}; write it as sinfo does")))?
        .into_iter()
        .collect();
    if nodes.is_empty() {
        return Err(Failure::input("--nodes names no node; write a list as sinfo does: n[1-4]"));
    }
    Ok(Facts { nodes: nodes.into_iter().collect(), window: (from, to), events, attempts })
}

impl Reckoning {
    /// Reckons.
    ///
    /// # Errors
    /// The contract names a node that is not there.
    pub fn of(facts: Facts, contract: Contract) -> Result<Self, Failure> {
        Self::with(facts, contract, None)
    }

    /// Reckons, and compares with the availability that the provider publishes, percent.
    ///
    /// # Errors
    /// As [`Reckoning::of`].
    pub fn with(facts: Facts, contract: Contract, published: Option<f64>) -> Result<Self, Failure> {
        for group in &contract.group {
            let names = hostlist::expand(&group.nodes).unwrap_or_default();
            if let Some(name) = names.iter().find(|name| !facts.nodes.contains(name)) {
                return Err(Failure::input(format!(
                    "group {} {} names node {name}, which is not among the nodes that are looked at ({}); correct the contract or --nodes",
                    group.level,
                    group.name,
                    facts.nodes.join(" ")
                )));
            }
        }
        let service = Service::new(&facts, &contract);
        let (units, outages, hours) = (service.units(), service.outages(), service.hours());
        let in_service = service.in_service();
        let runs = account::runs(&facts, contract.checkpoint);
        let racks = service.all_down("rack");
        let figures = figures(&figures::Inputs {
            facts: &facts,
            contract: &contract,
            outages: &outages,
            hours,
            in_service,
            units: &units,
            racks,
            published,
        });
        Ok(Self { facts, contract, units, outages, hours, runs, figures })
    }

    /// Units below what is promised.
    fn broken(&self) -> impl Iterator<Item = &Unit> {
        self.units
            .iter()
            .filter(|unit| unit.percent.zip(unit.promised).is_some_and(|(found, promised)| found < promised))
    }

    /// Credits by period: percent of the period's price (when there is one) and money, after the cap. A node's credit and
    /// that of its rack are not added up: the larger one counts.
    fn credits(&self) -> Vec<(String, Option<f64>)> {
        let mut periods: Vec<String> = self.units.iter().map(|unit| unit.period.clone()).collect();
        periods.dedup();
        let periods: BTreeSet<String> = periods.into_iter().collect();
        periods
            .into_iter()
            .map(|period| {
                let of = |level: &str| -> Option<f64> {
                    self.units
                        .iter()
                        .filter(|unit| unit.period == period && unit.level == level)
                        .map(|unit| Some(unit.price? * unit.credit_percent? / 100.0))
                        .sum()
                };
                let levels: BTreeSet<&str> =
                    self.contract.level.iter().map(|level| level.level.as_str()).collect();
                let most = levels
                    .into_iter()
                    .filter_map(of)
                    .fold(None, |most: Option<f64>, one| Some(most.map_or(one, |most| most.max(one))));
                let price: Option<f64> = self
                    .units
                    .iter()
                    .filter(|unit| unit.period == period && unit.level == "node")
                    .map(|unit| unit.price)
                    .sum();
                let cap = price.zip(self.contract.cap_percent).map(|(price, cap)| price * cap / 100.0);
                (period, most.map(|most| cap.map_or(most, |cap| most.min(cap))))
            })
            .collect()
    }

    /// The JSON document, with a newline at its end.
    pub fn to_json(&self) -> String {
        let document = json!({
            "account": hours_json(self.hours),
            "availability": self.units.iter().map(unit_json).collect::<Vec<_>>(),
            "credits": self.credits().into_iter().map(|(period, amount)| json!({
                "amount": amount.map(cents), "currency": self.contract.currency, "period": period,
            })).collect::<Vec<_>>(),
            "figures": self.figures.iter().map(|one| json!({
                "formula": one.formula,
                "inputs": one.inputs.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect::<serde_json::Map<_, _>>(),
                "name": one.name,
                "unit": one.unit,
                "value": one.value,
            })).collect::<Vec<_>>(),
            "from": shown(self.facts.window.0),
            "nodes": self.facts.nodes,
            "outages": self.outages.iter().map(|one| json!({
                "began_earlier": one.earlier,
                "counted_seconds": one.counted,
                "from": shown(one.span.0),
                "node": one.node,
                "open": one.open,
                "reasons": one.reasons,
                "reboot": one.reboot,
                "seconds": one.span.1 - one.span.0,
                "to": shown(one.span.1),
            })).collect::<Vec<_>>(),
            "provider": self.contract.provider,
            "runs": self.runs.iter().map(|run| json!({
                "attempts": run.attempts,
                "ettr": run.ettr(),
                "job": run.job,
                "name": run.name,
                "node_failures": run.node_failures,
                "nodes": run.nodes,
                "seconds": {
                    "checkpoint": run.split.checkpoint, "lost": run.split.lost, "productive": run.split.productive,
                    "restart": run.split.restart, "waiting": run.waiting, "wall": run.wall,
                },
            })).collect::<Vec<_>>(),
            "schema": SCHEMA,
            "to": shown(self.facts.window.1),
        });
        let mut text = serde_json::to_string_pretty(&document).unwrap_or_default();
        text.push('\n');
        text
    }

    /// The text.
    pub fn to_text(&self) -> String {
        // Writing to a String cannot fail.
        let mut out = String::new();
        let (from, to) = self.facts.window;
        let _ = writeln!(out, "{} nodes, {} to {}", self.facts.nodes.len(), shown(from), shown(to));
        if !self.contract.provider.is_empty() {
            let _ = writeln!(out, "contract with {}", plain(&self.contract.provider));
        }
        let _ = writeln!(
            out,
            "\nAvailability (excluded time {}; a unit is down while DOWN AT of its nodes are)",
            match self.contract.downtime.excluded {
                contract::Excluded::Out => "leaves the period",
                contract::Excluded::Up => "counts as up",
            }
        );
        let _ = writeln!(
            out,
            "{:<9} {:<12} {:<8} {:>7} {:>7} {:>10} {:>9} {:>7} {:>10} {:>9} {:>7}",
            "LEVEL",
            "UNIT",
            "PERIOD",
            "NODES",
            "DOWN AT",
            "DOWN s",
            "EXCL. s",
            "OUTAGES",
            "AVAILABLE",
            "PROMISED",
            "CREDIT"
        );
        let percent = |value: Option<f64>| {
            value.map_or_else(
                || "-".to_owned(),
                |value| format!("{} %", number((value * 1000.0).floor() / 1000.0)),
            )
        };
        let quiet = self
            .units
            .iter()
            .filter(|unit| unit.level == "node" && unit.down == 0 && unit.excluded == 0)
            .count();
        for unit in
            self.units.iter().filter(|unit| unit.level != "node" || unit.down > 0 || unit.excluded > 0)
        {
            let _ = writeln!(
                out,
                "{:<9} {:<12} {:<8} {:>7} {:>7} {:>10} {:>9} {:>7} {:>10} {:>9} {:>7}",
                plain(&unit.level),
                plain(&unit.name),
                unit.period,
                unit.nodes,
                unit.down_at,
                unit.down,
                unit.excluded,
                unit.outages,
                percent(unit.percent),
                percent(unit.promised),
                percent(unit.credit_percent)
            );
        }
        if quiet > 0 {
            let _ = writeln!(out, "{quiet} more rows of single nodes: up all the time, 100 %");
        }
        for (period, amount) in self.credits() {
            if let Some(amount) = amount {
                let claim = self
                    .contract
                    .claim_days
                    .map(|days| format!("; claim within {days} days of the period's end"))
                    .unwrap_or_default();
                let _ = writeln!(
                    out,
                    "credit for {period}: {:.2} {}{claim}",
                    amount,
                    plain(&self.contract.currency)
                );
            }
        }
        if !self.outages.is_empty() {
            let _ = writeln!(out, "\nOutages");
            for one in self.outages.iter().take(SHOWN) {
                let length = one.span.1 - one.span.0;
                let counted = if one.counted == length {
                    String::new()
                } else {
                    format!(", {} of them count", one.counted)
                };
                let open = if one.open { ", lasts" } else { "" };
                let _ = writeln!(
                    out,
                    "{:<10} {}  {length} s{counted}{open}  {}",
                    one.node,
                    shown(one.span.0),
                    plain(&one.reasons.join("; then "))
                );
            }
            if self.outages.len() > SHOWN {
                let _ = writeln!(out, "and {} more, all with --json", self.outages.len() - SHOWN);
            }
        }
        let hours = self.hours;
        let _ = writeln!(out, "\nWhere the node-hours went");
        for (indent, name, value) in [
            ("", "nominal", hours.nominal),
            ("  ", "out of service", hours.out_of_service),
            ("  ", "idle", hours.idle),
            ("  ", "allocated", hours.allocated),
            ("    ", "restart", hours.restart),
            ("    ", "checkpoints", hours.checkpoint),
            ("    ", "lost work", hours.lost),
            ("    ", "productive", hours.productive),
        ] {
            let share = if hours.nominal > 0 { 100.0 * value as f64 / hours.nominal as f64 } else { 0.0 };
            let _ = writeln!(
                out,
                "{:<20} {:>14.3} h {share:>8.3} %",
                format!("{indent}{name}"),
                value as f64 / 3600.0
            );
        }
        if !self.runs.is_empty() {
            let _ = writeln!(
                out,
                "\nJobs, the largest first: ETTR = productive / wall, wall = waiting + restart + checkpoints + lost + productive (s)"
            );
            let _ = writeln!(
                out,
                "{:<10} {:<16} {:>6} {:>9} {:>10} {:>9} {:>8} {:>11} {:>7} {:>11} {:>7}",
                "JOB",
                "NAME",
                "NODES",
                "ATTEMPTS",
                "WALL",
                "WAITING",
                "RESTART",
                "CHECKPOINTS",
                "LOST",
                "PRODUCTIVE",
                "ETTR"
            );
            for run in self.runs.iter().take(SHOWN) {
                let _ = writeln!(
                    out,
                    "{:<10} {:<16} {:>6} {:>9} {:>10} {:>9} {:>8} {:>11} {:>7} {:>11} {:>7}",
                    plain(&run.job),
                    plain(&run.name),
                    run.nodes,
                    run.attempts,
                    run.wall,
                    run.waiting,
                    run.split.restart,
                    run.split.checkpoint,
                    run.split.lost,
                    run.split.productive,
                    run.ettr().map_or_else(|| "-".to_owned(), |ettr| format!("{ettr:.3}"))
                );
            }
            if self.runs.len() > SHOWN {
                let _ = writeln!(out, "and {} more, all with --json", self.runs.len() - SHOWN);
            }
        }
        let _ = writeln!(out, "\nFigures");
        for one in &self.figures {
            let value =
                one.value.map_or_else(|| "-".to_owned(), |value| format!("{} {}", number(value), one.unit));
            let inputs: Vec<String> =
                one.inputs.iter().map(|(name, value)| format!("{name} {}", number(*value))).collect();
            let _ = writeln!(
                out,
                "{:<34} {:<28} = {}\n{:<34} with {}",
                one.name.replace('_', " "),
                value.trim_end(),
                one.formula,
                "",
                inputs.join(", ")
            );
        }
        if self.contract.checkpoint.is_none() {
            let _ = writeln!(
                out,
                "No [checkpoint] in the contract file: an interrupted attempt counts as lost altogether."
            );
        }
        out
    }
}

/// Two decimals.
fn cents(amount: f64) -> f64 {
    (amount * 100.0).round() / 100.0
}

fn unit_json(unit: &Unit) -> Value {
    json!({
        "credit_percent": unit.credit_percent, "down_at": unit.down_at, "down_seconds": unit.down,
        "excluded_seconds": unit.excluded, "level": unit.level, "longest_seconds": unit.longest, "name": unit.name,
        "nodes": unit.nodes, "outages": unit.outages, "percent": unit.percent, "period": unit.period,
        "price": unit.price.map(cents), "promised_percent": unit.promised, "seconds": unit.seconds,
    })
}

fn hours_json(hours: Hours) -> Value {
    json!({
        "allocated": hours.allocated, "checkpoint": hours.checkpoint, "idle": hours.idle, "lost": hours.lost,
        "nominal": hours.nominal, "out_of_service": hours.out_of_service, "productive": hours.productive,
        "restart": hours.restart, "unit": "node-seconds",
    })
}

#[cfg(test)]
mod tests;
