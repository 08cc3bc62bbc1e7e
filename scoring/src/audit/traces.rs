//! Traces of other tenants: what belongs to users that this system does not know.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::storage;
use super::system::{self, Host, names, text};
use super::{Item, Verdict};

const S: &str = "audit";
/// Where a tenant leaves files behind.
const FOLDERS: [&str; 7] = ["/home", "/tmp", "/var/tmp", "/dev/shm", "/scratch", "/mnt", "/local"];
/// Ordinary users begin here.
const FIRST_USER: u32 = 1000;
/// `nobody`, to whom user namespaces and squashed root map.
const NOBODY: u32 = 65534;
/// Names asked of the name service at most: each may be a query to a server.
const ASKED: usize = 32;

/// Files and processes whose owner nobody knows here. Finding none proves nothing: that a node is wiped between tenants
/// is the provider's to state.
pub fn audit(host: &Host) -> Item {
    let metric = "foreign_traces";
    let mut owners: BTreeMap<u32, Vec<String>> = BTreeMap::new();
    let mut folders: Vec<PathBuf> = FOLDERS.iter().map(PathBuf::from).collect();
    folders.extend(
        storage::mounts(host)
            .iter()
            .filter(|(target, mount)| {
                mount.source.starts_with("/dev/nvme")
                    && target.as_str() != "/"
                    && !target.starts_with("/boot")
            })
            .map(|(target, _)| PathBuf::from(target)),
    );
    let mut looked: i64 = 0;
    for folder in &folders {
        for name in names(folder).into_iter().take(10_000) {
            let path = folder.join(name);
            let Ok(meta) = std::fs::symlink_metadata(&path) else { continue };
            looked += 1;
            if meta.uid() >= FIRST_USER && meta.uid() != NOBODY {
                owners.entry(meta.uid()).or_default().push(path.display().to_string());
            }
        }
    }
    for pid in names(&host.procfs).iter().filter(|name| name.bytes().all(|byte| byte.is_ascii_digit())) {
        let Some(status) = host.proc(&format!("{pid}/status")) else { continue };
        looked += 1;
        let uid = status
            .lines()
            .find_map(|line| line.strip_prefix("Uid:")?.split_whitespace().next()?.parse::<u32>().ok());
        if let Some(uid) = uid.filter(|uid| *uid >= FIRST_USER && *uid != NOBODY) {
            owners.entry(uid).or_default().push(format!("process {pid}"));
        }
    }
    let known = known_users();
    let strangers: Vec<(u32, Vec<String>)> = owners
        .into_iter()
        .filter(|(uid, _)| !known.contains(uid))
        .take(ASKED)
        .filter(|(uid, _)| !named(*uid))
        .collect();
    let command = "find /home /tmp /var/tmp /dev/shm -maxdepth 1 -nouser";
    if strangers.is_empty() {
        // Looked at, and no proof: the criterion leaves it to the statement.
        return Item::value(
            S,
            metric,
            0.0,
            "no file and no process of an unknown user; that nodes are wiped between tenants is the provider's to state",
        )
        .param("looked", looked)
        .by(command);
    }
    let count: usize = strangers.iter().map(|(_, traces)| traces.len()).sum();
    let some: Vec<String> =
        strangers.iter().take(3).map(|(uid, traces)| format!("uid {uid}: {}", traces[0])).collect();
    Item::value(
        S,
        metric,
        count as f64,
        format!("{count} of users that nobody knows here: {}", some.join(", ")),
    )
    .judged(Verdict::Fail)
    .by(command)
    .mend("wipe and set up a node anew before it goes to another tenant")
}

fn known_users() -> Vec<u32> {
    let table = text(Path::new("/etc/passwd")).unwrap_or_default();
    table.lines().filter_map(|line| line.split(':').nth(2)?.parse().ok()).collect()
}

/// The name service knows the user, or cannot be asked: then nobody is called a stranger.
fn named(uid: u32) -> bool {
    // getent exits 2 for an unknown key.
    system::run("getent", &["passwd", &uid.to_string()]).map_or(true, |ran| ran.code != Some(2))
}
