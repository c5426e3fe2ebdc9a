#!/usr/bin/env python3
"""libddp beside its peers on this machine, in short rounds in turns (A B C A B C ...), so that all see the same minutes.

usage: ddp-bench peers allreduce [--world 2] [--backend auto] [--memory group,own] [--bytes 4096,...] ...
       ddp-bench peers replay    [--world 2] [--backend auto] [--model resnet50] [--compute-ms 0] ...

allreduce: Gloo alone (each of its algorithms), Open MPI (several settings) and PyTorch's torch.distributed over Gloo.
replay: PyTorch's DistributedDataParallel, in every mode and with every bucket cap, as libddp.

The result of each is the median over the rounds, and for each peer the setting that is best at that size. "ratio" is a
row's time over that of libddp's first one in the same round, and of those the median: how many times faster libddp is.
"over local" is what is left of a replay after the loop without any communication is subtracted: PyTorch's loop is in
Python, which is not what is compared. A peer that is not installed is left out, and a line says so.
"""

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
from statistics import median

import contenders
import plot

MEDIANS = ("median_ms", "local_ms", "over_local_ms", "limit_ms", "fraction", "cpu_ms")


def parse():
    parser = argparse.ArgumentParser(prog="ddp-bench peers", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["allreduce", "replay"])
    parser.add_argument("--bench", default="ddp-bench", help=argparse.SUPPRESS)
    parser.add_argument("--gloo", help="the program gloo_allreduce, where it is not beside this script")
    parser.add_argument("--python", default="/usr/bin/python3", help="a Python that has PyTorch")
    parser.add_argument("--peers", default=",".join(contenders.PEERS), help="of these")
    parser.add_argument("--world", type=int, default=2)
    parser.add_argument("--backend", default="auto", help="of libddp; several, separated by commas")
    parser.add_argument("--memory", default="group,own", help="allreduce: that libddp's data is in, as ddp-bench has it")
    parser.add_argument("--bytes", default="4096,65536,1048576,4194304,26214400", help="allreduce: sizes")
    parser.add_argument("--model", default="resnet50", help="replay: as ddp-bench has it")
    parser.add_argument("--compute-ms", type=float, default=0.0)
    parser.add_argument("--bucket-mb", default="1,5,25", help="replay: caps that all try")
    parser.add_argument("--modes", default="view,copy", help="replay: where libddp's gradients lie")
    parser.add_argument("--optimizer", action="store_true", help="replay: each step ends with AdamW, whole and sharded")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.5, help="for each measurement and round")
    parser.add_argument("--timeout", type=float, default=900.0, help="for each program that is started")
    parser.add_argument("--json", action="store_true", help="one JSON object a line instead of a table")
    parser.add_argument("--csv", help="also write the rows to this file")
    parser.add_argument("--svg", help="allreduce: also draw time against bytes into this file")
    return parser.parse_args()


def collect(options, runs):
    """Runs all in turns. Returns the rows of all rounds by who, how and what."""
    found = {}
    for number in range(1, options.rounds + 1):
        print(f"round {number} of {options.rounds}", file=sys.stderr, flush=True)
        for run in list(runs):
            rows, reason = run.rows(options.timeout + 60)
            if rows is None and run.contender == contenders.OURS:
                sys.exit(reason)
            if rows is None:
                contenders.missing(f"{run.contender} {run.setting} is left out: {reason}")
                runs.remove(run)
            for row in rows or []:
                found.setdefault((row["peer"], row["setting"], row["bytes"]), []).append(row)
    # One that failed in a later round has fewer rows than the others, and cannot be compared round by round.
    return [Measured(rows) for rows in found.values() if len(rows) == options.rounds]


class Measured:
    """One contender's rows of all rounds, with one setting and one size."""

    def __init__(self, rounds):
        first = rounds[0]
        self.rounds, self.peer, self.setting, self.bytes = rounds, first["peer"], first["setting"], first["bytes"]
        self.median = {key: median([row[key] for row in rounds]) for key in MEDIANS if key in first}

    def ratio(self, ours, key):
        """How many times as long as another takes, round by round."""
        if min(row[key] for row in ours.rounds) <= 0:
            return None
        return median([mine[key] / other[key] for mine, other in zip(self.rounds, ours.rounds)])

    def row(self, name, **more):
        return {"name": name, "world": self.rounds[0]["world"], "peer": self.peer, "setting": self.setting,
                "bytes": self.bytes, "rounds": len(self.rounds), **self.median, **more}


def best_of(measured, peer, key):
    return min((one for one in measured if one.peer == peer), key=lambda one: one.median[key])


def compare_allreduce(options):
    with tempfile.TemporaryDirectory(prefix="ddp-compare-") as folder:
        found = collect(options, contenders.allreduce(options, folder))
    rows = []
    for size in dict.fromkeys(one.bytes for one in found):
        same = [one for one in found if one.bytes == size]
        rows += [one.row("peers-allreduce", ratio=one.ratio(same[0], "median_ms"),
                         best=one is best_of(same, one.peer, "median_ms")) for one in same]
    return rows


def compare_replay(options):
    with tempfile.TemporaryDirectory(prefix="ddp-compare-") as folder:
        model = os.path.join(folder, "model")
        with open(model, "w", encoding="utf-8") as file:
            subprocess.run([options.bench, "models", "--model", options.model], stdout=file, check=True, timeout=60)
        found = collect(options, contenders.replay(options, model))
    ours = found[0].peer
    return [one.row("peers-replay", model=options.model, compute_ms=options.compute_ms,
                    ratio=one.ratio(best_of(found, ours, "median_ms"), "median_ms"),
                    best=one is best_of(found, one.peer, "median_ms"),
                    over_local_ratio=one.ratio(best_of(found, ours, "over_local_ms"), "over_local_ms"),
                    best_over_local=one is best_of(found, one.peer, "over_local_ms")) for one in found]


def print_allreduce(options, rows):
    print(f"allreduce, f32 in place, world {options.world}, {options.rounds} rounds in turns")
    print(f"{'bytes':>12}  {'peer':32}{'setting':24}{'median_ms':>10}  {'ratio':>7}  {'of limit':>8}")
    for row in filter(lambda row: row["best"], rows):
        fraction = f"{100 * row['fraction']:6.1f} %" if "fraction" in row else ""
        print(f"{row['bytes']:12d}  {row['peer']:32}{row['setting']:24}{row['median_ms']:10.4f}  {row['ratio']:7.2f}  "
              f"{fraction}")


def print_replay(options, rows):
    print(f"{options.model}, world {options.world}, compute {options.compute_ms:g} ms, {options.rounds} rounds in turns")
    print(f"{'peer':24}{'setting':44}{'median_ms':>10}  {'local_ms':>9}  {'over_local':>10}")
    for row in rows:
        print(f"{row['peer']:24}{row['setting']:44}{row['median_ms']:10.3f}  {row['local_ms']:9.3f}  "
              f"{row['over_local_ms']:10.3f}")
    for best, value, ratio in (("best", "median_ms", "ratio"), ("best_over_local", "over_local_ms", "over_local_ratio")):
        for row in filter(lambda row: row[best], rows):
            times = "" if row[ratio] is None else f", {row[ratio]:.2f} times libddp's"
            print(f"best {value}: {row['peer']} ({row['setting']}) {row[value]:.3f} ms{times}")


def write_csv(path, rows):
    keys = list(dict.fromkeys(key for row in rows for key in row))
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, keys)
        writer.writeheader()
        writer.writerows(rows)


def main():
    options = parse()
    options.peers = options.peers.split(",")
    unknown = sorted(set(options.peers) - {*contenders.PEERS, ""})
    if unknown:
        sys.exit(f"--peers: there is no {', '.join(unknown)}; there are {', '.join(contenders.PEERS)}")
    rows = compare_replay(options) if options.what == "replay" else compare_allreduce(options)
    if options.json:
        print("\n".join(map(json.dumps, rows)))
    else:
        (print_replay if options.what == "replay" else print_allreduce)(options, rows)
    if options.csv:
        write_csv(options.csv, rows)
    if options.svg and options.what == "allreduce":
        plot.draw(rows, options.svg)


if __name__ == "__main__":
    main()
