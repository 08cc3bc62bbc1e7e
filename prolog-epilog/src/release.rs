//! Slurm releases: how their numbers are written, and which libslurm belongs to which.

use std::fmt;

/// A release, `MAJOR.MINOR`; the micro number changes no binary interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Release {
    /// Year, two digits.
    pub major: u8,
    /// Month.
    pub minor: u8,
}

/// `API_CURRENT` of each release's META file, which is the number in `libslurm.so.N`.
const LIBSLURM: &[(u8, u8, u32)] = &[
    (22, 5, 38),
    (23, 2, 39),
    (23, 11, 40),
    (24, 5, 41),
    (24, 11, 42),
    (25, 5, 43),
    (25, 11, 44),
    (26, 5, 45),
];

impl Release {
    /// From `SLURM_VERSION_NUMBER` or a plugin's `plugin_version`: `major << 16 | minor << 8 | micro`.
    #[must_use]
    pub fn from_number(number: u32) -> Self {
        let [_, major, minor, _] = number.to_be_bytes();
        Release { major, minor }
    }

    /// From text such as `slurm-wlm 22.05.8` or `24.11`: the first word that begins with a release.
    #[must_use]
    pub fn find(text: &str) -> Option<Self> {
        text.split_whitespace().find_map(|word| {
            let mut parts = word.trim_start_matches("slurm-").split('.');
            let major = parts.next()?.parse().ok()?;
            let minor = parts.next()?;
            let minor = minor.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()?;
            Some(Release { major, minor })
        })
    }

    /// N of this release's `libslurm.so.N`.
    #[must_use]
    pub fn libslurm(self) -> Option<u32> {
        LIBSLURM
            .iter()
            .find(|(major, minor, _)| (*major, *minor) == (self.major, self.minor))
            .map(|(_, _, n)| *n)
    }

    /// The release whose libslurm has this number.
    #[must_use]
    pub fn of_libslurm(number: u32) -> Option<Self> {
        LIBSLURM
            .iter()
            .find(|(_, _, n)| *n == number)
            .map(|(major, minor, _)| Release { major: *major, minor: *minor })
    }
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:02}", self.major, self.minor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_read_and_printed() {
        assert_eq!(Release::from_number(0x0016_0508).to_string(), "22.05");
        for (text, expected) in [
            ("slurm-wlm 22.05.8", Some("22.05")),
            ("slurm 24.11.5", Some("24.11")),
            ("slurm 25.11.0-0rc1", Some("25.11")),
            ("slurm-26.05", Some("26.05")),
            ("24.11", Some("24.11")),
            ("", None),
            ("scontrol: command not found", None),
        ] {
            assert_eq!(Release::find(text).map(|r| r.to_string()).as_deref(), expected, "{text}");
        }
        let r = Release { major: 24, minor: 11 };
        assert_eq!(r.libslurm(), Some(42));
        assert_eq!(Release::of_libslurm(42), Some(r));
        assert_eq!(Release { major: 30, minor: 1 }.libslurm(), None);
    }
}
