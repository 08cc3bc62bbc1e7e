//! The torch payloads without Slurm: several ranks on this machine, by the interpreter that has torch.

#![allow(clippy::expect_used, clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

fn payload(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../batch-scripts/payload").join(name)
}

/// Runs a payload as so many ranks, each a node of its own; exit codes.
fn ranks(count: usize, out: &Path, name: &str, args: &[&str]) -> Vec<i32> {
    ranks_with(count, out, name, args, &[])
}

fn ranks_with(count: usize, out: &Path, name: &str, args: &[&str], env: &[(&str, &str)]) -> Vec<i32> {
    let start = |rank: usize| -> Child {
        Command::new("/usr/bin/python3")
            .args(["-B".as_ref(), payload(name).as_os_str(), "--out".as_ref(), out.as_os_str()])
            .args(["--rank", &rank.to_string(), "--ranks", &count.to_string(), "--threads", "1"])
            .args(args)
            .env("SLURMD_NODENAME", format!("n{}", rank + 1))
            .envs(env.iter().copied())
            .stdout(Stdio::null())
            .spawn()
            .expect("python3")
    };
    let children: Vec<Child> = (0..count).map(start).collect();
    children.into_iter().map(|mut child| child.wait().unwrap().code().unwrap_or(-1)).collect()
}

fn json(path: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).expect("document")).expect("JSON")
}

#[test]
fn a_module_called_torch_that_ends_the_interpreter_is_named() {
    let (out, path) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    std::fs::write(path.path().join("torch.py"), "raise SystemExit('not the torch you want')\n").unwrap();
    let status = Command::new("/usr/bin/python3")
        .args(["-B".as_ref(), payload("probe.py").as_os_str(), "--out".as_ref(), out.path().as_os_str()])
        .env("PYTHONPATH", path.path())
        .stderr(Stdio::null())
        .status()
        .unwrap();
    assert_eq!(status.code(), Some(3));
    let detail = json(&out.path().join("probe.json"))["detail"].to_string();
    let file = path.path().join("torch.py");
    let words = format!("cannot import torch (SystemExit: not the torch you want) from {}; ", file.display());
    assert!(detail.contains(&words) && detail.contains(" or unset PYTHONPATH"), "{detail}");
}

#[test]
fn a_checkpoint_goes_to_the_folder_and_comes_back_bit_for_bit() {
    let out = tempfile::tempdir().unwrap();
    let folder = out.path().join("work");
    std::fs::create_dir(&folder).unwrap();
    let folder_text = folder.display().to_string();
    let args = ["--folder", folder_text.as_str(), "--megabytes", "1"];
    assert_eq!(ranks(2, out.path(), "checkpoint.py", &args), [0, 0]);
    let document = json(&out.path().join("checkpoint.json"));
    assert_eq!(document["complete"], true);
    let kinds: Vec<&Value> = document["fstype"].as_object().expect("by node").values().collect();
    assert!(
        kinds.len() == 2 && kinds.iter().all(|kind| kind.as_str().is_some_and(|kind| !kind.is_empty())),
        "{document}"
    );
    let rows = document["rows"].as_array().unwrap();
    let row = rows.iter().find(|row| row["api"] == "torch.save").expect("one file a rank");
    assert_eq!((&row["wrong"], &row["error"]), (&Value::from(0), &Value::Null), "{row}");
    for op in ["save", "load"] {
        assert_eq!(row[op][0].as_array().unwrap().len(), 2, "{row}");
        assert!(row[op][0].as_array().unwrap().iter().all(|seconds| seconds.as_f64() > Some(0.0)), "{row}");
    }
    // DCP is measured or named with the reason, and nothing is left on the storage.
    let missing = document["missing"].as_array().unwrap();
    assert_eq!(rows.len() + missing.len(), 2, "{document}");
    assert!(missing.iter().all(|missing| missing["state"] == "unavailable"), "{document}");
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
}

/// Of Debian's torch 16 MB lie in its folder and 530 MB elsewhere: dropping the folder alone is not cold.
#[test]
fn a_cold_import_drops_what_lies_outside_of_torchs_folder() {
    let folder = tempfile::tempdir().unwrap();
    let torch = folder.path().join("torch");
    std::fs::create_dir(&torch).unwrap();
    std::fs::write(torch.join("__init__.py"), "import beside\n__version__ = '2.6.0'\n").unwrap();
    std::fs::write(folder.path().join("beside.py"), "").unwrap();
    // Other payloads do not see a torch.py of the current folder, so a timed import must not.
    let current = tempfile::tempdir().unwrap();
    std::fs::write(current.path().join("torch.py"), "raise RuntimeError\n").unwrap();
    let run = |program: &str| {
        let out = Command::new("/usr/bin/python3")
            .args(["-B", "-c", program])
            .env("PYTHONPATH", format!("{}:{}", folder.path().display(), payload("").display()))
            .env("SLURMD_NODENAME", "n1")
            .current_dir(&current)
            .output()
            .expect("python3");
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8_lossy(&out.stdout).into_owned()
    };
    let opened = run("import import_time; print(*import_time.opened(), sep='\\n')");
    let has = |name: &str| opened.lines().any(|line| line == folder.path().join(name).to_str().unwrap());
    assert!(has("torch/__init__.py") && has("beside.py"), "{opened}");
    // The interpreter's own libraries are mapped, not imported.
    assert!(opened.contains("/libc.so"), "{opened}");
    run(&format!(
        "import sys, import_time; sys.argv = ['import_time.py', '--out', {:?}]; import_time.main()",
        folder.path()
    ));
    let document = json(&folder.path().join("import.n1.json"));
    assert!(
        document["dropped_files"].as_u64().unwrap() > 2 && document["dropped_bytes"].as_u64().unwrap() > 1000
    );
    assert!(document["cold_seconds"].as_f64().is_some() && document["torch"] == "2.6.0", "{document}");
}

#[test]
fn memory_is_copied_and_compared() {
    let out = tempfile::tempdir().unwrap();
    assert_eq!(ranks(1, out.path(), "memory.py", &["--bytes", "4194304", "--seconds", "0.05"]), [0]);
    let document = json(&out.path().join("memory-0.json"));
    for (number, op) in ["copy", "triad"].iter().enumerate() {
        let row = &document["rows"][number];
        assert_eq!((&row["op"], &row["wrong"]), (&Value::from(*op), &Value::from(0)), "{row}");
        assert!(
            row["best"].as_f64() >= row["median"].as_f64() && row["median"].as_f64() > Some(0.0),
            "{row}"
        );
    }
    assert!(document["missing"][0]["detail"].as_str().unwrap().contains("GPU"), "{document}");
}

/// Records of stage train of a run on two nodes whose raw folder is filled by FILL.
fn trained(fill: impl FnOnce(&Path)) -> Vec<Value> {
    let dir = tempfile::tempdir().unwrap();
    let results = dir.path().join("results");
    let clustermax = |args: &[&str]| {
        let said = Command::new(env!("CARGO_BIN_EXE_clustermax"))
            .arg("collect")
            .args([args[0], &results.display().to_string()])
            .args(&args[1..])
            .output()
            .expect("clustermax");
        assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    };
    clustermax(&["init", "--run", "r1", "--cluster", "c1", "--nodes", "n1,n2"]);
    let raw = results.join("raw/train");
    std::fs::create_dir_all(&raw).unwrap();
    fill(&raw);
    clustermax(&["train", "--state", "done"]);
    let text = std::fs::read_to_string(results.join("records.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn one<'a>(records: &'a [Value], metric: &str, model: &str) -> &'a Value {
    let found = |record: &&Value| record["metric"] == metric && record["params"]["model"] == model;
    records.iter().find(found).unwrap_or_else(|| panic!("no {metric} of {model} in {records:#?}"))
}

#[test]
fn a_training_run_keeps_to_its_reference_and_one_with_a_wrong_rank_does_not() {
    let conf = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(conf.path(), "# Written by clustermax-sim\n").unwrap();
    let conf = conf.path().display().to_string();
    let run = |wrong: &str| {
        trained(|raw| {
            let env = [("CLUSTERMAX_WRONG_RANK", wrong), ("SLURM_CONF", conf.as_str())];
            let args = ["--steps", "20", "--alone", "10"];
            assert_eq!(ranks_with(2, raw, "train.py", &args, &env), [0, 0]);
        })
    };
    let good = run("");
    assert_eq!(one(&good, "loss_in_band", "llama-tiny")["value"], 1.0, "{good:#?}");
    assert!(one(&good, "loss_deviation", "llama-tiny")["value"].as_f64() < Some(0.5), "{good:#?}");
    assert_eq!(one(&good, "replicas_differing", "llama-tiny")["value"], 0.0);
    assert_eq!(one(&good, "ranks_out_of_band", "llama-tiny")["value"], 0.0);
    assert!(one(&good, "rank_loss_deviation", "llama-tiny")["value"].as_f64() < Some(0.5), "{good:#?}");
    assert_eq!(one(&good, "tokens_per_second", "llama-tiny")["state"], "measured");

    for (wrong, word) in [("1:flip", "did not fall"), ("0:nan", "no number")] {
        let bad = run(wrong);
        let flag = one(&bad, "loss_in_band", "llama-tiny");
        assert_eq!((&flag["value"], &flag["provenance"]), (&Value::from(0.0), &"synthetic".into()), "{flag}");
        let ranks = one(&bad, "ranks_out_of_band", "llama-tiny");
        let name = format!("rank {} on ", &wrong[..1]);
        assert_eq!(ranks["value"], 1.0, "{ranks}");
        assert!(ranks["detail"].as_str().unwrap().starts_with(&name), "{ranks}");
        let speed = one(&bad, "tokens_per_second", "llama-tiny");
        assert_eq!(speed["state"], "unknown", "{speed}");
        assert!(speed["detail"].as_str().unwrap().contains(word), "{speed}");
    }
}

#[test]
fn wrong_gradients_are_made_on_simulated_clusters_only() {
    let out = tempfile::tempdir().unwrap();
    for (wrong, conf) in [("0:flip", "/dev/null"), ("9:flip", "/dev/null"), ("0:twice", "/dev/null")] {
        let env = [("CLUSTERMAX_WRONG_RANK", wrong), ("SLURM_CONF", conf)];
        assert_eq!(ranks_with(1, out.path(), "train.py", &[], &env), [2], "{wrong}");
    }
}

/// Stands for vLLM: a server that answers /health, and a bench client that writes what vLLM's does.
const VLLM: &str = r#"#!/usr/bin/python3
import http.server, json, os, sys
if sys.argv[1] == "serve":
    if os.environ.get("FAKE") == "dies":
        sys.exit(7)
    class Health(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200 if self.path == "/health" else 404)
            self.end_headers()
    port = int(sys.argv[sys.argv.index("--port") + 1])
    assert os.path.exists(os.path.join(sys.argv[2], "config.json"))
    http.server.HTTPServer(("127.0.0.1", port), Health).serve_forever()
option = lambda name: sys.argv[sys.argv.index(name) + 1]
path = os.path.join(option("--result-dir"), option("--result-filename"))
json.dump({"num_prompts": int(option("--num-prompts")), "input": option("--random-input-len")}, open(path, "w"))
"#;

#[test]
fn a_server_is_waited_for_loaded_and_ended() {
    let out = tempfile::tempdir().unwrap();
    let bin = tempfile::tempdir().unwrap();
    let vllm = bin.path().join("vllm");
    std::fs::write(&vllm, VLLM).unwrap();
    std::fs::set_permissions(&vllm, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let (folder, path) = (out.path().join("model"), format!("{}:/usr/bin:/bin", bin.path().display()));
    std::fs::create_dir(&folder).unwrap();
    let folder = folder.display().to_string();
    let args = ["--folder", folder.as_str(), "--gpus", "8", "--ready", "60"];
    assert_eq!(ranks_with(1, out.path(), "serve.py", &args, &[("PATH", &path)]), [0]);
    let document = json(&out.path().join("serve.json"));
    assert_eq!(
        (&document["program"], &document["error"]),
        (&Value::from("vllm"), &Value::Null),
        "{document}"
    );
    let server = document["server"].as_array().unwrap();
    let at = server.iter().position(|word| word == "--tensor-parallel-size").unwrap();
    assert_eq!((&server[at + 1], &server[at - 2]), (&Value::from("8"), &Value::from("--dtype")));
    for (case, prompt) in [("prefill", "4096"), ("decode", "32"), ("tensor_parallel", "512")] {
        let client = json(&out.path().join(format!("serve-{case}.json")));
        assert_eq!(client["input"], prompt, "{case}");
    }
    // Nothing listens any more.
    let port =
        server.iter().position(|word| word == "--port").and_then(|at| server[at + 1].as_str()).unwrap();
    assert!(std::net::TcpStream::connect(format!("127.0.0.1:{port}")).is_err());

    let env = [("PATH", path.as_str()), ("FAKE", "dies")];
    assert_eq!(ranks_with(1, out.path(), "serve.py", &args, &env), [0]);
    let document = json(&out.path().join("serve.json"));
    assert_eq!(document["error"], "the server ended with code 7 before it answered", "{document}");
    assert_eq!(
        ranks_with(1, out.path(), "serve.py", &args, &[("PATH", "/usr/bin:/bin")]),
        [3],
        "no server here"
    );
}

#[test]
fn torchtitan_is_configured_for_each_release_and_its_absence_said() {
    let out = tempfile::tempdir().unwrap();
    let script = "
import sys, pathlib, tomllib, json
sys.path.insert(0, sys.argv[1])
import titan
work = pathlib.Path(sys.argv[2])
llama, moe = titan.MODELS['llama'], titan.MODELS['moe']
titan.prepare(work, '0.2.0', llama, 20, False, 8)
toml = tomllib.load(open(work / 'titan.toml', 'rb'))
assert toml['model'] == {'name': 'llama3', 'flavor': '8B', 'hf_assets_path': './tokenizer'}, toml
assert toml['training']['seq_len'] == 8192 and toml['checkpoint']['enable'] is False, toml
# 0.2.1 moved the seed, and every release refuses a key that it does not know.
assert toml['training']['seed'] == 1 and 'debug' not in toml, toml
toml = tomllib.loads(titan.toml_of('0.2.1+cu128', moe, 20, False, 8))
assert toml['debug'] == {'seed': 1} and 'seed' not in toml['training'], toml
assert toml['parallelism'] == {'data_parallel_shard_degree': -1, 'expert_parallel_degree': 8}, toml
assert len(json.load(open(work / 'tokenizer/tokenizer.json'))['model']['vocab']) == 128256
assert json.loads(open(work / 'tests/assets/c4_test/data.json').readline())['text'].startswith('w')
assert titan.arguments_of('0.2.0', llama, 20, False, 8) == ['--job.config_file', './titan.toml']
new = titan.arguments_of('0.3.0', moe, 20, True, 4)
assert new[:4] == ['--module', 'deepseek_v3', '--config', 'deepseek_v3_16b'] and '--compile.enable' in new, new
assert new[new.index('--parallelism.expert_parallel_degree') + 1] == '4', new
assert abs(titan.flops_per_token(llama) / 51.5e9 - 1) < 0.001
assert titan.release('0.2.1+cu128') == (0, 2, 1) and titan.release('nightly') == (0,)
assert titan.release('0.2') == (0, 2) and titan.release('0.3.0.dev20260901') == (0, 3, 0)
";
    let said = Command::new("/usr/bin/python3")
        .args(["-B", "-c", script])
        .arg(payload(""))
        .arg(out.path())
        .output()
        .expect("python3");
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    let folder = out.path().display().to_string();
    assert_eq!(ranks(1, out.path(), "titan.py", &["--folder", &folder]), [3]);
}

/// NCCL's log lies in the stage's folder whatever the site sets, and only of one rank a node where there may be many.
#[test]
fn nccls_log_tells_its_way_whatever_the_site_sets() {
    let script = r"
import argparse, os, pathlib, sys
sys.path.insert(0, sys.argv[1])
import common
ALL = 'INIT,BOOTSTRAP,ENV,NET'
for local, every, given, level, subsystems in [
    (0, False, {}, 'INFO', ALL),
    (1, False, {}, 'WARN', ALL),
    (1, True, {}, 'INFO', ALL),
    (0, False, {'NCCL_DEBUG': 'warn', 'NCCL_DEBUG_FILE': '/dev/null'}, 'INFO', ALL),
    (1, False, {'NCCL_DEBUG': 'info', 'NCCL_DEBUG_SUBSYS': 'COLL'}, 'INFO', ALL + ',COLL'),
    (0, False, {'NCCL_DEBUG': 'TRACE', 'NCCL_DEBUG_SUBSYS': 'ALL'}, 'TRACE', 'ALL'),
    (0, False, {'NCCL_DEBUG_SUBSYS': '^NET'}, 'INFO', ALL),
]:
    for name in ('NCCL_DEBUG', 'NCCL_DEBUG_SUBSYS', 'NCCL_DEBUG_FILE'):
        os.environ.pop(name, None)
    os.environ.update(given)
    common.nccl_log(argparse.Namespace(local_rank=local, out=pathlib.Path('/r/raw/train')), every)
    found = [os.environ[name] for name in ('NCCL_DEBUG', 'NCCL_DEBUG_SUBSYS', 'NCCL_DEBUG_FILE')]
    assert found[0].upper() == level and found[1:] == [subsystems, '/r/raw/train/nccl-torch.%h.%p.log'], (given, found)
";
    let said = Command::new("/usr/bin/python3")
        .args(["-B", "-c", script])
        .arg(payload(""))
        .output()
        .expect("python3");
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
}

/// Runs Python with the payloads' modules; what it printed.
fn python(code: &str, env: &[(&str, &str)]) -> String {
    let said = Command::new("/usr/bin/python3")
        .args(["-B", "-c", code])
        .env("PYTHONPATH", payload(""))
        .envs(env.iter().copied())
        .output()
        .expect("python3");
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    String::from_utf8_lossy(&said.stdout).into_owned()
}

/// The driver hangs after the first second: what it said then is not what the GPUs do later, and the end waits for nobody.
#[test]
fn a_hung_nvidia_smi_repeats_nothing_and_holds_nothing_up() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("nvidia-smi");
    let text = "#!/bin/bash\ntrap '' TERM\necho 'GPU-a, 4, 41, 300, 1700, 2600, 0x0000000000000008, 0'\n\
                echo 'GPU-b, 5, 42, 310, 1710, 2600, 0x0000000000000000, 1'\nwhile :; do read -t 60 <> <(:); done\n";
    std::fs::write(&program, text).unwrap();
    std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let file = folder.path().join("n1.samples");
    let code = format!(
        "import samples, time, pathlib\nsamples.STALE = 1.5\n\
         log = samples.NodeLog(pathlib.Path({file:?}), {{'node': 'n1'}}, 2, True)\ntime.sleep(3.3)\nlog.end()\n"
    );
    let path = format!("{}:/usr/bin:/bin", folder.path().display());
    // Rank 0 uses the second GPU: of the job's GPUs, one by its number, one by its name.
    python(&code, &[("PATH", &path), ("CUDA_VISIBLE_DEVICES", "5,GPU-a")]);
    let text = std::fs::read_to_string(&file).unwrap();
    let lines: Vec<&str> =
        text.lines().filter(|line| line.starts_with(|c: char| c.is_ascii_digit())).collect();
    assert!(
        lines.iter().any(|line| line.contains("42,310,1710,2600,0") && line.contains(";41,300,1700,2600,8")),
        "{text}"
    );
    let last = lines.last().unwrap();
    assert!(last.starts_with("3 ") && !last.contains("42") && text.contains(" -,-,-,-,-"), "{text}");
    assert!(text.contains("gpu5/ecc_uncorrected 1"), "{text}");
}

/// The disk takes half a line, then nothing, then is well again.
#[test]
fn a_line_that_a_full_disk_cut_says_so_and_no_value_is_made_up() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("x");
    let code = format!(
        "import samples, resource\nlines = samples.Lines({file:?})\n\
         soft = lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))\n\
         soft(8)\nprint(lines.add('0 50\\n'), lines.add('1 600\\n'), lines.add('2 700\\n'))\n\
         soft(resource.RLIM_INFINITY)\nprint(lines.add('3 80\\n'))\n"
    );
    assert_eq!(python(&code, &[]), "True False False\nTrue\n");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "0 50\n1 6#\n3 80\n");
}

/// SGLang moved its bench client; the old name warns today and is gone one day.
#[test]
fn sglangs_bench_client_is_called_by_the_name_that_its_release_has() {
    let folder = tempfile::tempdir().unwrap();
    let package = folder.path().join("sglang");
    std::fs::create_dir(&package).unwrap();
    // A package that cannot be imported: it is only looked for.
    std::fs::write(package.join("__init__.py"), "raise SystemExit(9)\n").unwrap();
    let path = format!("{}:{}", payload("").display(), folder.path().display());
    let code = "import pathlib, serve\n\
                words = serve.client_command('sglang', '/usr/bin/python3', pathlib.Path('/m'), 'decode', 80, pathlib.Path('/o'))\n\
                print(words[2])\n";
    assert_eq!(python(code, &[("PYTHONPATH", &path)]), "sglang.bench_serving\n");
    std::fs::create_dir(package.join("benchmark")).unwrap();
    std::fs::write(package.join("benchmark/serving.py"), "").unwrap();
    assert_eq!(python(code, &[("PYTHONPATH", &path)]), "sglang.benchmark.serving\n");
}

/// Of many products one has one wrong bit, in the last place of one number: that one is counted, and a calm run counts none.
#[test]
fn one_flipped_bit_of_one_product_is_found() {
    let out = tempfile::tempdir().unwrap();
    let code = "
import os, sys, torch, gemm
right, calls = torch.matmul, [0]
def wrong(a, b, out):
    right(a, b, out=out)
    calls[0] += 1
    if calls[0] == int(os.environ['FLIP']):
        out.view(torch.int32)[3, 4] ^= 1
    return out
torch.matmul = wrong
sys.argv = 'gemm.py --rank 0 --ranks 1 --threads 1 --size 64 --seconds 0.2 --out'.split() + [os.environ['OUT']]
gemm.main()
";
    let folder = out.path().display().to_string();
    for (flip, differing) in [("7", 1), ("-1", 0)] {
        python(code, &[("FLIP", flip), ("OUT", &folder), ("SLURMD_NODENAME", "n1")]);
        let document = json(&out.path().join("rank-0.json"));
        let row = &document["rows"][0];
        assert!(row["repeats"].as_i64() > Some(7) && document["node"] == "n1", "{document}");
        assert_eq!(row["differing_repeats"], differing, "{row}");
    }
}
