//! Records: what is read, refused and written.

use std::io::Cursor;

use proptest::prelude::*;

use super::*;

fn record(stage: &str, metric: &str, value: f64) -> Record {
    Record {
        schema: SCHEMA.to_owned(),
        run: "r1".to_owned(),
        cluster: "sim".to_owned(),
        stage: stage.to_owned(),
        metric: metric.to_owned(),
        value: Some(value),
        unit: "GB/s".to_owned(),
        state: State::Measured,
        params: BTreeMap::from([("size".to_owned(), Scalar::Int(8)), ("tool".to_owned(), "torch".into())]),
        subject: Subject::node("n1"),
        provenance: Provenance::Measured,
        evidence: Some(Evidence { file: "raw/a.json".to_owned(), sha256: "0".repeat(64), pointer: None }),
        detail: None,
        tool: None,
        command: None,
        job: Some("12".to_owned()),
        started: None,
        seconds: Some(1.25),
        of: None,
    }
}

fn read(text: &[u8], run: Option<&str>) -> Result<Vec<(u64, Record)>, Error> {
    Reader::new(Cursor::new(text), Path::new("records.jsonl"), run).collect()
}

fn refusal(line: &str) -> String {
    match read(format!("{line}\n").as_bytes(), Some("r1")) {
        Err(error) => error.to_string(),
        Ok(_) => panic!("accepted: {line}"),
    }
}

fn changed(edit: impl FnOnce(&mut serde_json::Value)) -> String {
    let mut value = serde_json::to_value(record("gemm", "gemm", 1.5)).unwrap();
    edit(&mut value);
    value.to_string()
}

#[test]
fn the_example_of_the_interface_page_is_a_record() {
    let line = br#"{"schema":"clustermax-record/1","run":"20261130T205000Z-1234","cluster":"sim","stage":"collectives","metric":"busbw","value":12.5,"unit":"GB/s","state":"measured","params":{"collective":"all_reduce","size":1048576,"ranks":8,"nodes":2,"backend":"gloo"},"subject":{"node":"n1"},"provenance":"measured","evidence":{"file":"raw/collectives/torch.json","sha256":"0000000000000000000000000000000000000000000000000000000000000000","pointer":"/rows/3"},"tool":"torch.distributed 1.13.1","command":"python3","job":"12","started":"2026-11-30T20:50:00Z","seconds":1.25}"#;
    let records = read(line, None).unwrap();
    assert_eq!(records[0].0, 1);
    assert_eq!(records[0].1.params["size"], Scalar::Int(1_048_576));
    assert_eq!(records[0].1.value, Some(12.5));
}

#[test]
fn every_bad_line_is_named_with_its_number_and_its_fault() {
    for (line, expected) in [
        (changed(|value| value["value"] = serde_json::Value::Null), "state is measured but value is null"),
        (changed(|value| value["state"] = "unknown".into()), "value is given although state is not measured"),
        (changed(|value| value["state"] = "passed".into()), "unknown variant"),
        (changed(|value| value["extra"] = 1.into()), "unknown field `extra`"),
        (changed(|value| value["metric"] = "".into()), "metric is empty"),
        (changed(|value| value["seconds"] = (-1).into()), "seconds is -1"),
        (changed(|value| value["params"]["size"] = serde_json::json!([1])), "not a record"),
        (changed(|value| value["evidence"] = serde_json::Value::Null), "needs evidence"),
        (changed(|value| value["evidence"]["file"] = "/etc/passwd".into()), "relative path"),
        (changed(|value| value["evidence"]["file"] = "raw/../../x".into()), "relative path"),
        (changed(|value| value["evidence"]["sha256"] = "12".into()), "64 hex digits"),
        (changed(|_| ()).replace("1.5", "NaN"), "not finite"),
        (changed(|_| ()).replace("1.5", "-Infinity"), "not finite"),
        (changed(|_| ()).replace("1.5", "1e999"), "not finite"),
        ("[]".to_owned(), "not a record"),
        ("{\"schema\":".to_owned(), "not a record"),
        ("{}".to_owned(), "missing field"),
    ] {
        let message = refusal(&line);
        assert!(message.contains(expected), "{message}\nlacks {expected:?}");
        assert!(message.contains("records.jsonl: line 1"), "{message}");
        assert!(message.contains("clustermax suite collect"), "{message}");
    }
}

#[test]
fn another_schema_is_named_even_when_its_fields_are_unknown() {
    let message = refusal(r#"{"schema":"clustermax-record/2","new":true}"#);
    assert!(message.contains("line 1 has schema \"clustermax-record/2\""), "{message}");
}

#[test]
fn another_run_is_named_with_both_ids() {
    let message = refusal(&changed(|value| value["run"] = "r2".into()));
    assert!(
        message.contains("\"r2\"") && message.contains("\"r1\"") && message.contains("line 1"),
        "{message}"
    );
}

#[test]
fn a_cut_last_line_is_half_written_wherever_it_is_cut() {
    let whole = format!("{}\n", changed(|_| ()));
    for cut in 1..whole.len() - 1 {
        let text = format!("{whole}{}", &whole[..cut]);
        match read(text.as_bytes(), None) {
            Err(Error::HalfWritten { line: 2, .. }) => {}
            other => panic!("cut at {cut}: {other:?}"),
        }
    }
    // Only the newline is missing: nothing is lost.
    assert_eq!(read(whole.trim_end().as_bytes(), None).unwrap().len(), 1);
}

#[test]
fn a_line_without_end_is_refused_and_not_read_into_memory() {
    let message = read(&vec![b'x'; 3 << 20], None).unwrap_err().to_string();
    assert!(message.contains("longer than"), "{message}");
}

#[test]
fn append_adds_whole_lines_and_refuses_a_half_written_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("records.jsonl");
    append(&path, &[record("gemm", "gemm", 1.0)]).unwrap();
    append(&path, &[record("train", "step_time", 2.0)]).unwrap();
    let records: Vec<_> = Reader::open(&path, Some("r1")).unwrap().map(Result::unwrap).collect();
    assert_eq!(records.len(), 2);
    let before = fs::read(&path).unwrap();
    let bad = Record { value: Some(f64::NAN), ..record("gemm", "gemm", 1.0) };
    assert!(append(&path, &[bad]).unwrap_err().to_string().contains("not finite"));
    assert_eq!(fs::read(&path).unwrap(), before);
    fs::write(&path, &before[..before.len() - 5]).unwrap();
    let error = append(&path, &[record("gemm", "gemm", 1.0)]).unwrap_err();
    assert!(matches!(error, Error::HalfWritten { line: 2, .. }), "{error}");
}

#[test]
fn replace_stage_keeps_the_others_and_mends_a_cut_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("records.jsonl");
    append(&path, &[record("gemm", "gemm", 1.0), record("train", "step_time", 2.0)]).unwrap();
    let whole = fs::read_to_string(&path).unwrap();
    fs::write(&path, &whole[..whole.len() - 9]).unwrap();
    for _ in 0..2 {
        replace_stage(&path, "train", &[record("train", "step_time", 3.0)]).unwrap();
        let records: Vec<_> = Reader::open(&path, None).unwrap().map(|item| item.unwrap().1).collect();
        assert_eq!(records.len(), 2);
        assert_eq!(records[0].stage, "gemm");
        assert_eq!(records[1].value, Some(3.0));
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "no temp file stays");
}

proptest! {
    #[test]
    fn any_bytes_are_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = read(&bytes, Some("r1"));
    }

    #[test]
    fn a_changed_byte_never_panics_and_an_error_names_the_line(at in 0_usize..200, byte: u8) {
        let mut line = changed(|_| ()).into_bytes();
        let at = at % line.len();
        line[at] = byte;
        line.push(b'\n');
        if let Err(error) = read(&line, Some("r1")) {
            prop_assert!(error.to_string().contains("line "));
        }
    }

    #[test]
    fn what_is_written_is_read_back(value in -1e12_f64..1e12, size: i32, text in "\\PC{0,20}") {
        let mut one = record("gemm", "gemm", value);
        one.params.insert("size".to_owned(), Scalar::Int(i64::from(size)));
        one.detail = Some(text);
        let bytes = encode(Path::new("x"), std::slice::from_ref(&one)).unwrap();
        let (_, mut found) = read(&bytes, Some("r1")).unwrap().remove(0);
        // serde_json's fast float parser may be off by the last bit.
        prop_assert!((found.value.unwrap() - value).abs() <= value.abs() * 1e-15);
        found.value = one.value;
        prop_assert_eq!(found, one);
    }
}
