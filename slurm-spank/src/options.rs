//! The user's option and the arguments of the plugstack line.

use std::str::FromStr;

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
    fn a_node_name_cannot_leave_the_folder() {
        assert!(is_node_name("gpu-007.cluster_1"));
        for bad in ["", ".", "..", "../n1", "n1/..", "n 1", "n1\n", "nö"] {
            assert!(!is_node_name(bad), "{bad:?}");
        }
    }
}
