"""ddprun from the outside: what it prints, how it ends, and what it leaves behind (nothing).

Ranks are /bin/sh and python3. CMake tells where ddprun is through the variable DDPRUN.
"""

import os
import pty
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

DDPRUN = os.environ["DDPRUN"]
PYTHON = sys.executable
BOUND = 60  # seconds after which a test gives up on ddprun


def start(*args, env=None, **options):
    options.setdefault("stdout", subprocess.PIPE)
    options.setdefault("stderr", subprocess.PIPE)
    return subprocess.Popen([DDPRUN, *map(str, args)], stdin=subprocess.DEVNULL, env=env, **options)


class Result:
    def __init__(self, process):
        try:
            self.out, self.err = process.communicate(timeout=BOUND)
        except subprocess.TimeoutExpired:
            process.kill()
            self.out, self.err = process.communicate(timeout=BOUND)
            raise AssertionError(f"ddprun did not end within {BOUND} s\n{self.out!r}\n{self.err!r}")
        self.status = process.returncode

    def __str__(self):
        out, err = ((stream or b"")[-800:] for stream in (self.out, self.err))
        return f"status {self.status}\nstdout: {out!r}\nstderr: {err!r}"


def run(*args, **options):
    return Result(start(*args, **options))


def exists(pid):
    """Whether a process runs. A zombie does not."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def until(condition, bound=10.0):
    """Waits for a condition and returns its value."""
    end = time.monotonic() + bound
    while True:
        value = condition()
        if value or time.monotonic() > end:
            return value
        time.sleep(0.01)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, name):
        return os.path.join(self.folder, name)

    def read(self, name):
        try:
            with open(self.path(name), "rb") as file:
                return file.read()
        except FileNotFoundError:
            return b""

    def write(self, name, text, mode=0o600):
        with open(self.path(name), "w") as file:
            file.write(text)
        os.chmod(self.path(name), mode)
        return self.path(name)

    def pids(self, count, prefix="pid"):
        """The pids that `count` ranks wrote to files of their own, once all have."""
        names = [f"{prefix}{rank}" for rank in range(count)]
        self.assertTrue(until(lambda: all(self.read(name).endswith(b"\n") for name in names)), "ranks did not start")
        pids = [int(self.read(name)) for name in names]
        for name in names:
            os.remove(self.path(name))  # the next ones are to be waited for
        return pids

    def start(self, *args, **options):
        process = start(*args, **options)

        def end():
            if process.poll() is None:
                process.kill()
            process.communicate(timeout=BOUND)

        self.addCleanup(end)
        return process

    def expect(self, result, status):
        self.assertEqual(result.status, status, str(result))

    def expect_gone(self, pids, bound=2.0):
        left = until(lambda: not [pid for pid in pids if exists(pid)], bound)
        self.assertTrue(left, f"still there: {[pid for pid in pids if exists(pid)]}")


class OutputTest(Case):
    def test_tags_and_streams(self):
        result = run("-n", 3, "sh", "-c", "echo out $DDP_RANK; echo err $DDP_RANK >&2")
        self.expect(result, 0)
        self.assertEqual(sorted(result.out.splitlines()), [b"[%d] out %d" % (r, r) for r in range(3)])
        self.assertEqual(sorted(result.err.splitlines()), [b"[%d] err %d" % (r, r) for r in range(3)])

    def test_last_line_without_end(self):
        result = run("-n", 2, "sh", "-c", "printf 'a\\nlast'")
        self.expect(result, 0)
        self.assertEqual(sorted(result.out.splitlines()), [b"[0] a", b"[0] last", b"[1] a", b"[1] last"])
        self.assertTrue(result.out.endswith(b"\n"))

    def test_long_lines_are_cut(self):
        size = 64 * 1024
        code = f"import sys; sys.stdout.write('x' * {size * 2 + 100} + '\\n' + 'y' * {size} + '\\nz\\n')"
        result = run("-n", 1, PYTHON, "-c", code)
        self.expect(result, 0)
        pieces = [b"x" * size, b"x" * size, b"x" * 100, b"y" * size, b"z"]
        self.assertEqual(result.out, b"".join(b"[0] " + piece + b"\n" for piece in pieces))

    def test_binary_bytes_pass(self):
        code = "import sys; sys.stdout.buffer.write(bytes(b for b in range(256) if b != 10) + b'\\n\\n\\0\\n')"
        result = run("-n", 1, PYTHON, "-c", code)
        self.assertEqual(result.out, b"[0] " + bytes(b for b in range(256) if b != 10) + b"\n[0] \n[0] \0\n")

    def test_no_tag_is_raw(self):
        result = run("-n", 1, "--no-tag", "sh", "-c", "printf 'a\\nb'; printf 'c' >&2")
        self.assertEqual((result.out, result.err), (b"a\nb", b"c"))

    def test_timestamps(self):
        result = run("-n", 1, "--timestamps", "echo", "x")
        self.assertRegex(result.out, rb"^\[0\] \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z x\n$")

    def test_log_dir(self):
        logs = self.path("a/logs")
        code = "echo out $DDP_RANK; echo err $DDP_RANK >&2; exit $((1 - DDP_RESTART))"
        result = run("-n", 2, "--log-dir", logs, "--max-restarts", 1, "sh", "-c", code)
        self.expect(result, 0)
        for rank in range(2):
            lines = [b"out %d" % rank, b"err %d" % rank]
            self.assertEqual(sorted(self.read(f"a/logs/rank-{rank}.restart-1.log").splitlines()), sorted(lines))
            self.assertIn(b"[%d] out %d\n" % (rank, rank), result.out)
        self.assertEqual(len(os.listdir(logs)), 4)

    def test_log_dir_that_cannot_be(self):
        self.write("file", "")
        result = run("-n", 2, "--log-dir", self.path("file/logs"), "true")
        self.expect(result, 1)
        self.assertIn(b"file/logs", result.err)

    def test_many_lines_complete_and_unmixed(self):
        ranks, lines = 32, 10_000 // 32 + 1
        code = f"import os\nr = os.environ['DDP_RANK']\nfor i in range({lines}): print(r, i, 'x' * (i % 200), flush=i % 7 == 0)"
        result = run("-n", ranks, PYTHON, "-c", code)
        self.expect(result, 0)
        seen = {rank: 0 for rank in range(ranks)}
        for line in result.out.splitlines():
            rank, text = re.fullmatch(rb"\[(\d+)\] (.*)", line).groups()
            expected = b"%d %d %s" % (int(rank), seen[int(rank)], b"x" * (seen[int(rank)] % 200))
            self.assertEqual(text, expected)
            seen[int(rank)] += 1
        self.assertEqual(set(seen.values()), {lines})

    def test_slow_reader_loses_nothing(self):
        code = "for i in range(60000): print(i, 'x' * 80)"
        process = self.start("-n", 2, PYTHON, "-c", code)
        time.sleep(1.5)  # by now every pipe on the way is full
        result = Result(process)
        self.expect(result, 0)
        self.assertEqual(result.out.count(b"\n"), 120000)

    def test_reader_that_leaves_ends_a_chatty_job(self):
        with self.start("-n", 2, "yes", stderr=subprocess.DEVNULL) as process:
            process.stdout.readline()
            process.stdout.close()
            self.assertEqual(process.wait(BOUND), 128 + signal.SIGPIPE)

    def test_standard_input_is_empty(self):
        result = run("-n", 2, "sh", "-c", "readlink /proc/self/fd/0")
        self.assertEqual(sorted(result.out.splitlines()), [b"[0] /dev/null", b"[1] /dev/null"])

    def test_colours_only_on_a_terminal(self):
        for variables, coloured in (({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)):
            master, slave = pty.openpty()
            env = {**os.environ, "TERM": "xterm", **variables}
            process = start("-n", 1, "echo", "x", stdout=slave, env=env)
            os.close(slave)
            text = os.read(master, 100)
            process.communicate(timeout=BOUND)
            os.close(master)
            self.assertEqual(b"\x1b[" in text, coloured, text)


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


class SignalTest(Case):
    TRAP = "import os,signal,sys,time\n" \
           "def seen(number, frame):\n" \
           "    print('seen', signal.Signals(number).name, flush=True)\n" \
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
        process.send_signal(signal.SIGINT)
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        self.expect(Result(process), 130)
        self.assertLess(time.monotonic() - begin, 5)
        self.expect_gone(pids)

    def test_interrupt_while_nobody_reads(self):
        process = self.start("-n", 1, "--grace", 1, "sh", "-c", f"echo $$ > {self.path('pid')}$DDP_RANK; exec yes")
        pids = self.pids(1)
        time.sleep(1)  # by now ddprun's own stdout is full
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(15), 130)
        self.expect_gone(pids)

    def test_nohup_is_respected(self):
        code = f"echo $$ > {self.path('pid')}$DDP_RANK; exec sleep 1"
        process = self.start("-n", 1, "sh", "-c", code,
                             preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
        self.pids(1)
        process.send_signal(signal.SIGHUP)
        self.expect(Result(process), 0)


class LeftoverTest(Case):
    def test_ranks_die_with_ddprun(self):
        code = f"trap '' TERM; echo $$ > {self.path('pid')}$DDP_RANK; while :; do sleep 1; done"
        process = self.start("-n", 3, "sh", "-c", code, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        pids = self.pids(3)
        process.kill()
        self.expect_gone(pids, 2.0)

    def test_grandchildren_die_with_ddprun(self):
        code = f"sleep 600 & echo $! > {self.path('pid')}$DDP_RANK; wait"
        process = self.start("-n", 2, "sh", "-c", code, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        pids = self.pids(2)
        process.kill()
        self.expect_gone(pids, 2.0)

    def test_grandchildren_end_with_a_failure(self):
        code = f"sleep 600 & echo $! > {self.path('pid')}$DDP_RANK; test $DDP_RANK = 0 && exit 3; wait"
        self.expect(run("-n", 2, "sh", "-c", code), 3)
        self.expect_gone(self.pids(2), 0.1)

    def test_grandchildren_end_with_their_rank(self):
        begin = time.monotonic()
        self.expect(run("-n", 2, "sh", "-c", f"sleep 600 & echo $! > {self.path('pid')}$DDP_RANK"), 0)
        self.assertLess(time.monotonic() - begin, 4)
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
        self.assertLess(time.monotonic() - begin, 4)
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


class UsageTest(Case):
    def expect_refusal(self, words, *args):
        result = run(*args)
        self.expect(result, 2)
        self.assertEqual(result.out, b"")
        self.assertIn(words.encode(), result.err)

    def test_bad_options(self):
        self.expect_refusal("-n:", "-n", "0", "true")
        self.expect_refusal("-n:", "-n", "-1", "true")
        self.expect_refusal("-n:", "-n", "5000", "true")
        self.expect_refusal("-n:", "-n", "2x", "true")
        self.expect_refusal("-n", "-n")
        self.expect_refusal("no program", "-n", "2")
        self.expect_refusal("no program", "-n", "2", "--")
        self.expect_refusal("--bogus", "--bogus", "true")
        self.expect_refusal("--node-rank", "--nnodes", "2", "--node-rank", "2", "--rdzv", "h:1", "true")
        self.expect_refusal("--node-rank", "--node-rank", "-1", "true")
        self.expect_refusal("--nnodes", "--nnodes", "0", "true")
        self.expect_refusal("--rdzv", "--nnodes", "2", "true")
        for endpoint in ("host", "host:", ":1", "host:0", "host:65536", "host:1x", "a:b:1", "[::1]", "tcp://h:1"):
            self.expect_refusal("--rdzv", "--nnodes", "2", "--rdzv", endpoint, "true")
        self.expect_refusal("--grace", "--grace", "-1", "true")
        self.expect_refusal("--max-restarts", "--max-restarts", "-1", "true")
        self.expect_refusal("--env", "--env", "novalue", "true")
        self.expect_refusal("--env", "--env", "DDP_RANK=1", "true")
        self.expect_refusal("--no-tag", "--no-tag", "--timestamps", "true")

    def test_several_nodes_need_a_secret(self):
        env = {name: value for name, value in os.environ.items() if name != "DDP_SECRET"}
        result = run("--nnodes", 2, "--rdzv", "127.0.0.1:1", "true", env=env)
        self.expect(result, 2)
        self.assertIn(b"--secret-file", result.err)

    def test_secret_files(self):
        self.assertIn(b"--secret-file", run("--secret-file", self.path("none"), "true").err)
        self.assertIn(b"empty", run("--secret-file", self.write("empty", " \n"), "true").err)
        self.assertIn(b"chmod", run("--secret-file", self.write("open", "0123456789abcdef\n", 0o644), "true").err)
        result = run("--secret-file", self.write("good", "0123456789abcdef\n"), "sh", "-c", "echo $DDP_SECRET")
        self.assertEqual((result.out, result.err), (b"[0] 0123456789abcdef\n", b""))

    def test_missing_program(self):
        for name in ("no-such-program-here", "./no-such-program-here"):
            result = run("-n", 4, name)
            self.expect(result, 127)
            self.assertEqual(result.err.count(b"\n"), 1, str(result))
            self.assertIn(name.encode(), result.err)

    def test_program_that_may_not_run(self):
        for path in (self.folder, self.write("plain", "text")):
            result = run("-n", 4, path)
            self.expect(result, 126)
            self.assertEqual(result.err.count(b"\n"), 1, str(result))

    def test_options_after_the_program_are_its_own(self):
        for separator in ([], ["--"]):
            result = run("-n", 1, *separator, "echo", "-n", "-h", "--version", "--", "x")
            self.assertEqual(result.out, b"[0] -h --version -- x\n")

    def test_help_and_version(self):
        result = run("--help")
        self.expect(result, 0)
        self.assertIn(b"--max-restarts", result.out)
        result = run("--version")
        self.expect(result, 0)
        self.assertRegex(result.out, rb"^ddprun \d+\.\d+\.\d+\n$")

    def test_port_that_is_taken(self):
        with socket.socket() as holder:
            holder.bind(("127.0.0.1", 0))
            holder.listen()
            result = run("--rdzv", "127.0.0.1:%d" % holder.getsockname()[1], "true")
        self.expect(result, 1)
        self.assertIn(b"cannot host the store", result.err)

    def test_address_that_is_not_here(self):
        result = run("--bind", "192.0.2.1", "true")
        self.expect(result, 1)
        self.assertIn(b"192.0.2.1", result.err)


class EnvironmentTest(Case):
    def environments(self, *args, env=None):
        result = run(*args, "sh", "-c", f"cat /proc/self/environ > {self.path('env')}$DDP_RANK", env=env)
        self.expect(result, 0)
        found = []
        for rank in range(args[1]):
            entries = self.read(f"env{rank}").decode().split("\0")
            found.append(dict(entry.split("=", 1) for entry in entries if entry))
        return found

    def test_contents(self):
        env = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
        env["RANK"] = "77"
        found = self.environments("-n", 4, "--env", "A=1=2", "--env", "B=", env=env)
        for rank, variables in enumerate(found):
            for name in ("DDP_RANK", "DDP_LOCAL_RANK", "RANK", "LOCAL_RANK"):
                self.assertEqual(variables[name], str(rank))
            for name in ("DDP_WORLD_SIZE", "DDP_LOCAL_WORLD_SIZE", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
                self.assertEqual(variables[name], "4")
            self.assertRegex(variables["DDP_STORE"], r"^tcp://127\.0\.0\.1:\d+$")
            self.assertEqual(variables["DDP_STORE_HOSTED"], "launcher")
            self.assertEqual(variables["DDP_RESTART"], "0")
            self.assertRegex(variables["DDP_SECRET"], r"^[0-9a-f]{64}$")
            self.assertEqual((variables["A"], variables["B"]), ("1=2", ""))
            self.assertEqual(variables["OMP_NUM_THREADS"], str(max(1, len(os.sched_getaffinity(0)) // 4)))
            self.assertEqual(variables["PATH"], os.environ["PATH"])
        self.assertEqual(len({variables["DDP_SECRET"] for variables in found}), 1)

    def test_omp_threads_are_left_alone(self):
        found = self.environments("-n", 2, env={**os.environ, "OMP_NUM_THREADS": "3"})
        self.assertEqual([variables["OMP_NUM_THREADS"] for variables in found], ["3", "3"])

    def test_bind(self):
        [variables] = self.environments("-n", 1, "--bind", "0.0.0.0")
        self.assertRegex(variables["DDP_STORE"], r"^tcp://127\.0\.0\.1:\d+$")

    def test_secrets_differ_between_jobs(self):
        secrets = {self.environments("-n", 1)[0]["DDP_SECRET"] for _ in range(3)}
        self.assertEqual(len(secrets), 3)

    def test_secret_is_in_no_command_line_and_no_output(self):
        code = "import glob, os, sys\n" \
               "secret = os.environ['DDP_SECRET'].encode()\n" \
               "def text(path):\n" \
               "    try: return open(path, 'rb').read()\n" \
               "    except OSError: return b''\n" \
               "paths = glob.glob('/proc/[0-9]*/cmdline')\n" \
               "print('seen', sum(secret in text(path) for path in paths), 'in some', len(paths) > 2)\n" \
               f"open({self.path('secret')!r}, 'wb').write(secret)\n"
        result = run("-n", 1, PYTHON, "-c", code, env={**os.environ, "DDP_LOG_LEVEL": "debug"})
        self.expect(result, 0)
        self.assertEqual(result.out, b"[0] seen 0 in some True\n")
        self.assertNotIn(self.read("secret"), result.err)

    def test_descriptors_do_not_leak(self):
        result = run("-n", 2, "sh", "-c", "exec ls /proc/self/fd")
        self.assertEqual(sorted(result.out.split()), sorted([b"[0]", b"[1]"] * 4 + [b"0", b"1", b"2", b"3"] * 2))

    def test_limit_of_open_files_is_as_before(self):
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        result = run("-n", 1, "sh", "-c", "ulimit -n",
                     preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard)))
        self.assertEqual(result.out, b"[0] 200\n")

    def test_many_ranks(self):
        result = run("-n", 200, "sh", "-c", "echo $DDP_RANK")
        self.expect(result, 0)
        self.assertEqual(sorted(result.out.splitlines()), sorted(b"[%d] %d" % (r, r) for r in range(200)))


class NodesTest(Case):
    def setUp(self):
        super().setUp()
        self.address = "127.0.0.1:%d" % free_port()
        self.secret = self.write("job.secret", "a secret for this one job\n")

    def node(self, node, *args, nodes=2, ranks=2):
        return self.start("--nnodes", nodes, "--node-rank", node, "-n", ranks, "--rdzv", self.address,
                          "--secret-file", self.secret, *args)

    def results(self, *processes):
        return [Result(process) for process in processes]

    def test_ranks_and_success(self):
        code = "echo $DDP_RANK $DDP_WORLD_SIZE $DDP_LOCAL_RANK $DDP_LOCAL_WORLD_SIZE $DDP_STORE"
        second = self.node(1, "sh", "-c", code)  # it may come before node 0 does
        time.sleep(0.3)
        results = self.results(self.node(0, "sh", "-c", code), second)
        for node, result in enumerate(results):
            self.expect(result, 0)
            expected = [f"[{2 * node + i}] {2 * node + i} 4 {i} 2 tcp://{self.address}".encode() for i in range(2)]
            self.assertEqual(sorted(result.out.splitlines()), expected)
            self.assertEqual(result.err, b"")

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
                    self.assertRegex(result.err, rb"rank %d \(pid \d+\) exited with status 9" % failing)
                self.assertLess(time.monotonic() - begin, 15)

    def test_restart_on_both(self):
        code = "echo rank $DDP_RANK try $DDP_RESTART; test $DDP_RESTART = 2 && exit 0; sleep 1; " \
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

    def test_wrong_secret(self):
        first = self.node(0, "sleep", "60")
        self.assertTrue(until(self.listening))
        self.secret = self.write("other.secret", "another secret altogether\n")
        result = Result(self.node(1, "true"))
        self.expect(result, 1)
        self.assertIn(b"cannot reach the store", result.err)
        first.terminate()
        self.expect(Result(first), 143)

    def listening(self):
        host, port = self.address.split(":")
        with socket.socket() as probe:
            return probe.connect_ex((host, int(port))) == 0

    def test_nodes_that_differ(self):
        first = self.node(0, "sleep", "60")
        result = Result(self.node(1, "true", ranks=3))
        self.expect(result, 1)
        self.assertIn(b"-n 3", result.err)
        first.terminate()
        self.expect(Result(first), 143)

    def test_node_that_comes_late(self):
        """Node 0 has restarted, or is over, before the others come."""
        code = "echo try $DDP_RESTART; test $DDP_RESTART = 0 && exit 4; exit 0"
        first = self.node(0, "--max-restarts", 2, "sh", "-c", code)
        lines = [first.stdout.readline() for _ in range(4)]
        self.assertIn(b"try 1", lines[-1])
        second = Result(self.node(1, "--max-restarts", 2, "sh", "-c", code))
        self.expect(second, 0)
        self.assertEqual(sorted(second.out.splitlines()), [b"[2] try 1", b"[3] try 1"])
        self.expect(Result(first), 0)

    def test_node_that_comes_when_all_is_over(self):
        first = self.node(0, "sh", "-c", "exit 4")
        self.assertIn(b"exited with status 4", first.stderr.readline())
        second = Result(self.node(1, "sh", "-c", "echo ran"))
        self.expect(second, 4)
        self.assertEqual(second.out, b"")
        self.assertIn(b"exited with status 4", second.err)
        self.expect(Result(first), 4)

    def test_second_interrupt_does_not_wait_for_the_others(self):
        code = f"trap '' INT; echo $$ > {self.path('pid')}$DDP_RANK; while :; do sleep 1; done"
        first = self.node(0, "--grace", 50, "sh", "-c", code)
        second = self.node(1, "--grace", 50, "sh", "-c", code)
        self.pids(4)
        first.send_signal(signal.SIGINT)
        time.sleep(0.5)
        first.send_signal(signal.SIGINT)
        begin = time.monotonic()
        self.expect(Result(first), 130)
        self.assertLess(time.monotonic() - begin, 5)
        second.send_signal(signal.SIGINT)
        second.send_signal(signal.SIGINT)
        time.sleep(0.5)
        second.send_signal(signal.SIGINT)
        self.expect(Result(second), 130)

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

    def test_node_that_dies(self):
        code = f"echo $$ > {self.path('pid')}$DDP_RANK; exec sleep 300"
        first = self.node(0, "sh", "-c", code)
        second = self.node(1, "sh", "-c", code)
        pids = self.pids(4)
        second.kill()
        result = Result(first)
        self.expect(result, 1)
        self.assertIn(b"node 1 does not answer any more", result.err)
        self.expect_gone(pids)

    def test_node_0_that_dies(self):
        code = f"echo $$ > {self.path('pid')}$DDP_RANK; exec sleep 300"
        first = self.node(0, "sh", "-c", code)
        second = self.node(1, "sh", "-c", code)
        pids = self.pids(4)
        first.kill()
        result = Result(second)
        self.expect(result, 1)
        self.assertIn(b"the store of node 0 does not answer", result.err)
        self.expect_gone(pids)


if __name__ == "__main__":
    unittest.main()
