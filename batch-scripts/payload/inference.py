"""Inference by torch alone, in the three regimes that bound it: compute, memory and communication.

- prefill: a long prompt through the model, batch 1: bound by arithmetic;
- decode: token by token with a key-value cache, batch 1: bound by memory bandwidth;
- tensor_parallel: decode with every layer cut over the ranks of a node (of all nodes where a node has one
  rank): bound by communication. Its logits are compared with those of the whole model.

Every rank measures the first two by itself. Weights are seeded random numbers: nothing is downloaded.
"""

import time

import common

# name: vocabulary, dim, layers, heads, kv_heads, hidden, length, prompt
SHAPES = {
    "tiny": (256, 256, 2, 8, 8, 688, 320, 256),
    # Llama 3.1 8B.
    "8b": (128256, 4096, 32, 32, 8, 14336, 4352, 4096),
}


def percentile(values, share):
    """Nearest rank: the smallest value that at least this share does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)]


def row(case, seconds, tokens, **more):
    """One regime's times; TOKENS a sample."""
    return {
        "case": case,
        "samples": len(seconds),
        "tokens_per_second": tokens * len(seconds) / sum(seconds),
        "p50_ms": percentile(seconds, 0.50) * 1e3,
        "p99_ms": percentile(seconds, 0.99) * 1e3,
        **more,
    }


def part_of(torch, whole, rank, parts):
    """State of one rank of a tensor-parallel model: columns of q, k, v, w1 and w3, rows of wo and w2."""
    state = {}
    for name, value in whole.state_dict().items():
        layer = name.split(".")[-2]
        if layer in ("wq", "wk", "wv", "w1", "w3"):
            value = value.chunk(parts, dim=0)[rank]
        elif layer in ("wo", "w2"):
            value = value.chunk(parts, dim=1)[rank]
        state[name] = value.clone()
    return state


def main():
    p = common.parser(__doc__)
    p.add_argument("--shape", choices=sorted(SHAPES), default="")
    p.add_argument("--seconds", type=float, default=2.0, help="length of each regime")
    args = p.parse_args()
    beat = common.Beat(args)
    torch = common.import_torch(args.threads)
    backend, _store = common.join_group(torch, args)
    from llama import Llama

    dist = torch.distributed
    cuda = args.device == "cuda"
    device = f"cuda:{torch.cuda.current_device()}" if cuda else "cpu"
    dtype = torch.bfloat16 if cuda else torch.float32
    shape = args.shape or ("8b" if cuda else "tiny")
    vocabulary, dim, layers, heads, kv_heads, hidden, length, prompt = SHAPES[shape]
    nodes = [None] * args.ranks
    dist.all_gather_object(nodes, common.node_name())
    document = common.header(torch, args, backend)
    document.update(payload="inference", model="llama", shape=shape, dtype=str(dtype).split(".")[-1])
    document.update(prompt=prompt, nodes=len(set(nodes)), missing=[])

    torch.manual_seed(1)
    model = (
        Llama(vocabulary, dim, layers, heads, kv_heads, hidden, length).to(device=device, dtype=dtype).eval()
    )
    generator = torch.Generator().manual_seed(7)
    tokens = torch.randint(vocabulary, (1, length), generator=generator).to(device)

    def synchronize():
        if cuda:
            torch.cuda.synchronize()

    def timed(work, end, least):
        """Seconds of each call, until END says so, LEAST times at least; the first call is warm-up."""
        work()
        seconds = []
        while len(seconds) < least or not end(len(seconds)):
            synchronize()
            begin = time.perf_counter()
            work()
            synchronize()
            seconds.append(time.perf_counter() - begin)
        return seconds

    def until():
        stop = time.monotonic() + args.seconds
        return lambda count: time.monotonic() >= stop or count >= 10000

    rows = []
    with torch.no_grad():
        cache = model.cache(1)
        beat.step(f"prefill of {prompt} tokens")
        rows.append(
            row("prefill", timed(lambda: model(tokens[:, :prompt], cache, 0), until(), 3), prompt, batch=1)
        )

        at = {"place": prompt}

        def decode(which, kept):
            # Back to the prompt's end when the cache is full: every token sees about as much of it.
            if at["place"] >= length:
                at["place"] = prompt
            place = at["place"]
            at["place"] += 1
            return which(tokens[:, place : place + 1], kept, place)

        beat.step("decode, batch 1")
        rows.append(row("decode", timed(lambda: decode(model, cache), until(), 20), 1, batch=1))

        # The ranks of one node, where it has several; else all.
        mine = [rank for rank in range(args.ranks) if nodes[rank] == nodes[args.rank]]
        teams = [[r for r in range(args.ranks) if nodes[r] == node] for node in dict.fromkeys(nodes)]
        if len(mine) == 1:
            teams = [list(range(args.ranks))]
        parts = len(teams[0])
        if (
            parts < 2
            or heads % parts
            or kv_heads % parts
            or hidden % parts
            or {len(t) for t in teams} != {parts}
        ):
            why = (
                f"{parts} ranks do not divide {heads} heads, {kv_heads} key-value heads and {hidden} columns"
            )
            document["missing"].append({"case": "tensor_parallel", "state": "unavailable", "detail": why})
        else:
            # Every rank makes every group: torch asks for it.
            groups = [dist.new_group(team) for team in teams]
            number = next(i for i, team in enumerate(teams) if args.rank in team)
            team, group = teams[number], groups[number]
            cut = Llama(vocabulary, dim, layers, heads, kv_heads, hidden, length, 0, parts, group)
            cut.load_state_dict(part_of(torch, model, team.index(args.rank), parts))
            cut = cut.to(device=device, dtype=dtype).eval()
            beat.step(f"tensor parallelism over {parts} ranks")
            expected, found = model(tokens[:, :64]).float(), cut(tokens[:, :64]).float()
            scale = float(expected.abs().max())
            difference = float((expected - found).abs().max()) / scale
            kept = cut.cache(1)
            cut(tokens[:, :prompt], kept, 0)
            at["place"] = prompt
            # As many tokens on every rank, or they would wait for each other at the end.
            count = torch.tensor([min(10000, max(20, int(args.seconds * rows[-1]["tokens_per_second"] / 4)))])
            count = count.to(device)
            dist.all_reduce(count, dist.ReduceOp.MIN)
            times = timed(lambda: decode(cut, kept), lambda done: done >= int(count), 1)
            rows.append(row("tensor_parallel", times, 1, batch=1, parts=parts, difference=difference))
    gathered = [None] * args.ranks
    dist.all_gather_object(gathered, {"rank": args.rank, "node": common.node_name(), "rows": rows})
    document.update(per_rank=gathered, complete=True, ended=common.now())
    if args.rank == 0:
        common.write_json(args.out / "inference.json", document)
    dist.barrier()
    return 0


if __name__ == "__main__":
    common.leave(main)
