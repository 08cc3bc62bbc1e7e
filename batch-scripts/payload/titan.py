"""torchtitan's training of Llama 3.1 8B or of a mixture of experts (DeepSeek-V3 16B), as one task a GPU.

Nothing is downloaded: weights are random, the text is seeded words, and the tokenizer knows only those. Text,
tokenizer and torchtitan's configuration are written into FOLDER/MODEL, where torchtitan then runs; its log is
OUT/titan-MODEL.log, what was run OUT/titan-MODEL.json. Exit 3: there is no torchtitan that can be used.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import random
import re
import runpy
import socket
import sys
import time
from pathlib import Path
from typing import Any

import common

# Per model: torchtitan's name and flavour, its function in the registry of 0.3, our name, and the shape.
MODELS: dict[str, dict[str, Any]] = {
    "llama": {
        "module": "llama3",
        "flavor": "8B",
        "config": "llama3_8b",
        "model": "llama-3.1-8b",
        "vocabulary": 128256,
        "seq": 8192,
        "batch": 1,
        "experts": 1,
        "layers": 32,
        "dim": 4096,
        # 8.03e9 less the input embedding.
        "active": 7_504_924_672,
    },
    "moe": {
        "module": "deepseek_v3",
        "flavor": "16B",
        "config": "deepseek_v3_16b",
        "model": "deepseek-v3-16b",
        "vocabulary": 102400,
        "seq": 4096,
        "batch": 4,
        "experts": 8,
    },
}
WORDS = 20000


def release(version: str) -> tuple[int, ...]:
    """Major, minor and patch of a version, without what follows them; (0,) when it has none."""
    numbers = re.match(r"\d+(\.\d+){0,2}", version)
    return tuple(int(part) for part in numbers[0].split(".")) if numbers else (0,)


def tokenizer_of(vocabulary: int) -> dict[str, Any]:
    """tokenizer.json of the `tokenizers` library: a word is a token, as many as the model has."""
    words = {"<unk>": 0, "<s>": 1, "</s>": 2}
    for number in range(vocabulary - len(words)):
        words[f"w{number}"] = len(words)
    special = [
        {
            "id": number,
            "content": text,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for number, text in enumerate(("<unk>", "<s>", "</s>"))
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special,
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "<unk>"},
    }


def text_of(vocabulary: int, documents: int = 512, length: int = 2000) -> list[dict[str, str]]:
    """Seeded text with the rule of train.py: the next word follows from this one, one in eight is random."""
    draw = random.Random(20240603)
    count = min(WORDS, vocabulary - 3)
    found = []
    for _ in range(documents):
        word, words = draw.randrange(count), []
        for _ in range(length):
            word = draw.randrange(count) if draw.random() < 0.125 else (3 * word + 7) % count
            words.append(f"w{word}")
        found.append({"text": " ".join(words)})
    return found


def toml_of(version: str, model: dict[str, Any], steps: int, compile_model: bool, ranks: int) -> str:
    """Configuration of torchtitan 0.2, which refuses a key that it does not know."""
    experts = min(model["experts"], ranks)
    # 0.2.1 has moved it.
    seed = "[debug]\nseed = 1\n" if release(version) >= (0, 2, 1) else ""
    return f"""[job]
dump_folder = "./outputs"
[model]
name = "{model["module"]}"
flavor = "{model["flavor"]}"
hf_assets_path = "./tokenizer"
[optimizer]
name = "AdamW"
lr = 3e-4
[lr_scheduler]
warmup_steps = {max(1, steps // 5)}
[training]
dataset = "c4_test"
local_batch_size = {model["batch"]}
seq_len = {model["seq"]}
steps = {steps}
{seed or "seed = 1"}
[parallelism]
data_parallel_shard_degree = -1
expert_parallel_degree = {experts}
[metrics]
log_freq = 1
[checkpoint]
enable = false
[activation_checkpoint]
mode = "selective"
[compile]
enable = {str(compile_model).lower()}
"""


def arguments_of(
    version: str, model: dict[str, Any], steps: int, compile_model: bool, ranks: int
) -> list[str]:
    """torchtitan's command line: 0.2 reads a file, 0.3 and later have a registry of configurations."""
    if release(version) < (0, 3):
        return ["--job.config_file", "./titan.toml"]
    experts = min(model["experts"], ranks)
    return [
        *("--module", model["module"], "--config", model["config"]),
        *("--dump_folder", "./outputs", "--hf_assets_path", "./tokenizer"),
        *("--dataloader.dataset", "c4_test"),
        *("--training.local_batch_size", str(model["batch"]), "--training.seq_len", str(model["seq"])),
        *("--training.steps", str(steps), "--debug.seed", "1"),
        *("--parallelism.expert_parallel_degree", str(experts)),
        *("--metrics.log_freq", "1", "--metrics.no-enable_tensorboard"),
        "--profiler.no-enable_profiling",
        "--checkpoint.no-enable",
        *(["--compile.enable"] if compile_model else []),
    ]


def flops_per_token(model: dict[str, Any]) -> float | None:
    """6 (N - input embedding) + 6 L d s, causal attention; none for a model whose shape is not listed."""
    if "active" not in model:
        return None
    return 6.0 * model["active"] + 6.0 * model["layers"] * model["dim"] * model["seq"]


def found() -> tuple[str | None, str]:
    """torchtitan's version when it can be used, else none and why."""
    if importlib.util.find_spec("torchtitan") is None:
        return (
            None,
            f"torchtitan is not installed for {sys.executable}; the suite's own models stand in its place",
        )
    try:
        version = importlib.metadata.version("torchtitan")
    except importlib.metadata.PackageNotFoundError:
        version = getattr(importlib.import_module("torchtitan"), "__version__", "0.0")
    if release(version) < (0, 2):
        return None, f"torchtitan {version} needs a tokenizer that cannot be made here; install 0.2 or newer"
    return version, ""


def prepare(
    work: Path, version: str, model: dict[str, Any], steps: int, compile_model: bool, ranks: int
) -> None:
    """Configuration, tokenizer and text; that lies where c4_test of every version is looked for."""
    (work / "tokenizer").mkdir(parents=True, exist_ok=True)
    common.write_json(work / "tokenizer/tokenizer.json", tokenizer_of(model["vocabulary"]))
    common.write_json(
        work / "tokenizer/tokenizer_config.json",
        {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True, "add_eos_token": False},
    )
    lines = "".join(json.dumps(document) + "\n" for document in text_of(model["vocabulary"]))
    (work / "tests/assets/c4_test").mkdir(parents=True, exist_ok=True)
    (work / "tests/assets/c4_test/data.json").write_text(lines)
    (work / "titan.toml").write_text(toml_of(version, model, steps, compile_model, ranks))


def address(meeting: Path, rank: int, timeout: float) -> tuple[str, int]:
    """Where rank 0 will listen; it leaves host and a free port in the output folder."""
    if rank == 0:
        with socket.socket() as probe:
            probe.bind(("", 0))
            port = probe.getsockname()[1]
        common.write_json(meeting, {"host": socket.gethostname(), "port": port})
    deadline = time.monotonic() + timeout
    while not meeting.exists():
        if time.monotonic() > deadline:
            raise SystemExit(f"rank 0 left no address in {meeting} within {timeout:.0f} s")
        time.sleep(0.1)
    where = json.loads(meeting.read_text())
    return where["host"], where["port"]


def main() -> int:
    p = common.parser(__doc__)
    p.add_argument("--model", choices=sorted(MODELS), default="llama")
    p.add_argument("--folder", required=True, type=Path, help="where torchtitan runs; seen by all nodes")
    p.add_argument("--steps", type=int, default=20)
    p.add_argument("--compile", action="store_true", help="torch.compile, as reviewers also run it")
    args = p.parse_args()
    common.Beat(args)
    version, why = found()
    if version is None:
        print(why, file=sys.stderr)
        return 3
    model = MODELS[args.model]
    name = f"titan-{args.model}"
    work = args.folder / args.model
    meeting = args.out / f"{name}.{os.environ.get('SLURM_STEP_ID', '0')}.meeting.json"
    arguments = arguments_of(version, model, args.steps, args.compile, args.ranks)
    if args.rank == 0:
        prepare(work, version, model, args.steps, args.compile, args.ranks)
        common.write_json(
            args.out / f"{name}.json",
            {
                "schema": "clustermax-payload/1",
                "payload": "titan",
                "torchtitan": version,
                "model": model["model"],
                "ranks": args.ranks,
                "seq": model["seq"],
                "batch": model["batch"],
                "steps": args.steps,
                "dtype": "bfloat16",
                "compile": args.compile,
                "flops_per_token": flops_per_token(model),
                "flops_formula": "6 (N - input embedding) + 6 L d s a token, N active",
                "data": "random weights, seeded synthetic words, nothing downloaded",
                "started": common.now(),
                "command": f"python -m torchtitan.train {' '.join(arguments)}",
            },
        )
    host, port = address(meeting, args.rank, args.timeout)
    os.chdir(work)
    os.environ.update(
        RANK=str(args.rank),
        WORLD_SIZE=str(args.ranks),
        LOCAL_RANK=str(args.local_rank),
        MASTER_ADDR=host,
        MASTER_PORT=str(port),
        # No access to the network, and no cache outside of this folder.
        HF_HOME=str(work / "hf"),
        HF_HUB_OFFLINE="1",
        HF_DATASETS_OFFLINE="1",
        TOKENIZERS_PARALLELISM="false",
    )
    common.nccl_log(args)
    if args.rank == 0:
        log = os.open(args.out / f"{name}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(log, 1)
        os.dup2(log, 2)
    sys.argv = ["torchtitan.train", *arguments]
    runpy.run_module("torchtitan.train", run_name="__main__")
    return 0


if __name__ == "__main__":
    common.leave(main)
