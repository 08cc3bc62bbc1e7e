"""Prints what the interpreter can measure: torch's version and how many GPUs it can really use.

Writes probe.json; the last line of stdout is `DEVICE GPUS`, for the suite. Exit 3: no torch.
"""

import argparse
import importlib.util
import os
import sys
import time
from pathlib import Path

from common import node_name, now, short, write_json


def found():
    """Where the torch lies that cannot be imported."""
    spec = importlib.util.find_spec("torch")
    return f" from {spec.origin}" if spec and spec.origin else ""


def mend():
    """A folder of PYTHONPATH stands before the interpreter's own."""
    return " or unset PYTHONPATH" if os.environ.get("PYTHONPATH") else ""


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--out", required=True, type=Path)
    args = p.parse_args()
    document = {
        "schema": "clustermax-payload/1",
        "payload": "probe",
        "node": node_name(),
        "started": now(),
        "interpreter": sys.executable,
        "python": sys.version.split()[0],
    }
    begin = time.perf_counter()
    try:
        import torch
    except (Exception, SystemExit) as error:  # a broken install fails in many ways, all mean: no torch
        document.update(
            torch=None,
            complete=True,
            detail=f"{sys.executable} cannot import torch ({short(error)}){found()}; "
            f"choose another interpreter with --python{mend()}",
        )
        write_json(args.out / "probe.json", document)
        print(document["detail"], file=sys.stderr)
        return 3
    document["import_seconds"] = time.perf_counter() - begin
    gpus, detail = 0, ""
    try:
        # A GPU that is listed but cannot multiply is no GPU: the driver or the build may not fit.
        if torch.cuda.is_available():
            for i in range(torch.cuda.device_count()):
                x = torch.ones(64, 64, device=f"cuda:{i}")
                if float((x @ x)[0, 0]) == 64.0:
                    gpus += 1
        else:
            detail = f"torch {torch.__version__} sees no usable GPU"
    except Exception as error:  # driver trouble comes as RuntimeError, AssertionError, OSError ...
        gpus, detail = 0, f"torch {torch.__version__} cannot use the GPUs: {short(error)}"
    device = "cuda" if gpus else "cpu"
    dist = torch.distributed
    available = dist.is_available()
    document.update(
        torch=torch.__version__,
        device=device,
        gpus=gpus,
        detail=detail,
        complete=True,
        gloo=bool(available and getattr(dist, "is_gloo_available", lambda: True)()),
        nccl=bool(available and dist.is_nccl_available()),
    )
    write_json(args.out / "probe.json", document)
    print(device, gpus)
    return 0


if __name__ == "__main__":
    sys.exit(main())
