"""A few data-parallel training steps of a small Llama, dense or with experts, on seeded synthetic tokens.

Every rank has the same shapes, so a rank's compute time between collectives can be compared with the
others'. Reported: loss a step (it must fall, as its reference curve does), tokens/s by the slowest rank, each
rank's step and forward times, and whether all ranks ended with the same weights, bit for bit. With --alone
every rank trains the tiny model by itself first: among many ranks a wrong one hardly changes the mean.
"""

import contextlib
import math
import os
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


def model_of(torch, shape, kind):
    """The seeded model of a shape: the same weights on every rank and in every run."""
    from llama import Llama

    vocabulary, dim, layers, heads, kv_heads, hidden, length, _ = SHAPES[shape]
    torch.manual_seed(1)
    # As many parameters a token passes through as in the dense model: two experts of half its width.
    experts = 8 if kind == "moe" else 0
    width = hidden // 2 if experts else hidden
    return Llama(vocabulary, dim, layers, heads, kv_heads, width, length, experts)


class Optimizer:
    """AdamW as Llamas are trained with it: the rate rises over the first steps, gradients are clipped.

    Both keep two runs of the same seed together: without them the last digits of the first steps decide the
    later ones.
    """

    RISE = 10

    def __init__(self, torch, shape, parameters):
        self._torch, self._parameters = torch, list(parameters)
        # A small model learns at a higher rate.
        self._rate = 3e-4 if shape == "small" else 1e-2
        self._adam = torch.optim.AdamW(self._parameters, lr=self._rate, betas=(0.9, 0.95), weight_decay=0.1)

    def zero(self):
        self._adam.zero_grad(set_to_none=True)

    def step(self, number):
        """The step of this number, from 0."""
        for group in self._adam.param_groups:
            group["lr"] = self._rate * min(1.0, (number + 1) / self.RISE)
        self._torch.nn.utils.clip_grad_norm_(self._parameters, 1.0)
        self._adam.step()


def corrupted(model, args):
    """Makes the gradients of one rank wrong, to see that it is found: CLUSTERMAX_WRONG_RANK=RANK:flip or nan.

    Only simulated clusters take it; the document says it, and records of such a run are synthetic.
    """
    setting = os.environ.get("CLUSTERMAX_WRONG_RANK", "")
    if not setting:
        return None
    rank, _, kind = setting.partition(":")
    if not rank.isdigit() or int(rank) >= args.ranks or kind not in ("flip", "nan"):
        raise SystemExit(
            f"CLUSTERMAX_WRONG_RANK={setting}: give RANK:flip or RANK:nan, the rank below {args.ranks}"
        )
    if not common.simulated():
        raise SystemExit("CLUSTERMAX_WRONG_RANK works on a cluster of clustermax-sim only; unset it")
    if int(rank) == args.rank:
        factor = -1.0 if kind == "flip" else float("nan")
        for parameter in model.parameters():
            parameter.register_hook(lambda gradient: gradient * factor)
    return {"rank": int(rank), "kind": kind}


def checksum(torch, parameters):
    """The bits of all weights in one number."""
    total = 0
    for number, parameter in enumerate(parameters):
        bits = parameter.detach().float().contiguous().view(torch.int32)
        total = (total * 31 + int(bits.sum(dtype=torch.int64)) + number) % (1 << 61)
    return total


def losses_of(torch, logits, model, y):
    """Cross entropy, which is reported, and what is minimised: that and the experts' balance."""
    loss = torch.nn.functional.cross_entropy(logits.float().view(-1, logits.shape[-1]), y.reshape(-1))
    return loss, loss + 0.01 * model.balance()


def precision(torch, cuda):
    """What the forward pass runs in: bf16 on GPUs, fp32 elsewhere."""
    return torch.autocast("cuda", dtype=torch.bfloat16) if cuda else contextlib.nullcontext()


def finite(value):
    """The number, or None: JSON has no NaN."""
    return value if math.isfinite(value) else None


def alone(torch, args, device, steps):
    """Loss of each step of the tiny model on this rank only, no collective, the same tokens on every rank."""
    model = model_of(torch, "tiny", args.model).to(device)
    corrupted(model, args)
    optimizer = Optimizer(torch, "tiny", model.parameters())
    *_, length, batch = SHAPES["tiny"]
    losses = []
    for step in range(steps):
        x, y = (part.to(device) for part in batch_of(torch, batch, length, step, 0))
        with precision(torch, args.device == "cuda"):
            loss, total = losses_of(torch, model(x), model, y)
        optimizer.zero()
        total.backward()
        optimizer.step(step)
        losses.append(finite(float(loss.detach())))
    return losses


def main():
    p = common.parser(__doc__)
    p.add_argument("--shape", choices=sorted(SHAPES), default="")
    p.add_argument("--model", choices=["llama", "moe"], default="llama")
    p.add_argument("--steps", type=int, default=20)
    p.add_argument("--name", default="", help="name of the document (default: train, moe with experts)")
    p.add_argument("--alone", type=int, default=0, metavar="N", help="first N steps of each rank by itself")
    p.add_argument("--warmup", type=int, default=2, help="first steps that are left out of the times")
    args = p.parse_args()
    if args.steps < args.warmup + 4:
        p.error("--steps must be at least --warmup + 4")
    beat = common.Beat(args)
    torch = common.import_torch(args.threads)
    backend, _store = common.join_group(torch, args)
    from llama import FLOPS_FORMULA

    dist = torch.distributed
    cuda = args.device == "cuda"
    device = f"cuda:{torch.cuda.current_device()}" if cuda else "cpu"
    beat.step("training alone")
    by_itself = alone(torch, args, device, args.alone)
    shape = args.shape or ("small" if cuda else "tiny")
    _, dim, layers, _, _, _, length, batch = SHAPES[shape]
    model = model_of(torch, shape, args.model).to(device)
    wrong = corrupted(model, args)
    parameters = sum(q.numel() for q in model.parameters())
    ddp = torch.nn.parallel.DistributedDataParallel(
        model, device_ids=[torch.cuda.current_device()] if cuda else None, broadcast_buffers=False
    )
    optimizer = Optimizer(torch, shape, ddp.parameters())
    document = common.header(torch, args, backend)
    document.update(
        payload="train",
        model=args.model,
        experts=8 if args.model == "moe" else 0,
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
    name = args.name or ("moe" if args.model == "moe" else "train")
    path = args.out / f"{name}.json"
    watch = common.Stopwatch(torch, args)
    document["slowed"], document["corrupted"] = watch.slowed, wrong
    step_seconds, forward_seconds, forward_cpu_seconds = [], [], []

    def forward(x, y):
        with precision(torch, cuda):
            return losses_of(torch, ddp(x), model, y)

    for step in range(args.steps):
        beat.step(f"training step {step}")
        x, y = batch_of(torch, batch, length, step, args.rank)
        x, y = x.to(device), y.to(device)
        if cuda:
            torch.cuda.synchronize()
        begin = time.perf_counter()
        # No rank waits for another in the forward pass: what it takes is the rank's own.
        (loss, total), wall, cpu = watch.time(forward, x, y)
        optimizer.zero()
        total.backward()
        optimizer.step(step)
        if cuda:
            torch.cuda.synchronize()
        step_seconds.append(time.perf_counter() - begin)
        forward_seconds.append(wall)
        forward_cpu_seconds.append(cpu)
        mean = loss.detach().double().reshape(1)
        dist.all_reduce(mean)
        document["loss"].append(finite(float(mean) / args.ranks))
    rows = [None] * args.ranks
    dist.all_gather_object(
        rows,
        {
            "rank": args.rank,
            "node": common.node_name(),
            "step_seconds": step_seconds,
            "forward_seconds": forward_seconds,
            "forward_cpu_seconds": forward_cpu_seconds,
            "checksum": checksum(torch, model.parameters()),
            "alone": by_itself,
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
