"""What every payload shares: its place in the step, the process group, and the output file.

A payload is one task of an `srun` step. It takes its rank from Slurm (or from --rank/--ranks for a
run by hand), measures, and rank 0 writes one JSON document. Works with Python 3.9+ and torch 1.13 to 2.x.
"""

import argparse
import contextlib
import datetime
import fcntl
import itertools
import json
import os
import socket
import statistics
import struct
import sys
import threading
import time
import traceback
from pathlib import Path

# Before the code of `python3 -c`, which looks into the current folder first: a torch.py there is the user's.
NOT_HERE = "import sys; sys.path[:] = [folder for folder in sys.path if folder]; "
UNSUPPORTED_WORDS = ("not support", "no support", "not implemented", "unsupported")


def now():
    """UTC time, RFC 3339, whole seconds."""
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def parser(description):
    """Command line that all payloads have."""
    p = argparse.ArgumentParser(description=description)
    p.add_argument("--out", required=True, type=Path, help="folder the payload writes its JSON into")
    p.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    p.add_argument("--rank", type=int, default=int(os.environ.get("SLURM_PROCID", "0")))
    p.add_argument("--ranks", type=int, default=int(os.environ.get("SLURM_NTASKS", "1")))
    p.add_argument("--local-rank", type=int, default=int(os.environ.get("SLURM_LOCALID", "0")))
    p.add_argument("--threads", type=int, default=0, help="CPU threads a rank (default: its cores)")
    p.add_argument("--timeout", type=int, default=60, help="seconds one collective may take")
    return p


def node_name():
    """Slurm's name of this node, else the host name."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


def import_torch(threads):
    """Imports torch with its CPU threads set.

    torch would start one thread a core of the machine; ranks that share cores then only disturb each other.
    """
    if threads <= 0:
        local = int(os.environ.get("SLURM_NTASKS_PER_NODE", "1").split("(")[0] or 1)
        threads = max(1, len(os.sched_getaffinity(0)) // max(1, local))
    os.environ["OMP_NUM_THREADS"] = str(threads)
    import torch

    torch.set_num_threads(threads)
    return torch


class Beat:
    """Tells the suite that this rank lives and how far it is: OUT/beat/RANK.json, every two seconds.

    A thread writes it, so that a rank which waits in a collective still beats and one that was stopped does
    not. Large runs beat less often: the folder is shared by all nodes.
    """

    def __init__(self, args):
        self._path = args.out / "beat" / f"{args.rank}.json"
        self._every = max(2.0, args.ranks / 256)
        self._state = {"rank": args.rank, "node": node_name(), "pid": os.getpid(), "every": self._every}
        self._step = (0, "its start")
        self._stop = threading.Event()
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(exist_ok=True)
        threading.Thread(target=self._run, daemon=True).start()
        _BEATS.append(self)

    def step(self, doing):
        """One step further; DOING is what the rank does from now on."""
        self._step = (self._step[0] + 1, doing)

    def end(self):
        """The rank has ended by itself: nobody needs to miss it."""
        self._stop.set()
        with contextlib.suppress(OSError):
            self._path.unlink()

    def _run(self):
        for beat in itertools.count():
            step, doing = self._step
            # A full disk must not end a measurement that needs no disk.
            with contextlib.suppress(OSError):
                write_json(self._path, {**self._state, "beat": beat, "step": step, "doing": doing})
            if self._stop.wait(self._every):
                return


_BEATS = []


class Stopwatch:
    """Times equal work: wall clock, and CPU time of this thread, which neighbours on a machine do not change.

    CLUSTERMAX_SLOW_RANK=RANK:PERCENT makes one rank do that much more work, to see that it is found. Only
    simulated clusters take it; the document says it (`slowed`), and records of such a run are synthetic.
    """

    def __init__(self, torch, args):
        self._cuda = torch.cuda if args.device == "cuda" else None
        self.slowed = None
        self._share = 0.0
        setting = os.environ.get("CLUSTERMAX_SLOW_RANK", "")
        if not setting:
            return
        try:
            rank, percent = (int(word) for word in setting.split(":"))
        except ValueError:
            text = f"CLUSTERMAX_SLOW_RANK={setting}: give RANK:PERCENT, two whole numbers"
            raise SystemExit(text) from None
        if not 0 <= rank < args.ranks or not 1 <= percent <= 1000:
            raise SystemExit(
                f"CLUSTERMAX_SLOW_RANK={setting}: the rank must be below {args.ranks}, "
                "the percentage 1 to 1000"
            )
        if self._cuda or not simulated():
            raise SystemExit("CLUSTERMAX_SLOW_RANK works on a cluster of clustermax-sim only; unset it")
        self.slowed = {"rank": rank, "percent": percent}
        if rank == args.rank:
            self._share = percent / 100

    def time(self, work, *arguments, **options):
        """Calls work; returns its result, wall seconds and CPU seconds."""
        if self._cuda:
            self._cuda.synchronize()
        wall, cpu = time.perf_counter(), time.thread_time()
        result = work(*arguments, **options)
        if self._cuda:
            self._cuda.synchronize()
        if self._share:
            end = cpu + (time.thread_time() - cpu) * (1 + self._share)
            while time.thread_time() < end:
                pass
        return result, time.perf_counter() - wall, time.thread_time() - cpu


def simulated():
    """True on a cluster of clustermax-sim: its slurm.conf says so in the first line."""
    try:
        with open(os.environ.get("SLURM_CONF", "/etc/slurm/slurm.conf"), encoding="utf-8") as conf:
            return conf.readline().startswith("# Written by clustermax-sim")
    except OSError:
        return False


def windows(samples, count):
    """Medians of COUNT equal runs of consecutive samples (fewer samples: of each)."""
    count = min(count, len(samples))
    edges = [len(samples) * i // count for i in range(count + 1)] if count else []
    return [statistics.median(samples[a:b]) for a, b in zip(edges, edges[1:])]


def header(torch, args, backend=None):
    """Facts about this run that make its numbers comparable."""
    head = {
        "schema": "clustermax-payload/1",
        "torch": torch.__version__,
        "python": sys.version.split()[0],
        "device": args.device,
        "ranks": args.ranks,
        "threads": torch.get_num_threads(),
        "node": node_name(),
        "started": now(),
        "complete": False,
    }
    if backend:
        head["backend"] = backend
        head["interface"] = os.environ.get("GLOO_SOCKET_IFNAME")
    if args.device == "cuda":
        head["gpu"] = torch.cuda.get_device_name(torch.cuda.current_device())
    return head


def write_json(path, document):
    """Writes atomically: a reader sees the old document or the new one, never half of one."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    temporary.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n")
    temporary.replace(path)


def is_unsupported(error):
    """True when the library says that it lacks the operation, rather than that it failed."""
    text = str(error).lower()
    if isinstance(error, (AttributeError, NotImplementedError)):
        return True
    return any(words in text for words in UNSUPPORTED_WORDS)


def short(error):
    """First line of an exception, for a record's detail."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"


def _boot_id():
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _interface_with(address):
    """Name of the network interface that holds this IPv4 address, or None."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                reply = fcntl.ioctl(s.fileno(), 0x8915, request)  # SIOCGIFADDR
            except OSError:
                continue
            if socket.inet_ntoa(reply[20:24]) == address:
                return name
    return None


def _address_towards(host, port):
    """Own IPv4 address that a packet to HOST would leave from; no packet is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.connect((host, port))
        return s.getsockname()[0]


def _reachable(host, port, timeout):
    try:
        with socket.create_connection((host, port), timeout=timeout):
            return True
    except OSError:
        return False


def _open_store(dist, *where, **options):
    """A TCPStore, also where torch (2.4 and later) wants libuv but was built without it, as Debian's is."""
    try:
        return dist.TCPStore(*where, **options)
    except RuntimeError as error:
        if "libuv" not in str(error):
            raise
        return dist.TCPStore(*where, **options, use_libuv=False)


# TUNING tells a line for every call, and a burn-in makes millions.
NCCL_SUBSYSTEMS = "INIT,BOOTSTRAP,ENV,NET"


def nccl_log(args, every=False):
    """NCCL's log, which says which way it took, into the stage's folder: one rank a node, or every one.

    The suite's nccl-tests do the same. A level that the user or the site set below that would leave the
    guards blind; what is set above it stays.
    """
    level = os.environ.get("NCCL_DEBUG", "").upper()
    told = every or args.local_rank == 0 or level == "INFO"
    wanted = os.environ.get("NCCL_DEBUG_SUBSYS", "")
    if wanted != "ALL":
        # `^NET` leaves out what is needed.
        more = f",{wanted}" if wanted and not wanted.startswith("^") else ""
        os.environ["NCCL_DEBUG_SUBSYS"] = NCCL_SUBSYSTEMS + more
    if level != "TRACE":
        os.environ["NCCL_DEBUG"] = "INFO" if told else "WARN"
    os.environ["NCCL_DEBUG_FILE"] = str(args.out / "nccl-torch.%h.%p.log")


def join_group(torch, args, log=False):
    """Makes the process group of all tasks of the step and returns its backend ("nccl" or "gloo").

    LOG: NCCL writes the log of every rank, not only of one a node.

    Rank 0 opens a store on a port the kernel picks and leaves address and port in the output folder, which
    all nodes share. No port is fixed, so several runs share a machine. Nodes that are one machine (a
    simulated cluster: same boot id) talk over loopback; all others over the interface that routes to rank 0,
    because gloo's own choice, the address of the host name, is 127.0.1.1 on many systems.
    """
    dist = torch.distributed
    if not dist.is_available():
        raise RuntimeError("this torch is built without torch.distributed")
    backend = "gloo"
    if args.device == "cuda":
        torch.cuda.set_device(args.local_rank % torch.cuda.device_count())
        if dist.is_nccl_available():
            backend = "nccl"
            nccl_log(args, log)
    limit = datetime.timedelta(seconds=args.timeout)
    # The step's number keeps a second attempt apart from what a first one left behind.
    meeting = args.out / f"rendezvous.{os.environ.get('SLURM_STEP_ID', '0')}.json"
    boot = _boot_id()
    if args.rank == 0:
        # The positional form is the one that torch 1.13 and 2.x share; port 0 = any free one.
        store = _open_store(dist, "0.0.0.0", 0, args.ranks, True, limit, wait_for_workers=False)
        name = socket.gethostname()
        hosts = [h for h in (os.environ.get("SLURMD_NODENAME"), socket.getfqdn(), name) if h]
        write_json(meeting, {"boot": boot, "hosts": hosts, "port": store.port})
        if args.ranks > 1:
            peer = store.get("clustermax/peer").decode()
            local = peer == "127.0.0.1"
            interface = "lo" if local else _interface_with(_address_towards(peer, store.port))
        else:
            interface = "lo"
    else:
        deadline = time.monotonic() + args.timeout
        while not meeting.exists():
            if time.monotonic() > deadline:
                raise RuntimeError(
                    f"rank 0 left no address in {meeting} within {args.timeout} s: "
                    "is the folder shared by all nodes?"
                )
            time.sleep(0.05)
        where = json.loads(meeting.read_text())
        hosts = ["127.0.0.1"] if where["boot"] == boot else where["hosts"]
        host = next((h for h in hosts if _reachable(h, where["port"], 5)), None)
        if host is None:
            raise RuntimeError(f"rank 0 cannot be reached at {' or '.join(hosts)} port {where['port']}")
        store = _open_store(dist, host, where["port"], args.ranks, False, limit)
        own = "127.0.0.1" if host == "127.0.0.1" else _address_towards(host, where["port"])
        interface = _interface_with(own)
        # Rank 0 learns its own interface from a peer; one on another machine tells more than one beside it.
        if own != "127.0.0.1" or args.rank == args.ranks - 1:
            store.set("clustermax/peer", own)
    if interface and "GLOO_SOCKET_IFNAME" not in os.environ:
        os.environ["GLOO_SOCKET_IFNAME"] = interface
    dist.init_process_group(
        backend,
        store=dist.PrefixStore("clustermax", store),
        rank=args.rank,
        world_size=args.ranks,
        timeout=limit,
    )
    dist.barrier()
    if args.rank == 0:
        meeting.unlink()
    return backend, store


def leave(main):
    """Runs main and ends the process at once, without destroy_process_group and Python's own shutdown.

    Both now and then wait for ever for torch 1.13's own threads (seen in 3 of 20 training runs), after
    everything has been written; the step would then run into its deadline.
    """
    try:
        code = main()
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 0
        if isinstance(stop.code, str):
            print(stop.code, file=sys.stderr)
            code = 2
    except BaseException:  # whatever it is, the process must end here
        traceback.print_exc()
        code = 1
    for beat in _BEATS:
        beat.end()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code or 0)
