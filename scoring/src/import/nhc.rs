//! Logs of LBNL's Node Health Check, as a file of one node or out of syslog.

use std::collections::BTreeMap;

use super::{Imported, flag, on};
use crate::read::Found;

const FAILED: &str = "Health check failed:";
const TIMED_OUT: &str = "Script timed out";

#[derive(Default)]
struct Node {
    passed: u32,
    failed: BTreeMap<String, (u32, u64)>,
    /// Whether the last run passed, and the line that says so.
    last: Option<(bool, u64, String)>,
}

/// Runs and failures by check.
pub fn read(text: &str, node: Option<&str>) -> Result<Imported, String> {
    let mut nodes: BTreeMap<String, Node> = BTreeMap::new();
    let mut without = 0;
    for (index, line) in text.lines().enumerate() {
        let number = index as u64 + 1;
        let passed = line.contains("Node Health Check") && line.contains("completed successfully");
        let failed = line.find(FAILED).map(|at| line[at + FAILED.len()..].trim());
        let timed_out = line.contains(TIMED_OUT) && line.contains("nhc");
        if !passed && failed.is_none() && !timed_out {
            continue;
        }
        let Some(name) = host(line).or(node) else {
            without += 1;
            continue;
        };
        let entry = nodes.entry(name.to_owned()).or_default();
        if passed {
            entry.passed += 1;
            entry.last = Some((true, number, String::new()));
        } else {
            let message = failed.unwrap_or("the run timed out");
            let check =
                message.split(':').next().unwrap_or(message).split_whitespace().next().unwrap_or("unnamed");
            let check = if timed_out && failed.is_none() { "timeout" } else { check };
            let count = entry.failed.entry(check.to_owned()).or_insert((0, number));
            count.0 += 1;
            entry.last = Some((false, number, message.to_owned()));
        }
    }
    if without > 0 {
        return Err(format!(
            "{without} lines do not say which node they are of; give --node, or a syslog with host names"
        ));
    }
    if nodes.is_empty() {
        return Err("holds no finished run of NHC (\"Node Health Check completed successfully\", \"Health check failed:\"); \
                    give /var/log/nhc.log, into which NHC writes them with its default verbosity"
            .to_owned());
    }
    let mut found = Vec::new();
    for (name, node) in nodes {
        let failures: u32 = node.failed.values().map(|(count, _)| count).sum();
        found.push(on(Found::value("import", "nhc_runs", "", f64::from(node.passed + failures)), &name));
        for (check, (count, line)) in node.failed {
            found.push(
                on(Found::value("import", "nhc_failures", "", f64::from(count)), &name)
                    .param("check", check)
                    .at(format!("line:{line}")),
            );
        }
        if let Some((passed, line, message)) = node.last {
            let one = on(flag("health_verdict", passed), &name)
                .param("status", if passed { "pass" } else { "fail" })
                .at(format!("line:{line}"));
            found.push(if message.is_empty() { one } else { one.remark(message) });
        }
    }
    let notes = vec!["NHC's log says no version; the words of 1.4 and 1.5 are known".to_owned()];
    Ok(Imported { tool: "LBNL NHC".to_owned(), found, notes })
}

/// The host of a syslog line: `Nov 30 23:00:01 n1 nhc[77]: ...` or `2026-11-30T23:00:01+00:00 n1 nhc: ...`.
fn host(line: &str) -> Option<&str> {
    let words: Vec<&str> = line.split_whitespace().take(5).collect();
    let program = words.iter().position(|word| word.starts_with("nhc[") || *word == "nhc:")?;
    let before = words.get(program.checked_sub(1)?)?;
    let time = words.get(program.checked_sub(2)?)?;
    let stamp = time.contains(':') && time.bytes().next().is_some_and(|byte| byte.is_ascii_digit());
    stamp.then_some(*before)
}
