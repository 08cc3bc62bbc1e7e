//! The network below the collectives: nvbandwidth, perftest, ping and iperf3, as `tests.json` lists them.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Draft, Raw};
use crate::read::{Found, Reading, tools};
use crate::record::{Record, State};

/// A program that measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tool {
    /// Host-device and device-device copies.
    Nvbandwidth,
    /// Round trips and loss.
    Ping,
    /// TCP.
    Iperf3,
    /// RDMA bandwidth.
    IbWriteBw,
    /// RDMA latency.
    IbWriteLat,
}

impl Tool {
    /// The program's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Nvbandwidth => "nvbandwidth",
            Self::Ping => "ping",
            Self::Iperf3 => "iperf3",
            Self::IbWriteBw => "ib_write_bw",
            Self::IbWriteLat => "ib_write_lat",
        }
    }

    /// Its metrics and their units.
    fn metrics(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Nvbandwidth => &[("copy_bandwidth", "GB/s")],
            Self::Ping => &[("ping_rtt", "ms"), ("ping_loss", "percent")],
            Self::Iperf3 => &[("tcp_bandwidth", "Gb/s")],
            Self::IbWriteBw => &[("rdma_bandwidth", "Gb/s")],
            Self::IbWriteLat => &[("rdma_latency", "us")],
        }
    }
}

/// What became of a test.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Not reached yet, or never.
    Left,
    /// Something it needs is not here.
    Unavailable,
    /// Its program ended.
    Ran,
}

/// One test; `tests.json` is a list of these.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Test {
    /// What measures.
    pub tool: Tool,
    /// The node that sends; nvbandwidth's only one.
    pub node: String,
    /// The node that answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    /// RDMA device, the same on both nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// Memory that RDMA reads and writes: host or gpu.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<String>,
    /// What became of it.
    pub outcome: Outcome,
    /// Why it did not run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Below `raw/network/`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// Exit code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<i32>,
    /// The sender's command line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// Other pairs that were measured at the same time.
    #[serde(default)]
    pub beside: usize,
}

/// Stage `network`.
pub(super) fn read(raw: &Raw) -> Vec<Record> {
    let nothing = |state, why: String| -> Vec<Record> {
        [Tool::Nvbandwidth, Tool::IbWriteBw, Tool::IbWriteLat, Tool::Ping, Tool::Iperf3]
            .iter()
            .flat_map(|tool| tool.metrics())
            .map(|(metric, unit)| raw.missing(metric, unit, state, why.clone()).done())
            .collect()
    };
    let Some(file) = raw.file("tests.json") else {
        return nothing(raw.missing_state(), raw.marker.why());
    };
    match file.json::<Vec<Test>>() {
        Ok(tests) => tests.iter().flat_map(|test| one(raw, test)).collect(),
        Err(why) => nothing(State::Unknown, why),
    }
}

fn one(raw: &Raw, test: &Test) -> Vec<Record> {
    let with = |draft: Draft| {
        let mut draft = draft.on(&test.node);
        for (key, value) in [("peer", &test.peer), ("device", &test.device), ("memory", &test.memory)] {
            if let Some(value) = value {
                draft = draft.param(key, value.as_str());
            }
        }
        match &test.command {
            Some(command) => draft.command(command),
            None => draft,
        }
    };
    let none = |state: State, why: &str| -> Vec<Record> {
        test.tool
            .metrics()
            .iter()
            .map(|(metric, unit)| with(raw.missing(metric, unit, state, why)).done())
            .collect()
    };
    let why = test.why.as_deref();
    match test.outcome {
        Outcome::Unavailable => {
            return none(State::Unavailable, why.unwrap_or("something it needs is not here"));
        }
        Outcome::Left => {
            return none(State::Unknown, why.unwrap_or("the stage ended before this test began"));
        }
        Outcome::Ran => {}
    }
    let name = test.tool.name();
    let file = test.file.as_deref().and_then(|file| raw.file(file));
    let text = file.map_or("", |file| file.text.as_str());
    let reading = match test.tool {
        Tool::Nvbandwidth if !text.trim().is_empty() => Some(tools::nvbandwidth_json(text)),
        Tool::Nvbandwidth => None,
        Tool::Ping => ping(text),
        Tool::Iperf3 => iperf3(text),
        Tool::IbWriteBw | Tool::IbWriteLat => tools::perftest(text),
    };
    let (Some(reading), Some(file)) = (reading, file) else {
        let why = match test.code {
            Some(124) => format!("{name} was stopped at its time limit and had printed no result"),
            Some(code) => format!("{name} ended with exit code {code} and printed no result; see stage.log"),
            None => format!("{name} printed no result"),
        };
        return none(State::Unknown, &why);
    };
    reading
        .found
        .into_iter()
        .map(|found| {
            let mut draft = raw.draft(found.metric, found.unit);
            draft.0.value = found.value;
            draft.0.state = found.state;
            draft.0.detail = found.detail;
            if test.beside > 0 {
                let beside = format!("beside {} other pairs at the same time", test.beside);
                draft.0.detail =
                    Some(draft.0.detail.map_or(beside.clone(), |said| format!("{said}; {beside}")));
            }
            draft.0.evidence = Some(match found.pointer {
                Some(pointer) => file.at(pointer),
                None => file.evidence.clone(),
            });
            with(draft.params(&found.params)).tool(&reading.tool).done()
        })
        .collect()
}

/// ping's summary (iputils, busybox): loss in percent and round-trip times; none without a summary.
fn ping(text: &str) -> Option<Reading> {
    const STAGE: &str = "network";
    let mut found = Vec::new();
    let mut lost = false;
    for (index, line) in tools::ended(text).enumerate() {
        let at = format!("line:{}", index + 1);
        if line.contains("packets transmitted") {
            let percent = line.split(',').find_map(|part| part.trim().split_once("% packet loss"));
            let percent: f64 = percent?.0.parse().ok()?;
            lost = percent >= 100.0;
            found.push(Found::value(STAGE, "ping_loss", "percent", percent).at(at));
        } else if let Some((names, values)) = line.split_once(" = ")
            && let Some(names) = names.split_whitespace().last()
            && names.starts_with("min/avg/max")
        {
            let values = values.split_whitespace().next().unwrap_or_default();
            for (name, value) in names.split('/').zip(values.split('/')) {
                let stat = match name {
                    "min" => "min",
                    "avg" => "average",
                    "max" => "max",
                    _ => continue,
                };
                let value: f64 = value.parse().ok()?;
                found.push(Found::value(STAGE, "ping_rtt", "ms", value).param("stat", stat).at(at.clone()));
            }
        }
    }
    if lost {
        found.push(Found::none(STAGE, "ping_rtt", "ms", State::Unknown, "no packet came back"));
    }
    let tool = "ping".to_owned();
    (!found.is_empty()).then_some(Reading { format: "ping", tool, found })
}

/// `iperf3 -c ... -J`: what the receiver got; none without a document.
#[must_use]
pub fn iperf3(text: &str) -> Option<Reading> {
    const STAGE: &str = "network";
    let value: Value = serde_json::from_str(text).ok()?;
    let version = value["start"]["version"].as_str().unwrap_or("iperf3").to_owned();
    let found = match (value["error"].as_str(), value["end"]["sum_received"]["bits_per_second"].as_f64()) {
        (Some(error), _) => Found::none(STAGE, "tcp_bandwidth", "Gb/s", State::Unknown, error),
        (None, Some(bits)) if bits > 0.0 => {
            let found = Found::value(STAGE, "tcp_bandwidth", "Gb/s", bits / 1e9)
                .at("/end/sum_received/bits_per_second");
            match value["end"]["sum_sent"]["retransmits"].as_u64() {
                Some(count) => found.remark(format!("{count} retransmits")),
                None => found,
            }
        }
        _ => Found::none(STAGE, "tcp_bandwidth", "Gb/s", State::Unknown, "nothing was transferred"),
    };
    Some(Reading { format: "iperf3 JSON", tool: version, found: vec![found] })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(reading: &Reading) -> Vec<(&str, Option<f64>)> {
        reading.found.iter().map(|found| (found.metric, found.value)).collect()
    }

    #[test]
    fn ping_of_iputils_and_busybox() {
        let iputils = "PING 127.0.0.1 (127.0.0.1) 56(84) bytes of data.\n\
            64 bytes from 127.0.0.1: icmp_seq=1 ttl=64 time=0.036 ms\n\n\
            --- 127.0.0.1 ping statistics ---\n\
            10 packets transmitted, 9 received, +1 errors, 10% packet loss, time 1836ms\n\
            rtt min/avg/max/mdev = 0.021/0.034/0.055/0.009 ms\n";
        let reading = ping(iputils).unwrap();
        assert_eq!(
            values(&reading),
            [
                ("ping_loss", Some(10.0)),
                ("ping_rtt", Some(0.021)),
                ("ping_rtt", Some(0.034)),
                ("ping_rtt", Some(0.055))
            ]
        );
        assert_eq!(reading.found[0].pointer.as_deref(), Some("line:5"));
        let busybox = "3 packets transmitted, 3 packets received, 0% packet loss\n\
            round-trip min/avg/max = 0.045/0.062/0.094 ms\n";
        assert_eq!(values(&ping(busybox).unwrap())[1], ("ping_rtt", Some(0.045)));
    }

    #[test]
    fn ping_without_an_answer_has_no_round_trip() {
        let text = "--- 192.0.2.1 ping statistics ---\n\
            10 packets transmitted, 0 received, 100% packet loss, time 9208ms\n\n";
        let reading = ping(text).unwrap();
        assert_eq!(values(&reading), [("ping_loss", Some(100.0)), ("ping_rtt", None)]);
        assert_eq!(ping("ping: nosuch: Name or service not known\n"), None);
    }

    #[test]
    fn iperf3_counts_what_was_received() {
        let text = r#"{"start": {"version": "iperf 3.12"}, "intervals": [],
            "end": {"sum_sent": {"bits_per_second": 9.41e9, "retransmits": 12},
                    "sum_received": {"bits_per_second": 9.38e9}}}"#;
        let reading = iperf3(text).unwrap();
        assert_eq!(values(&reading), [("tcp_bandwidth", Some(9.38))]);
        assert_eq!(reading.found[0].detail.as_deref(), Some("12 retransmits"));
        let refused = r#"{"start": {}, "intervals": [], "end": {},
            "error": "unable to connect to server: Connection refused"}"#;
        let reading = iperf3(refused).unwrap();
        assert_eq!(reading.found[0].state, State::Unknown);
        assert!(reading.found[0].detail.as_deref().unwrap().contains("refused"));
        assert_eq!(iperf3("iperf3: error"), None);
    }

    /// What the suite wrote and the programs said, to records: each test of the list becomes records or says why not.
    #[test]
    fn the_list_of_tests_becomes_records() {
        use super::super::StageState;
        use super::super::tests::{collected, find};
        let tests = r#"[
            {"tool":"ib_write_bw","node":"n1","peer":"n2","device":"mlx5_0","memory":"gpu","outcome":"ran","code":0,
             "file":"002-ib_write_bw.out","command":"ib_write_bw -d mlx5_0 --use_cuda=0 10.0.0.2"},
            {"tool":"ib_write_bw","node":"n1","peer":"n2","device":"mlx5_1","memory":"host","outcome":"ran","code":124,
             "file":"003-ib_write_bw.out"},
            {"tool":"ib_write_lat","node":"n1","peer":"n2","outcome":"unavailable","why":"ib_write_lat is not installed on n2"},
            {"tool":"ping","node":"n1","peer":"n2","outcome":"ran","code":0,"file":"000-ping.out"},
            {"tool":"iperf3","node":"n1","peer":"n2","outcome":"left","why":"the stage's time was up"},
            {"tool":"nvbandwidth","node":"n2","outcome":"ran","code":1,"file":"nvbandwidth-n2.json"}]"#;
        let perftest = "                    RDMA_Write BW Test\n\
            ---------------------------------------------------------------------------------------\n \
            #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n \
            8388608    1000             392.10             391.87               0.005840\n\
            ---------------------------------------------------------------------------------------\n";
        let ping = "10 packets transmitted, 10 received, 0% packet loss, time 1836ms\n\
            rtt min/avg/max/mdev = 0.021/0.034/0.055/0.009 ms\n";
        let files = [
            ("tests.json", tests),
            ("002-ib_write_bw.out", perftest),
            ("003-ib_write_bw.out", "waiting for client\n"),
            ("000-ping.out", ping),
        ];
        let (_dir, records) = collected("network", StageState::Done, &files);
        let rdma = find(&records, "rdma_bandwidth", &[("device", "mlx5_0"), ("stat", "average")]);
        assert_eq!((rdma.value, rdma.unit.as_str()), (Some(391.87), "Gb/s"));
        assert_eq!(rdma.params["memory"].to_string(), "gpu");
        assert_eq!(rdma.params["peer"].to_string(), "n2");
        assert_eq!(rdma.subject.node.as_deref(), Some("n1"));
        assert!(rdma.command.as_deref().unwrap().contains("--use_cuda=0"));
        assert_eq!(rdma.evidence.as_ref().unwrap().file, "raw/network/002-ib_write_bw.out");
        let stopped = find(&records, "rdma_bandwidth", &[("device", "mlx5_1")]);
        assert!(stopped.detail.as_deref().unwrap().contains("stopped at its time limit"), "{stopped:?}");
        assert_eq!(find(&records, "rdma_latency", &[]).state, State::Unavailable);
        assert_eq!(find(&records, "ping_loss", &[]).value, Some(0.0));
        assert_eq!(find(&records, "ping_rtt", &[("stat", "max")]).value, Some(0.055));
        let late = find(&records, "tcp_bandwidth", &[]);
        assert_eq!((late.state, late.detail.as_deref()), (State::Unknown, Some("the stage's time was up")));
        let silent = find(&records, "copy_bandwidth", &[]);
        assert!(
            silent.detail.as_deref().unwrap().contains("exit code 1 and printed no result"),
            "{silent:?}"
        );

        let (_dir, records) = collected("network", StageState::Done, &[("tests.json", "[{")]);
        assert!(!records.is_empty() && records.iter().all(|record| record.state == State::Unknown));
        let (_dir, records) = collected("network", StageState::Unavailable, &[]);
        assert!(!records.is_empty() && records.iter().all(|record| record.state == State::Unavailable));
    }
}
