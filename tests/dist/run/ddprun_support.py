"""ddprun from the outside, for the tests beside this file: what it prints, how it ends, and what it leaves behind (nothing).

Ranks are /bin/sh and python3. CMake tells where ddprun is through the variable DDPRUN.
"""
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from ports import free_port  # noqa: E402,F401  (tests/support, for the tests)
from slack import SLACK  # noqa: E402

DDPRUN = os.environ["DDPRUN"]
RANK = os.environ["DDPRUN_TEST_RANK"]  # rank.c
PACE = os.environ["DDPRUN_TEST_PACE"]  # pace.c
PYTHON = sys.executable
BOUND = 60  # seconds after which a test gives up on ddprun


def start(*args, env=None, **options):
    options.setdefault("stdout", subprocess.PIPE)
    options.setdefault("stderr", subprocess.PIPE)
    return subprocess.Popen([DDPRUN, *map(str, args)], stdin=subprocess.DEVNULL, env=env, **options)


class Result:
    def __init__(self, process):
        try:
            self.out, self.err = process.communicate(timeout=BOUND)
        except subprocess.TimeoutExpired:
            process.kill()
            self.out, self.err = process.communicate(timeout=BOUND)
            raise AssertionError(f"ddprun did not end within {BOUND} s\n{self.out!r}\n{self.err!r}")
        self.status = process.returncode

    def __str__(self):
        out, err = ((stream or b"")[-800:] for stream in (self.out, self.err))
        return f"status {self.status}\nstdout: {out!r}\nstderr: {err!r}"


def run(*args, **options):
    return Result(start(*args, **options))


def lost(said):
    """(rank, how) of each rank of which ddprun says that it has failed. how: 7 after exit(7), -9 after SIGKILL."""
    line = r"(?m)^ddprun\b.*?: rank (\d+) \(pid \d+\) (?:exited with status (\d+)|was killed by signal (\d+) \((\w+)\))"
    found = re.findall(line, said.decode(errors="replace"))
    for *_, number, name in found:
        if name and signal.Signals[name] != int(number):
            raise AssertionError(f"signal {number} is called {name}")
    return [(int(rank), int(status) if status else -int(number)) for rank, status, number, _ in found]


def exists(pid):
    """Whether a process runs. A zombie does not."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def until(condition, bound=10.0):
    """Waits for a condition and returns its value."""
    end = time.monotonic() + bound
    while True:
        value = condition()
        if value or time.monotonic() > end:
            return value
        time.sleep(0.01)


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, name):
        return os.path.join(self.folder, name)

    def read(self, name):
        try:
            with open(self.path(name), "rb") as file:
                return file.read()
        except FileNotFoundError:
            return b""

    def write(self, name, text, mode=0o600):
        with open(self.path(name), "w") as file:
            file.write(text)
        os.chmod(self.path(name), mode)
        return self.path(name)

    def pids(self, count, prefix="pid"):
        """The pids that `count` ranks wrote to files of their own, once all have."""
        names = [f"{prefix}{rank}" for rank in range(count)]
        self.assertTrue(until(lambda: all(self.read(name).endswith(b"\n") for name in names)), "ranks did not start")
        pids = [int(self.read(name)) for name in names]
        for name in names:
            os.remove(self.path(name))  # the next ones are to be waited for
        return pids

    def start(self, *args, **options):
        process = start(*args, **options)

        def end():
            if process.poll() is None:
                process.kill()
            process.communicate(timeout=BOUND)

        self.addCleanup(end)
        return process

    def interrupt_until_end(self, process, every=0.3):
        """Ctrl-C again and again. Two that come before the first is looked at are one."""
        for _ in range(int(30 / every)):
            process.send_signal(signal.SIGINT)
            try:
                return process.wait(every)
            except subprocess.TimeoutExpired:
                pass
        raise AssertionError("ddprun did not end")

    def expect(self, result, status):
        self.assertEqual(result.status, status, str(result))

    def expect_gone(self, pids, bound=2.0):
        left = until(lambda: not [pid for pid in pids if exists(pid)], bound * SLACK)
        self.assertTrue(left, f"still there: {[pid for pid in pids if exists(pid)]}")
