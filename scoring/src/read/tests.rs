use super::*;

const NCCL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/nccl");

fn sample(name: &str) -> (String, Hints) {
    let bytes = std::fs::read(format!("{NCCL}/{name}")).unwrap();
    (String::from_utf8_lossy(&bytes).into_owned(), Hints { name: name.to_owned(), ..Hints::default() })
}

fn read_sample(name: &str) -> Reading {
    let (text, hints) = sample(name);
    read(&text, &hints).unwrap_or_else(|why| panic!("{name} {why}"))
}

fn one<'a>(reading: &'a Reading, metric: &str, params: &[(&str, &str)]) -> &'a Found {
    let fits = |found: &&Found| {
        found.metric == metric
            && params
                .iter()
                .all(|(key, value)| found.params.get(*key).is_some_and(|seen| seen.to_string() == *value))
    };
    let all: Vec<&Found> = reading.found.iter().filter(fits).collect();
    assert_eq!(all.len(), 1, "{metric} {params:?} in {:#?}", reading.found);
    all[0]
}

fn text(text: &str) -> Reading {
    read(text, &Hints::default()).unwrap()
}

/// Every sample of nccl-tests and rccl-tests gives its best bandwidth, or unknown where EXPECTED.tsv says that it is
/// no result.
#[test]
fn every_collective_sample_is_recognised() {
    let table = std::fs::read_to_string(format!("{NCCL}/EXPECTED.tsv")).unwrap();
    let mut seen = 0;
    for line in table.lines().skip(1) {
        let want: Vec<&str> = line.split('\t').collect();
        let reading = read_sample(want[0]);
        let measured: Vec<&Found> =
            reading.found.iter().filter(|found| found.metric == "busbw" && found.value.is_some()).collect();
        // hypercube is not one of the collectives whose busbw has a rank count; its file names none.
        assert_eq!(!measured.is_empty(), want[1] == "ok", "{}: {:?}", want[0], reading.found);
        for found in &reading.found {
            assert_eq!(found.value.is_some(), found.state == State::Measured);
        }
        seen += 1;
    }
    assert_eq!(seen, 21);
}

#[test]
fn nccl_json_gives_what_the_text_gives_and_no_environment() {
    let (json, hints) = sample("v2.19_J.json");
    let reading = read(&json, &hints).unwrap();
    let found = one(&reading, "busbw", &[("size", "8589934592"), ("ranks", "16"), ("nodes", "2")]);
    assert_eq!((found.value, found.pointer.as_deref()), (Some(389.669_754), Some("/results/5")));
    assert_eq!(found.params["collective"], Scalar::from("all_reduce"));
    assert_eq!(one(&reading, "wrong_values", &[]).value, Some(0.0));
    assert!(reading.tool.contains("NCCL 2.29.0"), "{}", reading.tool);
    let printed =
        format!("{}{:?}", table(&reading, Path::new("r.json")), records(&reading, Path::new("/r.json"), "0"));
    assert!(!printed.contains("SECRET"), "{printed}");

    // "nan" as a string; a bare inf, which is no JSON; a document that a killed run left open.
    let nan = read_sample("J_nan-as-string.json");
    assert!(one(&nan, "busbw", &[]).detail.as_deref().unwrap().contains("not a finite number"));
    let inf = json.replacen("\"bus_bw\":389.669754", "\"bus_bw\":inf", 1);
    assert!(one(&text(&inf), "busbw", &[]).detail.as_deref().unwrap().contains("not a finite number"));
    for at in [json.len() - 2, json.len() - 200, json.find("\"size\":536870912").unwrap() + 5] {
        let found = text(&json[..at]);
        let found = one(&found, "busbw", &[]);
        assert_eq!(found.state, State::Unknown);
        assert!(found.detail.as_deref().unwrap().contains("cut short"), "{found:?}");
    }
    // Booleans are strings; versions 1 and 2 have fewer keys.
    let wrong = json.replace("\"okay\":\"true\"", "\"okay\":\"false\"");
    assert!(one(&text(&wrong), "busbw", &[]).detail.as_deref().unwrap().contains("wrong values"));
    let old = json.replace("\"version\":3", "\"version\":1").replace(",\"per_iter_skip\":0", "");
    assert!(one(&text(&old), "busbw", &[("size", "8589934592")]).value.is_some());
}

const CSV: &str = "numCycle,name,nodes,ranks,ranksPerNode,gpusPerRank,size,type,redop,inPlace,time,algBw,busBw,wrong\n\
               0,AllReduce,2,16,8,1,8589934592,float,sum,0,41332.762462,207.823869,389.669754,0\n\
               0,AllReduce,2,16,8,1,8589934592,float,sum,1,41332.762462,207.823869,389.669754,N/A\n";

#[test]
fn the_reporter_of_rccl_tests_in_both_forms() {
    let json = read_sample("rccl_reporter_Z-json.json");
    let want =
        one(&json, "busbw", &[("size", "8589934592"), ("backend", "rccl"), ("ranks", "16"), ("nodes", "2")]);
    assert_eq!(want.value, Some(389.669_754));
    let csv = CSV;
    let csv = text(csv);
    assert_eq!(one(&csv, "busbw", &[("collective", "all_reduce"), ("size", "8589934592")]).value, want.value);
    assert_eq!(one(&csv, "wrong_values", &[]).value, Some(0.0));
}

#[test]
fn a_result_no_wire_can_carry_is_refused() {
    let (text, hints) = sample("v2.19_allreduce.txt");
    let refusal = |text: &str, hints: &Hints| {
        let reading = read(text, hints).unwrap();
        reading.found.iter().find(|f| f.metric == "busbw" && f.value.is_none()).and_then(|f| f.detail.clone())
    };
    // Section 2.2 of the field's arithmetic: B = 50, g = 8: k = 2 gives 750, so 389.67 stands; B = 20 gives 300.
    assert_eq!(refusal(&text, &Hints { network: Some(50.0), ..hints.clone() }), None);
    let slow = refusal(&text, &Hints { network: Some(20.0), ..hints.clone() }).unwrap();
    assert!(slow.contains("300.0 GB/s") && slow.contains("16 ranks on 2 nodes"), "{slow}");
    // The link of the GPUs in the table bounds it without any option.
    let old = refusal(&text.replace("NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB"), &hints).unwrap();
    assert!(old.contains("330.0 GB/s"), "{old}");
    // The ratio says 16 ranks, the table lists 15; or 12 were started.
    let line = text.lines().find(|line| line.contains("Rank 15")).unwrap();
    let fewer = refusal(&text.replace(&format!("{line}\n"), ""), &hints).unwrap();
    assert!(fewer.contains("means 16 ranks") && fewer.contains("lists 15"), "{fewer}");
    let started = refusal(&text, &Hints { ranks: Some(12), ..hints }).unwrap();
    assert!(started.contains("12 were started"), "{started}");
}

#[test]
fn ceilings_of_the_published_table() {
    let all_reduce = |k: u64| collectives::ceiling("all_reduce", k * 8, k, Some(50.0), None).unwrap().0;
    for (k, want) in [(2, 750.0), (4, 517.0), (8, 450.0), (16, 423.0)] {
        assert!((all_reduce(k) - want).abs() < 1.0, "{k}: {}", all_reduce(k));
    }
    let all_to_all = |k: u64| collectives::ceiling("alltoall", k * 8, k, Some(50.0), None).unwrap().0;
    for (k, want) in [(2, 93.8), (4, 64.6), (8, 56.3)] {
        assert!((all_to_all(k) - want).abs() < 0.1, "{k}: {}", all_to_all(k));
    }
    assert_eq!(collectives::ceiling("broadcast", 8, 1, None, Some(450.0)), None);
    assert_eq!(collectives::ceiling("all_reduce", 1, 1, None, Some(450.0)), None);
}

const DIAG4: &str = r#"Successfully ran diagnostic for group.
{"DCGM Diagnostic":{"metadata":{"version":"4.2.3"},"test_categories":[{"category":"Hardware","tests":[
{"name":"memory","results":[{"entity_group":"GPU","entity_id":0,"status":"Pass"},
{"entity_group":"GPU","entity_id":1,"status":"Fail","warnings":[{"error_id":62,"warning":"GPU 1 memory\nerror"}]},
{"entity_group":"CPU","entity_id":0,"status":"Skip"}],"test_summary":{"status":"Fail"}}]}]}}"#;
const DIAG3: &str = r#"{"DCGM GPU Diagnostic":{"test_categories":[{"category":"Deployment","tests":[
{"name":"Denylist","results":[{"status":"PASS"}]},
{"name":"PCIe","results":[{"gpu_ids":"0,1","status":"WARN","warnings":"replays"},{"gpu_ids":"2","status":"Not Run"}]}]}]}}"#;

#[test]
fn dcgmi_diag_of_both_generations() {
    let new = text(DIAG4);
    assert_eq!(new.tool, "dcgmi diag 4.2.3");
    let bad = new.found.iter().find(|found| found.subject.gpu == Some(1)).unwrap();
    assert_eq!((bad.value, bad.detail.as_deref()), (Some(0.0), Some("GPU 1 memory error (error 62)")));
    assert_eq!(one(&new, "dcgm_diag", &[("entity", "CPU")]).state, State::Unavailable);
    let old = text(DIAG3);
    assert_eq!(one(&old, "dcgm_diag", &[("test", "Denylist")]).value, Some(1.0));
    let pcie: Vec<_> =
        old.found.iter().filter(|found| found.params["test"] == Scalar::from("PCIe")).collect();
    assert_eq!(
        pcie.iter().map(|f| (f.subject.gpu, f.value)).collect::<Vec<_>>(),
        [(Some(0), Some(0.0)), (Some(1), Some(0.0)), (Some(2), None)]
    );
}

const NVBANDWIDTH: &str = "nvbandwidth Version: v0.5\nBuilt from Git version: v0.5\n\nDevice 0: NVIDIA H200\n\n\
Running host_to_device_memcpy_ce.\nmemcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)\n           0         1\n 0     55.40     55.38\n\n\
SUM host_to_device_memcpy_ce 110.78\n\nRunning device_to_device_memcpy_write_ce.\nmemcpy CE GPU(row) <- GPU(column) bandwidth (GB/s)\n\
           0         1\n 0      0.00    396.10\n 1    395.90      N/A\n\nSUM device_to_device_memcpy_write_ce 792.00\n\n\
Running multinode_x.\nWaived: \n";

const NVBANDWIDTH_JSON: &str = r#"{"nvbandwidth":{"CUDA Runtime Version":12040,"Version":"v0.8","testcases":[
    {"name":"device_to_device_memcpy_read_ce","status":"Passed","bandwidth_description":"memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)",
     "bandwidth_matrix":[["N/A","396.10"],["395.90","N/A"]],"sum":792.0},
    {"name":"multinode_device_to_device","status":"Waived"}]}}"#;

#[test]
fn nvbandwidth_in_both_forms() {
    let json = NVBANDWIDTH_JSON;
    let reading = text(json);
    assert_eq!(one(&reading, "copy_bandwidth", &[("row", "0"), ("column", "1")]).value, Some(396.10));
    assert_eq!(
        one(&reading, "copy_bandwidth", &[("test", "multinode_device_to_device")]).state,
        State::Unavailable
    );
    assert_eq!(reading.found.len(), 3);
    let plain = NVBANDWIDTH;
    let reading = text(plain);
    assert_eq!(reading.tool, "nvbandwidth v0.5");
    assert_eq!(
        one(&reading, "copy_bandwidth", &[("test", "host_to_device_memcpy_ce"), ("column", "1")]).value,
        Some(55.38)
    );
    let d2d: Vec<_> = reading
        .found
        .iter()
        .filter(|found| found.params["test"] == Scalar::from("device_to_device_memcpy_write_ce"))
        .collect();
    assert_eq!(d2d.len(), 2, "the diagonal is no measurement: {d2d:?}");
    assert_eq!(one(&reading, "copy_bandwidth", &[("test", "multinode_x")]).state, State::Unavailable);
}

const WRITE_BW: &str = "
---------------------------------------------------------------------------------------
                    RDMA_Write BW Test
 Dual-port       : OFF\t\tDevice         : mlx5_0
 Number of qps   : 1\t\tTransport type : IB
---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 65536      5000             0.00               392.12 \t\t   0.747916
---------------------------------------------------------------------------------------
";

const WRITE_LAT: &str = "                    RDMA_Write Latency Test\n #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec] \n 2       1000          1.02           5.31         1.05               1.06             0.12            1.40                    5.31   \n";

#[test]
fn perftest_bandwidth_and_latency() {
    let reading = text(WRITE_BW);
    let found = one(&reading, "rdma_bandwidth", &[("device", "mlx5_0"), ("test", "rdma_write_bw")]);
    assert_eq!((found.value, &found.params["stat"]), (Some(392.12), &Scalar::from("average")));
    let mebibytes = text(&WRITE_BW.replace("Gb/sec", "MB/sec").replace("392.12", "46744.35"));
    let value = one(&mebibytes, "rdma_bandwidth", &[]).value.unwrap();
    assert!((value - 392.12).abs() < 0.01, "{value}");
    let latency = WRITE_LAT;
    let reading = text(latency);
    assert_eq!(one(&reading, "rdma_latency", &[("stat", "typical")]).value, Some(1.05));
    assert_eq!(one(&reading, "rdma_latency", &[("stat", "p99")]).value, Some(1.40));
    let failed = text("RDMA_Write BW Test\nCouldn't connect to n2:18515\n");
    let found = one(&failed, "rdma_bandwidth", &[]);
    assert_eq!(
        (found.state, found.detail.as_deref()),
        (State::Unknown, Some("Couldn't connect to n2:18515"))
    );
}

fn titan() -> String {
    let line = |rank: u64, step: u64, loss: &str, tps: &str| {
        format!(
            "[rank{rank}]:[titan] 2025-06-01 10:00:00,000 - root - INFO - \u{1b}[31mstep: {step:2}  \u{1b}[32mloss: {loss}  \u{1b}[33mmemory: 40.15GiB(42.3%)  \u{1b}[34mtps: {tps}  \u{1b}[36mtflops: 303.10  \u{1b}[35mmfu: 34.70%\u{1b}[39m\n"
        )
    };
    [
        "NCCL version 2.27.7\n".to_owned(),
        line(0, 1, "12.2403", "412"),
        line(1, 1, "12.2403", "400"),
        line(0, 10, "9.5", "5,762"),
        line(0, 20, "7.25", "5,770"),
        line(0, 30, "6.125", "5,768"),
    ]
    .concat()
}

#[test]
fn torchtitan_log_with_colours_and_ranks() {
    let log = titan();
    let reading = text(&log);
    assert_eq!(one(&reading, "tokens_per_second_per_rank", &[]).value, Some(5768.0));
    assert_eq!(one(&reading, "mfu", &[]).value, Some(34.7));
    assert_eq!(one(&reading, "loss_first", &[("step", "1")]).value, Some(12.2403));
    assert_eq!(one(&reading, "loss_last", &[("step", "30")]).value, Some(6.125));
    let nan = text(&log.replace("6.125", "nan"));
    assert_eq!(one(&nan, "loss_last", &[]).state, State::Unknown);
}

const VLLM: &str = r#"{"date":"20260601","backend":"vllm","model_id":"m","num_prompts":100,"request_rate":Infinity,"max_concurrency":null,"completed":98,
    "request_throughput":10.5,"output_throughput":1300.0,"total_token_throughput":2600.5,"mean_ttft_ms":40.0,"median_ttft_ms":38.5,"p99_ttft_ms":90.0,"median_tpot_ms":7.1}"#;

#[test]
fn vllm_bench_and_its_infinite_rate() {
    let run = VLLM;
    let reading = text(run);
    let found = one(&reading, "output_tokens_per_second", &[("model", "m"), ("request_rate", "inf")]);
    assert_eq!(found.value, Some(1300.0));
    assert_eq!(one(&reading, "requests_failed", &[]).value, Some(2.0));
    assert_eq!(one(&reading, "ttft", &[("stat", "p99")]).value, Some(90.0));
    let dead = text(&run.replace("\"completed\":98", "\"completed\":0"));
    assert_eq!(one(&dead, "request_throughput", &[]).state, State::Unknown);
    let two = run.replace("Infinity", "\"inf\"").replace('\n', "");
    assert_eq!(text(&format!("{two}\n{two}\n")).found.len(), reading.found.len() * 2);
}

const SGLANG: &str = r#"{"backend":"sglang","dataset_name":"random","request_rate":8.0,"max_concurrency":16,"sharegpt_output_len":null,
"duration":60.0,"completed":480,"request_throughput":8.0,"input_throughput":8192.0,"output_throughput":2048.0,
"total_throughput":10240.0,"mean_e2e_latency_ms":900.5,"median_ttft_ms":45.25,"p99_ttft_ms":90.0,"mean_tpot_ms":6.5}"#;

/// Keys as sglang.bench_serving writes them: its own names for the total and for the whole request.
#[test]
fn sglang_bench_is_told_from_vllm() {
    let reading = text(SGLANG.replace('\n', "").as_str());
    assert_eq!(reading.format, "SGLang bench JSON");
    assert_eq!(one(&reading, "total_tokens_per_second", &[("concurrency", "16")]).value, Some(10240.0));
    assert_eq!(one(&reading, "e2e_latency", &[("stat", "mean")]).value, Some(900.5));
    assert_eq!(one(&reading, "ttft", &[("stat", "p99")]).value, Some(90.0));
}

const IPERF3: &str = r#"{"start":{"version":"iperf 3.12"},"intervals":[],"end":{"sum_sent":{"bits_per_second":9.41e9,"retransmits":12},"sum_received":{"bits_per_second":9.38e9}}}"#;
const INSPECTOR: &str = r#"{"header":{"id":"0x1","rank":0,"n_ranks":8,"nnodes":1},"metadata":{"inspector_output_format_version":"v5.1"},"coll_perf":{"coll":"AllReduce","coll_sn":1,"coll_msg_size_bytes":17179869184,"coll_exec_time_us":61974,"coll_busbw_gbs":485.1}}"#;

#[test]
fn iperf3_and_the_inspector_are_recognised() {
    let reading = text(IPERF3);
    assert_eq!((reading.format, reading.tool.as_str()), ("iperf3 JSON", "iperf 3.12"));
    assert_eq!(one(&reading, "tcp_bandwidth", &[]).value, Some(9.38));
    let reading = text(INSPECTOR);
    assert_eq!(reading.tool, "NCCL Inspector v5.1");
    assert_eq!(one(&reading, "busbw", &[("collective", "all_reduce"), ("ranks", "8")]).value, Some(485.1));
}

const FIO: &str = r#"fio: warning
{"fio version":"fio-3.33","global options":{"bs":"1M"},"jobs":[
{"jobname":"seq","error":0,"job options":{"rw":"write","iodepth":"8"},"read":{"bw_bytes":0,"iops":0},
 "write":{"bw_bytes":250000000,"iops":238.4,"clat_ns":{"percentile":{"50.000000":1000000,"99.000000":9000000}}},"sync":{}},
{"jobname":"full","error":28,"read":{"bw_bytes":0},"write":{"bw_bytes":0}}]}"#;

#[test]
fn fio_says_what_failed() {
    let fio = FIO;
    let reading = text(fio);
    assert_eq!(
        one(&reading, "fio_bandwidth", &[("job", "seq"), ("bs", "1M"), ("iodepth", "8")]).value,
        Some(250.0)
    );
    assert_eq!(one(&reading, "fio_latency", &[("percentile", "99")]).value, Some(9.0));
    let full = one(&reading, "fio_bandwidth", &[("job", "full")]);
    assert!(full.detail.as_deref().unwrap().contains("error 28"), "{full:?}");
    assert!(text(&fio[..fio.len() - 60]).found.iter().all(|found| found.value.is_none()));
}

#[test]
fn an_unknown_format_is_one_sentence() {
    for unknown in ["", "  \n", "hello\n", "{\"a\":1}", "[]", "step: one\n", "a,b\n1,2\n"] {
        let why = read(unknown, &Hints::default()).unwrap_err();
        assert_eq!(why.lines().count(), 1);
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x");
    std::fs::write(&path, "hello").unwrap();
    let args = Args {
        files: vec![path, folder.path().join("gone")],
        json: true,
        collective: None,
        ranks: None,
        network: None,
    };
    let failure = run(&args).unwrap_err();
    assert_eq!(failure.code, 2);
    assert!(
        failure.message.contains("in no format") && failure.message.contains("gone cannot be read"),
        "{failure}"
    );
}

/// What a file says of itself must not drive the terminal.
#[test]
fn a_hostile_file_prints_no_escape_sequence() {
    let hostile = NVBANDWIDTH.replace("host_to_device", "\u{1b}[2J\u{202e}");
    let lines = lines(&text(&hostile), Path::new("a\u{1b}[31m.txt"));
    assert!(lines.contains("?[2J?_memcpy_ce") && lines.ends_with('\n'), "{lines}");
    assert!(!lines.contains(['\u{1b}', '\u{202e}']), "{lines}");
}

#[test]
fn every_metric_is_listed_with_its_unit() {
    let list = include_str!("../../data/metrics.tsv");
    let mut seen = 0;
    let mut texts: Vec<String> = [DIAG3, DIAG4, WRITE_BW].map(str::to_owned).into();
    texts.extend(["v2.19_J.json", "v2.19_allreduce.txt"].map(|name| sample(name).0));
    for reading in texts.iter().map(|sample| text(sample)) {
        for found in &reading.found {
            let row = list.lines().find(|line| line.split('\t').next() == Some(found.metric));
            let row: Vec<&str> =
                row.unwrap_or_else(|| panic!("{} is not listed", found.metric)).split('\t').collect();
            assert_eq!((row[1], row[2]), (found.stage, found.unit), "{}", found.metric);
            seen += 1;
        }
        for record in records(&reading, Path::new("/a/../b.json"), &"0".repeat(64)) {
            record.check().unwrap();
        }
    }
    assert!(seen > 30, "{seen}");
}

/// A text of every kind that is read.
fn every_text() -> Vec<(String, String, Hints)> {
    let mut all: Vec<(String, String, Hints)> = std::fs::read_dir(NCCL)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| !name.ends_with(".tsv"))
        .map(|name| {
            let (text, hints) = sample(&name);
            (name, text, hints)
        })
        .collect();
    for (name, text) in [
        ("dcgmi diag 4", DIAG4),
        ("dcgmi diag 3", DIAG3),
        ("perftest bandwidth", WRITE_BW),
        ("perftest latency", WRITE_LAT),
        ("nvbandwidth", NVBANDWIDTH),
        ("nvbandwidth -j", NVBANDWIDTH_JSON),
        ("vLLM", VLLM),
        ("SGLang", SGLANG),
        ("iperf3", IPERF3),
        ("NCCL Inspector", INSPECTOR),
        ("fio", FIO),
        ("torchtitan", &titan()),
        ("rccl-tests -Z csv", CSV),
    ] {
        all.push((name.to_owned(), text.to_owned(), Hints::default()));
    }
    all
}

/// A disk that filled up, a copy that broke off: what is left of a number is another number.
#[test]
fn a_text_that_was_cut_gives_no_figure_that_the_whole_one_has_not() {
    let mut wrong = Vec::new();
    for (name, whole, hints) in every_text() {
        let of_whole = read(&whole, &hints).unwrap().found;
        let step = if whole.len() > 2000 { whole.len() / 40 } else { 1 + whole.len() / 300 };
        for at in (0..whole.len()).rev().step_by(step).filter(|at| whole.is_char_boundary(*at)) {
            let Ok(reading) = read(&whole[..at], &hints) else { continue };
            for found in reading.found.iter().filter(|found| found.value.is_some()) {
                let same = |other: &&Found| {
                    (other.metric, &other.params, &other.subject)
                        == (found.metric, &found.params, &found.subject)
                };
                // Of fewer logged steps there are others.
                let fewer = name == "torchtitan" && !of_whole.iter().any(|other| same(&other));
                if !fewer && !of_whole.iter().filter(same).any(|other| other.value == found.value) {
                    wrong.push(format!("{name} cut at {at} of {}: {found:?}", whole.len()));
                }
            }
        }
    }
    let first: Vec<&String> = wrong.iter().take(20).collect();
    assert!(wrong.is_empty(), "{} figures: {first:#?}", wrong.len());
}

proptest::proptest! {
    #[test]
    fn no_text_panics(text in "(?s).{0,300}") {
        let _ = read(&text, &Hints::default());
    }

    /// Any sample, cut anywhere and with a piece replaced: never a panic, and never a value without a state.
    #[test]
    fn no_damage_panics(which in 0usize..10, cut in 0.0f64..1.0, hole in 0.0f64..1.0, filler in "[0-9a-z\\[\\]{}:,\" \n.-]{0,12}") {
        let fixed = [DIAG3.to_owned(), DIAG4.to_owned(), WRITE_BW.to_owned(), sample("v2.19_J.json").0, sample("v2.19_allreduce.txt").0,
            sample("rccl_reporter_Z-json.json").0, sample("v2.17_inplace-only-blank-columns.txt").0,
            "step: 1  loss: 2.0  tps: 3\nstep: 2  loss: 1.0  tps: 3\n".to_owned(),
            "Running a.\nx (row) (column) bandwidth (GB/s)\n 0 1\n 0 1.0 N/A\n".to_owned(),
            "{\"request_throughput\":1,\"output_throughput\":2,\"completed\":3}".to_owned()];
        let text = &fixed[which];
        let edge = |share: f64| {
            let mut at = (text.len() as f64 * share) as usize;
            while !text.is_char_boundary(at) { at -= 1; }
            at
        };
        let damaged = format!("{}{filler}{}", &text[..edge(hole)], &text[edge(hole)..]);
        for text in [&damaged, &text[..edge(cut)].to_owned()] {
            if let Ok(reading) = read(text, &Hints::default()) {
                for found in &reading.found {
                    proptest::prop_assert_eq!(found.value.is_some(), found.state == State::Measured);
                }
                let _ = table(&reading, Path::new("x"));
            }
        }
    }
}
