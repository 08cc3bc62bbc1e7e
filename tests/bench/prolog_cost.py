#!/usr/bin/env python3
"""What the prolog costs a job: with a fresh verdict from `watch`, without it, and /bin/true, in turn.

Usage (as root, after `cargo build --release --workspace`):
    tests/bench/prolog_cost.py [--runs 1000] [--programs target/release] [--folder /dev/shm]

The cluster lies in a tmpfs, as /run/clustermax does on a node: in a folder on a disk the file of a job that
starts waits now and then for the journal. Run it on a quiet machine: `watch` reads the kernel log that all
clusters of a machine share.
"""

import argparse
import json
import time
from pathlib import Path

import bench


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--programs", type=Path, default=bench.PROGRAMS)
    parser.add_argument("--folder", default="/dev/shm")
    args = parser.parse_args()
    options = ["--nodes", "2", "--enforcement", "enforce", "--health-interval", "3600", "--watch"]
    with bench.cluster(args.programs, *options, parent=args.folder) as c:
        bench.await_verdict(c, "n1")
        bench.await_verdict(c, "n2")
        c.sim("stop", "watch-n2")
        prolog = str(c.programs / "clustermax-prolog")

        def env(node: str, job: int) -> dict:
            return {
                "SLURMD_NODENAME": node,
                "SLURM_JOB_ID": str(job),
                "SLURM_JOB_UID": "65534",
                "SLURM_JOB_GID": "65534",
                "SLURM_JOB_GPUS": "0,1,2,3,4,5,6,7",
            }

        runs = {
            "/bin/true": lambda _: bench.spawned("/bin/true", [], {}),
            "prolog, watch": lambda job: bench.spawned(prolog, ["--config", c.config], env("n1", job)),
            "prolog, no watch": lambda job: bench.spawned(prolog, ["--config", c.config], env("n2", job)),
        }
        times: dict = {name: [] for name in runs}
        for job in range(args.runs):
            for name in runs:
                times[name].append(runs[name](job + 1))
            # A node has a few jobs at a time, not a thousand.
            for node in ("n1", "n2"):
                (c.node_dir(node) / "run" / "jobs" / f"{job + 1}.json").unlink()
            time.sleep(0.002)
        passes = json.loads((c.node_dir("n1") / "state" / "state.json").read_text())["totals"]["passes"]
        own = passes.get("prolog", {"count": 0})["count"]
        for name, values in times.items():
            ratios = [bench.quantile(values, q) / bench.quantile(times["/bin/true"], q) for q in (0.5, 0.99)]
            print(
                f"{name:17} p50 {bench.quantile(values, 0.5):7.2f} ms ({ratios[0]:5.2f}x)"
                f"   p99 {bench.quantile(values, 0.99):7.2f} ms ({ratios[1]:5.2f}x)   ({len(values)} runs)"
            )
        print(f"with watch, {own} of {args.runs} looked themselves; bound for p99 with watch: 3x /bin/true")


if __name__ == "__main__":
    main()
