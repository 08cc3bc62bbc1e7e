//! From outages and attempts to availability, credits, failures and where the hours went. Whole seconds: accounts add up
//! exactly.

use std::collections::{BTreeMap, BTreeSet};

use super::contract::{Checkpoint, Contract, Excluded, Period};
use super::hostlist;
use super::slurm::{Attempt, Event};
use super::spans::{Span, at_least, intersect, seconds, subtract, union};

/// What Slurm recorded of some nodes in a window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// The nodes, each once.
    pub nodes: Vec<String>,
    /// Seconds since the epoch.
    pub window: Span,
    /// Outages.
    pub events: Vec<Event>,
    /// What ran.
    pub attempts: Vec<Attempt>,
}

/// One outage of a node: its events without a gap between them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outage {
    /// NodeName.
    pub node: String,
    /// Within the window.
    pub span: Span,
    /// It began before the window.
    pub earlier: bool,
    /// It lasts.
    pub open: bool,
    /// Nothing but a reboot that Slurm was asked for: out of service, and no failure.
    pub reboot: bool,
    /// Reasons, each once.
    pub reasons: Vec<String>,
    /// Seconds of it that count as down.
    pub counted: i64,
}

/// A unit's availability in a period.
#[derive(Debug, Clone, PartialEq)]
pub struct Unit {
    /// `node`, `rack` ...
    pub level: String,
    /// Its name.
    pub name: String,
    /// How many nodes it has.
    pub nodes: usize,
    /// It is down while so many of them are.
    pub down_at: usize,
    /// `2026-11`, or `whole`.
    pub period: String,
    /// Length of the period within the window, seconds.
    pub seconds: i64,
    /// Of these left out.
    pub excluded: i64,
    /// Down.
    pub down: i64,
    /// Outages.
    pub outages: usize,
    /// The longest, seconds.
    pub longest: i64,
    /// Percent; nothing when all of the period is excluded.
    pub percent: Option<f64>,
    /// What is promised, percent.
    pub promised: Option<f64>,
    /// Percent of the unit's price in the period, before the cap.
    pub credit_percent: Option<f64>,
    /// What the unit costs in the period.
    pub price: Option<f64>,
}

/// What a node was, and how its outages count.
struct Node {
    /// Out of service for any reason that the contract counts.
    raw: Vec<Span>,
    /// Not counted: maintenance and exclusions.
    excluded: Vec<Span>,
    /// Down by the contract.
    down: Vec<Span>,
}

/// Everything that is reckoned per node.
pub struct Service<'a> {
    facts: &'a Facts,
    contract: &'a Contract,
    nodes: BTreeMap<&'a str, Node>,
}

impl<'a> Service<'a> {
    /// Sorts events by node and applies the contract's definitions.
    pub fn new(facts: &'a Facts, contract: &'a Contract) -> Self {
        let window = [facts.window];
        let mut nodes = BTreeMap::new();
        for node in &facts.nodes {
            let mine = || facts.events.iter().filter(|event| event.node == *node);
            let span = |event: &Event| (event.from, event.to.unwrap_or(facts.window.1));
            let counts =
                |event: &Event| event.states.iter().any(|state| contract.downtime.states.contains(state));
            let raw = intersect(&union(mine().filter(|event| counts(event)).map(span).collect()), &window);
            let planned = contract.maintenance.iter().filter(|window| {
                window.nodes.as_deref().is_none_or(|list| {
                    hostlist::expand(list).is_ok_and(|names| names.iter().any(|name| name == node))
                })
            });
            let by_reason = mine()
                .filter(|event| contract.exclusion.iter().any(|one| event.reason.contains(&one.reason)));
            let mut excluded: Vec<Span> = planned.filter_map(super::contract::Maintenance::span).collect();
            excluded.extend(by_reason.map(span));
            let excluded = intersect(&union(excluded), &window);
            let mut down = subtract(&raw, &excluded);
            down.retain(|(from, to)| to - from >= contract.downtime.shortest_seconds);
            nodes.insert(node.as_str(), Node { raw, excluded, down });
        }
        Self { facts, contract, nodes }
    }

    /// The periods of the window.
    pub fn periods(&self) -> Vec<(String, Span)> {
        let (from, to) = self.facts.window;
        if self.contract.period == Period::Whole {
            return vec![("whole".to_owned(), (from, to))];
        }
        let mut out = Vec::new();
        let mut at = from;
        while at < to {
            let Ok(start) = jiff::Timestamp::from_second(at) else { break };
            let date = start.to_zoned(jiff::tz::TimeZone::UTC).date();
            let next = date
                .first_of_month()
                .checked_add(jiff::Span::new().months(1))
                .ok()
                .and_then(|date| date.to_zoned(jiff::tz::TimeZone::UTC).ok())
                .map_or(to, |at| at.timestamp().as_second());
            let end = next.min(to).max(at + 1);
            out.push((format!("{:04}-{:02}", date.year(), date.month()), (at, end)));
            at = end;
        }
        out
    }

    /// Availability of every node and group in every period.
    pub fn units(&self) -> Vec<Unit> {
        let mut units = Vec::new();
        let mut groups: Vec<(String, String, Vec<&Node>, usize)> = self
            .nodes
            .iter()
            .map(|(name, node)| ("node".to_owned(), (*name).to_owned(), vec![node], 1))
            .collect();
        for group in &self.contract.group {
            let names: BTreeSet<String> =
                hostlist::expand(&group.nodes).unwrap_or_default().into_iter().collect();
            let members = names.iter().filter_map(|name| self.nodes.get(name.as_str())).collect();
            groups.push((group.level.clone(), group.name.clone(), members, group.down_at));
        }
        for (level, name, members, down_at) in groups {
            let of = |pick: fn(&Node) -> &[Span]| {
                let sets: Vec<&[Span]> = members.iter().map(|node| pick(node)).collect();
                at_least(down_at, &sets)
            };
            let down = of(|node| &node.down);
            let excluded = subtract(&of(|node| &node.excluded), &down);
            for (period, span) in self.periods() {
                let down = intersect(&down, &[span]);
                let length = span.1 - span.0;
                let left_out = match self.contract.downtime.excluded {
                    Excluded::Out => seconds(&intersect(&excluded, &[span])),
                    Excluded::Up => 0,
                };
                let whole = length - left_out;
                let percent = (whole > 0).then(|| 100.0 * (whole - seconds(&down)) as f64 / whole as f64);
                let promise = self.contract.level.iter().find(|one| one.level == level);
                let credit_percent = promise.zip(percent).map(|(promise, percent)| {
                    promise
                        .credits
                        .iter()
                        .filter(|step| percent < step.below)
                        .map(|step| step.percent)
                        .fold(0.0, f64::max)
                });
                let gpus = members.len() as f64 * f64::from(self.contract.gpus_per_node);
                units.push(Unit {
                    level: level.clone(),
                    name: name.clone(),
                    nodes: members.len(),
                    down_at,
                    period,
                    seconds: length,
                    excluded: left_out,
                    down: seconds(&down),
                    outages: down.len(),
                    longest: down.iter().map(|(from, to)| to - from).max().unwrap_or(0),
                    percent,
                    promised: promise.map(|one| one.percent),
                    credit_percent,
                    price: self
                        .contract
                        .price_per_gpu_hour
                        .map(|price| price * gpus * length as f64 / 3600.0),
                });
            }
        }
        units
    }

    /// Outages in the order of their start.
    pub fn outages(&self) -> Vec<Outage> {
        let mut outages = Vec::new();
        for (name, node) in &self.nodes {
            for span in &node.raw {
                let touching: Vec<&Event> = self
                    .facts
                    .events
                    .iter()
                    .filter(|event| {
                        event.node == **name
                            && event.from < span.1
                            && event.to.unwrap_or(self.facts.window.1) >= span.0
                            && event.states.iter().any(|state| self.contract.downtime.states.contains(state))
                    })
                    .collect();
                let mut reasons: Vec<String> = Vec::new();
                for event in &touching {
                    if !event.reason.is_empty() && !reasons.contains(&event.reason) {
                        reasons.push(event.reason.clone());
                    }
                }
                outages.push(Outage {
                    node: (*name).to_owned(),
                    span: *span,
                    earlier: touching.iter().any(|event| event.from < self.facts.window.0),
                    open: touching.iter().any(|event| event.to.is_none()),
                    reboot: !touching.is_empty() && touching.iter().all(|event| event.reboot()),
                    reasons,
                    counted: seconds(&intersect(&node.down, &[*span])),
                });
            }
        }
        outages.sort_by(|a, b| (a.span, &a.node).cmp(&(b.span, &b.node)));
        outages
    }

    /// How often every node of a group of this level was down at once; nothing when the contract names no such group of
    /// two nodes or more.
    pub fn all_down(&self, level: &str) -> Option<usize> {
        let groups: Vec<Vec<&Node>> = self
            .contract
            .group
            .iter()
            .filter(|group| group.level == level)
            .map(|group| {
                let names: BTreeSet<String> =
                    hostlist::expand(&group.nodes).unwrap_or_default().into_iter().collect();
                names.iter().filter_map(|name| self.nodes.get(name.as_str())).collect()
            })
            .filter(|members: &Vec<&Node>| members.len() > 1)
            .collect();
        let times = |members: &Vec<&Node>| {
            let sets: Vec<&[Span]> = members.iter().map(|node| node.down.as_slice()).collect();
            at_least(members.len(), &sets).len()
        };
        (!groups.is_empty()).then(|| groups.iter().map(times).sum())
    }

    /// Node-seconds in service.
    pub fn in_service(&self) -> i64 {
        let window = self.facts.window.1 - self.facts.window.0;
        self.nodes.values().map(|node| window - seconds(&node.raw)).sum()
    }

    /// Where all node-seconds of the window went.
    pub fn hours(&self) -> Hours {
        let (from, to) = self.facts.window;
        let mut busy: BTreeMap<&str, Vec<Span>> = BTreeMap::new();
        let mut split = Split::default();
        for attempt in &self.facts.attempts {
            let span = (attempt.start.max(from), attempt.end.unwrap_or(to).min(to));
            if span.0 >= span.1 {
                continue;
            }
            let mine: Vec<&str> = attempt
                .nodes
                .iter()
                .filter_map(|node| self.nodes.get_key_value(node.as_str()).map(|(name, _)| *name))
                .collect();
            split.add(
                &Split::of(span.1 - span.0, interrupted(&attempt.state), self.contract.checkpoint),
                mine.len() as i64,
            );
            for node in mine {
                busy.entry(node).or_default().push(span);
            }
        }
        let mut hours = Hours { nominal: (to - from) * self.nodes.len() as i64, ..Hours::default() };
        for (name, node) in &self.nodes {
            let busy = union(busy.remove(name).unwrap_or_default());
            hours.allocated += seconds(&busy);
            hours.out_of_service += seconds(&subtract(&node.raw, &busy));
        }
        hours.idle = hours.nominal - hours.allocated - hours.out_of_service;
        // Jobs that share a node count its time once: their split is scaled to it, the rest is productive.
        let total = split.total();
        let scaled = |part: i64| {
            if total > 0 {
                (i128::from(part) * i128::from(hours.allocated) / i128::from(total)) as i64
            } else {
                0
            }
        };
        hours.restart = scaled(split.restart);
        hours.checkpoint = scaled(split.checkpoint);
        hours.lost = scaled(split.lost);
        hours.productive = hours.allocated - hours.restart - hours.checkpoint - hours.lost;
        hours
    }
}

/// Node-seconds: `nominal = out_of_service + idle + allocated`, `allocated = restart + checkpoint + lost + productive`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Hours {
    /// All nodes, all of the window.
    pub nominal: i64,
    /// Down, drained or failed, and without a job.
    pub out_of_service: i64,
    /// In service without a job.
    pub idle: i64,
    /// With a job.
    pub allocated: i64,
    /// Starting, reloading.
    pub restart: i64,
    /// Writing checkpoints.
    pub checkpoint: i64,
    /// Work that an interruption took.
    pub lost: i64,
    /// The rest.
    pub productive: i64,
}

/// Of an attempt's seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Split {
    /// Starting, reloading.
    pub restart: i64,
    /// Writing checkpoints.
    pub checkpoint: i64,
    /// Work since the last checkpoint, half an interval on average.
    pub lost: i64,
    /// The rest.
    pub productive: i64,
}

impl Split {
    /// How an attempt of some length spent it. Without checkpoint data an interrupted attempt lost everything.
    pub fn of(length: i64, interrupted: bool, checkpoint: Option<Checkpoint>) -> Self {
        let Some(one) = checkpoint else {
            let lost = if interrupted { length } else { 0 };
            return Self { lost, productive: length - lost, ..Self::default() };
        };
        let restart = (one.restart_seconds.round() as i64).min(length);
        let rest = length - restart;
        let share = one.seconds / (one.seconds + one.interval_seconds);
        let writing = (rest as f64 * share).floor() as i64;
        let work = rest - writing;
        let lost = if interrupted { work.min((one.interval_seconds / 2.0).round() as i64) } else { 0 };
        Self { restart, checkpoint: writing, lost, productive: work - lost }
    }

    fn add(&mut self, other: &Self, times: i64) {
        self.restart += other.restart * times;
        self.checkpoint += other.checkpoint * times;
        self.lost += other.lost * times;
        self.productive += other.productive * times;
    }

    /// All of it.
    pub fn total(&self) -> i64 {
        self.restart + self.checkpoint + self.lost + self.productive
    }
}

/// Whether an attempt ended with its work undone. One that still runs has not.
pub fn interrupted(state: &str) -> bool {
    !matches!(state, "COMPLETED" | "RUNNING" | "SUSPENDED" | "COMPLETING")
}

/// One job with all its attempts: Meta's ETTR, seconds. `wall = waiting + restart + checkpoint + lost + productive`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobRun {
    /// JobIDRaw.
    pub job: String,
    /// Job name.
    pub name: String,
    /// Nodes of the last attempt.
    pub nodes: usize,
    /// How often it started.
    pub attempts: usize,
    /// Of these ended by a node that failed.
    pub node_failures: usize,
    /// From the first submission to the last end.
    pub wall: i64,
    /// In the queue, first and after each interruption.
    pub waiting: i64,
    /// How the rest was spent.
    pub split: Split,
}

impl JobRun {
    /// Effective training time ratio.
    pub fn ettr(&self) -> Option<f64> {
        (self.wall > 0).then(|| self.split.productive as f64 / self.wall as f64)
    }
}

/// Jobs by id, the most node-seconds first.
pub fn runs(facts: &Facts, checkpoint: Option<Checkpoint>) -> Vec<JobRun> {
    let mut jobs: BTreeMap<&str, Vec<&Attempt>> = BTreeMap::new();
    for attempt in &facts.attempts {
        jobs.entry(&attempt.job).or_default().push(attempt);
    }
    let mut runs: Vec<JobRun> = jobs
        .into_iter()
        .filter_map(|(job, mut attempts)| {
            attempts.sort_by_key(|attempt| attempt.start);
            let last = attempts.last()?;
            let end = |attempt: &Attempt| attempt.end.unwrap_or(facts.window.1).max(attempt.start);
            let mut split = Split::default();
            for attempt in &attempts {
                split.add(
                    &Split::of(end(attempt) - attempt.start, interrupted(&attempt.state), checkpoint),
                    1,
                );
            }
            let first = attempts.iter().map(|attempt| attempt.submit).min()?;
            let wall = end(last) - first.min(attempts[0].start);
            Some(JobRun {
                job: job.to_owned(),
                name: last.name.clone(),
                nodes: last.nodes.len(),
                attempts: attempts.len(),
                node_failures: attempts.iter().filter(|one| one.state == "NODE_FAIL").count(),
                wall,
                waiting: wall - split.total(),
                split,
            })
        })
        .collect();
    runs.sort_by(|a, b| {
        let weight = |run: &JobRun| run.split.total() * run.nodes as i64;
        weight(b).cmp(&weight(a)).then_with(|| a.job.cmp(&b.job))
    });
    runs
}
