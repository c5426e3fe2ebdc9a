"""Ranks that end in good order, too early or not, and what can go wrong before a group exists."""
import time
import unittest

import jobs
from jobs import DEATH_S, KINDS, READY, SLACK, Job, expect_error, expect_fine, run_all


class Leave(unittest.TestCase):
    """Ranks that end in good order, too early or not."""

    def test_leaving(self):
        scenarios = []
        for kind in KINDS:
            for victim in range(3):
                scenarios.append((f"exit {kind} {victim}", self.leaves, (kind, victim, "exit=0", ["begin", "fill=2"])))
                scenarios.append((f"exit while idle {kind} {victim}", self.leaves, (kind, victim, "exit=0", [])))
                scenarios.append((f"free {kind} {victim}", self.leaves, (kind, victim, "free", [])))
                scenarios.append((f"done first {kind} {victim}", self.done_first, (kind, victim)))
        run_all(scenarios, at_once=3)

    def test_all_at_once(self):
        """Ranks that free their group right after the last step, while a slower one still reads its last bytes."""
        run_all([(f"{i}: {KINDS[i % 3]}", self.ends_at_once, (KINDS[i % 3],)) for i in range(30)], at_once=4)

    @staticmethod
    def ends_at_once(kind):
        with Job(kind, 3) as job:
            for rank in range(3):
                job.start(rank, READY)
            expect_fine(job.ranks.values())

    @staticmethod
    def leaves(kind, victim, how, before):
        with Job(kind, 3) as job:
            for rank in range(3):
                mine = before + ["pause=leaving", how] if rank == victim else ["begin", "fill=4", "mark=leaving", "finalize"]
                job.start(rank, READY + ["pause=ready"] + mine)
            job.all_at("ready")
            for worker in job.ranks.values():
                worker.go()
            job.all_at("leaving")
            left = time.monotonic()
            job.ranks[victim].go()
            job.ranks[victim].end()
            return expect_error(job.others(victim).values(), "RANK_FAILED", victim, left, DEATH_S)

    @staticmethod
    def done_first(kind, victim):
        """Nobody needs a rank after the last step: its end must not disturb those who take longer, nor the store's loss."""
        with Job(kind, 3) as job:
            for rank in range(3):
                job.start(rank, READY + ([] if rank == victim else ["sleep=400", "status"]))
            expect_fine(job.ranks.values())


class Join(unittest.TestCase):
    """What can go wrong before a group exists."""

    def test_joining(self):
        scenarios = [(f"second rank {rank} {kind}", self.second, (kind, rank)) for kind in KINDS for rank in (0, 1)]
        scenarios += [(f"missing {kind}", self.missing, (kind,)) for kind in KINDS]
        scenarios += [("nobody listens", self.nobody_listens, ()), ("wrong secret", self.wrong_secret, ()),
                      ("no secret", self.wrong_secret, (None,))]
        run_all(scenarios, at_once=3)

    @staticmethod
    def second(kind, rank):
        with Job(kind, 2) as job:
            for r in range(2):
                job.start(r, ["join", "params=4", "commit", "pause=ready", "steps=3"])
            job.all_at("ready")
            impostor = job.worker(rank, ["join"], timeout=3000)
            hosts_store = kind == "tcp" and rank == 0  # then the port is what is taken
            holder = f"pid {job.ranks[rank].process.pid}"
            words = [str(job.port)] if hosts_store else [f"rank {rank}", holder]
            expect_error([impostor], "ALREADY_EXISTS", words=words)
            for worker in job.ranks.values():
                worker.go()
            expect_fine(job.ranks.values())

    @staticmethod
    def missing(kind):
        with Job(kind, 4, timeout_ms=1500) as job:
            begin = time.monotonic()
            for rank in (0, 2):
                job.start(rank, ["join"])
            return expect_error(job.ranks.values(), "TIMEOUT", 1, begin, 1.5 + 3.0 * SLACK, ["1, 3", "1500 ms"])

    @staticmethod
    def nobody_listens():
        with Job("tcp", 2, timeout_ms=1000) as job:
            begin = time.monotonic()
            rank1 = job.start(1, ["join"])
            return expect_error([rank1], ("UNAVAILABLE", "TIMEOUT"), None, begin, 1 + 2.0 * SLACK, [f"127.0.0.1:{job.port}"])

    @staticmethod
    def wrong_secret(secret="right?"):
        with Job("tcp", 2, timeout_ms=2000) as job:
            rank0 = job.start(0, ["join"], secret="right")
            rank1 = job.start(1, ["join"], **({"secret": secret} if secret else {}))
            expect_error([rank1], "PERMISSION_DENIED", words=["secret"])
            expect_error([rank0], "TIMEOUT", 1)


if __name__ == "__main__":
    jobs.main()
