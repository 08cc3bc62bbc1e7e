//! What benchmark programs print: nccl-tests and every other format that `clustermax read` knows. Seeds: scoring/tests/data/nccl.

#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use scoring::collect::nccl;
use scoring::read::{self, Hints};
use scoring::record::State;

fuzz_target!(|text: &str| {
    let hints = Hints { name: "all_reduce_perf.txt".to_owned(), ..Hints::default() };
    if let Ok(reading) = read::read(text, &hints) {
        for found in &reading.found {
            let measured = found.state == State::Measured;
            assert_eq!(found.value.is_some(), measured, "{found:?}");
            assert!(found.value.is_none_or(f64::is_finite), "{found:?}");
            assert!(measured || found.detail.as_deref().is_some_and(|why| !why.is_empty()), "{found:?}");
        }
        let records = read::records(&reading, Path::new("x"), "");
        assert_eq!(records.len(), reading.found.len());
    }
    let out = nccl::read(text);
    if out.state == nccl::State::Ok {
        assert!(out.wrong == 0 && out.tables == 1 && !out.rows.is_empty(), "{out:?}");
        for timing in out.rows.iter().flat_map(|row| [row.out_of_place, row.in_place]).flatten() {
            assert!(
                [timing.time, timing.algbw, timing.busbw].iter().all(|value| value.is_finite()),
                "{timing:?}"
            );
        }
    }
});
