"""Ranks that end in good order, too early or not."""
import time
import unittest

import jobs
from jobs import DEATH_S, KINDS, READY, Job, expect_error, expect_fine, run_all


class Leave(unittest.TestCase):
    """Ranks that end in good order, too early or not."""

    def test_leaving(self):
        scenarios = []
        for kind in KINDS:
            for victim in range(3):
                ended = [f"rank {victim} (pid", "ended: its process exited with status"]
                join = ["DDP_CONTEXT_JOIN", "ddp_join"]
                scenarios.append((f"exit {kind} {victim}", self.leaves, (kind, victim, "exit=0", ["begin", "fill=2"], ended + join)))
                scenarios.append((f"exit while idle {kind} {victim}", self.leaves, (kind, victim, "exit=0", [], ended + ["status 0"])))
                scenarios.append((f"exit badly {kind} {victim}", self.leaves, (kind, victim, "exit=3", [], ended + ["status 3"], join)))
                scenarios.append((f"_exit {kind} {victim}", self.leaves, (kind, victim, "exit-at-once=0", [], ["died"], ended[1:])))
                scenarios.append((f"free {kind} {victim}", self.leaves,
                                  (kind, victim, "free", [], [f"rank {victim} left the group while rank", "bucket", *join])))
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
    def leaves(kind, victim, how, before, words, never=("died",)):
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
            job.ranks[victim].end(status=int(how.partition("=")[2] or 0))
            return expect_error(job.others(victim).values(), "RANK_FAILED", victim, left, DEATH_S, words, never)

    def test_exit_of_the_process_with_the_programs_own_store(self):
        """libddp does not know which rank has the store; that rank tells how it ends all the same."""
        run_all([(f"exit={status}", self.exits_with_the_store, (status,)) for status in (0, 3)], at_once=2)

    @staticmethod
    def exits_with_the_store(status):
        with Job("tcp", 3) as job:
            rank0 = job.start(0, ["serve"] + READY + ["pause=leaving", f"exit={status}"])
            rank0.wait_for("serving")
            for rank in (1, 2):
                job.start(rank, ["open"] + READY + ["mark=leaving", "watch=20000"])
            rank0.go()
            job.all_at("leaving")
            left = time.monotonic()
            rank0.go()
            rank0.end(status=status)
            return expect_error(job.others(0).values(), "RANK_FAILED", 0, left, DEATH_S,
                                ["rank 0 (pid", f"ended: its process exited with status {status}"], ["died"])

    def test_dropping_the_context(self):
        """In the middle of a step: whether a bucket is on its way or not, the others need not wait for the timeout."""
        run_all([(f"{kind} {' '.join(before)}", self.drops, (kind, before))
                 for kind in KINDS for before in (["fill=2"], ["ready=0"])], at_once=3)

    @staticmethod
    def drops(kind, before):
        with Job(kind, 3) as job:
            for rank in range(3):
                mine = before + ["pause=dropping", "drop", "sleep=2500"]
                job.start(rank, READY + (mine if rank == 1 else ["fill=4", "mark=dropping", "finalize"]))
            job.all_at("dropping")
            dropped = time.monotonic()
            job.ranks[1].go()
            delay = expect_error(job.others(1).values(), "ABORTED", 1, dropped, DEATH_S, ["freed its context in the middle of step 2"])
            job.ranks[1].end()
            return delay

    def test_all_look_for_the_cause_at_once(self):
        """Rank 0 has agreed with the others on the cause, and its store ends, while rank 2 still asks there."""
        words = ["rank 1 left the group while rank", "bucket"]
        run_all([(f"turn {turn}", self.leaves, ("tcp", 1, "free", [], words)) for turn in range(24)], at_once=8)

    @staticmethod
    def done_first(kind, victim):
        """Nobody needs a rank after the last step: its end must not disturb those who take longer, nor the store's loss."""
        with Job(kind, 3) as job:
            for rank in range(3):
                job.start(rank, READY + ([] if rank == victim else ["sleep=400", "status"]))
            expect_fine(job.ranks.values())


if __name__ == "__main__":
    jobs.main()
