//! What one host has of everything that must fit together, in a form that can be laid beside other hosts'.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use healthcheck::config::Config;
use healthcheck::hostlist;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::plugstack::plugin_path;
use crate::plugin_file::PluginFile;
use crate::release::Release;
use crate::slurm_conf::{self, SlurmConf};

/// Keys of slurm.conf that decide what our programs meet.
pub(super) const KEYS: [&str; 13] = [
    "Prolog",
    "Epilog",
    "PrologFlags",
    "HealthCheckProgram",
    "HealthCheckInterval",
    "HealthCheckNodeState",
    "MessageTimeout",
    "PrologEpilogTimeout",
    "SlurmdTimeout",
    "UnkillableStepTimeout",
    "SchedulerParameters",
    "PlugStackConfig",
    "ReturnToService",
];
/// Larger files are not summed up.
const FILE_MAX: u64 = 64 * 1024 * 1024;

/// What a host is in the cluster, by slurm.conf.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Runs slurmctld.
    Controller,
    /// Runs slurmd.
    Compute,
    /// Neither: users submit here.
    Login,
}

impl Role {
    /// The word in reports.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Role::Controller => "controller",
            Role::Compute => "compute",
            Role::Login => "login",
        }
    }

    /// What slurm.conf says that the host with this name, and Slurm's name of it, is. One that runs both daemons counts
    /// as a compute node, which has more that can go wrong.
    pub(super) fn of(conf: &SlurmConf, node: &str, host: &str) -> Role {
        let short = host.split('.').next().unwrap_or(host);
        let is_us = |name: &str| name == host || name == short || name == node;
        if conf.all("NodeName").any(|line| names_in(line, "NodeName").iter().any(|n| is_us(n))) {
            return Role::Compute;
        }
        let hosts = conf.all("NodeName").flat_map(|line| names_in(line, "NodeHostname"));
        if hosts.into_iter().any(|h| is_us(&h)) {
            return Role::Compute;
        }
        let controller = |value: &str| value.split('(').next().is_some_and(|h| is_us(h.trim()));
        let keys = ["SlurmctldHost", "ControlMachine", "BackupController"];
        if keys.iter().any(|key| conf.all(key).any(controller)) { Role::Controller } else { Role::Login }
    }
}

/// `n[1-4] NodeHostname=x CPUs=8`: what the first word, or the key, lists.
fn names_in(line: &str, key: &str) -> Vec<String> {
    let mut words = line.split_whitespace();
    let first = words.next().unwrap_or_default();
    let list = if key == "NodeName" {
        first
    } else {
        let value = |w: &str| {
            let (k, v) = w.split_once('=')?;
            k.eq_ignore_ascii_case(key).then(|| v.to_string())
        };
        return words.find_map(value).and_then(|v| hostlist::expand(&v).ok()).unwrap_or_default();
    };
    hostlist::expand(list).unwrap_or_default()
}

/// Reads the facts; what is not there has the value `missing`.
pub(super) fn read(
    config: &Config,
    conf: Option<&SlurmConf>,
    slurm: Option<Release>,
    role: Role,
) -> BTreeMap<String, String> {
    let mut facts = BTreeMap::new();
    let mut put = |key: &str, value: String| facts.insert(key.to_string(), value);
    put("Slurm", slurm.map_or("missing".into(), |r| r.to_string()));
    if let Some(conf) = conf {
        for key in KEYS {
            let values: Vec<&str> = conf.all(key).filter(|v| !v.is_empty() && *v != "(null)").collect();
            put(
                &format!("slurm.conf {key}"),
                if values.is_empty() { "unset".into() } else { values.join(",") },
            );
        }
        put("plugstack.conf", plugstack(conf));
        if let Some(plugin) = plugin_path(conf) {
            put("plugin", file(&plugin));
            let release = PluginFile::read(&plugin).map_or("not a plugin".into(), |p| p.release.to_string());
            put("plugin's release", release);
        } else {
            put("plugin", "missing".into());
        }
    }
    if role == Role::Compute {
        put("configuration", file(&config.file));
        put("clustermax-drain", file(&config.paths.drain));
        let health = config.paths.drain.with_file_name("clustermax-healthcheck");
        put("clustermax-healthcheck", file(&health));
        put("state folder", owner(&config.paths.state_dir));
        let scripts = |key: &str| -> Vec<PathBuf> {
            conf.map(|c| c.all(key).flat_map(|v| slurm_conf::expand(Path::new(v.trim()))).collect())
                .unwrap_or_default()
        };
        for key in ["Prolog", "Epilog", "HealthCheckProgram"] {
            for script in scripts(key).iter().filter(|s| s.is_absolute()) {
                put(&format!("{key} {}", script.display()), file(script));
            }
        }
    }
    facts
}

/// The lines that count, in a row.
fn plugstack(conf: &SlurmConf) -> String {
    match slurm_conf::read_plugstack(&conf.plugstack()) {
        Err(_) => "missing".into(),
        Ok(lines) => {
            let words = lines.iter().map(|l| {
                format!("{} {}", if l.required { "required" } else { "optional" }, l.plugin.display())
            });
            let words: Vec<String> = words.collect();
            if words.is_empty() { "no plugin".into() } else { words.join("; ") }
        }
    }
}

/// `sha256:1a2b3c4d root 0755`: content, owner and mode of a file.
fn file(path: &Path) -> String {
    let Ok(meta) = std::fs::metadata(path) else { return "missing".into() };
    let sum = if meta.len() > FILE_MAX { None } else { std::fs::read(path).ok() };
    let sum = sum.map_or("unread".to_string(), |bytes| {
        Sha256::digest(bytes).iter().take(4).map(|b| format!("{b:02x}")).collect()
    });
    format!("sha256:{sum} {}", owner(path))
}

/// `uid 0 mode 0755`.
fn owner(path: &Path) -> String {
    std::fs::metadata(path)
        .map_or("missing".into(), |m| format!("uid {} mode {:04o}", m.uid(), m.mode() & 0o7777))
}
