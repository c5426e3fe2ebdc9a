#!/usr/bin/env python3
"""Jobs of worker.c of which some ranks are cut off or stopped: two rosters never commit side by side, and a rank that others have left
behind replaces no checkpoint of theirs.

    DDP_ELASTIC_WORKER=... DDP_ELASTIC_STORE=... python3 fence_test.py [--cuts N] [unittest's options]
"""
import contextlib
import re
import signal
import sys
import tempfile
import threading
import unittest

from jobs import BOUND_S, Job, read_until
import etcd_servers  # tests/support
from store_proxy import Proxy  # tests/support

MISSING = etcd_servers.what_is_missing()
TTL_S = 2
STEPS = 1_000_000
CUTS = 1


def applied(said, roster):
    """When the rank has committed steps of that roster, by CLOCK_MONOTONIC, in ms."""
    return [float(at) for at in re.findall(rf"^applied \d+ in {roster} at ([\d.]+)$", said, re.MULTILINE)]


class Fence(unittest.TestCase):
    def end(self, rank):
        if rank.poll() is None:
            rank.send_signal(signal.SIGCONT)
            rank.kill()
        return all_of(rank)

    def never_side_by_side(self, old, new):
        before = [at for rank in old for at in applied(self.end(rank), 1)]
        after = [at for rank in new for at in applied(self.end(rank), 2)]
        self.assertTrue(before and after)
        self.assertLess(max(before), min(after), f"side by side for {max(before) - min(after):.0f} ms")

    def cut_of_a_whole_roster(self, name, servers):
        with Job(init=servers.uri(name, TTL_S), backend="tcp", max=2, steps=STEPS, pause=10_000, clock=1, settle=300) as job:
            proxy = Proxy(int(servers.endpoints[0].rsplit(":", 1)[1]), "up", 1 << 40, "rst")
            self.addCleanup(proxy.close)
            old = [job.start(init=f"etcd://127.0.0.1:{proxy.port}/{name}?ttl={TTL_S}") for _ in range(2)]
            for rank in old:
                read_until(rank, "of 2")
            new = [job.start() for _ in range(2)]
            read_until(old[0], "applied 50 ")
            proxy.fall_silent()
            for rank in new:
                read_until(rank, "roster 2")
                read_until(rank, "applied")
            # Long enough for any patience with a store.
            for rank in old:
                all_of(rank)
            self.never_side_by_side(old, new)

    @unittest.skipIf(MISSING, MISSING)
    def test_a_whole_roster_is_cut_off_from_etcd(self):
        with etcd_servers.Servers(1) as servers:
            for cut in range(CUTS):
                with self.subTest(cut=cut):
                    self.cut_of_a_whole_roster(f"cut{cut}", servers)

    @unittest.skipIf(MISSING, MISSING)
    def test_the_only_member_stops_for_longer_than_its_lease(self):
        with etcd_servers.Servers(1) as servers:
            with Job(init=servers.uri("stop", TTL_S), backend="tcp", max=1, steps=STEPS, pause=10_000, clock=1, settle=300) as job:
                for place in ("step", "finalize", "commit"):
                    old = job.start(stop=place, stop_at=100)
                    read_until(old, "applied 50 ")
                    new = job.start()
                    read_until(new, "roster")
                    read_until(new, "applied")
                    old.send_signal(signal.SIGCONT)
                    self.assertNotIn("applied", all_of(old).partition("goes on")[2], place)
                    self.end(new)

    @contextlib.contextmanager
    def stores(self):
        """Where jobs of a test meet: of each kind of store one; None is tcp."""
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            found = {"tcp": None, "file": f"file://{folder}/store"}
            if not MISSING:
                found["etcd"] = stack.enter_context(etcd_servers.Servers(1)).uri("stores", TTL_S)
            yield found

    def test_a_member_that_others_have_left_behind_does_not_commit(self):
        with self.stores() as stores:
            for kind, init in stores.items():
                with self.subTest(store=kind), Job(init=init, backend="tcp", max=2, steps=STEPS, pause=10_000, timeout=1000, settle=800,
                                                   clock=1) as job:
                    others = job.start()
                    read_until(others, "of 1")
                    rank = job.start(stop="commit", stop_at=50)
                    read_until(rank, "of 2")
                    read_until(rank, "applied")
                    read_until(others, "of 1 after")
                    read_until(others, "applied")
                    rank.send_signal(signal.SIGCONT)
                    after = all_of(rank).partition("goes on")[2]
                    self.assertIn("not committed", after)
                    self.assertNotIn("applied", after)
                    self.end(others)

    def test_a_rank_that_was_stopped_replaces_no_newer_checkpoint(self):
        with self.stores() as stores, tempfile.TemporaryDirectory() as folder:
            for kind, init in stores.items():
                file = f"{folder}/{kind}"
                with self.subTest(store=kind), Job(init=init, backend="tcp", max=2, steps=STEPS, pause=10_000, timeout=1000, settle=800,
                                                   save=file) as job:
                    rank = job.start(stop="write", stop_at=50)
                    read_until(rank, "of 1")
                    other = job.start()
                    read_until(other, "of 2")
                    read_until(other, "of 1 after")
                    for _ in range(3):
                        read_until(other, "saved")
                    fence, steps = read_checkpoint(file)
                    rank.send_signal(signal.SIGCONT)
                    after = all_of(rank).partition("goes on")[2]
                    self.assertIn("not saved", after)
                    self.end(other)
                    self.assertEqual(read_checkpoint(file)[0], fence)
                    self.assertGreaterEqual(read_checkpoint(file)[1], steps)

    def test_fences_grow_when_a_job_begins_anew(self):
        with self.stores() as stores, tempfile.TemporaryDirectory() as folder:
            for kind, init in stores.items():
                fences = []
                for _ in range(3):
                    with self.subTest(store=kind), Job(init=init, backend="tcp", max=1, steps=3, settle=200, save=f"{folder}/{kind}") as job:
                        self.assertIn("done 3", all_of(job.start()))
                    fences.append(read_checkpoint(f"{folder}/{kind}")[0])
                self.assertLess(fences[0], fences[1], kind)
                self.assertLess(fences[1], fences[2], kind)


def read_checkpoint(file):
    """Its fence, and the number of steps."""
    with open(file) as text:
        return tuple(map(int, text.read().split()))


def all_of(rank):
    """The whole output of a rank, at its end."""
    killer = threading.Timer(BOUND_S, rank.kill)
    killer.start()
    rank.lines += rank.stdout
    killer.cancel()
    return "".join(rank.lines)


if __name__ == "__main__":
    if "--cuts" in sys.argv:
        at = sys.argv.index("--cuts")
        CUTS = int(sys.argv[at + 1])
        del sys.argv[at:at + 2]
    unittest.main(verbosity=2)
