"""minimal.py: a whole distributed trainer. It fits y = w0 + w1 x to samples; each rank has its own.

    ddprun -n 2 python3 minimal.py          every rank ends with the same w, trained on both ranks' samples
"""
import ddp
import numpy as np

group = ddp.Group()  # rank and world size from the launcher; alone without one
w, grad = np.zeros(2, np.float32), np.zeros(2, np.float32)

with ddp.Context(group) as ctx:
    param = ctx.register("w", w, grad)
    ctx.commit()  # every rank starts from rank 0's w
    for step in range(500):
        x = (7 * step + group.rank) % 10 / 10  # a sample of this rank's own
        wrong = w[0] + w[1] * x - (3 - 2 * x)  # prediction minus truth
        grad[:] = wrong, wrong * x
        ctx.grad_ready(param)  # starts the averaging over ranks
        ctx.finalize()  # grad is now the mean
        w -= 0.5 * grad

print(f"rank {group.rank}: y = {w[0]:.3f} {w[1]:+.3f} x")
