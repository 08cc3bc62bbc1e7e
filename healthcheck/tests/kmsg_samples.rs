//! Kernel-log lines as they are seen in the field, against what each has to mean. The samples are in `data/kmsg`.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use healthcheck::kmsg::{Batch, Continuation, Reader, Record, parse_log_line, parse_record};
use healthcheck::verdict::{Action, Fault};
use healthcheck::xid::{
    Drain, Fold, KernelEvent, Kind, Policy, Scanner, Severity, Text, Word, events, fold, policy,
};
use proptest::prelude::*;

fn sample(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/kmsg").join(name)
}

fn text(name: &str) -> String {
    fs::read_to_string(sample(name)).unwrap()
}

/// Events of a log by line number, from 1.
fn scan(log: &str) -> BTreeMap<usize, KernelEvent> {
    let (mut scanner, mut found) = (Scanner::default(), BTreeMap::new());
    for (index, line) in log.lines().enumerate() {
        scanner.push(&parse_log_line(line).record, |event| {
            assert!(found.insert(index + 1, event).is_none(), "two events on one line: {line}");
        });
    }
    found
}

/// Rows of an expected file: column name to content.
fn rows(name: &str) -> Vec<BTreeMap<String, String>> {
    let content = text(name);
    let mut lines = content.lines();
    let header: Vec<&str> = lines.next().unwrap().split('\t').collect();
    lines
        .map(|line| {
            let cells = line.split('\t').chain(std::iter::repeat(""));
            header.iter().zip(cells).map(|(h, c)| ((*h).to_string(), c.to_string())).collect()
        })
        .collect()
}

/// What the words in the column `expect` ask of the policy.
fn check_meaning(line: &str, expect: &str, event: &KernelEvent) {
    let p: Policy = policy(event);
    let drain = match expect {
        _ if expect.starts_with("drain with gpu-count check") => Drain::IfState,
        _ if expect.starts_with("drain only with recovery action") => Drain::IfState,
        _ if expect.starts_with("drain") || expect.contains("fatal text -> drain") => Drain::Yes,
        _ if expect.contains("after_job") => Drain::AfterJob,
        // "warn" for Xid 63 is the same rule as in the row before it.
        "warn" if event.code() == Some(63) => Drain::AfterJob,
        _ if expect.starts_with("no drain") || expect.starts_with("ignore") || expect.starts_with("warn") => {
            Drain::No
        }
        _ => panic!("line {line}: {expect} is not understood"),
    };
    assert_eq!(p.drain, drain, "line {line}: {expect}: {p:?}");
    for (words, action) in [
        ("drain: reset", Action::ResetGpu),
        ("drain: reboot", Action::Reboot),
        ("drain: gpu init failed", Action::Reboot),
    ] {
        if expect.starts_with(words) {
            assert_eq!((p.action, p.fault), (action, Fault::Hardware), "line {line}: {expect}");
        }
    }
    if expect.contains("(app)") {
        assert_eq!((p.action, p.fault), (Action::TellUser, Fault::Program), "line {line}: {expect}");
    }
    if expect.starts_with("ignore") {
        assert!(p.severity <= Severity::Warn && p.action <= Action::TellUser, "line {line}: {expect}");
    }
    if expect.starts_with("warn") {
        assert_eq!(p.severity, Severity::Warn, "line {line}: {expect}");
    }
}

#[test]
fn every_xid_line_means_what_is_expected() {
    let found = scan(&text("kmsg-xid.log"));
    let expected = rows("kmsg-xid.expected.tsv");
    let mut seen = Vec::new();
    for row in &expected {
        let line = &row["line"];
        if row["expect"] == "context" || row["expect"].starts_with("map ") {
            assert!(!found.contains_key(&line.parse().unwrap()), "line {line}");
            continue;
        }
        // The three-line message is complete, and so an event, with its third line.
        let at: usize = if line == "28" { 30 } else { line.parse().unwrap() };
        let event = found.get(&at).unwrap_or_else(|| panic!("no event on line {at}"));
        seen.push(at);
        let pci = Some(row["bdf"].as_str()).filter(|b| !b.is_empty());
        assert_eq!(event.pci.as_deref(), pci, "line {line}");
        match &event.kind {
            Kind::Xid { code, pid, name, gi, ci, parent } => {
                assert_eq!(code.to_string(), row["xid"], "line {line}");
                let known = |cell: &str| Some(cell.to_string()).filter(|c| !c.is_empty() && c != "<unknown>");
                assert_eq!(pid.map(|p| p.to_string()), known(&row["pid"]), "line {line}");
                assert_eq!(*name, known(&row["name"]), "line {line}");
                assert_eq!(*gi, row["gi"].parse().ok(), "line {line}");
                assert_eq!(*ci, row["ci"].parse().ok(), "line {line}");
                assert_eq!(*parent, (line == "13").then_some(95), "line {line}");
                assert_eq!(event.token(), format!("xid{code}"));
            }
            Kind::Text(_) => assert_eq!(row["xid"], "", "line {line}"),
            Kind::Sxid { .. } | Kind::Line { .. } => panic!("line {line}: {event:?}"),
        }
        assert!(!event.synthetic);
        check_meaning(line, &row["expect"], event);
    }
    assert_eq!(seen, found.keys().copied().collect::<Vec<_>>(), "events that nobody expects");
    assert_eq!(found[&26].kind, Kind::Text(Text::OffBus));
    assert_eq!(found[&30].kind, Kind::Text(Text::OffBusAtProbe));
    assert_eq!(found[&41].kind, Kind::Text(Text::GspReset));
}

#[test]
fn every_switch_line_means_what_is_expected() {
    let found = scan(&text("kmsg-sxid.log"));
    for row in rows("kmsg-sxid.expected.tsv") {
        let (line, expect) = (&row["line"], &row["expect"]);
        let event = found.get(&line.parse().unwrap());
        if row["word"].is_empty() {
            assert!(expect.starts_with("detail line") && event.is_none(), "line {line}");
            continue;
        }
        let event = event.unwrap_or_else(|| panic!("no event on line {line}"));
        let Kind::Sxid { code, switch, link, word } = event.kind else { panic!("line {line}: {event:?}") };
        assert_eq!(code.to_string(), row["sxid"], "line {line}");
        assert_eq!(link.map(|l| l.to_string()).unwrap_or_default(), row["link"], "line {line}");
        assert!(switch.is_some() && event.pci.as_deref().is_some_and(|p| p.len() == "0000:c3:00".len()));
        let p = policy(event);
        match word {
            Some(Word::Fatal) => {
                assert_eq!((row["word"].as_str(), expect.as_str()), ("Fatal", "fatal"));
                assert_eq!((p.severity, p.drain), (Severity::Fatal, Drain::Yes), "line {line}");
                assert!(p.action >= Action::RestartService);
            }
            Some(Word::NonFatal) => {
                assert_eq!(row["word"], "Non-fatal");
                let severity = if expect.starts_with("ignore") { Severity::Info } else { Severity::Warn };
                assert_eq!(
                    (p.severity, p.drain, p.action),
                    (severity, Drain::No, Action::None),
                    "line {line}"
                );
            }
            Some(Word::Correctable) => {
                assert_eq!((row["word"].as_str(), expect.as_str()), ("Correctable", "ignore"));
                assert_eq!((p.severity, p.drain, p.action), (Severity::Info, Drain::No, Action::None));
            }
            None => panic!("line {line}: no word"),
        }
    }
}

#[test]
fn other_logs_raise_nothing() {
    for name in ["kmsg-benign.log", "net-userland.log"] {
        assert_eq!(scan(&text(name)), BTreeMap::new(), "{name}");
    }
}

fn read(path: &Path) -> (Vec<Record>, Batch) {
    let mut records = Vec::new();
    let deadline = Instant::now() + Duration::from_secs(60);
    let batch = Reader::open(path, "boot").unwrap().read_from(None, deadline, |r| records.push(r)).unwrap();
    (records, batch)
}

#[test]
fn raw_records_are_read_with_their_gap() {
    let (records, batch) = read(&sample("kmsg-raw-records.txt"));
    assert_eq!((batch.records, batch.lost, batch.malformed, batch.complete), (8, 92, 0, true));
    let seqs: Vec<u64> = records.iter().map(|r| r.seq).collect();
    assert_eq!(seqs, [1201, 1202, 1203, 1204, 1205, 1206, 1207, 1300]);
    assert_eq!(
        records[2].dict,
        [
            ("SUBSYSTEM".to_string(), "pci".to_string()),
            ("DEVICE".to_string(), "+pci:0000:12:00.0".to_string())
        ]
    );
    assert_eq!((records[3].continuation, records[4].continuation), (Continuation::First, Continuation::Next));
    assert_eq!((records[5].facility, records[5].level), (1, 3));
    assert_eq!(records[6].text, "odd bytes \u{1b}[31m and \\ and utf-8 é");
    assert_eq!(records[7].caller.as_deref(), Some("T1234"));

    let (mut scanner, mut found) = (Scanner::default(), Vec::new());
    records.iter().for_each(|r| scanner.push(r, |e| found.push(e)));
    let short: Vec<(u64, String, Option<&str>, bool)> =
        found.iter().map(|e| (e.seq, e.token(), e.pci.as_deref(), e.synthetic)).collect();
    assert_eq!(
        short,
        [
            (1201, "xid79".to_string(), Some("0000:18:00"), false),
            (1202, "xid31".to_string(), Some("0000:2a:00"), false),
            (1203, "niccable".to_string(), Some("0000:12:00"), false),
            (1205, "gpuprobe".to_string(), Some("0000:b3:00"), false),
            (1206, "xid79".to_string(), Some("0000:18:00"), true),
            (1300, "xid95".to_string(), Some("0000:18:00"), false),
        ]
    );
}

#[test]
fn one_event_looks_the_same_in_every_rendering() {
    let content = text("log-formats.txt");
    let (other, lines): (Vec<&str>, Vec<&str>) =
        content.lines().filter(|l| !l.starts_with('#')).partition(|l| l.contains("\"MESSAGE\":["));
    assert_eq!((lines.len(), other.len()), (8, 1));
    for line in lines {
        let parsed = parse_log_line(line);
        let found = events(&parsed.record);
        assert_eq!(found.len(), 1, "{line}");
        assert_eq!((found[0].code(), found[0].pci.as_deref()), (Some(79), Some("0000:86:00")), "{line}");
        assert_eq!(
            found[0].text,
            "NVRM: Xid (PCI:0000:86:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
        );
        assert!(!found[0].synthetic, "{line}");
        assert!(parsed.time.is_some() || parsed.record.usec == 100_123_456, "no time: {line}");
    }
    // A message that is not UTF-8 is read; this one is no event.
    let parsed = parse_log_line(other[0]);
    assert_eq!(parsed.record.text, "NVRM: Xid \u{fffd}");
    assert!(events(&parsed.record).is_empty());
}

#[test]
fn twenty_nine_faults_are_found_among_a_hundred_thousand_lines() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kmsg");
    let mut log = String::new();
    let mut faults = 0;
    for seq in 0..100_000_u32 {
        let message = if seq % 3_500 == 17 {
            faults += 1;
            format!("NVRM: Xid (PCI:0000:{:02x}:00): 79, pid=1, name=x, GPU has fallen off the bus.", faults)
        } else if seq % 2 == 0 {
            // The flood: one device, one code.
            format!(
                "NVRM: Xid (PCI:0000:fe:00): 95, pid=7, name=x, Uncontained: LTC TAG (0x{seq:x},0x1). RST: Yes"
            )
        } else {
            format!("mlx5_core 0000:12:00.0: noise {seq}")
        };
        writeln!(log, "3,{seq},{},-;{message}", seq * 50).unwrap();
    }
    fs::write(&path, log).unwrap();
    let (mut scanner, mut counts) = (Scanner::default(), Fold::default());
    let deadline = Instant::now() + Duration::from_secs(60);
    let batch = Reader::open(&path, "boot")
        .unwrap()
        .read_from(None, deadline, |r| scanner.push(&r, |e| counts.add(e)))
        .unwrap();
    assert_eq!((batch.records, batch.lost, counts.overflow()), (100_000, 0, 0));
    let folded = counts.finish();
    assert_eq!(folded.iter().filter(|f| f.event.code() == Some(79)).count(), 29);
    assert_eq!(faults, 29);
    let flood: Vec<u64> = folded.iter().filter(|f| f.event.code() == Some(95)).map(|f| f.count).collect();
    assert_eq!(flood.len(), 1);
    assert!(flood[0] > 49_000);
}

#[test]
fn pitfall_7_a_storm_of_channel_removals_drains_nothing_and_names_its_cause() {
    let mut storm = Vec::new();
    for device in 0..8 {
        for channel in 0..84 {
            let text = format!(
                "NVRM: Xid (PCI:0000:{device:02x}:00): 45, pid=1496201, name=job-a, channel 0x{channel:08x} caused by previous Xid 95"
            );
            storm.extend(events(&Record { text, ..Record::default() }));
        }
    }
    assert_eq!(storm.len(), 672);
    let folded = fold(storm);
    assert_eq!(folded.len(), 8);
    for f in folded {
        assert_eq!(f.count, 84);
        assert_eq!(policy(&f.event).drain, Drain::No);
        assert!(matches!(f.event.kind, Kind::Xid { code: 45, parent: Some(95), .. }));
    }
}

proptest! {
    #[test]
    fn no_record_makes_the_scanner_panic(
        head in "(NVRM: |nvidia-nvswitch[0-9]{0,3}: SXid \\(PCI:0000:05:00.0\\): |\\[ ?[0-9.]{1,8}\\] ){0,2}",
        middle in "(Xid \\(PCI:|Xid \\(|GPU |GPU at |The NVIDIA GPU |Rate limiting GSP RPC error prints for GPU at )?([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}(\\.[0-7])?)?(\\): [0-9]{1,11}, )?",
        tail in ".{0,60}",
        lines in 1_usize..4,
    ) {
        let one = format!("{head}{middle}{tail}");
        let text = vec![one; lines].join("\n");
        let record = Record { text, ..Record::default() };
        for event in events(&record) {
            prop_assert!(event.token().len() <= 10 && event.token().is_ascii());
            prop_assert!(policy(&event).drain != Drain::Decode);
            let json = serde_json::to_string(&event).unwrap();
            prop_assert_eq!(serde_json::from_str::<KernelEvent>(&json).unwrap(), event);
        }
    }

    #[test]
    fn the_code_and_device_survive_any_process_name(
        code in 1_u32..200, bus in 0_u8..=255, pid in 1_u32..4_194_304, name in ".{0,15}", rest in "[ -~]{0,40}",
    ) {
        let text = format!("NVRM: Xid (PCI:0000:{bus:02x}:00): {code}, pid={pid}, name={name}, {rest}");
        let raw = Record { text, ..Record::default() }.encode();
        let found = events(&parse_record(raw.as_bytes()).unwrap());
        prop_assert_eq!(found.len(), 1);
        let expected = format!("0000:{bus:02x}:00");
        prop_assert_eq!((found[0].code(), found[0].pci.as_deref()), (Some(code), Some(expected.as_str())));
        let pid_is_right = matches!(found[0].kind, Kind::Xid { pid: Some(p), .. } if p == pid);
        prop_assert!(pid_is_right);
    }

    #[test]
    fn a_process_name_never_decides_a_drain(
        code in prop_oneof![Just(13_u32), Just(31), Just(43), Just(45), Just(69), Just(145)],
        name in "(Fatal|SAW Fatal|\\): 79,|\\n|NVRM|154|, | |XC0|i0|Link|\\(0x1|\\(){0,6}",
    ) {
        let name: String = name.chars().take(15).collect();
        let rest = if code == 145 {
            "RLW_REMAP Nonfatal XC0 i0 Link 00 (0x00000004 0x00000001 0x0 0x0)"
        } else {
            "Ch 00000008, intr 00000000."
        };
        let text = format!("NVRM: Xid (PCI:0000:18:00): {code}, pid=9, name={name}, {rest}");
        for event in events(&Record { text, ..Record::default() }) {
            prop_assert_eq!(policy(&event).drain, Drain::No, "{}", event.text);
        }
    }
}
