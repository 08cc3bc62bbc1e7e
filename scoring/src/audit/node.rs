//! Inventory and set-up of this node, without GPUs.

use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use super::system::{self, Host, find, names, text};
use super::versions::Table;
use super::{
    Item, Verdict, acs, fabric, gpu, health, idle, keys, monitoring, platform, storage, topology, traces,
    versions,
};

/// Versions, processors, memory, InfiniBand link failures.
pub fn inventory(host: &Host) -> Vec<Item> {
    let s = "inventory";
    let mut items = Vec::new();
    let kernel = host.proc("sys/kernel/osrelease").unwrap_or_default();
    let os = os_name();
    let cpuinfo = host.proc("cpuinfo").unwrap_or_default();
    let cpu_model = cpuinfo
        .lines()
        .find(|line| line.starts_with("model name") || line.starts_with("Model"))
        .and_then(|line| line.split_once(':'))
        .map_or("unknown", |(_, model)| model.trim())
        .to_owned();
    let slurm = system::run("scontrol", &["--version"]).ok().filter(system::Ran::ok).map_or_else(
        || "unknown".to_owned(),
        |ran| ran.out.trim().trim_start_matches("slurm-wlm ").trim_start_matches("slurm ").to_owned(),
    );
    items.push(
        Item::value(s, "node_info", 1.0, format!("{os}, Linux {kernel}, {cpu_model}, Slurm {slurm}"))
            .param("kernel", kernel)
            .param("os", os)
            .param("arch", std::env::consts::ARCH)
            .param("cpu_model", cpu_model)
            .param("slurm_version", slurm)
            .param("boot_id", host.proc("sys/kernel/random/boot_id").unwrap_or_default())
            .param("nic_firmware", fabric::firmware(host))
            .on(&host.node)
            .by("uname -r; cat /etc/os-release; lscpu; scontrol --version"),
    );
    let cpus = cpuinfo.lines().filter(|line| line.starts_with("processor")).count();
    items.push(if cpus > 0 {
        Item::value(s, "cpu_count", cpus as f64, format!("{cpus} logical processors"))
            .on(&host.node)
            .by("nproc --all")
    } else {
        Item::unknown(s, "cpu_count", "/proc/cpuinfo lists no processor").on(&host.node)
    });
    let kib = host.proc("meminfo").and_then(|text| {
        text.lines()
            .find_map(|line| line.strip_prefix("MemTotal:")?.split_whitespace().next()?.parse::<f64>().ok())
    });
    items.push(match kib {
        Some(kib) => Item::value(s, "memory_total", kib / 1048576.0, format!("{:.1} GiB", kib / 1048576.0)),
        None => Item::unknown(s, "memory_total", "/proc/meminfo has no MemTotal"),
    });
    let last = items.pop().map(|item| item.unit("GiB").on(&host.node).by("grep MemTotal /proc/meminfo"));
    items.extend(last);
    let ports = fabric::ports(host);
    items.push(if ports.is_empty() {
        Item::not_applicable(s, "ib_link_downed", "no_infiniband: no port in class/infiniband").on(&host.node)
    } else {
        let counts: Vec<f64> = ports
            .iter()
            .filter_map(|port| text(&port.path.join("counters/link_downed"))?.parse().ok())
            .collect();
        let item = if counts.is_empty() {
            Item::unavailable(
                s,
                "ib_link_downed",
                format!("{} ports have no link_downed counter", ports.len()),
            )
        } else {
            let sum: f64 = counts.iter().sum();
            Item::value(s, "ib_link_downed", sum, format!("{sum} over {} ports since boot", counts.len()))
                .judged(if sum > 0.0 { Verdict::Warn } else { Verdict::Pass })
        };
        item.on(&host.node)
            .by("cat /sys/class/infiniband/*/ports/*/counters/link_downed")
            .mend("reseat or replace the cable of the port that counts up")
    });
    items
}

/// Set-up that a user of the node depends on.
pub fn audit(host: &Host, table: &Table) -> Vec<Item> {
    let s = "audit";
    let mut items: Vec<Item> = Vec::new();
    for tool in [
        "python3",
        "git",
        "curl",
        "wget",
        "vim",
        "nano",
        "enroot",
        "apptainer",
        "all_reduce_perf",
        "nvcc",
        "dcgmi",
        "fio",
    ] {
        let found = find(tool);
        let seen = found
            .as_ref()
            .map_or_else(|| format!("{tool} is not in PATH"), |path| path.display().to_string());
        items.push(
            Item::flag(s, "tool_present", found.is_some(), true, Verdict::Warn, seen)
                .param("tool", tool)
                .by(&format!("command -v {tool}"))
                .mend(&format!("install {tool} in the node's image")),
        );
    }
    items.extend(fabric::audit(host));
    items.push(acs::audit(host));
    items.push(bmc(host));
    items.push(rshim(host));
    items.push(kernel_outdated(host));
    items.push(nested(host));
    items.extend(platform::audit(host));
    items.extend(versions::audit(host, table, gpu::driver(host).as_deref(), gpu::is_simulated()));
    items.extend(storage::audit(host));
    items.push(traces::audit(host));
    for (metric, file, limit) in [
        ("perf_event_paranoid", "sys/kernel/perf_event_paranoid", 1.0),
        ("kptr_restrict", "sys/kernel/kptr_restrict", 0.0),
    ] {
        let value = host.proc(file).and_then(|text| text.parse::<f64>().ok());
        items.push(match value {
            Some(value) => Item::value(s, metric, value, format!("{value}"))
                .judged(if value <= limit { Verdict::Pass } else { Verdict::Warn })
                .by(&format!("cat /proc/{file}"))
                .mend(&format!(
                    "sysctl -w kernel.{metric}={limit}, so that users can profile their programs"
                )),
            None => Item::unavailable(s, metric, format!("/proc/{file} cannot be read")),
        });
    }
    items.extend(monitoring::audit(host));
    items.extend(keys::audit(host));
    items.push(topology::queue_pairs(host));
    let health = health::audit(host);
    if let Some(age) = health.iter().find(|item| item.metric == "health_check_program_age") {
        items.extend(topology::rack(host, age));
    }
    items.extend(health);
    items.push(idle::stamp(host));
    items.into_iter().map(|item| item.on(&host.node)).collect()
}

fn os_name() -> String {
    let file = text(Path::new("/etc/os-release")).unwrap_or_default();
    file.lines()
        .find_map(|line| line.strip_prefix("PRETTY_NAME="))
        .map_or_else(|| "unknown".to_owned(), |name| name.trim_matches('"').to_owned())
}

/// Ways from this user to the node's BMC: the IPMI device, and the network card that a BMC shows to its host over USB,
/// through which Redfish answers. Nothing is sent.
fn bmc(host: &Host) -> Item {
    let there: Vec<PathBuf> = ["ipmi0", "ipmi/0", "ipmidev/0"]
        .iter()
        .map(|name| host.dev.join(name))
        .filter(|path| path.exists())
        .collect();
    // O_NONBLOCK: opening must not wait for hardware.
    let opened = there.iter().find(|path| {
        std::fs::OpenOptions::new().read(true).write(true).custom_flags(0o4000).open(path).is_ok()
    });
    let class = host.sysfs.join("class/net");
    let cards: Vec<String> = names(&class)
        .into_iter()
        .filter(|name| {
            let driver = std::fs::canonicalize(class.join(name).join("device/driver")).ok();
            driver
                .and_then(|path| path.file_name().map(|name| name.to_string_lossy().into_owned()))
                .is_some_and(|driver| {
                    matches!(driver.as_str(), "cdc_ether" | "rndis_host" | "cdc_ncm" | "cdc_subset")
                })
        })
        .collect();
    let device = match (opened, there.first()) {
        (Some(path), _) if system::is_root() => format!("{} opens, for root", path.display()),
        (Some(path), _) => format!("{} opens for this user", path.display()),
        (None, Some(path)) => format!("{} is refused to this user", path.display()),
        (None, None) => "no IPMI device".to_owned(),
    };
    let network = if cards.is_empty() {
        "no USB network card".to_owned()
    } else {
        format!("{} leads to it over USB", cards.join(" "))
    };
    let seen = format!("{device}, {network}");
    if opened.is_some() && cards.is_empty() && system::is_root() {
        return Item::unavailable("audit", "bmc_reachable", format!("{seen}: look as an ordinary user"));
    }
    Item::flag("audit", "bmc_reachable", opened.is_some() || !cards.is_empty(), false, Verdict::Fail, seen)
        .by("ls -l /dev/ipmi*; ls -l /sys/class/net/*/device/driver | grep -e cdc -e rndis")
        .mend("leave the IPMI device to root, and turn the BMC's host interface off (Redfish: HostInterfaces, InterfaceEnabled false)")
}

fn rshim(host: &Host) -> Item {
    let mut there: Vec<String> =
        names(&host.dev).into_iter().filter(|name| name.starts_with("rshim")).collect();
    there.extend(
        names(&host.sysfs.join("class/net")).into_iter().filter(|name| name.starts_with("tmfifo_net")),
    );
    let dpu = names(&host.sysfs.join("bus/pci/devices")).iter().any(|device| {
        // Mellanox functions a2d2 to a2dc are BlueField.
        let read = |name: &str| host.sys(&format!("bus/pci/devices/{device}/{name}")).unwrap_or_default();
        read("vendor") == "0x15b3" && read("device").starts_with("0xa2d")
    });
    if !dpu && there.is_empty() {
        return Item::not_applicable(
            "audit",
            "dpu_rshim_reachable",
            "no_dpu: no BlueField function in PCI sysfs",
        );
    }
    let seen = if there.is_empty() { "no RShim device".to_owned() } else { there.join(" ") };
    Item::flag("audit", "dpu_rshim_reachable", !there.is_empty(), false, Verdict::Fail, seen)
        .by("ls /dev/rshim* /sys/class/net | grep -e rshim -e tmfifo")
        .mend("put the DPU into zero-trust mode, which takes RShim from the host")
}

fn kernel_outdated(host: &Host) -> Item {
    let running = host.proc("sys/kernel/osrelease").unwrap_or_default();
    // Only kernels of the same flavour (the text after the version: amd64, generic ...) are compared.
    let flavour = |release: &str| release.rsplit('-').next().unwrap_or_default().to_owned();
    let installed: Vec<String> = names(Path::new("/boot"))
        .into_iter()
        .filter_map(|name| name.strip_prefix("vmlinuz-").map(str::to_owned))
        .filter(|release| flavour(release) == flavour(&running))
        .collect();
    if !installed.contains(&running) {
        return Item::unavailable(
            "audit",
            "kernel_outdated",
            format!("/boot does not show the running kernel {running}"),
        );
    }
    let newer = installed.iter().find(|release| !system::at_least(&running, release));
    let seen = newer.map_or_else(|| running.clone(), |newer| format!("{running} runs, {newer} is installed"));
    Item::flag("audit", "kernel_outdated", newer.is_some(), false, Verdict::Warn, seen)
        .by("uname -r; ls /boot/vmlinuz-*")
        .mend("reboot the node into the newest kernel")
}

fn nested(host: &Host) -> Item {
    let modules = ["kvm_intel", "kvm_amd"];
    let found = modules.iter().find_map(|name| host.sys(&format!("module/{name}/parameters/nested")));
    match found {
        None => {
            Item::not_applicable("audit", "nested_virtualization", "no_virtualization: KVM is not loaded")
        }
        Some(value) => {
            let on = matches!(value.as_str(), "Y" | "1");
            Item::flag("audit", "nested_virtualization", on, false, Verdict::Warn, format!("nested={value}"))
                .by("cat /sys/module/kvm_*/parameters/nested")
                .mend("options kvm_intel nested=0 (or kvm_amd) in /etc/modprobe.d")
        }
    }
}
