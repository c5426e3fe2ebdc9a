#!/usr/bin/env python3
"""A storm of one elastic job whose ranks train apart and do outer steps of fragments (outer_worker.c): ranks are killed at random moments or at
named places, or leave, and others join. At the end the turns that were applied are computed again, by one process in plain numbers, and every
turn that a rank has told of is compared: its outer parameters, and the bits of its state with those of other ranks.

    outer_storm.py --faults 100             so many ranks are lost; --seed N, --backend tcp, --jobs 2: storms at once, of following seeds
    outer_storm.py --quick                  short ones, for the suite

By hand:

    DDP_ELASTIC_WORKER=.../dist_elastic_outer_worker DDP_ELASTIC_STORE=.../dist_elastic_store python3 outer_storm.py --faults 100
"""
import random
import re
import signal
import time

import storms
from jobs import BACKENDS, SLACK, Job

QUICK_FAULTS = 6
PLACES = ("join", "meet", "step", "averager", "averaged", "commit")  # outer_worker.c
PARAMS, RATE, MOMENTUM = 6, 0.7, 0.9
ROSTER = re.compile(r"roster (\d+) step (\d+) rank (\d+) of (\d+) after \S+ ms$")
TURN = re.compile(r"turn (\d+) in (\d+) of (\d+): (\w+) (\S+)$")
# Fragments of equal size, delay and alpha in percent.
SETTINGS = ((3, 2, 50), (1, 0, 0), (2, 5, 0), (6, 1, 25), (1, 11, 50), (3, 0, 75))
PERIOD, SIZE = 12, 10


class Rank(storms.Rank):
    turn = 0  # the roster of its last turn

    def heard(self, line):
        if match := ROSTER.match(line):
            self.roster = int(match.group(1))
        elif match := TURN.match(line):
            self.turn = int(match.group(2))


def replay(history, fragments, delay, alpha):
    """The sum of the outer parameters after each turn. history: (steps, world, roster) of turns in order; a roster begins with the outer
    parameters."""
    count = PARAMS * SIZE
    x, u = [0.0] * count, [0.0] * count
    models, roster, begin, sums = [], None, 0, {}
    for end, world, now in history:
        if now != roster:
            models = [list(x) for _ in range(world)]
        roster = now
        sent = 0 if begin == 0 else end - 1 - delay
        mean = []
        for step in range(begin, end):
            for rank, model in enumerate(models):
                for i in range(count):
                    model[i] -= 0.01 * ((step * 31 + rank * 17 + i // SIZE * 7 + i % SIZE) % 23 - 11)
            if step == sent:
                mean = [sum(values) / world for values in zip(*models)]
        turn = (sent // (PERIOD // fragments) - 1) % fragments
        for i in range(count):
            if begin == 0:
                x[i] = mean[i]
            elif i // SIZE // (PARAMS // fragments) == turn:
                d = x[i] - mean[i]
                u[i] = MOMENTUM * u[i] + d
                x[i] -= RATE * (d + MOMENTUM * u[i])
            else:
                continue
            for model in models:
                model[i] = x[i] if begin == 0 else alpha * model[i] + (1 - alpha) * x[i]
        begin = end
        sums[end] = sum(x)
    return sums


class Storm(storms.Storm):
    def __init__(self, seed, faults, backend=None):
        chance = self.chance = random.Random(seed)
        self.seed, self.faults = seed, faults
        self.world = chance.choice((3, 4, 4, 5))
        self.fragments, self.delay, self.percent = SETTINGS[seed % len(SETTINGS)]
        self.settings = {"backend": backend or chance.choice(BACKENDS), "max": self.world + 1, "steps": 1_000_000, "size": SIZE,
                         "pause": chance.choice((300, 1500)), "period": PERIOD, "fragments": self.fragments, "delay": self.delay,
                         "alpha_percent": self.percent}
        self.ranks, self.done = [], 0

    def bad(self, line):
        return line.startswith("error")

    def start(self, job, may_die=True):
        settings = {}
        doomed = any(rank.alive and rank.settings for rank in self.ranks)  # one at a time
        if may_die and not doomed and self.chance.random() < 0.4:
            settings = {"die": self.chance.choice(PLACES), "die_at": self.chance.choice((1, 2, 20)),
                        "die_after": self.chance.choice((0, 500, 20_000))}
        self.ranks.append(Rank(job, **settings))

    def fill(self, job):
        while sum(rank.alive for rank in self.ranks) < self.world:
            self.start(job)

    def lose(self, job):
        """One that is in a roster, or joins, when another one that stays has the outer parameters."""
        victim = self.chance.choice([rank for rank in self.ranks if rank.alive])
        self.until("a rank that stays", lambda: self.fill(job) or any(
            rank.turn == rank.roster and not rank.settings for rank in self.members() if rank is not victim))
        if self.chance.random() < 0.15 and victim.roster > 0:
            victim.process.send_signal(signal.SIGTERM)
            self.until("a rank that leaves", lambda: not victim.alive)
        time.sleep(self.chance.random() * self.chance.choice((0.02, 0.1, 0.5)))
        victim.process.kill()
        victim.process.wait()
        victim.thread.join()

    def run(self):
        with Job(**{**self.settings, "timeout": int(3000 * SLACK), "settle": int(10_000 * SLACK)}) as job:
            job.environment["DDP_ELASTIC_FIRST_WORLD"] = str(self.world)
            for _ in range(self.world):
                self.start(job, may_die=False)
            self.until("the first turn", lambda: all(rank.turn > 0 for rank in self.ranks))
            while self.done < self.faults:
                self.fill(job)
                if self.chance.random() < 0.7:  # otherwise two at once, or one that is joining
                    newest = self.ranks[-1]
                    self.until("a rank that joins", lambda: newest.turn > 0 or not newest.alive)
                self.lose(job)
                self.done = sum(not rank.alive for rank in self.ranks)
            self.until("turns after the storm", lambda: self.members() and all(rank.turn == rank.roster for rank in self.members()))
            for rank in [rank for rank in self.ranks if rank.alive]:
                rank.process.kill()
            for rank in self.ranks:
                rank.thread.join()
        self.judge()
        return self

    def judge(self):
        begun, turns, worlds = {}, {}, {}
        for number, rank in enumerate(self.ranks):
            assert rank.process.returncode in (0, -signal.SIGKILL), (number, rank.process.returncode, rank.lines[-5:])
            for line in rank.lines:
                assert not line.startswith("error"), (number, line)
                if match := ROSTER.match(line):
                    begun.setdefault(int(match.group(1)), set()).add(int(match.group(2)))
                    worlds[int(match.group(1))] = int(match.group(4))
                elif match := TURN.match(line):
                    steps, roster, world = (int(text) for text in match.groups()[:3])
                    turns.setdefault((roster, steps), set()).add((world, *match.groups()[3:]))
        history, last, self.lost, self.untold = [], None, 0, 0
        for roster in sorted(begun):
            assert len(begun[roster]) == 1, (roster, begun[roster])
            begin = min(begun[roster])
            assert begin > 0 or not history, f"roster {roster} begins anew"
            before = len(history)
            history = [turn for turn in history if turn[0] <= begin]
            self.lost += before - len(history)
            after = history[-1][0] if history else 0
            if begin > after:  # a rank had taken this turn, and could not commit it
                history.append((begin, worlds[last], last))
                self.untold += 1
            last = roster
            for (of, steps), told in sorted(turns.items()):
                if of == roster:
                    assert len(told) == 1, f"after step {steps} in roster {roster} ranks differ: {told}"
                    history.append((steps, next(iter(told))[0], roster))
        sums = replay(history, self.fragments, self.delay, self.percent / 100)
        rounded = 0.0  # what float32 has made of the sum: a little more with each turn
        for steps, _, roster in history:
            if (roster, steps) not in turns:
                continue
            told = float(next(iter(turns[(roster, steps)]))[2])
            rounded, before = told - sums[steps], rounded
            assert abs(rounded - before) < 2e-4 and abs(rounded) < 0.05, f"after step {steps} in roster {roster}: {told}, not {sums[steps]}"
        self.turns, self.steps = len(history), history[-1][0]

    def told(self):
        return f"{self.steps} steps, {self.turns} turns checked, {self.lost} done again, {self.untold} that no rank could commit"


if __name__ == "__main__":
    storms.main(Storm, __doc__, QUICK_FAULTS, faults=100, seed=0)
