"""Two hosts, which are network namespaces: links that are down for a while, and what somebody reads on the wire.

Skipped (77) where namespaces cannot be made. CMake tells where the worker is through DDP_FAILURE_WORKER.
"""
import contextlib
import ctypes
import os
import pathlib
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
MARK = b"\x3f" * 64  # the worker's allreduce sends nothing else


class TwoHosts:
    """A rank on each host. The worker of rank 0 runs the store."""

    def __init__(self, link, verbs, options="", backend="tcp", host_ids=(None, None)):
        self.link = link
        settings = {"world": 2, "init": f"tcp://{link.addresses[0]}:{PORT}", "timeout": TIMEOUT_MS, "backend": backend, "secret": SECRET}
        if options:
            settings["options"] = options
        self.ranks = [subprocess.Popen(
            [*link.prefix(rank), WORKER, f"rank={rank}", *(f"{key}={value}" for key, value in settings.items()), "--", *verbs],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env={**os.environ, **({"DDP_HOST_ID": host_ids[rank]} if host_ids[rank] else {})}) for rank in range(2)]

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
            with job(link, ["join", "allreduce=200000", "allreduce=1000", "mark=done"], options=options) as hosts:
                for output in hosts.output():
                    self.assertIn("at done ", output)
        self.assertGreater(len(capture.bytes), 500_000)
        return bytes(capture.bytes)

    def test_encrypted_shows_no_gradient(self):
        self.assertNotIn(MARK, self.captured(""))

    def test_plain_does(self):
        """So this test can see."""
        self.assertIn(MARK, self.captured("wire=plain"))


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
