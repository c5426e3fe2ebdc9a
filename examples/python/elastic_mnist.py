#!/usr/bin/env python3
"""Trains the network of mnist.py with processes that come and go. The result is that of one process.

    python3 elastic_mnist.py file:///tmp/digits          start some of these, kill one, start another

The first argument says where the processes meet (init_method). Without it the launcher's store is used. SIGTERM makes a
process leave without losing a step.

Unlike in mnist.py, job.begin says which step comes and who takes part. The sampler gives this rank's digits of that
step, so that no digit of an epoch comes twice or never, whoever comes and goes. The global batch stays the same; the ranks
divide it, and weigh their mean gradients by the digits that each has taken. A call that fails because a rank is lost ends
the step, and the loop begins anew.
"""
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # ranks share the cores already

import argparse
import pathlib
import signal

import numpy as np

import ddp
import idx
from mlp import MLP


def options():
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    data = pathlib.Path(__file__).resolve().parent.parent / "data" / "mnist"
    parser.add_argument("store", nargs="?", help="where the processes meet: file:///path, tcp://host:port, etcd://...")
    parser.add_argument("--data", default=data, help="folder with the four IDX files of MNIST, plain or .gz")
    parser.add_argument("--epochs", type=int, default=10, help="passes over the training digits")
    parser.add_argument("--batch", type=int, default=64, help="digits in a global batch, divided among the ranks")
    parser.add_argument("--lr", type=float, default=0.05, help="learning rate")
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--seed", type=int, default=1, help="of the first weights and of the order of the digits")
    return parser.parse_args()


class Departure:
    """Whether SIGTERM has said that this process must leave, and whether the others know."""

    def __init__(self):
        self.wanted = self.announced = False

    def listen(self):
        """Not before this rank takes part: one that waits for a place just ends."""
        signal.signal(signal.SIGTERM, self.want)

    def want(self, *_):
        self.wanted = True

    def announce(self, job):
        if self.wanted and not self.announced:
            job.announce_leave()
            self.announced = True


def share(job, net):
    """The parameters and the optimizer's momentum are the state that ranks who join get from the others."""
    ctx = ddp.Context(job.group, reduction="weighted_mean")
    for name, value, gradient, velocity in zip(net.names, net.values, net.gradients, net.velocities):
        ctx.register(name, value, gradient)
        job.add_state(name, velocity)
    ctx.commit()
    job.add_context(ctx)
    return ctx


def train(job, ctx, net, opt, images, labels):
    """Returns this rank at the end; -1 if it has left before."""
    sampler = ddp.ElasticSampler(len(labels), opt.batch, seed=opt.seed)
    departure, epoch = Departure(), -1
    while True:
        now = job.begin()  # who was left behind ends here, and may be started again
        if now.changed:
            departure.listen()
            print(f"step {now.step}: rank {now.rank} of {now.world_size}", flush=True)
        if now.step >= opt.epochs * sampler.steps_per_epoch:
            return now.rank
        if now.leaving:
            job.leave()
            return -1
        departure.announce(job)
        if epoch != now.step // sampler.steps_per_epoch:
            epoch = now.step // sampler.steps_per_epoch
            print(f"epoch {epoch + 1}: rank {now.rank} of {now.world_size}", flush=True)
        mine = sampler.batch(now.step, now.rank, now.world_size)
        try:
            ctx.set_weight(len(mine))
            ctx.step_begin()
            net.forward(images[mine], labels[mine])
            net.backward(labels[mine], ready=ctx.grad_ready)
            ctx.finalize()
        except ddp.Error:
            if not job.group.broken:
                raise  # no rank was lost: the mistake is ours
            continue  # the next begin says how it goes on
        net.update(np.float32(opt.lr), np.float32(opt.momentum))
        job.commit()


def main():
    opt = options()
    images, labels = idx.load(opt.data, "train")
    net = MLP(opt.seed)
    with ddp.Elastic(opt.store, settle=2) as job, share(job, net) as ctx:
        if train(job, ctx, net, opt, images, labels) == 0:
            tests, digits = idx.load(opt.data, "t10k")
            print(f"test accuracy {100 * net.forward(tests, digits)[1] / len(digits):.2f} %")


if __name__ == "__main__":
    main()
