"""What ddprun prints: tags, streams, logs."""
import os
import pty
import re
import signal
import subprocess
import time
import unittest

from ddprun_support import BOUND, PYTHON, Case, Result, run, start


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

    def test_logs_are_for_their_user_only(self):
        """Not even a file that was there before stays readable for others, and a link leads nowhere."""
        logs = self.path("logs")
        os.mkdir(logs)
        self.write("logs/rank-0.log", "old")
        os.chmod(self.path("logs/rank-0.log"), 0o666)
        self.expect(run("-n", 1, "--log-dir", logs, "echo", "new"), 0)
        self.assertEqual(self.read("logs/rank-0.log"), b"new\n")
        self.assertEqual(os.stat(self.path("logs/rank-0.log")).st_mode & 0o777, 0o600)
        for make in (os.symlink, os.link):
            self.write("victim", "precious")
            os.remove(self.path("logs/rank-0.log"))
            make(self.path("victim"), self.path("logs/rank-0.log"))
            result = run("-n", 1, "--log-dir", logs, "echo", "x")
            self.expect(result, 1)
            self.assertIn(b"logs/rank-0.log", result.err)
            self.assertEqual(self.read("victim"), b"precious")
        os.remove(self.path("logs/rank-0.log"))
        os.mkfifo(self.path("logs/rank-0.log"))
        self.expect(run("-n", 1, "--log-dir", logs, "echo", "x"), 1)

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


if __name__ == "__main__":
    unittest.main()
