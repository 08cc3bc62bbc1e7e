//! File systems and disks of this node.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use super::system::{self, Host, names};
use super::{Item, Mount, Verdict};

const S: &str = "audit";

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

/// File systems as a user of the node depends on them.
pub fn audit(host: &Host) -> Vec<Item> {
    let mounts = mounts(host);
    let shared: Vec<(&String, &Mount)> =
        mounts.iter().filter(|(_, mount)| NETWORK.contains(&mount.fstype.as_str())).collect();
    let mut items = vec![
        match shared.first() {
            Some((target, mount)) => Item::flag(
                S,
                "mount_parallel_fs",
                true,
                true,
                Verdict::Warn,
                format!("{} on {target}", mount.fstype),
            )
            .param("fstype", mount.fstype.clone())
            .param("target", (*target).clone()),
            None => Item::flag(
                S,
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
            Item::value(S, "fs_used_max", percent, format!("{percent} % of {target} is used"))
                .judged(if percent <= 90.0 { Verdict::Pass } else { Verdict::Warn })
                .unit("percent")
                .by("df -P")
                .mend("make room: jobs fail in odd ways on a full file system")
        }
        None => Item::unknown(S, "fs_used_max", "df shows no local file system").unit("percent"),
    });
    items.push(size(&shared));
    items.push(nvme(host, &mounts));
    items
}

/// Largest shared file system, in units of 10^12 bytes. `df` of a dead server would hold for ever, so each is asked under
/// a deadline of its own.
fn size(shared: &[(&String, &Mount)]) -> Item {
    let metric = "shared_fs_size";
    let mut largest: Option<(f64, &str)> = None;
    let mut complaint = String::new();
    for (target, _) in shared.iter().take(16) {
        let ran = system::run_for("df", &["-P", "-B1", "--", target.as_str()], Duration::from_secs(2));
        let bytes = ran
            .as_ref()
            .ok()
            .and_then(|ran| ran.out.lines().nth(1)?.split_whitespace().nth(1)?.parse::<f64>().ok());
        match bytes {
            Some(bytes) if largest.is_none_or(|(most, _)| bytes > most) => largest = Some((bytes, target)),
            Some(_) => {}
            None => complaint = format!("{target}: {}", ran.map_or_else(|why| why, |ran| ran.complaint())),
        }
    }
    let judged = |size: f64| if size >= 10.0 { Verdict::Pass } else { Verdict::Warn };
    match largest {
        Some((bytes, target)) => {
            let size = bytes / 1e12;
            Item::value(S, metric, size, format!("{size:.2} TB on {target}")).judged(judged(size))
        }
        None if shared.is_empty() => {
            Item::value(S, metric, 0.0, "no network or parallel file system").judged(judged(0.0))
        }
        None => Item::unknown(S, metric, format!("df answers for none of them: {complaint}")),
    }
    .unit("TB")
    .by("df -h -t nfs -t nfs4 -t lustre -t wekafs -t beegfs -t gpfs -t ceph")
    .mend("a reviewer asks for 10 TB of shared files")
}

/// Exports of the servers that this node mounts from, beyond what it mounts: other tenants' file systems in plain sight.
/// Only those servers are asked, nobody else's.
pub fn exports(host: &Host) -> Item {
    let (metric, command) = ("nfs_foreign_exports", "showmount -e SERVER");
    let own = "that other tenants' storage is apart is the provider's to state";
    let mounts = mounts(host);
    let mut servers: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for mount in mounts.values().filter(|mount| mount.fstype.starts_with("nfs")) {
        if let Some((server, path)) = mount.source.split_once(":/") {
            servers.entry(server).or_default().push(path);
        }
    }
    if servers.is_empty() {
        return Item::unknown(S, metric, format!("no NFS mount is here; {own}")).by(command);
    }
    let Some(showmount) = system::find_system("showmount") else {
        return Item::unavailable(S, metric, "showmount is not installed").by(command);
    };
    let (mut foreign, mut asked) = (Vec::new(), Vec::new());
    for (server, mounted) in servers.iter().take(8) {
        let Ok(ran) = system::run_for(&showmount, &["--no-headers", "-e", server], Duration::from_secs(3))
        else {
            continue;
        };
        if !ran.ok() {
            continue;
        }
        asked.push(*server);
        foreign.extend(
            ran.out
                .lines()
                .filter_map(|line| line.split_whitespace().next())
                .filter(|path| {
                    let path = path.trim_start_matches('/');
                    !mounted.iter().any(|own| own.starts_with(path) || path.starts_with(own))
                })
                .map(|path| format!("{server}:{path}")),
        );
    }
    if foreign.is_empty() {
        let seen =
            format!("{} of {} servers list their exports, none besides ours", asked.len(), servers.len());
        if asked.is_empty() {
            return Item::unknown(S, metric, format!("{seen}; {own}")).by(command);
        }
        // Looked at, and no proof: the criterion leaves it to the statement.
        return Item::value(S, metric, 0.0, format!("{seen}; {own}")).by(command);
    }
    let some: Vec<&str> = foreign.iter().take(5).map(String::as_str).collect();
    Item::value(S, metric, foreign.len() as f64, format!("not mounted here: {}", some.join(" ")))
        .judged(Verdict::Fail)
        .by(command)
        .mend("export to each tenant's own network only, and let the server list nothing to others")
}

fn nvme(host: &Host, mounts: &BTreeMap<String, Mount>) -> Item {
    // nvmeXcYnZ are paths of one multipath disk, not disks.
    let disks: Vec<String> = names(&host.sysfs.join("block"))
        .into_iter()
        .filter(|name| name.starts_with("nvme") && !name.trim_start_matches("nvme").contains('c'))
        .collect();
    if disks.is_empty() {
        return Item::not_applicable(S, "nvme_unmounted", "no_local_nvme: no NVMe disk in /sys/block");
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
    Item::value(S, "nvme_unmounted", unused.len() as f64, seen)
        .judged(if unused.is_empty() { Verdict::Pass } else { Verdict::Warn })
        .by("lsblk -f")
        .mend("mount the disks as local scratch")
}

#[cfg(test)]
mod tests {
    use super::super::testing::host;
    use super::*;

    #[test]
    fn kernel_file_systems_are_no_storage() {
        let dir = tempfile::tempdir().unwrap();
        let table = "proc /proc proc rw 0 0\n/dev/vda1 / ext4 rw 0 0\nsrv:/data /my\\040data nfs4 rw 0 0\ntmpfs /run tmpfs rw 0 0";
        let host = host(dir.path(), &[("procfs/self/mounts", table)]);
        let found = mounts(&host);
        assert_eq!(found.keys().collect::<Vec<_>>(), ["/", "/my data"]);
        let items = audit(&host);
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
}
