//! Sets of seconds: spans that overlap are one span.

/// From (inclusive) to (exclusive), seconds since the epoch.
pub type Span = (i64, i64);

/// The same seconds in rising, disjoint spans; empty ones are dropped.
pub fn union(mut spans: Vec<Span>) -> Vec<Span> {
    spans.retain(|(from, to)| from < to);
    spans.sort_unstable();
    let mut out: Vec<Span> = Vec::new();
    for (from, to) in spans {
        match out.last_mut() {
            Some((_, end)) if from <= *end => *end = (*end).max(to),
            _ => out.push((from, to)),
        }
    }
    out
}

/// Seconds in both; both rising and disjoint.
pub fn intersect(a: &[Span], b: &[Span]) -> Vec<Span> {
    let (mut i, mut j, mut out) = (0, 0, Vec::new());
    while let (Some(x), Some(y)) = (a.get(i), b.get(j)) {
        let (from, to) = (x.0.max(y.0), x.1.min(y.1));
        if from < to {
            out.push((from, to));
        }
        if x.1 < y.1 {
            i += 1;
        } else {
            j += 1;
        }
    }
    out
}

/// Seconds in `a` and not in `b`; both rising and disjoint.
pub fn subtract(a: &[Span], b: &[Span]) -> Vec<Span> {
    let mut out = Vec::new();
    for (mut from, to) in a.iter().copied() {
        for (start, end) in b.iter().copied() {
            if end <= from {
                continue;
            }
            if start >= to {
                break;
            }
            if start > from {
                out.push((from, start));
            }
            from = from.max(end);
        }
        if from < to {
            out.push((from, to));
        }
    }
    out
}

/// How many seconds.
pub fn seconds(spans: &[Span]) -> i64 {
    spans.iter().map(|(from, to)| to - from).sum()
}

/// Seconds in which `least` or more of the sets hold; each rising and disjoint.
pub fn at_least(least: usize, sets: &[&[Span]]) -> Vec<Span> {
    let mut steps: Vec<(i64, i64)> =
        sets.iter().flat_map(|set| set.iter().flat_map(|(from, to)| [(*from, 1), (*to, -1)])).collect();
    steps.sort_unstable();
    let (mut held, mut since, mut out) = (0_i64, None, Vec::new());
    for (at, step) in steps {
        held += step;
        match since {
            None if held >= least as i64 => since = Some(at),
            Some(from) if held < least as i64 => {
                out.push((from, at));
                since = None;
            }
            _ => {}
        }
    }
    union(out)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sets() -> impl Strategy<Value = Vec<Span>> {
        proptest::collection::vec(
            (0_i64..60, 0_i64..20).prop_map(|(from, length)| (from, from + length)),
            0..8,
        )
    }

    fn holds(spans: &[Span], at: i64) -> bool {
        spans.iter().any(|(from, to)| (*from..*to).contains(&at))
    }

    proptest! {
        /// Every operation against the same one second by second.
        #[test]
        fn spans_are_sets_of_seconds(a in sets(), b in sets(), c in sets(), least in 1_usize..4) {
            let raw = [a.clone(), b.clone(), c.clone()];
            let [x, y, z] = [a, b, c].map(union);
            for set in [&x, &y, &z] {
                prop_assert!(set.windows(2).all(|pair| pair[0].1 < pair[1].0));
            }
            let many = at_least(least, &[&x, &y, &z]);
            for at in -1..82 {
                let [p, q, r] = [&x, &y, &z].map(|set| holds(set, at));
                prop_assert_eq!(p, holds(&raw[0], at));
                prop_assert_eq!(holds(&intersect(&x, &y), at), p && q);
                prop_assert_eq!(holds(&subtract(&x, &y), at), p && !q);
                let held = [p, q, r].into_iter().filter(|one| *one).count();
                prop_assert_eq!(holds(&many, at), held >= least, "{} of 3 at {}", least, at);
            }
            prop_assert_eq!(seconds(&x), (-1..82).filter(|at| holds(&x, *at)).count() as i64);
        }
    }
}
