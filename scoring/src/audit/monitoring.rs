//! Metrics endpoints, logs and dashboards, asked on this node only.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::health;
use super::system::{self, Host, names, text};
use super::{Item, Verdict};

const S: &str = "audit";

/// Everything about monitoring that one node shows.
pub fn audit(host: &Host) -> Vec<Item> {
    let mut items = exporters();
    items.push(log_shipper(host));
    items.extend(kernel_log(host));
    items
}

/// Metrics endpoints on their usual ports, asked on this node only.
fn exporters() -> Vec<Item> {
    const ENDPOINTS: [(&str, u16, &[&str]); 3] = [
        (
            "node",
            9100,
            &[
                "node_hwmon_temp_celsius",
                "node_infiniband_port_data_received_bytes_total",
                "node_infiniband_link_downed_total",
            ],
        ),
        (
            "dcgm",
            9400,
            &[
                "DCGM_FI_PROF_SM_ACTIVE",
                "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
                "DCGM_FI_DEV_PCIE_REPLAY_COUNTER",
                "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL",
                "DCGM_FI_PROF_PCIE_RX_BYTES",
                "DCGM_FI_PROF_NVLINK_RX_BYTES",
                // A label, not a metric: dcgm-exporter's mapping of GPUs to jobs.
                "hpc_job",
            ],
        ),
        ("slurm", 9341, &[]),
    ];
    let mut items = Vec::new();
    for (name, port, metrics) in ENDPOINTS {
        let page = scrape(port, "/metrics");
        let (seen, answers) = match &page {
            Ok(page) => (format!("port {port} answers with {} lines", page.lines().count()), true),
            Err(why) => (format!("port {port}: {why}"), false),
        };
        let command = format!("curl -s localhost:{port}/metrics");
        items.push(
            Item::flag(S, "exporter", answers, true, Verdict::Warn, seen)
                .param("name", name)
                .by(&command)
                .mend(&format!("run the {name} exporter on every node")),
        );
        for metric in metrics {
            // An endpoint elsewhere may publish it; here nobody does.
            let label = format!("{metric}=\"");
            let published = page
                .as_ref()
                .is_ok_and(|page| page.lines().any(|line| line.starts_with(metric) || line.contains(&label)));
            let seen = match &page {
                Ok(_) if published => format!("{name} exporter publishes it"),
                Ok(_) => format!("{name} exporter does not publish it"),
                Err(_) => format!("no {name} exporter answers on port {port}"),
            };
            items.push(
                Item::flag(S, "exporter_metric", published, true, Verdict::Warn, seen)
                    .param("name", *metric)
                    .by(&command)
                    .mend(&format!("add {metric} to the exporter's counters")),
            );
        }
        items.push(plausible(name, port, &page));
    }
    items
}

fn scrape(port: u16, path: &str) -> Result<String, String> {
    let limit = Duration::from_millis(500);
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let mut stream = TcpStream::connect_timeout(&address, limit).map_err(|error| error.to_string())?;
    stream.set_read_timeout(Some(limit)).map_err(|error| error.to_string())?;
    stream
        .write_all(format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").as_bytes())
        .map_err(|error| error.to_string())?;
    let mut bytes = Vec::new();
    // A slow endpoint ends with a time-out and the part that came.
    let _ = stream.take(8 << 20).read_to_end(&mut bytes);
    let text = String::from_utf8_lossy(&bytes).into_owned();
    match text.lines().next() {
        Some(status) if status.contains(" 200") => Ok(text),
        Some(status) => Err(format!("answers {status:?}")),
        None => Err("opens but does not answer".to_owned()),
    }
}

/// What an exporter may publish: a value outside is impossible, whoever shows it. Prefix, least, most, why.
const POSSIBLE: [(&str, f64, f64, &str); 13] = [
    ("DCGM_FI_DEV_GPU_TEMP", -20.0, 150.0, "C"),
    ("DCGM_FI_DEV_MEMORY_TEMP", -20.0, 150.0, "C"),
    ("DCGM_FI_DEV_POWER_USAGE", 0.0, 3000.0, "W"),
    ("DCGM_FI_DEV_GPU_UTIL", 0.0, 100.0, "percent"),
    ("DCGM_FI_DEV_MEM_COPY_UTIL", 0.0, 100.0, "percent"),
    ("DCGM_FI_PROF_GR_ENGINE_ACTIVE", 0.0, 1.0, "a share"),
    ("DCGM_FI_PROF_SM_ACTIVE", 0.0, 1.0, "a share"),
    ("DCGM_FI_PROF_SM_OCCUPANCY", 0.0, 1.0, "a share"),
    ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", 0.0, 1.0, "a share"),
    ("DCGM_FI_PROF_PCIE_", 0.0, 128e9, "PCIe 6 x16, bytes a second"),
    ("DCGM_FI_PROF_NVLINK_", 0.0, 1.8e12, "NVLink 5, bytes a second"),
    ("node_hwmon_temp_celsius", -60.0, 200.0, "C"),
    ("node_infiniband_rate_bytes_per_second", 0.0, 200e9, "1.6 Tb/s, bytes a second"),
];

/// Samples of a metrics page: name, labels, value.
pub fn samples(page: &str) -> impl Iterator<Item = (&str, &str, f64)> {
    page.lines().filter(|line| !line.starts_with('#')).filter_map(|line| {
        let (series, rest) = match line.rfind('}') {
            Some(end) => line.split_at(end + 1),
            None => line.split_at(line.find(char::is_whitespace)?),
        };
        let value = rest.split_whitespace().next()?.parse::<f64>().ok()?;
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        Some((name, labels.trim_end_matches('}'), value))
    })
}

/// Values that cannot be, in words.
pub fn impossible(page: &str) -> Vec<String> {
    samples(page)
        .filter(|(.., value)| value.is_finite())
        .filter_map(|(name, labels, value)| {
            let (_, least, most, unit) = POSSIBLE.iter().find(|(prefix, ..)| name.starts_with(prefix))?;
            (value < *least || value > *most)
                .then(|| format!("{name}{{{labels}}} is {value}, outside {least} to {most} ({unit})"))
        })
        .collect()
}

/// A counter of bytes between two pages against the port's own line rate: rates above it have been shown to reviewers.
fn above_line_rate(first: &str, second: &str, seconds: f64) -> Vec<String> {
    let read = |page: &str, name: &str| -> BTreeMap<String, f64> {
        samples(page)
            .filter(|(found, ..)| *found == name)
            .map(|(_, labels, value)| (labels.to_owned(), value))
            .collect()
    };
    let rates = read(second, "node_infiniband_rate_bytes_per_second");
    let mut found = Vec::new();
    for name in [
        "node_infiniband_port_data_received_bytes_total",
        "node_infiniband_port_data_transmitted_bytes_total",
    ] {
        let before = read(first, name);
        for (labels, now) in read(second, name) {
            let (Some(then), Some(line)) = (before.get(&labels), rates.get(&labels)) else { continue };
            let rate = (now - then) / seconds;
            if rate > line * 1.05 {
                found.push(format!(
                    "{name}{{{labels}}} grows by {:.1} GB/s, its line carries {:.1}",
                    rate / 1e9,
                    line / 1e9
                ));
            }
        }
    }
    found
}

fn plausible(name: &str, port: u16, page: &Result<String, String>) -> Item {
    let metric = "exporter_impossible";
    let item = match page {
        Err(_) => {
            Item::unavailable(S, metric, format!("no_exporter: no {name} exporter answers on port {port}"))
        }
        Ok(page) => {
            let mut found = impossible(page);
            if page.contains("node_infiniband_port_data_received_bytes_total") {
                let pause = Duration::from_secs(1);
                std::thread::sleep(pause);
                if let Ok(again) = scrape(port, "/metrics") {
                    // The pages are at least the pause apart, so a true rate is never above this one.
                    found.extend(above_line_rate(page, &again, pause.as_secs_f64()));
                }
            }
            let count = samples(page).count();
            let seen = match found.first() {
                None => format!("{count} values, none impossible"),
                Some(first) => format!("{} of {count} values: {first}", found.len()),
            };
            Item::value(S, metric, found.len() as f64, seen).judged(if found.is_empty() {
                Verdict::Pass
            } else {
                Verdict::Fail
            })
        }
    };
    item.param("name", name)
        .by(&format!("curl -s localhost:{port}/metrics"))
        .mend("mend or replace the exporter: a panel that shows impossible values is believed by nobody")
}

/// A program on this node that ships its logs. Whether users can query them is another question.
fn log_shipper(host: &Host) -> Item {
    const SHIPPERS: [&str; 12] = [
        "promtail",
        "loki",
        "alloy",
        "grafana-agent",
        "fluent-bit",
        "fluentd",
        "vector",
        "filebeat",
        "otelcol",
        "splunkd",
        "systemd-journal-upload",
        "datadog-agent",
    ];
    let metric = "log_shipper";
    let mut processes = 0;
    let mut found = Vec::new();
    for pid in names(&host.procfs).iter().filter(|name| name.bytes().all(|byte| byte.is_ascii_digit())) {
        let Some(name) = host.proc(&format!("{pid}/comm")) else { continue };
        processes +=
            usize::from(host.proc(&format!("{pid}/status")).is_some_and(|status| uid(&status) == Some(0)));
        // comm is cut at 15 characters.
        if let Some(shipper) =
            SHIPPERS.iter().find(|shipper| name.starts_with(&shipper[..shipper.len().min(15)]))
        {
            found.push(*shipper);
        }
    }
    let mut files = vec![PathBuf::from("/etc/rsyslog.conf")];
    files
        .extend(names(Path::new("/etc/rsyslog.d")).iter().map(|name| Path::new("/etc/rsyslog.d").join(name)));
    let forwards = |line: &str| {
        let line = line.trim();
        !line.starts_with('#')
            && (line.contains(" @") || line.contains("\t@") || line.contains("type=\"omfwd\""))
    };
    if files.iter().filter_map(|file| text(file)).any(|conf| conf.lines().any(forwards)) {
        found.push("rsyslog with a remote target");
    }
    found.sort_unstable();
    found.dedup();
    let item = if !found.is_empty() {
        let seen =
            format!("{} runs; whether users can query what it ships is not seen from here", found.join(", "));
        Item::flag(S, metric, true, true, Verdict::Warn, seen)
    } else if processes == 0 {
        Item::unavailable(
            S,
            metric,
            "other users' processes are hidden here (hidepid), so a shipper could not be seen",
        )
    } else {
        Item::flag(
            S,
            metric,
            false,
            true,
            Verdict::Warn,
            "no shipper of logs is among the processes, rsyslog forwards nothing",
        )
    };
    item.by("ps -e | grep -e promtail -e fluent -e vector -e alloy; grep @ /etc/rsyslog.conf")
        .mend("ship the kernel log to a store that the customer can query (Loki, Elasticsearch)")
}

fn uid(status: &str) -> Option<u32> {
    status.lines().find_map(|line| line.strip_prefix("Uid:")?.split_whitespace().next()?.parse().ok())
}

/// How far back the kernel log can be read here, and the Xids in it by what they mean: an application's own Xid 13 is no
/// hardware fault.
fn kernel_log(host: &Host) -> Vec<Item> {
    let (days, hardware) = ("kernel_log_days", "xid_hardware");
    let command = "journalctl -k --since -7days; dmesg";
    let mend = "let users read the kernel log (group systemd-journal), kept for a week at least";
    let (log, span) = match read_kernel_log(host) {
        Ok(found) => found,
        Err(why) => {
            return vec![
                Item::unavailable(S, days, why.clone()).unit("days").by(command).mend(mend),
                Item::unavailable(S, hardware, why).by(command),
            ];
        }
    };
    let seen = format!("the kernel log can be read {span:.1} days back");
    let first = Item::value(S, days, span, seen)
        .judged(if span >= 7.0 { Verdict::Pass } else { Verdict::Warn })
        .unit("days")
        .by(command)
        .mend(mend);
    let second = match xids(&log) {
        Ok((all, hard)) => {
            let seen = match (all.len(), hard.len()) {
                (0, _) => format!("no Xid line in {span:.1} days"),
                (lines, 0) => format!("{lines} Xid events, all of programs: {}", all.join(" ")),
                (lines, bad) => format!("{lines} Xid events, {bad} of the hardware: {}", hard.join(" ")),
            };
            Item::value(S, hardware, hard.len() as f64, seen).judged(if hard.is_empty() {
                Verdict::Pass
            } else {
                Verdict::Warn
            })
        }
        Err(why) => Item::unavailable(S, hardware, why),
    };
    vec![
        first,
        second
            .by("clustermax-healthcheck explain --log FILE")
            .mend("see what the lines mean with clustermax-healthcheck explain --log"),
    ]
}

fn read_kernel_log(host: &Host) -> Result<(String, f64), String> {
    let now = health::epoch();
    let journal = system::run_for(
        "journalctl",
        &["-k", "-q", "--no-pager", "-o", "short-unix", "--since=-7days"],
        Duration::from_secs(5),
    );
    if let Ok(ran) = &journal
        && ran.ok()
        && let Some(first) =
            ran.out.lines().find_map(|line| line.split_whitespace().next()?.parse::<f64>().ok())
    {
        return Ok((ran.out.clone(), ((now - first) / 86400.0).max(0.0)));
    }
    let ran = system::run_for("dmesg", &[], Duration::from_secs(5))?;
    if !ran.ok() {
        return Err(format!(
            "neither the journal nor dmesg shows the kernel log to this user: {}",
            ran.complaint()
        ));
    }
    let stamp =
        |line: &str| line.trim_start().strip_prefix('[')?.split(']').next()?.trim().parse::<f64>().ok();
    let first = ran.out.lines().find_map(stamp).ok_or("the kernel log is empty")?;
    let up = host.proc("uptime").and_then(|text| text.split_whitespace().next()?.parse::<f64>().ok());
    let up = up.ok_or("/proc/uptime cannot be read")?;
    Ok((ran.out, ((up - first) / 86400.0).max(0.0)))
}

/// Codes of all Xid events and of those that are the hardware's, as `clustermax-healthcheck explain` sorts them.
fn xids(log: &str) -> Result<(Vec<String>, Vec<String>), String> {
    if !log.contains("Xid") {
        return Ok((Vec::new(), Vec::new()));
    }
    let program = Host::program("clustermax-healthcheck")
        .ok_or("clustermax-healthcheck, which knows what Xids mean, is not installed")?;
    let ran =
        system::run_with(&program, &["explain", "--log", "-", "--json"], Duration::from_secs(10), Some(log))?;
    let document: serde_json::Value = serde_json::from_str(&ran.out)
        .map_err(|_| format!("clustermax-healthcheck explain: {}", ran.complaint()))?;
    let (mut all, mut hard) = (Vec::new(), Vec::new());
    for event in document["events"].as_array().into_iter().flatten() {
        if event["check"] != "gpu.xid" {
            continue;
        }
        let code = event["code"].to_string();
        if event["fault"] == "hardware" {
            hard.push(code.clone());
        }
        all.push(code);
    }
    Ok((all, hard))
}

/// Nodes that a Prometheus on this machine shows and that are not ours; without one nothing can be told.
pub fn foreign_nodes(nodes: &[String]) -> Item {
    let (metric, port) = ("monitoring_foreign_nodes", 9090);
    let own = "that other tenants' metrics are apart is the provider's to state";
    let item = match scrape(port, "/api/v1/label/instance/values") {
        Err(why) => Item::unknown(
            S,
            metric,
            format!("no Prometheus answers on port {port} of this node ({why}); {own}"),
        ),
        Ok(page) => {
            let body = page.split_once("\r\n\r\n").map_or("", |(_, body)| body);
            let values: serde_json::Value = serde_json::from_str(body).unwrap_or_default();
            let short = |name: &str| name.split([':', '.']).next().unwrap_or_default().to_owned();
            let foreign: BTreeSet<String> = values["data"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(|value| value.as_str().map(short))
                .filter(|name| {
                    !name.is_empty() && name != "localhost" && !nodes.iter().any(|node| short(node) == *name)
                })
                .filter(|name| !name.bytes().all(|byte| byte.is_ascii_digit()))
                .collect();
            if foreign.is_empty() {
                // Looked at, and no proof: the criterion leaves it to the statement.
                Item::value(S, metric, 0.0, format!("Prometheus shows no node but ours; {own}"))
            } else {
                let some: Vec<&str> = foreign.iter().take(5).map(String::as_str).collect();
                Item::value(
                    S,
                    metric,
                    foreign.len() as f64,
                    format!("instances that are no nodes of this cluster: {}", some.join(" ")),
                )
                .judged(Verdict::Fail)
            }
        }
    };
    item.by("curl -s localhost:9090/api/v1/label/instance/values")
        .mend("give each tenant a monitoring back end of its own")
}

/// A Grafana on this machine.
pub fn dashboard() -> Item {
    let metric = "dashboard";
    match scrape(3000, "/api/health") {
        Ok(_) => Item::flag(S, metric, true, true, Verdict::Warn, "Grafana answers on port 3000"),
        Err(why) => Item::unknown(
            S,
            metric,
            format!("port 3000 of this node: {why}; a dashboard elsewhere is the provider's to state"),
        ),
    }
    .by("curl -s localhost:3000/api/health")
    .mend("run Grafana beside Prometheus")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_values_are_refused_and_possible_ones_are_not() {
        let page = "# HELP x\nDCGM_FI_DEV_GPU_TEMP{gpu=\"0\"} 45\nDCGM_FI_DEV_GPU_UTIL{gpu=\"0\"} 130\n\
                    DCGM_FI_PROF_NVLINK_RX_BYTES{gpu=\"1\",a=\"}\"} 9e12\nnode_hwmon_temp_celsius{chip=\"x\"} -61\nup 1\n\
                    DCGM_FI_DEV_POWER_USAGE{gpu=\"0\"} NaN\n";
        let found = impossible(page);
        assert_eq!(found.len(), 3, "{found:?}");
        assert!(found[0].contains("DCGM_FI_DEV_GPU_UTIL") && found[0].contains("130"), "{found:?}");
        assert_eq!(samples(page).count(), 6);
    }

    #[test]
    fn a_rate_above_the_line_is_impossible() {
        let page = |bytes: f64| {
            format!(
                "node_infiniband_rate_bytes_per_second{{device=\"mlx5_0\",port=\"1\"}} 5e10\n\
                 node_infiniband_port_data_received_bytes_total{{device=\"mlx5_0\",port=\"1\"}} {bytes}\n"
            )
        };
        assert!(above_line_rate(&page(0.0), &page(4.9e10), 1.0).is_empty());
        // 1.14 Tb/s on a port of 400 Gb/s, as a reviewer was shown.
        let found = above_line_rate(&page(0.0), &page(1.425e11), 1.0);
        assert_eq!(found.len(), 1, "{found:?}");
    }
}
