#!/usr/bin/env python3
"""Jobs of shard_worker.c that lose ranks at named places and get new ones, in real processes. Each rank compares its values and state with
those of one process after each recall and each step, bit for bit.

    DDP_ELASTIC_WORKER=... DDP_ELASTIC_STORE=... python3 shards_test.py [unittest's options]
"""
import signal
import tempfile
import time
import unittest

from jobs import BACKENDS, BOUND_S, SLACK, Job, output, read_until

PLACES = (("step", {}), ("finalize", {}), ("optimizer", {}), ("publish", {}), ("commit", {}), ("keep", {}), ("kept", {}),
          ("optimizer", {"update": 1}), ("keep", {"update": 1}), ("step", {"accumulate": 2}), ("commit", {"accumulate": 2}),
          ("finalize", {"every": 4}), ("kept", {"every": 4}))


class Shards(unittest.TestCase):
    def job(self, **settings):
        return Job(**{"backend": "tcp", "steps": 60, "max": 4, "pause": 1000, "settle": int(10_000 * SLACK), **settings})

    def finish(self, ranks, steps=60, words=()):
        """All are done, with the right values. What they have said."""
        deadline = time.monotonic() + BOUND_S
        said = []
        for rank in ranks:
            text = "".join(rank.lines) + output(rank, deadline)
            self.assertEqual(rank.returncode, 0, text)
            self.assertIn(f"done {steps}\n", text)
            self.assertEqual("lost:" in text, "lost" in words, text)
            said.append(text)
        return said

    def begun(self, job, *settings):
        job.environment["DDP_ELASTIC_FIRST_WORLD"] = str(len(settings))
        ranks = [job.start(**one) for one in settings]
        for rank in ranks:
            read_until(rank, f"of {len(ranks)}")
        return ranks

    def test_a_rank_dies_at_a_place(self):
        for place, settings in PLACES:
            with self.subTest(place=place, **settings), self.job(min=2, steps=30, **settings) as job:
                ranks = self.begun(job, {}, {}, {"die": place, "die_at": 5}, {})
                ranks[2].wait(BOUND_S)
                for said in self.finish([ranks[0], ranks[1], ranks[3]], 30):
                    self.assertIn("of 3\n", said)

    def test_a_rank_dies_where_an_optimizer_in_the_step_updates(self):
        """Whole buckets over tcp, and blocks of 64 KiB in shared memory, of which some have new values and others have not."""
        for backend, after in (("tcp", 0), ("tcp", 500), ("shm", 0), ("shm", 200), ("shm", 500), ("shm", 1000), ("shm", 2000)):
            with self.subTest(backend=backend, after=after), self.job(backend=backend, min=2, steps=30, update=2, size=100_000) as job:
                ranks = self.begun(job, {}, {}, {"die": "step", "die_at": 5, "die_after": after})
                ranks[2].wait(BOUND_S)
                for said in self.finish(ranks[:2], 30):
                    self.assertIn("of 2\n", said)

    def test_a_rank_dies_while_shards_are_recalled(self):
        for place, after in (("meet", 0), ("recall", 0), ("recall", 3000), ("recall", 10_000), ("recalled", 0)):
            with self.subTest(place=place, after=after), self.job(min=2, max=5, steps=150) as job:
                ranks = self.begun(job, {}, {}, {})
                job.start(die=place, die_at=1, die_after=after).wait(BOUND_S)
                ranks.append(job.start())
                read_until(ranks[3], "recalled")
                for said in self.finish(ranks, 150):
                    self.assertIn("of 4\n", said)

    def test_ranks_come_and_go(self):
        for backend, every in zip(BACKENDS, (1, 5, 1, 5)):
            with self.subTest(backend=backend, every=every), self.job(backend=backend, every=every, steps=500, pause=4000) as job:
                ranks = self.begun(job, {}, {}, {"leave_at": 40})
                text = "".join(ranks[2].lines) + output(ranks[2], time.monotonic() + BOUND_S)
                left = int(text.rsplit("left ", 1)[1])
                self.assertEqual(left % every, 0)
                self.assertIn(f"step {left} ", read_until(ranks[0], "of 2"))  # nothing is done again
                ranks[2] = job.start()
                step = int(read_until(ranks[2], "of 3").split()[3])
                self.assertGreaterEqual(step, left)
                self.finish(ranks, 500)

    def test_all_but_one_rank_die_one_after_another(self):
        with self.job(steps=1000, pause=4000) as job:
            ranks = self.begun(job, {}, {}, {}, {})
            read_until(ranks[2], "applied")
            for number in (3, 1, 0):
                ranks[number].kill()
                read_until(ranks[2], f"of {number if number > 1 else number + 1}")
                read_until(ranks[2], "recalled")
            self.finish([ranks[2]], 1000)

    def test_neighbours_that_die_together_take_the_job_to_its_checkpoint(self):
        with tempfile.TemporaryDirectory() as folder, self.job(steps=60, save=folder + "/save", save_every=10, min=2) as job:
            # two pairs: ranks 0 and 2, and 1 and 3
            ranks = self.begun(job, {}, {}, {}, {})
            by_number = {int(rank.lines[-1].split("rank ")[1].split()[0]): rank for rank in ranks}
            read_until(by_number[0], "kept 25 ")
            for number in (1, 3):
                by_number[number].kill()
            for said in self.finish([by_number[0], by_number[2]], words=("lost",)):
                self.assertIn(", and what else rank", said)
                began = [int(line.split()[-1]) for line in said.splitlines() if line.startswith("began at")]
                self.assertGreaterEqual(began[-1], 20, said)
                self.assertEqual(began[-1] % 10, 0, said)

    def test_shards_in_a_checkpoint(self):
        with tempfile.TemporaryDirectory() as folder, self.job(save=folder + "/save", save_every=10, checkpoint=1, min=2) as job:
            ranks = self.begun(job, {}, {}, {"die": "step", "die_at": 25})
            for said in self.finish(ranks[:2]):
                self.assertIn("step 20 rank", said)
                self.assertIn("began at 20\n", said)

    def test_a_rank_that_was_stopped_brings_nothing_old(self):
        for place in ("step", "keep"):
            with self.subTest(place=place), self.job(steps=400, max=3, pause=3000, timeout=int(1500 * SLACK), settle=int(1000 * SLACK),
                                                     rejoin=int(10 * SLACK)) as job:
                ranks = self.begun(job, {}, {}, {"stop": place, "stop_at": 20})
                read_until(ranks[0], "of 2")
                read_until(ranks[0], "applied")
                ranks[2].send_signal(signal.SIGCONT)
                read_until(ranks[2], "left behind: DDP_ERROR_RANK_FAILED")
                read_until(ranks[2], "recalled")
                self.finish(ranks, 400)


if __name__ == "__main__":
    unittest.main(verbosity=2)
