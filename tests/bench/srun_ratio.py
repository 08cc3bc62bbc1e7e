#!/usr/bin/env python3
"""What the prolog, epilog, HealthCheckProgram and plugin cost a job.

Two clusters side by side: one with the product, one with the same slurm.conf, the same PrologFlags,
Prolog=Epilog=/bin/true and no plugin.

* `srun -n1 true` in turn on both: p50 and p90, and their ratios, which are to hold.
* So many jobs of one array on each: seconds and rate, printed only; growth of slurmd over them.
* The resident size of a step's slurmstepd on each, which is to differ by 1 MiB at most.

Usage (as root, after `cargo build --release --workspace`):
    tests/bench/srun_ratio.py [--runs 200] [--jobs 1000] [--watch] [--programs target/release]
                              [--slurm-root DIR]

With --slurm-root the programs that are bound to that release are taken from PROGRAMS/slurm-RELEASE: those
that are shipped, not the debug builds for tests. The script says how to build them when they are missing.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BOUND_RATIO, BOUND_KIB = 1.10, 1024


def quantile(values: list, q: float) -> float:
    """Nearest-rank quantile."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


def timed(command: list) -> float:
    """Milliseconds that a command takes; it must succeed."""
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return (time.perf_counter() - start) * 1000


def inside(confs: dict, runs: int) -> None:
    """Times srun in turn; runs where Slurm's commands are, so that only srun itself is timed."""
    command = {
        name: ["/usr/bin/env", f"SLURM_CONF={conf}", "srun", "-n1", "true"] for name, conf in confs.items()
    }
    for name in confs:
        for _ in range(5):
            timed(command[name])
    times: dict = {name: [] for name in confs}
    for run in range(runs):
        for name in confs if run % 2 else reversed(confs):
            times[name].append(timed(command[name]))
    json.dump(times, sys.stdout)


def kib(pid: int, key: str) -> int:
    """A line of smaps_rollup."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return int(re.search(rf"^{key}: *(\d+) kB", text, re.M).group(1))


def of_plugin(pid: int) -> int:
    """Resident KiB of the plugin's own file."""
    total, ours = 0, False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-", line):
            ours = "spank_clustermax" in line
        elif ours and line.startswith("Rss:"):
            total += int(line.split()[1])
    return total


class Clusters:
    """The two clusters."""

    def __init__(self, sim: Path, folder: Path, root: str) -> None:
        self.sim = sim
        self.folders = {name: folder / name for name in ("product", "plain")}
        self.up = ["up", "--nodes", "1", "--health-interval", "60", *(["--slurm-root", root] if root else [])]

    def run(self, name: str, *args: str) -> str:
        """clustermax-sim on one of them; it must succeed."""
        return subprocess.run(
            [self.sim, "--dir", self.folders[name], *args],
            check=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ).stdout

    def conf(self, name: str) -> str:
        """slurm.conf."""
        return str(self.folders[name] / "etc" / "slurm.conf")

    def slurmd(self, name: str) -> int:
        """Process id of its slurmd."""
        return json.loads(self.run(name, "status", "--json"))["nodes"][0]["pid"]


def measure_steps(c: Clusters, folder: Path, runs: int) -> bool:
    """Prints the ratios; true when they hold."""
    here = folder / "srun_ratio.py"
    here.write_text(Path(__file__).read_text())
    confs = json.dumps({name: c.conf(name) for name in c.folders})
    python = ["/usr/bin/python3", str(here), "--inside", confs, "--runs", str(runs)]
    times = json.loads(c.run("product", "exec", "--", *python))
    for name, values in times.items():
        p50, p90 = quantile(values, 0.5), quantile(values, 0.9)
        print(f"{name:8} srun -n1 true: p50 {p50:7.1f} ms   p90 {p90:7.1f} ms   ({runs} runs)")
    held = True
    for q, label in ((0.5, "p50"), (0.9, "p90")):
        ratio = quantile(times["product"], q) / quantile(times["plain"], q)
        held &= ratio <= BOUND_RATIO
        print(f"ratio {label} {ratio:.3f} (bound {BOUND_RATIO:.2f})")
    return held


def measure_jobs(c: Clusters, jobs: int) -> None:
    """Prints how long an array of jobs takes, and what slurmd grew by."""
    for name in c.folders:
        pid = c.slurmd(name)
        before = kib(pid, "Rss")
        array = ["sbatch", f"--array=0-{jobs - 1}", "-o", "/dev/null", "--wrap", "true"]
        start = time.perf_counter()
        c.run(name, "exec", "--", *array)
        # `sbatch --wait` looks at ever longer intervals.
        while c.run(name, "exec", "--", "squeue", "-h"):
            time.sleep(0.2)
        took = time.perf_counter() - start
        grown = kib(pid, "Rss") - before
        print(f"{name:8} {jobs} jobs: {took:.1f} s, {jobs / took:.1f} a second; slurmd grew by {grown} KiB")


def measure_size(c: Clusters) -> bool:
    """Prints the resident size of a step's slurmstepd; true when the plugin's part is in bounds."""
    resident: dict = {}
    for name in c.folders:
        # A task is a child of its slurmstepd.
        step = subprocess.Popen(
            [
                c.sim,
                "--dir",
                c.folders[name],
                "exec",
                "--",
                "srun",
                "-n1",
                "sh",
                "-c",
                "echo $PPID; sleep 4",
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        pid = int(step.stdout.readline())
        time.sleep(1)
        resident[name] = kib(pid, "Rss")
        dirty, own = kib(pid, "Private_Dirty"), of_plugin(pid)
        print(
            f"{name:8} slurmstepd: {resident[name]} KiB resident, {dirty} KiB of it private and dirty; "
            f"the plugin's own file {own} KiB"
        )
        step.wait()
    more = resident["product"] - resident["plain"]
    print(f"slurmstepd with the plugin: {more:+} KiB resident (bound {BOUND_KIB})")
    return more <= BOUND_KIB


def release_of(root: str) -> str:
    """`24.11` of the folder's Slurm."""
    text = (Path(root) / "etc" / "clustermax-slurm-root").read_text()
    return ".".join(text.split()[-1].split(".")[:2])


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=1000, help="0: leave that part out")
    parser.add_argument("--watch", action="store_true", help="with the resident health check on the node")
    parser.add_argument("--programs", type=Path, default=Path("target/release"))
    parser.add_argument(
        "--slurm-root", default="", help="folder of another release, as sim/slurm-root makes it"
    )
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.inside:
        inside(json.loads(args.inside), args.runs)
        return 0
    sim = args.programs.resolve() / "clustermax-sim"
    if not sim.exists():
        parser.error(f"{sim} is not built: run `cargo build --release --workspace` first")
    if args.slurm_root:
        release = release_of(args.slurm_root)
        bound = args.programs / f"slurm-{release}"
        if not (bound / "spank_clustermax.so").exists():
            parser.error(
                f"{bound} lacks what is bound to the release; build it with: "
                f"SLURM_ROOT={args.slurm_root} packaging/build-for-slurm {release} {bound} --release"
            )
        print(f"Slurm {release}")
    with tempfile.TemporaryDirectory(prefix="clustermax-bench.") as name:
        folder = Path(name)
        folder.chmod(0o755)
        c = Clusters(sim, folder, args.slurm_root)
        try:
            watch = ["--watch"] if args.watch else []
            for cluster, options in (
                ("product", ["--enforcement", "enforce", *watch]),
                ("plain", ["--plain"]),
            ):
                c.run(cluster, *c.up, *options)
            held = measure_steps(c, folder, args.runs)
            if args.jobs:
                measure_jobs(c, args.jobs)
            held &= measure_size(c)
        finally:
            for cluster in c.folders:
                if c.folders[cluster].exists():
                    subprocess.run(
                        [sim, "--dir", c.folders[cluster], "down"], check=False, stdout=subprocess.DEVNULL
                    )
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
