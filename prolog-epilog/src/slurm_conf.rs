//! Reads what we need of slurm.conf and plugstack.conf, by Slurm's own rules: keys without regard to case,
//! `#` starts a comment, a backslash at the end joins lines, `Include` pulls in further files.

use std::io;
use std::path::{Path, PathBuf};

/// How deep `Include` and `include` may nest before we stop: a file that includes itself ends here.
const MAX_DEPTH: usize = 8;

/// Slurm's usual place; only where the configuration names that one is a configless copy ours to use.
const USUAL: &str = "/etc/slurm/slurm.conf";
/// Where slurmd of a configless cluster keeps its copy.
const CONFIGLESS: &str = "/run/slurm/conf/slurm.conf";

/// The file to use for `conf` of the configuration: itself, or on a configless node slurmd's copy; none: neither is there.
#[must_use]
pub fn in_use(conf: &Path) -> Option<PathBuf> {
    if conf.exists() {
        return Some(conf.to_path_buf());
    }
    let copy = Path::new(CONFIGLESS);
    (conf == Path::new(USUAL) && copy.exists()).then(|| copy.to_path_buf())
}

/// A configuration file that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{path} cannot be read: {source}")]
pub struct ReadError {
    /// The file.
    pub path: PathBuf,
    /// The system's error.
    pub source: io::Error,
}

/// slurm.conf: the keys in the order in which they stand.
#[derive(Debug, Clone, Default)]
pub struct SlurmConf {
    path: PathBuf,
    keys: Vec<(String, String)>,
}

impl SlurmConf {
    /// Reads the file and what it includes.
    ///
    /// # Errors
    /// One of them cannot be read.
    pub fn read(path: &Path) -> Result<Self, ReadError> {
        let mut conf = SlurmConf { path: path.to_path_buf(), keys: Vec::new() };
        conf.add(path, 0)?;
        Ok(conf)
    }

    fn add(&mut self, path: &Path, depth: usize) -> Result<(), ReadError> {
        let text = read(path)?;
        for line in joined_lines(&text) {
            let first = line.split_whitespace().next().unwrap_or_default();
            if first.eq_ignore_ascii_case("include") && depth < MAX_DEPTH {
                let name = line.get(first.len()..).unwrap_or_default().trim();
                for file in expand(&beside(path, Path::new(name))) {
                    self.add(&file, depth + 1)?;
                }
            } else if let Some((key, value)) = line.split_once('=') {
                self.keys.push((key.trim().to_ascii_lowercase(), unquote(value.trim()).to_string()));
            }
        }
        Ok(())
    }

    /// Every value of a key, in order.
    pub fn all<'a>(&'a self, key: &str) -> impl Iterator<Item = &'a str> {
        let key = key.to_ascii_lowercase();
        self.keys.iter().filter(move |(k, _)| *k == key).map(|(_, v)| v.as_str())
    }

    /// The last value of a key, which is the one that counts; none when unset, empty or `(null)`.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&str> {
        self.all(key).last().filter(|v| !v.is_empty() && *v != "(null)")
    }

    /// The last value as a whole number.
    #[must_use]
    pub fn number(&self, key: &str) -> Option<u64> {
        self.get(key)?.split_whitespace().next()?.parse().ok()
    }

    /// Where plugstack.conf lies: `PlugStackConfig`, else beside slurm.conf.
    #[must_use]
    pub fn plugstack(&self) -> PathBuf {
        self.get("PlugStackConfig")
            .map_or_else(|| beside(&self.path, Path::new("plugstack.conf")), PathBuf::from)
    }
}

/// One plugin line of plugstack.conf.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlugstackLine {
    /// `required`: a plugin that does not load stops every srun, sbatch and slurmd.
    pub required: bool,
    /// As written; a relative one is looked up in `PluginDir`.
    pub plugin: PathBuf,
}

/// Reads plugstack.conf and what it includes.
///
/// # Errors
/// One of them cannot be read.
pub fn read_plugstack(path: &Path) -> Result<Vec<PlugstackLine>, ReadError> {
    let mut lines = Vec::new();
    add_plugstack(path, 0, &mut lines)?;
    Ok(lines)
}

fn add_plugstack(path: &Path, depth: usize, lines: &mut Vec<PlugstackLine>) -> Result<(), ReadError> {
    for line in read(path)?.lines() {
        let line = line.split('#').next().unwrap_or_default();
        let mut words = line.split_whitespace();
        match (words.next(), words.next()) {
            (Some(kind @ ("required" | "optional")), Some(plugin)) => {
                lines.push(PlugstackLine { required: kind == "required", plugin: plugin.into() });
            }
            (Some("include"), Some(name)) if depth < MAX_DEPTH => {
                for file in expand(&beside(path, Path::new(name))) {
                    add_plugstack(&file, depth + 1, lines)?;
                }
            }
            _ => {}
        }
    }
    Ok(())
}

fn read(path: &Path) -> Result<String, ReadError> {
    std::fs::read(path)
        .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
        .map_err(|source| ReadError { path: path.to_path_buf(), source })
}

/// Lines without comments, continued ones joined.
fn joined_lines(text: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let mut open = String::new();
    for line in text.lines() {
        // `\#` is a plain number sign.
        let mut end = line.len();
        for (at, _) in line.match_indices('#') {
            if at == 0 || line.as_bytes().get(at - 1) != Some(&b'\\') {
                end = at;
                break;
            }
        }
        let line = line.get(..end).unwrap_or(line).trim_end();
        if let Some(start) = line.strip_suffix('\\') {
            open.push_str(start);
            continue;
        }
        open.push_str(line);
        lines.push(std::mem::take(&mut open).trim().to_string());
    }
    lines.push(open.trim().to_string());
    lines
}

fn unquote(value: &str) -> &str {
    value.strip_prefix('"').and_then(|v| v.strip_suffix('"')).unwrap_or(value)
}

/// A path as it is meant in `file`: relative ones lie beside it.
fn beside(file: &Path, name: &Path) -> PathBuf {
    file.parent().unwrap_or(Path::new("/")).join(name)
}

/// The files a path names whose last part may hold `*`, sorted.
#[must_use]
pub fn expand(pattern: &Path) -> Vec<PathBuf> {
    let name = pattern.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    if !name.contains('*') {
        return vec![pattern.to_path_buf()];
    }
    let dir = pattern.parent().unwrap_or(Path::new("/"));
    let mut files: Vec<PathBuf> = std::fs::read_dir(dir)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|e| e.file_name().to_str().is_some_and(|n| !n.starts_with('.') && matches(&name, n)))
        .map(|e| e.path())
        .collect();
    files.sort();
    files
}

/// Shell pattern with `*` only.
fn matches(pattern: &str, name: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(mut tail) = name.strip_prefix(start) else { return false };
    loop {
        if matches(rest, tail) {
            return true;
        }
        let mut chars = tail.chars();
        if chars.next().is_none() {
            return false;
        }
        tail = chars.as_str();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_by_slurms_rules() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::write(
            at("slurm.conf"),
            "# Prolog=/no\nClusterName=x # y\nprolog = \"/a/one\"\nPROLOG=/a/two\nHealthCheckInterval=30\n\
             Epilog=\\\n/b/e\nInclude extra.conf\nMailProg=(null)\nNodeName=n[1-2] CPUs=2\n",
        )
        .unwrap();
        std::fs::write(at("extra.conf"), "PrologFlags=Alloc,X11\ninclude slurm.conf\n").unwrap();
        let conf = SlurmConf::read(&at("slurm.conf")).unwrap();
        assert_eq!(conf.get("Prolog"), Some("/a/two"));
        assert_eq!(conf.all("prolog").take(2).collect::<Vec<_>>(), ["/a/one", "/a/two"]);
        assert_eq!(conf.number("healthcheckinterval"), Some(30));
        assert_eq!(conf.get("Epilog"), Some("/b/e"));
        assert_eq!(conf.get("PrologFlags"), Some("Alloc,X11"));
        assert_eq!(conf.get("ClusterName"), Some("x"));
        assert_eq!((conf.get("MailProg"), conf.get("TaskProlog")), (None, None));
        assert_eq!(conf.plugstack(), at("plugstack.conf"));
        assert!(SlurmConf::read(&at("none")).unwrap_err().to_string().contains("none cannot be read"));
    }

    #[test]
    fn plugstack_lines_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::create_dir(at("plugstack.conf.d")).unwrap();
        std::fs::write(
            at("plugstack.conf"),
            "# optional /no.so\ninclude plugstack.conf.d/*.conf\nrequired /x/a.so k=v\n",
        )
        .unwrap();
        std::fs::write(at("plugstack.conf.d/50.conf"), "optional b.so # x\n\tbroken\n").unwrap();
        std::fs::write(at("plugstack.conf.d/60.other"), "optional c.so\n").unwrap();
        let lines = read_plugstack(&at("plugstack.conf")).unwrap();
        let expected = [(false, "b.so"), (true, "/x/a.so")];
        assert_eq!(
            lines,
            expected.map(|(required, plugin)| PlugstackLine { required, plugin: plugin.into() })
        );
    }

    #[test]
    fn patterns_match_as_in_a_shell() {
        for (pattern, name, fits) in [
            ("*", "x", true),
            ("*.conf", "a.conf", true),
            ("*.conf", "a.conf.bak", false),
            ("a*b*c", "aXbYc", true),
            ("a*b*c", "ac", false),
            ("x", "x", true),
        ] {
            assert_eq!(matches(pattern, name), fits, "{pattern} {name}");
        }
    }
}
