//! Which ranks are slow at equal work.
//!
//! Windows of compute time between collectives, the same shapes on every rank. In each window a rank is compared with
//! the median of all ranks, on the scale of the median absolute deviation (MAD) with a floor: two stragglers do not
//! hide each other as with mean and standard deviation, whose largest score among n ranks is sqrt(n - 1). A second,
//! less certain signal compares with the lower quartile: it alone sees that half of the ranks are slow.
//!
//! A collective's own time is no evidence: there the slow rank waits least.

pub mod cause;
pub mod pairs;

/// The rule's numbers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rule {
    /// Distance from the median in scales.
    pub score: f64,
    /// Distance from the median as a share of it.
    pub excess: f64,
    /// Smallest scale as a share of the median.
    pub floor: f64,
    /// Distance from the lower quartile as a share of it.
    pub quartile_excess: f64,
    /// Share of windows from which on a rank is persistently slow.
    pub persistent: f64,
    /// Share of the ranks that must be slow by the quartile alone to say that a part of the fleet is.
    pub part: f64,
    /// Fewest ranks that can be compared.
    pub ranks: usize,
    /// Fewest windows.
    pub windows: usize,
}

/// The rule that is shipped: z > 5 and 5 % in 60 % of at least 10 windows; 8 % above the lower quartile.
pub const RULE: Rule = Rule {
    score: 5.0,
    excess: 0.05,
    floor: 0.01,
    quartile_excess: 0.08,
    persistent: 0.6,
    part: 0.25,
    ranks: 4,
    windows: 10,
};

/// How a rank is slow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Against the median in most windows: named and counted.
    Persistent,
    /// Against the median in some windows: named, not counted.
    Transient,
    /// One of many that only the lower quartile shows: a part of the fleet is slow. Less certain, not counted.
    Bimodal,
}

impl Kind {
    /// The word in records.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Persistent => "persistent",
            Self::Transient => "transient",
            Self::Bimodal => "bimodal",
        }
    }
}

/// A rank that stands out.
#[derive(Debug, Clone, PartialEq)]
pub struct Slow {
    /// Position in the input.
    pub rank: usize,
    /// How it is slow.
    pub kind: Kind,
    /// Median over the windows of time / median of all ranks - 1 (bimodal: against the lower quartile; transient: over
    /// the flagged windows only).
    pub excess: f64,
    /// Windows in which it was flagged.
    pub flagged: usize,
}

/// What the windows show.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdict {
    /// Ranks that stand out, slowest first.
    pub slow: Vec<Slow>,
    /// Windows that were compared.
    pub windows: usize,
    /// Median over ranks of their median time, in the unit of the input.
    pub median: f64,
}

impl Verdict {
    /// Ranks that are persistently slow.
    pub fn persistent(&self) -> impl Iterator<Item = &Slow> {
        self.slow.iter().filter(|slow| slow.kind == Kind::Persistent)
    }
}

/// Compares ranks. `times[rank][window]` is the rank's median compute time in that window; longer rows are cut to
/// the shortest. The first window must have been dropped by the caller.
///
/// # Errors
/// The clause that says why nothing can be said: too few ranks or windows, a time that is not above zero.
pub fn examine(times: &[Vec<f64>], rule: &Rule) -> Result<Verdict, String> {
    if times.len() < rule.ranks {
        return Err(format!("{} ranks, a straggler can be told among {} or more", times.len(), rule.ranks));
    }
    let windows = times.iter().map(Vec::len).min().unwrap_or(0);
    if windows < rule.windows {
        return Err(format!("{windows} windows of time, {} are needed", rule.windows));
    }
    if times.iter().any(|row| row[..windows].iter().any(|time| !(time.is_finite() && *time > 0.0))) {
        return Err("a rank has a time that is not above zero".to_owned());
    }
    let mut by_median = vec![0usize; times.len()];
    let mut by_quartile = vec![0usize; times.len()];
    let mut excess: Vec<Vec<f64>> = vec![Vec::with_capacity(windows); times.len()];
    let mut quartile_excess = excess.clone();
    for window in 0..windows {
        let column: Vec<f64> = times.iter().map(|row| row[window]).collect();
        let centre = quantile(&column, 0.5);
        let deviations: Vec<f64> = column.iter().map(|time| (time - centre).abs()).collect();
        // 1.4826 x MAD is the standard deviation of normal data.
        let scale = (1.4826 * quantile(&deviations, 0.5)).max(rule.floor * centre);
        let quartile = quantile(&column, 0.25);
        for (rank, time) in column.iter().enumerate() {
            let over = time / centre - 1.0;
            by_median[rank] += usize::from((time - centre) / scale > rule.score && over > rule.excess);
            excess[rank].push(over);
            let over = time / quartile - 1.0;
            by_quartile[rank] += usize::from(over > rule.quartile_excess);
            quartile_excess[rank].push(over);
        }
    }
    let lasting = |flags: usize| flags as f64 >= rule.persistent * windows as f64;
    let only_quartile =
        (0..times.len()).filter(|rank| lasting(by_quartile[*rank]) && !lasting(by_median[*rank])).count();
    let bimodal = only_quartile as f64 >= rule.part * times.len() as f64;
    let mut slow: Vec<Slow> = (0..times.len())
        .filter_map(|rank| {
            let (kind, flagged, excess) = if lasting(by_median[rank]) {
                (Kind::Persistent, by_median[rank], &excess)
            } else if bimodal && lasting(by_quartile[rank]) {
                (Kind::Bimodal, by_quartile[rank], &quartile_excess)
            } else if by_median[rank] > 0 {
                (Kind::Transient, by_median[rank], &excess)
            } else {
                return None;
            };
            let mut over = excess[rank].clone();
            if kind == Kind::Transient {
                // The windows in which it was slow, which are its slowest.
                over.sort_by(|a, b| b.total_cmp(a));
                over.truncate(flagged);
            }
            Some(Slow { rank, kind, excess: quantile(&over, 0.5), flagged })
        })
        .collect();
    slow.sort_by(|a, b| b.excess.total_cmp(&a.excess));
    let each: Vec<f64> = times.iter().map(|row| quantile(&row[..windows], 0.5)).collect();
    Ok(Verdict { slow, windows, median: quantile(&each, 0.5) })
}

/// Medians of `count` equal runs of consecutive samples; fewer samples give as many windows as there are.
#[must_use]
pub fn windows(samples: &[f64], count: usize) -> Vec<f64> {
    let count = count.min(samples.len());
    (0..count)
        .map(|window| {
            let edge = |window: usize| window * samples.len() / count;
            quantile(&samples[edge(window)..edge(window + 1)], 0.5)
        })
        .collect()
}

/// Quantile by linear interpolation between order statistics; NaN of nothing.
fn quantile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let Some(last) = sorted.len().checked_sub(1) else { return f64::NAN };
    let at = share * last as f64;
    let below = at.floor() as usize;
    let above = (below + 1).min(last);
    sorted[below] + (sorted[above] - sorted[below]) * (at - below as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// xorshift64* and Box-Muller: the same numbers on every machine.
    struct Random(u64);

    impl Random {
        fn uniform(&mut self) -> f64 {
            self.0 ^= self.0 >> 12;
            self.0 ^= self.0 << 25;
            self.0 ^= self.0 >> 27;
            (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 11) as f64 / (1u64 << 53) as f64
        }

        fn normal(&mut self) -> f64 {
            (-2.0 * (1.0 - self.uniform()).ln()).sqrt() * (std::f64::consts::TAU * self.uniform()).cos()
        }
    }

    const TRIALS: usize = 100;

    /// A fleet whose chips differ by `spread` for good; each of 10 windows is the median of 4 steps with 2 % noise (the
    /// publication says "2 % noise, 10 windows"; four steps and a spread of 1 % give its 0.93).
    fn fleet(random: &mut Random, ranks: usize, slow: usize, slowdown: f64, spread: f64) -> Vec<Vec<f64>> {
        (0..ranks)
            .map(|rank| {
                let own = (1.0 + spread * random.normal()) * if rank < slow { 1.0 + slowdown } else { 1.0 };
                (0..10)
                    .map(|_| {
                        let steps: Vec<f64> = (0..4).map(|_| own * (1.0 + 0.02 * random.normal())).collect();
                        quantile(&steps, 0.5)
                    })
                    .collect()
            })
            .collect()
    }

    /// Share of the slow ranks that are found, and false flags a trial.
    fn rate(
        ranks: usize,
        slow: usize,
        slowdown: f64,
        spread: f64,
        found: impl Fn(&Verdict) -> Vec<usize>,
    ) -> (f64, f64) {
        let mut random = Random(20_261_130);
        let (mut right, mut wrong) = (0, 0);
        for _ in 0..TRIALS {
            let verdict = examine(&fleet(&mut random, ranks, slow, slowdown, spread), &RULE).unwrap();
            for rank in found(&verdict) {
                if rank < slow { right += 1 } else { wrong += 1 }
            }
        }
        (right as f64 / (TRIALS * slow.max(1)) as f64, wrong as f64 / TRIALS as f64)
    }

    fn named(verdict: &Verdict) -> Vec<usize> {
        verdict.persistent().map(|slow| slow.rank).collect()
    }

    fn named_by_either(verdict: &Verdict) -> Vec<usize> {
        let counts = |slow: &&Slow| matches!(slow.kind, Kind::Persistent | Kind::Bimodal);
        verdict.slow.iter().filter(counts).map(|slow| slow.rank).collect()
    }

    /// The published simulation, by the shipped rule: who is found, and that nobody else is.
    #[test]
    fn the_simulation_table() {
        // ranks, slow, slowdown: found by the median rule.
        for (ranks, slow, slowdown, want) in [
            (8, 1, 0.20, 1.00),
            (8, 1, 0.50, 1.00),
            (16, 2, 0.20, 1.00),
            (64, 1, 0.10, 0.93),
            (64, 16, 0.20, 1.00),
            (8, 4, 0.20, 0.00),
        ] {
            let (right, wrong) = rate(ranks, slow, slowdown, 0.01, named);
            assert!((right - want).abs() <= 0.06, "{ranks} {slow} {slowdown}: {right}, published {want}");
            assert_eq!(wrong, 0.0, "{ranks} {slow} {slowdown}");
        }
        // Half of the fleet: only the quartile sees it.
        let (right, wrong) = rate(8, 4, 0.20, 0.01, named_by_either);
        assert_eq!((right, wrong), (1.0, 0.0));
        // Natural spread of 3 % (all in all) names nobody: at most a chip four deviations off in a hundred fleets.
        assert!(rate(64, 0, 0.0, 0.0268, named_by_either).1 <= 0.02);
        assert!(rate(8, 0, 0.0, 0.03, named_by_either).1 <= 0.02);
    }

    /// The quartile alone flags one rank in two fleets of natural spread: why it needs a part of the fleet.
    #[test]
    fn the_quartile_alone_flags_healthy_ranks() {
        let alone = Rule { part: 0.0, ..RULE };
        let mut random = Random(20_261_130);
        let mut flags = 0;
        for _ in 0..TRIALS {
            let verdict = examine(&fleet(&mut random, 64, 0, 0.0, 0.0268), &alone).unwrap();
            flags += verdict.slow.iter().filter(|slow| slow.kind == Kind::Bimodal).count();
        }
        let rate = flags as f64 / TRIALS as f64;
        assert!((0.4..1.0).contains(&rate), "{rate}, published 0.65");
    }

    /// Mean and three standard deviations, for comparison: blind among eight, whatever the slowdown.
    #[test]
    fn three_sigma_cannot_see_one_of_eight() {
        let column = [1.0, 1.01, 0.99, 1.0, 1.0, 1.01, 0.99, 1.5];
        let mean = column.iter().sum::<f64>() / 8.0;
        let sigma = (column.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 8.0).sqrt();
        assert!((1.5 - mean) / sigma < 3.0);
        let times: Vec<Vec<f64>> = column.iter().map(|time| vec![*time; 10]).collect();
        assert_eq!(named(&examine(&times, &RULE).unwrap()), [7]);
    }

    /// Time of each rank in every window -> who is named, and how.
    #[test]
    fn the_rule_on_plain_numbers() {
        let with = |usual: f64, count: usize, more: &[f64]| [vec![usual; count], more.to_vec()].concat();
        type Case = (&'static str, Vec<f64>, Vec<(usize, Kind)>);
        use Kind::{Bimodal, Persistent};
        let cases: [Case; 10] = [
            ("all equal: MAD is 0, the scale 1 % of the median", with(1.0, 8, &[]), vec![]),
            ("MAD 0, and 4.9 % above: five scales, not 5 %", with(1.0, 7, &[1.049]), vec![]),
            ("MAD 0, and 5.1 % above", with(1.0, 7, &[1.051]), vec![(7, Persistent)]),
            ("faster by half is not slow", with(1.0, 7, &[0.5]), vec![]),
            ("four ranks, one slow", with(1.0, 3, &[1.2]), vec![(3, Persistent)]),
            (
                "two of eight do not hide each other",
                with(1.0, 6, &[1.2, 1.3]),
                vec![(7, Persistent), (6, Persistent)],
            ),
            (
                "half are slow: the median lies between, the quartile sees them",
                with(1.0, 4, &[1.2; 4]),
                (4..8).map(|rank| (rank, Bimodal)).collect(),
            ),
            (
                "more than half: the quartile is slow, too; only a reference value tells",
                with(1.0, 1, &[1.2; 7]),
                vec![],
            ),
            ("all alike, ten times slower than they should be", with(10.0, 8, &[]), vec![]),
            // Median 1.02, MAD 0.02, scale 0.0297: 1.16 lies 4.7 scales above, 1.18 5.4.
            ("spread widens the scale", vec![0.98, 1.0, 1.0, 1.02, 1.02, 1.04, 1.04, 1.16], vec![]),
        ];
        for (what, ranks, named) in cases {
            let times: Vec<Vec<f64>> = ranks.iter().map(|time| vec![*time; 10]).collect();
            let slow = examine(&times, &RULE).unwrap().slow;
            let found: Vec<(usize, Kind)> = slow.iter().map(|one| (one.rank, one.kind)).collect();
            assert_eq!(found, named, "{what}");
        }
        let spread = [0.98, 1.0, 1.0, 1.02, 1.02, 1.04, 1.04, 1.18];
        let times: Vec<Vec<f64>> = spread.iter().map(|time| vec![*time; 10]).collect();
        assert_eq!(named(&examine(&times, &RULE).unwrap()), [7]);
    }

    /// Six of ten windows are most of them, five are not.
    #[test]
    fn persistent_begins_at_six_of_ten_windows() {
        for (slow, kind) in
            [(1, Kind::Transient), (5, Kind::Transient), (6, Kind::Persistent), (10, Kind::Persistent)]
        {
            let mut times = vec![vec![1.0; 10]; 8];
            times[2][..slow].fill(1.3);
            let found = examine(&times, &RULE).unwrap().slow;
            assert_eq!((found.len(), found[0].rank, found[0].kind, found[0].flagged), (1, 2, kind, slow));
        }
    }

    #[test]
    fn slow_now_and_then_is_transient() {
        let mut times = vec![vec![1.0; 10]; 8];
        times[3][4] = 1.4;
        times[3][5] = 1.4;
        let verdict = examine(&times, &RULE).unwrap();
        assert_eq!(verdict.slow.len(), 1);
        let slow = &verdict.slow[0];
        assert_eq!((slow.rank, slow.kind, slow.flagged), (3, Kind::Transient, 2));
        assert!((slow.excess - 0.4).abs() < 1e-9);
        assert_eq!((verdict.windows, verdict.median), (10, 1.0));
    }

    #[test]
    fn what_cannot_be_compared_says_why() {
        let refuse = |times: &[Vec<f64>]| examine(times, &RULE).unwrap_err();
        assert!(refuse(&vec![vec![1.0; 10]; 3]).contains("3 ranks"));
        assert!(refuse(&vec![vec![1.0; 9]; 8]).contains("9 windows"));
        assert!(refuse(&vec![vec![1.0; 10]; 2]).contains("2 ranks"));
        assert!(refuse(&vec![vec![1.0; 10]; 1]).contains("1 ranks"));
        assert!(refuse(&[]).contains("0 ranks"));
        for bad in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(refuse(&vec![vec![bad; 10]; 4]).contains("above zero"));
        }
    }

    #[test]
    fn samples_fall_into_windows() {
        assert_eq!(windows(&[1.0, 3.0, 2.0, 5.0, 5.0, 9.0], 2), [2.0, 5.0]);
        assert_eq!(windows(&[1.0, 2.0], 10), [1.0, 2.0]);
        assert_eq!(windows(&[], 10), [] as [f64; 0]);
    }

    proptest::proptest! {
        #[test]
        fn any_numbers_give_a_verdict_or_a_reason(times in proptest::collection::vec(proptest::collection::vec(proptest::num::f64::ANY, 0..14), 0..12)) {
            let _ = examine(&times, &RULE);
        }
    }
}
