use std::fs;
use std::path::Path;

use super::*;

fn args(stage: &str, dir: &Path) -> Args {
    Args::of(stage, dir)
}

fn begin(dir: &Path) -> Args {
    Args {
        run: Some("r1".to_owned()),
        cluster: Some("c1".to_owned()),
        nodes: vec!["n1".to_owned(), "n2".to_owned()],
        job: Some("7".to_owned()),
        started: Some("2026-11-30T20:00:00Z".to_owned()),
        ..args("init", dir)
    }
}

/// A results folder with these raw files, after collecting `stage`.
pub(super) fn collected(
    stage: &str,
    state: StageState,
    files: &[(&str, &str)],
) -> (tempfile::TempDir, Vec<Record>) {
    let dir = tempfile::tempdir().unwrap();
    run(&begin(dir.path())).unwrap();
    for (name, text) in files {
        let path = dir.path().join("raw").join(stage).join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    run(&Args { state: Some(state), ..args(stage, dir.path()) }).unwrap();
    let records = records(dir.path());
    (dir, records)
}

fn records(dir: &Path) -> Vec<Record> {
    record::Reader::open(&dir.join("records.jsonl"), Some("r1"))
        .unwrap()
        .map(|record| record.unwrap().1)
        .collect()
}

pub(super) fn find<'a>(records: &'a [Record], metric: &str, params: &[(&str, &str)]) -> &'a Record {
    let mut found = records.iter().filter(|record| {
        record.metric == metric
            && params.iter().all(|(key, value)| match *key {
                "node" => record.subject.node.as_deref() == Some(value),
                _ => record.params.get(*key).is_some_and(|found| found.to_string() == *value),
            })
    });
    let first = found.next().unwrap_or_else(|| panic!("no {metric} {params:?} in {records:#?}"));
    assert!(found.next().is_none(), "several {metric} {params:?}");
    first
}

const TORCH: &str = r#"{"schema":"clustermax-payload/1","torch":"1.13.0a0","device":"cpu","ranks":4,"started":"2026-11-30T20:00:01Z",
"complete":true,"backend":"gloo","nodes":2,"dtype":"float32","planned":["all_reduce","broadcast"],"rows":[
{"collective":"all_reduce","api":"all_reduce","size":8000,"seconds":0.001,"algbw":0.008,"busbw":0.012,"wrong":0},
{"collective":"broadcast","api":"broadcast","size":8000,"seconds":0.001,"algbw":0.008,"busbw":0.008,"wrong":3}],
"missing":[{"collective":"alltoall","api":"all_to_all","state":"unavailable","detail":"torch 1.13 with gloo has no all_to_all"}]}"#;

#[test]
fn a_folder_is_made_once_and_resumed_only_by_its_own_run() {
    let dir = tempfile::tempdir().unwrap();
    run(&begin(dir.path())).unwrap();
    let folder = Folder::open(dir.path()).unwrap();
    assert_eq!((folder.run.run.as_str(), folder.run.simulated), ("r1", false));
    let again = run(&begin(dir.path())).unwrap_err();
    assert!(again.code == 2 && again.message.contains("already holds run r1"), "{again}");
    let resume = |change: &dyn Fn(&mut Args)| {
        let mut args = Args { run: None, resume: true, ..begin(dir.path()) };
        change(&mut args);
        run(&args)
    };
    assert_eq!(resume(&|_| ()), Ok(0));
    for (change, word) in [
        (&(|args: &mut Args| args.cluster = Some("c2".to_owned())) as &dyn Fn(&mut Args), "cluster \"c1\""),
        (&|args: &mut Args| args.run = Some("r2".to_owned()), "not r2"),
        (&|args: &mut Args| args.profile = "full".to_owned(), "--profile demo"),
        (&|args: &mut Args| args.nodes = vec!["n3".to_owned()], "-w n1,n2"),
    ] {
        let failure = resume(change).unwrap_err();
        assert!(failure.code == 2 && failure.message.contains(word), "{failure}");
        assert_eq!(failure.message.lines().count(), 1);
    }
}

#[test]
fn collecting_twice_gives_the_same_records() {
    let (dir, first) = collected("collectives", StageState::Done, &[("torch.json", TORCH)]);
    let bytes = fs::read(dir.path().join("records.jsonl")).unwrap();
    run(&args("collectives", dir.path())).unwrap();
    assert_eq!(fs::read(dir.path().join("records.jsonl")).unwrap(), bytes);
    assert!(!first.is_empty());
    let marker: Marker =
        serde_json::from_slice(&fs::read(dir.path().join("stages/collectives.json")).unwrap()).unwrap();
    assert_eq!((marker.state, marker.records), (StageState::Done, first.len()));
}

#[test]
fn collectives_keep_the_definition_of_busbw_and_void_wrong_values() {
    let (_dir, records) = collected("collectives", StageState::Done, &[("torch.json", TORCH)]);
    let good = find(&records, "busbw", &[("collective", "all_reduce"), ("tool", "torch")]);
    assert_eq!((good.value, good.unit.as_str()), (Some(0.012), "GB/s"));
    assert_eq!(good.evidence.as_ref().unwrap().pointer.as_deref(), Some("/rows/0"));
    assert_eq!(good.params["size"], Scalar::Int(8000));
    let void = find(&records, "busbw", &[("collective", "broadcast")]);
    assert_eq!((void.value, void.state), (None, State::Unknown));
    assert_eq!(find(&records, "wrong_values", &[("collective", "broadcast")]).value, Some(3.0));
    let missing = find(&records, "busbw", &[("api", "all_to_all")]);
    assert_eq!(
        (missing.state, &missing.params["collective"]),
        (State::Unavailable, &Scalar::Text("alltoall".to_owned()))
    );
}

#[test]
fn a_busbw_that_does_not_follow_from_its_row_is_unknown() {
    let (_dir, records) = collected(
        "collectives",
        StageState::Done,
        &[("torch.json", &TORCH.replace("\"busbw\":0.012", "\"busbw\":0.12"))],
    );
    assert_eq!(
        find(&records, "busbw", &[("collective", "all_reduce"), ("tool", "torch")]).state,
        State::Unknown
    );
}

#[test]
fn half_written_raw_output_is_unknown_and_says_which_file() {
    for (stage, name, metric) in [
        ("collectives", "torch.json", "busbw"),
        ("train", "train.json", "loss_last"),
        ("gemm", "rank-0.json", "gemm"),
    ] {
        let (_dir, records) = collected(stage, StageState::Failed, &[(name, &TORCH[..200])]);
        assert!(records.iter().all(|record| record.state != State::Measured), "{records:#?}");
        assert!(
            records
                .iter()
                .any(|record| record.metric == metric && record.detail.as_ref().unwrap().contains(name)),
            "{records:#?}"
        );
    }
}

#[test]
fn a_stage_without_output_gives_its_reason_for_every_node() {
    let dir = tempfile::tempdir().unwrap();
    run(&begin(dir.path())).unwrap();
    for stage in STAGES {
        let reason = Some(format!("{stage} was stopped after 5 s"));
        run(&Args { state: Some(StageState::Deadline), reason, ..args(stage, dir.path()) }).unwrap();
    }
    let records = records(dir.path());
    assert!(records.iter().all(|record| record.state != State::Measured), "{records:#?}");
    for (stage, metric) in [("inventory", "gpu_count"), ("gemm", "gemm"), ("lifecycle", "prolog_seconds")] {
        for node in ["n1", "n2"] {
            let record = find(&records, metric, &[("node", node)]);
            assert_eq!(record.detail.as_deref(), Some(format!("{stage} was stopped after 5 s").as_str()));
        }
    }
    let failure = run(&args("colectives", dir.path())).unwrap_err();
    assert!(failure.message.contains("did you mean \"collectives\""), "{failure}");
}

#[test]
fn a_sweep_that_stopped_names_what_it_did_not_reach() {
    let stopped = TORCH
        .replace("\"complete\":true", "\"complete\":false")
        .replace("\"broadcast\"]", "\"broadcast\",\"reduce\"]");
    let (_dir, records) = collected("collectives", StageState::Deadline, &[("torch.json", &stopped)]);
    let record = find(&records, "busbw", &[("collective", "reduce")]);
    assert_eq!(
        (record.state, record.detail.as_deref()),
        (State::Unknown, Some("the stage was stopped at its deadline"))
    );
}

#[test]
fn nccl_tests_are_taken_only_when_all_ranks_were_in_one_world() {
    let text =
        fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/nccl/v2.19_allreduce.txt"))
            .unwrap();
    let launch = |ranks: u32| format!("all_reduce\t{ranks}\t2\t0\tall_reduce_perf -b 1M -e 8G -f 8 -g 1\n");
    let files = |launch: &str| {
        collected(
            "collectives",
            StageState::Done,
            &[("nccl-tests/all_reduce_perf.txt", &text), ("nccl-tests/launch.tsv", launch)],
        )
        .1
    };
    let records = files(&launch(16));
    let best = find(&records, "busbw", &[("tool", "nccl-tests"), ("size", "8589934592")]);
    assert_eq!((best.value, &best.params["dtype"]), (Some(389.67), &Scalar::Text("fp32".to_owned())));
    assert_eq!(best.evidence.as_ref().unwrap().pointer.as_deref(), Some("line:31"));
    assert_eq!(find(&records, "wrong_values", &[("tool", "nccl-tests")]).value, Some(0.0));
    let apart = files(&launch(32));
    let record = find(&apart, "busbw", &[("tool", "nccl-tests")]);
    assert!(
        record.value.is_none() && record.detail.as_ref().unwrap().contains("32 were started"),
        "{record:?}"
    );
}

#[test]
fn a_training_run_that_does_not_learn_has_no_speed() {
    let train = |last: f64| {
        format!(
            r#"{{"torch":"1.13.0a0","device":"cpu","ranks":2,"started":"2026-11-30T20:00:01Z","complete":true,"model":"llama","shape":"toy",
            "dtype":"float32","length":64,"batch_per_rank":4,"warmup":1,"planned_steps":3,"loss":[5.5,4.0,{last}],"nodes":2,
            "tokens_per_second":1000.0,"per_rank":[{{"rank":0,"node":"n1","step_seconds":[9.0,0.2,0.4]}}]}}"#
        )
    };
    let (_dir, records) = collected("train", StageState::Done, &[("train.json", &train(3.0))]);
    assert_eq!(find(&records, "tokens_per_second", &[("model", "llama-toy")]).value, Some(1000.0));
    assert_eq!(find(&records, "tokens_per_second_per_rank", &[("model", "llama-toy")]).value, Some(500.0));
    let median = find(&records, "step_time", &[("node", "n1"), ("stat", "median")]).value.unwrap();
    assert!((median - 300.0).abs() < 1e-9, "{median}");
    assert_eq!(find(&records, "step_time", &[("node", "n1"), ("stat", "p99")]).value, Some(400.0));
    let (_dir, records) = collected("train", StageState::Done, &[("train.json", &train(5.6))]);
    let record = find(&records, "tokens_per_second", &[("model", "llama-toy")]);
    assert!(
        record.state == State::Unknown && record.detail.as_ref().unwrap().contains("did not fall"),
        "{record:?}"
    );
}

#[test]
fn a_mixture_of_experts_is_told_from_the_dense_model() {
    let of = |model: &str, speed: f64| {
        format!(
            r#"{{"torch":"2.6","device":"cpu","ranks":2,"started":"2026-11-30T20:00:01Z","complete":true,"model":"{model}","shape":"toy",
            "dtype":"float32","length":64,"batch_per_rank":4,"warmup":1,"planned_steps":3,"loss":[5.5,4.0,3.0],"nodes":2,
            "flops_per_token":2e9,"flops_formula":"6N","tokens_per_second":{speed},
            "per_rank":[{{"rank":0,"node":"n1","step_seconds":[9.0,0.2,0.4]}}]}}"#
        )
    };
    let files = [("train.json", of("llama", 1000.0)), ("moe.json", of("moe", 500.0))];
    let files: Vec<(&str, &str)> = files.iter().map(|(name, text)| (*name, text.as_str())).collect();
    let (_dir, records) = collected("train", StageState::Done, &files);
    assert_eq!(find(&records, "tokens_per_second", &[("model", "moe-toy")]).value, Some(500.0));
    let flops = find(&records, "training_flops", &[("model", "llama-toy")]);
    // 2e9 operations a token, 500 tokens a second and rank.
    assert_eq!((flops.value, flops.detail.as_deref()), (Some(1.0), Some("6N")));
    assert_eq!(find(&records, "step_time", &[("stat", "median")]).value, Some(300.0), "of one model");
    let (_dir, records) = collected("train", StageState::Done, &files[..1]);
    let absent = find(&records, "tokens_per_second", &[("model", "moe")]);
    assert_eq!(absent.state, State::Unknown, "{absent:?}");
}

#[test]
fn inference_is_read_rank_by_rank_and_the_worst_difference_counts() {
    let rank = |rank: u32, difference: &str| {
        format!(
            r#"{{"rank":{rank},"node":"n{}","rows":[
            {{"case":"prefill","samples":3,"tokens_per_second":900.0,"p50_ms":300.0,"p99_ms":400.0,"batch":1}},
            {{"case":"tensor_parallel","samples":9,"tokens_per_second":50.0,"p50_ms":20.0,"p99_ms":30.0,"parts":2,"difference":{difference}}}]}}"#,
            rank + 1
        )
    };
    let head = r#""torch":"2.6","device":"cpu","ranks":2,"started":"2026-11-30T20:00:01Z","complete":true,"model":"llama","shape":"tiny","dtype":"float32""#;
    let text = format!("{{{head},\"missing\":[],\"per_rank\":[{},{}]}}", rank(0, "1e-7"), rank(1, "0.5"));
    let (_dir, records) = collected("inference", StageState::Done, &[("inference.json", &text)]);
    let prefill = [("case", "prefill"), ("node", "n2")];
    assert_eq!(find(&records, "inference_tokens_per_second", &prefill).value, Some(900.0));
    let p99 = [("case", "tensor_parallel"), ("node", "n1"), ("stat", "p99")];
    assert_eq!(find(&records, "inference_latency", &p99).value, Some(30.0));
    let worst = find(&records, "tensor_parallel_difference", &[]);
    assert_eq!(worst.value, Some(0.5));
    assert_eq!(worst.evidence.as_ref().unwrap().pointer.as_deref(), Some("/per_rank/1/rows/1/difference"));

    let one = format!(
        "{{{head},\"missing\":[{{\"case\":\"tensor_parallel\",\"state\":\"unavailable\",\"detail\":\"1 ranks\"}}],\"per_rank\":[]}}"
    );
    let (_dir, records) = collected("inference", StageState::Done, &[("inference.json", &one)]);
    assert!(records.iter().any(|record| record.state == State::Unavailable), "{records:?}");
    for text in ["", "{", "{}"] {
        let (_dir, records) = collected("inference", StageState::Failed, &[("inference.json", text)]);
        assert!(
            // Three cases of our own loop, three of a server.
            records.len() == 6 && records.iter().all(|record| record.state == State::Unknown),
            "{records:?}"
        );
    }
}

#[test]
fn storage_of_one_node_is_not_rated_as_shared() {
    let json = r#"{"fio version":"fio-3.33","jobs":[{"jobname":"seqread","error":0,"read":{"bw_bytes":250000000,"iops":1}}]}"#;
    let speed = [("node", "n1"), ("target", "shared"), ("rw", "read")];
    for (place, known) in [("nfs4 server:/export\n", true), ("ext4 /dev/vda\n", false), ("", true)] {
        let files = [("n1.shared.json", json), ("n1.shared.where", place)];
        let (_dir, records) = collected("storage", StageState::Done, &files);
        let record = find(&records, "fio_bandwidth", &speed);
        assert_eq!(record.value.is_some(), known, "{place}: {record:?}");
        assert!(known || record.detail.as_ref().unwrap().contains("not the shared storage"), "{record:?}");
    }
}

/// Runs the payload with TMPDIR set to a folder that a command makes first; the sentence for the local target.
fn storage_payload(prepare: &str, tmp: &str) -> String {
    let dir = tempfile::tempdir().unwrap();
    let script = format!(
        "cd {} && mkdir raw && {prepare} && SLURMD_NODENAME=n1 TMPDIR={tmp} bash {}/../batch-scripts/payload/storage.sh raw 1",
        dir.path().display(),
        env!("CARGO_MANIFEST_DIR")
    );
    let out = std::process::Command::new("unshare").args(["-m", "bash", "-c", &script]).output().unwrap();
    let said = fs::read_to_string(dir.path().join("raw/n1.local.txt")).unwrap_or_default();
    assert!(dir.path().join("raw/n1.shared.json").exists(), "{}", String::from_utf8_lossy(&out.stderr));
    said
}

#[test]
fn a_folder_that_fio_cannot_use_is_named_in_a_sentence() {
    for (prepare, tmp, expected) in [
        ("true", "gone", "gone does not exist on n1; set TMPDIR"),
        ("mkdir small && mount -t tmpfs -o size=4m none small", "small", "KiB free and fio needs 65536"),
        (
            "mkdir ro && mount -t tmpfs -o ro none ro",
            "ro",
            "cannot be written (Read-only file system); set TMPDIR",
        ),
    ] {
        let said = storage_payload(prepare, tmp);
        assert!(said.contains(expected) && said.lines().count() == 1, "{said}");
    }
}

/// The storage payload's part in a folder of its own with a fake fio, which keeps its jobs in `jobs`; gives that folder.
fn fake_fio(fio: &str, prepare: &str, words: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let script = format!(
        "cd {} && mkdir bin raw tmp && printf '%s\\n' '#!/bin/bash' 'job=${{@: -1}}; cat \"$job\" >>{0}/jobs' '{fio}' >bin/fio \
         && chmod +x bin/fio && {prepare} && PATH=$PWD/bin:$PATH SLURMD_NODENAME=n1 TMPDIR=$PWD/tmp bash \
         {}/../batch-scripts/payload/storage.sh {words}; true",
        dir.path().display(),
        env!("CARGO_MANIFEST_DIR")
    );
    let out = std::process::Command::new("unshare").args(["-m", "bash", "-c", &script]).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    dir
}

const DOCUMENT: &str = "for word; do [[ $word != --output=* ]] || echo {} >${word#--output=}; done";

#[test]
fn what_goes_through_the_page_cache_goes_there_once() {
    let dir = fake_fio(DOCUMENT, "mount -t tmpfs none raw && printf x >raw/d", "raw 2");
    // A kernel whose tmpfs takes O_DIRECT has nothing to show here.
    let jobs = fs::read_to_string(dir.path().join("jobs")).unwrap();
    let (base, _) = jobs.split_once("[seqwrite]").unwrap();
    assert!(base.contains("direct=0\n") == base.contains("time_based=0\n"), "{base}");
    let dir = fake_fio(DOCUMENT, "true", "raw sweep 2 8 2 4");
    let jobs = fs::read_to_string(dir.path().join("jobs")).unwrap();
    let buffered: Vec<&str> = jobs.split('[').filter(|job| job.contains("direct=0")).collect();
    assert_eq!(buffered.len(), 3, "{jobs}");
    assert!(buffered.iter().all(|job| !job.contains("time_based")), "{jobs}");
}

#[test]
fn a_folder_that_goes_away_under_fio_is_named_and_what_a_killed_one_left_is_removed() {
    let leave = "mkdir raw/clustermax-fio.n1.4194999.abcdef raw/clustermax-fio.n1.$$.abcdef raw/clustermax-fio.n2.4194999.abcdef";
    let dir = fake_fio(
        "rm -rf -- \"${job%/*}\"; echo fio: No such file or directory; exit 1",
        leave,
        "raw sweep 2 8 2 4",
    );
    let said = fs::read_to_string(dir.path().join("raw/sweep-8.n1.txt")).unwrap();
    assert!(
        said.contains("fio on n1 left no result") && said.contains("exit code 1: fio: No such file"),
        "{said}"
    );
    assert_eq!(said.lines().count(), 1, "{said}");
    let left = |name: &str| dir.path().join("raw").join(name).exists();
    assert!(!left("clustermax-fio.n1.4194999.abcdef") && left("clustermax-fio.n2.4194999.abcdef"));
    let ours = fs::read_dir(dir.path().join("raw")).unwrap().flatten();
    assert_eq!(ours.filter(|one| one.path().is_dir()).count(), 2, "what a live process uses stays");
}

#[test]
fn objects_that_came_back_wrong_are_records_of_their_own() {
    let text = r#"{"schema":"clustermax-s3/1","node":"n1","endpoint":"https://s3","bucket":"b","started":"2026-11-30T20:00:01Z",
        "complete":true,"detail":"get of 4096 bytes at https://s3: HTTP 503, SlowDown","rows":[
        {"op":"put","size":4096,"clients":8,"seconds":2.0,"requests":1000,"errors":0,"wrong":0,"ms":[1,2,3,4,5]},
        {"op":"get","size":4096,"clients":8,"seconds":2.0,"requests":2000,"errors":3,"wrong":1,"ms":[1,2,3,4,5]}]}"#;
    let (_dir, records) = collected("s3", StageState::Done, &[("n1.json", text), ("n2.json", text)]);
    let get = [("op", "get"), ("node", "n1")];
    assert_eq!(find(&records, "s3_bandwidth", &get).value, Some(4.096));
    assert_eq!(find(&records, "s3_errors", &get).value, Some(3.0));
    assert_eq!(find(&records, "s3_wrong_objects", &get).value, Some(1.0));
    assert_eq!(find(&records, "s3_latency", &[("op", "put"), ("stat", "p99.9")]).value, Some(4.0));
    let other = find(&records, "s3_bandwidth", &[("node", "n2")]);
    assert_eq!(other.detail.as_deref(), Some("the file is of node n1"));
}

#[test]
fn object_sizes_that_a_test_did_not_reach_are_unknown() {
    let text = r#"{"schema":"clustermax-s3/1","node":"n1","endpoint":"https://s3","bucket":"b","started":"2026-11-30T20:00:01Z",
        "complete":false,"detail":"it was stopped","sizes":[4096,8388608],"rows":[
        {"op":"put","size":4096,"clients":8,"seconds":2.0,"requests":1000,"errors":0,"wrong":0,"ms":[1,2,3,4,5]}]}"#;
    let (_dir, records) = collected("s3", StageState::Failed, &[("n1.json", text)]);
    for (op, size) in [("get", "4096"), ("put", "8388608"), ("get", "8388608")] {
        let none = find(&records, "s3_bandwidth", &[("op", op), ("size", size), ("node", "n1")]);
        assert_eq!((none.state, none.detail.as_deref()), (State::Unknown, Some("it was stopped")));
    }
    assert_eq!(find(&records, "s3_wrong_objects", &[("size", "4096")]).state, State::Unknown);
}

#[test]
fn fio_is_read_job_by_job_and_its_warnings_are_skipped() {
    let json = r#"fio: this platform does not support ...
{"fio version":"fio-3.33","global options":{"direct":"1"},"jobs":[
{"jobname":"seqread","error":0,"job options":{"bs":"1m","iodepth":"4"},"read":{"bw_bytes":250000000,"iops":238.4,
 "clat_ns":{"percentile":{"50.000000":2000000,"99.000000":9000000}}}},
{"jobname":"seqwrite","error":28,"job options":{"bs":"1m"},"write":{"bw_bytes":1}},
{"jobname":"fsync","error":0,"job options":{"bs":"4k"},"sync":{"lat_ns":{"percentile":{"50.000000":100000,"99.000000":7000000}}}}]}"#;
    let (_dir, records) = collected(
        "storage",
        StageState::Done,
        &[("n1.shared.json", json), ("n1.local.txt", "fio is not installed on n1\n")],
    );
    let seq = [("node", "n1"), ("target", "shared"), ("rw", "read")];
    assert_eq!(find(&records, "fio_bandwidth", &seq).value, Some(250.0));
    assert_eq!(
        find(
            &records,
            "fio_latency",
            &[("node", "n1"), ("target", "shared"), ("job", "fsync"), ("percentile", "99")]
        )
        .value,
        Some(7.0)
    );
    let failed = find(&records, "fio_bandwidth", &[("node", "n1"), ("target", "shared"), ("rw", "write")]);
    assert!(
        failed.state == State::Unknown && failed.detail.as_ref().unwrap().contains("error 28"),
        "{failed:?}"
    );
    let none = find(&records, "fio_bandwidth", &[("node", "n1"), ("target", "local"), ("rw", "read")]);
    assert_eq!(
        (none.state, none.detail.as_deref()),
        (State::Unavailable, Some("fio is not installed on n1"))
    );
    assert_eq!(
        find(&records, "fio_bandwidth", &[("node", "n2"), ("target", "local"), ("rw", "read")]).state,
        State::Unknown
    );
}

#[test]
fn the_first_step_is_compared_with_later_ones_of_the_same_node() {
    // n2's clock is 100 s ahead.
    let steps = "0\tn1\t10.0\t13.1\n0\tn2\t10.0\t111.1\n1\tn1\t20.0\t20.1\n1\tn2\t20.0\t120.1\n2\tn1\t30.0\t30.1\n2\tn2\t30.0\t130.1\n";
    let import = r#"{"node":"n1","torch":"1.13.0a0","cold_seconds":2.5,"warm_seconds":0.7}"#;
    let (_dir, records) = collected(
        "lifecycle",
        StageState::Done,
        &[("steps.tsv", steps), ("begin.tsv", "100 102.7\n"), ("import.n1.json", import)],
    );
    let seconds = |node: &str| find(&records, "prolog_seconds", &[("node", node)]).value.unwrap();
    assert!(
        (seconds("n1") - 5.7).abs() < 1e-6 && (seconds("n2") - 3.7).abs() < 1e-6,
        "{} {}",
        seconds("n1"),
        seconds("n2")
    );
    assert_eq!(find(&records, "import_torch_seconds", &[("node", "n1"), ("cache", "warm")]).value, Some(0.7));
    assert_eq!(
        find(&records, "import_torch_seconds", &[("node", "n2"), ("cache", "warm")]).state,
        State::Unknown
    );
}

#[test]
fn the_environment_is_taken_out_of_raw_json() {
    let text =
        fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/nccl/v2.19_J.json")).unwrap();
    for cut in [text.len(), 200] {
        let (dir, _) = collected("collectives", StageState::Done, &[("nccl-tests/r.json", &text[..cut])]);
        let kept = fs::read_to_string(dir.path().join("raw/collectives/nccl-tests/r.json")).unwrap();
        assert!(kept.contains("\"HF_TOKEN\"") && !kept.contains("SECRET"), "{kept}");
        if cut == text.len() {
            serde_json::from_str::<serde_json::Value>(&kept).unwrap();
        }
    }
}

#[test]
fn audits_of_nodes_are_compared() {
    let node = |name: &str, kernel: &str, home: &str, data: &str| {
        format!(
            r#"{{"schema":"clustermax-audit/1","tool":"clustermax 0.1.0","node":"{name}","started":"2026-11-30T20:00:01Z","seconds":0.1,
            "home":"{home}","mounts":{{"/":{{"source":"/dev/vda1","fstype":"ext4"}},"/data":{{"source":"{data}","fstype":"nfs4"}}}},
            "items":[{{"stage":"inventory","metric":"node_info","value":1.0,"state":"measured","params":{{"kernel":"{kernel}"}},
              "subject":{{"node":"{name}"}},"verdict":"INFO","observed":"x"}},
             {{"stage":"audit","metric":"kptr_restrict","value":null,"state":"unavailable","subject":{{"node":"{name}"}},"verdict":"SKIP",
              "observed":"/proc/sys/kernel/kptr_restrict cannot be read"}}]}}"#
        )
    };
    let (one, two) = (
        node("n1", "6.1.0", "s:/home (nfs4) a", "s:/data"),
        node("n2", "6.1.9", "/dev/vda1 (ext4) a", "t:/data"),
    );
    let (_dir, records) = collected("inventory", StageState::Done, &[("n1.json", &one), ("n2.json", &two)]);
    assert_eq!(find(&records, "kernel_version_spread", &[]).value, Some(2.0));
    assert_eq!(find(&records, "driver_version_spread", &[]).state, State::Unavailable);
    let (_dir, records) =
        collected("audit", StageState::Done, &[("node-n1.json", &one), ("node-n2.json", &two)]);
    assert_eq!(find(&records, "home_shared", &[("node", "n1")]).value, Some(1.0));
    assert_eq!(find(&records, "home_shared", &[("node", "n2")]).value, Some(0.0));
    assert_eq!(find(&records, "mount_spread", &[]).value, Some(1.0));
    assert_eq!(find(&records, "kptr_restrict", &[("node", "n2")]).state, State::Unavailable);
    assert_eq!(find(&records, "slurm_gres_gpu", &[]).state, State::Unknown);
}

/// One file a rank, each on a node of its own, with these relative times.
fn ranks(times: &[f64], slowed: &str) -> Vec<Record> {
    let files: Vec<(String, String)> = times
        .iter()
        .enumerate()
        .map(|(rank, time)| {
            // The wall clock of every rank jumps about; only a simulated run may leave it aside.
            let windows: Vec<String> = (0..10).map(|w| format!("{}", time * (1.0 + 0.002 * f64::from(w % 3)))).collect();
            let windows = windows.join(",");
            let document = format!(
                r#"{{"torch":"2.6","device":"cpu","ranks":8,"started":"2026-11-30T20:00:01Z","complete":true,{slowed}
"node":"n{}","rank":{rank},"local_rank":0,"missing":[],"rows":[{{"dtype":"float32","n":512,"repeats":100,"differing_repeats":0,
"finite":true,"best_flops":1e9,"median_flops":1e9,"window_seconds":[{windows}],"window_cpu_seconds":[]}}]}}"#,
                rank + 1
            );
            (format!("rank-{rank}.json"), document)
        })
        .collect();
    let files: Vec<(&str, &str)> = files.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
    collected("gemm", StageState::Done, &files).1
}

#[test]
fn a_rank_that_is_20_percent_slower_is_named_and_natural_spread_is_not() {
    let spread = [0.99, 1.0, 1.01, 0.985, 1.02, 1.0, 1.015, 0.97];
    let calm = ranks(&spread, "");
    assert_eq!(find(&calm, "stragglers", &[]).value, Some(0.0));
    assert!(!calm.iter().any(|record| record.metric == "straggler"), "nobody is named");

    let mut slow = spread;
    slow[5] *= 1.2;
    let records = ranks(&slow, r#""slowed":{"rank":5,"percent":20},"#);
    let all = find(&records, "stragglers", &[("signal", "gemm fp32"), ("clock", "wall")]);
    assert_eq!((all.value, all.provenance), (Some(1.0), Provenance::Synthetic));
    assert!(all.detail.as_deref().unwrap().contains("rank 5 on n6"), "{all:?}");
    let one = find(&records, "straggler", &[("node", "n6"), ("rank", "5"), ("kind", "persistent")]);
    assert!((one.value.unwrap() - 20.0).abs() < 3.0, "{one:?}");
    assert!(one.detail.as_deref().unwrap().contains("on purpose"), "{one:?}");
}

#[test]
fn three_ranks_cannot_be_compared() {
    let records = ranks(&[1.0, 1.0, 2.0], "");
    assert_eq!(find(&records, "stragglers", &[]).state, State::Unavailable);
}

#[test]
fn a_burn_in_says_what_it_proves_and_what_not() {
    let rank = |rank: usize, wrong: i64, complete: bool| {
        let samples: Vec<String> = (1..=120)
            .map(|s| format!("[{s}.0,100,{},0.004,0.006]", if s > 108 { 0.005 } else { 0.004 }))
            .collect();
        let text = format!(
            r#"{{"torch":"2.6","device":"cpu","ranks":2,"started":"2026-11-30T20:00:01Z","complete":{complete},"node":"n{}","rank":{rank},
"local_rank":0,"collective":"all_reduce","dtype":"float32","n":1000,"seconds":120.0,"wrong":{wrong},"differing":0,"slowed":null,"samples":[{}]}}"#,
            rank + 1,
            samples.join(",")
        );
        (format!("rank-{rank}.json"), text)
    };
    let read = |ranks: &[(String, String)]| {
        let files: Vec<(&str, &str)> =
            ranks.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
        collected("burnin", StageState::Done, &files).1
    };
    let records = read(&[rank(0, 0, true), rank(1, 0, true)]);
    // 2 nodes for 120 s are 1/360 node-days.
    let bound = find(&records, "failure_rate_bound", &[]);
    assert!((bound.value.unwrap() - 1_080_000.0).abs() < 1.0, "{bound:?}");
    assert!(bound.detail.as_deref().unwrap().contains("far too short"), "{bound:?}");
    assert_eq!(find(&records, "burnin_gemm", &[("node", "n1"), ("stat", "median")]).value, Some(0.5));
    let drop = find(&records, "burnin_drop", &[("node", "n2")]).value.unwrap();
    assert!((drop - 20.0).abs() < 1.0, "{drop}");
    // Two ranks cannot be compared.
    assert_eq!(find(&records, "stragglers", &[]).state, State::Unavailable);
    for (bad, word) in [
        ([rank(0, 0, true), rank(1, 3, true)], "failure"),
        ([rank(0, 0, true), rank(1, 0, false)], "not every rank"),
    ] {
        let records = read(&bad);
        let bound = find(&records, "failure_rate_bound", &[]);
        assert!(bound.value.is_none() && bound.detail.as_deref().unwrap().contains(word), "{bound:?}");
    }
    assert_eq!(find(&read(&[rank(0, 0, true)]), "burnin_wrong", &[("node", "n2")]).state, State::Unknown);
}

#[test]
fn a_shrunk_run_says_so_and_is_resumed_at_its_own_size_only() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r");
    let args = |resume: bool, shrink: Option<u32>| Args {
        run: Some("r1".to_owned()),
        cluster: Some("c".to_owned()),
        nodes: vec!["n1".to_owned()],
        resume,
        shrink,
        ..Args::of("init", &path)
    };
    init(&args(false, Some(50))).unwrap();
    assert_eq!(Folder::open(&path).unwrap().run.shrink, Some(50));
    for other in [None, Some(2)] {
        let refused = init(&args(true, other)).unwrap_err().message;
        assert!(refused.contains("with --shrink 50"), "{refused}");
    }
    assert!(init(&args(true, Some(50))).is_ok());
    let whole = dir.path().join("w");
    init(&Args { dir: whole.clone(), ..args(false, Some(1)) }).unwrap();
    let text = fs::read_to_string(whole.join("run.json")).unwrap();
    assert!(!text.contains("shrink"), "{text}");
    let twice = init(&Args { dir: whole.clone(), ..args(false, None) }).unwrap_err().message;
    assert!(twice.contains("already holds run r1"), "{twice}");
}
