"""Ranks that die: the same error on every other rank, soon, naming the dead one."""
import os
import random
import signal
import time
import unittest

import jobs
from jobs import DEATH_S, KINDS, READY, SLACK, Job, expect_error, expect_fine, expect_in_step, run_all


class Kill(unittest.TestCase):
    """kill -9 of one rank. In each phase `slow` is alive and elsewhere, so that the others are surely inside the call."""

    PHASES = ("joining", "commit", "filling", "finalize", "between", "idle")

    def test_every_rank_in_every_phase(self):
        scenarios = []
        for kind in KINDS:
            for world in (2, 3, 4) if kind == "tcp" else (3, 4) if kind == "file" else (2, 3):
                for victim in sorted({0, world // 2, world - 1}):
                    scenarios += [(f"{phase} {kind} world {world} victim {victim}", self.scenario, (phase, kind, world, victim))
                                  for phase in self.PHASES if phase != "joining" or world > 2]
        run_all(scenarios, at_once=3)

    @staticmethod
    def verbs(phase, role):
        """The work of victim, slow and the others. Everyone marks 'ready' before the kill."""
        if phase == "joining":
            return ["mark=ready", "join"]
        if phase == "commit":
            return ["join", "params=4", "mark=ready", "watch=20000" if role == "slow" else "commit"]
        if phase == "filling":
            return READY + ["begin", "fill=2", "mark=ready"] + (["pause=here"] if role == "victim" else ["fill=2", "finalize"])
        if phase == "finalize":
            last = ["fill=1", "mark=ready", "watch=20000"] if role == "slow" else ["fill=4", "mark=ready", "finalize"]
            return READY + ["begin"] + last
        if phase == "between":
            return READY + ["mark=ready"] + (["pause=here"] if role == "victim" else ["begin", "fill=4", "finalize"])
        return READY + ["mark=ready", "pause=here" if role == "victim" else "watch=20000"]

    def scenario(self, phase, kind, world, victim):
        # In "joining" slow does not come at all, so it must not be the one that hosts the store.
        slow = (victim + 1) % world or (1 if phase == "joining" and victim != 1 else 0)
        starting = [rank for rank in range(world) if phase != "joining" or rank != slow]
        with Job(kind, world) as job:
            for rank in starting:
                job.start(rank, self.verbs(phase, "victim" if rank == victim else "slow" if rank == slow else "other"))
            job.all_at("ready")
            time.sleep(1.0 if phase == "idle" else 0.15 if phase in ("commit", "finalize") else 0.05)
            if phase == "joining":
                time.sleep(0.5 * SLACK)  # until everyone is surely inside
            killed = job.ranks[victim].signal(signal.SIGKILL)
            survivors = job.others(victim)
            delay = expect_error(survivors.values(), "RANK_FAILED", victim, killed, DEATH_S)
            if phase in ("filling", "finalize", "between"):
                expect_in_step([w for r, w in survivors.items() if phase != "finalize" or r != slow], step=2)
            if phase == "joining" and kind == "launcher":
                late = job.start(slow, ["join"])
                expect_error([late], "RANK_FAILED", victim, time.monotonic(), DEATH_S)
            return delay

    def test_in_an_all_to_all(self):
        run_all([(f"all_to_all {kind} world {world} victim {victim}", self.exchanging, (kind, world, victim))
                 for kind, world in (("tcp", 2), ("tcp", 4), ("file", 3)) for victim in (0, world - 1)], at_once=3)

    def exchanging(self, kind, world, victim):
        with Job(kind, world) as job:
            for rank in range(world):
                job.start(rank, ["join", "exchange=100000", "mark=ready", "pause=here" if rank == victim else "exchange=100000"])
            job.all_at("ready")
            time.sleep(0.05)
            killed = job.ranks[victim].signal(signal.SIGKILL)
            return expect_error(job.others(victim).values(), "RANK_FAILED", victim, killed, DEATH_S)

    def test_while_values_travel(self):
        """The victim has updated its shard, and the others wait for the new values."""
        run_all([(f"publish {kind} world {world} victim {victim}", self.publishing, (kind, world, victim))
                 for kind, world in (("tcp", 2), ("tcp", 3), ("file", 3)) for victim in (0, world - 1)], at_once=3)

    def publishing(self, kind, world, victim):
        with Job(kind, world, sharded=1) as job:
            for rank in range(world):
                job.start(rank, READY + ["begin", "fill=4", "finalize", "mark=ready"] + (["pause=here"] if rank == victim else ["publish"]))
            job.all_at("ready")
            time.sleep(0.05)
            killed = job.ranks[victim].signal(signal.SIGKILL)
            return expect_error(job.others(victim).values(), "RANK_FAILED", victim, killed, DEATH_S, words=["ddp_publish"])

    def test_the_next_job_can_use_the_file_of_one_whose_ranks_were_all_killed(self):
        with Job("file", 3) as job:
            for rank in range(3):
                job.start(rank, READY + ["mark=ready", "watch=20000"])
            job.all_at("ready")
            for worker in job.ranks.values():
                worker.signal(signal.SIGKILL)
            for worker in job.ranks.values():
                worker.process.wait()
            for rank in range(3):
                job.start(rank, READY)
            expect_fine(job.ranks.values())


class RandomKill(unittest.TestCase):
    """A rank dies anywhere in a step. Never a hang, never the wrong rank."""

    def test_fifty_times(self):
        seed = int(os.environ.get("DDP_FAILURE_SEED", random.randrange(1 << 30)))
        print(f"seed {seed}", flush=True)
        source = random.Random(seed)
        scenarios = []
        for i in range(50):
            kind, victim, wait = KINDS[i % 3], source.randrange(3), source.uniform(0, 0.12)
            scenarios.append((f"{i}: {kind} victim {victim} after {wait * 1000:.1f} ms", self.scenario, (kind, victim, wait)))
        run_all(scenarios, at_once=2)

    @staticmethod
    def scenario(kind, victim, wait):
        with Job(kind, 3, size=20_000) as job:
            for rank in range(3):
                job.start(rank, ["join", "params=6", "commit", "mark=ready", "steps=100000000"])
            job.all_at("ready")
            time.sleep(wait)
            killed = job.ranks[victim].signal(signal.SIGKILL)
            return expect_error(job.others(victim).values(), "RANK_FAILED", victim, killed, DEATH_S)


if __name__ == "__main__":
    jobs.main()
