"""Jobs that somebody without the secret attacks: from another host, and as another user of a host of the job.

Hosts are network namespaces. Skipped (77) where they cannot be made. CMake tells where the worker is through DDP_FAILURE_WORKER.
DDP_ATTACK_BACKEND is the backend of jobs on two hosts (tcp), DDP_ATTACK_JOBS their number (50).
"""
import concurrent.futures
import contextlib
import itertools
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import threading
import time
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "support"), str(HERE.parents[2] / "tools/bench/runs"), str(HERE.parent / "failure")]
import namespaces  # noqa: E402  (tools/bench/runs)
from ports import free_port  # noqa: E402  (tests/support)
from slack import SLACK  # noqa: E402

WORKER = os.environ["DDP_FAILURE_WORKER"]
BACKEND = os.environ.get("DDP_ATTACK_BACKEND", "tcp")
JOBS = int(os.environ.get("DDP_ATTACK_JOBS", "50"))
SECRET = "a secret of this test's own, long enough"
STRANGERS_SECRET = "what somebody guesses who knows nothing"
NOBODY = 65534
PORT = 29438
PATIENCE_S = 30 * SLACK
# How long attackers may take until they have made as many connections as a test asks for. They are nice to all others of the machine.
ATTACK_S = 100 * SLACK
WAITS_FOR_ATTACK_MS = int(1000 * (ATTACK_S + PATIENCE_S))  # the timeout of a rank that waits for them
STEPS = ["params=2", "commit", "steps=20", *["sum=70000", "sum=10"] * 10]


class Hosts(namespaces.Link):
    """Two hosts of a job, and a third one on the same network, from which each port of theirs can be reached."""

    def __enter__(self):
        super().__enter__()
        self.stranger = f"{self.names[0]}s"
        self.holders = []
        inside, outside = f"{self.stranger}-i", f"{self.stranger}-o"
        try:
            namespaces.ip("netns", "add", self.stranger)
            namespaces.ip("link", "add", outside, "netns", self.stranger, "type", "veth", "peer", "name", inside, "netns", self.names[0])
            for name, interface, address in ((self.stranger, outside, "10.211.0.2"), (self.names[0], inside, "10.211.0.1")):
                namespaces.ip("-n", name, "address", "add", f"{address}/24", "dev", interface)
                namespaces.ip("-n", name, "link", "set", interface, "up")
            namespaces.ip("-n", self.stranger, "route", "add", "default", "via", "10.211.0.1")
            namespaces.ip("-n", self.names[1], "route", "add", "default", "via", self.addresses[0])
            namespaces.run(*self.prefix(0), "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
            # A process in each namespace, through which an attacker sees what is listened on there.
            self.holders = [subprocess.Popen([*self.prefix(host), "sleep", "1000"]) for host in range(2)]
        except (OSError, subprocess.CalledProcessError):
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for holder in self.holders:
            holder.kill()
            holder.wait()
        with contextlib.suppress(OSError):
            subprocess.run(["ip", "netns", "delete", self.stranger], stderr=subprocess.DEVNULL, check=False)
        super().__exit__()

    def prefix_of_stranger(self):
        return ["ip", "netns", "exec", self.stranger]


class Attacker:
    def __init__(self, prefix, kind, pids, user=None, hold=None, contained=False, hello=None):
        if contained:
            # unshare ignores SIGTERM, so it is killed, and its child gets the signal.
            prefix = [*prefix, "unshare", "--pid", "--mount", "--fork", "--kill-child=SIGTERM", "--"]
        command = [*prefix, sys.executable, "-B", str(HERE / "attacker.py"), kind]
        if user is not None:
            command += ["--user", str(user)]
        if hold is not None:
            command += ["--hold", str(hold)]
        if hello is not None:
            command += ["--hello", hello.hex()]
        self.kind, self.contained, self.made, self.got = kind, contained, 0, 0
        self.process = subprocess.Popen([*command, *map(str, pids)], stdout=subprocess.PIPE, text=True)
        if self.process.stdout.readline() != "ready\n":
            raise AssertionError(f"the attacker '{kind}' did not start")
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        for line in self.process.stdout:
            if line == "got\n":
                self.got += 1
            else:
                self.made = int(line)

    def reaches(self, connections):
        """Whether it has made as many connections in all, for which this waits."""
        end = time.monotonic() + ATTACK_S
        while self.made < connections and time.monotonic() < end:
            time.sleep(0.02)
        return self.made >= connections

    def stop(self):
        self.process.kill() if self.contained else self.process.terminate()
        self.process.wait(10)
        self.reader.join(10)
        self.process.stdout.close()
        return self.made


@contextlib.contextmanager
def attacked(attackers):
    """Yields; afterwards each attacker has made connections, or the test shows nothing."""
    try:
        yield
    finally:
        made = {f"{a.kind} {number}": a.stop() for number, a in enumerate(attackers)}
    print("connections of attackers:", made, flush=True)
    if not all(made.values()):
        raise AssertionError(f"an attacker reached nothing: {made}")


class Rank:
    def __init__(self, prefix, rank, verbs, **settings):
        settings = {"rank": rank, "world": 2, "timeout": int(20_000 * SLACK), "secret": SECRET, **settings}
        self.rank, self.output = rank, ""
        self.process = subprocess.Popen([*prefix, WORKER, *(f"{key}={value}" for key, value in settings.items()), "--", *verbs],
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def end(self):
        try:
            self.output += self.process.communicate(timeout=PATIENCE_S + 20)[0]
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.output += self.process.communicate()[0] + "\n(it hangs)"
        return self

    def problem(self):
        """None where it did all of its work, and got what it must get."""
        lines = self.output.splitlines()
        wrong = [line for line in lines if line.startswith("value wrong ") and line != "value wrong 0"]
        if self.process.returncode == 0 and any(line.startswith("at done ") for line in lines) and not wrong:
            return None
        return f"rank {self.rank} ended with {self.process.returncode}:\n{self.output}"

    def seconds_to_join(self):
        at = {words[1]: float(words[2]) for words in map(str.split, self.output.splitlines()) if words[:1] == ["at"]}
        return at["joined"] - at["begin"]


VERBS = ["mark=begin", "join", *STEPS, "mark=done"]


def run_job(prefixes, verbs=tuple(VERBS), **settings):
    ranks = [Rank(prefix, rank, verbs, **settings) for rank, prefix in enumerate(prefixes)]
    return [rank.end() for rank in ranks]


class Attack(unittest.TestCase):
    def jobs(self, prefixes, count, attackers=(), **settings):
        """Runs them one after the other: `count`, and more until each attacker has reached something. Without init, each has a port of its
        own on the loopback. Returns the longer of each job's two times to join."""
        problems, times = [], []
        end = time.monotonic() + ATTACK_S
        for number in itertools.count():
            if number >= count and (time.monotonic() > end or all(attacker.made for attacker in attackers)):
                break
            ranks = run_job(prefixes, **{"init": f"tcp://127.0.0.1:{free_port()}", **settings})
            found = [rank.problem() for rank in ranks if rank.problem()]
            if found:
                problems.append(f"job {number}:\n" + "\n".join(found))
            else:
                times.append(max(rank.seconds_to_join() for rank in ranks))
        self.assertFalse(problems, f"{len(problems)} of {number} jobs:\n" + "\n".join(problems[:4]))
        return times

    def test_on_every_port(self):
        """From another host, and by another user of the host of rank 0."""
        with Hosts(None) as hosts:
            prefixes = [hosts.prefix(0), hosts.prefix(1)]
            where = {"init": f"tcp://{hosts.addresses[0]}:{PORT}", "backend": BACKEND}
            alone = self.jobs(prefixes, max(JOBS // 3, 5), **where)
            pids = [holder.pid for holder in hosts.holders]
            attackers = [Attacker(hosts.prefix_of_stranger(), kind, pids) for kind in ("scan", "garbage", "preamble", "silent", "half-tls")]
            attackers += [Attacker(hosts.prefix(0), kind, pids[:1], NOBODY) for kind in ("garbage", "preamble", "silent")]
            with attacked(attackers):
                under_attack = self.jobs(prefixes, JOBS, attackers, **where)
            medians = statistics.median(alone), statistics.median(under_attack)
            print("median of the times to join: %.0f ms alone, %.0f ms under attack: %.2f times; longest %.0f and %.0f ms" %
                  (1e3 * medians[0], 1e3 * medians[1], medians[1] / medians[0], 1e3 * max(alone), 1e3 * max(under_attack)), flush=True)

    def test_half_open_connections(self):
        """5,000 of them, where a process may have 1,024 descriptors."""
        with Hosts(None) as hosts:
            where = {"init": f"tcp://{hosts.addresses[0]}:{PORT}", "backend": BACKEND}
            few = ["prlimit", "--nofile=1024:1024"]
            first = Rank([*hosts.prefix(0), *few], 0, VERBS, timeout=WAITS_FOR_ATTACK_MS, **where)
            crowd = [Attacker(hosts.prefix_of_stranger(), "silent", [hosts.holders[0].pid], hold=2500) for _ in range(2)]
            try:
                with attacked(crowd):
                    for attacker in crowd:
                        self.assertTrue(attacker.reaches(3000), attacker.made)
                    second = Rank([*hosts.prefix(1), *few], 1, VERBS, **where).end()
                    first.end()
            finally:
                first.process.kill()
            self.assertIsNone(second.problem())
            self.assertIsNone(first.problem())
            self.assertLess(second.seconds_to_join(), 5 * SLACK)
            print(f"rank 1 joined within {1e3 * second.seconds_to_join():.0f} ms", flush=True)

    def test_a_second_rank_1(self):
        with Hosts(None) as hosts:
            where = {"init": f"tcp://{hosts.addresses[0]}:{PORT}", "backend": BACKEND}
            for secret in (STRANGERS_SECRET, SECRET[:-1]):
                first = Rank(hosts.prefix(0), 0, VERBS, **where)
                stranger = Rank(hosts.prefix_of_stranger(), 1, VERBS, **{**where, "secret": secret}).end()
                self.assertIn("DDP_ERROR_PERMISSION_DENIED", stranger.output)
                second = Rank(hosts.prefix(1), 1, VERBS, **where).end()
                self.assertIsNone(first.end().problem())
                self.assertIsNone(second.problem())

    def test_foreign_memory(self):
        """Another user of the host hands over its own memory, which it truncates."""
        attacker = Attacker([], "memory", [os.getpid()], NOBODY)
        held = Rank([], 0, ["join", "sum=1000", "sleep=2000", "mark=done"], world=1, init=f"tcp://127.0.0.1:{free_port()}", backend="shm")
        with attacked([attacker]):
            self.jobs([[], []], max(JOBS // 3, 5), [attacker], backend="shm")
        self.assertIsNone(held.end().problem())

    def test_replay(self):
        """Somebody sends the beginning of a recorded connection to the store 1,200 times a second."""
        port = free_port()
        with Relay(port) as relay:
            ranks = [Rank([], rank, VERBS, init=f"tcp://127.0.0.1:{end}", backend="shm") for rank, end in enumerate((port, relay.port))]
            self.assertEqual([rank.end().problem() for rank in ranks], [None, None])
        # A TLS record: five bytes that end with the length of the rest.
        hello = bytes(relay.first_up[:5 + int.from_bytes(relay.first_up[3:5], "big")])
        with Hosts(None) as hosts:
            prefixes = [hosts.prefix(0), hosts.prefix(1)]
            where = {"init": f"tcp://{hosts.addresses[0]}:{PORT}", "backend": BACKEND}
            alone = self.jobs(prefixes, max(JOBS // 3, 5), **where)
            attacker = Attacker(hosts.prefix_of_stranger(), "replay", [holder.pid for holder in hosts.holders], hello=hello)
            under_attack = []
            with attacked([attacker]):
                for _ in range(max(JOBS // 6, 2)):
                    first = Rank(prefixes[0], 0, VERBS, timeout=WAITS_FOR_ATTACK_MS, **where)
                    # Some seconds of the flood, so that it fills whatever it can.
                    self.assertTrue(attacker.reaches(attacker.made + 3000), attacker.made)
                    second = Rank(prefixes[1], 1, VERBS, **where).end()
                    self.assertEqual([first.end().problem(), second.problem()], [None, None])
                    under_attack.append(second.seconds_to_join())
        self.assertGreater(attacker.got, 0, "the recording is none")
        # The server of each job's store began the recorded handshake once.
        self.assertLessEqual(attacker.got, len(under_attack))
        print("longest time to join: %.0f ms alone, %.0f ms under attack" % (1e3 * max(alone), 1e3 * max(under_attack)), flush=True)
        self.assertLess(max(under_attack), max(alone) + SLACK)

    def test_thief(self):
        """Another process of the same user, in namespaces of processes and files of its own: a container of the same host."""
        attacker = Attacker([], "thief", [os.getpid()], contained=True)
        with attacked([attacker]):
            self.jobs([[], []], max(JOBS // 3, 5), [attacker], backend="shm")
        self.assertEqual(attacker.got, 0, "a process without the secret has the shared memory")


class Relay:
    """Between rank 1 and the store. change(direction, position, bytes) may change what passes. Records what it was given."""

    def __init__(self, port, change=lambda direction, position, data: data):
        self.port_of_store, self.change = port, change
        self.seen = {"up": bytearray(), "down": bytearray()}
        self.first_up = b""  # of the connection that sent first
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client):
        with client, contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port_of_store)) as server:
            back = threading.Thread(target=self._pass_on, args=("down", server, client), daemon=True)
            back.start()
            self._pass_on("up", client, server)
            back.join()

    def _pass_on(self, direction, source, target):
        position = 0
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                self.seen[direction] += data
                if direction == "up":
                    self.first_up = self.first_up or data
                target.sendall(self.change(direction, position, data))
                position += len(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()


def flip(direction, at):
    """One bit of one direction of each connection."""
    def change(passing, position, data):
        if passing != direction or not position <= at < position + len(data):
            return data
        changed = bytearray(data)
        changed[at - position] ^= 1 << at % 8
        return bytes(changed)
    return change


class Between(unittest.TestCase):
    """Somebody through whose hands all bytes between rank 1 and the store go. It can end what passes; it can neither change nor repeat."""

    @contextlib.contextmanager
    def through(self, change=lambda direction, position, data: data, verbs=tuple(VERBS)):
        """The relay, the store's port, and both ranks, which have ended afterwards: each well or with an error, and never with a wrong value."""
        port = free_port()
        with Relay(port, change) as relay:
            ranks = [Rank([], rank, verbs, init=f"tcp://127.0.0.1:{end}", backend="shm", timeout=int(4000 * SLACK))
                     for rank, end in enumerate((port, relay.port))]
            yield relay, port, ranks
            for rank in ranks:
                rank.end()
                self.assertEqual(rank.process.returncode, 0, rank.output)
                self.assertNotRegex(rank.output, r"value wrong [^0]")
                if rank.problem():
                    self.assertIn("error DDP_ERROR_", rank.output)

    def through_each(self, changes):
        """Attacks that break a connection wait for the timeout, so several run at a time."""
        def check(change):
            with self.through(change) as (_, _, ranks):
                pass
            return ranks

        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            return list(pool.map(check, changes))

    def test_flipped_bits(self):
        places = [("up", at) for at in (0, 5, 60, 300, 330, 400, 700, 1100)] + [("down", at) for at in (3, 80, 250, 256, 300, 500, 800)]
        jobs = self.through_each([flip(*place) for place in places])
        self.assertTrue(all(any(rank.problem() for rank in ranks) for ranks in jobs), "a flipped bit went unnoticed")

    def test_forged_frames(self):
        """A frame of the store's protocol between others: a set of the group's verdict."""
        frame = (13).to_bytes(4, "little") + b"\x01" + (1).to_bytes(8, "little") + b"ddp/group/x/verdict"
        changes = [lambda passing, position, data, wanted=direction, after=after: data + frame
                   if passing == wanted and position > after else data for direction in ("up", "down") for after in (300, 600, 900)]
        for ranks in self.through_each(changes):
            # Rank 0 has lost nobody but rank 1.
            for rank in ranks:
                self.assertNotRegex(rank.output, r"error \w+ 0 .* rank 0 \(pid")

    def test_replay(self):
        """The bytes that rank 1 has sent, sent once more while the job runs: the store takes none of them."""
        verbs = ["mark=begin", "join", *STEPS, "sleep=1500", "sum=100", "mark=done"]
        with self.through(verbs=verbs) as (relay, port, ranks):
            end = time.monotonic() + PATIENCE_S
            while len(relay.seen["up"]) < 900 and time.monotonic() < end:
                time.sleep(0.01)
            for _ in range(5):
                with socket.create_connection(("127.0.0.1", port), timeout=10) as again, contextlib.suppress(OSError):
                    again.sendall(bytes(relay.seen["up"]))
                    answer = bytearray()
                    while data := again.recv(1 << 16):
                        answer += data
                    # Its part of a handshake, and then the end.
                    self.assertLess(len(answer), 300)
        for rank in ranks:
            self.assertIsNone(rank.problem())


if __name__ == "__main__":
    namespaces.skip_where_impossible()
    unittest.main(verbosity=2)
