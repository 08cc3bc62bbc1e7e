"""Matrix multiplication and a collective at the same time on every rank, for as long as it is told.

Every product must have the same bits and every exchange the right values. What each rank has found wrong is
in part-K/rank-N.json, rewritten every ten seconds, with a trace of at most 600 points; what its devices did
each second is in part-K/NODE.samples (samples.py). K counts the attempts: a burn-in that was interrupted goes
on with the next part.
"""

import contextlib
import statistics
import time

import common
import samples

# An iteration takes milliseconds. What takes longer than this many seconds was halted (a suspended job, a
# frozen node, a link that was away), and is no burn-in time.
HALT = 10.0


def exchange_of(torch, x, y):
    """All-to-all where the backend has it, else all-reduce: name, call, and the value it must give."""
    dist, ranks = torch.distributed, torch.distributed.get_world_size()
    try:
        dist.all_to_all_single(y, x)
    except Exception as error:
        if not common.is_unsupported(error):
            raise
        return "all_reduce", lambda: dist.all_reduce(x, async_op=True), x, ranks
    return "alltoall", lambda: dist.all_to_all_single(y, x, async_op=True), y, 1


def local_ranks(torch, args):
    """How many ranks share this node."""
    nodes = [None] * args.ranks
    torch.distributed.all_gather_object(nodes, common.node_name())
    return nodes.count(common.node_name())


def main():
    p = common.parser(__doc__)
    p.add_argument("--size", type=int, default=0, help="n (default 512 on a CPU, 8192 on a GPU)")
    p.add_argument("--bytes", type=int, default=0, help="message (default 1 MiB on a CPU, 64 MiB on a GPU)")
    p.add_argument("--seconds", type=float, default=120.0)
    p.add_argument("--part", type=int, default=1, help="number of this attempt")
    args = p.parse_args()
    beat = common.Beat(args)
    torch = common.import_torch(args.threads)
    backend, _store = common.join_group(torch, args)
    cuda = args.device == "cuda"
    device = f"cuda:{torch.cuda.current_device()}" if cuda else "cpu"
    watch = common.Stopwatch(torch, args)
    n = args.size or (8192 if cuda else 512)
    elements = (args.bytes or ((64 if cuda else 1) << 20)) // 4 // args.ranks * args.ranks
    dtype = torch.bfloat16 if cuda else torch.float32
    generator = torch.Generator().manual_seed(20240601)
    a = torch.randn(n, n, generator=generator).to(device=device, dtype=dtype)
    b = torch.randn(n, n, generator=generator).to(device=device, dtype=dtype)
    first = a @ b
    out = torch.empty_like(first)
    x = torch.ones(elements, device=device)
    y = torch.zeros(elements, device=device)
    name, exchange, result, value = exchange_of(torch, x, y)
    ranks_here = local_ranks(torch, args)
    document = common.header(torch, args, backend)
    document.update(payload="burnin", rank=args.rank, local_rank=args.local_rank, collective=name)
    document.update(dtype=str(dtype).split(".")[-1], n=n, bytes=elements * 4, planned_seconds=args.seconds)
    trace = samples.Trace()
    document.update(slowed=watch.slowed, wrong=0, differing=0, seconds=0.0, halted=0.0, samples=trace.rows)
    folder = args.out / f"part-{args.part}"
    folder.mkdir(exist_ok=True)
    path = folder / f"rank-{args.rank}.json"
    common.write_json(path, document)
    log = None
    if args.local_rank == 0:
        head = {key: document[key] for key in ("node", "started", "dtype", "n", "collective", "device")}
        # This rank's number is the first of the node; the others follow it.
        head.update(part=args.part, first_rank=args.rank, ranks=ranks_here)
        log = samples.NodeLog(folder / f"{common.node_name()}.samples", head, ranks_here, cuda)
    sender = samples.Sender(common.node_name())
    torch.distributed.barrier()
    stop = torch.zeros(1, device=device)
    begin = last = written = before = time.monotonic()
    products, cpu_products, iterations = [], [], []
    while True:
        beat.step(f"a product and {name}")
        x.fill_(1.0)
        started = time.perf_counter()
        handle = exchange()
        _, wall, cpu = watch.time(torch.matmul, a, b, out=out)
        handle.wait()
        if cuda:
            torch.cuda.synchronize()
        iterations.append(time.perf_counter() - started)
        products.append(wall)
        cpu_products.append(cpu)
        document["wrong"] += int((result != value).sum())
        document["differing"] += int(not torch.equal(out, first))
        now = time.monotonic()
        if now - last >= 1.0:
            medians = (statistics.median(times) * 1e6 for times in (products, cpu_products, iterations))
            medians = [round(value) for value in medians]
            sender.send(args.local_rank, [len(products), *medians])
            trace.add([round(now - begin, 3), len(products), *(value / 1e6 for value in medians)])
            products, cpu_products, iterations, last = [], [], [], now
        document["seconds" if now - before <= HALT else "halted"] += now - before
        before = now
        if now - written >= 10.0:
            # A disk that is full for a while must not end the burn-in.
            with contextlib.suppress(OSError):
                common.write_json(path, document)
            written = now
        # All ranks end after the same iteration: the first one's clock decides.
        stop.fill_(float(args.rank == 0 and document["seconds"] >= args.seconds))
        torch.distributed.all_reduce(stop)
        if float(stop) > 0:
            break
    if log:
        log.end()
    document.update(complete=True, ended=common.now())
    common.write_json(path, document)
    torch.distributed.barrier()
    return 0


if __name__ == "__main__":
    common.leave(main)
