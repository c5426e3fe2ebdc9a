"""Ranks that meet on etcd, with real servers: they train, one dies, and the servers' leader dies while they train."""
import signal
import sys
import time
import unittest

import jobs
from jobs import DEATH_S, READY, Job, expect_error, expect_fine
from etcd_servers import Servers, missing_programs  # tests/support, to which jobs leads


class Etcd(unittest.TestCase):
    def setUp(self):
        if missing := missing_programs():
            print(f"skipped: {missing}")
            sys.exit(77)

    def test_three_ranks_train_and_leave_nothing(self):
        with Servers(1) as servers, Job("etcd", 3, uri=servers.uri("train")) as job:
            for rank in range(3):
                job.start(rank, READY + ["begin", "fill=4", "finalize"])
            expect_fine(job.ranks.values())
            self.assertEqual(servers.control("get", "--prefix", "/ddp/", "--keys-only").stdout.strip(), "")

    def test_a_rank_dies(self):
        with Servers(1) as servers, Job("etcd", 3, uri=servers.uri("death")) as job:
            for rank in range(3):
                job.start(rank, READY + ["mark=ready"] + (["pause=here"] if rank == 1 else ["begin", "fill=4", "finalize"]))
            job.all_at("ready")
            killed = job.ranks[1].signal(signal.SIGKILL)
            # A connection between the ranks breaks long before the lease ends. Until then the rank is one that does not answer.
            expect_error(job.others(1).values(), ("RANK_FAILED", "TIMEOUT"), 1, killed, DEATH_S)

    def test_ranks_do_not_notice_the_death_of_the_leader(self):
        with Servers(3) as servers, Job("etcd", 3, uri=servers.uri("leader")) as job:
            for rank in range(3):
                job.start(rank, READY + ["begin", "fill=4", "finalize", "pause=half", "begin", "fill=4", "finalize"])
            job.all_at("half")
            servers.kill_leader()
            time.sleep(3)
            for worker in job.ranks.values():
                worker.go()
            expect_fine(job.ranks.values())


if __name__ == "__main__":
    jobs.main()
