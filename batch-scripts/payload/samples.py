"""One compact file a node: what its devices, links and kernel did in every second of a burn-in.

Format `clustermax-samples/1` (docs/burnin.md). The first line is a JSON object; then, a line a second:

    T v,v,v,v,v,v,v,v,v;v,...   seconds since the start, a group of FIELDS for each device;
                                empty: as before; -: not known
    +T NAME VALUE               an error counter that has changed (at T 0: all that are not zero)
    !T TEXT                     a line of the kernel log

Lines are only appended: whatever ends the run, at most the last one is torn. A line that a full disk cut
ends in `#`.
"""

import contextlib
import json
import os
import re
import shutil
import socket
import statistics
import subprocess
import threading
import time
from pathlib import Path

SCHEMA = "clustermax-samples/1"
FIELDS = (
    "temperature C",
    "power W",
    "clock MHz",
    "memory clock MHz",
    "throttle reasons (NVML bits, hex)",
    "products",
    "product us",
    "product CPU us",
    "product and exchange us",
)
# nvidia-smi prints a line a second; what is older than this many seconds is not what the device does now.
STALE = 5.0
QUERY = (
    "uuid,index,temperature.gpu,power.draw,clocks.sm,clocks.mem,clocks_throttle_reasons.active,"
    "ecc.errors.uncorrected.volatile.total"
)
IB_COUNTERS = (
    "symbol_error",
    "link_downed",
    "link_error_recovery",
    "port_rcv_errors",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
)
NET_COUNTERS = ("statistics/rx_errors", "statistics/tx_errors", "statistics/rx_crc_errors", "carrier_changes")
# Beside errors (level 3 and worse), lines of these parts of the kernel at any level.
KERNEL = re.compile(r"NVRM|Xid|mlx5|amdgpu|EDAC|mce:|AER|nvme|hung_task|blocked for more than|Out of memory")
KERNEL_LINES = 2000


def address(node):
    """Where the ranks of a node send their samples: an abstract socket, so nothing is left behind."""
    job, step = os.environ.get("SLURM_JOB_ID", "0"), os.environ.get("SLURM_STEP_ID", "0")
    return f"\0clustermax-burnin.{job}.{step}.{node}"


def number(text):
    """A value of nvidia-smi as a whole number, or None for `[N/A]` and the like."""
    try:
        return round(float(text))
    except ValueError:
        return None


def gpu_line(line):
    """A line of nvidia-smi: names, (temperature, power, two clocks, throttle), uncorrected ECC errors."""
    uuid, *words = [word.strip() for word in line.split(",")]
    if len(words) != 7 or number(words[0]) is None:
        return None
    try:
        # Bit 0 is idle and bit 1 the application clocks: neither is a throttle.
        throttle = format(int(words[5], 16) & ~0x3, "x")
    except ValueError:
        throttle = None
    return (words[0], uuid), (*(number(word) for word in words[1:5]), throttle), number(words[6])


def visible_gpus(setting):
    """The names of the GPUs that ranks 0, 1 ... use; None: numbered as nvidia-smi does."""
    return [name.strip() for name in setting.split(",")] if setting else None


def encode(seconds, groups, before):
    """A line of samples; values as before are left out."""
    text = []
    for at, group in enumerate(groups):
        last = before[at] if at < len(before) else ()
        words = []
        for index, value in enumerate(group):
            word = "-" if value is None else str(value)
            words.append("" if index < len(last) and last[index] == word else word)
        text.append(",".join(words).rstrip(",") if last else ",".join(words))
    return f"{seconds} {';'.join(text)}\n"


def counters(sys_class=Path("/sys/class")):
    """Files of the error counters of RDMA ports and network cards, by a short name."""
    found = {}
    for port in sorted(sys_class.glob("infiniband/*/ports/*")):
        for name in IB_COUNTERS:
            found[f"{port.parent.parent.name}/{port.name}/{name}"] = port / "counters" / name
    for card in sorted(sys_class.glob("net/*")):
        if (card / "device").exists():
            for name in NET_COUNTERS:
                found[f"{card.name}/{name.split('/')[-1]}"] = card / name
    return {name: path for name, path in found.items() if path.exists()}


def read_int(path):
    try:
        return int(Path(path).read_text())
    except (OSError, ValueError):
        return None


def amd_cards(drm=Path("/sys/class/drm")):
    """hwmon folders of AMD GPUs, in the order of their cards."""
    cards = []
    for device in sorted(drm.glob("card[0-9]*/device")):
        with contextlib.suppress(OSError):
            if (device / "vendor").read_text().strip() == "0x1002":
                cards.extend(sorted(device.glob("hwmon/hwmon*"))[:1])
    return cards


def amd_values(card):
    scaled = []
    for names, scale in (
        (("temp2_input", "temp1_input"), 1000),
        (("power1_average", "power1_input"), 1_000_000),
        (("freq1_input",), 1_000_000),
        (("freq2_input",), 1_000_000),
    ):
        value = next((v for v in (read_int(card / name) for name in names) if v is not None), None)
        scaled.append(None if value is None else round(value / scale))
    return (*scaled, None)


def cpu_values():
    """Hottest thermal zone and mean clock of the first processors; the rest nobody may read."""
    zones = (read_int(path) for path in Path("/sys/class/thermal").glob("thermal_zone*/temp"))
    hottest = max((value for value in zones if value), default=None)
    files = sorted(Path("/sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_cur_freq"))[:8]
    clocks = [value for value in map(read_int, files) if value]
    clock = round(sum(clocks) / len(clocks) / 1000) if clocks else None
    return (None if hottest is None else round(hottest / 1000), None, clock, None, None)


class Trace:
    """Rows of [seconds, products, medians ...] over any time, at most MOST; neighbours are joined."""

    MOST = 600

    def __init__(self):
        self.rows, self._every, self._open = [], 1, []

    def add(self, row):
        self._open.append(row)
        if len(self._open) < self._every:
            return
        self.rows.append(self._joined(self._open))
        self._open = []
        if len(self.rows) >= self.MOST:
            self._every *= 2
            # In place: the document holds this very list.
            self.rows[:] = [self._joined(self.rows[i : i + 2]) for i in range(0, len(self.rows), 2)]

    @staticmethod
    def _joined(rows):
        medians = zip(*(row[2:] for row in rows))
        return [rows[-1][0], sum(row[1] for row in rows), *(round(statistics.median(m), 6) for m in medians)]


class Kernel:
    """New lines of the kernel log that tell of hardware."""

    def __init__(self, path="/dev/kmsg"):
        self._file, self.state, self._left = None, "read", KERNEL_LINES
        try:
            self._file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            os.lseek(self._file, 0, os.SEEK_END)
        except OSError as error:
            self.state = f"unavailable: {error.strerror} (the kernel log is for root here)"

    def lines(self):
        while self._file is not None and self._left > 0:
            try:
                record = os.read(self._file, 8192).decode(errors="replace")
            except BlockingIOError:
                return
            except BrokenPipeError:  # lines were overwritten; the next read goes on behind them
                continue
            except OSError:
                return
            head, _, text = record.partition(";")
            text = text.split("\n")[0]
            level = number(head.split(",")[0])
            if (level is not None and level & 7 <= 3) or KERNEL.search(text):
                self._left -= 1
                yield text


class Lines:
    """A file to which whole lines are appended; what a full or frozen disk does not take is left out."""

    def __init__(self, path):
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
        self._cut = False

    def add(self, text):
        """True when all of it was written."""
        data = (b"#\n" if self._cut else b"") + text.encode(errors="replace")
        try:
            written = os.write(self._file, data)
        except OSError:
            return False
        # Half a line is no value: its end says so.
        self._cut = written < len(data)
        return not self._cut

    def close(self):
        os.close(self._file)


class Sender:
    """A rank's samples, to the first rank of its node."""

    def __init__(self, node):
        self._address = address(node)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)

    def send(self, local_rank, values):
        with contextlib.suppress(OSError):  # the receiver has ended, or is a moment behind
            self._socket.sendto(json.dumps([local_rank, *values]).encode(), self._address)


class NodeLog:
    """Collects and writes the node's file; runs in a thread of the node's first rank."""

    def __init__(self, path, head, local_ranks, cuda):
        self._kernel = Kernel()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(address(head["node"]))
        self._socket.setblocking(False)
        self._ranks, self._devices, self._ecc = local_ranks, {}, {}
        self._counters, self._amd = counters(), []
        self._lines = Lines(path)
        self._visible = visible_gpus(os.environ.get("CUDA_VISIBLE_DEVICES"))
        self._smi = None
        program = shutil.which("nvidia-smi") if cuda else None
        if program:
            command = [program, f"--query-gpu={QUERY}", "--format=csv,noheader,nounits", "-l", "1"]
            self._smi = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
            threading.Thread(target=self._gpus, daemon=True).start()
        elif cuda:
            self._amd = amd_cards()
        self._cuda = cuda
        head = {"schema": SCHEMA, **head, "fields": FIELDS, "kernel": self._kernel.state}
        self._lines.add(json.dumps(head) + "\n")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def end(self):
        self._stop.set()
        self._thread.join(timeout=5)
        if self._smi:
            # One that hangs in the driver ends when the driver lets it, not before: nobody waits for it.
            self._smi.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._smi.wait(timeout=5)
        if not self._thread.is_alive():
            self._lines.close()

    def _gpus(self):
        for line in self._smi.stdout:
            values = gpu_line(line)
            if values:
                (index, uuid), hardware, errors = values
                self._devices[index] = self._devices[uuid] = (time.monotonic(), hardware)
                if errors is not None:
                    self._ecc[f"gpu{index}/ecc_uncorrected"] = errors

    def _hardware(self, local_rank):
        if self._smi:
            names = self._visible or [str(rank) for rank in range(self._ranks)]
            name = names[local_rank] if local_rank < len(names) else None
            seen, values = self._devices.get(name, (0.0, None))
            # A hung nvidia-smi repeats nothing: its last values are not those of now.
            return values if values and time.monotonic() - seen <= STALE else (None,) * 5
        if self._cuda:
            return amd_values(self._amd[local_rank]) if local_rank < len(self._amd) else (None,) * 5
        return cpu_values()

    def _received(self):
        latest = {}
        while True:
            try:
                local_rank, *values = json.loads(self._socket.recv(4096))
            except (OSError, ValueError):
                return latest
            latest[local_rank] = values

    def _run(self):
        begin, before, seen, second = time.monotonic(), [], {}, 0
        while not self._stop.wait(max(0.0, begin + second - time.monotonic())):
            latest = self._received()
            groups = [(*self._hardware(rank), *latest.get(rank, (None,) * 4)) for rank in range(self._ranks)]
            now = {name: read_int(path) for name, path in self._counters.items()}
            now.update(self._ecc)
            # A full disk must not end the burn-in; what it does not take is missing; no line refers to it.
            if self._lines.add(encode(second, groups, before)):
                before = [["-" if value is None else str(value) for value in group] for group in groups]
            for name, value in now.items():
                changed = value is not None and value != seen.get(name, 0)
                if changed and self._lines.add(f"+{second} {name} {value}\n"):
                    seen[name] = value
            for text in self._kernel.lines():
                self._lines.add(f"!{second} {text}\n")
            # After a halt the seconds that nobody looked at are missing.
            second = max(second + 1, int(time.monotonic() - begin))
