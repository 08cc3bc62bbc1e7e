//! The profiles that are shipped.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use healthcheck::config::{Config, Profile};

fn files() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/profiles");
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    files
}

#[test]
fn every_shipped_profile_is_valid_and_names_its_sources() {
    let mut seen = BTreeSet::new();
    for file in files() {
        let text = std::fs::read_to_string(&file).unwrap();
        let config = Config::parse(&text, &file).unwrap_or_else(|e| panic!("{e}"));
        // An AMD node must not ask for NVIDIA's GPUs: NVML would count none and drain a healthy node.
        let amd = file.file_stem().is_some_and(|n| n.to_string_lossy().starts_with("mi3"));
        assert_eq!(config.profile.gpu_count.is_none(), amd, "{}", file.display());
        assert_eq!(config.profile.amd.gpu_count.is_some(), amd, "{}", file.display());
        assert_ne!(config.profile, Profile::default(), "{}", file.display());
        for line in text.lines().filter(|l| l.contains('=') && !l.starts_with('#')) {
            let source = line.split_once(" # ").map_or("", |(_, comment)| comment);
            assert!(source.len() > 10, "{}: no source: {line}", file.display());
        }
        seen.insert(file.file_stem().unwrap().to_str().unwrap().to_string());
    }
    for name in
        ["gb200-tray", "gb300-tray", "hgx-b200", "hgx-b300", "hgx-h100", "hgx-h200", "mi300x", "mi355x"]
    {
        assert!(seen.contains(name), "{name}.toml is missing");
    }
}
