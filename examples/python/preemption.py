"""preemption.py: a trainer that a cluster may take off its machines. A signal to ddprun makes all ranks write a checkpoint, or end,
after the same step. The next start goes on from there, with the numbers of a training that nobody has interrupted.

    ddprun -n 2 --checkpoint-on SIGUSR1 --stop-on SIGTERM python3 preemption.py FILE [STEPS]

The model is that of minimal.py.
"""
import os
import sys
import time

import ddp
import numpy as np

path, steps = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 500
group = ddp.Group()
w, grad, first = np.zeros(2, np.float32), np.zeros(2, np.float32), np.zeros(1, np.int64)
if group.rank == 0 and os.path.exists(path):
    with np.load(path) as saved:
        w[:], first[:] = saved["w"], saved["step"]
group.broadcast(first)
step = int(first[0])

with ddp.Context(group, votes=True) as ctx:
    param = ctx.register("w", w, grad)
    ctx.commit()  # every rank goes on with rank 0's w
    print(f"rank {group.rank}: from step {step}", flush=True)
    any_rank = ddp.Vote(0)
    while step < steps and not any_rank & ddp.Vote.STOP:
        x = np.float32((7 * step + group.rank) % 10) / np.float32(10)
        wrong = w[0] + w[1] * x - (3 - 2 * x)
        time.sleep(0.002)  # a model that takes longer
        grad[:] = wrong, wrong * x
        ctx.grad_ready(param)
        ctx.finalize()
        w -= 0.02 * grad
        step += 1
        any_rank = ctx.votes().any  # the same on every rank
        if any_rank & (ddp.Vote.CHECKPOINT | ddp.Vote.STOP):
            if group.rank == 0:
                with open(path + ".new", "wb") as file:
                    np.savez(file, w=w, step=step)
                os.replace(path + ".new", path)  # a process that is killed meanwhile leaves the checkpoint before
            print(f"rank {group.rank}: checkpoint after step {step}", flush=True)

how = "stopped" if step < steps else "done"
print(f"rank {group.rank}: {how} after step {step}, y = {w[0]:.8g} {w[1]:+.8g} x")
