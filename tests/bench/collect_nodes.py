"""Time and memory of `clustermax suite collect`, `score` and `verify` for a whole suite run of many nodes.

Usage: tests/bench/collect_nodes.py RESULTS [--nodes N] [--per-node R] [--program CLUSTERMAX] [--folder DIR]

RESULTS is the folder of a small run. What it has of each of its nodes is written again for N nodes, R ranks
each, and removed afterwards. The figures in it mean nothing; their number and the size of the files do.
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import sys
import tempfile
import time


class Grown:
    """A run of few nodes, written as one of many."""

    def __init__(self, source, target, count, per_node):
        self.source, self.target, self.per_node = source, target, per_node
        self.run = json.loads((source / "run.json").read_text())
        self.old = self.run["nodes"]
        self.new = [f"node{at:05}" for at in range(1, count + 1)]
        self.any_old = re.compile(r"\b(" + "|".join(map(re.escape, self.old)) + r")\b")

    def template(self, at):
        return self.old[at % len(self.old)]

    def renamed(self, text, at):
        """Everything that TEXT says of the template's node said of the new one."""
        return self.any_old.sub(self.new[at], text)

    def lines(self, text):
        """Lines that name a node, once for each new one; the others as they are."""
        by_node, others, order = {}, [], []
        for line in text.splitlines(keepends=True):
            found = self.any_old.search(line)
            if found is None:
                others.append(line)
            else:
                by_node.setdefault(found.group(1), []).append(line)
                order.append(line)
        if not order:
            return text
        grown = [
            self.renamed(line, at)
            for at in range(len(self.new))
            for line in by_node.get(self.template(at), [])
        ]
        return "".join(others + grown)

    def value(self, value):
        """A JSON value: lists and objects that have something of each node have it of each new one."""
        if isinstance(value, list):
            if value and all(isinstance(one, dict) and one.get("node") in self.old for one in value):
                ranks = self.per_node if all("rank" in one for one in value) else 1
                return [
                    {**value[rank % len(value)], "node": self.new[rank // ranks]}
                    | ({"rank": rank} if ranks > 1 or "rank" in value[0] else {})
                    for rank in range(ranks * len(self.new))
                ]
            return [self.value(one) for one in value]
        if isinstance(value, dict):
            if value and all(key in self.old for key in value):
                return {name: value.get(self.template(at)) for at, name in enumerate(self.new)}
            grown = {key: self.value(one) for key, one in value.items()}
            for key, many in (("ranks", len(self.new) * self.per_node), ("nodes", len(self.new))):
                if isinstance(value.get(key), int):
                    grown[key] = many
            return grown
        return value

    def write(self, name, text):
        path = self.target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return len(text)

    def file(self, name, text):
        """One file of the small run; how many bytes it became."""
        base = pathlib.PurePath(name).name
        rank = re.fullmatch(r"(rank|memory)-(\d+)\.json", base)
        if rank:
            document = json.loads(text)
            if int(rank.group(2)) != 0:
                return 0
            ranks = len(self.new) * self.per_node
            return sum(
                self.write(
                    name.replace(base, f"{rank.group(1)}-{at}.json"),
                    json.dumps(
                        {
                            **document,
                            **{"rank": at, "ranks": ranks, "node": self.new[at // self.per_node]},
                        }
                    ),
                )
                for at in range(ranks)
            )
        if self.any_old.search(base) and "pair-" not in base:
            node = self.any_old.search(base).group(1)
            if node != self.old[0]:
                return 0
            return sum(
                self.write(name.replace(base, self.any_old.sub(new, base)), self.renamed(text, at))
                for at, new in enumerate(self.new)
            )
        if name.endswith(".json"):
            return self.write(name, json.dumps(self.value(json.loads(text))))
        return self.write(name, self.lines(text))

    def all(self):
        shutil.copytree(self.source / "stages", self.target / "stages")
        run = {**self.run, "nodes": self.new}
        total = self.write("run.json", json.dumps(run))
        for path in sorted((self.source / "raw").rglob("*")):
            if path.is_file():
                total += self.file(str(path.relative_to(self.source)), path.read_text(errors="replace"))
        return total


def measured(*words):
    """Runs a program; seconds and largest resident size in MiB."""
    begin = time.perf_counter()
    pid = os.posix_spawnp(
        words[0], words, os.environ, file_actions=[(os.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_WRONLY, 0)]
    )
    _, status, usage = os.wait4(pid, 0)
    return os.waitstatus_to_exitcode(status), time.perf_counter() - begin, usage.ru_maxrss / 1024


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("results", type=pathlib.Path)
    p.add_argument("--nodes", type=int, default=1000)
    p.add_argument("--per-node", type=int, default=8, metavar="R")
    p.add_argument("--program", default="target/release/clustermax")
    p.add_argument("--folder", type=pathlib.Path, help="where to write, instead of the temporary folder")
    args = p.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as scratch:
        target = pathlib.Path(scratch) / "run"
        total = Grown(args.results, target, args.nodes, args.per_node).all()
        files = sum(1 for path in (target / "raw").rglob("*") if path.is_file())
        print(f"{args.nodes} nodes, {args.per_node} ranks each: {files} files, {total / 1e6:.0f} MB")
        for words in (["suite", "collect"], ["score"], ["verify"]):
            code, seconds, peak = measured(args.program, *words, str(target))
            print(f"clustermax {' '.join(words)}: exit {code}, {seconds:.1f} s, {peak:.0f} MiB", flush=True)
        with open(target / "records.jsonl", encoding="utf-8") as records:
            print(f"{sum(1 for _ in records)} records")
    return 0


if __name__ == "__main__":
    sys.exit(main())
