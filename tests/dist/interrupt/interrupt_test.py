"""A rank whose program is interrupted while it waits: the wait ends at once, and the other ranks hear who was interrupted.

    interrupt_test.py [--few] [--stdin] [--beside WORKER] WORKER COMMAND...

WORKER COMMAND: as worker.c. --few: for one that starts slowly. --stdin: a line on its standard input interrupts it, not SIGINT.
--beside WORKER: a program that takes the other ranks' places in some of the tests, because it starts faster.
"""
import os
import pathlib
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from ports import free_port  # noqa: E402  (tests/support)
from slack import SLACK  # noqa: E402

COMMAND = []
BESIDE = None
BY_STDIN = FEW = False
LIMIT_S = 2.0 * SLACK  # for each wait; the timeout of all is 60 s
PROMISED_S = 0.3 * SLACK  # half of them end as soon as that
delays = []
START_S = 60.0 * SLACK
TEST_S = int(150 * max(1, SLACK / 3))  # for each test, before ctest's limit, so that the story of what hangs is not lost
VICTIM = 1
JOINING = r"rank \d of \d is here and waits for the others"


class Worker:
    """One process, and the lines that it has written."""

    def __init__(self, command, *arguments):
        self.lines = []
        self.launched_by_java = BY_STDIN and command is COMMAND
        self.changed = threading.Condition()
        self.process = subprocess.Popen([*command, *map(str, arguments)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, text=True, env={**os.environ, "DDP_LOG_LEVEL": "info"})
        # Two pipes: some languages write a line in pieces, and the log must not come between.
        self.streams = [self.process.stdout, self.process.stderr]
        self.readers = [threading.Thread(target=self.read, args=(stream,), daemon=True) for stream in self.streams]
        for reader in self.readers:
            reader.start()

    def read(self, stream):
        for line in stream:
            with self.changed:
                self.lines.append(line.rstrip("\n"))
                self.changed.notify_all()
        if stream is self.process.stdout:
            with self.changed:
                self.lines.append("end")
                self.changed.notify_all()

    def line(self, beginning, within):
        """Waits for a line that begins so, but for what the log puts before it."""
        def found():
            return next((line for line in self.lines if re.match(r"(libddp\[\d+\] info: group .*: )?" + beginning, line)), None)

        with self.changed:
            self.changed.wait_for(lambda: found() or "end" in self.lines, within)
            if not found():
                raise AssertionError(f"no line '{beginning}' within {within} s:\n" + "\n".join(self.lines))
            return found()

    def sleeps(self, within):
        """Waits until the program's thread has slept for a while: it has come to the call that waits, however long that was compiled."""
        tasks = pathlib.Path(f"/proc/{self.process.pid}/task")
        # Java's launcher calls main() on a second thread.
        thread = sorted(int(task.name) for task in tasks.iterdir())[1 if self.launched_by_java else 0]
        asleep = 0
        end = time.monotonic() + within
        while asleep < 10:
            if time.monotonic() > end:
                raise AssertionError(f"the program does not come to wait within {within} s:\n" + "\n".join(self.lines))
            state = (tasks / str(thread) / "stat").read_text().rpartition(")")[2].split()[0]
            asleep = asleep + 1 if state == "S" else 0
            time.sleep(0.02)

    def interrupt(self):
        if BY_STDIN:
            self.process.stdin.write("interrupt\n")
            self.process.stdin.flush()
        else:
            os.kill(self.process.pid, signal.SIGINT)
        return time.monotonic()

    def end(self):
        """A good end by itself."""
        status = self.process.wait(START_S)
        for reader in self.readers:
            reader.join(5)
        if status != 0:
            raise AssertionError(f"ended with {status}:\n" + "\n".join(self.lines))

    def remove(self):
        self.process.kill()
        self.process.wait()
        for reader in self.readers:
            reader.join(5)
        for stream in (self.process.stdin, *self.streams):
            stream.close()


class Interrupt(unittest.TestCase):
    def setUp(self):
        signal.alarm(TEST_S)
        self.workers = []
        self.folder = tempfile.mkdtemp(prefix="ddp-interrupt-")

    def tearDown(self):
        for worker in self.workers:
            worker.remove()
        shutil.rmtree(self.folder)

    def start(self, *arguments, command=None):
        self.workers.append(Worker(command or COMMAND, *arguments))
        return self.workers[-1]

    def uri(self, kind):
        return f"file://{self.folder}/store" if kind == "file" else f"tcp://127.0.0.1:{free_port()}"

    def expect(self, worker, word, since, *texts):
        """A line of the worker about how its wait ended, in time; returns its fields."""
        line = worker.line(f"{word} ", LIMIT_S + START_S)
        _, when, code, rank, message = line.split(" ", 4)
        self.assertLess(float(when) - since, LIMIT_S, line)
        delays.append(float(when) - since)
        self.assertEqual(code, "INTERRUPTED", line)
        for text in texts:
            self.assertIn(text, message)
        return float(when) - since, int(rank)

    def ask_to_stop(self, victim, others=(), sign="waiting"):
        """Interrupts the victim when it has waited for a while, and the others that wait are asleep too."""
        for worker in (victim, *others):
            worker.line(sign, START_S)
        time.sleep(0.5 * SLACK)
        for worker in (victim, *others):
            worker.sleeps(START_S)
        return victim.interrupt()

    def together(self, case, backend, purpose, kind="tcp", beside=None):
        """Three ranks: 0 waits, 1 waits and is interrupted, 2 does not come."""
        uri = self.uri(kind)
        waits, victim, sleeps = (self.start(case, rank, 3, uri, backend, command=None if rank == VICTIM else beside) for rank in range(3))
        since = self.ask_to_stop(victim, [waits])
        sentence = f"rank {VICTIM} was interrupted while it waited for {purpose}"
        took = []
        for worker, word in ((victim, "interrupted"), (waits, "error"), (sleeps, "error")):
            delay, rank = self.expect(worker, word, since, sentence)
            took.append(delay)
            self.assertEqual(rank, VICTIM)
        for worker in self.workers:
            worker.end()
        told = ", ".join(f"{1000 * delay:.0f}" for delay in took)
        print(f"{case} over {backend}, {kind}: {told} ms (interrupted, waiting, busy)", flush=True)

    def test_join_alone(self):
        """A rank in a REPL: nobody else is there. Rank 1 has not even a store."""
        for rank, kind, text in ((0, "tcp", "the other ranks of group"), (1, "tcp", "the store at tcp://"),
                                 (1, "file", "the other ranks of group")):
            victim = self.start("join", rank, 2, self.uri(kind), "auto")
            sign = JOINING if "other ranks" in text else "waiting"
            delay, _ = self.expect(victim, "interrupted", self.ask_to_stop(victim, sign=sign), text)
            victim.end()
            print(f"join as rank {rank} alone, {kind}: {1000 * delay:.0f} ms", flush=True)
            shutil.rmtree(self.folder)
            os.mkdir(self.folder)

    def test_join(self):
        """Two of three ranks are there."""
        uri = self.uri("tcp")
        waits, victim = (self.start("join", rank, 3, uri, "auto") for rank in range(2))
        since = self.ask_to_stop(victim, [waits], JOINING)
        sentence = f"rank {VICTIM} was interrupted while it waited for the other ranks of group 'world'"
        delay, _ = self.expect(victim, "interrupted", since, sentence)
        told, rank = self.expect(waits, "error", since, sentence)
        self.assertEqual(rank, VICTIM)
        waits.end()
        victim.end()
        print(f"join: {1000 * delay:.0f}, {1000 * told:.0f} ms (interrupted, waiting)", flush=True)

    def test_collectives(self):
        for case, purpose in (("barrier", "a barrier"), ("allreduce", "an allreduce"), ("work", "an allreduce"),
                              ("timed", "an allreduce"), ("finalize", "bucket 0 of step 0")):
            for backend in ("shm", "tcp"):
                if FEW and case != "finalize" and (case, backend) not in (("allreduce", "shm"), ("work", "tcp")):
                    continue
                with self.subTest(case=case, backend=backend):
                    self.together(case, backend, purpose, beside=BESIDE)

    def test_file_store(self):
        self.together("allreduce", "shm", "an allreduce", "file")

    def test_store(self):
        for kind, uri in (("tcp", "tcp://127.0.0.1:0"), ("file", self.uri("file"))):
            victim = self.start("store", 0, 1, uri, "auto")
            delay, _ = self.expect(victim, "interrupted", self.ask_to_stop(victim), "a wait for key 'nobody sets this'")
            victim.line("the store works", START_S)
            victim.end()
            print(f"store, {kind}: {1000 * delay:.0f} ms", flush=True)


class Silent(unittest.TestCase):
    """The store's process is stopped: the program does not wait for it."""

    def setUp(self):
        signal.alarm(TEST_S)

    def test_groups_that_take_turns(self):
        if BESIDE:
            self.skipTest("one language shows it")
        uri = f"tcp://127.0.0.1:{free_port()}"
        workers = [Worker(COMMAND, "turns", rank, 3, uri, "tcp") for rank in range(3)]
        try:
            for worker in workers:
                worker.line("waiting", START_S)
            time.sleep(0.5)
            for worker in workers:
                worker.sleeps(START_S)
            os.kill(workers[0].process.pid, signal.SIGSTOP)
            since = workers[VICTIM].interrupt()
            line = workers[VICTIM].line("interrupted ", LIMIT_S + START_S)
            _, when, code, rank, _ = line.split(" ", 4)
            delay = float(when) - since
            print(f"groups that take turns, store stopped: {1000 * delay:.0f} ms", flush=True)
            self.assertEqual((code, rank), ("INTERRUPTED", str(VICTIM)), line)
            self.assertLess(delay, 0.9 * SLACK, line)
        finally:
            for worker in workers:
                worker.remove()


def tearDownModule():
    if delays and statistics.median(delays) > PROMISED_S:
        raise AssertionError(f"the median of {len(delays)} waits took {statistics.median(delays):.2f} s to end")


def main():
    global COMMAND, BESIDE, BY_STDIN, FEW
    COMMAND = sys.argv[1:]
    while COMMAND[0].startswith("--"):
        option = COMMAND.pop(0)
        if option == "--beside":
            BESIDE = [COMMAND.pop(0)]
        FEW, BY_STDIN = FEW or option == "--few", BY_STDIN or option == "--stdin"
    unittest.main(argv=sys.argv[:1], verbosity=2)


main()
