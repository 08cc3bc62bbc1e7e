"""Saves a checkpoint that is cut over all ranks to storage that all nodes share, and loads it back.

Every rank holds its part of a training state (parameters and both moments of Adam, fp32, seeded random
numbers), as fully sharded training does. Two ways: torch.distributed.checkpoint (DCP), and one file a rank by
torch.save. Every file is flushed to storage before a save counts as done. A rank loads the part of the next
rank, after this node's page cache has dropped it, and compares it bit for bit: what comes back must have gone
through the shared storage.
"""

from __future__ import annotations

import importlib
import os
import shutil
import time
from pathlib import Path
from typing import Any, Callable

import common
from import_time import file_system

# Llama 3.1 8B with its optimizer: 8.03e9 x 3 x 4 bytes. No rank saves more than its part of that.
WHOLE_BYTES = 96_360_000_000
LAYERS = 4
PARTS = ("parameters", "exp_avg", "exp_avg_sq")


def state_of(torch: Any, rank: int, elements: int, device: str) -> dict[str, Any]:
    """The part of one rank: always the same numbers for the same rank."""
    generator = torch.Generator().manual_seed(7000003 + rank)
    return {
        f"rank{rank}.layer{layer}.{part}": torch.randn(elements, generator=generator).to(device)
        for layer in range(LAYERS)
        for part in PARTS
    }


def empty_like(torch: Any, state: dict[str, Any]) -> dict[str, Any]:
    """Room for a state, filled with a number that no load may leave."""
    return {name: torch.full_like(value, -1.0) for name, value in state.items()}


def differing(torch: Any, found: dict[str, Any], wanted: dict[str, Any]) -> int:
    """Tensors whose bits differ."""
    return sum(
        int(not torch.equal(found[name].view(torch.int32), value.view(torch.int32)))
        for name, value in wanted.items()
    )


def drop_from_cache(folder: Path) -> None:
    """Drops the files from this node's page cache, where the file system lets an ordinary user do that."""
    for path in folder.iterdir():
        fd = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        except OSError:
            pass
        finally:
            os.close(fd)


class TorchSave:
    """One file a rank, by torch.save."""

    api = "torch.save"

    def __init__(self, torch: Any, args: Any, group: Any) -> None:
        self._torch, self._args = torch, args

    def save(self, state: dict[str, Any], folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        with open(folder / f"{self._args.rank}.pt", "wb") as file:
            self._torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())

    def load(self, state: dict[str, Any], folder: Path, rank: int) -> None:
        loaded = self._torch.load(folder / f"{rank}.pt", map_location="cpu")
        for name, value in state.items():
            value.copy_(loaded[name])

    asynchronous = None


class Dcp:
    """torch.distributed.checkpoint, with the calls of torch 2.0 to 2.x."""

    api = "dcp"

    def __init__(self, torch: Any, args: Any, group: Any) -> None:
        try:
            self._dcp = importlib.import_module("torch.distributed.checkpoint")
        except ImportError as first:
            # torch 1.13 keeps it in a place that is not public yet.
            try:
                self._dcp = importlib.import_module("torch.distributed._shard.checkpoint")
            except Exception as second:  # 1.13 on Python 3.11: ValueError of dataclasses
                raise NotImplementedError(f"{common.short(first)}; {common.short(second)}") from None
        self._group = group
        if not hasattr(self._dcp, "async_save"):
            self.asynchronous = None

    def save(self, state: dict[str, Any], folder: Path) -> None:
        writer = self._dcp.FileSystemWriter(str(folder))
        if hasattr(self._dcp, "save"):
            self._dcp.save(state, storage_writer=writer, process_group=self._group)
        else:
            self._dcp.save_state_dict(state, writer, process_group=self._group)

    def load(self, state: dict[str, Any], folder: Path, rank: int) -> None:
        reader = self._dcp.FileSystemReader(str(folder))
        if hasattr(self._dcp, "load"):
            self._dcp.load(state, storage_reader=reader, process_group=self._group)
        else:
            self._dcp.load_state_dict(state, reader, process_group=self._group)

    def asynchronous(self, state: dict[str, Any], folder: Path) -> Callable[[], Any]:
        """Begins a save that goes on beside the training; the call waits for its end."""
        writer = self._dcp.FileSystemWriter(str(folder))
        return self._dcp.async_save(state, storage_writer=writer, process_group=self._group).result


def main() -> int:
    p = common.parser(__doc__)
    p.add_argument("--folder", required=True, type=Path, help="empty folder on the storage to measure")
    p.add_argument("--megabytes", type=int, default=16, help="10^6 bytes a rank saves at most")
    p.add_argument("--repeats", type=int, default=1, help="saves and loads of each kind")
    p.add_argument("--seconds", type=float, default=60.0, help="no further repeat begins after this time")
    args = p.parse_args()
    beat = common.Beat(args)
    torch = common.import_torch(args.threads)
    backend, _store = common.join_group(torch, args)
    dist = torch.distributed
    device = f"cuda:{torch.cuda.current_device()}" if args.device == "cuda" else "cpu"
    # DCP plans by small objects and its asynchronous form needs a group on processors.
    # Of its own: its thread must not meet this program's collectives in one group.
    dcp_group = dist.new_group(backend="gloo")
    group = dist.new_group(backend="gloo")
    document = common.header(torch, args, backend)
    elements = max(1, min(args.megabytes * 1_000_000, WHOLE_BYTES // args.ranks) // (4 * LAYERS * len(PARTS)))
    each = elements * 4 * LAYERS * len(PARTS)
    document.update(
        payload="checkpoint", bytes_per_rank=each, planned=[Dcp.api, TorchSave.api], rows=[], missing=[]
    )
    path = args.out / "checkpoint.json"

    def gathered(value: Any) -> list[Any]:
        everyone = [None] * args.ranks
        dist.all_gather_object(everyone, value, group=group)
        return everyone

    def finish() -> int:
        document.update(complete=True, ended=common.now())
        if args.rank == 0:
            common.write_json(path, document)
        dist.barrier(group=group)
        return 0

    nodes = gathered(common.node_name())
    kinds = gathered(file_system(os.path.realpath(args.folder)))
    document.update(nodes=len(set(nodes)), fstype=dict(zip(nodes, kinds)))
    begin = time.monotonic()
    # One of a kind lies there at a time, and an asynchronous one beside it.
    needed = 2 * each * args.ranks
    free = min(gathered(shutil.disk_usage(args.folder).free))
    if free < needed:
        why = (
            f"{args.folder} has {free / 1e9:.1f} GB free and the checkpoints need {needed / 1e9:.1f}; "
            "free space or give --results a larger file system"
        )
        document["missing"] = [
            {"api": api, "state": "unavailable", "detail": why} for api in document["planned"]
        ]
        return finish()
    own = state_of(torch, args.rank, elements, device)
    neighbour = (args.rank + 1) % args.ranks
    wanted = state_of(torch, neighbour, elements, device)

    def timed(work: Callable[[], Any]) -> tuple[float, str | None]:
        """Seconds, and what went wrong; the failure of one rank must not leave the others waiting."""
        if args.device == "cuda":
            torch.cuda.synchronize()
        dist.barrier(group=group)
        start = time.perf_counter()
        try:
            work()
            error = None
        except Exception as failure:
            error = common.short(failure)
        if args.device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - start, error

    for kind in (Dcp, TorchSave):
        try:
            way = kind(torch, args, dcp_group)
        except NotImplementedError as error:
            why = f"torch {torch.__version__} with Python {document['python']} has no {kind.api} ({error})"
            document["missing"].append({"api": kind.api, "state": "unavailable", "detail": why})
            continue
        row: dict[str, Any] = {"api": kind.api, "wrong": 0, "error": None, "save": [], "load": []}
        row["async_stall"], row["async_save"] = [], []

        def failed(error: str | None, doing: str, row: dict[str, Any] = row) -> bool:
            """Whether any rank failed; its words are kept."""
            said = [(r, e) for r, e in enumerate(gathered(error)) if e]
            if said and row["error"] is None:
                row["error"] = f"{doing} failed on rank {said[0][0]} ({nodes[said[0][0]]}): {said[0][1]}"
            return bool(said)

        for repeat in range(args.repeats):
            if gathered(repeat > 0 and time.monotonic() - begin > args.seconds)[0]:
                break
            folder = args.folder / f"{kind.api}.{repeat}"
            beat.step(f"{kind.api}: save")
            seconds, error = timed(lambda way=way, folder=folder: way.save(own, folder))
            if failed(error, "saving"):
                break
            row["save"].append(gathered(seconds))
            dist.barrier(group=group)
            drop_from_cache(folder)
            room = empty_like(torch, wanted)
            beat.step(f"{kind.api}: load")
            seconds, error = timed(
                lambda way=way, folder=folder, room=room: way.load(room, folder, neighbour)
            )
            if failed(error, "loading"):
                break
            row["load"].append(gathered(seconds))
            row["wrong"] += sum(gathered(differing(torch, room, wanted)))
            if way.asynchronous is not None:
                beat.step(f"{kind.api}: asynchronous save")
                beside = args.folder / f"{kind.api}.async.{repeat}"
                ends: list[Callable[[], Any]] = []
                stall, error = timed(
                    lambda way=way, beside=beside, ends=ends: ends.append(way.asynchronous(own, beside))
                )
                if failed(error, "the asynchronous save"):
                    break
                rest, error = timed(ends[0])
                if failed(error, "the asynchronous save"):
                    break
                row["async_stall"].append(gathered(stall))
                row["async_save"].append(gathered(stall + rest))
                drop_from_cache(beside)
                room = empty_like(torch, wanted)
                _, error = timed(lambda way=way, beside=beside, room=room: way.load(room, beside, neighbour))
                if failed(error, "loading"):
                    break
                row["wrong"] += sum(gathered(differing(torch, room, wanted)))
            dist.barrier(group=group)
            if args.rank == 0:
                for used in args.folder.iterdir():
                    shutil.rmtree(used, ignore_errors=True)
            dist.barrier(group=group)
        row["nodes"] = nodes
        document["rows"].append(row)
        if args.rank == 0:
            common.write_json(path, document)
    return finish()


if __name__ == "__main__":
    common.leave(main)
