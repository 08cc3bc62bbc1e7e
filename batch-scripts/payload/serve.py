"""Serves a model on this node's GPUs by vLLM or SGLang and loads it with that program's own bench client.

Nothing is downloaded: the model folder holds the shape of Llama 3.1 8B and a tokenizer of made-up words,
weights are random ("dummy"). The server must answer within a deadline. Three loads: long prompts with one
token of answer (compute), one request at a time with a long answer (memory), and a few requests at once over
all GPUs (communication: every layer is cut over them). Writes serve.json, and the client's documents as they
come.
Exit 3: neither program is here.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import common
from titan import tokenizer_of

VOCABULARY = 128256
# case: prompt tokens, answer tokens, requests, requests at once
LOADS = {
    "prefill": (4096, 1, 32, 1),
    "decode": (32, 512, 8, 1),
    "tensor_parallel": (512, 128, 64, 8),
}
# A client that computes longer than this share of its time may be slower than the server.
SATURATED = 0.9


def model_files() -> dict[str, Any]:
    """The model folder of Hugging Face's form: file name to document."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": "bfloat16",
    }
    return {
        "config.json": config,
        "generation_config.json": {"bos_token_id": 1, "eos_token_id": 2},
        "tokenizer.json": tokenizer_of(VOCABULARY),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "<s>",
            "eos_token": "</s>",
            "unk_token": "<unk>",
            "model_max_length": 8192,
        },
    }


def server_command(program: str, path: str, model: Path, gpus: int, port: int) -> list[str]:
    """Command line of the server."""
    if program == "vllm":
        return [
            *(path, "serve", str(model), "--load-format", "dummy", "--dtype", "bfloat16"),
            *("--tensor-parallel-size", str(gpus), "--max-model-len", "8192"),
            *("--host", "127.0.0.1", "--port", str(port)),
        ]
    return [
        *(path, "-m", "sglang.launch_server", "--model-path", str(model), "--load-format", "dummy"),
        *("--dtype", "bfloat16", "--tp-size", str(gpus), "--context-length", "8192"),
        *("--host", "127.0.0.1", "--port", str(port)),
    ]


def sglang_client(python: str) -> str:
    """SGLang's bench client: newer releases have it under another name and only warn of the old one."""
    where = (
        common.NOT_HERE
        + "import importlib.util; print(importlib.util.find_spec('sglang').submodule_search_locations[0])"
    )
    said = subprocess.run([python, "-c", where], capture_output=True, text=True)
    new = Path(said.stdout.strip()) / "benchmark/serving.py"
    return "sglang.benchmark.serving" if said.returncode == 0 and new.exists() else "sglang.bench_serving"


def client_command(program: str, path: str, model: Path, case: str, port: int, out: Path) -> list[str]:
    """Command line of the bench client, which writes OUT."""
    prompt, answer, requests, at_once = (str(number) for number in LOADS[case])
    if program == "vllm":
        return [
            *(path, "bench", "serve", "--backend", "vllm", "--model", str(model)),
            *("--host", "127.0.0.1", "--port", str(port), "--dataset-name", "random", "--seed", "1"),
            *("--random-input-len", prompt, "--random-output-len", answer),
            *("--ignore-eos", "--temperature", "0"),
            *("--num-prompts", requests, "--max-concurrency", at_once),
            *("--percentile-metrics", "ttft,tpot,itl,e2el", "--metric-percentiles", "50,99"),
            *("--save-result", "--result-dir", str(out.parent), "--result-filename", out.name),
        ]
    return [
        *(path, "-m", sglang_client(path), "--backend", "sglang", "--model", str(model)),
        *("--host", "127.0.0.1", "--port", str(port), "--dataset-name", "random-ids", "--seed", "1"),
        *("--random-input-len", prompt, "--random-output-len", answer, "--random-range-ratio", "1"),
        *("--num-prompts", requests, "--max-concurrency", at_once, "--output-file", str(out)),
    ]


def program_of(python: str) -> tuple[str, str] | None:
    """Program and path: `vllm` of PATH or beside the interpreter, else SGLang in it."""
    beside = Path(python).parent / "vllm"
    vllm = str(beside) if os.access(beside, os.X_OK) else shutil.which("vllm")
    if vllm:
        return "vllm", vllm
    has = common.NOT_HERE + "import importlib.util; sys.exit(importlib.util.find_spec('sglang') is None)"
    if subprocess.run([python, "-c", has], stderr=subprocess.DEVNULL).returncode == 0:
        return "sglang", python
    return None


def wait_ready(server: subprocess.Popen[bytes], port: int, seconds: float) -> str | None:
    """None once the server answers, else why it does not."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if server.poll() is not None:
            return f"the server ended with code {server.returncode} before it answered"
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
                if answer.status == 200:
                    return None
        except (urllib.error.URLError, OSError):
            pass
        time.sleep(0.5)
    return f"the server did not answer within {seconds:.0f} s"


def timed(command: list[str], log: Any, limit: float) -> tuple[int, float]:
    """Exit code (124 at the limit) and the share of its time that the client computed, of one processor."""
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    try:
        code = subprocess.run(command, stdout=log, stderr=log, timeout=limit).returncode
    except subprocess.TimeoutExpired:
        code = 124
    after, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic() - begin
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return code, cpu / max(wall, 1e-9)


def main() -> int:
    p = common.parser(__doc__)
    p.add_argument("--folder", required=True, type=Path, help="empty folder for the model")
    p.add_argument("--gpus", type=int, default=1)
    p.add_argument("--ready", type=float, default=600.0, help="seconds the server may take to answer")
    p.add_argument("--limit", type=float, default=300.0, help="seconds one load may take")
    args = p.parse_args()
    found = program_of(sys.executable)
    if found is None:
        print("neither vLLM nor SGLang is installed: torch alone decodes in their place", file=sys.stderr)
        return 3
    program, path = found
    for name, document in model_files().items():
        common.write_json(args.folder / name, document)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = server_command(program, path, args.folder, args.gpus, port)
    document: dict[str, Any] = {
        "schema": "clustermax-payload/1",
        "payload": "serve",
        "program": program,
        "node": common.node_name(),
        "gpus": args.gpus,
        "model": "llama-3.1-8b",
        "data": "random weights, random tokens, nothing downloaded",
        "started": common.now(),
        "server": command,
        "ready_seconds": None,
        "error": None,
        "runs": [],
    }
    # No access to the network.
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", HF_HOME=str(args.folder / "hf"))
    with open(args.out / "serve.log", "wb") as log:
        begin = time.monotonic()
        server = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        try:
            document["error"] = wait_ready(server, port, args.ready)
            if document["error"] is None:
                document["ready_seconds"] = time.monotonic() - begin
                for case in LOADS:
                    out = args.out / f"serve-{case}.json"
                    client = client_command(program, path, args.folder, case, port, out)
                    code, share = timed(client, log, args.limit)
                    document["runs"].append(
                        {
                            "case": case,
                            "command": client,
                            "code": code,
                            "client_cpu": share,
                            "saturated": share > SATURATED,
                        }
                    )
                    if server.poll() is not None:
                        document["error"] = f"the server ended with code {server.returncode} under load"
                        break
        finally:
            # The server has workers of its own: its session ends as one.
            with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.killpg(server.pid, 15)
                server.wait(timeout=30)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(server.pid, 9)
            server.wait()
    common.write_json(args.out / "serve.json", document)
    print(json.dumps({"error": document["error"], "runs": len(document["runs"])}))
    return 0


if __name__ == "__main__":
    common.leave(main)
