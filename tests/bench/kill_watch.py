#!/usr/bin/env python3
"""kill -9 of `watch` at random moments while faults come: none may be lost, and no node drained for nothing.

Each round writes a kernel line of an Xid 79 and kills `watch` at a random moment from 0.2 s before to 0.8 s
after it, starts it again, waits for the drain of that GPU, gives the node back, starts `watch` once more, and
sees that after another pass the node is still in service.

Usage (as root, after `cargo build --release --workspace`):
    tests/bench/kill_watch.py [--kills 100] [--seed 1] [--programs target/release]
"""

import argparse
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import bench


def within(seconds: float, what: Callable[[], bool]) -> bool:
    """Waits until something is true."""
    until = time.monotonic() + seconds
    while not what():
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def reason(c: bench.Cluster) -> str:
    """The node's reason."""
    text = c.slurm("scontrol", "-o", "show", "node", "n1")
    return text.split(" Reason=")[1] if " Reason=" in text else ""


def settled(verdict: dict) -> bool:
    """The answer of clustermax-drain is known."""
    return not verdict.get("drain") or verdict.get("drain_outcome") not in (None, "pending")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--programs", type=Path, default=bench.PROGRAMS)
    args = parser.parse_args()
    dice = random.Random(args.seed)
    options = ["--nodes", "1", "--enforcement", "enforce", "--health-interval", "3600", "--watch"]
    lost, false, after = [], [], 0
    with bench.cluster(args.programs, *options) as c:
        bench.await_verdict(c, "n1")
        gpus = c.pci("n1")
        for n in range(args.kills):
            gpu = n % len(gpus)
            pci = gpus[gpu].rsplit(".", 1)[0]
            line = f"<3>NVRM: Xid (PCI:{pci}): 79, pid=1, name=kill{n}, GPU has fallen off the bus.\n"
            watch = c.watch_pid("n1")
            moment = dice.uniform(-0.2, 0.8)
            if moment < 0:
                os.kill(watch, signal.SIGKILL)
                time.sleep(-moment)
                bench.KMSG.write_text(line)
            else:
                bench.KMSG.write_text(line)
                time.sleep(moment)
                after += "DRAIN" in c.state("n1")
                os.kill(watch, signal.SIGKILL)
            within(5, lambda pid=watch: not Path(f"/proc/{pid}").exists())
            c.sim("start", "watch-n1")
            if not within(30, lambda: "DRAIN" in c.state("n1")):
                lost.append((n, moment, "not drained"))
            elif not reason(c).startswith(f"cmx:xid79 g{gpu} "):
                lost.append((n, moment, reason(c)))
            # Settled: the answer of clustermax-drain is in the state.
            within(10, lambda: settled(c.verdict("n1")))
            time.sleep(0.3)
            c.slurm("scontrol", "update", "nodename=n1", "state=resume")
            within(10, lambda: c.state("n1") == "IDLE")
            c.sim("stop", "watch-n1")
            passes = c.passes("n1")
            c.sim("start", "watch-n1")
            if not within(30, lambda before=passes: c.passes("n1") > before):
                raise SystemExit(f"watch has made no pass: see {c.dir}/log/watch-n1.out")
            time.sleep(0.2)
            if c.state("n1") != "IDLE":
                false.append((n, moment, reason(c)))
                c.slurm("scontrol", "update", "nodename=n1", "state=resume")
    print(f"{args.kills} kills (seed {args.seed}), {after} of them after the drain was written")
    print(f"faults lost: {len(lost)} {lost}")
    print(f"drained twice or for nothing: {len(false)} {false}")
    if lost or false:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
