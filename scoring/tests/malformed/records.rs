//! Malformed results folders, to the scorer and to every other reader of one.

use std::fs;

use crate::{RECORDS, RUN, SCORE, SCORED, Site, Table};

pub fn records(table: &mut Table) {
    let again = "take it out and run `clustermax suite collect`, which reads every raw output again";
    let one = |name| ("records", name);
    let bad = (SCORE, 2);
    table.row(
        one("empty folder"),
        |site| {
            fs::remove_dir_all(site.path("run")).unwrap();
            fs::create_dir(site.path("run")).unwrap();
        },
        bad,
        &["results folder run is empty", "sbatch clustermax-suite.sh", "give the folder it printed"],
    );
    table.row(
        one("no folder"),
        |site| fs::remove_dir_all(site.path("run")).unwrap(),
        bad,
        &["results folder run", "does not exist", "give the folder that clustermax-suite.sh printed"],
    );
    table.row(
        one("no run.json"),
        |site| fs::remove_file(site.path(RUN)).unwrap(),
        bad,
        &["run has no run.json", "not a results folder", "give the folder that clustermax-suite.sh printed"],
    );
    let restore = "run the suite again or restore the file";
    table.text(one("run.json cut"), (RUN, b"{\"schema\":"), bad, &[RUN, "line 1 column 10", restore]);
    table.text(one("run.json empty"), (RUN, b""), bad, &[RUN, "line 1 column 0", restore]);
    table.text(one("run.json not UTF-8"), (RUN, b"\xff\xfe{"), bad, &[RUN, "not UTF-8 text", restore]);
    table.swap(
        one("run.json of another release"),
        (RUN, "clustermax-run/1", "clustermax-run/2"),
        bad,
        &[RUN, "schema \"clustermax-run/2\"", "use the release that wrote the folder"],
    );
    table.swap(
        one("run.json without a key"),
        (RUN, "\"hardware\": \"gpu\"", "\"job2\": null"),
        bad,
        &[RUN, "unknown field `job2`", restore],
    );
    table.swap(
        one("run.json with a wrong type"),
        (RUN, "[\"n1\", \"n2\"]", "\"n[1-2]\""),
        bad,
        &[RUN, "expected a sequence at line 1 column 1", restore],
    );
    table.swap(
        one("run.json with no time"),
        (RUN, "2026-11-30T20:50:00Z", "last Monday"),
        bad,
        &[RUN, "started \"last Monday\" is no RFC 3339 time", restore],
    );
    table.row(
        one("no records.jsonl"),
        |site| fs::remove_file(site.path(RECORDS)).unwrap(),
        bad,
        &[RECORDS, "after the first stage", "check the path and its permissions"],
    );
    table.row(
        one("a folder in the place of records.jsonl"),
        |site| {
            fs::remove_file(site.path(RECORDS)).unwrap();
            fs::create_dir(site.path(RECORDS)).unwrap();
        },
        bad,
        &["cannot read run/records.jsonl", "directory", "put the file itself there"],
    );
    table.text(
        one("records.jsonl empty"),
        (RECORDS, b""),
        bad,
        &[RECORDS, "holds no record", "run the suite's stages (and `clustermax collect`) first"],
    );
    table.row(
        one("last line half-written"),
        |site| {
            let text = site.read(RECORDS);
            site.write(RECORDS, &text[..text.len() - 30]);
        },
        bad,
        &[RECORDS, "line 311 is half-written", "run the last stage again"],
    );
    table.swap(
        one("bad JSON"),
        (RECORDS, "{\"schema\"", "{schema"),
        bad,
        &[RECORDS, "line 1: not a record", "column 2", again],
    );
    table.row(
        one("not UTF-8"),
        |site| {
            let mut bytes = fs::read(site.path(RECORDS)).unwrap();
            bytes[30] = 0xff;
            site.write(RECORDS, bytes);
        },
        bad,
        &[RECORDS, "line 1: not a record", "column", again],
    );
    table.swap(
        one("byte order mark"),
        (RECORDS, "{", "\u{feff}{"),
        bad,
        &[RECORDS, "line 1: a byte order mark", "save the file without one"],
    );
    table.swap(
        one("NUL"),
        (RECORDS, "\"gpu_count\"", "\"gpu\0count\""),
        bad,
        &[RECORDS, "line 1: not a record: control character", again],
    );
    table.row(
        one("line of 2 MiB"),
        |site| site.write(RECORDS, format!("{}\n", "x".repeat(2 << 20)) + &site.read(RECORDS)),
        bad,
        &[RECORDS, "line 1: it is longer than 1048576 bytes", again],
    );
    table.text(
        one("HTML"),
        (RECORDS, b"<!DOCTYPE html>\n<p>Sign in\n"),
        bad,
        &[RECORDS, "line 1: not a record", again],
    );
    table.swap(
        one("key twice"),
        (RECORDS, "\"value\": 8,", "\"value\": 8, \"value\": 9,"),
        bad,
        &[RECORDS, "line 1: not a record: duplicate field `value`", again],
    );
    table.swap(
        one("unknown key"),
        (RECORDS, "\"value\": 8,", "\"value\": 8, \"colour\": 9,"),
        bad,
        &[RECORDS, "line 1: not a record: unknown field `colour`", again],
    );
    table.swap(
        one("no metric"),
        (RECORDS, "\"metric\": \"gpu_count\", ", ""),
        bad,
        &[RECORDS, "line 1: not a record: missing field `metric`", again],
    );
    table.swap(
        one("empty stage"),
        (RECORDS, "\"stage\": \"inventory\"", "\"stage\": \"\""),
        bad,
        &[RECORDS, "line 1: stage is empty", again],
    );
    table.swap(
        one("value of another type"),
        (RECORDS, "\"value\": 8,", "\"value\": \"8\","),
        bad,
        &[RECORDS, "line 1: not a record: invalid type: string \"8\", expected a number", "column", again],
    );
    table.swap(
        one("NaN"),
        (RECORDS, "\"value\": 8,", "\"value\": NaN,"),
        bad,
        &[RECORDS, "line 1: a number is NaN, which is not finite", again],
    );
    table.swap(
        one("number too large"),
        (RECORDS, "\"value\": 8,", "\"value\": 1e400,"),
        bad,
        &[RECORDS, "line 1: a number is not finite", again],
    );
    table.swap(
        one("negative time"),
        (RECORDS, "\"seconds\": 1.0", "\"seconds\": -1.0"),
        bad,
        &[RECORDS, "line 1: seconds is -1, it must be finite and not negative", again],
    );
    table.swap(
        one("unknown state"),
        (RECORDS, "\"state\": \"measured\"", "\"state\": \"guessed\""),
        bad,
        &[RECORDS, "line 1: not a record: unknown variant `guessed`", "not_applicable", again],
    );
    table.swap(
        one("measured without a value"),
        (RECORDS, "\"value\": 8,", "\"value\": null,"),
        bad,
        &[RECORDS, "line 1: state is measured but value is null", again],
    );
    table.swap(
        one("unknown with a value"),
        (RECORDS, "\"state\": \"measured\"", "\"state\": \"unknown\""),
        bad,
        &[RECORDS, "line 1: value is given although state is not measured", again],
    );
    table.swap(
        one("unknown schema"),
        (RECORDS, "clustermax-record/1", "clustermax-record/7"),
        bad,
        &[RECORDS, "line 1 has schema \"clustermax-record/7\"", "use the release that wrote the folder"],
    );
    table.swap(
        one("record of another run"),
        (RUN, "Z-golden", "Z-other"),
        bad,
        &[RECORDS, "line 1 belongs to run \"20261130T205000Z-golden\"", "give each run its own folder"],
    );
    table.swap(
        one("record of another cluster"),
        (RUN, "\"alpha\"", "\"beta\""),
        bad,
        &[RECORDS, "line 1 is of cluster \"alpha\" but run.json says \"beta\"", "restore the file"],
    );
    // Reading a pipe or a device might never end.
    table.row(
        one("records.jsonl is a device"),
        |site| {
            fs::remove_file(site.path(RECORDS)).unwrap();
            std::os::unix::fs::symlink("/dev/null", site.path(RECORDS)).unwrap();
        },
        bad,
        &[RECORDS, "it is not a regular file", "check the path"],
    );
    table.row(
        one("run.json is a device"),
        |site| {
            fs::remove_file(site.path(RUN)).unwrap();
            std::os::unix::fs::symlink("/dev/null", site.path(RUN)).unwrap();
        },
        bad,
        &[RUN, "it is not a regular file", "check permissions"],
    );
    table.row(
        one("two records of the same"),
        |site| {
            let text = site.read(RECORDS);
            let first = text.lines().next().unwrap().to_owned();
            site.write(RECORDS, format!("{text}{first}\n"));
        },
        bad,
        &[
            RECORDS,
            "lines 1 and 312 are records of the same gpu_count (n1)",
            "run `clustermax collect` for stage inventory again",
        ],
    );
    table.swap(
        one("evidence outside the folder"),
        (RECORDS, "\"file\": \"raw/", "\"file\": \"../raw/"),
        bad,
        &[RECORDS, "line 1: evidence.file", "must be a relative path inside the results folder"],
    );
    table.swap(
        one("hash that is none"),
        (RECORDS, "\"sha256\": \"e4", "\"sha256\": \"xx"),
        bad,
        &[RECORDS, "line 1: evidence.sha256 must be 64 hex digits", again],
    );
    manifests(table);
    not_believed(table);
    scored(table);
}

fn manifests(table: &mut Table) {
    const FILE: &str = "run/stages/gemm.json";
    const GOLDEN: &str = "20261130T205000Z-golden";
    let one = |name| ("records", name);
    let bad = (SCORE, 2);
    table.row(
        one("fewer records than the manifest names"),
        |site| manifest(site, "clustermax-stage/1", GOLDEN, 99),
        bad,
        &[FILE, "names 99 records of gemm, records.jsonl has 16", "run `clustermax collect gemm` again"],
    );
    table.text(
        one("manifest cut"),
        (FILE, b"{\"schema\":\"clustermax-st"),
        bad,
        &[FILE, "not a manifest", "line 1 column 24", "run `clustermax collect gemm` again"],
    );
    table.row(
        one("manifest of another release"),
        |site| manifest(site, "clustermax-stage/4", GOLDEN, 1),
        bad,
        &[FILE, "schema is \"clustermax-stage/4\"", "run `clustermax collect gemm` again"],
    );
    table.row(
        one("manifest of another run"),
        |site| manifest(site, "clustermax-stage/1", "other", 1),
        bad,
        &[FILE, "it belongs to run \"other\"", "run `clustermax collect gemm` again"],
    );
}

/// A value that cannot be is named and counts as unknown: the run is still rated.
fn not_believed(table: &mut Table) {
    let one = |name| ("records", name);
    let again = "run `clustermax collect inventory` again";
    let rated = (SCORE, 0);
    table.swap(
        one("unknown metric"),
        (RECORDS, "\"metric\": \"gpu_count\"", "\"metric\": \"gpu_countt\""),
        rated,
        &[RECORDS, "line 1: gpu_countt", "did you mean gpu_count?", again],
    );
    table.swap(
        one("negative count"),
        (RECORDS, "\"value\": 8,", "\"value\": -8,"),
        rated,
        &[RECORDS, "line 1: gpu_count (n1): -8 is impossible, gpu_count lies between 0 and 1024", again],
    );
    table.swap(
        one("beyond the sanity bound"),
        (RECORDS, "\"value\": 8,", "\"value\": 8000000,"),
        rated,
        &[RECORDS, "line 1: gpu_count (n1): 8000000", "lies between 0 and 1024", again],
    );
    table.swap(
        one("wrong unit"),
        (RECORDS, "\"unit\": \"GiB\"", "\"unit\": \"GB\""),
        rated,
        &[RECORDS, "line 4: memory_total (n1): unit is \"GB\" instead of \"GiB\"", again],
    );
    table.swap(
        one("declared although a program measures it"),
        (RECORDS, "\"provenance\": \"measured\"", "\"provenance\": \"declared\""),
        rated,
        &[RECORDS, "line 1: gpu_count (n1): it is only declared", again],
    );
    table.swap(
        one("place that the raw file lacks"),
        (RECORDS, "\"pointer\": \"/rows/0\"", "\"pointer\": \"/rows/99999\""),
        rated,
        &[RECORDS, "line 1: gpu_count (n1): its evidence raw/inventory/n1.json has no /rows/99999", again],
    );
    table.swap(
        one("line of a JSON document"),
        (RECORDS, "\"pointer\": \"/rows/0\"", "\"pointer\": \"line:1\""),
        rated,
        &[RECORDS, "line 1: gpu_count (n1): its evidence raw/inventory/n1.json has no line:1", again],
    );
    table.swap(
        one("metric of another stage"),
        (RECORDS, "\"stage\": \"inventory\"", "\"stage\": \"sla\""),
        rated,
        &[
            RECORDS,
            "line 1: gpu_count (n1): stage sla gives no gpu_count: it is of inventory",
            "run `clustermax collect sla` again",
        ],
    );
    table.row(
        one("more than ten values"),
        |site| {
            site.write(RECORDS, site.read(RECORDS).replace("\"unit\": \"TFLOP/s\"", "\"unit\": \"GFLOP/s\""))
        },
        rated,
        &["more values count as unknown", "score.json names all", "under not_believed"],
    );
    table.swap(
        one("raw file changed"),
        ("run/raw/inventory/n1.json", "8", "9"),
        rated,
        &["raw/inventory/n1.json has changed: its sha256 is", "put the file back", "run its stage again"],
    );
    table.row(
        one("raw file missing"),
        |site| fs::remove_file(site.path("run/raw/inventory/n1.json")).unwrap(),
        rated,
        &["raw/inventory/n1.json is missing", "put the file back", "run its stage again"],
    );
}

/// What other commands make of a run.
fn scored(table: &mut Table) {
    let one = |name| ("records", name);
    let score = "run `clustermax score` on that results folder again";
    table.row(
        one("rank of a run without score"),
        |_| (),
        (&["rank", "run"], 2),
        &[SCORED, "cannot be read", score],
    );
    table.text(
        one("rank of half a score.json"),
        (SCORED, b"{\"schema\": \"clusterm"),
        (&["rank", "run"], 2),
        &[SCORED, "line 1 column 20", score],
    );
    table.text(
        one("rank of another schema"),
        (SCORED, b"{\"schema\": \"clustermax-score/9\"}"),
        (&["rank", "run"], 2),
        &[SCORED, "schema is \"clustermax-score/9\"", score],
    );
    table.text(
        one("rank of a score without its keys"),
        (SCORED, b"{\"schema\": \"clustermax-score/1\"}"),
        (&["rank", "run"], 2),
        &[SCORED, "missing field `methodology`", score],
    );
    table.row(
        one("diff with a folder that is no run"),
        |_| (),
        (&["diff", "run", "in"], 2),
        &["in has no run.json", "not a results folder", "give the folder that clustermax-suite.sh printed"],
    );
    table.text(
        one("verify of a bundle that is none"),
        ("run.tar.gz", b"<!DOCTYPE html>"),
        (&["verify", "run.tar.gz"], 2),
        &["run.tar.gz", "not a whole gzip-compressed tar archive", "fetch it again"],
    );
    table.text(
        one("verify of a score.json that is none"),
        (SCORED, b"score: 90 %"),
        (&["verify", "run"], 1),
        &["differs: score.json", "is not JSON", "run `clustermax score` again"],
    );
    table.text(
        one("read of a page in the place of a log"),
        ("all_reduce.txt", b"<!DOCTYPE html>\n<p>Sign in\n"),
        (&["read", "all_reduce.txt"], 2),
        &["all_reduce.txt", "is in no format that `clustermax read` knows", "give the whole output"],
    );
    table.text(
        one("read of an empty file"),
        ("all_reduce.txt", b"\n"),
        (&["read", "all_reduce.txt"], 2),
        &["all_reduce.txt", "is empty", "run the program again"],
    );
}

/// What a stage was to give.
fn manifest(site: &Site, schema: &str, run: &str, named: usize) {
    let text = format!(
        "{{\"schema\":\"{schema}\",\"run\":\"{run}\",\"stage\":\"gemm\",\"state\":\"done\",\"exit_code\":0,\
         \"started\":null,\"seconds\":null,\"job\":null,\"reason\":null,\"records\":{named},\"metrics\":{{\"gemm\":{named}}}}}"
    );
    site.write("run/stages/gemm.json", text);
}
