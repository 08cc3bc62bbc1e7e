//! What is installed on this host: our configuration, Slurm, clustermax-drain, the state folder.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use healthcheck::config::{Config, Enforcement, check_trusted};
use serde::Deserialize;

use super::{Looks, Options, Status, ask};
use crate::brake::Record;
use crate::release::Release;
use crate::slurm_conf;
use crate::spool::Spool;

pub(super) fn config(looks: &mut Looks, options: &Options) -> Config {
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
            look_at_folder(looks, path);
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

pub(super) fn slurm(looks: &mut Looks, config: &Config, conf: &Path) -> Option<Release> {
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

pub(super) fn drain(looks: &mut Looks, config: &Config, slurm: Option<Release>) {
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

pub(super) fn state(looks: &mut Looks, config: &Config) {
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
            format!("{} release", config.paths.drain.display()),
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
