#!/usr/bin/env python3
"""PyTorch's PowerSGD hook beside libddp's, in turns on this machine: CPU time of a rank for each step.

usage: powersgd.py [--bench PATH] [--model resnet50] [--world 2] [--rank 4] [--rounds 3] ...

Two processes on two cores wait much, so that CPU time, of the rank that needs most, is what compares. "over local" is
what is left of it after the loop without any communication is subtracted. A world of 1 shows what compressing costs
alone.

Both have all gradients in one bucket. PyTorch's hook starts its second and third collective of a bucket on whichever of
Gloo's two threads has ended the one before: with several buckets on their way both may wait for each other for good, and
ranks may start collectives in different orders. libddp is shown with its usual buckets of 25 MiB too.
"""
import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from statistics import median

import job
import replay


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", default="ddp-bench", help="the ddp-bench program")
    parser.add_argument("--python", default="/usr/bin/python3", help="a Python that has PyTorch")
    parser.add_argument("--backend", default="auto", help="of libddp")
    parser.add_argument("--model", default="resnet50", help="as ddp-bench has it")
    parser.add_argument("--world", type=int, default=2)
    parser.add_argument("--rank", type=int, default=4, help="columns of P and Q")
    parser.add_argument("--iters", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--timeout", type=float, default=900.0, help="for each program that is started")
    parser.add_argument("--peer", action="store_true", help="only PyTorch, with a model in a file: one JSON line")
    return parser.parse_args()


# Where ranks start to compress: the least that PyTorch allows with error feedback.
START = 2
ONE_BUCKET_MB = 65536
USUAL = "libddp, 25 MiB"


def cpu_ms():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return 1e3 * (used.ru_utime + used.ru_stime)


class Timed:
    """A loop and the CPU time of this process in it."""

    def __init__(self, loop):
        self.loop, self.cpu, self.steps = loop, 0.0, 0

    def __call__(self):
        start = cpu_ms()
        elapsed = self.loop()
        self.cpu += cpu_ms() - start
        self.steps += 1
        return elapsed

    def reset(self):
        self.cpu, self.steps = 0.0, 0

    def slowest(self, torch, dist):
        value = torch.tensor([self.cpu / self.steps], dtype=torch.float64)
        dist.all_reduce(value, op=dist.ReduceOp.MAX)
        return float(value)


def measure_peer(options):
    torch = job.require_torch()
    dist = job.join()
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as powersgd
    shapes = replay.read_model(options.model)
    iteration = replay.Iteration(dist.get_rank())
    local = replay.make_model(torch, shapes, 0.0, iteration)
    dist._DEFAULT_FIRST_BUCKET_BYTES = ONE_BUCKET_MB * replay.MIB  # 1 MiB otherwise

    def parallel(hooked):
        ddp = torch.nn.parallel.DistributedDataParallel(replay.make_model(torch, shapes, 0.0, iteration),
                                                        bucket_cap_mb=ONE_BUCKET_MB, gradient_as_bucket_view=True)
        if hooked:
            state = powersgd.PowerSGDState(None, matrix_approximation_rank=options.rank, start_powerSGD_iter=START)
            ddp.register_comm_hook(state, powersgd.powerSGD_hook)
        return ddp

    loops = [Timed(replay.make_loop(torch, model, iteration, True))
             for model in (local, parallel(False), parallel(True))]
    for loop in loops:
        for _ in range(START + 2):
            loop()
        loop.reset()
    series = job.measure(options.iters, 1.0, loops)
    local_cpu, cpu, hook_cpu = (loop.slowest(torch, dist) for loop in loops)
    size = 4 * sum(replay.math.prod(shape) for shape in shapes)
    row = job.row("torch-powersgd", size, series[1], local_ms=job.median(series[0]), hook_ms=job.median(series[2]),
                  local_cpu_ms=local_cpu, cpu_ms=cpu, hook_cpu_ms=hook_cpu)
    if dist.get_rank() == 0:
        print(json.dumps(row), flush=True)
    dist.barrier()
    os._exit(0)  # PyTorch's threads now and then end in std::terminate otherwise


def run(command, timeout):
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=timeout)
    if done.returncode != 0:
        sys.exit(f"status {done.returncode} of {' '.join(command)}")
    return json.loads(done.stdout.splitlines()[-1])


def compare(options):
    if subprocess.run([options.python, "-c", "import torch.distributed"], stderr=subprocess.DEVNULL).returncode != 0:
        print(f"skipped: no PyTorch in {options.python}")
        return
    common = ["--world", str(options.world), "--iters", str(options.iters), "--timeout", str(options.timeout)]
    rows = {"libddp": [], "PyTorch": [], USUAL: []}
    with tempfile.TemporaryDirectory(prefix="ddp-powersgd-") as folder:
        model = os.path.join(folder, "model")
        with open(model, "w", encoding="utf-8") as file:
            subprocess.run([options.bench, "models", "--model", options.model], stdout=file, check=True, timeout=60)
        ours = [options.bench, "replay", "--json", "--model", model, "--backend", options.backend, *common, "--hook",
                "powersgd", "--hook-options", f"rank={options.rank},start={START}"]
        theirs = [options.python, os.path.abspath(__file__), "--peer", "--model", model, "--rank", str(options.rank),
                  *common]
        one_bucket = ["--bucket-mb", str(ONE_BUCKET_MB), "--first-bucket-mb", str(ONE_BUCKET_MB)]
        for _ in range(options.rounds):
            rows["libddp"].append(run(ours + one_bucket, options.timeout + 60))
            rows[USUAL].append(run(ours, options.timeout + 60))
            rows["PyTorch"].append(run(theirs, options.timeout + 60))
    report(options, rows)


def report(options, rows):
    print(f"{options.model}, world {options.world}, rank {options.rank}, one bucket, "
          f"{options.rounds} rounds of {options.iters} steps in turns; milliseconds a step")
    print("                    local    allreduce            powersgd")
    print("                      cpu    cpu   wall    cpu   wall   cpu over local")
    over = {}
    for side, all_rows in rows.items():
        # Where ddp-bench does not tell the CPU time of the loop without communication: that never waits.
        local = median([row.get("local_cpu_ms", row["local_ms"]) for row in all_rows])
        cpu, wall, hook_cpu, hook_wall = (median([row[key] for row in all_rows])
                                          for key in ("cpu_ms", "median_ms", "hook_cpu_ms", "hook_ms"))
        over[side] = hook_cpu - local
        print(f"{side:>16}  {local:7.1f}  {cpu:5.1f}  {wall:5.1f}  {hook_cpu:5.1f}  {hook_wall:5.1f}  {over[side]:15.1f}")
    print(f"CPU time of PowerSGD over local: libddp / PyTorch = {over['libddp'] / over['PyTorch']:.3f}")


def main():
    options = parse()
    if not options.peer:
        compare(options)
    elif job.is_rank():
        measure_peer(options)
    else:
        raise SystemExit(job.launch(options.world, options.timeout))


if __name__ == "__main__":
    main()
