#!/usr/bin/env python3
"""Steps of training with ddp.tinygrad on a GPU, every mean checked on the host:

    ddprun -n 2 python3 tinygrad_train.py [--backend nccl] [--device CUDA]

The backward pass runs under TinyJit, too. All ranks may share one GPU. --device CPU plays the script. Prints "skipped: REASON" where there
is no tinygrad, or it has no such device.
"""
import argparse
import sys

import ddp

STEPS = 6


def skip(why):
    print(f"skipped: {why}")
    sys.exit(0)


try:
    import numpy as np
    from tinygrad import Device, Tensor, TinyJit, nn
    from tinygrad.helpers import Context
except ImportError as missing:
    skip(missing)


class Network:
    def __init__(self, device, seed):
        draw = np.random.default_rng(seed).standard_normal
        self.weights = [Tensor(draw(shape).astype("f4"), device=device).realize() for shape in ((30, 500), (500, 7), (1, 7))]

    def __call__(self, x):
        first, last, bias = self.weights
        return (x @ first).tanh() @ last + bias


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--device", default="CUDA")
    options = parser.parse_args()
    try:
        Device[options.device]
    except Exception as error:  # pylint: disable=broad-except # whatever it is, there is no such device
        skip(f"tinygrad has no {options.device}: {error!r}")
    from ddp.tinygrad import DataParallel
    with ddp.Group(name="host") as host, ddp.Group(backend=options.backend) as group:
        model = Network(options.device, group.rank)
        parallel = DataParallel(model, group)
        place = parallel.context.parameters[0].device
        if (place == "cpu") != (options.device == "CPU"):
            sys.exit(f"gradients are on {place}")
        for weight, first in zip(model.weights, Network(options.device, 0).weights):
            if not np.array_equal(weight.numpy(), first.numpy()):
                sys.exit("a weight is not rank 0's")

        def backward(x):
            for weight in model.weights:
                weight.grad = None
            loss = model(x).square().mean()
            loss.backward()
            return loss.realize(*[weight.grad for weight in model.weights])

        draw = np.random.default_rng(10 + group.rank).standard_normal
        with Context(TRAINING=1):
            for step, function in enumerate([backward] * STEPS + [TinyJit(backward)] * STEPS):
                function(Tensor(draw((16, 30)).astype("f4"), device=options.device).realize())
                expected = [np.array(weight.grad.numpy()) for weight in model.weights]
                parallel.average()
                for weight, mine in zip(model.weights, expected):
                    host.allreduce(mine, "avg")
                    if not np.allclose(weight.grad.numpy(), mine, rtol=1e-5, atol=1e-7):
                        sys.exit(f"step {step}: a gradient is not the mean over ranks")
        parallel.close()
        if group.rank == 0:
            print(f"tinygrad on {options.device}, {group.world_size} ranks over {group.backend}, gradients on {place}: all means are right")


if __name__ == "__main__":
    main()
