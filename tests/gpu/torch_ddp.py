#!/usr/bin/env python3
"""The cost of a step of PyTorch's DistributedDataParallel on one GPU, in a world of one, for the gradients of a model:

    ddp-bench models --model resnet50 | torch_ddp.py NAME [--view] [--powersgd RANK]

One line: milliseconds of this process's CPU time a step, until everything is enqueued, less what the same backward pass costs without
DDP; and milliseconds of a step. Steps with and without DDP take turns. The counterpart of `ddp-bench replay --device cuda`, columns cpu_ms and median_ms. With --powersgd it
also times PyTorch's PowerSGD hook, as hook_ms and hook_cpu_ms. Prints "skipped: REASON" where there is no PyTorch with a GPU.
"""
import argparse
import statistics
import sys
import tempfile
import time

from torch_or_skip import skip, torch

STEPS, WARM_UP = 60, 10


class Gradients(torch.autograd.Function):
    """A backward pass that gives each parameter a gradient which is there already."""

    @staticmethod
    def forward(ctx, ready, start, *params):
        ctx.ready = ready
        return start.clone()

    @staticmethod
    def backward(ctx, _):
        return (None, None, *[gradient.clone() for gradient in ctx.ready])


class Model(torch.nn.Module):
    def __init__(self, shapes):
        super().__init__()
        self.params = torch.nn.ParameterList(torch.nn.Parameter(torch.zeros(shape, device="cuda")) for shape in shapes)
        self.ready = [torch.ones_like(p) for p in self.params]

    def forward(self, start):
        return Gradients.apply(self.ready, start, *self.params)


def step(model, start):
    """CPU time until everything is enqueued, and the time until the GPU has done it, in milliseconds."""
    torch.cuda.synchronize()
    for p in model.parameters():
        p.grad = p.grad if p.grad is None else p.grad.zero_()
    torch.cuda.synchronize()
    cpu_before, before = time.process_time(), time.perf_counter()
    model(start).backward()
    enqueued = time.process_time()
    torch.cuda.synchronize()
    return 1e3 * (enqueued - cpu_before), 1e3 * (time.perf_counter() - before)


def measure(models):
    """For each the medians of what step() says. They take turns: whatever slows the machine for a while slows all of them."""
    start = torch.ones((), device="cuda")
    for model in models:
        for _ in range(WARM_UP):
            step(model, start)
    series = [[step(model, start) for model in models] for _ in range(STEPS)]
    return [[statistics.median(values) for values in zip(*steps)] for steps in zip(*series)]


def with_powersgd(model, rank):
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
    # 2: the least that PyTorch allows
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=rank, start_powerSGD_iter=2)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return model


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help="of the model")
    parser.add_argument("--view", action="store_true", help="gradients live in their buckets")
    parser.add_argument("--powersgd", type=int, metavar="RANK", help="columns of P and Q")
    arguments = parser.parse_args()
    lines = (line.split("#")[0].split() for line in sys.stdin)
    shapes = [tuple(int(extent) for extent in words[1:] if not extent.startswith("@")) for words in lines if words]
    if not torch.cuda.is_available():
        skip("PyTorch sees no GPU")

    def parallel():
        return torch.nn.parallel.DistributedDataParallel(Model(shapes), device_ids=[0], gradient_as_bucket_view=arguments.view)

    hooked = ""
    # In a folder, since PyTorch deletes the file itself.
    with tempfile.TemporaryDirectory() as folder:
        torch.distributed.init_process_group("nccl", init_method=f"file://{folder}/meeting", rank=0, world_size=1)
        (alone_cpu, alone_wall), (cpu, wall) = measure([Model(shapes), parallel()])
        if arguments.powersgd:
            (plain_cpu, _), (hook_cpu, hook_wall) = measure([Model(shapes), with_powersgd(parallel(), arguments.powersgd)])
            hooked = f"  hook_cpu_ms {hook_cpu - plain_cpu:.3f}  hook_ms {hook_wall:.3f}"
        torch.distributed.destroy_process_group()
    print(f"PyTorch {torch.__version__} DDP, {arguments.name}, {'view' if arguments.view else 'copy'}: cpu_ms {cpu - alone_cpu:.3f}  "
          f"step_ms {wall:.3f}  local_ms {alone_wall:.3f}{hooked}  params {len(shapes)}")


if __name__ == "__main__":
    main()
