//! Which children a mode needs for the fabric, the host and the disks, and what their answers become.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use super::child::{Outcome, Probe};
use super::{disks, from_json, host, read_trimmed, services};
use crate::config::Config;
use crate::facts::{NodeFacts, NvmeSmart, Reading};
use crate::mode::Mode;
use crate::state::write_atomic;

/// Children of this part, in the order in which they were started.
pub struct Started {
    names: Vec<&'static str>,
    units: Vec<String>,
    /// NVMe's health pages, read not long ago.
    smart: Option<Pages>,
    /// What is read may be kept for the next passes.
    keeps: bool,
}

/// NVMe's health pages by controller.
type Pages = BTreeMap<String, Reading<NvmeSmart>>;

/// File in `run_dir` with the health pages read last.
const SMART: &str = "smart.json";
/// Age after which they are read again.
const SMART_AGE: Duration = Duration::from_secs(600);

impl Started {
    /// How many.
    pub fn len(&self) -> usize {
        self.names.len()
    }
}

/// Starts what the mode needs; `start` starts this program as a child with a source's name and its roots, `ask` runs another.
pub fn start(
    config: &Config,
    mode: Mode,
    start: impl Fn(&'static str, &Path, Option<&Path>) -> Probe,
    ask: impl Fn(&'static str, &mut std::process::Command) -> Probe,
) -> (Started, Vec<Probe>) {
    let p = &config.paths;
    let slow = mode.is_slow();
    let hooks = slow || mode == Mode::Prolog;
    let units: Vec<String> = config.profile.services.iter().map(|u| full_name(u)).collect();
    let mut names = Vec::new();
    let mut probes = Vec::new();
    let mut add = |name, root: &Path, second: Option<&Path>| {
        names.push(name);
        probes.push(start(name, root, second));
    };
    if slow || (hooks && !config.profile.net_port.is_empty()) {
        add("network", &p.sysfs, None);
    }
    if hooks {
        add("functions", &p.sysfs, None);
    }
    if slow {
        add("host", &p.sysfs, Some(&p.procfs));
        add("disks", &p.sysfs, Some(&p.procfs));
    }
    // Each question is a command to the disk: watch need not ask it every 25 s.
    let known = if mode.only_looks() { None } else { remembered(&p.run_dir.join(SMART)) };
    if slow && known.is_none() {
        add("smart", &p.dev, Some(&p.sysfs));
    }
    if mode == Mode::Epilog || mode.only_looks() {
        add("shm", &p.dev, None);
    }
    if slow && !units.is_empty() && services::present() {
        names.push("systemd");
        probes.push(ask("systemd", &mut services::command(&units)));
    }
    (Started { names, units, smart: known, keeps: !mode.only_looks() }, probes)
}

/// `munge` is `munge.service`.
fn full_name(unit: &str) -> String {
    if unit.contains('.') { unit.into() } else { format!("{unit}.service") }
}

/// Facts from the answers, and what needs no child.
pub fn facts(config: &Config, started: &Started, outcomes: &[Outcome]) -> NodeFacts {
    let mut facts = NodeFacts::default();
    let mut smart = started.smart.clone().map_or(Reading::Unsupported, Reading::Value);
    if started.units.is_empty() || !services::present() {
        facts.services = Reading::Unsupported;
    }
    for (name, outcome) in started.names.iter().zip(outcomes) {
        match *name {
            "network" => facts.net = from_json(outcome),
            "functions" => facts.functions = from_json(outcome),
            "host" => host_facts(&mut facts, from_json(outcome)),
            "disks" => match from_json::<disks::Disks>(outcome) {
                Reading::Value(d) => (facts.nvme, facts.raid) = (d.nvme, d.raid),
                other => (facts.nvme, facts.raid) = (missing(&other), missing(&other)),
            },
            "smart" => smart = from_json(outcome),
            "shm" => facts.shm = from_json(outcome),
            _ => facts.services = services::result(outcome, &started.units),
        }
    }
    if let (Reading::Value(pages), true, None) = (&smart, started.keeps, &started.smart) {
        remember(&config.paths.run_dir.join(SMART), pages);
    }
    if let Reading::Value(disks) = &mut facts.nvme {
        for (name, disk) in disks {
            disk.smart = match &smart {
                Reading::Value(pages) => pages.get(name).cloned().unwrap_or(Reading::Unsupported),
                other => missing(other),
            };
        }
    }
    let module = config.paths.sysfs.join("module");
    let asked = config.profile.modules.iter().flat_map(|m| m.split('|'));
    // Without the folder nothing is known of any module.
    let asked = asked.filter(|_| module.is_dir());
    facts.modules = asked.map(|m| (m.to_string(), module_loaded(&module, &config.paths.procfs, m))).collect();
    facts.mapped = mapped(&config.paths.sysfs.join("block"));
    let verdict = std::fs::metadata(config.paths.run_dir.join("verdict.json"));
    // A clock that was set back says nothing.
    let age = verdict.and_then(|m| m.modified()).ok().and_then(|t| t.elapsed().ok());
    facts.verdict_age = age.map(|a| a.as_secs_f64());
    facts.verdict_interval =
        std::fs::read_to_string(&config.slurm.conf).ok().and_then(|text| interval(&text));
    facts
}

fn host_facts(facts: &mut NodeFacts, host: Reading<host::Host>) {
    match host {
        Reading::Value(h) => {
            facts.virtual_machine = h.virtual_machine;
            facts.edac = h.edac;
            facts.clock = h.clock;
            facts.clocksource = h.clocksource;
            facts.cpus = h.cpus;
            facts.governors = h.governors;
            facts.processes = h.processes;
        }
        other => {
            facts.virtual_machine = missing(&other);
            facts.edac = missing(&other);
            facts.clock = missing(&other);
            facts.clocksource = missing(&other);
            facts.cpus = missing(&other);
            facts.processes = missing(&other);
        }
    }
}

/// `HealthCheckInterval` of slurm.conf's text, in seconds, where its program runs in every state of the node.
fn interval(conf: &str) -> Option<f64> {
    let value = |key: &str| {
        let of = |line: &str| {
            let (name, value) = line.split('#').next()?.split_once('=')?;
            name.trim().eq_ignore_ascii_case(key).then(|| value.trim().to_string())
        };
        // Slurm goes by the last one.
        conf.lines().rev().find_map(of)
    };
    let always =
        value("HealthCheckNodeState").is_none_or(|s| s.split(',').any(|s| s.eq_ignore_ascii_case("ANY")));
    value("HealthCheckInterval")?.parse().ok().filter(|seconds: &f64| always && *seconds > 0.0)
}

/// The pages that another pass of this boot read less than [`SMART_AGE`] ago.
fn remembered(path: &Path) -> Option<Pages> {
    let age = std::fs::metadata(path).ok()?.modified().ok()?.elapsed().ok()?;
    if age > SMART_AGE {
        return None;
    }
    serde_json::from_str(&std::fs::read_to_string(path).ok()?).ok()
}

/// Without the file the next pass asks again; nothing worse.
fn remember(path: &Path, pages: &Pages) {
    if let Ok(text) = serde_json::to_string(pages) {
        let _ = write_atomic(path, text.as_bytes(), 0o600, None);
    }
}

/// Why one reading failed, for those that came with it.
fn missing<T, U>(reading: &Reading<T>) -> Reading<U> {
    match reading {
        Reading::Hung(why) => Reading::Hung(why.clone()),
        Reading::Unknown(why) => Reading::Unknown(why.clone()),
        Reading::Value(_) | Reading::Unsupported => Reading::Unsupported,
    }
}

/// A module that is loaded or built in. `dma_buf` is no module: NVIDIA's open driver and `ib_uverbs` do it together.
fn module_loaded(folder: &Path, procfs: &Path, name: &str) -> bool {
    if name == "dma_buf" {
        let version = read_trimmed(&procfs.join("driver/nvidia/version")).unwrap_or_default();
        return version.contains("Open Kernel Module") && folder.join("ib_uverbs").is_dir();
    }
    let dir = folder.join(name);
    // A module that is just loading or going has another state.
    dir.is_dir() && read_trimmed(&dir.join("initstate")).is_none_or(|s| s == "live")
}

fn mapped(block: &Path) -> BTreeMap<String, String> {
    let entries = std::fs::read_dir(block).into_iter().flatten().flatten();
    entries
        .filter_map(|e| {
            let name = e.file_name().into_string().ok().filter(|n| n.starts_with("dm-"))?;
            Some((name, read_trimmed(&e.path().join("dm/name"))?))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_of_slurm_conf() {
        let conf =
            "ClusterName=a\nHealthCheckProgram = /x\n# HealthCheckInterval=7\nhealthcheckinterval = 30 # s\n";
        assert_eq!(interval(conf), Some(30.0));
        assert_eq!(interval(&format!("{conf}HealthCheckNodeState=ANY,CYCLE\n")), Some(30.0));
        assert_eq!(interval(&format!("{conf}HealthCheckNodeState=IDLE\n")), None, "a long job is no silence");
        for none in ["", "HealthCheckInterval=0\n", "HealthCheckInterval=soon\n"] {
            assert_eq!(interval(none), None, "{none}");
        }
    }

    #[test]
    fn health_pages_are_kept_for_ten_minutes_and_no_longer() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(SMART);
        assert_eq!(remembered(&path), None);
        let page = NvmeSmart { used_percent: 9, ..NvmeSmart::default() };
        let pages = Pages::from([("nvme0".to_string(), Reading::Value(page))]);
        remember(&path, &pages);
        assert_eq!(remembered(&path), Some(pages));
        let old = std::time::SystemTime::now() - SMART_AGE - Duration::from_secs(1);
        std::fs::File::options().write(true).open(&path).unwrap().set_modified(old).unwrap();
        assert_eq!(remembered(&path), None);
        std::fs::write(&path, "{half").unwrap();
        assert_eq!(remembered(&path), None);
    }
}
