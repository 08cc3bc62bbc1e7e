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

/// Saved to and loaded from a node's own disk, it says nothing of the storage that is rated; the bits count all the same.
#[test]
fn a_checkpoint_on_a_file_system_of_one_node_is_not_of_the_shared_storage() {
    for (nodes, kinds, shared) in [
        (1, r#"{"n1":"ext4"}"#, false),
        (2, r#"{"n1":"nfs4","n2":"xfs"}"#, false),
        (2, r#"{"n1":"nfs4","n2":"lustre"}"#, true),
        (1, r#"{"n1":null}"#, true),
    ] {
        let text = format!(
            r#"{{{HEAD},"nodes":{nodes},"fstype":{kinds},"bytes_per_rank":1000000000,"missing":[],"rows":[{{"api":"torch.save","nodes":["n1","n1"],
            "wrong":0,"error":null,"save":[[1.0,4.0]],"load":[[0.5,0.25]],"async_stall":[[0.1,0.2]],"async_save":[[3.0,4.0]]}}]}}"#
        );
        let records = collected("checkpoint", StageState::Done, &[("checkpoint.json", &text)]).1;
        let save = find(&records, "checkpoint_bandwidth", &[("op", "save"), ("api", "torch.save")]);
        assert_eq!(save.value.is_some(), shared, "{kinds}: {save:?}");
        if !shared {
            assert!(save.detail.as_deref().unwrap().contains("a file system of one node"), "{save:?}");
            let figures = records.iter().filter(|one| !one.unit.is_empty());
            assert!(figures.clone().all(|one| one.value.is_none()), "{records:?}");
        }
        assert_eq!(find(&records, "checkpoint_wrong", &[("api", "torch.save")]).value, Some(0.0));
    }
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

fn trained(ranks: u32, nodes: u32, speed: f64) -> String {
    format!(
        r#"{{"torch":"2.6","device":"cuda","gpu":"NVIDIA H100 80GB HBM3","ranks":{ranks},"started":"2026-11-30T20:00:01Z","complete":true,
        "model":"llama","shape":"small","dtype":"bfloat16","length":2048,"batch_per_rank":2,"warmup":1,"planned_steps":3,"loss":[5.5,4.0,3.0],
        "nodes":{nodes},"flops_per_token":1e10,"flops_formula":"6 N","tokens_per_second":{speed},
        "per_rank":[{{"rank":0,"node":"n1","step_seconds":[9.0,0.2,0.4],"checksum":5}},{{"rank":1,"node":"n2","step_seconds":[9.0,0.2,0.4],"checksum":6}}]}}"#
    )
}

#[test]
fn training_on_more_nodes_is_set_against_fewer() {
    let same = |text: String| text.replace("\"checksum\":6", "\"checksum\":5");
    let files = [
        ("train.json", same(trained(16, 2, 180_000.0))),
        ("nodes-1.json", same(trained(8, 1, 100_000.0))),
        ("titan.unavailable.txt", "torchtitan is not installed\n".to_owned()),
    ];
    let files: Vec<(&str, &str)> = files.iter().map(|(name, text)| (*name, text.as_str())).collect();
    let (_dir, records) = collected("train", StageState::Done, &files);
    let scaling = find(&records, "scaling_efficiency", &[("nodes", "2")]);
    assert_eq!((scaling.value, scaling.detail.as_deref()), (Some(90.0), Some("against 1 node")));
    // 11,250 tokens a second and GPU x 10 GFLOP = 112.5 TFLOP/s of 989.
    let mfu = find(&records, "mfu", &[("model", "llama-small")]);
    assert!((mfu.value.unwrap() - 11.375).abs() < 0.001, "{mfu:?}");
    assert_eq!(
        mfu.detail.as_deref(),
        Some("6 N by 989 TFLOP/s, the dense bf16 peak of NVIDIA H100 80GB HBM3")
    );
    let titan = find(&records, "tokens_per_second_per_rank", &[("model", "llama-3.1-8b")]);
    assert_eq!(
        (titan.state, titan.detail.as_deref()),
        (State::Unavailable, Some("torchtitan is not installed"))
    );
    // Step times are of the whole run only.
    assert_eq!(records.iter().filter(|record| record.metric == "step_time").count(), 4);
}

#[test]
fn ranks_that_end_with_other_weights_void_the_speed() {
    let (_dir, records) = collected("train", StageState::Done, &[("train.json", &trained(2, 2, 1000.0))]);
    let found = find(&records, "replicas_differing", &[]);
    assert_eq!((found.value, found.detail.as_deref()), (Some(1.0), Some("rank 1 on n2")));
    let speed = find(&records, "tokens_per_second", &[("model", "llama-small")]);
    assert!(speed.detail.as_ref().unwrap().contains("not those of the other ranks"), "{speed:?}");
}

/// What a rank computes wrongly hardly shows in the mean of many: of 16 a flipped one makes 3 %, and bf16 may leave its curve by 10.
#[test]
fn one_wrong_rank_of_many_is_found_where_it_trains_alone() {
    let good = "[5.5458,5.4574,5.3566,5.0581]";
    let row = |rank: usize, alone: &str| {
        format!(
            r#"{{"rank":{rank},"node":"n{}","step_seconds":[9.0,0.2,0.4],"checksum":5,"alone":{alone}}}"#,
            rank / 8 + 1
        )
    };
    let of = |twelfth: &str| {
        let rows: Vec<String> =
            (0..16).map(|rank| row(rank, if rank == 12 { twelfth } else { good })).collect();
        let base = trained(16, 2, 1000.0);
        let head = base.split("\"per_rank\"").next().unwrap();
        format!("{head}\"per_rank\":[{}]}}", rows.join(","))
    };
    let read = |text: &str| collected("train", StageState::Done, &[("train.json", text)]);
    let tiny = [("model", "llama-tiny"), ("dtype", "bf16"), ("ranks", "16"), ("nodes", "2")];

    let (_dir, records) = read(&of(good));
    assert_eq!(find(&records, "ranks_out_of_band", &tiny).value, Some(0.0));
    assert_eq!(find(&records, "rank_loss_deviation", &tiny).value, Some(0.0));
    assert_eq!(find(&records, "tokens_per_second", &[("model", "llama-small")]).state, State::Measured);

    for (bad, word) in
        [("[5.5458,5.6,5.8,6.9]", "6.9000 against 5.0581"), ("[5.5458,null,null,null]", "no number")]
    {
        let (_dir, records) = read(&of(bad));
        let count = find(&records, "ranks_out_of_band", &tiny);
        assert_eq!((count.value, count.detail.as_deref()), (Some(1.0), Some("rank 12 on n2")));
        let off = find(&records, "rank_loss_deviation", &tiny);
        assert!(off.detail.as_ref().unwrap().contains("rank 12 on n2"), "{off:?}");
        assert!(off.detail.as_ref().unwrap().contains(word), "{off:?}");
        let speed = find(&records, "tokens_per_second", &[("model", "llama-small")]);
        assert_eq!(speed.state, State::Unknown);
        assert!(speed.detail.as_ref().unwrap().contains("rank 12 on n2"), "{speed:?}");
    }
    // A rank that told nothing proves nothing.
    let (_dir, records) = read(&of("[]"));
    let none = find(&records, "ranks_out_of_band", &tiny);
    assert_eq!(
        (none.state, none.detail.as_deref()),
        (State::Unknown, Some("rank 12 on n2 did not train alone"))
    );
}

const TITAN: &str = r#"{"schema":"clustermax-payload/1","payload":"titan","torchtitan":"0.2.0","model":"llama-3.1-8b","ranks":16,"seq":8192,"batch":1,
"steps":30,"dtype":"bfloat16","compile":false,"flops_per_token":51471998976.0,"flops_formula":"6 (N - input embedding) + 6 L d s",
"data":"random weights","started":"2026-11-30T20:00:01Z","command":"python -m torchtitan.train --job.config_file ./titan.toml"}"#;

#[test]
fn torchtitans_log_is_read_with_what_was_run() {
    let line = |step: u32, loss: f64, tps: &str| {
        format!(
            "[rank0]:[titan] 2026-06-01 10:00:00,000 - root - INFO - \u{1b}[31mstep: {step:2}  \u{1b}[32mloss: {loss:7.4}  \u{1b}[38;2;180;60;0mgrad_norm: 1.2  \u{1b}[33mmemory: 40.15GiB(42.3%)  \u{1b}[34mtps: {tps}  \u{1b}[36mtflops: 296.6  \u{1b}[35mmfu: 29.99%\u{1b}[0m\n"
        )
    };
    let validation = "[rank0]:INFO - validate step:  1  loss: 99.0  memory: 1GiB  tps: 1\n";
    let log = [line(1, 12.2, "412"), validation.to_owned(), line(2, 11.0, "5,762"), line(3, 10.0, "5,762")]
        .concat();
    let files = [("titan-llama.json", TITAN), ("titan-llama.log", log.as_str())];
    let (_dir, records) = collected("train", StageState::Done, &files);
    let speed =
        find(&records, "tokens_per_second_per_rank", &[("model", "llama-3.1-8b"), ("program", "torchtitan")]);
    assert_eq!((speed.value, speed.tool.as_deref()), (Some(5762.0), Some("torchtitan 0.2.0")));
    assert_eq!((&speed.params["dtype"], &speed.params["seq"]), (&Scalar::from("bf16"), &Scalar::Int(8192)));
    assert_eq!(find(&records, "loss_last", &[("program", "torchtitan")]).value, Some(10.0));
    let flops = find(&records, "training_flops", &[("program", "torchtitan")]);
    assert!((flops.value.unwrap() - 296.58).abs() < 0.01, "{flops:?}");

    let dead = [("titan-llama.json", TITAN), ("titan-llama.log", "Traceback\nRuntimeError: out of memory\n")];
    let (_dir, records) = collected("train", StageState::Failed, &dead);
    let none = find(&records, "tokens_per_second_per_rank", &[("model", "llama-3.1-8b")]);
    assert_eq!(none.detail.as_deref(), Some("torchtitan logged no step: RuntimeError: out of memory"));
}

#[test]
fn a_server_is_read_by_its_clients_documents_and_a_saturated_client_is_said() {
    let client = r#"{"backend":"vllm","model_id":"/x/serve.tmp","num_prompts":8,"completed":8,"request_throughput":1.5,"output_throughput":96.0,
        "total_token_throughput":99.0,"median_ttft_ms":40.0,"p99_ttft_ms":90.0,"p50_tpot_ms":7.0,"p99_tpot_ms":9.0}"#;
    let text = r#"{"program":"vllm","node":"n1","gpus":8,"model":"llama-3.1-8b","data":"random weights","started":"2026-11-30T20:00:01Z",
        "ready_seconds":61.5,"error":"the server ended with code 1 under load","runs":[
        {"case":"prefill","command":["vllm","bench"],"code":0,"client_cpu":0.95,"saturated":true},
        {"case":"decode","command":["vllm","bench"],"code":124,"client_cpu":0.1,"saturated":false}]}"#;
    let files = [("serve.json", text), ("serve-prefill.json", client)];
    let (_dir, records) = collected("inference", StageState::Done, &files);
    let speed = find(&records, "output_tokens_per_second", &[("case", "prefill"), ("model", "llama-3.1-8b")]);
    assert_eq!((speed.value, &speed.params["parts"]), (Some(96.0), &Scalar::Int(8)));
    assert!(speed.detail.as_ref().unwrap().contains("95 % of its time"), "{speed:?}");
    assert_eq!(find(&records, "tpot", &[("stat", "p99")]).value, Some(9.0));
    assert_eq!(find(&records, "ttft", &[("stat", "p99")]).value, Some(90.0));
    assert_eq!(find(&records, "server_ready_seconds", &[("node", "n1")]).value, Some(61.5));
    for (case, why) in [("decode", "stopped at its limit"), ("tensor_parallel", "under load")] {
        let none = find(&records, "output_tokens_per_second", &[("case", case)]);
        assert!(none.value.is_none() && none.detail.as_ref().unwrap().contains(why), "{none:?}");
    }
}
