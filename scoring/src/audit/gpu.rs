//! GPUs of this node: PCI sysfs, and NVML through `clustermax-healthcheck` in a child with a deadline.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use super::system::{self, Host, names, text};
use super::{Item, Verdict};

/// Longest wait for the facts: eight sick GPUs answer slowly before they hang.
const FACTS_LIMIT: Duration = Duration::from_secs(15);

/// NVML's answer.
struct Nvml {
    driver: String,
    count: u32,
    gpus: Vec<Value>,
}

/// A GPU function in PCI sysfs.
struct Pci {
    address: String,
    width: Option<u32>,
    max_width: Option<u32>,
}

/// NVML's part of `clustermax-healthcheck facts --json`, which looks as any user and holds every source to a deadline.
/// Asked once: the answer is kept with the host.
fn nvml(host: &Host) -> Result<Nvml, String> {
    let found = host.facts.get_or_init(|| facts(host)).as_ref().map_err(Clone::clone)?;
    let nvml = reading(&found["nvml"]).map_err(|why| format!("NVML: {why}"))?;
    for key in ["library_missing", "refused", "hung"] {
        if let Some(why) = nvml[key].as_str() {
            return Err(format!("NVML: {why}"));
        }
    }
    Ok(Nvml {
        driver: nvml["driver_version"].as_str().unwrap_or_default().to_owned(),
        count: nvml["count"].as_u64().and_then(|count| u32::try_from(count).ok()).unwrap_or(0),
        gpus: nvml["gpus"].as_array().cloned().unwrap_or_default(),
    })
}

fn facts(host: &Host) -> Result<Value, String> {
    let program = Host::program("clustermax-healthcheck")
        .ok_or("clustermax-healthcheck, which reads NVML, is not installed")?;
    let config = host.config.display().to_string();
    let mut args = vec!["facts", "--json", "--node", &host.node];
    // One that is named must be there.
    if host.config.is_file() {
        args.extend(["--config", &config]);
    }
    let ran = system::run_for(&program, &args, FACTS_LIMIT)?;
    let value: Value = serde_json::from_str(&ran.out)
        .map_err(|_| format!("clustermax-healthcheck facts: {}", ran.complaint()))?;
    match value["schema"].as_str() {
        Some("clustermax-facts/1") => Ok(value),
        other => Err(format!(
            "clustermax-healthcheck facts has the schema {other:?}, which this release does not know"
        )),
    }
}

/// A value inside healthcheck's `Reading`: `{"value": x}`, or why there is none.
fn reading(value: &Value) -> Result<&Value, String> {
    match value {
        Value::String(word) => Err(format!("{word} by this driver or device")),
        Value::Object(map) => match map.iter().next() {
            Some((key, value)) if key == "value" => Ok(value),
            Some((_, Value::String(why))) => Err(why.clone()),
            _ => Err("not read".to_owned()),
        },
        _ => Err("not read".to_owned()),
    }
}

fn words(gpu: &Value, key: &str) -> String {
    match reading(&gpu[key]) {
        Ok(Value::String(text)) => text.clone(),
        Ok(other) => other.to_string(),
        Err(_) => "unknown".to_owned(),
    }
}

/// NVIDIA (10de) and AMD (1002) display and 3D controllers.
fn pci(host: &Host) -> Vec<Pci> {
    let folder = host.sysfs.join("bus/pci/devices");
    let mut found = Vec::new();
    for address in names(&folder) {
        let read = |name: &str| text(&folder.join(&address).join(name)).unwrap_or_default();
        let class = read("class");
        let gpu = class.starts_with("0x0300") || class.starts_with("0x0302") || class.starts_with("0x1200");
        if gpu && matches!(read("vendor").as_str(), "0x10de" | "0x1002") {
            let width = |name: &str| read(name).parse::<u32>().ok().filter(|width| *width > 0);
            found.push(Pci {
                width: width("current_link_width"),
                max_width: width("max_link_width"),
                address,
            });
        }
    }
    found
}

/// True on a cluster of `clustermax-sim` (its slurm.conf says so), or when NVML answers although no NVIDIA kernel
/// driver is loaded: then the library is a simulated one.
#[must_use]
pub fn simulated(config: Option<&Path>) -> bool {
    let conf =
        std::env::var_os("SLURM_CONF").map_or_else(|| PathBuf::from("/etc/slurm/slurm.conf"), PathBuf::from);
    if written_by_simulator(&conf) {
        return true;
    }
    let Ok(host) = Host::open(config, None) else { return false };
    is_simulated() && nvml(&host).is_ok()
}

fn written_by_simulator(conf: &Path) -> bool {
    text(conf).is_some_and(|text| {
        text.lines().next().is_some_and(|line| line.starts_with("# Written by clustermax-sim"))
    })
}

/// The driver's own folder is looked for in the real /proc, whatever the configuration says.
pub fn is_simulated() -> bool {
    !Path::new("/proc/driver/nvidia/version").exists() && !Path::new("/dev/dxg").exists()
}

/// Count, models and state of the GPUs.
pub fn inventory(host: &Host) -> Vec<Item> {
    let s = "inventory";
    let pci = pci(host);
    let nvml = nvml(host);
    let mut items = Vec::new();
    let seen = match &nvml {
        Ok(nvml) => Some((nvml.count, format!("{} by NVML, driver {}", nvml.count, nvml.driver))),
        Err(why) if !pci.is_empty() => {
            Some((u32::try_from(pci.len()).unwrap_or(u32::MAX), format!("{} by PCI sysfs; {why}", pci.len())))
        }
        Err(_) if host.sysfs.join("bus/pci").is_dir() => Some((0, "no GPU function in PCI sysfs".to_owned())),
        Err(_) => None,
    };
    items.push(match &seen {
        Some((count, text)) => Item::value(s, "gpu_count", f64::from(*count), text.clone()),
        None => Item::unknown(s, "gpu_count", "neither NVML nor PCI sysfs can be read"),
    });
    let configured = configured(host);
    items.push(match &configured {
        Ok((count, gres)) => Item::value(s, "gpu_count_configured", f64::from(*count), gres.clone()),
        Err(why) => Item::unavailable(s, "gpu_count_configured", why.clone()),
    });
    items.push(match (&configured, &seen) {
        (Ok((configured, _)), Some((count, _))) => {
            let missing = configured.saturating_sub(*count);
            Item::value(
                s,
                "gpu_missing",
                f64::from(missing),
                format!("{count} of {configured} configured GPUs seen"),
            )
            .judged(if missing == 0 { Verdict::Pass } else { Verdict::Fail })
            .mend("drain the node and see `clustermax-healthcheck run` for the GPU that is gone")
        }
        _ => Item::unavailable(s, "gpu_missing", "the configured or the visible number of GPUs is not known"),
    });
    for item in &mut items {
        item.command = "nvidia-smi -L; scontrol show node NODE | grep Gres".to_owned();
    }
    if let Ok(nvml) = &nvml {
        for gpu in &nvml.gpus {
            items.extend(one(gpu, &nvml.driver));
        }
    }
    for (position, function) in pci.iter().enumerate() {
        let by_nvml = nvml.as_ref().ok().and_then(|nvml| {
            nvml.gpus.iter().find(|gpu| words(gpu, "pci").eq_ignore_ascii_case(&function.address))
        });
        let index = by_nvml
            .and_then(|gpu| gpu["index"].as_u64())
            .and_then(|index| u32::try_from(index).ok())
            .unwrap_or(u32::try_from(position).unwrap_or(u32::MAX));
        items.push(
            match (function.width, function.max_width) {
                (Some(width), Some(max)) => Item::flag(
                    s,
                    "pcie_link_degraded",
                    width < max,
                    false,
                    Verdict::Fail,
                    format!(
                        "{}: x{width} of x{max} (the speed falls at idle and is not judged)",
                        function.address
                    ),
                ),
                _ => Item::unavailable(
                    s,
                    "pcie_link_degraded",
                    format!("{} shows no link width", function.address),
                ),
            }
            .gpu(index)
            .by("cat /sys/bus/pci/devices/ADDRESS/current_link_width")
            .mend("reseat the GPU or its riser; check the slot and the retimer"),
        );
    }
    let synthetic = nvml.is_ok() && is_simulated();
    items.into_iter().map(|item| Item { synthetic, ..item }.on(&host.node)).collect()
}

/// Facts of one GPU out of NVML's answer.
fn one(gpu: &Value, driver: &str) -> Vec<Item> {
    let s = "inventory";
    let index = gpu["index"].as_u64().and_then(|index| u32::try_from(index).ok()).unwrap_or(u32::MAX);
    let lost = gpu["lost"].as_bool() == Some(true);
    let mut items = vec![if lost {
        Item::unknown(s, "gpu_info", "NVML says that the GPU is lost").judged(Verdict::Fail)
    } else {
        let model = words(gpu, "name");
        Item::value(s, "gpu_info", 1.0, format!("{model} at {}", words(gpu, "pci")))
            .param("model", model)
            .param("driver", driver)
            .param("uuid", words(gpu, "uuid"))
            .param("pci", words(gpu, "pci"))
            .param("vbios", words(&gpu["survey"], "vbios"))
    }];
    let number = |key: &str| {
        reading(&gpu[key]).and_then(|value| value.as_f64().ok_or_else(|| "not a number".to_owned()))
    };
    items.push(match number("temperature") {
        Ok(value) => Item::value(s, "gpu_temperature_idle", value, format!("{value} C"))
            .judged(if value <= 60.0 { Verdict::Pass } else { Verdict::Warn })
            .mend("check fans, cold plate and inlet temperature"),
        Err(why) => Item::unknown(s, "gpu_temperature_idle", why),
    });
    let last = items.pop().map(|item| item.unit("C"));
    items.extend(last);
    let watts = reading(&gpu["details"]["power_mw"])
        .and_then(|value| value.as_f64().ok_or_else(|| "not a number".to_owned()))
        .map(|milliwatts| milliwatts / 1e3);
    // cmax: what an idle board may draw.
    let most = match words(gpu, "name") {
        name if name.contains("GB200") || name.contains("GB300") => 300.0,
        name if name.contains("B200") || name.contains("B300") => 250.0,
        _ => 150.0,
    };
    items.push(
        match watts {
            Ok(watts) => {
                Item::value(s, "gpu_power_idle", watts, format!("{watts:.0} W, {most:.0} W at most"))
                    .judged(if watts <= most { Verdict::Pass } else { Verdict::Warn })
                    .mend("see which process holds the GPU, and its clocks")
            }
            Err(why) => Item::unknown(s, "gpu_power_idle", why),
        }
        .unit("W"),
    );
    items.push(match (number("ecc_sram_ue"), number("ecc_dram_ue")) {
        (Ok(sram), Ok(dram)) => Item::value(
            s,
            "gpu_ecc_uncorrected",
            sram + dram,
            format!("{sram} in SRAM, {dram} in device memory"),
        )
        .judged(if sram + dram == 0.0 { Verdict::Pass } else { Verdict::Fail })
        .mend("reset the GPU; if it comes back, replace it"),
        (Err(why), _) | (_, Err(why)) => Item::unknown(s, "gpu_ecc_uncorrected", why),
    });
    items.push(match reading(&gpu["remap_failure"]) {
        Ok(value) => {
            let failed = value.as_bool() == Some(true);
            let seen = if failed { "row remapping failed" } else { "no remapping failure" };
            Item::flag(s, "gpu_remap_failure", failed, false, Verdict::Fail, seen).mend("replace the GPU")
        }
        Err(why) => Item::unknown(s, "gpu_remap_failure", why),
    });
    items.into_iter().map(|item| item.gpu(index).by("nvidia-smi -q -i INDEX")).collect()
}

/// GPUs in Slurm's Gres of this node: the sum over types.
fn configured(host: &Host) -> Result<(u32, String), String> {
    let ran = system::run("scontrol", &["-o", "show", "node", &host.node])?;
    if !ran.ok() {
        return Err(format!("scontrol show node {}: {}", host.node, ran.complaint()));
    }
    let gres = ran.out.split_whitespace().find_map(|word| word.strip_prefix("Gres=")).unwrap_or("(null)");
    Ok((gres_gpus(gres), format!("Gres={gres}")))
}

/// `gpu:h100:8(S:0-1),gpu:2,nvme:1` is 10.
pub fn gres_gpus(gres: &str) -> u32 {
    gres.split(',')
        .filter_map(|entry| {
            let entry = entry.split('(').next().unwrap_or_default();
            let mut parts = entry.split(':');
            (parts.next() == Some("gpu"))
                .then(|| parts.next_back().and_then(|count| count.parse::<u32>().ok()).unwrap_or(1))
        })
        .sum()
}

/// GPUs as a job meets them.
pub fn audit(host: &Host) -> Vec<Item> {
    let s = "audit";
    let pci = pci(host);
    let has_nvidia = !pci.is_empty();
    let rdma = !names(&host.sysfs.join("class/infiniband")).is_empty();
    let mut items = vec![visible(host), refused(host)];
    items.push(if !rdma {
        Item::not_applicable(s, "gpudirect_rdma", "no_rdma: no RDMA device in /sys/class/infiniband")
    } else if !has_nvidia {
        Item::unavailable(s, "gpudirect_rdma", "no GPU is visible")
    } else {
        // The open kernel module is dual-licensed; it does DMA-BUF. nvidia_peermem is the older way.
        let license = system::run("modinfo", &["-F", "license", "nvidia"]).ok().filter(system::Ran::ok);
        match license {
            Some(ran) => {
                let open = ran.out.contains("MIT");
                let peermem = host.sysfs.join("module/nvidia_peermem").is_dir();
                let path = match (open, peermem) {
                    (true, _) => "dma_buf",
                    (false, true) => "nvidia_peermem",
                    (false, false) => "none",
                };
                Item::flag(s, "gpudirect_rdma", open || peermem, true, Verdict::Fail, format!("path: {path}"))
                    .param("path", path)
            }
            None => Item::unavailable(s, "gpudirect_rdma", "modinfo does not know the nvidia module"),
        }
    });
    items.push(if !rdma {
        Item::not_applicable(s, "gdrcopy", "no_rdma: no RDMA device in /sys/class/infiniband")
    } else {
        let there = host.dev.join("gdrdrv").exists();
        let seen = if there { "/dev/gdrdrv is there" } else { "/dev/gdrdrv is not there" };
        Item::flag(s, "gdrcopy", there, true, Verdict::Warn, seen)
            .by("ls /dev/gdrdrv")
            .mend("install GDRCopy and load gdrdrv")
    });
    let params = host.proc("driver/nvidia/params");
    items.push(match params {
        Some(text) => {
            let open = text.lines().any(|line| line.replace(' ', "") == "RmProfilingAdminOnly:0");
            let seen =
                if open { "RmProfilingAdminOnly: 0" } else { "GPU counters are for administrators only" };
            Item::flag(s, "gpu_profiling_open", open, true, Verdict::Warn, seen)
                .by("grep RmProfilingAdminOnly /proc/driver/nvidia/params")
                .mend("options nvidia NVreg_RestrictProfilingToAdminUsers=0 in /etc/modprobe.d")
        }
        None => Item::unavailable(s, "gpu_profiling_open", "/proc/driver/nvidia/params is not there"),
    });
    let synthetic = is_simulated() && (has_nvidia || rdma);
    items.into_iter().map(|item| Item { synthetic, ..item }.on(&host.node)).collect()
}

/// `/dev/nvidiaN` files that this process is not refused (cgroups hide those of other jobs), and all of them. A file
/// whose driver is gone opens as little as a refused one, but with another error.
fn device_files(host: &Host) -> (u32, u32) {
    use std::os::unix::fs::OpenOptionsExt as _;
    const O_NONBLOCK: i32 = 0o4000;
    let mut counts = (0, 0);
    for name in names(&host.dev) {
        let minor = name.strip_prefix("nvidia").unwrap_or_default();
        if minor.is_empty() || !minor.bytes().all(|byte| byte.is_ascii_digit()) {
            continue;
        }
        counts.1 += 1;
        let opened = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(O_NONBLOCK)
            .open(host.dev.join(&name));
        let refused = opened.is_err_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied);
        counts.0 += u32::from(!refused);
    }
    counts
}

/// The job sees as many GPUs as Slurm gave it. Meant to run inside a step that holds the node's GPUs.
fn visible(host: &Host) -> Item {
    let (s, metric) = ("audit", "gpu_visible");
    let Some(given) = std::env::var("SLURM_GPUS_ON_NODE").ok().and_then(|count| count.parse::<u32>().ok())
    else {
        return Item::unavailable(
            s,
            metric,
            "this step holds no GPUs (SLURM_GPUS_ON_NODE is not set); submit with --gres=gpu:N",
        );
    };
    let Ok(devices) = std::env::var("CUDA_VISIBLE_DEVICES") else {
        return Item::flag(
            s,
            metric,
            false,
            true,
            Verdict::Fail,
            format!("{given} GPUs given, CUDA_VISIBLE_DEVICES not set"),
        )
        .mend("check gres.conf: each GPU needs its File=");
    };
    let listed = devices.split(',').filter(|device| !device.is_empty()).count();
    let (open, all) = device_files(host);
    let counted = match all {
        0 => nvml(host).map(|nvml| (nvml.count, format!("NVML counts {}", nvml.count))),
        _ => Ok((open, format!("{open} of {all} device files open"))),
    };
    let seen = match &counted {
        Ok((_, text)) => format!("{given} given, CUDA_VISIBLE_DEVICES={devices}, {text}"),
        Err(why) => format!("{given} given, CUDA_VISIBLE_DEVICES={devices}; {why}"),
    };
    let right = listed == given as usize && counted.as_ref().is_ok_and(|(count, _)| *count == given);
    match counted {
        Err(_) if listed == given as usize => Item::unknown(s, metric, seen),
        _ => Item::flag(s, metric, right, true, Verdict::Fail, seen),
    }
    .by("srun --gres=gpu:N env | grep CUDA_VISIBLE_DEVICES")
    .mend("set ConstrainDevices=yes in cgroup.conf and File= in gres.conf")
}

/// GPUs that this job does not hold are refused to it: the proof of what cgroup.conf says. A step that holds all GPUs
/// starts another, within its own job, that holds none.
fn refused(host: &Host) -> Item {
    let (s, metric) = ("audit", "gpu_others_refused");
    let (open, all) = device_files(host);
    let given =
        std::env::var("SLURM_GPUS_ON_NODE").ok().and_then(|count| count.parse::<u32>().ok()).unwrap_or(0);
    let command = "srun --overlap --gres=none sh -c 'for f in /dev/nvidia[0-9]*; do (: <>$f); done'";
    let mend =
        "ConstrainDevices=yes in cgroup.conf, TaskPlugin with task/cgroup, File= of every GPU in gres.conf";
    let item = if all == 0 {
        Item::unavailable(s, metric, "no GPU device file is here")
    } else if std::env::var_os("SLURM_JOB_ID").is_none() {
        Item::unavailable(s, metric, "not inside a job: nothing is withheld from this process")
    } else if given < all {
        let seen = format!("{given} of {all} GPUs given, {} of the others open", open.saturating_sub(given));
        Item::flag(s, metric, open <= given, true, Verdict::Fail, seen)
    } else {
        match held_none(host) {
            Ok(open) => {
                let seen = format!("a step of this job that holds no GPU opens {open} of {all}");
                Item::flag(s, metric, open == 0, true, Verdict::Fail, seen)
            }
            Err(why) => Item::unavailable(
                s,
                metric,
                format!("this step holds all GPUs, and a second one without any did not run: {why}"),
            ),
        }
    };
    item.by(command).mend(mend)
}

/// How many GPUs a step without any can open.
fn held_none(host: &Host) -> Result<u32, String> {
    let program = system::find("srun").ok_or("srun is not in PATH")?;
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = std::process::Command::new(program);
    command
        .args(["--overlap", "--quiet", "--mpi=none", "--gres=none", "-N1", "-n1", "-t1", "-w", &host.node])
        .arg(own)
        .args(["audit", "--scope", "held", "--json", "--node", &host.node, "--config"])
        .arg(&host.config);
    // Of this step's environment only what names the job: the rest would be taken for options of the new one.
    command.env_clear();
    for name in ["PATH", "HOME", "USER", "SLURM_CONF", "SLURM_JOB_ID", "LD_LIBRARY_PATH"] {
        if let Some(value) = std::env::var_os(name) {
            command.env(name, value);
        }
    }
    let ran = system::run_command(&mut command, Duration::from_secs(10), None)?;
    let document: Value = serde_json::from_str(&ran.out).map_err(|_| ran.complaint())?;
    document["items"][0]["value"].as_f64().map(|open| open as u32).ok_or_else(|| ran.complaint())
}

/// Inside the step without GPUs: how many of them open.
pub fn held(host: &Host) -> Vec<Item> {
    let (open, all) = device_files(host);
    vec![Item::value("audit", "gpu_open", f64::from(open), format!("{open} of {all}")).on(&host.node)]
}

/// Names of the node's GPUs; none without GPUs.
///
/// # Errors
/// GPUs are on the bus, and nothing says their names.
pub fn models(host: &Host) -> Result<BTreeSet<String>, String> {
    match nvml(host) {
        Ok(nvml) => Ok(nvml.gpus.iter().map(|gpu| words(gpu, "name")).collect()),
        Err(_) if pci(host).is_empty() => Ok(BTreeSet::new()),
        Err(why) => Err(why),
    }
}

/// The driver's version by NVML.
pub fn driver(host: &Host) -> Option<String> {
    nvml(host).ok().map(|nvml| nvml.driver)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_simulated_cluster_is_told_by_its_slurm_conf() {
        let dir = tempfile::tempdir().unwrap();
        let conf = dir.path().join("slurm.conf");
        std::fs::write(
            &conf,
            "# Written by clustermax-sim for the simulated cluster in /x.\nClusterName=sim1000\n",
        )
        .unwrap();
        assert!(written_by_simulator(&conf));
        std::fs::write(&conf, "# Our cluster\n# not Written by clustermax-sim\nClusterName=sim1000\n")
            .unwrap();
        assert!(!written_by_simulator(&conf));
        assert!(!written_by_simulator(&dir.path().join("none")));
    }

    #[test]
    fn gres_is_summed_over_types() {
        assert_eq!(gres_gpus("gpu:h100:8(S:0-1)"), 8);
        assert_eq!(gres_gpus("gpu:a:4,gpu:b:2,nvme:1"), 6);
        assert_eq!(gres_gpus("gpu"), 1);
        assert_eq!(gres_gpus("(null)"), 0);
    }

    #[test]
    fn a_reading_without_a_value_says_why() {
        let value = serde_json::json!({"value": 3});
        assert_eq!(reading(&value).unwrap(), 3);
        assert_eq!(
            reading(&serde_json::json!("unsupported")).unwrap_err(),
            "unsupported by this driver or device"
        );
        assert_eq!(reading(&serde_json::json!({"unknown": "GPU is lost"})).unwrap_err(), "GPU is lost");
        assert!(reading(&Value::Null).is_err());
    }

    #[test]
    fn pci_functions_and_narrow_links_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("sys/bus/pci/devices");
        for (address, class, vendor, width) in
            [("0000:10:00.0", "0x030200", "0x10de", "8"), ("0000:11:00.0", "0x020000", "0x15b3", "16")]
        {
            let device = folder.join(address);
            std::fs::create_dir_all(&device).unwrap();
            for (name, content) in [
                ("class", class),
                ("vendor", vendor),
                ("current_link_width", width),
                ("max_link_width", "16"),
            ] {
                std::fs::write(device.join(name), format!("{content}\n")).unwrap();
            }
        }
        let file = dir.path().join("c.toml");
        std::fs::write(&file, format!("[paths]\nsysfs = \"{}/sys\"\n", dir.path().display())).unwrap();
        let host = Host::open(Some(&file), Some("n1")).unwrap();
        let found = pci(&host);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].width, found[0].max_width), (Some(8), Some(16)));
    }
}
