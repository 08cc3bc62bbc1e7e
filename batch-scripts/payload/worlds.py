"""Collectives on parts of the job: 1, 2, 4 ... nodes, and nodes in pairs.

A pair that is slow does not say which of its nodes is to blame, or whether only the way between them is. So
the nodes of slow pairs meet healthy partners: who stays slow with each of them is slow itself; a pair that is
slow each time while both do well with others has a bad link. Who is what is decided by the reader of the
document; here is only chosen what to measure again, generously.
"""

import math
import os
import statistics
import time

import common
import devicefacts

# A pair below this share of the best pairs, or a rank this much above the others' time, is measured again.
SUSPECT = 0.85
# Healthy partners that each suspect meets.
PARTNERS = 2
# More nodes would need too many groups; the suite's nccl-tests have the same limit.
MOST_NODES = 256
REPEATS = 5


def node_order(names):
    """Distinct names in the order of their first rank, and the ranks of each."""
    members = {}
    for rank, name in enumerate(names):
        members.setdefault(name, []).append(rank)
    return list(members), members


def neighbours(nodes):
    """Rounds of disjoint pairs in which every node takes part once."""
    rounds = [[(nodes[i], nodes[i + 1]) for i in range(0, len(nodes) - 1, 2)]]
    if len(nodes) % 2 and len(nodes) > 2:
        rounds.append([(nodes[-1], nodes[0])])
    return rounds


def again(pairs, suspects, healthy):
    """Rounds that tell suspect nodes from suspect links.

    New partners for each suspect, healthy nodes together, and the suspect pairs once more.
    """
    met = {frozenset(p["nodes"]) for p in pairs}
    rounds = []
    for _ in range(PARTNERS):
        # Healthy partners first; the slowest suspects, which come first, get them.
        free, this = list(healthy) + list(reversed(suspects)), []
        for node in suspects:
            if node not in free:
                continue
            free.remove(node)
            partner = next((h for h in free if frozenset((node, h)) not in met), None)
            if partner is not None:
                free.remove(partner)
                this.append((node, partner))
        # The rest measures at the same time: a partner must also be good with another healthy node.
        free = [node for node in free if node in healthy]
        this += [(free[i], free[i + 1]) for i in range(0, len(free) - 1, 2)]
        met.update(frozenset(p) for p in this)
        if this:
            rounds.append(this)
    slow = {frozenset(p["nodes"]): tuple(p["nodes"]) for p in pairs if set(p["nodes"]) <= set(suspects)}
    once, used = [], set()
    for pair in slow.values():
        if not used & set(pair):
            once.append(pair)
            used.update(pair)
    if once:
        rounds.append(once)
    return rounds


def suspects_of(pairs):
    """Nodes of pairs that are slow, and nodes with a rank that is slow at equal work; slowest first."""
    speeds = sorted(p["busbw"] for p in pairs)
    best = speeds[math.ceil(0.75 * (len(speeds) - 1))]
    clock = "wall" if pairs[0]["device"] == "cuda" or not common.simulated() else "cpu"
    work = [(w[clock], w["node"]) for p in pairs for w in p["work"]]
    middle = statistics.median(seconds for seconds, _ in work)
    shares = [(p["busbw"] / best, node) for p in pairs for node in p["nodes"]]
    shares += [(middle / seconds, node) for seconds, node in work]
    return list(dict.fromkeys(node for share, node in sorted(shares) if share < SUSPECT))


class SlowLink:
    """Makes a link or a node's way to all others slower, to see that it is found; on simulated clusters only.

    CLUSTERMAX_SLOW_LINK=A,B:PERCENT slows what nodes A and B (numbers from 0) do together, A:PERCENT what A
    does with anybody.
    """

    def __init__(self, nodes):
        self.slowed, self._nodes, self._share = None, set(), 0.0
        setting = os.environ.get("CLUSTERMAX_SLOW_LINK", "")
        if not setting:
            return
        try:
            which, percent = setting.split(":")
            numbers, percent = [int(n) for n in which.split(",")], int(percent)
        except ValueError:
            raise SystemExit(f"CLUSTERMAX_SLOW_LINK={setting}: give A,B:PERCENT or A:PERCENT") from None
        if not 1 <= len(numbers) <= 2 or not all(0 <= n < len(nodes) for n in numbers) or percent < 1:
            raise SystemExit(
                f"CLUSTERMAX_SLOW_LINK={setting}: one or two nodes below {len(nodes)}, a percentage"
            )
        if not common.simulated():
            raise SystemExit("CLUSTERMAX_SLOW_LINK works on a cluster of clustermax-sim only; unset it")
        self._nodes, self._share = {nodes[n] for n in numbers}, percent / 100
        self.slowed = {"nodes": sorted(self._nodes), "percent": percent}

    def wait(self, pair, seconds):
        """Waits as long as the slow link would have taken more."""
        if self._nodes and self._nodes <= set(pair):
            time.sleep(seconds * self._share)


class Worlds:
    """Groups of ranks; every rank makes every group, in the same order."""

    def __init__(self, torch, args, names, watch, beat, sweep):
        self.torch, self.dist, self.args, self.beat = torch, torch.distributed, args, beat
        self.nodes, self.members = node_order(names)
        self.names, self.watch, self.sweep = names, watch, sweep
        self.cuda = args.device == "cuda"
        self.device = f"cuda:{torch.cuda.current_device()}" if self.cuda else "cpu"
        self.link = SlowLink(self.nodes)

    def group(self, nodes):
        """The group of all ranks of NODES and its ranks; the group is usable by its members only."""
        ranks = [rank for node in nodes for rank in self.members[node]]
        return self.dist.new_group(ranks), ranks

    def _synchronize(self):
        if self.cuda:
            self.torch.cuda.synchronize()

    def parts(self, apis, sizes, factor):
        """The first 1, 2, 4 ... nodes, less than all; rows as of the whole job."""
        rows, count = [], 1
        while count < len(self.nodes):
            group, ranks = self.group(self.nodes[:count])
            if len(ranks) > 1:
                for name, api in apis:
                    for size in sizes:
                        self.beat.step(f"{api} of {size} bytes on {count} nodes")
                        if self.args.rank in ranks:
                            row = self._row(name, api, size, group, ranks, factor)
                            row["nodes"] = count
                            rows.append(row)
                        self.dist.barrier()
            count *= 2
        return rows

    def _row(self, name, api, size, group, ranks, factor):
        n = len(ranks)
        made = self.sweep(ranks.index(self.args.rank), n, group).make(api, size)
        nbytes, fill, call, wrong = made
        fill()
        call()
        self._synchronize()
        bad = self.torch.tensor([float(wrong())], dtype=self.torch.float64, device=self.device)
        self.dist.all_reduce(bad, group=group)
        slowest = self._slowest(call, 4, group)
        algbw = nbytes / slowest / 1e9
        return {
            "collective": name,
            "api": api,
            "size": nbytes,
            "iterations": 4,
            "seconds": slowest,
            "algbw": algbw,
            "busbw": algbw * factor(name, n),
            "wrong": int(bad[0]),
            "ranks": n,
        }

    def _slowest(self, call, count, group, pair=()):
        """Mean time of CALL on the slowest rank of the group."""
        self.dist.barrier(group=group)
        self._synchronize()
        begin = time.perf_counter()
        for _ in range(count):
            call()
        self._synchronize()
        took = time.perf_counter() - begin
        self.link.wait(pair, took)
        mine = (time.perf_counter() - begin) / count
        t = self.torch.tensor([mine], dtype=self.torch.float64, device=self.device)
        self.dist.all_reduce(t, self.dist.ReduceOp.MAX, group=group)
        return float(t[0])

    def _work(self):
        """Median wall and CPU seconds of one product, the same on every rank."""
        n = 4096 if self.cuda else 256
        generator = self.torch.Generator().manual_seed(20240601)
        a = self.torch.randn(n, n, generator=generator).to(self.device)
        times = [self.watch.time(self.torch.matmul, a, a)[1:] for _ in range(12)][2:]
        wall, cpu = zip(*times)
        return {"wall": statistics.median(wall), "cpu": statistics.median(cpu)}

    def pairs(self, size, factor):
        """Nodes in pairs, all pairs of a round at the same time; rank 0 gets what all measured."""
        document = {
            "size": size,
            "slowed": self.link.slowed,
            "device": self.args.device,
            "rows": [],
            "missing": None,
        }
        if len(self.nodes) < 2:
            document["missing"] = "one node: there are no pairs"
            return document
        if len(self.nodes) > MOST_NODES:
            document["missing"] = f"{len(self.nodes)} nodes: pairs are measured among {MOST_NODES} at most"
            return document
        rows = document["rows"]
        for number, pairs in enumerate(neighbours(self.nodes), 1):
            rows += self._round(number, pairs, size, factor)
        # All ranks hold the same rows, so all choose the same.
        suspects = suspects_of(rows)
        healthy = [node for node in self.nodes if node not in suspects]
        if suspects and len(self.nodes) > 2:
            first = max(row["round"] for row in rows) + 1
            for number, pairs in enumerate(again(rows, suspects, healthy), first):
                rows += self._round(number, pairs, size, factor)
        document["suspects"] = suspects
        return document

    def _round(self, number, pairs, size, factor):
        mine = None
        groups = [(pair, *self.group(pair)) for pair in pairs]
        for pair, group, ranks in groups:
            if self.args.rank not in ranks:
                continue
            self.beat.step(f"all_reduce of {size} bytes between {pair[0]} and {pair[1]}")
            n = len(ranks)
            nbytes, fill, call, wrong = self.sweep(ranks.index(self.args.rank), n, group).make(
                "all_reduce", size
            )
            fill()
            call()
            self._synchronize()
            bad = int(wrong())
            times = [self._slowest(call, 2, group, pair) for _ in range(REPEATS)]
            work = self._work()
            seconds = statistics.median(times)
            mine = {
                "round": number,
                "nodes": list(pair),
                "ranks": n,
                "seconds": seconds,
                "busbw": nbytes / seconds / 1e9 * factor("all_reduce", n),
                "wrong": bad,
                "device": self.args.device,
                "work": [
                    {
                        "rank": self.args.rank,
                        "node": self.names[self.args.rank],
                        "local": self.args.local_rank,
                        **work,
                        "facts": devicefacts.read(self.torch, self.args),
                    }
                ],
            }
        everybody = [None] * self.args.ranks
        self.dist.all_gather_object(everybody, mine)
        rows = {}
        for one in everybody:
            if one is None:
                continue
            row = rows.setdefault(tuple(one["nodes"]), one)
            if row is not one:
                row["work"] += one["work"]
                row["wrong"] += one["wrong"]
        return list(rows.values())
