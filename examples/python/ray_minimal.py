"""ray_minimal.py: a distributed trainer in the actors of Ray. It fits y = w0 + w1 x to samples that Ray reads.

    python3 ray_minimal.py          on a cluster: RAY_ADDRESS=auto
"""
import ddp
import ddp.ray
import numpy as np
import ray


def train(shards, steps):
    group = ddp.Group()  # as under ddprun
    x, y = np.array([(row["x"], row["y"]) for row in shards[group.rank].iter_rows()], np.float32).T
    w, grad = np.zeros(2, np.float32), np.zeros(2, np.float32)
    with ddp.Context(group) as ctx:
        param = ctx.register("w", w, grad)
        ctx.commit()
        for _ in range(steps):
            wrong = w[0] + w[1] * x - y
            grad[:] = wrong.mean(), (wrong * x).mean()
            ctx.grad_ready(param)
            ctx.finalize()
            w -= 0.5 * grad
    return w


if __name__ == "__main__":
    ray.init()
    samples = ray.data.from_items([{"x": i / 20, "y": 3 - 2 * i / 20} for i in range(20)])
    results = ddp.ray.launch(train, 2, (samples.streaming_split(2, equal=True), 500))
    for rank, w in enumerate(results):
        print(f"rank {rank}: y = {w[0]:.3f} {w[1]:+.3f} x")
