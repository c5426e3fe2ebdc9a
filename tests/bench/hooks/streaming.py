#!/usr/bin/env python3
"""Trains a transformer on the characters of docs/*.md with 4 ranks: with gradients averaged in each step, with DiLoCo, and with fragments that
take turns. Writes the table of docs/hooks.md.

usage: streaming.py [--ddprun PATH] [--python PATH] [--steps 604] [--seeds 2] [--page docs/hooks.md]

--steps: a number after a turn of every fragment with its delay, so that no run loses more of its last steps than another. Without --page the
table is only printed. The status is 1 if the loss of fragments is more than 0.05 above that of DiLoCo. PyTorch and the package ddp must be
there; PYTHONPATH may say where.
"""
import argparse
import json
import pathlib
import subprocess
import sys

BEGIN, END = "<!-- streaming: written by tests/bench/hooks/streaming.py -->\n", "<!-- streaming: end -->\n"
RANKS, PERIOD, BATCH, ALLOWED_LOSS = 4, 24, 8, 0.05
# Name, and options of the outer optimizer; None: the gradients are averaged in each step.
RUNS = [
    ("gradients, in each step", None),
    ("DiLoCo", {}),
    ("4 fragments", {"fragments": 4}),
    ("4 fragments, delay 3, alpha 0.5", {"fragments": 4, "delay": 3, "alpha": 0.5}),
    ("the same as bf16", {"fragments": 4, "delay": 3, "alpha": 0.5, "sent_dtype": "bf16"}),
    ("the same in 8 bits", {"fragments": 4, "delay": 3, "alpha": 0.5, "sent_dtype": "u8"}),
]


def train(group, text, outer, steps, seed):
    """One rank's training. Returns the held-out loss, the most bytes in a step, those of all steps, and those of the model."""
    import ddp
    import torch
    import transformer

    torch.manual_seed(seed)
    net = transformer.Net(text.letters)
    with ddp.Context(group) as ctx:
        params = transformer.register(net, ctx)
        optimizer = torch.optim.AdamW(params)
        if outer is not None:
            averager = ddp.Averager(ctx, PERIOD)
            averager.set_outer(**outer)
        chance = torch.Generator().manual_seed(1000 * seed + group.rank)
        sent = []
        for step in range(steps):
            optimizer.param_groups[0]["lr"] = transformer.rate(step, steps)
            for each in params:
                each.grad.zero_()
            net.loss(text.learnt, chance, BATCH).backward()
            before = ctx.stats().averaged_bytes + ctx.stats().sent_bytes
            if outer is None:
                for index in range(len(params)):
                    ctx.grad_ready(index)
                ctx.finalize()
            optimizer.step()
            if outer is not None:
                averager.step()
            sent.append(ctx.stats().averaged_bytes + ctx.stats().sent_bytes - before)
        if outer is not None:
            averager.go_back()
        return net.held_out_loss(text), max(sent[1:]), sum(sent[1:]), sum(4 * each.numel() for each in params)


def train_all(steps, seeds):
    """One rank: every run of every seed, one after another."""
    import ddp
    import torch
    import transformer

    torch.set_num_threads(1)
    group, text = ddp.Group(), transformer.Text()
    for seed in range(1, seeds + 1):
        for name, outer in RUNS:
            result = train(group, text, outer, steps, seed)
            if group.rank == 0:
                print("result", json.dumps([name, *result]), flush=True)


def run_all(options):
    """The results by name."""
    command = [options.ddprun, "--no-tag", "-n", str(RANKS), options.python, "-B", __file__, "--rank", "--steps", str(options.steps), "--seeds",
               str(options.seeds)]
    results = {}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as job:
        for line in job.stdout:
            print(line, end="", flush=True)
            if line.startswith("result "):
                name, *result = json.loads(line[len("result "):])
                results.setdefault(name, []).append(result)
    if job.returncode != 0:
        sys.exit(f"status {job.returncode} of {' '.join(command)}")
    return results


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ddprun", default="build/release/tools/run/ddprun")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--steps", type=int, default=604)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--page", type=pathlib.Path)
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        return train_all(options.steps, options.seeds)
    lines, failed, whole, results = [], [], None, run_all(options)
    for name, outer in RUNS:
        losses = [each[0] for each in results[name]]
        loss = sum(losses) / len(losses)
        _, peak, everything, model = results[name][0]
        if outer == {}:
            whole = loss
        elif outer and loss > whole + ALLOWED_LOSS:
            failed.append(f"{name}: loss")
        travels = max(1, (outer or {}).get("delay", 1))
        lines.append(f"| {name} | {loss:.3f} ({min(losses):.3f} to {max(losses):.3f}) | {peak:,} | {peak / travels:,.0f} | "
                     f"{everything / (options.steps - 1):,.0f} |\n")
    head = [f"Held-out loss of a transformer of {model / 4e3:,.0f}k parameters on characters ({RANKS} ranks, {options.steps} steps, period "
            f"{PERIOD}, mean and range of {options.seeds} seeds), and the bytes that a rank gives to collectives:\n", "\n",
            "| What is averaged | Loss | Most in a step | The same, spread over the delay | Mean of all steps |\n", "|---|---|---|---|---|\n"]
    print("".join(head + lines))
    if options.page:
        before, rest = options.page.read_text(encoding="utf-8").split(BEGIN)
        options.page.write_text(before + BEGIN + "".join(head + lines) + END + rest.split(END)[1], encoding="utf-8")
    return sys.exit(f"beside DiLoCo: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
