//! Versions of what runs on a node against the published minimum, a table that can be exchanged between releases.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use super::system::{self, Host, find_system, names, text};
use super::{Item, Verdict};
use crate::Failure;

const S: &str = "audit";
/// The table of this release.
const BUILT_IN: &str = include_str!("../../data/minimum-versions.tsv");
/// First line of a table.
const HEAD: &str = "component\tline\tminimum\tkind\tsource\tdate";
/// Published tables change every few days; one of this age is worth a word.
const OLD_DAYS: f64 = 10.0;
/// Components that this program can read, by the name in the table.
const COMPONENTS: [&str; 16] = [
    "nvidia-driver",
    "nvidia-container-toolkit",
    "cuda-toolkit",
    "dcgm",
    "dcgm-exporter",
    "docker",
    "runc",
    "connectx-firmware",
    "bluefield-virtio-net",
    "ubuntu-kernel",
    "amd-driver",
    "rocm",
    "nccl",
    "enroot",
    "nsight-compute",
    "cuda-compiler",
];

/// One row: the least version of a component on a line of releases.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Minimum {
    /// Name in records.
    pub component: String,
    /// `*` for all, `535` or `1.2` for the versions that begin so; `46+` also for those after it.
    pub line: String,
    /// The least version.
    pub version: String,
    /// Below it a fault is known (true), or it is only no longer supported.
    pub security: bool,
    /// Key of rating.toml's sources.
    pub source: String,
    /// Day of that source.
    pub date: String,
}

/// The table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// Rows.
    pub rows: Vec<Minimum>,
    /// Newest date of a row: the table's own.
    pub date: String,
}

impl Table {
    /// The table of this release.
    ///
    /// # Errors
    /// Never for a release whose tests pass.
    pub fn built_in() -> Result<Self, Failure> {
        Self::parse(BUILT_IN, "minimum-versions.tsv")
    }

    /// The table in a file; `-` is standard input.
    ///
    /// # Errors
    /// A file that cannot be read or a row that breaks a rule, by file and line.
    pub fn open(path: &Path) -> Result<Self, Failure> {
        let name = path.display().to_string();
        let mut bytes = Vec::new();
        let read = if name == "-" {
            std::io::stdin().take(1 << 20).read_to_end(&mut bytes)
        } else {
            std::fs::File::open(path).and_then(|file| file.take(1 << 20).read_to_end(&mut bytes))
        };
        read.map_err(|error| {
            Failure::input(format!(
                "cannot read {name}: {error}; give --minimum-versions a table, or leave it out"
            ))
        })?;
        Self::parse(&String::from_utf8_lossy(&bytes), &name)
    }

    /// Rows of a table.
    ///
    /// # Errors
    /// The first row that breaks a rule.
    pub fn parse(text: &str, name: &str) -> Result<Self, Failure> {
        let bad = |line: usize, what: String| {
            Failure::input(format!(
                "{name} line {line}: {what}; a row is {}, as in the table that `clustermax audit --print-minimum-versions` prints",
                HEAD.replace('\t', ", ")
            ))
        };
        let mut rows: Vec<Minimum> = Vec::new();
        let mut head = false;
        for (index, line) in text.lines().enumerate() {
            let number = index + 1;
            let line = line.trim_end();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            if !head {
                if line != HEAD {
                    return Err(bad(number, "the first line is not the table's head".to_owned()));
                }
                head = true;
                continue;
            }
            let fields: Vec<&str> = line.split('\t').collect();
            let [component, of, version, kind, source, date] = fields[..] else {
                return Err(bad(number, format!("{} fields instead of 6, parted by tabs", fields.len())));
            };
            if !COMPONENTS.contains(&component) {
                let near =
                    COMPONENTS.iter().min_by_key(|known| strsim::levenshtein(known, component)).copied();
                return Err(bad(
                    number,
                    format!(
                        "there is no component {component:?}; did you mean {:?}",
                        near.unwrap_or_default()
                    ),
                ));
            }
            let dotted = |text: &str| {
                !text.is_empty()
                    && text
                        .split('.')
                        .all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()))
            };
            if !dotted(version) {
                return Err(bad(number, format!("{version:?} is no version: numbers parted by dots")));
            }
            let prefix = of.strip_suffix('+').unwrap_or(of);
            if of != "*" && !(dotted(prefix) && starts(version, prefix)) {
                return Err(bad(
                    number,
                    format!("line {of:?} is not * and {version} does not begin with it"),
                ));
            }
            let security = match kind {
                "security" => true,
                "supported" => false,
                _ => return Err(bad(number, format!("kind {kind:?} is neither security nor supported"))),
            };
            if date.parse::<jiff::civil::Date>().is_err() {
                return Err(bad(number, format!("{date:?} is no date (YYYY-MM-DD)")));
            }
            if source.is_empty() {
                return Err(bad(number, "the source is empty".to_owned()));
            }
            if rows
                .iter()
                .any(|row| row.component == component && (row.line == of || row.line == "*" || of == "*"))
            {
                return Err(bad(number, format!("{component} has line {of} twice, or a line besides *")));
            }
            rows.push(Minimum {
                component: component.to_owned(),
                line: of.to_owned(),
                version: version.to_owned(),
                security,
                source: source.to_owned(),
                date: date.to_owned(),
            });
        }
        let date = rows.iter().map(|row| row.date.clone()).max();
        let date = date.ok_or_else(|| bad(1, "the table has no row".to_owned()))?;
        Ok(Self { rows, date })
    }

    /// The table as text, to be changed and given back.
    pub fn built_in_text() -> &'static str {
        BUILT_IN
    }

    /// The rows as a table.
    pub fn text(&self) -> String {
        let mut text = format!("{HEAD}\n");
        for row in &self.rows {
            let kind = if row.security { "security" } else { "supported" };
            text.push_str(
                &[&row.component, &row.line, &row.version, kind, &row.source, &row.date]
                    .map(|field: &str| field)
                    .join("\t"),
            );
            text.push('\n');
        }
        text
    }

    /// Days since the table's date.
    pub fn age(&self) -> Option<f64> {
        let date: jiff::civil::Date = self.date.parse().ok()?;
        let then = date.to_zoned(jiff::tz::TimeZone::UTC).ok()?.timestamp().as_second();
        Some((jiff::Timestamp::now().as_second() - then) as f64 / 86400.0)
    }

    /// Whether a version is at its minimum, and that minimum.
    fn judge(&self, component: &str, version: &str) -> Judged {
        let rows: Vec<&Minimum> = self.rows.iter().filter(|row| row.component == component).collect();
        let Some(first) = rows.first() else {
            return Judged::NoMinimum("the table has no minimum for it".to_owned());
        };
        let of = |row: &&&Minimum| {
            let prefix = row.line.strip_suffix('+').unwrap_or(&row.line);
            prefix == "*"
                || starts(version, prefix)
                || (row.line.ends_with('+') && system::at_least(version, prefix))
        };
        if let Some(row) = rows.iter().rev().find(of) {
            return Judged::Minimum(system::at_least(version, &row.version), (*row).clone());
        }
        // Releases between two lines or before the first one get no fixes any more; those after the last one are not judged.
        match rows
            .iter()
            .filter(|row| system::at_least(&row.version, version))
            .min_by(|a, b| order(&a.version, &b.version))
        {
            Some(next) => Judged::Minimum(false, (*next).clone()),
            None => Judged::NoMinimum(format!(
                "{version} is of a line that the table of {} does not know yet",
                first.date
            )),
        }
    }
}

fn order(a: &str, b: &str) -> std::cmp::Ordering {
    match (system::at_least(a, b), system::at_least(b, a)) {
        (true, true) => std::cmp::Ordering::Equal,
        (true, false) => std::cmp::Ordering::Greater,
        _ => std::cmp::Ordering::Less,
    }
}

enum Judged {
    Minimum(bool, Minimum),
    NoMinimum(String),
}

/// `1.2` begins `1.2.8`, and not `1.20.0`.
fn starts(version: &str, prefix: &str) -> bool {
    version.strip_prefix(prefix).is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_digit()))
}

/// The first dotted number in a program's words.
fn first_version(words: &str) -> Option<String> {
    words
        .split(|c: char| c.is_whitespace() || matches!(c, ',' | '(' | ')' | '"'))
        .map(|word| word.trim_start_matches(['v', 'V']))
        .find(|word| word.contains('.') && word.starts_with(|c: char| c.is_ascii_digit()))
        .map(|word| word.trim_end_matches('.').to_owned())
}

/// What a program says after `--version`.
fn asked(program: &str, args: &[&str], after: &str) -> Result<(String, String), String> {
    let path = find_system(program).ok_or_else(|| format!("not_installed: {program} is not in PATH"))?;
    let command = format!("{program} {}", args.join(" "));
    let ran = system::run(path, args)?;
    if !ran.ok() {
        return Err(format!("{command}: {}", ran.complaint()));
    }
    let all = format!("{}\n{}", ran.out, ran.err);
    let text = all.split_once(after).map_or(all.as_str(), |(_, rest)| rest);
    first_version(text)
        .map(|version| (version, command.clone()))
        .ok_or_else(|| format!("{command} names no version"))
}

/// Versions found on this node, or why there is none, by component and the command that shows it.
fn found(host: &Host, driver: Option<&str>) -> BTreeMap<&'static str, Result<(String, String), String>> {
    let mut found = BTreeMap::new();
    let proc = "cat /proc/driver/nvidia/version".to_owned();
    let nvidia = host
        .proc("driver/nvidia/version")
        .and_then(|text| {
            let line = text.lines().next()?.to_owned();
            first_version(line.split_once("Module").map_or(line.as_str(), |(_, rest)| rest))
        })
        .or_else(|| driver.filter(|version| !version.is_empty()).map(str::to_owned));
    found.insert(
        "nvidia-driver",
        nvidia.map(|version| (version, proc)).ok_or("not_installed: no NVIDIA driver is loaded".to_owned()),
    );
    for (component, program, args, after) in [
        ("nvidia-container-toolkit", "nvidia-ctk", &["--version"][..], ""),
        ("cuda-toolkit", "nvcc", &["--version"], "release"),
        ("cuda-compiler", "nvcc", &["--version"], "release"),
        ("dcgm", "dcgmi", &["--version"], "version"),
        ("dcgm-exporter", "dcgm-exporter", &["--version"], "version"),
        ("docker", "docker", &["--version"], "version"),
        ("runc", "runc", &["--version"], "version"),
        ("enroot", "enroot", &["version"], ""),
        ("nsight-compute", "ncu", &["--version"], "Version"),
    ] {
        found.insert(component, asked(program, args, after));
    }
    found.insert("connectx-firmware", firmware(host));
    found.insert("bluefield-virtio-net", virtio(host));
    let os = text(Path::new("/etc/os-release")).unwrap_or_default();
    let kernel = host.proc("sys/kernel/osrelease").unwrap_or_default();
    found.insert(
        "ubuntu-kernel",
        if os.lines().any(|line| line == "ID=ubuntu") {
            // 6.8.0-147-generic: the number after the dash is the build that the table names.
            let numbers: Vec<&str> = kernel.split(['.', '-']).take(4).collect();
            Ok((numbers.join("."), "uname -r".to_owned()))
        } else {
            Err("not_installed: no kernel of Ubuntu, for which alone the table has minimums".to_owned())
        },
    );
    let amd = host.sys("module/amdgpu/version").and_then(|text| first_version(&text));
    found.insert(
        "amd-driver",
        amd.map(|version| (version, "cat /sys/module/amdgpu/version".to_owned()))
            .ok_or("not_installed: no AMD driver with a version is loaded".to_owned()),
    );
    let rocm = text(Path::new("/opt/rocm/.info/version")).and_then(|text| first_version(&text));
    found.insert(
        "rocm",
        rocm.map(|version| (version, "cat /opt/rocm/.info/version".to_owned()))
            .ok_or("not_installed: ROCm is not in /opt/rocm".to_owned()),
    );
    found.insert("nccl", nccl());
    found
}

/// The lowest firmware of the NVIDIA (Mellanox) cards, without the number of the card's family: `28.43.1014` is release
/// 43.1014 of family 28.
fn firmware(host: &Host) -> Result<(String, String), String> {
    let class = host.sysfs.join("class/infiniband");
    let mut lowest: Option<String> = None;
    for device in names(&class) {
        let read = |name: &str| text(&class.join(&device).join(name)).unwrap_or_default();
        if !(device.starts_with("mlx") || read("hca_type").starts_with("MT")) {
            continue;
        }
        let full = read("fw_ver");
        let Some((_, release)) = full.split_once('.') else { continue };
        if lowest.as_deref().is_none_or(|low| !system::at_least(release, low)) {
            lowest = Some(release.to_owned());
        }
    }
    lowest
        .map(|release| {
            (
                release,
                "cat /sys/class/infiniband/*/fw_ver (without the first number, the card's family)".to_owned(),
            )
        })
        .ok_or_else(|| "not_installed: no ConnectX or BlueField card shows its firmware".to_owned())
}

fn virtio(host: &Host) -> Result<(String, String), String> {
    let dpu = names(&host.sysfs.join("bus/pci/devices")).iter().any(|device| {
        let read = |name: &str| host.sys(&format!("bus/pci/devices/{device}/{name}")).unwrap_or_default();
        read("vendor") == "0x15b3" && read("device").starts_with("0xa2d")
    });
    if !dpu {
        return Err("no_dpu: no BlueField function in PCI sysfs".to_owned());
    }
    asked("virtnet", &["version"], "Controller").map_err(|why| {
        format!(
            "zero_trust: the controller runs on the DPU, which a host in zero-trust mode cannot ask ({why})"
        )
    })
}

/// The newest NCCL among what the dynamic linker knows.
fn nccl() -> Result<(String, String), String> {
    let command = "ldconfig -p | grep libnccl.so".to_owned();
    let program = find_system("ldconfig").ok_or("ldconfig is not in PATH")?;
    let ran = system::run(program, &["-p"])?;
    let mut paths: Vec<PathBuf> = ran
        .out
        .lines()
        .filter(|line| line.trim_start().starts_with("libnccl.so"))
        .filter_map(|line| line.split("=>").nth(1).map(|path| PathBuf::from(path.trim())))
        .collect();
    for dir in
        std::env::var("LD_LIBRARY_PATH").unwrap_or_default().split(':').filter(|dir| dir.starts_with('/'))
    {
        paths.push(Path::new(dir).join("libnccl.so.2"));
    }
    let versions: Vec<String> = paths
        .iter()
        .filter_map(|path| std::fs::canonicalize(path).ok())
        .filter_map(|path| {
            let name = path.file_name()?.to_string_lossy().into_owned();
            let version = name.strip_prefix("libnccl.so.")?.to_owned();
            version.contains('.').then_some(version)
        })
        .collect();
    versions.into_iter().max_by(|a, b| order(a, b)).map(|version| (version, command)).ok_or_else(|| {
        "not_installed: the dynamic linker knows no libnccl.so.2 whose name has a version".to_owned()
    })
}

/// One item a component.
pub fn audit(host: &Host, table: &Table, driver: Option<&str>, synthetic: bool) -> Vec<Item> {
    let mut items = Vec::new();
    for (component, seen) in found(host, driver) {
        let security =
            table.rows.iter().find(|row| row.component == component).is_none_or(|row| row.security);
        let metric = if security { "version_at_minimum" } else { "version_supported" };
        let simulated = synthetic && matches!(component, "nvidia-driver" | "connectx-firmware");
        let item = match seen {
            Err(why) if why.starts_with("no_dpu: ") => Item::not_applicable(S, metric, why),
            Err(why) => Item::unavailable(S, metric, why),
            Ok((version, command)) => match table.judge(component, &version) {
                Judged::NoMinimum(why) => {
                    Item::unknown(S, metric, why).param("version", version).by(&command)
                }
                Judged::Minimum(good, row) => Item::flag(
                    S,
                    metric,
                    good,
                    true,
                    if security { Verdict::Fail } else { Verdict::Warn },
                    format!("{version}, minimum {} since {} ({})", row.version, row.date, row.source),
                )
                .param("version", version)
                .param("minimum", row.version.clone())
                .by(&command)
                .mend(&format!("update {component} to {} or later", row.version)),
            },
        };
        items.push(Item { synthetic: simulated, ..item.param("component", component) });
    }
    if let Some(age) = table.age() {
        let text = format!("the table of minimum versions is of {}, {age:.0} days old", table.date);
        items.push(
            Item::value(S, "minimum_versions_age", age.max(0.0), text)
                .judged(if age <= OLD_DAYS { Verdict::Pass } else { Verdict::Warn })
                .unit("days")
                .by("clustermax audit --print-minimum-versions")
                .mend("give the newest published minimum versions with --minimum-versions FILE"),
        );
    }
    items
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(component: &str, version: &str) -> Option<bool> {
        match Table::built_in().unwrap().judge(component, version) {
            Judged::Minimum(good, _) => Some(good),
            Judged::NoMinimum(_) => None,
        }
    }

    #[test]
    fn each_line_has_its_own_minimum() {
        for (component, version, want) in [
            ("nvidia-driver", "570.172.08", Some(false)),
            ("nvidia-driver", "570.211.01", Some(true)),
            ("nvidia-driver", "580.178.04", Some(true)),
            // A branch between two that are kept up: no fixed release of it exists.
            ("nvidia-driver", "550.127.05", Some(false)),
            ("nvidia-driver", "470.256.02", Some(false)),
            // A branch that came after the table.
            ("nvidia-driver", "620.10.01", None),
            ("runc", "1.1.12", Some(false)),
            ("runc", "1.2.8", Some(true)),
            ("runc", "1.20.0", None),
            ("connectx-firmware", "43.1014", Some(false)),
            ("connectx-firmware", "46.3008", Some(true)),
            ("connectx-firmware", "48.1000", Some(true)),
            ("nvidia-container-toolkit", "1.19.1", Some(true)),
            ("nvidia-container-toolkit", "1.9.0", Some(false)),
            ("ubuntu-kernel", "6.8.0.100", Some(false)),
            ("ubuntu-kernel", "6.11.0.9", Some(true)),
            ("ubuntu-kernel", "5.15.0.140", Some(false)),
        ] {
            assert_eq!(verdict(component, version), want, "{component} {version}");
        }
    }

    #[test]
    fn a_table_of_no_use_is_refused_by_line() {
        let row = |text: &str| format!("{HEAD}\n{text}\n");
        for (text, says) in [
            (String::new(), "no row"),
            ("component\tminimum\n".to_owned(), "line 1: the first line is not the table's head"),
            (row("nccl\t*\t2.21.5"), "line 2: 3 fields instead of 6"),
            (row("ncl\t*\t2.21.5\tsupported\tcmax\t2026-10-27"), "did you mean \"nccl\""),
            (row("nccl\t*\tnew\tsupported\tcmax\t2026-10-27"), "\"new\" is no version"),
            (row("runc\t1.2\t1.3.0\tsecurity\tcmax\t2026-10-27"), "does not begin with it"),
            (row("nccl\t*\t2.21.5\tsafe\tcmax\t2026-10-27"), "neither security nor supported"),
            (row("nccl\t*\t2.21.5\tsupported\tcmax\ttoday"), "is no date"),
            (row("nccl\t*\t2.21.5\tsupported\t\t2026-10-27"), "the source is empty"),
            (
                row(
                    "nccl\t*\t2.21.5\tsupported\tcmax\t2026-10-27\nnccl\t*\t2.22.3\tsupported\tcmax\t2026-10-27",
                ),
                "line 3: nccl has line * twice",
            ),
        ] {
            let failure = Table::parse(&text, "t.tsv").unwrap_err();
            assert!(failure.code == 2 && failure.message.contains(says), "{says}: {failure}");
            assert!(failure.message.starts_with("t.tsv line "), "{failure}");
        }
    }

    #[test]
    fn the_first_dotted_number_is_the_version() {
        for (words, want) in [
            ("NVIDIA Container Toolkit CLI version 1.17.8\ncommit: 1", "1.17.8"),
            ("Docker version 29.9.2, build aa7e414", "29.9.2"),
            ("runc version 1.1.12-0ubuntu2", "1.1.12-0ubuntu2"),
            ("release 12.4, V12.4.131", "12.4"),
            ("Version 2024.3.0.0 (build 1)", "2024.3.0.0"),
        ] {
            assert_eq!(first_version(words).as_deref(), Some(want));
        }
    }

    #[test]
    fn the_lowest_firmware_of_the_cards_counts() {
        let dir = tempfile::tempdir().unwrap();
        let host = super::super::testing::host(
            dir.path(),
            &[
                ("sysfs/class/infiniband/mlx5_0/fw_ver", "28.43.1014"),
                ("sysfs/class/infiniband/mlx5_1/fw_ver", "28.39.3560"),
                ("sysfs/class/infiniband/bnxt_re0/fw_ver", "1.2.3"),
            ],
        );
        assert_eq!(firmware(&host).unwrap().0, "39.3560");
    }
}
