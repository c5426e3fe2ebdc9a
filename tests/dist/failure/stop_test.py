"""Ranks that stop, are busy elsewhere or abort: the same error on every rank, in time, naming the culprit."""
import signal
import time
import unittest

import jobs
from jobs import DEATH_S, KINDS, READY, SLACK, Failure, Job, expect_error, expect_in_step, run_all


class Stop(unittest.TestCase):
    """A rank that is there and does not come: stopped, or busy with something else."""

    TIMEOUT_MS = 4000

    def test_stopped_or_busy(self):
        scenarios = [(f"stopped {kind} victim {victim}", self.stopped, (kind, victim)) for kind in KINDS for victim in range(3)]
        scenarios += [(f"busy {kind} victim {victim}", self.busy, (kind, victim)) for kind, victim in
                      (("tcp", 0), ("tcp", 1), ("file", 2), ("launcher", 0))]
        run_all(scenarios, at_once=4)

    def stopped(self, kind, victim):
        with Job(kind, 3, timeout_ms=self.TIMEOUT_MS) as job:
            for rank in range(3):
                job.start(rank, READY + ["pause=ready", "begin", "fill=4", "finalize"])
            job.all_at("ready")
            stopped = job.ranks[victim].signal(signal.SIGSTOP)
            others = job.others(victim).values()
            for worker in others:
                worker.go()
            delay = expect_error(others, "TIMEOUT", victim, stopped, job.told_s, ["does not answer"])
            expect_in_step(others, step=2)
            job.files_may_stay = True  # the stopped rank is killed last and cannot clean up
            return delay

    def busy(self, kind, victim):
        with Job(kind, 3, timeout_ms=self.TIMEOUT_MS) as job:
            for rank in range(3):
                busy = [f"sleep={2 * job.timeout_ms + 1000}"] if rank == victim else []
                job.start(rank, READY + ["mark=ready"] + busy + ["begin", "fill=4", "finalize"])
            ready = job.all_at("ready")
            others = job.others(victim).values()
            delay = expect_error(others, "TIMEOUT", victim, ready, job.told_s,
                                 ["alive but did not get there", "DDP_CONTEXT_JOIN", "ddp_join"])
            expect_error([job.ranks[victim]], "TIMEOUT", victim)
            return delay

    def test_freeing_beside_a_stopped_store(self):
        """In the middle of a step, where a rank tells the others why it goes: a second at most, as the header says."""
        run_all([(f"drop {kind}", self.drops, (kind,)) for kind in ("tcp", "launcher")], at_once=2)

    @staticmethod
    def drops(kind):
        with Job(kind, 3) as job:
            for rank in range(3):
                job.start(rank, READY + ["begin", "fill=2", "pause=dropping", "drop", "mark=dropped"])
            job.all_at("dropping")
            server = job.extra[0] if kind == "launcher" else job.ranks[0]
            server.signal(signal.SIGSTOP)
            begin = time.monotonic()
            others = [worker for worker in job.ranks.values() if worker is not server]
            for worker in others:
                worker.go()
            delay = max(worker.wait_for("dropped") for worker in others) - begin
            if delay > 1.0 + 1.5 * SLACK:
                raise Failure(f"freeing the context took {delay:.2f} s")
            for worker in others:
                worker.end()
            return delay


class Abort(unittest.TestCase):
    """An abort ends what the others and the own main thread wait for."""

    def test_from_another_thread(self):
        for kind in KINDS:
            # Other programs may keep this host's cores busy for a moment: the best of three counts.
            delay = min(self.scenario(kind) for _ in range(3))
            print(f"abort {kind}: {delay * 1000:.1f} ms", flush=True)
            self.assertLess(delay, 0.2 * SLACK)

    @staticmethod
    def scenario(kind):
        with Job(kind, 3) as job:
            last = {0: ["fill=4", "finalize-abort=300"], 1: ["fill=4", "finalize"], 2: ["fill=1", "watch=20000"]}
            for rank in range(3):
                job.start(rank, READY + ["begin"] + last[rank])
            aborted = job.ranks[0].wait_for("aborting")
            return expect_error(job.ranks.values(), "ABORTED", 0, aborted, DEATH_S, ["the test says so"])


if __name__ == "__main__":
    jobs.main()
