//! The checks that the guides name are checks: an operator types them as they stand there.

#![allow(clippy::unwrap_used, reason = "in a test a failed step is the failure")]

use std::fs;
use std::path::Path;
use std::process::Command;

#[test]
fn every_check_that_a_guide_names_in_a_command_is_one() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("clustermax.toml");
    fs::write(&config, "").unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_clustermax-healthcheck"))
        .args(["list", "--node", "n1", "--config"])
        .arg(&config)
        .output()
        .unwrap();
    let list = String::from_utf8(output.stdout).unwrap();
    let known: Vec<&str> = list.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert!(known.contains(&"ib.state"), "{list}{}", String::from_utf8_lossy(&output.stderr));
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    let mut named = 0;
    for page in fs::read_dir(docs).unwrap().map(|page| page.unwrap().path()) {
        if page.extension().is_none_or(|end| end != "md") {
            continue;
        }
        let text = fs::read_to_string(&page).unwrap();
        let exempted = text.match_indices("clustermax-drain exempt ").filter_map(|(at, command)| {
            let check = text[at + command.len()..].split_whitespace().nth(1)?;
            check.contains('.').then(|| check.trim_end_matches(['`', '.', ',', ';']))
        });
        let set =
            text.match_indices("[checks.\"").filter_map(|(at, key)| text[at + key.len()..].split('"').next());
        // `*` stands for any in a page about refusals.
        for check in exempted.chain(set).filter(|check| !check.contains('*')) {
            named += 1;
            assert!(known.contains(&check), "{} names {check}, which is no check", page.display());
        }
    }
    assert!(named > 2, "only {named} found: are the guides still there?");
}
