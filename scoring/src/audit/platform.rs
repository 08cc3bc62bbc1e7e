//! Platform and software as jobs meet them: kernel settings, NCCL, MPI, modules, containers.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::fabric;
use super::system::{self, Host, find, find_system, names, text};
use super::{Item, Verdict};

const S: &str = "audit";

/// Everything of it that one node shows.
pub fn audit(host: &Host) -> Vec<Item> {
    let mut items = settings(host);
    items.push(nccl_forbidden());
    items.push(nccl_fits(host));
    items.push(nccl_profiler());
    items.push(nccl_topology());
    items.push(hpcx());
    items.extend(modules());
    items.push(docker());
    items.push(identity());
    items
}

/// Governor, huge pages and IOMMU: what costs speed when it is left as a general-purpose system has it.
fn settings(host: &Host) -> Vec<Item> {
    let metric = "platform_setting";
    let policies = host.sysfs.join("devices/system/cpu/cpufreq");
    let governors: Vec<String> = names(&policies)
        .iter()
        .filter(|name| name.starts_with("policy"))
        .filter_map(|name| text(&policies.join(name).join("scaling_governor")))
        .collect();
    let slow = governors.iter().find(|governor| *governor != "performance");
    let governor = match (governors.len(), slow) {
        (0, _) => Item::unavailable(
            S,
            metric,
            "not_shown: no cpufreq here, the firmware or the hypervisor sets the clocks",
        ),
        (count, slow) => Item::flag(
            S,
            metric,
            slow.is_none(),
            true,
            Verdict::Warn,
            format!("{} on {count} policies", slow.map_or("performance", String::as_str)),
        ),
    }
    .param("setting", "cpu_governor")
    .by("cat /sys/devices/system/cpu/cpufreq/policy*/scaling_governor")
    .mend("cpupower frequency-set -g performance");
    let pages = host.sys("kernel/mm/transparent_hugepage/enabled");
    let chosen = pages.as_deref().and_then(|text| text.split('[').nth(1)?.split(']').next());
    let pages = match chosen {
        None => Item::unavailable(S, metric, "not_shown: transparent_hugepage is not in sysfs"),
        Some(word) => Item::flag(
            S,
            metric,
            word == "madvise",
            true,
            Verdict::Warn,
            format!("transparent huge pages: {word}"),
        ),
    }
    .param("setting", "thp")
    .by("cat /sys/kernel/mm/transparent_hugepage/enabled")
    .mend("transparent_hugepage=madvise on the kernel's command line");
    vec![governor, pages, iommu(host), memlock(host)]
}

/// RDMA registers memory by locking it: a job with a small limit fails in the middle of a collective.
fn memlock(host: &Host) -> Item {
    let metric = "platform_setting";
    let limits = host.proc("self/limits").unwrap_or_default();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"));
    let soft = line.and_then(|line| line.split_whitespace().next());
    match soft {
        None => Item::unavailable(S, metric, "/proc/self/limits names no limit of locked memory"),
        Some(soft) => Item::flag(
            S,
            metric,
            soft == "unlimited",
            true,
            Verdict::Warn,
            format!("locked memory of a job: {soft}"),
        ),
    }
    .param("setting", "memlock")
    .by("srun sh -c 'ulimit -l'")
    .mend("LimitMEMLOCK=infinity in slurmd.service, and PropagateResourceLimitsExcept=MEMLOCK in slurm.conf")
}

/// GPUs and RDMA cards in an IOMMU group of type DMA have every transfer translated.
fn iommu(host: &Host) -> Item {
    let (metric, folder) = ("platform_setting", host.sysfs.join("bus/pci/devices"));
    let mut translated = Vec::new();
    let mut groups = 0;
    for address in names(&folder) {
        let read = |name: &str| text(&folder.join(&address).join(name)).unwrap_or_default();
        let class = read("class");
        let used = ["0x0300", "0x0302", "0x1200", "0x0207"].iter().any(|kind| class.starts_with(kind));
        if !used || !matches!(read("vendor").as_str(), "0x10de" | "0x1002" | "0x15b3") {
            continue;
        }
        let kind = read("iommu_group/type");
        groups += usize::from(!kind.is_empty());
        if kind.starts_with("DMA") {
            translated.push(address);
        }
    }
    let cmdline = host.proc("cmdline").unwrap_or_default();
    let word = cmdline.split_whitespace().find(|word| word.contains("iommu"));
    let item = if groups > 0 {
        let seen = match translated.first() {
            None => format!("{groups} GPUs and cards, none with translated DMA"),
            Some(first) => {
                format!("{} of {groups} GPUs and cards with translated DMA, {first} first", translated.len())
            }
        };
        Item::flag(S, metric, translated.is_empty(), true, Verdict::Warn, seen)
    } else if host.sysfs.join("class/iommu").is_dir() && names(&host.sysfs.join("class/iommu")).is_empty() {
        Item::flag(S, metric, true, true, Verdict::Warn, "no IOMMU is on")
    } else {
        match word {
            Some(word) => Item::flag(
                S,
                metric,
                word.ends_with("pt") || word.ends_with("off"),
                true,
                Verdict::Warn,
                word,
            ),
            None => Item::unavailable(
                S,
                metric,
                "not_shown: neither the devices' groups nor the command line say how an IOMMU is set",
            ),
        }
    };
    item.param("setting", "iommu")
        .by("cat /sys/bus/pci/devices/*/iommu_group/type; cat /proc/cmdline")
        .mend("iommu=pt on the kernel's command line")
}

/// NCCL's settings as a job gets them: name, value, where it comes from. The environment comes last, as NCCL reads it.
pub fn nccl_settings() -> Vec<(String, String, String)> {
    let home = std::env::var("HOME").unwrap_or_default();
    let set = std::env::var("NCCL_CONF_FILE").ok().filter(|file| file.starts_with('/'));
    let mut found = Vec::new();
    for file in ["/etc/nccl.conf".to_owned(), set.unwrap_or_else(|| format!("{home}/.nccl.conf"))] {
        for line in text(Path::new(&file)).unwrap_or_default().lines() {
            let line = line.split('#').next().unwrap_or_default();
            if let Some((name, value)) = line.split_once('=') {
                found.push((name.trim().to_owned(), value.trim().to_owned(), file.clone()));
            }
        }
    }
    for (name, value) in std::env::vars().filter(|(name, _)| name.starts_with("NCCL_")) {
        found.push((name, value, "the job's environment".to_owned()));
    }
    found
}

/// Settings that fix NCCL's choices for every job: the review calls them a fault when a provider sets them.
fn nccl_forbidden() -> Item {
    const FORBIDDEN: [&str; 3] = ["NCCL_MIN_NCHANNELS", "NCCL_PROTO", "NCCL_ALGO"];
    let found: Vec<String> = nccl_settings()
        .into_iter()
        .filter(|(name, ..)| FORBIDDEN.contains(&name.as_str()))
        .map(|(name, value, origin)| format!("{name}={value} ({origin})"))
        .collect();
    let seen = if found.is_empty() { "none set".to_owned() } else { found.join(", ") };
    Item::value(S, "nccl_forbidden", found.len() as f64, seen.clone())
        .judged(if found.is_empty() { Verdict::Pass } else { Verdict::Fail })
        .param("variables", seen)
        .by("env | grep ^NCCL_; cat /etc/nccl.conf")
        .mend("remove them: NCCL chooses better by itself, and they hide faults")
}

/// NCCL's configuration against the fabric that is there.
fn nccl_fits(host: &Host) -> Item {
    let (metric, command) = ("nccl_config_fits", "cat /etc/nccl.conf; env | grep ^NCCL_");
    let ports = fabric::ports(host);
    let active: Vec<_> = ports.iter().filter(|port| port.active).collect();
    if active.is_empty() {
        return Item::not_applicable(S, metric, "no_rdma: no active RDMA port").by(command);
    }
    let settings = nccl_settings();
    let of = |name: &str| settings.iter().rev().find(|(found, ..)| found == name);
    let mut wrong = Vec::new();
    if let Some((_, value, origin)) = of("NCCL_IB_DISABLE").filter(|(_, value, _)| value == "1") {
        wrong.push(format!("NCCL_IB_DISABLE={value} ({origin}) turns the fabric off"));
    }
    if let Some((_, value, origin)) = of("NCCL_P2P_DISABLE").filter(|(_, value, _)| value == "1") {
        wrong.push(format!("NCCL_P2P_DISABLE={value} ({origin}) turns NVLink off"));
    }
    if let Some((_, value, origin)) = of("NCCL_IB_HCA") {
        let devices: Vec<&str> = ports.iter().filter_map(|port| port.name.split('/').next()).collect();
        let unknown = value
            .trim_start_matches(['^', '='])
            .split(',')
            .map(|one| one.split(':').next().unwrap_or(one))
            .find(|name| !name.is_empty() && !devices.iter().any(|device| device.starts_with(name)));
        if let Some(name) = unknown {
            wrong.push(format!("NCCL_IB_HCA names {name} ({origin}), which is no card here"));
        }
    }
    let roce = active.iter().all(|port| port.ethernet);
    if roce && of("NCCL_IB_GID_INDEX").is_none_or(|(_, value, _)| value != "3") {
        wrong.push("NCCL_IB_GID_INDEX is not 3, the RoCEv2 address".to_owned());
    }
    let seen = if wrong.is_empty() {
        format!("{} settings of NCCL, none against the fabric", settings.len())
    } else {
        wrong.join("; ")
    };
    Item::flag(S, metric, wrong.is_empty(), true, Verdict::Warn, seen)
        .by(command)
        .mend("NCCL_IB_GID_INDEX=3 in /etc/nccl.conf on RoCEv2; nothing that turns a path off")
}

/// Folders of libraries, as the dynamic linker and HPC packages use them.
fn library_folders() -> Vec<PathBuf> {
    let set = std::env::var("LD_LIBRARY_PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> =
        set.split(':').filter(|dir| dir.starts_with('/')).map(PathBuf::from).collect();
    for fixed in [
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib/aarch64-linux-gnu",
        "/usr/lib64",
        "/usr/local/lib",
        "/opt/nccl/lib",
    ] {
        folders.push(PathBuf::from(fixed));
    }
    folders
}

fn nccl_profiler() -> Item {
    let metric = "nccl_profiler";
    let set = nccl_settings().into_iter().find(|(name, ..)| name == "NCCL_PROFILER_PLUGIN");
    let found = library_folders().iter().find_map(|folder| {
        names(folder)
            .into_iter()
            .find(|name| name.starts_with("libnccl-profiler"))
            .map(|name| folder.join(name))
    });
    let seen = match (&set, &found) {
        (Some((_, value, origin)), _) => format!("NCCL_PROFILER_PLUGIN={value} ({origin})"),
        (None, Some(path)) => path.display().to_string(),
        (None, None) => {
            "no libnccl-profiler*.so among the library folders, NCCL_PROFILER_PLUGIN is not set".to_owned()
        }
    };
    Item::flag(S, metric, set.is_some() || found.is_some(), true, Verdict::Warn, seen)
        .by("ldconfig -p | grep libnccl-profiler; env | grep NCCL_PROFILER")
        .mend("install NCCL's inspector or another profiler plug-in")
}

/// A topology file on the host is of no use to a container that does not see it.
fn nccl_topology() -> Item {
    let metric = "nccl_topology_mounted";
    let named =
        nccl_settings().into_iter().find(|(name, ..)| name == "NCCL_TOPO_FILE").map(|(_, value, _)| value);
    let usual = [
        "/var/run/nvidia-topologyd/virtualTopology.xml",
        "/etc/nccl/topo.xml",
        "/opt/microsoft/ndv5-topo.xml",
    ];
    let file =
        named.or_else(|| usual.iter().find(|path| Path::new(path).is_file()).map(|path| (*path).to_owned()));
    let Some(file) = file else {
        return Item::not_applicable(
            S,
            metric,
            "no_topology_file: NCCL_TOPO_FILE is not set and no usual file is there",
        );
    };
    let folder = Path::new("/etc/enroot/mounts.d");
    let mounts: Vec<String> = names(folder).iter().filter_map(|name| text(&folder.join(name))).collect();
    let parent = Path::new(&file).parent().map(|dir| dir.display().to_string()).unwrap_or_default();
    let mounted = mounts.iter().any(|text| {
        text.lines()
            .filter_map(|line| line.split_whitespace().next())
            .any(|source| source == file || source == parent)
    });
    let seen = if mounted {
        format!("{file} is mounted by enroot")
    } else {
        format!("{file} is in no file of {}", folder.display())
    };
    Item::flag(S, metric, mounted, true, Verdict::Warn, seen)
        .by("cat /etc/enroot/mounts.d/*; env | grep NCCL_TOPO_FILE")
        .mend("name the file in /etc/enroot/mounts.d, so that every container has it")
}

fn hpcx() -> Item {
    let metric = "mpi_hpcx";
    let home = std::env::var("HPCX_HOME").ok().filter(|home| !home.is_empty());
    let mpirun = find("mpirun").and_then(|path| std::fs::canonicalize(path).ok());
    let by_path = mpirun.as_ref().filter(|path| path.to_string_lossy().contains("hpcx"));
    let seen = match (&home, by_path, &mpirun) {
        (Some(home), ..) => format!("HPCX_HOME={home}"),
        (None, Some(path), _) => path.display().to_string(),
        (None, None, Some(path)) => format!("{} is not HPC-X", path.display()),
        (None, None, None) => "no mpirun in PATH, HPCX_HOME is not set".to_owned(),
    };
    Item::flag(S, metric, home.is_some() || by_path.is_some(), true, Verdict::Warn, seen)
        .by("command -v mpirun; env | grep HPCX_HOME")
        .mend("put HPC-X's mpirun into PATH, or into a module that is loaded")
}

/// Modules that a user of GPUs looks for.
fn modules() -> Vec<Item> {
    let metric = "module_available";
    let ran = module_list(None);
    ["cuda", "hpcx", "nccl"]
        .into_iter()
        .map(|name| {
            let item = match &ran {
                Ok(ran) if ran.code == Some(9) => {
                    Item::flag(S, metric, false, true, Verdict::Warn, "there is no module command")
                }
                Ok(ran) if ran.ok() => {
                    let found =
                        ran.out.lines().find(|line| line.trim().to_ascii_lowercase().starts_with(name));
                    let seen = found.map_or_else(
                        || format!("no module begins with {name}"),
                        |line| line.trim().to_owned(),
                    );
                    Item::flag(S, metric, found.is_some(), true, Verdict::Warn, seen)
                }
                Ok(ran) => Item::unknown(S, metric, format!("module avail: {}", ran.complaint())),
                Err(why) => Item::unknown(S, metric, why.clone()),
            };
            item.param("module", name)
                .by("module -t avail")
                .mend(&format!("provide {name} as a module (Lmod)"))
        })
        .collect()
}

/// The module function comes from the system's profile. The user's own is left out: it says nothing about the cluster, and one that
/// starts a version manager took eight seconds of each node and left its processes behind.
fn module_list(home: Option<&Path>) -> Result<system::Ran, String> {
    let script =
        ". /etc/profile >/dev/null 2>&1; type module >/dev/null 2>&1 || exit 9; module -t avail 2>&1";
    let mut command = std::process::Command::new("bash");
    command.args(["--noprofile", "--norc", "-c", script]);
    if let Some(home) = home {
        command.env("HOME", home);
    }
    system::run_command(&mut command, Duration::from_secs(8), None)
}

/// Docker with NVIDIA's runtime or device interface; no container is started.
fn docker() -> Item {
    let metric = "docker_gpus";
    match find_system("docker") {
        None => Item::flag(S, metric, false, true, Verdict::Warn, "docker is not in PATH"),
        Some(path) => match system::run(path, &["info", "--format", "{{json .Runtimes}} {{json .CDISpecDirs}}"]) {
            Ok(ran) if ran.ok() => {
                let there = ran.out.contains("nvidia") || ran.out.contains("amd");
                let seen = if there { "docker info names a GPU runtime" } else { "docker info names no GPU runtime" };
                Item::flag(S, metric, there, true, Verdict::Warn, seen)
            }
            Ok(ran) => Item::flag(S, metric, false, true, Verdict::Warn, format!("docker is of no use to this user: {}", ran.complaint())),
            Err(why) => Item::unknown(S, metric, why),
        },
    }
    .by("docker info")
    .mend("install Docker with the NVIDIA Container Toolkit (nvidia-ctk runtime configure), and let users use it")
}

/// Users that come from an identity provider. None seen proves nothing about what a customer may connect.
fn identity() -> Item {
    let metric = "external_identity";
    let switch = text(Path::new("/etc/nsswitch.conf")).unwrap_or_default();
    let source = switch.lines().find_map(|line| line.trim().strip_prefix("passwd:")).and_then(|line| {
        line.split_whitespace()
            .find(|word| matches!(*word, "sss" | "ldap" | "winbind" | "oslogin" | "cache_oslogin"))
    });
    match source {
        Some(source) => {
            Item::flag(S, metric, true, true, Verdict::Warn, format!("nsswitch.conf has users from {source}"))
        }
        None => Item::unknown(
            S,
            metric,
            "nsswitch.conf names local users only; what a customer may connect is the provider's to state",
        ),
    }
    .by("grep ^passwd /etc/nsswitch.conf")
    .mend("connect the customer's identity provider (SSSD, OIDC)")
}

#[cfg(test)]
mod tests {
    use super::super::testing::host;
    use super::*;

    #[test]
    fn a_users_own_profile_is_left_out_when_modules_are_listed() {
        let home = tempfile::tempdir().unwrap();
        let mark = home.path().join("mark");
        for name in [".bash_profile", ".bash_login", ".profile", ".bashrc"] {
            std::fs::write(home.path().join(name), format!("touch {}\n", mark.display())).unwrap();
        }
        assert!(module_list(Some(home.path())).unwrap().code.is_some(), "it ends in time");
        assert!(!mark.exists());
    }

    #[test]
    fn settings_of_the_platform_are_read_from_sysfs() {
        let dir = tempfile::tempdir().unwrap();
        let device = "sysfs/bus/pci/devices/0000:10:00.0";
        let host = host(
            dir.path(),
            &[
                ("sysfs/devices/system/cpu/cpufreq/policy0/scaling_governor", "performance"),
                ("sysfs/devices/system/cpu/cpufreq/policy1/scaling_governor", "powersave"),
                ("sysfs/kernel/mm/transparent_hugepage/enabled", "always [madvise] never"),
                (
                    "procfs/self/limits",
                    "Max locked memory         8388608              8388608              bytes",
                ),
                (&format!("{device}/class"), "0x030200"),
                (&format!("{device}/vendor"), "0x10de"),
                (&format!("{device}/iommu_group/type"), "identity"),
            ],
        );
        let values: Vec<Option<f64>> = settings(&host).iter().map(|item| item.value).collect();
        assert_eq!(values, [Some(0.0), Some(1.0), Some(1.0), Some(0.0)]);
        let translated = format!("{device}/iommu_group/type");
        let host = super::super::testing::host(dir.path(), &[(&translated, "DMA-FQ")]);
        assert_eq!(iommu(&host).value, Some(0.0));
    }

    #[test]
    fn nothing_that_cannot_be_seen_is_guessed() {
        let dir = tempfile::tempdir().unwrap();
        let host = host(dir.path(), &[]);
        assert_eq!(settings(&host)[0].value, None);
        assert!(nccl_fits(&host).observed.starts_with("no_rdma: "));
    }
}
