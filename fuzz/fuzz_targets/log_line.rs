//! Log lines of any tool.

#![no_main]

use healthcheck::explain;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(found) = explain::log(data) else { panic!("memory cannot fail to be read") };
    let text = found.render();
    assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{text:?}");
    for event in &found.events {
        assert!((1..=found.lines).contains(&event.line) && event.line <= event.last_line && event.count > 0);
    }
});
