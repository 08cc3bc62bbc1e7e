//! The loss of a training run against a reference curve, and the ranks' weights against each other.
//!
//! Seeds, tokens, model and steps are fixed, so the loss of every step is known in advance for each number of ranks;
//! `data/loss-reference.tsv` holds it. It is made by one process that does the work of all ranks, without a collective.

use std::collections::BTreeMap;
use std::sync::LazyLock;

/// One curve.
#[derive(Debug, Clone, PartialEq)]
pub struct Curve {
    /// Largest deviation that is allowed, percent of the reference.
    pub band: f64,
    /// Loss of each of the first steps; later ones depend on the last digits.
    pub losses: Vec<f64>,
}

/// By model (`llama-tiny`), dtype (`fp32`) and ranks.
static CURVES: LazyLock<BTreeMap<(String, String, i64), Curve>> =
    LazyLock::new(|| parse(include_str!("../../data/loss-reference.tsv")));

fn parse(text: &str) -> BTreeMap<(String, String, i64), Curve> {
    let row = |line: &str| {
        let words: Vec<&str> = line.split('\t').collect();
        let [model, dtype, band, ranks, losses] = words[..] else { return None };
        let losses: Option<Vec<f64>> = losses.split(' ').map(|word| word.parse().ok()).collect();
        let curve = Curve { band: band.parse().ok()?, losses: losses? };
        Some(((model.to_owned(), dtype.to_owned(), ranks.parse().ok()?), curve))
    };
    text.lines().filter(|line| !line.starts_with('#')).filter_map(row).collect()
}

/// Numbers of ranks that have a curve of the small model, in bf16 as on GPUs.
pub fn ranks() -> Vec<i64> {
    CURVES.keys().filter(|key| key.0 == "llama-tiny" && key.1 == "bf16").map(|key| key.2).collect()
}

/// How a run's loss compares.
#[derive(Debug, Clone, PartialEq)]
pub struct Deviation {
    /// Largest one, percent of the reference; not finite when a loss was none.
    pub percent: f64,
    /// Its step.
    pub step: usize,
    /// Within the band?
    pub inside: bool,
    /// What was compared, a clause.
    pub said: String,
}

/// Compares the steps that the reference has.
///
/// # Errors
/// Why there is no reference.
pub fn compare(model: &str, dtype: &str, ranks: i64, losses: &[Option<f64>]) -> Result<Deviation, String> {
    let Some(curve) = CURVES.get(&(model.to_owned(), dtype.to_owned(), ranks)) else {
        let known: Vec<String> = CURVES
            .keys()
            .filter(|key| key.0 == model && key.1 == dtype)
            .map(|key| key.2.to_string())
            .collect();
        return Err(if known.is_empty() {
            format!("there is no reference curve for {model} in {dtype}")
        } else {
            format!("there is no reference curve for {ranks} ranks (there are for {})", known.join(", "))
        });
    };
    let (mut percent, mut step) = (-1.0, 0);
    for (number, (found, wanted)) in losses.iter().zip(&curve.losses).enumerate() {
        let off = found.map_or(f64::INFINITY, |found| (found - wanted).abs() / wanted * 100.0);
        if off > percent {
            (percent, step) = (off, number);
        }
    }
    let steps = losses.len().min(curve.losses.len());
    let found = losses.get(step).copied().flatten();
    let said = format!(
        "step {step} of {steps}: {} against {:.4}, allowed are {} %",
        found.map_or("no number".to_owned(), |found| format!("{found:.4}")),
        curve.losses.get(step).copied().unwrap_or(f64::NAN),
        curve.band
    );
    Ok(Deviation { percent, step, inside: steps > 0 && percent <= curve.band, said })
}

/// Ranks whose weights are not those that most ranks have.
pub fn differing(checksums: &[i64]) -> Vec<usize> {
    let count = |sum: &i64| checksums.iter().filter(|other| *other == sum).count();
    // Of two as frequent the first rank's: nobody knows which is right, but both cannot be.
    let Some(usual) = checksums.iter().rev().max_by_key(|sum| count(sum)) else { return Vec::new() };
    (0..checksums.len()).filter(|rank| checksums[*rank] != *usual).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_packaged_curves_are_whole_and_fall() {
        assert!(CURVES.len() >= 32, "{}", CURVES.len());
        for (key, curve) in &*CURVES {
            assert_eq!(curve.losses.len(), 10, "{key:?}");
            // 256 tokens that are equally likely: ln 256 = 5.545.
            assert!((curve.losses[0] - 5.545).abs() < 0.1, "{key:?}: {}", curve.losses[0]);
            assert!(curve.losses[9] < curve.losses[0] - 1.0, "{key:?}");
            // A wrong rank by itself makes 35 % at least.
            assert!(curve.band > 0.0 && curve.band <= 5.0, "{key:?}");
        }
        for ranks in [1, 2, 4, 8] {
            for (model, dtype) in [("llama-tiny", "fp32"), ("moe-tiny", "fp32"), ("llama-tiny", "bf16")] {
                assert!(CURVES.contains_key(&(model.to_owned(), dtype.to_owned(), ranks)), "{model} {ranks}");
            }
        }
    }

    #[test]
    fn a_loss_outside_the_band_or_none_at_all_is_named_with_its_step() {
        let curve = &CURVES[&("llama-tiny".to_owned(), "fp32".to_owned(), 4)];
        let mut losses: Vec<Option<f64>> = curve.losses.iter().copied().map(Some).collect();
        // Steps beyond the reference are not judged.
        losses.push(Some(99.0));
        let good = compare("llama-tiny", "fp32", 4, &losses).unwrap();
        assert!(good.inside && good.percent == 0.0, "{good:?}");
        losses[7] = losses[7].map(|loss| loss * 1.05);
        let off = compare("llama-tiny", "fp32", 4, &losses).unwrap();
        assert!(!off.inside && off.step == 7 && (off.percent - 5.0).abs() < 1e-9, "{off:?}");
        losses[3] = None;
        let none = compare("llama-tiny", "fp32", 4, &losses).unwrap();
        assert!(!none.inside && none.step == 3 && none.said.contains("no number"), "{none:?}");
        assert!(!compare("llama-tiny", "fp32", 4, &[]).unwrap().inside, "nothing proves nothing");
        let why = compare("llama-tiny", "fp32", 5000, &losses).unwrap_err();
        assert!(why.contains("5000 ranks (there are for 1, 2"), "{why}");
        assert!(compare("llama-small", "bf16", 8, &losses).unwrap_err().contains("llama-small"));
    }

    #[test]
    fn ranks_that_differ_are_the_fewer() {
        assert_eq!(differing(&[7, 7, 7, 7]), [0usize; 0]);
        assert_eq!(differing(&[7, 8, 7, 7]), [1]);
        assert_eq!(differing(&[8, 7]), [1]);
        assert_eq!(differing(&[]), [0usize; 0]);
    }
}
