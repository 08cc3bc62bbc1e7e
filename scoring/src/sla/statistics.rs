//! Failure rates with intervals, and what checkpoints cost.

/// Logarithm of the gamma function for x > 0 (Lanczos, g = 7, 9 terms; error below 1e-13).
fn ln_gamma(x: f64) -> f64 {
    const TERMS: [f64; 9] = [
        0.999_999_999_999_809_9,
        676.520_368_121_885_1,
        -1_259.139_216_722_402_8,
        771.323_428_777_653_1,
        -176.615_029_162_140_6,
        12.507_343_278_686_905,
        -0.138_571_095_265_720_12,
        9.984_369_578_019_572e-6,
        1.505_632_735_149_311_6e-7,
    ];
    let x = x - 1.0;
    let sum: f64 =
        TERMS[0] + TERMS[1..].iter().enumerate().map(|(i, term)| term / (x + i as f64 + 1.0)).sum::<f64>();
    let t = x + 7.5;
    0.5 * (2.0 * std::f64::consts::PI).ln() + (x + 0.5) * t.ln() - t + sum.ln()
}

/// Regularised lower incomplete gamma function P(a, x): series below a + 1, continued fraction above.
fn gamma_p(a: f64, x: f64) -> f64 {
    if x <= 0.0 {
        return 0.0;
    }
    let front = (a * x.ln() - x - ln_gamma(a)).exp();
    if x < a + 1.0 {
        let (mut sum, mut term, mut n) = (1.0 / a, 1.0 / a, a);
        for _ in 0..10_000 {
            n += 1.0;
            term *= x / n;
            sum += term;
            if term < sum * 1e-16 {
                break;
            }
        }
        return front * sum;
    }
    let (mut b, mut c) = (x + 1.0 - a, f64::MAX);
    let mut d = 1.0 / b;
    let mut h = d;
    for i in 1..10_000 {
        let an = -f64::from(i) * (f64::from(i) - a);
        b += 2.0;
        d = 1.0 / (an * d + b);
        c = b + an / c;
        let delta = d * c;
        h *= delta;
        if (delta - 1.0).abs() < 1e-15 {
            break;
        }
    }
    1.0 - front * h
}

/// Quantile of the chi-squared distribution; 0 for no degrees of freedom.
pub fn chi2_quantile(p: f64, degrees: f64) -> f64 {
    if degrees <= 0.0 {
        return 0.0;
    }
    let (mut low, mut high) = (0.0, degrees.max(1.0));
    while gamma_p(degrees / 2.0, high / 2.0) < p {
        high *= 2.0;
    }
    for _ in 0..200 {
        let middle = f64::midpoint(low, high);
        if gamma_p(degrees / 2.0, middle / 2.0) < p {
            low = middle;
        } else {
            high = middle;
        }
    }
    f64::midpoint(low, high)
}

/// A failure rate with its 95 % interval, in failures per unit of exposure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rate {
    /// Failures by exposure.
    pub rate: f64,
    /// Lower end; 0 when there was no failure.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

/// Exact Poisson interval: chi2(0.025, 2k) / 2T to chi2(0.975, 2k + 2) / 2T. Nothing for no exposure. With no failure the
/// upper end is one-sided, 3 / T (chi2(0.95, 2) / 2T).
pub fn rate(failures: u64, exposure: f64) -> Option<Rate> {
    if exposure <= 0.0 {
        return None;
    }
    let k = failures as f64;
    let (low, high) = if failures == 0 {
        (0.0, chi2_quantile(0.95, 2.0) / (2.0 * exposure))
    } else {
        (
            chi2_quantile(0.025, 2.0 * k) / (2.0 * exposure),
            chi2_quantile(0.975, 2.0 * k + 2.0) / (2.0 * exposure),
        )
    };
    Some(Rate { rate: k / exposure, low, high })
}

/// Share of time that is work under exponential failures (Daly's exact form): `tau / (M e^(R/M) (e^((tau+delta)/M) - 1))`.
/// `tau`: work between checkpoints; `delta`: a checkpoint's blocking time; `restart`: restart and reload; `mttf`: of the
/// job. All in one unit.
pub fn daly(tau: f64, delta: f64, restart: f64, mttf: f64) -> f64 {
    tau / (mttf * (restart / mttf).exp() * ((tau + delta) / mttf).exp_m1())
}

/// The usual first-order form, `1 - delta/tau - (tau/2 + R)/M`: wrong by more than ten points where failures are frequent.
pub fn first_order(tau: f64, delta: f64, restart: f64, mttf: f64) -> f64 {
    1.0 - delta / tau - (tau / 2.0 + restart) / mttf
}

/// Work between checkpoints that gives the most (Young): `sqrt(2 delta M)`.
pub fn young(delta: f64, mttf: f64) -> f64 {
    (2.0 * delta * mttf).sqrt()
}

/// The interval with the highest exact efficiency, by golden section.
pub fn best_interval(delta: f64, restart: f64, mttf: f64) -> f64 {
    let share = (5.0_f64.sqrt() - 1.0) / 2.0;
    let (mut low, mut high) = (delta.max(1e-9) / 1000.0, young(delta, mttf).max(delta) * 20.0);
    for _ in 0..200 {
        let (a, b) = (high - share * (high - low), low + share * (high - low));
        if daly(a, delta, restart, mttf) < daly(b, delta, restart, mttf) {
            low = a;
        } else {
            high = b;
        }
    }
    f64::midpoint(low, high)
}

/// Probability that `tolerated` or fewer of `n` independent units are down, each up a share `a` of the time.
pub fn available(n: u32, tolerated: u32, a: f64) -> f64 {
    let mut term = a.powi(n as i32);
    let mut sum = term;
    for down in 1..=tolerated.min(n) {
        if a <= 0.0 {
            return if tolerated >= n { 1.0 } else { 0.0 };
        }
        term *= f64::from(n - down + 1) / f64::from(down) * (1.0 - a) / a;
        sum += term;
    }
    sum
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn near(found: f64, wanted: f64, within: f64) {
        assert!((found - wanted).abs() <= within, "{found} is not within {within} of {wanted}");
    }

    #[test]
    fn chi_squared_quantiles_are_those_of_the_tables() {
        for (p, degrees, wanted) in [
            (0.95, 2.0, 5.991_465),
            (0.025, 2.0, 0.050_636),
            (0.975, 4.0, 11.143_287),
            (0.975, 20.0, 34.169_607),
            (0.025, 20.0, 9.590_777),
            (0.5, 10.0, 9.341_818),
            (0.975, 1.0, 5.023_886),
            (0.025, 838.0, 759.683),
            (0.975, 840.0, 922.228),
        ] {
            let found = chi2_quantile(p, degrees);
            assert!(
                (found / wanted - 1.0).abs() < 2e-5,
                "chi2({p}, {degrees}) = {found}, tables say {wanted}"
            );
        }
    }

    /// Kokolis et al., HPCA 2025: 6.50 failures per 1000 node-days, nodes of 8 GPUs.
    #[test]
    fn metas_rate_gives_metas_projections() {
        let hours = |gpus: f64| 1000.0 / 6.50 / (gpus / 8.0) * 24.0;
        near(hours(8.0) / 24.0, 153.8, 0.1);
        near(hours(1024.0), 28.9, 0.1);
        near(hours(16_384.0), 1.8, 0.05);
        near(hours(131_072.0), 0.23, 0.005);
    }

    /// Llama 3 405B: 419 unplanned interruptions in 54 days on 2,048 nodes of 8 GPUs.
    #[test]
    fn llama_threes_interruptions_give_its_rate_and_mttf() {
        let counts = [148, 72, 54, 35, 32, 19, 17, 7, 7, 6, 6, 3, 3, 2, 2, 2, 2, 2];
        assert_eq!(counts.iter().sum::<u64>(), 419);
        let rate = rate(419, 54.0 * 2048.0 / 1000.0).unwrap();
        near(rate.rate, 3.79, 0.005);
        near(rate.low, 3.43, 0.02);
        near(rate.high, 4.17, 0.02);
        near(54.0 * 24.0 / 419.0, 3.09, 0.005);
        // GPU-hours by failure, a preset of ClusterMAX's cost page (50,677).
        near(16_384.0 * 54.0 * 24.0 / 419.0, 50_677.0, 1.0);
    }

    #[test]
    fn sixty_four_nodes_at_99_5_percent() {
        near(available(64, 0, 0.995), 0.726, 0.000_5);
        near(available(64, 0, 0.999), 0.938, 0.000_5);
    }

    /// A rack of 18 trays at 99 % each.
    #[test]
    fn an_nvl72_rack_needs_spare_trays() {
        near(available(18, 0, 0.99), 0.835, 0.000_5);
        near(available(18, 1, 0.99), 0.986, 0.000_5);
        near(available(18, 2, 0.99), 0.999_3, 0.000_05);
    }

    /// The table of exact against first-order efficiencies: hours of MTTF, minutes of interval.
    #[test]
    fn dalys_exact_form_against_the_first_order_form() {
        // Rate, GPUs; MTTF h; delta 60 s, R 10 min: tau min, eff; delta 300 s, R 30 min: tau, eff, first order.
        for (rate, gpus, mttf, short, long) in [
            (6.50, 1024.0, 28.8, (59.0, 0.961), (132.0, 0.910, 0.907)),
            (6.50, 4096.0, 7.2, (29.0, 0.912), (66.0, 0.798, 0.779)),
            (6.50, 16_384.0, 1.8, (15.0, 0.793), (33.0, 0.549, 0.419)),
            (2.34, 1024.0, 80.1, (98.0, 0.978), (219.0, 0.949, 0.948)),
            (2.34, 16_384.0, 5.0, (25.0, 0.891), (55.0, 0.750, 0.718)),
        ] {
            let hours = 1000.0 / rate / (gpus / 8.0) * 24.0;
            near(hours, mttf, 0.06);
            let m = hours * 3600.0;
            let tau = young(60.0, m);
            near(tau / 60.0, short.0, 0.8);
            near(daly(tau, 60.0, 600.0, m), short.1, 0.001);
            let tau = young(300.0, m);
            near(tau / 60.0, long.0, 0.8);
            near(daly(tau, 300.0, 1800.0, m), long.1, 0.001);
            near(first_order(tau, 300.0, 1800.0, m), long.2, 0.002);
        }
    }

    #[test]
    fn a_clean_burn_in_of_eight_hours_proves_little() {
        near(rate(0, 64.0 * 8.0 / 24.0 / 1000.0).unwrap().high, 140.4, 0.1);
        near(rate(0, 512.0 * 8.0 / 24.0 / 1000.0).unwrap().high, 17.55, 0.01);
        assert_eq!(rate(0, 0.0), None);
    }

    proptest! {
        #[test]
        fn the_exact_form_is_a_share_and_its_best_interval_is_best(
            delta in 1.0_f64..600.0, restart in 0.0_f64..3600.0, mttf in 600.0_f64..1e7, other in 0.1_f64..10.0,
        ) {
            let best = best_interval(delta, restart, mttf);
            let found = daly(best, delta, restart, mttf);
            prop_assert!((0.0..=1.0).contains(&found));
            prop_assert!(daly(best * other, delta, restart, mttf) <= found + 1e-9);
            prop_assert!(first_order(best, delta, restart, mttf) <= found + 1e-9, "the first order is never above");
        }

        #[test]
        fn more_failures_never_lower_a_rate_and_the_interval_holds_it(k in 0_u64..2000, t in 0.01_f64..1e5) {
            let (one, more) = (rate(k, t).unwrap(), rate(k + 1, t).unwrap());
            prop_assert!(one.low <= one.rate && one.rate <= one.high);
            prop_assert!(one.rate < more.rate && one.low <= more.low && one.high <= more.high + 1e-12);
        }

        #[test]
        fn tolerating_more_is_never_less_available(n in 1_u32..80, k in 0_u32..80, a in 0.0_f64..=1.0) {
            let (some, more) = (available(n, k, a), available(n, k + 1, a));
            prop_assert!(some <= more + 1e-12 && more <= 1.0 + 1e-9);
        }
    }
}
