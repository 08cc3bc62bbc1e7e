"""Time that a package takes to install into a fresh virtual environment, as a user, without a network.

The package is a wheel that this program makes: FILES modules of 4 KiB, no dependencies. It measures the
installer and the node's disk, not a download. pip is asked, and uv where it is installed.
"""

import argparse
import base64
import hashlib
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

from common import node_name, now, write_json

FILES = 200
NAME = "clustermax_probe-1.0-py3-none-any.whl"


def make_wheel(folder, files=FILES):
    """Writes the wheel and returns its path; the same bytes every time."""
    info = "clustermax_probe-1.0.dist-info"
    members = {f"clustermax_probe/m{i:04}.py": f"X = {i}\n".ljust(4095, "#") + "\n" for i in range(files)}
    members["clustermax_probe/__init__.py"] = ""
    members[f"{info}/METADATA"] = "Metadata-Version: 2.1\nName: clustermax-probe\nVersion: 1.0\n"
    members[f"{info}/WHEEL"] = (
        "Wheel-Version: 1.0\nGenerator: clustermax\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    )
    rows = []
    for name, text in members.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        rows.append(f"{name},sha256={digest},{len(text)}")
    members[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,"]) + "\n"
    path = Path(folder) / NAME
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in members.items():
            archive.writestr(zipfile.ZipInfo(name, (2026, 1, 1, 0, 0, 0)), text)
    return path


def run(command):
    """Seconds that a command takes; a RuntimeError with its last words when it fails."""
    begin = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise RuntimeError(lines[-1] if lines else f"exit code {done.returncode}")
    return time.perf_counter() - begin


def installers(python):
    """Name and command of each installer; the environment's Python is PYTHON."""
    options = ["--no-index", "--no-deps", "--no-cache-dir", "--disable-pip-version-check", "-q"]
    yield "pip", [sys.executable, "-m", "pip", "--python", str(python), "install", *options]
    uv = shutil.which("uv")
    if uv:
        offline = ["--offline", "--no-deps", "--no-cache", "-q"]
        yield "uv", [uv, "pip", "install", *offline, "--python", str(python)]


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--out", required=True, type=Path)
    args = p.parse_args()
    document = {
        "schema": "clustermax-payload/1",
        "payload": "install_time",
        "node": node_name(),
        "started": now(),
        "python": sys.version.split()[0],
        "files": FILES,
        "rows": [],
    }
    with tempfile.TemporaryDirectory(prefix="clustermax-install.") as folder:
        wheel = make_wheel(folder)
        for number, name in enumerate(["pip", "uv"]):
            venv = Path(folder) / f"venv{number}"
            command = next((c for n, c in installers(venv / "bin/python") if n == name), None)
            if command is None:
                continue
            row = {"tool": name}
            try:
                row["venv_seconds"] = run([sys.executable, "-m", "venv", "--without-pip", str(venv)])
                row["seconds"] = run([*command, str(wheel)])
            except RuntimeError as error:
                row["detail"] = f"{name} cannot install on {node_name()}: {error}"
            document["rows"].append(row)
    write_json(args.out / f"install.{node_name()}.json", document)


if __name__ == "__main__":
    main()
