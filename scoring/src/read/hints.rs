//! What a result's shape says about its likely cause: a hint for whoever looks next, never a verdict.
//!
//! Derived from public threads about slow collectives. What is expected comes from `references.tsv`, else from what the
//! wires carry; without either only shapes that speak for themselves are named.

use super::collectives::{ceiling, link};
use crate::methodology::Methodology;

/// Messages from here on are ruled by bandwidth, not by latency.
const LARGE: u64 = 64 << 20;
/// Share of the wires' ceiling that good systems reach between nodes.
const REACHED: f64 = 0.75;
/// Below this share of what is expected a result is short of it.
const SHORT: f64 = 0.85;

/// One table of a collective.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Shape {
    /// nccl-tests' name.
    pub collective: String,
    /// Nodes that took part.
    pub nodes: u64,
    /// Ranks that took part.
    pub ranks: u64,
    /// `nvlink_off`, `pair` or empty.
    pub variant: String,
    /// Size in bytes, microseconds, bus bandwidth in GB/s, in the order of the table.
    pub rows: Vec<(u64, f64, f64)>,
    /// GB/s of a large message that a good system reaches.
    pub expected: Option<f64>,
}

impl Shape {
    fn large(&self) -> impl Iterator<Item = &(u64, f64, f64)> {
        self.rows.iter().filter(|(size, ..)| *size >= LARGE)
    }

    /// Best bus bandwidth of large messages.
    fn best(&self) -> Option<f64> {
        self.large().map(|(.., busbw)| *busbw).reduce(f64::max)
    }

    /// Best by what is expected.
    fn share(&self) -> Option<f64> {
        Some(self.best()? / self.expected.filter(|expected| *expected > 0.0)?)
    }
}

/// GB/s that a good system of this GPU model reaches with large messages; none when nothing is known of it.
#[must_use]
pub fn expected(
    model: Option<&str>,
    collective: &str,
    nodes: u64,
    ranks: u64,
    network: Option<f64>,
) -> Option<f64> {
    let references = Methodology::built_in().map(|all| all.references).unwrap_or_default();
    let is = |wanted: Option<i64>, value: u64| wanted.is_none_or(|wanted| u64::try_from(wanted) == Ok(value));
    let published = model.and_then(|model| {
        references.iter().find(|one| {
            one.metric == "busbw"
                && one.gpus.iter().any(|gpu| model.contains(gpu.as_str()))
                && one.params.get("collective").is_some_and(|name| name.to_string() == collective)
                && is(one.nodes, nodes)
                && is(one.ranks, ranks)
        })
    });
    published.map(|one| one.typical).or_else(|| {
        // Without a network's rate nothing is known between nodes.
        let link = model.and_then(link);
        (nodes == 1 || network.is_some())
            .then(|| ceiling(collective, ranks, nodes, network, link))
            .flatten()
            .map(|(limit, _)| limit * REACHED)
    })
}

/// What one table shows.
#[must_use]
pub fn of(shape: &Shape) -> Vec<String> {
    let mut found = Vec::new();
    let Some(best) = shape.best() else { return found };
    let between = shape.nodes > 1;
    let slowest = shape.large().map(|(.., busbw)| *busbw).fold(f64::INFINITY, f64::min);
    let flat = slowest > best / 1.15;
    if between && best <= 4.0 {
        found.push(format!(
            "{best:.1} GB/s between nodes is what TCP sockets give: look for NET/Socket in NCCL's log"
        ));
    } else if between && flat && (12.0..=16.0).contains(&best) {
        found.push(format!(
            "flat at {best:.1} GB/s: GPUDirect RDMA is off, or NCCL_TOPO_FILE is of another machine; run again without it"
        ));
    } else if let Some(share) = shape.share().filter(|share| *share < SHORT) {
        let eighths = (share * 8.0).round();
        let near = (share * 8.0 - eighths).abs() < 0.3 && (1.0..=7.0).contains(&eighths);
        if (0.45..=0.55).contains(&share) {
            found.push(
                "about half of what is expected at all sizes: PCIe ACS is on, or only one NUMA side's cards are used"
                    .to_owned(),
            );
        } else if between && near {
            found.push(format!("about {eighths:.0}/8 of what is expected: {eighths:.0} of 8 rails work; look at each card's counters"));
        }
    }
    let mut before: Option<(u64, f64)> = None;
    for (size, _, busbw) in &shape.rows {
        if let Some((last, high)) = before
            && *size > 32 << 20
            && *busbw < high * 0.8
        {
            found.push(format!(
                "a cliff from {high:.1} GB/s at {} to {busbw:.1} at {}: NCCL switches algorithm or protocol onto a bad path, or the \
                 fabric drops packets (ECN, PFC, adaptive routing)",
                bytes(last),
                bytes(*size)
            ));
            break;
        }
        before = Some((*size, *busbw));
    }
    if let [(_, first, _), (_, second, _), ..] = shape.rows[..]
        && first > second * 5.0
    {
        found.push("only the first size is slow: too few warm-up calls (-w), not the hardware".to_owned());
    }
    found
}

/// What several tables of one system show together.
#[must_use]
pub fn together(shapes: &[Shape]) -> Vec<String> {
    let mut found = Vec::new();
    let plain = |collective: &str, nodes: u64| {
        shapes.iter().find(|one| one.collective == collective && one.nodes == nodes && one.variant.is_empty())
    };
    let share = |shape: Option<&Shape>| shape.and_then(Shape::share);
    let most = shapes.iter().filter(|one| one.variant.is_empty()).map(|one| one.nodes).max().unwrap_or(0);
    let inside = share(plain("all_reduce", 1));
    if inside.is_some_and(|share| share < SHORT) {
        found.push("short of what is expected inside one node: NVLink, or the fabric manager".to_owned());
    }
    let two = share(plain("all_reduce", 2));
    if inside.is_some_and(|share| share >= SHORT) && two.is_some_and(|share| share < SHORT) {
        found.push(
            "good inside a node and short between two: the network cards or their way to the GPUs".to_owned(),
        );
    }
    if most > 1 {
        let reduce = share(plain("all_reduce", most));
        let shuffle = share(plain("alltoall", most));
        if reduce.is_some_and(|share| share >= SHORT) && shuffle.is_some_and(|share| share < 0.7) {
            found.push(
                "all-reduce is good and all-to-all is not: the fabric's routing (adaptive routing off, rails without a way across, PXN)"
                    .to_owned(),
            );
        }
        let pairs: Vec<f64> =
            shapes.iter().filter(|one| one.variant == "pair").filter_map(Shape::share).collect();
        if !pairs.is_empty()
            && pairs.iter().all(|share| *share >= SHORT)
            && reduce.is_some_and(|share| share < SHORT)
        {
            found.push(
                "good in pairs and short all together: congestion, or an oversubscribed fabric".to_owned(),
            );
        }
    }
    found
}

fn bytes(size: u64) -> String {
    if size >= 1 << 30 { format!("{} GiB", size >> 30) } else { format!("{} MiB", size >> 20) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(collective: &str, nodes: u64, expected: f64, busbw: &[(u64, f64)]) -> Shape {
        Shape {
            collective: collective.to_owned(),
            nodes,
            ranks: nodes * 8,
            variant: String::new(),
            rows: busbw.iter().map(|(mib, busbw)| (mib << 20, 10.0, *busbw)).collect(),
            expected: Some(expected),
        }
    }

    /// Each signature of the table by one shape, and a good result by none.
    #[test]
    fn every_signature_is_recognised() {
        let good = shape(
            "all_reduce",
            2,
            480.0,
            &[(1, 20.0), (32, 200.0), (64, 300.0), (1024, 440.0), (8192, 475.0)],
        );
        assert_eq!(of(&good), [] as [String; 0]);
        for (table, words) in [
            (shape("all_reduce", 2, 480.0, &[(64, 2.1), (1024, 2.3)]), "TCP sockets"),
            (shape("all_reduce", 4, 480.0, &[(64, 13.4), (1024, 14.6)]), "GPUDirect RDMA is off"),
            (shape("all_reduce", 2, 480.0, &[(64, 230.0), (1024, 241.0)]), "about half"),
            (shape("all_reduce", 2, 480.0, &[(64, 170.0), (1024, 180.0)]), "3 of 8 rails"),
            (
                shape("all_reduce", 1, 480.0, &[(16, 180.0), (32, 330.0), (64, 120.0), (128, 118.0)]),
                "a cliff from 330.0 GB/s at 32 MiB to 120.0 at 64 MiB",
            ),
        ] {
            let found = of(&table);
            assert!(found.first().is_some_and(|hint| hint.contains(words)), "{words}: {found:?}");
        }
        let mut cold = good;
        cold.rows[0].1 = 900.0;
        assert!(of(&cold)[0].contains("warm-up"));
    }

    #[test]
    fn tables_together_say_more() {
        let table = |name: &str, nodes, share: f64| shape(name, nodes, 100.0, &[(64, share), (1024, share)]);
        let pair = |share| Shape { variant: "pair".to_owned(), ..table("all_reduce", 2, share) };
        for (tables, words) in [
            (vec![table("all_reduce", 1, 60.0)], "inside one node"),
            (vec![table("all_reduce", 1, 98.0), table("all_reduce", 2, 55.0)], "network cards"),
            (vec![table("all_reduce", 8, 95.0), table("alltoall", 8, 40.0)], "routing"),
            (vec![table("all_reduce", 8, 60.0), pair(97.0), pair(95.0)], "congestion"),
        ] {
            let found = together(&tables);
            assert!(found.len() == 1 && found[0].contains(words), "{words}: {found:?}");
        }
        assert_eq!(
            together(&[
                table("all_reduce", 1, 98.0),
                table("all_reduce", 8, 97.0),
                table("alltoall", 8, 90.0)
            ]),
            [] as [String; 0]
        );
        // The run without NVLink is slow on purpose.
        let off = Shape { variant: "nvlink_off".to_owned(), ..table("all_reduce", 1, 20.0) };
        assert_eq!(together(&[table("all_reduce", 1, 98.0), off]), [] as [String; 0]);
    }

    #[test]
    fn what_is_expected_comes_from_the_references_else_from_the_wires() {
        assert_eq!(expected(Some("NVIDIA H100 80GB HBM3"), "all_reduce", 2, 16, None), Some(487.0));
        // No row: 75 % of 50 GB/s x 63/56 for all-to-all over 8 nodes.
        let wires = expected(Some("NVIDIA H100 80GB HBM3"), "alltoall", 8, 64, Some(50.0)).unwrap();
        assert!((wires - 42.19).abs() < 0.01, "{wires}");
        assert_eq!(expected(None, "alltoall", 8, 64, None), None);
    }
}
