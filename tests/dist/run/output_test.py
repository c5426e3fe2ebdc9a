"""Output of ddprun: tags, streams, logs."""
import os
import pty
import re
import signal
import subprocess
import time
import unittest

from ddprun_support import BOUND, PYTHON, RANK, Case, Result, lost, run, start, until


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

    def expect_lost_output(self, err, reason):
        self.assertEqual(err.count(b"cannot write standard output any more"), 1, err)
        self.assertIn(b"ddprun: cannot write standard output any more: " + reason + b". The ranks go on.", err)

    def test_ranks_go_on_when_the_reader_leaves(self):
        """The ranks' output is not lost with their log, but ddprun does not say that all is well."""
        for option in ([], ["--no-tag"]):
            code = f"seq 200000; echo $? > {self.path('done')}$DDP_RANK; seq 200000"
            process = self.start("-n", 2, *option, "sh", "-c", code)
            process.stdout.readline()
            process.stdout.close()
            self.assertEqual(process.wait(BOUND), 1)
            self.expect_lost_output(process.stderr.read(), b"Broken pipe")
            for rank in range(2):
                self.assertEqual(self.read(f"done{rank}"), b"0\n")
                os.remove(self.path(f"done{rank}"))

    def test_a_failure_is_told_although_the_reader_has_left(self):
        process = self.start("-n", 2, "sh", "-c", "seq 200000; exit $((7 * DDP_RANK))")
        process.stdout.readline()
        process.stdout.close()
        self.assertEqual(process.wait(BOUND), 7)
        err = process.stderr.read()
        self.expect_lost_output(err, b"Broken pipe")
        self.assertEqual(lost(err), [(1, 7)], err)

    def test_an_endless_job_whose_reader_has_left_ends_by_a_signal(self):
        process = self.start("-n", 2, "yes")
        process.stdout.readline()
        process.stdout.close()
        until(lambda: process.stderr.readline().startswith(b"ddprun: cannot write standard output"))
        process.terminate()
        self.assertEqual(process.wait(BOUND), 128 + signal.SIGTERM)

    def test_a_full_disk_under_standard_output(self):
        code = f"echo out; echo $? > {self.path('done')}$DDP_RANK; echo err >&2; seq 100000"
        for option in ([], ["--no-tag"], ["--log-dir", self.path("logs")]):
            with open("/dev/full", "wb") as full:
                result = run("-n", 2, *option, "sh", "-c", code, stdout=full)
            self.expect(result, 1)
            self.expect_lost_output(result.err, b"No space left on device")
            self.assertEqual(result.err.count(b"err\n"), 2)
            for rank in range(2):
                self.assertEqual(self.read(f"done{rank}"), b"0\n")
        self.assertEqual(self.read("logs/rank-0.log").count(b"\n"), 100002)

    def test_a_full_disk_under_standard_error(self):
        with open("/dev/full", "wb") as full:
            result = run("-n", 2, "sh", "-c", "echo err >&2; echo out", stderr=full)
            self.expect(result, 1)
            self.assertEqual(result.out.count(b"out\n"), 2)
            self.expect(run("-n", 2, "echo", "out", stderr=full), 0)  # nothing was to be written there

    def test_a_full_disk_under_what_ddprun_prints_itself(self):
        for words in (["--help"], ["--version"], ["--dry-run", "-n", 2, "true"]):
            for place, reason in (("/dev/full", b"No space left on device"), (None, b"Broken pipe")):
                result = Result(self.closed(*words) if place is None else self.start_on(place, *words))
                self.expect(result, 1)
                self.assertEqual(result.err, b"ddprun: cannot write standard output: " + reason + b"\n")

    def start_on(self, place, *words):
        with open(place, "wb") as output:
            return start(*words, stdout=output)

    def closed(self, *words):
        """ddprun whose standard output nobody reads."""
        reader, writer = os.pipe()
        os.close(reader)
        try:
            return start(*words, stdout=writer)
        finally:
            os.close(writer)

    def test_files_on_a_full_disk(self):
        """A file system of one page, in a mount namespace of its own, for the trace, the report and the logs."""
        disk = self.path("disk")
        os.mkdir(disk)
        unshare = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c",
                   'mount -t tmpfs -o size=16k none "$0" && exec "$@"', disk]
        if subprocess.run([*unshare, "true"], stderr=subprocess.DEVNULL).returncode != 0:
            self.skipTest("this machine lets the test mount nothing")
        for options, says in (
                (["--trace", f"{disk}/trace.json"], f"ddprun: --trace: cannot write {disk}/trace.json: No space left on device\n"),
                (["--log-dir", disk], f"ddprun: cannot write {disk}/rank-0.log any more (No space left on device); its rank's output"),
                (["--record", disk], f"--status may not find this job: cannot write {disk}/")):
            with self.subTest(options[0]):
                fill = f"head -c 1M /dev/zero > {disk}/fill 2>/dev/null; " if options[0] == "--trace" else ""
                job = f"seq 20000; {fill}exec {RANK} meet /"
                before = f"head -c 1M /dev/zero > {disk}/fill 2>/dev/null; " if options[0] == "--record" else ""
                command = [*unshare, "sh", "-c", f'{before}exec "$@"', "sh", os.environ["DDPRUN"], "-n", "2", *options, "sh", "-c", job]
                done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=BOUND)
                self.assertIn(says, done.stderr.decode())
                self.assertEqual(done.stdout.count(b"\n"), 2 * (20000 + 1))  # the rank says that it has met the others
                self.assertEqual(done.returncode, 0 if options[0] == "--record" else 1, done.stderr)

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
    unittest.main(verbosity=2)
