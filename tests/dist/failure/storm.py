"""A storm of joins: faults of one rank while a group is joined, and in its first collectives. No abort, no hang, no wrong name.

    storm.py                  a part of the scenarios, for the suite
    storm.py --count 300      all of them
    storm.py --seed 17        one, with everything that its ranks say
    storm.py --class cut      those of one class (see storm_scenario.py)
    storm.py --fixed          those that are not left to chance; with --seed only one of these

Each scenario is made of its seed alone, but the moment of a signal among the events of the ranks is not. CMake tells where the worker
and ddprun are through DDP_FAILURE_WORKER and DDPRUN; --build does so by hand: storm.py --build build/asan --slack 2.
"""
import argparse
import collections
import contextlib
import ctypes
import json
import os
import pathlib
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from slack import SLACK  # noqa: E402  (tests/support)
from store_proxy import Proxy  # noqa: E402
from storm_scenario import CLASSES, Outcome, Scenario, fixed_scenarios, judge  # noqa: E402

BEGIN_S = 60  # until a process is ready
PR_SET_CHILD_SUBREAPER = 36


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=40, help="scenarios")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="only this scenario")
    parser.add_argument("--repeat", type=int, default=1, help="run each so often")
    parser.add_argument("--class", dest="kind", choices=CLASSES, help="only this class")
    parser.add_argument("--fixed", action="store_true", help="the scenarios that are written down")
    parser.add_argument("--jobs", type=int, default=3, help="scenarios at once")
    parser.add_argument("--slack", type=float, default=SLACK, help="how much slower the build is")
    parser.add_argument("--build", type=pathlib.Path, help="a build folder")
    parser.add_argument("--sanitizer", default=os.environ.get("DDP_STORM_SANITIZER", ""), help="the sanitizer of that build")
    parser.add_argument("--verbose", "-v", action="store_true")
    given = parser.parse_args()
    if given.build:
        os.environ["DDP_FAILURE_WORKER"] = str(given.build.resolve() / "tests/dist/failure/dist_failure_storm_worker")
        os.environ["DDPRUN"] = str(given.build.resolve() / "tools/run/ddprun")
    return given


GIVEN = arguments()
import jobs  # noqa: E402  (needs the worker's place)


class Process:
    """A worker: what it says, and how it ends."""

    def __init__(self, rank, settings, env, victim):
        self.rank, self.victim = rank, victim
        self.result, self.text, self.freed_ms = None, [], None
        self._said = threading.Condition()
        self._ready = self._ended = False
        command = [jobs.WORKER] + [f"{key}={value}" for key, value in settings.items()]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for raw in self.process.stdout:
            text = raw.decode(errors="replace").rstrip("\n")
            with self._said:
                if text == "ready":
                    self._ready = True
                elif text.startswith('{"rank"'):
                    self.result = json.loads(text)
                elif text.startswith("freed in "):
                    self.freed_ms = float(text.split()[2])
                else:
                    self.text.append(text)
                self._said.notify_all()
        with self._said:
            self._ended = True
            self._said.notify_all()

    def wait_ready(self):
        with self._said:
            self._said.wait_for(lambda: self._ready or self._ended, BEGIN_S)
            if not self._ready:
                raise RuntimeError("a worker did not begin:\n" + "\n".join(self.text))

    def wait_result(self, end):
        with self._said:
            self._said.wait_for(lambda: self.result or self._ended, max(0, end - time.monotonic()))
            return self.result is not None or self._ended

    def go(self):
        with contextlib.suppress(BrokenPipeError):  # it has ended
            os.write(self.process.stdin.fileno(), b"go\n")

    def send(self, number):
        if self.process.poll() is None:
            os.kill(self.process.pid, number)

    def finish(self, hung, within):
        """Ends it, by force if need be, and says how it was."""
        if not hung:
            try:
                self.process.wait(within)
            except subprocess.TimeoutExpired:
                hung = "it did not end:\n" + jobs.stacks(self.process.pid)
        if hung:
            self.remove()
        self.process.wait()
        self._reader.join(5)
        output = "\n".join(self.text)
        return Outcome(self.rank, self.victim, self.result, self.process.returncode, output, hung, self.freed_ms)

    def remove(self):
        self.send(signal.SIGKILL)
        self.process.wait()

    def close(self):
        self.remove()
        self._reader.join(5)
        self.process.stdin.close()
        self.process.stdout.close()


class Launcher:
    """ddprun, for the store that it hosts."""

    def __init__(self, env):
        command = [os.environ["DDPRUN"], "-n", "1", "--no-tag", "--grace", "1", jobs.WORKER, "environment"]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=env)
        said = json.loads(self.process.stdout.readline())
        self.port = int(said["store"].rsplit(":", 1)[1])
        self.secret = said["secret"]

    def close(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()


class Run:
    """One scenario, carried out."""

    def __init__(self, scenario):
        self.scenario = scenario
        self.complaints, self.outcomes = [], []

    def __call__(self):
        s = self.scenario
        folder = tempfile.mkdtemp(prefix="ddp-storm-")
        os.chmod(folder, 0o777)
        open_things = []
        try:
            self._carry_out(folder, open_things)
        finally:
            for thing in reversed(open_things):
                thing.close()
            left = os.listdir(folder)
            shutil.rmtree(folder, ignore_errors=True)
        # The last one deletes the file of a store. It may be a rank that is stopped, or killed just then.
        last = s.may_end_by_signal and (s.stays_stopped or any(o.victim and o.result for o in self.outcomes))
        if left and not (last and left == ["store"]):
            self.complaints.append(("leftover", f"files {left}"))
        # ddprun's port is one that the system gives to anybody, so another test may listen on it now.
        if self.port and (jobs.listeners(self.port) & self.of_launcher if self.of_launcher else jobs.listens(self.port)):
            self.complaints.append(("leftover", f"port {self.port} is still listened on"))
        return self

    def _carry_out(self, folder, open_things):
        s = self.scenario
        env = {key: value for key, value in os.environ.items() if not key.startswith("DDP_")}
        # Looking for leaks needs memory and files that a rank may not have.
        env.update({"TMPDIR": folder, "ASAN_OPTIONS": f"{os.environ.get('ASAN_OPTIONS', '')}:detect_leaks=0"})
        self.port, self.of_launcher = None, None
        if s.store == "launcher":
            launcher = Launcher(env)
            open_things.append(launcher)
            self.port = launcher.port
            self.of_launcher = jobs.listeners(self.port)
            env.update({"DDP_STORE_HOSTED": "launcher", "DDP_SECRET": launcher.secret})
        elif s.store == "tcp":
            self.port = jobs.free_port()
        port_of_victim, proxy = self.port, None
        if s.proxy:
            direction, after, action = s.proxy
            if action in ("kill", "stop"):
                number = signal.SIGKILL if action == "kill" else signal.SIGSTOP
                action = lambda: self._strike(number)  # noqa: E731
            proxy = Proxy(self.port, direction, after, action)
            open_things.append(proxy)
            port_of_victim = proxy.port

        plan = [(rank, rank == s.victim) for rank in range(s.world) if not (s.kind == "absent" and rank == s.victim)]
        if s.kind == "two of one rank":
            plan.append((s.victim, True))
        processes, self.victims = [], []
        for rank, victim in plan:
            port = port_of_victim if victim else self.port
            process = Process(rank, self._settings(rank, victim, folder, port), self._environment(env, rank, port), victim)
            open_things.append(process)
            processes.append(process)
            if victim:
                self.victims.append(process)
        for process in processes:
            process.wait_ready()
        self._let_go(processes)
        self._collect(processes)

    def _settings(self, rank, victim, folder, port):
        s = self.scenario
        backend, _, groups = s.backend.partition(" x")
        settings = {"timeout": int(s.timeout_ms(GIVEN.slack)), "backend": backend, "count": s.count}
        if groups:
            settings["groups"] = groups
        if s.store != "launcher":
            uri = f"file://{folder}/store" if s.store == "file" else f"tcp://127.0.0.1:{port}"
            settings.update({"rank": rank, "world": s.world, "init": uri})
        if backend == "tcp" and s.world % 2 == 1:
            settings["options"] = "lanes=2"
        if s.uid:
            settings["uid"] = s.uid
        if victim:
            settings.update(s.settings)
        return settings

    def _environment(self, env, rank, port):
        s = self.scenario
        env = dict(env)
        if s.store == "launcher":
            env.update({"DDP_RANK": str(rank), "DDP_WORLD_SIZE": str(s.world), "DDP_STORE": f"tcp://127.0.0.1:{port}"})
        if s.backend == "hierarchical":
            env["DDP_HOST_ID"] = f"host {rank % 2}"
        return env

    def _strike(self, number):
        self.victims[0].send(number)

    def _let_go(self, processes):
        """Lets each rank begin at its time, and carries out the signals."""
        s = self.scenario
        events, seen = [], set()
        for process in processes:
            late = s.stagger[process.rank]
            if process.rank in seen:
                late += s.second_after
            seen.add(process.rank)
            events.append((late, process.go))
        if s.signal_after is not None:
            number = signal.SIGKILL if s.kind == "kill" or s.kind == "kill at" else signal.SIGSTOP
            events.append((s.signal_after, lambda: self._strike(number)))
            if s.continue_after is not None:
                events.append((s.signal_after + s.continue_after, lambda: self._strike(signal.SIGCONT)))
        begin = time.monotonic()
        for moment, action in sorted(events, key=lambda event: event[0]):
            time.sleep(max(0, begin + moment - time.monotonic()))
            action()

    def _collect(self, processes):
        s = self.scenario
        groups = s.groups
        bound = (3 + groups) * s.timeout_ms(GIVEN.slack) / 1000 + 15 * GIVEN.slack
        end = time.monotonic() + bound
        waited_for = [p for p in processes if not (p.victim and s.stays_stopped)]
        hung = {}
        for process in waited_for:
            if not process.wait_result(end):
                hung[process] = "no result:\n" + jobs.stacks(process.process.pid)
            elif not s.hold and process.result and process.result["at"] != "all":
                process.go()  # one that failed goes at once
        for process in processes:
            if process.victim and s.stays_stopped:
                process.remove()
        for process in processes:
            if process not in hung:
                process.go()
        for process in processes:
            self.outcomes.append(process.finish(hung.get(process, ""), 10 * GIVEN.slack + groups))
        self.complaints += judge(s, self.outcomes, GIVEN.slack)


def left_children():
    """Processes that others left behind: they become this one's."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass  # one that had ended
    me = os.getpid()
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", encoding="ascii", errors="replace") as stat:
                    fields = stat.read()
            except OSError:
                continue
            if int(fields.rsplit(")", 1)[1].split()[1]) == me:
                found.append(fields.split(" (")[0] + " " + fields.split("(")[1].split(")")[0])
    return found


def table(runs):
    rows = collections.defaultdict(collections.Counter)
    kinds = sorted({kind for run in runs for kind, _ in run.complaints})
    for run in runs:
        row = rows[run.scenario.kind]
        row["runs"] += 1
        row["joined"] += all(o.fine for o in run.outcomes if not o.victim)
        for kind in {kind for kind, _ in run.complaints}:
            row[kind] += 1
    columns = ["runs", "joined", *kinds]
    print(f"{'class':20}" + "".join(f"{name:>10}" for name in columns))
    for kind in CLASSES:
        if kind in rows:
            print(f"{kind:20}" + "".join(f"{rows[kind][name] or '':>10}" for name in columns))
    total = sum(rows.values(), collections.Counter())
    print(f"{'all':20}" + "".join(f"{total[name]:>10}" for name in columns), flush=True)


def tell(run, everything):
    print(f"\n--- seed {run.scenario.seed}, {run.scenario.name}")
    for kind, text in run.complaints:
        print(f"    {kind.upper()}: {text}")
    if everything:
        for outcome in run.outcomes:
            print(f"    {outcome}")
    sys.stdout.flush()


def main():
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    if GIVEN.fixed:
        scenarios = [s for s in fixed_scenarios(GIVEN.sanitizer) for _ in range(GIVEN.repeat) if GIVEN.seed in (None, s.seed)]
        return run(scenarios)
    seeds = [GIVEN.seed] if GIVEN.seed is not None else range(GIVEN.first, GIVEN.first + GIVEN.count)
    scenarios = [Scenario(seed, GIVEN.sanitizer) for seed in seeds for _ in range(GIVEN.repeat)]
    return run([s for s in scenarios if GIVEN.kind in (None, s.kind)])


def run(scenarios):
    todo = queue.SimpleQueue()
    for scenario in scenarios:
        todo.put(scenario)
    runs, lock, broken = [], threading.Lock(), []
    shm = jobs.shared_memory()

    def work():
        while True:
            try:
                scenario = todo.get_nowait()
            except queue.Empty:
                return
            try:
                run = Run(scenario)()
            except Exception as error:  # noqa: BLE001  (a defect of this program, told with the scenario)
                broken.append(f"seed {scenario.seed}: {type(error).__name__}: {error}")
                continue
            with lock:
                runs.append(run)
                if run.complaints or GIVEN.verbose or GIVEN.seed is not None:
                    tell(run, True)

    # A worker dies with the thread that started it: these live until all are through.
    threads = [threading.Thread(target=work) for _ in range(min(GIVEN.jobs, len(scenarios)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    time.sleep(0.1)
    failures = sum(bool(run.complaints) for run in runs)
    table(runs)
    for what, found in (("processes", left_children()), ("shared memory", sorted(jobs.shared_memory() - shm)), ("broken", broken)):
        if found:
            failures += 1
            print(f"{what}: {found}")
    print(f"{len(runs)} scenarios, {failures} failures", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
