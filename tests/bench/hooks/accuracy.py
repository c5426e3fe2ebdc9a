#!/usr/bin/env python3
"""Trains with every built-in hook and writes a table of docs/hooks.md: the MNIST example, or a transformer on characters.

usage: accuracy.py [--ddprun PATH] [--ranks 2] [--seeds 3] [--page docs/hooks.md] mnist [--mnist PATH] [--epochs 10]
       accuracy.py [--ddprun PATH] [--ranks 2] [--seeds 3] [--page docs/hooks.md] characters [--python PATH] [--steps 200]

Without --page the table is only printed. The status is 1 if a hook's mean is much worse than that of allreduce: a point of test accuracy, or
0.15 of held-out loss. The transformer needs PyTorch and the package ddp; PYTHONPATH may say where.
"""
import argparse
import json
import pathlib
import re
import subprocess
import sys

# The most that a hook may be worse than allreduce.
ALLOWED_POINTS, ALLOWED_LOSS = 1.0, 0.15
BATCH = 8

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
    ("quantize_per_tensor", "", []),
    ("quantize_per_channel", "block=512", []),
    ("onebit", "", []),
    ("topk", "ratio=0.01", []),
    ("chunks", "chunk=64,ratio=0.1,warmup=100", []),
    ("chunks", "chunk=16,ratio=0.01,warmup=100", []),
    ("chunks", "chunk=16,ratio=0.01,warmup=100,momentum=0.9", ["--momentum", "0"]),
    ("post_local_sgd", "start=100", ["--average-every", "8"]),
]


# The same of the transformer, which has AdamW.
CHARACTER_RUNS = [
    ("allreduce", ""),
    ("bf16", ""),
    ("quantize", ""),
    ("quantize", "type=e4m3"),
    ("quantize", "type=e5m2,rounding=stochastic,error_feedback=1"),
    ("topk", "ratio=0.05"),
    ("onebit", ""),
    ("powersgd", "rank=4,start=50"),
    ("chunks", "chunk=64,ratio=0.1,warmup=50"),
]


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ddprun", default="build/release/tools/run/ddprun")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=3, help="runs of each hook, of which the mean counts")
    parser.add_argument("--page", type=pathlib.Path)
    tables = parser.add_subparsers(dest="table", required=True)
    mnist = tables.add_parser("mnist")
    mnist.add_argument("--mnist", default="build/release/examples/c/mnist")
    mnist.add_argument("--epochs", type=int, default=10)
    characters = tables.add_parser("characters")
    characters.add_argument("--python", default=sys.executable)
    characters.add_argument("--steps", type=int, default=200)
    characters.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def write(options, lines):
    """The table, between its marks in the page."""
    if options.page:
        begin, end = f"<!-- {options.table}: written by tests/bench/hooks/accuracy.py -->\n", f"<!-- {options.table}: end -->\n"
        before, rest = options.page.read_text(encoding="utf-8").split(begin)
        options.page.write_text(before + begin + "".join(lines) + end + rest.split(end)[1], encoding="utf-8")


def accuracy_of(options, hook, hook_options, more, seed):
    """The test accuracy in percent, on MNIST."""
    command = [options.ddprun, "-n", str(options.ranks), options.mnist, "--epochs", str(options.epochs), "--seed",
               str(seed), "--hook", hook, "--hook-options", hook_options, *more]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=1200, check=False)
    found = re.search(r"test accuracy ([\d.]+) %", done.stdout)
    if done.returncode != 0 or not found:
        sys.exit(f"status {done.returncode} of {' '.join(command)}\n{done.stdout}")
    return float(found.group(1))


def mnist(options):
    plain = None
    lines = [f"Test accuracy on MNIST (examples/c/mnist.c, {options.ranks} ranks, {options.epochs} epochs, "
             f"mean over {options.seeds} seeds):\n", "\n",
             "| Hook | Options | Test accuracy | Against plain |\n", "|---|---|---|---|\n"]
    failed = []
    for hook, hook_options, more in RUNS:
        runs = [accuracy_of(options, hook, hook_options, more, seed) for seed in range(1, options.seeds + 1)]
        accuracy = sum(runs) / len(runs)
        plain = accuracy if plain is None else plain
        if accuracy < plain - ALLOWED_POINTS:
            failed.append(hook)
        told = ", ".join(filter(None, [hook_options, " ".join(more)]))
        lines.append(f"| {hook} | {told} | {accuracy:.2f} % | {accuracy - plain:+.2f} |\n")
        print(lines[-1], end="", flush=True)
    return lines, failed


def train(group, text, hook, hook_options, steps, seed):
    """One rank's training. Returns the held-out loss and the number of parameters."""
    import ddp
    import torch
    import transformer

    torch.manual_seed(seed)
    net = transformer.Net(text.letters)
    with ddp.Context(group) as ctx:
        params = transformer.register(net, ctx)
        ctx.use_hook(hook, **dict(option.split("=") for option in hook_options.split(",") if option))
        optimizer = torch.optim.AdamW(params)
        chance = torch.Generator().manual_seed(1000 * seed + group.rank)
        for step in range(steps):
            optimizer.param_groups[0]["lr"] = transformer.rate(step, steps)
            for each in params:
                each.grad.zero_()
            net.loss(text.learnt, chance, BATCH).backward()
            for index in reversed(range(len(params))):
                ctx.grad_ready(index)
            ctx.finalize()
            optimizer.step()
        return net.held_out_loss(text), sum(each.numel() for each in params)


def train_all(options):
    """One rank: every run of every seed, one after another."""
    import ddp
    import torch
    import transformer

    torch.set_num_threads(1)
    group, text = ddp.Group(), transformer.Text()
    for run in CHARACTER_RUNS:
        for seed in range(1, options.seeds + 1):
            result = train(group, text, *run, options.steps, seed)
            if group.rank == 0:
                print("result", json.dumps(result), flush=True)


def characters(options):
    command = [options.ddprun, "--no-tag", "-n", str(options.ranks), options.python, "-B", __file__, "--seeds", str(options.seeds),
               "characters", "--rank", "--steps", str(options.steps)]
    results = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as job:
        for line in job.stdout:
            print(line, end="", flush=True)
            if line.startswith("result "):
                results.append(json.loads(line[len("result "):]))
    if job.returncode != 0:
        sys.exit(f"status {job.returncode} of {' '.join(command)}")
    lines, failed, plain = [], [], None
    for number, (hook, hook_options) in enumerate(CHARACTER_RUNS):
        runs = results[number * options.seeds: (number + 1) * options.seeds]
        losses = [run[0] for run in runs]
        loss = sum(losses) / len(losses)
        plain = loss if plain is None else plain
        if not loss < plain + ALLOWED_LOSS:
            failed.append(f"{hook} {hook_options}")
        lines.append(f"| {hook} | {hook_options} | {loss:.3f} ({min(losses):.3f} to {max(losses):.3f}) | {loss - plain:+.3f} |\n")
    return [f"Held-out loss of a transformer of {results[0][1] / 1e3:,.0f}k parameters on characters (tests/bench/hooks/transformer.py, "
            f"{options.ranks} ranks, AdamW, {options.steps} steps, mean and range of {options.seeds} seeds):\n", "\n",
            "| Hook | Options | Loss | Against plain |\n", "|---|---|---|---|\n", *lines], failed


def main():
    options = parse()
    if options.table == "characters" and options.rank:
        return train_all(options)
    lines, failed = mnist(options) if options.table == "mnist" else characters(options)
    print("".join(lines))
    write(options, lines)
    return sys.exit(f"much worse than allreduce: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
