//! AMD GPUs from amdgpu's sysfs. Reading hwmon or RAS counts can wait for firmware, so this runs in a child.

use std::collections::BTreeMap;
use std::path::Path;

use super::{answer, gpu_metrics, pci, read_number, read_trimmed};
use crate::facts::{AmdGpu, AmdMetrics, BadPages, RasCount, Reading, Temperature};

/// PCI vendor id of AMD.
const AMD: &str = "0x1002";
/// PCI classes of AMD's data-centre GPUs: processing accelerator, display controller without a display.
const CLASSES: [&str; 2] = ["0x1200", "0x0380"];
/// Ending of the files with RAS counts.
const COUNT_FILE: &str = "_err_count";

/// The driver is loaded, so there may be something to read.
pub fn is_loaded(sysfs: &Path) -> bool {
    sysfs.join("module/amdgpu").is_dir()
}

/// Body of the child: `root` is sysfs.
pub fn child(root: &Path) {
    answer(&read(root));
}

/// All AMD GPUs by address.
pub fn read(sysfs: &Path) -> Reading<Vec<AmdGpu>> {
    let bus = sysfs.join("bus/pci/devices");
    let entries = match std::fs::read_dir(&bus) {
        Ok(d) => d,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Reading::Value(Vec::new()),
        Err(e) => return Reading::Unknown(format!("{} cannot be read: {e}", bus.display())),
    };
    let mut gpus: Vec<AmdGpu> = entries
        .flatten()
        .filter(|e| {
            let is = |file: &str, want: &[&str]| {
                read_trimmed(&e.path().join(file)).is_some_and(|v| want.iter().any(|w| v.starts_with(w)))
            };
            is("vendor", &[AMD]) && is("class", &CLASSES)
        })
        .map(|e| gpu(&e.path(), e.file_name().to_string_lossy().to_lowercase()))
        .collect();
    gpus.sort_by(|a, b| a.pci.cmp(&b.pci));
    Reading::Value(gpus)
}

fn gpu(dir: &Path, pci: String) -> AmdGpu {
    let bound = std::fs::read_link(dir.join("driver"))
        .is_ok_and(|to| to.file_name().is_some_and(|name| name == "amdgpu"));
    AmdGpu {
        pci,
        device_id: read_trimmed(&dir.join("device")).map_or(Reading::Unsupported, Reading::Value),
        bound,
        config_all_ones: pci::config_all_ones(&dir.join("config")),
        width: read_number(&dir.join("current_link_width")),
        max_width: read_number(&dir.join("max_link_width")),
        ras: ras(&dir.join("ras")),
        bad_pages: bad_pages(&dir.join("ras/gpu_vram_bad_pages")),
        temperatures: temperatures(&dir.join("hwmon")),
        hive: read_trimmed(&dir.join("xgmi_hive_info/xgmi_hive_id"))
            .map_or(Reading::Unsupported, Reading::Value),
        metrics: metrics(&dir.join("gpu_metrics")),
    }
}

fn metrics(path: &Path) -> Reading<AmdMetrics> {
    match std::fs::read(path) {
        Ok(bytes) => gpu_metrics::parse(&bytes),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Reading::Unsupported,
        // The driver's answer where the firmware has none.
        Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => Reading::Unsupported,
        Err(e) => Reading::Unknown(format!("{} cannot be read: {e}", path.display())),
    }
}

/// `ras/BLOCK_err_count`: lines `ue: N` and `ce: N`. While a GPU resets the file says that it cannot be asked.
fn ras(dir: &Path) -> Reading<BTreeMap<String, RasCount>> {
    let Ok(entries) = std::fs::read_dir(dir) else { return Reading::Unsupported };
    let mut blocks = BTreeMap::new();
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(block) = name.strip_suffix(COUNT_FILE) else { continue };
        let text = match std::fs::read_to_string(entry.path()) {
            Ok(text) => text,
            Err(e) => return Reading::Unknown(format!("{} cannot be read: {e}", entry.path().display())),
        };
        let count =
            |key: &str| text.lines().find_map(|l| l.trim().strip_prefix(key)?.trim().parse::<u64>().ok());
        let (Some(ue), Some(ce)) = (count("ue:"), count("ce:")) else {
            let first = text.lines().next().unwrap_or_default();
            return Reading::Unknown(format!("{name} says \"{first}\""));
        };
        blocks.insert(block.to_string(), RasCount { ue, ce });
    }
    if blocks.is_empty() { Reading::Unsupported } else { Reading::Value(blocks) }
}

/// `gpu_vram_bad_pages`: lines `0xADDRESS : 0xSIZE : FLAG`, R reserved, P pending, F could not be reserved.
fn bad_pages(path: &Path) -> Reading<BadPages> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Reading::Unsupported,
        Err(e) => return Reading::Unknown(format!("{} cannot be read: {e}", path.display())),
    };
    let mut pages = BadPages::default();
    for line in text.lines() {
        match line.rsplit(':').next().map(str::trim) {
            Some("R") => pages.reserved += 1,
            Some("P") => pages.pending += 1,
            Some("F") => pages.failed += 1,
            // A later driver may have more to say.
            _ => {}
        }
    }
    Reading::Value(pages)
}

fn temperatures(dir: &Path) -> BTreeMap<String, Temperature> {
    let mut all = BTreeMap::new();
    for chip in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        for n in 1..=8 {
            let number = |what: &str| read_number::<i64>(&chip.path().join(format!("temp{n}_{what}")));
            let Some(label) = read_trimmed(&chip.path().join(format!("temp{n}_label"))) else { continue };
            if let Reading::Value(now) = number("input") {
                all.insert(label, Temperature { now, critical: number("crit").value().copied() });
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_of_amdgpu() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("bus/pci/devices/0000:05:00.0");
        let put = |path: &str, text: &str| {
            let path = dir.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        put("vendor", "0x1002\n");
        put("class", "0x120000\n");
        put("current_link_width", "8\n");
        put("max_link_width", "16\n");
        std::fs::write(dir.join("config"), [0xff; 64]).unwrap();
        put("ras/umc_err_count", "ue: 0\nce: 12\nde: 3\n");
        put("ras/gfx_err_count", "ue: 1\nce: 0\n");
        put("ras/features", "feature mask: 0x7fff\n");
        put("ras/gpu_vram_bad_pages", "0x00000001 : 0x00001000 : R\n0x00000002 : 0x00001000 : P\n");
        put("hwmon/hwmon3/temp2_label", "junction\n");
        put("hwmon/hwmon3/temp2_input", "45000\n");
        put("hwmon/hwmon3/temp2_crit", "110000\n");
        put("xgmi_hive_info/xgmi_hive_id", "1234\n");
        std::os::unix::fs::symlink("../../../bus/pci/drivers/amdgpu", dir.join("driver")).unwrap();
        // A CPU's own bridge is no GPU.
        let other = root.path().join("bus/pci/devices/0000:00:00.0");
        std::fs::create_dir_all(&other).unwrap();
        std::fs::write(other.join("vendor"), "0x1002\n").unwrap();
        std::fs::write(other.join("class"), "0x060000\n").unwrap();

        let Reading::Value(gpus) = read(root.path()) else { panic!("not read") };
        assert_eq!(gpus.len(), 1);
        let g = &gpus[0];
        assert!(g.bound);
        assert_eq!((g.config_all_ones.clone(), g.width.clone()), (Reading::Value(true), Reading::Value(8)));
        let ras = g.ras.value().unwrap();
        assert_eq!(ras["umc"], RasCount { ue: 0, ce: 12 });
        assert_eq!((ras["gfx"].ue, ras.len()), (1, 2));
        let pages = BadPages { reserved: 1, pending: 1, failed: 0 };
        assert_eq!(g.bad_pages, Reading::Value(pages));
        assert_eq!(g.temperatures["junction"], Temperature { now: 45_000, critical: Some(110_000) });
        assert_eq!(g.hive, Reading::Value("1234".into()));

        put("ras/gfx_err_count", "Query currently inaccessible\n");
        let Reading::Value(gpus) = read(root.path()) else { panic!("not read") };
        assert!(matches!(&gpus[0].ras, Reading::Unknown(why) if why.contains("inaccessible")));
        assert!(!is_loaded(root.path()));
        assert_eq!(read(&root.path().join("none")), Reading::Value(Vec::new()));
    }
}
