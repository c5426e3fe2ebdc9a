"""The recipe for Dask as a user runs it, and with a worker that is killed.

    dask_test.py EXAMPLE
"""
import os
import pathlib
import secrets
import signal
import subprocess
import sys
import unittest

import support

support.need("numpy", "distributed")

import dask  # noqa: E402
import numpy as np  # noqa: E402
from distributed import Client, KilledWorker, LocalCluster, wait  # noqa: E402

import ddp  # noqa: E402

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from slack import SLACK  # noqa: E402  (tests/support)

SOON_S = 100 * SLACK


def failing(rank, uri, secret):
    with ddp.Store(uri, secret=secret) as store, ddp.Group(rank, 2, store=store, secret=secret) as group:
        group.barrier()
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        while True:
            group.allreduce(np.ones(10, np.float32))


class Dask(unittest.TestCase):
    def test_example(self):
        done = subprocess.run([sys.executable, "-B", sys.argv[1]], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=3 * SOON_S, check=False)
        self.assertEqual(done.returncode, 0, done.stdout)
        for rank in range(2):
            self.assertIn(f"rank {rank}: y = 3.000 -2.000 x", done.stdout)

    def test_a_killed_worker(self):
        secret = secrets.token_hex(32)
        with dask.config.set({"distributed.scheduler.allowed-failures": 0}), \
                LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster) as client, \
                ddp.Store("tcp://127.0.0.1:0", server=True, secret=secret) as store:
            workers = list(client.scheduler_info()["workers"])
            ranks = [client.submit(failing, rank, f"tcp://127.0.0.1:{store.port}", secret, workers=[worker], pure=False)
                     for rank, worker in enumerate(workers)]
            wait(ranks, timeout=SOON_S)
            self.assertIsInstance(ranks[1].exception(), KilledWorker)
            self.assertIsInstance(ranks[0].exception(), ddp.RankFailedError)
            self.assertEqual(ranks[0].exception().rank, 1)


if __name__ == "__main__":
    support.main()
