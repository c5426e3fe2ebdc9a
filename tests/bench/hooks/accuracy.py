#!/usr/bin/env python3
"""Trains the MNIST example with every built-in hook and writes the table of docs/hooks.md.

usage: accuracy.py [--ddprun PATH] [--mnist PATH] [--ranks 2] [--epochs 10] [--seeds 3]
                   [--page docs/hooks.md]

Without --page the table is only printed. The status is 1 if a hook's test accuracy is more than a point below the plain
run's.
"""
import argparse
import pathlib
import re
import subprocess
import sys

BEGIN, END = "<!-- accuracy: written by tests/bench/hooks/accuracy.py -->\n", "<!-- accuracy: end -->\n"
ALLOWED_LOSS = 1.0

# Hook, its options, and further arguments of the example. Where compression can start late it does after 100 of 1,250
# steps.
RUNS = [
    ("allreduce", "", []),
    ("fp16", "", []),
    ("bf16", "", []),
    ("powersgd", "rank=4,start=100", []),
    ("powersgd", "rank=1,start=100", []),
    ("fp16(powersgd)", "rank=4,start=100", []),
    ("batched_powersgd", "rank=32,start=100", []),
    ("quantize", "", []),
    ("quantize", "type=e4m3", []),
    ("quantize", "type=e5m2", []),
    ("quantize", "rounding=stochastic", []),
    ("quantize", "type=e5m2,rounding=stochastic,error_feedback=1", []),
    ("onebit", "", []),
    ("topk", "ratio=0.01", []),
    ("post_local_sgd", "start=100", ["--average-every", "8"]),
]


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ddprun", default="build/release/tools/run/ddprun")
    parser.add_argument("--mnist", default="build/release/examples/c/mnist")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=3, help="runs of each hook, of which the mean counts")
    parser.add_argument("--page", type=pathlib.Path)
    return parser.parse_args()


def train(options, hook, hook_options, more, seed):
    """Returns the test accuracy in percent."""
    command = [options.ddprun, "-n", str(options.ranks), options.mnist, "--epochs", str(options.epochs), "--seed",
               str(seed), "--hook", hook, "--hook-options", hook_options, *more]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=1200, check=False)
    found = re.search(r"test accuracy ([\d.]+) %", done.stdout)
    if done.returncode != 0 or not found:
        sys.exit(f"status {done.returncode} of {' '.join(command)}\n{done.stdout}")
    return float(found.group(1))


def main():
    options = parse()
    plain = None
    lines = [f"Test accuracy on MNIST (examples/c/mnist.c, {options.ranks} ranks, {options.epochs} epochs, "
             f"mean over {options.seeds} seeds):\n", "\n",
             "| Hook | Options | Test accuracy | Against plain |\n", "|---|---|---|---|\n"]
    failed = []
    for hook, hook_options, more in RUNS:
        runs = [train(options, hook, hook_options, more, seed) for seed in range(1, options.seeds + 1)]
        accuracy = sum(runs) / len(runs)
        plain = accuracy if plain is None else plain
        if accuracy < plain - ALLOWED_LOSS:
            failed.append(hook)
        told = ", ".join(filter(None, [hook_options, " ".join(more)]))
        lines.append(f"| {hook} | {told} | {accuracy:.2f} % | {accuracy - plain:+.2f} |\n")
        print(lines[-1], end="", flush=True)
    if options.page:
        before, rest = options.page.read_text(encoding="utf-8").split(BEGIN)
        options.page.write_text(before + BEGIN + "".join(lines) + END + rest.split(END)[1], encoding="utf-8")
    if failed:
        sys.exit(f"more than {ALLOWED_LOSS} points below the plain run: {', '.join(failed)}")


if __name__ == "__main__":
    main()
