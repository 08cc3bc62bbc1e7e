//! Learns a node's profile from its facts.

use std::path::PathBuf;

use serde::Serialize;

use crate::config::{
    AmdProfile, FirmwareProfile, GpuProfile, IbPortProfile, MountProfile, NetPortProfile, Profile,
    SpaceProfile,
};
use crate::facts::{self, AmdGpu, Facts, FunctionKind, GpuDetails, GpuSurvey, NvmlGpu, Reading};

/// File system types that live on the network.
pub(crate) const NETWORK: &[&str] =
    &["nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "cifs", "wekafs", "fuse.juicefs", "pvfs2", "vast"];

#[derive(Serialize)]
struct File<'a> {
    profile: &'a Profile,
}

/// What this node has now. It is the operator's to review: a node that is sick teaches its sickness.
#[must_use]
pub fn profile(facts: &Facts) -> Profile {
    let nvml = facts.nvml.value();
    let gpus = nvml.map_or(&[][..], |n| &n.gpus);
    let links = gpus.iter().filter_map(|g| g.nvlinks.value()).map(|l| l.values().filter(|a| **a).count());
    let widths = facts.pci.value().map_or(&[][..], |p| &p.gpus).iter().filter_map(|g| g.max_width.value());
    let ports = facts.ib.value().into_iter().flatten().filter_map(|(name, port)| {
        let (device, number) = name.split_once('/')?;
        // Only ports that are up teach something; an unused port is none of the profile's.
        (port.state.value() == Some(&4)).then_some(())?;
        let rate_gbps = *port.rate_gbps.value()?;
        Some(IbPortProfile { device: device.into(), port: number.parse().ok()?, rate_gbps })
    });
    let mounts = facts.mounts.value().into_iter().flatten();
    let node = &facts.node;
    let speeds = node.functions.value().into_iter().flatten().filter(|(_, f)| f.kind == FunctionKind::Gpu);
    let speeds = speeds.filter_map(|(_, f)| f.max_speed.value().copied());
    let interfaces = node.net.value().into_iter().flatten();
    Profile {
        pcie_speed_gts: speeds.max_by(f64::total_cmp),
        nvme_count: node.nvme.value().and_then(|n| u32::try_from(n.len()).ok()).filter(|n| *n > 0),
        cpu_count: node.cpus.value().copied(),
        // An InfiniBand card's own interface is the port's already.
        net_port: interfaces
            .filter(|(name, p)| {
                (!p.is_virtual || !p.slaves.is_empty()) && p.operstate == "up" && !name.starts_with("ib")
            })
            .map(|(name, p)| NetPortProfile {
                name: name.clone(),
                speed_mbps: p.speed_mbps.value().copied(),
                mtu: p.mtu.value().copied(),
            })
            .collect(),
        gpu_model: gpus.first().and_then(|g| g.name.value().cloned()),
        gpu_count: nvml.filter(|n| n.count > 0).map(|n| n.count),
        nvlinks_per_gpu: links.max().filter(|n| *n > 0).and_then(|n| u32::try_from(n).ok()),
        pcie_width: widths.max().copied(),
        memory_total_kib: facts.memory_total_kib.value().copied(),
        amd: amd_profile(facts),
        gpu: gpu_profile(gpus, nvml.map_or("", |n| &n.driver_version)),
        ib_port: ports.collect(),
        mount: mounts
            .filter(|(_, m)| NETWORK.contains(&m.fstype.as_str()))
            .map(|(point, m)| MountProfile {
                path: PathBuf::from(point),
                fstype: Some(m.fstype.clone()),
                writable: m.writable,
                network: true,
            })
            .collect(),
        space: ["/", "/tmp", "/var"]
            .iter()
            .filter(|p| facts.mounts.value().is_some_and(|m| m.contains_key(**p)))
            .map(|p| SpaceProfile { path: p.into(), warn_percent: 85.0, fail_percent: 95.0 })
            .collect(),
        ..Profile::default()
    }
}

fn amd_profile(facts: &Facts) -> AmdProfile {
    let gpus = facts.amd.value().map_or(&[][..], Vec::as_slice);
    AmdProfile {
        gpu_count: u32::try_from(gpus.iter().filter(|g| g.bound).count()).ok().filter(|n| *n > 0),
        pcie_width: gpus.iter().filter_map(|g| g.max_width.value()).max().copied(),
        xgmi: same(gpus.iter().map(|g| g.hive.value())).is_some(),
        xgmi_links: gpus.iter().filter_map(xgmi_links_up).max(),
    }
}

/// xGMI links that are up, where the driver tells.
fn xgmi_links_up(gpu: &AmdGpu) -> Option<u32> {
    let up = gpu.metrics.value()?.xgmi_links.values().filter(|up| **up).count();
    u32::try_from(up).ok().filter(|n| *n > 0)
}

/// How the GPUs are set up, where all of them agree.
fn gpu_profile(gpus: &[NvmlGpu], driver: &str) -> GpuProfile {
    let details: Vec<&GpuDetails> = gpus.iter().filter_map(|g| g.details.as_deref()).collect();
    let surveys: Vec<&GpuSurvey> = gpus.iter().filter_map(|g| g.survey.as_deref()).collect();
    let mode = |m: Option<&facts::Mode>| m.map(|m| m.current);
    let vbios = same(surveys.iter().map(|s| s.vbios.value().cloned()));
    let gsp = same(surveys.iter().map(|s| s.gsp.value().cloned()));
    GpuProfile {
        nvlink_mbps: surveys
            .iter()
            .filter_map(|s| s.nvlink_speeds.value())
            .flat_map(|l| l.values())
            .max()
            .copied(),
        power_limit_watts: same(details.iter().map(|d| d.power_limit_mw.value().map(|mw| mw / 1000))),
        ecc: same(details.iter().map(|d| mode(d.ecc_mode.value()))),
        mig: same(details.iter().map(|d| mode(d.mig_mode.value()))),
        compute_mode: same(details.iter().map(|d| d.compute_mode.value().cloned())),
        firmware: (vbios.is_some() || gsp.is_some()).then(|| FirmwareProfile {
            vbios,
            gsp,
            driver: Some(driver.to_string()).filter(|d| d.starts_with(|c: char| c.is_ascii_digit())),
            strict: false,
        }),
        ..GpuProfile::default()
    }
}

/// The value that all have; none when one has another, or none.
fn same<T: PartialEq>(mut values: impl Iterator<Item = Option<T>>) -> Option<T> {
    let first = values.next()??;
    values.all(|v| v.as_ref() == Some(&first)).then_some(first)
}

/// The profile as a piece of configuration, with what could not be learned in comments.
///
/// # Errors
/// A sentence, if it cannot be written as TOML.
pub fn render(node: &str, facts: &Facts, time: &str) -> Result<String, String> {
    let mut out = format!(
        "# Learned on node {node} at {time}. Review it: what was missing here is not expected of others.\n"
    );
    for (what, why) in [
        ("GPUs", missing(&facts.nvml)),
        ("PCI devices", missing(&facts.pci)),
        ("InfiniBand ports", missing(&facts.ib)),
        ("mounts", missing(&facts.mounts)),
    ] {
        if let Some(why) = why {
            out.push_str(&format!("# {what} were not learned: {}\n", why.replace('\n', " ")));
        }
    }
    if let Some(why) = facts.nvml.value().and_then(|n| n.library_missing.as_ref().or(n.refused.as_ref())) {
        out.push_str(&format!("# GPUs were not learned: {}\n", why.replace('\n', " ")));
    }
    out.push('\n');
    let profile = profile(facts);
    out.push_str(
        &toml::to_string(&File { profile: &profile })
            .map_err(|e| format!("the profile cannot be written: {e}"))?,
    );
    Ok(out)
}

fn missing<T>(reading: &Reading<T>) -> Option<&str> {
    match reading {
        Reading::Unknown(why) | Reading::Hung(why) => Some(why),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::facts::{IbPort, Mount, NvmlFacts, NvmlGpu, PciFacts, PciGpu};

    #[test]
    fn what_is_learned_is_valid_configuration() {
        let gpu = NvmlGpu {
            name: Reading::Value("NVIDIA H100 80GB HBM3".into()),
            nvlinks: Reading::Value((0..18).map(|l| (l, l != 3)).collect()),
            ..NvmlGpu::default()
        };
        let port = |state| IbPort {
            state: Reading::Value(state),
            rate_gbps: Reading::Value(400.0),
            ..IbPort::default()
        };
        let facts = Facts {
            nvml: Reading::Value(NvmlFacts { count: 8, gpus: vec![gpu; 8], ..NvmlFacts::default() }),
            pci: Reading::Value(PciFacts {
                gpus: vec![PciGpu { max_width: Reading::Value(16), ..PciGpu::default() }],
                switches: vec![],
            }),
            ib: Reading::Value([("mlx5_0/1".into(), port(4)), ("mlx5_1/1".into(), port(1))].into()),
            mounts: Reading::Value(
                [("/data".into(), Mount { source: "nas:/x".into(), fstype: "nfs4".into(), writable: true })]
                    .into(),
            ),
            memory_total_kib: Reading::Value(1000),
            ..Facts::default()
        };
        let text = render("n1", &facts, "now").unwrap();
        let config = Config::parse(&text, std::path::Path::new("x")).unwrap();
        assert_eq!(config.profile.gpu_count, Some(8));
        assert_eq!(config.profile.nvlinks_per_gpu, Some(17));
        assert_eq!(config.profile.ib_port.len(), 1);
        assert!(config.profile.mount[0].network);
    }
}
