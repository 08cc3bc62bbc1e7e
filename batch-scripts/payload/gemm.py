"""Dense matrix multiplication C = A B, 2 n^3 FLOP, on every rank by itself.

Seeded normal data: constant data runs faster and hides throttling. fp32 on CPUs; bf16 on GPUs only, because
a CPU does bf16 so slowly that it looks like a hang. Every repeat must give the same bits.
"""

import time

import common
import devicefacts

# Windows of time in which ranks are compared.
WINDOWS = 10


def main():
    p = common.parser(__doc__)
    p.add_argument("--size", type=int, default=0, help="n (default 512 on a CPU, 8192 on a GPU)")
    p.add_argument("--seconds", type=float, default=2.0, help="time to repeat it for")
    args = p.parse_args()
    beat = common.Beat(args)
    torch = common.import_torch(args.threads)
    device = "cpu"
    if args.device == "cuda":
        torch.cuda.set_device(args.local_rank % torch.cuda.device_count())
        device = f"cuda:{torch.cuda.current_device()}"
        torch.backends.cuda.matmul.allow_tf32 = False
    document = common.header(torch, args)
    watch = common.Stopwatch(torch, args)
    document.update(payload="gemm", rank=args.rank, local_rank=args.local_rank, rows=[], missing=[])
    document["slowed"] = watch.slowed
    if args.device == "cuda":
        dtypes = ["bfloat16", "float32"]
    else:
        dtypes = ["float32"]
        document["missing"].append(
            {
                "dtype": "bfloat16",
                "state": "unavailable",
                "detail": "bf16 GEMM is measured on GPUs only and torch sees none",
            }
        )
    n = args.size or (8192 if args.device == "cuda" else 512)
    for dtype in dtypes:
        generator = torch.Generator().manual_seed(20240601)
        a = torch.randn(n, n, generator=generator).to(device=device, dtype=getattr(torch, dtype))
        b = torch.randn(n, n, generator=generator).to(device=device, dtype=getattr(torch, dtype))
        first = a @ b
        out = torch.empty_like(first)
        torch.matmul(a, b, out=out)
        seconds, cpu_seconds, differing = [], [], 0
        end = time.monotonic() + args.seconds / len(dtypes)
        while len(seconds) < 2 * (WINDOWS + 1) or (time.monotonic() < end and len(seconds) < 10000):
            beat.step(f"a product, {dtype}, n = {n}")
            _, wall, cpu = watch.time(torch.matmul, a, b, out=out)
            seconds.append(wall)
            cpu_seconds.append(cpu)
            differing += int(not torch.equal(out, first))
        # Right after the work: why a rank may be slow.
        facts = devicefacts.read(torch, args)
        ordered = sorted(seconds)
        flop = 2.0 * n * n * n
        document["rows"].append(
            {
                "dtype": dtype,
                "n": n,
                "repeats": len(seconds),
                "differing_repeats": differing,
                "finite": bool(torch.isfinite(first).all()),
                "best_flops": flop / ordered[0],
                "median_flops": flop / ordered[len(ordered) // 2],
                # Equal work on every rank, to compare them; the first window is warm-up.
                "window_seconds": common.windows(seconds, WINDOWS + 1)[1:],
                "window_cpu_seconds": common.windows(cpu_seconds, WINDOWS + 1)[1:],
                "facts": facts,
            }
        )
    document.update(complete=True, ended=common.now())
    common.write_json(args.out / f"rank-{args.rank}.json", document)
    return 0


if __name__ == "__main__":
    common.leave(main)
