#!/usr/bin/env python3
"""A flood of kernel lines with 29 faults in it, while `watch` follows.

Paced: 100,000 records at 20,000 a second into a file that is followed like /dev/kmsg. All 29 faults must be
found. --unpaced writes as fast as it can into the real /dev/kmsg (which every reader on this machine suffers
from): then the records counted as lost must equal the gaps in the sequence numbers, and a gap must force a
pass at once: faults that came with the flood and show in the devices' state are found, lines or not.

Usage (as root, after `cargo build --release --workspace`):
    tests/bench/flood.py [--lines 100000] [--rate 20000] [--unpaced] [--programs target/release]
"""

import argparse
import json
import os
import re
import time
from pathlib import Path

import bench

FAULTS = 29
# Conclusive by their line alone.
CODES = (79, 95, 140, 48)


# Seen in the devices' state alone, by GPU: name for `clustermax-sim inject`, token of the finding.
SILENT = {5: ("remap-failure", "rowremap"), 6: ("gpu-lost", "gpulost")}


def faults(gpus: list) -> list:
    """Lines of 29 different faults: 8 GPUs, 4 codes."""
    all_of_them = [(gpu.rsplit(".", 1)[0], code) for code in CODES for gpu in gpus]
    return [f"NVRM: Xid (PCI:{pci}): {code}, pid=1, name=x, a fault" for pci, code in all_of_them[:FAULTS]]


def noise(gpus: list) -> str:
    """A line of a program's fault, as storms of them are made of."""
    pci = gpus[0].rsplit(".", 1)[0]
    return f"NVRM: Xid (PCI:{pci}): 31, pid=7, name=python3, Ch 00000008, intr 10000000. MMU Fault"


def found(c: bench.Cluster, gpus: list) -> tuple:
    """Different faults in the node's state, and and how many lines of noise, of its own GPUs."""
    own = {gpu.rsplit(".", 1)[0] for gpu in gpus}
    events = json.loads((c.node_dir("n1") / "state" / "state.json").read_text())["events"]
    mine = [(e["event"]["kind"]["xid"]["code"], e) for e in events if e["event"]["pci"] in own]
    faults_found = {(code, e["event"]["pci"]) for code, e in mine if code in CODES}
    return len(faults_found), sum(e["count"] for code, e in mine if code == 31)


def paced(c: bench.Cluster, gpus: list, lines: int, rate: int) -> float:
    """Writes records to the node's file, 20 ms worth at a time; gives the seconds it took."""
    where = {(i + 1) * lines // (FAULTS + 1): line for i, line in enumerate(faults(gpus))}
    each = max(1, rate // 50)
    start = time.monotonic()
    with (c.node_dir("n1") / "kmsg").open("a") as out:
        for first in range(0, lines, each):
            time.sleep(max(0.0, start + first / rate - time.monotonic()))
            numbers = range(first, min(first + each, lines))
            out.writelines(f"3,{n},{n * 50},-;{where.get(n, noise(gpus))}\n" for n in numbers)
            out.flush()
    return time.monotonic() - start


def last_record() -> int:
    """Sequence number of a record written now."""
    mark = f"clustermax flood bench {time.monotonic_ns()}"
    bench.KMSG.write_text(mark + "\n")
    fd = os.open(bench.KMSG, os.O_RDONLY | os.O_NONBLOCK)
    try:
        while True:
            try:
                record = os.read(fd, 8192).decode(errors="replace")
            except BrokenPipeError:
                continue
            if mark in record:
                return int(record.split(",")[1])
    finally:
        os.close(fd)


def unpaced(gpus: list, lines: int) -> float:
    """Writes to the kernel log as fast as it goes; gives the seconds it took."""
    where = {(i + 1) * lines // (FAULTS + 1): line for i, line in enumerate(faults(gpus))}
    start = time.monotonic()
    fd = os.open(bench.KMSG, os.O_WRONLY)
    for n in range(lines):
        # Not as errors, as the driver does: a serial console that prints them would set the pace.
        os.write(fd, f"<6>{where.get(n, noise(gpus))}\n".encode())
    os.close(fd)
    return time.monotonic() - start


def lost(c: bench.Cluster) -> int:
    """Records that `watch` said were lost."""
    log = (c.dir / "log" / "watch-n1.out").read_text()
    return sum(int(n) for n in re.findall(r"(\d+) kernel log records were overwritten", log))


def silent_found(c: bench.Cluster) -> bool:
    """The verdict names both faults that no line told of."""
    seen = {(f["token"], f.get("device", {}).get("name")) for f in c.verdict("n1").get("findings", [])}
    return all((token, f"g{gpu}") in seen for gpu, (_, token) in SILENT.items())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lines", type=int, default=100_000)
    parser.add_argument("--rate", type=int, default=20_000)
    parser.add_argument("--unpaced", action="store_true")
    parser.add_argument("--programs", type=Path, default=bench.PROGRAMS)
    args = parser.parse_args()
    options = ["--nodes", "1", "--enforcement", "enforce", "--health-interval", "3600", "--watch"]
    with bench.cluster(args.programs, *options) as c:
        bench.await_verdict(c, "n1")
        gpus = c.pci("n1")
        status = Path(f"/proc/{c.watch_pid('n1')}/status")
        first = last_record() if args.unpaced else 0
        # `watch` has read the mark: what it loses from here on lies between the marks.
        time.sleep(1)
        before = c.passes("n1")
        if args.unpaced:
            for gpu, (fault, _) in SILENT.items():
                c.sim("inject", fault, "--node", "n1", "--gpu", str(gpu))
        took = unpaced(gpus, args.lines) if args.unpaced else paced(c, gpus, args.lines, args.rate)
        last = last_record() if args.unpaced else 0
        flooded = time.monotonic()
        while args.unpaced and not silent_found(c) and time.monotonic() < flooded + 20:
            time.sleep(0.02)
        after = time.monotonic() - flooded
        time.sleep(max(0.0, 3 - after))
        faults_found, noise_counted = found(c, gpus)
        peak = next(x for x in status.read_text().splitlines() if x.startswith("VmHWM"))
        print(f"{args.lines} lines in {took:.2f} s ({args.lines / took:.0f} a second); node {c.state('n1')}")
        print(f"faults found: {faults_found} of {FAULTS}; noise counted: {noise_counted}; lost: {lost(c)}")
        print(f"passes: {c.passes('n1') - before}; {' '.join(peak.split())}")
        if args.unpaced:
            # Every record between the marks was counted as noise, a fault or lost, or was somebody else's.
            found_silent = f"after {after:.2f} s" if silent_found(c) else "NOT FOUND"
            print(f"faults that show in state alone: {found_silent}; a timed pass comes every 25 s")
            other = last - first - 1 - noise_counted - faults_found - lost(c)
            print(
                f"sequence numbers between the marks: {last - first - 1};"
                f" not accounted for (others' lines): {other}"
            )


if __name__ == "__main__":
    main()
