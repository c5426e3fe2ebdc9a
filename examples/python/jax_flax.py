"""jax_flax.py: handwritten digits in Flax and optax, on a GPU if JAX has one.

    ddprun -n 2 python3 jax_flax.py       two processes; each takes the GPU of its number on this machine
"""
import pathlib

import ddp
import idx
import jax
import numpy as np
import optax
from ddp.jax import DataParallel
from flax import linen as nn

EPOCHS, BATCH = 2, 64
FOLDER = pathlib.Path(__file__).resolve().parent.parent / "data" / "mnist"

told = ddp.environment()
devices = jax.local_devices()
jax.config.update("jax_default_device", devices[(told.local_rank if told else 0) % len(devices)])


class Network(nn.Module):
    @nn.compact
    def __call__(self, x):
        for width in (128, 64):
            x = nn.tanh(nn.Dense(width)(x))
        return nn.Dense(10)(x)


network = Network()
images, labels = idx.load(FOLDER, "train")
parallel = DataParallel(network.init(jax.random.key(1), images[:1]))
rank, world, params = parallel.group.rank, parallel.group.world_size, parallel.params
optimizer = optax.sgd(0.05, momentum=0.9)
state = optimizer.init(params)


def loss(params, x, y):
    scores = network.apply(parallel.overlap(params), x)  # each gradient is on its way while JAX computes the others
    return optax.softmax_cross_entropy_with_integer_labels(scores, y).mean()


@jax.jit
def update(params, state, grads):
    updates, state = optimizer.update(grads, state)
    return optax.apply_updates(params, updates), state


gradients = jax.jit(jax.grad(loss))
sampler = ddp.DistributedSampler(len(labels), parallel.group, ends="drop")
for epoch in range(EPOCHS):
    sampler.set_epoch(epoch)
    order, part = np.array(list(sampler)), BATCH // world
    for first in range(0, len(order) - part + 1, part):
        mine = order[first:first + part]
        grads = parallel.mean(gradients(params, images[mine], labels[mine]), donate=True)
        params, state = update(params, state, grads)

parallel.group.barrier()
if rank == 0:
    tests, digits = idx.load(FOLDER, "t10k")
    right = (np.argmax(network.apply(params, tests), 1) == digits).mean()
    print(f"test accuracy {100 * right:.2f} % on {devices[0].platform}")
