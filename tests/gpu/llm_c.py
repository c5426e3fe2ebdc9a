#!/usr/bin/env python3
"""llm.c's trainer for GPUs (examples/cuda/gpt2.cu): the losses and the time of a step where libddp averages its gradients, beside those
with llm.c's own code for NCCL.

    llm_c.py BIN RANKS [MODEL]          BIN: the folder of ddprun, gpt2_cuda_f32 and gpt2_cuda_bf16. MODEL: d12 (GPT-2 124M), or d6

The two take turns. Tokens are random, with a pattern that can be learned. Prints "skipped: REASON" where the programs are not there.
"""
import math
import os
import pathlib
import random
import re
import statistics
import struct
import subprocess
import sys
import sysconfig
import tempfile

STEPS, TURNS = 20, 2
# Between losses of the same step: rounding, which training makes larger. A rank that is left out of the mean makes 0.01 and more.
BOUNDS = {"f32": 1e-3, "bf16": 2e-2}


def write_tokens(path, count=200_000):
    rng = random.Random(1)
    tokens = [rng.randrange(50257) for _ in range(64)]
    while len(tokens) < count:
        tokens.append(tokens[-64] if rng.random() < 0.9 else rng.randrange(50257))
    path.write_bytes(struct.pack("256i", 20240520, 1, count, *[0] * 253) + struct.pack(f"{count}H", *tokens))


def train(command, environment):
    """(losses, median of a step in ms)"""
    said = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    losses = [float(loss) for loss in re.findall(r"step \d+: loss (\S+),", said.stdout)]
    median = re.search(r"median (\S+) ms", said.stdout)
    if said.returncode != 0 or len(losses) != STEPS or not median:
        sys.exit(f"{' '.join(map(str, command))} ended with {said.returncode}:\n{said.stdout}")
    return losses, float(median[1])


def compare(folder, ranks, model, precision, tokens, scratch):
    # The bundle does not have cuBLAS; PyTorch's package, or the toolkit, does.
    beside = sorted(pathlib.Path(sysconfig.get_path("purelib")).glob("nvidia/*/lib"))
    environment = {**os.environ, "LD_LIBRARY_PATH": ":".join(filter(None, [os.environ.get("LD_LIBRARY_PATH"), *map(str, beside)]))}
    times = {"libddp": [], "llm.c": []}
    worst = 0
    for turn in range(TURNS):
        meeting = scratch / f"{precision}-{turn}"
        meeting.mkdir()
        losses = {}
        for name, options in (("libddp", ["--backend", "nccl"]), ("llm.c", ["--nccl", meeting])):
            losses[name], median = train([folder / "ddprun", "-n", ranks, folder / f"gpt2_cuda_{precision}", model, tokens, "--steps", str(STEPS),
                                          *options], environment)
            times[name].append(median)
        apart = [abs(one - other) for one, other in zip(losses["libddp"], losses["llm.c"])]
        worst = max(worst, *(math.inf if math.isnan(each) else each for each in apart))
    ours, theirs = (statistics.median(times[name]) for name in ("libddp", "llm.c"))
    print(f"{precision} ranks {ranks} model {model}: loss {losses['llm.c'][0]:.4f} to {losses['llm.c'][-1]:.4f}, apart {worst:.2g} "
          f"(bound {BOUNDS[precision]:g}); step {ours:.3f} ms by libddp, {theirs:.3f} ms by llm.c, {ours / theirs:.3f} of it")
    return worst <= BOUNDS[precision]


def main():
    folder, ranks = pathlib.Path(sys.argv[1]), sys.argv[2]
    model = sys.argv[3] if len(sys.argv) > 3 else "d12"
    if not (folder / "gpt2_cuda_f32").exists():
        print("skipped: built without llm.c, which examples/c/llm.c/fetch fetches")
        return
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        write_tokens(scratch / "tokens.bin")
        held = [compare(folder, ranks, model, precision, scratch / "tokens.bin", scratch) for precision in BOUNDS]
    sys.exit(0 if all(held) else "losses differ")


if __name__ == "__main__":
    main()
