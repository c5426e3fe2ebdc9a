"""Jobs of real processes (worker.c) over each kind of store, for the tests beside this file: started, watched, and ended by pid.

Every wait is bounded. CMake tells where the worker is through the variable DDP_FAILURE_WORKER. To run a part of the tests by hand:

    DDP_FAILURE_WORKER=build/.../dist_failure_worker python3 kill_test.py [-v] [Kill | RandomKill]
"""
import concurrent.futures
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from ports import free_port  # noqa: E402  (tests/support)
from slack import SLACK  # noqa: E402

WORKER = os.environ["DDP_FAILURE_WORKER"]
# The backend of the ranks. The ranks of a hierarchical group seem to be on two hosts, alternately.
BACKEND = os.environ.get("DDP_FAILURE_BACKEND", "tcp")
KINDS = ("tcp", "file", "launcher")
DEATH_S = 2.0 * SLACK  # how soon a death must be known everywhere
END_S = 2.0 * SLACK  # how long a rank may take to free everything afterwards
PATIENCE_S = 30.0 * SLACK  # for whatever is not measured


def stretched(timeout_ms):
    """A timeout that bounds joining, too: where processes take long to start, ranks that all come still must find each other."""
    return int(timeout_ms * max(1, SLACK / 2))


class Failure(AssertionError):
    pass


class RankError:
    """An "error" line of a worker."""

    def __init__(self, line):
        fields = line.split(" ", 8)
        self.code = fields[1].removeprefix("DDP_ERROR_")
        self.rank, self.param, self.bucket, self.step = map(int, fields[2:6])
        self.time = float(fields[6])
        self.verb, self.message = fields[7], fields[8]


class Worker:
    """One process, and what it has said so far."""

    def __init__(self, name, settings, verbs, env=None):
        self.name = name
        self.events, self.values, self.lines = {}, {}, []
        self.error = None
        self._changed = threading.Condition()
        command = [WORKER] + [f"{key}={value}" for key, value in settings.items()] + ["--"] + list(verbs)
        environment = {key: value for key, value in os.environ.items() if key != "DDP_SECRET"}
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                        env={**environment, **(env or {})})
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for raw in self.process.stdout:
            line = raw.decode(errors="replace").rstrip("\n")
            with self._changed:
                self.lines.append(line)
                if line.startswith("at "):
                    _, name, seconds = line.split(" ")
                    self.events[name] = float(seconds)
                elif line.startswith("value "):
                    _, name, number = line.split(" ")
                    self.values[name] = int(number)
                elif line.startswith("error "):
                    self.error = RankError(line)
                self._changed.notify_all()
        with self._changed:
            self.events.setdefault("end", time.monotonic())
            self._changed.notify_all()

    def wait_for(self, event):
        with self._changed:
            self._changed.wait_for(lambda: event in self.events or "end" in self.events, PATIENCE_S)
            if event not in self.events:
                raise Failure(f"{self.name} did not reach '{event}':\n{self.story()}")
            return self.events[event]

    def go(self):
        """Ends a pause."""
        self.process.stdin.write(b"go\n")
        self.process.stdin.flush()

    def signal(self, number):
        if self.process.poll() is None:
            os.kill(self.process.pid, number)
        return time.monotonic()

    def end(self, within=PATIENCE_S, status=0):
        """Waits for an end by itself, with this status."""
        try:
            ended_with = self.process.wait(within)
        except subprocess.TimeoutExpired:
            raise Failure(f"{self.name} hangs:\n{self.story()}\n{stacks(self.process.pid)}") from None
        self._reader.join(5)
        if ended_with != status:
            raise Failure(f"{self.name} ended with {ended_with}:\n{self.story()}")

    def remove(self):
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGKILL)
        self.process.wait()
        self._reader.join(5)
        self.process.stdin.close()
        self.process.stdout.close()

    def story(self):
        return "\n".join(f"    {line}" for line in self.lines[-20:])


def stacks(pid):
    """Where the threads of a process that hangs are, if gdb can tell."""
    if not shutil.which("gdb"):
        return ""
    command = ["gdb", "-p", str(pid), "-batch", "-ex", "thread apply all bt 14"]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).stdout[-12000:]


def listeners(port):
    """The inodes of the listening sockets that processes of this host have on this port."""
    wanted = f":{port:04X}"
    with open("/proc/net/tcp", encoding="ascii") as table:
        rows = [row.split() for row in table.readlines()[1:]]
    return {row[9] for row in rows if row[1].endswith(wanted) and row[3] == "0A"}


def listens(port):
    """Whether some process of this host has a listening socket on this port."""
    return bool(listeners(port))


def reaches(worker, port):
    """Whether a worker has a connection to this port of this host. Raises Failure where it has ended."""
    if worker.process.poll() is not None:
        raise Failure(f"{worker.name} has ended:\n{worker.story()}")
    wanted = f":{port:04X}"
    with open("/proc/net/tcp", encoding="ascii") as table:
        rows = [row.split() for row in table.readlines()[1:]]
    ends = {f"socket:[{row[9]}]" for row in rows if row[2].endswith(wanted) and row[3] == "01"}
    folder = f"/proc/{worker.process.pid}/fd"
    try:
        return any(os.readlink(f"{folder}/{name}") in ends for name in os.listdir(folder))
    except OSError:  # one was closed meanwhile
        return False


def wait_until(condition, within=PATIENCE_S):
    end = time.monotonic() + within
    while not condition():
        if time.monotonic() > end:
            raise Failure("what was waited for did not happen")
        time.sleep(0.01)


def shared_memory():
    """libddp's files there, without the records of ddprun, because other tests run it at the same time."""
    return {name for name in os.listdir("/dev/shm") if "ddp" in name and not name.startswith(("ddprun-", "fuzz-of-ddp-"))}


class Job:
    """The ranks that meet in one store. Leaving the `with` block ends them all and checks that nothing is left."""

    def __init__(self, kind, world, timeout_ms=20_000, uri=None, **settings):
        """uri: of a store that is not the job's own."""
        self.kind, self.world, self.uri = kind, world, uri
        self.timeout_ms = stretched(timeout_ms)
        self.timeout_s = self.timeout_ms / 1000
        self.told_s = self.timeout_s + 3.0 * SLACK  # how soon a timeout must be known everywhere
        self.settings = {"world": world, "timeout": self.timeout_ms, **settings}
        self.ranks = {}
        self.extra = []
        self.files_may_stay = False

    def __enter__(self):
        self.shm = shared_memory()
        self.folder = tempfile.mkdtemp(prefix="ddp-failure-")
        self.port = free_port() if self.kind == "tcp" else None
        if self.kind == "launcher":
            server = Worker("store server", {"init": "tcp://127.0.0.1:0"}, ["serve"])
            self.extra.append(server)
            server.wait_for("serving")
            self.port = server.values["port"]
        if not self.uri:
            self.uri = f"file://{self.folder}/store" if self.kind == "file" else f"tcp://127.0.0.1:{self.port}"
        return self

    def worker(self, rank, verbs, **settings):
        """Starts a process that is not (or not yet) counted among the ranks."""
        first = ["open"] if self.kind == "launcher" else []
        host = {"DDP_HOST_ID": f"host {rank % 2}"} if BACKEND == "hierarchical" else {}
        settings = {"rank": rank, "init": self.uri, "backend": BACKEND, **self.settings, **settings}
        worker = Worker(f"rank {rank}", settings, first + list(verbs), host)
        self.extra.append(worker)
        return worker

    def start(self, rank, verbs, **settings):
        self.ranks[rank] = self.worker(rank, verbs, **settings)
        return self.ranks[rank]

    def all_at(self, event):
        return max(worker.wait_for(event) for worker in self.ranks.values())

    def others(self, *ranks):
        return {rank: worker for rank, worker in self.ranks.items() if rank not in ranks}

    def __exit__(self, kind, value, trace):
        for worker in self.extra:
            worker.remove()
        left = os.listdir(self.folder)
        shutil.rmtree(self.folder)
        if kind:
            return
        if left and not self.files_may_stay:
            raise Failure(f"left behind: {left}")
        if self.port and listens(self.port):
            raise Failure(f"port {self.port} is still listened on")
        if shared_memory() - self.shm:
            raise Failure(f"left in /dev/shm: {shared_memory() - self.shm}")


def expect_error(workers, code, rank=None, since=None, within=None, words=(), never=()):
    """All workers must report this error in time, then free what they have and end well. Returns the longest delay."""
    longest = 0.0
    for worker in workers:
        worker.end()
        error = worker.error
        if error is None:
            raise Failure(f"{worker.name} noticed nothing:\n{worker.story()}")
        codes = (code,) if isinstance(code, str) else code
        if error.code not in codes or (rank is not None and error.rank != rank):
            raise Failure(f"{worker.name}: expected {code} naming rank {rank}:\n{worker.story()}")
        for word in words:
            if word not in error.message:
                raise Failure(f"{worker.name}: '{word}' is missing:\n{worker.story()}")
        for word in never:
            if word in error.message:
                raise Failure(f"{worker.name}: '{word}' misleads:\n{worker.story()}")
        ending = worker.wait_for("freed") - error.time
        if ending > END_S:
            raise Failure(f"{worker.name}: freeing took {ending:.2f} s")
        if since is not None:
            longest = max(longest, error.time - since)
            if error.time - since > within:
                raise Failure(f"{worker.name}: took {error.time - since:.2f} s:\n{worker.story()}")
    return longest


def expect_fine(workers):
    for worker in workers:
        worker.end()
        if worker.error:
            raise Failure(f"{worker.name} failed:\n{worker.story()}")


def expect_in_step(workers, step):
    for worker in workers:
        if worker.error.bucket < 0 or worker.error.step != step:
            raise Failure(f"{worker.name}: no bucket of step {step} is named:\n{worker.story()}")


def run_all(scenarios, at_once):
    """Runs (name, function, arguments) a few at a time; tells the slowest; fails with all failures together."""
    failures, delays = [], {}

    def run(name, function, arguments):
        try:
            delays[name] = function(*arguments) or 0.0
        except Failure as failure:
            failures.append(f"--- {name}\n{failure}")

    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        # A worker dies with the thread that started it, so the pool's threads stay until all scenarios are through.
        for future in [pool.submit(run, *scenario) for scenario in scenarios]:
            future.result()
    if delays:
        slowest = max(delays, key=delays.get)
        print(f"{len(scenarios)} scenarios; slowest: {slowest}, {delays[slowest] * 1000:.0f} ms", flush=True)
    if failures:
        raise Failure(f"{len(failures)} of {len(scenarios)}:\n" + "\n".join(failures))


READY = ["join", "params=4", "commit", "steps=2"]  # a rank that has trained for two steps


def main(at_most_s=170):
    """Ends each test file. The alarm comes before ctest's limit, so that the story of what hangs is not lost."""
    signal.alarm(at_most_s)
    unittest.main(argv=[sys.argv[0]] + sys.argv[1:], verbosity=2)
