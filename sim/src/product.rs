//! The product's programs on simulated nodes: found in one folder, wired in by configuration only.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use nvidia_ml_sim::model::GpuFile;
use serde::Serialize;

use crate::error::{Error, IoContext, Result};
use crate::files;
use crate::slurm;
use crate::state::{Layout, State};
use crate::sysfs::IbCard;

/// The product's HealthCheckProgram; only its two paths differ on a simulated cluster.
const HEALTH_CHECK_PROGRAM: &str = include_str!("../../prolog-epilog/healthcheckprogram");

/// The product's programs that run on nodes.
pub(crate) const PROGRAMS: [&str; 4] =
    ["clustermax-prolog", "clustermax-epilog", "clustermax-healthcheck", "clustermax-drain"];
/// The one of them that is bound to a release of Slurm.
const DRAIN: &str = "clustermax-drain";
/// The simulated NVML, as cargo names it.
const NVML: &str = "libnvidia_ml_sim.so";
/// The SPANK plug-in, as installed and as cargo names it.
const PLUGIN: [&str; 2] = ["spank_clustermax.so", "libspank_clustermax.so"];

/// What was found in the folder of programs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Product {
    /// The folder.
    pub prefix: PathBuf,
    /// The simulated NVML.
    pub nvml: Option<PathBuf>,
    /// The SPANK plug-in.
    pub plugin: Option<PathBuf>,
    /// `clustermax-drain`.
    pub drain: PathBuf,
}

/// Where the two programs that are bound to a release of Slurm lie: beside the other programs' folder, where `sim/slurm-root`
/// builds them.
pub(crate) fn release_folder(prefix: &Path, release: &str) -> PathBuf {
    prefix.parent().unwrap_or(prefix).join(format!("slurm-{release}"))
}

/// Refuses a program of a release's folder that was built before the same program in `prefix`: a cluster would run what the
/// source does not say any more.
fn not_stale(bound: &Path, prefix: &Path, release: &str) -> Result<()> {
    let built = |path: &Path| fs::metadata(path).and_then(|m| m.modified()).ok();
    let own = prefix.join(DRAIN);
    match (built(bound), built(&own)) {
        (Some(old), Some(new)) if old < new => Err(Error::Usage(format!(
            "{} is older than {}: build it anew with sim/slurm-root {release}",
            bound.display(),
            own.display()
        ))),
        _ => Ok(()),
    }
}

impl Product {
    /// Looks into `prefix`; for `release` of Slurm, if given, first into the folder of that release.
    ///
    /// # Errors
    /// Unless `plain`, names what is missing, or is there and out of date.
    pub fn find(prefix: &Path, plain: bool, release: Option<&str>) -> Result<Self> {
        let find = |name: &str| Some(prefix.join(name)).filter(|p| p.is_file());
        // Cargo leaves a library that only a dependency asked for in deps/.
        let nvml = find(NVML).or_else(|| find(&format!("deps/{NVML}")));
        if !plain {
            let mut missing: Vec<&str> = PROGRAMS.into_iter().filter(|p| find(p).is_none()).collect();
            if nvml.is_none() {
                missing.push(NVML);
            }
            if !missing.is_empty() {
                return Err(Error::Usage(format!(
                    "{} lacks {}; build them (cargo build), name their folder with --prefix, or start Slurm alone \
                     with --plain",
                    prefix.display(),
                    missing.join(", ")
                )));
            }
        }
        let folder = release.map(|r| release_folder(prefix, r));
        if let (Some(folder), Some(release), false) = (&folder, release, plain) {
            not_stale(&folder.join(DRAIN), prefix, release)?;
        }
        let bound: Vec<PathBuf> = folder.into_iter().chain([prefix.to_owned()]).collect();
        let bound_to = |name: &str| bound.iter().map(|f| f.join(name)).find(|p| p.is_file());
        Ok(Self {
            prefix: prefix.to_owned(),
            nvml,
            plugin: PLUGIN.into_iter().find_map(bound_to),
            drain: bound_to(DRAIN).unwrap_or_else(|| prefix.join(DRAIN)),
        })
    }

    /// Copies the libraries into the cluster's folder, where ordinary users can read them and no build replaces them
    /// under a running program.
    ///
    /// # Errors
    /// When a file cannot be copied.
    pub fn install_libraries(&self, state: &State, layout: &Layout) -> Result<()> {
        if let Some(nvml) = &self.nvml {
            let copy = layout.lib().join(NVML);
            copy_readable(nvml, &copy)?;
            for node in state.node_names() {
                // A link, not a symbolic one: the library finds its GPU file by its own path.
                let path = layout.node(&node).nvml();
                fs::hard_link(&copy, &path).context("create", &path)?;
            }
        }
        if let Some(plugin) = self.plugin.as_ref().filter(|_| !state.options.plain) {
            copy_readable(plugin, &layout.lib().join(PLUGIN[0]))?;
        }
        Ok(())
    }

    /// Writes clustermax.toml, the three scripts that Slurm runs, and plugstack.conf.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn write_configuration(&self, state: &State, layout: &Layout, gpus: &GpuFile) -> Result<()> {
        let etc = layout.etc();
        let toml = clustermax_toml(state, layout, &self.drain, gpus, slurm::memory_total_kib()?)?;
        files::write_atomic(&layout.clustermax_toml(), toml.as_bytes(), 0o644)?;
        if state.options.plain {
            // Slurm would load a plugstack.conf beside slurm.conf without being told to.
            return Ok(());
        }
        let config = layout.clustermax_toml();
        for (name, program) in [("prolog", "clustermax-prolog"), ("epilog", "clustermax-epilog")] {
            let script = format!(
                "#!/bin/sh\n# Written by clustermax-sim: Slurm passes no arguments.\nexec '{}/{program}' --config '{}'\n",
                self.prefix.display(),
                config.display()
            );
            files::write_atomic(&etc.join(name), script.as_bytes(), 0o755)?;
        }
        let program = format!("PROGRAM='{}/clustermax-healthcheck'", self.prefix.display());
        let script = HEALTH_CHECK_PROGRAM
            .replace("PROGRAM=/usr/libexec/clustermax/clustermax-healthcheck", &program)
            .replace("CONFIG=/etc/clustermax/clustermax.toml", &format!("CONFIG='{}'", config.display()));
        files::write_atomic(&etc.join("healthcheckprogram"), script.as_bytes(), 0o755)?;
        let plugstack = if self.plugin.is_some() {
            format!(
                "optional {}/{} run_dir={}/run\n",
                layout.lib().display(),
                PLUGIN[0],
                layout.node("%n").dir.display()
            )
        } else {
            "# The folder of programs has no SPANK plug-in.\n".to_owned()
        };
        files::write_atomic(&etc.join("plugstack.conf"), plugstack.as_bytes(), 0o644)
    }
}

fn copy_readable(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to).context("copy", from)?;
    fs::set_permissions(to, fs::Permissions::from_mode(0o755)).context("set the mode of", to)
}

#[derive(Serialize)]
struct Configuration<'a> {
    enforcement: &'a str,
    paths: Paths,
    metrics: Metrics,
    slurm: SlurmPaths,
    checks: BTreeMap<&'a str, Check>,
    profile: Profile<'a>,
}

#[derive(Serialize)]
struct Check {
    state: &'static str,
}

#[derive(Serialize)]
struct Paths {
    sysfs: PathBuf,
    procfs: PathBuf,
    dev: PathBuf,
    kmsg: PathBuf,
    kmsg_files: Vec<PathBuf>,
    kmsg_shared: bool,
    nvml: PathBuf,
    cuda: PathBuf,
    run_dir: PathBuf,
    state_dir: PathBuf,
    drain: PathBuf,
}

#[derive(Serialize)]
struct Metrics {
    textfile: PathBuf,
}

#[derive(Serialize)]
struct SlurmPaths {
    conf: PathBuf,
    scontrol: PathBuf,
}

#[derive(Serialize)]
struct Profile<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    gpu_model: Option<&'a str>,
    gpu_count: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    nvlinks_per_gpu: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pcie_width: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pcie_speed_gts: Option<f64>,
    nvme_count: u32,
    memory_total_kib: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    gpu: Option<GpuProfile>,
    net_port: [NetPort; 1],
    ib_port: Vec<IbPort>,
}

#[derive(Serialize)]
struct GpuProfile {
    #[serde(skip_serializing_if = "Option::is_none")]
    nvlink_mbps: Option<u32>,
    ecc: bool,
    mig: bool,
    compute_mode: &'static str,
}

#[derive(Serialize)]
struct NetPort {
    name: &'static str,
    speed_mbps: u32,
    mtu: u32,
}

#[derive(Serialize)]
struct IbPort {
    device: String,
    port: u32,
    rate_gbps: f64,
}

/// Renders clustermax.toml for all nodes at once: `%n` in its paths is the node's name.
fn clustermax_toml(
    state: &State,
    layout: &Layout,
    drain: &Path,
    gpus: &GpuFile,
    memory_total_kib: u64,
) -> Result<String> {
    let node = layout.node("%n");
    let gpu = gpus.gpus.first();
    let rate = f64::from(IbCard::beside(state.model()).rate_gbps);
    let configuration = Configuration {
        enforcement: &state.options.enforcement,
        paths: Paths {
            sysfs: node.sys(),
            procfs: PathBuf::from("/proc"),
            dev: node.dev(),
            kmsg: PathBuf::from(crate::kmsg::KMSG),
            kmsg_files: vec![node.kmsg()],
            kmsg_shared: true,
            nvml: node.nvml(),
            // There is none: the machine's own would show the machine's own GPUs.
            cuda: node.dir.join("libcuda.so.1"),
            run_dir: node.run(),
            state_dir: node.state(),
            drain: drain.to_owned(),
        },
        metrics: Metrics { textfile: node.run().join("clustermax.prom") },
        slurm: SlurmPaths {
            // A configless node has none there, and a copy in /run/slurm/conf.
            conf: if state.options.configless {
                PathBuf::from("/etc/slurm/slurm.conf")
            } else {
                layout.slurm_conf()
            },
            scontrol: match state.slurm_root()? {
                Some(root) => root.program("scontrol")?,
                None => slurm::program("scontrol")?,
            },
        },
        // The clock is the real machine's: nodes that share one have nothing to say about it.
        checks: BTreeMap::from([("host.clock", Check { state: "off" })]),
        profile: Profile {
            gpu_model: gpu.map(|g| g.name.as_str()),
            gpu_count: gpus.gpus.len(),
            nvlinks_per_gpu: gpu.and_then(|g| g.nvlink.as_ref()).map(|n| n.links),
            pcie_width: gpu.map(|g| g.pcie.max_width),
            pcie_speed_gts: gpu.map(|g| match g.pcie.max_generation {
                ..=3 => 8.0,
                4 => 16.0,
                5 => 32.0,
                _ => 64.0,
            }),
            nvme_count: crate::sysfs::NVME_COUNT,
            memory_total_kib,
            net_port: [NetPort { name: "eth0", speed_mbps: 25_000, mtu: 1500 }],
            gpu: gpu.map(|g| GpuProfile {
                nvlink_mbps: g.nvlink.as_ref().map(|n| n.speed),
                ecc: true,
                mig: false,
                compute_mode: "default",
            }),
            ib_port: (0..state.options.ib_ports)
                .map(|i| IbPort { device: format!("mlx5_{i}"), port: 1, rate_gbps: rate })
                .collect(),
        },
    };
    let text =
        toml::to_string(&configuration).map_err(|e| Error::System(format!("cannot write TOML: {e}")))?;
    Ok(format!("# Written by clustermax-sim; %n is the name of the node.\n{text}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::tests::state;
    use nvidia_ml_sim::model::GpuModel;

    #[test]
    fn configuration_points_at_the_simulated_node() {
        let layout = Layout { dir: PathBuf::from("/srv/sim") };
        let gpus = GpuFile::new(GpuModel::H100Sxm, 8, 0x3a1c, 0);
        let text =
            clustermax_toml(&state(), &layout, Path::new("/opt/clustermax/clustermax-drain"), &gpus, 1000)
                .unwrap();
        let value: toml::Table = text.parse().unwrap();
        assert_eq!(value["enforcement"].as_str(), Some("enforce"));
        assert_eq!(value["paths"]["sysfs"].as_str(), Some("/srv/sim/nodes/%n/sys"));
        assert_eq!(value["paths"]["kmsg_files"][0].as_str(), Some("/srv/sim/nodes/%n/kmsg"));
        assert_eq!(value["paths"]["nvml"].as_str(), Some("/srv/sim/nodes/%n/libnvidia-ml.so.1"));
        assert_eq!(value["paths"]["drain"].as_str(), Some("/opt/clustermax/clustermax-drain"));
        assert_eq!(value["slurm"]["conf"].as_str(), Some("/srv/sim/etc/slurm.conf"));
        assert_eq!(value["profile"]["gpu_model"].as_str(), Some("NVIDIA H100 80GB HBM3"));
        assert_eq!(value["profile"]["nvlinks_per_gpu"].as_integer(), Some(18));
        assert_eq!(value["profile"]["ib_port"][7]["device"].as_str(), Some("mlx5_7"));
        assert_eq!(value["profile"]["ib_port"][0]["rate_gbps"].as_float(), Some(400.0));
    }

    #[test]
    fn missing_programs_are_named() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("clustermax-prolog"), "").unwrap();
        let error = Product::find(folder.path(), false, None).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        let text = error.to_string();
        assert!(text.contains("lacks clustermax-epilog,") && text.contains(NVML), "{text}");
        assert!(!text.contains("clustermax-prolog"), "{text}");
        let plain = Product::find(folder.path(), true, None).unwrap();
        assert_eq!((plain.nvml, plain.plugin), (None, None));
        fs::write(folder.path().join("libspank_clustermax.so"), "").unwrap();
        assert!(Product::find(folder.path(), true, None).unwrap().plugin.is_some());
    }

    #[test]
    fn what_is_bound_to_a_release_is_taken_from_its_folder() {
        let target = tempfile::tempdir().unwrap();
        let (prefix, beside) = (target.path().join("debug"), target.path().join("slurm-24.11"));
        for folder in [&prefix, &beside] {
            fs::create_dir(folder).unwrap();
            fs::write(folder.join(DRAIN), "").unwrap();
            fs::write(folder.join(PLUGIN[0]), "").unwrap();
        }
        let own = Product::find(&prefix, true, Some("24.11")).unwrap();
        assert_eq!((own.drain, own.plugin), (beside.join(DRAIN), Some(beside.join(PLUGIN[0]))));
        for release in [None, Some("26.05")] {
            assert_eq!(Product::find(&prefix, true, release).unwrap().drain, prefix.join(DRAIN));
        }
        // Left behind by an older version of the packages' build.
        let below = prefix.join("slurm-24.11");
        fs::create_dir(&below).unwrap();
        fs::write(below.join(DRAIN), "").unwrap();
        assert_eq!(Product::find(&prefix, true, Some("24.11")).unwrap().drain, beside.join(DRAIN));
    }

    #[test]
    fn what_was_built_before_the_other_programs_is_refused() {
        let target = tempfile::tempdir().unwrap();
        let (prefix, beside) = (target.path().join("debug"), target.path().join("slurm-24.11"));
        for folder in [&prefix, &beside] {
            fs::create_dir(folder).unwrap();
        }
        for name in PROGRAMS.iter().chain([&NVML]) {
            fs::write(prefix.join(name), "").unwrap();
        }
        fs::write(beside.join(DRAIN), "").unwrap();
        let found = || Product::find(&prefix, false, Some("24.11"));
        let built = |path: &Path, at: u64| {
            let at = std::time::UNIX_EPOCH + std::time::Duration::from_secs(at);
            fs::File::options().write(true).open(path.join(DRAIN)).unwrap().set_modified(at).unwrap();
        };
        built(&prefix, 1000);
        built(&beside, 1001);
        assert_eq!(found().unwrap().drain, beside.join(DRAIN));
        built(&beside, 999);
        let text = found().unwrap_err().to_string();
        assert!(text.contains("build it anew with sim/slurm-root 24.11"), "{text}");
        assert!(Product::find(&prefix, false, Some("26.05")).is_ok(), "none was built for it");
    }
}
