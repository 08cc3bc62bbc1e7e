"""Times `clustermax read` on a 20 MB nccl-tests log of 5,000 ranks, with NCCL's log lines between the rows.

Usage: tests/bench/read_nccl.py [CLUSTERMAX]     (default: that in target/release, else in target/debug)
"""

import pathlib
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
RANKS, TARGET, RUNS = 5000, 20_000_000, 5


def log(out):
    """Writes the log: what 625 nodes of 8 GPUs print with NCCL_DEBUG=INFO, and one table."""
    out.write("# nccl-tests version 2.19.6 nccl-headers=22900 nccl-library=22900\n")
    out.write("# Collective test starting: all_reduce_perf\n# Using devices\n")
    for rank in range(RANKS):
        out.write(
            f"#  Rank {rank:4} Group  0 Pid {4000 + rank:6} on node{rank // 8:04} device {rank % 8:2}"
            f" [0000:{16 + rank % 8:x}:00] NVIDIA H100 80GB HBM3\n"
        )
    out.write("#                       out-of-place                       in-place\n")
    names = "size count type redop root time algbw busbw #wrong time algbw busbw #wrong"
    out.write("# " + "  ".join(names.split()) + "\n")
    factor = 2 * (RANKS - 1) / RANKS
    rows = []
    for power in range(20, 34):
        size = 1 << power
        algbw = 200 * size / (size + 3e8)
        time_us = size / algbw / 1e3
        half = f"{time_us:9.1f} {algbw:7.2f} {algbw * factor:7.2f}       0"
        rows.append(f"{size:12} {size // 4:12}     float     sum      -1 {half} {half}\n")
    line = (
        "node{0:04}:{1}:{1} [{2}] NCCL INFO Channel {3:02}/0 : {4}[{2}] -> {5}[{2}] [send] via NET/IB/{2}\n"
    )
    written, row, n = out.tell(), 0, 0
    while written < TARGET or row < len(rows):
        n += 1
        text = line.format(n % 625, 4000 + n % RANKS, n % 8, n % 32, n % RANKS, (n + 1) % RANKS)
        if n % 10000 == 0 and row < len(rows):
            text, row = rows[row], row + 1
        out.write(text)
        written += len(text)
    out.write("# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 201.5\n#\n")
    out.write("# Collective test concluded: all_reduce_perf\n")


def main():
    """Prints the fastest and the slowest of RUNS runs."""
    built = [ROOT / "target/release/clustermax", ROOT / "target/debug/clustermax"]
    program = sys.argv[1] if len(sys.argv) > 1 else next((p for p in built if p.exists()), None)
    if program is None:
        sys.exit("read_nccl.py: build clustermax first, or name it")
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        log(file)
        file.flush()
        size = pathlib.Path(file.name).stat().st_size
        seconds = []
        for _ in range(RUNS):
            begin = time.perf_counter()
            out = subprocess.run(
                [program, "read", "--json", file.name], capture_output=True, text=True, check=True
            )
            seconds.append(time.perf_counter() - begin)
        measured = sum(
            '"metric":"busbw"' in line and '"measured"' in line for line in out.stdout.splitlines()
        )
    print(
        f"{program}: {size / 1e6:.1f} MB, {RANKS} ranks, {measured} sizes measured; "
        f"{min(seconds):.3f} to {max(seconds):.3f} s"
    )


if __name__ == "__main__":
    main()
