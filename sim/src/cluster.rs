//! A cluster's life: up, down, status, faults, and running commands against it.

use std::collections::BTreeMap;
use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Component, Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use nvidia_ml_sim::model::GpuFile;
use serde::Serialize;

use crate::cgroup::ClusterCgroups;
use crate::error::{Error, IoContext, Result};
use crate::fault::{self, Fault, Injected, Target};
use crate::machine::Machine;
use crate::process::{self, MARKER, Membership};
use crate::product::Product;
use crate::root::SlurmRoot;
use crate::slurm::{self, Host, NodeState};
use crate::state::{Daemon, FolderLock, Layout, Options, Phase, State};
use crate::sysfs::SysfsTree;
use crate::{files, kmsg, sys};

/// Where a cluster lives unless `--dir` says otherwise. Not below /run, which is mounted noexec, nor below a private
/// home: the programs of ordinary users' jobs must be able to read it.
pub const DEFAULT_DIR: &str = "/var/lib/clustermax-sim/default";
/// Character device major number of the simulated GPUs. The kernel gives out none above 511, so opening a device
/// says "no such device", and a device cgroup's "operation not permitted" can be told from it.
const GPU_MAJOR: u32 = 3500;
/// Major number of their control devices.
const CONTROL_MAJOR: u32 = 3501;
/// A unix socket's path holds 107 bytes, and munge's is `DIR/run/munge.sock.lock` at its longest.
const DIR_MAX: usize = 80;
/// Name of a node's resident health check, before the node's.
const WATCH: &str = "watch-";
/// Starts a slurmd without slurm.conf. It has a /run of its own, as a node has: there it links its copy of the
/// configuration, and before it has one it looks for munge at the usual place.
const CONFIGLESS: &str = "set -e
socket=$1; shift
mount -t tmpfs -o mode=755 tmpfs /run
[ ! -d /etc/slurm ] || mount -t tmpfs -o mode=755 tmpfs /etc/slurm
mkdir /run/munge
: >/run/munge/munge.socket.2
mount --bind \"$socket\" /run/munge/munge.socket.2
exec \"$@\"";
/// Lines of a log shown when its daemon failed.
const TAIL_LINES: usize = 20;

/// A simulated cluster in a folder, up or not.
#[derive(Debug, Clone)]
pub struct Cluster {
    layout: Layout,
}

impl Cluster {
    /// The cluster in `dir`.
    ///
    /// # Errors
    /// When the path cannot be used: Slurm's configuration can hold only plain characters, and sockets only short
    /// paths.
    pub fn at(dir: &Path) -> Result<Self> {
        let absolute = std::path::absolute(dir).context("find", dir)?;
        // A symbolic link on the way (as /var/run) must not give one folder two names.
        let absolute = match (absolute.parent(), absolute.file_name()) {
            (Some(parent), Some(name)) => fs::canonicalize(parent).map_or(absolute.clone(), |p| p.join(name)),
            _ => return Err(Error::Usage(format!("{} cannot hold a cluster", absolute.display()))),
        };
        let text = absolute.to_string_lossy();
        if !plain_path(&absolute) {
            return Err(Error::Usage(format!(
                "the folder \"{text}\" cannot be used; slurm.conf allows letters, digits and . _ - / in a path only"
            )));
        }
        if text.len() > DIR_MAX {
            return Err(Error::Usage(format!(
                "the folder {text} is too long a path for a unix socket below it; use at most {DIR_MAX} characters"
            )));
        }
        if fs::symlink_metadata(&absolute).is_ok_and(|m| m.is_symlink()) {
            return Err(Error::Usage(format!(
                "{text} is a symbolic link; name the folder itself with --dir"
            )));
        }
        Ok(Self { layout: Layout { dir: absolute } })
    }

    /// The cluster's folder.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.layout.dir
    }

    /// Paths in the folder.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The record of the cluster.
    ///
    /// # Errors
    /// [`Error::NoCluster`] when there is none.
    pub fn state(&self) -> Result<State> {
        State::load(&self.layout)?.ok_or_else(|| Error::NoCluster(self.layout.dir.clone()))
    }

    /// Brings a cluster up and waits until every node is idle; `say` is told what is being done. What a crash or a
    /// reboot left in the folder is cleaned away first. Any failure, and any of SIGINT, SIGTERM and SIGHUP once
    /// [`sys::catch_signals`] was called, ends and removes everything that was started.
    ///
    /// # Errors
    /// When a cluster is up in the folder, the folder is not ours, a program is missing, or a daemon does not start.
    pub fn up(&self, options: Options, say: &mut dyn FnMut(&str)) -> Result<State> {
        if sys::effective_uid() != 0 {
            return Err(Error::Usage(
                "clustermax-sim up must run as root: slurmd starts jobs as other users".to_owned(),
            ));
        }
        let release = match &options.slurm_root {
            Some(root) => Some(SlurmRoot::at(root)?.release()?),
            None => {
                for program in slurm::PROGRAMS {
                    slurm::program(program)?;
                }
                None
            }
        };
        let product = Product::find(&options.prefix, options.plain, release.as_deref())?;
        let dir = &self.layout.dir;
        fs::create_dir_all(dir).context("create", dir)?;
        let lock = FolderLock::take(dir)?.ok_or_else(|| Error::Busy(dir.clone()))?;
        if let Some(old) = State::load(&self.layout)? {
            if old.phase == Phase::Up && old.daemons_of_this_boot()?.iter().any(|d| d.alive()) {
                return Err(Error::AlreadyUp(dir.clone()));
            }
            say("cleaning away what an earlier cluster left behind");
            self.remove(&old)?;
            // The lock went with the folder.
            drop(lock);
            return self.up(options, say);
        }
        if fs::read_dir(dir).context("read", dir)?.next().is_some() {
            return Err(Error::Foreign(dir.clone()));
        }
        if sys::is_noexec(dir).context("look at", dir)? {
            return Err(Error::Usage(format!(
                "{} is on a file system mounted noexec, where Slurm could not run its Prolog; choose another with --dir",
                dir.display()
            )));
        }
        // An empty folder given by the user may be private; jobs of ordinary users must get in.
        files::make_dir(dir, 0o755)?;
        if let Some(closed) = closed_ancestor(dir) {
            say(&format!(
                "warning: ordinary users cannot enter {}, so their jobs will fail",
                closed.display()
            ));
        }
        let lease = Machine::lock()?.take(dir, options.nodes)?;
        let cgroups = !options.no_cgroups && ClusterCgroups::supported();
        let mut state = State::new(options, &lease, cgroups);
        state.slurm_release = release;
        // From here on the folder is marked as ours and whatever happens is undone.
        let result = state.save(&self.layout).and_then(|()| self.start(&mut state, &product, say));
        match result {
            Ok(()) => Ok(state),
            Err(error) => {
                say("removing what was started");
                match self.remove(&state) {
                    Ok(_) => Err(error),
                    Err(second) => Err(Error::System(format!("{error}\ncleaning up failed too: {second}"))),
                }
            }
        }
    }

    fn start(&self, state: &mut State, product: &Product, say: &mut dyn FnMut(&str)) -> Result<()> {
        let layout = &self.layout;
        state.kernel_log = Machine::lock()?.open_kernel_log()?;
        say(&format!(
            "cluster {} in {}: {} nodes with {} GPUs ({}), PCI domains {:04x} to {:04x}, {}",
            state.cluster_name(),
            layout.dir.display(),
            state.options.nodes,
            state.options.gpus,
            state.options.model,
            state.first_domain,
            state.first_domain + state.options.nodes - 1,
            if state.cgroups { "cgroup v1" } else { "no cgroups" }
        ));
        self.write_files(state, product)?;
        state.save(layout)?;
        let cgroups = state.cgroups.then(|| ClusterCgroups::of(&state.id));
        if let Some(cgroups) = &cgroups {
            cgroups.create(&layout.cgroup())?;
        }
        let deadline = Instant::now() + Duration::from_secs(u64::from(state.options.wait));

        say("starting munged");
        self.spawn(state, "munged")?;
        self.wait(state, deadline, "munged", || Ok(layout.munge_socket().exists()))?;
        say("starting slurmctld");
        self.spawn(state, "slurmctld")?;
        let controller = SocketAddr::from(([127, 0, 0, 1], state.ports[0]));
        self.wait(state, deadline, "slurmctld", || {
            Ok(TcpStream::connect_timeout(&controller, Duration::from_millis(200)).is_ok())
        })?;
        say("starting slurmd on every node");
        for node in state.node_names() {
            self.spawn(state, &format!("slurmd-{node}"))?;
        }
        if state.options.watch {
            say("starting clustermax-healthcheck watch on every node");
            for node in state.node_names() {
                self.spawn(state, &format!("{WATCH}{node}"))?;
            }
        }
        say("waiting until every node is idle");
        let names = state.node_names();
        let asked = state.clone();
        self.wait(state, deadline, "slurmctld", || {
            // Not answering yet is not a failure before the deadline.
            let Ok(nodes) = slurm::nodes(layout, &asked) else { return Ok(false) };
            if let Some((name, node)) = nodes.iter().find(|(_, n)| n.state.starts_with("drain")) {
                return Err(Error::Daemon {
                    what: format!("node {name} was drained before it was ever idle: {}", node.reason),
                    log: layout.log().join(format!("slurmd-{name}.log")),
                    tail: files::tail(&layout.log().join(format!("slurmd-{name}.log")), TAIL_LINES),
                });
            }
            Ok(names.iter().all(|n| nodes.get(n).is_some_and(|s| s.state == "idle" && s.responding)))
        })?;
        state.phase = Phase::Up;
        state.save(layout)?;
        sys::pending_signal().map_or(Ok(()), |signal| Err(Error::Interrupted(signal)))
    }

    /// Writes everything that the daemons read.
    fn write_files(&self, state: &State, product: &Product) -> Result<()> {
        let layout = &self.layout;
        for folder in [layout.etc(), layout.log(), layout.run(), layout.var(), layout.lib()] {
            files::make_dir(&folder, 0o755)?;
        }
        files::make_dir(&layout.var().join("slurmctld"), 0o700)?;
        let mut key = vec![0; 128];
        let random = Path::new("/dev/urandom");
        fs::File::open(random)
            .and_then(|mut f| std::io::Read::read_exact(&mut f, &mut key))
            .context("read", random)?;
        files::write_atomic(&layout.etc().join("munge.key"), &key, 0o600)?;

        let model = state.model();
        for (index, name) in (0_u32..).zip(state.node_names()) {
            let node = layout.node(&name);
            for folder in [node.sys(), node.dev(), node.run(), layout.var().join(format!("slurmd-{name}"))] {
                files::make_dir(&folder, 0o755)?;
            }
            files::make_dir(&node.state(), 0o700)?;
            let domain = state.domain(index);
            let gpus = GpuFile::new(model, state.options.gpus as usize, domain, index);
            fault::save(&gpus, &node.gpus_healthy())?;
            fault::save(&gpus, &node.gpus())?;
            fault::save_injected(&node, &[])?;
            files::write_atomic(&node.kmsg(), b"", 0o644)?;
            SysfsTree::at(&node.sys()).write_healthy(model, &gpus, state.options.ib_ports as usize)?;
            for gpu in 0..state.options.gpus {
                // 16 numbers a PCI domain: no two devices of any clusters on this machine share one.
                let path = node.dev().join(format!("nvidia{gpu}"));
                sys::mknod_char(&path, GPU_MAJOR, domain * 16 + gpu).context("create", &path)?;
            }
            for (number, name) in (0_u32..).zip(["nvidiactl", "nvidia-uvm"]) {
                let path = node.dev().join(name);
                sys::mknod_char(&path, CONTROL_MAJOR, domain * 16 + number).context("create", &path)?;
            }
        }
        product.install_libraries(state, layout)?;
        let conf = slurm::slurm_conf(state, layout, &Host::this()?);
        files::write_atomic(&layout.slurm_conf(), conf.as_bytes(), 0o644)?;
        files::write_atomic(
            &layout.etc().join("gres.conf"),
            slurm::gres_conf(state, layout).as_bytes(),
            0o644,
        )?;
        files::write_atomic(
            &layout.etc().join("cgroup.conf"),
            slurm::cgroup_conf(state, layout).as_bytes(),
            0o644,
        )?;
        let gpus = GpuFile::new(model, state.options.gpus as usize, state.first_domain, 0);
        product.write_configuration(state, layout, &gpus)
    }

    /// Starts one daemon and records it.
    fn spawn(&self, state: &mut State, name: &str) -> Result<()> {
        let layout = &self.layout;
        let log = layout.log();
        let program = |name: &str| state.slurm_command(layout, name, &log);
        let mut command = match name {
            "munged" => {
                let mut c = program("munged")?;
                c.args(["--foreground", "--force", "--num-threads=4"])
                    .arg(format!("--key-file={}", layout.etc().join("munge.key").display()))
                    .arg(format!("--socket={}", layout.munge_socket().display()))
                    .arg(format!("--log-file={}", log.join("munged.log").display()))
                    .arg(format!("--pid-file={}", layout.run().join("munged.pid").display()))
                    .arg(format!("--seed-file={}", layout.var().join("munged.seed").display()));
                c
            }
            "slurmctld" => {
                let mut c = program("slurmctld")?;
                c.arg("-D");
                c
            }
            _ if name.starts_with(WATCH) => {
                let mut c = Command::new(state.options.prefix.join("clustermax-healthcheck"));
                c.args(["watch", "--config"]).arg(layout.clustermax_toml());
                match state.entrance(layout)? {
                    Some(entrance) => entrance.before_exec(&mut c, &log)?,
                    None => {
                        c.current_dir(&log);
                    }
                }
                c
            }
            _ => {
                let slurmd = program("slurmd")?;
                let node = name.strip_prefix("slurmd-").unwrap_or(name);
                if state.options.configless {
                    let mut c = program("unshare")?;
                    c.args(["-m", "--propagation", "private", "sh", "-c", CONFIGLESS, "sh"])
                        .arg(layout.munge_socket())
                        .arg(slurmd.get_program())
                        .args(["-D", "-N", node, "--conf-server"])
                        .arg(format!("127.0.0.1:{}", state.ports[0]));
                    c
                } else {
                    let mut c = slurmd;
                    c.args(["-D", "-N", node]);
                    c
                }
            }
        };
        command
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env("SLURM_CONF", layout.slurm_conf())
            .env(MARKER, self.marker(state));
        if let Some(node) = name.strip_prefix(WATCH) {
            command.env("SLURMD_NODENAME", node);
        }
        if state.options.configless && name.starts_with("slurmd-") {
            command.env_remove("SLURM_CONF");
        }
        let cgroups = state.cgroups.then(|| ClusterCgroups::of(&state.id));
        // Slurm's daemons also write a log of their own; what comes here is what they say before it is open.
        let process =
            process::spawn_daemon(&mut command, &log.join(format!("{name}.out")), cgroups.as_ref())?;
        state.daemons.retain(|d| d.name != name);
        state.daemons.push(Daemon { name: name.to_owned(), process });
        state.save(layout)
    }

    fn marker(&self, state: &State) -> String {
        format!("{}:{}", state.cluster_name(), self.layout.dir.display())
    }

    /// Waits until `ready`, while every daemon lives and nobody asks to stop.
    fn wait(
        &self,
        state: &State,
        deadline: Instant,
        what: &str,
        mut ready: impl FnMut() -> Result<bool>,
    ) -> Result<()> {
        let failed = |name: &str, text: String| {
            let mut log = self.layout.log().join(format!("{name}.log"));
            if fs::metadata(&log).map_or(0, |m| m.len()) == 0 {
                log.set_extension("out");
            }
            let tail = files::tail(&log, TAIL_LINES);
            Error::Daemon { what: text, log, tail }
        };
        loop {
            if let Some(signal) = sys::pending_signal() {
                return Err(Error::Interrupted(signal));
            }
            if let Some(dead) = state.daemons.iter().find(|d| !d.process.alive()) {
                return Err(failed(&dead.name, format!("{} ended by itself", dead.name)));
            }
            if ready()? {
                return Ok(());
            }
            if Instant::now() > deadline {
                let seconds = state.options.wait;
                let nodes = slurm::nodes(&self.layout, state).map(|n| describe(&n)).unwrap_or_default();
                return Err(failed(
                    what,
                    format!(
                        "the cluster was not ready within {seconds} s (--wait), waiting for {what}{nodes}"
                    ),
                ));
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Ends everything that belongs to the cluster and removes its folder. Returns how many processes were ended.
    ///
    /// # Errors
    /// [`Error::NoCluster`] when there is none, or names what could not be ended or removed.
    pub fn down(&self) -> Result<usize> {
        let lock = FolderLock::take(&self.layout.dir)?;
        let state = self.state()?;
        let ended = self.remove(&state);
        drop(lock);
        ended
    }

    fn remove(&self, state: &State) -> Result<usize> {
        let cgroups = ClusterCgroups::of(&state.id);
        let marker = self.marker(state);
        let cluster_name = state.cluster_name();
        let ended = Membership {
            daemons: state.daemons_of_this_boot()?,
            cgroups: Some(&cgroups).filter(|c| c.exists()),
            cluster_name: &cluster_name,
            marker: &marker,
            dir: &self.layout.dir,
            slurm_conf: &self.layout.slurm_conf(),
        }
        .end()?;
        cgroups.remove()?;
        let dir = &self.layout.dir;
        // The mark goes last: a removal that is cut short can be repeated.
        for entry in fs::read_dir(dir).context("read", dir)?.flatten() {
            let path = entry.path();
            if path == self.layout.state() {
                continue;
            }
            let is_dir = entry.file_type().is_ok_and(|t| t.is_dir());
            if is_dir { fs::remove_dir_all(&path) } else { fs::remove_file(&path) }
                .context("remove", &path)?;
        }
        Machine::lock()?.give_back(&state.id)?;
        fs::remove_dir_all(dir).context("remove", dir)?;
        // The parent of the default folder is ours too; it stays while another cluster is in it.
        if let Some(parent) = dir.parent().filter(|p| Path::new(DEFAULT_DIR).parent() == Some(p)) {
            let _ = fs::remove_dir(parent);
        }
        Ok(ended)
    }

    /// The folder's lock and record, for a command that changes a cluster that is up.
    fn open(&self) -> Result<(FolderLock, State)> {
        let lock =
            FolderLock::take(&self.layout.dir)?.ok_or_else(|| Error::NoCluster(self.layout.dir.clone()))?;
        Ok((lock, self.state()?))
    }

    /// Injects a fault into a node (`n2` or `2`) and returns the record of it, with the kernel line as it was read
    /// back.
    ///
    /// # Errors
    /// When node, GPU or port do not exist, or a file or the kernel log cannot be written.
    pub fn inject(&self, text: &str, node: &str, gpu: u32) -> Result<Injected> {
        let fault: Fault = text.parse()?;
        let (_lock, state) = self.open()?;
        let index = state.node_index(node)?;
        let layout = self.layout.node(&state.node_names()[index as usize]);
        let target = Target {
            node: &layout,
            model: state.model(),
            domain: state.domain(index),
            ib_ports: state.options.ib_ports,
            gpu,
        };
        let line = target.apply(&fault, |line| {
            if state.kernel_log {
                kmsg::write_kernel(line)
            } else {
                Err(Error::System(format!(
                    "this machine does not let user space write to {} without a limit, so the fault \"{text}\" \
                     cannot be shown there",
                    kmsg::KMSG
                )))
            }
        })?;
        let injected =
            Injected { fault: text.to_owned(), gpu, time: jiff::Timestamp::now().to_string(), line };
        let mut all = fault::injected(&layout)?;
        all.push(injected.clone());
        fault::save_injected(&layout, &all)?;
        Ok(injected)
    }

    /// Makes one node, or all, healthy again and returns their names. A drained node stays drained: giving it back
    /// is the operator's (or the product's) part.
    ///
    /// # Errors
    /// When the node does not exist or a file cannot be written.
    pub fn clear(&self, node: Option<&str>) -> Result<Vec<String>> {
        let (_lock, state) = self.open()?;
        let indices = match node {
            Some(node) => vec![state.node_index(node)?],
            None => (0..state.options.nodes).collect(),
        };
        let names = state.node_names();
        let mut cleared = Vec::new();
        for index in indices {
            let name = &names[index as usize];
            let layout = self.layout.node(name);
            Target {
                node: &layout,
                model: state.model(),
                domain: state.domain(index),
                ib_ports: state.options.ib_ports,
                gpu: 0,
            }
            .clear()?;
            cleared.push(name.clone());
        }
        Ok(cleared)
    }

    /// Ends one daemon (`slurmctld`, `slurmd-NODE` or `watch-NODE`) as a crash would, and waits until it is gone.
    ///
    /// # Errors
    /// When there is no such daemon or it does not run.
    pub fn stop(&self, name: &str) -> Result<()> {
        let (_lock, state) = self.open()?;
        let daemon = find_daemon(&state, name)?;
        if !state.daemons_of_this_boot()?.contains(&daemon.process) || !daemon.process.alive() {
            return Err(Error::Usage(format!("{name} does not run")));
        }
        sys::kill(daemon.process.pid, libc::SIGKILL)
            .map_err(|e| Error::System(format!("cannot end {name}: {e}")))?;
        let deadline = Instant::now() + Duration::from_secs(5);
        while daemon.process.alive() {
            if Instant::now() > deadline {
                return Err(Error::System(format!("{name} did not end after SIGKILL")));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Starts a daemon that was stopped.
    ///
    /// # Errors
    /// When there is no such daemon, it runs, or it does not stay up.
    pub fn start_daemon(&self, name: &str) -> Result<()> {
        let (_lock, mut state) = self.open()?;
        if find_daemon(&state, name)?.process.alive() {
            return Err(Error::Usage(format!("{name} runs already")));
        }
        self.spawn(&mut state, name)?;
        if name == "slurmctld" {
            let deadline = Instant::now() + Duration::from_secs(20);
            self.wait(
                &only(&state, name),
                deadline,
                name,
                || Ok(slurm::nodes(&self.layout, &state).is_ok()),
            )?;
        }
        Ok(())
    }

    /// Everything that is known about the cluster now.
    ///
    /// # Errors
    /// [`Error::NoCluster`] when there is none.
    pub fn status(&self) -> Result<Status> {
        let state = self.state()?;
        let today = state.daemons_of_this_boot()?;
        let alive = |d: &Daemon| today.contains(&d.process) && d.process.alive();
        let (slurm, slurm_error) = match slurm::nodes(&self.layout, &state) {
            Ok(nodes) => (nodes, None),
            Err(error) => (BTreeMap::new(), Some(error.to_string())),
        };
        let names = state.node_names();
        let nodes = (0_u32..)
            .zip(&names)
            .map(|(index, name)| {
                let seen = slurm.get(name);
                let daemon = state.daemons.iter().find(|d| d.name == format!("slurmd-{name}"));
                Ok(NodeStatus {
                    name: name.clone(),
                    state: seen.map_or_else(|| "unknown".to_owned(), |n| n.state.clone()),
                    responding: seen.is_some_and(|n| n.responding),
                    reason: seen.map(|n| n.reason.clone()).unwrap_or_default(),
                    pci_domain: format!("{:04x}", state.domain(index)),
                    port: state.ports[index as usize + 1],
                    pid: daemon.map(|d| d.process.pid),
                    alive: daemon.is_some_and(alive),
                    faults: fault::injected(&self.layout.node(name)).unwrap_or_default(),
                })
            })
            .collect::<Result<Vec<_>>>()?;
        let service = |name: &str| {
            let daemon = state.daemons.iter().find(|d| d.name == name);
            Service { pid: daemon.map(|d| d.process.pid), alive: daemon.is_some_and(alive) }
        };
        Ok(Status {
            dir: self.layout.dir.clone(),
            cluster: state.cluster_name(),
            phase: state.phase,
            slurm_conf: self.layout.slurm_conf(),
            config: self.layout.clustermax_toml(),
            prefix: state.options.prefix.clone(),
            model: state.options.model.clone(),
            cgroups: state.cgroups,
            kernel_log: state.kernel_log,
            controller_port: state.ports[0],
            munged: service("munged"),
            slurmctld: service("slurmctld"),
            slurm_error,
            watches: state
                .daemons
                .iter()
                .filter(|d| d.name.starts_with(WATCH))
                .map(|d| (d.name.clone(), service(&d.name)))
                .collect(),
            nodes,
        })
    }

    /// Replaces this process by a command that sees the cluster: `SLURM_CONF`, `CLUSTERMAX_SIM_DIR`, and PATH with
    /// the product's programs first. With `user`, it runs as that user. Returns only when that fails.
    pub fn exec(&self, command: &[String], user: Option<&str>) -> Error {
        let build = || -> Result<Command> {
            let state = self.state()?;
            let Some((program, arguments)) = command.split_first() else {
                return Err(Error::Usage("exec needs a command: clustermax-sim exec -- sinfo".to_owned()));
            };
            let old = std::env::var_os("PATH").unwrap_or_else(|| "/usr/sbin:/usr/bin:/sbin:/bin".into());
            let path = std::env::join_paths(
                std::iter::once(state.options.prefix.clone()).chain(std::env::split_paths(&old)),
            )
            .map_err(|e| Error::System(format!("PATH cannot be extended: {e}")))?;
            if let Some(entrance) = state.entrance(&self.layout)? {
                entrance.enter()?;
            }
            let mut c = Command::new(program);
            c.args(arguments)
                .env("PATH", path)
                .env("SLURM_CONF", self.layout.slurm_conf())
                .env("CLUSTERMAX_SIM_DIR", &self.layout.dir);
            if let Some(user) = user {
                let account = Account::find(user)?;
                c.uid(account.uid)
                    .gid(account.gid)
                    .env("USER", user)
                    .env("LOGNAME", user)
                    .env("HOME", &account.home);
                // Where the user may not be, srun could not start a task.
                if !open_to_all(&std::env::current_dir().unwrap_or_default()) {
                    c.current_dir("/tmp");
                }
            }
            Ok(c)
        };
        match build() {
            Ok(mut c) => {
                let error = c.exec();
                Error::Usage(format!("cannot run {}: {error}", c.get_program().to_string_lossy()))
            }
            Err(error) => error,
        }
    }
}

/// A state with one daemon only, to wait for it whatever became of the others.
fn only(state: &State, name: &str) -> State {
    let daemons = state.daemons.iter().filter(|d| d.name == name).cloned().collect();
    State { daemons, ..state.clone() }
}

fn find_daemon<'a>(state: &'a State, name: &str) -> Result<&'a Daemon> {
    state.daemons.iter().find(|d| d.name == name).ok_or_else(|| {
        let names: Vec<&str> = state.daemons.iter().map(|d| d.name.as_str()).collect();
        Error::Usage(format!("there is no daemon \"{name}\"; this cluster has {}", names.join(", ")))
    })
}

fn describe(nodes: &BTreeMap<String, NodeState>) -> String {
    let list: Vec<String> = nodes
        .iter()
        .map(|(name, n)| {
            let star = if n.responding { "" } else { ", not responding" };
            let reason = if n.reason.is_empty() { String::new() } else { format!(" ({})", n.reason) };
            format!("{name} {}{star}{reason}", n.state)
        })
        .collect();
    if list.is_empty() { String::new() } else { format!("; nodes: {}", list.join(", ")) }
}

/// Whether a path holds nothing that slurm.conf, plugstack.conf or a shell would read as something else.
fn plain_path(path: &Path) -> bool {
    path.components().all(|c| matches!(c, Component::RootDir | Component::Normal(_)))
        && path.to_str().is_some_and(|t| t.chars().all(|c| c.is_ascii_alphanumeric() || "/._-+".contains(c)))
}

fn open_to_all(path: &Path) -> bool {
    !path.as_os_str().is_empty() && closed_ancestor(path).is_none()
}

/// The first folder on the way to `path`, itself included, that ordinary users cannot enter.
fn closed_ancestor(path: &Path) -> Option<&Path> {
    let mut all: Vec<&Path> = path.ancestors().collect();
    all.reverse();
    all.into_iter().find(|p| fs::metadata(p).map_or(true, |m| m.permissions().mode() & 0o001 == 0))
}

/// A line of /etc/passwd.
struct Account {
    uid: u32,
    gid: u32,
    home: String,
}

impl Account {
    fn find(name: &str) -> Result<Self> {
        let path = Path::new("/etc/passwd");
        files::read(path)?
            .lines()
            .find_map(|line| {
                let fields: Vec<&str> = line.split(':').collect();
                match fields[..] {
                    [user, _, uid, gid, _, home, _] if user == name => {
                        Some(Self { uid: uid.parse().ok()?, gid: gid.parse().ok()?, home: home.to_owned() })
                    }
                    _ => None,
                }
            })
            .ok_or_else(|| Error::Usage(format!("there is no user \"{name}\" in /etc/passwd")))
    }
}

/// What `status` shows.
#[derive(Debug, Clone, Serialize)]
pub struct Status {
    /// The cluster's folder.
    pub dir: PathBuf,
    /// `ClusterName`.
    pub cluster: String,
    /// Where it stands.
    pub phase: Phase,
    /// Value for `SLURM_CONF`.
    pub slurm_conf: PathBuf,
    /// Value for the product's `--config`.
    pub config: PathBuf,
    /// Folder of the product's programs.
    pub prefix: PathBuf,
    /// GPU model.
    pub model: String,
    /// Whether jobs are held by real cgroups.
    pub cgroups: bool,
    /// Whether fault lines can be written to the real kernel log.
    pub kernel_log: bool,
    /// TCP port of slurmctld.
    pub controller_port: u16,
    /// The authentication daemon.
    pub munged: Service,
    /// The controller.
    pub slurmctld: Service,
    /// Why slurmctld could not be asked, if it could not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slurm_error: Option<String>,
    /// The resident health checks (`up --watch`), by daemon.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub watches: BTreeMap<String, Service>,
    /// The nodes.
    pub nodes: Vec<NodeStatus>,
}

/// A daemon's process.
#[derive(Debug, Clone, Serialize)]
pub struct Service {
    /// Its pid, if it was ever started.
    pub pid: Option<i32>,
    /// Whether that process runs.
    pub alive: bool,
}

/// One node's line of `status`.
#[derive(Debug, Clone, Serialize)]
pub struct NodeStatus {
    /// Its name.
    pub name: String,
    /// Slurm's state, `unknown` when slurmctld does not answer.
    pub state: String,
    /// Whether slurmctld hears from it.
    pub responding: bool,
    /// Slurm's reason, empty when there is none.
    pub reason: String,
    /// PCI domain of its devices, four hexadecimal digits.
    pub pci_domain: String,
    /// TCP port of its slurmd.
    pub port: u16,
    /// pid of its slurmd.
    pub pid: Option<i32>,
    /// Whether that process runs.
    pub alive: bool,
    /// Faults injected since the last `clear`.
    pub faults: Vec<Injected>,
}

impl Status {
    /// Processes of the cluster that do not run.
    #[must_use]
    pub fn dead(&self) -> Vec<String> {
        let services = [("munged", self.munged.alive), ("slurmctld", self.slurmctld.alive)];
        let services = services.into_iter().filter(|s| !s.1).map(|s| s.0.to_owned());
        let watches = self.watches.iter().filter(|(_, s)| !s.alive).map(|(name, _)| name.clone());
        services
            .chain(watches)
            .chain(self.nodes.iter().filter(|n| !n.alive).map(|n| format!("slurmd-{}", n.name)))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_that_slurm_cannot_name_are_refused() {
        for wrong in ["/tmp/with space", "/tmp/a#b", "/tmp/n[1-2]", "/tmp/%n", "/"] {
            let error = Cluster::at(Path::new(wrong)).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{wrong}");
        }
        let long = format!("/tmp/{}", "x".repeat(100));
        assert!(Cluster::at(Path::new(&long)).unwrap_err().to_string().contains("too long"));
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(folder.path(), &link).unwrap();
        assert!(Cluster::at(&link).unwrap_err().to_string().contains("symbolic link"));
    }

    #[test]
    fn commands_on_an_empty_folder_name_it() {
        let folder = tempfile::tempdir().unwrap();
        let cluster = Cluster::at(folder.path()).unwrap();
        let error = cluster.down().unwrap_err();
        assert!(matches!(error, Error::NoCluster(_)));
        assert!(error.to_string().contains(&folder.path().display().to_string()));
        assert!(matches!(cluster.inject("xid79", "n1", 0), Err(Error::NoCluster(_))));
        assert!(matches!(cluster.status(), Err(Error::NoCluster(_))));
        assert!(folder.path().exists(), "a folder that is not ours stays");
    }
}
