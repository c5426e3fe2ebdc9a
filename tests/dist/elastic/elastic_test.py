#!/usr/bin/env python3
"""Jobs of worker.c that lose ranks and get new ones, in real processes: the bits at the end are those of one process.

    DDP_ELASTIC_WORKER=... DDP_ELASTIC_STORE=... python3 elastic_test.py [unittest's options]
"""
import functools
import operator
import re
import signal
import time
import unittest

from jobs import BACKENDS, BOUND_S, SLACK, Job, output, read_until, reference
from store_proxy import Proxy  # tests/support


class Elastic(unittest.TestCase):
    def finish(self, ranks, steps, **settings):
        deadline = time.monotonic() + BOUND_S
        for rank in ranks:
            rank.said = said = "".join(rank.lines) + output(rank, deadline)
            self.assertIn(reference(steps=steps, **settings), said)
            self.assertEqual(rank.returncode, 0, said)

    def test_a_killed_rank(self):
        for backend in BACKENDS:
            with self.subTest(backend=backend), Job(backend=backend, steps=300, max=4, pause=3000) as job:
                ranks = [job.start() for _ in range(4)]
                for rank in ranks:
                    read_until(rank, "of 4")
                time.sleep(0.2)
                ranks[1].kill()
                read_until(ranks[0], "of 3")
                ranks[1] = job.start()
                line = read_until(ranks[1], "of 4")
                self.assertGreater(int(line.split()[3]), 0, line)
                self.finish(ranks, 300)

    def test_the_ranks_of_a_host_are_in_a_row(self):
        """Also if hosts come in turn, and after a rank has been lost and another one has come."""
        with Job(backend="hierarchical", steps=300, min=3, max=4, pause=3000) as job:
            def start(host):
                job.environment["DDP_HOST_ID"] = host
                return job.start()

            def places(world):
                return [int(re.search(r" rank (\d+) of ", read_until(rank, f"of {world}"))[1]) for rank in ranks]

            ranks = [start(host) for host in ("a", "b", "a", "b")]
            first = dict(zip(places(4), "abab"))
            self.assertIn([first[rank] for rank in range(4)], (list("aabb"), list("bbaa")))
            lost = next(i for i, host in enumerate("abab") if host == first[0])
            ranks[lost].kill()
            ranks.pop(lost)
            hosts = list("abab")
            hosts.append(hosts.pop(lost))
            places(3)
            ranks.append(start(first[0]))
            after = dict(zip(places(4), hosts))
            self.assertIn([after[rank] for rank in range(4)], (list("aabb"), list("bbaa")))
            self.finish(ranks, 300)

    def test_a_stopped_rank_is_left_behind_and_comes_again(self):
        with Job(backend="tcp", steps=1500, max=3, pause=3000, timeout=int(1500 * SLACK), settle=int(1000 * SLACK), rejoin=1) as job:
            ranks = [job.start() for _ in range(3)]
            for rank in ranks:
                read_until(rank, "of 3")
            ranks[2].send_signal(signal.SIGSTOP)
            read_until(ranks[0], "of 2")
            ranks[2].send_signal(signal.SIGCONT)
            read_until(ranks[2], "left behind: DDP_ERROR_RANK_FAILED")
            read_until(ranks[2], "of 3")
            self.finish(ranks, 1500)

    def test_a_rank_that_is_cut_off_from_the_store_comes_again(self):
        with Job(backend="tcp", steps=300, max=2, pause=3000, rejoin=int(20 * SLACK)) as job:
            ranks = [job.start()]
            read_until(ranks[0], "of 1")
            proxy = Proxy(int(job.settings["init"].rsplit(":", 1)[1]), "up", 3000, "rst")
            self.addCleanup(proxy.close)
            ranks.append(job.start(init=f"tcp://127.0.0.1:{proxy.port}"))
            self.finish(ranks, 300)
            self.assertIsNotNone(proxy.acted)

    def test_a_rank_alone_does_not_go_on_without_the_store(self):
        with Job(steps=1_000_000, max=1, pause=3000, rejoin=1) as job:
            proxy = Proxy(int(job.settings["init"].rsplit(":", 1)[1]), "up", 1 << 40, "rst")
            rank = job.start(init=f"tcp://127.0.0.1:{proxy.port}")
            read_until(rank, "applied 5 ")
            proxy.close()
            self.assertIn("create it again when the store can be reached", read_until(rank, "left behind"))

    def test_only_a_program_that_calls_something_before_the_commit_copies_the_state(self):
        plain = ({}, {"unused": 1, "rebuild": 3}, {"hook": "fp16"}, {"hook": "powersgd", "hook_options": "rank=2,start=3"})
        for backend in BACKENDS:
            for settings in (*plain, {"calls": "norm"}, {"calls": "loss"}, {"contexts": 2}):
                with self.subTest(backend=backend, **settings), Job(backend=backend, steps=20, min=2, max=2, **settings) as job:
                    job.environment["DDP_LOG_LEVEL"] = "info"
                    ranks = [job.start(), job.start()]
                    deadline = time.monotonic() + BOUND_S
                    for rank in ranks:
                        said = output(rank, deadline)
                        self.assertEqual(rank.returncode, 0, said)
                        self.assertEqual("begins with a copy of the job's state" in said, settings not in plain, said)

    def test_a_step_that_was_applied_and_not_committed_is_undone(self):
        # With two contexts a rank comes to each place twice in a step.
        cases = (({"calls": "loss"}, "loss", 10), ({"calls": "loss"}, "optimizer", 10), ({"calls": "norm,loss"}, "optimizer", 10),
                 ({"contexts": 2}, "optimizer", 9), ({"contexts": 2}, "step", 20))
        for settings, place, at in cases:
            with self.subTest(place=place, **settings), Job(backend="tcp", steps=30, min=2, max=3, pause=600, **settings) as job:
                ranks = [job.start(), job.start(), job.start(die=place, die_at=at)]
                self.finish(ranks[:2], 30)

    def test_a_rank_joins_between_windows_of_accumulation(self):
        for backend in BACKENDS:
            with self.subTest(backend=backend), Job(backend=backend, steps=240, max=3, pause=3000, accumulate=6) as job:
                ranks = [job.start(), job.start()]
                for rank in ranks:
                    read_until(rank, "of 2")
                read_until(ranks[0], "applied 8 ")
                ranks.append(job.start())
                step = int(read_until(ranks[2], "of 3").split()[3])
                self.assertEqual(step % 6, 0)
                self.finish(ranks, 240, accumulate=6)

    def test_a_rank_leaves_between_windows_of_accumulation(self):
        with Job(backend="tcp", steps=240, max=3, pause=2000, accumulate=6) as job:
            ranks = [job.start(), job.start(), job.start(leave_at=20)]
            step = int(read_until(ranks[2], "left").split()[1])
            self.assertEqual(step % 6, 0)
            ranks[2].wait(BOUND_S)
            self.assertIn(f"step {step} ", read_until(ranks[0], "of 2"))
            self.finish(ranks[:2], 240, accumulate=6)

    def test_a_loss_within_a_window_of_accumulation_begins_the_window_anew(self):
        cases = ({}, {"unused": 1}, {"contexts": 2}, {"calls": "loss"})
        for settings in cases:
            for place, at in (("step", 15), ("finalize", 17), ("commit", 16), ("optimizer", 3), ("committed", 14)):
                with self.subTest(place=place, **settings), \
                        Job(backend="tcp", steps=60, min=2, max=3, pause=600, accumulate=6, **settings) as job:
                    ranks = [job.start(), job.start(), job.start(die=place, die_at=at)]
                    read_until(ranks[0], "of 3")
                    step = int(read_until(ranks[0], "of 2").split()[3])
                    self.assertEqual(step % 6, 0)
                    self.finish(ranks[:2], 60, accumulate=6, unused=settings.get("unused", 0))
                    said = "".join("".join(rank.lines) for rank in ranks[:2])
                    self.assertNotIn("have other bits", said)

    def test_a_rank_that_was_left_behind_within_a_window_brings_nothing_of_it(self):
        with Job(backend="tcp", steps=600, min=2, max=3, pause=3000, timeout=int(1500 * SLACK), settle=int(1000 * SLACK), rejoin=1,
                 accumulate=6) as job:
            ranks = [job.start(), job.start(), job.start(stop="step", stop_at=16)]
            read_until(ranks[0], "of 3")
            read_until(ranks[0], "of 2")
            ranks[2].send_signal(signal.SIGCONT)
            read_until(ranks[2], "left behind")
            read_until(ranks[2], "of 3")
            self.finish(ranks, 600, accumulate=6)

    def test_votes_outlive_a_rank_that_is_killed_in_their_step(self):
        for backend in BACKENDS:
            for place in ("step", "finalize", "commit", "committed"):
                with self.subTest(backend=backend, place=place), Job(backend=backend, steps=60, min=3, max=4, pause=600, vote_at=20) as job:
                    ranks = [job.start(vote=bit) for bit in range(3)]
                    ranks.append(job.start(vote=3, die=place, die_at=21))
                    self.finish(ranks[:3], 60)
                    votes = [{int(step): int(bits, 16) for bits, step in re.findall(r"(?m)^votes (\w+) in (\d+)$", rank.said)}
                             for rank in ranks[:3]]
                    # A survivor that did not commit the step hears of it later. Then all others hear it again.
                    seen = functools.reduce(operator.or_, (bits for of in votes for bits in of.values()))
                    together = [step for step in votes[0] if len({of.get(step) for of in votes}) == 1]
                    self.assertEqual(functools.reduce(operator.or_, (votes[0][step] for step in together), 0), seen, votes)
                    self.assertEqual(seen & 7, 7, votes)
                    self.assertGreaterEqual(min(votes[0]), 20)

    def test_a_rank_that_leaves(self):
        with Job(backend="shm", steps=300, max=3, pause=2000) as job:
            ranks = [job.start(), job.start(), job.start(leave_at=20)]
            step = int(read_until(ranks[2], "left").split()[1])
            self.assertGreaterEqual(step, 22)
            ranks[2].wait(BOUND_S)
            # None was begun in vain.
            self.assertIn(f"step {step} ", read_until(ranks[0], "of 2"))
            self.finish(ranks[:2], 300)


if __name__ == "__main__":
    unittest.main(verbosity=2)
