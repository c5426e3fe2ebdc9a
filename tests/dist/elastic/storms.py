"""Storms of elastic jobs share this: a process and what it has said, a wait that shows where everybody stands, and the program around."""
import argparse
import concurrent.futures
import sys
import threading
import time

from jobs import BACKENDS, SLACK, stacks

WAIT_S = 60 * SLACK


class Rank:
    """A process, and what it has said so far. heard(line): called with each line."""

    def __init__(self, job, **settings):
        self.settings = settings
        self.process = job.start(**settings)
        self.lines = []
        self.roster = 0  # the last one that it was in
        self.thread = threading.Thread(target=self.listen)
        self.thread.start()

    def listen(self):
        for line in self.process.stdout:
            line = line.rstrip("\n")
            self.heard(line)
            self.lines.append(line)

    @property
    def alive(self):
        return self.process.poll() is None


class Storm:
    """A storm has ranks, and run(). bad(line): whether it means a fault."""

    def __str__(self):
        return f"seed {self.seed}, {self.faults} faults: world {self.world} " + " ".join(f"{k}={v}" for k, v in self.settings.items())

    def until(self, what, condition):
        deadline = time.monotonic() + WAIT_S
        while not condition():
            for number, rank in enumerate(self.ranks):
                if any(self.bad(line) for line in rank.lines[-20:]):
                    raise AssertionError(f"process {number}: {rank.lines[-20:]}")
            if time.monotonic() > deadline:
                where = [f"process {i}:\n{stacks(rank.process.pid)}" for i, rank in enumerate(self.ranks) if rank.alive]
                raise AssertionError("\n".join([f"no end of the wait for {what}", *where]))
            time.sleep(0.002)

    def members(self):
        return [rank for rank in self.ranks if rank.alive and rank.roster > 0]


def story(storm):
    """None, or what went wrong."""
    start = time.monotonic()
    try:
        storm.run()
    except Exception as error:
        said = [f"--- process {i} {rank.settings or ''} {rank.process.poll()}\n" + "\n".join(rank.lines[-12:])
                for i, rank in enumerate(storm.ranks) if i > len(storm.ranks) - 8]
        return "\n".join([f"=== {storm}\nFAULT after {storm.done} ranks were lost: {error}", *said])
    print(f"{storm}: {storm.done} ranks lost, {storm.told()}, {time.monotonic() - start:.0f} s", flush=True)
    return None


def main(kind, text, quick, faults, seed):
    """kind(seed, faults, backend): a storm. quick: its faults in the suite."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--faults", type=int, default=faults)
    parser.add_argument("--seed", type=int, default=seed)
    parser.add_argument("--backend", choices=BACKENDS)
    parser.add_argument("--jobs", type=int, default=1)
    given = parser.parse_args()
    if given.quick:
        storms = [kind(number, quick, backend) for number, backend in enumerate(BACKENDS)]
    else:
        storms = [kind(number, given.faults, given.backend) for number in range(given.seed, given.seed + given.jobs)]
    with concurrent.futures.ThreadPoolExecutor(2 if given.quick else len(storms)) as pool:
        wrong = [line for line in pool.map(story, storms) if line]
    print("\n".join(wrong))
    sys.exit(1 if wrong else 0)
