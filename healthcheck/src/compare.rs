//! What differs between this node and a profile: a shipped one, or one that another node taught.

use std::fmt::Write as _;

use toml::{Table, Value};

use crate::config::Profile;

/// Keys that name an entry of a list.
const NAMES: [&str; 3] = ["device", "port", "path"];
/// Keys that ask for at least a value, with the share of it that is enough by the checks' rules.
const AT_LEAST: [(&str, f64); 3] = [("memory_total_kib", 0.99), ("nvlink_mbps", 0.95), ("rate_gbps", 1.0)];
/// Limits, rules and wishes: the node itself does not show them.
const NOT_SHOWN: [&str; 7] =
    ["idle_power_watts", "fabric_manager", "imex", "mps", "strict", "warn_percent", "fail_percent"];

/// One difference.
#[derive(Debug, Clone, PartialEq)]
pub struct Difference {
    /// Key as in the file: `profile.gpu_count`.
    pub key: String,
    /// What this node has; none when it has none.
    pub here: Option<String>,
    /// What the profile asks for; none when it does not ask.
    pub asked: Option<String>,
}

/// Differences between what a node has and what a profile asks for, in the order of the profile's keys.
#[must_use]
pub fn compare(here: &Profile, asked: &Profile) -> Vec<Difference> {
    let table = |p: &Profile| Table::try_from(p).unwrap_or_default();
    let mut out = Vec::new();
    tables("profile", &table(here), &table(asked), &mut out);
    out
}

/// The differences as lines. What the profile does not ask for comes last and is no fault.
#[must_use]
pub fn render(differences: &[Difference], profile: &str) -> String {
    let mut out = String::new();
    let (asked, own): (Vec<_>, Vec<_>) = differences.iter().partition(|d| d.asked.is_some());
    for d in &asked {
        let here = d.here.as_deref().unwrap_or("absent");
        let _ = writeln!(
            out,
            "DIFFERS {}: {here} here, {} in the profile",
            d.key,
            d.asked.as_deref().unwrap_or("-")
        );
    }
    for d in &own {
        let _ = writeln!(out, "only here {}: {}", d.key, d.here.as_deref().unwrap_or("-"));
    }
    let verdict = match asked.len() {
        0 => "this node has all that the profile asks for".to_string(),
        n => format!("{n} differences"),
    };
    let _ = writeln!(out, "{profile}: {verdict}");
    out
}

fn tables(prefix: &str, here: &Table, asked: &Table, out: &mut Vec<Difference>) {
    for (key, want) in asked {
        if NOT_SHOWN.contains(&key.as_str()) {
            continue;
        }
        let path = format!("{prefix}.{key}");
        match (here.get(key), want) {
            (Some(Value::Table(here)), Value::Table(want)) => tables(&path, here, want, out),
            (None, Value::Table(want)) => tables(&path, &Table::new(), want, out),
            (here, Value::Array(want)) => {
                let here = here.and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
                lists(&path, here, want, out);
            }
            (Some(here), want) if enough(key, here, want) => {}
            (here, want) => {
                out.push(Difference {
                    key: path,
                    here: here.map(Value::to_string),
                    asked: Some(want.to_string()),
                });
            }
        }
    }
    for (key, value) in
        here.iter().filter(|(key, _)| !asked.contains_key(*key) && !NOT_SHOWN.contains(&key.as_str()))
    {
        let path = format!("{prefix}.{key}");
        match value {
            Value::Table(inner) => tables(&path, inner, &Table::new(), out),
            Value::Array(inner) => lists(&path, inner, &[], out),
            other => out.push(Difference { key: path, here: Some(other.to_string()), asked: None }),
        }
    }
}

/// Entries are the same when all the keys that name them are.
fn lists(prefix: &str, here: &[Value], asked: &[Value], out: &mut Vec<Difference>) {
    let name = |entry: &Value| -> String {
        let part =
            |key: &&str| entry.get(*key).map(|v| v.as_str().map_or_else(|| v.to_string(), str::to_string));
        NAMES.iter().filter_map(part).collect::<Vec<_>>().join("/")
    };
    for want in asked {
        let path = format!("{prefix} {}", name(want));
        match (here.iter().find(|h| name(h) == name(want)), want) {
            (Some(Value::Table(here)), Value::Table(want)) => tables(&path, here, want, out),
            _ => out.push(Difference { key: path, here: None, asked: Some("present".into()) }),
        }
    }
    for own in here.iter().filter(|h| asked.iter().all(|a| name(a) != name(h))) {
        out.push(Difference {
            key: format!("{prefix} {}", name(own)),
            here: Some("present".into()),
            asked: None,
        });
    }
}

fn enough(key: &str, here: &Value, want: &Value) -> bool {
    #[allow(clippy::cast_precision_loss, reason = "sizes and rates fit into 53 bits")]
    let number = |v: &Value| v.as_float().or_else(|| v.as_integer().map(|i| i as f64));
    match (AT_LEAST.iter().find(|(k, _)| *k == key), number(here), number(want)) {
        (Some((_, share)), Some(here), Some(want)) => here >= want * share,
        _ => here == want,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn profile(text: &str) -> Profile {
        Config::parse(text, std::path::Path::new("x")).unwrap().profile
    }

    const NODE: &str = "[profile]\ngpu_model = \"NVIDIA H100 80GB HBM3\"\ngpu_count = 8\nmemory_total_kib = 995\n\
        [profile.gpu]\nnvlink_mbps = 26562\necc = true\n\
        [[profile.ib_port]]\ndevice = \"mlx5_0\"\nport = 1\nrate_gbps = 400.0\n";

    fn keys(asked: &str) -> Vec<(String, bool)> {
        compare(&profile(NODE), &profile(asked)).into_iter().map(|d| (d.key, d.asked.is_some())).collect()
    }

    #[test]
    fn the_same_differs_in_nothing() {
        assert_eq!(keys(NODE), []);
    }

    #[test]
    fn more_than_asked_is_enough_and_limits_are_not_compared() {
        let asked = "[profile]\ngpu_model = \"NVIDIA H100 80GB HBM3\"\ngpu_count = 8\nmemory_total_kib = 1000\n\
            [profile.gpu]\nnvlink_mbps = 25000\nidle_power_watts = 150\nfabric_manager = true\necc = true\n\
            [[profile.ib_port]]\ndevice = \"mlx5_0\"\nport = 1\nrate_gbps = 200.0\n";
        assert_eq!(keys(asked), []);
    }

    #[test]
    fn every_difference_is_named() {
        let asked = "[profile]\ngpu_count = 4\nnvlinks_per_gpu = 18\nmemory_total_kib = 2000\n\
            [profile.gpu]\necc = false\n\
            [[profile.ib_port]]\ndevice = \"mlx5_0\"\nport = 1\nrate_gbps = 800.0\n\
            [[profile.ib_port]]\ndevice = \"mlx5_1\"\nport = 1\nrate_gbps = 400.0\n";
        let found = keys(asked);
        let named = |asked: bool| -> Vec<&str> {
            found.iter().filter(|(_, a)| *a == asked).map(|(k, _)| k.as_str()).collect()
        };
        assert_eq!(
            named(true),
            [
                "profile.gpu.ecc",
                "profile.gpu_count",
                "profile.ib_port mlx5_0/1.rate_gbps",
                "profile.ib_port mlx5_1/1",
                "profile.memory_total_kib",
                "profile.nvlinks_per_gpu",
            ]
        );
        assert_eq!(named(false), ["profile.gpu.nvlink_mbps", "profile.gpu_model"]);
        let text = render(&compare(&profile(NODE), &profile(asked)), "x.toml");
        assert!(text.contains("DIFFERS profile.gpu_count: 8 here, 4 in the profile"), "{text}");
        assert!(
            text.contains("DIFFERS profile.ib_port mlx5_1/1: absent here, present in the profile"),
            "{text}"
        );
        assert!(text.ends_with("x.toml: 6 differences\n"), "{text}");
    }
}
