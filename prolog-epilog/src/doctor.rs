//! What `clustermax-doctor` looks at: the installation as Slurm will meet it, without loading or changing anything.

use std::fmt;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use healthcheck::config::{Config, Enforcement, check_trusted};
use serde::{Deserialize, Serialize};

use crate::brake::Record;
use crate::plugin_file::PluginFile;
use crate::release::Release;
use crate::slurm_conf::{self, SlurmConf};
use crate::spool::Spool;

mod cluster;
mod keys;
mod ran;

/// Version tag of the JSON form.
pub const SCHEMA: &str = "clustermax-doctor/1";
/// Limit on one program that is asked for its release.
const ASK_LIMIT: Duration = Duration::from_secs(5);
/// Slurm's default for both, in seconds.
const MESSAGE_TIMEOUT: u64 = 10;
/// A script longer than this is not searched for our programs' names.
const SCRIPT_MAX: u64 = 1024 * 1024;

/// Result of one look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// As it should be.
    Pass,
    /// Works, but not as well as it could.
    Warn,
    /// Does not work, or harms.
    Fail,
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Status::Pass => "PASS",
            Status::Warn => "WARN",
            Status::Fail => "FAIL",
        })
    }
}

/// One look.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Item {
    /// What was looked at: `plugin`, `slurm.conf Prolog`, ...
    pub check: String,
    /// Result.
    pub status: Status,
    /// What was seen, one sentence; for a failure with the mend.
    pub text: String,
    /// Why it matters; empty for a pass.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub why: String,
    /// The exact line to write or command to run, where there is one.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub mend: String,
}

/// All looks.
#[derive(Debug, Clone, Serialize)]
pub struct Diagnosis {
    /// [`SCHEMA`].
    pub schema: &'static str,
    /// Worst status.
    pub status: Status,
    /// Release of the installed Slurm.
    pub slurm: Option<String>,
    /// The looks, in order.
    pub checks: Vec<Item>,
}

/// Where to look.
#[derive(Debug, Clone)]
pub struct Options {
    /// Our configuration.
    pub config: PathBuf,
    /// Slurm's name of this node.
    pub node: String,
    /// The plugin's file; without it the one that plugstack.conf names.
    pub plugin: Option<PathBuf>,
    /// slurm.conf; without it the one that our configuration names.
    pub slurm_conf: Option<PathBuf>,
    /// Also ask the controller what it and the nodes run.
    pub cluster: bool,
}

/// Collects items.
#[derive(Default)]
struct Looks(Vec<Item>);

impl Looks {
    fn add(
        &mut self,
        check: &str,
        status: Status,
        text: impl Into<String>,
        why: &str,
        mend: impl Into<String>,
    ) {
        self.0.push(Item {
            check: check.to_string(),
            status,
            text: text.into(),
            why: why.to_string(),
            mend: mend.into(),
        });
    }

    fn pass(&mut self, check: &str, text: impl Into<String>) {
        self.add(check, Status::Pass, text, "", "");
    }
}

/// Looks at everything. Nothing is loaded or changed; scontrol and clustermax-drain are asked for their release.
#[must_use]
pub fn diagnose(options: &Options) -> Diagnosis {
    let mut looks = Looks::default();
    let config = look_at_config(&mut looks, options);
    let conf_path = options.slurm_conf.clone().unwrap_or_else(|| config.slurm.conf.clone());
    let slurm = look_at_slurm(&mut looks, &config, &conf_path);
    look_at_drain(&mut looks, &config, slurm);
    let mut plugin = options.plugin.clone();
    match SlurmConf::read(&conf_path) {
        Ok(conf) => {
            looks.pass("slurm.conf", format!("{} is readable", conf_path.display()));
            look_at_hooks(&mut looks, &config, &conf);
            look_at_health_check(&mut looks, &config, &conf);
            look_at_timeouts(&mut looks, &config, &conf);
            keys::look(&mut looks, &conf, config.enforcement == Enforcement::Enforce);
            #[allow(clippy::cast_precision_loss, reason = "seconds since 1970 are exact in an f64")]
            ran::look(&mut looks, &config, &conf, jiff::Timestamp::now().as_second() as f64);
            if options.cluster {
                cluster::look(&mut looks, &config.slurm.scontrol, &conf, &conf_path, slurm);
            }
            let named = look_at_plugstack(&mut looks, &conf);
            plugin = plugin.or(named);
        }
        Err(e) => looks.add(
            "slurm.conf",
            Status::Fail,
            format!("{e}: set `conf` under [slurm] in {} or give --slurm-conf", options.config.display()),
            "clustermax-drain reaches the controller through it",
            "[slurm]\nconf = \"/etc/slurm/slurm.conf\"",
        ),
    }
    if let Some(plugin) = plugin {
        look_at_plugin(&mut looks, &plugin, slurm);
    }
    look_at_state(&mut looks, &config);
    let status = looks.0.iter().map(|i| i.status).max().unwrap_or(Status::Pass);
    Diagnosis { schema: SCHEMA, status, slurm: slurm.map(|r| r.to_string()), checks: looks.0 }
}

fn look_at_config(looks: &mut Looks, options: &Options) -> Config {
    let path = &options.config;
    match Config::load(path, &options.node) {
        Ok(config) => {
            let says = match config.enforcement {
                Enforcement::Observe => "observe: faults are reported, no node is drained",
                Enforcement::Enforce => "enforce: faults with a drain rule drain the node",
            };
            looks.pass("configuration", format!("{} says {says}", path.display()));
            look_at_folder(looks, path);
            config
        }
        Err(e) => {
            looks.add(
                "configuration",
                Status::Fail,
                e.to_string(),
                "without it no check runs: prolog and epilog let every job through",
                "",
            );
            Config { node: options.node.clone(), ..Config::default() }
        }
    }
}

/// Who can write the folder can replace the file in it.
fn look_at_folder(looks: &mut Looks, file: &Path) {
    let Some(dir) = file.parent().filter(|d| !d.as_os_str().is_empty()) else { return };
    let Ok(meta) = std::fs::metadata(dir) else { return };
    let foreign = meta.uid() != 0 && meta.uid() != healthcheck::sys::effective_uid();
    // A sticky folder such as /tmp lets nobody replace another's file.
    let open = meta.mode() & 0o022 != 0 && meta.mode() & 0o1000 == 0;
    if foreign || open {
        looks.add(
            "configuration folder",
            Status::Fail,
            format!(
                "{} belongs to user {} with mode {:04o}: others can replace files in it",
                dir.display(),
                meta.uid(),
                meta.mode() & 0o7777
            ),
            "the files in it decide what root runs on every job",
            format!("chown root {0}; chmod go-w {0}", dir.display()),
        );
    }
}

fn look_at_slurm(looks: &mut Looks, config: &Config, conf: &Path) -> Option<Release> {
    const CHECK: &str = "Slurm";
    let scontrol = &config.slurm.scontrol;
    let why = "plugin and clustermax-drain must be of the release of the Slurm that is installed";
    // Every command but the daemons reads slurm.conf before it says its release, and may wait a minute for it.
    let conf = Some(conf).filter(|c| c.exists());
    let asked = check_trusted(scontrol, true)
        .map_err(|e| e.to_string())
        .and_then(|()| release_of(scontrol, conf))
        .or_else(|e| release_of(&scontrol.with_file_name("slurmd"), None).or(Err(e)))
        .or_else(|e| release_of(Path::new("/usr/sbin/slurmd"), None).or(Err(e)));
    match asked {
        Ok(release) => {
            looks.pass(CHECK, format!("Slurm {release} is installed"));
            Some(release)
        }
        Err(e) => {
            let found = installed_libslurm();
            let text = match found {
                Some(release) => format!("{e}; by its libslurm, Slurm {release} is installed"),
                None => format!("{e}; no libslurm is installed either"),
            };
            let status = if found.is_some() { Status::Warn } else { Status::Fail };
            looks.add(CHECK, status, text, why, "[slurm]\nscontrol = \"/usr/bin/scontrol\"");
            found
        }
    }
}

fn release_of(program: &Path, slurm_conf: Option<&Path>) -> Result<Release, String> {
    let said = ask(program, &["-V"], slurm_conf)?;
    Release::find(&said)
        .ok_or_else(|| format!("{} -V said \"{}\" and no release", program.display(), said.trim()))
}

/// The release of the newest `libslurm.so.N` in the usual folders.
fn installed_libslurm() -> Option<Release> {
    ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib", "/opt/slurm/lib"]
        .iter()
        .flat_map(|dir| slurm_conf::expand(&Path::new(dir).join("libslurm.so.*")))
        .filter_map(|path| path.file_name()?.to_str()?.strip_prefix("libslurm.so.")?.parse().ok())
        .max()
        .and_then(Release::of_libslurm)
}

#[derive(Deserialize)]
struct DrainVersion {
    slurm: String,
    via: String,
    #[serde(default)]
    detail: String,
}

fn look_at_drain(looks: &mut Looks, config: &Config, slurm: Option<Release>) {
    const CHECK: &str = "clustermax-drain";
    let why = "no fault can drain the node, and Slurm shows \"Prolog error\" at best";
    let path = &config.paths.drain;
    if let Err(e) = check_trusted(path, true) {
        looks.add(
            CHECK,
            Status::Fail,
            e.to_string(),
            why,
            format!("[paths]\ndrain = \"{}\"", path.display()),
        );
        return;
    }
    let answer = ask(path, &["--version"], None).and_then(|said| {
        serde_json::from_str::<DrainVersion>(&said)
            .map_err(|_| format!("{} is not clustermax-drain", path.display()))
    });
    match answer {
        Err(e) => looks.add(CHECK, Status::Fail, e, why, ""),
        Ok(v) if v.via == "libslurm" => {
            looks.pass(
                CHECK,
                format!("{} was built for Slurm {} and uses its libslurm", path.display(), v.slurm),
            );
        }
        Ok(v) => {
            let installed = slurm.map_or("another release".to_string(), |r| format!("Slurm {r}"));
            looks.add(
                CHECK,
                Status::Warn,
                format!(
                    "{} was built for Slurm {} but {installed} is installed, so it goes through {}: {}; install the package for the installed release",
                    path.display(),
                    v.slurm,
                    config.slurm.scontrol.display(),
                    v.detail
                ),
                "a drain through scontrol starts one more program for each call",
                "",
            );
        }
    }
}

fn look_at_hooks(looks: &mut Looks, config: &Config, conf: &SlurmConf) {
    let own = |name: &str| config.paths.drain.parent().unwrap_or(Path::new("/")).join(name);
    for (key, name, missing, why) in [
        ("Prolog", "clustermax-prolog", Status::Fail, "jobs start on nodes with a known fault"),
        (
            "Epilog",
            "clustermax-epilog",
            Status::Warn,
            "a fault that a job met is found only by the next check, and the job's file is never closed",
        ),
    ] {
        let check = format!("slurm.conf {key}");
        let line = format!("{key}={}", own(name).display());
        let scripts: Vec<PathBuf> = conf
            .all(key)
            .filter(|v| !v.is_empty() && *v != "(null)")
            .flat_map(|v| slurm_conf::expand(Path::new(v.trim())))
            .collect();
        if let Some(broken) = scripts.iter().find(|s| !is_executable(s)) {
            looks.add(
                &check,
                Status::Fail,
                format!(
                    "{} is missing or cannot be executed: put it in place before the line",
                    broken.display()
                ),
                "with a script that cannot run, every job drains the nodes it meets",
                format!("chmod 755 {}", broken.display()),
            );
        } else if let Some(unsafe_script) = scripts.iter().find_map(|s| check_trusted(s, true).err()) {
            looks.add(&check, Status::Fail, unsafe_script.to_string(), "root runs it for every job", "");
        } else if let Some(script) = scripts.iter().find(|s| runs(s, name)) {
            looks.pass(&check, format!("{} runs {name}", script.display()));
        } else if scripts.is_empty() {
            looks.add(&check, missing, format!("{key} is not set: add {line}"), why, line);
        } else {
            looks.add(
                &check,
                missing,
                format!("no {key} script runs {name}: add {line} (several lines are allowed)"),
                why,
                line,
            );
        }
    }
    let flags = conf.get("PrologFlags").unwrap_or_default().to_ascii_lowercase();
    // These imply Alloc.
    let alloc =
        flags.split(',').any(|f| matches!(f.trim(), "alloc" | "contain" | "x11" | "serial" | "runinjob"));
    if alloc {
        looks.pass("slurm.conf PrologFlags", "the prolog runs when the job is allocated");
    } else {
        let wanted = if flags.is_empty() { "Alloc".to_string() } else { format!("Alloc,{flags}") };
        looks.add(
            "slurm.conf PrologFlags",
            Status::Warn,
            "PrologFlags lacks Alloc",
            "the prolog runs only at the job's first step on a node: salloc gets a sick node, and a batch job starts before its other nodes were looked at",
            format!("PrologFlags={wanted}"),
        );
    }
}

fn look_at_health_check(looks: &mut Looks, config: &Config, conf: &SlurmConf) {
    const CHECK: &str = "slurm.conf HealthCheckProgram";
    let own = config.paths.drain.parent().unwrap_or(Path::new("/")).join("healthcheckprogram");
    let line = format!("HealthCheckProgram={}", own.display());
    let why = "nothing looks at idle nodes, and drains kept while the controller was away are not delivered";
    match conf.get("HealthCheckProgram") {
        None => looks.add(CHECK, Status::Fail, format!("HealthCheckProgram is not set: add {line}"), why, line),
        Some(value) if value.split_whitespace().count() > 1 => looks.add(
            CHECK,
            Status::Fail,
            format!("HealthCheckProgram={value} has arguments: Slurm takes the whole text for a file name, runs nothing and says so only in slurmd's log (status 127)"),
            why,
            line,
        ),
        Some(value) => {
            let program = Path::new(value);
            if !is_executable(program) {
                looks.add(
                    CHECK,
                    Status::Fail,
                    format!("{value} is missing or cannot be executed"),
                    why,
                    format!("chmod 755 {value}"),
                );
            } else if let Err(e) = check_trusted(program, true) {
                looks.add(CHECK, Status::Fail, e.to_string(), "root runs it on every node", "");
            } else if runs(program, "clustermax-healthcheck") {
                looks.pass(CHECK, format!("{value} runs clustermax-healthcheck"));
            } else {
                looks.add(
                    CHECK,
                    Status::Fail,
                    format!("{value} does not run clustermax-healthcheck: add the call to it"),
                    why,
                    "clustermax-healthcheck run --mode periodic",
                );
            }
        }
    }
    match conf.number("HealthCheckInterval") {
        None | Some(0) => looks.add(
            "slurm.conf HealthCheckInterval",
            Status::Fail,
            "HealthCheckInterval is 0 or not set: HealthCheckProgram never runs (before 25.11 not even when slurmd starts)",
            why,
            "HealthCheckInterval=60",
        ),
        Some(seconds) if seconds > 300 => looks.add(
            "slurm.conf HealthCheckInterval",
            Status::Warn,
            format!("HealthCheckInterval is {seconds} s"),
            "a fault on an idle node is seen that much later",
            "HealthCheckInterval=60",
        ),
        Some(seconds) => looks.pass("slurm.conf HealthCheckInterval", format!("every {seconds} s")),
    }
}

fn look_at_timeouts(looks: &mut Looks, config: &Config, conf: &SlurmConf) {
    let ours = config.deadlines.prolog;
    let mut fits = true;
    let message = conf.number("MessageTimeout").unwrap_or(MESSAGE_TIMEOUT);
    for (key, limit, why) in [
        ("MessageTimeout", Some(message), "users are told \"Prolog hung\""),
        (
            "PrologEpilogTimeout",
            conf.number("PrologEpilogTimeout"),
            "Slurm kills the prolog in the middle, drains the node with \"Prolog error\" and requeues the job",
        ),
        (
            "PrologTimeout",
            conf.number("PrologTimeout"),
            "Slurm kills the prolog in the middle, drains the node with \"Prolog error\" and requeues the job",
        ),
        (
            "EpilogTimeout",
            conf.number("EpilogTimeout"),
            "Slurm kills the epilog in the middle and drains the node with \"Epilog error\"",
        ),
    ] {
        // 65534 and 65535 stand for "no limit".
        if let Some(limit) = limit.filter(|l| l.saturating_mul(1000) <= ours && *l > 0) {
            fits = false;
            looks.add(
                &format!("slurm.conf {key}"),
                Status::Warn,
                format!("{key} is {limit} s, deadlines.prolog of the configuration {ours} ms"),
                why,
                format!("{key}={}", ours / 1000 + 3),
            );
        }
    }
    if fits {
        looks.pass("slurm.conf timeouts", format!("all longer than deadlines.prolog ({ours} ms)"));
    }
}

/// Looks for our line; returns the plugin's file, where it is named by an absolute path.
fn look_at_plugstack(looks: &mut Looks, conf: &SlurmConf) -> Option<PathBuf> {
    const CHECK: &str = "plugstack.conf";
    const LINE: &str = "optional spank_clustermax.so";
    let why = "users get no options, no message about a node's fault and no report of a step's events";
    let path = conf.plugstack();
    let lines = match slurm_conf::read_plugstack(&path) {
        Ok(lines) => lines,
        Err(e) => {
            looks.add(CHECK, Status::Warn, format!("{e}: write it with the line `{LINE}`"), why, LINE);
            return None;
        }
    };
    let ours = |p: &Path| p.file_name().is_some_and(|n| n.to_string_lossy().contains("spank_clustermax"));
    let mut found: Vec<_> = lines.iter().filter(|l| ours(&l.plugin)).collect();
    let Some(line) = found.pop() else {
        looks.add(
            CHECK,
            Status::Warn,
            format!("{} has no line for the plugin: add `{LINE}`", path.display()),
            why,
            LINE,
        );
        return None;
    };
    let plugin = if line.plugin.is_absolute() {
        Some(line.plugin.clone())
    } else {
        plugin_dirs(conf).into_iter().map(|d| d.join(&line.plugin)).find(|p| p.exists())
    };
    match &plugin {
        Some(plugin) if plugin.exists() => {}
        _ => {
            looks.add(
                CHECK,
                Status::Fail,
                format!(
                    "{} names {}, which is not there: install the plugin or take the line out",
                    path.display(),
                    line.plugin.display()
                ),
                if line.required {
                    "the line says `required`: without the file every srun, sbatch and salloc fails"
                } else {
                    "every srun, sbatch and salloc prints an error before 25.11"
                },
                LINE,
            );
            return None;
        }
    }
    if !found.is_empty() {
        looks.add(
            CHECK,
            Status::Warn,
            format!("{} has {} lines for the plugin: keep one", path.display(), found.len() + 1),
            "Slurm may load it more than once",
            "",
        );
    } else if line.required {
        looks.add(
            CHECK,
            Status::Warn,
            format!("{} makes the plugin `required`", path.display()),
            "should it fail to load one day, every srun, sbatch and salloc fails and slurmd does not start",
            format!("optional {}", line.plugin.display()),
        );
    } else {
        looks.pass(CHECK, format!("{} loads {}", path.display(), line.plugin.display()));
    }
    plugin
}

fn plugin_dirs(conf: &SlurmConf) -> Vec<PathBuf> {
    match conf.get("PluginDir") {
        Some(dirs) => dirs.split(':').map(PathBuf::from).collect(),
        None => [
            "/usr/lib/x86_64-linux-gnu/slurm-wlm",
            "/usr/lib/aarch64-linux-gnu/slurm-wlm",
            "/usr/lib64/slurm",
            "/usr/lib/slurm",
            "/usr/local/lib/slurm",
        ]
        .iter()
        .map(PathBuf::from)
        .collect(),
    }
}

fn look_at_plugin(looks: &mut Looks, path: &Path, slurm: Option<Release>) {
    const CHECK: &str = "plugin";
    let plugin = match PluginFile::read(path) {
        Ok(plugin) => plugin,
        Err(e) => {
            looks.add(
                CHECK,
                Status::Fail,
                format!("{e}; install spank_clustermax.so there"),
                "Slurm refuses the file; with `required` in plugstack.conf every srun, sbatch and salloc fails",
                "",
            );
            return;
        }
    };
    if let Err(e) = check_trusted(path, true) {
        looks.add(CHECK, Status::Fail, e.to_string(), "slurmd and slurmstepd load it as root", "");
        return;
    }
    match slurm {
        Some(slurm) if slurm != plugin.release => {
            looks.add(
                CHECK,
                Status::Fail,
                format!(
                    "{} was built for Slurm {} but Slurm {slurm} is installed, which refuses to load it: install the package for Slurm {slurm} or rebuild with CLUSTERMAX_SLURM_VERSION={slurm}",
                    path.display(),
                    plugin.release
                ),
                "Slurm loads a SPANK plugin only into the release it was built for; with `required` in plugstack.conf every srun, sbatch and salloc fails",
                format!("CLUSTERMAX_SLURM_VERSION={slurm} cargo build --release -p spank-clustermax"),
            );
            return;
        }
        None => looks.add(
            CHECK,
            Status::Warn,
            format!(
                "{} was built for Slurm {}; which release is installed is not known",
                path.display(),
                plugin.release
            ),
            "Slurm loads a SPANK plugin only into the release it was built for",
            "",
        ),
        Some(_) => looks.pass(
            CHECK,
            format!(
                "{} was built for Slurm {}, hooks: {}",
                path.display(),
                plugin.release,
                plugin.hooks.join(", ")
            ),
        ),
    }
    if let Some(hook) = plugin.hooks.iter().find(|h| matches!(h.as_str(), "init" | "fini")) {
        looks.add(
            CHECK,
            Status::Fail,
            format!("{} exports `{hook}`: Slurm calls it when it loads or unloads the file", path.display()),
            "a plugin must not export it",
            "",
        );
    }
    if let Some(hook) = plugin.hooks.iter().find(|h| h.ends_with("_job_prolog") || h.ends_with("_job_epilog"))
    {
        looks.add(
            CHECK,
            Status::Warn,
            format!("{} exports {hook}", path.display()),
            "slurmd starts one more slurmstepd for every job on every node",
            "",
        );
    }
}

fn look_at_state(looks: &mut Looks, config: &Config) {
    let dir = &config.paths.state_dir;
    if let Ok(meta) = std::fs::metadata(dir) {
        if meta.mode() & 0o077 != 0 {
            looks.add(
                "state folder",
                Status::Fail,
                format!(
                    "{} has mode {:04o}: others can look into it or write there",
                    dir.display(),
                    meta.mode() & 0o7777
                ),
                "spooled drains and the brake lie in it",
                format!("chmod 700 {}", dir.display()),
            );
        } else {
            looks.pass("state folder", format!("{} is root's only", dir.display()));
        }
    }
    match Record::new(dir).read() {
        Ok(Some(engaged)) => looks.add(
            "brake",
            Status::Warn,
            format!("engaged since {}: {}", engaged.since, engaged.why),
            "no fault drains this node until it is released",
            format!("{} release-brake", config.paths.drain.display()),
        ),
        Err(e) => {
            looks.add("brake", Status::Warn, e.to_string(), "whether the brake is engaged is not known", "")
        }
        Ok(None) => {}
    }
    if let Ok(listing) = Spool::new(dir).list()
        && !listing.waiting.is_empty()
    {
        looks.add(
            "spool",
            Status::Warn,
            format!("{} drains wait for the controller", listing.waiting.len()),
            "the controller did not answer when they were due; the next periodic pass delivers them",
            format!("{} deliver", config.paths.drain.display()),
        );
    }
}

fn is_executable(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
}

/// True when the file is the program, or a script that names it.
fn runs(path: &Path, program: &str) -> bool {
    let resolved = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
    if resolved.file_name().is_some_and(|n| n == program) {
        return true;
    }
    let small = std::fs::metadata(&resolved).is_ok_and(|m| m.len() <= SCRIPT_MAX);
    small
        && std::fs::read(&resolved).is_ok_and(|bytes| {
            // A name in a comment runs nothing.
            String::from_utf8_lossy(&bytes)
                .lines()
                .any(|l| !l.trim_start().starts_with('#') && l.contains(program))
        })
}

/// What a program prints on stdout, within [`ASK_LIMIT`] and with a fixed environment.
fn ask(program: &Path, arguments: &[&str], slurm_conf: Option<&Path>) -> Result<String, String> {
    let failed = |e: std::io::Error| format!("{} cannot be run: {e}", program.display());
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .envs(slurm_conf.map(|conf| ("SLURM_CONF", conf)))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let mut child = match command.spawn() {
        // Somebody is just writing it.
        Err(e) if e.kind() == std::io::ErrorKind::ExecutableFileBusy => {
            thread::sleep(Duration::from_millis(200));
            command.spawn()
        }
        other => other,
    }
    .map_err(failed)?;
    // Read beside the wait: the list of all nodes is longer than a pipe holds.
    let mut stdout = child.stdout.take();
    let reader = thread::spawn(move || {
        let mut bytes = Vec::new();
        // What was read before an error is the answer.
        let _ = stdout.as_mut().map(|s| s.read_to_end(&mut bytes));
        bytes
    });
    let end = Instant::now() + ASK_LIMIT;
    while child.try_wait().map_err(failed)?.is_none() {
        if Instant::now() >= end {
            let _ = child.kill();
            return Err(format!("{} did not end within {} s", program.display(), ASK_LIMIT.as_secs()));
        }
        thread::sleep(Duration::from_millis(5));
    }
    Ok(String::from_utf8_lossy(&reader.join().unwrap_or_default()).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An installation in a folder: programs are small scripts.
    struct Site {
        dir: tempfile::TempDir,
    }

    impl Site {
        /// Everything as it should be, in `enforce`, with Slurm 22.05 and without the plugin.
        fn good() -> Self {
            let site = Site { dir: tempfile::tempdir().unwrap() };
            site.script("scontrol", "echo slurm-wlm 22.05.8");
            site.script(
                "clustermax-drain",
                r#"echo '{"program":"clustermax-drain","slurm":"22.05","via":"libslurm"}'"#,
            );
            site.script("clustermax-prolog", "true");
            site.script("clustermax-epilog", "true");
            site.script(
                "healthcheckprogram",
                "exec /usr/libexec/clustermax/clustermax-healthcheck run --mode periodic",
            );
            site.file(
                "clustermax.toml",
                &format!(
                    "enforcement = \"enforce\"\n[paths]\ndrain = \"{0}/clustermax-drain\"\nstate_dir = \"{0}/state\"\n\
                     run_dir = \"{0}/run\"\n\
                     [slurm]\nconf = \"{0}/slurm.conf\"\nscontrol = \"{0}/scontrol\"\n",
                    site.path("").display()
                ),
            );
            site.conf(&[]);
            site.file("plugstack.conf", "");
            std::fs::create_dir(site.path("run")).unwrap();
            site.passed(5, jiff::Timestamp::now().as_second());
            site
        }

        fn path(&self, name: &str) -> PathBuf {
            self.dir.path().join(name)
        }

        /// What the periodic passes left.
        fn passed(&self, count: u64, time: i64) {
            let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
            let text = format!(
                r#"{{"boot_id":"{}","passes":{{"periodic":{{"count":{count},"time":{time}.5,"seconds":0.1}}}}}}"#,
                boot.trim()
            );
            self.file("run/checks.json", &text);
        }

        fn file(&self, name: &str, text: &str) {
            std::fs::write(self.path(name), text).unwrap();
            std::fs::set_permissions(self.path(name), PermissionsExt::from_mode(0o644)).unwrap();
        }

        fn script(&self, name: &str, text: &str) {
            self.file(name, &format!("#!/bin/sh\n{text}\n"));
            std::fs::set_permissions(self.path(name), PermissionsExt::from_mode(0o755)).unwrap();
        }

        /// slurm.conf with some keys changed; an empty value takes the key out.
        fn conf(&self, changes: &[(&str, &str)]) {
            let here = |name: &str| self.path(name).display().to_string();
            let keys = [
                ("Prolog", here("clustermax-prolog")),
                ("Epilog", here("clustermax-epilog")),
                ("PrologFlags", "Contain".into()),
                ("HealthCheckProgram", here("healthcheckprogram")),
                ("HealthCheckInterval", "60".into()),
                ("UnkillableStepTimeout", "180".into()),
                ("SchedulerParameters", "bf_interval=30,nohold_on_prolog_fail".into()),
            ];
            let changed = |key: &str| changes.iter().find(|(k, _)| *k == key).map(|(_, v)| (*v).to_string());
            let mut text = String::new();
            for (key, value) in keys.iter().map(|(k, v)| (*k, changed(k).unwrap_or(v.clone()))) {
                if !value.is_empty() {
                    text += &format!("{key}={value}\n");
                }
            }
            for (key, value) in changes.iter().filter(|(k, _)| keys.iter().all(|(known, _)| known != k)) {
                text += &format!("{key}={value}\n");
            }
            self.file("slurm.conf", &text);
        }

        fn diagnose(&self) -> Diagnosis {
            diagnose(&Options {
                config: self.path("clustermax.toml"),
                node: "n1".into(),
                plugin: None,
                slurm_conf: None,
                cluster: false,
            })
        }

        /// The worst item of a check.
        fn item(&self, check: &str) -> Item {
            let all = self.diagnose().checks;
            all.iter()
                .filter(|i| i.check == check)
                .max_by_key(|i| i.status)
                .cloned()
                .unwrap_or_else(|| panic!("{check}: {all:#?}"))
        }
    }

    #[test]
    fn a_good_installation_passes_but_for_the_plugin() {
        let site = Site::good();
        let diagnosis = site.diagnose();
        assert_eq!(diagnosis.slurm.as_deref(), Some("22.05"));
        let not_passed: Vec<&str> =
            diagnosis.checks.iter().filter(|i| i.status != Status::Pass).map(|i| i.check.as_str()).collect();
        assert_eq!(not_passed, ["plugstack.conf"]);
        assert_eq!(site.item("plugstack.conf").mend, "optional spank_clustermax.so");
    }

    #[test]
    fn each_missing_or_wrong_key_is_named_with_its_line() {
        let site = Site::good();
        let here = |name: &str| site.path(name).display().to_string();
        let with_arguments = format!("{} --all", here("healthcheckprogram"));
        site.script("other", "# clustermax-prolog clustermax-healthcheck\ntrue");
        let other = here("other");
        let rows: &[(&str, &str, &str, Status, &str)] = &[
            ("Prolog", "", "slurm.conf Prolog", Status::Fail, "is not set: add Prolog=/"),
            ("Prolog", &other, "slurm.conf Prolog", Status::Fail, "no Prolog script runs clustermax-prolog"),
            ("Prolog", "/nonexistent/p", "slurm.conf Prolog", Status::Fail, "missing or cannot be executed"),
            ("Epilog", "", "slurm.conf Epilog", Status::Warn, "is not set"),
            ("PrologFlags", "", "slurm.conf PrologFlags", Status::Warn, "lacks Alloc"),
            ("HealthCheckProgram", "", "slurm.conf HealthCheckProgram", Status::Fail, "is not set"),
            (
                "HealthCheckProgram",
                &with_arguments,
                "slurm.conf HealthCheckProgram",
                Status::Fail,
                "has arguments",
            ),
            ("HealthCheckProgram", &other, "slurm.conf HealthCheckProgram", Status::Fail, "does not run"),
            ("HealthCheckInterval", "0", "slurm.conf HealthCheckInterval", Status::Fail, "never runs"),
            ("HealthCheckInterval", "900", "slurm.conf HealthCheckInterval", Status::Warn, "900 s"),
            ("PrologEpilogTimeout", "5", "slurm.conf PrologEpilogTimeout", Status::Warn, "is 5 s"),
            ("MessageTimeout", "7", "slurm.conf MessageTimeout", Status::Warn, "is 7 s"),
            ("SlurmdTimeout", "0", "slurm.conf SlurmdTimeout", Status::Warn, "never set DOWN"),
            ("SlurmdTimeout", "900", "slurm.conf SlurmdTimeout", Status::Warn, "is 900 s"),
            ("SlurmdTimeout", "30", "slurm.conf SlurmdTimeout", Status::Warn, "HealthCheckInterval 60 s"),
            ("UnkillableStepTimeout", "", "slurm.conf UnkillableStepTimeout", Status::Warn, "is 60 s"),
            ("SchedulerParameters", "x", "slurm.conf SchedulerParameters", Status::Warn, "lacks nohold"),
            ("HealthCheckNodeState", "IDLE", "slurm.conf HealthCheckNodeState", Status::Warn, "leaves out"),
            (
                "HealthCheckNodeState",
                "ANY,START_ONLY",
                "slurm.conf HealthCheckNodeState",
                Status::Warn,
                "leaves",
            ),
        ];
        for (key, value, check, status, text) in rows {
            site.conf(&[(key, value)]);
            let item = site.item(check);
            assert_eq!(item.status, *status, "{item:?}");
            assert!(item.text.contains(text) && !item.why.is_empty(), "{item:?}");
        }
    }

    #[test]
    fn that_the_health_check_program_ran_is_proved_by_its_last_pass() {
        let site = Site::good();
        let now = jiff::Timestamp::now().as_second();
        let seen = || site.item("HealthCheckProgram ran");
        assert_eq!(seen().status, Status::Pass, "{:?}", seen());
        assert!(seen().text.starts_with("5 passes, the last one "), "{:?}", seen());
        site.passed(5, now - 400);
        assert_eq!(seen().status, Status::Fail);
        assert!(seen().text.contains("HealthCheckInterval is 60 s"), "{:?}", seen());
        site.file("run/checks.json", r#"{"boot_id":"another","passes":{"periodic":{"count":1,"time":1.0}}}"#);
        assert!(seen().text.contains("no periodic pass since this node was booted"), "{:?}", seen());
        site.file("run/checks.json", "{");
        assert!(seen().text.contains("is not readable"), "{:?}", seen());
        std::fs::remove_file(site.path("run/checks.json")).unwrap();
        assert!(seen().text.contains("does not exist"), "{:?}", seen());
        assert_eq!(seen().status, Status::Warn);
    }

    #[test]
    fn a_prolog_that_never_fails_needs_no_requeue() {
        let site = Site::good();
        site.conf(&[("SchedulerParameters", ""), ("HealthCheckNodeState", "CYCLE")]);
        let config = std::fs::read_to_string(site.path("clustermax.toml")).unwrap();
        site.file("clustermax.toml", &config.replace("enforce\"", "observe\""));
        let item = site.item("slurm.conf SchedulerParameters");
        assert_eq!(item.status, Status::Pass);
        assert!(item.text.ends_with("SchedulerParameters=nohold_on_prolog_fail"), "{item:?}");
        assert_eq!(site.item("slurm.conf HealthCheckNodeState").status, Status::Pass);
    }

    #[test]
    fn unsafe_files_fail() {
        let site = Site::good();
        std::fs::set_permissions(site.path("clustermax-prolog"), PermissionsExt::from_mode(0o777)).unwrap();
        assert!(site.item("slurm.conf Prolog").text.contains("writable by others"));
        std::fs::create_dir(site.path("state")).unwrap();
        std::fs::set_permissions(site.path("state"), PermissionsExt::from_mode(0o755)).unwrap();
        assert_eq!(site.item("state folder").status, Status::Fail);
        std::fs::set_permissions(site.dir.path(), PermissionsExt::from_mode(0o777)).unwrap();
        assert_eq!(site.item("configuration folder").status, Status::Fail);
        site.file("clustermax.toml", "enforcemnt = 1\n");
        assert!(site.item("configuration").text.contains("did you mean"));
    }

    #[test]
    fn another_release_is_told_in_one_sentence() {
        let site = Site::good();
        site.script("scontrol", "echo slurm 24.11.5");
        site.script(
            "clustermax-drain",
            r#"echo '{"program":"clustermax-drain","slurm":"22.05","via":"scontrol","detail":"no libslurm.so.38"}'"#,
        );
        let item = site.item("clustermax-drain");
        assert_eq!(item.status, Status::Warn);
        assert!(item.text.contains("built for Slurm 22.05 but Slurm 24.11 is installed"), "{item:?}");
        site.script("scontrol", "exec sleep 1");
        site.script("clustermax-drain", "echo hello");
        assert_eq!(site.item("clustermax-drain").status, Status::Fail);
        site.file("p.so", "no plugin");
        site.file("plugstack.conf", &format!("required {}/p_spank_clustermax.so\n", site.path("").display()));
        let item = site.item("plugstack.conf");
        assert_eq!(item.status, Status::Fail);
        assert!(item.why.contains("every srun"), "{item:?}");
    }

    #[test]
    fn an_engaged_brake_and_waiting_drains_are_shown() {
        let site = Site::good();
        Record::new(&site.path("state")).engage("n1", "2 of 2", "cmx:x", "then").unwrap();
        assert!(site.item("brake").mend.ends_with("clustermax-drain release-brake"));
        let waiting = crate::spool::Spooled::new("n1", "cmx:x t", &[], "t", "b", "");
        Spool::new(&site.path("state")).keep(&waiting).unwrap();
        assert_eq!(site.item("spool").status, Status::Warn);
    }
}
