"""A step of a model in JAX whose gradients leave the jitted backward pass one by one, as a trace.

    ddprun -n 2 python3 jax_overlap.py [--trace FILE] [--layers 8] [--width 768] [--backend BACKEND]

Prints when each gradient came, counted from the beginning of the backward pass, when the pass ended, and which part of the time in which
buckets travelled was before that end (ddp_stats.overlap_ns / comm_ns), on each rank. --trace writes rank 0's last step for
chrome://tracing or Perfetto: the backward pass, the gradients, and each bucket from its hook to its result.
"""
import argparse
import json
import time

import jax
import jax.numpy as jnp
import numpy

import ddp
import ddp.jax

BATCH = 256


class Recorder:
    """The events of a step, in microseconds of one clock."""

    def __init__(self):
        self.events = []

    def add(self, name, lane, start, end=None, **facts):
        event = {"name": name, "pid": 0, "tid": lane, "ts": start / 1e3, "args": facts}
        self.events.append({**event, "ph": "X", "dur": (end - start) / 1e3} if end else {**event, "ph": "i", "s": "t"})

    def hook(self, group, bucket):
        """The default hook, which notes when a bucket begins and ends to travel."""
        index, start = bucket.index, time.perf_counter_ns()
        names = [gradient.parameter.name for gradient in bucket.gradients]
        work = group.allreduce(bucket.buffer, bucket.op, async_op=True)
        return work.then(lambda: self.add(f"bucket {index}", "buckets", start, time.perf_counter_ns(), holds=names))


def loss(params, x):
    for weight in params:
        x = jnp.tanh(x @ weight)
    return (x * x).mean()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trace")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--backend", default="auto")
    options = parser.parse_args()
    rng = numpy.random.default_rng(1)
    weights = [jnp.asarray(rng.normal(0, options.width ** -0.5, (options.width, options.width)), "f4") for _ in range(options.layers)]
    group = ddp.Group(backend=options.backend)
    parallel = ddp.jax.DataParallel(weights, group, bucket_cap=4 * options.width ** 2)
    x = jnp.asarray(rng.normal(size=(BATCH, options.width)), "f4")
    backward = jax.jit(jax.grad(lambda params, x: loss(parallel.overlap(params), x)))
    came = []
    announce = parallel._announce  # pylint: disable=protected-access

    def noted(param, *where):
        came.append((param, time.perf_counter_ns()))
        return announce(param, *where)

    parallel._announce = noted  # pylint: disable=protected-access
    for step in range(6):
        last = step == 5
        recorder = Recorder()
        if last:
            parallel.context.set_hook(recorder.hook)
        came.clear()
        group.barrier()
        start = time.perf_counter_ns()
        grads = jax.block_until_ready(backward(parallel.params, x))
        end = time.perf_counter_ns()
        parallel.mean(grads)
    stats = parallel.context.stats()
    for rank in range(group.world_size):
        group.barrier()
        if rank != group.rank:
            continue
        print(f"rank {rank}: a backward pass of {(end - start) / 1e6:.1f} ms; gradients came after "
              f"{', '.join(f'{(at - start) / 1e6:.1f}' for _, at in came)} ms; {stats.overlap_ns / max(1, stats.comm_ns):.0%} of "
              f"{stats.comm_ns / 1e6:.1f} ms of communication was before its end", flush=True)
    if options.trace and group.rank == 0:
        recorder.add("backward pass", "JAX", start, end)
        for param, at in came:
            recorder.add(f"gradient of {parallel.context.parameters[param].name}", "gradients", at)
        with open(options.trace, "w", encoding="utf-8") as file:
            json.dump({"traceEvents": recorder.events, "displayTimeUnit": "ms"}, file)


if __name__ == "__main__":
    main()
