"""dask_minimal.py: a distributed trainer in the workers of Dask. It fits y = w0 + w1 x to samples; each rank has its own.

    python3 dask_minimal.py
"""
import secrets

import ddp
import numpy as np
from distributed import Client, LocalCluster


def train(rank, world_size, uri, secret):
    with ddp.Store(uri, secret=secret) as store, ddp.Group(rank, world_size, store=store, secret=secret) as group:
        w, grad = np.zeros(2, np.float32), np.zeros(2, np.float32)
        with ddp.Context(group) as ctx:
            param = ctx.register("w", w, grad)
            ctx.commit()
            for step in range(500):
                x = (7 * step + rank) % 10 / 10
                wrong = w[0] + w[1] * x - (3 - 2 * x)
                grad[:] = wrong, wrong * x
                ctx.grad_ready(param)
                ctx.finalize()
                w -= 0.5 * grad
        return w


if __name__ == "__main__":
    secret = secrets.token_hex(32)
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster) as client:
        with ddp.Store("tcp://127.0.0.1:0", server=True, secret=secret) as store:  # on a cluster: an address that workers reach
            workers = list(client.scheduler_info()["workers"])
            ranks = [client.submit(train, rank, len(workers), f"tcp://127.0.0.1:{store.port}", secret, workers=[worker], pure=False)
                     for rank, worker in enumerate(workers)]
            for rank, w in enumerate(client.gather(ranks)):
                print(f"rank {rank}: y = {w[0]:.3f} {w[1]:+.3f} x")
