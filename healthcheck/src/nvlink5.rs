//! Decodes the registers of Xids 144 to 150: NVLink errors of Blackwell and later.
//!
//! `RLW_REMAP Nonfatal XC0 i0 Link 00 (0x00000004 0x00000001 ...)`: the first number is intrInfo, the second errorStatus. The
//! rules are data, `data/xid-nvlink5.tsv`. Drivers before 575 lay intrInfo out in another way; a line does not say which driver
//! wrote it, but within one Xid the two layouts never fit the same number, so both are tried.

use std::sync::OnceLock;

use serde::Serialize;

/// What a matching rule says is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Resolution {
    /// Nothing.
    None,
    /// Only what an Xid 154 of the same GPU asks for.
    Recovery,
    /// Reset the GPU.
    ResetGpu,
}

/// How bad a rule calls its error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Grade {
    /// The link goes on.
    Nonfatal,
    /// The GPU's NVLink cannot be used.
    Fatal,
    /// One link is down.
    LinkFatal,
}

/// One rule.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Rule {
    xid: u32,
    /// Names of the unit, the older first.
    units: Vec<&'static str>,
    masks: [Mask; 2],
    /// Values of errorStatus; empty: any.
    statuses: Vec<u32>,
    resolution: Resolution,
    /// With these masks instead, this resolution.
    second: Option<([Mask; 2], Resolution)>,
    look: &'static str,
    grade: Grade,
    layer: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Mask {
    care: u32,
    value: u32,
}

impl Mask {
    fn fits(self, number: u32) -> bool {
        number & self.care == self.value
    }

    /// 32 digits, the highest bit first; `-` fits both.
    fn parse(text: &str) -> Option<Mask> {
        if text.len() != 32 {
            return None;
        }
        text.bytes().try_fold(Mask { care: 0, value: 0 }, |m, b| match b {
            b'-' => Some(Mask { care: m.care << 1, value: m.value << 1 }),
            b'0' | b'1' => Some(Mask { care: m.care << 1 | 1, value: m.value << 1 | u32::from(b == b'1') }),
            _ => None,
        })
    }
}

/// What the registers mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Decoded {
    /// Unit of the GPU's NVLink logic, as the line or else newer drivers name it.
    pub unit: &'static str,
    /// What is to be done.
    pub resolution: Resolution,
    /// How bad.
    pub grade: Grade,
    /// Where to look.
    pub look: &'static str,
    /// `hardware`, `software`, `firmware` or `either`; empty when the catalogue does not say.
    pub layer: &'static str,
}

const TABLE: &str = include_str!("../data/xid-nvlink5.tsv");

fn rules() -> &'static [Rule] {
    static RULES: OnceLock<Vec<Rule>> = OnceLock::new();
    RULES.get_or_init(|| TABLE.lines().filter_map(parse).collect())
}

fn parse(line: &'static str) -> Option<Rule> {
    let columns: Vec<&str> = line.split('\t').collect();
    let [xid, unit, v1, v2, status, action, second1, second2, second_action, look, grade, layer] =
        columns[..]
    else {
        return None;
    };
    let resolution = |word: &str| match word {
        "none" => Some(Resolution::None),
        "recovery" => Some(Resolution::Recovery),
        "reset_gpu" => Some(Resolution::ResetGpu),
        _ => None,
    };
    let number = |text: &str| u32::from_str_radix(text.strip_prefix("0x")?, 16).ok();
    Some(Rule {
        xid: xid.parse().ok()?,
        units: unit.split('/').collect(),
        masks: [Mask::parse(v1)?, Mask::parse(v2)?],
        statuses: match status {
            "-" => Vec::new(),
            values => values.split('/').map(number).collect::<Option<_>>()?,
        },
        resolution: resolution(action)?,
        second: match second_action {
            "-" => None,
            word => Some(([Mask::parse(second1)?, Mask::parse(second2)?], resolution(word)?)),
        },
        look: advice(look)?,
        grade: match grade {
            "nonfatal" => Grade::Nonfatal,
            "fatal" => Grade::Fatal,
            "link_fatal" => Grade::LinkFatal,
            _ => return None,
        },
        layer: if layer == "-" { "" } else { layer },
    })
}

fn advice(word: &str) -> Option<&'static str> {
    Some(match word {
        "none" => "nothing to look into",
        "support" => "ask the vendor if it comes back",
        "nvlink_flow" => "look for the failed NVLink: another GPU or switch reports the cause",
        "follows" => "follows from another error; a fault of its own only when it stands alone",
        "report_daily" => "ask the vendor when it is seen more than once a day",
        "link" => "the link's signal is poor: look at its error counters",
        "cables" => "the link's signal is poor: look at its error counters, then at cable and connector",
        "software" => "somebody or some program took the link down",
        "software_or_link" => "a program took the link down, or its signal is poor",
        "peer" => "look at the other end of the link",
        "host" => "look at the host: driver, fabric manager, reboot",
        _ => return None,
    })
}

/// The rule that fits, or none: an unknown unit, or registers that the catalogue does not list.
///
/// `unit` is the first word of the driver's message; it need not be known, since the registers name the unit too.
#[must_use]
pub fn decode(xid: u32, unit: &str, registers: &[u32]) -> Option<Decoded> {
    let (&info, &status) = (registers.first()?, registers.get(1)?);
    let second = |r: &Rule| r.second.as_ref().is_some_and(|(masks, _)| masks.iter().any(|m| m.fits(info)));
    let fits = |r: &&Rule| {
        r.xid == xid
            && (r.statuses.is_empty() || r.statuses.contains(&status))
            && (r.masks.iter().any(|m| m.fits(info)) || second(r))
    };
    // Some units share their masks: there only the name tells them apart.
    let named = rules().iter().filter(fits).find(|r| r.units.contains(&unit));
    let rule = named.or_else(|| rules().iter().find(fits))?;
    let resolution = match &rule.second {
        Some((_, other)) if second(rule) => *other,
        _ => rule.resolution,
    };
    Some(Decoded {
        unit: rule.units.iter().find(|u| **u == unit).or(rule.units.last()).copied().unwrap_or_default(),
        resolution,
        grade: rule.grade,
        look: rule.look,
        layer: rule.layer,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_95_rules_are_read() {
        let lines = TABLE.lines().filter(|l| l.starts_with(|c: char| c.is_ascii_digit())).count();
        assert_eq!((lines, rules().len()), (95, 95));
        for xid in 144..=150 {
            assert!(rules().iter().any(|r| r.xid == xid), "{xid}");
        }
    }

    /// Rules that mean different things never fit the same registers, in either layout.
    #[test]
    fn no_registers_have_two_meanings() {
        let overlap = |a: Mask, b: Mask| (a.value ^ b.value) & a.care & b.care == 0;
        for (i, a) in rules().iter().enumerate() {
            // The older layout has one number for both pipes of a unit, and MSE has no number: they mean the same.
            let same = |b: &&Rule| (b.resolution, b.grade, b.look) == (a.resolution, a.grade, a.look);
            for b in rules().iter().skip(i + 1).filter(|b| b.xid == a.xid && !same(b)) {
                let same_status = a.statuses.is_empty()
                    || b.statuses.is_empty()
                    || a.statuses.iter().any(|s| b.statuses.contains(s));
                let same_info = a.masks.iter().any(|m| b.masks.iter().any(|n| overlap(*m, *n)));
                assert!(!(same_status && same_info), "{a:?}\n{b:?}");
            }
        }
    }

    #[test]
    fn both_layouts_are_decoded() {
        // RLW_REMAP: 0x04 since driver 575, 0x82 before.
        for info in [0x0000_0004, 0x0000_0082, 0x0001_0004] {
            let d = decode(145, "RLW_REMAP", &[info, 0x40]).unwrap_or_else(|| panic!("{info:x}"));
            assert_eq!((d.unit, d.resolution, d.grade), ("RLW_REMAP", Resolution::ResetGpu, Grade::Fatal));
            let d = decode(145, "RLW_REMAP", &[info, 0x1]).unwrap_or_else(|| panic!("{info:x}"));
            assert_eq!((d.resolution, d.grade), (Resolution::Recovery, Grade::Nonfatal));
        }
    }

    #[test]
    fn one_bit_of_intr_info_changes_what_rxpipe_asks_for() {
        let ask = |info| decode(145, "RLW_RXPIPE", &[info, 0x1]).map(|d| d.resolution);
        assert_eq!(ask(0x06), Some(Resolution::None));
        assert_eq!(ask(0x86), Some(Resolution::ResetGpu));
        assert_eq!(ask(0x0c2), Some(Resolution::None));
        assert_eq!(ask(0x4c2), Some(Resolution::ResetGpu));
    }

    #[test]
    fn sub_codes_of_149_are_told_apart() {
        let ask = |info| decode(149, "NETIR_LINK_DOWN", &[info, 0]).map(|d| (d.resolution, d.look));
        assert_eq!(ask(0x0045_05c6).map(|d| d.0), Some(Resolution::ResetGpu));
        assert!(ask(0x0045_05c6).is_some_and(|d| d.1.contains("signal")));
        // Sub-code 38, taken down on purpose: nothing to reset.
        assert_eq!(ask(0b100110 << 20 | 0b0010001).map(|d| d.0), Some(Resolution::None));
        assert_eq!(ask(0b111111 << 20 | 0b0010001), None, "a sub-code that nobody listed");
    }

    #[test]
    fn what_no_rule_knows_is_none() {
        assert_eq!(decode(145, "RLW_REMAP", &[0x4, 0x1234]), None);
        assert_eq!(decode(145, "RLW_REMAP", &[0x4]), None);
        assert_eq!(decode(143, "RLW_REMAP", &[0x4, 0x1]), None);
        assert_eq!(decode(150, "MSE_WATCHDOG", &[0, 0]).map(|d| d.unit), Some("MSE_WATCHDOG"));
        assert_eq!(decode(150, "", &[0, 0xffff_ffff]).map(|d| d.unit), Some("MSE_Degraded"));
    }
}
