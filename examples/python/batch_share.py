"""batch_share.py: ranks of different speed train on one global batch. The last rank takes three times as long for a sample, and soon
gets a third of the samples of another one.

    ddprun -n 3 python3 batch_share.py [STEPS]

The model is that of minimal.py. Any number of ranks, with any shares, trains the same w.
"""
import sys
import time

import ddp
import numpy as np

SAMPLES = 84
steps = int(sys.argv[1]) if len(sys.argv) > 1 else 60
group = ddp.Group()
rank, world = group.rank, group.world_size
seconds = 3e-3 if rank == world - 1 > 0 else 1e-3  # that a sample takes
w, grad = np.zeros(2, np.float32), np.zeros(2, np.float32)
with ddp.Context(group, reduction="weighted_mean") as ctx:
    param = ctx.register("w", w, grad)
    ctx.share_batch(SAMPLES)
    ctx.commit()
    before, since, since_step = 0, 0.0, 0
    for step in range(steps):
        mine = ctx.batch_share()
        if len(mine) != before or step == steps - 1:
            now = time.monotonic()
            if step > 0:
                print(f"rank {rank}: {before} of {SAMPLES} samples, {1e3 * (now - since) / (step - since_step):.1f} ms a step")
            before, since, since_step = len(mine), now, step
        ctx.set_weight(len(mine))  # before each step
        ctx.step_begin()
        time.sleep(seconds * len(mine))
        x = ((7 * step + np.array(mine)) % 10).astype(np.float32) / np.float32(10)
        wrong = w[0] + w[1] * x - (3 - 2 * x)
        grad[:] = wrong.mean(), (wrong * x).mean()
        ctx.grad_ready(param)
        ctx.finalize()  # grad is now the mean of the global batch
        w -= 0.5 * grad
print(f"rank {rank}: y = {w[0]:.4f} {w[1]:+.4f} x")
