#!/usr/bin/env python3
"""What the prolog, epilog, HealthCheckProgram and plugin cost a job.

Times `srun -n1 true` in turn on two clusters: one with the product, one with the same slurm.conf, the same
PrologFlags, Prolog=Epilog=/bin/true and no plugin. Prints p50 and p90 of both and their ratios.

Usage (as root, after `cargo build --release --workspace`):
    tests/bench/srun_ratio.py [--runs 200] [--programs target/release]
"""

import argparse
import subprocess
import tempfile
import time
from pathlib import Path


def quantile(values: list, q: float) -> float:
    """Nearest-rank quantile."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


def timed(command: list) -> float:
    """Milliseconds that a command takes; it must succeed."""
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return (time.perf_counter() - start) * 1000


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--programs", type=Path, default=Path("target/release"))
    args = parser.parse_args()
    sim = args.programs.resolve() / "clustermax-sim"
    if not sim.exists():
        parser.error(f"{sim} is not built: run `cargo build --release --workspace` first")
    with tempfile.TemporaryDirectory(prefix="clustermax-bench.") as folder:
        Path(folder).chmod(0o755)
        clusters = {"product": ["--enforcement", "enforce"], "plain": ["--plain"]}
        folders = {name: str(Path(folder) / name) for name in clusters}
        try:
            for name, options in clusters.items():
                subprocess.run(
                    [sim, "--dir", folders[name], "up", "--nodes", "1", "--health-interval", "60", *options],
                    check=True,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
            # The environment once, so that only srun itself is timed.
            command = {}
            for name in clusters:
                conf = str(Path(folders[name]) / "etc" / "slurm.conf")
                command[name] = ["/usr/bin/env", f"SLURM_CONF={conf}", "srun", "-n1", "true"]
                for _ in range(5):
                    timed(command[name])
            times: dict = {name: [] for name in clusters}
            for run in range(args.runs):
                order = list(clusters) if run % 2 else list(reversed(clusters))
                for name in order:
                    times[name].append(timed(command[name]))
            for name in clusters:
                p50, p90 = quantile(times[name], 0.5), quantile(times[name], 0.9)
                print(f"{name:8} p50 {p50:7.1f} ms   p90 {p90:7.1f} ms   ({args.runs} runs)")
            for q, label in ((0.5, "p50"), (0.9, "p90")):
                ratio = quantile(times["product"], q) / quantile(times["plain"], q)
                print(f"ratio {label} {ratio:.3f} (bound 1.10)")
        finally:
            for name in clusters:
                if Path(folders[name]).exists():
                    subprocess.run(
                        [sim, "--dir", folders[name], "down"], check=False, stdout=subprocess.DEVNULL
                    )


if __name__ == "__main__":
    main()
