"""Makes the reference curves that a training run's loss is compared with (scoring/data/loss-reference.tsv).

One process does the work of all ranks, one after the other, and averages their gradients: no collective is in
it, so a curve says what a run must do whose collectives are right. Prints a line a model and world size.
"""

from __future__ import annotations

import argparse
import contextlib
from typing import Any

import train


def curve(torch: Any, shape: str, kind: str, ranks: int, steps: int, half: bool) -> list[float]:
    """Mean loss of all ranks, step by step; HALF computes in bf16 as GPUs do."""
    model = train.model_of(torch, shape, kind)
    optimizer = train.Optimizer(torch, shape, model.parameters())
    *_, length, batch = train.SHAPES[shape]
    losses = []
    for step in range(steps):
        optimizer.zero()
        mean = 0.0
        for rank in range(ranks):
            x, y = train.batch_of(torch, batch, length, step, rank)
            with torch.autocast("cpu", dtype=torch.bfloat16) if half else contextlib.nullcontext():
                loss, total = train.losses_of(torch, model(x), model, y)
            (total / ranks).backward()
            mean += float(loss.detach()) / ranks
        optimizer.step(step)
        losses.append(mean)
    return losses


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--shape", choices=sorted(train.SHAPES), default="tiny")
    p.add_argument("--model", choices=["llama", "moe"], default="llama")
    p.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 64])
    p.add_argument("--steps", type=int, default=10)
    p.add_argument("--bf16", action="store_true")
    args = p.parse_args()
    import torch

    torch.set_num_threads(1)
    for ranks in args.ranks:
        losses = curve(torch, args.shape, args.model, ranks, args.steps, args.bf16)
        print(
            f"{args.model}-{args.shape}",
            ranks,
            " ".join(f"{loss:.4f}" for loss in losses),
            sep="\t",
            flush=True,
        )


if __name__ == "__main__":
    main()
