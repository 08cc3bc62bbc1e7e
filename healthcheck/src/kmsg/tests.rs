//! Records, readers and renderings.

use std::fs::OpenOptions;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::reader::{LINE_BYTES_MAX, RECORD_BYTES, RECORD_BYTES_MAX, Ring};
use super::*;

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

/// A log device in memory: `Ok` is a record, `Err` the error number of one failing read. Like the kernel's it passes over
/// a record that does not fit.
struct Fake {
    reads: Vec<Result<String, i32>>,
    at: usize,
    seeks: usize,
}

impl Fake {
    fn ring(reads: Vec<Result<String, i32>>) -> Ring<Fake> {
        Ring::new(Fake { reads, at: 0, seeks: 0 })
    }
}

impl Read for Fake {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Some(next) = self.reads.get(self.at) else {
            return Err(io::Error::from_raw_os_error(libc::EAGAIN));
        };
        self.at += 1;
        match next {
            Err(number) => Err(io::Error::from_raw_os_error(*number)),
            Ok(text) if text.len() > buffer.len() => Err(io::Error::from_raw_os_error(libc::EINVAL)),
            Ok(text) => {
                buffer[..text.len()].copy_from_slice(text.as_bytes());
                Ok(text.len())
            }
        }
    }
}

impl Seek for Fake {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        assert_eq!(to, SeekFrom::Start(0));
        self.seeks += 1;
        self.at = 0;
        // An overrun happens once.
        self.reads.retain(Result::is_ok);
        Ok(0)
    }
}

fn record(seq: u64) -> Result<String, i32> {
    Ok(format!("6,{seq},{},-;text {seq}\n", seq * 10))
}

fn at(boot_id: &str, seq: u64) -> Cursor {
    Cursor { boot_id: boot_id.into(), seq: Some(seq), file: None }
}

fn drain(ring: &mut Ring<Fake>, cursor: Option<&Cursor>) -> (Vec<u64>, Batch) {
    let mut seen = Vec::new();
    let batch = ring.read_from("b1".into(), cursor, soon(), |r| seen.push(r.seq)).unwrap();
    assert_eq!(batch.records, seen.len() as u64);
    (seen, batch)
}

#[test]
fn a_ring_is_read_to_its_end_and_then_only_further() {
    let mut ring = Fake::ring((5..8).map(record).collect());
    let (seen, first) = drain(&mut ring, None);
    assert_eq!((seen, first.lost, first.complete, first.restarted), (vec![5, 6, 7], 0, true, false));
    assert_eq!(first.cursor, at("b1", 7));
    let (seen, second) = drain(&mut ring, Some(&first.cursor));
    assert_eq!((seen, second.cursor.clone()), (vec![], first.cursor.clone()));
    ring.source.reads.push(record(8));
    let (seen, third) = drain(&mut ring, Some(&second.cursor));
    assert_eq!((seen, third.lost), (vec![8], 0));
    assert_eq!(ring.source.seeks, 0, "an open descriptor goes on where it stands");
    // Without a cursor the same descriptor replays.
    assert_eq!(drain(&mut ring, None).0, [5, 6, 7, 8]);
}

#[test]
fn pitfall_12_a_cursor_of_this_boot_passes_over_known_records_and_counts_the_gap() {
    let reads = || (100..105).map(record).collect();
    let (seen, batch) = drain(&mut Fake::ring(reads()), Some(&at("b1", 102)));
    assert_eq!((seen, batch.lost, batch.restarted), (vec![103, 104], 0, false));
    let (seen, batch) = drain(&mut Fake::ring(reads()), Some(&at("b1", 89)));
    assert_eq!((seen.len(), batch.lost), (5, 10));
    let (seen, batch) = drain(&mut Fake::ring(reads()), Some(&at("b1", 104)));
    assert_eq!((seen.len(), batch.cursor.seq), (0, Some(104)));
}

#[test]
fn pitfall_6_a_cursor_of_another_boot_replays_everything() {
    let (seen, batch) = drain(&mut Fake::ring((0..3).map(record).collect()), Some(&at("b0", 4_000)));
    assert_eq!((seen, batch.lost, batch.restarted), (vec![0, 1, 2], 0, true));
    assert_eq!(batch.cursor, at("b1", 2));
}

#[test]
fn an_empty_ring_keeps_the_cursor() {
    let (_, batch) = drain(&mut Fake::ring(vec![]), None);
    assert_eq!(batch.cursor, Cursor { boot_id: "b1".into(), seq: None, file: None });
    assert_eq!(drain(&mut Fake::ring(vec![]), Some(&at("b1", 9))).1.cursor, at("b1", 9));
}

#[test]
fn pitfall_43_an_overrun_goes_on_and_the_lost_records_are_counted_exactly() {
    let mut reads = vec![record(1), record(2), Err(libc::EPIPE), record(95), Err(libc::EINTR), record(96)];
    reads.extend([Err(libc::EPIPE), Err(libc::EPIPE), record(200)]);
    let (seen, batch) = drain(&mut Fake::ring(reads), None);
    assert_eq!(seen, [1, 2, 95, 96, 200]);
    assert_eq!((batch.lost, batch.complete), (92 + 103, true));
}

#[test]
fn a_record_that_does_not_fit_is_read_again_with_a_larger_buffer() {
    let long = Ok(format!("6,2,20,-;{}\n", "x".repeat(5 * RECORD_BYTES)));
    let (seen, batch) = drain(&mut Fake::ring(vec![record(1), long, record(3)]), None);
    assert_eq!((seen, batch.lost, batch.malformed), (vec![1, 2, 3], 0, 0));
    let mut ring = Fake::ring(vec![Ok("x".repeat(2 * RECORD_BYTES_MAX))]);
    let error = ring.read_from("b1".into(), None, soon(), |_| {}).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
}

#[test]
fn malformed_records_are_counted_once_and_passed_over() {
    let reads = vec![record(1), Ok("garbage".into()), Ok("x,2,3,-;t\n".into()), record(3)];
    let (seen, batch) = drain(&mut Fake::ring(reads), None);
    assert_eq!((seen, batch.malformed, batch.lost), (vec![1, 3], 2, 0));
}

#[test]
fn the_deadline_ends_a_reading_that_can_be_continued() {
    let mut ring = Fake::ring((0..10).map(record).collect());
    let batch = ring.read_from("b1".into(), None, Instant::now(), |_| panic!("too late")).unwrap();
    assert_eq!((batch.complete, batch.cursor.seq), (false, None));
    assert_eq!(drain(&mut ring, Some(&batch.cursor)).0.len(), 10);
}

#[test]
fn a_failing_device_is_an_error() {
    let mut ring = Fake::ring(vec![Err(libc::EIO)]);
    assert_eq!(
        ring.read_from("b1".into(), None, soon(), |_| {}).unwrap_err().raw_os_error(),
        Some(libc::EIO)
    );
}

fn lines(path: &Path, cursor: Option<&Cursor>) -> (Vec<Record>, Batch) {
    let mut seen = Vec::new();
    let mut reader = Reader::open(path, "b1").unwrap();
    assert!(reader.fd().is_none());
    let batch = reader.read_from(cursor, soon(), |r| seen.push(r)).unwrap();
    (seen, batch)
}

fn seqs(records: &[Record]) -> Vec<u64> {
    records.iter().map(|r| r.seq).collect()
}

fn append(path: &Path, text: &str) {
    use std::io::Write as _;
    let mut file = OpenOptions::new().append(true).create(true).open(path).unwrap();
    file.write_all(text.as_bytes()).unwrap();
}

#[test]
fn a_file_is_followed_and_a_half_written_line_waits() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kmsg");
    append(
        &path,
        "# comment\n\n3,1,10,-;one\n SUBSYSTEM=pci\n DEVICE=+pci:0000:12:00.0\n3,2,20,-;two\n3,3,3",
    );
    let (seen, first) = lines(&path, None);
    assert_eq!((seqs(&seen), first.lost, first.malformed, first.complete), (vec![1, 2], 0, 0, true));
    assert_eq!(seen[0].dict[1], ("DEVICE".into(), "+pci:0000:12:00.0".into()));
    assert_eq!(lines(&path, Some(&first.cursor)).0, []);
    append(&path, "0,-;three\n3,9,90,-;nine\n");
    let (seen, second) = lines(&path, Some(&first.cursor));
    assert_eq!((seqs(&seen), second.lost, second.restarted), (vec![3, 9], 5, false));
    // The cursor survives its JSON form.
    let json = serde_json::to_string(&second.cursor).unwrap();
    let read: Cursor = serde_json::from_str(&json).unwrap();
    assert_eq!(read, second.cursor);
    assert_eq!(lines(&path, Some(&read)).0, []);
}

#[test]
fn a_file_keeps_its_place_over_a_reboot() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kmsg");
    append(&path, "3,1,10,-;one\n");
    let (_, mut batch) = lines(&path, None);
    batch.cursor.boot_id = "b0".into();
    append(&path, "3,0,10,-;after the reboot\n");
    let (seen, batch) = lines(&path, Some(&batch.cursor));
    assert_eq!((seqs(&seen), batch.lost, batch.restarted), (vec![0], 0, false));
    assert_eq!(batch.cursor.boot_id, "b1");
}

#[test]
fn a_file_that_was_cut_short_or_replaced_is_read_from_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kmsg");
    append(&path, "3,1,10,-;one\n3,2,20,-;two\n");
    let (_, first) = lines(&path, None);
    std::fs::write(&path, "3,1,10,-;new\n").unwrap();
    let (seen, second) = lines(&path, Some(&first.cursor));
    assert_eq!((seen[0].text.as_str(), second.restarted, second.lost), ("new", true, 0));
    // Cut short and grown beyond the old length, same inode.
    std::fs::write(&path, "3,1,10,-;other\n3,2,20,-;and more\n3,3,30,-;and more\n").unwrap();
    let (seen, third) = lines(&path, Some(&second.cursor));
    assert_eq!((seqs(&seen), third.restarted), (vec![1, 2, 3], true));
    // Replaced by another file with the same content.
    let new = folder.path().join("new");
    std::fs::copy(&path, &new).unwrap();
    std::fs::rename(&new, &path).unwrap();
    assert_eq!(seqs(&lines(&path, Some(&third.cursor)).0), [1, 2, 3]);
    // A cursor of /dev/kmsg says nothing about a file.
    assert_eq!(seqs(&lines(&path, Some(&at("b1", 2))).0), [1, 2, 3]);
}

#[test]
fn a_reader_kept_open_follows_the_path() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kmsg");
    append(&path, "3,1,10,-;one\n");
    let mut reader = Reader::open(&path, "b1").unwrap();
    let first = reader.read_from(None, soon(), |_| {}).unwrap();
    std::fs::remove_file(&path).unwrap();
    let error = reader.read_from(Some(&first.cursor), soon(), |_| {}).unwrap_err().to_string();
    assert!(error.contains(path.to_str().unwrap()), "{error}");
    append(&path, "3,1,10,-;eno\n3,2,20,-;two\n");
    assert_eq!(reader.read_from(Some(&first.cursor), soon(), |_| {}).unwrap().records, 2);
}

#[test]
fn a_line_too_long_is_passed_over() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kmsg");
    let long = "x".repeat(3 * LINE_BYTES_MAX as usize);
    append(&path, &format!("3,1,10,-;one\n3,2,20,-;{long}\n3,3,30,-;three\n3,4,40,-;{long}"));
    let (seen, first) = lines(&path, None);
    assert_eq!((seqs(&seen), first.malformed, first.lost), (vec![1, 3], 1, 1));
    append(&path, "\nnot a record\n3,5,50,-;five\r\n");
    let (seen, second) = lines(&path, Some(&first.cursor));
    assert_eq!((seqs(&seen), second.malformed), (vec![5], 2));
}

#[test]
fn what_cannot_be_opened_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing");
    let error = Reader::open(&missing, "b1").unwrap_err().to_string();
    assert!(
        error.starts_with(&format!("cannot open the kernel log {}: No such file", missing.display())),
        "{error}"
    );
    let error = Reader::open(folder.path(), "b1").unwrap_err().to_string();
    assert!(error.contains("neither a kernel log device nor a regular file"), "{error}");
}

#[test]
fn this_machines_kernel_log_is_read_and_continued() {
    // Needs the right to read it; the tests of the ring above do not.
    let Ok(mut reader) = Reader::open(Path::new("/dev/kmsg"), "b1") else { return };
    if reader.fd().is_none() {
        return;
    }
    let mut last = None;
    let first = reader
        .read_from(None, soon(), |r| {
            assert!(last < Some(r.seq), "{} after {last:?}", r.seq);
            last = Some(r.seq);
        })
        .unwrap();
    assert_eq!((first.cursor.seq, first.malformed, first.complete), (last, 0, true));
    // The same descriptor and a fresh one go on after the cursor.
    let mut fresh = Reader::open(Path::new("/dev/kmsg"), "b1").unwrap();
    for reader in [&mut reader, &mut fresh] {
        reader.read_from(Some(&first.cursor), soon(), |r| assert!(Some(r.seq) > last)).unwrap();
    }
}

#[test]
fn records_are_parsed_with_all_their_parts() {
    let r = parse_record(b"6,339,5140900,-,caller=T12,new=x;NET: Registered\\x0afamily \\x5c \\\\ \\xzz \\x1b\n SUBSYSTEM=acpi\n DEVICE=+acpi:PNP0A03:00\njunk\n")
        .unwrap();
    assert_eq!((r.facility, r.level, r.seq, r.usec), (0, 6, 339, 5_140_900));
    assert_eq!(r.caller.as_deref(), Some("T12"));
    assert_eq!(r.text, "NET: Registered\nfamily \\ \\ \\xzz \x1b");
    assert_eq!(r.dict, [("SUBSYSTEM".into(), "acpi".into()), ("DEVICE".into(), "+acpi:PNP0A03:00".into())]);
    let r = parse_record(b"11,1,2,c;\\xff;x").unwrap();
    assert_eq!((r.facility, r.level, r.continuation), (1, 3, Continuation::First));
    assert_eq!((r.text.as_str(), r.from_user_space()), ("\u{fffd};x", true));
    assert_eq!(parse_record(b"6,1,2,+;").unwrap().continuation, Continuation::Next);
    // A flag of a later kernel.
    assert_eq!(parse_record(b"6,1,2,z;t").unwrap().continuation, Continuation::Whole);
    for (bytes, error) in [
        (&b""[..], RecordError::NoHeader),
        (b"6,1,2,-", RecordError::NoHeader),
        (b"6,1,2,-\n;", RecordError::NoHeader),
        (b";", RecordError::Field("priority")),
        (b"-1,1,2,-;", RecordError::Field("priority")),
        (b"2048,1,2,-;", RecordError::Field("priority")),
        (b"6,;", RecordError::Field("sequence")),
        (b"6,99999999999999999999,2,-;", RecordError::Field("sequence")),
        (b"6,1, 2,-;", RecordError::Field("time")),
        (b"6,1,2;", RecordError::Field("flags")),
    ] {
        assert_eq!(parse_record(bytes), Err(error), "{}", String::from_utf8_lossy(bytes));
    }
}

#[test]
fn prefixes_of_other_tools_are_taken_off() {
    let text = "NVRM: Xid (PCI:0000:86:00): 79, GPU has fallen off the bus.";
    for (prefix, facility, usec, time) in [
        ("", 0, 0, None),
        ("[  100.123456] ", 0, 100_123_456, None),
        ("[    0.000001] ", 0, 1, None),
        ("[6085126.134786] ", 0, 6_085_126_134_786, None),
        ("<3>[  100.123456] ", 0, 100_123_456, None),
        ("<11>[  100.123456] ", 1, 100_123_456, None),
        ("[  100.123456][ T1234] ", 0, 100_123_456, None),
        ("[  100.123456] [    C3] ", 0, 100_123_456, None),
        ("kern  :err   : [  100.123456] ", 0, 100_123_456, None),
        ("user  :err   : [  100.123456] ", 1, 100_123_456, None),
        ("local7:err   : [  100.123456] ", 23, 100_123_456, None),
        ("[Tue Mar  3 02:11:07 2026] ", 0, 0, Some("Tue Mar  3 02:11:07 2026")),
        ("2026-03-03T02:11:07,123456+00:00 ", 0, 0, Some("2026-03-03T02:11:07,123456+00:00")),
        ("Mar  3 02:11:07 n-1.x kernel: ", 0, 0, Some("Mar  3 02:11:07")),
        ("Mar 13 02:11:07.123456 n1 kernel: [  100.123456] ", 0, 100_123_456, Some("Mar 13 02:11:07.123456")),
        ("2026-03-03T02:11:07Z n1 kernel: ", 0, 0, Some("2026-03-03T02:11:07Z")),
        ("Tue 2026-03-03 02:11:07 UTC n1 kernel: ", 0, 0, Some("Tue 2026-03-03 02:11:07 UTC")),
        ("1772503867.123456 n1 kernel: ", 0, 0, Some("1772503867.123456")),
        ("[  100.123456] n1 kernel: ", 0, 100_123_456, None),
        ("<3>1 2026-03-03T02:11:07.1Z n1 kernel - - - ", 0, 0, Some("2026-03-03T02:11:07.1Z")),
        ("<3>1 2026-03-03T02:11:07.1Z n1 kernel - - [a@1 b=\"c\"] ", 0, 0, Some("2026-03-03T02:11:07.1Z")),
        (
            "<3>1 2026-03-03T02:11:07.1Z n1 kernel - - - [  100.123456] ",
            0,
            100_123_456,
            Some("2026-03-03T02:11:07.1Z"),
        ),
    ] {
        let parsed = parse_log_line(&format!("{prefix}{text}\n"));
        assert_eq!(parsed.record.text, text, "{prefix}");
        assert_eq!((parsed.record.facility, parsed.record.usec), (facility, usec), "{prefix}");
        assert_eq!(parsed.time.as_deref(), time, "{prefix}");
    }
}

#[test]
fn what_another_program_logged_keeps_its_name() {
    let quoted = "NVRM: Xid (PCI:0000:86:00): 79, quoted";
    for prefix in [
        "Mar  3 02:11:07 n1 python3[77]: ",
        "2026-03-03T02:11:07+0000 n1 python3: ",
        "<14>1 2026-03-03T02:11:07.1Z n1 python3 77 - - ",
    ] {
        let parsed = parse_log_line(&format!("{prefix}{quoted}"));
        assert_eq!(parsed.record.text, format!("python3: {quoted}"), "{prefix}");
        assert!(parsed.record.from_user_space(), "{prefix}");
    }
    let json = format!(r#"{{"_TRANSPORT":"stdout","SYSLOG_IDENTIFIER":"python3","MESSAGE":"{quoted}"}}"#);
    let parsed = parse_log_line(&json);
    assert_eq!((parsed.record.text, parsed.record.facility), (format!("python3: {quoted}"), 1));
    // A record written to /dev/kmsg, after journald took "NVRM:" off.
    let json = r#"{"_TRANSPORT":"kernel","SYSLOG_FACILITY":"1","SYSLOG_IDENTIFIER":"NVRM","MESSAGE":"Xid (PCI:0000:86:00): 79, x"}"#;
    let parsed = parse_log_line(json);
    assert_eq!(
        (parsed.record.text.as_str(), parsed.record.facility),
        ("NVRM: Xid (PCI:0000:86:00): 79, x", 1)
    );
    let parsed = parse_log_line("Mar  3 02:11:07 n1 NVRM[9]: Xid (PCI:0000:86:00): 79, x");
    assert_eq!(
        (parsed.record.text.as_str(), parsed.record.facility),
        ("NVRM: Xid (PCI:0000:86:00): 79, x", 1)
    );
}

#[test]
fn messages_that_look_like_prefixes_stay() {
    for text in [
        "[drm] Initialized nvidia-drm 0.0.0 for 0000:01:00.0 on minor 0",
        "nvidia 0000:86:00.0: PCIe Bus Error: severity=Corrected",
        "{not json",
        "<not priority> x",
        "kern: something: else",
        "[",
        "[]",
        "[  ] x",
        "Mar",
        "é",
    ] {
        assert_eq!(parse_log_line(text).record.text, text);
        let stamped = format!("[  100.123456] {text}");
        assert_eq!(parse_log_line(&stamped).record.text, text);
    }
}

proptest! {
    #[test]
    fn no_bytes_make_a_parser_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = parse_record(&bytes);
        let _ = parse_record(&[b"6,1,2,-;", &bytes[..]].concat());
        let _ = parse_log_line(&String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn no_line_makes_a_parser_panic(
        head in "(<[0-9]{1,4}>|\\[ ?[0-9.]{0,12}\\]|[A-Z][a-z]{2} |20[0-9]{2}-[0-9]{2}-[0-9]{2}T| |1 |[0-9:.,]{0,12}|kern :|\\{\"MESSAGE\":){0,6}",
        tail in ".{0,40}",
    ) {
        let _ = parse_log_line(&format!("{head}{tail}"));
        let _ = parse_log_line(&format!("{head}\"{tail}\"}}"));
    }

    #[test]
    fn a_record_survives_its_raw_form(
        facility in 0_u8..=127, level in 0_u8..8, seq: u64, usec: u64, flag in 0..3,
        caller in proptest::option::of("[TC][0-9]{1,7}"),
        text in any::<String>(),
        dict in proptest::collection::vec(("[A-Z]{1,10}", any::<String>()), 0..3),
    ) {
        let continuation = [Continuation::Whole, Continuation::First, Continuation::Next][flag as usize];
        let record = Record { facility, level, seq, usec, continuation, caller, text, dict };
        let raw = record.encode();
        prop_assert!(raw.bytes().all(|b| b == b'\n' || (32..127).contains(&b)));
        prop_assert_eq!(parse_record(raw.as_bytes()), Ok(record));
    }

    #[test]
    fn a_file_read_in_pieces_gives_every_record_once(cuts in proptest::collection::vec(0_usize..40, 1..30)) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kmsg");
        let whole: String = (0..40).map(|n| format!("3,{n},{n},-;text {n}\n D={n}\n")).collect();
        append(&path, "");
        let (mut cursor, mut seen, mut written) = (None, Vec::new(), 0);
        for cut in cuts.into_iter().chain([whole.len()]) {
            let end = (written + cut).min(whole.len());
            append(&path, &whole[written..end]);
            written = end;
            let (records, batch) = lines(&path, cursor.as_ref());
            seen.extend(seqs(&records));
            prop_assert_eq!((batch.lost, batch.malformed), (0, 0));
            cursor = Some(batch.cursor);
        }
        prop_assert_eq!(seen, (0..40).collect::<Vec<u64>>());
    }
}
