//! The configuration file.

#![no_main]

use std::path::Path;

use healthcheck::config::Config;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Err(e) = Config::parse(text, Path::new("/etc/x.toml")) {
        assert!(e.to_string().starts_with("/etc/x.toml"), "{e}");
    }
});
