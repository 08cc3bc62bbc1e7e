//! What dcgmi prints.

#![no_main]

use std::path::Path;

use healthcheck::config::Config;
use healthcheck::facts::Reading;
use healthcheck::mode::Mode;
use healthcheck::state::State;
use healthcheck::verdict::{REASON_MAX, Status};
use healthcheck::{check, source};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let facts = source::read_dcgm(text, text);
    let Ok(config) = Config::parse("", Path::new("x")) else { panic!("an empty file is valid") };
    let found = check::run(&facts, &config, &State::default(), Mode::Deep, 1.0);
    for f in found.findings.iter().filter(|f| f.token.starts_with("dcgm")) {
        let reason = f.reason();
        assert!(reason.len() <= REASON_MAX && reason.is_ascii() && !reason.contains('\n'), "{reason}");
        assert!(f.check != "gpu.dcgm" || !f.drains(), "{f:?}");
    }
    // No text at all is a pass only if tests passed.
    let passed = found.checks.iter().any(|c| c.check == "act.dcgm" && c.status == Status::Pass);
    let ran =
        matches!(&facts.dcgm_diag, Some(Reading::Value(d)) if d.tests.iter().any(|t| t.status == "pass"));
    assert!(!passed || ran, "{text}");
});
