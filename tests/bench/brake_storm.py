#!/usr/bin/env python3
"""Many nodes that fail within one second: how many the brake leaves drained, and what it costs slurmctld.

Brings up so many nodes and two more that stay well, breaks a GPU of each (row remapping failed), and lets
all of them ask for their drain at once, or with --passes make their whole periodic pass at once. Counts
when the second looks are over: nodes drained by us, nodes held back, nodes that drained without a fault,
and slurmctld's remote procedure calls by sdiag. Drains that a busy slurmctld did not answer in time were
kept on disk; they are delivered first, as the next pass would. Then an operator's part: room is made, the
brake of one node released, and its next pass must drain it, while another one's brake still holds.

Usage (as root, after `cargo build --release --workspace`):
    tests/bench/brake_storm.py [--nodes 64] [--runs 3] [--passes] [--programs target/release]
"""

import argparse
import os
import re
import subprocess
import time
from collections import Counter
from pathlib import Path

import bench

SHARE = 0.1
WELL = 2
RPC = re.compile(r"^\s+(\w+)\s+\(\s*\d+\)\s+count:(\d+)", re.MULTILINE)


REASON = "cmx:rowremap g0 row remapping failed; act=repair id=0badcafe"


def on(c: bench.Cluster, node: str, program: str, *args: str, gate: str = "") -> subprocess.Popen:
    """Starts a product program as slurmd would on a node; with a gate, a FIFO, only once that is opened."""
    command = [c.programs / program, *args, "--config", c.config]
    if gate:
        command = ["/bin/sh", "-c", f'read -r _ <"{gate}"; exec "$@"', "sh", *command]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen(command, env={"SLURMD_NODENAME": node}, **quiet)


def calls(c: bench.Cluster) -> Counter:
    """slurmctld's calls by type since the last reset; sdiag's own is not among them yet."""
    text = c.slurm("sdiag").split("Remote Procedure Call statistics by message type")[1]
    text = text.split("Remote Procedure Call statistics by user")[0]
    return Counter({name: int(count) for name, count in RPC.findall(text)})


def nodes(c: bench.Cluster) -> dict:
    """State and reason by node."""
    found = {}
    for line in c.slurm("scontrol", "-o", "show", "node").splitlines():
        name = line.split("NodeName=")[1].split()[0]
        reason = line.split(" Reason=")[1] if " Reason=" in line else ""
        found[name] = (line.split(" State=")[1].split()[0], reason)
    return found


def release_all(c: bench.Cluster, names: list) -> None:
    """Gives every node back, releases every brake, and waits until all are idle."""
    for name in names:
        on(c, name, "clustermax-drain", "release").wait()
    drained = [n for n, (state, _) in nodes(c).items() if "DRAIN" in state]
    if drained:
        c.slurm("scontrol", "update", "nodename=" + ",".join(drained), "state=resume")
    until = time.monotonic() + 60
    while any(state != "IDLE" for state, _ in nodes(c).values()):
        if time.monotonic() > until:
            raise SystemExit(f"not all nodes are idle again: {nodes(c)}")
        time.sleep(0.2)


def storm(c: bench.Cluster, run: int, sick: list, limit: int, passes: bool) -> bool:
    """One run; true when everything is as it should be."""
    gate = str(c.dir / "gate")
    os.mkfifo(gate)
    if passes:
        call = ["clustermax-healthcheck", "run", "--mode", "periodic"]
    else:
        call = ["clustermax-drain", "drain", "--reason", REASON]
    running = [on(c, name, *call, gate=gate) for name in sick]
    # All of them wait at the gate.
    time.sleep(3)
    c.slurm("sdiag", "--reset")
    begun = time.perf_counter()
    Path(gate).write_bytes(b"")
    for process in running:
        process.wait()
    ended = time.perf_counter() - begun
    Path(gate).unlink()
    kept = [n for n in sick if list((c.node_dir(n) / "state" / "spool").glob("*.json"))]
    for name in kept:
        on(c, name, "clustermax-drain", "deliver").wait()
    # The last drain's second look comes 2 s after it; with its retries it is over well before this.
    time.sleep(8)
    rpc = calls(c)
    # This script's own: the reset and what it asked.
    rpc.subtract({"REQUEST_STATS_INFO": 1})
    now = nodes(c)
    ours = sorted(n for n, (state, reason) in now.items() if "DRAIN" in state and reason.startswith("cmx:"))
    others = [n for n, (state, _) in now.items() if state != "IDLE" and n not in ours]
    held = [n for n in sick if (c.node_dir(n) / "state" / "brake.json").exists()]
    total = sum(v for v in rpc.values() if v > 0)
    print(
        f"run {run}: {len(sick)} {'passes' if passes else 'drains'} at once, ended within {ended:.2f} s, "
        f"{len(kept)} of them kept for later; "
        f"drained {len(ours)} (limit {limit}), held back {len(held)}, anything else not idle: {len(others)}; "
        f"{total} calls, {total / len(sick):.2f} a node"
    )
    print("       " + ", ".join(f"{name} {count}" for name, count in sorted(rpc.items()) if count > 0))
    good = len(ours) == limit and len(held) == len(sick) - limit and not others
    return operator(c, ours, held) and good


def operator(c: bench.Cluster, ours: list, held: list) -> bool:
    """Makes room, releases one of the held brakes; that node drains, another one with a fault does not."""
    c.slurm("scontrol", "update", "nodename=" + ",".join(ours[:2]), "state=resume")
    on(c, held[0], "clustermax-drain", "release").wait()
    for name in held[:2]:
        on(c, name, "clustermax-healthcheck", "run", "--mode", "periodic").wait()
    now = nodes(c)
    drains = [("DRAIN" in now[name][0]) for name in held[:2]]
    good = drains == [True, False]
    print(f"       released on {held[0]}: drains {drains[0]}; still engaged on {held[1]}: drains {drains[1]}")
    return good


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=64)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--passes", action="store_true", help="whole periodic passes, not their drains alone")
    parser.add_argument("--programs", type=Path, default=bench.PROGRAMS)
    args = parser.parse_args()
    count = args.nodes + WELL
    limit = max(1, int(count * SHARE))
    options = ["--nodes", str(count), "--gpus", "1", "--ib-ports", "0", "--enforcement", "enforce"]
    with bench.cluster(args.programs, *options, "--health-interval", "3600", "--wait", "300") as c:
        sick = [f"n{i}" for i in range(1, args.nodes + 1)]
        for name in sick:
            c.sim("inject", "remap-failure", "--node", name, "--gpu", "0")
        good = True
        for run in range(1, args.runs + 1):
            good = storm(c, run, sick, limit, args.passes) and good
            release_all(c, sick)
    if not good:
        raise SystemExit("not as it should be, see above")


if __name__ == "__main__":
    main()
