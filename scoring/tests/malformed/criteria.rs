//! Malformed methodologies.

use std::fs;

use scoring::methodology::FILES;

use crate::Table;

const CRITERIA: &[&str] = &["criteria", "check", "--data", "data"];

pub fn criteria(table: &mut Table) {
    let one = |name| ("criteria", name);
    let mend = "leave out --data";
    let bad = (CRITERIA, 2);
    table.row(
        one("file missing"),
        |site| fs::remove_file(site.path("data/metrics.tsv")).unwrap(),
        bad,
        &["cannot read data/metrics.tsv", "No such file", "a methodology folder needs ceilings.tsv"],
    );
    table.text(
        one("not UTF-8"),
        ("data/metrics.tsv", b"metric\xff\tstage\n"),
        bad,
        &["cannot read data/metrics.tsv", "UTF-8", "a methodology folder needs"],
    );
    table.text(
        one("empty table"),
        ("data/references.tsv", b""),
        bad,
        &["data/references.tsv", "line 1: the file is empty", mend],
    );
    table.row(
        one("criteria.toml cut"),
        |site| {
            let text = site.read("data/criteria.toml");
            site.write("data/criteria.toml", &text[..text.find("text = \"").unwrap() + 12]);
        },
        bad,
        &["data/criteria.toml", "at line ", mend],
    );
    for (title, file, from, to, says) in [
        ("unknown key", "criteria.toml", "text = \"An", "colour = 1\ntext = \"An", "unknown field `colour`"),
        (
            "id twice",
            "criteria.toml",
            "id = \"sec-10\"",
            "id = \"sec-01\"",
            "criteria.toml: sec-01: the id is there twice",
        ),
        (
            "unknown id",
            "criteria.toml",
            "id = \"sec-10\"",
            "id = \"sec-99\"",
            "sec-99: the id is not in criteria-list.tsv",
        ),
        (
            "listed and not there",
            "criteria-list.tsv",
            "sec-11\t",
            "sec-98\t",
            "criteria-list.tsv: sec-98: criteria.toml has no row",
        ),
        (
            "weight 0",
            "criteria.toml",
            "weight = 3",
            "weight = 0",
            "criteria.toml: sec-01: weight 0 is not 1, 2 or 3",
        ),
        (
            "unknown category",
            "criteria.toml",
            "category = \"security\"",
            "category = \"safety\"",
            "sec-01: there is no category \"safety\"",
        ),
        (
            "no source",
            "criteria.toml",
            "source = \"cmx2\"",
            "source = \"\"",
            "criteria.toml: sec-01: source \"\" is neither",
        ),
        (
            "date that is none",
            "criteria.toml",
            "date = \"2025-11-06\"",
            "date = \"6 Nov\"",
            "sec-01: \"6 Nov\" is not a date",
        ),
        (
            "unknown metric",
            "criteria.toml",
            "metric = \"bmc_reachable\"",
            "metric = \"bmc\"",
            "there is no metric \"bmc\" in metrics.tsv",
        ),
        (
            "curve that does not rise",
            "criteria.toml",
            "[10, 1.0], [30, 0.5]",
            "[30, 1.0], [10, 0.5]",
            "a curve's values must rise",
        ),
        (
            "unknown reason",
            "criteria.toml",
            "na = [\"no_infiniband\"]",
            "na = [\"too_hard\"]",
            "\"too_hard\" is not in the closed list",
        ),
        (
            "unknown kind of evidence",
            "criteria.toml",
            "evidence = \"attestation\"",
            "evidence = \"hearsay\"",
            "\"hearsay\" is none of attestation",
        ),
        (
            "weights that are not 100",
            "rating.toml",
            "weight = 12",
            "weight = 13",
            "rating.toml: category weights add up to 101",
        ),
        (
            "cut-offs out of order",
            "rating.toml",
            "cut = 0.80",
            "cut = 0.95",
            "rating.toml: tier gold does not lie below platinum",
        ),
        ("unknown tier", "rating.toml", "tier = \"silver\"", "tier = \"tin\"", "there is no tier \"tin\""),
        (
            "no draws",
            "rating.toml",
            "draws = 1000",
            "draws = 0",
            "rating.toml: sensitivity needs 1 to 100000 draws",
        ),
        (
            "wrong head",
            "ceilings.tsv",
            "metric\tgpu",
            "metric\tcard",
            "ceilings.tsv: line 1: the header must be",
        ),
        ("column missing", "metrics.tsv", "cpu_count\tinventory\t", "cpu_count\t", "fields instead of 8"),
        ("metric twice", "metrics.tsv", "cpu_count\t", "node_info\t", "metric node_info is there twice"),
        (
            "no number",
            "references.tsv",
            "\t228\t235\t330",
            "\t228\tfast\t330",
            "references.tsv: line 2: typical \"fast\" is not a finite number",
        ),
        (
            "NaN",
            "references.tsv",
            "\t228\t235\t330",
            "\t228\tNaN\t330",
            "references.tsv: line 2: typical \"NaN\" is not a finite number",
        ),
        (
            "above what is possible",
            "references.tsv",
            "\t228\t235\t330",
            "\t228\t235\t200",
            "ar1-a100: typical 235 is above the physical ceiling 200",
        ),
        (
            "day that is none",
            "references.tsv",
            "2026-11-30",
            "2026-02-30",
            "references.tsv: ar1-a100: \"2026-02-30\" is not a date",
        ),
        (
            "another unit",
            "references.tsv",
            "\tGB/s\tNVLink3",
            "\tGb/s\tNVLink3",
            "ar1-a100: unit is Gb/s, the metric's is GB/s",
        ),
    ] {
        let path = FILES.map(|(name, _)| name).into_iter().find(|name| *name == file).unwrap();
        table.row(
            one(title),
            move |site| site.edit(&format!("data/{path}"), from, to),
            bad,
            &["data", file, says, mend],
        );
    }
    table.row(
        one("bad row, to the scorer"),
        |site| site.edit("data/criteria.toml", "weight = 3", "weight = 0"),
        (&["score", "run", "--data", "data"], 2),
        &["problem in data", "criteria.toml: sec-01: weight 0", mend],
    );
}
