#!/usr/bin/env python3
"""Steps of training of CuPy's, numba's or JAX's arrays on a GPU through the Python package, every number checked:

    ddprun -n 2 python3 python_arrays.py cupy|numba|jax [--backend shm]

CuPy registers arrays, writes gradients on a stream of its own, one in an array and one in its bucket, and a hook works on its bucket's
stream. numba's arrays have __cuda_array_interface__ alone. JAX's gradients are arrays that nobody may write: a hook reduces from them into
the bucket, or libddp copies them there; CuPy copies the means for JAX. All ranks may share one GPU. A world of 1, 2, 4 ... ranks: their numbers are exact. Prints "skipped:
REASON" where the library is not there, or sees no GPU.
"""
import argparse
import os
import sys

import ddp

SHAPE, VIEW, STEPS, RATE, GPU = (300, 41), (1000,), 3, 0.5, "cuda:0"


def skip(why):
    print(f"skipped: {why}")
    sys.exit(0)


def ramp(library, shape, start):
    """Small whole numbers."""
    count = 1
    for extent in shape:
        count *= extent
    return (library.arange(count, dtype="float32") % 61 + start).reshape(shape)


def check(what, got, expected):
    wrong = int((got != expected).sum())
    if wrong:
        sys.exit(f"{what}: {wrong} of {expected.size} elements are wrong")


def doubled(cupy):
    """A hook that gives twice the mean."""

    def hook(group, bucket):
        with cupy.cuda.ExternalStream(bucket.stream):
            flat = cupy.from_dlpack(bucket.buffer)
            flat *= 2
        return group.allreduce(bucket.buffer, bucket.op, async_op=True)

    return hook


def train_cupy(group, cupy, factor, hook=None):
    rank, world = group.rank, group.world_size
    stream = cupy.cuda.Stream(non_blocking=True)
    with ddp.Context(group) as ctx, stream:
        ctx.set_stream(GPU, stream)
        weight, grad = ramp(cupy, SHAPE, 7 * rank), cupy.zeros(SHAPE, "float32")
        whole = ctx.register("weight", weight, grad)
        inside = ctx.register("inside", shape=VIEW, dtype="f32", device=GPU)
        ctx.commit()
        ctx.set_hook(hook)
        expected = ramp(cupy, SHAPE, 0)  # rank 0's
        check("weight after commit", weight, expected)
        for step in range(STEPS):
            ctx.step_begin()
            view = cupy.from_dlpack(ctx.grad_view(inside))
            view[...] = ramp(cupy, VIEW, rank - step)
            ctx.grad_ready_on(inside, stream)
            grad[...] = ramp(cupy, SHAPE, rank + step)
            ctx.grad_ready_on(whole, stream)
            ctx.finalize_on(stream)
            weight -= RATE * grad
            mean = (world - 1) / 2  # of the ranks' numbers
            check(f"gradient in step {step}", grad, factor * ramp(cupy, SHAPE, mean + step))
            check(f"gradient in its bucket in step {step}", view, factor * ramp(cupy, VIEW, mean - step))
            expected -= RATE * factor * ramp(cupy, SHAPE, mean + step)
            check(f"weight after step {step}", weight, expected)


def train_jax(group, jax, device, copy, copied):
    """copy(ctx, param, array): into the bucket, and announced; or None: a hook reads the array itself. copied(view): for JAX."""
    rank, world = group.rank, group.world_size
    gradients = {}

    def from_jax(hook_group, bucket):
        for each in bucket.gradients:
            hook_group.allreduce(each.array, bucket.op, send=gradients[each.parameter])

    with ddp.Context(group) as ctx:
        params = [ctx.register(name, shape=shape, dtype="f32", device=device) for name, shape in (("a", SHAPE), ("b", VIEW))]
        ctx.commit()
        if copy is None:
            ctx.set_hook(from_jax)
        for step in range(STEPS):
            ctx.step_begin()
            for p, shape in zip(params, (SHAPE, VIEW)):
                gradients[p] = ramp(jax.numpy, shape, rank + step)
                if copy is None:
                    ctx.grad_ready(p)
                else:
                    copy(ctx, p, gradients[p])
            ctx.finalize()
            for p, shape in zip(params, (SHAPE, VIEW)):
                mean = jax.dlpack.from_dlpack(copied(ctx.grad_view(p)))
                check(f"gradient in step {step}", mean, ramp(jax.numpy, shape, (world - 1) / 2 + step))
            gradients.clear()


def train_numba(group, cuda, numpy):
    """One parameter with arrays of numba's, one whose gradients are given from them, and read back into one."""
    rank, world = group.rank, group.world_size
    stream = cuda.stream()

    @cuda.jit
    def write(array, value):
        i = cuda.grid(1)
        if i < array.size:
            array[i] = i % 61 + value

    def written(array, value):
        write[(array.size + 127) // 128, 128, stream](array, value)
        return array

    def expect(what, array, start):
        stream.synchronize()
        check(what, array.copy_to_host(), ramp(numpy, VIEW, start))

    with ddp.Context(group) as ctx:
        ctx.set_stream(GPU, stream)
        weight, grad, given, result = (cuda.device_array(VIEW, "float32") for _ in range(4))
        whole = ctx.register("weight", written(weight, 7.0 * rank), grad)
        inside = ctx.register("inside", shape=VIEW, dtype="f32", device=GPU)
        ctx.commit()
        expect("weight after commit", weight, 0)
        for step in range(STEPS):
            ctx.step_begin()
            ctx.put_on(inside, written(given, float(rank - step)), stream)
            written(given, -1.0)
            written(grad, float(rank + step))
            ctx.grad_ready_on(whole, stream)
            ctx.finalize_on(stream)
            ctx.get_on(inside, result, stream)
            expect(f"gradient in step {step}", grad, (world - 1) / 2 + step)
            expect(f"gradient that was put in step {step}", result, (world - 1) / 2 - step)


def by_libddp(cupy):
    """Copies a JAX array into a bucket."""

    def copy(ctx, param, array):
        ctx.put_on(param, array, cupy.cuda.get_current_stream())

    return copy


def try_numba(group):
    try:
        import numpy
        from numba import cuda
        if not cuda.is_available():
            skip("numba sees no GPU")
        import numba
    except Exception as error:  # pylint: disable=broad-exception-caught
        skip(f"numba: {error!r}")
    train_numba(group, cuda, numpy)
    return f"numba {numba.__version__}"


def try_cupy(group):
    try:
        import cupy
        cupy.cuda.runtime.getDeviceCount()
    except Exception as error:  # pylint: disable=broad-exception-caught # whatever it is, there is no CuPy with a GPU
        skip(f"CuPy: {error!r}")
    train_cupy(group, cupy, 1)
    train_cupy(group, cupy, 2, doubled(cupy))
    return f"CuPy {cupy.__version__}"


def try_jax(group, device):
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # the ranks share the GPU
    try:
        import jax
        jax.devices("cpu" if device == "cpu" else "gpu")
        cupy = None
        if device != "cpu":
            import cupy
    except Exception as error:  # pylint: disable=broad-exception-caught
        skip(f"JAX, and CuPy which copies for it: {error!r}")
    if device == "cpu":
        train_jax(group, jax, device, None, lambda view: view)
    else:
        for copy in (None, by_libddp(cupy)):
            train_jax(group, jax, device, copy, lambda view: cupy.from_dlpack(view).copy())
    return f"JAX {jax.__version__}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", choices=("cupy", "numba", "jax"))
    parser.add_argument("--backend", default="shm")
    parser.add_argument("--device", default=GPU, help="cpu: for JAX, without a GPU")
    arguments = parser.parse_args()
    with ddp.Group(backend=arguments.backend) as group:
        if group.world_size & (group.world_size - 1):
            sys.exit("the number of ranks must be a power of two")
        attempts = {"cupy": lambda: try_cupy(group), "numba": lambda: try_numba(group), "jax": lambda: try_jax(group, arguments.device)}
        what = attempts[arguments.library]()
        group.barrier()
        if group.rank == 0:
            print(f"{what}, {group.world_size} ranks: all numbers are right")


if __name__ == "__main__":
    main()
