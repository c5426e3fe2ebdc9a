#!/usr/bin/env python3
"""Compares the PowerSGD hooks, step by step, with a second implementation in NumPy, written from docs/hooks.md.

usage: powersgd_numpy.py DRIVER      the program of powersgd_driver.cc

Everything is compared but bits: this computes in f64 and in other orders. Exit status 77: there is no NumPy here.
"""
import json
import math
import os
import subprocess
import sys
import tempfile

try:
    import numpy as np
except ImportError:
    SYSTEM = "/usr/bin/python3"  # has NumPy where the Python in the path is another
    if os.path.exists(SYSTEM) and os.path.realpath(sys.executable) != os.path.realpath(SYSTEM):
        os.execv(SYSTEM, [SYSTEM, *sys.argv])
    print("skipped: there is no NumPy (python3-numpy)")
    sys.exit(77)

SHAPES = [(20, 30), (13,), (6, 4, 3, 3), (7, 5), (1,), (40, 9), (16, 16)]
# Relative to the length of what is compared. f32: of the many roundings in P, Q and the errors, over STEPS steps.
TOLERANCE = {"f64": 1e-11, "f32": 1e-4}
STEPS = 6

PER_LAYER = ["rank=1,start=0,min_rate=0.5", "rank=2,start=2,min_rate=0.5,seed=5", "rank=4,start=1,min_rate=0.5",
             "rank=2,start=0,min_rate=0.5,orthogonalization=qr,seed=123456789012345",
             "rank=3,start=0,min_rate=0.5,orthogonalization=gram_schmidt,epsilon=0.1",
             "rank=2,start=0,min_rate=0.5,warm_start=0", "rank=2,start=0,min_rate=0.5,error_feedback=0",
             "rank=2,start=0", "rank=5,start=0,min_rate=0,warm_start=0,error_feedback=0"]
BATCHED = ["rank=1,start=0", "rank=3,start=2,min_rate=1,seed=9", "rank=2,start=0,warm_start=0,epsilon=0.01"]


def philox(counter, key):
    """Philox4x32-10 of arrays of 32-bit numbers held in uint64."""
    mask = np.uint64(0xffffffff)
    shift = np.uint64(32)
    c, k = [np.asarray(x, np.uint64) for x in counter], [np.uint64(x) for x in key]
    for _ in range(10):
        a, b = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        c = [(b >> shift) ^ c[1] ^ k[0], b & mask, (a >> shift) ^ c[3] ^ k[1], a & mask]
        k = [(k[0] + np.uint64(0x9E3779B9)) & mask, (k[1] + np.uint64(0xBB67AE85)) & mask]
    return c


def draw(rows, columns, seed, owner, step):
    element = np.arange(rows * columns, dtype=np.uint64)
    zero = np.zeros_like(element)
    words = philox([element, zero, zero + np.uint64(owner), zero + np.uint64(step)], [seed & 0xffffffff, seed >> 32])
    total = sum(word.astype(np.int64) for word in words) - (2 ** 33 - 2)
    return (total * (math.sqrt(3) / 2 ** 32)).reshape(rows, columns)


class Options:
    def __init__(self, text, whole_buckets):
        given = dict(pair.split("=") for pair in text.split(","))
        self.rank, self.start, self.seed = (int(given.get(k, d)) for k, d in (("rank", 1), ("start", 1000), ("seed", 0)))
        self.min_rate, self.epsilon = float(given.get("min_rate", 2)), float(given.get("epsilon", 0))
        self.error_feedback = given.get("error_feedback", "1") == "1"
        self.warm_start = given.get("warm_start", "1") == "1"
        self.method = given.get("orthogonalization", "auto")
        self.whole_buckets = whole_buckets

    def columns(self, n, m):
        columns = min(n, m, self.rank)
        return columns if (n + m) * columns * self.min_rate < n * m else 0

    def orthogonal(self, a):
        if self.method == "qr" or (self.method == "auto" and a.shape[1] > 2):
            return np.linalg.qr(a)[0]
        a = a.copy()
        for k in range(a.shape[1]):
            a[:, k] /= np.linalg.norm(a[:, k]) + self.epsilon
            for other in range(k + 1, a.shape[1]):
                a[:, other] -= (a[:, k] @ a[:, other]) * a[:, k]
        return a


class Reference:
    """All ranks at once: a matrix is a list with one array for each rank."""

    def __init__(self, options, mean):
        self.options, self.mean = options, mean
        self.errors, self.qs, self.step = {}, {}, 0

    def total(self, arrays):
        return sum(arrays) / (len(arrays) if self.mean else 1)

    def compress(self, owner, gradients):
        """gradients: one matrix for each rank. Returns the result."""
        o, world = self.options, len(gradients)
        n, m = gradients[0].shape
        columns = o.columns(n, m)
        if self.step < o.start or columns == 0:
            return self.total(gradients)
        kept = self.errors.get(owner, [0.0] * world)
        matrices = [g + e for g, e in zip(gradients, kept)]
        q = self.qs.get(owner)
        q = o.orthogonal(draw(m, columns, o.seed, owner, self.step) if q is None else q)
        p = o.orthogonal(sum(matrix @ q for matrix in matrices))
        own_qs = [matrix.T @ p for matrix in matrices]
        q = self.total(own_qs)
        result = p @ q.T
        if o.error_feedback:
            self.errors[owner] = [matrix - p @ own_q.T for matrix, own_q in zip(matrices, own_qs)]
        if o.warm_start:
            self.qs[owner] = q
        return result

    def run_step(self, gradients):
        """gradients[rank][param]. Returns the results of all parameters."""
        results = self.whole_bucket(gradients) if self.options.whole_buckets else [
            self.layer(i, [of_rank[i] for of_rank in gradients]) for i in range(len(SHAPES))]
        self.step += 1
        return results

    def layer(self, param, gradients):
        if len(SHAPES[param]) < 2:
            return self.total(gradients)
        n = SHAPES[param][0]
        return self.compress(param, [g.reshape(n, -1) for g in gradients]).ravel()

    def whole_bucket(self, gradients):
        """All parameters are in bucket 0, the last one first, each at a multiple of 64 bytes."""
        order, offsets, count = list(reversed(range(len(SHAPES)))), {}, 0
        for i in order:
            offsets[i] = count
            count += -(-math.prod(SHAPES[i]) // self.alignment) * self.alignment
        side = math.isqrt(count - 1) + 1
        squares = []
        for of_rank in gradients:
            flat = np.zeros(side * side)
            for i in order:
                flat[offsets[i]:offsets[i] + of_rank[i].size] = of_rank[i]
            squares.append(flat.reshape(side, side))
        result = self.compress(0, squares).ravel()
        pieces = [slice(offsets[i], offsets[i] + math.prod(SHAPES[i])) for i in range(len(SHAPES))]
        # Gaps and what is behind the last element belong to nobody: nothing is kept of them.
        if 0 in self.errors:
            for error in self.errors[0]:
                flat, inside = error.reshape(-1), np.zeros(error.size, bool)
                for piece in pieces:
                    inside[piece] = True
                flat[~inside] = 0
        return [result[piece] for piece in pieces]


def read_state(path):
    """The arrays of a safetensors file by name."""
    data = open(path, "rb").read()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + length])
    types = {"F32": np.float32, "F64": np.float64}
    arrays = {}
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = (8 + length + offset for offset in entry["data_offsets"])
            arrays[name] = np.frombuffer(data[begin:end], types[entry["dtype"]]).reshape(entry["shape"])
    return arrays


def distance(a, b):
    return np.linalg.norm(a - b) / max(np.linalg.norm(b), 1e-30)


def run_driver(driver, folder, hook, options, dtype, reduction, world):
    shapes = ",".join("x".join(map(str, shape)) for shape in SHAPES)
    done = subprocess.run([driver, folder, hook, options, dtype, reduction, str(world), str(STEPS), shapes], text=True,
                          env=dict(os.environ, DDP_LOG_LEVEL="info"), stderr=subprocess.PIPE, timeout=100)
    if done.returncode != 0:
        sys.exit(f"status {done.returncode} of {driver} {hook} {options}: {done.stderr}")
    return done.stderr


def check_log(log, hook, options):
    """The compression rate is logged by rank 0 alone, once: the first step with compression is."""
    if log.count(f"info: {hook}: after 1 step with compression") != 1:
        sys.exit(f"{hook} {options}: the compression rate should have been logged once:\n{log}")


def compare(driver, hook, text, dtype, reduction, world):
    options = Options(text, hook.startswith("batched"))
    reference = Reference(options, reduction == "mean")
    reference.alignment = 64 // (8 if dtype == "f64" else 4)
    size = sum(math.prod(shape) for shape in SHAPES)
    worst = 0.0
    with tempfile.TemporaryDirectory(prefix="ddp-powersgd-") as folder:
        check_log(run_driver(driver, folder, hook, text, dtype, reduction, world), hook, text)
        files = [np.fromfile(f"{folder}/rank{rank}").reshape(STEPS, 2, size) for rank in range(world)]
        cuts = np.cumsum([math.prod(shape) for shape in SHAPES])[:-1]
        for step in range(STEPS):
            gradients = [np.split(file[step, 0], cuts) for file in files]
            wanted = reference.run_step(gradients)
            for file in files:
                for got, want in zip(np.split(file[step, 1], cuts), wanted):
                    worst = max(worst, distance(got, want))
        worst = max([worst] + [compare_errors(reference, read_state(f"{folder}/state{rank}"), rank)
                               for rank in range(world)])
    print(f"{hook} {text} {dtype} {reduction} on {world} ranks: largest difference {worst:.1e}")
    return worst <= TOLERANCE[dtype]


def compare_errors(reference, state, rank):
    kept = {name: array for name, array in state.items() if name.startswith("error:")}
    if reference.options.whole_buckets:
        return 0.0 if bool(kept) == bool(reference.errors) else math.inf
    if len(kept) != len(reference.errors):
        return math.inf
    return max((distance(kept[f"error:p{param}"], errors[rank].ravel()) for param, errors in reference.errors.items()),
               default=0.0)


def main():
    driver = sys.argv[1]
    good = True
    for hook, all_options in (("powersgd", PER_LAYER), ("batched_powersgd", BATCHED)):
        for number, options in enumerate(all_options):
            for dtype in TOLERANCE:
                good &= compare(driver, hook, options, dtype, "mean", 2)
            if number == 1:
                good &= compare(driver, hook, options, "f64", "sum", 3)
    if not good:
        sys.exit(f"the differences should be at most {TOLERANCE}")


if __name__ == "__main__":
    main()
