"""Memory bandwidth of every rank's device, and copies between host and GPU.

copy: b = a, two arrays' bytes; triad: c = a + s b, three, as STREAM counts them. Device memory (HBM) on GPUs;
on CPUs the node's memory, by all its cores. The arrays are larger than the caches. Copies that are looked at
(one in eight, and the last) must have the source's bits, triads those of the first. Host copies go through
pinned memory, one GPU of the node after the other and then all at once.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Callable

import common

# Room that other programs of the node keep.
SHARE = 16


def cache_bytes(root: str = "/sys/devices/system/cpu") -> int:
    """Last-level caches of all processors together; 0 where the kernel does not tell."""
    found: dict[str, int] = {}
    for index in Path(root).glob("cpu[0-9]*/cache/index3"):
        try:
            size = (index / "size").read_text().strip()
            found[(index / "shared_cpu_list").read_text().strip()] = int(size.rstrip("K")) * 1024
        except (OSError, ValueError):
            continue
    return sum(found.values())


def available_bytes() -> int:
    """MemAvailable."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 1 << 30


def array_bytes(device: str, cache: int, available: int, local_ranks: int) -> int:
    """Bytes of one of the three arrays: four times the caches, if memory allows; 1 GiB on a GPU."""
    if device == "cuda":
        return 1 << 30
    return max(1 << 20, min(max(64 << 20, 4 * cache), available // SHARE // local_ranks))


def main() -> int:
    p = common.parser(__doc__)
    p.add_argument("--bytes", type=int, default=0, help="size of an array (default: by the caches)")
    p.add_argument("--seconds", type=float, default=1.0, help="time to repeat each operation for")
    args = p.parse_args()
    beat = common.Beat(args)
    torch = common.import_torch(args.threads)
    backend, _store = common.join_group(torch, args)
    dist = torch.distributed
    cuda = args.device == "cuda"
    device = f"cuda:{torch.cuda.current_device()}" if cuda else "cpu"
    nodes: list[Any] = [None] * args.ranks
    dist.all_gather_object(nodes, common.node_name())
    mine = [rank for rank in range(args.ranks) if nodes[rank] == nodes[args.rank]]
    cache = 0 if cuda else cache_bytes()
    size = args.bytes or array_bytes(args.device, cache, available_bytes(), len(mine))
    document = common.header(torch, args, backend)
    document.update(
        payload="memory",
        rank=args.rank,
        local_rank=args.local_rank,
        array_bytes=size,
        cache_bytes=cache,
        rows=[],
        copies=[],
        missing=[],
    )

    def synchronize() -> None:
        if cuda:
            torch.cuda.synchronize()

    def rate(
        work: Callable[[], Any], nbytes: int, right: Callable[[], bool], least: int = 3
    ) -> dict[str, Any]:
        """Best and median GB/s. Results are compared outside of the times."""
        work()
        synchronize()
        seconds, wrong, checks = [], 0, 0
        end = time.monotonic() + args.seconds
        while len(seconds) < least or (time.monotonic() < end and len(seconds) < 1000):
            begin = time.perf_counter()
            work()
            synchronize()
            seconds.append(time.perf_counter() - begin)
            if len(seconds) % 8 == 1:
                checks, wrong = checks + 1, wrong + int(not right())
        checks, wrong = checks + 1, wrong + int(not right())
        ordered = sorted(seconds)
        return {
            "repeats": len(seconds),
            "bytes": nbytes,
            "best": nbytes / ordered[0] / 1e9,
            "median": nbytes / ordered[len(ordered) // 2] / 1e9,
            "checks": checks,
            "wrong": wrong,
        }

    count = size // 4
    generator = torch.Generator().manual_seed(20240602)
    # One seeded block again and again: the generator is slower than what is measured.
    block = torch.randn(min(count, 1 << 20), generator=generator)
    a = block.repeat(-(-count // block.numel()))[:count].to(device)
    b, c = torch.empty_like(a), torch.empty_like(a)
    dist.barrier()
    beat.step("copy")
    document["rows"].append(
        {"op": "copy", **rate(lambda: b.copy_(a), 2 * 4 * count, lambda: torch.equal(a, b))}
    )
    torch.add(a, b, alpha=3.0, out=c)
    first = c.clone()
    beat.step("triad")
    document["rows"].append(
        {
            "op": "triad",
            **rate(lambda: torch.add(a, b, alpha=3.0, out=c), 3 * 4 * count, lambda: torch.equal(c, first)),
        }
    )
    if cuda:
        host = torch.empty(min(count, 64 << 20), pin_memory=True)
        host.copy_(a[: host.numel()])
        back = torch.empty(host.numel(), pin_memory=True)
        room = a[: host.numel()]
        ways = {
            "host_to_device": (
                lambda: room.copy_(host, non_blocking=True),
                lambda: torch.equal(room.cpu(), host),
            ),
            "device_to_host": (lambda: back.copy_(room, non_blocking=True), lambda: torch.equal(back, host)),
        }
        for direction, (work, right) in ways.items():
            for turn in range(max(nodes.count(node) for node in nodes)):
                dist.barrier()
                if args.local_rank == turn:
                    beat.step(f"{direction}, alone on the node")
                    found = rate(work, 4 * host.numel(), right)
                    document["copies"].append({"direction": direction, "mode": "alone", **found})
            dist.barrier()
            beat.step(f"{direction}, all GPUs of the node")
            found = rate(work, 4 * host.numel(), right)
            document["copies"].append({"direction": direction, "mode": "together", **found})
    else:
        document["missing"] = [
            {
                "direction": direction,
                "state": "unavailable",
                "detail": "copies between host and GPU need a GPU that torch can use, and torch sees none",
            }
            for direction in ("host_to_device", "device_to_host")
        ]
    document.update(complete=True, ended=common.now())
    common.write_json(args.out / f"memory-{args.rank}.json", document)
    dist.barrier()
    return 0


if __name__ == "__main__":
    common.leave(main)
