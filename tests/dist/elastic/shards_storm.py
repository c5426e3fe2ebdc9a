#!/usr/bin/env python3
"""A storm of one elastic job whose ranks own shards: one rank after another is killed at a random moment or at a named place, or leaves, and
another joins. Every rank compares all values and its own state with those of one process, after each recall and each step.

    shards_storm.py --faults 200            as many ranks are lost; --seed N, --backend tcp, --jobs 2: storms at once, of following seeds
    shards_storm.py --quick                 short ones, for the suite

A rank is lost only after the others have copies of what the last one had: two at once can be too many, and shards_test.py has that case.
By hand:

    DDP_ELASTIC_WORKER=.../dist_elastic_shard_worker DDP_ELASTIC_STORE=.../dist_elastic_store python3 shards_storm.py --faults 200
"""
import random
import re
import signal
import time

import storms
from jobs import BACKENDS, SLACK, Job

QUICK_FAULTS = 6
# Where a process can die by itself (shard_worker.c).
PLACES = ("join", "meet", "recall", "recalled", "step", "finalize", "optimizer", "publish", "commit", "keep", "kept")
FRESH = re.compile(r"(?:recalled|kept) (\d+) in (\d+)$")
ROSTER = re.compile(r"roster (\d+) step (\d+) rank (\d+) of (\d+)$")
APPLIED = re.compile(r"applied (\d+) in (\d+)$")
BAD = re.compile(r"(wrong|lost|error|left behind)")


class Rank(storms.Rank):
    fresh = 0  # the last roster in which it has recalled or kept

    def heard(self, line):
        if match := ROSTER.match(line):
            self.roster = int(match.group(1))
        elif match := FRESH.match(line):
            self.fresh = int(match.group(2))

    def step(self):
        steps = [int(match.group(1)) for line in self.lines[-50:] if (match := APPLIED.match(line))]
        return steps[-1] if steps else -1


class Storm(storms.Storm):
    def __init__(self, seed, faults, backend=None):
        chance = self.chance = random.Random(seed)
        self.seed, self.faults = seed, faults
        self.every = chance.choice((1, 1, 2, 3))
        self.world = chance.choice((3, 4, 4, 5))
        self.settings = {"backend": backend or chance.choice(BACKENDS), "max": self.world + 1, "steps": 1_000_000, "every": self.every,
                         "pause": chance.choice((300, 1500, 4000)), "size": chance.choice((20, 700, 5000, 60_000)),
                         "update": chance.choices((0, 1, 2), (6, 2, 2))[0], "accumulate": chance.choice((1, 1, 1, 2))}
        self.ranks, self.done = [], 0

    def bad(self, line):
        return BAD.match(line)

    def freshest(self):
        return max((rank.fresh for rank in self.members()), default=0)

    def start(self, job, may_die=True):
        settings = {}
        doomed = any(rank.alive and rank.settings for rank in self.ranks)  # one at a time
        if may_die and not doomed and self.chance.random() < 0.3:
            settings = {"die": self.chance.choice(PLACES), "die_at": self.chance.choice((1, 2, 20)),
                        "die_after": self.chance.choice((0, 500, 20_000))}
        self.ranks.append(Rank(job, **settings))

    def lose(self):
        """One that is in a roster, or joins, when another one has copies."""
        self.until("two ranks with copies", lambda: len([rank for rank in self.members() if rank.fresh == self.freshest()]) > 1)
        doomed = [rank for rank in self.ranks if rank.alive and rank.settings]
        alive = [rank for rank in self.ranks if rank.alive]
        victim = doomed[0] if doomed else self.chance.choice(alive)
        if doomed:  # it dies where it was told to
            deadline = time.monotonic() + 2 * SLACK
            while victim.alive and time.monotonic() < deadline:
                time.sleep(0.001)
        elif self.chance.random() < 0.15 and victim.roster > 0:
            victim.process.send_signal(signal.SIGTERM)
            self.until("a rank that leaves", lambda: not victim.alive)
        if victim.alive:
            time.sleep(self.chance.random() * 0.08)
            victim.process.kill()
        victim.process.wait()
        victim.thread.join()
        self.done += 1
        if victim.roster == 0:  # the others have lost nothing
            return
        self.until(f"a roster after {victim.roster}", lambda: all(rank.fresh > victim.roster for rank in self.members()))

    def run(self):
        with Job(**{**self.settings, "timeout": int(3000 * SLACK), "settle": int(10_000 * SLACK)}) as job:
            job.environment["DDP_ELASTIC_FIRST_WORLD"] = str(self.world)
            for _ in range(self.world):
                self.start(job, may_die=False)
            self.until("the first step", lambda: all(rank.step() >= 0 for rank in self.ranks))
            while self.done < self.faults:
                while sum(rank.alive for rank in self.ranks) < self.world:
                    self.start(job)
                if self.chance.random() < 0.5:
                    newest = self.ranks[-1]
                    self.until("a rank that joins", lambda: newest.roster > 0 or not newest.alive)
                self.lose()
            for rank in [rank for rank in self.ranks if rank.alive and rank.settings]:
                rank.process.kill()
                rank.thread.join()
            self.until("steps after the storm", lambda: self.members() and all(
                rank.step() > 0 and rank.fresh == self.freshest() for rank in self.ranks if rank.alive))
            reached = max(rank.step() for rank in self.members())
            self.until("steps after the storm", lambda: all(rank.step() > reached + 10 for rank in self.members()))
            for rank in [rank for rank in self.ranks if rank.alive]:
                rank.process.send_signal(signal.SIGTERM)
                self.until("a rank that leaves", lambda rank=rank: not rank.alive)
                rank.thread.join()
                self.until("the ranks that stay", lambda last=rank.roster: all(rank.fresh > last for rank in self.members()))
            for rank in self.ranks:
                rank.thread.join()
        self.judge()
        return self

    def judge(self):
        begun, kept = {}, {}
        for number, rank in enumerate(self.ranks):
            assert rank.process.returncode in (0, -signal.SIGKILL), (number, rank.process.returncode, rank.lines[-5:])
            for line in rank.lines:
                assert not BAD.match(line), (number, line)
                if match := ROSTER.match(line):
                    begun.setdefault(int(match.group(1)), set()).add(int(match.group(2)))
                elif match := FRESH.match(line):
                    kept[int(match.group(2))] = max(kept.get(int(match.group(2)), 0), int(match.group(1)))
                assert not line.startswith("began at") or rank.roster and line == "began at 0"
        newest = 0
        for roster in sorted(begun):
            steps = begun[roster]
            assert len(steps) == 1, (roster, steps)
            # The last step that a rank has kept may be incomplete on others.
            least = newest - self.every * self.settings["accumulate"]
            assert min(steps) >= least, f"roster {roster} begins with step {steps}, and step {newest} was kept"
            newest = max(newest, kept.get(roster, 0))
        self.steps = newest

    def told(self):
        return f"{self.steps} steps"


if __name__ == "__main__":
    storms.main(Storm, __doc__, QUICK_FAULTS, faults=200, seed=1)
