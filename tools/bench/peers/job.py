"""Ranks of a torch.distributed job, and the timing of their loops: as in tools/bench/measure.h."""

import os
import sys
import time
from datetime import timedelta
from statistics import median

import processes
from processes import is_rank

WARM_UP = 3
FEWEST = 10
MOST = 20000
TURNS = 5


def require_torch():
    """Returns torch, or ends the process with one line."""
    try:
        import torch
        import torch.distributed
    except ImportError as reason:
        print(f"skipped: no PyTorch in {sys.executable} ({reason})")
        sys.exit(0)
    if not torch.distributed.is_available():
        print(f"skipped: the PyTorch in {sys.executable} has no torch.distributed")
        sys.exit(0)
    return torch


def launch(world, timeout):
    """Runs this script again as each rank. Returns the exit status."""
    return processes.run_ranks([sys.executable, *sys.argv], world, timeout)


def join():
    import torch
    import torch.distributed as dist
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{os.environ['DDP_PEER_FOLDER']}/store",
                            rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]),
                            timeout=timedelta(seconds=120))
    return dist


def now_ms():
    return 1e-6 * time.perf_counter_ns()


def warm_up(dist, loops):
    last = 0.0
    for loop in loops:
        dist.barrier()
        for _ in range(WARM_UP):
            start = now_ms()
            loop()
        last += now_ms() - start
    return last


def measure(iterations, seconds, loops):
    """A series of milliseconds for each loop: of every iteration the slowest rank's time."""
    import torch
    import torch.distributed as dist
    fit = 1e3 * seconds / max(warm_up(dist, loops), 1e-6)
    count = torch.tensor([iterations or int(min(max(fit, FEWEST), MOST))])
    dist.broadcast(count, 0)
    count = int(count)
    series = [[] for _ in loops]
    for turn in range(TURNS):
        share = count * (turn + 1) // TURNS - count * turn // TURNS
        for times, loop in zip(series, loops):
            dist.barrier()
            times.extend(loop() for _ in range(share))
    slowest = []
    for times in series:
        slowest_times = torch.tensor(times, dtype=torch.float64)
        dist.all_reduce(slowest_times, op=dist.ReduceOp.MAX)
        slowest.append(slowest_times.tolist())
    return slowest


def percentile(series, fraction):
    ordered = sorted(series)
    position = fraction * (len(ordered) - 1)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (position - below) * (ordered[above] - ordered[below])


def row(name, size, series, **more):
    """The same fields as a row of ddp-bench."""
    return {
        "name": name,
        "world": int(os.environ["WORLD_SIZE"]),
        "backend": "torch-gloo",
        "bytes": size,
        "iters": len(series),
        "median_ms": median(series),
        "p10_ms": percentile(series, 0.1),
        "p90_ms": percentile(series, 0.9),
        **more,
    }
