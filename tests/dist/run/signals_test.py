"""Signals to ddprun, and what its ranks started themselves."""
import os
import signal
import subprocess
import time
import unittest

from ddprun_support import DDPRUN, PYTHON, SLACK, Case, Result, exists, run, until


class SignalTest(Case):
    # os.write, because print may be interrupted by the next signal, and refuses to be entered twice.
    TRAP = "import os,signal,sys,time\n" \
           "def seen(number, frame):\n" \
           "    os.write(1, f'seen {signal.Signals(number).name}\\n'.encode())\n" \
           "    if number in (signal.SIGINT, signal.SIGTERM): sys.exit(0)\n" \
           "for name in ('INT', 'TERM', 'HUP', 'USR1', 'USR2'): signal.signal(getattr(signal, 'SIG' + name), seen)\n" \
           "open(sys.argv[1] + os.environ['DDP_RANK'], 'w').write(f'{os.getpid()}\\n')\n" \
           "while True: time.sleep(1)\n"

    def start_traps(self, *args, ranks=2):
        process = self.start("-n", ranks, *args, PYTHON, "-c", self.TRAP, self.path("pid"))
        return process, self.pids(ranks)

    def test_ends_by_signal(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            with self.subTest(number.name):
                process, pids = self.start_traps()
                process.send_signal(number)
                result = Result(process)
                self.expect(result, 128 + number)
                for rank in range(2):
                    self.assertIn(b"[%d] seen %s\n" % (rank, number.name.encode()), result.out)
                self.expect_gone(pids)

    def test_passes_signals_on(self):
        process, _ = self.start_traps()
        lines = b""
        for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
            process.send_signal(number)
            lines += process.stdout.readline() + process.stdout.readline()
        for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
            for rank in range(2):
                self.assertIn(b"[%d] seen %s\n" % (rank, number.name.encode()), lines)
        process.terminate()
        self.expect(Result(process), 143)

    def test_no_restart_after_a_signal(self):
        for number in (signal.SIGTERM, signal.SIGHUP):
            with self.subTest(number.name):
                process = self.start("-n", 2, "--max-restarts", 5, "sh", "-c",
                                     f"echo $$ > {self.path('pid')}$DDP_RANK; exec sleep 60")
                self.pids(2)
                process.send_signal(number)
                result = Result(process)
                self.expect(result, 128 + number)
                self.assertNotIn(b"restart", result.err)

    def test_deaf_ranks_are_killed_after_grace(self):
        code = f"trap '' INT TERM; echo $$ > {self.path('pid')}$DDP_RANK; while :; do sleep 1; done"
        process = self.start("-n", 2, "--grace", 1, "sh", "-c", code)
        pids = self.pids(2)
        begin = time.monotonic()
        process.terminate()
        self.expect(Result(process), 143)
        self.assertGreater(time.monotonic() - begin, 0.9)
        self.expect_gone(pids)

    def test_second_interrupt_kills_at_once(self):
        code = f"trap '' INT TERM; echo $$ > {self.path('pid')}$DDP_RANK; while :; do sleep 1; done"
        process = self.start("-n", 2, "--grace", 50, "sh", "-c", code)
        pids = self.pids(2)
        begin = time.monotonic()
        self.interrupt_until_end(process)
        self.expect(Result(process), 130)
        self.assertLess(time.monotonic() - begin, 5 * SLACK)
        self.expect_gone(pids)

    def test_interrupts_until_the_process_is_gone(self):
        """Also those that come while ddprun closes what it had open do not change its status."""
        process = self.start("-n", 1, "sh", "-c", f"echo $$ > {self.path('pid')}$DDP_RANK; exec sleep 50")
        pids = self.pids(1)
        end = time.monotonic() + 10 * SLACK
        while process.poll() is None and time.monotonic() < end:
            process.send_signal(signal.SIGINT)
            time.sleep(2e-4)  # ddprun has to get on
        self.expect(Result(process), 130)
        self.expect_gone(pids)

    def test_interrupt_while_nobody_reads(self):
        process = self.start("-n", 1, "--grace", 1, "sh", "-c", f"echo $$ > {self.path('pid')}$DDP_RANK; exec yes")
        pids = self.pids(1)
        time.sleep(1)  # by now ddprun's own stdout is full
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(15), 130)
        self.expect_gone(pids)

    def test_ends_while_it_waits_for_the_name_of_its_host(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            with self.subTest(number.name), open(self.path("err"), "wb") as err:
                process = self.start("-n", 1, "--rdzv", "no-such-host.invalid:29500", "true", stderr=err)
                waits = until(lambda: b"waits for the address of its host" in self.read("err"), 30 * SLACK)
                self.assertTrue(waits, self.read("err"))
                begin = time.monotonic()
                process.send_signal(number)
                self.expect(Result(process), 128 + number)
                self.assertLess(time.monotonic() - begin, 2 * SLACK)

    def test_nohup_is_respected(self):
        code = f"echo $$ > {self.path('pid')}$DDP_RANK; exec sleep 1"
        process = self.start("-n", 1, "sh", "-c", code,
                             preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
        self.pids(1)
        process.send_signal(signal.SIGHUP)
        self.expect(Result(process), 0)


class LeftoverTest(Case):
    def expect_death_with_ddprun(self, code):
        process = self.start("-n", 3, "sh", "-c", code, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        pids = self.pids(3)
        process.kill()
        self.expect_gone(pids)

    def test_ranks_die_with_ddprun(self):
        self.expect_death_with_ddprun(
            f"trap '' TERM; echo $$ > {self.path('pid')}$DDP_RANK; while :; do sleep 1; done")

    def test_grandchildren_die_with_ddprun(self):
        self.expect_death_with_ddprun(f"sleep 600 & echo $! > {self.path('pid')}$DDP_RANK; wait")

    def test_grandchildren_die_with_a_ddprun_that_is_killed_at_once(self):
        for _ in range(20):
            process = self.start("-n", 1, "sh", "-c", f"sleep 600 & echo $! > {self.path('pid')}0; kill -KILL $PPID; wait",
                                 stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                 # On one processor a rank may run before ddprun does again.
                                 preexec_fn=lambda: os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}))
            self.expect_gone(self.pids(1))
            self.assertEqual(process.wait(20), -signal.SIGKILL)

    def test_grandchildren_end_with_a_failure(self):
        code = f"sleep 600 & echo $! > {self.path('pid')}$DDP_RANK; test $DDP_RANK = 0 && exit 3; wait"
        self.expect(run("-n", 2, "sh", "-c", code), 3)
        self.expect_gone(self.pids(2), 0.1)

    def test_grandchildren_end_with_their_rank(self):
        begin = time.monotonic()
        self.expect(run("-n", 2, "sh", "-c", f"sleep 600 & echo $! > {self.path('pid')}$DDP_RANK"), 0)
        self.assertLess(time.monotonic() - begin, 4 * SLACK)
        self.expect_gone(self.pids(2), 0.1)

    def test_deaf_grandchildren_are_killed_after_grace(self):
        code = f"sh -c 'trap \"\" TERM; echo $$ > {self.path('pid')}0; while :; do sleep 1; done' & " \
               f"while ! test -s {self.path('pid')}0; do sleep 0.05; done"
        self.expect(run("-n", 1, "--grace", 1, "sh", "-c", code), 0)
        self.expect_gone(self.pids(1), 0.1)

    def test_daemons_end_with_the_job(self):
        code = f"setsid sh -c 'echo $$ > {self.path('pid')}0; exec sleep 600' & " \
               f"while ! test -s {self.path('pid')}0; do sleep 0.05; done"
        begin = time.monotonic()
        self.expect(run("-n", 1, "sh", "-c", code), 0)
        self.assertLess(time.monotonic() - begin, 4 * SLACK)
        self.expect_gone(self.pids(1), 0.1)

    def test_no_zombies_meanwhile(self):
        # Orphans that end while the job runs become ddprun's children: it has to take their exit status.
        code = "for i in 1 2 3 4 5; do (setsid sleep 0.1 &) ; done; " \
               f"echo $$ > {self.path('pid')}$DDP_RANK; exec sleep 60"
        process = self.start("-n", 1, "sh", "-c", code)
        [rank] = self.pids(1)

        def children():
            with open(f"/proc/{process.pid}/task/{process.pid}/children") as file:
                return set(map(int, file.read().split()))

        self.assertTrue(until(lambda: len(children()) == 2), children())  # the rank and the guard
        self.assertIn(rank, children())
        process.terminate()
        self.expect(Result(process), 143)

    def test_children_from_before_are_left_alone(self):
        code = f'sleep 600 & echo $! > {self.path("pid")}0; exec "$0" -n 1 true'
        result = Result(subprocess.Popen(["sh", "-c", code, DDPRUN], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        [pid] = self.pids(1)
        self.assertTrue(exists(pid))
        os.kill(pid, signal.SIGKILL)
        self.expect(result, 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
