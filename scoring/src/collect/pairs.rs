//! Nodes measured in pairs (`pairs` of `torch.json`): what each pair reached, and whether a slow one is slow for a node
//! or for the way between two.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::ranks::{self, Member, Slowed};
use super::{Draft, Raw, RawFile};
use crate::record::{Evidence, Provenance, Record, State};
use crate::straggler::cause::Facts;
use crate::straggler::pairs::{self, Blame, Met};
use crate::straggler::{self, RULE};

const SIGNAL: &str = "pair work";
/// The first round, and one with each of two new partners.
const ROUNDS: usize = 3;

/// `pairs` of `torch.json`.
#[derive(Debug, Deserialize)]
pub(super) struct Pairs {
    size: i64,
    /// A link was made slower on purpose, to see that it is found.
    slowed: Option<SlowLink>,
    rows: Vec<Row>,
    missing: Option<String>,
}

#[derive(Debug, Deserialize)]
struct SlowLink {
    nodes: Vec<String>,
    percent: i64,
}

#[derive(Debug, Deserialize)]
struct Row {
    round: i64,
    nodes: [String; 2],
    ranks: i64,
    busbw: f64,
    wrong: i64,
    device: String,
    work: Vec<Work>,
}

/// Equal work of one rank while its pair was measured.
#[derive(Debug, Deserialize)]
struct Work {
    rank: i64,
    node: String,
    local: u32,
    wall: f64,
    cpu: f64,
    #[serde(default)]
    facts: Facts,
}

/// Records of the pairs; `finish` adds what all records of the document have.
pub(super) fn read(
    raw: &Raw,
    file: &RawFile,
    document: &Pairs,
    slowed: Option<Slowed>,
    finish: impl Fn(Draft) -> Record,
) -> Vec<Record> {
    let signal = |draft: Draft| draft.param("signal", "pair bandwidth").param("clock", "wall");
    if let Some(why) = &document.missing {
        return vec![finish(signal(raw.missing("stragglers", "", State::Unavailable, why.clone())))];
    }
    let mut records = Vec::new();
    for (index, row) in document.rows.iter().enumerate() {
        let draft = if row.wrong > 0 {
            raw.missing("pair_bandwidth", "GB/s", State::Unknown, format!("{} wrong values", row.wrong))
        } else {
            raw.measured("pair_bandwidth", "GB/s", row.busbw, file.at(format!("/pairs/rows/{index}/busbw")))
        };
        records.push(finish(
            draft
                .on(&row.nodes[0])
                .param("peer", row.nodes[1].as_str())
                .param("round", row.round)
                .param("size", document.size)
                .param("ranks", row.ranks)
                .param("collective", "all_reduce"),
        ));
    }
    // They share one machine's loopback: a slow pair says what else ran there.
    let links = if raw.folder.run.simulated && document.slowed.is_none() {
        let why = "the nodes are simulated on one machine: the way between two of them is nobody's link";
        vec![raw.missing("stragglers", "", State::Unavailable, why)]
    } else {
        let met: Vec<Met> = document
            .rows
            .iter()
            .filter(|row| row.wrong == 0)
            .map(|row| Met { nodes: row.nodes.clone(), speed: row.busbw })
            .collect();
        blamed(raw, &met, &file.at("/pairs/rows"))
    };
    records.extend(links.into_iter().map(|draft| finish(signal(draft))).map(|mut record| {
        if let Some(slowed) = &document.slowed {
            record.provenance = Provenance::Synthetic;
            let note = format!("{} made {} % slower on purpose", slowed.nodes.join(" and "), slowed.percent);
            record.detail =
                Some(record.detail.map_or_else(|| note.clone(), |detail| format!("{detail}; {note}")));
        }
        record
    }));
    records.extend(work(raw, file, document, slowed));
    records
}

/// Who is slow of the nodes that met, and by how much: `stragglers`, and a `straggler` for each.
pub(super) fn blamed(raw: &Raw, met: &[Met], evidence: &Evidence) -> Vec<Draft> {
    let found = match pairs::blame(met) {
        Ok(found) => found,
        Err(why) => return vec![raw.missing("stragglers", "", State::Unavailable, why)],
    };
    let mut named = Vec::new();
    let mut drafts = Vec::new();
    for blame in &found {
        let (node, peer, short, kind, text) = match blame {
            Blame::Node { node, partners, short } => (
                node,
                None,
                *short,
                "persistent",
                format!(
                    "{node} is slow with every partner ({}), who do well with others: the node",
                    partners.join(", ")
                ),
            ),
            Blame::Link { nodes: [a, b], times, short } => (
                a,
                Some(b),
                *short,
                "persistent",
                format!(
                    "{a} and {b} are slow only together, {times} times of {times}: the link between them"
                ),
            ),
            Blame::Open { nodes: [a, b], short } => (
                a,
                Some(b),
                *short,
                "transient",
                format!("{a} and {b} were slow together and did not meet enough others to say why"),
            ),
        };
        if kind == "persistent" {
            named.push(format!("{text}, -{:.0} %", short * 100.0));
        }
        // As for times: how much longer it takes.
        let longer = (1.0 / (1.0 - short).max(1e-6) - 1.0) * 100.0;
        let draft = raw
            .measured("straggler", "percent", longer, evidence.clone())
            .on(node)
            .param("kind", kind)
            .detail(text);
        drafts.push(match peer {
            Some(peer) => draft.param("peer", peer.as_str()),
            None => draft,
        });
    }
    let detail = if named.is_empty() {
        format!("no node and no link among {} measured pairs", met.len())
    } else {
        named.join("; ")
    };
    drafts.insert(0, raw.measured("stragglers", "", named.len() as f64, evidence.clone()).detail(detail));
    drafts
}

/// Ranks at equal work, in as many rounds as each was in: who is slow is slow beside every partner.
fn work(raw: &Raw, file: &RawFile, document: &Pairs, slowed: Option<Slowed>) -> Vec<Record> {
    /// Its first row, its first work, and the times of all.
    type Times<'a> = (usize, &'a Work, Vec<f64>, Vec<f64>);
    let mut members: BTreeMap<i64, Times> = BTreeMap::new();
    for (index, row) in document.rows.iter().enumerate() {
        for one in &row.work {
            let member = members.entry(one.rank).or_insert_with(|| (index, one, Vec::new(), Vec::new()));
            member.2.push(one.wall);
            member.3.push(one.cpu);
        }
    }
    let rounds = members.values().map(|member| member.2.len()).max().unwrap_or(0);
    let gpu = document.rows.first().is_some_and(|row| row.device == "cuda");
    // A rank that met fewer partners was not suspect: its median stands for the rounds it was not in.
    let full = |times: &[f64]| {
        let middle = straggler::windows(times, 1).first().copied().unwrap_or(f64::NAN);
        let mut all = times.to_vec();
        all.resize(rounds.max(1), middle);
        all
    };
    let facts: Vec<Facts> = members.values().map(|member| member.1.facts).collect();
    let members: Vec<Member> = members
        .values()
        .map(|(index, work, wall, cpu)| Member {
            rank: work.rank,
            node: &work.node,
            gpu: gpu.then_some(work.local),
            wall: full(wall),
            cpu: full(cpu),
            evidence: file.at(format!("/pairs/rows/{index}/work")),
        })
        .collect();
    // Each round is the median of ten products already. Named is who was slow beside every partner.
    let rule = straggler::Rule { windows: ROUNDS.min(rounds), persistent: 1.0, ..RULE };
    if rounds < ROUNDS && members.len() >= RULE.ranks {
        let draft = raw.measured("stragglers", "", 0.0, file.at("/pairs/rows")).param("signal", SIGNAL);
        return vec![draft.detail("nobody was suspect, so nobody met further partners").done()];
    }
    ranks::compare_by(raw, SIGNAL, &members, slowed, &rule, &facts)
}

#[cfg(test)]
mod tests {
    use super::super::StageState;
    use super::super::tests::{collected, find};
    use super::*;

    /// `pairs`: round, two nodes (by number, one rank each), busbw; a rank's time at equal work by its number.
    fn records(pairs: &[(i64, usize, usize, f64)], time: impl Fn(usize) -> f64, slowed: &str) -> Vec<Record> {
        let rows: Vec<String> = pairs
            .iter()
            .map(|(round, a, b, busbw)| {
                let work = |n: usize| {
                    format!(
                        r#"{{"rank":{},"node":"n{n}","local":0,"wall":{t},"cpu":{t},"facts":{{"clock_mhz":{},"temperature_c":60}}}}"#,
                        n - 1,
                        2000.0 / time(n),
                        t = time(n) / 1e3
                    )
                };
                format!(
                    r#"{{"round":{round},"nodes":["n{a}","n{b}"],"ranks":2,"seconds":0.1,"busbw":{busbw},"wrong":0,"device":"cpu","work":[{},{}]}}"#,
                    work(*a),
                    work(*b)
                )
            })
            .collect();
        let document = format!(
            r#"{{"torch":"2.6","device":"cpu","ranks":8,"started":"2026-11-30T20:00:01Z","complete":true,"backend":"gloo","nodes":8,
"dtype":"float32","planned":[],"rows":[],"missing":[],"pairs":{{"size":4194304,"slowed":{slowed},"missing":null,"rows":[{}]}}}}"#,
            rows.join(",")
        );
        collected("collectives", StageState::Done, &[("torch.json", &document)]).1
    }

    const ROUNDS: [(i64, usize, usize, f64); 11] = [
        (1, 1, 2, 100.0),
        (1, 3, 4, 100.0),
        (1, 5, 6, 50.0),
        (1, 7, 8, 98.0),
        (2, 5, 1, 98.0),
        (2, 6, 2, 99.0),
        (2, 3, 7, 101.0),
        (3, 6, 1, 97.0),
        (3, 5, 2, 99.0),
        (3, 4, 8, 99.0),
        (4, 5, 6, 52.0),
    ];

    #[test]
    fn a_slow_link_is_told_from_a_slow_node() {
        let spread = |n: usize| 4.0 + 0.02 * (n % 3) as f64;
        let link = records(&ROUNDS, spread, "null");
        let all = find(&link, "stragglers", &[("signal", "pair bandwidth")]);
        assert_eq!(all.value, Some(1.0));
        let one = find(&link, "straggler", &[("node", "n5"), ("peer", "n6")]);
        assert!(one.detail.as_deref().unwrap().contains("the link between them"), "{one:?}");
        assert!((one.value.unwrap() - 94.0).abs() < 5.0, "{one:?}");
        assert_eq!(find(&link, "stragglers", &[("signal", "pair work")]).value, Some(0.0));
        assert_eq!(
            find(&link, "pair_bandwidth", &[("node", "n5"), ("peer", "n6"), ("round", "4")]).value,
            Some(52.0)
        );

        let slow = ROUNDS.map(|(round, a, b, speed)| (round, a, b, if a == 5 { 50.0 } else { speed }));
        let node = records(&slow, spread, r#"{"nodes":["n5"],"percent":100}"#);
        let one = find(&node, "straggler", &[("node", "n5"), ("kind", "persistent")]);
        let detail = one.detail.as_deref().unwrap();
        assert!(detail.contains("every partner (n1, n2, n6)") && detail.contains("on purpose"), "{detail}");
        assert_eq!(one.provenance, Provenance::Synthetic);
        assert!(!one.params.contains_key("peer"));
    }

    #[test]
    fn one_rank_of_eight_that_is_slow_beside_every_partner_is_named_with_its_cause() {
        let even = ROUNDS.map(|(round, a, b, _)| (round, a, b, 100.0));
        let slow = records(&even, |n| if n == 5 { 4.8 } else { 4.0 + 0.02 * (n % 3) as f64 }, "null");
        assert_eq!(find(&slow, "stragglers", &[("signal", "pair work")]).value, Some(1.0));
        let one = find(&slow, "straggler", &[("node", "n5"), ("rank", "4"), ("kind", "persistent")]);
        let detail = one.detail.as_deref().unwrap();
        assert!(detail.contains("likely cause: clock 417 MHz, the others' 4"), "{detail}");
        assert_eq!(find(&slow, "stragglers", &[("signal", "pair bandwidth")]).value, Some(0.0));

        // 3 % natural spread: nobody; without a second look nobody either.
        let calm = records(&even, |n| 4.0 * (1.0 + 0.01 * (n % 4) as f64), "null");
        assert_eq!(find(&calm, "stragglers", &[("signal", "pair work")]).value, Some(0.0));
        let once = records(&even[..4], |n| if n == 5 { 4.3 } else { 4.0 }, "null");
        let all = find(&once, "stragglers", &[("signal", "pair work")]);
        assert!(
            all.value == Some(0.0) && all.detail.as_deref().unwrap().contains("nobody was suspect"),
            "{all:?}"
        );
    }
}
