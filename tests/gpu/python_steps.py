#!/usr/bin/env python3
"""Steps of training of PyTorch's tensors on a GPU through the Python package, every number checked:

    ddprun -n 2 python3 python_steps.py [--device cuda:0] [--backend shm]

Shows that arrays are taken and shown by DLPack in the right order of streams: a weight that another stream is still writing when it
is registered, or when set_stream comes after that, is broadcast as written; gradients on a side stream, one in a tensor of its own and
one in its bucket, are reduced when that stream has written them and seen there as the mean; a hook works on its bucket's stream, and other
streams are refused. All ranks may share one GPU. --device cpu is the same without streams. A world of 1, 2, 4 ... ranks: their
numbers are exact. Prints "skipped: REASON" where there is no PyTorch, or none with a GPU.
"""
import argparse
import contextlib
import sys

import ddp
from torch_or_skip import skip, torch

WEIGHT, VIEW, STEPS, RATE = (300, 41), (1000,), 3, 0.5
LATE = 50_000_000  # cycles that a stream is busy before it writes: some 30 ms


class Place:
    """The device, with a side stream where it is a GPU."""

    def __init__(self, name):
        self.name, self.device = name, torch.device(name)
        self.on_gpu = self.device.type == "cuda"
        self.side = torch.cuda.Stream(self.device) if self.on_gpu else None

    def beside(self):
        """With the side stream as the current one."""
        return torch.cuda.stream(self.side) if self.on_gpu else contextlib.nullcontext()

    def of(self, bucket):
        """With the bucket's stream as the current one."""
        if not self.on_gpu:
            return contextlib.nullcontext()
        return torch.cuda.stream(torch.cuda.ExternalStream(bucket.stream, device=self.device))

    def late(self):
        """Delays the current stream, so that later work on it is not there yet."""
        if self.on_gpu:
            torch.cuda._sleep(LATE)

    def ramp(self, shape, start):
        """Small whole numbers."""
        count = torch.Size(shape).numel()
        return (torch.arange(count, dtype=torch.float32, device=self.device) % 61 + start).reshape(shape)

    def set_stream(self, ctx):
        if self.on_gpu:
            ctx.set_stream(self.name, self.side)

    def ready(self, ctx, param):
        if self.on_gpu:
            ctx.grad_ready_on(param, self.side)
        else:
            ctx.grad_ready(param)

    def finalize(self, ctx):
        if self.on_gpu:
            ctx.finalize_on(self.side)
        else:
            ctx.finalize()


def check(what, tensor, expected):
    """On the current stream, which is all that orders it."""
    if not torch.equal(tensor, expected):
        wrong = (tensor != expected).nonzero()
        sys.exit(f"{what}: {len(wrong)} of {expected.numel()} elements are wrong, the first at {wrong[0].tolist()}: "
                 f"{tensor[tuple(wrong[0])].item()}, not {expected[tuple(wrong[0])].item()}")


def doubled(place):
    """A hook that gives twice the mean."""

    def hook(group, bucket):
        if place.on_gpu:
            refused = False
            with place.beside():
                try:
                    torch.from_dlpack(bucket.buffer)
                except BufferError:
                    refused = True
            if not refused:
                raise AssertionError("a bucket was shown to another stream than its own")
        with place.of(bucket):
            place.late()
            torch.from_dlpack(bucket.buffer).mul_(2)
        return group.allreduce(bucket.buffer, bucket.op, async_op=True)

    return hook


def train(group, place, stream_first, factor, hook=None):
    """Three steps; the means, times factor, must come out."""
    rank, world = group.rank, group.world_size
    weight, grad = place.ramp(WEIGHT, -1), torch.zeros(WEIGHT, device=place.device)
    with ddp.Context(group) as ctx:
        if stream_first:
            place.set_stream(ctx)
            place.late()
            weight.copy_(place.ramp(WEIGHT, 7 * rank))  # on the default stream: register makes the side stream wait
        whole = ctx.register("weight", weight, grad)
        inside = ctx.register("inside", shape=VIEW, dtype="f32", device=place.name)
        if not stream_first:
            place.late()
            weight.copy_(place.ramp(WEIGHT, 7 * rank))
            place.set_stream(ctx)  # makes it wait anew
        ctx.commit()
        ctx.set_hook(hook)
        with place.beside():
            expected = place.ramp(WEIGHT, 0)  # rank 0's
            check("weight after commit", weight, expected)
        for step in range(STEPS):
            ctx.step_begin()
            with place.beside():
                view = torch.from_dlpack(ctx.grad_view(inside))
                place.late()
                view.copy_(place.ramp(VIEW, rank - step))
                place.ready(ctx, inside)
                place.late()
                grad.copy_(place.ramp(WEIGHT, rank + step))
                place.ready(ctx, whole)
                place.finalize(ctx)
                weight -= RATE * grad
                mean = (world - 1) / 2  # of the ranks' numbers
                check(f"gradient in step {step}", grad, factor * place.ramp(WEIGHT, mean + step))
                check(f"gradient in its bucket in step {step}", view, factor * place.ramp(VIEW, mean - step))
                expected -= RATE * factor * place.ramp(WEIGHT, mean + step)
                check(f"weight after step {step}", weight, expected)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--backend", default="shm")
    arguments = parser.parse_args()
    if arguments.device != "cpu" and not torch.cuda.is_available():
        skip("PyTorch sees no GPU")
    place = Place(arguments.device)
    if place.on_gpu:
        torch.cuda.set_device(place.device)
    with ddp.Group(backend=arguments.backend) as group:
        if group.world_size & (group.world_size - 1):
            sys.exit("the number of ranks must be a power of two")
        for stream_first in (True, False):
            train(group, place, stream_first, 1)
        train(group, place, True, 2, doubled(place))
        group.barrier()
        if group.rank == 0:
            where = torch.cuda.get_device_name(place.device) if place.on_gpu else "the CPU"
            print(f"{STEPS} steps, 3 times, on {where}, {group.world_size} ranks, PyTorch {torch.__version__}: all numbers are right")


if __name__ == "__main__":
    main()
