//! NHC's configuration.

#![no_main]

use std::path::Path;

use healthcheck::config::Config;
use healthcheck::nhc::import;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let imported = import(text, "n17");
    let turned = imported.render("nhc.conf", "n17");
    if let Err(e) = Config::parse(&turned, Path::new("x")) {
        panic!("{e}\n{turned}");
    }
});
