#!/usr/bin/env python3
"""A storm of one elastic job whose ranks train apart and do outer steps of fragments (outer_worker.c): ranks are killed at random moments or at
named places, or leave, and others join. At the end the turns that were applied are computed again, by one process in plain numbers, and every
turn that a rank has told of is compared: its outer parameters, and the bits of its state with those of other ranks.

    outer_storm.py --faults 100             so many ranks are lost; --seed N, --backend tcp, --jobs 2: storms at once, of following seeds
    outer_storm.py --quick                  short ones, for the suite

By hand:

    DDP_ELASTIC_WORKER=.../dist_elastic_outer_worker DDP_ELASTIC_STORE=.../dist_elastic_store python3 outer_storm.py --faults 100
"""
import argparse
import concurrent.futures
import random
import re
import signal
import sys
import threading
import time

from jobs import BACKENDS, SLACK, Job, stacks

QUICK_FAULTS = 6
PLACES = ("join", "meet", "step", "averager", "averaged", "commit")  # outer_worker.c
PARAMS, RATE, MOMENTUM = 6, 0.7, 0.9
WAIT_S = 60 * SLACK
ROSTER = re.compile(r"roster (\d+) step (\d+) rank (\d+) of (\d+) after \S+ ms$")
TURN = re.compile(r"turn (\d+) in (\d+) of (\d+): (\w+) (\S+)$")
# Fragments of equal size, delay and alpha in percent.
SETTINGS = ((3, 2, 50), (1, 0, 0), (2, 5, 0), (6, 1, 25), (1, 11, 50), (3, 0, 75))
PERIOD, SIZE = 12, 10


class Rank:
    """A process, and what it has said so far."""

    def __init__(self, job, **settings):
        self.settings = settings
        self.process = job.start(**settings)
        self.lines = []
        self.roster = self.turn = 0  # the last one that it was in, and that of its last turn
        self.thread = threading.Thread(target=self.listen)
        self.thread.start()

    def listen(self):
        for line in self.process.stdout:
            line = line.rstrip("\n")
            if match := ROSTER.match(line):
                self.roster = int(match.group(1))
            elif match := TURN.match(line):
                self.turn = int(match.group(2))
            self.lines.append(line)

    @property
    def alive(self):
        return self.process.poll() is None


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


class Storm:
    def __init__(self, seed, faults, backend=None):
        chance = self.chance = random.Random(seed)
        self.seed, self.faults = seed, faults
        self.world = chance.choice((3, 4, 4, 5))
        self.fragments, self.delay, self.percent = SETTINGS[seed % len(SETTINGS)]
        self.settings = {"backend": backend or chance.choice(BACKENDS), "max": self.world + 1, "steps": 1_000_000, "size": SIZE,
                         "pause": chance.choice((300, 1500)), "period": PERIOD, "fragments": self.fragments, "delay": self.delay,
                         "alpha_percent": self.percent}
        self.ranks, self.done = [], 0

    def __str__(self):
        return f"seed {self.seed}, {self.faults} faults: world {self.world} " + " ".join(f"{k}={v}" for k, v in self.settings.items())

    def until(self, what, condition):
        deadline = time.monotonic() + WAIT_S
        while not condition():
            for number, rank in enumerate(self.ranks):
                if any(line.startswith("error") for line in rank.lines[-20:]):
                    raise AssertionError(f"process {number}: {rank.lines[-20:]}")
            if time.monotonic() > deadline:
                where = [f"process {i}:\n{stacks(rank.process.pid)}" for i, rank in enumerate(self.ranks) if rank.alive]
                raise AssertionError("\n".join([f"no end of the wait for {what}", *where]))
            time.sleep(0.002)

    def members(self):
        return [rank for rank in self.ranks if rank.alive and rank.roster > 0]

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
        for steps, _, roster in history:
            if (roster, steps) not in turns:
                continue
            told = float(next(iter(turns[(roster, steps)]))[2])
            assert abs(told - sums[steps]) < 1e-3 + 1e-4 * abs(sums[steps]), f"after step {steps} in roster {roster}: {told}, not {sums[steps]}"
        self.turns, self.steps = len(history), history[-1][0]


def story(storm):
    """None, or what went wrong."""
    start = time.monotonic()
    try:
        storm.run()
    except Exception as error:
        said = [f"--- process {i} {rank.settings or ''} {rank.process.poll()}\n" + "\n".join(rank.lines[-12:])
                for i, rank in enumerate(storm.ranks) if i > len(storm.ranks) - 8]
        return "\n".join([f"=== {storm}\nFAULT after {storm.done} ranks were lost: {error}", *said])
    print(f"{storm}: {storm.done} ranks lost, {storm.steps} steps, {storm.turns} turns checked, {storm.lost} done again, {storm.untold} that no rank "
          f"could commit, "
          f"{time.monotonic() - start:.0f} s", flush=True)
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--faults", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--backend", choices=BACKENDS)
    parser.add_argument("--jobs", type=int, default=1)
    given = parser.parse_args()
    if given.quick:
        storms = [Storm(seed, QUICK_FAULTS, backend) for seed, backend in enumerate(BACKENDS)]
    else:
        storms = [Storm(seed, given.faults, given.backend) for seed in range(given.seed, given.seed + given.jobs)]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        faults = [text for text in pool.map(story, storms) if text]
    print("\n".join(faults))
    return sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
