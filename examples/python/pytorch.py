#!/usr/bin/env python3
"""Trains a PyTorch model data-parallel through libddp, without PyTorch's own distributed package.

    ddprun -n 2 python3 pytorch.py --compare-local

DataParallel below is all that it takes: PyTorch says when a gradient has been added to `parameter.grad`, libddp averages it
while the backward pass goes on, and the optimizer finds the mean in `parameter.grad`. Gradients may be set to None, zeroed in
place, or kept and added to, as with PyTorch alone.
"""
import argparse
import pathlib
import sys

import torch
from torch import nn

import ddp
import idx


class DataParallel:
    """The gradients of a model's parameters, averaged over the ranks of a group.

    To add up the gradients of several backward passes, run all but the last `with parallel.ctx.no_sync():`.
    """

    def __init__(self, model, group):
        self.ctx = ddp.Context(group)
        self.parameters = {}
        self.nodes = []
        for name, tensor in model.named_parameters():
            if tensor.requires_grad:
                parameter = self.ctx.register(name, tensor)
                self.parameters[parameter] = tensor
                # The node of the graph that adds to tensor.grad. Its hook runs once in each backward pass, after that. A hook of
                # the tensor would run before it, and tensor.grad may already be the bucket that the hook fills.
                node = tensor.expand_as(tensor).grad_fn.next_functions[0][0]
                node.register_hook(lambda *_, parameter=parameter: self.ready(parameter))
                self.nodes.append(node)  # PyTorch does not keep it, and the hook goes with it
        for name, tensor in model.named_buffers():
            self.ctx.register_buffer(name, tensor)
        self.ctx.commit()  # every rank starts from rank 0's model

    def ready(self, parameter):
        """Its gradient is in .grad: in its bucket since the last step, or in memory of PyTorch's, of which put copies it."""
        self.ctx.put(parameter, self.parameters[parameter].grad.contiguous())

    def begin(self):
        """Before the forward pass. Buckets may move here; a .grad that was in one is then memory like any other."""
        self.ctx.step_begin()

    def finish(self):
        """After the backward pass: every .grad is the mean over ranks, where it lies in its bucket."""
        self.ctx.finalize()
        for parameter, tensor in self.parameters.items():
            tensor.grad = torch.from_dlpack(parameter.view())


def make_model():
    torch.manual_seed(1)
    return nn.Sequential(nn.Unflatten(1, (1, 28)), nn.Conv2d(1, 8, 5, stride=2), nn.GELU(), nn.Conv2d(8, 16, 5, stride=2),
                         nn.GELU(), nn.Flatten(), nn.Linear(256, 64), nn.GELU(), nn.Linear(64, 10))


def train(model, images, labels, opt, group=None):
    """Trains on every rank's part of each batch; group None: on all of it."""
    parallel = DataParallel(model, group) if group else None
    rank, world = (group.rank, group.world_size) if group else (0, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    part = opt.batch // world
    for first in range(0, min(opt.steps * opt.batch, len(labels) - opt.batch + 1), opt.batch):
        mine = slice(first + rank * part, first + (rank + 1) * part)
        optimizer.zero_grad(set_to_none=True)
        if parallel:
            parallel.begin()
        loss = nn.functional.cross_entropy(model(images[mine]), labels[mine])
        loss.backward()
        if parallel:
            parallel.finish()
        optimizer.step()
    return model


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    data = pathlib.Path(__file__).resolve().parent.parent / "data" / "mnist"
    parser.add_argument("--data", default=data, help="folder with the four IDX files of MNIST")
    parser.add_argument("--batch", type=int, default=64, help="digits in a global batch, divided among the ranks")
    parser.add_argument("--steps", type=int, default=125)
    parser.add_argument("--compare-local", action="store_true", help="train without libddp afterwards, and compare")
    opt = parser.parse_args()
    torch.set_num_threads(1)  # ranks share the cores already

    def tensors(name):
        images, labels = idx.load(opt.data, name)
        return torch.from_numpy(images).reshape(-1, 28, 28), torch.from_numpy(labels.astype("int64"))

    images, labels = tensors("train")
    group = ddp.Group()
    model = train(make_model(), images, labels, opt, group)
    if group.rank == 0:
        tests, digits = tensors("t10k")
        with torch.no_grad():
            print(f"test accuracy {100 * (model(tests).argmax(1) == digits).double().mean().item():.2f} %")
    if not opt.compare_local:
        return 0
    local = train(make_model(), images, labels, opt)
    with torch.no_grad():
        apart = [(a - b).abs().max() for a, b in zip(model.parameters(), local.parameters())]
    worst = torch.stack(apart).max().reshape(1)
    group.allreduce(worst, "max")
    good = worst.item() <= 1e-4  # rounding: another order of additions. One gradient that is not averaged moves weights by 0.01
    if group.rank == 0:
        print(f"against one process: difference {worst.item():.3g}, bound 0.0001 {'met' if good else 'EXCEEDED'}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
