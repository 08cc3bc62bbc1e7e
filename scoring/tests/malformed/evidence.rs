//! Malformed evidence.toml, and statements that count for nothing.

use crate::{EVIDENCE, SCORE, Table};

const CHECK: &[&str] = &["evidence", "check", EVIDENCE];

pub fn evidence(table: &mut Table) {
    let one = |name| ("evidence", name);
    let bad = (CHECK, 2);
    table.text(
        one("empty"),
        (EVIDENCE, b""),
        bad,
        &[EVIDENCE, "schema is missing", "make it with `clustermax evidence new`"],
    );
    table.text(one("bad TOML"), (EVIDENCE, b"schema = \n"), bad, &[EVIDENCE, "line 1", "correct that line"]);
    table.text(
        one("not UTF-8"),
        (EVIDENCE, b"\xff\xfe"),
        bad,
        &[EVIDENCE, "not UTF-8 text", "give a file that `clustermax evidence new` made"],
    );
    table.row(
        one("a folder in its place"),
        |_| (),
        (&["score", "run", "--evidence", "run/raw"], 2),
        &["cannot read run/raw", "not a regular file", "give a file that `clustermax evidence new` made"],
    );
    table.row(
        one("not there"),
        |_| (),
        (&["score", "run", "--evidence", "gone.toml"], 2),
        &["cannot read gone.toml", "No such file", "give a file that `clustermax evidence new` made"],
    );
    table.row(
        one("5 MiB"),
        |site| site.write(EVIDENCE, "#".repeat(5 << 20)),
        bad,
        &[EVIDENCE, "larger than 4194304 bytes", "give a file that `clustermax evidence new` made"],
    );
    table.row(
        one("key twice"),
        |site| site.edit(EVIDENCE, "stated_by", "provider = \"Other\"\nstated_by"),
        bad,
        &[EVIDENCE, "line 3", "duplicate key", "correct that line"],
    );
    table.swap(
        one("schema of another release"),
        (EVIDENCE, "evidence/1", "evidence/9"),
        bad,
        &[EVIDENCE, "schema is \"clustermax-evidence/9\"", "use the release that it was written for"],
    );
    table.swap(
        one("no provider"),
        (EVIDENCE, "provider = \"Example Cloud\"\n", ""),
        bad,
        &[EVIDENCE, "the file: provider is missing", "add it"],
    );
    table.swap(
        one("stated in the future"),
        (EVIDENCE, "2026-11-01", "2027-11-01"),
        bad,
        &[EVIDENCE, "stated_on is 2027-11-01", "correct the date"],
    );
    table.swap(
        one("date that is none"),
        (EVIDENCE, "2026-11-01", "\"yesterday\""),
        bad,
        &[EVIDENCE, "the file: stated_on must be a date (2026-01-31)", "correct it"],
    );
    table.swap(
        one("of another cluster"),
        (EVIDENCE, "stated_by", "cluster = \"beta\"\nstated_by"),
        bad,
        &[EVIDENCE, "cluster is \"beta\"", "give that cluster's evidence"],
    );
    table.swap(
        one("unknown kind"),
        (EVIDENCE, "[[attestation]]", "[[atestation]]"),
        bad,
        &[EVIDENCE, "no key \"atestation\"", "did you mean \"attestation\"?"],
    );
    table.swap(
        one("table instead of an array of tables"),
        (EVIDENCE, "[[attestation]]", "[attestation]"),
        bad,
        &[EVIDENCE, "attestation is no array of tables", "write [[attestation]] before each statement"],
    );
    table.swap(
        one("unknown criterion"),
        (EVIDENCE, "\"sec-01\"", "\"sec-1\""),
        bad,
        &[EVIDENCE, "attestation 1: there is no criterion \"sec-1\"", "`clustermax criteria list` names all"],
    );
    table.swap(
        one("criterion that a program decides"),
        (EVIDENCE, "\"sec-01\"", "\"rel-24\""),
        bad,
        &[EVIDENCE, "attestation 1: rel-24 is measured by a program", "leave it out"],
    );
    table.swap(
        one("criterion of another kind"),
        (EVIDENCE, "\"sec-01\"", "\"lif-10\""),
        bad,
        &[EVIDENCE, "attestation 1: lif-10 is evidenced by [[terms]]", "write it as [[terms]]"],
    );
    table.swap(
        one("unknown key"),
        (EVIDENCE, "valid_to", "valid_until"),
        bad,
        &[EVIDENCE, "attestation 1: there is no key \"valid_until\"", "valid_"],
    );
    table.swap(
        one("key of the wrong type"),
        (EVIDENCE, "met = true", "met = \"yes\""),
        bad,
        &[EVIDENCE, "attestation 1: met must be true or false", "correct it"],
    );
    table.swap(
        one("key missing"),
        (EVIDENCE, "issuer = \"Auditor LLP\"\n", ""),
        bad,
        &[EVIDENCE, "attestation 1: issuer is missing", "add it: auditor"],
    );
    table.swap(
        one("day that is none"),
        (EVIDENCE, "2026-12-31", "2026-02-31"),
        bad,
        &[EVIDENCE, "line", "correct that line"],
    );
    table.row(
        one("hash that is none"),
        |site| site.write(EVIDENCE, site.read(EVIDENCE) + "sha256 = \"abc\"\n"),
        bad,
        &[EVIDENCE, "attestation 1: sha256 must be 64 hex digits", "correct it"],
    );
    flawed(table);
}

/// Well-formed statements that count for nothing.
fn flawed(table: &mut Table) {
    const HASH: &str = "8b1a9953c4611296a827abf8c47804d7e6c49c6b97c0d9b3f0c5f1d5a3c1f8b2";
    let one = |name| ("evidence", name);
    let some = (CHECK, 1);
    let name = "attestation 1 (sec-01) counts for nothing";
    table.swap(
        one("expired"),
        (EVIDENCE, "2026-12-31", "2026-11-29"),
        some,
        &[EVIDENCE, name, "expired on 2026-11-29", "give one that held then"],
    );
    table.swap(
        one("future-dated"),
        (EVIDENCE, "valid_from = 2026-01-01", "valid_from = 2026-12-05"),
        some,
        &[EVIDENCE, name, "future-dated: valid_from 2026-12-05", "correct the date"],
    );
    table.swap(
        one("dates that contradict each other"),
        (EVIDENCE, "valid_from = 2026-01-01", "valid_from = 2027-01-01"),
        some,
        &[EVIDENCE, name, "valid_from 2027-01-01 is after valid_to 2026-12-31", "correct the dates"],
    );
    table.swap(
        one("key that contradicts what is stated"),
        (EVIDENCE, "\"SOC 2\"", "\"star rating\""),
        some,
        &[EVIDENCE, name, "standard names none of", "correct that key"],
    );
    table.row(
        one("two statements that contradict each other"),
        |site| {
            let text = site.read(EVIDENCE);
            let (_, first) = text.split_once("[[").unwrap();
            let second = first.replacen("met = true", "met = false", 1);
            site.write(EVIDENCE, format!("{text}\n[[{second}"));
        },
        some,
        &[EVIDENCE, name, "another statement says the opposite", "keep the one that is true"],
    );
    for (title, document, hash, says, mend) in [
        ("document missing", "soc2.pdf", true, "document soc2.pdf cannot be read", "put it beside this file"),
        (
            "document changed",
            "run.json",
            true,
            "document run.json has changed",
            "put back the one that was stated",
        ),
        ("document outside", "../in/nhc.log", true, "is not a relative path", "put it there"),
        (
            "document that is a folder",
            "raw",
            true,
            "document raw is not a regular file",
            "put the file itself there",
        ),
        (
            "document without a hash",
            "run.json",
            false,
            "document run.json has no sha256",
            "add it: `sha256sum run.json`",
        ),
    ] {
        table.row(
            one(title),
            move |site| {
                let hash = if hash { format!("sha256 = \"{HASH}\"\n") } else { String::new() };
                let text = site.read(EVIDENCE);
                site.write(EVIDENCE, format!("{text}document = \"{document}\"\n{hash}"));
            },
            some,
            &[EVIDENCE, name, says, mend],
        );
    }
    table.swap(
        one("expired, to the scorer"),
        (EVIDENCE, "2026-12-31", "2026-11-29"),
        (SCORE, 0),
        &[EVIDENCE, name, "expired on 2026-11-29", "give one that held then"],
    );
}
