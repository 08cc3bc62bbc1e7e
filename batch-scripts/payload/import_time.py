"""Time that `python3 -c "import torch"` takes on this node, cold and warm.

Cold: the files of the package are dropped from this node's page cache first (posix_fadvise DONTNEED, which an
ordinary user may do). Pages that another process has mapped stay, so cold is a lower bound on a busy node.
"""

import argparse
import importlib.util
import os
import subprocess
import sys
import time
from pathlib import Path

from common import node_name, now, write_json


def drop_from_cache(folder):
    """Drops every file below the folder from the page cache."""
    for path, _, files in os.walk(folder):
        for name in files:
            try:
                fd = os.open(Path(path) / name, os.O_RDONLY)
            except OSError:
                continue
            try:
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(fd)


def once():
    """Wall time of one import in a fresh interpreter, and torch's version."""
    begin = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", "import torch; print(torch.__version__)"],
        capture_output=True,
        text=True,
        check=True,
    )
    return time.perf_counter() - begin, done.stdout.split()[-1]


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--out", required=True, type=Path)
    args = p.parse_args()
    document = {
        "schema": "clustermax-payload/1",
        "payload": "import_time",
        "node": node_name(),
        "started": now(),
        "python": sys.version.split()[0],
        "torch": None,
    }
    spec = importlib.util.find_spec("torch")
    if spec is None:
        document["detail"] = f"{sys.executable} has no torch on {node_name()}; choose another with --python"
    else:
        for folder in spec.submodule_search_locations or []:
            drop_from_cache(folder)
        try:
            document["cold_seconds"], _ = once()
            document["warm_seconds"], document["torch"] = once()
        except subprocess.CalledProcessError as error:
            lines = error.stderr.strip().splitlines()
            document["detail"] = f"import torch fails on {node_name()}: {lines[-1] if lines else error}"
    write_json(args.out / f"import.{node_name()}.json", document)


if __name__ == "__main__":
    main()
