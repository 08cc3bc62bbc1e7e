//! amdgpu's binary `gpu_metrics`: which layout it has is in its header, and every release of the driver may bring another.
//!
//! Layouts 1.3 to 1.8 of `struct gpu_metrics_v1_N` in Linux' `kgd_pp_interface.h`, which has natural alignment. Only fields that
//! a rule needs are read; a layout that is not known here is unsupported, never guessed. The driver fills what a GPU does not
//! tell with all ones.

use std::collections::BTreeMap;

use crate::facts::{AmdMetrics, Reading};

/// Size of the header: `structure_size` (16 bits), `format_revision`, `content_revision`.
const HEADER: usize = 4;
/// xGMI links a layout has room for.
const XGMI_LINKS: usize = 8;
/// Causes of slowing down in the order of the accumulators of layouts 1.6 to 1.8.
const RESIDENCIES: [&str; 5] = ["prochot", "ppt", "socket_thm", "vr_thm", "hbm_thm"];
/// Bits of `indep_throttle_status` (layout 1.3) that mean heat or an outside brake; the others are power and current limits,
/// which are everyday. `SMU_THROTTLER_*_BIT` in Linux' `amdgpu_smu.h`.
const CAUSES: [(u32, &str); 13] = [
    (32, "GPU temperature"),
    (34, "memory temperature"),
    (35, "edge temperature"),
    (36, "hotspot temperature"),
    (37, "SoC temperature"),
    (38, "regulator temperature"),
    (39, "SoC regulator temperature"),
    (40, "memory regulator temperature"),
    (41, "memory regulator temperature"),
    (42, "coolant temperature"),
    (43, "coolant temperature"),
    (44, "hot regulator"),
    (47, "PROCHOT"),
];

/// Where a layout keeps what is read.
struct Layout {
    content: u8,
    /// Bytes that must be there.
    least: usize,
    /// `indep_throttle_status`.
    status: Option<usize>,
    /// `accumulation_counter`, followed by the residencies.
    accumulation: Option<usize>,
    /// `xgmi_link_status`.
    links: Option<usize>,
    /// `pcie_replay_count_acc`.
    replays: Option<usize>,
}

const LAYOUTS: [Layout; 6] = [
    Layout { content: 3, least: 120, status: Some(112), accumulation: None, links: None, replays: None },
    // Their throttle_status is always 0: the firmware does not report it there.
    Layout { content: 4, least: 284, status: None, accumulation: None, links: None, replays: Some(88) },
    Layout { content: 5, least: 356, status: None, accumulation: None, links: None, replays: Some(152) },
    Layout { content: 6, least: 308, status: None, accumulation: Some(32), links: None, replays: Some(104) },
    Layout {
        content: 7,
        least: 340,
        status: None,
        accumulation: Some(40),
        links: Some(264),
        replays: Some(112),
    },
    Layout {
        content: 8,
        least: 340,
        status: None,
        accumulation: Some(40),
        links: Some(264),
        replays: Some(112),
    },
];

/// Reads the file's bytes.
#[must_use]
pub fn parse(bytes: &[u8]) -> Reading<AmdMetrics> {
    let Some(&[low, high, format, content]) = bytes.get(..HEADER).and_then(|h| h.first_chunk::<HEADER>())
    else {
        return Reading::Unknown(format!("gpu_metrics holds {} bytes, less than its header", bytes.len()));
    };
    let size = usize::from(u16::from_le_bytes([low, high]));
    let Some(layout) = LAYOUTS.iter().find(|l| format == 1 && l.content == content) else {
        return Reading::Unsupported;
    };
    if size < layout.least || bytes.len() < size {
        return Reading::Unknown(format!(
            "gpu_metrics {format}.{content} says {size} bytes and holds {}, at least {} are needed",
            bytes.len(),
            layout.least
        ));
    }
    let u16_at = |at: usize| number::<2>(bytes, at).map(u16::from_le_bytes).filter(|n| *n != u16::MAX);
    let u32_at = |at: usize| number::<4>(bytes, at).map(u32::from_le_bytes).filter(|n| *n != u32::MAX);
    let u64_at = |at: usize| number::<8>(bytes, at).map(u64::from_le_bytes).filter(|n| *n != u64::MAX);

    let mut metrics = AmdMetrics { version: format!("{format}.{content}"), ..AmdMetrics::default() };
    if let Some(status) = layout.status.and_then(u64_at) {
        let set = CAUSES.iter().filter(|(bit, _)| status >> bit & 1 == 1);
        metrics.slowed_by = Some(set.map(|(_, cause)| (*cause).to_string()).collect());
    }
    if let Some(at) = layout.accumulation {
        metrics.cycles = u32_at(at).map(u64::from);
        metrics.residencies = RESIDENCIES
            .iter()
            .enumerate()
            .filter_map(|(i, name)| Some(((*name).to_string(), u64::from(u32_at(at + 4 + 4 * i)?))))
            .collect();
    }
    if let Some(at) = layout.links {
        let link = |i: usize| Some((u32::try_from(i).ok()?, u16_at(at + 2 * i)? == 1));
        metrics.xgmi_links = (0..XGMI_LINKS).filter_map(link).collect::<BTreeMap<_, _>>();
    }
    metrics.pcie_replays = layout.replays.and_then(u64_at);
    Reading::Value(metrics)
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk::<N>().copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A file of a layout, all ones as the driver begins it, with some fields set.
    fn file(size: u16, content: u8, set: &[(usize, &[u8])]) -> Vec<u8> {
        let mut bytes = vec![0xff; usize::from(size)];
        bytes[..2].copy_from_slice(&size.to_le_bytes());
        (bytes[2], bytes[3]) = (1, content);
        for (at, value) in set {
            bytes[*at..at + value.len()].copy_from_slice(value);
        }
        bytes
    }

    fn value(bytes: &[u8]) -> AmdMetrics {
        match parse(bytes) {
            Reading::Value(m) => m,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn accumulators_and_links_of_mi300x_and_mi355x() {
        let cycles = [100u32, 1, 2, 3, 4, 5].map(u32::to_le_bytes).concat();
        let links = [1u16, 1, 1, 1, 0, 1, 1, 0xffff].map(u16::to_le_bytes).concat();
        for (size, content) in [(2208, 7), (3872, 8)] {
            let m = value(&file(size, content, &[(40, &cycles), (264, &links), (112, &7u64.to_le_bytes())]));
            assert_eq!(
                (m.version.as_str(), m.cycles, m.pcie_replays),
                (&*format!("1.{content}"), Some(100), Some(7))
            );
            assert_eq!(m.residencies["prochot"], 1);
            assert_eq!(m.residencies["hbm_thm"], 5);
            assert_eq!(m.xgmi_links.len(), 7, "one is not there");
            assert_eq!(m.xgmi_links.values().filter(|up| **up).count(), 6);
            assert_eq!(m.slowed_by, None);
        }
        let m = value(&file(1664, 6, &[(32, &cycles), (104, &9u64.to_le_bytes())]));
        assert_eq!((m.cycles, m.residencies["vr_thm"], m.pcie_replays), (Some(100), 4, Some(9)));
        assert!(m.xgmi_links.is_empty());
    }

    #[test]
    fn causes_of_mi200() {
        let status = (1u64 << 36 | 1 << 0 | 1 << 47).to_le_bytes();
        let m = value(&file(120, 3, &[(112, &status)]));
        assert_eq!(m.slowed_by, Some(vec!["hotspot temperature".into(), "PROCHOT".into()]));
        assert_eq!(value(&file(120, 3, &[])).slowed_by, None, "the GPU does not tell");
    }

    #[test]
    fn layouts_without_throttle_status_say_nothing_of_it() {
        for (size, content) in [(288, 4), (360, 5)] {
            let m =
                value(&file(size, content, &[(if content == 4 { 88 } else { 152 }, &3u64.to_le_bytes())]));
            assert_eq!(
                (m.slowed_by, m.cycles, m.residencies.len(), m.pcie_replays),
                (None, None, 0, Some(3))
            );
        }
    }

    #[test]
    fn an_unknown_layout_is_unsupported_and_a_short_file_unknown() {
        assert_eq!(parse(&file(4000, 9, &[])), Reading::Unsupported);
        assert_eq!(parse(&file(4000, 2, &[])), Reading::Unsupported);
        let mut apu = file(400, 4, &[]);
        apu[2] = 2;
        assert_eq!(parse(&apu), Reading::Unsupported);
        for short in [&b""[..], b"\x08\x00", &file(120, 8, &[]), &file(3872, 8, &[])[..300]] {
            assert!(matches!(parse(short), Reading::Unknown(_)), "{} bytes", short.len());
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400), content in 0..12u8) {
            let _ = parse(&bytes);
            let mut headed = bytes;
            if headed.len() >= 4 {
                let size = u16::try_from(headed.len()).unwrap().to_le_bytes();
                headed[..4].copy_from_slice(&[size[0], size[1], 1, content]);
            }
            let _ = parse(&headed);
        }
    }
}
