//! Lines, their meaning, and floods.

use super::fold::FOLD_MAX;
use super::policy::{TABLE, parse_row, table};
use super::read::{PROBE_USEC, TEXT_BYTES_MAX};
use super::*;
use crate::kmsg::Record;
use crate::verdict::{Action, Fault};

fn parse(text: &str) -> Vec<KernelEvent> {
    events(&Record { text: text.into(), ..Record::default() })
}

fn one(text: &str) -> KernelEvent {
    let mut found = parse(text);
    assert_eq!(found.len(), 1, "{text}: {found:?}");
    found.remove(0)
}

fn meaning(text: &str) -> (Drain, Action, Severity) {
    let p = policy(&one(text));
    (p.drain, p.action, p.severity)
}

#[test]
fn every_row_of_the_table_is_read_and_sound() {
    let rows: Vec<&str> =
        TABLE.lines().filter(|l| !l.starts_with('#') && !l.starts_with("kind\t") && !l.is_empty()).collect();
    for line in &rows {
        assert!(parse_row(line).is_some(), "not understood: {line}");
        assert_eq!(line.split('\t').count(), 9, "{line}");
    }
    assert_eq!(table().len(), rows.len(), "a code appears twice");
    let mut tokens = std::collections::HashSet::new();
    for ((kind, code), p) in table() {
        assert!(!p.token.is_empty() && p.token.len() <= 10, "{p:?}");
        assert!(p.token.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit()), "{p:?}");
        assert!(tokens.insert(p.token), "token twice: {p:?}");
        assert!(!p.name.is_empty() && !p.name.contains(' '), "{p:?}");
        assert!((5..=60).contains(&p.text.len()) && p.text.is_ascii(), "{p:?}");
        assert!(!p.text.contains(['"', '\'', ';', '`']), "{p:?}");
        match kind {
            Table::Xid => assert_eq!(p.token, format!("xid{code}")),
            Table::Sxid => assert_eq!(p.token, format!("sxid{code}")),
            Table::Text | Table::Recovery | Table::Line => {}
        }
        // Who is told, and who drains, agree.
        assert_eq!(
            p.action == Action::TellUser,
            p.fault == Fault::Program && p.action != Action::None,
            "{p:?}"
        );
        if p.fault == Fault::Program {
            assert_eq!(p.drain, Drain::No, "{p:?}");
        }
        if p.drain == Drain::Yes {
            assert!(p.action >= Action::RestartService && p.severity >= Severity::Error, "{p:?}");
        }
        if p.severity == Severity::Info {
            assert_eq!(p.drain, Drain::No, "{p:?}");
        }
    }
    let count = |kind| table().keys().filter(|k| k.0 == kind).count();
    assert_eq!([Table::Xid, Table::Sxid, Table::Recovery, Table::Text].map(count), [176, 399, 6, 7]);
}

#[test]
fn no_code_is_left_to_decode_and_none_of_the_programs_faults_drains() {
    for (kind, code) in table().keys() {
        let line = match kind {
            Table::Xid => format!("NVRM: Xid (PCI:0000:18:00): {code}, pid=1, name=a, something"),
            Table::Sxid => format!("nvidia-nvswitch0: SXid (PCI:0000:18:00.0): {code}, something"),
            Table::Text | Table::Recovery | Table::Line => continue,
        };
        let e = one(&line);
        let p = policy(&e);
        assert_ne!(p.drain, Drain::Decode, "{line}");
        assert_eq!(p.token, e.token());
    }
    for code in [13, 31, 43, 45, 68, 69] {
        let p = policy(&one(&format!("NVRM: Xid (PCI:0000:18:00): {code}, pid=1, name=a, b")));
        assert_eq!((p.action, p.drain, p.fault), (Action::TellUser, Drain::No, Fault::Program), "{code}");
    }
    for code in [48, 62, 64, 95, 119, 120, 140, 143] {
        let p = policy(&one(&format!("NVRM: Xid (PCI:0000:18:00): {code}, b")));
        assert_eq!((p.action, p.drain, p.fault), (Action::ResetGpu, Drain::Yes, Fault::Hardware), "{code}");
    }
    for code in [109, 155, 159] {
        assert_eq!(meaning(&format!("NVRM: Xid (PCI:0000:18:00): {code}, b")).0, Drain::IfState, "{code}");
    }
    for code in [63, 94, 156] {
        assert_eq!(meaning(&format!("NVRM: Xid (PCI:0000:18:00): {code}, b")).0, Drain::AfterJob, "{code}");
    }
    assert_eq!(meaning("NVRM: Xid (PCI:0000:18:00): 54, b"), (Drain::Yes, Action::Repair, Severity::Fatal));
    assert_eq!(meaning("NVRM: Xid (PCI:0000:18:00): 121, b").0, Drain::No);
}

#[test]
fn a_code_that_the_table_lacks_is_a_warning() {
    let e = one("NVRM: Xid (PCI:0000:18:00): 4242, pid=1, name=a, new thing");
    let p = policy(&e);
    assert_eq!((p.severity, p.drain, p.action), (Severity::Warn, Drain::No, Action::None));
    assert_eq!(e.token(), "xid4242");
    assert_eq!(e.summary(), "Xid 4242: a code that this version does not know");
    assert_eq!(one("NVRM: Xid (PCI:0000:18:00): 4294967295, x").token(), "xid4294967");
    assert!(parse("NVRM: Xid (PCI:0000:18:00): 4294967296, x").is_empty());
    let p = policy(&one("nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 99999, Fatal, Link 62 new"));
    assert_eq!((p.severity, p.drain, p.action), (Severity::Fatal, Drain::Yes, Action::RestartService));
    assert_eq!(p.token, "sxid");
}

#[test]
fn recovery_action_is_authoritative() {
    let line = |text: &str| format!("NVRM: Xid (PCI:0008:01:00): 154, {text}");
    let from = "GPU recovery action changed from 0x0 (None) to";
    for (text, value, drain, action) in [
        ("0x0 (None)", 0, Drain::No, Action::None),
        ("0x1 (GPU Reset Required)", 1, Drain::Yes, Action::ResetGpu),
        ("0x1 (PF FLR)", 1, Drain::Yes, Action::ResetGpu),
        ("0x2 (Node Reboot Required)", 2, Drain::Yes, Action::Reboot),
        ("0x2 (OS Reboot)", 2, Drain::Yes, Action::Reboot),
        ("0x3 (Drain P2P)", 3, Drain::Yes, Action::ResetGpu),
        ("0x4 (Drain and Reset)", 4, Drain::Yes, Action::ResetGpu),
        ("0x5 (Recover IMEX)", 5, Drain::No, Action::RestartService),
        ("GPU Reset Required", 1, Drain::Yes, Action::ResetGpu),
        ("(OS Reboot)", 2, Drain::Yes, Action::Reboot),
    ] {
        let e = one(&line(&format!("{from} {text}")));
        assert_eq!(recovery_action(&e), Some(value), "{text}");
        let p = policy(&e);
        assert_eq!((p.drain, p.action, p.token), (drain, action, "xid154"), "{text}");
    }
    // Back to none after a reset, with a process in the line.
    let e = one(
        "NVRM: Xid (PCI:0008:01:00): 154, pid=7, name=x, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)",
    );
    assert_eq!(recovery_action(&e), Some(0));
    // Not understood: look at the state.
    for text in ["GPU recovery action changed from 0x0 (None) to 0x9 (Throw Away)", "something else", ""] {
        assert_eq!(meaning(&line(text)).0, Drain::IfState, "{text}");
    }
    assert_eq!(recovery_action(&one("NVRM: Xid (PCI:0008:01:00): 79, x")), None);
}

#[test]
fn nvlink_registers_decide() {
    let line = |text: &str| {
        format!("NVRM: Xid (PCI:0003:00:00): 74, pid='<unknown>', name=<unknown>, NVLink: {text}")
    };
    let non_fatal = |first: &str| {
        line(&format!("non-fatal error detected on link 3({first}, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)"))
    };
    let fatal = line("fatal error detected on link 14(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)");
    assert_eq!(meaning(&fatal), (Drain::Yes, Action::ResetGpu, Severity::Fatal));
    for bits in ["0x800000", "0x1", "0x40000000", "0x40800001"] {
        assert_eq!(meaning(&non_fatal(bits)), (Drain::No, Action::None, Severity::Info), "{bits}");
    }
    for bits in ["0x2", "0x100000", "0x900002"] {
        assert_eq!(meaning(&non_fatal(bits)), (Drain::No, Action::None, Severity::Warn), "{bits}");
    }
    for bits in ["0x10", "0x100", "0x200000", "0x8800000", "0x0", "0xffffffff"] {
        assert_eq!(meaning(&non_fatal(bits)), (Drain::IfState, Action::ResetGpu, Severity::Error), "{bits}");
    }
    for registers in ["0x800000, 0x0, 0x4, 0x0", "0x800000, 0x0, 0x0, 0x1", "0x800000, 0x0, 0x0, 0x0, 0x8"] {
        let text = line(&format!("non-fatal error detected on link 3({registers})"));
        assert_eq!(meaning(&text).0, Drain::IfState, "{registers}");
    }
    // The second register is not explained by the catalogue.
    assert_eq!(meaning(&line("non-fatal error detected on link 3(0x800000, 0x7, 0x0)")).0, Drain::No);
    for text in ["", "non-fatal error detected on link 3", "x (a, b)", "x ()", "x (0x1, zz)"] {
        assert_eq!(meaning(&line(text)).0, Drain::IfState, "{text}");
    }
}

#[test]
fn pitfall_9_nvlink5_words_decide() {
    let line = |text: &str| format!("NVRM: Xid (PCI:0018:01:00): {text}");
    for text in [
        "145, RLW_CTRL Nonfatal XC0 i0 Link 00 (0x00000003 0x80000000 0x00000000 0x00000000)",
        "149, NETIR_LINK_DOWN Nonfatal XC1 i2 Link 17 (0xdeadbeef)",
        "145, pid=9, name=a, RLW_SRC_TRACK Non-fatal XC1 i0 Link 3 (0x1 0x2)",
        // A process that calls itself "SAW Fatal XC0": the driver's own word stands next to the link.
        "145, pid=9, name=SAW Fatal XC0, RLW_REMAP Nonfatal XC0 i0 Link 00 (0x4 0x1)",
        "145, pid=9, name=, , (0x1, RLW_REMAP Nonfatal XC0 i0 Link 00 (0x4 0x1)",
        "145, pid=9, name=a, Fatal i0, RLW_REMAP Nonfatal XC0 i0 Link 00 (0x4 0x1)",
    ] {
        assert_eq!(meaning(&line(text)), (Drain::No, Action::None, Severity::Warn), "{text}");
    }
    for text in [
        "144, SAW_MVB Fatal XC0 i0 Link 03 (0x00000001 0x00000002 0x0 0x0 0x0 0x0)",
        "149, NETIR_LINK_DOWN Fatal XC0 i1 Link 17 (0x004505c6 0x0)",
        "150, MSE_WATCHDOG Fatal i0 Link 1 (0x0 0x0)",
    ] {
        assert_eq!(meaning(&line(text)), (Drain::Yes, Action::ResetGpu, Severity::Fatal), "{text}");
    }
    // Registers that no rule knows, or that leave it to Xid 154: the GPU's state decides.
    for text in [
        "144, SAW_MVB Fatal XC0 i0 Link 03 (0x00000001 0x00001000)",
        "149, NETIR_LINK_DOWN Fatal XC0 i1 Link 17 (0x1)",
        "145, RLW_REMAP Fatal XC0 i0 Link 00 (0x4 0x1)",
    ] {
        assert_eq!(meaning(&line(text)), (Drain::IfState, Action::ResetGpu, Severity::Fatal), "{text}");
    }
    // A link taken down on purpose: the registers say that nothing is to be done.
    assert_eq!(
        meaning(&line("149, NETIR_LINK_DOWN Fatal XC0 i1 Link 17 (0x02600011 0x0)")),
        (Drain::No, Action::None, Severity::Warn)
    );
    for text in
        ["147, something", "147, Fatal", "147, pid=1, name=Fatal, x", "147, TREX Fatal mistake here (0x1)"]
    {
        assert_eq!(meaning(&line(text)), (Drain::IfState, Action::ResetGpu, Severity::Warn), "{text}");
    }
}

#[test]
fn a_switch_lines_word_wins_over_the_table() {
    let line = |text: &str| format!("nvidia-nvswitch0: SXid (PCI:0000:05:00.0): {text}");
    assert_eq!(meaning(&line("12020, Non-fatal, Link 1 x")), (Drain::No, Action::None, Severity::Warn));
    assert_eq!(meaning(&line("12020, Fatal, Link 1 x")), (Drain::Yes, Action::Reboot, Severity::Fatal));
    assert_eq!(
        meaning(&line("22013, Fatal, Link 1 x")),
        (Drain::Yes, Action::RestartService, Severity::Fatal)
    );
    assert_eq!(meaning(&line("11013, Correctable, Link 1 x")), (Drain::No, Action::None, Severity::Info));
    // No word: the table, and the state where the table leaves it open.
    assert_eq!(meaning(&line("22003, Minion halt")), (Drain::Yes, Action::Reboot, Severity::Fatal));
    assert_eq!(
        meaning(&line("26006, SOE HALTED")),
        (Drain::IfState, Action::RestartService, Severity::Error)
    );
    for detail in
        ["20034, Severity 1 Engine instance 62 Sub-engine instance 00", "20034, Data {0x10000000, 0x0}"]
    {
        assert!(parse(&line(detail)).is_empty(), "{detail}");
    }
}

#[test]
fn process_names_and_quotes_raise_nothing_of_their_own() {
    for (name, rest) in [
        ("): 79,", "Ch 1"),
        ("x): 79, pid=1", "Ch 1"),
        ("a, GPU has fall", "en off the bus"),
        ("\nNVRM: Xid (PCI", ":0000:18:00): 79, x"),
        ("a\nNVRM: GPU: ", "GPU has fallen off the bus"),
    ] {
        let e = one(&format!("NVRM: Xid (PCI:0000:18:00): 31, pid=7, name={name}, {rest}"));
        assert_eq!(e.code(), Some(31), "{name}");
        assert_eq!(policy(&e).drain, Drain::No);
    }
    for line in [
        "systemd-journald: user text: NVRM: Xid (PCI:0000:18:00): 79, quoted",
        "python3[12]: NVRM: Xid (PCI:0000:18:00): 79, quoted",
        " NVRM: Xid (PCI:0000:18:00): 79, a line starts in its first column",
        "traps: NVRM: Xid[1] trap int3",
        "RPC: xid 79 retransmitted to server 10.0.0.9",
        "nfs4: state manager: callback xid 0x4f lost",
        "dhcpcd: eth0: Xid 95 offered 10.0.0.4",
        "NVRM: Xid (whatever): 79, x",
        "NVRM: Xid (PCI:0000:18:00 evil): 79, x",
        "NVRM: Xid (PCI:0000:18:00): x79, x",
        "NVRM: Xid (PCI:0000:18:00): 79x, x",
        "NVRM: Xid (PCI:0000:18:00): , x",
        "NVRM: Xid (PCI:0000:18:00):79, x",
        "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  590.48.01",
        "NVRM: GPU at PCI:0000:18:00: GPU-00000000-1111-2222-3333-444444444401",
        "NVRM: GPU Board Serial Number: 1650000000001",
        "NVRM: The NVIDIA GPU 0000:b3:00.0 (PCI ID: 10de:1234)",
        "nvidia-nvlink: Nvlink Core is being initialized, major device number 243",
        "nvidia-nvswitch0: open (major=510)",
        "[drm] NVRM: Xid (PCI:0000:18:00): 79, x",
        "",
    ] {
        assert!(parse(line).is_empty(), "{line}");
    }
}

#[test]
fn every_spelling_of_an_xid_line_is_read() {
    for line in [
        "NVRM: Xid (PCI:0000:B3:00): 79, GPU has fallen off the bus.",
        "NVRM: Xid (PCI:0000:b3:00.0): 79, GPU has fallen off the bus.",
        "NVRM: Xid (0000:b3:00): 79, old drivers",
        "NVRM: Xid (PCI:00000000:b3:00): 79, x",
        "NVRM: Xid (PCI:0000:b3:00): 79 GPU has fallen off the bus.",
        "NVRM: Xid (PCI:0000:b3:00): 79",
        "NVRM: Xid (PCI:0000:b3:00): 79, pid=1, name=x",
        "NVRM: Xid (PCI:0000:b3:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n",
        "[6085126.134786] NVRM: Xid (PCI:0000:b3:00): 79, pid=1582259, name=nvc:[driver], GPU has fallen off the bus.",
        "NVRM: Xid (PCI:0000:b3:00): 79, pid=9, name=cmax-inject, GPU has fallen off the bus. [synthetic 7]",
    ] {
        let e = one(line);
        assert_eq!((e.code(), e.pci.as_deref()), (Some(79), Some("0000:b3:00")), "{line}");
        assert_eq!((policy(&e).drain, policy(&e).action), (Drain::Yes, Action::Reboot));
        assert_eq!(e.token(), "xid79");
    }
    let e = one(
        "NVRM: Xid (PCI:10000:b3:1f GPU-I:14 GPU-CI:2): 43, pid=5, name=nvc:[driver], channel 0x0b00000a",
    );
    assert_eq!(e.pci.as_deref(), Some("10000:b3:1f"));
    assert_eq!(e.message, "channel 0x0b00000a");
    let Kind::Xid { code: 43, pid: Some(5), name: Some(name), gi: Some(14), ci: Some(2), parent: None } =
        e.kind
    else {
        panic!("{e:?}")
    };
    assert_eq!(name, "nvc:[driver]");
}

#[test]
fn pitfall_5_texts_without_a_number_are_read() {
    for (line, text, pci) in [
        ("NVRM: GPU 0000:86:00.0: GPU has fallen off the bus.", Text::OffBus, Some("0000:86:00")),
        ("NVRM: GPU at 0000:86:00.0 has fallen off the bus.", Text::OffBus, Some("0000:86:00")),
        ("NVRM: GPU at PCI:0000:86:00: GPU has fallen off the bus.", Text::OffBus, Some("0000:86:00")),
        (
            "NVRM: GPU 0000:86:00.0: RmInitAdapter failed! (0x62:0x65:1860)",
            Text::InitFailed,
            Some("0000:86:00"),
        ),
        (
            "NVRM: GPU 0000:86:00.0: rm_init_adapter failed, device minor number 3",
            Text::InitFailed,
            Some("0000:86:00"),
        ),
        ("NVRM: RmInitAdapter failed! (0x26:0xffff:1096)", Text::InitFailed, None),
        ("NVRM: rm_init_adapter(0) failed", Text::InitFailed, None),
        (
            "NVRM: Rate limiting GSP RPC error prints for GPU at PCI:0000:86:00 (printing 1 of every 30).  The GPU likely needs to be reset.",
            Text::GspReset,
            Some("0000:86:00"),
        ),
        (
            "NVRM: nvAssertOkFailedNoLog: Assertion failed: Reset required [NV_ERR_RESET_REQUIRED] (0x00000062) returned from status @ kernel_channel.c:2874",
            Text::ResetRequired,
            None,
        ),
        (
            "NVRM: GPU0 nvCheckOkFailedNoLog: Check failed: Reset required [NV_ERR_RESET_REQUIRED] (0x00000062)",
            Text::ResetRequired,
            None,
        ),
        (
            "NVRM: nvGpuOpsReportFatalError: uvm encountered global fatal error 0x60, requiring os reboot to recover.",
            Text::UvmFatal,
            None,
        ),
        ("NVRM: The NVIDIA probe routine failed for 1 device(s).", Text::ProbeFailed, None),
    ] {
        let e = one(line);
        assert_eq!((&e.kind, e.pci.as_deref()), (&Kind::Text(text), pci), "{line}");
        assert_eq!(policy(&e).code, text as u32);
        assert_eq!(e.summary(), policy(&e).text);
    }
    assert_eq!(meaning("NVRM: x: [NV_ERR_RESET_REQUIRED]").0, Drain::IfState);
    assert!(parse("nv_err_reset: [NV_ERR_RESET_REQUIRED]").is_empty());
}

const PROBE: [&str; 3] = [
    "NVRM: The NVIDIA GPU 0000:b3:00.0",
    "NVRM: (PCI ID: 10de:2330) installed in this system has",
    "NVRM: fallen off the bus and is not responding to commands.",
];

fn scan(records: &[Record]) -> Vec<KernelEvent> {
    let (mut scanner, mut found) = (Scanner::default(), Vec::new());
    records.iter().for_each(|r| scanner.push(r, |e| found.push(e)));
    found
}

fn record(text: &str, usec: u64) -> Record {
    Record { text: text.into(), usec, ..Record::default() }
}

#[test]
fn the_three_line_message_is_one_event_with_its_device() {
    let one_record = scan(&[record(&PROBE.join("\n"), 5)]);
    let mut several: Vec<Record> = PROBE.iter().map(|l| record(l, 5)).collect();
    several.insert(1, record("mlx5_core 0000:12:00.0: something in between", 6));
    several[0].facility = 1;
    let several = scan(&several);
    for (found, synthetic) in [(&one_record, false), (&several, true)] {
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].kind, Kind::Text(Text::OffBusAtProbe));
        assert_eq!((found[0].pci.as_deref(), found[0].synthetic), (Some("0000:b3:00"), synthetic));
        assert!(
            found[0].text.ends_with("0000:b3:00.0 fallen off the bus and is not responding to commands.")
        );
        assert_eq!((policy(&found[0]).drain, policy(&found[0]).action), (Drain::Yes, Action::Reboot));
    }
    // Two devices, one after the other.
    let other = PROBE.map(|l| l.replace("b3", "b4"));
    let both: Vec<Record> =
        PROBE.iter().map(|l| record(l, 5)).chain(other.iter().map(|l| record(l, 6))).collect();
    let both: Vec<_> = scan(&both).into_iter().filter_map(|e| e.pci).collect();
    assert_eq!(both, ["0000:b3:00", "0000:b4:00"]);
}

#[test]
fn a_stale_first_line_gives_no_device() {
    for gap in [vec![record(PROBE[0], 0); 1], vec![]] {
        let mut records = gap;
        records.push(record(PROBE[2], PROBE_USEC + 1));
        let found = scan(&records);
        assert_eq!((found.len(), found[0].pci.as_deref()), (1, None));
    }
    let mut records = vec![record(PROBE[0], 0)];
    records.extend((0..20).map(|_| record("other", 1)));
    records.push(record(PROBE[2], 2));
    assert_eq!(scan(&records)[0].pci, None);
    // The first line alone is also how the driver says that it does not support a GPU.
    assert!(
        scan(&[record(PROBE[0], 0), record("NVRM: installed in this system is not supported", 0)]).is_empty()
    );
}

#[test]
fn pitfall_8_a_flood_folds_to_its_distinct_events() {
    let mut fold = Fold::default();
    for n in 0..100_000_u64 {
        let device = n % 8;
        let mut r = record(
            &format!(
                "NVRM: Xid (PCI:0000:{device:02x}:00): 95, pid='<unknown>', name=<unknown>, Uncontained: LTC TAG (0x{n:x},0x1). RST: Yes, D-RST: No"
            ),
            n,
        );
        r.seq = n;
        events(&r).into_iter().for_each(|e| fold.add(e));
    }
    let folded = fold.finish();
    assert_eq!(folded.len(), 8);
    assert!(folded.iter().all(|f| f.count == 12_500));
    assert_eq!((folded[3].event.seq, folded[3].last_seq, folded[3].last_usec), (3, 99_995, 99_995));
}

#[test]
fn fold_keeps_apart_what_means_something_else() {
    let lines = [
        "NVRM: Xid (PCI:0000:18:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)",
        "NVRM: Xid (PCI:0000:18:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)",
        "NVRM: Xid (PCI:0000:18:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)",
        "NVRM: Xid (PCI:0000:86:00): 74, NVLink: non-fatal error detected on link 3(0x800000, 0x0, 0x0)",
        "NVRM: Xid (PCI:0000:86:00): 74, NVLink: non-fatal error detected on link 4(0x10, 0x0, 0x0)",
        "NVRM: Xid (PCI:0000:86:00): 74, NVLink: non-fatal error detected on link 5(0x10, 0x0, 0x0)",
    ];
    let counts: Vec<u64> = fold(lines.iter().flat_map(|l| parse(l))).iter().map(|f| f.count).collect();
    assert_eq!(counts, [2, 1, 1, 2]);
    // A synthetic event never hides a real one.
    let mut synthetic = record(lines[0], 0);
    synthetic.facility = 1;
    assert_eq!(fold(events(&synthetic).into_iter().chain(parse(lines[0]))).len(), 2);
}

#[test]
fn fold_is_bounded_and_says_what_it_dropped() {
    let mut folded = Fold::default();
    let word = |n: u32| -> String { n.to_string().bytes().map(|b| char::from(b - b'0' + b'a')).collect() };
    // Texts of letters only, so that each is different.
    for n in 0..5_000 {
        parse(&format!("NVRM: Xid (PCI:0000:18:00): 13, {}", word(n)))
            .into_iter()
            .for_each(|e| folded.add(e));
    }
    assert_eq!((folded.order.len(), folded.overflow()), (FOLD_MAX + 1, 0));
    assert_eq!(folded.order.iter().map(|f| f.count).sum::<u64>(), 5_000);
    for n in 0..5_000 {
        parse(&format!("NVRM: Xid (PCI:0000:18:00): {}, x", 1_000 + n))
            .into_iter()
            .for_each(|e| folded.add(e));
    }
    assert_eq!(folded.order.len(), 2 * FOLD_MAX);
    assert_eq!(folded.order.iter().map(|f| f.count).sum::<u64>() + folded.overflow(), 10_000);
}

#[test]
fn long_texts_are_cut_at_a_character() {
    let e = one(&format!("NVRM: Xid (PCI:0000:18:00): 79, {}", "é".repeat(4_000)));
    assert!(e.text.len() <= TEXT_BYTES_MAX && e.message.len() <= TEXT_BYTES_MAX);
    assert!(e.text.ends_with('é'));
}

#[test]
fn pci_addresses_are_normalised() {
    for text in ["PCI:0000:86:00", "0000:86:00.0", "00000000:86:00.0", "0000:86:00"] {
        assert_eq!(normalise_pci(text).as_deref(), Some("0000:86:00"), "{text}");
    }
    assert_eq!(normalise_pci("0009:01:00.1").as_deref(), Some("0009:01:00"));
    for text in [
        "",
        "86:00.0",
        "0000:86",
        "0000:86:00.00",
        "0000:86:00.g",
        "0000:866:00",
        "000000000:86:00",
        "é:86:00",
        "0000:86:00:00",
    ] {
        assert_eq!(normalise_pci(text), None, "{text}");
    }
}
