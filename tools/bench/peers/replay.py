#!/usr/bin/env python3
"""The same as `ddp-bench replay`, through PyTorch's DistributedDataParallel over Gloo.

The model is the same list of parameters (a file that `ddp-bench models` wrote). Its autograd graph is a chain of one
function a parameter, whose backward computes for as long as ddp-bench does and writes that parameter's gradient.
Prints one JSON line for each combination of gradient mode and bucket cap.

Three ways for a gradient to reach its bucket:
  copy    gradient_as_bucket_view=False: PyTorch copies in, and copies the mean out
  view    gradient_as_bucket_view=True: PyTorch copies in; the gradient is then the bucket
  direct  as view, and the backward function writes into the bucket itself. No real PyTorch program does this; it is
          the least that PyTorch could take, and the fair peer of libddp's views

With --optimizer a step ends with torch.optim.AdamW(foreach=True): of every rank, and in a ZeroRedundancyOptimizer.
"""

import argparse
import itertools
import json
import math
import time

import job

MIB = 1 << 20


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="file of lines 'name dim dim ... @uses'")
    parser.add_argument("--world", type=int, default=2)
    parser.add_argument("--bucket-mb", default="25", help="bucket caps, separated by commas")
    parser.add_argument("--modes", default="copy,view,direct")
    parser.add_argument("--compute-ms", type=float, default=0.0)
    parser.add_argument("--optimizer", action="store_true")
    parser.add_argument("--iters", type=int, default=0, help="0: as many as fit into --seconds, at least 10")
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--timeout", type=float, default=900.0)
    return parser.parse_args()


def read_model(path):
    """The shapes, and each one's share of the backward pass's work: elements times how often they are used."""
    shapes, uses = [], []
    with open(path, encoding="utf-8") as file:
        for line in file:
            words = line.split("#")[0].split()
            if words:
                shapes.append([int(word) for word in words[1:] if word[0] != "@"])
                uses.append(float(words[-1][1:]) if words[-1][0] == "@" else 1.0)
    work = [math.prod(shape) * often for shape, often in zip(shapes, uses)]
    if not sum(work):
        work = [math.prod(shape) for shape in shapes]
    return shapes, [each / max(1, sum(work)) for each in work]


def compute(milliseconds):
    """Keeps the core busy for this much of the thread's own time, as ddp-bench does."""
    if milliseconds <= 0:
        return
    end = time.thread_time_ns() + int(1e6 * milliseconds)
    while time.thread_time_ns() < end:
        pass


class Iteration:
    """The facts of the current iteration that the backward functions need."""

    def __init__(self, rank):
        self.rank = rank
        self.number = 0
        self.direct = False

    def value(self, index):
        return float(1 + self.rank + index % 64 + self.number % 16)


def make_model(torch, shapes, costs, iteration):
    class Write(torch.autograd.Function):
        @staticmethod
        def forward(ctx, chain, parameter, index):
            ctx.parameter, ctx.index = parameter, index
            return chain.view_as(chain)

        @staticmethod
        def backward(ctx, chain):
            compute(costs[ctx.index])
            value = iteration.value(ctx.index)
            if iteration.direct and ctx.parameter.grad is not None:
                ctx.parameter.grad.fill_(value)
                return chain, None, None
            return chain, torch.full_like(ctx.parameter, value), None

    class Replay(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.list = torch.nn.ParameterList([torch.nn.Parameter(torch.zeros(shape)) for shape in shapes])

        def forward(self, chain):
            for index, parameter in enumerate(self.list):
                chain = Write.apply(chain, parameter, index)
            return chain

    return Replay()


def make_optimizer(torch, model, name):
    """The optimizer of that name; None: none."""
    if name == "ZeroRedundancyOptimizer":
        from torch.distributed.optim import ZeroRedundancyOptimizer
        return ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, foreach=True)
    return torch.optim.AdamW(model.parameters(), foreach=True) if name else None


def make_loop(torch, model, iteration, direct, optimizer=None):
    start_of_chain = torch.zeros(1, requires_grad=True)

    def loop():
        iteration.number += 1
        iteration.direct = direct
        start = job.now_ms()
        if not direct:
            model.zero_grad(set_to_none=True)
        model(start_of_chain).backward(torch.ones(1))
        if optimizer:
            optimizer.step()
        return job.now_ms() - start

    return loop


def check_means(model, iteration, world):
    for index, parameter in enumerate(model.parameters()):
        if parameter.numel() == 0:
            continue
        own = iteration.value(index) - iteration.rank
        mean = own + (world - 1) / 2
        got = parameter.grad.flatten()
        assert abs(float(got[0]) - mean) < 1e-4 and abs(float(got[-1]) - mean) < 1e-4, f"parameter {index}"


def measure_one(torch, dist, options, model, mode, cap, name):
    shapes, shares = model
    iteration = Iteration(dist.get_rank())
    costs = [options.compute_ms * share for share in shares]
    local = make_model(torch, shapes, costs, iteration)
    ddp = torch.nn.parallel.DistributedDataParallel(make_model(torch, shapes, costs, iteration), bucket_cap_mb=cap,
                                                    gradient_as_bucket_view=mode != "copy")
    optimizer = make_optimizer(torch, ddp, name)
    loops = [make_loop(torch, local, iteration, mode == "direct"),
             make_loop(torch, ddp, iteration, mode == "direct", optimizer)]
    series = job.measure(options.iters, options.seconds, loops)
    check_means(ddp.module, iteration, dist.get_world_size())
    size = 4 * sum(math.prod(shape) for shape in shapes)
    return job.row("torch-replay", size, series[1], local_ms=job.median(series[0]), model=options.model,
                   params=len(shapes), bucket_mb=cap, compute_ms=options.compute_ms,
                   mode=f"{mode}, {name}" if name else mode)


def main():
    options = parse()
    torch = job.require_torch()
    if not job.is_rank():
        raise SystemExit(job.launch(options.world, options.timeout))
    dist = job.join()
    model = read_model(options.model)
    names = ["AdamW", "ZeroRedundancyOptimizer"] if options.optimizer else [None]
    for mode, cap, name in itertools.product(options.modes.split(","), options.bucket_mb.split(","), names):
        result = measure_one(torch, dist, options, model, mode, float(cap), name)
        if dist.get_rank() == 0:
            print(json.dumps(result), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
