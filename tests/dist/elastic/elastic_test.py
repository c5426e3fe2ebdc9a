#!/usr/bin/env python3
"""Jobs of worker.c that lose ranks and get new ones, in real processes: the bits at the end are those of one process.

    DDP_ELASTIC_WORKER=... DDP_ELASTIC_STORE=... python3 elastic_test.py [--storm N [--seed S]] [unittest's options]
"""
import concurrent.futures
import os
import pathlib
import random
import signal
import subprocess
import sys
import time
import unittest

TESTS = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TESTS / "support"))
from slack import SLACK  # noqa: E402  (tests/support)

WORKER = os.environ["DDP_ELASTIC_WORKER"]
STORE = os.environ["DDP_ELASTIC_STORE"]
BOUND_S = 60 * SLACK
BACKENDS = ("shm", "tcp", "gloo", "hierarchical")


class Job:
    """Ranks, and the store in which they meet."""

    def __init__(self, **settings):
        self.settings = {"timeout": int(5000 * SLACK), "settle": int(3000 * SLACK), **settings}
        self.store = subprocess.Popen([STORE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.settings["init"] = f"tcp://127.0.0.1:{self.store.stdout.readline().strip()}"
        self.ranks = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for rank in self.ranks:
            if rank.poll() is None:
                rank.kill()
            rank.communicate()
        self.store.communicate()

    def start(self, **settings):
        words = [f"{name.replace('_', '-')}={value}" for name, value in {**self.settings, **settings}.items()]
        rank = subprocess.Popen([WORKER, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                text=True, errors="replace")
        os.set_blocking(rank.stdout.fileno(), True)
        rank.lines = []
        self.ranks.append(rank)
        return rank

    def output(self, rank, deadline):
        return rank.communicate(timeout=max(0.1, deadline - time.monotonic()))[0]


def read_until(rank, word):
    """The line with the word. The worker writes whole lines."""
    for line in rank.stdout:
        rank.lines.append(line)
        if word in line:
            return line
    raise AssertionError(f"no '{word}' in: {''.join(rank.lines)}")


def reference(steps):
    return subprocess.run([WORKER, "reference", f"steps={steps}"], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


class Elastic(unittest.TestCase):
    def finish(self, job, ranks, steps):
        deadline = time.monotonic() + BOUND_S
        for rank in ranks:
            said = "".join(rank.lines) + job.output(rank, deadline)
            self.assertIn(reference(steps), said)
            self.assertEqual(rank.returncode, 0, said)

    def test_a_killed_rank(self):
        for backend in BACKENDS:
            with self.subTest(backend=backend), Job(backend=backend, steps=300, max=4, pause=3000) as job:
                ranks = [job.start() for _ in range(4)]
                for rank in ranks:
                    read_until(rank, "of 4")
                time.sleep(0.2)
                ranks[1].kill()
                read_until(ranks[0], "of 3")
                ranks[1] = job.start()
                line = read_until(ranks[1], "of 4")
                self.assertGreater(int(line.split()[3]), 0, line)
                self.finish(job, ranks, 300)

    def test_a_stopped_rank_is_left_behind_and_comes_again(self):
        with Job(backend="tcp", steps=1500, max=3, pause=3000, timeout=int(1500 * SLACK), settle=int(1000 * SLACK), rejoin=1) as job:
            ranks = [job.start() for _ in range(3)]
            for rank in ranks:
                read_until(rank, "of 3")
            ranks[2].send_signal(signal.SIGSTOP)
            read_until(ranks[0], "of 2")
            ranks[2].send_signal(signal.SIGCONT)
            self.assertIn("without this rank", read_until(ranks[2], "left behind"))
            read_until(ranks[2], "of 3")
            self.finish(job, ranks, 1500)

    def test_a_rank_that_leaves(self):
        with Job(backend="shm", steps=300, max=3, pause=2000) as job:
            ranks = [job.start(), job.start(), job.start(leave_at=20)]
            step = int(read_until(ranks[2], "left").split()[1])
            self.assertGreaterEqual(step, 22)
            ranks[2].wait(BOUND_S)
            # None was begun in vain.
            self.assertIn(f"step {step} ", read_until(ranks[0], "of 2"))
            self.finish(job, ranks[:2], 300)


def storm(seed):
    """One scenario; what went wrong, or None."""
    chance = random.Random(seed)
    steps, world = chance.randrange(60, 200), chance.randrange(2, 7)
    backend = chance.choice(BACKENDS)
    with Job(backend=backend, steps=steps, max=world, pause=chance.choice((600, 2000, 5000)), size=chance.choice((100, 2000, 50000)),
             timeout=int(3000 * SLACK), settle=int(1500 * SLACK), rejoin=1) as job:
        ranks = [job.start() for _ in range(world)]
        expected = reference_of(steps, job.settings["size"])
        deadline = time.monotonic() + 2 * BOUND_S
        for _ in range(chance.randrange(1, 6)):
            time.sleep(chance.random() * 0.6)
            alive = [rank for rank in ranks if rank.poll() is None]
            what = chance.choice(("kill", "kill", "two", "stop", "join"))
            if what in ("kill", "two"):
                for rank in chance.sample(alive, min(len(alive), 2 if what == "two" else 1)):
                    rank.kill()
                    rank.killed = True
            elif what == "stop" and alive:
                rank = chance.choice(alive)
                rank.send_signal(signal.SIGSTOP)
                time.sleep(chance.choice((0.1, 4.0)) * SLACK)
                rank.send_signal(signal.SIGCONT)
            else:
                ranks.append(job.start())
        faults = []
        for rank in ranks:
            try:
                said = job.output(rank, deadline)
            except subprocess.TimeoutExpired:
                faults.append(f"pid {rank.pid} did not end")
                continue
            if not getattr(rank, "killed", False) and (rank.returncode != 0 or expected not in said):
                faults.append(f"status {rank.returncode}, wanted '{expected}': {said[-2000:]}")
    return f"=== seed {seed}: {backend}, world {world}, {steps} steps\n" + "\n".join(faults) if faults else None


def reference_of(steps, size):
    return subprocess.run([WORKER, "reference", f"steps={steps}", f"size={size}"], stdout=subprocess.PIPE, text=True,
                          check=True).stdout.strip()


def main():
    if "--storm" not in sys.argv:
        return unittest.main()
    count = int(sys.argv[sys.argv.index("--storm") + 1])
    first = int(sys.argv[sys.argv.index("--seed") + 1]) if "--seed" in sys.argv else 0
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        faults = [fault for fault in pool.map(storm, range(first, first + count)) if fault]
    print("\n\n".join(faults))
    print(f"{count} scenarios, {len(faults)} faults")
    return sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
