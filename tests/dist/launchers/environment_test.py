#!/usr/bin/env python3
"""Jobs without a launcher: variables of the environment, and a store that rank 0 runs.

usage: environment_test.py RANK    tests/dist/run/rank.c
"""
import pathlib
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from launchers import CLEAN  # noqa: E402  (tests/support)
from ports import free_port  # noqa: E402

RANK = sys.argv.pop(1)
WORLD, VICTIM, ROUNDS = 8, 2, 20


def start(port, rank):
    environment = {**CLEAN, "RANK": str(rank), "WORLD_SIZE": str(WORLD), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return subprocess.Popen([RANK, str(VICTIM), "9"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                            env=environment)


class Environment(unittest.TestCase):
    def test_all_name_the_rank_that_died_though_the_store_ends_with_rank_0(self):
        """All that are left exit at once, without ddp_group_free, and rank 0 may be the first to do so."""
        for _ in range(ROUNDS):
            port = free_port()
            ranks = [start(port, rank) for rank in range(WORLD)]
            try:
                for rank, process in enumerate(ranks):
                    said = process.communicate(timeout=60)[1]
                    if rank != VICTIM:
                        self.assertRegex(said, rf"(?m)^rank {VICTIM} \(pid \d+ on .*\) died", f"rank {rank}")
            finally:
                for process in ranks:
                    process.kill()
                    process.communicate()


if __name__ == "__main__":
    unittest.main(verbosity=2)
