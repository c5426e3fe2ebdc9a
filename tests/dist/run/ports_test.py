"""DDP_PORTS: every port on which a job listens is an allowed one, also while others are taken and while two jobs share them.

Jobs run in network namespaces in which nobody else listens. Skipped (77) where these cannot be made. CMake tells where the programs are.
"""
import contextlib
import os
import pathlib
import re
import subprocess
import sys
import time
import unittest

TESTS = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TESTS / "support"), str(TESTS.parent / "tools/bench/runs")]
import namespaces  # noqa: E402  (tools/bench/runs)
from slack import SLACK  # noqa: E402  (tests/support)

WORKER = os.environ["DDP_FAILURE_WORKER"]
DDPRUN = os.environ["DDPRUN"]
ELASTIC = os.environ["DDP_ELASTIC_WORKER"]
SECRET = "a secret of this test's own, long enough"
FIRST, LAST = 20000, 20039
RANGE = f"{FIRST}-{LAST}"
BOUND_S = 60 * SLACK
TIMEOUT_MS = int(20_000 * SLACK)
WORK = ["join", "sum=70000", "sum=10", "pause=here", "sum=70000", "mark=done"]
BUSY = """
import socket, sys
held = []
for port in range(int(sys.argv[1]), int(sys.argv[2]) + 1):
    held.append(socket.socket())
    held[-1].bind((sys.argv[3], port))
    held[-1].listen()
print("held", flush=True)
sys.stdin.read()
"""


def environment(**more):
    return {**os.environ, "DDP_PORTS": RANGE, "DDP_SECRET": SECRET, **more}


class Case(unittest.TestCase):
    def setUp(self):
        self.link = namespaces.Link(None)
        self.link.__enter__()
        self.addCleanup(self.link.__exit__)

    def start(self, host, command, **variables):
        process = subprocess.Popen([*self.link.prefix(host), *map(str, command)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True, env=environment(**variables))

        def end():
            if process.poll() is None:
                process.kill()
            with contextlib.suppress(ValueError, BrokenPipeError):
                process.communicate(timeout=BOUND_S)

        self.addCleanup(end)
        process.said = []
        return process

    def ranks(self, init, world=4, backend="tcp", **settings):
        """A rank on each host in turn."""
        settings = {"world": world, "init": init, "timeout": TIMEOUT_MS, "backend": backend, "secret": SECRET, **settings}
        return [self.start(rank % 2, [WORKER, f"rank={rank}", *(f"{key}={value}" for key, value in settings.items()), "--", *WORK])
                for rank in range(world)]

    def await_line(self, process, word):
        for line in process.stdout:
            process.said.append(line)
            if word in line:
                return
        self.fail(f"no '{word}' in: {''.join(process.said)}")

    def finish(self, processes):
        for process in processes:
            process.stdin.write("go\n")
            process.stdin.flush()
        for process in processes:
            said = "".join(process.said) + process.communicate(timeout=BOUND_S)[0]
            self.assertIn("at done ", said)
            self.assertNotIn("error ", said)
            self.assertEqual(set(re.findall(r"value wrong (\d+)", said)), {"0"}, said)

    def listening(self, host):
        """The ports on which somebody listens there."""
        table = subprocess.run([*self.link.prefix(host), "cat", "/proc/net/tcp", "/proc/net/tcp6"], stdout=subprocess.PIPE, text=True,
                               check=True).stdout
        rows = [line.split() for line in table.splitlines()]
        return sorted(int(row[1].rsplit(":", 1)[1], 16) for row in rows if len(row) > 3 and row[3] == "0A")

    def expect_allowed(self, host, at_least):
        ports = self.listening(host)
        self.assertGreaterEqual(len(ports), at_least, ports)
        self.assertEqual([port for port in ports if not FIRST <= port <= LAST], [])
        return ports

    def hold(self, host, first, last):
        """Takes these ports there."""
        holder = self.start(host, [sys.executable, "-c", BUSY, first, last, "0.0.0.0"])
        self.await_line(holder, "held")


class PortsTest(Case):
    def test_nobody_listens_elsewhere(self):
        for backend, settings in (("tcp", {}), ("tcp", {"options": "lanes=3"}), ("tcp", {"groups": 3}), ("hierarchical", {}), ("auto", {})):
            with self.subTest(backend, **settings):
                ranks = self.ranks(f"tcp://{self.link.addresses[0]}:{FIRST}", backend=backend, **settings)
                for rank in ranks:
                    self.await_line(rank, "at here ")
                with_store = self.expect_allowed(0, 2)
                self.assertIn(FIRST, with_store)
                # Groups share a port, and ranks that only have shared memory have none.
                self.assertLessEqual(len(self.expect_allowed(1, 1)), 2)
                self.finish(ranks)

    def test_two_jobs_share_the_ports(self):
        jobs = [self.ranks(f"tcp://{self.link.addresses[0]}:{FIRST + job}") for job in range(2)]
        for job in jobs:
            for rank in job:
                self.await_line(rank, "at here ")
        self.expect_allowed(0, 6)
        self.expect_allowed(1, 4)
        for job in jobs:
            self.finish(job)

    def test_ports_that_others_have_are_left_out(self):
        self.hold(1, FIRST + 2, LAST)
        ranks = self.ranks(f"tcp://{self.link.addresses[0]}:{FIRST}")
        for rank in ranks:
            self.await_line(rank, "at here ")
        self.assertEqual(len(self.expect_allowed(1, LAST - FIRST + 1)), LAST - FIRST + 1)
        self.finish(ranks)

    def test_a_range_that_is_used_up_is_an_error_that_says_so(self):
        self.hold(1, FIRST, LAST)
        begin = time.monotonic()
        ranks = self.ranks(f"tcp://{self.link.addresses[0]}:{FIRST}", world=2)
        for number, rank in enumerate(ranks):
            said = rank.communicate(timeout=BOUND_S)[0]
            self.assertIn("error DDP_ERROR_LIMIT", said)
            self.assertIn(f"cannot listen on {self.link.addresses[1]}: every port of DDP_PORTS={RANGE} is taken; give DDP_PORTS more ports",
                          said, number)
        self.assertLess(time.monotonic() - begin, TIMEOUT_MS / 1000)

    def test_a_store_with_port_0_has_an_allowed_one(self):
        server = self.start(0, [WORKER, f"init=tcp://{self.link.addresses[0]}:0", f"secret={SECRET}", "--", "serve"])
        self.await_line(server, "at serving ")
        self.assertEqual(self.expect_allowed(0, 1), [LAST])
        server.communicate("go\n", timeout=BOUND_S)

    def test_gloo_refuses(self):
        ranks = self.ranks(f"tcp://{self.link.addresses[0]}:{FIRST}", world=2, backend="gloo")
        said = ranks[0].communicate(timeout=BOUND_S)[0]
        self.assertIn("error DDP_ERROR_UNSUPPORTED", said)
        self.assertIn(f"DDP_PORTS={RANGE} allows only these; use backend tcp, or unset DDP_PORTS", said)


class PortsUnderDdprunTest(Case):
    """Under ddprun, with its store and its metrics."""

    def check(self, *words, here, at_least):
        ddprun = self.start(0, [DDPRUN, "--metrics", "127.0.0.1:0", *words])
        self.await_line(ddprun, here)
        ports = self.expect_allowed(0, at_least)
        self.assertIn(f"metrics: http://127.0.0.1:{LAST}/metrics\n", "".join(ddprun.said))
        return ddprun, ports

    def test_a_job(self):
        script = f"exec {WORKER} init=$DDP_STORE backend=tcp rank=$DDP_RANK world=2 timeout={TIMEOUT_MS} -- open join sum=70000 mark=here " \
                 "sleep=2000 sum=10 mark=done"
        ddprun, ports = self.check("-n", "2", "sh", "-c", script, here="at here ", at_least=4)
        self.assertEqual(len(ports), 4)  # metrics, store and two ranks
        said = ddprun.communicate(timeout=BOUND_S)[0]
        self.assertEqual((ddprun.returncode, said.count("at done ")), (0, 2), said)
        self.assertNotIn("error ", said)

    def test_an_elastic_job(self):
        words = ["init=env://", "backend=tcp", "steps=300", "min=2", "max=2", "pause=3000", f"timeout={TIMEOUT_MS}", "settle=2000"]
        ddprun, _ = self.check("-n", "2", "--min-ranks", "2", ELASTIC, *words, here="applied 5 ", at_least=4)
        said = ddprun.communicate(timeout=BOUND_S)[0]
        self.assertEqual((ddprun.returncode, said.count("done 300 ")), (0, 2), said)

    def test_env_is_for_ddprun_too(self):
        ddprun = self.start(0, [DDPRUN, "--env", "DDP_PORTS=20100-20109", "--metrics", "127.0.0.1:0", "sleep", "2"], DDP_PORTS="")
        self.await_line(ddprun, "metrics: http://127.0.0.1:20109/")
        self.assertEqual(ddprun.wait(BOUND_S), 0)

    def test_mistakes_are_refused_before_a_rank_starts(self):
        for value, words in (("20000", "DDP_PORTS: '20000' is not FIRST-LAST, such as 20000-20099"),
                             ("20099-20000", "DDP_PORTS: in 20099-20000 the first port is above the last"),
                             ("0-70000", "DDP_PORTS: 0 is not between 1 and 65535")):
            ddprun = self.start(0, [DDPRUN, "-n", "2", "echo", "started"], DDP_PORTS=value)
            said = ddprun.communicate(timeout=BOUND_S)[0]
            self.assertEqual(ddprun.returncode, 2, said)
            self.assertIn(words, said)
            self.assertNotIn("started", said)


if __name__ == "__main__":
    namespaces.skip_where_impossible()
    unittest.main(verbosity=2)
