"""cupy_minimal.py: a whole distributed trainer in CuPy, on a GPU. It fits y = w0 + w1 x to samples; each rank has its own.

    ddprun -n 2 python3 cupy_minimal.py     every rank ends with the same w, trained on both ranks' samples
"""
import cupy
import ddp

group = ddp.Group()
gpu = ddp.environment().local_rank % cupy.cuda.runtime.getDeviceCount() if ddp.environment() else 0
with cupy.cuda.Device(gpu), cupy.cuda.Stream() as stream, ddp.Context(group) as ctx:
    ctx.set_stream(f"cuda:{gpu}", stream)  # libddp's order is this stream's
    w, grad = cupy.zeros(2, "f4"), cupy.zeros(2, "f4")
    param = ctx.register("w", w, grad)
    ctx.commit()  # every rank starts from rank 0's w
    for step in range(500):
        x = (7 * step + group.rank) % 10 / 10  # a sample of this rank's own
        wrong = w[0] + w[1] * x - (3 - 2 * x)  # prediction minus truth
        grad[0], grad[1] = wrong, wrong * x
        ctx.grad_ready_on(param, stream)  # starts the averaging over ranks
        ctx.finalize_on(stream)  # grad is now the mean, in the order of the stream
        w -= 0.5 * grad
    group.barrier()  # all ranks have come to the end
    print(f"rank {group.rank}: y = {float(w[0]):.3f} {float(w[1]):+.3f} x")
