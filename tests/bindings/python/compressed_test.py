"""All-to-all, and the sum of the hook "quantize" that is made of it, against NumPy, and the bytes that a rank sends in both.

usage: compressed_test.py [--worlds 2,3] [--backends shm,tcp] [--bytes 2,5] [--mpirun PROGRAM]

Every rank's results have the reference's values, and the same bits on every rank. Bytes are counted by the kernel, on the loopback of a network namespace.
"""
import argparse
import os
import pathlib
import subprocess
import sys
import tempfile

import numpy as np

import ddp

TESTS = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TESTS / "bindings"), str(TESTS / "dist/mpi")]
from jobs import run_ranks  # noqa: E402  (tests/bindings)
import run_mpi  # noqa: E402  (tests/dist/mpi)

# Bits of the mantissa, the exponent's bias, the largest number. int8 has neither.
FORMATS = {"int8": (0, 0, 127), "e4m3": (3, 7, 448), "e5m2": (2, 15, 57344)}
BLOCK = 96
SIZES = (5000, 7, 96, 1, 97, 64)
MOST = 0.27  # of the bytes of an allreduce of f32


def rounded(q, mantissa, bias):
    """To the nearest number of the format, ties to even, from a grid that is far finer."""
    if not bias:
        return np.rint(np.rint(q * 2.0**15) / 2.0**15)
    exponent = np.frexp(q)[1]
    unit = np.ldexp(1.0, np.maximum(exponent - 1, 1 - bias) - mantissa)
    fine = unit * 2.0**(mantissa - 23)
    return np.rint(np.rint(q / fine) * fine / unit) * unit


def packed(x, name):
    """x after it was packed: f32, in blocks of BLOCK numbers that share a scale."""
    mantissa, bias, most = FORMATS[name]
    result = np.zeros_like(x)
    most = np.float32(most)
    for begin in range(0, len(x), BLOCK):
        block = x[begin:begin + BLOCK]
        largest = np.abs(block).max()
        if largest > 0:
            q = rounded((block / largest * most).astype("f8"), mantissa, bias).astype("f4")
            result[begin:begin + BLOCK] = q * (np.float32(1) / most) * largest
    return result


def mean_of(inputs, name):
    """Each rank packs, the owner adds up in the order of ranks, and packs once more."""
    total = np.zeros_like(inputs[0])
    for x in inputs:
        total += packed(x, name)
    return packed(total * np.float32(1 / len(inputs)), name)


def gradient(rank, param, step):
    random = np.random.default_rng([rank, param, step])
    return (random.standard_normal(SIZES[param]) * 2.0**random.integers(-6, 3, SIZES[param])).astype("f4")


def check_exchange(group):
    rank, world = group.rank, group.world_size
    for dtype in ("u1", "f2", "f4", "i8", "c16"):
        numbers = [(np.arange(world * 37) * 3 + 5 * r).astype(dtype) for r in range(world)]
        recv = np.zeros(world * 37, dtype)
        group.all_to_all(recv, numbers[rank])
        np.testing.assert_array_equal(recv, np.concatenate([x[37 * rank:37 * (rank + 1)] for x in numbers]))
        counts = np.array([[(3 * i + 5 * j + i * j) % 11 for j in range(world)] for i in range(world)])
        of = [np.split((np.arange(c.sum()) + 100 * i).astype(dtype), np.cumsum(c)[:-1]) for i, c in enumerate(counts)]
        expected = np.concatenate([parts[rank] for parts in of])
        recv = np.zeros(len(expected), dtype)
        group.all_to_all(recv, np.concatenate(of[rank]), counts[:, rank], counts[rank])
        np.testing.assert_array_equal(recv, expected)


def check_sums(group):
    for name in FORMATS:
        with ddp.Context(group, bucket_cap=9000, first_bucket_cap=9000) as ctx:
            gradients = [np.zeros(size, "f4") for size in SIZES]
            params = [ctx.register(f"p{p}", None, grad) for p, grad in enumerate(gradients)]
            ctx.use_hook("quantize", type=name, block=BLOCK)
            ctx.commit()
            for step in range(2):
                for p in reversed(range(len(SIZES))):
                    gradients[p][:] = gradient(group.rank, p, step)
                    ctx.grad_ready(params[p])
                ctx.finalize()
                for p, result in enumerate(gradients):
                    expected = mean_of([gradient(r, p, step) for r in range(group.world_size)], name)
                    np.testing.assert_array_equal(result, expected, f"{name}, step {step}, parameter {p}")
                    everyones = np.zeros((group.world_size, len(result)), "f4")
                    group.allgather(everyones, result)
                    for bits in everyones.view("u4"):  # 0 and -0 are equal, but other bits
                        np.testing.assert_array_equal(bits, result.view("u4"))


def bytes_on_loopback():
    for line in pathlib.Path("/proc/net/dev").read_text(encoding="ascii").splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == "lo":
            return int(numbers.split()[8])
    raise AssertionError("there is no loopback")


def sent_by(group, hook, size):
    """Bytes of all ranks in three steps."""
    with ddp.Context(group) as ctx:
        grad = np.ones(size, "f4")
        param = ctx.register("p", None, grad)
        if hook:
            ctx.use_hook(hook)
        ctx.commit()
        before = 0
        for step in range(4):
            group.barrier()
            if step == 1:
                before = bytes_on_loopback()
            group.barrier()
            ctx.grad_ready(param)
            ctx.finalize()
        group.barrier()
        return bytes_on_loopback() - before


def rank_of_job(backend, task):
    if backend == "hierarchical":
        os.environ["DDP_HOST_ID"] = f"host {int(os.environ['RANK']) % 2}"
    with ddp.Group(backend=backend, timeout=60) as group:
        if task == "values":
            check_exchange(group)
            check_sums(group)
        else:
            size = 1 << 20
            plain, quantized = sent_by(group, None, size), sent_by(group, "quantize", size)
            each = plain / group.world_size / 3
            if group.rank == 0:
                print(f"{group.world_size} ranks: allreduce sends {each:.0f} bytes a rank, quantize {quantized / plain:.4f} of that", flush=True)
            assert quantized <= MOST * plain, f"quantize sends {quantized / plain:.3f} of what allreduce sends"


def numbers(text):
    first, dash, last = text.partition("-")
    return list(range(int(first), int(last) + 1)) if dash else [int(number) for number in text.split(",") if number]


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", type=numbers, default=[2, 3])
    parser.add_argument("--backends", default="shm,tcp,gloo,hierarchical")
    parser.add_argument("--bytes", type=numbers, default=[2, 5], help="worlds whose bytes are counted")
    parser.add_argument("--mpirun", help="also the backend mpi, under this program")
    return parser.parse_args()


def run_under_mpirun(mpirun, world):
    run_mpi.MPIRUN = mpirun
    with tempfile.TemporaryFile("w+") as output:
        job = run_mpi.start(world, [sys.executable, "-B", __file__, "mpi", "values"], stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        try:
            status = job.wait(120)
        finally:
            run_mpi.end(job)
        output.seek(0)
        assert status == 0, output.read()


def main():
    options = parse()
    command = (sys.executable, "-B", __file__)
    for backend in options.backends.split(","):
        for world in options.worlds:
            run_ranks(world, *command, backend, "values")
            print(f"{backend}, {world} ranks: the reference's values", flush=True)
    for world in options.worlds if options.mpirun else ():
        run_under_mpirun(options.mpirun, world)
        print(f"mpi, {world} ranks: the reference's values", flush=True)
    alone = ("unshare", "-n", "--", "sh", "-c", 'ip link set lo up && exec "$@"', "sh")
    if subprocess.run([*alone, "true"], check=False, capture_output=True).returncode != 0:
        print("bytes are not counted: network namespaces cannot be made here")
        return
    for world in options.bytes:
        done = subprocess.run([*alone, os.environ["DDPRUN"], "-n", str(world), *command, "tcp", "bytes"], capture_output=True,
                              text=True, timeout=150, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        print(done.stdout.strip(), flush=True)


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[2] in ("values", "bytes"):
        rank_of_job(*sys.argv[1:])
    else:
        main()
