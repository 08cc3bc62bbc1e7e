//! Readers of the payloads that compute: checkpoints, memory, the loss against its reference.

use super::tests::{collected, find};
use super::*;

const HEAD: &str =
    r#""torch":"2.6.0","device":"cpu","ranks":2,"started":"2026-11-30T20:00:01Z","complete":true"#;

fn checkpoint(wrong: u32, error: &str, more: &str) -> Vec<Record> {
    let text = format!(
        r#"{{{HEAD},"nodes":2,"bytes_per_rank":1000000000,"missing":[{more}],"rows":[{{"api":"torch.save","nodes":["n1","n2"],"wrong":{wrong},
        "error":{error},"save":[[1.0,4.0],[1.0,2.0],[1.0,5.0]],"load":[[0.5,0.25]],"async_stall":[[0.1,0.2]],"async_save":[[3.0,4.0]]}}]}}"#
    );
    collected("checkpoint", StageState::Done, &[("checkpoint.json", &text)]).1
}

#[test]
fn a_checkpoint_counts_by_its_slowest_rank_and_only_when_every_bit_came_back() {
    let missing = r#"{"api":"dcp","state":"unavailable","detail":"torch 1.13 has no dcp"}"#;
    let records = checkpoint(0, "null", missing);
    let save = [("op", "save"), ("api", "torch.save")];
    // 2 GB by 4 s: the median of 4, 2 and 5.
    assert_eq!(find(&records, "checkpoint_bandwidth", &save).value, Some(0.5));
    assert_eq!(find(&records, "checkpoint_seconds", &save).value, Some(4.0));
    let rank = find(&records, "checkpoint_rank_bandwidth", &[("op", "load"), ("node", "n2")]);
    assert_eq!((rank.value, &rank.params["rank"]), (Some(4.0), &Scalar::Int(1)));
    assert_eq!(find(&records, "checkpoint_seconds", &[("op", "async_stall")]).value, Some(0.2));
    assert_eq!(find(&records, "checkpoint_wrong", &[("api", "torch.save")]).value, Some(0.0));
    let dcp = find(&records, "checkpoint_bandwidth", &[("op", "save"), ("api", "dcp")]);
    assert_eq!((dcp.state, dcp.detail.as_deref()), (State::Unavailable, Some("torch 1.13 has no dcp")));

    let records = checkpoint(3, "null", missing);
    let void = find(&records, "checkpoint_bandwidth", &save);
    assert!(void.value.is_none() && void.detail.as_ref().unwrap().contains("other bits"), "{void:?}");
    assert_eq!(find(&records, "checkpoint_wrong", &[("api", "torch.save")]).value, Some(3.0));

    let records = checkpoint(0, "\"saving failed on rank 1 (n2): OSError: No space left\"", missing);
    let failed = find(&records, "checkpoint_bandwidth", &save);
    assert_eq!(failed.detail.as_deref(), Some("saving failed on rank 1 (n2): OSError: No space left"));
    assert!(records.iter().all(|record| record.metric != "checkpoint_seconds"), "{records:?}");
}

#[test]
fn a_checkpoint_stage_that_was_stopped_names_what_it_did_not_reach() {
    let records = checkpoint(0, "null", "");
    assert_eq!(find(&records, "checkpoint_wrong", &[("api", "dcp")]).state, State::Unknown);
    for files in [&[][..], &[("checkpoint.json", "{")]] {
        let (_dir, records) = collected("checkpoint", StageState::Failed, files);
        // Two ways: save, load and the comparison of each.
        assert_eq!(records.len(), 6, "{records:?}");
        assert!(records.iter().all(|record| record.state == State::Unknown), "{records:?}");
    }
}

fn memory(device: &str, rank: u32, wrong: u32, copies: &str) -> String {
    format!(
        r#"{{"torch":"2.6.0","device":"{device}","ranks":2,"started":"2026-11-30T20:00:01Z","complete":true,"node":"n{}","rank":{rank},
        "local_rank":0,"threads":8,"array_bytes":67108864,"cache_bytes":67108864,"rows":[{{"op":"copy","repeats":5,"bytes":1,"best":20.0,
        "median":10.0,"checks":3,"wrong":{wrong}}}],"copies":[{copies}],
        "missing":[{{"direction":"host_to_device","state":"unavailable","detail":"no GPU"}}]}}"#,
        rank + 1
    )
}

#[test]
fn memory_is_read_rank_by_rank_and_wrong_bits_void_its_speed() {
    let files = [("memory-0.json", memory("cpu", 0, 0, "")), ("memory-1.json", memory("cpu", 1, 2, ""))];
    let files: Vec<(&str, &str)> = files.iter().map(|(name, text)| (*name, text.as_str())).collect();
    let (_dir, records) = collected("gemm", StageState::Done, &files);
    let best = find(&records, "memory_bandwidth", &[("node", "n1"), ("stat", "best")]);
    assert_eq!((best.value, &best.params["device"]), (Some(20.0), &Scalar::from("cpu")));
    assert_eq!(
        best.detail.as_deref(),
        Some("8 threads, arrays of 64 MiB, which the caches of 64 MiB hold in part")
    );
    let void = find(&records, "memory_bandwidth", &[("node", "n2"), ("stat", "best")]);
    assert_eq!(void.detail.as_deref(), Some("2 of 3 results differ bit for bit: the bandwidth is void"));
    assert_eq!(find(&records, "memory_wrong", &[("node", "n2")]).value, Some(2.0));
    let copies = find(&records, "host_copy_bandwidth", &[("node", "n1")]);
    assert_eq!(copies.state, State::Unavailable);

    // A rank without a file: its node has no memory bandwidth, and says so.
    let (_dir, records) = collected("gemm", StageState::Done, &files[..1]);
    assert_eq!(find(&records, "memory_bandwidth", &[("node", "n2")]).state, State::Unknown);
}

#[test]
fn copies_between_host_and_gpu_belong_to_the_gpu() {
    let copy = r#"{"direction":"device_to_host","mode":"alone","repeats":3,"bytes":1,"best":56.0,"median":55.0,"checks":2,"wrong":0}"#;
    let (_dir, records) =
        collected("gemm", StageState::Done, &[("memory-0.json", &memory("cuda", 0, 0, copy))]);
    let found = find(&records, "host_copy_bandwidth", &[("direction", "device_to_host"), ("node", "n1")]);
    assert_eq!((found.value, found.subject.gpu), (Some(55.0), Some(0)));
}
