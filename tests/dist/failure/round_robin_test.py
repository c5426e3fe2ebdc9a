"""Groups that take turns fail as one group does: the same error on every rank, soon, naming the culprit."""
import re
import signal
import time
import unittest

import jobs
from jobs import DEATH_S, KINDS, Job, expect_error, expect_fine, expect_in_step, run_all

PARAMS = 7  # buckets, more than groups


class RoundRobin(unittest.TestCase):
    READY = ["join", f"params={PARAMS}", "commit", "steps=3"]

    def test_kill(self):
        scenarios = [(f"{phase} {kind} victim {victim}", self.kill, (phase, kind, victim))
                     for phase in ("filling", "finalize", "between", "idle") for kind in KINDS for victim in range(3)]
        run_all(scenarios, at_once=3)

    def kill(self, phase, kind, victim):
        slow = (victim + 1) % 3
        verbs = {"filling": (["begin", "fill=3", "mark=ready", "pause=here"], ["begin", "fill=3", "mark=ready", "fill=4", "finalize"]),
                 "finalize": (["begin", f"fill={PARAMS}", "mark=ready", "finalize"],) * 2,
                 "between": (["mark=ready", "pause=here"], ["mark=ready", "begin", f"fill={PARAMS}", "finalize"]),
                 "idle": (["mark=ready", "pause=here"], ["mark=ready", "watch=20000"])}
        with Job(kind, 3, groups=3) as job:
            for rank in range(3):
                busy = phase == "finalize" and rank == slow  # so that the others are surely inside
                job.start(rank, self.READY + (["begin", "fill=2", "mark=ready", "watch=20000"] if busy
                                              else verbs[phase][rank != victim]))
            job.all_at("ready")
            time.sleep(0.15 if phase == "finalize" else 0.05)
            killed = job.ranks[victim].signal(signal.SIGKILL)
            survivors = job.others(victim)
            delay = expect_error(survivors.values(), "RANK_FAILED", victim, killed, DEATH_S)
            self.expect_one_story(survivors.values())
            if phase in ("filling", "between"):
                expect_in_step(survivors.values(), step=3)
            return delay

    @staticmethod
    def expect_one_story(workers):
        """Where each of them was when it heard of it is its own."""
        stories = {re.split(r" \((?:rank \d+ was at )?bucket ", worker.error.message)[0] for worker in workers}
        if len(stories) != 1:
            raise jobs.Failure(f"{len(stories)} reasons: {stories}")

    def test_stopped(self):
        run_all([(f"stopped {kind} victim {victim}", self.stopped, (kind, victim)) for kind in KINDS for victim in (0, 2)],
                at_once=3)

    @staticmethod
    def stopped(kind, victim):
        with Job(kind, 3, timeout_ms=4000, groups=3) as job:
            for rank in range(3):
                job.start(rank, RoundRobin.READY + ["pause=ready", "begin", f"fill={PARAMS}", "finalize"])
            job.all_at("ready")
            stopped = job.ranks[victim].signal(signal.SIGSTOP)
            others = job.others(victim).values()
            for worker in others:
                worker.go()
            delay = expect_error(others, "TIMEOUT", victim, stopped, job.told_s, ["does not answer"])
            expect_in_step(others, step=3)
            job.files_may_stay = True  # the stopped rank is killed last and cannot clean up
            return delay

    def test_abort(self):
        run_all([(f"abort {kind}", self.abort, (kind,)) for kind in KINDS], at_once=3)

    @staticmethod
    def abort(kind):
        with Job(kind, 3, groups=2) as job:
            last = {0: [f"fill={PARAMS}", "finalize-abort=300"], 1: [f"fill={PARAMS}", "finalize"], 2: ["fill=1", "watch=20000"]}
            for rank in range(3):
                job.start(rank, RoundRobin.READY + ["begin"] + last[rank])
            aborted = job.ranks[0].wait_for("aborting")
            return expect_error(job.ranks.values(), "ABORTED", 0, aborted, DEATH_S, ["the test says so"])

    def test_leaving_in_good_order(self):
        run_all([(f"leave {kind}", self.leave, (kind,)) for kind in KINDS], at_once=3)

    @staticmethod
    def leave(kind):
        with Job(kind, 3, groups=3) as job:
            for rank in range(3):
                job.start(rank, RoundRobin.READY + ["barrier", f"sleep={100 * rank}"])
            expect_fine(job.ranks.values())

    def test_ranks_that_ask_for_other_numbers(self):
        with Job("tcp", 3) as job:
            for rank in range(3):
                job.start(rank, ["join"], groups=3 if rank == 1 else 2)
            expect_error(job.ranks.values(), "MISMATCH", words=["round_robin", "'3'", "'2'"])


if __name__ == "__main__":
    jobs.main()
