//! How the payloads are started: in a container by Pyxis, after loading modules, or by the Python of a virtual environment,
//! whichever the cluster has or the user gives.

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
    /// Run the payloads in this container, by Pyxis: what srun's --container-image takes. It is fetched by Pyxis, before
    /// anything else is measured
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
}

impl Launch {
    /// What the user gave can be used here.
    ///
    /// # Errors
    /// What is missing (3) or cannot be given to srun (2).
    pub fn check(&self, folders: &[&Path]) -> Result<(), Failure> {
        if self.container.is_some() {
            let help = slurm::output("srun", &["--help"], Duration::from_secs(30)).unwrap_or_default();
            if !help.contains("--container-image") {
                return Err(Failure::missing(
                    "srun has no --container-image here (Pyxis is not installed); leave out --container, or give --module or --venv",
                ));
            }
            // Pyxis parts mounts at commas and colons.
            if let Some(bad) = folders.iter().find(|folder| folder.to_string_lossy().contains([',', ':'])) {
                return Err(Failure::input(format!(
                    "{} has a comma or a colon in its name and cannot be mounted into a container; choose another folder",
                    bad.display()
                )));
            }
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

    /// Options of srun; these folders are seen inside under the same names.
    #[must_use]
    pub fn options(&self, folders: &[&Path]) -> Vec<String> {
        let Some(image) = &self.container else { return Vec::new() };
        let mut mounts: Vec<String> =
            folders.iter().map(|folder| format!("{0}:{0}", folder.display())).collect();
        mounts.dedup();
        mounts.extend(self.container_mounts.clone());
        vec![format!("--container-image={image}"), format!("--container-mounts={}", mounts.join(","))]
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
    let help = slurm::output("srun", &["--help"], Duration::from_secs(30)).unwrap_or_default();
    let mut found = Vec::new();
    if help.contains("--container-image") {
        found.push("--container IMAGE (Pyxis is here)");
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
        let folders = [Path::new("/r"), Path::new("/p")];
        assert_eq!(plain.options(&folders), [] as [String; 0]);
        assert_eq!(plain.words(Path::new("/usr/bin/python3")), ["/usr/bin/python3"]);
        assert_eq!(plain.python(None), None);
        let container = Launch {
            container: Some("nvcr.io#nvidia/pytorch:24.10-py3".to_owned()),
            container_mounts: Some("/data:/data:ro".to_owned()),
            ..Launch::default()
        };
        assert_eq!(
            container.options(&folders),
            [
                "--container-image=nvcr.io#nvidia/pytorch:24.10-py3",
                "--container-mounts=/r:/r,/p:/p,/data:/data:ro"
            ]
        );
        assert_eq!(container.python(None), Some(PathBuf::from("python3")));
        assert_eq!(container.python(Some(Path::new("/opt/python"))), Some(PathBuf::from("/opt/python")));
        let venv = Launch { venv: Some(PathBuf::from("/home/u/v")), ..Launch::default() };
        assert_eq!(venv.python(None), Some(PathBuf::from("/home/u/v/bin/python")));
        assert!(venv.check(&[]).unwrap_err().message.contains("has no bin/python"));
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
