//! The user's options and the arguments of the plugstack line.

use std::ffi::{CStr, c_int};
use std::path::PathBuf;
use std::str::FromStr;

use crate::tags;

/// What a user can ask for. The number is Slurm's `val` of the option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    Report = 1,
    Strict,
    Tags,
}

/// One option as Slurm shows it in `--help`.
pub(crate) struct OptionSpec {
    pub(crate) choice: Choice,
    pub(crate) name: &'static CStr,
    /// Stands behind the name; none: the option takes no argument.
    pub(crate) arginfo: Option<&'static CStr>,
    pub(crate) usage: &'static CStr,
}

/// Every option. Each is in the manual page too (`packaging/man/spank_clustermax.8`; a test looks).
pub(crate) const OPTIONS: [OptionSpec; 3] = [
    OptionSpec {
        choice: Choice::Report,
        name: c"clustermax-report",
        arginfo: Some(c"off|brief|full"),
        usage: c"[clustermax] after a step, say what happened to its GPUs and links, and whether it was the \
            hardware or the program; brief (usual default) is silent when nothing happened",
    },
    OptionSpec {
        choice: Choice::Strict,
        name: c"clustermax-strict",
        arginfo: None,
        usage: c"[clustermax] start no step on a node whose health check warns, not only on one that is \
            leaving service",
    },
    OptionSpec {
        choice: Choice::Tags,
        name: c"clustermax-tags",
        arginfo: Some(c"KEY=VALUE[,...]"),
        usage: c"[clustermax] tags of the job, at most 8, for the site's metrics and logs of its nodes",
    },
];

/// What an option's argument means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Given {
    Report(Report),
    Strict,
    /// Good; the prolog reads them from its environment, where Slurm puts every option.
    Tags,
}

/// Reads an option that Slurm hands over: `val` is its [`Choice`].
///
/// # Errors
/// One sentence for the user.
pub(crate) fn read(val: c_int, argument: Option<&str>) -> Result<Given, String> {
    if val == Choice::Strict as c_int {
        return Ok(Given::Strict);
    }
    let text = argument.unwrap_or_default();
    if val == Choice::Tags as c_int {
        return tags::parse(text)
            .map(|_| Given::Tags)
            .map_err(|why| format!("--clustermax-tags cannot be taken: {why}"));
    }
    text.parse()
        .map(Given::Report)
        .map_err(|()| format!("--clustermax-report={} is not known; use off, brief or full", clean(text)))
}

/// How much the report after a step says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Report {
    /// Nothing.
    Off,
    /// Events of this step only; silent when there are none.
    #[default]
    Brief,
    /// Every event of the job, and a line when there are none.
    Full,
}

impl FromStr for Report {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "off" => Ok(Self::Off),
            "brief" => Ok(Self::Brief),
            "full" => Ok(Self::Full),
            _ => Err(()),
        }
    }
}

/// What `task_init` does on a node that is leaving service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum OnFault {
    /// Tells the user and ends the task with status 1.
    #[default]
    Refuse,
    /// Tells the user and lets the step start.
    Warn,
}

/// Settings of the site: the arguments of the plugstack line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    /// Default of `--clustermax-report`.
    pub(crate) report: Report,
    /// Folder of `verdict.json` and `jobs/`; `%n` stands for the node's name.
    pub(crate) run_dir: String,
    /// Where procfs is mounted, for the boot id; `%n` as above.
    pub(crate) procfs: String,
    /// A verdict older than this many seconds refuses nothing.
    pub(crate) max_age: u32,
    /// What happens on a node that is leaving service.
    pub(crate) on_fault: OnFault,
    /// Hook that shall panic, in builds for tests.
    #[cfg(feature = "test-panic")]
    pub(crate) panic: String,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            report: Report::default(),
            run_dir: "/run/clustermax".to_owned(),
            procfs: "/proc".to_owned(),
            max_age: 600,
            on_fault: OnFault::default(),
            #[cfg(feature = "test-panic")]
            panic: String::new(),
        }
    }
}

/// One argument of the plugstack line that was not taken; its default stays in force.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ArgError {
    #[error(
        "plugstack argument \"{0}\" is not known and is ignored; \
         use report=, run_dir=, procfs=, max_age= or on_fault="
    )]
    Unknown(String),
    #[error("plugstack argument \"{key}={value}\" is ignored; {key} takes {wanted}")]
    Value { key: &'static str, value: String, wanted: &'static str },
}

impl Settings {
    /// Reads the arguments of the plugstack line. Bad ones never fail a job: each is reported and its default
    /// stays.
    pub(crate) fn parse<'a>(args: impl Iterator<Item = &'a str>) -> (Self, Vec<ArgError>) {
        let mut settings = Self::default();
        let errors = args.filter_map(|arg| settings.set(arg).err()).collect();
        (settings, errors)
    }

    fn set(&mut self, arg: &str) -> Result<(), ArgError> {
        let unknown = || ArgError::Unknown(clean(arg));
        let (key, value) = arg.split_once('=').ok_or_else(unknown)?;
        match key {
            "report" => {
                self.report = value.parse().map_err(|()| bad("report", value, "off, brief or full"))?;
            }
            "run_dir" => self.run_dir = absolute("run_dir", value)?,
            "procfs" => self.procfs = absolute("procfs", value)?,
            "max_age" => {
                self.max_age = value
                    .parse()
                    .ok()
                    .filter(|seconds| (1..=86_400).contains(seconds))
                    .ok_or_else(|| bad("max_age", value, "seconds, 1 to 86400"))?;
            }
            "on_fault" => {
                self.on_fault = match value {
                    "refuse" => OnFault::Refuse,
                    "warn" => OnFault::Warn,
                    _ => return Err(bad("on_fault", value, "refuse or warn")),
                }
            }
            #[cfg(feature = "test-panic")]
            "panic" => value.clone_into(&mut self.panic),
            _ => return Err(unknown()),
        }
        Ok(())
    }
}

fn absolute(key: &'static str, value: &str) -> Result<String, ArgError> {
    if value.starts_with('/') { Ok(value.to_owned()) } else { Err(bad(key, value, "an absolute path")) }
}

fn bad(key: &'static str, value: &str, wanted: &'static str) -> ArgError {
    ArgError::Value { key, value: clean(value), wanted }
}

fn clean(text: &str) -> String {
    crate::message::clean(text, 80)
}

/// `pattern` with `%n` replaced by the node's name.
pub(crate) fn for_node(pattern: &str, node: &str) -> String {
    pattern.replace("%n", node)
}

/// `pattern` for every node that has such a folder; itself where it holds no `%n`.
pub(crate) fn every_node(pattern: &str) -> Vec<PathBuf> {
    let Some((before, after)) = pattern.split_once("%n") else { return vec![PathBuf::from(pattern)] };
    // `%n` stands for a whole part of the path.
    if !before.ends_with('/') || !(after.is_empty() || after.starts_with('/')) {
        return Vec::new();
    }
    let names = std::fs::read_dir(before).into_iter().flatten().flatten();
    let names = names.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| is_node_name(name)).map(|name| PathBuf::from(for_node(pattern, &name))).collect()
}

/// True for a name that can stand in a path: letters, digits, `.`, `_`, `-`, and not `.` or `..`.
pub(crate) fn is_node_name(name: &str) -> bool {
    !matches!(name, "" | "." | "..")
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &[&str]) -> (Settings, Vec<String>) {
        let (settings, errors) = Settings::parse(args.iter().copied());
        (settings, errors.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn no_arguments_are_the_defaults() {
        let (settings, errors) = parse(&[]);
        assert_eq!(settings, Settings::default());
        assert_eq!(settings.max_age, 600);
        assert!(errors.is_empty());
    }

    #[test]
    fn every_key_is_read() {
        let (settings, errors) =
            parse(&["report=full", "run_dir=/run/x/%n", "procfs=/p", "max_age=30", "on_fault=warn"]);
        assert_eq!(errors, Vec::<String>::new());
        assert_eq!(settings.report, Report::Full);
        assert_eq!(for_node(&settings.run_dir, "n2"), "/run/x/n2");
        assert_eq!(settings.procfs, "/p");
        assert_eq!(settings.max_age, 30);
        assert_eq!(settings.on_fault, OnFault::Warn);
    }

    #[test]
    fn bad_arguments_are_named_and_the_rest_is_kept() {
        let (settings, errors) = parse(&["reprot=full", "debug", "max_age=0", "run_dir=tmp", "report=full"]);
        assert_eq!(settings, Settings { report: Report::Full, ..Settings::default() });
        assert_eq!(
            errors,
            [
                "plugstack argument \"reprot=full\" is not known and is ignored; \
                 use report=, run_dir=, procfs=, max_age= or on_fault=",
                "plugstack argument \"debug\" is not known and is ignored; \
                 use report=, run_dir=, procfs=, max_age= or on_fault=",
                "plugstack argument \"max_age=0\" is ignored; max_age takes seconds, 1 to 86400",
                "plugstack argument \"run_dir=tmp\" is ignored; run_dir takes an absolute path",
            ]
        );
    }

    #[test]
    fn options_are_read_and_bad_ones_refused_with_a_sentence() {
        let report = Choice::Report as c_int;
        assert_eq!(read(report, Some("full")), Ok(Given::Report(Report::Full)));
        assert_eq!(
            read(report, Some("lo\nud")).unwrap_err(),
            "--clustermax-report=lo ud is not known; use off, brief or full"
        );
        assert!(read(report, None).is_err());
        // Slurm's own word for a flag's argument in the environment.
        for argument in [None, Some(""), Some("(null)")] {
            assert_eq!(read(Choice::Strict as c_int, argument), Ok(Given::Strict));
        }
        let tags = Choice::Tags as c_int;
        assert_eq!(read(tags, Some("project=llm,run=7")), Ok(Given::Tags));
        assert_eq!(
            read(tags, Some("project=a b")).unwrap_err(),
            "--clustermax-tags cannot be taken: the value of tag \"project\" is none; it takes letters, digits \
             and . _ : / @ + -, 1 to 64 characters"
        );
        assert!(read(tags, None).is_err());
    }

    /// Every option is documented where users look: `--help` is made of `OPTIONS` itself.
    #[test]
    fn every_option_is_in_the_manual() {
        let page = include_str!("../../packaging/man/spank_clustermax.8").replace("\\-", "-");
        let guide = include_str!("../../docs/spank.md");
        for option in &OPTIONS {
            let arginfo = option.arginfo.map(|a| format!("={}", a.to_str().unwrap())).unwrap_or_default();
            let shown = format!("--{}{arginfo}", option.name.to_str().unwrap());
            assert!(page.contains(&format!(".B {shown}\n")), "{shown} in spank_clustermax.8");
            assert!(guide.contains(&format!("--{}", option.name.to_str().unwrap())), "{shown} in spank.md");
            assert!(option.usage.to_str().unwrap().starts_with("[clustermax] "));
        }
        for key in ["report=", "on_fault=", "max_age=", "run_dir=", "procfs="] {
            assert!(page.contains(&format!(".B {key}")), "{key} in spank_clustermax.8");
        }
    }

    #[test]
    fn every_node_of_a_pattern() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["n1", "n2", "n 3"] {
            std::fs::create_dir_all(dir.path().join(name).join("run")).unwrap();
        }
        let pattern = |text: &str| format!("{}/{text}", dir.path().display());
        let mut found = every_node(&pattern("%n/run"));
        found.sort();
        assert_eq!(found, [dir.path().join("n1/run"), dir.path().join("n2/run")]);
        assert_eq!(every_node("/run/clustermax"), [PathBuf::from("/run/clustermax")]);
        assert!(every_node(&pattern("x%n")).is_empty());
        assert!(every_node("/nowhere/at/all/%n").is_empty());
    }

    #[test]
    fn a_node_name_cannot_leave_the_folder() {
        assert!(is_node_name("gpu-007.cluster_1"));
        for bad in ["", ".", "..", "../n1", "n1/..", "n 1", "n1\n", "nö"] {
            assert!(!is_node_name(bad), "{bad:?}");
        }
    }
}
