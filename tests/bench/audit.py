#!/usr/bin/env python3
"""What `clustermax audit` costs: a whole cluster as an ordinary user and as root, in all and for each node.

The nodes share one machine's processors, so a node's own figure is an upper bound of what a real node needs.

Usage (as root, after `cargo build`):
    tests/bench/audit.py [--nodes 4 64] [--programs target/debug]
"""

import argparse
import json
import shutil
import subprocess
import tempfile
from pathlib import Path

import bench


def audit(c, program: Path, user: bool) -> dict:
    """One audit; exit 1 means that some criterion fails, as on every simulated cluster."""
    command = [c.programs.resolve() / "clustermax-sim", "--dir", c.dir, "exec"]
    command += ["--user", "nobody"] if user else []
    command = [str(word) for word in (*command, "--", program, "audit", "--json")]
    # An ordinary user may not stand in the folder of the one who runs this.
    said = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")
    if said.returncode not in (0, 1):
        raise SystemExit(f"audit: {said.stderr}")
    return json.loads(said.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, nargs="+", default=[4, 64])
    parser.add_argument("--programs", type=Path, default=bench.PROGRAMS)
    args = parser.parse_args()
    print("nodes  user    in all   looked at  on the node  with start  pass warn fail skip")
    for nodes in args.nodes:
        # Ordinary users pass through no checkout: the programs are copied.
        with (
            tempfile.TemporaryDirectory(prefix="clustermax-bench.") as folder,
            bench.cluster(args.programs, "--nodes", str(nodes), "--wait", "300") as c,
        ):
            Path(folder).chmod(0o755)
            for name in ("clustermax", "clustermax-healthcheck"):
                shutil.copy(args.programs / name, folder)
            for user in (True, False):
                report = audit(c, Path(folder) / "clustermax", user)
                seen = report["nodes"]
                on = sum(n["seconds"] for n in seen) / max(1, len(seen))
                wall = sum(n["wall"] for n in seen) / max(1, len(seen))
                counts = " ".join(f"{report['counts'][word]:4}" for word in ("PASS", "WARN", "FAIL", "SKIP"))
                who = "nobody" if user else "root"
                print(
                    f"{nodes:5}  {who:6} {report['seconds']:6.1f} s  {len(seen):6}"
                    f"     {on:8.2f} s  {wall:8.2f} s  {counts}"
                )
                for node in report["not_seen"][:5]:
                    print(f"       not looked at: {node['node']} {node['why']}")


if __name__ == "__main__":
    main()
