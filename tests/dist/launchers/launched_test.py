#!/usr/bin/env python3
"""Jobs of one host that a real mpirun or torchrun starts.

usage: launched_test.py Mpirun|Torchrun MNIST RANK DATA    examples/c/mnist, tests/dist/run/rank.c, the folder of the digits
"""
import contextlib
import importlib.util
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from launchers import CLEAN  # noqa: E402  (tests/support)
from ports import free_port  # noqa: E402
from slack import SLACK  # noqa: E402

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "tools/bench/peers"))
import processes  # noqa: E402  (tools/bench/peers)

CLASS, MNIST, RANK, DATA = sys.argv[1:5]
del sys.argv[1:5]
TRAIN = (MNIST, "--data", DATA, "--epochs", "1", "--compare-local")
SECRET = {"DDP_SECRET": "of sixteen bytes and more"}


class Launched:
    """start(ranks): the launcher's command. names_jobs: it tells ranks a name of their job. left: how many ranks it lets say who died."""

    @contextlib.contextmanager
    def started(self, ranks, *command, **variables):
        """A job, which is gone at the end. Its ranks may have sessions of their own, so the launcher is asked to end them."""
        job = subprocess.Popen([*self.start(ranks), *command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               text=True, env={**CLEAN, **variables}, start_new_session=True)
        try:
            yield job
        finally:
            processes.end_session(job)

    def run_job(self, ranks, *command, **variables):
        """Whether it ended with status 0, and what it wrote."""
        with self.started(ranks, *command, **variables) as job:
            output = job.communicate(timeout=120 * SLACK)[0]
        return job.returncode == 0, output

    def test_trains(self):
        for ranks in (1, 2, 4):
            good, output = self.run_job(ranks, *TRAIN, **SECRET)
            self.assertTrue(good, output)
            self.assertRegex(output, r"bound .*: met")

    def test_needs_no_secret_on_loopback(self):
        good, output = self.run_job(2, *TRAIN, **self.loopback)
        self.assertTrue(good, output)

    def test_two_jobs_at_once_do_not_meet(self):
        with self.started(2, *TRAIN, **SECRET) as one, self.started(2, *TRAIN, **SECRET) as other:
            for job in (one, other):
                output = job.communicate(timeout=120 * SLACK)[0]
                self.assertEqual(job.returncode, 0, output)

    def test_a_rank_of_another_job_does_not_join_at_the_same_port(self):
        """Its rank 0 finds the port taken. Its rank 1 comes before the first job's own, and knows the user's secret."""
        if not self.names_jobs:
            self.skipTest("this launcher's jobs have one name on one port")
        port, folder = str(free_port()), tempfile.TemporaryDirectory(prefix="ddp-launched-")
        self.addCleanup(folder.cleanup)
        late, end = pathlib.Path(folder.name, "late"), pathlib.Path(folder.name, "end")
        where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        waits = f"test $OMPI_COMM_WORLD_RANK = 0 || while test ! -e {late}; do sleep 0.1; done; exec {RANK} meet {end}"
        with self.started(2, "sh", "-c", waits, **where) as one:
            self.until_somebody_listens(int(port))
            output = self.run_job(2, RANK, "meet", end, **where)[1]
            self.assertNotIn("has met", output)
            self.assertIn("another job secret", output)
            late.touch()
            end.touch()
            output = one.communicate(timeout=60 * SLACK)[0]
            self.assertEqual(one.returncode, 0, output)
            self.assertEqual(sorted(re.findall(r"\d of 2 has met", output)), ["0 of 2 has met", "1 of 2 has met"])

    @staticmethod
    def until_somebody_listens(port, seconds=20 * SLACK):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                return
            time.sleep(0.05)
        raise AssertionError(f"nobody listens on port {port}")

    def test_ranks_that_are_left_name_the_one_that_died(self):
        output = self.run_job(4, RANK, "2", "9", **SECRET)[1]
        self.assertGreaterEqual(len(re.findall(r"rank 2 \(pid \d+ on .*\) died", output)), self.left, output)


class Mpirun(Launched, unittest.TestCase):
    left = 3
    names_jobs = True
    loopback = {"MASTER_ADDR": "127.0.0.1"}

    def start(self, ranks):
        # Each has a folder of its own for its files: two that begin at once may both want to make the common one, and one of them fails.
        folder = tempfile.TemporaryDirectory(prefix="ddp-mpirun-")
        self.addCleanup(folder.cleanup)
        # Without the last option it kills all at the first death.
        # Open MPI 4 knows the first name of the folder, Open MPI 5 the second.
        return ["mpirun", "--allow-run-as-root", "--oversubscribe", "--mca", "orte_tmpdir_base", folder.name, "--mca", "prte_tmpdir_base",
                folder.name, "-n", str(ranks), "--enable-recovery"]


class Torchrun(Launched, unittest.TestCase):
    names_jobs = False
    left = 0  # its agent ends the others at once
    loopback = {}

    def start(self, ranks):
        # PyTorch 1.13 knows the names with underscores only. With Python 3.11 it starts nothing unless --tee and --redirects are 1 or 2.
        folder = tempfile.TemporaryDirectory(prefix="ddp-torchrun-")
        self.addCleanup(folder.cleanup)
        return [sys.executable, "-m", "torch.distributed.run", "--nnodes", "1", "--nproc_per_node", str(ranks), "--master_addr", "127.0.0.1",
                "--master_port", str(free_port()), "--log_dir", folder.name, "--redirects", "1", "--tee", "1", "--no_python"]


def missing():
    if CLASS == "Mpirun":
        return None if shutil.which("mpirun") else "there is no mpirun"
    return None if importlib.util.find_spec("torch") else f"{sys.executable} has no PyTorch"


if __name__ == "__main__":
    if reason := missing():
        print(f"skipped: {reason}")
        sys.exit(0)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # unittest would go on after another exception
    unittest.main(defaultTest=CLASS, verbosity=2)
