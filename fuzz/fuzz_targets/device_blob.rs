//! Binary pages of devices: amdgpu's gpu_metrics and NVMe's health page.

#![no_main]

use healthcheck::facts::Reading;
use healthcheck::source::{gpu_metrics, smart};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Reading::Value(m) = gpu_metrics::parse(data) {
        assert!(data.len() >= 120 && m.version.starts_with("1."), "{m:?}");
        assert!(m.xgmi_links.len() <= 8 && m.residencies.len() <= 5, "{m:?}");
    }
    if let Reading::Value(page) = smart::parse(data) {
        assert!(data.len() >= 168, "{page:?}");
    }
});
