#!/usr/bin/env python3
"""ddp-bench against PyTorch on this machine, in turns (A B A B ...), so that both see the same minute.

usage: compare.py replay    [--bench PATH] [--model resnet50] [--world 2] [--backend auto] [--compute-ms 0] ...
       compare.py allreduce [--bench PATH] [--bytes 4096,...]    [--world 2] [--backend auto] ...

replay tries both in every mode and with every bucket cap, takes the median over the rounds of each combination, and
compares the best of one with the best of the other. A ratio below 1 means that libddp is faster. "over local" is what
is left after the loop without any communication is subtracted: PyTorch's loop is in Python, which is not what is
compared.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["replay", "allreduce"])
    parser.add_argument("--bench", default="ddp-bench", help="the ddp-bench program")
    parser.add_argument("--python", default="/usr/bin/python3", help="a Python that has PyTorch")
    parser.add_argument("--world", type=int, default=2)
    parser.add_argument("--backend", default="auto", help="of libddp")
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--compute-ms", type=float, default=0.0)
    parser.add_argument("--bucket-mb", default="1,5,25", help="caps that both try")
    parser.add_argument("--bytes", default="4096,65536,1048576,4194304,26214400")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0, help="for each combination and round")
    parser.add_argument("--timeout", type=float, default=900.0, help="for each program that is started")
    return parser.parse_args()


def run(command, timeout):
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=timeout)
    if done.returncode != 0:
        sys.exit(f"status {done.returncode} of {' '.join(command)}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def has_torch(python):
    try:
        probe = subprocess.run([python, "-c", "import torch.distributed"], stderr=subprocess.DEVNULL, timeout=120)
    except OSError:
        return False
    return probe.returncode == 0


def median(values):
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def collect(options, ours, theirs, key):
    """Runs the two command lists in turns. Returns for each a map from key to the medians of its rows."""
    rows = ({}, {})
    for _ in range(options.rounds):
        for side, commands in zip(rows, (ours, theirs)):
            for command in commands:
                for row in run(command, options.timeout):
                    side.setdefault(key(row), []).append(row)
    return [{k: merge(same) for k, same in side.items()} for side in rows]


def merge(rows):
    merged = dict(rows[0], median_ms=median([row["median_ms"] for row in rows]))
    if "local_ms" in merged:
        merged["local_ms"] = median([row["local_ms"] for row in rows])
    return merged


def our_command(options, *arguments):
    return [options.bench, options.what, "--json", "--world", str(options.world), "--backend", options.backend,
            "--seconds", str(options.seconds), "--timeout", str(options.timeout), *arguments]


def their_command(options, *arguments):
    script = os.path.join(HERE, options.what + ".py")
    return [options.python, script, "--world", str(options.world), "--seconds", str(options.seconds),
            "--timeout", str(options.timeout), *arguments]


def print_replay_row(row):
    print(f"{row['backend']:>12}  {row['mode']:>6}  {row['bucket_mb']:>7g}  {row['median_ms']:10.3f}  "
          f"{row['local_ms']:9.3f}  {row['median_ms'] - row['local_ms']:10.3f}")


def compare_replay(options):
    with tempfile.TemporaryDirectory(prefix="ddp-compare-") as folder:
        model = os.path.join(folder, "model")
        with open(model, "w", encoding="utf-8") as file:
            subprocess.run([options.bench, "models", "--model", options.model], stdout=file, check=True, timeout=60)
        common = ["--model", model, "--compute-ms", str(options.compute_ms)]
        ours = [our_command(options, *common, "--bucket-mb", cap, mode)
                for cap in options.bucket_mb.split(",") for mode in ("--view", "--copy")]
        theirs = [their_command(options, *common, "--bucket-mb", options.bucket_mb)]
        a, b = collect(options, ours, theirs, lambda row: (row["mode"], row["bucket_mb"]))
    print(f"{options.model}, world {options.world}, compute {options.compute_ms} ms, {options.rounds} rounds in turns")
    print("     backend    mode  bucket_mb  median_ms   local_ms  over_local")
    for row in [*a.values(), *b.values()]:
        print_replay_row(row)
    report_best(a, b, "median_ms", lambda row: row["median_ms"])
    report_best(a, b, "over local", lambda row: row["median_ms"] - row["local_ms"])


def report_best(a, b, title, value):
    ours, theirs = min(map(value, a.values())), min(map(value, b.values()))
    print(f"best against best, {title}: libddp {ours:.3f} ms, PyTorch {theirs:.3f} ms, ratio {ours / theirs:.3f}")


def compare_allreduce(options):
    sizes = ["--bytes", options.bytes]
    a, b = collect(options, [our_command(options, *sizes)], [their_command(options, *sizes)], lambda row: row["bytes"])
    print(f"allreduce, world {options.world}, {options.rounds} rounds in turns")
    print("       bytes   libddp_ms  PyTorch_ms   ratio")
    for size in sorted(a):
        ours, theirs = a[size]["median_ms"], b[size]["median_ms"]
        print(f"{size:12d}  {ours:10.4f}  {theirs:10.4f}  {ours / theirs:6.3f}")


def main():
    options = parse()
    if not has_torch(options.python):
        print(f"skipped: no PyTorch in {options.python}")
        return
    compare_replay(options) if options.what == "replay" else compare_allreduce(options)


if __name__ == "__main__":
    main()
