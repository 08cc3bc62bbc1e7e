"""A few data-parallel training steps of a small Llama, dense or with experts, on seeded synthetic tokens.

Every rank has the same shapes, so a rank's compute time between collectives can be compared with the
others'. Reported: loss a step (it must fall), tokens/s by the slowest rank, each rank's step and forward
times.
"""

import contextlib
import time

import common

# name: vocabulary, dim, layers, heads, kv_heads, hidden, length, batch a rank
SHAPES = {
    "tiny": (256, 128, 2, 4, 2, 344, 64, 4),
    "small": (32000, 2048, 8, 16, 8, 5632, 2048, 2),
}


# Only these tokens occur, whatever the vocabulary: a few steps are then enough to see the loss fall.
ALPHABET = 256


def batch_of(torch, batch, length, step, rank):
    """Tokens with a rule a small model can learn: the next is 3 x + 7 of this one, one in eight is random."""
    generator = torch.Generator().manual_seed(1000003 * step + rank)
    tokens = torch.empty(batch, length + 1, dtype=torch.int64)
    tokens[:, 0] = torch.randint(ALPHABET, (batch,), generator=generator)
    noise = torch.randint(ALPHABET, (batch, length + 1), generator=generator)
    random = torch.rand(batch, length + 1, generator=generator) < 0.125
    for i in range(1, length + 1):
        tokens[:, i] = torch.where(random[:, i], noise[:, i], (3 * tokens[:, i - 1] + 7) % ALPHABET)
    return tokens[:, :-1], tokens[:, 1:]


def main():
    p = common.parser(__doc__)
    p.add_argument("--shape", choices=sorted(SHAPES), default="")
    p.add_argument("--model", choices=["llama", "moe"], default="llama")
    p.add_argument("--steps", type=int, default=20)
    p.add_argument("--warmup", type=int, default=2, help="first steps that are left out of the times")
    args = p.parse_args()
    if args.steps < args.warmup + 4:
        p.error("--steps must be at least --warmup + 4")
    beat = common.Beat(args)
    torch = common.import_torch(args.threads)
    backend, _store = common.join_group(torch, args)
    from llama import FLOPS_FORMULA, Llama

    dist = torch.distributed
    cuda = args.device == "cuda"
    device = f"cuda:{torch.cuda.current_device()}" if cuda else "cpu"
    shape = args.shape or ("small" if cuda else "tiny")
    vocabulary, dim, layers, heads, kv_heads, hidden, length, batch = SHAPES[shape]
    torch.manual_seed(1)
    # As many parameters a token passes through as in the dense model: two experts of half its width.
    experts = 8 if args.model == "moe" else 0
    width = hidden // 2 if experts else hidden
    model = Llama(vocabulary, dim, layers, heads, kv_heads, width, length, experts).to(device)
    parameters = sum(q.numel() for q in model.parameters())
    ddp = torch.nn.parallel.DistributedDataParallel(
        model, device_ids=[torch.cuda.current_device()] if cuda else None, broadcast_buffers=False
    )
    optimizer = torch.optim.AdamW(
        ddp.parameters(), lr=3e-4 if shape == "small" else 1e-2, betas=(0.9, 0.95), weight_decay=0.1
    )
    document = common.header(torch, args, backend)
    document.update(
        payload="train",
        model=args.model,
        experts=experts,
        flops_per_token=model.flops_per_token(length),
        flops_formula=FLOPS_FORMULA,
        shape=shape,
        parameters=parameters,
        layers=layers,
        dim=dim,
        length=length,
        batch_per_rank=batch,
        dtype="bfloat16" if cuda else "float32",
        warmup=args.warmup,
        planned_steps=args.steps,
        parallelism="ddp",
        loss=[],
    )
    path = args.out / ("moe.json" if experts else "train.json")
    watch = common.Stopwatch(torch, args)
    document["slowed"] = watch.slowed
    step_seconds, forward_seconds, forward_cpu_seconds = [], [], []

    def forward(x, y):
        with torch.autocast("cuda", dtype=torch.bfloat16) if cuda else contextlib.nullcontext():
            logits = ddp(x)
            loss = torch.nn.functional.cross_entropy(logits.float().view(-1, vocabulary), y.reshape(-1))
            return loss, loss + 0.01 * model.balance()

    for step in range(args.steps):
        beat.step(f"training step {step}")
        x, y = batch_of(torch, batch, length, step, args.rank)
        x, y = x.to(device), y.to(device)
        if cuda:
            torch.cuda.synchronize()
        begin = time.perf_counter()
        # No rank waits for another in the forward pass: what it takes is the rank's own.
        (loss, total), wall, cpu = watch.time(forward, x, y)
        optimizer.zero_grad(set_to_none=True)
        total.backward()
        optimizer.step()
        if cuda:
            torch.cuda.synchronize()
        step_seconds.append(time.perf_counter() - begin)
        forward_seconds.append(wall)
        forward_cpu_seconds.append(cpu)
        mean = loss.detach().double().reshape(1)
        dist.all_reduce(mean)
        document["loss"].append(float(mean) / args.ranks)
    rows = [None] * args.ranks
    dist.all_gather_object(
        rows,
        {
            "rank": args.rank,
            "node": common.node_name(),
            "step_seconds": step_seconds,
            "forward_seconds": forward_seconds,
            "forward_cpu_seconds": forward_cpu_seconds,
        },
    )
    document.update(per_rank=rows, nodes=len({r["node"] for r in rows}))
    measured = range(args.warmup, args.steps)
    slowest = [max(r["step_seconds"][s] for r in rows) for s in measured]
    tokens = batch * length * args.ranks
    document.update(
        tokens_per_step=tokens,
        tokens_per_second=tokens * len(slowest) / sum(slowest),
        median_step_seconds=sorted(slowest)[len(slowest) // 2],
        complete=True,
        ended=common.now(),
    )
    if args.rank == 0:
        common.write_json(path, document)
    dist.barrier()
    return 0


if __name__ == "__main__":
    common.leave(main)
