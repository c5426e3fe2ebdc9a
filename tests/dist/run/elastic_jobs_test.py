"""ddprun --min-ranks: jobs that go on without ranks, start single ones again, and have spares and ranks of other ddpruns."""
import os
import re
import signal
import subprocess
import unittest

from ddprun_support import BOUND, PACE, SLACK, Case, Result, free_port, lost, run, until

from etcd_servers import Servers, what_is_missing  # tests/support, to which ddprun_support leads
from metrics_test import Scrape

WORKER = os.environ["DDP_ELASTIC_WORKER"]  # tests/dist/elastic/worker.c
STEPS = 600
ROSTER = re.compile(rb"roster (\d+) step (\d+) rank (\d+) of (\d+)")


def reference(steps=STEPS):
    return subprocess.run([WORKER, "reference", f"steps={steps}"], stdout=subprocess.PIPE, check=True).stdout.strip()


class ElasticTest(Case):
    def train(self, *args, steps=STEPS, pause=4000, name="", then="", **options):
        """A ddprun whose ranks are workers. Each writes its pid to a file `name`pidRANK.RESTART. then: what a rank does after its worker."""
        settle, timeout = int(3000 * SLACK), int(10000 * SLACK)
        worker = f"exec {WORKER} init=env:// backend=tcp min=0 steps={steps} pause={pause} settle={settle} timeout={timeout}"
        command = f"echo $$ > {self.path(name + 'pid')}$DDP_RANK.$DDP_RESTART; {worker}"
        if then:
            command = f"sh -c '{command}'; {then}"
        out, err = open(self.path(name + "out"), "wb"), open(self.path(name + "err"), "wb")
        self.addCleanup(out.close)
        self.addCleanup(err.close)
        return self.start(*args, "sh", "-c", command, stdout=out, stderr=err, **options)

    def pid(self, rank, restart=0, name=""):
        file = f"{name}pid{rank}.{restart}"
        self.assertTrue(until(lambda: self.read(file).endswith(b"\n"), BOUND), f"no {file}: {self.said()}")
        return int(self.read(file))

    def said(self, name=""):
        return f"{self.read(name + 'out').decode()[-3000:]}\n{self.read(name + 'err').decode()[-3000:]}"

    def wait_for(self, words, name="", stream="out", count=1):
        found = until(lambda: len(re.findall(words, self.read(name + stream))) >= count, BOUND)
        self.assertTrue(found, f"no {words}: {self.said(name)}")

    def finish(self, process, status=0, name="", done=None):
        """done: how many ranks end with the values of an undisturbed run."""
        try:
            process.wait(BOUND * SLACK)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"ddprun did not end: {self.said(name)}")
        self.assertEqual(process.returncode, status, self.said(name))
        if done is not None:
            lines = re.findall(rb"\[(?:\S+ )?\d+\] (done .*)", self.read(name + "out"))
            self.assertEqual(lines, [reference()] * done, self.said(name))

    def told(self, name=""):
        return [line for line in self.read(name + "err").decode().splitlines() if line.startswith("ddprun on")]

    def left(self):
        """How many ranks ddprun says there are, after each that it lost."""
        return [int(count) for line in self.told() for count in re.findall(r"; (?:the others go on with )?(\d+) ranks?\b", line)]

    def test_a_killed_rank_is_started_again(self):
        process = self.train("-n", 3, "--min-ranks", 2, "--max-restarts", 1, "--log-dir", self.path("logs"), "--metrics", "127.0.0.1:0")
        self.wait_for(rb"of 3", count=3)
        url = re.search(rb"metrics: (\S+)", self.read("err"))[1].decode()
        killed = self.pid(1)
        os.kill(killed, signal.SIGKILL)
        self.pid(1, restart=1)
        self.wait_for(rb"\[1\] roster \d+ step [1-9]\d* rank 2 of 3")
        shown = ""

        def one_group():  # a rank frees the one before when it has joined this one
            nonlocal shown
            shown = run("--status", process.pid, "--once").out.decode()
            return shown.count("group 'world") == 1
        self.assertTrue(until(one_group, BOUND), shown)
        self.assertIn("3 ranks\n", shown)
        self.assertNotIn("ended", shown)
        self.assertEqual(Scrape(url)("job_restarts_total"), 1)
        self.finish(process, done=3)
        [line] = self.told()
        self.assertRegex(line, rf": rank 1 \(pid {killed}\) was killed by signal 9 \(SIGKILL\): (as rank \d of group 'world', )?it was .*; it is started again \(1 of at most 1\)$")
        self.assertIn(b"roster 1 ", self.read("logs/rank-1.log"))
        self.assertIn(reference(), self.read("logs/rank-1.restart-1.log"))

    def test_the_others_go_on(self):
        process = self.train("-n", 4, "--min-ranks", 2)
        self.wait_for(rb"of 4", count=4)
        first, second = self.pid(1), self.pid(3)
        os.kill(first, signal.SIGKILL)
        self.wait_for(rb"of 3", count=3)
        os.kill(second, signal.SIGKILL)
        self.finish(process, done=2)
        told = self.told()
        self.assertEqual(len(told), 2, self.said())
        self.assertRegex(told[0], rf": rank 1 \(pid {first}\) was killed by signal 9 \(SIGKILL\): (as rank \d of group 'world', )?it was .*; the others go on with 3 ranks$")
        self.assertEqual(lost(self.read("err")), [(1, -signal.SIGKILL), (3, -signal.SIGKILL)])
        self.assertEqual(self.left(), [3, 2], self.said())

    def test_fewer_than_min_ranks_end_the_job(self):
        process = self.train("-n", 3, "--min-ranks", 2, "--report-time", 1, "--grace", 1, steps=100000)
        self.wait_for(rb"of 3", count=3)
        pids = [self.pid(rank) for rank in range(3)]
        os.kill(pids[0], signal.SIGTERM)  # it leaves politely, and is missed all the same
        self.wait_for(rb"of 2", count=2)
        os.kill(pids[2], signal.SIGABRT)
        self.finish(process, status=134)
        [line] = self.told()
        self.assertRegex(line, r": rank 2 .*\(SIGABRT\).*; 1 rank is left, fewer than --min-ranks 2, so the job ends$")
        self.expect_gone(pids)

    def test_a_rank_that_has_left_is_not_counted_while_its_process_ends(self):
        process = self.train("-n", 4, "--min-ranks", 2, "--report-time", 1, "--grace", 1, steps=100000, then='code=$?; [ "$DDP_RANK" = 0 ] && sleep 300; exit $code')
        self.wait_for(rb"of 4", count=4)
        os.kill(self.pid(0), signal.SIGTERM)
        self.wait_for(rb"of 3", count=3)
        os.kill(self.pid(3), signal.SIGABRT)
        self.wait_for(rb"of 2", count=2)
        os.kill(self.pid(2), signal.SIGABRT)
        self.finish(process, status=134)
        self.assertEqual(lost(self.read("err")), [(3, 134), (2, 134)])
        self.assertEqual(self.left(), [2, 1], self.said())

    def test_a_polite_leave_does_not_end_the_job(self):
        process = self.train("-n", 3, "--min-ranks", 1, "--max-restarts", 1)
        self.wait_for(rb"of 3", count=3)
        os.kill(self.pid(0), signal.SIGTERM)
        self.wait_for(rb"\[0\] left \d+")
        step = re.search(rb"left (\d+)", self.read("out"))[1]
        self.wait_for(rb"\[1\] roster \d+ step %s rank \d of 2" % step)  # no step was begun in vain
        os.kill(self.pid(1), signal.SIGKILL)
        self.pid(1, restart=1)
        self.finish(process, done=2)
        self.assertEqual(lost(self.read("err")), [(1, -signal.SIGKILL)], self.said())

    def test_spares_take_the_place_of_lost_ranks(self):
        process = self.train("-n", 5, "--min-ranks", 2, "--max-ranks", 3, "--grace", 1)
        self.wait_for(rb"of 3", count=3)
        trains = {int(rank) for rank in re.findall(rb"\[(?:\S+ )?(\d)\] roster", self.read("out"))}
        self.wait_for(rb"applied 5 in", count=3)  # so that step 0 does not come again
        os.kill(self.pid(min(trains)), signal.SIGKILL)
        self.wait_for(rb"of 3", count=6)
        self.finish(process, done=3)
        worlds = {int(world) for _, _, _, world in ROSTER.findall(self.read("out"))}
        self.assertLessEqual(worlds, {2, 3}, self.said())
        self.assertIn(b"those that trained have finished", self.read("err"))
        # The spare did not begin the job anew.
        self.assertEqual(len(re.findall(rb" step 0 ", self.read("out"))), 3, self.said())

    def test_a_spare_does_not_begin_a_finished_job_anew_before_its_ranks_have_ended(self):
        # Training takes longer than settle_ms, and each rank a moment to exit when its job is over.
        process = self.train("-n", 3, "--min-ranks", 1, "--max-ranks", 2, "--grace", 1, pause=int(8000 * SLACK), then="sleep 0.3")
        self.finish(process, done=2)
        self.assertEqual(len(re.findall(rb" step 0 ", self.read("out"))), 2, self.said())

    def hosted(self, *args, **options):
        """A ddprun that others may join, and how."""
        secret = self.write("secret", "0123456789abcdef0123456789abcdef\n")
        endpoint = f"127.0.0.1:{free_port()}"
        host = self.train("--rdzv", endpoint, "--secret-file", secret, "--min-ranks", 1, *args, **options)
        return host, ("--store", f"tcp://{endpoint}", "--secret-file", secret, "--min-ranks", 1)

    def test_a_second_ddprun_joins_and_leaves(self):
        host, join = self.hosted("-n", 2)
        self.wait_for(rb"of 2", count=2)
        guest = self.train(*join, "-n", 2, "--grace", 30, name="guest-")
        self.wait_for(rb"of 4", count=2)
        guest.send_signal(signal.SIGTERM)
        self.finish(guest, status=143, name="guest-")
        steps = {int(step) for step in re.findall(rb"left (\d+)", self.read("guest-out"))}
        self.assertEqual(len(re.findall(rb"left", self.read("guest-out"))), 2, self.said("guest-"))
        self.finish(host, done=2)
        begun = {int(step) for _, step, _, world in ROSTER.findall(self.read("out")) if int(world) < 4}
        self.assertLessEqual(steps, begun, self.said())  # no step was begun in vain

    def test_a_second_ddprun_may_stay_longer_than_the_first(self):
        host, join = self.hosted("-n", 1)
        self.wait_for(rb"of 1")
        guest = self.train(*join, "-n", 1, name="guest-")
        self.wait_for(rb"of 2")
        os.kill(self.pid(0), signal.SIGTERM)
        self.wait_for(rb"others still train", stream="err")
        self.finish(guest, name="guest-", done=1)
        self.finish(host)

    def test_spares_of_a_second_ddprun(self):
        host, join = self.hosted("-n", 2, "--max-ranks", 2)
        self.wait_for(rb"of 2", count=2)
        guest = self.train(*join, "-n", 2, "--max-ranks", 2, name="guest-")
        os.kill(self.pid(0), signal.SIGKILL)
        self.wait_for(rb"of 2", name="guest-")
        self.finish(host, done=1)
        self.finish(guest, name="guest-", done=1)

    def test_the_end_of_the_first_ddprun_ends_the_second(self):
        host, join = self.hosted("-n", 1, steps=100000)
        self.wait_for(rb"of 1")
        guest = self.train(*join, "-n", 1, "--max-restarts", 3, name="guest-", steps=100000)
        self.wait_for(rb"of 2")
        host.kill()
        self.finish(guest, status=1, name="guest-")
        self.assertRegex(self.told("guest-")[0], "it is not started again, because the store does not answer: ")

    def test_jobs_on_etcd(self):
        if missing := what_is_missing():
            self.skipTest(missing)
        with Servers(1) as servers:
            join = ("--store", servers.uri("ddprun-elastic"), "--min-ranks", 1)
            first = self.train(*join, "-n", 2, name="first-", steps=2 * STEPS, pause=8000)
            self.wait_for(rb"of 2", name="first-", count=2)
            second = self.train(*join, "-n", 1, name="second-", steps=2 * STEPS, pause=8000)
            self.wait_for(rb"of 3", name="first-", count=2)
            second.kill()  # as a node that disappears
            self.wait_for(rb"of 2", name="first-", count=4)
            again = self.train(*join, "-n", 1, name="again-", steps=2 * STEPS, pause=8000)
            self.wait_for(rb"of 3", name="again-")
            for process, name, count in ((first, "first-", 2), (again, "again-", 1)):
                self.finish(process, name=name)
                self.assertEqual(self.read(name + "out").count(reference(2 * STEPS)), count, self.said(name))


class ElasticPlainTest(Case):
    """With programs that are no trainers."""

    def test_starts_are_counted(self):
        # Rank 0 finishes only then: nobody is started again afterwards.
        last = self.path("last")
        code = f"""if test $DDP_RANK = 0; then until test -e {last}; do sleep 0.1; done; exit 0; fi
                   test $DDP_RESTART = 3 && touch {last}; exit $((3 - DDP_RESTART))"""
        result = run("-n", 2, "--min-ranks", 2, "--max-restarts", 3, "sh", "-c", code)
        self.expect(result, 0)
        told = re.findall(rb"rank 1 \(pid \d+\) exited with status (\d).*; it is started again \((\d of at most 3)\)\n", result.err)
        self.assertEqual(told, [(b"3", b"1 of at most 3"), (b"2", b"2 of at most 3"), (b"1", b"3 of at most 3")], str(result))

    def test_records_in_memory_are_those_of_the_last_two_processes(self):
        code = f"""DDP_STORE=file://{self.path('store')}$DDP_RESTART {PACE} 1 {self.folder}
                   ls $DDP_RECORD/*.record > {self.path('list')}$DDP_RESTART; exit $((3 - DDP_RESTART))"""
        result = run("-n", 1, "--min-ranks", 1, "--max-restarts", 3, "sh", "-c", code)
        self.expect(result, 0)
        self.assertEqual([self.read(f"list{i}").count(b"\n") for i in range(4)], [1, 2, 2, 2], str(result))

    def test_gives_up(self):
        result = run("-n", 1, "--min-ranks", 1, "--max-restarts", 2, "sh", "-c", "exit $((10 + DDP_RESTART))")
        self.expect(result, 12)
        self.assertEqual(lost(result.err), [(0, 10), (0, 11), (0, 12)], str(result))

    def test_none_is_started_again_when_others_have_finished(self):
        code = "test $DDP_RANK = 0 && exit 0; sleep 0.5; test $DDP_RANK = 1 && exit 5; sleep 1; echo the end"
        result = run("-n", 3, "--min-ranks", 2, "--max-restarts", 3, "sh", "-c", code)
        self.expect(result, 0)
        self.assertRegex(result.err, rb"rank 1 .* exited with status 5; others have finished the job, so it is not started again\n$")
        self.assertIn(b"[2] the end\n", result.out)
        result = run("-n", 3, "--min-ranks", 3, "sh", "-c", code)
        self.expect(result, 5)
        self.assertIn(b"[2] the end\n", result.out)

    def test_what_a_rank_leaves_behind_ends_before_it_is_started_again(self):
        code = f"test $DDP_RESTART = 1 && exec cat {self.path('child')}; sleep 60 & echo $! > {self.path('child')}; exit 3"
        result = run("-n", 1, "--min-ranks", 1, "--max-restarts", 1, "sh", "-c", code)
        self.expect(result, 0)
        self.expect_gone([int(self.read("child"))])

    def test_a_program_that_cannot_run(self):
        script = self.write("script", "#!/no/such/interpreter\n", 0o755)
        result = run("-n", 3, "--min-ranks", 1, "--max-restarts", 3, script)
        self.expect(result, 127)
        self.assertEqual(result.err.count(b"\n"), 1, str(result))

    def test_a_program_that_cannot_run_again(self):
        begun = self.path("begun")  # rank 0 has, and so the script may go
        script = self.write("script", f"""#!/bin/sh
if test $DDP_RANK = 0; then touch {begun}; exec sleep 3; fi
until test -e {begun}; do sleep 0.1; done
rm {self.path('script')}
exit 3
""", 0o755)
        result = run("-n", 2, "--min-ranks", 1, "--max-restarts", 3, script)
        self.expect(result, 0)
        self.assertRegex(result.err, rb"(?s)it is started again.*cannot run '.*script': No such file or directory; the others go on with 1 rank\n$")

    def test_sigterm_ends_all(self):
        process = self.start("-n", 2, "--min-ranks", 1, "--max-restarts", 9, "sh", "-c", f"echo $$ > {self.path('pid')}$DDP_RANK; exec sleep 60")
        pids = self.pids(2)
        process.send_signal(signal.SIGTERM)
        result = Result(process)
        self.expect(result, 143)
        self.assertEqual(result.err, b"")
        self.expect_gone(pids)

    def test_variables(self):
        shown = run("--dry-run", "-n", 3, "--min-ranks", 2, "--max-ranks", 5, "true").out.decode()
        for words in ("DDP_ELASTIC_MIN_WORLD=2", "DDP_ELASTIC_MAX_WORLD=5", "DDP_ELASTIC_FIRST_WORLD=3"):
            self.assertEqual(shown.count(words), 3, shown)
        shown = run("--dry-run", "-n", 1, "--min-ranks", 1, "--store", "etcd://host/job", "true").out.decode()
        self.assertIn("DDP_STORE=etcd://host/job", shown)
        self.assertNotIn("DDP_ELASTIC_FIRST_WORLD", shown)
        shown = run("--dry-run", "-n", 1, "--min-ranks", 1, "--env", "DDP_ELASTIC_MIN_WORLD=7", "true").out.decode()
        self.assertIn("DDP_ELASTIC_MIN_WORLD=7", shown)

    def test_options_that_do_not_go_together(self):
        environment = {name: value for name, value in os.environ.items() if not name.startswith("DDP_SECRET")}
        for words, *args in (
                ("--max-ranks is for elastic jobs", "--max-ranks", 2),
                ("--store is for elastic jobs", "--store", "etcd://h/j"),
                ("--min-ranks 3 is more than the 2 ranks of -n", "-n", 2, "--min-ranks", 3),
                ("--max-ranks 1 is less than --min-ranks 2", "-n", 2, "--min-ranks", 2, "--max-ranks", 1),
                ("start a ddprun on each node", "--min-ranks", 1, "--nnodes", 2, "--rdzv", "h:1"),
                ("--store does not go with --rdzv", "--min-ranks", 1, "--store", "etcd://h/j", "--rdzv", "h:1"),
                ("--store: 'h:1' begins with none of", "--min-ranks", 1, "--store", "h:1"),
                ("--store tcp:// needs a job secret", "--min-ranks", 1, "--store", "tcp://127.0.0.1:1"),
                ("--rdzv with --min-ranks needs a job secret", "--min-ranks", 1, "--rdzv", "127.0.0.1:1"),
                ("--min-ranks: Value 0", "--min-ranks", 0)):
            with self.subTest(words):
                result = run(*args, "true", env=environment)
                self.expect(result, 2)
                self.assertIn(words.encode(), result.err)
                self.assertEqual(result.out, b"")


if __name__ == "__main__":
    unittest.main(verbosity=2)
