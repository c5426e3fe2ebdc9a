#!/usr/bin/env python3
"""Failures with the backend mpi: ranks that are late, die, disagree, or were not started as it needs. Real mpirun, real
processes (worker.cc); every wait is bounded, and nothing stays behind. CMake tells where the worker is: DDP_MPI_WORKER.

    DDP_MPI_WORKER=build/.../dist_mpi_worker python3 failure_test.py [-v] [CLASS[.TEST]]

Most jobs wait most of the time: those of a class run at the same time.
"""
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import run_mpi  # noqa: E402  (beside this file)
from slack import SLACK  # noqa: E402  (tests/support)

WORKER = os.environ["DDP_MPI_WORKER"]
END_S = 20  # how soon a job must have ended; mpirun alone gives processes seconds to end
# Open MPI's mpirun ends the job when a process dies or leaves without MPI_Finalize, unless it is told to let the others live.
LET_LIVE = ["--enable-recovery"]


class Run:
    """The output of a job, and its end."""

    def __init__(self, status, lines):
        self.status, self.lines = status, lines

    def of(self, rank, words):
        """The one line of this rank that has these words."""
        found = [line for line in self.lines if line.startswith(f"rank {rank}: ") and words in line]
        if len(found) != 1:
            raise AssertionError(f"rank {rank}: {len(found)} lines with '{words}':\n" + self.story())
        return found[0]

    def error(self, rank, words):
        """The status and the rank of the error in this line."""
        line = self.of(rank, words)
        facts = re.search(r" ms: (DDP_ERROR_\w+) of rank (-?\d+): ", line)
        if not facts:
            raise AssertionError(f"no error: {line}")
        return facts[1], int(facts[2])

    def story(self):
        return "\n".join(self.lines[-60:])


class Job:
    """Processes that use one store. ranks: how many mpirun starts, or None to do without mpirun."""

    def __init__(self, folder, ranks, arguments, flags=()):
        command = [WORKER, arguments[0], f"store=file://{folder}/store", *arguments[1:]]
        # A file and not a pipe: nobody reads while other jobs are waited for.
        self.output = tempfile.TemporaryFile("w+", errors="replace")
        options = {"stdout": self.output, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL}
        if ranks:
            self.process = run_mpi.start(ranks, command, flags, **options)
        else:
            clean = {key: value for key, value in os.environ.items() if not key.startswith(("OMPI_", "PMIX_", "PMI_"))}
            self.process = subprocess.Popen(command, env=clean, **options)
        self.deadline = time.monotonic() + END_S

    def lines(self):
        # Not through the file that the processes write to: they share its position.
        with open(f"/proc/self/fd/{self.output.fileno()}", encoding="utf-8", errors="replace") as output:
            return output.read().splitlines()

    def wait_for_line(self, line):
        while line not in self.lines():
            if time.monotonic() > self.deadline:
                raise AssertionError(f"'{line}' did not come:\n" + "\n".join(self.lines()))
            time.sleep(0.05)

    def finish(self):
        """Waits for the end. It must come by itself, and leave no process."""
        processes = run_mpi.children_of(self.process.pid)
        try:
            self.process.wait(max(0.1, self.deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.end()
            raise AssertionError("did not end:\n" + "\n".join(self.lines())) from None
        run = Run(self.process.returncode, self.lines())
        # mpirun does not wait for those that it has killed.
        while stayed := [pid for pid in processes if os.path.exists(f"/proc/{pid}")]:
            if time.monotonic() > self.deadline:
                raise AssertionError(f"processes {stayed} stayed:\n{run.story()}")
            time.sleep(0.05)
        return run

    def end(self):
        run_mpi.end(self.process)


def milliseconds(line):
    return int(re.search(r"(\d+) ms", line).group(1))


class Test(unittest.TestCase):
    """start() starts the jobs of all tests of a class."""

    @classmethod
    def setUpClass(cls):
        cls.folders, cls.jobs = [], []
        cls.addClassCleanup(cls.clean_up)
        cls.start()

    @classmethod
    def clean_up(cls):
        for job in cls.jobs:
            job.end()
            job.output.close()
        for folder in cls.folders:
            shutil.rmtree(folder)

    @classmethod
    def store(cls):
        cls.folders.append(tempfile.mkdtemp(prefix="ddp-mpi-"))
        return cls.folders[-1]

    @classmethod
    def launch(cls, ranks, *arguments, flags=(), folder=None):
        cls.jobs.append(Job(folder or cls.store(), ranks, arguments, flags))
        return cls.jobs[-1]


class Waits(Test):
    """Timeouts and aborts: on a thread of the backend's (-1: it initialises MPI), and on the program's own (2: serialized)."""

    @classmethod
    def start(cls):
        late = ["late", "late=1", "ms=5000", "timeout_ms=2500", "finalize=0"]
        cls.late = [cls.launch(3, *late, options, flags=LET_LIVE)
                    for options in ("options=algorithm=direct", "options=algorithm=mpi", "level=2")]
        cls.a_little_late = cls.launch(2, "late", "late=1", "ms=400", "timeout_ms=20000")
        cls.stopped = cls.launch(2, "killed", "timeout_ms=2500", f"signal={int(signal.SIGSTOP)}", flags=LET_LIVE)
        cls.aborted = [cls.launch(3, "aborted", level, "finalize=0", flags=LET_LIVE) for level in ("level=-1", "level=2")]

    def test_the_late_rank_is_named_everywhere(self):
        for job in self.late:
            run = job.finish()
            for rank in (0, 2):
                line = run.of(rank, "allreduce after")
                self.assertLess(milliseconds(line), 2500 + 2000 * SLACK, line)
                self.assertEqual(run.error(rank, "allreduce again"), ("DDP_ERROR_TIMEOUT", 1))
            for rank in range(3):
                self.assertEqual(run.error(rank, "allreduce after"), ("DDP_ERROR_TIMEOUT", 1))

    def test_who_is_only_a_little_late_is_waited_for(self):
        run = self.a_little_late.finish()
        self.assertEqual(run.status, 0, run.story())
        for rank in range(2):
            self.assertTrue(run.of(rank, "allreduce after").endswith("fine"), run.story())

    def test_a_rank_that_stops(self):
        self.stopped.wait_for_line("rank 0: ends")
        for pid in run_mpi.children_of(self.stopped.process.pid):
            os.kill(pid, signal.SIGCONT)
        run = self.stopped.finish()
        for rank in range(2):
            self.assertEqual(run.error(rank, "survived"), ("DDP_ERROR_TIMEOUT", 1))

    def test_an_abort_ends_a_running_call_at_once(self):
        for job in self.aborted:
            run = job.finish()
            # 100 ms are promised; the machine may be busy.
            self.assertLess(milliseconds(run.of(0, "after the abort")), 400 * SLACK, run.story())
            for rank in range(3):
                self.assertEqual(run.error(rank, "allreduce after"), ("DDP_ERROR_ABORTED", 0))


class Ends(Test):
    """Processes that die, disagree, or end at different times."""

    @classmethod
    def start(cls):
        killed = ["killed", "finalize=0"]
        kill, abort = f"signal={int(signal.SIGKILL)}", f"signal={int(signal.SIGABRT)}"
        cls.outlived = [cls.launch(3, *killed, *how, flags=LET_LIVE)
                        for how in ([kill, "level=-1"], [abort, "level=2"])]
        cls.ended = [cls.launch(3, *killed, *how) for how in ([abort, "level=-1"], [kill, "level=2"])]
        # Ranks that disagree would make Open MPI crash: they are compared even if the program asks for the opposite.
        cls.disagreeing = cls.launch(3, "disagreeing", "unchecked=1", "timeout_ms=8000", flags=LET_LIVE)
        cls.threadless = cls.launch(2, "threadless", "timeout_ms=8000")
        cls.lingering = cls.launch(3, "join", "linger_rank=1", "linger=700")
        cls.too_long = cls.launch(2, "join", "linger_rank=1", "linger=1200", "options=finalize_timeout_ms=200", flags=LET_LIVE)

    def test_survivors_name_the_rank_that_died(self):
        for job in self.outlived:
            run = job.finish()
            for rank in (0, 2):
                self.assertEqual(run.error(rank, "survived"), ("DDP_ERROR_RANK_FAILED", 1))
                run.of(rank, "ends")

    def test_mpirun_may_end_the_job(self):
        for job in self.ended:
            run = job.finish()
            self.assertNotEqual(run.status, 0, run.story())
            self.assertNotIn("WRONG", run.story())

    def test_sizes_that_differ_end_no_process(self):
        run = self.disagreeing.finish()
        for rank in range(3):
            status, other = run.error(rank, "allreduce after")
            self.assertEqual(status, "DDP_ERROR_MISMATCH")
            self.assertGreaterEqual(other, 0)

    def test_a_communicator_for_which_there_is_no_thread(self):
        """Nothing is under way then: MPI is finalized, without which mpirun would fail."""
        run = self.threadless.finish()
        self.assertEqual(run.status, 0, run.story())
        for rank in range(2):
            self.assertTrue(run.of(rank, "joining after").endswith("fine"), run.story())
            status, first = run.error(rank, "joining again")
            self.assertEqual(status, "DDP_ERROR_LIMIT")
            self.assertTrue(0 <= first < 2, first)

    def test_processes_that_end_at_different_times(self):
        run = self.lingering.finish()
        self.assertEqual(run.status, 0, run.story())
        for rank in range(3):
            run.of(rank, "ends")

    def test_the_wait_for_others_is_bounded(self):
        run = self.too_long.finish()
        run.of(0, "ends")
        self.assertIn("exits without MPI_Finalize", run.story())


class Start(Test):
    @classmethod
    def start(cls):
        folder = cls.store()
        cls.bare = [cls.launch(None, "join", f"rank={rank}", "world=2", "timeout_ms=8000", folder=folder)
                    for rank in range(2)]
        cls.alone = cls.launch(None, "join", "rank=0", "world=1")
        folder = cls.store()
        cls.inside = cls.launch(2, "join", "world=3", "timeout_ms=8000", folder=folder)
        cls.outside = cls.launch(None, "join", "rank=2", "world=3", "timeout_ms=8000", folder=folder)
        # Each job has two processes, of which one joins: they are processes 0 and 1 of different worlds.
        folder = cls.store()
        cls.two_jobs = [cls.launch(2, "join", "world=2", "timeout_ms=8000", "level=3", f"join_only={rank}", folder=folder)
                        for rank in range(2)]
        cls.threads = cls.launch(2, "threads", "world=2", "timeout_ms=8000", "level=3", "join_only=0")
        cls.without = cls.launch(3, "join", "world=2", "timeout_ms=500", "join_only=0,1", "idle_ms=1500")

    def test_without_mpirun(self):
        for rank, job in enumerate(self.bare):
            run = job.finish()
            self.assertEqual(run.status, 0, run.story())
            line = run.of(rank, "joining")
            self.assertEqual(run.error(rank, "joining")[0], "DDP_ERROR_INVALID_STATE")
            self.assertIn("this process was not started by mpirun: start the ranks with it (mpirun -n 4 ./program)", line)
            self.assertLess(milliseconds(line), 4000)
            run.of(rank, "MPI was left alone")

    def test_a_rank_alone_needs_no_mpi(self):
        run = self.alone.finish()
        self.assertTrue(run.of(0, "joining").endswith("fine"), run.story())
        run.of(0, "MPI was left alone")

    def test_a_rank_outside_the_job(self):
        self.assertIn("DDP_ERROR_INVALID", self.outside.finish().of(2, "joining"))
        run = self.inside.finish()
        for rank in range(2):
            line = run.of(rank, "joining")
            self.assertIn("DDP_ERROR_INVALID", line)
            self.assertIn("mpirun", line)

    def test_ranks_of_two_jobs(self):
        for rank, job in enumerate(self.two_jobs):
            run = job.finish()
            self.assertEqual(run.error(rank, "joining"), ("DDP_ERROR_INVALID_ARGUMENT", 1))
            self.assertIn("rank 1 is a process of another MPI job", run.of(rank, "joining"))

    def test_two_ranks_in_one_process(self):
        run = self.threads.finish()
        for rank in range(2):
            self.assertEqual(run.error(0, f"joining as rank {rank}"), ("DDP_ERROR_INVALID_ARGUMENT", 1))
            self.assertIn("ranks 0 and 1 are both process 0", run.of(0, f"joining as rank {rank}"))

    def test_a_process_that_never_initialises_mpi(self):
        run = self.without.finish()
        for rank in range(2):
            line = run.of(rank, "joining")
            self.assertEqual(run.error(rank, "joining")[0], "DDP_ERROR_TIMEOUT")
            self.assertIn("MPI_Init_thread did not return", line)
            self.assertLess(milliseconds(line), 4000)
            run.of(rank, "ends")


if __name__ == "__main__":
    signal.alarm(110)  # before ctest's limit
    unittest.main(argv=[sys.argv[0]] + sys.argv[1:], verbosity=2)
