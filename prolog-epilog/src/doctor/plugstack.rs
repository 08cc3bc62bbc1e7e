//! plugstack.conf and the plugin that it names.

use std::path::{Path, PathBuf};

use healthcheck::config::check_trusted;

use super::{Looks, Status};
use crate::plugin_file::PluginFile;
use crate::release::Release;
use crate::slurm_conf::{self, SlurmConf};

/// Looks for our line; returns the plugin's file, where it is named by an absolute path.
pub(super) fn lines(looks: &mut Looks, conf: &SlurmConf) -> Option<PathBuf> {
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
    let mut found: Vec<_> = lines.iter().filter(|l| is_ours(&l.plugin)).collect();
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
    let plugin = resolved(conf, &line.plugin);
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

fn is_ours(plugin: &Path) -> bool {
    plugin.file_name().is_some_and(|n| n.to_string_lossy().contains("spank_clustermax"))
}

/// A relative path is looked up in `PluginDir`.
fn resolved(conf: &SlurmConf, plugin: &Path) -> Option<PathBuf> {
    if plugin.is_absolute() {
        return Some(plugin.to_path_buf());
    }
    plugin_dirs(conf).into_iter().map(|d| d.join(plugin)).find(|p| p.exists())
}

/// The plugin's file that plugstack.conf names, if it is there.
pub(super) fn plugin_path(conf: &SlurmConf) -> Option<PathBuf> {
    let lines = slurm_conf::read_plugstack(&conf.plugstack()).ok()?;
    let line = lines.iter().rfind(|l| is_ours(&l.plugin))?;
    resolved(conf, &line.plugin).filter(|p| p.exists())
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

pub(super) fn plugin(looks: &mut Looks, path: &Path, slurm: Option<Release>) {
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
