#!/usr/bin/env python3
"""Trains on the digits of examples/data/mnist and averages gradients in one of N steps. Prints the losses as JSON.

    ddprun -n 2 train_digits.py --batch 8 --lr 0.02 --sync-every 1,4 --steps 300      a row for each

A small ResNet in PyTorch with ddp.torch.DistributedDataParallel; without PyTorch the perceptron of examples/python in NumPy.
"""
import argparse
import contextlib
import json
import pathlib
import sys

import numpy as np

import ddp

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"
sys.path.insert(0, str(EXAMPLES / "python"))
import idx  # noqa: E402  (examples/python)


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=8, help="of each rank")
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--sync-every", default="1", metavar="N,N,...")
    parser.add_argument("--steps", type=int, default=300, help="backward passes")
    return parser.parse_args()


class WithTorch:
    """A small ResNet."""
    name = "a small ResNet in PyTorch"

    def __init__(self, group, options):
        import torch
        import networks
        from ddp.torch import DistributedDataParallel
        self.torch = torch
        torch.set_num_threads(1)
        torch.manual_seed(1)
        self.parallel = DistributedDataParallel(networks.for_digits(), process_group=group, broadcast_buffers=False)
        self.optimizer = torch.optim.SGD(self.parallel.parameters(), lr=options.lr)

    def step(self, images, labels, sync):
        torch = self.torch
        with contextlib.nullcontext() if sync else self.parallel.no_sync():
            pictures = torch.from_numpy(images.reshape(-1, 1, 28, 28))
            loss = torch.nn.functional.cross_entropy(self.parallel(pictures), torch.from_numpy(labels))
            loss.backward()
        if sync:
            self.optimizer.step()
            self.optimizer.zero_grad()
        return loss.item()


class WithNumpy:
    """The perceptron of the examples. Its gradients add up here, and their sum is put into the context."""
    name = "a perceptron in NumPy"

    def __init__(self, group, options):
        from mlp import MLP
        self.net, self.rate, self.context = MLP(1), np.float32(options.lr), ddp.Context(group)
        for name, value in zip(self.net.names, self.net.values):
            self.context.register(name, value)
        self.context.commit()
        self.sums = [np.zeros_like(value) for value in self.net.values]
        self.own = self.net.gradients

    def step(self, images, labels, sync):
        loss, _ = self.net.forward(images, labels)
        self.net.gradients = self.own
        self.net.backward(labels)
        for total, gradient in zip(self.sums, self.own):
            total += gradient
        if sync:
            self.average()
        return loss / len(labels)

    def average(self):
        self.context.step_begin()
        for index in reversed(range(len(self.sums))):
            self.context.put(index, self.sums[index])
        self.context.finalize()
        self.net.gradients = [np.asarray(self.context.grad_view(index)) for index in range(len(self.sums))]
        self.net.update(self.rate, np.float32(0))
        for total in self.sums:
            total[:] = 0


def trainer(group, options):
    try:
        return WithTorch(group, options)
    except ImportError:
        return WithNumpy(group, options)


def train(group, options, images, labels, every):
    """The same first weights and the same digits for every number of steps."""
    model, source, losses = trainer(group, options), np.random.default_rng(1000 + group.rank), []
    for step in range(1, options.steps + 1):
        mine = source.integers(len(labels), size=options.batch)
        losses.append(model.step(images[mine], labels[mine], step % every == 0))
    means = np.array(losses)
    group.allreduce(means, "avg")
    if group.rank == 0:
        print(json.dumps({"name": "digits", "model": model.name, "world": group.world_size, "batch": options.batch, "lr": options.lr,
                          "sync_every": every, "losses": means.tolist()}), flush=True)


def main():
    options = parse()
    group = ddp.Group(backend="auto")
    images, labels = idx.load(EXAMPLES / "data/mnist", "train")
    for every in map(int, options.sync_every.split(",")):
        train(group, options, images, labels.astype(np.int64), every)


if __name__ == "__main__":
    main()
