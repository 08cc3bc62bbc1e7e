//! RDMA ports, partition keys, what the fabric shows to this user, names and places of network cards.

use std::collections::BTreeSet;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;

use super::system::{self, Host, find, names, text};
use super::{Item, Verdict};

const S: &str = "audit";

/// Everything about the fabric that one node shows.
pub fn audit(host: &Host) -> Vec<Item> {
    let mut items = vec![fabric(host), partition_keys(host)];
    items.extend(management(host));
    items.push(names_for_nccl(host));
    items.push(near_gpus(host));
    items
}

/// An RDMA port.
pub struct Port {
    /// Its folder in sysfs.
    pub path: PathBuf,
    /// `mlx5_0/1`
    pub name: String,
    /// State 4.
    pub active: bool,
    /// RoCE.
    pub ethernet: bool,
}

/// Firmware of the RDMA cards, each release once by board; empty without a card.
pub fn firmware(host: &Host) -> String {
    let class = host.sysfs.join("class/infiniband");
    let found: BTreeSet<String> = names(&class)
        .iter()
        .filter_map(|device| {
            let read = |name: &str| text(&class.join(device).join(name)).filter(|text| !text.is_empty());
            let release = read("fw_ver")?;
            Some(read("board_id").map_or_else(|| release.clone(), |board| format!("{board} {release}")))
        })
        .collect();
    found.into_iter().collect::<Vec<_>>().join(", ")
}

/// All RDMA ports of the node.
pub fn ports(host: &Host) -> Vec<Port> {
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

/// Whether this user may send management datagrams, and whose hosts it then sees. The host count is the decisive test
/// of a partition: keys that look right prove nothing when the whole fabric answers.
fn management(host: &Host) -> [Item; 2] {
    let (open, foreign) = ("umad_open", "fabric_foreign_hosts");
    if !ports(host).iter().any(|port| !port.ethernet) {
        let why = "no_infiniband: no InfiniBand port";
        return [Item::not_applicable(S, open, why), Item::not_applicable(S, foreign, why)];
    }
    let folder = host.dev.join("infiniband");
    let devices: Vec<PathBuf> = names(&folder)
        .iter()
        .filter(|name| name.starts_with("umad") || name.starts_with("issm"))
        .map(|name| folder.join(name))
        .collect();
    // Opening registers no agent and sends nothing.
    let opened = devices.iter().find(|path| {
        std::fs::OpenOptions::new().read(true).write(true).custom_flags(0o4000).open(path).is_ok()
    });
    let seen = match (opened, devices.len()) {
        (Some(path), _) => format!("{} opens for this user", path.display()),
        (None, 0) => "no umad device is there".to_owned(),
        (None, count) => format!("{count} umad devices are refused to this user"),
    };
    let root = system::is_root();
    let mut first = Item::flag(S, open, opened.is_some(), false, Verdict::Fail, seen.clone())
        .by("ls -l /dev/infiniband/umad*")
        .mend("leave umad to root: with it a user can query and change the fabric");
    if root && opened.is_some() {
        // Root may always open them: that says nothing about users.
        first = Item::unavailable(
            S,
            open,
            "looked at as root, to whom umad always opens; look as an ordinary user",
        );
    }
    let second = match opened {
        None => Item::value(S, foreign, 0.0, format!("{seen}: no query can be sent")),
        Some(_) => match hosts_seen() {
            Ok((others, own)) => {
                let some: Vec<&str> = others.iter().take(5).map(String::as_str).collect();
                let text = format!(
                    "{} hosts answer, {} are not of this cluster: {}",
                    own + others.len(),
                    others.len(),
                    some.join(" ")
                );
                Item::value(S, foreign, others.len() as f64, text).judged(if others.is_empty() {
                    Verdict::Pass
                } else {
                    Verdict::Fail
                })
            }
            Err(why) => Item::unavailable(S, foreign, why),
        },
    };
    let second = if second.state == crate::record::State::Measured && second.verdict == Verdict::Info {
        second.judged(Verdict::Pass)
    } else {
        second
    };
    [
        first,
        second.by("ibhosts; sinfo -N").mend(
            "a partition key (PKey) of the tenant's own, and no full membership in the default partition",
        ),
    ]
}

/// Names of hosts on the fabric that Slurm does not know, and how many it knows.
fn hosts_seen() -> Result<(Vec<String>, usize), String> {
    let program = find("ibhosts")
        .ok_or("ibhosts (infiniband-diags) is not installed, so the hosts on the fabric cannot be counted")?;
    let ran = system::run(program, &[])?;
    if !ran.ok() {
        return Err(format!("ibhosts: {}", ran.complaint()));
    }
    let known = system::run("sinfo", &["-h", "-N", "-o", "%N %n %o"])?;
    if !known.ok() {
        return Err(format!("sinfo: {}", known.complaint()));
    }
    let known: BTreeSet<String> = known.out.split_whitespace().map(|name| short(name).to_owned()).collect();
    Ok(hosts(&ran.out, &known))
}

fn short(name: &str) -> &str {
    name.split('.').next().unwrap_or(name)
}

/// `Ca : 0x... ports 1 "n1 mlx5_0"`: the word before the device is the host.
fn hosts(table: &str, known: &BTreeSet<String>) -> (Vec<String>, usize) {
    let all: BTreeSet<&str> = table
        .lines()
        .filter_map(|line| line.split('"').nth(1)?.split_whitespace().next())
        .map(short)
        .collect();
    let others: Vec<String> =
        all.iter().filter(|name| !known.contains(**name)).map(|name| (*name).to_owned()).collect();
    let own = all.len() - others.len();
    (others, own)
}

/// NCCL selects cards by name prefix: `mlx5_N`, or a name with the rail.
fn names_for_nccl(host: &Host) -> Item {
    let metric = "hca_names";
    let found = names(&host.sysfs.join("class/infiniband"));
    if found.is_empty() {
        return Item::not_applicable(S, metric, "no_rdma: no RDMA device in /sys/class/infiniband");
    }
    let usual = |name: &str| {
        let numbered = |prefix: &str| {
            name.strip_prefix(prefix)
                .is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_digit()))
        };
        ["mlx5_", "mlx4_", "bnxt_re", "ionic_", "irdma", "efa_", "hns_"].iter().any(|prefix| numbered(prefix))
            || name.starts_with("roce")
            || name.starts_with("rdmap")
            || name.starts_with("ibp")
    };
    let odd: Vec<&str> = found.iter().map(String::as_str).filter(|name| !usual(name)).collect();
    let seen = if odd.is_empty() { found.join(" ") } else { format!("unusual: {}", odd.join(" ")) };
    Item::flag(S, metric, odd.is_empty(), true, Verdict::Warn, seen)
        .by("ls /sys/class/infiniband")
        .mend("name the cards mlx5_N or roce_pN_railN, so that NCCL_IB_HCA can select them")
}

/// Every GPU has an RDMA card on its own NUMA node.
fn near_gpus(host: &Host) -> Item {
    let (metric, command) =
        ("gpus_without_near_nic", "nvidia-smi topo -m; cat /sys/bus/pci/devices/*/numa_node");
    let folder = host.sysfs.join("bus/pci/devices");
    let (mut gpus, mut cards) = (Vec::new(), BTreeSet::new());
    for address in names(&folder) {
        let read = |name: &str| text(&folder.join(&address).join(name)).unwrap_or_default();
        let (class, vendor) = (read("class"), read("vendor"));
        let numa = read("numa_node").parse::<i32>().ok().filter(|node| *node >= 0);
        let gpu = ["0x0300", "0x0302", "0x1200"].iter().any(|kind| class.starts_with(kind))
            && matches!(vendor.as_str(), "0x10de" | "0x1002");
        if gpu {
            gpus.push((address, numa));
        } else if class.starts_with("0x0207") || (class.starts_with("0x0200") && vendor == "0x15b3") {
            cards.extend(numa);
        }
    }
    if names(&host.sysfs.join("class/infiniband")).is_empty() {
        return Item::not_applicable(S, metric, "no_rdma: no RDMA device in /sys/class/infiniband");
    }
    if gpus.is_empty() || cards.is_empty() || gpus.iter().any(|(_, numa)| numa.is_none()) {
        let why = format!("{} GPUs and the cards do not all say their NUMA node", gpus.len());
        return Item::unavailable(S, metric, why).by(command);
    }
    let far: Vec<&str> = gpus
        .iter()
        .filter(|(_, numa)| numa.is_none_or(|node| !cards.contains(&node)))
        .map(|(address, _)| address.as_str())
        .collect();
    let seen = match far.len() {
        0 => format!("{} GPUs, each with an RDMA card on its NUMA node", gpus.len()),
        _ => format!("no card on the NUMA node of {}", far.join(" ")),
    };
    Item::value(S, metric, far.len() as f64, seen)
        .judged(if far.is_empty() { Verdict::Pass } else { Verdict::Warn })
        .by(command)
        .mend("give every GPU a card below its own socket or switch")
}

#[cfg(test)]
mod tests {
    use super::super::testing::host;
    use super::*;

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
                    ("sysfs/class/infiniband/mlx5_0/fw_ver", "28.43.1014"),
                    ("sysfs/class/infiniband/mlx5_0/board_id", "MT_0000000838"),
                ],
            );
            assert_eq!(partition_keys(&host).value, want, "{keys:?}");
            assert_eq!(fabric(&host).params["link"].to_string(), "InfiniBand");
            assert_eq!(firmware(&host), "MT_0000000838 28.43.1014");
            // No umad device: nothing can be asked, so nobody can be seen.
            assert_eq!(management(&host)[1].value, Some(0.0));
        }
        let dir = tempfile::tempdir().unwrap();
        let item = partition_keys(&host(dir.path(), &[]));
        assert!(item.value.is_none() && item.observed.starts_with("no_infiniband: "), "{item:?}");
    }

    #[test]
    fn hosts_of_others_are_told_from_ours() {
        let known = ["n1", "n2"].map(str::to_owned).into();
        let table = "Ca\t: 0x1 ports 1 \"n1 mlx5_0\"\nCa\t: 0x2 ports 1 \"n2.example mlx5_0\"\nCa\t: 0x3 ports 1 \"n1 mlx5_1\"\n\
                     Ca\t: 0x4 ports 1 \"other7 mlx5_0\"\n";
        assert_eq!(hosts(table, &known), (vec!["other7".to_owned()], 2));
    }

    #[test]
    fn a_gpu_without_a_card_on_its_socket_is_counted() {
        let dir = tempfile::tempdir().unwrap();
        let at = |address: &str, file: &str| format!("sysfs/bus/pci/devices/{address}/{file}");
        let mut files = vec![("sysfs/class/infiniband/mlx5_0/x".to_owned(), "1")];
        for (address, class, vendor, numa) in [
            ("0000:10:00.0", "0x030200", "0x10de", "0"),
            ("0000:90:00.0", "0x030200", "0x10de", "1"),
            ("0000:11:00.0", "0x020700", "0x15b3", "0"),
        ] {
            files.push((at(address, "class"), class));
            files.push((at(address, "vendor"), vendor));
            files.push((at(address, "numa_node"), numa));
        }
        let files: Vec<(&str, &str)> = files.iter().map(|(name, text)| (name.as_str(), *text)).collect();
        let host = host(dir.path(), &files);
        let item = near_gpus(&host);
        assert_eq!(item.value, Some(1.0), "{item:?}");
        assert!(item.observed.contains("0000:90:00.0"), "{item:?}");
        assert_eq!(names_for_nccl(&host).value, Some(1.0));
    }
}
