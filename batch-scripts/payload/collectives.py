"""Collectives over torch.distributed: message-size sweep, bus bandwidth, values checked.

Sizes, algbw and busbw follow nccl-tests (doc/PERFORMANCE.md): size S = max(send, receive) bytes,
algbw = S/t, busbw = algbw * factor(n), GB = 1e9 bytes. The time is the slowest rank's mean over the
iterations. Values are small integers in fp32, so a right result is exact and wrong elements are counted.
"""

import time

import common
import worlds


def factor(name, n):
    """busbw / algbw for n ranks."""
    if name == "all_reduce":
        return 2.0 * (n - 1) / n
    if name in ("all_gather", "reduce_scatter", "alltoall", "gather", "scatter"):
        return (n - 1) / n
    return 1.0


def iterations(size):
    """The same on every rank, and fewer for large messages to keep the sweep short."""
    if size <= 32 << 10:
        return 20
    return 10 if size <= 1 << 20 else 4


class Sweep:
    """One operation for one message size: buffers, the call, and the check of its result."""

    def __init__(self, torch, device, rank, n, group=None):
        """RANK of N in GROUP (default: all ranks); all_reduce and all_to_all_single take a group."""
        self.torch, self.dist, self.device, self.rank, self.n = torch, torch.distributed, device, rank, n
        self.group = group

    def pattern(self, count, rank, offset=0):
        """Element i of a rank's data: (i mod 7) + rank. Exact in fp32 after any sum of up to 2^20 ranks."""
        index = self.torch.arange(offset, offset + count, device=self.device)
        return (index % 7).to(self.torch.float32) + rank

    def summed(self, count, offset=0):
        index = self.torch.arange(offset, offset + count, device=self.device)
        return (index % 7).to(self.torch.float32) * self.n + self.n * (self.n - 1) // 2

    def empty(self, count):
        return self.torch.full((count,), -1.0, device=self.device)

    def make(self, api, size):
        """Returns (bytes, fill, call, wrong) or None when the size is below one element a rank."""
        d, n, rank = self.dist, self.n, self.rank
        elements = size // 4
        each = elements // n
        if api in ("all_reduce", "broadcast", "reduce", "send"):
            if elements == 0:
                return None
            x = self.empty(elements)
            if api == "all_reduce":
                return (
                    elements * 4,
                    lambda: x.copy_(self.pattern(elements, rank)),
                    lambda: d.all_reduce(x, group=self.group),
                    lambda: int((x != self.summed(elements)).sum()),
                )
            if api == "broadcast":
                return (
                    elements * 4,
                    lambda: x.copy_(self.pattern(elements, rank)),
                    lambda: d.broadcast(x, 0),
                    lambda: int((x != self.pattern(elements, 0)).sum()),
                )
            if api == "reduce":
                return (
                    elements * 4,
                    lambda: x.copy_(self.pattern(elements, rank)),
                    lambda: d.reduce(x, 0),
                    lambda: int((x != self.summed(elements)).sum()) if rank == 0 else 0,
                )
            # sendrecv as nccl-tests does it: to the next rank, from the one before.
            y = self.empty(elements)
            after, before = (rank + 1) % n, (rank - 1) % n

            def ring():
                pending = d.isend(x, after)
                d.irecv(y, before).wait()
                pending.wait()

            if self.device != "cpu":

                def ring():
                    ops = [d.P2POp(d.isend, x, after), d.P2POp(d.irecv, y, before)]
                    for work in d.batch_isend_irecv(ops):
                        work.wait()

            return (
                elements * 4,
                lambda: x.copy_(self.pattern(elements, rank)),
                ring,
                lambda: int((y != self.pattern(elements, before)).sum()),
            )
        if each == 0:
            return None
        total = each * n
        small, large = self.empty(each), self.empty(total)
        parts = list(large.chunk(n))
        joined = self.torch.cat

        if api in ("all_gather", "all_gather_into_tensor", "gather"):

            def fill():
                small.copy_(self.pattern(each, rank))
                large.fill_(-1.0)

            def wrong():
                if api == "gather" and rank != 0:
                    return 0
                return sum(int((parts[r] != self.pattern(each, r)).sum()) for r in range(n))

            call = {
                "all_gather": lambda: d.all_gather(parts, small),
                "all_gather_into_tensor": lambda: d.all_gather_into_tensor(large, small),
                "gather": lambda: d.gather(small, parts if rank == 0 else None, 0),
            }[api]
            return total * 4, fill, call, wrong
        if api == "scatter":
            return (
                total * 4,
                lambda: large.copy_(self.pattern(total, 0)),
                lambda: d.scatter(small, parts if rank == 0 else None, 0),
                lambda: int((small != self.pattern(each, 0, rank * each)).sum()),
            )
        if api in ("reduce_scatter", "reduce_scatter_tensor"):
            call = {
                "reduce_scatter": lambda: d.reduce_scatter(small, parts),
                "reduce_scatter_tensor": lambda: d.reduce_scatter_tensor(small, large),
            }[api]
            return (
                total * 4,
                lambda: large.copy_(self.pattern(total, rank)),
                call,
                lambda: int((small != self.summed(each, rank * each)).sum()),
            )
        if api in ("all_to_all", "all_to_all_single"):
            back = self.empty(total)
            received = list(back.chunk(n))
            call = {
                "all_to_all": lambda: d.all_to_all(received, parts),
                "all_to_all_single": lambda: d.all_to_all_single(back, large, group=self.group),
            }[api]
            return (
                total * 4,
                lambda: large.copy_(self.pattern(total, rank)),
                call,
                lambda: int((back != joined([self.pattern(each, r, rank * each) for r in range(n)])).sum()),
            )
        raise ValueError(api)


# nccl-tests' name of the collective, and the torch.distributed call that does it.
OPERATIONS = [
    ("all_reduce", "all_reduce"),
    ("broadcast", "broadcast"),
    ("reduce", "reduce"),
    ("all_gather", "all_gather"),
    ("all_gather", "all_gather_into_tensor"),
    ("reduce_scatter", "reduce_scatter"),
    ("reduce_scatter", "reduce_scatter_tensor"),
    ("alltoall", "all_to_all_single"),
    ("alltoall", "all_to_all"),
    ("gather", "gather"),
    ("scatter", "scatter"),
    ("sendrecv", "send"),
]


# What is measured on parts of the job, and at which sizes: one that latency rules and one for the wires.
PARTS = [("all_reduce", "all_reduce"), ("alltoall", "all_to_all_single")]
PART_SIZES = (64 << 10, 16 << 20, 1 << 30)


def main():
    p = common.parser(__doc__)
    p.add_argument("--min", type=int, default=8, help="smallest message in bytes")
    p.add_argument("--max", type=int, default=16 << 20, help="largest message in bytes")
    p.add_argument("--step", type=int, default=8, help="factor between sizes")
    args = p.parse_args()
    beat = common.Beat(args)
    torch = common.import_torch(args.threads)
    watch = common.Stopwatch(torch, args)
    backend, _store = common.join_group(torch, args, log=True)
    dist = torch.distributed
    device = f"cuda:{torch.cuda.current_device()}" if args.device == "cuda" else "cpu"

    nodes = [None] * args.ranks
    # all_gather_object needs tensors on the backend's device; it handles that itself.
    dist.all_gather_object(nodes, common.node_name())
    document = common.header(torch, args, backend)
    document.update(
        payload="collectives",
        nodes=len(set(nodes)),
        dtype="float32",
        planned=[api for _, api in OPERATIONS],
        rows=[],
        missing=[],
    )
    path = args.out / "torch.json"

    def synchronize():
        if args.device == "cuda":
            torch.cuda.synchronize()

    def across(value, op):
        t = torch.tensor([value], dtype=torch.float64, device=device)
        dist.all_reduce(t, op)
        return float(t[0])

    sizes = []
    size = args.min
    while size <= args.max:
        sizes.append(size)
        size *= args.step
    if sizes[-1] != args.max:
        sizes.append(args.max)
    sweep = Sweep(torch, device, args.rank, args.ranks)
    for name, api in OPERATIONS:
        if args.ranks < 2:
            document["missing"].append(
                {
                    "collective": name,
                    "api": api,
                    "state": "unavailable",
                    "detail": "one rank: there is nothing to communicate",
                }
            )
            continue
        for size in sizes:
            try:
                made = sweep.make(api, size)
                if made is None:
                    continue
                nbytes, fill, call, wrong = made
                beat.step(f"{api} of {nbytes} bytes")
                fill()
                call()
                synchronize()
            except (RuntimeError, AttributeError, NotImplementedError) as error:
                if not common.is_unsupported(error):
                    raise  # a failed transfer leaves the group unusable: the sweep ends here, incomplete
                document["missing"].append(
                    {
                        "collective": name,
                        "api": api,
                        "state": "unavailable",
                        "detail": f"torch {torch.__version__} with {backend} has no {api} "
                        f"({common.short(error)})",
                    }
                )
                break
            bad = int(across(float(wrong()), dist.ReduceOp.SUM))
            count = iterations(nbytes)
            dist.barrier()
            synchronize()
            begin = time.perf_counter()
            for _ in range(count):
                call()
            synchronize()
            mine = (time.perf_counter() - begin) / count
            slowest = across(mine, dist.ReduceOp.MAX)
            fastest = across(mine, dist.ReduceOp.MIN)
            algbw = nbytes / slowest / 1e9
            document["rows"].append(
                {
                    "collective": name,
                    "api": api,
                    "size": nbytes,
                    "iterations": count,
                    "seconds": slowest,
                    "fastest_rank_seconds": fastest,
                    "algbw": algbw,
                    "busbw": algbw * factor(name, args.ranks),
                    "wrong": bad,
                }
            )
        if args.rank == 0:
            common.write_json(path, document)
    if args.ranks > 1:
        parts = worlds.Worlds(
            torch, args, nodes, watch, beat, lambda rank, n, group: Sweep(torch, device, rank, n, group)
        )
        lacking = {entry["api"] for entry in document["missing"]}
        apis = [(name, api) for name, api in PARTS if api not in lacking]
        document["rows"] += parts.parts(apis, [s for s in PART_SIZES if s <= args.max], factor)
        if args.rank == 0:
            common.write_json(path, document)
        size = min(args.max, (256 << 20) if args.device == "cuda" else (4 << 20))
        document["slowed"] = watch.slowed
        document["pairs"] = parts.pairs(size, factor)
    document.update(complete=True, ended=common.now())
    if args.rank == 0:
        common.write_json(path, document)
    dist.barrier()
    return 0


if __name__ == "__main__":
    common.leave(main)
