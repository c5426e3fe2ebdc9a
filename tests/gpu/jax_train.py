#!/usr/bin/env python3
"""Steps of training with ddp.jax on a GPU, every mean checked on the host, and the time of a step:

    ddprun -n 2 python3 jax_train.py [--backend nccl] [--pmean] [--layers 8] [--width 1024] [--batch 256] [--steps 20] [--device cpu]

Gradients come with overlap(), without, and with memory that mean() may take. --pmean: beside jax.lax.pmean, XLA's own way over NCCL, under
jax.distributed. All ranks may share one GPU. Prints the median milliseconds of a step of each loop on rank 0. --device cpu plays the script.
Prints "skipped: REASON" where there is no JAX, or it sees no GPU.
"""
import argparse
import os
import socket
import statistics
import sys
import time

import ddp


def skip(why):
    print(f"skipped: {why}")
    sys.exit(0)


os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # the ranks share the GPU
try:
    import jax
    import numpy as np
    from jax import numpy as jnp
except ImportError as missing:
    skip(missing)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--device", default="gpu")
    parser.add_argument("--pmean", action="store_true")
    for name, value in (("layers", 8), ("width", 1024), ("batch", 256), ("steps", 20)):
        parser.add_argument(f"--{name}", type=int, default=value)
    return parser.parse_args()


def join_jax(group):
    """All ranks as processes of one JAX, on a port that rank 0 has found."""
    port = np.zeros(1, np.int64)
    if group.rank == 0:
        with socket.socket() as found:
            found.bind(("", 0))
            port[0] = found.getsockname()[1]
    group.broadcast(port)
    host = os.environ.get("MASTER_ADDR", "127.0.0.1")
    jax.distributed.initialize(f"{host}:{port[0]}", group.world_size, group.rank)


def loss(params, x):
    for weight, bias in params:
        x = jnp.tanh(x @ weight + bias)
    return (x * x).mean()


def check(what, means, grads, group):
    """Against the mean that the ranks make of these gradients on the host."""
    for i, (mean, grad) in enumerate(zip(jax.tree.leaves(means), jax.tree.leaves(grads))):
        expected = np.array(grad)
        group.allreduce(expected, "avg")
        apart = np.abs(np.asarray(mean) - expected).max() / max(np.abs(expected).max(), 1e-30)
        if not apart < 1e-5:
            sys.exit(f"{what}: gradient {i} is {apart:.2g} from the mean of the ranks' gradients")
        if mean.devices() != {jax.local_devices()[0]}:
            sys.exit(f"{what}: gradient {i} is on {mean.devices()}")


def timed(step, batches):
    """Median milliseconds."""
    times = []
    for x in batches:
        start = time.perf_counter()
        jax.block_until_ready(step(x))
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times[len(times) // 4:])  # the first ones compile, and connect


def main():
    options = arguments()
    alone = ddp.Group(name="host")  # for what is checked, and the port
    if options.pmean:
        join_jax(alone)
    if jax.local_devices()[0].platform != options.device:
        skip(f"JAX sees no {options.device}")
    rng = np.random.default_rng(1)
    sizes = [(options.width, options.width)] * options.layers
    params = [(jnp.asarray(rng.normal(0, n ** -0.5, (n, m)), "f4"), jnp.zeros(m, "f4")) for n, m in sizes]
    batches = np.random.default_rng(2 + alone.rank).normal(size=(options.steps, options.batch, options.width)).astype("f4")
    with ddp.Group(backend=options.backend) as group:
        parallel = ddp_jax().DataParallel(params, group)
        place = parallel.context.parameters[0].device
        if (place == "cpu") != (options.device == "cpu"):
            sys.exit(f"gradients are on {place}")
        params = parallel.params
        plain = jax.jit(jax.grad(loss))
        overlapped = jax.jit(jax.grad(lambda params, x: loss(parallel.overlap(params), x)))
        loops = {"alone": lambda x: plain(params, x), "overlap()": lambda x: parallel.mean(overlapped(params, x)),
                 "mean()": lambda x: parallel.mean(plain(params, x)), "mean(donate=True)": lambda x: parallel.mean(plain(params, x), donate=True)}
        if options.pmean:
            summed = jax.pmap(lambda params, x: jax.lax.pmean(jax.grad(loss)(params, x), "ranks"), axis_name="ranks", in_axes=(None, 0))
            loops["jax.lax.pmean"] = lambda x: jax.tree.map(lambda grad: grad[0], summed(params, x[None]))
        for x in batches[:3]:
            for name, step in loops.items():
                if name != "alone":
                    check(name, step(x), plain(params, x), alone)
        group.barrier()
        times = {name: timed(step, batches) for name, step in loops.items()}
        group.barrier()
        if group.rank == 0:
            print(f"JAX {jax.__version__}, {group.world_size} ranks over {group.backend}, gradients on {place}: all means are right")
            print("ms of a step: " + ", ".join(f"{name} {ms:.2f}" for name, ms in times.items()))
        parallel.close()
    alone.close()


def ddp_jax():
    import ddp.jax
    return ddp.jax


if __name__ == "__main__":
    main()
