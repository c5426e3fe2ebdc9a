"""Records that claim more than they hold: what ddp-why and the metrics of ddprun make of them stays small."""
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import pathlib
import time
import unittest
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from slack import SLACK  # noqa: E402

DDPRUN, WHY = os.environ["DDPRUN"], os.environ["DDP_WHY"]
MAGIC, PAGE, EVENT, RING = b"ddprec2\n", 4096, 64, 64
GROUP = 1
MOST_MB = 6 * SLACK  # more than of a record that is as it should be. Sanitizers keep what is freed
GROUPS, RANKS = 300, 65535


def fact(kind, owner, content):
    block = (32 + len(content) + 7) // 8 * 8
    return MAGIC + struct.pack("<QQII", block, len(content), kind, owner) + content.ljust(block - 32, b"\0")


def record(groups, world):
    """A process that is in so many groups, and alone of each."""
    head = MAGIC + struct.pack("<QQiiQqqqqq", RING, 0, 1, -1, 1, 1, time.time_ns(), 1, 0, 0) + b"boot x".ljust(192, b"\0") + b"h".ljust(64, b"\0")
    facts = [fact(GROUP, i + 1, struct.pack("<iiqqqQQQQQ", 0, world, i, 1, 0, 0, 0, 0, 0, 0) + b"%d\0k\0b\0" % i) for i in range(groups)]
    return head.ljust(PAGE, b"\0") + bytes(RING * EVENT) + b"".join(facts)


def peak_mb(pid):
    with open(f"/proc/{pid}/status", encoding="utf-8") as status:
        return int(re.search(r"VmHWM:\s+(\d+) kB", status.read())[1]) / 1024


class Hostile(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="ddp-hostile-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def why(self, groups, world):
        """The peak in megabytes, and the output."""
        (self.folder / "h.1.record").write_bytes(record(groups, world))
        out = self.folder / "out"
        with open(out, "wb") as file:
            why = subprocess.Popen([WHY, self.folder, "--json", self.folder / "json"], stdout=file, stderr=subprocess.STDOUT)
        _, status, used = os.wait4(why.pid, 0)
        why.returncode = os.waitstatus_to_exitcode(status)
        said = out.read_text(encoding="utf-8")
        self.assertEqual(why.returncode, 0, said)
        return used.ru_maxrss / 1024, said

    def test_a_small_file_does_not_take_much_memory_of_ddp_why(self):
        usual, _ = self.why(1, 2)
        begin = time.monotonic()
        peak, said = self.why(GROUPS, RANKS)
        self.assertLess(peak - usual, MOST_MB)
        self.assertLess(time.monotonic() - begin, 30 * SLACK)
        for group in (0, GROUPS - 1):
            self.assertIn(f"group '{group}'", said)
        self.assertIn(f"and {RANKS - 21} more are without a record", said)
        told = json.loads((self.folder / "json").read_text(encoding="utf-8"))
        self.assertEqual([[[1, RANKS - 1]]] * GROUPS, [group["without_record"] for group in told["groups"]])

    def test_nor_of_the_metrics(self):
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        job = subprocess.Popen([DDPRUN, "-n", "1", "--record", self.folder, "--metrics", f"127.0.0.1:{port}", "sleep", "100"],
                               stderr=subprocess.PIPE, text=True)
        try:
            self.assertIn("metrics", job.stderr.readline())
            peaks = []
            for claims in ((1, 2), (GROUPS, RANKS)):
                (self.folder / "h.1.record").write_bytes(record(*claims))
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60 * SLACK) as answer:
                    self.assertGreater(len(answer.read()), 1000)
                peaks.append(peak_mb(job.pid))
            self.assertLess(peaks[1] - peaks[0], MOST_MB)
        finally:
            job.send_signal(signal.SIGTERM)
            job.communicate(timeout=30)


if __name__ == "__main__":
    unittest.main(verbosity=2)
