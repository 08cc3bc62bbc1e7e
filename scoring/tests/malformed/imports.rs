//! Malformed files of other tools.

use std::fs;

use crate::{RECORDS, Site, Table};

pub fn imports(table: &mut Table) {
    const PAGE: &[u8] = b"<!DOCTYPE html>\n<html><body>Sign in</body></html>\n";
    const CMAX: &str = "in/audit.values.json";
    const DCGMI: &str = "in/dcgmi4.json";
    const NHC: &str = "in/nhc.log";
    const NODE: &str = "in/node.prom";
    const QUERY: &str = "in/prometheus.json";
    const SACCT: &str = "in/sacct.txt";
    let one = |name| ("imports", name);
    let cmax: (&[&str], i32) = (&["import", "--results", "run", "--kind", "cmax", CMAX], 2);
    let dcgmi: (&[&str], i32) =
        (&["import", "--results", "run", "--kind", "dcgmi", "--node", "n1", DCGMI], 2);
    let nhc: (&[&str], i32) = (&["import", "--results", "run", "--kind", "nhc", NHC], 2);
    let node: (&[&str], i32) = (&["import", "--results", "run", "--kind", "metrics", NODE], 2);
    let query: (&[&str], i32) = (&["import", "--results", "run", "--kind", "metrics", QUERY], 2);
    let sacct: (&[&str], i32) = (&["import", "--results", "run", "--kind", "sacct", SACCT], 2);
    let told: (&[&str], i32) = (&["import", "--results", "run", CMAX], 2);
    let half = |file: &'static str| {
        move |site: &Site| {
            let text = site.read(file);
            site.write(file, &text[..text.len() / 2]);
        }
    };
    table.text(
        one("no format at all"),
        (CMAX, PAGE),
        told,
        &[CMAX, "is in no format that is imported", "--kind"],
    );
    table.text(one("empty"), (CMAX, b""), told, &[CMAX, "is empty", "run the tool again"]);
    table.text(
        one("not UTF-8"),
        (CMAX, b"{\"a\xff"),
        told,
        &[CMAX, "byte 3 is not UTF-8", "export it again"],
    );
    table.row(
        one("a folder in its place"),
        |_| (),
        (&["import", "--results", "run", "in"], 2),
        &["in", "is no regular file", "give the file itself"],
    );
    table.row(
        one("not there"),
        |site| fs::remove_file(site.path(CMAX)).unwrap(),
        told,
        &[CMAX, "cannot be read: No such file", "check the path"],
    );
    table.row(
        one("two formats at once"),
        |_| (),
        (&["import", "--results", "run", NHC, SACCT], 2),
        &[SACCT, "is sacct output, the files before it are nhc's", "a command of its own"],
    );
    table.row(
        one("node that the run has not"),
        |_| (),
        (&["import", "--results", "run", "--node", "n9", DCGMI], 2),
        &["--node n9", "no node of the run", "give one of them"],
    );
    table.row(
        one("results folder that is none"),
        |_| (),
        (&["import", "--results", "data", NHC], 2),
        &["data has no run.json", "not a results folder", "give the folder that clustermax-suite.sh printed"],
    );
    table.swap(
        one("into records that are broken"),
        (RECORDS, "{\"schema\"", "{schema"),
        (&["import", "--results", "run", NHC], 2),
        &[
            RECORDS,
            "line 1: not a record",
            "take it out and run `clustermax suite collect`, which reads every raw output again",
        ],
    );

    table.row(
        one("cmax: half a file"),
        half(CMAX),
        cmax,
        &[CMAX, "is no complete JSON: EOF", " at line ", "export it again"],
    );
    table.text(
        one("cmax: HTML"),
        (CMAX, PAGE),
        cmax,
        &[CMAX, "is no complete JSON", "at line 1 column 1", "export it again"],
    );
    table.text(
        one("cmax: a list"),
        (CMAX, b"{\"audit_data\": []}"),
        cmax,
        &[CMAX, "audit_data is no object", "give audit.values.json"],
    );
    table.swap(
        one("cmax: of Kubernetes"),
        (CMAX, "\"type\": \"slurm\"", "\"type\": \"k8s\""),
        cmax,
        &[CMAX, "is an audit of k8s", "import one of `cmax audit --slurm`"],
    );
    table.text(
        one("cmax: no node"),
        (CMAX, b"{\"audit_data\": {\"audit\": {}}}"),
        cmax,
        &[CMAX, "software.workerNode", "give --node"],
    );
    table.text(
        one("cmax: keys of another tool"),
        (CMAX, b"{\"audit_data\": {\"software\": {\"workerNode\": \"n1\"}}}"),
        cmax,
        &[CMAX, "audit_data holds none of the keys", "give audit.values.json"],
    );

    table.row(
        one("dcgmi: half a file"),
        half(DCGMI),
        dcgmi,
        &[DCGMI, "is no complete JSON: EOF", " at line ", "export it again"],
    );
    table.text(
        one("dcgmi: HTML"),
        (DCGMI, PAGE),
        dcgmi,
        &[DCGMI, "is in no format", "give the whole output of one of them"],
    );
    table.text(one("dcgmi: empty"), (DCGMI, b""), dcgmi, &[DCGMI, "is empty", "run the program again"]);
    table.text(
        one("dcgmi: of fio"),
        (DCGMI, b"{\"fio version\": \"fio-3.33\", \"jobs\": []}"),
        dcgmi,
        &[DCGMI, "not dcgmi diag -j", "leave --kind out"],
    );
    table.row(
        one("dcgmi: no node"),
        |_| (),
        (&["import", "--results", "run", DCGMI], 2),
        &[DCGMI, "does not say which node it is of", "give --node"],
    );

    table.text(
        one("nhc: HTML"),
        (NHC, PAGE),
        nhc,
        &[NHC, "holds no finished run of NHC", "give /var/log/nhc.log"],
    );
    table.text(
        one("nhc: empty"),
        (NHC, b""),
        nhc,
        &[NHC, "holds no finished run of NHC", "give /var/log/nhc.log"],
    );
    table.text(
        one("nhc: no node"),
        (NHC, b"Health check failed:  check_x:  y\n"),
        nhc,
        &[NHC, "1 lines do not say which node they are of", "give --node"],
    );

    table.text(
        one("metrics: HTML"),
        (NODE, PAGE),
        node,
        &[NODE, "line 1: \"<!DOCTYPE html>\" is no sample", "curl -s"],
    );
    table.row(
        one("metrics: half a line"),
        |site| site.write(NODE, site.read(NODE) + "node_load1 "),
        node,
        &[NODE, "line 11: \"node_load1\" is no sample", "save the page again"],
    );
    table.text(
        one("metrics: of another exporter"),
        (NODE, b"node_uname_info 1\n"),
        node,
        &[NODE, "node_uname_info", "give --node"],
    );
    table.text(
        one("metrics: nothing that is known"),
        (NODE, b"up 1\n"),
        (&["import", "--results", "run", "--kind", "metrics", "--node", "n1", NODE], 2),
        &[NODE, "holds no metric of node_exporter", "save the page of one with curl -s"],
    );

    table.row(
        one("prometheus: half a file"),
        half(QUERY),
        query,
        &[QUERY, "is no complete JSON: EOF", " at line ", "export it again"],
    );
    table.text(
        one("prometheus: an error"),
        (QUERY, b"{\"status\": \"error\", \"error\": \"query timed out\"}"),
        query,
        &[QUERY, "status is \"error\", query timed out", "ask Prometheus again"],
    );
    table.swap(
        one("prometheus: a scalar"),
        (QUERY, "\"vector\"", "\"scalar\""),
        query,
        &[QUERY, "data.resultType is scalar", "ask /api/v1/query for series"],
    );
    table.swap(
        one("prometheus: an expression"),
        (QUERY, "\"__name__\":\"DCGM_FI_PROF_SM_ACTIVE\",", ""),
        query,
        &[QUERY, "data.result[0] has no __name__", "ask for series"],
    );
    table.swap(
        one("prometheus: no value"),
        (QUERY, "\"0.5\"", "\"fast\""),
        query,
        &[QUERY, "data.result[0]: [1796082167.8,\"fast\"] is no sample", "export it again"],
    );

    table.text(one("sacct: empty"), (SACCT, b""), sacct, &[SACCT, "is empty", "run sacct again"]);
    table.text(
        one("sacct: HTML"),
        (SACCT, PAGE),
        sacct,
        &[SACCT, "line 1: there is no column JobID", "run sacct --parsable2"],
    );
    table.swap(
        one("sacct: no state"),
        (SACCT, "|State|", "|Status|"),
        sacct,
        &[SACCT, "line 1: there is no column State", "run sacct --parsable2"],
    );
    table.swap(
        one("sacct: a name with the delimiter"),
        (SACCT, "|COMPLETED|", "|COMPLETED|a|b|"),
        sacct,
        &[SACCT, "line 2: 7 fields instead of 5", "use --delimiter"],
    );
    table.row(
        one("sacct: half a file"),
        half(SACCT),
        sacct,
        &[SACCT, "line 3: 2 fields instead of 5", "it is cut short, run sacct again"],
    );
    table.swap(
        one("sacct: times with colons"),
        (SACCT, "|7200|", "|2:00:00|"),
        sacct,
        &[SACCT, "line 2: ElapsedRaw \"2:00:00\" is no number of seconds", "run sacct again"],
    );
}
