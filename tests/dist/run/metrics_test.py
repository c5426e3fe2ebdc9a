"""ddprun --metrics: what it serves of a job that runs, and what clients can do to it (nothing)."""
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import time
import unittest
import urllib.error
import urllib.request

from ddprun_support import PACE, PYTHON, SLACK, Case, free_port, run, until

PARAM_BYTES = 2 * 250 * 4  # of one step
SAMPLES = 32
LINE = re.compile(r'(\w+)(?:\{(.*)\})? (\S+)$')


def parse(text):
    """{name: {labels: value}}; labels are a frozenset of pairs. Fails on what Prometheus would refuse."""
    values, types = {}, {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name not in types, f"{name} has two types"
            types[name] = kind
        if line.startswith("#"):
            continue
        name, labels, value = LINE.fullmatch(line).groups()
        assert name in types, f"{name} has no type"
        assert types[name] == "counter" if name.endswith("_total") else types[name] == "gauge", name
        key = frozenset(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', labels or ""))
        assert key not in values.setdefault(name, {}), f"twice: {line}"
        values[name][key] = float(value)
    return values


class Scrape:
    def __init__(self, url):
        with urllib.request.urlopen(url, timeout=20 * SLACK) as response:
            self.type = response.headers["Content-Type"]
            self.text = response.read().decode()
        self.values = parse(self.text)

    def __call__(self, name, **labels):
        """The value of the only series with these labels, or None."""
        wanted = {(key, str(value)) for key, value in labels.items()}
        found = [value for key, value in self.values.get("libddp_" + name, {}).items() if wanted <= key]
        assert len(found) <= 1, (name, labels, found)
        return found[0] if found else None


class MetricsTest(Case):
    def start_job(self, ranks, steps, *fault, options=(), env=None):
        """Returns ddprun and the address of its metrics."""
        self.done = self.path("done")
        process = self.start("-n", ranks, "--metrics", "127.0.0.1:0", *options, PACE, steps, self.done, *fault,
                             env={**os.environ, **(env or {})})
        return process, self.address(process)

    def address(self, process):
        line = process.stderr.readline().decode()
        found = re.fullmatch(r"ddprun(?: on \S+)?: metrics: (http://127\.0\.0\.1:(\d+)/metrics)\n", line)
        self.assertTrue(found, line)
        return found[1], int(found[2])

    def end_job(self, process, status=0):
        self.write("done", "")
        out, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, status, (out, err))

    def await_scrape(self, url, condition, bound=30):
        last = []

        def look():
            last[:] = [Scrape(url)]
            return condition(last[0])

        self.assertTrue(until(look, bound * SLACK), last and last[0].text)
        return last[0]

    def test_what_the_job_did(self):
        steps = 60
        process, (url, _) = self.start_job(3, steps)
        seen = self.await_scrape(url, lambda now: all(now("steps_total", rank=rank) == steps for rank in range(3)))
        self.assertEqual(seen.type, "text/plain; version=0.0.4; charset=utf-8")
        self.assertEqual(seen("job_ranks"), 3)
        self.assertEqual(seen("job_restarts_total"), 0)
        self.assertEqual(seen("records"), 3)
        self.assertEqual(seen("group_ranks"), 3)
        self.assertEqual(seen("group_broken"), 0)
        for rank in range(3):
            self.assertEqual(seen("synced_steps_total", rank=rank), steps)
            self.assertEqual(seen("step", rank=rank), steps - 1)
            self.assertGreaterEqual(seen("collectives_total", rank=rank), steps)
            self.assertGreaterEqual(seen("collective_bytes_total", rank=rank), steps * PARAM_BYTES)
            self.assertLess(seen("collective_bytes_total", rank=rank), 2 * steps * PARAM_BYTES)
            self.assertGreater(seen("collective_seconds_total", rank=rank), 0)
            self.assertGreaterEqual(seen("step_seconds", rank=rank), 0.005)
            self.assertAlmostEqual(seen("samples_per_second", rank=rank) * seen("step_seconds", rank=rank), SAMPLES, 3)
            self.assertEqual(seen("rank_up", rank=rank), 1)
            self.assertEqual(seen("rank_state", rank=rank, state="running"), 1)
            self.assertEqual(seen("rank_position", rank=rank, position="program"), 1)
            self.assertEqual(seen("rank_position", rank=rank, position="backward"), 0)
            for part in ("late", "late_in_hook", "wait", "transfer", "last_event_age"):
                self.assertGreaterEqual(seen(part + "_seconds", rank=rank), 0)
        self.assertIsNone(seen("remaining_seconds", rank=0))  # nothing is left
        self.end_job(process)

    def test_counters_grow_when_the_ring_goes_round(self):
        steps = 200
        process, (url, _) = self.start_job(2, steps, env={"DDP_RECORD_EVENTS": "64"})
        counters = {}

        def look(now):
            for name, series in now.values.items():
                for key, value in series.items():
                    if name.endswith("_total"):
                        self.assertGreaterEqual(value, counters.get((name, key), 0), name)
                        counters[name, key] = value
            return all(now("steps_total", rank=rank) == steps for rank in range(2))

        seen = self.await_scrape(url, look)
        self.assertGreaterEqual(seen("collective_bytes_total", rank=0), steps * PARAM_BYTES)
        self.end_job(process)

    def test_slow_rank(self):
        process, (url, _) = self.start_job(3, 60, "late")
        seen = self.await_scrape(url, lambda now: now("steps_total", rank=0) == 60)
        self.assertGreater(seen("late_seconds", rank=1), 0.010)
        self.assertGreater(seen("late_seconds", rank=1), 2 * seen("late_seconds", rank=0))
        self.assertGreater(seen("wait_seconds", rank=0), 0.010)
        self.assertGreater(seen("collective_seconds_total", rank=0), seen("collective_seconds_total", rank=1))
        self.end_job(process)

    def test_stopped_rank(self):
        process, (url, _) = self.start_job(3, 60, "stop")
        seen = self.await_scrape(url, lambda now: now("group_held_up_by", rank=1, kind="stopped") == 1)
        self.assertEqual(seen("rank_state", rank=1, state="stopped"), 1)
        self.assertEqual(seen("rank_state", rank=1, state="running"), 0)
        self.assertEqual(seen("rank_up", rank=1), 1)
        self.assertEqual(seen("rank_position", rank=1, position="backward"), 1)
        self.assertEqual(seen("rank_position", rank=0, position="finalize"), 1)
        self.assertEqual(seen("steps_total", rank=1), 5)
        self.assertEqual(seen("step", rank=1), 5)
        self.assertEqual(seen("gradients_announced", rank=1), 1)
        self.assertEqual(seen("gradients_expected", rank=1), 2)
        self.assertGreater(seen("collective_age_seconds", rank=0), 0.9)
        self.assertGreater(seen("last_event_age_seconds", rank=1), 0.9)
        [key] = [key for key in seen.values["libddp_rank_info"] if ("rank", "1") in key]
        os.kill(int(dict(key)["pid"]), signal.SIGCONT)
        seen = self.await_scrape(url, lambda now: now("steps_total", rank=1) == 60)
        self.assertIsNone(seen("group_held_up_by"))
        self.end_job(process)

    def test_verdict_and_end(self):
        """A rank that leaves out a gradient breaks the group. The others wait for the file before they say so."""
        code = ("import subprocess, sys, time, os\n"
                "status = subprocess.call(sys.argv[2:])\n"
                "while not os.path.exists(sys.argv[1]): time.sleep(0.01)\n"
                "sys.exit(status)")
        process = self.start("-n", 2, "--metrics", "127.0.0.1:0", PYTHON, "-c", code, self.path("done"), PACE, 20,
                             self.path("done"), "skip")
        url, _ = self.address(process)
        seen = self.await_scrape(url, lambda now: now("rank_state", rank=0, state="ended") == 1)
        self.assertEqual(seen("group_broken"), 1)
        self.assertEqual(seen("group_verdict", rank=1), 1)
        self.assertEqual(seen("rank_up", rank=0), 0)
        self.end_job(process, 3)

    def test_names_of_groups_are_harmless(self):
        process, (url, _) = self.start_job(2, 5, env={"GROUP": 'a"b\\c\x1b[31m\xe4'})
        seen = self.await_scrape(url, lambda now: now("steps_total", rank=0) == 5)
        self.assertEqual(dict(next(iter(seen.values["libddp_group_ranks"])))["group"], 'a\\"b\\\\c\\\\x1b[31m\xe4')
        self.end_job(process)

    def test_nothing_secret(self):
        process, (url, port) = self.start_job(2, 5, env={"TOKEN": "hush-hush"})
        seen = self.await_scrape(url, lambda now: now("steps_total", rank=0) == 5)
        environment = pathlib.Path(f"/proc/{self.pid_of(seen, 0)}/environ").read_bytes().split(b"\0")
        [secret] = [text.partition(b"=")[2] for text in environment if text.startswith(b"DDP_SECRET=")]
        self.assertNotIn(secret.decode(), seen.text)
        self.assertNotIn("hush-hush", seen.text)
        self.end_job(process)

    @staticmethod
    def pid_of(seen, rank):
        [key] = [key for key in seen.values["libddp_rank_info"] if ("rank", str(rank)) in key]
        return int(dict(key)["pid"])

    def test_restart(self):
        """A restart has records of its own."""
        code = "import os, sys; os.environ['DDP_RESTART'] == '1' and os.execv(sys.argv[1], sys.argv[1:]); sys.exit(4)"
        process = self.start("-n", 2, "--max-restarts", 1, "--metrics", "127.0.0.1:0", PYTHON, "-c", code, PACE, 5,
                             self.path("done"))
        url, _ = self.address(process)
        seen = self.await_scrape(url, lambda now: now("steps_total", rank=1) == 5)
        self.assertEqual(seen("job_restarts_total"), 1)
        self.end_job(process)

    def test_each_node_serves_its_own_ranks(self):
        port = free_port()
        secret = self.write("secret", "0123456789abcdef0123456789abcdef")
        nodes = [self.start("--nnodes", 2, "--node-rank", node, "-n", 2, "--rdzv", f"127.0.0.1:{port}", "--secret-file",
                            secret, "--metrics", "127.0.0.1:0", PACE, 20, self.path("done")) for node in range(2)]
        for node, process in enumerate(nodes):
            url, _ = self.address(process)
            ranks = [2 * node, 2 * node + 1]
            seen = self.await_scrape(url, lambda now: all(now("steps_total", rank=rank) == 20 for rank in ranks))
            self.assertEqual({dict(key)["rank"] for key in seen.values["libddp_steps_total"]}, {str(rank) for rank in ranks})
            self.assertEqual(seen("group_ranks"), 4)
            self.assertIsNone(seen("late_seconds", rank=ranks[0]))  # nobody knows here when the others came
            self.assertGreater(seen("collective_seconds_total", rank=ranks[0]), 0)
        self.write("done", "")
        for process in nodes:
            self.end_job(process)

    def test_address(self):
        for bad in ("9400", "host:", ":1", "127.0.0.1:65536", "127.0.0.1:-1", "::1:80"):
            result = run("--metrics", bad, "true")
            self.expect(result, 2)
            self.assertIn(b"--metrics", result.err)
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            result = run("--metrics", f"127.0.0.1:{port}", "touch", self.path("started"))
            self.expect(result, 1)
            self.assertIn(f"--metrics: cannot listen on 127.0.0.1 port {port}: Address already in use".encode(), result.err)
            self.assertFalse(os.path.exists(self.path("started")))
        result = run("--metrics", "192.0.2.1:0", "touch", self.path("started"))  # an address of documentation
        self.expect(result, 1)
        self.assertIn(b"--metrics: cannot listen on 192.0.2.1", result.err)
        self.assertFalse(os.path.exists(self.path("started")))

    def test_two_jobs_do_not_share_a_port(self):
        process, (_, port) = self.start_job(1, 1)
        result = run("--metrics", f"127.0.0.1:{port}", "true")
        self.expect(result, 1)
        self.assertIn(b"Address already in use", result.err)
        self.end_job(process)

    def ask(self, port, request, bound=20):
        """The bytes that come back until the connection ends; b"" too if it is reset."""
        answer = b""
        with socket.create_connection(("127.0.0.1", port), timeout=bound * SLACK) as client:
            try:
                client.sendall(request)
                while piece := client.recv(65536):
                    answer += piece
            except (ConnectionResetError, BrokenPipeError):
                pass
        return answer

    def test_other_requests(self):
        process, (url, port) = self.start_job(2, 20)
        with urllib.request.urlopen(url.replace("/metrics", "/"), timeout=20) as page:
            self.assertIn(b'href="/metrics"', page.read())
        for path in ("/etc/passwd", "/metrics/x", "/../metrics", "//metrics"):
            self.assertIn(b" 404 ", self.ask(port, f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()).splitlines()[0], path)
        for method in ("POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"):
            answer = self.ask(port, f"{method} /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi".encode())
            self.assertTrue(answer == b"" or b" 405 " in answer.splitlines()[0], (method, answer[:80]))
        # Parts of the text, again and again, and compression: what a client can ask for costs nothing.
        greedy = "Range: bytes=" + ",".join(["0-"] * 500)
        whole = self.ask(port, f"GET /metrics HTTP/1.1\r\n{greedy}\r\nAccept-Encoding: br, gzip\r\n\r\n".encode())
        self.assertIn(b" 200 ", whole.splitlines()[0])
        self.assertIn(b"Connection: close", whole)
        self.assertNotIn(b"Content-Encoding", whole)
        self.assertLess(len(whole), 50_000)
        self.end_job(process)

    def test_garbage_and_slow_clients(self):
        process, (url, port) = self.start_job(2, 100_000)
        self.await_scrape(url, lambda now: (now("steps_total", rank=0) or 0) > 0)
        garbage = [os.urandom(20_000), b"\0" * 20_000, b"GET " + b"/" * 100_000 + b" HTTP/1.1\r\n\r\n", b"\r\n" * 10_000,
                   b"GET /metrics HTTP/1.1\r\n" + b"A: b\r\n" * 50_000 + b"\r\n",
                   b"GET /metrics HTTP/1.1\r\nA: " + b"b" * 100_000 + b"\r\n\r\n",
                   b"GET /metrics HTTP/1.1\r\nContent-Length: 999999999999\r\n\r\n" + b"x" * 100_000,
                   b"GET /metrics HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n" + b"x" * 100_000]
        for request in garbage:
            self.assertNotIn(b" 500 ", self.ask(port, request)[:20])
        self.assertIn(b" 431 ", self.ask(port, b"GET /metrics HTTP/1.1\r\n" + b"A: b\r\n" * 70 + b"\r\n")[:20])
        before = Scrape(url)
        # One that sends a byte now and then is cut off after a second.
        began = time.monotonic()
        with socket.create_connection(("127.0.0.1", port), timeout=20 * SLACK) as slow:
            try:
                for byte in b"GET /metrics HTTP/1.1\r\nHost: somebody-with-much-time\r\n" * 20:
                    slow.sendall(bytes([byte]))
                    time.sleep(0.05)
            except (ConnectionResetError, BrokenPipeError):
                pass
        self.assertLess(time.monotonic() - began, 10 * SLACK)
        # Two clients ask and do not read, two send nothing: the next one is served.
        silent = [socket.create_connection(("127.0.0.1", port), timeout=20) for _ in range(4)]
        for client in silent[:2]:
            client.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        after = Scrape(url)
        for client in silent:
            client.close()
        self.assertGreater(after("steps_total", rank=0), before("steps_total", rank=0))  # nobody has held the job up
        # The end does not wait for a client.
        with socket.create_connection(("127.0.0.1", port), timeout=20):
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=60)
        self.assertEqual(process.returncode, 128 + signal.SIGTERM)

    def test_scrapes_do_not_add_up(self):
        """Requests that come at once get the same text, which is made once."""
        process, (url, _) = self.start_job(2, 100_000)
        self.await_scrape(url, lambda now: (now("steps_total", rank=0) or 0) > 0)
        began = time.monotonic()
        texts = {Scrape(url).text for _ in range(50)}
        self.assertLessEqual(len(texts), 2 + (time.monotonic() - began) / 0.5)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)

    def test_prometheus(self):
        """A Prometheus of Debian scrapes ddprun, and knows how many steps there were."""
        prometheus = shutil.which("prometheus")
        if not prometheus:
            self.skipTest("there is no prometheus (Debian: prometheus)")
        process, (_, port) = self.start_job(2, 30)
        config = self.write("prometheus.yml", "scrape_configs:\n- job_name: training\n  scrape_interval: 1s\n"
                            f"  static_configs: [{{targets: ['127.0.0.1:{port}']}}]\n")
        own_port = free_port()
        server = subprocess.Popen([prometheus, f"--config.file={config}", f"--storage.tsdb.path={self.path('data')}",
                                   f"--web.listen-address=127.0.0.1:{own_port}"], stdin=subprocess.DEVNULL,
                                  stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(server.wait, 30)
        self.addCleanup(server.kill)

        def query(text):
            address = f"http://127.0.0.1:{own_port}/api/v1/query?query=" + urllib.request.quote(text)
            try:
                with urllib.request.urlopen(address, timeout=10) as response:
                    return [float(one["value"][1]) for one in json.load(response)["data"]["result"]]
            except (urllib.error.URLError, ConnectionError):
                return []

        self.assertTrue(until(lambda: query("sum(libddp_steps_total)") == [60.0], 60 * SLACK), query("libddp_steps_total"))
        self.assertEqual(query('libddp_rank_state{state="running",rank="1"}'), [1.0])
        self.assertEqual(query("up"), [1.0])
        self.end_job(process)


if __name__ == "__main__":
    unittest.main(verbosity=2)
