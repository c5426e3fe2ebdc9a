"""jax_mnist.py: handwritten digits in JAX and optax. Each gradient is on its way while JAX computes the others.

    ddprun -n 2 python3 jax_mnist.py      two processes, each on the GPU of its number on this machine, if JAX has one; in the end rank 0
                                          trains alone and compares the weights
"""
import pathlib

import ddp
import idx
import jax
import numpy as np
import optax
from ddp.jax import DataParallel
from jax import numpy as jnp

EPOCHS, BATCH, WIDTHS = 2, 64, (784, 128, 64, 10)
FOLDER = pathlib.Path(__file__).resolve().parent.parent / "data" / "mnist"


def first_weights():
    draw = np.random.default_rng(1).standard_normal
    return [{"w": (draw((n, m)) / n**0.5).astype("f4"), "b": np.zeros(m, "f4")} for n, m in zip(WIDTHS, WIDTHS[1:])]


def scores(params, x):
    for layer in params[:-1]:
        x = jnp.tanh(x @ layer["w"] + layer["b"])
    return x @ params[-1]["w"] + params[-1]["b"]


def loss(params, x, y):
    return optax.softmax_cross_entropy_with_integer_labels(scores(params, x), y).mean()


def train(params, gradients, rank, world, images, labels):
    """gradients(params, x, y): of this rank's part of a global batch, averaged over all parts."""
    optimizer = optax.sgd(0.05, momentum=0.9)
    state = optimizer.init(params)
    update = jax.jit(optimizer.update)
    sampler = ddp.DistributedSampler(len(labels), rank=rank, world_size=world, ends="drop")
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        order, part = np.array(list(sampler)), BATCH // world
        for first in range(0, len(order) - part + 1, part):
            mine = order[first:first + part]
            updates, state = update(gradients(params, images[mine], labels[mine]), state)
            params = optax.apply_updates(params, updates)
    return params


told = ddp.environment()
devices = jax.local_devices()
jax.config.update("jax_default_device", devices[(told.local_rank if told else 0) % len(devices)])
images, labels = idx.load(FOLDER, "train")
parallel = DataParallel(first_weights())
rank, world = parallel.group.rank, parallel.group.world_size
backward = jax.jit(jax.grad(lambda params, x, y: loss(parallel.overlap(params), x, y)))
params = train(parallel.params, lambda *batch: parallel.mean(backward(*batch)), rank, world, images, labels)

if rank == 0:
    tests, digits = idx.load(FOLDER, "t10k")
    print(f"test accuracy {100 * (np.argmax(scores(params, tests), 1) == digits).mean():.2f} %")
    alone = train(first_weights(), jax.jit(jax.grad(loss)), 0, 1, images, labels)
    apart = jax.tree.map(lambda a, b: float(abs(a - b).max()), params, alone)
    print(f"against one process: difference {max(jax.tree.leaves(apart)):.2g}")
parallel.group.barrier()
