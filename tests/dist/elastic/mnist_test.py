#!/usr/bin/env python3
r"""Trains elastic_mnist while ranks are killed, leave, and join: the test accuracy is that of a training that nobody disturbs.

usage: mnist_test.py STORE [--kills N] [--leaves N] [--joins N] [--seeds N] [--epochs N] -- COMMAND...

By hand, for the trainers in C and in Python:

    mnist_test.py build/release/tests/dist/elastic/dist_elastic_store --kills 20 --joins 20 --seeds 3 --epochs 60 -- \
        build/release/examples/c/elastic_mnist
    PYTHONPATH=build/release/bindings/python mnist_test.py ... --epochs 30 -- python3 -B examples/python/elastic_mnist.py
"""
import argparse
import pathlib
import random
import re
import subprocess
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from slack import SLACK  # noqa: E402  (tests/support)

WORLD, FEWEST, MOST = 4, 2, 6
QUIET_FROM = 0.5  # of the training
ON_THEIR_WAY = 2  # may join at once
POINTS = 0.3


class Rank:
    """A process, and what it has printed."""

    def __init__(self, command):
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.lines, self.killed, self.leaves = [], False, False
        self.reader = threading.Thread(target=lambda: self.lines.extend(self.process.stdout), daemon=True)
        self.reader.start()

    @property
    def is_in(self):
        return self.process.poll() is None and not self.leaves and any(line.startswith("step ") for line in list(self.lines))

    def kill(self):
        self.process.kill()
        self.killed = True

    def leave(self):
        self.process.terminate()
        self.leaves = True

    def end(self, deadline):
        """The output of the process; fails if it does not end well."""
        try:
            status = self.process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            status = "no status: it runs still"
        self.reader.join(5)
        if status != 0 and not self.killed:
            sys.exit(f"a rank ended with {status}:\n{''.join(self.lines)}")
        return "".join(self.lines)


class Job:
    """Ranks, and the store in which they meet."""

    def __init__(self, options, seed):
        self.store = subprocess.Popen([options.store], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        address = f"tcp://127.0.0.1:{self.store.stdout.readline().strip()}"
        self.command = [*options.command, address, "--epochs", str(options.epochs), "--seed", str(seed)]
        self.ranks = []

    def __enter__(self):
        for _ in range(WORLD):
            self.join()
        return self

    def __exit__(self, *_):
        for rank in self.ranks:
            if rank.process.poll() is None:
                rank.process.kill()
            rank.process.wait()
        self.store.communicate()

    def join(self):
        self.ranks.append(Rank(self.command))

    def members(self):
        return [rank for rank in self.ranks if rank.is_in]

    def on_their_way(self):
        return sum(1 for rank in self.ranks if rank.process.poll() is None and not rank.is_in and not rank.leaves)

    def wait(self, what, happened, deadline):
        while not happened():
            if time.monotonic() > deadline or not any(rank.process.poll() is None for rank in self.ranks):
                sys.exit(f"{what} never came:\n" + "\n".join("".join(rank.lines) for rank in self.ranks))
            time.sleep(0.01)

    def wait_for_members(self, count, deadline):
        self.wait(f"{count} ranks", lambda: len(self.members()) >= count, deadline)
        return self.members()

    def wait_for_epoch(self, epoch, deadline):
        self.wait(f"epoch {epoch}", lambda: any(f"epoch {epoch}:" in line for rank in self.ranks for line in list(rank.lines)), deadline)

    def accuracy(self, deadline):
        """A rank that comes when the others are done trains anew, to the same accuracy: the worst of all."""
        said = [rank.end(deadline) for rank in self.ranks]
        found = re.findall(r"test accuracy ([0-9.]+) %", "\n".join(said))
        if not found:
            sys.exit("no rank has printed an accuracy:\n" + "\n".join(said))
        return min(map(float, found))


def events(chance, options):
    """The events of each epoch, from 0: so that there are always enough ranks, and never too many. In the last epochs nothing happens,
    so that a rank that joins comes before the end."""
    fewer, joins, what, world = ["kill"] * options.kills + ["leave"] * options.leaves, options.joins, [], WORLD
    if WORLD - len(fewer) + joins < FEWEST:
        sys.exit(f"fewer than {FEWEST} ranks would be left")
    chance.shuffle(fewer)
    while fewer or joins:
        if not joins or fewer and world > FEWEST and (world >= MOST or chance.random() < len(fewer) / (len(fewer) + joins)):
            what.append(fewer.pop())
            world -= 1
        else:
            what.append("join")
            joins, world = joins - 1, world + 1
    return list(zip(sorted(chance.random() * QUIET_FROM * options.epochs for _ in what), what))


def compare(options, seed):
    """Whether both accuracies are the same."""
    deadline = time.monotonic() + options.timeout * SLACK
    with Job(options, seed) as job:
        job.wait_for_members(WORLD, deadline)
        start = time.monotonic()
        undisturbed = job.accuracy(deadline)
        seconds = time.monotonic() - start
    chance = random.Random(seed)
    with Job(options, seed) as job:
        job.wait_for_members(WORLD, deadline)
        start = time.monotonic()
        epoch, begun = 0, start
        for at, what in events(chance, options):
            if int(at) + 1 > epoch:
                epoch = int(at) + 1
                job.wait_for_epoch(epoch, deadline)
                begun = time.monotonic()
            time.sleep(max(0.0, begun + at % 1 * seconds / options.epochs - time.monotonic()))
            job.wait(f"all but {ON_THEIR_WAY} ranks", lambda: job.on_their_way() <= ON_THEIR_WAY, deadline)
            if what == "join":
                job.join()
            else:
                getattr(chance.choice(job.wait_for_members(FEWEST, deadline)), what)()
        disturbed = job.accuracy(deadline)
        late = sum(1 for rank in job.ranks[WORLD:] if any(re.match("step [1-9]", line) for line in rank.lines))
    print(f"seed {seed}: undisturbed {undisturbed:.2f} % in {seconds:.1f} s; with {options.kills} kills, {options.leaves} leaves and "
          f"{options.joins} joins {disturbed:.2f} % in {time.monotonic() - start:.1f} s; {late} ranks had begun before they were killed or done", flush=True)
    return abs(undisturbed - disturbed) <= POINTS


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store")
    parser.add_argument("--kills", type=int, default=2)
    parser.add_argument("--leaves", type=int, default=0, help="with SIGTERM")
    parser.add_argument("--joins", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--timeout", type=float, default=600, help="seconds for each seed")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    good = [compare(options, seed) for seed in range(1, options.seeds + 1)]
    sys.exit(0 if all(good) else f"more than {POINTS} points apart")


if __name__ == "__main__":
    main()
