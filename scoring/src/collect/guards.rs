//! Guards: what makes a figure mislead although it was measured well. Each guard is one rule over facts, with its own
//! sentence. Stage `preflight` holds what was seen before anything ran (`facts.txt`, `slurm.txt`, `torch.txt`,
//! `NODE.gpus.json`); NCCL's log and gloo's interface are looked at afterwards, in stage `collectives`, the results
//! folder's file system in stage `storage`.
//!
//! A record `guard` is 1 when the danger was looked for and is not there, 0 when it is, with the sentence; what could not
//! be looked at is unavailable. Records of figures stay as they were measured; the scorer takes the belief from those that
//! a guard says are of something else than what is rated (`load/guards.rs`).

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::Raw;
use crate::record::{Record, State};

/// A rule's answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seen {
    /// Looked for and not there; what was seen.
    Clear(String),
    /// It is there; the sentence says what it does to the figures and how to mend it.
    Misleads(String),
    /// Could not be looked at.
    Unseen(String),
}

use Seen::{Clear, Misleads, Unseen};

/// What one node told: values by key, one list a line.
pub type Facts = BTreeMap<String, Vec<Vec<String>>>;

/// Lines `cmx-pre NODE KEY VALUES`; anything else is another program's.
#[must_use]
pub fn facts(text: &str) -> BTreeMap<String, Facts> {
    let mut nodes: BTreeMap<String, Facts> = BTreeMap::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        if let ["cmx-pre", node, key, values @ ..] = &words[..] {
            let values = values.iter().map(|word| (*word).to_owned()).collect();
            nodes.entry((*node).to_owned()).or_default().entry((*key).to_owned()).or_default().push(values);
        }
    }
    nodes
}

fn line<'a, const N: usize>(facts: &'a Facts, key: &str) -> Option<[&'a str; N]> {
    let values = facts.get(key)?.first()?;
    let words: Vec<&str> = values.iter().take(N).map(String::as_str).collect();
    words.try_into().ok()
}

fn number(word: &str) -> Option<u64> {
    word.parse().ok()
}

/// What Slurm says of a node: `KEY=VALUE` words of `scontrol show node -o`, and jobs there that are not this one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Slurm {
    /// GPUs that Gres names.
    pub gpus: Option<u64>,
    /// CPUs of all jobs on the node.
    pub allocated: Option<u64>,
    /// CPUs of this job on the node.
    pub own: Option<u64>,
    /// Ids of other running jobs.
    pub jobs: Vec<String>,
}

/// `slurm.txt`: `node` lines (NODE GRES CPUALLOC OWN) and `job` lines (NODE ID).
#[must_use]
pub fn slurm(text: &str) -> BTreeMap<String, Slurm> {
    let mut nodes: BTreeMap<String, Slurm> = BTreeMap::new();
    for line in text.lines() {
        match line.split_whitespace().collect::<Vec<_>>()[..] {
            ["node", node, gres, allocated, own] => {
                let node = nodes.entry(node.to_owned()).or_default();
                node.gpus = Some(gres_gpus(gres));
                node.allocated = number(allocated);
                node.own = number(own);
            }
            ["job", node, id] => nodes.entry(node.to_owned()).or_default().jobs.push(id.to_owned()),
            _ => {}
        }
    }
    nodes
}

/// GPUs of a Gres: `gpu:h100:8(S:0-1),gpu:1` is nine.
#[must_use]
pub fn gres_gpus(gres: &str) -> u64 {
    // Commas also stand inside of parentheses: (S:0,1).
    let mut depth = 0;
    let outside: String = gres
        .chars()
        .filter(|letter| {
            match letter {
                '(' => depth += 1,
                ')' => depth -= 1,
                _ => return depth == 0,
            }
            false
        })
        .collect();
    outside
        .split(',')
        .filter(|one| one.starts_with("gpu"))
        .map(|one| one.rsplit(':').next().and_then(number).unwrap_or(1))
        .sum()
}

/// GPU work lands on GPUs: all that the job was given are there, and torch can use them.
#[must_use]
pub fn gpus(facts: &Facts, slurm: &Slurm, torch: Option<(&str, u64)>) -> Seen {
    let Some([given, visible, files]) = line(facts, "gpus") else {
        return Unseen("the node did not tell its GPUs".to_owned());
    };
    let configured = slurm.gpus.unwrap_or(0);
    let Some(given) = number(given).filter(|given| *given > 0) else {
        return if configured > 0 {
            Misleads(format!(
                "the node has {configured} GPUs and this job was given none, so every figure is of its processors; submit with \
                 --gres=gpu:{configured}"
            ))
        } else {
            Clear("the node has no GPU in Slurm and none was asked for".to_owned())
        };
    };
    let listed = visible.split(',').filter(|one| !one.is_empty()).count() as u64;
    if visible != "none" && listed < given {
        return Misleads(format!(
            "Slurm gave {given} GPUs and CUDA_VISIBLE_DEVICES lists {listed}, so figures are of fewer GPUs than were asked for; unset it \
             in the profile or prolog that sets it"
        ));
    }
    if let Some(files) = number(files).filter(|files| *files > 0 && *files < given) {
        return Misleads(format!(
            "Slurm gave {given} GPUs and the node has device files of {files}: the others fell off or their driver did not load"
        ));
    }
    match torch {
        Some(("cpu", _)) => Misleads(format!(
            "the job holds {given} GPUs a node and torch can use none, so every figure of a payload is of processors; choose a torch \
             built for these GPUs with --python"
        )),
        Some((_, usable)) if usable < given => Misleads(format!(
            "the job holds {given} GPUs a node and torch can use {usable}, so figures are of fewer GPUs than were asked for"
        )),
        _ if configured > given => Misleads(format!(
            "the node has {configured} GPUs and this job was given {given}; submit with --gres=gpu:{configured}"
        )),
        _ => Clear(format!("{given} GPUs")),
    }
}

/// Processors are not limited by a forgotten default.
#[must_use]
pub fn cpus(facts: &Facts) -> Seen {
    match line(facts, "cpus").map(|[may, all]| (number(may), number(all))) {
        Some((Some(may), Some(all))) if may < all => Misleads(format!(
            "a step may use {may} of the node's {all} processors (a CPU set of the job, or the job asked for fewer), so what needs \
             processors is slower than the node; submit with --exclusive and without -c or --cpus-per-task"
        )),
        Some((Some(_), Some(all))) => Clear(format!("all {all} processors")),
        _ => Unseen("the node did not tell its processors".to_owned()),
    }
}

/// Memory is not limited by a forgotten default such as DefMemPerCPU.
#[must_use]
pub fn memory(facts: &Facts) -> Seen {
    const GIB: f64 = (1u64 << 30) as f64;
    let Some((limit, Some(all))) = line(facts, "memory").map(|[limit, all]| (number(limit), number(all)))
    else {
        return Unseen("the node did not tell its memory".to_owned());
    };
    match limit {
        // Slurm's own reserve (MemSpecLimit, AllowedRAMSpace) takes a little.
        Some(limit) if (limit as f64) < 0.8 * all as f64 => Misleads(format!(
            "a step may use {:.1} of the node's {:.1} GiB of memory (DefMemPerCPU, DefMemPerNode or the job's --mem), so it may be \
             killed or see a smaller page cache; submit with --mem=0",
            limit as f64 / GIB,
            all as f64 / GIB
        )),
        _ => Clear(format!("{:.1} GiB, no smaller limit", all as f64 / GIB)),
    }
}

/// The fabric's device files are where the programs run.
#[must_use]
pub fn fabric_devices(facts: &Facts) -> Seen {
    let Some([inside, verbs, cards]) = line(facts, "fabric") else {
        return Unseen("the node did not tell its RDMA devices".to_owned());
    };
    let verbs = number(verbs).unwrap_or(0);
    match (cards, verbs, inside) {
        ("none", ..) => Clear("the node has no RDMA device".to_owned()),
        (cards, 0, "yes") => Misleads(format!(
            "the node has RDMA devices ({cards} ...) and this container has no /dev/infiniband, so NCCL falls back to TCP sockets; \
             mount /dev/infiniband into it (enroot: MELLANOX_VISIBLE_DEVICES=all)"
        )),
        (cards, 0, _) => Misleads(format!(
            "the node has RDMA devices ({cards} ...) and this user cannot open /dev/infiniband/uverbs*, so NCCL falls back to TCP \
             sockets; load ib_uverbs and let users open it"
        )),
        (_, verbs, _) => Clear(format!("{verbs} RDMA devices can be opened")),
    }
}

/// Nobody else is on the node.
#[must_use]
pub fn other_jobs(slurm: &Slurm) -> Seen {
    if !slurm.jobs.is_empty() {
        return Misleads(format!(
            "job {} runs on the node at the same time, so figures are of a shared node; submit with --exclusive",
            slurm.jobs.join(", ")
        ));
    }
    match (slurm.allocated, slurm.own) {
        // PrivateData hides others' jobs, but not the CPUs that they hold.
        (Some(allocated), Some(own)) if allocated > own => Misleads(format!(
            "Slurm has {allocated} of the node's CPUs in use and this job holds {own}: another job, which this user may not see, is on \
             the node; submit with --exclusive"
        )),
        (Some(_), Some(_)) => Clear("no other job".to_owned()),
        _ => Unseen("Slurm did not tell what else runs on the node".to_owned()),
    }
}

/// Nothing else works on the node: busy share of the processors while the suite waits, percent.
#[must_use]
pub fn other_load(facts: &Facts) -> Seen {
    match line(facts, "busy").and_then(|[busy]| number(busy)) {
        Some(busy) if busy >= 20 => Misleads(format!(
            "{busy} % of the node's processors were busy before anything was measured: a leftover process, a daemon or another user"
        )),
        Some(busy) => Clear(format!("{busy} % of the processors busy")),
        None => Unseen("the node did not tell how busy it is".to_owned()),
    }
}

/// Processors may run at their full clock and are not hot yet.
#[must_use]
pub fn cpu_clocks(facts: &Facts) -> Seen {
    if let Some(heat) = line(facts, "heat").and_then(|[heat]| number(heat)).filter(|heat| *heat >= 85_000) {
        return Misleads(format!("a thermal zone of the node is at {} C before anything runs", heat / 1000));
    }
    let Some(lines) = facts.get("cpufreq") else {
        return Unseen("the node does not tell its processors' clocks (no cpufreq)".to_owned());
    };
    for words in lines {
        let [most, could, _] = &words[..] else { continue };
        if let (Some(most), Some(could)) = (number(most), number(could))
            && most < could
        {
            return Misleads(format!(
                "processors are capped at {} of {} MHz (scaling_max_freq)",
                most / 1000,
                could / 1000
            ));
        }
    }
    Clear("processors may run at their full clock".to_owned())
}

/// Reasons for which NVML reports lower clocks than asked for, of those that bind before any work.
const CLOCK_EVENTS: [(u64, &str); 6] = [
    (0x2, "application clocks set by hand"),
    (0x8, "hardware slowdown"),
    (0x20, "thermal slowdown by the driver"),
    (0x40, "thermal slowdown by hardware"),
    (0x80, "power brake"),
    (0x100, "clocks for the display"),
];

fn value<'a>(map: &'a Value, key: &str) -> Option<&'a Value> {
    map.get(key)?.get("value")
}

/// GPUs as `clustermax-healthcheck facts --json` gives them; none, with the reason.
fn nvml(document: &str) -> Result<Vec<Value>, String> {
    let document: Value =
        serde_json::from_str(document).map_err(|_| "the facts about the GPUs are not complete".to_owned())?;
    let Some(nvml) = document.get("nvml").and_then(|nvml| nvml.get("value")) else {
        return Err("NVML was not asked".to_owned());
    };
    for key in ["library_missing", "refused", "hung"] {
        if let Some(why) = nvml[key].as_str() {
            return Err(format!("NVML: {why}"));
        }
    }
    Ok(nvml["gpus"].as_array().cloned().unwrap_or_default())
}

/// Nobody uses the GPUs before the run.
#[must_use]
pub fn gpu_use(document: &str) -> Seen {
    let gpus = match nvml(document) {
        Ok(gpus) if gpus.is_empty() => return Clear("no GPU".to_owned()),
        Ok(gpus) => gpus,
        Err(why) => return Unseen(why),
    };
    let mut looked = false;
    for gpu in &gpus {
        let index = gpu["index"].as_u64().unwrap_or(0);
        let busy = value(&gpu["survey"], "busy_percent").and_then(Value::as_u64);
        let held = value(&gpu["details"], "processes").and_then(Value::as_array).map(Vec::len);
        looked |= busy.is_some() || held.is_some();
        let held = held.unwrap_or(0);
        if held > 0 || busy.is_some_and(|busy| busy >= 10) {
            return Misleads(format!(
                "GPU {index} is in use before anything runs ({held} processes, {} % busy): end them, or figures are of a shared GPU",
                busy.unwrap_or(0)
            ));
        }
    }
    if looked {
        Clear(format!("{} GPUs, none in use", gpus.len()))
    } else {
        Unseen("no GPU tells whether it is in use".to_owned())
    }
}

/// GPUs are cool before the run.
#[must_use]
pub fn gpu_heat(document: &str) -> Seen {
    // An idle GPU of any current board is well below.
    const IDLE: u64 = 60;
    let gpus = match nvml(document) {
        Ok(gpus) if gpus.is_empty() => return Clear("no GPU".to_owned()),
        Ok(gpus) => gpus,
        Err(why) => return Unseen(why),
    };
    let mut hottest = None;
    for gpu in &gpus {
        let index = gpu["index"].as_u64().unwrap_or(0);
        let temperature = value(gpu, "temperature").and_then(Value::as_u64);
        if let Some(temperature) = temperature.filter(|temperature| *temperature >= IDLE) {
            return Misleads(format!(
                "GPU {index} is at {temperature} C before anything runs, so it may slow down sooner than a cool one; let it cool or look \
                 at its cooling"
            ));
        }
        hottest = hottest.max(temperature);
    }
    match hottest {
        Some(hottest) => Clear(format!("{} GPUs, the hottest at {hottest} C", gpus.len())),
        None => Unseen("no GPU tells its temperature".to_owned()),
    }
}

/// GPUs may run at their full clock and power.
#[must_use]
pub fn gpu_clocks(document: &str) -> Seen {
    let gpus = match nvml(document) {
        Ok(gpus) if gpus.is_empty() => return Clear("no GPU".to_owned()),
        Ok(gpus) => gpus,
        Err(why) => return Unseen(why),
    };
    let mut looked = false;
    for gpu in &gpus {
        let index = gpu["index"].as_u64().unwrap_or(0);
        let of = |key: &str| value(&gpu["details"], key).and_then(Value::as_u64);
        for (now, usual, unit, scale, mend) in [
            ("application_clock", "default_application_clock", "MHz", 1, "nvidia-smi -rac, and -rgc"),
            ("power_limit_mw", "default_power_limit_mw", "W", 1000, "nvidia-smi -pl"),
        ] {
            if let (Some(now), Some(usual)) = (of(now), of(usual)) {
                looked = true;
                if now < usual {
                    return Misleads(format!(
                        "GPU {index} is capped at {} of {} {unit}, so figures are below the board's; lift it ({mend}) if this is not meant",
                        now / scale,
                        usual / scale
                    ));
                }
            }
        }
        if let Some(events) = of("clock_events") {
            looked = true;
            if let Some((_, why)) = CLOCK_EVENTS.iter().find(|(bit, _)| events & bit != 0) {
                return Misleads(format!(
                    "GPU {index} runs at lower clocks before anything was started: {why}"
                ));
            }
        }
    }
    if looked {
        Clear(format!("{} GPUs at full clock and power", gpus.len()))
    } else {
        Unseen("no GPU tells its clocks and power limit".to_owned())
    }
}

/// Prefixes of interfaces that no fast fabric has.
const NOT_A_FABRIC: [&str; 12] =
    ["lo", "docker", "virbr", "br-", "veth", "cni", "flannel", "cali", "lxc", "podman", "tun", "wg"];

fn virtual_interface(name: &str) -> bool {
    NOT_A_FABRIC.iter().any(|prefix| match *prefix {
        "lo" => name == "lo",
        prefix => name.starts_with(prefix),
    })
}

/// gloo between several machines went over an interface that leads out of them, and no faster one was up.
#[must_use]
pub fn gloo_interface(name: &str, facts: &Facts) -> Seen {
    if virtual_interface(name) {
        return Misleads(format!(
            "gloo went over {name}, which is no network between nodes; set GLOO_SOCKET_IFNAME to the one that is"
        ));
    }
    let speed = |of: &str| {
        facts.get("net")?.iter().find_map(|words| match &words[..] {
            [name, _, speed, _] if name == of => number(speed),
            _ => None,
        })
    };
    let fastest = facts.get("net").into_iter().flatten().filter_map(|words| match &words[..] {
        [name, state, speed, kind] if state == "up" && kind == "device" => {
            Some((number(speed)?, name.as_str()))
        }
        _ => None,
    });
    match (speed(name), fastest.max()) {
        (Some(used), Some((most, other))) if used > 0 && most > used => Misleads(format!(
            "gloo went over {name} ({used} Mb/s) although {other} ({most} Mb/s) is up; set GLOO_SOCKET_IFNAME={other} if the nodes reach \
             each other over it"
        )),
        (Some(used), _) if used > 0 => Clear(format!("gloo went over {name}, {used} Mb/s")),
        _ => Clear(format!("gloo went over {name}")),
    }
}

/// What NCCL's log (`NCCL_DEBUG=INFO`) says of the way between nodes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NcclLog {
    /// Transports of channels between nodes: `IB`, `Socket`, `AWS Libfabric` ...
    pub networks: BTreeSet<String>,
    /// Channels over RDMA that use GPUDirect, and those that do not.
    pub direct: (usize, usize),
    /// Interface of the bootstrap.
    pub bootstrap: Option<String>,
    /// Interface of NET/Socket.
    pub socket: Option<String>,
}

/// Reads NCCL's log of any release: lines that it does not know are other programs'.
#[must_use]
pub fn nccl_log(text: &str) -> NcclLog {
    let mut log = NcclLog::default();
    let interface = |rest: &str| {
        let name = rest.trim_start().trim_start_matches(|letter: char| "[]0123456789".contains(letter));
        name.split(':').next().map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned)
    };
    for line in text.lines() {
        if let Some((_, rest)) = line.split_once("Using network ") {
            log.networks.insert(rest.trim().to_owned());
        } else if let Some((_, rest)) = line.split_once("Bootstrap : Using ") {
            log.bootstrap = log.bootstrap.or(interface(rest));
        } else if let Some((_, rest)) = line.split_once("NET/Socket : Using ") {
            log.socket = log.socket.or(interface(rest));
        } else if let Some((_, rest)) = line.split_once(" via NET/") {
            let mut parts = rest.split(['/', '(', ' ']);
            let network = parts.next().unwrap_or_default();
            if network != "Socket" && !network.is_empty() {
                let direct = rest.contains("GDRDMA");
                log.direct.0 += usize::from(direct);
                log.direct.1 += usize::from(!direct);
            }
            log.networks.insert(network.to_owned());
        }
    }
    log
}

/// NCCL went over the fabric and not over TCP sockets or the management network.
#[must_use]
pub fn nccl_network(log: &NcclLog, cards: Option<&str>) -> Seen {
    if log.networks.is_empty() && log.bootstrap.is_none() {
        return Unseen("NCCL's log names no network (NCCL_DEBUG=INFO was not in effect)".to_owned());
    }
    let sockets = log.networks.iter().any(|name| name.eq_ignore_ascii_case("socket"));
    let over = log.socket.as_deref().or(log.bootstrap.as_deref()).unwrap_or("an unnamed interface");
    match cards {
        // Without any card there is nothing to fall back from.
        Some("none") if sockets => Clear(format!("TCP sockets over {over}: the nodes have no RDMA device")),
        _ if sockets => Misleads(format!(
            "NCCL fell back to TCP sockets over {over}, so the figure is of that network and not of the fabric; look at NCCL_NET, \
             NCCL_IB_DISABLE, NCCL_IB_HCA and at /dev/infiniband where it ran"
        )),
        _ => match log.bootstrap.as_deref().filter(|name| virtual_interface(name) && *name != "lo") {
            Some(name) => Misleads(format!(
                "NCCL's bootstrap went over {name}, which is no network between nodes; set NCCL_SOCKET_IFNAME"
            )),
            None => Clear(format!(
                "NCCL went over {}",
                log.networks.iter().map(String::as_str).collect::<Vec<_>>().join(", ")
            )),
        },
    }
}

/// GPUs and RDMA cards exchange data without a detour through host memory.
#[must_use]
pub fn nccl_gpudirect(log: &NcclLog) -> Option<Seen> {
    match log.direct {
        (0, 0) => None,
        (direct, 0) => Some(Clear(format!("all {direct} RDMA channels use GPUDirect"))),
        (direct, without) => Some(Misleads(format!(
            "{without} of {} RDMA channels go through host memory (no GDRDMA in NCCL's log), so the figure is below the fabric's; load \
             nvidia-peermem or use a driver with DMA-BUF, and look at PCIe ACS and NCCL_NET_GDR_LEVEL",
            direct + without
        ))),
    }
}

fn record(raw: &Raw, file: &super::RawFile, guard: &str, node: Option<&str>, seen: Seen) -> Record {
    let draft = match seen {
        Clear(text) => raw.measured("guard", "", 1.0, file.evidence.clone()).detail(text),
        Misleads(text) => raw.measured("guard", "", 0.0, file.evidence.clone()).detail(text),
        Unseen(why) => raw.missing("guard", "", State::Unavailable, why),
    };
    let draft = draft.param("guard", guard);
    match node {
        Some(node) => draft.on(node).done(),
        None => draft.done(),
    }
}

/// Stage `preflight`.
pub(super) fn preflight(raw: &Raw) -> Vec<Record> {
    let run = &raw.folder.run;
    let told = raw.file("facts.txt").map(|file| (file, facts(&file.text)));
    let of_slurm = raw.file("slurm.txt").map(|file| (file, slurm(&file.text)));
    let torch = raw.file("torch.txt").and_then(|file| {
        let (device, gpus) = file.text.trim().split_once(' ')?;
        Some((device.to_owned(), number(gpus)?))
    });
    let mut records = Vec::new();
    for node in &run.nodes {
        let absent = || raw.absent("guard", "").on(node);
        let view = of_slurm.as_ref().and_then(|(_, nodes)| nodes.get(node)).cloned().unwrap_or_default();
        match told.as_ref().and_then(|(file, nodes)| Some((*file, nodes.get(node)?))) {
            Some((file, facts)) => {
                let torch = torch.as_ref().map(|(device, gpus)| (device.as_str(), *gpus));
                let mut rules = vec![
                    ("gpus", gpus(facts, &view, torch)),
                    ("cpus", cpus(facts)),
                    ("memory", memory(facts)),
                    ("fabric_devices", fabric_devices(facts)),
                    ("cpu_clocks", cpu_clocks(facts)),
                ];
                // Simulated nodes are one machine, and all work on it is everybody's.
                if !run.simulated {
                    rules.push(("other_load", other_load(facts)));
                }
                records
                    .extend(rules.into_iter().map(|(name, seen)| record(raw, file, name, Some(node), seen)));
            }
            None => {
                for name in ["gpus", "cpus", "memory", "fabric_devices", "cpu_clocks"] {
                    records.push(absent().param("guard", name).done());
                }
            }
        }
        match &of_slurm {
            Some((file, _)) => records.push(record(raw, file, "other_jobs", Some(node), other_jobs(&view))),
            None => records.push(absent().param("guard", "other_jobs").done()),
        }
        let gpus = raw.file(&format!("{node}.gpus.json"));
        for (name, rule) in
            [("gpu_use", gpu_use as fn(&str) -> Seen), ("gpu_heat", gpu_heat), ("gpu_clocks", gpu_clocks)]
        {
            records.push(match gpus {
                Some(file) => record(raw, file, name, Some(node), rule(&file.text)),
                None => {
                    let why = "clustermax-healthcheck, which reads NVML, is not beside clustermax";
                    raw.missing("guard", "", State::Unavailable, why).param("guard", name).on(node).done()
                }
            });
        }
    }
    records
}

/// Stage `collectives`: the way that its figures took.
pub(super) fn collectives(raw: &Raw) -> Vec<Record> {
    let run = &raw.folder.run;
    // One node, or nodes that are one machine: nothing leaves it.
    if run.nodes.len() < 2 || run.simulated {
        return Vec::new();
    }
    let before = std::fs::read_to_string(raw.folder.raw("preflight").join("facts.txt")).unwrap_or_default();
    let before = facts(&before);
    let first = before.values().next().cloned().unwrap_or_default();
    let mut records = Vec::new();
    if let Some(file) = raw.file("torch.json")
        && let Ok(document) = serde_json::from_str::<Value>(&file.text)
        && document["backend"] == "gloo"
        && let Some(name) = document["interface"].as_str()
    {
        records.push(record(raw, file, "gloo_interface", None, gloo_interface(name, &first)));
    }
    records.extend(nccl(raw));
    records
}

/// The way that NCCL took in a stage, by its logs there: those of nccl-tests, of torch.distributed or of torchtitan.
pub(super) fn nccl(raw: &Raw) -> Vec<Record> {
    let run = &raw.folder.run;
    let mut records = Vec::new();
    // Nothing leaves one node, or nodes that are one machine.
    if run.nodes.len() < 2 || run.simulated {
        return records;
    }
    let facts_of = |path: std::path::PathBuf| facts(&std::fs::read_to_string(path).unwrap_or_default());
    let before = facts_of(raw.folder.raw("preflight").join("facts.txt"));
    // nccl-tests may run elsewhere than the payloads: in an image of their own, or on the nodes beside a container.
    let told = ["nccl-tests/facts-host.txt", "nccl-tests/facts.txt"].iter().find_map(|name| raw.file(name));
    let there = told.filter(|_| raw.file("nccl-tests/launch.tsv").is_some());
    if let Some(file) = there {
        for (node, facts) in facts(&file.text) {
            let same = before.get(&node).is_some_and(|before| before.get("fabric") == facts.get("fabric"));
            if run.nodes.contains(&node) && !same {
                records.push(record(raw, file, "fabric_devices", Some(&node), fabric_devices(&facts)));
            }
        }
    }
    let logs: Vec<_> = raw.files.iter().filter(|file| super::is_nccl_log(&file.name)).collect();
    if let Some(file) = logs.first() {
        let mut all = NcclLog::default();
        for one in logs.iter().map(|file| nccl_log(&raw.text(file))) {
            all.networks.extend(one.networks);
            all.direct = (all.direct.0 + one.direct.0, all.direct.1 + one.direct.1);
            all.bootstrap = all.bootstrap.or(one.bootstrap);
            all.socket = all.socket.or(one.socket);
        }
        let first = before.values().next();
        let cards = first.and_then(|first| line(first, "fabric")).map(|[_, _, cards]| cards);
        records.push(record(raw, file, "nccl_network", None, nccl_network(&all, cards)));
        records.extend(nccl_gpudirect(&all).map(|seen| record(raw, file, "nccl_gpudirect", None, seen)));
    }
    records
}

/// Stage `storage`: what is rated as shared storage is shared. Simulated nodes share every file system of one machine.
pub(super) fn storage(raw: &Raw) -> Vec<Record> {
    if raw.folder.run.simulated {
        return Vec::new();
    }
    raw.folder
        .run
        .nodes
        .iter()
        .map(|node| match raw.file(&format!("{node}.shared.where")) {
            Some(file) => record(raw, file, "storage_path", Some(node), storage_path(&file.text)),
            None => raw.absent("guard", "").param("guard", "storage_path").on(node).done(),
        })
        .collect()
}

/// The results folder lies on a file system that several nodes share; `told` is the type as findmnt names it.
#[must_use]
pub fn storage_path(told: &str) -> Seen {
    match told.split_whitespace().next() {
        Some(kind) if super::fio::node_local(kind) => Misleads(format!(
            "the results folder lies on {kind}, a file system of one node, so nothing here is of the shared storage; give --results a \
             folder that is shared"
        )),
        Some(kind) => Clear(format!("the results folder lies on {kind}")),
        None => Unseen("the node did not tell on which file system the results folder lies".to_owned()),
    }
}

/// Sentences of the guards that found something, for the job's output: `NODES: sentence`, equal ones together.
#[must_use]
pub fn sentences(records: &[Record]) -> Vec<String> {
    let mut nodes: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for record in records.iter().filter(|record| record.metric == "guard" && record.value == Some(0.0)) {
        let node = record.subject.node.as_deref();
        nodes.entry(record.detail.as_deref().unwrap_or_default()).or_default().extend(node);
    }
    nodes
        .into_iter()
        .map(
            |(text, nodes)| {
                if nodes.is_empty() { text.to_owned() } else { format!("{}: {text}", nodes.join(",")) }
            },
        )
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(text: &str) -> Facts {
        let text: String = text.lines().map(|line| format!("cmx-pre n1 {line}\n")).collect();
        facts(&format!("a plug-in's line\n{text}")).remove("n1").unwrap_or_default()
    }

    /// `""`: clear; `"?"`: unseen; else a part of the sentence.
    fn is(seen: &Seen, expected: &str) {
        match (seen, expected) {
            (Clear(_), "") | (Unseen(_), "?") => {}
            (Misleads(text), part) if !part.is_empty() && text.contains(part) => {}
            _ => panic!("{seen:?}, not {expected:?}"),
        }
    }

    #[test]
    fn gpu_work_that_lands_elsewhere_is_noticed() {
        for (told, gres, torch, expected) in [
            ("gpus 8 0,1,2,3,4,5,6,7 8", 8, Some(("cuda", 8)), ""),
            ("gpus none none 0", 0, Some(("cpu", 0)), ""),
            ("gpus none none 0", 8, Some(("cpu", 0)), "this job was given none"),
            ("gpus 8 0,1,2,3 8", 8, None, "lists 4"),
            ("gpus 8 0,1,2,3,4,5,6,7 7", 8, None, "device files of 7"),
            ("gpus 8 none 0", 8, Some(("cpu", 0)), "torch can use none"),
            ("gpus 8 none 8", 8, Some(("cuda", 7)), "torch can use 7"),
            ("gpus 4 0,1,2,3 8", 8, Some(("cuda", 4)), "was given 4; submit with --gres=gpu:8"),
            ("", 8, None, "?"),
        ] {
            is(&gpus(&node(told), &Slurm { gpus: Some(gres), ..Slurm::default() }, torch), expected);
        }
    }

    #[test]
    fn a_results_folder_on_one_node_is_noticed() {
        is(&storage_path("nfs4 server:/home"), "");
        is(&storage_path("ext4 /dev/sda1"), "lies on ext4, a file system of one node");
        is(&storage_path("\n"), "?");
    }

    #[test]
    fn a_gres_is_counted_with_types_and_sockets() {
        for (gres, count) in
            [("gpu:8", 8), ("gpu:h100:8(S:0,1),nic:4", 8), ("gpu:a:4,gpu:b:2", 6), ("gpu", 1), ("(null)", 0)]
        {
            assert_eq!(gres_gpus(gres), count, "{gres}");
        }
    }

    #[test]
    fn a_limit_by_default_is_noticed() {
        is(&cpus(&node("cpus 192 192")), "");
        is(&cpus(&node("cpus 1 192")), "1 of the node's 192 processors");
        is(&cpus(&node("")), "?");
        is(&memory(&node("memory none 2199023255552")), "");
        is(&memory(&node("memory 9223372036854771712 2199023255552")), "");
        is(&memory(&node("memory 2100000000000 2199023255552")), "");
        is(&memory(&node("memory 4294967296 2199023255552")), "4.0 of the node's 2048.0 GiB");
        is(&memory(&node("")), "?");
    }

    #[test]
    fn a_container_without_the_fabrics_devices_is_noticed() {
        is(&fabric_devices(&node("fabric yes 8 mlx5_0 mlx5_1")), "");
        is(&fabric_devices(&node("fabric no 0 none")), "");
        is(&fabric_devices(&node("fabric yes 0 mlx5_0 mlx5_1")), "this container has no /dev/infiniband");
        is(&fabric_devices(&node("fabric no 0 mlx5_0")), "this user cannot open");
        is(&fabric_devices(&node("")), "?");
    }

    #[test]
    fn another_job_is_noticed_also_when_it_is_hidden() {
        let seen = slurm("node n1 gpu:8 192 192\nnode n2 gpu:8 4 4\njob n2 77\nnode n3 (null) 8 4\n");
        is(&other_jobs(&seen["n1"]), "");
        is(&other_jobs(&seen["n2"]), "job 77 runs on the node");
        is(&other_jobs(&seen["n3"]), "which this user may not see");
        is(&other_jobs(&Slurm::default()), "?");
        is(&other_load(&node("busy 3")), "");
        is(&other_load(&node("busy 64")), "64 % of the node's processors");
    }

    #[test]
    fn heat_and_caps_of_processors_are_noticed() {
        is(&cpu_clocks(&node("cpufreq 3800000 3800000 performance\nheat 45000")), "");
        is(&cpu_clocks(&node("cpufreq 2000000 3800000 performance\nheat 45000")), "2000 of 3800 MHz");
        is(&cpu_clocks(&node("heat 91000")), "at 91 C");
        is(&cpu_clocks(&node("heat 40000")), "?");
    }

    fn one_gpu(temperature: u32, details: &str, busy: u32) -> String {
        format!(
            r#"{{"nvml":{{"value":{{"library_missing":null,"gpus":[{{"index":0,"temperature":{{"value":{temperature}}},
               "details":{{{details}}},"survey":{{"busy_percent":{{"value":{busy}}}}}}}]}}}}}}"#
        )
    }

    #[test]
    fn heat_and_caps_of_gpus_are_noticed() {
        let full = r#""application_clock":{"value":1980},"default_application_clock":{"value":1980},
            "power_limit_mw":{"value":700000},"default_power_limit_mw":{"value":700000},"clock_events":{"value":1}"#;
        is(&gpu_heat(&one_gpu(34, full, 0)), "");
        is(&gpu_heat(&one_gpu(71, full, 0)), "GPU 0 is at 71 C");
        is(&gpu_use(&one_gpu(34, full, 99)), "in use before anything runs");
        is(&gpu_use(&one_gpu(71, full, 0)), "");
        let held = r#""processes":{"value":[{"pid":1}]}"#;
        is(&gpu_use(&one_gpu(34, held, 0)), "1 processes");
        is(&gpu_clocks(&one_gpu(34, full, 0)), "");
        let cap = |from: &str, to: &str| gpu_clocks(&one_gpu(34, &full.replace(from, to), 0));
        is(
            &cap(r#""application_clock":{"value":1980"#, r#""application_clock":{"value":1200"#),
            "1200 of 1980 MHz",
        );
        is(
            &cap(r#""power_limit_mw":{"value":700000"#, r#""power_limit_mw":{"value":500000"#),
            "500 of 700 W",
        );
        is(
            &cap(r#""clock_events":{"value":1}"#, r#""clock_events":{"value":64}"#),
            "thermal slowdown by hardware",
        );
        for bad in ["", "{}", r#"{"nvml":{"value":{"library_missing":"no library","gpus":[]}}}"#] {
            is(&gpu_use(bad), "?");
            is(&gpu_heat(bad), "?");
            is(&gpu_clocks(bad), "?");
        }
    }

    const IB: &str = "n1:1:1 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>
n1:1:1 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.0.0.1<0>
n1:1:1 [0] NCCL INFO Using network IB
n1:1:1 [0] NCCL INFO Channel 00/0 : 7[7] -> 8[0] [receive] via NET/IB/0/GDRDMA
n1:1:1 [0] NCCL INFO Channel 01/0 : 7[7] -> 8[0] [receive] via NET/IB/1/GDRDMA
";
    const SOCKET: &str = "n1:1:1 [0] NCCL INFO Bootstrap : Using docker0:172.17.0.1<0>
n1:1:1 [0] NCCL INFO NET/IB : No device found.
n1:1:1 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.1<0> [1]docker0:172.17.0.1<0>
n1:1:1 [0] NCCL INFO Using network Socket
n1:1:1 [0] NCCL INFO Channel 00/0 : 7[7] -> 8[0] [receive] via NET/Socket/0
";

    #[test]
    fn nccl_over_sockets_or_the_wrong_interface_is_noticed() {
        is(&nccl_network(&nccl_log(IB), Some("mlx5_0")), "");
        is(&nccl_network(&nccl_log(SOCKET), Some("mlx5_0")), "fell back to TCP sockets over eth0");
        is(&nccl_network(&nccl_log(SOCKET), None), "fell back to TCP sockets over eth0");
        is(&nccl_network(&nccl_log(SOCKET), Some("none")), "");
        let bridge = IB.replace("Using eth0", "Using virbr0");
        is(&nccl_network(&nccl_log(&bridge), Some("mlx5_0")), "bootstrap went over virbr0");
        is(&nccl_network(&nccl_log("torch's own lines\n"), Some("mlx5_0")), "?");
        assert!(matches!(nccl_gpudirect(&nccl_log(IB)), Some(Clear(_))));
        assert_eq!(nccl_gpudirect(&nccl_log(SOCKET)), None);
        let half = IB.replace("NET/IB/1/GDRDMA", "NET/IB/1");
        is(&nccl_gpudirect(&nccl_log(&half)).unwrap(), "1 of 2 RDMA channels go through host memory");
    }

    /// The same reader for nccl-tests, torch.distributed and torchtitan, in each stage of its own.
    #[test]
    fn every_stage_that_uses_nccl_says_which_way_it_went() {
        use super::super::StageState;
        use super::super::tests::{collected, find};
        for stage in ["collectives", "train", "burnin"] {
            let files = [("nccl-torch.n1.77.log", SOCKET), ("nccl-torch.n2.78.log", SOCKET)];
            let (_dir, records) = collected(stage, StageState::Done, &files);
            let guard = find(&records, "guard", &[("guard", "nccl_network")]);
            assert_eq!((&*guard.stage, guard.value), (stage, Some(0.0)), "{guard:?}");
            assert!(guard.detail.as_deref().unwrap().contains("TCP sockets over eth0"), "{guard:?}");
        }
        // An image of their own for nccl-tests, without the fabric that the nodes have.
        let told = "cmx-nccl\tn1\tdevice\tnvidia\ncmx-pre n1 fabric yes 0 mlx5_0 mlx5_1\n";
        let launch = "all_reduce\t16\t2\t1\tx\tall_reduce_perf.txt\t\n";
        let files = [("nccl-tests/facts.txt", told), ("nccl-tests/launch.tsv", launch)];
        let (_dir, records) = collected("collectives", StageState::Done, &files);
        let guard = find(&records, "guard", &[("guard", "fabric_devices"), ("node", "n1")]);
        assert!(
            guard.detail.as_deref().unwrap().contains("this container has no /dev/infiniband"),
            "{guard:?}"
        );
    }

    #[test]
    fn gloo_over_the_wrong_interface_is_noticed() {
        let nets = node(
            "net eth0 up 1000 device\nnet ens1 up 100000 device\nnet ens2 down 400000 device\nnet docker0 up 10000 virtual",
        );
        is(&gloo_interface("ens1", &nets), "");
        is(&gloo_interface("eth0", &nets), "although ens1 (100000 Mb/s) is up");
        is(&gloo_interface("docker0", &nets), "no network between nodes");
        is(&gloo_interface("lo", &nets), "no network between nodes");
        is(&gloo_interface("eth7", &node("")), "");
    }
}
