"""Ranks that fail, and restarts."""
import os
import re
import signal
import socket
import time
import unittest

from ddprun_support import PYTHON, Case, Result, run


class FailureTest(Case):
    def test_status_of_the_failing_rank(self):
        result = run("-n", 3, "sh", "-c", "test $DDP_RANK = 1 && exit 7; exec sleep 60")
        self.expect(result, 7)
        self.assertRegex(result.err, rb"rank 1 \(pid \d+\) exited with status 7\n")
        self.assertIn(socket.gethostname().encode(), result.err)
        self.assertEqual(result.err.count(b"ddprun"), 1, str(result))

    def test_rank_killed_by_pid(self):
        process = self.start("-n", 3, "sh", "-c", f"echo $$ > {self.path('pid')}$DDP_RANK; exec sleep 60")
        pids = self.pids(3)
        os.kill(pids[2], signal.SIGKILL)
        begin = time.monotonic()
        result = Result(process)
        self.expect(result, 137)
        self.assertIn(b"rank 2 (pid %d) was killed by signal 9 (SIGKILL)\n" % pids[2], result.err)
        self.assertLess(time.monotonic() - begin, 4)
        self.expect_gone(pids)

    def test_rank_that_crashes(self):
        result = run("-n", 2, "sh", "-c", "ulimit -c 0; test $DDP_RANK = 0 && kill -SEGV $$; exec sleep 60")
        self.expect(result, 139)
        self.assertIn(b"(SIGSEGV)", result.err)

    def test_others_may_report_first(self):
        code = "test $DDP_RANK = 0 && exit 3; sleep 0.4; echo rank 0 has gone >&2; exit 4"
        result = run("-n", 2, "sh", "-c", code)
        self.expect(result, 3)
        self.assertIn(b"[1] rank 0 has gone\n", result.err)

    def test_last_words_come_before_the_verdict(self):
        result = run("-n", 1, "sh", "-c", "echo because >&2; exit 1")
        self.assertLess(result.err.index(b"because"), result.err.index(b"exited with status 1"))

    def test_rank_that_ignores_sigterm(self):
        code = "trap '' TERM; echo $$ > %s$DDP_RANK; test $DDP_RANK = 0 && exit 5; while :; do sleep 1; done"
        begin = time.monotonic()
        result = run("-n", 2, "--grace", 1, "sh", "-c", code % self.path("pid"))
        self.expect(result, 5)
        self.assertGreater(time.monotonic() - begin, 1.9)  # one second to report, one of grace
        self.assertLess(time.monotonic() - begin, 6)
        self.expect_gone(self.pids(2))

    def test_rank_that_cleans_up_on_sigterm(self):
        code = "import os,signal,sys,time\n" \
               "if os.environ['DDP_RANK'] == '0': sys.exit(5)\n" \
               "signal.signal(signal.SIGTERM, lambda *_: (print('cleaned', flush=True), sys.exit(0)))\n" \
               "time.sleep(60)"
        result = run("-n", 2, PYTHON, "-c", code)
        self.expect(result, 5)
        self.assertIn(b"[1] cleaned\n", result.out)

    def test_stopped_rank_is_ended(self):
        process = self.start("-n", 2, "--grace", 1, "sh", "-c", f"echo $$ > {self.path('pid')}$DDP_RANK; exec sleep 60")
        pids = self.pids(2)
        os.kill(pids[0], signal.SIGSTOP)
        os.kill(pids[1], signal.SIGKILL)
        self.expect(Result(process), 137)
        self.expect_gone(pids)


class RestartTest(Case):
    def test_until_it_works(self):
        code = "echo try $DDP_RESTART $DDP_STORE; test $DDP_RESTART = 2"
        result = run("-n", 2, "--max-restarts", 5, "sh", "-c", code)
        self.expect(result, 0)
        stores = []
        for restart in range(3):
            found = set(re.findall(rb"try %d (\S+)" % restart, result.out))
            self.assertEqual(len(found), 1, str(result))
            stores += found
        self.assertEqual(result.err.count(b"restarting the job"), 2)

    def test_gives_up(self):
        result = run("-n", 2, "--max-restarts", 2, "sh", "-c", "exit $((10 + DDP_RESTART))")
        self.expect(result, 12)
        self.assertEqual(result.err.count(b"restarting the job"), 2)

    def test_all_ranks_restart(self):
        code = "echo rank $DDP_RANK try $DDP_RESTART; test $DDP_RANK$DDP_RESTART = 10 && exit 1; " \
               "test $DDP_RESTART = 1 || exec sleep 60"
        result = run("-n", 3, "--max-restarts", 1, "sh", "-c", code)
        self.expect(result, 0)
        for rank in range(3):
            for restart in range(2):
                self.assertIn(b"rank %d try %d\n" % (rank, restart), result.out)

    def test_none_for_a_program_that_cannot_run(self):
        script = self.write("script", "#!/no/such/interpreter\n", 0o755)
        result = run("-n", 4, "--max-restarts", 3, script)
        self.expect(result, 127)
        self.assertEqual(result.err.count(b"\n"), 1, str(result))
        self.assertIn(b"cannot run", result.err)


if __name__ == "__main__":
    unittest.main()
