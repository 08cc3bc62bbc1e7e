"""Clock, temperature, throttling and link of what a rank computes on, read while or right after it works.

They tell why a rank may be slow. What cannot be read is left out. GPUs by nvidia-smi (or amdgpu's sysfs),
processors by sysfs.
"""

import contextlib
import subprocess
from pathlib import Path

QUERY = {
    "clock_mhz": "clocks.sm",
    "temperature_c": "temperature.gpu",
    "power_w": "power.draw",
    "throttle": "clocks_throttle_reasons.active",
    "pcie_width": "pcie.link.width.current",
    "pcie_generation": "pcie.link.gen.current",
}
# The clock is low because nothing runs, or because somebody set it: the first is no throttling.
IDLE = 0x1


def read(torch, args, sys=Path("/sys")):
    """Facts by name: numbers, and `throttle` as the driver's bit mask."""
    if args.device != "cuda":
        return _processor(sys)
    index = torch.cuda.current_device()
    properties = torch.cuda.get_device_properties(index)
    uuid = getattr(properties, "uuid", None)
    # nvidia-smi counts all GPUs of the node, torch those that it was given.
    facts = _nvidia(f"GPU-{uuid}" if uuid else str(index))
    return facts or _amd(sys, getattr(properties, "pci_bus_id", None))


def _nvidia(which):
    command = [
        "nvidia-smi",
        "-i",
        which,
        f"--query-gpu={','.join(QUERY.values())}",
        "--format=csv,noheader,nounits",
    ]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        said = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
        return parse(said)
    return {}


def parse(line):
    """One line of nvidia-smi's CSV; `[N/A]` and the like are left out."""
    facts = {}
    for name, cell in zip(QUERY, (c.strip() for c in line.split(","))):
        with contextlib.suppress(ValueError):
            facts[name] = int(cell, 16) & ~IDLE if name == "throttle" else float(cell)
    return facts


def _number(path):
    with contextlib.suppress(OSError, ValueError):
        return float(path.read_text().split()[0])
    return None


def _amd(sys, bus):
    facts = {}
    if bus is None:
        return facts
    for card in sys.glob("class/drm/card*/device"):
        # domain:bus:device.function
        if int(card.resolve().name.split(":")[1], 16) != bus:
            continue
        for hwmon in card.glob("hwmon/hwmon*"):
            for name, file, scale in [
                ("clock_mhz", "freq1_input", 1e6),
                ("temperature_c", "temp2_input", 1e3),
                ("power_w", "power1_average", 1e6),
            ]:
                value = _number(hwmon / file)
                if value is not None:
                    facts[name] = value / scale
        width = _number(card / "current_link_width")
        if width is not None:
            facts["pcie_width"] = width
    return facts


def _processor(sys):
    facts = {}
    clocks = [_number(p) for p in sorted(sys.glob("devices/system/cpu/cpufreq/policy*/scaling_cur_freq"))]
    clocks = [c for c in clocks if c]
    if clocks:
        facts["clock_mhz"] = max(clocks) / 1e3
    heat = [_number(p) for p in sys.glob("class/thermal/thermal_zone*/temp")]
    heat = [h for h in heat if h is not None and 0 < h < 200_000]
    if heat:
        facts["temperature_c"] = max(heat) / 1e3
    return facts
