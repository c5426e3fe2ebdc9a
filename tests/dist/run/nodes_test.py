"""Several ddpruns that act as one."""
import os
import re
import signal
import socket
import time
import unittest

from ddprun_support import RANK, SLACK, Case, Result, free_port, lost, until

HOST = os.uname().nodename


class WithNodes(Case):
    def setUp(self):
        super().setUp()
        self.address = "127.0.0.1:%d" % free_port()
        self.secret = self.write("job.secret", "a secret for this one job\n")

    def node(self, node, *args, nodes=2, ranks=2):
        return self.start("--nnodes", nodes, "--node-rank", node, "-n", ranks, "--rdzv", self.address,
                          "--secret-file", self.secret, *args)

    def results(self, *processes):
        return [Result(process) for process in processes]

    def listening(self):
        host, port = self.address.split(":")
        with socket.socket() as probe:
            return probe.connect_ex((host, int(port))) == 0


class NodesTest(WithNodes):
    def test_ranks_and_success(self):
        code = "echo $DDP_RANK $DDP_WORLD_SIZE $DDP_LOCAL_RANK $DDP_LOCAL_WORLD_SIZE $DDP_STORE"
        second = self.node(1, "sh", "-c", code)  # it may come before node 0 does
        time.sleep(0.3)
        results = self.results(self.node(0, "sh", "-c", code), second)
        for node, result in enumerate(results):
            self.expect(result, 0)
            expected = [f"[{HOST} {2 * node + i}] {2 * node + i} 4 {i} 2 tcp://{self.address}".encode() for i in range(2)]
            self.assertEqual(sorted(result.out.splitlines()), expected)
            self.assertEqual(result.err, b"")

    def test_the_ranks_of_a_node_are_in_a_row_whoever_comes_first(self):
        code = "echo $DDP_RANK"
        nodes = {}
        for node in (2, 1, 0):
            nodes[node] = self.node(node, "--no-tag", "sh", "-c", code, nodes=3)
            time.sleep(0.3)
        for node, process in nodes.items():
            result = Result(process)
            self.expect(result, 0)
            self.assertEqual(sorted(map(int, result.out.split())), [2 * node, 2 * node + 1])

    def test_lines_of_ddprun_name_the_host(self):
        first = self.node(0, "--timeout", 7, "sleep", "60")
        self.assertRegex(Result(first).err, rb"(?m)^ddprun on %s: of 2 nodes these have not come yet: 1" % HOST.encode())

    def test_waits_for_the_slower_node(self):
        code = "test $DDP_RANK = 3 && sleep 2; true"
        begin = time.monotonic()
        for result in self.results(self.node(0, "sh", "-c", code), self.node(1, "sh", "-c", code)):
            self.expect(result, 0)
        self.assertGreater(time.monotonic() - begin, 2)

    def test_failure_ends_both(self):
        for failing in (0, 3):
            with self.subTest(rank=failing):
                code = f"test $DDP_RANK = {failing} && exit 9; exec sleep 60"
                begin = time.monotonic()
                results = self.results(self.node(0, "sh", "-c", code), self.node(1, "sh", "-c", code))
                for result in results:
                    self.expect(result, 9)
                    self.assertEqual(lost(result.err)[:1], [(failing, 9)], str(result))
                self.assertLess(time.monotonic() - begin, 15 * SLACK)

    def test_cause_is_named_on_both(self):
        """A rank of one node is killed; those of the other node fail because of that, and may be seen first."""
        for victim in (1, 2):
            for _ in range(3):
                results = self.results(*(self.node(node, RANK, victim, 9) for node in range(2)))
                for node, result in enumerate(results):
                    self.expect(result, 137)
                    first = [line for line in result.err.splitlines() if line.startswith(b"ddprun")][0]
                    self.assertEqual(lost(first), [(victim, -signal.SIGKILL)], str(result))
                self.address = "127.0.0.1:%d" % free_port()

    def test_report_time_of_zero(self):
        """Nothing is gathered then: what is seen first is the cause."""
        here = self.path("here")
        code = "ulimit -c 0; case $DDP_RANK in\n" \
               f"0) until test -e {here}; do sleep 0.01; done; exit 3;;\n" \
               f"1) touch {here}; sleep 0.8; kill -SEGV $$;;\n" \
               "esac; exec sleep 60"
        for result in self.results(*(self.node(node, "--report-time", 0, "sh", "-c", code) for node in range(2))):
            self.expect(result, 3)
            self.assertNotIn(b"SIGSEGV", result.err)

    def test_restart_on_both(self):
        code = "echo rank $DDP_RANK try $DDP_RESTART; test $DDP_RESTART = 2 && exit 0; sleep 3; " \
               "test $DDP_RANK = $((DDP_RESTART + 1)) && exit 1; exec sleep 60"
        args = ("--max-restarts", 3, "sh", "-c", code)
        results = self.results(self.node(0, *args), self.node(1, *args))
        for node, result in enumerate(results):
            self.expect(result, 0)
            for rank in (2 * node, 2 * node + 1):
                for restart in range(3):
                    self.assertIn(b"rank %d try %d\n" % (rank, restart), result.out)

    def test_restarts_of_a_node_that_had_finished(self):
        code = "echo try $DDP_RESTART; test $DDP_RESTART = 1 && exit 0; test $DDP_RANK -lt 2 && exit 0; sleep 1; exit 4"
        args = ("--max-restarts", 1, "sh", "-c", code)
        for result in self.results(self.node(0, *args), self.node(1, *args)):
            self.expect(result, 0)
            self.assertIn(b"try 1\n", result.out)

    def test_wrong_secret(self):
        first = self.node(0, "sleep", "60")
        self.assertTrue(until(self.listening))
        self.secret = self.write("other.secret", "another secret altogether\n")
        result = Result(self.node(1, "true"))
        self.expect(result, 1)
        self.assertIn(b"cannot reach the store", result.err)
        first.terminate()
        # Before it watches for signals it ends by them, as its store is open a little earlier.
        self.assertIn(Result(first).status, (143, -signal.SIGTERM))

    def test_nodes_that_differ(self):
        first = self.node(0, "sleep", "60")
        result = Result(self.node(1, "true", ranks=3))
        self.expect(result, 1)
        self.assertIn(b"-n 3", result.err)
        result = Result(first)
        self.expect(result, 1)
        self.assertIn(b"node 1 takes no part: this node was started with --nnodes 2 -n 3, but node 0 with --nnodes 2 -n 2", result.err)

    def test_node_0_says_who_has_not_come_and_timeout_bounds_the_wait(self):
        begin = time.monotonic()
        result = Result(self.node(0, "--timeout", 7, "sleep", "60"))
        self.expect(result, 1)
        self.assertLess(time.monotonic() - begin, 20 * SLACK)
        self.assertIn(b"of 2 nodes these have not come yet: 1. Node 0 waits up to 7 s (--timeout)", result.err)
        self.assertIn(f"--node-rank 1 --rdzv {self.address}\n".encode(), result.err)
        self.assertIn(b"the job ends: node 1 has not come within 7000 ms", result.err)

    def test_a_node_says_that_it_waits_for_node_0_and_timeout_bounds_the_wait(self):
        for address, why in ((self.address, b"Connection refused"), ("no-such-host.invalid:29500", b"no-such-host.invalid")):
            with self.subTest(address):
                self.address = address
                begin = time.monotonic()
                result = Result(self.node(1, "--timeout", 7, "sleep", "60"))
                self.expect(result, 1)
                self.assertLess(time.monotonic() - begin, 20 * SLACK)
                says = b"this node waits for the store of node 0, up to 7 s (--timeout): the store at tcp://" + address.encode()
                self.assertIn(says, result.err)
                self.assertIn(why, result.err)
                self.assertIn(b"cannot reach the store of node 0", result.err)

    def test_a_name_that_does_not_resolve_at_node_0(self):
        self.address = "no-such-host.invalid:29500"
        begin = time.monotonic()
        result = Result(self.node(0, "--timeout", 2, "sleep", "60"))
        self.expect(result, 1)
        self.assertLess(time.monotonic() - begin, 15 * SLACK)
        self.assertIn(b"waits for the address of its host", result.err)
        self.assertIn(b"cannot host the store at tcp://no-such-host.invalid:29500", result.err)

    def test_node_that_comes_late(self):
        """Node 0 has restarted, or is over, before the others come."""
        code = "echo try $DDP_RESTART; test $DDP_RESTART = 0 && exit 4; exit 0"
        first = self.node(0, "--max-restarts", 2, "sh", "-c", code)
        lines = [first.stdout.readline() for _ in range(4)]
        self.assertIn(b"try 1", lines[-1])
        second = Result(self.node(1, "--max-restarts", 2, "sh", "-c", code))
        self.expect(second, 0)
        self.assertEqual(sorted(second.out.splitlines()), [f"[{HOST} {rank}] try 1".encode() for rank in (2, 3)])
        self.expect(Result(first), 0)

    def test_node_that_comes_when_all_is_over(self):
        first = self.node(0, "sh", "-c", "exit 4")
        [(failed, status)] = lost(first.stderr.readline())
        self.assertEqual(status, 4)
        second = Result(self.node(1, "sh", "-c", "echo ran"))
        self.expect(second, 4)
        self.assertEqual(second.out, b"")
        self.assertEqual(lost(second.err)[:1], [(failed, 4)], str(second))
        self.expect(Result(first), 4)

    def test_node_rank_taken(self):
        first = self.node(0, "sleep", "60")
        second = self.node(1, "sh", "-c", f"echo $$ > {self.path('pid')}$((DDP_RANK - 2)); exec sleep 60")
        self.pids(2)
        result = Result(self.node(1, "true"))
        self.expect(result, 1)
        self.assertIn(b"--node-rank 1 is taken", result.err)
        first.terminate()
        for result in self.results(first, second):
            self.expect(result, 143)


class NodesThatEndTest(WithNodes):
    def test_interrupt_ends_both(self):
        for interrupted in (0, 1):
            with self.subTest(node=interrupted):
                code = f"echo $$ > {self.path('pid')}$DDP_RANK; exec sleep 60"
                nodes = [self.node(node, "--max-restarts", 3, "sh", "-c", code) for node in range(2)]
                pids = self.pids(4)
                nodes[interrupted].send_signal(signal.SIGINT)
                for result in self.results(*nodes):
                    self.expect(result, 130)
                    self.assertNotIn(b"restarting", result.err)
                self.expect_gone(pids)

    def test_second_interrupt_does_not_wait_for_the_others(self):
        code = f"trap '' INT; echo $$ > {self.path('pid')}$DDP_RANK; while :; do sleep 1; done"
        first = self.node(0, "--grace", 50, "sh", "-c", code)
        second = self.node(1, "--grace", 50, "sh", "-c", code)
        self.pids(4)
        begin = time.monotonic()
        for node in (first, second):
            self.interrupt_until_end(node)
            self.expect(Result(node), 130)
        self.assertLess(time.monotonic() - begin, 10 * SLACK)

    def test_interrupt_while_ddprun_ends(self):
        code = f"echo $$ > {self.path('pid')}$DDP_RANK; exec sleep 60"
        nodes = [self.node(rank, "sh", "-c", code) for rank in range(2)]
        self.pids(4)
        for node in nodes:
            self.interrupt_until_end(node, every=0.0005)
            self.expect(Result(node), 130)

    def expect_the_other_to_notice(self, dies, message, node_timeout=6):
        code = f"echo $$ > {self.path('pid')}$DDP_RANK; exec sleep 300"
        nodes = [self.node(node, "--node-timeout", node_timeout, "sh", "-c", code) for node in range(2)]
        pids = self.pids(4)
        nodes[dies].kill()
        result = Result(nodes[1 - dies])
        self.expect(result, 1)
        self.assertIn(message, result.err)
        self.expect_gone(pids)
        return result.err

    @staticmethod
    def without_records(said):
        """The nodes of which node 0 says that their records have not come."""
        return sorted(map(int, re.findall(rb"the records of node (\d) have not come\n", said)))

    def test_node_that_dies(self):
        said = self.expect_the_other_to_notice(1, b"node 1 does not answer any more")
        self.assertEqual(self.without_records(said), [1], said)

    def three_nodes(self, code, *options):
        """Three nodes of one rank each, and the pids of the ranks."""
        code = f"echo $$ > {self.path('pid')}$DDP_RANK; {code}"
        nodes = [self.node(node, *options, "sh", "-c", code, nodes=3, ranks=1) for node in range(3)]
        return nodes, self.pids(3)

    def test_nodes_that_die_one_after_the_other(self):
        """Node 0 waits for the records of neither: 5 s for the nodes to leave, and no 48 s more."""
        nodes, pids = self.three_nodes("exec sleep 300", "--node-timeout", 8)
        nodes[1].kill()
        time.sleep(3)
        nodes[2].kill()
        begin = time.monotonic()
        result = Result(nodes[0])
        self.expect(result, 1)
        self.assertIn(b"node 1 does not answer any more", result.err)
        self.assertEqual(self.without_records(result.err), [1, 2], str(result))
        self.assertLess(time.monotonic() - begin, 30 * SLACK)
        self.expect_gone(pids)

    def test_sigterm_ends_the_wait_for_records(self):
        nodes, pids = self.three_nodes("test $DDP_RANK = 2 && trap '' TERM; while :; do sleep 1; done", "--node-timeout", 6, "--grace", 40)
        nodes[1].kill()
        self.expect_gone(pids[:1], 20)
        time.sleep(1)  # node 0 leaves; node 2 waits for its rank
        nodes[0].terminate()
        begin = time.monotonic()
        result = Result(nodes[0])
        self.expect(result, 1)
        self.assertIn(2, self.without_records(result.err), str(result))
        self.assertLess(time.monotonic() - begin, 20 * SLACK)
        self.interrupt_until_end(nodes[2])

    def test_node_0_that_dies(self):
        """At once: its connection has ended."""
        begin = time.monotonic()
        self.expect_the_other_to_notice(0, b"the store of node 0 does not answer", node_timeout=60)
        self.assertLess(time.monotonic() - begin, 20 * SLACK)


if __name__ == "__main__":
    unittest.main(verbosity=2)
