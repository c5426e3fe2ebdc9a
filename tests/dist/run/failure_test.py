"""Ranks that fail, and restarts."""
import os
import pathlib
import re
import signal
import socket
import time
import unittest

from ddprun_support import PACE, PYTHON, RANK, SLACK, Case, Result, lost, run, until


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
        self.assertLess(time.monotonic() - begin, 4 * SLACK)
        self.expect_gone(pids)

    def test_rank_that_crashes(self):
        result = run("-n", 2, "sh", "-c", "ulimit -c 0; test $DDP_RANK = 0 && kill -SEGV $$; exec sleep 60")
        self.expect(result, 139)
        self.assertEqual(lost(result.err), [(0, -signal.SIGSEGV)], str(result))

    def test_others_may_report_first(self):
        code = "test $DDP_RANK = 0 && exit 3; sleep 0.4; echo rank 0 has gone >&2; exit 4"
        result = run("-n", 2, "sh", "-c", code)
        self.expect(result, 3)
        self.assertIn(b"[1] rank 0 has gone\n", result.err)

    def test_ranks_that_go_on_are_not_interrupted(self):
        # Longer than a rank may be quiet: one prints now and then, one computes, and one waits for a child that computes.
        computes = f"{PYTHON} -c 'import time; end = time.monotonic() + 3.5\nwhile time.monotonic() < end: pass\nprint(\"done\")'"
        code = "test $DDP_RANK = 0 && exit 3\n" \
               "if test $DDP_RANK = 1; then for i in 1 2 3 4 5; do sleep 0.7; echo report $i; done; exit 4; fi\n" \
               f"if test $DDP_RANK = 2; then exec {computes}; fi\n" \
               f"{computes}; echo its child has ended"
        result = run("-n", 4, "--report-time", 50, "sh", "-c", code)
        self.expect(result, 3)
        self.assertIn(b"[1] report 5\n", result.out)
        self.assertIn(b"[2] done\n", result.out)
        self.assertIn(b"[3] its child has ended\n", result.out)

    def test_rank_whose_output_waits_for_its_reader_is_not_interrupted(self):
        code = "test $DDP_RANK = 0 && exit 3; yes report | head -n 600000; echo the end"
        process = self.start("-n", 2, "--report-time", 50, "sh", "-c", code)
        time.sleep(4)  # longer than a rank may be quiet
        result = Result(process)
        self.expect(result, 3)
        self.assertTrue(result.out.endswith(b"[1] the end\n"), str(result))

    def test_report_time_has_a_bound(self):
        begin = time.monotonic()
        result = run("-n", 2, "--report-time", 1, "sh", "-c", "test $DDP_RANK = 0 && exit 3; while :; do :; done")
        self.expect(result, 3)
        self.assertLess(time.monotonic() - begin, 10 * SLACK)

    def test_log_file_that_may_not_grow(self):
        """A limit of file sizes (ulimit -f) ends the log, not the job. ddprun's status says that the log is not whole."""
        import resource

        limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        result = run("-n", 1, "--log-dir", self.path("logs"), "sh", "-c", "yes | head -n 9000; echo end", preexec_fn=limit)
        self.expect(result, 1)
        self.assertIn(b"[0] end\n", result.out)
        self.assertIn(b"rank-0.log any more (File too large)", result.err)

    def test_last_words_come_before_the_verdict(self):
        result = run("-n", 1, "sh", "-c", "echo because >&2; exit 1")
        self.assertLess(result.err.index(b"because"), result.err.index(b"exited with status 1"))

    def test_rank_that_ignores_sigterm(self):
        code = "trap '' TERM; echo $$ > %s$DDP_RANK; test $DDP_RANK = 0 && exit 5; while :; do sleep 1; done"
        begin = time.monotonic()
        result = run("-n", 2, "--grace", 1, "sh", "-c", code % self.path("pid"))
        self.expect(result, 5)
        self.assertGreater(time.monotonic() - begin, 2.9)  # two seconds to report, one of grace
        self.assertLess(time.monotonic() - begin, 7 * SLACK)
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


class CauseTest(Case):
    """One rank dies, and the others fail because of that, perhaps before ddprun has seen the death."""

    ROUNDS = int(os.environ.get("DDPRUN_TEST_ROUNDS", "30"))

    def expect_cause(self, rank, number, rounds=ROUNDS, env=None):
        for turn in range(rounds):
            result = run("-n", 4, RANK, rank, int(number), env={**os.environ, **(env or {})})
            self.expect(result, 128 + number)
            [first, *_] = [line for line in result.err.splitlines() if line.startswith(b"ddprun on")]
            self.assertEqual(lost(first), [(rank, -number)], f"round {turn}: {result}")

    def test_killed(self):
        self.expect_cause(2, signal.SIGKILL)

    def test_killed_and_others_abort(self):
        self.expect_cause(1, signal.SIGKILL, env={"ABORT": "1"}, rounds=self.ROUNDS // 3)

    def test_other_signals(self):
        for number in (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT):
            with self.subTest(number.name):
                self.expect_cause(3, number, rounds=self.ROUNDS // 6)

    def test_crashed_and_others_abort(self):
        self.expect_cause(2, signal.SIGSEGV, env={"ABORT": "1"}, rounds=self.ROUNDS // 3)

    def test_every_restart(self):
        result = run("-n", 4, "--max-restarts", 4, RANK, 2, int(signal.SIGKILL))
        self.expect(result, 137)
        self.assertEqual(re.findall(rb"^ddprun on .*: rank (\d) .*\(SIGKILL\)(?:: .*)?$", result.err, re.M), [b"2"] * 5, str(result))
        self.assertNotIn(b"exited with status", result.err)

    def test_death_that_is_seen_late(self):
        """The cause is the last to end."""
        code = "ulimit -c 0; after() { until test -e $0$1; do sleep 0.01; done; }\n" \
               "case $DDP_RANK in\n" \
               "0) after 1-is-here; after 2-is-here; touch ${0}0; exit 3;;\n" \
               "1) touch ${0}1-is-here; after 0; touch ${0}1; kill -ABRT $$;;\n" \
               "2) touch ${0}2-is-here; after 1; kill -SEGV $$;;\n" \
               "esac; exec sleep 60"
        result = run("-n", 4, "sh", "-c", code, self.path("gone"))
        self.expect(result, 139)
        self.assertEqual(lost(result.err), [(2, -signal.SIGSEGV), (1, -signal.SIGABRT)], str(result))
        self.assertEqual(result.err.count(b"ddprun on"), 2, str(result))

    def test_crash_while_others_report_is_no_cause(self):
        code = "test $DDP_RANK = 0 && exit 3; sleep 0.8; echo still here; sleep 0.8; kill -SEGV $$"
        result = run("-n", 2, "sh", "-c", "ulimit -c 0; " + code)
        self.expect(result, 3)
        self.assertLess(result.err.index(b"rank 0"), result.err.index(b"(SIGSEGV)"), str(result))


    def test_a_stopped_rank_is_noted_with_the_time(self):
        """The rank may have had an earlier process, which was not stopped."""
        kept = self.path("records")
        code = f"echo $$ > {self.path('pid')}$DDP_RANK; exec {PACE} 60 {self.path('done')} stop"
        process = self.start("-n", 3, "--record", kept, "--grace", 1, "sh", "-c", code)
        pids = self.pids(3)
        stat = pathlib.Path("/proc", str(pids[1]), "stat")
        self.assertTrue(until(lambda: stat.read_text().rsplit(")", 1)[1].split()[0] == "T", 30 * SLACK))
        before = time.time_ns()
        os.kill(pids[2], signal.SIGKILL)
        self.expect(Result(process), 137)
        [seen] = [path.read_text() for path in pathlib.Path(kept).glob("seen-by-launcher-on-*")]
        stopped = re.search(r"^1 2 (\d+) was stopped", seen, re.MULTILINE)
        self.assertTrue(stopped, seen)
        self.assertGreaterEqual(int(stopped[1]), before)


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

    def test_records_in_memory_go_with_their_generation(self):
        lists = f"find ${{DDP_RECORD%/restart-*}} -name '*.record' > {self.path('list')}$DDP_RANK.$DDP_RESTART"
        result = run("-n", 2, "--max-restarts", 3, "sh", "-c", f"{RANK} 1 0; {lists}; exit 5")
        self.expect(result, 5)
        for restart in range(4):  # both ranks have met before rank 1 fails
            self.assertEqual(self.read(f"list1.{restart}").count(b"\n"), 2, str(result))

    def test_none_for_a_program_that_cannot_run(self):
        script = self.write("script", "#!/no/such/interpreter\n", 0o755)
        result = run("-n", 4, "--max-restarts", 3, script)
        self.expect(result, 127)
        self.assertEqual(result.err.count(b"\n"), 1, str(result))
        self.assertIn(b"cannot run", result.err)


if __name__ == "__main__":
    unittest.main(verbosity=2)
