//! Ranks compared at equal work: `stragglers` for the cluster, `straggler` for each rank that stands out.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::Raw;
use crate::record::{Evidence, Provenance, Record, State};
use crate::straggler::cause::{self, Facts};
use crate::straggler::{self, Kind, RULE, Rule};

/// A rank that was made slower on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct Slowed {
    /// The rank.
    pub rank: i64,
    /// By how much, percent.
    pub percent: i64,
}

/// One rank's times.
pub struct Member<'a> {
    /// Its number.
    pub rank: i64,
    /// Where it ran.
    pub node: &'a str,
    /// The GPU it had to itself.
    pub gpu: Option<u32>,
    /// Median wall seconds of each window.
    pub wall: Vec<f64>,
    /// Median CPU seconds of each window.
    pub cpu: Vec<f64>,
    /// Where they lie.
    pub evidence: Evidence,
}

/// Applies the rule to one signal.
pub fn compare(raw: &Raw, signal: &str, members: &[Member], slowed: Option<Slowed>) -> Vec<Record> {
    compare_by(raw, signal, members, slowed, &RULE, &[])
}

/// The same by another rule, with the clock, temperature and link of each member, read at the same time.
pub fn compare_by(
    raw: &Raw,
    signal: &str,
    members: &[Member],
    slowed: Option<Slowed>,
    rule: &Rule,
    facts: &[Facts],
) -> Vec<Record> {
    // Simulated nodes are one machine: the wall clock of a rank measures its neighbours.
    let on_cpu = members.iter().all(|member| member.gpu.is_none());
    let clock = if raw.folder.run.simulated && on_cpu { "cpu" } else { "wall" };
    let times: Vec<Vec<f64>> = members
        .iter()
        .map(|member| if clock == "cpu" { member.cpu.clone() } else { member.wall.clone() })
        .collect();
    let finish = |draft: super::Draft| {
        let mut record = draft.param("signal", signal).param("clock", clock).done();
        if let Some(slowed) = slowed {
            record.provenance = Provenance::Synthetic;
            let note = format!("rank {} was made {} % slower on purpose", slowed.rank, slowed.percent);
            record.detail = Some(match record.detail.take() {
                Some(detail) => format!("{detail}; {note}"),
                None => note,
            });
        }
        record
    };
    let place = |rank: usize| {
        let member = &members[rank];
        let gpu = member.gpu.map_or(String::new(), |gpu| format!(" g{gpu}"));
        format!("rank {} on {}{gpu}", member.rank, member.node)
    };
    let verdict = match straggler::examine(&times, rule) {
        Ok(verdict) => verdict,
        Err(why) => {
            let unlike = |row: &Vec<f64>| {
                row.len() < rule.windows || row.iter().any(|time| !(time.is_finite() && *time > 0.0))
            };
            let who = times.iter().position(unlike).filter(|_| times.len() >= rule.ranks);
            let why = who.map_or(why.clone(), |rank| format!("{why}: {}", place(rank)));
            return vec![finish(raw.missing("stragglers", "", State::Unavailable, why))];
        }
    };
    let Some(first) = members.first() else { return Vec::new() };
    let named: Vec<String> = verdict
        .persistent()
        .map(|slow| format!("{} +{:.1} %", place(slow.rank), slow.excess * 100.0))
        .collect();
    let bimodal = verdict.slow.iter().filter(|slow| slow.kind == Kind::Bimodal).count();
    let mut detail = if named.is_empty() {
        format!("none of {} ranks in {} windows", members.len(), verdict.windows)
    } else {
        named.join(", ")
    };
    if bimodal > 0 {
        detail.push_str(&format!(
            "; {bimodal} ranks are slow against the lower quartile: a part of the fleet differs"
        ));
    }
    let mut records = vec![finish(
        raw.measured("stragglers", "", named.len() as f64, first.evidence.clone()).detail(detail),
    )];
    let mut on_node: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for (rank, member) in members.iter().enumerate() {
        let counts = on_node.entry(member.node).or_default();
        counts.0 += 1;
        counts.1 += usize::from(verdict.persistent().any(|slow| slow.rank == rank));
    }
    for slow in &verdict.slow {
        let member = &members[slow.rank];
        let mut detail = format!("{} of {} windows", slow.flagged, verdict.windows);
        if slow.kind == Kind::Persistent {
            detail.push_str(match on_node.get(member.node) {
                Some((1, _)) => "; the node's only rank",
                Some((all, bad)) if all == bad => "; every rank of the node: power, cooling or the host",
                _ => "; other ranks of the node are not slow: this device",
            });
            if let Some(own) = facts.get(slow.rank) {
                let healthy = |rank: usize| verdict.slow.iter().all(|slow| slow.rank != rank);
                let others: Vec<Facts> = facts
                    .iter()
                    .enumerate()
                    .filter(|(rank, _)| healthy(*rank))
                    .map(|(_, one)| *one)
                    .collect();
                detail.push_str("; ");
                detail.push_str(&cause::likely(own, &others));
            }
        }
        let draft = raw
            .measured("straggler", "percent", slow.excess.max(0.0) * 100.0, member.evidence.clone())
            .param("rank", member.rank)
            .param("kind", slow.kind.word())
            .on(member.node)
            .detail(detail);
        records.push(finish(match member.gpu {
            Some(gpu) => draft.gpu(gpu),
            None => draft,
        }));
    }
    records
}
