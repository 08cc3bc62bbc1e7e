//! Sources: where facts come from. Everything impure of a pass is here, each part under its own deadline.
//!
//! What can hang (NVML, InfiniBand sysfs, PCI config space, network mounts, site commands) runs in child
//! processes: this program started again with [`CHILD_ARG`]. The rest is read in this process.

mod amdgpu;
pub mod child;
mod command;
mod cuda;
mod dcgm_diag;
mod dcgmi;
pub mod disks;
pub mod functions;
pub mod gpu_metrics;
mod gpu_node;
pub mod host;
pub mod infiniband;
mod mounts;
pub mod network;
mod node;
mod nvml;
mod nvml_details;
mod nvml_raw;
mod pci;
pub mod services;
pub mod smart;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;

use crate::config::Config;
use crate::facts::{Facts, NodeFacts, Reading};
use crate::jobs;
use crate::mode::Mode;
use crate::state::make_private_dir;
use crate::sys;
use child::{Ended, Meanwhile, Outcome, Probe, Resident};
pub(crate) use gpu_node::job_of_process;

/// There when systemd is this machine's service manager.
const SYSTEMD: &str = "/run/systemd/system";
/// Longest wait for contexts and copies on all GPUs.
const CUDA_LIMIT: Duration = Duration::from_secs(10);

/// First argument of a program started as the child of a source; the second is the source's name, the third its root.
pub const CHILD_ARG: &str = "__source";

/// Fourth argument of the NVML child in the hooks: leave out what only slow passes need.
const BRIEF: &str = "brief";
/// Fourth argument of the child of a mount that jobs write to.
const WRITES: &str = "writes";

/// To be called first in `main` of every program that runs a pass: when this process is the child of a
/// source it does that source's work and returns its exit code.
#[must_use]
pub fn child_main() -> Option<ExitCode> {
    let mut args = std::env::args_os().skip(1);
    if args.next()? != CHILD_ARG {
        return None;
    }
    let name = args.next().unwrap_or_default();
    let root = args.next().unwrap_or_default();
    let root = Path::new(&root);
    let second = args.next().unwrap_or_default();
    let second = Path::new(&second);
    match name.to_str() {
        Some("nvml") => nvml::child(root, second != Path::new(BRIEF)),
        Some("cuda") => cuda::child(root),
        Some("amdgpu") => amdgpu::child(root),
        Some("dcgmi") => dcgmi::child(root),
        Some("dcgm-diag") => dcgm_diag::child(root, &second.to_string_lossy()),
        Some("nvml-resident") => nvml::resident(root),
        Some("infiniband") => infiniband::child(root, false),
        Some("infiniband-all") => infiniband::child(root, true),
        Some("network") => network::child(root),
        Some("functions") => functions::child(root),
        Some("host") => host::child(root, second),
        Some("disks") => disks::child(root, second),
        Some("smart") => smart::child(root, second),
        Some("shm") => host::shm_child(root),
        Some("pci") => pci::child(root),
        Some("mount") => return Some(mounts::child(root, second == Path::new(WRITES))),
        _ => return Some(ExitCode::from(2)),
    }
    Some(ExitCode::SUCCESS)
}

/// Reads every source that the mode and the profile ask for, except the kernel log, which needs the state.
#[must_use]
pub fn read(config: &Config, mode: Mode) -> Facts {
    read_with(config, mode, None, &mut Meanwhile { fds: Vec::new(), work: &mut || {} })
}

/// As [`read`], with an NVML child that stays between passes, while other work goes on.
#[must_use]
pub fn read_with(
    config: &Config,
    mode: Mode,
    resident: Option<&mut Resident>,
    meanwhile: &mut Meanwhile<'_>,
) -> Facts {
    let limit = config.deadlines.source(mode);
    // Of this boot, and to be had when the disk is not. The folder can be missing: then no mark is kept.
    let outstanding = config.paths.run_dir.join("outstanding");
    let outstanding = if mode.only_looks() {
        Some(outstanding).filter(|dir| dir.is_dir())
    } else {
        make_private_dir(&outstanding).is_ok().then_some(outstanding)
    };
    let own_with = |name: &str, root: &Path, more: Option<&OsStr>, label: &str, limit: Duration| -> Probe {
        match std::env::current_exe() {
            Ok(exe) => child::start(
                label,
                sys::die_with_parent(Command::new(exe).arg(CHILD_ARG).arg(name).arg(root).args(more)),
                limit,
                outstanding.as_deref(),
            ),
            Err(e) => child::start(label, &mut Command::new(format!("(own program: {e})")), limit, None),
        }
    };
    let own = |name: &str, root: &Path, label: &str| own_with(name, root, None, label, limit);
    let slow = mode.is_slow();
    let nvml = match (resident, std::env::current_exe()) {
        (Some(resident), Ok(exe)) => {
            let mut command = Command::new(exe);
            command.args([CHILD_ARG, "nvml-resident"]).arg(&config.paths.nvml);
            resident.ask("nvml", sys::die_with_parent(&mut command), limit, outstanding.as_deref())
        }
        _ => {
            let brief = (!slow).then_some(OsStr::new(BRIEF));
            own_with("nvml", &config.paths.nvml, brief, "nvml", limit)
        }
    };
    let mut probes = vec![
        nvml,
        own("pci", &config.paths.sysfs, "pci"),
        own(if slow { "infiniband-all" } else { "infiniband" }, &config.paths.sysfs, "infiniband"),
    ];
    let fixed = probes.len();
    // A job's hook does not wait for a file server: it has no check that asks for the answer.
    let network: Vec<_> = config.profile.mount.iter().filter(|m| m.network && slow).collect();
    for mount in &network {
        let writes = mount.writable.then_some(OsStr::new(WRITES));
        probes.push(own_with("mount", &mount.path, writes, &mounts::label(&mount.path), limit));
    }
    let commands: Vec<_> = config.command.iter().filter(|c| c.modes.contains(&mode)).collect();
    for c in &commands {
        // Whatever the site wants, the whole pass has its own end.
        let limit = Duration::from_millis(c.timeout).min(config.deadlines.sources(mode));
        let label = format!("site-{}", c.name);
        let mut command = Command::new(&c.path);
        sys::die_with_parent(command.args(&c.args));
        probes.push(child::start(&label, &mut command, limit, outstanding.as_deref()));
    }
    let (node, of_node) = node::start(
        config,
        mode,
        |name, root, more| own_with(name, root, more.map(Path::as_os_str), name, limit),
        |label, command| child::start(label, sys::die_with_parent(command), limit, outstanding.as_deref()),
    );
    probes.extend(of_node);

    let mut asked = Vec::new();
    if slow && config.profile.gpu.fabric_manager != Some(false) && Path::new(SYSTEMD).exists() {
        let mut question = gpu_node::unit_question(gpu_node::FABRIC_MANAGER);
        sys::die_with_parent(&mut question);
        probes.push(child::start("fabricmanager", &mut question, limit, outstanding.as_deref()));
        asked.push("fabricmanager");
    }
    if slow && config.profile.gpu.imex {
        let mut question = Command::new(&config.paths.imex_ctl);
        sys::die_with_parent(question.arg("-q"));
        probes.push(child::start("imex", &mut question, limit, outstanding.as_deref()));
        asked.push("imex");
    }
    if slow && config.paths.dcgmi.exists() {
        probes.push(own("dcgmi", &config.paths.dcgmi, "dcgmi"));
        asked.push("dcgmi");
    }
    if config.profile.amd.gpu_count.is_some() || amdgpu::is_loaded(&config.paths.sysfs) {
        probes.push(own("amdgpu", &config.paths.sysfs, "amdgpu"));
        asked.push("amdgpu");
    }
    // The job that this runs in may be there: active checks of an idle node are jobs.
    let own_job = std::env::var("SLURM_JOB_ID").unwrap_or_default();
    let idle = mode == Mode::Deep && jobs::list(&config.paths.run_dir).iter().all(|j| j.job == own_job);
    if idle && config.dcgm.diag_level > 0 && config.paths.dcgmi.exists() {
        let level = config.dcgm.diag_level.to_string();
        probes.push(own_with(
            "dcgm-diag",
            &config.paths.dcgmi,
            Some(OsStr::new(&level)),
            "dcgm-diag",
            config.dcgm.diag_limit(),
        ));
        asked.push("dcgm-diag");
    }
    // A context on a GPU in use would take memory from its job, or be refused.
    if idle {
        let limit = CUDA_LIMIT.min(config.deadlines.sources(mode));
        probes.push(own_with("cuda", &config.paths.cuda, None, "cuda", limit));
        asked.push("cuda");
    }

    // These are cheap and cannot hang: read them while the children work.
    let mut facts = Facts {
        boot_id: boot_id(&config.paths.procfs),
        uptime: uptime(&config.paths.procfs),
        gpu_nodes: pci::device_nodes(&config.paths.dev),
        mounts: mounts::table(&config.paths.procfs),
        memory_total_kib: memory_total_kib(&config.paths.procfs),
        as_user: sys::effective_uid() != 0,
        ..Facts::default()
    };
    for s in &config.profile.space {
        facts.space.insert(s.path.display().to_string(), mounts::space(&s.path));
    }

    let outcomes: Vec<Outcome> =
        child::finish_with(probes, meanwhile).into_iter().map(|(_, outcome)| outcome).collect();
    let (fixed, rest) = outcomes.split_at(fixed);
    if let [nvml, pci, ib] = fixed {
        facts.nvml = nvml::parse(nvml);
        facts.pci = from_json(pci);
        facts.ib = from_json(ib);
    }
    let (probed, ran) = rest.split_at(network.len());
    for (mount, outcome) in network.iter().zip(probed) {
        facts.mount_probes.insert(mount.path.display().to_string(), mounts::answer(outcome));
    }
    let (ran, answers) = ran.split_at(commands.len());
    let (of_node, answers) = answers.split_at(node.len());
    facts.node = node::facts(config, &node, of_node);
    for (c, outcome) in commands.iter().zip(ran) {
        facts.commands.insert(c.name.clone(), command::result(outcome));
    }
    let asked_amd = asked.contains(&"amdgpu");
    for (what, outcome) in asked.into_iter().zip(answers) {
        match what {
            "fabricmanager" => facts.gpu_node.fabric_manager = Some(gpu_node::unit_state(outcome)),
            "dcgmi" => facts.dcgm = Some(from_json(outcome)),
            "dcgm-diag" => facts.dcgm_diag = Some(from_json(outcome)),
            "imex" => facts.gpu_node.imex = Some(gpu_node::imex_state(outcome)),
            "amdgpu" => facts.amd = from_json(outcome),
            _ => facts.gpu_node.usable = Some(cuda::parse(outcome)),
        }
    }
    if !asked_amd {
        facts.amd = Reading::Unsupported;
    }
    facts.gpu_node.module_version = gpu_node::module_version(&config.paths.sysfs);
    facts.gpu_node.imex_channels = gpu_node::imex_channels(&config.paths.dev);
    // This looks at every process.
    if mode == Mode::Epilog || mode.only_looks() {
        facts.gpu_node.mps = Some(gpu_node::mps_daemons(&config.paths.procfs));
    }
    gpu_node::attribute_processes(&mut facts, &config.paths.procfs, &config.paths.state_dir);
    facts.counters = counters(&facts);
    facts
}

/// What `dcgmi health -j` and `dcgmi diag -j` say, from their text: for the fuzz targets.
#[doc(hidden)]
#[must_use]
pub fn read_dcgm(health: &str, diag: &str) -> Facts {
    Facts {
        dcgm: Some(dcgmi::parse(health).map_or_else(Reading::Unknown, Reading::Value)),
        dcgm_diag: Some(dcgm_diag::parse(diag)),
        ..Facts::default()
    }
}

/// What the trees `sys` and `proc` below a folder show, read in this process: for the fuzz targets.
#[doc(hidden)]
#[must_use]
pub fn read_tree(root: &Path) -> Facts {
    let (sysfs, procfs) = (root.join("sys"), root.join("proc"));
    let (host, mut disks) = (host::read(&sysfs, &procfs), disks::read(&sysfs, &procfs));
    if let Reading::Value(nvme) = &mut disks.nvme {
        for (name, page) in smart::read(&root.join("dev"), &sysfs) {
            nvme.entry(name).or_default().smart = page;
        }
    }
    let mut facts = Facts {
        boot_id: boot_id(&procfs),
        uptime: uptime(&procfs),
        pci: pci::read(&sysfs),
        ib: infiniband::read(&sysfs, true),
        amd: amdgpu::read(&sysfs),
        node: NodeFacts {
            net: network::read(&sysfs),
            functions: functions::read(&sysfs),
            nvme: disks.nvme,
            raid: disks.raid,
            edac: host.edac,
            cpus: host.cpus,
            governors: host.governors,
            processes: host.processes,
            ..NodeFacts::default()
        },
        mounts: mounts::table(&procfs),
        memory_total_kib: memory_total_kib(&procfs),
        ..Facts::default()
    };
    facts.counters = counters(&facts);
    facts
}

/// Files of a port's `counters/` that rules watch.
const IB_COUNTERS: [&str; 8] = [
    "link_downed",
    "symbol_error",
    "port_rcv_errors",
    "link_error_recovery",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
    "port_xmit_discards",
    "VL15_dropped",
];
/// Files of a port's `hw_counters/` that rules watch.
const IB_HW_COUNTERS: [&str; 6] = [
    "local_ack_timeout_err",
    "rnr_nak_retry_err",
    "roce_slow_restart",
    "out_of_sequence",
    "np_cnp_sent",
    "rp_cnp_handled",
];

/// Every counter whose rise within a window some rule asks for, by name.
fn counters(facts: &Facts) -> BTreeMap<String, u64> {
    let mut all = BTreeMap::new();
    for (port, p) in facts.ib.value().into_iter().flatten() {
        let read = |names: &[&str], from: &BTreeMap<String, u64>| -> Vec<(String, u64)> {
            names.iter().filter_map(|n| Some((format!("ib/{port}/{n}"), *from.get(*n)?))).collect()
        };
        all.extend(read(&IB_COUNTERS, &p.counters));
        all.extend(read(&IB_HW_COUNTERS, &p.hw_counters));
    }
    for (name, port) in facts.node.net.value().into_iter().flatten().filter(|(_, p)| p.pci.is_some()) {
        all.extend(port.carrier_down_count.value().map(|n| (format!("net/{name}/carrier_down_count"), *n)));
    }
    for (pci, f) in facts.node.functions.value().into_iter().flatten() {
        for (name, count) in [("correctable", &f.correctable), ("nonfatal", &f.nonfatal), ("fatal", &f.fatal)]
        {
            all.extend(count.value().map(|n| (format!("aer/{pci}/{name}"), *n)));
        }
    }
    for (name, disk) in facts.node.nvme.value().into_iter().flatten() {
        all.extend(disk.smart.value().map(|s| (format!("nvme/{name}/media_errors"), s.media_errors)));
    }
    for (name, mc) in facts.node.edac.value().into_iter().flatten() {
        all.extend(mc.corrected.value().map(|n| (format!("edac/{name}/corrected"), *n)));
        all.extend(mc.uncorrectable.value().map(|n| (format!("edac/{name}/uncorrectable"), *n)));
    }
    for gpu in facts.nvml.value().map_or(&[][..], |n| &n.gpus) {
        if let (Some(pci), Some(d)) = (gpu.pci.value(), &gpu.details) {
            let counts = d.counters();
            all.extend(counts.into_iter().map(|(name, value)| (format!("gpu/{pci}/{name}"), value)));
        }
        for (name, count) in [("ecc_sram_ue", &gpu.ecc_sram_ue), ("ecc_dram_ue", &gpu.ecc_dram_ue)] {
            let named = |pci: &String| Some((format!("gpu/{pci}/{name}"), *count.value()?));
            all.extend(gpu.pci.value().and_then(named));
        }
    }
    for gpu in facts.amd.value().into_iter().flatten() {
        if let Some(ras) = gpu.ras.value() {
            all.insert(format!("amd/{}/ras_ce", gpu.pci), ras.values().map(|n| n.ce).sum());
            all.insert(format!("amd/{}/ras_ue", gpu.pci), ras.values().map(|n| n.ue).sum());
        }
        if let Some(m) = gpu.metrics.value() {
            let of = |name: &str| format!("amd/{}/{name}", gpu.pci);
            all.extend(m.cycles.map(|n| (of("cycles"), n)));
            all.extend(m.residencies.iter().map(|(cause, n)| (of(cause), *n)));
        }
    }
    all
}

/// Reads a source's JSON; a child that failed in any way makes the reading unknown, with the reason.
fn from_json<T: serde::de::DeserializeOwned>(outcome: &Outcome) -> Reading<T> {
    match &outcome.ended {
        Ended::Exit(Some(0)) => match serde_json::from_str(&outcome.stdout) {
            Ok(reading) => reading,
            Err(e) => Reading::Unknown(format!("its answer is not understood: {e}")),
        },
        other => failed(other),
    }
}

fn failed<T>(ended: &Ended) -> Reading<T> {
    match ended {
        Ended::Deadline(why) => Reading::Hung(why.clone()),
        Ended::NotStarted(why) => Reading::Unknown(why.clone()),
        Ended::Exit(Some(code)) => Reading::Unknown(format!("its child ended with exit code {code}")),
        Ended::Exit(None) => Reading::Unknown("its child was ended by a signal".into()),
    }
}

/// Prints a child's answer. Nobody listens any more when this fails.
fn answer(value: &impl serde::Serialize) {
    use std::io::Write;
    if let Ok(text) = serde_json::to_string(value) {
        let _ = writeln!(std::io::stdout().lock(), "{text}");
    }
}

/// Reads a small file, trimmed; `None` when it is not there or not readable.
fn read_trimmed(path: &Path) -> Option<String> {
    std::fs::read_to_string(path).ok().map(|t| t.trim().to_string())
}

/// Name of the PCI function behind a `device` link, in lower case.
fn pci_function(link: &Path) -> Option<String> {
    let real = std::fs::canonicalize(link).ok()?;
    let name = real.file_name()?.to_str()?.to_lowercase();
    crate::xid::normalise_pci(&name).map(|_| name)
}

/// Reads a number that may be followed by text (`4: ACTIVE`, `400 Gb/sec (4X NDR)`).
fn read_number<T: std::str::FromStr>(path: &Path) -> Reading<T> {
    match std::fs::read_to_string(path) {
        Ok(text) => match text.trim().split([':', ' ']).next().and_then(|w| w.parse().ok()) {
            Some(n) => Reading::Value(n),
            None => Reading::Unknown(format!("{} holds \"{}\", not a number", path.display(), text.trim())),
        },
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Reading::Unsupported,
        Err(e) => Reading::Unknown(format!("{} cannot be read: {e}", path.display())),
    }
}

/// Kernel boot id; empty when it cannot be read.
#[must_use]
pub fn boot_id(procfs: &Path) -> String {
    read_trimmed(&procfs.join("sys/kernel/random/boot_id")).unwrap_or_default()
}

fn uptime(procfs: &Path) -> f64 {
    read_trimmed(&procfs.join("uptime"))
        .and_then(|t| t.split_whitespace().next().and_then(|w| w.parse().ok()))
        .unwrap_or(0.0)
}

fn memory_total_kib(procfs: &Path) -> Reading<u64> {
    let path = procfs.join("meminfo");
    match std::fs::read_to_string(&path) {
        Ok(text) => text
            .lines()
            .find_map(|l| l.strip_prefix("MemTotal:"))
            .and_then(|r| r.split_whitespace().next()?.parse().ok())
            .map_or_else(|| Reading::Unknown(format!("{} has no MemTotal", path.display())), Reading::Value),
        Err(e) => Reading::Unknown(format!("{} cannot be read: {e}", path.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_with_text_behind_them() {
        let dir = tempfile::tempdir().unwrap();
        let f = dir.path().join("f");
        for (text, want) in [("4: ACTIVE\n", Reading::Value(4u32)), ("16\n", Reading::Value(16))] {
            std::fs::write(&f, text).unwrap();
            assert_eq!(read_number::<u32>(&f), want);
        }
        std::fs::write(&f, "400 Gb/sec (4X NDR)\n").unwrap();
        assert_eq!(read_number::<f64>(&f), Reading::Value(400.0));
        std::fs::write(&f, "N/A (no PMA)").unwrap();
        assert!(matches!(read_number::<u32>(&f), Reading::Unknown(_)));
        assert_eq!(read_number::<u32>(&dir.path().join("none")), Reading::Unsupported);
    }

    #[test]
    fn meminfo() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("meminfo"), "MemTotal:       2113384448 kB\nMemFree: 1 kB\n").unwrap();
        assert_eq!(memory_total_kib(dir.path()), Reading::Value(2_113_384_448));
        assert!(matches!(memory_total_kib(&dir.path().join("x")), Reading::Unknown(_)));
    }
}
