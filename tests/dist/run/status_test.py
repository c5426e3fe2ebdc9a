"""ddprun --status: the table of a job that runs, or that has kept its records."""
import fcntl
import os
import pathlib
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
import unittest

from ddprun_support import BOUND, DDPRUN, PACE, PYTHON, SLACK, Case, Result, run, start, until

NO_PID = "999999999"  # more than the kernel gives


class StatusTest(Case):
    def start_job(self, ranks, steps, *fault, options=(), env=None):
        return self.start("-n", ranks, *options, PACE, steps, self.path("done"), *fault, env={**os.environ, **(env or {})})

    def end_job(self, process):
        self.write("done", "")
        out, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0, (out, err))

    def rows(self, text, ranks):
        """The row of each rank in the table, by the heads of its columns; None if it is not there yet."""
        lines = text.splitlines()
        heads = [i for i, line in enumerate(lines) if line.split()[:2] == ["rank", "host"]]
        if not heads or len(lines) < heads[0] + 1 + ranks:
            return None
        names = re.split(r"  +", lines[heads[0]].strip())
        rows = [dict(zip(names, re.split(r"  +", line.strip()))) for line in lines[heads[0] + 1:heads[0] + 1 + ranks]]
        return rows if all(len(row) == len(names) for row in rows) else None

    def await_table(self, job, ranks, condition, bound=30):
        """The lines of `ddprun --status JOB`, once the rows of its table are as wanted, and these rows."""
        last = []

        def look():
            result = run("--status", job)
            rows = self.rows(result.out.decode(), ranks)
            last[:] = [result]
            return rows and condition(rows) and (result.out.decode().splitlines(), rows)

        found = until(look, bound * SLACK)
        self.assertTrue(found, str(last[0]))
        return found

    def test_once(self):
        job = self.start_job(3, 60)
        lines, rows = self.await_table(job.pid, 3, lambda rows: all(row["step"] == "59" and row["state"] == "program" for row in rows))
        self.assertEqual(lines[0], f"ddprun {job.pid}: 3 ranks, {PACE} 60 {self.path('done')}")
        self.assertRegex(lines[1], r"^group '.*', 3 ranks$")
        for rank, row in enumerate(rows):
            self.assertEqual(row["rank"], str(rank))
            self.assertEqual(row["host"], os.uname().nodename)
            self.assertEqual(row["left"], "-")
            # They are of slightly different times only if the step is: samples are 32 a step.
            self.assertAlmostEqual(float(row["samples/s"]) / float(row["steps/s"]), 32, delta=3)
            for part in ("late/step", "hook", "waits"):
                self.assertRegex(row[part], r"^[\d.]+ (us|ms|s)$")
            self.assertGreater(float(row["MB/s"]), 0)
            self.assertRegex(row["last event"], r"^[\d.]+ (us|ms|s) ago$")
        self.assertEqual(len({row["pid"] for row in rows}), 3)
        self.end_job(job)

    def test_time_that_is_left(self):
        job = self.start_job(2, 100_000)
        _, rows = self.await_table(job.pid, 2, lambda rows: all(row["left"] != "-" for row in rows))
        self.assertRegex(rows[0]["left"], r"^(\d+ s|\d+:\d\d:\d\d|\d+ d \d+ h)$")
        job.send_signal(signal.SIGTERM)
        job.communicate(timeout=60)

    def test_stopped_and_slow_ranks(self):
        job = self.start_job(3, 60, "stop")
        lines, rows = self.await_table(job.pid, 3, lambda rows: rows[1]["state"].startswith("stopped"))
        self.assertEqual(rows[1]["state"], "stopped, backward 1/2")

        def sentence():
            lines = run("--status", job.pid).out.decode().splitlines()
            return [line for line in lines if line.startswith("rank 1 (pid") and "is stopped" in line]

        said = until(sentence, 30 * SLACK)
        self.assertTrue(said)
        self.assertIn("ranks 0 and 2 have waited", said[0])
        os.kill(int(rows[1]["pid"]), signal.SIGCONT)
        self.await_table(job.pid, 3, lambda rows: all(row["step"] == "59" for row in rows))
        self.end_job(job)

    def test_slow_rank(self):
        job = self.start_job(3, 60, "late")
        _, rows = self.await_table(job.pid, 3, lambda rows: all(row["step"] == "59" for row in rows))
        self.assertGreater(self.milliseconds(rows[1]["late/step"]), 10)
        self.assertGreater(self.milliseconds(rows[0]["waits"]), 10)
        self.assertLess(self.milliseconds(rows[1]["waits"]), self.milliseconds(rows[0]["waits"]))  # both are late on a busy machine
        self.end_job(job)

    @staticmethod
    def milliseconds(text):
        value, unit = text.split()
        return float(value) * {"us": 1e-3, "ms": 1, "s": 1e3}[unit]

    def test_group_of_one(self):
        job = self.start_job(1, 20)
        _, rows = self.await_table(job.pid, 1, lambda rows: rows[0]["step"] == "19")
        self.assertNotEqual(rows[0]["steps/s"], "-")
        self.assertEqual(rows[0]["late/step"], "-")
        self.end_job(job)

    def test_before_there_is_a_group(self):
        job = self.start("-n", 2, "sleep", 60)
        self.assertTrue(until(lambda: b"no rank has made a group yet" in run("--status", job.pid).out, 30 * SLACK))
        job.send_signal(signal.SIGTERM)
        job.communicate(timeout=60)

    def test_kept_records(self):
        """Records of a job that runs, and of one that has ended."""
        kept = self.path("records")
        job = self.start_job(2, 20, options=["--record", kept])
        lines, _ = self.await_table(job.pid, 2, lambda rows: rows[0]["step"] == "19")
        again, _ = self.await_table(kept, 2, lambda rows: True)
        self.assertEqual(again[0], lines[0])
        self.end_job(job)
        lines, rows = self.await_table(kept, 2, lambda rows: True)
        self.assertTrue(lines[0].endswith("(has ended)"), lines[0])
        self.assertEqual(rows[1]["state"], "left")
        os.rename(kept, self.path("moved"))
        self.await_table(self.path("moved"), 2, lambda rows: rows[0]["step"] == "19")
        self.expect(run("--status", job.pid), 1)

    def test_a_record_that_cannot_be_read_is_named(self):
        """By the table, at SIGQUIT, and where nothing else explains a failure."""
        kept = self.path("records")
        os.mkdir(kept)
        self.write("records/x.record", "nothing")
        complaint = f"{kept}/x.record is not a record of libddp: it is too short"
        job = self.start_job(1, 5, options=["--record", kept])
        lines, _ = self.await_table(job.pid, 1, lambda rows: True)
        self.assertEqual(lines[1], complaint)
        job.send_signal(signal.SIGQUIT)
        self.assertIn(complaint.encode(), job.stderr.readline())
        self.end_job(job)
        failed = run("-n", 1, "--record", kept, "sh", "-c", "kill -9 $$")
        self.expect(failed, 137)
        self.assertIn(b"(SIGKILL): " + complaint.encode(), failed.err)

    def test_the_file_of_a_job_is_for_its_user_only(self):
        """A link in its place leads nowhere."""
        kept = self.path("records")
        os.mkdir(kept)
        self.write("victim", "precious")
        for name in ("job", "job.new"):
            os.symlink(self.path("victim"), self.path(f"records/{name}"))
        self.expect(run("-n", 1, "--record", kept, "true", umask=0o022), 0)
        self.assertEqual(self.read("victim"), b"precious")
        self.assertEqual(os.lstat(self.path("records/job")).st_mode & 0o7777, 0o600)

    def test_several_jobs(self):
        jobs = [self.start_job(1, 5) for _ in range(2)]
        for job in jobs:
            self.await_table(job.pid, 1, lambda rows: rows[0]["step"] == "4")
        result = run("--status")
        self.expect(result, 1)
        self.assertIn(b"several jobs run", result.err)
        for job in jobs:
            self.assertIn(f"  ddprun {job.pid}: 1 rank, {PACE} 5 ".encode(), result.err)
        self.write("done", "")
        for job in jobs:
            job.communicate(timeout=60)

    def offered(self, **variables):
        """The jobs that bash offers for --status."""
        script = 'source "$1"; COMP_WORDS=("$2" --status ""); COMP_CWORD=2; _ddprun; printf "%s\\n" "${COMPREPLY[@]}"'
        source = pathlib.Path(__file__).resolve().parents[3] / "tools/run/completion.bash"
        return subprocess.run(["bash", "-c", script, "bash", source, DDPRUN], check=True, timeout=30, text=True,
                              env={**os.environ, **variables}, stdout=subprocess.PIPE).stdout.splitlines()

    def test_completion(self):
        job = self.start_job(1, 5)
        self.await_table(job.pid, 1, lambda rows: rows[0]["step"] == "4")
        self.assertIn(str(job.pid), self.offered())
        self.end_job(job)

    def add_job_file(self, folder, pid):
        os.mkdir(self.path(folder))
        self.write(f"{folder}/job", f"pid {pid}\n")

    def test_completion_runs_no_words_of_a_job_file(self):
        self.add_job_file("ddprun-evil", "$(touch${IFS}%s)" % self.path("mark"))
        self.add_job_file("ddprun-good", NO_PID)
        self.assertIn(NO_PID, self.offered(TMPDIR=self.folder))
        self.assertFalse(os.path.exists(self.path("mark")))

    def test_completion_reads_only_folders_of_this_user(self):
        self.add_job_file("elsewhere", NO_PID)
        os.symlink("elsewhere", self.path("ddprun-link"))
        if os.geteuid() == 0:
            self.add_job_file("ddprun-foreign", NO_PID)
            os.chown(self.path("ddprun-foreign"), 65534, 65534)
        self.assertNotIn(NO_PID, self.offered(TMPDIR=self.folder))

    def test_errors(self):
        for words, *arguments in ((b"there is no process " + NO_PID.encode(), NO_PID), (b"is no ddprun", str(os.getpid())),
                                  (b"cannot read /nowhere: No such file", "/nowhere"),
                                  (b"holds no records", self.folder), (b"cannot read", __file__)):
            result = run("--status", *arguments)
            self.expect(result, 1)
            self.assertEqual(result.out, b"")
            self.assertIn(words, result.err)
        if os.geteuid() != 0:
            self.assertIn(b"process 1 belongs to another user", run("--status", "1").err)
        self.expect(run("--status", "1", "2"), 2)
        self.expect(run("--once", "true"), 2)

    def test_names_do_not_reach_the_terminal(self):
        job = self.start_job(1, 5, options=["--env", "GROUP=x\x1b]0;title\x07"])
        lines, _ = self.await_table(job.pid, 1, lambda rows: rows[0]["step"] == "4")
        self.assertIn("group 'x\\x1b]0;title\\x07'", lines[1])
        self.end_job(job)

    def on_terminal(self, rows, columns, *arguments):
        """Starts ddprun with a terminal of this size as its output. Returns it and the other end of the terminal."""
        main, other = pty.openpty()
        fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        process = start(*arguments, stdout=other)
        os.close(other)
        self.addCleanup(os.close, main)
        self.addCleanup(lambda: (process.poll() is None and process.kill(), process.communicate(timeout=BOUND)))
        return process, main

    def read_until(self, terminal, condition, bound=30):
        text = b""
        end = time.monotonic() + bound * SLACK
        while not condition(text) and time.monotonic() < end:
            if select.select([terminal], [], [], 0.1)[0]:
                try:
                    text += os.read(terminal, 65536)
                except OSError:  # nobody has the other end any more
                    time.sleep(0.01)
        self.assertTrue(condition(text), text)
        return text

    def test_on_a_terminal(self):
        job = self.start_job(2, 100_000)
        self.await_table(job.pid, 2, lambda rows: rows[0]["step"] != "-")
        process, terminal = self.on_terminal(24, 60, "--status", job.pid)
        text = self.read_until(terminal, lambda text: text.count(b"group '") >= 3)
        # Each table takes the place of the one before, and no line is longer than the terminal.
        self.assertIn(b"\x1b[5A", text)  # the job, the group, the heads, two ranks
        for line in text.replace(b"\x1b[K", b"").replace(b"\x1b[J", b"").splitlines():
            self.assertLess(len(re.sub(rb"\x1b\[\d+A", b"", line)), 60, line)
        # It ends with the job.
        job.send_signal(signal.SIGTERM)
        job.communicate(timeout=60)
        self.read_until(terminal, lambda _: process.poll() is not None)
        result = Result(process)
        self.expect(result, 0)
        self.assertEqual(result.err, b"")

    def test_small_terminal_and_once(self):
        job = self.start_job(3, 100_000)
        self.await_table(job.pid, 3, lambda rows: rows[0]["step"] != "-")
        process, terminal = self.on_terminal(4, 200, "--status", job.pid)
        self.read_until(terminal, lambda text: b"\x1b[3A" in text)
        process.send_signal(signal.SIGINT)
        self.read_until(terminal, lambda _: process.poll() is not None)
        self.assertEqual(process.returncode, -signal.SIGINT)
        process, terminal = self.on_terminal(4, 200, "--status", job.pid, "--once")
        text = self.read_until(terminal, lambda _: process.poll() is not None)
        self.assertEqual(process.returncode, 0)
        self.assertNotIn(b"\x1b", text)
        job.send_signal(signal.SIGTERM)
        job.communicate(timeout=60)

    def test_restart(self):
        code = "import os, sys; os.environ['DDP_RESTART'] == '1' and os.execv(sys.argv[1], sys.argv[1:]); sys.exit(4)"
        job = self.start("-n", 2, "--max-restarts", 1, PYTHON, "-c", code, PACE, 5, self.path("done"))
        lines, _ = self.await_table(job.pid, 2, lambda rows: rows[1]["step"] == "4")
        self.assertIn("2 ranks, restart 1, ", lines[0])
        self.end_job(job)


if __name__ == "__main__":
    unittest.main(verbosity=2)
