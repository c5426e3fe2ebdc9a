"""Programs that the tests of ddp.ray and ddp.spark run in workers, and what both check of them. Nothing here knows an engine."""
import os
import pathlib
import signal
import sys
import threading
import time
import unittest

import numpy as np

import ddp

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from slack import SLACK  # noqa: E402  (tests/support)

SOON_S = 100 * SLACK  # for what takes seconds on an idle machine


def sums(count):
    group = ddp.Group()
    values = np.arange(count, dtype=np.float32) * (group.rank + 1)
    group.allreduce(values)
    return group.rank, group.world_size, values


def facts():
    """The environment of a rank, the secret, and where the secret might be as well."""
    ddp.Group().barrier()
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "DDP_RESTART")
    process = b"".join(pathlib.Path("/proc/self", name).read_bytes() for name in ("environ", "cmdline"))
    return ({name: os.environ.get(name) for name in names}, pathlib.Path(os.environ["DDP_SECRET_FILE"]).read_text(),
            os.environ.get("DDP_SECRET"), process, " ".join(map(str, os.environ.items())), os.environ.get("CUDA_VISIBLE_DEVICES"))


def failing(way, folder):
    """Rank 1 fails, while one rank waits for it in libddp and another one computes. Each leaves its pid in the folder."""
    group = ddp.Group()
    pathlib.Path(folder, f"{group.rank}.pid").write_text(str(os.getpid()))
    group.barrier()
    if group.rank == 1:
        if way == "raise":
            raise ValueError("the sample 17 is bad")
        if way == "exit":
            raise SystemExit(3)
        os.kill({"kill": os.getpid(), "kill the task": os.getppid()}[way], signal.SIGKILL)
    if group.rank == 2:
        time.sleep(600)  # in the program's own code
    while True:
        group.allreduce(np.ones(10, np.float32))


def restarted():
    """Fails at its first start."""
    group = ddp.Group()
    group.barrier()
    restart = ddp.environment().restart
    if restart == 0:
        group.abort("the first start")
        group.barrier()
    return restart, group.rank


def trained(rows):
    """Fits y = 3 - 2x to the rows of this rank."""
    group = ddp.Group()
    weights, grad = np.zeros(2, np.float32), np.zeros(2, np.float32)
    x, y = np.array([(row["x"], row["y"]) for row in rows], np.float32).T
    with ddp.Context(group) as ctx:
        param = ctx.register("w", weights, grad)
        ctx.commit()
        for _ in range(300):
            wrong = weights[0] + weights[1] * x - y
            grad[:] = wrong.mean(), (wrong * x).mean()
            ctx.grad_ready(param)
            ctx.finalize()
            weights -= 0.5 * grad
    return sorted(x.tolist()), weights


class EngineCase(unittest.TestCase):
    def check_sums(self, results, ranks, count):
        self.assertEqual([result[:2] for result in results], [(rank, ranks) for rank in range(ranks)])
        for _, _, values in results:
            np.testing.assert_array_equal(values, np.arange(count, dtype=np.float32) * (ranks * (ranks + 1) // 2))

    def check_environment(self, results):
        """The variables that ddprun sets; and the secret, which is one, and in no environment or command line. Returns it."""
        for rank, (told, secret, variable, process, now, _) in enumerate(results):
            self.assertEqual(told, {"RANK": str(rank), "WORLD_SIZE": str(len(results)), "LOCAL_RANK": str(rank),
                                    "LOCAL_WORLD_SIZE": str(len(results)), "DDP_RESTART": "0"})
            self.assertIsNone(variable)
            self.assertEqual((len(secret), secret), (64, results[0][1]))
            self.assertNotIn(secret.encode(), process)
            self.assertNotIn(secret, now)
        return results[0][1].encode()

    def check_two_jobs_at_once(self, run):
        """run(program, ranks, arguments)"""
        results = {}
        threads = [threading.Thread(target=lambda ranks=ranks: results.update({ranks: run(sums, ranks, (ranks * 10,))}))
                   for ranks in (2, 3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SOON_S)
        for ranks in (2, 3):
            self.check_sums(results[ranks], ranks, ranks * 10)
