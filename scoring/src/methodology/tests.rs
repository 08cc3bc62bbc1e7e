//! The built-in data, and every kind of bad row.

use std::collections::BTreeSet;
use std::fs;

use proptest::prelude::*;

use super::*;

fn built_in() -> Methodology {
    Methodology::built_in().unwrap()
}

/// The built-in files with one text of one file replaced.
fn with(file: &str, from: &str, to: &str) -> Result<Methodology, Error> {
    let texts = FILES.map(|(name, text)| {
        if name == file {
            assert!(text.contains(from), "{file} lacks {from:?}");
            (name, text.replacen(from, to, 1))
        } else {
            (name, text.to_owned())
        }
    });
    Methodology::parse(&texts)
}

#[test]
fn every_row_of_the_built_in_data_is_valid() {
    assert_eq!(built_in().problems(), Vec::<String>::new());
}

#[test]
fn all_criteria_have_a_row_and_every_category_has_decided_ones() {
    let methodology = built_in();
    let ours = methodology.listed.iter().filter(|listed| listed.versions == "ours").count();
    assert_eq!((methodology.listed.len() - ours, ours), (189, 6));
    assert_eq!(methodology.all().count(), 195);
    assert_eq!(methodology.decided(), (187, 187), "8 of the 195 are about Kubernetes");
    let ids: BTreeSet<&str> = methodology.listed.iter().map(|listed| listed.id.as_str()).collect();
    assert_eq!(ids.len(), 195);
    for category in &methodology.rules.category {
        let count = methodology.criteria.iter().filter(|one| one.category == category.id).count();
        assert!(count >= 2, "{} has {count} criteria", category.id);
    }
}

#[test]
fn the_critical_failures_and_our_two_gates_are_gates() {
    let methodology = built_in();
    let gates: Vec<&str> =
        methodology.criteria.iter().filter(|one| one.gate.is_some()).map(|one| one.id.as_str()).collect();
    assert_eq!(gates, ["sec-01", "lif-07", "lif-09", "lif-10", "orc-23", "rel-25", "ava-03"]);
    let listed: Vec<&str> =
        FILES[1].1.lines().skip(1).filter(|line| line.split('\t').nth(3) == Some("gate")).collect();
    assert_eq!(listed.len(), 5, "the public critical failures are gates in the list too");
}

#[test]
fn weights_and_cuts_are_those_of_the_design() {
    let rules = built_in().rules;
    let weights: Vec<u32> = rules.category.iter().map(|category| category.weight).collect();
    assert_eq!(weights, [12, 6, 15, 12, 15, 20, 12, 3, 2, 3]);
    let cuts: Vec<f64> = rules.tier.iter().map(|tier| tier.cut).collect();
    assert_eq!(cuts, [0.90, 0.80, 0.65, 0.50, 0.35]);
    assert!(rules.notice.contains("estimate"));
}

#[test]
fn the_page_of_metrics_is_a_copy_of_the_table() {
    let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/metrics.md")).unwrap();
    let expected: Vec<String> = FILES[3]
        .1
        .lines()
        .skip(1)
        .map(|line| {
            let row: Vec<&str> = line.split('\t').collect();
            format!(
                "| `{}` | {} | {} | {} | {} to {} | {} | {} |",
                row[0], row[1], row[2], row[3], row[4], row[5], row[6], row[7]
            )
        })
        .collect();
    let found: Vec<&str> = page.lines().filter(|line| line.starts_with("| `")).collect();
    assert_eq!(found, expected);
    for reason in built_in().rules.not_applicable.keys() {
        assert!(page.contains(&format!("`{reason}`")), "docs/metrics.md lacks {reason}");
    }
}

#[test]
fn every_kind_of_bad_row_is_named_with_its_file() {
    for (file, from, to, expected) in [
        ("criteria.toml", "id = \"sec-10\"", "id = \"sec-01\"", "the id is there twice"),
        ("criteria.toml", "id = \"sec-10\"", "id = \"sec-99\"", "not in criteria-list.tsv"),
        ("criteria-list.tsv", "sec-11\t", "sec-98\t", "has no row for it"),
        ("criteria.toml", "category = \"security\"", "category = \"storage\"", "the list says security"),
        ("criteria.toml", "class = \"evidence\"", "class = \"machine\"", "the list says evidence"),
        ("criteria.toml", "weight = 3", "weight = 9", "weight 9 is not 1, 2 or 3"),
        ("criteria.toml", "source = \"cmx2\"", "source = \"\"", "neither in [sources]"),
        ("criteria.toml", "date = \"2025-11-06\"", "date = \"2025-11-07\"", "the source's is 2025-11-06"),
        ("criteria.toml", "date = \"2025-11-06\"", "date = \"6 Nov\"", "is not a date"),
        ("criteria.toml", "na = [\"no_infiniband\"]", "na = [\"too_hard\"]", "closed list"),
        ("criteria.toml", "metric = \"bmc_reachable\"", "metric = \"bmc\"", "no metric \"bmc\""),
        ("criteria.toml", "metric = \"bmc_reachable\"", "metric = \"claim\"", "class machine"),
        ("criteria.toml", "pass = 0", "pass = 2", "neither 0 nor 1"),
        ("criteria.toml", "[10, 1.0], [30, 0.5]", "[30, 1.0], [10, 0.5]", "values must rise"),
        ("criteria.toml", "[10, 1.0], [30, 0.5]", "[10, 0.2], [30, 0.5]", "only rise or only fall"),
        ("criteria.toml", "[10, 1.0], [30, 0.5]", "[10, 1.5], [30, 0.5]", "scores in [0, 1]"),
        ("criteria.toml", "text = \"An", "colour = 1\ntext = \"An", "unknown field `colour`"),
        ("rating.toml", "weight = 12", "weight = 13", "add up to 101"),
        ("rating.toml", "cut = 0.80", "cut = 0.95", "does not lie below"),
        ("rating.toml", "peers = 5", "peers = 1", "relative needs 2 peers"),
        ("rating.toml", "top = 0.12", "top = 0.02", "shares rise to 1"),
        ("rating.toml", "draws = 1000", "draws = 0", "1 to 100000 draws"),
        ("rating.toml", "spread = 0.25", "spread = 1.5", "a spread between 0 and 1"),
        ("rating.toml", "floor = 0.05", "floor = 0.0", "floor 0"),
        ("rating.toml", "tier = \"silver\"", "tier = \"tin\"", "no tier \"tin\""),
        ("rating.toml", "reason = \"ours\"", "reason = \"\"", "reason is empty"),
        ("references.tsv", "\t228\t235\t330", "\t228\t235\t200", "above the physical ceiling"),
        ("references.tsv", "\t228\t235\t330", "\t240\t235\t330", "values must rise"),
        ("references.tsv", "\t228\t235\t330", "\t228\tfast\t330", "line 2: typical \"fast\""),
        ("references.tsv", "\tGB/s\tNVLink3", "\tGb/s\tNVLink3", "the metric's is GB/s"),
        ("references.tsv", "ar1-h100", "ar1-a100", "the id is there twice"),
        ("references.tsv", "2026-11-30", "yesterday", "is not a date"),
        ("ceilings.tsv", "\t495\t", "\t99999\t", "outside the metric's range"),
        ("ceilings.tsv", "metric\tgpu", "metric\tcard", "the header must be"),
        ("metrics.tsv", "cpu_count\t", "node_info\t", "is there twice"),
        ("metrics.tsv", "cpu_count\tinventory\t", "cpu_count\t", "fields instead of 8"),
        ("criteria-list.tsv", "sec-02\tsecurity\tevidence\t", "sec-02\tsecurity", "fields instead of 5"),
        ("criteria-list.tsv", "\t2.0, pages, third party\n", "\t\n", "versions is empty"),
        ("criteria.toml", "undecided = \"", "undecided = \"\" #", "undecided has no reason"),
        ("criteria.toml", "pass = 0 } },", "pass = 0 }, shows = \"fail\" },", "shows without or_claim"),
        (
            "rating.toml",
            "not_installed = \"the component",
            "not_installed = \"\" #",
            "not_installed: reason is empty",
        ),
        ("criteria.toml", "evidence = \"attestation\"", "evidence = \"hearsay\"", "none of attestation"),
        ("criteria.toml", "evidence = \"process\"", "", "has neither measures"),
        ("criteria.toml", "least = { node_percent", "least = { percent", "requires percent, which"),
    ] {
        let Err(error) = with(file, from, to) else { panic!("accepted: {file}: {from} -> {to}") };
        let error = error.to_string();
        assert!(error.contains(expected), "{file}: {from} -> {to}: {error}");
        assert!(error.contains(file), "{error}");
    }
}

#[test]
fn a_missing_file_of_a_folder_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let error = Methodology::open(folder.path()).unwrap_err().to_string();
    assert!(error.contains("ceilings.tsv") && error.contains("rating.toml"), "{error}");
    for (name, text) in FILES {
        fs::write(folder.path().join(name), text).unwrap();
    }
    assert_eq!(Methodology::open(folder.path()).unwrap().digests, built_in().digests);
}

proptest! {
    #[test]
    fn a_damaged_file_never_panics(file in 0_usize..FILES.len(), at: prop::sample::Index, byte in 32_u8..127) {
        let texts = FILES.map(|(name, text)| {
            if name == FILES[file].0 {
                let mut bytes = text.as_bytes().to_vec();
                let at = at.index(bytes.len());
                bytes[at] = byte;
                (name, String::from_utf8_lossy(&bytes).into_owned())
            } else {
                (name, text.to_owned())
            }
        });
        let _ = Methodology::parse(&texts);
    }
}
