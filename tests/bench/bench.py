"""What the benches share: a cluster for the time of a bench, quantiles, times of processes."""

import contextlib
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

KMSG = Path("/dev/kmsg")
PROGRAMS = Path("target/release")


def quantile(values: list, q: float) -> float:
    """Nearest-rank quantile."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


class Cluster:
    """A simulated cluster in a folder of its own."""

    def __init__(self, folder: Path, programs: Path) -> None:
        self.dir = folder
        self.programs = programs

    def sim(self, *args: str) -> str:
        """Runs clustermax-sim; it must succeed."""
        command = [self.programs / "clustermax-sim", "--dir", self.dir, *args]
        return subprocess.run(
            command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ).stdout

    @property
    def config(self) -> str:
        """The product's configuration."""
        return str(self.dir / "etc" / "clustermax.toml")

    def node_dir(self, node: str) -> Path:
        """A node's folder."""
        return self.dir / "nodes" / node

    def slurm(self, *args: str) -> str:
        """Runs a command of Slurm's."""
        env = {"PATH": "/usr/bin:/bin", "SLURM_CONF": str(self.dir / "etc" / "slurm.conf")}
        return subprocess.run(args, check=True, env=env, stdout=subprocess.PIPE, text=True).stdout

    def state(self, node: str) -> str:
        """State word of a node."""
        text = self.slurm("scontrol", "-o", "show", "node", node)
        return text.split(" State=")[1].split()[0]

    def verdict(self, node: str) -> dict:
        """The published verdict; empty before the first."""
        try:
            return json.loads((self.node_dir(node) / "run" / "verdict.json").read_text())
        except FileNotFoundError:
            return {}

    def passes(self, node: str) -> int:
        """Passes of the node's `watch` so far."""
        state = json.loads((self.node_dir(node) / "state" / "state.json").read_text())
        return state["totals"]["passes"].get("watch", {"count": 0})["count"]

    def watch_pid(self, node: str) -> int:
        """Process of the node's `watch`."""
        return json.loads(self.sim("status", "--json"))["watches"][f"watch-{node}"]["pid"]

    def pci(self, node: str) -> list:
        """PCI addresses of a node's GPUs."""
        command = [self.programs / "clustermax-healthcheck", "facts", "--config", self.config, "--node", node]
        facts = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
        return [gpu["pci"]["value"] for gpu in facts["nvml"]["value"]["gpus"]]


@contextlib.contextmanager
def cluster(programs: Path, *options: str, parent: str | None = None) -> Iterator[Cluster]:
    """A cluster that is up, and gone afterwards; its folder is made in `parent`."""
    programs = programs.resolve()
    if not (programs / "clustermax-sim").exists():
        raise SystemExit(
            f"{programs}/clustermax-sim is not built: run `cargo build --release --workspace` first"
        )
    with tempfile.TemporaryDirectory(prefix="clustermax-bench.", dir=parent) as folder:
        Path(folder).chmod(0o755)
        c = Cluster(Path(folder) / "c", programs)
        try:
            c.sim("up", *options)
            yield c
        finally:
            subprocess.run(
                [programs / "clustermax-sim", "--dir", c.dir, "down"], check=False, stdout=subprocess.DEVNULL
            )


def await_verdict(c: Cluster, node: str) -> None:
    """Waits until `watch` has published."""
    until = time.monotonic() + 60
    while c.verdict(node).get("mode") != "watch":
        if time.monotonic() > until:
            raise SystemExit(f"watch on {node} has published nothing: see {c.dir}/log/watch-{node}.out")
        time.sleep(0.05)


def spawned(program: str, arguments: list, env: dict) -> float:
    """Milliseconds to start a program and wait for its end, which must be 0."""
    quiet = [(os.POSIX_SPAWN_OPEN, fd, "/dev/null", os.O_RDWR, 0) for fd in (0, 1, 2)]
    start = time.perf_counter()
    pid = os.posix_spawn(program, [program, *arguments], env, file_actions=quiet)
    _, status = os.waitpid(pid, 0)
    took = (time.perf_counter() - start) * 1000
    if status != 0:
        raise SystemExit(f"{program} ended with status {status}")
    return took
