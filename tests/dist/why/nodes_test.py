#!/usr/bin/env python3
"""A job of two nodes, which share no folder: node 0 tells the cause from the records of both, and draws both."""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import unittest

from jobs import BOUND_S, DDPRUN, SLACK, TESTS, worker

sys.path.insert(0, str(TESTS / "support"))
from ports import free_port  # noqa: E402  (tests/support)
from store_proxy import Proxy  # noqa: E402

NODES, RANKS = 2, 2  # of each node
LEAVE_S = 5  # kLeaveTime of tools/run/launch.cc
SECRET = "a secret for the nodes of a test"


def run_nodes(options=(), ports=None, **settings):
    """The output of each node, and the folder of its own where it ran. ports: at which each node reaches the store."""
    ports = ports or [free_port()] * NODES
    with tempfile.TemporaryDirectory(prefix="ddp-record-test-") as scratch:
        nodes = []
        for rank in range(NODES):
            folder = pathlib.Path(scratch, str(rank))
            folder.mkdir()
            command = [DDPRUN, "--nnodes", str(NODES), "--node-rank", str(rank), "-n", str(RANKS), "--rdzv",
                       f"127.0.0.1:{ports[rank]}", "--grace", "1", *options, *worker(**settings)]
            nodes.append(subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                          stderr=subprocess.STDOUT, text=True, errors="replace",
                                          env={**os.environ, "DDP_SECRET": SECRET}))
        try:
            said = [node.communicate(timeout=BOUND_S)[0] for node in nodes]
        finally:
            for node in nodes:
                if node.poll() is None:
                    node.kill()
                    node.wait()
        files = {path.name: path.read_text() for path in pathlib.Path(scratch, "0").iterdir()}
    return said, files


class Nodes(unittest.TestCase):
    def test_a_cause_on_another_node(self):
        said, _ = run_nodes(backend="tcp", fault="sleep", victim=3, timeout=int(3000 * SLACK))
        sentence = r"the records of all nodes: rank 3 \(pid \d+.*\) did not come.*step 5.*have not come; ranks 0, 1 and 2 had waited"
        self.assertTrue(re.search(sentence, said[0]), said[0])
        self.assertNotIn("the records of all nodes", said[1])

    def test_one_timeline_and_one_report(self):
        said, files = run_nodes(("--trace", "trace.json"), backend="tcp", steps=10)
        self.assertIn("trace.json", files, said[0])
        processes = {event["pid"] for event in json.loads(files["trace.json"])["traceEvents"] if event["ph"] == "X"}
        self.assertEqual(len(processes), NODES * RANKS)

    def test_records_that_take_long_to_come(self):
        """The network stands still for longer than a node takes to leave."""
        port = free_port()
        proxy = Proxy(port, "up", 1 << 20, lambda: time.sleep(LEAVE_S + 1.5))  # in the middle of the records
        self.addCleanup(proxy.close)
        options = ("--trace", "trace.json", "--env", "DDP_RECORD_EVENTS=65536")  # 4 MiB for each rank
        said, files = run_nodes(options, [port, proxy.port], backend="tcp", steps=10)
        self.assertTrue(proxy.acted, said)
        self.assertNotIn("have not come", said[0])
        processes = {event["pid"] for event in json.loads(files["trace.json"])["traceEvents"] if event["ph"] == "X"}
        self.assertEqual(len(processes), NODES * RANKS, said)


if __name__ == "__main__":
    unittest.main(verbosity=2)
