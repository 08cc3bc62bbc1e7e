#!/usr/bin/env python3
"""What `watch` needs at rest on a node with 8 GPUs and 8 InfiniBand ports, its NVML child reported beside it.

Usage (as root, after `cargo build --release --workspace`):
    tests/bench/watch_rest.py [--seconds 300] [--programs target/release]
"""

import argparse
import os
import time
from pathlib import Path

import bench

TICK = os.sysconf("SC_CLK_TCK")


def cpu(pid: int) -> tuple:
    """Seconds of processor time: own, and of children that ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    user, system, children_user, children_system = (int(f) for f in fields[11:15])
    return (user + system) / TICK, (children_user + children_system) / TICK


def memory(pid: int) -> dict:
    """Resident KiB by kind."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {
        k: int(v.split()[0])
        for k, v in (x.split(":", 1) for x in lines)
        if k in ("VmHWM", "VmRSS", "RssAnon")
    }


def nvml_child(pid: int) -> int:
    """The resident NVML child."""
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        if b"nvml-resident" in Path(f"/proc/{child}/cmdline").read_bytes():
            return int(child)
    raise SystemExit("watch has no NVML child")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--programs", type=Path, default=bench.PROGRAMS)
    args = parser.parse_args()
    options = ["--nodes", "1", "--gpus", "8", "--ib-ports", "8", "--health-interval", "3600", "--watch"]
    with bench.cluster(args.programs, *options) as c:
        bench.await_verdict(c, "n1")
        watch = c.watch_pid("n1")
        # Linux counts whole ticks; over minutes the error is small.
        before, nvml_before = cpu(watch), cpu(nvml_child(watch))
        start = time.monotonic()
        time.sleep(args.seconds)
        took = time.monotonic() - start
        after, nvml = cpu(watch), nvml_child(watch)
        own, ended = (100 * (b - a) / took for a, b in zip(before, after, strict=True))
        print(
            f"watch: {memory(watch)} KiB; processor {own:.3f} % of a core (bounds: 8192 KiB resident, 0.1 %)"
        )
        print(f"its short-lived children: processor {ended:.3f} % of a core")
        nvml_cpu = 100 * (cpu(nvml)[0] - nvml_before[0]) / took
        print(f"NVML child: {memory(nvml)} KiB; processor {nvml_cpu:.3f} % of a core")
        print(f"over {took:.0f} s")


if __name__ == "__main__":
    main()
