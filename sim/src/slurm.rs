//! Slurm's side: its configuration files, and asking it for the state of the nodes.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nvidia_ml_sim::model::GpuModel;

use crate::error::{Error, Result};
use crate::process;
use crate::state::{Layout, State};

/// What a cluster needs of Slurm and munge.
pub const PROGRAMS: [&str; 5] = ["munged", "slurmctld", "slurmd", "sinfo", "scontrol"];
/// Where the daemons and commands of distribution packages are.
pub(crate) const FOLDERS: [&str; 5] =
    ["/usr/sbin", "/usr/bin", "/usr/local/sbin", "/usr/local/bin", "/opt/slurm/sbin"];

/// Finds one of Slurm's or munge's programs.
///
/// # Errors
/// Says what to install when it is missing.
pub fn program(name: &str) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .filter(|p| p.is_absolute())
        .chain(FOLDERS.iter().map(PathBuf::from))
        .map(|folder| folder.join(name))
        .find(|p| p.is_file())
        .ok_or_else(|| {
            Error::System(format!(
                "{name} is not installed; on Debian and Ubuntu: apt-get install slurm-wlm munge"
            ))
        })
}

/// The machine's name as slurmctld and slurmd look themselves up in slurm.conf.
fn short_host_name() -> Result<String> {
    let name = crate::files::read(Path::new("/proc/sys/kernel/hostname"))?;
    Ok(name.trim().split('.').next().unwrap_or_default().to_owned())
}

/// GPU type of GRES, the part of the model's name before its form factor.
#[must_use]
pub fn gres_type(model: GpuModel) -> &'static str {
    match model {
        GpuModel::A100Sxm => "a100",
        GpuModel::H100Sxm => "h100",
        GpuModel::H200Sxm => "h200",
        GpuModel::B200 => "b200",
    }
}

/// What slurm.conf needs to know beside the cluster's record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// Short host name.
    pub name: String,
    /// Memory, MiB.
    pub memory_mib: u64,
}

impl Host {
    /// This machine.
    ///
    /// # Errors
    /// When `/proc` cannot be read.
    pub fn this() -> Result<Self> {
        Ok(Self { name: short_host_name()?, memory_mib: memory_total_kib()? / 1024 })
    }
}

/// `MemTotal` of `/proc/meminfo`, KiB.
///
/// # Errors
/// When it cannot be read.
pub(crate) fn memory_total_kib() -> Result<u64> {
    let path = Path::new("/proc/meminfo");
    let text = crate::files::read(path)?;
    text.lines()
        .find_map(|l| l.strip_prefix("MemTotal:")?.trim().strip_suffix("kB")?.trim().parse().ok())
        .ok_or_else(|| Error::Malformed {
            path: path.to_owned(),
            what: "memory information",
            detail: "it has no MemTotal line".to_owned(),
        })
}

/// Renders slurm.conf.
#[must_use]
pub fn slurm_conf(state: &State, layout: &Layout, host: &Host) -> String {
    let o = &state.options;
    let (dir, etc, log, run, var) = (
        layout.dir.display(),
        layout.etc().display().to_string(),
        layout.log().display().to_string(),
        layout.run().display().to_string(),
        layout.var().display().to_string(),
    );
    let (proctrack, task) = if state.cgroups { ("cgroup", "cgroup") } else { ("linuxproc", "none") };
    // A Slurm CPU is not one of the machine's: config_overrides lets a small machine stand for large nodes.
    let cpus = (2 * o.gpus).max(8);
    let memory = host.memory_mib;
    let host = &host.name;
    let gres =
        if o.gpus > 0 { format!(" Gres=gpu:{}:{}", gres_type(state.model()), o.gpus) } else { String::new() };
    let programs = if o.plain {
        "Prolog=/bin/true\nEpilog=/bin/true\n".to_owned()
    } else {
        format!(
            "Prolog={etc}/prolog\nEpilog={etc}/epilog\n\
             HealthCheckProgram={etc}/healthcheckprogram\nHealthCheckInterval={}\nHealthCheckNodeState=ANY\n{}",
            o.health_interval,
            if o.configless {
                // plugstack.conf beside slurm.conf travels with it.
                "SlurmctldParameters=enable_configless\n".to_owned()
            } else {
                format!("PlugStackConfig={etc}/plugstack.conf\n")
            }
        )
    };
    let mut text = format!(
        "# Written by clustermax-sim for the simulated cluster in {dir}.\n\
         ClusterName={name}\n\
         SlurmctldHost={host}(127.0.0.1)\n\
         SlurmctldPort={port}\n\
         SlurmUser=root\n\
         SlurmdUser=root\n\
         AuthType=auth/munge\n\
         CredType=cred/munge\n\
         # A requeued job waits this long before it starts again; 120 s is the default.\n\
         AuthInfo=socket={socket},cred_expire=15\n\
         MessageTimeout={message_timeout}\n\
         StateSaveLocation={var}/slurmctld\n\
         SlurmctldPidFile={run}/slurmctld.pid\n\
         SlurmctldLogFile={log}/slurmctld.log\n\
         SlurmdSpoolDir={var}/slurmd-%n\n\
         SlurmdPidFile={run}/slurmd-%n.pid\n\
         SlurmdLogFile={log}/slurmd-%n.log\n\
         ProctrackType=proctrack/{proctrack}\n\
         TaskPlugin=task/{task}\n\
         MpiDefault=none\n\
         MailProg=/bin/true\n\
         SelectType=select/cons_tres\n\
         SelectTypeParameters=CR_Core\n\
         GresTypes=gpu\n\
         SlurmdParameters=config_overrides\n\
         PrologFlags=Alloc,Contain\n\
         # A node that was lost comes back by itself; a drained one never does.\n\
         ReturnToService=1\n\
         SchedulerParameters=bf_interval=5,sched_interval=5\n\
         JobRequeue=1\n\
         {programs}",
        name = state.cluster_name(),
        port = state.ports[0],
        socket = layout.munge_socket().display(),
        message_timeout = o.message_timeout,
    );
    for (node, port) in state.node_names().iter().zip(&state.ports[1..]) {
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={cpus} RealMemory={memory}{gres}"
        );
    }
    text.push_str("PartitionName=gpu Nodes=ALL Default=YES MaxTime=INFINITE State=UP\n");
    text
}

/// Renders gres.conf: one line a node, since every node has device files of its own.
#[must_use]
pub fn gres_conf(state: &State, layout: &Layout) -> String {
    let mut text = "AutoDetect=off\n".to_owned();
    if let Some(last) = state.options.gpus.checked_sub(1) {
        for node in state.node_names() {
            let _ = writeln!(
                text,
                "NodeName={node} Name=gpu Type={} File={}/nvidia{}",
                gres_type(state.model()),
                layout.node(&node).dev().display(),
                if last == 0 { "0".to_owned() } else { format!("[0-{last}]") }
            );
        }
    }
    text
}

/// Renders cgroup.conf.
#[must_use]
pub fn cgroup_conf(state: &State, layout: &Layout) -> String {
    if state.cgroups {
        format!(
            "CgroupPlugin=cgroup/v1\nCgroupMountpoint={}\nConstrainDevices=yes\n",
            layout.cgroup().display()
        )
    } else {
        // 22.05 knows no such plug-in, and asks for none; newer ones look for cgroup v2 unless told not to.
        let plugin = if state.slurm_release.is_some() { "CgroupPlugin=disabled\n" } else { "" };
        format!(
            "# proctrack/linuxproc is used: this machine mounts no writable cgroup v1 hierarchies.\n{plugin}"
        )
    }
}

/// What Slurm says of one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeState {
    /// State in sinfo's long form, such as `idle` or `drained`, without the `*` of nodes that do not respond.
    pub state: String,
    /// Whether the node answers slurmctld.
    pub responding: bool,
    /// Reason, empty when there is none.
    pub reason: String,
}

/// Asks slurmctld for the nodes.
///
/// # Errors
/// When it does not answer within five seconds.
pub fn nodes(layout: &Layout, state: &State) -> Result<BTreeMap<String, NodeState>> {
    let mut command = state.slurm_command(layout, "sinfo", Path::new("/"))?;
    command
        .args(["--noheader", "--Node", "--format=%N|%T|%E"])
        .env("SLURM_CONF", layout.slurm_conf())
        // A user's own defaults for sinfo must not change what is read.
        .env_remove("SINFO_PARTITION")
        .env_remove("SINFO_FORMAT");
    Ok(parse_nodes(&process::output_within(&mut command, Duration::from_secs(5))?))
}

fn parse_nodes(text: &str) -> BTreeMap<String, NodeState> {
    text.lines()
        .filter_map(|line| {
            let mut fields = line.splitn(3, '|');
            let (name, state, reason) = (fields.next()?, fields.next()?, fields.next()?);
            let bare = state.trim_end_matches(|c: char| !c.is_ascii_alphabetic());
            Some((
                name.to_owned(),
                NodeState {
                    state: bare.to_owned(),
                    responding: !state.contains('*'),
                    reason: if reason == "none" { String::new() } else { reason.to_owned() },
                },
            ))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::tests::state;

    fn layout() -> Layout {
        Layout { dir: PathBuf::from("/var/lib/clustermax-sim/default") }
    }

    fn host() -> Host {
        Host { name: "vm".to_owned(), memory_mib: 24_000 }
    }

    #[test]
    fn slurm_conf_wires_the_product_in() {
        let text = slurm_conf(&state(), &layout(), &host());
        for line in [
            "ClusterName=sim3a1c",
            "SlurmctldHost=vm(127.0.0.1)",
            "SlurmctldPort=20000",
            "AuthInfo=socket=/var/lib/clustermax-sim/default/run/munge.sock,cred_expire=15",
            "ProctrackType=proctrack/cgroup",
            "PrologFlags=Alloc,Contain",
            "Prolog=/var/lib/clustermax-sim/default/etc/prolog",
            "HealthCheckInterval=5",
            "NodeName=n4 NodeHostname=vm NodeAddr=127.0.0.1 Port=20004 CPUs=16 RealMemory=24000 Gres=gpu:h100:8",
        ] {
            assert!(text.lines().any(|l| l == line), "missing: {line}\n{text}");
        }
    }

    #[test]
    fn plain_differs_only_in_what_is_ours() {
        let ours = slurm_conf(&state(), &layout(), &host());
        let mut plain = state();
        plain.options.plain = true;
        let plain = slurm_conf(&plain, &layout(), &host());
        let (ours, plain): (Vec<&str>, Vec<&str>) = (ours.lines().collect(), plain.lines().collect());
        let extra: Vec<&&str> = plain.iter().filter(|l| !ours.contains(l)).collect();
        assert_eq!(extra, [&"Prolog=/bin/true", &"Epilog=/bin/true"]);
        assert!(!plain.iter().any(|l| l.contains("HealthCheck") || l.contains("PlugStack")));
    }

    #[test]
    fn without_cgroups_or_gpus() {
        let mut state = state();
        state.cgroups = false;
        state.options.gpus = 0;
        let text = slurm_conf(&state, &layout(), &host());
        assert!(text.contains("ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\n"));
        assert!(!text.contains("Gres="));
        assert_eq!(gres_conf(&state, &layout()), "AutoDetect=off\n");
        assert!(!cgroup_conf(&state, &layout()).contains("CgroupPlugin"));
    }

    #[test]
    fn gres_files_end_in_the_index() {
        let text = gres_conf(&state(), &layout());
        assert!(text.contains(
            "NodeName=n2 Name=gpu Type=h100 File=/var/lib/clustermax-sim/default/nodes/n2/dev/nvidia[0-7]\n"
        ));
        let mut one = state();
        one.options.gpus = 1;
        assert!(gres_conf(&one, &layout()).contains("/nvidia0\n"));
    }

    #[test]
    fn sinfo_lines() {
        let nodes = parse_nodes("n1|idle|none\nn2|drained*|cmx:xid79 g3 x|y; act=reboot\nbroken\n");
        assert_eq!(nodes["n1"], NodeState { state: "idle".into(), responding: true, reason: String::new() });
        assert_eq!(
            nodes["n2"],
            NodeState {
                state: "drained".into(),
                responding: false,
                reason: "cmx:xid79 g3 x|y; act=reboot".into()
            }
        );
        assert_eq!(nodes.len(), 2);
    }
}
