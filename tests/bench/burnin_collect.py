"""Time and memory of `clustermax collect` for a burn-in of many nodes, eight GPUs each, sampled every second.

Usage: tests/bench/burnin_collect.py [--nodes N] [--hours H] [--program CLUSTERMAX] [--folder DIR]

Writes about 6.5 MB a node for eight hours, and removes it. Prints what it wrote, how long collect took and
its largest resident size.
"""

import argparse
import json
import os
import pathlib
import random
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
RUN, GPUS, POINTS = "20261201T000000Z-1", 8, 600
sys.path.insert(0, str(ROOT / "batch-scripts/payload"))

import samples  # noqa: E402  (the payload's own writer: what it writes is what is read)


def node_lines(seconds, rng):
    """What the payload would have written for one node."""
    yield json.dumps({"schema": samples.SCHEMA, "kernel": "read"}) + "\n"
    before = []
    for second in range(seconds):
        groups = []
        for gpu in range(GPUS):
            heat, power = 60 + gpu + rng.choice((0, 0, 0, 1)), 640 + rng.randrange(60)
            clock = 1700 + 15 * rng.randrange(4)
            product = 4000 + rng.randrange(200)
            groups.append((heat, power, clock, 2619, "0", 240, product, product - 10, product + 2000))
        yield samples.encode(second, groups, before)
        before = [[str(value) for value in group] for group in groups]
        if second % 3600 == 1800:
            yield f"+{second} mlx5_0/1/symbol_error {second // 3600 + 1}\n"


def rank_document(node, rank, ranks, seconds, rng):
    points = [
        [round((at + 1) * seconds / POINTS, 3), 1000, 0.004 + rng.random() * 1e-4, 0.004, 0.006]
        for at in range(POINTS)
    ]
    return {
        **{"torch": "2.6", "device": "cuda", "ranks": ranks, "started": "2026-12-01T00:00:00Z"},
        **{"complete": True, "node": node, "rank": rank, "local_rank": rank % GPUS, "n": 8192},
        **{"collective": "alltoall", "dtype": "bfloat16", "seconds": float(seconds), "wrong": 0},
        **{"differing": 0, "slowed": None, "samples": points},
    }


def write(folder, count, seconds):
    """The results folder; how many bytes."""
    rng = random.Random(1)
    nodes = [f"n{at:04}" for at in range(1, count + 1)]
    part = folder / "raw/burnin/part-1"
    part.mkdir(parents=True)
    run = {"schema": "clustermax-run/1", "run": RUN, "cluster": "bench", "profile": "full", "nodes": nodes}
    run.update(started="2026-12-01T00:00:00Z", simulated=False, hardware="gpu")
    (folder / "run.json").write_text(json.dumps(run))
    # Nodes differ by their ranks alone: what is read is as long, and writing it takes seconds, not hours.
    lines = "".join(node_lines(seconds, rng))
    for at, node in enumerate(nodes):
        (part / f"{node}.samples").write_text(lines)
        for gpu in range(GPUS):
            rank = at * GPUS + gpu
            document = rank_document(node, rank, count * GPUS, seconds, rng)
            (part / f"rank-{rank}.json").write_text(json.dumps(document))
    parts = [{"part": 1, "nodes": nodes, "seconds": seconds, "ended": "complete", "failure": False}]
    (folder / "raw/burnin/parts.json").write_text(json.dumps(parts))
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=20)
    parser.add_argument("--hours", type=float, default=8)
    parser.add_argument("--program", type=pathlib.Path)
    parser.add_argument("--folder", help="where to write (default: the temporary folder)")
    args = parser.parse_args()
    built = [ROOT / "target/release/clustermax", ROOT / "target/debug/clustermax"]
    program = args.program or next((path for path in built if path.exists()), None)
    if program is None:
        sys.exit("burnin_collect.py: build clustermax first, or name it with --program")
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        folder, seconds = pathlib.Path(name), int(args.hours * 3600)
        size = write(folder, args.nodes, seconds)
        options = ["--state", "done", "--started", "2026-12-01T00:00:00Z", "--seconds", str(seconds)]
        begin = time.monotonic()
        child = os.posix_spawn(program, [program, "collect", *options, "burnin", folder], os.environ)
        _, status, usage = os.wait4(child, 0)
        took = time.monotonic() - begin
        records = sum(1 for _ in (folder / "records.jsonl").open()) if status == 0 else 0
    print(
        f"{args.nodes} nodes, {args.hours:g} h: {size / 1e6:.0f} MB raw, {records} records,"
        f" collect ended {os.waitstatus_to_exitcode(status)} after {took:.2f} s,"
        f" largest resident size {usage.ru_maxrss / 1024:.0f} MiB"
    )


if __name__ == "__main__":
    main()
