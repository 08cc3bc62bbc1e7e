//! `dcgmi diag -j`, in deep passes on an idle node: DCGM loads the GPUs, so a job must never meet it.
//!
//! Its JSON changed between generations. DCGM 3 has everything below `DCGM GPU Diagnostic`, results by `gpu_ids` and warnings as
//! strings; DCGM 4 has `DCGM Diagnostic`, results by `entity_group` and `entity_id`, and warnings as objects with a severity. Some
//! releases put `tests` at the top. Lines may precede the document, and lists may hold nulls. A word that is not known here is
//! never a pass.

use std::path::Path;

use serde_json::Value;

use super::dcgmi::{clip, first_line, run};
use crate::facts::{DcgmDiag, DcgmTest, Reading};

/// Most results kept.
const RESULTS_MAX: usize = 512;
/// Keys of the document by generation.
const TOPS: [&str; 2] = ["DCGM Diagnostic", "DCGM GPU Diagnostic"];

/// The child: runs the tests of a level.
pub fn child(program: &Path, level: &str) {
    let reading = match run(program, &["diag", "-r", level, "-j"]) {
        Ok(text) => parse(&text),
        Err(why) => Reading::Unknown(why),
    };
    super::answer(&reading);
}

/// Reads the answer.
#[must_use]
pub fn parse(text: &str) -> Reading<DcgmDiag> {
    let none = |what: &str| Reading::Unknown(format!("dcgmi diag {what}: {}", first_line(text)));
    let Some(document) = document(text) else {
        // It refuses to test a GPU that is split, and others beside it.
        if text.contains("MIG") {
            return Reading::Unsupported;
        }
        return none("printed no document");
    };
    let top = TOPS.iter().find_map(|key| document.get(key)).unwrap_or(&document);
    let version = [
        &document["metadata"]["version"],
        &document["metadata"]["DCGM Version"],
        &top["version"],
        &top["metadata"]["version"],
    ];
    let mut diag = DcgmDiag {
        version: version.into_iter().find_map(Value::as_str).map(clip).unwrap_or_default(),
        ..DcgmDiag::default()
    };
    if let Some(error) =
        ["runtime_error", "Error"].iter().find_map(|key| top.get(key)?.as_str()).filter(|e| !e.is_empty())
    {
        return Reading::Unknown(format!("dcgmi diag: {}", clip(error)));
    }
    let categories = list(&top["test_categories"]).flat_map(|category| list(&category["tests"]));
    for test in categories.chain(list(&top["tests"])) {
        let name = test["name"].as_str().map(clip).unwrap_or_default();
        let mut results = list(&test["results"]).peekable();
        if results.peek().is_none() && test.get("status").is_some() {
            diag.tests.push(result(&name, test));
        }
        diag.tests.extend(results.map(|r| result(&name, r)));
    }
    if diag.tests.is_empty() {
        return none("names no test");
    }
    diag.tests.truncate(RESULTS_MAX);
    Reading::Value(diag)
}

/// The JSON in what was printed, which may begin with other lines.
fn document(text: &str) -> Option<Value> {
    let start = text.find('{')?;
    let document = serde_json::Deserializer::from_str(&text[start..]).into_iter::<Value>().next()?.ok()?;
    document.is_object().then_some(document)
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten().filter(|v| !v.is_null())
}

fn result(name: &str, result: &Value) -> DcgmTest {
    let entity = match (result["entity_group"].as_str(), &result["entity_id"], result["gpu_ids"].as_str()) {
        (Some(group), Value::Null, _) => clip(group),
        (Some(group), id, _) => clip(&format!("{group} {id}")),
        (None, _, Some(ids)) => clip(&format!("GPU {ids}")),
        (None, ..) => String::new(),
    };
    let mut severity = None;
    let warnings: Vec<&str> = list(&result["warnings"])
        .filter_map(|w| {
            severity = severity.max(w["error_severity"].as_u64().and_then(|n| u32::try_from(n).ok()));
            w.as_str().or_else(|| w["warning"].as_str())
        })
        .collect();
    DcgmTest {
        test: name.into(),
        entity,
        status: result["status"].as_str().map(|s| clip(s.trim()).to_lowercase()).unwrap_or_default(),
        severity,
        text: clip(&warnings.join(" ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample(name: &str) -> DcgmDiag {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/dcgmi").join(name);
        match parse(&std::fs::read_to_string(path).unwrap()) {
            Reading::Value(diag) => diag,
            other => panic!("{name}: {other:?}"),
        }
    }

    fn statuses(diag: &DcgmDiag) -> Vec<(&str, &str, &str, Option<u32>)> {
        diag.tests
            .iter()
            .map(|t| (t.test.as_str(), t.entity.as_str(), t.status.as_str(), t.severity))
            .collect()
    }

    #[test]
    fn dcgm_3_with_lines_before_and_nulls_between() {
        let diag = sample("diag-3.json");
        assert_eq!(diag.version, "3.3.5");
        assert_eq!(
            statuses(&diag),
            [
                ("Denylist", "GPU 0,1", "pass", None),
                ("Persistence Mode", "GPU 0,1", "fail", None),
                ("PCIe", "GPU 0", "pass", None),
                ("PCIe", "GPU 1", "fail", None),
                ("GPU Memory", "GPU 0", "skip", None),
            ]
        );
        assert!(diag.tests[3].text.contains("Failed to allocate"));
    }

    #[test]
    fn dcgm_4_with_entities_and_severities() {
        let diag = sample("diag-4.json");
        assert_eq!(diag.version, "4.2.3");
        assert_eq!(
            statuses(&diag),
            [
                ("software", "GPU 0", "pass", None),
                ("software", "GPU 1", "fail", Some(5)),
                ("memory", "GPU 0", "pass", None),
                ("memory", "GPU 1", "fail", Some(2)),
                ("pcie", "CPU 0", "skip", None),
            ]
        );
    }

    #[test]
    fn tests_at_the_top_are_read_too() {
        let text = r#"{"tests":[{"name":"memory","status":"Warn"},{"name":"pcie","results":[{"status":"Not Run"}]}]}"#;
        let Reading::Value(diag) = parse(text) else { panic!("not read") };
        assert_eq!(statuses(&diag), [("memory", "", "warn", None), ("pcie", "", "not run", None)]);
    }

    #[test]
    fn pitfall_45_what_is_no_answer_is_unknown() {
        for text in [
            "",
            "Error: unable to establish a connection to the specified host: localhost\n",
            "{}",
            "[1]",
            r#"{"DCGM Diagnostic":{"test_categories":[]}}"#,
            r#"{"DCGM Diagnostic":{"runtime_error":"Unable to complete diagnostic","test_categories":[]}}"#,
            r#"{"DCGM Diagnostic":{"test_categories":[{"category":"Hardware","tests":[{"name":"memory","results":[{"entity"#,
        ] {
            assert!(matches!(parse(text), Reading::Unknown(_)), "{text}");
        }
        let mig = "Error: Cannot run diagnostic: MIG is enabled, but the GPU has no instances\n";
        assert_eq!(parse(mig), Reading::Unsupported);
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in r#"[{}\[\]",:a-z0-9 ]{0,120}"#) {
            let _ = parse(&text);
        }
    }
}
