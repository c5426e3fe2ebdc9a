"""The storm's own parts: what carries out the faults, and what judges."""
import pathlib
import socket
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from ports import free_port  # noqa: E402  (tests/support)
from store_proxy import Proxy  # noqa: E402
from storm_scenario import TIMEOUT_MS, Outcome, Scenario, judge  # noqa: E402


def scenario(kind, **more):
    return Scenario(0, given={"kind": kind, "store": "file", "backend": "shm x3", "world": 2, "victim": 1, **more})


class ProxyTest(unittest.TestCase):
    def setUp(self):
        self.port = free_port()
        self.proxy = Proxy(self.port, "up", 10, "rst")
        self.addCleanup(self.proxy.close)

    def connect(self):
        end = socket.create_connection(("127.0.0.1", self.proxy.port), timeout=20)
        self.addCleanup(end.close)
        return end

    def test_the_fault_happens_although_the_store_comes_late(self):
        self.assertEqual(self.connect().recv(1), b"")
        store = socket.create_server(("127.0.0.1", self.port))
        self.addCleanup(store.close)
        first = self.connect()
        first.sendall(b"0123456789")
        with self.assertRaises(ConnectionResetError):
            first.recv(1)
        self.assertTrue(self.proxy.acted)
        second, text = self.connect(), b"more than ten bytes"
        second.sendall(text)
        store.accept()[0].close()  # the first
        end, _ = store.accept()
        self.addCleanup(end.close)
        end.settimeout(20)
        self.assertEqual(end.recv(len(text), socket.MSG_WAITALL), text)


class JudgeTest(unittest.TestCase):
    def complaints(self, kind, freed_ms, slack=1.0, **more):
        fine = {"rank": 0, "at": "all", "status": "DDP_OK", "object": False, "code": "DDP_OK", "named": -1, "ms": 5.0, "message": ""}
        return [kind for kind, _ in judge(scenario(kind, **more), [Outcome(0, False, fine, 0, "", freed_ms=freed_ms)], slack)]

    def test_freeing_has_a_bound(self):
        self.assertEqual(self.complaints("kill", 4400), [])  # three groups
        self.assertEqual(self.complaints("kill", 4600), ["slow"])
        self.assertEqual(self.complaints("kill", 4600, slack=2), [])
        self.assertEqual(self.complaints("kill", 1600, backend="shm"), ["slow"])
        self.assertEqual(self.complaints("stop", 4600), [])

    def test_slow_builds_have_longer_to_succeed(self):
        for kind, more, expected in (("locked memory", {}, 2), ("two of one rank", {}, 2), ("stop and continue", {"continue_after": 1.5}, 2),
                                     ("stop and continue", {"continue_after": 4}, 1), ("absent", {}, 1)):
            self.assertEqual(scenario(kind, **more).timeout_ms(2), TIMEOUT_MS * expected, kind)
            self.assertEqual(scenario(kind, **more).timeout_ms(1), TIMEOUT_MS, kind)


if __name__ == "__main__":
    unittest.main(verbosity=2)
