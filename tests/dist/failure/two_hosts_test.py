"""Two hosts, which are network namespaces: links that are down for a while, several of them, connections that a firewall forgets, and what
somebody reads on the wire.

Skipped (77) where namespaces cannot be made. CMake tells where the worker is through DDP_FAILURE_WORKER.
"""
import contextlib
import ctypes
import os
import pathlib
import re
import select
import socket
import subprocess
import sys
import threading
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "support"), str(ROOT.parent / "tools/bench/runs")]
import namespaces  # noqa: E402  (tools/bench/runs)
from slack import SLACK  # noqa: E402  (tests/support)

WORKER = os.environ["DDP_FAILURE_WORKER"]
SECRET = "a secret of this test's own, long enough"
PORT = 29437
TIMEOUT_MS = int(20_000 * SLACK)
DOWN_S = 2
CARDS = ("10.211.0.1", "10.211.0.2")  # addresses of the second ones
MARK = b"\x3f" * 64  # the worker's allreduce sends nothing else


class TwoHosts:
    """A rank on each host. The worker of rank 0 runs the store. A setting that is a list has a value for each rank."""

    def __init__(self, link, verbs, host_ids=(None, None), **settings):
        self.link = link
        settings = {"world": 2, "init": f"tcp://{link.addresses[0]}:{PORT}", "timeout": TIMEOUT_MS, "backend": "tcp", "secret": SECRET,
                    **settings}
        self.ranks = [subprocess.Popen(
            [*link.prefix(rank), WORKER, f"rank={rank}",
             *(f"{key}={value[rank] if isinstance(value, list) else value}" for key, value in settings.items()), "--", *verbs],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env={**os.environ, **({"DDP_HOST_ID": host_ids[rank]} if host_ids[rank] else {})}) for rank in range(2)]

    def await_all(self, word):
        """Reads the output of both up to a line with this word. Returns these outputs."""
        said = []
        for rank in self.ranks:
            lines = []
            for line in rank.stdout:
                lines.append(line)
                if word in line:
                    break
            else:
                raise AssertionError(f"no '{word}': {''.join(lines)}")
            said.append("".join(lines))
        return said

    def go(self):
        """Ends a pause."""
        for rank in self.ranks:
            rank.stdin.write("go\n")
            rank.stdin.flush()

    def output(self):
        """The output of both, when both have ended."""
        return [rank.communicate(timeout=60 * SLACK)[0] for rank in self.ranks]

    def end(self):
        for rank in self.ranks:
            if rank.poll() is None:
                rank.kill()
            rank.communicate()


@contextlib.contextmanager
def job(link, verbs, **settings):
    hosts = TwoHosts(link, verbs, **settings)
    try:
        yield hosts
    finally:
        hosts.end()


def flap(link):
    name, interface = link.names[1], link.interfaces[1]
    namespaces.ip("-n", name, "link", "set", interface, "down")
    time.sleep(DOWN_S)
    namespaces.ip("-n", name, "link", "set", interface, "up")


class Flap(unittest.TestCase):
    def check(self, link, verbs, before_s):
        with job(link, verbs) as hosts:
            time.sleep(before_s)
            flap(link)
            for rank, output in enumerate(hosts.output()):
                self.assertIn("at done ", output, f"rank {rank} of {verbs}, flap after {before_s} s:\n{output}")

    def test_while_ranks_connect(self):
        with namespaces.Link("1gbit") as link:
            for before_s in (0.0, 0.05, 0.1, 0.2):
                self.check(link, ["join", "allreduce=100000", "mark=done"], before_s)

    def test_while_ranks_train(self):
        with namespaces.Link("100mbit") as link:
            self.check(link, ["join", "params=2", "commit", "steps=30", *["allreduce=2000000"] * 8, "mark=done"], 1.5)


def enter(namespace):
    """Python has os.setns from 3.12 on."""
    clone_newnet = 0x40000000
    if ctypes.CDLL(None, use_errno=True).setns(namespace, clone_newnet) != 0:
        raise OSError(ctypes.get_errno(), "setns")


class Capture:
    """Reads what crosses the link, in the namespace of the first host."""

    def __init__(self, link):
        self.bytes = bytearray()
        self.end = threading.Event()
        self.socket = None
        opened = threading.Event()
        self.thread = threading.Thread(target=self.read, args=(link, opened))
        self.thread.start()
        opened.wait()

    def read(self, link, opened):
        # The thread alone goes into the namespace.
        with open(f"/var/run/netns/{link.names[0]}", "rb") as namespace:
            enter(namespace.fileno())
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.ntohs(3))
        self.socket.bind((link.interfaces[0], 0))
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 20)
        opened.set()
        while not self.end.is_set():
            if select.select([self.socket], [], [], 0.05)[0]:
                self.bytes += self.socket.recv(1 << 17)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end.set()
        self.thread.join()
        self.socket.close()


class Wire(unittest.TestCase):
    def captured(self, options):
        with namespaces.Link("1gbit") as link, Capture(link) as capture:
            with job(link, ["join", "allreduce=200000", "allreduce=1000", "mark=done"], **({"options": options} if options else {})) as hosts:
                for output in hosts.output():
                    self.assertIn("at done ", output)
        self.assertGreater(len(capture.bytes), 500_000)
        return bytes(capture.bytes)

    def test_encrypted_shows_no_gradient(self):
        self.assertNotIn(MARK, self.captured(""))

    def test_plain_does(self):
        """So this test can see."""
        self.assertIn(MARK, self.captured("wire=plain"))


def add_card(link):
    """A second network between the two hosts, as fast as the first. Each has a card "card2" there."""
    a, b = link.names
    namespaces.ip("link", "add", "card2", "netns", a, "type", "veth", "peer", "name", "card2", "netns", b)
    for name, address in zip(link.names, CARDS):
        link.set_up(name, "card2", address)


class Cards(unittest.TestCase):
    """Two groups, each over a card of its own, that take turns: docs/backends.md, "Several network cards"."""

    def of(self, link):
        return {"options": [f"iface={name}" for name in link.interfaces], "also": "iface=card2"}

    def seconds(self, link, **settings):
        """For two steps of eight buckets of 1 MB. The worker computes little beside that."""
        with job(link, ["join", "params=8", "commit", "train=1", "mark=begin", "train=2", "mark=end"], size=250_000, **settings) as hosts:
            outputs = hosts.output()
        times = []
        for output in outputs:
            self.assertEqual(re.findall(r"value wrong (\d+)", output), ["0", "0"], output)
            self.assertNotIn("error ", output)
            times.append([float(re.search(rf"at {mark} (\S+)", output)[1]) for mark in ("begin", "end")])
        return max(end for _, end in times) - min(begin for begin, _ in times)

    def test_two_are_nearly_twice_one(self):
        with namespaces.Link("25mbit") as link:
            add_card(link)
            cards = self.of(link)
            one = self.seconds(link, options=cards["options"])
            two = self.seconds(link, **cards)
            least = 2 * 8 * 1e6 / (25e6 / 8 * namespaces.PAYLOAD)  # what one card needs
            print(f"one card: {one:.2f} s, two: {two:.2f} s; the bytes alone take {least:.2f} s on one", flush=True)
            self.assertGreater(one, 0.9 * least)
            self.assertLess(two, one / 1.7)

    def test_a_card_that_fails_in_a_step_is_named(self):
        timeout_ms = int(4000 * SLACK)
        with namespaces.Link("200mbit") as link:
            add_card(link)
            with job(link, ["join", "params=8", "commit", "train=1", "mark=here", "train=100000"], size=500_000, timeout=timeout_ms,
                     **self.of(link)) as hosts:
                hosts.await_all("at here")
                time.sleep(0.5)
                begin = time.monotonic()
                namespaces.ip("-n", link.names[1], "link", "set", "card2", "down")
                for output in hosts.output():
                    self.assertIn("error DDP_ERROR_TIMEOUT", output)
                    self.assertRegex(output, "(no sign of rank|did not take all) .*; the connection with rank [01] is from "
                                             r"10\.211\.0\.[12] to 10\.211\.0\.[12]")
                    self.assertEqual(re.findall(r"value wrong (\d+)", output), ["0"], output)
                self.assertLess(time.monotonic() - begin, timeout_ms / 1000 + 5 * SLACK)


class Forgotten(unittest.TestCase):
    """A firewall between the hosts drops what belongs to connections that it has forgotten: here a router that forwards nothing any more. Their
    other network stays."""

    def setUp(self):
        self.link = namespaces.Link(None)
        self.link.__enter__()
        self.addCleanup(self.link.__exit__)
        self.router = f"{self.link.names[0]}f"
        self.addCleanup(subprocess.run, ["ip", "netns", "delete", self.router], stderr=subprocess.DEVNULL, check=False)
        namespaces.ip("netns", "add", self.router)
        self.routed = ["10.212.0.2", "10.212.1.2"]
        for name, address, other in zip(self.link.names, self.routed, reversed(self.routed)):
            card, gateway = f"{name}-f", address[:-1] + "1"
            namespaces.ip("link", "add", "routed", "netns", name, "type", "veth", "peer", "name", card, "netns", self.router)
            self.link.set_up(name, "routed", address)
            self.link.set_up(self.router, card, gateway)
            namespaces.ip("-n", name, "route", "add", f"{other[:-1]}0/24", "via", gateway)
        self.forward(True)

    def forward(self, does):
        namespaces.run("ip", "netns", "exec", self.router, "sh", "-c", f"echo {int(does)} > /proc/sys/net/ipv4/ip_forward")

    def test_no_connection_is_idle_for_long(self):
        with job(self.link, ["join", "sum=1000", "pause=here", "sum=1000", "mark=done"]) as hosts:
            hosts.await_all("at here")
            time.sleep(1)
            for host in range(2):
                found = subprocess.run([*self.link.prefix(host), "ss", "-Htno", "state", "established"], stdout=subprocess.PIPE, text=True,
                                       check=True).stdout.splitlines()
                self.assertGreaterEqual(len(found), 2, found)  # one with the store, and one with the other rank
                for connection in found:
                    timer = re.search(r"timer:\((keepalive|on),(?:(\d+)min)?(?:([\d.]+)(ms|sec))?", connection)
                    self.assertTrue(timer, connection)
                    self.assertFalse(timer[2], connection)
                    self.assertLess(float(timer[3]) / (1000 if timer[4] == "ms" else 1), 60, connection)
            hosts.go()
            for output in hosts.output():
                self.assertIn("at done ", output)

    def test_between_ranks(self):
        """The error comes when the group's timeout has passed: until then it may be a flap."""
        timeout_ms = int(5000 * SLACK)
        with job(self.link, ["join", "sum=1000", "pause=here", "sum=200000", "mark=done"], timeout=timeout_ms,
                 options=[f"host={address}" for address in self.routed]) as hosts:
            hosts.await_all("at here")
            self.forward(False)
            begin = time.monotonic()
            hosts.go()
            outputs = hosts.output()
            self.assertLess(time.monotonic() - begin, timeout_ms / 1000 + 5 * SLACK)
        for output in outputs:
            self.assertIn("error DDP_ERROR_TIMEOUT", output)
            self.assertRegex(output, r"no sign of rank [01] before the timeout; the connection with rank [01] is from 10.212.[01].2 to 10.212.[01].2")

    def test_with_the_store(self):
        """Silence is noticed there within 15 s, and both ranks say whose connection that was."""
        with job(self.link, ["join", "sum=1000", "mark=here", "watch=60000", "mark=unnoticed"], init=f"tcp://{self.routed[0]}:{PORT}",
                 options=[f"host={address}" for address in self.link.addresses]) as hosts:
            hosts.await_all("at here")
            self.forward(False)
            begin = time.monotonic()
            outputs = hosts.output()
            self.assertLess(time.monotonic() - begin, 30 * SLACK)
        words = (r"rank 1 \(pid \d+ on \S+\) died: its connection to the store ended without a goodbye",
                 rf"rank 0, which runs the store, died: the connection to the store at tcp://{self.routed[0]}:{PORT} was lost")
        for output, sentence in zip(outputs, words):
            self.assertIn("error DDP_ERROR_RANK_FAILED", output)
            self.assertRegex(output, sentence)


class Clones(unittest.TestCase):
    """Hosts that tell the same of themselves, as cloned machines with one boot id do: memory cannot be handed over."""

    def outputs(self, backend, host_ids):
        with namespaces.Link(None) as link, job(link, ["join", "allreduce=1000", "mark=done"], backend=backend, host_ids=host_ids) as hosts:
            return hosts.output()

    def test_the_error_says_what_to_set(self):
        for backend in ("auto", "shm", "hierarchical"):
            begin = time.monotonic()
            for rank, output in enumerate(self.outputs(backend, ("clone", "clone"))):
                with self.subTest(backend, rank=rank):
                    for words in ("Connection refused", "cloned machine", "Set DDP_HOST_ID to another text on each host", "backend tcp"):
                        self.assertIn(words, output)
            self.assertLess(time.monotonic() - begin, TIMEOUT_MS / 1000, backend)

    def test_what_it_says_helps(self):
        for backend, host_ids in (("auto", ("clone 1", "clone 2")), ("hierarchical", ("clone 1", "clone 2")), ("tcp", ("clone", "clone"))):
            for output in self.outputs(backend, host_ids):
                self.assertIn("at done ", output, backend)


if __name__ == "__main__":
    namespaces.skip_where_impossible()
    unittest.main(verbosity=2)
