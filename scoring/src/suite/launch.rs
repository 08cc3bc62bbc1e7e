//! How the payloads are started: in a container by Pyxis or by enroot alone, after loading modules, or by the Python of a
//! virtual environment, whichever the cluster has or the user gives.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::slurm;
use crate::Failure;

/// Loads modules, then becomes the program. Its arguments: how many modules, the modules, the program with its own.
/// A login shell, because that is where sites define `module`.
const MODULES: &str = r#"n=$1; shift; module load "${@:1:n}" || { echo "module load ${*:1:n} failed on $SLURMD_NODENAME" >&2; exit 3; }; shift "$n"; exec "$@""#;

/// Options of `clustermax suite run` about it.
#[derive(Debug, Clone, Default, PartialEq, Eq, clap::Args)]
pub struct Launch {
    /// Run the payloads, and nccl-tests where it has them, in this container: what srun's --container-image takes (Pyxis),
    /// fetched by Pyxis before anything else is measured; without Pyxis a .sqsh file or the name of a container for enroot
    #[arg(long, value_name = "IMAGE")]
    pub container: Option<String>,
    /// Further mounts of the container, as srun's --container-mounts takes them
    #[arg(long, value_name = "FROM:TO,...", requires = "container")]
    pub container_mounts: Option<String>,
    /// Load these environment modules before every payload, comma-separated
    #[arg(long = "module", value_delimiter = ',', value_name = "A,B", conflicts_with = "container")]
    pub modules: Vec<String>,
    /// Run the payloads by the Python of this virtual environment
    #[arg(long, value_name = "DIR", conflicts_with = "python")]
    pub venv: Option<PathBuf>,
    /// What starts the container; found by [`Launch::check`].
    #[arg(skip)]
    pub runtime: Runtime,
    /// The job's id, in the container's name.
    #[arg(skip)]
    pub job: String,
}

/// What starts a container.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Runtime {
    /// srun's --container-image.
    #[default]
    Pyxis,
    /// `enroot start`, where srun has no such option.
    Enroot,
}

/// A container as a step enters it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Container {
    /// What Pyxis or enroot takes.
    pub image: String,
    /// See [`Launch::runtime`].
    pub runtime: Runtime,
    /// Its name on the nodes: fetched and unpacked by the first step, taken by the later ones.
    pub name: String,
    /// Further mounts, as srun takes them.
    pub mounts: Option<String>,
}

impl Container {
    /// The words between `srun ...` and the program: options of Pyxis, or enroot before the program. These folders are
    /// seen inside under the same names; `parts` is the folder of `payload/`.
    #[must_use]
    pub fn words(&self, folders: &[&Path], parts: &Path) -> Vec<String> {
        let mut mounts: Vec<String> = Vec::new();
        for folder in folders {
            let mount = format!("{0}:{0}", folder.display());
            if !mounts.contains(&mount) {
                mounts.push(mount);
            }
        }
        mounts.extend(self.mounts.iter().flat_map(|text| text.split(',')).map(str::to_owned));
        match self.runtime {
            // The user stays who he is, and his home folder's .nccl.conf and Python packages stay outside.
            Runtime::Pyxis => vec![
                format!("--container-image={}", self.image),
                format!("--container-name={}", self.name),
                "--no-container-remap-root".to_owned(),
                "--no-container-mount-home".to_owned(),
                format!("--container-mounts={}", mounts.join(",")),
            ],
            Runtime::Enroot => {
                let config = parts.join("payload/enroot.conf.sh").display().to_string();
                let mut words = ["enroot", "start", "--conf"].map(str::to_owned).to_vec();
                words.push(config);
                words.extend(mounts.into_iter().flat_map(|mount| ["--mount".to_owned(), mount]));
                words.push(self.image.clone());
                words
            }
        }
    }
}

/// Whether srun has Pyxis' options.
#[must_use]
pub fn pyxis() -> bool {
    let help = slurm::output("srun", &["--help"], Duration::from_secs(30)).unwrap_or_default();
    help.contains("--container-image")
}

/// The runtime for an image.
///
/// # Errors
/// There is none (3), or enroot alone cannot start what was given (2).
pub fn runtime(image: &str, pyxis: bool, enroot: bool) -> Result<Runtime, Failure> {
    if pyxis {
        return Ok(Runtime::Pyxis);
    }
    if !enroot {
        return Err(Failure::missing(
            "srun has no --container-image here (Pyxis is not installed) and enroot is not in PATH; leave out the container, or \
             give --module or --venv",
        ));
    }
    // enroot takes a name below its data folder or an image's file; nothing is fetched without being asked for.
    let file = image.starts_with('/') && image.ends_with(".sqsh");
    if file || !image.contains(['/', ':', '#']) {
        return Ok(Runtime::Enroot);
    }
    Err(Failure::input(format!(
        "srun has no --container-image here (Pyxis is not installed), and enroot by itself starts no {image}: run `enroot import -o \
         FILE.sqsh docker://...` once and give that file by its whole path, where all nodes see it"
    )))
}

/// Mounts are parted at commas and colons, and by enroot at blanks.
///
/// # Errors
/// Names the folder (2).
pub fn mountable(folders: &[&Path]) -> Result<(), Failure> {
    match folders.iter().find(|folder| folder.to_string_lossy().contains([',', ':', ' ', '\t'])) {
        None => Ok(()),
        Some(bad) => Err(Failure::input(format!(
            "{} has a comma, a colon or a blank in its name and cannot be mounted into a container; choose another folder",
            bad.display()
        ))),
    }
}

impl Launch {
    /// What the user gave can be used here; finds the container's runtime.
    ///
    /// # Errors
    /// What is missing (3) or cannot be given to srun (2).
    pub fn check(&mut self, folders: &[&Path], job: &str) -> Result<(), Failure> {
        self.job = job.to_owned();
        if let Some(image) = &self.container {
            let enroot = slurm::output("enroot", &["version"], Duration::from_secs(30)).is_some();
            self.runtime = runtime(image, pyxis(), enroot)?;
            mountable(folders)?;
        }
        if let Some(venv) = self.venv.as_ref().filter(|_| self.container.is_none())
            && !venv.join("bin/python").exists()
        {
            return Err(Failure::missing(format!(
                "{} is no virtual environment: it has no bin/python",
                venv.display()
            )));
        }
        Ok(())
    }

    /// The interpreter: that of the virtual environment, or the container's own; none: to be looked for.
    #[must_use]
    pub fn python(&self, given: Option<&Path>) -> Option<PathBuf> {
        if let Some(venv) = &self.venv {
            return Some(venv.join("bin/python"));
        }
        let own = self.container.is_some().then(|| PathBuf::from("python3"));
        given.map(Path::to_owned).or(own)
    }

    /// The container that was given.
    #[must_use]
    pub fn container(&self) -> Option<Container> {
        Some(Container {
            image: self.container.clone()?,
            runtime: self.runtime,
            name: format!("clustermax-{}", self.job),
            mounts: self.container_mounts.clone(),
        })
    }

    /// What stands between srun's options and the program: the container, or nothing. These folders are seen inside under
    /// the same names.
    #[must_use]
    pub fn enter(&self, folders: &[&Path], parts: &Path) -> Vec<String> {
        let mut all = folders.to_vec();
        all.extend(self.venv.as_deref());
        self.container().map(|container| container.words(&all, parts)).unwrap_or_default()
    }

    /// Nothing was given.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        self.container.is_none() && self.modules.is_empty() && self.venv.is_none()
    }

    /// The words that start a program.
    #[must_use]
    pub fn words(&self, program: &Path) -> Vec<String> {
        let program = program.display().to_string();
        if self.modules.is_empty() {
            return vec![program];
        }
        let mut words = ["bash", "-lc", MODULES, "bash"].map(str::to_owned).to_vec();
        words.push(self.modules.len().to_string());
        words.extend(self.modules.iter().cloned());
        words.push(program);
        words
    }
}

/// What of it the batch host has, for whoever has no torch: half a sentence, or nothing.
#[must_use]
pub fn offers() -> Option<String> {
    let mut found = Vec::new();
    if pyxis() {
        found.push("--container IMAGE (Pyxis is here)");
    } else if slurm::output("enroot", &["version"], Duration::from_secs(30)).is_some() {
        found.push("--container FILE.sqsh (enroot is here)");
    }
    let modules = slurm::output("bash", &["-lc", "type module"], Duration::from_secs(30));
    if modules.is_some() {
        found.push("--module NAME (module is here)");
    }
    (!found.is_empty()).then(|| format!("{}, or --venv DIR", found.join(", ")))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn commands_of_containers_modules_and_environments() {
        let plain = Launch::default();
        let (folders, parts) = ([Path::new("/r"), Path::new("/p"), Path::new("/r")], Path::new("/p"));
        assert_eq!(plain.enter(&folders, parts), [] as [String; 0]);
        assert_eq!(plain.words(Path::new("/usr/bin/python3")), ["/usr/bin/python3"]);
        assert_eq!(plain.python(None), None);
        let container = Launch {
            container: Some("nvcr.io#nvidia/pytorch:24.10-py3".to_owned()),
            container_mounts: Some("/data:/data:ro,/w:/w".to_owned()),
            job: "77".to_owned(),
            ..Launch::default()
        };
        assert_eq!(
            container.enter(&folders, parts),
            [
                "--container-image=nvcr.io#nvidia/pytorch:24.10-py3",
                "--container-name=clustermax-77",
                "--no-container-remap-root",
                "--no-container-mount-home",
                "--container-mounts=/r:/r,/p:/p,/data:/data:ro,/w:/w"
            ]
        );
        let enroot = Launch {
            container: Some("/shared/torch.sqsh".to_owned()),
            runtime: Runtime::Enroot,
            ..container.clone()
        };
        assert_eq!(
            enroot.enter(&folders, parts).join(" "),
            "enroot start --conf /p/payload/enroot.conf.sh --mount /r:/r --mount /p:/p --mount /data:/data:ro --mount /w:/w \
             /shared/torch.sqsh"
        );
        assert_eq!(container.python(None), Some(PathBuf::from("python3")));
        assert_eq!(container.python(Some(Path::new("/opt/python"))), Some(PathBuf::from("/opt/python")));
        let mut venv = Launch { venv: Some(PathBuf::from("/home/u/v")), ..Launch::default() };
        assert_eq!(venv.python(None), Some(PathBuf::from("/home/u/v/bin/python")));
        assert!(venv.check(&[], "1").unwrap_err().message.contains("has no bin/python"));
    }

    #[test]
    fn pyxis_starts_a_container_else_enroot_where_it_can() {
        for (image, pyxis, enroot, wanted) in [
            ("nvcr.io#nvidia/pytorch:24.10-py3", true, true, Ok(Runtime::Pyxis)),
            ("nvcr.io#nvidia/pytorch:24.10-py3", false, true, Err((2, "enroot import -o"))),
            ("ubuntu:24.04", false, true, Err((2, "enroot import -o"))),
            ("./torch.sqsh", false, true, Err((2, "whole path"))),
            ("/shared/torch.sqsh", false, true, Ok(Runtime::Enroot)),
            ("pytorch", false, true, Ok(Runtime::Enroot)),
            ("/shared/torch.sqsh", false, false, Err((3, "enroot is not in PATH"))),
        ] {
            match (runtime(image, pyxis, enroot), wanted) {
                (Ok(found), Ok(wanted)) => assert_eq!(found, wanted, "{image}"),
                (Err(failure), Err((code, words))) => {
                    assert!(failure.code == code && failure.message.contains(words), "{image}: {failure}");
                }
                (found, wanted) => panic!("{image}: {found:?}, not {wanted:?}"),
            }
        }
        for (folder, fits) in [("/r/a", true), ("/r/a,b", false), ("/r/a:b", false), ("/r/a b", false)] {
            assert_eq!(mountable(&[Path::new("/p"), Path::new(folder)]).is_ok(), fits, "{folder}");
        }
    }

    /// What enroot's own script reads of it: lines of NAME=VALUE for the step's variables and no other, and an entry
    /// point that is only the program.
    #[test]
    fn enroots_configuration_keeps_the_images_environment() {
        let conf = concat!(env!("CARGO_MANIFEST_DIR"), "/../batch-scripts/payload/enroot.conf.sh");
        let said = Command::new("bash")
            .args([
                "-c",
                r#"set -eu; . "$1"; environ; declare -f rc | sed '1,2d;$d' > "$2"; sh "$2" echo a "b c""#,
                "bash",
                conf,
            ])
            .arg(tempfile::NamedTempFile::new().unwrap().path())
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .envs([
                ("SLURM_PROCID", "3"),
                ("NCCL_DEBUG", "INFO"),
                ("LD_LIBRARY_PATH", "/site"),
                ("SECRET", "x"),
                ("USE_LIBUV", "0"),
            ])
            .output()
            .unwrap();
        let mut lines: Vec<String> =
            String::from_utf8_lossy(&said.stdout).lines().map(str::to_owned).collect();
        let last = lines.pop();
        lines.sort();
        assert_eq!(
            lines,
            ["NCCL_DEBUG=INFO", "SLURM_PROCID=3", "USE_LIBUV=0"],
            "{}",
            String::from_utf8_lossy(&said.stderr)
        );
        assert_eq!(last.as_deref(), Some("a b c"));
    }

    /// A fake `module`, as a site's profile defines it.
    #[test]
    fn modules_are_loaded_before_the_program_and_a_missing_one_ends_it() {
        let home = tempfile::tempdir().unwrap();
        let profile = r#"module() { [ "$1" = load ] && shift; for m in "$@"; do [ "$m" != gone ] || return 1; export LOADED="$LOADED $m"; done; }"#;
        std::fs::write(home.path().join(".bash_profile"), profile).unwrap();
        let run = |modules: &[&str]| {
            let modules = modules.iter().map(|&name| name.to_owned()).collect();
            let words = Launch { modules, ..Launch::default() }.words(Path::new("sh"));
            Command::new(&words[0])
                .args(&words[1..])
                .args(["-c", r#"echo "$LOADED: $1 $2""#, "sh", "a b", "c"])
                .env("HOME", home.path())
                .env("SLURMD_NODENAME", "n1")
                .env_remove("LOADED")
                .output()
                .unwrap()
        };
        let said = run(&["cuda/12.4", "py torch"]);
        assert_eq!(String::from_utf8_lossy(&said.stdout), " cuda/12.4 py torch: a b c\n");
        let said = run(&["gone"]);
        assert_eq!(said.status.code(), Some(3));
        assert!(String::from_utf8_lossy(&said.stderr).contains("module load gone failed on n1"));
    }
}
