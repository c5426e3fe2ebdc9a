"""A rank that sleeps through the failure of the others: stopped at a random moment, for longer than the timeout, and continued when they
have given up and freed their memory. It returns an error, or the right numbers.

    DDP_FAILURE_WORKER=... DDP_FAILURE_BACKEND=shm DDP_FAILURE_STOPS=500 python3 sleep_test.py Sleep
"""
import os
import random
import signal
import time
import unittest

import jobs
from jobs import Failure, Job, run_all

STOPS = int(os.environ.get("DDP_FAILURE_STOPS", "24"))
SEED = int(os.environ.get("DDP_FAILURE_SEED", "0"))


class Sleep(unittest.TestCase):
    TIMEOUT_MS = 2000  # joining is bounded by it, too, also beside a build

    def test_at_random_moments(self):
        run_all([(f"stop {SEED + number}", self.stop, (SEED + number,)) for number in range(STOPS)], at_once=4)

    def stop(self, seed):
        source = random.Random(seed)
        world = source.choice((2, 3))
        hierarchical = jobs.BACKEND == "hierarchical"
        if hierarchical:
            world += 1  # one host has two ranks
        victim = source.randrange(world)
        size = source.choice((10, 3000, 60_000))
        # A store of the job's own goes on while rank 0 is stopped.
        with Job("launcher", world, self.TIMEOUT_MS, size=size, views=source.randint(0, 1)) as job:
            for rank in range(world):
                job.start(rank, ["join", "params=4", "commit", "mark=ready", "train=100000000"])
            job.all_at("ready")
            time.sleep(source.uniform(0.05, 0.3))
            sleeper = job.ranks[victim]
            sleeper.signal(signal.SIGSTOP)
            for worker in job.others(victim).values():
                worker.end()
            sleeper.signal(signal.SIGCONT)
            sleeper.end()
            for worker in job.ranks.values():
                if worker.values.get("wrong") != 0 or not worker.error:
                    raise Failure(f"{worker.name}, size {size}, world {world}, rank {victim} slept:\n{worker.story()}")


if __name__ == "__main__":
    jobs.main(max(170, 2 * STOPS))  # more stops than ctest asks for are asked for by hand
