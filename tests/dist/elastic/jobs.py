"""Elastic jobs of real processes (worker.c), for the tests beside this file. CMake tells where the programs are."""
import contextlib
import functools
import os
import pathlib
import subprocess
import sys
import time

TESTS = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TESTS / "support"), str(TESTS.parent / "tools/bench/runs")]
from slack import SLACK  # noqa: E402  (tests/support)

WORKER = os.environ["DDP_ELASTIC_WORKER"]
STORE = os.environ["DDP_ELASTIC_STORE"]
BOUND_S = 60 * SLACK
BACKENDS = ("shm", "tcp", "gloo", "hierarchical")
SECRET = "a secret of this test's own, long enough"


def words_of(settings):
    return [f"{name.replace('_', '-')}={value}" for name, value in settings.items()]


class Job:
    """Ranks, and the store in which they meet. link: the ranks are on its two hosts in turn, and the store is on the first (tests/bench,
    namespaces.py). init: a store on etcd."""

    def __init__(self, link=None, init=None, **settings):
        self.settings = {"timeout": int(5000 * SLACK), "settle": int(3000 * SLACK), **settings}
        self.link = link
        self.environment = {**os.environ, "DDP_SECRET": SECRET}
        self.ranks = []
        host = link.addresses[0] if link else "127.0.0.1"
        self.store = subprocess.Popen([*self.prefix(0), STORE, init or f"tcp://{host}:0"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                      text=True, env=self.environment)
        port = self.store.stdout.readline().strip()
        self.settings["init"] = init or f"tcp://{host}:{port}"

    def prefix(self, host):
        return self.link.prefix(host) if self.link else []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for rank in self.ranks:
            if rank.poll() is None:
                rank.kill()
            rank.communicate()
        self.store.communicate()

    def start(self, **settings):
        rank = subprocess.Popen([*self.prefix(len(self.ranks) % 2), WORKER, *words_of({**self.settings, **settings})],
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                                env=self.environment)
        rank.lines = []
        self.ranks.append(rank)
        return rank


def output(rank, deadline):
    return rank.communicate(timeout=max(0.1, deadline - time.monotonic()))[0]


def read_until(rank, word):
    """The line with the word. The worker writes whole lines."""
    for line in rank.stdout:
        rank.lines.append(line)
        if word in line:
            return line
    raise AssertionError(f"no '{word}' in: {''.join(rank.lines)}")


@functools.lru_cache(maxsize=64)
def reference(**settings):
    """The last line of one process that does every step once."""
    return subprocess.run([WORKER, "reference", *words_of(settings)], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def stacks(pid):
    """Where the threads of a process that hangs are, if gdb can tell."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        command = ["gdb", "-p", str(pid), "-batch", "-ex", "thread apply all bt 12"]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).stdout[-8000:]
    return ""
