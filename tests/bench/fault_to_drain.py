#!/usr/bin/env python3
"""From a fault's line in the kernel log to a drained node in `scontrol show node`, with `watch`.

Writes an Xid 79 line to /dev/kmsg and asks scontrol until the node is drained; then gives the node back.
Beside it: what Slurm itself needs for a drain, by `scontrol update`, from the same moment to the same sight.

Usage (as root, after `cargo build --release --workspace`):
    tests/bench/fault_to_drain.py [--injections 50] [--programs target/release]
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import bench


def seen(c: bench.Cluster, cause: Callable[[], object]) -> float:
    """Milliseconds from a cause to DRAIN in scontrol."""
    start = time.perf_counter()
    cause()
    while "DRAIN" not in c.state("n1"):
        if time.perf_counter() - start > 30:
            raise SystemExit(f"not drained within 30 s: see {c.dir}/log/watch-n1.out")
    return (time.perf_counter() - start) * 1000


def give_back(c: bench.Cluster) -> None:
    """Waits until the drain is settled, then returns the node to service."""
    time.sleep(0.3)
    c.slurm("scontrol", "update", "nodename=n1", "state=resume")
    while c.state("n1") != "IDLE":
        time.sleep(0.02)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--injections", type=int, default=50)
    parser.add_argument("--programs", type=Path, default=bench.PROGRAMS)
    args = parser.parse_args()
    options = ["--nodes", "1", "--enforcement", "enforce", "--health-interval", "3600", "--watch"]
    with bench.cluster(args.programs, *options) as c:
        bench.await_verdict(c, "n1")
        gpus = c.pci("n1")
        product, slurm = [], []
        for i in range(args.injections):
            pci = gpus[i % len(gpus)].rsplit(".", 1)[0]
            line = f"<3>NVRM: Xid (PCI:{pci}): 79, pid=1, name=bench{i}, GPU has fallen off the bus.\n"
            product.append(seen(c, lambda line=line: bench.KMSG.write_text(line)))
            give_back(c)
            drain = ("scontrol", "update", "nodename=n1", "state=drain", "reason=bench")
            slurm.append(seen(c, lambda drain=drain: c.slurm(*drain)))
            give_back(c)
        for name, values in (("kernel line to DRAIN", product), ("scontrol update to DRAIN", slurm)):
            median, worst = bench.quantile(values, 0.5), max(values)
            print(f"{name:25} median {median:6.1f} ms   max {worst:6.1f} ms   ({len(values)} times)")
        beyond = max(product) - bench.quantile(slurm, 0.5)
        print(f"max beyond Slurm's own median: {beyond:.1f} ms (bound 1000)")


if __name__ == "__main__":
    main()
