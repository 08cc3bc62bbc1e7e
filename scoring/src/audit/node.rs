//! Inventory and set-up of this node, without GPUs.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::system::{self, Host, find, names, text};
use super::{Item, Mount, Verdict};

/// Published minimum of the NVIDIA Container Toolkit, October 2026.
const CONTAINER_TOOLKIT_MINIMUM: &str = "1.19.1";

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
    let ports = ports(host);
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
pub fn audit(host: &Host) -> Vec<Item> {
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
    items.push(fabric(host));
    items.push(partition_keys(host));
    items.push(device_refused(host, "bmc_reachable", &["ipmi0", "ipmi/0", "ipmidev/0"], "the IPMI device"));
    items.push(rshim(host));
    items.push(kernel_outdated(host));
    items.push(nested(host));
    items.push(nccl_forbidden());
    items.push(version(s, "nvidia-container-toolkit", "nvidia-ctk", CONTAINER_TOOLKIT_MINIMUM));
    items.extend(file_systems(host));
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
    items.extend(exporters());
    items.extend(health(host));
    items.into_iter().map(|item| item.on(&host.node)).collect()
}

fn os_name() -> String {
    let file = text(Path::new("/etc/os-release")).unwrap_or_default();
    file.lines()
        .find_map(|line| line.strip_prefix("PRETTY_NAME="))
        .map_or_else(|| "unknown".to_owned(), |name| name.trim_matches('"').to_owned())
}

struct Port {
    path: PathBuf,
    name: String,
    active: bool,
    ethernet: bool,
}

fn ports(host: &Host) -> Vec<Port> {
    let class = host.sysfs.join("class/infiniband");
    let mut ports = Vec::new();
    for device in names(&class) {
        let folder = class.join(&device).join("ports");
        for port in names(&folder) {
            let path = folder.join(&port);
            let read = |name: &str| text(&path.join(name)).unwrap_or_default();
            ports.push(Port {
                name: format!("{device}/{port}"),
                active: read("state").starts_with("4:"),
                ethernet: read("link_layer") == "Ethernet",
                path,
            });
        }
    }
    ports
}

fn fabric(host: &Host) -> Item {
    let ports = ports(host);
    let active: Vec<&Port> = ports.iter().filter(|port| port.active).collect();
    let link = match active.first() {
        None => "none",
        Some(_) if active.iter().any(|port| !port.ethernet) => "InfiniBand",
        Some(_) => "RoCE",
    };
    let seen = if ports.is_empty() {
        "no RDMA device in /sys/class/infiniband".to_owned()
    } else {
        let names: Vec<&str> = active.iter().map(|port| port.name.as_str()).collect();
        format!("{link}: {} of {} ports active ({})", active.len(), ports.len(), names.join(" "))
    };
    Item::flag("audit", "fabric_rdma", !active.is_empty(), true, Verdict::Warn, seen)
        .param("link", link)
        .by("ibstat; cat /sys/class/infiniband/*/ports/*/state")
        .mend("bring the ports up; multi-node training over TCP is many times slower")
}

/// 0x7fff and 0xffff are the default partition: limited and full membership.
fn partition_keys(host: &Host) -> Item {
    let active: Vec<Port> = ports(host).into_iter().filter(|port| port.active && !port.ethernet).collect();
    if active.is_empty() {
        return Item::not_applicable(
            "audit",
            "ib_pkey_partitioned",
            "no_infiniband: no active InfiniBand port",
        );
    }
    let mut open = Vec::new();
    for port in &active {
        let folder = port.path.join("pkeys");
        let keys: Vec<u32> = names(&folder)
            .iter()
            .filter_map(|name| text(&folder.join(name)))
            .filter_map(|key| u32::from_str_radix(key.trim_start_matches("0x"), 16).ok())
            .filter(|key| *key != 0)
            .collect();
        if keys.is_empty() {
            return Item::unavailable(
                "audit",
                "ib_pkey_partitioned",
                format!("{} shows no partition key", port.name),
            );
        }
        let own = keys.iter().any(|key| key & 0x7fff != 0x7fff);
        if !own || keys.contains(&0xffff) {
            open.push(port.name.clone());
        }
    }
    let seen = if open.is_empty() {
        format!("{} ports in a partition of their own", active.len())
    } else {
        format!("only or full default partition on {}", open.join(" "))
    };
    Item::flag("audit", "ib_pkey_partitioned", open.is_empty(), true, Verdict::Fail, seen)
        .by("cat /sys/class/infiniband/*/ports/*/pkeys/* | sort | uniq -c")
        .mend("give every tenant a partition of its own and limited membership in the default one")
}

fn device_refused(host: &Host, metric: &str, devices: &[&str], what: &str) -> Item {
    let there: Vec<PathBuf> =
        devices.iter().map(|name| host.dev.join(name)).filter(|path| path.exists()).collect();
    // O_NONBLOCK: opening must not wait for hardware; nothing is sent.
    let opened = there.iter().find(|path| {
        std::fs::OpenOptions::new().read(true).write(true).custom_flags(0o4000).open(path).is_ok()
    });
    let seen = match (opened, there.first()) {
        (Some(path), _) => format!("{} opens for this user", path.display()),
        (None, Some(path)) => format!("{} is refused to this user", path.display()),
        (None, None) => format!("{what} is not there"),
    };
    Item::flag("audit", metric, opened.is_some(), false, Verdict::Fail, seen)
        .by("ls -l /dev/ipmi*")
        .mend("leave the IPMI device to root, or unload ipmi_devintf on tenants' nodes")
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

/// Settings that fix NCCL's choices for every job: the review calls them a fault when a provider sets them.
fn nccl_forbidden() -> Item {
    const FORBIDDEN: [&str; 3] = ["NCCL_MIN_NCHANNELS", "NCCL_PROTO", "NCCL_ALGO"];
    let home = std::env::var("HOME").unwrap_or_default();
    let mut found = Vec::new();
    for file in ["/etc/nccl.conf".to_owned(), format!("{home}/.nccl.conf")] {
        for line in text(Path::new(&file)).unwrap_or_default().lines() {
            let name = line.split('=').next().unwrap_or_default().trim();
            if FORBIDDEN.contains(&name) {
                found.push(format!("{name} ({file})"));
            }
        }
    }
    for name in FORBIDDEN {
        if std::env::var_os(name).is_some() {
            found.push(format!("{name} (environment)"));
        }
    }
    let seen = if found.is_empty() { "none set".to_owned() } else { found.join(", ") };
    Item::value("audit", "nccl_forbidden", found.len() as f64, seen.clone())
        .judged(if found.is_empty() { Verdict::Pass } else { Verdict::Fail })
        .param("variables", seen)
        .by("env | grep ^NCCL_; cat /etc/nccl.conf")
        .mend("remove them: NCCL chooses better by itself, and they hide faults")
}

fn version(stage: &str, component: &str, program: &str, minimum: &str) -> Item {
    let item = match find(program) {
        None => Item::unavailable(stage, "version_at_minimum", format!("{program} is not in PATH")),
        Some(path) => match system::run(path, &["--version"]) {
            Ok(ran) if ran.ok() => {
                let version = ran
                    .out
                    .split_whitespace()
                    .find(|word| word.contains('.') && word.starts_with(|c: char| c.is_ascii_digit()))
                    .unwrap_or_default()
                    .to_owned();
                let good = system::at_least(&version, minimum);
                Item::flag(
                    stage,
                    "version_at_minimum",
                    good,
                    true,
                    Verdict::Fail,
                    format!("{version}, minimum {minimum}"),
                )
                .param("version", version)
            }
            Ok(ran) => Item::unknown(stage, "version_at_minimum", ran.complaint()),
            Err(why) => Item::unknown(stage, "version_at_minimum", why),
        },
    };
    item.param("component", component)
        .param("minimum", minimum)
        .by(&format!("{program} --version"))
        .mend(&format!("update {component} to {minimum} or later"))
}

/// Kernel file systems and what containers stack up: no storage of the cluster.
const PSEUDO: [&str; 31] = [
    "autofs",
    "binfmt_misc",
    "bpf",
    "cgroup",
    "cgroup2",
    "configfs",
    "debugfs",
    "devpts",
    "devtmpfs",
    "efivarfs",
    "fusectl",
    "fuse.gvfsd-fuse",
    "hugetlbfs",
    "mqueue",
    "nsfs",
    "overlay",
    "proc",
    "pstore",
    "ramfs",
    "rpc_pipefs",
    "securityfs",
    "selinuxfs",
    "squashfs",
    "sysfs",
    "tmpfs",
    "tracefs",
    "fuse.lxcfs",
    "fuse.snapfuse",
    "nfsd",
    "devfs",
    "rootfs",
];
/// File systems that many nodes share.
const NETWORK: [&str; 20] = [
    "nfs",
    "nfs4",
    "lustre",
    "wekafs",
    "beegfs",
    "gpfs",
    "ceph",
    "fuse.ceph",
    "cifs",
    "smb3",
    "9p",
    "virtiofs",
    "fuse.sshfs",
    "glusterfs",
    "fuse.glusterfs",
    "fuse.juicefs",
    "fuse.s3fs",
    "fuse.gcsfuse",
    "pvfs2",
    "panfs",
];

/// Mounts by mount point; the last one mounted there wins.
pub fn mounts(host: &Host) -> BTreeMap<String, Mount> {
    // The thread's own view: /proc/self follows the mount namespace.
    let table = host.proc("self/mounts").or_else(|| host.proc("mounts")).unwrap_or_default();
    let mut mounts = BTreeMap::new();
    for line in table.lines() {
        let mut words = line.split(' ');
        let (Some(source), Some(target), Some(fstype)) = (words.next(), words.next(), words.next()) else {
            continue;
        };
        if PSEUDO.contains(&fstype) {
            continue;
        }
        // The kernel writes white space as octal.
        let target = target.replace("\\040", " ").replace("\\011", "\t");
        mounts.insert(target, Mount { source: source.to_owned(), fstype: fstype.to_owned() });
    }
    mounts
}

/// Where the user's home comes from.
pub fn home(mounts: &BTreeMap<String, Mount>) -> Option<String> {
    let home = std::env::var("HOME").ok().filter(|home| home.starts_with('/'))?;
    let home = std::fs::canonicalize(home).ok()?;
    let below = |target: &str| home.starts_with(target);
    let (target, mount) =
        mounts.iter().filter(|(target, _)| below(target)).max_by_key(|(target, _)| target.len())?;
    let rest = home.strip_prefix(target).map(|path| path.display().to_string()).unwrap_or_default();
    Some(format!("{} ({}) {rest}", mount.source, mount.fstype))
}

fn file_systems(host: &Host) -> Vec<Item> {
    let s = "audit";
    let mounts = mounts(host);
    let shared: Vec<(&String, &Mount)> =
        mounts.iter().filter(|(_, mount)| NETWORK.contains(&mount.fstype.as_str())).collect();
    let mut items = vec![
        match shared.first() {
            Some((target, mount)) => Item::flag(
                s,
                "mount_parallel_fs",
                true,
                true,
                Verdict::Warn,
                format!("{} on {target}", mount.fstype),
            )
            .param("fstype", mount.fstype.clone())
            .param("target", (*target).clone()),
            None => Item::flag(
                s,
                "mount_parallel_fs",
                false,
                true,
                Verdict::Warn,
                "no network or parallel file system",
            )
            .param("fstype", "none"),
        }
        .by("findmnt -t nfs,nfs4,lustre,wekafs,beegfs,gpfs,ceph")
        .mend("mount shared storage on every node"),
    ];
    // Only local file systems are asked for their space: a dead server would hold df for ever.
    let local: Vec<&str> = mounts
        .iter()
        .filter(|(_, mount)| !NETWORK.contains(&mount.fstype.as_str()) && !mount.fstype.starts_with("fuse"))
        .map(|(target, _)| target.as_str())
        .collect();
    let mut args = vec!["-P", "--"];
    args.extend(&local);
    let fullest = system::run("df", &args).ok().and_then(|ran| {
        ran.out
            .lines()
            .skip(1)
            .filter_map(|line| {
                let words: Vec<&str> = line.split_whitespace().collect();
                let percent = words.get(4)?.strip_suffix('%')?.parse::<f64>().ok()?;
                Some((percent, words.get(5..)?.join(" ")))
            })
            .max_by(|a, b| a.0.total_cmp(&b.0))
    });
    items.push(match fullest {
        Some((percent, target)) => {
            Item::value(s, "fs_used_max", percent, format!("{percent} % of {target} is used"))
                .judged(if percent <= 90.0 { Verdict::Pass } else { Verdict::Warn })
                .unit("percent")
                .by("df -P")
                .mend("make room: jobs fail in odd ways on a full file system")
        }
        None => Item::unknown(s, "fs_used_max", "df shows no local file system").unit("percent"),
    });
    items.push(nvme(host, &mounts));
    items
}

fn nvme(host: &Host, mounts: &BTreeMap<String, Mount>) -> Item {
    let s = "audit";
    // nvmeXcYnZ are paths of one multipath disk, not disks.
    let disks: Vec<String> = names(&host.sysfs.join("block"))
        .into_iter()
        .filter(|name| name.starts_with("nvme") && !name.trim_start_matches("nvme").contains('c'))
        .collect();
    if disks.is_empty() {
        return Item::not_applicable(s, "nvme_unmounted", "no_local_nvme: no NVMe disk in /sys/block");
    }
    let sources: Vec<&str> = mounts.values().map(|mount| mount.source.as_str()).collect();
    let swaps = host.proc("swaps").unwrap_or_default();
    let unused: Vec<&String> = disks
        .iter()
        .filter(|disk| {
            let folder = host.sysfs.join("block").join(disk);
            let parts: Vec<String> =
                names(&folder).into_iter().filter(|name| name.starts_with(disk.as_str())).collect();
            let used = |name: &str, path: &Path| {
                let device = format!("/dev/{name}");
                sources.contains(&device.as_str())
                    || swaps.contains(&device)
                    || !names(&path.join("holders")).is_empty()
            };
            !used(disk, &folder) && !parts.iter().any(|part| used(part, &folder.join(part)))
        })
        .collect();
    let seen = if unused.is_empty() {
        format!("{} disks, all in use", disks.len())
    } else {
        format!(
            "{} of {} not in use",
            unused.iter().map(|d| d.as_str()).collect::<Vec<_>>().join(" "),
            disks.len()
        )
    };
    Item::value(s, "nvme_unmounted", unused.len() as f64, seen)
        .judged(if unused.is_empty() { Verdict::Pass } else { Verdict::Warn })
        .by("lsblk -f")
        .mend("mount the disks as local scratch")
}

/// Metrics endpoints on their usual ports, asked on this node only.
fn exporters() -> Vec<Item> {
    const ENDPOINTS: [(&str, u16, &[&str]); 3] = [
        ("node", 9100, &["node_hwmon_temp_celsius"]),
        (
            "dcgm",
            9400,
            &[
                "DCGM_FI_PROF_SM_ACTIVE",
                "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
                "DCGM_FI_DEV_PCIE_REPLAY_COUNTER",
                "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL",
            ],
        ),
        ("slurm", 9341, &[]),
    ];
    let mut items = Vec::new();
    for (name, port, metrics) in ENDPOINTS {
        let page = scrape(port);
        let (seen, answers) = match &page {
            Ok(page) => (format!("port {port} answers with {} lines", page.lines().count()), true),
            Err(why) => (format!("port {port}: {why}"), false),
        };
        let command = format!("curl -s localhost:{port}/metrics");
        items.push(
            Item::flag("audit", "exporter", answers, true, Verdict::Warn, seen)
                .param("name", name)
                .by(&command)
                .mend(&format!("run the {name} exporter on every node")),
        );
        for metric in metrics {
            // An endpoint elsewhere may publish it; here nobody does.
            let published = page.as_ref().is_ok_and(|page| page.lines().any(|line| line.starts_with(metric)));
            let seen = match &page {
                Ok(_) if published => format!("{name} exporter publishes it"),
                Ok(_) => format!("{name} exporter does not publish it"),
                Err(_) => format!("no {name} exporter answers on port {port}"),
            };
            items.push(
                Item::flag("audit", "exporter_metric", published, true, Verdict::Warn, seen)
                    .param("name", *metric)
                    .by(&command)
                    .mend(&format!("add {metric} to the exporter's counters")),
            );
        }
    }
    items
}

fn scrape(port: u16) -> Result<String, String> {
    let limit = Duration::from_millis(500);
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let mut stream = TcpStream::connect_timeout(&address, limit).map_err(|error| error.to_string())?;
    stream.set_read_timeout(Some(limit)).map_err(|error| error.to_string())?;
    stream
        .write_all(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n")
        .map_err(|error| error.to_string())?;
    let mut bytes = Vec::new();
    // A slow endpoint ends with a time-out and the part that came.
    let _ = stream.take(8 << 20).read_to_end(&mut bytes);
    let text = String::from_utf8_lossy(&bytes).into_owned();
    match text.lines().next() {
        Some(status) if status.contains(" 200") => Ok(text),
        Some(status) => Err(format!("answers {status:?}")),
        None => Err("opens but does not answer".to_owned()),
    }
}

/// Families of passive checks and the check ids that belong to them.
const FAMILIES: [(&str, &[&str]); 7] = [
    ("gpu_lost", &["gpu.count", "gpu.lost", "gpu.bus"]),
    ("pcie", &["pcie.", "gpu.pcie"]),
    ("thermal", &["gpu.temp", "gpu.thermal"]),
    ("ecc", &["gpu.ecc", "gpu.remap", "gpu.rowremap"]),
    ("xid", &["gpu.xid"]),
    ("link", &["ib.", "net.", "nvlink.", "gpu.nvlink"]),
    ("mount", &["fs.", "mount."]),
];

/// What the node's own health checks publish; another suite's checks are not recognised.
fn health(host: &Host) -> Vec<Item> {
    let s = "audit";
    let file = host.run_dir.join("verdict.json");
    let command = format!("cat {}", file.display());
    let Some(document) = text(&file) else {
        let why = format!(
            "{} is not there: none of our health checks runs here, others are not recognised",
            file.display()
        );
        let mut items = vec![
            Item::unavailable(s, "health_verdict", why.clone())
                .by(&command)
                .mend("install clustermax-healthcheck"),
            Item::unavailable(s, "health_last_run_age", why.clone()).unit("s").by(&command),
        ];
        items.extend(FAMILIES.iter().map(|(family, _)| {
            Item::unavailable(s, "health_check_family", why.clone()).param("family", *family)
        }));
        return items;
    };
    let verdict: serde_json::Value = match serde_json::from_str(&document) {
        Ok(value) => value,
        Err(error) => {
            let why = format!("{}: {error}", file.display());
            return vec![
                Item::unknown(s, "health_verdict", why.clone()),
                Item::unknown(s, "health_last_run_age", why).unit("s"),
            ];
        }
    };
    let status = verdict["status"].as_str().unwrap_or("unknown").to_owned();
    let reason = verdict["reason"].as_str().map_or(String::new(), |reason| format!(": {reason}"));
    let mut items = vec![
        Item::flag(s, "health_verdict", status != "fail", true, Verdict::Fail, format!("{status}{reason}"))
            .param("status", status)
            .by(&command)
            .mend("see `clustermax-healthcheck run`; the finding names device and action"),
    ];
    let written: Option<jiff::Timestamp> = verdict["time"].as_str().and_then(|time| time.parse().ok());
    let now =
        SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
    items.push(match written {
        Some(time) => {
            let age = (now - time.as_millisecond() as f64 / 1e3).max(0.0);
            Item::value(s, "health_last_run_age", age, format!("{age:.0} s ago"))
                .judged(if age <= 900.0 { Verdict::Pass } else { Verdict::Warn })
                .by(&command)
                .mend("see why the periodic check no longer runs (HealthCheckInterval, clustermax-watch)")
        }
        None => Item::unknown(s, "health_last_run_age", format!("{} has no time", file.display())),
    });
    let last = items.pop().map(|item| item.unit("s"));
    items.extend(last);
    items.extend(families(host));
    items
}

/// A fresh verdict proves that the checks run; which ones are switched on, the program says (the published verdict
/// leaves out checks that passed).
fn families(host: &Host) -> Vec<Item> {
    let s = "audit";
    let config = host.config.display().to_string();
    let listed = Host::program("clustermax-healthcheck")
        .ok_or_else(|| "clustermax-healthcheck is not installed".to_owned())
        .and_then(|program| system::run(&program, &["list", "--config", &config, "--node", &host.node]))
        .and_then(|ran| if ran.ok() { Ok(ran.out) } else { Err(ran.complaint()) });
    let ids = match listed {
        Ok(table) => checks_on(&table),
        Err(why) => {
            let why = format!("which checks run cannot be told: {why}");
            return FAMILIES
                .iter()
                .map(|(family, _)| {
                    Item::unavailable(s, "health_check_family", why.clone()).param("family", *family)
                })
                .collect();
        }
    };
    FAMILIES
        .iter()
        .map(|(family, prefixes)| {
            let mine: Vec<&str> = ids
                .iter()
                .map(String::as_str)
                .filter(|id| prefixes.iter().any(|prefix| id.starts_with(prefix)))
                .collect();
            let seen = if mine.is_empty() { "no check of it is on".to_owned() } else { mine.join(" ") };
            Item::flag(s, "health_check_family", !mine.is_empty(), true, Verdict::Warn, seen)
                .param("family", *family)
                .by("clustermax-healthcheck list")
                .mend("turn the family's checks on in clustermax.toml")
        })
        .collect()
}

/// Ids in the table of `clustermax-healthcheck list` that are not switched off and run in the periodic pass.
fn checks_on(table: &str) -> Vec<String> {
    table
        .lines()
        .skip(1)
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            let (id, state, modes) = (words.next()?, words.next()?, words.next()?);
            (state != "off" && modes.split(',').any(|mode| mode == "periodic")).then(|| id.to_owned())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A node whose sysfs, procfs, dev and run folder are below one temporary folder.
    fn host(dir: &Path, files: &[(&str, &str)]) -> Host {
        for (name, content) in files {
            let path = dir.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, format!("{content}\n")).unwrap();
        }
        let config = dir.join("c.toml");
        let paths: Vec<String> = ["sysfs", "procfs", "dev", "run_dir"]
            .iter()
            .map(|key| format!("{key} = \"{}/{key}\"\n", dir.display()))
            .collect();
        std::fs::write(&config, format!("[paths]\n{}", paths.concat())).unwrap();
        Host::open(Some(&config), Some("n1")).unwrap()
    }

    #[test]
    fn partition_keys_are_judged_by_membership() {
        let port = "sysfs/class/infiniband/mlx5_0/ports/1";
        for (keys, want) in [
            (["0x7fff", "0x8001"], Some(1.0)),
            (["0xffff", "0x8001"], Some(0.0)),
            (["0x7fff", "0x0000"], Some(0.0)),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let host = host(
                dir.path(),
                &[
                    (&format!("{port}/state"), "4: ACTIVE"),
                    (&format!("{port}/link_layer"), "InfiniBand"),
                    (&format!("{port}/pkeys/0"), keys[0]),
                    (&format!("{port}/pkeys/1"), keys[1]),
                ],
            );
            assert_eq!(partition_keys(&host).value, want, "{keys:?}");
            assert_eq!(fabric(&host).params["link"].to_string(), "InfiniBand");
        }
        let dir = tempfile::tempdir().unwrap();
        let item = partition_keys(&host(dir.path(), &[]));
        assert!(item.value.is_none() && item.observed.starts_with("no_infiniband: "), "{item:?}");
    }

    #[test]
    fn kernel_file_systems_are_no_storage() {
        let dir = tempfile::tempdir().unwrap();
        let table = "proc /proc proc rw 0 0\n/dev/vda1 / ext4 rw 0 0\nsrv:/data /my\\040data nfs4 rw 0 0\ntmpfs /run tmpfs rw 0 0";
        let host = host(dir.path(), &[("procfs/self/mounts", table)]);
        let found = mounts(&host);
        assert_eq!(found.keys().collect::<Vec<_>>(), ["/", "/my data"]);
        let items = file_systems(&host);
        assert_eq!((items[0].metric.as_str(), items[0].value), ("mount_parallel_fs", Some(1.0)));
    }

    #[test]
    fn an_unused_nvme_disk_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let host = host(
            dir.path(),
            &[
                ("procfs/self/mounts", "/dev/nvme0n1p1 /scratch xfs rw 0 0"),
                ("sysfs/block/nvme0n1/nvme0n1p1/size", "1"),
                ("sysfs/block/nvme1n1/size", "1"),
                ("sysfs/block/nvme2n1/holders/md0/x", "1"),
            ],
        );
        let item = nvme(&host, &mounts(&host));
        assert_eq!(item.value, Some(1.0), "{item:?}");
        assert!(item.observed.starts_with("nvme1n1 "), "{item:?}");
    }

    #[test]
    fn only_checks_that_are_on_and_periodic_count() {
        let table = "CHECK STATE MODES ACTION\ngpu.xid on prolog,periodic x\ngpu.temp off periodic x\nib.state on prolog x\n";
        assert_eq!(checks_on(table), ["gpu.xid"]);
    }

    #[test]
    fn a_half_written_verdict_is_unknown_and_none_is_unavailable() {
        use crate::record::State;
        let dir = tempfile::tempdir().unwrap();
        let states = |items: &[Item]| items.iter().map(|item| item.state).collect::<Vec<_>>();
        assert!(states(&health(&host(dir.path(), &[]))).iter().all(|state| *state == State::Unavailable));
        let cut = host(dir.path(), &[("run_dir/verdict.json", "{\"status\":\"pa")]);
        assert!(states(&health(&cut)).iter().all(|state| *state == State::Unknown));
    }
}
