"""Jobs of worker.cc: ranks with verbs of their own, started together, with a bound for all of them."""
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
from ports import free_port  # noqa: E402  (tests/support)
from slack import SLACK  # noqa: E402

WORKER = os.environ["DDP_PROCESS_WORKER"]
BACKENDS = ("shm", "tcp", "gloo", "hierarchical")
PATIENCE_S = 30 * SLACK


def environment(**more):
    """A variable that is None is taken away."""
    variables = {key: value for key, value in os.environ.items() if key != "DDP_SECRET"}
    for key, value in more.items():
        variables.pop(key, None)
        if value is not None:
            variables[key] = value
    return variables


class Rank:
    """One process. Its standard output and error go to a file, so that nobody needs to read while it runs."""

    def __init__(self, rank, world, uri, backend, verbs, env=None, command=(WORKER,), **options):
        self.rank = rank
        self.output = tempfile.TemporaryFile(mode="w+", errors="replace")
        host = {"DDP_HOST_ID": f"host {rank}"} if backend == "hierarchical" else {}
        self.process = subprocess.Popen([*command, str(rank), str(world), uri, backend, *verbs], stdin=subprocess.DEVNULL, stdout=self.output,
                                        stderr=subprocess.STDOUT, env=environment(**host, **(env or {})), start_new_session=True, **options)

    def text(self):
        self.output.seek(0)
        return self.output.read()

    def end(self, deadline):
        """(status, output); the status is "hangs" where the deadline passes. Ends the children that it left, too."""
        try:
            status = self.process.wait(max(0.01, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            status = "hangs"
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()
        text = self.text()
        self.output.close()
        return status, text


def run_job(backend, verbs_of_ranks, uri=None, patience_s=PATIENCE_S, **options):
    """Runs a rank for each list of verbs. Returns (status, output) of each."""
    uri = uri or f"tcp://127.0.0.1:{free_port()}"
    world = len(verbs_of_ranks)
    ranks = [Rank(rank, world, uri, backend, verbs, **options) for rank, verbs in enumerate(verbs_of_ranks)]
    deadline = time.monotonic() + patience_s
    return [rank.end(deadline) for rank in ranks]


def error_in(text):
    """(status, rank, message) of the error with which a rank has ended; None if there is none."""
    found = re.search(r"(?m)^error (\w+) (-?\d+) (.*)$", text)
    return (found[1], int(found[2]), found[3]) if found else None


class ProcessTest(unittest.TestCase):
    def expect(self, results, *lines, status=0):
        """Every rank ends with this status and has written these lines."""
        for rank, (ended, text) in enumerate(results):
            said = text.splitlines()
            story = f"rank {rank} ended with {ended}:\n{text}"
            self.assertEqual(ended, status, story)
            for line in lines:
                self.assertIn(line, said, story)


def main():
    signal.alarm(170)  # before ctest's limit, so that the story of what hangs is not lost
    unittest.main(argv=[sys.argv[0]] + sys.argv[1:], verbosity=2)
