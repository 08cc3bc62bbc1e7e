//! Which children a mode needs for the fabric, the host and the disks, and what their answers become.

use std::path::Path;

use super::child::{Outcome, Probe};
use super::{disks, from_json, host, read_trimmed, services};
use crate::config::Config;
use crate::facts::{NodeFacts, Reading};
use crate::mode::Mode;

/// Children of this part, in the order in which they were started.
pub struct Started {
    names: Vec<&'static str>,
    units: Vec<String>,
}

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
    if mode == Mode::Epilog || mode.only_looks() {
        add("shm", &p.dev, None);
    }
    if slow && !units.is_empty() && services::present() {
        names.push("systemd");
        probes.push(ask("systemd", &mut services::command(&units)));
    }
    (Started { names, units }, probes)
}

/// `munge` is `munge.service`.
fn full_name(unit: &str) -> String {
    if unit.contains('.') { unit.into() } else { format!("{unit}.service") }
}

/// Facts from the answers, and what needs no child.
pub fn facts(config: &Config, started: &Started, outcomes: &[Outcome]) -> NodeFacts {
    let mut facts = NodeFacts::default();
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
            "shm" => facts.shm = from_json(outcome),
            _ => facts.services = services::result(outcome, &started.units),
        }
    }
    let module = config.paths.sysfs.join("module");
    let asked = config.profile.modules.iter().flat_map(|m| m.split('|'));
    facts.modules = asked.map(|m| (m.to_string(), module_loaded(&module, &config.paths.procfs, m))).collect();
    facts.mapped = mapped(&config.paths.sysfs.join("block"));
    let verdict = std::fs::metadata(config.paths.run_dir.join("verdict.json"));
    // A clock that was set back says nothing.
    let age = verdict.and_then(|m| m.modified()).ok().and_then(|t| t.elapsed().ok());
    facts.verdict_age = age.map(|a| a.as_secs_f64());
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

fn mapped(block: &Path) -> std::collections::BTreeMap<String, String> {
    let entries = std::fs::read_dir(block).into_iter().flatten().flatten();
    entries
        .filter_map(|e| {
            let name = e.file_name().into_string().ok().filter(|n| n.starts_with("dm-"))?;
            Some((name, read_trimmed(&e.path().join("dm/name"))?))
        })
        .collect()
}
