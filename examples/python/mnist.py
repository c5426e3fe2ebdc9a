#!/usr/bin/env python3
"""Trains a multi-layer perceptron (mlp.py) on handwritten digits with as many processes as a launcher starts.

    python3 mnist.py                           one process
    ddprun -n 4 python3 mnist.py               four processes, the same training in a fraction of the time

libddp's part: Trainer.share registers the parameters, ctx.grad_ready says that a gradient is complete, and
Trainer.epoch calls ctx.step_begin before the forward and ctx.finalize after the backward pass. All else is the same as
without it.

It is the trainer of ../c/mnist.c: the same model, batches and options. The trainers of all languages may be ranks of one job.
"""
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # ranks share the cores already

import argparse
import pathlib
import sys
import time

import numpy as np

import ddp
import idx
from mlp import MLP, splitmix64


def options():
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    data = pathlib.Path(__file__).resolve().parent.parent / "data" / "mnist"
    parser.add_argument("--data", default=data, help="folder with the four IDX files of MNIST, plain or .gz")
    parser.add_argument("--epochs", type=int, default=10, help="passes over the training digits")
    parser.add_argument("--batch", type=int, default=64, help="digits in a global batch, divided among the ranks")
    parser.add_argument("--lr", type=float, default=0.05, help="learning rate")
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--seed", type=int, default=1, help="of the first weights and of the order of the digits")
    parser.add_argument("--copy", dest="view", action="store_false", help="gradients in the model's own memory")
    parser.add_argument("--view", action="store_true", default=True, help="gradients in libddp's buckets (default)")
    parser.add_argument("--compare-local", action="store_true", help="train without libddp afterwards, and compare")
    parser.add_argument("--hook", default="allreduce", help="communication hook")
    parser.add_argument("--hook-options", default="", metavar="K=V,...")
    parser.add_argument("--average-every", type=int, default=0, metavar="N", help="for --hook post_local_sgd")
    parser.add_argument("--save", help="file for rank 0's final weights, raw float32 one tensor after another")
    return parser.parse_args()


def shuffled(count, seed, epoch):
    """An order of the digits, the same on every rank (Fisher and Yates)."""
    order = list(range(count))
    draws, _ = splitmix64(seed * 1000003 + epoch, count - 1)
    for i, draw in zip(range(count - 1, 0, -1), draws.tolist()):
        j = draw % (i + 1)
        order[i], order[j] = order[j], order[i]
    return np.array(order)


class Trainer:
    """A model and its share of the work. group None: trains alone, without libddp."""

    def __init__(self, opt, group=None):
        self.opt, self.group, self.ctx, self.averager, self.generation = opt, group, None, None, -1
        self.rank, self.world = (group.rank, group.world_size) if group else (0, 1)
        # Every rank draws other weights, on purpose: commit replaces them with those of rank 0.
        self.net = MLP(opt.seed + self.rank)
        if group:
            self.share()

    def share(self):
        """Hands the model to libddp, which makes every rank's weights those of rank 0."""
        net, opt = self.net, self.opt
        self.ctx = ddp.Context(self.group)
        for name, value, gradient in zip(net.names, net.values, net.gradients):
            self.ctx.register(name, value, None if opt.view else gradient)
        self.ctx.use_hook(opt.hook, **dict(pair.split("=") for pair in opt.hook_options.split(",") if pair))
        self.ctx.commit()
        if opt.average_every > 0:
            self.averager = ddp.Averager(self.ctx, opt.average_every)

    def begin_step(self):
        """Starts a step, and points the model's gradients at their places in the buckets when those have moved."""
        self.ctx.step_begin()
        if self.opt.view and self.generation != self.ctx.layout_generation:
            self.net.gradients = [np.asarray(p.view()) for p in self.ctx.parameters]
            self.generation = self.ctx.layout_generation

    def epoch(self, images, labels, number):
        """One pass over the digits. Returns this rank's part of the score."""
        opt, net, ctx = self.opt, self.net, self.ctx
        order, part = shuffled(len(labels), opt.seed, number), opt.batch // self.world
        total = np.zeros(2)
        for first in range(0, len(labels) - opt.batch + 1, opt.batch):
            mine = order[first + self.rank * part:first + (self.rank + 1) * part]
            if ctx:
                self.begin_step()
            total += net.forward(images[mine], labels[mine])
            if ctx:
                net.backward(labels[mine], ready=ctx.grad_ready)
                ctx.finalize()
            else:
                net.backward(labels[mine])
            net.update(np.float32(opt.lr), np.float32(opt.momentum))
            if self.averager:
                self.averager.step()
        return total


def compare_with_local(shared, opt, images, labels):
    """Every rank trains the global batches alone and compares. Whether no rank saw more than the bound of ../c/compare.c."""
    local = Trainer(opt)
    with ddp.mark("train alone"):  # in a timeline: ddprun --trace
        for number in range(opt.epochs):
            local.epoch(images, labels, number)
    worst = np.zeros(2)
    for mine, other in zip(shared.net.values, local.net.values):
        apart = np.abs(mine.astype(np.float64) - other)
        size = np.maximum(np.sqrt(np.mean(np.square(other, dtype=np.float64))), np.abs(other))
        worst = np.fmax(worst, np.where(np.isnan(apart).any(), np.inf, [apart.max(), (apart / size).max()]))
    shared.group.allreduce(worst, "max")
    steps = opt.epochs * (len(labels) // opt.batch)
    bound = steps * opt.lr / (1 - opt.momentum) * opt.batch * np.finfo(np.float32).eps * 0.1
    if shared.rank == 0:
        print(f"against one process, any weight on any rank after {steps} steps: difference {worst[0]:.3g}, "
              f"relative {worst[1]:.3g}")
        print(f"bound {bound:.3g} (rounding of steps * lr / (1 - momentum) * batch * 0.1, see compare.c): "
              f"{'met' if worst[0] <= bound else 'EXCEEDED'}")
    return worst[0] <= bound


def main():
    opt = options()
    images, labels = idx.load(opt.data, "train")
    group = ddp.Group()
    if opt.batch % group.world_size or opt.batch > len(labels):
        sys.exit(f"--batch {opt.batch} must be a multiple of the {group.world_size} ranks, and at most the {len(labels)} digits")
    trainer = Trainer(opt, group)
    seen = len(labels) // opt.batch * opt.batch
    for number in range(opt.epochs):
        start = time.monotonic()
        total = trainer.epoch(images, labels, number)
        group.allreduce(total)
        if group.rank == 0:
            print(f"epoch {number + 1:2d}  loss {total[0] / seen:.4f}  train accuracy {100 * total[1] / seen:5.2f} %  "
                  f"{seen / (time.monotonic() - start):8.0f} images/s", flush=True)
    if group.rank == 0:
        tests, digits = idx.load(opt.data, "t10k")
        print(f"test accuracy {100 * trainer.net.forward(tests, digits)[1] / len(digits):.2f} %")
        if opt.save:
            pathlib.Path(opt.save).write_bytes(b"".join(value.tobytes() for value in trainer.net.values))
    return 0 if not opt.compare_local or compare_with_local(trainer, opt, images, labels) else 1


if __name__ == "__main__":
    sys.exit(main())
