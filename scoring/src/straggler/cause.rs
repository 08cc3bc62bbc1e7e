//! Why a slow rank may be slow: its clock, temperature, throttling and link beside those of the other ranks, read at the
//! same time. A hint; the finding is that it is slow.

use serde::Deserialize;

/// What was read of the device that a rank computes on; what could not be read is absent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Facts {
    /// Clock of the multiprocessors, or the fastest processor core, MHz.
    pub clock_mhz: Option<f64>,
    /// Degrees Celsius.
    pub temperature_c: Option<f64>,
    /// Watts.
    pub power_w: Option<f64>,
    /// The driver's bit mask of reasons that hold the clock down.
    pub throttle: Option<u64>,
    /// Lanes of its PCIe link.
    pub pcie_width: Option<f64>,
    /// Generation of its PCIe link.
    pub pcie_generation: Option<f64>,
}

/// NVML's clock event reasons that name a cause.
const REASONS: [(u64, &str); 6] = [
    (0x40, "hardware thermal slowdown"),
    (0x20, "thermal slowdown"),
    (0x80, "power brake of the power supply"),
    (0x8, "hardware slowdown"),
    (0x4, "power cap"),
    (0x2, "clocks set by somebody"),
];
/// Clocks of equal chips at equal work differ by less.
const CLOCK: f64 = 0.03;
/// Degrees above the others' median that stand out.
const HOTTER: f64 = 10.0;

/// The likely cause in words, from the slow rank's facts and those of the ranks that are not slow.
#[must_use]
pub fn likely(own: &Facts, others: &[Facts]) -> String {
    let of = |get: fn(&Facts) -> Option<f64>| {
        let values: Vec<f64> = others.iter().filter_map(get).collect();
        get(own).zip((!values.is_empty()).then(|| super::quantile(&values, 0.5)))
    };
    let mut causes = Vec::new();
    if let Some(mask) = own.throttle {
        let told: Vec<u64> = others.iter().filter_map(|one| one.throttle).collect();
        // What holds half of the others down, too, does not set this one apart.
        let usual = |bit: u64| {
            !told.is_empty() && told.iter().filter(|mask| *mask & bit != 0).count() * 2 >= told.len()
        };
        causes.extend(
            REASONS
                .iter()
                .filter(|(bit, _)| mask & bit != 0 && !usual(*bit))
                .map(|(_, words)| (*words).to_owned()),
        );
    }
    if let Some((own, usual)) =
        of(|facts| facts.clock_mhz).filter(|(own, usual)| *own < usual * (1.0 - CLOCK))
    {
        causes.push(format!("clock {own:.0} MHz, the others' {usual:.0}"));
    }
    if let Some((own, usual)) = of(|facts| facts.temperature_c).filter(|(own, usual)| *own > usual + HOTTER) {
        causes.push(format!("temperature {own:.0} C, the others' {usual:.0}"));
    }
    for (get, word) in [
        ((|facts| facts.pcie_width) as fn(&Facts) -> Option<f64>, "PCIe lanes"),
        (|facts| facts.pcie_generation, "PCIe generation"),
    ] {
        if let Some((own, usual)) = of(get).filter(|(own, usual)| own < usual) {
            causes.push(format!("{word} {own:.0}, the others' {usual:.0}"));
        }
    }
    if !causes.is_empty() {
        return format!("likely cause: {}", causes.join("; "));
    }
    let looked: Vec<&str> = [
        (own.clock_mhz.is_some(), "clock"),
        (own.temperature_c.is_some(), "temperature"),
        (own.throttle.is_some(), "throttling"),
        (own.pcie_width.is_some(), "PCIe link"),
    ]
    .iter()
    .filter(|(seen, _)| *seen)
    .map(|(_, word)| *word)
    .collect();
    if looked.is_empty() {
        "likely cause: not known, neither clock nor temperature can be read here".to_owned()
    } else {
        format!("likely cause: not in {}, which are as on the other ranks", looked.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USUAL: Facts = Facts {
        clock_mhz: Some(1980.0),
        temperature_c: Some(60.0),
        power_w: Some(690.0),
        throttle: Some(0x4),
        pcie_width: Some(16.0),
        pcie_generation: Some(5.0),
    };

    #[test]
    fn what_differs_from_the_others_is_named() {
        for (own, words) in [
            (Facts { clock_mhz: Some(1500.0), ..USUAL }, "likely cause: clock 1500 MHz, the others' 1980"),
            (
                Facts { temperature_c: Some(88.0), throttle: Some(0x44), ..USUAL },
                "likely cause: hardware thermal slowdown; temperature 88 C, the others' 60",
            ),
            (Facts { pcie_width: Some(8.0), ..USUAL }, "likely cause: PCIe lanes 8, the others' 16"),
            // All of them are at their power cap: that is no reason for one to be slow.
            (
                USUAL,
                "likely cause: not in clock, temperature, throttling, PCIe link, which are as on the other ranks",
            ),
            (Facts::default(), "likely cause: not known, neither clock nor temperature can be read here"),
        ] {
            assert_eq!(likely(&own, &[USUAL, USUAL, USUAL]), words);
        }
        // Most are at their power cap, one happens not to be.
        let cool = Facts { throttle: Some(0), ..USUAL };
        assert!(likely(&USUAL, &[USUAL, USUAL, cool]).starts_with("likely cause: not in"));
        assert_eq!(likely(&USUAL, &[USUAL, cool, cool]), "likely cause: power cap");
        // Nobody to compare with.
        assert!(
            likely(&Facts { throttle: Some(0x20), ..USUAL }, &[]).contains("cause: thermal slowdown"),
            "bits alone"
        );
    }
}
