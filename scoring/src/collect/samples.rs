//! A node's file of a burn-in, `clustermax-samples/1` (docs/burnin.md): a line a second. Whatever ended the run, at most the
//! last line is torn; that one, those that a full disk cut, and any line that is none, are left out.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::straggler::cause::Facts;

/// Values of one device in one second; NaN: not known.
const FIELDS: usize = 9;
const THROTTLE: usize = 4;

/// The first line.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Head {
    /// Always `clustermax-samples/1`.
    pub schema: String,
    /// `read`, or why there are no kernel lines.
    pub kernel: String,
}

/// One device over the whole file.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Device {
    /// C, W, MHz, MHz: a value a second, NaN where not known.
    pub hardware: [Vec<f32>; 4],
    /// Seconds with a reason to throttle, of those that tell.
    pub throttled: usize,
    /// Seconds that tell whether there is one.
    pub told: usize,
    /// Reasons that were seen, as bits of NVML.
    pub reasons: u64,
    /// Microseconds of a product, and of a product with its exchange: the median of each second.
    pub product: Vec<f32>,
    /// As above.
    pub exchange: Vec<f32>,
}

/// A node's file.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Samples {
    /// First line, when it is one.
    pub head: Option<Head>,
    /// By the rank's number on the node.
    pub devices: Vec<Device>,
    /// Seconds of the last whole line.
    pub seconds: u32,
    /// Seconds up to it that have no line: nobody looked, or the disk took nothing.
    pub missing: u32,
    /// Counters that grew while it ran: first and last value.
    pub counters: BTreeMap<String, (u64, u64)>,
    /// Kernel lines with their second.
    pub kernel: Vec<(u32, String)>,
}

/// Reads a file, or what is there of it.
#[must_use]
pub fn read(text: &str) -> Samples {
    let mut samples = Samples::default();
    // Everything behind the last line break is torn.
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let mut lines = whole.lines();
    samples.head = lines
        .next()
        .and_then(|line| serde_json::from_str(line).ok())
        .filter(|head: &Head| head.schema == "clustermax-samples/1");
    let mut last: Vec<[f64; FIELDS]> = Vec::new();
    let mut looked = 0u32;
    for line in lines.filter(|line| line.starts_with('!') || !line.ends_with('#')) {
        if let Some(rest) = line.strip_prefix('+') {
            let mut words = rest.split(' ');
            if let (Some(Ok(second)), Some(name), Some(Ok(value))) =
                (words.next().map(str::parse::<u32>), words.next(), words.next().map(str::parse::<u64>))
            {
                // What is not zero in the first second was there before.
                let first = if second == 0 { value } else { 0 };
                samples.counters.entry(name.to_owned()).or_insert((first, value)).1 = value;
            }
        } else if let Some(rest) = line.strip_prefix('!') {
            if let Some((second, text)) = rest.split_once(' ')
                && let Ok(second) = second.parse()
            {
                samples.kernel.push((second, text.to_owned()));
            }
        } else if let Some((second, rest)) = line.split_once(' ')
            && let Ok(second) = second.parse::<u32>()
        {
            looked += 1;
            samples.seconds = samples.seconds.max(second);
            for (at, group) in rest.split(';').enumerate().take(1024) {
                if last.len() <= at {
                    last.push([f64::NAN; FIELDS]);
                    samples.devices.push(Device::default());
                }
                for (field, word) in group.split(',').enumerate().take(FIELDS) {
                    match word {
                        "" => {}
                        word if field == THROTTLE => {
                            last[at][field] =
                                u64::from_str_radix(word, 16).map_or(f64::NAN, |bits| bits as f64);
                        }
                        word => last[at][field] = word.parse().unwrap_or(f64::NAN),
                    }
                }
                samples.devices[at].add(&last[at]);
            }
        }
    }
    samples.missing = samples.seconds.saturating_add(u32::from(looked > 0)).saturating_sub(looked);
    samples.counters.retain(|_, (first, last)| last > first);
    samples
}

impl Samples {
    /// Adds a later part of the same node.
    pub fn join(&mut self, later: Self) {
        for (at, device) in later.devices.into_iter().enumerate() {
            match self.devices.get_mut(at) {
                Some(mine) => mine.join(device),
                None => self.devices.push(device),
            }
        }
        self.kernel.extend(later.kernel.into_iter().map(|(at, text)| (self.seconds + at, text)));
        for (name, (first, last)) in later.counters {
            let mine = self.counters.entry(name).or_insert((0, 0));
            mine.1 += last - first;
        }
        self.seconds += later.seconds;
        self.missing += later.missing;
    }
}

impl Device {
    fn add(&mut self, now: &[f64; FIELDS]) {
        for (field, values) in self.hardware.iter_mut().enumerate() {
            values.push(now[field] as f32);
        }
        if !now[THROTTLE].is_nan() {
            self.told += 1;
            let bits = now[THROTTLE] as u64;
            self.throttled += usize::from(bits != 0);
            self.reasons |= bits;
        }
        // Products, their time, their CPU time, with the exchange.
        self.product.push(now[6] as f32);
        self.exchange.push(now[8] as f32);
    }

    /// What it was like most of the time, for the likely cause of a slow rank. A reason to throttle that held for less than
    /// a tenth of the time is none.
    #[must_use]
    pub fn facts(&self) -> Facts {
        let median = |field: usize| quantile(&sorted(&self.hardware[field]), 50);
        let lasting = self.throttled * 10 >= self.told;
        Facts {
            temperature_c: median(0),
            power_w: median(1),
            clock_mhz: median(2),
            throttle: (self.told > 0).then_some(if lasting { self.reasons } else { 0 }),
            ..Facts::default()
        }
    }

    /// Adds a later part of the same device.
    fn join(&mut self, other: Self) {
        for (mine, theirs) in self.hardware.iter_mut().zip(other.hardware) {
            mine.extend(theirs);
        }
        self.throttled += other.throttled;
        self.told += other.told;
        self.reasons |= other.reasons;
        self.product.extend(other.product);
        self.exchange.extend(other.exchange);
    }
}

/// Known values in ascending order.
#[must_use]
pub fn sorted(values: &[f32]) -> Vec<f32> {
    let mut known: Vec<f32> =
        values.iter().copied().filter(|value| value.is_finite() && *value > 0.0).collect();
    known.sort_by(f32::total_cmp);
    known
}

/// Nearest rank of sorted values; none of none.
#[must_use]
pub fn quantile(sorted: &[f32], percent: usize) -> Option<f64> {
    let at = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
    sorted.get(at).map(|value| f64::from(*value))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "{\"schema\":\"clustermax-samples/1\",\"kernel\":\"read\",\"node\":\"n1\"}
0 50,600,1700,2600,0,5,1000,1000,1500;51,-,-,-,-,5,1100,1100,1600
+0 mlx5_0/1/symbol_error 7
1 ,,,,8,,1010;,,,,,,,,1700
+1 mlx5_0/1/symbol_error 9
+1 gpu0/ecc_uncorrected 1
!1 NVRM: Xid (PCI:0000:18:00): 79
2 60,,,,0;
3 61,5";

    #[test]
    fn a_line_a_second_is_read_and_a_torn_last_line_left_out() {
        let samples = read(TEXT);
        assert_eq!((samples.seconds, samples.devices.len()), (2, 2));
        let device = &samples.devices[0];
        assert_eq!(device.hardware[0], [50.0, 50.0, 60.0], "empty is as before");
        assert_eq!(device.product, [1000.0, 1010.0, 1010.0]);
        assert_eq!((device.throttled, device.told, device.reasons), (1, 3, 8));
        assert_eq!(samples.devices[1].told, 0, "a dash is not known");
        assert_eq!(samples.devices[1].exchange, [1600.0, 1700.0, 1700.0]);
        assert_eq!(samples.counters["mlx5_0/1/symbol_error"], (7, 9));
        assert_eq!(samples.counters["gpu0/ecc_uncorrected"], (0, 1));
        assert_eq!(samples.kernel, [(1, "NVRM: Xid (PCI:0000:18:00): 79".to_owned())]);
    }

    #[test]
    fn seconds_without_a_line_and_lines_cut_by_a_full_disk_are_missing() {
        let text = "{}\n0 50\n1 \n2 6#\n5 70\n!5 what a # b#\n+5 mlx5_0/1/symbol_error 3#\n6 \n";
        let samples = read(text);
        assert_eq!(samples.devices[0].hardware[0], [50.0, 50.0, 70.0, 70.0]);
        assert_eq!((samples.seconds, samples.missing), (6, 3));
        assert_eq!(samples.kernel.len(), 1);
        assert_eq!(read(TEXT).missing, 0);
        assert_eq!(read("").missing, 0);
    }

    #[test]
    fn any_cut_is_read_as_far_as_it_goes() {
        for cut in 0..TEXT.len() {
            let samples = read(&TEXT[..cut]);
            assert!(samples.seconds <= 2 && samples.devices.len() <= 2);
        }
        assert_eq!(read("").head, None);
    }

    #[test]
    fn quantiles_leave_out_what_is_not_known() {
        let values = sorted(&[3.0, f32::NAN, 1.0, 2.0]);
        assert_eq!([0, 50, 99].map(|percent| quantile(&values, percent)), [Some(1.0), Some(2.0), Some(3.0)]);
        assert_eq!(quantile(&[], 50), None);
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_read(text in ".*") {
            let _ = read(&text);
        }

        #[test]
        fn any_lines_are_read(lines in proptest::collection::vec("[0-9+!;, .a-f-]{0,40}", 0..20)) {
            let _ = read(&format!("{{}}\n{}\n", lines.join("\n")));
        }
    }
}
