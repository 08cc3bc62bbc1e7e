"""Time that `python3 -c "import torch"` takes on this node, cold and warm.

Cold: every file that an import before it opened (modules, and shared libraries wherever they lie) is dropped
from this node's page cache first (posix_fadvise DONTNEED, which an ordinary user may do). Pages that another
process has mapped stay, and so does what a file server keeps: cold is a lower bound. Root drops the whole
cache (drop_caches); the document says which it was, how much, and on what kind of file system torch lies.
"""

import argparse
import importlib.util
import os
import subprocess
import sys
import time
from pathlib import Path

from common import NOT_HERE, node_name, now, simulated, write_json

# What an import has open at its end: CUDA's libraries and the system's lie outside of torch's folder.
OPENED = (
    NOT_HERE
    + """
import torch
found = {m.__dict__.get(key) for m in list(sys.modules.values()) for key in ("__file__", "__cached__")}
for line in open("/proc/self/maps"):
    found.add(line.rstrip().split(None, 5)[-1])
print(*sorted(f for f in found if isinstance(f, str) and f.startswith("/")), sep="\\n")
"""
)


def opened():
    """The files that an import of torch opens; a CalledProcessError where it fails."""
    done = subprocess.run([sys.executable, "-c", OPENED], capture_output=True, text=True, check=True)
    return [line for line in done.stdout.splitlines() if line.startswith("/")]


def drop_from_cache(paths):
    """Drops the files from the page cache; how many there were and their bytes."""
    count = size = 0
    for path in paths:
        try:
            fd = os.open(path, os.O_RDONLY)
        except OSError:
            continue
        try:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            count, size = count + 1, size + os.fstat(fd).st_size
        finally:
            os.close(fd)
    return count, size


def drop_all():
    """Drops the node's whole page cache, as root may; not where simulated nodes share a machine."""
    if os.geteuid() != 0 or simulated():
        return False
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3\n")
    except OSError:  # a container's /proc is read-only
        return False
    return True


def file_system(folder, mounts="/proc/self/mounts"):
    """Type of the file system that holds a folder: that of the longest mount point above it."""
    best = ("", None)
    try:
        lines = Path(mounts).read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        words = line.split()
        point = words[1].rstrip("/") + "/"
        if (str(folder) + "/").startswith(point) and len(point) >= len(best[0]):
            best = (point, words[2])
    return best[1]


def once():
    """Wall time of one import in a fresh interpreter, and torch's version."""
    begin = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", NOT_HERE + "import torch; print(torch.__version__)"],
        capture_output=True,
        text=True,
        check=True,
    )
    return time.perf_counter() - begin, done.stdout.split()[-1]


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--out", required=True, type=Path)
    p.add_argument("--cold", action="store_true", help="only the cold import")
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
        folders = list(spec.submodule_search_locations or [])
        document["fstype"] = file_system(os.path.realpath(folders[0])) if folders else None
        try:
            document["dropped_files"], document["dropped_bytes"] = drop_from_cache(opened())
            document["dropped"] = "drop_caches" if drop_all() else "posix_fadvise"
            document["cold_seconds"], document["torch"] = once()
            if not args.cold:
                document["warm_seconds"], _ = once()
        except subprocess.CalledProcessError as error:
            lines = error.stderr.strip().splitlines()
            document["detail"] = f"import torch fails on {node_name()}: {lines[-1] if lines else error}"
    write_json(args.out / f"import.{node_name()}.json", document)


if __name__ == "__main__":
    main()
